//! Snapshots that are open for reading.
//!
//! Invariant: a destroyed snapshot is closed before the txg ends that frees its blocks. So no reader gets bytes of another
//! block.

use super::Datasets;
use super::snapshots::being_taken;
use crate::dataset::Dataset;
use crate::error::DatasetError;
use crate::snapshot_info::SnapshotInfo;
use std::sync::{Arc, Weak};
use terrane_wire::ObjectId;

impl Datasets {
    /// Opens a snapshot as a read-only data set. While it is open, every caller gets the same one. After it was destroyed,
    /// every use of it fails with `NotFound`.
    pub fn open_snapshot(&self, path: &str, name: &str) -> Result<Arc<Dataset>, DatasetError> {
        Ok(self.open_snapshot_and_info(path, name)?.1)
    }

    /// The same, with its stored facts.
    pub fn open_snapshot_and_info(
        &self,
        path: &str,
        name: &str,
    ) -> Result<(SnapshotInfo, Arc<Dataset>), DatasetError> {
        let live = self.open_dataset(path)?;
        let _tree = self.tree.lock();
        let info = self.snapshot_of(&self.node(path)?, path, name)?.info;
        if info.root.is_hole() {
            return Err(being_taken(path, name));
        }
        let mut open = self.open_snapshots.lock();
        if let Some(found) = open.get(&info.id).and_then(Weak::upgrade) {
            return Ok((info, found));
        }
        let opened = Arc::new(live.open_at(info.set, &info.root)?);
        open.retain(|_, other| other.strong_count() > 0);
        open.insert(info.id, Arc::downgrade(&opened));
        Ok((info, opened))
    }

    /// The objects of a data set that differ from those in a snapshot of it, as of the last commit.
    pub fn changed_since(&self, path: &str, name: &str) -> Result<Vec<ObjectId>, DatasetError> {
        let (info, snapshot) = self.open_snapshot_and_info(path, name)?;
        let (head, mut changed) = (self.open_dataset(path)?, Vec::new());
        let each = &mut |id| changed.push(id);
        head.object_set().objects_changed_since(snapshot.object_set(), info.created, each)?;
        Ok(changed)
    }

    /// Closes a snapshot that the open txg destroys.
    pub(super) fn close_snapshot(&self, info: &SnapshotInfo) {
        let closed = self.open_snapshots.lock().remove(&info.id).and_then(|open| open.upgrade());
        closed.iter().for_each(|dataset| dataset.close());
        self.destroyed_snapshots.lock().push(info.guid);
    }

    /// GUIDs of snapshots that were destroyed since the pool was opened, in order, without the first `known`.
    pub fn destroyed_snapshots(&self, known: usize) -> Vec<u64> {
        self.destroyed_snapshots.lock().get(known..).unwrap_or_default().to_vec()
    }
}
