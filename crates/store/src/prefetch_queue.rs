//! Prefetch: the background threads, and the set of blocks that they are loading.

use flume::{Sender, bounded};
use parking_lot::{Condvar, Mutex, RwLock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_format::block_ptr::Key;
use terrane_wire::IdSet;

/// More than processors need: the threads mostly wait for devices.
pub(crate) const THREADS: usize = 4;
pub(crate) const QUEUE_MAX: usize = 64;
/// Most bytes that are prefetched for one reader, and as a fraction of the cache. Two blocks are allowed even if they are larger.
pub(crate) const WINDOW_MAX: u64 = 8 << 20;
pub(crate) const WINDOW_DIVISOR: u64 = 16;
pub(crate) const UNREAD_DIVISOR: usize = 4;
/// Most bytes of one device request, unless a single block is larger.
pub(crate) const EXTENT_BYTES_MAX: u64 = 1 << 20;
/// Largest gap that one request reads over, in bytes. Gaps are usually directory parts, and reading them is cheaper than a second
/// request.
pub(crate) const GAP_BYTES_MAX: u64 = 16 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// The queue of the prefetch threads, which start with the first job.
pub struct PrefetchQueue {
    /// False in a pool without threads: then nothing is prefetched.
    has_threads: bool,
    is_on: AtomicBool,
    queue: OnceLock<Sender<Job>>,
    /// Read-locked while a job runs. Once it is true, no further job runs.
    ended: Arc<RwLock<bool>>,
    in_flight: Mutex<IdSet<Key>>,
    in_flight_count: AtomicUsize,
    arrived: Condvar,
}

impl PrefetchQueue {
    /// Prefetch is on if there are threads.
    pub fn new(has_threads: bool) -> PrefetchQueue {
        PrefetchQueue {
            has_threads,
            is_on: AtomicBool::new(true),
            queue: OnceLock::new(),
            ended: Arc::default(),
            in_flight: Mutex::default(),
            in_flight_count: AtomicUsize::new(0),
            arrived: Condvar::new(),
        }
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.has_threads
    }

    /// Whether anything is prefetched.
    pub(crate) fn is_on(&self) -> bool {
        self.has_threads && self.is_on.load(Ordering::Relaxed)
    }

    /// Turns prefetch on or off. It stays off in a pool without threads.
    pub fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Queues `job` for a prefetch thread. The job is dropped if the queue is full or there are no threads.
    pub fn offer(&self, job: impl FnOnce() + Send + 'static) {
        if !self.has_threads {
            return;
        }
        let ended = Arc::clone(&self.ended);
        let job = move || {
            let ended = ended.read();
            if !*ended {
                job();
            }
        };
        let _ = self.queue.get_or_init(start_threads).try_send(Box::new(job));
    }

    /// Waits for running jobs and stops all queued ones. A job holds a reference to the pool, which would keep its devices locked.
    pub fn end(&self) {
        *self.ended.write() = true;
    }

    /// Waits for a block that is being prefetched. Returns false if it is not.
    pub(crate) fn wait_for(&self, key: Key) -> bool {
        if self.in_flight_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut in_flight = self.in_flight.lock();
        let is_in_flight = in_flight.contains(&key);
        while in_flight.contains(&key) {
            self.arrived.wait(&mut in_flight);
        }
        is_in_flight
    }
}

/// The blocks of one request. They count as being prefetched until this is dropped.
pub(crate) struct InFlight<'a> {
    queue: &'a PrefetchQueue,
    keys: Vec<Key>,
}

impl<'a> InFlight<'a> {
    /// Marks the blocks as being prefetched, and removes those that another request is loading already.
    pub fn of<B>(queue: &'a PrefetchQueue, blocks: &mut Vec<B>, key: impl Fn(&B) -> Key) -> InFlight<'a> {
        let mut in_flight = queue.in_flight.lock();
        blocks.retain(|block| in_flight.insert(key(block)));
        queue.in_flight_count.store(in_flight.len(), Ordering::Release);
        InFlight { queue, keys: blocks.iter().map(key).collect() }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.queue.in_flight.lock();
        self.keys.iter().for_each(|key| {
            in_flight.remove(key);
        });
        self.queue.in_flight_count.store(in_flight.len(), Ordering::Release);
        self.queue.arrived.notify_all();
    }
}

fn start_threads() -> Sender<Job> {
    let (queue, jobs) = bounded::<Job>(QUEUE_MAX);
    for index in 0..THREADS {
        let jobs = jobs.clone();
        let thread = std::thread::Builder::new().name(format!("terrane-ahead-{index}"));
        // A panic ends only this job: its reader then loads the block itself.
        let run = |job: Job| drop(catch_unwind(AssertUnwindSafe(job)));
        if let Err(error) = thread.spawn(move || jobs.into_iter().for_each(run)) {
            log::warn!("prefetch degraded to {index} threads: {error}");
            break;
        }
    }
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_on_another_thread_until_the_queue_ends() {
        let queue = PrefetchQueue::new(true);
        let (said, heard) = bounded(4);
        let again = said.clone();
        queue.offer(move || again.send(std::thread::current().id()).expect("somebody listens"));
        assert_ne!(heard.recv(), Ok(std::thread::current().id()));
        queue.end();
        queue.offer(move || said.send(std::thread::current().id()).expect("somebody listens"));
        assert!(heard.recv().is_err(), "dropped without being run");
    }

    #[test]
    fn without_threads_nothing_that_is_offered_runs() {
        PrefetchQueue::new(false).offer(|| panic!("it runs"));
    }
}
