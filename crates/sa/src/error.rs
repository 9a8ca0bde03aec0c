//! Errors of storing attributes.

use crate::attr::Attr;
use std::fmt;

/// Why values cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaError {
    /// The dataset's registry has no such attribute.
    Unregistered(Attr),
    /// The attribute is in the layout twice.
    Duplicate(Attr),
    /// The attributes, or their order, are not those of the layout.
    LayoutMismatch {
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
    DefinitionMismatch(Attr),
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
            SaError::Duplicate(attr) => write!(f, "duplicate attribute {attr}"),
            SaError::LayoutMismatch { layout } => write!(f, "attributes differ from layout {layout}"),
            SaError::Length { attr, len } => write!(f, "invalid length of {attr}: {len} bytes"),
            SaError::DefinitionMismatch(attr) => {
                write!(f, "{attr} is defined with another length or byte swap class in this dataset")
            }
            SaError::TooLarge { bytes } => {
                write!(f, "too large for a value or a spill block: {bytes} bytes")
            }
            SaError::TooManyAttributes => f.write_str("too many attributes in a header, layout or registry"),
            SaError::TooManyLayouts => f.write_str(
                "too many layouts: all 1022 numbers of this dataset are used; copy its files to a new dataset",
            ),
        }
    }
}

impl std::error::Error for SaError {}
