//! Creating and destroying objects, and their numbers.

use super::ObjectSet;
use crate::dnode::{Dnode, SLOT_BYTES, SLOTS_MAX, SLOTS_PER_BLOCK, check_block_bytes, dnodes_in};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::object::{Object, check_fits};
use crate::object_alloc::{NUMBERS_END, ObjectAllocator, add_slots, is_possible};
use std::sync::Arc;
use terrane_format::Feature;
use terrane_pool::Tx;
use terrane_store::PoolError;
use terrane_wire::{IdMap, ObjectId};

/// Dnode blocks that one creation searches for free slots.
const SEARCH_BLOCKS: u32 = 4;

/// A new object.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    /// The use of the object.
    pub kind: ObjectKind,
    /// Block size in bytes, a multiple of 512.
    pub block_size: u32,
    /// Slots of 512 bytes, 1 to 32.
    pub dnode_slots: u8,
    /// The bonus. The slots and the spill pointer, if any, limit its length.
    pub bonus: Vec<u8>,
    /// Attributes that do not fit the bonus: see [`Object::set_attributes`].
    pub spill: Option<Vec<u8>>,
}

impl ObjectSet {
    /// Creates an object. `TooBig`: the specification exceeds a limit, or no number is left. `Invalid`: no object
    /// can have these sizes.
    pub fn create(&self, tx: &Tx, spec: ObjectSpec) -> Result<Arc<Object>, ObjectError> {
        self.create_as(tx, spec, None)
    }

    /// Creates an object with a given number, for a replay of changes. The number may be withheld.
    ///
    /// # Errors
    /// As [`create`](Self::create), and `NumberTaken`.
    pub fn create_numbered(
        &self,
        tx: &Tx,
        spec: ObjectSpec,
        id: ObjectId,
    ) -> Result<Arc<Object>, ObjectError> {
        self.create_as(tx, spec, Some(id))
    }

    fn create_as(
        &self,
        tx: &Tx,
        spec: ObjectSpec,
        number: Option<ObjectId>,
    ) -> Result<Arc<Object>, ObjectError> {
        self.check_writable()?;
        check_block_bytes(spec.block_size, self.pool.max_block())?;
        let (what, requested) = ("dnode slots", u64::from(spec.dnode_slots));
        if spec.dnode_slots > SLOTS_MAX {
            return Err(ObjectError::TooBig { what, limit: u64::from(SLOTS_MAX), requested });
        }
        if spec.dnode_slots == 0 {
            return Err(ObjectError::Invalid { what, expected: "1 or more", requested });
        }
        // All checks come before a number is taken.
        let bonus_capacity = Dnode::bonus_capacity(spec.dnode_slots, spec.spill.is_some());
        check_fits("bonus", bonus_capacity, spec.bonus.len())?;
        if let Some(spill) = &spec.spill {
            check_fits("spill", self.spill_max(), spill.len())?;
        }
        let slots = u32::from(spec.dnode_slots);
        let id = match number {
            Some(id) => self.take_given(id, slots)?,
            None => ObjectId(self.take_number(slots)?),
        };
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
        let mut allocator = self.allocator.lock();
        if let Some(number) = allocator.take_free(slots) {
            return Ok(number);
        }
        if allocator.should_search() {
            self.search_for_free(&mut allocator)?;
            if let Some(number) = allocator.take_free(slots) {
                return Ok(number);
            }
        }
        let requested = allocator.high_water.saturating_add(slots.into());
        let too_big =
            ObjectError::TooBig { what: "end of the object numbers", limit: NUMBERS_END, requested };
        allocator.take_new(slots).ok_or(too_big)
    }

    fn take_given(&self, id: ObjectId, slots: u32) -> Result<ObjectId, ObjectError> {
        let taken = ObjectError::NumberTaken(id);
        if !is_possible(id.0, slots) {
            return Err(taken);
        }
        let mut allocator = self.allocator.lock();
        let stored = self.stored_slots(id.0 / SLOTS_PER_BLOCK)?;
        if allocator.take_given(id.0, slots, stored) { Ok(id) } else { Err(taken) }
    }

    /// The slots of a dnode block that stored dnodes use.
    fn stored_slots(&self, block: u64) -> Result<u32, ObjectError> {
        if block >= self.dnodes.block_count() {
            return Ok(0);
        }
        self.slots_in(block, &self.dnodes.read_block(block)?)
    }

    fn slots_in(&self, block: u64, raw: &[u8]) -> Result<u32, ObjectError> {
        let at = format_args!("object set {} dnode block {block}", self.id);
        let mut used = IdMap::default();
        for (offset, dnode) in dnodes_in(raw, &at)? {
            add_slots(&mut used, (offset / SLOT_BYTES) as u64, dnode.slots);
        }
        Ok(used.get(&0).copied().unwrap_or(0))
    }

    fn search_for_free(&self, allocator: &mut ObjectAllocator) -> Result<(), ObjectError> {
        let mut found = false;
        for _ in 0..SEARCH_BLOCKS {
            let Some(block) = allocator.search_block() else { break };
            let raw = match self.dnodes.read_block(block) {
                // No object can be created in a damaged block.
                Err(ObjectError::Pool(PoolError::Corrupt(_))) => continue,
                raw => raw?,
            };
            found |= allocator.add_unused(block, !self.slots_in(block, &raw)?);
        }
        allocator.end_search(found);
        Ok(())
    }

    /// Withholds those of these numbers that no object has, while this set is open. They are known from changes
    /// that were lost.
    pub fn withhold(&self, numbers: impl IntoIterator<Item = u64>) {
        // A number whose dnode is unreadable is withheld as well, which is harmless.
        let is_free = |number: &u64| !matches!(self.stored_dnode(ObjectId(*number)), Ok(Some(_)));
        let unused: Vec<u64> = numbers.into_iter().filter(is_free).collect();
        self.allocator.lock().withhold(unused);
    }

    /// Withholds these slots from all objects, except those that are created with a number, until
    /// [`release_slots`](Self::release_slots).
    pub fn withhold_slots(&self, slots: impl IntoIterator<Item = u64>) {
        self.allocator.lock().withhold(slots);
    }

    /// Ends [`withhold_slots`](Self::withhold_slots) for these slots.
    pub fn release_slots(&self, slots: impl IntoIterator<Item = u64>) {
        self.allocator.lock().release(slots);
    }

    /// Destroys the object and frees all its blocks; large ones over many txgs.
    pub fn destroy(&self, tx: &Tx, object: &Arc<Object>) -> Result<(), ObjectError> {
        let counted = self.counted_use(object);
        object.destroy(tx)?;
        match counted {
            Some((_, Some(false))) | None => {}
            Some((feature, Some(true))) => self.pool.change_uses(tx, feature, -1),
            Some((feature, None)) => self.pool.lose_uses(feature, super::UNREADABLE_USE),
        }
        let mut allocator = self.allocator.lock();
        // The header's count may be damaged.
        allocator.objects = allocator.objects.saturating_sub(1);
        Ok(())
    }

    /// The feature that an object may use, and whether it does. `None` instead: it cannot be read.
    fn counted_use(&self, object: &Arc<Object>) -> Option<(Feature, Option<bool>)> {
        let policy = self.free_policy.as_ref().filter(|_| object.block_count() == 1)?;
        let feature = policy.counted_feature(object.kind())?;
        Some((feature, object.read_block(0).ok().and_then(|block| policy.is_use(&block))))
    }

    /// The number that the next object with so many slots will most likely get.
    pub fn likely_number(&self, slots: u8) -> ObjectId {
        ObjectId(self.allocator.lock().likely(u32::from(slots)))
    }
}
