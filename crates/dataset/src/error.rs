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
    /// There is no such property; `valid` lists all names.
    UnknownProperty { name: String, valid: String },
    /// The property does not accept this value.
    BadValue { name: &'static str, found: String, expected: String },
    /// The property is fixed when the data set is created.
    Fixed { name: &'static str },
    /// The pool directory or the properties are invalid.
    Damaged { at: &'static str, expected: String, found: String },
}

impl DatasetError {
    /// Whether a device read failed, so that a retry may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, DatasetError::Object(ObjectError::Pool(error)) if error.may_pass())
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
                write!(f, "there is no property '{name}'; valid are: {valid}")
            }
            DatasetError::BadValue { name, found, expected } => {
                write!(f, "property '{name}' should be {expected}, found '{found}'")
            }
            DatasetError::Fixed { name } => write!(
                f,
                "property '{name}' is chosen when a pool is made (`terrane pool create -o {name}=...`) and never changed: \
                 every name was placed by it"
            ),
            DatasetError::Damaged { at, expected, found } => {
                write!(f, "{at} should be {expected}, found {found}")
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
