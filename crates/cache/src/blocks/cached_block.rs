//! Cache entries, and the memory that they take.

use std::sync::Arc;
use terrane_codec::Compression;
use terrane_format::block_ptr::Key;

/// The stored form of a block.
#[derive(Clone, Debug)]
pub enum Packed {
    /// Compressed bytes, in an allocation of exactly their size.
    Compressed(Arc<[u8]>),
    /// The content of an uncompressed block. It may be shared.
    Content(Arc<Vec<u8>>),
}

impl Packed {
    /// Copies stored bytes. `compression` is the pointer's id.
    pub fn copy_of(compression: u8, stored: &[u8]) -> Packed {
        if compression == Compression::Off.id() {
            Packed::Content(Arc::new(stored.to_vec()))
        } else {
            Packed::Compressed(Arc::from(stored))
        }
    }

    /// The stored bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Packed::Compressed(bytes) => bytes,
            Packed::Content(bytes) => bytes,
        }
    }

    /// Memory in bytes. Constant, because nothing writes to the block while it is cached.
    pub(super) fn memory(&self) -> usize {
        match self {
            Packed::Compressed(bytes) => heap_bytes(ARC_COUNTS + bytes.len()),
            Packed::Content(bytes) => vec_memory(bytes),
        }
    }
}

/// Heap bytes of a request: one word more, rounded up to 16 bytes.
const fn heap_bytes(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16)
}

/// The two counts of an `Arc`.
const ARC_COUNTS: usize = 2 * size_of::<usize>();

fn vec_memory(bytes: &Vec<u8>) -> usize {
    heap_bytes(ARC_COUNTS + size_of::<Vec<u8>>()) + heap_bytes(bytes.capacity())
}

/// Where a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From its own place in the pool, or just written there.
    Pool,
    /// From a cache device: its own place was not verified.
    CacheDevice,
}

/// A block as it is given to the cache.
#[derive(Clone, Debug)]
pub struct StoredBlock {
    /// Its stored form.
    pub packed: Packed,
    /// Where that came from.
    pub source: Source,
    /// Bytes of its content.
    pub lsize: u32,
}

/// A cached block.
pub(super) struct CachedBlock {
    pub key: Key,
    pub packed: Packed,
    pub plain: Option<Box<Plain>>,
    /// Bytes of its content.
    pub lsize: u32,
    /// The block was prefetched, and no reader has asked for it.
    pub is_prefetched: bool,
    pub source: Source,
}

const _: () = assert!(size_of::<Option<CachedBlock>>() == 48);

impl CachedBlock {
    /// Memory without its slot and its decompressed form.
    pub fn bytes(&self) -> usize {
        self.packed.memory()
    }

    pub fn plain_bytes(&self) -> usize {
        self.plain.as_ref().map_or(0, |plain| plain.memory())
    }
}

/// A decompressed form.
pub(super) struct Plain {
    pub block: Arc<Vec<u8>>,
    /// Matches its entry in the queue. Entries with an older ticket are stale.
    pub ticket: u64,
    pub used: bool,
}

impl Plain {
    pub fn memory(&self) -> usize {
        vec_memory(&self.block) + heap_bytes(size_of::<Plain>())
    }
}
