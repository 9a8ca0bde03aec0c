//! The numbers of one seed.

/// SplitMix64 (Steele, Lea, Flood 2014): enough for choosing operations, and one word of state.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end.max(1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(usize::try_from(self.below(items.len() as u64)).unwrap_or(0)).copied()
    }

    /// Bytes that compress, or bytes that do not.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        if self.one_in(4) {
            let seed = self.word();
            return (0..len).map(|at| (seed >> (at / 7 % 8 * 8)) as u8).collect();
        }
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.word().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}
