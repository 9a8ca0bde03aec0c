use super::super::replay::tests::{AGREED, ask_about, served_after};
use super::*;
use crate::MountOptions;
use crate::proto::{FallocateIn, SetattrIn, WriteIn};
use std::sync::Arc;
use terrane_posix::{Cred, Errno, Fs, SetAttr};

const EIO: Result<Vec<u8>, Errno> = Err(Errno::EIO);

fn setattr(valid: u32, size: u64) -> Request<'static> {
    Request::Setattr(SetattrIn { valid, size, ..SetattrIn::decode(&[0; SetattrIn::SIZE]).unwrap() })
}

fn write(write_flags: u32) -> Request<'static> {
    Request::Write(WriteIn { offset: 0, write_flags, flags: 0, data: b"new" })
}

#[test]
fn the_first_change_of_a_file_that_lost_some_is_refused() {
    let range = FallocateIn { fh: 0, offset: 0, length: 10, mode: 0, padding: 0 };
    let to = |flags| Request::Rename { name: b"file", new_dir: proto::ROOT_ID, new_name: b"other", flags };
    // Each with the node that it is sent to; 0 is the file.
    let changes = [
        (0, write(0)),
        (0, setattr(fattr::SIZE, 3)),
        (0, setattr(fattr::MODE, 0)),
        (0, setattr(fattr::MTIME, 0)),
        (0, Request::Fallocate(range)),
        (0, Request::Removexattr { name: b"user.x" }),
        (proto::ROOT_ID, to(0)),
        (proto::ROOT_ID, to(RENAME_EXCHANGE)),
    ];
    for (node, change) in changes {
        let (dispatch, fs, file) = served_after(b"stored");
        let node = if node == 0 { file } else { node };
        let ask = || ask_about(&dispatch, node, &AGREED, false, change);
        assert_eq!(ask(), EIO, "{change:?}");
        let mut stored = Vec::new();
        fs.read(file, 0, 99, &mut stored).unwrap();
        assert_eq!(stored, b"stored", "{change:?}");
        assert_ne!(ask(), EIO, "{change:?}");
    }
}

#[test]
fn a_copy_into_it_and_a_link_to_it_are_refused() {
    let (dispatch, fs, file) = served_after(b"stored");
    let link = Request::Link { nodeid: file, name: b"link" };
    assert_eq!(ask_about(&dispatch, proto::ROOT_ID, &AGREED, false, link), EIO);
    let (dispatch, other, file) = served_after(b"stored");
    let from = other.create(other.root(), b"from", 0o644, &Cred::default()).unwrap().ino;
    let copy = proto::CopyFileRangeIn {
        fh_in: 0,
        off_in: 0,
        nodeid_out: file,
        fh_out: 0,
        off_out: 0,
        len: 4,
        flags: 0,
    };
    assert_eq!(ask_about(&dispatch, from, &AGREED, false, Request::CopyFileRange { copy, wide: true }), EIO);
    assert_eq!(fs.lookup(fs.root(), b"link").unwrap_err(), Errno(libc::ENOENT));
}

#[test]
fn what_the_page_cache_writes_is_carried_out_and_answered_with_an_error() {
    let (dispatch, fs, file) = served_after(b"stored");
    assert_eq!(ask_about(&dispatch, file, &AGREED, false, write(proto::write::CACHE)), EIO);
    let mut stored = Vec::new();
    fs.read(file, 0, 99, &mut stored).unwrap();
    assert_eq!(stored, b"newred");
    assert!(ask_about(&dispatch, file, &AGREED, false, write(proto::write::CACHE)).is_ok());
}

#[test]
fn what_needs_nothing_of_what_was_lost_is_done() {
    let (dispatch, fs, file) = served_after(b"stored");
    let times = setattr(fattr::CTIME | fattr::MTIME, 0);
    assert!(ask_about(&dispatch, file, &AGREED, false, times).is_ok(), "nobody would hear of the error");
    let mkdir = Request::Mkdir { name: b"dir", mode: 0o755, umask: 0 };
    assert!(ask_about(&dispatch, proto::ROOT_ID, &AGREED, false, mkdir).is_ok());
    assert!(ask_about(&dispatch, file, &AGREED, false, setattr(fattr::SIZE, 0)).is_ok());
    assert!(ask_about(&dispatch, file, &AGREED, false, write(0)).is_ok(), "all of it is new");
    let set = SetAttr { size: Some(9), ..SetAttr::default() };
    fs.setattr(file, &set, &Cred::default()).unwrap();
    assert!(!fs.has_losses());

    let (dispatch, fs, file) = served_after(b"stored");
    assert!(ask_about(&dispatch, proto::ROOT_ID, &AGREED, false, Request::Unlink { name: b"file" }).is_ok());
    fs.forget(file, 1);
    assert!(!fs.has_losses());
}

#[test]
fn what_is_done_anew_on_a_mount_that_syncs_is_not_refused_for_its_own_loss() {
    let (_, fs, _) = served_after(b"stored");
    let lost = [(fs.root(), terrane_posix::Loss::default())].into();
    let fs = Fs::take_over(Arc::clone(fs.dataset()), lost).unwrap();
    let options = MountOptions { dirsync: true, ..MountOptions::default() };
    let dispatch = Dispatch::new(Arc::clone(&fs), &options, Arc::default());
    let to = Request::Rename { name: b"dir", new_dir: proto::ROOT_ID, new_name: b"moved", flags: 0 };
    for change in [Request::Mkdir { name: b"dir", mode: 0o755, umask: 0 }, to] {
        let answer = ask_about(&dispatch, proto::ROOT_ID, &AGREED, true, change);
        assert!(answer.is_ok(), "{change:?}: {answer:?}");
    }
    let sync = Request::Fsyncdir { data_only: false };
    assert_eq!(ask_about(&dispatch, proto::ROOT_ID, &AGREED, false, sync), EIO, "who asks is told");
    assert!(ask_about(&dispatch, proto::ROOT_ID, &AGREED, false, sync).is_ok(), "once");
}

fn append(offset: u64, data: &[u8]) -> Request<'_> {
    Request::Write(WriteIn { offset, write_flags: 0, flags: libc::O_APPEND.cast_unsigned(), data })
}

fn content_of(fs: &Fs, file: u64) -> Vec<u8> {
    let mut stored = Vec::new();
    fs.read(file, 0, 99, &mut stored).unwrap();
    stored
}

#[test]
fn what_is_appended_goes_to_the_end_whatever_size_the_kernel_remembers() {
    // The kernel's stale size: after a lost extension, and after a lost truncation.
    for stale in [16, 2] {
        let (dispatch, fs, file) = served_after(b"stored");
        let content = || content_of(&fs, file);
        let ask = |resent, request| ask_about(&dispatch, file, &AGREED, resent, request);
        assert_eq!(ask(false, append(stale, b"new")), EIO, "the first change is refused");
        assert!(ask(false, append(stale, b"new")).is_ok());
        assert!(ask(false, append(stale + 3, b"er")).is_ok());
        assert_eq!(content(), b"storednewer");
        // The kernel may know the size by now.
        assert!(ask(false, append(11, b"!")).is_ok());
        assert_eq!(content(), b"storednewer!");
        assert!(ask(true, append(11, b"!")).is_ok());
        assert_eq!(content(), b"storednewer!", "asked again");
        // The caller gives the offset itself.
        assert!(ask(false, write(0)).is_ok());
        assert_eq!(content(), b"newrednewer!");
    }
}

#[test]
fn what_is_appended_and_asked_again_overwrites_nothing_and_is_there_once() {
    // The kernel's stale size: after a lost truncation, and after a lost extension.
    for stale in [2, 16] {
        let (dispatch, fs, file) = served_after(b"stored");
        let content = || content_of(&fs, file);
        let ask = |resent, request| ask_about(&dispatch, file, &AGREED, resent, request);
        assert_eq!(ask(false, write(0)), EIO, "the first change is refused");
        // A server that stepped back had read it and not begun.
        assert!(ask(true, append(stale, b"new")).is_ok());
        assert_eq!(content(), b"storednew");
        // A server that died had appended it, and that was committed.
        assert!(ask(true, append(stale, b"new")).is_ok());
        assert_eq!(content(), b"storednew");
        assert!(ask(true, append(stale + 3, b"longer than all that is there")).is_ok());
        assert_eq!(content(), b"storednewlonger than all that is there");
    }
}

#[test]
fn an_append_that_no_server_has_begun_is_done_though_the_end_looks_like_it() {
    let (dispatch, fs, file) = served_after(b"tick\ntick\n");
    fs.note_clean_handover();
    let (offset, flags) = (99, libc::O_APPEND.cast_unsigned());
    let append = Request::Write(WriteIn { offset, write_flags: 0, flags, data: b"tick\n" });
    assert_eq!(ask_about(&dispatch, file, &AGREED, false, append), EIO, "the first change is refused");
    assert!(ask_about(&dispatch, file, &AGREED, true, append).is_ok());
    assert_eq!(fs.getattr(file).unwrap().size, 15);
}
