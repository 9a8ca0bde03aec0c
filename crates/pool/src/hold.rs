//! Zones that are held for a long reader: a check, or whoever copies all that is committed.
//!
//! What is committed when the hold is taken stays readable on the devices, because no zone that was in use then is reset. So a hold costs
//! room, and its owner may be stopped for hours. Writers come first: when they wait for room, or collection wins nothing more, and zones
//! that were emptied are held, the pool lets all holds go. Their owners learn of it when they ask, and begin again.
//!
//! Invariant: no writer is refused for want of room because of a hold.

use crate::pool::{Pool, SyncState};
use crate::state::hold::{Held, ZoneHold};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use terrane_space::zones::Zone;

impl Pool {
    /// No zone that is in use now is reset before the hold is dropped, unless writers need the room: what is committed now stays readable
    /// on the device as long as [`ZoneHold::is_whole`].
    pub fn hold_zones(&self) -> ZoneHold {
        let tables = self.store.tables.read();
        let hold = |zone: &Zone| {
            zone.holds.fetch_add(1, Ordering::AcqRel);
            zone.holds.clone()
        };
        let held = Arc::new(Held(Mutex::new(Some(tables.zones.values().map(hold).collect()))));
        drop(tables);
        let mut holds = self.holds.lock();
        holds.retain(|held| held.strong_count() > 0);
        holds.push(Arc::downgrade(&held));
        ZoneHold(held)
    }

    /// Lets all holds go if they keep zones that were emptied, and there is a need of room.
    pub(crate) fn let_holds_go(&self, st: &SyncState, is_needed: bool) {
        let is_needed = is_needed || self.txg.waiting().0 > 0 || st.collector.is_stuck || {
            let account = self.account(st);
            account.physical() < account.kept()
        };
        if !is_needed || !self.store.tables.read().emptied().any(|(_, zone)| zone.is_held()) {
            return;
        }
        let holds = std::mem::take(&mut *self.holds.lock());
        let count = holds.iter().filter_map(Weak::upgrade).filter(|held| held.let_go()).count();
        if count > 0 {
            log::warn!("writers need the room of zones that {count} long readers held: those begin again");
        }
    }
}
