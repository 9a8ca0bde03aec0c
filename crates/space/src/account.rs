//! The room of a pool, by one snapshot of what it follows from.
//!
//! Room is counted in bytes that zones can be counted on to take (their *yield*). Of all zones 7 % are kept from users, and at least what
//! makes collection sure to succeed: one zone into which a victim is copied, what commits take meanwhile, and the garbage that is too
//! thin to be collected (a 32nd of every zone).
//!
//! Users may write while what is empty and what is open holds more than one victim and the commits need. When it does not, they wait,
//! in order, and collection gives them room in small steps: for a piece `c` of a victim with live share `r` it gives `c x (1-r)/r`,
//! long before the victim's zone is reset, because one zone's worth is always kept for exactly this.
//!
//! Invariant: who frees may dip into what is kept for collection, but nobody into what commits need.

use crate::policy::Stock;
use terrane_format::addr::granule_bytes;

/// Collection begins when room falls under what must be kept and one part of so many of the pool, but not less than so many bytes (of a
/// small pool a 64th) nor more than so many: enough for groups to be large, and little enough for zones to ripen.
const AHEAD_PART: u64 = 1024;
const AHEAD_BYTES_MIN: u64 = 8 << 20;
const AHEAD_BYTES_MAX: u64 = 1 << 30;
const AHEAD_PART_SMALL: u64 = 64;
/// A zone with less garbage than one part of so many is not worth collecting.
pub const GARBAGE_PART_MIN: u64 = 32;
/// Bytes that the groups of one victim's time take for themselves, in zones that are large enough for it to matter little.
const COMMIT_BYTES: u64 = 8 << 20;
/// So few slots share their roles.
pub const SHARED_SLOTS: usize = 3;
/// Of the room that is kept for deletes, write-backs of the kernel's cache get one part of so many. The rest stays for deletes, however
/// much is written back: a delete takes little of it, and its group gives more back. Write-backs never take room that collection and
/// commits count on.
const WRITE_BACK_PART: u64 = 2;
/// Of what write-backs leave, writes into promised room get one part of so many. It is not for what they write, which is counted already,
/// but for metadata, and for records that are written again in pieces until their group has committed.
const PROMISED_PART: u64 = 2;
/// One part of a zone of so many, at the most, is left to metadata when no zone is empty.
const METADATA_PART: u64 = 8;
/// And at least one part of so many, and so many bytes; between them, so many times what a group brought lately.
const METADATA_PART_MIN: u64 = 64;
const METADATA_BYTES_MIN: u64 = 1 << 20;
const METADATA_GROUPS: u64 = 4;
/// What a group brought is forgotten by one part of so many with each further one.
const METADATA_FORGOTTEN_PART: u64 = 16;

/// What can be counted on of a zone: without header, the tail that no block fits, and directory parts.
#[derive(Clone, Copy, Debug)]
pub struct Yield {
    pub unit: u64,
    pub largest_block: u64,
}

impl Yield {
    /// Of a zone that takes `capacity` bytes.
    pub fn of(&self, capacity: u64) -> u64 {
        self.of_all(capacity, 1)
    }

    /// Of `zones` zones that take `capacity` bytes together.
    pub fn of_all(&self, capacity: u64, zones: u64) -> u64 {
        let tail = granule_bytes(self.largest_block.min(capacity / zones.max(1) / 4)) + 3 * self.unit;
        capacity.saturating_sub(zones * tail + capacity / 64)
    }
}

/// What is kept ahead, in bytes, of so many zones that can be counted on to take `per_zone` bytes each.
fn ahead_bytes(per_zone: u64, zones: u64, data_slots: u64) -> u64 {
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

/// How large zones are, and what commits take: cheap enough to be asked for each block.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub zone_yield: Yield,
    /// What the zones of the device take whose zones take most, in bytes.
    pub largest_zone: u64,
    /// Stored bytes of as many sections of the tables as one group may rewrite in a hurry.
    pub sections_bytes: u64,
}

impl Sizes {
    /// Bytes that blocks can be counted on to fill of the largest zones there are.
    pub fn per_zone(&self) -> u64 {
        self.zone_yield.of(self.largest_zone)
    }

    /// What both copies of the sections take that a group may rewrite in a hurry.
    pub fn hurried_bytes(&self) -> u64 {
        2 * self.sections_bytes
    }

    /// Bytes kept for commits while a victim is copied: some, and both copies of the sections that a group may rewrite in a hurry.
    pub fn commit_bytes(&self) -> u64 {
        COMMIT_BYTES.min(3 * self.per_zone()) + self.hurried_bytes()
    }

    /// Empty zones under which there are few: no further zone is opened for placement alone, and groups that can be rolled back to do
    /// not hold emptied zones.
    pub fn low_water(&self) -> usize {
        1 + self.commit_bytes().div_ceil(self.per_zone().max(1)) as usize
    }

    /// What placement may do with `empty` zones. Ends of zones are left unused only while users hold less than seven eighths of what they
    /// may, and what is empty is more than all that they were promised: so neither ever lacks what was left.
    pub fn stock(&self, empty: usize, promised_bytes: u64, live: u64, limit: u64) -> Stock {
        let low = self.low_water();
        let promised = promised_bytes.div_ceil(self.per_zone().max(1)) as usize;
        match empty > low {
            true if empty > 2 * low + promised && live < limit / 8 * 7 => Stock::Plenty,
            true => Stock::Enough,
            false => Stock::Short,
        }
    }
}

/// What is left to metadata of each zone that is open for it.
#[derive(Clone, Copy, Debug)]
pub struct MetadataRoom {
    /// What zones take, in bytes.
    pub zone_bytes: u64,
    /// Bytes of a copy of metadata that groups brought lately.
    pub lately: u64,
}

impl MetadataRoom {
    /// Bytes of each open zone that are left to metadata when no zone is empty. They hold nothing most of the time, so on a small pool
    /// that is nearly full they cost more copying than anything else: no more is kept than groups bring.
    pub fn kept(&self) -> u64 {
        let least = METADATA_BYTES_MIN.max(self.zone_bytes / METADATA_PART_MIN);
        least.max(METADATA_GROUPS * self.lately).min(self.zone_bytes / METADATA_PART)
    }

    /// How much of the next zone, of `next_bytes`, metadata will need soon whose own has `left` bytes beside what is kept: more and more
    /// while it takes the last eighth before that, and all when it lives on it.
    pub fn needs(&self, left: u64, next_bytes: u64) -> u64 {
        let soon = (self.zone_bytes / METADATA_PART).max(1);
        let left = left.min(soon);
        next_bytes - (u128::from(next_bytes) * u128::from(left) / u128::from(soon)) as u64
    }

    /// A group brought so many bytes.
    pub fn note(&mut self, bytes: u64) {
        self.lately = bytes.max(self.lately - self.lately / METADATA_FORGOTTEN_PART);
    }
}

/// The room on a device that gives some.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRoom {
    /// What its smallest zones take, in bytes, and how many are empty.
    pub zone_bytes: u64,
    pub empty: u64,
    /// What zones that are open there take beside metadata.
    pub open_bytes: u64,
    /// What the file system below still has.
    pub below_bytes: u64,
}

/// Zones that are open, by the slots they are open for.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    pub all: u64,
    pub data: u64,
    /// Bytes that fit those to which data does not go.
    pub others_bytes: u64,
    /// Zones that nothing else takes because a copy of metadata has nearly filled its own, in bytes: more and more of one while it does.
    /// Were they not kept beside what data needs, data would find no zone but those of metadata and survivors, and lie among them. What
    /// survivors fill as well is full so soon that writers would stand still each time; a zone is kept for them already.
    pub metadata_bytes: u64,
}

/// Zones that hold something and will be room again, on devices that give some.
#[derive(Clone, Copy, Debug)]
pub struct Residents {
    pub zones: u64,
    pub capacity: u64,
    /// What lives in zones that will not be, and stays there.
    pub stays_bytes: u64,
}

/// Zones that were emptied and can be reset when their group is old enough. Those that are read by somebody, or could not be read, are not
/// counted on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    pub zones: u64,
    pub bytes: u64,
}

/// What collection gives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gains {
    /// What the victim in progress has given so far; `None`: there is none.
    pub moving: Option<u64>,
    /// What is still to be won by moving the rest of it, and what must be copied for that.
    pub rest: u64,
    pub remaining: u64,
    /// What resets will give.
    pub coming: u64,
}

impl Gains {
    /// What the victim in progress has given.
    pub fn moved(&self) -> u64 {
        self.moving.unwrap_or(0)
    }

    /// What victims have given that is not there yet.
    pub fn credit(&self) -> u64 {
        self.moved() + self.coming
    }
}

/// All that the measures of room follow from, at one moment.
#[derive(Clone, Debug)]
pub struct SpaceAccount {
    pub sizes: Sizes,
    /// Live bytes of all zones.
    pub live: u64,
    /// Empty zones of all devices, those that give no room among them.
    pub empty_zones: usize,
    pub devices: Vec<DeviceRoom>,
    pub slots: Slots,
    pub residents: Residents,
    pub waiting: Waiting,
    pub gains: Gains,
}

/// What users may do with the room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Live bytes at which users, write-backs of the kernel's cache, writes into promised room, and deletes get `ENOSPC`.
    pub live: u64,
    pub live_write_backs: u64,
    pub live_promised: u64,
    pub live_frees: u64,
    /// Bytes that can be written before collection must have made room; and by deletes.
    pub writable: u64,
    pub writable_frees: u64,
    /// Live bytes, and bytes to be written, at which those who free wait whatever the file systems below have.
    pub of_zones: (u64, u64),
    /// Zones of the largest size that can hold something.
    pub zones: u64,
    /// Bytes that collection keeps writable before anybody asks.
    pub ahead: u64,
}

impl SpaceAccount {
    /// What is empty, and what open zones still take beside metadata; and how much of it the file systems below the devices lack.
    fn in_zones(&self) -> (u64, u64) {
        let of = |device: &DeviceRoom| {
            let bytes = device.empty * self.sizes.zone_yield.of(device.zone_bytes) + device.open_bytes;
            (bytes, bytes.saturating_sub(device.below_bytes))
        };
        let add = |(bytes, lacking): (u64, u64), (more, lack): (u64, u64)| (bytes + more, lacking + lack);
        self.devices.iter().map(of).fold((0, 0), add)
    }

    /// What is empty, and what open zones still take beside metadata, in bytes; no more than the file systems below have.
    pub fn physical(&self) -> u64 {
        let (in_zones, lacking) = self.in_zones();
        in_zones - lacking
    }

    /// What must stay free for collection, and for commits, when users are done.
    pub fn kept(&self) -> u64 {
        // Room in slots that data does not go to is no room for users.
        let kept = self.sizes.per_zone() + self.sizes.commit_bytes();
        kept.max(self.slots.others_bytes) + self.slots.metadata_bytes
    }

    /// Room above what must be kept under which collection begins, where so many zones can hold something.
    pub fn ahead(&self, zones: u64) -> u64 {
        ahead_bytes(self.sizes.per_zone(), zones, self.slots.data)
    }

    /// What can hold something and stays, in zones of the largest size, and in bytes that it can be counted on to take. Devices may have
    /// zones of very different sizes: seven of a hundred zones of any size are not seven of a hundred of the largest.
    fn stock(&self) -> (u64, u64) {
        let Residents { zones, capacity, stays_bytes } = self.residents;
        let zone_yield = self.sizes.zone_yield;
        let empty: u64 = self.devices.iter().map(|device| device.empty).sum();
        let of_empty = self.devices.iter().map(|device| device.empty * zone_yield.of(device.zone_bytes));
        let all = zone_yield.of_all(capacity, zones) + of_empty.sum::<u64>() + stays_bytes;
        let per_zone = self.sizes.per_zone().max(1);
        ((zones + empty).min((all + per_zone / 2) / per_zone), all)
    }

    /// Bytes kept from users, of `zones` of the largest size that can hold something.
    fn reserve(&self, zones: u64) -> u64 {
        let slots = self.slots.all;
        // Shared slots are counted on to be filled; others may stay half empty.
        let half_empty = if slots > SHARED_SLOTS as u64 { slots / 2 } else { 0 };
        let tenths = 10 * (1 + zones.div_ceil(GARBAGE_PART_MIN) + half_empty)
            + 10 * slots / METADATA_PART
            + 10 * self.sizes.commit_bytes() / self.sizes.per_zone().max(1);
        (zones * 7 / 100).max(tenths.div_ceil(10)) * self.sizes.per_zone()
    }

    /// Bytes that users can fill, whatever the file systems below have.
    pub fn offered(&self) -> u64 {
        let (zones, all) = self.stock();
        all.saturating_sub(self.reserve(zones))
    }

    /// `for_group`: bytes that the group under way may still take.
    pub fn limits(&self, for_group: u64) -> Limits {
        let commit = self.sizes.commit_bytes();
        let (zones, all) = self.stock();
        let (in_zones, lacking) = self.in_zones();
        let limit_of_zones = all.saturating_sub(self.reserve(zones) / 2);
        let all = all.saturating_sub(lacking);
        // Zones that find no room below are none to keep anything of.
        let reserve = self.reserve(zones.saturating_sub(lacking / self.sizes.per_zone().max(1)));
        let physical = (in_zones - lacking).saturating_sub(for_group);
        let for_frees = reserve / 2;
        let for_write_backs = for_frees / WRITE_BACK_PART;
        let for_promised = (for_frees - for_write_backs) / PROMISED_PART;
        Limits {
            live: all.saturating_sub(reserve),
            live_write_backs: all.saturating_sub(reserve - for_write_backs),
            live_promised: all.saturating_sub(reserve - for_write_backs - for_promised),
            live_frees: all.saturating_sub(reserve - for_frees),
            // Never so much that the victim in progress could not be emptied, or a group not be committed.
            writable: (physical + self.gains.credit())
                .saturating_sub(self.kept())
                .min(physical.saturating_sub(commit + self.gains.remaining)),
            writable_frees: physical.saturating_sub(commit / 2),
            of_zones: (limit_of_zones, in_zones.saturating_sub(for_group + commit / 2)),
            zones,
            ahead: self.ahead(zones),
        }
    }

    /// Whether zones are so short that emptied ones must not wait for groups that could be rolled back to.
    pub fn is_short(&self, zones: u64) -> bool {
        // While collection works for its room the pool waits for zones that were emptied.
        self.empty_zones < self.sizes.low_water() + 2 || self.physical() < self.kept() + self.ahead(zones)
    }

    /// Bytes that a group should gain: none while there is enough; what users took, and part of what is missing, when there is not.
    /// `demand`: what somebody waits for; `taken`: bytes that the group took.
    pub fn wanted_gain(&self, zones: u64, demand: u64, taken: u64) -> u64 {
        let ahead = self.ahead(zones);
        let physical = self.physical();
        let have = physical + self.waiting.bytes + self.gains.moved();
        let missing = (self.kept() + ahead + demand).saturating_sub(have);
        // What is left of the victim must fit. Where that is what bounds writers, only its end gives them more.
        let left = self.gains.remaining;
        if left > 0 && physical.saturating_sub(self.sizes.commit_bytes() + left) < ahead / 2 + demand {
            return missing.max(self.gains.rest).max(1);
        }
        if missing == 0 {
            return 0;
        }
        if demand > 0 || missing > ahead {
            // Somebody waits, or will: as much as one group can do.
            return missing.max(self.sizes.per_zone());
        }
        // At the edge as much as was taken; the more is missing the more.
        missing.min(taken + (u128::from(taken) * u128::from(missing) / u128::from(ahead.max(1))) as u64)
    }

    /// Where zones are large, and copies of the next one would leave writers no room: the end of this group, and of the one after it, give
    /// them a whole zone, sooner than another victim could. `waited`: bytes that writers wait for.
    pub fn reset_comes_first(&self, zones: u64, waited: u64) -> bool {
        let per_zone = self.sizes.per_zone();
        let ahead = self.ahead(zones);
        let copies = self.gains.moving.map_or(per_zone, |_| self.gains.remaining);
        let left = self.physical().saturating_sub(self.sizes.commit_bytes() + copies);
        per_zone >= ahead / 2 && left < ahead / 4 + waited && self.gains.coming > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A hundred zones of 64 MiB, of which so many are empty; nothing is open.
    fn account(empty: u64) -> SpaceAccount {
        let zone_yield = Yield { unit: 4096, largest_block: 128 << 10 };
        SpaceAccount {
            sizes: Sizes { zone_yield, largest_zone: 64 * MIB, sections_bytes: 256 << 10 },
            live: 0,
            empty_zones: empty as usize,
            devices: vec![DeviceRoom { zone_bytes: 64 * MIB, empty, open_bytes: 0, below_bytes: u64::MAX }],
            slots: Slots { all: 3, data: 1, others_bytes: 0, metadata_bytes: 0 },
            residents: Residents { zones: 100 - empty, capacity: (100 - empty) * 64 * MIB, stays_bytes: 0 },
            waiting: Waiting::default(),
            gains: Gains::default(),
        }
    }

    #[test]
    fn ahead_is_half_of_what_a_victim_s_copies_take_where_zones_are_few() {
        assert_eq!(ahead_bytes(64 * MIB, 64, 1), 32 * MIB);
        assert_eq!(ahead_bytes(64 * MIB, 32, 1), 16 * MIB, "a part of a pool that has little");
        assert_eq!(ahead_bytes(64 * MIB, 8, 1), 16 * MIB, "a quarter of a zone at the least");
        assert_eq!(ahead_bytes(16 * MIB, 256, 4), 56 * MIB, "a zone for each further slot is more");
        assert_eq!(ahead_bytes(2 * MIB, 1024, 7), 20 * MIB);
        assert_eq!(ahead_bytes(256 * MIB, 100_000, 7), (1 << 30) + 6 * 256 * MIB);
    }

    #[test]
    fn what_users_can_fill_does_not_depend_on_what_is_empty() {
        let (few, many) = (account(5).limits(0), account(95).limits(0));
        assert_eq!((few.zones, many.zones), (100, 100));
        assert!(few.live.abs_diff(many.live) <= 100, "{few:?} {many:?}");
        let of_all = 100 * account(5).sizes.per_zone();
        assert!(few.live < of_all / 100 * 94 && few.live > of_all / 100 * 92, "seven of a hundred are kept");
        assert!(few.live < few.live_write_backs && few.live_write_backs < few.live_promised);
        assert!(few.live_promised < few.live_frees, "deletes go on when all others stop");
    }

    #[test]
    fn what_the_file_system_below_lacks_is_no_room() {
        let mut account = account(50);
        let (all, physical) = (account.limits(0), account.physical());
        account.devices[0].below_bytes = 10 * 64 * MIB;
        let less = account.limits(0);
        assert_eq!(account.physical(), 10 * 64 * MIB);
        assert!(less.live < all.live - (physical - 10 * 64 * MIB) / 2 && less.writable < all.writable);
        assert_eq!((less.of_zones, less.zones), (all.of_zones, all.zones), "zones are what they were");
    }

    #[test]
    fn a_victim_gives_room_while_it_moves_and_must_still_fit() {
        let mut account = account(2);
        assert_eq!(account.limits(0).writable, account.physical() - account.kept());
        account.gains = Gains { moving: Some(10 * MIB), rest: 20 * MIB, remaining: 8 * MIB, coming: 5 * MIB };
        assert_eq!(account.limits(0).writable, account.physical() + 15 * MIB - account.kept());
        account.gains.remaining = 110 * MIB;
        let fits = account.physical() - account.sizes.commit_bytes() - 110 * MIB;
        assert_eq!(account.limits(0).writable, fits, "what is left of it bounds writers");
        assert_eq!(account.limits(account.physical()).writable, 0, "the group takes all");
    }

    #[test]
    fn as_much_is_gained_as_is_missing_and_more_when_somebody_waits() {
        let plenty = account(50);
        assert_eq!(plenty.wanted_gain(100, 0, 4 * MIB), 0);
        assert!(!plenty.is_short(100) && account(2).is_short(100));
        let mut edge = account(1);
        edge.devices[0].open_bytes = 20 * MIB;
        let missing = edge.kept() + edge.ahead(100) - edge.physical();
        assert!(missing > 0 && missing < edge.ahead(100), "{missing}");
        let gain = edge.wanted_gain(100, 0, MIB);
        assert!((MIB..2 * MIB).contains(&gain), "little more than was taken: {gain}");
        assert_eq!(edge.wanted_gain(100, 1, MIB), (missing + 1).max(edge.sizes.per_zone()));
        edge.waiting = Waiting { zones: 1, bytes: 62 * MIB };
        assert_eq!(edge.wanted_gain(100, 0, MIB), 0, "a zone comes back");
        edge.gains = Gains { moving: Some(0), rest: 7 * MIB, remaining: 120 * MIB, coming: 0 };
        assert_eq!(edge.wanted_gain(100, 0, MIB), 7 * MIB, "the end of the victim alone gives more");
    }

    #[test]
    fn a_reset_comes_before_the_next_victim_where_that_leaves_no_room() {
        let mut account = account(1);
        account.devices[0].open_bytes = 10 * MIB;
        assert!(!account.reset_comes_first(100, 0), "none comes");
        account.gains.coming = 60 * MIB;
        assert!(account.reset_comes_first(100, 0));
        account.devices[0].empty = 10;
        assert!(!account.reset_comes_first(100, 0), "there is room for both");
        assert!(account.reset_comes_first(100, 1 << 40), "somebody waits for more");
    }

    #[test]
    fn placement_spends_zones_only_where_users_lack_none() {
        let sizes = account(0).sizes;
        let low = sizes.low_water();
        assert_eq!(sizes.stock(low, 0, 0, 1 << 30), Stock::Short);
        assert_eq!(sizes.stock(low + 1, 0, 0, 1 << 30), Stock::Enough);
        assert_eq!(sizes.stock(2 * low + 1, 0, 0, 1 << 30), Stock::Plenty);
        assert_eq!(sizes.stock(2 * low + 1, 1, 0, 1 << 30), Stock::Enough, "one is promised");
        assert_eq!(sizes.stock(2 * low + 1, 0, 7 << 27, 1 << 30), Stock::Enough, "the pool is nearly full");
    }

    #[test]
    fn metadata_needs_the_next_zone_more_and_more() {
        let mut room = MetadataRoom { zone_bytes: 64 * MIB, lately: 0 };
        assert_eq!(room.kept(), MIB);
        assert_eq!((room.needs(8 * MIB, 100), room.needs(4 * MIB, 100), room.needs(0, 100)), (0, 50, 100));
        room.note(MIB);
        assert_eq!(room.kept(), 4 * MIB);
        room.note(100 * MIB);
        assert_eq!(room.kept(), 8 * MIB, "an eighth of a zone at the most");
        room.note(0);
        assert_eq!(room.lately, 100 * MIB - 100 * MIB / 16);
    }
}
