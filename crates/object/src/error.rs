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
    TooBig {
        /// The thing that is too big, as the subject of a message.
        what: &'static str,
        /// Maximum of `requested`.
        limit: u64,
        /// Its size, in bytes unless `what` is counted.
        requested: u64,
    },
    /// The data set may not be changed now.
    ReadOnly,
    /// A quota does not allow the operation.
    Quota {
        /// The property that sets it.
        property: &'static str,
        /// Its value in bytes.
        limit: u64,
        /// Bytes that it counts now.
        used: u64,
        /// Bytes that the operation may need.
        need: u64,
    },
    /// An object cannot get this number: another one has it, or had it until a txg that is not durable, or no object
    /// can have it with so many slots.
    NumberTaken(ObjectId),
    /// No object can have this: fewer slots than one, or an odd block size.
    Invalid {
        /// The thing that is invalid, as the subject of a message.
        what: &'static str,
        /// The values that are possible.
        expected: &'static str,
        /// The value that was requested.
        requested: u64,
    },
}

impl ObjectError {
    /// A device read failed, so that a retry may succeed: see [`PoolError::is_transient`].
    pub fn is_transient(&self) -> bool {
        matches!(self, ObjectError::Pool(error) if error.is_transient())
    }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::Pool(error) => error.fmt(f),
            ObjectError::NotFound(id) => write!(f, "object {id} not found"),
            ObjectError::TooBig { what, limit, requested: asked } => {
                write!(f, "refused: {what}: {asked} requested, at most {limit}")
            }
            ObjectError::ReadOnly => {
                f.write_str("refused: the data set is read-only; set readonly=off to change it")
            }
            ObjectError::Quota { property, limit, used, need } => {
                write!(
                    f,
                    "refused: {property} {limit} bytes: {used} used, {need} more requested; delete something or raise it"
                )
            }
            ObjectError::NumberTaken(id) => {
                write!(f, "refused: object number {id} is taken, or impossible for so many slots")
            }
            ObjectError::Invalid { what, expected, requested } => {
                write!(f, "refused: {what}: {requested} requested, should be {expected}")
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
