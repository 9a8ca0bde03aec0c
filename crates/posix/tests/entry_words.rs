//! Words beside directory entries: they belong to the entry, move with its name, and vanish with it.

#[path = "../../zap/tests/colliders/mod.rs"]
mod colliders;

use crate::support::{Machine, ROOT_CRED, Short, USER};
use colliders::colliders;
use std::sync::Arc;
use terrane_dataset::{ObjectStore, ObjectZap};
use terrane_format::Feature;
use terrane_format::features::Compatibility;
use terrane_posix::{Errno, Fs, Ino, InodeFlags, Job, RENAME_EXCHANGE, RENAME_NOREPLACE, SetXattr};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;
use terrane_zap::{Kind, ValueRef, Zap};

const ID: [u64; 3] = [0x2_0000_0401, 7, 0];

fn words(fs: &Fs, dir: Ino, name: &str) -> Result<Vec<u64>, Errno> {
    fs.entry_words(dir, name.as_bytes()).map(|words| words.as_slice().to_vec())
}

fn set(fs: &Fs, dir: Ino, name: &str, words: &[u64]) -> Result<(), Errno> {
    fs.set_entry_words(dir, name.as_bytes(), words)
}

/// All names of a directory with their words, in alphabetical order.
fn listed(fs: &Fs, dir: Ino) -> Result<Vec<(String, Vec<u64>)>, Errno> {
    let mut listed = Vec::new();
    fs.readdir_words(dir, 2, &mut |entry, words| {
        listed.push((String::from_utf8(entry.name.to_vec()).unwrap(), words.as_slice().to_vec()));
        true
    })?;
    listed.sort();
    Ok(listed)
}

fn kind(fs: &Fs, dir: Ino) -> Kind {
    let object = fs.dataset().object_set().hold(ObjectId(dir)).unwrap();
    let store = ObjectStore::reader(&object);
    Zap::open(&store).unwrap().kind(&store).unwrap()
}

fn make(fs: &Fs, dir: Ino, name: &str, words: &[u64]) -> Ino {
    fs.with_entry_words(words).unwrap().create(dir, name.as_bytes(), 0o644, &USER).unwrap().ino
}

const TINY_64: Kind = Kind::Tiny { chunk_bytes: 64, value_ints: 4 };
const TINY_128: Kind = Kind::Tiny { chunk_bytes: 128, value_ints: 4 };

#[test]
fn a_directory_of_identified_files_is_tiny() {
    let mut m = Machine::new(1, &[]);
    let dir = m.fs().dir(m.fs().root(), "d").ino;
    let with_words = m.fs().with_entry_words(&ID).unwrap();
    with_words.mkdir(dir, b"directory", 0o755, &USER).unwrap();
    with_words.symlink(dir, b"symlink", b"x", &USER).unwrap();
    with_words.mknod(dir, b"fifo", 0o010_644, 0, &USER).unwrap();
    let file = with_words.create(dir, b"file", 0o644, &USER).unwrap().ino;
    m.fs().link(file, dir, b"link without").unwrap();
    with_words.link(file, dir, b"link with").unwrap();
    assert_eq!(kind(m.fs(), dir), TINY_64);
    // A program that knows nothing of words does not change the form.
    m.fs().file(dir, "plain");
    assert_eq!(kind(m.fs(), dir), TINY_64);
    let long = "a name that is longer than the twenty-seven bytes of such a slot";
    make(m.fs(), dir, long, &[1]);
    assert_eq!(kind(m.fs(), dir), TINY_128);
    let id = ID.to_vec();
    let expected: Vec<(String, Vec<u64>)> = [
        (long, vec![1]),
        ("directory", id.clone()),
        ("fifo", id.clone()),
        ("file", id.clone()),
        ("link with", id.clone()),
        ("link without", vec![]),
        ("plain", vec![]),
        ("symlink", id),
    ]
    .map(|(name, words)| (name.to_string(), words))
    .to_vec();
    for _ in 0..2 {
        assert_eq!(listed(m.fs(), dir).unwrap(), expected);
        assert_eq!(words(m.fs(), dir, "plain"), Err(Errno::ENODATA));
        assert_eq!(m.fs().lookup(dir, b"link with").unwrap().ino, file);
        m.remount();
    }
    assert_eq!(
        m.fs().with_entry_words(&ID).unwrap().create(dir, b"file", 0o644, &USER).err(),
        Some(Errno::EEXIST)
    );
}

#[test]
fn a_script_that_adds_words_to_existing_names_keeps_the_directory_tiny() {
    let m = Machine::new(2, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let one = fs.dir(root, "one").ino;
    fs.file(one, "f");
    set(fs, one, "f", &ID).unwrap();
    assert_eq!(kind(fs, one), TINY_64);
    let dir = fs.dir(root, "d").ino;
    let names: Vec<String> = (0..200).map(|number| format!("file-{number:06}")).collect();
    names.iter().for_each(|name| assert!(fs.file(dir, name).ino > 0));
    for (number, name) in names.iter().enumerate() {
        set(fs, dir, name, &[number as u64, 0, 0]).unwrap();
        assert_eq!(kind(fs, dir), TINY_64);
    }
    let expected: Vec<_> =
        names.iter().enumerate().map(|(number, name)| (name.clone(), vec![number as u64, 0, 0])).collect();
    assert_eq!(listed(fs, dir).unwrap(), expected);
    for name in &names {
        fs.remove_entry_words(dir, name.as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    names[10..].iter().for_each(|name| fs.unlink(dir, name.as_bytes()).unwrap());
    fs.sync().unwrap();
    fs.shrink_dirs().step(100).unwrap();
    assert_eq!(kind(fs, dir), Kind::Micro);
}

#[test]
fn words_move_with_the_name() {
    let m = Machine::new(3, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let (here, there) = (fs.dir(root, "here").ino, fs.dir(root, "there").ino);
    make(fs, here, "a", &[1, 2, 3]);
    fs.rename(here, b"a", here, b"b", RENAME_NOREPLACE).unwrap();
    assert_eq!((words(fs, here, "b"), words(fs, here, "a")), (Ok(vec![1, 2, 3]), Err(Errno::ENOENT)));
    fs.rename(here, b"b", there, b"c", 0).unwrap();
    assert_eq!(listed(fs, there).unwrap(), [("c".to_string(), vec![1, 2, 3])]);
    assert_eq!(kind(fs, there), TINY_64);

    // What is replaced takes its words along, and a name without words stays without.
    make(fs, there, "with", &[9, 9]);
    fs.rename(there, b"c", there, b"with", 0).unwrap();
    assert_eq!(listed(fs, there).unwrap(), [("with".to_string(), vec![1, 2, 3])]);
    fs.file(there, "plain");
    fs.rename(there, b"plain", there, b"with", 0).unwrap();
    assert_eq!(listed(fs, there).unwrap(), [("with".to_string(), vec![])]);

    make(fs, here, "x", &[5]);
    make(fs, there, "y", &[6, 7, 8, 9, 10, 11]);
    fs.rename(here, b"x", there, b"y", RENAME_EXCHANGE).unwrap();
    assert_eq!((words(fs, here, "x"), words(fs, there, "y")), (Ok(vec![6, 7, 8, 9, 10, 11]), Ok(vec![5])));
    fs.rename(here, b"x", there, b"with", RENAME_EXCHANGE).unwrap();
    assert_eq!(
        (words(fs, here, "x"), words(fs, there, "with")),
        (Err(Errno::ENODATA), Ok(vec![6, 7, 8, 9, 10, 11]))
    );

    // The whiteout is a new entry.
    fs.rename_with_whiteout(there, b"y", here, b"z", 0, &ROOT_CRED).unwrap();
    assert_eq!((words(fs, there, "y"), words(fs, here, "z")), (Err(Errno::ENODATA), Ok(vec![5])));

    // Two names of one file: nothing happens, to words neither.
    let file = make(fs, here, "first", &[1]);
    fs.with_entry_words(&[2]).unwrap().link(file, here, b"second").unwrap();
    fs.rename(here, b"first", here, b"second", 0).unwrap();
    assert_eq!((words(fs, here, "first"), words(fs, here, "second")), (Ok(vec![1]), Ok(vec![2])));
    fs.unlink(here, b"first").unwrap();
    assert_eq!(words(fs, here, "second"), Ok(vec![2]));
    fs.unlink(here, b"second").unwrap();
    fs.file(here, "second");
    assert_eq!(words(fs, here, "second"), Err(Errno::ENODATA), "a new name has none");
}

/// A directory whose names no split of its ZAP can separate has no space for more words beside them.
#[test]
fn an_exchange_that_finds_no_space_for_words_changes_nothing() {
    let m = Machine::new(6, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let (here, there) = (fs.dir(root, "here").ino, fs.dir(root, "there").ino);
    let names = colliders(28, 12).take(300).map(|name| String::from_utf8(name).unwrap());
    let crowd: Vec<String> =
        names.take_while(|name| fs.create(here, name.as_bytes(), 0o644, &USER).is_ok()).collect();
    assert!((150..300).contains(&crowd.len()), "the canary: the directory takes {} names", crowd.len());
    let full = crowd.iter().find(|name| set(fs, here, name, &[1; 6]).is_err()).expect("one finds no space");
    let with_words = make(fs, there, "w", &[2; 6]);
    let without = fs.lookup(here, full.as_bytes()).unwrap().ino;
    let before = (listed(fs, here).unwrap(), listed(fs, there).unwrap());
    let exchange = |(from, name): (Ino, &str), (to, new_name): (Ino, &str)| {
        fs.rename(from, name.as_bytes(), to, new_name.as_bytes(), RENAME_EXCHANGE)
    };
    assert_eq!(exchange((here, full), (there, "w")), Err(Errno::ENOSPC));
    assert_eq!(exchange((there, "w"), (here, full)), Err(Errno::ENOSPC));
    assert_eq!((listed(fs, here).unwrap(), listed(fs, there).unwrap()), before);
    assert_eq!(fs.lookup(here, full.as_bytes()).unwrap().ino, without);
    assert_eq!(fs.lookup(there, b"w").unwrap().ino, with_words);
    fs.remove_entry_words(there, b"w").unwrap();
    exchange((here, full), (there, "w")).unwrap();
    assert_eq!(fs.lookup(here, full.as_bytes()).unwrap().ino, with_words);
}

#[test]
fn spellings_of_a_name_share_its_words() {
    let mut m = Machine::new(4, &[("casesensitivity", "insensitive"), ("normalization", "formD")]);
    let root = m.fs().root();
    make(m.fs(), root, "Na\u{ef}ve", &ID);
    let other = "NAI\u{308}VE";
    assert_eq!(words(m.fs(), root, other), Ok(ID.to_vec()));
    set(m.fs(), root, other, &[4, 5]).unwrap();
    assert_eq!(listed(m.fs(), root).unwrap(), [("Na\u{ef}ve".to_string(), vec![4, 5])], "the spelling stays");
    m.fs().rename(root, other.as_bytes(), root, "naive\u{308}".as_bytes(), 0).unwrap();
    m.fs().rename(root, "naive\u{308}".as_bytes(), root, "NAIVE\u{308}".as_bytes(), 0).unwrap();
    m.remount();
    assert_eq!(listed(m.fs(), root).unwrap(), [("NAIVE\u{308}".to_string(), vec![4, 5])], "respelled");
    m.fs().remove_entry_words(root, "naive\u{308}".as_bytes()).unwrap();
    assert_eq!(words(m.fs(), root, "NAIVE\u{308}"), Err(Errno::ENODATA));
}

#[test]
fn refusals_change_nothing() {
    let m = Machine::new(5, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let dir = fs.dir(root, "d").ino;
    let file = fs.file(dir, "f").ino;
    assert_eq!(set(fs, dir, "f", &[]), Err(Errno::EINVAL));
    assert_eq!(set(fs, dir, "f", &[1; 7]), Err(Errno::EINVAL));
    assert_eq!(set(fs, dir, "missing", &ID), Err(Errno::ENOENT));
    assert_eq!(set(fs, dir, "", &ID), Err(Errno::ENOENT));
    assert_eq!(set(fs, dir, &"x".repeat(256), &ID), Err(Errno::ENAMETOOLONG));
    for dots in [".", ".."] {
        assert_eq!((set(fs, dir, dots, &ID), words(fs, dir, dots)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    }
    assert_eq!(set(fs, file, "f", &ID), Err(Errno::ENOTDIR));
    assert_eq!(listed(fs, file), Err(Errno::ENOTDIR));
    assert_eq!(fs.remove_entry_words(dir, b"f"), Err(Errno::ENODATA));
    let before = fs.getattr(dir).unwrap();
    set(fs, dir, "f", &ID).unwrap();
    let after = fs.getattr(dir).unwrap();
    assert!(after.mtime > before.mtime && after.ctime == after.mtime && after.size == before.size);
    set(fs, dir, "f", &ID).unwrap();
    assert_eq!(fs.getattr(dir).unwrap(), after, "the same words are no change");
    for flags in [
        InodeFlags { immutable: true, ..InodeFlags::default() },
        InodeFlags { append_only: true, ..InodeFlags::default() },
    ] {
        fs.set_inode_flags(dir, flags).unwrap();
        assert_eq!(
            (set(fs, dir, "f", &[1]), fs.remove_entry_words(dir, b"f")),
            (Err(Errno::EPERM), Err(Errno::EPERM))
        );
    }
    assert_eq!(words(fs, dir, "f"), Ok(ID.to_vec()));
    // Hidden directories of attributes are none of these.
    let mut value = Vec::new();
    fs.setxattr(file, b"user.a", &[7; 40_000], SetXattr::default(), &USER).unwrap();
    fs.getxattr(file, b"user.a", &mut value).unwrap();
    assert_eq!(value.len(), 40_000);
}

#[test]
fn an_older_pool_has_no_words_before_it_is_upgraded() {
    let mut m = Machine::without_features(6);
    let root = m.fs().root();
    m.fs().file(root, "f");
    assert_eq!(set(m.fs(), root, "f", &ID), Err(Errno::EOPNOTSUPP));
    assert!(m.fs().with_entry_words(&ID).is_err_and(|errno| errno == Errno::EOPNOTSUPP));
    assert_eq!(words(m.fs(), root, "f"), Err(Errno::ENODATA));
    m.pool().enable(&[Feature::EntryWords]).unwrap();
    set(m.fs(), root, "f", &ID).unwrap();
    assert_eq!(kind(m.fs(), root), Kind::Fat, "tiny directories are a feature of their own");
    m.remount();
    assert_eq!(words(m.fs(), root, "f"), Ok(ID.to_vec()));
    let row = Feature::EntryWords.row();
    assert_eq!((row.name, row.compatibility), ("org.terrane:entry_words", Compatibility::ReadOnly));
    assert!(m.pool().has(Feature::EntryWords));
}

#[test]
fn words_survive_every_change_of_form_and_a_crash() {
    let mut m = Machine::new(7, &[("zapsize", "8K")]);
    let dir = m.fs().dir(m.fs().root(), "d").ino;
    let mut expected = Vec::new();
    let mut kinds = Vec::new();
    let mut step = |m: &mut Machine, expected: &mut Vec<(String, Vec<u64>)>| {
        expected.sort();
        m.fs().sync().unwrap();
        m.fs().file(dir, "not committed");
        m.fs().set_entry_words(dir, b"not committed", &[1; 6]).unwrap();
        set(m.fs(), dir, "n0", &[1; 6]).unwrap();
        m.crash();
        assert_eq!(listed(m.fs(), dir).unwrap(), *expected);
        kinds.push(kind(m.fs(), dir));
    };
    for number in 0..4 {
        m.fs().file(dir, &format!("n{number}"));
        expected.push((format!("n{number}"), Vec::new()));
    }
    step(&mut m, &mut expected);
    set(m.fs(), dir, "n1", &ID).unwrap();
    expected[1].1 = ID.to_vec();
    step(&mut m, &mut expected);
    for number in 4..200 {
        make(m.fs(), dir, &format!("n{number}"), &[number, number]);
        expected.push((format!("n{number}"), vec![number, number]));
    }
    step(&mut m, &mut expected);
    for number in 4..190 {
        m.fs().unlink(dir, format!("n{number}").as_bytes()).unwrap();
        expected.retain(|(name, _)| *name != format!("n{number}"));
    }
    m.fs().sync().unwrap();
    m.fs().shrink_dirs().step(100).unwrap();
    step(&mut m, &mut expected);
    assert_eq!(kinds, [Kind::Micro, TINY_64, Kind::Fat, TINY_64]);
}

/// Integers of the value as they were never written: fewer than the first one counts, or more words than there may be.
#[test]
fn damaged_entries_are_refused_and_can_be_repaired() {
    let m = Machine::new(8, &[]);
    let (fs, root) = (m.fs(), m.fs().root());
    let forge = |dir: Ino, name: &str, value: &[u64]| {
        let set = fs.dataset().object_set();
        let object = set.hold(ObjectId(dir)).unwrap();
        let mut zap = ObjectZap::new(fs.dataset().zap_policy(), Arc::clone(&object));
        let tx = set.begin(Cost { write_bytes: 1 << 20, meta_blocks: 64, ..Cost::NOTHING }).unwrap();
        zap.update(&tx, name, ValueRef::U64s(value)).unwrap();
    };
    let first = |ino: Ino, count: u64| ino | 8 << 60 | count << 48;
    for (at, (count, further)) in
        [(1, vec![]), (3, vec![1, 2]), (7, vec![0; 7]), (7, vec![0; 30])].into_iter().enumerate()
    {
        // Not read by the file system before it is damaged.
        let dir = fs.dir(root, &format!("d{at}")).ino;
        let file = fs.file(root, &format!("f{at}")).ino;
        let value = [&[first(file, count)][..], &further].concat();
        forge(dir, "damaged", &value);
        assert_eq!(words(fs, dir, "damaged"), Err(Errno::EIO), "{value:x?}");
        assert_eq!(listed(fs, dir), Err(Errno::EIO));
        assert_eq!(fs.ino(dir, "damaged"), Ok(file), "its file is found");
        assert_eq!(fs.names(dir), ["damaged"]);
        assert_eq!(fs.rename(dir, b"damaged", dir, b"moved", 0), Err(Errno::EIO), "words would be lost");
        if at % 2 == 0 {
            set(fs, dir, "damaged", &ID).unwrap();
            assert_eq!(words(fs, dir, "damaged"), Ok(ID.to_vec()));
        } else {
            fs.remove_entry_words(dir, b"damaged").unwrap();
        }
        fs.rename(dir, b"damaged", dir, b"moved", 0).unwrap();
    }
    // More integers than counted are padding.
    let dir = fs.dir(root, "wide").ino;
    let file = fs.file(root, "f").ino;
    forge(dir, "padded", &[first(file, 2), 1, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(listed(fs, dir).unwrap(), [("padded".to_string(), vec![1, 2])]);
}
