//! What a sync does when a device cannot be read: it waits.
//!
//! A group that has quiesced must read some metadata to rewrite it. A read error is not damage: nothing is known of the bytes, and the
//! next try may give them. So the sync thread tries again, with growing pauses, and the pool is *suspended* meanwhile: nothing is
//! published, nothing is lost, and callers of `fsync` wait. [`FailMode`] says how long.
//!
//! Invariant: while a group syncs its trees, a read error never means "this is gone". It ends in the bytes, or in a failed group.

use crate::pool::Pool;
use std::time::Duration;
use terrane_store::PoolError;
use terrane_store::patience::{FailMode, Patience, Suspension, Tries};

/// The first pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long [`FailMode::Continue`] waits.
const PATIENCE: Duration = Duration::from_secs(30);
/// Tries of a pool without threads, whose caller would wait for ever.
const TRIES_UNTHREADED: u32 = 8;

impl Pool {
    /// Holds from the next failing read on. Nothing is stored.
    pub fn set_fail_mode(&self, mode: FailMode) {
        self.fail_mode.store(mode as u8, std::sync::atomic::Ordering::Relaxed);
    }

    /// Why a commit waits for a device, if one does.
    pub fn suspension(&self) -> Option<Suspension> {
        self.suspension.lock().clone().or_else(|| self.devices.host().suspension())
    }

    /// Waits before the next try of a read that failed by this error. `Err`: there is to be none.
    pub(crate) fn wait_for_device(&self, tries: &mut Tries, error: PoolError) -> Result<(), PoolError> {
        if !Patience::is_asked() || self.alive().is_err() {
            return Err(error);
        }
        let now = self.env.monotonic_ns();
        let since = *tries.since_ns.get_or_insert(now);
        let mode = FailMode::from_id(self.fail_mode.load(std::sync::atomic::Ordering::Relaxed));
        let waited = Duration::from_nanos(now.saturating_sub(since));
        let is_over = match self.threaded() {
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
    pub(crate) fn stop_waiting(&self, tries: &Tries, came_through: bool) {
        if tries.count > 0 && self.suspension.lock().take().is_some() && came_through {
            log::warn!("resumed: the device answers again after {} tries", tries.count + 1);
        }
    }
}
