//! How one file is stored: `terrane stat`.
//!
//! Attributes are current. Records, algorithms and zones are those of the last committed txg, because
//! uncommitted data has no place yet; its amount is shown.
//!
//! Invariants: an indirect block is read at most once and levels only go down, so a walk ends; nothing is
//! kept per record.

use super::attributes::{self, HomesRow};
use crate::failure::{Failure, Outcome};
use crate::open_pool::OpenPool;
use crate::progress::Progress;
use serde::Serialize;
use std::collections::BTreeMap;
use terrane_codec::compress::algorithm::{ID_ZSTD, ZSTD_HEADER_BYTES};
use terrane_codec::{Compression, ZstdLevel};
use terrane_format::block_ptr::Normal;
use terrane_format::{BlockPtr, Owner};
use terrane_object::ObjectSet;
use terrane_object::dnode::Dnode;
use terrane_posix::{Attr, Errno, mode};
use terrane_store::PoolError;
use terrane_wire::ObjectId;

/// Records whose header is read for their compression level: a file may have millions.
const ZSTD_SAMPLES_MAX: u64 = 1024;
/// Maximum number of errors shown; further ones are only counted.
const ERRORS_MAX: usize = 20;

/// The object at a path from the root of the dataset; links are not followed.
pub fn resolve(open_pool: &OpenPool, path: &[u8]) -> Outcome<u64> {
    let fs = open_pool.fs()?;
    let mut at = fs.root();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let failed = |errno: Errno| {
            let what = match errno {
                Errno::ENOENT => "there is no such file".to_owned(),
                Errno::ENOTDIR => "a component of the path is not a directory".to_owned(),
                errno => errno.to_string(),
            };
            Failure(format!("pool {}: {}: {what}", open_pool.pool.name(), String::from_utf8_lossy(path)))
        };
        let found = fs.lookup(at, name).map_err(failed)?;
        // A lookup counts as the kernel's; this one is over.
        fs.forget(found.ino, 1);
        at = found.ino;
    }
    Ok(at)
}

/// How one file is stored; sizes are bytes.
#[derive(Serialize)]
pub struct FileRow {
    object: u64,
    #[serde(rename = "type")]
    type_: &'static str,
    size: u64,
    links: u32,
    record_size: u32,
    levels: u8,
    records: u64,
    embedded: u64,
    holes: u64,
    logical: u64,
    stored: u64,
    metadata_blocks: u64,
    metadata_stored: u64,
    uncommitted: u64,
    compression: Vec<AlgorithmRow>,
    zstd_levels: Vec<CountRow>,
    checksums: Vec<CountRow>,
    zones: Vec<ZoneRow>,
    attributes: HomesRow,
    first_txg: u64,
    last_txg: u64,
    errors: Vec<String>,
    errors_count: u64,
}

/// Records stored with one algorithm.
#[derive(Serialize)]
struct AlgorithmRow {
    name: &'static str,
    records: u64,
    logical: u64,
    stored: u64,
}

impl AlgorithmRow {
    fn of(id: u8, tally: Tally) -> AlgorithmRow {
        AlgorithmRow {
            name: Compression::name_of_id(id).unwrap_or("unknown"),
            records: tally.blocks,
            logical: tally.logical,
            stored: tally.stored,
        }
    }
}

/// Records that have something in common.
#[derive(Serialize)]
struct CountRow {
    name: String,
    records: u64,
}

/// Blocks in one zone.
#[derive(Serialize)]
struct ZoneRow {
    seq: u64,
    device: u16,
    zone: u32,
    blocks: u64,
    bytes: u64,
}

impl ZoneRow {
    fn of((seq, device, zone): (u64, u16, u32), tally: Tally) -> ZoneRow {
        ZoneRow { seq, device, zone, blocks: tally.blocks, bytes: tally.stored }
    }
}

pub fn stat(open_pool: &OpenPool, object: u64, progress: Progress<'_>) -> Outcome<FileRow> {
    let fs = open_pool.fs()?;
    let failed = |errno: Errno| Failure(format!("inode {object}: {errno}"));
    let attr = fs.getattr(object).map_err(failed)?;
    let dataset = open_pool.dataset();
    let set = dataset.object_set();
    let held = set.hold(ObjectId(object))?;
    let dnode = held.dnode();
    let mut walk = Walk::new(set, object, progress);
    walk.sample_interval = dnode.block_count.div_ceil(ZSTD_SAMPLES_MAX).max(1);
    walk.tree(&dnode);
    if let BlockPtr::Normal(spill) = &dnode.spill {
        walk.add_zones(spill);
    }
    let (attributes, failed) = attributes::homes(open_pool, &held);
    failed.into_iter().for_each(|text| walk.error(text));
    // A file without a block takes the dataset's record size with its first one.
    let record_size = if dnode.block_count == 0 { set.record_size() } else { dnode.block_bytes };
    let length = if attr.mode & mode::S_IFMT == mode::S_IFREG { attr.size } else { 0 };
    let blocks = dnode.block_count.max(length.div_ceil(u64::from(record_size)));
    let holes = blocks.saturating_sub(walk.records.blocks);
    let Walk {
        records,
        metadata,
        compression,
        zstd_levels: levels,
        checksums,
        zones,
        errors,
        errors_count,
        last_txg: newest,
        ..
    } = walk;
    Ok(FileRow {
        object,
        type_: type_name(&attr),
        size: attr.size,
        links: attr.nlink,
        record_size,
        levels: dnode.levels,
        records: records.blocks,
        embedded: records.embedded,
        holes,
        logical: records.logical,
        stored: records.stored,
        metadata_blocks: metadata.blocks,
        metadata_stored: metadata.stored,
        uncommitted: held.used_bytes().saturating_sub(dnode.used),
        compression: compression.into_iter().map(|(id, tally)| AlgorithmRow::of(id, tally)).collect(),
        zstd_levels: levels
            .into_iter()
            .map(|(level, records)| CountRow { name: level.to_string(), records })
            .collect(),
        checksums: checksums.into_iter().map(|(name, records)| CountRow { name, records }).collect(),
        zones: zones.into_iter().map(|(place, tally)| ZoneRow::of(place, tally)).collect(),
        attributes,
        first_txg: dnode.birth.0,
        last_txg: newest,
        errors,
        errors_count,
    })
}

/// Sequence number of a zone, its device, and its index on the device.
pub(super) type ZonePlace = (u64, u16, u32);
/// Blocks and bytes of an object in each zone.
pub(super) type ObjectZones = BTreeMap<ZonePlace, (u64, u64)>;

/// The zones that hold an object's blocks, and errors.
pub(super) fn zones_of(
    open_pool: &OpenPool,
    object: u64,
    progress: Progress<'_>,
) -> Outcome<(ObjectZones, Vec<String>)> {
    let dataset = open_pool.dataset();
    let set = dataset.object_set();
    let mut walk = Walk::new(set, object, progress);
    walk.sample_interval = u64::MAX;
    walk.tree(&set.hold(ObjectId(object))?.dnode());
    let zones = walk.zones.into_iter().map(|(place, tally)| (place, (tally.blocks, tally.stored)));
    Ok((zones.collect(), walk.errors))
}

pub(super) fn type_name(attr: &Attr) -> &'static str {
    match attr.mode & mode::S_IFMT {
        mode::S_IFREG => "regular file",
        mode::S_IFDIR => "directory",
        mode::S_IFLNK => "symbolic link",
        mode::S_IFBLK => "block device",
        mode::S_IFCHR => "character device",
        mode::S_IFIFO => "fifo",
        mode::S_IFSOCK => "socket",
        _ => "unknown",
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    blocks: u64,
    embedded: u64,
    logical: u64,
    /// All copies.
    stored: u64,
}

impl Tally {
    fn add(&mut self, ptr: &BlockPtr) {
        self.blocks += 1;
        self.embedded += u64::from(matches!(ptr, BlockPtr::Embedded(_)));
        self.logical += u64::from(ptr.lsize());
        self.stored += ptr.allocated_bytes();
    }
}

struct Walk<'a> {
    set: &'a ObjectSet,
    object: u64,
    progress: Progress<'a>,
    /// Pointers in an indirect block.
    pointers: u64,
    records: Tally,
    metadata: Tally,
    compression: BTreeMap<u8, Tally>,
    /// Levels of zstd, sampled.
    zstd_levels: BTreeMap<ZstdLevel, u64>,
    sample_interval: u64,
    checksums: BTreeMap<String, u64>,
    /// By sequence number, device, and index on the device.
    zones: BTreeMap<(u64, u16, u32), Tally>,
    last_txg: u64,
    errors: Vec<String>,
    errors_count: u64,
}

impl<'a> Walk<'a> {
    fn new(set: &'a ObjectSet, object: u64, progress: Progress<'a>) -> Self {
        Walk {
            set,
            object,
            progress,
            pointers: 1,
            records: Tally::default(),
            metadata: Tally::default(),
            compression: BTreeMap::new(),
            zstd_levels: BTreeMap::new(),
            sample_interval: 1,
            checksums: BTreeMap::new(),
            zones: BTreeMap::new(),
            last_txg: 0,
            errors: Vec::new(),
            errors_count: 0,
        }
    }

    fn tree(&mut self, dnode: &Dnode) {
        self.pointers = dnode.pointers_per_block();
        let mut todo = vec![(dnode.root.clone(), 0u64)];
        while let Some((ptr, block)) = todo.pop() {
            if ptr.is_hole() {
                continue;
            }
            self.last_txg = self.last_txg.max(ptr.logical_birth().0);
            if let BlockPtr::Normal(normal) = &ptr {
                self.add_zones(normal);
            }
            if ptr.level() == 0 {
                self.record(&ptr);
                if block.is_multiple_of(self.sample_interval) {
                    self.sample_zstd_level(&ptr);
                }
                continue;
            }
            self.metadata.add(&ptr);
            (self.progress)("following pointers", self.records.blocks, dnode.block_count);
            match self.children(&ptr, block) {
                Ok(children) => todo.extend(children),
                Err(error) => self.error(error.to_string()),
            }
        }
    }

    fn record(&mut self, ptr: &BlockPtr) {
        self.records.add(ptr);
        let compression = match ptr {
            BlockPtr::Normal(normal) => {
                *self.checksums.entry(normal.checksum_kind.to_string()).or_default() += 1;
                normal.compression
            }
            BlockPtr::Embedded(embedded) => embedded.compression,
            BlockPtr::Hole(_) => return,
        };
        self.compression.entry(compression).or_default().add(ptr);
    }

    fn sample_zstd_level(&mut self, ptr: &BlockPtr) {
        let head = match ptr {
            BlockPtr::Normal(normal) if normal.compression == ID_ZSTD => {
                self.set.pool().stored_head(normal, ZSTD_HEADER_BYTES)
            }
            BlockPtr::Embedded(embedded) if embedded.compression == ID_ZSTD => Ok(embedded.payload.clone()),
            _ => return,
        };
        match head.map(|head| ZstdLevel::of_stored(&head)) {
            Ok(Some(level)) => *self.zstd_levels.entry(level).or_default() += 1,
            // Readers of the record get the same error.
            Ok(None) => self.error("zstd record without a level".to_owned()),
            Err(error) => self.error(error.to_string()),
        }
    }

    fn add_zones(&mut self, normal: &Normal) {
        let bytes = terrane_format::granule_bytes(u64::from(normal.psize));
        for addr in normal.copies() {
            match self.set.pool().locate(addr, normal.psize) {
                Ok((seq, home, _)) => {
                    let tally = self.zones.entry((seq.0, home.device.0, home.zone.0)).or_default();
                    tally.blocks += 1;
                    tally.stored += bytes;
                }
                Err(error) => self.error(error.to_string()),
            }
        }
    }

    /// The pointers in an indirect block with their numbers, in reverse order: a stack pops the last first.
    fn children(&self, ptr: &BlockPtr, block: u64) -> Result<Vec<(BlockPtr, u64)>, PoolError> {
        let level = ptr.level();
        let owner = Owner::Block { objset: self.set.id().0, object: self.object, level, block };
        let raw = self.set.pool().read(ptr, owner)?;
        let mut children = Vec::new();
        for (index, raw) in raw.chunks_exact(BlockPtr::SIZE).enumerate().rev() {
            // By the block's capacity: its content ends with the last pointer that is not a hole.
            let child = block.saturating_mul(self.pointers).saturating_add(index as u64);
            let at = format!("object {} level {} block {child}", self.object, level - 1);
            let ptr = BlockPtr::parse(raw, &at)?;
            if !ptr.is_hole() && ptr.level() + 1 != level {
                return Err(terrane_wire::Corrupt::new(at, "level", level - 1, ptr.level()).into());
            }
            children.push((ptr, child));
        }
        Ok(children)
    }

    fn error(&mut self, text: String) {
        self.errors_count += 1;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(text);
        }
    }
}
