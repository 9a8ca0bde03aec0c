//! Workers: compression and checksums, off the thread that asks.
//!
//! A fixed set of threads, each with its own compression contexts, takes jobs from one bounded queue. Answers come back in the
//! order of the questions. With no threads a job runs where it is submitted, so that a seeded pool stays in one thread; with one as
//! well, because on one processor handing it over and waiting for it costs more than it wins.

use crate::PoolError;
use crate::env::Env;
use flume::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use terrane_codec::Compressor;

type Job = Box<dyn FnOnce(&mut Compressor) + Send>;

pub struct Workers {
    queue: Option<Sender<Job>>,
    /// Nobody would be faster than who asks.
    alone: bool,
    /// For callers that need a context now: readers, and pools without threads.
    idle: Mutex<Vec<Compressor>>,
}

/// An answer on its way.
pub struct Pending<R>(Receiver<R>);

impl<R> Pending<R> {
    pub fn wait(self) -> Result<R, PoolError> {
        self.0.recv().map_err(|_| PoolError::Failed { reason: "a job of the workers panicked".into() })
    }
}

impl Workers {
    /// As many threads as the environment says.
    pub fn new(env: &Arc<dyn Env>) -> Workers {
        let threads = env.workers();
        let queue = (threads > 0).then(|| {
            let (queue, jobs) = bounded::<Job>(threads * 64);
            for index in 0..threads {
                let (jobs, env) = (jobs.clone(), env.clone());
                std::thread::Builder::new()
                    .name(format!("terrane-work-{index}"))
                    .spawn(move || {
                        // They take all processors for a group, and a reader would wait for the slice of one.
                        env.be_nice();
                        let mut compressor = Compressor::new();
                        for job in jobs {
                            // Who waits for the answer of a job that panicked hears that there is none; the others need a worker.
                            if catch_unwind(AssertUnwindSafe(|| job(&mut compressor))).is_err() {
                                compressor = Compressor::new();
                            }
                        }
                    })
                    .expect("threads can be started when a pool is opened");
            }
            queue
        });
        Workers { queue, alone: threads < 2, idle: Mutex::default() }
    }

    /// Runs `job` on a worker, or here if there is none.
    pub fn submit<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Compressor) -> R + Send + 'static,
    ) -> Pending<R> {
        let (answer, pending) = bounded(1);
        let job = move |compressor: &mut Compressor| {
            // Nobody waits any more when the caller failed meanwhile; the answer may be dropped.
            let _ = answer.send(job(compressor));
        };
        match &self.queue {
            Some(queue) if !self.alone => {
                let _ = queue.send(Box::new(job));
            }
            // As above.
            _ => drop(catch_unwind(AssertUnwindSafe(|| self.here(job)))),
        }
        Pending(pending)
    }

    /// Runs `job` in this thread with a borrowed context.
    pub fn here<R>(&self, job: impl FnOnce(&mut Compressor) -> R) -> R {
        let mut compressor = self.idle.lock().pop().unwrap_or_default();
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
    fn a_job_that_panics_is_heard_of_and_costs_no_worker() {
        let env: Arc<dyn Env> = Arc::new(SystemEnv::new());
        let workers = Workers::new(&env);
        // More than there are threads.
        let bad: Vec<Pending<()>> = (0..3 * env.workers())
            .map(|_| workers.submit(|_| std::panic::resume_unwind(Box::new("a test says so"))))
            .collect();
        bad.into_iter().for_each(|bad| assert!(bad.wait().is_err()));
        assert_eq!(workers.submit(|_| 7).wait().ok(), Some(7));
    }
}
