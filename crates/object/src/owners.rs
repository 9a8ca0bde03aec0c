//! Counts by owner: what the objects of each user, group and project take.
//!
//! The object layer knows no owners. The layer above reads them from a dnode's bonus ([`OwnerPolicy`]). Each sync
//! compares the dnodes that it stores with those stored before. The differences go into three tables, whose
//! dnodes are in the set's header. So a table belongs to the same state of the set as the dnodes that it counts.
//!
//! New tables begin a new *epoch*, and each dnode says which epoch counts it. Objects of older pools, or counted
//! by tables that were lost, are therefore never subtracted from tables that lack them.
//!
//! Invariant: after each sync, the tables hold the sums over all stored dnodes of their epoch.

use crate::dirty::Ranges;
use crate::dnode::BLOCK_BYTES_MIN;
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::object::Object;
use crate::owner_header::OwnerKind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The owners of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// Uid.
    pub user: u32,
    /// Gid.
    pub group: u32,
    /// Project id; 0 if the object has none.
    pub project: u32,
}

impl Owners {
    /// Its id of each kind.
    pub fn ids(&self) -> [(OwnerKind, u32); 3] {
        [(OwnerKind::User, self.user), (OwnerKind::Group, self.group), (OwnerKind::Project, self.project)]
    }
}

/// What an owner has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCount {
    /// Space of its objects: all blocks, all copies, in whole granules, without the dnodes.
    pub bytes: u64,
    /// Objects.
    pub objects: u64,
}

impl OwnerCount {
    /// The count after a change, and whether it would have been below 0.
    pub fn after(&self, change: &OwnerChange) -> (OwnerCount, bool) {
        let bytes = i128::from(self.bytes).saturating_add(change.bytes);
        let objects = i128::from(self.objects).saturating_add(change.objects);
        let clamp = |sum: i128| u64::try_from(sum.max(0)).unwrap_or(u64::MAX);
        (OwnerCount { bytes: clamp(bytes), objects: clamp(objects) }, bytes < 0 || objects < 0)
    }
}

/// A change of an owner's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerChange {
    /// Bytes that came, minus those that went.
    pub bytes: i128,
    /// The same for objects.
    pub objects: i128,
}

/// Changes of one table.
pub type OwnerChanges = BTreeMap<u32, OwnerChange>;

/// An owner's new count after a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedOwner {
    /// Whom the id belongs to.
    pub kind: OwnerKind,
    /// The id.
    pub id: u32,
    /// Its new count.
    pub count: OwnerCount,
}

/// Tells the owners of objects, and knows the encoding of the tables.
pub trait OwnerPolicy: Send + Sync {
    /// The owners of an object. `None`: it has none, and is not counted. The answer must follow from the arguments
    /// alone.
    fn owners(&self, kind: ObjectKind, bonus: &[u8]) -> Option<Owners>;

    /// Applies changes to a table. Returns the new counts.
    fn apply(
        &self,
        table: &mut OwnerTable<'_>,
        changes: &OwnerChanges,
    ) -> Result<Vec<(u32, OwnerCount)>, ObjectError>;
}

/// Sums of changes, by table.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub tables: [OwnerChanges; 3],
}

impl Tally {
    /// Adds the difference between two states of an object.
    pub fn add_difference(&mut self, before: Option<(Owners, u64)>, after: Option<(Owners, u64)>) {
        if before == after {
            return;
        }
        for (state, sign) in [(before, -1), (after, 1)] {
            let Some((owners, used)) = state else { continue };
            for (table, (_, id)) in self.tables.iter_mut().zip(owners.ids()) {
                let change = table.entry(id).or_default();
                change.bytes = change.bytes.saturating_add(i128::from(used) * sign);
                change.objects = change.objects.saturating_add(sign);
            }
        }
    }

    /// Drops changes that cancel out.
    pub fn simplify(&mut self) {
        let is_change = |_: &u32, change: &mut OwnerChange| *change != OwnerChange::default();
        self.tables.iter_mut().for_each(|table| table.retain(is_change));
    }
}

/// A table while a sync changes it: stored blocks, and new ones in memory.
pub struct OwnerTable<'a> {
    object: &'a Object,
    /// Nothing stored counts: the table is begun anew.
    ignores_stored: bool,
    block_bytes: u32,
    block_count: u64,
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    freed: Ranges,
}

/// The changes of a table.
pub(crate) struct TableChange {
    pub block_bytes: u32,
    pub block_count: u64,
    pub blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    pub freed: Ranges,
}

impl<'a> OwnerTable<'a> {
    /// The table in an object that only syncs change. `is_new`: without its entries.
    pub(crate) fn new(object: &'a Object, is_new: bool) -> OwnerTable<'a> {
        let mut table = OwnerTable {
            object,
            ignores_stored: is_new,
            block_bytes: object.block_size(),
            block_count: object.block_count(),
            blocks: BTreeMap::new(),
            freed: Ranges::default(),
        };
        if is_new {
            table.truncate(0);
            table.block_bytes = BLOCK_BYTES_MIN;
        }
        table
    }

    /// Bytes of each block.
    pub fn block_size(&self) -> u32 {
        self.block_bytes
    }

    /// Highest block ever written and not cut off, plus one.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    /// A block, always of the block size.
    pub fn read(&self, block: u64) -> Result<Arc<Vec<u8>>, ObjectError> {
        if let Some(data) = self.blocks.get(&block) {
            return Ok(data.clone());
        }
        let is_gone = self.ignores_stored || self.freed.contains(block) || block >= self.object.block_count();
        if is_gone { Ok(Arc::new(vec![0; self.block_bytes as usize])) } else { self.object.read_block(block) }
    }

    /// Changes a block in memory.
    pub fn modify(&mut self, block: u64, change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), ObjectError> {
        let mut data = self.read(block)?;
        change(Arc::make_mut(&mut data));
        self.blocks.insert(block, data);
        self.block_count = self.block_count.max(block.saturating_add(1));
        Ok(())
    }

    /// Changes the block size of a table with at most one block. The block is cut or extended with zeros.
    pub fn set_block_size(&mut self, bytes: u32) -> Result<(), ObjectError> {
        if self.block_count > 1 {
            let what = "blocks of a table whose block size changes";
            return Err(ObjectError::TooBig { what, limit: 1, requested: self.block_count });
        }
        if self.block_count == 1 && bytes != self.block_bytes {
            let mut data = self.read(0)?;
            Arc::make_mut(&mut data).resize(bytes as usize, 0);
            self.blocks.insert(0, data);
        }
        self.block_bytes = bytes;
        Ok(())
    }

    /// Makes a block a hole.
    pub fn free(&mut self, block: u64) {
        let end = block.saturating_add(1);
        if end == self.block_count {
            return self.truncate(block);
        }
        self.blocks.remove(&block);
        self.freed.add(block, end);
    }

    /// Frees every block from this number on.
    pub fn truncate(&mut self, blocks: u64) {
        self.blocks.split_off(&blocks);
        self.freed.add(blocks, u64::MAX);
        self.block_count = self.block_count.min(blocks);
    }

    /// What is to be stored; `None`: nothing.
    pub(crate) fn into_change(self) -> Option<TableChange> {
        let OwnerTable { block_bytes, block_count, blocks, freed, .. } = self;
        let is_changed = !blocks.is_empty() || !freed.is_empty();
        is_changed.then_some(TableChange { block_bytes, block_count, blocks, freed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_clamped_at_0() {
        let count = OwnerCount { bytes: 10, objects: 1 };
        let less = |bytes, objects| count.after(&OwnerChange { bytes, objects });
        assert_eq!(less(-10, -1), (OwnerCount::default(), false));
        assert_eq!(less(-11, 0), (OwnerCount { bytes: 0, objects: 1 }, true));
        assert_eq!(less(i128::MAX, -2), (OwnerCount { bytes: u64::MAX, objects: 0 }, true));
    }

    #[test]
    fn changes_that_cancel_out_leave_nothing() {
        let owners = |user| Owners { user, group: 5, project: 0 };
        let mut tally = Tally::default();
        tally.add_difference(Some((owners(1), 100)), Some((owners(2), 100)));
        tally.add_difference(Some((owners(3), 7)), Some((owners(3), 7)));
        tally.simplify();
        let user = |id: u32| tally.tables[0].get(&id).copied();
        assert_eq!(user(1), Some(OwnerChange { bytes: -100, objects: -1 }));
        assert_eq!(user(2), Some(OwnerChange { bytes: 100, objects: 1 }));
        assert_eq!((user(3), tally.tables[1].len(), tally.tables[2].len()), (None, 0, 0));
    }
}
