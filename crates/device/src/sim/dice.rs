//! The simulator's only source of chance: a seed gives the same run for ever, on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and a mix, good enough for choices, never for secrets.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Dice(seed)
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `0..limit`; 0 for an empty range. The bias of the remainder does not matter here.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.roll().checked_rem(limit).unwrap_or(0)
    }

    /// True once in `count` times; never for 0.
    pub(super) fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let random = self.roll().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
}
