//! Fat ZAPs: an extendible hash table in blocks.
//!
//! Block 0 is the [`mod@header`]. The [`table`] maps the top bits of a hash to the block of a [`leaf`], which holds every
//! entry whose hash begins with its prefix. A full leaf is split in two by the next bit of the hash. The table
//! doubles when a leaf needs a longer prefix than the table has bits. Leaves that hold little are merged again, and
//! the table moves back into block 0 when it fits.
//!
//! Invariants: leaves own disjoint ranges of the table that cover all of it; no prefix is longer than the table's
//! shift; allocated block numbers are below `freeblk`.

mod blocks;
pub(crate) mod header;
mod insert;
pub(crate) mod leaf;
mod leaf_build;
mod leaf_edit;
mod list;
mod merge;
mod remove;
mod split;
pub(crate) mod table;

pub(crate) use insert::{Mode, put, put_with};
pub(crate) use list::Integers;
pub use list::{Entry, VisitedEntry};
pub(crate) use list::{list, next, visit};
pub(crate) use remove::remove;
pub(crate) use split::SHIFT_ALWAYS_ALLOWED;

use crate::bytes::put_u64;
use crate::error::Error;
use crate::hash::Flags;
use crate::key::KeyRef;
use crate::norm::NormFlags;
use crate::store::{Store, edit};
use crate::value::{Value, ValueShape};
use header::{Geometry, Header};
use leaf::{Found, Leaf};
use std::sync::Arc;

/// A fat ZAP's header, read and validated.
pub(crate) fn header<S: Store + ?Sized>(store: &S) -> Result<Header, Error<S::Error>> {
    Header::parse(&store.read(0)?, store.block_count()).map_err(Error::lift)
}

fn store_header<S: Store + ?Sized>(store: &mut S, header: &Header) -> Result<(), Error<S::Error>> {
    Ok(edit(store, 0, |raw| {
        header.store(raw);
        Ok(())
    })?)
}

/// Makes the object an empty fat ZAP. Its block size must be set, and only block 0 may have been written.
pub(crate) fn create<S: Store + ?Sized>(
    store: &mut S,
    salt: u64,
    flags: Flags,
    norm: NormFlags,
) -> Result<(), Error<S::Error>> {
    let geometry = Geometry::of_block(store.block_size()).map_err(Error::damage)?;
    let header = Header::new(geometry, salt, flags, norm);
    edit(store, 1, |raw| {
        leaf_edit::init(raw, &header, 0, 0);
        Ok(())
    })?;
    edit(store, 0, |raw| {
        raw.fill(0);
        header.store(raw);
        for pointer in (geometry.block_bytes() / 2..geometry.block_bytes()).step_by(8) {
            put_u64(raw, pointer, 1);
        }
        Ok(())
    })?;
    Ok(())
}

/// A leaf's block number and bytes.
type LeafBlock = (u64, Arc<Vec<u8>>);

/// The leaf that owns a hash: its block and its bytes, not yet parsed.
fn leaf_of<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    block_0: &[u8],
    hash: u64,
) -> Result<LeafBlock, Error<S::Error>> {
    let block = table::pointer_with_block_0(store, header, block_0, header.table_index(hash))?;
    Ok((block, store.read(block)?))
}

/// Finds a key and returns what `get` reads from its entry. The caller has the header and block 0 already.
fn lookup_with<S: Store + ?Sized, T>(
    store: &S,
    at: (&Header, &[u8]),
    key: KeyRef<'_>,
    get: impl FnOnce(&Leaf<'_>, &Found) -> Result<T, Error<S::Error>>,
) -> Result<Option<T>, Error<S::Error>> {
    let (header, block_0) = at;
    let hash = header.hash(key);
    let (block, raw) = leaf_of(store, header, block_0, hash)?;
    let leaf = Leaf::parse_for(&raw, block, header, hash).map_err(Error::damage)?;
    match leaf.find(hash, key).map_err(Error::damage)? {
        Some(found) => get(&leaf, &found).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn lookup<S: Store + ?Sized>(
    store: &S,
    at: (&Header, &[u8]),
    key: KeyRef<'_>,
) -> Result<Option<Value>, Error<S::Error>> {
    lookup_with(store, at, key, |leaf, found| leaf.value(&found.entry).map_err(Error::damage))
}

/// The first integer of a value.
pub(crate) fn lookup_u64<S: Store + ?Sized>(
    store: &S,
    at: (&Header, &[u8]),
    key: KeyRef<'_>,
) -> Result<Option<u64>, Error<S::Error>> {
    lookup_with(store, at, key, |leaf, found| match leaf.first_integer(&found.entry) {
        Some(first) => Ok(first),
        // Either there is none, or its chunk is damaged and the error says so.
        None => leaf.value(&found.entry).map_err(Error::damage)?.first_integer().ok_or(Error::NoInteger),
    })
}

/// The width and the count of a value's integers.
pub(crate) fn shape<S: Store + ?Sized>(
    store: &S,
    at: (&Header, &[u8]),
    key: KeyRef<'_>,
) -> Result<Option<ValueShape>, Error<S::Error>> {
    lookup_with(store, at, key, |_, found| {
        let (int_size, num_ints) = (found.entry.value_int_size, usize::from(found.entry.value_ints));
        Ok(ValueShape { int_size, num_ints })
    })
}
