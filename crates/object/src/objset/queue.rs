//! Subtrees that wait to be freed: some in each group, so that none takes long for a large file.
//!
//! Invariant: when a group has synced, what waits in memory is what waits on the device, or a crash would leak the difference.

use super::{FREE_QUEUE, ObjectSet};
use crate::dirty::Ranges;
use crate::dnode::{DNODE_BLOCK_BYTES, Dnode};
use crate::error::ObjectError;
use crate::freeing::Ledger;
use crate::kind::ObjectKind;
use crate::tree::{Rewrite, Whose, damage_only, free_subtree, metadata_compression};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_codec::ChecksumKind;
use terrane_format::BlockPtr;
use terrane_pool::{Group, Patience, Stream, WriteRequest};
use terrane_wire::Corrupt;

/// Blocks freed from the queue in one group.
const FREES_PER_GROUP: u64 = 64 << 10;

impl ObjectSet {
    pub(super) fn load_queue(&self) -> Result<Vec<BlockPtr>, ObjectError> {
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

    /// Frees a bounded piece of what waits.
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
                // It goes on waiting, behind the others.
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

    /// Frees some of the last subtree that waits. `None`: none does. One that could not be read now becomes the first.
    fn free_queued(
        &self,
        group: &mut Group<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<Option<u64>, ObjectError> {
        let Some(ptr) = ledger.queue.pop() else { return Ok(None) };
        let whose = Whose { objset: self.id, object: FREE_QUEUE };
        match free_subtree(group, whose, &ptr, ledger) {
            Ok(released) => Ok(Some(released)),
            Err(error) if error.may_pass() => {
                ledger.queue.insert(0, ptr);
                Err(error.into())
            }
            // What is damaged cannot be freed; it is lost space, named, and must not stop every later group.
            Err(error) => Ok(damage_only(&self.pool, error).map(|()| Some(0))?),
        }
    }

    pub(super) fn sync_queue(
        &self,
        group: &mut Group<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<Dnode, ObjectError> {
        let raw: Vec<u8> = ledger.queue.iter().flat_map(BlockPtr::encode).collect();
        let whose = self.free_queue.whose();
        let mut dnode = self.free_queue.dnode();
        let mut requests = Vec::new();
        for (block, data) in raw.chunks(DNODE_BLOCK_BYTES as usize).enumerate() {
            requests.push(WriteRequest {
                data: Arc::new(data.to_vec()),
                kind: ObjectKind::FreeQueue as u8,
                compression: metadata_compression().into(),
                checksum: ChecksumKind::Blake3,
                owner: whose.owner(0, block as u64),
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
        // What of its old tree would wait as well stands in no queue that a crash leaves.
        while ledger.queue.len() > stored {
            self.free_queued(group, ledger)?;
        }
        Ok(dnode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freeing::{FreePolicy, Verdict};
    use crate::objects::Objects;
    use crate::objset::ObjectSpec;
    use terrane_device::sim::Fault;
    use terrane_device::{Device, SimConfig, SimDevice};
    use terrane_format::block_ptr::Embedded;
    use terrane_pool::{Cost, CreateOptions, ImportOptions, Pool, SeededEnv};
    use terrane_wire::Txg;

    struct FreeAll;

    impl FreePolicy for FreeAll {
        fn verdict(&self, _: &BlockPtr, _: Txg) -> Verdict {
            Verdict::Free
        }
    }

    /// What is below a block of pointers that cannot be read for a moment is freed when it can be, and counts no more meanwhile.
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
        // Of bytes that do not compress.
        (0..20u64).for_each(|record| {
            let noise: Vec<u8> = (0..512).flat_map(|_| pool.env().random_u64().to_le_bytes()).collect();
            object.write(&tx, record * 4096, &noise).unwrap();
        });
        drop(tx);
        pool.commit().unwrap();
        assert_eq!(object.dnode().levels, 2);
        let before = set.account().unwrap().used_bytes;
        pool.drop_cache();
        // What the group must read is in memory; the block of pointers is not.
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
        assert_eq!(waiting[0].level(), 1);
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
        // So many that the queue is a tree of several levels, which goes when they do.
        let (kind, birth) = (ObjectKind::File as u8, pool.synced_txg());
        let nothing = Embedded { kind, level: 0, compression: 2, lsize: 1, birth, payload: vec![7] };
        *set.queue.lock() = vec![BlockPtr::Embedded(nothing); 3 * FREES_PER_GROUP as usize];
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
}
