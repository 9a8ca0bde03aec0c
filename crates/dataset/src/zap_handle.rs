//! ZAP handles shared by threads, and the batches that change ZAPs.
//!
//! Invariant: there is one `ObjectZap` for an object, so its lock is the object's lock.

use crate::dnode_blocks::{DNODE_BLOCK_BYTES, DnodeBlocks};
use crate::error::ZapError;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::{ChangeCost, ObjectZap};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use terrane_object::{Object, ObjectError};
use terrane_pool::Tx;
use terrane_txg::cost::Cost;
use terrane_wire::{NumberMap, ObjectId};
use terrane_zap::{Cursor, Entry, KeyRef, Kind, Value, ValueRef, ValueShape};

/// Entries that [`ZapHandle::iter`] reads at a time.
const ITER_BATCH: usize = 256;
/// Limit of ZAPs noted for shrinking; one beyond it is noted when it loses another entry.
const DUE_MAX: usize = 4096;

/// The planned changes of a batch, for which space is reserved. Other changes reserve theirs late, so the pool
/// may fill up without an error in time. Count the large changes; a few more names do not matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    created: u32,
    changed: u32,
    bytes: u64,
    frees: bool,
}

impl Work {
    pub fn new() -> Self {
        Work::default()
    }

    /// Plans new ZAPs, each with `entries` entries of `entry_bytes` bytes of name and value.
    pub fn create(mut self, zaps: u32, entries: u64, entry_bytes: u64) -> Self {
        // In the worst case half of a slot is used. A fat ZAP has a header, a leaf, and blocks that are half
        // full.
        let slots = entries.saturating_mul(entry_bytes.saturating_add(16)).saturating_mul(2);
        let fat = if slots > SLOTS_BYTES_LIKELY { slots.saturating_mul(2) } else { 0 };
        self.created = self.created.saturating_add(zaps);
        self.bytes = self
            .bytes
            .saturating_add(u64::from(zaps).saturating_mul(slots.saturating_add(fat).saturating_add(512)));
        self
    }

    /// Plans to add or replace `entries` entries.
    pub fn put(self, zap: &ZapHandle, entries: u64, name_bytes: usize, value: ValueRef<'_>) -> Self {
        let cost = zap.0.state.read().zap.put_cost(name_bytes, value);
        self.change(cost, entries)
    }

    /// Plans to remove `entries` entries. The batch may use the GC reserve.
    pub fn remove(self, zap: &ZapHandle, entries: u64) -> Self {
        let cost = zap.0.state.read().zap.remove_cost();
        Work { frees: true, ..self.change(cost, entries) }
    }

    /// Plans to destroy a ZAP. The batch may use the GC reserve.
    pub fn destroy(self) -> Self {
        Work { frees: true, changed: self.changed.saturating_add(1), ..self }
    }

    /// Plans to shrink a ZAP to `bytes` bytes.
    pub(crate) fn settle(bytes: u64) -> Self {
        Work { bytes, changed: 1, frees: true, ..Work::new() }
    }

    fn change(mut self, cost: ChangeCost, times: u64) -> Self {
        self.changed = self.changed.saturating_add(1);
        self.bytes = self.bytes.saturating_add(cost.of_many(times));
        self
    }

    pub(crate) fn cost(&self) -> Cost {
        // New objects are adjacent, others anywhere.
        let dnode_blocks = u64::from(self.created / DNODES_PER_BLOCK) + 2 + u64::from(self.changed) * 2;
        Cost {
            meta_bytes: self.bytes.saturating_add(dnode_blocks * DNODE_BLOCK_BYTES),
            objects: self.created.saturating_add(self.changed),
            frees: self.frees && self.created == 0,
            ..Cost::NOTHING
        }
    }
}

/// Larger ZAPs are likely to be fat.
const SLOTS_BYTES_LIKELY: u64 = 128 << 10;
const DNODES_PER_BLOCK: u32 = 32;
/// Bytes of a dnode block, and of one indirect block above it.
pub(crate) const DNODE_BLOCKS_BYTES: u64 = 2 * DNODE_BLOCK_BYTES;

/// Changes that become durable together. Drop it when they are done: the txg waits for it. A thread has one at
/// a time. There is no rollback: a failed operation changes nothing, but earlier ones of the batch stay.
#[must_use]
pub struct Batch {
    tx: Tx,
    /// Reserved bytes that are not used yet.
    left: Mutex<u64>,
}

impl Batch {
    /// Takes a transaction with `reserved` bytes.
    pub(crate) fn new(tx: Tx, reserved: u64) -> Batch {
        Batch { tx, left: Mutex::new(reserved) }
    }

    /// The txg (group) that it belongs to.
    pub fn group(&self) -> u64 {
        self.tx.txg().0
    }

    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Refuses a batch of another pool: this pool would not wait for its changes, and might never store them.
    pub(crate) fn judge(&self, policy: &ZapPolicy) -> Result<(), ZapError> {
        let what = "the batch should be one of the same pool";
        if policy.is_of_pool(&self.tx) { Ok(()) } else { Err(ZapError::Options { what }) }
    }

    /// Uses reserved bytes; a shortfall is reserved now.
    pub(crate) fn cover(&self, bytes: u64) {
        let mut left = self.left.lock();
        let missing = bytes.saturating_sub(*left);
        *left = left.saturating_sub(bytes);
        if missing > 0 {
            self.tx.reserve_more(u32::try_from(missing.div_ceil(DNODE_BLOCK_BYTES)).unwrap_or(u32::MAX));
        }
    }
}

pub(crate) struct State {
    pub zap: ObjectZap,
    /// The newest txg that changed it, and the bytes that this txg has reserved for it.
    claimed: (u64, u64),
}

impl State {
    fn cover(&mut self, batch: &Batch, cost: ChangeCost) {
        if self.claimed.0 != batch.group() {
            self.claimed = (batch.group(), 0);
        }
        let missing = cost.missing(self.claimed.1);
        self.claimed.1 += missing;
        batch.cover(missing);
    }
}

pub(crate) struct Shared {
    id: ObjectId,
    /// Knows whether it was destroyed. A handle may be created from an object that was opened before that.
    object: Arc<Object>,
    pub state: RwLock<State>,
    open: Arc<Open>,
}

impl Shared {
    pub(crate) fn is_destroyed(&self) -> bool {
        self.object.is_destroyed()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut zaps = self.open.zaps.lock();
        if zaps.get(&self.id.0).is_some_and(|zap| zap.strong_count() == 0) {
            zaps.remove(&self.id.0);
        }
    }
}

/// ZAPs that have a handle.
#[derive(Default)]
pub(crate) struct Open {
    zaps: Mutex<NumberMap<u64, Weak<Shared>>>,
    /// ZAPs that lost entries and may be shrunk, with the txg of the loss. They are kept in memory for that.
    pub due: Mutex<BTreeMap<u64, (u64, Arc<Shared>)>>,
    pub dnode_blocks: DnodeBlocks,
}

impl Open {
    pub(crate) fn get(&self, id: ObjectId) -> Option<Arc<Shared>> {
        self.zaps.lock().get(&id.0).and_then(Weak::upgrade)
    }

    /// The caller holds the ZAP's lock.
    fn note_due(&self, zap: &Arc<Shared>, group: u64) {
        let mut due = self.due.lock();
        if due.len() < DUE_MAX || due.contains_key(&zap.id.0) {
            due.insert(zap.id.0, (group, Arc::clone(zap)));
        }
    }

    pub(crate) fn forget_due(&self, zap: &Shared) {
        // Dropped outside the lock: the drop takes locks.
        let forgotten = self.due.lock().remove(&zap.id.0);
        drop(forgotten);
    }
}

/// A ZAP. Clones share it.
#[derive(Clone)]
pub struct ZapHandle(pub(crate) Arc<Shared>);

impl ZapHandle {
    pub(crate) fn new(open: &Arc<Open>, zap: ObjectZap) -> Self {
        let (id, object) = (zap.object().id(), Arc::clone(zap.object()));
        let state = RwLock::new(State { zap, claimed: (0, 0) });
        let new = Arc::new(Shared { id, object, state, open: Arc::clone(open) });
        // Dropped after the lock is released: the drop takes that lock.
        let known;
        {
            let mut zaps = open.zaps.lock();
            known = zaps.get(&id.0).and_then(Weak::upgrade);
            // A number is reused after its object was destroyed. Old handles keep the destroyed object.
            if known.as_ref().is_none_or(|known| known.is_destroyed()) {
                zaps.insert(id.0, Arc::downgrade(&new));
                return ZapHandle(new);
            }
        }
        // Another thread was faster: all share its handle.
        ZapHandle(known.unwrap_or(new))
    }

    pub(crate) fn alive<'s>(&self, state: &'s State) -> Result<&'s ObjectZap, ZapError> {
        if self.0.is_destroyed() { Err(ObjectError::NotFound(self.0.id).into()) } else { Ok(&state.zap) }
    }

    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&ObjectZap) -> Result<T, ZapError>,
    ) -> Result<T, ZapError> {
        read(self.alive(&self.0.state.read())?)
    }

    /// Identifies the ZAP until it is destroyed.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    pub(crate) fn claim_dnode(&self, batch: &Batch) {
        if self.0.open.dnode_blocks.claim(batch.group(), self.0.id) {
            batch.cover(DNODE_BLOCKS_BYTES);
        }
    }

    fn change<T>(
        &self,
        batch: &Batch,
        cost: impl FnOnce(&ObjectZap) -> ChangeCost,
        change: impl FnOnce(&mut ObjectZap, &Tx) -> Result<T, ZapError>,
    ) -> Result<T, ZapError> {
        let mut state = self.0.state.write();
        batch.judge(self.alive(&state)?.policy())?;
        let cost = cost(&state.zap);
        state.cover(batch, cost);
        self.claim_dnode(batch);
        change(&mut state.zap, &batch.tx)
    }

    /// Adds an entry with integers of 1, 2, 4 or 8 bytes. `Exists`: the key exists.
    pub fn add<'k>(
        &self,
        batch: &Batch,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<(), ZapError> {
        let key = key.into();
        self.change(batch, |zap| zap.put_cost(key_bytes(key), value), |zap, tx| zap.add(tx, key, value))
    }

    /// Adds an entry or replaces its value; returns whether the key is new.
    pub fn update<'k>(
        &self,
        batch: &Batch,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<bool, ZapError> {
        let key = key.into();
        self.change(batch, |zap| zap.put_cost(key_bytes(key), value), |zap, tx| zap.update(tx, key, value))
    }

    /// Removes an entry; returns whether it existed.
    pub fn remove<'k>(&self, batch: &Batch, key: impl Into<KeyRef<'k>>) -> Result<bool, ZapError> {
        let key = key.into();
        self.change(batch, ObjectZap::remove_cost, |zap, tx| {
            let removed = zap.remove(tx, key)?;
            if removed && zap.is_shrink_due() {
                self.0.open.note_due(&self.0, tx.txg().0);
            }
            Ok(removed)
        })
    }

    /// The value of an entry; `None`: there is no such key.
    pub fn lookup<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>, ZapError> {
        self.read(|zap| zap.lookup(key))
    }

    /// The entry's first integer.
    pub fn lookup_u64<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<u64>, ZapError> {
        self.read(|zap| zap.lookup_u64(key))
    }

    pub fn contains<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<bool, ZapError> {
        Ok(self.shape(key)?.is_some())
    }

    /// Size in bytes and number of the value's integers.
    pub fn shape<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<ValueShape>, ZapError> {
        self.read(|zap| zap.shape(key))
    }

    /// Number of entries.
    pub fn len(&self) -> Result<u64, ZapError> {
        self.read(|zap| zap.len())
    }

    pub fn is_empty(&self) -> Result<bool, ZapError> {
        self.read(|zap| zap.is_empty())
    }

    /// Micro, tiny or fat.
    pub fn kind(&self) -> Result<Kind, ZapError> {
        self.read(|zap| zap.kind())
    }

    /// Up to `max` entries from `from` on, in hash order; fewer only at the end. A walk over several calls
    /// shows an entry that exists throughout exactly once, whatever happens to others.
    pub fn list(&self, from: Cursor, max: usize) -> Result<Vec<Entry>, ZapError> {
        self.read(|zap| zap.list(from, max))
    }

    /// All entries. No lock is held between two of them.
    pub fn iter(&self) -> impl Iterator<Item = Result<Entry, ZapError>> + '_ {
        let mut from = Some(Cursor::START);
        let mut batch = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(entry) = batch.next() {
                    return Some(Ok(entry));
                }
                match self.list(from.take()?, ITER_BATCH) {
                    Ok(entries) => {
                        let is_last = entries.len() < ITER_BATCH;
                        from = entries.last().filter(|_| !is_last).map(Entry::cursor_after);
                        batch = entries.into_iter();
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    /// Reads its blocks into the cache, in order, so that lookups and lists need not wait for the device. For a
    /// background thread.
    pub fn prefetch(&self) -> Result<(), ZapError> {
        let object = self.read(|zap| Ok(Arc::clone(zap.object())))?;
        for block in 0..object.block_count() {
            object.read_block(block)?;
        }
        Ok(())
    }

    /// Stored bytes of its blocks as of the last commit, all copies, plus the bytes that are dirty now.
    pub fn used_bytes(&self) -> Result<u64, ZapError> {
        self.read(|zap| Ok(zap.object().used_bytes()))
    }
}

fn key_bytes(key: KeyRef<'_>) -> usize {
    match key {
        KeyRef::Name(name) => name.len(),
        KeyRef::U64s(words) => words.len().saturating_mul(8),
    }
}
