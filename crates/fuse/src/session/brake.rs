//! Stepping back for a successor: no request is begun any more, and those in progress are finished.
//!
//! A request that was read and not begun is left unanswered: the successor has the kernel send it again. So
//! no thread has to be woken, and threads that wait for a request may keep waiting until the process ends.
//!
//! Each thread has its own lane on its own cache line, so a request costs two stores that no other thread
//! reads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
#[repr(align(64))]
struct Lane(AtomicBool);

/// Stops the answering of requests, for good.
#[derive(Debug, Default)]
pub struct Brake {
    pulled: AtomicBool,
    lanes: OnceLock<Vec<Lane>>,
}

impl Brake {
    pub(super) fn prepare(&self, threads: usize) {
        // A session runs once; a second set of lanes is never asked for.
        let _ = self.lanes.set((0..threads).map(|_| Lane::default()).collect());
    }

    /// Marks that a request begins. False: the brake was pulled.
    pub(super) fn begin(&self, thread: usize) -> bool {
        let Some(lane) = self.lane(thread) else { return true };
        // Sequentially consistent, both here and in `pull`: one of the two sees the other's store.
        lane.0.store(true, Ordering::SeqCst);
        let go = !self.pulled.load(Ordering::SeqCst);
        if !go {
            lane.0.store(false, Ordering::Release);
        }
        go
    }

    pub(super) fn end(&self, thread: usize) {
        if let Some(lane) = self.lane(thread) {
            lane.0.store(false, Ordering::Release);
        }
    }

    fn lane(&self, thread: usize) -> Option<&Lane> {
        self.lanes.get()?.get(thread)
    }

    /// Lets no further request begin, and waits until those in progress are answered. False: some still were
    /// after `patience`.
    pub fn pull(&self, patience: Duration) -> bool {
        self.pulled.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        let is_busy = || self.lanes.get().into_iter().flatten().any(|lane| lane.0.load(Ordering::SeqCst));
        while is_busy() {
            if begun.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_finished_and_nothing_begins_after() {
        let brake = Brake::default();
        brake.prepare(2);
        assert!(brake.begin(0));
        assert!(!brake.pull(Duration::from_millis(5)));
        assert!(!brake.begin(1));
        brake.end(0);
        assert!(brake.pull(Duration::ZERO));
    }
}
