//! Blocks that stay as they are stored until their content is needed.
//!
//! A writer that replaces a part of a compressed record needs the rest only when the record is written. Until then it keeps the stored
//! form, which is verified and smaller.

use super::{BlockReader, is_uncompressed, packed};
use crate::PoolError;
use crate::pipeline::DecodeContext;
use crate::workers::Pending;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_cache::blocks::{CacheHit, Packed, StoredBlock};
use terrane_format::block_ptr::{Key, Normal};
use terrane_format::directory::Owner;
use terrane_wire::Corrupt;

/// A compressed block in memory that matched its checksum. No device is needed for its content.
#[derive(Clone, Debug)]
pub struct StoredForm {
    packed: Packed,
    key: Key,
    context: DecodeContext,
}

impl StoredForm {
    /// Stored bytes.
    pub fn stored_bytes(&self) -> usize {
        self.packed.bytes().len()
    }

    /// Bytes of the content.
    pub fn content_bytes(&self) -> usize {
        self.context.lsize()
    }
}

impl BlockReader {
    /// The stored form of a compressed block. `None`: it is not compressed, or its content is in memory.
    pub fn read_stored_form(&self, normal: &Normal, owner: Owner) -> Result<Option<StoredForm>, PoolError> {
        if is_uncompressed(normal) {
            return Ok(None);
        }
        let (key, kind) = (Key::of(normal), Kind::of(normal));
        let mut found = self.find_cached(key, kind);
        // Held until the block is in the cache.
        let claim = if found.is_none() { self.reads_in_flight.claim(key) } else { None };
        if found.is_none() && claim.is_none() {
            found = self.cache.get(key, kind);
        }
        let packed = match found {
            Some(CacheHit::Plain(_) | CacheHit::Packed(Packed::Content(_))) => return Ok(None),
            Some(CacheHit::Packed(packed) | CacheHit::Prefetched(packed)) => packed,
            None => {
                let (stored, source) = self.fetch(normal, owner)?;
                let packed = packed(normal, &stored);
                let block = StoredBlock { packed: packed.clone(), source, lsize: normal.lsize };
                self.cache.insert(key, kind, block, None);
                packed
            }
        };
        Ok(Some(StoredForm { packed, key, context: DecodeContext::stored(owner, normal) }))
    }

    /// Its content, which is cached as well if the cache has the block.
    pub fn unpack(&self, form: &StoredForm) -> Result<Arc<Vec<u8>>, PoolError> {
        if let Some(CacheHit::Plain(block)) = self.cache.get(form.key, Kind::Data)
            && block.len() == form.context.lsize()
        {
            return Ok(block);
        }
        let block = Arc::new(self.decode(&form.context, form.packed.bytes())?);
        self.cache.insert_plain(form.key, &block);
        Ok(block)
    }

    /// Its content, from a worker. The cache does not keep it.
    pub fn unpack_on_worker(&self, form: &StoredForm) -> Pending<Result<Vec<u8>, Corrupt>> {
        let StoredForm { packed, context, .. } = form.clone();
        self.pipeline.workers().submit(move |codec| context.decompress(codec, packed.bytes()))
    }
}
