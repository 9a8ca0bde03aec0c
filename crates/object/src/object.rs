//! One object, alive.
//!
//! A read checks the changes of the open txg, then those of the syncing txg, then the tree. When the
//! sync has rewritten the tree, the new root replaces the old one in one step.
//!
//! Submodules, in reading order:
//! * `state`: an object's state in memory
//! * `blocks`: reading and writing
//! * `attributes`: bonus and spill
//! * `seek`: data and holes
//! * `prefetch`: reads ahead of readers
//! * `recode`: the same content in another stored form
//! * `metadata_rewrite`: rewrite of metadata
//! * `second_copy`: a second copy of the content
//! * `table`: the objects of a set in memory

mod attributes;
mod blocks;
mod metadata_rewrite;
mod prefetch;
mod recode;
mod second_copy;
mod seek;
mod state;
mod table;
#[cfg(test)]
mod tests;

use crate::dirty::{Dirty, SpillChange};
use crate::dnode::Dnode;
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::lifetime_hints::LifetimeHints;
use crate::read_streams::ReadStreams;
use crate::tree::TreeId;
pub(crate) use attributes::{UnreadSpill, check_fits};
pub(crate) use blocks::key_of;
pub use metadata_rewrite::MetadataRewrite;
pub(crate) use metadata_rewrite::has_copy_born_at;
use parking_lot::{Mutex, RwLock};
pub use recode::StoredBlock;
pub use second_copy::ChangedRanges;
use state::{RecentBlocks, State};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
pub(crate) use table::ObjectTable;
use terrane_format::block_ptr::Key;
use terrane_format::{BlockPtr, Feature};
use terrane_pool::Tx;
use terrane_space::policy::Hint;
use terrane_store::PoolError;
use terrane_wire::{ObjectId, Txg};

/// Block 0, and the number of blocks.
pub type FirstBlock = (Arc<Vec<u8>>, u64);

/// An object of an object set. All methods take its own short lock.
pub struct Object {
    table: Weak<ObjectTable>,
    own_id: TreeId,
    /// The object that will get these blocks; 0: they are its own.
    copy_target: AtomicU64,
    kind: ObjectKind,
    pub(crate) lifetime_hints: LifetimeHints,
    /// Read streams; `None` until a file is read.
    read_streams: Mutex<Option<Box<ReadStreams>>>,
    pub(crate) state: RwLock<State>,
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.forget(self.id());
        }
    }
}

/// How much an object occupies: see [`Object::occupied_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccupiedBytes {
    /// Stored bytes, and the bytes of changes that are not stored yet, before compression.
    pub bytes: u64,
    /// All of them are stored, so no sync changes the number.
    pub are_stored: bool,
}

impl Object {
    pub(crate) fn new(table: Weak<ObjectTable>, own_id: TreeId, dnode: Dnode) -> Object {
        let state = State {
            dnode,
            open: None,
            syncing: None,
            destroyed: false,
            recent: RecentBlocks::default(),
            recent_spill: Weak::new(),
        };
        Object {
            table,
            own_id,
            copy_target: AtomicU64::new(0),
            kind: state.dnode.kind,
            lifetime_hints: LifetimeHints::default(),
            read_streams: Mutex::default(),
            state: RwLock::new(state),
        }
    }

    /// Its number in the object set.
    pub fn id(&self) -> ObjectId {
        self.own_id.object
    }

    /// Its use, which never changes.
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Sets the lifetime hint for blocks that are stored from now on, until this `Object` is dropped. Without a
    /// hint, the set's policy applies.
    pub fn set_hint(&self, hint: Hint) {
        self.lifetime_hints.set_hint(hint);
    }

    /// The hint, or [`Hint::NotSet`].
    pub fn hint(&self) -> Hint {
        self.lifetime_hints.hint()
    }

    /// Sets the expected lifetime of its blocks, in bytes that users write to the pool meanwhile. `None`:
    /// unknown. It is forgotten when this `Object` is dropped.
    pub fn set_expected_life(&self, bytes: Option<u64>) {
        self.lifetime_hints.set_expected_life(bytes);
    }

    /// The life set by [`set_expected_life`](Self::set_expected_life).
    pub fn expected_life(&self) -> Option<u64> {
        self.lifetime_hints.expected_life()
    }

    /// The owner of its blocks: itself, unless it is filled for another object.
    pub(crate) fn tree_id(&self) -> TreeId {
        match self.copy_target.load(Ordering::Relaxed) {
            0 => self.own_id,
            other => TreeId { object: ObjectId(other), ..self.own_id },
        }
    }

    pub(crate) fn table(&self) -> Result<Arc<ObjectTable>, ObjectError> {
        let table = self.table.upgrade();
        let table = table.ok_or_else(|| PoolError::Failed { reason: "the object set was closed".into() })?;
        if table.is_closed() { Err(ObjectError::NotFound(self.id())) } else { Ok(table) }
    }

    /// Bytes of its indirect blocks, now or in the future, with level-0 blocks of `block_bytes` bytes.
    pub fn indirect_bytes(&self, block_bytes: u32) -> u32 {
        let has_small = self.table().is_ok_and(|table| table.pool().has(Feature::Pointers));
        self.state.read().dnode.indirect_bytes_of(block_bytes, has_small)
    }

    /// Bytes of a level-0 block.
    pub fn block_size(&self) -> u32 {
        self.state.read().dnode.block_bytes
    }

    /// Highest block ever written and not truncated, plus one.
    pub fn block_count(&self) -> u64 {
        self.state.read().dnode.block_count
    }

    /// Txg that created the object. If it is filled for another object
    /// ([`set_copy_target`](Self::set_copy_target)) and lost changes, the txg that lost them.
    pub fn birth(&self) -> Txg {
        self.state.read().dnode.birth
    }

    /// The dnode as the open txg sees it, with the tree of the last sync. For `check` and `debug`.
    pub fn dnode(&self) -> Dnode {
        self.state.read().dnode.clone()
    }

    /// Whether it was destroyed: its number may belong to another object by now.
    pub fn is_destroyed(&self) -> bool {
        self.state.read().destroyed
    }

    /// Number of blocks that the txg of `tx` has changed. What `tx` reserved beyond them is not needed.
    pub fn dirty_blocks(&self, tx: &Tx) -> usize {
        let state = self.state.read();
        state.open.as_ref().filter(|open| open.txg == tx.txg()).map_or(0, |open| open.blocks.len())
    }

    /// Stored bytes as of the last sync, all copies, plus the bytes that are dirty now.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state.read();
        state.dnode.used.saturating_add(state.layers().map(Dirty::bytes).sum::<u64>())
    }

    /// As [`used_bytes`](Self::used_bytes), plus contents embedded in the dnode's pointers, which take no block.
    pub fn occupied_bytes(&self) -> OccupiedBytes {
        let state = self.state.read();
        let payload = |ptr: &BlockPtr| match ptr {
            BlockPtr::Embedded(embedded) => embedded.payload.len() as u64,
            BlockPtr::Hole(_) | BlockPtr::Normal(_) => 0,
        };
        let embedded = payload(&state.dnode.root) + payload(&state.dnode.spill);
        let dirty: u64 = state.layers().map(Dirty::bytes).sum();
        OccupiedBytes {
            bytes: state.dnode.used.saturating_add(dirty).saturating_add(embedded),
            are_stored: !state.layers().any(Dirty::changes_used),
        }
    }

    /// Whether a change of its spill block is not stored yet.
    pub fn has_unstored_spill(&self) -> bool {
        self.state.read().layers().any(|dirty| !matches!(dirty.spill, SpillChange::Unchanged))
    }

    /// Runs `change` on the open txg's changes, and adds the object to that txg's sync.
    fn change<R>(self: &Arc<Self>, tx: &Tx, change: impl FnOnce(&mut State) -> R) -> Result<R, ObjectError> {
        let mut state = self.state.write();
        if state.destroyed {
            return Err(ObjectError::NotFound(self.id()));
        }
        let first = state.open.as_ref().is_none_or(|open| open.txg < tx.txg());
        // Taken only then: it is shared by all objects of the set, and its reference count is contended.
        let table = if first { Some(self.table()?) } else { None };
        if table.as_ref().is_some_and(|table| table.is_read_only()) {
            return Err(PoolError::ReadOnly.into());
        }
        state.dirty(tx.txg());
        let before = state.open_bytes();
        let result = change(&mut state);
        self.note_dirtied(tx, before, &state);
        drop(state);
        if let Some(table) = table {
            table.mark_dirty(self.clone());
        }
        Ok(result)
    }

    /// Counts by how much the new blocks of a ZAP have grown.
    fn note_dirtied(&self, tx: &Tx, before: i64, state: &State) {
        if self.kind.is_metadata() {
            tx.note_dirtied(state.open_bytes() - before);
        }
    }

    /// Replaces the tree by that of the finished sync. `names`: the names of the blocks that it wrote for the
    /// content.
    pub(crate) fn install(&self, new: &Dnode, names: &[(u64, Key)]) {
        let mut state = self.state.write();
        if state.dnode.root != new.root {
            match state.syncing.clone() {
                Some(synced) => state.recent.follow(&synced, names),
                None => state.recent = RecentBlocks::default(),
            }
        }
        if state.dnode.spill != new.spill {
            state.recent_spill = match &state.syncing.as_ref().map(|synced| &synced.dirty.spill) {
                Some(SpillChange::New(spill)) => Arc::downgrade(spill),
                _ => Weak::new(),
            };
            state.dnode.spill = new.spill.clone();
        }
        state.dnode.root = new.root.clone();
        state.dnode.levels = new.levels;
        state.dnode.indirect_bytes = new.indirect_bytes;
        state.dnode.used = new.used;
        state.dnode.birth = new.birth;
        state.dnode.owner_epoch = new.owner_epoch;
        if !self.kind.is_changed_by_callers() {
            state.dnode.block_count = new.block_count;
        }
        state.syncing = None;
    }

    /// Replaces the dnode of an object that only syncs change.
    pub(crate) fn replace(&self, dnode: &Dnode) {
        let mut state = self.state.write();
        if state.dnode.root != dnode.root || state.dnode.block_bytes != dnode.block_bytes {
            state.recent = RecentBlocks::default();
        }
        state.dnode = dnode.clone();
    }

    /// Has the dnode stored again with this txg.
    pub fn touch(self: &Arc<Self>, tx: &Tx) -> Result<(), ObjectError> {
        self.change(tx, |_| ())
    }

    /// Drops the changes of a txg that synced without them.
    pub(crate) fn forget_changes(&self) {
        self.state.write().syncing = None;
    }

    /// Whether changes that a txg should have stored were lost, as all copies of its dnode or of a part of its
    /// tree are damaged. True as long as the set is open: no later commit brings them back.
    pub fn has_lost_changes(&self) -> bool {
        self.table().is_ok_and(|table| table.has_lost_changes(self.id()))
    }

    pub(crate) fn destroy(self: &Arc<Self>, tx: &Tx) -> Result<(), ObjectError> {
        let freeing = self.change(tx, |state| {
            let dirty = state.dirty(tx.txg());
            dirty.free(0, u64::MAX);
            dirty.spill = SpillChange::Removed;
            dirty.destroyed = true;
            let freeing = state.note_freeing(tx, 0..u64::MAX);
            state.dnode.block_count = 0;
            state.destroyed = true;
            freeing
        })?;
        self.table()?.note_freeing(tx.txg(), freeing);
        Ok(())
    }
}
