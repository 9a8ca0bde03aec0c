//! How one server of a mount follows another.
//!
//! A server that was killed leaves requests unanswered, which the kernel resends. Its uncommitted changes are
//! lost as after a power cut. The kernel must stop showing those, and a program that asks for their
//! durability must get an error. The ledger says which files they are in. A server that *steps back* commits
//! everything first, so nothing is lost.
//!
//! Invariant: no step that can be refused comes after the mount was adopted, because dropping it would
//! unmount it.

use super::{MountPlan, Shared};
use crate::control::{ClientConnection, Greeting};
use crate::failure::{Failure, Outcome};
use crate::fd_store::{self, Facts, FdStore, InheritedMount};
use crate::open_pool::OpenPool;
use crate::supervisor::STEPPED_BACK;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use terrane_dataset::{AclType, Dataset, XattrPlacement};
use terrane_device::Identity;
use terrane_fuse::handover::{self, Ledger};
use terrane_fuse::session::Negotiated;
use terrane_fuse::{Mount, Session, SessionConfig};
use terrane_posix::{Fs, Ino, Loss};

/// How long requests in progress may take before this server exits without them.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often to check that the supervisor is alive.
const SUPERVISOR_POLL_PERIOD: Duration = Duration::from_secs(1);
/// How long a killed supervisor may still seem to listen.
const SUPERVISOR_EXIT_WAIT: Duration = Duration::from_millis(50);
/// The interval after another supervisor could not be started.
const SUPERVISOR_RETRY_PERIOD: Duration = Duration::from_secs(30);

/// What a new mount will leave with its holder.
pub struct HandoverState {
    holder: FdStore,
    control: UnixListener,
    ledger: Option<File>,
}

/// The ledger, as the file system sees it.
struct LossLedger {
    ledger: Ledger,
    lost: Option<LostFiles>,
}

impl terrane_posix::Ledger for LossLedger {
    fn note_change(&self, txg: u64, ino: Ino) {
        self.ledger.record(txg, ino);
    }

    fn note_reported(&self, ino: Ino, loss: Option<Loss>) {
        if let Some(lost) = &self.lost {
            lost.update(ino, loss);
        }
    }
}

fn attach_ledger(fs: &Fs, ledger: Ledger, lost: Option<LostFiles>) -> Outcome<File> {
    let file = ledger.file().try_clone()?;
    fs.set_ledger(Box::new(LossLedger { ledger, lost }));
    Ok(file)
}

/// Inodes that lost changes, and to whom that was reported: kernel, programs, administrator. The ledger drops them with
/// the next commit; this list stays, however many servers follow.
struct LostFiles {
    file: File,
    /// In ascending order, 8 bytes each, as in the file. There the three highest bits say to whom it was reported;
    /// object numbers have fewer bits.
    numbers: Vec<Ino>,
}

const CHANGE_REPORTED: u64 = 1 << 63;
const SYNC_REPORTED: u64 = 1 << 62;
const LOSS_READ: u64 = 1 << 61;

fn encode_entry(ino: Ino, loss: Loss) -> u64 {
    let flag = |is_told, bit| if is_told { bit } else { 0 };
    ino | flag(loss.change_reported, CHANGE_REPORTED)
        | flag(loss.sync_reported, SYNC_REPORTED)
        | flag(loss.is_read, LOSS_READ)
}

fn decode_entry(word: u64) -> (Ino, Loss) {
    let is_set = |bit| word & bit != 0;
    let loss = Loss {
        change_reported: is_set(CHANGE_REPORTED),
        sync_reported: is_set(SYNC_REPORTED),
        is_read: is_set(LOSS_READ),
    };
    (word & !(CHANGE_REPORTED | SYNC_REPORTED | LOSS_READ), loss)
}

impl LostFiles {
    fn new(losses: &BTreeMap<Ino, Loss>) -> Outcome<LostFiles> {
        let numbers: Vec<Ino> = losses.keys().copied().collect();
        let file = handover::memory_file("terrane-lost")?;
        let raw: Vec<u8> =
            losses.iter().flat_map(|(ino, loss)| encode_entry(*ino, *loss).to_le_bytes()).collect();
        file.write_all_at(&raw, 0)?;
        Ok(LostFiles { file, numbers })
    }

    /// Reads the list of a predecessor. Entries that are no longer valid are 0.
    fn read(file: &File) -> Outcome<BTreeMap<Ino, Loss>> {
        let mut raw = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
        file.read_exact_at(&mut raw, 0)?;
        let (words, _) = raw.as_chunks();
        Ok(words
            .iter()
            .map(|word| decode_entry(u64::from_le_bytes(*word)))
            .filter(|(ino, _)| *ino != 0)
            .collect())
    }

    fn update(&self, ino: Ino, loss: Option<Loss>) {
        let word = loss.map_or(0, |loss| encode_entry(ino, loss));
        if let Ok(at) = self.numbers.binary_search(&ino)
            && let Err(error) = self.file.write_all_at(&word.to_le_bytes(), 8 * at as u64)
        {
            log::warn!("list of lost files not updated, inode {ino} may be reported once more: {error}");
        }
    }
}

impl HandoverState {
    /// `None` if there is no holder to keep it.
    pub fn new(fs: &Fs, open_pool: &OpenPool, control: &UnixListener) -> Outcome<Option<HandoverState>> {
        let Some(holder) = FdStore::of_this_process() else { return Ok(None) };
        let changes = !open_pool.pool.is_read_only();
        let ledger = if changes { Some(attach_ledger(fs, Ledger::new()?, None)?) } else { None };
        Ok(Some(HandoverState { holder, control: control.try_clone()?, ledger }))
    }

    /// From here on the mount outlives this process.
    pub fn store(
        self,
        greeting: &Greeting,
        session: &Session,
        negotiated: Negotiated,
    ) -> Outcome<(File, Facts)> {
        let facts = Facts {
            pool: greeting.id,
            dir: greeting.mountpoint.clone(),
            negotiated,
            orderly: false,
            dev: greeting.dev.clone(),
            since: greeting.since,
            read_only: None,
            memory: None,
            devices: greeting.devices.clone(),
        };
        let held = Identity::open(&greeting.device).ok();
        match held.filter(|(identity, _)| greeting.devices.contains(identity)) {
            Some((_, device)) => self.holder.store_device(&device)?,
            None => log::warn!(
                "{}: device not handed over, a successor opens it by its path",
                greeting.device.display()
            ),
        }
        let facts_file =
            self.holder.store_all(&session.device()?, &self.control, self.ledger.as_ref(), &facts)?;
        Ok((facts_file, facts))
    }
}

/// Opens the file system for an existing mount.
pub fn take_over(open_pool: &OpenPool, inherited: &InheritedMount) -> Outcome<Arc<Fs>> {
    let name = open_pool.pool.name();
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
    apply_negotiated(&open_pool.dataset, &inherited.facts.negotiated)?;
    // The txg that this import found, whatever was committed since.
    let committed = open_pool.pool.status().imported.0;
    let ledger = inherited.ledger.as_ref().map(|file| Ledger::map(file.try_clone()?)).transpose()?;
    let lost = match &ledger {
        Some(ledger) if !inherited.facts.orderly => ledger.inodes_changed_after(committed),
        _ => BTreeSet::new(),
    };
    let mut lost: BTreeMap<Ino, Loss> = lost.iter().map(|ino| (*ino, Loss::default())).collect();
    if !inherited.facts.orderly {
        let count = lost.len();
        log::warn!("pool {name}: server died; changes after txg {committed} are lost in {count} files");
    }
    if let Some(file) = &inherited.lost {
        // Changes that were lost again have to be reported again.
        for (ino, loss) in LostFiles::read(file)? {
            lost.entry(ino).or_insert(loss);
        }
    }
    let holder = FdStore::of_this_process();
    let list = if lost.is_empty() { None } else { Some(LostFiles::new(&lost)?) };
    if let (Some(list), Some(holder)) = (&list, &holder) {
        holder.store_lost(&list.file)?;
    }
    let fs = Fs::take_over(Arc::clone(&open_pool.dataset), lost)?;
    if inherited.facts.orderly {
        fs.note_clean_handover();
    }
    // The first to open it, since no other thread can ask yet.
    let _ = open_pool.fs.set(Arc::clone(&fs));
    if !open_pool.pool.is_read_only() {
        let known = ledger.is_some();
        let file = attach_ledger(&fs, ledger.map_or_else(Ledger::new, Ok)?, list)?;
        if !known && let Some(holder) = holder {
            holder.store_ledger(&file)?;
        }
    }
    Ok(fs)
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

/// The last step: takes over the mount.
pub fn adopt(inherited: InheritedMount, plan: &MountPlan) -> Outcome<(Session, UnixListener, (File, Facts))> {
    let InheritedMount { connection, control, facts, facts_file, .. } = inherited;
    let facts = Facts { orderly: false, ..facts };
    fd_store::write_facts(&facts_file, &facts)?;
    let mount = Mount::adopt(connection, &plan.dir);
    Ok((Session::new(mount, SessionConfig::from(&plan.mount)), control, (facts_file, facts)))
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

/// Finishes requests in progress, commits everything and exits, so that a successor can continue. Returns
/// only if that is impossible.
pub fn step_back(shared: &Shared, read_only: Option<bool>, client: &mut ClientConnection) -> Failure {
    let Some((facts_file, facts)) = shared.facts_file.get() else {
        return Failure(format!(
            "server not replaced: the server of {} runs in the foreground, without a supervisor; unmount it and mount it again",
            shared.greeting.mountpoint.display()
        ));
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
    if let Err(errno) = shared.fs.sync() {
        return Failure(format!("server not replaced: commit failed: {errno}"));
    }
    log::info!("stepping back: the next server takes over");
    let is_quiesced = shared.brake.drain(QUIESCE_TIMEOUT);
    shared.stop_housekeeping();
    let exported = if is_quiesced {
        shared.open_pool.export()
    } else {
        Err(Failure("requests in progress did not end".to_owned()))
    };
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    let read_only = read_only.or(facts.read_only);
    let facts = Facts { orderly: exported.is_ok(), read_only, ..facts.clone() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_files_are_listed_until_they_are_reported() {
        let (none, change) = (Loss::default(), Loss { change_reported: true, ..Loss::default() });
        let both = Loss { change_reported: true, sync_reported: true, is_read: true };
        let largest = (1 << 48) - 1;
        let lost = LostFiles::new(&[(7, none), (largest, change), (300, both), (301, none)].into()).unwrap();
        let read = |lost: &LostFiles| LostFiles::read(&lost.file).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(read(&lost), [(7, none), (300, both), (301, none), (largest, change)]);
        lost.update(7, Some(Loss { sync_reported: true, ..none }));
        lost.update(300, None);
        lost.update(8, None);
        let again = LostFiles::new(&LostFiles::read(&lost.file).unwrap()).unwrap();
        assert_eq!(read(&again), [(7, Loss { sync_reported: true, ..none }), (301, none), (largest, change)]);
    }
}
