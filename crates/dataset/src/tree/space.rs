//! The space of data sets and snapshots, counted from dead lists.

use super::Datasets;
use super::snapshots::Snapshot;
use crate::chain::Chain;
use crate::dead_list::PartInfo;
use crate::error::DatasetError;
use crate::free_policy::read_snapshot;
use crate::node::{DEAD_LIST, Node, ORIGIN};
use crate::stored::{StoredDataset, each_dead_entry, list_parts};
use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};
use terrane_object::ObjectError;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Txg};

/// How often a query reads dead lists again after a sync changed them meanwhile, before no txg may sync while it reads.
const READS_MAX: usize = 3;

/// Space of a data set and its snapshots, in bytes on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Bytes that the head refers to.
    pub referenced: u64,
    /// Bytes of the head that would be freed if the data set were destroyed with its snapshots.
    pub by_dataset: u64,
    /// Bytes that would be freed if all snapshots were destroyed.
    pub by_snapshots: u64,
    /// Bytes that the head refers to and the newest snapshot does not.
    pub written: u64,
    /// Snapshots, oldest first.
    pub snapshots: Vec<SnapshotUsage>,
    /// Destroyed snapshots are still being freed, so some figures are not exact.
    pub is_counting: bool,
}

/// Space of a snapshot, in bytes on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// Its name in its data set.
    pub name: String,
    /// Bytes that would be freed if only this snapshot were destroyed.
    pub used: u64,
    /// Bytes that it refers to.
    pub referenced: u64,
    /// Bytes that it refers to and the snapshot before it does not.
    pub written: u64,
}

impl Datasets {
    /// Space of a data set and its snapshots, as of the last commit.
    pub fn space(&self, path: &str) -> Result<SpaceUsage, DatasetError> {
        self.read_lists(&|| self.space_now(path))
    }

    fn space_now(&self, path: &str) -> Result<SpaceUsage, DatasetError> {
        let tree = self.tree.lock();
        let node = self.node(path)?;
        let set = self.open_head(path, &node)?;
        let chain = Chain::of(&set).map(|chain| chain.usage()).transpose()?.unwrap_or_default();
        let referenced =
            set.account().unwrap_or_default().used_bytes.saturating_add(set.root().allocated_bytes());
        let stored = self.stored(path, &node)?;
        let origin = node.get(ORIGIN)?.map(|id| read_snapshot(self.objects.mos(), id)).transpose()?;
        let parts = self.parts_of(&stored)?;
        drop(tree);
        let lists = self.list_sums(&stored, parts)?;
        let mut usage = SpaceUsage { referenced, is_counting: chain.is_counting, ..SpaceUsage::default() };
        let mut before = origin.map_or(0, |info| info.referenced_bytes());
        let shared_at_first = before;
        for (snapshot, list) in stored.snapshots.iter().zip(&lists) {
            let referenced = snapshot.info.referenced_bytes();
            usage.snapshots.push(SnapshotUsage {
                name: snapshot.name.clone(),
                used: chain.unique.get(&snapshot.info.created).copied().unwrap_or(0),
                referenced,
                written: referenced.saturating_add(list.all).saturating_sub(before),
            });
            before = referenced;
        }
        let head_list = lists.get(stored.snapshots.len()).copied().unwrap_or_default();
        usage.written = referenced.saturating_add(head_list.all).saturating_sub(before);
        // Entries that are not younger than the origin left the head, and belong to the origin.
        let sum = |of_list: &dyn Fn(&ListSums) -> u64| lists.iter().map(of_list).fold(0, u64::saturating_add);
        let of_origin = sum(&|list| list.of_origin);
        usage.by_snapshots = sum(&|list| list.all - list.of_origin);
        usage.by_dataset = referenced.saturating_sub(shared_at_first.saturating_sub(of_origin));
        Ok(usage)
    }

    /// Reads dead lists. A sync may destroy a part while it is being read. Then this waits for the sync and reads again, and at last keeps
    /// the next txg from syncing.
    fn read_lists<T>(&self, read: &dyn Fn() -> Result<T, DatasetError>) -> Result<T, DatasetError> {
        for _ in 0..READS_MAX {
            match read() {
                Err(DatasetError::Object(_)) => {
                    self.objects.pool().wait_for_sync().map_err(ObjectError::from)?;
                }
                outcome => return outcome,
            }
        }
        // While something is destroyed, one txg follows the other.
        let tx = self.objects.mos().begin(Cost::NOTHING);
        if let Ok(tx) = &tx {
            tx.pool().wait_for_sync().map_err(ObjectError::from)?;
        }
        read()
    }

    fn stored(&self, path: &str, node: &Node) -> Result<StoredDataset, DatasetError> {
        let origin = node.get(ORIGIN)?.map(|id| read_snapshot(self.objects.mos(), id)).transpose()?;
        Ok(StoredDataset {
            path: Some(path.to_string()),
            set: node.set,
            origin: origin.map_or(Txg(0), |info| info.created),
            snapshots: self.snapshots_in(node)?,
            head_list: node.get(DEAD_LIST)?,
        })
    }

    /// The parts of each list of a data set. Callers find them while they hold `tree`, and read their entries without it: long lists
    /// take long.
    fn parts_of(&self, stored: &StoredDataset) -> Result<Vec<ListParts>, DatasetError> {
        Ok(stored.lists().map(|list| list_parts(&self.objects, list)).collect::<Result<_, _>>()?)
    }

    /// Bytes of the entries in these parts that were born in `births`.
    fn bytes_born(&self, parts: &ListParts, births: &impl RangeBounds<Txg>) -> Result<u64, DatasetError> {
        let mut bytes = 0u64;
        for (part, _) in parts {
            each_dead_entry(&self.objects, *part, &mut |entry| {
                if births.contains(&entry.birth) {
                    bytes = bytes.saturating_add(entry.bytes());
                }
            })?;
        }
        Ok(bytes)
    }

    /// Sums over the entries of each list of a data set.
    fn list_sums(
        &self,
        stored: &StoredDataset,
        parts: Vec<ListParts>,
    ) -> Result<Vec<ListSums>, DatasetError> {
        let mut sums = Vec::new();
        for parts in parts {
            let all = parts.iter().map(|(_, info)| info.used_bytes).fold(0, u64::saturating_add);
            let of_origin = match stored.origin {
                Txg(0) => 0,
                origin => self.bytes_born(&parts, &(..=origin))?,
            };
            sums.push(ListSums { all, of_origin: of_origin.min(all) });
        }
        Ok(sums)
    }

    /// Bytes that would be freed if these snapshots were destroyed.
    pub fn reclaimable(&self, path: &str, names: &[&str]) -> Result<u64, DatasetError> {
        self.read_lists(&|| self.reclaimable_now(path, names))
    }

    fn reclaimable_now(&self, path: &str, names: &[&str]) -> Result<u64, DatasetError> {
        let tree = self.tree.lock();
        let node = self.node(path)?;
        for name in names {
            self.snapshot_of(&node, path, name)?;
        }
        let stored = self.stored(path, &node)?;
        let lists = self.parts_of(&stored)?;
        drop(tree);
        let names: BTreeSet<&str> = names.iter().copied().collect();
        let is_gone = |snapshot: &Snapshot| names.contains(snapshot.name.as_str());
        // The txg of the newest snapshot before each list that would not be destroyed.
        let mut stays = stored.origin;
        let mut bytes = 0u64;
        for (index, parts) in lists.iter().enumerate() {
            if let Some(before) = index.checked_sub(1).and_then(|before| stored.snapshots.get(before))
                && !is_gone(before)
            {
                stays = before.info.created;
            }
            if stays >= stored.before(index) {
                continue;
            }
            let births = (Bound::Excluded(stays), Bound::Unbounded);
            bytes = bytes.saturating_add(self.bytes_born(parts, &births)?);
        }
        Ok(bytes)
    }

    /// Bytes that the head refers to now and the snapshot does not.
    pub fn written_since(&self, path: &str, name: &str) -> Result<u64, DatasetError> {
        self.read_lists(&|| self.written_since_now(path, name))
    }

    fn written_since_now(&self, path: &str, name: &str) -> Result<u64, DatasetError> {
        let tree = self.tree.lock();
        let node = self.node(path)?;
        let since = self.snapshot_of(&node, path, name)?.info;
        let set = self.open_head(path, &node)?;
        let referenced =
            set.account().unwrap_or_default().used_bytes.saturating_add(set.root().allocated_bytes());
        let stored = self.stored(path, &node)?;
        let lists = self.parts_of(&stored)?;
        drop(tree);
        let mut gone = 0u64;
        for (index, parts) in lists.iter().enumerate() {
            if stored.before(index) < since.created {
                continue;
            }
            gone = gone.saturating_add(self.bytes_born(parts, &(..=since.created))?);
        }
        Ok(referenced.saturating_add(gone).saturating_sub(since.referenced_bytes()))
    }
}

/// The parts of a dead list.
type ListParts = Vec<(ObjectId, PartInfo)>;

/// Bytes on a dead list.
#[derive(Clone, Copy, Default)]
struct ListSums {
    all: u64,
    /// Of those, bytes that belong to the origin.
    of_origin: u64,
}
