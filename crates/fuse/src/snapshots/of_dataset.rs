//! The snapshots of a data set, as a source for its mount.

use super::{SnapshotEntry, Snapshots, Visibility};
use parking_lot::Mutex;
use std::sync::Arc;
use terrane_dataset::{DatasetError, Datasets, Snapshot};

use terrane_posix::{Errno, Fs, Time};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The snapshots of one data set of a pool.
pub struct DatasetSnapshots {
    datasets: Arc<Datasets>,
    path: Mutex<String>,
    visibility: Mutex<Visibility>,
}

impl DatasetSnapshots {
    /// Those of the data set with this path below the pool; empty: the root data set.
    pub fn new(datasets: Arc<Datasets>, path: &str) -> Arc<DatasetSnapshots> {
        let path = Mutex::new(path.to_owned());
        Arc::new(DatasetSnapshots { datasets, path, visibility: Mutex::default() })
    }

    /// Sets the path after the data set was renamed.
    pub fn set_path(&self, path: &str) {
        path.clone_into(&mut self.path.lock());
    }

    /// Sets how snapshots are shown from now on. The kernel may have cached a listing of the root of the mount. The caller
    /// has the kernel drop it ([`crate::forget::start`]).
    pub fn set_visibility(&self, visibility: Visibility) {
        *self.visibility.lock() = visibility;
    }

    fn path(&self) -> String {
        self.path.lock().clone()
    }

    fn all(&self) -> Result<Vec<Snapshot>, Errno> {
        self.datasets.snapshots(&self.path()).map_err(errno_of)
    }

    /// Opens the snapshot of this name if it has this guid.
    fn open_named(&self, guid: u64, name: &str) -> Result<Option<Arc<Fs>>, Errno> {
        match self.datasets.open_snapshot_and_info(&self.path(), name) {
            Ok((info, dataset)) if info.guid == guid => Fs::open(dataset).map(Some).map_err(errno_of),
            Ok(_) | Err(DatasetError::Unknown { .. }) => Ok(None),
            Err(error) => Err(errno_of(error)),
        }
    }
}

fn entry_of(snapshot: Snapshot) -> SnapshotEntry {
    let ns = snapshot.info.time_ns;
    let secs = i64::try_from(ns / NS_PER_SECOND).unwrap_or(i64::MAX);
    let nanos = u32::try_from(ns % NS_PER_SECOND).unwrap_or(0);
    SnapshotEntry { name: snapshot.name, guid: snapshot.info.guid, created: Time { secs, nanos } }
}

fn errno_of(error: DatasetError) -> Errno {
    match error {
        DatasetError::Unknown { .. } | DatasetError::InvalidName { .. } => Errno::ENOENT,
        // It is just being taken.
        DatasetError::InUse { .. } => Errno::ENOENT,
        DatasetError::Object(error) => Errno::from(error),
        error => {
            log::error!("snapshots unreadable: {error}");
            Errno::EIO
        }
    }
}

impl Snapshots for DatasetSnapshots {
    fn list(&self) -> Result<Vec<SnapshotEntry>, Errno> {
        Ok(self.all()?.into_iter().map(entry_of).collect())
    }

    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, Errno> {
        let Ok(name) = std::str::from_utf8(name) else { return Ok(None) };
        match self.datasets.find_snapshot(&self.path(), name) {
            Ok(found) => Ok(Some(entry_of(found))),
            Err(error) => match errno_of(error) {
                Errno::ENOENT => Ok(None),
                errno => Err(errno),
            },
        }
    }

    fn open(&self, guid: u64, name: Option<&str>) -> Result<Arc<Fs>, Errno> {
        // The snapshot may have been renamed.
        if let Some(found) = name.map(|name| self.open_named(guid, name)).transpose()?.flatten() {
            return Ok(found);
        }
        let found =
            self.all()?.into_iter().find(|snapshot| snapshot.info.guid == guid).ok_or(Errno::ESTALE)?;
        self.open_named(guid, &found.name)?.ok_or(Errno::ESTALE)
    }

    fn visibility(&self) -> Visibility {
        *self.visibility.lock()
    }
}
