//! The free queue: subtrees that wait to be freed. Each txg (group) frees a bounded piece, so that a large file
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
use crate::freeing::Ledger;
use crate::kind::ObjectKind;
use crate::object::Object;
use crate::tree::{Rewrite, Whose, damage_only, free_subtree, metadata_compression};
use crate::waiting::{QueueForm, Waiting};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_codec::ChecksumKind;
use terrane_pool::{Group, Stream, WriteRequest};
use terrane_store::patience::Patience;
use terrane_wire::Corrupt;

/// Blocks freed from the queue in one txg.
const FREES_PER_GROUP: u64 = 64 << 10;

/// A queue after a sync.
pub(super) struct StoredQueue {
    /// The object in the header.
    pub inside: Dnode,
    /// New content of the object in the MOS; `None`: unchanged.
    pub outside: Option<Vec<Vec<u8>>>,
}

impl ObjectSet {
    /// Loads the queue from both places. A set whose queue has just got its own object keeps the rest in the
    /// old one until it syncs.
    pub(super) fn load_queue(&self) -> Result<Vec<Waiting>, ObjectError> {
        let mut queue = self.load_from(&self.free_queue, QueueForm::Pointers)?;
        if let Some(outside) = &self.queue_outside {
            queue.append(&mut self.load_from(outside, QueueForm::Entries)?);
        }
        Ok(queue)
    }

    fn load_from(&self, stored: &Object, form: QueueForm) -> Result<Vec<Waiting>, ObjectError> {
        let mut queue = Vec::new();
        for block in 0..stored.block_count() {
            let at = format!("free queue of object set {} block {block}", self.id);
            let mut found = form.parse(&stored.read_block(block)?, &at)?;
            if found.is_empty() {
                // A queue has no such block. Without this check, a damaged block count would be followed
                // without end.
                let expected = format!("pointers, as in each of {} blocks", stored.block_count());
                self.pool.report_damage(Corrupt::new(
                    at,
                    "content",
                    expected,
                    "none; what waits behind it is lost space",
                ));
                break;
            }
            queue.append(&mut found);
        }
        Ok(queue)
    }

    /// Frees a bounded piece of the queue.
    pub(super) fn shrink_queue(
        &self,
        group: &mut Group<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<(), ObjectError> {
        let _patience = Patience::none();
        let mut freed = 0;
        self.queue_rests.store(false, Ordering::Relaxed);
        while freed < FREES_PER_GROUP {
            match self.free_queued(group, ledger) {
                Ok(Some(released)) => freed += released,
                Ok(None) => break,
                // It stays in the queue, behind the others.
                Err(ObjectError::Pool(error)) if error.may_pass() => {
                    log::warn!("{error}; what is below is freed later");
                    self.queue_rests.store(true, Ordering::Relaxed);
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
        group: &mut Group<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<Option<u64>, ObjectError> {
        let Some(waiting) = ledger.queue.pop() else { return Ok(None) };
        let whose = Whose { objset: self.id, object: FREE_QUEUE };
        match free_subtree(group, whose, &waiting, ledger) {
            Ok(released) => Ok(Some(released)),
            Err(error) if error.may_pass() => {
                ledger.queue.insert(0, waiting);
                Err(error.into())
            }
            // Damage is reported and its space lost: it must not stop every later txg.
            Err(error) => Ok(damage_only(&self.pool, error).map(|()| Some(0))?),
        }
    }

    /// Stores the queue in its place, if it has changed.
    pub(super) fn sync_queue(
        &self,
        group: &mut Group<'_>,
        before: &[Waiting],
        ledger: &mut Ledger<'_>,
    ) -> Result<StoredQueue, ObjectError> {
        let has_changed = ledger.queue != before;
        if self.queue_outside.is_none() {
            let dnode =
                if has_changed { self.sync_inside(group, true, ledger)? } else { self.free_queue.dnode() };
            return Ok(StoredQueue { inside: dnode, outside: None });
        }
        // The queue has moved to the MOS, so the old object is emptied.
        let moves = self.free_queue.block_count() > 0;
        let dnode = if moves { self.sync_inside(group, false, ledger)? } else { self.free_queue.dnode() };
        let outside = (has_changed || moves).then(|| QueueForm::Entries.encode(&ledger.queue));
        Ok(StoredQueue { inside: dnode, outside })
    }

    /// Writes the queue, or nothing, to the object in the header.
    fn sync_inside(
        &self,
        group: &mut Group<'_>,
        is_its_place: bool,
        ledger: &mut Ledger<'_>,
    ) -> Result<Dnode, ObjectError> {
        let content = if is_its_place { QueueForm::Pointers.encode(&ledger.queue) } else { Vec::new() };
        let whose = self.free_queue.whose();
        let mut dnode = self.free_queue.dnode();
        let mut requests = Vec::new();
        for (block, data) in (0..).zip(content) {
            requests.push(WriteRequest {
                data: Arc::new(data),
                kind: ObjectKind::FreeQueue as u8,
                compression: metadata_compression().into(),
                checksum: ChecksumKind::Blake3,
                owner: whose.owner(0, block),
                fill: 1,
                content_birth: None,
                stream: Stream::Metadata,
                may_embed: false,
                replaces: None,
            });
        }
        dnode.block_count = requests.len() as u64;
        let new = (0..).zip(group.write(requests)?).collect();
        let mut freed = Ranges::default();
        freed.add(0, u64::MAX);
        let stored = ledger.queue.len();
        let dnode = Rewrite::new(group, whose, dnode, ChecksumKind::Blake3, ledger).run(&freed, new)?;
        // Subtrees of its old tree must be freed now: the stored queue does not contain them.
        while ledger.queue.len() > stored {
            self.free_queued(group, ledger)?;
        }
        Ok(dnode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freeing::{FreeAll, FreePolicy, Verdict};
    use crate::objects::Objects;
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
    fn what_cannot_be_read_now_is_freed_later() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let devices = || -> Vec<Arc<dyn Device>> { vec![Arc::new(device.clone())] };
        let (env, options) = (|| Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let pool = Pool::create(devices(), &CreateOptions::named("queue"), env(), &options).unwrap();
        let objects = Objects::create(pool.clone()).unwrap();
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
        let waiting = set.queue.lock().clone();
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].root.level(), 1);
        assert!(!set.has_queue(), "no group follows for its sake while it cannot be read");
        assert!(object.dnode().used < 1024, "{}", object.dnode().used);
        // A crash leaks nothing of it.
        let after: Vec<Arc<dyn Device>> = vec![Arc::new(device.after_power_loss(1))];
        let again = Pool::import(after, env(), &options).unwrap();
        let stored = Objects::open(again.clone()).unwrap().open_objset(id, Arc::new(FreeAll)).unwrap();
        assert!(stored.inner_trees().2 == waiting);
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
    fn what_waits_in_memory_waits_on_the_device() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let devices = || -> Vec<Arc<dyn Device>> { vec![Arc::new(device.clone())] };
        let (env, options) = (|| Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let pool = Pool::create(devices(), &CreateOptions::named("queue"), env(), &options).unwrap();
        let objects = Objects::create(pool.clone()).unwrap();
        let id = objects.create_objset(&pool.begin(Cost::NOTHING).unwrap()).unwrap();
        let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
        pool.commit().unwrap();
        // So many that the queue is a tree of several levels, which is freed with them.
        let (kind, birth) = (ObjectKind::File as u8, pool.synced_txg());
        let nothing = Embedded { kind, level: 0, compression: 2, lsize: 1, birth, payload: vec![7] };
        let root = BlockPtr::Embedded(nothing);
        let nothing = Waiting { root, detached: Txg(7), prune_below: Txg(0) };
        *set.queue.lock() = vec![nothing; 3 * FREES_PER_GROUP as usize];
        for left in [2, 1, 0] {
            pool.commit_txg(pool.open_txg()).unwrap();
            let in_memory = set.queue.lock().clone();
            assert_eq!(in_memory.len() as u64, left * FREES_PER_GROUP);
            let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.after_power_loss(left))];
            let again = Pool::import(devices, env(), &options).unwrap();
            let stored = Objects::open(again.clone()).unwrap().open_objset(id, Arc::new(FreeAll)).unwrap();
            assert!(stored.inner_trees().2 == in_memory, "{left}");
            again.abandon();
        }
    }

    /// The queue of a set of an older version lies in the set. It moves to the MOS when the set gets its
    /// identity.
    #[test]
    fn the_queue_of_an_older_pool_moves_out() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let devices = |device: &SimDevice| -> Vec<Arc<dyn Device>> {
            vec![Arc::new(device.clone()) as Arc<dyn Device>]
        };
        let (env, options) = (|| Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let features = Feature::defaults().into_iter().filter(|feature| *feature != Feature::Datasets);
        let create = CreateOptions { features: features.collect(), ..CreateOptions::named("queue") };
        let pool = Pool::create(devices(&device), &create, env(), &options).unwrap();
        let objects = Objects::create(pool.clone()).unwrap();
        let id = objects.create_objset(&pool.begin(Cost::NOTHING).unwrap()).unwrap();
        let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
        pool.commit().unwrap();
        let (kind, birth) = (ObjectKind::File as u8, pool.synced_txg());
        let nothing = Embedded { kind, level: 0, compression: 2, lsize: 1, birth, payload: vec![7] };
        let root = BlockPtr::Embedded(nothing);
        let nothing = Waiting { root, detached: Txg(0), prune_below: Txg(0) };
        *set.queue.lock() = vec![nothing; 3 * FREES_PER_GROUP as usize];
        pool.commit_txg(pool.open_txg()).unwrap();
        let waiting = set.queue.lock().clone();
        assert!(set.free_queue.block_count() > 0 && objects.identity(id).unwrap().is_none());
        pool.abandon();
        drop((set, objects, pool));

        let pool = Pool::import(devices(&device), env(), &options).unwrap();
        pool.enable(&[Feature::Datasets]).unwrap();
        let objects = Objects::open(pool.clone()).unwrap();
        let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
        let who = objects.identity(id).unwrap().expect("it is said when the set is opened");
        assert!(set.queue.lock().clone() == waiting, "nothing is lost, nothing is said twice");
        let stored = |device: &SimDevice| {
            let pool = Pool::import(devices(device), env(), &options).unwrap();
            let objects = Objects::open(pool.clone()).unwrap();
            let set = objects.open_objset(id, Arc::new(FreeAll)).unwrap();
            assert_eq!(objects.identity(id).unwrap(), Some(who));
            let queue = set.queue.lock().clone();
            let inside = set.free_queue.block_count();
            pool.abandon();
            (queue, inside)
        };
        assert!(
            stored(&device.after_power_loss(1)) == (waiting, 2 * FREES_PER_GROUP / 128),
            "not synced yet"
        );
        for left in [1, 0, 0] {
            pool.commit_txg(pool.open_txg()).unwrap();
            let in_memory = set.queue.lock().clone();
            assert_eq!(in_memory.len() as u64, left * FREES_PER_GROUP);
            assert!(stored(&device.after_power_loss(2)) == (in_memory, 0), "{left}");
            assert_eq!(set.free_queue.dnode().used, 0);
        }
        let outside = objects.mos().hold(who.free_queue).unwrap();
        assert_eq!((outside.block_count(), outside.dnode().used), (0, 0));
        assert_eq!(pool.check_tables(), vec![]);
    }

    /// Keeps all blocks, and records the calls.
    #[derive(Default)]
    struct Asked(parking_lot::Mutex<Vec<(Txg, Txg)>>);

    impl FreePolicy for Asked {
        fn verdict(&self, block: &BlockPtr, txg: Txg) -> Verdict {
            self.0.lock().push((block.latest_birth(), txg));
            Verdict::Keep
        }
    }

    /// Of a cloned tree only blocks born since are freed. They are judged as of the txg that detached the
    /// subtree.
    #[test]
    fn a_subtree_that_waits_is_freed_from_its_birth_on() {
        let device = SimDevice::new(SimConfig::default()).unwrap();
        let (env, options) = (Arc::new(SeededEnv::new(1)), ImportOptions::default());
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
        let pool = Pool::create(devices, &CreateOptions::named("queue"), env, &options).unwrap();
        let objects = Objects::create(pool.clone()).unwrap();
        let cost = Cost { write_bytes: 8 << 20, meta_blocks: 64, ..Cost::NOTHING };
        let id = objects.create_objset(&pool.begin(cost).unwrap()).unwrap();
        let asked = Arc::new(Asked::default());
        let set = objects.open_objset(id, asked.clone()).unwrap();
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
        asked.0.lock().clear();
        let root = object.dnode().root;
        assert_eq!(root.level(), 2);
        set.queue.lock().push(Waiting { root, detached: Txg(4711), prune_below: cloned });
        (0..4).for_each(|_| pool.commit_txg(pool.open_txg()).unwrap());
        assert!(set.queue.lock().is_empty());
        let waited: Vec<Txg> = {
            let asked = asked.0.lock();
            asked.iter().filter(|(_, left)| *left == Txg(4711)).map(|(birth, _)| *birth).collect()
        };
        // Ten blocks, the indirect blocks above them, and nothing older.
        assert!((12..=13).contains(&waited.len()), "{waited:?}");
        assert!(waited.iter().all(|birth| *birth >= cloned), "{waited:?}");
    }
}
