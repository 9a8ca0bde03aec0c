//! Inputs of the targets that read structures of data sets. Each takes its input as it is.
//!
//! * `snapshots`: the bonus of a snapshot.
//! * `parts`: the bonus of a part of a dead list.
//! * `dead_entries`: a block of a dead list.
//! * `node_keys`: the name of an entry in the ZAPs of holds, counts of clones, or retired sets.
//! * `shared`: a block of the table of shared blocks. A leaf comes behind the slot that describes it.

use std::collections::BTreeMap;
use terrane_dataset::stored::{encode_dead_entries, parse_dead_entries, retired_in_key, snapshot_in_key};
use terrane_dataset::{DeadEntry, PartInfo, SnapshotInfo};
use terrane_format::block_ptr::{BLOCK_BYTES_MAX, Hole};
use terrane_format::{Addr, BlockPtr, GRANULE};
use terrane_object::Account;
use terrane_object::shared::stored::{SharedHead, SharedLeaf, encode_leaf, find_in_leaf, parse_leaf, split};
use terrane_wire::{ObjectId, Txg, ZoneSeq};

/// The newest txg of the pool.
const NEWEST: Txg = Txg(1 << 20);

/// The bonus of a snapshot is refused by name, or can be written again and means the same.
pub fn run_snapshot(data: &[u8]) {
    let id = ObjectId(9);
    let Ok(info) = SnapshotInfo::parse(data, id, NEWEST) else { return };
    assert!(info.guid != 0 && info.dead_list.0 != 0 && info.created.0 != 0 && info.created <= NEWEST);
    assert_eq!(SnapshotInfo::parse(&info.encode(), id, NEWEST).as_ref(), Ok(&info));
    assert!(info.referenced_bytes() >= info.referenced.used_bytes);
}

/// The bonus of a part is refused by name, or can be written again and means the same.
pub fn run_part(data: &[u8]) {
    let id = ObjectId(9);
    let Ok(info) = PartInfo::parse(data, id) else { return };
    assert_ne!(info.next, Some(id));
    assert_eq!(PartInfo::parse(&info.encode(), id).as_ref(), Ok(&info));
}

/// A block of a dead list is refused by name, or has sorted entries that lie in zones. They can be written again.
pub fn run_entries(data: &[u8]) {
    let Ok(entries) = parse_dead_entries(data, &"fuzz") else { return };
    assert!(entries.len() <= data.len(), "more entries than bytes");
    assert!(entries.is_sorted_by_key(|entry| entry.addr));
    for entry in &entries {
        let end = u64::from(entry.addr.granule()) + u64::from(entry.granules);
        assert!(entry.addr.seq().0 != 0 && end <= 1 << 28, "{entry:?}");
        assert!((GRANULE..=u64::from(BLOCK_BYTES_MAX)).contains(&entry.bytes()), "{entry:?}");
    }
    let again = encode_dead_entries(&entries);
    let read = again.iter().flat_map(|block| parse_dead_entries(block, &"again").expect("it was written"));
    assert_eq!(read.collect::<Vec<DeadEntry>>(), entries);
}

/// A name has one spelling for each object.
pub fn run_key(data: &[u8]) {
    if let Some(set) = retired_in_key(data) {
        assert_eq!(data, format!("{set}.prune_below").as_bytes());
    }
    if let Some(snapshot) = snapshot_in_key(data) {
        let number = snapshot.to_string();
        assert!(data == number.as_bytes() || data.starts_with(format!("{number}:").as_bytes()));
    }
}

/// A head or a leaf of the table of shared blocks is refused by name, or can be written again and means the same.
pub fn run_shared(data: &[u8]) {
    if let Ok(head) = SharedHead::parse(data, "fuzz") {
        let again =
            SharedHead::new(head.blocks, head.references, head.block_bytes, head.saved_bytes).encode();
        assert_eq!(data.get(..SharedHead::SIZE), Some(&again[..]));
    }
    let Some((slot, leaf)) = data.split_at_checked(SharedLeaf::SIZE) else { return };
    let Ok(Some(slot)) = SharedLeaf::parse(slot, "fuzz") else { return };
    let _ = find_in_leaf(leaf, slot.last);
    let Ok(entries) = parse_leaf(leaf, (slot.first, slot.last, slot.entries), "fuzz") else { return };
    assert!(entries.len() <= leaf.len(), "more entries than bytes");
    assert!(
        entries.is_sorted_by_key(|(addr, _)| addr)
            && entries.iter().all(|(addr, extra)| *addr > 0 && *extra > 0)
    );
    for (addr, extra) in &entries {
        assert_eq!(find_in_leaf(leaf, *addr), Some(*extra));
    }
    let parts = split(&entries);
    let read = parts.iter().flat_map(|part| {
        let span = (part[0].0, part[part.len() - 1].0, part.len() as u32);
        parse_leaf(&encode_leaf(part), span, "again").expect("it was written")
    });
    assert_eq!(read.collect::<Vec<_>>(), entries);
}

/// Seeds: target, name and input.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let root = BlockPtr::Hole(Hole { kind: 3, level: 0, lsize: 3072, birth: Txg(9) });
    for (name, root) in [("hole", root), ("none", BlockPtr::default())] {
        let info = SnapshotInfo {
            id: ObjectId(9),
            root,
            guid: 5,
            created: Txg(7),
            time_ns: 1,
            dead_list: ObjectId(8),
            set: ObjectId(2),
            referenced: Account { used_bytes: 3, logical_bytes: 4, physical_bytes: 5 },
        };
        seeds.push(("snapshots", name.to_string(), info.encode()));
    }
    for next in [None, Some(ObjectId(3))] {
        let info =
            PartInfo { entries: 7, used_bytes: 4096, unique_bytes: 512, is_scan_due: next.is_some(), next };
        seeds.push(("parts", format!("next {next:?}"), info.encode()));
    }
    for count in [1, 9, 300] {
        let entry = |n: u64| DeadEntry {
            addr: Addr::new(ZoneSeq(1 + n / 50), GRANULE * 100 * (n % 50)),
            granules: 1 + n as u32,
            birth: Txg(1 + n * 7 % 31),
        };
        let entries: Vec<DeadEntry> = (0..count).map(entry).collect();
        seeds.extend(
            encode_dead_entries(&entries)
                .into_iter()
                .map(|block| ("dead_entries", format!("{count} entries"), block)),
        );
    }
    for name in ["7", "7:tag", "7:a:b", "7.prune_below", "7.dead_list"] {
        seeds.push(("node_keys", name.to_string(), name.as_bytes().to_vec()));
    }
    seeds.push(("shared", "head".to_string(), SharedHead::new(7, 9, 4096, 8192).encode().to_vec()));
    for count in [1, 9, 300u32] {
        let sorted: BTreeMap<u64, u64> =
            (1..=u64::from(count)).map(|n| ((n * 16) << (n % 9), 1 + n % 3)).collect();
        let entries: Vec<(u64, u64)> = sorted.into_iter().collect();
        let (first, last) = (entries[0].0, entries[entries.len() - 1].0);
        let slot = SharedLeaf { first, last, entries: entries.len() as u32, reserved: 0 };
        seeds.push((
            "shared",
            format!("{count} entries"),
            [slot.encode().to_vec(), encode_leaf(&entries)].concat(),
        ));
    }
    seeds
}
