//! The process that outlives the server of a pool.
//!
//! It holds the connections of the server's mounts and does nothing else. It starts the server as its child and keeps what
//! the server leaves with it ([`crate::fd_store`]). When the child dies it starts the next one, which continues
//! the mounts. Callers on the mounts wait meanwhile, and then proceed. When the last mount is gone, the supervisor
//! exits.
//!
//! It reads no pool and no request, so there is little in it that could fail, and it is not upgraded with the
//! server. So their protocol must stay as it is: descriptors by name, `READY=1`, and an exit code for a
//! server that steps back.
//!
//! If a supervisor is gone, its server notices, starts another one and gives it everything that the first had.
//! The new supervisor adopts the server: it waits for its exit as for that of a child.
//!
//! Invariant: it never accesses the mount point, which may not answer before a server does.

use crate::control::owner_file;
use crate::failure::{Failure, Outcome};
use crate::fd_store::{
    self, FD_NAME_PREFIX, FDS_MAX, HOLDS_MOUNTS, HOLDS_VARIABLE, is_connection, is_device,
};
use crate::logger;
use crate::registry::Registry;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terrane_fuse::mount::{MountEntry, list_mounts};
use terrane_fuse::{UnmountHandle, handover, process};

/// The exit code of a server that has committed everything and waits for its successor to be started.
pub const STEPPED_BACK: i32 = 75;
/// Servers that may fail in a row before the mount is given up.
const FAILURES_MAX: u32 = 10;
/// After this many failures the supervisor's own program is started, so that a broken upgrade does not cost the
/// mount.
const FAILURES_OF_NEW_PROGRAM: u32 = 3;
/// A server that answered requests for this long resets the count of failures: what kills it comes from outside, or is rare. One
/// that a change or a waiting request kills dies at once.
const SOUND_AFTER: Duration = Duration::from_secs(1);
const FD_NAME_BYTES_MAX: usize = 32;
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);

/// What the server is started with.
pub struct Supervisor {
    pub registry: Registry,
    pub pool: String,
    /// The mount point.
    pub dir: PathBuf,
    /// Set for the server: its role, and where relative paths of the command line lead.
    pub environment: Vec<(&'static str, std::ffi::OsString)>,
    /// No server follows one that died.
    pub ends_on_crash: bool,
    /// The server of a supervisor that has gone. It is not a child of this process; its exit closes the standard
    /// input.
    pub adopted: Option<u32>,
}

/// Events for the supervisor. All come through its socket, so that their order is kept.
enum Event {
    Store(String, File),
    Remove(String),
    /// It is not stored again.
    Drop(String),
    Ready,
    Signal(i32),
    Exited,
    Reopen,
    Other,
}

impl Event {
    fn of(message: &str, file: Option<File>) -> Event {
        let value = |key: &str| {
            message.lines().find_map(|line| line.split_once('=').filter(|(found, _)| *found == key))
        };
        let number = |key: &str| value(key).and_then(|(_, number)| number.parse().ok());
        match (value("FDSTORE"), value("FDNAME"), file) {
            (Some(_), Some((_, name)), Some(file)) => return Event::Store(name.to_owned(), file),
            (Some(_), ..) => return Event::Other,
            _ => {}
        }
        if let (Some(_), Some((_, name))) = (value("FDSTOREREMOVE"), value("FDNAME")) {
            let is_dropped = value("X_DROP").is_some();
            return if is_dropped { Event::Drop(name.to_owned()) } else { Event::Remove(name.to_owned()) };
        }
        match (value("READY"), number("X_SIGNAL"), value("X_EXITED"), value("X_REOPEN")) {
            (Some(_), ..) => Event::Ready,
            (_, Some(signal), ..) => Event::Signal(signal),
            (_, _, Some(_), _) => Event::Exited,
            (.., Some(_)) => Event::Reopen,
            _ => Event::Other,
        }
    }
}

/// How long to wait before the next start, after this many failures in a row.
fn restart_delay(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        _ => DELAY_MIN.saturating_mul(1 << (failures - 2).min(16)).min(DELAY_MAX),
    }
}

impl Supervisor {
    /// Returns when the mount is gone, with the exit code of its last server.
    pub fn run(&self) -> Outcome<u8> {
        // Before the first server, so that no signal finds a server without a handler.
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        process::raise_descriptor_limit();
        let path = self.registry.supervisor_socket(&self.pool);
        let (socket, name) = {
            let _lock = self.registry.lock_sockets()?;
            listen(&path)?
        };
        let passed = self.supervise(&socket, &path, signals);
        // The next mount's supervisor may listen there by now, or be about to: checking and removing must not be
        // interleaved with that.
        match self.registry.lock_sockets() {
            Ok(_lock) => remove_socket(&path, &name),
            Err(failure) => log::warn!("socket of the supervisor not removed: {failure}"),
        }
        passed
    }

    fn supervise(&self, socket: &UnixDatagram, path: &Path, mut signals: Signals) -> Outcome<u8> {
        // To this very socket: when the mount has ended, the next one's supervisor may listen at the path before
        // our server has exited.
        let own_socket = UnixDatagram::unbound()?;
        terrane_fuse::socket::connect_datagram(&own_socket, path)
            .map_err(Failure::io("connecting to", path))?;
        let myself = Arc::new(own_socket);
        let of_signals = Arc::clone(&myself);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                send_event(&of_signals, &format!("X_SIGNAL={signal}"));
            }
        });
        let program = std::env::current_exe().map_err(Failure::io("finding", Path::new("/proc/self/exe")))?;
        let mut adopted = self.adopted;
        let mut fds: Vec<(String, File)> =
            if adopted.is_some() { handover::take_passed() } else { Vec::new() };
        let (mut failures, mut was_ready) = (0, adopted.is_some());
        loop {
            let own = failures > FAILURES_OF_NEW_PROGRAM || !program.exists();
            let program = if own { Path::new("/proc/self/exe") } else { &program };
            let is_adopted = adopted.is_some();
            let child = match adopted.take() {
                Some(pid) => Ok(Server::Adopted(pid)),
                None => self.start_server(program, path, &fds, was_ready).map(Server::Child),
            };
            let mut ready_since = is_adopted.then(Instant::now);
            let status = match child {
                Ok(child) => {
                    let mut ready = || {
                        was_ready = true;
                        ready_since.get_or_insert_with(Instant::now);
                    };
                    handle_events(child, socket, &myself, &mut fds, &mut ready)?
                }
                Err(error) => {
                    log::error!("starting {} failed: {error}", program.display());
                    None
                }
            };
            let stands =
                fds.iter().any(|(name, file)| is_connection(name) && !handover::is_disconnected(file));
            let code = status.and_then(|status| status.code());
            if !stands || !was_ready {
                // Nothing to keep: it ended as it should, or was never mounted.
                if stands {
                    self.give_up(fds);
                }
                return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
            }
            // For a server that was not a child, only the facts say how it ended.
            let stepped_back = match status {
                Some(_) => code == Some(STEPPED_BACK),
                None => is_adopted && fd_store::facts_of(&fds).is_some_and(|facts| facts.orderly),
            };
            if stepped_back {
                log::info!("pool {}: server stepped back, starting the next one", self.pool);
                failures = 0;
                continue;
            }
            if self.ends_on_crash {
                let how = status.map_or("gone".to_owned(), |status| status.to_string());
                log::error!(
                    "pool {}: server failed ({how}); on_crash=end: {} returns errors until it is mounted again",
                    self.pool,
                    self.dir.display()
                );
                self.abandon_mount(fds);
                return Ok(1);
            }
            let was_sound = ready_since.is_some_and(|since| since.elapsed() > SOUND_AFTER);
            failures = if was_sound { 1 } else { failures + 1 };
            let how = status.map_or("gone, or not started".to_owned(), |status| status.to_string());
            if failures > FAILURES_MAX {
                log::error!(
                    "pool {}: server failed ({how}) {failures} times in a row; giving up, {} returns errors",
                    self.pool,
                    self.dir.display()
                );
                self.give_up(fds);
                return Ok(1);
            }
            let delay = restart_delay(failures);
            log::error!(
                "pool {}: server failed ({how}); starting the next one in {delay:?}, requests wait",
                self.pool
            );
            std::thread::sleep(delay);
        }
    }

    fn start_server(
        &self,
        program: &Path,
        socket: &Path,
        fds: &[(String, File)],
        again: bool,
    ) -> std::io::Result<Child> {
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env(handover::SOCKET_VARIABLE, socket).env_remove(fd_store::ADOPT_VARIABLE);
        command.env(HOLDS_VARIABLE, HOLDS_MOUNTS);
        // The command waits for the first server's output; no process waits for that of later ones.
        command.stdout(if again { Stdio::null() } else { Stdio::inherit() });
        handover::pass_descriptors(&mut command, fds)?;
        command.spawn()
    }

    /// Ends the connection, so that callers get an error. The mount itself stays: programs must not write
    /// into the directory below it.
    fn abandon_mount(&self, fds: Vec<(String, File)>) {
        drop(fds);
        self.remove_control_socket();
    }

    fn remove_control_socket(&self) {
        let control = self.registry.control_socket(&self.pool);
        if let Err(error) = std::fs::remove_file(&control) {
            log::warn!("removing {} failed: {error}", control.display());
        }
    }

    /// Ends the connections, so that callers get an error instead of waiting for ever, and unmounts the dead
    /// mounts wherever they are visible. A first mount point may show something else by now. The connections are
    /// aborted, because a helper process of the server ([`terrane_fuse::forget`]) may hold one as well, and
    /// wait for an answer.
    fn give_up(&self, fds: Vec<(String, File)>) {
        let devs = fd_store::devs_of(&fds);
        drop(fds);
        let is_ours =
            |row: &MountEntry| if devs.is_empty() { row.dir == self.dir } else { devs.contains(&row.dev) };
        for row in list_mounts().unwrap_or_default().into_iter().rev().filter(is_ours) {
            if let Err(error) = UnmountHandle::at(&row.dir).abort() {
                log::warn!("unmount failed: {error}");
            }
        }
        self.remove_control_socket();
    }
}

/// Listens there instead of any previous listener. Returns the name by which [`remove_socket`] knows the socket.
/// The caller holds the lock of sockets.
fn listen(path: &Path) -> Outcome<(UnixDatagram, String)> {
    static NAMED: AtomicU64 = AtomicU64::new(0);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::io("removing the old socket", path)(error));
        }
        _ => {}
    }
    let socket = terrane_fuse::socket::bind_datagram(path).map_err(Failure::io("listening on", path))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(Failure::io("setting the mode of", path))?;
    let name = format!("{}-{}", std::process::id(), NAMED.fetch_add(1, Ordering::Relaxed));
    let owner = owner_file(path);
    std::fs::write(&owner, &name).map_err(Failure::io("writing", &owner))?;
    Ok((socket, name))
}

/// Removes the socket of the supervisor of this name, if that is the one that listens there. The caller holds the
/// lock of sockets.
fn remove_socket(path: &Path, name: &str) {
    let owner = owner_file(path);
    if !std::fs::read_to_string(&owner).is_ok_and(|listens| listens == name) {
        return;
    }
    for file in [path, &owner] {
        if let Err(error) = std::fs::remove_file(file) {
            log::warn!("removing {} failed: {error}", file.display());
        }
    }
}

fn send_event(own: &UnixDatagram, message: &str) {
    if let Err(error) = own.send(message.as_bytes()) {
        log::error!("supervisor event {message} lost: {error}");
    }
}

/// Keeps a descriptor, in place of the one of that name. Accepted are names of our servers, also of later
/// versions; other descriptors are closed. Descriptors are limited, and a name must fit the environment of
/// the next server.
fn store_fd(fds: &mut Vec<(String, File)>, name: String, file: File, max: usize) {
    let is_ours = name.strip_prefix(FD_NAME_PREFIX).is_some_and(|rest| {
        (1..=FD_NAME_BYTES_MAX).contains(&rest.len())
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    });
    let others = fds.iter().filter(|(known, _)| *known != name).count();
    if !is_ours || others >= max {
        return log::warn!(
            "descriptor {name:?} refused: expected a name of ours, and at most {max} descriptors"
        );
    }
    fds.retain(|(known, _)| *known != name);
    fds.push((name, file));
}

/// A process that serves the mount.
enum Server {
    Child(Child),
    Adopted(u32),
}

impl Server {
    fn pid(&self) -> u32 {
        match self {
            Server::Child(child) => child.id(),
            Server::Adopted(pid) => *pid,
        }
    }

    /// Waits until it has exited. `None`: it was not a child, so its status is unknown.
    fn wait(self) -> std::io::Result<Option<ExitStatus>> {
        match self {
            Server::Child(mut child) => child.wait().map(Some),
            // It holds the other end of the pipe, and writes nothing.
            Server::Adopted(_) => std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).map(|_| None),
        }
    }
}

/// Handles events until the server has exited.
fn handle_events(
    server: Server,
    socket: &UnixDatagram,
    own: &Arc<UnixDatagram>,
    fds: &mut Vec<(String, File)>,
    ready: &mut dyn FnMut(),
) -> Outcome<Option<ExitStatus>> {
    let pid = server.pid();
    let ended: Arc<Mutex<Option<std::io::Result<Option<ExitStatus>>>>> = Arc::default();
    let (exit_status, own) = (Arc::clone(&ended), Arc::clone(own));
    std::thread::spawn(move || {
        let status = server.wait();
        *exit_status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
        send_event(&own, "X_EXITED=1");
    });
    loop {
        let (message, file) = match handover::receive(socket) {
            Ok(received) => received,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        match Event::of(&message, file) {
            Event::Store(name, file) => store_fd(fds, name, file, FDS_MAX),
            // A descriptor dropped under another name is replaced by the next message, and must not be
            // missing between the two.
            Event::Remove(name) if is_device(&name) => fds.retain(|(known, _)| *known != name),
            Event::Remove(_) => {}
            Event::Drop(name) => fds.retain(|(known, _)| *known != name),
            Event::Ready => ready(),
            Event::Reopen => {
                if let Err(failure) = logger::reopen() {
                    log::error!("log not reopened: {failure}");
                }
            }
            Event::Signal(signal) => {
                if let Err(error) = process::signal(pid, signal) {
                    log::warn!("signal {signal} not delivered to the server: {error}");
                }
            }
            Event::Exited => {
                let status = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(status) = status {
                    return Ok(status?);
                }
            }
            Event::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_sd_notify_are_parsed() {
        let file = || Some(handover::memory_file("x").unwrap());
        assert!(matches!(Event::of("FDSTORE=1\nFDNAME=a", file()), Event::Store(name, _) if name == "a"));
        assert!(matches!(Event::of("FDSTOREREMOVE=1\nFDNAME=a", None), Event::Remove(name) if name == "a"));
        assert!(
            matches!(Event::of("FDSTOREREMOVE=1\nFDNAME=a\nX_DROP=1", None), Event::Drop(name) if name == "a")
        );
        assert!(matches!(Event::of("READY=1\nSTATUS=on /mnt", None), Event::Ready));
        assert!(matches!(Event::of("X_SIGNAL=15", None), Event::Signal(15)));
        assert!(matches!(Event::of("X_EXITED=1", None), Event::Exited));
        assert!(matches!(Event::of("X_REOPEN=1", None), Event::Reopen));
        for message in ["", "FDSTOREREMOVE=1", "FDSTORE=1\nFDNAME=a", "FDSTORE=1", "X_SIGNAL=x", "NOTHING"] {
            assert!(matches!(Event::of(message, None), Event::Other), "{message}");
        }
    }

    #[test]
    fn stored_fds_are_limited_and_have_valid_names() {
        const MAX: usize = 32;
        let mut stored = Vec::new();
        let mut leave = |name: &str| {
            store_fd(&mut stored, name.to_owned(), handover::memory_file("x").unwrap(), MAX);
            stored.len()
        };
        assert_eq!(leave("terrane-facts"), 1);
        for name in [
            "",
            "x",
            "terrane-",
            "terrane-a b",
            "terrane-a:b",
            "terrane-\0",
            &format!("terrane-{}", "x".repeat(99)),
        ] {
            assert_eq!(leave(name), 1, "{name:?}");
        }
        assert_eq!(leave("terrane-facts"), 1, "in place of the other");
        for number in 0..100 {
            assert!(leave(&format!("terrane-{number}")) <= MAX);
        }
        assert_eq!(leave("terrane-facts"), MAX, "also where there are as many as there may be");
    }

    #[test]
    fn restart_delay_grows_with_failures() {
        assert_eq!(restart_delay(1), Duration::ZERO);
        assert_eq!([2, 3, 4].map(restart_delay), [100, 200, 400].map(Duration::from_millis));
        assert_eq!(restart_delay(u32::MAX), DELAY_MAX);
        let all: Duration = (1..=FAILURES_MAX).map(restart_delay).sum();
        assert!(all < Duration::from_secs(30), "a mount that cannot be saved keeps its callers for {all:?}");
    }

    #[test]
    fn an_exiting_supervisor_removes_only_its_own_socket() {
        let path = std::env::temp_dir().join(format!("terrane-supervisor-{}.sock", std::process::id()));
        let (_first, name_of_first) = listen(&path).unwrap();
        let (_second, name_of_second) = listen(&path).unwrap();
        remove_socket(&path, &name_of_first);
        assert!(path.exists(), "the next supervisor listens there");
        remove_socket(&path, &name_of_second);
        assert!(!path.exists() && !owner_file(&path).exists());
    }
}
