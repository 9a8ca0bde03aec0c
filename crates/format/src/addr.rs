//! Addresses: where a block was born, for ever, and places: where bytes are now.
//!
//! An [`Addr`] is a birthplace (ZFS: DVA): the sequence number of the zone filling into which a block was first written, and its offset
//! there. It never changes, so no pointer is rewritten when the collector moves the bytes. A [`Place`] is a current position on a
//! device. Only bootstrap blocks, which never move, are named by it.
//!
//! Invariant: (address, birth txg) never repeats in the life of a pool.

use std::fmt;
use terrane_wire::{DeviceIdx, Field, ZoneIdx, ZoneSeq, layout};

/// Bytes in a granule, the unit of offsets and of space accounting.
pub const GRANULE: u64 = 16;
/// Bits of an address that hold the offset in granules.
pub const OFFSET_BITS: u32 = 28;
/// The largest zone that 28 bits of granules can address, in bytes.
pub const ZONE_BYTES_MAX: u64 = GRANULE << OFFSET_BITS;
/// The largest number that 36 bits hold. No filling has it: see [`is_valid_seq`].
pub const SEQ_MAX: u64 = (1 << (64 - OFFSET_BITS)) - 1;

/// Whether a written zone can have this number. `SEQ_MAX` itself is never given, so each number has a successor.
pub fn is_valid_seq(seq: ZoneSeq) -> bool {
    (1..SEQ_MAX).contains(&seq.0)
}

/// `bytes` rounded up to whole granules, in bytes: the allocated size of a block of that stored size.
pub fn granule_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(GRANULE)
}

/// A birthplace: 36 bits of zone sequence, 28 bits of offset in granules. 0 is "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(u64);

impl Addr {
    /// No block. As stored: 0.
    pub const NONE: Addr = Addr(0);

    /// The address of `offset` bytes (a multiple of the granule) into the zone `seq`.
    pub fn new(seq: ZoneSeq, offset: u64) -> Addr {
        assert!(seq.0 > 0 && seq.0 <= SEQ_MAX && offset.is_multiple_of(GRANULE) && offset < ZONE_BYTES_MAX);
        Addr((seq.0 << OFFSET_BITS) | (offset / GRANULE))
    }

    /// The address in stored bits. Nothing is validated: see [`can_hold`](Addr::can_hold).
    pub fn from_raw(raw: u64) -> Addr {
        Addr(raw)
    }

    /// The stored bits.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Whether it is [`Addr::NONE`].
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether a block of that stored size can have been born there.
    pub fn can_hold(self, psize: u32) -> bool {
        is_valid_seq(self.seq()) && self.offset() + granule_bytes(u64::from(psize)) <= ZONE_BYTES_MAX
    }

    /// The zone filling in which the block was born.
    pub fn seq(self) -> ZoneSeq {
        ZoneSeq(self.0 >> OFFSET_BITS)
    }

    /// Offset in the birth zone in granules.
    pub fn granule(self) -> u32 {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as u32
    }

    /// Offset in the birth zone in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.granule()) * GRANULE
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {} granule {}", self.seq(), self.granule())
    }
}

impl Field for Addr {
    const SIZE: usize = 8;
    fn get(raw: &[u8]) -> Option<Self> {
        u64::get(raw).map(Addr)
    }
    fn put(&self, raw: &mut [u8]) {
        self.0.put(raw);
    }
}

layout! {
    /// A position on a device, with the filling that is expected there. `FORMAT.md` section "Places".
    Place, 32 bytes {
        /// Index in the label's device table.
        0  device: DeviceIdx,
        /// Ignored.
        2  reserved: u16,
        /// The physical zone: 2 or more, because 0 and 1 are anchors.
        4  zone: ZoneIdx,
        /// Offset in the zone, in bytes.
        8  offset: u64,
        /// The expected filling of that zone. Bytes of any other filling are stale.
        16 seq: ZoneSeq,
        /// Ignored.
        24 reserved2: u64,
    }
}

impl Place {
    /// The place `offset` bytes into a physical zone, where the filling `seq` is expected.
    pub fn new(device: DeviceIdx, zone: ZoneIdx, offset: u64, seq: ZoneSeq) -> Place {
        Place { device, reserved: 0, zone, offset, seq, reserved2: 0 }
    }

    /// The address under which the zone's directory lists this place.
    pub fn addr(&self) -> Addr {
        Addr::new(self.seq, self.offset)
    }
}

impl Default for Place {
    fn default() -> Self {
        Place::new(DeviceIdx(0), ZoneIdx(0), 0, ZoneSeq(0))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} zone {} granule {}", self.device, self.zone, self.offset / GRANULE)
    }
}
