//! Named damage: one property of stored bytes that does not hold.

use std::fmt;

/// A finding of damage: where it is, which property fails, the expected value and the found value.
///
/// Printed as `device 0 zone 12 granule 80: psize should be at most 16384, found 70000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// The place in words, for the administrator who reads the log.
    pub at: String,
    /// The property that does not hold.
    pub what: &'static str,
    /// The value or bound that a sound block would have, in words; printed after "should be".
    pub expected: String,
    /// The value in the stored bytes, in words.
    pub found: String,
}

impl Corrupt {
    /// A finding with its place and both values printed by their `Display`. An empty `at` is filled by
    /// [`within`](Self::within).
    pub fn new(
        at: impl fmt::Display,
        what: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Corrupt { at: at.to_string(), what, expected: expected.to_string(), found: found.to_string() }
    }

    /// Puts the outer place in front. An inner parser knows offsets, its caller knows the block.
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        self.at = if self.at.is_empty() { outer.to_string() } else { format!("{outer}, {}", self.at) };
        self
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} should be {}, found {}", self.at, self.what, self.expected, self.found)
    }
}

impl std::error::Error for Corrupt {}
