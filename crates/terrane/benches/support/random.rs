//! Incompressible bytes.

use terrane_wire::{Dice, scattered};

/// `len` bytes; another seed gives others.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    // Consecutive seeds would give overlapping streams.
    Dice::new(scattered(seed)).noise(len)
}
