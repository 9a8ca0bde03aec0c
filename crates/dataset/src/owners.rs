//! Owners of files, and the encoding of the tables that count for them.
//!
//! The owners are read from a file's bonus at fixed places, as OpenZFS does. No layout has to be known for that,
//! so every sync can count. The layer above keeps the attributes in the order on which this depends.
//!
//! A table is a ZAP as in OpenZFS. It has two entries for each id: the id in hexadecimal names the bytes, and with
//! the prefix `obj-` the objects. A number of 0 has no entry.

use crate::error::ZapError;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_object::owners::{OwnerChanges, OwnerCount, OwnerPolicy, OwnerTable};
use terrane_object::{ObjectError, ObjectKind, Owners};
use terrane_store::PoolError;
use terrane_wire::Corrupt;
use terrane_zap::{Cursor, KeyRef, Store, Zap, ZapOptions};

/// The entry of an id's number of objects has this before the id.
const OBJECTS: &str = "obj-";
/// A table of larger entries becomes fat.
const MICRO_BYTES_MAX: usize = 16 << 10;
/// Block size of a ZAP without entries.
const EMPTY_BLOCK_BYTES: u32 = 512;

/// Magic of a buffer of attributes.
const ATTRIBUTES_MAGIC: u32 = 0x2f_505a;
/// Offsets of attributes behind the buffer's header.
const UID_AT: usize = 24;
const GID_AT: usize = 32;
const FLAGS_AT: usize = 48;
const PROJECT_AT: usize = 128;
/// Flag of an inode: it has a project id (`ZFS_PROJID`), directly behind the attributes that all inodes have.
pub const FLAG_PROJECT: u64 = 1 << 47;

/// Owners in a file's bonus. `None`: it has no attributes, or damaged ones.
fn owners_in(bonus: &[u8]) -> Option<Owners> {
    let magic = bonus.first_chunk().map(|raw| u32::from_le_bytes(*raw))?;
    let info = bonus.get(4..)?.first_chunk().map(|raw| u16::from_le_bytes(*raw))?;
    if magic != ATTRIBUTES_MAGIC {
        return None;
    }
    let values = bonus.get(usize::from(info >> 10) * 8..)?;
    let word = |at: usize| Some(u64::from_le_bytes(*values.get(at..)?.first_chunk()?));
    let id = |at: usize| u32::try_from(word(at)?).ok();
    let has_project = word(FLAGS_AT)? & FLAG_PROJECT != 0;
    let project = if has_project { id(PROJECT_AT)? } else { 0 };
    Some(Owners { user: id(UID_AT)?, group: id(GID_AT)?, project })
}

/// Counts the files of a data set for their owners.
pub(crate) struct CountOwners;

impl OwnerPolicy for CountOwners {
    fn owners(&self, kind: ObjectKind, bonus: &[u8]) -> Option<Owners> {
        match kind {
            ObjectKind::Directory | ObjectKind::File | ObjectKind::Symlink | ObjectKind::Special => {
                owners_in(bonus)
            }
            _ => None,
        }
    }

    fn apply(
        &self,
        table: &mut OwnerTable<'_>,
        changes: &OwnerChanges,
    ) -> Result<Vec<(u32, OwnerCount)>, ObjectError> {
        let applied = apply(&mut TableStore(table), changes);
        applied.map_err(|error| match error {
            ZapError::Store(error) => error,
            other => {
                PoolError::from(Corrupt::new("table of owners", "content", "a ZAP of numbers", other)).into()
            }
        })
    }
}

fn apply(store: &mut TableStore<'_, '_>, changes: &OwnerChanges) -> Result<Vec<(u32, OwnerCount)>, ZapError> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let mut zap = Zap::open_with(store, options())?;
    let mut counts = Vec::with_capacity(changes.len());
    for (id, change) in changes {
        let names = names_of(*id);
        let [bytes, objects] = [zap.lookup_u64(store, &names[0][..])?, zap.lookup_u64(store, &names[1][..])?];
        let before = OwnerCount { bytes: bytes.unwrap_or(0), objects: objects.unwrap_or(0) };
        let (after, is_below_0) = before.after(change);
        if is_below_0 {
            log::error!(
                "count of owner {id} would be below 0: {before:?} and {change:?}. `terrane check` tells more"
            );
        }
        for (name, old, new) in [(&names[0], bytes, after.bytes), (&names[1], objects, after.objects)] {
            match (old, new) {
                (None, 0) => {}
                (Some(_), 0) => drop(zap.remove(store, &name[..])?),
                (Some(old), new) if old == new => {}
                (_, new) => drop(zap.update_ints(store, &name[..], terrane_zap::ValueRef::U64s(&[new]))?),
            }
        }
        counts.push((*id, after));
    }
    if zap.is_empty(store)? {
        store.0.truncate(0);
        store.0.set_block_size(EMPTY_BLOCK_BYTES)?;
    }
    Ok(counts)
}

/// The salt is constant: only ids are hashed, which no one chooses to collide.
fn options() -> ZapOptions {
    ZapOptions { micro_max_bytes: MICRO_BYTES_MAX, ..ZapOptions::new(0x7465_7272_616e_6501) }
}

fn names_of(id: u32) -> [Vec<u8>; 2] {
    [format!("{id:x}").into_bytes(), format!("{OBJECTS}{id:x}").into_bytes()]
}

/// The count of one id in a table.
pub(crate) fn count_of<S: Store<Error = ObjectError>>(store: &S, id: u32) -> Result<OwnerCount, ZapError> {
    let zap = Zap::open_with(store, options())?;
    let [bytes, objects] = names_of(id);
    let number = |name: &[u8]| Ok::<u64, ZapError>(zap.lookup_u64(store, name)?.unwrap_or(0));
    Ok(OwnerCount { bytes: number(&bytes)?, objects: number(&objects)? })
}

/// All counts in a table. An entry of another form is an error.
pub(crate) fn all_counts<S: Store<Error = ObjectError>>(
    store: &S,
) -> Result<BTreeMap<u32, OwnerCount>, ZapError> {
    let zap = Zap::open_with(store, options())?;
    let mut all: BTreeMap<u32, OwnerCount> = BTreeMap::new();
    let mut odd = None;
    zap.visit(store, Cursor::START, &mut |entry| {
        let KeyRef::Name(name) = entry.key else { return true };
        let text = std::str::from_utf8(name).unwrap_or_default();
        let digits = text.strip_prefix(OBJECTS).unwrap_or(text);
        let id = u32::from_str_radix(digits, 16).ok().filter(|id| format!("{id:x}") == digits);
        let (Some(id), Some(number)) = (id, entry.first_integer) else {
            odd = Some(String::from_utf8_lossy(name).into_owned());
            return true;
        };
        let count = all.entry(id).or_default();
        *(if text == digits { &mut count.bytes } else { &mut count.objects }) = number;
        true
    })?;
    match odd {
        Some(name) => {
            Err(ZapError::from(ObjectError::from(Corrupt::new("table of owners", "entry", "an id", name))))
        }
        None => Ok(all),
    }
}

/// A table as a ZAP sees it.
struct TableStore<'s, 't>(&'s mut OwnerTable<'t>);

impl Store for TableStore<'_, '_> {
    type Error = ObjectError;

    fn block_size(&self) -> usize {
        self.0.block_size() as usize
    }

    fn block_count(&self) -> u64 {
        self.0.block_count()
    }

    fn read(&self, block: u64) -> Result<Arc<Vec<u8>>, ObjectError> {
        self.0.read(block)
    }

    fn modify(&mut self, block: u64, change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), ObjectError> {
        self.0.modify(block, change)
    }

    fn set_block_size(&mut self, bytes: usize) -> Result<(), ObjectError> {
        self.0.set_block_size(u32::try_from(bytes).expect("a ZAP asks for blocks of at most 1 MiB"))
    }

    fn free(&mut self, block: u64) -> Result<(), ObjectError> {
        self.0.free(block);
        Ok(())
    }

    fn truncate(&mut self, blocks: u64) -> Result<(), ObjectError> {
        self.0.truncate(blocks);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bonus(header_bytes: u16, ids: [u64; 2], flags: u64, project: Option<u64>) -> Vec<u8> {
        let mut raw = ATTRIBUTES_MAGIC.to_le_bytes().to_vec();
        raw.extend_from_slice(&(2 | (header_bytes / 8) << 10).to_le_bytes());
        raw.resize(usize::from(header_bytes), 0);
        let [uid, gid] = ids;
        for word in [0o100_644, 0, 7, uid, gid, 1, flags] {
            raw.extend_from_slice(&u64::to_le_bytes(word));
        }
        raw.resize(usize::from(header_bytes) + PROJECT_AT, 0);
        project.into_iter().for_each(|id| raw.extend_from_slice(&id.to_le_bytes()));
        raw
    }

    #[test]
    fn owners_are_found_at_their_places() {
        let owners = |user, group, project| Some(Owners { user, group, project });
        assert_eq!(owners_in(&bonus(8, [5, 6], 0, None)), owners(5, 6, 0));
        assert_eq!(owners_in(&bonus(8, [5, 6], 0, Some(9))), owners(5, 6, 0), "a device number");
        assert_eq!(
            owners_in(&bonus(16, [5, u32::MAX.into()], FLAG_PROJECT, Some(9))),
            owners(5, u32::MAX, 9)
        );
        assert_eq!(owners_in(&bonus(8, [5, 6], FLAG_PROJECT, None)), None, "it ends before");
        assert_eq!(owners_in(&bonus(8, [5, 1 << 32], 0, None)), None);
        assert_eq!(owners_in(&bonus(8, [5, 6], FLAG_PROJECT, Some(u64::MAX))), None);
        let whole = bonus(8, [5, 6], 0, None);
        (0..FLAGS_AT + 16).for_each(|len| assert_eq!(owners_in(&whole[..len]), None, "{len}"));
        let mut other = whole;
        other[0] ^= 1;
        assert_eq!(owners_in(&other), None);
    }
}
