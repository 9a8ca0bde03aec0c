//! Hash tables keyed by numbers that Terrane assigns itself.
//!
//! The standard library's hash resists an attacker who chooses keys that collide. Object numbers, addresses and node
//! ids are not chosen by users, and every operation looks into these tables. So one multiplication is enough.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A fast hash for keys that no user can choose. Iteration order is the same in every run.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// A map keyed by numbers that Terrane assigns.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
/// A set of numbers that Terrane assigns.
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;
