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
//! Modules, in reading order: [`report`], `walk` (blocks), `space` (zones), `attributes` (inodes), `rules`
//! (objects and names), `features` (uses), and `rebuild`, which needs only the walk.
//!
//! Invariants:
//! * Nothing is changed.
//! * No content of a device causes a panic or an endless loop.
//! * Memory is 16 bytes for each stored copy of a block, 8 for each indirect block, 48 for each object, 16
//!   for each hidden directory. To that comes one zone's directory, and a report of bounded length.

#![deny(missing_docs)]
// It reads untrusted data. (Blocks were verified by then, but forged content can have a correct checksum.)
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::disallowed_methods))]

pub mod attributes;
mod features;
mod rebuild;
pub mod report;
mod rules;
mod space;
pub mod usage;
mod walk;

pub use rebuild::rebuild_index;
pub use report::{Counts, Finding, Progress, Report, Stage, kind};

use rules::ObjectChecker;
use std::sync::Arc;
use terrane_dataset::{Dataset, open_any_set};
use terrane_object::{ObjectKind, ObjectSets};
use walk::Walk;

/// Checks an imported pool as of its last committed txg. Nothing may change it meanwhile, and nothing may be
/// dirty. `progress` is called about once per MiB.
pub fn check(objects: &Arc<ObjectSets>, progress: &mut dyn FnMut(Progress)) -> Report {
    let mut report = Report::default();
    let pool = objects.pool();
    let dataset = Dataset::open_root(objects);
    if let Err(error) = &dataset {
        report.add(kind::ROOT_DATASET, "meta object set", "one that can be opened", error);
    }
    let dataset = dataset.ok();
    let root_set = dataset.as_ref().map(|dataset| dataset.object_set().id().0);

    let layouts = dataset.as_ref().and_then(|dataset| match attributes::load_layouts(dataset) {
        Ok(layouts) => layouts,
        Err(found) => {
            report.add(kind::ATTRIBUTES, "SA layouts", "readable", found);
            None
        }
    });

    let mut walk = Walk::new(pool, &mut report, progress);
    walk.walk_bootstrap();
    let mut meta = ObjectChecker::new(objects.mos(), None);
    let mut sets = Vec::new();
    walk.walk_objset(objects.mos(), &mut |report, id, dnode| {
        if dnode.kind == ObjectKind::Objset {
            sets.push(id);
        }
        meta.add_object(report, id, dnode)
    });
    let mut checker = None;
    for id in sets {
        let set = match open_any_set(objects, id) {
            Ok(set) => set,
            Err(error) => {
                walk.report.add(kind::UNREADABLE, format_args!("object set {id}"), "a header", error);
                continue;
            }
        };
        let layouts = layouts.clone().filter(|_| root_set == Some(id.0));
        let mut found = ObjectChecker::new(&set, layouts);
        walk.walk_objset(&set, &mut |report, id, dnode| found.add_object(report, id, dnode));
        if root_set == Some(id.0) {
            checker = Some(found);
        }
    }
    space::check_space(pool, &mut walk);
    meta.check_pool_directory(walk.report, objects);
    if let (Some(mut checker), Some(dataset)) = (checker, &dataset) {
        checker.check(dataset, &mut walk);
    }
    features::check_features(objects, &mut report);
    report
}
