//! Free space and its limits: measures the pool, and publishes the result to waiting operations.
//!
//! The limits are computed by [`SpaceAccount`]. Each GC step is published at once, so no operation waits for
//! a whole txg.
//!
//! Invariant: GC begins no victim that would need the space of operations that have joined.

use super::{Admission, SpaceSnapshot};
use crate::collector::Progress;
use crate::commit::INLINE_FREES_MAX;
use crate::gc_request::FullZones;
use crate::sync::SyncState;
use std::sync::atomic::Ordering;
use terrane_format::addr::granule_bytes;
use terrane_format::label::DEVICES_MAX;
use terrane_format::rows::Phase;
use terrane_space::account::{
    DeviceSpace, GARBAGE_MIN_DIVISOR, PendingResets, ResidentZones, SHARED_SLOTS, Sizes, Slots, SpaceAccount,
    Yield,
};
use terrane_space::policy::Supply;
use terrane_space::section_rotation::SECTIONS_IN_HURRY;
use terrane_space::zones::{Tables, Zone};
use terrane_wire::{DeviceIdx, Txg, ZoneSeq};

/// Free space that is needed to move one block to a zone apart from its other copy. The second is the maximum
/// that such blocks may take while zones are short.
pub const SEPARATED_BYTES_MIN: u64 = 128 << 10;
const SEPARATED_BYTES_MAX: u64 = 1 << 20;

impl Admission {
    /// What a zone yields, by the write unit and the largest record size in use.
    pub fn zone_yield(&self) -> Yield {
        let largest_block = self.largest_block.load(Ordering::Relaxed);
        Yield { unit: self.store.devices.write_unit(), largest_block }
    }

    /// Sizes on which the reserves of the pool depend.
    pub fn sizes(&self) -> Sizes {
        let largest = self.store.devices.capacities().into_iter().map(|(_, capacity)| capacity).max();
        Sizes {
            zone_yield: self.zone_yield(),
            largest_zone: largest.unwrap_or(0),
            sections_bytes: self.sections_bytes.load(Ordering::Relaxed),
            unreserved_bytes: self.unreserved_bytes.load(Ordering::Relaxed),
        }
    }

    /// All measures of space, as of now.
    pub fn account(&self, st: &SyncState) -> SpaceAccount {
        self.account_of(&self.store.tables.read(), st)
    }

    /// As [`account`](Self::account), for a caller that holds the lock of `tables`.
    pub fn account_of(&self, tables: &Tables, st: &SyncState) -> SpaceAccount {
        let sizes = self.sizes();
        SpaceAccount {
            sizes,
            live: tables.live,
            empty_zones: st.alloc.empty_count(),
            log_bytes: st.alloc.lent_bytes(),
            devices: self.device_spaces(st, &sizes),
            slots: slots(st, &sizes),
            residents: self.residents(tables, st),
            pending_resets: waiting_for_reset(tables, &sizes.zone_yield),
            gains: st.collector.gains(tables),
        }
    }

    fn device_spaces(&self, st: &SyncState, sizes: &Sizes) -> Vec<DeviceSpace> {
        let devices = &self.store.devices;
        let layout = st.streams.layout();
        // With many slots, open space is scattered, and a large block may fit none of the tails.
        let many = layout.kept_slots() > SHARED_SLOTS;
        let of_slot = |slot: usize| {
            let is_scattered = many || layout.extra().contains(&slot);
            let end = if is_scattered { granule_bytes(sizes.zone_yield.largest_block) } else { 0 };
            Some((st.streams.device_of(slot)?, st.streams.data_free_bytes(slot).saturating_sub(end)))
        };
        let open: Vec<(DeviceIdx, u64)> = (0..layout.slots()).filter_map(of_slot).collect();
        let of_device = |(device, zone_bytes): (DeviceIdx, u64)| DeviceSpace {
            zone_bytes,
            empty: st.alloc.empty_on(device) as u64,
            open_bytes: open.iter().filter(|(other, _)| *other == device).map(|(_, bytes)| bytes).sum(),
            host_free_bytes: devices.host_free_bytes(device),
        };
        devices.capacities().into_iter().map(of_device).collect()
    }

    /// Zones that hold something and will be free space again. Dead zones and zones that could not be reset
    /// are excluded.
    fn residents(&self, tables: &Tables, st: &SyncState) -> ResidentZones {
        let leave =
            |zone: &Zone| zone.replicas().iter().any(|home| !self.store.devices.gives_space(home.device));
        let (mut resident, mut capacity) = (tables.zones.len() as u64, tables.capacity());
        if self.store.devices.any_gives_no_space() {
            let withheld = (0..DEVICES_MAX as u16).map(DeviceIdx);
            for device in withheld.filter(|device| !self.store.devices.gives_space(*device)) {
                let usage = tables.device_usage(device);
                (resident, capacity) = (resident - usage.zones, capacity.saturating_sub(usage.capacity));
            }
        }
        // An unwritable zone holds its live data until that is moved, and takes nothing else.
        let unwritable = st.collector.unwritable().filter_map(|seq| tables.zones.get(&seq));
        for zone in unwritable.filter(|zone| !leave(zone)) {
            (resident, capacity) = (resident - 1, capacity.saturating_sub(zone.capacity));
        }
        // The same holds for suspect zones and long unreadable zones. But their live data stays, and fills
        // them.
        let given_up = st.collector.unread.given_up().filter_map(|seq| Some((seq, tables.zones.get(&seq)?)));
        let given_up = given_up.filter(|(_, zone)| zone.phase != Phase::Suspect);
        let is_counted = |(seq, zone): &(ZoneSeq, &Zone)| !leave(zone) && !st.collector.is_unwritable(*seq);
        let mut unreclaimable_bytes = 0;
        for (_, zone) in tables.suspects().chain(given_up).filter(is_counted) {
            (resident, capacity) = (resident - 1, capacity.saturating_sub(zone.capacity));
            unreclaimable_bytes += zone.live;
        }
        ResidentZones { zones: resident, capacity, unreclaimable_bytes }
    }

    /// Zones that wait for their reset.
    pub fn waiting_zones(&self) -> u64 {
        waiting_for_reset(&self.store.tables.read(), &self.zone_yield()).zones
    }

    /// How freely placement may use empty zones.
    pub fn zone_supply(&self, st: &SyncState) -> Supply {
        let space = self.space_snapshot();
        let empty = st.alloc.empty_count();
        Supply {
            zones: self.sizes().zone_supply(empty, self.reserved(), space.live, space.limits.live),
            extra_slots: space.extra_slots as usize,
        }
    }

    /// Publishes the space from within a syncing txg. It has written what was reserved in it, and still needs
    /// space for its own commit.
    pub fn publish_in_sync(&self, st: &SyncState) -> SpaceAccount {
        let (account, space) = self.measure_space(st, true);
        self.publish_space(space, true);
        account
    }

    /// `in_sync`: the txg under way must still be committed.
    pub fn measure_space(&self, st: &SyncState, in_sync: bool) -> (SpaceAccount, SpaceSnapshot) {
        // Computed before the update of `sections_bytes` below: the commit needs what was known before.
        let for_txg = if in_sync { self.sizes().commit_bytes() } else { 0 };
        let table_bytes: u64 = st.sections.iter().map(|section| u64::from(section.ptr.len)).sum();
        let in_a_hurry = u64::from(SECTIONS_IN_HURRY).min(st.sections.len() as u64);
        self.sections_bytes
            .store(table_bytes * in_a_hurry / (st.sections.len() as u64).max(1), Ordering::Relaxed);
        let tables = self.store.tables.read();
        self.store.devices.query_host_free();
        let account = self.account_of(&tables, st);
        let space = SpaceSnapshot {
            live: account.live,
            limits: account.limits(for_txg),
            parts: account.parts(),
            is_stuck: st.collector.is_stuck,
            extra_slots: account.extra_slots(),
            resets_wait: tables.emptied().any(|(_, zone)| !zone.unreadable),
            unread_since_ns: st.collector.unread.since_ns(),
            empty_zones: account.empty_zones as u64,
            imported: st.history.imported,
            incarnation: st.incarnation,
        };
        (account, space)
    }

    /// Bytes that users can fill, live bytes, and bytes available to users.
    pub fn space(&self) -> (u64, u64, u64) {
        let snapshot = self.space_snapshot();
        let reserved = self.reserved().min(snapshot.limits.live / 64);
        let taken = snapshot.live.saturating_add(reserved).saturating_add(self.file_reserved());
        (snapshot.limits.live, snapshot.live, snapshot.limits.live.saturating_sub(taken))
    }

    /// The oldest txg to keep whole: three back, but only one when zones are short.
    pub fn rollback_to(&self, st: &SyncState, txg: Txg) -> Txg {
        let depth = if self.account(st).is_short(self.space_snapshot().limits.zones) { 1 } else { 3 };
        st.history.rollback_to(txg, depth)
    }
}

fn slots(st: &SyncState, sizes: &Sizes) -> Slots {
    let (streams, layout) = (&st.streams, st.streams.layout());
    let others = (0..layout.slots()).filter(|slot| !layout.data().contains(slot));
    let metadata_only = layout.meta().into_iter().filter(|slot| layout.metadata_only_class(*slot).is_some());
    Slots {
        all: layout.kept_slots() as u64,
        data: layout.kept_data_slots() as u64,
        extra_wanted: streams.extra_wanted() as u64,
        non_data_bytes: others.map(|slot| streams.free_bytes(slot)).sum(),
        metadata_bytes: metadata_only.map(|slot| streams.metadata_needs(slot, sizes.per_zone())).sum(),
    }
}

fn waiting_for_reset(tables: &Tables, zone_yield: &Yield) -> PendingResets {
    let mut waiting = PendingResets::default();
    for (_, zone) in tables.emptied().filter(|(_, zone)| zone.is_resettable()) {
        waiting.zones += 1;
        waiting.bytes += zone_yield.of(zone.capacity);
    }
    waiting
}

impl Admission {
    /// Sums over all full zones. Takes time in proportion to their number.
    pub fn full_zones(&self) -> FullZones {
        let per_zone = self.sizes().per_zone();
        let tables = self.store.tables.read();
        let mut sum = FullZones { live: 0, garbage: 0, worth_emptying: 0 };
        for zone in tables.zones.values().filter(|zone| zone.phase == Phase::Full) {
            let capacity = per_zone.min(zone.capacity);
            let garbage = capacity.saturating_sub(zone.live);
            sum.live += zone.live;
            sum.garbage += garbage;
            sum.worth_emptying += u64::from(garbage > 0 && garbage >= capacity / GARBAGE_MIN_DIVISOR);
        }
        sum
    }
}

impl Admission {
    /// Whether shared copies can be separated. There must be copies that share a zone, and enough empty zones
    /// or enough free space in the slots of both metadata copies. No operation may wait for space.
    pub fn may_separate(&self, st: &SyncState) -> bool {
        let has_space = || {
            st.alloc.empty_count() >= self.sizes().min_empty_zones()
                || self.separation_budget(st) >= SEPARATED_BYTES_MIN
        };
        !st.colocated.is_empty() && has_space() && self.space_waiters().0 == 0
    }

    /// Bytes that separated copies may take while zones are short: at most half of the free space in either
    /// metadata slot, and an eighth of the unreserved writable bytes. Operations that join meanwhile may
    /// count on the same bytes, which the space for commits covers.
    pub fn separation_budget(&self, st: &SyncState) -> u64 {
        let open = st.streams.layout().meta().map(|slot| st.streams.data_free_bytes(slot)).into_iter().min();
        let writable = self.space_snapshot().limits.writable.saturating_sub(self.reserved());
        (open.unwrap_or(0) / 2).min(writable / 8).min(SEPARATED_BYTES_MAX)
    }
}

impl Admission {
    /// Upper bound of what the commit takes after the last victim that fits was emptied. It covers both
    /// copies of sections, of the record and of `frees`, and the tails of open zones that the last blocks did
    /// not fit.
    pub fn last_commit_bytes(&self, progress: &Progress, frees: usize) -> u64 {
        let entries = || progress.parts.iter().skip(progress.next_part).flat_map(|part| &part.entries);
        let sizes = || entries().map(|entry| granule_bytes(u64::from(entry.psize)));
        let largest = sizes().max().unwrap_or(0);
        let commit = LAST_COMMIT_BYTES + self.sizes().hurried_bytes() + 2 * largest;
        // The entries include dead blocks. The live bytes bound how many live blocks there can be.
        let moved =
            (entries().count() as u64).min(progress.cost.remaining() / sizes().min().unwrap_or(1).max(1));
        commit.min(self.sizes().commit_bytes() / LAST_COMMIT_DIVISOR)
            + moved * MOVED_ENTRY_BYTES
            + dead_log_bytes(frees)
    }

    /// Upper bound of the bytes that the rest of a txg writes, without the directory parts of its batches: both copies of sections, of
    /// the record with `runs` runs, and of `frees`.
    pub fn rest_of_commit_bytes(&self, st: &SyncState, runs: u64, frees: usize) -> u64 {
        let table_bytes: u64 = st.sections.iter().map(|section| u64::from(section.ptr.len)).sum();
        let due = u64::from(st.section_rotation.most_due(table_bytes));
        // A rewritten section may be larger than the one that is stored.
        let sections_bytes = (table_bytes + table_bytes / 4) * due / (st.sections.len() as u64).max(1);
        let inline_frees = frees.min(INLINE_FREES_MAX) as u64;
        let record_bytes = RECORD_BYTES + runs * RUN_BYTES + inline_frees * FREE_ENTRY_BYTES / 2;
        let padding = COMMIT_BATCHES * self.store.devices.write_unit();
        2 * (sections_bytes + record_bytes) + dead_log_bytes(frees) + padding
    }
}

fn dead_log_bytes(frees: usize) -> u64 {
    if frees > INLINE_FREES_MAX { frees as u64 * FREE_ENTRY_BYTES } else { 0 }
}

/// Bytes of a free in both copies of the dead log.
const FREE_ENTRY_BYTES: u64 = 2 * 14;
/// Bytes of a run in one copy of the record, and bytes of the rest of the record. One run in a thousand may take more.
const RUN_BYTES: u64 = 32;
const RECORD_BYTES: u64 = 8 << 10;
/// Paddings of the batches that a commit adds: two batches for the record, and two for second copies of directory parts. Each batch is
/// padded, and may begin behind a padded one.
const COMMIT_BATCHES: u64 = 8;
/// Bytes of a moved block in the directory and in both copies of the record.
const MOVED_ENTRY_BYTES: u64 = 128;
/// Both copies of an empty record, and padding, with a margin.
pub const LAST_COMMIT_BYTES: u64 = 256 << 10;
/// A last victim must leave at most 1/`LAST_COMMIT_DIVISOR` of the space for commits, and the space that its own blocks and frees take in
/// the commit. With a larger share GC could not run on a full pool.
pub const LAST_COMMIT_DIVISOR: u64 = 3;
