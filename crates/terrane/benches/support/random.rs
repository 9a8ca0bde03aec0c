//! Bytes that do not compress.

use terrane_wire::{Dice, scattered};

/// As many as wanted; another seed gives others.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    // Seeds that follow each other would give streams that do.
    Dice::new(scattered(seed)).noise(len)
}
