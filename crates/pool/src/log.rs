//! The intent log: what the layer above logs between commits.

use crate::pool::Pool;

/// Records that were handed to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogTicket(u64);

/// The log could not make records durable. A commit does.
#[derive(Clone, Copy, Debug)]
pub struct LogFailed;

impl Pool {
    /// The next number in the order of all changes of the pool.
    pub fn next_change(&self) -> u64 {
        0
    }

    /// Most bytes of records that are better logged than committed. 0: there is no log, so each `fsync` commits.
    pub fn log_bytes_max(&self) -> usize {
        0
    }

    /// Hands frames (see `terrane_format::log::Frame`) to the log, in whole. `None`: it takes nothing now, so the caller must commit.
    /// Does not wait.
    pub fn log(&self, _frames: Vec<u8>) -> Option<LogTicket> {
        None
    }

    /// Waits until the records of this ticket, and of all tickets before, are durable.
    pub fn wait_logged(&self, _ticket: LogTicket) -> Result<(), LogFailed> {
        Err(LogFailed)
    }
}
