//! Whether the reads of a thread wait for a failing device.

use std::cell::Cell;

/// What happens to a txg if a device keeps failing reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FailMode {
    /// The txg waits until the device can be read again, without limit.
    Wait = 0,
    /// The txg fails after 30 seconds, and the pool takes no changes until the next import.
    #[default]
    Continue = 1,
}

impl FailMode {
    /// The mode with this number. Unknown numbers mean `Continue`.
    pub fn from_id(id: u8) -> FailMode {
        if id == FailMode::Wait as u8 { FailMode::Wait } else { FailMode::Continue }
    }
}

/// Describes a pool that waits for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Begin of the wait, in nanoseconds since 1970.
    pub since_ns: u64,
    /// The error for which it waits.
    pub reason: String,
}

thread_local! {
    /// Whether reads of this thread wait for a failing device.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, reads of this thread wait for failing devices, or do not.
pub struct ReadRetry {
    previous: bool,
}

impl ReadRetry {
    /// Whether reads of this thread wait.
    pub fn is_unlimited() -> bool {
        WAITS.get()
    }

    /// For work that must not fail for a passing error: its reads wait, as [`FailMode`] allows.
    pub fn unlimited() -> ReadRetry {
        ReadRetry { previous: WAITS.replace(true) }
    }

    /// For work that can be retried in a later txg: its reads do not wait.
    pub fn none() -> ReadRetry {
        ReadRetry { previous: WAITS.replace(false) }
    }
}

impl Drop for ReadRetry {
    fn drop(&mut self) {
        WAITS.set(self.previous);
    }
}

/// Attempts of one read.
#[derive(Default)]
pub struct ReadAttempts {
    /// Attempts that failed and were followed by a pause.
    pub count: u32,
    /// Time of the first failure, by the monotonic clock.
    pub since_ns: Option<u64>,
}
