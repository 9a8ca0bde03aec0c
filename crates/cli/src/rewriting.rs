//! The rewrite thread of a mount, and questions about it.
//!
//! While the mount is in use it works record by record, and only while little is dirty. While the mount is
//! unused it keeps all CPUs and the pool busy.

use crate::failure::{Failure, Outcome};
use crate::jobs::{End, LONG_REST, Load, Pace, pause, run};
use crate::live::Live;
use serde::Serialize;
use std::time::{Duration, Instant};
use terrane_pool::Pool;
use terrane_posix::{Errno, Fs, Job, RewriteSpec, RewriteStatus};

/// The mount counts as in use for this long after a request.
const USED_FOR: Duration = Duration::from_millis(100);
/// Content that is rewritten in one step while the mount is unused, in bytes, at least. A step is sized by
/// the time it takes, because a request that arrives meanwhile waits for it.
const STEP_BYTES_MIN: u64 = 512 << 10;
const STEP_BYTES_MAX: u64 = 4 << 20;
const STEP_TIME: Duration = Duration::from_millis(50);

/// Sizes the next step by the time of the one before, and decides when it runs.
struct RewritePace<'p> {
    pool: &'p Pool,
    /// The number of requests answered.
    requests: &'p dyn Fn() -> u64,
    rest: &'p dyn Fn(Duration) -> bool,
    usage: Use,
    is_used: bool,
    bytes: u64,
}

/// Whether the mount is in use.
struct Use {
    requests: u64,
    last: Instant,
}

impl Use {
    /// Updates it with the number of requests answered by now.
    fn goes_on(&mut self, requests: u64, now: Instant) -> bool {
        if requests != self.requests {
            (self.requests, self.last) = (requests, now);
        }
        now.saturating_duration_since(self.last) < USED_FOR
    }
}

/// Bytes of content of the next step, after one of `bytes` took this long.
fn next_bytes(bytes: u64, took: Duration) -> u64 {
    let bytes = if took > STEP_TIME { bytes / 2 } else { bytes * 2 };
    bytes.clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
}

impl Pace for RewritePace<'_> {
    fn wait(&mut self) -> Option<u64> {
        self.is_used = self.usage.goes_on((self.requests)(), Instant::now());
        if (self.rest)(pause(Load::of(self.pool), self.is_used)) {
            return None;
        }
        Some(if self.is_used { 1 } else { self.bytes })
    }

    fn took(&mut self, time: Duration) {
        if !self.is_used {
            self.bytes = next_bytes(self.bytes, time);
        }
    }
}

/// Continues the current rewrite. `requests` returns the number of requests answered; `rest` sleeps that
/// long, and returns whether to end.
pub fn go_on(fs: &Fs, pool: &Pool, requests: &dyn Fn() -> u64, rest: &dyn Fn(Duration) -> bool) {
    let usage = Use { requests: requests(), last: Instant::now() };
    let mut pace = RewritePace { pool, requests, rest, usage, is_used: true, bytes: STEP_BYTES_MIN };
    while let End::NoRoom | End::Failed = run(&fs.rewrite(), "the rewrite does not go on", &mut pace) {
        if rest(LONG_REST) {
            return;
        }
    }
}

pub fn begin(live: &Live, spec: &RewriteSpec) -> Outcome<RewriteRow> {
    let fs = live.fs()?;
    fs.rewrite().begin(spec).map_err(|errno| refusal(live, fs, spec, errno))?;
    // The caller may go once it knows that it began.
    live.pool.commit()?;
    Ok(status(live))
}

fn refusal(live: &Live, fs: &Fs, spec: &RewriteSpec, errno: Errno) -> Failure {
    let name = live.pool.name();
    match errno {
        Errno::EBUSY => {
            let other =
                fs.rewrite().progress().map_or_else(String::new, |status| fs.path_of(status.spec.root));
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

pub fn cancel(live: &Live) -> Outcome<RewriteRow> {
    let fs = live.fs()?;
    fs.rewrite().cancel().map_err(|errno| Failure(format!("pool {}: {errno}", live.pool.name())))?;
    live.pool.commit()?;
    Ok(status(live))
}

/// The current rewrite, or the last one.
#[derive(Serialize)]
pub struct RewriteRow {
    name: String,
    /// `None`: there was none.
    state: Option<&'static str>,
    #[serde(flatten)]
    rewrite: Option<RewriteFigures>,
}

#[derive(Serialize)]
struct RewriteFigures {
    object: u64,
    path: String,
    recursive: bool,
    compression: Option<String>,
    recordsize: Option<u32>,
    pass: &'static str,
    files: u64,
    files_total: u64,
    stored: u64,
    stored_total: u64,
    logical: u64,
    before: u64,
    after: u64,
    reshaped: u64,
    no_room: u64,
    busy: u64,
    errors: u64,
}

pub fn status(live: &Live) -> RewriteRow {
    let name = live.pool.name();
    let found = live.fs.get().and_then(|fs| Some((fs, fs.rewrite().progress()?)));
    let Some((fs, status)) = found else { return RewriteRow { name, state: None, rewrite: None } };
    let RewriteStatus { spec, pass, state, figures } = status;
    let path = fs.path_of(spec.root);
    let rewrite = RewriteFigures {
        object: spec.root,
        path: path.split(" (inode").next().unwrap_or_default().to_owned(),
        recursive: spec.recursive,
        compression: spec.compression.map(|compression| compression.to_string()),
        recordsize: spec.record_size,
        pass: pass.name(),
        files: figures.files,
        files_total: figures.files_total,
        stored: figures.stored_bytes,
        stored_total: figures.stored_total,
        logical: figures.logical_bytes,
        before: figures.before_bytes,
        after: figures.after_bytes,
        reshaped: figures.reshaped,
        no_room: figures.no_room,
        busy: figures.busy,
        errors: figures.errors,
    };
    RewriteRow { name, state: Some(state.name()), rewrite: Some(rewrite) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_alone_a_while_after_the_last_request() {
        let begun = Instant::now();
        let after = |ms: u64| begun + Duration::from_millis(ms);
        let mut used = Use { requests: 7, last: begun };
        assert!(used.goes_on(7, begun) && used.goes_on(7, after(99)) && !used.goes_on(7, after(100)));
        assert!(used.goes_on(8, after(500)) && used.goes_on(8, after(599)) && !used.goes_on(8, after(600)));
    }

    #[test]
    fn a_step_takes_as_much_as_is_done_soon() {
        let after =
            |steps: u32, from: u64, took: Duration| (0..steps).fold(from, |bytes, _| next_bytes(bytes, took));
        assert_eq!(after(9, STEP_BYTES_MIN, Duration::from_millis(5)), STEP_BYTES_MAX);
        assert_eq!(after(1, STEP_BYTES_MAX, Duration::from_millis(300)), STEP_BYTES_MAX / 2);
        assert_eq!(after(9, STEP_BYTES_MAX, Duration::from_secs(1)), STEP_BYTES_MIN);
    }
}
