//! Compression and checksums of one block.
//!
//! A block is compressed and checksummed alone, so any block can be read without its neighbours. The stored form
//! ([`compress`]) is OpenZFS's; for lzjb, zle and zstd it is the same byte for byte. So blocks of its send streams
//! can be taken over as they are, and its vectors are our tests. The checksum ([`checksum`]) covers the stored bytes
//! and lies in the pointer, so it is verified before a decoder runs. The decoders still trust nothing: a checksum
//! proves only that these bytes were written, not that they are well formed.
//!
//! Invariants:
//! * For one algorithm, level and library version, the stored bytes depend on the content alone. They never depend on
//!   earlier calls of the same [`Compressor`]: `nopwrite` recognises equal content by its checksum.
//! * No input makes a decoder panic, write past the logical size or allocate more than [`BLOCK_BYTES_MAX`].

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::disallowed_methods))]

pub mod auto;
pub mod checksum;
pub mod compress;

pub use auto::{AutoRange, CompressionPolicy};
pub use checksum::{ChecksumKind, compute};
pub use compress::accept::{is_zero, max_stored};
pub use compress::algorithm::{Compression, GzipLevel, PropertyError, ZstdLevel, is_same_algorithm};
pub use compress::given_up::{GaveUp, GivenUp, GivenUpCodec};
pub use compress::{BLOCK_BYTES_MAX, Compressor, INPUT_BYTES_MAX, Outcome};
