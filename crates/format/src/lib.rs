//! Every structure that a pool writes, as bytes, and back: [FORMAT.md](../../../FORMAT.md) in code.
//!
//! * [`addr`] and [`block_ptr`]: names of blocks
//! * [`seal`]: checksums of structures without a parent
//! * [`label`] and [`uberblock`]: the content of an anchor; an uberblock names the newest txg by a [`boot_ptr`]
//! * [`features`]: what a pool may hold
//! * [`zone_header`] and [`directory`]: what zones store about themselves
//! * [`home`]: places of zones
//! * [`rows`] and [`record`]: the zone tables, and what a commit changes in them
//! * [`log`]: the intent log; [`log_device`]: devices for it alone
//! * [`totals`]: counters since the pool's creation
//! * [`cache_device`]: the layout of a cache device
//!
//! Nothing here reads or writes a device, or makes decisions.
//!
//! Invariant: a parser may get any bytes. It never panics, and allocates no more than the bytes can justify.

#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::disallowed_methods,
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
pub mod home;
pub mod label;
pub mod log;
pub mod log_device;
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
pub use totals::{Totals, WritePurpose};
