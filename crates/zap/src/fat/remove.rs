//! Removing from a fat ZAP, and what that makes shrink.
//!
//! Only leaves that are *empty* are merged, and only with a sibling that is empty too: then nothing has to move.
//! The survivor is the one whose last prefix bit is 0; the other's block becomes a hole.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::Leaf;
use crate::fat::{leaf_edit, leaf_of, store_header, table};
use crate::key::KeyRef;
use crate::store::{Store, edit};

/// Whether the key was there.
pub(crate) fn remove<S: Store + ?Sized>(store: &mut S, key: KeyRef<'_>) -> Result<bool, Error<S::Error>> {
    let block_0 = store.read(0)?;
    let mut header = Header::parse(&block_0, store.block_count()).map_err(Error::lift)?;
    let hash = header.hash(key);
    let (block, raw) = leaf_of(store, &header, &block_0, hash)?;
    drop(block_0);
    let leaf = Leaf::parse_for(&raw, block, &header, hash).map_err(Error::damage)?;
    let Some(found) = leaf.find(hash, key).map_err(Error::damage)? else { return Ok(false) };
    let entries_left = leaf.nentries.saturating_sub(1);
    drop(raw);
    edit(store, block, |raw| leaf_edit::remove(raw, block, &header, &found))?;
    header.num_entries = header.num_entries.saturating_sub(1);
    if entries_left == 0 {
        shrink(store, &mut header, hash)?;
    }
    store_header(store, &header)?;
    Ok(true)
}

/// An empty leaf that owns all pointers its prefix says.
#[derive(Clone, Copy)]
struct Empty {
    block: u64,
    prefix: u64,
    prefix_len: u32,
}

/// Merges the empty leaf of a hash with its sibling while that is empty too. Leaves `header` to be stored.
fn shrink<S: Store + ?Sized>(store: &mut S, header: &mut Header, hash: u64) -> Result<(), Error<S::Error>> {
    let mut lowers_freeblk = false;
    let mut index = header.table_index(hash);
    while let Some(one) = empty_at(store, header, index)? {
        if one.prefix_len == 0 {
            break;
        }
        let sibling = table::range_of(header, one.prefix ^ 1, one.prefix_len);
        let Some(other) = empty_at(store, header, sibling.start)? else { break };
        if other.prefix_len != one.prefix_len || other.prefix != one.prefix ^ 1 {
            break;
        }
        let (survivor, freed) = if one.prefix & 1 == 0 { (one, other) } else { (other, one) };
        let range = table::range_of(header, freed.prefix, freed.prefix_len);
        table::set_range(store, header, range, survivor.block)?;
        edit(store, survivor.block, |raw| {
            leaf_edit::put_prefix(raw, survivor.prefix >> 1, survivor.prefix_len - 1);
            Ok(())
        })?;
        store.free(freed.block)?;
        header.num_leafs = header.num_leafs.saturating_sub(1);
        lowers_freeblk |= freed.block + 1 == header.freeblk;
        index = table::range_of(header, survivor.prefix, survivor.prefix_len).start;
    }
    if lowers_freeblk {
        header.freeblk = table::lowest_freeblk(store, header)?;
    }
    Ok(())
}

/// The leaf behind a pointer, if it is empty and the first and last pointers of its range agree on it.
fn empty_at<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    index: u64,
) -> Result<Option<Empty>, Error<S::Error>> {
    let block = table::pointer(store, header, index)?;
    let raw = store.read(block)?;
    let leaf = Leaf::parse(&raw, block, header).map_err(Error::damage)?;
    let range = table::range_of(header, leaf.prefix, leaf.prefix_len);
    let owns = range.contains(&index)
        && table::pointer(store, header, range.start)? == block
        && table::pointer(store, header, range.end - 1)? == block;
    if leaf.nentries != 0 || !owns {
        return Ok(None);
    }
    Ok(Some(Empty { block, prefix: leaf.prefix, prefix_len: leaf.prefix_len }))
}
