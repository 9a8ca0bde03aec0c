//! Crashes, seeds, oracle.
//!
//! A whole file system runs in one thread on a simulated device, from one seed: the same seed gives the same operations, the
//! same groups, the same device commands and the same faults. Beside it runs the plainest model that is right. When the
//! power goes, what is found later must be what the model was at the end of a committed group, no older than what
//! was promised; and [`check`](terrane_check::check) must find nothing.
//!
//! Rooms, in reading order: [`machine`] (a pool that is mounted, crashed and mounted again), [`model`] (what the tree should be),
//! [`workload`] (random operations on both), [`attributes`] (those on extended attributes), [`crash`], [`collect`], [`faults`],
//! [`full`], [`hostile`]; and, of another kind, [`storm`] (threads on a real mount) and [`gc`] (pools of any size
//! without data, to judge policy).
//!
//! Every scenario is a function from a seed to `Ok` or a [`Failure`] in words; tests and the binary `terrane-sim` run the same ones.

pub mod attributes;
pub mod collect;
pub mod crash;
pub mod faults;
pub mod full;
pub mod gc;
pub mod hostile;
pub mod machine;
pub mod model;
pub mod seeds;
pub mod storm;
pub mod workload;

use std::fmt;

/// What went wrong, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    pub fn within(self, outer: impl fmt::Display) -> Failure {
        Failure(format!("{outer}: {}", self.0))
    }
}

/// `Ok`, or a failure that says what was expected.
pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure(what())) }
}

/// A failure out of any error.
pub fn failed<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure(format!("{what}: {error}"))
}
