//! What `terrane debug` shows: the format, structure by structure, as JSON.
//!
//! Everything here is read through the same doors as by the file system, so that what is shown is what it would see.

mod attributes;
mod map;
mod space;
mod stat;

pub use map::zone_map;
pub use space::space;
pub use stat::{resolve, stat};

use crate::clock;
use crate::failure::{Failure, Outcome};
use crate::live::Live;
use serde_json::{Value, json};
use std::sync::Arc;
use terrane_dataset::ObjectStore;
use terrane_device::Device;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::features::Features;
use terrane_format::label::Label;
use terrane_format::rows::Phase;
use terrane_format::uberblock::Uberblock;
use terrane_format::{BlockPtr, Owner};
use terrane_object::dnode::Dnode;
use terrane_object::objset::HEADER;
use terrane_object::{Object, ObjectSet};
use terrane_pool::inspect::Standing;
use terrane_pool::{Pool, inspect};
use terrane_store::errors::DamagedBlock;
use terrane_wire::{ObjectId, ZoneSeq};
use terrane_zap::{Cursor, Zap};

/// Rows of one answer, so that a huge object does not need a huge answer.
const ROWS_MAX: usize = 100_000;

/// Names of the features in all lists of a label.
pub fn feature_names(label: &Label) -> Vec<String> {
    let Features { incompatible, read_only_compatible, compatible } = &label.features;
    [incompatible, read_only_compatible, compatible].into_iter().flatten().cloned().collect()
}

/// Labels of the anchors of all devices, and all valid uberblocks, newest first.
pub fn uberblocks(devices: &[Arc<dyn Device>]) -> Value {
    let of_device = |device: &Arc<dyn Device>| {
        let name = device.info().name.clone();
        inspect::anchors(device.as_ref()).into_iter().map(move |anchor| (name.clone(), anchor))
    };
    let anchors: Vec<_> = devices.iter().flat_map(of_device).collect();
    let labels: Vec<Value> = anchors
        .iter()
        .map(|(name, (anchor, label, _))| {
            json!({
                "device": name,
                "anchor": anchor,
                "pool": label.name,
                "pool_id": format!("{:016x}", label.pool),
                "identity": label.identity.map(|id| format!("{id:016x}")),
                "device_id": format!("{:016x}", label.device),
                "generation": label.generation,
                "turn": label.turn,
                "zone_size": label.zone_size,
                "zone_count": label.zone_count,
                "write_unit": label.write_unit,
                "max_block": label.max_block,
                "sections": label.sections,
                "devices": label.members().count(),
                "incompatible_features": label.features.incompatible,
                "read_only_compatible_features": label.features.read_only_compatible,
                "compatible_features": label.features.compatible,
            })
        })
        .collect();
    let mut rows: Vec<_> = anchors
        .iter()
        .flat_map(|(name, (anchor, _, ubers))| {
            ubers.iter().map(move |(offset, uber)| (name, *anchor, *offset, uber))
        })
        .collect();
    rows.sort_by_key(|(name, anchor, offset, uber)| {
        std::cmp::Reverse((uber.txg, uber.incarnation, uber.clean, *name, *anchor, *offset))
    });
    let ubers: Vec<Value> = rows
        .into_iter()
        .map(|(name, anchor, offset, uber)| {
            json!({
                "device": name,
                "anchor": anchor,
                "offset": offset,
                "txg": uber.txg.0,
                "oldest": uber.oldest.0,
                "incarnation": uber.incarnation,
                "turn": uber.turn,
                "clean": uber.clean,
                "time": clock::utc((uber.time_ns / 1_000_000_000) as i64),
                "lease_seq": uber.lease_seq,
                "lease_txg": uber.lease_txg,
                "host": format!("{:016x}", uber.host),
                "record": boot_text(&uber.record),
                "record_bytes": uber.record.len,
            })
        })
        .collect();
    json!({"labels": labels, "uberblocks": ubers})
}

/// The one that an import takes: of the youngest incarnation, because what older ones wrote after it began was given up.
pub fn newest_uberblock(devices: &[Arc<dyn Device>]) -> Option<Uberblock> {
    let anchors = devices.iter().flat_map(|device| inspect::anchors(device.as_ref()));
    let ubers = anchors.flat_map(|(_, _, ubers)| ubers).map(|(_, uber)| uber);
    ubers.max_by_key(|uber| (uber.incarnation, uber.txg, uber.clean))
}

/// Blocks that could not be read, with the paths of the files they belong to.
pub fn damaged(live: &Live, blocks: &[DamagedBlock]) -> Value {
    let set = live.dataset.objects().id().0;
    let row = |damaged: &DamagedBlock| {
        let path = match damaged.owner {
            Owner::Block { objset, object, .. } if objset == set && object != 0 && object < HEADER => {
                live.fs().ok().map(|fs| fs.path_of(object))
            }
            _ => None,
        };
        let owner = terrane_store::reports::owner_text(damaged.owner);
        json!({"path": path, "owner": owner, "reason": damaged.reason})
    };
    blocks.iter().map(row).collect()
}

fn boot_text(ptr: &BootPtr) -> String {
    let places: Vec<String> =
        ptr.copies().map(|place| format!("{}:{}:{:#x}", place.device, place.zone, place.offset)).collect();
    places.join(" ")
}

fn phase_text(phase: Phase) -> String {
    match phase {
        Phase::Open => "open".to_owned(),
        Phase::Full => "full".to_owned(),
        Phase::Emptied(txg) => format!("emptied in {txg}"),
        Phase::Gone => "gone".to_owned(),
        Phase::Suspect => "suspect".to_owned(),
    }
}

pub fn zones(pool: &Pool) -> Value {
    let rows = pool.zones().into_iter().map(|zone| {
        let runs: Vec<Value> = zone
            .runs
            .iter()
            .map(|run| json!({"first": run.first, "last": run.last, "zone": run.dest.0, "part_end": run.part_end(), "live": run.live()}))
            .collect();
        json!({
            "seq": zone.seq.0,
            "class": zone.class.name(),
            "device": zone.home.device.0,
            "zone": zone.home.zone.0,
            "phase": phase_text(zone.phase),
            "capacity": zone.capacity,
            "claimed": zone.claimed,
            "live": zone.live,
            "opened": zone.opened.0,
            "moved_runs": runs.len(),
            "runs": runs,
        })
    });
    rows.collect()
}

/// The directory of a zone: what was written into it, and what became of it.
pub fn zone(pool: &Pool, seq: u64) -> Outcome<Value> {
    let seq = ZoneSeq(seq);
    if !pool.zones().iter().any(|zone| zone.seq == seq) {
        return Err(Failure::refused(
            format_args!("zone {seq}"),
            "a zone of this pool",
            "none of that number",
            "`terrane debug zone POOL` lists them",
        ));
    }
    let rows = pool.zone_directory(seq)?.into_iter().take(ROWS_MAX).map(|(entry, standing)| {
        let standing = match standing {
            Standing::Here => "live",
            Standing::Dead => "dead",
            Standing::Moved => "moved",
            Standing::Unexplained => "unexplained",
        };
        let siblings: Vec<String> = entry.siblings.iter().map(|addr| addr_text(*addr)).collect();
        json!({
            "offset": entry.offset,
            "birthplace": addr_text(entry.identity),
            "psize": entry.psize,
            "crc": format!("{:08x}", entry.crc),
            "birth": entry.birth.0,
            "owner": terrane_store::reports::owner_text(entry.owner),
            "siblings": siblings.join(" "),
            "standing": standing,
        })
    });
    Ok(rows.collect())
}

fn addr_text(addr: terrane_format::Addr) -> String {
    format!("{}:{:#x}", addr.seq(), addr.offset())
}

fn set(live: &Live, meta: bool) -> &Arc<ObjectSet> {
    if meta { live.objects.mos() } else { live.dataset.objects() }
}

fn dnode_json(object: u64, dnode: &Dnode) -> Value {
    json!({
        "object": object,
        "kind": format!("{:?}", dnode.kind),
        "block_size": dnode.block_bytes,
        "blocks": dnode.block_count,
        "levels": dnode.levels,
        "slots": dnode.slots,
        "used": dnode.used,
        "birth": dnode.birth.0,
        "bonus_bytes": dnode.bonus.len(),
    })
}

/// Every object of the set as of the last committed group.
pub fn dnodes(live: &Live, meta: bool) -> Value {
    let mut rows = Vec::new();
    let failed = set(live, meta).for_each_dnode(&mut |object, dnode| {
        if rows.len() < ROWS_MAX {
            rows.push(dnode_json(object.0, &dnode));
        }
    });
    for (block, error) in failed {
        log::error!("dnode block {block}: {error}");
    }
    rows.into()
}

fn hold(live: &Live, meta: bool, object: u64) -> Outcome<Arc<Object>> {
    let held = set(live, meta).hold(ObjectId(object));
    held.map_err(|error| {
        Failure(format!("object {object}: {error}; `terrane debug dnode POOL` lists the objects"))
    })
}

pub fn dnode(live: &Live, meta: bool, object: u64) -> Outcome<Value> {
    use terrane_object::ObjectKind::{Directory, File, Special, Symlink};
    let dnode = dnode_of(live, meta, object)?;
    let mut out = dnode_json(object, &dnode);
    out["dnode_bytes"] = dnode.stored_bytes().into();
    out["bonus_room"] = Dnode::bonus_room(dnode.slots, !dnode.spill.is_hole()).into();
    out["contents"] = attributes::contents(&dnode).into();
    out["pointer"] = pointer_json(&dnode.root)["pointer"].clone();
    if !dnode.spill.is_hole() {
        out["spill"] = pointer_json(&dnode.spill)["pointer"].clone();
        out["spill_bytes"] = dnode.spill.lsize().into();
    }
    if meta
        && dnode.kind == terrane_object::ObjectKind::Objset
        && let Some(identity) =
            live.objects.identity(ObjectId(object)).map_err(terrane_dataset::DatasetError::from)?
    {
        out["guid"] = format!("{:016x}", identity.guid).into();
        out["created"] = identity.created.0.into();
        out["free_queue"] = identity.free_queue.0.into();
    }
    let hex = dnode.bonus.iter().map(|byte| format!("{byte:02x}"));
    out["bonus"] = Value::String(hex.collect());
    if !meta && matches!(dnode.kind, Directory | File | Symlink | Special) {
        let held = hold(live, meta, object)?;
        attributes::describe(live, &held, &mut out);
    }
    Ok(out)
}

/// Object 0 is the one that holds all others.
fn dnode_of(live: &Live, meta: bool, object: u64) -> Outcome<Dnode> {
    match object {
        0 => Ok(set(live, meta).inner_trees().0),
        object => Ok(hold(live, meta, object)?.dnode()),
    }
}

fn pointer_json(ptr: &BlockPtr) -> Value {
    match ptr {
        BlockPtr::Hole(hole) => {
            let text = if is_unwritten(ptr) { "never written" } else { "hole" };
            json!({"pointer": text, "lsize": hole.lsize, "birth": hole.birth.0})
        }
        BlockPtr::Embedded(embedded) => json!({
            "pointer": "embedded",
            "lsize": embedded.lsize,
            "psize": embedded.payload.len(),
            "birth": embedded.birth.0,
            "compression": embedded.compression,
        }),
        BlockPtr::Normal(normal) => {
            let addrs: Vec<String> = normal.copies().map(addr_text).collect();
            let checksum: String = normal.checksum.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            json!({
                "pointer": addrs.join(" "),
                "lsize": normal.lsize,
                "psize": normal.psize,
                "birth": normal.logical_birth.0,
                "block_birth": normal.block_birth.0,
                "fill": normal.fill,
                "compression": normal.compression,
                "checksum": format!("{} {checksum}..", normal.checksum_kind),
            })
        }
    }
}

fn is_unwritten(ptr: &BlockPtr) -> bool {
    matches!(ptr, BlockPtr::Hole(hole) if hole.birth.0 == 0)
}

/// Block pointers of an object as of the last committed group, from the root down; what was never written is left out.
pub fn tree(live: &Live, meta: bool, object: u64) -> Outcome<Value> {
    let objset = set(live, meta);
    let dnode = dnode_of(live, meta, object)?;
    let (pointers, root) = (dnode.pointers(), dnode.root);
    if is_unwritten(&root) {
        return Ok(Value::Array(Vec::new()));
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
        let mut row = pointer_json(&ptr);
        row["level"] = level.into();
        row["block"] = block.into();
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
                            Err(corrupt) => row["error"] = corrupt.to_string().into(),
                        }
                    }
                }
                Err(error) => row["error"] = error.to_string().into(),
            }
        }
        rows.push(row);
    }
    Ok(rows.into())
}

/// The entries of a ZAP, in the order of their hashes.
pub fn zap(live: &Live, meta: bool, object: u64) -> Outcome<Value> {
    use terrane_object::ObjectKind::{DeleteQueue, Directory, Master, Zap as Plain};
    let held = hold(live, meta, object)?;
    if ![DeleteQueue, Directory, Master, Plain].contains(&held.kind()) {
        return Err(Failure::refused(
            format_args!("object {object}"),
            "a ZAP or a directory",
            format_args!("{:?}", held.kind()),
            "`terrane debug dnode POOL` lists the objects",
        ));
    }
    let store = ObjectStore::reader(&held);
    let zap = Zap::open(&store)?;
    let mut rows = Vec::new();
    let mut cursor = Cursor::START;
    while rows.len() < ROWS_MAX {
        let Some((entry, after)) = zap.next(&store, cursor)? else { break };
        cursor = after;
        let name = match entry.key.name() {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => format!("{:?}", entry.key),
        };
        let ints: Vec<String> = entry.value.ints().iter().map(u64::to_string).collect();
        let mut row = json!({
            "name": name,
            "value": ints.join(" "),
            "int_size": entry.value.int_size(),
            "hash": format!("{:016x}", entry.hash),
            "cd": entry.cd,
            "conflict": entry.conflict,
        });
        if held.kind() == Directory {
            // OpenZFS's directory entries: the type in the top four bits, the object number in the low 48.
            let word = entry.value.first().unwrap_or(0);
            row["type"] = (word >> 60).into();
            row["object"] = (word & ((1 << 48) - 1)).into();
        }
        rows.push(row);
    }
    Ok(json!({
        "object": object,
        "kind": zap.kind(&store)?.to_string(),
        "length": zap.len(&store)?,
        "normalization": zap.norm(&store)?.to_u64(),
        "entries": rows,
    }))
}
