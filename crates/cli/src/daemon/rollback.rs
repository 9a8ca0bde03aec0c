//! Rollback of a mounted data set.
//!
//! The kernel has nodes, names and pages of the data set, and programs have its files open. So the server steps back, as for
//! a restart, and the next one rolls the data set back before it takes over the mount. To the kernel the undone changes are
//! those of a server that died: it drops what it caches of all objects that differ. But no call reports them.
//!
//! Invariant: from the first step to the last, the holder's facts say how far a rollback is. If a server dies in between, the
//! next one finds out from the data set whether it is done.

use super::lost_files::LostFiles;
use super::mounted::MountedSet;
use super::{Shared, succession};
use crate::control::ClientConnection;
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::fd_store::{self, FdStore, Inherited, MountedRollback, RollbackState};
use crate::open_pool::OpenPool;
use crate::query::{SnapshotAction, check_mounted_snapshots_stay, named};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, PoisonError};
use terrane_posix::{Ino, Loss};

/// Facts of a server fit one page, so a reason that is kept in them is cut.
const REASON_BYTES_MAX: usize = 1000;

/// Steps back so that the next server rolls the data set back. Returns only if that is impossible.
pub fn step_back(
    shared: &Shared,
    path: &str,
    name: &str,
    newer: bool,
    client: &mut ClientConnection,
) -> Failure {
    match check(shared, path, name, newer) {
        Ok(()) => {
            let (path, name, state) = (path.to_owned(), name.to_owned(), RollbackState::Wanted);
            let rollback = MountedRollback { path, name, newer, state };
            succession::step_back(shared, None, Some(rollback), client)
        }
        Err(failure) => failure,
    }
}

/// Everything that could refuse the rollback is checked before the server steps back, and what takes long is done.
fn check(shared: &Shared, path: &str, name: &str, newer: bool) -> Outcome {
    let pool = shared.open_pool.pool.name();
    let full = full_name(&pool, path);
    let mounts = shared.mounts();
    let is_it = |mount: &&Arc<MountedSet>| mount.view.dataset_path == path && !mount.view.is_snapshot();
    let Some(mount) = mounts.iter().find(is_it) else {
        return Err(Failure(format!("{full} is not mounted any more; try again")));
    };
    let datasets = &shared.open_pool.datasets;
    let rollback = SnapshotAction::Rollback { path: path.to_owned(), name: name.to_owned(), newer };
    check_mounted_snapshots_stay(&shared.open_pool, &rollback)?;
    let named = |error| named(&shared.open_pool, error);
    datasets.check_rollback(path, name, newer).map_err(named)?;
    mount.forget_names().map_err(|error| match error.kind() {
        ErrorKind::Unsupported => Failure::refused(
            &full,
            "a data set that is not mounted",
            "a mount, and a kernel before Linux 6.16, which cannot be told to look up names anew",
            format_args!("unmount {} first", mount.dir.display()),
        ),
        _ => Failure::from(error),
    })?;
    datasets.drain(path).map_err(named)
}

/// The first step of a server that follows another: makes the rollback for which that one stepped back.
pub fn make(open_pool: &OpenPool, inherited: &mut Inherited) -> Outcome {
    let Some(wanted) = inherited.facts.rollback.clone() else { return Ok(()) };
    if !matches!(wanted.state, RollbackState::Wanted | RollbackState::Begun) {
        return Ok(());
    }
    let full = full_name(&open_pool.pool.name(), &wanted.path);
    let state = match roll_back(open_pool, inherited, &wanted) {
        Ok(()) => {
            log::info!("{full}: rolled back to {full}@{}", wanted.name);
            RollbackState::Done
        }
        Err(Failure(mut reason)) => {
            log::error!("{full}: not rolled back: {reason}");
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            RollbackState::Refused(reason)
        }
    };
    note_state(inherited, state)
}

fn note_state(inherited: &mut Inherited, state: RollbackState) -> Outcome {
    if let Some(rollback) = &mut inherited.facts.rollback {
        rollback.state = state;
    }
    fd_store::write_facts(&inherited.facts_file, &inherited.facts)
}

fn roll_back(open_pool: &OpenPool, inherited: &mut Inherited, wanted: &MountedRollback) -> Outcome {
    let MountedRollback { path, name, newer, state } = wanted;
    let is_it = |facts: &fd_store::MountFacts| facts.dataset == *path && facts.snapshot.is_none();
    let number = inherited.mounts.iter().find(|(_, mount)| is_it(&mount.facts)).map(|(number, _)| *number);
    let set_before = number.and_then(|number| Some(inherited.mounts.get(&number)?.facts.objset));
    let begun = if *state == RollbackState::Begun {
        Err(Failure("the server died meanwhile; try again".to_owned()))
    } else if !inherited.facts.orderly {
        // Changes that were lost must be found in the data set as it was.
        Err(Failure("the last server died; try again".to_owned()))
    } else {
        if let Some(number) = number {
            note_undone(open_pool, inherited, number, wanted)?;
        }
        note_state(inherited, RollbackState::Begun)?;
        Ok(open_pool.rollback(path, name, *newer)?)
    };
    // Whatever the outcome: a server that died may have done it.
    let set = open_pool.view(path)?.dataset().object_set().id().0;
    let Some(number) = number.filter(|_| set_before != Some(set)) else { return begun };
    if let Some(mount) = inherited.mounts.get_mut(&number) {
        mount.facts.objset = set;
        FdStore::update_mount(number, &mount.facts)?;
        if number == 0 {
            // Stored with the state.
            inherited.facts.first.objset = set;
        }
    }
    Ok(())
}

/// Leaves a list of all objects that the rollback changes with the holder. Whichever server takes over the mount has the
/// kernel drop what it caches of them, and uses none of their numbers for new files.
fn note_undone(
    open_pool: &OpenPool,
    inherited: &mut Inherited,
    number: u32,
    wanted: &MountedRollback,
) -> Outcome {
    let MountedRollback { path, name, .. } = wanted;
    let undone = open_pool.datasets.changed_since(path, name)?;
    let Some(mount) = inherited.mounts.get_mut(&number) else { return Ok(()) };
    let known = mount.lost.as_ref().map(LostFiles::read).transpose()?.unwrap_or_default();
    // The losses of an earlier server are undone as well.
    let mut lost: BTreeMap<Ino, Loss> = known;
    lost.extend(undone.into_iter().map(|object| (object.0, Loss::ROLLED_BACK)));
    if lost.is_empty() {
        return Ok(());
    }
    let list = LostFiles::new(&lost)?;
    if let Some(holder) = FdStore::of_this_process() {
        holder.store_lost(number, &list.file)?;
    }
    mount.lost = Some(list.file);
    Ok(())
}

/// How the last rollback of a mounted data set ended, for the command that asked for it. Programs see the data set as it is from
/// then on.
pub fn outcome(shared: &Shared, path: &str, name: &str) -> Outcome<Value> {
    let facts = shared.facts_file.get();
    let last =
        facts.and_then(|(_, facts)| facts.lock().unwrap_or_else(PoisonError::into_inner).rollback.clone());
    match last.filter(|last| last.path == path && last.name == name).map(|last| last.state) {
        Some(RollbackState::Done) => {
            let mounts = shared.mounts();
            let rolled_back = mounts.iter().filter(|mount| mount.view.dataset_path == path);
            rolled_back.for_each(|mount| mount.drop_rolled_back());
            Ok(Value::Null)
        }
        Some(RollbackState::Refused(reason)) => Err(Failure(reason)),
        _ => Err(Failure("not rolled back; see the log of the server".to_owned())),
    }
}
