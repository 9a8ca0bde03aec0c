//! The simulator: crashes, seeds, oracle.
//!
//! A whole file system runs in one thread on a simulated device, from one seed. The same seed gives the same
//! operations, the same txgs, the same device commands and the same faults. Beside it runs the simplest
//! correct model. After a power failure the tree must be what the model was at the end of a committed txg, no
//! older than what was promised. And [`check`](terrane_check::check) must find nothing.
//!
//! Modules, in reading order: [`machine`] (a pool that is mounted, crashed and mounted again), [`workload`]
//! (random operations on it and on the model of [`terrane_oracle`]), [`attributes`] (those on extended
//! attributes), [`crash`], [`logged`] (crashes of a pool with an intent log), [`collect`], [`faults`], [`full`],
//! [`hostile`]. Two modules are different: [`storm`] (threads on a real mount) and [`gc`] (pools of any size
//! without data, to compare policies).
//!
//! Every scenario is a function from a seed to `Ok` or a [`Failure`](terrane_oracle::Failure) in text; tests
//! and the binary `terrane-sim` run the same ones.

#![deny(missing_docs)]

pub mod attributes;
mod clones;
pub mod collect;
pub mod crash;
pub mod faults;
pub mod full;
pub mod gc;
pub mod hostile;
pub mod logged;
pub mod machine;
pub mod seeds;
pub mod storm;
pub mod workload;
