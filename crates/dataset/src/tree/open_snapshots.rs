//! Snapshots that are open for reading.
//!
//! Invariant: a snapshot that is destroyed is closed before the txg that frees its blocks ends. So no reader
//! finds bytes that are not its own.

use super::Datasets;
use crate::dataset::Dataset;
use crate::error::DatasetError;
use crate::snapshot_info::SnapshotInfo;
use std::sync::{Arc, Weak};

impl Datasets {
    /// A snapshot as a data set that takes no changes. While it is open, every caller gets the same one. Once it
    /// is destroyed, every use of it fails with `NotFound`.
    pub fn open_snapshot(&self, path: &str, name: &str) -> Result<Arc<Dataset>, DatasetError> {
        Ok(self.open_snapshot_and_info(path, name)?.1)
    }

    /// The same, with what is stored of it.
    pub fn open_snapshot_and_info(
        &self,
        path: &str,
        name: &str,
    ) -> Result<(SnapshotInfo, Arc<Dataset>), DatasetError> {
        let live = self.open_dataset(path)?;
        let _tree = self.tree.lock();
        let info = self.snapshot_of(&self.node(path)?, path, name)?.info;
        let mut open = self.open_snapshots.lock();
        if let Some(found) = open.get(&info.id).and_then(Weak::upgrade) {
            return Ok((info, found));
        }
        let opened = Arc::new(live.open_at(info.set, &info.root)?);
        open.retain(|_, other| other.strong_count() > 0);
        open.insert(info.id, Arc::downgrade(&opened));
        Ok((info, opened))
    }

    /// The open txg destroys a snapshot.
    pub(super) fn close_snapshot(&self, info: &SnapshotInfo) {
        let closed = self.open_snapshots.lock().remove(&info.id).and_then(|open| open.upgrade());
        closed.iter().for_each(|dataset| dataset.close());
    }
}
