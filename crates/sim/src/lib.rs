//! Crashes, seeds, oracle.
//!
//! A whole file system runs in one thread on a simulated device, from one seed: the same seed gives the same operations, the
//! same groups, the same device commands and the same faults. Beside it runs the plainest model that is right. When the
//! power goes, what is found later must be what the model was at the end of a committed group, no older than what
//! was promised; and [`check`](terrane_check::check) must find nothing.
//!
//! Rooms, in reading order: [`machine`] (a pool that is mounted, crashed and mounted again), [`workload`] (random operations on it and
//! on the model, which [`terrane_oracle`] has), [`attributes`] (those on extended attributes), [`crash`], [`collect`], [`faults`],
//! [`full`], [`hostile`]; and, of another kind, [`storm`] (threads on a real mount) and [`gc`] (pools of any size
//! without data, to judge policy).
//!
//! Every scenario is a function from a seed to `Ok` or a [`Failure`](terrane_oracle::Failure) in words; tests and the binary
//! `terrane-sim` run the same ones.

pub mod attributes;
pub mod collect;
pub mod crash;
pub mod faults;
pub mod full;
pub mod gc;
pub mod hostile;
pub mod machine;
pub mod seeds;
pub mod storm;
pub mod workload;
