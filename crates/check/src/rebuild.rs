//! Rebuilds what a pool can find out about itself: zone tables, and the table of shared blocks.
//!
//! The pool finds its blocks by the zone directories and treats all of them as live. Then the trees can be
//! walked, and the blocks that they reach are the live ones. With that list the pool is imported again for
//! writing, and stores its tables.
//!
//! A block is shared if several pointers lead to it. If the table of shared blocks does not say so of the same blocks,
//! or cannot be read, it is replaced.
//!
//! Invariant: nothing is written unless every tree could be walked to its leaves, because blocks that are not
//! reached are freed.

use crate::report::{Finding, Progress, Report, kind};
use crate::snapshots::check_snapshots;
use crate::walk::{History, Reached, Walk};
use std::sync::Arc;
use terrane_dataset::open_any_set;
use terrane_dataset::stored::StoredDataset;
use terrane_device::Device;
use terrane_format::{Addr, granule_bytes};
use terrane_object::shared::{SharedBlock, SharedTable, SharedTotals};
use terrane_object::{ObjectError, ObjectKind, ObjectSets};
use terrane_pool::{ImportOptions, IndexSource, Pool};
use terrane_store::PoolError;
use terrane_store::env::Env;

/// Findings that end a walk before the leaves.
const STOPPING_KINDS: [&str; 3] = [kind::UNREADABLE, kind::LEVEL, kind::BLOCK_SIZE];

/// Rebuilds the tables of the pool on these devices, and exports it. Takes as long as reading all of it
/// twice.
///
/// # Errors
/// If the pool cannot be found or written; or the first finding that stops the walk: then nothing was
/// changed.
pub fn rebuild_index(
    devices: &[Arc<dyn Device>],
    env: &Arc<dyn Env>,
    options: &ImportOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), PoolError> {
    let scanned = ImportOptions { read_only: true, index: IndexSource::Scanned, ..options.clone() };
    let pool = Pool::import(devices.to_vec(), Arc::clone(env), &scanned)?;
    let found = ObjectSets::open(Arc::clone(&pool))
        .map_err(|error| error.to_string())
        .and_then(|objects| collect_reached(&objects, progress));
    let name = pool.name();
    pool.abandon();
    drop(pool);
    let Found { reached, shared } = found.map_err(|found| {
        PoolError::refused(
            format_args!("pool {name}"),
            "trees readable down to their leaves",
            found,
            "nothing was changed; restore the missing blocks or devices, or copy the readable files",
        )
    })?;
    let index = IndexSource::Reached(Arc::new(reached));
    let written = ImportOptions { read_only: false, index, ..options.clone() };
    let pool = Pool::import(devices.to_vec(), Arc::clone(env), &written)?;
    // Kept until the export, which syncs them.
    let replaced =
        shared.map(|shared| ObjectSets::open_replacing_shared(Arc::clone(&pool), shared)).transpose();
    match replaced {
        Ok(_objects) => pool.export(),
        Err(error) => {
            pool.abandon();
            Err(match error {
                ObjectError::Pool(error) => error,
                other => PoolError::Failed { reason: other.to_string().into() },
            })
        }
    }
}

/// What the roots reach.
struct Found {
    /// Every stored copy, once, by ascending address.
    reached: Vec<(Addr, u32)>,
    /// All shared blocks, if the table must be replaced.
    shared: Option<Vec<SharedBlock>>,
}

/// Everything that the roots reach; or the finding that stops the walk.
fn collect_reached(objects: &Arc<ObjectSets>, progress: &mut dyn FnMut(Progress)) -> Result<Found, String> {
    let mut report = Report::default();
    let stored = StoredDataset::all(objects).map_err(|error| format!("data sets: {error}"))?;
    let mut walk = Walk::new(objects.pool(), &mut report, progress);
    // It is replaced then.
    walk.shared_table_findings = Some(0);
    walk.walk_bootstrap();
    let mut sets = Vec::new();
    walk.walk_objset(objects.mos(), History::default(), &mut |_, id, dnode| {
        if dnode.kind == ObjectKind::Objset {
            sets.push(id);
        }
        false
    });
    for id in sets {
        let set = open_any_set(objects, id).map_err(|error| format!("object set {id}: {error}"))?;
        let stored = stored.iter().find(|dataset| dataset.set == id);
        let from = walk.reached.len();
        walk.walk_objset(&set, History::of(objects, id, stored), &mut |_, _, _| false);
        if let Some(stored) = stored.filter(|stored| stored.lists().next().is_some()) {
            let reached = walk.reached.get(from..).unwrap_or(&[]);
            let firsts = reached.iter().filter(|reached| !reached.is_clone());
            let head = firsts.map(|reached| reached.addr()).collect();
            check_snapshots(objects, stored, (&head, set.is_freeing().is_some()), &mut walk);
        }
    }
    let mut all = std::mem::take(&mut walk.reached);
    let is_table_whole = walk.shared_table_findings == Some(0);
    // A finding that was not kept could be one of them too.
    let is_truncated = report.findings_count > report.findings.len() as u64;
    let stopping = |finding: &&Finding| is_truncated || STOPPING_KINDS.contains(&finding.kind);
    if let Some(finding) = report.findings.iter().find(stopping) {
        return Err(finding.to_string());
    }
    all.sort_unstable_by_key(|reached| (reached.addr(), reached.is_clone(), reached.is_rounded()));
    let shared = shared_blocks(&all)?;
    let stays = is_table_whole && is_in_table(&shared, objects.shared());
    let shared = (!stays).then_some(shared);
    let mut reached: Vec<(Addr, u32)> = all.iter().map(|reached| (reached.addr(), reached.psize())).collect();
    reached.dedup_by_key(|(addr, _)| *addr);
    Ok(Found { reached, shared })
}

/// The blocks that several pointers lead to.
fn shared_blocks(all: &[Reached]) -> Result<Vec<SharedBlock>, String> {
    let mut shared = Vec::new();
    for pointers in all.chunk_by(|a, b| a.addr() == b.addr()) {
        let [first, others @ ..] = pointers else { continue };
        if let Some(other) = others.iter().find(|other| !other.is_clone()) {
            return Err(format!(
                "block born at {}: two pointers that are no clones lead to it",
                other.addr()
            ));
        }
        if !others.is_empty() {
            let bytes = granule_bytes(u64::from(first.psize()));
            shared.push(SharedBlock { addr: first.addr(), extra: others.len() as u64, bytes });
        }
    }
    Ok(shared)
}

/// Whether the table has these blocks and no others.
fn is_in_table(shared: &[SharedBlock], table: &SharedTable) -> bool {
    let mut stored = Vec::new();
    let unreadable = table.for_each(&mut |addr, extra| stored.push((addr, extra)));
    let bytes = |block: &SharedBlock| block.bytes;
    let counted = SharedTotals {
        blocks: shared.len() as u64,
        references: shared.iter().map(|block| block.extra).sum(),
        block_bytes: shared.iter().map(bytes).sum(),
        saved_bytes: shared
            .iter()
            .map(|block| block.bytes.saturating_mul(block.extra))
            .fold(0, u64::saturating_add),
    };
    table.unusable().is_none()
        && unreadable.is_empty()
        && table.totals() == counted
        && stored.into_iter().eq(shared.iter().map(|block| (block.addr, block.extra)))
}
