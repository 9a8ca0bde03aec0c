//! One module for each subcommand of `terrane`.

pub mod check;
pub mod debug;
pub mod explain;
pub mod fs;
pub mod generate;
pub mod metrics;
pub mod mount;
pub mod mounts;
pub mod pool;
pub mod run_hinted;
pub mod stat;
pub mod zones;

use crate::check as checking;
use crate::control::{self, Contact, Daemon, GREETING_TIMEOUT, GreetedMount, Greeting, SURVEY_TIMEOUT};
use crate::failure::{Failure, Outcome};
use crate::inspect;
use crate::members;
use crate::open_pool::{self, OpenPool};
use crate::progress::Bar;
use crate::query::{self, Query};
use crate::registry::Registry;
use crate::target::{self, Target};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terrane_device::OpenMode;
use terrane_fuse::mount::{MountEntry, list_mounts};
use terrane_object::ObjectSets;
use terrane_pool::Pool;
use terrane_store::env::SystemEnv;

/// Exits as the command line parser does, for mistakes that only the command itself can detect.
pub fn exit_with_usage(text: &str) -> ! {
    use clap::CommandFactory;
    crate::Cli::command().error(clap::error::ErrorKind::ValueValidation, text).exit()
}

/// Prints to standard output. A closed pipe (`| head`) is not an error.
pub fn print(text: &str) -> Outcome {
    print_on(text).map(drop)
}

/// The same for repeated output: false if the reader has closed the pipe.
pub fn print_on(text: &str) -> Outcome<bool> {
    print_bytes(text.as_bytes())
}

/// The same for bytes.
pub fn print_bytes(bytes: &[u8]) -> Outcome<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How the pool that a daemon has mounted relates to the one that was named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PoolMatch {
    Same,
    /// Another pool of that name.
    SameName,
    /// A path was named, and the device there was copied from a device of the mounted pool.
    Copy,
}

/// A name means the pool that the registry knows by it. A path means the device there, not one that it was
/// copied from or to.
pub fn match_pool(greeting: &Greeting, target: &Target) -> PoolMatch {
    match target.id {
        // Known by its name, or mounted by its path while the name means another pool.
        None if greeting.device == target.path || greeting.has_device(&target.path) => PoolMatch::Same,
        None if target.path.symlink_metadata().is_err() => PoolMatch::Same,
        None => PoolMatch::SameName,
        Some(id) if id != greeting.id => PoolMatch::SameName,
        Some(_) if greeting.has_device(&target.path) => PoolMatch::Same,
        Some(_) => PoolMatch::Copy,
    }
}

pub fn refuse_copy(greeting: &Greeting, target: &Target) -> Failure {
    let name = &greeting.pool;
    Failure::refused(
        target.path.display(),
        format_args!("a device of pool {name}, which is mounted from {}", greeting.device.display()),
        "a copy of one",
        format_args!(
            "name the pool, or make the copy a pool of its own: terrane pool import --new-id --name NAME {}",
            shell_word(&target.path.display().to_string())
        ),
    )
}

/// Quoted so that it can be pasted into a shell.
pub fn shell_word(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%=,".contains(c);
    if path.chars().all(plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// The daemon that has the pool mounted, if any.
///
/// # Errors
/// If a path was named whose device is a copy of a mounted one.
pub fn daemon_of(registry: &Registry, target: &Target) -> Outcome<Option<Daemon>> {
    let Some(daemon) = control::connect(&registry.control_socket(&target.name))? else { return Ok(None) };
    match match_pool(&daemon.greeting, target) {
        PoolMatch::Same => Ok(Some(daemon)),
        PoolMatch::SameName => Ok(None),
        PoolMatch::Copy => Err(refuse_copy(&daemon.greeting, target)),
    }
}

/// The same for commands that only read: a copy is opened itself.
pub fn daemon_for_reading(
    registry: &Registry,
    target: &Target,
    timeout: Duration,
) -> Outcome<Option<Daemon>> {
    let daemon = control::connect_within(&registry.control_socket(&target.name), timeout)?;
    Ok(daemon.filter(|daemon| match_pool(&daemon.greeting, target) == PoolMatch::Same))
}

/// A daemon, and the mount points of all its mounts.
pub struct MountedDaemon {
    pub daemon: Daemon,
    pub mounts: Vec<MountEntry>,
}

impl MountedDaemon {
    /// The mount points of one mount.
    pub fn places_of(&self, mount: &GreetedMount) -> Vec<MountEntry> {
        self.mounts.iter().filter(|row| row.dev == mount.dev).cloned().collect()
    }
}

/// The result of calling the socket of a pool.
#[expect(clippy::large_enum_variant, reason = "few live at a time, and most are daemons")]
enum DaemonLookup {
    Found(MountedDaemon),
    /// No daemon has the pool.
    NoDaemon,
    /// The daemon does not answer.
    NotAnswering,
}

/// The daemon of a pool, and the mounts that show its file system. The kernel reuses the number of a file
/// system that is gone for the next one, whichever that is. So the table is about this daemon only if its
/// mount still exists after the table was read; a daemon that greets has such a mount.
pub fn mounted_daemon(registry: &Registry, name: &str) -> Outcome<Option<MountedDaemon>> {
    match look_up_daemon(&registry.control_socket(name), GREETING_TIMEOUT)? {
        DaemonLookup::Found(found) => Ok(Some(found)),
        DaemonLookup::NoDaemon => Ok(None),
        DaemonLookup::NotAnswering => Err(control::not_answering(name)),
    }
}

/// As [`mounted_daemon`], without the second look at the daemon: mounts that begin or end at this moment may be missing from the
/// table, or be in it still. `None`: it does not answer at once, or there is none.
pub fn mounted_daemon_as_of_now(registry: &Registry, name: &str) -> Outcome<Option<MountedDaemon>> {
    let Contact::Daemon(daemon) = control::contact(&registry.control_socket(name), GREETING_TIMEOUT)? else {
        return Ok(None);
    };
    let mounts = mounts_of(&daemon)?;
    Ok(Some(MountedDaemon { daemon, mounts }))
}

fn mounts_of(daemon: &Daemon) -> Outcome<Vec<MountEntry>> {
    let is_its = |row: &MountEntry| daemon.greeting.mount_at(&row.dev).is_some();
    Ok(list_mounts()?.into_iter().filter(is_its).collect())
}

fn look_up_daemon(socket: &Path, timeout: Duration) -> Outcome<DaemonLookup> {
    let mut found = control::contact(socket, timeout)?;
    loop {
        let daemon = match found {
            Contact::Daemon(daemon) => daemon,
            Contact::NoDaemon => return Ok(DaemonLookup::NoDaemon),
            Contact::NotAnswering => return Ok(DaemonLookup::NotAnswering),
        };
        let mounts = mounts_of(&daemon)?;
        let again = control::contact(socket, timeout)?;
        if matches!(&again, Contact::Daemon(again) if again.greeting == daemon.greeting) {
            return Ok(DaemonLookup::Found(MountedDaemon { daemon, mounts }));
        }
        found = again;
    }
}

/// All daemons of this user.
pub struct Survey {
    pub daemons: Vec<MountedDaemon>,
    /// Pools whose daemon did not answer, and their devices.
    pub not_answering: Vec<(String, PathBuf)>,
}

impl Survey {
    /// Calls all of them concurrently, so that one that does not answer delays no other.
    pub fn of(registry: &Registry) -> Outcome<Survey> {
        let pools = registry.pools()?;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let call = |name: &String| {
                let socket = registry.control_socket(name);
                scope.spawn(move || look_up_daemon(&socket, SURVEY_TIMEOUT))
            };
            let calls: Vec<_> = pools.keys().map(call).collect();
            calls.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut survey = Survey { daemons: Vec::new(), not_answering: Vec::new() };
        for ((name, device), answer) in pools.into_iter().zip(answers) {
            match answer {
                Ok(Ok(DaemonLookup::Found(found))) => survey.daemons.push(found),
                Ok(Ok(DaemonLookup::NoDaemon)) => {}
                // A socket that cannot be used must not hide the other pools either.
                Ok(Ok(DaemonLookup::NotAnswering) | Err(_)) | Err(_) => {
                    survey.not_answering.push((name, device))
                }
            }
        }
        Ok(survey)
    }

    /// The pool that does not answer, and to which this mount seems to belong.
    pub fn not_answering_at(&self, entry: &MountEntry) -> Option<&str> {
        let of = |(name, device): &&(String, PathBuf)| is_source(entry, name, device);
        self.not_answering.iter().find(of).map(|(name, _)| name.as_str())
    }
}

/// Whether the mount's source is this pool or a part of it: its name, or the device as it was given to mount(8).
pub fn is_source(entry: &MountEntry, name: &str, device: &Path) -> bool {
    let source = Path::new(&entry.source);
    if entry.source.to_str().and_then(target::split_mountable).is_some_and(|(pool, _)| pool == name) {
        return true;
    }
    // Resolved only where none of our mounts can lie on the path.
    let resolved = || source.starts_with("/dev").then(|| source.canonicalize().ok()).flatten();
    source == Path::new(name) || source == device || resolved().as_deref() == Some(device)
}

/// Which daemon serves a mount.
#[expect(clippy::large_enum_variant, reason = "a command has one of them")]
pub enum ServedBy {
    Daemon(MountedDaemon),
    /// The pool of this name, whose daemon does not answer.
    NotAnswering(String),
    /// A daemon that has died, or another user's.
    Unknown,
}

/// The daemon that serves this mount. The one that the mount's source names is called first, and given more
/// time.
pub fn served_by(registry: &Registry, entry: &MountEntry, timeout: Duration) -> Outcome<ServedBy> {
    let is_it = |found: &MountedDaemon| found.daemon.greeting.mount_at(&entry.dev).is_some();
    for (name, _) in registry.pools()?.iter().filter(|(name, device)| is_source(entry, name, device)) {
        match look_up_daemon(&registry.control_socket(name), timeout)? {
            DaemonLookup::Found(found) if is_it(&found) => return Ok(ServedBy::Daemon(found)),
            DaemonLookup::Found(_) | DaemonLookup::NoDaemon => {}
            DaemonLookup::NotAnswering => return Ok(ServedBy::NotAnswering(name.clone())),
        }
    }
    let found = Survey::of(registry)?.daemons.into_iter().find(is_it);
    Ok(found.map_or(ServedBy::Unknown, ServedBy::Daemon))
}

/// How long to wait for the exit of a daemon whose mount is not visible.
const DETACHED_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon that has the pool mounted, and its mounts. This waits while the mount of `dataset`, or without one the last
/// mount of the pool, was unmounted lazily: it ends with its last user, and must not count as mounted.
pub fn lasting_daemon(
    registry: &Registry,
    target: &Target,
    dataset: Option<&str>,
) -> Outcome<Option<MountedDaemon>> {
    let begun = Instant::now();
    loop {
        let Some(found) = mounted_daemon(registry, &target.name)? else { return Ok(None) };
        let is_leaving = match dataset {
            None => found.mounts.is_empty(),
            Some(path) => {
                let mount = found.daemon.greeting.mount_of(path);
                mount.is_some_and(|mount| found.places_of(&mount).is_empty())
            }
        };
        // One that is visible only in another namespace stays as well.
        if !is_leaving || begun.elapsed() > DETACHED_EXIT_TIMEOUT {
            return Ok(Some(found));
        }
        drop(found);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Shows progress on a terminal; removed when it is dropped.
pub fn progress_bar() -> impl Fn(&str, u64, u64) + Sync {
    let bar = Mutex::new(Bar::new());
    move |what: &str, done, total| {
        bar.lock().unwrap_or_else(PoisonError::into_inner).show(what, done, total);
    }
}

/// As [`ask`], for questions that are answered at once, with a time limit.
pub fn ask_within(registry: &Registry, word: &str, query: &Query, timeout: Duration) -> Outcome<Value> {
    let (target, dataset) = target::find_mountable(registry, word)?;
    match daemon_for_reading(registry, &target, timeout)? {
        Some(daemon) if dataset.is_empty() => daemon.ask_within(query, timeout),
        Some(daemon) => daemon.ask_about(&dataset, query, &mut |_, _, _| {}),
        None => ask(registry, word, query),
    }
}

/// Has a question answered, by the pool's daemon or by opening its devices.
pub fn ask(registry: &Registry, word: &str, query: &Query) -> Outcome<Value> {
    let (target, dataset) = target::find_mountable(registry, word)?;
    let show = progress_bar();
    let daemon = if query.is_change() {
        daemon_of(registry, &target)?
    } else {
        daemon_for_reading(registry, &target, GREETING_TIMEOUT)?
    };
    if let Some(daemon) = daemon {
        return daemon.ask_about(&dataset, query, &mut |what, done, total| show(what, done, total));
    }
    if *query == Query::Uberblocks {
        // Uberblocks are needed most when a pool cannot be imported, so they are read without an import.
        return Ok(query::value(&inspect::uberblocks(&members::open_read_only(&target)?)));
    }
    if *query == Query::Check {
        return Ok(query::value(&checking::check_unmounted(members::open_read_only(&target)?, &show)?));
    }
    if let Query::Block { address, stored, content } = query {
        let wanted = inspect::Wanted { stored: *stored, content: *content };
        return Ok(query::value(&block_of_closed(&target, address, wanted)?));
    }
    let mode = if query.is_change() { OpenMode::ReadWrite } else { OpenMode::ReadOnly };
    let open_pool = OpenPool::open(&target, &open_pool::tool_options(mode))?;
    let outcome = open_pool.view(&dataset).and_then(|view| query.answer(&view, &show));
    let closed = open_pool.export();
    let value = outcome?;
    closed.map(|()| value)
}

/// A block of a pool that is not mounted. The zone tables suffice to find it: object sets may be damaged.
fn block_of_closed(target: &Target, address: &str, wanted: inspect::Wanted) -> Outcome<inspect::BlockRow> {
    let devices = members::open_read_only(target)?;
    let options = open_pool::tool_options(OpenMode::ReadOnly);
    let pool = Pool::import(devices, Arc::new(SystemEnv::new()), &options)?;
    let sets = ObjectSets::open(Arc::clone(&pool)).map_err(|error| error.to_string());
    let outcome = inspect::block(&pool, sets.as_ref().map_err(String::clone), address, wanted);
    // Nothing was changed, so nothing has to be committed.
    pool.abandon();
    outcome
}

/// Rebuilds the zone tables of a pool that is not mounted.
pub fn rebuild_index(registry: &Registry, word: &str) -> Outcome<()> {
    let target = target::find(registry, word)?;
    if daemon_of(registry, &target)?.is_some() {
        let expected = "a pool that is not mounted";
        return Err(Failure::refused(&target.name, expected, "a mounted pool", "unmount it first"));
    }
    let devices = members::open_all(&target, OpenMode::ReadWrite)?;
    checking::rebuild(&devices, &progress_bar())
}

/// The rows of an answer that is a list.
pub fn rows(answer: Value) -> Outcome<Vec<Value>> {
    match answer {
        Value::Array(rows) => Ok(rows),
        other => Err(Failure(format!("expected a list, found {other}; is the daemon of another version?"))),
    }
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(shell_word("/srv/tank.img"), "/srv/tank.img");
        assert_eq!(shell_word("/a b/it's"), r"'/a b/it'\''s'");
    }
}
