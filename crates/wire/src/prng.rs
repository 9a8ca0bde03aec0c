//! A pseudorandom generator for tests and simulations: a seed gives the same numbers on every machine and in every
//! version.

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and a mixing function. It is good enough for choices, never for
/// secrets.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// The increment of the state for each number.
    pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// A generator whose numbers follow from `seed` alone.
    pub fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// The next 64 pseudorandom bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Prng::STEP);
        mix64(self.0)
    }

    /// A number in `0..end`; 0 if `end` is 0. The bias of the remainder does not matter here.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64().checked_rem(end).unwrap_or(0)
    }

    /// True with a chance of 1 in `count`; never for 0.
    pub fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// A number from 0 (included) to 1 (excluded).
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `items`; `None` if the slice is empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(usize::try_from(self.below(items.len() as u64)).unwrap_or(0)).copied()
    }

    /// One of `items`, for lists that are literals at the call.
    ///
    /// # Panics
    /// If the slice is empty.
    pub fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(items.len() as u64)).unwrap_or(0);
        items.get(at).expect("one_of takes a list with at least one item")
    }

    /// Fills the slice with random bytes, which do not compress.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            piece.iter_mut().zip(word).for_each(|(byte, random)| *byte = random);
        }
    }

    /// `len` random bytes, which do not compress.
    pub fn random_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// `len` bytes: one time in four they compress, else they are random.
    pub fn sample_bytes(&mut self, len: usize) -> Vec<u8> {
        if self.one_in(4) {
            let seed = self.next_u64();
            return (0..len).map(|at| (seed >> (at / 7 % 8 * 8)) as u8).collect();
        }
        self.random_bytes(len)
    }
}

/// The finalizer of SplitMix64: every input bit affects every output bit. It is a bijection, so different numbers
/// stay different.
pub const fn mix64(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One step of SplitMix64: the first number of a [`Prng`] with this seed.
pub const fn splitmix64(number: u64) -> u64 {
    mix64(number.wrapping_add(Prng::STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_numbers_of_the_paper() {
        // The first outputs of Vigna's splitmix64.c for the seed 1234567.
        let mut rng = Prng::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
        ];
        assert_eq!(expected.map(|_| rng.next_u64()), expected);
        assert_eq!(splitmix64(1_234_567), expected[0]);
    }

    #[test]
    fn empty_ranges_give_zero_or_none() {
        let mut rng = Prng::new(7);
        assert_eq!((rng.below(0), rng.one_in(0), rng.pick::<u8>(&[])), (0, false, None));
        assert!((0..100).all(|_| rng.below(3) < 3 && rng.next_f64() < 1.0));
        assert_eq!(rng.random_bytes(13).len(), 13);
    }
}
