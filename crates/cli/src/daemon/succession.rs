//! How one server of a pool follows another.
//!
//! A server that was killed leaves requests unanswered, which the kernel resends. Its uncommitted changes are
//! lost as after a power cut. The kernel must stop showing those, and a program that asks for their
//! durability must get an error. The ledger of each mount says which files they are in. A server that *steps back*
//! commits everything first, so nothing is lost.
//!
//! Invariant: no step that can be refused comes after the first mount was adopted, because dropping it would
//! unmount it.

use super::Shared;
use super::lost_files::{Losses, attach_ledger};
use super::mounted::{MountSpec, MountedSet, NewMount, Origin, new_tags, threads_by_default};
use crate::control::ClientConnection;
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::fd_store::{self, Facts, FdStore, Inherited, InheritedMount, MountFacts, MountedRollback};
use crate::mount_options::{self, ParsedOptions};
use crate::open_pool::OpenPool;
use crate::query::{named, record_boot_mounts};
use crate::supervisor::STEPPED_BACK;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terrane_dataset::{AclType, Dataset, DatasetError, XattrPlacement};
use terrane_device::Identity;
use terrane_fuse::handover::Ledger;
use terrane_fuse::session::Negotiated;
use terrane_fuse::snapshots::tags::TagFile;
use terrane_fuse::{Mount, Session, SessionConfig};
use terrane_posix::Fs;

/// How long requests in progress may take before this server exits without them.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often to check that the supervisor is alive.
const SUPERVISOR_POLL_PERIOD: Duration = Duration::from_secs(1);
/// How long a killed supervisor may still seem to listen.
const SUPERVISOR_EXIT_WAIT: Duration = Duration::from_millis(50);
/// The interval after another supervisor could not be started.
const SUPERVISOR_RETRY_PERIOD: Duration = Duration::from_secs(30);

/// Gives the holder the device by which the pool was mounted.
pub fn store_device(holder: &FdStore, path: &Path, devices: &[Identity]) -> Outcome {
    let held = Identity::open(path).ok();
    match held.filter(|(identity, _)| devices.contains(identity)) {
        Some((_, device)) => holder.store_device(&device),
        None => {
            log::warn!("{}: device not handed over, a successor opens it by its path", path.display());
            Ok(())
        }
    }
}

/// A mount of a predecessor whose file system is open.
pub struct TakenOver {
    view: OpenPool,
    fs: Arc<Fs>,
    spec: MountSpec,
    ledger: Option<File>,
}

/// Opens the file systems of inherited mounts, by number. Mounts whose data set no longer exists are left out, and those
/// that cannot be continued. If there are no others, the error is that of the last one.
pub fn take_over(
    open_pool: &OpenPool,
    inherited: &Inherited,
    first: MountSpec,
) -> Outcome<BTreeMap<u32, TakenOver>> {
    let id = open_pool.pool.label().id();
    if inherited.facts.pool != id {
        let (expected, found) = (format!("pool {:016x}", inherited.facts.pool), format!("{id:016x}"));
        return Err(Failure::refused(
            open_pool.path.display(),
            expected,
            found,
            "bring the mounted device back",
        ));
    }
    // Of all mounts before the first file system is open, because from then on txgs are committed. If this server fails,
    // the next one takes all that it finds committed for commits of the server that died.
    let losses = inherited
        .mounts
        .iter()
        .map(|(number, mount)| note_losses(*number, mount, open_pool, inherited.facts.orderly));
    let losses: Vec<Outcome<Losses>> = losses.collect();
    let (mut first, mut taken, mut failed) = (Some(first), BTreeMap::new(), None);
    for ((number, mount), losses) in inherited.mounts.iter().zip(losses) {
        let first = first.take();
        let one = losses.and_then(|losses| {
            take_over_one(*number, mount, open_pool, first, (losses, inherited.facts.orderly))
        });
        match one {
            Ok(one) => drop(taken.insert(*number, one)),
            Err(failure) => {
                let name = full_name(&open_pool.pool.name(), &mount.facts.dataset);
                let failure = Failure(format!("{name}: mount not taken over: {failure}"));
                log::error!("{failure}; {} returns errors", mount.facts.dir.display());
                failed = Some(failure);
            }
        }
    }
    match failed {
        Some(failure) if taken.is_empty() => Err(failure),
        _ => Ok(taken),
    }
}

/// Finds what a mount has lost, and stores that with the holder.
pub fn store_losses(
    number: u32,
    mount: &InheritedMount,
    open_pool: &OpenPool,
    orderly: bool,
) -> Outcome<Losses> {
    // The txg that this import found, whatever was committed since.
    let committed = open_pool.pool.status().imported.0;
    let losses = Losses::of(mount, orderly, committed)?;
    if let (Some(list), Some(holder)) = (&losses.list, FdStore::of_this_process()) {
        holder.store_lost(number, &list.file)?;
    }
    Ok(losses)
}

/// The same, with a line in the log.
fn note_losses(number: u32, mount: &InheritedMount, open_pool: &OpenPool, orderly: bool) -> Outcome<Losses> {
    let losses = store_losses(number, mount, open_pool, orderly)?;
    if !orderly {
        let name = full_name(&open_pool.pool.name(), &mount.facts.dataset);
        let (count, committed) = (losses.lost.len(), open_pool.pool.status().imported);
        match mount.left_out {
            Some(_) if count == 0 => log::info!("pool {name}: server died; no change is lost"),
            _ => log::warn!(
                "pool {name}: server died; changes after txg {committed} are lost in {count} files"
            ),
        }
    }
    Ok(losses)
}

fn parse_spec(open_pool: &OpenPool, facts: &MountFacts, words: Vec<String>) -> Outcome<MountSpec> {
    let source = full_name(&open_pool.pool.name(), &facts.dataset);
    let parsed = ParsedOptions::parse(&words, mount_options::defaults(source)?)?;
    Ok(MountSpec::of_options(facts.dataset.clone(), facts.dir.clone(), parsed, Some(words)))
}

/// The view of the data set or snapshot of a mount. It may have another path by now.
fn view_of(open_pool: &OpenPool, facts: &MountFacts) -> Outcome<OpenPool> {
    // Older servers stored neither guids nor, before that, object sets.
    let is_it = |view: &OpenPool| {
        (facts.objset == 0 || view.dataset().object_set().id().0 == facts.objset)
            && (facts.snapshot.is_none() || view.snapshot == facts.snapshot)
    };
    match open_pool.find(&facts.dataset) {
        Ok(view) if is_it(&view) => return Ok(view),
        Ok(_) | Err(DatasetError::Unknown { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let found = match facts.snapshot {
        Some(guid) => open_pool.find_snapshot(guid)?,
        None if facts.dataset.contains('@') => None,
        None => open_pool.find_by_set(facts.objset)?,
    };
    found.ok_or_else(|| Failure("its data set or snapshot is gone".to_owned()))
}

fn take_over_one(
    number: u32,
    inherited: &InheritedMount,
    open_pool: &OpenPool,
    first: Option<MountSpec>,
    (losses, orderly): (Losses, bool),
) -> Outcome<TakenOver> {
    let facts = &inherited.facts;
    let mut spec = match (&facts.options, first) {
        (None, Some(first)) => first,
        (words, _) => parse_spec(open_pool, facts, words.clone().unwrap_or_default())?,
    };
    let view = view_of(open_pool, facts)?;
    spec.apply_to(&view)?;
    apply_negotiated(&view.dataset(), &facts.negotiated)?;
    let Losses { ledger, lost, list } = losses;
    let fs = Fs::take_over(view.dataset(), lost)?;
    if orderly {
        fs.note_clean_handover();
    }
    let mut file = None;
    if !view.pool.is_read_only() && !view.is_snapshot() {
        let ring_bytes = view.ring_bytes.load(Ordering::Relaxed);
        // One without a ring is of an older version. It is needed only after a crash.
        let ledger = ledger.filter(|ledger| !orderly || ring_bytes == 0 || ledger.ring().is_some());
        let known = ledger.is_some();
        let attached = attach_ledger(&fs, ledger.map_or_else(|| Ledger::new(ring_bytes), Ok)?, list)?;
        if !known && let Some(holder) = FdStore::of_this_process() {
            holder.store_ledger(number, &attached)?;
        }
        file = Some(attached);
    }
    // Last, so that nothing keeps a file system whose mount is given up. No other thread can ask for it yet.
    view.fs.set(Arc::clone(&fs));
    Ok(TakenOver { view, fs, spec, ledger: file })
}

/// Keeps what the predecessor negotiated with the kernel for the life of the mount, whatever the properties
/// say by now.
fn apply_negotiated(dataset: &Dataset, negotiated: &Negotiated) -> Outcome {
    if negotiated.acls() != (dataset.acl_type() == AclType::Posix) {
        dataset.set_temporary("acltype", if negotiated.acls() { "posix" } else { "off" })?;
    }
    if negotiated.xattrs != (dataset.xattr_placement() != XattrPlacement::Off) {
        dataset.set_temporary("xattr", if negotiated.xattrs { "sa" } else { "off" })?;
    }
    Ok(())
}

/// The tags of a mount. New ones if the predecessor had none: then the kernel holds no node of a snapshot.
fn inherited_tags(mount: &MountedSet, tags: Option<File>) -> Outcome<Option<TagFile>> {
    if let Some(file) = tags {
        return Ok(Some(TagFile::inherit(file)?));
    }
    let tags = new_tags(&mount.view())?;
    if let (Some(tags), Some(holder)) = (&tags, FdStore::of_this_process()) {
        holder.store_tags(mount.number, tags.file())?;
    }
    Ok(tags)
}

/// The last step: takes over the mounts. Mounts that are not in `taken` end.
pub fn adopt(
    inherited: Inherited,
    mut taken: BTreeMap<u32, TakenOver>,
) -> Outcome<(Vec<NewMount>, UnixListener, (File, Facts))> {
    let Inherited { control, facts, facts_file, mounts, .. } = inherited;
    let facts = Facts { orderly: false, ..facts };
    fd_store::write_facts(&facts_file, &facts)?;
    let mut adopted = Vec::new();
    for (number, InheritedMount { connection, facts, tags, .. }) in mounts {
        let Some(TakenOver { view, fs, spec, ledger }) = taken.remove(&number) else {
            let dropped = FdStore::of_this_process().map(|holder| holder.drop_mount(number));
            // An error must not leave this function: mounts that were adopted already would be unmounted.
            log_failure(dropped.transpose(), &facts.dir);
            continue;
        };
        let mut options = spec.options.clone();
        options.threads.get_or_insert(threads_by_default(&view, adopted.len()));
        let session = Session::new(Mount::adopt(connection, &facts.dir), SessionConfig::from(&options));
        let found = MountedSet::new(number, view, &session, facts.dir.clone(), (facts.dev, facts.since));
        // This one ends, and the others go on.
        let Some(mount) = log_failure(found, &facts.dir) else { continue };
        let origin = Origin::Inherited(facts.negotiated);
        let tags = log_failure(inherited_tags(&mount, tags), &facts.dir).flatten();
        adopted.push(NewMount { mount, fs, session, origin, spec, ledger, tags });
    }
    if adopted.is_empty() {
        return Err(Failure("no mount could be taken over; see the log".to_owned()));
    }
    Ok((adopted, control, (facts_file, facts)))
}

fn log_failure<T>(outcome: Outcome<T>, dir: &Path) -> Option<T> {
    outcome.inspect_err(|failure| log::error!("mount {}: {failure}", dir.display())).ok()
}

/// This program, as the helper process for [`Session::resume`] and [`terrane_fuse::Launderer`].
pub fn page_drop_command() -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg0("terrane").arg("forget");
    program
}

/// Starts another supervisor if the one of this mount is gone.
fn ensure_supervisor(shared: &Shared) -> Outcome {
    let Some(holder) = FdStore::of_this_process() else { return Ok(()) };
    // Two threads that miss it at once must not start two.
    let _alone = shared.supervisor_lock.lock().unwrap_or_else(PoisonError::into_inner);
    if holder.is_listening() {
        return Ok(());
    }
    log::warn!("supervisor gone, starting another one");
    holder.replace_supervisor()
}

/// Notices within seconds that the supervisor is gone, and starts another one.
pub fn watch_supervisor(shared: &Shared) {
    let Some(holder) = FdStore::of_this_process() else { return };
    let (mut missed, mut pause) = (0, SUPERVISOR_POLL_PERIOD);
    while !shared.sleep(pause) {
        // Before the mount was left with it there is nothing to lose.
        let is_there = shared.facts_file.get().is_none() || holder.is_listening();
        missed = if is_there { 0 } else { missed + 1 };
        // A user who kills both, one after the other, wants the mount to end: so not at the first miss.
        if missed < 2 {
            pause = SUPERVISOR_POLL_PERIOD;
            continue;
        }
        if let Err(failure) = ensure_supervisor(shared) {
            log::error!("supervisor not replaced, the mount ends with this process: {failure}");
            pause = SUPERVISOR_RETRY_PERIOD;
        }
    }
}

/// The facts of this server, if a successor would find all mounts.
fn check_held(shared: &Shared) -> Outcome<&(File, Mutex<Facts>)> {
    let dir = shared.greeting().mountpoint;
    let held = shared.facts_file.get().ok_or_else(|| {
        Failure(format!(
            "server not replaced: the server of {} runs in the foreground, without a supervisor; unmount it and mount it again",
            dir.display()
        ))
    })?;
    match shared.mounts().iter().find(|mount| !mount.is_held.load(Ordering::Acquire)) {
        Some(mount) => Err(Failure(format!(
            "server not replaced: the mount on {} would end with it (-o uring); unmount it and mount it again",
            mount.dir.display()
        ))),
        None => Ok(held),
    }
}

/// Renames a data set, and steps back: mounts of this process know their data sets by paths, and a successor finds them by
/// their object sets. Returns only if that is impossible.
pub fn rename(shared: &Shared, path: &str, to: &str, client: &mut ClientConnection) -> Failure {
    let datasets = &shared.open_pool().datasets;
    let renamed = check_held(shared)
        .and_then(|_| datasets.rename(path, to).map_err(|error| named(&shared.open_pool(), error)));
    if let Err(failure) = renamed {
        return failure;
    }
    record_boot_mounts(&shared.open_pool());
    let Failure(reason) = step_back(shared, None, || Ok(None), client);
    match datasets.rename(to, path) {
        Ok(()) => {
            record_boot_mounts(&shared.open_pool());
            Failure(format!("not renamed: {reason}"))
        }
        Err(error) => {
            let pool = shared.open_pool().pool.name();
            Failure(format!(
                "renamed, but mounts of it have the old name until `terrane restart {pool}`: {reason}; {error}"
            ))
        }
    }
}

/// Finishes requests in progress, commits everything and exits, so that a successor can continue. Returns
/// only if that is impossible. `check`: what else could refuse it, while no mount begins and the tree of data sets stays. It
/// returns the rollback to make.
pub fn step_back(
    shared: &Shared,
    read_only: Option<bool>,
    check: impl FnOnce() -> Outcome<Option<MountedRollback>>,
    client: &mut ClientConnection,
) -> Failure {
    // No mount begins from here on.
    let mounts = shared.open_pool().mounts;
    let _adding = mounts.lock_changes();
    let (facts_file, facts) = match check_held(shared) {
        Ok(held) => held,
        Err(failure) => return failure,
    };
    let rollback = match check() {
        Ok(rollback) => rollback,
        Err(failure) => return failure,
    };
    // Descriptors left with a supervisor are lost when it is gone. One that was just killed seems to listen for a
    // moment longer. No caller on the mount waits for this pause.
    for pause in [SUPERVISOR_EXIT_WAIT, Duration::ZERO] {
        if let Err(failure) = ensure_supervisor(shared) {
            return Failure(format!("server not replaced: no supervisor would hold the mount: {failure}"));
        }
        std::thread::sleep(pause);
    }
    // Commits most of it before callers have to wait.
    if let Err(failure) = shared.sync() {
        return Failure(format!("server not replaced: {failure}"));
    }
    log::info!("stepping back: the next server takes over");
    let begun = Instant::now();
    let left = || QUIESCE_TIMEOUT.saturating_sub(begun.elapsed());
    // Drains all mounts, also after one whose requests did not end.
    let mut is_quiesced = true;
    for mount in shared.mounts() {
        is_quiesced &= mount.drain.drain(left());
    }
    shared.stop_housekeeping();
    let exported = if is_quiesced {
        shared.open_pool().export()
    } else {
        Err(Failure("requests in progress did not end".to_owned()))
    };
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    let read_only = read_only.or(facts.read_only);
    let facts = Facts { orderly: exported.is_ok(), read_only, rollback, ..facts.clone() };
    let outcome = exported.and_then(|()| fd_store::write_facts(facts_file, &facts));
    // The last moment at which another supervisor can be given the descriptors.
    if let Err(failure) = ensure_supervisor(shared) {
        log::error!("supervisor not replaced, the mount ends with this process: {failure}");
    }
    // There is no way back: requests were read that only a successor can have resent.
    match outcome {
        Ok(()) => client.answer(Ok(Value::Null)),
        Err(failure) => {
            log::error!("handover failed, the next server recovers as after a crash: {failure}");
            client.answer(Err(failure));
        }
    }
    std::process::exit(STEPPED_BACK)
}
