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
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;
use terrane_fuse::handover::Ledger;
use terrane_fuse::session::Negotiated;
use terrane_fuse::{Mount, Session, SessionConfig};
use terrane_posix::{Fs, Ino};

/// How long requests under way may take before this server ends without them.
const BRAKE_PATIENCE: Duration = Duration::from_secs(60);

/// What a new mount will leave with its holder.
pub struct Estate {
    holder: Holder,
    control: UnixListener,
    ledger: Option<File>,
}

/// The ledger, as the file system sees it.
struct Notes(Ledger);

impl terrane_posix::Ledger for Notes {
    fn note(&self, group: u64, ino: Ino) {
        self.0.note(group, ino);
    }
}

fn keep_ledger(fs: &Fs, ledger: Ledger) -> Outcome<File> {
    let file = ledger.file().try_clone()?;
    fs.keep_ledger(Box::new(Notes(ledger)));
    Ok(file)
}

impl Estate {
    /// `None` where nobody would keep it.
    pub fn new(fs: &Fs, live: &Live, control: &UnixListener) -> Outcome<Option<Estate>> {
        let Some(holder) = Holder::of_this_process() else { return Ok(None) };
        let changes = !live.pool.is_read_only();
        let ledger = if changes { Some(keep_ledger(fs, Ledger::new()?)?) } else { None };
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
        };
        let page = self.holder.keep_all(&session.device()?, &self.control, self.ledger.as_ref(), &facts)?;
        Ok((page, facts))
    }
}

/// Opens the file system for a mount that stands.
pub fn take_over(live: &Live, legacy: &Legacy) -> Outcome<Arc<Fs>> {
    let name = live.pool.name();
    if legacy.facts.pool != live.pool.id() {
        let (expected, found) =
            (format!("pool {:016x}", legacy.facts.pool), format!("{:016x}", live.pool.id()));
        return Err(Failure::refused(live.path.display(), expected, found, "bring the mounted device back"));
    }
    let committed = live.pool.status().txg.0;
    let ledger = legacy.ledger.as_ref().map(|file| Ledger::map(file.try_clone()?)).transpose()?;
    let lost = match &ledger {
        Some(ledger) if !legacy.facts.orderly => ledger.after(committed),
        _ => BTreeSet::new(),
    };
    if !legacy.facts.orderly {
        let count = lost.len();
        log::warn!(
            "pool {name}: its server died; what changed in {count} files after group {committed} is lost"
        );
    }
    let fs = Fs::take_over(Arc::clone(&live.dataset), lost)?;
    // The first to open it, since nobody else can ask yet.
    let _ = live.fs.set(Arc::clone(&fs));
    if !live.pool.is_read_only() {
        let known = ledger.is_some();
        let file = keep_ledger(&fs, ledger.map_or_else(Ledger::new, Ok)?)?;
        if !known && let Some(holder) = Holder::of_this_process() {
            holder.keep_ledger(&file)?;
        }
    }
    Ok(fs)
}

/// The last step: the mount is ours.
pub fn adopt(legacy: Legacy, plan: &Plan) -> Outcome<(Session, UnixListener, (File, Facts))> {
    let Legacy { connection, control, facts, page, .. } = legacy;
    let facts = Facts { orderly: false, ..facts };
    holder::write_facts(&page, &facts)?;
    let mount = Mount::adopt(connection, &plan.dir);
    Ok((Session::new(mount, SessionConfig::from(&plan.mount)), control, (page, facts)))
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
    shared.end_draining();
    let exported = if quiet {
        shared.live.pool.export().map_err(Failure::from)
    } else {
        Err(Failure("requests under way do not end".to_owned()))
    };
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
