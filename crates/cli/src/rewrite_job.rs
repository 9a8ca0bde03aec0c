//! The rewrite thread of a mount, and questions about it.
//!
//! While the mount is in use it works record by record, and only while little is dirty. While the mount is
//! unused it keeps all CPUs and the pool busy.

use crate::failure::{Failure, Outcome};
use crate::jobs::{FAILURE_PAUSE, Load, Pace, RunEnd, pause, run_job};
use crate::open_pool::OpenPool;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_pool::Pool;
use terrane_posix::{Errno, Fs, Job, RewriteSpec, RewriteStatus};

/// The mount counts as in use for this long after a request.
const IN_USE_PERIOD: Duration = Duration::from_millis(100);
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
    sleep: &'p dyn Fn(Duration) -> bool,
    usage: UsageWatch,
    is_used: bool,
    bytes: u64,
}

/// Whether the mount is in use.
struct UsageWatch {
    requests: u64,
    last: Instant,
}

impl UsageWatch {
    /// Updates it with the number of requests answered by now.
    fn update(&mut self, requests: u64, now: Instant) -> bool {
        if requests != self.requests {
            (self.requests, self.last) = (requests, now);
        }
        now.saturating_duration_since(self.last) < IN_USE_PERIOD
    }
}

/// Bytes of content of the next step, after one of `bytes` took this long.
fn next_bytes(bytes: u64, took: Duration) -> u64 {
    let bytes = if took > STEP_TIME { bytes / 2 } else { bytes * 2 };
    bytes.clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
}

impl Pace for RewritePace<'_> {
    fn wait(&mut self) -> Option<u64> {
        self.is_used = self.usage.update((self.requests)(), Instant::now());
        if (self.sleep)(pause(Load::of(self.pool), self.is_used)) {
            return None;
        }
        Some(if self.is_used { 1 } else { self.bytes })
    }

    fn record_duration(&mut self, time: Duration) {
        if !self.is_used {
            self.bytes = next_bytes(self.bytes, time);
        }
    }
}

/// Continues the current rewrite. `requests` returns the number of requests answered; `sleep` sleeps that
/// long, and returns whether to end.
pub fn continue_rewrite(fs: &Fs, pool: &Pool, requests: &dyn Fn() -> u64, sleep: &dyn Fn(Duration) -> bool) {
    let usage = UsageWatch { requests: requests(), last: Instant::now() };
    let mut pace = RewritePace { pool, requests, sleep, usage, is_used: true, bytes: STEP_BYTES_MIN };
    while let RunEnd::NoSpace | RunEnd::Failed = run_job(&fs.rewrite(), "rewrite step failed", &mut pace) {
        if sleep(FAILURE_PAUSE) {
            return;
        }
    }
}

pub fn begin(open_pool: &OpenPool, spec: &RewriteSpec) -> Outcome<RewriteRow> {
    let fs = open_pool.fs()?;
    fs.rewrite().begin(spec).map_err(|errno| refuse(open_pool, &fs, spec, errno))?;
    // The caller may go once it knows that it began.
    open_pool.pool.commit()?;
    Ok(status(open_pool))
}

fn refuse(open_pool: &OpenPool, fs: &Fs, spec: &RewriteSpec, errno: Errno) -> Failure {
    let name = open_pool.pool.name();
    match errno {
        Errno::EBUSY => {
            let other =
                fs.rewrite().progress().map_or_else(String::new, |status| fs.path_of(status.spec.root));
            let remedy = "wait for it, or end it by `terrane fs rewrite --cancel`";
            Failure::refused(
                format_args!("pool {name}"),
                "no other rewrite",
                format_args!("a rewrite of {other}"),
                remedy,
            )
        }
        Errno::EROFS => Failure::refused(
            format_args!("pool {name}"),
            "a writable mount",
            "a read-only mount",
            "mount it without -o ro",
        ),
        Errno::EINVAL if spec.record_size.is_some() => Failure::refused(
            "recordsize",
            format_args!(
                "at most {}, a quarter of a zone",
                crate::size::format(open_pool.pool.max_block().into())
            ),
            crate::size::format(spec.record_size.unwrap_or(0).into()),
            "choose less",
        ),
        errno => Failure(format!("pool {name}: rewrite of inode {} failed: {errno}", spec.root)),
    }
}

pub fn cancel(open_pool: &OpenPool) -> Outcome<RewriteRow> {
    let fs = open_pool.fs()?;
    fs.rewrite().cancel().map_err(|errno| {
        Failure(format!("pool {}: cancelling the rewrite failed: {errno}", open_pool.pool.name()))
    })?;
    open_pool.pool.commit()?;
    Ok(status(open_pool))
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

pub fn status(open_pool: &OpenPool) -> RewriteRow {
    let name = open_pool.pool.name();
    let found = open_pool.fs.get().and_then(|fs| Some((Arc::clone(&fs), fs.rewrite().progress()?)));
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
    fn the_mount_is_unused_some_time_after_the_last_request() {
        let begun = Instant::now();
        let after = |ms: u64| begun + Duration::from_millis(ms);
        let mut used = UsageWatch { requests: 7, last: begun };
        assert!(used.update(7, begun) && used.update(7, after(99)) && !used.update(7, after(100)));
        assert!(used.update(8, after(500)) && used.update(8, after(599)) && !used.update(8, after(600)));
    }

    #[test]
    fn steps_are_sized_by_the_time_they_take() {
        let after =
            |steps: u32, from: u64, took: Duration| (0..steps).fold(from, |bytes, _| next_bytes(bytes, took));
        assert_eq!(after(9, STEP_BYTES_MIN, Duration::from_millis(5)), STEP_BYTES_MAX);
        assert_eq!(after(1, STEP_BYTES_MAX, Duration::from_millis(300)), STEP_BYTES_MAX / 2);
        assert_eq!(after(9, STEP_BYTES_MAX, Duration::from_secs(1)), STEP_BYTES_MIN);
    }
}
