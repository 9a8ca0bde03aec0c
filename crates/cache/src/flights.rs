//! Reads in flight: a second reader of a block waits for the first, instead of reading and decompressing it again.
//!
//! The requests of a sequential reader overlap records, so two threads often need the same record at once.
//!
//! Invariant: a thread that holds a [`Flight`] never waits for another one.

use parking_lot::{Condvar, Mutex};
use terrane_format::block_ptr::Key;

/// At most one per reading thread, so a list is fastest.
#[derive(Debug, Default)]
pub struct Flights {
    under_way: Mutex<Vec<Key>>,
    landed: Condvar,
}

/// The thread that holds it reads the block for all.
pub struct Flight<'a> {
    flights: &'a Flights,
    key: Key,
}

impl Flights {
    /// Claims the read of this block. If another thread reads it, waits until that is done and returns `None`: look in the cache again.
    pub fn board(&self, key: Key) -> Option<Flight<'_>> {
        let mut under_way = self.under_way.lock();
        if !under_way.contains(&key) {
            under_way.push(key);
            return Some(Flight { flights: self, key });
        }
        while under_way.contains(&key) {
            self.landed.wait(&mut under_way);
        }
        None
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.flights.under_way.lock().retain(|key| *key != self.key);
        self.flights.landed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::addr::Addr;
    use terrane_wire::{Txg, ZoneSeq};

    #[test]
    fn who_comes_second_waits_and_others_do_not() {
        let flights = Flights::default();
        let key = |granule: u64| Key { addr: Addr::new(ZoneSeq(7), granule * 16), birth: Txg(3) };
        let flight = flights.board(key(1)).expect("nobody reads it");
        assert!(flights.board(key(2)).is_some(), "another block");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| flights.board(key(1)).is_none());
            // Until the thread waits. Woken too early, it finds the block still in flight.
            while !flights.landed.notify_one() {
                std::thread::yield_now();
            }
            drop(flight);
            assert!(second.join().expect("no panic"), "it waited");
        });
        assert!(flights.board(key(1)).is_some(), "it has landed");
    }
}
