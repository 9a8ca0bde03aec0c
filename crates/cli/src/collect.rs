//! GC on request: asks the pool, and watches.

use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use crate::progress::Progress;
use serde::Serialize;
use std::time::Duration;

/// Interval between two progress queries.
const PERIOD: Duration = Duration::from_millis(50);

/// Progress of GC; garbage is bytes.
#[derive(Serialize)]
pub struct CollectResult {
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
pub fn collect_to(
    open_pool: &OpenPool,
    target_percent: u8,
    wait: bool,
    progress: Progress<'_>,
) -> Outcome<CollectResult> {
    open_pool.pool.gc_request(target_percent)?;
    let before = open_pool.pool.gc_progress();
    let mut now = before;
    let whole = before.garbage_bytes.saturating_sub(before.goal_bytes);
    while !now.done && (wait || !open_pool.is_served()) {
        progress("collecting garbage", before.garbage_bytes.saturating_sub(now.garbage_bytes), whole);
        std::thread::sleep(PERIOD);
        if open_pool.pool.stats().failed {
            return Err(Failure(format!(
                "pool {} failed: it no longer writes; see `terrane pool status`",
                open_pool.pool.name()
            )));
        }
        now = open_pool.pool.gc_progress();
    }
    Ok(CollectResult {
        name: open_pool.pool.name(),
        target_percent,
        garbage_before: before.garbage_bytes,
        garbage: now.garbage_bytes,
        goal: now.goal_bytes,
        zones_left: now.zones_left,
        done: now.done,
    })
}
