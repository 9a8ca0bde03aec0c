//! The bonus, and the spill block for attributes that do not fit it.

use super::Object;
use crate::dirty::SpillChange;
use crate::dnode::Dnode;
use crate::error::ObjectError;
use std::sync::Arc;
use terrane_format::block_ptr::Key;
use terrane_format::directory::SPILL;
use terrane_format::{BlockPtr, Feature};
use terrane_pool::Tx;

/// A stored spill that may have to be read from the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreadSpill {
    pub key: Key,
    pub stored_bytes: u32,
}

impl Object {
    /// Slots of its dnode, which never change.
    pub fn dnode_slots(&self) -> u8 {
        self.state.read().dnode.slots
    }

    /// The bonus, as the open txg sees it.
    pub fn bonus(&self) -> Arc<Vec<u8>> {
        self.state.read().dnode.bonus.clone()
    }

    /// Bonus bytes that fit; with a spill, one block pointer less.
    pub fn bonus_max(&self) -> usize {
        Dnode::bonus_max(self.state.read().dnode.slots)
    }

    /// Whether there is a spill block, as the open txg sees it.
    pub fn has_spill(&self) -> bool {
        self.state.read().has_spill()
    }

    /// The stored spill, if it has a block of its own that this object has not read.
    pub(crate) fn unread_spill(&self) -> Option<UnreadSpill> {
        let state = self.state.read();
        match &state.dnode.spill {
            BlockPtr::Normal(normal) if state.has_spill() && state.spill_in_memory().is_none() => {
                Some(UnreadSpill { key: Key::of(normal), stored_bytes: normal.psize })
            }
            _ => None,
        }
    }

    /// The spill, as it was set: at most 128 KiB. May read from the device.
    pub fn spill(&self) -> Result<Option<Arc<Vec<u8>>>, ObjectError> {
        let mut tried = None;
        loop {
            let ptr = {
                let state = self.state.read();
                if let Some(spill) = state.spill_in_memory() {
                    return Ok(Some(spill));
                }
                if !state.has_spill() {
                    return Ok(None);
                }
                state.dnode.spill.clone()
            };
            match self.table()?.pool().read(&ptr, self.tree_id().owner(0, SPILL)) {
                Ok(spill) => {
                    let mut state = self.state.write();
                    if state.dnode.spill == ptr {
                        state.recent_spill = Arc::downgrade(&spill);
                    }
                    return Ok(Some(spill));
                }
                // A txg may have synced in between, and GC may have reclaimed the old block.
                Err(_) if tried.as_ref() != Some(&ptr) => tried = Some(ptr),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets the bonus and leaves the spill as it is.
    pub fn set_bonus(self: &Arc<Self>, tx: &Tx, bonus: Vec<u8>) -> Result<(), ObjectError> {
        self.change(tx, |state| {
            check_fits("bonus", Dnode::bonus_capacity(state.dnode.slots, state.has_spill()), bonus.len())?;
            state.dnode.bonus = Arc::new(bonus);
            Ok(())
        })?
    }

    /// Sets bonus and spill; `None` frees the spill. An empty or all-zero spill counts as none. The caller has
    /// reserved the spill's length as `meta_bytes`. Refused if the bonus leaves no space for the pointer, or if
    /// the spill exceeds [`ObjectSet::spill_max`](crate::ObjectSet::spill_max).
    pub fn set_attributes(
        self: &Arc<Self>,
        tx: &Tx,
        bonus: Vec<u8>,
        spill: Option<Vec<u8>>,
    ) -> Result<(), ObjectError> {
        // Zeros would be stored as a hole, which a dnode's spill pointer must not be.
        let spill = spill.filter(|spill| spill.iter().any(|byte| *byte != 0));
        if let Some(spill) = &spill {
            let table = self.table()?;
            check_fits("spill", table.spill_max(), spill.len())?;
            table.pool().note_use(Feature::Xattr);
        }
        self.change(tx, |state| {
            check_fits("bonus", Dnode::bonus_capacity(state.dnode.slots, spill.is_some()), bonus.len())?;
            state.dnode.bonus = Arc::new(bonus);
            let new = match spill {
                Some(spill) if state.spill_in_memory().is_some_and(|current| *current == spill) => {
                    return Ok(());
                }
                Some(spill) => SpillChange::New(Arc::new(spill)),
                None if !state.has_spill() => return Ok(()),
                None => SpillChange::Removed,
            };
            state.dirty(tx.txg()).spill = new;
            Ok(())
        })?
    }
}

pub(crate) fn check_fits(what: &'static str, limit: usize, requested: usize) -> Result<(), ObjectError> {
    if requested > limit {
        return Err(ObjectError::TooBig { what, limit: limit as u64, requested: requested as u64 });
    }
    Ok(())
}
