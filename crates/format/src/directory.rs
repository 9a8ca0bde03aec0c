//! Zone directories: the list of a zone's blocks, stored in the zone itself (F2FS: segment summary).
//!
//! Every batch in a zone ends with a *directory part*: one entry per block of the batch, then a trailer that ends on a write unit. A
//! part names the one before it, so a zone can be walked back from its write pointer without any table. Parts are immutable.
//!
//! An entry holds the block's identity, stored size, CRC-32C of the stored bytes, birth txg, owner, and the addresses of its other
//! copies. The identity of a block that was *born* here is its own position. A *moved* block keeps the address of its birthplace.
//!
//! Invariant: positions in a part ascend and do not overlap, and all lie inside the batch.

use crate::addr::{Addr, GRANULE, granule_bytes, is_valid_seq};
use crate::seal::{Seed, seal};
use terrane_wire::{Corrupt, Reader, Truncated, Txg, Writer, ZoneSeq, layout};

/// `magic` of a [`PartTrailer`].
pub const PART_MAGIC: u64 = u64::from_le_bytes(*b"TERRPART");
/// `previous` of the first part of a zone.
pub const NO_PART: u64 = u64::MAX;
/// Pool structure that owns a block: a commit record.
pub const POOL_RECORD: u8 = 1;
/// Pool structure that owns a block: a section of the zone tables.
pub const POOL_SECTION: u8 = 2;
/// Pool structure that owns a block: a dead-log block.
pub const POOL_DEAD_LOG: u8 = 3;
/// Pool structure that owns a block: the second copy of a directory part.
pub const POOL_PART_COPY: u8 = 4;

layout! {
    /// Ends every directory part. `FORMAT.md` section "Zone directories".
    PartTrailer, 96 bytes {
        /// [`PART_MAGIC`].
        0  magic: u64,
        /// The zone's filling.
        8  seq: ZoneSeq,
        /// The incarnation that wrote the part.
        16 incarnation: u64,
        /// The txg that wrote the part.
        24 txg: Txg,
        /// Offset in the zone at which the batch begins, in bytes.
        32 batch_start: u64,
        /// Offset in the zone of the first byte of entries, in bytes.
        40 part_start: u64,
        /// Bytes of entries, from `part_start`; zeros fill the gap to the trailer.
        48 entry_bytes: u64,
        /// Offset in the zone of the end of the part before, in bytes. All ones: none.
        56 previous: u64,
        /// Number of entries.
        64 entries: u32,
        /// Number of entries whose birthplace is elsewhere.
        68 moved: u32,
        /// Ignored.
        72 reserved: u64,
        /// Over everything from `part_start` on.
        80 seal: [u8; 16],
    }
}

/// Block number of an object's spill block at level 0. No content block has this number.
pub const SPILL: u64 = u64::MAX;

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A block of an object.
    Block {
        /// The object set. 0: the meta object set.
        objset: u64,
        /// The object. 2^64 - 2: the header of the set. 2^64 - 1: its free queue.
        object: u64,
        /// Level in the block tree. 0: content.
        level: u8,
        /// Number of the block in its level, or [`SPILL`].
        block: u64,
    },
    /// A block of a pool structure, which no object owns.
    Pool {
        /// [`POOL_RECORD`], [`POOL_SECTION`], [`POOL_DEAD_LOG`] or [`POOL_PART_COPY`].
        structure: u8,
    },
}

/// What a directory part says of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the block in this zone, in bytes.
    pub offset: u64,
    /// The block's birthplace.
    pub identity: Addr,
    /// Stored bytes, exact.
    pub psize: u32,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
    /// The txg that wrote the block. A move keeps it.
    pub birth: Txg,
    /// What the block belongs to.
    pub owner: Owner,
    /// Addresses of the other copies.
    pub other_copies: Vec<Addr>,
}

impl Entry {
    /// Allocated granules.
    pub fn granules(&self) -> u32 {
        u32::try_from(granule_bytes(u64::from(self.psize)) / GRANULE).expect("fewer granules than bytes")
    }

    /// Whether the block was born elsewhere. `seq` is the filling that holds the entry.
    pub fn is_moved(&self, seq: ZoneSeq) -> bool {
        self.identity != Addr::new(seq, self.offset)
    }
}

/// A decoded and validated part.
#[derive(Clone, Debug)]
pub struct Part {
    /// The zone's filling.
    pub seq: ZoneSeq,
    /// The txg that wrote the part.
    pub txg: Txg,
    /// Offset of the batch in the zone, in bytes.
    pub batch_start: u64,
    /// End of the part, and of the batch.
    pub end: u64,
    /// End of the part before, in bytes. `None`: this is the first part of the zone.
    pub previous: Option<u64>,
    /// In offset order.
    pub entries: Vec<Entry>,
    /// Indices of `entries` in order of identity.
    by_identity: Vec<u32>,
}

impl Part {
    /// The part of a batch from `batch_start` to `end`. Entries must be in offset order.
    pub fn new(
        seq: ZoneSeq,
        txg: Txg,
        (batch_start, end): (u64, u64),
        previous: Option<u64>,
        entries: Vec<Entry>,
    ) -> Part {
        let mut by_identity: Vec<u32> = (0..).take(entries.len()).collect();
        by_identity.sort_by_key(|index| entries.get(*index as usize).map(|entry| entry.identity));
        Part { seq, txg, batch_start, end, previous, entries, by_identity }
    }

    /// The entry of the block with this birthplace.
    pub fn find(&self, identity: Addr) -> Option<&Entry> {
        let entry = |index: &u32| self.entries.get(*index as usize);
        let at = self
            .by_identity
            .partition_point(|index| entry(index).is_some_and(|entry| entry.identity < identity));
        self.by_identity.get(at).and_then(entry).filter(|entry| entry.identity == identity)
    }

    /// Memory in bytes, for the cache's budget.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Part>() + self.entries.len() * (size_of::<Entry>() + 20)
    }
}

const F_MOVED: u8 = 1;
const F_POOL: u8 = 2;
const F_SAME_OBJECT: u8 = 4;
const F_NEXT_BLOCK: u8 = 8;
const F_OTHER_COPIES: u8 = 16;
const F_GAP: u8 = 32;
const F_SAME_BIRTH: u8 = 64;
/// More flags follow, as a varint.
const F_MORE: u8 = 128;

/// Smallest entry: flags, a size below 128, and the CRC. It is the next block of the same object and birth txg.
const ENTRY_BYTES_MIN: usize = 1 + 1 + 4;

/// The state of delta coding between entries, the same for encoder and decoder.
#[derive(Default)]
struct DeltaState {
    end: u64,
    identity: u64,
    other_copy: u64,
    birth: u64,
    objset: u64,
    object: u64,
    level: u8,
    block: u64,
}

/// Identity and position of a part to be written.
#[derive(Clone, Copy, Debug)]
pub struct PartHead {
    /// Id of the pool, for the seal.
    pub pool: u64,
    /// The incarnation that writes the part.
    pub incarnation: u64,
    /// The zone's filling.
    pub seq: ZoneSeq,
    /// The txg that writes the part.
    pub txg: Txg,
    /// Offset of the batch in the zone, in bytes.
    pub batch_start: u64,
    /// Offset in the zone of the first byte of entries, in bytes.
    pub part_start: u64,
    /// End of the part before, or [`NO_PART`].
    pub previous: u64,
}

/// Encodes the part of a batch being gathered, entry by entry, so its size is always known.
pub struct PartEncoder {
    out: Writer,
    last: DeltaState,
    batch_start: u64,
    entries: u32,
    moved: u32,
}

impl PartEncoder {
    /// For a batch that begins at this offset of its zone, in bytes.
    pub fn new(batch_start: u64) -> PartEncoder {
        let last = DeltaState { end: batch_start, ..DeltaState::default() };
        PartEncoder { out: Writer::default(), last, batch_start, entries: 0, moved: 0 }
    }

    /// Adds an entry. Entries must be in offset order; `seq` is the zone's.
    pub fn push(&mut self, seq: ZoneSeq, entry: &Entry) {
        encode_entry(&mut self.out, &mut self.last, seq, entry);
        self.entries += 1;
        self.moved += u32::from(entry.is_moved(seq));
    }

    /// Bytes of the part so far, without padding.
    pub fn stored_bytes(&self) -> u64 {
        (self.out.len() + PartTrailer::SIZE) as u64
    }

    /// Whether it lists moved blocks. Then a second copy of the part will be written.
    pub fn lists_moved_blocks(&self) -> bool {
        self.moved > 0
    }

    /// Finishes the part: the bytes from `part_start` to the end of the batch, which is a multiple of `unit`.
    pub fn finish(self, head: &PartHead, unit: usize) -> Vec<u8> {
        let PartHead { pool, incarnation, seq, txg, batch_start, part_start, previous } = *head;
        debug_assert_eq!(batch_start, self.batch_start);
        let out = self.out;
        let entry_bytes = out.len() as u64;
        let before = usize::try_from(part_start % unit as u64).expect("less than a write unit");
        let total = (before + out.len() + PartTrailer::SIZE).next_multiple_of(unit) - before;
        let mut raw = out.into_bytes();
        raw.resize(total - PartTrailer::SIZE, 0);
        let mut trailer = PartTrailer {
            magic: PART_MAGIC,
            seq,
            incarnation,
            txg,
            batch_start,
            part_start,
            entry_bytes,
            previous,
            entries: self.entries,
            moved: self.moved,
            reserved: 0,
            seal: [0; 16],
        };
        let seed = Seed { pool, scope: seq.0, offset: part_start, incarnation };
        trailer.seal = seal(seed, &[&raw, &trailer.encode()[..PartTrailer::SIZE - 16]]);
        raw.extend_from_slice(&trailer.encode());
        raw
    }
}

fn encode_entry(out: &mut Writer, last: &mut DeltaState, seq: ZoneSeq, entry: &Entry) {
    let moved = entry.is_moved(seq);
    let gap = (entry.offset - last.end) / GRANULE;
    let mut flags = 0;
    let mut set = |flag: u8, on: bool| flags |= if on { flag } else { 0 };
    set(F_MOVED, moved);
    set(F_GAP, gap > 0);
    set(F_SAME_BIRTH, entry.birth.0 == last.birth);
    set(F_OTHER_COPIES, !entry.other_copies.is_empty());
    if let Owner::Block { objset, object, level, block } = entry.owner {
        let same = objset == last.objset && object == last.object && level == last.level;
        set(F_SAME_OBJECT, same);
        set(F_NEXT_BLOCK, same && block == last.block.wrapping_add(1));
    } else {
        set(F_POOL, true);
    }
    out.u8(flags);
    if gap > 0 {
        out.varint(gap);
    }
    if moved {
        out.varint_signed(entry.identity.raw().wrapping_sub(last.identity).cast_signed());
    }
    out.varint(u64::from(entry.psize));
    out.u32(entry.crc);
    if entry.birth.0 != last.birth {
        out.varint(entry.birth.0);
    }
    match entry.owner {
        Owner::Pool { structure: what } => out.u8(what),
        Owner::Block { objset, object, level, block } => {
            if flags & F_SAME_OBJECT == 0 {
                out.varint(objset);
                out.varint_signed(object.wrapping_sub(last.object).cast_signed());
                out.u8(level);
            }
            if flags & F_NEXT_BLOCK == 0 {
                out.varint(block);
            }
            (last.objset, last.object, last.level, last.block) = (objset, object, level, block);
        }
    }
    if !entry.other_copies.is_empty() {
        out.u8(u8::try_from(entry.other_copies.len()).expect("a block has few copies"));
        for other_copy in &entry.other_copies {
            out.varint_signed(other_copy.raw().wrapping_sub(last.other_copy).cast_signed());
            last.other_copy = other_copy.raw();
        }
    }
    last.identity = entry.identity.raw();
    last.birth = entry.birth.0;
    last.end = entry.offset + granule_bytes(u64::from(entry.psize));
}

/// Parses the trailer from the last bytes before `end`. Its `part_start` tells how many bytes the whole part needs.
pub fn parse_trailer(raw: &[u8], seq: ZoneSeq, end: u64) -> Result<PartTrailer, Corrupt> {
    let at = || format!("zone {seq}, directory part ending at byte {end}");
    let tail = raw.len().checked_sub(PartTrailer::SIZE).and_then(|from| raw.get(from..));
    let trailer = tail
        .and_then(PartTrailer::decode)
        .ok_or_else(|| Corrupt::new(at(), "trailer length", PartTrailer::SIZE, raw.len()))?;
    if trailer.magic != PART_MAGIC {
        return Err(Corrupt::new(
            at(),
            "magic",
            format_args!("{PART_MAGIC:#x}"),
            format_args!("{:#x}", trailer.magic),
        ));
    }
    if trailer.seq != seq {
        return Err(Corrupt::new(at(), "sequence", seq, trailer.seq));
    }
    let room = trailer
        .part_start
        .checked_add(trailer.entry_bytes)
        .and_then(|x| x.checked_add(PartTrailer::SIZE as u64));
    let aligned = trailer.batch_start.is_multiple_of(GRANULE);
    let ordered =
        aligned && trailer.batch_start <= trailer.part_start && room.is_some_and(|room| room <= end);
    if !ordered || end - trailer.part_start > 64 << 20 {
        return Err(Corrupt::new(
            at(),
            "extent of the part",
            "inside its batch",
            format_args!(
                "batch {} part {} entries {}",
                trailer.batch_start, trailer.part_start, trailer.entry_bytes
            ),
        ));
    }
    Ok(trailer)
}

/// Parses a whole part. `raw` holds the bytes from the trailer's `part_start` to `end`.
pub fn parse_part(pool: u64, trailer: &PartTrailer, raw: &[u8], end: u64) -> Result<Part, Corrupt> {
    let seq = trailer.seq;
    let at = || format!("zone {seq}, directory part ending at byte {end}");
    let len = usize::try_from(end - trailer.part_start).unwrap_or(usize::MAX);
    let body_len = len.checked_sub(16);
    let (Some(body), true) = (body_len.and_then(|len| raw.get(..len)), raw.len() == len) else {
        return Err(Corrupt::new(at(), "length", len, raw.len()));
    };
    let seed = Seed { pool, scope: seq.0, offset: trailer.part_start, incarnation: trailer.incarnation };
    if seal(seed, &[body]) != trailer.seal {
        return Err(Corrupt::new(at(), "seal", "valid", "a mismatch"));
    }
    let truncated = |error: Truncated| Corrupt::new(at(), "entries", "whole", error);
    let entry_bytes = usize::try_from(trailer.entry_bytes).unwrap_or(usize::MAX);
    let mut reader = Reader::new(body.get(..entry_bytes).unwrap_or(&[]));
    let mut last = DeltaState { end: trailer.batch_start, ..DeltaState::default() };
    // Bounds the allocation for a forged count by the size of the part.
    let most = reader.remaining() / ENTRY_BYTES_MIN;
    if trailer.entries as usize > most {
        return Err(Corrupt::new(at(), "entry count", format_args!("at most {most}"), trailer.entries));
    }
    let mut entries = Vec::with_capacity(trailer.entries as usize);
    for _ in 0..trailer.entries {
        let entry = decode_entry(&mut reader, &mut last, seq).map_err(truncated)?;
        if entry.offset + granule_bytes(u64::from(entry.psize)) > trailer.part_start.next_multiple_of(GRANULE)
        {
            let found = entry.offset + granule_bytes(u64::from(entry.psize));
            let expected = format_args!("at most {}", trailer.part_start);
            return Err(Corrupt::new(at(), "end of a block", expected, found));
        }
        entries.push(entry);
    }
    if !reader.is_empty() {
        return Err(Corrupt::new(
            at(),
            "entries",
            "to fill their bytes",
            format_args!("{} left", reader.remaining()),
        ));
    }
    let previous = (trailer.previous != NO_PART).then_some(trailer.previous);
    if previous.is_some_and(|previous| previous > trailer.batch_start) {
        return Err(Corrupt::new(at(), "previous part", "before this batch", trailer.previous));
    }
    Ok(Part::new(seq, trailer.txg, (trailer.batch_start, end), previous, entries))
}

fn decode_entry(raw: &mut Reader<'_>, last: &mut DeltaState, seq: ZoneSeq) -> Result<Entry, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let flags = raw.u8()?;
    // No further flag is known, and its field would be misread as the next one.
    if flags & F_MORE != 0 && raw.varint()? != 0 {
        return Err(bad);
    }
    let gap = if flags & F_GAP != 0 { raw.varint()? } else { 0 };
    let offset = gap.checked_mul(GRANULE).and_then(|gap| gap.checked_add(last.end)).ok_or(bad)?;
    if offset >= crate::addr::ZONE_BYTES_MAX || !is_valid_seq(seq) {
        return Err(bad);
    }
    let identity = if flags & F_MOVED != 0 {
        Addr::from_raw(last.identity.wrapping_add_signed(raw.varint_signed()?))
    } else {
        Addr::new(seq, offset)
    };
    let psize = u32::try_from(raw.varint()?)
        .ok()
        .filter(|psize| (1..=crate::block_ptr::BLOCK_BYTES_MAX).contains(psize) && identity.can_hold(*psize))
        .ok_or(bad)?;
    let crc = raw.u32()?;
    let birth = if flags & F_SAME_BIRTH != 0 { last.birth } else { raw.varint()? };
    let owner = if flags & F_POOL != 0 {
        Owner::Pool { structure: raw.u8()? }
    } else {
        if flags & F_SAME_OBJECT == 0 {
            last.objset = raw.varint()?;
            last.object = last.object.wrapping_add_signed(raw.varint_signed()?);
            last.level = raw.u8()?;
        }
        last.block = if flags & F_NEXT_BLOCK != 0 { last.block.wrapping_add(1) } else { raw.varint()? };
        Owner::Block { objset: last.objset, object: last.object, level: last.level, block: last.block }
    };
    let mut other_copies = Vec::new();
    if flags & F_OTHER_COPIES != 0 {
        let count = raw.u8()?;
        if usize::from(count) >= crate::block_ptr::COPIES_MAX {
            return Err(bad);
        }
        for _ in 0..count {
            last.other_copy = last.other_copy.wrapping_add_signed(raw.varint_signed()?);
            other_copies.push(Addr::from_raw(last.other_copy));
        }
    }
    last.identity = identity.raw();
    last.birth = birth;
    last.end = offset.checked_add(granule_bytes(u64::from(psize))).ok_or(bad)?;
    Ok(Entry { offset, identity, psize, crc, birth: Txg(birth), owner, other_copies })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_ptr::BLOCK_BYTES_MAX;
    use proptest::prelude::*;

    fn entries(seq: ZoneSeq) -> Vec<Entry> {
        let mut at = 4096;
        (0..300u64)
            .map(|i| {
                let psize = 100 + (i as u32 * 37) % 9000;
                if i % 17 == 0 {
                    at += 48;
                }
                let offset = at;
                at += granule_bytes(u64::from(psize));
                let identity =
                    if i % 5 == 4 { Addr::new(ZoneSeq(3), i * 160) } else { Addr::new(seq, offset) };
                let owner = if i % 50 == 49 {
                    Owner::Pool { structure: POOL_SECTION }
                } else {
                    Owner::Block { objset: 1, object: 7 + i / 40, level: (i % 40 == 0).into(), block: i }
                };
                let other_copies = if i % 3 == 0 { vec![Addr::new(ZoneSeq(9), i * 16)] } else { vec![] };
                Entry { offset, identity, psize, crc: i as u32, birth: Txg(5 + i / 100), owner, other_copies }
            })
            .collect()
    }

    fn encoded() -> (Vec<u8>, u64, Vec<Entry>) {
        part_of(entries(ZoneSeq(12)))
    }

    fn parsed(raw: &[u8], start: u64) -> Result<Part, Corrupt> {
        let end = start + raw.len() as u64;
        let trailer = parse_trailer(raw, ZoneSeq(12), end)?;
        parse_part(77, &trailer, raw, end)
    }

    /// A random block, mostly like the one before: gap, stored bytes, birth, owner, other copies, and whether it moved here.
    type Spec = (u64, u32, u64, Owner, Vec<u64>, Option<u64>);

    fn specs() -> impl Strategy<Value = Vec<Spec>> {
        let word = || prop_oneof![8 => Just(0u64), 2 => 0u64..300, 1 => Just(u64::MAX), 1 => any::<u64>()];
        let psize = prop_oneof![8 => 1u32..128, 2 => 1u32..9000, 1 => Just(BLOCK_BYTES_MAX)];
        let owner = (word(), word(), prop_oneof![9 => Just(0u8), 1 => any::<u8>()], word(), 0u8..12);
        let owner = owner.prop_map(|(objset, object, level, block, pool)| match pool {
            0 => Owner::Pool { structure: level },
            _ => Owner::Block { objset, object, level, block },
        });
        let other_copies = prop_oneof![9 => Just(vec![]), 1 => prop::collection::vec(any::<u64>(), 1..3)];
        let moved = prop::option::weighted(0.1, 1u64 << 28..(1 << 40));
        let gap = prop_oneof![9 => Just(0u64), 1 => 0u64..1000];
        prop::collection::vec((gap, psize, word(), owner, other_copies, moved), 1..80)
    }

    proptest! {
        /// The parser must accept what the writer may write: the smallest entries, runs of them, and the extremes of each field.
        #[test]
        fn a_part_of_any_blocks_comes_back(specs in specs(), in_a_row in any::<bool>()) {
            let mut at = 4096;
            let entries: Vec<Entry> = (0u64..).zip(specs).map(|(i, (gap, psize, birth, owner, other_copies, moved))| {
                let offset = at + gap * GRANULE;
                at = offset + granule_bytes(u64::from(psize));
                let owner = match owner {
                    Owner::Block { objset, object, level, .. } if in_a_row => Owner::Block { objset, object, level, block: i },
                    owner => owner,
                };
                let here = Addr::new(ZoneSeq(12), offset);
                let moved = moved.map(|granule| Addr::from_raw((granule & !0xfff_ffff) | (granule % 1000)));
                let identity = moved.filter(|addr| is_valid_seq(addr.seq()) && addr.can_hold(psize)).unwrap_or(here);
                let other_copies = other_copies.into_iter().map(Addr::from_raw).collect();
                Entry { offset, identity, psize, crc: i as u32, birth: Txg(birth), owner, other_copies }
            }).collect();
            let (raw, start, entries) = part_of(entries);
            let part = parsed(&raw, start);
            prop_assert_eq!(part.map(|part| part.entries).map_err(|error| error.to_string()), Ok(entries));
        }
    }

    /// Consecutive small blocks of one object take the smallest entries.
    #[test]
    fn a_part_of_the_smallest_entries_comes_back() {
        let entries = (0..300u64).map(|block| Entry {
            offset: 4096 + block * 32,
            identity: Addr::new(ZoneSeq(12), 4096 + block * 32),
            psize: 24,
            crc: 1,
            birth: Txg(5),
            owner: Owner::Block { objset: 1, object: 7, level: 0, block },
            other_copies: Vec::new(),
        });
        let (raw, start, entries) = part_of(entries.collect());
        assert_eq!(parsed(&raw, start).unwrap().entries, entries);
    }

    fn part_of(entries: Vec<Entry>) -> (Vec<u8>, u64, Vec<Entry>) {
        let seq = ZoneSeq(12);
        let start = entries.last().map(|e| e.offset + granule_bytes(u64::from(e.psize))).unwrap();
        let head = PartHead {
            pool: 77,
            incarnation: 2,
            seq,
            txg: Txg(9),
            batch_start: 4096,
            part_start: start,
            previous: NO_PART,
        };
        let mut part = PartEncoder::new(head.batch_start);
        entries.iter().for_each(|entry| part.push(head.seq, entry));
        let raw = part.finish(&head, 4096);
        (raw, start, entries)
    }

    #[test]
    fn a_part_comes_back_and_ends_on_a_write_unit() {
        let (raw, start, entries) = encoded();
        let end = start + raw.len() as u64;
        assert_eq!(end % 4096, 0);
        let trailer = parse_trailer(&raw, ZoneSeq(12), end).unwrap();
        let part = parse_part(77, &trailer, &raw, end).unwrap();
        assert_eq!(part.entries, entries);
        assert_eq!(part.previous, None);
        assert!(raw.len() < entries.len() * 16 + 4096, "7 to 16 bytes a block");
        assert!(parse_part(78, &trailer, &raw, end).is_err(), "another pool's part");
    }

    /// A rebuild of the index from directories depends on valid birthplaces.
    #[test]
    fn impossible_birthplaces_are_refused() {
        let from = |raw: u64, psize: u32| {
            let mut entries = entries(ZoneSeq(12));
            entries.truncate(40);
            (entries[7].identity, entries[7].psize) = (Addr::from_raw(raw), psize);
            let (raw, start, entries) = part_of(entries);
            let end = start + raw.len() as u64;
            let trailer = parse_trailer(&raw, ZoneSeq(12), end).unwrap();
            parse_part(77, &trailer, &raw, end).is_ok_and(|part| part.entries == entries)
        };
        assert!(from(3 << 28 | 80, 16) && from((4 << 28) - 1, 16), "up to the end of a zone");
        assert!(!from(80, 16), "zone 0");
        assert!(!from((4 << 28) - 1, 17), "over the end of a zone");
        assert!(!from(u64::MAX, 16) && !from(u64::MAX, 32), "the last zone of all is never written");
    }

    #[test]
    fn every_bit_flip_is_refused() {
        let (raw, start, _) = encoded();
        let end = start + raw.len() as u64;
        for bit in (0..raw.len() * 8).step_by(3) {
            let mut bad = raw.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let result = parse_trailer(&bad, ZoneSeq(12), end).and_then(|t| {
                parse_part(
                    77,
                    &t,
                    bad.get((t.part_start.saturating_sub(start)) as usize..).unwrap_or(&[]),
                    end,
                )
            });
            assert!(result.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn forged_entries_with_a_valid_seal_never_panic() {
        let (raw, start, _) = encoded();
        let end = start + raw.len() as u64;
        for at in 0..raw.len() - 16 {
            for byte in [0u8, 0x7f, 0xff] {
                let mut bad = raw.clone();
                bad[at] = byte;
                let Ok(mut trailer) = parse_trailer(&bad, ZoneSeq(12), end) else { continue };
                let seed = Seed {
                    pool: 77,
                    scope: 12,
                    offset: trailer.part_start,
                    incarnation: trailer.incarnation,
                };
                trailer.seal = seal(seed, &[&bad[..raw.len() - 16]]);
                let _ = parse_part(77, &trailer, &bad, end);
            }
        }
    }

    /// No further flag is known: the bytes after it would be misread.
    #[test]
    fn entries_with_unknown_flags_are_refused() {
        let seq = ZoneSeq(12);
        let entry = &entries(seq)[0];
        let mut out = Writer::new();
        encode_entry(&mut out, &mut DeltaState::default(), seq, entry);
        let raw = out.into_bytes();
        for (more, passes) in [(&[0][..], true), (&[1], false), (&[0x80, 1], false)] {
            let with = [&[raw[0] | F_MORE], more, &raw[1..]].concat();
            let read = decode_entry(&mut Reader::new(&with), &mut DeltaState::default(), seq);
            assert_eq!(read.ok().as_ref(), Some(entry).filter(|_| passes));
        }
    }
}
