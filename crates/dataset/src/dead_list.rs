//! Stored form of dead lists.
//!
//! A *dead list* belongs to a snapshot or to the head of a data set. It holds the blocks that the snapshot before it refers to, and
//! that left the data set after that snapshot. A list consists of one or more objects of the MOS, its *parts*. The entries of each
//! block of a part are sorted by address.
//!
//! Invariant: the counts in the bonus of a part are those of its blocks.

use terrane_format::block_ptr::BLOCK_BYTES_MAX;
use terrane_format::{Addr, GRANULE};
use terrane_wire::{Corrupt, ObjectId, Reader, Truncated, Txg, Writer, layout};

/// Size of the blocks of a part.
pub(crate) const LIST_BLOCK_BYTES: u32 = 16 << 10;
/// Most granules of a block.
const GRANULES_MAX: u32 = BLOCK_BYTES_MAX / GRANULE as u32;
/// Most bytes of an entry: three varints.
const ENTRY_BYTES_MAX: usize = 10 + 5 + 10;

layout! {
    /// Bonus of a part. `FORMAT.md` section 8.7.
    DeadListInfo, 48 bytes {
        /// Size of this structure, with fields of later versions.
        0  bytes: u32,
        /// Bit 0: the list is due for a scan, which frees entries or counts them again.
        4  flags: u32,
        /// Stored copies of blocks in this part.
        8  entries: u64,
        /// Their bytes, in whole granules.
        16 used: u64,
        /// In the first part: bytes of the list's entries that only the snapshot before refers to.
        24 unique: u64,
        /// The next part, or 0.
        32 next: ObjectId,
        /// Must be 0.
        40 reserved: u64,
    }
}

/// Flag of a list that is due for a scan.
const SCAN: u32 = 1;

/// Counts of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartInfo {
    /// Stored copies of blocks in this part.
    pub entries: u64,
    /// Their bytes, in whole granules.
    pub used_bytes: u64,
    /// In the first part: bytes of the list's entries that only the snapshot before refers to.
    pub unique_bytes: u64,
    /// In the first part: the list is due for a scan, which frees entries or counts them again.
    pub is_scan_due: bool,
    /// The next part.
    pub next: Option<ObjectId>,
}

impl PartInfo {
    /// The bonus of a part.
    pub fn encode(&self) -> Vec<u8> {
        let info = DeadListInfo {
            bytes: DeadListInfo::SIZE as u32,
            flags: if self.is_scan_due { SCAN } else { 0 },
            entries: self.entries,
            used: self.used_bytes,
            unique: self.unique_bytes,
            next: self.next.unwrap_or(ObjectId(0)),
            reserved: 0,
        };
        info.encode().to_vec()
    }

    /// Parses the bonus of the object `id`.
    pub fn parse(bonus: &[u8], id: ObjectId) -> Result<PartInfo, Corrupt> {
        let at = format!("dead list, object {id} of the meta object set");
        let info = DeadListInfo::decode(bonus)
            .filter(|info| (DeadListInfo::SIZE..=bonus.len()).contains(&(info.bytes as usize)))
            .ok_or_else(|| Corrupt::new(&at, "size of the bonus", DeadListInfo::SIZE, bonus.len()))?;
        if info.flags & !SCAN != 0 || info.reserved != 0 || info.next == id {
            let found = format_args!("{:#x}, {}, {}", info.flags, info.reserved, info.next);
            return Err(Corrupt::new(
                &at,
                "flags, reserved word and next part",
                "known flags, 0, another object",
                found,
            ));
        }
        Ok(PartInfo {
            entries: info.entries,
            used_bytes: info.used,
            unique_bytes: info.unique,
            is_scan_due: info.flags & SCAN != 0,
            next: Some(info.next).filter(|next| *next != ObjectId(0)),
        })
    }
}

/// A stored copy of a block that left a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadEntry {
    /// The address of the copy.
    pub addr: Addr,
    /// Its size.
    pub granules: u32,
    /// The later one of the births of the block.
    pub birth: Txg,
}

impl DeadEntry {
    /// Device space of the copy.
    pub fn bytes(&self) -> u64 {
        u64::from(self.granules) * GRANULE
    }
}

/// Encodes sorted entries as blocks. All blocks but the last are nearly full.
pub fn encode_blocks(entries: &[DeadEntry]) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut left = entries;
    while !left.is_empty() {
        let (block, count) = encode_block(left);
        left = left.get(count..).unwrap_or(&[]);
        blocks.push(block);
    }
    blocks
}

/// Encodes as many of the sorted entries as fit a block.
pub(crate) fn encode_block(entries: &[DeadEntry]) -> (Vec<u8>, usize) {
    let capacity = LIST_BLOCK_BYTES as usize - 4;
    let mut out = Writer::with_capacity(LIST_BLOCK_BYTES as usize);
    let (mut addr, mut birth, mut count) = (0u64, 0u64, 0);
    for entry in entries {
        if out.len() + ENTRY_BYTES_MAX > capacity {
            break;
        }
        out.varint(entry.addr.raw().wrapping_sub(addr));
        out.varint(u64::from(entry.granules));
        out.varint_signed(entry.birth.0.wrapping_sub(birth) as i64);
        (addr, birth) = (entry.addr.raw(), entry.birth.0);
        count += 1;
    }
    let mut block = (count as u32).to_le_bytes().to_vec();
    block.extend_from_slice(out.as_bytes());
    (block, count)
}

/// Parses a block. Zeros behind the entries are ignored.
pub fn parse_block(raw: &[u8], at: &dyn std::fmt::Display) -> Result<Vec<DeadEntry>, Corrupt> {
    parse_entries(raw).map_err(|error| {
        Corrupt::new(at, "entries of a dead list", "sorted entries, each inside a zone", error)
    })
}

fn parse_entries(raw: &[u8]) -> Result<Vec<DeadEntry>, Truncated> {
    let mut raw = Reader::new(raw);
    let count = raw.u32()? as usize;
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    // An entry takes at least three bytes.
    if count > raw.remaining() / 3 {
        return Err(bad);
    }
    let mut entries = Vec::with_capacity(count);
    let (mut addr, mut birth) = (0u64, 0u64);
    for _ in 0..count {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        // Addresses may repeat: several pointers may have led to a shared block.
        addr = addr.checked_add(raw.varint()?).ok_or(bad)?;
        let granules = u32::try_from(raw.varint()?).map_err(|_| bad)?;
        birth = birth.wrapping_add(raw.varint_signed()? as u64);
        let place = Addr::from_raw(addr);
        let ends = u64::from(place.granule()) + u64::from(granules);
        if place.seq().0 == 0 || !(1..=GRANULES_MAX).contains(&granules) || ends > 1 << 28 {
            return Err(bad);
        }
        entries.push(DeadEntry { addr: place, granules, birth: Txg(birth) });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::Prng;

    fn entries(count: u64, seed: u64) -> Vec<DeadEntry> {
        let mut random = Prng::new(seed);
        let mut entries: Vec<DeadEntry> = (0..count)
            .map(|_| DeadEntry {
                addr: Addr::from_raw((1 + random.below(4000)) << 28 | random.below(1 << 20)),
                granules: 1 + random.below(1024) as u32,
                birth: Txg(random.below(1 << 20)),
            })
            .collect();
        entries.sort_unstable();
        entries.dedup_by_key(|entry| entry.addr);
        entries
    }

    #[test]
    fn entries_come_back_and_are_small() {
        for count in [0, 1, 2, 1000, 20_000] {
            let entries = entries(count, count);
            let blocks = encode_blocks(&entries);
            let padded = |block: &Vec<u8>| {
                assert!(block.len() <= LIST_BLOCK_BYTES as usize);
                let mut block = block.clone();
                block.resize(LIST_BLOCK_BYTES as usize, 0);
                block
            };
            let read: Vec<DeadEntry> =
                blocks.iter().flat_map(|block| parse_block(&padded(block), &"here").unwrap()).collect();
            assert_eq!(read, entries);
            let bytes: usize = blocks.iter().map(Vec::len).sum();
            assert!(bytes <= entries.len() * 12 + 4 * blocks.len(), "{bytes} for {}", entries.len());
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused() {
        let block = encode_blocks(&entries(500, 7)).remove(0);
        let mut random = Prng::new(3);
        for _ in 0..20_000 {
            let mut forged = block.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(forged.len() as u64) as usize;
                forged[at] = random.next_u64() as u8;
            }
            forged.truncate(random.below(block.len() as u64 + 1) as usize);
            if let Ok(found) = parse_block(&forged, &"here") {
                assert!(found.windows(2).all(|pair| pair[0].addr <= pair[1].addr));
            }
        }
        assert!(parse_block(&u32::MAX.to_le_bytes(), &"here").is_err());
        for (granules, is_valid) in [(0, false), (GRANULES_MAX, true), (GRANULES_MAX + 1, false)] {
            let entry = DeadEntry { addr: Addr::from_raw(1 << 28), granules, birth: Txg(1) };
            assert_eq!(parse_block(&encode_block(&[entry]).0, &"here").is_ok(), is_valid, "{granules}");
        }
    }

    #[test]
    fn infos_come_back_and_lies_are_refused() {
        let info = PartInfo {
            entries: 7,
            used_bytes: 4096,
            unique_bytes: 512,
            is_scan_due: true,
            next: Some(ObjectId(9)),
        };
        let id = ObjectId(5);
        assert_eq!(PartInfo::parse(&info.encode(), id).unwrap(), info);
        assert_eq!(PartInfo::parse(&PartInfo::default().encode(), id).unwrap(), PartInfo::default());
        assert!(PartInfo::parse(&info.encode(), ObjectId(9)).is_err(), "it is its own next part");
        for at in [0, 4, 40] {
            let mut forged = info.encode();
            forged[at] ^= 2;
            assert!(PartInfo::parse(&forged, id).is_err(), "{at}");
        }
        assert!(PartInfo::parse(&info.encode()[..47], id).is_err());
    }
}
