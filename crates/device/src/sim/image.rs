//! The bytes of one zone, sparse and cheap to copy.
//!
//! A crash test copies a whole device thousands of times and changes little in each copy. So a zone is a map of
//! shared chunks: a copy shares all of them, and a write copies the chunks it touches. A chunk is as long as its
//! written part. The rest, and missing chunks, read as zeros.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum size of a chunk in bytes.
pub(super) const CHUNK_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    chunks: BTreeMap<u64, Arc<Vec<u8>>>,
}

/// Divides `len` bytes at `offset` into (chunk, first byte in the chunk, range of the buffer).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK_BYTES) as usize;
        let take = (CHUNK_BYTES as usize - within).min(len - done);
        let range = done..done + take;
        done += take;
        Some((at / CHUNK_BYTES, within, range))
    })
}

impl Image {
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        for (chunk, within, range) in pieces(offset, buf.len()) {
            let piece = &mut buf[range];
            let stored = self.chunks.get(&chunk).and_then(|bytes| bytes.get(within..)).unwrap_or(&[]);
            let stored_len = stored.len().min(piece.len());
            piece[..stored_len].copy_from_slice(&stored[..stored_len]);
            piece[stored_len..].fill(0);
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        for (chunk, within, range) in pieces(offset, data.len()) {
            let bytes = Arc::make_mut(self.chunks.entry(chunk).or_default());
            let end = within + range.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[within..end].copy_from_slice(&data[range]);
        }
    }

    /// Chunks in order, with their number; none is longer than [`CHUNK_BYTES`].
    pub(super) fn chunks(&self) -> impl ExactSizeIterator<Item = (u64, &[u8])> {
        self.chunks.iter().map(|(number, bytes)| (*number, bytes.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_one_vector(
            writes in prop::collection::vec((0u64..200_000, 1usize..100_000, any::<u8>()), 0..12),
            copy_at in 0usize..12, reads in prop::collection::vec((0u64..300_000, 0usize..90_000), 1..6),
        ) {
            let mut image = Image::default();
            let mut plain = vec![0u8; 400_000];
            let mut copied = (image.clone(), plain.clone());
            for (n, (offset, len, byte)) in writes.iter().enumerate() {
                if n == copy_at {
                    copied = (image.clone(), plain.clone());
                }
                image.write(*offset, &vec![*byte; *len]);
                plain[*offset as usize..*offset as usize + len].fill(*byte);
            }
            for (offset, len) in reads {
                for (image, plain) in [(&image, &plain), (&copied.0, &copied.1)] {
                    let mut buf = vec![0xee; len];
                    image.read(offset, &mut buf);
                    prop_assert_eq!(&buf[..], &plain[offset as usize..offset as usize + len]);
                }
            }
        }
    }
}
