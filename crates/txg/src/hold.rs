//! Holds of long readers, which keep zones from being reset.

use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use terrane_space::zones::{Tables, Zone};

/// Keeps the zones that were in use at one moment from being reset. The hold ends when it is dropped, or when
/// writers need the space: see `Pool::hold_zones`.
#[derive(Debug)]
pub struct ZoneHold(Arc<HeldZones>);

/// The zones of one hold, by the counters in their rows; `None`: they were released.
#[derive(Debug, Default)]
struct HeldZones(Mutex<Option<Vec<Arc<AtomicU32>>>>);

impl ZoneHold {
    /// Whether no zone that was in use when the hold was taken has been reset.
    pub fn is_whole(&self) -> bool {
        self.0.0.lock().is_some()
    }
}

impl HeldZones {
    /// Releases the zones. True: they had been held until now.
    fn release(&self) -> bool {
        let zones = self.0.lock().take();
        for holds in zones.iter().flatten() {
            holds.fetch_sub(1, Ordering::AcqRel);
        }
        zones.is_some()
    }
}

impl Drop for ZoneHold {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// All holds of a pool.
#[derive(Default)]
pub struct Holds(Mutex<Vec<Weak<HeldZones>>>);

impl Holds {
    /// Holds all zones in the tables.
    pub fn hold(&self, tables: &RwLock<Tables>) -> ZoneHold {
        let tables = tables.read();
        let hold = |zone: &Zone| {
            zone.long_readers.fetch_add(1, Ordering::AcqRel);
            zone.long_readers.clone()
        };
        let held = Arc::new(HeldZones(Mutex::new(Some(tables.zones.values().map(hold).collect()))));
        drop(tables);
        let mut holds = self.0.lock();
        holds.retain(|held| held.strong_count() > 0);
        holds.push(Arc::downgrade(&held));
        ZoneHold(held)
    }

    /// Releases all holds. Returns how many there were.
    pub fn release_all(&self) -> usize {
        let holds = std::mem::take(&mut *self.0.lock());
        holds.iter().filter_map(Weak::upgrade).filter(|held| held.release()).count()
    }
}
