//! Pool errors: one variant for each thing that a caller would do differently.

use std::fmt;
use std::sync::Arc;
use terrane_device::DeviceError;
use terrane_wire::Corrupt;

/// Why a call of the pool failed.
#[derive(Clone, Debug)]
pub enum PoolError {
    /// Damage that no copy could heal. The caller gets `EIO`, and the pool stays online.
    Corrupt(Corrupt),
    /// The device failed a read. The caller gets `EIO`.
    Device(Arc<DeviceError>),
    /// A txg could not be committed. Nothing is written until the next import.
    Failed {
        /// The error that stopped the pool.
        reason: Arc<str>,
    },
    /// Live data fills the pool: delete something or add a device.
    NoSpace {
        /// Bytes that the request needs.
        need: u64,
        /// Bytes that it may still use.
        free: u64,
    },
    /// The request cannot be carried out, and why.
    Refused {
        /// What the request concerns.
        what: String,
        /// The condition that does not hold.
        expected: String,
        /// The present state.
        found: String,
        /// Advice to the caller.
        remedy: String,
    },
    /// The pool was imported read-only.
    ReadOnly,
}

impl PoolError {
    /// The device failed a read: the bytes are unknown, and a retry may return them. A reclaimed zone is not such a failure.
    pub fn is_transient(&self) -> bool {
        matches!(self, PoolError::Device(error) if matches!(**error, DeviceError::Io { .. }))
    }

    /// A refusal from its four texts.
    pub fn refused(
        what: impl fmt::Display,
        expected: impl fmt::Display,
        found: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> PoolError {
        PoolError::Refused {
            what: what.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
            remedy: remedy.to_string(),
        }
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Corrupt(corrupt) => corrupt.fmt(f),
            PoolError::Device(error) => error.fmt(f),
            PoolError::Failed { reason } => {
                write!(f, "the pool stopped writing: {reason}; unmount and import it again")
            }
            PoolError::NoSpace { need, free } => {
                write!(f, "no space: {need} bytes needed, {free} free; delete something")
            }
            PoolError::Refused { what, expected, found, remedy } => {
                write!(f, "{what}: expected {expected}, found {found}; {remedy}")
            }
            PoolError::ReadOnly => f.write_str("the pool is imported read-only"),
        }
    }
}

impl std::error::Error for PoolError {}

impl From<Corrupt> for PoolError {
    fn from(corrupt: Corrupt) -> Self {
        PoolError::Corrupt(corrupt)
    }
}

impl From<DeviceError> for PoolError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Refused { name, expected, found, remedy } => {
                PoolError::Refused { what: name, expected, found, remedy: remedy.to_string() }
            }
            other => PoolError::Device(Arc::new(other)),
        }
    }
}
