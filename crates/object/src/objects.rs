//! All object sets of a pool, and their sync in one group.
//!
//! The *meta object set* (MOS) describes everything else; its root is in the commit record. Each other set has an object in the
//! MOS whose bonus is its root pointer. A group syncs the other sets first, then the MOS with their new roots.

use crate::error::ObjectError;
use crate::freeing::FreePolicy;
use crate::kind::ObjectKind;
use crate::objset::{ObjectSet, ObjectSpec, root_in};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_format::BlockPtr;
use terrane_pool::{Client, Group, Pool, Tx};
use terrane_store::PoolError;
use terrane_wire::{ObjectId, ObjsetId, Txg};

pub struct Objects {
    pool: Arc<Pool>,
    mos: Arc<ObjectSet>,
    /// Open sets by their MOS object.
    sets: Mutex<BTreeMap<ObjectId, Arc<ObjectSet>>>,
}

impl Objects {
    /// Starts the meta object set of a fresh pool.
    pub fn create(pool: Arc<Pool>) -> Result<Arc<Objects>, ObjectError> {
        Self::open(pool)
    }

    /// The object sets of an imported pool.
    pub fn open(pool: Arc<Pool>) -> Result<Arc<Objects>, ObjectError> {
        let mos = ObjectSet::open(pool.clone(), ObjsetId(0), pool.root(), None)?;
        let objects = Arc::new(Objects { pool: pool.clone(), mos, sets: Mutex::default() });
        pool.set_client(objects.clone());
        Ok(objects)
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.mos
    }

    /// Makes an empty object set; returns the MOS object that stands for it.
    pub fn create_objset(&self, tx: &Tx) -> Result<ObjectId, ObjectError> {
        let bonus = BlockPtr::default().encode().to_vec();
        let spec =
            ObjectSpec { kind: ObjectKind::Objset, block_size: 512, dnode_slots: 1, bonus, spill: None };
        Ok(self.mos.create(tx, spec)?.id())
    }

    /// The object set that an object of the MOS stands for. Where it is not open yet, `free_policy` judges its blocks from now on.
    pub fn open_objset(
        &self,
        id: ObjectId,
        free_policy: Arc<dyn FreePolicy>,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        let mut sets = self.sets.lock();
        if let Some(set) = sets.get(&id) {
            return Ok(set.clone());
        }
        let object = self.mos.hold(id)?;
        if object.kind() != ObjectKind::Objset {
            return Err(ObjectError::NotFound(id));
        }
        let root = root_in(&object.bonus(), id)?;
        let set = ObjectSet::open(self.pool.clone(), ObjsetId(id.0), root, Some(free_policy))?;
        sets.insert(id, set.clone());
        Ok(set)
    }
}

impl Client for Objects {
    fn quiesced(&self, last: &Tx) {
        for set in self.sets.lock().values() {
            set.quiesced(last);
        }
        self.mos.quiesced(last);
    }

    fn sync(&self, group: &mut Group<'_>) -> Result<BlockPtr, PoolError> {
        let sets: Vec<(ObjectId, Arc<ObjectSet>)> =
            self.sets.lock().iter().map(|(id, set)| (*id, set.clone())).collect();
        let mut roots = Vec::new();
        for (id, set) in sets {
            if let Some(root) = set.sync(group, &[]).map_err(into_pool)? {
                roots.push((id, root.encode().to_vec()));
            }
            if set.has_queue() {
                self.pool.want_another_group();
            }
        }
        self.mos.sync(group, &roots).map_err(into_pool)?;
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
