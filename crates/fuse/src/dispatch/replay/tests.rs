//! Each change is carried out, its answer is lost, and it is resent.

use super::*;
use crate::MountOptions;
use crate::entry_words::EntryWordsArg;
use crate::handover::Ledger;
use crate::proto::{self, CreateIn, Dialect, Header, IoctlIn};
use crate::session::{Handler, Negotiated};
use std::sync::Arc;
use terrane_dataset::Dataset;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{Fs, WriteFlags};
use terrane_store::env::SeededEnv;

const FILE: u32 = mode::S_IFREG | 0o644;
const O_CREAT: u32 = libc::O_CREAT as u32;

fn served() -> (Dispatch, Arc<Fs>) {
    served_with(&[])
}

/// A file system with these properties.
pub(in crate::dispatch) fn served_with(props: &[(&str, &str)]) -> (Dispatch, Arc<Fs>) {
    let config = SimConfig { zone_count: 64, zone_size: 4 << 20, ..SimConfig::default() };
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(SimDevice::new(config).unwrap())];
    let options = ImportOptions { cache_bytes: 4 << 20, ..ImportOptions::default() };
    let create = CreateOptions::named("test");
    let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(1)), &options).unwrap();
    let dataset = Dataset::create_root(&ObjectSets::create(pool).unwrap(), props).unwrap();
    Fs::format(&dataset, &Cred::default()).unwrap();
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    (Dispatch::new(Arc::clone(&fs), &MountOptions::default(), Arc::default()), fs)
}

/// A file system with one file that holds these bytes and lost changes with a dead server.
pub(in crate::dispatch) fn served_after(stored: &[u8]) -> (Dispatch, Arc<Fs>, Ino) {
    let (_, fs) = served();
    let file = fs.create(fs.root(), b"file", FILE, &Cred::default()).unwrap().ino;
    fs.write(file, 0, stored, WriteFlags::default()).unwrap();
    fs.create(fs.root(), b"other", FILE, &Cred::default()).unwrap();
    fs.sync().unwrap();
    let lost = [(file, terrane_posix::Loss::default())].into();
    let fs = Fs::take_over(Arc::clone(fs.dataset()), lost).unwrap();
    (Dispatch::new(Arc::clone(&fs), &MountOptions::default(), Arc::default()), fs, file)
}

/// What is negotiated with a kernel that offers no optional features.
pub(in crate::dispatch) const AGREED: Negotiated = Negotiated {
    minor: 45,
    flags: 0,
    max_write: 1 << 20,
    xattrs: true,
    dialect: Dialect { setxattr_ext: false },
};

pub(in crate::dispatch) fn ask(
    dispatch: &Dispatch,
    resent: bool,
    request: Request<'_>,
) -> Result<Vec<u8>, Errno> {
    ask_about(dispatch, proto::ROOT_ID, &AGREED, resent, request)
}

pub(in crate::dispatch) fn ask_about(
    dispatch: &Dispatch,
    nodeid: u64,
    negotiated: &Negotiated,
    resent: bool,
    request: Request<'_>,
) -> Result<Vec<u8>, Errno> {
    let unique = if resent { 2 | proto::UNIQUE_RESENT } else { 2 };
    // No process has this id, so the user id decides.
    let header = Header { opcode: 0, unique, nodeid, uid: 0, gid: 0, pid: 0 };
    let mut reply = Reply::new();
    let call = Call { header: &header, request: &request, negotiated };
    dispatch.handle(&call, &mut reply).map(|()| reply.payload().to_vec())
}

/// Sends a request, then resends it: both get the same answer, though the second finds the result of the
/// first.
fn twice(dispatch: &Dispatch, request: Request<'_>) {
    let first = ask(dispatch, false, request);
    assert!(first.is_ok(), "{request:?}: {first:?}");
    assert_eq!(ask(dispatch, true, request), first, "{request:?}");
}

fn create(name: &[u8], flags: u32) -> Request<'_> {
    Request::Create { name, create: CreateIn { flags: O_CREAT | flags, mode: FILE, umask: 0, open_flags: 0 } }
}

#[test]
fn what_was_done_and_not_answered_is_answered_when_it_is_asked_again() {
    let (dispatch, fs) = served();
    twice(&dispatch, create(b"file", 0));
    twice(&dispatch, create(b"exclusive", O_EXCL));
    twice(&dispatch, Request::Mkdir { name: b"dir", mode: 0o755, umask: 0 });
    twice(&dispatch, Request::Mknod { name: b"pipe", mode: mode::S_IFIFO | 0o600, umask: 0, rdev: 0 });
    twice(&dispatch, Request::Mknod { name: b"disk", mode: mode::S_IFBLK | 0o600, umask: 0, rdev: 0x801 });
    twice(&dispatch, Request::Symlink { name: b"soft", target: b"target" });
    let nodeid = fs.lookup(fs.root(), b"file").unwrap().ino;
    twice(&dispatch, Request::Link { nodeid, name: b"link" });
    assert_eq!(fs.getattr(nodeid).unwrap().nlink, 2);
    let to = |new_name, flags| Request::Rename { name: b"file", new_dir: 1, new_name, flags };
    twice(&dispatch, to(b"moved", terrane_posix::RENAME_NOREPLACE));
    assert_eq!(fs.lookup(fs.root(), b"moved").unwrap().ino, nodeid);
    twice(&dispatch, Request::Unlink { name: b"moved" });
    twice(&dispatch, Request::Rmdir { name: b"dir" });
}

#[test]
fn the_kernel_forgets_a_mode_whose_set_id_bits_an_answer_does_not_tell() {
    let (dispatch, fs) = served();
    let file = fs.create(fs.root(), b"file", FILE, &Cred::default()).unwrap().ino;
    let chmod = || {
        let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
        fs.setattr(file, &set, &Cred::default()).unwrap();
    };
    let outdated_by = |request: Request<'_>, nodeid, resent| {
        let unique = if resent { 2 | proto::UNIQUE_RESENT } else { 2 };
        let header = Header { opcode: 0, unique, nodeid, uid: 7, gid: 7, pid: 0 };
        let mut reply = Reply::new();
        let call = Call { header: &header, request: &request, negotiated: &AGREED };
        dispatch.handle(&call, &mut reply).unwrap();
        reply.take_outdated()
    };
    let write = |write_flags| {
        let data = b"data";
        Request::Write(proto::WriteIn { offset: 0, write_flags, flags: 0, data })
    };
    let range = proto::FallocateIn { fh: 0, offset: 0, length: 10, mode: 0, padding: 0 };
    let copy = proto::CopyFileRangeIn {
        fh_in: 0,
        off_in: 0,
        nodeid_out: file,
        fh_out: 0,
        off_out: 100,
        len: 4,
        flags: 0,
    };
    let copy = Request::CopyFileRange { copy, wide: true };
    let kill = proto::write::KILL_SUIDGID;
    chmod();
    assert_eq!(outdated_by(write(0), file, false), None);
    assert_eq!(outdated_by(write(kill), file, false), Some(file));
    assert_eq!(outdated_by(write(kill), file, false), None, "there were none");
    assert_eq!(outdated_by(write(kill), file, true), Some(file), "a dead server may have done it");
    chmod();
    assert_eq!(outdated_by(Request::Fallocate(range), file, false), Some(file));
    chmod();
    assert_eq!(outdated_by(copy, file, false), Some(file));
    let from = fs.create(fs.root(), b"from", FILE, &Cred::default()).unwrap().ino;
    fs.write(from, 0, b"data", WriteFlags::default()).unwrap();
    chmod();
    assert_eq!(outdated_by(copy, from, false), Some(file), "the file that was copied into");
}

#[test]
fn what_was_lost_is_done_when_it_is_asked_again() {
    let (dispatch, fs) = served();
    ask(&dispatch, true, create(b"file", O_EXCL)).unwrap();
    ask(&dispatch, true, Request::Rename { name: b"file", new_dir: 1, new_name: b"moved", flags: 0 })
        .unwrap();
    ask(&dispatch, true, Request::Unlink { name: b"moved" }).unwrap();
    assert_eq!(fs.lookup(fs.root(), b"moved"), Err(ENOENT));
}

#[test]
fn what_stood_there_before_is_not_taken_for_its_own_work() {
    let (dispatch, fs) = served();
    let root = fs.root();
    let old = fs.create(root, b"old", FILE, &Cred::default()).unwrap().ino;
    fs.write(old, 0, b"data", WriteFlags::default()).unwrap();
    let dir = fs.mkdir(root, b"full", 0o755, &Cred::default()).unwrap().ino;
    let other = fs.create(dir, b"x", FILE, &Cred::default()).unwrap().ino;
    for request in [
        create(b"old", O_EXCL),
        create(b"full", 0),
        Request::Mkdir { name: b"full", mode: 0o755, umask: 0 },
        Request::Mkdir { name: b"old", mode: 0o755, umask: 0 },
        Request::Mknod { name: b"old", mode: FILE, umask: 0, rdev: 0 },
        Request::Symlink { name: b"old", target: b"target" },
        Request::Link { nodeid: other, name: b"old" },
        Request::Rename {
            name: b"old",
            new_dir: 1,
            new_name: b"full",
            flags: terrane_posix::RENAME_NOREPLACE,
        },
    ] {
        assert_eq!(ask(&dispatch, true, request), Err(EEXIST), "{request:?}");
    }
    let gone = Request::Rename { name: b"none", new_dir: 1, new_name: b"neither", flags: 0 };
    assert_eq!(ask(&dispatch, true, gone), Err(ENOENT));
    assert_eq!(ask(&dispatch, false, Request::Unlink { name: b"none" }), Err(ENOENT));
    // Not exclusive: the file is opened whichever request made it, and truncated if that was asked.
    ask(&dispatch, true, create(b"old", 0)).unwrap();
    assert_eq!(fs.getattr(old).unwrap().size, 4);
    ask(&dispatch, true, create(b"old", O_TRUNC)).unwrap();
    assert_eq!(fs.getattr(old).unwrap().size, 0);
}

/// Servers that follow each other on one file system, and the ledger that outlives them.
struct Mount {
    fs: Arc<Fs>,
    ledger: Ledger,
}

impl Mount {
    fn new() -> Mount {
        let mount = Mount { fs: served().1, ledger: Ledger::new(0).unwrap() };
        // The first server begins to note.
        mount.next();
        mount
    }

    /// The next server takes over from one that died.
    fn next(&self) -> Dispatch {
        let lost = [(7777, terrane_posix::Loss::default())].into();
        let fs = Fs::take_over(Arc::clone(self.fs.dataset()), lost).unwrap();
        let ledger = Ledger::map(self.ledger.file().try_clone().unwrap()).unwrap();
        Dispatch::new(fs, &MountOptions::default(), Arc::default())
            .with_rename_notes(ledger.rename_notes().unwrap())
    }

    fn file(&self, name: &[u8]) -> Ino {
        let ino = self.fs.create(self.fs.root(), name, FILE, &Cred::default()).unwrap().ino;
        self.fs.sync().unwrap();
        ino
    }

    fn inodes(&self, dispatch: &Dispatch) -> [Ino; 2] {
        [&b"a"[..], b"b"].map(|name| dispatch.ino_at(dispatch.fs.root(), name).unwrap())
    }
}

fn rename(flags: u32) -> Request<'static> {
    Request::Rename { name: b"a", new_dir: 1, new_name: b"b", flags }
}

/// Servers die before they have done it, after they have done it, and after they have said so.
#[test]
fn an_exchange_is_done_once_however_many_servers_die() {
    let mount = Mount::new();
    let (a, b) = (mount.file(b"a"), mount.file(b"b"));
    let exchange = rename(RENAME_EXCHANGE);
    // Before it was noted, and after that.
    let first = mount.next();
    let header = Header { opcode: 0, unique: 2, nodeid: proto::ROOT_ID, uid: 0, gid: 0, pid: 0 };
    let call = Call { header: &header, request: &exchange, negotiated: &AGREED };
    first.note_rename(&call);
    assert_eq!(mount.inodes(&first), [a, b]);
    drop(first);
    let second = mount.next();
    ask(&second, true, exchange).unwrap();
    assert_eq!(mount.inodes(&second), [b, a], "it was noted, and is done now");
    second.fs.sync().unwrap();
    for _ in 0..3 {
        let next = mount.next();
        ask(&next, true, exchange).unwrap();
        assert_eq!(mount.inodes(&next), [b, a], "it is not done again");
    }
    let next = mount.next();
    next.on_sent(&call);
    // Another one of this caller.
    ask(&next, false, exchange).unwrap();
    next.on_sent(&call);
    assert_eq!(mount.inodes(&next), [a, b]);
    next.fs.sync().unwrap();
    // No server has begun it.
    let next = mount.next();
    ask(&next, true, exchange).unwrap();
    assert_eq!(mount.inodes(&next), [b, a]);
}

#[test]
fn what_a_rename_with_a_whiteout_did_is_known_although_it_moved_a_whiteout() {
    let mount = Mount::new();
    let old = mount.fs.mknod(mount.fs.root(), b"a", mode::S_IFCHR, 0, &Cred::default()).unwrap().ino;
    mount.fs.sync().unwrap();
    let leave = rename(RENAME_WHITEOUT);
    // Nothing was begun.
    let first = mount.next();
    ask(&first, true, leave).unwrap();
    let [left, moved] = mount.inodes(&first);
    assert!(moved == old && left != old && left != 0);
    first.fs.sync().unwrap();
    let second = mount.next();
    ask(&second, true, leave).unwrap();
    assert_eq!(mount.inodes(&second), [left, moved], "the whiteout that it left is not moved");
}

#[test]
fn without_notes_of_the_predecessor_an_exchange_is_refused() {
    let (dispatch, _, file) = served_after(b"x");
    let exchange = Request::Rename { name: b"file", new_dir: 1, new_name: b"other", flags: RENAME_EXCHANGE };
    assert_eq!(ask(&dispatch, true, exchange), Err(Errno(libc::EIO)));
    assert_eq!(dispatch.ino_at(dispatch.fs.root(), b"file"), Ok(file));
    // One that stepped back has answered all that it had begun.
    dispatch.fs.note_clean_handover();
    dispatch.fs.mark_losses_read();
    ask(&dispatch, true, exchange).unwrap();
    assert_eq!(dispatch.ino_at(dispatch.fs.root(), b"other"), Ok(file));
}

/// The answer carries no times, so the kernel must drop those that it has: the first request may have changed them.
#[test]
fn a_removal_of_words_that_was_done_already_has_the_kernel_ask_for_times_again() {
    let (dispatch, fs) = served();
    fs.create(fs.root(), b"a", FILE, &Cred::default()).unwrap();
    fs.set_entry_words(fs.root(), b"a", &[1, 2]).unwrap();
    let data = EntryWordsArg::new(b"a", &[]).unwrap().encode();
    let in_size = u32::try_from(data.len()).unwrap();
    let ioctl = IoctlIn { fh: 0, flags: 0, cmd: SET_ENTRY_WORDS, arg: 0, in_size, out_size: 0 };
    let request = Request::Ioctl { ioctl, data: &data };
    for resent in [false, true] {
        let unique = if resent { 2 | proto::UNIQUE_RESENT } else { 2 };
        let header = Header { opcode: 0, unique, nodeid: proto::ROOT_ID, uid: 0, gid: 0, pid: 0 };
        let mut reply = Reply::new();
        dispatch
            .handle(&Call { header: &header, request: &request, negotiated: &AGREED }, &mut reply)
            .unwrap();
        assert_eq!(reply.take_outdated(), Some(proto::ROOT_ID), "{resent}");
    }
    assert_eq!(ask(&dispatch, false, request), Err(Errno::ENODATA), "not resent");
}
