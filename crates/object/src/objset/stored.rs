//! State of a set as of the last sync, read from its dnodes.

use super::ObjectSet;
use crate::dnode::{
    DNODE_BLOCK_BYTES, Dnode, DnodeSlot, SLOT_BYTES, SLOTS_PER_BLOCK, dnode_at, dnodes_in, slot_of,
};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use std::collections::{BTreeMap, BTreeSet};
use terrane_wire::{ObjectId, Txg};

impl ObjectSet {
    pub(super) fn stored_dnode(&self, id: ObjectId) -> Result<Option<Dnode>, ObjectError> {
        let DnodeSlot { block, offset } = slot_of(id);
        if id.0 == 0 || block >= self.dnodes.block_count() {
            return Ok(None);
        }
        let raw = self.dnodes.read_block(block)?;
        Ok(dnode_at(&raw, offset, &format_args!("object set {} dnode block {block}", self.id))?)
    }

    /// Calls `each` for all objects as of the last sync, block by block, for `check`. Returns the unreadable
    /// blocks.
    pub fn for_each_dnode(&self, each: &mut dyn FnMut(ObjectId, Dnode)) -> Vec<(u64, ObjectError)> {
        let mut failed = Vec::new();
        let mut next = Ok(Some(0));
        while let Ok(Some(offset)) = next {
            let block = offset / u64::from(DNODE_BLOCK_BYTES);
            let at = format!("object set {} dnode block {block}", self.id);
            let found = self.dnodes.read_block(block).and_then(|raw| Ok(dnodes_in(&raw, &at)?));
            match found {
                Ok(found) => {
                    for (offset, dnode) in found {
                        each(ObjectId(block * SLOTS_PER_BLOCK + (offset / SLOT_BYTES) as u64), dnode);
                    }
                }
                Err(error) => failed.push((block, error)),
            }
            // Holes are skipped: the block count may be damaged, and huge.
            next = self.dnodes.next_data((block + 1) * u64::from(DNODE_BLOCK_BYTES));
        }
        if let Err(error) = next {
            failed.push((self.dnodes.block_count(), error));
        }
        failed
    }

    /// Finds objects whose dnodes differ from those in `old`, the state of this set as of txg `since`. The newer state is that of the last
    /// sync. Only dnode blocks that were written after `since` are read.
    pub fn objects_changed_since(
        &self,
        old: &ObjectSet,
        since: Txg,
        each: &mut dyn FnMut(ObjectId),
    ) -> Result<(), ObjectError> {
        let bytes = u64::from(DNODE_BLOCK_BYTES);
        let mut from = 0;
        while from != u64::MAX {
            let changes = self.dnodes.changes_since(since.next(), from, 256 * bytes)?;
            from = changes.scanned_to;
            for range in changes.written {
                for block in range.start / bytes..range.end.div_ceil(bytes) {
                    let (before, after) = (old.dnodes_of_block(block)?, self.dnodes_of_block(block)?);
                    let numbers: BTreeSet<&u64> = before.keys().chain(after.keys()).collect();
                    let changed =
                        numbers.into_iter().filter(|number| before.get(number) != after.get(number));
                    changed.for_each(|number| each(ObjectId(*number)));
                }
            }
        }
        Ok(())
    }

    fn dnodes_of_block(&self, block: u64) -> Result<BTreeMap<u64, Vec<u8>>, ObjectError> {
        if block >= self.dnodes.block_count() {
            return Ok(BTreeMap::new());
        }
        let raw = self.dnodes.read_block(block)?;
        let at = format!("object set {} dnode block {block}", self.id);
        let number = |offset: usize| block * SLOTS_PER_BLOCK + (offset / SLOT_BYTES) as u64;
        let stored = |(offset, dnode): (usize, Dnode)| {
            let bytes = raw.get(offset..offset + dnode.stored_bytes()).unwrap_or(&[]);
            (number(offset), bytes.to_vec())
        };
        Ok(dnodes_in(&raw, &at)?.into_iter().map(stored).collect())
    }

    /// Files in the first dnode block with an object numbered `first` or higher, as of the last sync. Also
    /// returns the first number behind that block. `None`: there are no more.
    pub fn files_from(&self, first: ObjectId) -> Result<Option<(Vec<ObjectId>, ObjectId)>, ObjectError> {
        let Some(offset) = self.dnodes.next_data(first.0.saturating_mul(SLOT_BYTES as u64))? else {
            return Ok(None);
        };
        let block = offset / u64::from(DNODE_BLOCK_BYTES);
        let raw = self.dnodes.read_block(block)?;
        let found = dnodes_in(&raw, &format_args!("object set {} dnode block {block}", self.id))?;
        let files = found.into_iter().filter(|(_, dnode)| dnode.kind == ObjectKind::File);
        let number = |offset: usize| ObjectId(block * SLOTS_PER_BLOCK + (offset / SLOT_BYTES) as u64);
        let files = files.map(|(offset, _)| number(offset)).collect();
        Ok(Some((files, ObjectId((block + 1) * SLOTS_PER_BLOCK))))
    }
}
