//! Checks the consistency of a whole pool.
//!
//! Operations verify what they touch. A check reads everything that the roots reach, and compares three
//! sources:
//! * the trees: which blocks exist, their owners and sizes;
//! * the zone tables: how much of each zone is live;
//! * the zones' own directories: what was written.
//!
//! Then it checks the names: every name leads to an object, and every object has a name.
//!
//! Modules, in reading order: [`report`], `walk` (blocks), `snapshots` (blocks that only snapshots keep), `space` (zones), `attributes`
//! (inodes), `rules` (objects and names), `owners` (sums by owner), `features` (uses), and `rebuild`, which needs only
//! the walk.
//!
//! Invariants:
//! * Nothing is changed.
//! * No content of a device causes a panic or an endless loop.
//! * Memory is 16 bytes for each stored copy of a block, 8 for each indirect block, 48 for each object, 16
//!   for each hidden directory. To that comes one zone's directory, and a report of bounded length.

#![deny(missing_docs)]
// It reads untrusted data. (Blocks were verified by then, but forged content can have a correct checksum.)
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::disallowed_methods))]

mod ahead;
pub mod attributes;
mod features;
mod owners;
mod rebuild;
pub mod report;
mod rules;
mod snapshots;
mod space;
pub mod usage;
mod walk;

pub use rebuild::rebuild_index;
pub use report::{Counts, Finding, Progress, Report, Stage, kind};

use owners::OwnerSums;
use rules::ObjectChecker;
use snapshots::check_snapshots;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_dataset::open_any_set;
use terrane_dataset::stored::{self, StoredDataset};
use terrane_format::Feature;
use terrane_object::{ObjectKind, ObjectSets};
use terrane_wire::ObjectId;
use walk::{History, Walk};

/// Checks an imported pool as of its last committed txg. Nothing may change it meanwhile, and nothing may be
/// dirty. `progress` is called about once per MiB.
pub fn check(objects: &Arc<ObjectSets>, progress: &mut dyn FnMut(Progress)) -> Report {
    let mut report = Report::default();
    let pool = objects.pool();
    let opened = stored::open_all(objects).unwrap_or_else(|error| {
        report.add(kind::ROOT_DATASET, "meta object set", "one that can be opened", error);
        Vec::new()
    });
    let mut datasets = BTreeMap::new();
    for (path, opened) in opened {
        match opened {
            Ok(dataset) => drop(datasets.insert(dataset.object_set().id().0, dataset)),
            Err(error) => report.add(
                kind::ROOT_DATASET,
                format_args!("data set /{path}"),
                "one that can be opened",
                error,
            ),
        }
    }
    let stored = StoredDataset::all(objects).unwrap_or_else(|error| {
        report.add(kind::DATASETS, "meta object set", "readable", error);
        Vec::new()
    });
    let find = |id: ObjectId| stored.iter().find(|dataset| dataset.set == id);

    let mut walk = Walk::new(pool, &mut report, progress);
    walk.walk_bootstrap();
    let mut meta = ObjectChecker::new(objects.mos(), None);
    let mut sets = Vec::new();
    walk.walk_objset(objects.mos(), History::default(), &mut |report, id, dnode| {
        if dnode.kind == ObjectKind::Objset {
            sets.push(id);
        }
        meta.add_object(report, id, dnode)
    });
    let mut checkers = Vec::new();
    for id in sets {
        let set = match open_any_set(objects, id) {
            Ok(set) => set,
            Err(error) => {
                walk.report.add(kind::UNREADABLE, format_args!("object set {id}"), "a header", error);
                continue;
            }
        };
        let dataset = datasets.get(&id.0);
        let layouts = dataset.and_then(|dataset| match attributes::load_layouts(dataset) {
            Ok(layouts) => layouts,
            Err(found) => {
                walk.report.add(kind::ATTRIBUTES, "SA layouts", "readable", found);
                None
            }
        });
        let mut found = ObjectChecker::new(&set, layouts);
        let history = History::of(objects, id, find(id));
        let from = walk.reached.len();
        let mut sums = OwnerSums::new(&set);
        let findings = walk.report.findings_count;
        walk.walk_objset(&set, history, &mut |report, id, dnode| {
            sums.add(report, &set, id, dnode);
            found.add_object(report, id, dnode)
        });
        // Objects that could not be walked were not summed up.
        if walk.report.findings_count == findings.saturating_add(sums.uncounted) {
            sums.check(walk.report, &set);
        }
        if let Some(stored) = find(id).filter(|stored| stored.lists().next().is_some()) {
            let reached = walk.reached.get(from..).unwrap_or(&[]);
            let firsts = reached.iter().filter(|reached| !reached.is_clone());
            let head = firsts.map(|reached| reached.addr()).collect();
            check_snapshots(objects, stored, (&head, set.is_freeing().is_some()), &mut walk);
        }
        if dataset.is_some() {
            checkers.push((id.0, found));
        }
    }
    let shared = objects.shared();
    if shared.object().is_some() {
        walk.report.add_use(Feature::Shared);
    }
    space::check_space(pool, shared, &mut walk);
    meta.check_pool_directory(walk.report, objects);
    for (id, mut checker) in checkers {
        if let Some(dataset) = datasets.get(&id) {
            checker.check(dataset, &mut walk);
        }
    }
    features::check_features(objects, &mut report);
    report
}
