//! A real mount of a file system on a simulated device.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]
#![allow(dead_code, reason = "not every test program needs all of it")]

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_dataset::{Dataset, Datasets};
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_fuse::snapshots::DatasetSnapshots;
use terrane_fuse::{
    Dispatch, Launderer, Metrics, MountOptions, Session, SnapshotDir, Snapshots, UnmountHandle,
};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{Cred, Fs};
use terrane_store::env::SeededEnv;

/// A mount with its session in the background.
pub struct Mounted {
    pub dir: PathBuf,
    pub fs: Arc<Fs>,
    /// Without it nothing is ever committed.
    objects: Arc<ObjectSets>,
    metrics: Arc<Metrics>,
    /// For notifications to the kernel.
    pub connection: File,
    handle: UnmountHandle,
    session: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Mounted {
    /// `None`, with a message, where this cannot be tested.
    pub fn start(name: &str, props: &[(&str, &str)], words: &str) -> Option<Mounted> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            eprintln!("SKIPPED {name}: not root");
            return None;
        }
        let mut options = MountOptions::for_root("tank");
        options.apply(words).unwrap();
        let file_system = file_system(props, 4 << 20);
        let options = options.with_dataset_options(file_system.1.dataset());
        mount(name, dir_of(name), file_system, &options, MountParts::default())
    }

    /// With snapshots of the file system. `make_source` may replace their source.
    pub fn start_with_snapshots(
        name: &str,
        props: &[(&str, &str)],
        make_source: impl FnOnce(Arc<DatasetSnapshots>) -> Arc<dyn Snapshots>,
    ) -> Option<WithSnapshots> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            eprintln!("SKIPPED {name}: not root");
            return None;
        }
        let (objects, fs) = file_system(props, 4 << 20);
        drop(fs);
        let datasets = Datasets::open(&objects).unwrap();
        let fs = Fs::open(datasets.open_dataset("").unwrap()).unwrap();
        let source = DatasetSnapshots::new(Arc::clone(&datasets), "");
        let dir = SnapshotDir::new(make_source(Arc::clone(&source)), None).unwrap();
        let options = MountOptions::for_root("tank").with_dataset_options(fs.dataset());
        let parts = MountParts { snapshots: Some(Arc::clone(&dir)), ..MountParts::default() };
        let mounted = mount(name, dir_of(name), (objects, fs), &options, parts)?;
        Some((mounted, datasets, source, dir))
    }

    /// Another file system of the same pool, at a place of its own.
    pub fn mount_beside(&self, name: &str, fs: Arc<Fs>, words: &str) -> Mounted {
        let mut options = MountOptions::for_root("tank").with_dataset_options(fs.dataset());
        options.apply(words).unwrap();
        let parts = (Arc::clone(&self.objects), fs);
        mount(name, dir_of(name), parts, &options, MountParts::default()).unwrap()
    }

    /// A small pool, mounted as any user may. `helper` starts the process that has the kernel write pages back.
    pub fn start_small(name: &str, words: &str, helper: Option<fn() -> Command>) -> Option<Mounted> {
        let mut options = MountOptions::default();
        options.apply(words).unwrap();
        let parts = MountParts { helper, ..MountParts::default() };
        mount(name, dir_of(name), file_system(&[], 1 << 20), &options, parts)
    }

    /// Mounted anew at the same place: the kernel remembers nothing.
    pub fn again(self, words: &str) -> Mounted {
        let (dir, objects, fs) = (self.dir.clone(), Arc::clone(&self.objects), Arc::clone(&self.fs));
        self.end();
        let mut options = MountOptions::for_root("tank").with_dataset_options(fs.dataset());
        options.apply(words).unwrap();
        mount("again", dir, (objects, fs), &options, MountParts::default()).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn file(&self, name: &str, bits: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, b"content").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
        path
    }

    /// How often the kernel sent this request.
    pub fn asked(&self, operation: &str) -> u64 {
        let stats = self.metrics.snapshot();
        stats.operations.iter().find(|of| of.name == operation).map_or(0, |of| of.latency.count())
    }

    pub fn end(mut self) {
        // A child that another test starts shares our open files until its exec.
        let busy_until = Instant::now() + Duration::from_secs(20);
        while let Err(error) = self.handle.unmount() {
            assert!(Instant::now() < busy_until, "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.session.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Also after a failed assertion: nothing may be left mounted.
        let _ = self.handle.abort();
        let _ = fs::remove_dir(&self.dir);
    }
}

fn dir_of(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("terrane-mounted-{name}-{}", std::process::id()))
}

/// A mount, its data sets, and its snapshots as they are found and as they are shown.
pub type WithSnapshots = (Mounted, Arc<Datasets>, Arc<DatasetSnapshots>, Arc<SnapshotDir>);

/// What a mount may have beside a file system.
#[derive(Default)]
struct MountParts {
    /// Starts the process that has the kernel write pages back.
    helper: Option<fn() -> Command>,
    snapshots: Option<Arc<SnapshotDir>>,
}

fn mount(
    name: &str,
    dir: PathBuf,
    (objects, fs): (Arc<ObjectSets>, Arc<Fs>),
    options: &MountOptions,
    MountParts { helper, snapshots }: MountParts,
) -> Option<Mounted> {
    fs::create_dir_all(&dir).unwrap();
    let session = match Session::mount(&dir, options) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("SKIPPED {name}: this machine cannot mount FUSE: {error}");
            fs::remove_dir(&dir).unwrap();
            return None;
        }
    };
    let (handle, metrics) = (session.unmount_handle(), Arc::<Metrics>::default());
    let mut dispatch = Dispatch::new(Arc::clone(&fs), options, Arc::clone(&metrics));
    if let Some(helper) = helper {
        dispatch = dispatch.with_launderer(Launderer::new(session.device().unwrap(), helper));
    }
    if let Some(snapshots) = snapshots {
        dispatch = dispatch.with_snapshots(snapshots);
    }
    let connection = session.device().unwrap();
    let session = std::thread::spawn(move || session.run(&dispatch));
    Some(Mounted { dir, fs, objects, metrics, connection, handle, session: Some(session) })
}

fn file_system(props: &[(&str, &str)], zone_size: u64) -> (Arc<ObjectSets>, Arc<Fs>) {
    let config = SimConfig { zone_count: 64, zone_size, ..SimConfig::default() };
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(SimDevice::new(config).unwrap())];
    let options = ImportOptions { cache_bytes: 4 << 20, ..ImportOptions::default() };
    let create = CreateOptions::named("test");
    let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(1)), &options).unwrap();
    let objects = ObjectSets::create(pool).unwrap();
    let dataset = Dataset::create_root(&objects, props).unwrap();
    Fs::format(&dataset, &Cred::default()).unwrap();
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    (objects, fs)
}

/// Calls this as another user. The kernel keeps the credentials of each thread, so only a thread changes them.
pub fn as_user<T: Send>(id: u32, call: impl FnOnce() -> T + Send) -> T {
    let other = || {
        set_thread_groups(&[]).unwrap();
        set_thread_gid(Gid::from_raw(id)).unwrap();
        set_thread_uid(Uid::from_raw(id)).unwrap();
        call()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(other).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// An ioctl on an open file that reads or writes a value of the size that its number says.
pub fn call<T>(file: &File, number: u32, value: &mut T) -> Result<(), i32> {
    assert_eq!((number >> 16 & 0x3fff) as usize, size_of::<T>());
    #[expect(unsafe_code, reason = "these calls have no wrapper anywhere")]
    // SAFETY: the call reads or writes as many bytes as its number says, and those are `value`'s.
    let done =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(number) as _, std::ptr::from_mut(value)) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}
