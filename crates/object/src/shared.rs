//! Shared blocks: those with more than one reference.
//!
//! * `stored`: the table as bytes
//! * `table`: references, found and changed
//! * `edit`: changes of leaves
//! * `clone`: records of one file in another

mod clone;
mod edit;
pub mod stored;
mod table;

pub use clone::{ClonableRecords, ClonedRecords};
pub use table::{SharedBlock, SharedTable, SharedTotals};
