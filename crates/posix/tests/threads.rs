//! Many threads in few directories: whatever the order of events, counts and names must agree.

use crate::support::{Machine, Short, USER};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_posix::{Errno, Fs, Ino, RENAME_EXCHANGE, RENAME_NOREPLACE, WriteFlags};
use terrane_wire::Prng;

/// Accepts results of races, and of a device without power.
fn may_fail(outcome: Result<(), Errno>) {
    const EXPECTED: [Errno; 9] = [
        Errno::EIO,
        Errno::ENOENT,
        Errno::EEXIST,
        Errno::EISDIR,
        Errno::ENOTDIR,
        Errno::ENOTEMPTY,
        Errno::EINVAL,
        Errno::ESTALE,
        Errno::EPERM,
    ];
    if let Err(errno) = outcome {
        assert!(EXPECTED.contains(&errno), "{errno}");
    }
}

fn storm(fs: &Fs, dirs: &[Ino], seed: u64, steps: usize) {
    let mut rng = Prng::new(seed);
    for _ in 0..steps {
        let (dir, other) = (*rng.one_of(dirs), *rng.one_of(dirs));
        let (name, new_name) = (format!("n{}", rng.below(12)), format!("n{}", rng.below(12)));
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        match rng.below(12) {
            0..2 => may_fail(fs.create(dir, name, 0o644, &USER).map(|attr| {
                may_fail(fs.write(attr.ino, 0, name, WriteFlags::default()).map(drop));
                fs.forget(attr.ino, 1);
            })),
            2 => may_fail(fs.mkdir(dir, name, 0o755, &USER).map(|attr| fs.forget(attr.ino, 1))),
            3 => may_fail(fs.lookup(dir, name).and_then(|found| {
                let linked = fs.link(found.ino, other, new_name).map(|attr| fs.forget(attr.ino, 1));
                fs.forget(found.ino, 1);
                linked
            })),
            4 => may_fail(fs.unlink(dir, name)),
            5 => may_fail(fs.rmdir(dir, name)),
            6..9 => {
                let flags = *rng.one_of(&[0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]);
                may_fail(fs.rename(dir, name, other, new_name, flags));
            }
            9 => may_fail(fs.tmpfile(dir, 0o600, &USER).map(|attr| {
                if rng.below(2) == 0 {
                    may_fail(fs.link(attr.ino, dir, name).map(|attr| fs.forget(attr.ino, 1)));
                }
                fs.forget(attr.ino, 1);
            })),
            10 => may_fail(fs.readdir(dir, 0, &mut |entry| {
                may_fail(fs.getattr(entry.ino).map(drop));
                true
            })),
            _ => may_fail(fs.drain_unlinked().map(drop)),
        }
    }
}

/// Checks everything: link counts against names, directories reached once, no object without a name.
fn check(fs: &Fs) {
    let (mut names, mut dirs) = (BTreeMap::<Ino, u32>::new(), vec![(fs.root(), fs.root())]);
    let mut seen = std::collections::BTreeSet::new();
    while let Some((dir, parent)) = dirs.pop() {
        assert!(seen.insert(dir), "directory {dir} has two names");
        assert_eq!(fs.ino(dir, ".."), Ok(parent), "parent of {dir}");
        let (mut entries, mut subdirs) = (0, 0);
        fs.readdir(dir, 2, &mut |entry| {
            entries += 1;
            if entry.kind == 4 {
                subdirs += 1;
                dirs.push((entry.ino, dir));
            } else {
                *names.entry(entry.ino).or_default() += 1;
            }
            true
        })
        .unwrap();
        let attr = fs.getattr(dir).unwrap();
        assert_eq!((attr.nlink, attr.size), (subdirs + 2, entries + 2), "counts of {dir}");
    }
    for (ino, links) in names {
        assert_eq!(fs.getattr(ino).unwrap().nlink, links, "links of {ino}");
    }
    assert_eq!(fs.unlinked_count(), Ok(0));
}

/// Five directories, in which six threads run `steps` operations each.
fn start(m: &Machine, seed: u64, steps: usize) -> Vec<std::thread::JoinHandle<()>> {
    let mut dirs = vec![m.fs().root()];
    for i in 0..4 {
        let parent = dirs[i / 2];
        dirs.push(m.fs().dir(parent, &format!("n{i}")).ino);
    }
    let thread = |i| {
        let (fs, dirs) = (Arc::clone(m.fs()), dirs.clone());
        std::thread::spawn(move || storm(&fs, &dirs, seed * 100 + i, steps))
    };
    (0..6).map(thread).collect()
}

fn finish(threads: Vec<std::thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_storm_of_threads_leaves_a_tree() {
    for seed in 1..=4 {
        println!("SEED={seed}");
        let mut m = Machine::new(seed, &[]);
        finish(start(&m, seed, 1500));
        m.fs().forget_all();
        check(m.fs());
        assert_eq!(m.fs().cached_inodes(), 0);
        m.remount();
        check(m.fs());
    }
}

#[test]
fn a_storm_leaves_a_tree_while_txgs_sync() {
    for seed in 11..=13 {
        println!("SEED={seed}");
        let mut m = Machine::with_threads(seed);
        let threads = start(&m, seed, 1500);
        while threads.iter().any(|thread| !thread.is_finished()) {
            m.fs().sync().unwrap();
        }
        finish(threads);
        m.fs().forget_all();
        check(m.fs());
        m.remount();
        check(m.fs());
    }
}

#[test]
fn a_storm_that_loses_power_leaves_a_tree() {
    for seed in 21..=28 {
        println!("SEED={seed}");
        let mut m = Machine::with_threads(seed);
        let threads = start(&m, seed, 3000);
        for _ in 0..seed % 5 {
            m.fs().sync().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(seed % 7 * 11));
        m.cut_power();
        finish(threads);
        m.crash();
        while m.fs().drain_unlinked().unwrap() {}
        check(m.fs());
        // It can be used again.
        finish(start_again(&m, seed));
        m.remount();
        check(m.fs());
    }
}

fn start_again(m: &Machine, seed: u64) -> Vec<std::thread::JoinHandle<()>> {
    let (fs, root) = (Arc::clone(m.fs()), m.fs().root());
    vec![std::thread::spawn(move || storm(&fs, &[root], seed, 300))]
}

#[test]
fn appends_of_many_threads_do_not_overwrite_each_other() {
    let m = Machine::new(9, &[("recordsize", "4K")]);
    let file = m.fs().file(m.fs().root(), "log").ino;
    let threads: Vec<_> = (0..4u8)
        .map(|i| {
            let fs = Arc::clone(m.fs());
            std::thread::spawn(move || {
                for _ in 0..200 {
                    let append = WriteFlags { append: true, ..WriteFlags::default() };
                    assert_eq!(fs.write(file, 0, &[b'a' + i; 37], append), Ok(37));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let bytes = m.fs().bytes(file);
    assert_eq!(bytes.len(), 4 * 200 * 37);
    assert!(bytes.chunks(37).all(|line| line.iter().all(|byte| byte == &line[0])));
}

#[test]
fn one_name_is_made_once() {
    let m = Machine::new(10, &[]);
    let root = m.fs().root();
    for round in 0..50 {
        let name = format!("n{round}");
        let made: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| usize::from(m.fs().create(root, name.as_bytes(), 0o600, &USER).is_ok()))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(made, 1);
    }
    assert_eq!(m.fs().getattr(root).unwrap().size, 52);
}
