//! A pool that is open in this process, from the devices up to the root dataset.

use crate::failure::{Failure, Outcome};
use crate::members;
use crate::memory::MemoryLimit;
use crate::target::Target;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use terrane_dataset::{Dataset, Datasets};
use terrane_device::{Backing, Device, Identity, OpenMode};
use terrane_object::ObjectSets;
use terrane_pool::{ImportOptions, Pool};
use terrane_posix::Fs;
use terrane_store::env::SystemEnv;

/// Block cache of a command that reads a little and exits.
const TOOL_CACHE_BYTES: usize = 64 << 20;

pub struct OpenPool {
    /// The path of the device that was named.
    pub path: PathBuf,
    pub pool: Arc<Pool>,
    pub objects: Arc<ObjectSets>,
    /// All data sets of the pool.
    pub datasets: Arc<Datasets>,
    pub dataset: Arc<Dataset>,
    /// The mount point, if this process mounted it.
    pub mountpoint: Option<PathBuf>,
    /// The file system, once it was needed; a mount has it from the beginning.
    pub fs: OnceLock<Arc<Fs>>,
    /// The memory limit, where this process serves a mount.
    pub memory: OnceLock<Arc<MemoryLimit>>,
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
        OpenPool::open_known(target, options, &[])
    }

    /// The same for a successor of another server. Before anything is written, each device must be one of
    /// those that the predecessor recorded, if it recorded any.
    ///
    /// # Errors
    /// If a device with the id of another is at its path: it was copied, and holds an older or newer state.
    pub fn open_known(target: &Target, options: &ImportOptions, known: &[Identity]) -> Outcome<OpenPool> {
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let devices = members::open(target, mode)?;
        let is_strange = |device: &dyn Device| device.identity().is_some_and(|it| !known.contains(&it));
        let strange = devices.iter().find(|(_, device)| !known.is_empty() && is_strange(device.as_ref()));
        if let Some((path, _)) = strange {
            let (expected, found) = ("the device that was mounted", "a copy of it in its place");
            return Err(Failure::refused(path.display(), expected, found, "bring the mounted device back"));
        }
        OpenPool::of_devices(&target.path, devices.into_iter().map(|(_, device)| device).collect(), options)
    }

    /// Opens exactly these devices.
    pub fn of_devices(
        path: &Path,
        devices: Vec<Arc<dyn Device>>,
        options: &ImportOptions,
    ) -> Outcome<OpenPool> {
        let pool = Pool::import(devices, Arc::new(SystemEnv::new()), options)?;
        let opened = ObjectSets::open(Arc::clone(&pool))
            .map_err(Failure::from)
            .and_then(|objects| Ok((Datasets::open(&objects)?, objects)))
            .and_then(|(datasets, objects)| Ok((datasets.open_dataset("")?, datasets, objects)));
        match opened {
            Ok((dataset, datasets, objects)) => Ok(OpenPool {
                path: path.to_owned(),
                pool,
                objects,
                datasets,
                dataset,
                mountpoint: None,
                fs: OnceLock::new(),
                memory: OnceLock::new(),
            }),
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

    pub fn fs(&self) -> Outcome<&Arc<Fs>> {
        if self.fs.get().is_none() {
            // If another thread was faster, its value is as good.
            let _ = self.fs.set(Fs::open(Arc::clone(&self.dataset))?);
        }
        self.fs.get().ok_or_else(|| Failure("the file system is not open".to_owned()))
    }

    /// Commits what is left, and marks the pool as closed.
    pub fn export(&self) -> Outcome {
        let recorded = match self.fs.get() {
            Some(fs) => fs.record_errors(),
            None => self.dataset.record_errors(),
        };
        if let Err(error) = recorded {
            log::warn!("pool {}: storing the error log failed: {error}", self.pool.name());
        }
        Ok(self.pool.export()?)
    }
}
