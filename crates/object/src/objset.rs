//! Object sets: many objects, and their sync.
//!
//! The dnodes of a set are the blocks of its object 0; the header block holds the dnode of those. The sync of a
//! txg (group) writes the blocks of all dirty objects in one parallel stream. Then it rewrites each tree, then
//! the dnodes, then the header.
//!
//! Freeing is bounded: large subtrees wait in the *free queue*, an object outside the set, and each txg frees a
//! piece.
//!
//! Invariant: an object number is reused only after the txg that freed it has committed (see `numbers`).

mod again;
mod create;
mod policy;
mod queue;
mod stored;
mod sync;

pub(crate) use sync::{MetaChange, Synced, What};

use crate::account::Account;
use crate::dnode::{Dnode, ObjsetHeader};
use crate::error::ObjectError;
use crate::freeing::FreePolicy;
use crate::numbers::Numbers;
use crate::object::{Object, ObjectTable};
use crate::waiting::Waiting;
pub use create::ObjectSpec;
use parking_lot::Mutex;
pub use policy::DataPolicy;
use policy::ObeyedPolicy;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use terrane_format::{BlockPtr, Feature, Owner};
use terrane_pool::{Pool, Tx};
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, ObjsetId, Txg};

/// The free queue's number, far above all others.
pub const FREE_QUEUE: ObjectId = ObjectId(u64::MAX);
/// The header's object number, as owner of its block.
pub const HEADER: u64 = u64::MAX - 1;

/// Space, for `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes users can fill in the whole pool.
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub available_bytes: u64,
    pub objects: u64,
}

/// Counts in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredNumbers {
    pub objects: u64,
    /// Object numbers are below this.
    pub high_water: u64,
}

/// Input of the syncing txg.
struct Syncing {
    objects: Vec<Arc<Object>>,
    numbers: StoredNumbers,
}

/// An object set. Shared by threads; every method takes its own locks.
pub struct ObjectSet {
    pool: Arc<Pool>,
    id: ObjsetId,
    me: Weak<ObjectSet>,
    pub(crate) table: Arc<ObjectTable>,
    numbers: Mutex<Numbers>,
    dnodes: Arc<Object>,
    /// The queue in the header.
    free_queue: Arc<Object>,
    /// The object of the MOS that holds the queue instead.
    queue_outside: Option<Arc<Object>>,
    queue: Mutex<Vec<Waiting>>,
    /// Part of the queue was unreadable. It is retried with the next txg that other work needs.
    queue_rests: AtomicBool,
    account: Mutex<Option<Account>>,
    syncing: Mutex<Syncing>,
    root: Mutex<BlockPtr>,
    policy: ObeyedPolicy,
    free_policy: Option<Arc<dyn FreePolicy>>,
    last_changes: Mutex<Vec<LastChanges>>,
}

/// Last changes to a txg before it syncs. Returns false to be called no more.
type LastChanges = Box<dyn FnMut(&Tx) -> bool + Send>;

impl ObjectSet {
    /// Opens the set behind a root pointer; a hole is an empty set.
    pub(crate) fn open(
        pool: Arc<Pool>,
        id: ObjsetId,
        root: BlockPtr,
        free_policy: Option<Arc<dyn FreePolicy>>,
        queue_outside: Option<Arc<Object>>,
    ) -> Result<Arc<ObjectSet>, ObjectError> {
        let header = if root.is_hole() {
            ObjsetHeader::empty()
        } else {
            let raw = pool.read(&root, Owner::Block { objset: id.0, object: HEADER, level: 0, block: 0 })?;
            ObjsetHeader::parse(&raw, &format!("object set {id}"))?
        };
        let numbers = Numbers::new(header.objects, header.high_water);
        let table = ObjectTable::new(pool.clone(), id);
        let set = Arc::new_cyclic(|me: &Weak<ObjectSet>| ObjectSet {
            dnodes: table.loose(ObjectId(0), header.dnodes),
            free_queue: table.loose(FREE_QUEUE, header.free_queue),
            policy: ObeyedPolicy::new(&pool),
            free_policy,
            queue_outside,
            table,
            pool,
            id,
            me: me.clone(),
            numbers: Mutex::new(numbers),
            queue: Mutex::default(),
            queue_rests: AtomicBool::new(false),
            account: Mutex::new(header.account),
            syncing: Mutex::new(Syncing {
                objects: Vec::new(),
                numbers: StoredNumbers { objects: header.objects, high_water: header.high_water },
            }),
            root: Mutex::new(root),
            last_changes: Mutex::default(),
        });
        *set.queue.lock() = set.load_queue()?;
        Ok(set)
    }

    pub fn id(&self) -> ObjsetId {
        self.id
    }

    /// Whether this is the meta object set of the pool.
    pub fn is_meta(&self) -> bool {
        self.id == ObjsetId(0)
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How often a commit lost changes of an object, as all copies of a block that they belong into are
    /// damaged.
    pub fn lost_changes(&self) -> u64 {
        self.table.lost_changes()
    }

    /// The object of the MOS that holds its free queue.
    pub(crate) fn queue_outside(&self) -> Option<ObjectId> {
        self.queue_outside.as_ref().map(|object| object.id())
    }

    /// The header's pointer, as of the last sync.
    pub fn root(&self) -> BlockPtr {
        self.root.lock().clone()
    }

    /// Joins the open txg. May wait: call it before taking any lock, and never while holding another
    /// transaction.
    pub fn begin(&self, cost: Cost) -> Result<Tx, ObjectError> {
        Ok(self.pool.begin(cost)?)
    }

    /// Commits: everything done before is durable on return.
    pub fn commit(&self) -> Result<(), ObjectError> {
        self.pool.commit()?;
        Ok(())
    }

    pub fn open_txg(&self) -> Txg {
        self.pool.open_txg()
    }

    /// Waits until `txg` is durable, committing it if necessary.
    pub fn wait_synced(&self, txg: Txg) -> Result<(), ObjectError> {
        Ok(self.pool.commit_txg(txg)?)
    }

    pub fn random_u64(&self) -> u64 {
        self.pool.env().random_u64()
    }

    /// Space of the pool and objects of this set.
    pub fn usage(&self) -> Usage {
        let (size_bytes, used_bytes, available_bytes) = self.pool.space();
        // A writer that needs this space waits for the txg that frees it, and does not fail.
        let freeing = self.table.freeing_bytes();
        let (used_bytes, available_bytes) =
            (used_bytes.saturating_sub(freeing), available_bytes.saturating_add(freeing).min(size_bytes));
        // Bytes promised to files count as used.
        let used_bytes = used_bytes.saturating_add(self.pool.promised_bytes());
        Usage { size_bytes, used_bytes, available_bytes, objects: self.numbers.lock().objects }
    }

    /// The object with this number. While it is held, every caller gets the same one.
    pub fn hold(&self, id: ObjectId) -> Result<Arc<Object>, ObjectError> {
        self.table.hold(id, || self.stored_dnode(id))
    }

    /// Prefetches an object's dnode and first block on another thread, and calls `then` with them. `then` must
    /// not begin a transaction: a commit may need that thread.
    pub fn read_ahead(&self, id: ObjectId, then: impl FnOnce(&Object, &Arc<Vec<u8>>) + Send + 'static) {
        let known = self.table.find(id);
        if known.is_some_and(|object| object.has_read(0)) {
            return;
        }
        let set = self.me.clone();
        self.pool.offer(move || {
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
    pub fn inner_trees(&self) -> (Dnode, Dnode, Vec<Waiting>) {
        (self.dnodes.dnode(), self.free_queue.dnode(), self.queue.lock().clone())
    }

    /// Counts in the header as of the last sync.
    pub fn stored_numbers(&self) -> StoredNumbers {
        self.syncing.lock().numbers
    }

    /// Calls `changes` for every txg after all operations have left it, until it returns false. For changes
    /// that only matter if they are still true then. All operations wait for it.
    pub fn at_the_end_of_groups(&self, changes: impl FnMut(&Tx) -> bool + Send + 'static) {
        self.last_changes.lock().push(Box::new(changes));
    }

    /// The txg has quiesced: after the last changes, everything dirty belongs to it.
    pub(crate) fn quiesced(&self, last: &Tx) {
        self.last_changes.lock().retain_mut(|changes| changes(last));
        let mut numbers = self.numbers.lock();
        numbers.quiesced();
        let mut syncing = self.syncing.lock();
        self.table.move_dirty(&mut syncing.objects);
        syncing.numbers = StoredNumbers { objects: numbers.objects, high_water: numbers.high_water };
    }

    pub(crate) fn synced(&self, txg: Txg) {
        self.table.synced(txg);
    }

    /// Whether the queue needs another txg.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.lock().is_empty() && !self.queue_rests.load(Ordering::Relaxed)
    }
}
