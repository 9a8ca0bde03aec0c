//! Zones that are held for a long reader: a check, or whoever copies all that is committed.
//!
//! What is committed when the hold is taken stays readable on the devices, because no zone that was in use then is reset. So a hold costs
//! room, and its owner may be stopped for hours. Writers come first: when they wait for room, or collection wins nothing more, and zones
//! that were emptied are held, the pool lets all holds go. Their owners learn of it when they ask, and begin again.
//!
//! Invariant: no writer is refused for want of room because of a hold.

use crate::pool::{Pool, SyncState};
use terrane_txg::hold::ZoneHold;

impl Pool {
    /// No zone that is in use now is reset before the hold is dropped, unless writers need the room: what is committed now stays readable
    /// on the device as long as [`ZoneHold::is_whole`].
    pub fn hold_zones(&self) -> ZoneHold {
        self.holds.hold(&self.store.tables)
    }

    /// Lets all holds go if they keep zones that were emptied, and there is a need of room.
    pub(crate) fn let_holds_go(&self, st: &SyncState, is_needed: bool) {
        let is_needed = is_needed || self.admission.waiting().0 > 0 || st.collector.is_stuck || {
            let account = self.admission.account(st);
            account.physical() < account.kept()
        };
        if !is_needed || !self.store.tables.read().emptied().any(|(_, zone)| zone.is_held()) {
            return;
        }
        let count = self.holds.let_go();
        if count > 0 {
            log::warn!("writers need the room of zones that {count} long readers held: those begin again");
        }
    }
}
