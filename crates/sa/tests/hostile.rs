//! Hostile bytes: each parser ends with a result or a named error, and an accepted structure is consistent.

use crate::oracle;
use proptest::prelude::*;
use std::path::Path;
use terrane_sa::LayoutTable;
use terrane_sa::buffer::MAGIC;

const BONUSES: [&str; 9] = [
    "dir",
    "reg",
    "reg_dxattr_small",
    "reg_dxattr_spill",
    "reg_dxattr_unspilled",
    "reg_dxattr_large_seq",
    "reg_1k_dxattr",
    "symlink",
    "blkdev_projid",
];
const SPILLS: [&str; 2] = ["reg_dxattr_spill", "reg_dxattr_large_seq"];
const LISTS: [&str; 7] = ["empty", "one_small", "four", "replaced", "large", "mid", "padding"];
/// Layout 1, the one without attributes.
const NO_ATTRIBUTES: [u8; 8] = [0x5a, 0x50, 0x2f, 0, 1, 4, 0, 0];

fn vector(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors").join(name)).unwrap()
}

fn openzfs() -> LayoutTable {
    oracle::table(&[]).unwrap()
}

#[test]
fn valid_vectors_are_accepted() {
    for name in LISTS {
        assert!(oracle::list(&vector(&format!("nvlist/{name}.xdr"))), "{name}");
    }
    for name in BONUSES {
        let spill = match SPILLS.contains(&name) {
            true => vector(&format!("sa/{name}.spill")),
            false => NO_ATTRIBUTES.to_vec(),
        };
        assert!(oracle::buffers(&vector(&format!("sa/{name}.bonus")), &spill, &openzfs()), "{name}");
    }
    let own = [&[0, 5, 40, 0, 0, 8, 0][..], &[0, 99, 5, 0, 3, 0, 0], &[1, 2, 7, 0, 40, 0, 5, 0]].concat();
    assert_eq!(oracle::table(&own).unwrap().get(7).unwrap().zap_value(), [40, 5]);
}

type Flips = Vec<(prop::sample::Index, u8)>;

fn flips() -> impl Strategy<Value = Flips> {
    prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4)
}

/// Flips bits among the first bytes or among all.
fn flip(raw: &mut [u8], flips: Flips, first: usize) {
    for (at, bit) in flips {
        let at = at.index(first.min(raw.len()));
        raw[at] ^= 1 << bit;
    }
}

proptest! {
    #[test]
    fn no_bytes_break_a_promise(raw in prop::collection::vec(any::<u8>(), 0..300)) {
        oracle::list(&raw);
        oracle::buffers(&raw, &NO_ATTRIBUTES, &openzfs());
        oracle::table(&raw);
    }

    /// Sealed lies: the header is right, the rest is arbitrary.
    #[test]
    fn no_list_breaks_a_promise(rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let header = &vector("nvlist/empty.xdr")[..12];
        oracle::list(&[header, &rest].concat());
    }

    #[test]
    fn no_lengths_break_a_promise(layout in 1u16..9, header in 0u16..4, rest in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut raw = MAGIC.to_le_bytes().to_vec();
        raw.extend_from_slice(&(header << 10 | layout).to_le_bytes());
        raw.extend_from_slice(&rest);
        oracle::buffers(&raw, &NO_ATTRIBUTES, &openzfs());
        oracle::buffers(&vector("sa/reg.bonus"), &raw, &openzfs());
    }

    #[test]
    fn no_flipped_bits_break_a_promise(
        [bonus, spill, list] in any::<[prop::sample::Index; 3]>(),
        (in_bonus, in_spill, in_list) in (flips(), flips(), flips()),
        first in prop::sample::select(vec![16usize, 80, 1024]),
    ) {
        let mut bonus = vector(&format!("sa/{}.bonus", bonus.get(&BONUSES)));
        let mut spill = vector(&format!("sa/{}.spill", spill.get(&SPILLS)));
        let mut list = vector(&format!("nvlist/{}.xdr", list.get(&LISTS)));
        flip(&mut bonus, in_bonus, first);
        oracle::buffers(&bonus, &NO_ATTRIBUTES, &openzfs());
        oracle::buffers(&bonus, &spill, &openzfs());
        flip(&mut spill, in_spill, first);
        oracle::buffers(&vector("sa/reg.bonus"), &spill, &openzfs());
        flip(&mut list, in_list, first);
        oracle::list(&list);
    }
}
