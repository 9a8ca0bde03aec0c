//! Errors of objects: one variant for each thing a caller would do differently.

use std::fmt;
use terrane_store::PoolError;
use terrane_wire::{Corrupt, ObjectId};

/// Why an object could not be read, changed or created.
#[derive(Clone, Debug)]
pub enum ObjectError {
    /// See [`PoolError`].
    Pool(PoolError),
    /// No such object.
    NotFound(ObjectId),
    /// The request does not fit the object: a bonus, a block size or an offset beyond its limits.
    TooBig { what: &'static str, limit: u64, asked: u64 },
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::Pool(error) => error.fmt(f),
            ObjectError::NotFound(id) => write!(f, "there is no object {id}"),
            ObjectError::TooBig { what, limit, asked } => {
                write!(f, "{what}: at most {limit}, asked for {asked}")
            }
        }
    }
}

impl std::error::Error for ObjectError {}

impl From<PoolError> for ObjectError {
    fn from(error: PoolError) -> Self {
        ObjectError::Pool(error)
    }
}

impl From<Corrupt> for ObjectError {
    fn from(corrupt: Corrupt) -> Self {
        ObjectError::Pool(PoolError::Corrupt(corrupt))
    }
}
