//! Stored form of the table of shared blocks.
//!
//! The table is an object of the meta object set, in blocks of 16 KiB. Block 0 is the head. Then come groups: an
//! index block, and the [`GROUP_LEAVES`] leaves that it describes. A leaf holds entries in ascending order:
//! address of the first copy, and references beyond the first. Leaves may be anywhere; what they span is
//! separate.
//!
//! An entry takes a few bytes: the address as the distance to the one before, and the references, both as
//! varints.

use terrane_wire::{Corrupt, Reader, Truncated, Writer, layout};

/// Bytes of a block of the table.
pub const TABLE_BLOCK_BYTES: u32 = 16 << 10;
/// Leaves of a group.
pub const GROUP_LEAVES: u64 = 512;
/// A leaf with more bytes is split.
pub const LEAF_BYTES_MAX: usize = TABLE_BLOCK_BYTES as usize;
/// Parts of a split leaf take at most this, so that each can grow.
pub const LEAF_BYTES_SPLIT: usize = LEAF_BYTES_MAX / 4 * 3;
/// A leaf with fewer bytes is joined with the next one, if both fit one part.
pub const LEAF_BYTES_MIN: usize = LEAF_BYTES_MAX / 4;

const _: () = assert!(GROUP_LEAVES as usize * SharedLeaf::SIZE <= TABLE_BLOCK_BYTES as usize);

const MAGIC: u64 = u64::from_le_bytes(*b"TERRSHAR");

layout! {
    /// Head of the table of shared blocks. `FORMAT.md` section "Shared blocks".
    SharedHead, 64 bytes {
        /// `TERRSHAR`.
        0   magic: u64,
        /// Shared blocks: entries of all leaves.
        8   blocks: u64,
        /// References beyond the first: the sum of all entries.
        16  references: u64,
        /// Space of the shared blocks, once each, in whole granules.
        24  block_bytes: u64,
        /// Space that their further references would take without sharing.
        32  saved_bytes: u64,
        /// Zero, else an unknown feature.
        40  reserved: [u64; 3],
    }
}

layout! {
    /// What an index block says of a leaf. All zero: there is no such leaf.
    SharedLeaf, 24 bytes {
        /// Address of its first entry.
        0   first: u64,
        /// Address of its last entry.
        8   last: u64,
        /// Number of its entries.
        16  entries: u32,
        /// Zero, else an unknown feature.
        20  reserved: u32,
    }
}

/// A shared block: the address of its first copy, and its references beyond the first, at least 1.
pub type Entry = (u64, u64);

/// The index block that describes a leaf block, and the slot in it. `None`: the block is no leaf.
pub fn slot_of(block: u64) -> Option<(u64, u64)> {
    let (group, inside) = (block.checked_sub(1)? / (GROUP_LEAVES + 1), (block - 1) % (GROUP_LEAVES + 1));
    Some((index_block(group), inside.checked_sub(1)?))
}

/// The index block of a group.
pub fn index_block(group: u64) -> u64 {
    1 + group * (GROUP_LEAVES + 1)
}

impl SharedHead {
    /// Validates a stored head. `at` names the place in errors.
    pub fn parse(raw: &[u8], at: &str) -> Result<SharedHead, Corrupt> {
        let head = raw.get(..SharedHead::SIZE).and_then(SharedHead::decode);
        let head = head.ok_or_else(|| Corrupt::new(at, "head length", SharedHead::SIZE, raw.len()))?;
        if head.magic != MAGIC || head.reserved != [0; 3] {
            let expected = format_args!("{MAGIC:#x}, and reserved fields 0");
            let found = format_args!("{:#x} {:?}", head.magic, head.reserved);
            return Err(Corrupt::new(at, "head", expected, found));
        }
        Ok(head)
    }

    /// A head with these numbers.
    pub fn new(blocks: u64, references: u64, block_bytes: u64, saved_bytes: u64) -> SharedHead {
        SharedHead { magic: MAGIC, blocks, references, block_bytes, saved_bytes, reserved: [0; 3] }
    }
}

impl SharedLeaf {
    /// Validates what an index block says. `None`: there is no leaf.
    pub fn parse(raw: &[u8], at: &str) -> Result<Option<SharedLeaf>, Corrupt> {
        let leaf = SharedLeaf::decode(raw)
            .ok_or_else(|| Corrupt::new(at, "slot length", SharedLeaf::SIZE, raw.len()))?;
        if raw.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if leaf.first == 0 || leaf.last < leaf.first || leaf.entries == 0 || leaf.reserved != 0 {
            return Err(Corrupt::new(
                at,
                "slot of a leaf",
                "a range, entries, and reserved 0",
                format!("{leaf:?}"),
            ));
        }
        Ok(Some(leaf))
    }
}

/// Stored bytes of a leaf.
pub fn encode_leaf(entries: &[Entry]) -> Vec<u8> {
    let mut out = Writer::with_capacity(entries.len() * 4 + 8);
    out.varint(entries.len() as u64);
    let mut last = 0;
    for (addr, extra) in entries {
        out.varint(addr - last);
        out.varint(*extra);
        last = *addr;
    }
    out.into_bytes()
}

/// Cuts entries into leaves. What fits one stays together.
pub fn split(entries: &[Entry]) -> Vec<&[Entry]> {
    let len_of = |value: u64| (64 - (value | 1).leading_zeros() as usize).div_ceil(7);
    if encode_leaf(entries).len() <= LEAF_BYTES_MAX {
        return vec![entries];
    }
    let (mut parts, mut rest) = (Vec::new(), entries);
    while !rest.is_empty() {
        // The count, and the first address in full.
        let (mut bytes, mut last) = (2 * len_of(u64::MAX), None::<u64>);
        let fits = |(addr, extra): &&Entry| {
            bytes += last.replace(*addr).map_or(0, |last| len_of(addr - last)) + len_of(*extra);
            bytes <= LEAF_BYTES_SPLIT
        };
        let len = rest.iter().take_while(fits).count();
        let (part, after) = rest.split_at(len.max(1));
        parts.push(part);
        rest = after;
    }
    parts
}

/// Walks the entries of a leaf until `each` returns false. Zeros may follow them.
fn walk_leaf(raw: &[u8], mut each: impl FnMut(Entry) -> bool) -> Result<(), Truncated> {
    let mut raw = Reader::new(raw);
    let (count, mut last) = (raw.count(2)?, 0u64);
    for _ in 0..count {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let (distance, extra) = (raw.varint()?, raw.varint()?);
        last = last.checked_add(distance).filter(|_| distance > 0 && extra > 0).ok_or(bad)?;
        if !each((last, extra)) {
            break;
        }
    }
    Ok(())
}

/// Validates a stored leaf against what its index block says of it.
pub fn parse_leaf(
    raw: &[u8],
    (first, last, entries): (u64, u64, u32),
    at: &str,
) -> Result<Vec<Entry>, Corrupt> {
    let mut found = Vec::new();
    let walked = walk_leaf(raw, |entry| {
        found.push(entry);
        true
    });
    walked.map_err(|error| Corrupt::new(at, "entries", "whole and ascending", error))?;
    let ends = (found.first().map_or(0, |entry| entry.0), found.last().map_or(0, |entry| entry.0));
    if (ends.0, ends.1, found.len() as u64) != (first, last, u64::from(entries)) {
        let expected = format_args!("{first:#x} to {last:#x}, {entries}");
        let found = format_args!("{:#x} to {:#x}, {}", ends.0, ends.1, found.len());
        return Err(Corrupt::new(at, "entries", expected, found));
    }
    Ok(found)
}

/// References beyond the first that a leaf says an address has. `None`: the leaf is damaged.
pub fn find_in_leaf(raw: &[u8], addr: u64) -> Option<u64> {
    let mut found = 0;
    let walked = walk_leaf(raw, |(at, extra)| {
        if at == addr {
            found = extra;
        }
        at < addr
    });
    walked.ok().map(|()| found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_leaf_comes_back_with_zeros_behind_it() {
        let entries: Vec<Entry> = vec![(1 << 28 | 5, 1), (1 << 28 | 900, 3), (u64::MAX, u64::MAX)];
        let mut raw = encode_leaf(&entries);
        raw.resize(TABLE_BLOCK_BYTES as usize, 0);
        let span = (1 << 28 | 5, u64::MAX, 3);
        assert_eq!(parse_leaf(&raw, span, "here").unwrap(), entries);
        assert_eq!([5, 900, 901].map(|low| find_in_leaf(&raw, 1 << 28 | low)), [Some(1), Some(3), Some(0)]);
        for lie in [(span.0 + 1, span.1, 3), (span.0, span.1 - 1, 3), (span.0, span.1, 2)] {
            assert!(parse_leaf(&raw, lie, "here").is_err());
        }
        for (at, byte) in [(0, 4), (0, 200)] {
            let mut raw = raw.clone();
            raw[at] = byte;
            assert!(parse_leaf(&raw, span, "here").is_err(), "byte {at}");
        }
    }

    #[test]
    fn parts_of_a_leaf_fit_leaves() {
        for (step, extra) in [(1u64, 1u64), (8192, 1), (1 << 40, u64::MAX), (1 << 40, 3)] {
            let entries: Vec<Entry> =
                (1..20_000u64).map(|at| (at * step, if at % 3 == 0 { extra } else { 1 })).collect();
            let parts = split(&entries);
            assert_eq!(parts.concat(), entries);
            for part in &parts {
                assert!(encode_leaf(part).len() <= LEAF_BYTES_SPLIT && !part.is_empty());
            }
            let bytes: usize = parts.iter().map(|part| encode_leaf(part).len()).sum();
            assert!(parts.len() <= bytes.div_ceil(LEAF_BYTES_SPLIT - 40), "{}", parts.len());
        }
        assert_eq!(split(&[(1, 1), (2, 1)]).len(), 1);
    }

    #[test]
    fn leaves_have_the_slots_of_their_group() {
        assert_eq!(
            [0, 1, 2, 513, 514, 515].map(slot_of),
            [None, None, Some((1, 0)), Some((1, 511)), None, Some((514, 0))]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(raw in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SharedHead::parse(&raw, "here");
            let _ = raw.get(..24).map(|raw| SharedLeaf::parse(raw, "here"));
            let _ = find_in_leaf(&raw, 7);
            if let Ok(found) = parse_leaf(&raw, (1, 2, 2), "here") {
                prop_assert_eq!(found.len(), 2);
            }
        }
    }
}
