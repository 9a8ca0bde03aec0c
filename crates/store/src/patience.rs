//! Whether reads of a thread wait for a device that fails.

use std::cell::Cell;

/// What becomes of a group when a device goes on failing to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FailMode {
    /// The group waits until the device can be read again, however long that takes.
    Wait = 0,
    /// The group fails after half a minute, and the pool takes no more changes until the next import.
    #[default]
    Continue = 1,
}

impl FailMode {
    pub fn from_id(id: u8) -> FailMode {
        if id == FailMode::Wait as u8 { FailMode::Wait } else { FailMode::Continue }
    }
}

/// A pool that waits for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Since when, in nanoseconds since 1970.
    pub since_ns: u64,
    pub reason: String,
}

thread_local! {
    /// Whether reads of this thread wait for a device that fails.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, the reads of this thread wait for devices, or do not.
pub struct Patience {
    before: bool,
}

impl Patience {
    /// Whether reads of this thread wait.
    pub fn is_asked() -> bool {
        WAITS.get()
    }

    pub fn unlimited() -> Patience {
        Patience { before: WAITS.replace(true) }
    }

    /// For what can as well be tried in a later group.
    pub fn none() -> Patience {
        Patience { before: WAITS.replace(false) }
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        WAITS.set(self.before);
    }
}

/// Tries of one read.
#[derive(Default)]
pub struct Tries {
    pub count: u32,
    /// Since when, by the monotonic clock.
    pub since_ns: Option<u64>,
}
