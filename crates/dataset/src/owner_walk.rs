//! Counting objects for their owners that an older version, or lost tables, left uncounted.
//!
//! Every object that is stored is counted. So the walk has uncounted ones stored again, block by block of dnodes,
//! beside everything else. It is done when a pass over all blocks finds none.

use crate::dataset::{Dataset, MASTER};
use crate::error::DatasetError;
use terrane_format::Feature;
use terrane_object::dnode::SLOTS_PER_BLOCK;
use terrane_object::owner_header::OwnerEpoch;
use terrane_object::{ObjectError, slot_of};
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

/// Blocks of dnodes in one call.
const BLOCKS_PER_STEP: u32 = 64;
/// Cost of storing the objects of one block again.
const COST: Cost = Cost { meta_blocks: 4, objects: SLOTS_PER_BLOCK as u32, ..Cost::NOTHING };

/// Progress of the walk.
#[derive(Debug, Default)]
pub(crate) struct OwnerWalk {
    epoch: Option<OwnerEpoch>,
    next: ObjectId,
    /// This pass has found uncounted objects.
    found: bool,
    /// Blocks of this pass that could not be read.
    unreadable: u64,
    /// Only objects in unreadable blocks are left. The next mount tries again.
    is_given_up: bool,
}

impl Dataset {
    /// Counts a part of the uncounted objects for their owners. False: nothing is left that can be counted. To be
    /// called by a background thread that has joined no txg.
    pub fn count_owners(&self) -> Result<bool, DatasetError> {
        let set = self.object_set();
        if set.pool().is_read_only() || !set.pool().has(Feature::Owners) {
            return Ok(false);
        }
        let mut walk = self.owner_walk.lock();
        let Some(epoch) = set.owner_epoch() else {
            // The first sync makes the tables.
            self.touch_master()?;
            set.commit()?;
            return Ok(set.owner_epoch().is_some());
        };
        if epoch.is_complete {
            return Ok(false);
        }
        if walk.epoch != Some(epoch) {
            *walk = OwnerWalk { epoch: Some(epoch), ..OwnerWalk::default() };
        }
        if walk.is_given_up {
            return Ok(false);
        }
        for _ in 0..BLOCKS_PER_STEP {
            match set.uncounted_from(walk.next) {
                Ok(Some((objects, next))) => {
                    self.store_again(&objects)?;
                    walk.found |= !objects.is_empty();
                    walk.next = next;
                }
                Ok(None) => return self.end_pass(&mut walk, epoch),
                Err(ObjectError::Pool(PoolError::Corrupt(_))) => {
                    walk.unreadable += 1;
                    walk.next = ObjectId((slot_of(walk.next).block + 1) * SLOTS_PER_BLOCK);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn end_pass(&self, walk: &mut OwnerWalk, epoch: OwnerEpoch) -> Result<bool, DatasetError> {
        let OwnerWalk { found, unreadable, .. } = *walk;
        *walk = OwnerWalk { epoch: Some(epoch), ..OwnerWalk::default() };
        self.object_set().commit()?;
        if found {
            return Ok(true);
        }
        if unreadable > 0 {
            log::warn!("owners of objects in {unreadable} unreadable blocks are not counted");
            walk.is_given_up = true;
            return Ok(false);
        }
        self.object_set().note_owners_complete(epoch);
        self.touch_master()?;
        Ok(false)
    }

    fn store_again(&self, objects: &[ObjectId]) -> Result<(), DatasetError> {
        if objects.is_empty() {
            return Ok(());
        }
        let set = self.object_set();
        let tx = set.begin(COST)?;
        for id in objects {
            match set.hold(*id).and_then(|object| object.touch(&tx)) {
                // It was destroyed meanwhile.
                Err(ObjectError::NotFound(_)) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn touch_master(&self) -> Result<(), DatasetError> {
        let tx = self.object_set().begin(COST)?;
        Ok(self.object_set().hold(MASTER)?.touch(&tx)?)
    }
}
