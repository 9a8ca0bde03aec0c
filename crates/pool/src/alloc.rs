//! Empty physical zones, and fresh sequence numbers for their next fillings.
//!
//! Invariant: a zone in `unclean` is in `empty` too.

use crate::record::Home;
use std::collections::BTreeSet;

/// Empty physical zones and fresh sequence numbers.
pub(crate) struct Allocator {
    pub empty: BTreeSet<Home>,
    /// Empty by the tables, not yet reset in this incarnation.
    pub unclean: BTreeSet<Home>,
    pub next_seq: u64,
    pub lease_seq: u64,
}
