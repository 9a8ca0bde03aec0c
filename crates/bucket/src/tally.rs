//! A store that counts what is asked of it: stores are paid by the request.

use crate::store::{Listed, Store, StoreError, Version};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_device::RequestCounts;

/// Names that one request lists or deletes, as of S3.
pub const NAMES_PER_REQUEST: usize = 1000;

#[derive(Default)]
struct Counters {
    put: AtomicU64,
    put_bytes: AtomicU64,
    get: AtomicU64,
    get_bytes: AtomicU64,
    list: AtomicU64,
    delete: AtomicU64,
    failed: AtomicU64,
}

/// Counts each attempt, also those that fail.
pub struct Tally {
    below: Arc<dyn Store>,
    counters: Counters,
}

impl Tally {
    pub fn new(below: Arc<dyn Store>) -> Tally {
        Tally { below, counters: Counters::default() }
    }

    pub fn counts(&self) -> RequestCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        RequestCounts {
            put: of(&counters.put),
            put_bytes: of(&counters.put_bytes),
            get: of(&counters.get),
            get_bytes: of(&counters.get_bytes),
            list: of(&counters.list),
            delete: of(&counters.delete),
            failed: of(&counters.failed),
        }
    }

    /// Counts an attempt of so many requests.
    fn count<T>(
        &self,
        counter: &AtomicU64,
        requests: usize,
        outcome: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        counter.fetch_add(requests as u64, Ordering::Relaxed);
        if matches!(outcome, Err(StoreError::Failed(_) | StoreError::Unsynced(_))) {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

fn add_bytes(counter: &AtomicU64, len: usize) {
    counter.fetch_add(len as u64, Ordering::Relaxed);
}

impl Store for Tally {
    fn url(&self) -> &str {
        self.below.url()
    }

    fn create(&self, key: &str, body: &Bytes) -> Result<(), StoreError> {
        add_bytes(&self.counters.put_bytes, body.len());
        self.count(&self.counters.put, 1, self.below.create(key, body))
    }

    fn swap(&self, key: &str, body: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        add_bytes(&self.counters.put_bytes, body.len());
        self.count(&self.counters.put, 1, self.below.swap(key, body, expected))
    }

    fn get(&self, key: &str, limit: usize) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        let found = self.count(&self.counters.get, 1, self.below.get(key, limit))?;
        found.iter().for_each(|(body, _)| add_bytes(&self.counters.get_bytes, body.len()));
        Ok(found)
    }

    fn find(&self, key: &str) -> Result<Option<Version>, StoreError> {
        self.count(&self.counters.get, 1, self.below.find(key))
    }

    fn read(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.count(&self.counters.get, 1, self.below.read(key, offset, buf))?;
        add_bytes(&self.counters.get_bytes, buf.len());
        Ok(())
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, StoreError> {
        let outcome = self.below.list(prefix, after);
        let pages = outcome.as_ref().map_or(1, |found| found.len().div_ceil(NAMES_PER_REQUEST).max(1));
        self.count(&self.counters.list, pages, outcome)
    }

    fn list_children(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let outcome = self.below.list_children(prefix);
        let pages = outcome.as_ref().map_or(1, |found| found.len().div_ceil(NAMES_PER_REQUEST).max(1));
        self.count(&self.counters.list, pages, outcome)
    }

    fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let requests = keys.len().div_ceil(NAMES_PER_REQUEST);
        self.count(&self.counters.delete, requests, self.below.delete(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Fate, MemoryStore, Request};

    #[test]
    fn each_attempt_counts_by_its_kind() {
        let store = MemoryStore::default();
        let fails_third =
            |number: u64, _: Request, _: &str| if number == 2 { Fate::Fails } else { Fate::Succeeds };
        let tally = Tally::new(Arc::new(store.client(Some(Box::new(fails_third)))));
        tally.create("a", &Bytes::from_static(b"123")).unwrap();
        assert_eq!(
            tally.create("a", &Bytes::from_static(b"123")),
            Err(StoreError::Exists),
            "an answer, no failure"
        );
        assert!(tally.create("b", &Bytes::from_static(b"1")).is_err());
        let mut buf = [0; 2];
        tally.read("a", 1, &mut buf).unwrap();
        assert!(tally.get("a", 10).unwrap().is_some());
        assert_eq!(tally.list("", "").unwrap().len(), 1);
        tally.delete(&[]).unwrap();
        tally.delete(&["a".to_owned()]).unwrap();
        let expected =
            RequestCounts { put: 3, put_bytes: 7, get: 2, get_bytes: 5, list: 1, delete: 1, failed: 1 };
        assert_eq!(tally.counts(), expected);
    }
}
