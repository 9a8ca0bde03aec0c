//! The pointer to a block, found by the block's owner.

use super::{FREE_QUEUE, HEADER, ObjectSet};
use crate::error::ObjectError;
use crate::owner_header::OwnerKind;
use crate::tree::lookup;
use terrane_format::directory::SPILL;
use terrane_format::{BlockPtr, Owner};
use terrane_wire::ObjectId;

impl ObjectSet {
    /// The pointer to the block that this owner has now, as of the last sync. A hole: it has none. The owner may be
    /// any: a directory of a zone can lie.
    pub fn pointer_of(&self, owner: Owner) -> Result<BlockPtr, ObjectError> {
        let Owner::Block { objset, object: number, level, block } = owner else {
            return Ok(BlockPtr::default());
        };
        if objset != self.id().0 {
            return Ok(BlockPtr::default());
        }
        if number == HEADER {
            return Ok(self.root());
        }
        let held = match number {
            0 => None,
            number if number == FREE_QUEUE.0 => None,
            number if OwnerKind::of_table(ObjectId(number)).is_some() => None,
            number => match self.hold(ObjectId(number)) {
                Ok(held) => Some(held),
                Err(ObjectError::NotFound(_)) => return Ok(BlockPtr::default()),
                Err(error) => return Err(error),
            },
        };
        let object = match &held {
            Some(held) => held,
            None if number == 0 => &self.dnodes,
            None => match OwnerKind::of_table(ObjectId(number)) {
                Some(kind) => self.owners.table(kind),
                None => &self.free_queue,
            },
        };
        let dnode = object.dnode();
        if block == SPILL {
            return Ok(dnode.spill);
        }
        Ok(lookup(self.pool(), object.tree_id(), &dnode, level, block)?)
    }
}
