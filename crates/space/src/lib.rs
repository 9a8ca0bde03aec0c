//! The space of a pool: its zones, their live blocks, block placement, and the choice of GC victims.
//!
//! Nothing here knows a device, a thread or a lock of the pool. The simulator of large pools and the property tests run the same code.
//!
//! Modules, in reading order:
//!
//! * [`zones`]: the zone tables, and how a commit record changes them
//! * [`replicas`]: where a zone lies
//! * `validate`: whether a record may change the tables
//! * [`dead`]: which blocks of a zone are dead
//! * [`reclaimed`]: reclaimed zones with survivors elsewhere
//! * [`alloc`]: empty zones
//! * [`account`]: free space and limits
//! * [`section_rotation`]: which table sections a txg rewrites
//! * [`policy`]: placement and choice of victims

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod account;
pub mod alloc;
pub mod dead;
pub mod policy;
pub mod reclaimed;
pub mod replicas;
pub mod section_rotation;
mod validate;
pub mod zones;
