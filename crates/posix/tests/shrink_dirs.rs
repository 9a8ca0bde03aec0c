//! Directories that lost names shrink: in a later txg, concurrently with readers, and without failing any
//! request.

use crate::support::{Machine, USER};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use terrane_posix::{Errno, Fs, Ino, Job, JobStep, WriteFlags};
use terrane_wire::ObjectId;

/// Number of blocks, and bytes of one.
fn blocks(fs: &Fs, dir: Ino) -> (u64, u32) {
    let object = fs.dataset().object_set().hold(ObjectId(dir)).unwrap();
    (object.block_count(), object.block_size())
}

fn make(fs: &Fs, dir: Ino, name: &str) {
    let ino = fs.create(dir, name.as_bytes(), 0o644, &USER).unwrap().ino;
    fs.forget(ino, 1);
}

fn names(fs: &Fs, dir: Ino) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    fs.readdir(dir, 2, &mut |entry| names.insert(String::from_utf8_lossy(entry.name).into_owned())).unwrap();
    names
}

/// A directory with `count` names, which is fat from 4 KiB on.
fn filled(fs: &Fs, name: &str, count: usize) -> Ino {
    let dir = fs.mkdir(fs.root(), name.as_bytes(), 0o755, &USER).unwrap().ino;
    (0..count).for_each(|number| make(fs, dir, &format!("n{number}")));
    dir
}

fn empty(fs: &Fs, dir: Ino, numbers: std::ops::Range<usize>) {
    numbers.for_each(|number| fs.unlink(dir, format!("n{number}").as_bytes()).unwrap());
}

#[test]
fn a_directory_shrinks_in_a_later_txg_than_its_removals() {
    let mut m = Machine::new(1, &[("zapsize", "4K")]);
    let fs = m.fs().clone();
    let dir = filled(&fs, "d", 300);
    assert!(blocks(&fs, dir).0 > 2, "fat");
    fs.sync().unwrap();
    empty(&fs, dir, 10..300);
    assert_eq!(
        (fs.shrink_dirs().step(1), fs.shrink_dirs().progress()),
        (Ok(JobStep::NothingToDo), 1),
        "not in the same group"
    );
    assert!(blocks(&fs, dir).0 > 1);
    fs.sync().unwrap();
    assert_eq!((fs.shrink_dirs().step(1), fs.shrink_dirs().progress()), (Ok(JobStep::NothingToDo), 0));
    assert_eq!(blocks(&fs, dir), (1, 1024));
    let left: BTreeSet<String> = (0..10).map(|number| format!("n{number}")).collect();
    assert_eq!(names(&fs, dir), left);
    // From a long name in slots of 256 bytes back to small ones.
    let long = "x".repeat(200);
    make(&fs, dir, &long);
    assert_eq!(blocks(&fs, dir).1, 3072);
    fs.unlink(dir, long.as_bytes()).unwrap();
    fs.sync().unwrap();
    fs.shrink_dirs().step(1).unwrap();
    assert_eq!(blocks(&fs, dir).1, 3072, "one name does not make it go to and fro");
    empty(&fs, dir, 4..10);
    fs.sync().unwrap();
    fs.shrink_dirs().step(1).unwrap();
    assert_eq!(blocks(&fs, dir), (1, 512));
    let left: BTreeSet<String> = (0..4).map(|number| format!("n{number}")).collect();
    drop(fs);
    m.crash();
    assert_eq!(names(m.fs(), dir), left, "what was settled and not committed is as it was before");
    m.remount();
    assert_eq!(names(m.fs(), dir), left);
}

#[test]
fn unmount_shrinks_directories_that_were_never_looked_up() {
    let mut m = Machine::new(2, &[("zapsize", "4K")]);
    let fs = m.fs().clone();
    let dir = filled(&fs, "d", 300);
    // Only the set of directories to shrink still refers to it.
    fs.forget(dir, 1);
    empty(&fs, dir, 1..300);
    assert!(fs.cached_inodes() > 0);
    drop(fs);
    m.remount();
    assert_eq!(blocks(m.fs(), dir), (1, 512));
    assert_eq!(m.fs().cached_inodes(), 0);
}

#[test]
fn a_directory_removed_or_changed_meanwhile_is_not_shrunk() {
    let m = Machine::new(3, &[("zapsize", "4K")]);
    let fs = m.fs();
    let (gone, full) = (filled(fs, "gone", 200), filled(fs, "full", 200));
    fs.sync().unwrap();
    empty(fs, gone, 0..200);
    fs.rmdir(fs.root(), b"gone").unwrap();
    fs.forget(gone, 1);
    assert_eq!(fs.unlinked_count().unwrap(), 0, "nothing keeps what was removed");
    empty(fs, full, 0..190);
    fs.sync().unwrap();
    // Filled again before it is shrunk: there is nothing to gain.
    (0..190).for_each(|number| make(fs, full, &format!("n{number}")));
    let before = blocks(fs, full);
    fs.shrink_dirs().step(1).unwrap();
    assert_eq!(blocks(fs, full), before);
    assert_eq!(names(fs, full).len(), 200);
}

#[test]
fn shrinking_directories_frees_space_on_a_full_pool() {
    let m = Machine::sized(4, &[("zapsize", "4K"), ("compression", "off")], 40, 1 << 20);
    let fs = m.fs();
    let dir = filled(fs, "d", 2000);
    let file = fs.create(fs.root(), b"file", 0o644, &USER).unwrap().ino;
    let data: Vec<u8> = (0..64 << 10).map(|i: u32| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let mut at = 0;
    loop {
        match fs.write(file, at, &data, WriteFlags::default()) {
            Ok(written) => at += u64::from(written),
            Err(errno) => break assert_eq!(errno, Errno::ENOSPC),
        }
    }
    empty(fs, dir, 20..2000);
    fs.sync().unwrap();
    while fs.shrink_dirs().step(1) == Ok(JobStep::Progressed) {}
    fs.sync().unwrap();
    assert_eq!(names(fs, dir).len(), 20);
    assert_eq!(blocks(fs, dir).0, 1);
}

#[test]
fn readers_continue_while_directories_shrink() {
    let m = Machine::with_threads(5);
    let fs = m.fs();
    fs.dataset().set("zapsize", "4K").unwrap();
    let dir = filled(fs, "d", 10);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let seen = names(fs, dir);
                    assert!((0..10).all(|number| seen.contains(&format!("n{number}"))), "{seen:?}");
                    let attr = fs.lookup(dir, b"n3").unwrap();
                    fs.forget(attr.ino, 1);
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.shrink_dirs().step(1).unwrap();
            }
        });
        let mut shrunk = 0;
        for _ in 0..6 {
            (10..300).for_each(|number| make(fs, dir, &format!("n{number}")));
            empty(fs, dir, 10..300);
            fs.sync().unwrap();
            for _ in 0..1000 {
                if blocks(fs, dir).0 == 1 {
                    shrunk += 1;
                    break;
                }
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(shrunk > 0);
    });
    assert_eq!(names(fs, dir).len(), 10);
}
