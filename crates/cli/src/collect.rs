//! GC on request: asks the pool, and watches.

use crate::failure::{Failure, Outcome};
use crate::live::Live;
use crate::progress::Progress;
use serde::Serialize;
use std::time::Duration;

/// Interval between two progress queries.
const PERIOD: Duration = Duration::from_millis(50);

/// Progress of GC; garbage is bytes.
#[derive(Serialize)]
pub struct Collected {
    name: String,
    target_percent: u8,
    garbage_before: u64,
    garbage: u64,
    goal: u64,
    zones_left: u64,
    done: bool,
}

/// Has the pool run GC until at most `target_percent` of the bytes in full zones is garbage. Without `wait` a
/// mounted pool continues by itself. A pool that this process opened is closed after the answer, so then the
/// call always waits.
///
/// # Errors
/// If the pool is read-only, or stops.
pub fn down_to(live: &Live, target_percent: u8, wait: bool, progress: Progress<'_>) -> Outcome<Collected> {
    live.pool.gc_request(target_percent)?;
    let before = live.pool.gc_progress();
    let mut now = before;
    let whole = before.garbage_bytes.saturating_sub(before.goal_bytes);
    while !now.done && (wait || live.mountpoint.is_none()) {
        progress("collecting garbage", before.garbage_bytes.saturating_sub(now.garbage_bytes), whole);
        std::thread::sleep(PERIOD);
        if live.pool.stats().failed {
            return Err(Failure(format!(
                "pool {}: it has stopped; see `terrane pool status`",
                live.pool.name()
            )));
        }
        now = live.pool.gc_progress();
    }
    Ok(Collected {
        name: live.pool.name(),
        target_percent,
        garbage_before: before.garbage_bytes,
        garbage: now.garbage_bytes,
        goal: now.goal_bytes,
        zones_left: now.zones_left,
        done: now.done,
    })
}
