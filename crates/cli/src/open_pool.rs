//! A pool that is open in this process, with one of its data sets.
//!
//! An [`OpenPool`] is a *view* of one data set of the pool, at first of the root. [`OpenPool::view`] returns the view of
//! another.
//!
//! Invariant: all views of one data set share one file system. Two file systems would have separate inodes and locks.

use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::members;
use crate::memory::MemoryLimit;
use crate::target::{self, Target};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};
use terrane_dataset::{Dataset, DatasetError, Datasets};
use terrane_device::{Backing, Device, Identity, OpenMode};
use terrane_object::ObjectSets;
use terrane_pool::{ImportOptions, LogDeviceStatus, Pool};
use terrane_posix::{Fs, ReplayGuide, WholeReplay, replay_pool};
use terrane_store::env::SystemEnv;
use terrane_wire::ObjsetId;

/// Block cache of a command that reads a little and exits.
const TOOL_CACHE_BYTES: usize = 64 << 20;
/// How often to check whether a file system is still used.
const CLOSE_POLL_PERIOD: Duration = Duration::from_millis(5);
/// How long a rollback waits for threads that use the data set.
const ROLLBACK_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct OpenPool {
    /// The path of the device that was named.
    pub path: PathBuf,
    pub pool: Arc<Pool>,
    pub objects: Arc<ObjectSets>,
    pub datasets: Arc<Datasets>,
    /// The path of the data set from the root, which is `""`.
    pub dataset_path: String,
    /// The guid of the snapshot; `None`: this is the view of a data set.
    pub snapshot: Option<u64>,
    dataset: DatasetSlot,
    /// Its file system, which is opened when it is first needed. A mount opens it at once.
    pub fs: FsSlot,
    slots: FsSlots,
    /// The data sets that this process has mounted.
    pub mounts: MountTable,
    /// The memory limit, if this process serves mounts.
    pub memory: Arc<OnceLock<Arc<MemoryLimit>>>,
    /// Bytes of a ring in which a mount keeps changes for a successor. 0: none is kept.
    pub ring_bytes: Arc<AtomicUsize>,
    /// Threads that all mounts together have without options, beside those that each has at least.
    pub request_threads: Arc<AtomicUsize>,
}

/// An open data set. A rollback replaces it.
#[derive(Clone)]
struct DatasetSlot(Arc<RwLock<Arc<Dataset>>>);

impl DatasetSlot {
    fn new(dataset: Arc<Dataset>) -> DatasetSlot {
        DatasetSlot(Arc::new(RwLock::new(dataset)))
    }

    fn get(&self) -> Arc<Dataset> {
        // A thread that panicked while it held the lock left a valid value.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nobody gets it until the guard is dropped.
    fn take_over(&self) -> RwLockWriteGuard<'_, Arc<Dataset>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file system of one data set, if it is open.
#[derive(Clone, Default)]
pub struct FsSlot(Arc<Mutex<Option<Arc<Fs>>>>);

impl FsSlot {
    fn slot(&self) -> MutexGuard<'_, Option<Arc<Fs>>> {
        // A thread that panicked while it held the lock left a valid value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self) -> Option<Arc<Fs>> {
        self.slot().clone()
    }

    /// Sets a file system that was opened in another way.
    pub fn set(&self, fs: Arc<Fs>) {
        *self.slot() = Some(fs);
    }

    /// Closes the file system once no other thread uses it. The next [`open`](Self::open) opens another one.
    pub fn close(&self) {
        while !self.try_close() {
            std::thread::sleep(CLOSE_POLL_PERIOD);
        }
    }

    fn try_close(&self) -> bool {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|fs| Arc::strong_count(fs) > 1) {
            return false;
        }
        *slot = None;
        true
    }

    fn open(&self, dataset: &Arc<Dataset>) -> Outcome<Arc<Fs>> {
        let mut slot = self.slot();
        match &*slot {
            Some(fs) => Ok(Arc::clone(fs)),
            None => Ok(Arc::clone(slot.insert(Fs::open(Arc::clone(dataset))?))),
        }
    }
}

/// The slots of data sets and snapshots, by object set and guid of the snapshot. Another snapshot may get its name.
#[derive(Clone, Default)]
struct FsSlots(Arc<Mutex<BTreeMap<SlotKey, FsSlot>>>);

type SlotKey = (u64, Option<u64>);

impl FsSlots {
    fn of(&self, dataset: &Dataset, snapshot: Option<u64>) -> FsSlot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry((dataset.object_set().id().0, snapshot)).or_default().clone()
    }

    /// A data set has another object set from now on.
    fn replace(&self, before: SlotKey, after: SlotKey) {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.remove(&before) {
            slots.insert(after, slot);
        }
    }
}

/// One data set that this process has mounted.
#[derive(Clone)]
pub struct MountedAt {
    /// The number of the mount in this process.
    pub number: u32,
    /// The path of the data set from the root.
    pub path: String,
    /// The guid of the snapshot, if one is mounted.
    pub snapshot: Option<u64>,
    /// Its first mount point. Others are in the kernel's table.
    pub dir: PathBuf,
    /// The kernel's number of the file system.
    pub dev: String,
    pub dataset: Arc<Dataset>,
    pub fs: FsSlot,
}

/// The data sets that this process has mounted, in the order of their mounts.
#[derive(Clone, Default)]
pub struct MountTable {
    rows: Arc<Mutex<Vec<MountedAt>>>,
    changing: Arc<Mutex<()>>,
}

impl MountTable {
    fn rows(&self) -> MutexGuard<'_, Vec<MountedAt>> {
        // A thread that panicked while it held the lock left whole rows.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while a mount is added, and while the tree of data sets and snapshots changes. So what a change has found to be
    /// not mounted stays so until the change is done, and no data set is mounted twice.
    pub fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn list(&self) -> Vec<MountedAt> {
        self.rows().clone()
    }

    pub fn add(&self, row: MountedAt) {
        self.rows().push(row);
    }

    /// Replaces the row of that number.
    pub fn replace(&self, row: MountedAt) {
        if let Some(before) = self.rows().iter_mut().find(|before| before.number == row.number) {
            *before = row;
        }
    }

    pub fn remove(&self, number: u32) {
        self.rows().retain(|row| row.number != number);
    }

    /// The file systems of all mounts.
    pub fn file_systems(&self) -> Vec<Arc<Fs>> {
        self.rows().iter().filter_map(|row| row.fs.get()).collect()
    }
}

/// Import options of a command that only reads, or changes a little.
pub fn tool_options(mode: OpenMode) -> ImportOptions {
    ImportOptions {
        read_only: mode == OpenMode::ReadOnly,
        cache_bytes: TOOL_CACHE_BYTES,
        ..ImportOptions::default()
    }
}

impl OpenPool {
    pub fn open(target: &Target, options: &ImportOptions) -> Outcome<OpenPool> {
        OpenPool::open_known(target, options, &[])?.replayed(&mut WholeReplay)
    }

    /// A newer state of the same pool in place of an earlier one, with its mounts and limits.
    pub fn in_place_of(self, earlier: &OpenPool) -> OpenPool {
        OpenPool {
            mounts: earlier.mounts.clone(),
            memory: Arc::clone(&earlier.memory),
            ring_bytes: Arc::clone(&earlier.ring_bytes),
            request_threads: Arc::clone(&earlier.request_threads),
            ..self
        }
    }

    /// Makes again what the intent log has, before anyone uses the pool. `guide`: as in [`replay_pool`].
    pub fn replayed(self, guide: &mut dyn ReplayGuide) -> Outcome<OpenPool> {
        let Some(log) = self.pool.unreplayed_log() else { return Ok(self) };
        let name = self.pool.name();
        if self.pool.is_read_only() {
            log::warn!(
                "pool {name}: {} records of the intent log are not shown in a read-only import",
                log.records
            );
            return Ok(self);
        }
        let mut open = |set: ObjsetId| {
            let found = self.find_by_set(set.0)?.map(|view| view.dataset());
            found.ok_or_else(|| DatasetError::Unknown { name: format!("object set {set}"), nearest: None })
        };
        match replay_pool(&self.pool, &mut open, guide) {
            Ok(count) => {
                log::info!("pool {name}: {count} changes replayed that no commit contained");
                Ok(self)
            }
            Err(error) => {
                // Nothing of it may be committed.
                self.pool.abandon();
                let remedy = format!(
                    "`terrane pool import --discard-log {name}` gives up what was synced after the last commit"
                );
                Err(Failure::refused(
                    format_args!("pool {name}, intent log"),
                    "records that can be replayed",
                    error,
                    remedy,
                ))
            }
        }
    }

    /// The same for a successor of another server. Before anything is written, each device must be one of
    /// those that the predecessor recorded, if it recorded any.
    ///
    /// # Errors
    /// If a device with the id of another is at its path: it was copied, and holds an older or newer state.
    pub fn open_known(target: &Target, options: &ImportOptions, known: &[Identity]) -> Outcome<OpenPool> {
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let devices = match known.is_empty() {
            true => members::open(target, mode)?,
            // A copy may be now where it was.
            false => members::open_known(target, mode)?,
        };
        let is_strange = |device: &dyn Device| device.identity().is_some_and(|it| !known.contains(&it));
        let strange = devices.iter().find(|(_, device)| !known.is_empty() && is_strange(device.as_ref()));
        if let Some((path, _)) = strange {
            let (expected, found) = ("the device that was mounted", "a copy of it in its place");
            return Err(Failure::refused(path.display(), expected, found, "bring the mounted device back"));
        }
        let mut devices: Vec<_> = devices.into_iter().map(|(_, device)| device).collect();
        devices.extend(match known.is_empty() {
            true => members::open_log_devices(&target.path, mode)?,
            false => members::find_log_devices(&target.path, &target::read_label(&target.path)?, mode),
        });
        OpenPool::of_devices(&target.path, devices, options)
    }

    /// Opens exactly these devices.
    pub fn of_devices(
        path: &Path,
        devices: Vec<Arc<dyn Device>>,
        options: &ImportOptions,
    ) -> Outcome<OpenPool> {
        let pool = Pool::import(devices, Arc::new(SystemEnv::new()), options)?;
        let opened = ObjectSets::open(Arc::clone(&pool)).map_err(Failure::from).and_then(|objects| {
            let datasets = Datasets::open(&objects)?;
            Ok((datasets.open_dataset("")?, datasets, objects))
        });
        match opened {
            Ok((dataset, datasets, objects)) => {
                let slots = FsSlots::default();
                Ok(OpenPool {
                    path: path.to_owned(),
                    pool,
                    objects,
                    datasets,
                    dataset_path: String::new(),
                    snapshot: None,
                    fs: slots.of(&dataset, None),
                    dataset: DatasetSlot::new(dataset),
                    slots,
                    mounts: MountTable::default(),
                    memory: Arc::default(),
                    ring_bytes: Arc::default(),
                    request_threads: Arc::default(),
                })
            }
            Err(failure) => {
                // Its threads hold it; nothing was changed.
                pool.abandon();
                Err(failure)
            }
        }
    }

    /// Attaches the cache devices of the pool that are where they were. One that is not is named in the log.
    pub fn attach_caches(&self) {
        if self.pool.is_read_only() {
            return;
        }
        for row in self.pool.label().caches {
            let path = Path::new(&row.name);
            let attach = || -> Outcome {
                let device = Backing::open(path, OpenMode::ReadWrite)?.into_device(row.zone_size)?;
                Ok(self.pool.attach_cache(device)?)
            };
            if let Err(failure) = attach() {
                log::warn!("pool {}: cache device {} not attached: {failure}", self.pool.name(), row.name);
            }
        }
    }

    /// Attaches log devices that were missing. Returns how many there are.
    pub fn attach_log_devices(&self) -> Outcome<usize> {
        let mut label = self.pool.label();
        label.log_devices.retain(|row| {
            let is_missing = |device: &LogDeviceStatus| device.id == row.device && device.stats.is_none();
            self.pool.log_devices().iter().any(is_missing)
        });
        let paths: Vec<PathBuf> = label.log_devices.iter().map(|row| PathBuf::from(&row.name)).collect();
        let found = members::open_log_devices_among(&paths, &label, OpenMode::ReadWrite);
        let count = found.len();
        found.into_iter().try_for_each(|device| self.pool.attach_log_device(device))?;
        Ok(count)
    }

    /// All devices, also those of the log.
    pub fn device_handles(&self) -> Vec<Arc<dyn Device>> {
        let mut devices = self.pool.device_handles();
        devices.extend(self.pool.log_device_handles());
        devices
    }

    /// The view of the data set or snapshot at this path.
    ///
    /// # Errors
    /// If there is none. The message names the most similar one.
    pub fn view(&self, path: &str) -> Outcome<OpenPool> {
        let pool = self.pool.name();
        self.find(path).map_err(|error| match error {
            DatasetError::Unknown { nearest, .. } => {
                let hint = nearest.map(|near| format!("; did you mean '{}'?", full_name(&pool, &near)));
                let kind = if path.contains('@') { "snapshot" } else { "data set" };
                Failure(format!(
                    "unknown {kind} {:?}; see `terrane fs list`{}",
                    full_name(&pool, path),
                    hint.unwrap_or_default()
                ))
            }
            error => error.into(),
        })
    }

    /// The same as [`view`](Self::view), with the error of the data sets.
    pub fn find(&self, path: &str) -> Result<OpenPool, DatasetError> {
        if path == self.dataset_path {
            return Ok(self.clone());
        }
        if let Some(row) = self.mounts.list().into_iter().find(|row| row.path == path) {
            let MountedAt { path, snapshot, dataset, fs, .. } = row;
            let dataset = DatasetSlot::new(dataset);
            return Ok(OpenPool { dataset_path: path, snapshot, dataset, fs, ..self.clone() });
        }
        let (snapshot, dataset) = match path.split_once('@') {
            Some((path, name)) => {
                let (info, dataset) = self.datasets.open_snapshot_and_info(path, name)?;
                (Some(info.guid), dataset)
            }
            None => (None, self.datasets.open_dataset(path)?),
        };
        let fs = self.slots.of(&dataset, snapshot);
        let dataset = DatasetSlot::new(dataset);
        Ok(OpenPool { dataset_path: path.to_owned(), snapshot, dataset, fs, ..self.clone() })
    }

    /// The view of the data set with this object set.
    pub fn find_by_set(&self, set: u64) -> Result<Option<OpenPool>, DatasetError> {
        let found = self.datasets.list()?.into_iter().find(|info| info.set.0 == set);
        found.map(|info| self.find(&info.path)).transpose()
    }

    /// The view of the snapshot with this guid, whatever its name is by now.
    pub fn find_snapshot(&self, guid: u64) -> Result<Option<OpenPool>, DatasetError> {
        for info in self.datasets.list()? {
            let snapshots = self.datasets.snapshots(&info.path)?;
            if let Some(found) = snapshots.iter().find(|snapshot| snapshot.info.guid == guid) {
                return self.find(&format!("{}@{}", info.path, found.name)).map(Some);
            }
        }
        Ok(None)
    }

    /// Closes the file system, if it was opened for a question alone.
    pub fn release(&self) {
        if self.mountpoint().is_none() {
            self.fs.try_close();
        }
    }

    /// The file system over the object set of this number, and the path of its data set. `None` if the data set is neither
    /// that of this view nor mounted.
    pub fn fs_of_set(&self, set: u64) -> Option<(String, Arc<Fs>)> {
        let has = |dataset: &Dataset| dataset.object_set().id().0 == set;
        if has(&self.dataset()) && !self.is_snapshot() {
            return Some((self.dataset_path.clone(), self.fs().ok()?));
        }
        let row = self.mounts.list().into_iter().find(|row| row.snapshot.is_none() && has(&row.dataset))?;
        Some((row.path, row.fs.get()?))
    }

    /// Whether this is the view of a snapshot, which is read-only.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Whether this process serves mounts of the pool.
    pub fn is_served(&self) -> bool {
        !self.mounts.rows().is_empty()
    }

    /// Where this process has mounted the data set.
    pub fn mountpoint(&self) -> Option<PathBuf> {
        let rows = self.mounts.rows();
        rows.iter().find(|row| row.path == self.dataset_path).map(|row| row.dir.clone())
    }

    pub fn fs(&self) -> Outcome<Arc<Fs>> {
        self.fs.open(&self.dataset())
    }

    /// The data set of this view.
    pub fn dataset(&self) -> Arc<Dataset> {
        self.dataset.get()
    }

    /// Returns a data set that is not mounted to the state of a snapshot.
    pub fn rollback(&self, path: &str, name: &str, newer: bool) -> Result<(), DatasetError> {
        if path != self.dataset_path || self.mountpoint().is_some() {
            return self.datasets.rollback(path, name, newer);
        }
        // First what may take long: from then on others wait.
        self.datasets.drain(path)?;
        // Questions that other threads answer use it for a moment.
        let end = Instant::now() + ROLLBACK_PATIENCE;
        let mut held = loop {
            let held = self.dataset.take_over();
            if self.fs.try_close() && Arc::strong_count(&held) == 1 || Instant::now() > end {
                break held;
            }
            drop(held);
            std::thread::sleep(CLOSE_POLL_PERIOD);
        };
        let before = held.object_set().id().0;
        self.datasets.rollback_held(path, name, newer, &mut held)?;
        self.slots.replace((before, None), (held.object_set().id().0, None));
        Ok(())
    }

    /// The root data set. Only it stores the error log of the pool. If two data sets stored the log, neither would know the
    /// other's entries.
    pub fn root(&self) -> Result<Arc<Dataset>, DatasetError> {
        self.datasets.open_dataset("")
    }

    /// The file systems of all mounts, and that of this view if it is open.
    pub fn file_systems(&self) -> Vec<Arc<Fs>> {
        let mut open = self.mounts.file_systems();
        open.extend(self.fs.get().filter(|fs| !open.iter().any(|other| Arc::ptr_eq(fs, other))));
        open
    }

    /// Commits what is left, and marks the pool as closed.
    pub fn export(&self) -> Outcome {
        self.file_systems().iter().for_each(|fs| fs.log_losses());
        let recorded = self.root().and_then(|root| root.record_errors());
        if let Err(error) = recorded {
            log::warn!("pool {}: storing the error log failed: {error}", self.pool.name());
        }
        Ok(self.pool.export()?)
    }
}
