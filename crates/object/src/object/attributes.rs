//! The bonus, and the spill for what does not fit it.

use super::Object;
use crate::dirty::Spill;
use crate::dnode::Dnode;
use crate::error::ObjectError;
use std::sync::Arc;
use terrane_format::directory::SPILL;
use terrane_pool::Tx;

impl Object {
    pub fn bonus(&self) -> Arc<Vec<u8>> {
        self.state.read().dnode.bonus.clone()
    }

    /// Bytes of bonus that fit; beside a spill, a block pointer less.
    pub fn bonus_max(&self) -> usize {
        Dnode::bonus_max(self.state.read().dnode.slots)
    }

    /// Whether there is a spill block, as the open group sees it.
    pub fn has_spill(&self) -> bool {
        self.state.read().has_spill()
    }

    /// What does not fit the bonus, as it was set: at most 128 KiB. Costs a read where nothing has it in memory.
    pub fn spill(&self) -> Result<Option<Arc<Vec<u8>>>, ObjectError> {
        let mut tried = None;
        loop {
            let ptr = {
                let state = self.state.read();
                if let Some(held) = state.held_spill() {
                    return Ok(Some(held));
                }
                if !state.has_spill() {
                    return Ok(None);
                }
                state.dnode.spill.clone()
            };
            match self.table()?.pool().read(&ptr, self.whose().owner(0, SPILL)) {
                Ok(spill) => {
                    let mut state = self.state.write();
                    if state.dnode.spill == ptr {
                        state.recent_spill = Arc::downgrade(&spill);
                    }
                    return Ok(Some(spill));
                }
                // A group may have synced since, and what it replaced was collected.
                Err(_) if tried.as_ref() != Some(&ptr) => tried = Some(ptr),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets the bonus beside the spill that there is, or is not.
    pub fn set_bonus(self: &Arc<Self>, tx: &Tx, bonus: Vec<u8>) -> Result<(), ObjectError> {
        self.change(tx, |state| {
            check_room("bonus", Dnode::bonus_room(state.dnode.slots, state.has_spill()), bonus.len())?;
            state.dnode.bonus = Arc::new(bonus);
            Ok(())
        })?
    }

    /// Sets the bonus and the spill; `None` frees the spill. One that is empty, or zeros, is none. Who sets a spill has reserved its length
    /// as `meta_bytes`. Refused if the bonus does not leave room for the pointer, or the spill is larger than the set takes
    /// ([`ObjectSet::spill_max`](crate::ObjectSet::spill_max)).
    pub fn set_attributes(
        self: &Arc<Self>,
        tx: &Tx,
        bonus: Vec<u8>,
        spill: Option<Vec<u8>>,
    ) -> Result<(), ObjectError> {
        // Zeros would be stored as a hole, which no dnode may name.
        let spill = spill.filter(|spill| spill.iter().any(|byte| *byte != 0));
        if let Some(spill) = &spill {
            check_room("spill", self.table()?.spill_max(), spill.len())?;
        }
        self.change(tx, |state| {
            check_room("bonus", Dnode::bonus_room(state.dnode.slots, spill.is_some()), bonus.len())?;
            state.dnode.bonus = Arc::new(bonus);
            let new = match spill {
                Some(spill) if state.held_spill().is_some_and(|held| *held == spill) => return Ok(()),
                Some(spill) => Spill::New(Arc::new(spill)),
                None if !state.has_spill() => return Ok(()),
                None => Spill::Gone,
            };
            state.dirty(tx.txg()).spill = new;
            Ok(())
        })?
    }
}

pub(crate) fn check_room(what: &'static str, limit: usize, asked: usize) -> Result<(), ObjectError> {
    if asked > limit {
        return Err(ObjectError::TooBig { what, limit: limit as u64, asked: asked as u64 });
    }
    Ok(())
}
