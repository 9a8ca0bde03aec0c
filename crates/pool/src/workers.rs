//! Workers: compression and checksums, off the thread that asks.
//!
//! A fixed set of threads, each with its own compression contexts, takes jobs from one bounded queue. Answers come back in the
//! order of the questions. With no threads a job runs where it is submitted, so that a seeded pool stays in one thread; with one as
//! well, because on one processor handing it over and waiting for it costs more than it wins.

use crate::error::PoolError;
use flume::{Receiver, Sender, bounded};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use terrane_codec::Compressor;

type Job = Box<dyn FnOnce(&mut Compressor) + Send>;

pub struct Workers {
    queue: Option<Sender<Job>>,
    /// Nobody would be faster than who asks.
    alone: bool,
    /// For callers that need a context now: readers, and pools without threads.
    idle: Mutex<Vec<Compressor>>,
    /// Read while an offered job runs; true: no more of them do.
    offers_ended: Arc<RwLock<bool>>,
}

/// An answer on its way.
pub struct Pending<R>(Receiver<R>);

impl<R> Pending<R> {
    pub fn wait(self) -> Result<R, PoolError> {
        self.0.recv().map_err(|_| PoolError::Failed { reason: "a worker died".into() })
    }
}

impl Workers {
    pub fn new(threads: usize) -> Workers {
        let queue = (threads > 0).then(|| {
            let (queue, jobs) = bounded::<Job>(threads * 64);
            for index in 0..threads {
                let jobs = jobs.clone();
                std::thread::Builder::new()
                    .name(format!("terrane-work-{index}"))
                    .spawn(move || {
                        let mut compressor = Compressor::new();
                        for job in jobs {
                            job(&mut compressor);
                        }
                    })
                    .expect("threads can be started when a pool is opened");
            }
            queue
        });
        Workers { queue, alone: threads < 2, idle: Mutex::default(), offers_ended: Arc::default() }
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
            _ => self.here(job),
        }
        Pending(pending)
    }

    /// Has `job` run by a worker some time, or not at all: where there are none, or all have enough to do.
    pub fn offer(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(queue) = &self.queue {
            let ended = Arc::clone(&self.offers_ended);
            let job = move |_: &mut Compressor| {
                let ended = ended.read();
                if !*ended {
                    job();
                }
            };
            let _ = queue.try_send(Box::new(job));
        }
    }

    /// Waits until no offered job runs, and lets none run from now on: what they hold of the pool would keep its devices locked.
    pub fn end_offers(&self) {
        *self.offers_ended.write() = true;
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

    #[test]
    fn what_is_offered_runs_elsewhere_until_offers_end() {
        let workers = Workers::new(1);
        let (said, heard) = bounded(4);
        let again = said.clone();
        workers.offer(move || again.send(std::thread::current().id()).expect("somebody listens"));
        assert_ne!(heard.recv(), Ok(std::thread::current().id()));
        workers.end_offers();
        workers.offer(move || said.send(std::thread::current().id()).expect("somebody listens"));
        assert!(heard.recv().is_err(), "dropped without being run");
    }

    #[test]
    fn without_threads_nothing_that_is_offered_runs() {
        Workers::new(0).offer(|| panic!("it runs"));
    }
}
