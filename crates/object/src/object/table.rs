//! The objects of one set in memory, and what they report to their set.
//!
//! While an object is held, every caller gets the same one. Objects know this table and no other part of their
//! set.

#![expect(clippy::indexing_slicing, reason = "a remainder is below its divisor")]

use super::Object;
use crate::dnode::{Dnode, SPILL_BYTES_MAX};
use crate::error::ObjectError;
use crate::tree::TreeId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_format::Feature;
use terrane_pool::Pool;
use terrane_wire::{IdMap, ObjectId, ObjsetId, Txg};

const SHARDS: usize = 64;
/// Bytes that one thread prefetches at once.
const PREFETCH_JOB_BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Shard {
    objects: IdMap<u64, Weak<Object>>,
    /// Counts dropped objects: a dnode read before the count changed may be stale.
    epoch: u64,
}

impl Shard {
    fn find(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.objects.get(&id.0).and_then(Weak::upgrade)
    }
}

pub(crate) struct ObjectTable {
    pool: Arc<Pool>,
    objset: ObjsetId,
    /// The set is an old root, which must not change.
    is_read_only: bool,
    /// The blocks of the old root are being freed, and must not be read.
    is_closed: AtomicBool,
    me: Weak<ObjectTable>,
    shards: Vec<Mutex<Shard>>,
    /// Objects that the open txg changed.
    dirty: Mutex<Vec<Arc<Object>>>,
    /// Stored bytes freed by txgs that are not durable yet.
    freeing: Mutex<BTreeMap<Txg, u64>>,
    /// How often changes of an object were lost to damage, and the numbers of those objects.
    lost_count: AtomicU64,
    lost_objects: Mutex<BTreeSet<ObjectId>>,
}

impl ObjectTable {
    pub fn new(pool: Arc<Pool>, objset: ObjsetId, is_read_only: bool) -> Arc<ObjectTable> {
        Arc::new_cyclic(|me| ObjectTable {
            pool,
            objset,
            is_read_only,
            is_closed: AtomicBool::new(false),
            me: me.clone(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            dirty: Mutex::default(),
            freeing: Mutex::default(),
            lost_count: AtomicU64::new(0),
            lost_objects: Mutex::default(),
        })
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// An object that lookups in this table do not find.
    pub fn new_unlisted(&self, id: ObjectId, dnode: Dnode) -> Arc<Object> {
        Arc::new(Object::new(self.me.clone(), TreeId { objset: self.objset, object: id }, dnode))
    }

    /// Adds a new object with an unused number.
    pub fn add(&self, id: ObjectId, dnode: Dnode) -> Arc<Object> {
        // An earlier object with this number may have lost changes.
        self.lost_objects.lock().remove(&id);
        let object = self.new_unlisted(id, dnode);
        self.shard(id).lock().objects.insert(id.0, Arc::downgrade(&object));
        object
    }

    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        &self.shards[(id.0 % SHARDS as u64) as usize]
    }

    /// The object with this number, if it is in memory.
    pub fn find(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.shard(id).lock().find(id)
    }

    /// The object with this number; `read_dnode` is called if necessary.
    pub fn hold(
        &self,
        id: ObjectId,
        read_dnode: impl Fn() -> Result<Option<Dnode>, ObjectError>,
    ) -> Result<Arc<Object>, ObjectError> {
        let unless_destroyed = |object: Arc<Object>| {
            if object.is_destroyed() { Err(ObjectError::NotFound(id)) } else { Ok(object) }
        };
        loop {
            let epoch = {
                let shard = self.shard(id).lock();
                if let Some(object) = shard.find(id) {
                    return unless_destroyed(object);
                }
                shard.epoch
            };
            let dnode = read_dnode()?.ok_or(ObjectError::NotFound(id))?;
            let mut shard = self.shard(id).lock();
            if shard.epoch != epoch {
                continue;
            }
            match shard.objects.get(&id.0).map(Weak::upgrade) {
                // Another caller has loaded it first.
                Some(Some(object)) => return unless_destroyed(object),
                // It was held since this call began, so it may have changed and synced. Its last holder is
                // about to call `forget`.
                Some(None) => {
                    shard.objects.remove(&id.0);
                    shard.epoch += 1;
                    continue;
                }
                None => {}
            }
            self.pool.note_record_size(dnode.block_bytes);
            let object = self.new_unlisted(id, dnode);
            shard.objects.insert(id.0, Arc::downgrade(&object));
            return Ok(object);
        }
    }

    /// The object's last reference was dropped.
    pub fn forget(&self, id: ObjectId) {
        let mut shard = self.shard(id).lock();
        if shard.objects.get(&id.0).is_some_and(|object| object.strong_count() == 0) {
            shard.objects.remove(&id.0);
        }
        shard.epoch += 1;
    }

    /// Removes an object whose destruction has synced.
    pub fn remove_destroyed(&self, object: &Arc<Object>) {
        let id = object.id();
        let mut shard = self.shard(id).lock();
        if shard.objects.get(&id.0).is_some_and(|held| std::ptr::eq(held.as_ptr(), Arc::as_ptr(object))) {
            shard.objects.remove(&id.0);
        }
        shard.epoch += 1;
    }

    /// Simulates a last reference that is dropped but has not called `forget` yet. Returns the shard's epoch.
    #[cfg(test)]
    pub fn simulate_last_drop(&self, id: ObjectId) -> u64 {
        let mut shard = self.shard(id).lock();
        shard.objects.insert(id.0, Weak::new());
        shard.epoch
    }

    /// Adds an object that the open txg changes for the first time.
    pub fn mark_dirty(&self, object: Arc<Object>) {
        self.dirty.lock().push(object);
    }

    /// Moves the changed objects of the txg that has quiesced to `to`.
    pub fn move_dirty(&self, to: &mut Vec<Arc<Object>>) {
        to.append(&mut self.dirty.lock());
    }

    pub fn note_freeing(&self, txg: Txg, bytes: u64) {
        let mut freeing = self.freeing.lock();
        let sum = freeing.entry(txg).or_default();
        // The used bytes in a dnode may be damaged.
        *sum = sum.saturating_add(bytes);
    }

    /// Whether a txg that is not durable yet has freed anything, if only an object.
    pub fn is_freeing(&self) -> bool {
        !self.freeing.lock().is_empty()
    }

    pub fn freeing_bytes(&self) -> u64 {
        self.freeing.lock().values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The freed bytes of this txg are included in the pool's free space now.
    pub fn synced(&self, txg: Txg) {
        self.freeing.lock().retain(|freed_in, _| *freed_in > txg);
    }

    pub fn note_lost_changes(&self, id: ObjectId) {
        self.lost_objects.lock().insert(id);
        self.lost_count.fetch_add(1, Ordering::AcqRel);
    }

    pub fn lost_changes(&self) -> u64 {
        self.lost_count.load(Ordering::Acquire)
    }

    pub fn has_lost_changes(&self, id: ObjectId) -> bool {
        self.lost_changes() > 0 && self.lost_objects.lock().contains(&id)
    }

    /// Maximum spill of an object in bytes; 0 in a pool that older versions must be able to read.
    pub fn spill_max(&self) -> usize {
        if self.pool.has(Feature::Xattr) { SPILL_BYTES_MAX } else { 0 }
    }

    /// Prefetches blocks of a file on other threads, if it is still in use then.
    pub fn prefetch_blocks(&self, id: ObjectId, block_bytes: u32, blocks: Vec<Range<u64>>) {
        let job_blocks = (PREFETCH_JOB_BYTES / u64::from(block_bytes)).max(1);
        let mut job = Vec::new();
        let mut left = job_blocks;
        for mut blocks in blocks {
            while !blocks.is_empty() {
                let end = blocks.end.min(blocks.start + left);
                job.push(blocks.start..end);
                left -= end - blocks.start;
                blocks.start = end;
                if left == 0 {
                    self.queue_prefetch(id, std::mem::take(&mut job));
                    left = job_blocks;
                }
            }
        }
        if !job.is_empty() {
            self.queue_prefetch(id, job);
        }
    }

    fn queue_prefetch(&self, id: ObjectId, blocks: Vec<Range<u64>>) {
        let table = self.me.clone();
        self.pool.offer_prefetch(move || {
            if let Some(object) = table.upgrade().and_then(|table| table.find(id)) {
                object.prefetch_blocks(&blocks);
            }
        });
    }
}
