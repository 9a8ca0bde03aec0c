//! The pool itself: what is shared by readers, writers and the sync, and how it ends.
//!
//! Locks, outermost first: `sync` (one group at a time), the group state in [`Groups`], `tables` (zones; read for every look-up,
//! written only by the sync), then leaves: gather buffers, caches, the heal queue. No lock but `sync` is held over a device write.

mod group;
mod tx;

pub use group::{Group, Stream, WriteRequest};
pub use tx::Tx;

use crate::state::by_hand::ByHand;
use crate::state::collector::Collector;
use crate::state::fates::Fates;
use crate::state::features::InForce;
use crate::state::groups::Groups;
use crate::state::hold::Held;
use crate::state::members::DeviceSummary;
use crate::state::trace::Recorder;
use crate::state::unread::GcRest;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_cache::parts::PARTS_PART;
use terrane_format::block_ptr::BlockPtr;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::label::Label;
use terrane_format::record::SectionPtr;
use terrane_format::rows::Phase;
use terrane_format::totals::{Recent, Totals};
use terrane_space::alloc::Allocator;
use terrane_space::policy::{CollectionOptions, Looks};
use terrane_space::turns::Turns;
use terrane_store::PoolError;
use terrane_store::append::Shared;
use terrane_store::append::Streams;
use terrane_store::commit_point::CommitPoint;
use terrane_store::env::Env;
use terrane_store::errors::Errors;
use terrane_store::patience::Suspension;
use terrane_store::reader::BlockReader;
use terrane_store::reports::Reports;
use terrane_store::zone_store::ZoneStore;
use terrane_wire::{Txg, ZoneSeq};

/// The floor above: whoever has dirty blocks when a group syncs.
pub trait Client: Send + Sync {
    /// The group has quiesced: nobody else holds it, nobody has joined the next one yet. What is still to be changed in it can be
    /// changed now, by `last`; everybody waits for that, so it must be little.
    fn quiesced(&self, last: &Tx);
    /// Writes everything that is dirty in the group; returns the pointer to the meta object set.
    fn sync(&self, group: &mut Group<'_>) -> Result<BlockPtr, PoolError>;
    /// The group is durable.
    fn synced(&self, txg: Txg);
}

/// A record that replay would still need, or would after a rewind.
pub(crate) struct Chained {
    pub txg: Txg,
    pub ptr: BootPtr,
    pub dead_log: Vec<BootPtr>,
}

/// What only the syncing thread touches.
pub(crate) struct SyncState {
    pub streams: Streams,
    pub alloc: Allocator,
    pub lease_txg: u64,
    pub incarnation: u64,
    pub commit_point: Box<dyn CommitPoint>,
    /// The newest durable group, and its record: whether a replay needs that or not.
    pub newest: Option<(Txg, BootPtr)>,
    pub chain: VecDeque<Chained>,
    pub sections: Vec<SectionPtr>,
    pub turns: Turns,
    pub root: BlockPtr,
    /// Committed groups that can be rolled back to, with their records, oldest first.
    pub recent: VecDeque<(Txg, BootPtr)>,
    /// The group that was imported.
    pub imported: Txg,
    /// What the newest uberblock names as oldest whole group.
    pub oldest: Txg,
    /// Zones that were reset since the last record, with the copies of their directory parts.
    pub resets_done: Vec<(ZoneSeq, Vec<(terrane_format::addr::Addr, u64)>)>,
    pub suspects: Vec<ZoneSeq>,
    /// Copies that lie where another copy does.
    pub shared: VecDeque<Shared>,
    pub collector: Collector,
    pub looks: Looks,
}

/// What a pool may hold in memory, in bytes, as [`ImportOptions`](crate::ImportOptions) have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// Cached blocks, and an eighth of that for the index of each cache device.
    pub cache_bytes: usize,
    pub dirty_bytes: u64,
    /// The run index and dead sets; what moves goes in larger pieces when it nears this.
    pub index_bytes: u64,
}

pub struct Pool {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) label: Mutex<Label>,
    pub(crate) store: Arc<ZoneStore>,
    pub(crate) reader: Arc<BlockReader>,
    pub(crate) reports: Arc<Reports>,
    /// What the zone tables should take at most, in bytes of memory.
    pub(crate) index_bytes_max: AtomicU64,
    /// That changed, and nobody has looked yet.
    pub(crate) index_bound_is_new: AtomicBool,
    /// What the pool had done before this import.
    pub(crate) before: Totals,
    pub(crate) recent: Mutex<Recent>,
    pub(crate) txg: Groups,
    pub(crate) sync: Mutex<SyncState>,
    pub(crate) read_only: bool,
    pub(crate) in_force: InForce,
    /// The largest record size in use, in bytes: what a zone's tail may fail to take.
    pub(crate) largest_block: AtomicU64,
    /// Bytes of as many sections of the tables as one group may rewrite in a hurry.
    pub(crate) sections_bytes: AtomicU64,
    /// Until the pool stops: it must not go before what is dirty in it, and it holds us.
    pub(crate) fates: Fates,
    pub(crate) collection: Mutex<CollectionOptions>,
    pub(crate) by_hand: Mutex<ByHand>,
    pub(crate) recorder: Recorder,
    pub(crate) client: Mutex<Option<Arc<dyn Client>>>,
    pub(crate) more_work: AtomicBool,
    /// What overwrites held says nothing of the next ones.
    pub(crate) looks_afresh: AtomicBool,
    pub(crate) device_summaries: Mutex<Vec<DeviceSummary>>,
    /// Suspect zones are to be looked at again.
    pub(crate) explains_afresh: AtomicBool,
    /// Devices on which collection rests, as of the last group.
    pub(crate) gc_rests: Mutex<Vec<GcRest>>,
    pub(crate) holds: Mutex<Vec<Weak<Held>>>,
    pub(crate) sync_thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// A pool in figures.
#[derive(Clone, Debug)]
pub struct Status {
    pub name: String,
    pub id: u64,
    pub txg: Txg,
    /// The group that was imported.
    pub imported: Txg,
    pub incarnation: u64,
    pub zone_size: u64,
    pub zones: u64,
    pub zones_empty: u64,
    pub zones_waiting: u64,
    /// Bytes users can fill, bytes live now, and bytes still available to users.
    pub size_bytes: u64,
    pub live_bytes: u64,
    pub available_bytes: u64,
    pub runs: u64,
    pub dead_set_bytes: u64,
    pub failed: Option<String>,
    /// A commit waits for a device that cannot be read.
    pub suspended: Option<Suspension>,
    pub errors: Errors,
}

impl Pool {
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.env
    }

    pub fn name(&self) -> String {
        self.label.lock().name.clone()
    }

    pub fn id(&self) -> u64 {
        self.store.pool
    }

    pub fn label(&self) -> Label {
        self.label.lock().clone()
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The largest stored block, in bytes.
    pub fn max_block(&self) -> u32 {
        self.label.lock().max_block
    }

    /// What administrators say about collection; holds from the next group on. Nothing is stored.
    pub fn set_collection(&self, options: CollectionOptions) {
        *self.collection.lock() = options;
    }

    /// As it was set, or the defaults.
    pub fn collection(&self) -> CollectionOptions {
        *self.collection.lock()
    }

    /// Whether this is the part of the day that was said to be idle.
    pub fn is_idle_time(&self) -> bool {
        let idle = self.collection.lock().idle;
        idle.is_some_and(|window| window.contains(self.env.minute_of_day()))
    }

    /// Registers the floor above; once, before the first group that has something for it. A pool that changes keeps it until
    /// [`Pool::export`] or [`Pool::abandon`], whoever else lets go of it: changes that wait for a commit are its. One that is only
    /// read never asks it anything.
    pub fn set_client(&self, client: Arc<dyn Client>) {
        if self.read_only {
            return;
        }
        let before = self.client.lock().replace(client);
        // The first one would not be asked any more: that is our own mistake, visible at once in every test.
        assert!(before.is_none(), "a pool has one client");
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client>> {
        self.client.lock().clone()
    }

    /// The same for a group that begins to sync. A pool that stops says so before it lets go of its client, so it is asked afterwards
    /// whether it lives: no group may go without what is dirty in one.
    pub(crate) fn client_if_alive(&self) -> Result<Option<Arc<dyn Client>>, PoolError> {
        let client = self.client();
        self.reports.alive().map(|()| client)
    }

    /// The pointer to the meta object set of the last committed group.
    pub fn root(&self) -> BlockPtr {
        self.sync.lock().root.clone()
    }

    pub(crate) fn threaded(&self) -> bool {
        self.env.workers() > 0
    }

    /// A group could not be committed: what is in memory may be ahead of the device in ways nobody knows, so nothing is written
    /// any more.
    pub(crate) fn fail(&self, error: &PoolError) {
        let reason: Arc<str> = match error {
            PoolError::Failed { reason } => reason.clone(),
            other => other.to_string().into(),
        };
        self.store.devices.host().stop();
        if self.reports.stop(reason.clone()) {
            log::error!("pool {}: {reason}; no more writes until the next import", self.name());
        }
    }

    /// Blocks are compressed otherwise from now on: whether overwrites hold what they replace is asked as if nothing were known.
    pub fn look_afresh(&self) {
        self.looks_afresh.store(true, Ordering::Relaxed);
    }

    /// Tells the pool how large records get: a zone's last bytes may not take one.
    pub fn expect_blocks_of(&self, bytes: u32) {
        // Asked of every object that is opened: what is known already costs no write.
        if self.largest_block.load(Ordering::Relaxed) < u64::from(bytes) {
            self.largest_block.fetch_max(u64::from(bytes), Ordering::Relaxed);
        }
    }

    pub fn status(&self) -> Status {
        let (size_bytes, live_bytes, available_bytes) = self.space();
        let label = self.label();
        let room = self.txg.room();
        let tables = self.store.tables.read();
        let index = tables.index_size();
        Status {
            name: label.name.clone(),
            id: self.store.pool,
            txg: self.txg.synced(),
            imported: room.imported,
            incarnation: room.incarnation,
            zone_size: label.zone_size,
            zones: label.members().map(|(_, row)| u64::from(row.block_zones())).sum(),
            zones_empty: room.empty_zones,
            zones_waiting: tables
                .zones
                .values()
                .filter(|zone| matches!(zone.phase, Phase::Emptied(_)))
                .count() as u64,
            size_bytes,
            live_bytes,
            available_bytes,
            runs: index.runs,
            dead_set_bytes: index.dead_set_bytes,
            failed: self.reports.stopped().map(|reason| reason.to_string()),
            suspended: self.suspension(),
            errors: self.errors(),
        }
    }

    /// What the zone tables should take at most, in bytes of memory.
    pub(crate) fn index_bytes_max(&self) -> u64 {
        self.index_bytes_max.load(Ordering::Relaxed)
    }

    /// Bounds anew what the pool holds in memory.
    pub fn set_bounds(&self, bounds: MemoryBounds) {
        self.reader.cache.set_budget(bounds.cache_bytes);
        self.store.parts.set_budget(bounds.cache_bytes / PARTS_PART);
        self.txg.set_dirty_budget(bounds.dirty_bytes);
        if self.index_bytes_max.swap(bounds.index_bytes, Ordering::Relaxed) != bounds.index_bytes {
            self.index_bound_is_new.store(true, Ordering::Relaxed);
            self.txg.want_empty();
        }
        self.reader.cache_devices.bound_indexes(bounds.cache_bytes);
    }

    /// Commits everything, completes a checkpoint, and marks the pool clean. The pool takes no more changes. When this has returned and
    /// the last handle is dropped, of the pool or of what is above it, its devices are free.
    pub fn export(self: &Arc<Self>) -> Result<(), PoolError> {
        let outcome = if self.read_only || self.reports.stopped().is_some() {
            self.reports.alive()
        } else {
            self.settle()
        };
        self.reports.stop("it was exported".into());
        self.txg.wake_all();
        self.stop_threads();
        outcome
    }

    /// Stops without committing anything, as a crash would: for tests, and for pools that failed.
    pub fn abandon(&self) {
        self.reports.stop("it was abandoned".into());
        self.store.devices.host().stop();
        self.txg.wake_all();
        self.stop_threads();
    }

    /// The next group rewrites all sections of the zone tables, so that no record before it is replayed.
    pub fn want_checkpoint(&self) {
        self.sync.lock().turns.want_all();
    }

    fn settle(self: &Arc<Self>) -> Result<(), PoolError> {
        self.commit()?;
        // Groups that only let emptied zones go, so that the space is given back before we leave; then the checkpoint.
        for _ in 0..6 {
            if !self.txg.room().resets_wait {
                break;
            }
            self.commit_txg(self.txg.open())?;
        }
        self.want_checkpoint();
        self.commit_txg(self.txg.open())?;
        let mut st = self.sync.lock();
        let last = st.chain.back().map(|last| (last.txg, last.ptr));
        match last {
            Some((txg, ptr)) => self.write_uberblock(&mut st, txg, ptr, true),
            None => Ok(()),
        }
    }

    fn stop_threads(&self) {
        self.stop_sync_loop();
        if let Err(error) = self.end_recording() {
            log::warn!("{error}; the last lines of the recording are lost");
        }
        self.reader.ahead.end();
        self.reader.stop_cache_devices();
        if let Some(thread) = self.sync_thread.lock().take() {
            // It may be the one that drops the last reference to the pool; it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        // Not under the lock: it may be the last to hold what is above us.
        let client = self.client.lock().take();
        drop(client);
    }
}
