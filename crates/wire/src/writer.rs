//! The other direction of [`Reader`](crate::Reader): an encoder into memory.

/// Appends little-endian values to a growing buffer.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    raw: Vec<u8>,
}

impl From<Vec<u8>> for Writer {
    /// Appends to these bytes, in their buffer.
    fn from(raw: Vec<u8>) -> Self {
        Writer { raw }
    }
}

impl Writer {
    /// An empty buffer that has not allocated yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer that takes `bytes` bytes before it allocates again.
    pub fn with_capacity(bytes: usize) -> Self {
        Writer { raw: Vec::with_capacity(bytes) }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether nothing has been written yet.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Appends `raw` without its length; a reader must know the length. See [`blob`](Self::blob).
    pub fn bytes(&mut self, raw: &[u8]) {
        self.raw.extend_from_slice(raw);
    }

    /// Appends a number of 1 byte.
    pub fn u8(&mut self, value: u8) {
        self.raw.push(value);
    }

    /// Appends a number as 2 bytes, little-endian.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends a number as 4 bytes, little-endian.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Appends a number as 8 bytes, little-endian.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// LEB128: seven bits per byte, least significant first; at most 10 bytes.
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.raw.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.raw.push(value.to_le_bytes()[0]);
    }

    /// Zigzag form, so small numbers of either sign stay short.
    pub fn varint_signed(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    /// A varint length, then the bytes.
    pub fn blob(&mut self, raw: &[u8]) {
        self.varint(raw.len() as u64);
        self.bytes(raw);
    }

    /// Pads with zeros to the next multiple of `unit` bytes.
    pub fn pad_to(&mut self, unit: usize) {
        self.raw.resize(self.raw.len().next_multiple_of(unit), 0);
    }

    /// All bytes written so far, borrowed.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }

    /// All bytes written so far, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.raw
    }
}
