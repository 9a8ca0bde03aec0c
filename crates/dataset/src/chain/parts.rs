//! Reading the parts of dead lists.

use super::{Part, sum};
use crate::dead_list::{DeadEntry, LIST_BLOCK_BYTES, PartInfo, parse_block};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use terrane_object::{Object, ObjectError, ObjectKind, ObjectSet, ObjectSpec};
use terrane_store::PoolError;
use terrane_wire::{Corrupt, ObjectId};

/// A part has at most one block, holes included, for so many bytes of the pool. Entries are appended when their blocks die, and move few
/// times, so no part gets near that. A larger count is damage.
const POOL_BYTES_PER_BLOCK: u64 = 32;
/// Blocks that syncs may add to a part while it is read.
const ADDED_BLOCKS_MAX: u64 = 1024;

pub(super) fn read_entries(part: &Object, block: u64) -> Result<Vec<DeadEntry>, ObjectError> {
    let raw = part.read_block(block)?;
    if raw.iter().all(|byte| *byte == 0) {
        return Ok(Vec::new());
    }
    let at = format!("dead list, object {} of the meta object set, block {block}", part.id());
    Ok(parse_block(&raw, &at).map_err(PoolError::from)?)
}

/// The first stored block of a part at or after `from`. Holes are skipped: scans leave them, and the block count may be damaged.
pub(super) fn next_stored_block(part: &Object, from: u64) -> Result<Option<u64>, ObjectError> {
    let block_bytes = u64::from(LIST_BLOCK_BYTES);
    let found = part.next_data(from.saturating_mul(block_bytes))?;
    Ok(found.map(|offset| offset / block_bytes))
}

/// Calls `each` with every entry in a part. A sync may change the part meanwhile.
pub(crate) fn each_entry(
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    each: &mut dyn FnMut(&DeadEntry),
) -> Result<(), ObjectError> {
    let (object, info) = hold_part(mos, id)?;
    // Each stored block has an entry. Pointers of a damaged tree may repeat, and so lead to more blocks than there are.
    let blocks_max = info.entries.saturating_add(ADDED_BLOCKS_MAX);
    let (mut blocks, mut from) = (0, 0);
    while let Some(block) = next_stored_block(&object, from)? {
        if blocks > blocks_max {
            let at = format!("dead list, object {id} of the meta object set");
            let (what, expected) = ("blocks", format_args!("at most {blocks_max}"));
            return Err(PoolError::from(Corrupt::new(at, what, expected, "more")).into());
        }
        read_entries(&object, block)?.iter().for_each(&mut *each);
        (blocks, from) = (blocks + 1, block + 1);
    }
    Ok(())
}

/// The spec of a new, empty part.
pub(crate) fn new_part() -> ObjectSpec {
    let (block_size, bonus) = (LIST_BLOCK_BYTES, PartInfo::default().encode());
    ObjectSpec { kind: ObjectKind::DeadList, block_size, dnode_slots: 1, bonus, spill: None }
}

/// Bytes of the list that begins with this part, up to the first damaged part.
pub(crate) fn kept_bytes(mos: &Arc<ObjectSet>, first: ObjectId) -> Result<u64, ObjectError> {
    Ok(sum(load_readable_parts(mos, first)?.iter().map(|part| part.info.used_bytes)))
}

/// A part of a dead list.
pub(crate) fn hold_part(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<(Arc<Object>, PartInfo), ObjectError> {
    let object = mos.hold(id)?;
    let corrupt = |what: &'static str, expected: &dyn Display, found: &dyn Display| {
        let at = format!("dead list, object {id} of the meta object set");
        ObjectError::from(PoolError::from(Corrupt::new(at, what, expected, found)))
    };
    let (kind, block_bytes, blocks) = (object.kind(), object.block_size(), object.block_count());
    if kind != ObjectKind::DeadList {
        return Err(corrupt("kind", &"DeadList", &format_args!("{kind:?}")));
    }
    if block_bytes != LIST_BLOCK_BYTES {
        return Err(corrupt("block size", &LIST_BLOCK_BYTES, &block_bytes));
    }
    let (device_bytes, _) = mos.pool().label().device_bytes();
    let blocks_max = device_bytes / POOL_BYTES_PER_BLOCK;
    if blocks > blocks_max {
        return Err(corrupt("block count", &format_args!("at most {blocks_max}"), &blocks));
    }
    let info = PartInfo::parse(&object.bonus(), id).map_err(PoolError::from)?;
    Ok((object, info))
}

/// The parts of the list that begins with this one. The error, if there is one, is that of the part behind them.
fn find_parts(mos: &Arc<ObjectSet>, first: ObjectId) -> (Vec<Part>, Option<ObjectError>) {
    let (mut parts, mut seen, mut next) = (Vec::new(), BTreeSet::new(), Some(first));
    while let Some(id) = next {
        if !seen.insert(id) {
            let at = format!("dead list {first}, part {}", parts.len());
            let corrupt = Corrupt::new(at, "object", "in the list once", format_args!("{id} again"));
            return (parts, Some(PoolError::from(corrupt).into()));
        }
        let (object, info) = match hold_part(mos, id) {
            Ok(found) => found,
            Err(error) => return (parts, Some(error)),
        };
        next = info.next;
        parts.push(Part { id, info, blocks: object.block_count(), has_changed: false });
    }
    (parts, None)
}

/// The parts of the list that begins with this one. If a part is damaged or missing, that is reported, and the list ends there. Then
/// the space of the entries behind it stays allocated. An error here would stop the pool at each import.
pub(super) fn load_readable_parts(mos: &Arc<ObjectSet>, first: ObjectId) -> Result<Vec<Part>, ObjectError> {
    let (parts, error) = find_parts(mos, first);
    if let Some(error) = error {
        report(mos, error)?;
    }
    Ok(parts)
}

/// All parts of the list that begins with this one. 0: there is none.
pub(crate) fn list_parts(
    mos: &Arc<ObjectSet>,
    first: ObjectId,
) -> Result<Vec<(ObjectId, PartInfo)>, ObjectError> {
    if first == ObjectId(0) {
        return Ok(Vec::new());
    }
    match find_parts(mos, first) {
        (_, Some(error)) => Err(error),
        (parts, None) => Ok(parts.into_iter().map(|part| (part.id, part.info)).collect()),
    }
}

/// Reports damage: the space of unreadable entries is lost. Returns any other error, which stops the pool.
pub(crate) fn report(mos: &Arc<ObjectSet>, error: ObjectError) -> Result<(), ObjectError> {
    let corrupt = match error {
        ObjectError::Pool(PoolError::Corrupt(corrupt)) => corrupt,
        ObjectError::NotFound(id) => {
            let at = format!("dead list, object {id} of the meta object set");
            Corrupt::new(at, "part", "an object", "none")
        }
        other => return Err(other),
    };
    mos.pool().report_damage(corrupt);
    Ok(())
}
