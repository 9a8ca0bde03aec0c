//! Why attributes cannot be stored as asked.

use crate::attr::Attr;
use std::fmt;

/// Why values cannot be stored as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaError {
    /// The dataset's registry has no such attribute.
    Unregistered(Attr),
    /// A layout may name an attribute once.
    Twice(Attr),
    /// The values are not those of the layout.
    NotTheLayout { layout: u16 },
    /// A value has another length than its attribute.
    Length { attr: Attr, len: usize },
    /// More bytes than a value (65535) or a spill block ([`SA_BYTES_MAX`](crate::buffer::SA_BYTES_MAX)) can have.
    TooLarge { bytes: usize },
    /// The name is registered, or built in, with another length or swap class; a fixed length is not 0.
    OtherMeaning(Attr),
    /// The header has room for 249 attributes of variable length, a layout for 255 attributes, a registry for 65536.
    TooManyAttributes,
    /// A dataset has at most 1022 combinations of attributes.
    TooManyLayouts,
}

impl fmt::Display for SaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaError::Unregistered(attr) => {
                write!(f, "attribute number {} is not registered in this dataset", attr.0)
            }
            SaError::Twice(attr) => write!(f, "{attr} is there twice"),
            SaError::NotTheLayout { layout } => write!(f, "the attributes are not those of layout {layout}"),
            SaError::Length { attr, len } => write!(f, "{attr} cannot be {len} bytes long"),
            SaError::OtherMeaning(attr) => {
                write!(f, "{attr} has another length or byte swap class in this dataset")
            }
            SaError::TooLarge { bytes } => {
                write!(f, "{bytes} bytes are more than a value or a spill block can have")
            }
            SaError::TooManyAttributes => f.write_str("more attributes than the format has numbers for"),
            SaError::TooManyLayouts => f.write_str(
                "this dataset has used all 1022 combinations of attributes; copy its files to a new one",
            ),
        }
    }
}

impl std::error::Error for SaError {}
