//! The server process of a mount.
//!
//! It opens the pool, mounts it, answers the kernel until the mount is gone, and commits what is left. The
//! way of unmounting does not matter. `umount`, `fusermount3 -u`, `terrane umount` and signals all only
//! unmount, and everything else follows from the end of the session. Meanwhile the server answers questions
//! on a socket ([`crate::control`]).
//!
//! The mount can outlive the server. With a holder of descriptors ([`crate::fd_store`]) a successor continues
//! after the server was killed, or after it stepped back, having committed everything ([`succession`]).
//!
//! Invariant: a socket that greets belongs to a mounted pool; from the end of the mount to the exit of the
//! process it sends nothing. The kernel decides when the mount has ended, not our threads, which learn of it
//! later: by then its number may be another mount's.

mod succession;

use crate::clock;
use crate::control::{self, ClientConnection, Command, Greeting, STOP_STEP_TIMEOUT, StopMode};
use crate::failure::{Failure, Outcome};
use crate::fd_store::{self, Facts, FdStore, InheritedMount};
use crate::idle;
use crate::jobs::{self, run_job};
use crate::logger;
use crate::members;
use crate::memory::{self, BYTES_MIN, MemoryBudget};
use crate::metrics::{self, MountMetrics};
use crate::open_pool::OpenPool;
use crate::query::{self, Query, Setting, validate_setting};
use crate::registry::Registry;
use crate::rewrite_job;
use crate::target::{self, Target};
use serde::Deserialize;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{File, Permissions};
use std::io::IsTerminal;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use succession::HandoverState;
use terrane_device::Identity;
use terrane_fuse::handover;
use terrane_fuse::mount::{
    Atime, MountError, MountMethod, TableWatch, abort_connection, list_mounts, other_namespaces,
};
use terrane_fuse::proto::ROOT_ID;
use terrane_fuse::session::{Drain, Negotiated};
use terrane_fuse::{Dispatch, Launderer, Metrics, MountOptions, Notifier, Session, UnmountHandle};
use terrane_pool::{ImportOptions, Pool};
use terrane_posix::Fs;

/// After a signal: how long users have before the mount is detached lazily.
const LAZY_UNMOUNT_AFTER: Duration = Duration::from_secs(5);
/// How often directories that lost names are shrunk.
const SHRINK_PERIOD: Duration = Duration::from_secs(1);
/// How often to check whether files are to be rewritten.
const REWRITE_PERIOD: Duration = Duration::from_millis(250);
/// Time limit for sending the result to clients that asked for the end.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait for users in other mount namespaces, by default.
const STOP_WAIT_SECONDS: u64 = 10;
/// How often to check whether the last of them has gone.
const STOP_POLL_PERIOD: Duration = Duration::from_millis(20);
/// After a lazy unmount: how long the mount may take to end if it is not in use.
const LAZY_STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of users in other namespaces that are named.
const USERS_NAMED_MAX: usize = 5;

/// What is to be mounted, where and how.
pub struct MountPlan {
    pub target: Target,
    pub dir: PathBuf,
    pub mount: MountOptions,
    pub import: ImportOptions,
    pub memory: MemoryBudget,
    /// Where births and frees of blocks are recorded, for a replay.
    pub record: Option<PathBuf>,
    /// Where scrapers connect.
    pub metrics: Option<TcpListener>,
    /// Properties for the life of the mount, with their values.
    pub properties: Vec<Setting>,
    /// The mount that a predecessor left.
    pub inherited: Option<InheritedMount>,
}

struct Shared {
    open_pool: OpenPool,
    fs: Arc<Fs>,
    metrics: Arc<Metrics>,
    greeting: Greeting,
    unmount: UnmountHandle,
    brake: Arc<Drain>,
    /// What a successor will read; empty if there is no holder.
    facts_file: OnceLock<(File, Mutex<Facts>)>,
    background_threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held while another supervisor is started.
    supervisor_lock: Mutex<()>,
    lifecycle: Mutex<Lifecycle>,
    lifecycle_changed: Condvar,
}

/// Where the mount comes from.
enum Origin {
    New(Option<HandoverState>),
    Inherited(Negotiated),
}

#[derive(Default)]
struct Lifecycle {
    /// Only while the session runs, which closes its own descriptor at the end: callers on an aborted mount
    /// must not wait for us.
    connection: Option<File>,
    ending: bool,
    ended: Option<Result<(), String>>,
    /// Connections that wait for the end, to report it.
    waiting: usize,
}

impl Shared {
    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        // A thread that panicked with it left plain fields, each of which is valid alone.
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the devices that the pool has now.
    fn greeting(&self) -> Greeting {
        let devices = self.open_pool.pool.device_handles();
        let devices = devices.iter().filter_map(|device| device.identity()).collect();
        Greeting { devices, ..self.greeting.clone() }
    }

    fn metrics_text(&self) -> String {
        metrics::render(&self.open_pool, Some(&MountMetrics { stats: self.metrics.snapshot(), fs: &self.fs }))
    }

    /// The mounts that show the file system: one, or several that share its connection. Its first mount point
    /// may show something else by now.
    fn mounts(&self) -> Vec<UnmountHandle> {
        let rows = list_mounts();
        // Checked after the table was read: a number that is no longer ours belongs to another file system.
        if !self.is_mounted() {
            return Vec::new();
        }
        let (Ok(rows), false) = (rows, self.greeting.dev.is_empty()) else {
            return vec![self.unmount.clone()];
        };
        rows.iter().rev().filter(|row| row.dev == self.greeting.dev).map(UnmountHandle::of).collect()
    }

    /// Aborts the mount wherever it is visible, while in use.
    fn abort_all(&self) -> Result<(), MountError> {
        let aborted = self.mounts().iter().try_for_each(UnmountHandle::abort);
        if !self.is_mounted() {
            return aborted;
        }
        // Another file system is mounted over it, or it is in use in other mount namespaces.
        abort_connection(&self.greeting.dev)
    }

    fn unmount_all(&self) -> Result<(), MountError> {
        self.mounts().iter().try_for_each(UnmountHandle::unmount)
    }

    /// Stops background jobs, so that they change nothing while this server ends.
    fn stop_housekeeping(&self) {
        let mut lifecycle = self.lifecycle();
        (lifecycle.ending, lifecycle.connection) = (true, None);
        drop(lifecycle);
        self.lifecycle_changed.notify_all();
        let threads =
            std::mem::take(&mut *self.background_threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // It sees `ending` after one step.
            let _ = thread.join();
        }
    }

    /// Sleeps. True: the server is ending.
    fn sleep(&self, time: Duration) -> bool {
        let lifecycle = self.lifecycle_changed.wait_timeout_while(self.lifecycle(), time, |it| !it.ending);
        lifecycle.unwrap_or_else(PoisonError::into_inner).0.ending
    }

    fn is_ending(&self) -> bool {
        self.lifecycle().ending
    }

    /// The mount has not ended in any namespace, and its number is ours.
    fn is_mounted(&self) -> bool {
        self.lifecycle().connection.as_ref().is_some_and(|connection| !handover::is_disconnected(connection))
    }

    /// `None`: it has not ended within this time.
    fn wait_for_end(&self, timeout: Duration) -> Option<Result<(), String>> {
        let lifecycle =
            self.lifecycle_changed.wait_timeout_while(self.lifecycle(), timeout, |it| it.ended.is_none());
        lifecycle.unwrap_or_else(PoisonError::into_inner).0.ended.clone()
    }

    /// Commits everything, with a time limit.
    fn sync_within(&self, timeout: Duration) -> Outcome {
        let (sender, receiver) = std::sync::mpsc::channel();
        let fs = Arc::clone(&self.fs);
        let sync = move || {
            // The client may have given up.
            let _ = sender.send(fs.sync());
        };
        std::thread::Builder::new().name("sync".into()).spawn(sync)?;
        match receiver.recv_timeout(timeout) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) => Err(Failure(format!("commit failed: {errno}"))),
            Err(_) => Err(Failure(format!("commit not finished after {timeout:?}; see the log"))),
        }
    }
}

/// Starts recording. A server that follows another appends to the same file.
fn start_recording(pool: &Pool, path: &Path) -> Outcome {
    let file = File::options().append(true).create(true).open(path);
    let recording = file.and_then(|file| pool.record(Box::new(file)));
    recording.map_err(Failure::io("opening the recording", path))
}

/// Mounts, reports that through `ready`, and returns when the mount has gone and the pool is closed.
pub fn serve(mut plan: MountPlan, registry: &Registry, ready: impl FnOnce()) -> Outcome {
    // Before the first thread has a heap of its own.
    terrane_fuse::process::share_heaps();
    // Before the mount, so that no signal finds a mount without a handler.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let known = plan.inherited.as_ref().map(|inherited| inherited.facts.devices.as_slice());
    let mut open_pool = OpenPool::open_known(&plan.target, &plan.import, known.unwrap_or_default())?;
    let pool = Arc::clone(&open_pool.pool);
    open_pool.mountpoint = Some(plan.dir.clone());
    if !plan.mount.default_permissions {
        // ACLs would have no effect: nothing checks permissions.
        plan.properties.push(Setting { name: "acltype".to_owned(), value: "off".to_owned() });
    }
    for setting in &plan.properties {
        if let Err(failure) = apply_setting(&open_pool, setting) {
            pool.abandon();
            return Err(failure);
        }
    }
    if let Some(path) = &plan.record
        && let Err(failure) = start_recording(&pool, path)
    {
        pool.abandon();
        return Err(failure);
    }
    let inherited = plan.inherited.take();
    open_pool.attach_caches();
    let begun = start_mount(open_pool, &plan, registry, inherited);
    let (shared, session, origin) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            pool.export()?;
            return Err(failure);
        }
    };
    match memory::start_enforcing(plan.memory, &shared.open_pool.pool, &shared.fs) {
        Ok(limit) => drop(shared.open_pool.memory.set(limit)),
        Err(failure) => {
            log::error!("memory limit not enforced: {failure}; only cache and dirty data are limited")
        }
    }
    let signalled = Arc::clone(&shared);
    std::thread::spawn(move || handle_signals(signals, &signalled));
    if let Some(listener) = plan.metrics.take() {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || metrics::serve(listener, Arc::new(move || shared.metrics_text())));
    }
    // Before housekeeping starts, which reads the flags that a remount has changed.
    let connection = session.device().map_err(Failure::io("duplicating the connection of", &plan.dir))?;
    let dispatch = Dispatch::new(Arc::clone(&shared.fs), &plan.mount, Arc::clone(&shared.metrics))
        .with_launderer(Launderer::new(connection, succession::page_drop_command));
    let keeping = Arc::clone(&shared);
    // After a take-over unlinked files may be open.
    let drains = matches!(origin, Origin::New(_));
    let (rewriting, indexing, watching) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
    *shared.background_threads.lock().unwrap_or_else(PoisonError::into_inner) = vec![
        std::thread::spawn(move || run_housekeeping(&keeping, drains)),
        std::thread::spawn(move || run_rewrites(&rewriting)),
        std::thread::spawn(move || bound_relocation_index(&indexing)),
        std::thread::spawn(move || succession::watch_supervisor(&watching)),
    ];

    let served = serve_kernel(&plan, &shared, session, origin, &dispatch, ready);
    log::info!("pool {}: unmounted from {}", plan.target.name, plan.dir.display());
    shared.stop_housekeeping();
    let exported = shared.open_pool.export().map_err(|Failure(error)| error);
    match &exported {
        Ok(()) => log::info!("pool {}: all changes committed", plan.target.name),
        Err(error) => log::error!("pool {}: export failed: {error}", plan.target.name),
    }
    // Before the lock is released: then the next mount may listen there.
    let socket = registry.control_socket(&plan.target.name);
    if let Err(error) = std::fs::remove_file(&socket) {
        log::warn!("removing {} failed: {error}", socket.display());
    }
    if let Some(holder) = FdStore::of_this_process()
        && let Err(failure) = holder.drop_device()
    {
        log::warn!("device descriptor not released: {failure}");
    }
    // A client that learns of the end may open the device at once, while this process is still exiting.
    shared.open_pool.pool.device_handles().iter().for_each(|device| device.unlock());
    report_end(&shared, exported.clone());
    exported.map_err(Failure)?;
    served
}

fn start_mount(
    open_pool: OpenPool,
    plan: &MountPlan,
    registry: &Registry,
    inherited: Option<InheritedMount>,
) -> Outcome<(Arc<Shared>, Session, Origin)> {
    let facts_file = OnceLock::new();
    let (fs, listener, session, origin, dev, since) = match inherited {
        Some(inherited) => {
            let fs = succession::take_over(&open_pool, &inherited)?;
            let negotiated = inherited.facts.negotiated;
            let (dev, since) = (inherited.facts.dev.clone(), inherited.facts.since);
            // The device may have moved since. A path that only this process can use is not recorded.
            if !plan.target.path.starts_with(members::FD_DIR) {
                register_name(registry, &plan.target);
            }
            let (session, control, handed_over) = succession::adopt(inherited, plan)?;
            let (file, facts) = handed_over;
            let _ = facts_file.set((file, Mutex::new(facts)));
            (fs, control, session, Origin::Inherited(negotiated), dev, since)
        }
        None => {
            let fs = Arc::clone(open_pool.fs()?);
            // The socket first: it can be refused, and that should not cost a mount and an unmount.
            let listener = listen(registry, &plan.target.name)?;
            register_name(registry, &plan.target);
            let state = HandoverState::new(&fs, &open_pool, &listener)?;
            let session =
                Session::mount(&plan.dir, &plan.mount.clone().with_dataset_options(&open_pool.dataset))?;
            let dev = list_mounts()?.into_iter().rfind(|row| row.dir == plan.dir).map(|row| row.dev);
            (fs, listener, session, Origin::New(state), dev.unwrap_or_default(), clock::seconds())
        }
    };
    let greeting = Greeting {
        pool: plan.target.name.clone(),
        id: open_pool.pool.label().id(),
        device: plan.target.path.clone(),
        mountpoint: plan.dir.clone(),
        pid: std::process::id(),
        dev,
        since,
        devices: Vec::new(),
    };
    let (unmount, brake) = (session.unmount_handle(), session.drain_handle());
    let lifecycle = Lifecycle { connection: Some(session.device()?), ..Lifecycle::default() };
    let shared = Arc::new(Shared {
        open_pool,
        fs,
        metrics: Arc::default(),
        greeting,
        unmount,
        brake,
        facts_file,
        background_threads: Mutex::default(),
        supervisor_lock: Mutex::default(),
        lifecycle: Mutex::new(lifecycle),
        lifecycle_changed: Condvar::new(),
    });
    let serving = Arc::clone(&shared);
    std::thread::spawn(move || serve_clients(&serving, &listener));
    Ok((shared, session, origin))
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

/// Sets a property for the life of the mount.
fn apply_setting(open_pool: &OpenPool, setting: &Setting) -> Outcome {
    validate_setting(setting, open_pool.pool.max_block())?;
    Ok(open_pool.dataset.set_temporary(&setting.name, &setting.value)?)
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

fn serve_kernel(
    plan: &MountPlan,
    shared: &Shared,
    session: Session,
    origin: Origin,
    dispatch: &Dispatch,
    ready: impl FnOnce(),
) -> Outcome {
    let dir = plan.dir.display();
    let served = match origin {
        Origin::New(state) => {
            let negotiated =
                session.negotiate().map_err(Failure::io("negotiating with the kernel on", &plan.dir))?;
            let Some(negotiated) = negotiated else {
                return Err(Failure(format!("mount failed: {dir} was unmounted before it was ready")));
            };
            if !negotiated.can_be_taken_over() {
                log::info!("{dir}: no handover with io_uring (-o uring): the mount ends with this process");
            } else if let Some(state) = state {
                let (file, facts) = state.store(&shared.greeting(), &session, negotiated)?;
                let _ = shared.facts_file.set((file, Mutex::new(facts)));
            }
            let device = plan.target.path.display();
            log::info!(device:%, read_only = plan.mount.read_only; "mounted on {dir}");
            ready();
            session.run_negotiated(&negotiated, dispatch)
        }
        Origin::Inherited(negotiated) => {
            log::info!("mount on {dir} taken over");
            ready();
            session.resume(&negotiated, dispatch, succession::page_drop_command())
        }
    };
    served.map_err(Failure::io("serving", &plan.dir))
}

/// The first signal unmounts: at once if idle, else lazily after [`LAZY_UNMOUNT_AFTER`] or at the next signal.
/// Later signals abort the mount.
fn handle_signals(mut signals: Signals, shared: &Shared) {
    let mut count = 0;
    // When a terminal closes, SIGHUP ends what runs in it. Otherwise it reopens the log, as with other
    // daemons.
    let in_terminal = std::io::stdin().is_terminal();
    loop {
        let (hangups, ends): (Vec<i32>, Vec<i32>) =
            signals.wait().partition(|signal| *signal == SIGHUP && !in_terminal);
        if !hangups.is_empty() {
            reopen_log();
        }
        if ends.is_empty() {
            continue;
        }
        count += 1;
        let outcome = match count {
            1 => unmount_on_signal(&mut signals, shared),
            _ => shared.abort_all(),
        };
        if let Err(error) = outcome {
            log::error!("unmount failed: {error}; another signal aborts the mount");
        }
    }
}

/// Reopens the log, and has the supervisor reopen its own, which is the same file.
fn reopen_log() {
    let supervisor_reopened = FdStore::of_this_process().map_or(Ok(()), |holder| holder.reopen_log());
    match logger::reopen().and(supervisor_reopened) {
        Ok(()) => log::info!("log reopened (SIGHUP)"),
        Err(failure) => log::error!("log not reopened (SIGHUP): {failure}"),
    }
}

fn unmount_on_signal(signals: &mut Signals, shared: &Shared) -> Result<(), MountError> {
    log::info!("unmounting {} (signal)", shared.unmount.path().display());
    let begun = Instant::now();
    while let Err(error) = shared.unmount_all() {
        if begun.elapsed() > LAZY_UNMOUNT_AFTER || signals.pending().any(|signal| signal != SIGHUP) {
            log::warn!("unmount failed: {error}; detaching it, it ends with its last user");
            return shared.mounts().iter().try_for_each(UnmountHandle::detach);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Housekeeping: destroys the unlinked files that a crash left, which opening the file system only started.
/// Then shrinks directories and stores the error log.
fn run_housekeeping(shared: &Shared, drains: bool) {
    if drains {
        drain_unlinked(shared);
    }
    let mut flags = FlagWatch::new(shared);
    let mut recorded = Ok(());
    let mut counted = Ok(());
    // About once per txg: directories that lost names in one are shrunk in the next.
    while !shared.open_pool.pool.is_read_only() && !shared.sleep(SHRINK_PERIOD) {
        flags.poll(shared);
        let mut pace = || (!shared.is_ending()).then_some(1);
        run_job(&shared.fs.shrink_dirs(), "shrinking directories failed", &mut pace);
        invalidate_restored(shared);
        count_owners(shared, &mut counted);
        let outcome = shared.fs.record_new_errors().map_err(|error| error.to_string());
        if let Err(error) = &outcome
            && outcome != recorded
        {
            log::warn!("pool {}: storing the error log failed: {error}", shared.open_pool.pool.name());
        }
        recorded = outcome;
    }
}

/// Counts what is not yet counted for its owners, after an upgrade. `last`: the last outcome, which is logged once.
fn count_owners(shared: &Shared, last: &mut Result<(), String>) {
    let outcome = loop {
        match shared.fs.dataset().count_owners() {
            Ok(true) if !shared.is_ending() => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error.to_string()),
        }
    };
    if let Err(error) = &outcome
        && outcome != *last
    {
        log::warn!("pool {}: counting for owners failed: {error}", shared.open_pool.pool.name());
    }
    *last = outcome;
}

/// Has the kernel ask again for the blocks of inodes that background jobs have stored in another form.
fn invalidate_restored(shared: &Shared) {
    let inodes = shared.fs.take_restored();
    if inodes.is_empty() {
        return;
    }
    let Some(connection) = shared.lifecycle().connection.as_ref().and_then(|file| file.try_clone().ok())
    else {
        return;
    };
    let notifier = Notifier::new(connection);
    for ino in inodes {
        let node = if ino == shared.fs.root() { ROOT_ID } else { ino };
        if let Err(error) = notifier.invalidate_attributes(node) {
            log::debug!("invalidating attributes of inode {ino} failed: {error}");
        }
    }
}

/// Watches per-mount flags for access times, which this server implements: a remount changes them, and the
/// kernel sends no request for that.
struct FlagWatch {
    /// `None`: the mount table cannot be watched.
    mount_table: Option<TableWatch>,
    atime: Option<Atime>,
}

impl FlagWatch {
    fn new(shared: &Shared) -> FlagWatch {
        let table = TableWatch::new()
            .inspect_err(|error| log::warn!("watching /proc/self/mountinfo failed: {error}"))
            .ok();
        let mut watch = FlagWatch { mount_table: table, atime: None };
        watch.read(shared);
        // A mount by fusermount3 does not always have the flags that were given.
        if MountMethod::for_this_process() == MountMethod::Kernel
            && let Some(atime) = watch.atime
        {
            shared.fs.set_access_times(atime.into());
        }
        watch
    }

    fn poll(&mut self, shared: &Shared) {
        let before = self.atime;
        if self.mount_table.as_ref().is_some_and(TableWatch::has_changed) {
            self.read(shared);
        }
        if let Some(atime) = self.atime.filter(|_| self.atime != before) {
            shared.fs.set_access_times(atime.into());
        }
    }

    fn read(&mut self, shared: &Shared) {
        let rows = list_mounts().unwrap_or_default();
        let atime = Atime::of_mounts(rows.iter().filter(|row| row.dev == shared.greeting.dev));
        self.atime = atime.or(self.atime);
    }
}

/// Runs rewrites on request, and recompression in idle time.
fn run_rewrites(shared: &Shared) {
    terrane_fuse::process::lower_priority();
    let mut watch = idle::IdleWatch::new();
    while !shared.open_pool.pool.is_read_only() && !shared.sleep(REWRITE_PERIOD) {
        let (fs, pool) = (&shared.fs, &shared.open_pool.pool);
        let (requests, sleep) = (|| shared.metrics.answered_count(), |time| shared.sleep(time));
        rewrite_job::continue_rewrite(fs, pool, &requests, &sleep);
        watch.run_if_idle(fs, pool, &requests, &sleep);
    }
}

/// Keeps the relocation index within its limit.
fn bound_relocation_index(shared: &Shared) {
    terrane_fuse::process::lower_priority();
    while !shared.open_pool.pool.is_read_only() && !shared.sleep(REWRITE_PERIOD) {
        jobs::shrink_relocation_index(&shared.fs, &shared.open_pool.pool, &|time| shared.sleep(time));
    }
}

fn drain_unlinked(shared: &Shared) {
    while !shared.is_ending() {
        match shared.fs.drain_unlinked() {
            Ok(true) => {}
            Ok(false) => return,
            Err(errno) => return log::warn!("destroying unlinked files failed: {errno}"),
        }
    }
}

fn serve_clients(shared: &Arc<Shared>, listener: &UnixListener) {
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                let shared = Arc::clone(shared);
                let answer = move || serve_client(&shared, stream);
                // If no thread can be started for one client, later ones may get one.
                if let Err(error) = std::thread::Builder::new().name("client".into()).spawn(answer) {
                    log::error!("command not answered, no thread started: {error}");
                }
            }
            Err(error) => {
                log::error!("control socket failed: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

fn serve_client(shared: &Shared, stream: UnixStream) {
    if !shared.is_mounted() {
        let _ = shared.wait_for_end(Duration::MAX);
        return;
    }
    let mut client = ClientConnection::new(stream);
    let Some(question) = client.greet(&shared.greeting()) else { return };
    if let Ok(command) = Command::deserialize(&question) {
        return run_command(shared, command, &mut client);
    }
    match Query::deserialize(&question) {
        // The one question that is not about the pool alone.
        Ok(Query::Metrics) => client.answer(Ok(shared.metrics_text().into())),
        Ok(query) => {
            if let Query::Add { path, .. } = &query
                && let Err(failure) = record_device(shared, path)
            {
                return client.answer(Err(failure));
            }
            // Progress comes from many threads, and lines must not mix.
            let line = Mutex::new(&mut client);
            let outcome = query.answer(&shared.open_pool, &|what, done, total| {
                line.lock().unwrap_or_else(PoisonError::into_inner).progress(what, done, total);
            });
            client.answer(outcome);
        }
        Err(_) => client.answer(Err(Failure(format!(
            "unsupported request {question}; is the daemon of another version?"
        )))),
    }
}

fn run_command(shared: &Shared, command: Command, client: &mut ClientConnection) {
    match command {
        Command::Stop { how, seconds } => {
            stop(shared, how, Duration::from_secs(seconds.unwrap_or(STOP_WAIT_SECONDS)), client);
        }
        Command::StepBack { read_only } => {
            let refused = succession::step_back(shared, read_only, client);
            client.answer(Err(refused));
        }
        Command::Sync => {
            let synced = shared.fs.sync().map_err(|errno| Failure(format!("commit failed: {errno}")));
            client.answer(synced.map(|()| Value::Null));
        }
        Command::Memory { bytes } => client.answer(change_memory(shared, bytes)),
    }
}

/// A successor may find this device in the pool, so it is recorded before it is added.
fn record_device(shared: &Shared, path: &Path) -> Outcome {
    let Some((facts_file, facts)) = shared.facts_file.get() else { return Ok(()) };
    let identity = Identity::of(path).map_err(Failure::io("examining", path))?;
    let mut facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    facts.devices.push(identity);
    fd_store::write_facts(facts_file, &facts)
}

/// Sets another memory limit, also for successors.
fn change_memory(shared: &Shared, bytes: u64) -> Outcome<Value> {
    if bytes < BYTES_MIN {
        return Err(Failure(format!(
            "memory limit refused: expected at least {BYTES_MIN} bytes, found {bytes}"
        )));
    }
    let limit = shared.open_pool.memory.get();
    let limit =
        limit.ok_or_else(|| Failure("memory limit not enforced on this mount; see its log".into()))?;
    if let Some((facts_file, facts)) = shared.facts_file.get() {
        let mut facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.memory = Some(bytes);
        fd_store::write_facts(facts_file, &facts)?;
    }
    limit.change(MemoryBudget::of(bytes), &shared.open_pool.pool, &shared.fs);
    Ok(query::value(&limit.status(&shared.open_pool.pool, Some(&shared.fs))))
}

fn stop(shared: &Shared, how: StopMode, timeout: Duration, client: &mut ClientConnection) {
    shared.lifecycle().waiting += 1;
    client.answer(end_mount(shared, how, timeout));
    shared.lifecycle().waiting -= 1;
    shared.lifecycle_changed.notify_all();
}

/// Unmounts, and waits until the mount has ended in all namespaces and everything is committed.
fn end_mount(shared: &Shared, how: StopMode, timeout: Duration) -> Outcome<Value> {
    match how {
        StopMode::WhenIdle => {
            let busy = |error| match error {
                error @ MountError::Covered { .. } => Failure(format!("{error}; unmount that first")),
                error @ MountError::Unreachable { .. } => {
                    Failure(format!("{error}; unmount what is mounted above it, or see --force"))
                }
                error => Failure(format!(
                    "{error}; end what uses it (see `fuser -vm`) and try again, or see --lazy and --force"
                )),
            };
            shared.unmount_all().map_err(busy)?;
        }
        StopMode::Lazily => shared.mounts().iter().try_for_each(UnmountHandle::detach)?,
        StopMode::ByForce => {
            shared.sync_within(STOP_STEP_TIMEOUT)?;
            shared.abort_all()?;
        }
    }
    let begun = Instant::now();
    // A lazy unmount reports whether users are left, and does not wait for them.
    let timeout = if how == StopMode::Lazily { LAZY_STOP_TIMEOUT } else { timeout };
    while shared.is_mounted() && begun.elapsed() < timeout {
        shared.sleep(STOP_POLL_PERIOD);
    }
    if shared.is_mounted() {
        shared.sync_within(STOP_STEP_TIMEOUT)?;
        let users = users_elsewhere(shared);
        if how == StopMode::Lazily {
            return Ok(json!({"stays": users}));
        }
        let pool = format_args!("pool {}", shared.greeting.pool);
        let remedy = "it is unmounted here, committed, and stays open: end these users, or use `terrane umount --force`";
        return Err(Failure::refused(pool, "no user in other mount namespaces", users, remedy));
    }
    match shared.wait_for_end(STOP_STEP_TIMEOUT) {
        Some(ended) => ended.map(|()| Value::Null).map_err(Failure),
        None => Err(Failure(format!(
            "pool {}: unmounted, but the commit has not finished after {STOP_STEP_TIMEOUT:?}; the server continues, see its log",
            shared.greeting.pool
        ))),
    }
}

/// Names the processes that have the mount in namespaces that this process does not see.
fn users_elsewhere(shared: &Shared) -> String {
    let found = other_namespaces(&shared.greeting.dev).unwrap_or_default();
    let mut named: Vec<String> = found
        .iter()
        .take(USERS_NAMED_MAX)
        .map(|user| format!("process {} ({}) at {}", user.pid, user.command, user.dir.display()))
        .collect();
    match (found.len(), found.len().saturating_sub(USERS_NAMED_MAX)) {
        (0, _) => {
            return "open files, or processes that are not visible here".to_owned();
        }
        (_, 0) => {}
        (_, more) => named.push(format!("{more} more")),
    }
    named.join(", ")
}

fn report_end(shared: &Shared, outcome: Result<(), String>) {
    let mut lifecycle = shared.lifecycle();
    lifecycle.ended = Some(outcome);
    shared.lifecycle_changed.notify_all();
    let wait_result =
        shared.lifecycle_changed.wait_timeout_while(lifecycle, END_REPORT_TIMEOUT, |it| it.waiting > 0);
    drop(wait_result);
}
