//! Values of different lengths in one ZAP, whose first word counts the others: slots pad the shorter ones.

use crate::colliders::colliders;
use std::collections::BTreeMap;
use terrane_wire::Prng;
use terrane_zap::{CountBits, Cursor, Error, Kind, MemStore, Store, Zap, ZapOptions};

const COUNT: CountBits = CountBits { shift: 48, bits: 3 };

/// A value with `words` words behind the first one.
fn value(object: u64, words: &[u64]) -> Vec<u64> {
    [&[object | (words.len() as u64) << 48], words].concat()
}

struct Subject {
    zap: Zap,
    store: MemStore,
    model: BTreeMap<String, Vec<u64>>,
}

impl Subject {
    fn new(micro_max_bytes: usize) -> Self {
        let options =
            ZapOptions { tiny: true, padding: Some(COUNT), micro_max_bytes, ..ZapOptions::new(0x5eed) };
        let store = MemStore::new();
        Subject { zap: Zap::open_with(&store, options).unwrap(), store, model: BTreeMap::new() }
    }

    fn put(&mut self, name: &str, words: &[u64]) {
        let value = value(self.model.len() as u64, words);
        let is_new = self.zap.update(&mut self.store, name, &value).unwrap();
        assert_eq!(is_new, self.model.insert(name.to_string(), value).is_none(), "{name}");
    }

    fn remove(&mut self, name: &str) {
        let removed = self.zap.remove(&mut self.store, name).unwrap();
        assert_eq!(removed, self.model.remove(name).is_some(), "{name}");
    }

    fn kind(&self) -> Kind {
        self.zap.kind(&self.store).unwrap()
    }

    /// Each entry has its words, and zeros behind them.
    #[track_caller]
    fn check(&self) {
        let report = self.zap.check(&self.store).unwrap();
        assert!(report.is_clean(), "{:?}", report.damage);
        assert_eq!(self.zap.len(&self.store).unwrap(), self.model.len() as u64);
        let mut visited = BTreeMap::new();
        let is_fat = self.kind() == Kind::Fat;
        self.zap
            .visit(&self.store, Cursor::START, &mut |entry| {
                let mut integers = [7; 9];
                let count = entry.copy_integers(&mut integers);
                let terrane_zap::KeyRef::Name(name) = entry.key else { panic!("names only") };
                visited.insert(String::from_utf8(name.to_vec()).unwrap(), integers[..count].to_vec());
                true
            })
            .unwrap();
        for (name, value) in &self.model {
            let found = self.zap.lookup(&self.store, name).unwrap().unwrap().ints();
            assert_eq!(visited.remove(name).as_ref(), Some(&found), "{name}");
            assert_eq!(found[..value.len()], *value, "{name}");
            assert!(found[value.len()..].iter().all(|word| *word == 0), "{name}: {found:x?}");
            assert!(!is_fat || found.len() == value.len(), "a leaf has no padding");
            assert_eq!(self.zap.lookup_u64(&self.store, name).unwrap(), Some(value[0]));
        }
        assert_eq!(visited, BTreeMap::new());
    }
}

const fn tiny(chunk_bytes: u16, value_ints: u8) -> Kind {
    Kind::Tiny { chunk_bytes, value_ints }
}

#[test]
fn slots_widen_for_words_and_narrow_without_them() {
    let mut s = Subject::new(128 << 10);
    (0..20).for_each(|i| s.put(&format!("file-{i:06}"), &[]));
    assert_eq!((s.kind(), s.store.block_size()), (Kind::Micro, 1536));
    s.put("file-000007", &[1, 2, 3]);
    assert_eq!((s.kind(), s.store.block_size()), (tiny(64, 4), 1536), "slots are as large as before");
    s.check();
    s.put("new, without", &[]);
    s.put("file-000008", &[9]);
    s.put("file-000009", &[0, 0, 0, 0, 0, 0]);
    assert_eq!(s.kind(), tiny(128, 7), "eleven bytes of name beside seven words");
    s.check();
    s.put("file-000009", &[]);
    s.put("file-000007", &[4]);
    s.check();
    assert_eq!(s.kind(), tiny(128, 7), "only removals narrow");
    (0..5).chain(10..20).for_each(|i| s.remove(&format!("file-{i:06}")));
    assert!(s.zap.shrink(&mut s.store).unwrap());
    assert_eq!((s.kind(), s.store.block_size()), (tiny(64, 2), 512));
    s.check();
    for name in ["file-000007", "file-000008", "file-000005"] {
        s.remove(name);
    }
    assert!(s.zap.shrink(&mut s.store).unwrap());
    assert_eq!(s.kind(), Kind::Micro);
    s.check();
}

#[test]
fn names_decide_how_large_wider_slots_are() {
    for (name_bytes, kind) in [(27, tiny(64, 4)), (28, tiny(128, 4)), (91, tiny(128, 4)), (92, tiny(256, 4))]
    {
        // Words come with the longest name, or with a shorter one.
        for short in ["", "s"] {
            let mut s = Subject::new(128 << 10);
            let long = "x".repeat(name_bytes);
            s.put(&long, &[]);
            if !short.is_empty() {
                s.put(short, &[]);
            }
            s.put(if short.is_empty() { &long } else { short }, &[1, 2, 3]);
            assert_eq!(s.kind(), kind, "{name_bytes}, {short:?}");
            s.check();
        }
    }
    let mut s = Subject::new(128 << 10);
    s.put(&"x".repeat(220), &[]);
    s.put("short", &[1, 2, 3]);
    assert_eq!(s.kind(), Kind::Fat, "no slot holds both");
    s.check();
}

#[test]
fn wide_slots_keep_to_the_limit_of_the_block() {
    let mut s = Subject::new(2048);
    (0..20).for_each(|i| s.put(&format!("a name of more than 27 bytes {i:02}"), &[]));
    assert_eq!(s.kind(), Kind::Micro);
    s.put("w", &[1, 2, 3]);
    assert_eq!(s.kind(), Kind::Fat, "21 slots of 128 bytes would exceed 2 KiB");
    s.check();
    (8..20).for_each(|i| s.remove(&format!("a name of more than 27 bytes {i:02}")));
    assert!(!s.zap.shrink(&mut s.store).unwrap(), "9 slots of 128 bytes twice");
    s.put("w", &[5]);
    (4..8).for_each(|i| s.remove(&format!("a name of more than 27 bytes {i:02}")));
    assert!(s.zap.shrink(&mut s.store).unwrap());
    assert_eq!(s.kind(), tiny(64, 2));
    s.check();
}

#[test]
fn without_padding_other_lengths_make_the_zap_fat() {
    let options = ZapOptions { tiny: true, ..ZapOptions::new(0x5eed) };
    let mut store = MemStore::new();
    let mut zap = Zap::open_with(&store, options).unwrap();
    zap.add(&mut store, "a", &value(1, &[])).unwrap();
    zap.add(&mut store, "b", &value(1, &[])).unwrap();
    zap.update(&mut store, "a", &value(1, &[2])).unwrap();
    assert_eq!(zap.kind(&store).unwrap(), Kind::Fat);
}

/// Values that are shorter than they say are never laid out anew: padding would hide that words are missing.
#[test]
fn a_value_that_lacks_words_is_refused_and_not_padded() {
    let mut s = Subject::new(1024);
    s.put("good", &[1]);
    s.zap.update(&mut s.store, "lies", &[5 << 48, 1]).unwrap();
    assert_eq!(s.kind(), tiny(64, 2));
    let before = s.store.image();
    assert!(s.zap.update(&mut s.store, "good", &value(0, &[1, 2, 3])).is_err());
    let long = "x".repeat(250);
    assert!(s.zap.update(&mut s.store, &long, &value(0, &[])).is_err(), "nor does it become fat");
    assert_eq!(s.store.image(), before, "nothing was changed");
    s.zap.remove(&mut s.store, "lies").unwrap();
    s.put("good", &[1, 2, 3]);
    s.check();
    // A fat one is not put into slots.
    let mut s = Subject::new(512);
    (0..20).for_each(|i| s.put(&format!("n{i}"), &[1]));
    assert_eq!(s.kind(), Kind::Fat);
    s.zap.update(&mut s.store, "lies", &[5 << 48, 1]).unwrap();
    (2..20).for_each(|i| s.remove(&format!("n{i}")));
    assert!(!s.zap.shrink(&mut s.store).unwrap());
    s.zap.remove(&mut s.store, "lies").unwrap();
    s.remove("n1");
    assert!(s.zap.shrink(&mut s.store).unwrap());
    s.check();
}

#[test]
fn behaves_like_a_map_whatever_its_shape() {
    let mut kinds = BTreeMap::new();
    for seed in 0..40 {
        println!("SEED={seed}");
        let mut rng = Prng::new(seed);
        let mut s = Subject::new([2048, 8192, 64 << 10][rng.below(3) as usize]);
        for step in 0..400 {
            let grows = (step / 50) % 2 == 0;
            let words_max = [1, 2, 4, 7][(step / 100) as usize];
            let len = if rng.below(60) == 0 { 200 } else { [3, 3, 3, 20, 40, 100][rng.below(6) as usize] };
            let name = format!("{:0>len$}", rng.below(40));
            match rng.below(4) {
                0..3 if grows => {
                    let words: Vec<u64> = (0..rng.below(words_max)).map(|_| rng.below(3)).collect();
                    s.put(&name, &words);
                }
                _ => {
                    let known = s.model.keys().nth(rng.below(40) as usize).cloned();
                    s.remove(&known.unwrap_or(name));
                    s.zap.shrink(&mut s.store).unwrap();
                }
            }
            *kinds.entry(s.kind().to_string()).or_insert(0) += 1;
            if step % 10 == 0 {
                s.check();
            }
        }
        s.check();
    }
    for kind in ["Micro", "Tiny (64-byte slots, words: 4)", "Tiny (128-byte slots, words: 7)", "Fat"] {
        assert!(kinds.get(kind).is_some_and(|count| *count > 10), "{kind}: {kinds:?}");
    }
}

/// Names that no split can separate must fit one leaf when the ZAP becomes fat. Slots have space for words that a leaf has not.
#[test]
fn a_crowd_that_gains_words_still_fits_one_leaf() {
    for word_count in 1..=6usize {
        let mut s = Subject::new(128 << 10);
        let crowd = colliders(28, 10).take(127).map(|name| String::from_utf8(name).unwrap());
        let crowd: Vec<String> = crowd.collect();
        crowd.iter().for_each(|name| s.put(name, &[]));
        assert_eq!(s.kind(), Kind::Micro);
        // Its words widen all slots.
        s.put("another", &[1; 6]);
        s.check();
        let mut refused = 0;
        for name in &crowd {
            let words = value(7, &[9; 6][..word_count]);
            match s.zap.update(&mut s.store, name, &words) {
                Ok(false) => drop(s.model.insert(name.clone(), words)),
                Err(Error::Full) => refused += 1,
                other => panic!("{word_count} words beside {name}: {other:?}"),
            }
        }
        s.check();
        // It becomes fat at the latest now.
        (0..3000).for_each(|i| s.put(&format!("ordinary {i}"), &[]));
        assert_eq!(s.kind(), Kind::Fat);
        s.check();
        // 638 chunks in a leaf: 2 of an entry and its name, and one for three words.
        let most = if word_count < 3 { 0 } else { 127 };
        assert!(refused <= most, "{word_count} words: {refused} were refused");
        crowd.iter().for_each(|name| s.remove(name));
        s.check();
    }
}

/// Whatever the bytes are, every change ends with a result or with damage that is named.
#[test]
fn no_flipped_bit_makes_a_change_panic() {
    for (micro_max_bytes, count) in [(128 << 10, 5), (512, 12)] {
        let mut s = Subject::new(micro_max_bytes);
        (0..count).for_each(|i| s.put(&format!("n{i}"), &[i; 6][..(i % 7) as usize]));
        let (image, block_size) = (s.store.image(), s.store.block_size());
        let used: Vec<usize> = match s.kind() {
            Kind::Fat => (0..200).chain(16_384..17_600).collect(),
            _ => (0..512).collect(),
        };
        for (at, bit) in used.into_iter().flat_map(|at| [0, 2, 7].map(|bit| (at, bit))) {
            let mut damaged = image.clone();
            let Some(byte) = damaged.get_mut(at) else { break };
            *byte ^= 1 << bit;
            let mut store = MemStore::from_image(&damaged, block_size);
            let Ok(mut zap) = Zap::open_with(&store, *s.zap.options()) else { continue };
            let _ = zap.update(&mut store, "n1", &value(9, &[1, 2, 3, 4, 5, 6]));
            let _ = zap.update(&mut store, "n2", &value(9, &[]));
            let _ = zap.remove(&mut store, "n3");
            let _ = zap.remove(&mut store, "n0");
            let _ = zap.remove(&mut store, "n4");
            let _ = zap.shrink(&mut store);
            let _ = zap.update(&mut store, &"x".repeat(250), &value(9, &[1]));
            let _ = zap.visit(&store, Cursor::START, &mut |entry| entry.copy_integers(&mut [0; 7]) < 1 << 20);
            let _ = zap.check(&store);
        }
    }
}
