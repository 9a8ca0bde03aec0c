//! Requests that are repeated until the store answers, and threads that put and delete.
//!
//! A store that cannot be reached is waited for, as a disk that hangs: with a message, and with a bound. Every request
//! can be repeated. A part that exists with the same bytes was put by an earlier attempt of this process. The only object
//! that another opener puts there is a seal, and that is empty.

use crate::filling::{Body, FillingId};
use crate::root::TableId;
use crate::store::{Store, StoreError};
use crate::tally::{NAMES_PER_REQUEST, Tally};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use terrane_device::monotonic_ns;

/// The longest pause before a request is repeated.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A filling is listed, and its objects are deleted.
const DELETE_REQUESTS: u64 = 2;
/// Threads that delete at a time: the others are there for what is written.
const DELETES_MAX: usize = 4;
/// How long a deletion waits that the budget does not allow, in nanoseconds.
const BUDGET_WAIT_NS: u64 = 30_000_000_000;
/// An object of up to this size is read to see whether this process made it, in bytes.
const COMPARED_MAX: usize = 64 << 20;

/// A store whose failures are waited for.
pub struct Requests {
    store: Arc<Tally>,
    pause: Duration,
    write_patience: Duration,
    read_patience: Duration,
    trouble: Mutex<Trouble>,
    changed: Condvar,
    budget: Mutex<Budget>,
}

/// Requests that work in the background may send.
#[derive(Default)]
struct Budget {
    /// 0: they are not bounded. `None`: the bound is not known yet, and nothing is sent.
    per_hour: Option<u64>,
    /// What is left, at a time of the monotonic clock. Negative: more was sent than was left.
    left: f64,
    at_ns: u64,
}

const HOUR_NS: f64 = 3600e9;

impl Budget {
    /// What was not sent in an hour is not saved.
    fn set(&mut self, per_hour: u64, now: u64) {
        if self.per_hour != Some(per_hour) {
            *self = Budget { per_hour: Some(per_hour), left: per_hour as f64, at_ns: now };
        }
    }

    fn take(&mut self, requests: u64, now: u64) -> bool {
        let per_hour = match self.per_hour {
            None => return false,
            Some(0) => return true,
            Some(per_hour) => per_hour as f64,
        };
        let earned = now.saturating_sub(self.at_ns) as f64 / HOUR_NS * per_hour;
        (self.left, self.at_ns) = ((self.left + earned).min(per_hour), now);
        let may = self.left >= 1.0;
        self.left -= if may { requests as f64 } else { 0.0 };
        may
    }
}

#[derive(Default)]
struct Trouble {
    /// What failed, while it is repeated.
    text: Option<String>,
    /// When a request succeeded last, on the monotonic clock.
    succeeded: u64,
    /// Since when the caller is in a hurry, and how long it still waits for the store.
    hurry: Option<(u64, Duration)>,
    /// Why the store is asked for nothing any more.
    given_up: Option<String>,
}

impl Trouble {
    /// When a request is given up that has failed since `since`.
    fn end(&self, since: u64, patience: Duration) -> u64 {
        let after = |since: u64, time: Duration| {
            since.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        let in_hurry = self.hurry.map_or(u64::MAX, |(begun, patience)| after(begun.max(since), patience));
        after(since, patience).min(in_hurry)
    }
}

impl Requests {
    /// Requests are repeated after a pause, which grows, and fail after they have failed for so long: those that write, and those
    /// that read.
    pub fn new(
        store: Arc<Tally>,
        pause: Duration,
        (write_patience, read_patience): (Duration, Duration),
    ) -> Requests {
        Requests {
            store,
            pause,
            write_patience,
            read_patience,
            trouble: Mutex::default(),
            changed: Condvar::new(),
            budget: Mutex::default(),
        }
    }

    /// Bounds the requests of work in the background, in an hour. 0: they are not bounded.
    pub fn set_budget(&self, per_hour: u64) {
        self.budget.lock().set(per_hour, monotonic_ns());
    }

    /// Takes requests from the budget. False: nothing was left.
    pub fn may_spend(&self, requests: u64) -> bool {
        self.budget.lock().take(requests, monotonic_ns())
    }

    pub fn url(&self) -> &str {
        self.store.url()
    }

    /// The store, with what was asked of it.
    pub fn store(&self) -> &Arc<Tally> {
        &self.store
    }

    /// The version of an object.
    ///
    /// # Errors
    /// `Failed`: patience is over.
    pub fn find(&self, key: &str) -> Result<Option<crate::Version>, StoreError> {
        self.insist(("head", key), self.read_patience, |store| store.find(key))
    }

    /// Why requests fail at the moment.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.given_up.clone().or_else(|| trouble.text.clone())
    }

    /// Repeats each request for no longer than this from now on. When no request succeeds for so long, all others fail at once.
    pub fn hurry(&self, patience: Duration) {
        let mut trouble = self.trouble.lock();
        if trouble.hurry.is_none_or(|(_, before)| patience < before) {
            trouble.hurry = Some((monotonic_ns(), patience));
        }
        self.changed.notify_all();
    }

    /// Repeats no request any more.
    pub fn close(&self) {
        self.hurry(Duration::ZERO);
    }

    /// Repeats what is `Failed` until `patience` is over.
    fn insist<T>(
        &self,
        (what, key): (&str, &str),
        patience: Duration,
        mut once: impl FnMut(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (mut failing_since, mut pause) = (None, self.pause);
        loop {
            if let Some(text) = &self.trouble.lock().given_up {
                return Err(StoreError::GivenUp(text.clone()));
            }
            let begun = monotonic_ns();
            let outcome = once(self.store.as_ref());
            let now = monotonic_ns();
            log::debug!("{}: {what} of {key}: {} ms", self.url(), (now - begun) / 1_000_000);
            let mut trouble = self.trouble.lock();
            let text = match outcome {
                Err(StoreError::Failed(text)) => text,
                outcome => {
                    trouble.succeeded = now;
                    if failing_since.is_some() {
                        log::info!("{}: {what} of {key} succeeded", self.url());
                        trouble.text = None;
                    }
                    return outcome;
                }
            };
            let since = *failing_since.get_or_insert(now);
            if trouble.end(since, Duration::MAX) <= now && trouble.succeeded < since {
                let give_up = || {
                    log::error!("{}: the store does not answer, and is given up: {text}", self.url());
                    format!("the store did not answer, and was given up: {text}")
                };
                let text = trouble.given_up.get_or_insert_with(give_up).clone();
                self.changed.notify_all();
                return Err(StoreError::GivenUp(text));
            }
            let end = trouble.end(since, patience);
            if end <= now {
                return Err(StoreError::Failed(text));
            }
            log::warn!("{}: {what} of {key} failed, trying again: {text}", self.url());
            trouble.text = Some(format!("{what} failed, trying again: {text}"));
            self.changed.wait_for(&mut trouble, pause.min(Duration::from_nanos(end - now)));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Makes an object that no other process makes. Its seal may be there.
    ///
    /// # Errors
    /// `Exists`: it was sealed. `Failed`: patience is over.
    pub fn put(&self, key: &str, body: &Bytes) -> Result<(), StoreError> {
        self.insist(("put", key), self.write_patience, |store| {
            match store.create(key, body) {
                // A seal is there already, or a part: the caller lists what is there.
                Err(StoreError::Exists) if body.is_empty() => Err(StoreError::Exists),
                Err(StoreError::Exists) => match store.get(key, body.len().max(COMPARED_MAX))? {
                    // Not by its length: a copy of this process, as a restored virtual machine has one, writes other bytes.
                    Some((found, _)) if found == *body => Ok(()),
                    Some(_) => Err(StoreError::Exists),
                    // Another request for the object is under way, perhaps an earlier one of this process.
                    None => Err(StoreError::Failed("another request for the object is under way".into())),
                },
                outcome => outcome,
            }
        })
    }

    /// Runs `once`, which swaps, until it succeeds or fails for good.
    ///
    /// # Errors
    /// Those of `once`; `Failed` when patience is over.
    pub fn swap<T>(
        &self,
        key: &str,
        once: impl FnMut(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.insist(("replacing", key), self.write_patience, once)
    }

    /// An object of at most `limit` bytes.
    ///
    /// # Errors
    /// `Failed`: patience is over.
    pub fn get(&self, key: &str, limit: usize) -> Result<Option<(Vec<u8>, crate::Version)>, StoreError> {
        self.insist(("get", key), self.read_patience, |store| store.get(key, limit))
    }

    /// A range of an object.
    ///
    /// # Errors
    /// `Missing`; `Failed`: patience is over.
    pub fn read(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.insist(("read", key), self.read_patience, |store| store.read(key, offset, buf))
    }

    /// Names that begin with a prefix and come after `after`.
    ///
    /// # Errors
    /// `Failed`: patience is over.
    pub fn list(&self, prefix: &str, after: &str) -> Result<Vec<crate::Listed>, StoreError> {
        self.insist(("list", prefix), self.read_patience, |store| store.list(prefix, after))
    }

    /// What is one level below a prefix.
    ///
    /// # Errors
    /// `Failed`: patience is over.
    pub fn list_children(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.insist(("list", prefix), self.read_patience, |store| store.list_children(prefix))
    }

    /// Removes all objects of a filling, and the table of that name. One attempt.
    fn delete(&self, id: FillingId) -> Result<(), StoreError> {
        let mut keys: Vec<String> =
            self.store.list(&id.prefix(), "")?.into_iter().map(|found| found.key).collect();
        // One list and one deletion for each thousand; those of the first were taken before.
        self.may_spend(DELETE_REQUESTS * (keys.len() / NAMES_PER_REQUEST) as u64);
        keys.push(TableId(id).key());
        self.store.delete(&keys)
    }

    /// Whether the device is being given up.
    pub fn is_closed(&self) -> bool {
        self.trouble.lock().hurry.is_some_and(|(_, patience)| patience.is_zero())
    }
}

/// What a thread does for readers.
type Fetch = Box<dyn FnOnce() + Send>;

/// A part that is to be put.
type PutJob = (u64, String, Arc<Body>);

enum Job {
    Fetch(Fetch),
    Put(PutJob),
    Delete(FillingId),
}

#[derive(Default)]
struct Queue {
    puts: VecDeque<PutJob>,
    /// Fillings to delete, by when, on the monotonic clock; and the same by filling.
    deletes: BTreeSet<(u64, FillingId)>,
    delete_at: BTreeMap<FillingId, u64>,
    fetches: VecDeque<Fetch>,
    /// Puts that were handed over and have not ended.
    under_way: BTreeSet<u64>,
    next_ticket: u64,
    /// Why a put failed for good.
    failed: Option<StoreError>,
    /// Parts that were not put.
    kept: Vec<Arc<Body>>,
    /// Fillings that a thread deletes at this moment.
    deleting: BTreeSet<FillingId>,
    /// Fillings whose objects are gone.
    deleted: Vec<FillingId>,
    /// Parts that may wait for a thread or be under way; then writers wait.
    parts_max: usize,
    ends: bool,
}

struct Shared {
    requests: Arc<Requests>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Threads that put parts and delete fillings.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    writes: bool,
}

impl Workers {
    /// `count` 0: each job is done by the thread that hands it over. Up to `parts_max` parts are taken.
    pub fn start(requests: Arc<Requests>, count: usize, parts_max: usize) -> Workers {
        let queue = Mutex::new(Queue { parts_max: parts_max.max(1), ..Queue::default() });
        let shared = Arc::new(Shared { requests, queue, changed: Condvar::new() });
        let spawn = |is_for_reads: bool| {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name("bucket".into());
            builder.spawn(move || {
                while let Some(job) = shared.next_job(is_for_reads) {
                    shared.run(job);
                }
            })
        };
        // Reads do not wait for writes that the store does not take. Fewer threads are slower, and none is as good as one.
        let mut threads: Vec<_> = (0..count).filter_map(|_| spawn(false).ok()).collect();
        let writes = !threads.is_empty();
        threads.extend((0..count).filter_map(|_| spawn(true).ok()));
        Workers { threads, shared, writes }
    }

    /// Whether there are threads. Otherwise the caller does each job.
    pub fn has_threads(&self) -> bool {
        self.writes
    }

    /// Sets how many parts are taken.
    pub fn set_parts_max(&self, parts_max: usize) {
        self.shared.queue.lock().parts_max = parts_max.max(1);
        self.shared.changed.notify_all();
    }

    /// Hands over what a reader may need soon.
    pub fn fetch(&self, fetch: Fetch) {
        if !self.has_threads() {
            return fetch();
        }
        self.shared.queue.lock().fetches.push_back(fetch);
        self.shared.changed.notify_all();
    }

    /// Hands over a part. Waits while too many do.
    pub fn put(&self, key: String, body: Arc<Body>) {
        let mut queue = self.shared.queue.lock();
        while queue.under_way.len() >= queue.parts_max && queue.failed.is_none() {
            self.shared.changed.wait(&mut queue);
        }
        queue.next_ticket += 1;
        let ticket = queue.next_ticket;
        queue.under_way.insert(ticket);
        if self.has_threads() {
            queue.puts.push_back((ticket, key, body));
            drop(queue);
            self.shared.changed.notify_all();
        } else {
            drop(queue);
            self.shared.put(ticket, &key, body);
        }
    }

    /// Hands over a filling that no root names, to be deleted after a time. The newest time counts. Without threads it is
    /// deleted by the call that says that it is time.
    pub fn delete(&self, id: FillingId, after: Duration) {
        let mut queue = self.shared.queue.lock();
        if queue.deleted.contains(&id) || queue.deleting.contains(&id) {
            return;
        }
        if !self.has_threads() {
            drop(queue);
            if after.is_zero() {
                self.shared.delete(id);
            }
            return;
        }
        let due = monotonic_ns().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        if let Some(before) = queue.delete_at.insert(id, due) {
            queue.deletes.remove(&(before, id));
        }
        queue.deletes.insert((due, id));
        let is_next = queue.deletes.first() == Some(&(due, id));
        drop(queue);
        if is_next {
            // Threads wait until the time of the one that was next.
            self.shared.changed.notify_all();
        }
    }

    /// Waits until all parts that were handed over have been put.
    ///
    /// # Errors
    /// One of them, or an earlier one, failed for good.
    pub fn wait(&self) -> Result<(), StoreError> {
        let mut queue = self.shared.queue.lock();
        let newest = queue.next_ticket;
        loop {
            if let Some(error) = &queue.failed {
                return Err(error.clone());
            }
            if queue.under_way.first().is_none_or(|oldest| *oldest > newest) {
                return Ok(());
            }
            self.shared.changed.wait(&mut queue);
        }
    }

    /// Fillings whose objects were deleted since the last call.
    pub fn take_deleted(&self) -> Vec<FillingId> {
        std::mem::take(&mut self.shared.queue.lock().deleted)
    }
}

impl Shared {
    fn next_job(&self, is_for_reads: bool) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if is_for_reads {
                match queue.fetches.pop_front().filter(|_| !queue.ends) {
                    Some(fetch) => return Some(Job::Fetch(fetch)),
                    None if queue.ends => return None,
                    None => self.changed.wait(&mut queue),
                }
                continue;
            }
            if let Some(job) = queue.puts.pop_front() {
                self.changed.notify_all();
                return Some(Job::Put(job));
            }
            if queue.ends {
                return None;
            }
            let now = monotonic_ns();
            match queue.deletes.first().copied() {
                Some((due, _)) if due <= now && queue.deleting.len() >= DELETES_MAX => {
                    self.changed.wait(&mut queue);
                }
                Some((due, id)) if due <= now => {
                    queue.deletes.remove(&(due, id));
                    queue.delete_at.remove(&id);
                    queue.deleting.insert(id);
                    return Some(Job::Delete(id));
                }
                Some((due, _)) => {
                    self.changed.wait_for(&mut queue, Duration::from_nanos(due - now));
                }
                None => self.changed.wait(&mut queue),
            }
        }
    }

    fn run(&self, job: Job) {
        match job {
            Job::Fetch(fetch) => fetch(),
            Job::Put((ticket, key, body)) => self.put(ticket, &key, body),
            Job::Delete(id) => self.delete(id),
        }
    }

    fn put(&self, ticket: u64, key: &str, body: Arc<Body>) {
        let outcome = self.requests.put(key, &Body::content(&body));
        let mut queue = self.queue.lock();
        queue.under_way.remove(&ticket);
        match outcome {
            Ok(()) => body.is_stored.store(true, Ordering::Release),
            Err(error) => {
                log::error!("{}: {key} not put: {error}", self.requests.url());
                queue.failed.get_or_insert(error);
                // It stays readable here, and counts as not stored.
                queue.kept.push(body);
            }
        }
        self.changed.notify_all();
    }

    fn delete(&self, id: FillingId) {
        if !self.requests.may_spend(DELETE_REQUESTS) {
            let mut queue = self.queue.lock();
            queue.deleting.remove(&id);
            let due = monotonic_ns().saturating_add(BUDGET_WAIT_NS);
            if queue.delete_at.insert(id, due).is_none() {
                queue.deletes.insert((due, id));
            }
            return;
        }
        let outcome = self.requests.delete(id);
        let mut queue = self.queue.lock();
        queue.deleting.remove(&id);
        self.changed.notify_all();
        match outcome {
            Ok(()) => queue.deleted.push(id),
            // The root still names it as garbage, so it is tried again.
            Err(error) => log::warn!("{}: {id} not deleted: {error}", self.requests.url()),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.queue.lock().ends = true;
        self.shared.changed.notify_all();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filling::Filling;
    use crate::memory::{Fate, MemoryStore};

    fn new_requests(store: MemoryStore, patience: Duration) -> Requests {
        let store = Arc::new(Tally::new(Arc::new(store)));
        Requests::new(store, Duration::from_millis(50), (patience, patience))
    }

    fn requests(store: MemoryStore) -> Arc<Requests> {
        Arc::new(new_requests(store, Duration::ZERO))
    }

    #[test]
    fn only_the_same_content_is_an_earlier_attempt() {
        let store = MemoryStore::default();
        let requests = requests(store.client(None));
        assert_eq!(
            (requests.put("a", &Bytes::from_static(b"one")), requests.put("a", &Bytes::from_static(b"one"))),
            (Ok(()), Ok(()))
        );
        assert_eq!(
            requests.put("a", &Bytes::from_static(b"two")),
            Err(StoreError::Exists),
            "that of a copy of this process"
        );
        assert_eq!(
            (requests.put("b", &Bytes::from_static(b"")), requests.put("b", &Bytes::from_static(b""))),
            (Ok(()), Err(StoreError::Exists))
        );
        assert_eq!(requests.put("b", &Bytes::from_static(b"one")), Err(StoreError::Exists), "sealed");
    }

    #[test]
    fn a_part_that_was_not_put_does_not_count_as_stored() {
        for threads in [0, 2] {
            let store = MemoryStore::default();
            let client = store.client(Some(Box::new(
                |number, _, _| if number == 0 { Fate::Succeeds } else { Fate::Fails },
            )));
            let workers = Workers::start(requests(client), threads, 4);
            let mut filling = Filling::begin(FillingId { opener: 1, number: 1 });
            filling.tail = vec![1; 8192];
            let (key, body) = filling.cut(4096).unwrap();
            workers.put(key, body);
            workers.wait().unwrap();
            let (key, body) = filling.cut(4096).unwrap();
            workers.put(key, body);
            assert!(workers.wait().is_err());
            assert!(filling.parts[0].is_stored() && !filling.parts[1].is_stored());
            assert_eq!(filling.parts[1].body.upgrade().unwrap().bytes, [1; 4096], "and is read from here");
        }
    }

    #[test]
    fn a_budget_is_earned_by_the_hour() {
        let mut budget = Budget::default();
        assert!(!budget.take(1, 0), "not known");
        budget.set(0, 0);
        assert!((0..100).all(|now| budget.take(50, now)), "not bounded");
        budget.set(10, 0);
        assert_eq!([3, 20, 1].map(|requests| budget.take(requests, 0)), [true, true, false]);
        let hour = HOUR_NS as u64;
        // 13 more than was left.
        assert!(!budget.take(1, hour) && budget.take(1, 3 * hour / 2));
        assert!(
            (0..10).all(|_| budget.take(1, 100 * hour)) && !budget.take(1, 100 * hour),
            "nothing is saved"
        );
        budget.set(10, 100 * hour);
        assert!(!budget.take(1, 100 * hour), "set again to the same");
        budget.set(0, 0);
        assert!(budget.take(1000, 0));
    }

    #[test]
    fn one_request_that_fails_is_no_reason_to_give_the_store_up() {
        let client = MemoryStore::default()
            .client(Some(Box::new(|_, _, key| if key == "bad" { Fate::Fails } else { Fate::Succeeds })));
        let hour = Duration::from_secs(3600);
        let requests = new_requests(client, hour);
        requests.hurry(Duration::from_millis(200));
        std::thread::scope(|scope| {
            let bad = scope.spawn(|| requests.get("bad", 1));
            while !bad.is_finished() {
                requests.get("good", 1).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(matches!(bad.join().unwrap(), Err(StoreError::Failed(_))));
        });
        assert_eq!(requests.get("good", 1), Ok(None));
    }

    #[test]
    fn a_store_that_is_away_is_waited_for_until_the_pool_is_closed() {
        let hour = Duration::from_secs(3600);
        let client = MemoryStore::default().client(Some(Box::new(|_, _, _| Fate::Fails)));
        let requests = Arc::new(new_requests(client, hour));
        let workers = Workers::start(Arc::clone(&requests), 2, 1);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut filling = Filling::begin(FillingId { opener: 1, number: 1 });
                filling.tail = vec![1; 3 * 4096];
                // One is taken. The others wait until it has failed for good.
                while let Some((key, body)) = filling.cut(4096) {
                    workers.put(key, body);
                }
                workers.wait()
            });
            while requests.trouble().is_none() {
                std::thread::yield_now();
            }
            assert!(!writer.is_finished());
            requests.hurry(Duration::from_millis(20));
            assert!(writer.join().unwrap().is_err());
        });
        // The others are not even sent.
        let asked = requests.store().counts().get;
        assert!(matches!(requests.get("x", 1), Err(StoreError::GivenUp(_))));
        assert_eq!(requests.store().counts().get, asked);
        requests.close();
        assert!(requests.put("later", &Bytes::from_static(b"x")).is_err(), "nor is anything else");
    }
}
