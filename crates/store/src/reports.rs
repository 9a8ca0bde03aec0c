//! What went wrong and holds for the whole pool: the error log, whether writing has stopped, and whether a commit waits for a device.
//!
//! A group that has quiesced must read some metadata to rewrite it. A read error is not damage: nothing is known of the bytes, and the
//! next try may give them. So the sync thread tries again, with growing pauses, and the pool is *suspended* meanwhile: nothing is
//! published, nothing is lost, and callers of `fsync` wait. [`FailMode`] says how long.
//!
//! Invariant: while a group syncs its trees, a read error never means "this is gone". It ends in the bytes, or in a failed group.

use crate::PoolError;
use crate::env::Env;
use crate::errors::ErrorLog;
use crate::patience::{FailMode, Patience, Suspension, Tries};
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
const PATIENCE: Duration = Duration::from_secs(30);
/// Tries of a pool without threads, whose caller would wait for ever.
const TRIES_UNTHREADED: u32 = 8;

/// What went wrong with a pool since its import.
pub struct Reports {
    env: Arc<dyn Env>,
    pub log: ErrorLog,
    stopped: OnceLock<Arc<str>>,
    fail_mode: AtomicU8,
    suspension: Mutex<Option<Suspension>>,
}

impl Reports {
    pub fn new(env: Arc<dyn Env>) -> Reports {
        Reports {
            env,
            log: ErrorLog::default(),
            stopped: OnceLock::new(),
            fail_mode: AtomicU8::new(FailMode::default() as u8),
            suspension: Mutex::default(),
        }
    }

    /// The pool writes nothing any more, for this reason. False: it had stopped before.
    pub fn stop(&self, reason: Arc<str>) -> bool {
        self.stopped.set(reason).is_ok()
    }

    /// Why the pool has stopped writing, if it has.
    pub fn stopped(&self) -> Option<&Arc<str>> {
        self.stopped.get()
    }

    /// An error if the pool has stopped writing.
    pub fn alive(&self) -> Result<(), PoolError> {
        match self.stopped.get() {
            Some(reason) => Err(PoolError::Failed { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Damage that was found on the way and belongs to no single block.
    pub fn damage(&self, corrupt: Corrupt) {
        log::error!("{corrupt}");
        self.log.note_finding(corrupt);
    }

    /// Damage of a block.
    pub fn damaged(&self, owner: Owner, corrupt: Corrupt) -> PoolError {
        log::error!("{corrupt}; {}", owner_text(owner));
        self.log.note_block(owner, &corrupt);
        PoolError::Corrupt(corrupt)
    }

    /// Holds from the next failing read on. Nothing is stored.
    pub fn set_fail_mode(&self, mode: FailMode) {
        self.fail_mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Why a commit waits for a device to be read, if one does.
    pub fn suspension(&self) -> Option<Suspension> {
        self.suspension.lock().clone()
    }

    /// Waits before the next try of a read that failed by this error. `Err`: there is to be none.
    pub fn wait_for_device(&self, tries: &mut Tries, error: PoolError) -> Result<(), PoolError> {
        if !Patience::is_asked() || self.alive().is_err() {
            return Err(error);
        }
        let now = self.env.monotonic_ns();
        let since = *tries.since_ns.get_or_insert(now);
        let mode = FailMode::from_id(self.fail_mode.load(Ordering::Relaxed));
        let waited = Duration::from_nanos(now.saturating_sub(since));
        let is_over = match self.env.workers() > 0 {
            false => tries.count >= TRIES_UNTHREADED,
            true => mode == FailMode::Continue && waited >= PATIENCE,
        };
        if is_over {
            log::error!("{error}; a commit needs these bytes and gives up after {} tries", tries.count + 1);
            return Err(error);
        }
        // A short outage is not reported: after a reset a bus is back by then.
        if tries.count == 5 {
            log::error!("suspended: {error}; a commit needs these bytes, and goes on when they can be read");
            let since_ns = self.env.wall_ns();
            *self.suspension.lock() = Some(Suspension { since_ns, reason: error.to_string() });
        }
        let pause = PAUSE_MIN.saturating_mul(1 << tries.count.min(10)).min(PAUSE_MAX);
        tries.count += 1;
        self.env.sleep(pause);
        Ok(())
    }

    /// The read came through, or was given up.
    pub fn stop_waiting(&self, tries: &Tries, came_through: bool) {
        if tries.count > 0 && self.suspension.lock().take().is_some() && came_through {
            log::warn!("resumed: the device answers again after {} tries", tries.count + 1);
        }
    }
}

/// A block's owner in words, for the log.
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
