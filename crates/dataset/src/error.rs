//! One variant for each thing a caller would do differently.

use std::fmt;
use terrane_object::ObjectError;
use terrane_wire::ObjectId;

/// What a ZAP in an object can answer.
pub type ZapError = terrane_zap::Error<ObjectError>;

/// Why a data set could not be made, opened or changed.
#[derive(Debug)]
pub enum DatasetError {
    /// The object set failed.
    Object(ObjectError),
    /// A ZAP refused, for a reason of its own.
    Zap(ZapError),
    /// There is no such property; `valid` lists those there are.
    UnknownProperty { name: String, valid: String },
    /// The property takes other values.
    BadValue { name: &'static str, found: String, expected: String },
    /// The property was chosen when the data set was made.
    Fixed { name: &'static str },
    /// The pool directory or the properties do not say what they must.
    Damaged { at: &'static str, expected: String, found: String },
}

impl DatasetError {
    /// The device failed under a read, and a later try may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, DatasetError::Object(ObjectError::Pool(error)) if error.may_pass())
    }

    /// A new object set numbers its objects from 1, and where an object is found later depends on it.
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
