//! What room there is, and for whom.
//!
//! Room is counted in bytes that zones can be counted on to take (their *yield*). Of all zones 7 % are kept from users, and at least what
//! makes collection sure to succeed: one zone into which a victim is copied, what commits take meanwhile, and the garbage that is too
//! thin to be collected (a 32nd of every zone).
//!
//! Users may write while what is empty and what is open holds more than one victim and the commits need. When it does not, they wait,
//! in order, and collection gives them room in small steps: for a piece `c` of a victim with live share `r` it gives `c x (1-r)/r`,
//! long before the victim's zone is reset, because one zone's worth is always kept for exactly this. Each step is told at once, so
//! nobody waits for a whole group.
//!
//! Invariant: who frees may dip into what is kept for collection, but nobody into what commits need; and collection begins no victim
//! that would need the room of those who have joined.

use crate::pool::{Pool, SyncState};
use crate::state::groups::Room;
use crate::state::room::{GARBAGE_PART_MIN, Yield, ahead_bytes};
use std::sync::atomic::Ordering;
use terrane_format::addr::granule_bytes;
use terrane_format::rows::Phase;
use terrane_space::policy::Stock;
use terrane_space::turns::SECTIONS_IN_HURRY;
use terrane_space::zones::{Tables, Zone};
use terrane_store::append::METADATA_PART;
use terrane_wire::{DeviceIdx, Txg, ZoneSeq};

/// Bytes that the groups of one victim's time take for themselves, in zones that are large enough for it to matter little.
const COMMIT_BYTES: u64 = 8 << 20;
/// So few slots share their roles.
const SHARED_SLOTS: usize = 3;
/// Of the room that is kept for deletes, write-backs of the kernel's cache get one part of so many. The rest stays for deletes, however
/// much is written back: a delete takes little of it, and its group gives more back. Write-backs never take room that collection and
/// commits count on.
pub(crate) const WRITE_BACK_PART: u64 = 2;
/// Of what write-backs leave, writes into promised room get one part of so many. It is not for what they write, which is counted already,
/// but for metadata, and for records that are written again in pieces until their group has committed.
const PROMISED_PART: u64 = 2;

impl Pool {
    pub(crate) fn zone_yield(&self) -> Yield {
        let largest_block = self.largest_block.load(Ordering::Relaxed);
        Yield { unit: self.store.devices.write_unit(), largest_block }
    }

    /// Bytes that blocks can be counted on to fill of the largest zones there are.
    pub(crate) fn yield_of_zone(&self) -> u64 {
        let largest = self.store.devices.capacities().into_iter().map(|(_, capacity)| capacity).max();
        self.zone_yield().of(largest.unwrap_or(0))
    }

    /// Bytes that empty zones can be counted on to take, whatever the file system below a device still has.
    fn empty_room(&self, st: &SyncState) -> u64 {
        self.empty_rooms(st).map(|(_, bytes)| bytes).sum()
    }

    fn empty_rooms(&self, st: &SyncState) -> impl Iterator<Item = (DeviceIdx, u64)> {
        let zone_yield = self.zone_yield();
        let of =
            move |(device, capacity)| (device, st.alloc.empty_on(device) as u64 * zone_yield.of(capacity));
        self.store.devices.capacities().into_iter().map(of)
    }

    /// Bytes kept for commits while a victim is copied: some, and both copies of the sections that a group may rewrite in a hurry.
    pub(crate) fn commit_room(&self) -> u64 {
        COMMIT_BYTES.min(3 * self.yield_of_zone()) + self.hurried_bytes()
    }

    /// What both copies of the sections take that a group may rewrite in a hurry.
    pub(crate) fn hurried_bytes(&self) -> u64 {
        2 * self.sections_bytes.load(Ordering::Relaxed)
    }

    /// Empty zones under which there are few: no further zone is opened for placement alone, and groups that can be rolled back to do
    /// not hold emptied zones.
    pub(crate) fn low_water(&self) -> usize {
        1 + self.commit_room().div_ceil(self.yield_of_zone().max(1)) as usize
    }

    /// What placement may do with empty zones. Ends of zones are left unused only while users hold less than seven eighths of what they
    /// may, and what is empty is more than all that they were promised: so neither ever lacks what was left.
    pub(crate) fn zone_stock(&self, st: &SyncState) -> Stock {
        let (empty, low) = (st.alloc.empty_count(), self.low_water());
        let room = self.txg.room();
        let promised = self.txg.reserved().div_ceil(self.yield_of_zone().max(1)) as usize;
        match empty > low {
            true if empty > 2 * low + promised && room.live < room.limit / 8 * 7 => Stock::Plenty,
            true => Stock::Enough,
            false => Stock::Short,
        }
    }

    /// Bytes kept from users, of `zones` of the largest size that can hold something.
    fn reserve(&self, zones: u64, st: &SyncState) -> u64 {
        let slots = st.streams.layout().slots() as u64;
        // Shared slots are counted on to be filled; others may stay half empty.
        let half_empty = if slots > SHARED_SLOTS as u64 { slots / 2 } else { 0 };
        let tenths = 10 * (1 + zones.div_ceil(GARBAGE_PART_MIN) + half_empty)
            + 10 * slots / METADATA_PART
            + 10 * self.commit_room() / self.yield_of_zone().max(1);
        (zones * 7 / 100).max(tenths.div_ceil(10)) * self.yield_of_zone()
    }

    /// What is empty, and what open zones still take beside metadata, in bytes; no more than the file systems below have.
    pub(crate) fn physical_room(&self, st: &SyncState) -> u64 {
        let (in_zones, lacking) = self.rooms(st);
        in_zones - lacking
    }

    /// What is empty, and what open zones still take beside metadata, and how much of it the file systems below the devices lack.
    fn rooms(&self, st: &SyncState) -> (u64, u64) {
        // With many slots what is open lies in pieces, and a large block may fit none of their ends.
        let many = st.streams.layout().slots() > SHARED_SLOTS;
        let end = if many { granule_bytes(self.largest_block.load(Ordering::Relaxed)) } else { 0 };
        let slots =
            (0..st.streams.layout().slots()).filter_map(|slot| Some((st.streams.device_of(slot)?, slot)));
        let of_slot = |(device, slot)| (device, st.streams.room_for_data(slot).saturating_sub(end));
        let open: Vec<(DeviceIdx, u64)> = slots.map(of_slot).collect();
        let (mut in_zones, mut lacking) = (0, 0);
        for (device, empty) in self.empty_rooms(st) {
            let of_device = open.iter().filter(|(other, _)| *other == device).map(|(_, bytes)| bytes);
            let bytes = empty + of_device.sum::<u64>();
            in_zones += bytes;
            lacking += bytes.saturating_sub(self.store.devices.room_below(device));
        }
        (in_zones, lacking)
    }

    /// What must stay free for collection, and for commits, when users are done.
    pub(crate) fn kept_room(&self, st: &SyncState) -> u64 {
        let layout = st.streams.layout();
        let per_zone = self.yield_of_zone();
        // Room in slots that data does not go to is no room for users.
        let own = |slot: &usize| !layout.data().contains(slot);
        let others: u64 = (0..layout.slots()).filter(own).map(|slot| st.streams.room(slot)).sum();
        let kept = per_zone + self.commit_room();
        kept.max(others) + self.room_for_metadata(st)
    }

    /// Zones that nothing else takes because a copy of metadata has nearly filled its own, in bytes: more and more of one while it does.
    /// Were they not kept beside what data needs, data would find no zone but those of metadata and survivors, and lie among them. What
    /// survivors fill as well is full so soon that writers would stand still each time; a zone is kept for them already.
    fn room_for_metadata(&self, st: &SyncState) -> u64 {
        let layout = st.streams.layout();
        let own = layout.meta().into_iter().filter(|slot| layout.metadata_alone(*slot).is_some());
        let needed = own.map(|slot| st.streams.metadata_needs(slot, self.yield_of_zone()));
        needed.sum()
    }

    /// Room above what must be kept under which collection begins.
    pub(crate) fn room_ahead(&self, st: &SyncState, zones: u64) -> u64 {
        ahead_bytes(self.yield_of_zone(), zones, st.streams.layout().data().len() as u64)
    }

    /// Publishes what room there is between two groups, for those who want to join one.
    pub(crate) fn publish(&self, st: &SyncState) {
        let room = self.count_room(st, 0);
        *self.gc_rests.lock() = st.collector.unread.all_rests();
        self.txg.set_room(room, false);
        self.publish_device_summaries(st);
    }

    /// The same from within a group that has written what was reserved in it, and needs its own commit as well.
    pub(crate) fn publish_in_sync(&self, st: &SyncState) {
        let room = self.count_room(st, self.commit_room());
        self.txg.set_room(room, true);
    }

    /// `for_group`: bytes that the group under way may still take.
    fn count_room(&self, st: &SyncState, for_group: u64) -> Room {
        let table_bytes: u64 = st.sections.iter().map(|section| u64::from(section.ptr.len)).sum();
        let in_a_hurry = u64::from(SECTIONS_IN_HURRY).min(st.sections.len() as u64);
        self.sections_bytes
            .store(table_bytes * in_a_hurry / (st.sections.len() as u64).max(1), Ordering::Relaxed);
        let tables = self.store.tables.read();
        // Zones that died and zones that could not be reset are in neither.
        self.store.devices.ask_room_below();
        let (zones, all) = self.stock(&tables, st);
        let (in_zones, lacking) = self.rooms(st);
        let limit_of_zones = all.saturating_sub(self.reserve(zones, st) / 2);
        let all = all.saturating_sub(lacking);
        // Zones that find no room below are none to keep anything of.
        let reserve = self.reserve(zones.saturating_sub(lacking / self.yield_of_zone().max(1)), st);
        let physical = (in_zones - lacking).saturating_sub(for_group);
        let kept = self.kept_room(st);
        let for_frees = reserve / 2;
        let for_write_backs = for_frees / WRITE_BACK_PART;
        let for_promised = (for_frees - for_write_backs) / PROMISED_PART;
        Room {
            live: tables.live,
            limit: all.saturating_sub(reserve),
            limit_write_backs: all.saturating_sub(reserve - for_write_backs),
            limit_promised: all.saturating_sub(reserve - for_write_backs - for_promised),
            limit_frees: all.saturating_sub(reserve - for_frees),
            // Never so much that the victim in progress could not be emptied, or a group not be committed.
            writable: (physical + st.collector.credit(&tables))
                .saturating_sub(kept)
                .min(physical.saturating_sub(self.commit_room() + st.collector.remaining())),
            writable_frees: physical.saturating_sub(self.commit_room() / 2),
            of_zones: (limit_of_zones, in_zones.saturating_sub(for_group + self.commit_room() / 2)),
            is_stuck: st.collector.is_stuck,
            resets_wait: tables.emptied().any(|(_, zone)| !zone.unread),
            unread_since_ns: st.collector.unread.since_ns(),
            zones,
            ahead: self.room_ahead(st, zones),
            empty_zones: st.alloc.empty_count() as u64,
            imported: st.imported,
            incarnation: st.incarnation,
        }
    }

    /// What can hold something and stays, in zones of the largest size, and in bytes that it can be counted on to take. Devices may have
    /// zones of very different sizes: seven of a hundred zones of any size are not seven of a hundred of the largest.
    fn stock(&self, tables: &Tables, st: &SyncState) -> (u64, u64) {
        let leave =
            |zone: &Zone| zone.replicas().iter().any(|home| !self.store.devices.gives_room(home.device));
        let (mut resident, mut capacity) = (tables.zones.len() as u64, tables.capacity());
        if self.store.devices.any_gives_none() {
            for zone in tables.zones.values().filter(|zone| leave(zone)) {
                (resident, capacity) = (resident - 1, capacity.saturating_sub(zone.capacity));
            }
        }
        // What died holds what lives in it until that is moved, and no more.
        let dead = st.collector.dead().filter_map(|seq| tables.zones.get(&seq));
        for zone in dead.filter(|zone| !leave(zone)) {
            (resident, capacity) = (resident - 1, capacity.saturating_sub(zone.capacity));
        }
        // Likewise what is suspect, or was not read for long; but what lives there stays, and fills it.
        let unread = st.collector.unread.no_room().filter_map(|seq| Some((seq, tables.zones.get(&seq)?)));
        let unread = unread.filter(|(_, zone)| zone.phase != Phase::Suspect);
        let is_counted = |(seq, zone): &(ZoneSeq, &Zone)| !leave(zone) && !st.collector.is_dead(*seq);
        let mut stays = 0;
        for (_, zone) in tables.suspects().chain(unread).filter(is_counted) {
            (resident, capacity) = (resident - 1, capacity.saturating_sub(zone.capacity));
            stays += zone.live;
        }
        let stay = self.store.devices.capacities().into_iter();
        let empty: u64 = stay.map(|(device, _)| st.alloc.empty_on(device) as u64).sum();
        let all = self.zone_yield().of_all(capacity, resident) + self.empty_room(st) + stays;
        let per_zone = self.yield_of_zone().max(1);
        ((resident + empty).min((all + per_zone / 2) / per_zone), all)
    }

    /// Bytes that users can fill.
    pub(crate) fn offered(&self, tables: &Tables, st: &SyncState) -> u64 {
        let (zones, all) = self.stock(tables, st);
        all.saturating_sub(self.reserve(zones, st))
    }

    /// Bytes users can fill, bytes live, bytes available to users.
    pub fn space(&self) -> (u64, u64, u64) {
        let room = self.txg.room();
        let reserved = self.txg.reserved().min(room.limit / 64);
        let taken = room.live.saturating_add(reserved).saturating_add(self.txg.promised());
        (room.limit, room.live, room.limit.saturating_sub(taken))
    }

    /// The oldest group to keep whole: three back, but only one when zones are short.
    pub(crate) fn rollback_to(&self, st: &SyncState, txg: Txg) -> Txg {
        // While collection works for its room the pool waits for zones that were emptied.
        let wanted = self.kept_room(st) + self.room_ahead(st, self.txg.room().zones);
        let short = st.alloc.empty_count() < self.low_water() + 2 || self.physical_room(st) < wanted;
        let depth = if short { 1 } else { 3 };
        let older = st.recent.iter().rev().map(|(recent, _)| *recent).filter(|recent| *recent < txg);
        let back = older.take(depth).nth(depth - 1);
        back.unwrap_or(st.oldest).max(st.oldest)
    }

    /// Zones that were emptied and can be reset when their group is old enough. Those that are read by somebody, or could not be read, are
    /// not counted on.
    pub(crate) fn waiting_zones(&self) -> u64 {
        self.store.tables.read().emptied().filter(|(_, zone)| zone.comes_back()).count() as u64
    }

    /// Bytes that zones will take that wait so.
    pub(crate) fn waiting_room(&self) -> u64 {
        let zone_yield = self.zone_yield();
        let tables = self.store.tables.read();
        tables
            .emptied()
            .filter(|(_, zone)| zone.comes_back())
            .map(|(_, zone)| zone_yield.of(zone.capacity))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_is_half_of_what_a_victim_s_copies_take_where_zones_are_few() {
        const MIB: u64 = 1 << 20;
        assert_eq!(ahead_bytes(64 * MIB, 64, 1), 32 * MIB);
        assert_eq!(ahead_bytes(64 * MIB, 32, 1), 16 * MIB, "a part of a pool that has little");
        assert_eq!(ahead_bytes(64 * MIB, 8, 1), 16 * MIB, "a quarter of a zone at the least");
        assert_eq!(ahead_bytes(16 * MIB, 256, 4), 56 * MIB, "a zone for each further slot is more");
        assert_eq!(ahead_bytes(2 * MIB, 1024, 7), 20 * MIB);
        assert_eq!(ahead_bytes(256 * MIB, 100_000, 7), (1 << 30) + 6 * 256 * MIB);
    }
}
