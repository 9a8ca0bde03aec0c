//! Directories of far zones, read before a txg needs them.
//!
//! A txg that resets a zone, or empties one that holds little, reads the zone's directory. Its parts name each other, so they are read
//! one after the other, and an object store takes its time for each. So threads read them into the cache of parts first, beside the
//! txgs, and the zone waits for a later txg. A txg that needs the space does not wait for them.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_store::zone_store::ZoneStore;
use terrane_wire::ZoneSeq;

/// Zones that are read at a time.
const ZONES_MAX: usize = 16;

/// Zones whose directories are being read, or were, and whether that has ended.
#[derive(Clone, Default)]
pub(crate) struct Warming(Arc<(Mutex<BTreeMap<ZoneSeq, bool>>, Condvar)>);

impl Warming {
    /// Waits until the zone is not being read: it is needed now, and the reader holds it.
    pub fn wait(&self, seq: ZoneSeq) {
        let mut zones = self.0.0.lock();
        while zones.get(&seq) == Some(&false) {
            self.0.1.wait(&mut zones);
        }
    }

    /// The zone was reset or emptied.
    pub fn forget(&self, seq: ZoneSeq) {
        self.0.0.lock().remove(&seq);
    }

    /// Whether the directory of a zone has been read. If not, a thread begins to read it, or will at a later call.
    pub fn is_warm(&self, seq: ZoneSeq, store: &Arc<ZoneStore>) -> bool {
        let mut zones = self.0.0.lock();
        if let Some(has_ended) = zones.get(&seq) {
            return *has_ended;
        }
        if zones.values().filter(|has_ended| !**has_ended).count() >= ZONES_MAX {
            return false;
        }
        let (store, warming) = (Arc::clone(store), self.clone());
        let read = move || {
            // An error is found again by the txg.
            store.warm_parts(seq);
            warming.0.0.lock().insert(seq, true);
            warming.0.1.notify_all();
        };
        // If no thread can be started, the txg reads it.
        match std::thread::Builder::new().name("directory".into()).spawn(read) {
            Ok(_) => {
                zones.insert(seq, false);
                false
            }
            Err(_) => true,
        }
    }
}
