//! ZAPs as they are stored: entries, statistics, blocks.

use super::ROWS_MAX;
use super::objects::{hold, set};
use crate::failure::{Failure, Outcome};
use crate::hex;
use crate::open_pool::OpenPool;
use serde::Serialize;
use std::sync::Arc;
use terrane_dataset::ObjectStore;
use terrane_format::{BlockPtr, Owner};
use terrane_object::dnode::Dnode;
use terrane_object::{Object, ObjectSet};
use terrane_zap::{Contents, Cursor, FatStatistics, Histogram, SlotStatistics, Statistics, Store, Zap};

/// Content of blocks in one answer.
const ANSWER_BYTES: usize = 4 << 20;
/// Pointers that are followed for stored bytes: damaged ones could lead to the same blocks again and again.
const POINTERS_MAX: u64 = 1 << 24;

#[derive(Serialize)]
pub struct ZapRow {
    object: u64,
    kind: String,
    length: u64,
    normalization: u64,
    #[serde(flatten)]
    statistics: StatisticsRow,
    /// Left out if only statistics were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<ZapEntryRow>>,
}

/// What its blocks hold. What a kind of ZAP does not have is left out.
#[derive(Serialize)]
struct StatisticsRow {
    block_bytes: usize,
    blocks: u64,
    #[serde(flatten)]
    stored: StoredRow,
    salt: String,
    flags: Vec<&'static str>,
    byte_order: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<SlotsRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<TableRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaves: Option<LeavesRow>,
    damage_count: u64,
    damage: Vec<String>,
}

/// Its blocks as of the last committed txg.
#[derive(Default, Serialize)]
struct StoredRow {
    stored_bytes: u64,
    stored_blocks: u64,
    embedded_blocks: u64,
    /// Of a fat ZAP: of blocks that are leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    leaf_stored_bytes: Option<u64>,
}

#[derive(Serialize)]
struct SlotsRow {
    slot_bytes: usize,
    value_words: usize,
    slots: usize,
    used: usize,
    free: usize,
    longest_name: usize,
    longest_name_max: usize,
}

#[derive(Serialize)]
struct TableRow {
    shift: u32,
    pointers: u64,
    block: u64,
    blocks: u64,
    growing: bool,
    next_block: u64,
    blocks_copied: u64,
    free_block: u64,
}

#[derive(Serialize)]
struct LeavesRow {
    leaves: u64,
    entries: u64,
    header_leaves: u64,
    header_entries: u64,
    chunks: u64,
    chunks_free: u64,
    histograms: Vec<HistogramRow>,
}

#[derive(Serialize)]
struct HistogramRow {
    histogram: &'static str,
    value: u64,
    count: u64,
}

#[derive(Serialize)]
struct ZapEntryRow {
    name: String,
    value: String,
    int_size: u8,
    hash: String,
    cd: u32,
    conflict: bool,
    /// Of a directory's.
    #[serde(flatten)]
    named: Option<DirEntryRow>,
}

/// OpenZFS's directory entries: the type in the top four bits, the object number in the low 48.
#[derive(Serialize)]
struct DirEntryRow {
    #[serde(rename = "type")]
    type_: u64,
    object: u64,
}

/// An object that is a ZAP.
fn hold_zap(open_pool: &OpenPool, meta: bool, object: u64) -> Outcome<Arc<Object>> {
    use terrane_object::ObjectKind::{DeleteQueue, Directory, Master, Zap as Plain};
    let held = hold(open_pool, meta, object)?;
    match [DeleteQueue, Directory, Master, Plain].contains(&held.kind()) {
        true => Ok(held),
        false => Err(Failure::refused(
            format_args!("object {object}"),
            "a ZAP or a directory",
            format_args!("{:?}", held.kind()),
            "`terrane debug dnode POOL` lists the objects",
        )),
    }
}

/// The statistics of a ZAP and, if they are wanted, its entries in the order of their hashes.
pub fn zap(open_pool: &OpenPool, meta: bool, object: u64, with_entries: bool) -> Outcome<ZapRow> {
    let held = hold_zap(open_pool, meta, object)?;
    let store = ObjectStore::reader(&held);
    let zap = Zap::open(&store)?;
    let statistics = zap.statistics(&store)?;
    let set = set(open_pool, meta);
    Ok(ZapRow {
        object,
        kind: zap.kind(&store)?.to_string(),
        length: zap.len(&store)?,
        normalization: statistics.norm.to_u64(),
        statistics: StatisticsRow::of(&statistics, stored(&set, object, &held.dnode(), &statistics), &zap),
        entries: with_entries.then(|| entries(&held, &zap, &store)).transpose()?,
    })
}

fn entries(held: &Object, zap: &Zap, store: &ObjectStore<'_>) -> Outcome<Vec<ZapEntryRow>> {
    let mut rows = Vec::new();
    let mut cursor = Cursor::START;
    while rows.len() < ROWS_MAX {
        let Some((entry, after)) = zap.next(store, cursor)? else { break };
        cursor = after;
        let name = match entry.key.name() {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => format!("{:?}", entry.key),
        };
        let ints: Vec<String> = entry.value.ints().iter().map(u64::to_string).collect();
        let named = (held.kind() == terrane_object::ObjectKind::Directory).then(|| {
            let word = entry.value.first_integer().unwrap_or(0);
            DirEntryRow { type_: word >> 60, object: word & ((1 << 48) - 1) }
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
    Ok(rows)
}

impl StatisticsRow {
    fn of(statistics: &Statistics, stored: StoredRow, zap: &Zap) -> StatisticsRow {
        use terrane_zap::Flags;
        let named = [(Flags::HASH64, "hash64"), (Flags::UINT64_KEY, "uint64_key")];
        let flags = named.into_iter().filter(|(flag, _)| statistics.flags.has(*flag));
        let (mut slots, mut table, mut leaves) = (None, None, None);
        let damage = match &statistics.layout {
            Contents::Nothing => None,
            Contents::Slots(found) => {
                slots = Some(SlotsRow::of(found));
                Some(&found.damage)
            }
            Contents::Fat(found) => {
                table = Some(TableRow::of(found));
                leaves = Some(LeavesRow::of(found));
                Some(&found.damage)
            }
        };
        StatisticsRow {
            block_bytes: statistics.block_bytes,
            blocks: statistics.blocks,
            stored,
            salt: format!("{:016x}", statistics.salt),
            flags: flags.map(|(_, name)| name).collect(),
            byte_order: if zap.has_swapped_bytes() { "big-endian" } else { "little-endian" },
            slots,
            table,
            leaves,
            damage_count: damage.map_or(0, |damage| damage.count),
            damage: damage
                .map_or_else(Vec::new, |damage| damage.first.iter().map(ToString::to_string).collect()),
        }
    }
}

impl SlotsRow {
    fn of(found: &SlotStatistics) -> SlotsRow {
        SlotsRow {
            slot_bytes: found.slot_bytes,
            value_words: found.value_ints,
            slots: found.slots,
            used: found.used,
            free: found.slots.saturating_sub(found.used),
            longest_name: found.name_bytes,
            longest_name_max: found.name_bytes_max,
        }
    }
}

impl TableRow {
    fn of(found: &FatStatistics) -> TableRow {
        TableRow {
            shift: found.table_shift,
            pointers: 1u64.checked_shl(found.table_shift).unwrap_or(0),
            block: found.table_block,
            blocks: found.table_blocks,
            growing: found.next_table_block != 0,
            next_block: found.next_table_block,
            blocks_copied: found.table_blocks_copied,
            free_block: found.free_block,
        }
    }
}

impl LeavesRow {
    fn of(found: &FatStatistics) -> LeavesRow {
        let histograms = [
            ("leaves by depth (bits of their prefix)", &found.depth),
            ("leaves by log2 of their pointers", &found.pointers),
            ("leaves by tenths of chunks used", &found.fill),
            ("leaves by entries (n to n+4)", &found.leaf_entries),
            ("entries by chunks", &found.entry_chunks),
            ("buckets by chain length", &found.chains),
        ];
        let row = |histogram, (value, count): (&u64, &u64)| HistogramRow {
            histogram,
            value: *value,
            count: *count,
        };
        let rows = |(name, counts): (&'static str, &Histogram)| {
            counts.iter().map(|pair| row(name, pair)).collect::<Vec<_>>()
        };
        LeavesRow {
            leaves: found.leaves,
            entries: found.entries,
            header_leaves: found.header_leaves,
            header_entries: found.header_entries,
            chunks: found.chunks,
            chunks_free: found.chunks_free,
            histograms: histograms.into_iter().flat_map(rows).collect(),
        }
    }
}

/// Stored bytes of the object's blocks as of the last committed txg, one copy each. Blocks below an unreadable pointer
/// are left out, and logged.
fn stored(set: &ObjectSet, object: u64, dnode: &Dnode, statistics: &Statistics) -> StoredRow {
    let fat = match &statistics.layout {
        Contents::Fat(fat) => Some(fat),
        Contents::Nothing | Contents::Slots(_) => None,
    };
    let mut row = StoredRow { leaf_stored_bytes: fat.map(|_| 0), ..StoredRow::default() };
    let is_table = |block: u64| {
        let within = |first: u64, count: u64| (first..first.saturating_add(count)).contains(&block);
        fat.is_some_and(|fat| {
            let next = if fat.next_table_block == 0 { 0 } else { fat.table_blocks.saturating_mul(2) };
            within(fat.table_block, fat.table_blocks) || within(fat.next_table_block, next)
        })
    };
    let (mut todo, mut left) = (vec![(dnode.root.clone(), 0u64)], POINTERS_MAX);
    while let Some((ptr, block)) = todo.pop() {
        left = left.saturating_sub(1);
        if left == 0 {
            log::warn!("object {object}: stored bytes of only {POINTERS_MAX} pointers are counted");
            break;
        }
        let stored = match &ptr {
            BlockPtr::Hole(_) => continue,
            BlockPtr::Embedded(_) => None,
            BlockPtr::Normal(normal) => Some(u64::from(normal.psize)),
        };
        let level = ptr.level();
        if level == 0 {
            match stored {
                None => row.embedded_blocks += 1,
                Some(bytes) => {
                    row.stored_blocks += 1;
                    row.stored_bytes += bytes;
                    if let Some(leaves) =
                        row.leaf_stored_bytes.as_mut().filter(|_| block != 0 && !is_table(block))
                    {
                        *leaves += bytes;
                    }
                }
            }
            continue;
        }
        let owner = Owner::Block { objset: set.id().0, object, level, block };
        let below = set.pool().read(&ptr, owner).map_err(|error| error.to_string()).and_then(|raw| {
            let mut below = Vec::new();
            for (index, raw) in raw.chunks_exact(BlockPtr::SIZE).enumerate() {
                let child = block.saturating_mul(dnode.pointers_per_block()).saturating_add(index as u64);
                let at = format!("object {object} level {} block {child}", level - 1);
                let ptr = BlockPtr::parse(raw, &at).map_err(|corrupt| corrupt.to_string())?;
                // Levels go down only, so the walk ends.
                if ptr.level() < level {
                    below.push((ptr, child));
                }
            }
            Ok(below)
        });
        match below {
            Ok(below) => todo.extend(below),
            Err(error) => log::error!("object {object} level {level} block {block}: {error}"),
        }
    }
    row
}

/// Blocks of a ZAP as readers see them.
#[derive(Serialize)]
pub struct ZapBlocks {
    block_bytes: usize,
    blocks: u64,
    /// The number of the first one here.
    first: u64,
    /// Hexadecimal.
    content: Vec<String>,
}

/// Blocks from `first` on, as many as an answer takes.
pub fn zap_blocks(open_pool: &OpenPool, meta: bool, object: u64, first: u64) -> Outcome<ZapBlocks> {
    let held = hold_zap(open_pool, meta, object)?;
    let store = ObjectStore::reader(&held);
    let (block_bytes, blocks) = (store.block_size(), store.block_count());
    let count = (ANSWER_BYTES / block_bytes.max(1)).max(1) as u64;
    let read = |block| {
        let content =
            store.read(block).map_err(|error| Failure(format!("object {object} block {block}: {error}")))?;
        Ok(hex::encode(&content))
    };
    let content = (first..blocks.min(first.saturating_add(count))).map(read).collect::<Outcome<Vec<_>>>()?;
    Ok(ZapBlocks { block_bytes, blocks, first, content })
}
