//! Compares what the tables of owners say with the sums over all objects.

use crate::report::{Report, kind};
use std::collections::BTreeMap;
use terrane_dataset::quota::table_counts;
use terrane_object::dnode::Dnode;
use terrane_object::owner_header::OwnerEpoch;
use terrane_object::owners::{OwnerChange, OwnerCount};
use terrane_object::{ObjectSet, OwnerKind};
use terrane_wire::ObjectId;

/// Sums over the objects of one set.
pub(crate) struct OwnerSums {
    /// `None`: the set has no tables.
    epoch: Option<OwnerEpoch>,
    sums: [BTreeMap<u32, OwnerCount>; 3],
    /// Objects that should be counted, and are not.
    pub uncounted: u64,
}

impl OwnerSums {
    pub fn new(set: &ObjectSet) -> OwnerSums {
        OwnerSums { epoch: set.owner_epoch(), sums: Default::default(), uncounted: 0 }
    }

    /// Takes an object as the walk meets it.
    pub fn add(&mut self, report: &mut Report, set: &ObjectSet, id: ObjectId, dnode: &Dnode) {
        let owners = set.owners_of(dnode.kind, &dnode.bonus);
        let is_counted = self.epoch.is_some_and(|epoch| epoch.epoch == dnode.owner_epoch);
        let (Some(owners), true) = (owners, is_counted) else {
            if owners.is_some() && self.epoch.is_some_and(|epoch| epoch.is_complete) {
                let at = format_args!("object set {} object {id}", set.id());
                report.add(kind::OWNERS, at, "counted for its owners", "not counted");
                self.uncounted += 1;
            }
            return;
        };
        for (sums, (_, owner)) in self.sums.iter_mut().zip(owners.ids()) {
            let sum = sums.entry(owner).or_default();
            (*sum, _) = sum.after(&OwnerChange { bytes: dnode.used.into(), objects: 1 });
        }
    }

    /// Compares the sums with the tables.
    pub fn check(&self, report: &mut Report, set: &ObjectSet) {
        // The tables of a set that is being destroyed wait in its free queue, with its objects.
        if self.epoch.is_none() || set.root().is_hole() {
            return;
        }
        for (owner, sums) in OwnerKind::ALL.into_iter().zip(&self.sums) {
            let at = format!("object set {} table of {owner:?} ids", set.id());
            let stored = match table_counts(set, owner) {
                Ok(stored) => stored,
                Err(error) => {
                    report.add(kind::UNREADABLE, at, "a table", error);
                    continue;
                }
            };
            let ids = sums.keys().chain(stored.keys().filter(|id| !sums.contains_key(id)));
            for id in ids {
                let count = |all: &BTreeMap<u32, OwnerCount>| {
                    let OwnerCount { bytes, objects } = all.get(id).copied().unwrap_or_default();
                    format!("{bytes} bytes, {objects} objects")
                };
                report.expect(kind::OWNERS, format_args!("{at}, id {id}"), count(sums), count(&stored));
            }
        }
    }
}
