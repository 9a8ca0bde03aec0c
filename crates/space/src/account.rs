//! Free space of a pool, computed from one snapshot of its inputs.
//!
//! Free space is counted in bytes that zones can be counted on to take (their *yield*). 7 % of all zones are kept from users. The minimum
//! of that reserve makes collection sure to succeed. It covers one zone into which a victim is copied, and what commits take meanwhile.
//! It also covers garbage that is too thin to be collected (a 32nd of every zone).
//!
//! Users may write while empty and open zones hold more than one victim and the commits need. Below that, writers queue FIFO, and the
//! collector frees space in small steps. A piece `c` of a victim with live share `r` frees `c x (1-r)/r`. Writers get that long before
//! the victim's zone is reset, because one zone's worth is always kept for exactly this.
//!
//! Invariant: frees may use the GC reserve. Nothing may use the space that commits need.

use crate::policy::ZoneSupply;
use terrane_format::addr::granule_bytes;

/// The low watermark of collection is a margin above the space that must be kept. The margin is this fraction of the pool, between
/// these two bounds; on a small pool the lower bound is a 64th. That is enough for large txgs, and little enough that zones gather
/// garbage first.
const LOW_WATERMARK_DIVISOR: u64 = 1024;
const LOW_WATERMARK_BYTES_MIN: u64 = 8 << 20;
const LOW_WATERMARK_BYTES_MAX: u64 = 1 << 30;
const LOW_WATERMARK_DIVISOR_SMALL: u64 = 64;
/// A zone with a smaller fraction of garbage than this is not worth collecting.
pub const GARBAGE_MIN_DIVISOR: u64 = 32;
/// Bytes that the commits take while one victim is collected. Enough unless zones are small.
const COMMIT_BYTES: u64 = 8 << 20;
/// Up to this many slots, roles share slots.
pub const SHARED_SLOTS: usize = 3;
/// Fraction of the space kept for frees that write-backs of the kernel's cache may use. The rest stays for frees, which take little
/// space and give back more when their txg commits. Write-backs never use space that the collector and commits count on.
const WRITE_BACK_DIVISOR: u64 = 2;
/// Fraction of the rest that writes into reserved ranges may use. Their data is counted already. This is for their metadata, and for
/// records that are rewritten in pieces before their txg commits.
const RESERVED_DIVISOR: u64 = 2;
/// When no zone is empty, metadata keeps at most this fraction of a zone.
const METADATA_DIVISOR: u64 = 8;
/// Metadata keeps at least this fraction of a zone and at least these bytes. In between it keeps this many times what a txg brought
/// lately.
const METADATA_MIN_DIVISOR: u64 = 64;
const METADATA_BYTES_MIN: u64 = 1 << 20;
const METADATA_TXGS: u64 = 4;
/// The recent maximum decays by this fraction with each further txg.
const METADATA_DECAY_DIVISOR: u64 = 16;

/// The bytes of a zone that can be counted on: without header, the tail that no block fits, and directory parts.
#[derive(Clone, Copy, Debug)]
pub struct Yield {
    /// Write unit, in bytes.
    pub unit: u64,
    /// Stored bytes of the largest block. A quarter of the zone counts instead if that is less.
    pub largest_block: u64,
}

impl Yield {
    /// The yield of a zone of `capacity` bytes.
    pub fn of(&self, capacity: u64) -> u64 {
        self.of_all(capacity, 1)
    }

    /// The yield of `zones` zones with `capacity` bytes together.
    pub fn of_all(&self, capacity: u64, zones: u64) -> u64 {
        let tail = granule_bytes(self.largest_block.min(capacity / zones.max(1) / 4)) + 3 * self.unit;
        capacity.saturating_sub(zones * tail + capacity / 64)
    }
}

/// The margin of the low watermark, in bytes, for `zones` zones that yield `per_zone` bytes each.
fn margin_bytes(per_zone: u64, zones: u64, data_slots: u64) -> u64 {
    let all = zones * per_zone;
    let small = all / LOW_WATERMARK_DIVISOR_SMALL;
    let margin = (per_zone / 4).max(all / LOW_WATERMARK_DIVISOR).max(LOW_WATERMARK_BYTES_MIN.min(small));
    // Space left in the zone of a slot serves only that slot. With less than one zone per slot, blocks go to other slots' zones, mix
    // there, and are copied again and again.
    let margin = margin.min(LOW_WATERMARK_BYTES_MAX) + per_zone * (data_slots - 1);
    // A victim's copies take space before its end frees any. With large zones that is more than txgs take, and writers would wait
    // during most of each victim.
    margin.max(per_zone.min(small) / 2)
}

/// Zone sizes, and what commits take. Cheap enough to be evaluated for each block.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The yield of each zone.
    pub zone_yield: Yield,
    /// Zone capacity of the device with the largest zones, in bytes.
    pub largest_zone: u64,
    /// Stored bytes of as many table sections as one txg may rewrite in a hurry.
    pub sections_bytes: u64,
    /// Bytes that a sync may write although no operation has reserved them, both copies included.
    pub unreserved_bytes: u64,
}

impl Sizes {
    /// The yield of a zone of the largest size, in bytes.
    pub fn per_zone(&self) -> u64 {
        self.zone_yield.of(self.largest_zone)
    }

    /// Bytes of both copies of the sections that a txg may rewrite in a hurry.
    pub fn hurried_bytes(&self) -> u64 {
        2 * self.sections_bytes
    }

    /// Bytes kept for commits while a victim is copied, both copies of hurried sections included.
    pub fn commit_bytes(&self) -> u64 {
        COMMIT_BYTES.min(3 * self.per_zone()) + self.hurried_bytes() + self.unreserved_bytes
    }

    /// Below this number of empty zones, no zone is opened for better placement alone, and txgs that can be rolled back to do not hold
    /// emptied zones.
    pub fn min_empty_zones(&self) -> usize {
        1 + self.commit_bytes().div_ceil(self.per_zone().max(1)) as usize
    }

    /// How freely placement may use `empty` zones. Ends of zones stay unused only while empty zones exceed all promises. So unused ends
    /// never cause a shortage.
    pub fn zone_supply(&self, empty: usize, reserved_bytes: u64, live: u64, limit: u64) -> ZoneSupply {
        let low = self.min_empty_zones();
        let reserved = reserved_bytes.div_ceil(self.per_zone().max(1)) as usize;
        match empty > low {
            true if empty > 2 * low + reserved && live < limit / 8 * 7 => ZoneSupply::Plenty,
            true if empty > low + reserved => ZoneSupply::Ample,
            true => ZoneSupply::Enough,
            false => ZoneSupply::Short,
        }
    }
}

/// The space that is left to metadata in each zone that is open for it.
#[derive(Clone, Copy, Debug)]
pub struct MetadataReserve {
    /// Zone capacity, in bytes.
    pub zone_bytes: u64,
    /// Bytes of one copy of metadata that txgs brought lately.
    pub recent_txg_bytes: u64,
}

impl MetadataReserve {
    /// Bytes of each open zone that are left to metadata when no zone is empty. Mostly unused, they cost more copying than anything
    /// else on a small, nearly full pool. So no more is kept than txgs bring.
    pub fn reserved(&self) -> u64 {
        let least = METADATA_BYTES_MIN.max(self.zone_bytes / METADATA_MIN_DIVISOR);
        least.max(METADATA_TXGS * self.recent_txg_bytes).min(self.zone_bytes / METADATA_DIVISOR)
    }

    /// Bytes of the next zone, of `next_bytes`, that metadata will need soon. `left` is what its own zone has beside the kept space.
    /// The result grows while metadata fills the last eighth of a zone before the kept space, and is all of `next_bytes` at 0.
    pub fn needed_of_next_zone(&self, left: u64, next_bytes: u64) -> u64 {
        let soon = (self.zone_bytes / METADATA_DIVISOR).max(1);
        let left = left.min(soon);
        next_bytes - (u128::from(next_bytes) * u128::from(left) / u128::from(soon)) as u64
    }

    /// Notes the metadata bytes of one txg.
    pub fn note(&mut self, bytes: u64) {
        self.recent_txg_bytes =
            bytes.max(self.recent_txg_bytes - self.recent_txg_bytes / METADATA_DECAY_DIVISOR);
    }
}

/// The free space on a device whose space counts.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSpace {
    /// Capacity of its smallest zones, in bytes.
    pub zone_bytes: u64,
    /// Number of empty zones.
    pub empty: u64,
    /// Bytes that its open zones still take, without what is kept for metadata.
    pub open_bytes: u64,
    /// Free bytes of the file system below the device.
    pub host_free_bytes: u64,
}

/// Open zones, by the slots that hold them.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Slots of all roles, without extra slots.
    pub all: u64,
    /// Slots for data, without extra slots.
    pub data: u64,
    /// Extra slots that would take data now if zones were plenty.
    pub extra_wanted: u64,
    /// Free bytes in open zones to which data does not go.
    pub non_data_bytes: u64,
    /// Bytes of zones reserved for a copy of metadata that has nearly filled its own zone; grows while it does. Without them, data
    /// would find only zones of metadata and survivors, and mix with their blocks. A slot that also takes survivors is left out: it
    /// fills so often that writers would stall each time, and a zone is kept for survivors already.
    pub metadata_bytes: u64,
}

/// Zones with content that will be reclaimed, on devices whose space counts.
#[derive(Clone, Copy, Debug)]
pub struct ResidentZones {
    /// Number of them.
    pub zones: u64,
    /// Capacity of all of them, in bytes.
    pub capacity: u64,
    /// Live bytes in zones that will not be reclaimed.
    pub unreclaimable_bytes: u64,
}

/// Emptied zones that will be reset when their txg is old enough. Zones that a reader holds, or that could not be read, are not
/// counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct PendingResets {
    /// Number of them.
    pub zones: u64,
    /// Bytes that they yield after their reset.
    pub bytes: u64,
}

/// The space that collection frees.
#[derive(Clone, Copy, Debug, Default)]
pub struct CollectionGains {
    /// Bytes that the current victim has freed so far. `None`: there is no victim.
    pub victim_freed: Option<u64>,
    /// Bytes still to be freed by moving the rest of the victim.
    pub victim_to_free: u64,
    /// Bytes still to be copied to move the rest of the victim.
    pub victim_to_copy: u64,
    /// Bytes that pending resets will free.
    pub pending_reset_bytes: u64,
}

impl CollectionGains {
    /// Bytes that the current victim has freed so far.
    pub fn freed_so_far(&self) -> u64 {
        self.victim_freed.unwrap_or(0)
    }

    /// Bytes freed by victims that are not available yet.
    pub fn pending_bytes(&self) -> u64 {
        self.freed_so_far() + self.pending_reset_bytes
    }
}

/// A snapshot of all inputs of the space computation.
#[derive(Clone, Debug)]
pub struct SpaceAccount {
    /// Zone sizes, and what commits take.
    pub sizes: Sizes,
    /// Live bytes of all zones.
    pub live: u64,
    /// Bytes of zones that the intent log has.
    pub log_bytes: u64,
    /// Empty zones of all devices, also of those whose space does not count.
    pub empty_zones: usize,
    /// The devices whose space counts.
    pub devices: Vec<DeviceSpace>,
    /// Open zones, by the slots that hold them.
    pub slots: Slots,
    /// Zones that will be reclaimed.
    pub residents: ResidentZones,
    /// Emptied zones that will be reset.
    pub pending_resets: PendingResets,
    /// The space that collection frees.
    pub gains: CollectionGains,
}

/// Limits for users, from the current free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Live bytes at which `ENOSPC` begins for users.
    pub live: u64,
    /// The same for write-backs of the kernel's cache.
    pub live_write_backs: u64,
    /// The same for writes into reserved ranges.
    pub live_reserved: u64,
    /// The same for frees: the highest limit.
    pub live_frees: u64,
    /// Bytes that can be written before the collector must free space.
    pub writable: u64,
    /// The same for frees.
    pub writable_frees: u64,
    /// Live and writable bytes that limit frees, regardless of the file systems below the devices.
    pub frees_without_host: (u64, u64),
    /// Usable zones, counted in zones of the largest size.
    pub zones: u64,
    /// The margin of the collector's low watermark, in bytes.
    pub low_watermark_margin: u64,
}

/// What the bytes of zones are kept for, and what users can fill. The parts add up to `zones`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceParts {
    /// Capacity of all usable zones, and live bytes in zones that will not be reclaimed.
    pub zones: u64,
    /// Headers and directories of zones, and their ends that no block fits.
    pub zone_overhead: u64,
    /// Zones of the intent log.
    pub log: u64,
    /// What the file systems below the devices lack.
    pub lacking_on_host: u64,
    /// One zone for the copies of a victim, and garbage that is too thin to be collected.
    pub collection: u64,
    /// What commits take while a victim is copied.
    pub commits: u64,
    /// Zones that metadata fills beside those of data.
    pub metadata: u64,
    /// Unused halves of open zones.
    pub open_zones: u64,
    /// The rest of the reserve. Frees, write-backs and writes into reserved ranges use it when users are refused.
    pub frees: u64,
    /// What users can fill: [`Limits::live`].
    pub offered: u64,
}

/// Open zones of which half is expected to be unused. Shared slots are expected to be filled.
fn half_empty_zones(slots: u64) -> u64 {
    if slots > SHARED_SLOTS as u64 { slots / 2 } else { 0 }
}

impl SpaceAccount {
    /// What the bytes of all usable zones are kept for. The limits for users say how much is kept; this explains it.
    pub fn parts(&self) -> SpaceParts {
        let ResidentZones { capacity, unreclaimable_bytes, .. } = self.residents;
        let of_empty = self.devices.iter().map(|device| device.empty * device.zone_bytes);
        let zones = capacity + of_empty.sum::<u64>() + unreclaimable_bytes + self.log_bytes;
        let (zone_count, in_zones) = self.usable_space();
        let offered = self.limits(0).live.min(in_zones);
        let (_, lacking) = self.free_in_zones();
        // Each part is bounded by what is left, so that all of them add up whatever the limits are.
        let mut left = in_zones - offered;
        let mut take = |bytes: u64| {
            let taken = bytes.min(left);
            left -= taken;
            taken
        };
        let (per_zone, slots) = (self.sizes.per_zone(), self.slots.all);
        SpaceParts {
            zones,
            zone_overhead: zones.saturating_sub(in_zones + self.log_bytes),
            log: self.log_bytes,
            lacking_on_host: take(lacking),
            collection: take(per_zone * (1 + zone_count.div_ceil(GARBAGE_MIN_DIVISOR))),
            commits: take(self.sizes.commit_bytes()),
            metadata: take(per_zone * slots / METADATA_DIVISOR),
            open_zones: take(per_zone * half_empty_zones(slots)),
            frees: take(u64::MAX),
            offered,
        }
    }

    /// Bytes that empty and open zones still take, and how many of those the file systems below the devices lack.
    fn free_in_zones(&self) -> (u64, u64) {
        let of = |device: &DeviceSpace| {
            let bytes = device.empty * self.sizes.zone_yield.of(device.zone_bytes) + device.open_bytes;
            (bytes, bytes.saturating_sub(device.host_free_bytes))
        };
        let add = |(bytes, lacking): (u64, u64), (more, lack): (u64, u64)| (bytes + more, lacking + lack);
        self.devices.iter().map(of).fold((0, 0), add)
    }

    /// Bytes that empty and open zones still take, without what is kept for metadata, bounded by the file systems below.
    pub fn physical_free(&self) -> u64 {
        let (in_zones, lacking) = self.free_in_zones();
        in_zones - lacking
    }

    /// Bytes that must stay free for the collector and commits when users are done.
    pub fn internal_reserve(&self) -> u64 {
        // Space in slots that data does not go to is not available to users.
        let kept = self.sizes.per_zone() + self.sizes.commit_bytes();
        kept.max(self.slots.non_data_bytes) + self.slots.metadata_bytes
    }

    /// Whether the file system below a device has less space than the device's zones.
    pub fn lacks_host_space(&self) -> bool {
        self.free_in_zones().1 > 0
    }

    /// How many extra slots may have an open zone, each of which holds up to a zone: as many zones as users lack to 14/15 of their limit.
    /// None where the file system below a device has less space than its zones: garbage in open zones would keep that space.
    pub fn extra_slots(&self) -> u64 {
        let left = (self.user_capacity() / 15 * 14).saturating_sub(self.live);
        if self.lacks_host_space() { 0 } else { left / self.sizes.per_zone().max(1) }
    }

    /// The low watermark's margin above the kept space, for `zones` usable zones.
    pub fn low_watermark_margin(&self, zones: u64) -> u64 {
        // What is left in the zones of extra slots counts as free, but is not there for others.
        let extra = self.extra_slots().min(self.slots.extra_wanted);
        margin_bytes(self.sizes.per_zone(), zones, self.slots.data)
            + extra.div_ceil(2) * self.sizes.per_zone()
    }

    /// All usable space, in zones of the largest size and in bytes of yield. Zones of devices may differ much in size: 7 % of all zones
    /// are not 7 % of that many of the largest.
    fn usable_space(&self) -> (u64, u64) {
        let ResidentZones { zones, capacity, unreclaimable_bytes: stays_bytes } = self.residents;
        let zone_yield = self.sizes.zone_yield;
        let empty: u64 = self.devices.iter().map(|device| device.empty).sum();
        let of_empty = self.devices.iter().map(|device| device.empty * zone_yield.of(device.zone_bytes));
        let all = zone_yield.of_all(capacity, zones) + of_empty.sum::<u64>() + stays_bytes;
        let per_zone = self.sizes.per_zone().max(1);
        ((zones + empty).min((all + per_zone / 2) / per_zone), all)
    }

    /// Bytes kept from users, of `zones` usable zones of the largest size.
    fn reserve(&self, zones: u64) -> u64 {
        let slots = self.slots.all;
        let tenths = 10 * (1 + zones.div_ceil(GARBAGE_MIN_DIVISOR) + half_empty_zones(slots))
            + 10 * slots / METADATA_DIVISOR
            + 10 * self.sizes.commit_bytes() / self.sizes.per_zone().max(1);
        (zones * 7 / 100).max(tenths.div_ceil(10)) * self.sizes.per_zone()
    }

    /// Bytes that users can fill, regardless of the file systems below the devices.
    pub fn user_capacity(&self) -> u64 {
        let (zones, all) = self.usable_space();
        all.saturating_sub(self.reserve(zones))
    }

    /// `for_txg`: bytes that the txg in progress may still take.
    pub fn limits(&self, for_txg: u64) -> Limits {
        let commit = self.sizes.commit_bytes();
        let (zones, all) = self.usable_space();
        let (in_zones, lacking) = self.free_in_zones();
        let limit_of_zones = all.saturating_sub(self.reserve(zones) / 2);
        let all = all.saturating_sub(lacking);
        // Zones for which the host has no space need no reserve.
        let reserve = self.reserve(zones.saturating_sub(lacking / self.sizes.per_zone().max(1)));
        let physical = (in_zones - lacking).saturating_sub(for_txg);
        let for_frees = reserve / 2;
        let for_write_backs = for_frees / WRITE_BACK_DIVISOR;
        let for_promised = (for_frees - for_write_backs) / RESERVED_DIVISOR;
        Limits {
            live: all.saturating_sub(reserve),
            live_write_backs: all.saturating_sub(reserve - for_write_backs),
            live_reserved: all.saturating_sub(reserve - for_write_backs - for_promised),
            live_frees: all.saturating_sub(reserve - for_frees),
            // Leave enough to empty the current victim and to commit a txg.
            writable: (physical + self.gains.pending_bytes())
                .saturating_sub(self.internal_reserve())
                .min(physical.saturating_sub(commit + self.gains.victim_to_copy)),
            writable_frees: physical.saturating_sub(commit / 2),
            frees_without_host: (limit_of_zones, in_zones.saturating_sub(for_txg + commit / 2)),
            zones,
            low_watermark_margin: self.low_watermark_margin(zones),
        }
    }

    /// Whether zones are so short that emptied zones must not wait for txgs that could be rolled back to.
    pub fn is_short(&self, zones: u64) -> bool {
        // Below the low watermark, the pool waits for emptied zones.
        self.empty_zones < self.sizes.min_empty_zones() + 2
            || self.physical_free() < self.internal_reserve() + self.low_watermark_margin(zones)
    }

    /// Bytes that one txg should free. None while enough is free; otherwise what users took, and part of what is missing.
    /// `demand`: bytes that writers wait for. `taken`: bytes that the txg took.
    pub fn collection_goal(&self, zones: u64, demand: u64, taken: u64) -> u64 {
        let margin = self.low_watermark_margin(zones);
        let physical = self.physical_free();
        let have = physical + self.pending_resets.bytes + self.gains.freed_so_far();
        let missing = (self.internal_reserve() + margin + demand).saturating_sub(have);
        // The rest of the victim must fit. If that bounds writers, only the end of the victim frees more for them.
        let left = self.gains.victim_to_copy;
        if left > 0 && physical.saturating_sub(self.sizes.commit_bytes() + left) < margin / 2 + demand {
            return missing.max(self.gains.victim_to_free).max(1);
        }
        if missing == 0 {
            return 0;
        }
        if demand > 0 || missing > margin {
            // Writers wait, or will soon: free as much as one txg can.
            return missing.max(self.sizes.per_zone());
        }
        // Near the watermark, free as much as was taken, plus more in proportion to what is missing.
        missing.min(taken + (u128::from(taken) * u128::from(missing) / u128::from(margin.max(1))) as u64)
    }

    /// Whether pending resets should come before the next victim: zones are large, and its copies would leave writers no space. The
    /// ends of this txg and the next free a whole zone, sooner than another victim could. `waited`: bytes that writers wait for.
    pub fn reset_comes_first(&self, zones: u64, waited: u64) -> bool {
        let per_zone = self.sizes.per_zone();
        let margin = self.low_watermark_margin(zones);
        let copies = self.gains.victim_freed.map_or(per_zone, |_| self.gains.victim_to_copy);
        let left = self.physical_free().saturating_sub(self.sizes.commit_bytes() + copies);
        per_zone >= margin / 2 && left < margin / 4 + waited && self.gains.pending_reset_bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A hundred zones of 64 MiB, of which `empty` are empty and none is open.
    fn account(empty: u64) -> SpaceAccount {
        let zone_yield = Yield { unit: 4096, largest_block: 128 << 10 };
        SpaceAccount {
            sizes: Sizes {
                zone_yield,
                largest_zone: 64 * MIB,
                sections_bytes: 256 << 10,
                unreserved_bytes: 0,
            },
            live: 0,
            log_bytes: 0,
            empty_zones: empty as usize,
            devices: vec![DeviceSpace {
                zone_bytes: 64 * MIB,
                empty,
                open_bytes: 0,
                host_free_bytes: u64::MAX,
            }],
            slots: Slots { all: 3, data: 1, extra_wanted: 0, non_data_bytes: 0, metadata_bytes: 0 },
            residents: ResidentZones {
                zones: 100 - empty,
                capacity: (100 - empty) * 64 * MIB,
                unreclaimable_bytes: 0,
            },
            pending_resets: PendingResets::default(),
            gains: CollectionGains::default(),
        }
    }

    #[test]
    fn low_watermark_is_half_of_a_zone_where_zones_are_few() {
        assert_eq!(margin_bytes(64 * MIB, 64, 1), 32 * MIB);
        assert_eq!(margin_bytes(64 * MIB, 32, 1), 16 * MIB, "a part of a pool that has little");
        assert_eq!(margin_bytes(64 * MIB, 8, 1), 16 * MIB, "a quarter of a zone at the least");
        assert_eq!(margin_bytes(16 * MIB, 256, 4), 56 * MIB, "a zone for each further slot is more");
        assert_eq!(margin_bytes(2 * MIB, 1024, 7), 20 * MIB);
        assert_eq!(margin_bytes(256 * MIB, 100_000, 7), (1 << 30) + 6 * 256 * MIB);
    }

    #[test]
    fn what_users_can_fill_does_not_depend_on_what_is_empty() {
        let (few, many) = (account(5).limits(0), account(95).limits(0));
        assert_eq!((few.zones, many.zones), (100, 100));
        assert!(few.live.abs_diff(many.live) <= 100, "{few:?} {many:?}");
        let of_all = 100 * account(5).sizes.per_zone();
        assert!(few.live < of_all / 100 * 94 && few.live > of_all / 100 * 92, "seven of a hundred are kept");
        assert!(few.live < few.live_write_backs && few.live_write_backs < few.live_reserved);
        assert!(few.live_reserved < few.live_frees, "deletes go on when all others stop");
    }

    #[test]
    fn space_missing_on_the_host_is_not_counted() {
        let mut account = account(50);
        let (all, physical) = (account.limits(0), account.physical_free());
        account.devices[0].host_free_bytes = 10 * 64 * MIB;
        let less = account.limits(0);
        assert_eq!(account.physical_free(), 10 * 64 * MIB);
        assert!(less.live < all.live - (physical - 10 * 64 * MIB) / 2 && less.writable < all.writable);
        assert_eq!(
            (less.frees_without_host, less.zones),
            (all.frees_without_host, all.zones),
            "zones are what they were"
        );
    }

    #[test]
    fn parts_of_the_space_add_up_to_all_zones() {
        let sum = |parts: SpaceParts| {
            let SpaceParts { zone_overhead, lacking_on_host, collection, commits, metadata, .. } = parts;
            let SpaceParts { log, open_zones, frees, offered, .. } = parts;
            let kept = log + collection + commits + metadata + open_zones + frees;
            zone_overhead + lacking_on_host + kept + offered
        };
        for empty in [0, 5, 95, 100] {
            for slots in [2, 3, 5, 12] {
                let mut account = account(empty);
                account.slots.all = slots;
                let parts = account.parts();
                assert_eq!((parts.zones, sum(parts)), (6400 * MIB, 6400 * MIB), "{parts:?}");
                assert_eq!(parts.offered, account.limits(0).live);
                assert_eq!(parts.commits, account.sizes.commit_bytes());
                assert_eq!(parts.collection, 5 * account.sizes.per_zone());
                assert_eq!(parts.open_zones > 0, slots > SHARED_SLOTS as u64, "{parts:?}");
                assert_eq!(parts.lacking_on_host, 0);
                account.devices[0].host_free_bytes = 0;
                let less = account.parts();
                assert_eq!((less.zones, sum(less)), (6400 * MIB, 6400 * MIB), "{less:?}");
                assert_eq!(less.lacking_on_host, account.free_in_zones().1);
                assert!(less.offered <= parts.offered && less.collection <= parts.collection);
            }
        }
        let tiny = SpaceAccount { devices: Vec::new(), ..account(100) }.parts();
        assert_eq!(tiny, SpaceParts::default(), "nothing is kept where nothing is");
    }

    #[test]
    fn a_victim_frees_space_while_it_moves_and_its_rest_must_fit() {
        let mut account = account(2);
        assert_eq!(account.limits(0).writable, account.physical_free() - account.internal_reserve());
        account.gains = CollectionGains {
            victim_freed: Some(10 * MIB),
            victim_to_free: 20 * MIB,
            victim_to_copy: 8 * MIB,
            pending_reset_bytes: 5 * MIB,
        };
        assert_eq!(
            account.limits(0).writable,
            account.physical_free() + 15 * MIB - account.internal_reserve()
        );
        account.gains.victim_to_copy = 110 * MIB;
        let fits = account.physical_free() - account.sizes.commit_bytes() - 110 * MIB;
        assert_eq!(account.limits(0).writable, fits, "what is left of it bounds writers");
        assert_eq!(account.limits(account.physical_free()).writable, 0, "the txg takes all");
    }

    #[test]
    fn collection_goal_is_what_is_missing_and_more_for_waiting_writers() {
        let plenty = account(50);
        assert_eq!(plenty.collection_goal(100, 0, 4 * MIB), 0);
        assert!(!plenty.is_short(100) && account(2).is_short(100));
        let mut edge = account(1);
        edge.devices[0].open_bytes = 20 * MIB;
        let missing = edge.internal_reserve() + edge.low_watermark_margin(100) - edge.physical_free();
        assert!(missing > 0 && missing < edge.low_watermark_margin(100), "{missing}");
        let gain = edge.collection_goal(100, 0, MIB);
        assert!((MIB..2 * MIB).contains(&gain), "little more than was taken: {gain}");
        assert_eq!(edge.collection_goal(100, 1, MIB), (missing + 1).max(edge.sizes.per_zone()));
        edge.pending_resets = PendingResets { zones: 1, bytes: 62 * MIB };
        assert_eq!(edge.collection_goal(100, 0, MIB), 0, "a zone comes back");
        edge.gains = CollectionGains {
            victim_freed: Some(0),
            victim_to_free: 7 * MIB,
            victim_to_copy: 120 * MIB,
            pending_reset_bytes: 0,
        };
        assert_eq!(edge.collection_goal(100, 0, MIB), 7 * MIB, "the end of the victim alone gives more");
    }

    #[test]
    fn a_reset_precedes_the_next_victim_where_space_is_short() {
        let mut account = account(1);
        account.devices[0].open_bytes = 10 * MIB;
        assert!(!account.reset_comes_first(100, 0), "none comes");
        account.gains.pending_reset_bytes = 60 * MIB;
        assert!(account.reset_comes_first(100, 0));
        account.devices[0].empty = 10;
        assert!(!account.reset_comes_first(100, 0), "there is room for both");
        assert!(account.reset_comes_first(100, 1 << 40), "writers wait for more");
    }

    #[test]
    fn placement_spends_zones_only_where_users_lack_none() {
        let sizes = account(0).sizes;
        let low = sizes.min_empty_zones();
        let zones = |empty, reserved, live| sizes.zone_supply(empty, reserved, live, 1 << 40);
        assert_eq!(zones(low, 0, 0), ZoneSupply::Short);
        assert_eq!(zones(low + 1, 0, 0), ZoneSupply::Ample);
        assert_eq!(zones(low + 1, 1, 0), ZoneSupply::Enough, "it is promised");
        assert_eq!(zones(2 * low + 1, 0, 0), ZoneSupply::Plenty);
        assert_eq!(zones(2 * low + 1, 1, 0), ZoneSupply::Ample, "one is promised");
        assert_eq!(zones(2 * low + 1, 0, 7 << 37), ZoneSupply::Ample, "the pool is nearly full");
    }

    #[test]
    fn fewer_extra_slots_are_open_the_fuller_the_pool_is() {
        let account = account(50);
        let limit = account.user_capacity();
        let extra =
            |percent: u64| SpaceAccount { live: limit / 100 * percent, ..account.clone() }.extra_slots();
        assert_eq!([50, 80, 90, 94, 100].map(extra), [40, 12, 3, 0, 0]);
        let mut on_a_small_host = account.clone();
        on_a_small_host.devices[0].host_free_bytes = 40 * 64 * MIB;
        assert_eq!(on_a_small_host.extra_slots(), 0, "zones are plenty, but the host is not");
        let mut busy = account.clone();
        busy.slots.extra_wanted = 8;
        let margin = |account: &SpaceAccount| account.low_watermark_margin(100);
        assert_eq!(margin(&busy) - margin(&account), 4 * account.sizes.per_zone(), "half a zone for each");
        busy.live = limit / 100 * 95;
        assert_eq!(margin(&busy), margin(&account), "none is kept for them when the pool is nearly full");
    }

    #[test]
    fn metadata_needs_the_next_zone_more_and_more() {
        let mut reserve = MetadataReserve { zone_bytes: 64 * MIB, recent_txg_bytes: 0 };
        assert_eq!(reserve.reserved(), MIB);
        assert_eq!(
            (
                reserve.needed_of_next_zone(8 * MIB, 100),
                reserve.needed_of_next_zone(4 * MIB, 100),
                reserve.needed_of_next_zone(0, 100)
            ),
            (0, 50, 100)
        );
        reserve.note(MIB);
        assert_eq!(reserve.reserved(), 4 * MIB);
        reserve.note(100 * MIB);
        assert_eq!(reserve.reserved(), 8 * MIB, "an eighth of a zone at the most");
        reserve.note(0);
        assert_eq!(reserve.recent_txg_bytes, 100 * MIB - 100 * MIB / 16);
    }
}
