//! Bounds on the space of an object set.
//!
//! The pool knows only the space of all sets together. The data set of a set decides how much the set may use. It is
//! asked before an operation joins a txg, and when free space is shown.

use super::Usage;
use crate::error::ObjectError;
use terrane_pool::Tx;
use terrane_txg::cost::Cost;

/// Joins the open txg.
pub type Join<'a> = &'a mut dyn FnMut() -> Result<Tx, ObjectError>;

/// A bound on the space of an object set.
pub trait SpaceBound: Send + Sync {
    /// Joins an operation to the open txg if the bound allows its cost. It may wait for commits. The caller must hold no
    /// lock and no other transaction.
    ///
    /// # Errors
    /// `Quota`, or what `join` returns.
    fn admit(&self, cost: &Cost, join: Join<'_>) -> Result<Tx, ObjectError>;

    /// The space of the pool that the set can use.
    fn bound(&self, usage: Usage) -> Usage;
}
