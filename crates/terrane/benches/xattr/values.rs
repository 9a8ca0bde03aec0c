//! Random values. All files have the same one, unless each should have its own.

/// Of which each file's value is a part.
const POOL_BYTES: usize = 16 << 20;

pub struct Values {
    pool: Vec<u8>,
    bytes: usize,
    distinct: bool,
}

impl Values {
    pub fn new(seed: u64, bytes: usize, distinct: bool) -> Values {
        let len = if distinct { POOL_BYTES } else { 0 } + bytes;
        let mut state = seed ^ (bytes as u64) << 32;
        let words = std::iter::repeat_with(|| next(&mut state).to_le_bytes());
        Values { pool: words.flatten().take(len).collect(), bytes, distinct }
    }

    /// Neighbours have nothing in common.
    pub fn of(&self, file: usize) -> &[u8] {
        let start = if self.distinct { file * self.bytes % POOL_BYTES } else { 0 };
        &self.pool[start..start + self.bytes]
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
