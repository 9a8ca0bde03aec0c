//! Tables by numbers that we assign ourselves.
//!
//! The standard library's hash resists whoever chooses keys to make a table slow. Object numbers, addresses and node ids are chosen
//! by us, and these tables stand in every operation's way, so a multiplication has to do.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Mixes numbers well enough for tables nobody outside can aim at. Its order is the same in every run.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
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

/// A map by numbers of our own.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;
/// A set of numbers of our own.
pub type NumberSet<K> = HashSet<K, BuildHasherDefault<NumberHasher>>;
