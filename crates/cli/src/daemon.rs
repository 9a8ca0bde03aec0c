//! The server process of a pool.
//!
//! It opens the pool, mounts a data set, and answers the kernel until that mount is gone. Commands add mounts of
//! other data sets ([`mounted`]). When the last mount has ended, the server commits what is left and exits. The
//! way of unmounting does not matter. `umount`, `fusermount3 -u`, `terrane umount` and signals all only
//! unmount, and everything else follows from the end of a session. Meanwhile the server answers questions
//! on a socket ([`requests`], [`crate::control`]).
//!
//! The mounts can outlive the server. With a holder of descriptors ([`crate::fd_store`]) a successor continues
//! after the server was killed, or after it stepped back, having committed everything ([`succession`]).
//!
//! Invariant: a server that greets on its socket has a mount of the pool. From the end of the last mount to the exit of the
//! process it sends nothing. The kernel decides when a mount has ended, not our threads, which learn of it
//! later: by then its number may be another mount's.

mod ending;
mod follow;
mod kept;
mod lost_files;
mod mounted;
mod requests;
mod rollback;
mod succession;

use crate::control::{self, Greeting};
use crate::failure::{Failure, Outcome};
use crate::fd_store::{Facts, FdStore, Inherited, MountFacts};
use crate::jobs;
use crate::members;
use crate::memory::{self, MemoryBudget};
use crate::metrics::{self, MountMetrics};
use crate::open_pool::{MountedAt, OpenPool};
use crate::query::record_boot_mounts;
use crate::registry::Registry;
use crate::target::{self, Target};
use kept::KeptByMounts;
pub use mounted::MountSpec;
use mounted::{MountedSet, NewMount, REWRITE_PERIOD, mount_here};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use terrane_device::{Device, DeviceKind};
use terrane_fuse::Metrics;
use terrane_pool::{ImportOptions, Pool};

/// Time limit for sending the result to clients that asked for the end.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a store that does not answer is waited for when the last mount has ended.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// The parameters of a server.
pub struct ServePlan {
    pub target: Target,
    /// The first mount. After a take-over only its options are used.
    pub first: MountSpec,
    pub import: ImportOptions,
    pub memory: MemoryBudget,
    /// Whether mounts keep changes for a successor.
    pub is_crashproof: bool,
    /// How often to look for a newer state, which another machine has written.
    pub follow: Option<Duration>,
    /// Where births and frees of blocks are recorded, for a replay.
    pub record: Option<PathBuf>,
    /// Where scrapers connect.
    pub metrics: Option<TcpListener>,
    /// The descriptors and facts that a predecessor left.
    pub inherited: Option<Inherited>,
}

struct Shared {
    target: Target,
    /// The view of the root data set. A server that follows the pool replaces it.
    open_pool: RwLock<OpenPool>,
    /// Of all mounts.
    metrics: Arc<Metrics>,
    /// The socket for commands, to be left with a holder.
    control: UnixListener,
    /// The mounts follow another machine.
    follows: bool,
    /// What a successor will read; empty if there is no holder.
    facts_file: OnceLock<(File, Mutex<Facts>)>,
    background_threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held while another supervisor is started.
    supervisor_lock: Mutex<()>,
    lifecycle: Mutex<Lifecycle>,
    lifecycle_changed: Condvar,
}

#[derive(Default)]
struct Lifecycle {
    /// By number.
    mounts: BTreeMap<u32, Arc<MountedSet>>,
    /// The number of the next mount. The facts of the pool contain those of mount 0, so this number is never reused.
    next_number: u32,
    /// The server is ending: no mount may begin, and background jobs stop.
    ending: bool,
    ended: Option<Result<(), String>>,
    /// Why the session of the last mount failed.
    failure: Option<Failure>,
    /// Connections that wait for the end, to report it.
    waiting: usize,
}

impl Shared {
    fn open_pool(&self) -> OpenPool {
        // A thread that panicked with it left a whole value.
        self.open_pool.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        // A thread that panicked with it left plain fields, each of which is valid alone.
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_sleepers(&self) {
        // Takes the lock, so that no thread is between its check and its sleep.
        drop(self.lifecycle());
        self.lifecycle_changed.notify_all();
    }

    /// All mounts, also those that are ending.
    fn mounts(&self) -> Vec<Arc<MountedSet>> {
        self.lifecycle().mounts.values().cloned().collect()
    }

    /// The greeting, with the devices that the pool has now and the mounts that still exist.
    fn greeting(&self) -> Greeting {
        let devices = self.open_pool().device_handles();
        let mounts: Vec<_> =
            self.mounts().iter().filter(|mount| mount.is_mounted()).map(|mount| mount.greeted()).collect();
        let first = mounts.first().cloned();
        Greeting {
            pool: self.target.name.clone(),
            id: self.open_pool().pool.label().id(),
            device: self.target.path.clone(),
            mountpoint: first.as_ref().map(|mount| mount.dir.clone()).unwrap_or_default(),
            pid: std::process::id(),
            dev: first.as_ref().map(|mount| mount.dev.clone()).unwrap_or_default(),
            since: first.as_ref().map_or(0, |mount| mount.since),
            devices: devices.iter().filter_map(|device| device.identity()).collect(),
            read_only: self.open_pool().pool.is_read_only(),
            mounts,
        }
    }

    fn metrics_text(&self) -> String {
        let (stats, file_systems) = (self.metrics.snapshot(), self.open_pool().mounts.file_systems());
        metrics::render(&self.open_pool(), Some(&MountMetrics { stats, file_systems }))
    }

    /// Adds a mount to the table.
    fn insert(&self, mount: &Arc<MountedSet>, row: MountedAt) -> Outcome {
        let mut lifecycle = self.lifecycle();
        if lifecycle.ending {
            let (expected, found) = ("a pool with a mount", "one whose last mount has just ended");
            return Err(Failure::refused(mount.name(), expected, found, "mount it again"));
        }
        lifecycle.mounts.insert(mount.number, Arc::clone(mount));
        self.open_pool().mounts.add(row);
        drop(lifecycle);
        self.share_memory();
        Ok(())
    }

    /// Divides the share of the memory limit for inodes and indexes among the file systems.
    fn share_memory(&self) {
        if let Some(limit) = self.open_pool().memory.get() {
            limit.share_among(&self.open_pool().mounts.file_systems());
        }
    }

    /// Ends a mount whose session has ended: closes its file system, commits, and removes it from the table. For the last
    /// mount, the export of the pool closes and commits.
    fn finish(&self, mount: &MountedSet, served: Outcome) {
        let is_last = {
            let mut lifecycle = self.lifecycle();
            // If other mounts end at this moment too, the export closes the file systems of all of them.
            lifecycle.ending |= lifecycle.mounts.values().all(|other| other.is_ending());
            lifecycle.ending
        };
        if is_last {
            // Also for others, whose commits may wait for a store that is away.
            self.open_pool().pool.hurry(END_PATIENCE);
        }
        if let Err(failure) = &served {
            log::error!("{failure}");
        }
        if !is_last && let Err(failure) = self.close(mount) {
            log::error!("{}: commit after the unmount failed: {failure}", mount.name());
            // The thread of this mount alone sets it.
            let _ = mount.close_failure.set(failure.0);
        }
        let mut lifecycle = self.lifecycle();
        lifecycle.mounts.remove(&mount.number);
        if is_last {
            // Its row stays for the export, which records the losses of its file system.
            lifecycle.failure = served.err().or(lifecycle.failure.take());
        } else {
            self.open_pool().mounts.remove(mount.number);
        }
        drop(lifecycle);
        self.lifecycle_changed.notify_all();
        self.share_memory();
    }

    fn close(&self, mount: &MountedSet) -> Outcome {
        if let Some(fs) = mount.view().fs.get() {
            fs.log_losses();
            drop(fs);
            if let Err(error) = self.open_pool().dataset().record_errors() {
                log::warn!("pool {}: storing the error log failed: {error}", mount.view().pool.name());
            }
        }
        mount.view().fs.close();
        let committed =
            if mount.view().pool.is_read_only() { Ok(()) } else { mount.view().pool.commit().map(drop) };
        if let Some(holder) = FdStore::of_this_process()
            && mount.is_held.load(std::sync::atomic::Ordering::Acquire)
            && let Err(failure) = holder.drop_mount(mount.number)
        {
            // The next server finds that the mount has ended.
            log::warn!("{}: descriptors not released: {failure}", mount.name());
        }
        Ok(committed?)
    }

    /// Stops background jobs, so that they change nothing while this server ends.
    fn stop_housekeeping(&self) {
        self.lifecycle().ending = true;
        self.lifecycle_changed.notify_all();
        self.mounts().iter().for_each(|mount| mount.stop_jobs(self));
        let threads =
            std::mem::take(&mut *self.background_threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // It sees `ending` after one step.
            let _ = thread.join();
        }
    }

    fn sleep_while(&self, time: Duration, goes_on: impl Fn(&Lifecycle) -> bool) -> bool {
        let slept = self.lifecycle_changed.wait_timeout_while(self.lifecycle(), time, |it| goes_on(it));
        let lifecycle = slept.unwrap_or_else(PoisonError::into_inner).0;
        !goes_on(&lifecycle)
    }

    /// Sleeps. True: the server is ending.
    fn sleep(&self, time: Duration) -> bool {
        self.sleep_while(time, |it| !it.ending)
    }

    /// Sleeps. True: the mount, or the server, is ending.
    fn sleep_for(&self, mount: &MountedSet, time: Duration) -> bool {
        self.sleep_while(time, |it| !it.ending && !mount.is_ending())
    }

    /// Whether any mount has not ended, in any namespace.
    fn is_mounted(&self) -> bool {
        self.mounts().iter().any(|mount| mount.is_mounted())
    }

    /// Waits until the last mount has ended.
    fn wait_until_unmounted(&self) -> Outcome {
        let lifecycle = self.lifecycle_changed.wait_while(self.lifecycle(), |it| !it.mounts.is_empty());
        let mut lifecycle = lifecycle.unwrap_or_else(PoisonError::into_inner);
        lifecycle.ending = true;
        lifecycle.failure.take().map_or(Ok(()), Err)
    }

    /// `None`: it has not ended within this time.
    fn wait_for_end(&self, timeout: Duration) -> Option<Result<(), String>> {
        let lifecycle =
            self.lifecycle_changed.wait_timeout_while(self.lifecycle(), timeout, |it| it.ended.is_none());
        lifecycle.unwrap_or_else(PoisonError::into_inner).0.ended.clone()
    }

    /// Commits everything.
    fn sync(&self) -> Outcome {
        let failed = |errno| Failure(format!("commit failed: {errno}"));
        // Each reports the losses of its own data set.
        let file_systems = self.open_pool().mounts.file_systems();
        let synced = file_systems.iter().map(|fs| fs.sync().map_err(failed));
        synced.fold(Ok(()), Outcome::and)
    }

    /// Commits everything, with a time limit.
    fn sync_within(self: &Arc<Self>, timeout: Duration) -> Outcome {
        let (sender, receiver) = std::sync::mpsc::channel();
        let shared = Arc::clone(self);
        let sync = move || {
            // The client may have given up.
            let _ = sender.send(shared.sync());
        };
        std::thread::Builder::new().name("sync".into()).spawn(sync)?;
        receiver
            .recv_timeout(timeout)
            .unwrap_or_else(|_| Err(Failure(format!("commit not finished after {timeout:?}; see the log"))))
    }

    /// Gives the holder the descriptors of the pool, once.
    fn ensure_pool_is_held(&self, holder: &FdStore, first: &MountFacts) -> Outcome {
        if self.facts_file.get().is_some() {
            return Ok(());
        }
        let devices = self.greeting().devices;
        succession::store_device(holder, &self.target.path, &devices)?;
        let facts = Facts::new(self.open_pool().pool.label().id(), first.clone(), devices);
        let file = holder.store_pool(&self.control, &facts)?;
        // No other thread can have set it: mounts are added one after the other.
        let _ = self.facts_file.set((file, Mutex::new(facts)));
        Ok(())
    }
}

/// Starts recording. A server that follows another appends to the same file.
fn start_recording(pool: &Pool, path: &Path) -> Outcome {
    let file = File::options().append(true).create(true).open(path);
    let recording = file.and_then(|file| pool.record(Box::new(file)));
    recording.map_err(Failure::io("opening the recording", path))
}

/// Mounts, calls `ready`, and returns when the last mount has ended and the pool is closed.
pub fn serve(mut plan: ServePlan, registry: &Registry, ready: impl FnOnce()) -> Outcome {
    // Before the first thread has a heap of its own.
    terrane_fuse::process::share_heaps();
    terrane_fuse::process::raise_descriptor_limit();
    // Before the mount, so that no signal finds a mount without a handler.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let inherits = plan.inherited.is_some();
    let known = plan.inherited.as_ref().map(|inherited| inherited.facts.devices.as_slice());
    let kept = plan.inherited.as_ref().map_or_else(|| Ok(KeptByMounts::default()), KeptByMounts::read)?;
    let import = ImportOptions { expects_changes: !kept.is_empty(), ..plan.import.clone() };
    let open_pool = OpenPool::open_known(&plan.target, &import, known.unwrap_or_default())?;
    let open_pool = kept.replay(open_pool, plan.inherited.as_mut())?;
    open_pool.request_threads.store(plan.memory.request_threads(), Ordering::Relaxed);
    let pool = Arc::clone(&open_pool.pool);
    let is_bucket = |device: &Arc<dyn Device>| device.info().kind == DeviceKind::Bucket;
    let is_far = pool.device_handles().iter().any(is_bucket);
    let ring_bytes = if plan.is_crashproof { plan.memory.ring_bytes(is_far) } else { 0 };
    open_pool.ring_bytes.store(ring_bytes, Ordering::Relaxed);
    if plan.follow.is_some() && !is_far {
        pool.abandon();
        let (expected, found) = ("a pool in an object store", "one on devices of this machine");
        return Err(Failure::refused("mount option \"follow\"", expected, found, "omit follow"));
    }
    if let Some(path) = &plan.record
        && let Err(failure) = start_recording(&pool, path)
    {
        pool.abandon();
        return Err(failure);
    }
    let (follow, later_ring) = (plan.follow, if ring_bytes > 0 { plan.memory.ring_bytes(false) } else { 0 });
    let (budget, metrics, name) = (plan.memory, plan.metrics.take(), plan.target.name.clone());
    let (shared, mounts) = match begin(open_pool, plan, registry) {
        Ok(begun) => begun,
        // A commit would make the changes that the predecessor lost look committed to the next server.
        Err(failure) if inherits => {
            pool.abandon();
            return Err(failure);
        }
        Err(failure) => {
            pool.export()?;
            return Err(failure);
        }
    };
    // What is larger for a far pool is so once, not for each mount.
    shared.open_pool().ring_bytes.store(later_ring, Ordering::Relaxed);
    shared.open_pool().attach_caches();
    let file_systems: Vec<_> = mounts.iter().filter_map(|new| new.mount.view().fs.get()).collect();
    match memory::start_enforcing(budget, &pool, &file_systems) {
        Ok(limit) => drop(shared.open_pool().memory.set(limit)),
        Err(failure) => {
            log::error!("memory limit not enforced: {failure}; only cache and dirty data are limited")
        }
    }
    // A later state may take its place.
    drop((file_systems, pool));
    let signalled = Arc::clone(&shared);
    std::thread::spawn(move || ending::handle_signals(signals, &signalled));
    if let Some(listener) = metrics {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || metrics::serve(listener, Arc::new(move || shared.metrics_text())));
    }
    if let Some(period) = follow {
        let following = Arc::clone(&shared);
        std::thread::spawn(move || follow::run(&following, period, &import));
    }
    let (indexing, watching) = (Arc::clone(&shared), Arc::clone(&shared));
    *shared.background_threads.lock().unwrap_or_else(PoisonError::into_inner) = vec![
        std::thread::spawn(move || bound_relocation_index(&indexing)),
        std::thread::spawn(move || succession::watch_supervisor(&watching)),
    ];

    let (mut failed, mut added) = (None, Vec::new());
    for new in mounts {
        match new.add(&shared) {
            Ok(one) => added.push(one),
            Err((failure, session)) => {
                log::error!("{failure}");
                failed = Some(failure);
                // Unmounts. The server continues with its other mounts.
                drop(session);
            }
        }
    }
    // All are in the table before the first session begins: one that has ended meanwhile must not be taken for the last.
    added.into_iter().for_each(|one| one.run(&shared));
    let served = match failed {
        Some(failure) if shared.mounts().is_empty() => Err(failure),
        _ => {
            let serving = Arc::clone(&shared);
            std::thread::spawn(move || requests::serve_clients(&serving));
            ready();
            shared.wait_until_unmounted()
        }
    };
    let pool = shared.open_pool().pool;
    shared.stop_housekeeping();
    let exported = shared.open_pool().export().map_err(|Failure(error)| {
        let txg = pool.synced_txg();
        let kept = "What was synced after it is in the intent log, other changes are lost";
        format!(
            "pool {name}: unmounted, but not all is committed: {error}. The last commit is txg {txg}. {kept}"
        )
    });
    match &exported {
        Ok(()) => log::info!("pool {name}: all changes committed"),
        Err(error) => log::error!("{error}"),
    }
    // Before the lock is released: then the next mount may listen there.
    let socket = registry.control_socket(&name);
    if let Err(error) = std::fs::remove_file(&socket) {
        log::warn!("removing {} failed: {error}", socket.display());
    }
    if let Some(holder) = FdStore::of_this_process()
        && let Err(failure) = holder.drop_device()
    {
        log::warn!("device descriptor not released: {failure}");
    }
    // A client that learns of the end may open the device at once, while this process is still exiting.
    shared.open_pool().device_handles().iter().for_each(|device| device.unlock());
    report_end(&shared, exported.clone());
    exported.map_err(Failure)?;
    served
}

/// Mounts, or takes over the mounts of a predecessor. On return no session has begun.
fn begin(
    open_pool: OpenPool,
    mut plan: ServePlan,
    registry: &Registry,
) -> Outcome<(Arc<Shared>, Vec<NewMount>)> {
    let facts_file = OnceLock::new();
    // The first mount has the number 0.
    let mut next_number = 1;
    let (control, mounts) = match plan.inherited.take() {
        Some(mut inherited) => {
            rollback::make(&open_pool, &mut inherited)?;
            let taken = succession::take_over(&open_pool, &inherited, plan.first)?;
            next_number = inherited.next_number;
            // The device may have moved since. A path that only this process can use is not recorded.
            if !plan.target.path.starts_with(members::FD_DIR) {
                register_name(registry, &plan.target);
                record_boot_mounts(&open_pool);
            }
            let (mounts, control, handed_over) = succession::adopt(inherited, taken)?;
            let (file, facts) = handed_over;
            let _ = facts_file.set((file, Mutex::new(facts)));
            (control, mounts)
        }
        None => {
            let view = open_pool.view(&plan.first.dataset)?;
            plan.first.apply_to(&view)?;
            let fs = if plan.follow.is_some() { follow::open_followed(&view, None)? } else { view.fs()? };
            // The socket first: it can be refused, and that should not cost a mount and an unmount.
            let control = listen(registry, &plan.target.name)?;
            register_name(registry, &plan.target);
            // Another version may have changed properties since, or another machine.
            record_boot_mounts(&open_pool);
            (control, vec![mount_here(view, fs, plan.first)?])
        }
    };
    let shared = Arc::new(Shared {
        target: plan.target,
        open_pool: RwLock::new(open_pool),
        metrics: Arc::default(),
        control,
        follows: plan.follow.is_some(),
        facts_file,
        background_threads: Mutex::default(),
        supervisor_lock: Mutex::default(),
        lifecycle: Mutex::new(Lifecycle { next_number, ..Lifecycle::default() }),
        lifecycle_changed: Condvar::new(),
    });
    Ok((shared, mounts))
}

/// Records a pool that was mounted by path, unless its name means another one that still exists. Failing to
/// record it does not prevent the mount.
fn register_name(registry: &Registry, target: &Target) {
    let remembered = match target::other_pool_named(registry, &target.name, &target.path) {
        Ok(Some(other)) => {
            log::info!("pool {}: name not registered, it means the pool on {}", target.name, other.display());
            Ok(())
        }
        Ok(None) => registry.register(&target.name, &target.path).map(|before| {
            let before = before.filter(|before| *before != target.path);
            if let Some(before) = before {
                log::info!("pool {}: name registered, it meant {} before", target.name, before.display());
            }
        }),
        Err(failure) => Err(failure),
    };
    if let Err(failure) = remembered {
        log::warn!("pool {}: name not registered, use its device after this mount: {failure}", target.name);
    }
}

fn listen(registry: &Registry, name: &str) -> Outcome<UnixListener> {
    let socket = &registry.control_socket(name);
    // We hold the device's lock, so the process that left the socket is dead, or serves another pool of that
    // name.
    let is_served = || -> Outcome<bool> { Ok(control::connect(socket)?.is_some()) };
    let taken = is_served()?;
    let _lock = registry.lock_sockets()?;
    if taken || terrane_fuse::socket::connect(socket).is_ok() {
        let expected = "a name that no mounted pool has";
        let remedy = "unmount that one first";
        return Err(Failure::refused(
            format_args!("pool {name}"),
            expected,
            "a mounted pool of that name",
            remedy,
        ));
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::io("removing the old socket", socket)(error));
        }
        _ => {}
    }
    let listener = terrane_fuse::socket::listen(socket).map_err(Failure::io("listening on", socket))?;
    std::fs::set_permissions(socket, Permissions::from_mode(0o600))
        .map_err(Failure::io("setting the mode of", socket))?;
    Ok(listener)
}

/// Keeps the relocation index within its limit. Rewrites blocks of one mount after the other.
fn bound_relocation_index(shared: &Shared) {
    terrane_fuse::process::lower_priority();
    let pool = &shared.open_pool().pool;
    while !pool.is_read_only() && !shared.sleep(REWRITE_PERIOD) {
        for mount in shared.mounts().iter().filter(|mount| !mount.view().is_snapshot() && !mount.is_ending())
        {
            if let Some(fs) = mount.view().fs.get() {
                jobs::shrink_relocation_index(&fs, pool, &|time| shared.sleep_for(mount, time));
            }
        }
    }
}

fn report_end(shared: &Shared, outcome: Result<(), String>) {
    let mut lifecycle = shared.lifecycle();
    lifecycle.ended = Some(outcome);
    shared.lifecycle_changed.notify_all();
    let wait_result =
        shared.lifecycle_changed.wait_timeout_while(lifecycle, END_REPORT_TIMEOUT, |it| it.waiting > 0);
    drop(wait_result);
}
