//! Error messages of commands.
//!
//! Lower crates describe the failure themselves: where, what was expected, what was found, what to do. Here
//! it only becomes text, because it will only be printed, perhaps in another process than the one it happened
//! in.

use std::fmt;
use std::io;
use std::path::Path;

/// A message for the user who typed the command; the exit code is 1.
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

    /// For `map_err`: adds the path, which an I/O error does not have.
    pub fn io<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Failure + 'a {
        move |error| Failure(format!("{doing} {}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// `Failure` itself is no `Error`, or this would conflict with the standard library's `From<T> for T`.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}
