//! Errors of storing attributes.

use crate::attr::Attr;
use std::fmt;

/// Why values cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaError {
    /// The dataset's registry has no such attribute.
    Unregistered(Attr),
    /// The attribute is in the layout twice.
    Twice(Attr),
    /// The attributes, or their order, are not those of the layout.
    NotTheLayout {
        /// The layout's number in the dataset, 1 to 1023.
        layout: u16,
    },
    /// A value has another length than its attribute's fixed length.
    Length {
        /// The attribute, of fixed length in this dataset.
        attr: Attr,
        /// Length of the refused value in bytes.
        len: usize,
    },
    /// The limits are 65535 bytes for a value and [`SA_BYTES_MAX`](crate::buffer::SA_BYTES_MAX) for a spill block.
    TooLarge {
        /// Size of the refused value or spill block in bytes.
        bytes: usize,
    },
    /// The name is registered or built in with another length or swap class, or the fixed length is 0.
    OtherMeaning(Attr),
    /// The limits are 249 variable attributes per header, 255 attributes per layout, 65536 per registry.
    TooManyAttributes,
    /// The limit is 1022 layouts per dataset.
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
