//! One block: made smaller, and proved whole.
//!
//! A block is compressed alone and checksummed alone, so that any block can be read without its neighbours. What is
//! stored is byte for byte what OpenZFS stores for the same algorithm ([`compress`]): blocks of its send streams can be
//! taken over as they are, and its vectors are our tests. The checksum ([`checksum`]) covers the stored bytes and lives
//! in the pointer, so it is compared before a decoder sees anything; the decoders still trust nothing, because
//! a checksum proves only that somebody wrote these bytes.
//!
//! Invariants:
//! * For one algorithm, level and library version the stored bytes depend on the content alone, never on what the same
//!   [`Compressor`] did before: an overwrite with equal content is recognised by its checksum.
//! * No input makes a decoder panic, write past the logical size or allocate more than [`BLOCK_BYTES_MAX`].

pub mod auto;
pub mod checksum;
pub mod compress;

pub use auto::{AutoRange, CompressionPolicy};
pub use checksum::{ChecksumKind, compute};
pub use compress::accept::{is_zero, max_stored};
pub use compress::algorithm::{Compression, GzipLevel, PropertyError, ZstdLevel, is_same_algorithm};
pub use compress::{BLOCK_BYTES_MAX, Compressor, LONG_BYTES_MAX, Outcome};
