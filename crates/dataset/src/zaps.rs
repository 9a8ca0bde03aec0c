//! ZAPs for programs: key-value stores in a data set, without files.
//!
//! A metadata server, an index or a queue keeps its state in ZAPs. Small ones cost what they hold, large ones
//! stay fast. The changes of one [`Batch`] survive a crash as a whole, or not at all. [`Zaps`] gives out one
//! [`ZapHandle`] per object, shared by threads. Readers run concurrently; changes of one ZAP are serialized.
//! Changes are durable when [`commit`](Zaps::commit) has returned, and otherwise within the pool's commit
//! period.
//!
//! Objects are found by number, and programs store the numbers in other ZAPs. The first ones have a name among
//! the *roots*. Files of the same data set are independent of them.
//!
//! | error | what to do |
//! |---|---|
//! | [`Exists`](terrane_zap::Error::Exists) | [`update`](ZapHandle::update), or use another name |
//! | `NameInvalid`, `NameTooLong`, `KeyKind`, `ValueTooLong`, `EntryTooLarge` | change the request: nothing was changed |
//! | `Full` | remove names: too many share one hash |
//! | `Store(ObjectError::NotFound)` | the object was destroyed: drop the handle |
//! | `Store(ObjectError::Pool(PoolError::NoSpace))` | remove something; only [`begin`](Zaps::begin) returns it |
//! | `Store(ObjectError::Pool(PoolError::ReadOnly))` | import the pool for writing |
//! | `Store(ObjectError::Pool(PoolError::Failed))` | the pool has stopped: import it again, and continue from the last commit |
//! | `Store`, anything else | this ZAP is damaged, or its device failed; others can be used |
//!
//! Invariant: there is one `ObjectZap` for an object, so its lock is the object's lock.

use crate::dataset::Dataset;
use crate::error::{DatasetError, ZapError};
use crate::zap_handle::{Batch, BatchPlan, DNODE_COST_BYTES, OpenZaps, ZapHandle};
use crate::zap_store::ObjectZap;
use std::sync::Arc;
use terrane_object::{ObjectError, ObjectKind};
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;
use terrane_zap::Flags;

/// The entry of the master ZAP for objects of programs.
pub const PROGRAM_ROOTS: &[u8] = b"OBJECTS";
/// ZAPs shrunk by one call.
const SHRINK_STEP: usize = 64;

/// Options of a new ZAP. The data set decides the rest: the property `zapsize`, and whether ZAPs may be tiny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZapSpec {
    /// Which keys it takes, and how they are hashed. With [`Flags::NONE`] it takes names, and stays small while
    /// it can. With any flag it starts as a fat ZAP of two blocks.
    pub flags: Flags,
    /// Log2 of a fat ZAP's block size in bytes, 9 to 20. Used only with flags.
    pub fat_block_shift: u32,
}

impl ZapSpec {
    /// For names of up to 255 bytes.
    pub const NAMES: ZapSpec = ZapSpec { flags: Flags::NONE, fat_block_shift: 14 };
    /// For keys of one to 32 words.
    pub const U64_KEYS: ZapSpec = ZapSpec { flags: Flags::UINT64_KEY.union(Flags::HASH64), ..ZapSpec::NAMES };
}

/// The ZAPs of programs in one data set. Shared by threads.
pub struct Zaps {
    dataset: Arc<Dataset>,
    open_zaps: Arc<OpenZaps>,
    roots: ZapHandle,
}

impl Zaps {
    /// Opens the ZAPs of a data set, and prepares it the first time. All `Zaps` of an open data set share their
    /// handles.
    pub fn open(dataset: &Arc<Dataset>) -> Result<Arc<Zaps>, DatasetError> {
        // Held throughout: two threads that prepare the data set at once would both add the entry.
        let mut shared = dataset.open_zaps.lock();
        let master = dataset.shared_master();
        let found = master.lock().lookup_u64(PROGRAM_ROOTS)?;
        let id = match found {
            Some(id) => ObjectId(id),
            None => {
                let cost = Cost { meta_blocks: 8, objects: 2, ..Cost::NOTHING };
                dataset.check_writable()?;
                let tx = dataset.object_set().begin(cost)?;
                let roots = dataset.new_zap(&tx, ObjectKind::Zap)?.object().id();
                master.lock().add_u64(&tx, PROGRAM_ROOTS, roots.0)?;
                roots
            }
        };
        // Handles outlive their `Zaps`. A second handle for an object would rely on stale state.
        let open = shared.upgrade().unwrap_or_default();
        *shared = Arc::downgrade(&open);
        let roots = ZapHandle::new(&open, dataset.open_zap(id)?);
        Ok(Arc::new(Zaps { dataset: Arc::clone(dataset), open_zaps: open, roots }))
    }

    /// The data set of the ZAPs.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Maps names of a program's first objects to numbers.
    pub fn roots(&self) -> &ZapHandle {
        &self.roots
    }

    /// Joins the open txg, and may wait for space. Not to be called while this thread holds another batch, or a
    /// lock that a thread with a batch may need.
    ///
    /// # Errors
    /// `NoSpace`, `Quota`, `ReadOnly`, `Failed`: nothing was begun.
    pub fn begin(&self, plan: BatchPlan) -> Result<Batch, ZapError> {
        let cost = plan.cost();
        self.dataset.check_writable()?;
        let tx = self.dataset.object_set().begin(cost)?;
        Ok(Batch::new(tx, cost.meta_bytes))
    }

    /// Makes everything done before durable.
    pub fn commit(&self) -> Result<(), ZapError> {
        Ok(self.dataset.object_set().commit()?)
    }

    /// Creates an empty ZAP. Its number must be stored in another ZAP, or it can never be found again.
    pub fn create(&self, batch: &Batch, spec: ZapSpec) -> Result<ZapHandle, ZapError> {
        batch.check_pool(self.dataset.zap_policy())?;
        let mut zap = self.dataset.new_zap(batch.tx(), ObjectKind::Zap).map_err(into_zap_error)?;
        let id = zap.object().id();
        if self.open_zaps.dnode_blocks.claim(batch.txg(), id) {
            batch.charge(DNODE_COST_BYTES);
        }
        if spec.flags != Flags::NONE {
            batch.charge(3 << spec.fat_block_shift.min(20));
            zap.write_empty(batch.tx(), spec.flags, spec.fat_block_shift)?;
        }
        Ok(ZapHandle::new(&self.open_zaps, zap))
    }

    /// The ZAP with this number; only its dnode is read.
    ///
    /// # Errors
    /// `NotFound`: there is no such object, or it is not a ZAP.
    pub fn zap(&self, id: ObjectId) -> Result<ZapHandle, ZapError> {
        if let Some(shared) = self.open_zaps.get(id).filter(|shared| !shared.is_destroyed()) {
            return Ok(ZapHandle(shared));
        }
        let zap = self.dataset.open_zap(id).map_err(into_zap_error)?;
        if zap.object().kind() != ObjectKind::Zap {
            return Err(ObjectError::NotFound(id).into());
        }
        Ok(ZapHandle::new(&self.open_zaps, zap))
    }

    /// Destroys a ZAP with its content. Its other handles return `NotFound` from then on. `Refused`: the roots
    /// cannot be destroyed, as the data set needs them when it is opened.
    pub fn destroy(&self, batch: &Batch, zap: &ZapHandle) -> Result<(), ZapError> {
        if zap.id() == self.roots.id() {
            return Err(ZapError::Refused { what: "the ZAP of the roots cannot be destroyed" });
        }
        batch.check_pool(self.dataset.zap_policy())?;
        let state = zap.0.state.write();
        let object = zap.check_exists(&state)?.object();
        zap.claim_dnode(batch);
        self.dataset.object_set().destroy(batch.tx(), object)?;
        self.open_zaps.remove_shrink_due(&zap.0);
        Ok(())
    }

    /// Shrinks up to 64 ZAPs that lost entries in a txg before the open one. True: there may be more. Readers
    /// continue meanwhile, and a ZAP that cannot be rewritten now stays as it is. To be called once a second by
    /// a background thread, and before the pool is exported. This thread must not have a batch.
    pub fn shrink_zaps(&self) -> bool {
        let open_txg = self.dataset.object_set().open_txg().0;
        let zaps: Vec<ZapHandle> = {
            let zaps = self.open_zaps.shrink_due.lock();
            let zaps = zaps.values().filter(|(txg_of_loss, _)| *txg_of_loss < open_txg).take(SHRINK_STEP);
            zaps.map(|(_, zap)| ZapHandle(Arc::clone(zap))).collect()
        };
        for zap in &zaps {
            if let Err(error) = self.shrink_zap(zap) {
                log::debug!("ZAP {} not shrunk: {error}", zap.id());
            }
            // A change in the meantime notes it again with the next removal.
            self.open_zaps.remove_shrink_due(&zap.0);
        }
        zaps.len() == SHRINK_STEP
    }

    fn shrink_zap(&self, zap: &ZapHandle) -> Result<(), ZapError> {
        let Some(plan) = zap.read(ObjectZap::plan_shrink)? else { return Ok(()) };
        let bytes = plan.bytes() as u64;
        let batch = self.begin(BatchPlan::shrink(bytes))?;
        let mut state = zap.0.state.write();
        zap.check_exists(&state)?;
        zap.claim_dnode(&batch);
        batch.charge(bytes);
        state.zap.apply_shrink(batch.tx(), plan).map(drop)
    }
}

impl Drop for Zaps {
    fn drop(&mut self) {
        // The set and its entries refer to each other.
        let shrink_due = std::mem::take(&mut *self.open_zaps.shrink_due.lock());
        drop(shrink_due);
    }
}

fn into_zap_error(error: DatasetError) -> ZapError {
    match error {
        DatasetError::Object(error) => error.into(),
        DatasetError::Zap(error) => error,
        other => ObjectError::from(terrane_wire::Corrupt::new("data set", "ZAP", "a new one", other)).into(),
    }
}

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

#[cfg(test)]
mod tests {
    use super::support::Machine;
    use super::*;
    use terrane_zap::{Error, Value, ValueRef};

    /// A thread looks a ZAP up, is delayed, and continues when the number belongs to another ZAP.
    #[test]
    fn handle_of_destroyed_zap_does_not_alias_a_reused_number() {
        let machine = Machine::new(1);
        let dataset = Arc::new(Dataset::create_root(&machine.objects, &[]).unwrap());
        let zaps = Zaps::open(&dataset).unwrap();
        let create = || {
            let batch = zaps.begin(BatchPlan::new().create(1, 1, 40)).unwrap();
            zaps.create(&batch, ZapSpec::NAMES).unwrap()
        };
        let old = create();
        let held_up = dataset.open_zap(old.id()).unwrap();
        zaps.destroy(&zaps.begin(BatchPlan::new().destroy()).unwrap(), &old).unwrap();
        let id = old.id();
        drop(old);
        let late = ZapHandle::new(&zaps.open_zaps, held_up);
        let mut others = Vec::new();
        let new = loop {
            assert!(others.len() < 100, "the number does not come again");
            dataset.object_set().commit().unwrap();
            let new = create();
            if new.id() == id {
                break new;
            }
            others.push(new);
        };
        let value = ValueRef::U64s(&[1]);
        let batch = zaps.begin(BatchPlan::new().put(&new, 1, 4, value)).unwrap();
        new.add(&batch, "name", value).unwrap();
        assert!(matches!(late.add(&batch, "name", value), Err(Error::Store(ObjectError::NotFound(_)))));
        drop(batch);
        assert_eq!(zaps.zap(id).unwrap().lookup("name").unwrap(), Some(Value::U64(1)));
    }
}
