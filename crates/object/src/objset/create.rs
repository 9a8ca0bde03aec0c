//! Creating and destroying objects, and their numbers.

use super::ObjectSet;
use crate::dnode::{Dnode, SLOT_BYTES, SLOTS_MAX, check_block_bytes, dnodes_in};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::numbers::{NUMBERS_END, Numbers, add_slots};
use crate::object::{Object, check_room};
use std::sync::Arc;
use terrane_pool::Tx;
use terrane_store::PoolError;
use terrane_wire::{NumberMap, ObjectId};

/// Dnode blocks that one creation searches for free slots.
const SEARCH_BLOCKS: u32 = 4;

/// A new object.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    pub kind: ObjectKind,
    /// Block size in bytes, a multiple of 512.
    pub block_size: u32,
    /// Slots of 512 bytes, 1 to 32.
    pub dnode_slots: u8,
    pub bonus: Vec<u8>,
    /// Attributes that do not fit the bonus: see [`Object::set_attributes`].
    pub spill: Option<Vec<u8>>,
}

impl ObjectSet {
    /// Creates an object. `TooBig`: the specification exceeds a limit, or no number is left.
    pub fn create(&self, tx: &Tx, spec: ObjectSpec) -> Result<Arc<Object>, ObjectError> {
        check_block_bytes(spec.block_size, self.pool.max_block())?;
        if spec.dnode_slots == 0 || spec.dnode_slots > SLOTS_MAX {
            return Err(ObjectError::TooBig {
                what: "dnode slots",
                limit: u64::from(SLOTS_MAX),
                asked: u64::from(spec.dnode_slots),
            });
        }
        // All checks come before a number is taken.
        let room = Dnode::bonus_room(spec.dnode_slots, spec.spill.is_some());
        check_room("bonus", room, spec.bonus.len())?;
        if let Some(spill) = &spec.spill {
            check_room("spill", self.spill_max(), spill.len())?;
        }
        let id = ObjectId(self.take_number(u32::from(spec.dnode_slots))?);
        let dnode = Dnode::new(spec.kind, spec.dnode_slots, spec.block_size, tx.txg());
        let object = self.table.add(id, dnode);
        object.set_attributes(tx, spec.bonus, spec.spill)?;
        Ok(object)
    }

    /// Maximum spill of an object in bytes; 0 in a pool that older versions must be able to read.
    pub fn spill_max(&self) -> usize {
        self.table.spill_max()
    }

    fn take_number(&self, slots: u32) -> Result<u64, ObjectError> {
        let mut numbers = self.numbers.lock();
        if let Some(number) = numbers.take_free(slots) {
            return Ok(number);
        }
        if numbers.wants_search() {
            self.search_for_free(&mut numbers)?;
            if let Some(number) = numbers.take_free(slots) {
                return Ok(number);
            }
        }
        let (limit, asked) = (NUMBERS_END - 1, numbers.high_water);
        numbers.take_new(slots).ok_or(ObjectError::TooBig { what: "object numbers", limit, asked })
    }

    fn search_for_free(&self, numbers: &mut Numbers) -> Result<(), ObjectError> {
        let mut found = false;
        for _ in 0..SEARCH_BLOCKS {
            let Some(block) = numbers.search_block() else { break };
            let raw = match self.dnodes.read_block(block) {
                // No object can be created in a damaged block.
                Err(ObjectError::Pool(PoolError::Corrupt(_))) => continue,
                raw => raw?,
            };
            let at = format_args!("object set {} dnode block {block}", self.id);
            let mut used = NumberMap::default();
            for (offset, dnode) in dnodes_in(&raw, &at)? {
                add_slots(&mut used, (offset / SLOT_BYTES) as u64, dnode.slots);
            }
            found |= numbers.found(block, !used.get(&0).copied().unwrap_or(0));
        }
        numbers.searched(found);
        Ok(())
    }

    /// Withholds those of these numbers that no object has, while this set is open. They are known from changes
    /// that were lost.
    pub fn withhold(&self, numbers: impl IntoIterator<Item = u64>) {
        // A number whose dnode is unreadable is withheld as well, which is harmless.
        let is_free = |number: &u64| !matches!(self.stored_dnode(ObjectId(*number)), Ok(Some(_)));
        let unused: Vec<u64> = numbers.into_iter().filter(is_free).collect();
        self.numbers.lock().withhold(unused);
    }

    /// Destroys the object and frees all its blocks; large ones over many txgs.
    pub fn destroy(&self, tx: &Tx, object: &Arc<Object>) -> Result<(), ObjectError> {
        object.destroy(tx)?;
        let mut numbers = self.numbers.lock();
        // The header's count may be damaged.
        numbers.objects = numbers.objects.saturating_sub(1);
        Ok(())
    }

    /// The number that the next object with so many slots will most likely get.
    pub fn likely_number(&self, slots: u8) -> ObjectId {
        ObjectId(self.numbers.lock().likely(u32::from(slots)))
    }
}
