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
use terrane_wire::{IdMap, ObjectId};
use terrane_zap::{Cursor, Entry, KeyRef, Kind, Value, ValueRef, ValueShape};

/// Entries that [`ZapHandle::iter`] reads at a time.
const ITER_PAGE: usize = 256;
/// Limit of ZAPs noted for shrinking; one beyond it is noted when it loses another entry.
const SHRINK_DUE_MAX: usize = 4096;

/// The planned changes of a batch, for which space is reserved. Other changes reserve theirs late, so the pool
/// may fill up without an error in time. Count the large changes; a few more names do not matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchPlan {
    created: u32,
    changed: u32,
    bytes: u64,
    frees: bool,
}

impl BatchPlan {
    /// A plan without changes.
    pub fn new() -> Self {
        BatchPlan::default()
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
        BatchPlan { frees: true, ..self.change(cost, entries) }
    }

    /// Plans to destroy a ZAP. The batch may use the GC reserve.
    pub fn destroy(self) -> Self {
        BatchPlan { frees: true, changed: self.changed.saturating_add(1), ..self }
    }

    /// Plans to shrink a ZAP to `bytes` bytes.
    pub(crate) fn shrink(bytes: u64) -> Self {
        BatchPlan { bytes, changed: 1, frees: true, ..BatchPlan::new() }
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
pub(crate) const DNODE_COST_BYTES: u64 = 2 * DNODE_BLOCK_BYTES;

/// Changes that become durable together. Drop it when they are done: the txg waits for it. A thread has one at
/// a time. There is no rollback: a failed operation changes nothing, but earlier ones of the batch stay.
#[must_use]
pub struct Batch {
    tx: Tx,
    /// Reserved bytes that are not used yet.
    reserved_left: Mutex<u64>,
}

impl Batch {
    /// Takes a transaction with `reserved` bytes.
    pub(crate) fn new(tx: Tx, reserved: u64) -> Batch {
        Batch { tx, reserved_left: Mutex::new(reserved) }
    }

    /// The txg that it belongs to.
    pub fn txg(&self) -> u64 {
        self.tx.txg().0
    }

    /// The transaction that the batch holds.
    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Refuses a batch of another pool: this pool would not wait for its changes, and might never store them.
    pub(crate) fn check_pool(&self, policy: &ZapPolicy) -> Result<(), ZapError> {
        let what = "the batch belongs to another pool";
        if policy.is_of_pool(&self.tx) { Ok(()) } else { Err(ZapError::Refused { what }) }
    }

    /// Uses reserved bytes; a shortfall is reserved now.
    pub(crate) fn charge(&self, bytes: u64) {
        let mut left = self.reserved_left.lock();
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
    reserved: (u64, u64),
}

impl State {
    fn charge(&mut self, batch: &Batch, cost: ChangeCost) {
        if self.reserved.0 != batch.txg() {
            self.reserved = (batch.txg(), 0);
        }
        let missing = cost.missing(self.reserved.1);
        self.reserved.1 += missing;
        batch.charge(missing);
    }
}

pub(crate) struct SharedZap {
    id: ObjectId,
    /// Knows whether it was destroyed. A handle may be created from an object that was opened before that.
    object: Arc<Object>,
    pub state: RwLock<State>,
    open_zaps: Arc<OpenZaps>,
}

impl SharedZap {
    pub(crate) fn is_destroyed(&self) -> bool {
        self.object.is_destroyed()
    }
}

impl Drop for SharedZap {
    fn drop(&mut self) {
        let mut zaps = self.open_zaps.zaps.lock();
        if zaps.get(&self.id.0).is_some_and(|zap| zap.strong_count() == 0) {
            zaps.remove(&self.id.0);
        }
    }
}

/// ZAPs that have a handle.
#[derive(Default)]
pub(crate) struct OpenZaps {
    zaps: Mutex<IdMap<u64, Weak<SharedZap>>>,
    /// ZAPs that lost entries and may be shrunk, with the txg of the loss. They are kept in memory for that.
    pub shrink_due: Mutex<BTreeMap<u64, (u64, Arc<SharedZap>)>>,
    pub dnode_blocks: DnodeBlocks,
}

impl OpenZaps {
    pub(crate) fn get(&self, id: ObjectId) -> Option<Arc<SharedZap>> {
        self.zaps.lock().get(&id.0).and_then(Weak::upgrade)
    }

    /// The caller holds the ZAP's lock.
    fn add_shrink_due(&self, zap: &Arc<SharedZap>, txg: u64) {
        let mut shrink_due = self.shrink_due.lock();
        if shrink_due.len() < SHRINK_DUE_MAX || shrink_due.contains_key(&zap.id.0) {
            shrink_due.insert(zap.id.0, (txg, Arc::clone(zap)));
        }
    }

    pub(crate) fn remove_shrink_due(&self, zap: &SharedZap) {
        // Dropped outside the lock: the drop takes locks.
        let forgotten = self.shrink_due.lock().remove(&zap.id.0);
        drop(forgotten);
    }
}

/// A ZAP. Clones share it.
#[derive(Clone)]
pub struct ZapHandle(pub(crate) Arc<SharedZap>);

impl ZapHandle {
    pub(crate) fn new(open: &Arc<OpenZaps>, zap: ObjectZap) -> Self {
        let (id, object) = (zap.object().id(), Arc::clone(zap.object()));
        let state = RwLock::new(State { zap, reserved: (0, 0) });
        let new = Arc::new(SharedZap { id, object, state, open_zaps: Arc::clone(open) });
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

    pub(crate) fn check_exists<'s>(&self, state: &'s State) -> Result<&'s ObjectZap, ZapError> {
        if self.0.is_destroyed() { Err(ObjectError::NotFound(self.0.id).into()) } else { Ok(&state.zap) }
    }

    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&ObjectZap) -> Result<T, ZapError>,
    ) -> Result<T, ZapError> {
        read(self.check_exists(&self.0.state.read())?)
    }

    /// Identifies the ZAP until it is destroyed.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    pub(crate) fn claim_dnode(&self, batch: &Batch) {
        if self.0.open_zaps.dnode_blocks.claim(batch.txg(), self.0.id) {
            batch.charge(DNODE_COST_BYTES);
        }
    }

    fn change<T>(
        &self,
        batch: &Batch,
        cost: impl FnOnce(&ObjectZap) -> ChangeCost,
        change: impl FnOnce(&mut ObjectZap, &Tx) -> Result<T, ZapError>,
    ) -> Result<T, ZapError> {
        let mut state = self.0.state.write();
        batch.check_pool(self.check_exists(&state)?.policy())?;
        let cost = cost(&state.zap);
        state.charge(batch, cost);
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
        let cost = |zap: &ObjectZap| zap.put_cost(key_bytes(key), value);
        self.change(batch, cost, |zap, tx| {
            let is_new = zap.update(tx, key, value)?;
            // Values of mixed widths make a ZAP fat. The last one may have got that of the others.
            if !is_new && zap.is_shrink_due() {
                self.0.open_zaps.add_shrink_due(&self.0, tx.txg().0);
            }
            Ok(is_new)
        })
    }

    /// Removes an entry; returns whether it existed.
    pub fn remove<'k>(&self, batch: &Batch, key: impl Into<KeyRef<'k>>) -> Result<bool, ZapError> {
        let key = key.into();
        self.change(batch, ObjectZap::remove_cost, |zap, tx| {
            let removed = zap.remove(tx, key)?;
            if removed && zap.is_shrink_due() {
                self.0.open_zaps.add_shrink_due(&self.0, tx.txg().0);
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

    /// Whether there is an entry with this key.
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

    /// Whether there is no entry.
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
        let mut page = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(entry) = page.next() {
                    return Some(Ok(entry));
                }
                match self.list(from.take()?, ITER_PAGE) {
                    Ok(entries) => {
                        let is_last = entries.len() < ITER_PAGE;
                        from = entries.last().filter(|_| !is_last).map(Entry::cursor_after);
                        page = entries.into_iter();
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
