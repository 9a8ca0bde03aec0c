//! Removal from a fat ZAP.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::Leaf;
use crate::fat::{leaf_edit, leaf_of, merge, store_header};
use crate::key::KeyRef;
use crate::store::{Store, edit};
use std::sync::Arc;

/// Removes a key; returns whether it existed. The caller has block 0 and its header already.
pub(crate) fn remove<S: Store + ?Sized>(
    store: &mut S,
    (mut header, block_0): (Header, Arc<Vec<u8>>),
    key: KeyRef<'_>,
) -> Result<bool, Error<S::Error>> {
    let hash = header.hash(key);
    let (block, raw) = leaf_of(store, &header, &block_0, hash)?;
    // The store would have to copy a block that is still held here, to change it.
    drop(block_0);
    let leaf = Leaf::parse_for(&raw, block, &header, hash).map_err(Error::damage)?;
    let Some(found) = leaf.find(hash, key).map_err(Error::damage)? else { return Ok(false) };
    let used = leaf.used_chunks();
    let used_after = used.saturating_sub(leaf.chunks_of(&found.entry));
    drop(raw);
    edit(store, block, |raw| leaf_edit::remove(raw, block, &header, &found))?;
    header.num_entries = header.num_entries.saturating_sub(1);
    store_header(store, &header)?;
    if merge::is_due(header.geometry.chunks(), used, used_after) {
        // The name is removed even if the merge fails.
        let _ = merge::merge(store, &mut header, hash);
    }
    Ok(true)
}
