//! What `terrane debug` shows: the structures of the format, as JSON.
//!
//! Everything is read through the same functions that the file system uses, so the output is what the file
//! system sees.

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
use serde::Serialize;
use std::sync::Arc;
use terrane_dataset::ObjectStore;
use terrane_device::Device;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::features::Features;
use terrane_format::label::Label;
use terrane_format::record::Run;
use terrane_format::rows::Phase;
use terrane_format::uberblock::Uberblock;
use terrane_format::{BlockPtr, Owner};
use terrane_object::dnode::Dnode;
use terrane_object::objset::HEADER;
use terrane_object::{Object, ObjectSet};
use terrane_pool::inspect::ZoneView;
use terrane_pool::{Pool, inspect};
use terrane_store::errors::DamagedBlock;
use terrane_store::explain::Standing;
use terrane_wire::{ObjectId, ZoneSeq};
use terrane_zap::{Cursor, Zap};

/// Maximum rows of one answer, so that a huge object does not need a huge answer.
const ROWS_MAX: usize = 100_000;

/// Names of the features in all lists of a label.
pub fn feature_names(label: &Label) -> Vec<String> {
    let Features { incompatible, read_only_compatible, compatible } = &label.features;
    [incompatible, read_only_compatible, compatible].into_iter().flatten().cloned().collect()
}

/// Labels in the anchors of all devices, and all valid uberblocks, newest first.
#[derive(Serialize)]
pub struct Heads {
    labels: Vec<LabelRow>,
    uberblocks: Vec<UberblockRow>,
}

#[derive(Serialize)]
struct LabelRow {
    device: String,
    anchor: u32,
    pool: String,
    pool_id: String,
    identity: Option<String>,
    device_id: String,
    generation: u64,
    turn: u64,
    zone_size: u64,
    zone_count: u32,
    write_unit: u32,
    max_block: u32,
    sections: u32,
    devices: usize,
    incompatible_features: Vec<String>,
    read_only_compatible_features: Vec<String>,
    compatible_features: Vec<String>,
}

impl LabelRow {
    fn of(device: &str, anchor: u32, label: &Label) -> LabelRow {
        let Features { incompatible, read_only_compatible, compatible } = label.features.clone();
        LabelRow {
            device: device.to_owned(),
            anchor,
            pool: label.name.clone(),
            pool_id: format!("{:016x}", label.pool),
            identity: label.identity.map(|id| format!("{id:016x}")),
            device_id: format!("{:016x}", label.device),
            generation: label.generation,
            turn: label.turn,
            zone_size: label.zone_size,
            zone_count: label.zone_count,
            write_unit: label.write_unit,
            max_block: label.max_block,
            sections: label.sections,
            devices: label.members().count(),
            incompatible_features: incompatible,
            read_only_compatible_features: read_only_compatible,
            compatible_features: compatible,
        }
    }
}

#[derive(Serialize)]
struct UberblockRow {
    device: String,
    anchor: u32,
    offset: u64,
    txg: u64,
    oldest: u64,
    incarnation: u64,
    turn: u64,
    clean: bool,
    time: String,
    lease_seq: u64,
    lease_txg: u64,
    host: String,
    record: String,
    record_bytes: u32,
}

impl UberblockRow {
    fn of(device: &str, anchor: u32, offset: u64, uber: &Uberblock) -> UberblockRow {
        UberblockRow {
            device: device.to_owned(),
            anchor,
            offset,
            txg: uber.txg.0,
            oldest: uber.oldest.0,
            incarnation: uber.incarnation,
            turn: uber.turn,
            clean: uber.clean,
            time: clock::utc((uber.time_ns / 1_000_000_000) as i64),
            lease_seq: uber.lease_seq,
            lease_txg: uber.lease_txg,
            host: format!("{:016x}", uber.host),
            record: boot_text(&uber.record),
            record_bytes: uber.record.len,
        }
    }
}

pub fn uberblocks(devices: &[Arc<dyn Device>]) -> Heads {
    let of_device = |device: &Arc<dyn Device>| {
        let name = device.info().name.clone();
        inspect::anchors(device.as_ref()).into_iter().map(move |anchor| (name.clone(), anchor))
    };
    let anchors: Vec<_> = devices.iter().flat_map(of_device).collect();
    let labels = anchors.iter().map(|(name, (anchor, label, _))| LabelRow::of(name, *anchor, label));
    let mut rows: Vec<_> = anchors
        .iter()
        .flat_map(|(name, (anchor, _, ubers))| {
            ubers.iter().map(move |(offset, uber)| (name, *anchor, *offset, uber))
        })
        .collect();
    rows.sort_by_key(|(name, anchor, offset, uber)| {
        std::cmp::Reverse((uber.txg, uber.incarnation, uber.clean, *name, *anchor, *offset))
    });
    let ubers =
        rows.into_iter().map(|(name, anchor, offset, uber)| UberblockRow::of(name, anchor, offset, uber));
    Heads { labels: labels.collect(), uberblocks: ubers.collect() }
}

/// The one that an import takes: of the youngest incarnation, because what older ones wrote after it began
/// was discarded.
pub fn newest_uberblock(devices: &[Arc<dyn Device>]) -> Option<Uberblock> {
    let anchors = devices.iter().flat_map(|device| inspect::anchors(device.as_ref()));
    let ubers = anchors.flat_map(|(_, _, ubers)| ubers).map(|(_, uber)| uber);
    ubers.max_by_key(|uber| (uber.incarnation, uber.txg, uber.clean))
}

/// A block that cannot be read.
#[derive(Serialize)]
pub struct DamagedRow {
    /// The path of its file, if it belongs to one.
    path: Option<String>,
    owner: String,
    reason: String,
}

/// Blocks that could not be read, with the paths of their files.
pub fn damaged(live: &Live, blocks: &[DamagedBlock]) -> Vec<DamagedRow> {
    let set = live.dataset.objects().id().0;
    let row = |damaged: &DamagedBlock| {
        let path = match damaged.owner {
            Owner::Block { objset, object, .. } if objset == set && object != 0 && object < HEADER => {
                live.fs().ok().map(|fs| fs.path_of(object))
            }
            _ => None,
        };
        let owner = terrane_store::reports::owner_text(damaged.owner);
        DamagedRow { path, owner, reason: damaged.reason.clone() }
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

/// A zone in use; sizes are bytes.
#[derive(Serialize)]
pub struct ZoneRow {
    seq: u64,
    class: &'static str,
    device: u16,
    zone: u32,
    phase: String,
    capacity: u64,
    claimed: u64,
    live: u64,
    opened: u64,
    moved_runs: usize,
    runs: Vec<RunRow>,
}

/// Survivors that moved together.
#[derive(Serialize)]
struct RunRow {
    first: u32,
    last: u32,
    zone: u64,
    part_end: u64,
    live: u64,
}

pub fn zones(pool: &Pool) -> Vec<ZoneRow> {
    let row = |zone: ZoneView| {
        let run = |run: &Run| RunRow {
            first: run.first,
            last: run.last,
            zone: run.dest.0,
            part_end: run.part_end(),
            live: run.live(),
        };
        let runs: Vec<RunRow> = zone.runs.iter().map(run).collect();
        ZoneRow {
            seq: zone.seq.0,
            class: zone.class.name(),
            device: zone.home.device.0,
            zone: zone.home.zone.0,
            phase: phase_text(zone.phase),
            capacity: zone.capacity,
            claimed: zone.claimed,
            live: zone.live,
            opened: zone.opened.0,
            moved_runs: runs.len(),
            runs,
        }
    };
    pool.zones().into_iter().map(row).collect()
}

/// A block that was written to a zone.
#[derive(Serialize)]
pub struct EntryRow {
    offset: u64,
    birthplace: String,
    psize: u32,
    crc: String,
    birth: u64,
    owner: String,
    siblings: String,
    standing: &'static str,
}

/// The directory of a zone: the blocks written to it, and their state.
pub fn zone(pool: &Pool, seq: u64) -> Outcome<Vec<EntryRow>> {
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
        EntryRow {
            offset: entry.offset,
            birthplace: addr_text(entry.identity),
            psize: entry.psize,
            crc: format!("{:08x}", entry.crc),
            birth: entry.birth.0,
            owner: terrane_store::reports::owner_text(entry.owner),
            siblings: siblings.join(" "),
            standing,
        }
    });
    Ok(rows.collect())
}

fn addr_text(addr: terrane_format::Addr) -> String {
    format!("{}:{:#x}", addr.seq(), addr.offset())
}

fn set(live: &Live, meta: bool) -> &Arc<ObjectSet> {
    if meta { live.objects.mos() } else { live.dataset.objects() }
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

/// All fields of its dnode.
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
pub fn dnodes(live: &Live, meta: bool) -> Vec<ObjectRow> {
    let mut rows = Vec::new();
    let failed = set(live, meta).for_each_dnode(&mut |object, dnode| {
        if rows.len() < ROWS_MAX {
            rows.push(ObjectRow::of(object.0, &dnode));
        }
    });
    for (block, error) in failed {
        log::error!("dnode block {block}: {error}");
    }
    rows
}

fn hold(live: &Live, meta: bool, object: u64) -> Outcome<Arc<Object>> {
    let held = set(live, meta).hold(ObjectId(object));
    held.map_err(|error| {
        Failure(format!("object {object}: {error}; `terrane debug dnode POOL` lists the objects"))
    })
}

pub fn dnode(live: &Live, meta: bool, object: u64) -> Outcome<DnodeRow> {
    use terrane_object::ObjectKind::{Directory, File, Special, Symlink};
    let dnode = dnode_of(live, meta, object)?;
    let is_inode = !meta && matches!(dnode.kind, Directory | File | Symlink | Special);
    let spill = (!dnode.spill.is_hole())
        .then(|| SpillRow { spill: pointer_text(&dnode.spill), spill_bytes: dnode.spill.lsize() });
    let identity = match meta && dnode.kind == terrane_object::ObjectKind::Objset {
        true => live.objects.identity(ObjectId(object)).map_err(terrane_dataset::DatasetError::from)?,
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
        bonus_room: Dnode::bonus_room(dnode.slots, spill.is_some()),
        contents: attributes::contents(&dnode),
        pointer: pointer_text(&dnode.root),
        spill,
        identity,
        bonus: dnode.bonus.iter().map(|byte| format!("{byte:02x}")).collect(),
        attributes: match is_inode {
            true => Some(attributes::describe(live, &*hold(live, meta, object)?)),
            false => None,
        },
    })
}

/// Object 0 is the one that holds all others.
fn dnode_of(live: &Live, meta: bool, object: u64) -> Outcome<Dnode> {
    match object {
        0 => Ok(set(live, meta).inner_trees().0),
        object => Ok(hold(live, meta, object)?.dnode()),
    }
}

/// A block pointer in its tree; fields that it lacks have no key.
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
    /// Why its block cannot be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Fields that only pointers to blocks on devices have.
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

fn pointer_text(ptr: &BlockPtr) -> String {
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

/// Block pointers of an object as of the last committed txg, from the root down, without holes.
pub fn tree(live: &Live, meta: bool, object: u64) -> Outcome<Vec<PointerRow>> {
    let objset = set(live, meta);
    let dnode = dnode_of(live, meta, object)?;
    let (pointers, root) = (dnode.pointers(), dnode.root);
    if is_unwritten(&root) {
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    // (pointer, level, block number at that level); a stack, not recursion: levels come from the device.
    let mut todo = vec![(root, None, 0u64)];
    while let Some((ptr, parent_level, block)) = todo.pop() {
        if rows.len() + todo.len() >= ROWS_MAX {
            log::warn!("object {object}: only the first {ROWS_MAX} pointers are shown");
            break;
        }
        let level = ptr.level();
        let mut row = PointerRow::of(&ptr, block);
        // A forged level must not cause a loop.
        let descends = parent_level.is_none_or(|parent| level < parent);
        if level > 0 && !ptr.is_hole() && descends {
            let owner = Owner::Block { objset: objset.id().0, object, level, block };
            match objset.pool().read(&ptr, owner) {
                Ok(raw) => {
                    // In reverse, because a stack pops the last first.
                    for (index, raw) in raw.chunks_exact(BlockPtr::SIZE).enumerate().rev() {
                        // By the block's capacity: its content ends with the last pointer that is not a hole.
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

#[derive(Serialize)]
pub struct ZapRow {
    object: u64,
    kind: String,
    length: u64,
    normalization: u64,
    entries: Vec<ZapEntryRow>,
}

#[derive(Serialize)]
struct ZapEntryRow {
    name: String,
    value: String,
    int_size: u8,
    hash: String,
    cd: u32,
    conflict: bool,
    /// Only for entries of a directory.
    #[serde(flatten)]
    named: Option<NamedRow>,
}

/// OpenZFS's directory entries: the type in the top four bits, the object number in the low 48.
#[derive(Serialize)]
struct NamedRow {
    #[serde(rename = "type")]
    type_: u64,
    object: u64,
}

/// The entries of a ZAP, in hash order.
pub fn zap(live: &Live, meta: bool, object: u64) -> Outcome<ZapRow> {
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
        let named = (held.kind() == Directory).then(|| {
            let word = entry.value.first().unwrap_or(0);
            NamedRow { type_: word >> 60, object: word & ((1 << 48) - 1) }
        });
        rows.push(ZapEntryRow {
            name,
            value: ints.join(" "),
            int_size: entry.value.int_size(),
            hash: format!("{:016x}", entry.hash),
            cd: entry.cd,
            conflict: entry.conflict,
            named,
        });
    }
    Ok(ZapRow {
        object,
        kind: zap.kind(&store)?.to_string(),
        length: zap.len(&store)?,
        normalization: zap.norm(&store)?.to_u64(),
        entries: rows,
    })
}
