//! What a server leaves for its successor, and where.
//!
//! A *holder* outlives the server of a mount: our own supervisor ([`crate::supervisor`]), or systemd's descriptor
//! store. It holds four things:
//! * the connection to the kernel;
//! * the socket that commands connect to, so that they wait instead of being refused;
//! * the ledger of uncommitted changes;
//! * a file of facts: the mount point, and what was negotiated.
//!
//! It also holds the device by which the pool was mounted, open and not locked: by the time a successor opens
//! its path, that may lead to something else. After a crash the list of files that lost changes is added.
//!
//! Invariant: all four are held before `READY=1` is sent; they suffice for a successor that knows the same
//! command line.

use crate::failure::{Failure, Outcome};
use crate::json;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
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

/// Set in the processes that a background mount starts: their role.
pub const ROLE_VARIABLE: &str = "TERRANE_ROLE";
pub const ROLE_SUPERVISOR: &str = "supervisor";
pub const ROLE_SERVER: &str = "server";
/// Set for a supervisor that replaces one that has gone: the process that serves the mount.
pub const ADOPT_VARIABLE: &str = "TERRANE_ADOPT";
/// How long another supervisor may take to listen.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection to a holder.
#[derive(Clone, Debug)]
pub struct FdStore {
    socket: OsString,
}

/// What a successor must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub pool: u64,
    #[serde(with = "json::path")]
    pub dir: PathBuf,
    #[serde(with = "negotiated")]
    pub negotiated: Negotiated,
    /// The last server stepped back after it had committed everything.
    pub orderly: bool,
    /// The kernel's number of the file system.
    pub dev: String,
    /// When it was mounted, in seconds since 1970.
    pub since: u64,
    /// How a remount wants the pool opened; overrides the command line.
    #[serde(deserialize_with = "Option::deserialize")]
    pub read_only: Option<bool>,
    /// The memory limit that a remount set, in bytes; overrides the command line.
    pub memory: Option<u64>,
    /// All devices that the pool may lie on; empty from an older server.
    #[serde(default, with = "json::identities")]
    pub devices: Vec<Identity>,
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

/// The mount that a predecessor left.
pub struct InheritedMount {
    pub connection: File,
    pub control: UnixListener,
    /// Only of a writable mount.
    pub ledger: Option<File>,
    /// Files that earlier servers had lost changes of; see `daemon::succession`.
    pub lost: Option<File>,
    /// The device by which the pool was mounted, whatever its path leads to by now. Missing from older
    /// servers.
    pub device: Option<File>,
    pub facts: Facts,
    /// The file that holds the facts.
    pub facts_file: File,
}

/// What this process left with its holder or was given by it, by name.
static STORED_FDS: Mutex<Vec<(String, File)>> = Mutex::new(Vec::new());

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
    let is_left = stored_fds().iter().any(|(name, _)| name == FD_CONNECTION);
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

    fn store(&self, name: &str, file: &File) -> Outcome {
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
        // So that it leaves no zombie if it exits before this process.
        std::thread::Builder::new().name("supervisor".into()).spawn(move || drop(supervisor.wait()))?;
        Ok(())
    }

    /// Leaves everything with the holder, and returns the file of facts.
    pub fn store_all(
        &self,
        connection: &File,
        control: &UnixListener,
        ledger: Option<&File>,
        facts: &Facts,
    ) -> Outcome<File> {
        let facts_file = handover::memory_file(FD_FACTS)?;
        write_facts(&facts_file, facts)?;
        self.store(FD_FACTS, &facts_file)?;
        self.store(FD_CONTROL, &File::from(std::os::fd::OwnedFd::from(control.try_clone()?)))?;
        if let Some(ledger) = ledger {
            self.store(FD_LEDGER, ledger)?;
        }
        // Last: if the connection is held, everything is held.
        self.store(FD_CONNECTION, connection)?;
        Ok(facts_file)
    }

    /// Has the holder drop everything. Our own supervisor exits by itself, and needs no message.
    pub fn drop_all(&self) -> Outcome {
        [FD_CONNECTION, FD_CONTROL, FD_LEDGER, FD_FACTS, FD_LOST, FD_DEVICE]
            .iter()
            .try_for_each(|name| self.remove(name))
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
    pub fn store_ledger(&self, ledger: &File) -> Outcome {
        self.store(FD_LEDGER, ledger)
    }

    /// After a crash. It replaces the previous list: our own supervisor does that itself, while systemd would
    /// keep both.
    pub fn store_lost(&self, lost: &File) -> Outcome {
        self.remove(FD_LOST)?;
        self.store(FD_LOST, lost)
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

impl InheritedMount {
    /// What was passed to this process, if that is a mount that still exists. Everything else is closed.
    pub fn of_this_process() -> Outcome<Option<InheritedMount>> {
        let mut given = handover::take_passed();
        let mut take = |name: &str| {
            let at = given.iter().rposition(|(given, _)| given == name)?;
            Some(given.swap_remove(at).1)
        };
        let (Some(connection), Some(facts_file)) = (take(FD_CONNECTION), take(FD_FACTS)) else {
            return Ok(None);
        };
        if handover::is_disconnected(&connection) {
            return Ok(None);
        }
        let Some(control) = take(FD_CONTROL) else { return Ok(None) };
        let (ledger, lost, device) = (take(FD_LEDGER), take(FD_LOST), take(FD_DEVICE));
        let four =
            [(FD_CONNECTION, Some(&connection)), (FD_FACTS, Some(&facts_file)), (FD_CONTROL, Some(&control))];
        let others = [(FD_LEDGER, ledger.as_ref()), (FD_LOST, lost.as_ref()), (FD_DEVICE, device.as_ref())];
        for (name, file) in four.into_iter().chain(others) {
            file.map(|file| record_stored(name, file)).transpose()?;
        }
        let mut text = vec![0; usize::try_from(facts_file.metadata()?.len()).unwrap_or(0).min(1 << 20)];
        facts_file.read_exact_at(&mut text, 0)?;
        let facts = read_facts(&text).ok_or_else(|| {
            Failure::refused(
                "state handed over by the last server",
                "state of this version",
                String::from_utf8_lossy(&text),
                "unmount it and mount it again",
            )
        })?;
        let control = UnixListener::from(std::os::fd::OwnedFd::from(control));
        Ok(Some(InheritedMount { connection, control, ledger, lost, device, facts, facts_file }))
    }
}

/// The facts of the mount that these descriptors belong to.
pub fn facts_of(fds: &[(String, File)]) -> Option<Facts> {
    let (_, facts_file) = fds.iter().find(|(name, _)| name == FD_FACTS)?;
    let mut text = vec![0; usize::try_from(facts_file.metadata().ok()?.len()).unwrap_or(0).min(1 << 20)];
    facts_file.read_exact_at(&mut text, 0).ok()?;
    read_facts(&text)
}

/// Whether this is the name of the descriptor of a mount's device.
pub fn is_device(name: &str) -> bool {
    name == FD_DEVICE
}

/// Whether this is the name of the descriptor of a mount's connection.
pub fn is_connection(name: &OsStr) -> bool {
    name == FD_CONNECTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_page() {
        use std::os::unix::ffi::OsStringExt;
        let raw: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 31, 0, 0, 0, 0, 0, 16, 0];
        let facts = Facts {
            pool: u64::MAX,
            dir: OsString::from_vec(b"/mnt/\xff\n".to_vec()).into(),
            negotiated: Negotiated::decode(&raw).unwrap(),
            orderly: true,
            dev: "0:53".to_owned(),
            since: 7,
            read_only: Some(true),
            memory: Some(1 << 40),
            devices: vec![Identity { device: 1 << 63, inode: 7 }],
        };
        let facts_file = handover::memory_file("facts").unwrap();
        write_facts(
            &facts_file,
            &Facts { orderly: false, dir: "/a/longer/one/than/that".into(), ..facts.clone() },
        )
        .unwrap();
        write_facts(&facts_file, &facts).unwrap();
        let mut text = vec![0; facts_file.metadata().unwrap().len() as usize];
        facts_file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(read_facts(&text), Some(facts), "whatever stood there before");
    }
}
