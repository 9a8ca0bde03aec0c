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
    /// The name is too long; `bytes` and `bytes_max` do not count the NUL.
    NameTooLong { bytes: usize, bytes_max: usize },
    /// A text name for a ZAP with integer keys, or the reverse.
    KeyKind { expected: &'static str },
    /// The value is longer than any ZAP takes.
    ValueTooLong { bytes: usize, bytes_max: usize },
    /// The entry does not fit into an empty leaf of this ZAP's block size.
    EntryTooLarge { chunks: usize, chunks_max: usize },
    /// Too many names share the name's hash: no split of a leaf makes space.
    Full,
    /// The value has no integer, but the caller asked for one.
    NoInteger,
    /// A valid structure that this version does not read.
    Unsupported { what: &'static str, found: String },
    /// [`ZapOptions`](crate::ZapOptions) that no ZAP can have.
    Options { what: &'static str },
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
            Error::Options { what } => Error::Options { what },
        }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Store(error) => error.fmt(f),
            Error::Exists => write!(f, "the name exists"),
            Error::NameInvalid => write!(f, "a name should be at least one byte and hold no NUL"),
            Error::NameNotUtf8 => write!(f, "a name should be UTF-8"),
            Error::NameTooLong { bytes, bytes_max } => {
                write!(f, "a name should be at most {bytes_max} bytes, found {bytes}")
            }
            Error::KeyKind { expected } => write!(f, "keys of this ZAP should be {expected}"),
            Error::ValueTooLong { bytes, bytes_max } => {
                write!(f, "a value should be at most {bytes_max} bytes, found {bytes}")
            }
            Error::EntryTooLarge { chunks, chunks_max } => {
                write!(f, "an entry should take at most {chunks_max} chunks of a leaf, found {chunks}")
            }
            Error::Full => write!(f, "too many names share this one's hash; remove some of them"),
            Error::NoInteger => write!(f, "the value holds no integer"),
            Error::Unsupported { what, found } => write!(f, "{what} is not supported, found {found}"),
            Error::Options { what } => write!(f, "a ZAP cannot be made: {what}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Error<E> {}
