//! What the pool has done so far: counters, and the figures made of them.
//!
//! [`Counters`](terrane_store::counters::Counters) are incremented where things happen, relaxed and without a lock; [`Pool::stats`] reads
//! them all, and adds what the tables say (zones, space). Everything but the gauges only grows from import on, so whoever wants rates
//! takes differences.
//!
//! Invariant: no counter decides anything; a pool behaves the same if all of them lie.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_cache::blocks::CacheStats;
use terrane_device::{Counted, Device, IoCounts};
use terrane_format::record::Class;
use terrane_format::rows::Phase;
use terrane_format::totals::Totals;
use terrane_store::counters::{Io, WaitFor};
use terrane_wire::DeviceIdx;
use terrane_wire::meter::Times;

/// Zones by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCounts {
    pub empty: u64,
    pub open: u64,
    pub full: u64,
    /// Nothing live; waiting until no group that could be rolled back to needs them.
    pub emptied: u64,
    pub suspect: u64,
}

/// What one device of an open pool has done, anchors and resets included.
#[derive(Clone, Debug)]
pub struct DeviceStats {
    pub name: String,
    pub io: IoCounts,
}

/// A pool's figures since its import.
#[derive(Clone, Debug)]
pub struct Stats {
    /// How long the counters have been counting.
    pub uptime_ns: u64,
    pub devices: Vec<DeviceStats>,
    /// From the device, by [`Class::ALL`].
    pub reads: [Io; Class::ALL.len()],
    pub writes: [Io; Class::ALL.len()],
    pub device_read: Times,
    pub device_write: Times,
    pub flush: Times,
    /// Since the pool was made; where it has no feature for that, since the import.
    pub totals: Totals,
    /// Since the import.
    pub totals_now: Totals,
    /// Bytes of blocks that were written, before and after compression.
    pub logical_bytes: u64,
    pub stored_bytes: u64,
    /// Overwrites that changed nothing, so that the old blocks stayed, and their bytes before compression.
    pub nopwrite_blocks: u64,
    pub nopwrite_bytes: u64,
    pub cache: CacheStats,
    /// The same, by [`Kind::ALL`].
    pub cache_by_kind: [CacheStats; Kind::ALL.len()],
    pub cache_bytes_max: u64,
    /// Committed groups: from the end of quiescing until they were durable.
    pub group: Times,
    /// How long changes were kept out while a group ended.
    pub quiesce: Times,
    /// Bytes that groups sent to the device.
    pub group_bytes: u64,
    /// Changes that could not join a group at once: how long they waited altogether.
    pub begin: Times,
    /// Waits before joining a group, by [`WaitFor::ALL`].
    pub waits: [Times; WaitFor::ALL.len()],
    pub no_space: u64,
    /// Changes that wait for room now, and the bytes they want.
    pub waiting: (u64, u64),
    /// Dirty bytes in memory now, and their bound.
    pub dirty_bytes: u64,
    pub dirty_bytes_max: u64,
    pub collected_zones: u64,
    pub collected_bytes: u64,
    pub reset_zones: u64,
    pub zones: ZoneCounts,
    /// Bytes users can fill, bytes live, bytes available to users.
    pub space: (u64, u64, u64),
    pub runs: u64,
    /// Memory of the run index: runs, and zones that are gone with what died of them since.
    pub run_index_bytes: u64,
    /// Zones that are gone are packed into intervals, because it was near its bound.
    pub run_index_packed: bool,
    /// What both should take at most.
    pub index_bytes_max: u64,
    /// Memory of the zone tables' dead sets.
    pub dead_set_bytes: u64,
    pub checksum_errors: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    /// Reads that no copy could serve.
    pub lost_blocks: u64,
    pub healed_blocks: u64,
    pub scrubbed_blocks: u64,
    /// Stored bytes of blocks that were written anew so that the run index keeps within its bound.
    pub reborn_bytes: u64,
    /// Groups that reset zones when their frees were told already, because a batch had failed and there was no other room.
    pub late_resets: u64,
    pub txg: u64,
    /// The pool has stopped writing.
    pub failed: bool,
}

impl Pool {
    /// Users wrote so many bytes into a file.
    pub fn note_user_bytes(&self, bytes: u64) {
        self.store.counters.user_bytes.add(bytes);
    }

    /// What the pool has done since it was made.
    pub fn totals(&self) -> Totals {
        self.activity.totals()
    }

    /// What it did in the last `window_ns`, and the time that is: not more than since the import.
    pub fn lately(&self, window_ns: u64) -> (u64, Totals) {
        self.activity.lately(window_ns)
    }

    /// Dirty bytes in memory, their bound, and how many changes wait for room: for who asks before each record.
    pub fn load(&self) -> (u64, u64, u64) {
        let (dirty_bytes, dirty_bytes_max) = self.admission.dirty();
        (dirty_bytes, dirty_bytes_max, self.admission.waiting().0)
    }

    /// What the pool has done so far. Cheap enough to be asked every second.
    pub fn stats(&self) -> Stats {
        let counters = &*self.store.counters;
        let (dirty_bytes, dirty_bytes_max) = self.admission.dirty();
        let mut zones = ZoneCounts::default();
        let tables = self.store.tables.read();
        for zone in tables.zones.values() {
            match zone.phase {
                Phase::Open => zones.open += 1,
                Phase::Full => zones.full += 1,
                Phase::Emptied(_) => zones.emptied += 1,
                Phase::Suspect => zones.suspect += 1,
                Phase::Gone => {}
            }
        }
        let (resident, index) = (tables.zones.len() as u64, tables.index_size());
        drop(tables);
        let cache_by_kind = self.reader.cache.stats();
        // Not from the sync's own list: it may hold that for as long as a group takes. Zones that died are in neither.
        zones.empty = self.admission.room().limits.zones.saturating_sub(resident);
        let device = |(_, device): (DeviceIdx, Arc<Counted>)| DeviceStats {
            name: device.info().name.clone(),
            io: device.counts(),
        };
        Stats {
            devices: self.store.devices.all().into_iter().map(device).collect(),
            uptime_ns: counters.now_ns().saturating_sub(counters.began_ns),
            reads: std::array::from_fn(|at| counters.reads(Class::ALL[at]).snapshot()),
            writes: std::array::from_fn(|at| counters.writes(Class::ALL[at]).snapshot()),
            device_read: counters.device_read.snapshot(),
            device_write: counters.device_write.snapshot(),
            flush: counters.flush.snapshot(),
            totals: self.totals(),
            totals_now: counters.totals(),
            logical_bytes: counters.logical_bytes.get(),
            stored_bytes: counters.stored_bytes.get(),
            nopwrite_blocks: counters.nopwrite_blocks.get(),
            nopwrite_bytes: counters.nopwrite_bytes.get(),
            cache: cache_by_kind.into_iter().sum(),
            cache_by_kind,
            cache_bytes_max: self.reader.cache.budget() as u64,
            group: counters.group.snapshot(),
            quiesce: counters.quiesce.snapshot(),
            group_bytes: counters.group_bytes.get(),
            begin: counters.begin.snapshot(),
            waits: std::array::from_fn(|at| counters.waits[at].snapshot()),
            no_space: counters.no_space.get(),
            waiting: self.admission.waiting(),
            dirty_bytes,
            dirty_bytes_max,
            collected_zones: counters.collected_zones.get(),
            collected_bytes: counters.collected_bytes.get(),
            reset_zones: counters.reset_zones.get(),
            zones,
            space: self.space(),
            runs: index.runs,
            run_index_bytes: index.run_index_bytes,
            run_index_packed: index.is_packed,
            index_bytes_max: self.collection.index_bytes_max(),
            dead_set_bytes: index.dead_set_bytes,
            checksum_errors: counters.checksum_errors.get(),
            read_errors: counters.read_errors.get(),
            write_errors: counters.write_errors.get(),
            lost_blocks: counters.lost_blocks.get(),
            healed_blocks: counters.healed_blocks.get(),
            scrubbed_blocks: counters.scrubbed_blocks.get(),
            reborn_bytes: counters.reborn_bytes.get(),
            late_resets: counters.late_resets.get(),
            txg: self.synced_txg().0,
            failed: self.reports.stopped().is_some(),
        }
    }
}
