//! One mounted data set of a server: its connection, its threads, and its end.
//!
//! Every mount has a connection to the kernel, a session, a ledger of uncommitted changes and background jobs of its
//! own. Pool, control socket and memory limit are the server's ([`super::Shared`]).
//!
//! Invariants:
//! * A mount is in the server's table from before its session begins until its file system is closed and committed.
//!   So no data set has two file systems.
//! * No mount begins once the last one has ended.

use super::lost_files::attach_ledger;
use super::{Shared, succession};
use crate::clock;
use crate::control::GreetedMount;
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::fd_store::{FdStore, MountFacts};
use crate::idle;
use crate::jobs::run_job;
use crate::memory;
use crate::mount_options::ParsedOptions;
use crate::open_pool::{MountedAt, OpenPool};
use crate::query::{Setting, validate_setting};
use crate::rewrite_job;
use std::fs::File;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use terrane_dataset::SnapDir;
use terrane_fuse::handover::{self, Ledger};
use terrane_fuse::mount::{Atime, MountError, MountMethod, TableWatch, abort_connection, list_mounts};
use terrane_fuse::proto::ROOT_ID;
use terrane_fuse::session::{Drain, Handler, Negotiated};
use terrane_fuse::snapshots::DatasetSnapshots;
use terrane_fuse::snapshots::tags::TagFile;
use terrane_fuse::{
    Dispatch, Following, Launderer, MountOptions, Notifier, Session, SnapshotDir, Snapshots, UnmountHandle,
    Visibility,
};
use terrane_posix::{AccessTimes, Fs};

/// How often directories that lost names are shrunk.
const SHRINK_PERIOD: Duration = Duration::from_secs(1);
/// How often to check whether files are to be rewritten.
pub const REWRITE_PERIOD: Duration = Duration::from_millis(250);

/// The data set to mount, the mount point and the options.
pub struct MountSpec {
    /// The path of the data set or snapshot from the root.
    pub dataset: String,
    pub dir: PathBuf,
    pub options: MountOptions,
    /// Properties for the life of the mount, with their values.
    pub properties: Vec<Setting>,
    /// The words after `-o`; `None`: they are on the server's command line.
    pub words: Option<Vec<String>>,
}

impl MountSpec {
    pub fn of_options(
        dataset: String,
        dir: PathBuf,
        parsed: ParsedOptions,
        words: Option<Vec<String>>,
    ) -> MountSpec {
        MountSpec { dataset, dir, options: parsed.mount, properties: parsed.properties, words }
    }

    /// Applies the options that concern the data set.
    pub fn apply_to(&mut self, view: &OpenPool) -> Outcome {
        if !self.options.default_permissions {
            // ACLs would have no effect: nothing checks permissions.
            self.properties.push(Setting { name: "acltype".to_owned(), value: "off".to_owned() });
        }
        for setting in &self.properties {
            validate_setting(setting, view.pool.max_block())?;
            view.dataset().set_temporary(&setting.name, &setting.value)?;
        }
        self.options.read_only |= view.is_snapshot();
        Ok(())
    }
}

/// The origin of a mount.
pub enum Origin {
    /// Made by this server or a command. Its first request was not read yet.
    New,
    Inherited(Negotiated),
}

/// A mount whose session has not begun.
pub struct NewMount {
    pub mount: Arc<MountedSet>,
    /// Its file system. Held from here on: a question about the data set must not close it, with its ledger, before the mount
    /// is in the table.
    pub fs: Arc<Fs>,
    pub session: Session,
    pub origin: Origin,
    pub spec: MountSpec,
    /// The file of its ledger. The holder gets that of a new mount.
    pub ledger: Option<File>,
    /// The tags of its snapshots. `None`: a snapshot is mounted.
    pub tags: Option<TagFile>,
}

/// The directory of snapshots of a mount.
struct ShownSnapshots {
    source: Arc<DatasetSnapshots>,
    dir: Arc<SnapshotDir>,
}

/// A mounted data set or snapshot.
pub struct MountedSet {
    /// The number by which the holder knows the mount. It is never used again.
    pub number: u32,
    /// The view of this data set. A server that follows the pool replaces it.
    view: RwLock<OpenPool>,
    /// What a follower answers by, and its options.
    following: OnceLock<(Arc<Following>, MountOptions)>,
    pub dir: PathBuf,
    /// The kernel's number of the file system.
    pub dev: String,
    /// When it was mounted, in seconds since 1970.
    pub since: u64,
    unmount: UnmountHandle,
    pub drain: Arc<Drain>,
    /// The holder has its descriptors, so a successor can continue it.
    pub is_held: AtomicBool,
    /// Only while the session runs, which closes its own descriptor at the end. Callers on an aborted mount would wait as
    /// long as this one is open.
    connection: Mutex<Option<File>>,
    pub is_ending: AtomicBool,
    /// Why the commit at its end failed, while other mounts continue.
    pub close_failure: OnceLock<String>,
    /// Its directory of snapshots. Empty if a snapshot is mounted.
    snapshots: OnceLock<ShownSnapshots>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl MountedSet {
    pub fn new(
        number: u32,
        view: OpenPool,
        session: &Session,
        dir: PathBuf,
        (dev, since): (String, u64),
    ) -> Outcome<Arc<MountedSet>> {
        Ok(Arc::new(MountedSet {
            number,
            view: RwLock::new(view),
            following: OnceLock::new(),
            dir,
            dev,
            since,
            unmount: session.unmount_handle(),
            drain: session.drain_handle(),
            is_held: AtomicBool::new(false),
            connection: Mutex::new(Some(session.device()?)),
            is_ending: AtomicBool::new(false),
            close_failure: OnceLock::new(),
            snapshots: OnceLock::new(),
            threads: Mutex::default(),
        }))
    }

    /// The view of this data set.
    pub fn view(&self) -> OpenPool {
        // A thread that panicked with it left a whole value.
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows a newer state. Returns what answered by the one before.
    pub fn show(&self, view: OpenPool, fs: Arc<Fs>, shared: &Shared) -> Option<Arc<Dispatch>> {
        let (following, options) = self.following.get()?;
        let dispatch = Dispatch::new(fs, options, Arc::clone(&shared.metrics));
        let dispatch = match self.connection() {
            Some(connection) => {
                dispatch.with_launderer(Launderer::new(connection, succession::page_drop_command))
            }
            None => dispatch,
        };
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = view;
        shared.open_pool().mounts.replace(self.row());
        Some(following.replace(dispatch))
    }

    /// Updates the directory of snapshots to the property `snapdir` and the path of the data set.
    fn follow_dataset(&self) {
        if let Some(ShownSnapshots { source, .. }) = self.snapshots.get() {
            source.set_path(&self.view().dataset().branch().path());
            let wanted = visibility(self.view().dataset().snapdir());
            if source.visibility() != wanted {
                source.set_visibility(wanted);
                self.drop_cached(&[ROOT_ID], "the root directory as it was");
            }
        }
    }

    /// Has the kernel drop what it caches of destroyed snapshots, without the first `known` of them.
    fn drop_destroyed_snapshots(&self, known: &mut usize) {
        let Some(ShownSnapshots { dir, .. }) = self.snapshots.get() else { return };
        let destroyed = self.view().datasets.destroyed_snapshots(*known);
        *known += destroyed.len();
        let nodes: Vec<u64> = destroyed.into_iter().flat_map(|guid| dir.note_destroyed(guid)).collect();
        if !nodes.is_empty() {
            self.drop_cached(&nodes, "files of destroyed snapshots");
        }
    }

    /// Has the kernel drop what it caches of these nodes. Does not wait for it: the kernel may wait for an answer of ours.
    fn drop_cached(&self, nodes: &[u64], what: &'static str) {
        let Some(connection) = self.connection() else { return };
        let name = self.name();
        match terrane_fuse::forget::start(succession::page_drop_command(), connection, nodes) {
            Ok(helper) => drop(std::thread::spawn(move || note_dropped(helper, &name, what))),
            Err(error) => log::warn!("{name}: the kernel may still show {what}: {error}"),
        }
    }

    /// Has the kernel drop what it caches of all objects that a rollback changed, and waits for it. Not for threads that answer
    /// the kernel.
    pub fn drop_rolled_back(&self) {
        let (Some(connection), Some(fs)) = (self.connection(), self.view().fs.get()) else { return };
        let node = |ino| if ino == fs.root() { ROOT_ID } else { ino };
        let nodes: Vec<u64> = fs.lost_inodes().into_iter().map(node).collect();
        let (name, what) = (self.name(), "files as they were before the rollback");
        match terrane_fuse::forget::start(succession::page_drop_command(), connection, &nodes) {
            Ok(helper) => note_dropped(helper, &name, what),
            Err(error) => log::warn!("{name}: the kernel may still show {what}: {error}"),
        }
    }

    /// The full name, as commands write it.
    pub fn name(&self) -> String {
        full_name(&self.view().pool.name(), &self.view().dataset_path)
    }

    pub fn greeted(&self) -> GreetedMount {
        GreetedMount {
            dataset: self.view().dataset_path.clone(),
            dir: self.dir.clone(),
            dev: self.dev.clone(),
            since: self.since,
        }
    }

    fn row(&self) -> MountedAt {
        MountedAt {
            number: self.number,
            path: self.view().dataset_path.clone(),
            snapshot: self.view().snapshot,
            dir: self.dir.clone(),
            dev: self.dev.clone(),
            dataset: self.view().dataset(),
            fs: self.view().fs.clone(),
        }
    }

    fn connection(&self) -> Option<File> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().and_then(|file| file.try_clone().ok())
    }

    /// Has the kernel look up all names anew. `Unsupported`: it cannot.
    pub fn forget_names(&self) -> std::io::Result<()> {
        self.connection().map_or(Ok(()), |connection| Notifier::new(connection).invalidate_names())
    }

    /// Whether the mount still exists in a namespace. Then `dev` is the number of no other file system.
    pub fn is_mounted(&self) -> bool {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().is_some_and(|connection| !handover::is_disconnected(connection))
    }

    /// Its mount points: one, or several that share its connection. The first one may have another mount by now.
    pub fn places(&self) -> Vec<UnmountHandle> {
        let rows = list_mounts();
        // Checked after the table was read: a number that is no longer ours belongs to another file system.
        if !self.is_mounted() {
            return Vec::new();
        }
        let (Ok(rows), false) = (rows, self.dev.is_empty()) else {
            return vec![self.unmount.clone()];
        };
        rows.iter().rev().filter(|row| row.dev == self.dev).map(UnmountHandle::of).collect()
    }

    /// Aborts the mount at all its mount points, even while it is in use.
    pub fn abort(&self) -> Result<(), MountError> {
        let aborted = self.places().iter().try_for_each(UnmountHandle::abort);
        if !self.is_mounted() {
            return aborted;
        }
        // Another file system is mounted over it, or it is in use in other mount namespaces.
        abort_connection(&self.dev)
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Stops background jobs, so that they change nothing while the mount ends.
    pub fn stop_jobs(&self, shared: &Shared) {
        self.is_ending.store(true, Ordering::Release);
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
        shared.wake_sleepers();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // It sees the end after one step.
            let _ = thread.join();
        }
    }
}

/// Waits until the kernel has dropped what it was told to.
fn note_dropped(helper: Child, name: &str, what: &str) {
    let warn = |error: &str| log::warn!("{name}: the kernel may still show {what}: {error}");
    match helper.wait_with_output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => warn(String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => warn(&error.to_string()),
    }
}

/// The threads of a mount beside so many others, if its options name no number.
pub fn threads_by_default(view: &OpenPool, others: usize) -> usize {
    memory::threads_of_mount(view.request_threads.load(Ordering::Relaxed), others)
}

/// Makes the first mount of this process.
pub fn mount_here(view: OpenPool, fs: Arc<Fs>, spec: MountSpec) -> Outcome<NewMount> {
    let ledger = new_ledger(&view, &fs)?;
    let mut options = spec.options.clone().with_dataset_options(&view.dataset());
    options.threads.get_or_insert(threads_by_default(&view, 0));
    let session = Session::mount(&spec.dir, &options)?;
    let dev = list_mounts()?.into_iter().rfind(|row| row.dir == spec.dir).map(|row| row.dev);
    let when = (dev.unwrap_or_default(), clock::seconds());
    let mount = MountedSet::new(0, view, &session, spec.dir.clone(), when)?;
    let tags = new_tags(&mount.view())?;
    Ok(NewMount { mount, fs, session, origin: Origin::New, spec, ledger, tags })
}

/// A ledger for a new mount, if there is a holder to keep it.
pub fn new_ledger(view: &OpenPool, fs: &Fs) -> Outcome<Option<File>> {
    if FdStore::of_this_process().is_none() || view.pool.is_read_only() || view.is_snapshot() {
        return Ok(None);
    }
    attach_ledger(fs, Ledger::new(view.ring_bytes.load(Ordering::Relaxed))?, None).map(Some)
}

/// The tags of a new mount.
pub fn new_tags(view: &OpenPool) -> Outcome<Option<TagFile>> {
    if view.is_snapshot() { Ok(None) } else { Ok(Some(TagFile::new()?)) }
}

/// A mount in the server's table, whose session has not begun.
#[must_use]
pub struct AddedMount {
    mount: Arc<MountedSet>,
    session: Session,
    origin: Origin,
    negotiated: Negotiated,
    answers: Box<dyn Handler>,
    read_only: bool,
}

impl NewMount {
    /// Adds the mount to the server's table. On return a successor would find it.
    ///
    /// # Errors
    /// The mount was not added. The session is returned.
    pub fn add(self, shared: &Shared) -> Result<AddedMount, (Failure, Session)> {
        let negotiated = match self.negotiate_and_store(shared) {
            Ok(negotiated) => negotiated,
            Err(failure) => return Err((failure, self.session)),
        };
        let NewMount { mount, fs, session, origin, spec, tags, ledger } = self;
        let read_only = spec.options.read_only || mount.view().pool.is_read_only();
        let dispatch = match self::dispatch(shared, (&mount, fs), &session, &spec.options, tags) {
            Ok(dispatch) => dispatch,
            Err(failure) => return Err((failure, session)),
        };
        let notes = ledger.and_then(|file| Ledger::map(file).ok()?.rename_notes());
        let dispatch = match notes {
            Some(notes) => dispatch.with_rename_notes(notes),
            None => dispatch,
        };
        if let Err(failure) = shared.insert(&mount, mount.row()) {
            return Err((failure, session));
        }
        let answers: Box<dyn Handler> = match shared.follows {
            false => Box::new(dispatch),
            true => {
                let following = Arc::new(Following::new(dispatch));
                // A mount is added once.
                let _ = mount.following.set((Arc::clone(&following), spec.options));
                Box::new(following)
            }
        };
        Ok(AddedMount { mount, session, origin, negotiated, answers, read_only })
    }

    fn negotiate_and_store(&self, shared: &Shared) -> Outcome<Negotiated> {
        let (mount, dir) = (&self.mount, self.mount.dir.display());
        let negotiated = match &self.origin {
            Origin::Inherited(negotiated) => {
                mount.is_held.store(true, Ordering::Release);
                return Ok(*negotiated);
            }
            Origin::New => self.session.negotiate(),
        };
        let negotiated = negotiated.map_err(Failure::io("negotiating with the kernel on", &mount.dir))?;
        let Some(negotiated) = negotiated else {
            return Err(Failure(format!("mount failed: {dir} was unmounted before it was ready")));
        };
        let Some(holder) = FdStore::of_this_process() else { return Ok(negotiated) };
        let facts = MountFacts {
            dataset: mount.view().dataset_path.clone(),
            objset: mount.view().dataset().object_set().id().0,
            snapshot: mount.view().snapshot,
            dir: mount.dir.clone(),
            negotiated,
            dev: mount.dev.clone(),
            since: mount.since,
            options: self.spec.words.clone(),
        };
        shared.ensure_pool_is_held(&holder, &facts)?;
        if negotiated.can_be_taken_over() {
            let files = (self.ledger.as_ref(), self.tags.as_ref().map(TagFile::file));
            holder.store_mount(mount.number, &self.session.device()?, files, &facts)?;
            mount.is_held.store(true, Ordering::Release);
        } else {
            log::info!("{dir}: no handover with io_uring (-o uring): the mount ends with this process");
        }
        Ok(negotiated)
    }
}

impl AddedMount {
    /// Begins to serve. On return the mount answers.
    pub fn run(self, shared: &Arc<Shared>) {
        let AddedMount { mount, session, origin, negotiated, answers, read_only } = self;
        let device = shared.greeting().device;
        let (name, dir) = (mount.name(), mount.dir.display());
        match &origin {
            Origin::New => {
                log::info!(device:% = device.display(), dataset:% = name, read_only; "mounted on {dir}");
            }
            Origin::Inherited(_) => log::info!(dataset:% = name; "mount on {dir} taken over"),
        }
        // Destroys unlinked files only on a new mount: after a take-over programs may have them open.
        start_jobs(shared, &mount, matches!(origin, Origin::New));
        let serving = Arc::clone(shared);
        std::thread::spawn(move || serve_kernel(&serving, &mount, session, origin, negotiated, answers));
    }
}

fn dispatch(
    shared: &Shared,
    (mount, fs): (&MountedSet, Arc<Fs>),
    session: &Session,
    options: &MountOptions,
    tags: Option<TagFile>,
) -> Outcome<Dispatch> {
    let connection = session.device().map_err(Failure::io("duplicating the connection of", &mount.dir))?;
    let dispatch = Dispatch::new(fs, options, Arc::clone(&shared.metrics))
        .with_launderer(Launderer::new(connection, succession::page_drop_command));
    // The names of snapshots would stay those of the first state.
    if mount.view().is_snapshot() || shared.follows {
        return Ok(dispatch);
    }
    let source = DatasetSnapshots::new(Arc::clone(&mount.view().datasets), &mount.view().dataset_path);
    source.set_visibility(visibility(mount.view().dataset().snapdir()));
    let dir = SnapshotDir::new(Arc::clone(&source) as Arc<dyn Snapshots>, tags)?;
    // A mount has one dispatch.
    let _ = mount.snapshots.set(ShownSnapshots { source, dir: Arc::clone(&dir) });
    Ok(dispatch.with_snapshots(dir))
}

fn visibility(property: SnapDir) -> Visibility {
    match property {
        SnapDir::Hidden => Visibility::Hidden,
        SnapDir::Visible => Visibility::Visible,
        SnapDir::Disabled => Visibility::Disabled,
    }
}

fn start_jobs(shared: &Arc<Shared>, mount: &Arc<MountedSet>, drains: bool) {
    if mount.view().is_snapshot() {
        return;
    }
    let job = |run: fn(&Shared, &MountedSet, bool)| {
        let (shared, mount) = (Arc::clone(shared), Arc::clone(mount));
        std::thread::spawn(move || run(&shared, &mount, drains))
    };
    *mount.threads.lock().unwrap_or_else(PoisonError::into_inner) =
        vec![job(run_housekeeping), job(|shared, mount, _| run_rewrites(shared, mount))];
}

/// Answers the kernel until the mount is gone. The way of unmounting does not matter.
fn serve_kernel(
    shared: &Shared,
    mount: &MountedSet,
    session: Session,
    origin: Origin,
    negotiated: Negotiated,
    answers: Box<dyn Handler>,
) {
    let served = match origin {
        Origin::New => session.run_negotiated(&negotiated, answers.as_ref()),
        Origin::Inherited(_) => {
            session.resume(&negotiated, answers.as_ref(), succession::page_drop_command())
        }
    };
    drop(answers);
    log::info!("{}: unmounted from {}", mount.name(), mount.dir.display());
    mount.stop_jobs(shared);
    shared.finish(mount, served.map_err(Failure::io("serving", &mount.dir)));
}

/// Housekeeping: destroys the unlinked files that a crash left. Then shrinks directories and stores the error log.
fn run_housekeeping(shared: &Shared, mount: &MountedSet, drains: bool) {
    let Some(fs) = mount.view().fs.get() else { return };
    if drains {
        drain_unlinked(mount, &fs);
    }
    let mut flags = FlagWatch::new(mount, &fs);
    let mut destroyed = 0;
    let (mut recorded, mut counted, pool) = (Ok(()), Ok(()), &mount.view().pool);
    // About once per txg: directories that lost names in one are shrunk in the next.
    while !pool.is_read_only() && !shared.sleep_for(mount, SHRINK_PERIOD) {
        flags.poll(mount, &fs);
        mount.follow_dataset();
        mount.drop_destroyed_snapshots(&mut destroyed);
        let mut pace = || (!mount.is_ending()).then_some(1);
        run_job(&fs.shrink_dirs(), "shrinking directories failed", &mut pace);
        invalidate_restored(mount, &fs);
        count_owners(mount, &fs, &mut counted);
        fs.log_losses();
        // The root data set stores the error log of the pool.
        let outcome = shared.open_pool().dataset().record_new_errors().map_err(|error| error.to_string());
        if let Err(error) = &outcome
            && outcome != recorded
        {
            log::warn!("pool {}: storing the error log failed: {error}", pool.name());
        }
        recorded = outcome;
    }
}

/// Counts what is not yet counted for its owners, after an upgrade. `last`: the last outcome, which is logged once.
fn count_owners(mount: &MountedSet, fs: &Fs, last: &mut Result<(), String>) {
    let outcome = loop {
        match fs.dataset().count_owners() {
            Ok(true) if !mount.is_ending() => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error.to_string()),
        }
    };
    if let Err(error) = &outcome
        && outcome != *last
    {
        log::warn!("{}: counting for owners failed: {error}", mount.name());
    }
    *last = outcome;
}

/// Tells the kernel to drop cached attributes of inodes that background jobs have stored in another form.
fn invalidate_restored(mount: &MountedSet, fs: &Fs) {
    let inodes = fs.take_restored();
    if inodes.is_empty() {
        return;
    }
    let Some(connection) = mount.connection() else { return };
    let notifier = Notifier::new(connection);
    for ino in inodes {
        let node = if ino == fs.root() { ROOT_ID } else { ino };
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
    times: Option<AccessTimes>,
}

impl FlagWatch {
    fn new(mount: &MountedSet, fs: &Fs) -> FlagWatch {
        let table = TableWatch::new()
            .inspect_err(|error| log::warn!("watching /proc/self/mountinfo failed: {error}"))
            .ok();
        let mut watch = FlagWatch { mount_table: table, times: None };
        watch.read(mount);
        // A mount by fusermount3 does not always have the flags that were given.
        if MountMethod::for_this_process() == MountMethod::Kernel
            && let Some(times) = watch.times
        {
            fs.set_access_times(times);
        }
        watch
    }

    fn poll(&mut self, mount: &MountedSet, fs: &Fs) {
        let before = self.times;
        if self.mount_table.as_ref().is_some_and(TableWatch::has_changed) {
            self.read(mount);
        }
        if let Some(times) = self.times.filter(|_| self.times != before) {
            fs.set_access_times(times);
        }
    }

    fn read(&mut self, mount: &MountedSet) {
        let mut rows = list_mounts().unwrap_or_default();
        rows.retain(|row| row.dev == mount.dev);
        // Reads through a read-only mount change no access time, although the pool may be writable.
        let times = match rows.iter().all(|row| row.is_read_only()) {
            true if !rows.is_empty() => Some(AccessTimes::Never),
            _ => Atime::of_mounts(&rows).map(AccessTimes::from),
        };
        self.times = times.or(self.times);
    }
}

/// Runs requested rewrites, and recompression in idle time. Time is idle only if no mount of the pool is in use.
fn run_rewrites(shared: &Shared, mount: &MountedSet) {
    let Some(fs) = mount.view().fs.get() else { return };
    terrane_fuse::process::lower_priority();
    let mut watch = idle::IdleWatch::new();
    let pool = &mount.view().pool;
    while !pool.is_read_only() && !shared.sleep_for(mount, REWRITE_PERIOD) {
        let (requests, sleep) = (|| shared.metrics.answered_count(), |time| shared.sleep_for(mount, time));
        rewrite_job::continue_rewrite(&fs, pool, &requests, &sleep);
        watch.run_if_idle(&fs, pool, &requests, &sleep);
    }
}

fn drain_unlinked(mount: &MountedSet, fs: &Fs) {
    while !mount.is_ending() {
        match fs.drain_unlinked() {
            Ok(true) => {}
            Ok(false) => return,
            Err(errno) => return log::warn!("destroying unlinked files failed: {errno}"),
        }
    }
}
