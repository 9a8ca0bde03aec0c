//! The free queue: subtrees that wait to be freed. Each txg frees a bounded piece, so that a large file
//! delays none.
//!
//! The queue is stored in an object of the MOS. A clone of this set, or a rollback of it, must not free again
//! what the queue frees. Two queues are stored in an object in the header instead. They are that of the MOS
//! itself, which has no clones, and those of older pools.
//!
//! Invariant: after each sync, the queue in memory equals the stored one. Otherwise a crash would leak the
//! difference.

use super::{FREE_QUEUE, ObjectSet};
use crate::dirty::Ranges;
use crate::dnode::Dnode;
use crate::error::ObjectError;
use crate::free_policy::Ledger;
use crate::kind::ObjectKind;
use crate::object::Object;
use crate::queued_subtree::{QueueFormat, QueuedSubtree};
use crate::tree::{TreeId, TreeRewrite, free_subtree, metadata_compression, report_permanent_error};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_codec::ChecksumKind;
use terrane_pool::{Stream, TxgSync, WriteRequest};
use terrane_store::read_retry::ReadRetry;
use terrane_wire::Corrupt;

/// Blocks freed from the queue in one txg.
const FREES_PER_TXG: u64 = 64 << 10;

/// A queue after a sync.
pub(super) struct StoredQueue {
    /// The object in the header.
    pub in_header: Dnode,
    /// New content of the object in the MOS; `None`: unchanged.
    pub in_mos: Option<Vec<Vec<u8>>>,
}

impl ObjectSet {
    /// Loads the queue from both places. A set whose queue has just got its own object keeps the rest in the
    /// old one until it syncs.
    pub(super) fn load_queue(&self) -> Result<Vec<QueuedSubtree>, ObjectError> {
        let mut queue = self.load_from(&self.free_queue, QueueFormat::Pointers)?;
        if let Some(in_mos) = &self.queue_in_mos {
            queue.append(&mut self.load_from(in_mos, QueueFormat::Entries)?);
        }
        Ok(queue)
    }

    fn load_from(&self, stored: &Object, format: QueueFormat) -> Result<Vec<QueuedSubtree>, ObjectError> {
        let mut queue = Vec::new();
        for block in 0..stored.block_count() {
            let at = format!("free queue of object set {} block {block}", self.id);
            let mut found = format.parse(&stored.read_block(block)?, &at)?;
            if found.is_empty() {
                // A queue has no such block. Without this check, a damaged block count would be followed
                // without end.
                let expected = format!("entries in each of {} blocks", stored.block_count());
                self.pool.report_damage(Corrupt::new(
                    at,
                    "content",
                    expected,
                    "none; the space of all later entries is lost",
                ));
                break;
            }
            queue.append(&mut found);
        }
        Ok(queue)
    }

    /// Frees a bounded piece of the queue.
    pub(super) fn drain_queue(
        &self,
        txg_sync: &mut TxgSync<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<(), ObjectError> {
        let _patience = ReadRetry::none();
        let mut freed = 0;
        self.queue_deferred.store(false, Ordering::Relaxed);
        while freed < FREES_PER_TXG && self.shared.takes_more_frees(txg_sync) {
            match self.free_queued(txg_sync, ledger) {
                Ok(Some(released)) => freed += released,
                Ok(None) => break,
                // It stays in the queue, behind the others.
                Err(ObjectError::Pool(error)) if error.is_transient() => {
                    log::warn!("object set {}: free queue deferred, subtree unreadable: {error}", self.id);
                    self.queue_deferred.store(true, Ordering::Relaxed);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Frees part of the last subtree in the queue. `None`: the queue is empty. A subtree with a transient read
    /// error becomes the first.
    fn free_queued(
        &self,
        txg_sync: &mut TxgSync<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<Option<u64>, ObjectError> {
        let Some(queued) = ledger.queue.pop() else { return Ok(None) };
        let tree = TreeId { objset: self.id, object: FREE_QUEUE };
        match free_subtree(txg_sync, tree, &queued, ledger) {
            Ok(released) => Ok(Some(released)),
            Err(error) if error.is_transient() => {
                ledger.queue.insert(0, queued);
                Err(error.into())
            }
            // Damage is reported and its space lost: it must not stop every later txg.
            Err(error) => Ok(report_permanent_error(&self.pool, error).map(|()| Some(0))?),
        }
    }

    /// Stores the queue in its place, if it has changed.
    pub(super) fn sync_queue(
        &self,
        txg_sync: &mut TxgSync<'_>,
        before: &[QueuedSubtree],
        ledger: &mut Ledger<'_>,
    ) -> Result<StoredQueue, ObjectError> {
        let has_changed = ledger.queue != before;
        if self.queue_in_mos.is_none() {
            let dnode = if has_changed {
                self.sync_queue_in_header(txg_sync, true, ledger)?
            } else {
                self.free_queue.dnode()
            };
            return Ok(StoredQueue { in_header: dnode, in_mos: None });
        }
        // The queue has moved to the MOS, so the old object is emptied.
        let moves = self.free_queue.block_count() > 0;
        let dnode =
            if moves { self.sync_queue_in_header(txg_sync, false, ledger)? } else { self.free_queue.dnode() };
        let in_mos = (has_changed || moves).then(|| QueueFormat::Entries.encode(&ledger.queue));
        Ok(StoredQueue { in_header: dnode, in_mos })
    }

    /// Writes the queue, or nothing, to the object in the header.
    fn sync_queue_in_header(
        &self,
        txg_sync: &mut TxgSync<'_>,
        holds_queue: bool,
        ledger: &mut Ledger<'_>,
    ) -> Result<Dnode, ObjectError> {
        let content = if holds_queue { QueueFormat::Pointers.encode(&ledger.queue) } else { Vec::new() };
        let tree = self.free_queue.tree_id();
        let mut dnode = self.free_queue.dnode();
        let mut requests = Vec::new();
        for (block, data) in (0..).zip(content) {
            requests.push(WriteRequest {
                data: Arc::new(data),
                kind: ObjectKind::FreeQueue as u8,
                compression: metadata_compression().into(),
                checksum: ChecksumKind::Blake3,
                owner: tree.owner(0, block),
                fill: 1,
                content_birth: None,
                stream: Stream::Metadata,
                may_embed: false,
                replaces: None,
            });
        }
        dnode.block_count = requests.len() as u64;
        let new = (0..).zip(txg_sync.write(requests)?).collect();
        let mut freed = Ranges::default();
        freed.add(0, u64::MAX);
        let stored = ledger.queue.len();
        let dnode =
            TreeRewrite::new(txg_sync, tree, dnode, ChecksumKind::Blake3, ledger).apply(&freed, new)?;
        // Subtrees of its old tree must be freed now: the stored queue does not contain them.
        while ledger.queue.len() > stored {
            self.free_queued(txg_sync, ledger)?;
        }
        Ok(dnode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::free_policy::{FreeAll, FreeDecision, FreePolicy};
    use crate::object_sets::ObjectSets;
    use crate::objset::ObjectSpec;
    use terrane_device::sim::Fault;
    use terrane_device::{Device, SimConfig, SimDevice};
    use terrane_format::BlockPtr;
    use terrane_format::Feature;
    use terrane_format::block_ptr::Embedded;
    use terrane_pool::{CreateOptions, ImportOptions, Pool};
    use terrane_store::env::SeededEnv;
    use terrane_txg::cost::Cost;
    use terrane_wire::Txg;

    /// A subtree below an indirect block with a transient read error is freed later. Until then its space is
    /// not counted for the object.
    #[test]
    fn unreadable_subtree_is_freed_later() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let devices = || -> Vec<Arc<dyn Device>> { vec![Arc::new(device.clone())] };
        let (env, options) = (|| Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let pool = Pool::create(devices(), &CreateOptions::named("queue"), env(), &options).unwrap();
        let objects = ObjectSets::create(pool.clone()).unwrap();
        let cost = Cost { write_bytes: 1 << 20, meta_blocks: 8, ..Cost::NOTHING };
        let tx = pool.begin(cost).unwrap();
        let id = objects.create_objset(&tx).unwrap();
        let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
        let (bonus, kind) = (Vec::new(), ObjectKind::File);
        let spec = ObjectSpec { kind, block_size: 4096, dnode_slots: 1, bonus, spill: None };
        let object = set.create(&tx, spec).unwrap();
        // Bytes that do not compress.
        (0..20u64).for_each(|record| {
            let noise: Vec<u8> = (0..512).flat_map(|_| pool.env().random_u64().to_le_bytes()).collect();
            object.write(&tx, record * 4096, &noise).unwrap();
        });
        drop(tx);
        pool.commit().unwrap();
        assert_eq!(object.dnode().levels, 2);
        let before = set.account().unwrap().used_bytes;
        pool.drop_cache();
        // The dnode blocks that the sync reads are in memory; the indirect block is not.
        [&set, objects.mos()].into_iter().for_each(|set| drop(set.dnodes.read_block(0).unwrap()));
        let reads = device.inject(Fault::ReadError { zone: None, one_in: 1 });
        let tx = pool.begin(cost).unwrap();
        object.truncate(&tx, 0).unwrap();
        object.write(&tx, 0, b"anew").unwrap();
        drop(tx);
        pool.commit().unwrap();
        assert!(device.fired(reads) > 0, "the canary: nothing had to be read");
        let queued = set.queue.lock().clone();
        assert_eq!(queued.len(), 1);
        assert_eq!(queued[0].root.level(), 1);
        assert!(!set.queue_needs_txg(), "no group follows for its sake while it cannot be read");
        assert!(object.dnode().used < 1024, "{}", object.dnode().used);
        // A crash leaks nothing of it.
        let after: Vec<Arc<dyn Device>> = vec![Arc::new(device.after_power_loss(1))];
        let again = Pool::import(after, env(), &options).unwrap();
        let stored = ObjectSets::open(again.clone()).unwrap().open_objset(id, Arc::new(FreeAll)).unwrap();
        assert!(stored.inner_trees().2 == queued);
        again.abandon();
        device.disarm(reads);
        let tx = pool.begin(cost).unwrap();
        object.write(&tx, 0, b"more").unwrap();
        drop(tx);
        pool.commit().unwrap();
        assert!(set.queue.lock().is_empty());
        assert!(set.account().unwrap().used_bytes + 20 * 4096 < before + 2048, "what was below it is free");
        assert_eq!(pool.check_tables(), vec![]);
    }

    #[test]
    fn stored_queue_equals_queue_in_memory() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let devices = || -> Vec<Arc<dyn Device>> { vec![Arc::new(device.clone())] };
        let (env, options) = (|| Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let pool = Pool::create(devices(), &CreateOptions::named("queue"), env(), &options).unwrap();
        let objects = ObjectSets::create(pool.clone()).unwrap();
        let id = objects.create_objset(&pool.begin(Cost::NOTHING).unwrap()).unwrap();
        let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
        pool.commit().unwrap();
        // So many that the queue is a tree of several levels, which is freed with them.
        let (kind, birth) = (ObjectKind::File as u8, pool.synced_txg());
        let nothing = Embedded { kind, level: 0, compression: 2, lsize: 1, birth, payload: vec![7] };
        let root = BlockPtr::Embedded(nothing);
        let nothing = QueuedSubtree { root, detached: Txg(7), prune_below: Txg(0) };
        *set.queue.lock() = vec![nothing; 3 * FREES_PER_TXG as usize];
        for left in [2, 1, 0] {
            pool.commit_txg(pool.open_txg()).unwrap();
            let in_memory = set.queue.lock().clone();
            assert_eq!(in_memory.len() as u64, left * FREES_PER_TXG);
            let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.after_power_loss(left))];
            let again = Pool::import(devices, env(), &options).unwrap();
            let stored = ObjectSets::open(again.clone()).unwrap().open_objset(id, Arc::new(FreeAll)).unwrap();
            assert!(stored.inner_trees().2 == in_memory, "{left}");
            again.abandon();
        }
    }

    /// The queue of a set of an older version lies in the set. It moves to the MOS when the set gets its
    /// identity.
    #[test]
    fn free_queue_of_an_older_pool_moves_to_the_mos() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let devices = |device: &SimDevice| -> Vec<Arc<dyn Device>> {
            vec![Arc::new(device.clone()) as Arc<dyn Device>]
        };
        let (env, options) = (|| Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let features = Feature::defaults().into_iter().filter(|feature| *feature != Feature::Datasets);
        let create = CreateOptions { features: features.collect(), ..CreateOptions::named("queue") };
        let pool = Pool::create(devices(&device), &create, env(), &options).unwrap();
        let objects = ObjectSets::create(pool.clone()).unwrap();
        let id = objects.create_objset(&pool.begin(Cost::NOTHING).unwrap()).unwrap();
        let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
        pool.commit().unwrap();
        let (kind, birth) = (ObjectKind::File as u8, pool.synced_txg());
        let nothing = Embedded { kind, level: 0, compression: 2, lsize: 1, birth, payload: vec![7] };
        let root = BlockPtr::Embedded(nothing);
        let nothing = QueuedSubtree { root, detached: Txg(0), prune_below: Txg(0) };
        *set.queue.lock() = vec![nothing; 3 * FREES_PER_TXG as usize];
        pool.commit_txg(pool.open_txg()).unwrap();
        let queued = set.queue.lock().clone();
        assert!(set.free_queue.block_count() > 0 && objects.identity(id).unwrap().is_none());
        pool.abandon();
        drop((set, objects, pool));

        let pool = Pool::import(devices(&device), env(), &options).unwrap();
        pool.enable(&[Feature::Datasets]).unwrap();
        let objects = ObjectSets::open(pool.clone()).unwrap();
        let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
        let identity = objects.identity(id).unwrap().expect("it is said when the set is opened");
        assert!(set.queue.lock().clone() == queued, "nothing is lost, nothing is said twice");
        let stored = |device: &SimDevice| {
            let pool = Pool::import(devices(device), env(), &options).unwrap();
            let objects = ObjectSets::open(pool.clone()).unwrap();
            let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
            assert_eq!(objects.identity(id).unwrap(), Some(identity));
            let queue = set.queue.lock().clone();
            let in_header = set.free_queue.block_count();
            pool.abandon();
            (queue, in_header)
        };
        assert!(stored(&device.after_power_loss(1)) == (queued, 2 * FREES_PER_TXG / 128), "not synced yet");
        for left in [1, 0, 0] {
            pool.commit_txg(pool.open_txg()).unwrap();
            let in_memory = set.queue.lock().clone();
            assert_eq!(in_memory.len() as u64, left * FREES_PER_TXG);
            assert!(stored(&device.after_power_loss(2)) == (in_memory, 0), "{left}");
            assert_eq!(set.free_queue.dnode().used, 0);
        }
        let in_mos = objects.mos().hold(identity.free_queue).unwrap();
        assert_eq!((in_mos.block_count(), in_mos.dnode().used), (0, 0));
        assert_eq!(pool.check_tables(), vec![]);
    }

    /// Keeps all blocks, and records the calls.
    #[derive(Default)]
    struct RecordingPolicy(parking_lot::Mutex<Vec<(Txg, Txg)>>);

    impl FreePolicy for RecordingPolicy {
        fn decide(&self, block: &BlockPtr, txg: Txg) -> FreeDecision {
            self.0.lock().push((block.latest_birth(), txg));
            FreeDecision::Keep
        }
    }

    /// Of a cloned tree only blocks born since are freed. The policy decides as of the txg that detached
    /// the subtree.
    #[test]
    fn queued_subtree_frees_only_blocks_born_since_the_clone() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let (env, options) = (Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
        let pool = Pool::create(devices, &CreateOptions::named("queue"), env, &options).unwrap();
        let objects = ObjectSets::create(pool.clone()).unwrap();
        let cost = Cost { write_bytes: 8 << 20, meta_blocks: 64, ..Cost::NOTHING };
        let id = objects.create_objset(&pool.begin(cost).unwrap()).unwrap();
        let policy = Arc::new(RecordingPolicy::default());
        let set = objects.open_objset(id, policy.clone()).unwrap();
        let (bonus, kind) = (Vec::new(), ObjectKind::File);
        let spec = ObjectSpec { kind, block_size: 4096, dnode_slots: 1, bonus, spill: None };
        let object = set.create(&pool.begin(cost).unwrap(), spec).unwrap();
        let write = |blocks: std::ops::Range<u64>| {
            let tx = pool.begin(cost).unwrap();
            for block in blocks {
                let noise: Vec<u8> = (0..512).flat_map(|_| pool.env().random_u64().to_le_bytes()).collect();
                object.write(&tx, block * 4096, &noise).unwrap();
            }
            drop(tx);
            pool.commit().unwrap();
        };
        write(0..300);
        let cloned = pool.synced_txg().next();
        write(100..110);
        policy.0.lock().clear();
        let root = object.dnode().root;
        assert_eq!(root.level(), 2);
        set.queue.lock().push(QueuedSubtree { root, detached: Txg(4711), prune_below: cloned });
        (0..4).for_each(|_| pool.commit_txg(pool.open_txg()).unwrap());
        assert!(set.queue.lock().is_empty());
        let waited: Vec<Txg> = {
            let calls = policy.0.lock();
            calls.iter().filter(|(_, detached)| *detached == Txg(4711)).map(|(birth, _)| *birth).collect()
        };
        // Ten blocks, the indirect blocks above them, and nothing older.
        assert!((12..=13).contains(&waited.len()), "{waited:?}");
        assert!(waited.iter().all(|birth| *birth >= cloned), "{waited:?}");
    }
}
