//! Object sets: many objects, and their sync.
//!
//! The dnodes of a set are the blocks of its object 0; the header block holds the dnode of those. When a group syncs, the blocks of
//! all its dirty objects are written in one stream of parallel work, then each tree is rewritten, then the dnodes, then the header.
//!
//! Freeing is bounded: subtrees that are too large wait in the *free queue*, an object beside the set, and a piece of them goes with
//! every group.
//!
//! Invariant: an object number is handed out again only after the group that freed it has committed (see `numbers`).

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
use terrane_pool::{Cost, Pool, Tx};
use terrane_wire::{ObjectId, ObjsetId, Txg};

/// The free queue's number: far above any that is handed out.
pub const FREE_QUEUE: ObjectId = ObjectId(u64::MAX);
/// The header's number, as owner of its block.
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

/// What the header counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredNumbers {
    pub objects: u64,
    /// No object has a higher number.
    pub high_water: u64,
}

/// What the group that syncs takes.
struct Syncing {
    objects: Vec<Arc<Object>>,
    numbers: StoredNumbers,
}

pub struct ObjectSet {
    pool: Arc<Pool>,
    id: ObjsetId,
    me: Weak<ObjectSet>,
    pub(crate) table: Arc<ObjectTable>,
    numbers: Mutex<Numbers>,
    dnodes: Arc<Object>,
    /// In the header.
    free_queue: Arc<Object>,
    /// The object of the meta object set that has the queue instead.
    queue_outside: Option<Arc<Object>>,
    queue: Mutex<Vec<Waiting>>,
    /// A part of it could not be read: it is tried again in a group that others ask for.
    queue_rests: AtomicBool,
    account: Mutex<Option<Account>>,
    syncing: Mutex<Syncing>,
    root: Mutex<BlockPtr>,
    policy: ObeyedPolicy,
    free_policy: Option<Arc<dyn FreePolicy>>,
    last_changes: Mutex<Vec<LastChanges>>,
}

/// What somebody still changes in a group before it syncs; false: in no other.
type LastChanges = Box<dyn FnMut(&Tx) -> bool + Send>;

impl ObjectSet {
    /// The set behind a root pointer; a hole is an empty set.
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

    /// The meta object set: that of the pool itself.
    pub fn is_meta(&self) -> bool {
        self.id == ObjsetId(0)
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How often a commit went without what it should have stored of an object, because all copies of what that belongs into are damaged.
    pub fn lost_changes(&self) -> u64 {
        self.table.lost_changes()
    }

    /// The object of the meta object set that has its free queue.
    pub(crate) fn queue_outside(&self) -> Option<ObjectId> {
        self.queue_outside.as_ref().map(|object| object.id())
    }

    /// The header's pointer, as of the last sync.
    pub fn root(&self) -> BlockPtr {
        self.root.lock().clone()
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

    pub fn random_u64(&self) -> u64 {
        self.pool.env().random_u64()
    }

    pub fn usage(&self) -> Usage {
        let (size_bytes, used_bytes, available_bytes) = self.pool.space();
        // A writer that needs this room waits for the group that frees it, and does not fail.
        let freeing = self.table.freeing_bytes();
        let (used_bytes, available_bytes) =
            (used_bytes.saturating_sub(freeing), available_bytes.saturating_add(freeing).min(size_bytes));
        // What files were promised is taken from whoever asks.
        let used_bytes = used_bytes.saturating_add(self.pool.promised_bytes());
        Usage { size_bytes, used_bytes, available_bytes, objects: self.numbers.lock().objects }
    }

    /// The object with this number. While somebody holds it, everybody gets the same.
    pub fn hold(&self, id: ObjectId) -> Result<Arc<Object>, ObjectError> {
        self.table.hold(id, || self.stored_dnode(id))
    }

    /// Has another thread read an object's dnode and its first block into the cache, if one has time for it, and do `then` with them. That
    /// must not begin a transaction, as the thread may be wanted for a commit.
    pub fn read_ahead(&self, id: ObjectId, then: impl FnOnce(&Object, &Arc<Vec<u8>>) + Send + 'static) {
        let known = self.table.find(id);
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
    pub fn inner_trees(&self) -> (Dnode, Dnode, Vec<Waiting>) {
        (self.dnodes.dnode(), self.free_queue.dnode(), self.queue.lock().clone())
    }

    /// As of the last sync.
    pub fn stored_numbers(&self) -> StoredNumbers {
        self.syncing.lock().numbers
    }

    /// Calls `changes` for every group when nobody else is in it any more, until it returns false: for what is only worth storing if
    /// it is still true then. Everybody waits for it.
    pub fn at_the_end_of_groups(&self, changes: impl FnMut(&Tx) -> bool + Send + 'static) {
        self.last_changes.lock().push(Box::new(changes));
    }

    /// The group has quiesced: what is dirty now, and after the last changes, is its.
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

    /// Whether the queue will need another group.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.lock().is_empty() && !self.queue_rests.load(Ordering::Relaxed)
    }
}
