//! Collection by hand: asked of the pool, and watched.

use crate::failure::{Failure, Outcome};
use crate::live::Live;
use crate::progress::Progress;
use serde::Serialize;
use std::time::Duration;

/// Between two looks at how far it is.
const PERIOD: Duration = Duration::from_millis(50);

/// How far collection is; garbage is bytes.
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

/// Has the pool collect until at most `target_percent` of what full zones hold is garbage. Without `wait` it goes on by itself, if the
/// pool is mounted; one that this process opened is closed after the answer, so then there is no other time than now.
///
/// # Errors
/// When the pool is read-only, or stops.
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
