//! Inodes in memory: one for each object that somebody uses, and the order of their locks.
//!
//! The kernel counts how often it was told of an inode, and says when it forgets; until then an unlinked inode
//! lives. So an inode stays in the map while its lookup count is not 0 or an operation holds it, and leaves it
//! with the last of both. What the kernel keeps may be millions, so an inode that nobody holds is soon reduced to
//! its number and its count ([`Entry::Told`]) and read again when it is asked for.
//!
//! Invariants:
//! * There is at most one [`Inode`] for an object, so its lock is the object's lock.
//! * Whoever holds an [`InodeRef`] keeps the object from being destroyed, and so its number from being used
//!   again. An entry is put into the map while the directory that names it is locked, and only then read.
//! * An object is destroyed while its inode is in the map, not loaded, and kept from being loaded. So nobody
//!   reads an object that goes, and a number that comes again finds no trace of the old one.
//! * Locks of several inodes are taken in ascending order of their numbers, after the transaction was begun,
//!   and never while the map is locked. References are taken before the transaction begins and dropped after it
//!   ended, because the last one of an unlinked inode destroys its object, which takes a transaction of its
//!   own.

use crate::attr::{Attributes, FLAG_XATTR, object_kind};
use crate::claims::Claims;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::indexes::Share;
use crate::perm;
use crate::types::Ino;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_dataset::ObjectZap;
use terrane_object::{Object, ObjectId, ObjectKind, Tx};
use terrane_wire::{Corrupt, NumberMap};

const SHARDS: usize = 64;
/// Inodes that stay in memory while nobody holds them, unless [`Fs::keep_inodes`] says otherwise.
const IDLE_DEFAULT: usize = 32 << 10;

pub(crate) struct Inode {
    pub ino: Ino,
    /// What the kernel was told minus what it forgot.
    lookups: AtomicU64,
    /// `lookups` is all that the kernel was ever told and has not forgotten. Not so at first in a mount that was taken over: see
    /// [`Fs::take_over`].
    settled: AtomicBool,
    /// The group of the last change that may not be durable; 0: none.
    changed: AtomicU64,
    /// The newest group for which the ledger has it.
    noted: AtomicU64,
    loading: Mutex<()>,
    body: OnceLock<Body>,
    /// A change of its content took set-id bits away, and the kernel was not told of the new mode.
    set_ids_went: AtomicBool,
    /// Room is kept for it: see [`Reservations`](crate::reserved::Reservations).
    reserved: AtomicBool,
    /// What the newest group has reserved for it.
    pub claims: Claims,
    /// In the set of directories that are to be settled, and kept in memory for that.
    due: AtomicBool,
    /// What its index takes, if it is a directory.
    pub index_share: Share,
    /// Stands in its shard's queue of idle inodes. Changed under the shard's lock only.
    idle: AtomicBool,
}

/// What there is once the dnode was read.
struct Body {
    object: Arc<Object>,
    state: RwLock<State>,
}

/// What an inode's lock guards.
pub(crate) struct State {
    pub attrs: Attributes,
    /// Directories only.
    pub names: Option<ObjectZap>,
    /// Made without a name, so that a link may give it one although it has none.
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

    /// For [`Settling`](crate::settle::Settling) alone.
    pub fn set_due(&self, is_due: bool) {
        self.due.store(is_due, Ordering::Release);
    }

    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// For [`Reservations`](crate::reserved::Reservations) alone.
    pub fn set_reserved(&self, is_reserved: bool) {
        self.reserved.store(is_reserved, Ordering::Relaxed);
    }

    pub fn is_reserved(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Whoever changes a program's bytes does not get the identity it ran under. The caller saves the state, and holds its lock.
    pub fn lose_set_ids(&self, state: &mut State) -> bool {
        let went = perm::clear_set_ids(&mut state.attrs);
        if went {
            self.set_ids_went.store(true, Ordering::Release);
        }
        went
    }

    /// Whether that happened since this was last asked.
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

    /// Not if somebody else has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, State>> {
        self.body().state.try_write()
    }

    /// Bytes of its index, unless somebody changes it; `None` also for what is no directory.
    pub fn index_bytes(&self) -> Option<usize> {
        let body = self.body.get().filter(|body| body.object.kind() == ObjectKind::Directory)?;
        let state = body.state.try_read()?;
        state.names.as_ref().map(ObjectZap::index_bytes)
    }

    /// Forgets its index; false: somebody uses it.
    pub fn forget_index(&self) -> bool {
        let Some(body) = self.body.get() else { return true };
        let Some(mut state) = body.state.try_write() else { return false };
        if let Some(names) = &mut state.names {
            names.drop_index();
        }
        true
    }

    /// The group of the last change that may not be durable.
    pub fn changed(&self) -> Option<u64> {
        Some(self.changed.load(Ordering::Acquire)).filter(|group| *group != 0)
    }

    /// Its last name went; false if it was never read.
    fn is_unlinked(&self) -> bool {
        self.body.get().is_some_and(|body| body.state.read().attrs.zpl.links == 0)
    }

    /// Everything up to this group is durable.
    pub fn unchanged_since(&self, group: u64) {
        let _ = self.changed.compare_exchange(group, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// It is changed in this transaction. True: for the first time in its group.
    fn touch(&self, tx: &Tx) -> bool {
        self.change(tx);
        let group = tx.txg().0;
        self.noted.fetch_max(group, Ordering::Relaxed) < group
    }

    fn change(&self, tx: &Tx) {
        self.changed.fetch_max(tx.txg().0, Ordering::AcqRel);
    }
}

/// What the map knows of a number.
enum Entry {
    /// The kernel was told of it so many times more than it forgot; nobody uses it now.
    Told(u64),
    Live(Arc<Inode>),
}

#[derive(Default)]
struct Shard {
    entries: NumberMap<Ino, Entry>,
    /// Live inodes nobody held when they were queued, oldest first.
    idle: VecDeque<Ino>,
}

impl Shard {
    fn live(&mut self, ino: Ino) -> &Arc<Inode> {
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

    /// Queues an inode that nobody holds, and reduces the oldest of too many.
    fn rest(&mut self, inode: &Inode, idle_max: usize) {
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
            // An unlinked inode, or one that may still be linked, is more than what its dnode says.
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
    /// Idle inodes kept in each shard.
    idle_max: AtomicUsize,
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

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        let shard = usize::try_from(ino % SHARDS as u64).unwrap_or(0);
        self.shards.get(shard).expect("the remainder is below the number of shards")
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Those of them that are in memory whole.
    pub fn live(&self) -> usize {
        let is_live = |entry: &&Entry| matches!(entry, Entry::Live(_));
        self.shards.iter().map(|shard| shard.lock().entries.values().filter(is_live).count()).sum()
    }

    /// Looks at an inode that is in memory whole. `look` must not wait for anything: the map is locked.
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

/// Keeps an inode in the map and its object from being destroyed. Not loaded yet if it comes from [`Fs::enter`].
pub(crate) struct InodeRef<'a> {
    fs: &'a Fs,
    /// `None` only while it is dropped.
    inode: Option<Arc<Inode>>,
}

impl Deref for InodeRef<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        self.inode.as_ref().expect("only drop takes it")
    }
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        let Some(inode) = self.inode.take() else { return };
        let sheds = self.fs.indexes.note(&inode);
        let last = {
            let mut shard = self.fs.inodes.shard(inode.ino).lock();
            // All references are made and dropped under this lock: the map's and ours are the last.
            let alone = inode.lookups.load(Ordering::Acquire) == 0 && Arc::strong_count(&inode) == 2;
            // What a predecessor told the kernel is not in our count: only its FORGET says that an unlinked inode is closed.
            let may_be_open =
                || self.fs.is_successor() && !inode.settled.load(Ordering::Acquire) && inode.is_unlinked();
            if alone && !inode.is_due() && !may_be_open() {
                shard.entries.remove(&inode.ino);
                Some(inode)
            } else if Arc::strong_count(&inode) == 2 {
                let number = inode.ino;
                drop(inode);
                if let Some(Entry::Live(inode)) = shard.entries.get(&number) {
                    let inode = Arc::clone(inode);
                    shard.rest(&inode, self.fs.inodes.idle_max.load(Ordering::Relaxed));
                }
                None
            } else {
                drop(inode);
                None
            }
        };
        if sheds {
            self.fs.shed_indexes();
        }
        let Some(inode) = last else { return };
        if inode.is_unlinked()
            && let Err(errno) = self.fs.destroy(inode.ino)
        {
            // It stays in the set of unlinked objects, and the next mount tries again.
            log::warn!("unlinked object {} was not destroyed: {errno}", inode.ino);
        }
    }
}

impl InodeRef<'_> {
    /// The kernel was told of it once more.
    pub fn count_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    pub fn uncount_lookups(&self, count: u64) {
        let less = |lookups: u64| Some(lookups.saturating_sub(count));
        let before = self.lookups.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if before.is_ok_and(|before| before <= count) {
            self.settled.store(true, Ordering::Release);
        }
    }

    fn is_loaded(&self) -> bool {
        self.body.get().is_some()
    }

    /// Keeps everybody from reading the dnode, if nobody has.
    pub fn lock_unloaded(&self) -> Option<MutexGuard<'_, ()>> {
        let loading = self.loading.lock();
        (!self.is_loaded()).then_some(loading)
    }

    /// Reads the dnode, unless somebody did. `ESTALE`: there is no such inode (any more).
    pub fn load(self) -> Result<Self, Errno> {
        if self.is_loaded() {
            return Ok(self);
        }
        {
            let unloaded = self.lock_unloaded();
            if unloaded.is_some() {
                let object = self.fs.set.hold(ObjectId(self.ino))?;
                match object.kind() {
                    ObjectKind::File | ObjectKind::Directory | ObjectKind::Symlink | ObjectKind::Special => {}
                    _ => return Err(Errno::ESTALE),
                }
                let attrs = Attributes::decode(self.ino, &object.bonus(), &self.fs.layouts.table())?;
                if attrs.zpl.flags & FLAG_XATTR != 0 {
                    // Part of another inode.
                    return Err(Errno::ESTALE);
                }
                let kind = object_kind(attrs.mode());
                if kind != object.kind() {
                    let (at, found) = (format!("object {}", self.ino), format!("{:?}", object.kind()));
                    let expected = format!("{kind:?} for mode {:#o}", attrs.mode());
                    return Err(Corrupt::new(at, "object kind", expected, found).into());
                }
                if attrs.zpl.links == 0 && !self.fs.is_successor() {
                    // Unlinked, and in nobody's hands: it waits for its destruction.
                    return Err(Errno::ESTALE);
                }
                // It may have been changed in the open group, forgotten and read again: the first fsync must
                // commit.
                self.changed.store(self.fs.set.open_txg().0, Ordering::Release);
                self.fill(object, attrs);
            }
        }
        Ok(self)
    }

    fn fill(&self, object: Arc<Object>, attrs: Attributes) {
        let names = attrs.is_dir().then(|| {
            ObjectZap::with_names(self.fs.dataset().zap_policy(), Arc::clone(&object), self.fs.naming)
        });
        object.set_hint(attrs.hint());
        self.set_reserved(self.fs.reservations.has(self.ino));
        // Read by a successor, it may have been made without a name, and only the kernel remembers: it refuses a link to any other.
        let linkable = attrs.zpl.links == 0;
        let state = RwLock::new(State { attrs, names, linkable });
        let filled = self.body.set(Body { object, state });
        assert!(filled.is_ok(), "an inode is filled once, under its loading lock");
    }
}

impl Fs {
    /// Puts an inode into the map without reading anything: for callers that hold the lock of the directory that
    /// names it. To be followed by `load`.
    pub(crate) fn enter(&self, ino: Ino) -> InodeRef<'_> {
        let mut shard = self.inodes.shard(ino).lock();
        InodeRef { fs: self, inode: Some(Arc::clone(shard.live(ino))) }
    }

    /// The inode of this number.
    pub(crate) fn hold(&self, ino: Ino) -> Result<InodeRef<'_>, Errno> {
        self.enter(ino).load()
    }

    /// The inode, if it is in memory.
    pub(crate) fn hold_cached(&self, ino: Ino) -> Option<InodeRef<'_>> {
        let mut shard = self.inodes.shard(ino).lock();
        let known = shard.entries.contains_key(&ino);
        known.then(|| InodeRef { fs: self, inode: Some(Arc::clone(shard.live(ino))) })
    }

    /// An inode whose object was made a moment ago, in `tx`.
    pub(crate) fn hold_new(&self, tx: &Tx, object: Arc<Object>, attrs: Attributes) -> InodeRef<'_> {
        let inode = self.enter(object.id().0);
        {
            let unloaded = inode.lock_unloaded();
            inode.settled.store(true, Ordering::Release);
            // Filled already: by somebody who read the new object through its number.
            if unloaded.is_some() {
                inode.fill(object, attrs);
            }
        }
        self.touch(tx, &inode);
        inode
    }

    /// Looks a name up under the directory's lock and holds what it names. `None`: there is no such name.
    pub(crate) fn child(&self, dir: &Inode, name: &[u8]) -> Result<Option<(InodeRef<'_>, u8)>, Errno> {
        // What a name means can be unlinked between the look and the load, but not for ever.
        for _ in 0..8 {
            let found = {
                let state = dir.read();
                state.find(name)?.map(|entry| (self.enter(entry.ino), entry.kind))
            };
            let Some((entered, kind)) = found else { return Ok(None) };
            match entered.load() {
                Ok(inode) => return Ok(Some((inode, kind))),
                Err(Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        let name = String::from_utf8_lossy(name);
        Err(Corrupt::new(format_args!("directory {}, '{name}'", dir.ino), "object", "an inode", "none")
            .into())
    }

    /// Stores what the state says. The caller holds the inode's lock.
    pub(crate) fn save(&self, tx: &Tx, inode: &Inode, state: &mut State) -> Result<(), Errno> {
        let bonus = state.attrs.bonus_now()?;
        inode.object().set_bonus(tx, bonus)?;
        self.touch(tx, inode);
        Ok(())
    }

    /// The same for what a crash may cost without anybody missing it: that somebody read.
    pub(crate) fn save_read(&self, tx: &Tx, inode: &Inode, state: &mut State) -> Result<(), Errno> {
        let bonus = state.attrs.bonus_now()?;
        inode.object().set_bonus(tx, bonus)?;
        inode.change(tx);
        Ok(())
    }

    pub(crate) fn touch(&self, tx: &Tx, inode: &Inode) {
        if inode.touch(tx)
            && let Some(ledger) = self.ledger.get()
        {
            ledger.note(tx.txg().0, inode.ino);
        }
    }
}

/// Several inodes, locked for writing in ascending order of their numbers.
pub(crate) struct Locked<'a> {
    fs: &'a Fs,
    held: Vec<(&'a Inode, RwLockWriteGuard<'a, State>)>,
}

impl<'a> Locked<'a> {
    /// The same inode may be given more than once.
    pub fn new(fs: &'a Fs, inodes: &[&'a Inode]) -> Self {
        let mut order = inodes.to_vec();
        order.sort_by_key(|inode| inode.ino);
        order.dedup_by_key(|inode| inode.ino);
        Locked { fs, held: order.into_iter().map(|inode| (inode, inode.write())).collect() }
    }

    pub fn get(&mut self, ino: Ino) -> &mut State {
        let place = self.held.iter_mut().find(|(inode, _)| inode.ino == ino);
        &mut place.expect("it was given to Locked::new").1
    }

    pub fn inode(&self, ino: Ino) -> &'a Inode {
        self.held.iter().find(|(inode, _)| inode.ino == ino).expect("it was given to Locked::new").0
    }

    /// Stores all of them.
    pub fn save(&mut self, tx: &Tx) -> Result<(), Errno> {
        self.held.iter_mut().try_for_each(|(inode, state)| self.fs.save(tx, inode, state))
    }
}
