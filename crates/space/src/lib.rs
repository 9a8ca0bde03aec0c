//! The space of a pool: which zones there are, what is live in them, where blocks go, and which zone is emptied next.
//!
//! Nothing here knows a device, a thread or a lock of the pool: the simulator of large pools and the property tests run the same code.
//!
//! Rooms, in reading order: [`zones`] (the tables of zones, and how a commit record changes them), [`replicas`] (where a zone lies),
//! `judge` (whether a record may change the tables), [`dead`]
//! (which blocks of a zone are dead), [`gone`] (zones that were reset and have survivors elsewhere), [`alloc`] (empty zones), [`account`]
//! (how much room that makes, and for whom), [`turns`]
//! (which sections of the tables a group writes again), [`policy`] (placement and choice of victims).

pub mod account;
pub mod alloc;
pub mod dead;
pub mod gone;
mod judge;
pub mod policy;
pub mod replicas;
pub mod turns;
pub mod zones;
