//! Adding to a fat ZAP, and what that makes grow.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::{Found, Leaf, array_chunks, top_bits};
use crate::fat::leaf_edit::{self, NewEntry};
use crate::fat::{blocks, leaf_of, store_header, table};
use crate::key::KeyRef;
use crate::store::{Store, edit};
use crate::value::ValueRef;
use terrane_wire::Corrupt;

/// Free chunks below which a leaf with no prefix bits left makes the table grow ahead of need.
const GROW_BELOW_FREE_CHUNKS: usize = 20;

/// What to do about a key that is there, or about its differentiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The key must be new.
    Add,
    /// A new key with this differentiator, which it had before a conversion.
    AddWithCd(u32),
    /// Adds, or replaces the value.
    Update,
}

/// What one look at the leaf decided.
enum Decision {
    Insert,
    Replace(Found),
    Split,
}

/// Stores a value under a key; says whether the key is new.
pub(crate) fn put<S: Store + ?Sized>(
    store: &mut S,
    key: KeyRef<'_>,
    value: ValueRef<'_>,
    mode: Mode,
) -> Result<bool, Error<S::Error>> {
    let block_0 = store.read(0)?;
    let mut header = Header::parse(&block_0, store.block_count()).map_err(Error::lift)?;
    header.norm.judge(key).map_err(Error::lift)?;
    let mut at_hand = Some(block_0);
    let (name, stored_value) = (key.stored(), value.stored());
    let mut new = NewEntry {
        hash: header.hash(key),
        cd: 0,
        name: &name,
        name_ints: key.stored_ints(),
        value: &stored_value,
        value_int_size: value.int_size(),
        value_ints: value.num_ints(),
    };
    let chunks_max = header.geometry.chunks();
    if new.chunks() > chunks_max {
        return Err(Error::EntryTooLarge { chunks: new.chunks(), chunks_max });
    }
    // Each split lengthens a prefix by one bit.
    for _ in 0..=header.hash_bits().count() {
        let block_0 = match at_hand.take() {
            Some(block_0) => block_0,
            None => store.read(0)?,
        };
        let (block, raw) = leaf_of(store, &header, &block_0, new.hash)?;
        drop(block_0);
        let leaf = Leaf::parse_for(&raw, block, &header, new.hash).map_err(Error::damage)?;
        let prefix_len = leaf.prefix_len;
        match decide(&leaf, key, &mut new, mode)? {
            Decision::Split => split(store, &mut header, block, &raw)?,
            Decision::Insert => {
                let nfree = leaf.nfree.saturating_sub(new.chunks());
                // The block is let go first: a store that shares it would have to copy it.
                drop(raw);
                edit(store, block, |raw| leaf_edit::insert(raw, block, &header, &new))?;
                header.num_entries = header.num_entries.saturating_add(1);
                grow_if_due(store, &mut header, prefix_len, nfree)?;
                store_header(store, &header)?;
                return Ok(true);
            }
            Decision::Replace(found) => {
                let freed = array_chunks(found.entry.value_len());
                let nfree = leaf.nfree.saturating_add(freed).saturating_sub(array_chunks(new.value.len()));
                drop(raw);
                edit(store, block, |raw| leaf_edit::replace_value(raw, block, &header, &found, &new))?;
                if grow_if_due(store, &mut header, prefix_len, nfree)? {
                    store_header(store, &header)?;
                }
                return Ok(false);
            }
        }
    }
    Err(Error::Full)
}

fn decide<E: From<Corrupt>>(
    leaf: &Leaf<'_>,
    key: KeyRef<'_>,
    new: &mut NewEntry<'_>,
    mode: Mode,
) -> Result<Decision, Error<E>> {
    if let Some(found) = leaf.find(new.hash, key).map_err(Error::damage)? {
        if mode != Mode::Update {
            return Err(Error::Exists);
        }
        let (old, needed) = (array_chunks(found.entry.value_len()), array_chunks(new.value.len()));
        if needed > leaf.nfree.saturating_add(old) {
            judge_room(leaf, new.hash, needed - old)?;
            return Ok(Decision::Split);
        }
        return Ok(Decision::Replace(found));
    }
    new.cd = match mode {
        Mode::AddWithCd(cd) => cd,
        _ => leaf.lowest_cd(new.hash).map_err(Error::damage)?,
    };
    if new.cd >= leaf.hash_bits.cd_end() {
        return Err(Error::Full);
    }
    if new.chunks() > leaf.nfree {
        judge_room(leaf, new.hash, new.chunks())?;
        return Ok(Decision::Split);
    }
    Ok(Decision::Insert)
}

/// After every add and update: one step of a doubling under way, or the first one ahead of need. Whether the
/// header changed.
fn grow_if_due<S: Store + ?Sized>(
    store: &mut S,
    header: &mut Header,
    prefix_len: u32,
    nfree: usize,
) -> Result<bool, Error<S::Error>> {
    let early = prefix_len == header.table_shift && nfree < GROW_BELOW_FREE_CHUNKS;
    if !header.is_growing() && !early {
        return Ok(false);
    }
    match table::grow_step(store, header) {
        Ok(()) => Ok(true),
        // The entry is in; that the table can never grow again matters only to a later one.
        Err(Error::Full) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses an entry for which no number of splits makes room.
///
/// No prefix can be longer than the largest table's shift, so entries that agree in that many bits stay in one leaf
/// for ever. The reference finds out by growing the table to that size, 512 MiB, for each such insert; here a
/// directory flooded with colliding names refuses the next one and stays as it was.
fn judge_room<E: From<Corrupt>>(leaf: &Leaf<'_>, hash: u64, needed: usize) -> Result<(), Error<E>> {
    let bits = leaf.hash_bits.table_shift_max();
    let mut chunks = needed;
    for bucket in 0..leaf.geometry.buckets() {
        for found in leaf.chain(bucket) {
            let entry = found.map_err(Error::damage)?.entry;
            if top_bits(entry.hash, bits) == top_bits(hash, bits) {
                chunks += 1 + array_chunks(leaf.name_len(&entry)) + array_chunks(entry.value_len());
            }
        }
    }
    if chunks > leaf.geometry.chunks() { Err(Error::Full) } else { Ok(()) }
}

/// Splits the leaf in `block` by the next bit of its hashes; stores the header.
fn split<S: Store + ?Sized>(
    store: &mut S,
    header: &mut Header,
    block: u64,
    raw: &[u8],
) -> Result<(), Error<S::Error>> {
    let leaf = Leaf::parse(raw, block, header).map_err(Error::damage)?;
    let (prefix, prefix_len) = (leaf.prefix, leaf.prefix_len);
    // A leaf that does not own what its prefix says would take pointers from others.
    let owned = table::range_of(header, prefix, prefix_len);
    for index in [owned.start, owned.end.saturating_sub(1)] {
        let found = table::pointer(store, header, index)?;
        if found != block {
            let at = format_args!("pointer table entry {index}");
            return Err(Error::damage(Corrupt::new(at, "leaf block", block, found)));
        }
    }
    while prefix_len >= header.table_shift {
        table::grow_step(store, header)?;
    }
    let mut low = raw.to_vec();
    let mut high = vec![0; low.len()];
    let mut after = *header;
    let high_block = blocks::take_leaf(store, &mut after)?;
    leaf_edit::split(&mut low, &mut high, (block, high_block), header).map_err(Error::damage)?;
    *header = after;
    header.num_leafs = header.num_leafs.saturating_add(1);
    let write = |store: &mut S, block, from: &[u8]| {
        edit(store, block, |raw| {
            raw.copy_from_slice(from);
            Ok(())
        })
    };
    write(store, high_block, &high)?;
    write(store, block, &low)?;
    store_header(store, header)?;
    let moved = table::range_of(header, prefix << 1 | 1, prefix_len + 1);
    table::set_range(store, header, moved, high_block)
}
