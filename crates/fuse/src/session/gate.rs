//! Limits how many requests may wait at once.
//!
//! A request that may wait needs one of few permits. Without one it is *parked*: copied and queued. A thread
//! that holds a permit answers it as soon as it has answered its own. The thread that read it reads on.
//!
//! Invariant: while requests are parked all permits are held, so a holder will take them up. Parked bytes
//! stay within their limit. Beyond it the reader waits: unbounded memory is worse than a mount that is slow
//! while it is overloaded.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Instant;

pub(super) struct Gate {
    state: Mutex<GateState>,
    /// A permit or space in the queue has become free.
    freed: Condvar,
    permits: usize,
    bytes_max: usize,
}

struct GateState {
    running: usize,
    /// With the time when each was parked.
    parked: VecDeque<(Vec<u8>, Instant)>,
    parked_bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Answer it; then call [`Gate::next`] until it returns `None`.
    Run,
    /// Another thread will answer it.
    Parked,
}

impl Gate {
    pub fn new(permits: usize, bytes_max: usize) -> Self {
        let state = GateState { running: 0, parked: VecDeque::new(), parked_bytes: 0 };
        Gate { state: Mutex::new(state), freed: Condvar::new(), permits, bytes_max }
    }

    /// Takes a permit for this request, and parks it if there is none.
    pub fn admit(&self, raw: &[u8]) -> Admission {
        let mut state = self.state.lock();
        loop {
            if state.running < self.permits {
                state.running += 1;
                return Admission::Run;
            }
            // A request longer than the limit may enter an empty queue, or it would never run.
            if state.parked.is_empty() || state.parked_bytes + raw.len() <= self.bytes_max {
                state.parked_bytes += raw.len();
                state.parked.push_back((raw.to_vec(), Instant::now()));
                return Admission::Parked;
            }
            self.freed.wait(&mut state);
        }
    }

    /// The next parked request for the caller's permit, and when it was parked; with `None` the permit is
    /// given back.
    pub fn next(&self) -> Option<(Vec<u8>, Instant)> {
        let mut state = self.state.lock();
        let next = state.parked.pop_front();
        match &next {
            Some((raw, _)) => state.parked_bytes -= raw.len(),
            None => state.running -= 1,
        }
        drop(state);
        self.freed.notify_all();
        next
    }

    #[cfg(test)]
    pub fn check(&self) -> Result<(), String> {
        let state = self.state.lock();
        let bytes: usize = state.parked.iter().map(|(raw, _)| raw.len()).sum();
        let sound = state.running <= self.permits
            && bytes == state.parked_bytes
            && (state.parked.is_empty() || state.running == self.permits)
            && (state.parked.len() <= 1 || bytes <= self.bytes_max);
        if sound { Ok(()) } else { Err(format!("{} running, {bytes} bytes parked", state.running)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(gate: &Gate) -> Option<Vec<u8>> {
        gate.next().map(|(raw, _)| raw)
    }

    #[test]
    fn parked_requests_run_in_order_and_permits_come_back() {
        let gate = Gate::new(2, 10);
        assert_eq!((gate.admit(b"a"), gate.admit(b"b")), (Admission::Run, Admission::Run));
        assert_eq!((gate.admit(b"c"), gate.admit(b"d")), (Admission::Parked, Admission::Parked));
        assert_eq!(gate.check(), Ok(()));
        assert_eq!((next(&gate), next(&gate), next(&gate)), (Some(b"c".to_vec()), Some(b"d".to_vec()), None));
        assert_eq!(gate.check(), Ok(()));
        assert_eq!(gate.admit(b"e"), Admission::Run);
        assert_eq!((next(&gate), next(&gate)), (None, None));
        assert_eq!(gate.check(), Ok(()));
    }

    #[test]
    fn a_full_queue_makes_its_reader_wait_until_there_is_room() {
        let gate = Gate::new(1, 4);
        assert_eq!(gate.admit(b"run"), Admission::Run);
        assert_eq!(gate.admit(b"longer than all"), Admission::Parked);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.admit(b"wait"));
            assert_eq!(next(&gate), Some(b"longer than all".to_vec()));
            assert_eq!(waiting.join().unwrap(), Admission::Parked);
        });
        assert_eq!(gate.check(), Ok(()));
        assert_eq!((next(&gate), next(&gate)), (Some(b"wait".to_vec()), None));
    }
}
