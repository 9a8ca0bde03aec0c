//! Uberblocks: the roots of committed txgs.
//!
//! They are appended to the anchor in use, one per committed txg, in two copies: see [`label`](crate::label).

use crate::boot_ptr::BootPtr;
use crate::label::{FORMAT_VERSION, Label};
use crate::seal::{Seed, seal};
use terrane_wire::{Txg, layout};

/// `magic` of an [`UberblockPhys`].
pub const UBERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"TERRUBER");
/// Set at export: nothing was written after this uberblock.
pub const UBERBLOCK_CLEAN: u32 = 1;
/// Copies of an uberblock in one write.
pub const UBERBLOCK_COPIES: usize = 2;
/// Counters stay far below 2^64. A larger value is corrupt, and adding to it would overflow.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

layout! {
    /// One copy of an uberblock. A commit appends two. `FORMAT.md` section "Uberblocks".
    UberblockPhys, 256 bytes {
        /// [`UBERBLOCK_MAGIC`].
        0   magic: u64,
        /// [`FORMAT_VERSION`].
        8   version: u32,
        /// [`UBERBLOCK_CLEAN`], or 0. Other bits are ignored.
        12  flags: u32,
        /// Id of the pool, as in the label.
        16  pool: u64,
        /// `generation` of the label under which it was written.
        24  generation: u64,
        /// As in the label of its anchor.
        32  anchor_generation: u64,
        /// Incremented by every writable import.
        40  incarnation: u64,
        /// The committed txg.
        48  txg: Txg,
        /// The oldest txg that is still whole. Nothing older is ever imported.
        56  oldest: Txg,
        /// Nanoseconds since 1970.
        64  time_ns: u64,
        /// Sequence numbers below this one may be in use.
        72  lease_seq: u64,
        /// Txg numbers below this one may be in use.
        80  lease_txg: u64,
        /// The txg's commit record.
        88  record: BootPtr,
        /// The machine that wrote it. 0: unknown.
        200 host: u64,
        /// The oldest incarnation whose intent log is not replayed. 0: none.
        208 log_incarnation: u64,
        /// A bit for each device that missed a commit, by index in the device table.
        216 stale_devices: u64,
        /// Ignored.
        224 reserved: [u64; 2],
        /// Over the rest.
        240 seal: [u8; 16],
    }
}

/// The root of one committed txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// Set at export: nothing was written after this uberblock.
    pub clean: bool,
    /// `generation` of the label under which it was written.
    pub generation: u64,
    /// As in the label of its anchor.
    pub anchor_generation: u64,
    /// Incremented by every writable import.
    pub incarnation: u64,
    /// The committed txg.
    pub txg: Txg,
    /// The oldest txg that is still whole. Nothing older is ever imported.
    pub oldest: Txg,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Zone sequence numbers below this one may be in use.
    pub lease_seq: u64,
    /// Txg numbers below this one may be in use.
    pub lease_txg: u64,
    /// The txg's commit record.
    pub record: BootPtr,
    /// The machine that wrote it. 0: unknown.
    pub host: u64,
    /// It names what this version does not support: a log to be replayed, or devices that missed a commit.
    pub has_unknown_features: bool,
}

impl Uberblock {
    /// Two slots of `slot` bytes, to be written at `offset` of the anchor in one write.
    pub fn encode(&self, label: &Label, anchor: u32, offset: u64, slot: usize) -> Vec<u8> {
        let mut raw = Vec::with_capacity(slot * UBERBLOCK_COPIES);
        let mut at = offset;
        for copy in 1..=UBERBLOCK_COPIES {
            let mut phys = UberblockPhys {
                magic: UBERBLOCK_MAGIC,
                version: FORMAT_VERSION,
                flags: if self.clean { UBERBLOCK_CLEAN } else { 0 },
                pool: label.pool,
                generation: self.generation,
                anchor_generation: self.anchor_generation,
                incarnation: self.incarnation,
                txg: self.txg,
                oldest: self.oldest,
                time_ns: self.time_ns,
                lease_seq: self.lease_seq,
                lease_txg: self.lease_txg,
                record: self.record,
                host: self.host,
                log_incarnation: 0,
                stale_devices: 0,
                reserved: [0; 2],
                seal: [0; 16],
            };
            phys.seal = seal(uber_seed(label, anchor, at), &[&phys.encode()[..UberblockPhys::SIZE - 16]]);
            raw.extend_from_slice(&phys.encode());
            raw.resize(copy * slot, 0);
            at += slot as u64;
        }
        raw
    }

    /// The anchor generation that a slot claims, if it looks like an uberblock. Nothing is verified.
    pub fn anchor_generation_of(raw: &[u8]) -> Option<u64> {
        let phys = UberblockPhys::decode(raw)?;
        (phys.magic == UBERBLOCK_MAGIC).then_some(phys.anchor_generation)
    }

    /// The uberblock in the slot at `offset` of an anchor, if it is intact and of the label's anchor generation.
    pub fn parse(raw: &[u8], label: &Label, anchor: u32, offset: u64) -> Option<Uberblock> {
        let phys = UberblockPhys::decode(raw)?;
        let sealed = raw.get(..UberblockPhys::SIZE - 16)?;
        let counters = [
            phys.generation,
            phys.anchor_generation,
            phys.incarnation,
            phys.txg.0,
            phys.oldest.0,
            phys.lease_txg,
        ];
        let ours = phys.magic == UBERBLOCK_MAGIC
            && phys.version == FORMAT_VERSION
            && phys.pool == label.pool
            && phys.anchor_generation == label.anchor_generation
            && counters.iter().all(|counter| *counter < COUNTER_MAX)
            && phys.lease_seq >> 36 == 0
            && phys.seal == seal(uber_seed(label, anchor, offset), &[sealed]);
        ours.then_some(Uberblock {
            clean: phys.flags & UBERBLOCK_CLEAN != 0,
            generation: phys.generation,
            anchor_generation: phys.anchor_generation,
            incarnation: phys.incarnation,
            txg: phys.txg,
            oldest: phys.oldest,
            time_ns: phys.time_ns,
            lease_seq: phys.lease_seq,
            lease_txg: phys.lease_txg,
            record: phys.record,
            host: phys.host,
            has_unknown_features: phys.log_incarnation != 0 || phys.stale_devices != 0,
        })
    }
}

fn uber_seed(label: &Label, anchor: u32, offset: u64) -> Seed {
    Seed {
        pool: label.pool,
        scope: label.device << 1 | u64::from(anchor),
        offset,
        incarnation: label.anchor_generation,
    }
}
