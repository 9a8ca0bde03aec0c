//! Inputs of the target that reads what a pool in an object store is opened by.
//!
//! `bucket`: a root and a table, without magic, version and hash, which are made right: a hash is no secret. The first byte says which.

use terrane_bucket::{Geometry, ROOT_VERSION, Root, encode_table, parse_table};

const GEOMETRY: Geometry = Geometry { write_unit: 4096, zone_size: 64 << 20, zone_count: 4096 };

fn sealed(magic: &[u8; 8], data: &[u8]) -> Vec<u8> {
    let mut raw = magic.to_vec();
    raw.extend_from_slice(&ROOT_VERSION.to_le_bytes());
    raw.extend_from_slice(data);
    let hash = blake3::hash(&raw);
    raw.extend_from_slice(hash.as_bytes());
    raw
}

/// A root or a table is refused by name, or means the same when it is written again.
pub fn run(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    if kind % 2 == 0 {
        let Ok(root) = Root::parse(&sealed(b"TERRROOT", data), "fuzz") else { return };
        assert!(root.anchors.iter().all(|anchor| anchor.len() <= 16 << 20), "anchors are bounded");
        assert_eq!(Root::parse(&root.encode(), "fuzz").as_ref(), Ok(&root));
    } else {
        let Ok(zones) = parse_table(&sealed(b"TERRTABL", data), &GEOMETRY, "fuzz") else { return };
        assert!(zones.keys().all(|zone| (2..GEOMETRY.zone_count).contains(&zone.0)), "zones exist");
        assert_eq!(parse_table(&encode_table(&zones), &GEOMETRY, "fuzz").as_ref(), Ok(&zones));
    }
}

/// A root with anchors, zones and garbage, and a table.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut root = 4096u32.to_le_bytes().to_vec();
    root.extend_from_slice(&(64u64 << 20).to_le_bytes());
    root.extend_from_slice(&4096u32.to_le_bytes());
    root.extend_from_slice(&7u64.to_le_bytes());
    root.extend_from_slice(&1u32.to_le_bytes());
    root.extend_from_slice(b"\x04host");
    root.extend_from_slice(&[1; 16]);
    // The next number; no table; two zones, of which one has a filling of two parts; one filling to be deleted, for a second.
    root.extend_from_slice(&[5, 0, 2, 2, 0, 3, 1]);
    root.extend_from_slice(&[7; 8]);
    root.extend_from_slice(&[2, 0, 2, 0x80, 0x20, 0x80, 0x40]);
    root.extend_from_slice(&[1, 7, 7, 7, 7, 7, 7, 7, 7, 1, 1, 1]);
    // An anchor of two pieces, one of them zeros, and an empty one.
    root.extend_from_slice(&[0x80, 4, 1, 1]);
    root.extend_from_slice(&[9; 256]);
    root.push(0);
    let mut table = vec![1, 9];
    table.extend_from_slice(&[7; 8]);
    table.extend_from_slice(&[2, 1, 1, 0x80, 0x20]);
    let input = |kind: u8, data: &[u8]| [&[kind], data].concat();
    assert!(Root::parse(&sealed(b"TERRROOT", &root), "seed").is_ok(), "a seed is sound");
    assert!(parse_table(&sealed(b"TERRTABL", &table), &GEOMETRY, "seed").is_ok(), "a seed is sound");
    vec![("bucket", "root".into(), input(0, &root)), ("bucket", "table".into(), input(1, &table))]
}
