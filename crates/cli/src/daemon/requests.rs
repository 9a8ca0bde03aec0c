//! Requests of commands to a server, over its control socket.

use super::mounted::{MountSpec, MountedSet, NewMount, Origin, new_ledger, threads_by_default};
use super::{Shared, ending, follow, rollback, succession};
use crate::clock;
use crate::control::{ClientConnection, Command, MountRequest};
use crate::failure::{Failure, Outcome};
use crate::fd_store::{self, FdStore};
use crate::memory::{BYTES_MIN, MemoryBudget};
use crate::mount_options::{self, FOLLOW_PERIOD, ParsedOptions};
use crate::open_pool::OpenPool;
use crate::query::{self, Query};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use terrane_device::Identity;
use terrane_fuse::mount::dev_number;
use terrane_fuse::{Mount, Session, SessionConfig};

/// The number of `/dev/fuse`.
const FUSE_DEVICE: &str = "10:229";
/// How long to wait for users in other mount namespaces, by default.
const STOP_WAIT_SECONDS: u64 = 10;
/// How often the server checks for a mount while a client waits for its greeting.
const MOUNT_POLL_PERIOD: Duration = Duration::from_millis(20);

pub fn serve_clients(shared: &Arc<Shared>) {
    for stream in shared.control.incoming() {
        match stream {
            Ok(stream) => {
                let shared = Arc::clone(shared);
                let answer = move || serve_client(&shared, stream);
                // If no thread can be started for one client, later ones may get one.
                if let Err(error) = std::thread::Builder::new().name("client".into()).spawn(answer) {
                    log::error!("command not answered, no thread started: {error}");
                }
            }
            Err(error) => {
                log::error!("control socket failed: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

fn serve_client(shared: &Arc<Shared>, stream: UnixStream) {
    while !shared.is_mounted() {
        if shared.wait_for_end(MOUNT_POLL_PERIOD).is_some() {
            // Holds the connection until this process exits.
            let _ = shared.wait_for_end(Duration::MAX);
            return;
        }
    }
    let mut client = ClientConnection::new(stream);
    let Some(mut question) = client.greet(&shared.greeting()) else { return };
    if let Ok(command) = Command::deserialize(&question.value) {
        let file = question.file.take();
        return run_command(shared, command, file, &mut client);
    }
    match Query::deserialize(&question.value) {
        // The only question that also concerns the server.
        Ok(Query::Metrics) => client.answer(Ok(shared.metrics_text().into())),
        Ok(query) => {
            if let Query::Add { path, .. } = &query
                && let Err(failure) = record_device(shared, path)
            {
                return client.answer(Err(failure));
            }
            let view = match shared.open_pool().view(question.dataset()) {
                Ok(view) => view,
                Err(failure) => return client.answer(Err(failure)),
            };
            // Progress comes from many threads, and lines must not mix.
            let line = Mutex::new(&mut client);
            let outcome = query.answer(&view, &|what, done, total| {
                line.lock().unwrap_or_else(PoisonError::into_inner).progress(what, done, total);
            });
            view.release();
            client.answer(outcome);
        }
        Err(_) => client.answer(Err(Failure(format!(
            "unsupported request {}; is the daemon of another version?",
            question.value
        )))),
    }
}

fn run_command(shared: &Arc<Shared>, command: Command, file: Option<File>, client: &mut ClientConnection) {
    match command {
        Command::Stop { how, seconds, dataset } => {
            let timeout = Duration::from_secs(seconds.unwrap_or(STOP_WAIT_SECONDS));
            ending::stop(shared, dataset.as_deref(), how, timeout, client);
        }
        Command::StepBack { read_only } => {
            let refused = succession::step_back(shared, read_only, || Ok(None), client);
            client.answer(Err(refused));
        }
        Command::RollBack { path, name, newer } => {
            let refused = rollback::step_back(shared, &path, &name, newer, client);
            client.answer(Err(refused));
        }
        Command::RenameMounted { path, to } => {
            let refused = succession::rename(shared, &path, &to, client);
            client.answer(Err(refused));
        }
        Command::RollbackOutcome { path, name } => client.answer(rollback::outcome(shared, &path, &name)),
        Command::Sync => client.answer(shared.sync().map(|()| Value::Null)),
        Command::Memory { bytes } => client.answer(change_memory(shared, bytes)),
        Command::CanMount { dataset } => client.answer(check_mountable(shared, &dataset).map(describe)),
        Command::Mount(request) => client.answer(add_mount(shared, request, file)),
    }
}

/// Facts that a command needs before it mounts a data set.
fn describe(view: OpenPool) -> Value {
    json!({"snapshot": view.is_snapshot(), "read_only": view.pool.is_read_only()})
}

/// The view of a data set, if it can be mounted in addition to the others.
fn check_mountable(shared: &Shared, dataset: &str) -> Outcome<OpenPool> {
    let view = shared.open_pool().view(dataset)?;
    let mounted = shared.mounts().into_iter().find(|mount| mount.view().dataset_path == view.dataset_path);
    if let Some(mount) = mounted {
        let dir = mount.dir.display();
        if mount.is_mounted() {
            let found = format!("mounted on {dir}");
            return Err(Failure::refused(mount.name(), "not mounted", found, "unmount it there first"));
        }
        // Its session has ended. Waits for its commit.
        if !ending::wait_until_closed(shared, std::slice::from_ref(&mount)) {
            let found = format!("being unmounted from {dir}");
            return Err(Failure::refused(mount.name(), "not mounted", found, "wait for that; see the log"));
        }
    }
    // Before the pool is held, no mount is held that could be lost.
    match FdStore::of_this_process().filter(|_| shared.facts_file.get().is_some()) {
        Some(holder) => holder.refuse_another().map(|()| view),
        None => Ok(view),
    }
}

/// Serves a mount that a command has made. If this fails, the command unmounts it.
fn add_mount(shared: &Arc<Shared>, request: MountRequest, file: Option<File>) -> Outcome<Value> {
    let refuse =
        |found: &str| Failure::refused("request to mount", "a descriptor of /dev/fuse", found, "try again");
    let connection = file.ok_or_else(|| refuse("none"))?;
    // A read of any other file could block for ever, and no later mount could begin.
    if !is_fuse_device(&connection)? {
        return Err(refuse("another file"));
    }
    let mounts = shared.open_pool().mounts;
    let _alone = mounts.lock_changes();
    let view = check_mountable(shared, &request.dataset)?;
    let slot = view.fs.clone();
    let added = serve_added(shared, view, request, connection);
    if added.is_err() {
        // The next attempt opens the file system again, with a new ledger.
        slot.close();
    }
    added
}

fn is_fuse_device(file: &File) -> Outcome<bool> {
    let meta = file.metadata()?;
    Ok(meta.file_type().is_char_device() && dev_number(meta.rdev()) == FUSE_DEVICE)
}

fn serve_added(
    shared: &Arc<Shared>,
    view: OpenPool,
    request: MountRequest,
    connection: File,
) -> Outcome<Value> {
    let parsed = ParsedOptions::parse(&request.options, mount_options::defaults(request.source)?)?;
    let mut spec = MountSpec::of_options(request.dataset, request.dir, parsed, Some(request.options));
    spec.apply_to(&view)?;
    if shared.follows {
        spec.options.read_only = true;
        spec.options.cache = spec.options.cache.following(FOLLOW_PERIOD);
    }
    if !view.pool.is_read_only() {
        // Commits, so that a successor finds the data set even if this server is killed.
        view.pool.commit()?;
    }
    let fs = if shared.follows { follow::open_followed(&view, None)? } else { view.fs()? };
    let ledger = new_ledger(&view, &fs)?;
    let mut options = spec.options.clone().with_dataset_options(&view.dataset());
    options.threads.get_or_insert(threads_by_default(&view, shared.mounts().len()));
    let number = {
        let mut lifecycle = shared.lifecycle();
        lifecycle.next_number += 1;
        lifecycle.next_number - 1
    };
    let tags = super::mounted::new_tags(&view)?;
    let mount = Mount::adopt(connection, &spec.dir);
    let session = Session::new(mount, SessionConfig::from(&options));
    let dir = spec.dir.clone();
    let mount = match MountedSet::new(number, view, &session, dir, (request.dev, clock::seconds())) {
        Ok(mount) => mount,
        Err(failure) => {
            session.into_mount().hand_over();
            return Err(failure);
        }
    };
    let new = NewMount { mount: Arc::clone(&mount), fs, session, origin: Origin::New, spec, ledger, tags };
    match new.add(shared) {
        Ok(added) => {
            added.run(shared);
            Ok(Value::Null)
        }
        Err((failure, session)) => {
            session.into_mount().hand_over();
            if mount.is_held.load(Ordering::Acquire)
                && let Some(holder) = FdStore::of_this_process()
            {
                holder.drop_mount(number)?;
            }
            Err(failure)
        }
    }
}

/// A successor may find this device in the pool, so it is recorded before it is added.
fn record_device(shared: &Shared, path: &Path) -> Outcome {
    let Some((facts_file, facts)) = shared.facts_file.get() else { return Ok(()) };
    let identity = Identity::of(path).map_err(Failure::io("examining", path))?;
    let mut facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
    facts.devices.push(identity);
    fd_store::write_facts(facts_file, &facts)
}

/// Sets another memory limit, also for successors.
fn change_memory(shared: &Shared, bytes: u64) -> Outcome<Value> {
    if bytes < BYTES_MIN {
        return Err(Failure(format!(
            "memory limit refused: expected at least {BYTES_MIN} bytes, found {bytes}"
        )));
    }
    let open_pool = shared.open_pool();
    let limit = open_pool.memory.get();
    let limit =
        limit.ok_or_else(|| Failure("memory limit not enforced on this mount; see its log".into()))?;
    if let Some((facts_file, facts)) = shared.facts_file.get() {
        let mut facts = facts.lock().unwrap_or_else(PoisonError::into_inner);
        facts.memory = Some(bytes);
        fd_store::write_facts(facts_file, &facts)?;
    }
    let (pool, file_systems) = (&open_pool.pool, open_pool.mounts.file_systems());
    limit.change(MemoryBudget::of(bytes), pool, &file_systems);
    Ok(query::value(&limit.status(pool, &file_systems)))
}
