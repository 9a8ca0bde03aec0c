//! Statistics of the pool: counters, and figures derived from them.
//!
//! [`Counters`](terrane_store::counters::Counters) are incremented where events happen, relaxed and without a
//! lock. [`Pool::stats`] reads them all, and adds figures of the tables (zones, space). All but the gauges
//! only grow from import on, so rates are differences.
//!
//! Invariant: no counter decides anything; a pool behaves the same if all counters are wrong.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_cache::blocks::CacheStats;
use terrane_codec::GivenUpCodec;
use terrane_device::{Counted, Device, IoCounts, RequestCounts};
use terrane_format::record::ZoneClass;
use terrane_format::rows::Phase;
use terrane_format::totals::Totals;
use terrane_space::account::SpaceParts;
use terrane_store::counters::{Io, WaitFor};
use terrane_txg::activity::Reclaim;
use terrane_wire::DeviceIdx;
use terrane_wire::meter::HistogramSnapshot;

/// Zones by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCounts {
    /// Zones that hold nothing. Zones of which the device takes no more writes are not counted.
    pub empty: u64,
    /// Zones that blocks are appended to.
    pub open: u64,
    /// Zones that take no more blocks.
    pub full: u64,
    /// Zones without live blocks that wait until no txg that could be rolled back to needs them.
    pub emptied: u64,
    /// Zones whose directory contradicts the tables, or with damaged live blocks. They are kept.
    pub suspect: u64,
}

/// I/O of one device of an open pool, anchors and resets included.
#[derive(Clone, Debug)]
pub struct DeviceStats {
    /// The path, or another name of the device.
    pub name: String,
    /// Its I/O since it was opened.
    pub io: IoCounts,
    /// What was asked of its object store, if it lies in one.
    pub requests: Option<RequestCounts>,
}

/// What the bytes of the devices are kept for. Anchors, unusable bytes and the parts of zones add up to `device_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptSpace {
    /// All zones of all devices.
    pub device_bytes: u64,
    /// Zones that hold labels and uberblocks.
    pub anchor_bytes: u64,
    /// Zones that are not used: their device leaves, takes no more writes, or they are suspect. Bytes of zones above their capacity.
    pub unusable_bytes: u64,
    /// What the other zones are kept for.
    pub parts: SpaceParts,
}

/// Statistics of a pool since its import.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Time since the counters began, in nanoseconds.
    pub uptime_ns: u64,
    /// The devices that are present, by index.
    pub devices: Vec<DeviceStats>,
    /// I/O of the devices, by [`ZoneClass::ALL`].
    pub reads: [Io; ZoneClass::ALL.len()],
    /// Writes of the devices, by [`ZoneClass::ALL`].
    pub writes: [Io; ZoneClass::ALL.len()],
    /// Duration of reads, each retry counted.
    pub device_read: HistogramSnapshot,
    /// Duration of batch writes.
    pub device_write: HistogramSnapshot,
    /// Duration of flushes, one for each device.
    pub flush: HistogramSnapshot,
    /// Totals since the pool was created; without the feature `Totals`, since the import.
    pub totals: Totals,
    /// Totals since the import.
    pub totals_now: Totals,
    /// Bytes of written blocks, before and after compression.
    pub logical_bytes: u64,
    /// Those bytes after compression.
    pub stored_bytes: u64,
    /// Blocks that compression gave up, by algorithm.
    pub given_up: Vec<GivenUpCodec>,
    /// Overwrites that changed nothing, so that the old blocks were kept, and their bytes before compression.
    pub nopwrite_blocks: u64,
    /// Those bytes.
    pub nopwrite_bytes: u64,
    /// The cache of blocks in memory.
    pub cache: CacheStats,
    /// The same, by [`Kind::ALL`].
    pub cache_by_kind: [CacheStats; Kind::ALL.len()],
    /// Bound of the cache, in bytes.
    pub cache_bytes_max: u64,
    /// Duration of commits, from the end of quiescing until the txg was durable.
    pub txg_sync: HistogramSnapshot,
    /// Time for which operations could not join while a txg quiesced.
    pub quiesce: HistogramSnapshot,
    /// Bytes that txgs sent to the devices.
    pub txg_bytes: u64,
    /// Total waiting time of operations that could not join a txg at once.
    pub begin: HistogramSnapshot,
    /// Waits before joining a txg, by [`WaitFor::ALL`].
    pub waits: [HistogramSnapshot; WaitFor::ALL.len()],
    /// Operations that were refused because the pool, or the host below it, is full.
    pub no_space: u64,
    /// Operations that wait for space now, and the bytes that they need.
    pub waiting: (u64, u64),
    /// Dirty bytes in memory now, and their bound.
    pub dirty_bytes: u64,
    /// The present bound of dirty bytes, which follows the speed of the devices.
    pub dirty_bytes_max: u64,
    /// Victims from which GC moved all that it could move.
    pub collected_zones: u64,
    /// Stored bytes that GC moved.
    pub collected_bytes: u64,
    /// Zones that were reset.
    pub reset_zones: u64,
    /// Zones by state, now.
    pub zones: ZoneCounts,
    /// Bytes that users can fill, live bytes, and bytes available to users.
    pub space: (u64, u64, u64),
    /// What the bytes of the devices are kept for.
    pub kept: KeptSpace,
    /// What collection gave since the import.
    pub reclaim: Reclaim,
    /// Entries of the relocation index.
    pub runs: u64,
    /// Memory of the relocation index: runs, and rows of reclaimed zones.
    pub run_index_bytes: u64,
    /// Rows of reclaimed zones are packed into leaves, because the index was near its bound.
    pub run_index_packed: bool,
    /// Memory bound of the relocation index and the dead sets together.
    pub index_bytes_max: u64,
    /// Memory of the zone tables' dead sets.
    pub dead_set_bytes: u64,
    /// Copies that were read but did not match their checksum.
    pub checksum_errors: u64,
    /// Failed reads, each retry counted.
    pub read_errors: u64,
    /// Failed batch writes.
    pub write_errors: u64,
    /// Reads that no copy could serve.
    pub lost_blocks: u64,
    /// Damaged copies that were replaced by good bytes.
    pub healed_blocks: u64,
    /// Blocks of which a scrub read every copy.
    pub scrubbed_blocks: u64,
    /// Stored bytes of blocks that were rewritten to keep the relocation index within its bound.
    pub rewritten_bytes: u64,
    /// Commits that reset zones after their frees were already collected, because a batch had failed and no
    /// other space was left.
    pub late_resets: u64,
    /// The newest committed txg.
    pub txg: u64,
    /// The pool has stopped writing.
    pub failed: bool,
}

impl Pool {
    /// Counts bytes that users wrote into a file.
    pub fn note_user_bytes(&self, bytes: u64) {
        self.store.counters.user_bytes.add(bytes);
    }

    /// Totals since the pool was created.
    pub fn totals(&self) -> Totals {
        self.activity.totals()
    }

    /// Totals of the last `window_ns`, and the nanoseconds that they cover: at most the time since import.
    pub fn recent_totals(&self, window_ns: u64) -> (u64, Totals) {
        self.activity.recent_totals(window_ns)
    }

    /// What collection gave in the last `window_ns`, or since the import.
    pub fn recent_reclaim(&self, window_ns: u64) -> Reclaim {
        self.activity.recent_reclaim(window_ns)
    }

    /// What the bytes of the devices are kept for, as of the last commit.
    fn kept_space(&self) -> KeptSpace {
        let (device_bytes, anchor_bytes) = self.label().device_bytes();
        let parts = self.admission.space_snapshot().parts;
        let in_zones = device_bytes - anchor_bytes;
        KeptSpace { device_bytes, anchor_bytes, unusable_bytes: in_zones.saturating_sub(parts.zones), parts }
    }

    /// Dirty bytes in memory, their bound, and the number of operations that wait for space. Cheap enough for
    /// a call before each record.
    pub fn load(&self) -> (u64, u64, u64) {
        let (dirty_bytes, dirty_bytes_max) = self.admission.dirty();
        (dirty_bytes, dirty_bytes_max, self.admission.space_waiters().0)
    }

    /// Statistics since the import. Cheap enough for a call every second.
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
                Phase::Reclaimed => {}
            }
        }
        let (resident, index) = (tables.zones.len() as u64, tables.index_size());
        drop(tables);
        let cache_by_kind = self.reader.cache.stats();
        // Not from the allocator, because the sync may hold its lock for a whole txg. Dead zones are in
        // neither number.
        zones.empty = self.admission.space_snapshot().limits.zones.saturating_sub(resident);
        let device = |(_, device): (DeviceIdx, Arc<Counted>)| DeviceStats {
            name: device.info().name.clone(),
            io: device.counts(),
            requests: device.requests(),
        };
        Stats {
            devices: self.store.devices.all().into_iter().map(device).collect(),
            uptime_ns: counters.now_ns().saturating_sub(counters.began_ns),
            reads: std::array::from_fn(|at| counters.reads(ZoneClass::ALL[at]).snapshot()),
            writes: std::array::from_fn(|at| counters.writes(ZoneClass::ALL[at]).snapshot()),
            device_read: counters.device_read.snapshot(),
            device_write: counters.device_write.snapshot(),
            flush: counters.flush.snapshot(),
            totals: self.totals(),
            totals_now: counters.totals(),
            logical_bytes: counters.logical_bytes.get(),
            stored_bytes: counters.stored_bytes.get(),
            given_up: self.reader.pipeline.workers().given_up().snapshot().to_vec(),
            nopwrite_blocks: counters.nopwrite_blocks.get(),
            nopwrite_bytes: counters.nopwrite_bytes.get(),
            cache: cache_by_kind.into_iter().sum(),
            cache_by_kind,
            cache_bytes_max: self.reader.cache.budget() as u64,
            txg_sync: counters.txg_sync.snapshot(),
            quiesce: counters.quiesce.snapshot(),
            txg_bytes: counters.txg_bytes.get(),
            begin: counters.begin.snapshot(),
            waits: std::array::from_fn(|at| counters.waits[at].snapshot()),
            no_space: counters.no_space.get(),
            waiting: self.admission.space_waiters(),
            dirty_bytes,
            dirty_bytes_max,
            collected_zones: counters.collected_zones.get(),
            collected_bytes: counters.collected_bytes.get(),
            reset_zones: counters.reset_zones.get(),
            zones,
            space: self.space(),
            kept: self.kept_space(),
            reclaim: self.activity.reclaim(),
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
            rewritten_bytes: counters.rewritten_bytes.get(),
            late_resets: counters.late_resets.get(),
            txg: self.synced_txg().0,
            failed: self.reports.stop_reason().is_some(),
        }
    }
}
