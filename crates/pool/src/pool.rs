//! The pool: state that readers, writers and the sync share, and shutdown.
//!
//! Locks, outermost first: `sync` (one txg at a time); the txg state in `Admission`; `tables` (zones; read
//! for every look-up, written only by the sync). Then come the leaves: write buffers, caches, the heal
//! queue. No lock but `sync` is held over a device write.

mod sync_ctx;
mod tx;

pub(crate) use sync_ctx::Dropping;
pub use sync_ctx::{Stream, TxgSync, WriteRequest};
pub use tx::Tx;

use crate::found_log::LogState;
use crate::warming::Warming;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrane_cache::parts::PART_CACHE_DIVISOR;
use terrane_device::Device;
use terrane_format::block_ptr::BlockPtr;
use terrane_format::label::Label;
use terrane_format::rows::Phase;
use terrane_space::policy::CollectionOptions;
use terrane_store::PoolError;
use terrane_store::env::Env;
use terrane_store::errors::Errors;
use terrane_store::read_retry::Suspension;
use terrane_store::reader::BlockReader;
use terrane_store::reports::Reports;
use terrane_store::zone_store::ZoneStore;
use terrane_txg::activity::Activity;
use terrane_txg::admission::Admission;
use terrane_txg::control::CollectionControl;
use terrane_txg::hold::Holds;
use terrane_txg::lifetimes::Lifetimes;
use terrane_txg::membership::Membership;
pub(crate) use terrane_txg::sync::SyncState;
use terrane_txg::trace::Recorder;
use terrane_wire::Txg;

/// The layer above, which has the dirty blocks when a txg syncs.
pub trait Client: Send + Sync {
    /// The txg has quiesced: no other operation holds it, and none has joined the next one yet. Under `last`
    /// the client may still change something in it. All operations wait for that, so it must be quick.
    fn quiesced(&self, last: &Tx);
    /// Writes everything that is dirty in the txg; returns the pointer to the meta object set.
    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError>;
    /// The txg is durable.
    fn synced(&self, txg: Txg);
}

/// Memory bounds of a pool, in bytes, as in [`ImportOptions`](crate::ImportOptions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// Cached blocks. The index of each cache device gets an eighth of that in addition.
    pub cache_bytes: usize,
    /// Dirty data, waiting for its commit.
    pub dirty_bytes: u64,
    /// Relocation index and dead sets. Near this bound, survivors move in larger pieces.
    pub index_bytes: u64,
}

/// An imported pool. Every layer above shares it; [`Pool::export`] closes it.
pub struct Pool {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) membership: Membership,
    pub(crate) store: Arc<ZoneStore>,
    pub(crate) reader: Arc<BlockReader>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) collection: CollectionControl,
    pub(crate) activity: Activity,
    pub(crate) sync: Mutex<SyncState>,
    pub(crate) read_only: bool,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) recorder: Recorder,
    /// Set until the pool stops. The client must not be dropped before its dirty data is committed, and it
    /// holds the pool.
    pub(crate) client: Mutex<Option<Arc<dyn Client>>>,
    /// Forget what earlier overwrites held; it says nothing of the next ones.
    pub(crate) sampling_reset_wanted: AtomicBool,
    /// It is being exported, and each txg takes several requests to an object store: none does more than it must.
    pub(crate) closes_far: AtomicBool,
    pub(crate) warming: Warming,
    pub(crate) holds: Holds,
    pub(crate) log: LogState,
    pub(crate) sync_thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Figures of a pool.
#[derive(Clone, Debug)]
pub struct Status {
    /// The pool's name.
    pub name: String,
    /// The pool's id.
    pub id: u64,
    /// The newest committed txg.
    pub txg: Txg,
    /// The txg that was imported.
    pub imported: Txg,
    /// The incarnation, which each writable import increments.
    pub incarnation: u64,
    /// Bytes of a zone by the label, which is that of the first device.
    pub zone_size: u64,
    /// Zones for blocks on all devices.
    pub zones: u64,
    /// Zones that can be written at once.
    pub zones_empty: u64,
    /// Zones without live blocks that wait for their reset.
    pub zones_waiting: u64,
    /// Bytes that users can fill, live bytes, and bytes still available to users.
    pub size_bytes: u64,
    /// Live bytes.
    pub live_bytes: u64,
    /// Bytes still available to users.
    pub available_bytes: u64,
    /// Entries of the relocation index.
    pub runs: u64,
    /// Memory of the dead sets of resident zones.
    pub dead_set_bytes: u64,
    /// Why the pool has stopped writing; `None`: it has not.
    pub failed: Option<String>,
    /// A commit waits for a device that cannot be read.
    pub suspended: Option<Suspension>,
    /// The error log.
    pub errors: Errors,
}

impl Pool {
    /// Clock, randomness and threads.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.env
    }

    /// The pool's name.
    pub fn name(&self) -> String {
        self.membership.name()
    }

    /// The pool's id.
    pub fn id(&self) -> u64 {
        self.store.pool
    }

    /// A copy of the label in memory.
    pub fn label(&self) -> Label {
        self.membership.label()
    }

    /// Whether the pool was imported read-only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The largest stored block, in bytes.
    pub fn max_block(&self) -> u32 {
        self.membership.max_block()
    }

    /// Sets the GC options of the administrator, from the next txg on. They are not stored.
    pub fn set_collection(&self, options: CollectionOptions) {
        self.collection.set_options(options);
    }

    /// The options that were set, or the defaults.
    pub fn collection(&self) -> CollectionOptions {
        self.collection.options()
    }

    /// Whether this is the idle window of the day.
    pub fn is_idle_time(&self) -> bool {
        let idle = self.collection.options().idle;
        idle.is_some_and(|window| window.contains(self.env.minute_of_day()))
    }

    /// Registers the client; once, before the first txg that has dirty blocks for it. A writable pool holds
    /// it until [`Pool::export`] or [`Pool::abandon`], even if all other references are dropped: it has the
    /// uncommitted changes. A read-only pool never calls it.
    pub fn set_client(&self, client: Arc<dyn Client>) {
        if self.read_only {
            return;
        }
        let before = self.client.lock().replace(client);
        // The first client would never be called again. That is a bug, visible at once in every test.
        assert!(before.is_none(), "a pool has one client");
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client>> {
        self.client.lock().clone()
    }

    /// The client for a txg that begins to sync. A pool that stops sets its state before it drops the client.
    /// So the state is checked after the client was taken: no txg may commit without the client's dirty data.
    pub(crate) fn client_if_running(&self) -> Result<Option<Arc<dyn Client>>, PoolError> {
        let client = self.client();
        self.reports.check_running().map(|()| client)
    }

    /// The pointer to the meta object set of the last committed txg.
    pub fn root(&self) -> BlockPtr {
        self.sync.lock().root.clone()
    }

    pub(crate) fn threaded(&self) -> bool {
        self.env.workers() > 0
    }

    /// Whether it lies in an object store, so that a commit waits for several answers.
    pub(crate) fn is_far(&self) -> bool {
        self.store.devices.are_far()
    }

    /// Stops the pool because a txg could not be committed. The state in memory may differ from the device in
    /// unknown ways, so nothing more is written.
    pub(crate) fn fail(&self, error: &PoolError) {
        let reason: Arc<str> = match error {
            PoolError::Failed { reason } => reason.clone(),
            other => other.to_string().into(),
        };
        self.store.devices.host().stop();
        if self.reports.stop(reason.clone()) {
            log::error!("pool {} failed: {reason}; no writes until the next import", self.name());
        }
    }

    /// Stops the pool because an operation failed after its first change. A commit would store half of it.
    pub fn fail_operation(&self, error: &dyn std::fmt::Display) {
        let reason = format!("an operation failed after its first change: {error}");
        self.fail(&PoolError::Failed { reason: reason.into() });
    }

    /// The compression setting has changed. What is known about overwrites with equal content is forgotten.
    pub fn reset_nopwrite_sampling(&self) {
        self.sampling_reset_wanted.store(true, Ordering::Relaxed);
    }

    /// Reports a record size in use, in bytes. A zone's tail may be too short for such a block.
    pub fn note_record_size(&self, bytes: u32) {
        self.admission.note_record_size(bytes);
    }

    /// Sets how many bytes the client's syncs may write although no operation has reserved them, both copies included.
    /// They are kept free from now on.
    pub fn set_unreserved_bytes(&self, bytes: u64) {
        self.admission.set_unreserved_bytes(bytes);
    }

    /// Figures at this moment. Does not wait for a syncing txg.
    pub fn status(&self) -> Status {
        let (size_bytes, live_bytes, available_bytes) = self.space();
        let label = self.label();
        let space = self.admission.space_snapshot();
        let tables = self.store.tables.read();
        let index = tables.index_size();
        Status {
            name: label.name.clone(),
            id: self.store.pool,
            txg: self.admission.synced(),
            imported: space.imported,
            incarnation: space.incarnation,
            zone_size: label.zone_size,
            zones: label.members().map(|(_, row)| u64::from(row.block_zones())).sum(),
            zones_empty: space.empty_zones,
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
            failed: self.reports.stop_reason().map(|reason| reason.to_string()),
            suspended: self.suspension(),
            errors: self.errors(),
        }
    }

    /// Publishes the free space between two txgs, for operations that want to join.
    pub(crate) fn publish(&self, st: &SyncState) {
        let (_, space) = self.admission.measure_space(st, false);
        self.collection.set_rests(st.collector.unread.all_rests());
        self.admission.publish_space(space, false);
        self.publish_device_summaries(st);
    }

    /// Bytes that users can fill, live bytes, and bytes available to users.
    pub fn space(&self) -> (u64, u64, u64) {
        self.admission.space()
    }

    /// Devices that keep writes in memory until they are stored get half as much again as dirty data.
    pub(crate) fn bound_devices(&self, dirty_bytes: u64) {
        for (_, device) in self.store.devices.all() {
            device.set_write_memory(dirty_bytes / 2);
        }
    }

    /// A store that does not answer is waited for no longer than this from now on.
    pub fn hurry(&self, patience: Duration) {
        for (_, device) in self.store.devices.all() {
            device.hurry(patience);
        }
    }

    /// Changes the memory bounds.
    pub fn set_bounds(&self, bounds: MemoryBounds) {
        self.reader.cache.set_budget(bounds.cache_bytes);
        self.store.parts.set_budget(bounds.cache_bytes / PART_CACHE_DIVISOR);
        self.admission.set_dirty_budget(bounds.dirty_bytes);
        self.bound_devices(bounds.dirty_bytes);
        if self.collection.bound_index(bounds.index_bytes) {
            self.admission.want_empty();
        }
        self.reader.cache_devices.bound_indexes(bounds.cache_bytes);
    }

    /// Commits everything, completes a checkpoint, and marks the pool clean. The pool takes no more changes.
    /// The devices are free after the return, once the last handle of the pool and of its clients is dropped.
    pub fn export(self: &Arc<Self>) -> Result<(), PoolError> {
        let outcome = if self.read_only || self.reports.stop_reason().is_some() {
            self.reports.check_running()
        } else {
            self.commit_for_export()
        };
        self.reports.stop("exported".into());
        self.admission.wake_all();
        if outcome.is_ok() && self.is_far() && !self.read_only {
            // The metadata of the last txg.
            self.reader.feed_cache_devices();
        }
        self.stop_threads();
        outcome
    }

    /// Stops without a commit, as a crash would: for tests, and for pools that failed.
    pub fn abandon(&self) {
        self.reports.stop("abandoned".into());
        self.warming.stop();
        self.store.devices.host().stop();
        self.admission.wake_all();
        self.stop_threads();
    }

    /// Makes the next txg rewrite all sections of the zone tables, so that no earlier record is replayed.
    pub fn want_checkpoint(&self) {
        self.sync.lock().section_rotation.request_all();
    }

    fn commit_for_export(self: &Arc<Self>) -> Result<(), PoolError> {
        self.close_log();
        if self.is_far() {
            // The next import resets emptied zones as well.
            self.closes_far.store(true, Ordering::Relaxed);
            self.warming.stop();
            self.want_checkpoint();
            self.commit_txg(self.admission.open())?;
            self.end_unused_features()?;
            return self.write_clean_uberblock();
        }
        self.commit()?;
        // Empty txgs reset the emptied zones, so that their space is given back before the export. Then comes
        // the checkpoint.
        for _ in 0..6 {
            if !self.admission.space_snapshot().resets_wait {
                break;
            }
            self.commit_txg(self.admission.open())?;
        }
        self.end_unused_features()?;
        self.want_checkpoint();
        self.commit_txg(self.admission.open())?;
        self.write_clean_uberblock()
    }

    fn write_clean_uberblock(&self) -> Result<(), PoolError> {
        // No txg may follow it, not even an empty one.
        self.end_sync_thread();
        let mut st = self.sync.lock();
        let last = st.history.last();
        match last {
            Some((txg, ptr)) => self.write_uberblock(&mut st, txg, ptr, true),
            None => Ok(()),
        }
    }

    fn end_sync_thread(&self) {
        self.admission.stop();
        if let Some(thread) = self.sync_thread.lock().take() {
            // This may be the sync thread itself, with the last reference to the pool: it cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn stop_threads(&self) {
        if let Err(error) = self.end_recording() {
            log::warn!("recording failed, its last lines are lost: {error}");
        }
        self.reader.prefetch_queue.end();
        self.reader.stop_cache_devices();
        self.end_sync_thread();
        self.warming.end();
        // Dropped outside the lock: this may be the last reference to the client.
        let client = self.client.lock().take();
        drop(client);
    }
}
