//! Space accounting of a data set in its header, as files are created and destroyed.

use crate::support::{Machine, Short};
use terrane_object::Account;
use terrane_wire::Prng;

fn account(m: &Machine) -> Account {
    m.fs().sync().unwrap();
    m.fs().dataset().object_set().account().unwrap()
}

#[test]
fn what_a_data_set_takes_is_counted() {
    let mut m = Machine::new(7, &[("compression", "lz4"), ("recordsize", "16K")]);
    let root = m.fs().root();
    let empty = account(&m);
    assert_eq!((empty.logical_bytes, empty.physical_bytes, empty.ratio()), (0, 0, None));
    assert!(empty.used_bytes > 0, "a root directory takes something");

    let noise = Prng::new(3).random_bytes(256 << 10);
    let file = m.fs().file(root, "noise").ino;
    m.fs().put(file, 0, &noise);
    let with_noise = account(&m);
    assert_eq!((with_noise.logical_bytes, with_noise.physical_bytes), (256 << 10, 256 << 10));
    assert!(with_noise.used_bytes > 256 << 10, "pointers come on top");

    let text = b"a line of text that repeats\n".repeat(10_000);
    let file = m.fs().file(root, "text").ino;
    m.fs().put(file, 0, &text);
    let with_text = account(&m);
    let records = (text.len() as u64).next_multiple_of(16 << 10);
    let logical = with_text.logical_bytes - with_noise.logical_bytes;
    assert!((text.len() as u64..=records).contains(&logical), "{logical} bytes of {}", text.len());
    assert!(with_text.physical_bytes - with_noise.physical_bytes < logical / 8);
    assert!(with_text.ratio().unwrap() > 1.5);

    // Neither holes nor zeros are records. A block embedded in its pointer is one, and takes no block.
    for (name, bytes) in [("hole", &[][..]), ("zeros", &[0; 64 << 10][..])] {
        let file = m.fs().file(root, name).ino;
        m.fs().put(file, 0, bytes);
        m.fs().size(file, 1 << 20).unwrap();
    }
    let with_holes = account(&m);
    assert_eq!(with_holes.logical_bytes, with_text.logical_bytes);
    let file = m.fs().file(root, "tiny").ino;
    m.fs().put(file, 0, b"a few bytes");
    let with_tiny = account(&m);
    assert!(with_tiny.logical_bytes > with_holes.logical_bytes);
    let payload = with_tiny.physical_bytes - with_holes.physical_bytes;
    assert!((1..=112).contains(&payload), "{payload}");

    m.remount();
    assert_eq!(account(&m).logical_bytes, with_tiny.logical_bytes, "it is stored");
    // Overwritten, each block is counted once.
    let file = m.fs().ino(root, "noise").unwrap();
    m.fs().put(file, 0, &Prng::new(4).random_bytes(256 << 10));
    assert_eq!(account(&m).logical_bytes, with_tiny.logical_bytes);
    for name in ["noise", "text", "hole", "zeros", "tiny"] {
        m.fs().unlink(root, name.as_bytes()).unwrap();
    }
    m.fs().forget_all();
    let after = account(&m);
    assert_eq!((after.logical_bytes, after.physical_bytes), (0, 0));
}

#[test]
fn queued_subtrees_count_until_they_are_freed() {
    let m = Machine::new(8, &[("compression", "off"), ("recordsize", "512")]);
    let root = m.fs().root();
    let file = m.fs().file(root, "large").ino;
    // A tree of four levels, whose upper parts are freed from the queue.
    let bytes = Prng::new(5).random_bytes(1 << 20);
    for at in 0..10 {
        m.fs().put(file, at << 20, &bytes);
        m.fs().sync().unwrap();
    }
    let full = account(&m);
    assert_eq!((full.logical_bytes, full.physical_bytes), (10 << 20, 10 << 20));
    m.fs().unlink(root, b"large").unwrap();
    m.fs().forget_all();
    let mut left = account(&m);
    for _ in 0..8 {
        m.fs().file(root, "group");
        m.fs().unlink(root, b"group").unwrap();
        left = account(&m);
    }
    assert_eq!((left.logical_bytes, left.physical_bytes), (0, 0));
    assert!(left.used_bytes < 1 << 20);
}

#[test]
fn a_set_of_an_older_version_is_not_counted() {
    let m = Machine::without_features(9);
    let file = m.fs().file(m.fs().root(), "file").ino;
    m.fs().put(file, 0, &Prng::new(6).random_bytes(4096));
    m.fs().sync().unwrap();
    let set = m.fs().dataset().object_set().clone();
    assert_eq!(set.account(), None);
    set.pool().enable(&[terrane_format::Feature::Accounts]).unwrap();
    m.fs().put(file, 0, &Prng::new(7).random_bytes(4096));
    m.fs().sync().unwrap();
    assert_eq!(set.account(), None, "what was there before nobody counted");
}
