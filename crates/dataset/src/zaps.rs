//! ZAPs for programs: names and numbers of their own, in a data set, without files.
//!
//! A metadata server, an index or a queue keeps its state in ZAPs: small ones cost what they hold, large ones stay fast, and what is
//! done in one [`Batch`] is there whole after a crash, or not at all. [`Zaps`] gives out one [`ZapHandle`] for each object, which threads
//! share: readers run beside one another, changes of one ZAP one after another. What was done is durable when
//! [`commit`](Zaps::commit) has returned, and else within the pool's commit period.
//!
//! Objects are found by their numbers, which the program keeps in other ZAPs; those it begins with have a name among the *roots*.
//! Files of the same data set live beside them and know nothing of them.
//!
//! | error | what to do |
//! |---|---|
//! | [`Exists`](terrane_zap::Error::Exists) | [`update`](ZapHandle::update), or take another name |
//! | `NameInvalid`, `NameTooLong`, `KeyKind`, `ValueTooLong`, `EntryTooLarge` | ask for something else: nothing was changed |
//! | `Full` | remove names: too many share one hash |
//! | `Store(ObjectError::NotFound)` | the object is gone: drop the handle |
//! | `Store(ObjectError::Pool(PoolError::NoSpace))` | remove something; only [`begin`](Zaps::begin) says so |
//! | `Store(ObjectError::Pool(PoolError::ReadOnly))` | import the pool for writing |
//! | `Store(ObjectError::Pool(PoolError::Failed))` | the pool writes no more: import it again, and go on from the last commit |
//! | `Store`, anything else | this ZAP is damaged, or its device failed; others can be used |
//!
//! Invariant: there is one `ObjectZap` for an object, so its lock is the object's lock.

use crate::dataset::Dataset;
use crate::dnode_blocks::{DNODE_BLOCK_BYTES, DnodeBlocks};
use crate::error::DatasetError;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::{ChangeCost, ObjectZap, ZapError};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use terrane_object::{Cost, Object, ObjectError, ObjectId, ObjectKind, Tx};
use terrane_wire::NumberMap;
use terrane_zap::{Cursor, Entry, Flags, KeyRef, Kind, Value, ValueRef};

/// The entry of the master ZAP that says that programs keep objects here.
pub const OBJECTS: &[u8] = b"OBJECTS";
/// Entries that [`ZapHandle::iter`] reads at a time.
const ITER_BATCH: usize = 256;
/// ZAPs that wait to give back what they do not need; what is more is noted again when it loses another entry.
const DUE_MAX: usize = 4096;
/// ZAPs settled by one call.
const SETTLE_STEP: usize = 64;

/// How a ZAP is made. What is not said here is the data set's: the property `zapsize`, and whether ZAPs may be tiny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZapSpec {
    /// Which keys it takes, and how they are hashed. With [`Flags::NONE`] it takes names, and is small while it can be. With any
    /// flag it is fat from the beginning, and has two blocks.
    pub flags: Flags,
    /// A fat ZAP's blocks have 2 to this power bytes, 9 to 20; counts only if there are flags.
    pub fat_block_shift: u32,
}

impl ZapSpec {
    /// For names of up to 255 bytes.
    pub const NAMES: ZapSpec = ZapSpec { flags: Flags::NONE, fat_block_shift: 14 };
    /// For keys of one to 32 words.
    pub const WORDS: ZapSpec = ZapSpec { flags: Flags::UINT64_KEY.and(Flags::HASH64), ..ZapSpec::NAMES };
}

/// What a batch is going to do, so that room for it can be reserved. What it does beyond that finds room, or the pool fills
/// up without saying so in time: count what is large, and do not mind a name more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    created: u32,
    changed: u32,
    bytes: u64,
    frees: bool,
}

impl Work {
    pub fn new() -> Self {
        Work::default()
    }

    /// New ZAPs, each with so many entries of `entry_bytes`: those of name and value.
    pub fn create(mut self, zaps: u32, entries: u64, entry_bytes: u64) -> Self {
        // Half of a slot is used at the worst, and a fat ZAP has a header, a leaf, and blocks that are half full.
        let slots = entries.saturating_mul(entry_bytes.saturating_add(16)).saturating_mul(2);
        let fat = if slots > SLOTS_BYTES_LIKELY { slots.saturating_mul(2) } else { 0 };
        self.created = self.created.saturating_add(zaps);
        self.bytes = self
            .bytes
            .saturating_add(u64::from(zaps).saturating_mul(slots.saturating_add(fat).saturating_add(512)));
        self
    }

    /// So many entries are added or get another value.
    pub fn put(self, zap: &ZapHandle, entries: u64, name_bytes: usize, value: ValueRef<'_>) -> Self {
        let cost = zap.0.state.read().zap.put_cost(name_bytes, value);
        self.change(cost, entries)
    }

    /// So many entries are removed. It may use the reserve of a full pool.
    pub fn remove(self, zap: &ZapHandle, entries: u64) -> Self {
        let cost = zap.0.state.read().zap.remove_cost();
        Work { frees: true, ..self.change(cost, entries) }
    }

    /// A ZAP goes. It may use the reserve of a full pool.
    pub fn destroy(self) -> Self {
        Work { frees: true, changed: self.changed.saturating_add(1), ..self }
    }

    fn change(mut self, cost: ChangeCost, times: u64) -> Self {
        self.changed = self.changed.saturating_add(1);
        self.bytes = self.bytes.saturating_add(cost.of_many(times));
        self
    }

    fn cost(&self) -> Cost {
        // New objects lie side by side, others anywhere.
        let dnode_blocks = u64::from(self.created / DNODES_PER_BLOCK) + 2 + u64::from(self.changed) * 2;
        Cost {
            meta_bytes: self.bytes.saturating_add(dnode_blocks * DNODE_BLOCK_BYTES),
            objects: self.created.saturating_add(self.changed),
            frees: self.frees && self.created == 0,
            ..Cost::NOTHING
        }
    }
}

/// More is likely to be a fat ZAP.
const SLOTS_BYTES_LIKELY: u64 = 128 << 10;
const DNODES_PER_BLOCK: u32 = 32;
/// A block of dnodes, and one above it.
const DNODE_BLOCKS_BYTES: u64 = 2 * DNODE_BLOCK_BYTES;

/// Changes that become durable together. Drop it when they are done: groups wait for it. A thread has one at a time. There is no way
/// back: an operation that fails changes nothing itself, and what was done before it in the same batch stays.
#[must_use]
pub struct Batch {
    tx: Tx,
    /// Bytes that were reserved and not needed yet.
    left: Mutex<u64>,
}

impl Batch {
    /// The group it belongs to.
    pub fn group(&self) -> u64 {
        self.tx.txg().0
    }

    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    /// What another pool's batch changed, no group of this one would wait for, and perhaps none would store.
    fn judge(&self, policy: &ZapPolicy) -> Result<(), ZapError> {
        let what = "the batch should be one of the same pool";
        if policy.is_of_pool(&self.tx) { Ok(()) } else { Err(ZapError::Options { what }) }
    }

    /// Takes from what was reserved; what is missing is reserved now.
    fn cover(&self, bytes: u64) {
        let mut left = self.left.lock();
        let missing = bytes.saturating_sub(*left);
        *left = left.saturating_sub(bytes);
        if missing > 0 {
            self.tx.reserve_more(u32::try_from(missing.div_ceil(DNODE_BLOCK_BYTES)).unwrap_or(u32::MAX));
        }
    }
}

struct State {
    zap: ObjectZap,
    /// The newest group in which it was changed, and bytes that this group has reserved for it.
    claimed: (u64, u64),
}

impl State {
    fn cover(&mut self, batch: &Batch, cost: ChangeCost) {
        if self.claimed.0 != batch.group() {
            self.claimed = (batch.group(), 0);
        }
        let missing = cost.missing(self.claimed.1);
        self.claimed.1 += missing;
        batch.cover(missing);
    }
}

struct Shared {
    id: ObjectId,
    /// Only it knows whether it was destroyed: somebody may have opened it before, and made a handle of it afterwards.
    object: Arc<Object>,
    state: RwLock<State>,
    open: Arc<Open>,
}

impl Shared {
    fn is_destroyed(&self) -> bool {
        self.object.is_destroyed()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut zaps = self.open.zaps.lock();
        if zaps.get(&self.id.0).is_some_and(|zap| zap.strong_count() == 0) {
            zaps.remove(&self.id.0);
        }
    }
}

/// ZAPs that have a handle.
#[derive(Default)]
pub(crate) struct Open {
    zaps: Mutex<NumberMap<u64, Weak<Shared>>>,
    /// Those that lost entries and may take more space than they need, and in which group; kept in memory for that.
    due: Mutex<BTreeMap<u64, (u64, Arc<Shared>)>>,
    dnode_blocks: DnodeBlocks,
}

impl Open {
    fn get(&self, id: ObjectId) -> Option<Arc<Shared>> {
        self.zaps.lock().get(&id.0).and_then(Weak::upgrade)
    }

    /// The caller holds its lock.
    fn note_due(&self, zap: &Arc<Shared>, group: u64) {
        let mut due = self.due.lock();
        if due.len() < DUE_MAX || due.contains_key(&zap.id.0) {
            due.insert(zap.id.0, (group, Arc::clone(zap)));
        }
    }

    fn forget_due(&self, zap: &Shared) {
        // What is dropped takes locks of its own.
        let forgotten = self.due.lock().remove(&zap.id.0);
        drop(forgotten);
    }
}

impl Drop for Zaps {
    fn drop(&mut self) {
        // They hold each other.
        let due = std::mem::take(&mut *self.open.due.lock());
        drop(due);
    }
}

/// The ZAPs of programs in one data set. Shared by threads.
pub struct Zaps {
    dataset: Arc<Dataset>,
    open: Arc<Open>,
    roots: ZapHandle,
}

impl Zaps {
    /// Finds them, or prepares the data set for them. Each `Zaps` of an open data set gives out the same handles.
    pub fn open(dataset: &Arc<Dataset>) -> Result<Arc<Zaps>, DatasetError> {
        // Held throughout: two who prepare the data set at once would both add the entry.
        let mut known = dataset.open_zaps.lock();
        let mut master = dataset.master()?;
        let id = match master.lookup_u64(OBJECTS)? {
            Some(id) => ObjectId(id),
            None => {
                let cost = Cost { meta_blocks: 8, objects: 2, ..Cost::NOTHING };
                let tx = dataset.objects().begin(cost)?;
                let roots = dataset.new_zap(&tx, ObjectKind::Zap)?.object().id();
                master.add_u64(&tx, OBJECTS, roots.0)?;
                roots
            }
        };
        // Handles outlive the `Zaps` they came from, and a second one for an object would believe what it remembers of it.
        let open = known.upgrade().unwrap_or_default();
        *known = Arc::downgrade(&open);
        let roots = ZapHandle::new(&open, dataset.open_zap(id)?);
        Ok(Arc::new(Zaps { dataset: Arc::clone(dataset), open, roots }))
    }

    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Names of the objects a program begins with, to numbers.
    pub fn roots(&self) -> &ZapHandle {
        &self.roots
    }

    /// Joins the open group, and may wait for room: not while this thread holds another batch, or a lock that somebody with a batch
    /// may want.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`, `Failed`: nothing was begun.
    pub fn begin(&self, work: Work) -> Result<Batch, ZapError> {
        let cost = work.cost();
        let tx = self.dataset.objects().begin(cost)?;
        Ok(Batch { tx, left: Mutex::new(cost.meta_bytes) })
    }

    /// Everything that was done before is durable when it returns.
    pub fn commit(&self) -> Result<(), ZapError> {
        Ok(self.dataset.objects().commit()?)
    }

    /// A new, empty ZAP. Its number must be kept in another one, or nobody finds it again.
    pub fn create(&self, batch: &Batch, spec: ZapSpec) -> Result<ZapHandle, ZapError> {
        batch.judge(self.dataset.zap_policy())?;
        let mut zap = self.dataset.new_zap(&batch.tx, ObjectKind::Zap).map_err(into_zap_error)?;
        let id = zap.object().id();
        if self.open.dnode_blocks.claim(batch.group(), id) {
            batch.cover(DNODE_BLOCKS_BYTES);
        }
        if spec.flags != Flags::NONE {
            batch.cover(3 << spec.fat_block_shift.min(20));
            zap.write_empty(&batch.tx, spec.flags, spec.fat_block_shift)?;
        }
        Ok(ZapHandle::new(&self.open, zap))
    }

    /// The ZAP with this number; nothing but its dnode is read.
    ///
    /// # Errors
    /// `NotFound`: there is no such object, or it is no ZAP.
    pub fn zap(&self, id: ObjectId) -> Result<ZapHandle, ZapError> {
        if let Some(shared) = self.open.get(id).filter(|shared| !shared.is_destroyed()) {
            return Ok(ZapHandle(shared));
        }
        let zap = self.dataset.open_zap(id).map_err(into_zap_error)?;
        if zap.object().kind() != ObjectKind::Zap {
            return Err(ObjectError::NotFound(id).into());
        }
        Ok(ZapHandle::new(&self.open, zap))
    }

    /// Removes a ZAP with all that is in it. Its other handles answer `NotFound` from then on. `Options`: the roots cannot be removed,
    /// without them the data set could not be opened again.
    pub fn destroy(&self, batch: &Batch, zap: &ZapHandle) -> Result<(), ZapError> {
        if zap.id() == self.roots.id() {
            return Err(ZapError::Options { what: "the ZAP should not be that of the roots" });
        }
        batch.judge(self.dataset.zap_policy())?;
        let state = zap.0.state.write();
        let object = zap.alive(&state)?.object();
        zap.claim_dnode(batch);
        self.dataset.objects().destroy(&batch.tx, object)?;
        self.open.forget_due(&zap.0);
        Ok(())
    }

    /// Gives back what up to 64 ZAPs no longer need that lost entries in a group before the open one; true: there may be more of
    /// them. Readers go on meanwhile, and a ZAP that cannot be written anew now stays as it is. For a thread that does so once a
    /// second, and before the pool is exported; not while this thread has a batch.
    pub fn settle(&self) -> bool {
        let group = self.dataset.objects().open_txg().0;
        let due: Vec<ZapHandle> = {
            let due = self.open.due.lock();
            let due = due.values().filter(|(noted, _)| *noted < group).take(SETTLE_STEP);
            due.map(|(_, zap)| ZapHandle(Arc::clone(zap))).collect()
        };
        for zap in &due {
            if let Err(error) = self.settle_one(zap) {
                log::debug!("ZAP {} keeps space that it does not need: {error}", zap.id());
            }
            // What was changed meanwhile is noted again by its next removal.
            self.open.forget_due(&zap.0);
        }
        due.len() == SETTLE_STEP
    }

    fn settle_one(&self, zap: &ZapHandle) -> Result<(), ZapError> {
        let Some(plan) = zap.read(ObjectZap::plan_shrink)? else { return Ok(()) };
        let bytes = plan.bytes() as u64;
        let batch = self.begin(Work { bytes, changed: 1, frees: true, ..Work::new() })?;
        let mut state = zap.0.state.write();
        zap.alive(&state)?;
        zap.claim_dnode(&batch);
        batch.cover(bytes);
        state.zap.apply_shrink(&batch.tx, plan).map(drop)
    }
}

/// A ZAP. Clones are the same one.
#[derive(Clone)]
pub struct ZapHandle(Arc<Shared>);

impl ZapHandle {
    fn new(open: &Arc<Open>, zap: ObjectZap) -> Self {
        let (id, object) = (zap.object().id(), Arc::clone(zap.object()));
        let state = RwLock::new(State { zap, claimed: (0, 0) });
        let new = Arc::new(Shared { id, object, state, open: Arc::clone(open) });
        // Whichever goes is dropped after the lock: it takes the lock.
        let known;
        {
            let mut zaps = open.zaps.lock();
            known = zaps.get(&id.0).and_then(Weak::upgrade);
            // A number comes again when what it named was destroyed; who still has the old handle keeps it.
            if known.as_ref().is_none_or(|known| known.is_destroyed()) {
                zaps.insert(id.0, Arc::downgrade(&new));
                return ZapHandle(new);
            }
        }
        // Somebody else was faster: there is one for all.
        ZapHandle(known.unwrap_or(new))
    }

    fn alive<'s>(&self, state: &'s State) -> Result<&'s ObjectZap, ZapError> {
        if self.0.is_destroyed() { Err(ObjectError::NotFound(self.0.id).into()) } else { Ok(&state.zap) }
    }

    fn read<T>(&self, read: impl FnOnce(&ObjectZap) -> Result<T, ZapError>) -> Result<T, ZapError> {
        read(self.alive(&self.0.state.read())?)
    }

    /// Names it for ever, until it is destroyed.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    fn claim_dnode(&self, batch: &Batch) {
        if self.0.open.dnode_blocks.claim(batch.group(), self.0.id) {
            batch.cover(DNODE_BLOCKS_BYTES);
        }
    }

    fn change<T>(
        &self,
        batch: &Batch,
        cost: impl FnOnce(&ObjectZap) -> ChangeCost,
        change: impl FnOnce(&mut ObjectZap, &Tx) -> Result<T, ZapError>,
    ) -> Result<T, ZapError> {
        let mut state = self.0.state.write();
        batch.judge(self.alive(&state)?.policy())?;
        let cost = cost(&state.zap);
        state.cover(batch, cost);
        self.claim_dnode(batch);
        change(&mut state.zap, &batch.tx)
    }

    /// Adds an entry with integers of 1, 2, 4 or 8 bytes. `Exists`: the key is there.
    pub fn add<'k>(
        &self,
        batch: &Batch,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<(), ZapError> {
        let key = key.into();
        self.change(batch, |zap| zap.put_cost(key_bytes(key), value), |zap, tx| zap.add(tx, key, value))
    }

    /// Adds an entry, or gives it another value; says whether the key is new.
    pub fn update<'k>(
        &self,
        batch: &Batch,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<bool, ZapError> {
        let key = key.into();
        self.change(batch, |zap| zap.put_cost(key_bytes(key), value), |zap, tx| zap.update(tx, key, value))
    }

    /// Whether the key was there.
    pub fn remove<'k>(&self, batch: &Batch, key: impl Into<KeyRef<'k>>) -> Result<bool, ZapError> {
        let key = key.into();
        self.change(batch, ObjectZap::remove_cost, |zap, tx| {
            let removed = zap.remove(tx, key)?;
            if removed && zap.is_shrink_due() {
                self.0.open.note_due(&self.0, tx.txg().0);
            }
            Ok(removed)
        })
    }

    pub fn lookup<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>, ZapError> {
        self.read(|zap| zap.lookup(key))
    }

    /// The entry's first integer.
    pub fn lookup_u64<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<u64>, ZapError> {
        self.read(|zap| zap.lookup_u64(key))
    }

    pub fn contains<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<bool, ZapError> {
        Ok(self.length(key)?.is_some())
    }

    /// Bytes of each integer of the value, and how many there are.
    pub fn length<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<(u8, usize)>, ZapError> {
        self.read(|zap| zap.length(key))
    }

    /// Entries.
    pub fn len(&self) -> Result<u64, ZapError> {
        self.read(|zap| zap.len())
    }

    pub fn is_empty(&self) -> Result<bool, ZapError> {
        self.read(|zap| zap.is_empty())
    }

    /// Micro, tiny or fat, for those who want to see it.
    pub fn kind(&self) -> Result<Kind, ZapError> {
        self.read(|zap| zap.kind())
    }

    /// Up to `max` entries from `from` on, in the order of their hashes. Fewer only at the end. A walk over several calls shows every
    /// entry that was there throughout, once, whatever happens to others meanwhile.
    pub fn list(&self, from: Cursor, max: usize) -> Result<Vec<Entry>, ZapError> {
        self.read(|zap| zap.list(from, max))
    }

    /// All entries. No lock is held between two of them.
    pub fn iter(&self) -> impl Iterator<Item = Result<Entry, ZapError>> + '_ {
        let mut from = Some(Cursor::START);
        let mut batch = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(entry) = batch.next() {
                    return Some(Ok(entry));
                }
                match self.list(from.take()?, ITER_BATCH) {
                    Ok(entries) => {
                        let is_last = entries.len() < ITER_BATCH;
                        from = entries.last().filter(|_| !is_last).map(Entry::cursor_after);
                        batch = entries.into_iter();
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    /// Reads its blocks into the cache, in their order, so that lookups and lists need not wait for the device. For a thread that has
    /// nothing else to do.
    pub fn prefetch(&self) -> Result<(), ZapError> {
        let object = self.read(|zap| Ok(Arc::clone(zap.object())))?;
        for block in 0..object.block_count() {
            object.read_block(block)?;
        }
        Ok(())
    }

    /// Stored bytes of its blocks, all copies, as of the last commit, and bytes that are dirty now.
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

fn into_zap_error(error: DatasetError) -> ZapError {
    match error {
        DatasetError::Object(error) => error.into(),
        DatasetError::Zap(error) => error,
        other => {
            ObjectError::from(terrane_wire::Corrupt::new("data set", "ZAP", "one that can be made", other))
                .into()
        }
    }
}

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

#[cfg(test)]
mod tests {
    use super::support::Machine;
    use super::*;
    use terrane_zap::Error;

    /// A thread may look a ZAP up, be held up, and go on when the number names another one.
    #[test]
    fn who_opened_a_zap_before_it_was_destroyed_is_not_taken_for_the_next_of_its_number() {
        let machine = Machine::new(1);
        let dataset = Arc::new(Dataset::create_root(&machine.objects, &[]).unwrap());
        let zaps = Zaps::open(&dataset).unwrap();
        let create = || {
            let batch = zaps.begin(Work::new().create(1, 1, 40)).unwrap();
            zaps.create(&batch, ZapSpec::NAMES).unwrap()
        };
        let old = create();
        let held_up = dataset.open_zap(old.id()).unwrap();
        zaps.destroy(&zaps.begin(Work::new().destroy()).unwrap(), &old).unwrap();
        let id = old.id();
        drop(old);
        let late = ZapHandle::new(&zaps.open, held_up);
        let mut others = Vec::new();
        let new = loop {
            assert!(others.len() < 100, "the number does not come again");
            dataset.objects().commit().unwrap();
            let new = create();
            if new.id() == id {
                break new;
            }
            others.push(new);
        };
        let value = ValueRef::U64s(&[1]);
        let batch = zaps.begin(Work::new().put(&new, 1, 4, value)).unwrap();
        new.add(&batch, "name", value).unwrap();
        assert!(matches!(late.add(&batch, "name", value), Err(Error::Store(ObjectError::NotFound(_)))));
        drop(batch);
        assert_eq!(zaps.zap(id).unwrap().lookup("name").unwrap(), Some(Value::U64(1)));
    }
}
