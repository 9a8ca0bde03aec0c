//! The objects of one set that are in memory, and what they tell their set.
//!
//! While an object is held, every caller gets the same one. Objects know this table and nothing else of their set.

use super::Object;
use crate::dnode::{Dnode, SPILL_BYTES_MAX};
use crate::error::ObjectError;
use crate::tree::Whose;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_format::Feature;
use terrane_pool::Pool;
use terrane_wire::{NumberMap, ObjectId, ObjsetId, Txg};

const SHARDS: usize = 64;
/// What one thread reads ahead at once.
const AHEAD_BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Shard {
    objects: NumberMap<u64, Weak<Object>>,
    /// Counts objects that were forgotten: what was read before may be stale.
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
    me: Weak<ObjectTable>,
    shards: Vec<Mutex<Shard>>,
    /// Objects that the open group changed.
    dirty: Mutex<Vec<Arc<Object>>>,
    /// Stored bytes that groups free which are not durable yet.
    freeing: Mutex<BTreeMap<Txg, u64>>,
    /// How often changes of an object were lost to damage, and the numbers of those objects.
    lost: AtomicU64,
    lost_objects: Mutex<BTreeSet<ObjectId>>,
}

impl ObjectTable {
    pub fn new(pool: Arc<Pool>, objset: ObjsetId) -> Arc<ObjectTable> {
        Arc::new_cyclic(|me| ObjectTable {
            pool,
            objset,
            me: me.clone(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            dirty: Mutex::default(),
            freeing: Mutex::default(),
            lost: AtomicU64::new(0),
            lost_objects: Mutex::default(),
        })
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// An object that nothing finds here.
    pub fn loose(&self, id: ObjectId, dnode: Dnode) -> Arc<Object> {
        Arc::new(Object::new(self.me.clone(), Whose { objset: self.objset, object: id }, dnode))
    }

    /// A new object of a number that no other has.
    pub fn add(&self, id: ObjectId, dnode: Dnode) -> Arc<Object> {
        // Another one of this number may have lost some.
        self.lost_objects.lock().remove(&id);
        let object = self.loose(id, dnode);
        self.shard(id).lock().objects.insert(id.0, Arc::downgrade(&object));
        object
    }

    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        &self.shards[(id.0 % SHARDS as u64) as usize]
    }

    /// If it is in memory.
    pub fn find(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.shard(id).lock().find(id)
    }

    /// The object with this number, whose stored dnode `stored` reads if it must.
    pub fn hold(
        &self,
        id: ObjectId,
        stored: impl Fn() -> Result<Option<Dnode>, ObjectError>,
    ) -> Result<Arc<Object>, ObjectError> {
        let living = |object: Arc<Object>| {
            if object.is_destroyed() { Err(ObjectError::NotFound(id)) } else { Ok(object) }
        };
        loop {
            let epoch = {
                let shard = self.shard(id).lock();
                if let Some(object) = shard.find(id) {
                    return living(object);
                }
                shard.epoch
            };
            let dnode = stored()?.ok_or(ObjectError::NotFound(id))?;
            let mut shard = self.shard(id).lock();
            if shard.epoch != epoch {
                continue;
            }
            match shard.objects.get(&id.0).map(Weak::upgrade) {
                // Another caller may have come first.
                Some(Some(object)) => return living(object),
                // It was held since this began, may have changed and synced, and its last holder is just about to say that it went.
                Some(None) => {
                    shard.objects.remove(&id.0);
                    shard.epoch += 1;
                    continue;
                }
                None => {}
            }
            self.pool.expect_blocks_of(dnode.block_bytes);
            let object = self.loose(id, dnode);
            shard.objects.insert(id.0, Arc::downgrade(&object));
            return Ok(object);
        }
    }

    /// Its last holder dropped it.
    pub fn forget(&self, id: ObjectId) {
        let mut shard = self.shard(id).lock();
        if shard.objects.get(&id.0).is_some_and(|object| object.strong_count() == 0) {
            shard.objects.remove(&id.0);
        }
        shard.epoch += 1;
    }

    /// The group that destroyed the object has synced.
    pub fn retire(&self, object: &Arc<Object>) {
        let id = object.id();
        let mut shard = self.shard(id).lock();
        if shard.objects.get(&id.0).is_some_and(|held| std::ptr::eq(held.as_ptr(), Arc::as_ptr(object))) {
            shard.objects.remove(&id.0);
        }
        shard.epoch += 1;
    }

    /// As if the last holder of an object had just gone and not said so yet. How often that was said in its shard.
    #[cfg(test)]
    pub fn let_go_half(&self, id: ObjectId) -> u64 {
        let mut shard = self.shard(id).lock();
        shard.objects.insert(id.0, Weak::new());
        shard.epoch
    }

    /// The open group has changed it for the first time.
    pub fn mark_dirty(&self, object: Arc<Object>) {
        self.dirty.lock().push(object);
    }

    /// What the open group has changed: it has quiesced.
    pub fn move_dirty(&self, to: &mut Vec<Arc<Object>>) {
        to.append(&mut self.dirty.lock());
    }

    pub fn note_freeing(&self, txg: Txg, bytes: u64) {
        if bytes > 0 {
            let mut freeing = self.freeing.lock();
            let sum = freeing.entry(txg).or_default();
            // What dnodes say that they take may be a lie.
            *sum = sum.saturating_add(bytes);
        }
    }

    pub fn freeing_bytes(&self) -> u64 {
        self.freeing.lock().values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// What the group freed counts as free by itself now.
    pub fn synced(&self, txg: Txg) {
        self.freeing.lock().retain(|group, _| *group > txg);
    }

    pub fn note_lost_changes(&self, id: ObjectId) {
        self.lost_objects.lock().insert(id);
        self.lost.fetch_add(1, Ordering::AcqRel);
    }

    pub fn lost_changes(&self) -> u64 {
        self.lost.load(Ordering::Acquire)
    }

    pub fn has_lost_changes(&self, id: ObjectId) -> bool {
        self.lost_changes() > 0 && self.lost_objects.lock().contains(&id)
    }

    /// The largest spill that an object may have, in bytes; 0 in a pool that older versions must be able to read.
    pub fn spill_max(&self) -> usize {
        if self.pool.has(Feature::Xattr) { SPILL_BYTES_MAX } else { 0 }
    }

    /// Has other threads read blocks of a file into the cache, if it is still in use then.
    pub fn read_blocks_ahead(&self, id: ObjectId, block_bytes: u32, blocks: Vec<Range<u64>>) {
        let job_blocks = (AHEAD_BYTES / u64::from(block_bytes)).max(1);
        let mut job = Vec::new();
        let mut left = job_blocks;
        for mut blocks in blocks {
            while !blocks.is_empty() {
                let end = blocks.end.min(blocks.start + left);
                job.push(blocks.start..end);
                left -= end - blocks.start;
                blocks.start = end;
                if left == 0 {
                    self.offer_to_read(id, std::mem::take(&mut job));
                    left = job_blocks;
                }
            }
        }
        if !job.is_empty() {
            self.offer_to_read(id, job);
        }
    }

    fn offer_to_read(&self, id: ObjectId, blocks: Vec<Range<u64>>) {
        let table = self.me.clone();
        self.pool.offer(move || {
            if let Some(object) = table.upgrade().and_then(|table| table.find(id)) {
                object.read_blocks_ahead(&blocks);
            }
        });
    }
}
