//! A failure, described in text.

use std::fmt;

/// A difference between the model and the file system, or an operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// The same failure, with its context put before it.
    pub fn within(self, outer: impl fmt::Display) -> Failure {
        Failure(format!("{outer}: {}", self.0))
    }
}

/// `Ok`, or a failure that says what was expected.
pub fn ensure(holds: bool, describe: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure(describe())) }
}

/// Turns any error into a failure.
pub fn failed<E: fmt::Display>(action: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure(format!("{action}: {error}"))
}
