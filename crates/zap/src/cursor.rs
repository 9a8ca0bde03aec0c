//! Cursors: positions in the order of entries, valid for ever.
//!
//! All kinds of ZAP list their entries by (hash, collision differentiator). A cursor is such a pair and not a
//! position in blocks. So it survives growth, splits, shrinking and every conversion: a name that is present during
//! the whole walk is returned exactly once.

use crate::hash::HashBits;

/// A position before the first entry that is not smaller than (hash, cd).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// The masked hash; all ones at the end.
    pub hash: u64,
    /// The collision differentiator.
    pub cd: u32,
}

impl Cursor {
    /// Before the first entry of any ZAP.
    pub const START: Cursor = Cursor { hash: 0, cd: 0 };
    /// After the last entry of any ZAP: the low bits of a masked hash are 0, so no entry has this hash.
    pub const END: Cursor = Cursor { hash: u64::MAX, cd: 0 };

    /// The position after the entry with this hash and differentiator.
    pub fn after(hash: u64, cd: u32) -> Cursor {
        Cursor { hash, cd: cd.saturating_add(1) }
    }

    /// Whether a listing from this position is empty, whatever the ZAP holds.
    pub fn is_end(self) -> bool {
        self.hash == u64::MAX
    }

    /// The serialised form in a ZAP with 28 hash bits, which every directory has. It has at most 60 bits, or is all
    /// ones at the end. After any entry it is at least 2^28, so small numbers are free for "." and "..".
    pub fn to_u64(self) -> u64 {
        self.to_u64_with(HashBits::Bits28)
    }

    /// Any number is allowed: one that is no entry's position lies between two entries.
    pub fn from_u64(raw: u64) -> Cursor {
        Self::from_u64_with(raw, HashBits::Bits28)
    }

    /// The serialised form in a ZAP with so many hash bits; all ones at the end.
    pub fn to_u64_with(self, bits: HashBits) -> u64 {
        if self.is_end() {
            return u64::MAX;
        }
        self.hash >> (64 - bits.count()) | u64::from(self.cd) << bits.count()
    }

    /// The inverse of [`to_u64_with`](Self::to_u64_with), for any number.
    pub fn from_u64_with(raw: u64, bits: HashBits) -> Cursor {
        if raw == u64::MAX {
            return Cursor::END;
        }
        // At most 36 bits. A value beyond the differentiator's range counts as 0.
        let cd = u32::try_from(raw >> bits.count()).unwrap_or(u32::MAX);
        Cursor { hash: raw << (64 - bits.count()), cd: if cd >= bits.cd_end() { 0 } else { cd } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialised_cursors_come_back() {
        for bits in [HashBits::Bits28, HashBits::Bits48] {
            for hash in [0, 1 << 36, 0x9f81_69b0_0000_0000, bits.mask()] {
                for cd in [0, 1, 2, 127, 65534] {
                    let cursor = Cursor { hash, cd };
                    assert_eq!(Cursor::from_u64_with(cursor.to_u64_with(bits), bits), cursor);
                }
            }
            assert_eq!(Cursor::from_u64_with(Cursor::END.to_u64_with(bits), bits), Cursor::END);
        }
        assert_eq!(Cursor::from_u64(0), Cursor::START);
        assert!(Cursor::after(0, 0).to_u64() >= 1 << 28);
        assert_eq!(Cursor::from_u64(u64::MAX - 1).cd, 0);
    }
}
