//! Object sets: many objects, and their sync.
//!
//! The dnodes of a set are the blocks of its object 0; the header block holds the dnode of those. When a group syncs, the blocks of
//! all its dirty objects are written in one stream of parallel work, then each tree is rewritten, then the dnodes, then the header.
//!
//! Freeing is bounded: subtrees that are too large wait in the *free queue*, an object of the set, and a piece of them goes with every
//! group.
//!
//! Invariant: an object number is handed out again only after the group that freed it has committed (see `numbers`).

mod queue;
mod sync;

use crate::account::{Account, Ledger};
use crate::dirty::{Ranges, Spill};
use crate::dnode::{
    DNODE_BLOCK_BYTES, Dnode, ObjectKind, ObjsetHeader, SLOT_BYTES, SLOTS_MAX, SLOTS_PER_BLOCK, SPILL,
    SPILL_BYTES_MAX, check_block_bytes, dnode_at, dnode_offsets, dnodes_in, slot_of,
};
use crate::error::ObjectError;
use crate::numbers::{Numbers, add_slots};
use crate::object::{Frozen, Object, check_room};
use crate::outlook::{Replaced, born};
use crate::tree::{Rewrite, Whose, damage_only, free_subtree, metadata_compression};
use parking_lot::{Mutex, RwLock};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_codec::{AutoRange, ChecksumKind, Compression, CompressionPolicy};
use terrane_format::{BlockPtr, Feature, Owner};
use terrane_pool::{
    Cost, Group, Hint, Levels, Method, Patience, Placement, Pool, PoolError, Stream, Tx, WriteRequest,
};
use terrane_wire::{Corrupt, NumberMap, ObjectId, ObjsetId, Txg};

/// The free queue's number: far above any that is handed out.
pub const FREE_QUEUE: ObjectId = ObjectId(u64::MAX);
/// The header's number, as owner of its block.
pub const HEADER: u64 = u64::MAX - 1;
const SHARDS: usize = 64;
/// Blocks written in one go. Not bytes: of a few large blocks workers would get one each time, and wait for it.
const CHUNK_BLOCKS: usize = 512;
/// Blocks freed from the queue in one group.
const FREES_PER_GROUP: u64 = 64 << 10;
/// Dnode blocks looked through for free slots by one creation.
const SEARCH_BLOCKS: u32 = 4;

/// How file contents are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPolicy {
    pub compression: CompressionPolicy,
    pub checksum: ChecksumKind,
    /// Block size of new files, in bytes.
    pub record_size: u32,
    /// What is said about the life time of objects of which nobody said anything.
    pub write_hint: Hint,
}

impl Default for DataPolicy {
    fn default() -> Self {
        DataPolicy {
            compression: Compression::Lz4.into(),
            checksum: ChecksumKind::Blake3,
            record_size: 128 << 10,
            write_hint: Hint::NotSet,
        }
    }
}

/// A new object.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    pub kind: ObjectKind,
    /// Bytes of a block: a multiple of 512.
    pub block_size: u32,
    /// Slots of 512 bytes, 1 to 32.
    pub dnode_slots: u8,
    pub bonus: Vec<u8>,
    /// What does not fit the bonus: see [`Object::set_attributes`].
    pub spill: Option<Vec<u8>>,
}

/// Space, for `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes users can fill in the whole pool.
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub available_bytes: u64,
    pub objects: u64,
}

/// What one thread reads ahead at once.
const AHEAD_BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Shard {
    objects: NumberMap<u64, Weak<Object>>,
    /// Counts objects that were forgotten: what was read before may be stale.
    epoch: u64,
}

pub struct ObjectSet {
    pool: Arc<Pool>,
    id: ObjsetId,
    me: Weak<ObjectSet>,
    numbers: Mutex<Numbers>,
    dnodes: Arc<Object>,
    free_queue: Arc<Object>,
    queue: Mutex<Vec<BlockPtr>>,
    /// A part of it could not be read: it is tried again in a group that others ask for.
    queue_rests: AtomicBool,
    /// How often changes of an object were lost to damage, and the numbers of those objects.
    lost: AtomicU64,
    lost_objects: Mutex<BTreeSet<ObjectId>>,
    /// Stored bytes that groups free which are not durable yet.
    freeing: Mutex<BTreeMap<Txg, u64>>,
    account: Mutex<Option<Account>>,
    shards: Vec<Mutex<Shard>>,
    open: Mutex<Vec<Arc<Object>>>,
    syncing: Mutex<(Vec<Arc<Object>>, u64, u64)>,
    root: Mutex<BlockPtr>,
    policy: RwLock<DataPolicy>,
    /// Steers the policy's `zstd-auto`.
    levels: Arc<Levels>,
    /// The policy's, bounded by the pool's: every `stat` asks, so it takes no lock.
    record_size: AtomicU32,
    last_changes: Mutex<Vec<LastChanges>>,
}

/// What somebody still changes in a group before it syncs; false: in no other.
type LastChanges = Box<dyn FnMut(&Tx) -> bool + Send>;

impl ObjectSet {
    /// The set behind a root pointer; a hole is an empty set.
    pub(crate) fn open(pool: Arc<Pool>, id: ObjsetId, root: BlockPtr) -> Result<Arc<ObjectSet>, ObjectError> {
        let header = if root.is_hole() {
            ObjsetHeader::empty()
        } else {
            let raw = pool.read(&root, Owner::Block { objset: id.0, object: HEADER, level: 0, block: 0 })?;
            ObjsetHeader::parse(&raw, &format!("object set {id}"))?
        };
        let whose = |object| Whose { objset: id, object };
        let numbers = Numbers::new(header.objects, header.high_water);
        let max_block = pool.max_block();
        let set = Arc::new_cyclic(|me: &Weak<ObjectSet>| ObjectSet {
            dnodes: Arc::new(Object::new(me.clone(), whose(ObjectId(0)), header.dnodes)),
            free_queue: Arc::new(Object::new(me.clone(), whose(FREE_QUEUE), header.free_queue)),
            pool,
            id,
            me: me.clone(),
            numbers: Mutex::new(numbers),
            queue: Mutex::default(),
            queue_rests: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            lost_objects: Mutex::default(),
            freeing: Mutex::default(),
            account: Mutex::new(header.account),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            open: Mutex::default(),
            syncing: Mutex::new((Vec::new(), header.objects, header.high_water)),
            root: Mutex::new(root),
            record_size: AtomicU32::new(DataPolicy::default().record_size.min(max_block)),
            policy: RwLock::default(),
            levels: Levels::new(AutoRange::default()),
            last_changes: Mutex::default(),
        });
        *set.queue.lock() = set.load_queue()?;
        Ok(set)
    }

    fn load_queue(&self) -> Result<Vec<BlockPtr>, ObjectError> {
        let mut queue = Vec::new();
        for block in 0..self.free_queue.block_count() {
            let raw = self.free_queue.read_block(block)?;
            let before = queue.len();
            for raw in raw.chunks_exact(BlockPtr::SIZE) {
                let ptr = BlockPtr::parse(raw, &format_args!("free queue of object set {}", self.id))?;
                if !ptr.is_hole() {
                    queue.push(ptr);
                }
            }
            if queue.len() == before {
                // What was stored has no such block: without this a lie about their count would be followed for ever.
                let at = format!("free queue of object set {} block {block}", self.id);
                let expected = format!("pointers, as in each of {} blocks", self.free_queue.block_count());
                self.pool.report_damage(Corrupt::new(
                    at,
                    "content",
                    expected,
                    "none; what waits behind it is lost space",
                ));
                break;
            }
        }
        Ok(queue)
    }

    pub fn id(&self) -> ObjsetId {
        self.id
    }

    /// The meta object set: that of the pool itself.
    pub fn is_meta(&self) -> bool {
        self.id == ObjsetId(0)
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn dnodes(&self) -> &Arc<Object> {
        &self.dnodes
    }

    /// How often a commit went without what it should have stored of an object, because all copies of what that belongs into are damaged.
    pub fn lost_changes(&self) -> u64 {
        self.lost.load(Ordering::Acquire)
    }

    pub(crate) fn has_lost_changes(&self, id: ObjectId) -> bool {
        self.lost_changes() > 0 && self.lost_objects.lock().contains(&id)
    }

    /// The header's pointer, as of the last sync.
    pub fn root(&self) -> BlockPtr {
        self.root.lock().clone()
    }

    pub fn policy(&self) -> DataPolicy {
        *self.policy.read()
    }

    /// Takes effect for what is written from now on.
    pub fn set_policy(&self, policy: DataPolicy) {
        self.pool.expect_blocks_of(policy.record_size);
        if let CompressionPolicy::Auto(range) = policy.compression {
            self.levels.set_range(range);
        }
        self.pool.look_afresh();
        *self.policy.write() = policy;
        self.record_size.store(policy.record_size.min(self.pool.max_block()), Ordering::Relaxed);
    }

    /// What `zstd-auto` chose since the set was opened.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Block size of new files, in bytes.
    pub fn record_size(&self) -> u32 {
        self.record_size.load(Ordering::Relaxed)
    }

    /// Joins the open group. May wait: take it before any lock, and never a second one while holding one.
    pub fn begin(&self, cost: Cost) -> Result<Tx, ObjectError> {
        Ok(self.pool.begin(cost)?)
    }

    /// Group commit: all that was done before is durable when it returns.
    pub fn commit(&self) -> Result<(), ObjectError> {
        self.pool.commit()?;
        Ok(())
    }

    pub fn open_txg(&self) -> Txg {
        self.pool.open_txg()
    }

    /// Waits until group `txg` is durable, committing it if need be.
    pub fn wait_synced(&self, txg: Txg) -> Result<(), ObjectError> {
        Ok(self.pool.commit_txg(txg)?)
    }

    /// Seconds and nanoseconds since 1970, by the pool's clock.
    pub fn now(&self) -> (i64, u32) {
        let ns = self.pool.env().wall_ns();
        ((ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as u32)
    }

    pub fn random_u64(&self) -> u64 {
        self.pool.env().random_u64()
    }

    pub fn usage(&self) -> Usage {
        let (size_bytes, used_bytes, available_bytes) = self.pool.space();
        // A writer that needs this room waits for the group that frees it, and does not fail.
        let freeing = self.freeing.lock().values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let (used_bytes, available_bytes) =
            (used_bytes.saturating_sub(freeing), available_bytes.saturating_add(freeing).min(size_bytes));
        // What files were promised is taken from whoever asks.
        let used_bytes = used_bytes.saturating_add(self.pool.promised_bytes());
        Usage { size_bytes, used_bytes, available_bytes, objects: self.numbers.lock().objects }
    }

    pub(crate) fn note_freeing(&self, txg: Txg, bytes: u64) {
        if bytes > 0 {
            let mut freeing = self.freeing.lock();
            let sum = freeing.entry(txg).or_default();
            // What dnodes say that they take may be a lie.
            *sum = sum.saturating_add(bytes);
        }
    }

    /// What the group freed counts as free by itself now.
    pub(crate) fn synced(&self, txg: Txg) {
        self.freeing.lock().retain(|group, _| *group > txg);
    }

    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        &self.shards[(id.0 % SHARDS as u64) as usize]
    }

    pub(crate) fn forget(&self, id: ObjectId) {
        let mut shard = self.shard(id).lock();
        if shard.objects.get(&id.0).is_some_and(|object| object.strong_count() == 0) {
            shard.objects.remove(&id.0);
        }
        shard.epoch += 1;
    }

    /// As if the last holder of an object had just gone and not said so yet. How often that was said in its shard.
    #[cfg(test)]
    pub(crate) fn let_go_half(&self, id: ObjectId) -> u64 {
        let mut shard = self.shard(id).lock();
        shard.objects.insert(id.0, Weak::new());
        shard.epoch
    }

    pub(crate) fn mark_dirty(&self, object: Arc<Object>) {
        self.open.lock().push(object);
    }

    /// The object with this number. While somebody holds it, everybody gets the same.
    pub fn hold(&self, id: ObjectId) -> Result<Arc<Object>, ObjectError> {
        loop {
            let epoch = {
                let shard = self.shard(id).lock();
                if let Some(object) = shard.objects.get(&id.0).and_then(Weak::upgrade) {
                    let gone = object.state.read().destroyed;
                    return if gone { Err(ObjectError::NotFound(id)) } else { Ok(object) };
                }
                shard.epoch
            };
            let dnode = self.stored_dnode(id)?.ok_or(ObjectError::NotFound(id))?;
            let mut shard = self.shard(id).lock();
            if shard.epoch != epoch {
                continue;
            }
            match shard.objects.get(&id.0).map(Weak::upgrade) {
                // Somebody else may have come first.
                Some(Some(object)) => {
                    let gone = object.state.read().destroyed;
                    return if gone { Err(ObjectError::NotFound(id)) } else { Ok(object) };
                }
                // It was held since this began, may have changed and synced, and its last holder is just about to say that it went.
                Some(None) => {
                    shard.objects.remove(&id.0);
                    shard.epoch += 1;
                    continue;
                }
                None => {}
            }
            self.pool.expect_blocks_of(dnode.block_bytes);
            let object = Arc::new(Object::new(self.me.clone(), Whose { objset: self.id, object: id }, dnode));
            shard.objects.insert(id.0, Arc::downgrade(&object));
            return Ok(object);
        }
    }

    /// Has another thread read an object's dnode and its first block into the cache, if one has time for it, and do `then` with them. That
    /// must not begin a transaction, as the thread may be wanted for a commit.
    pub fn read_ahead(&self, id: ObjectId, then: impl FnOnce(&Object, &Arc<Vec<u8>>) + Send + 'static) {
        let known = self.shard(id).lock().objects.get(&id.0).and_then(Weak::upgrade);
        if known.is_some_and(|object| object.has_read(0)) {
            return;
        }
        let set = self.me.clone();
        self.pool.offer(move || {
            let Some(set) = set.upgrade() else { return };
            // Whoever asks for the object meets the same error, and reports it.
            let _ = set.hold(id).and_then(|object| {
                then(&object, &object.read_block(0)?);
                Ok(())
            });
        });
    }

    /// Has other threads read blocks of a file into the cache, if it is still in use then.
    pub(crate) fn read_blocks_ahead(&self, id: ObjectId, block_bytes: u32, blocks: Vec<Range<u64>>) {
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
        let set = self.me.clone();
        self.pool.offer(move || {
            let Some(set) = set.upgrade() else { return };
            let object = set.shard(id).lock().objects.get(&id.0).and_then(Weak::upgrade);
            if let Some(object) = object {
                object.read_blocks_ahead(&blocks);
            }
        });
    }

    fn stored_dnode(&self, id: ObjectId) -> Result<Option<Dnode>, ObjectError> {
        let (block, offset) = slot_of(id);
        if id.0 == 0 || block >= self.dnodes.block_count() {
            return Ok(None);
        }
        let raw = self.dnodes.read_block(block)?;
        Ok(dnode_at(&raw, offset, &format_args!("object set {} dnode block {block}", self.id))?)
    }

    /// Every object's number and dnode as of the last sync, block by block: for `check`.
    pub fn for_each_dnode(&self, each: &mut dyn FnMut(ObjectId, Dnode)) -> Vec<(u64, ObjectError)> {
        let mut failed = Vec::new();
        let mut next = Ok(Some(0));
        while let Ok(Some(offset)) = next {
            let block = offset / u64::from(DNODE_BLOCK_BYTES);
            let at = format!("object set {} dnode block {block}", self.id);
            let found = self.dnodes.read_block(block).and_then(|raw| Ok(dnodes_in(&raw, &at)?));
            match found {
                Ok(found) => {
                    for (offset, dnode) in found {
                        each(ObjectId(block * SLOTS_PER_BLOCK + (offset / SLOT_BYTES) as u64), dnode);
                    }
                }
                Err(error) => failed.push((block, error)),
            }
            // Holes are skipped: a block count is only a number, and may lie.
            next = self.dnodes.next_data((block + 1) * u64::from(DNODE_BLOCK_BYTES));
        }
        if let Err(error) = next {
            failed.push((self.dnodes.block_count(), error));
        }
        failed
    }

    /// Files whose dnodes lie in the first block of dnodes that has an object of this number or a higher one, as of the last sync: their
    /// numbers, and the first one behind the block. `None`: there are no more.
    pub fn files_from(&self, first: ObjectId) -> Result<Option<(Vec<ObjectId>, ObjectId)>, ObjectError> {
        let Some(offset) = self.dnodes.next_data(first.0.saturating_mul(SLOT_BYTES as u64))? else {
            return Ok(None);
        };
        let block = offset / u64::from(DNODE_BLOCK_BYTES);
        let raw = self.dnodes.read_block(block)?;
        let found = dnodes_in(&raw, &format_args!("object set {} dnode block {block}", self.id))?;
        let files = found.into_iter().filter(|(_, dnode)| dnode.kind == ObjectKind::File);
        let number = |offset: usize| ObjectId(block * SLOTS_PER_BLOCK + (offset / SLOT_BYTES) as u64);
        let files = files.map(|(offset, _)| number(offset)).collect();
        Ok(Some((files, ObjectId((block + 1) * SLOTS_PER_BLOCK))))
    }

    /// What the set takes, as of the last sync. `None`: it was made by a version that did not count.
    pub fn account(&self) -> Option<Account> {
        *self.account.lock()
    }

    /// A set without a header begins to count, where older versions need not read it.
    fn account_before(&self) -> Option<Account> {
        let is_new = self.root.lock().is_hole() && self.pool.has(Feature::Accounts);
        self.account().or(is_new.then(Account::default))
    }

    /// The dnodes of the header, and the subtrees that wait to be freed: for `check`.
    pub fn inner_trees(&self) -> (Dnode, Dnode, Vec<BlockPtr>) {
        (self.dnodes.dnode(), self.free_queue.dnode(), self.queue.lock().clone())
    }

    /// Object count and high water as of the last sync.
    pub fn stored_numbers(&self) -> (u64, u64) {
        let syncing = self.syncing.lock();
        (syncing.1, syncing.2)
    }

    pub fn create(&self, tx: &Tx, spec: ObjectSpec) -> Result<Arc<Object>, ObjectError> {
        check_block_bytes(spec.block_size, self.pool.max_block())?;
        if spec.dnode_slots == 0 || spec.dnode_slots > SLOTS_MAX {
            return Err(ObjectError::TooBig {
                what: "dnode slots",
                limit: u64::from(SLOTS_MAX),
                asked: u64::from(spec.dnode_slots),
            });
        }
        // What can be refused is refused before a number is taken.
        let room = Dnode::bonus_room(spec.dnode_slots, spec.spill.is_some());
        check_room("bonus", room, spec.bonus.len())?;
        if let Some(spill) = &spec.spill {
            check_room("spill", self.spill_max(), spill.len())?;
        }
        let id = ObjectId(self.take_number(u32::from(spec.dnode_slots))?);
        // Another one of this number may have lost some.
        self.lost_objects.lock().remove(&id);
        let dnode = Dnode::new(spec.kind, spec.dnode_slots, spec.block_size, tx.txg());
        let object = Arc::new(Object::new(self.me.clone(), Whose { objset: self.id, object: id }, dnode));
        self.shard(id).lock().objects.insert(id.0, Arc::downgrade(&object));
        object.set_attributes(tx, spec.bonus, spec.spill)?;
        Ok(object)
    }

    /// The largest spill that an object of this set may have, in bytes; 0 in a pool that older versions must be able to read.
    pub fn spill_max(&self) -> usize {
        if self.pool.has(Feature::Xattr) { SPILL_BYTES_MAX } else { 0 }
    }

    fn take_number(&self, slots: u32) -> Result<u64, ObjectError> {
        let mut numbers = self.numbers.lock();
        if let Some(number) = numbers.take_free(slots) {
            return Ok(number);
        }
        if numbers.wants_search() {
            self.search_for_free(&mut numbers)?;
            if let Some(number) = numbers.take_free(slots) {
                return Ok(number);
            }
        }
        Ok(numbers.take_new(slots))
    }

    fn search_for_free(&self, numbers: &mut Numbers) -> Result<(), ObjectError> {
        let mut found = false;
        for _ in 0..SEARCH_BLOCKS {
            let Some(block) = numbers.search_block() else { break };
            let raw = match self.dnodes.read_block(block) {
                // No object can be made there.
                Err(ObjectError::Pool(PoolError::Corrupt(_))) => continue,
                raw => raw?,
            };
            let at = format_args!("object set {} dnode block {block}", self.id);
            let mut used = NumberMap::default();
            for (offset, dnode) in dnodes_in(&raw, &at)? {
                add_slots(&mut used, (offset / SLOT_BYTES) as u64, dnode.slots);
            }
            found |= numbers.found(block, !used.get(&0).copied().unwrap_or(0));
        }
        numbers.searched(found);
        Ok(())
    }

    /// Those of these numbers that no object has are not given out while this set is open: somebody remembers them from changes
    /// that were lost.
    pub fn withhold(&self, numbers: impl IntoIterator<Item = u64>) {
        // One whose dnode cannot be read is withheld as well, which harms nobody.
        let is_free = |number: &u64| !matches!(self.stored_dnode(ObjectId(*number)), Ok(Some(_)));
        let unused: Vec<u64> = numbers.into_iter().filter(is_free).collect();
        self.numbers.lock().withhold(unused);
    }

    /// Frees the object and all its blocks; large ones over many groups.
    pub fn destroy(&self, tx: &Tx, object: &Arc<Object>) -> Result<(), ObjectError> {
        object.destroy(tx)?;
        let mut numbers = self.numbers.lock();
        // The header's count may be a lie.
        numbers.objects = numbers.objects.saturating_sub(1);
        Ok(())
    }

    /// Calls `changes` for every group when nobody else is in it any more, until it returns false: for what is only worth storing if
    /// it is still true then. Everybody waits for it.
    pub fn at_the_end_of_groups(&self, changes: impl FnMut(&Tx) -> bool + Send + 'static) {
        self.last_changes.lock().push(Box::new(changes));
    }

    /// The number that the next object with so many slots will most likely get.
    pub fn likely_number(&self, slots: u8) -> ObjectId {
        ObjectId(self.numbers.lock().likely(u32::from(slots)))
    }

    /// The group has quiesced: what is dirty now, and after the last changes, is its.
    pub(crate) fn quiesced(&self, last: &Tx) {
        self.last_changes.lock().retain_mut(|changes| changes(last));
        let mut numbers = self.numbers.lock();
        numbers.quiesced();
        let mut syncing = self.syncing.lock();
        syncing.0.append(&mut self.open.lock());
        (syncing.1, syncing.2) = (numbers.objects, numbers.high_water);
    }

    /// Whether the queue will need another group.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.lock().is_empty() && !self.queue_rests.load(Ordering::Relaxed)
    }
}

/// A root pointer in the bonus of an object.
pub(crate) fn root_in(bonus: &[u8], id: ObjectId) -> Result<BlockPtr, Corrupt> {
    BlockPtr::parse(bonus, &format_args!("object set {id}, root in the meta object set"))
}
