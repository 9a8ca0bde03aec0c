//! Every structure that a pool writes, as bytes, and back: [FORMAT.md](../../../FORMAT.md) in code.
//!
//! [`addr`] and [`block_ptr`] name blocks, [`seal`] sums structures that nobody points at, [`label`] begins an anchor, in which
//! [`uberblock`]s follow and name the newest group by a [`boot_ptr`], [`features`] says what a pool may hold, [`zone_header`] and
//! [`directory`] are what zones tell of themselves, [`rows`] are the tables of zones, [`record`] is what a commit changes in them,
//! [`totals`] what the pool has done since it was made, and [`cache_device`] what lies on one.
//!
//! Nothing here reads or writes a device, or decides anything.
//!
//! Invariant: what a parser gets may be any bytes. It never panics, and allocates no more than the bytes can justify.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

pub mod addr;
pub mod block_ptr;
pub mod boot_ptr;
pub mod cache_device;
pub mod directory;
pub mod features;
pub mod label;
pub mod record;
pub mod rows;
pub mod seal;
pub mod totals;
pub mod uberblock;
pub mod zone_header;

pub use addr::{Addr, GRANULE, Place, granule_bytes};
pub use block_ptr::BlockPtr;
pub use directory::Owner;
pub use features::{FEATURES, Feature};
pub use totals::{Spent, Totals};
