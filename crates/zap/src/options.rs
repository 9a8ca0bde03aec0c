//! Options of a ZAP: how it is made, and how far it may grow.

use crate::error::Error;
use crate::fat;
use crate::hash::Flags;
use crate::key::NAME_BYTES_MAX;
use crate::norm::NormFlags;
use crate::slots;
use crate::value::CountBits;
use terrane_wire::Corrupt;

/// How a ZAP is made, and how far it may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZapOptions {
    /// Start value of every hash; not 0, and constant for the ZAP's life. Used only at creation.
    pub salt: u64,
    /// Size in bytes above which a micro or tiny ZAP becomes fat; in steps of 512, up to 1 MiB.
    pub micro_max_bytes: usize,
    /// Whether entries that no micro ZAP can hold make the ZAP tiny. If false, such a ZAP becomes fat at once. Tiny
    /// ZAPs are read and changed in either case.
    pub tiny: bool,
    /// Block size of a fat ZAP as a power of two, 9..=20. Used only when a ZAP becomes fat.
    pub fat_block_shift: u32,
    /// With any flag, the ZAP is fat from the beginning. Used only at creation.
    pub flags: Flags,
    /// How names are normalized; not allowed for keys that are words. Used only at creation.
    pub norm: NormFlags,
    /// Maximum bytes of a name with its NUL: 256, or up to 1024 in a directory with long names.
    pub name_bytes_max: usize,
    /// Where the first word of each value says how many words follow it. Slots may then hold values of different
    /// lengths: shorter ones are padded with zeros. `None`: values of different lengths make the ZAP fat.
    pub padding: Option<CountBits>,
}

impl ZapOptions {
    /// OpenZFS's defaults: micro up to 128 KiB, then fat in blocks of 16 KiB, never tiny.
    pub fn new(salt: u64) -> Self {
        ZapOptions {
            salt,
            micro_max_bytes: 131_072,
            tiny: false,
            fat_block_shift: 14,
            flags: Flags::NONE,
            norm: NormFlags::NONE,
            name_bytes_max: NAME_BYTES_MAX,
            padding: None,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Error<Corrupt>> {
        let shifts = fat::header::BLOCK_SHIFT_MIN..=fat::header::BLOCK_SHIFT_MAX;
        if !shifts.contains(&self.fat_block_shift) {
            return Err(Error::Refused { what: "fat_block_shift is not 9 to 20" });
        }
        Ok(())
    }

    /// Maximum size of a micro or tiny ZAP in bytes.
    pub(crate) fn slots_bytes_max(&self) -> usize {
        self.micro_max_bytes.min(slots::BYTES_LIMIT).next_multiple_of(slots::GROWTH_BYTES)
    }
}
