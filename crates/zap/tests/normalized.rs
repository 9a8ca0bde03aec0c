//! ZAPs with normalized names, compared with OpenZFS's hashes and bytes, and with a map of normalized names.

use flate2::read::GzDecoder;
use proptest::prelude::*;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use terrane_wire::Corrupt;
use terrane_zap::{
    Cursor, Error, Flags, HashBits, Kind, Match, MemStore, NormFlags, Store, Zap, ZapOptions, hash,
};

fn unpacked(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/zap").join(name);
    let mut raw = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut raw).unwrap();
    raw
}

fn hex(json: &Json) -> u64 {
    u64::from_str_radix(json.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

fn bytes(json: &Json) -> Vec<u8> {
    let digits = json.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn hashes_of_normalized_names_are_the_listed_ones() {
    let listed: Json = serde_json::from_slice(&unpacked("normalized_hashes.json.gz")).unwrap();
    let cases = listed["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 105);
    for case in cases {
        let flags = NormFlags::parse(case["normflags"].as_u64().unwrap()).unwrap();
        let name = bytes(&case["name_hex"]);
        let whole = flags.normalize(&name).map(|name| hash::crc64(hex(&listed["salt"]), &name));
        let masked = whole.map(|whole| whole & HashBits::Bits28.mask());
        let expected = case["h28"].is_string().then(|| hex(&case["h28"]));
        assert_eq!(masked, expected, "{case}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add(usize, usize, u64),
    Update(usize, usize, u64),
    Remove(usize, usize),
    Find(usize, usize),
    List(usize, usize),
    Forget,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let word = || (0usize..30, 0usize..6);
    let op = prop_oneof![
        10 => (word(), any::<u64>()).prop_map(|((w, v), value)| Op::Add(w, v, value)),
        2 => (word(), any::<u64>()).prop_map(|((w, v), value)| Op::Update(w, v, value)),
        5 => word().prop_map(|(w, v)| Op::Remove(w, v)),
        6 => word().prop_map(|(w, v)| Op::Find(w, v)),
        2 => (0usize..200, 1usize..9).prop_map(|(from, max)| Op::List(from, max)),
        1 => Just(Op::Forget),
    ];
    prop::collection::vec(op, 1..120)
}

/// One of thirty words in one of six spellings, most of which are equivalent in some form.
fn spelled(word: usize, spelling: usize) -> Vec<u8> {
    let accents = [("\u{e9}", "e\u{301}", "\u{c9}", "E\u{301}"), ("k", "\u{212a}", "K", "\u{ff4b}")];
    let (composed, decomposed, shouted, both) = accents[word % 2];
    // Every seventh word is too long for a micro ZAP.
    let tail = if word % 7 == 6 { "x".repeat(60) } else { String::new() };
    let name = match spelling {
        0 => format!("name {word} {composed}{tail}"),
        1 => format!("name {word} {decomposed}{tail}"),
        2 => format!("NAME {word} {shouted}{tail}"),
        3 => format!("NAME {word} {both}{tail}"),
        4 => format!("\u{ff4e}ame {word} {composed}{tail}"),
        _ => format!("nAme {word} \u{3a}{tail}"),
    };
    name.into_bytes()
}

/// By normalized form, then in the order in which differentiators are assigned.
type Model = BTreeMap<Vec<u8>, BTreeMap<u32, (Vec<u8>, u64)>>;

fn cd_of(model: &Model, form: &[u8], name: &[u8]) -> Option<u32> {
    let group = model.get(form)?;
    group.iter().find(|(_, (stored, _))| stored == name).map(|(cd, _)| *cd)
}

fn lowest(model: &Model, form: &[u8]) -> u32 {
    (0..).find(|cd| model.get(form).is_none_or(|group| !group.contains_key(cd))).unwrap()
}

fn run(norm: NormFlags, options: ZapOptions, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let (mut store, mut model) = (MemStore::new(), Model::new());
    let mut zap = Zap::create(&mut store, ZapOptions { norm, ..options }).unwrap();
    let form = |name: &[u8]| norm.normalize(name).unwrap().into_owned();
    for op in ops {
        match op {
            Op::Add(word, spelling, value) => {
                let name = spelled(word, spelling);
                let outcome = zap.add(&mut store, &name, &[value]);
                match cd_of(&model, &form(&name), &name) {
                    Some(_) => prop_assert_eq!(outcome, Err(Error::Exists)),
                    None => {
                        prop_assert_eq!(outcome, Ok(()));
                        let cd = lowest(&model, &form(&name));
                        model.entry(form(&name)).or_default().insert(cd, (name, value));
                    }
                }
            }
            Op::Update(word, spelling, value) => {
                let name = spelled(word, spelling);
                let cd = cd_of(&model, &form(&name), &name);
                prop_assert_eq!(zap.update(&mut store, &name, &[value]), Ok(cd.is_none()));
                let cd = cd.unwrap_or_else(|| lowest(&model, &form(&name)));
                model.entry(form(&name)).or_default().insert(cd, (name, value));
            }
            Op::Remove(word, spelling) => {
                let name = spelled(word, spelling);
                let cd = cd_of(&model, &form(&name), &name);
                prop_assert_eq!(zap.remove(&mut store, &name), Ok(cd.is_some()));
                if let Some(cd) = cd {
                    let group = model.get_mut(&form(&name)).unwrap();
                    group.remove(&cd);
                    model.retain(|_, group| !group.is_empty());
                }
            }
            Op::Find(word, spelling) => {
                let name = spelled(word, spelling);
                let nothing = BTreeMap::new();
                let group = model.get(&form(&name)).unwrap_or(&nothing);
                let same_case = |stored: &[u8]| {
                    norm.keeping_case().normalize(stored) == norm.keeping_case().normalize(&name)
                };
                for how in [Match::Exact, Match::SameCase, Match::Normalized] {
                    let meant = group.iter().find(|(_, (stored, _))| match how {
                        Match::Exact => *stored == name,
                        Match::SameCase => same_case(stored),
                        Match::Normalized => true,
                    });
                    let found = zap.find_match(&store, &name, how).unwrap();
                    let found = found.map(|e| {
                        (e.key.name().unwrap().to_vec(), e.value.first_integer().unwrap(), e.cd, e.conflict)
                    });
                    let meant = meant.map(|(cd, (stored, v))| (stored.clone(), *v, *cd, group.len() > 1));
                    prop_assert_eq!(found, meant);
                }
                let exact = cd_of(&model, &form(&name), &name).map(|cd| group[&cd].1);
                prop_assert_eq!(zap.lookup_u64(&store, &name), Ok(exact));
            }
            Op::List(from, max) => {
                let all = zap.list(&store, Cursor::START, usize::MAX).unwrap();
                let some = all.get(from.min(all.len())..).unwrap();
                let cursor = some.first().map_or(Cursor::END, |e| Cursor { hash: e.hash, cd: e.cd });
                let batch = zap.list(&store, cursor, max).unwrap();
                prop_assert_eq!(&batch[..], &some[..max.min(some.len())]);
                prop_assert_eq!(
                    zap.next(&store, cursor).unwrap().map(|(entry, _)| entry),
                    some.first().cloned()
                );
            }
            Op::Forget => zap.drop_state(),
        }
        let report = zap.check(&store).unwrap();
        prop_assert!(report.is_clean(), "{:?}", report.damage);
        let listed = zap.list(&store, Cursor::START, usize::MAX).unwrap();
        let places: Vec<_> = listed.iter().map(|e| (e.hash, e.cd)).collect();
        prop_assert!(places.is_sorted());
        let mut seen = Model::new();
        for entry in listed {
            let name = entry.key.name().unwrap().to_vec();
            prop_assert_eq!(entry.conflict, model[&form(&name)].len() > 1);
            seen.entry(form(&name))
                .or_default()
                .insert(entry.cd, (name, entry.value.first_integer().unwrap()));
        }
        prop_assert_eq!(&seen, &model);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_zap_of_normalized_names_is_a_map_of_their_forms(ops in ops(),
        salt in 1u64..,
        form in prop::sample::select(vec![0u64, 0x10, 0x20, 0x50, 0x60]),
        upper in any::<bool>(), tiny in any::<bool>(), slots in 0usize..40) {
        let norm = NormFlags::parse(form | if upper { 2 } else { 0 }).unwrap();
        let options = ZapOptions {
            micro_max_bytes: 512 + 64 * slots,
            tiny,
            fat_block_shift: 11,
            ..ZapOptions::new(salt)
        };
        run(norm, options, ops)?;
    }
}

#[test]
fn what_cannot_be_normalized_is_refused_and_not_found() {
    for micro_max_bytes in [131_072, 0] {
        let mut store = MemStore::new();
        let options = ZapOptions { norm: NormFlags::NFC, micro_max_bytes, ..ZapOptions::new(7) };
        let mut zap = Zap::create(&mut store, options).unwrap();
        (0..8).for_each(|i| zap.add(&mut store, &format!("name{i}"), &[i]).unwrap());
        assert_eq!(zap.kind(&store), Ok(if micro_max_bytes == 0 { Kind::Fat } else { Kind::Micro }));
        let before = store.image();
        let bad = b"bad\xff";
        assert_eq!(zap.add(&mut store, bad, &[1]), Err(Error::NameNotUtf8));
        assert_eq!(zap.update(&mut store, bad, &[1]), Err(Error::NameNotUtf8));
        assert_eq!(zap.lookup_u64(&store, bad), Ok(None));
        assert_eq!(zap.remove(&mut store, bad), Ok(false));
        assert_eq!(zap.find_match(&store, bad, Match::Normalized), Err(Error::NameNotUtf8));
        assert_eq!(store.image(), before);
    }
    // Upper case alone takes any bytes.
    let mut store = MemStore::new();
    let options = ZapOptions { norm: NormFlags::TO_UPPER, ..ZapOptions::new(7) };
    let mut zap = Zap::create(&mut store, options).unwrap();
    zap.add(&mut store, b"bad\xffname", &[1]).unwrap();
    let found = zap.find_match(&store, b"BAD\xffNAME", Match::Normalized).unwrap().unwrap();
    assert_eq!(found.key.name(), Some(&b"bad\xffname"[..]));
}

#[test]
fn inconsistent_normalization_headers_are_damage() {
    let mut store = MemStore::new();
    let options = ZapOptions { norm: NormFlags::NFC, ..ZapOptions::new(7) };
    let mut zap = Zap::create(&mut store, options).unwrap();
    zap.add(&mut store, "Na\u{ef}ve", &[1]).unwrap();
    let with = |at: usize, byte: u8| {
        let mut image = store.image();
        image[at] = byte;
        MemStore::from_image(&image, 512)
    };
    // Two forms at once, and an unknown flag.
    assert!(matches!(Zap::open(&with(16, 0x70)), Err(Error::Store(Corrupt { .. }))));
    assert!(matches!(Zap::open(&with(16, 0x51)), Err(Error::Unsupported { .. })));
    // Another form, and a name that is not UTF-8: the hash belongs to another name, or to none.
    let report = zap.check(&with(64 + 14 + 2, 0xff)).unwrap();
    assert!(report.damage.iter().any(|damage| damage.to_string().contains("UTF-8")), "{:?}", report.damage);
    let words = ZapOptions { flags: Flags::UINT64_KEY, ..options };
    assert!(matches!(Zap::create(&mut MemStore::new(), words), Err(Error::Refused { .. })));

    // A leaf without the flag that its chains are sorted.
    let mut store = MemStore::new();
    let mut zap = Zap::create(&mut store, ZapOptions { micro_max_bytes: 0, ..options }).unwrap();
    (0..8).for_each(|i| zap.add(&mut store, &format!("name{i}"), &[i]).unwrap());
    store.modify(1, &mut |leaf| leaf[36] = 0).unwrap();
    let refused = zap.lookup_u64(&store, "name1").unwrap_err().to_string();
    assert!(refused.contains("flags"), "{refused}");
}
