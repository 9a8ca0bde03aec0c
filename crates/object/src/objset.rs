//! Object sets: many objects, and their sync.
//!
//! The dnodes of a set are the blocks of its object 0; the header block holds the dnode of those. The sync of a
//! txg writes the blocks of all dirty objects in one parallel stream. Then it rewrites each tree, then
//! the dnodes, then the header.
//!
//! Freeing is bounded: large subtrees wait in the *free queue*, an object outside the set, and each txg frees a
//! piece.
//!
//! Invariant: an object number is reused only after the txg that freed it has committed (see `object_alloc`).

mod bound;
mod create;
mod find_for_rewrite;
mod owners;
mod parts;
mod pointer;
mod policy;
mod queue;
mod snapshot;
mod spills;
mod stored;
mod sync;

pub(crate) use sync::Synced;

use crate::account::Account;
use crate::dnode::{Dnode, ObjsetHeader};
use crate::error::ObjectError;
use crate::free_policy::FreePolicy;
use crate::object::{Object, ObjectTable};
use crate::object_alloc::ObjectAllocator;
use crate::queued_subtree::QueuedSubtree;
use crate::shared::SharedTable;
pub use bound::{Join, SpaceBound};
pub use create::ObjectSpec;
use owners::OwnerTables;
use parking_lot::{Mutex, MutexGuard};
use policy::ActivePolicy;
pub use policy::DataPolicy;
use spills::SpillReads;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use terrane_format::{BlockPtr, Feature, Owner};
use terrane_pool::{Pool, Tx};
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::{Corrupt, ObjectId, ObjsetId, Txg};

/// The free queue's number, far above all others.
pub const FREE_QUEUE: ObjectId = ObjectId(u64::MAX);
/// The header's object number, as owner of its block.
pub const HEADER: u64 = u64::MAX - 1;

/// Space, for `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes users can fill in the whole pool.
    pub size_bytes: u64,
    /// Bytes in use in the whole pool, with those reserved for files.
    pub used_bytes: u64,
    /// Bytes that users can still write, in the whole pool.
    pub available_bytes: u64,
    /// Objects in this set.
    pub objects: u64,
}

/// Counts in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderCounts {
    /// Objects in the set.
    pub objects: u64,
    /// Object numbers are below this.
    pub high_water: u64,
}

/// The header behind a root pointer; a hole is an empty set.
pub(crate) fn read_header(pool: &Pool, id: ObjsetId, root: &BlockPtr) -> Result<ObjsetHeader, ObjectError> {
    if root.is_hole() {
        return Ok(ObjsetHeader::empty());
    }
    let raw = pool.read(root, Owner::Block { objset: id.0, object: HEADER, level: 0, block: 0 })?;
    Ok(ObjsetHeader::parse(&raw, &format!("object set {id}"))?)
}

/// Input of the syncing txg.
struct Syncing {
    objects: Vec<Arc<Object>>,
    counts: HeaderCounts,
}

/// The parts of a set beside its header.
struct Parts {
    table: Arc<ObjectTable>,
    root: BlockPtr,
    policy: ActivePolicy,
    free_policy: Option<Arc<dyn FreePolicy>>,
    queue_in_mos: Option<Arc<Object>>,
    shared: Arc<SharedTable>,
}

/// Why the uses of a feature are unknown.
const UNREADABLE_USE: &str = "an object that may use it is unreadable";

/// An object set. Shared by threads; every method takes its own locks.
pub struct ObjectSet {
    pool: Arc<Pool>,
    id: ObjsetId,
    me: Weak<ObjectSet>,
    pub(crate) table: Arc<ObjectTable>,
    allocator: Mutex<ObjectAllocator>,
    /// See [`exclusive`](Self::exclusive).
    exclusive: Mutex<()>,
    dnodes: Arc<Object>,
    /// The queue in the header.
    free_queue: Arc<Object>,
    /// The object of the MOS that holds the queue instead.
    queue_in_mos: Option<Arc<Object>>,
    queue: Mutex<Vec<QueuedSubtree>>,
    /// Set if the open txg retires the set: blocks that were born before this txg belong to another set.
    retire_wanted: Mutex<Option<Txg>>,
    /// The same for the syncing txg.
    retiring: Mutex<Option<Txg>>,
    is_retired: AtomicBool,
    /// Part of the queue was unreadable. It is retried with the next txg that other work needs.
    queue_deferred: AtomicBool,
    account: Mutex<Option<Account>>,
    /// Sums that the next sync stores in place of those of the header.
    corrected_account: Mutex<Option<Account>>,
    owners: OwnerTables,
    syncing: Mutex<Syncing>,
    root: Mutex<BlockPtr>,
    policy: ActivePolicy,
    free_policy: Option<Arc<dyn FreePolicy>>,
    space_bound: Mutex<Option<Arc<dyn SpaceBound>>>,
    shared: Arc<SharedTable>,
    txg_end_hooks: Mutex<Vec<TxgEndHook>>,
    spill_reads: Mutex<SpillReads>,
}

/// Last changes to a txg before it syncs. Returns false to be called no more.
type TxgEndHook = Box<dyn FnMut(&Tx) -> bool + Send>;

impl ObjectSet {
    /// Opens the set behind a root pointer; a hole is an empty set.
    pub(crate) fn open(
        pool: Arc<Pool>,
        id: ObjsetId,
        root: BlockPtr,
        free_policy: Option<Arc<dyn FreePolicy>>,
        queue_in_mos: Option<Arc<Object>>,
        shared: Arc<SharedTable>,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        let header = read_header(&pool, id, &root)?;
        let (is_meta, shared_table) = (id == ObjsetId(0), header.shared_table);
        if !is_meta && shared_table != ObjectId(0) {
            let at = format!("object set {id}");
            return Err(PoolError::from(Corrupt::new(at, "table of shared blocks", 0, shared_table)).into());
        }
        let table = ObjectTable::new(pool.clone(), id, false);
        let policy = ActivePolicy::new(&pool);
        let parts = Parts { table, root, policy, free_policy, queue_in_mos, shared };
        let set = Self::from_parts(pool, id, header, parts);
        *set.queue.lock() = set.load_queue()?;
        if is_meta {
            set.shared.attach(&set, shared_table)?;
        }
        Ok(set)
    }

    /// Creates a set in memory with an empty free queue.
    fn from_parts(pool: Arc<Pool>, id: ObjsetId, header: ObjsetHeader, parts: Parts) -> Arc<ObjectSet> {
        let Parts { table, root, policy, free_policy, queue_in_mos, shared } = parts;
        let allocator = ObjectAllocator::new(header.objects, header.high_water);
        Arc::new_cyclic(|me: &Weak<ObjectSet>| ObjectSet {
            dnodes: table.new_unlisted(ObjectId(0), header.dnodes),
            free_queue: table.new_unlisted(FREE_QUEUE, header.free_queue),
            owners: OwnerTables::new(&table, header.owners),
            policy,
            free_policy,
            space_bound: Mutex::default(),
            shared,
            queue_in_mos,
            table,
            pool,
            id,
            me: me.clone(),
            allocator: Mutex::new(allocator),
            exclusive: Mutex::default(),
            queue: Mutex::default(),
            retire_wanted: Mutex::default(),
            retiring: Mutex::default(),
            is_retired: AtomicBool::new(false),
            queue_deferred: AtomicBool::new(false),
            account: Mutex::new(header.account),
            corrected_account: Mutex::default(),
            syncing: Mutex::new(Syncing {
                objects: Vec::new(),
                counts: HeaderCounts { objects: header.objects, high_water: header.high_water },
            }),
            root: Mutex::new(root),
            txg_end_hooks: Mutex::default(),
            spill_reads: Mutex::default(),
        })
    }

    /// Object of the meta object set that stands for it. 0: it is the meta object set.
    pub fn id(&self) -> ObjsetId {
        self.id
    }

    /// Whether this is the meta object set of the pool.
    pub fn is_meta(&self) -> bool {
        self.id == ObjsetId(0)
    }

    /// The pool of the set.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How often a commit lost changes of an object, as all copies of a block that they belong into are
    /// damaged.
    pub fn lost_changes(&self) -> u64 {
        self.table.lost_changes()
    }

    /// Whether its free queue lies in the meta object set, so that snapshots of the set do not contain it.
    pub fn has_queue_outside(&self) -> bool {
        self.queue_in_mos.is_some()
    }

    /// The pool's table of shared blocks.
    pub fn shared(&self) -> &Arc<SharedTable> {
        &self.shared
    }

    /// The object of the MOS that holds its free queue.
    pub(crate) fn queue_in_mos(&self) -> Option<ObjectId> {
        self.queue_in_mos.as_ref().map(|object| object.id())
    }

    /// The header's pointer, as of the last sync.
    pub fn root(&self) -> BlockPtr {
        self.root.lock().clone()
    }

    /// The policy that decides about blocks that leave the set. `None`: this is the meta object set.
    pub fn free_policy(&self) -> Option<&Arc<dyn FreePolicy>> {
        self.free_policy.as_ref()
    }

    /// Corrects the sums of a set that began with the header of another. This txg writes a new header.
    pub fn correct_account(&self, _tx: &Tx, account: Account) {
        *self.corrected_account.lock() = Some(account);
    }

    /// A lock for changes of an object that has several users, who do not know of each other. Take it after joining a txg.
    pub fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock()
    }

    /// Whether a snapshot refers to a stored block of this set.
    pub fn is_held(&self, block: &BlockPtr) -> bool {
        self.free_policy.as_ref().is_some_and(|policy| policy.is_held(block))
    }

    /// Retires the set in this txg: this txg and later ones free all its blocks. Blocks that were born before `prune_below` belong to
    /// another set too, and are not freed. Changes that are not durable yet are lost. The free queue must lie in the meta object set.
    pub fn retire(&self, _tx: &Tx, prune_below: Txg) {
        *self.retire_wanted.lock() = Some(prune_below);
    }

    /// Marks a set that was retired before the pool was opened. Following txgs continue to free it.
    pub(crate) fn set_retired(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    /// Whether the set was retired, also before the pool was opened.
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// Whether a retired set has been freed wholly, as of the last sync.
    pub fn is_drained(&self) -> bool {
        self.is_retired()
            && self.retiring.lock().is_none()
            && self.root.lock().is_hole()
            && self.queue.lock().is_empty()
    }

    /// Joins the open txg. May wait: call it before taking any lock, and never while holding another
    /// transaction. `ReadOnly`: the pool or the set takes no changes.
    pub fn begin(&self, cost: Cost) -> Result<Tx, ObjectError> {
        let cost = self.whole_cost(cost)?;
        let bound = self.space_bound.lock().clone();
        match bound {
            Some(bound) => bound.admit(&cost, &mut || Ok(self.pool.begin(cost)?)),
            None => Ok(self.pool.begin(cost)?),
        }
    }

    /// The same for a change that the set's bound has admitted once, and that is made again.
    pub fn begin_unbounded(&self, cost: Cost) -> Result<Tx, ObjectError> {
        Ok(self.pool.begin(self.whole_cost(cost)?)?)
    }

    fn whole_cost(&self, cost: Cost) -> Result<Cost, ObjectError> {
        self.check_writable()?;
        let may_keep = self.free_policy.as_ref().is_some_and(|policy| policy.may_keep());
        Ok(if may_keep { cost.with_dead_lists() } else { cost })
    }

    /// Sets the bound of the set's space, in place of an earlier one. The bound must not hold a reference to the set.
    pub fn set_space_bound(&self, bound: Arc<dyn SpaceBound>) {
        *self.space_bound.lock() = Some(bound);
    }

    /// Commits: everything done before is durable on return. An old root is durable already.
    pub fn commit(&self) -> Result<(), ObjectError> {
        if !self.is_read_only() {
            self.pool.commit()?;
        }
        Ok(())
    }

    /// The txg that changes join now.
    pub fn open_txg(&self) -> Txg {
        self.pool.open_txg()
    }

    /// Waits until `txg` is durable, committing it if necessary.
    pub fn wait_synced(&self, txg: Txg) -> Result<(), ObjectError> {
        if self.is_read_only() {
            return Ok(());
        }
        Ok(self.pool.commit_txg(txg)?)
    }

    /// A random number from the pool's environment.
    pub fn random_u64(&self) -> u64 {
        self.pool.env().random_u64()
    }

    /// Space of the pool that the set can use, and objects of this set.
    pub fn usage(&self) -> Usage {
        let (size_bytes, used_bytes, available_bytes) = self.pool.space();
        // A writer that needs this space waits for the txg that frees it, and does not fail.
        let freeing = self.freeing_bytes();
        let (used_bytes, available_bytes) =
            (used_bytes.saturating_sub(freeing), available_bytes.saturating_add(freeing).min(size_bytes));
        // Bytes reserved for files count as used.
        let used_bytes = used_bytes.saturating_add(self.pool.file_reserved_bytes());
        let usage = Usage { size_bytes, used_bytes, available_bytes, objects: self.allocator.lock().objects };
        let bound = self.space_bound.lock().clone();
        match bound {
            Some(bound) => bound.bound(usage),
            None => usage,
        }
    }

    /// Bytes that operations have freed in txgs that have not synced.
    pub fn freeing_bytes(&self) -> u64 {
        self.table.freeing_bytes()
    }

    /// The object with this number. While it is held, every caller gets the same one.
    pub fn hold(&self, id: ObjectId) -> Result<Arc<Object>, ObjectError> {
        if self.table.is_closed() {
            return Err(ObjectError::NotFound(id));
        }
        self.table.hold(id, || self.stored_dnode(id))
    }

    /// Prefetches an object's dnode and first block on another thread, and calls `then` with them. `then` must
    /// not begin a transaction: a commit may need that thread.
    pub fn prefetch(&self, id: ObjectId, then: impl FnOnce(&Object, &Arc<Vec<u8>>) + Send + 'static) {
        let known = self.table.find(id);
        if known.is_some_and(|object| object.is_recently_read(0)) {
            return;
        }
        let set = self.me.clone();
        self.pool.offer_prefetch(move || {
            let Some(set) = set.upgrade() else { return };
            // Errors are ignored: a caller that wants the object meets and reports the same one.
            let _ = set.hold(id).and_then(|object| {
                then(&object, &object.read_block(0)?);
                Ok(())
            });
        });
    }

    /// Space that the set takes, as of the last sync. `None`: it was created by a version that did not count.
    pub fn account(&self) -> Option<Account> {
        *self.account.lock()
    }

    /// The account before the sync. A set without a header starts counting, unless older versions must be able
    /// to read it.
    fn account_before(&self) -> Option<Account> {
        let is_new = self.root.lock().is_hole() && self.pool.has(Feature::Accounts);
        self.account().or(is_new.then(Account::default))
    }

    /// The dnodes of the header, and the subtrees that wait to be freed. For `check`.
    pub fn inner_trees(&self) -> (Dnode, Dnode, Vec<QueuedSubtree>) {
        (self.dnodes.dnode(), self.free_queue.dnode(), self.queue.lock().clone())
    }

    /// Counts in the header as of the last sync.
    pub fn header_counts(&self) -> HeaderCounts {
        self.syncing.lock().counts
    }

    /// Calls `hook` for every txg after all operations have left it, until it returns false. For changes
    /// that only matter if they are still true then. All operations wait for it. A read-only set calls none.
    pub fn on_txg_end(&self, hook: impl FnMut(&Tx) -> bool + Send + 'static) {
        self.txg_end_hooks.lock().push(Box::new(hook));
    }

    /// The txg has quiesced: after the last changes, everything dirty belongs to it.
    pub(crate) fn quiesced(&self, last_tx: &Tx) {
        if let Some(prune_below) = self.retire_wanted.lock().take() {
            *self.retiring.lock() = Some(prune_below);
            self.set_retired();
        }
        self.txg_end_hooks.lock().retain_mut(|hook| hook(last_tx));
        let mut allocator = self.allocator.lock();
        allocator.quiesced();
        let mut syncing = self.syncing.lock();
        self.table.move_dirty(&mut syncing.objects);
        self.reserve_owner_tables(last_tx, syncing.objects.len());
        syncing.counts = HeaderCounts { objects: allocator.objects, high_water: allocator.high_water };
    }

    pub(crate) fn synced(&self, txg: Txg) {
        self.table.synced(txg);
    }

    /// Whether subtrees wait to be freed. `Some(false)`: they cannot be read, and wait for a device.
    pub fn is_freeing(&self) -> Option<bool> {
        let is_waiting = !self.queue.lock().is_empty();
        is_waiting.then(|| !self.queue_deferred.load(Ordering::Relaxed))
    }

    /// Whether the queue needs another txg.
    pub(crate) fn queue_needs_txg(&self) -> bool {
        !self.queue.lock().is_empty() && !self.queue_deferred.load(Ordering::Relaxed)
    }
}
