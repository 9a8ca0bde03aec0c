//! Read calls of a pool; each is passed on to the [`BlockReader`](terrane_store::reader::BlockReader).

use crate::pool::Pool;
use std::sync::Arc;
use terrane_codec::Compression;
use terrane_format::addr::Addr;
use terrane_format::block_ptr::{BlockPtr, Key, Normal};
use terrane_format::directory::Owner;
use terrane_store::PoolError;
use terrane_store::pipeline::PreEncoded;
use terrane_store::reader::StoredForm;
use terrane_store::workers::Pending;
use terrane_wire::Corrupt;

/// Blocks that a reader of the whole pool reads at a time, from an object store, and most from what is near.
const READS_FAR: usize = 16;
const READS_NEAR_MAX: usize = 4;

impl Pool {
    /// The block of a pointer, verified and decompressed: `lsize` bytes. A hole reads as zeros. `owner` names
    /// the block in the log.
    pub fn read(&self, ptr: &BlockPtr, owner: Owner) -> Result<Arc<Vec<u8>>, PoolError> {
        self.reader.read(ptr, owner)
    }

    /// Drops the cached content of a metadata block that its owner is about to change. The cache keeps its stored
    /// form.
    pub fn release_content(&self, key: Key) {
        self.reader.cache.release_plain(key);
    }

    /// Like [`read`](Pool::read), into the caller's memory of exactly the block's size. For whole blocks that
    /// will not be read again. On an error the content of the memory is undefined.
    pub fn read_into(&self, ptr: &BlockPtr, owner: Owner, out: &mut [u8]) -> Result<(), PoolError> {
        self.reader.read_into(ptr, owner, out)
    }

    /// The verified stored form of a compressed block. `None`: it is not compressed, or its content is in memory.
    pub fn read_stored_form(&self, normal: &Normal, owner: Owner) -> Result<Option<StoredForm>, PoolError> {
        self.reader.read_stored_form(normal, owner)
    }

    /// The content of a stored form.
    pub fn unpack(&self, form: &StoredForm) -> Result<Arc<Vec<u8>>, PoolError> {
        self.reader.unpack(form)
    }

    /// The content of a stored form, from a worker.
    pub fn unpack_on_worker(&self, form: &StoredForm) -> Pending<Result<Vec<u8>, Corrupt>> {
        self.reader.unpack_on_worker(form)
    }

    /// The content of a data block, and its stored form, for a rewrite.
    pub fn read_for_rewrite(
        &self,
        normal: &Normal,
        owner: Owner,
    ) -> Result<(Arc<Vec<u8>>, PreEncoded), PoolError> {
        self.reader.read_for_rewrite(normal, owner)
    }

    /// Compresses a block on the calling thread, for a later txg.
    pub fn pre_encode(&self, data: &Arc<Vec<u8>>, compression: Compression) -> PreEncoded {
        self.reader.pipeline.pre_encode(data, compression)
    }

    /// Reads and verifies every copy of a block, past the cache. The findings name damaged copies. For
    /// `check`.
    pub fn verify(&self, ptr: &BlockPtr) -> Vec<(Addr, PoolError)> {
        self.reader.verify(ptr)
    }

    /// How many blocks a reader of the whole pool should read at a time: by threads of its own, without which there is 1.
    pub fn reads_at_a_time(&self) -> usize {
        match self.env.workers() {
            0 => 1,
            _ if self.is_far() => READS_FAR,
            workers => workers.clamp(2, READS_NEAR_MAX),
        }
    }

    /// Reads every copy of a block. The next txg replaces damaged ones by a good one. Returns how many are
    /// damaged.
    pub fn scrub(&self, normal: &Normal, owner: Owner) -> usize {
        self.reader.scrub(normal, owner)
    }

    /// Offers a prefetch job to another thread, which runs it soon or drops it. A pool without threads never
    /// runs it.
    pub fn offer_prefetch(&self, job: impl FnOnce() + Send + 'static) {
        self.reader.prefetch_queue.offer(job);
    }

    /// How far to prefetch for a reader of blocks of `block_bytes`, in bytes; 0: no prefetch.
    pub fn prefetch_max(&self, block_bytes: u32) -> u64 {
        self.reader.prefetch_max(block_bytes)
    }

    /// Reads blocks into the cache, on the calling thread: for jobs of [`offer_prefetch`](Pool::offer_prefetch).
    pub fn prefetch(&self, blocks: &[Normal]) {
        self.reader.prefetch(blocks);
    }

    /// Whether a block is in the cache. This does not count as a use.
    pub fn is_cached(&self, key: Key) -> bool {
        self.reader.cache.holds(key)
    }

    /// Prefetched blocks that were evicted before any read.
    pub fn prefetch_wasted(&self) -> u64 {
        self.reader.cache.wasted_prefetches()
    }

    /// Turns prefetch of files on or off, for benchmarks.
    #[doc(hidden)]
    pub fn set_prefetch(&self, is_on: bool) {
        self.reader.prefetch_queue.set_on(is_on);
    }

    /// Maximum bytes of cached blocks.
    pub fn cache_bytes_max(&self) -> usize {
        self.reader.cache.budget()
    }

    /// Sets the bound of cached blocks; the excess is evicted at once. The indexes of cache devices stay. A
    /// short lack of memory would otherwise lose all that they index.
    pub fn set_cache_bytes(&self, bytes: usize) {
        self.reader.cache.set_budget(bytes);
    }

    /// Sets whether blocks are cached decompressed only, and clears the cache. For benchmarks.
    #[doc(hidden)]
    pub fn cache_plain_only(&self, plain_only: bool) {
        self.reader.cache.set_plain_only(plain_only);
    }

    /// Clears the block cache, so that the next reads come from the device.
    pub fn drop_cache(&self) {
        self.reader.cache.clear();
    }
}
