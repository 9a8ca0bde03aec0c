//! Bounds on the space of an object set.
//!
//! The pool knows only how much space all sets have together. What one set may take is a matter of its data set,
//! which answers here: before an operation joins a txg, and when space is shown.

use super::Usage;
use crate::error::ObjectError;
use terrane_pool::Tx;
use terrane_txg::cost::Cost;

/// Joins the open txg.
pub type Join<'a> = &'a mut dyn FnMut() -> Result<Tx, ObjectError>;

/// What an object set may take.
pub trait SpaceBound: Send + Sync {
    /// Has an operation join, if the bounds allow its cost. It may wait for commits. The caller holds no lock and no
    /// other transaction.
    ///
    /// # Errors
    /// `Quota`, or what `join` returns.
    fn admit(&self, cost: &Cost, join: Join<'_>) -> Result<Tx, ObjectError>;

    /// The space of the pool as far as the set can use it.
    fn bound(&self, usage: Usage) -> Usage;
}
