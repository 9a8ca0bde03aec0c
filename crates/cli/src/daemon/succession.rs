//! How one server of a mount follows another.
//!
//! A server that was killed leaves requests unanswered, which the kernel resends. Its uncommitted changes are
//! lost as after a power cut. The kernel must stop showing those, and a program that asks for their
//! durability must get an error. The ledger says which files they are in. A server that *steps back* commits
//! everything first, so nothing is lost.
//!
//! Invariant: no step that can be refused comes after the mount was adopted, because dropping it would
//! unmount it.

use super::{Plan, Shared};
use crate::control::{Caller, Greeting};
use crate::failure::{Failure, Outcome};
use crate::holder::{self, Facts, Holder, Legacy};
use crate::keeper::STEPPED_BACK;
use crate::live::Live;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use terrane_dataset::{AclType, Dataset, XattrHome};
use terrane_device::Identity;
use terrane_fuse::handover::{self, Ledger};
use terrane_fuse::session::Negotiated;
use terrane_fuse::{Mount, Session, SessionConfig};
use terrane_posix::{Fs, Ino, Loss};

/// How long requests in progress may take before this server exits without them.
const BRAKE_PATIENCE: Duration = Duration::from_secs(60);

/// How often to check that the keeper is alive.
const KEEPER_LOOK: Duration = Duration::from_secs(1);
/// How long a killed keeper may still seem to listen.
const KEEPER_DIES: Duration = Duration::from_millis(50);
/// The interval after another keeper could not be started.
const KEEPER_PAUSE: Duration = Duration::from_secs(30);

/// What a new mount will leave with its holder.
pub struct Estate {
    holder: Holder,
    control: UnixListener,
    ledger: Option<File>,
}

/// The ledger, as the file system sees it.
struct Notes {
    ledger: Ledger,
    lost: Option<Lost>,
}

impl terrane_posix::Ledger for Notes {
    fn note(&self, group: u64, ino: Ino) {
        self.ledger.note(group, ino);
    }

    fn told(&self, ino: Ino, loss: Option<Loss>) {
        if let Some(lost) = &self.lost {
            lost.write_down(ino, loss);
        }
    }
}

fn keep_ledger(fs: &Fs, ledger: Ledger, lost: Option<Lost>) -> Outcome<File> {
    let file = ledger.file().try_clone()?;
    fs.keep_ledger(Box::new(Notes { ledger, lost }));
    Ok(file)
}

/// Inodes that lost changes, and who was told: kernel, programs, administrator. The ledger drops them with
/// the next commit; this list stays, however many servers follow.
struct Lost {
    file: File,
    /// In ascending order, 8 bytes each, as in the file. There the three highest bits say who was told;
    /// object numbers have fewer bits.
    numbers: Vec<Ino>,
}

const CHANGE_TOLD: u64 = 1 << 63;
const SYNC_TOLD: u64 = 1 << 62;
const READ: u64 = 1 << 61;

fn word(ino: Ino, loss: Loss) -> u64 {
    let told = |is_told, bit| if is_told { bit } else { 0 };
    ino | told(loss.change_told, CHANGE_TOLD) | told(loss.sync_told, SYNC_TOLD) | told(loss.is_read, READ)
}

fn loss_of(word: u64) -> (Ino, Loss) {
    let is_set = |bit| word & bit != 0;
    let loss = Loss { change_told: is_set(CHANGE_TOLD), sync_told: is_set(SYNC_TOLD), is_read: is_set(READ) };
    (word & !(CHANGE_TOLD | SYNC_TOLD | READ), loss)
}

impl Lost {
    fn new(losses: &BTreeMap<Ino, Loss>) -> Outcome<Lost> {
        let numbers: Vec<Ino> = losses.keys().copied().collect();
        let file = handover::memory_file("terrane-lost")?;
        let raw: Vec<u8> = losses.iter().flat_map(|(ino, loss)| word(*ino, *loss).to_le_bytes()).collect();
        file.write_all_at(&raw, 0)?;
        Ok(Lost { file, numbers })
    }

    /// Reads the list of a predecessor. Entries that are no longer valid are 0.
    fn read(file: &File) -> Outcome<BTreeMap<Ino, Loss>> {
        let mut raw = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
        file.read_exact_at(&mut raw, 0)?;
        let (words, _) = raw.as_chunks();
        Ok(words.iter().map(|word| loss_of(u64::from_le_bytes(*word))).filter(|(ino, _)| *ino != 0).collect())
    }

    fn write_down(&self, ino: Ino, loss: Option<Loss>) {
        let word = loss.map_or(0, |loss| word(ino, loss));
        if let Ok(at) = self.numbers.binary_search(&ino)
            && let Err(error) = self.file.write_all_at(&word.to_le_bytes(), 8 * at as u64)
        {
            log::warn!("inode {ino} may be called lost once more: {error}");
        }
    }
}

impl Estate {
    /// `None` if there is no holder to keep it.
    pub fn new(fs: &Fs, live: &Live, control: &UnixListener) -> Outcome<Option<Estate>> {
        let Some(holder) = Holder::of_this_process() else { return Ok(None) };
        let changes = !live.pool.is_read_only();
        let ledger = if changes { Some(keep_ledger(fs, Ledger::new()?, None)?) } else { None };
        Ok(Some(Estate { holder, control: control.try_clone()?, ledger }))
    }

    /// From here on the mount outlives this process.
    pub fn leave(
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
        let held = Identity::hold(&greeting.device).ok();
        match held.filter(|(identity, _)| greeting.devices.contains(identity)) {
            Some((_, device)) => self.holder.keep_device(&device)?,
            None => log::warn!("{}: its path is all that a successor will know", greeting.device.display()),
        }
        let page = self.holder.keep_all(&session.device()?, &self.control, self.ledger.as_ref(), &facts)?;
        Ok((page, facts))
    }
}

/// Opens the file system for an existing mount.
pub fn take_over(live: &Live, legacy: &Legacy) -> Outcome<Arc<Fs>> {
    let name = live.pool.name();
    let id = live.pool.label().id();
    if legacy.facts.pool != id {
        let (expected, found) = (format!("pool {:016x}", legacy.facts.pool), format!("{id:016x}"));
        return Err(Failure::refused(live.path.display(), expected, found, "bring the mounted device back"));
    }
    keep_agreed(&live.dataset, &legacy.facts.negotiated)?;
    // The txg that this import found, whatever was committed since.
    let committed = live.pool.status().imported.0;
    let ledger = legacy.ledger.as_ref().map(|file| Ledger::map(file.try_clone()?)).transpose()?;
    let lost = match &ledger {
        Some(ledger) if !legacy.facts.orderly => ledger.after(committed),
        _ => BTreeSet::new(),
    };
    let mut lost: BTreeMap<Ino, Loss> = lost.iter().map(|ino| (*ino, Loss::default())).collect();
    if !legacy.facts.orderly {
        let count = lost.len();
        log::warn!(
            "pool {name}: its server died; what changed in {count} files after group {committed} is lost"
        );
    }
    if let Some(file) = &legacy.lost {
        // Changes that were lost again have to be reported again.
        for (ino, loss) in Lost::read(file)? {
            lost.entry(ino).or_insert(loss);
        }
    }
    let holder = Holder::of_this_process();
    let list = if lost.is_empty() { None } else { Some(Lost::new(&lost)?) };
    if let (Some(list), Some(holder)) = (&list, &holder) {
        holder.keep_lost(&list.file)?;
    }
    let fs = Fs::take_over(Arc::clone(&live.dataset), lost)?;
    if legacy.facts.orderly {
        fs.predecessor_stepped_back();
    }
    // The first to open it, since no other thread can ask yet.
    let _ = live.fs.set(Arc::clone(&fs));
    if !live.pool.is_read_only() {
        let known = ledger.is_some();
        let file = keep_ledger(&fs, ledger.map_or_else(Ledger::new, Ok)?, list)?;
        if !known && let Some(holder) = holder {
            holder.keep_ledger(&file)?;
        }
    }
    Ok(fs)
}

/// Keeps what the predecessor negotiated with the kernel for the life of the mount, whatever the properties
/// say by now.
fn keep_agreed(dataset: &Dataset, negotiated: &Negotiated) -> Outcome {
    if negotiated.acls() != (dataset.acl_type() == AclType::Posix) {
        dataset.obey_for_now("acltype", if negotiated.acls() { "posix" } else { "off" })?;
    }
    if negotiated.xattrs != (dataset.xattr_home() != XattrHome::Off) {
        dataset.obey_for_now("xattr", if negotiated.xattrs { "sa" } else { "off" })?;
    }
    Ok(())
}

/// The last step: takes over the mount.
pub fn adopt(legacy: Legacy, plan: &Plan) -> Outcome<(Session, UnixListener, (File, Facts))> {
    let Legacy { connection, control, facts, page, .. } = legacy;
    let facts = Facts { orderly: false, ..facts };
    holder::write_facts(&page, &facts)?;
    let mount = Mount::adopt(connection, &plan.dir);
    Ok((Session::new(mount, SessionConfig::from(&plan.mount)), control, (page, facts)))
}

/// This program, as the helper process for [`Session::resume`] and [`terrane_fuse::Launderer`].
pub fn forgetter() -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg0("terrane").arg("forget");
    program
}

/// Starts another keeper if the one of this mount is gone.
fn have_holder(shared: &Shared) -> Outcome {
    let Some(holder) = Holder::of_this_process() else { return Ok(()) };
    // Two threads that miss it at once must not start two.
    let _alone = shared.keeper.lock().unwrap_or_else(PoisonError::into_inner);
    if holder.is_there() {
        return Ok(());
    }
    log::warn!("the keeper of the mount is gone; another one is started");
    holder.replace()
}

/// Notices within seconds that the keeper is gone, and starts another one.
pub fn watch_keeper(shared: &Shared) {
    let Some(holder) = Holder::of_this_process() else { return };
    let (mut missed, mut pause) = (0, KEEPER_LOOK);
    while !shared.rest(pause) {
        // Before the mount was left with it there is nothing to lose.
        let is_there = shared.page.get().is_none() || holder.is_there();
        missed = if is_there { 0 } else { missed + 1 };
        // A user who kills both, one after the other, wants the mount to end: so not at the first miss.
        if missed < 2 {
            pause = KEEPER_LOOK;
            continue;
        }
        if let Err(failure) = have_holder(shared) {
            log::error!("the mount has no keeper, and ends with this process: {failure}");
            pause = KEEPER_PAUSE;
        }
    }
}

/// Finishes requests in progress, commits everything and exits, so that a successor can continue. Returns
/// only if that is impossible.
pub fn step_back(shared: &Shared, read_only: Option<bool>, caller: &mut Caller) -> Failure {
    let Some((page, facts)) = shared.page.get() else {
        return Failure(format!(
            "the server of {} runs in the foreground, and nobody would keep its mount; unmount it and mount it again",
            shared.greeting.mountpoint.display()
        ));
    };
    // Descriptors left with a keeper are lost when it is gone. One that was just killed seems to listen for a
    // moment longer. No caller on the mount waits for this pause.
    for pause in [KEEPER_DIES, Duration::ZERO] {
        if let Err(failure) = have_holder(shared) {
            return Failure(format!("nobody would keep the mount, and it stays as it is: {failure}"));
        }
        std::thread::sleep(pause);
    }
    // Commits most of it before callers have to wait.
    if let Err(errno) = shared.fs.sync() {
        return Failure(format!("not everything can be committed: {errno}"));
    }
    log::info!("stepping back for another server");
    let quiet = shared.brake.pull(BRAKE_PATIENCE);
    shared.end_housekeeping();
    let exported =
        if quiet { shared.live.export() } else { Err(Failure("requests under way do not end".to_owned())) };
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    let read_only = read_only.or(facts.read_only);
    let facts = Facts { orderly: exported.is_ok(), read_only, ..facts.clone() };
    let outcome = exported.and_then(|()| holder::write_facts(page, &facts));
    // The last moment at which another keeper can be given the descriptors.
    if let Err(failure) = have_holder(shared) {
        log::error!("nobody keeps the mount, and it ends with this process: {failure}");
    }
    // There is no way back: requests were read that only a successor can have resent.
    match outcome {
        Ok(()) => caller.answer(Ok(Value::Null)),
        Err(failure) => {
            log::error!("the next server begins as after a crash: {failure}");
            caller.answer(Err(failure));
        }
    }
    std::process::exit(STEPPED_BACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_remembered_until_somebody_was_told() {
        let (none, change) = (Loss::default(), Loss { change_told: true, ..Loss::default() });
        let both = Loss { change_told: true, sync_told: true, is_read: true };
        let largest = (1 << 48) - 1;
        let lost = Lost::new(&[(7, none), (largest, change), (300, both), (301, none)].into()).unwrap();
        let read = |lost: &Lost| Lost::read(&lost.file).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(read(&lost), [(7, none), (300, both), (301, none), (largest, change)]);
        lost.write_down(7, Some(Loss { sync_told: true, ..none }));
        lost.write_down(300, None);
        lost.write_down(8, None);
        let again = Lost::new(&Lost::read(&lost.file).unwrap()).unwrap();
        assert_eq!(read(&again), [(7, Loss { sync_told: true, ..none }), (301, none), (largest, change)]);
    }
}
