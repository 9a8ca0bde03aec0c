//! Images written by OpenZFS: they are read to the listed entries, and reproduced from their recipes, byte for byte.
//!
//! `tests/vectors/zap` holds the images and, except for the three largest, their entries; those of the others follow
//! from the recipe. All files are gzip-compressed, only for size.

use flate2::read::GzDecoder;
use serde_json::Value as Json;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;
use terrane_zap::{
    Cursor, Entry, Error, Flags, HashBits, Key, Kind, MemStore, NormFlags, Store, Value, ValueRef,
    ValueShape, Zap, ZapOptions, hash,
};

fn unpacked(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/zap").join(name);
    let mut raw = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut raw).unwrap();
    raw
}

fn manifest() -> &'static Json {
    static MANIFEST: OnceLock<Json> = OnceLock::new();
    MANIFEST.get_or_init(|| serde_json::from_slice(&unpacked("manifest.json.gz")).unwrap())
}

fn vectors() -> impl Iterator<Item = &'static Json> {
    manifest()["vectors"].as_array().unwrap().iter()
}

fn vector(id: &str) -> &'static Json {
    vectors().find(|v| v["id"] == id).unwrap_or_else(|| panic!("no vector {id}"))
}

fn hex(json: &Json) -> u64 {
    u64::from_str_radix(json.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

fn image(v: &Json) -> Vec<u8> {
    unpacked(v["file"].as_str().unwrap())
}

fn stored(v: &Json) -> MemStore {
    MemStore::from_image(&image(v), usize::try_from(v["block_size"].as_u64().unwrap()).unwrap())
}

fn words(json: &Json) -> Vec<u64> {
    json.as_array().unwrap().iter().map(hex).collect()
}

fn expected_entries(v: &Json) -> Option<Vec<Json>> {
    if let Some(entries) = v["entries"].as_array() {
        return Some(entries.clone());
    }
    let lines = String::from_utf8(unpacked(v["entries_file"].as_str()?)).unwrap();
    Some(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn kind_of(v: &Json) -> Kind {
    match v["type"].as_str().unwrap() {
        "micro" => Kind::Micro,
        "fat" => Kind::Fat,
        _ => Kind::Tiny {
            chunk_bytes: 1 << v["mz_chunk_shift"].as_u64().unwrap(),
            value_ints: v["mz_value_ints"].as_u64().unwrap() as u8,
        },
    }
}

fn readable() -> impl Iterator<Item = &'static Json> {
    vectors()
}

fn all(zap: &Zap, store: &MemStore) -> Vec<Entry> {
    let (mut entries, mut from) = (Vec::new(), Cursor::START);
    loop {
        let batch = zap.list(store, from, 777).unwrap();
        let Some(last) = batch.last() else { return entries };
        from = last.cursor_after();
        entries.extend(batch);
    }
}

#[test]
fn every_image_reads_as_listed() {
    for v in readable() {
        let id = v["id"].as_str().unwrap();
        let store = stored(v);
        let zap = Zap::open(&store).unwrap();
        assert_eq!(zap.kind(&store), Ok(kind_of(v)), "{id}");
        if v["type"] == "tiny" {
            let (shift, ints) = (v["mz_chunk_shift"].as_u64().unwrap(), &v["mz_value_ints"]);
            let shown = format!("Tiny ({}-byte slots, words: {ints})", 1 << shift);
            assert_eq!(zap.kind(&store).unwrap().to_string(), shown);
        }
        assert_eq!(zap.len(&store), Ok(v["num_entries"].as_u64().unwrap()), "{id}");
        let report = zap.check(&store).unwrap();
        assert!(report.is_clean(), "{id}: {:?}", report.damage);
        assert_eq!(report.entries, v["num_entries"].as_u64().unwrap());
        let found = all(&zap, &store);
        assert_eq!(found.len() as u64, report.entries);
        let bits = zap.hash_bits(&store).unwrap();
        for entry in &found {
            assert_eq!(zap.lookup(&store, &entry.key).unwrap().as_ref(), Some(&entry.value), "{id}");
        }
        let Some(expected) = expected_entries(v) else { continue };
        for (entry, json) in found.iter().zip(&expected) {
            let key = match json["name"].as_str() {
                Some(name) => Key::Name(name.as_bytes().to_vec()),
                None => Key::U64s(words(&json["key_u64"])),
            };
            assert_eq!(entry.key, key, "{id}");
            assert_eq!(entry.hash, hex(&json["hash"]), "{id}");
            assert_eq!(u64::from(entry.cd), json["cd"].as_u64().unwrap(), "{id}");
            let at = Cursor { hash: entry.hash, cd: entry.cd };
            assert_eq!(at.to_u64_with(bits), hex(&json["cursor"]), "{id}");
            assert_eq!(zap.next(&store, at).unwrap(), Some((entry.clone(), entry.cursor_after())), "{id}");
            let values: Vec<u64> =
                json["values"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap()).collect();
            assert_eq!(entry.value.ints(), values, "{id}");
            assert_eq!(u64::from(entry.value.int_size()), json["int_size"].as_u64().unwrap(), "{id}");
            let shape = ValueShape { int_size: entry.value.int_size(), num_ints: values.len() };
            assert_eq!(zap.shape(&store, &entry.key).unwrap(), Some(shape), "{id}");
            match values.first() {
                Some(first) => assert_eq!(zap.lookup_u64(&store, &entry.key).unwrap(), Some(*first)),
                None => assert_eq!(zap.lookup_u64(&store, &entry.key), Err(Error::NoInteger)),
            }
        }
        assert_eq!(found.len(), expected.len(), "{id}");
    }
}

#[test]
fn hashes_are_the_listed_ones() {
    let cases = manifest()["hash"]["zap_hash"].as_array().unwrap();
    assert_eq!(cases.len(), 275);
    for case in cases {
        let whole = hash::crc64(hex(&case["salt"]), case["name"].as_str().unwrap().as_bytes());
        assert_eq!(whole & HashBits::Bits28.mask(), hex(&case["h28"]));
        assert_eq!(whole & HashBits::Bits48.mask(), hex(&case["h48"]));
    }
    // The only public access to these hashes: a ZAP with such keys lists them.
    let all_flags = Flags::HASH64.union(Flags::UINT64_KEY).union(Flags::PRE_HASHED_KEY);
    let kinds =
        [("plain", Flags::UINT64_KEY), ("h64", Flags::HASH64.union(Flags::UINT64_KEY)), ("pre", all_flags)];
    for case in manifest()["hash"]["zap_hash_u64"].as_array().unwrap() {
        for (field, flags) in kinds {
            let mut store = MemStore::new();
            let options = ZapOptions { flags, ..ZapOptions::new(0x0123_4567_89ab_cdef) };
            let mut zap = Zap::create(&mut store, options).unwrap();
            zap.add(&mut store, words(&case["key"]).as_slice(), &[1]).unwrap();
            assert_eq!(all(&zap, &store)[0].hash, hex(&case[field]), "{field}");
        }
    }
}

/// One object during its recipe.
struct Recipe {
    zap: Zap,
    store: MemStore,
}

impl Recipe {
    fn new(id: &str) -> Self {
        Self::with(id, |_| {})
    }

    fn with(id: &str, change: impl FnOnce(&mut ZapOptions)) -> Self {
        let mut options = ZapOptions::new(hex(&vector(id)["salt"]));
        change(&mut options);
        let mut store = MemStore::new();
        Recipe { zap: Zap::create(&mut store, options).unwrap(), store }
    }

    fn add(&mut self, name: &str, value: u64) {
        self.zap.add(&mut self.store, name, &[value]).unwrap();
    }

    fn ints(&mut self, name: &str, value: ValueRef<'_>) {
        self.zap.add_ints(&mut self.store, name, value).unwrap();
    }

    fn remove(&mut self, name: &str) {
        assert_eq!(self.zap.remove(&mut self.store, name), Ok(true));
    }

    #[track_caller]
    fn gives(&self, id: &str) {
        let v = vector(id);
        assert_eq!(self.store.block_size() as u64, v["block_size"].as_u64().unwrap(), "{id}: block size");
        let (expected, found) = (image(v), self.store.image());
        let differs = expected.iter().zip(&found).position(|(a, b)| a != b);
        if let Some(at) = differs {
            let block = at / self.store.block_size();
            panic!("{id}: block {block} byte {} differs", at % self.store.block_size());
        }
        assert_eq!(found.len(), expected.len(), "{id}: length");
        let report = self.zap.check(&self.store).unwrap();
        assert!(report.is_clean(), "{id}: {:?}", report.damage);
    }
}

/// The colliding names of a vector, in the order of their values.
fn colliders(id: &str, first: u64, count: u64) -> Vec<(String, u64)> {
    let entries = expected_entries(vector(id)).unwrap();
    let mut named: Vec<(String, u64)> = entries
        .iter()
        .map(|e| (e["name"].as_str().unwrap().to_owned(), e["values"][0].as_u64().unwrap()))
        .filter(|(name, value)| (first..first + count).contains(value) && name != "force-fat")
        .collect();
    named.sort_by_key(|(_, value)| *value);
    assert_eq!(named.len() as u64, count);
    named
}

#[test]
fn small_micro_recipes_give_the_same_bytes() {
    let mut r = Recipe::new("micro_0");
    r.gives("micro_0");
    r.add("hello", 42);
    r.gives("micro_1");

    let mut r = Recipe::new("micro_10");
    (0..10).for_each(|i| r.add(&format!("entry{i}"), 1000 + i));
    r.gives("micro_10");
    r.remove("entry2");
    r.remove("entry5");
    r.gives("micro_10_rm2");
    (1..=7).for_each(|i| r.add(&format!("new{i}"), 6 + i));
    r.gives("micro_10_rm2_add7");

    let mut r = Recipe::new("micro_200_dirents");
    for i in 0..200u64 {
        r.add(&format!("file-{i:06}"), (if i % 3 == 0 { 4 } else { 8 }) << 60 | (1000 + i));
    }
    r.gives("micro_200_dirents");

    let mut r = Recipe::new("micro_names");
    let digits: String = (0..49).map(|i| char::from(b'0' + i % 10)).collect();
    r.add(&digits, 49);
    r.add("x", u64::MAX);
    r.add("zero", 0);
    r.add("na\u{ef}ve", 3);
    r.gives("micro_names");
}

#[test]
fn colliding_names_give_the_same_bytes() {
    let names = colliders("micro_collide", 100, 8);
    let mut r = Recipe::new("micro_collide");
    names.iter().for_each(|(name, value)| r.add(name, *value));
    r.gives("micro_collide");
    r.remove(&names[1].0);
    r.add("filler", 5);
    r.add(&names[1].0, 777);
    r.gives("micro_collide_reuse");

    let mut r = Recipe::new("fat_collide");
    r.ints("force-fat", ValueRef::U8s(&[1]));
    names.iter().for_each(|(name, value)| r.add(name, *value));
    r.gives("fat_collide");
    r.remove(&names[0].0);
    r.add(&names[0].0, 4242);
    r.gives("fat_collide_reuse");

    let names = colliders("fat_flood_128", 0, 128);
    let mut r = Recipe::new("micro_flood_127");
    names[..127].iter().for_each(|(name, value)| r.add(name, *value));
    r.gives("micro_flood_127");
    r.add(&names[127].0, 127);
    r.gives("fat_flood_128");
}

#[test]
fn names_that_mean_the_same_give_the_same_bytes() {
    let names = ["foo", "Foo", "FOO", "na\u{ef}ve", "nai\u{308}ve", "NA\u{cf}VE", "other"];
    for id in ["norm_ci", "norm_nfd", "norm_ci_nfc"] {
        for kind in ["micro", "fat"] {
            let id = format!("{kind}_{id}");
            let norm = NormFlags::parse(vector(&id)["normflags"].as_u64().unwrap()).unwrap();
            let mut r = Recipe::with(&id, |o| o.norm = norm);
            if kind == "fat" {
                r.ints("force-fat", ValueRef::U16s(&[1, 2]));
            }
            names.into_iter().zip(1..).for_each(|(name, value)| r.add(name, value));
            r.gives(&id);
            assert_eq!(r.zap.norm(&r.store), Ok(norm));
        }
    }
}

#[test]
fn the_fullest_micro_and_the_fat_one_it_becomes_give_the_same_bytes() {
    let mut r = Recipe::new("micro_2047_full");
    (0..2047).for_each(|i| r.add(&format!("f{i:05}"), i));
    r.gives("micro_2047_full");
    let cursors: Vec<u64> =
        all(&r.zap, &r.store).iter().map(|e| Cursor { hash: e.hash, cd: e.cd }.to_u64()).collect();
    let half = Cursor::from_u64(cursors[1000]);
    let rest_before: Vec<Key> =
        r.zap.list(&r.store, half, 5000).unwrap().into_iter().map(|e| e.key).collect();
    r.add("f02047", 2047);
    r.gives("fat_2048_upgraded");
    let mut rest: Vec<Key> = r.zap.list(&r.store, half, 5000).unwrap().into_iter().map(|e| e.key).collect();
    rest.retain(|key| key.name() != Some(b"f02047"));
    assert_eq!(rest, rest_before, "a cursor survives the conversion");
}

#[test]
fn values_of_all_widths_give_the_same_bytes() {
    let u8s: Vec<u8> = (0..300u32).map(|i| i as u8).collect();
    let u16s: Vec<u16> = (0..7).map(|i| 0x1100 + i).collect();
    let u32s: Vec<u32> = (0..5).map(|i| 0x2222_0000 + i).collect();
    let u64s: Vec<u64> = (0..3).map(|i| 0x3333_3333_0000_0000 + i).collect();
    let large: Vec<u8> = (0..8192u32).map(|i| (7 * i + (i >> 8)) as u8).collect();
    let mut r = Recipe::new("fat_5_mixed");
    r.ints("u8x300", ValueRef::U8s(&u8s));
    r.ints("u16x7", ValueRef::U16s(&u16s));
    r.ints("u32x5", ValueRef::U32s(&u32s));
    r.ints("u64x3", ValueRef::U64s(&u64s));
    r.add("u64x1", 0xdead_beef_cafe_f00d);
    r.gives("fat_5_mixed");
    r.ints("u8x0", ValueRef::U8s(&[]));
    r.ints("u64x0", ValueRef::U64s(&[]));
    r.ints("u8x1", ValueRef::U8s(&[255]));
    r.ints("u16x1", ValueRef::U16s(&u16s[..1]));
    r.ints("u32x1", ValueRef::U32s(&u32s[..1]));
    r.ints("u8x21", ValueRef::U8s(&u8s[..21]));
    r.ints("u8x22", ValueRef::U8s(&u8s[..22]));
    r.ints("u8x8192", ValueRef::U8s(&large));
    r.gives("fat_13_mixed");
    r.remove("u8x300");
    r.remove("u32x5");
    r.gives("fat_11_after_rm");
    assert_eq!(r.zap.lookup(&r.store, "u8x8192").unwrap().unwrap().bytes(), Some(&large[..]));
}

#[test]
fn long_names_give_the_same_bytes() {
    let mut r = Recipe::with("fat_longnames", |o| o.name_bytes_max = 1024);
    for (k, len) in
        [50, 51, 62, 63, 64, 100, 127, 128, 254, 255, 256, 500, 1000, 1023].into_iter().enumerate()
    {
        let name: String = (0..len).map(|j| char::from(b'a' + ((k + j) % 26) as u8)).collect();
        r.add(&name, len as u64);
    }
    r.gives("fat_longnames");
}

#[test]
fn splits_give_the_same_bytes() {
    let mut r = Recipe::new("fat_3000_u64x3");
    for i in 0..3000u64 {
        r.ints(&format!("fid-{i:07}"), ValueRef::U64s(&[i, i * i, !i]));
    }
    r.gives("fat_3000_u64x3");
}

#[test]
fn sixty_thousand_names_give_the_same_bytes() {
    let mut r = Recipe::new("fat_60000");
    for i in 0..60_000u64 {
        r.add(&format!("n{i:06}"), i * 2_654_435_761);
    }
    r.gives("fat_60000");
    assert_eq!(r.zap.lookup_u64(&r.store, "n059999"), Ok(Some(59_999 * 2_654_435_761)));
}

#[test]
fn external_tables_and_one_being_doubled_give_the_same_bytes() {
    for (id, letter, count) in [("fat_12000_hash64_4k", 'k', 12_000), ("fat_midgrow_4k", 'g', 42_241)] {
        let mut r = Recipe::with(id, |o| {
            o.flags = Flags::HASH64;
            o.fat_block_shift = 12;
        });
        for i in 0..count {
            r.add(&format!("{letter}{i:06}"), i);
        }
        r.gives(id);
    }
}

#[test]
fn word_keys_give_the_same_bytes() {
    let mut r = Recipe::with("fat_u64key_100", |o| o.flags = Flags::HASH64.union(Flags::UINT64_KEY));
    for i in 0..100u64 {
        let value: Vec<u8> = (0..24).map(|j| (i + j) as u8).collect();
        r.zap.add_ints(&mut r.store, &[i, i << 40, 0xab_cdef][..], ValueRef::U8s(&value)).unwrap();
    }
    r.gives("fat_u64key_100");
    assert_eq!(r.zap.add(&mut r.store, "a name", &[1]), Err(Error::KeyKind { expected: "words" }));

    let mut r = Recipe::with("fat_prehashed_100", |o| {
        o.flags = Flags::HASH64.union(Flags::UINT64_KEY).union(Flags::PRE_HASHED_KEY);
        o.fat_block_shift = 15;
    });
    for i in 0..100u64 {
        let key: Vec<u64> = (0..5).map(|j| 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(5 * i + j + 1)).collect();
        r.zap.add(&mut r.store, key.as_slice(), &[i, i + 1]).unwrap();
    }
    r.gives("fat_prehashed_100");
}

/// A ZAP that may become tiny, during its recipe.
fn tiny(id: &str) -> Recipe {
    Recipe::with(id, |o| o.tiny = true)
}

impl Recipe {
    fn words(&mut self, name: &str, words: &[u64]) {
        self.ints(name, ValueRef::U64s(words));
    }
}

/// Id, words per value, bytes per name. Each meets a limit of the table of shapes, or exceeds it by a byte.
const SHAPES: [(&str, u64, usize); 17] = [
    ("tiny_64_2", 2, 12),
    ("tiny_64_3", 3, 12),
    ("tiny_64_4", 4, 12),
    ("tiny_64_7", 7, 3),
    ("tiny_64_2_max", 2, 43),
    ("tiny_128_2_min", 2, 44),
    ("tiny_128_1", 1, 50),
    ("tiny_128_1_max", 1, 115),
    ("tiny_256_1_min", 1, 116),
    ("tiny_256_1_max", 1, 243),
    ("tiny_toolong_fat", 1, 244),
    ("tiny_128_6", 6, 60),
    ("tiny_128_8", 8, 3),
    ("tiny_128_15", 15, 3),
    ("tiny_256_16", 16, 20),
    ("tiny_256_31", 31, 3),
    ("tiny_toowide_fat", 32, 3),
];

#[test]
fn every_shape_of_tiny_slots_gives_the_same_bytes() {
    for (id, ints, name_bytes) in SHAPES {
        let mut r = tiny(id);
        for i in 0..9 {
            let name: String = (0..name_bytes)
                .map(|j| {
                    char::from(if j == 0 { b'0' + i as u8 } else { b'a' + ((i as usize + j) % 26) as u8 })
                })
                .collect();
            let words: Vec<u64> = (0..ints).map(|j| 0x100 * (i + 1) + j).collect();
            r.words(&name, &words);
        }
        r.gives(id);
    }
}

#[test]
fn tiny_zaps_that_are_laid_out_anew_give_the_same_bytes() {
    let mut r = tiny("tiny_before_reencode");
    (0..6).for_each(|i| r.add(&format!("short{i}"), i));
    r.remove("short2");
    r.gives("tiny_before_reencode");
    r.add(&"L".repeat(60), 600);
    r.gives("tiny_reencode_128");
    r.add(&"M".repeat(130), 1300);
    r.gives("tiny_upgrade_256");
    r.words("two", &[0x1000, 0x1001]);
    r.gives("tiny_mismatch_fat");

    let mut r = tiny("tiny_2_64to128");
    (0..5).for_each(|i| r.words(&format!("fid{i}"), &[i, 10 * i]));
    r.words(&"P".repeat(50), &[4, 40]);
    r.gives("tiny_2_64to128");
    r.words(&"Q".repeat(120), &[4, 40]);
    r.gives("tiny_2_128to256");
    r.words(&"R".repeat(240), &[4, 40]);
    r.gives("tiny_2_256tofat");
}

/// The block does not get shorter, and the search for a free slot continues after the new entry.
#[test]
fn slots_that_are_laid_out_anew_keep_their_block() {
    let mut r = tiny("tiny_before_reencode");
    (0..20).for_each(|i| r.add(&format!("short{i}"), i));
    (3..20).for_each(|i| r.remove(&format!("short{i}")));
    r.add(&"L".repeat(60), 600);
    assert_eq!(r.zap.kind(&r.store), Ok(Kind::Tiny { chunk_bytes: 128, value_ints: 1 }));
    assert_eq!(r.store.block_size(), 1536);
    r.remove("short0");
    r.add("next", 5);
    let raw = r.store.read(0).unwrap();
    let name = |slot: usize| &raw[64 + 128 * slot + 12..][..5];
    assert_eq!([name(0), name(1), name(3), name(4)], [b"\0\0\0\0\0", b"short", b"LLLLL", b"next\0"]);
}

#[test]
fn colliding_names_in_a_tiny_zap_give_the_same_bytes() {
    let entries = expected_entries(vector("tiny_collide")).unwrap();
    let names: Vec<&str> = entries.iter().map(|e| e["name"].as_str().unwrap()).collect();
    let mut r = tiny("tiny_collide");
    (0..).zip(&names).for_each(|(i, name)| r.words(name, &[i, 77]));
    r.gives("tiny_collide");
    r.remove(names[0]);
    r.gives("tiny_collide_rm");
    r.words("other", &[3, 77]);
    r.words(names[0], &[3, 77]);
    r.gives("tiny_collide_re");
}

#[test]
fn the_fullest_tiny_zap_and_the_fat_one_it_becomes_give_the_same_bytes() {
    let mut r = tiny("tiny_2047_full");
    (0..2047).for_each(|i| r.words(&format!("t{i:05}"), &[i, !i]));
    r.gives("tiny_2047_full");
    r.words("t02047", &[2046, !2046]);
    r.gives("tiny_2048_fat");
}

/// In OpenZFS, the 128th colliding name makes a ZAP tiny, which may lose entries when it becomes fat later. Here the
/// limit is the same with and without tiny ZAPs.
#[test]
fn the_collision_limit_is_not_bypassed_by_becoming_tiny() {
    let names = colliders("fat_flood_128", 0, 128);
    let mut r = tiny("fat_flood_128");
    names[..127].iter().for_each(|(name, value)| r.add(name, *value));
    assert_eq!(r.zap.kind(&r.store), Ok(Kind::Micro));
    r.add(&names[127].0, 127);
    r.gives("fat_flood_128");
    // Slots for longer names hold fewer entries, so that all fit a leaf even if every name had the maximum length.
    let mut r = tiny("fat_flood_128");
    r.add(&"L".repeat(100), 0);
    names[..79].iter().for_each(|(name, value)| r.add(name, *value));
    assert_eq!(r.zap.kind(&r.store), Ok(Kind::Tiny { chunk_bytes: 128, value_ints: 1 }));
    r.add(&names[79].0, 79);
    assert_eq!(r.zap.kind(&r.store), Ok(Kind::Fat));
    assert!(r.zap.check(&r.store).unwrap().is_clean());
    // OpenZFS's image has more colliding names than we would have accepted. It becomes fat without a loss.
    let v = vector("tiny_flood_128");
    let mut store = stored(v);
    let mut zap = Zap::open(&store).unwrap();
    zap.add(&mut store, "one more", &[1, 2]).unwrap();
    assert_eq!((zap.kind(&store), zap.len(&store)), (Ok(Kind::Fat), Ok(129)));
    assert!(expected_entries(v).unwrap().iter().all(|e| {
        let found = zap.lookup_u64(&store, e["name"].as_str().unwrap()).unwrap();
        found == e["values"][0].as_u64()
    }));
}

/// The remaining names are fewer than any limit, but more of them share a hash than slots take.
#[test]
fn a_fat_zap_does_not_go_back_to_slots_that_would_refuse_its_names() {
    let mut r = tiny("fat_flood_128");
    let names = colliders("fat_flood_128", 0, 128);
    names.iter().for_each(|(name, value)| r.add(name, *value));
    r.add("other", 0);
    r.remove("other");
    r.zap = Zap::open_with(&r.store, *r.zap.options()).unwrap();
    r.add("other", 0);
    r.remove("other");
    assert_eq!((r.zap.shrink_due(&r.store), r.zap.shrink(&mut r.store)), (Ok(true), Ok(false)));
    r.zap = Zap::open_with(&r.store, *r.zap.options()).unwrap();
    r.remove(&names[7].0);
    assert_eq!(r.zap.shrink(&mut r.store), Ok(true));
    assert_eq!((r.zap.kind(&r.store), r.zap.len(&r.store)), (Ok(Kind::Micro), Ok(127)));
    assert!(r.zap.check(&r.store).unwrap().is_clean());
}

/// OpenZFS checks only an add, so names that come by updates exceed its limit.
#[test]
fn an_update_that_adds_a_name_meets_the_collision_limit() {
    for tiny in [false, true] {
        let names = colliders("fat_flood_128", 0, 128);
        let mut r = Recipe::with("fat_flood_128", |o| o.tiny = tiny);
        for (name, value) in &names {
            assert_eq!(r.zap.update(&mut r.store, name, &[*value]), Ok(true));
        }
        r.gives("fat_flood_128");
    }
}

/// OpenZFS makes this ZAP fat: it never changes a shape back.
#[test]
fn an_emptied_tiny_zap_takes_any_shape() {
    let mut r = tiny("tiny_emptied");
    r.words("a", &[3, 77, 0x1002]);
    r.remove("a");
    r.gives("tiny_emptied");
    r.add("b", 1);
    let mut fresh = Recipe::new("tiny_emptied");
    fresh.add("b", 1);
    assert_eq!(r.store.image(), fresh.store.image());
    for (name_bytes, ints, chunk_bytes) in
        [(1, 7, 64), (60, 1, 128), (3, 31, 256), (200, 2, 256), (43, 2, 64)]
    {
        r.remove("b");
        r.words(&"n".repeat(name_bytes), &vec![5; ints]);
        let kind = Kind::Tiny { chunk_bytes, value_ints: ints as u8 };
        assert_eq!(r.zap.kind(&r.store), Ok(kind));
        r.remove(&"n".repeat(name_bytes));
        r.add("b", 1);
        assert_eq!(r.store.image(), fresh.store.image());
    }
    assert!(r.zap.check(&r.store).unwrap().is_clean());
}

/// Counts that 16-bit arithmetic would take for small ones.
#[test]
fn values_too_wide_for_slots_are_not_taken_for_narrow_ones() {
    for ints in [32, 255, 256, 257, 1023, 1024] {
        let mut r = tiny("tiny_emptied");
        r.words("a", &vec![7; ints]);
        assert_eq!(r.zap.kind(&r.store), Ok(Kind::Fat), "{ints} integers");
        assert_eq!(r.zap.shape(&r.store, "a"), Ok(Some(ValueShape { int_size: 8, num_ints: ints })));
    }
    for ints in [1025, 8192, 8193, 65_536, 65_537, 1 << 20] {
        let mut r = tiny("tiny_emptied");
        let refused = r.zap.add(&mut r.store, "a", &vec![7; ints]);
        assert_eq!(refused, Err(Error::ValueTooLong { bytes: 8 * ints, bytes_max: 8192 }));
        assert_eq!(r.zap.len(&r.store), Ok(0));
    }
}

#[test]
fn without_the_option_no_zap_becomes_tiny_and_one_that_is_goes_on() {
    for (name, words) in [("n".repeat(50), vec![1]), ("a".into(), vec![1, 2])] {
        let mut r = Recipe::new("tiny_emptied");
        r.words(&name, &words);
        assert_eq!(r.zap.kind(&r.store), Ok(Kind::Fat));
    }
    let v = vector("tiny_64_2");
    let mut store = stored(v);
    let mut zap = Zap::open(&store).unwrap();
    zap.add(&mut store, "one more", &[1, 2]).unwrap();
    assert_eq!(zap.update(&mut store, "one more", &[3, 4]), Ok(false));
    assert_eq!((zap.kind(&store), zap.len(&store)), (Ok(kind_of(v)), Ok(10)));
    assert_eq!(zap.lookup_u64(&store, "one more"), Ok(Some(3)));
    zap.add(&mut store, &"n".repeat(50), &[1, 2]).unwrap();
    assert_eq!((zap.kind(&store), zap.len(&store)), (Ok(Kind::Fat), Ok(11)));
}

/// Images of attribute tables come from a running OpenZFS; they are reproduced in the order of their slots.
#[test]
fn attribute_tables_go_through_a_conversion() {
    for id in ["sa_master_node", "sa_attrs_node", "sa_registry"] {
        let mut store = stored(vector(id));
        let mut zap = Zap::open(&store).unwrap();
        let before = all(&zap, &store);
        zap.update_ints(&mut store, "wide", ValueRef::U16s(&[1, 2, 3])).unwrap();
        assert_eq!(zap.kind(&store), Ok(Kind::Fat));
        zap.remove(&mut store, "wide").unwrap();
        assert_eq!(all(&zap, &store), before, "{id}");
        assert!(zap.check(&store).unwrap().is_clean());
    }
    let store = stored(vector("sa_layouts"));
    let zap = Zap::open(&store).unwrap();
    let layout = zap.lookup(&store, "4").unwrap().unwrap();
    assert_eq!(layout, Value::Ints { int_size: 2, big_endian: vec![0, 20] });
}

/// Another implementation may have put more colliding names into a micro ZAP than one leaf holds. That is found
/// before anything is converted.
#[test]
fn a_micro_zap_that_cannot_become_fat_stays_as_it_is() {
    let mut store = stored(vector("micro_flood_127"));
    let before = store.image();
    let options = ZapOptions { fat_block_shift: 12, ..ZapOptions::new(1) };
    let mut zap = Zap::open_with(&store, options).unwrap();
    assert_eq!(zap.add(&mut store, "wide", &[1, 2, 3]), Err(Error::Full));
    assert_eq!(store.image(), before);
    assert_eq!(zap.len(&store), Ok(127));
}
