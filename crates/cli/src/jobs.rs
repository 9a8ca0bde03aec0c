//! Background jobs of a mount, and the one loop that runs their steps.
//!
//! Threads [`run`] jobs, each at its own pace. They yield: they have the lowest priority for CPUs, and pause
//! as long as a writer waits for space in the pool.
//!
//! | job | thread | pace |
//! |---|---|---|
//! | rewrite | rewrite thread | by bytes while the mount is unused, else by records ([`rewriting`](crate::rewriting)) |
//! | recompress | the same, while no rewrite runs | in idle time ([`idle`](crate::idle)) |
//! | relocated blocks (`rebirth`) | its own | beside others |
//! | shrink directories (`settle`) | housekeeping, about once per txg | without pause |

use std::time::{Duration, Instant};
use terrane_pool::Pool;
use terrane_posix::{Fs, Job, JobStep};

/// How long a job pauses when the pool is full, or a step failed.
pub const LONG_REST: Duration = Duration::from_secs(5);
/// The pause while writers wait for space.
const WAITED_FOR: Duration = Duration::from_millis(100);
/// In percent of the dirty limit: where slowing down begins, and where it is slowest. Writers are slowed down
/// at 60.
const BESIDE_OTHERS: Slope = Slope { free: 10, slow: 40 };
const ALONE: Slope = Slope { free: 50, slow: 60 };
const SLOWEST: Duration = Duration::from_millis(50);

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
        return WAITED_FOR;
    }
    let Slope { free, slow } = if is_used { BESIDE_OTHERS } else { ALONE };
    let percent = load.dirty_bytes.saturating_mul(100) / load.dirty_bytes_max.max(1);
    let over = percent.saturating_sub(free).min(slow - free);
    SLOWEST * u32::try_from(over * over).unwrap_or(u32::MAX) / (slow - free).pow(2) as u32
}

/// Decides when the next step of a job runs.
pub trait Pace {
    /// Waits for it. Returns how many bytes of content it may process; `None`: the run is over.
    fn wait(&mut self) -> Option<u64>;

    /// Reports how long that step took.
    fn took(&mut self, _: Duration) {}
}

impl<F: FnMut() -> Option<u64>> Pace for F {
    fn wait(&mut self) -> Option<u64> {
        self()
    }
}

/// Step after step while the mount is in use. `rest` sleeps that long, and returns whether to end.
pub fn beside_others(pool: &Pool, rest: &dyn Fn(Duration) -> bool) -> Option<u64> {
    (!rest(pause(Load::of(pool), true))).then_some(1)
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its pace ended it.
    Over,
    /// Nothing is left to do for now.
    Idle,
    NoRoom,
    /// A step failed; the log has the error.
    Failed,
}

/// Runs steps of a job until there is nothing left to do. `failed` is the log message that says what does not
/// happen if one fails.
pub fn run(job: &impl Job, failed: &str, pace: &mut impl Pace) -> End {
    while let Some(bytes) = pace.wait() {
        let begun = Instant::now();
        let step = job.step(bytes);
        pace.took(begun.elapsed());
        match step {
            Ok(JobStep::Went) => {}
            Ok(JobStep::Idle) => return End::Idle,
            Ok(JobStep::NoRoom) => return End::NoRoom,
            Err(errno) => {
                log::error!("{failed}: {errno}; it is tried again");
                return End::Failed;
            }
        }
    }
    End::Over
}

/// Has relocated blocks rewritten at new addresses as long as the relocation index exceeds its memory limit.
pub fn bear_again(fs: &Fs, pool: &Pool, rest: &dyn Fn(Duration) -> bool) {
    let mut pace = || beside_others(pool, rest);
    if let End::NoRoom | End::Failed = run(&fs.rebirth(), "the run index is not kept small", &mut pace) {
        rest(LONG_REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use terrane_posix::Errno;

    /// Returns prepared results, and records how much it was asked for.
    struct Told(RefCell<Vec<Result<JobStep, Errno>>>, RefCell<Vec<u64>>);

    impl Job for Told {
        type Progress = usize;

        fn step(&self, bytes: u64) -> Result<JobStep, Errno> {
            self.1.borrow_mut().push(bytes);
            self.0.borrow_mut().pop().unwrap_or(Ok(JobStep::Idle))
        }

        fn progress(&self) -> usize {
            self.1.borrow().len()
        }
    }

    #[test]
    fn a_run_ends_with_its_pace_or_with_the_job() {
        for (last, expected) in [
            (Ok(JobStep::Idle), End::Idle),
            (Ok(JobStep::NoRoom), End::NoRoom),
            (Err(Errno::EIO), End::Failed),
        ] {
            let job =
                Told(RefCell::new(vec![last, Ok(JobStep::Went), Ok(JobStep::Went)]), RefCell::default());
            let mut bytes = 0;
            let mut pace = || {
                bytes += 1;
                Some(bytes)
            };
            assert_eq!(run(&job, "it is a test", &mut pace), expected);
            assert_eq!((job.progress(), job.1.take()), (3, vec![1, 2, 3]));
        }
        let job = Told(RefCell::new(vec![Ok(JobStep::Went); 9]), RefCell::default());
        let mut left = 4;
        let mut pace = || {
            left -= 1;
            (left > 0).then_some(1)
        };
        assert_eq!((run(&job, "it is a test", &mut pace), job.progress()), (End::Over, 3));
    }

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
}
