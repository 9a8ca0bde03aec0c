//! Values of entries: integers of one width.
//!
//! Stored integers are big-endian at their own width, packed. A [`Value`] keeps them so, because most are read once
//! or never. The frequent case, a single `u64`, has a variant of its own and costs no allocation.

/// Maximum size of a value in bytes.
pub const VALUE_BYTES_MAX: usize = 8192;

/// The width of a value's integers in bytes, and their count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueShape {
    /// Width of each integer in bytes: 1, 2, 4 or 8.
    pub int_size: u8,
    /// Count of integers. The size of the value in bytes is `int_size` times this.
    pub num_ints: usize,
}

/// Bits of a value's first word that count the words after it. Words beyond them are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountBits {
    /// The lowest bit.
    pub shift: u8,
    /// Number of bits, at most 8.
    pub bits: u8,
}

impl CountBits {
    /// Words of a value with this first word, itself included.
    pub fn words(self, first: u64) -> usize {
        let mask = (1u64 << self.bits.min(8)) - 1;
        let further = first.checked_shr(self.shift.into()).unwrap_or(0) & mask;
        1 + usize::try_from(further).unwrap_or(usize::MAX - 1)
    }
}

/// Integers to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// One-byte integers, such as text. Only a fat ZAP holds them.
    U8s(&'a [u8]),
    /// Two-byte integers. Only a fat ZAP holds them.
    U16s(&'a [u16]),
    /// Four-byte integers. Only a fat ZAP holds them.
    U32s(&'a [u32]),
    /// Words. A micro ZAP holds one per entry, a tiny ZAP up to 31.
    U64s(&'a [u64]),
}

impl<'a> ValueRef<'a> {
    /// Width of each integer in bytes.
    pub fn int_size(&self) -> u8 {
        match self {
            ValueRef::U8s(_) => 1,
            ValueRef::U16s(_) => 2,
            ValueRef::U32s(_) => 4,
            ValueRef::U64s(_) => 8,
        }
    }

    /// How many integers the slice has. Each takes [`int_size`](Self::int_size) bytes.
    pub fn num_ints(&self) -> usize {
        match self {
            ValueRef::U8s(ints) => ints.len(),
            ValueRef::U16s(ints) => ints.len(),
            ValueRef::U32s(ints) => ints.len(),
            ValueRef::U64s(ints) => ints.len(),
        }
    }

    /// Size of the stored form in bytes.
    pub(crate) fn stored_len(&self) -> usize {
        self.num_ints().saturating_mul(usize::from(self.int_size()))
    }

    pub(crate) fn stored(&self) -> Vec<u8> {
        match self {
            ValueRef::U8s(ints) => ints.to_vec(),
            ValueRef::U16s(ints) => ints.iter().flat_map(|i| i.to_be_bytes()).collect(),
            ValueRef::U32s(ints) => ints.iter().flat_map(|i| i.to_be_bytes()).collect(),
            ValueRef::U64s(ints) => ints.iter().flat_map(|i| i.to_be_bytes()).collect(),
        }
    }

    /// The integers if they are `u64`s. Slots hold no others.
    pub(crate) fn words(self) -> Option<&'a [u64]> {
        match self {
            ValueRef::U64s(words) => Some(words),
            _ => None,
        }
    }
}

/// Integers that were read. One `u64` is always [`Value::U64`], in every kind of ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A single integer of eight bytes, as in most directory entries.
    U64(u64),
    /// Any other number of integers, or narrower ones.
    Ints {
        /// Width of each integer in bytes: 1, 2, 4 or 8.
        int_size: u8,
        /// The stored form: the integers in order, each big-endian, without padding.
        big_endian: Vec<u8>,
    },
}

impl Value {
    pub(crate) fn from_stored(int_size: u8, big_endian: Vec<u8>) -> Self {
        match (int_size, <[u8; 8]>::try_from(big_endian.as_slice())) {
            (8, Ok(one)) => Value::U64(u64::from_be_bytes(one)),
            _ => Value::Ints { int_size, big_endian },
        }
    }

    /// Width of each integer in bytes.
    pub fn int_size(&self) -> u8 {
        match self {
            Value::U64(_) => 8,
            Value::Ints { int_size, .. } => *int_size,
        }
    }

    /// How many integers were read. Each takes [`int_size`](Self::int_size) bytes.
    pub fn num_ints(&self) -> usize {
        match self {
            Value::U64(_) => 1,
            Value::Ints { int_size, big_endian } => big_endian.len() / usize::from(*int_size).max(1),
        }
    }

    /// The integers, widened to 64 bits.
    pub fn ints(&self) -> Vec<u64> {
        match self {
            Value::U64(one) => vec![*one],
            Value::Ints { int_size, big_endian } => {
                big_endian.chunks_exact(usize::from(*int_size).max(1)).map(widen).collect()
            }
        }
    }

    /// The first integer, widened: the object of a directory entry. Other integers may follow it.
    pub fn first_integer(&self) -> Option<u64> {
        match self {
            Value::U64(one) => Some(*one),
            Value::Ints { int_size, big_endian } => big_endian.get(..usize::from(*int_size)).map(widen),
        }
    }

    /// The bytes of a value of one-byte integers.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Ints { int_size: 1, big_endian } => Some(big_endian),
            _ => None,
        }
    }
}

fn widen(big_endian: &[u8]) -> u64 {
    big_endian.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
