//! Errors of a command line program: one line of text, preceded by what was being done.

use std::fmt::Display;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done when something failed.
pub trait Context<T> {
    fn context(self, what: impl Display) -> Result<T>;
    fn with_context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Result<T> {
        self.with_context(|| what)
    }

    fn with_context<D: Display>(self, what: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| format!("{}: {}", what(), error.into()).into())
    }
}

macro_rules! bail {
    ($($text:tt)*) => { return Err(format!($($text)*).into()) };
}

macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => { if !$holds { $crate::fail::bail!($($text)*) } };
}

pub(crate) use {bail, ensure};
