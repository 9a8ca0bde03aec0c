//! How one server of a mount follows another.
//!
//! A server that was killed leaves requests unanswered, which the kernel sends again, and changes uncommitted, which are lost as after
//! a power cut. The kernel must not go on showing those, and a program that asks for their durability must be told: the ledger
//! says which files they are in. A server that *steps back* commits everything first, so that nothing is lost at all.
//!
//! Invariant: nothing that can be refused happens after the mount was adopted, because letting go of it would unmount it.

use super::{Plan, Shared};
use crate::control::{Caller, Greeting};
use crate::failure::{Failure, Outcome};
use crate::holder::{self, Facts, Holder, Legacy};
use crate::keeper::STEPPED_BACK;
use crate::live::Live;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use terrane_fuse::handover::{self, Ledger};
use terrane_fuse::session::Negotiated;
use terrane_fuse::{Mount, Session, SessionConfig};
use terrane_posix::{AclType, Dataset, Fs, Ino, XattrHome};

/// How long requests under way may take before this server ends without them.
const BRAKE_PATIENCE: Duration = Duration::from_secs(60);

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

    fn told(&self, ino: Ino) {
        if let Some(lost) = &self.lost {
            lost.strike(ino);
        }
    }
}

fn keep_ledger(fs: &Fs, ledger: Ledger, lost: Option<Lost>) -> Outcome<File> {
    let file = ledger.file().try_clone()?;
    fs.keep_ledger(Box::new(Notes { ledger, lost }));
    Ok(file)
}

/// Inodes that lost changes, and whose users were not told. The ledger forgets them with the next commit; the kernel and programs
/// with files open do not, however many servers come and go.
struct Lost {
    file: File,
    /// In ascending order, as they stand in the file, 8 bytes each.
    numbers: Vec<Ino>,
}

impl Lost {
    fn new(numbers: &BTreeSet<Ino>) -> Outcome<Lost> {
        let numbers: Vec<Ino> = numbers.iter().copied().collect();
        let file = handover::memory_file("terrane-lost")?;
        let raw: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        file.write_all_at(&raw, 0)?;
        Ok(Lost { file, numbers })
    }

    /// What a predecessor's says. Struck numbers are 0.
    fn read(file: &File) -> Outcome<BTreeSet<Ino>> {
        let mut raw = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
        file.read_exact_at(&mut raw, 0)?;
        let (numbers, _) = raw.as_chunks();
        Ok(numbers.iter().map(|number| Ino::from_le_bytes(*number)).filter(|number| *number != 0).collect())
    }

    fn strike(&self, number: Ino) {
        if let Ok(at) = self.numbers.binary_search(&number)
            && let Err(error) = self.file.write_all_at(&[0; 8], 8 * at as u64)
        {
            log::warn!("inode {number} may be called lost once more: {error}");
        }
    }
}

impl Estate {
    /// `None` where nobody would keep it.
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
        };
        let page = self.holder.keep_all(&session.device()?, &self.control, self.ledger.as_ref(), &facts)?;
        Ok((page, facts))
    }
}

/// Opens the file system for a mount that stands.
pub fn take_over(live: &Live, legacy: &Legacy) -> Outcome<Arc<Fs>> {
    let name = live.pool.name();
    let id = live.pool.label().id();
    if legacy.facts.pool != id {
        let (expected, found) = (format!("pool {:016x}", legacy.facts.pool), format!("{id:016x}"));
        return Err(Failure::refused(live.path.display(), expected, found, "bring the mounted device back"));
    }
    keep_agreed(&live.dataset, &legacy.facts.negotiated)?;
    let committed = live.pool.status().txg.0;
    let ledger = legacy.ledger.as_ref().map(|file| Ledger::map(file.try_clone()?)).transpose()?;
    let mut lost = match &ledger {
        Some(ledger) if !legacy.facts.orderly => ledger.after(committed),
        _ => BTreeSet::new(),
    };
    if !legacy.facts.orderly {
        let count = lost.len();
        log::warn!(
            "pool {name}: its server died; what changed in {count} files after group {committed} is lost"
        );
    }
    if let Some(file) = &legacy.lost {
        lost.append(&mut Lost::read(file)?);
    }
    let holder = Holder::of_this_process();
    let list = if lost.is_empty() { None } else { Some(Lost::new(&lost)?) };
    if let (Some(list), Some(holder)) = (&list, &holder) {
        holder.keep_lost(&list.file)?;
    }
    let fs = Fs::take_over(Arc::clone(&live.dataset), lost)?;
    // The first to open it, since nobody else can ask yet.
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

/// What the predecessor agreed on with the kernel stands as long as the mount, whatever the properties say by now.
fn keep_agreed(dataset: &Dataset, negotiated: &Negotiated) -> Outcome {
    if negotiated.acls() != (dataset.acl_type() == AclType::Posix) {
        dataset.obey_for_now("acltype", if negotiated.acls() { "posix" } else { "off" })?;
    }
    if negotiated.xattrs != (dataset.xattr_home() != XattrHome::Off) {
        dataset.obey_for_now("xattr", if negotiated.xattrs { "sa" } else { "off" })?;
    }
    Ok(())
}

/// The last step: the mount is ours.
pub fn adopt(legacy: Legacy, plan: &Plan) -> Outcome<(Session, UnixListener, (File, Facts))> {
    let Legacy { connection, control, facts, page, .. } = legacy;
    let facts = Facts { orderly: false, ..facts };
    holder::write_facts(&page, &facts)?;
    let mount = Mount::adopt(connection, &plan.dir);
    Ok((Session::new(mount, SessionConfig::from(&plan.mount)), control, (page, facts)))
}

/// This program, for what [`Session::resume`] wants done beside it.
pub fn forgetter() -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg0("terrane").arg("forget");
    program
}

/// Finishes what is under way, commits everything and ends this process, for a successor to go on. Returns if it cannot.
pub fn step_back(shared: &Shared, read_only: Option<bool>, caller: &mut Caller) -> Failure {
    let Some((page, facts)) = shared.page.get() else {
        return Failure(format!(
            "the server of {} runs in the foreground, and nobody would keep its mount; unmount it and mount it again",
            shared.greeting.mountpoint.display()
        ));
    };
    // Most of the work before callers have to wait.
    if let Err(errno) = shared.fs.sync() {
        return Failure(format!("not everything can be committed: {errno}"));
    }
    log::info!("stepping back for another server");
    let quiet = shared.brake.pull(BRAKE_PATIENCE);
    shared.end_housekeeping();
    let exported = if quiet {
        shared.live.pool.export().map_err(Failure::from)
    } else {
        Err(Failure("requests under way do not end".to_owned()))
    };
    let facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    let read_only = read_only.or(facts.read_only);
    let facts = Facts { orderly: exported.is_ok(), read_only, ..facts.clone() };
    let outcome = exported.and_then(|()| holder::write_facts(page, &facts));
    // There is no way back: requests were read that only a successor can ask for again.
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
        let lost = Lost::new(&BTreeSet::from([7, u64::MAX, 300])).unwrap();
        assert_eq!(Lost::read(&lost.file).unwrap(), BTreeSet::from([7, 300, u64::MAX]));
        lost.strike(300);
        lost.strike(8);
        let again = Lost::new(&Lost::read(&lost.file).unwrap()).unwrap();
        assert_eq!(Lost::read(&again.file).unwrap(), BTreeSet::from([7, u64::MAX]));
    }
}
