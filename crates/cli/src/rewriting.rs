//! The threads of a mount that write anew what nobody changed: files that are to be stored otherwise, with questions about that, and
//! blocks of which the run index has too much to tell.
//!
//! They give way: they are the last to get a processor, and rest as long as somebody waits for room in the pool. While the mount
//! is used it goes on record by record, and only while little is dirty; alone it keeps all processors and the pool busy.

use crate::failure::{Failure, Outcome};
use crate::live::Live;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use terrane_pool::Pool;
use terrane_posix::{Errno, Fs, RewriteSpec, RewriteStatus, RewriteStep};

/// How long it rests when the pool is full, or a step failed.
const LONG_REST: Duration = Duration::from_secs(5);
/// While writers wait for room.
const WAITED_FOR: Duration = Duration::from_millis(100);
/// Of what may be dirty, in percent: from there on it slows down, and there it is as slow as it gets. Writers are slowed down at 60.
const BESIDE_OTHERS: Slope = Slope { free: 10, slow: 40 };
const ALONE: Slope = Slope { free: 50, slow: 60 };
const SLOWEST: Duration = Duration::from_millis(50);
/// After a request the mount is used for so long.
const USED_FOR: Duration = Duration::from_millis(100);
/// Content that is rewritten in one step while nobody uses the mount, in bytes: as much as takes about so long, because whoever comes then
/// meets what is under way.
const STEP_BYTES_MIN: u64 = 512 << 10;
const STEP_BYTES_MAX: u64 = 4 << 20;
const STEP_TIME: Duration = Duration::from_millis(50);

struct Slope {
    free: u64,
    slow: u64,
}

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

/// How long to rest before the next step, while others use the mount or nobody does.
pub fn pause(load: Load, is_used: bool) -> Duration {
    if load.waiting > 0 {
        return WAITED_FOR;
    }
    let Slope { free, slow } = if is_used { BESIDE_OTHERS } else { ALONE };
    let percent = load.dirty_bytes.saturating_mul(100) / load.dirty_bytes_max.max(1);
    let over = percent.saturating_sub(free).min(slow - free);
    SLOWEST * u32::try_from(over * over).unwrap_or(u32::MAX) / (slow - free).pow(2) as u32
}

/// How much the next step should do, by what was seen of the one before.
struct Pace {
    requests: u64,
    used: Instant,
    bytes: u64,
}

impl Pace {
    fn new(requests: u64, now: Instant) -> Pace {
        Pace { requests, used: now, bytes: STEP_BYTES_MIN }
    }

    /// Whether others use the mount, of which so many requests were answered by now.
    fn is_used(&mut self, requests: u64, now: Instant) -> bool {
        if requests != self.requests {
            (self.requests, self.used) = (requests, now);
        }
        now.saturating_duration_since(self.used) < USED_FOR
    }

    /// A step of all the bytes took so long.
    fn took(&mut self, time: Duration) {
        let bytes = if time > STEP_TIME { self.bytes / 2 } else { self.bytes * 2 };
        self.bytes = bytes.clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
    }
}

/// Goes on with the rewrite there is. `requests` says how many were answered, `rest` waits so long, and says whether to end.
pub fn go_on(fs: &Fs, pool: &Pool, requests: &dyn Fn() -> u64, rest: &dyn Fn(Duration) -> bool) {
    let mut pace = Pace::new(requests(), Instant::now());
    loop {
        let is_used = pace.is_used(requests(), Instant::now());
        let pause = pause(Load::of(pool), is_used);
        if rest(pause) {
            return;
        }
        let begun = Instant::now();
        let step = if is_used { fs.rewrite_step() } else { fs.rewrite_batch(pace.bytes) };
        if !is_used {
            pace.took(begun.elapsed());
        }
        let rests = match step {
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

/// Has blocks born again as long as the run index takes too much memory.
pub fn bear_again(fs: &Fs, pool: &Pool, rest: &dyn Fn(Duration) -> bool) {
    while !rest(pause(Load::of(pool), true)) {
        match fs.rebirth_step() {
            Ok(true) => {}
            Ok(false) => return,
            Err(errno) => {
                if errno != Errno::ENOSPC {
                    log::error!("the run index is not kept small: {errno}; it is tried again");
                }
                rest(LONG_REST);
                return;
            }
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
        let load = |percent: u64, waiting: u64| Load {
            dirty_bytes: percent << 20,
            dirty_bytes_max: 100 << 20,
            waiting,
        };
        let beside = |percent: u64| pause(load(percent, 0), true);
        assert_eq!((beside(0), beside(10)), (Duration::ZERO, Duration::ZERO));
        assert!(beside(20) > Duration::ZERO && beside(20) < beside(30));
        assert_eq!((beside(40), beside(100)), (SLOWEST, SLOWEST));
        let alone = |percent: u64| pause(load(percent, 0), false);
        assert_eq!((alone(50), alone(60), alone(100)), (Duration::ZERO, SLOWEST, SLOWEST));
        assert!(alone(55) > Duration::ZERO && alone(55) < SLOWEST);
        assert_eq!([true, false].map(|is_used| pause(load(0, 1), is_used)), [WAITED_FOR; 2]);
        let absurd = Load { dirty_bytes: u64::MAX, dirty_bytes_max: 0, waiting: 0 };
        assert_eq!(pause(absurd, true), SLOWEST);
    }

    #[test]
    fn it_is_alone_a_while_after_the_last_request() {
        let begun = Instant::now();
        let after = |ms: u64| begun + Duration::from_millis(ms);
        let mut pace = Pace::new(7, begun);
        assert!(pace.is_used(7, begun) && pace.is_used(7, after(99)) && !pace.is_used(7, after(100)));
        assert!(pace.is_used(8, after(500)) && pace.is_used(8, after(599)) && !pace.is_used(8, after(600)));
    }

    #[test]
    fn a_step_takes_as_much_as_is_done_soon() {
        let mut pace = Pace::new(0, Instant::now());
        (0..9).for_each(|_| pace.took(Duration::from_millis(5)));
        assert_eq!(pace.bytes, STEP_BYTES_MAX);
        pace.took(Duration::from_millis(300));
        assert_eq!(pace.bytes, STEP_BYTES_MAX / 2);
        (0..9).for_each(|_| pace.took(Duration::from_secs(1)));
        assert_eq!(pace.bytes, STEP_BYTES_MIN);
    }
}
