//! Bytes that do not compress.

/// As many as wanted, by SplitMix64; another seed gives others.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    // Seeds that follow each other would give streams that do.
    let mut state = mix(seed);
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(state).to_le_bytes()
    });
    words.flatten().take(len).collect()
}

fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
