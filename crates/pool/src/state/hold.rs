//! Long readers: which zones they hold.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Keeps the zones that were in use at one moment from being reset, until it is dropped or writers need their room: see
/// [`Pool::hold_zones`](crate::Pool::hold_zones).
#[derive(Debug)]
pub struct ZoneHold(pub(crate) Arc<Held>);

/// The zones of one hold, by the counters in their rows; `None`: they were let go.
#[derive(Debug, Default)]
pub(crate) struct Held(pub(crate) Mutex<Option<Vec<Arc<AtomicU32>>>>);

impl ZoneHold {
    /// Whether nothing that was in use when it was taken has been reset.
    pub fn is_whole(&self) -> bool {
        self.0.0.lock().is_some()
    }
}

impl Held {
    /// True: not before.
    pub(crate) fn let_go(&self) -> bool {
        let zones = self.0.lock().take();
        for holds in zones.iter().flatten() {
            holds.fetch_sub(1, Ordering::AcqRel);
        }
        zones.is_some()
    }
}

impl Drop for ZoneHold {
    fn drop(&mut self) {
        self.0.let_go();
    }
}
