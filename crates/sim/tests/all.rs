//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed step fails the test")]

mod ace;
mod attributes;
mod buckets;
mod clones;
mod collect;
mod crash;
mod damage_in_a_sync;
mod data_set_faults;
mod faults;
mod features;
mod full;
mod full_clones;
mod golden;
mod hole_births;
mod large_zones;
mod log_lies;
mod logged;
mod many_snapshots;
mod rebuild;
mod rebuild_shared;
mod recorded;
mod reservations;
mod small_txgs;
mod snapshots;
