//! Inodes in memory, one per object in use, and their lock order.
//!
//! The kernel counts its lookups of an inode and says when it forgets them. Until then an unlinked inode lives.
//! So an inode stays in the map while its lookup count is not 0, or an operation holds it. The kernel may keep
//! millions. So an unused inode is soon reduced to its number and count ([`InodeSlot::LookupsOnly`]), and read again on
//! demand.
//!
//! Invariants:
//! * There is at most one [`Inode`] for an object, so its lock is the object's lock.
//! * An [`InodeRef`](crate::hold::InodeRef) keeps the object from being destroyed, and so its number from being
//!   reused. An entry is added to the map while the directory that names it is locked, and read only then.
//! * An object is destroyed while its inode is in the map, not loaded, and kept from loading. So no thread
//!   reads an object that is being destroyed, and a reused number finds no trace of the old object.
//! * Several inodes are locked in ascending order of their numbers, after the transaction began, and never
//!   while the map is locked. References are taken before the transaction begins and dropped after it ended.
//!   The reason: the last reference of an unlinked inode destroys its object, which takes a transaction of its
//!   own.

mod names;

use crate::attr::Attributes;
use crate::claims::Claims;
use crate::indexes::Share;
use crate::perm;
use crate::types::Ino;
pub(crate) use names::{ChildRef, KIND_DIR, KIND_FILE, check_name, is_dots};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_dataset::ObjectZap;
use terrane_object::{Object, ObjectKind};
use terrane_pool::Tx;
use terrane_wire::IdMap;

const SHARDS: usize = 64;
/// Default number of unused inodes kept in memory. [`Fs::set_idle_inodes_max`](crate::Fs::set_idle_inodes_max) changes it.
const IDLE_DEFAULT: usize = 32 << 10;

pub(crate) struct Inode {
    pub ino: Ino,
    /// Lookups that the kernel has counted and not forgotten.
    pub lookups: AtomicU64,
    /// `lookups` includes every lookup of the kernel. False at first in a mount that was taken over; see
    /// [`Fs::take_over`](crate::Fs::take_over).
    pub has_all_lookups: AtomicBool,
    /// Changes since it was loaded, and those of them that are durable.
    changes: AtomicU64,
    durable_changes: AtomicU64,
    /// Newest txg that the ledger has noted for this inode.
    noted_txg: AtomicU64,
    /// Held while the dnode is read, or an inode that is not loaded is kept from loading.
    pub loading: Mutex<()>,
    /// Set once the dnode was read.
    pub body: OnceLock<Body>,
    /// A write cleared the set-id bits, and the kernel does not know the new mode yet.
    set_ids_cleared: AtomicBool,
    /// The kernel may have been told a number of blocks that is valid until it is told otherwise.
    has_told_blocks: AtomicBool,
    /// What the kernel was told of its blocks has changed, and no answer says so.
    blocks_outdated: AtomicBool,
    /// It has a reservation; see [`Reservations`](crate::reservations::Reservations).
    has_reservation: AtomicBool,
    /// What the newest txg has reserved for this inode.
    pub claims: Claims,
    /// It is in the set of directories to shrink, and kept in memory for that.
    shrink_queued: AtomicBool,
    /// Counted bytes of its index, if it is a directory.
    pub index_share: Share,
    /// It is in its shard's queue of idle inodes. Changes under the shard's lock only.
    idle: AtomicBool,
}

/// The part that exists once the dnode was read.
pub(crate) struct Body {
    pub object: Arc<Object>,
    /// The inode's lock.
    pub state: RwLock<State>,
}

/// What an inode's lock guards.
pub(crate) struct State {
    pub attrs: Attributes,
    /// Directories only.
    pub names: Option<ObjectZap>,
    /// Made without a name (`O_TMPFILE`), so a link may give it one although its link count is 0.
    pub linkable: bool,
}

impl Inode {
    fn new(ino: Ino) -> Self {
        Inode {
            ino,
            lookups: AtomicU64::new(0),
            has_all_lookups: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            durable_changes: AtomicU64::new(0),
            noted_txg: AtomicU64::new(0),
            loading: Mutex::new(()),
            body: OnceLock::new(),
            set_ids_cleared: AtomicBool::new(false),
            has_told_blocks: AtomicBool::new(true),
            blocks_outdated: AtomicBool::new(false),
            has_reservation: AtomicBool::new(false),
            claims: Claims::of(ino),
            shrink_queued: AtomicBool::new(false),
            index_share: Share::default(),
            idle: AtomicBool::new(false),
        }
    }

    /// For [`ShrinkQueue`](crate::jobs::ShrinkQueue) alone.
    pub fn set_shrink_queued(&self, is_queued: bool) {
        self.shrink_queued.store(is_queued, Ordering::Release);
    }

    pub fn is_shrink_queued(&self) -> bool {
        self.shrink_queued.load(Ordering::Acquire)
    }

    /// For [`Reservations`](crate::reservations::Reservations) alone.
    pub fn set_has_reservation(&self, has_reservation: bool) {
        self.has_reservation.store(has_reservation, Ordering::Relaxed);
    }

    pub fn has_reservation(&self) -> bool {
        self.has_reservation.load(Ordering::Relaxed)
    }

    /// Clears set-id bits, so that a writer does not gain the identity of a program it changes. True: some were
    /// set. The caller holds the inode's lock and saves the state.
    pub fn clear_set_ids(&self, state: &mut State) -> bool {
        let cleared = perm::clear_set_ids(&mut state.attrs);
        if cleared {
            self.set_ids_cleared.store(true, Ordering::Release);
        }
        cleared
    }

    /// Whether set-id bits were cleared since the last call.
    pub fn take_set_ids_cleared(&self) -> bool {
        self.set_ids_cleared.load(Ordering::Acquire) && self.set_ids_cleared.swap(false, Ordering::AcqRel)
    }

    /// The kernel is about to be told its number of blocks. Called before that number is read, so that a change that
    /// the number lacks is noted.
    pub fn note_blocks_told(&self) {
        if !self.has_told_blocks.load(Ordering::Acquire) {
            self.has_told_blocks.store(true, Ordering::Release);
        }
    }

    /// Its number of blocks has changed, or will with the next commit, and the answer to the kernel will not say so.
    pub fn note_blocks_changed(&self) {
        if self.forget_told_blocks() {
            self.blocks_outdated.store(true, Ordering::Release);
        }
    }

    /// What the kernel was told of its blocks is outdated. Returns whether the kernel was told anything.
    pub fn forget_told_blocks(&self) -> bool {
        self.has_told_blocks.load(Ordering::Acquire) && self.has_told_blocks.swap(false, Ordering::AcqRel)
    }

    /// Whether the kernel has an outdated number of blocks, and was not notified so far.
    pub fn take_blocks_outdated(&self) -> bool {
        self.blocks_outdated.load(Ordering::Acquire) && self.blocks_outdated.swap(false, Ordering::AcqRel)
    }

    fn body(&self) -> &Body {
        self.body.get().expect("an InodeRef is handed out after its inode was loaded")
    }

    /// Panics if the inode is not loaded; an [`InodeRef`](crate::hold::InodeRef) always is.
    pub fn object(&self) -> &Arc<Object> {
        &self.body().object
    }

    /// Takes the inode's lock, shared with readers.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.body().state.read()
    }

    /// `None`: a thread has the lock, or waits to write.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, State>> {
        self.body().state.try_read()
    }

    /// Takes the inode's lock alone. Several inodes are locked in ascending order of their numbers.
    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.body().state.write()
    }

    /// `None` if another thread has the lock.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, State>> {
        self.body().state.try_write()
    }

    /// Bytes of its index. `None`: another thread has the lock, or it is not a loaded directory.
    pub fn index_bytes(&self) -> Option<usize> {
        let body = self.body.get().filter(|body| body.object.kind() == ObjectKind::Directory)?;
        let state = body.state.try_read()?;
        state.names.as_ref().map(ObjectZap::index_bytes)
    }

    /// Drops its index. False: another thread uses it.
    pub fn drop_index(&self) -> bool {
        let Some(body) = self.body.get() else { return true };
        let Some(mut state) = body.state.try_write() else { return false };
        if let Some(names) = &mut state.names {
            names.drop_index();
        }
        true
    }

    /// Number of changes so far. Under its lock, all of them have been recorded.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether so many changes are durable.
    pub fn is_durable(&self, changes: u64) -> bool {
        self.durable_changes.load(Ordering::Acquire) >= changes
    }

    /// Whether it has lost its last name; false if it was never read.
    pub fn is_unlinked(&self) -> bool {
        self.body.get().is_some_and(|body| body.state.read().attrs.zpl.links == 0)
    }

    /// So many changes are durable.
    pub fn note_durable(&self, changes: u64) {
        self.durable_changes.fetch_max(changes, Ordering::AcqRel);
    }

    /// Records a change in this transaction. True: the first one in its txg.
    pub fn touch(&self, tx: &Tx) -> bool {
        self.note_change();
        let txg = tx.txg().0;
        self.noted_txg.fetch_max(txg, Ordering::Relaxed) < txg
    }

    /// Counts a change that `fsync` must wait for, and leaves the ledger alone.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}

/// What the map knows of an inode number.
pub(crate) enum InodeSlot {
    /// Lookups of the kernel that are not forgotten. No thread uses the inode now.
    LookupsOnly(u64),
    InMemory(Arc<Inode>),
}

#[derive(Default)]
pub(crate) struct Shard {
    /// By inode number.
    pub entries: IdMap<Ino, InodeSlot>,
    /// Inodes that were unused when they were queued, oldest first.
    idle: VecDeque<Ino>,
}

impl Shard {
    /// The inode with this number, added to the map if necessary.
    pub fn get_or_insert(&mut self, ino: Ino) -> &Arc<Inode> {
        let entry = self.entries.entry(ino).or_insert(InodeSlot::LookupsOnly(0));
        if let InodeSlot::LookupsOnly(lookups) = entry {
            let inode = Inode::new(ino);
            inode.lookups.store(*lookups, Ordering::Release);
            *entry = InodeSlot::InMemory(Arc::new(inode));
        }
        match entry {
            InodeSlot::InMemory(inode) => inode,
            InodeSlot::LookupsOnly(_) => unreachable!("loaded above"),
        }
    }

    /// Queues an inode that no operation holds, and reduces the oldest if there are too many.
    pub fn queue_idle(&mut self, inode: &Inode, idle_max: usize) {
        if !inode.idle.swap(true, Ordering::AcqRel) {
            self.idle.push_back(inode.ino);
        }
        self.evict_idle(idle_max);
    }

    fn evict_idle(&mut self, idle_max: usize) {
        while self.idle.len() > idle_max {
            let Some(oldest) = self.idle.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(&oldest) else { continue };
            let InodeSlot::InMemory(inode) = entry else { continue };
            inode.idle.store(false, Ordering::Release);
            // An unlinked or still linkable inode has state in memory that its dnode lacks.
            let is_evictable = inode.body.get().is_none_or(|body| {
                body.state.try_read().is_some_and(|state| state.attrs.zpl.links > 0 && !state.linkable)
            });
            let is_mode_known = !inode.set_ids_cleared.load(Ordering::Acquire);
            if is_evictable && is_mode_known && !inode.is_shrink_queued() && Arc::strong_count(inode) == 1 {
                match inode.lookups.load(Ordering::Acquire) {
                    0 => drop(self.entries.remove(&oldest)),
                    lookups => *entry = InodeSlot::LookupsOnly(lookups),
                }
            }
        }
    }
}

/// All inodes in use.
pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    /// Unused inodes kept in each shard.
    pub idle_max: AtomicUsize,
}

impl InodeCache {
    /// An empty map that keeps 32,768 unused inodes.
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        InodeCache { shards, idle_max: AtomicUsize::new(IDLE_DEFAULT / SHARDS) }
    }

    /// Sets how many unused inodes all shards together keep. Drops more than that at once.
    pub fn set_idle_max(&self, count: usize) {
        let idle_max = count.div_ceil(SHARDS);
        self.idle_max.store(idle_max, Ordering::Relaxed);
        self.shards.iter().for_each(|shard| shard.lock().evict_idle(idle_max));
    }

    /// The part of the map that holds this number.
    pub fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        let shard = usize::try_from(ino % SHARDS as u64).unwrap_or(0);
        self.shards.get(shard).expect("the remainder is below the number of shards")
    }

    /// Number of entries, in memory or reduced to lookups.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Number of those fully in memory.
    pub fn in_memory_len(&self) -> usize {
        let is_live = |entry: &&InodeSlot| matches!(entry, InodeSlot::InMemory(_));
        self.shards.iter().map(|shard| shard.lock().entries.values().filter(is_live).count()).sum()
    }

    /// Calls `use_inode` on an inode that is fully in memory. It must not wait: the map is locked.
    pub fn with_inode<T>(&self, ino: Ino, use_inode: impl FnOnce(&Inode) -> T) -> Option<T> {
        match self.shard(ino).lock().entries.get(&ino) {
            Some(InodeSlot::InMemory(inode)) => Some(use_inode(inode)),
            _ => None,
        }
    }

    /// Numbers of all entries. Shards are locked one after the other, so this is no snapshot.
    pub fn numbers(&self) -> Vec<Ino> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().entries.keys().copied().collect::<Vec<_>>())
            .collect()
    }
}
