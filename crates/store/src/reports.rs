//! Errors that concern the whole pool: the error log, whether writing has stopped, and whether a commit waits for a device.
//!
//! A txg that has quiesced must read some metadata to rewrite it. A read error is not damage: the bytes are unknown, and a retry may
//! return them. So the sync thread retries with growing pauses, and the pool is *suspended* meanwhile. Nothing is published, nothing is
//! lost, and callers of `fsync` wait. [`FailMode`] sets the limit.
//!
//! Invariant: while a txg syncs its trees, a read error is never treated as a missing block. It ends in the bytes, or in a failed txg.

use crate::PoolError;
use crate::env::Env;
use crate::errors::ErrorLog;
use crate::read_retry::{FailMode, ReadAttempts, ReadRetry, Suspension};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use terrane_format::directory::{Owner, SPILL};
use terrane_wire::Corrupt;

/// The first pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long [`FailMode::Continue`] waits.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// Attempts in a pool without threads, where waiting would block the only thread.
const ATTEMPTS_UNTHREADED: u32 = 8;

/// Errors of a pool since its import.
pub struct Reports {
    env: Arc<dyn Env>,
    /// What was found, until an administrator clears it.
    pub log: ErrorLog,
    stopped: OnceLock<Arc<str>>,
    fail_mode: AtomicU8,
    suspension: Mutex<Option<Suspension>>,
}

impl Reports {
    /// No errors yet. Reads wait by the clock of `env`.
    pub fn new(env: Arc<dyn Env>) -> Reports {
        Reports {
            env,
            log: ErrorLog::default(),
            stopped: OnceLock::new(),
            fail_mode: AtomicU8::new(FailMode::default() as u8),
            suspension: Mutex::default(),
        }
    }

    /// Stops all writes of the pool, for this reason. False: it had stopped before.
    pub fn stop(&self, reason: Arc<str>) -> bool {
        self.stopped.set(reason).is_ok()
    }

    /// Why the pool has stopped writing, if it has.
    pub fn stop_reason(&self) -> Option<&Arc<str>> {
        self.stopped.get()
    }

    /// An error if the pool has stopped writing.
    pub fn check_running(&self) -> Result<(), PoolError> {
        match self.stopped.get() {
            Some(reason) => Err(PoolError::Failed { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Notes damage that was found in passing and belongs to no single block.
    pub fn note_damage(&self, corrupt: Corrupt) {
        log::error!("{corrupt}");
        self.log.note_finding(corrupt);
    }

    /// Notes damage of a block, and returns the error for the caller.
    pub fn note_block_damage(&self, owner: Owner, corrupt: Corrupt) -> PoolError {
        log::error!("{corrupt}; {}", owner_text(owner));
        self.log.note_block(owner, &corrupt);
        PoolError::Corrupt(corrupt)
    }

    /// Applies from the next failing read on. Nothing is stored.
    pub fn set_fail_mode(&self, mode: FailMode) {
        self.fail_mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Why a commit waits to read a device, if it does.
    pub fn suspension(&self) -> Option<Suspension> {
        self.suspension.lock().clone()
    }

    /// Waits before the next attempt of a failed read. `Err`: there is none.
    pub fn wait_for_device(&self, tries: &mut ReadAttempts, error: PoolError) -> Result<(), PoolError> {
        let is_given_up = matches!(&error, PoolError::Device(device) if device.is_given_up());
        if !ReadRetry::is_unlimited() || is_given_up || self.check_running().is_err() {
            return Err(error);
        }
        let now = self.env.monotonic_ns();
        let since = *tries.since_ns.get_or_insert(now);
        let mode = FailMode::from_id(self.fail_mode.load(Ordering::Relaxed));
        let waited = Duration::from_nanos(now.saturating_sub(since));
        let is_over = match self.env.workers() > 0 {
            false => tries.count >= ATTEMPTS_UNTHREADED,
            true => mode == FailMode::Continue && waited >= GIVE_UP_AFTER,
        };
        if is_over {
            log::error!("read failed, the commit gives up after {} tries: {error}", tries.count + 1);
            return Err(error);
        }
        // A short outage is not reported: a bus is back soon after its reset.
        if tries.count == 5 {
            log::error!("suspended: {error}; the commit resumes when the device can be read");
            let since_ns = self.env.wall_ns();
            *self.suspension.lock() = Some(Suspension { since_ns, reason: error.to_string() });
        }
        let pause = PAUSE_MIN.saturating_mul(1 << tries.count.min(10)).min(PAUSE_MAX);
        tries.count += 1;
        self.env.sleep(pause);
        Ok(())
    }

    /// Ends the suspension: the read succeeded or was given up.
    pub fn stop_waiting(&self, tries: &ReadAttempts, came_through: bool) {
        if tries.count > 0 && self.suspension.lock().take().is_some() && came_through {
            log::warn!("resumed: the device answers again after {} tries", tries.count + 1);
        }
    }
}

/// A block's owner as text, for the log.
pub fn owner_text(owner: Owner) -> String {
    match owner {
        Owner::Block { objset, object, block: SPILL, .. } => {
            format!("object set {objset} object {object} spill")
        }
        Owner::Block { objset, object, level, block } => {
            format!("object set {objset} object {object} level {level} block {block}")
        }
        Owner::Pool { .. } => "pool metadata".into(),
    }
}
