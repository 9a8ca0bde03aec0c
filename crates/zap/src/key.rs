//! Keys of entries: a name, or words.

use crate::error::Error;
use crate::hash::Flags;
use terrane_wire::Corrupt;

/// Maximum size of a stored key in bytes, NUL included, except in a directory with long names.
pub const NAME_BYTES_MAX: usize = 256;
/// Maximum size of a stored name in bytes, NUL included, in a directory with long names.
pub const LONG_NAME_BYTES_MAX: usize = 1024;

/// A key, borrowed from the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRef<'a> {
    /// Bytes without NUL; stored with one.
    Name(&'a [u8]),
    /// Words, for a ZAP made with [`Flags::UINT64_KEY`].
    U64s(&'a [u64]),
}

/// A key that was read from a ZAP.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Bytes without the NUL that the stored form ends with.
    Name(Vec<u8>),
    /// Words, from a ZAP made with [`Flags::UINT64_KEY`].
    U64s(Vec<u64>),
}

impl Key {
    /// Borrows the key as an argument for the operations of a [`Zap`](crate::Zap).
    pub fn as_ref(&self) -> KeyRef<'_> {
        match self {
            Key::Name(name) => KeyRef::Name(name),
            Key::U64s(words) => KeyRef::U64s(words),
        }
    }

    /// The name; `None` for words.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Key::Name(name) => Some(name),
            Key::U64s(_) => None,
        }
    }
}

macro_rules! from_name {
    ($($source:ty => $bytes:ident),*) => {$(
        impl<'a> From<&'a $source> for KeyRef<'a> {
            fn from(name: &'a $source) -> Self {
                KeyRef::Name(name.$bytes())
            }
        }
    )*};
}
from_name!([u8] => as_ref, Vec<u8> => as_slice, str => as_bytes, String => as_bytes);

impl<'a, const N: usize> From<&'a [u8; N]> for KeyRef<'a> {
    fn from(name: &'a [u8; N]) -> Self {
        KeyRef::Name(name)
    }
}

impl<'a> From<&'a [u64]> for KeyRef<'a> {
    fn from(words: &'a [u64]) -> Self {
        KeyRef::U64s(words)
    }
}

impl<'a> From<&'a Key> for KeyRef<'a> {
    fn from(key: &'a Key) -> Self {
        key.as_ref()
    }
}

impl KeyRef<'_> {
    /// Whether a ZAP with these flags can store the key.
    pub(crate) fn fits(self, flags: Flags, name_bytes_max: usize) -> Result<(), Error<Corrupt>> {
        match self {
            KeyRef::Name(_) if flags.has(Flags::UINT64_KEY) => Err(Error::KeyKind { expected: "words" }),
            KeyRef::U64s(_) if !flags.has(Flags::UINT64_KEY) => Err(Error::KeyKind { expected: "names" }),
            KeyRef::Name(name) => {
                let bytes_max = name_bytes_max.clamp(NAME_BYTES_MAX, LONG_NAME_BYTES_MAX) - 1;
                match name.len() {
                    0 => Err(Error::NameInvalid),
                    bytes if bytes > bytes_max => Err(Error::NameTooLong { bytes, bytes_max }),
                    _ if name.contains(&0) => Err(Error::NameInvalid),
                    _ => Ok(()),
                }
            }
            KeyRef::U64s([]) => Err(Error::NameInvalid),
            KeyRef::U64s(words) if words.len() > NAME_BYTES_MAX / 8 => {
                Err(Error::NameTooLong { bytes: words.len().saturating_mul(8), bytes_max: NAME_BYTES_MAX })
            }
            KeyRef::U64s(_) => Ok(()),
        }
    }

    /// Size of the stored form in bytes.
    pub(crate) fn stored_len(self) -> usize {
        match self {
            KeyRef::Name(name) => name.len().saturating_add(1),
            KeyRef::U64s(words) => words.len().saturating_mul(8),
        }
    }

    /// The count of the key's integers as a leaf stores it: bytes with the NUL, or words.
    pub(crate) fn stored_ints(self) -> usize {
        match self {
            KeyRef::Name(name) => name.len().saturating_add(1),
            KeyRef::U64s(words) => words.len(),
        }
    }

    /// The stored form: the name with its NUL, or the words big-endian.
    pub(crate) fn stored(self) -> Vec<u8> {
        match self {
            KeyRef::Name(name) => {
                let mut bytes = Vec::with_capacity(name.len() + 1);
                bytes.extend_from_slice(name);
                bytes.push(0);
                bytes
            }
            KeyRef::U64s(words) => words.iter().flat_map(|w| w.to_be_bytes()).collect(),
        }
    }

    /// Whether `piece`, at `offset` of a stored key of the same length, equals this key there.
    pub(crate) fn matches_at(self, offset: usize, piece: &[u8]) -> bool {
        match self {
            KeyRef::Name(name) => match name.get(offset..) {
                Some(rest) if rest.len() >= piece.len() => rest.starts_with(piece),
                Some(rest) => piece.strip_prefix(rest) == Some(&[0]),
                None => false,
            },
            KeyRef::U64s(words) => piece.iter().enumerate().all(|(i, byte)| {
                let at = offset.saturating_add(i);
                words.get(at / 8).is_some_and(|w| w.to_be_bytes().get(at % 8) == Some(byte))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_the_stored_form_are_recognised_and_no_others() {
        let words = [0x0102_0304_0506_0708, u64::MAX, 3];
        for key in [KeyRef::Name(b"a name of more than twenty-one bytes"), KeyRef::U64s(&words)] {
            let stored = key.stored();
            assert_eq!(stored.len(), key.stored_len());
            for cut in 1..=22 {
                for (i, piece) in stored.chunks(cut).enumerate() {
                    assert!(key.matches_at(i * cut, piece));
                    for flip in 0..piece.len() {
                        let mut other = piece.to_vec();
                        other[flip] ^= 1;
                        assert!(!key.matches_at(i * cut, &other));
                    }
                }
            }
        }
    }
}
