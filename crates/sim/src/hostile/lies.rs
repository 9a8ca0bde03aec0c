//! Chosen lies about data sets, snapshots, dead lists and shared blocks, each with correct checksums.
//!
//! Fields of a bonus, and entries of ZAPs, are changed through the objects of the pool. So a lie is the only thing that is wrong. The
//! shapes of trees that no writer makes are written by a client of the pool, like those of `forge_tree`.

mod shared;

use super::forge_tree::import_pool;
use super::{Image, Verdict, exercise};
use crate::machine::Machine;
use std::sync::{Arc, Mutex, PoisonError};
use terrane_check::kind;
use terrane_codec::{ChecksumKind, Compression};
use terrane_dataset::stored::{StoredDataset, list_parts};
use terrane_dataset::{ObjectZap, POOL_DIRECTORY, SnapshotInfo, ZapPolicy};
use terrane_device::SimDevice;
use terrane_device::sim::Survival;
use terrane_format::block_ptr::Hole;
use terrane_format::{BlockPtr, Owner};
use terrane_object::dnode::{Dnode, ObjsetHeader, SLOT_BYTES};
use terrane_object::objset::HEADER;
use terrane_object::{ObjectKind, ObjectSets, slot_of};
use terrane_oracle::{Failure, failed};
use terrane_pool::{Client, Stream, Tx, TxgSync, WriteRequest};
use terrane_store::PoolError;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};
use terrane_zap::ValueRef;

const COST: Cost = Cost { write_bytes: 64 << 10, meta_blocks: 64, ..Cost::NOTHING };
/// Pointers in an indirect block.
const POINTERS: u64 = 128;
/// Bytes of a block of a dead list.
const LIST_BLOCK_BYTES: u32 = 16 << 10;
/// Offset of the object of the table of shared blocks in the header of the meta object set.
const SHARED_TABLE_AT: usize = 56;
/// A number that no object has.
const NO_OBJECT: u64 = 77_777;
/// Offsets in the bonus of a part of a dead list: `FORMAT.md` 8.7.
const PART_FIELDS: [(&str, usize, usize); 7] = [
    ("bytes", 0, 4),
    ("flags", 4, 4),
    ("entries", 8, 8),
    ("used", 16, 8),
    ("unique", 24, 8),
    ("next", 32, 8),
    ("reserved", 40, 8),
];
/// Offsets in the bonus of a snapshot, behind its root pointer.
const SNAPSHOT_FIELDS: [(&str, usize, usize); 10] = [
    ("bytes", 128, 4),
    ("flags", 132, 4),
    ("guid", 136, 8),
    ("created", 144, 8),
    ("dead_list", 160, 8),
    ("set", 168, 8),
    ("used", 176, 8),
    ("logical", 184, 8),
    ("physical", 192, 8),
    ("reserved", 200, 8),
];
/// Offsets in the bonus of an object set, behind its root pointer.
const SET_FIELDS: [(&str, usize, usize); 4] =
    [("flags", 132, 4), ("guid", 136, 8), ("created", 144, 8), ("free_queue", 152, 8)];
const NODE_ENTRIES: [&str; 10] = [
    "set",
    "props",
    "children",
    "snapshots",
    "dead_list",
    "origin",
    "origin_node",
    "clones",
    "holds",
    "bookmarks",
];

/// What `check` must say of a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A finding of this kind, or the pool is refused.
    As(&'static str),
    /// Any finding, or the pool is refused.
    Somehow,
    /// It may be true.
    Perhaps,
}

/// One lie.
#[derive(Clone, Debug)]
pub struct Lie {
    /// What is forged, and how.
    pub name: String,
    found: Found,
    forgery: Forgery,
}

#[derive(Clone, Debug)]
enum Forgery {
    Bonus {
        object: ObjectId,
        at: usize,
        bytes: Vec<u8>,
    },
    /// An entry of a ZAP; without words it is removed.
    Entry {
        zap: ObjectId,
        name: Vec<u8>,
        words: Vec<u64>,
    },
    /// Bytes of an object.
    Bytes {
        object: ObjectId,
        at: u64,
        bytes: Vec<u8>,
    },
    Tree {
        object: ObjectId,
        shape: Shape,
    },
    /// The object of the table of shared blocks, in the header of the meta object set.
    SharedTable(u64),
}

/// What is wrong with the tree of a dead list, or of a snapshot.
#[derive(Clone, Debug)]
enum Shape {
    /// The block count of the dnode.
    BlockCount(u64),
    /// The block size of the dnode.
    BlockBytes(u32),
    /// The content of block 0.
    Content(Vec<u8>),
    /// All pointers of a level are the same, down to a block with this content. `None`: down to holes. `fill`: of the lowest ones.
    Same { levels: u8, content: Option<Vec<u8>>, fill: u64 },
    /// The dnodes of a snapshot: all pointers of a level are the same, down to holes.
    Snapshot { levels: u8 },
}

impl Lie {
    fn bonus(name: String, found: Found, object: ObjectId, (at, width): (usize, usize), value: u64) -> Lie {
        let bytes = value.to_le_bytes().into_iter().take(width).collect();
        Lie { name: format!("{name} is {value}"), found, forgery: Forgery::Bonus { object, at, bytes } }
    }

    fn entry(name: String, found: Found, zap: ObjectId, entry: &[u8], words: &[u64]) -> Lie {
        let forgery = Forgery::Entry { zap, name: entry.to_vec(), words: words.to_vec() };
        Lie { name: format!("{name} {:?} is {words:?}", String::from_utf8_lossy(entry)), found, forgery }
    }
}

/// The objects of an image.
struct Cast {
    objects: Arc<ObjectSets>,
    stored: Vec<StoredDataset>,
    /// Nodes by path.
    nodes: Vec<(String, ObjectId)>,
    newest: Txg,
}

impl Cast {
    fn zap(&self, id: ObjectId) -> Result<ObjectZap, Failure> {
        let mos = self.objects.mos();
        Ok(ObjectZap::new(&ZapPolicy::of(mos), mos.hold(id).map_err(failed("hold"))?))
    }

    fn find(&self, zap: ObjectId, name: &str) -> Option<ObjectId> {
        self.zap(zap).ok()?.lookup_u64(name.as_bytes()).ok()?.filter(|id| *id != 0).map(ObjectId)
    }

    fn find_nodes(&mut self, path: &str, node: ObjectId) -> Result<(), Failure> {
        self.nodes.push((path.to_string(), node));
        let Some(children) = self.find(node, "children") else { return Ok(()) };
        for entry in self.zap(children)?.entries().map_err(failed("children"))? {
            let (Some(name), Some(id)) = (entry.key.name(), entry.value.first_integer()) else { continue };
            self.find_nodes(&format!("{path}/{}", String::from_utf8_lossy(name)), ObjectId(id))?;
        }
        Ok(())
    }

    /// An object of each kind, and numbers that are none.
    fn numbers(&self) -> Vec<u64> {
        let mut numbers = vec![0, POOL_DIRECTORY.0, NO_OBJECT, u64::MAX - 1, u64::MAX];
        numbers.extend(self.nodes.iter().map(|(_, node)| node.0));
        numbers.extend(self.find(POOL_DIRECTORY, "retired").map(|id| id.0));
        for dataset in self.stored.iter().take(4) {
            numbers.push(dataset.set.0);
            numbers.extend(dataset.head_list.map(|list| list.0));
            let first = dataset.snapshots.first();
            numbers.extend(first.iter().flat_map(|snapshot| [snapshot.info.id.0, snapshot.info.dead_list.0]));
        }
        for (_, node) in &self.nodes {
            numbers.extend(
                ["props", "snapshots"].iter().filter_map(|name| self.find(*node, name)).map(|id| id.0),
            );
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

/// All lies that an image can hold.
pub fn lies(image: &Image) -> Result<Vec<Lie>, Failure> {
    let machine = Machine::import(&image.copy(), 1, true)?;
    let objects = Arc::clone(&machine.objects);
    let stored = StoredDataset::all(&objects).map_err(failed("data sets"))?;
    let mut cast = Cast { objects, stored, nodes: Vec::new(), newest: machine.durable_txg() };
    let root = cast.find(POOL_DIRECTORY, "root_node").ok_or(Failure("no root node".into()))?;
    cast.find_nodes("", root)?;
    let mut lies = Vec::new();
    about_parts(&cast, &mut lies)?;
    about_snapshots(&cast, &mut lies);
    about_sets(&cast, &mut lies);
    about_nodes(&cast, &mut lies)?;
    about_retired(&cast, &mut lies);
    shared::about_table(&cast, &mut lies)?;
    Ok(lies)
}

fn about_parts(cast: &Cast, lies: &mut Vec<Lie>) -> Result<(), Failure> {
    for dataset in &cast.stored {
        for (index, list) in dataset.lists().enumerate() {
            for (part, info) in list_parts(&cast.objects, list).map_err(failed("parts"))? {
                let of = format!("{:?}, list {index}, part {part}", dataset.path);
                let is_first = part == list;
                for (field, at, width) in PART_FIELDS {
                    let mut add = |found: Found, values: &[u64]| {
                        let lie = |value: &u64| {
                            Lie::bonus(format!("{of}, {field}"), found, part, (at, width), *value)
                        };
                        lies.extend(values.iter().map(lie));
                    };
                    match field {
                        "bytes" => add(Found::As(kind::UNREADABLE), &[0, 47, 49, u64::MAX]),
                        "flags" => {
                            add(Found::As(kind::UNREADABLE), &[2]);
                            add(Found::Perhaps, &[1]);
                        }
                        "entries" => add(Found::As(kind::DEAD_LIST), &[info.entries + 1, 1 << 40, u64::MAX]),
                        "used" => add(Found::As(kind::DEAD_LIST), &[info.used_bytes + 16, 1 << 62, u64::MAX]),
                        "unique" => {
                            let is_counted = is_first && dataset.path.is_some();
                            let found = if is_counted { Found::As(kind::DEAD_LIST) } else { Found::Perhaps };
                            add(found, &[info.unique_bytes + 16, u64::MAX])
                        }
                        "next" => {
                            for number in cast.numbers() {
                                let is_true = info.next.map_or(0, |next| next.0) == number;
                                add(if is_true { Found::Perhaps } else { Found::Somehow }, &[number]);
                            }
                        }
                        _ => add(Found::As(kind::UNREADABLE), &[1]),
                    }
                }
                if info.entries > 0 {
                    add_shapes(&of, part, info.entries, lies);
                }
            }
        }
    }
    Ok(())
}

/// A block of a dead list with entries of 16 bytes: address, its step, how many, birth.
fn content(addr: u64, step: u64, count: u32, birth: u64) -> Vec<u8> {
    let mut raw = terrane_wire::Writer::with_capacity(1000);
    let mut last = (0, 0);
    for entry in 0..u64::from(count) {
        let addr = addr.wrapping_add(entry * step);
        raw.varint(addr.wrapping_sub(last.0));
        raw.varint(1);
        raw.varint_signed(birth.wrapping_sub(last.1) as i64);
        last = (addr, birth);
    }
    [&count.to_le_bytes()[..], raw.as_bytes()].concat()
}

fn add_shapes(of: &str, object: ObjectId, entries: u64, lies: &mut Vec<Lie>) {
    let zone_1 = 1 << 28;
    let mut add = |what: String, found: Found, shape: Shape| {
        lies.push(Lie { name: format!("{of}, {what}"), found, forgery: Forgery::Tree { object, shape } });
    };
    for count in [0, 1, 1 << 20, 1 << 40, 1 << 49] {
        let found = if count > 1 { Found::Perhaps } else { Found::Somehow };
        add(format!("{count} blocks"), found, Shape::BlockCount(count));
    }
    for bytes in [512, 8 << 10, 16 << 20] {
        add(format!("blocks of {bytes} bytes"), Found::As(kind::UNREADABLE), Shape::BlockBytes(bytes));
    }
    let contents = [
        ("foreign addresses", content(1 << 60, 1, 9, 3)),
        ("addresses in the first zone", content(zone_1 + 64, 1, 9, 3)),
        ("births in the future", content(zone_1 + 64, 1, 9, u64::MAX)),
        ("births of 0", content(zone_1 + 64, 1, 9, 0)),
        ("the same address again", content(zone_1 + 64, 0, 5000, 3)),
        ("a granule in one zone", content(zone_1 + 64, 1, 5000, 3)),
        ("addresses in zone 0", content(64, 1, 9, 3)),
        ("no entries", vec![0, 0, 0, 0, 1]),
        ("too many entries", u32::MAX.to_le_bytes().to_vec()),
    ];
    for (what, raw) in contents {
        add(what.to_string(), Found::Somehow, Shape::Content(raw));
    }
    let few = content(zone_1 + 64, 1, 1, 3);
    let full = Shape::Same { levels: 2, content: Some(few.clone()), fill: u64::MAX };
    add("overflowing fills".to_string(), Found::Somehow, full);
    for levels in [1, 2, 4, 7] {
        let whole = Shape::Same { levels, content: Some(few.clone()), fill: 1 };
        add(format!("the same pointers at {levels} levels"), Found::Somehow, whole);
        let whole = Shape::Same { levels, content: Some(vec![0, 0, 0, 0, 1]), fill: 1 };
        add(format!("the same pointers at {levels} levels, without entries"), Found::Somehow, whole);
        let hollow = Shape::Same { levels, content: None, fill: 0 };
        add(
            format!("the same pointers at {levels} levels, to holes, for {entries} entries"),
            Found::As(kind::UNREADABLE),
            hollow,
        );
    }
}

fn about_snapshots(cast: &Cast, lies: &mut Vec<Lie>) {
    let (newest, numbers) = (cast.newest.0, cast.numbers());
    let roots: Vec<BlockPtr> = cast
        .stored
        .iter()
        .filter_map(|dataset| {
            let bonus = cast.objects.mos().hold(dataset.set).ok()?.bonus();
            BlockPtr::parse(bonus.get(..BlockPtr::SIZE)?, &"root").ok()
        })
        .collect();
    for dataset in &cast.stored {
        for snapshot in &dataset.snapshots {
            let of = format!("{:?}, snapshot {}", dataset.path, snapshot.name);
            let info = &snapshot.info;
            for (field, at, width) in SNAPSHOT_FIELDS {
                let mut add = |found: Found, values: &[u64]| {
                    let lie = |value: &u64| {
                        Lie::bonus(format!("{of}, {field}"), found, info.id, (at, width), *value)
                    };
                    lies.extend(values.iter().map(lie));
                };
                match field {
                    "bytes" | "flags" | "reserved" => add(Found::Somehow, &[95, 97, u64::MAX]),
                    "guid" => add(Found::Somehow, &[0]),
                    "created" => {
                        add(Found::Somehow, &[0, 1 << 63, u64::MAX - 1, u64::MAX]);
                        // These may show the same state.
                        add(Found::Perhaps, &[newest + 1, newest + 9]);
                    }
                    "dead_list" => {
                        for number in numbers.iter().filter(|number| **number != info.dead_list.0) {
                            add(Found::Somehow, &[*number]);
                        }
                    }
                    "set" => add(Found::Perhaps, &numbers),
                    "used" => add(Found::As(kind::DEAD_LIST), &[info.referenced.used_bytes + 16, u64::MAX]),
                    _ => add(Found::Perhaps, &[u64::MAX]),
                }
            }
            for levels in [1, 4, 7] {
                let name = format!("{of}, the same pointers at {levels} levels");
                let forgery = Forgery::Tree { object: info.id, shape: Shape::Snapshot { levels } };
                lies.push(Lie { name, found: Found::Somehow, forgery });
            }
            for other in dataset.snapshots.iter().filter(|other| other.info.id != info.id) {
                let created = other.info.created.0;
                lies.push(Lie::bonus(format!("{of}, created"), Found::Somehow, info.id, (144, 8), created));
            }
            let foreign = roots.iter().filter(|root| **root != info.root && !root.is_hole());
            for (which, root) in std::iter::once(&BlockPtr::default()).chain(foreign).enumerate() {
                let bytes = root.encode().to_vec();
                let forgery = Forgery::Bonus { object: info.id, at: 0, bytes };
                lies.push(Lie { name: format!("{of}, root {which}"), found: Found::Somehow, forgery });
            }
        }
    }
}

fn about_sets(cast: &Cast, lies: &mut Vec<Lie>) {
    for dataset in &cast.stored {
        let of = format!("object set of {:?}", dataset.path);
        for (field, at, width) in SET_FIELDS {
            let values = match field {
                "free_queue" => cast.numbers(),
                _ => vec![0, 1, u64::MAX],
            };
            for value in values {
                lies.push(Lie::bonus(
                    format!("{of}, {field}"),
                    Found::Perhaps,
                    dataset.set,
                    (at, width),
                    value,
                ));
            }
        }
        for other in cast.stored.iter().filter(|other| other.set != dataset.set) {
            let Ok(object) = cast.objects.mos().hold(other.set) else { continue };
            let bytes = object.bonus().iter().copied().take(BlockPtr::SIZE).collect();
            let forgery = Forgery::Bonus { object: dataset.set, at: 0, bytes };
            lies.push(Lie {
                name: format!("{of}, root of {:?}", other.path),
                found: Found::Somehow,
                forgery,
            });
        }
    }
}

fn about_nodes(cast: &Cast, lies: &mut Vec<Lie>) -> Result<(), Failure> {
    for (path, node) in &cast.nodes {
        let of = format!("node {path:?}");
        for name in NODE_ENTRIES {
            let old = cast.find(*node, name).map_or(0, |id| id.0);
            // The root has these in the pool directory.
            let is_ignored = path.is_empty() && ["set", "props"].contains(&name);
            for number in cast.numbers().into_iter().filter(|number| *number != old) {
                let found = if is_ignored { Found::Perhaps } else { Found::Somehow };
                lies.push(Lie::entry(of.clone(), found, *node, name.as_bytes(), &[number]));
            }
            lies.push(Lie::entry(of.clone(), Found::Perhaps, *node, name.as_bytes(), &[old, 7]));
        }
        for list in ["snapshots", "children", "clones", "holds", "bookmarks"] {
            let Some(zap) = cast.find(*node, list) else { continue };
            let of = format!("{list} of {path:?}");
            let is_strict = ["snapshots", "children"].contains(&list);
            let found = if is_strict { Found::Somehow } else { Found::Perhaps };
            let names = [&b".."[..], b".", b"a/b", b"/", b"x\xff", b"a@b", b"1:", b":", b"new"];
            let old = cast.zap(zap)?.entries().map_err(failed("entries"))?;
            for entry in &old {
                let (Some(known), Some(number)) = (entry.key.name(), entry.value.first_integer()) else {
                    continue;
                };
                // The same object under a second name.
                for name in names {
                    lies.push(Lie::entry(of.clone(), found, zap, name, &[number]));
                }
                for number in cast.numbers().into_iter().filter(|other| *other != number) {
                    lies.push(Lie::entry(of.clone(), found, zap, known, &[number]));
                }
                lies.push(Lie::entry(of.clone(), Found::Perhaps, zap, known, &[number, number, 1, 2]));
                lies.push(Lie::entry(of.clone(), Found::Perhaps, zap, known, &[]));
            }
        }
    }
    Ok(())
}

fn about_retired(cast: &Cast, lies: &mut Vec<Lie>) {
    for number in cast.numbers() {
        for name in ["retired", "root_node", "root_dataset", "root_props"] {
            let is_true = cast.find(POOL_DIRECTORY, name) == Some(ObjectId(number));
            let found = if is_true { Found::Perhaps } else { Found::Somehow };
            lies.push(Lie::entry("pool directory".into(), found, POOL_DIRECTORY, name.as_bytes(), &[number]));
        }
    }
    let Some(retired) = cast.find(POOL_DIRECTORY, "retired") else { return };
    for number in cast.numbers() {
        let name = format!("{number}.prune_below");
        for below in [0, 1, u64::MAX] {
            let found = if below == 0 { Found::Somehow } else { Found::Perhaps };
            let is_retired =
                cast.stored.iter().any(|dataset| dataset.path.is_none() && dataset.set.0 == number);
            let found = if is_retired { Found::Perhaps } else { found };
            lies.push(Lie::entry("retired".into(), found, retired, name.as_bytes(), &[below]));
        }
    }
    for gone in cast.stored.iter().filter(|dataset| dataset.path.is_none()) {
        let name = format!("{}.dead_list", gone.set);
        for number in cast.numbers() {
            let is_true = gone.head_list.map_or(0, |list| list.0) == number;
            let found = if is_true { Found::Perhaps } else { Found::Somehow };
            lies.push(Lie::entry("retired".into(), found, retired, name.as_bytes(), &[number]));
        }
    }
}

/// Forges a copy of the image, and does everything with it. Returns how examining it ended. `check` must find what it promises to find.
pub fn tell(image: &Image, lie: &Lie) -> Result<Verdict, Failure> {
    let device = forge(image, lie).map_err(|failure| failure.within(format_args!("forging {}", lie.name)))?;
    let (verdict, report) = exercise(&device, &lie.name)?;
    let is_found = match lie.found {
        _ if verdict == Verdict::Refused => true,
        Found::As(kind) => report.has(kind),
        Found::Somehow => !report.is_clean(),
        Found::Perhaps => true,
    };
    if !is_found {
        return Err(Failure(format!("{}: check found {:?}, not {:?}", lie.name, report.findings, lie.found)));
    }
    Ok(verdict)
}

/// A copy of the image with the lie.
pub fn forge(image: &Image, lie: &Lie) -> Result<SimDevice, Failure> {
    match &lie.forgery {
        Forgery::Bonus { object, at, bytes } => change(image, &|machine, tx| {
            let object = machine.objects.mos().hold(*object).map_err(failed("hold"))?;
            let mut bonus = object.bonus().to_vec();
            bonus.resize(bonus.len().max(at + bytes.len()), 0);
            bonus[*at..at + bytes.len()].copy_from_slice(bytes);
            object.set_bonus(tx, bonus).map_err(failed("bonus"))
        }),
        Forgery::Entry { zap, name, words } => change(image, &|machine, tx| {
            let mos = machine.objects.mos();
            let object = mos.hold(*zap).map_err(failed("hold"))?;
            let mut zap = ObjectZap::new(&ZapPolicy::of(mos), object);
            let outcome = match words.as_slice() {
                [] => zap.remove(tx, name.as_slice()).map(drop),
                words => zap.update(tx, name.as_slice(), ValueRef::U64s(words)).map(drop),
            };
            outcome.map_err(failed("entry"))
        }),
        Forgery::Bytes { object, at, bytes } => change(image, &|machine, tx| {
            let object = machine.objects.mos().hold(*object).map_err(failed("hold"))?;
            object.write(tx, *at, bytes).map_err(failed("bytes"))
        }),
        Forgery::Tree { object, shape } => rewrite(image, Target::Tree(*object, shape.clone())),
        Forgery::SharedTable(object) => rewrite(image, Target::SharedTable(*object)),
    }
}

/// A change that no operation makes, by a client of the pool.
fn rewrite(image: &Image, target: Target) -> Result<SimDevice, Failure> {
    let device = image.copy();
    let pool = import_pool(&device, 2)?;
    let root = Mutex::new((pool.root(), false));
    pool.set_client(Arc::new(Forger { target, root }));
    let committed = pool.commit_txg(pool.open_txg());
    pool.abandon();
    committed.map_err(failed("commit"))?;
    Ok(device.restarted(Survival::Everything))
}

/// A change of the meta object set, as an operation would make it.
fn change(
    image: &Image,
    change: &dyn Fn(&Machine, &Tx) -> Result<(), Failure>,
) -> Result<SimDevice, Failure> {
    let machine = Machine::import(&image.copy(), 2, false)?;
    let tx = machine.objects.mos().begin(COST).map_err(failed("begin"))?;
    change(&machine, &tx)?;
    drop(tx);
    machine.pool.commit_txg(machine.pool.open_txg()).map_err(failed("commit"))?;
    Ok(machine.device.restarted(Survival::Everything))
}

/// What a forger changes.
enum Target {
    /// The tree of one object of the meta object set.
    Tree(ObjectId, Shape),
    /// A number in the header of that set.
    SharedTable(u64),
}

/// A client that changes the meta object set.
struct Forger {
    target: Target,
    /// Root of the meta object set, and whether it has been forged.
    root: Mutex<(BlockPtr, bool)>,
}

impl Client for Forger {
    fn quiesced(&self, _last: &Tx) {}

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let (root, is_forged) = &mut *self.root.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(is_forged, true) {
            let owner = Owner::Block { objset: 0, object: HEADER, level: 0, block: 0 };
            let mut raw = txg_sync.pool().read(root, owner)?.to_vec();
            let mut header = ObjsetHeader::parse(&raw, "header")?;
            match &self.target {
                Target::Tree(object, shape) => {
                    let top = (header.dnodes.levels - 1, 0);
                    header.dnodes.root = descend(txg_sync, &header.dnodes.root, top, (*object, shape))?;
                    raw[SLOT_BYTES..2 * SLOT_BYTES].copy_from_slice(&header.dnodes.encode());
                }
                Target::SharedTable(object) => {
                    raw[SHARED_TABLE_AT..SHARED_TABLE_AT + 8].copy_from_slice(&object.to_le_bytes());
                }
            }
            let fill = root.fill();
            let new = write(txg_sync, raw, ObjectKind::Objset, owner, fill)?;
            txg_sync.release(root);
            *root = new;
        }
        Ok(root.clone())
    }

    fn synced(&self, _txg: Txg) {}
}

/// Changes the tree of an object, from a block of dnodes or above on.
fn descend(
    txg_sync: &mut TxgSync<'_>,
    ptr: &BlockPtr,
    (level, block): (u8, u64),
    (object, shape): (ObjectId, &Shape),
) -> Result<BlockPtr, PoolError> {
    let owner = Owner::Block { objset: 0, object: 0, level, block };
    let mut raw = txg_sync.pool().read(ptr, owner)?.to_vec();
    let slot = slot_of(object);
    if level == 0 {
        let place = slot.offset..slot.offset + SLOT_BYTES;
        let found = raw.get(slot.offset..).map(|raw| Dnode::parse(raw, &"dnode")).transpose()?.flatten();
        if let (Some(mut dnode), Some(place)) = (found, raw.get_mut(place)) {
            shape.apply(txg_sync, object, &mut dnode)?;
            dnode.encode_into(place);
        }
    } else {
        let child = slot.block / POINTERS.pow(u32::from(level) - 1);
        let at = (child % POINTERS) as usize * BlockPtr::SIZE;
        let below = BlockPtr::parse(raw.get(at..).unwrap_or(&[]), &"pointer")?;
        let new = descend(txg_sync, &below, (level - 1, child), (object, shape))?;
        raw[at..at + BlockPtr::SIZE].copy_from_slice(&new.encode());
    }
    let new = write(txg_sync, raw, ObjectKind::Dnodes, owner, ptr.fill())?;
    txg_sync.release(ptr);
    Ok(new)
}

impl Shape {
    fn apply(
        &self,
        txg_sync: &mut TxgSync<'_>,
        object: ObjectId,
        dnode: &mut Dnode,
    ) -> Result<(), PoolError> {
        let owner = |level| Owner::Block { objset: 0, object: object.0, level, block: 0 };
        let kind = ObjectKind::DeadList;
        match self {
            Shape::BlockCount(count) => dnode.block_count = *count,
            Shape::BlockBytes(bytes) => dnode.block_bytes = *bytes,
            Shape::Content(raw) => {
                dnode.root = write(txg_sync, raw.clone(), kind, owner(0), 1)?;
                (dnode.levels, dnode.block_count) = (1, 1);
            }
            Shape::Same { levels, content, fill } => {
                let bottom = match content {
                    Some(raw) => write(txg_sync, raw.clone(), kind, owner(0), 1)?,
                    None => hole(kind),
                };
                grow(txg_sync, dnode, (object, *levels), (kind, bottom, *fill))?;
                dnode.block_count = dnode.block_count.min((1 << 63) / u64::from(LIST_BLOCK_BYTES));
            }
            Shape::Snapshot { levels } => {
                let info = SnapshotInfo::parse(&dnode.bonus, object, Txg(u64::MAX))?;
                let owner = Owner::Block { objset: info.set.0, object: HEADER, level: 0, block: 0 };
                let mut raw = txg_sync.pool().read(&info.root, owner)?.to_vec();
                let mut header = ObjsetHeader::parse(&raw, "header")?;
                let bottom = (ObjectKind::Dnodes, hole(ObjectKind::Dnodes), 0);
                grow(txg_sync, &mut header.dnodes, (ObjectId(0), *levels), bottom)?;
                raw[SLOT_BYTES..2 * SLOT_BYTES].copy_from_slice(&header.dnodes.encode());
                let root = write(txg_sync, raw, ObjectKind::Objset, owner, info.root.fill())?;
                dnode.bonus = Arc::new(SnapshotInfo { root, ..info }.encode());
            }
        }
        Ok(())
    }
}

/// A hole with a birth. Blocks of other holes are not stored.
fn hole(kind: ObjectKind) -> BlockPtr {
    BlockPtr::Hole(Hole { kind: kind as u8, level: 0, lsize: 0, birth: Txg(1) })
}

/// Gives an object a tree of indirect blocks in which all pointers of a level are the same.
fn grow(
    txg_sync: &mut TxgSync<'_>,
    dnode: &mut Dnode,
    (object, levels): (ObjectId, u8),
    (kind, bottom, mut fill): (ObjectKind, BlockPtr, u64),
) -> Result<(), PoolError> {
    let mut ptr = bottom;
    for level in 1..=levels {
        let raw = ptr.encode().repeat(POINTERS as usize);
        fill = fill.saturating_mul(POINTERS);
        let owner = Owner::Block { objset: 0, object: object.0, level, block: 0 };
        ptr = write(txg_sync, raw, kind, owner, fill)?;
    }
    (dnode.root, dnode.levels) = (ptr, levels + 1);
    dnode.block_count = POINTERS.saturating_pow(u32::from(levels));
    Ok(())
}

fn write(
    txg_sync: &mut TxgSync<'_>,
    raw: Vec<u8>,
    kind: ObjectKind,
    owner: Owner,
    fill: u64,
) -> Result<BlockPtr, PoolError> {
    let request = WriteRequest {
        data: Arc::new(raw),
        kind: kind as u8,
        compression: Compression::Lz4.into(),
        checksum: ChecksumKind::Blake3,
        owner,
        fill,
        content_birth: None,
        stream: Stream::Metadata,
        may_embed: false,
        replaces: None,
    };
    Ok(txg_sync.write(vec![request])?.remove(0))
}
