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
use crate::fd_store::{self, FdStore, Inherited, InheritedMount, MountedRollback, RollbackState};
use crate::open_pool::OpenPool;
use crate::query::{SnapshotAction, check_mounted_snapshots_stay, named};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, PoisonError};
use terrane_posix::{Ino, Loss, Undone, find_undone};

/// Facts of a server fit one page, so a reason that is kept in them is cut.
const REASON_BYTES_MAX: usize = 300;

/// Steps back so that the next server rolls the data set back. Returns only if that is impossible.
pub fn step_back(
    shared: &Shared,
    path: &str,
    name: &str,
    newer: bool,
    client: &mut ClientConnection,
) -> Failure {
    succession::step_back(shared, None, || check(shared, path, name, newer).map(Some), client)
}

/// Everything that could refuse the rollback is checked before the server steps back, and what takes long is done.
fn check(shared: &Shared, path: &str, name: &str, newer: bool) -> Outcome<MountedRollback> {
    let pool = shared.open_pool().pool.name();
    let full = full_name(&pool, path);
    let mounts = shared.mounts();
    let is_it = |mount: &&Arc<MountedSet>| mount.view().dataset_path == path && !mount.view().is_snapshot();
    let Some(mount) = mounts.iter().find(is_it) else {
        return Err(Failure(format!("{full} is not mounted any more; try again")));
    };
    let datasets = &shared.open_pool().datasets;
    let rollback = SnapshotAction::Rollback { path: path.to_owned(), name: name.to_owned(), newer };
    check_mounted_snapshots_stay(&shared.open_pool(), &rollback)?;
    let named = |error| named(&shared.open_pool(), error);
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
    datasets.drain(path).map_err(named)?;
    Ok(MountedRollback {
        path: path.to_owned(),
        name: name.to_owned(),
        newer,
        mount: mount.number,
        set: mount.view().dataset().object_set().id().0,
        state: RollbackState::Wanted,
    })
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
    let MountedRollback { path, name, newer, mount, set, state } = wanted;
    let set_now = || Outcome::Ok(open_pool.view(path)?.dataset().object_set().id().0);
    let begun = if *state == RollbackState::Begun {
        Err(Failure("the server died meanwhile; try again".to_owned()))
    } else if !inherited.facts.orderly {
        // Changes that were lost must be found in the data set as it was.
        Err(Failure("the last server died; try again".to_owned()))
    } else if set_now()? != *set {
        return Err(Failure("another data set has this name by now".to_owned()));
    } else {
        // First: if a server died of the rollback, the next one would too.
        note_state(inherited, RollbackState::Begun)?;
        note_undone(open_pool, inherited, wanted)?;
        Ok(open_pool.rollback(path, name, *newer)?)
    };
    // Whatever the outcome: a server that died may have done it.
    let set_now = set_now()?;
    if set_now == *set {
        return begun;
    }
    if let Some(inherited_mount) = inherited.mounts.get_mut(mount) {
        end_losses(inherited_mount, *mount)?;
        inherited_mount.facts.objset = set_now;
        FdStore::update_mount(*mount, &inherited_mount.facts)?;
        if *mount == 0 {
            // Stored with the state.
            inherited.facts.first.objset = set_now;
        }
    }
    Ok(())
}

/// Leaves a list of all objects that the rollback changes with the holder. Whichever server takes over the mount has the
/// kernel drop what it caches of them, and uses none of their numbers for new files.
///
/// Losses of an earlier server are reported until the rollback is done. If it is refused, an open file whose number the rollback
/// would have given to another one is stale until its name is looked up.
fn note_undone(open_pool: &OpenPool, inherited: &mut Inherited, wanted: &MountedRollback) -> Outcome {
    let MountedRollback { path, name, mount: number, .. } = wanted;
    let Some(mount) = inherited.mounts.get_mut(number) else { return Ok(()) };
    let mut lost = mount.lost.as_ref().map(LostFiles::read).transpose()?.unwrap_or_default();
    let undone = open_pool.datasets.changed_since(path, name)?;
    let (head, snapshot) =
        (open_pool.datasets.open_dataset(path)?, open_pool.datasets.open_snapshot(path, name)?);
    for (ino, state) in find_undone(&head, &snapshot, &undone)? {
        let known = lost.get(&ino).copied();
        let before = known.unwrap_or(Loss::ROLLED_BACK);
        let loss = match state {
            Undone::Replaced => Loss { is_replaced: true, is_named: false, ..before },
            // The kernel may know a number that no object has, only from a list.
            Undone::Absent if known.is_some() => Loss { is_replaced: true, is_named: false, ..before },
            Undone::Absent | Undone::Changed => before,
        };
        let loss = Loss { is_rolled_back: true, ..loss };
        lost.insert(ino, loss);
    }
    store_losses(mount, *number, &lost)
}

/// The losses of an earlier server in what the rollback has undone are undone as well.
fn end_losses(mount: &mut InheritedMount, number: u32) -> Outcome {
    let Some(list) = &mount.lost else { return Ok(()) };
    let mut lost = LostFiles::read(list)?;
    for loss in lost.values_mut().filter(|loss| loss.is_rolled_back) {
        let Loss { is_replaced, is_named, .. } = *loss;
        *loss = Loss { is_replaced, is_named, ..Loss::ROLLED_BACK };
    }
    store_losses(mount, number, &lost)
}

fn store_losses(mount: &mut InheritedMount, number: u32, lost: &BTreeMap<Ino, Loss>) -> Outcome {
    if lost.is_empty() {
        return Ok(());
    }
    let list = LostFiles::new(lost)?;
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
            let rolled_back = mounts.iter().filter(|mount| mount.view().dataset_path == path);
            rolled_back.for_each(|mount| mount.drop_rolled_back());
            Ok(Value::Null)
        }
        Some(RollbackState::Refused(reason)) => Err(Failure(reason)),
        _ => Err(Failure("not rolled back; see the log of the server".to_owned())),
    }
}
