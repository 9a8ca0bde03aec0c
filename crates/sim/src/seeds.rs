//! Which seeds a run tries.
//!
//! `TERRANE_SEEDS` is their number, `TERRANE_SEED_BASE` (any text, such as a commit's hash) says where they
//! begin. So each commit explores other seeds, reproducibly.

/// `default` seeds, or as many as the environment asks for.
pub fn seeds(default: u64) -> Vec<u64> {
    let count = number("TERRANE_SEEDS").unwrap_or(default);
    let base = match std::env::var("TERRANE_SEED_BASE") {
        Ok(text) => {
            text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            }) >> 24
        }
        Err(_) => 0,
    };
    (base..base.saturating_add(count)).collect()
}

/// A count from the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
