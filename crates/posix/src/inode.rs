//! Inodes in memory, one per object in use, and their lock order.
//!
//! The kernel counts its lookups of an inode and says when it forgets them. Until then an unlinked inode lives.
//! So an inode stays in the map while its lookup count is not 0, or an operation holds it. The kernel may keep
//! millions. So an unused inode is soon reduced to its number and count ([`Entry::Told`]), and read again on
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
pub(crate) use names::{KIND_DIR, KIND_FILE, Named, check_name, is_dots};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_dataset::ObjectZap;
use terrane_object::{Object, ObjectKind};
use terrane_pool::Tx;
use terrane_wire::NumberMap;

const SHARDS: usize = 64;
/// Default number of unused inodes kept in memory. [`Fs::keep_inodes`](crate::Fs::keep_inodes) changes it.
const IDLE_DEFAULT: usize = 32 << 10;

pub(crate) struct Inode {
    pub ino: Ino,
    /// Lookups that the kernel has counted and not forgotten.
    pub lookups: AtomicU64,
    /// `lookups` includes every lookup of the kernel. False at first in a mount that was taken over; see
    /// [`Fs::take_over`](crate::Fs::take_over).
    pub settled: AtomicBool,
    /// Txg (group) of the last change that may not be durable; 0: none.
    pub changed: AtomicU64,
    /// Newest txg that the ledger has noted for this inode.
    noted: AtomicU64,
    pub loading: Mutex<()>,
    pub body: OnceLock<Body>,
    /// A write cleared the set-id bits, and the kernel does not know the new mode yet.
    set_ids_went: AtomicBool,
    /// It has a reservation; see [`Reservations`](crate::reservations::Reservations).
    reserved: AtomicBool,
    /// What the newest txg has reserved for this inode.
    pub claims: Claims,
    /// It is in the set of directories to shrink, and kept in memory for that.
    due: AtomicBool,
    /// Counted bytes of its index, if it is a directory.
    pub index_share: Share,
    /// It is in its shard's queue of idle inodes. Changes under the shard's lock only.
    idle: AtomicBool,
}

/// The part that exists once the dnode was read.
pub(crate) struct Body {
    pub object: Arc<Object>,
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
            settled: AtomicBool::new(false),
            changed: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            loading: Mutex::new(()),
            body: OnceLock::new(),
            set_ids_went: AtomicBool::new(false),
            reserved: AtomicBool::new(false),
            claims: Claims::of(ino),
            due: AtomicBool::new(false),
            index_share: Share::default(),
            idle: AtomicBool::new(false),
        }
    }

    /// For [`Settling`](crate::jobs::Settling) alone.
    pub fn set_due(&self, is_due: bool) {
        self.due.store(is_due, Ordering::Release);
    }

    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// For [`Reservations`](crate::reservations::Reservations) alone.
    pub fn set_reserved(&self, is_reserved: bool) {
        self.reserved.store(is_reserved, Ordering::Relaxed);
    }

    pub fn is_reserved(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Clears set-id bits, so that a writer does not gain the identity of a program it changes. True: some were
    /// set. The caller holds the inode's lock and saves the state.
    pub fn lose_set_ids(&self, state: &mut State) -> bool {
        let went = perm::clear_set_ids(&mut state.attrs);
        if went {
            self.set_ids_went.store(true, Ordering::Release);
        }
        went
    }

    /// Whether set-id bits were cleared since the last call.
    pub fn take_set_ids_went(&self) -> bool {
        self.set_ids_went.load(Ordering::Acquire) && self.set_ids_went.swap(false, Ordering::AcqRel)
    }

    fn body(&self) -> &Body {
        self.body.get().expect("an InodeRef is handed out after its inode was loaded")
    }

    pub fn object(&self) -> &Arc<Object> {
        &self.body().object
    }

    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.body().state.read()
    }

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
    pub fn forget_index(&self) -> bool {
        let Some(body) = self.body.get() else { return true };
        let Some(mut state) = body.state.try_write() else { return false };
        if let Some(names) = &mut state.names {
            names.drop_index();
        }
        true
    }

    /// Txg of the last change that may not be durable.
    pub fn changed(&self) -> Option<u64> {
        Some(self.changed.load(Ordering::Acquire)).filter(|group| *group != 0)
    }

    /// Whether it has lost its last name; false if it was never read.
    pub fn is_unlinked(&self) -> bool {
        self.body.get().is_some_and(|body| body.state.read().attrs.zpl.links == 0)
    }

    /// Everything up to this txg is durable.
    pub fn unchanged_since(&self, group: u64) {
        let _ = self.changed.compare_exchange(group, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Records a change in this transaction. True: the first one in its txg.
    pub fn touch(&self, tx: &Tx) -> bool {
        self.change(tx);
        let group = tx.txg().0;
        self.noted.fetch_max(group, Ordering::Relaxed) < group
    }

    pub fn change(&self, tx: &Tx) {
        self.changed.fetch_max(tx.txg().0, Ordering::AcqRel);
    }
}

/// What the map knows of an inode number.
pub(crate) enum Entry {
    /// Lookups of the kernel that are not forgotten. No thread uses the inode now.
    Told(u64),
    Live(Arc<Inode>),
}

#[derive(Default)]
pub(crate) struct Shard {
    pub entries: NumberMap<Ino, Entry>,
    /// Inodes that were unused when they were queued, oldest first.
    idle: VecDeque<Ino>,
}

impl Shard {
    /// The inode with this number, added to the map if necessary.
    pub fn live(&mut self, ino: Ino) -> &Arc<Inode> {
        let entry = self.entries.entry(ino).or_insert(Entry::Told(0));
        if let Entry::Told(lookups) = entry {
            let inode = Inode::new(ino);
            inode.lookups.store(*lookups, Ordering::Release);
            *entry = Entry::Live(Arc::new(inode));
        }
        match entry {
            Entry::Live(inode) => inode,
            Entry::Told(_) => unreachable!("made live just above"),
        }
    }

    /// Queues an inode that no operation holds, and reduces the oldest if there are too many.
    pub fn rest(&mut self, inode: &Inode, idle_max: usize) {
        if !inode.idle.swap(true, Ordering::AcqRel) {
            self.idle.push_back(inode.ino);
        }
        self.reduce(idle_max);
    }

    fn reduce(&mut self, idle_max: usize) {
        while self.idle.len() > idle_max {
            let Some(oldest) = self.idle.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(&oldest) else { continue };
            let Entry::Live(inode) = entry else { continue };
            inode.idle.store(false, Ordering::Release);
            // An unlinked or still linkable inode has state in memory that its dnode lacks.
            let plain = inode.body.get().is_none_or(|body| {
                body.state.try_read().is_some_and(|state| state.attrs.zpl.links > 0 && !state.linkable)
            });
            let is_told = !inode.set_ids_went.load(Ordering::Acquire);
            if plain && is_told && !inode.is_due() && Arc::strong_count(inode) == 1 {
                *entry = Entry::Told(inode.lookups.load(Ordering::Acquire));
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
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        InodeCache { shards, idle_max: AtomicUsize::new(IDLE_DEFAULT / SHARDS) }
    }

    pub fn keep(&self, count: usize) {
        let idle_max = count.div_ceil(SHARDS);
        self.idle_max.store(idle_max, Ordering::Relaxed);
        self.shards.iter().for_each(|shard| shard.lock().reduce(idle_max));
    }

    pub fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        let shard = usize::try_from(ino % SHARDS as u64).unwrap_or(0);
        self.shards.get(shard).expect("the remainder is below the number of shards")
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Number of those fully in memory.
    pub fn live(&self) -> usize {
        let is_live = |entry: &&Entry| matches!(entry, Entry::Live(_));
        self.shards.iter().map(|shard| shard.lock().entries.values().filter(is_live).count()).sum()
    }

    /// Calls `look` on an inode that is fully in memory. It must not wait: the map is locked.
    pub fn with_live<T>(&self, ino: Ino, look: impl FnOnce(&Inode) -> T) -> Option<T> {
        match self.shard(ino).lock().entries.get(&ino) {
            Some(Entry::Live(inode)) => Some(look(inode)),
            _ => None,
        }
    }

    pub fn numbers(&self) -> Vec<Ino> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().entries.keys().copied().collect::<Vec<_>>())
            .collect()
    }
}
