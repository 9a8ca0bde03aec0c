//! Data sets, snapshots and dead lists as a pool stores them, for `check` and other readers of whole pools.

use crate::chain::{part_ids, read_entries};
use crate::dataset::Dataset;
use crate::dead_list::{DeadEntry, PartInfo};
use crate::directory::RETIRED;
use crate::error::DatasetError;
use crate::free_policy::{read_snapshot, snapshots_of};
use crate::mos_zap::find_in_directory;
use crate::node::{DEAD_LIST, ORIGIN, ZAPS};
use crate::tree::{Snapshot, nodes, retired_sets};
use std::collections::BTreeSet;
use std::sync::Arc;
use terrane_object::{ObjectError, ObjectSets};
use terrane_store::PoolError;
use terrane_wire::{ObjectId, Txg};

/// A data set as stored, or one that is being freed.
#[derive(Clone, Debug)]
pub struct StoredDataset {
    /// Its path. `None`: it was destroyed, and is being freed.
    pub path: Option<String>,
    /// The object of the MOS that stands for its object set.
    pub set: ObjectId,
    /// Blocks that were born in this txg or before belong to the snapshot from which it was cloned.
    pub origin: Txg,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// First part of the dead list of its head.
    pub head_list: Option<ObjectId>,
}

impl StoredDataset {
    /// All data sets of a pool, also those that are being freed.
    pub fn all(objects: &Arc<ObjectSets>) -> Result<Vec<StoredDataset>, DatasetError> {
        let mos = objects.mos();
        let mut found = Vec::new();
        for (path, node) in nodes(mos)? {
            let origin = node.get(ORIGIN)?.map(|id| read_snapshot(mos, id)).transpose()?;
            let named = |(name, info): (Vec<u8>, _)| Snapshot {
                name: String::from_utf8_lossy(&name).into_owned(),
                info,
            };
            found.push(StoredDataset {
                path: Some(path),
                set: node.set,
                origin: origin.map_or(Txg(0), |info| info.created),
                snapshots: snapshots_of(mos, &node)?.into_iter().map(named).collect(),
                head_list: node.get(DEAD_LIST)?,
            });
        }
        for retired in retired_sets(objects)? {
            found.push(StoredDataset {
                path: None,
                set: retired.set,
                origin: retired.origin(),
                snapshots: Vec::new(),
                head_list: Some(retired.dead_list).filter(|list| *list != ObjectId(0)),
            });
        }
        Ok(found)
    }

    /// First parts of its dead lists: one for each snapshot, and that of the head.
    pub fn lists(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.snapshots.iter().map(|snapshot| snapshot.info.dead_list).chain(self.head_list)
    }

    /// The txg of the snapshot before the list with this index. Entries that were born later wait to be freed.
    pub fn before(&self, index: usize) -> Txg {
        index
            .checked_sub(1)
            .and_then(|before| self.snapshots.get(before))
            .map_or(self.origin, |before| before.info.created)
    }
}

/// A data set by its path, or why it cannot be opened.
pub type Opened = (String, Result<Dataset, DatasetError>);

/// Every data set of the tree, opened for reading.
pub fn open_all(objects: &Arc<ObjectSets>) -> Result<Vec<Opened>, DatasetError> {
    let nodes = nodes(objects.mos())?;
    Ok(nodes.into_iter().map(|(path, node)| (path, Dataset::open_to_check(objects, &node))).collect())
}

/// Parts of a dead list.
pub fn list_parts(objects: &ObjectSets, first: ObjectId) -> Result<Vec<(ObjectId, PartInfo)>, ObjectError> {
    let mos = objects.mos();
    let parts = part_ids(mos, first)?;
    let info = |id: ObjectId| Ok((id, PartInfo::parse(&mos.hold(id)?.bonus(), id).map_err(PoolError::from)?));
    parts.into_iter().map(info).collect()
}

/// Calls `each` for every entry in a part of a dead list.
pub fn each_dead_entry(
    objects: &ObjectSets,
    part: ObjectId,
    each: &mut dyn FnMut(&DeadEntry),
) -> Result<(), ObjectError> {
    let mos = objects.mos();
    for block in 0..mos.hold(part)?.block_count() {
        read_entries(mos, part, block)?.iter().for_each(&mut *each);
    }
    Ok(())
}

/// Objects of the meta object set that belong to the tree of data sets, beside the queues of their object sets.
pub fn objects_of_tree(objects: &Arc<ObjectSets>) -> Result<BTreeSet<ObjectId>, DatasetError> {
    let mos = objects.mos();
    let mut found = BTreeSet::new();
    for (_, node) in nodes(mos)? {
        found.extend([node.set, node.props]);
        found.extend(node.id());
        for name in ZAPS {
            found.extend(node.get(name)?);
        }
        found.extend(snapshots_of(mos, &node)?.into_iter().map(|(_, info)| info.id));
    }
    found.extend(find_in_directory(mos, RETIRED)?);
    for dataset in StoredDataset::all(objects)? {
        found.insert(dataset.set);
        for list in dataset.lists() {
            found.extend(part_ids(mos, list)?);
        }
    }
    Ok(found)
}
