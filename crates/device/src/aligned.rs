//! Memory for direct I/O.
//!
//! Direct I/O needs buffers that begin on a page. The bytes of a buffer are always initialised.
//! [`AlignedBuf::prepare`] does not clear them, so they may be those of an earlier use.

#![expect(clippy::indexing_slicing, reason = "the buffer has grown by these bytes")]
#![expect(unsafe_code, reason = "a vector of pages seen as bytes")]

use std::ops::{Deref, DerefMut};

/// Alignment of the memory in bytes; no supported device needs more.
pub const ALIGN: usize = 4096;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN]);

const _: () = assert!(size_of::<Page>() == ALIGN && align_of::<Page>() == ALIGN);

/// Bytes that begin on a page.
#[derive(Clone, Default)]
pub struct AlignedBuf {
    pages: Vec<Page>,
    /// At most the bytes of `pages`.
    len: usize,
}

impl AlignedBuf {
    /// An empty buffer. It allocates at the first growth.
    pub fn new() -> AlignedBuf {
        AlignedBuf::default()
    }

    /// A buffer for `bytes` bytes. Unused capacity costs only address space.
    pub fn with_capacity(bytes: usize) -> AlignedBuf {
        AlignedBuf { pages: Vec::with_capacity(bytes.div_ceil(ALIGN)), len: 0 }
    }

    /// The largest size that it ever had, in whole pages. Up to it, growth allocates no memory.
    pub fn capacity(&self) -> usize {
        self.pages.len() * ALIGN
    }

    /// Removes the bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Sets the length to `len`. New bytes are undefined: those of earlier uses, or zeros.
    pub fn prepare(&mut self, len: usize) {
        let needed = len.div_ceil(ALIGN);
        if needed > self.pages.len() {
            // Doubled, like a vector: a batch is gathered one block at a time.
            let grown = needed.max((self.pages.len() * 2).min(needed + (256 << 10) / ALIGN));
            self.pages.resize(grown, Page([0; ALIGN]));
        }
        self.len = len;
    }

    /// Truncates the buffer, or extends it with zeros.
    pub fn resize(&mut self, len: usize) {
        let before = self.len.min(len);
        self.prepare(len);
        self[before..].fill(0);
    }

    /// Appends a copy of `bytes`. If the memory is too small it doubles, to at most 256 KiB more than needed.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let before = self.len;
        self.prepare(before + bytes.len());
        self[before..].copy_from_slice(bytes);
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(bytes: &[u8]) -> AlignedBuf {
        let mut made = AlignedBuf::new();
        made.extend_from_slice(bytes);
        made
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `pages` holds at least `len` bytes (the invariant that `prepare` keeps), all initialised, and a
        // page consists only of bytes.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; any bytes make a valid page, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.len) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_vector_that_begins_on_a_page() {
        let (mut buf, mut plain) = (AlignedBuf::new(), Vec::new());
        for (round, len) in [1usize, 4095, 1, 8192, 70_000, 3].into_iter().enumerate() {
            buf.extend_from_slice(&vec![round as u8 + 1; len]);
            plain.extend_from_slice(&vec![round as u8 + 1; len]);
            buf.resize(plain.len().next_multiple_of(16));
            plain.resize(plain.len().next_multiple_of(16), 0);
            assert_eq!(&buf[..], &plain[..]);
            assert!(buf.as_ptr().addr().is_multiple_of(ALIGN) && buf.capacity() >= buf.len());
        }
        buf.clear();
        buf.resize(10_000);
        assert_eq!(&buf[..], &[0; 10_000][..], "what was there before is not seen again");
        assert_eq!(&AlignedBuf::from(&b"abc"[..])[..], b"abc");
        assert!(AlignedBuf::new().is_empty());
        let mut ready = AlignedBuf::with_capacity(10_000);
        ready.extend_from_slice(&[1]);
        let at = ready.as_ptr();
        ready.resize(10_000);
        assert_eq!((ready.as_ptr(), ready[0], ready[9_999]), (at, 1, 0), "it grows where it is");
    }
}
