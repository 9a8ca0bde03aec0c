//! Holds of zones for long readers: a check, or a copy of all committed data.
//!
//! Data that is committed when the hold is taken stays readable on the devices, because no zone in use then
//! is reset. So a hold costs free space, and its owner may be stopped for hours.
//!
//! Writers come first. The pool releases all holds if writers wait for space or GC wins nothing more, while
//! emptied zones are held. The owners learn of it when they ask, and begin again.
//!
//! Invariant: no writer is refused for lack of space because of a hold.

use crate::pool::{Pool, SyncState};
use terrane_txg::hold::ZoneHold;

impl Pool {
    /// Holds all zones in use, until the hold is dropped or writers need the space. What is committed now
    /// stays readable on the device as long as [`ZoneHold::is_whole`].
    pub fn hold_zones(&self) -> ZoneHold {
        self.holds.hold(&self.store.tables)
    }

    /// Releases all holds if they keep emptied zones from being reset, and free space is needed.
    pub(crate) fn release_holds(&self, st: &SyncState, is_needed: bool) {
        let is_needed = is_needed || self.admission.space_waiters().0 > 0 || st.collector.is_stuck || {
            let account = self.admission.account(st);
            account.physical_free() < account.internal_reserve()
        };
        if !is_needed || !self.store.tables.read().emptied().any(|(_, zone)| zone.has_long_reader()) {
            return;
        }
        let count = self.holds.release_all();
        if count > 0 {
            log::warn!("zone holds of {count} long readers released, which start again: writers need space");
        }
    }
}
