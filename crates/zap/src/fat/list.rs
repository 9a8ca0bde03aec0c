//! Listing a fat ZAP in the order of (hash, differentiator).
//!
//! Leaves are ordered by prefix, and buckets by the next bits of the hash. So a walk over both is sorted, except for
//! the few entries that share a bucket. The walk verifies that each entry lies where its hash belongs. That also
//! guarantees that it advances, whatever the blocks hold.

use crate::bytes::get_u64;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::{EntryChunk, Leaf};
use crate::fat::leaf_of;
use crate::key::{Key, KeyRef};
use crate::store::Store;
use crate::value::Value;
use terrane_wire::Corrupt;

/// An entry that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The stored name, which is not normalized, or the stored words.
    pub key: Key,
    /// The integers of the entry, at the width at which they were added.
    pub value: Value,
    /// The masked hash; with `cd` it is the entry's position for a cursor.
    pub hash: u64,
    /// Collision differentiator: unique among entries with the same hash, and below
    /// [`HashBits::cd_end`](crate::hash::HashBits::cd_end).
    pub cd: u32,
    /// Another entry's name has the same normalized form. A caller that ignores case or normalizes otherwise sees
    /// only one of them.
    pub conflict: bool,
}

impl Entry {
    /// The cursor after this entry.
    pub fn cursor_after(&self) -> Cursor {
        Cursor::after(self.hash, self.cd)
    }
}

/// An entry, borrowed for the time of a callback.
#[derive(Clone, Copy, Debug)]
pub struct VisitedEntry<'a> {
    /// The stored name, which is not normalized, or the stored words.
    pub key: KeyRef<'a>,
    /// The first integer of the value, widened, if there is one.
    pub first_integer: Option<u64>,
    pub(crate) integers: Integers<'a>,
    /// The cursor after this entry.
    pub after: Cursor,
}

/// The integers of a visited entry, where they lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Integers<'a> {
    /// Words in the order of bytes of slots.
    Words(&'a [u8]),
    Value(&'a Value),
}

impl VisitedEntry<'_> {
    /// Copies the value's first integers, widened, as far as `out` has space. Returns how many the value has.
    pub fn copy_integers(&self, out: &mut [u64]) -> usize {
        match self.integers {
            Integers::Words(raw) => {
                let words = raw.chunks_exact(8);
                let count = words.len();
                out.iter_mut().zip(words).for_each(|(out, word)| *out = get_u64(word, 0));
                count
            }
            Integers::Value(value) => {
                out.iter_mut().zip(value.ints()).for_each(|(out, word)| *out = word);
                value.num_ints()
            }
        }
    }
}

/// Passes entries from the cursor on to `each` until it returns false. Returns true if the last entry was passed.
pub(crate) fn visit<S: Store + ?Sized>(
    store: &S,
    from: Cursor,
    each: &mut dyn FnMut(VisitedEntry<'_>) -> bool,
) -> Result<bool, Error<S::Error>> {
    let mut wanted = true;
    walk(store, from, |leaf, found| {
        for entry in found {
            let entry = read(leaf, entry)?;
            let (first, after) = (entry.value.first_integer(), entry.cursor_after());
            let (key, integers) = (entry.key.as_ref(), Integers::Value(&entry.value));
            wanted = each(VisitedEntry { key, first_integer: first, integers, after });
            if !wanted {
                break;
            }
        }
        Ok(wanted)
    })?;
    Ok(wanted)
}

/// The first entry at or after the cursor.
pub(crate) fn next<S: Store + ?Sized>(store: &S, from: Cursor) -> Result<Option<Entry>, Error<S::Error>> {
    let mut one = None;
    walk(store, from, |leaf, found| {
        // All entries of a later bucket are greater.
        one = found.first().map(|entry| read(leaf, entry)).transpose()?;
        Ok(one.is_none())
    })?;
    Ok(one)
}

/// Up to `max` entries from the cursor on.
pub(crate) fn list<S: Store + ?Sized>(
    store: &S,
    from: Cursor,
    max: usize,
) -> Result<Vec<Entry>, Error<S::Error>> {
    let mut entries = Vec::new();
    if max == 0 {
        return Ok(entries);
    }
    walk(store, from, |leaf, found| {
        for entry in found {
            if entries.len() >= max {
                break;
            }
            entries.push(read(leaf, entry)?);
        }
        Ok(entries.len() < max)
    })?;
    Ok(entries)
}

fn read(leaf: &Leaf<'_>, entry: &EntryChunk) -> Result<Entry, Corrupt> {
    Ok(Entry {
        key: leaf.key(entry)?,
        value: leaf.value(entry)?,
        hash: entry.hash,
        cd: entry.cd,
        conflict: false,
    })
}

/// Passes the entries of one bucket after the other to `each`, sorted, until it returns false.
fn walk<S: Store + ?Sized>(
    store: &S,
    from: Cursor,
    mut each: impl FnMut(&Leaf<'_>, &[EntryChunk]) -> Result<bool, Corrupt>,
) -> Result<(), Error<S::Error>> {
    if from.is_end() {
        return Ok(());
    }
    let block_0 = store.read(0)?;
    let header = Header::parse(&block_0, store.block_count()).map_err(Error::lift)?;
    let mut from = from;
    let mut found = Vec::new();
    // Each leaf's range begins after the one before, so this ends.
    loop {
        let (block, raw) = leaf_of(store, &header, &block_0, from.hash)?;
        let leaf = Leaf::parse_for(&raw, block, &header, from.hash).map_err(Error::damage)?;
        for bucket in leaf.bucket(from.hash)..leaf.geometry.buckets() {
            found.clear();
            for entry in leaf.chain(bucket) {
                let entry = entry.map_err(Error::damage)?.entry;
                leaf.validate_bucket(&entry, bucket).map_err(Error::damage)?;
                if (entry.hash, entry.cd) >= (from.hash, from.cd) {
                    found.push(entry);
                }
            }
            found.sort_unstable_by_key(|entry| (entry.hash, entry.cd));
            if !found.is_empty() && !each(&leaf, &found).map_err(Error::damage)? {
                return Ok(());
            }
        }
        match leaf.first_hash_after() {
            Some(hash) => from = Cursor { hash, cd: 0 },
            None => return Ok(()),
        }
    }
}
