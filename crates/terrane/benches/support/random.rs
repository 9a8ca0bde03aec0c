//! Incompressible bytes.

use terrane_wire::{Prng, mix64};

/// `len` bytes; another seed gives others.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    // Consecutive seeds would give overlapping streams.
    Prng::new(mix64(seed)).random_bytes(len)
}
