//! Block pointers: everything that a parent knows about a block.
//!
//! 128 bytes hold up to three addresses (copies), the checksum of the stored bytes, how to decode them, and two birth txgs. Three kinds
//! share the layout:
//!
//! * A *normal* pointer names stored bytes.
//! * An *embedded* pointer holds up to 112 bytes of (compressed) payload itself and allocates nothing.
//! * A *hole* names nothing: the block reads as zeros. A hole that was never written is all zero. A hole that was punched keeps its
//!   logical birth, level and size, so that an incremental send sees it.
//!
//! Invariant: a pointer that parses has no bit set that this version does not know. Such a bit is an unknown feature.

use crate::addr::{Addr, granule_bytes};
use crate::features::Feature;
use terrane_codec::{ChecksumKind, Compression};
use terrane_wire::{Corrupt, Txg, layout};

/// Most copies that a pointer names.
pub const COPIES_MAX: usize = 3;
/// Most payload bytes of an embedded pointer.
pub const EMBEDDED_BYTES_MAX: usize = 112;
/// Most levels of a block tree, level 0 included.
pub const LEVELS_MAX: u8 = 16;
/// The largest logical or stored size of one block, in bytes.
pub const BLOCK_BYTES_MAX: u32 = 16 << 20;

layout! {
    /// A normal pointer or a hole, as stored. `FORMAT.md` section "Block pointers".
    BlockPtrPhys, 128 bytes {
        /// Addresses of the copies, filled from the first. None set: a hole.
        0   addrs: [u64; 3],
        /// Of the stored bytes.
        24  checksum: [u8; 32],
        /// bits 0-6 compression, 7 embedded, 8-15 type, 16-20 level, 21 cloned, 22 encrypted, 24-31 checksum kind
        /// (embedded: payload length), 32-63 zero (embedded: logical size).
        56  props: u64,
        /// Bytes of the block before compression.
        64  lsize: u32,
        /// Stored bytes, exact. 0: a hole.
        68  psize: u32,
        /// The txg that the content is from.
        72  logical_birth: Txg,
        /// The txg that wrote the stored bytes.
        80  block_birth: Txg,
        /// Level 0: 1. Above: allocated level-0 blocks below, or for dnode blocks allocated dnodes.
        88  fill: u64,
        /// Zero, else an unknown feature.
        96  reserved: [u64; 4],
    }
}

const EMBEDDED: u64 = 1 << 7;
const SHARED: u64 = 1 << 21;
const KNOWN_PROPS: u64 = 0xff1f_ffff | SHARED;
/// Offsets of the fixed words in an embedded pointer. The payload fills the other bytes in order.
const PROPS_AT: usize = 56;
const BIRTH_AT: usize = 72;

/// A decoded block pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockPtr {
    /// No bytes: the block reads as zeros.
    Hole(Hole),
    /// The bytes lie in the pointer.
    Embedded(Embedded),
    /// The bytes lie in zones.
    Normal(Normal),
}

/// A pointer to a block of zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hole {
    /// The kind of the object that owns the block.
    pub kind: u8,
    /// Level in the block tree. 0: content.
    pub level: u8,
    /// Bytes of the block. 0: never written.
    pub lsize: u32,
    /// 0: never written.
    pub birth: Txg,
}

/// A pointer that holds the block itself. It costs no space and has no checksum, because its parent's checksum covers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// The kind of the object that owns the block.
    pub kind: u8,
    /// Level in the block tree. 0: content.
    pub level: u8,
    /// Id of the compression of `payload`.
    pub compression: u8,
    /// Bytes of the block before compression.
    pub lsize: u32,
    /// The txg that wrote it: both births.
    pub birth: Txg,
    /// The stored form, 1 to [`EMBEDDED_BYTES_MAX`] bytes.
    pub payload: Vec<u8>,
}

/// The unique name of a block, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Address of the first copy.
    pub addr: Addr,
    /// The txg that wrote the stored bytes.
    pub birth: Txg,
}

impl Key {
    /// The name of the block that a pointer names.
    pub fn of(ptr: &Normal) -> Key {
        Key { addr: ptr.addrs[0], birth: ptr.block_birth }
    }
}

/// A pointer to stored bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normal {
    /// Addresses of the copies, filled from the first. The first is set.
    pub addrs: [Addr; COPIES_MAX],
    /// Of the stored bytes, by `checksum_kind`.
    pub checksum: [u8; 32],
    /// The function that computed `checksum`.
    pub checksum_kind: ChecksumKind,
    /// Id of the compression of the stored bytes.
    pub compression: u8,
    /// The kind of the object that owns the block.
    pub kind: u8,
    /// Level in the block tree. 0: content.
    pub level: u8,
    /// Bytes of the block before compression.
    pub lsize: u32,
    /// Stored bytes, exact.
    pub psize: u32,
    /// The txg that the content is from. A rewrite of the same content keeps it.
    pub logical_birth: Txg,
    /// The txg that wrote the stored bytes.
    pub block_birth: Txg,
    /// Level 0: 1. Above: allocated level-0 blocks below, or for dnode blocks allocated dnodes.
    pub fill: u64,
    /// It was made by a clone, so other pointers may name the same block. The first pointer of a shared block lacks it.
    pub is_clone: bool,
}

impl Default for BlockPtr {
    fn default() -> Self {
        BlockPtr::Hole(Hole::default())
    }
}

impl BlockPtr {
    /// Bytes of a stored pointer.
    pub const SIZE: usize = BlockPtrPhys::SIZE;

    /// Whether the block reads as zeros without stored bytes.
    pub fn is_hole(&self) -> bool {
        matches!(self, BlockPtr::Hole(_))
    }

    /// Bytes of the block before compression. 0: a hole that was never written.
    pub fn lsize(&self) -> u32 {
        match self {
            BlockPtr::Hole(hole) => hole.lsize,
            BlockPtr::Embedded(embedded) => embedded.lsize,
            BlockPtr::Normal(normal) => normal.lsize,
        }
    }

    /// The kind of the object that owns the block.
    pub fn kind(&self) -> u8 {
        match self {
            BlockPtr::Hole(hole) => hole.kind,
            BlockPtr::Embedded(embedded) => embedded.kind,
            BlockPtr::Normal(normal) => normal.kind,
        }
    }

    /// Level in the block tree. 0: content.
    pub fn level(&self) -> u8 {
        match self {
            BlockPtr::Hole(hole) => hole.level,
            BlockPtr::Embedded(embedded) => embedded.level,
            BlockPtr::Normal(normal) => normal.level,
        }
    }

    /// Allocated blocks (or dnodes) at and below this pointer.
    pub fn fill(&self) -> u64 {
        match self {
            BlockPtr::Hole(_) => 0,
            BlockPtr::Embedded(_) => 1,
            BlockPtr::Normal(normal) => normal.fill,
        }
    }

    /// The txg in which the content was written. A rewrite of the same content keeps it. 0: never written.
    pub fn logical_birth(&self) -> Txg {
        match self {
            BlockPtr::Hole(hole) => hole.birth,
            BlockPtr::Embedded(embedded) => embedded.birth,
            BlockPtr::Normal(normal) => normal.logical_birth,
        }
    }

    /// The txg that wrote the stored bytes. 0: never written.
    pub fn block_birth(&self) -> Txg {
        match self {
            BlockPtr::Normal(normal) => normal.block_birth,
            _ => self.logical_birth(),
        }
    }

    /// The earliest txg at which this pointer can be in the tree. A copy of the tree made before does not refer to the block through
    /// it.
    pub fn latest_birth(&self) -> Txg {
        self.logical_birth().max(self.block_birth())
    }

    /// Allocated bytes of all copies, rounded up to granules. 0 for holes and embedded blocks.
    pub fn allocated_bytes(&self) -> u64 {
        match self {
            BlockPtr::Normal(normal) => normal.allocated_bytes(),
            _ => 0,
        }
    }

    /// The stored form. Panics if an embedded payload is empty or larger than [`EMBEDDED_BYTES_MAX`].
    pub fn encode(&self) -> [u8; BlockPtr::SIZE] {
        let props = |compression: u8, kind: u8, level: u8| {
            u64::from(compression) | u64::from(kind) << 8 | u64::from(level) << 16
        };
        match self {
            BlockPtr::Hole(hole) => {
                let mut phys = BlockPtrPhys::zero();
                phys.props = props(0, hole.kind, hole.level);
                phys.lsize = hole.lsize;
                phys.logical_birth = hole.birth;
                phys.encode()
            }
            BlockPtr::Embedded(embedded) => {
                assert!(!embedded.payload.is_empty() && embedded.payload.len() <= EMBEDDED_BYTES_MAX);
                let mut raw = [0; BlockPtr::SIZE];
                for (slot, byte) in payload_offsets().zip(&embedded.payload) {
                    raw.get_mut(slot).into_iter().for_each(|place| *place = *byte);
                }
                let props = props(embedded.compression, embedded.kind, embedded.level)
                    | EMBEDDED
                    | (embedded.payload.len() as u64) << 24
                    | u64::from(embedded.lsize) << 32;
                raw[PROPS_AT..PROPS_AT + 8].copy_from_slice(&props.to_le_bytes());
                raw[BIRTH_AT..BIRTH_AT + 8].copy_from_slice(&embedded.birth.0.to_le_bytes());
                raw
            }
            BlockPtr::Normal(normal) => BlockPtrPhys {
                addrs: normal.addrs.map(Addr::raw),
                checksum: normal.checksum,
                props: props(normal.compression, normal.kind, normal.level)
                    | if normal.is_clone { SHARED } else { 0 }
                    | u64::from(normal.checksum_kind.id()) << 24,
                lsize: normal.lsize,
                psize: normal.psize,
                logical_birth: normal.logical_birth,
                block_birth: normal.block_birth,
                fill: normal.fill,
                reserved: [0; 4],
            }
            .encode(),
        }
    }

    /// Features whose absence makes a reader refuse the pointer.
    pub fn features(&self) -> impl Iterator<Item = Feature> + use<> {
        let (compression, has_two_births, is_clone) = match self {
            BlockPtr::Hole(_) => (None, false, false),
            BlockPtr::Embedded(embedded) => (Some(embedded.compression), false, false),
            BlockPtr::Normal(normal) => {
                (Some(normal.compression), normal.logical_birth != normal.block_birth, normal.is_clone)
            }
        };
        let has_new_codec = compression.is_some_and(|id| !Compression::id_needs_no_feature(id));
        [(Feature::Codecs, has_new_codec), (Feature::Births, has_two_births), (Feature::Shared, is_clone)]
            .into_iter()
            .filter_map(|(feature, is_used)| is_used.then_some(feature))
    }

    /// Validates a stored pointer. `at` names the place in errors.
    pub fn parse(raw: &[u8], at: &dyn std::fmt::Display) -> Result<BlockPtr, Corrupt> {
        let phys = BlockPtrPhys::decode(raw)
            .ok_or_else(|| Corrupt::new(at, "block pointer length", BlockPtr::SIZE, raw.len()))?;
        let byte = |shift: u32| (phys.props >> shift & 0xff) as u8;
        let (compression, kind, level) = (byte(0) & 0x7f, byte(8), byte(16) & 0x1f);
        if level >= LEVELS_MAX {
            return Err(Corrupt::new(at, "block pointer level", format_args!("below {LEVELS_MAX}"), level));
        }
        if phys.props & EMBEDDED != 0 {
            return parse_embedded(raw, &phys, (compression, kind, level), at);
        }
        if phys.props & !KNOWN_PROPS != 0 || phys.reserved != [0; 4] {
            return Err(Corrupt::new(at, "reserved bits of a block pointer", "zero", "an unknown feature"));
        }
        if phys.lsize > BLOCK_BYTES_MAX || phys.psize > BLOCK_BYTES_MAX {
            let found = format!("{} and {}", phys.lsize, phys.psize);
            return Err(Corrupt::new(
                at,
                "lsize and psize",
                format_args!("at most {BLOCK_BYTES_MAX}"),
                found,
            ));
        }
        if phys.addrs == [0; 3] {
            let is_clone = phys.props & SHARED != 0;
            if phys.psize != 0 || phys.fill != 0 || compression != 0 || phys.checksum != [0; 32] || is_clone {
                return Err(Corrupt::new(
                    at,
                    "hole",
                    "without stored bytes",
                    format_args!("psize {}", phys.psize),
                ));
            }
            return Ok(BlockPtr::Hole(Hole { kind, level, lsize: phys.lsize, birth: phys.logical_birth }));
        }
        let checksum_kind = ChecksumKind::from_id(byte(24))
            .ok_or_else(|| Corrupt::new(at, "checksum kind", "a known one", byte(24)))?;
        if phys.addrs[0] == 0 || (phys.addrs[1] == 0 && phys.addrs[2] != 0) {
            return Err(Corrupt::new(at, "addresses of a block pointer", "filled from the first", "a gap"));
        }
        if phys.psize == 0 || phys.lsize == 0 || phys.block_birth.0 == 0 || phys.logical_birth.0 == 0 {
            return Err(Corrupt::new(
                at,
                "sizes and births of a block pointer",
                "above 0",
                format_args!(
                    "psize {} lsize {} births {} {}",
                    phys.psize, phys.lsize, phys.block_birth, phys.logical_birth
                ),
            ));
        }
        let is_clone = phys.props & SHARED != 0;
        if is_clone && level > 0 {
            return Err(Corrupt::new(at, "level of a cloned block", 0, level));
        }
        if is_clone && phys.addrs[1] != 0 {
            return Err(Corrupt::new(at, "copies of a cloned block", 1, "more"));
        }
        Ok(BlockPtr::Normal(Normal {
            addrs: phys.addrs.map(Addr::from_raw),
            checksum: phys.checksum,
            checksum_kind,
            compression,
            kind,
            level,
            lsize: phys.lsize,
            psize: phys.psize,
            logical_birth: phys.logical_birth,
            block_birth: phys.block_birth,
            fill: phys.fill,
            is_clone,
        }))
    }
}

fn parse_embedded(
    raw: &[u8],
    phys: &BlockPtrPhys,
    (compression, kind, level): (u8, u8, u8),
    at: &dyn std::fmt::Display,
) -> Result<BlockPtr, Corrupt> {
    let len = (phys.props >> 24 & 0xff) as usize;
    let lsize = (phys.props >> 32) as u32;
    if len == 0 || len > EMBEDDED_BYTES_MAX || phys.props & 0xe0_0000 != 0 {
        return Err(Corrupt::new(
            at,
            "embedded payload",
            format_args!("1 to {EMBEDDED_BYTES_MAX} bytes"),
            len,
        ));
    }
    if lsize == 0 || lsize > BLOCK_BYTES_MAX {
        return Err(Corrupt::new(at, "embedded lsize", format_args!("1 to {BLOCK_BYTES_MAX}"), lsize));
    }
    let payload = payload_offsets().take(len).filter_map(|at| raw.get(at).copied()).collect();
    Ok(BlockPtr::Embedded(Embedded { kind, level, compression, lsize, birth: phys.logical_birth, payload }))
}

fn payload_offsets() -> impl Iterator<Item = usize> {
    (0..BlockPtr::SIZE)
        .filter(|at| !(PROPS_AT..PROPS_AT + 8).contains(at) && !(BIRTH_AT..BIRTH_AT + 8).contains(at))
}

impl BlockPtrPhys {
    fn zero() -> Self {
        BlockPtrPhys {
            addrs: [0; 3],
            checksum: [0; 32],
            props: 0,
            lsize: 0,
            psize: 0,
            logical_birth: Txg(0),
            block_birth: Txg(0),
            fill: 0,
            reserved: [0; 4],
        }
    }
}

impl Normal {
    /// Allocated bytes of all copies, rounded up to granules.
    pub fn allocated_bytes(&self) -> u64 {
        granule_bytes(u64::from(self.psize)) * self.copies().count() as u64
    }

    /// The addresses of the copies, first choice first.
    pub fn copies(&self) -> impl Iterator<Item = Addr> + '_ {
        self.addrs.iter().copied().filter(|addr| !addr.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrane_wire::ZoneSeq;

    fn normal() -> Normal {
        Normal {
            addrs: [Addr::new(ZoneSeq(7), 160), Addr::new(ZoneSeq(9), 4096), Addr::NONE],
            checksum: [7; 32],
            checksum_kind: ChecksumKind::Blake3,
            compression: 15,
            kind: 3,
            level: 2,
            lsize: 131072,
            psize: 4711,
            logical_birth: Txg(12),
            block_birth: Txg(11),
            fill: 99,
            is_clone: false,
        }
    }

    #[test]
    fn every_kind_comes_back() {
        let hole = Hole { kind: 1, level: 1, lsize: 4096, birth: Txg(5) };
        for ptr in [BlockPtr::default(), BlockPtr::Hole(hole), BlockPtr::Normal(normal())] {
            assert_eq!(BlockPtr::parse(&ptr.encode(), &"here").unwrap(), ptr);
        }
        assert_eq!(BlockPtr::default().encode(), [0; 128]);
        for len in 1..=EMBEDDED_BYTES_MAX {
            let payload: Vec<u8> = (1..=len as u8).collect();
            let ptr = BlockPtr::Embedded(Embedded {
                kind: 2,
                level: 0,
                compression: 16,
                lsize: 700,
                birth: Txg(3),
                payload,
            });
            assert_eq!(BlockPtr::parse(&ptr.encode(), &"here").unwrap(), ptr);
        }
    }

    /// A rewritten block is older than its bytes, a cloned one younger.
    #[test]
    fn births_are_independent() {
        for (logical, block) in [(1, 9), (9, 1), (9, 9)] {
            let ptr =
                BlockPtr::Normal(Normal { logical_birth: Txg(logical), block_birth: Txg(block), ..normal() });
            let back = BlockPtr::parse(&ptr.encode(), &"here").unwrap();
            assert_eq!(back, ptr);
            let births = (back.logical_birth().0, back.block_birth().0, back.latest_birth().0);
            assert_eq!(births, (logical, block, 9));
        }
        for (logical, block) in [(0, 9), (9, 0)] {
            let ptr =
                BlockPtr::Normal(Normal { logical_birth: Txg(logical), block_birth: Txg(block), ..normal() });
            assert!(BlockPtr::parse(&ptr.encode(), &"here").is_err());
        }
    }

    #[test]
    fn an_unknown_bit_is_refused() {
        let mut raw = BlockPtr::Normal(normal()).encode();
        raw[100] = 1;
        assert!(BlockPtr::parse(&raw, &"here").unwrap_err().to_string().contains("unknown feature"));
        let mut raw = BlockPtr::Normal(normal()).encode();
        raw[58] |= 0x40; // `encrypted`, reserved
        assert!(BlockPtr::parse(&raw, &"here").is_err());
    }

    #[test]
    fn only_normal_pointers_of_level_0_can_be_clones() {
        let addrs = [normal().addrs[0], Addr::NONE, Addr::NONE];
        let clone = Normal { addrs, level: 0, is_clone: true, logical_birth: Txg(15), ..normal() };
        let twice = BlockPtr::Normal(Normal { addrs: normal().addrs, ..clone.clone() });
        assert!(BlockPtr::parse(&twice.encode(), &"here").is_err(), "metadata is never shared");
        let clone = BlockPtr::Normal(clone);
        assert_eq!(BlockPtr::parse(&clone.encode(), &"here").unwrap(), clone);
        assert_eq!(clone.encode()[58], 0x20);
        assert!(clone.features().any(|feature| feature == Feature::Shared));
        let embedded =
            Embedded { kind: 7, level: 0, compression: 2, lsize: 1, birth: Txg(3), payload: vec![7] };
        for other in [
            BlockPtr::Normal(normal()),
            BlockPtr::Hole(Hole { kind: 7, level: 0, lsize: 512, birth: Txg(5) }),
            BlockPtr::Embedded(embedded),
        ] {
            let mut raw = other.encode();
            assert!(!other.features().any(|feature| feature == Feature::Shared));
            raw[58] |= 0x20;
            assert!(BlockPtr::parse(&raw, &"here").is_err(), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(raw in prop::collection::vec(any::<u8>(), 100..140)) {
            if let Ok(ptr) = BlockPtr::parse(&raw, &"here") {
                let _ = ptr.allocated_bytes();
            }
        }
    }
}
