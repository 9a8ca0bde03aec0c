//! Renames a pool, or makes a copy a pool of its own.
//!
//! The pool's first id is part of the seal of every zone header, directory part and uberblock, so it cannot
//! change. A second id, in the label alone, distinguishes a copy from its original. Only searches for devices
//! and for mounted pools compare it. An import takes the devices that it is given.
//!
//! Both are changes of the label, and become durable on every anchor, one after the other. If the power fails
//! in between, the newest label wins, and the next import writes it to the other anchors.

use crate::create::random_id;
use crate::import::check_name;
use crate::pool::Pool;
use std::sync::Arc;
use terrane_format::features::Feature;
use terrane_store::PoolError;

impl Pool {
    /// Renames the pool. With `is_copy` it also gets an id of its own; cache and log devices stay with the
    /// original.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` for an invalid name; `Failed` if the label could not be written. Then the pool
    /// takes no changes until the next import, which finds either name.
    pub fn rename(self: &Arc<Self>, name: &str, is_copy: bool) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        check_name(name)?;
        if is_copy {
            self.leave_log_devices(&|_| true)?;
        }
        let mut st = self.sync.lock();
        self.reports.check_running()?;
        {
            let mut label = self.membership.label_mut();
            if label.name == name && !is_copy {
                return Ok(());
            }
            label.name = name.to_owned();
            label.generation += 1;
            if is_copy {
                label.features.enable(Feature::Identity);
                label.identity = Some(random_id(self.env.as_ref()));
                label.caches.clear();
                label.log_devices.clear();
            }
        }
        self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
        if is_copy {
            let left = self.store.devices.log_devices.all();
            left.iter().for_each(|device| drop(self.store.devices.log_devices.detach(device.id)));
            self.membership.put_in_force(std::iter::once(Feature::Identity));
        }
        log::info!("pool renamed: {name}, id {:016x}", self.label().id());
        Ok(())
    }
}
