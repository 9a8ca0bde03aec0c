//! What must hold of a whole pool.
//!
//! Operations judge what they touch. A check reads everything that the roots reach, and asks three parties the same questions:
//! the trees (which blocks are there, whose, how large), the zone tables (how much of each zone is alive), and the
//! zones' own directories (what was written there). Then it looks at the names: whether every one leads to
//! something, and everything has one.
//!
//! Rooms, in reading order: [`report`], `walk` (blocks), `space` (zones), `attributes` (inodes), `rules`
//! (objects and names), and `rebuild`, which needs only the first of it.
//!
//! Invariants: nothing is changed; nothing that a device says makes it panic or go on for ever; memory is 16 bytes for each
//! stored copy of a block, 8 for each indirect block, 48 for each object, 16 for each hidden directory, one zone's
//! directory, and a report of bounded length.

// It reads what may lie. (Blocks were verified by then, but a checksum can be right over a lie.)
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

pub mod attributes;
mod rebuild;
pub mod report;
mod rules;
mod space;
pub mod usage;
mod walk;

pub use rebuild::rebuild_index;
pub use report::{Counts, Finding, Phase, Progress, Report, kind};

use rules::Names;
use std::sync::Arc;
use terrane_dataset::{Dataset, open_set};
use terrane_object::{ObjectKind, Objects};
use walk::Walk;

/// Checks an imported pool as of its last committed group. Nothing may change it meanwhile, and nothing may be dirty.
/// `progress` is called about once for each MiB.
pub fn check(objects: &Arc<Objects>, progress: &mut dyn FnMut(Progress)) -> Report {
    let mut report = Report::default();
    let pool = objects.pool();
    let dataset = Dataset::open_root(objects);
    if let Err(error) = &dataset {
        report.add(kind::ROOT_DATASET, "meta object set", "one that can be opened", error);
    }
    let dataset = dataset.ok();
    let root_set = dataset.as_ref().map(|dataset| dataset.objects().id().0);

    let layouts = dataset.as_ref().and_then(|dataset| match attributes::load_layouts(dataset) {
        Ok(layouts) => layouts,
        Err(found) => {
            report.add(kind::ATTRIBUTES, "SA layouts", "readable", found);
            None
        }
    });

    let mut walk = Walk::new(pool, &mut report, progress);
    walk.bootstrap();
    let mut meta = Names::new(objects.mos(), None);
    let mut sets = Vec::new();
    walk.objset(objects.mos(), &mut |report, id, dnode| {
        if dnode.kind == ObjectKind::Objset {
            sets.push(id);
        }
        meta.note(report, id, dnode)
    });
    let mut names = None;
    for id in sets {
        let set = match open_set(objects, id) {
            Ok(set) => set,
            Err(error) => {
                walk.report.add(kind::UNREADABLE, format_args!("object set {id}"), "a header", error);
                continue;
            }
        };
        let layouts = layouts.clone().filter(|_| root_set == Some(id.0));
        let mut found = Names::new(&set, layouts);
        walk.objset(&set, &mut |report, id, dnode| found.note(report, id, dnode));
        if root_set == Some(id.0) {
            names = Some(found);
        }
    }
    space::check(pool, &mut walk);
    meta.check_pool_directory(walk.report, objects);
    if let (Some(mut names), Some(dataset)) = (names, &dataset) {
        names.check(dataset, &mut walk);
    }
    report
}
