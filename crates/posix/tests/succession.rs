//! A server dies, its mount stays, and a successor takes over, without knowing what the kernel knows.

use crate::support;
use std::sync::{Arc, Mutex};
use support::{Machine, Short};
use terrane_posix::{Errno, Fs, Ino, Ledger, Loss, SetAttr, ShownInodes, mode};
use terrane_store::errors::LossCause;

#[test]
fn open_files_without_a_name_outlive_the_process() {
    let mut m = Machine::new(11, &[]);
    let fs = m.fs();
    let root = fs.root();
    // Unlinked before the death, and open: looked up once, never forgotten.
    let gone = fs.file(root, "gone").ino;
    fs.put(gone, 0, b"still read");
    fs.unlink(root, b"gone").unwrap();
    let kept = fs.file(root, "kept").ino;
    fs.put(kept, 0, b"opened");
    fs.sync().unwrap();

    m.die(&[]);
    let fs = m.fs();
    assert_eq!(fs.bytes(gone), b"still read");
    fs.put(gone, 0, b"STILL");
    // Unlinked after the takeover by a program that has it open; no lookup is counted here.
    fs.unlink(root, b"kept").unwrap();
    assert_eq!(fs.bytes(kept), b"opened");
    assert_eq!(fs.unlinked_count(), Ok(2));
    // It is destroyed by the kernel's FORGET, which counts the lookups of both servers.
    fs.forget(kept, 1);
    assert_eq!(fs.getattr(kept).unwrap_err(), Errno::ESTALE);
    fs.forget(gone, 1);
    assert_eq!(fs.unlinked_count(), Ok(0));
    assert_eq!(fs.bytes(fs.file(root, "new").ino), b"");
}

#[test]
fn unlinked_files_of_a_successor_free_their_space() {
    let mut m = Machine::new(12, &[]);
    let root = m.fs().root();
    m.fs().file(root, "old");
    m.fs().sync().unwrap();
    m.die(&[]);
    let fs = m.fs();
    // New to the kernel: its FORGET counts only the successor's lookups.
    let old = fs.lookup(root, b"old").unwrap().ino;
    fs.lookup(root, b"old").unwrap();
    let new = fs.file(root, "new").ino;
    let nameless = fs.tmpfile(root, mode::S_IFREG | 0o600, &support::ROOT_CRED).unwrap().ino;
    fs.unlink(root, b"old").unwrap();
    fs.unlink(root, b"new").unwrap();
    assert_eq!(fs.unlinked_count(), Ok(3));
    fs.forget(old, 2);
    fs.forget(new, 1);
    fs.forget(nameless, 1);
    assert_eq!(fs.unlinked_count(), Ok(0));
}

#[test]
fn the_end_of_an_inherited_mount_leaves_nothing_unlinked() {
    let mut m = Machine::new(13, &[]);
    let root = m.fs().root();
    let ino = m.fs().file(root, "a").ino;
    m.fs().file(root, "b");
    m.fs().unlink(root, b"a").unwrap();
    m.fs().sync().unwrap();
    m.die(&[]);
    m.fs().unlink(root, b"b").unwrap();
    m.fs().getattr(ino).unwrap();
    m.remount();
    assert_eq!(m.fs().unlinked_count(), Ok(0));
}

/// A successor starts with the stored value, so the property must not decide what it does for the whole mount.
#[test]
fn a_data_set_that_is_read_only_is_taken_over_like_any_other() {
    let mut m = Machine::new(20, &[]);
    let root = m.fs().root();
    let gone = m.fs().file(root, "gone").ino;
    m.fs().put(gone, 0, b"still read");
    m.fs().unlink(root, b"gone").unwrap();
    let half = m.fs().file(root, "half").ino;
    m.fs().put(half, 0, b"first");
    m.fs().dataset().set("readonly", "on").unwrap();
    m.fs().sync().unwrap();

    m.die(&[half]);
    let fs = m.fs();
    assert_eq!((fs.bytes(gone), fs.unlinked_count()), (b"still read".to_vec(), Ok(1)));
    assert_eq!(fs.fsync(half, true), Err(Errno::EIO));
    fs.dataset().set("readonly", "off").unwrap();
    assert_eq!(fs.refuse_change(half), Err(Errno::EIO));
    // What is unlinked from now on is stored in the delete queue.
    fs.unlink(root, b"half").unwrap();
    fs.forget(gone, 1);
    fs.sync().unwrap();
    m.die(&[]);
    assert_eq!((m.fs().bytes(half), m.fs().unlinked_count()), (b"first".to_vec(), Ok(1)));
    m.remount();
    assert_eq!((m.fs().unlinked_count(), m.fs().getattr(half)), (Ok(0), Err(Errno::ESTALE)));
}

type Told = Vec<(Ino, Option<Loss>)>;

/// Keeps notes in a list.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<(u64, Ino)>>>, Arc<Mutex<Told>>);

impl Ledger for Notes {
    fn note_change(&self, txg: u64, ino: Ino) {
        self.0.lock().unwrap().push((txg, ino));
    }

    fn note_reported(&self, ino: Ino, loss: Option<Loss>) {
        self.1.lock().unwrap().push((ino, loss));
    }
}

#[test]
fn each_kind_of_call_reports_what_a_crash_lost() {
    let mut m = Machine::new(14, &[]);
    let fs = m.fs();
    let root = fs.root();
    let (safe, half) = (fs.file(root, "safe").ino, fs.file(root, "half").ino);
    fs.put(safe, 0, b"safe");
    fs.put(half, 0, b"first");
    let notes = Notes::default();
    fs.set_ledger(Box::new(notes.clone()));
    fs.fsync(safe, false).unwrap();
    let committed = m.objects().pool().status().txg.0;
    fs.put(half, 0, b"second");
    fs.put(half, 0, b"third!");
    let noted = notes.0.lock().unwrap().clone();
    assert_eq!(noted.iter().map(|(_, ino)| *ino).collect::<Vec<_>>(), [half], "once in a group");
    let lost: Vec<Ino> = noted.iter().filter(|(txg, _)| *txg > committed).map(|(_, ino)| *ino).collect();

    let never = half + 1000;
    m.die(&[&lost[..], &[never]].concat());
    let fs = m.fs();
    let notes = Notes::default();
    fs.set_ledger(Box::new(notes.clone()));
    assert_eq!(fs.bytes(half), b"first");
    assert_eq!(fs.fsync(safe, false), Ok(()));
    for _ in 0..3 {
        assert_eq!(fs.fsync(half, true), Err(Errno::EIO), "nothing was written anew");
    }
    assert_eq!(fs.refuse_change(safe), Ok(()));
    assert_eq!(fs.refuse_change(half), Err(Errno::EIO));
    assert_eq!(fs.refuse_change(half), Ok(()));
    assert_eq!(fs.fsync(half, true), Ok(()));
    assert_eq!((fs.fsync(never, true), fs.refuse_change(never)), (Err(Errno::EIO), Ok(())));
    let reported = |change_reported, sync_reported| {
        (half, Some(Loss { change_reported, sync_reported, ..Loss::default() }))
    };
    let noted = std::mem::take(&mut *notes.1.lock().unwrap());
    let last = noted.last().copied().unwrap();
    assert_eq!((noted[0], last), (reported(false, true), reported(true, true)));
    assert!(noted.iter().all(|(ino, _)| *ino == half), "the number of what never came to be stays lost");
    fs.put(half, 0, b"again");
    assert_eq!(fs.fsync(half, true), Ok(()));
    let listed = vec![(half, LossCause::ServerKilled)];
    assert_eq!((fs.lost_files(), fs.lost_inodes()), (listed, vec![]), "administrators have not read it");
    let cleared = || fs.clear_losses().unwrap().files.len();
    assert_eq!((cleared(), cleared()), (1, 0));
    let read = Loss { change_reported: true, sync_reported: true, is_read: true, ..Loss::default() };
    assert_eq!(notes.1.lock().unwrap().last(), Some(&(half, Some(read))));
    assert!(fs.is_lost(half), "the kernel may still append at an old end");
    let fs = Fs::take_over(Arc::clone(fs.dataset()), [(half, read)].into()).unwrap();
    assert_eq!((fs.lost_files(), fs.fsync(half, true), fs.is_lost(half)), (vec![], Ok(()), true));
    drop(fs);
    // Of what a rollback undid only the kernel learns.
    let fs = Fs::take_over(m.fs().dataset().clone(), [(half, Loss::ROLLED_BACK)].into()).unwrap();
    assert_eq!((fs.refuse_change(half), fs.fsync(half, true)), (Ok(()), Ok(())));
    assert_eq!((fs.lost_files(), fs.lost_inodes()), (vec![], vec![half]));
    drop(fs);
    // Until the rollback is done, what was lost before is reported.
    let refused = Loss { is_rolled_back: true, is_replaced: true, ..Loss::default() };
    let fs = Fs::take_over(m.fs().dataset().clone(), [(half, refused)].into()).unwrap();
    assert_eq!((fs.fsync(half, true), fs.refuse_change(half)), (Err(Errno::EIO), Err(Errno::EIO)));
    assert!(fs.is_replaced(half) && !fs.is_replaced(never));
    fs.note_named(half);
    assert_eq!((fs.is_replaced(half), fs.lost_inodes()), (false, vec![half]));
    // The kernel forgets the inode that had the number before, not this one, which is open.
    let attr = fs.lookup(fs.root(), b"half").unwrap();
    fs.unlink(fs.root(), b"half").unwrap();
    fs.forget(attr.ino, 9);
    assert_eq!((attr.ino, fs.getattr(half).map(|attr| attr.nlink)), (half, Ok(0)));
}

#[test]
fn what_was_lost_matters_until_the_file_is_cut_to_nothing_or_gone() {
    let mut m = Machine::new(19, &[]);
    let root = m.fs().root();
    let files: Vec<Ino> = ["cut", "shortened", "gone"].map(|name| m.fs().file(root, name).ino).into();
    files.iter().for_each(|ino| m.fs().put(*ino, 0, b"stored"));
    let dir = m.fs().dir(root, "dir").ino;
    m.fs().sync().unwrap();
    m.die(&[&files[..], &[dir]].concat());
    let fs = m.fs();
    let listed = || fs.lost_files().into_iter().map(|(ino, _)| ino).collect::<Vec<_>>();
    assert_eq!(listed(), files, "a directory is not told of");
    let cut = |ino, size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(ino, &set, &support::ROOT_CRED).unwrap();
    };
    cut(files[0], 0);
    cut(files[1], 3);
    fs.unlink(root, b"gone").unwrap();
    fs.forget(files[2], 1);
    assert_eq!(listed(), [files[1]]);
    assert_eq!((fs.fsync(files[0], false), fs.fsync(files[1], false)), (Ok(()), Err(Errno::EIO)));
    assert_eq!(
        (fs.refuse_change(dir), fs.fsync(dir, false), fs.fsync(dir, false)),
        (Ok(()), Err(Errno::EIO), Ok(()))
    );
}

#[test]
fn files_that_lost_changes_are_listed_after_the_mount_has_ended() {
    let mut m = Machine::new(23, &[]);
    let root = m.fs().root();
    let files: Vec<Ino> = ["lost", "mapped", "gone"].map(|name| m.fs().file(root, name).ino).into();
    files.iter().for_each(|ino| m.fs().put(*ino, 0, b"stored"));
    m.fs().sync().unwrap();
    m.die(&[files[0], files[2]]);
    m.fs().note_writeback_failure(files[1], Errno::ENOSPC);
    m.fs().record_errors().unwrap();
    m.fs().sync().unwrap();
    m.die(&[]);
    let fs = m.fs();
    let listed = [
        (files[0], LossCause::ServerKilled),
        (files[1], LossCause::NotWrittenBack),
        (files[2], LossCause::ServerKilled),
    ];
    assert_eq!(fs.lost_files(), listed);
    assert_eq!((fs.lost_inodes(), fs.fsync(files[0], false)), (vec![], Ok(())), "who had it open is gone");
    fs.unlink(root, b"gone").unwrap();
    fs.forget(files[2], 1);
    assert_eq!(fs.lost_files(), listed[..2]);
    assert_eq!(fs.clear_losses().unwrap().files.len(), 2);
    m.die(&[]);
    assert_eq!(m.fs().lost_files(), [], "clearing is durable");
}

#[test]
fn nobody_misses_that_somebody_read() {
    let m = Machine::new(20, &[("atime", "on")]);
    let fs = m.fs();
    let file = fs.file(fs.root(), "read").ino;
    fs.put(file, 0, b"bytes");
    fs.sync().unwrap();
    let notes = Notes::default();
    fs.set_ledger(Box::new(notes.clone()));
    assert_eq!(fs.bytes(file), b"bytes");
    assert!(notes.0.lock().unwrap().is_empty(), "only its time of access changed");
    fs.put(file, 0, b"other");
    assert_eq!(notes.0.lock().unwrap().len(), 1);
}

#[test]
fn a_number_that_was_lost_is_not_given_to_another() {
    let mut m = Machine::new(15, &[]);
    let fs = m.fs();
    let root = fs.root();
    fs.sync().unwrap();
    let lost: Vec<Ino> = (0..100).map(|n| fs.file(root, &format!("lost {n}")).ino).collect();
    m.die(&lost);
    let fs = m.fs();
    assert_eq!(fs.lost_inodes(), lost);
    let new: Vec<Ino> = (0..300).map(|n| fs.file(root, &format!("new {n}")).ino).collect();
    assert!(new.iter().all(|ino| !lost.contains(ino)));
    for ino in lost {
        assert_eq!(fs.getattr(ino).unwrap_err(), Errno::ESTALE);
    }
}

#[test]
fn a_number_comes_free_when_the_end_of_its_object_is_committed() {
    let m = Machine::new(16, &[]);
    let fs = m.fs();
    let root = fs.root();
    let old = fs.file(root, "old").ino;
    fs.put(old, 0, b"old");
    fs.sync().unwrap();
    fs.unlink(root, b"old").unwrap();
    fs.forget(old, 1);
    // Its destruction is in the open txg. A crash could bring it back, so its number must not be reused yet.
    assert!((0..100).all(|n| fs.file(root, &format!("a{n}")).ino != old));
    fs.sync().unwrap();
    fs.file(root, "between");
    fs.sync().unwrap();
    let again: Vec<Ino> = (0..100).map(|n| fs.file(root, &format!("b{n}")).ino).collect();
    assert!(again.contains(&old), "numbers are used again");
}

#[test]
fn a_new_file_does_not_report_the_loss_of_its_numbers_predecessor() {
    let mut m = Machine::new(17, &[]);
    let root = m.fs().root();
    let old = m.fs().file(root, "old").ino;
    m.fs().sync().unwrap();
    m.die(&[old]);
    let fs = m.fs();
    fs.unlink(root, b"old").unwrap();
    fs.forget(old, 1);
    for name in ["a", "b"] {
        fs.file(root, name);
        fs.sync().unwrap();
    }
    let new: Vec<Ino> = (0..100).map(|n| fs.file(root, &format!("{n}")).ino).collect();
    assert!(new.contains(&old), "the canary: its number is used again");
    assert_eq!(fs.fsync(old, false), Ok(()));
}

#[test]
fn a_file_made_without_a_name_can_still_get_one() {
    let mut m = Machine::new(18, &[]);
    let root = m.fs().root();
    let nameless = m.fs().tmpfile(root, mode::S_IFREG | 0o600, &support::ROOT_CRED).unwrap().ino;
    m.fs().put(nameless, 0, b"to be published");
    m.fs().sync().unwrap();
    m.die(&[]);
    let fs = m.fs();
    assert_eq!(fs.link(nameless, root, b"published").unwrap().nlink, 1);
    assert_eq!(fs.unlinked_count(), Ok(0));
    fs.forget(nameless, 2);
    m.remount();
    assert_eq!(m.fs().bytes(m.fs().ino(root, "published").unwrap()), b"to be published");
}

/// The kernel knows inodes by earlier states that another process has written. A number means the inode that it was told last, in whatever
/// state that was.
#[test]
fn a_number_means_the_inode_that_the_kernel_was_told() {
    let m = Machine::new(21, &[]);
    let root = m.fs().root();
    let ino = m.fs().file(root, "file").ino;
    m.fs().sync().unwrap();
    let shown = Arc::new(ShownInodes::default());
    let state = || Fs::follow(Arc::clone(m.fs().dataset()), Arc::clone(&shown)).unwrap();
    let fs = state();
    assert!(!fs.is_replaced(ino), "nothing was told");
    // As if the number had belonged to another file in an earlier state.
    shown.note(ino, 1);
    for _ in 0..3 {
        let fs = state();
        assert_eq!((fs.is_replaced(ino), fs.is_replaced(root)), (true, false));
    }
    assert_eq!(fs.lookup(root, b"file").unwrap().ino, ino);
    fs.note_named(ino);
    assert!(!fs.is_replaced(ino) && !state().is_replaced(ino));
    // The kernel forgets the earlier one late.
    fs.forget(ino, 1);
    shown.note(ino, 1);
    assert!(state().is_replaced(ino), "one lookup is left, so it is known what it means");
    fs.forget(ino, 2);
    assert!(!state().is_replaced(ino));
}
