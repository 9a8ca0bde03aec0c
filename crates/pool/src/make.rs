//! Blocks that are compressed before their group.

use crate::pool::Pool;
use std::sync::Arc;
use terrane_codec::Compression;
use terrane_store::prepare::Made;

impl Pool {
    /// Compresses a block in this thread, for a group to come.
    pub fn make(&self, data: &Arc<Vec<u8>>, compression: Compression) -> Made {
        self.workers.here(|codec| Made::of(codec, data, compression))
    }
}
