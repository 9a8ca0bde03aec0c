//! What an entry holds, and what that takes.

use std::sync::Arc;
use terrane_codec::Compression;
use terrane_format::block_ptr::Key;

/// A block as it is stored.
#[derive(Clone, Debug)]
pub enum Packed {
    /// What has to be decompressed, in memory of its own and no more than it needs.
    Compressed(Arc<[u8]>),
    /// Its content, which is stored as it is. Others may share it.
    Content(Arc<Vec<u8>>),
}

impl Packed {
    /// A copy of stored bytes; `compression` is the pointer's id.
    pub fn copy_of(compression: u8, stored: &[u8]) -> Packed {
        if compression == Compression::Off.id() {
            Packed::Content(Arc::new(stored.to_vec()))
        } else {
            Packed::Compressed(Arc::from(stored))
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Packed::Compressed(bytes) => bytes,
            Packed::Content(bytes) => bytes,
        }
    }

    /// What it takes: nothing writes to it while it is here, so this stays the same.
    pub(super) fn memory(&self) -> usize {
        match self {
            Packed::Compressed(bytes) => heap_bytes(ARC_COUNTS + bytes.len()),
            Packed::Content(bytes) => vec_memory(bytes),
        }
    }
}

/// What allocators make of a request: a word of theirs beside it, all in steps of 16 bytes.
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
    /// From its own place in the pool, or it was just written there.
    Pool,
    /// From a cache device: of its own place nobody knows.
    CacheDevice,
}

/// A block that is here.
pub(super) struct Held {
    pub key: Key,
    pub packed: Packed,
    pub plain: Option<Box<Plain>>,
    /// It was read ahead, and nobody has asked for it.
    pub is_ahead: bool,
    pub source: Source,
}

const _: () = assert!(size_of::<Option<Held>>() == 48);

impl Held {
    /// What it takes beside its place and its decompressed form.
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
    /// Of its place in the queue: an older one counts no more.
    pub ticket: u64,
    pub used: bool,
}

impl Plain {
    pub fn memory(&self) -> usize {
        vec_memory(&self.block) + heap_bytes(size_of::<Plain>())
    }
}
