//! How mounts end: on a command, or on a signal.

use super::Shared;
use super::mounted::MountedSet;
use crate::control::{ClientConnection, STOP_STEP_TIMEOUT, StopMode};
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::fd_store::FdStore;
use crate::logger;
use serde_json::{Value, json};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::io::IsTerminal;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use terrane_fuse::UnmountHandle;
use terrane_fuse::mount::{MountError, list_mounts, other_namespaces};

/// After a signal: how long users have before the mounts are detached lazily.
const LAZY_UNMOUNT_AFTER: Duration = Duration::from_secs(5);
/// How often to check whether the mounts have ended.
const STOP_POLL_PERIOD: Duration = Duration::from_millis(20);
/// After a lazy unmount: how long the mount may take to end if it is not in use.
const LAZY_STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// How long threads of an ended mount may take to exit.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Most users in other namespaces that a message names.
const USERS_NAMED_MAX: usize = 5;

/// The mount points of these mounts. The one that was mounted last comes first, because it may lie below another.
fn places(mounts: &[Arc<MountedSet>]) -> Vec<UnmountHandle> {
    let rows = list_mounts();
    // Checked after the table was read: a number that is no longer ours belongs to another file system.
    let standing: Vec<_> = mounts.iter().filter(|mount| mount.is_mounted()).collect();
    match rows {
        Ok(rows) if standing.iter().all(|mount| !mount.dev.is_empty()) => {
            let is_ours = |dev: &String| standing.iter().any(|mount| mount.dev == *dev);
            rows.iter().rev().filter(|row| is_ours(&row.dev)).map(UnmountHandle::of).collect()
        }
        _ => standing.iter().rev().flat_map(|mount| mount.places()).collect(),
    }
}

fn unmount_all(mounts: &[Arc<MountedSet>]) -> Result<(), MountError> {
    places(mounts).iter().try_for_each(UnmountHandle::unmount)
}

/// The first signal unmounts: at once if idle, else lazily after [`LAZY_UNMOUNT_AFTER`] or at the next signal.
/// Later signals abort the mounts.
pub fn handle_signals(mut signals: Signals, shared: &Shared) {
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
            _ => shared.mounts().iter().rev().try_for_each(|mount| mount.abort()),
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
    for mount in shared.mounts() {
        log::info!("unmounting {} (signal)", mount.dir.display());
    }
    let begun = Instant::now();
    while let Err(error) = unmount_all(&shared.mounts()) {
        if begun.elapsed() > LAZY_UNMOUNT_AFTER || signals.pending().any(|signal| signal != SIGHUP) {
            log::warn!("unmount failed: {error}; detaching it, it ends with its last user");
            return places(&shared.mounts()).iter().try_for_each(UnmountHandle::detach);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Unmounts a data set, or all of them, and answers the client.
pub fn stop(
    shared: &Arc<Shared>,
    dataset: Option<&str>,
    how: StopMode,
    timeout: Duration,
    client: &mut ClientConnection,
) {
    shared.lifecycle().waiting += 1;
    client.answer(end_mounts(shared, dataset, how, timeout));
    shared.lifecycle().waiting -= 1;
    shared.lifecycle_changed.notify_all();
}

/// Unmounts, and waits until the mounts have ended in all namespaces and everything is committed.
fn end_mounts(
    shared: &Arc<Shared>,
    dataset: Option<&str>,
    how: StopMode,
    timeout: Duration,
) -> Outcome<Value> {
    let mut mounts = shared.mounts();
    mounts.retain(|mount| dataset.is_none_or(|path| mount.view().dataset_path == path));
    let pool = &shared.target.name;
    let name = match dataset {
        None | Some("") => format!("pool {pool}"),
        Some(path) => format!("data set {}", full_name(pool, path)),
    };
    if mounts.is_empty() {
        return Err(Failure(format!("{name} is not mounted")));
    }
    match how {
        StopMode::WhenIdle => unmount_all(&mounts).map_err(|error| explain_busy(shared, error))?,
        StopMode::Lazily => places(&mounts).iter().try_for_each(UnmountHandle::detach)?,
        StopMode::ByForce => {
            shared.sync_within(STOP_STEP_TIMEOUT)?;
            mounts.iter().rev().try_for_each(|mount| mount.abort())?;
        }
    }
    let begun = Instant::now();
    // A lazy unmount reports whether users are left, and does not wait for them.
    let timeout = if how == StopMode::Lazily { LAZY_STOP_TIMEOUT } else { timeout };
    while mounts.iter().any(|mount| mount.is_mounted()) && begun.elapsed() < timeout {
        shared.sleep(STOP_POLL_PERIOD);
    }
    let standing: Vec<_> = mounts.iter().filter(|mount| mount.is_mounted()).collect();
    if !standing.is_empty() {
        shared.sync_within(STOP_STEP_TIMEOUT)?;
        let users: Vec<String> = standing.iter().map(|mount| users_elsewhere(mount)).collect();
        let users = users.join(", ");
        if how == StopMode::Lazily {
            return Ok(json!({"stays": users}));
        }
        let remedy = "it is unmounted here, committed, and stays open: end these users, or use `terrane umount --force`";
        return Err(Failure::refused(name, "no user in other mount namespaces", users, remedy));
    }
    let late = || {
        Failure(format!(
            "{name}: unmounted, but the commit has not finished after {STOP_STEP_TIMEOUT:?}; the server continues, see its log"
        ))
    };
    if !wait_until_closed(shared, &mounts) {
        return Err(late());
    }
    let failed: Vec<String> = mounts.iter().filter_map(|mount| mount.close_failure.get().cloned()).collect();
    wait_until_released(mounts);
    if !failed.is_empty() {
        return Err(Failure(format!("{name}: unmounted, but the commit failed: {}", failed.join(", "))));
    }
    if !shared.lifecycle().ending {
        return Ok(json!({"serves": shared.mounts().len()}));
    }
    match shared.wait_for_end(STOP_STEP_TIMEOUT) {
        Some(ended) => ended.map(|()| Value::Null).map_err(Failure),
        None => Err(late()),
    }
}

/// Waits until these mounts are committed and out of the server's table.
pub fn wait_until_closed(shared: &Shared, mounts: &[Arc<MountedSet>]) -> bool {
    let waited = shared.lifecycle_changed.wait_timeout_while(shared.lifecycle(), STOP_STEP_TIMEOUT, |it| {
        mounts.iter().any(|mount| it.mounts.contains_key(&mount.number))
    });
    let lifecycle = waited.unwrap_or_else(PoisonError::into_inner).0;
    !mounts.iter().any(|mount| lifecycle.mounts.contains_key(&mount.number))
}

/// Waits until no thread has the data sets of these mounts open, because the client may destroy one next.
fn wait_until_released(mounts: Vec<Arc<MountedSet>>) {
    let begun = Instant::now();
    while mounts.iter().any(|mount| Arc::strong_count(mount) > 1) && begun.elapsed() < RELEASE_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn explain_busy(shared: &Shared, error: MountError) -> Failure {
    match &error {
        MountError::Covered { .. } => return Failure(format!("{error}; unmount that first")),
        MountError::Unreachable { .. } => {
            return Failure(format!("{error}; unmount what is mounted above it, or see --force"));
        }
        MountError::System { path, .. } | MountError::Fusermount { path, .. } => {
            let rows = list_mounts().unwrap_or_default();
            // The kernel calls a mount busy if another one lies below it.
            if let Some(row) = rows.iter().find(|row| row.dir != *path && row.dir.starts_with(path)) {
                let name = shared.mounts().into_iter().find(|mount| mount.dev == row.dev);
                let name = name.map_or_else(|| row.source.to_string_lossy().into_owned(), |it| it.name());
                return Failure(format!(
                    "{error}; {name} is mounted below it, on {}: unmount that first, or all of the pool with -a",
                    row.dir.display()
                ));
            }
        }
        MountError::Refused { .. } => {}
    }
    Failure(format!("{error}; end what uses it (see `fuser -vm`) and try again, or see --lazy and --force"))
}

/// Names the processes that have the mount in namespaces that this process does not see.
fn users_elsewhere(mount: &MountedSet) -> String {
    let found = other_namespaces(&mount.dev).unwrap_or_default();
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
