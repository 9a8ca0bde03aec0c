//! Errors of data sets: one variant for each thing a caller would do differently.

use std::fmt;
use terrane_object::ObjectError;
use terrane_wire::ObjectId;

/// Errors of a ZAP in an object.
pub type ZapError = terrane_zap::Error<ObjectError>;

/// Why a data set could not be created, opened or changed.
#[derive(Debug)]
pub enum DatasetError {
    /// The object set failed.
    Object(ObjectError),
    /// A ZAP refused the operation.
    Zap(ZapError),
    /// There is no such property.
    UnknownProperty {
        /// The unknown name.
        name: String,
        /// The names of all properties, separated by commas.
        valid: String,
    },
    /// The property does not accept this value.
    BadValue {
        /// Name of the property.
        name: &'static str,
        /// The refused word, or a stored number that this version does not know.
        found: String,
        /// The accepted values, in words.
        expected: String,
    },
    /// The property is fixed when the data set is created.
    Fixed {
        /// Name of the property.
        name: &'static str,
    },
    /// The pool directory or the properties are invalid.
    Damaged {
        /// The damaged structure, as the subject of a message.
        at: &'static str,
        /// What a valid one holds, in words.
        expected: String,
        /// What it holds, in words.
        found: String,
    },
}

impl DatasetError {
    /// Whether a device read failed, so that a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, DatasetError::Object(ObjectError::Pool(error)) if error.is_transient())
    }

    /// A new object set must number its objects from 1, since the object is found by its number later.
    pub(crate) fn first_object(at: &'static str, found: ObjectId) -> Self {
        DatasetError::Damaged {
            at,
            expected: "object 1 in an empty object set".to_string(),
            found: found.to_string(),
        }
    }
}

impl fmt::Display for DatasetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatasetError::Object(error) => error.fmt(f),
            DatasetError::Zap(error) => error.fmt(f),
            DatasetError::UnknownProperty { name, valid } => {
                write!(f, "unknown property '{name}'; valid properties: {valid}")
            }
            DatasetError::BadValue { name, found, expected } => {
                write!(f, "invalid value '{found}' of property '{name}': expected {expected}")
            }
            DatasetError::Fixed { name } => write!(
                f,
                "property '{name}' refused: it is fixed when a pool is created (`terrane pool create -o {name}=...`), \
                 because all stored names depend on it"
            ),
            DatasetError::Damaged { at, expected, found } => {
                write!(f, "{at} damaged: expected {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for DatasetError {}

impl From<ObjectError> for DatasetError {
    fn from(error: ObjectError) -> Self {
        DatasetError::Object(error)
    }
}

impl From<ZapError> for DatasetError {
    fn from(error: ZapError) -> Self {
        match error {
            ZapError::Store(error) => DatasetError::Object(error),
            other => DatasetError::Zap(other),
        }
    }
}
