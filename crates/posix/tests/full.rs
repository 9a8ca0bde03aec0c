//! A pool that is full: what adds is refused, what gives back is not, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod support;

use support::{Machine, Rng, Short, USER};
use terrane_posix::{Errno, Fs, SetAttr, WriteFlags};

/// Files of 256 KiB that no codec makes smaller, until there is no room.
fn fill(fs: &Fs, rng: &mut Rng, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    loop {
        let name = format!("{prefix}{}", files.len());
        let data = rng.bytes(256 << 10);
        let made = fs.create(fs.root(), name.as_bytes(), 0o644, &USER).and_then(|attr| {
            let written = fs.write(attr.ino, 0, &data, WriteFlags::default());
            fs.forget(attr.ino, 1);
            written
        });
        match made {
            Ok(bytes) if bytes as usize == data.len() => files.push((name, data)),
            Ok(_) | Err(Errno::ENOSPC) => return files,
            Err(errno) => panic!("{errno}"),
        }
    }
}

#[test]
fn a_full_pool_can_be_emptied_and_filled_again() {
    let mut m = Machine::sized(21, &[], 64, 1 << 20);
    let mut rng = Rng(21);
    let before = m.fs().statfs();
    let files = fill(m.fs(), &mut rng, "a");
    let bytes = files.len() as u64 * (256 << 10);
    assert!(bytes > before.available * 4096 / 2, "{bytes} of {} bytes were usable", before.available * 4096);
    m.fs().sync().unwrap();
    m.remount();
    let root = m.fs().root();
    for (name, data) in &files {
        assert!(m.fs().bytes(m.fs().ino(root, name).unwrap()) == *data, "{name}");
    }

    let first = m.fs().ino(root, "a0").unwrap();
    assert_eq!(m.fs().size(first, 100).map(|attr| attr.size), Ok(100), "cutting works");
    for (name, _) in &files {
        m.fs().unlink(root, name.as_bytes()).unwrap();
    }
    m.fs().forget_all();
    m.fs().sync().unwrap();
    assert_eq!(m.fs().unlinked_count(), Ok(0));

    let again = fill(m.fs(), &mut rng, "b");
    assert!(again.len() * 10 >= files.len() * 8, "{} files, then {}", files.len(), again.len());
    m.remount();
    for (name, data) in &again {
        assert!(m.fs().bytes(m.fs().ino(root, name).unwrap()) == *data, "{name}");
    }
    let last = m.fs().ino(root, "b0").unwrap();
    let touch = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert!(matches!(m.fs().setattr(last, &touch, &USER), Ok(_) | Err(Errno::ENOSPC)));
}
