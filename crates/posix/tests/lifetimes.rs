//! Lifetimes of destroyed files predict those of new ones.

use crate::support::{Machine, ROOT_CRED, Short, USER};
use terrane_posix::Ino;
use terrane_wire::{ObjectId, Prng};

/// Bytes written to the pool between birth and death of a file, so that lifetimes differ clearly.
const LIFE_BYTES: usize = 256 << 10;

/// Expected lifetime of a file in memory.
fn expected(m: &Machine, ino: Ino) -> Option<u64> {
    m.fs().dataset().object_set().hold(ObjectId(ino)).unwrap().expected_life()
}

fn run_txg(m: &Machine, busy: Ino, rng: &mut Prng) {
    m.fs().put(busy, 0, &rng.random_bytes(LIFE_BYTES));
    m.fs().sync().unwrap();
}

#[test]
fn new_files_get_the_lifetime_of_similar_names() {
    let m = Machine::new(61, &[("compression", "off")]);
    let (fs, root, mut rng) = (m.fs(), m.fs().root(), Prng::new(1));
    let busy = fs.file(root, "busy").ino;
    let (dir, other) = (fs.dir(root, "dir").ino, fs.dir(root, "other").ino);
    for round in 0..20 {
        for name in ["a.o", "b.o", "c.log"] {
            let file = fs.file(dir, name).ino;
            if round == 0 {
                assert_eq!(expected(&m, file), None, "nothing is known yet");
            }
            fs.put(file, 0, b"bytes");
        }
        let stays = fs.file(dir, &format!("{round}.c")).ino;
        fs.put(stays, 0, b"bytes");
        run_txg(&m, busy, &mut rng);
        fs.unlink(dir, b"a.o").unwrap();
        // A file that a rename replaces is destroyed too, also under another name.
        fs.rename(dir, b"b.o", dir, b"c.log", 0).unwrap();
        fs.unlink(dir, b"c.log").unwrap();
    }
    run_txg(&m, busy, &mut rng);
    for (dir, name, short) in
        [(dir, "x.o", true), (dir, "y.log", true), (other, "z.o", true), (dir, "x.c", false)]
    {
        let file = fs.file(dir, name).ino;
        let life = expected(&m, file).unwrap();
        let near = LIFE_BYTES as u64 / 2..LIFE_BYTES as u64 * 4;
        assert!(if short { near.contains(&life) } else { life == u64::MAX }, "{name}: {life}");
    }
}

#[test]
fn a_renamed_file_gets_the_lifetime_of_its_new_name() {
    let m = Machine::new(62, &[("compression", "off")]);
    let (fs, root, mut rng) = (m.fs(), m.fs().root(), Prng::new(2));
    let busy = fs.file(root, "busy").ino;
    for round in 0..20 {
        fs.file(root, "t.short");
        fs.file(root, &format!("{round}.long"));
        run_txg(&m, busy, &mut rng);
        fs.unlink(root, b"t.short").unwrap();
    }
    run_txg(&m, busy, &mut rng);
    let file = fs.file(root, "f.long").ino;
    assert_eq!(expected(&m, file), Some(u64::MAX));
    fs.rename(root, b"f.long", root, b"f.short", 0).unwrap();
    let short = expected(&m, file).unwrap();
    assert!(short < u64::MAX);
    fs.rename(root, b"f.short", root, b"g.long", 0).unwrap();
    assert_eq!(expected(&m, file), Some(u64::MAX));
    // Directories and links do not count as files.
    let dir = fs.dir(root, "d.short").ino;
    let link = fs.symlink(root, b"l.short", b"x", &USER).unwrap().ino;
    fs.rename(root, b"d.short", root, b"e.short", 0).unwrap();
    assert_eq!((expected(&m, dir), expected(&m, link)), (None, None));
    fs.unlink(root, b"l.short").unwrap();
    fs.rmdir(root, b"e.short").unwrap();
    // Without a name it dies soon; with one it is like the others.
    let nameless = fs.tmpfile(root, 0o600, &ROOT_CRED).unwrap().ino;
    assert_eq!(expected(&m, nameless), Some(0));
    fs.link(nameless, root, b"h.long").unwrap();
    assert_eq!(expected(&m, nameless), Some(u64::MAX));
    fs.link(nameless, root, b"h.short").unwrap();
    assert_eq!(expected(&m, nameless), Some(u64::MAX), "a second name makes it no other file");
    fs.unlink(root, b"h.long").unwrap();
    assert_eq!(expected(&m, nameless), Some(u64::MAX));
    fs.unlink(root, b"h.short").unwrap();
    assert_eq!(expected(&m, nameless), Some(0), "somebody has it open");
}
