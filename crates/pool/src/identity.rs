//! A pool gets another name, or a copy becomes a pool of its own.
//!
//! The id that a pool was made with is part of the seal of every zone header, directory part and uberblock, so it cannot change. A copy
//! is told from its original by a second id, which stands in the label alone. Only those who look for devices and for mounted pools
//! compare it: an import takes the devices it is given.
//!
//! Both are changes of the label, and become durable as those do: on every anchor, one after the other. Where the power goes in between,
//! the newest label holds, and the next import writes it to the anchors that lack it.

use crate::create::fresh_id;
use crate::import::check_name;
use crate::pool::Pool;
use std::sync::Arc;
use terrane_format::features::Feature;
use terrane_store::PoolError;

impl Pool {
    /// Gives the pool this name; with `is_copy` also an id of its own. Cache devices stay with the original.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` for what is no name; `Failed` when the label could not be written: then the pool takes no more changes until
    /// it is imported, under one name or the other.
    pub fn rename(self: &Arc<Self>, name: &str, is_copy: bool) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        check_name(name)?;
        let mut st = self.sync.lock();
        self.reports.alive()?;
        {
            let mut label = self.membership.label_mut();
            if label.name == name && !is_copy {
                return Ok(());
            }
            label.name = name.to_owned();
            label.generation += 1;
            if is_copy {
                label.features.add(Feature::Identity);
                label.identity = Some(fresh_id(self.env.as_ref()));
                label.caches.clear();
            }
        }
        self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
        if is_copy {
            self.membership.put_in_force(std::iter::once(Feature::Identity));
        }
        log::info!("pool {name}: its id is {:016x}", self.label().id());
        Ok(())
    }
}
