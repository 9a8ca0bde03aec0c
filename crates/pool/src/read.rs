//! What a pool gives to read: each of these goes on to the [`BlockReader`](terrane_store::reader::BlockReader).

use crate::pool::Pool;
use std::sync::Arc;
use terrane_codec::Compression;
use terrane_format::addr::Addr;
use terrane_format::block_ptr::{BlockPtr, Normal};
use terrane_format::directory::Owner;
use terrane_store::PoolError;
use terrane_store::pipeline::Made;

impl Pool {
    /// The block behind a pointer, verified and decompressed: `lsize` bytes. A hole reads as zeros. `owner` names it in the log.
    pub fn read(&self, ptr: &BlockPtr, owner: Owner) -> Result<Arc<Vec<u8>>, PoolError> {
        self.reader.read(ptr, owner)
    }

    /// Like [`read`](Pool::read), into the caller's memory of exactly the block's size: for whole blocks, whose content nobody needs a
    /// second time. On an error the memory holds anything.
    pub fn read_into(&self, ptr: &BlockPtr, owner: Owner, out: &mut [u8]) -> Result<(), PoolError> {
        self.reader.read_into(ptr, owner, out)
    }

    /// The content of a block of data, and what it is stored as, for who writes it anew.
    pub fn read_whole(&self, normal: &Normal, owner: Owner) -> Result<(Arc<Vec<u8>>, Made), PoolError> {
        self.reader.read_anew(normal, owner)
    }

    /// Compresses a block in this thread, for a group to come.
    pub fn make(&self, data: &Arc<Vec<u8>>, compression: Compression) -> Made {
        self.reader.pipeline.make(data, compression)
    }

    /// Reads and verifies every copy of a block, past the cache; the findings name what is damaged. For `check`.
    pub fn verify(&self, ptr: &BlockPtr) -> Vec<(Addr, PoolError)> {
        self.reader.verify(ptr)
    }

    /// Reads every copy of a block, and has those that are damaged replaced by a good one in the next group. Returns how many were.
    pub fn scrub(&self, normal: &Normal, owner: Owner) -> usize {
        self.reader.scrub(normal, owner)
    }

    /// Has `job` run by another thread soon, or not at all: for what fills the cache before somebody asks. A pool without threads of
    /// its own never runs it.
    pub fn offer(&self, job: impl FnOnce() + Send + 'static) {
        self.reader.ahead.offer(job);
    }

    /// How far a reader of blocks of so many bytes may be read ahead of, in bytes: 0 if not at all.
    pub fn read_ahead_max(&self, block_bytes: u32) -> u64 {
        self.reader.read_ahead_max(block_bytes)
    }

    /// Brings blocks into the cache, in this thread: those of [`offer`](Pool::offer).
    pub fn read_ahead(&self, blocks: &[Normal]) {
        self.reader.read_ahead(blocks);
    }

    /// Blocks that were read ahead and left the cache before somebody asked for them.
    pub fn read_ahead_wasted(&self) -> u64 {
        self.reader.cache.wasted()
    }

    /// Whether files are read ahead: to compare with, in benchmarks.
    #[doc(hidden)]
    pub fn set_read_ahead(&self, is_on: bool) {
        self.reader.ahead.set_on(is_on);
    }

    /// The most bytes of cached blocks.
    pub fn cache_bytes_max(&self) -> usize {
        self.reader.cache.budget()
    }

    /// Bounds cached blocks anew; what is too much goes at once. The indexes of cache devices stay: who is short for a moment would
    /// lose all that they stand for.
    pub fn set_cache_bytes(&self, bytes: usize) {
        self.reader.cache.set_budget(bytes);
    }

    /// Whether cached blocks are kept decompressed and not as they are stored; forgets all. To compare with, in benchmarks.
    #[doc(hidden)]
    pub fn keep_plain_only(&self, plain_only: bool) {
        self.reader.cache.set_plain_only(plain_only);
    }

    /// Forgets cached blocks, so that the next reads come from the device.
    pub fn drop_cache(&self) {
        self.reader.cache.clear();
    }
}
