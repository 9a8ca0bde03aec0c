//! Workers: threads for compression and checksums.
//!
//! A fixed set of threads, each with its own compression context, takes jobs from one bounded queue. Results are collected in
//! submission order. Without threads a job runs on the calling thread, so that a seeded pool stays in one thread. The same holds with
//! one thread: on one processor the handover and the wait cost more than they save.

use crate::PoolError;
use crate::env::Env;
use flume::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use terrane_codec::{Compressor, GivenUp};

type Job = Box<dyn FnOnce(&mut Compressor) + Send>;

/// The worker threads. Dropping it ends them.
pub struct Workers {
    queue: Option<Sender<Job>>,
    /// Run jobs on the calling thread: waking a worker costs more.
    inline: bool,
    /// Contexts for jobs that run on the calling thread: readers, and pools without threads.
    idle: Mutex<Vec<Compressor>>,
    given_up: Arc<GivenUp>,
}

/// The result of a job, to be received.
pub struct Pending<R>(Receiver<R>);

impl<R> Pending<R> {
    /// Waits for the result. `Failed` if the job panicked.
    pub fn wait(self) -> Result<R, PoolError> {
        self.0.recv().map_err(|_| PoolError::Failed { reason: "a worker job panicked".into() })
    }
}

impl Workers {
    /// Starts as many threads as the environment says.
    pub fn new(env: &Arc<dyn Env>) -> Workers {
        let threads = env.workers();
        let given_up = Arc::<GivenUp>::default();
        let queue = (threads > 0).then(|| {
            let (queue, jobs) = bounded::<Job>(threads * 64);
            for index in 0..threads {
                let (jobs, env, given_up) = (jobs.clone(), env.clone(), given_up.clone());
                std::thread::Builder::new()
                    .name(format!("terrane-work-{index}"))
                    .spawn(move || {
                        // Workers occupy all processors during a txg. At normal priority a reader would wait for a worker's time slice.
                        env.lower_priority();
                        let mut compressor = Compressor::counting(given_up.clone());
                        for job in jobs {
                            // After a panic, the waiting caller gets an error. The worker goes on with a new context.
                            if catch_unwind(AssertUnwindSafe(|| job(&mut compressor))).is_err() {
                                compressor = Compressor::counting(given_up.clone());
                            }
                        }
                    })
                    .expect("threads can be started when a pool is opened");
            }
            queue
        });
        Workers { queue, inline: threads < 2, idle: Mutex::default(), given_up }
    }

    /// Runs `job` on a worker, or on the calling thread if there is none.
    pub fn submit<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Compressor) -> R + Send + 'static,
    ) -> Pending<R> {
        let (answer, pending) = bounded(1);
        let job = move |compressor: &mut Compressor| {
            // The caller may have failed meanwhile and not wait any more. Then the result is dropped.
            let _ = answer.send(job(compressor));
        };
        match &self.queue {
            Some(queue) if !self.inline => {
                let _ = queue.send(Box::new(job));
            }
            // A panic reaches the caller as an error, as above.
            _ => drop(catch_unwind(AssertUnwindSafe(|| self.run_inline(job)))),
        }
        Pending(pending)
    }

    /// Runs a job that mostly waits for a far device, on a thread of its own, or on a worker if none can be started.
    pub fn submit_waiting<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Pending<R> {
        let (answer, pending) = bounded(1);
        // The thread gets the job once it has started, so that the job is not lost if it cannot.
        let (give, take) = bounded(1);
        let run = move || {
            let Ok(job) = take.recv() else { return };
            let job: Box<dyn FnOnce() -> R + Send> = job;
            drop(answer.send(job()));
        };
        match std::thread::Builder::new().name("far-read".into()).spawn(run) {
            Ok(_) => {
                drop(give.send(Box::new(job)));
                Pending(pending)
            }
            Err(_) => self.submit(|_| job()),
        }
    }

    /// Blocks that all contexts have given up.
    pub fn given_up(&self) -> &GivenUp {
        &self.given_up
    }

    /// Runs `job` on this thread with a borrowed context.
    pub fn run_inline<R>(&self, job: impl FnOnce(&mut Compressor) -> R) -> R {
        let idle = self.idle.lock().pop();
        let mut compressor = idle.unwrap_or_else(|| Compressor::counting(self.given_up.clone()));
        let answer = job(&mut compressor);
        self.idle.lock().push(compressor);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SystemEnv;

    #[test]
    fn a_panicking_job_reports_failure_and_keeps_its_worker() {
        let env: Arc<dyn Env> = Arc::new(SystemEnv::new());
        let workers = Workers::new(&env);
        // More jobs than there are threads.
        let bad: Vec<Pending<()>> = (0..3 * env.workers())
            .map(|_| workers.submit(|_| std::panic::resume_unwind(Box::new("a test says so"))))
            .collect();
        bad.into_iter().for_each(|bad| assert!(bad.wait().is_err()));
        assert_eq!(workers.submit(|_| 7).wait().ok(), Some(7));
    }
}
