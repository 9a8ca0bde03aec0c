//! Many threads at once: the order of the records is that of the changes.

use super::world::{World, assert_same, tree};
use crate::fs::Fs;
use crate::support::{Short, USER};
use crate::types::{Ino, RENAME_EXCHANGE, SetAttr, SetXattr, WriteFlags};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use terrane_wire::Prng;

/// Changes of few names in few directories, which collide.
fn storm(fs: &Fs, dirs: &[Ino], seed: u64) {
    let mut rng = Prng::new(seed);
    for _ in 0..400 {
        let (dir, other) = (*rng.one_of(dirs), *rng.one_of(dirs));
        let (name, new_name) = (format!("n{}", rng.below(8)), format!("n{}", rng.below(8)));
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let Ok(found) = fs.lookup(dir, name) else {
            if let Ok(made) = fs.create(dir, name, 0o644, &USER) {
                fs.forget(made.ino, 1);
            }
            continue;
        };
        let flags = WriteFlags { append: rng.one_in(2), ..WriteFlags::default() };
        match rng.below(9) {
            0 => _ = fs.unlink(dir, name),
            1 => _ = fs.rename(dir, name, other, new_name, 0),
            2 => _ = fs.rename(dir, name, other, new_name, RENAME_EXCHANGE),
            3 => {
                if let Ok(linked) = fs.link(found.ino, other, new_name) {
                    fs.forget(linked.ino, 1);
                }
            }
            4 => {
                let mode = Some(rng.below(0o1000) as u32);
                let _ = fs.setattr(found.ino, &SetAttr { mode, ..SetAttr::default() }, &USER);
            }
            5 => _ = fs.setxattr(found.ino, b"user.x", name, SetXattr::default(), &USER),
            6 => _ = fs.size(found.ino, rng.below(9000)),
            _ => _ = fs.write(found.ino, rng.below(9000), &[seed as u8; 500], flags),
        }
        fs.forget(found.ino, 1);
    }
}

#[test]
fn concurrent_changes_come_back_in_their_order() {
    for seed in 0..8 {
        let world = World::with_threads(seed);
        let fs = world.fs();
        let dirs: Vec<Ino> = (0..2).map(|at| fs.dir(fs.root(), &format!("d{at}")).ino).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (fs, dirs) = (&fs, &dirs);
                scope.spawn(move || storm(fs, dirs, seed * 10 + thread));
            }
        });
        // A commit in between makes records superfluous, and no others necessary.
        let (frames, expected) = (world.recorded(), tree(&fs));
        assert_same(&tree(world.replayed(&frames).fs()), &expected, &format!("seed {seed}"));
    }
}

/// Ends the threads.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_threads_have_synced_is_there_after_a_crash_at_any_time() {
    let world = World::with_threads(1);
    let fs = world.fs();
    // Bytes that were promised of each file.
    let promised: Mutex<BTreeMap<Ino, u64>> = Mutex::default();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (fs, promised, ends) = (&fs, &promised, &ends);
            scope.spawn(move || {
                let dir = fs.dir(fs.root(), &format!("d{thread}")).ino;
                let mut rng = Prng::new(thread);
                let mut files = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    if files.len() < 20 && rng.one_in(10) {
                        let name = format!("f{}", files.len());
                        files.push((fs.file(dir, &name).ino, 0u64));
                    }
                    if files.is_empty() {
                        continue;
                    }
                    let at = rng.below(files.len() as u64) as usize;
                    let (ino, size) = &mut files[at];
                    fs.put(*ino, *size, &[*ino as u8; 100]);
                    *size += 100;
                    if rng.one_in(3) {
                        fs.fsync(*ino, false).unwrap();
                        promised.lock().insert(*ino, *size);
                    }
                }
            });
        }
        // Also if a comparison fails.
        let _end = OnDrop(&ends);
        for _ in 0..8 {
            world.machine.pool().env().sleep(std::time::Duration::from_millis(7));
            // What was promised was logged or committed before the power is cut.
            let promises = promised.lock().clone();
            let machine = world.replayed(&world.logged());
            for (ino, size) in promises {
                let bytes = machine.fs().bytes(ino);
                assert!(bytes.len() as u64 >= size, "inode {ino}: {} of {size} bytes", bytes.len());
                assert!(bytes.iter().all(|byte| *byte == ino as u8), "inode {ino}");
            }
        }
    });
    assert!(!world.logged().is_empty());
}
