//! Stepping back for a successor: no request is begun any more, and those in progress are finished.
//!
//! A request that was read and not begun is left unanswered: the successor has the kernel send it again. So
//! no thread has to be woken, and threads that wait for a request may keep waiting until the process ends.
//!
//! Each thread has its own busy flag on its own cache line, so a request costs two stores that no other thread
//! reads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
#[repr(align(64))]
struct BusyFlag(AtomicBool);

/// Stops the answering of requests, for good.
#[derive(Debug, Default)]
pub struct Drain {
    draining: AtomicBool,
    busy_flags: OnceLock<Vec<BusyFlag>>,
}

impl Drain {
    pub(super) fn prepare(&self, threads: usize) {
        // A session runs once; a second set of flags is never asked for.
        let _ = self.busy_flags.set((0..threads).map(|_| BusyFlag::default()).collect());
    }

    /// Marks that a request begins. False: the session is draining.
    pub(super) fn begin_request(&self, thread: usize) -> bool {
        let Some(flag) = self.busy_flag(thread) else { return true };
        // Sequentially consistent, both here and in `drain`: one of the two sees the other's store.
        flag.0.store(true, Ordering::SeqCst);
        let go = !self.draining.load(Ordering::SeqCst);
        if !go {
            flag.0.store(false, Ordering::Release);
        }
        go
    }

    pub(super) fn end_request(&self, thread: usize) {
        if let Some(flag) = self.busy_flag(thread) {
            flag.0.store(false, Ordering::Release);
        }
    }

    fn busy_flag(&self, thread: usize) -> Option<&BusyFlag> {
        self.busy_flags.get()?.get(thread)
    }

    /// Lets no further request begin, and waits until those in progress are answered. False: some still were
    /// after `timeout`.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.draining.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        let is_busy =
            || self.busy_flags.get().into_iter().flatten().any(|flag| flag.0.load(Ordering::SeqCst));
        while is_busy() {
            if begun.elapsed() > timeout {
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
    fn a_drain_waits_for_running_requests_and_starts_none() {
        let drain = Drain::default();
        drain.prepare(2);
        assert!(drain.begin_request(0));
        assert!(!drain.drain(Duration::from_millis(5)));
        assert!(!drain.begin_request(1));
        drain.end_request(0);
        assert!(drain.drain(Duration::ZERO));
    }
}
