//! Merging leaves that hold little.
//!
//! Two siblings (prefixes that differ only in their last bit) are merged if both together take at most half a leaf.
//! The other half is the hysteresis. After a merge, half a leaf of entries must be added before the next split; after
//! a split, half a leaf must be removed before the next merge. The leaf in the lower block survives, so freed blocks
//! lie near the end of the object. OpenZFS merges only empty leaves.
//!
//! Merging is optional: all blocks that a step needs are read and validated before it changes anything. A sibling
//! that cannot be read is left alone. An operation that needs it will report it; a removal does not.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::Leaf;
use crate::fat::{blocks, leaf_build, store_header, table};
use crate::store::{Store, edit};
use std::ops::Range;
use std::sync::Arc;

/// A removal tries a merge when the used chunks fall below a multiple of this fraction of a leaf. A try costs a read
/// of the sibling, and each removed entry changes little.
const MERGE_TRIES_PER_LEAF: usize = 16;

/// Whether the removal that left `used_after` used chunks should try a merge.
pub(crate) fn is_due(chunks: usize, used_before: usize, used_after: usize) -> bool {
    let step = (chunks / MERGE_TRIES_PER_LEAF).max(1);
    // Rounded up, so that the last entry's removal always tries.
    used_after <= chunks / 2 && used_before.div_ceil(step) != used_after.div_ceil(step)
}

/// Two siblings to be merged, and the bytes of the result.
struct MergePlan {
    survivor: u64,
    freed: u64,
    /// Pointers to the freed leaf.
    pointers: Range<u64>,
    merged: Vec<u8>,
    /// The present bytes of the survivor.
    before: Arc<Vec<u8>>,
}

/// Merges the leaf of a hash with its sibling, then the result with its own sibling, while they are small enough. If
/// a change fails, every name is still found, and the header is right about the blocks.
pub(crate) fn merge<S: Store + ?Sized>(
    store: &mut S,
    header: &mut Header,
    hash: u64,
) -> Result<(), Error<S::Error>> {
    // Each step makes a prefix shorter.
    for _ in 0..header.hash_bits().count() {
        let Ok(Some(plan)) = plan_merge(store, header, hash) else { break };
        let write = |store: &mut S, bytes: &[u8]| {
            edit(store, plan.survivor, |raw| {
                raw.copy_from_slice(bytes);
                Ok(())
            })
        };
        write(store, &plan.merged)?;
        if let Err(error) = table::set_range(store, header, plan.pointers.clone(), plan.survivor) {
            // If this fails too, the survivor lists names twice, but all are found.
            table::set_range(store, header, plan.pointers, plan.freed)?;
            write(store, &plan.before)?;
            return Err(error);
        }
        header.num_leafs = header.num_leafs.saturating_sub(1);
        blocks::lower_freeblk(store, header, |block| block == plan.freed);
        store_header(store, header)?;
        store.free(plan.freed)?;
        table::embed_table(store, header)?;
    }
    Ok(())
}

fn plan_merge<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    hash: u64,
) -> Result<Option<MergePlan>, Error<S::Error>> {
    let block = table::pointer(store, header, header.table_index(hash))?;
    let raw = store.read(block)?;
    let leaf = Leaf::parse_for(&raw, block, header, hash).map_err(Error::damage)?;
    if leaf.prefix_len == 0 {
        return Ok(None);
    }
    let range = |prefix| table::range_of(header, prefix, leaf.prefix_len);
    let other_block = table::pointer(store, header, range(leaf.prefix ^ 1).start)?;
    let other_raw = store.read(other_block)?;
    let other = Leaf::parse(&other_raw, other_block, header).map_err(Error::damage)?;
    if other.prefix_len != leaf.prefix_len || other.prefix != leaf.prefix ^ 1 {
        return Ok(None);
    }
    if leaf.used_chunks() + other.used_chunks() > header.geometry.chunks() / 2 {
        return Ok(None);
    }
    for leaf in [&leaf, &other] {
        if !table::owns(store, header, &range(leaf.prefix), leaf.block)? {
            return Ok(None);
        }
    }
    let (survivor, freed, before) =
        if block < other_block { (&leaf, &other, &raw) } else { (&other, &leaf, &other_raw) };
    let merged = leaf_build::merge([survivor, freed], header).map_err(Error::damage)?;
    let pointers = range(freed.prefix);
    table::read_range(store, header, &pointers)?;
    let (survivor, freed, before) = (survivor.block, freed.block, before.clone());
    Ok(Some(MergePlan { survivor, freed, pointers, merged, before }))
}
