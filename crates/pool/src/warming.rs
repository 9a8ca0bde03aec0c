//! Directories of far zones, read before a txg needs them.
//!
//! A txg that resets a zone, or empties one, reads the zone's directory. Its parts name each other, so they are read one after the other,
//! and an object store takes its time for each. So threads read them into the cache of parts first, beside the txgs, and the zone waits
//! for a later txg. A txg that needs the space waits for the thread that reads, since a zone that is read cannot be reset.
//!
//! Invariant: the threads end before the pool does. They hold its devices.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_store::zone_store::ZoneStore;
use terrane_wire::ZoneSeq;

/// Zones that are read at a time.
const ZONES_MAX: usize = 16;

#[derive(Default)]
struct State {
    /// Zones whose directories are being read, or were, and whether that has ended.
    zones: BTreeMap<ZoneSeq, bool>,
    /// No further part is read.
    is_over: bool,
}

impl State {
    fn being_read(&self) -> usize {
        self.zones.values().filter(|has_ended| !**has_ended).count()
    }
}

/// The threads, and what they have read.
#[derive(Clone, Default)]
pub(crate) struct Warming(Arc<(Mutex<State>, Condvar)>);

/// The directory of a zone is being read, until this is dropped.
struct Reading {
    warming: Warming,
    seq: ZoneSeq,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.warming.0.0.lock().zones.insert(self.seq, true);
        self.warming.0.1.notify_all();
    }
}

impl Warming {
    fn wait_while(&self, mut is_read: impl FnMut(&State) -> bool) {
        let mut state = self.0.0.lock();
        while is_read(&state) {
            self.0.1.wait(&mut state);
        }
    }

    /// Waits until the zone is not being read: it is needed now, and the reader holds it.
    pub fn wait(&self, seq: ZoneSeq) {
        self.wait_while(|state| state.zones.get(&seq) == Some(&false));
    }

    /// Whether any zone is being read. It is held meanwhile, and may be reset or emptied later.
    pub fn is_reading(&self) -> bool {
        self.0.0.lock().being_read() > 0
    }

    /// No thread reads more than the part that it reads now.
    pub fn stop(&self) {
        self.0.0.lock().is_over = true;
    }

    /// Ends all threads.
    pub fn end(&self) {
        self.stop();
        self.wait_while(|state| state.being_read() > 0);
    }

    /// The zone was reset or emptied. A thread that still reads it stays known.
    pub fn forget(&self, seq: ZoneSeq) {
        let mut state = self.0.0.lock();
        if state.zones.get(&seq) == Some(&true) {
            state.zones.remove(&seq);
        }
    }

    /// Whether the directory of a zone has been read. If not, a thread begins to read it, or will at a later call.
    pub fn is_warm(&self, seq: ZoneSeq, store: &Arc<ZoneStore>) -> bool {
        let mut state = self.0.0.lock();
        if let Some(has_ended) = state.zones.get(&seq) {
            return *has_ended;
        }
        if state.is_over || state.being_read() >= ZONES_MAX {
            return false;
        }
        let (store, warming) = (Arc::clone(store), self.clone());
        let read = move || {
            // Dropped last, also after a panic.
            let reading = Reading { warming, seq };
            let store = store;
            // An error is found again by the txg.
            store.warm_parts(seq, &|| !reading.warming.0.0.lock().is_over);
        };
        // If no thread can be started, the txg reads it.
        match std::thread::Builder::new().name("directory".into()).spawn(read) {
            Ok(_) => {
                state.zones.insert(seq, false);
                false
            }
            Err(_) => true,
        }
    }
}
