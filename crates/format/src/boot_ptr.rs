//! Pointers to bootstrap blocks. They name places, so no table is needed to read them.

use crate::addr::{GRANULE, Place, ZONE_BYTES_MAX};
use crate::block_ptr::BLOCK_BYTES_MAX;
use terrane_wire::{Corrupt, layout};

/// Least stored bytes of a bootstrap block: its compression and its logical size.
pub const BOOT_BYTES_MIN: u32 = 8;

layout! {
    /// The places of both copies of a bootstrap block, and its checksum and length.
    BootPtr, 112 bytes {
        /// Places of two copies with the same bytes. Sequence number 0: the copy does not exist.
        0   places: [Place; 2],
        /// BLAKE3 of the stored bytes.
        64  checksum: [u8; 32],
        /// Stored bytes. 0: there is no block.
        96  len: u32,
        /// Bytes of the batch in the zone, with directory part and padding.
        100 padded: u32,
        /// Ignored.
        104 reserved: u64,
    }
}

impl BootPtr {
    /// No block.
    pub const NONE: BootPtr =
        BootPtr { places: [NO_PLACE; 2], checksum: [0; 32], len: 0, padded: 0, reserved: 0 };

    /// Whether there is no block.
    pub fn is_none(&self) -> bool {
        self.len == 0
    }

    /// Validates a stored pointer to a bootstrap block. Only then may its places be converted to addresses.
    pub fn validate(&self, at: &dyn std::fmt::Display) -> Result<(), Corrupt> {
        let fits = |place: &Place| {
            place.seq.0 >> 36 == 0 && place.offset.is_multiple_of(GRANULE) && place.offset < ZONE_BYTES_MAX
        };
        let len_fits = self.is_none() || (BOOT_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&self.len);
        if self.places.iter().all(fits) && len_fits && self.padded <= BLOCK_BYTES_MAX * 2 {
            return Ok(());
        }
        Err(Corrupt::new(
            at,
            "pointer to a bootstrap block",
            "in range",
            format_args!("len {}, padded {}, places {:?}", self.len, self.padded, self.places),
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

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::ZoneSeq;

    #[test]
    fn pointers_out_of_range_are_refused() {
        let place = Place { seq: ZoneSeq(9), offset: 4096, ..NO_PLACE };
        let good = BootPtr { places: [place, NO_PLACE], len: BOOT_BYTES_MIN, ..BootPtr::NONE };
        let max = BLOCK_BYTES_MAX;
        for (len, padded, is_valid) in [
            (0, 0, true),
            (1, 0, false),
            (BOOT_BYTES_MIN - 1, 0, false),
            (BOOT_BYTES_MIN, 2 * max, true),
            (max, 0, true),
            (max + 1, 0, false),
            (max, 2 * max + 1, false),
        ] {
            let found = BootPtr { len, padded, ..good }.validate(&"here");
            assert_eq!(found.is_ok(), is_valid, "len {len}, padded {padded}");
        }
        for bad in [
            Place { seq: ZoneSeq(1 << 36), ..place },
            Place { offset: 4097, ..place },
            Place { offset: ZONE_BYTES_MAX, ..place },
        ] {
            assert!(BootPtr { places: [place, bad], ..good }.validate(&"here").is_err(), "{bad:?}");
        }
    }
}
