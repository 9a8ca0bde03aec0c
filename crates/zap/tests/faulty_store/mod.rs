//! A store that behaves like an object, counts reads and changes, and fails where a test plans it.

use std::cell::Cell;
use std::sync::Arc;
use terrane_wire::Corrupt;
use terrane_zap::{MemStore, Store};

/// Like an object of a pool it ends with its last block: freeing that block makes it shorter.
#[derive(Clone)]
pub struct FaultyStore {
    pub inner: MemStore,
    /// Changes that succeed from now on; each later one is refused.
    pub changes_left: u32,
    /// Changes until one is refused; later ones succeed again.
    pub refused_once: Option<u32>,
    /// A refused change is made nevertheless: the result of a failed write is unknown.
    pub fails_after: bool,
    /// A read or change of this block reports damage.
    pub unreadable: Option<u64>,
    reads: Cell<u64>,
    changes: u64,
}

impl From<MemStore> for FaultyStore {
    fn from(inner: MemStore) -> FaultyStore {
        FaultyStore {
            inner,
            changes_left: u32::MAX,
            refused_once: None,
            fails_after: false,
            unreadable: None,
            reads: Cell::new(0),
            changes: 0,
        }
    }
}

impl FaultyStore {
    pub fn new() -> FaultyStore {
        FaultyStore::from(MemStore::new())
    }

    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Blocks read and changed by `work`.
    pub fn cost<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> (T, u64) {
        let before = self.reads.get() + self.changes;
        let outcome = work(self);
        (outcome, self.reads.get() + self.changes - before)
    }
}

impl FaultyStore {
    fn check_readable(&self, block: u64) -> Result<(), Corrupt> {
        match self.unreadable == Some(block) {
            true => Err(Corrupt::new(format!("block {block}"), "checksum", "right", "wrong")),
            false => Ok(()),
        }
    }

    fn change(&mut self, make: impl FnOnce(&mut MemStore) -> Result<(), Corrupt>) -> Result<(), Corrupt> {
        self.changes += 1;
        if self.refused_once == Some(0) {
            self.refused_once = None;
            return Err(Corrupt::new("store", "change", "one that is taken", "one that is refused"));
        }
        self.refused_once = self.refused_once.map(|left| left - 1);
        let left = self.changes_left.checked_sub(1);
        if left.is_some() || self.fails_after {
            make(&mut self.inner)?;
        }
        self.changes_left = left.ok_or_else(|| Corrupt::new("store", "changes left", "some", "none"))?;
        Ok(())
    }
}

impl Store for FaultyStore {
    type Error = Corrupt;

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn block_count(&self) -> u64 {
        self.inner.block_count()
    }

    fn read(&self, block: u64) -> Result<Arc<Vec<u8>>, Corrupt> {
        self.reads.set(self.reads.get() + 1);
        self.check_readable(block)?;
        self.inner.read(block)
    }

    fn modify(&mut self, block: u64, change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), Corrupt> {
        self.check_readable(block)?;
        self.change(|inner| inner.modify(block, change))
    }

    fn set_block_size(&mut self, bytes: usize) -> Result<(), Corrupt> {
        self.change(|inner| inner.set_block_size(bytes))
    }

    fn free(&mut self, block: u64) -> Result<(), Corrupt> {
        self.change(|inner| match block + 1 == inner.block_count() {
            true => inner.truncate(block),
            false => inner.free(block),
        })
    }

    fn truncate(&mut self, blocks: u64) -> Result<(), Corrupt> {
        self.change(|inner| inner.truncate(blocks))
    }
}
