//! Errors: one variant for each thing a caller would do differently.

use std::fmt;
use terrane_wire::Corrupt;

/// Why an operation on a ZAP failed. It changed nothing, unless it is [`Error::Store`] and the store itself failed
/// midway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The store failed, or a block is damaged.
    Store(E),
    /// The name to be added exists.
    Exists,
    /// The name cannot be stored: it is empty or has a NUL.
    NameInvalid,
    /// The name is not UTF-8, but the ZAP's names have a Unicode form.
    NameNotUtf8,
    /// The key is too long.
    NameTooLong {
        /// Size of the name without its NUL, or of the words, in bytes.
        bytes: usize,
        /// Maximum of `bytes`: 255 for a name, up to 1023 in a directory with long names, 256 for words.
        bytes_max: usize,
    },
    /// A text name for a ZAP with integer keys, or the reverse.
    KeyKind {
        /// The keys of this ZAP: `names` or `words`.
        expected: &'static str,
    },
    /// The value is longer than any ZAP takes.
    ValueTooLong {
        /// Size of all integers of the value in bytes.
        bytes: usize,
        /// Maximum in bytes: [`VALUE_BYTES_MAX`](crate::value::VALUE_BYTES_MAX).
        bytes_max: usize,
    },
    /// The entry does not fit into an empty leaf of this ZAP's block size.
    EntryTooLarge {
        /// Chunks of 24 bytes that the entry needs: one, and those for its key and its value.
        chunks: usize,
        /// Chunks of an empty leaf, which follow from the block size.
        chunks_max: usize,
    },
    /// Too many names share the name's hash: no split of a leaf makes space.
    Full,
    /// The value has no integer, but the caller asked for one.
    NoInteger,
    /// A valid structure that this version does not read.
    Unsupported {
        /// The structure or operation, as the subject of a message.
        what: &'static str,
        /// The flags that are unknown, or the size of the ZAP.
        found: String,
    },
    /// A call that no caller should make, such as to create a ZAP with [`ZapOptions`](crate::ZapOptions) that none can have.
    Refused {
        /// What is wrong with the call.
        what: &'static str,
    },
}

impl<E> From<E> for Error<E> {
    fn from(error: E) -> Self {
        Error::Store(error)
    }
}

impl<E: From<Corrupt>> Error<E> {
    pub(crate) fn damage(found: Corrupt) -> Self {
        Error::Store(E::from(found))
    }
}

impl Error<Corrupt> {
    /// The same error in the store's error type. Parsers know damage, and nothing of stores.
    pub(crate) fn lift<E: From<Corrupt>>(self) -> Error<E> {
        match self {
            Error::Store(found) => Error::damage(found),
            Error::Exists => Error::Exists,
            Error::NameInvalid => Error::NameInvalid,
            Error::NameNotUtf8 => Error::NameNotUtf8,
            Error::NameTooLong { bytes, bytes_max } => Error::NameTooLong { bytes, bytes_max },
            Error::KeyKind { expected } => Error::KeyKind { expected },
            Error::ValueTooLong { bytes, bytes_max } => Error::ValueTooLong { bytes, bytes_max },
            Error::EntryTooLarge { chunks, chunks_max } => Error::EntryTooLarge { chunks, chunks_max },
            Error::Full => Error::Full,
            Error::NoInteger => Error::NoInteger,
            Error::Unsupported { what, found } => Error::Unsupported { what, found },
            Error::Refused { what } => Error::Refused { what },
        }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Store(error) => error.fmt(f),
            Error::Exists => write!(f, "name already exists"),
            Error::NameInvalid => write!(f, "name refused: empty, or contains NUL"),
            Error::NameNotUtf8 => write!(f, "name refused: not UTF-8"),
            Error::NameTooLong { bytes, bytes_max } => {
                write!(f, "name refused: {bytes} bytes, maximum {bytes_max}")
            }
            Error::KeyKind { expected } => write!(f, "key refused: this ZAP takes {expected}"),
            Error::ValueTooLong { bytes, bytes_max } => {
                write!(f, "value refused: {bytes} bytes, maximum {bytes_max}")
            }
            Error::EntryTooLarge { chunks, chunks_max } => {
                write!(f, "entry refused: {chunks} chunks of a leaf, maximum {chunks_max}")
            }
            Error::Full => write!(f, "entry refused: too many names share its hash; remove some of them"),
            Error::NoInteger => write!(f, "value has no integer"),
            Error::Unsupported { what, found } => write!(f, "unsupported: {what}, found {found}"),
            Error::Refused { what } => write!(f, "refused: {what}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Error<E> {}
