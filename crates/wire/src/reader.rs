//! A bounded cursor over bytes.

/// The bytes ended before the value did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// Offset of the value's first byte.
    pub offset: usize,
    /// Bytes that the value needs.
    pub needed: usize,
}

impl std::fmt::Display for Truncated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "truncated: {} bytes expected at offset {}", self.needed, self.offset)
    }
}

impl std::error::Error for Truncated {}

/// Reads little-endian values from the front of a byte slice. The cursor does not move if a value is refused.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    raw: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A cursor at offset 0 of `raw`. No value extends past the end of `raw`.
    pub fn new(raw: &'a [u8]) -> Self {
        Reader { raw, at: 0 }
    }

    /// Offset of the next byte.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Bytes from the cursor to the end of the slice.
    pub fn remaining(&self) -> usize {
        self.raw.len() - self.at
    }

    /// Whether the cursor has reached the end of the slice.
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The next `len` bytes, borrowed.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let short = Truncated { offset: self.at, needed: len };
        let end = self.at.checked_add(len).ok_or(short)?;
        let taken = self.raw.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(taken)
    }

    /// The next `N` bytes, copied.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// A number of 1 byte. The cursor does not move on an error.
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// A little-endian number of 2 bytes. The cursor does not move on an error.
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A little-endian number of 4 bytes. The cursor does not move on an error.
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A little-endian number of 8 bytes. The cursor does not move on an error.
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// LEB128: seven bits per byte, least significant first. A number of more than 64 bits counts as truncated, so
    /// one error covers "these bytes hold no number".
    pub fn varint(&mut self) -> Result<u64, Truncated> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let Ok(byte) = self.u8() else { break };
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.at = start;
        Err(Truncated { offset: start, needed: 10 })
    }

    /// A signed number in zigzag form (0, -1, 1, -2, ...), as [`Writer::varint_signed`](crate::Writer::varint_signed)
    /// writes it.
    pub fn varint_signed(&mut self) -> Result<i64, Truncated> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// A count of items that have at least `item_bytes` each. It is refused if that many cannot follow, so a caller
    /// may allocate by it.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, Truncated> {
        let start = self.at;
        let raw = self.varint()?;
        let short = Truncated { offset: start, needed: usize::MAX };
        let fits = |count: &usize| {
            count.checked_mul(item_bytes.max(1)).is_some_and(|bytes| bytes <= self.remaining())
        };
        let count = usize::try_from(raw).ok().filter(fits);
        if count.is_none() {
            self.at = start;
        }
        count.ok_or(short)
    }

    /// A varint length, then that many bytes.
    pub fn blob(&mut self) -> Result<&'a [u8], Truncated> {
        let len = self.count(1)?;
        self.bytes(len)
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = self.raw.get(self.at..).unwrap_or(&[]);
        self.at = self.raw.len();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(values in prop::collection::vec(any::<u64>(), 0..50), signed in any::<i64>()) {
            let mut w = Writer::new();
            for v in &values { w.varint(*v); }
            w.varint_signed(signed);
            let raw = w.into_bytes();
            let mut r = Reader::new(&raw);
            for v in &values { prop_assert_eq!(r.varint(), Ok(*v)); }
            prop_assert_eq!(r.varint_signed(), Ok(signed));
            prop_assert!(r.is_empty());
        }

        #[test]
        fn no_bytes_make_it_panic(raw in prop::collection::vec(any::<u8>(), 0..64), ops in prop::collection::vec(0u8..7, 0..20)) {
            let mut r = Reader::new(&raw);
            for op in ops {
                let before = r.offset();
                let _ = match op {
                    0 => r.u8().map(drop), 1 => r.u64().map(drop), 2 => r.varint().map(drop),
                    3 => r.count(3).map(|n| assert!(n * 3 <= raw.len())), 4 => r.blob().map(drop),
                    5 => r.bytes(usize::MAX).map(drop), _ => r.varint_signed().map(drop),
                };
                prop_assert!(r.offset() >= before && r.offset() <= raw.len());
            }
        }
    }

    #[test]
    fn eleven_continuation_bytes_are_no_number() {
        assert!(Reader::new(&[0xff; 11]).varint().is_err());
        let mut max = [0xff; 10];
        max[9] = 1;
        assert_eq!(Reader::new(&max).varint(), Ok(u64::MAX));
        max[9] = 2;
        assert!(Reader::new(&max).varint().is_err());
    }
}
