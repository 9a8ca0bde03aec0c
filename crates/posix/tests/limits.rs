//! Quotas and read-only data sets, as programs meet them.

use crate::support::{Machine, USER};
use terrane_posix::{Errno, Fs, SetAttr, WriteFlags};
use terrane_wire::Prng;

const LIMIT: u64 = 16 << 20;

/// Creates incompressible files of 256 KiB until one is refused; returns how many there are.
fn fill(fs: &Fs, seed: u64, prefix: &str) -> u64 {
    let mut rng = Prng::new(seed);
    for number in 0.. {
        let data = rng.random_bytes(256 << 10);
        let made = fs.create(fs.root(), format!("{prefix}{number}").as_bytes(), 0o644, &USER);
        let written = made.and_then(|attr| {
            let written = fs.write(attr.ino, 0, &data, WriteFlags::default());
            fs.forget(attr.ino, 1);
            written
        });
        match written {
            Ok(bytes) => assert_eq!(bytes as usize, data.len()),
            Err(Errno::EDQUOT) => return number,
            Err(errno) => panic!("{errno}"),
        }
    }
    0
}

#[test]
fn a_quota_that_is_met_can_be_emptied_and_filled_again() {
    let m = Machine::new(31, &[("quota", "16M"), ("compression", "off")]);
    let fs = m.fs();
    let before = fs.statfs();
    assert!(before.available * 4096 <= LIMIT && before.blocks * 4096 <= LIMIT, "{before:?}");
    for round in 0..3 {
        let files = fill(fs, round, "a");
        assert!((52..64).contains(&files), "{files} files fit");
        fs.sync().unwrap();
        let used = fs.dataset().branch().used_bytes();
        assert!(used <= LIMIT && used > LIMIT / 10 * 8, "{used}");
        for number in 0..=files {
            // The last one was created, and its content refused.
            let removed = fs.unlink(fs.root(), format!("a{number}").as_bytes());
            assert!(removed.is_ok() || number == files, "{removed:?}");
        }
        fs.forget_all();
        fs.sync().unwrap();
        while fs.dataset().branch().used_bytes() > LIMIT / 4 {
            fs.sync().unwrap();
            m.pool().want_another_txg();
            m.pool().commit().unwrap();
        }
    }
}

#[test]
fn writers_that_share_a_quota_stay_below_it() {
    let m = Machine::with_threads(32);
    m.fs().dataset().set("refquota", "16M").unwrap();
    m.fs().dataset().set("compression", "off").unwrap();
    let files: u64 = std::thread::scope(|scope| {
        let write = |thread: u64| {
            let fs = m.fs();
            scope.spawn(move || fill(fs, thread, &format!("{thread} ")))
        };
        let threads: Vec<_> = (0..4).map(write).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    m.fs().sync().unwrap();
    let used = m.fs().dataset().branch().head_bytes();
    assert!(used <= LIMIT && files >= 48, "{files} files take {used}");
}

#[test]
fn a_read_only_data_set_changes_by_no_program() {
    let m = Machine::new(33, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let file = fs.create(root, b"file", 0o644, &USER).unwrap().ino;
    let gone = fs.create(root, b"gone", 0o644, &USER).unwrap().ino;
    fs.write(file, 0, b"content", WriteFlags::default()).unwrap();
    fs.unlink(root, b"gone").unwrap();
    fs.dataset().set("readonly", "on").unwrap();
    let rofs = Some(Errno::EROFS);
    assert_eq!(fs.create(root, b"new", 0o644, &USER).err(), rofs);
    assert_eq!(fs.mkdir(root, b"dir", 0o755, &USER).err(), rofs);
    assert_eq!(fs.write(file, 0, b"changed", WriteFlags::default()).err(), rofs);
    assert_eq!(fs.unlink(root, b"file").err(), rofs);
    assert_eq!(fs.rename(root, b"file", root, b"moved", 0).err(), rofs);
    assert_eq!(fs.link(file, root, b"link").err(), rofs);
    assert_eq!(fs.setattr(file, &SetAttr { size: Some(0), ..SetAttr::default() }, &USER).err(), rofs);
    let back = WriteFlags { writes_back: true, ..WriteFlags::default() };
    assert_eq!(fs.write(file, 0, b"mapped!", back), Ok(7), "what was stored before is not lost");
    let mut read = Vec::new();
    fs.read(file, 0, 100, &mut read).unwrap();
    assert_eq!(read, b"mapped!");
    // A program closes a file that has no name: its space is freed all the same.
    fs.forget(gone, 1);
    assert_eq!(fs.unlinked_count(), Ok(0));
    fs.dataset().set("readonly", "off").unwrap();
    fs.create(root, b"new", 0o644, &USER).unwrap();
}
