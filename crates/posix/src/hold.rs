//! References to inodes: taking, loading, changing and dropping them.
//!
//! Invariant: dropping the last reference of an unlinked inode destroys its object, in a transaction of its
//! own. So references are dropped while no lock is held and no transaction is open.

use crate::attr::{Attributes, FLAG_XATTR, object_kind};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::{Body, Inode, InodeSlot, State};
use crate::operation::Locks;
use crate::types::Ino;
use parking_lot::{MutexGuard, RwLock, RwLockWriteGuard};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_dataset::ObjectZap;
use terrane_object::{Object, ObjectKind};
use terrane_pool::Tx;
use terrane_wire::{Corrupt, ObjectId};

/// Keeps an inode in the map and its object from being destroyed. After [`Fs::hold_unloaded`] it is not
/// loaded yet.
pub(crate) struct InodeRef<'a> {
    fs: &'a Fs,
    /// `None` only during `drop`.
    inode: Option<Arc<Inode>>,
}

impl Deref for InodeRef<'_> {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        self.inode.as_ref().expect("only `drop` takes the inode")
    }
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        let Some(inode) = self.inode.take() else { return };
        let evicts_indexes = self.fs.note_index(&inode);
        let last = {
            let mut shard = self.fs.inodes.shard(inode.ino).lock();
            // References are created and dropped under this lock: only the map and this drop hold one now.
            let is_unreferenced =
                inode.lookups.load(Ordering::Acquire) == 0 && Arc::strong_count(&inode) == 2;
            // Lookups that a predecessor counted are unknown here. Only the kernel's FORGET shows that an
            // unlinked inode is closed.
            let may_be_open = || {
                self.fs.is_successor()
                    && !inode.has_all_lookups.load(Ordering::Acquire)
                    && inode.is_unlinked()
            };
            // An inode of a snapshot stays like an idle one, because callers do not count its lookups.
            let may_go = is_unreferenced && !self.fs.is_read_only();
            if may_go && !inode.is_shrink_queued() && !may_be_open() {
                shard.entries.remove(&inode.ino);
                Some(inode)
            } else if Arc::strong_count(&inode) == 2 {
                let number = inode.ino;
                drop(inode);
                if let Some(InodeSlot::InMemory(inode)) = shard.entries.get(&number) {
                    let inode = Arc::clone(inode);
                    shard.queue_idle(&inode, self.fs.inodes.idle_max.load(Ordering::Relaxed));
                }
                None
            } else {
                drop(inode);
                None
            }
        };
        if evicts_indexes {
            self.fs.evict_indexes();
        }
        let Some(inode) = last else { return };
        if inode.is_unlinked()
            && let Err(errno) = (self.fs.destroy_unlinked)(self.fs, inode.ino)
        {
            // It stays in the delete queue, and the next mount tries again.
            log::warn!("failed to destroy unlinked object {}: {errno}. The next mount retries", inode.ino);
        }
    }
}

impl InodeRef<'_> {
    /// Counts one more lookup by the kernel.
    pub fn count_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    /// Subtracts lookups that the kernel forgot.
    pub fn uncount_lookups(&self, count: u64) {
        let less = |lookups: u64| Some(lookups.saturating_sub(count));
        let before = self.lookups.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if before.is_ok_and(|before| before <= count) {
            self.has_all_lookups.store(true, Ordering::Release);
        }
    }

    fn is_loaded(&self) -> bool {
        self.body.get().is_some()
    }

    /// Locks an inode that is not loaded, so that no thread reads its dnode. `None`: it is loaded.
    pub fn lock_unloaded(&self) -> Option<MutexGuard<'_, ()>> {
        let loading = self.loading.lock();
        (!self.is_loaded()).then_some(loading)
    }

    /// Reads the dnode, unless it is loaded. `ESTALE`: there is no such inode (any more).
    pub fn load(self) -> Result<Self, Errno> {
        if self.fs.is_closed() {
            return Err(Errno::ESTALE);
        }
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
                    // It belongs to another inode's extended attributes.
                    return Err(Errno::ESTALE);
                }
                let kind = object_kind(attrs.mode());
                if kind != object.kind() {
                    let (at, found) = (format!("object {}", self.ino), format!("{:?}", object.kind()));
                    let expected = format!("{kind:?} for mode {:#o}", attrs.mode());
                    return Err(Corrupt::new(at, "object kind", expected, found).into());
                }
                if attrs.zpl.links == 0 && !self.fs.is_successor() && !self.fs.is_replaying {
                    // Unlinked and unused: it waits for its destruction.
                    return Err(Errno::ESTALE);
                }
                // It may have been changed in the open txg, dropped from memory and read again. So the first
                // fsync does not take it for unchanged.
                self.note_change();
                self.set_body(object, attrs);
            }
        }
        Ok(self)
    }

    fn set_body(&self, object: Arc<Object>, attrs: Attributes) {
        let names = attrs.is_dir().then(|| {
            ObjectZap::directory(self.fs.dataset().zap_policy(), Arc::clone(&object), self.fs.naming)
        });
        object.set_hint(attrs.hint());
        self.set_has_reservation(self.fs.reservations.has(self.ino));
        // In a successor, it may have been made without a name. Only the kernel knows, and it refuses a link to
        // any other.
        let linkable = attrs.zpl.links == 0;
        let state = RwLock::new(State { attrs, names, linkable });
        let loaded = self.body.set(Body { object, state });
        assert!(loaded.is_ok(), "an inode is filled once, under its loading lock");
    }
}

impl Fs {
    /// Number of inodes in memory, as entries of the map.
    pub fn cached_inodes(&self) -> usize {
        self.inodes.len()
    }

    /// Number of fully loaded inodes. It is bounded, however many the kernel keeps.
    pub fn inodes_in_memory(&self) -> usize {
        self.inodes.in_memory_len()
    }

    /// Sets how many unused inodes stay fully in memory, about 1 KiB each; default 32,768. Others are dropped
    /// at once, and read again on demand.
    pub fn set_idle_inodes_max(&self, count: usize) {
        self.inodes.set_idle_max(count);
    }

    /// Sets the bound in bytes for all directory indexes in memory, default 48 MiB. A single index may exceed
    /// it.
    pub fn set_index_bytes_max(&self, bytes: usize) {
        self.indexes.set_bytes_max(bytes);
        self.evict_indexes();
    }

    /// Number of directory indexes in memory.
    pub fn index_count(&self) -> usize {
        self.indexes.count()
    }

    /// Bytes of all directory indexes in memory.
    pub fn index_bytes(&self) -> usize {
        self.indexes.bytes()
    }

    /// Counts a directory's current index bytes. True: the sum exceeds its bound. The caller holds the inode,
    /// and no lock.
    fn note_index(&self, dir: &Inode) -> bool {
        // If the directory is locked, the thread that changes it counts it later.
        dir.index_bytes().is_some_and(|bytes| self.indexes.note(dir.ino, &dir.index_share, bytes))
    }

    fn evict_indexes(&self) {
        self.indexes.evict(|oldest| {
            self.inodes.with_inode(oldest, |dir| {
                let forgotten = dir.drop_index();
                if forgotten {
                    self.indexes.uncount(&dir.index_share);
                }
                forgotten
            })
        });
    }

    /// The kernel drops `count` of its lookups of an inode. An unlinked inode is destroyed with the last one. If the number had another
    /// inode before a rollback, the lookups may be of that one. Then an unlinked inode lives until the unmount.
    pub fn forget(&self, ino: Ino, count: u64) {
        if let Some(shown) = &self.shown {
            shown.forget(ino, count);
        }
        if !self.had_another_inode(ino)
            && let Some(inode) = self.hold_cached(ino)
        {
            inode.uncount_lookups(count);
        }
    }

    /// Adds an inode to the map without reading it; `load` must follow. For callers that hold the lock of the
    /// directory which names it.
    pub(crate) fn hold_unloaded(&self, ino: Ino) -> InodeRef<'_> {
        let mut shard = self.inodes.shard(ino).lock();
        InodeRef { fs: self, inode: Some(Arc::clone(shard.get_or_insert(ino))) }
    }

    /// The inode with this number, loaded.
    pub(crate) fn hold(&self, ino: Ino) -> Result<InodeRef<'_>, Errno> {
        self.hold_unloaded(ino).load()
    }

    /// The inode with this number, if it is in the map.
    pub(crate) fn hold_cached(&self, ino: Ino) -> Option<InodeRef<'_>> {
        let mut shard = self.inodes.shard(ino).lock();
        let known = shard.entries.contains_key(&ino);
        known.then(|| InodeRef { fs: self, inode: Some(Arc::clone(shard.get_or_insert(ino))) })
    }

    /// The inode of an object that `tx` has just created.
    pub(crate) fn hold_new(&self, tx: &Tx, object: Arc<Object>, attrs: Attributes) -> InodeRef<'_> {
        let inode = self.hold_unloaded(object.id().0);
        {
            let unloaded = inode.lock_unloaded();
            inode.has_all_lookups.store(true, Ordering::Release);
            // It may be loaded already, by a thread that read the new object through its number.
            if unloaded.is_some() {
                inode.set_body(object, attrs);
            }
        }
        self.touch(tx, &inode);
        inode
    }

    /// Looks up a name under the directory's lock, and holds its inode. `None`: there is no such name.
    pub(crate) fn hold_child(&self, dir: &Inode, name: &[u8]) -> Result<Option<(InodeRef<'_>, u8)>, Errno> {
        // The inode can be unlinked between lookup and load, but not on every try.
        for _ in 0..8 {
            let found = {
                let state = dir.read();
                state.find(name)?.map(|entry| (self.hold_unloaded(entry.ino), entry.kind))
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

    /// Stores the inode's attributes. The caller holds its lock.
    pub(crate) fn save(&self, tx: &Tx, inode: &Inode, state: &mut State) -> Result<(), Errno> {
        let bonus = state.attrs.encode_bonus()?;
        inode.object().set_bonus(tx, bonus)?;
        self.touch(tx, inode);
        Ok(())
    }

    /// The same for an access time, which a crash may lose.
    pub(crate) fn save_access_time(&self, tx: &Tx, inode: &Inode, state: &mut State) -> Result<(), Errno> {
        let bonus = state.attrs.encode_bonus()?;
        inode.object().set_bonus(tx, bonus)?;
        inode.note_change();
        Ok(())
    }

    pub(crate) fn touch(&self, tx: &Tx, inode: &Inode) {
        if inode.touch(tx)
            && let Some(ledger) = self.ledger.get()
        {
            ledger.note_change(tx.txg().0, inode.ino);
        }
    }
}

/// Several inodes, write-locked in ascending order of their numbers.
pub(crate) struct Locked<'a> {
    fs: &'a Fs,
    held: Vec<(&'a Inode, RwLockWriteGuard<'a, State>)>,
}

impl<'a> Locked<'a> {
    /// Locks these inodes, which may contain duplicates.
    pub fn new(fs: &'a Fs, mut order: Locks<'a>) -> Self {
        order.sort_by_key(|inode| inode.ino);
        order.dedup_by_key(|inode| inode.ino);
        Locked { fs, held: order.into_iter().map(|inode| (inode, inode.write())).collect() }
    }

    /// The state of an inode that was passed to [`new`](Self::new); panics for any other.
    pub fn get(&mut self, ino: Ino) -> &mut State {
        let entry = self.held.iter_mut().find(|(inode, _)| inode.ino == ino);
        &mut entry.expect("the inode was passed to Locked::new").1
    }

    /// The inode with this number; panics if it was not passed to [`new`](Self::new).
    pub fn inode(&self, ino: Ino) -> &'a Inode {
        self.held.iter().find(|(inode, _)| inode.ino == ino).expect("the inode was passed to Locked::new").0
    }

    /// Stores the attributes of all of them.
    pub fn save(&mut self, tx: &Tx) -> Result<(), Errno> {
        self.held.iter_mut().try_for_each(|(inode, state)| self.fs.save(tx, inode, state))
    }
}
