//! The thread of a mount that rewrites files, and questions about it.
//!
//! It gives way: its thread is the last to get a processor, it goes on only while little is dirty, and rests as long as somebody
//! waits for room in the pool.

use crate::failure::{Failure, Outcome};
use crate::live::Live;
use serde_json::{Value, json};
use std::time::Duration;
use terrane_pool::Pool;
use terrane_posix::{Errno, Fs, RewriteSpec, RewriteStatus, RewriteStep};

/// How long it rests when the pool is full, or a step failed.
const LONG_REST: Duration = Duration::from_secs(5);
/// While writers wait for room.
const WAITED_FOR: Duration = Duration::from_millis(100);
/// Of what may be dirty, in percent: from there on it slows down, and there it is as slow as it gets. Writers are slowed down at 60.
const FREE_PERCENT: u64 = 10;
const SLOW_PERCENT: u64 = 40;
const SLOWEST: Duration = Duration::from_millis(50);

/// How the pool is, for who would rather not disturb.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub dirty_bytes: u64,
    pub dirty_bytes_max: u64,
    /// Changes that wait for room.
    pub waiting: u64,
}

impl Load {
    pub fn of(pool: &Pool) -> Load {
        let (dirty_bytes, dirty_bytes_max, waiting) = pool.load();
        Load { dirty_bytes, dirty_bytes_max, waiting }
    }
}

/// How long to rest before the next record.
pub fn pause(load: Load) -> Duration {
    if load.waiting > 0 {
        return WAITED_FOR;
    }
    let percent = load.dirty_bytes.saturating_mul(100) / load.dirty_bytes_max.max(1);
    let over = percent.saturating_sub(FREE_PERCENT).min(SLOW_PERCENT - FREE_PERCENT);
    SLOWEST * u32::try_from(over * over).unwrap_or(u32::MAX) / (SLOW_PERCENT - FREE_PERCENT).pow(2) as u32
}

/// Goes on with the rewrite there is. `rest` waits so long, and says whether to end.
pub fn go_on(fs: &Fs, pool: &Pool, rest: &dyn Fn(Duration) -> bool) {
    loop {
        let pause = pause(Load::of(pool));
        if rest(pause) {
            return;
        }
        let rests = match fs.rewrite_step() {
            Ok(RewriteStep::Idle) => return,
            Ok(RewriteStep::Went) => false,
            Ok(RewriteStep::NoRoom) => true,
            Err(errno) => {
                log::error!("the rewrite does not go on: {errno}; it is tried again");
                true
            }
        };
        if rests && rest(LONG_REST) {
            return;
        }
    }
}

pub fn begin(live: &Live, spec: &RewriteSpec) -> Outcome<Value> {
    let fs = live.fs()?;
    fs.rewrite_begin(spec).map_err(|errno| refusal(live, fs, spec, errno))?;
    // Whoever is told that it began may go.
    live.pool.commit()?;
    Ok(status(live))
}

fn refusal(live: &Live, fs: &Fs, spec: &RewriteSpec, errno: Errno) -> Failure {
    let name = live.pool.name();
    match errno {
        Errno::EBUSY => {
            let other = fs.rewrite_status().map_or_else(String::new, |status| fs.path_of(status.spec.root));
            let remedy = "wait for it, or end it by `terrane fs rewrite --cancel`";
            Failure::refused(
                format_args!("pool {name}"),
                "no other rewrite",
                format_args!("one of {other}"),
                remedy,
            )
        }
        Errno::EROFS => Failure::refused(
            format_args!("pool {name}"),
            "a mount that writes",
            "one that is read-only",
            "mount it without -o ro",
        ),
        Errno::EINVAL if spec.record_size.is_some() => Failure::refused(
            "recordsize",
            format_args!("at most {}, a quarter of a zone", crate::size::print(live.pool.max_block().into())),
            crate::size::print(spec.record_size.unwrap_or(0).into()),
            "choose less",
        ),
        errno => Failure(format!("pool {name}: inode {}: {errno}", spec.root)),
    }
}

pub fn cancel(live: &Live) -> Outcome<Value> {
    let fs = live.fs()?;
    fs.rewrite_cancel().map_err(|errno| Failure(format!("pool {}: {errno}", live.pool.name())))?;
    live.pool.commit()?;
    Ok(status(live))
}

/// The rewrite that goes on, or the last one.
pub fn status(live: &Live) -> Value {
    let found = live.fs.get().and_then(|fs| Some((fs, fs.rewrite_status()?)));
    let Some((fs, status)) = found else { return json!({"name": live.pool.name(), "state": null}) };
    let RewriteStatus { spec, pass, state, figures } = status;
    json!({
        "name": live.pool.name(),
        "state": state.name(),
        "object": spec.root,
        "path": fs.path_of(spec.root).split(" (inode").next(),
        "recursive": spec.recursive,
        "compression": spec.compression.map(|compression| compression.to_string()),
        "recordsize": spec.record_size,
        "pass": pass.name(),
        "files": figures.files,
        "files_total": figures.files_total,
        "stored": figures.stored_bytes,
        "stored_total": figures.stored_total,
        "logical": figures.logical_bytes,
        "before": figures.before_bytes,
        "after": figures.after_bytes,
        "reshaped": figures.reshaped,
        "no_room": figures.no_room,
        "busy": figures.busy,
        "errors": figures.errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_slow_as_the_pool_is_busy() {
        let at = |percent: u64, waiting: u64| {
            pause(Load { dirty_bytes: percent << 20, dirty_bytes_max: 100 << 20, waiting })
        };
        assert_eq!((at(0, 0), at(10, 0)), (Duration::ZERO, Duration::ZERO));
        assert!(at(20, 0) > Duration::ZERO && at(20, 0) < at(30, 0));
        assert_eq!((at(40, 0), at(100, 0)), (SLOWEST, SLOWEST));
        assert_eq!(at(0, 1), WAITED_FOR);
        assert_eq!(pause(Load { dirty_bytes: u64::MAX, dirty_bytes_max: 0, waiting: 0 }), SLOWEST);
    }
}
