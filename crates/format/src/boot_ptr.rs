//! Pointers to bootstrap blocks. They name places, so no table is needed to read them.

use crate::addr::{GRANULE, Place, ZONE_BYTES_MAX};
use crate::block_ptr::BLOCK_BYTES_MAX;
use terrane_wire::{Corrupt, layout};

layout! {
    /// The places of both copies of a bootstrap block, and its checksum and length.
    BootPtr, 112 bytes {
        0   places: [Place; 2],
        64  checksum: [u8; 32],
        96  len: u32,
        /// Bytes of the batch in the zone, with directory part and padding.
        100 padded: u32,
        104 reserved: u64,
    }
}

impl BootPtr {
    pub const NONE: BootPtr =
        BootPtr { places: [NO_PLACE; 2], checksum: [0; 32], len: 0, padded: 0, reserved: 0 };

    pub fn is_none(&self) -> bool {
        self.len == 0
    }

    /// Validates a stored pointer to a bootstrap block. Only then may its places be converted to addresses.
    pub fn judge(&self, at: &dyn std::fmt::Display) -> Result<(), Corrupt> {
        let fits = |place: &Place| {
            place.seq.0 >> 36 == 0 && place.offset.is_multiple_of(GRANULE) && place.offset < ZONE_BYTES_MAX
        };
        if self.places.iter().all(fits) && self.len <= BLOCK_BYTES_MAX && self.padded <= BLOCK_BYTES_MAX * 2 {
            return Ok(());
        }
        Err(Corrupt::new(
            at,
            "pointer to a bootstrap block",
            "places and sizes in range",
            format_args!("{:?}", self.places),
        ))
    }

    /// The copies that exist. A pool of very few zones may have both in one zone.
    pub fn copies(&self) -> impl Iterator<Item = Place> + '_ {
        self.places.iter().copied().filter(|place| place.seq.0 != 0)
    }
}

const NO_PLACE: Place = Place {
    device: terrane_wire::DeviceIdx(0),
    reserved: 0,
    zone: terrane_wire::ZoneIdx(0),
    offset: 0,
    seq: terrane_wire::ZoneSeq(0),
    reserved2: 0,
};
