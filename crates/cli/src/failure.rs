//! What is said when something was not done.
//!
//! Floors below name the failure themselves: where, what was expected, what was found, what to do. Here it only becomes
//! text, because all that is left to do with it is to print it, perhaps in another process than the one it happened in.

use std::fmt;
use std::io;
use std::path::Path;

/// A sentence for the person who typed the command; the exit code is 1.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure(pub String);

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn refused(
        what: impl fmt::Display,
        expected: impl fmt::Display,
        found: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Failure {
        Failure(format!("{what}: expected {expected}, found {found}; {remedy}"))
    }

    /// For `map_err`: an I/O error alone does not say on what.
    pub fn io<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Failure + 'a {
        move |error| Failure(format!("{doing} {}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// `Failure` itself is no `Error`, or this would contradict the standard library's `From<T> for T`.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}
