//! Background jobs of a mount, and the one loop that runs their steps.
//!
//! Threads run jobs ([`run_job`]), each at its own pace. They yield: they have the lowest
//! priority for CPUs, and pause as long as a writer waits for space in the pool.
//!
//! | job | thread | pace |
//! |---|---|---|
//! | rewrite | rewrite thread | by bytes while the mount is unused, else by records ([`rewrite_job`](crate::rewrite_job)) |
//! | recompress | the same, while no rewrite runs | in idle time ([`idle`](crate::idle)) |
//! | rewrite relocated blocks (`relocated`) | its own | as for a mount in use |
//! | shrink directories (`shrink_queue`) | housekeeping, about once per txg | without pause |

use std::time::{Duration, Instant};
use terrane_pool::Pool;
use terrane_posix::{Fs, Job, JobStep};

/// How long a job pauses when the pool is full, or a step failed.
pub const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// The pause while writers wait for space.
const SPACE_WAIT_PAUSE: Duration = Duration::from_millis(100);
/// In percent of the dirty limit: where slowing down begins, and where it is slowest. Writers are slowed down
/// at 60.
const SLOPE_IN_USE: Slope = Slope { free: 10, slow: 40 };
const SLOPE_UNUSED: Slope = Slope { free: 50, slow: 60 };
const PAUSE_MAX: Duration = Duration::from_millis(50);

struct Slope {
    free: u64,
    slow: u64,
}

/// The load of the pool, for background jobs.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub dirty_bytes: u64,
    pub dirty_bytes_max: u64,
    /// Changes that wait for space.
    pub waiting: u64,
}

impl Load {
    pub fn of(pool: &Pool) -> Load {
        let (dirty_bytes, dirty_bytes_max, waiting) = pool.load();
        Load { dirty_bytes, dirty_bytes_max, waiting }
    }
}

/// How long to pause before the next step, depending on whether the mount is in use.
pub fn pause(load: Load, is_used: bool) -> Duration {
    if load.waiting > 0 {
        return SPACE_WAIT_PAUSE;
    }
    let Slope { free, slow } = if is_used { SLOPE_IN_USE } else { SLOPE_UNUSED };
    let percent = load.dirty_bytes.saturating_mul(100) / load.dirty_bytes_max.max(1);
    let over = percent.saturating_sub(free).min(slow - free);
    PAUSE_MAX * u32::try_from(over * over).unwrap_or(u32::MAX) / (slow - free).pow(2) as u32
}

/// Decides when the next step of a job runs.
pub trait Pace {
    /// Waits for it. Returns how many bytes of content it may process; `None`: the run is over.
    fn wait(&mut self) -> Option<u64>;

    /// Reports how long that step took.
    fn record_duration(&mut self, _: Duration) {}
}

impl<F: FnMut() -> Option<u64>> Pace for F {
    fn wait(&mut self) -> Option<u64> {
        self()
    }
}

/// Step after step while the mount is in use. `sleep` sleeps that long, and returns whether to end.
pub fn wait_in_use(pool: &Pool, sleep: &dyn Fn(Duration) -> bool) -> Option<u64> {
    (!sleep(pause(Load::of(pool), true))).then_some(1)
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// Its pace ended it.
    Stopped,
    /// Nothing is left to do for now.
    Idle,
    NoSpace,
    /// A step failed; the log has the error.
    Failed,
}

/// Runs steps of a job until there is nothing left to do. `failed` is the log message that says what does not
/// happen if one fails.
pub fn run_job(job: &impl Job, failed: &str, pace: &mut impl Pace) -> RunEnd {
    while let Some(bytes) = pace.wait() {
        let begun = Instant::now();
        let step = job.step(bytes);
        pace.record_duration(begun.elapsed());
        match step {
            Ok(JobStep::Progressed) => {}
            Ok(JobStep::NothingToDo) => return RunEnd::Idle,
            Ok(JobStep::NoSpace) => return RunEnd::NoSpace,
            Err(errno) => {
                log::error!("{failed}: {errno}; retrying");
                return RunEnd::Failed;
            }
        }
    }
    RunEnd::Stopped
}

/// Has relocated blocks rewritten at new addresses as long as the relocation index exceeds its memory limit.
pub fn shrink_relocation_index(fs: &Fs, pool: &Pool, sleep: &dyn Fn(Duration) -> bool) {
    let mut pace = || wait_in_use(pool, sleep);
    if let RunEnd::NoSpace | RunEnd::Failed =
        run_job(&fs.rewrite_relocated(), "shrinking the relocation index failed", &mut pace)
    {
        sleep(FAILURE_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use terrane_posix::Errno;

    /// Returns prepared results, and records how much it was asked for.
    struct ScriptedJob(RefCell<Vec<Result<JobStep, Errno>>>, RefCell<Vec<u64>>);

    impl Job for ScriptedJob {
        type Progress = usize;

        fn step(&self, bytes: u64) -> Result<JobStep, Errno> {
            self.1.borrow_mut().push(bytes);
            self.0.borrow_mut().pop().unwrap_or(Ok(JobStep::NothingToDo))
        }

        fn progress(&self) -> usize {
            self.1.borrow().len()
        }
    }

    #[test]
    fn a_run_ends_with_its_pace_or_with_the_job() {
        for (last, expected) in [
            (Ok(JobStep::NothingToDo), RunEnd::Idle),
            (Ok(JobStep::NoSpace), RunEnd::NoSpace),
            (Err(Errno::EIO), RunEnd::Failed),
        ] {
            let job = ScriptedJob(
                RefCell::new(vec![last, Ok(JobStep::Progressed), Ok(JobStep::Progressed)]),
                RefCell::default(),
            );
            let mut bytes = 0;
            let mut pace = || {
                bytes += 1;
                Some(bytes)
            };
            assert_eq!(run_job(&job, "it is a test", &mut pace), expected);
            assert_eq!((job.progress(), job.1.take()), (3, vec![1, 2, 3]));
        }
        let job = ScriptedJob(RefCell::new(vec![Ok(JobStep::Progressed); 9]), RefCell::default());
        let mut left = 4;
        let mut pace = || {
            left -= 1;
            (left > 0).then_some(1)
        };
        assert_eq!((run_job(&job, "it is a test", &mut pace), job.progress()), (RunEnd::Stopped, 3));
    }

    #[test]
    fn pauses_grow_with_dirty_bytes() {
        let load = |percent: u64, waiting: u64| Load {
            dirty_bytes: percent << 20,
            dirty_bytes_max: 100 << 20,
            waiting,
        };
        let in_use = |percent: u64| pause(load(percent, 0), true);
        assert_eq!((in_use(0), in_use(10)), (Duration::ZERO, Duration::ZERO));
        assert!(in_use(20) > Duration::ZERO && in_use(20) < in_use(30));
        assert_eq!((in_use(40), in_use(100)), (PAUSE_MAX, PAUSE_MAX));
        let unused = |percent: u64| pause(load(percent, 0), false);
        assert_eq!((unused(50), unused(60), unused(100)), (Duration::ZERO, PAUSE_MAX, PAUSE_MAX));
        assert!(unused(55) > Duration::ZERO && unused(55) < PAUSE_MAX);
        assert_eq!([true, false].map(|is_used| pause(load(0, 1), is_used)), [SPACE_WAIT_PAUSE; 2]);
        let absurd = Load { dirty_bytes: u64::MAX, dirty_bytes_max: 0, waiting: 0 };
        assert_eq!(pause(absurd, true), PAUSE_MAX);
    }
}
