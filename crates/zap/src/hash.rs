//! The hash of a name, which decides its position.
//!
//! It is CRC-64 with the ECMA-182 polynomial, reflected, started from the ZAP's salt and without a final xor. Only
//! its top 28 bits are kept (48 with [`Flags::HASH64`]). It is affine: names of equal length that collide under one
//! salt collide under all of them. So the salt is no protection, and all other modules must stay correct and bounded
//! however many names share a hash. The format leaves no choice here.

use crate::error::Error;
use crate::key::KeyRef;
use terrane_wire::Corrupt;

const POLYNOMIAL: u64 = 0xC96C_5795_D787_0F42;

/// `TABLES[k][b]`: byte `b` followed by `k` zero bytes. With eight of them, one step takes eight bytes ("slicing by
/// 8", Kounavis and Berry 2005).
static TABLES: [[u64; 256]; 8] = tables();

#[expect(clippy::indexing_slicing, reason = "evaluated when compiled, where leaving an array is an error")]
const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut n = 0;
    while n < 256 {
        let mut value = n as u64;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        tables[0][n] = value;
        n += 1;
    }
    let mut k = 1;
    while k < 8 {
        n = 0;
        while n < 256 {
            let before: u64 = tables[k - 1][n];
            tables[k][n] = (before >> 8) ^ tables[0][(before & 255) as usize];
            n += 1;
        }
        k += 1;
    }
    tables
}

/// Hashes eight bytes at once, given as the little-endian word of the bytes in their order.
fn word(crc: u64, word: u64) -> u64 {
    let bytes = (crc ^ word).to_be_bytes();
    // The first hashed byte is the least significant one, and seven bytes follow it.
    TABLES.iter().zip(bytes).fold(0, |sum, (table, byte)| sum ^ at(table, byte))
}

fn at(table: &[u64; 256], byte: u8) -> u64 {
    table.get(usize::from(byte)).copied().unwrap_or_default()
}

/// The unmasked hash of a name (without its NUL).
pub fn crc64(salt: u64, name: &[u8]) -> u64 {
    let (words, rest) = name.as_chunks::<8>();
    let crc = words.iter().fold(salt, |crc, piece| word(crc, u64::from_le_bytes(*piece)));
    if rest.is_empty() {
        return crc;
    }
    // The last k bytes also take one step. They are hashed as a word that begins with zeros, which leave a state of
    // zeros unchanged.
    let bits = 8 * rest.len() as u32;
    let shift = u64::BITS - bits;
    let last = match name.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last) >> shift << shift,
        None => rest.iter().rev().fold(0, |low, byte| low << 8 | u64::from(*byte)) << shift,
    };
    word(crc << shift, last) ^ crc >> bits
}

/// The flags of a ZAP, as its header stores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u64);

impl Flags {
    /// Keys are names, with 28 hash bits. Micro and tiny ZAPs have no other flags.
    pub const NONE: Flags = Flags(0);
    /// 48 hash bits instead of 28.
    pub const HASH64: Flags = Flags(1);
    /// Keys are arrays of words.
    pub const UINT64_KEY: Flags = Flags(2);
    /// The first word of a key is its hash.
    pub const PRE_HASHED_KEY: Flags = Flags(4);

    /// Both sets of flags together.
    pub const fn union(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all of the other flags are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The word of the header: bits 0 to 2, all others 0.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Refuses unknown flags, and combinations without a meaning.
    pub fn parse(raw: u64) -> Result<Flags, Error<Corrupt>> {
        let flags = Flags(raw);
        if raw & !7 != 0 {
            return Err(Error::Unsupported {
                what: "a fat ZAP with unknown flags",
                found: format!("{raw:#x}"),
            });
        }
        if flags.has(Flags::PRE_HASHED_KEY) && !flags.has(Flags::UINT64_KEY) {
            let at = "block 0";
            return Err(Corrupt::new(at, "flags", "word keys if keys are pre-hashed", raw).into());
        }
        Ok(flags)
    }

    pub(crate) fn hash_bits(self) -> HashBits {
        if self.has(Flags::HASH64) { HashBits::Bits48 } else { HashBits::Bits28 }
    }

    /// The masked hash of a key. The caller must first check by [`KeyRef::fits`] that the ZAP can have such a key.
    pub(crate) fn hash(self, salt: u64, key: KeyRef<'_>) -> u64 {
        let whole = match key {
            KeyRef::Name(name) => crc64(salt, name),
            KeyRef::U64s(words) if self.has(Flags::PRE_HASHED_KEY) => words.first().copied().unwrap_or(0),
            KeyRef::U64s(words) => words.iter().fold(salt, |crc, w| word(crc, *w)),
        };
        whole & self.hash_bits().mask()
    }
}

/// How many bits of a hash count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashBits {
    /// Micro and tiny ZAPs, and fat ones by default.
    Bits28,
    /// Fat ZAPs with [`Flags::HASH64`].
    Bits48,
}

impl HashBits {
    /// The number of leading bits of a 64-bit hash that count: 28 or 48.
    pub const fn count(self) -> u32 {
        match self {
            HashBits::Bits28 => 28,
            HashBits::Bits48 => 48,
        }
    }

    /// A word with those leading bits set. The masked hash is the hash with all other bits cleared.
    pub const fn mask(self) -> u64 {
        !(u64::MAX >> self.count())
    }

    /// The first differentiator that no entry may have.
    pub const fn cd_end(self) -> u32 {
        match self {
            HashBits::Bits28 => u32::MAX,
            HashBits::Bits48 => 65535,
        }
    }

    /// The largest pointer table, as a power of two of entries.
    pub const fn table_shift_max(self) -> u32 {
        self.count() - 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_published_check_values() {
        assert_eq!(TABLES[0][1], 0xb32e_4cbe_03a7_5f6f);
        assert_eq!(TABLES[0][2], 0xf484_3657_a840_a05b);
        assert_eq!(TABLES[0][128], POLYNOMIAL);
        assert_eq!(TABLES[0][255], 0xe0ad_a173_6467_3f59);
        assert_eq!(crc64(1, b"a"), 0x9f81_69ba_49a5_4b33);
    }

    #[test]
    fn eight_bytes_at_once_are_eight_bytes_one_by_one() {
        let name: Vec<u8> = (0..100u8).map(|i| i.wrapping_mul(37)).collect();
        for len in 0..name.len() {
            let slow = name[..len].iter().fold(7, |crc, b| crc64(crc, &[*b]));
            assert_eq!(crc64(7, &name[..len]), slow);
        }
    }
}
