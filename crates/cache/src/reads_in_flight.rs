//! Reads in flight: a second reader of a block waits for the first, instead of reading and decompressing it again.
//!
//! The requests of a sequential reader overlap records, so two threads often need the same record at once.
//!
//! Invariant: a thread that holds a [`ReadClaim`] never waits for another one.

use parking_lot::{Condvar, Mutex};
use terrane_format::block_ptr::Key;

/// At most one per reading thread, so a list is fastest.
#[derive(Debug, Default)]
pub struct ReadsInFlight {
    keys: Mutex<Vec<Key>>,
    finished: Condvar,
}

/// The thread that holds it reads the block for all.
pub struct ReadClaim<'a> {
    reads: &'a ReadsInFlight,
    key: Key,
}

impl ReadsInFlight {
    /// Claims the read of this block. If another thread reads it, waits until that is done and returns `None`: look in the cache again.
    pub fn claim(&self, key: Key) -> Option<ReadClaim<'_>> {
        let mut keys = self.keys.lock();
        if !keys.contains(&key) {
            keys.push(key);
            return Some(ReadClaim { reads: self, key });
        }
        while keys.contains(&key) {
            self.finished.wait(&mut keys);
        }
        None
    }
}

impl Drop for ReadClaim<'_> {
    fn drop(&mut self) {
        self.reads.keys.lock().retain(|key| *key != self.key);
        self.reads.finished.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::addr::Addr;
    use terrane_wire::{Txg, ZoneSeq};

    #[test]
    fn a_second_reader_of_a_block_waits_for_the_first() {
        let reads = ReadsInFlight::default();
        let key = |granule: u64| Key { addr: Addr::new(ZoneSeq(7), granule * 16), birth: Txg(3) };
        let read_claim = reads.claim(key(1)).expect("no thread reads it");
        assert!(reads.claim(key(2)).is_some(), "another block");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| reads.claim(key(1)).is_none());
            // Until the thread waits. Woken too early, it finds the block still in flight.
            while !reads.finished.notify_one() {
                std::thread::yield_now();
            }
            drop(read_claim);
            assert!(second.join().expect("no panic"), "it waited");
        });
        assert!(reads.claim(key(1)).is_some(), "it has landed");
    }
}
