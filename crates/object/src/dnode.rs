//! Stored forms of dnodes and object set headers.
//!
//! A dnode takes 1 to 32 slots of 512 bytes: a head, a block pointer, and the bonus in the rest. Blocks of 16
//! KiB hold 32 slots; a dnode never crosses a block.
//!
//! Attributes that do not fit the bonus go to one *spill block*. Its pointer takes the last 128 bytes of the
//! dnode, so a dnode without a spill pays nothing for it.

use crate::account::{self, Account};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::owner_header::OwnerHeader;
use std::sync::Arc;
use terrane_format::BlockPtr;
use terrane_format::block_ptr::{BLOCK_BYTES_MAX, Normal};
use terrane_wire::{Corrupt, ObjectId, Txg, layout};

/// Bytes of a dnode slot.
pub const SLOT_BYTES: usize = 512;
/// Slots of the largest dnode.
pub const SLOTS_MAX: u8 = 32;
/// Bytes of a dnode block.
pub const DNODE_BLOCK_BYTES: u32 = 16 << 10;
/// Slots in a dnode block.
pub const SLOTS_PER_BLOCK: u64 = DNODE_BLOCK_BYTES as u64 / SLOT_BYTES as u64;
/// Bytes of a normal indirect block.
pub const INDIRECT_BYTES: u32 = 1 << INDIRECT_SHIFT;
/// Bytes of an indirect block above small blocks of a file.
pub const SMALL_INDIRECT_BYTES: u32 = 1 << SMALL_INDIRECT_SHIFT;
/// Largest file block in bytes with small indirect blocks above it. An overwrite of a single block also
/// rewrites its indirect block, in two copies. With large ones, that would cost as much as the block or more.
pub const SMALL_BLOCK_BYTES: u32 = 16 << 10;
/// Smallest block of an object in bytes.
pub const BLOCK_BYTES_MIN: u32 = 512;
const INDIRECT_SHIFT: u8 = 14;
const SMALL_INDIRECT_SHIFT: u8 = 12;
/// Maximum size of a spill block in bytes.
pub const SPILL_BYTES_MAX: usize = 128 << 10;
/// Flag of a head: the dnode ends with a spill pointer.
const HAS_SPILL: u8 = 1;
/// Maximum number of tree levels: more than an object of the smallest blocks can need.
pub const TREE_LEVELS_MAX: u8 = 12;
/// Maximum size of an object in bytes: offsets with the last block still fit 64 bits.
pub const OBJECT_BYTES_MAX: u64 = (1 << 63) + (1 << 24);

layout! {
    /// The head of a dnode. `FORMAT.md` section "Dnodes".
    DnodeHead, 64 bytes {
        /// Stored number of the [`ObjectKind`]. 0: the slot is free.
        0  kind: u8,
        /// An indirect block has 2 to this bytes: 14, or 12 with the feature `org.terrane:pointers`.
        1  indirect_shift: u8,
        /// Levels of the block tree, 1 to [`TREE_LEVELS_MAX`].
        2  levels: u8,
        /// Block pointers in the dnode: 1.
        3  pointers: u8,
        /// 0: what the bonus holds follows from `kind`.
        4  bonus_kind: u8,
        /// bit 0: the dnode ends with a spill pointer
        5  flags: u8,
        /// Slots after the first, at most 31.
        6  extra_slots: u8,
        /// The tables of owners that count the object, by their epoch. 0: none.
        7  owner_epoch: u8,
        /// Bytes of a level-0 block: a multiple of 512, up to 16 MiB.
        8  block_bytes: u32,
        /// Bytes of bonus in use.
        12 bonus_len: u16,
        /// Ignored.
        14 reserved2: u16,
        /// Highest block ever written and not cut off, plus one.
        16 block_count: u64,
        /// Stored bytes of all blocks, all copies, the spill's too.
        24 used: u64,
        /// Txg that created the object. In a second copy that lost changes: the txg that lost them.
        32 birth: Txg,
        /// Ignored.
        40 reserved3: [u64; 3],
    }
}

layout! {
    /// The head of an object set's header block. `FORMAT.md` section "Object sets".
    ObjsetHead, 64 bytes {
        /// [`OBJSET_MAGIC`].
        0  magic: u64,
        /// Objects in the set.
        8  objects: u64,
        /// Slots below this one may be in use.
        16 high_water: u64,
        /// bit 0: the sums that follow are counted
        24 flags: u64,
        /// Space of all blocks except the header's own, all copies, in granules.
        32 used: u64,
        /// Logical size of records.
        40 logical: u64,
        /// Compressed size of records, one copy.
        48 physical: u64,
        /// In the meta object set, the object of the table of shared blocks; 0: there is none.
        56 shared_table: u64,
    }
}

/// Offset of the head's field `extra_slots`.
const EXTRA_SLOTS_AT: usize = 6;

/// `magic` of an [`ObjsetHead`].
pub const OBJSET_MAGIC: u64 = u64::from_le_bytes(*b"TERROBJS");
/// Header block: head, dnode of the dnodes, free queue, then the tables of users, groups and projects.
/// Each part is at a multiple of 512 bytes.
pub const OBJSET_BYTES: usize = 6 * SLOT_BYTES;

/// A dnode in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dnode {
    /// The use of the object.
    pub kind: ObjectKind,
    /// Slots of 512 bytes, 1 to [`SLOTS_MAX`].
    pub slots: u8,
    /// Levels of the block tree, 1 to [`TREE_LEVELS_MAX`].
    pub levels: u8,
    /// Bytes of an indirect block: [`INDIRECT_BYTES`] or [`SMALL_INDIRECT_BYTES`].
    pub indirect_bytes: u32,
    /// Bytes of a level-0 block.
    pub block_bytes: u32,
    /// Highest block ever written and not cut off, plus one.
    pub block_count: u64,
    /// Stored bytes of all blocks and the spill, in granules, all copies.
    pub used: u64,
    /// The txg that created the object. In a second copy that lost changes: the txg that lost them.
    pub birth: Txg,
    /// The root of the block tree.
    pub root: BlockPtr,
    /// The object's own bytes, at most [`bonus_capacity`](Dnode::bonus_capacity).
    pub bonus: Arc<Vec<u8>>,
    /// A hole if there is no spill.
    pub spill: BlockPtr,
    /// Epoch of the tables that count it for its owners; 0: none. See [`owners`](crate::owners).
    pub owner_epoch: u8,
}

impl Dnode {
    /// An object without blocks, bonus and spill.
    pub fn new(kind: ObjectKind, slots: u8, block_bytes: u32, birth: Txg) -> Dnode {
        Dnode {
            kind,
            slots,
            levels: 1,
            indirect_bytes: INDIRECT_BYTES,
            block_bytes,
            block_count: 0,
            used: 0,
            birth,
            root: BlockPtr::default(),
            bonus: Arc::default(),
            spill: BlockPtr::default(),
            owner_epoch: 0,
        }
    }

    /// Bonus bytes that fit a dnode of so many slots without a spill.
    pub fn bonus_max(slots: u8) -> usize {
        usize::from(slots) * SLOT_BYTES - DnodeHead::SIZE - BlockPtr::SIZE
    }

    /// Bonus bytes that fit a dnode of so many slots, with or without a spill.
    pub fn bonus_capacity(slots: u8, has_spill: bool) -> usize {
        Self::bonus_max(slots) - if has_spill { BlockPtr::SIZE } else { 0 }
    }

    /// Number of pointers in an indirect block.
    pub fn pointers_per_block(&self) -> u64 {
        u64::from(self.indirect_bytes) / BlockPtr::SIZE as u64
    }

    /// Number of level-0 blocks below one block of this level.
    pub fn span(&self, level: u8) -> u64 {
        self.pointers_per_block().saturating_pow(u32::from(level))
    }

    /// Bytes of the indirect blocks above one block of this level.
    pub(crate) fn indirect_bytes_above(&self, level: u8) -> u64 {
        u64::from(self.indirect_bytes) * u64::from(self.levels.saturating_sub(level + 1))
    }

    /// Indirect block size in bytes: the current one, or while there is none, the one for blocks of this size.
    /// `has_small`: the pool may hold small ones.
    pub fn indirect_bytes_of(&self, block_bytes: u32, has_small: bool) -> u32 {
        let is_small = has_small && self.kind == ObjectKind::File && block_bytes <= SMALL_BLOCK_BYTES;
        match self.levels {
            1 if is_small => SMALL_INDIRECT_BYTES,
            1 => INDIRECT_BYTES,
            _ => self.indirect_bytes,
        }
    }

    /// Bytes that it takes in its dnode block.
    pub fn stored_bytes(&self) -> usize {
        usize::from(self.slots) * SLOT_BYTES
    }

    /// The stored form: all slots.
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = vec![0; self.stored_bytes()];
        self.encode_into(&mut raw);
        raw
    }

    /// Fills `raw`, which has [`stored_bytes`](Self::stored_bytes).
    pub fn encode_into(&self, raw: &mut [u8]) {
        let head = DnodeHead {
            kind: self.kind as u8,
            indirect_shift: self.indirect_bytes.trailing_zeros() as u8,
            levels: self.levels,
            pointers: 1,
            bonus_kind: 0,
            flags: if self.spill.is_hole() { 0 } else { HAS_SPILL },
            extra_slots: self.slots - 1,
            owner_epoch: self.owner_epoch,
            block_bytes: self.block_bytes,
            bonus_len: self.bonus.len() as u16,
            reserved2: 0,
            block_count: self.block_count,
            used: self.used,
            birth: self.birth,
            reserved3: [0; 3],
        };
        let (head_raw, rest) = raw.split_at_mut(DnodeHead::SIZE);
        head_raw.copy_from_slice(&head.encode());
        let (root, rest) = rest.split_at_mut(BlockPtr::SIZE);
        root.copy_from_slice(&self.root.encode());
        let (bonus, rest) = rest.split_at_mut(self.bonus.len());
        bonus.copy_from_slice(&self.bonus);
        rest.fill(0);
        if !self.spill.is_hole() {
            let (_, spill) = rest.split_at_mut(rest.len() - BlockPtr::SIZE);
            spill.copy_from_slice(&self.spill.encode());
        }
    }

    /// Parses and validates a slot; `raw` runs from its start to the end of its block. `None`: the slot is
    /// free.
    pub fn parse(raw: &[u8], at: &dyn std::fmt::Display) -> Result<Option<Dnode>, Corrupt> {
        let head =
            DnodeHead::decode(raw).ok_or_else(|| Corrupt::new(at, "dnode length", SLOT_BYTES, raw.len()))?;
        if head.kind == 0 {
            return Ok(None);
        }
        let kind = ObjectKind::from_id(head.kind)
            .ok_or_else(|| Corrupt::new(at, "object kind", "a known one", head.kind))?;
        let slots = head.extra_slots.saturating_add(1);
        let bytes = usize::from(slots) * SLOT_BYTES;
        if slots > SLOTS_MAX || bytes > raw.len() {
            return Err(Corrupt::new(at, "dnode slots", "within the block", slots));
        }
        let has_spill = head.flags & HAS_SPILL != 0;
        if head.flags & !HAS_SPILL != 0
            || (has_spill && !kind.is_changed_by_callers())
            || head.pointers != 1
            || ![INDIRECT_SHIFT, SMALL_INDIRECT_SHIFT].contains(&head.indirect_shift)
            || head.bonus_kind != 0
        {
            return Err(Corrupt::new(at, "flags and pointers of a dnode", "known", "an unknown feature"));
        }
        let size_ok =
            (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&head.block_bytes) && head.block_bytes % 512 == 0;
        if !size_ok {
            return Err(Corrupt::new(
                at,
                "block size",
                format_args!("{BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}"),
                head.block_bytes,
            ));
        }
        if head.levels == 0 || head.levels > TREE_LEVELS_MAX {
            return Err(Corrupt::new(at, "levels", format_args!("1 to {TREE_LEVELS_MAX}"), head.levels));
        }
        if head
            .block_count
            .checked_mul(u64::from(head.block_bytes))
            .is_none_or(|bytes| bytes > OBJECT_BYTES_MAX)
        {
            return Err(Corrupt::new(
                at,
                "block count",
                format_args!("at most {OBJECT_BYTES_MAX} bytes"),
                head.block_count,
            ));
        }
        let bonus_len = usize::from(head.bonus_len);
        let bonus_capacity = Dnode::bonus_capacity(slots, has_spill);
        if bonus_len > bonus_capacity {
            return Err(Corrupt::new(
                at,
                "bonus length",
                format_args!("at most {bonus_capacity}"),
                bonus_len,
            ));
        }
        let root_raw = raw.get(DnodeHead::SIZE..DnodeHead::SIZE + BlockPtr::SIZE).unwrap_or(&[]);
        let root = BlockPtr::parse(root_raw, at)?;
        if !root.is_hole() && root.level() != head.levels - 1 {
            return Err(Corrupt::new(at, "level of the root pointer", head.levels - 1, root.level()));
        }
        let from = DnodeHead::SIZE + BlockPtr::SIZE;
        let bonus = Arc::new(raw.get(from..from + bonus_len).unwrap_or(&[]).to_vec());
        let spill = if has_spill {
            parse_spill(raw.get(bytes - BlockPtr::SIZE..bytes).unwrap_or(&[]), kind, at)?
        } else {
            BlockPtr::default()
        };
        Ok(Some(Dnode {
            kind,
            slots,
            levels: head.levels,
            indirect_bytes: 1 << head.indirect_shift,
            block_bytes: head.block_bytes,
            block_count: head.block_count,
            used: head.used,
            birth: head.birth,
            root,
            bonus,
            spill,
            owner_epoch: head.owner_epoch,
        }))
    }
}

fn parse_spill(raw: &[u8], kind: ObjectKind, at: &dyn std::fmt::Display) -> Result<BlockPtr, Corrupt> {
    let spill = BlockPtr::parse(raw, at)?;
    if spill.is_hole() {
        return Err(Corrupt::new(at, "spill pointer", "of a block", "a hole"));
    }
    if spill.level() != 0 || spill.kind() != kind as u8 {
        return Err(Corrupt::new(
            at,
            "level and kind of the spill pointer",
            format_args!("0 and {}", kind as u8),
            format_args!("{} and {}", spill.level(), spill.kind()),
        ));
    }
    if spill.lsize() as usize > SPILL_BYTES_MAX {
        return Err(Corrupt::new(
            at,
            "size of the spill",
            format_args!("at most {SPILL_BYTES_MAX}"),
            spill.lsize(),
        ));
    }
    Ok(spill)
}

/// The spills of a dnode block that have blocks of their own. Damaged dnodes are left out.
pub(crate) fn spill_pointers(raw: &[u8]) -> impl Iterator<Item = Normal> + '_ {
    dnode_offsets(raw).filter_map(|offset| {
        let head = DnodeHead::decode(raw.get(offset..)?)?;
        let kind = ObjectKind::from_id(head.kind).filter(|_| head.flags & HAS_SPILL != 0)?;
        let end = offset + (usize::from(head.extra_slots) + 1) * SLOT_BYTES;
        match parse_spill(raw.get(end - BlockPtr::SIZE..end)?, kind, &"spill") {
            Ok(BlockPtr::Normal(normal)) => Some(normal),
            _ => None,
        }
    })
}

/// Position of an object's dnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnodeSlot {
    /// Index of the dnode block.
    pub block: u64,
    /// Byte offset in that block.
    pub offset: usize,
}

/// Position of the dnode with this object number.
pub fn slot_of(id: ObjectId) -> DnodeSlot {
    DnodeSlot { block: id.0 / SLOTS_PER_BLOCK, offset: (id.0 % SLOTS_PER_BLOCK) as usize * SLOT_BYTES }
}

/// Offsets in bytes of the dnodes in a block, from their heads alone. The walk starts at the beginning, as only
/// a head gives the number of its slots. Whatever lies inside a larger dnode is bonus.
pub fn dnode_offsets(raw: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || {
        loop {
            let offset = next;
            let head = raw.get(offset..).filter(|rest| rest.len() >= SLOT_BYTES)?;
            let (kind, extra) = (head.first().copied()?, head.get(EXTRA_SLOTS_AT).copied()?);
            next = offset + SLOT_BYTES;
            if kind != 0 {
                next += usize::from(extra) * SLOT_BYTES;
                return Some(offset);
            }
        }
    })
}

/// The dnode that begins at this offset of its block; `None`: there is none.
pub fn dnode_at(raw: &[u8], offset: usize, at: &dyn std::fmt::Display) -> Result<Option<Dnode>, Corrupt> {
    if dnode_offsets(raw).take_while(|begin| *begin <= offset).last() != Some(offset) {
        return Ok(None);
    }
    Dnode::parse(raw.get(offset..).unwrap_or(&[]), at)
}

/// The dnodes in a block, with their offsets in bytes.
pub fn dnodes_in(raw: &[u8], at: &dyn std::fmt::Display) -> Result<Vec<(usize, Dnode)>, Corrupt> {
    let mut found = Vec::new();
    for offset in dnode_offsets(raw) {
        if let Some(dnode) = Dnode::parse(raw.get(offset..).unwrap_or(&[]), at)? {
            found.push((offset, dnode));
        }
    }
    Ok(found)
}

/// An object set's header in memory.
#[derive(Clone, Debug)]
pub struct ObjsetHeader {
    /// Objects in the set.
    pub objects: u64,
    /// Slots below this one may be in use.
    pub high_water: u64,
    /// `None`: the set was created before sums were counted.
    pub account: Option<Account>,
    /// In the meta object set, the object of the table of shared blocks; 0: there is none.
    pub shared_table: ObjectId,
    /// The dnode of the dnodes, object 0.
    pub dnodes: Dnode,
    /// The dnode of the free queue that the header block holds.
    pub free_queue: Dnode,
    /// The tables of owners; `None`: the set has none.
    pub owners: Option<OwnerHeader>,
}

impl ObjsetHeader {
    /// The header of a set without objects.
    pub fn empty() -> ObjsetHeader {
        ObjsetHeader {
            objects: 0,
            // Slot 0 stays unused: number 0 is that of the dnodes object.
            high_water: 1,
            account: None,
            shared_table: ObjectId(0),
            dnodes: Dnode::new(ObjectKind::Dnodes, 1, DNODE_BLOCK_BYTES, Txg(0)),
            free_queue: Dnode::new(ObjectKind::FreeQueue, 1, DNODE_BLOCK_BYTES, Txg(0)),
            owners: None,
        }
    }

    /// Roots of all trees below the header.
    pub fn roots(&self) -> Vec<BlockPtr> {
        let tables = self.owners.iter().flat_map(|owners| &owners.tables);
        [&self.dnodes, &self.free_queue].into_iter().chain(tables).map(|dnode| dnode.root.clone()).collect()
    }

    /// The stored form, of [`OBJSET_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let (flags, [used, logical, physical]) = account::words(self.account);
        let head = ObjsetHead {
            magic: OBJSET_MAGIC,
            objects: self.objects,
            high_water: self.high_water,
            flags,
            used,
            logical,
            physical,
            shared_table: self.shared_table.0,
        };
        let mut raw = head.encode().to_vec();
        raw.resize(SLOT_BYTES, 0);
        raw.extend_from_slice(&self.dnodes.encode());
        raw.extend_from_slice(&self.free_queue.encode());
        if let Some(owners) = &self.owners {
            owners.encode_into(&mut raw);
        }
        raw.resize(OBJSET_BYTES, 0);
        raw
    }

    /// Validates a stored header. `at` names the place in errors.
    pub fn parse(raw: &[u8], at: &str) -> Result<ObjsetHeader, Corrupt> {
        let head = ObjsetHead::decode(raw)
            .filter(|_| raw.len() == OBJSET_BYTES)
            .ok_or_else(|| Corrupt::new(at, "object set header length", OBJSET_BYTES, raw.len()))?;
        if head.magic != OBJSET_MAGIC {
            let expected = format_args!("{OBJSET_MAGIC:#x}");
            return Err(Corrupt::new(at, "object set header", expected, format_args!("{:#x}", head.magic)));
        }
        if head.shared_table > ObjectId::MASK {
            return Err(Corrupt::new(at, "object of the shared blocks", "below 2^48", head.shared_table));
        }
        let account = account::parse(head.flags, [head.used, head.logical, head.physical], at)?;
        let header_dnode = |index: usize, kind: ObjectKind| -> Result<Dnode, Corrupt> {
            let raw = raw.get(index * SLOT_BYTES..(index + 1) * SLOT_BYTES).unwrap_or(&[]);
            match Dnode::parse(raw, &at)? {
                Some(dnode) if dnode.kind == kind => Ok(dnode),
                _ => Err(Corrupt::new(at, "dnode in the header", format_args!("{kind:?}"), "another kind")),
            }
        };
        let dnodes = header_dnode(1, ObjectKind::Dnodes)?;
        let free_queue = header_dnode(2, ObjectKind::FreeQueue)?;
        let owners = OwnerHeader::parse(raw.get(3 * SLOT_BYTES..).unwrap_or(&[]), at)?;
        if dnodes.block_bytes != DNODE_BLOCK_BYTES {
            return Err(Corrupt::new(at, "block size of the dnodes", DNODE_BLOCK_BYTES, dnodes.block_bytes));
        }
        let slots = dnodes.block_count.saturating_mul(SLOTS_PER_BLOCK).clamp(1, ObjectId::MASK + 1);
        if head.high_water > slots {
            return Err(Corrupt::new(
                at,
                "high water of object numbers",
                "within the dnode blocks",
                head.high_water,
            ));
        }
        let (objects, high_water) = (head.objects, head.high_water);
        let shared_table = ObjectId(head.shared_table);
        Ok(ObjsetHeader { objects, high_water, account, shared_table, dnodes, free_queue, owners })
    }
}

/// Checks a requested block size in bytes.
pub fn check_block_bytes(bytes: u32, max: u32) -> Result<(), ObjectError> {
    let (what, requested) = ("block size in bytes", u64::from(bytes));
    if bytes > max {
        return Err(ObjectError::TooBig { what, limit: u64::from(max), requested });
    }
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES_MIN) {
        return Err(ObjectError::Invalid { what, expected: "a multiple of 512, from 512 on", requested });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_codec::{ChecksumKind, Compression};
    use terrane_format::Addr;
    use terrane_format::block_ptr::Embedded;
    use terrane_wire::ZoneSeq;

    fn sample(slots: u8, bonus: usize) -> Dnode {
        let mut dnode = Dnode::new(ObjectKind::Directory, slots, 4096, Txg(4));
        (dnode.levels, dnode.block_count, dnode.used) = (2, 77, 12345);
        dnode.bonus = Arc::new((0..bonus).map(|at| (at % 251) as u8).collect());
        dnode
    }

    #[test]
    fn a_refused_block_size_names_the_rule_it_breaks() {
        for (bytes, text) in [
            (0, "refused: block size in bytes: 0 requested, should be a multiple of 512, from 512 on"),
            (511, "refused: block size in bytes: 511 requested, should be a multiple of 512, from 512 on"),
            (4097, "refused: block size in bytes: 4097 requested, at most 4096"),
            (8192, "refused: block size in bytes: 8192 requested, at most 4096"),
        ] {
            assert_eq!(check_block_bytes(bytes, 4096).unwrap_err().to_string(), text);
        }
        assert!(check_block_bytes(512, 4096).is_ok() && check_block_bytes(4096, 4096).is_ok());
    }

    #[test]
    fn dnodes_of_every_size_come_back() {
        for slots in 1..=SLOTS_MAX {
            for bonus in [0, 1, 320, Dnode::bonus_max(slots)] {
                let dnode = sample(slots, bonus);
                let raw = dnode.encode();
                assert_eq!(raw.len(), usize::from(slots) * SLOT_BYTES);
                assert_eq!(Dnode::parse(&raw, &"here").unwrap(), Some(dnode));
            }
        }
        assert_eq!(Dnode::parse(&[0; 512], &"here").unwrap(), None);
    }

    fn spill(lsize: u32) -> BlockPtr {
        BlockPtr::Embedded(Embedded {
            kind: ObjectKind::Directory as u8,
            level: 0,
            compression: 16,
            lsize,
            birth: Txg(5),
            payload: vec![0x5a; 100],
        })
    }

    #[test]
    fn a_spill_pointer_ends_dnodes_of_every_size() {
        for slots in 1..=SLOTS_MAX {
            for bonus in [0, 1, Dnode::bonus_capacity(slots, true)] {
                let dnode = Dnode { spill: spill(300), ..sample(slots, bonus) };
                let raw = dnode.encode();
                assert_eq!(raw[5], HAS_SPILL);
                assert_eq!(&raw[raw.len() - BlockPtr::SIZE..], dnode.spill.encode());
                // The next dnode of the block does not belong to it.
                let raw = [raw, sample(1, 320).encode()].concat();
                assert_eq!(Dnode::parse(&raw, &"here").unwrap(), Some(dnode));
            }
        }
        assert_eq!(Dnode::bonus_capacity(1, true), 192);
        assert_eq!(Dnode::bonus_capacity(2, true), 704);
    }

    #[test]
    fn invalid_spill_pointer_is_refused() {
        let whole = Dnode { spill: spill(300), ..sample(1, 192) };
        let parse = |raw: &[u8]| Dnode::parse(raw, &"here").map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(parse(&whole.encode()), Ok(()));
        let refused = |lie: &dyn Fn(&mut Vec<u8>), why: &str| {
            let mut raw = whole.encode();
            lie(&mut raw);
            let error = parse(&raw).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        };
        let with = |raw: &mut Vec<u8>, ptr: BlockPtr| {
            let from = raw.len() - BlockPtr::SIZE;
            raw[from..].copy_from_slice(&ptr.encode());
        };
        refused(&|raw| with(raw, BlockPtr::default()), "a hole");
        refused(&|raw| with(raw, spill(SPILL_BYTES_MAX as u32 + 1)), "size of the spill");
        let BlockPtr::Embedded(embedded) = spill(1) else { panic!("embedded") };
        refused(&|raw| with(raw, BlockPtr::Embedded(Embedded { level: 1, ..embedded.clone() })), "0 and 6");
        refused(
            &|raw| with(raw, BlockPtr::Embedded(Embedded { kind: 7, ..embedded.clone() })),
            "6, found 0 and 7",
        );
        refused(&|raw| raw[12] = 193, "bonus length");
        assert_eq!(spill_pointers(&whole.encode()).count(), 0, "it has no block of its own");
        refused(&|raw| raw[5] |= 4, "unknown feature");
        // Objects that callers cannot change have no attributes.
        let BlockPtr::Embedded(embedded) = spill(1) else { panic!("embedded") };
        let kind = ObjectKind::Dnodes;
        let spill = BlockPtr::Embedded(Embedded { kind: kind as u8, ..embedded });
        let dnodes = Dnode { spill, ..Dnode::new(kind, 1, 512, Txg(1)) };
        assert!(parse(&dnodes.encode()).is_err());
    }

    #[test]
    fn spills_of_a_dnode_block_are_found_in_dnodes_of_every_size() {
        let stored = |at: u64| Normal {
            addrs: [Addr::new(ZoneSeq(7), at), Addr::new(ZoneSeq(8), at), Addr::NONE],
            checksum: [9; 32],
            checksum_kind: ChecksumKind::Blake3,
            compression: Compression::Off.id(),
            kind: ObjectKind::Directory as u8,
            level: 0,
            lsize: 1000,
            psize: 1000,
            logical_birth: Txg(5),
            block_birth: Txg(5),
            fill: 1,
            is_clone: false,
        };
        let mut block = vec![0; DNODE_BLOCK_BYTES as usize];
        let spills = [
            (1usize, 1u8, BlockPtr::Normal(stored(64))),
            (2, 1, BlockPtr::default()),
            (3, 4, BlockPtr::Normal(stored(128))),
            (8, 1, spill(300)),
            (31, 1, BlockPtr::Normal(stored(192))),
        ];
        for (slot, slots, spill) in &spills {
            let dnode = Dnode { spill: spill.clone(), ..sample(*slots, 100) };
            dnode.encode_into(&mut block[slot * SLOT_BYTES..(slot + usize::from(*slots)) * SLOT_BYTES]);
        }
        assert_eq!(spill_pointers(&block).collect::<Vec<_>>(), [stored(64), stored(128), stored(192)]);
        // Damaged ones are left out: a pointer, and slots that reach past the block's end.
        block[2 * SLOT_BYTES - BlockPtr::SIZE..2 * SLOT_BYTES].fill(0xff);
        block[31 * SLOT_BYTES + EXTRA_SLOTS_AT] = 1;
        assert_eq!(spill_pointers(&block).collect::<Vec<_>>(), [stored(128)]);
    }

    #[test]
    fn dnode_at_agrees_with_dnodes_in() {
        let mut block = vec![0; DNODE_BLOCK_BYTES as usize];
        let mut inner = sample(1, 10).encode();
        for (slot, slots) in [(1usize, 1u8), (2, 3), (7, 1), (31, 1)] {
            let dnode = sample(slots, if slots == 3 { 1000 } else { 200 });
            dnode.encode_into(&mut block[slot * SLOT_BYTES..(slot + usize::from(slots)) * SLOT_BYTES]);
        }
        // Bytes inside a larger dnode that look like a dnode are bonus.
        block[3 * SLOT_BYTES..4 * SLOT_BYTES].swap_with_slice(&mut inner);
        let all = dnodes_in(&block, &"here").unwrap();
        assert_eq!(all.iter().map(|(at, _)| at / SLOT_BYTES).collect::<Vec<_>>(), [1, 2, 7, 31]);
        for slot in 0..SLOTS_PER_BLOCK as usize {
            let one = dnode_at(&block, slot * SLOT_BYTES, &"here").unwrap();
            let expected =
                all.iter().find(|(at, _)| *at == slot * SLOT_BYTES).map(|(_, dnode)| dnode.clone());
            assert_eq!(one, expected, "slot {slot}");
        }
        // A dnode whose slots reach past the block's end.
        block[31 * SLOT_BYTES + EXTRA_SLOTS_AT] = 1;
        assert!(dnode_at(&block, 31 * SLOT_BYTES, &"here").is_err());
        assert!(dnode_at(&block, 7 * SLOT_BYTES, &"here").unwrap().is_some(), "the others can be read");
    }

    #[test]
    fn no_bytes_make_parsing_panic() {
        for raw in
            [sample(2, 400).encode(), Dnode { spill: spill(300), ..sample(2, 400) }.encode(), vec![0xff; 512]]
        {
            for at in 0..raw.len() {
                let flips = (0..8).map(|bit| raw[at] ^ 1 << bit);
                for lie in [0u8, 1, 0x7f, 0xff].into_iter().chain(flips) {
                    let mut bad = raw.clone();
                    bad[at] = lie;
                    assert!(spill_pointers(&bad).count() <= 2);
                    // What parses can be encoded again, with the same result.
                    if let Ok(Some(dnode)) = Dnode::parse(&bad, &"here") {
                        let again = Dnode::parse(&dnode.encode(), &"here").unwrap();
                        assert_eq!(again, Some(dnode), "byte {at}");
                    }
                }
            }
        }
        let header = ObjsetHeader::empty().encode();
        assert!(ObjsetHeader::parse(&header, "here").is_ok());
        for at in 0..header.len() {
            let mut bad = header.clone();
            bad[at] ^= 0x55;
            let _ = ObjsetHeader::parse(&bad, "here");
        }
    }
}
