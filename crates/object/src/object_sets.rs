//! All object sets of a pool, and their sync in one txg.
//!
//! The *meta object set* (MOS) describes everything else; its root is in the commit record. Each other set has
//! an object in the MOS. Its bonus has the set's root pointer and [`Identity`]. A sync handles the other sets
//! first, then the MOS with their new roots.

use crate::account::Account;
use crate::dnode::DNODE_BLOCK_BYTES;
use crate::entry::{Identity, parse_entry};
use crate::error::ObjectError;
use crate::free_policy::FreePolicy;
use crate::kind::ObjectKind;
use crate::mos_change::{MosChange, MosUpdate};
use crate::object::Object;
use crate::objset::{ObjectSet, ObjectSpec, Synced, read_header};
use crate::shared::{SharedBlock, SharedTable};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_format::{BlockPtr, Feature};
use terrane_pool::{Client, Pool, Tx, TxgSync};
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::{Corrupt, ObjectId, ObjsetId, Txg};

/// Two dnodes of the meta object set.
const IDENTIFY_COST: Cost = Cost { meta_blocks: 16, ..Cost::NOTHING };

/// All object sets of a pool.
pub struct ObjectSets {
    pool: Arc<Pool>,
    mos: Arc<ObjectSet>,
    /// Open sets by their MOS object.
    sets: Mutex<BTreeMap<ObjectId, Arc<ObjectSet>>>,
    /// Sets that were open when the syncing txg quiesced. A set opened later has nothing in that txg, and its
    /// MOS object may be of the next one.
    syncing: Mutex<Vec<(ObjectId, Arc<ObjectSet>)>>,
    /// Serializes opening. Its holder must not wait for a txg: a thread that has joined one may want this lock.
    opening: Mutex<()>,
}

impl ObjectSets {
    /// Starts the meta object set of a new pool.
    pub fn create(pool: Arc<Pool>) -> Result<Arc<ObjectSets>, ObjectError> {
        Self::open(pool)
    }

    /// Opens the object sets of an imported pool.
    pub fn open(pool: Arc<Pool>) -> Result<Arc<ObjectSets>, ObjectError> {
        Self::open_with(pool, SharedTable::default())
    }

    /// Opens the object sets of an imported pool, and durably replaces its table of shared blocks, of which
    /// nothing is read. `shared` are all blocks with more than one reference, by ascending address.
    pub fn open_replacing_shared(
        pool: Arc<Pool>,
        shared: Vec<SharedBlock>,
    ) -> Result<Arc<ObjectSets>, ObjectError> {
        let objects = Self::open_with(pool, SharedTable::ignored())?;
        objects.shared().replace(shared)?;
        Ok(objects)
    }

    fn open_with(pool: Arc<Pool>, shared: SharedTable) -> Result<Arc<ObjectSets>, ObjectError> {
        let shared = Arc::new(shared);
        let mos = ObjectSet::open(pool.clone(), ObjsetId(0), pool.root(), None, None, shared)?;
        let (sets, syncing, opening) = (Mutex::default(), Mutex::default(), Mutex::default());
        let objects = Arc::new(ObjectSets { pool: pool.clone(), mos, sets, syncing, opening });
        pool.set_client(objects.clone());
        Ok(objects)
    }

    /// The pool of the sets.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The meta object set.
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }

    /// The pool's table of shared blocks.
    pub fn shared(&self) -> &Arc<SharedTable> {
        self.mos.shared()
    }

    /// Creates an empty object set; returns the MOS object that stands for it.
    pub fn create_objset(&self, tx: &Tx) -> Result<ObjectId, ObjectError> {
        self.create_objset_at(tx, &BlockPtr::default())
    }

    /// Creates an object set that begins with the content of another: `root` points to the header of that one. The set's free policy
    /// must keep all blocks that are older than the set.
    pub fn create_objset_at(&self, tx: &Tx, root: &BlockPtr) -> Result<ObjectId, ObjectError> {
        let bonus = root.encode().to_vec();
        let spec =
            ObjectSpec { kind: ObjectKind::Objset, block_size: 512, dnode_slots: 1, bonus, spill: None };
        let object = self.mos.create(tx, spec)?;
        if self.pool.has(Feature::Datasets) {
            self.identify(tx, &object)?;
        }
        Ok(object.id())
    }

    /// Assigns an identity to a set, and a free queue in the MOS. The set must not be open: an open set has
    /// loaded its queue already.
    fn identify(&self, tx: &Tx, object: &Arc<Object>) -> Result<Identity, ObjectError> {
        let kind = ObjectKind::FreeQueue;
        let (block_size, bonus) = (DNODE_BLOCK_BYTES, Vec::new());
        let queue =
            self.mos.create(tx, ObjectSpec { kind, block_size, dnode_slots: 1, bonus, spill: None })?;
        let guid = loop {
            let word = self.mos.random_u64();
            if word != 0 {
                break word;
            }
        };
        let identity = Identity { guid, created: tx.txg(), free_queue: queue.id() };
        object.set_bonus(tx, [&object.bonus()[..], &identity.encode()].concat())?;
        Ok(identity)
    }

    /// Durably assigns an identity to a set of an older pool, if the pool's features allow it. May wait for a txg, so the caller must not
    /// have joined one.
    pub fn identify_older(&self, id: ObjectId) -> Result<(), ObjectError> {
        if !self.pool.has(Feature::Datasets) || self.pool.is_read_only() || self.identity(id)?.is_some() {
            return Ok(());
        }
        let tx = match self.mos.begin(IDENTIFY_COST) {
            // A pool without space for it, or one that takes no more changes, can be used as it is.
            Err(ObjectError::Pool(PoolError::NoSpace { .. } | PoolError::Failed { .. })) => return Ok(()),
            begun => begun?,
        };
        {
            let _opening = self.opening.lock();
            let is_open = self.sets.lock().contains_key(&id);
            // Another thread may have done it.
            if !is_open && self.identity(id)?.is_none() {
                self.identify(&tx, &self.mos.hold(id)?)?;
            }
        }
        drop(tx);
        match self.mos.commit() {
            Err(ObjectError::Pool(PoolError::Failed { .. })) => Ok(()),
            outcome => outcome,
        }
    }

    /// The object set of an MOS object. If it is not open yet, `free_policy` decides about its blocks from now on.
    /// A set of an older pool may have to wait for a txg, so the caller must not have joined one.
    pub fn open_objset(
        &self,
        id: ObjectId,
        free_policy: Arc<dyn FreePolicy>,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        self.open_as(id, free_policy, false)
    }

    /// An object set that is open.
    pub fn find_open(&self, id: ObjectId) -> Option<Arc<ObjectSet>> {
        self.sets.lock().get(&id).cloned()
    }

    /// Opens a set that was retired before the pool was opened. Following txgs continue to free it.
    pub fn open_retired(
        &self,
        id: ObjectId,
        free_policy: Arc<dyn FreePolicy>,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        self.open_as(id, free_policy, true)
    }

    fn open_as(
        &self,
        id: ObjectId,
        free_policy: Arc<dyn FreePolicy>,
        is_retired: bool,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        if let Some(set) = self.find_open(id) {
            return Ok(set);
        }
        let object = self.mos.hold(id)?;
        if object.kind() != ObjectKind::Objset {
            return Err(ObjectError::NotFound(id));
        }
        self.identify_older(id)?;
        let _opening = self.opening.lock();
        if let Some(set) = self.find_open(id) {
            return Ok(set);
        }
        let (root, identity) = parse_entry(&object.bonus(), id)?;
        let queue = identity.map(|identity| self.queue_of(id, identity)).transpose()?;
        let shared = self.shared().clone();
        let set = ObjectSet::open(self.pool.clone(), ObjsetId(id.0), root, Some(free_policy), queue, shared)?;
        if is_retired {
            set.set_retired();
        }
        self.sets.lock().insert(id, set.clone());
        Ok(set)
    }

    fn queue_of(&self, id: ObjectId, identity: Identity) -> Result<Arc<Object>, ObjectError> {
        let queue = self.mos.hold(identity.free_queue)?;
        // Whatever is stored in it is in blocks of this size: in smaller ones nobody could read it again.
        let found = (queue.kind(), queue.block_size());
        if found != (ObjectKind::FreeQueue, DNODE_BLOCK_BYTES) {
            let at = format!("object set {id}, object {} of the meta object set", queue.id());
            let expected = format_args!("FreeQueue and {DNODE_BLOCK_BYTES}");
            let found = format_args!("{:?} and {}", found.0, found.1);
            return Err(PoolError::from(Corrupt::new(at, "kind and block size", expected, found)).into());
        }
        // Each would free what waits, and what one stores would take the place of what the other did.
        let is_its = |set: &&Arc<ObjectSet>| set.queue_in_mos() == Some(queue.id());
        if let Some(other) = self.sets.lock().values().find(is_its) {
            let at = format!("object set {id}, object {} of the meta object set", queue.id());
            let found = format_args!("also used by object set {}", other.id());
            return Err(PoolError::from(Corrupt::new(at, "free queue", "its own", found)).into());
        }
        Ok(queue)
    }

    /// Forgets a drained set, which the txg of this transaction destroys.
    pub fn forget_retired(&self, _tx: &Tx, id: ObjectId) {
        self.sets.lock().remove(&id);
    }

    /// The sums of a set, as of the last sync. The set need not be open. `None`: the set is not counted, or is empty.
    pub fn account(&self, id: ObjectId) -> Result<Option<Account>, ObjectError> {
        if let Some(set) = self.find_open(id) {
            return Ok(set.account());
        }
        let (root, _) = parse_entry(&self.mos.hold(id)?.bonus(), id)?;
        Ok(read_header(&self.pool, ObjsetId(id.0), &root)?.account)
    }

    /// Reads the header that a root of a set or snapshot points to.
    ///
    /// # Errors
    /// It is unreadable or damaged.
    pub fn check_root(&self, id: ObjectId, root: &BlockPtr) -> Result<(), ObjectError> {
        read_header(&self.pool, ObjsetId(id.0), root).map(drop)
    }

    /// Identity of a set; `None`: it has none yet.
    pub fn identity(&self, id: ObjectId) -> Result<Option<Identity>, ObjectError> {
        Ok(parse_entry(&self.mos.hold(id)?.bonus(), id)?.1)
    }
}

impl Client for ObjectSets {
    fn quiesced(&self, last_tx: &Tx) {
        let sets: Vec<(ObjectId, Arc<ObjectSet>)> =
            self.sets.lock().iter().map(|(id, set)| (*id, set.clone())).collect();
        for (_, set) in &sets {
            set.quiesced(last_tx);
            if let Some(policy) = set.free_policy() {
                policy.quiesced(last_tx);
            }
        }
        self.mos.quiesced(last_tx);
        *self.syncing.lock() = sets;
    }

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let sets = std::mem::take(&mut *self.syncing.lock());
        let mut changes = Vec::new();
        let shared = self.shared().clone();
        txg_sync.begin_references(shared.ranges());
        if shared.has_clones(txg_sync.txg()) {
            sets.iter().for_each(|(_, set)| set.note_shared_zones(txg_sync));
        }
        for (id, set) in sets {
            if let Some(Synced { root, queue }) = set.sync(txg_sync, Vec::new()).map_err(into_pool)? {
                changes.push(MosChange::root(id, &root));
                let queue = set.queue_in_mos().zip(queue);
                changes
                    .extend(queue.map(|(id, blocks)| MosChange { id, update: MosUpdate::Content(blocks) }));
            }
            set.tell_counted(txg_sync.txg());
            if set.queue_needs_txg() {
                self.pool.want_txg_soon();
            }
            if let Some(policy) = set.free_policy() {
                let mut of_policy =
                    policy.after_sync(txg_sync, &set.root(), set.account()).map_err(into_pool)?;
                changes.append(&mut of_policy);
            }
        }
        // Nothing that may be shared is freed from here on: the meta object set has no records.
        if let Some((id, blocks)) = shared.settle(txg_sync).map_err(into_pool)? {
            changes.push(MosChange { id, update: MosUpdate::Blocks(blocks) });
        }
        self.mos.sync(txg_sync, changes).map_err(into_pool)?;
        if self.mos.queue_needs_txg() {
            self.pool.want_txg_soon();
        }
        Ok(self.mos.root())
    }

    fn synced(&self, txg: Txg) {
        self.sets.lock().values().for_each(|set| set.synced(txg));
        self.mos.synced(txg);
    }
}

fn into_pool(error: ObjectError) -> PoolError {
    match error {
        ObjectError::Pool(error) => error,
        other => PoolError::Failed { reason: other.to_string().into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::free_policy::FreeAll;
    use terrane_device::{SimConfig, SimDevice};
    use terrane_pool::{CreateOptions, ImportOptions};
    use terrane_store::env::SeededEnv;

    /// What a set names as its free queue must take what is stored there.
    #[test]
    fn invalid_free_queue_object_is_refused() {
        let device: Arc<SimDevice> = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
        let (create, options) = (CreateOptions::named("queue"), ImportOptions::default());
        let pool = Pool::create(vec![device], &create, Arc::new(SeededEnv::new(1)), &options).unwrap();
        let objects = ObjectSets::create(pool.clone()).unwrap();
        let open = |spec: Option<(ObjectKind, u32)>, other: ObjectId| {
            let tx = pool.begin(IDENTIFY_COST).unwrap();
            let id = objects.create_objset(&tx).unwrap();
            let make = |(kind, block_size)| {
                let spec = ObjectSpec { kind, block_size, dnode_slots: 1, bonus: Vec::new(), spill: None };
                objects.mos.create(&tx, spec).unwrap().id()
            };
            let free_queue = spec.map_or(other, make);
            let object = objects.mos.hold(id).unwrap();
            let (root, identity) = parse_entry(&object.bonus(), id).unwrap();
            let identity = Identity { free_queue, ..identity.unwrap() };
            object.set_bonus(&tx, [&root.encode()[..], &identity.encode()].concat()).unwrap();
            drop(tx);
            objects.open_objset(id, Arc::new(FreeAll)).map(|_| free_queue)
        };
        let none = ObjectId(0);
        let queue = open(Some((ObjectKind::FreeQueue, DNODE_BLOCK_BYTES)), none).unwrap();
        assert!(open(Some((ObjectKind::FreeQueue, 512)), none).is_err());
        assert!(open(Some((ObjectKind::Zap, DNODE_BLOCK_BYTES)), none).is_err());
        assert!(open(None, queue).is_err(), "it is another set's");
        pool.commit().unwrap();
    }
}
