//! How a ZAP is made, and how far it may grow.

use crate::error::Error;
use crate::fat;
use crate::hash::Flags;
use crate::key::NAME_BYTES_MAX;
use crate::norm::NormFlags;
use crate::slots;
use terrane_wire::Corrupt;

/// How a ZAP is made, and how it may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZapOptions {
    /// Starts every hash; not 0, constant for the ZAP's life. Only used when it is created.
    pub salt: u64,
    /// Bytes beyond which a micro or tiny ZAP becomes fat; counts in steps of 512, up to 1 MiB.
    pub micro_max_bytes: usize,
    /// Makes tiny ZAPs of entries that no micro ZAP can hold. Where it is false such a ZAP becomes fat at once; those
    /// that are tiny are read and changed all the same.
    pub tiny: bool,
    /// A fat ZAP's blocks have 2 to this power bytes, 9..=20. Only used when it becomes fat.
    pub fat_block_shift: u32,
    /// With any flag the ZAP is fat from the beginning. Only used when it is created.
    pub flags: Flags,
    /// How names are normalized; not for keys that are words. Only used when it is created.
    pub norm: NormFlags,
    /// Bytes of a name with its NUL: 256, or up to 1024 in a directory with long names.
    pub name_bytes_max: usize,
}

impl ZapOptions {
    /// The defaults, as OpenZFS has them: micro up to 128 KiB, then fat in blocks of 16 KiB, and never tiny.
    pub fn new(salt: u64) -> Self {
        ZapOptions {
            salt,
            micro_max_bytes: 131_072,
            tiny: false,
            fat_block_shift: 14,
            flags: Flags::NONE,
            norm: NormFlags::NONE,
            name_bytes_max: NAME_BYTES_MAX,
        }
    }

    pub(crate) fn judge(&self) -> Result<(), Error<Corrupt>> {
        let shifts = fat::header::BLOCK_SHIFT_MIN..=fat::header::BLOCK_SHIFT_MAX;
        if !shifts.contains(&self.fat_block_shift) {
            return Err(Error::Options { what: "fat_block_shift should be 9 to 20" });
        }
        Ok(())
    }

    /// Bytes that a micro or tiny ZAP may have.
    pub(crate) fn slots_bytes_max(&self) -> usize {
        self.micro_max_bytes.min(slots::BYTES_LIMIT).next_multiple_of(slots::GROWTH_BYTES)
    }
}
