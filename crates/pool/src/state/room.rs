//! How much collection can win from a zone.

use terrane_format::addr::granule_bytes;

/// Collection begins when room falls under what must be kept and one part of so many of the pool, but not less than so many bytes (of a
/// small pool a 64th) nor more than so many: enough for groups to be large, and little enough for zones to ripen.
pub(crate) const AHEAD_PART: u64 = 1024;
pub(crate) const AHEAD_BYTES_MIN: u64 = 8 << 20;
pub(crate) const AHEAD_BYTES_MAX: u64 = 1 << 30;
pub(crate) const AHEAD_PART_SMALL: u64 = 64;
/// A zone with less garbage than one part of so many is not worth collecting.
pub(crate) const GARBAGE_PART_MIN: u64 = 32;

/// What can be counted on of a zone: without header, the tail that no block fits, and directory parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yield {
    pub(crate) unit: u64,
    pub(crate) largest_block: u64,
}

impl Yield {
    #[cfg(test)]
    pub fn for_tests(unit: u64, largest_block: u64) -> Yield {
        Yield { unit, largest_block }
    }

    /// Of a zone that takes `capacity` bytes.
    pub fn of(&self, capacity: u64) -> u64 {
        self.of_all(capacity, 1)
    }

    /// Of `zones` zones that take `capacity` bytes together.
    pub(crate) fn of_all(&self, capacity: u64, zones: u64) -> u64 {
        let tail = granule_bytes(self.largest_block.min(capacity / zones.max(1) / 4)) + 3 * self.unit;
        capacity.saturating_sub(zones * tail + capacity / 64)
    }
}

/// What is kept ahead, in bytes, of so many zones that can be counted on to take `per_zone` bytes each.
pub(crate) fn ahead_bytes(per_zone: u64, zones: u64, data_slots: u64) -> u64 {
    let all = zones * per_zone;
    let small = all / AHEAD_PART_SMALL;
    let ahead = (per_zone / 4).max(all / AHEAD_PART).max(AHEAD_BYTES_MIN.min(small));
    // What is left in the zones of several slots is room only for what goes there: with less than a zone for each of them, what finds
    // none goes among others, and that is copied again and again.
    let ahead = ahead.min(AHEAD_BYTES_MAX) + per_zone * (data_slots - 1);
    // A victim's copies take room before its end gives any: where zones are large that is more than groups take, and who writes would
    // wait for most of each victim.
    ahead.max(per_zone.min(small) / 2)
}
