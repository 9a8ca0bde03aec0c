use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/nvlist").join(name))
        .unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 3 + 1) as u8).collect()
}

/// The lists that OpenZFS packed, and their content.
fn vectors() -> Vec<(&'static str, Pairs)> {
    let pair = |name: &str, value: &[u8]| (name.as_bytes().to_vec(), value.to_vec());
    let padding = (0..9).map(|len| pair(&format!("user.{}", &"abcdefgh"[..len]), &pattern(len))).collect();
    vec![
        ("empty.xdr", vec![]),
        ("one_small.xdr", vec![pair("user.a", b"hello")]),
        (
            "four.xdr",
            vec![
                pair("user.a", b"hello"),
                pair("user.bbbb", &pattern(300)),
                pair("security.selinux", &pattern(27)),
                pair("user.empty", b""),
            ],
        ),
        ("replaced.xdr", vec![pair("user.a", b"hel")]),
        ("large.xdr", vec![pair("user.a", b"hel"), pair("user.large", &pattern(30_000))]),
        ("mid.xdr", vec![pair("user.bbbb", &pattern(300))]),
        ("padding.xdr", padding),
    ]
}

fn pack(pairs: &Pairs) -> Vec<u8> {
    pairs.iter().fold(NvList::default().to_bytes(), |raw, (name, value)| {
        NvList::parse(&raw).unwrap().with(name, value).unwrap()
    })
}

fn unpack(raw: &[u8]) -> Pairs {
    NvList::parse(raw).unwrap().iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

#[test]
fn lists_of_openzfs_are_read_and_written_byte_for_byte() {
    for (name, pairs) in vectors() {
        let raw = file(name);
        assert_eq!(unpack(&raw), pairs, "{name}");
        assert!(pack(&pairs) == raw, "{name}");
        let list = NvList::parse(&raw).unwrap();
        assert_eq!(list.packed_bytes(), raw.len(), "{name}");
        assert!(list.to_bytes() == raw, "{name}");
        assert_eq!(list.is_empty(), pairs.is_empty(), "{name}");
        for (key, value) in &pairs {
            assert_eq!(list.get(key), Some(&value[..]), "{name}");
            assert_eq!(get(&raw, key), Ok(Some(&value[..])), "{name}");
        }
        assert_eq!((list.get(b"user.none"), get(&raw, b"user.none")), (None, Ok(None)), "{name}");
    }
}

/// The operations that made `replaced.xdr` from `four.xdr`.
#[test]
fn a_pair_that_is_set_again_is_the_last() {
    let four = file("four.xdr");
    let again = NvList::parse(&four).unwrap().with(b"user.a", b"hel").unwrap();
    let names: Vec<_> = unpack(&again).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [&b"user.bbbb"[..], b"security.selinux", b"user.empty", b"user.a"]);
    let mut raw = again;
    for name in [&b"user.bbbb"[..], b"security.selinux", b"user.empty"] {
        raw = NvList::parse(&raw).unwrap().without(name).unwrap();
    }
    assert_eq!(raw, file("replaced.xdr"));
    let list = NvList::parse(&raw).unwrap();
    assert_eq!(list.without(b"user.b"), None);
    assert_eq!(list.without(b"user.a"), Some(file("empty.xdr")));
}

#[test]
fn the_last_byte_of_an_attribute_is_used() {
    // 12 + 8 around the pairs, 20 in each; names of 8 bytes.
    let largest = PACKED_BYTES_MAX / 4 * 4 - 20 - 28;
    let raw = NvList::default().with(b"user.max", &pattern(largest)).unwrap();
    assert_eq!(raw.len(), 65532);
    assert_eq!(NvList::parse(&raw).unwrap().get(b"user.max"), Some(&pattern(largest)[..]));
    let list = NvList::parse(&raw).unwrap();
    assert_eq!(NvList::default().with(b"user.max", &pattern(largest + 1)), None);
    assert_eq!(list.with(b"u", b""), None);
    // The replaced value does not count.
    assert!(list.with(b"user.max", &pattern(largest)).is_some());
    assert_eq!(list.with(b"user.max", &vec![0; usize::from(u16::MAX) + 1]), None);
    assert_eq!(list.with(&vec![b'n'; 70_000], b""), None);
}

#[test]
fn a_name_has_bytes_and_none_of_them_is_nul() {
    let list = NvList::default();
    assert_eq!((list.with(b"", b"x"), list.with(b"user.\0", b"x")), (None, None));
    let unnamed: Vec<u8> = [20, 24, 0, 10, 0].iter().flat_map(|&number: &u32| number.to_be_bytes()).collect();
    let raw = [&HEADER[..], &unnamed, &END].concat();
    assert_eq!(NvList::parse(&raw).unwrap_err().what, "name");
    assert_eq!(get(&raw, b"").unwrap_err().what, "name");
}

#[test]
fn one_name_may_begin_another() {
    let raw = pack(&vec![(b"user.ab".to_vec(), b"long".to_vec()), (b"user.a".to_vec(), b"short".to_vec())]);
    assert_eq!(get(&raw, b"user.a"), Ok(Some(&b"short"[..])));
    assert_eq!(NvList::parse(&raw).unwrap().get(b"user.a"), Some(&b"short"[..]));
}

#[test]
fn invalid_lists_are_refused() {
    let refuse = |raw: &[u8], what: &str| assert_eq!(NvList::parse(raw).unwrap_err().what, what);
    let good = file("one_small.xdr");
    for len in 0..good.len() {
        assert!(NvList::parse(&good[..len]).is_err(), "{len} bytes");
        // Before the end of the pair, padding included, there is no pair.
        assert_eq!(get(&good[..len], b"user.a").is_err(), len < good.len() - END.len(), "{len} bytes");
    }
    let damage = |at: usize, byte: u8| {
        let mut raw = good.clone();
        raw[at] = byte;
        raw
    };
    refuse(&damage(0, 0), "header"); // the native encoding
    refuse(&damage(1, 2), "byte order");
    refuse(&damage(2, 1), "header");
    refuse(&damage(7, 1), "header"); // version
    refuse(&damage(11, 2), "header"); // names of one type are unique
    refuse(&damage(11, 0), "header");
    refuse(&damage(15, 0x28), "sizes");
    refuse(&damage(19, 0x28), "sizes");
    refuse(&damage(20, 0x80), "pair"); // length of the name
    refuse(&damage(23, 0), "pair");
    refuse(&damage(23, 7), "name"); // its padding becomes part of it
    refuse(&damage(24, 0), "name");
    refuse(&damage(35, 8), "pair"); // type
    refuse(&damage(36, 0x80), "pair"); // length of the value
    refuse(&damage(39, 9), "sizes");
    refuse(&damage(39, 0), "sizes");
    refuse(&damage(48, 1), "pair"); // no end
    refuse(&[&good[..], &[0]].concat(), "length");
    refuse(&vec![0; PACKED_BYTES_MAX + 1], "length");
    // Changes that are accepted: padding, and the byte order of the writer.
    for (at, byte) in [(30, 1), (31, 255), (45, 7), (1, 0)] {
        assert_eq!(NvList::parse(&damage(at, byte)).unwrap().get(b"user.a"), Some(&b"hello"[..]));
    }
}

#[test]
fn a_name_is_there_once() {
    // Few names are compared pairwise, many are sorted. Both find a duplicate in the first and the last pair.
    for count in [2, COMPARED_MAX, COMPARED_MAX + 1, 200] {
        let pairs: Pairs = (0..count).map(|i| (format!("user.{i:03}").into_bytes(), pattern(i))).collect();
        let mut raw = pack(&pairs);
        assert_eq!(unpack(&raw), pairs);
        let at = raw.len() - END.len() - encoded_bytes(8, count - 1) + 12;
        raw[at..at + 8].copy_from_slice(b"user.000");
        assert_eq!(NvList::parse(&raw).unwrap_err().what, "names", "{count}");
        assert_eq!(get(&raw, b"user.000"), Ok(Some(&[][..])), "the first is found");
        // Without validation, well-formed pairs of any bytes are returned.
        assert_eq!(NvList::from_validated(&raw).iter().count(), count);
        for len in [0, 11, 12, 19, 20, raw.len() - 1] {
            assert!(NvList::from_validated(&raw[..len]).iter().count() < count);
        }
    }
}

proptest! {
    #[test]
    fn behaves_like_a_vector_of_pairs(ops in prop::collection::vec((0usize..30, prop::option::of(prop::collection::vec(any::<u8>(), 0..40))), 0..60)) {
        let (mut raw, mut model) = (NvList::default().to_bytes(), Pairs::new());
        for (which, value) in ops {
            let name = [&b"user."[..], &vec![b'a' + which as u8; which + 1]].concat();
            let list = NvList::parse(&raw).unwrap();
            prop_assert_eq!(list, NvList::from_validated(&raw));
            let index = model.iter().position(|(n, _)| *n == name);
            let changed = match &value {
                Some(value) => list.with(&name, value),
                None => list.without(&name),
            };
            prop_assert_eq!(changed.is_some(), value.is_some() || index.is_some());
            if let Some(changed) = changed {
                index.map(|at| model.remove(at));
                model.extend(value.map(|value| (name, value)));
                raw = changed;
            }
            prop_assert_eq!(&unpack(&raw), &model);
        }
        prop_assert_eq!(raw, pack(&model));
    }
}
