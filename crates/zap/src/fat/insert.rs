//! Storing in a fat ZAP, with the splits and the table growth that it needs.

use crate::error::Error;
use crate::fat::header::Header;
use crate::fat::leaf::{Found, Leaf, array_chunks};
use crate::fat::leaf_edit::{self, NewEntry};
use crate::fat::split::{grow_if_due, split, validate_fits};
use crate::fat::{leaf_of, store_header};
use crate::key::KeyRef;
use crate::store::{Store, edit};
use crate::value::ValueRef;
use std::sync::Arc;
use terrane_wire::Corrupt;

/// What to do if the key exists, and which differentiator a new key gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The key must be new.
    Add,
    /// The key is new and gets this differentiator, which it had before a conversion.
    AddWithCd(u32),
    /// Adds the key, or replaces its value.
    Update,
}

/// The result of examining the leaf.
enum Decision {
    Insert,
    Replace(Found),
    Split,
}

/// What storing a value changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The key is new.
    pub is_new: bool,
    /// The key had a value of another width or count.
    pub is_reshaped: bool,
}

/// Stores a value under a key.
pub(crate) fn put<S: Store + ?Sized>(
    store: &mut S,
    key: KeyRef<'_>,
    value: ValueRef<'_>,
    mode: Mode,
) -> Result<Stored, Error<S::Error>> {
    let block_0 = store.read(0)?;
    let header = Header::parse(&block_0, store.block_count()).map_err(Error::lift)?;
    put_with(store, (header, block_0), (key, value), mode)
}

/// As [`put`], if the caller has block 0 and its header already.
pub(crate) fn put_with<S: Store + ?Sized>(
    store: &mut S,
    (mut header, block_0): (Header, Arc<Vec<u8>>),
    (key, value): (KeyRef<'_>, ValueRef<'_>),
    mode: Mode,
) -> Result<Stored, Error<S::Error>> {
    header.norm.validate(key).map_err(Error::lift)?;
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
        match decide(&leaf, &header, key, &mut new, mode)? {
            Decision::Split => split(store, &mut header, block, &raw)?,
            Decision::Insert => {
                let nfree = leaf.nfree.saturating_sub(new.chunks());
                // The reference to the block is dropped first, else the store would have to copy it.
                drop(raw);
                edit(store, block, |raw| leaf_edit::insert(raw, block, &header, &new))?;
                header.num_entries = header.num_entries.saturating_add(1);
                grow_if_due(store, &mut header, prefix_len, nfree);
                store_header(store, &header)?;
                return Ok(Stored { is_new: true, is_reshaped: false });
            }
            Decision::Replace(found) => {
                let freed = array_chunks(found.entry.value_len());
                let nfree = leaf.nfree.saturating_add(freed).saturating_sub(array_chunks(new.value.len()));
                drop(raw);
                edit(store, block, |raw| leaf_edit::replace_value(raw, block, &header, &found, &new))?;
                if grow_if_due(store, &mut header, prefix_len, nfree) {
                    store_header(store, &header)?;
                }
                let old = (found.entry.value_int_size, usize::from(found.entry.value_ints));
                return Ok(Stored {
                    is_new: false,
                    is_reshaped: old != (value.int_size(), value.num_ints()),
                });
            }
        }
    }
    Err(Error::Full)
}

fn decide<E: From<Corrupt>>(
    leaf: &Leaf<'_>,
    header: &Header,
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
            validate_fits(leaf, header, new.hash, needed - old)?;
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
        validate_fits(leaf, header, new.hash, new.chunks())?;
        return Ok(Decision::Split);
    }
    Ok(Decision::Insert)
}
