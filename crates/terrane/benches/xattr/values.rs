//! Random values. All files have the same one, unless each should have its own.

use crate::random;

/// Each file's value is a part of it.
const POOL_BYTES: usize = 16 << 20;

pub struct Values {
    pool: Vec<u8>,
    bytes: usize,
    distinct: bool,
}

impl Values {
    pub fn new(seed: u64, bytes: usize, distinct: bool) -> Values {
        let len = if distinct { POOL_BYTES } else { 0 } + bytes;
        Values { pool: random::bytes(seed ^ (bytes as u64) << 32, len), bytes, distinct }
    }

    /// Neighbours have nothing in common.
    pub fn of(&self, file: usize) -> &[u8] {
        let start = if self.distinct { file * self.bytes % POOL_BYTES } else { 0 };
        &self.pool[start..start + self.bytes]
    }
}
