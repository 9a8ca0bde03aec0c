//! One variant for each thing a caller would do differently.

use std::fmt;
use terrane_wire::Corrupt;

/// Why an operation on a ZAP did not happen. Nothing was changed by it, unless it is [`Error::Store`] and the
/// store itself failed half way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The store failed, or a block holds what no ZAP holds.
    Store(E),
    /// The name to add is there already.
    Exists,
    /// A name that cannot be stored: empty, or with a NUL in it.
    NameInvalid,
    /// A name that is not UTF-8, for a ZAP whose names have a Unicode form.
    NameNotUtf8,
    /// `bytes` and `bytes_max` do not count the NUL.
    NameTooLong { bytes: usize, bytes_max: usize },
    /// A text name for a ZAP with integer keys, or the other way round.
    KeyKind { expected: &'static str },
    /// More value bytes than any ZAP takes.
    ValueTooLong { bytes: usize, bytes_max: usize },
    /// The entry does not fit an empty leaf of this ZAP's block size.
    EntryTooLarge { chunks: usize, chunks_max: usize },
    /// Too many names share their hash: no leaf can be split so that this one fits.
    Full,
    /// The value has no integer, where one was asked for.
    NoInteger,
    /// A valid structure of a kind that this version does not read.
    Unsupported { what: &'static str, found: String },
    /// [`ZapOptions`](crate::ZapOptions) from which no ZAP can be made.
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
    /// The same error in a store's own terms: parsers know damage, and nothing of stores.
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
