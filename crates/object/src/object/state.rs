//! State of one object in memory.
//!
//! Invariant: besides the open txg, at most one other has changes that are not in the tree.

use crate::dirty::{Dirty, DirtyBlock, DirtyContent, Frozen, SpillChange};
use crate::dnode::Dnode;
use crate::kind::ObjectKind;
use std::ops::Range;
use std::sync::{Arc, Weak};
use terrane_format::block_ptr::Key;
use terrane_pool::Tx;
use terrane_wire::Txg;

pub(crate) struct State {
    /// As the open txg sees it; tree and `used` as of the last finished sync.
    pub dnode: Dnode,
    pub open: Option<Dirty>,
    pub syncing: Option<Arc<Frozen>>,
    pub destroyed: bool,
    pub recent: RecentBlocks,
    /// Content of `dnode`'s spill pointer, while another holder keeps it in memory.
    pub recent_spill: Weak<Vec<u8>>,
}

/// A recently used block that is in the tree.
#[derive(Clone, Default)]
pub(crate) struct RecentBlock {
    number: u64,
    content: Weak<Vec<u8>>,
    /// Its name in the cache; `None`: unknown, or not a block of its own.
    pub key: Option<Key>,
}

/// Recently read or written blocks that are still in the cache, found without walking the tree.
///
/// Invariant: each entry matches the tree of the state's dnode.
#[derive(Default)]
pub(crate) struct RecentBlocks(Vec<RecentBlock>);

impl RecentBlocks {
    /// Number of entries, 40 bytes each. Many for dnodes, as every object is found through them. One per block
    /// for ZAPs, as lookups hit all leaves of a large one alike. Few for files, which are read in order.
    pub fn entries_max(kind: ObjectKind) -> u64 {
        match kind {
            ObjectKind::Dnodes => 4096,
            ObjectKind::Zap | ObjectKind::Master | ObjectKind::Directory | ObjectKind::DeleteQueue => 16_384,
            _ => 16,
        }
    }

    fn entry(&self, block: u64) -> Option<&RecentBlock> {
        let slot = block.checked_rem(self.0.len() as u64)?;
        self.0.get(slot as usize).filter(|entry| entry.number == block)
    }

    pub fn get(&self, block: u64) -> Option<Arc<Vec<u8>>> {
        self.entry(block)?.content.upgrade()
    }

    /// A block whose caller is about to change it, and its name in the cache. The entry goes.
    pub fn take(&mut self, block: u64) -> Option<(Arc<Vec<u8>>, Option<Key>)> {
        let (content, key) = self.entry(block).map(|entry| (entry.content.upgrade(), entry.key))?;
        self.forget(block);
        Some((content?, key))
    }

    pub fn put(
        &mut self,
        kind: ObjectKind,
        (block, key): (u64, Option<Key>),
        block_count: u64,
        data: &Arc<Vec<u8>>,
    ) {
        let slots = Self::entries_max(kind).min(block_count.next_power_of_two()).max(1);
        if slots as usize > self.0.len() {
            // Block numbers of few slots are those of more, so each finds its place again.
            let old = std::mem::replace(&mut self.0, vec![RecentBlock::default(); slots as usize]);
            old.into_iter().filter(|entry| entry.content.strong_count() > 0).for_each(|e| self.set(e));
        }
        self.set(RecentBlock { number: block, content: Arc::downgrade(data), key });
    }

    fn set(&mut self, entry: RecentBlock) {
        let slot = entry.number % self.0.len().max(1) as u64;
        if let Some(place) = self.0.get_mut(slot as usize) {
            *place = entry;
        }
    }

    fn forget(&mut self, block: u64) {
        let slots = self.0.len() as u64;
        let slot = block.checked_rem(slots).and_then(|slot| self.0.get_mut(slot as usize));
        if let Some(entry) = slot.filter(|entry| entry.number == block) {
            *entry = RecentBlock::default();
        }
    }

    /// Follows the tree to the state after a sync, which wrote blocks under these names.
    pub fn follow(&mut self, synced: &Frozen, names: &[(u64, Key)]) {
        let Frozen { dirty, dnode } = synced;
        if self.0.is_empty() || dirty.is_resized || dirty.destroyed {
            *self = RecentBlocks::default();
            return;
        }
        for (first, end) in dirty.freed.iter() {
            if end - first < self.0.len() as u64 {
                (first..end).for_each(|block| self.forget(block));
            } else {
                let freed = |entry: &&mut RecentBlock| (first..end).contains(&entry.number);
                self.0.iter_mut().filter(freed).for_each(|entry| *entry = RecentBlock::default());
            }
        }
        // A block without a new name was not stored as one, or keeps its pointer.
        dirty.blocks.keys().for_each(|block| self.forget(*block));
        for (block, key) in names {
            if let Some(data) = dirty.blocks.get(block).and_then(DirtyBlock::data) {
                self.put(dnode.kind, (*block, Some(*key)), dnode.block_count, data);
            }
        }
    }
}

impl State {
    /// The open txg's changes. Those of a quiesced txg are moved to `syncing` first.
    pub fn dirty(&mut self, txg: Txg) -> &mut Dirty {
        self.freeze_before(txg);
        self.open.get_or_insert_with(|| Dirty::new(txg))
    }

    /// Bytes in memory of new blocks in the open txg.
    pub fn open_bytes(&self) -> i64 {
        self.open.as_ref().map_or(0, |open| open.blocks.data_bytes().cast_signed())
    }

    /// Moves changes of txgs before `txg` to `syncing`.
    pub fn freeze_before(&mut self, txg: Txg) {
        if self.open.as_ref().is_some_and(|open| open.txg < txg) {
            assert!(self.syncing.is_none(), "a txg opens only after the previous sync has ended");
            self.syncing =
                self.open.take().map(|dirty| Arc::new(Frozen { dirty, dnode: self.dnode.clone() }));
        }
    }

    /// Changes that are not in the tree, newest first.
    pub fn layers(&self) -> impl Iterator<Item = &Dirty> + Clone {
        self.open.iter().chain(self.syncing.iter().map(|frozen| &frozen.dirty))
    }

    /// Estimates the stored bytes of blocks that `tx` frees: their share of the object's bytes, minus what is
    /// being freed already. The exact size is known only when the tree is read.
    pub fn note_freeing(&mut self, tx: &Tx, blocks: Range<u64>) -> u64 {
        let all = self.dnode.block_count.max(1);
        let freed = blocks.end.min(all).saturating_sub(blocks.start);
        let share = u128::from(self.dnode.used) * u128::from(freed) / u128::from(all);
        let so_far = self.layers().fold(0u64, |sum, dirty| sum.saturating_add(dirty.freeing));
        let left = self.dnode.used.saturating_sub(so_far);
        let freeing = u64::try_from(share).unwrap_or(u64::MAX).min(left);
        let dirty = self.dirty(tx.txg());
        dirty.freeing = dirty.freeing.saturating_add(freeing);
        freeing
    }

    /// What unsynced txgs know of a block, the newest first.
    pub fn dirty_content(&self, block: u64) -> DirtyContent {
        for dirty in self.layers() {
            match dirty.dirty_content(block) {
                DirtyContent::Unchanged => {}
                known => return known,
            }
        }
        DirtyContent::Unchanged
    }

    /// The newest change of the spill that is not in the tree.
    pub fn dirty_spill(&self) -> &SpillChange {
        let mut changes = self.layers().map(|dirty| &dirty.spill);
        changes.find(|spill| !matches!(spill, SpillChange::Unchanged)).unwrap_or(&SpillChange::Unchanged)
    }

    pub fn has_spill(&self) -> bool {
        match self.dirty_spill() {
            SpillChange::New(_) => true,
            SpillChange::Removed => false,
            SpillChange::Unchanged => !self.dnode.spill.is_hole(),
        }
    }

    /// The spill's content, if it is in memory.
    pub fn spill_in_memory(&self) -> Option<Arc<Vec<u8>>> {
        match self.dirty_spill() {
            SpillChange::New(spill) => Some(spill.clone()),
            SpillChange::Removed => None,
            SpillChange::Unchanged => self.recent_spill.upgrade(),
        }
    }

    /// A block that is in memory in full length.
    pub fn block_in_memory(&self, block: u64) -> Option<Arc<Vec<u8>>> {
        let content = match self.dirty_content(block) {
            DirtyContent::Data(data) => Some(data),
            DirtyContent::Zeros | DirtyContent::Given(_) | DirtyContent::Part(_) => None,
            DirtyContent::Unchanged => self.recent.get(block),
        };
        content.filter(|data| data.len() == self.dnode.block_bytes as usize)
    }

    /// Changes a block of which the txg of `tx` has all bytes already. Returns `change` if it has not. A cloned block, or a part of
    /// one, must be read first.
    pub fn change_dirty_block<F: FnOnce(&mut Arc<Vec<u8>>)>(
        &mut self,
        tx: &Tx,
        block: u64,
        change: F,
    ) -> Result<(), F> {
        let Some(open) = self.open.as_mut().filter(|open| open.txg == tx.txg() && !self.destroyed) else {
            return Err(change);
        };
        open.restored.remove(&block);
        open.blocks.change(block, change)
    }

    /// A block that is only in the tree and in memory, and its name in the cache. Its entry among the recent ones
    /// goes, as the caller is about to change it.
    pub fn take_clean(&mut self, block: u64) -> Option<(Arc<Vec<u8>>, Option<Key>)> {
        match self.dirty_content(block) {
            DirtyContent::Unchanged => self.recent.take(block),
            DirtyContent::Data(_) | DirtyContent::Given(_) | DirtyContent::Part(_) | DirtyContent::Zeros => {
                None
            }
        }
    }

    pub fn put(&mut self, txg: Txg, block: u64, data: Arc<Vec<u8>>) {
        self.put_block(txg, block, DirtyBlock::Data(data));
    }

    pub fn put_block(&mut self, txg: Txg, block: u64, new: DirtyBlock) {
        self.dnode.block_count = self.dnode.block_count.max(block + 1);
        let dirty = self.dirty(txg);
        dirty.restored.remove(&block);
        dirty.blocks.insert(block, new);
    }
}
