//! The server process of a mount.
//!
//! It opens the pool, mounts it, answers the kernel until the mount is gone, and commits what is left. The
//! way of unmounting does not matter. `umount`, `fusermount3 -u`, `terrane umount` and signals all only
//! unmount, and everything else follows from the end of the session. Meanwhile the server answers questions
//! on a socket ([`crate::control`]).
//!
//! The mount can outlive the server. With a holder ([`crate::holder`]) a successor continues after the server
//! was killed, or after it stepped back, having committed everything ([`succession`]).
//!
//! Invariant: a socket that greets belongs to a mounted pool; from the end of the mount to the exit of the
//! process it is silent. The kernel decides when the mount has ended, not our threads, which learn of it
//! later: by then its number may be another mount's.

mod succession;

use crate::clock;
use crate::control::{self, Caller, Command, Greeting, How, STOP_STEP};
use crate::failure::{Failure, Outcome};
use crate::holder::{self, Facts, Holder, Legacy};
use crate::idle;
use crate::jobs::{self, run};
use crate::live::Live;
use crate::logger;
use crate::members;
use crate::memory::{self, BYTES_MIN, Memory};
use crate::metrics::{self, MountSide};
use crate::query::{self, Query, Setting, judge};
use crate::registry::Registry;
use crate::rewriting;
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
use succession::Estate;
use terrane_device::Identity;
use terrane_fuse::handover;
use terrane_fuse::mount::{Atime, MountError, TableWatch, Via, abort_connection, elsewhere, mounted};
use terrane_fuse::session::{Brake, Negotiated};
use terrane_fuse::{Dispatch, Launderer, Metrics, MountOptions, Session, UnmountHandle};
use terrane_pool::{ImportOptions, Pool};
use terrane_posix::Fs;

/// After a signal: how long users have before the mount is detached lazily.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How often directories that lost names are shrunk.
const SETTLE_PERIOD: Duration = Duration::from_secs(1);
/// How often to check whether files are to be rewritten.
const REWRITE_PERIOD: Duration = Duration::from_millis(250);
/// Time limit for sending the result to callers that asked for the end.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait for users in other mount namespaces, by default.
const STOP_WAIT_SECONDS: u64 = 10;
/// How often to check whether the last of them has gone.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// After a lazy unmount: how long the mount may take to end if it is not in use.
const LAZY_LOOK: Duration = Duration::from_millis(500);
/// Maximum number of users in other namespaces that are named.
const USERS_NAMED_MAX: usize = 5;

/// What is to be mounted, where and how.
pub struct Plan {
    pub target: Target,
    pub dir: PathBuf,
    pub mount: MountOptions,
    pub import: ImportOptions,
    pub memory: Memory,
    /// Where births and frees of blocks are recorded, for a replay.
    pub record: Option<PathBuf>,
    /// Where scrapers connect.
    pub metrics: Option<TcpListener>,
    /// Properties for the life of the mount, with their values.
    pub properties: Vec<Setting>,
    /// The mount that a predecessor left.
    pub legacy: Option<Legacy>,
}

struct Shared {
    live: Live,
    fs: Arc<Fs>,
    metrics: Arc<Metrics>,
    greeting: Greeting,
    unmount: UnmountHandle,
    brake: Arc<Brake>,
    /// What a successor will read; empty if there is no holder.
    page: OnceLock<(File, Mutex<Facts>)>,
    house: Mutex<Vec<JoinHandle<()>>>,
    /// Held while another keeper is started.
    keeper: Mutex<()>,
    stage: Mutex<Stage>,
    changed: Condvar,
}

/// Where the mount comes from.
enum Origin {
    New(Option<Estate>),
    Inherited(Negotiated),
}

#[derive(Default)]
struct Stage {
    /// Only while the session runs, which closes its own descriptor at the end: callers on an aborted mount
    /// must not wait for us.
    connection: Option<File>,
    ending: bool,
    ended: Option<Result<(), String>>,
    /// Connections that wait for the end, to report it.
    waiting: usize,
}

impl Shared {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        // A thread that panicked with it left plain fields, each of which is valid alone.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the devices that the pool has now.
    fn greeting(&self) -> Greeting {
        let devices = self.live.pool.device_handles();
        let devices = devices.iter().filter_map(|device| device.identity()).collect();
        Greeting { devices, ..self.greeting.clone() }
    }

    fn metrics_page(&self) -> String {
        metrics::page(&self.live, Some(&MountSide { stats: self.metrics.snapshot(), fs: &self.fs }))
    }

    /// The mounts that show the file system: one, or several that share its connection. Its first mount point
    /// may show something else by now.
    fn places(&self) -> Vec<UnmountHandle> {
        let rows = mounted();
        // Checked after the table was read: a number that is no longer ours belongs to another file system.
        if !self.stands() {
            return Vec::new();
        }
        let (Ok(rows), false) = (rows, self.greeting.dev.is_empty()) else {
            return vec![self.unmount.clone()];
        };
        rows.iter().rev().filter(|row| row.dev == self.greeting.dev).map(UnmountHandle::of).collect()
    }

    /// Aborts the mount wherever it is visible, while in use.
    fn abort_all(&self) -> Result<(), MountError> {
        let aborted = self.places().iter().try_for_each(UnmountHandle::abort);
        if !self.stands() {
            return aborted;
        }
        // Another file system is mounted over it, or it is in use in other mount namespaces.
        abort_connection(&self.greeting.dev)
    }

    fn unmount_all(&self) -> Result<(), MountError> {
        self.places().iter().try_for_each(UnmountHandle::unmount)
    }

    /// Stops background jobs, so that they change nothing while this server ends.
    fn end_housekeeping(&self) {
        let mut stage = self.stage();
        (stage.ending, stage.connection) = (true, None);
        drop(stage);
        self.changed.notify_all();
        let house = std::mem::take(&mut *self.house.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in house {
            // It sees `ending` after one step.
            let _ = thread.join();
        }
    }

    /// Sleeps. True: the server is ending.
    fn rest(&self, time: Duration) -> bool {
        let stage = self.changed.wait_timeout_while(self.stage(), time, |stage| !stage.ending);
        stage.unwrap_or_else(PoisonError::into_inner).0.ending
    }

    fn is_ending(&self) -> bool {
        self.stage().ending
    }

    /// The mount has not ended in any namespace, and its number is ours.
    fn stands(&self) -> bool {
        self.stage().connection.as_ref().is_some_and(|connection| !handover::is_ended(connection))
    }

    /// `None`: it has not ended within this time.
    fn wait_for_end(&self, patience: Duration) -> Option<Result<(), String>> {
        let stage = self.changed.wait_timeout_while(self.stage(), patience, |stage| stage.ended.is_none());
        stage.unwrap_or_else(PoisonError::into_inner).0.ended.clone()
    }

    /// Commits everything, with a time limit.
    fn sync_within(&self, patience: Duration) -> Outcome {
        let (tell, hear) = std::sync::mpsc::channel();
        let fs = Arc::clone(&self.fs);
        let sync = move || {
            // The caller may have given up.
            let _ = tell.send(fs.sync());
        };
        std::thread::Builder::new().name("sync".into()).spawn(sync)?;
        match hear.recv_timeout(patience) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) => Err(Failure(format!("not everything is committed: {errno}"))),
            Err(_) => Err(Failure(format!("not everything is committed after {patience:?}; see the log"))),
        }
    }
}

/// Starts recording. A server that follows another appends to the same file.
fn record(pool: &Pool, path: &Path) -> Outcome {
    let file = File::options().append(true).create(true).open(path);
    let recording = file.and_then(|file| pool.record(Box::new(file)));
    recording.map_err(Failure::io("beginning to record in", path))
}

/// Mounts, reports that through `ready`, and returns when the mount has gone and the pool is closed.
pub fn serve(mut plan: Plan, registry: &Registry, ready: impl FnOnce()) -> Outcome {
    // Before the first thread has a heap of its own.
    terrane_fuse::process::share_heaps();
    // Before the mount, so that no signal finds a mount without a handler.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let known = plan.legacy.as_ref().map(|legacy| legacy.facts.devices.as_slice());
    let mut live = Live::open_again(&plan.target, &plan.import, known.unwrap_or_default())?;
    let pool = Arc::clone(&live.pool);
    live.mountpoint = Some(plan.dir.clone());
    if !plan.mount.default_permissions {
        // ACLs would have no effect: nothing checks permissions.
        plan.properties.push(Setting { name: "acltype".to_owned(), value: "off".to_owned() });
    }
    for setting in &plan.properties {
        if let Err(failure) = obey(&live, setting) {
            pool.abandon();
            return Err(failure);
        }
    }
    if let Some(path) = &plan.record
        && let Err(failure) = record(&pool, path)
    {
        pool.abandon();
        return Err(failure);
    }
    let legacy = plan.legacy.take();
    live.attach_caches();
    let begun = begin(live, &plan, registry, legacy);
    let (shared, session, origin) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            pool.export()?;
            return Err(failure);
        }
    };
    match memory::watch(plan.memory, &shared.live.pool, &shared.fs) {
        Ok(allowance) => drop(shared.live.memory.set(allowance)),
        Err(failure) => log::error!("{failure}; memory is bounded by count alone"),
    }
    let leaving = Arc::clone(&shared);
    std::thread::spawn(move || leave_on_signals(signals, &leaving));
    if let Some(listener) = plan.metrics.take() {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || metrics::serve(listener, Arc::new(move || shared.metrics_page())));
    }
    // Before housekeeping starts, which reads the flags that a remount has changed.
    let connection = session.device().map_err(Failure::io("keeping the connection of", &plan.dir))?;
    let dispatch = Dispatch::new(Arc::clone(&shared.fs), &plan.mount, Arc::clone(&shared.metrics))
        .with_launderer(Launderer::new(connection, succession::forgetter));
    let keeping = Arc::clone(&shared);
    // After a take-over unlinked files may be open.
    let drains = matches!(origin, Origin::New(_));
    let (rewriting, bearing, watching) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
    *shared.house.lock().unwrap_or_else(PoisonError::into_inner) = vec![
        std::thread::spawn(move || keep_house(&keeping, drains)),
        std::thread::spawn(move || rewrite(&rewriting)),
        std::thread::spawn(move || bear_again(&bearing)),
        std::thread::spawn(move || succession::watch_keeper(&watching)),
    ];

    let served = answer_kernel(&plan, &shared, session, origin, &dispatch, ready);
    log::info!("pool {}: the mount on {} is gone", plan.target.name, plan.dir.display());
    shared.end_housekeeping();
    let exported = shared.live.export().map_err(|Failure(error)| error);
    match &exported {
        Ok(()) => log::info!("pool {}: everything is committed", plan.target.name),
        Err(error) => log::error!("pool {}: {error}", plan.target.name),
    }
    // Before the lock is released: then the next mount may listen there.
    let socket = registry.socket(&plan.target.name);
    if let Err(error) = std::fs::remove_file(&socket) {
        log::warn!("{}: {error}", socket.display());
    }
    if let Some(holder) = Holder::of_this_process()
        && let Err(failure) = holder.let_go_of_device()
    {
        log::warn!("{failure}");
    }
    // A caller that learns of the end may open the device at once, while this process is still exiting.
    shared.live.pool.device_handles().iter().for_each(|device| device.unlock());
    farewell(&shared, exported.clone());
    exported.map_err(Failure)?;
    served
}

fn begin(
    live: Live,
    plan: &Plan,
    registry: &Registry,
    legacy: Option<Legacy>,
) -> Outcome<(Arc<Shared>, Session, Origin)> {
    let page = OnceLock::new();
    let (fs, listener, session, origin, dev, since) = match legacy {
        Some(legacy) => {
            let fs = succession::take_over(&live, &legacy)?;
            let negotiated = legacy.facts.negotiated;
            let (dev, since) = (legacy.facts.dev.clone(), legacy.facts.since);
            // The device may have moved since. A path that only this process can use is not recorded.
            if !plan.target.path.starts_with(members::NAMELESS) {
                remember(registry, &plan.target);
            }
            let (session, control, kept) = succession::adopt(legacy, plan)?;
            let (file, facts) = kept;
            let _ = page.set((file, Mutex::new(facts)));
            (fs, control, session, Origin::Inherited(negotiated), dev, since)
        }
        None => {
            let fs = Arc::clone(live.fs()?);
            // The socket first: it can be refused, and that should not cost a mount and an unmount.
            let listener = listen(registry, &plan.target.name)?;
            remember(registry, &plan.target);
            let estate = Estate::new(&fs, &live, &listener)?;
            let session = Session::mount(&plan.dir, &plan.mount.clone().of_dataset(&live.dataset))?;
            let dev = mounted()?.into_iter().rfind(|row| row.dir == plan.dir).map(|row| row.dev);
            (fs, listener, session, Origin::New(estate), dev.unwrap_or_default(), clock::seconds())
        }
    };
    let greeting = Greeting {
        pool: plan.target.name.clone(),
        id: live.pool.label().id(),
        device: plan.target.path.clone(),
        mountpoint: plan.dir.clone(),
        pid: std::process::id(),
        dev,
        since,
        devices: Vec::new(),
    };
    let (unmount, brake) = (session.unmount_handle(), session.brake());
    let stage = Stage { connection: Some(session.device()?), ..Stage::default() };
    let shared = Arc::new(Shared {
        live,
        fs,
        metrics: Arc::default(),
        greeting,
        unmount,
        brake,
        page,
        house: Mutex::default(),
        keeper: Mutex::default(),
        stage: Mutex::new(stage),
        changed: Condvar::new(),
    });
    let serving = Arc::clone(&shared);
    std::thread::spawn(move || answer_callers(&serving, &listener));
    Ok((shared, session, origin))
}

/// Records a pool that was mounted by path, unless its name means another one that still exists. Failing to
/// record it does not prevent the mount.
fn remember(registry: &Registry, target: &Target) {
    let remembered = match target::namesake(registry, &target.name, &target.path) {
        Ok(Some(other)) => {
            log::info!("pool {}: its name goes on meaning the one on {}", target.name, other.display());
            Ok(())
        }
        Ok(None) => registry.remember(&target.name, &target.path).map(|before| {
            let before = before.filter(|before| *before != target.path);
            if let Some(before) = before {
                log::info!("pool {}: its name meant {} before", target.name, before.display());
            }
        }),
        Err(failure) => Err(failure),
    };
    if let Err(failure) = remembered {
        log::warn!("pool {} is not known by its name after this mount: {failure}", target.name);
    }
}

/// Sets a property for the life of the mount.
fn obey(live: &Live, setting: &Setting) -> Outcome {
    judge(setting, live.pool.max_block())?;
    Ok(live.dataset.obey_for_now(&setting.name, &setting.value)?)
}

fn listen(registry: &Registry, name: &str) -> Outcome<UnixListener> {
    let socket = &registry.socket(name);
    // We hold the device's lock, so the process that left the socket is dead, or serves another pool of that
    // name.
    let is_served = || -> Outcome<bool> { Ok(control::connect(socket)?.is_some()) };
    let taken = is_served()?;
    let _lock = registry.lock_sockets()?;
    if taken || terrane_fuse::socket::connect(socket).is_ok() {
        let expected = "a pool whose name no mounted one has";
        let remedy = "unmount that one first";
        return Err(Failure::refused(format_args!("pool {name}"), expected, "another of that name", remedy));
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::io("removing the old socket", socket)(error));
        }
        _ => {}
    }
    let listener = terrane_fuse::socket::listen(socket).map_err(Failure::io("listening on", socket))?;
    std::fs::set_permissions(socket, Permissions::from_mode(0o600))
        .map_err(Failure::io("closing to others", socket))?;
    Ok(listener)
}

fn answer_kernel(
    plan: &Plan,
    shared: &Shared,
    session: Session,
    origin: Origin,
    dispatch: &Dispatch,
    ready: impl FnOnce(),
) -> Outcome {
    let dir = plan.dir.display();
    let served = match origin {
        Origin::New(estate) => {
            let negotiated =
                session.negotiate().map_err(Failure::io("agreeing with the kernel on", &plan.dir))?;
            let Some(negotiated) = negotiated else {
                return Err(Failure(format!("{dir}: unmounted before it was ready")));
            };
            if !negotiated.can_be_taken_over() {
                log::info!(
                    "{dir}: requests come through io_uring (-o uring), so the mount ends with this process"
                );
            } else if let Some(estate) = estate {
                let (file, facts) = estate.leave(&shared.greeting(), &session, negotiated)?;
                let _ = shared.page.set((file, Mutex::new(facts)));
            }
            let device = plan.target.path.display();
            log::info!(device:%, read_only = plan.mount.read_only; "mounted on {dir}");
            ready();
            session.run_negotiated(&negotiated, dispatch)
        }
        Origin::Inherited(negotiated) => {
            log::info!("the mount on {dir} goes on");
            ready();
            session.resume(&negotiated, dispatch, succession::forgetter())
        }
    };
    served.map_err(Failure::io("answering the kernel on", &plan.dir))
}

/// The first signal unmounts: at once if idle, else lazily after [`LEAVE_PATIENCE`] or at the next signal.
/// Later signals abort the mount.
fn leave_on_signals(mut signals: Signals, shared: &Shared) {
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
            1 => leave(&mut signals, shared),
            _ => shared.abort_all(),
        };
        if let Err(error) = outcome {
            log::error!("{error}; another signal ends the mount by force");
        }
    }
}

/// Reopens the log, and has the keeper reopen its own, which is the same file.
fn reopen_log() {
    let told = Holder::of_this_process().map_or(Ok(()), |holder| holder.reopen_log());
    match logger::reopen().and(told) {
        Ok(()) => log::info!("a signal: the log was opened again"),
        Err(failure) => log::error!("a signal to open the log again: {failure}"),
    }
}

fn leave(signals: &mut Signals, shared: &Shared) -> Result<(), MountError> {
    log::info!("a signal: unmounting {}", shared.unmount.path().display());
    let begun = Instant::now();
    while let Err(error) = shared.unmount_all() {
        if begun.elapsed() > LEAVE_PATIENCE || signals.pending().any(|signal| signal != SIGHUP) {
            log::warn!("{error}; it leaves the tree now and ends with its last user");
            return shared.places().iter().try_for_each(UnmountHandle::detach);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Housekeeping: destroys the unlinked files that a crash left, which opening the file system only started.
/// Then shrinks directories and stores the error log.
fn keep_house(shared: &Shared, drains: bool) {
    if drains {
        drain_unlinked(shared);
    }
    let mut flags = FlagWatch::new(shared);
    let mut recorded = Ok(());
    // About once per txg: directories that lost names in one are shrunk in the next.
    while !shared.live.pool.is_read_only() && !shared.rest(SETTLE_PERIOD) {
        flags.look(shared);
        let mut pace = || (!shared.is_ending()).then_some(1);
        run(&shared.fs.settle(), "directories keep space that they do not need", &mut pace);
        let outcome = shared.fs.record_new_errors().map_err(|error| error.to_string());
        if let Err(error) = &outcome
            && outcome != recorded
        {
            log::warn!("pool {}: its error log cannot be stored: {error}", shared.live.pool.name());
        }
        recorded = outcome;
    }
}

/// Watches per-mount flags for access times, which this server implements: a remount changes them, and the
/// kernel sends no request for that.
struct FlagWatch {
    /// `None`: the mount table cannot be watched.
    table: Option<TableWatch>,
    seen: Option<Atime>,
}

impl FlagWatch {
    fn new(shared: &Shared) -> FlagWatch {
        let table = TableWatch::new().inspect_err(|error| log::warn!("/proc/self/mountinfo: {error}")).ok();
        let mut watch = FlagWatch { table, seen: None };
        watch.read(shared);
        // A mount by fusermount3 does not always have the flags that were given.
        if Via::of_this_process() == Via::Kernel
            && let Some(atime) = watch.seen
        {
            shared.fs.set_access_times(atime.into());
        }
        watch
    }

    fn look(&mut self, shared: &Shared) {
        let before = self.seen;
        if self.table.as_ref().is_some_and(TableWatch::has_changed) {
            self.read(shared);
        }
        if let Some(atime) = self.seen.filter(|_| self.seen != before) {
            shared.fs.set_access_times(atime.into());
        }
    }

    fn read(&mut self, shared: &Shared) {
        let rows = mounted().unwrap_or_default();
        let atime = Atime::of_places(rows.iter().filter(|row| row.dev == shared.greeting.dev));
        self.seen = atime.or(self.seen);
    }
}

/// Runs rewrites on request, and recompression in idle time.
fn rewrite(shared: &Shared) {
    terrane_fuse::process::give_way();
    let mut watch = idle::Watch::new();
    while !shared.live.pool.is_read_only() && !shared.rest(REWRITE_PERIOD) {
        let (fs, pool) = (&shared.fs, &shared.live.pool);
        let (requests, rest) = (|| shared.metrics.answered_count(), |time| shared.rest(time));
        rewriting::go_on(fs, pool, &requests, &rest);
        watch.turn(fs, pool, &requests, &rest);
    }
}

/// Keeps the relocation index within its limit.
fn bear_again(shared: &Shared) {
    terrane_fuse::process::give_way();
    while !shared.live.pool.is_read_only() && !shared.rest(REWRITE_PERIOD) {
        jobs::bear_again(&shared.fs, &shared.live.pool, &|time| shared.rest(time));
    }
}

fn drain_unlinked(shared: &Shared) {
    while !shared.is_ending() {
        match shared.fs.drain_unlinked() {
            Ok(true) => {}
            Ok(false) => return,
            Err(errno) => return log::warn!("unlinked objects were not all destroyed: {errno}"),
        }
    }
}

fn answer_callers(shared: &Arc<Shared>, listener: &UnixListener) {
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                let shared = Arc::clone(shared);
                let answer = move || answer_caller(&shared, stream);
                // If no thread can be started for one caller, later ones may get one.
                if let Err(error) = std::thread::Builder::new().name("caller".into()).spawn(answer) {
                    log::error!("a caller is not answered: {error}");
                }
            }
            Err(error) => {
                log::error!("the control socket failed: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

fn answer_caller(shared: &Shared, stream: UnixStream) {
    if !shared.stands() {
        let _ = shared.wait_for_end(Duration::MAX);
        return;
    }
    let mut caller = Caller::new(stream);
    let Some(question) = caller.greet(&shared.greeting()) else { return };
    if let Ok(command) = Command::deserialize(&question) {
        return obey_caller(shared, command, &mut caller);
    }
    match Query::deserialize(&question) {
        // The one question that is not about the pool alone.
        Ok(Query::Metrics) => caller.answer(Ok(shared.metrics_page().into())),
        Ok(query) => {
            if let Query::Add { path, .. } = &query
                && let Err(failure) = expect_device(shared, path)
            {
                return caller.answer(Err(failure));
            }
            // Progress comes from many threads, and lines must not mix.
            let line = Mutex::new(&mut caller);
            let outcome = query.answer(&shared.live, &|what, done, total| {
                line.lock().unwrap_or_else(PoisonError::into_inner).progress(what, done, total);
            });
            caller.answer(outcome);
        }
        Err(_) => caller.answer(Err(Failure(format!("the daemon does not understand {question}")))),
    }
}

fn obey_caller(shared: &Shared, command: Command, caller: &mut Caller) {
    match command {
        Command::Stop { how, seconds } => {
            stop(shared, how, Duration::from_secs(seconds.unwrap_or(STOP_WAIT_SECONDS)), caller);
        }
        Command::StepBack { read_only } => {
            let refused = succession::step_back(shared, read_only, caller);
            caller.answer(Err(refused));
        }
        Command::Sync => {
            let synced =
                shared.fs.sync().map_err(|errno| Failure(format!("not everything is committed: {errno}")));
            caller.answer(synced.map(|()| Value::Null));
        }
        Command::Memory { bytes } => caller.answer(change_memory(shared, bytes)),
    }
}

/// A successor may find this device in the pool, so it is recorded before it is added.
fn expect_device(shared: &Shared, path: &Path) -> Outcome {
    let Some((page, facts)) = shared.page.get() else { return Ok(()) };
    let identity = Identity::of(path).map_err(Failure::io("looking at", path))?;
    let mut facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    facts.devices.push(identity);
    holder::write_facts(page, &facts)
}

/// Sets another memory limit, also for successors.
fn change_memory(shared: &Shared, bytes: u64) -> Outcome<Value> {
    if bytes < BYTES_MIN {
        return Err(Failure(format!("memory should be at least {BYTES_MIN} bytes")));
    }
    let allowance = shared.live.memory.get();
    let allowance =
        allowance.ok_or_else(|| Failure("nobody watches the memory of this mount; see its log".into()))?;
    if let Some((page, facts)) = shared.page.get() {
        let mut facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.memory = Some(bytes);
        holder::write_facts(page, &facts)?;
    }
    allowance.change(Memory::of(bytes), &shared.live.pool, &shared.fs);
    Ok(query::value(&allowance.status(&shared.live.pool)))
}

fn stop(shared: &Shared, how: How, patience: Duration, caller: &mut Caller) {
    shared.stage().waiting += 1;
    caller.answer(end_mount(shared, how, patience));
    shared.stage().waiting -= 1;
    shared.changed.notify_all();
}

/// Unmounts, and waits until the mount has ended in all namespaces and everything is committed.
fn end_mount(shared: &Shared, how: How, patience: Duration) -> Outcome<Value> {
    match how {
        How::WhenIdle => {
            let busy = |error| match error {
                error @ MountError::Covered { .. } => Failure(format!("{error}; unmount that first")),
                error => Failure(format!(
                    "{error}; end what uses it (see `fuser -vm`) and try again, or see --lazy and --force"
                )),
            };
            shared.unmount_all().map_err(busy)?;
        }
        How::Lazily => shared.places().iter().try_for_each(UnmountHandle::detach)?,
        How::ByForce => {
            shared.sync_within(STOP_STEP)?;
            shared.abort_all()?;
        }
    }
    let begun = Instant::now();
    // A lazy unmount reports whether users are left, and does not wait for them.
    let patience = if how == How::Lazily { LAZY_LOOK } else { patience };
    while shared.stands() && begun.elapsed() < patience {
        shared.rest(STOP_LOOK);
    }
    if shared.stands() {
        shared.sync_within(STOP_STEP)?;
        let users = users_elsewhere(shared);
        if how == How::Lazily {
            return Ok(json!({"stays": users}));
        }
        let pool = format_args!("pool {}", shared.greeting.pool);
        let remedy =
            "it is unmounted here, committed, and stays open. End them, or say `terrane umount --force`";
        return Err(Failure::refused(pool, "no user in other mount namespaces", users, remedy));
    }
    match shared.wait_for_end(STOP_STEP) {
        Some(ended) => ended.map(|()| Value::Null).map_err(Failure),
        None => Err(Failure(format!(
            "pool {}: it is unmounted, and not everything is committed after {STOP_STEP:?}; the server goes on, see its log",
            shared.greeting.pool
        ))),
    }
}

/// Names the processes that have the mount in namespaces that this process does not see.
fn users_elsewhere(shared: &Shared) -> String {
    let found = elsewhere(&shared.greeting.dev).unwrap_or_default();
    let mut named: Vec<String> = found
        .iter()
        .take(USERS_NAMED_MAX)
        .map(|user| format!("process {} ({}) at {}", user.pid, user.command, user.dir.display()))
        .collect();
    match (found.len(), found.len().saturating_sub(USERS_NAMED_MAX)) {
        (0, _) => {
            return "files or directories that are open, or processes that cannot be seen from here"
                .to_owned();
        }
        (_, 0) => {}
        (_, more) => named.push(format!("{more} more")),
    }
    named.join(", ")
}

fn farewell(shared: &Shared, outcome: Result<(), String>) {
    let mut stage = shared.stage();
    stage.ended = Some(outcome);
    shared.changed.notify_all();
    let heard = shared.changed.wait_timeout_while(stage, FAREWELL_PATIENCE, |stage| stage.waiting > 0);
    drop(heard);
}
