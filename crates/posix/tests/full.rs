//! Full pools: growth is refused, freeing works, and nothing is lost.

use crate::support::{Machine, Short, USER};
use terrane_posix::{Errno, Fs, SetAttr, WriteFlags};
use terrane_wire::Prng;

/// Creates incompressible files of 256 KiB until the pool is full.
fn fill(fs: &Fs, rng: &mut Prng, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    loop {
        let name = format!("{prefix}{}", files.len());
        let data = rng.random_bytes(256 << 10);
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
    let mut rng = Prng::new(21);
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

/// Stores through mappings are written back even if the pool is full, since no program could get the error.
#[test]
fn write_backs_find_room_on_a_full_pool_and_leave_some_for_deletes() {
    let mut m = Machine::sized(22, &[], 64, 1 << 20);
    let mut rng = Prng::new(22);
    let root = m.fs().root();
    let mapped = m.fs().create(root, b"mapped", 0o644, &USER).unwrap().ino;
    let files = fill(m.fs(), &mut rng, "a");
    let back = WriteFlags { writes_back: true, ..WriteFlags::default() };
    let mut stored = Vec::new();
    let mut write_back = |fs: &Fs, ino, flags| {
        let before = stored.len();
        loop {
            let piece = rng.random_bytes(128 << 10);
            match fs.write(ino, stored.len() as u64, &piece, flags) {
                Ok(bytes) => stored.extend_from_slice(&piece[..bytes as usize]),
                Err(errno) => break assert_eq!(errno, Errno::ENOSPC),
            }
        }
        stored.len() - before
    };
    let ordinary = write_back(m.fs(), mapped, WriteFlags::default());
    assert!(ordinary < 256 << 10, "the pool was not full: {ordinary}");
    let written = write_back(m.fs(), mapped, back);
    // Half of half of a reserve of some 7 MiB.
    assert!(written >= 512 << 10, "{written} bytes were written back");
    assert!(written <= 3 << 20, "{written} bytes were written back, and deletes need some");
    assert_eq!(write_back(m.fs(), mapped, WriteFlags::default()), 0, "it is no room for others");
    m.fs().sync().unwrap();
    m.remount();
    assert!(m.fs().bytes(m.fs().ino(root, "mapped").unwrap()) == stored, "what was written back");
    for (name, data) in &files {
        assert!(m.fs().bytes(m.fs().ino(root, name).unwrap()) == *data, "{name}");
    }
    let mapped = m.fs().ino(root, "mapped").unwrap();
    let more =
        (0..16).filter(|at| m.fs().write(mapped, (8 + at) << 20, &rng.random_bytes(128 << 10), back).is_ok());
    assert!(more.count() < 4, "a mount gives them no more");

    // One after another, like a program that frees space.
    for (name, _) in &files {
        m.fs().unlink(root, name.as_bytes()).unwrap();
        m.fs().forget_all();
    }
    assert_eq!(m.fs().size(mapped, 100).map(|attr| attr.size), Ok(100), "cutting works");
    m.fs().sync().unwrap();
    let again = fill(m.fs(), &mut rng, "b");
    assert!(again.len() * 10 >= files.len() * 8, "{} files, then {}", files.len(), again.len());
}

/// A script that deletes until there is space must not delete too much: bytes that a txg will free count at
/// once.
#[test]
fn freed_space_is_reported_at_once_and_only_once() {
    let mut m = Machine::sized(23, &[], 64, 1 << 20);
    let mut rng = Prng::new(23);
    let free = |m: &Machine| m.fs().statfs().free * 4096;
    // Metadata, and reservations of the open txg.
    let slack = 1 << 20;
    let empty = free(&m);
    let size = 8 << 20;
    let mut written = Vec::new();
    for name in ["whole", "cut", "open"] {
        let ino = m.fs().create(m.fs().root(), name.as_bytes(), 0o644, &USER).unwrap().ino;
        for at in 0..8 {
            m.fs().write(ino, at << 20, &rng.random_bytes(1 << 20), WriteFlags::default()).unwrap();
        }
        written.push(ino);
    }
    m.fs().sync().unwrap();
    let full = free(&m);
    assert!(full + 3 * size < empty + slack && full + 3 * size + slack > empty, "{full} of {empty}");
    let shows = |m: &Machine, bytes: u64, when: &str| {
        let found = free(m) - full;
        assert!(found + slack > bytes && found < bytes + slack, "{when}: {found} bytes of {bytes}");
    };

    // The whole file after half of it was truncated: not more than it had.
    m.fs().size(written[0], size / 2).unwrap();
    shows(&m, size / 2, "cut");
    m.fs().unlink(m.fs().root(), b"whole").unwrap();
    shows(&m, size / 2, "unlinked and known");
    m.fs().forget(written[0], 1);
    shows(&m, size, "destroyed");
    m.fs().size(written[1], 0).unwrap();
    shows(&m, 2 * size, "cut to nothing");
    let blocks = m.fs().statfs().blocks;
    m.fs().sync().unwrap();
    shows(&m, 2 * size, "committed");
    assert!(m.fs().statfs().blocks.abs_diff(blocks) < 256, "the size of the file system stays");
    // An open file still takes its space.
    m.fs().unlink(m.fs().root(), b"open").unwrap();
    m.fs().sync().unwrap();
    shows(&m, 2 * size, "open");
    m.fs().forget(written[2], 1);
    shows(&m, 3 * size, "closed");
    m.remount();
    shows(&m, 3 * size, "mounted again");
}
