//! Data sets, snapshots and dead lists as a pool stores them, for `check` and other readers of whole pools.

use crate::chain;
use crate::dataset::Dataset;
use crate::dead_list::{DeadEntry, PartInfo};
pub use crate::dead_list::{encode_blocks as encode_dead_entries, parse_block as parse_dead_entries};
use crate::directory::RETIRED;
use crate::error::DatasetError;
use crate::free_policy::{read_snapshot, snapshots_of};
use crate::mos_zap::find_in_directory;
use crate::node::{CLONES, DEAD_LIST, ORIGIN, ORIGIN_NODE, ZAPS};
use crate::tree::{Snapshot, is_valid_name, nodes, retired_sets};
pub use crate::tree::{retired_in_key, snapshot_in_key};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrane_object::{ObjectError, ObjectKind, ObjectSets};
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

    /// Its name for messages.
    pub fn name(&self) -> String {
        match &self.path {
            Some(path) => format!("data set /{path}"),
            None => format!("destroyed object set {}", self.set),
        }
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
    chain::list_parts(objects.mos(), first)
}

/// Calls `each` for every entry in a part of a dead list.
pub fn each_dead_entry(
    objects: &ObjectSets,
    part: ObjectId,
    each: &mut dyn FnMut(&DeadEntry),
) -> Result<(), ObjectError> {
    chain::each_entry(objects.mos(), part, each)
}

/// An object of the MOS that the tree of data sets names.
#[derive(Clone, Debug)]
pub struct NamedObject {
    /// Its number.
    pub id: ObjectId,
    /// The kind that it must have.
    pub kind: ObjectKind,
    /// What names it.
    pub by: String,
}

/// Objects of the MOS that belong to the tree of data sets. No object must be in it twice.
pub fn objects_of_tree(objects: &Arc<ObjectSets>) -> Result<Vec<NamedObject>, DatasetError> {
    let mos = objects.mos();
    let mut found = Vec::new();
    let mut add = |id: ObjectId, kind: ObjectKind, by: String| found.push(NamedObject { id, kind, by });
    for (path, node) in nodes(mos)? {
        let of_node = format!("the node of data set /{path}");
        add(node.props, ObjectKind::Zap, of_node.clone());
        node.id()
            .into_iter()
            .for_each(|id| add(id, ObjectKind::Zap, format!("the parent of data set /{path}")));
        for name in ZAPS {
            node.get(name)?.into_iter().for_each(|id| add(id, ObjectKind::Zap, of_node.clone()));
        }
    }
    let retired = find_in_directory(mos, RETIRED)?;
    retired.into_iter().for_each(|id| add(id, ObjectKind::Zap, "the pool directory".to_string()));
    for dataset in StoredDataset::all(objects)? {
        let of_set = dataset.name();
        add(dataset.set, ObjectKind::Objset, of_set.clone());
        // A set whose identity cannot be read cannot be opened.
        let identity = objects.identity(dataset.set).ok().flatten();
        identity.into_iter().for_each(|known| add(known.free_queue, ObjectKind::FreeQueue, of_set.clone()));
        for snapshot in &dataset.snapshots {
            add(snapshot.info.id, ObjectKind::Snapshot, format!("{of_set}, snapshot {}", snapshot.name));
        }
        for list in dataset.lists() {
            let parts = chain::list_parts(mos, list)?;
            parts.iter().for_each(|(part, _)| add(*part, ObjectKind::DeadList, of_set.clone()));
        }
    }
    Ok(found)
}

/// Two facts about the tree of data sets that contradict each other.
#[derive(Clone, Debug)]
pub struct Contradiction {
    /// Where.
    pub at: String,
    /// What follows from other entries.
    pub expected: String,
    /// What is stored.
    pub found: String,
}

/// Finds invalid names, wrong origins and wrong counts of clones.
pub fn contradictions(objects: &Arc<ObjectSets>) -> Result<Vec<Contradiction>, DatasetError> {
    let mos = objects.mos();
    let nodes = nodes(mos)?;
    let mut owners: BTreeMap<ObjectId, Option<ObjectId>> = BTreeMap::new();
    let mut clones: BTreeMap<ObjectId, u64> = BTreeMap::new();
    for (_, node) in &nodes {
        owners.extend(snapshots_of(mos, node)?.into_iter().map(|(_, info)| (info.id, node.id())));
        node.get(ORIGIN)?.into_iter().for_each(|origin| *clones.entry(origin).or_default() += 1);
    }
    let mut found = Vec::new();
    let mut expect = |at: String, what: &str, expected: String, stored: String| {
        if expected != stored {
            let (expected, found_here) = (format!("{what} {expected}"), format!("{what} {stored}"));
            found.push(Contradiction { at, expected, found: found_here });
        }
    };
    for (path, node) in &nodes {
        let at = || format!("data set /{path}");
        let own_name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
        if !path.is_empty() && !is_valid_name(own_name) {
            expect(at(), "name", "a valid one".to_string(), format!("{own_name:?}"));
        }
        let (origin, origin_node) = (node.get(ORIGIN)?, node.get(ORIGIN_NODE)?);
        let owner = origin.and_then(|origin| owners.get(&origin).copied().flatten());
        let text = |id: Option<ObjectId>| id.map_or("none".to_string(), |id| format!("object {id}"));
        expect(at(), "origin node", text(owner), text(origin_node));
        let mut counts = BTreeMap::new();
        for (name, info) in snapshots_of(mos, node)? {
            let name = String::from_utf8_lossy(&name).into_owned();
            if !is_valid_name(&name) {
                expect(at(), "snapshot", "with a valid name".to_string(), format!("{name:?}"));
            }
            counts.extend(clones.get(&info.id).map(|count| (info.id.to_string(), *count)));
        }
        let mut stored = BTreeMap::new();
        for entry in node.zap_of(CLONES)?.map(|zap| zap.entries()).transpose()?.unwrap_or_default() {
            let name = entry.key.name().map(String::from_utf8_lossy).unwrap_or_default();
            stored.insert(name.into_owned(), entry.value.first_integer().unwrap_or(0));
        }
        expect(at(), "counts of clones", format!("{counts:?}"), format!("{stored:?}"));
    }
    Ok(found)
}
