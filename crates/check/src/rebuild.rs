//! Rebuilds the zone tables of a pool that has lost them.
//!
//! The pool finds its blocks by the zone directories and treats all of them as live. Then the trees can be
//! walked, and the blocks that they reach are the live ones. With that list the pool is imported again for
//! writing, and stores its tables.
//!
//! Invariant: nothing is written unless every tree could be walked to its leaves, because blocks that are not
//! reached are freed.

use crate::report::{Progress, Report, kind};
use crate::snapshots::check_snapshots;
use crate::walk::{History, Walk};
use std::sync::Arc;
use terrane_dataset::open_any_set;
use terrane_dataset::stored::StoredDataset;
use terrane_device::Device;
use terrane_object::{ObjectKind, ObjectSets};
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
    let reached = ObjectSets::open(Arc::clone(&pool))
        .map_err(|error| error.to_string())
        .and_then(|objects| collect_reached(&objects, progress));
    let name = pool.name();
    pool.abandon();
    drop(pool);
    let mut reached = reached.map_err(|found| {
        PoolError::refused(
            format_args!("pool {name}"),
            "trees readable down to their leaves",
            found,
            "nothing was changed; restore the missing blocks or devices, or copy the readable files",
        )
    })?;
    reached.sort_unstable();
    // Shared blocks are reached several times.
    reached.dedup_by_key(|(addr, _)| *addr);
    let index = IndexSource::Reached(Arc::new(reached));
    let written = ImportOptions { read_only: false, index, ..options.clone() };
    Pool::import(devices.to_vec(), Arc::clone(env), &written)?.export()
}

/// Every stored copy that the roots reach; or the finding that stops the walk.
fn collect_reached(
    objects: &Arc<ObjectSets>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<(terrane_format::Addr, u32)>, String> {
    let mut report = Report::default();
    let stored = StoredDataset::all(objects).map_err(|error| format!("data sets: {error}"))?;
    let mut walk = Walk::new(objects.pool(), &mut report, progress);
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
    let found = walk.reached.iter().map(|reached| (reached.addr(), reached.psize())).collect();
    // A finding that was not kept could be one of them too.
    let is_truncated = report.findings_count > report.findings.len() as u64;
    match report.findings.iter().find(|finding| is_truncated || STOPPING_KINDS.contains(&finding.kind)) {
        Some(finding) => Err(finding.to_string()),
        None => Ok(found),
    }
}
