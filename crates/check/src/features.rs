//! Checks that what is stored uses only active features, and that stored numbers of uses are right.
//!
//! The walk has counted uses by blocks and objects. What the pool uses as a whole is added here.

use crate::report::{Report, kind};
use std::sync::Arc;
use terrane_dataset::stored::StoredDataset;
use terrane_format::Feature;
use terrane_format::features::{FEATURES, FeatureState};
use terrane_object::{ObjectKind, ObjectSets};

/// Compares the uses in a report with the label, and with the stored counts. It runs last: uses in an unreadable
/// part cannot be counted.
pub(crate) fn check_features(objects: &Arc<ObjectSets>, report: &mut Report) {
    let pool = objects.pool();
    let label = pool.label();
    let is_active = |feature| label.features.is_active(feature);
    let mut identified = 0;
    objects.mos().for_each_dnode(&mut |id, dnode| {
        let is_set = dnode.kind == ObjectKind::Objset;
        identified += u64::from(is_set && objects.identity(id).is_ok_and(|identity| identity.is_some()));
    });
    // A tree that cannot be read was reported.
    let stored = StoredDataset::all(objects).unwrap_or_default();
    let is_use =
        |dataset: &&StoredDataset| dataset.path.as_deref() != Some("") || dataset.head_list.is_some();
    let uses_of_tree = stored.iter().filter(is_use).count() as u64;
    let of_pool = [
        (Feature::Naming, u64::from(is_active(Feature::Naming))),
        (Feature::Totals, u64::from(is_active(Feature::Totals))),
        (Feature::Devices, if is_active(Feature::Devices) { label.members().count() as u64 } else { 0 }),
        (Feature::Tallies, pool.tallied_runs()),
        (Feature::Caches, label.caches.len() as u64),
        (Feature::Identity, u64::from(is_active(Feature::Identity))),
        (Feature::Rows, u64::from(if is_active(Feature::Rows) { label.sections } else { 0 })),
        (Feature::Datasets, identified),
        (Feature::Snapshots, uses_of_tree),
    ];
    report.uses.extend(of_pool);
    // What is damaged may look like a use, or hide one.
    let is_whole = report.is_clean();
    for row in FEATURES {
        let found = report.uses.entry(row.feature).or_default();
        let (found, state) = (*found, label.features.state(row.feature));
        let at = format!("feature {}", row.name);
        if is_whole && found > 0 && state != FeatureState::Active {
            let found = format_args!("{}, and in use {found} times ({})", state.name(), row.use_noun);
            report.add(kind::FEATURE, &at, "active in the labels, or not in use", found);
        }
        if let Some(stored) = pool.uses(row.feature).filter(|stored| is_whole && *stored != found) {
            let expected = format_args!("stored with {found} uses ({})", row.use_noun);
            report.add(kind::FEATURE, &at, expected, stored);
        }
    }
}
