//! Objects as they are stored: dnodes and block pointers.

use super::{ROWS_MAX, addr_text, attributes};
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use serde::Serialize;
use std::sync::Arc;
use terrane_format::{BlockPtr, Owner};
use terrane_object::dnode::Dnode;
use terrane_object::{Object, ObjectSet};
use terrane_wire::ObjectId;

pub fn set(open_pool: &OpenPool, meta: bool) -> Arc<ObjectSet> {
    if meta { open_pool.objects.mos().clone() } else { open_pool.dataset().object_set().clone() }
}

/// An object.
#[derive(Serialize)]
pub struct ObjectRow {
    object: u64,
    kind: String,
    block_size: u32,
    blocks: u64,
    levels: u8,
    slots: u8,
    used: u64,
    birth: u64,
    bonus_bytes: usize,
}

impl ObjectRow {
    fn of(object: u64, dnode: &Dnode) -> ObjectRow {
        ObjectRow {
            object,
            kind: format!("{:?}", dnode.kind),
            block_size: dnode.block_bytes,
            blocks: dnode.block_count,
            levels: dnode.levels,
            slots: dnode.slots,
            used: dnode.used,
            birth: dnode.birth.0,
            bonus_bytes: dnode.bonus.len(),
        }
    }
}

/// All that its dnode says.
#[derive(Serialize)]
pub struct DnodeRow {
    #[serde(flatten)]
    row: ObjectRow,
    dnode_bytes: usize,
    bonus_room: usize,
    contents: &'static str,
    pointer: String,
    #[serde(flatten)]
    spill: Option<SpillRow>,
    /// Of an object set.
    #[serde(flatten)]
    identity: Option<IdentityRow>,
    bonus: String,
    /// Of an inode.
    #[serde(flatten)]
    attributes: Option<attributes::Described>,
}

#[derive(Serialize)]
struct SpillRow {
    spill: String,
    spill_bytes: u32,
}

#[derive(Serialize)]
struct IdentityRow {
    guid: String,
    created: u64,
    free_queue: u64,
}

/// Every object of the set as of the last committed txg.
pub fn dnodes(open_pool: &OpenPool, meta: bool) -> Vec<ObjectRow> {
    let mut rows = Vec::new();
    let failed = set(open_pool, meta).for_each_dnode(&mut |object, dnode| {
        if rows.len() < ROWS_MAX {
            rows.push(ObjectRow::of(object.0, &dnode));
        }
    });
    for (block, error) in failed {
        log::error!("dnode block {block}: {error}");
    }
    rows
}

pub fn hold(open_pool: &OpenPool, meta: bool, object: u64) -> Outcome<Arc<Object>> {
    let held = set(open_pool, meta).hold(ObjectId(object));
    held.map_err(|error| {
        Failure(format!("object {object}: {error}; `terrane debug dnode POOL` lists the objects"))
    })
}

pub fn dnode(open_pool: &OpenPool, meta: bool, object: u64) -> Outcome<DnodeRow> {
    use terrane_object::ObjectKind::{Directory, File, Special, Symlink};
    let dnode = dnode_of(open_pool, meta, object)?;
    let is_inode = !meta && matches!(dnode.kind, Directory | File | Symlink | Special);
    let spill = (!dnode.spill.is_hole())
        .then(|| SpillRow { spill: pointer_text(&dnode.spill), spill_bytes: dnode.spill.lsize() });
    let identity = match meta && dnode.kind == terrane_object::ObjectKind::Objset {
        true => open_pool.objects.identity(ObjectId(object)).map_err(terrane_dataset::DatasetError::from)?,
        false => None,
    };
    let identity = identity.map(|identity| IdentityRow {
        guid: format!("{:016x}", identity.guid),
        created: identity.created.0,
        free_queue: identity.free_queue.0,
    });
    Ok(DnodeRow {
        row: ObjectRow::of(object, &dnode),
        dnode_bytes: dnode.stored_bytes(),
        bonus_room: Dnode::bonus_capacity(dnode.slots, spill.is_some()),
        contents: attributes::contents(&dnode),
        pointer: pointer_text(&dnode.root),
        spill,
        identity,
        bonus: dnode.bonus.iter().map(|byte| format!("{byte:02x}")).collect(),
        attributes: match is_inode {
            true => Some(attributes::describe(open_pool, &*hold(open_pool, meta, object)?)),
            false => None,
        },
    })
}

/// Object 0 is the one that holds all others.
fn dnode_of(open_pool: &OpenPool, meta: bool, object: u64) -> Outcome<Dnode> {
    match object {
        0 => Ok(set(open_pool, meta).inner_trees().0),
        object => Ok(hold(open_pool, meta, object)?.dnode()),
    }
}

/// A block pointer in its tree; what it lacks it has no key for.
#[derive(Serialize)]
pub struct PointerRow {
    pointer: String,
    lsize: u32,
    birth: u64,
    level: u8,
    block: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    psize: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<u8>,
    #[serde(flatten)]
    stored: Option<StoredRow>,
    /// Why what it leads to cannot be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What only pointers of blocks on devices say.
#[derive(Serialize)]
struct StoredRow {
    block_birth: u64,
    fill: u64,
    checksum: String,
}

impl PointerRow {
    fn of(ptr: &BlockPtr, block: u64) -> PointerRow {
        let (lsize, birth, psize, compression) = match ptr {
            BlockPtr::Hole(hole) => (hole.lsize, hole.birth, None, None),
            BlockPtr::Embedded(embedded) => {
                let psize = embedded.payload.len() as u64;
                (embedded.lsize, embedded.birth, Some(psize), Some(embedded.compression))
            }
            BlockPtr::Normal(normal) => {
                (normal.lsize, normal.logical_birth, Some(normal.psize.into()), Some(normal.compression))
            }
        };
        let stored = match ptr {
            BlockPtr::Normal(normal) => {
                let sum: String = normal.checksum.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
                Some(StoredRow {
                    block_birth: normal.block_birth.0,
                    fill: normal.fill,
                    checksum: format!("{} {sum}..", normal.checksum_kind),
                })
            }
            BlockPtr::Hole(_) | BlockPtr::Embedded(_) => None,
        };
        PointerRow {
            pointer: pointer_text(ptr),
            lsize,
            birth: birth.0,
            level: ptr.level(),
            block,
            psize,
            compression,
            stored,
            error: None,
        }
    }
}

pub fn pointer_text(ptr: &BlockPtr) -> String {
    match ptr {
        BlockPtr::Hole(_) if is_unwritten(ptr) => "never written".to_owned(),
        BlockPtr::Hole(_) => "hole".to_owned(),
        BlockPtr::Embedded(_) => "embedded".to_owned(),
        BlockPtr::Normal(normal) => {
            let addrs: Vec<String> = normal.copies().map(addr_text).collect();
            addrs.join(" ")
        }
    }
}

fn is_unwritten(ptr: &BlockPtr) -> bool {
    matches!(ptr, BlockPtr::Hole(hole) if hole.birth.0 == 0)
}

/// Block pointers of an object as of the last committed txg, from the root down; what was never written is left out.
pub fn tree(open_pool: &OpenPool, meta: bool, object: u64) -> Outcome<Vec<PointerRow>> {
    let objset = set(open_pool, meta);
    let dnode = dnode_of(open_pool, meta, object)?;
    let (pointers, root) = (dnode.pointers_per_block(), dnode.root);
    if is_unwritten(&root) {
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    // (pointer, level, block number at that level); a stack, not recursion: levels are from the device.
    let mut todo = vec![(root, None, 0u64)];
    while let Some((ptr, parent_level, block)) = todo.pop() {
        if rows.len() + todo.len() >= ROWS_MAX {
            log::warn!("object {object}: only the first {ROWS_MAX} pointers are shown");
            break;
        }
        let level = ptr.level();
        let mut row = PointerRow::of(&ptr, block);
        // A lying level must not lead around in circles.
        let descends = parent_level.is_none_or(|parent| level < parent);
        if level > 0 && !ptr.is_hole() && descends {
            let owner = Owner::Block { objset: objset.id().0, object, level, block };
            match objset.pool().read(&ptr, owner) {
                Ok(raw) => {
                    // Backwards, because a stack gives back the last first.
                    for (index, raw) in raw.chunks_exact(BlockPtr::SIZE).enumerate().rev() {
                        // By what a block can hold: what it does hold ends with the last pointer that is no hole.
                        let child = block.saturating_mul(pointers).saturating_add(index as u64);
                        let at = format!("object {object} level {} block {child}", level - 1);
                        match BlockPtr::parse(raw, &at) {
                            Ok(ptr) if is_unwritten(&ptr) => {}
                            Ok(ptr) => todo.push((ptr, Some(level), child)),
                            Err(corrupt) => row.error = Some(corrupt.to_string()),
                        }
                    }
                }
                Err(error) => row.error = Some(error.to_string()),
            }
        }
        rows.push(row);
    }
    Ok(rows)
}
