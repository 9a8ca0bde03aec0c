//! Following a pool that another machine writes: `-o follow`.
//!
//! A thread looks whether the root of the object store was replaced. Then it opens the newer state beside the one that is
//! shown, and all mounts go over to it. The block cache stays: an address never changes its content.
//!
//! Invariant: each request is answered by one state. If a newer one cannot be opened, the mounts stay at theirs.

use super::Shared;
use super::mounted::MountedSet;
use crate::bucket_note::label_of;
use crate::failure::{Failure, Outcome};
use crate::memory;
use crate::open_pool::OpenPool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use terrane_device::Device;
use terrane_fuse::Dispatch;
use terrane_pool::{EarlierState, ImportOptions};
use terrane_posix::{Fs, ShownInodes};

/// How often to check whether requests of an earlier state are answered.
const DRAIN_PERIOD: Duration = Duration::from_millis(10);

/// Goes over to newer states until the server ends.
pub fn run(shared: &Shared, period: Duration, import: &ImportOptions) {
    let mut last = String::new();
    let Some(mut device) = shared.open_pool().pool.device_handles().first().cloned() else { return };
    while !shared.sleep(period) {
        match go_over(shared, import, &mut device) {
            Ok(()) => last.clear(),
            Err(failure) if failure.0 == last => {}
            Err(failure) => {
                log::warn!("{}: stays at an older state: {failure}", shared.target.name);
                last = failure.0;
            }
        }
    }
}

/// Goes over to the newest state, if there is a newer one than is shown. `device`: the newest root that was looked at. It may have the
/// same txg.
fn go_over(shared: &Shared, import: &ImportOptions, device: &mut Arc<dyn Device>) -> Outcome {
    let shown = shared.open_pool();
    let Some(newer) = device.newer()? else { return Ok(()) };
    // Its blocks would be taken for those of the other pool.
    if label_of(newer.as_ref())?.id() != shown.pool.label().id() {
        let name = newer.info().name.clone();
        return Err(Failure::refused(name, "the pool that was mounted", "another one", "mount it again"));
    }
    let import = ImportOptions {
        cache_bytes: shown.pool.cache_bytes_max(),
        follows: Some(EarlierState::of(&shown.pool)),
        ..import.clone()
    };
    let newest = OpenPool::of_devices(&shown.path, vec![Arc::clone(&newer)], &import)?;
    *device = newer;
    if newest.pool.status().imported == shown.pool.status().imported {
        newest.pool.abandon();
        return Ok(());
    }
    // No mount may be added to the state before.
    let mounts = shown.mounts.clone();
    let alone = mounts.lock_changes();
    let opened: Vec<_> = shared.mounts().into_iter().map(|mount| (open(&newest, &mount), mount)).collect();
    let newest = newest.in_place_of(&shown);
    let mut earlier = Vec::new();
    for (view, mount) in opened {
        match view {
            Ok((view, fs)) => earlier.extend(mount.show(view, fs, shared)),
            // It was destroyed: its blocks stay for a while, and so does what is shown.
            Err(failure) => log::warn!("{}: stays at an older state: {failure}", mount.name()),
        }
    }
    *shared.open_pool.write().unwrap_or_else(PoisonError::into_inner) = newest.clone();
    if let Some(limit) = newest.memory.get() {
        memory::go_on_enforcing(limit, &newest.pool)?;
    }
    shared.share_memory();
    drop(alone);
    drain(shared, earlier);
    if !shared.mounts().iter().any(|mount| Arc::ptr_eq(&mount.view().pool, &shown.pool)) {
        shown.pool.abandon();
    }
    Ok(())
}

/// Opens the file system of a mount that follows. `known`: what the kernel knows by earlier states.
pub fn open_followed(view: &OpenPool, known: Option<Arc<ShownInodes>>) -> Outcome<Arc<Fs>> {
    if !view.is_snapshot() {
        view.fs.set(Fs::follow(view.dataset(), known.unwrap_or_default())?);
    }
    view.fs()
}

/// The data set or snapshot of a mount in a newer state.
fn open(newest: &OpenPool, mount: &MountedSet) -> Outcome<(OpenPool, Arc<Fs>)> {
    let before = mount.view();
    let view = match before.snapshot {
        Some(guid) => newest.find_snapshot(guid)?,
        None => Some(newest.view(&before.dataset_path)?),
    };
    let view = view.ok_or_else(|| Failure("the snapshot was destroyed".into()))?;
    let known = before.fs.get().and_then(|fs| fs.shown());
    let fs = open_followed(&view, known)?;
    Ok((view, fs))
}

/// Waits until no request uses an earlier state.
fn drain(shared: &Shared, earlier: Vec<Arc<Dispatch>>) {
    for state in earlier {
        while Arc::strong_count(&state) > 1 && !shared.sleep(DRAIN_PERIOD) {}
    }
}
