//! What a server leaves for its successor, and where.
//!
//! A *holder* outlives the server of a pool: our own supervisor ([`crate::supervisor`]), or systemd's descriptor
//! store. It holds for the pool:
//! * the socket that commands connect to, so that they wait instead of being refused;
//! * a file of [`Facts`];
//! * the device by which the pool was mounted, open and not locked: its path may lead to another device when a successor
//!   opens it.
//!
//! And for each mount:
//! * the connection to the kernel;
//! * the ledger of uncommitted changes, if the mount is writable;
//! * a file of [`MountFacts`]: data set, mount point, options, and what was negotiated;
//! * after a crash, the list of files that lost changes;
//! * the tags of its snapshots.
//!
//! The first mount of a server has the number 0. Its facts are in the file of the pool, and its descriptors have names
//! without a number, as in versions that had one mount. A supervisor of such a version holds no other mount, so a
//! server that it has started refuses further ones ([`FdStore::refuse_another`]).
//!
//! Invariants:
//! * The holder has all descriptors of a mount before `READY=1` is sent, or before the command that mounts is answered.
//!   They suffice for a successor with the same command line.
//! * Of a mount's descriptors the connection is stored last.
//! * A file of facts is written in one write of less than a page. So after a kill it has the old or the new facts.

use crate::failure::{Failure, Outcome};
use crate::json;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use terrane_device::Identity;
use terrane_fuse::handover;
use terrane_fuse::session::Negotiated;

const FD_CONNECTION: &str = "terrane-connection";
const FD_CONTROL: &str = "terrane-control";
const FD_LEDGER: &str = "terrane-ledger";
const FD_FACTS: &str = "terrane-facts";
const FD_LOST: &str = "terrane-lost";
const FD_DEVICE: &str = "terrane-device";
const FD_MOUNT: &str = "terrane-mount";
const FD_TAGS: &str = "terrane-tags";
/// Prefix of the names of descriptors that servers leave.
pub const FD_NAME_PREFIX: &str = "terrane-";
/// The descriptors of a mount.
const KINDS_OF_MOUNT: [&str; 5] = [FD_CONNECTION, FD_LEDGER, FD_LOST, FD_MOUNT, FD_TAGS];
/// Most descriptors of a mount.
const FDS_OF_MOUNT: usize = KINDS_OF_MOUNT.len();
/// The version of the facts. Facts of version 1 have no such key, and describe one mount.
const VERSION: u32 = 2;
/// Most descriptors that our own supervisor holds. They suffice for 500 mounts.
pub const FDS_MAX: usize = 2560;

/// Set in the processes that a background mount starts: their role.
pub const ROLE_VARIABLE: &str = "TERRANE_ROLE";
pub const ROLE_SUPERVISOR: &str = "supervisor";
pub const ROLE_SERVER: &str = "server";
/// Set for a supervisor that replaces one that has gone: the process that serves the mount.
pub const ADOPT_VARIABLE: &str = "TERRANE_ADOPT";
/// Set by a supervisor for its server: [`HOLDS_MOUNTS`] if the supervisor can hold several mounts. Missing: only one.
pub const HOLDS_VARIABLE: &str = "TERRANE_HOLDS";
pub const HOLDS_MOUNTS: &str = "mounts";
/// Set by systemd 254 and later: how many descriptors it stores.
const SYSTEMD_FDS_VARIABLE: &str = "FDSTORE";
/// The number in the unit of earlier versions.
const SYSTEMD_FDS_DEFAULT: usize = 8;
/// How long another supervisor may take to listen.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to a holder.
#[derive(Clone, Debug)]
pub struct FdStore {
    socket: OsString,
}

/// Facts that a successor needs about the pool and its first mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    #[serde(default = "first_version")]
    pub version: u32,
    pub pool: u64,
    #[serde(flatten)]
    pub first: MountFacts,
    /// The last server stepped back after it had committed everything.
    pub orderly: bool,
    /// How a remount wants the pool opened; overrides the command line.
    #[serde(deserialize_with = "Option::deserialize")]
    pub read_only: Option<bool>,
    /// The memory limit that a remount set, in bytes; overrides the command line.
    pub memory: Option<u64>,
    /// All devices that the pool may lie on; empty from an older server.
    #[serde(default, with = "json::identities")]
    pub devices: Vec<Identity>,
    /// The last rollback of a mounted data set.
    #[serde(default)]
    pub rollback: Option<MountedRollback>,
}

/// A rollback of a mounted data set. A server steps back for it, and the next one makes it before it takes over the mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedRollback {
    /// The path of the data set.
    pub path: String,
    /// The name of the snapshot.
    pub name: String,
    /// Newer snapshots are destroyed.
    pub newer: bool,
    /// The number of the mount. Its facts may have an older path.
    #[serde(default)]
    pub mount: u32,
    /// The number of the object set before.
    #[serde(default)]
    pub set: u64,
    pub state: RollbackState,
}

/// How far a rollback is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RollbackState {
    Wanted,
    /// A server has begun it. If that server died, it is done or not.
    Begun,
    Done,
    /// The reason. The data set is as it was.
    Refused(String),
}

/// Facts that a successor needs about one mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFacts {
    /// The path of the data set from the root.
    #[serde(default)]
    pub dataset: String,
    /// The number of its object set, which a rename does not change; 0: unknown.
    #[serde(default)]
    pub objset: u64,
    /// The guid of the snapshot; `None`: a data set, or unknown.
    #[serde(default)]
    pub snapshot: Option<u64>,
    #[serde(with = "json::path")]
    pub dir: PathBuf,
    #[serde(with = "negotiated")]
    pub negotiated: Negotiated,
    /// The kernel's number of the file system.
    pub dev: String,
    /// When it was mounted, in seconds since 1970.
    pub since: u64,
    /// The words after `-o`; `None`: those of the server's command line.
    #[serde(default)]
    pub options: Option<Vec<String>>,
}

fn first_version() -> u32 {
    1
}

impl Facts {
    pub fn new(pool: u64, first: MountFacts, devices: Vec<Identity>) -> Facts {
        Facts {
            version: VERSION,
            pool,
            first,
            orderly: false,
            read_only: None,
            memory: None,
            devices,
            rollback: None,
        }
    }
}

/// What was negotiated with the kernel, as bytes.
mod negotiated {
    use super::Negotiated;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(negotiated: &Negotiated, to: S) -> Result<S::Ok, S::Error> {
        negotiated.encode().as_slice().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Negotiated, D::Error> {
        let bytes: Vec<u8> = Vec::deserialize(from)?;
        Negotiated::decode(&bytes).ok_or_else(|| D::Error::custom("invalid values of the FUSE negotiation"))
    }
}

/// The descriptors and facts that a predecessor left.
pub struct Inherited {
    pub control: UnixListener,
    /// The device by which the pool was mounted, whatever its path leads to by now. Missing from older
    /// servers.
    pub device: Option<File>,
    pub facts: Facts,
    /// The file that holds the facts.
    pub facts_file: File,
    /// The mounts that still exist, by their numbers.
    pub mounts: BTreeMap<u32, InheritedMount>,
    /// Above the numbers of all mounts of which the holder has anything.
    pub next_number: u32,
}

/// A mount that a predecessor left.
pub struct InheritedMount {
    pub connection: File,
    /// Only of a writable mount.
    pub ledger: Option<File>,
    /// The list of files that lost changes; see `daemon::lost_files`.
    pub lost: Option<File>,
    /// All its changes were replayed, except those of these inodes. `None`: they were not.
    pub left_out: Option<BTreeSet<u64>>,
    /// The tags of snapshots. Missing if the predecessor could not show snapshots.
    pub tags: Option<File>,
    pub facts: MountFacts,
}

/// The name of a mount's descriptor.
fn numbered(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}-{number}") }
}

/// The number of the mount with a descriptor of this kind and name.
fn number_in(kind: &str, name: &str) -> Option<u32> {
    let rest = name.strip_prefix(kind)?;
    if rest.is_empty() { Some(0) } else { rest.strip_prefix('-')?.parse().ok().filter(|number| *number > 0) }
}

/// What this process left with its holder or was given by it, by name.
static STORED_FDS: Mutex<Vec<(String, File)>> = Mutex::new(Vec::new());

/// The supervisor that started this process was replaced by a supervisor of this program's version.
static HOLDER_WAS_REPLACED: AtomicBool = AtomicBool::new(false);

fn stored_fds() -> MutexGuard<'static, Vec<(String, File)>> {
    STORED_FDS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record_stored(name: &str, file: &File) -> Outcome {
    let file = file.try_clone()?;
    let mut stored = stored_fds();
    stored.retain(|(known, _)| known != name);
    stored.push((name.to_owned(), file));
    Ok(())
}

/// Which holder would keep the mount if this server ended, in a word; for `pool status`.
pub fn state() -> &'static str {
    let is_left = stored_fds().iter().any(|(name, _)| is_connection(name));
    match FdStore::of_this_process().filter(|_| is_left) {
        None => "none",
        Some(holder) if !holder.is_listening() => "gone",
        Some(_) if std::env::var_os(ROLE_VARIABLE).is_some_and(|role| role == ROLE_SERVER) => "running",
        Some(_) => "service manager",
    }
}

/// This program by its path, which `ps` shows; by its descriptor if the file was replaced since.
pub fn this_program() -> Command {
    let exe = std::env::current_exe().ok().filter(|path| path.exists());
    Command::new(exe.unwrap_or_else(|| PathBuf::from("/proc/self/exe")))
}

impl FdStore {
    /// The holder that the environment names.
    pub fn of_this_process() -> Option<FdStore> {
        let socket = std::env::var_os(handover::SOCKET_VARIABLE).filter(|socket| !socket.is_empty())?;
        Some(FdStore { socket })
    }

    fn send(&self, message: &str, file: Option<&File>) -> Outcome {
        let sent = handover::send(&self.socket, message, file);
        sent.map_err(Failure::io("sending descriptors to", self.socket.as_ref()))
    }

    /// Gives the holder a descriptor, in place of what it has under this name: our own supervisor replaces that itself, while
    /// systemd would keep both.
    fn store(&self, name: &str, file: &File) -> Outcome {
        self.remove(name)?;
        self.send(&format!("FDSTORE=1\nFDNAME={name}"), Some(file))?;
        record_stored(name, file)
    }

    /// Our own supervisor reopens it too; systemd ignores messages that it does not know.
    pub fn reopen_log(&self) -> Outcome {
        self.send("X_REOPEN=1", None)
    }

    pub fn is_listening(&self) -> bool {
        handover::is_listening(&self.socket)
    }

    /// Replaces a supervisor that has gone with another, and gives it everything that this process left with the
    /// first. The new supervisor waits for this process to exit, as for its own child, and then starts the next
    /// server.
    ///
    /// # Errors
    /// If it does not listen in time, or if the holder was not our own supervisor.
    pub fn replace_supervisor(&self) -> Outcome {
        if std::env::var_os(ROLE_VARIABLE).is_none_or(|role| role != ROLE_SERVER) {
            return Err(Failure("service manager no longer listening".to_owned()));
        }
        let copy = |(name, file): &(String, File)| Ok((name.clone(), file.try_clone()?));
        let stored = stored_fds().iter().map(copy).collect::<std::io::Result<Vec<_>>>()?;
        let (their_end, our_end) = std::io::pipe()?;
        let mut command = this_program();
        command.args(std::env::args_os().skip(1)).env(ROLE_VARIABLE, ROLE_SUPERVISOR);
        command.env(ADOPT_VARIABLE, std::process::id().to_string());
        command.stdin(their_end).stdout(Stdio::null());
        handover::pass_descriptors(&mut command, &stored)?;
        let mut supervisor = command.spawn()?;
        // Open until this process exits in any way.
        std::mem::forget(our_end);
        let begun = Instant::now();
        while !self.is_listening() {
            if let Some(status) = supervisor.try_wait()? {
                return Err(Failure(format!("new supervisor exited at once: {status}")));
            }
            if begun.elapsed() > REPLACE_TIMEOUT {
                // Or it would outlive this process with descriptors of its connection, and start a server of its own.
                supervisor.kill().and_then(|()| supervisor.wait())?;
                return Err(Failure(format!("new supervisor not listening after {REPLACE_TIMEOUT:?}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        HOLDER_WAS_REPLACED.store(true, Ordering::Release);
        // So that it leaves no zombie if it exits before this process.
        std::thread::Builder::new().name("supervisor".into()).spawn(move || drop(supervisor.wait()))?;
        Ok(())
    }

    /// Refuses another mount if this holder could not keep it.
    pub fn refuse_another(&self) -> Outcome {
        let held = stored_fds().len();
        let is_ours = std::env::var_os(ROLE_VARIABLE).is_some_and(|role| role == ROLE_SERVER);
        let (max, expected, found, remedy) = if !is_ours {
            let max = std::env::var(SYSTEMD_FDS_VARIABLE).ok().and_then(|max| max.parse().ok());
            let max = max.unwrap_or(SYSTEMD_FDS_DEFAULT);
            let expected = "a service manager with room for its descriptors";
            (
                max,
                expected,
                format!("at most {max}"),
                "raise FileDescriptorStoreMax in the unit, and start it again",
            )
        } else if std::env::var_os(HOLDS_VARIABLE).is_some_and(|holds| holds == HOLDS_MOUNTS)
            || HOLDER_WAS_REPLACED.load(Ordering::Acquire)
        {
            (FDS_MAX, "fewer mounts", format!("{held} descriptors"), "unmount one first")
        } else {
            let found = "one of an older version, which holds one mount".to_owned();
            let remedy = "unmount the pool, and mount it again";
            (0, "a supervisor that holds several mounts", found, remedy)
        };
        if held + FDS_OF_MOUNT <= max {
            return Ok(());
        }
        Err(Failure::refused("another mount of this pool", expected, found, remedy))
    }

    /// Gives the holder the descriptors of the pool, and returns the file of facts.
    pub fn store_pool(&self, control: &UnixListener, facts: &Facts) -> Outcome<File> {
        let facts_file = handover::memory_file(FD_FACTS)?;
        write_facts(&facts_file, facts)?;
        self.store(FD_FACTS, &facts_file)?;
        self.store(FD_CONTROL, &File::from(std::os::fd::OwnedFd::from(control.try_clone()?)))?;
        Ok(facts_file)
    }

    /// Gives the holder the descriptors of a mount. The facts of mount 0 are in the file of the pool.
    pub fn store_mount(
        &self,
        number: u32,
        connection: &File,
        (ledger, tags): (Option<&File>, Option<&File>),
        facts: &MountFacts,
    ) -> Outcome {
        if number > 0 {
            let file = handover::memory_file(FD_MOUNT)?;
            file.write_all_at(&serde_json::to_vec(facts).map_err(std::io::Error::from)?, 0)?;
            self.store(&numbered(FD_MOUNT, number), &file)?;
        }
        if let Some(ledger) = ledger {
            self.store_ledger(number, ledger)?;
        }
        if let Some(tags) = tags {
            self.store_tags(number, tags)?;
        }
        // Last: if the connection is held, everything is held.
        self.store(&numbered(FD_CONNECTION, number), connection)
    }

    /// Replaces the facts of a mount that the holder has, in one write. Those of mount 0 are in the file of the pool.
    pub fn update_mount(number: u32, facts: &MountFacts) -> Outcome {
        let name = numbered(FD_MOUNT, number);
        match stored_fds().iter().find(|(known, _)| *known == name) {
            Some((_, file)) => {
                let mut text = serde_json::to_vec(facts).map_err(std::io::Error::from)?;
                // Blanks cover the remains of longer facts.
                text.resize(text.len().max(usize::try_from(file.metadata()?.len()).unwrap_or(0)), b' ');
                Ok(file.write_all_at(&text, 0)?)
            }
            None if number == 0 => Ok(()),
            None => Err(Failure(format!("facts of mount {number} not found"))),
        }
    }

    /// Has the holder drop everything. Our own supervisor exits by itself, and needs no message.
    pub fn drop_all(&self) -> Outcome {
        let names: Vec<String> = stored_fds().iter().map(|(name, _)| name.clone()).collect();
        names.iter().try_for_each(|name| self.remove(name))
    }

    /// Has the holder drop the descriptors of a mount that has ended, while others continue.
    pub fn drop_mount(&self, number: u32) -> Outcome {
        KINDS_OF_MOUNT.iter().try_for_each(|kind| {
            let name = numbered(kind, number);
            stored_fds().retain(|(known, _)| *known != name);
            // Our supervisor ignores `FDSTOREREMOVE` for most names, and systemd ignores `X_DROP`. So both are sent.
            self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\nX_DROP=1"), None)
        })
    }

    fn remove(&self, name: &str) -> Outcome {
        stored_fds().retain(|(known, _)| known != name);
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None)
    }

    /// A successor must open this device, and not what its path leads to then.
    pub fn store_device(&self, device: &File) -> Outcome {
        self.store(FD_DEVICE, device)
    }

    /// The mount has ended: the file system that the device is on may be unmounted at once.
    pub fn drop_device(&self) -> Outcome {
        self.remove(FD_DEVICE)
    }

    /// For a mount that only now becomes writable.
    pub fn store_ledger(&self, number: u32, ledger: &File) -> Outcome {
        self.store(&numbered(FD_LEDGER, number), ledger)
    }

    /// Gives the holder the tags of a mount.
    pub fn store_tags(&self, number: u32, tags: &File) -> Outcome {
        self.store(&numbered(FD_TAGS, number), tags)
    }

    /// After a crash. It replaces the previous list.
    pub fn store_lost(&self, number: u32, lost: &File) -> Outcome {
        self.store(&numbered(FD_LOST, number), lost)
    }

    /// The mount exists, and its server answers.
    pub fn ready(&self, pool: &str, dir: &std::path::Path) -> Outcome {
        self.send(&format!("READY=1\nSTATUS=pool {pool} on {}", dir.display()), None)
    }
}

/// In one write, so that a killed server leaves the old facts or the new ones. Remains of longer old ones are
/// not read.
pub fn write_facts(facts_file: &File, facts: &Facts) -> Outcome {
    Ok(facts_file.write_all_at(&serde_json::to_vec(facts).map_err(std::io::Error::from)?, 0)?)
}

fn read_facts(text: &[u8]) -> Option<Facts> {
    serde_json::Deserializer::from_slice(text).into_iter().next()?.ok()
}

fn read_file(file: &File) -> Outcome<Vec<u8>> {
    let mut text = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0).min(1 << 20)];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

fn unreadable(text: &[u8]) -> Failure {
    Failure::refused(
        "state handed over by the last server",
        format_args!("state of version {VERSION} or earlier"),
        String::from_utf8_lossy(text),
        "unmount it and mount it again",
    )
}

impl Inherited {
    /// The descriptors that were passed to this process, if they have a mount that still exists. All others are closed.
    pub fn of_this_process() -> Outcome<Option<Inherited>> {
        Inherited::of(handover::take_passed())
    }

    fn of(mut passed: Vec<(String, File)>) -> Outcome<Option<Inherited>> {
        let number_of = |name: &str| KINDS_OF_MOUNT.iter().find_map(|kind| number_in(kind, name));
        let numbers: BTreeSet<u32> = passed.iter().filter_map(|(name, _)| number_of(name)).collect();
        // If several have one name, the last is used.
        let mut take = |name: &str| {
            let at = passed.iter().rposition(|(given, _)| given == name)?;
            Some(passed.swap_remove(at))
        };
        let (Some(facts_file), Some(control)) = (take(FD_FACTS), take(FD_CONTROL)) else { return Ok(None) };
        let device = take(FD_DEVICE);
        let connections: BTreeSet<u32> =
            passed.iter().filter_map(|(name, _)| number_in(FD_CONNECTION, name)).collect();
        let mut take = |name: &str, number: u32| {
            let name = numbered(name, number);
            let at = passed.iter().rposition(|(given, _)| *given == name)?;
            Some(passed.swap_remove(at))
        };
        let text = read_file(&facts_file.1)?;
        let facts = read_facts(&text).filter(|facts| facts.version <= VERSION);
        let mut facts = facts.ok_or_else(|| unreadable(&text))?;
        let mut found = Vec::new();
        for number in connections {
            let connection = take(FD_CONNECTION, number);
            let (ledger, lost, page) =
                (take(FD_LEDGER, number), take(FD_LOST, number), take(FD_MOUNT, number));
            let tags = take(FD_TAGS, number);
            let Some(connection) = connection.filter(|(_, file)| !handover::is_disconnected(file)) else {
                continue;
            };
            let facts = match &page {
                Some((_, file)) => {
                    let text = read_file(file)?;
                    serde_json::from_slice(&text).map_err(|_| unreadable(&text))?
                }
                None if number == 0 => facts.first.clone(),
                None => return Err(unreadable(b"a mount without facts")),
            };
            found.push((number, connection, (ledger, lost, tags), page, facts));
        }
        // A mount that ended when no server ran: its number must not lead to what its server left.
        let is_found = |number: &u32| found.iter().any(|(known, ..)| known == number);
        let ended = numbers.iter().filter(|number| !is_found(number));
        if let Some(holder) = FdStore::of_this_process() {
            ended.cloned().try_for_each(|number| holder.drop_mount(number))?;
        }
        if found.is_empty() {
            return Ok(None);
        }
        let next_number = numbers.last().map_or(1, |last| last.saturating_add(1));
        let mut mounts = BTreeMap::new();
        let record = |one: &(String, File)| record_stored(&one.0, &one.1);
        for (number, connection, (ledger, lost, tags), page, facts) in found {
            [Some(&connection), ledger.as_ref(), lost.as_ref(), tags.as_ref(), page.as_ref()]
                .into_iter()
                .flatten()
                .try_for_each(record)?;
            let [ledger, lost, tags] = [ledger, lost, tags].map(|one| one.map(|(_, file)| file));
            mounts.insert(
                number,
                InheritedMount { connection: connection.1, ledger, lost, left_out: None, tags, facts },
            );
        }
        [Some(&facts_file), Some(&control), device.as_ref()].into_iter().flatten().try_for_each(record)?;
        facts.version = VERSION;
        let control = UnixListener::from(std::os::fd::OwnedFd::from(control.1));
        let device = device.map(|(_, file)| file);
        Ok(Some(Inherited { control, device, facts, facts_file: facts_file.1, mounts, next_number }))
    }

    /// Whether an earlier server could write.
    pub fn was_writable(&self) -> bool {
        self.mounts.values().any(|mount| mount.ledger.is_some())
    }
}

/// The facts of the pool that these descriptors belong to.
pub fn facts_of(fds: &[(String, File)]) -> Option<Facts> {
    let (_, facts_file) = fds.iter().find(|(name, _)| name == FD_FACTS)?;
    read_facts(&read_file(facts_file).ok()?)
}

/// The kernel's numbers of the file systems that these descriptors belong to, if they are still mounted.
pub fn devs_of(fds: &[(String, File)]) -> Vec<String> {
    let standing = fds.iter().filter(|(_, file)| !handover::is_disconnected(file));
    let numbers = standing.filter_map(|(name, _)| number_in(FD_CONNECTION, name));
    let dev = |number: u32| {
        if number == 0 {
            return facts_of(fds).map(|facts| facts.first.dev);
        }
        let (_, page) = fds.iter().find(|(name, _)| number_in(FD_MOUNT, name) == Some(number))?;
        serde_json::from_slice::<MountFacts>(&read_file(page).ok()?).ok().map(|facts| facts.dev)
    };
    numbers.filter_map(dev).filter(|dev| !dev.is_empty()).collect()
}

/// Whether this is the name of the descriptor of a pool's device.
pub fn is_device(name: &str) -> bool {
    name == FD_DEVICE
}

/// Whether this is the name of the descriptor of a mount's connection.
pub fn is_connection(name: &str) -> bool {
    number_in(FD_CONNECTION, name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_page() {
        use std::os::unix::ffi::OsStringExt;
        let raw: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 31, 0, 0, 0, 0, 0, 16, 0];
        let first = MountFacts {
            dataset: "home".to_owned(),
            objset: 9,
            snapshot: Some(u64::MAX),
            dir: OsString::from_vec(b"/mnt/\xff\n".to_vec()).into(),
            negotiated: Negotiated::decode(&raw).unwrap(),
            dev: "0:53".to_owned(),
            since: 7,
            options: Some(vec!["noatime".to_owned()]),
        };
        let facts = Facts {
            orderly: true,
            read_only: Some(true),
            memory: Some(1 << 40),
            ..Facts::new(u64::MAX, first, vec![Identity { device: 1 << 63, inode: 7 }])
        };
        let facts_file = handover::memory_file("facts").unwrap();
        let mut longer = Facts { orderly: false, ..facts.clone() };
        longer.first.dir = "/a/longer/one/than/that".into();
        write_facts(&facts_file, &longer).unwrap();
        write_facts(&facts_file, &facts).unwrap();
        let mut text = vec![0; facts_file.metadata().unwrap().len() as usize];
        facts_file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(read_facts(&text), Some(facts), "whatever stood there before");
    }

    /// As a server of version 1 wrote them.
    const FACTS_1: &[u8] = br#"{
        "pool":7,"dir":[47,109],"negotiated":[1,0,0,0,0,0,0,0,31,0,0,0,0,0,16,0],"orderly":true,
        "dev":"0:53","since":9,"read_only":null,"memory":null,"devices":[[1,2]]}"#;

    fn memory(name: &str, text: &[u8]) -> (String, File) {
        let file = handover::memory_file("x").unwrap();
        file.write_all_at(text, 0).unwrap();
        (name.to_owned(), file)
    }

    #[test]
    fn what_an_older_server_left_is_its_root_data_set() {
        let passed = vec![
            memory(FD_FACTS, FACTS_1),
            memory(FD_CONTROL, b""),
            memory(FD_CONNECTION, b""),
            memory(FD_LEDGER, b""),
        ];
        let inherited = Inherited::of(passed).unwrap().unwrap();
        assert_eq!(inherited.mounts.keys().collect::<Vec<_>>(), [&0]);
        assert!(inherited.was_writable() && inherited.facts.orderly);
        let facts = &inherited.mounts[&0].facts;
        assert_eq!((facts.dataset.as_str(), facts.dir.to_str()), ("", Some("/m")));
        assert_eq!((facts.objset, facts.snapshot, &facts.options), (0, None, &None));
    }

    #[test]
    fn mounts_are_told_apart_by_their_numbers() {
        let first = read_facts(FACTS_1).unwrap().first;
        let second = MountFacts { dataset: "home".to_owned(), dev: "0:54".to_owned(), ..first };
        let page = serde_json::to_vec(&second).unwrap();
        let (_, closed) = std::io::pipe()
            .map(|(_, writer)| writer)
            .map(|it| ("", File::from(std::os::fd::OwnedFd::from(it))))
            .unwrap();
        let passed = || {
            vec![
                memory(FD_FACTS, FACTS_1),
                memory(FD_CONTROL, b""),
                // Its other end is closed, as after an unmount.
                (FD_CONNECTION.to_owned(), closed.try_clone().unwrap()),
                memory("terrane-mount-3", &page),
                memory("terrane-lost-3", b""),
                memory("terrane-connection-3", b""),
                memory("terrane-ledger-4", b""),
            ]
        };
        let inherited = Inherited::of(passed()).unwrap().unwrap();
        assert_eq!(inherited.mounts.keys().collect::<Vec<_>>(), [&3]);
        assert_eq!(inherited.next_number, 5, "a number that something is stored under is not used again");
        let mount = &inherited.mounts[&3];
        assert!(mount.facts == second && mount.ledger.is_none() && mount.lost.is_some());
        assert_eq!(devs_of(&passed()), ["0:54"]);
        let names: Vec<String> = passed().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.iter().filter(|name| is_connection(name)).count(), 2);
        assert!(!is_connection("terrane-connection-") && !is_connection("terrane-connection-x"));
    }

    #[test]
    fn what_a_later_version_left_is_refused() {
        let text = String::from_utf8(FACTS_1.to_vec()).unwrap().replacen('{', r#"{"version":3,"#, 1);
        let passed =
            vec![memory(FD_FACTS, text.as_bytes()), memory(FD_CONTROL, b""), memory(FD_CONNECTION, b"")];
        let Err(Failure(said)) = Inherited::of(passed) else { panic!("it was taken over") };
        assert!(said.contains("version 2") && said.contains("unmount"), "{said}");
    }
}
