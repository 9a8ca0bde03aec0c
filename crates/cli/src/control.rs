//! The protocol between commands and the daemon of a mounted pool, over its socket.
//!
//! The daemon speaks first: one line that says which pool it has and where. Then the command asks one
//! question, and the daemon answers with lines of progress and one of result. Each line is one JSON object. A
//! daemon whose mount has ended sends nothing until it exits, so a command that connects then finds the
//! device free afterwards.
//!
//! Only the pool's owner can connect: the socket has mode 0600, in a directory of mode 0700.

use crate::failure::{Failure, Outcome};
use crate::json;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use terrane_device::Identity;

/// The longest question, in bytes; answers may be longer.
const QUESTION_BYTES_MAX: u64 = 64 << 10;
/// Time limit between the greeting and the question, since a caller holds a thread and a descriptor.
const QUESTION_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for the greeting of a daemon that was called by its pool's name. A successor may still be
/// importing the pool, and one whose mount is gone has a txg to commit.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The same when the daemons of all pools are asked: one that does not answer must not hide the others.
pub const SURVEY_PATIENCE: Duration = Duration::from_secs(4);

/// Time limit for each step of a stop, except the wait for users in other namespaces.
pub const STOP_STEP: Duration = Duration::from_secs(60);
/// How long a caller waits for the answer to a stop: two such steps, both commits, and some more.
pub const STOP_PATIENCE: Duration = Duration::from_secs(150);
/// How long the processes of a mount may take to exit after the server said that it has stopped.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// The file beside a keeper's socket with the name of the keeper that listens there. The socket's inode
/// number and times do not identify it. On a file system of another kernel (a shared folder of a virtual
/// machine) the next file may have the same ones.
pub fn owner_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".owner");
    path.into()
}

/// Commands to a daemon; everything else is a [`Query`](crate::query::Query) to the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Command {
    /// Ends the mount.
    Stop {
        #[serde(default)]
        how: How,
        /// How long to wait for users in other namespaces.
        seconds: Option<u64>,
    },
    /// Commits everything.
    Sync,
    /// Commits everything, and has a successor take over the mount.
    StepBack {
        /// How the successor opens the pool.
        read_only: Option<bool>,
    },
    /// Sets another memory limit, in bytes, for this server and its successors.
    Memory { bytes: u64 },
}

/// How a mount ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Only if it is not in use.
    #[default]
    #[serde(rename = "when idle")]
    WhenIdle,
    /// Detached from the directory tree at once, and closed when its last user has gone.
    Lazily,
    /// Committed, then aborted while in use.
    #[serde(rename = "by force")]
    ByForce,
}

/// What a daemon sends between the question and the end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Reply {
    Progress { progress: String, done: u64, total: u64 },
    Answer { ok: Value },
    Refusal { refused: String },
}

/// How a daemon introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub pool: String,
    pub id: u64,
    #[serde(with = "json::path")]
    pub device: PathBuf,
    #[serde(with = "json::path")]
    pub mountpoint: PathBuf,
    pub pid: u32,
    /// The kernel's number of the file system, `major:minor`; all rows of the mount table with it are this
    /// mount. Missing from the first daemons, which a new command may meet after an upgrade.
    #[serde(default)]
    pub dev: String,
    /// When it was mounted, in seconds since 1970; successors of the first server keep it.
    #[serde(default)]
    pub since: u64,
    /// The files and devices of the pool.
    #[serde(default, with = "json::identities")]
    pub devices: Vec<Identity>,
}

impl Greeting {
    /// Whether the device at this path belongs to the pool.
    pub fn lies_on(&self, path: &Path) -> bool {
        let Ok(identity) = Identity::of(path) else { return false };
        match self.devices.as_slice() {
            // Missing from older daemons.
            [] => Identity::of(&self.device).is_ok_and(|own| own == identity),
            own => own.contains(&identity),
        }
    }
}

/// A connection to a daemon that has greeted.
#[derive(Debug)]
pub struct Daemon {
    stream: BufReader<UnixStream>,
    pub greeting: Greeting,
}

/// The result of connecting to a socket.
#[derive(Debug)]
pub enum Reached {
    Daemon(Daemon),
    /// There is no daemon, or no longer.
    Nobody,
    /// A process has the socket but did not greet in time. It is stopped, waits for its device, or is still
    /// starting.
    Silent,
}

/// Connects to the daemon behind a socket.
pub fn reach(socket: &Path, patience: Duration) -> Outcome<Reached> {
    let (tell, hear) = mpsc::channel();
    let path = socket.to_owned();
    // Connecting blocks as well once the backlog is full. A thread that still blocks at the end exits with
    // this process.
    let call = move || drop(tell.send(call(&path, patience)));
    std::thread::Builder::new().name("caller".into()).spawn(call)?;
    hear.recv_timeout(patience).unwrap_or(Ok(Reached::Silent))
}

fn call(socket: &Path, patience: Duration) -> Outcome<Reached> {
    let begun = Instant::now();
    loop {
        let stream = match terrane_fuse::socket::connect(socket) {
            Ok(stream) => stream,
            // A daemon that was killed leaves its socket behind.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(Reached::Nobody);
            }
            Err(error) => return Err(Failure::io("connecting to", socket)(error)),
        };
        let mut stream = BufReader::new(stream);
        if let Some(line) = read_line(&mut stream).map_err(Failure::io("reading from", socket))? {
            let greeting = Greeting::deserialize(line)
                .map_err(|_| Failure(format!("{}: the daemon speaks another language", socket.display())))?;
            return Ok(Reached::Daemon(Daemon { stream, greeting }));
        }
        // It is about to exit.
        if begun.elapsed() > patience {
            return Ok(Reached::Silent);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The daemon behind a socket; `None` if there is none, or no longer.
pub fn connect(socket: &Path) -> Outcome<Option<Daemon>> {
    connect_within(socket, PATIENCE)
}

pub fn connect_within(socket: &Path, patience: Duration) -> Outcome<Option<Daemon>> {
    match reach(socket, patience)? {
        Reached::Daemon(daemon) => Ok(Some(daemon)),
        Reached::Nobody => Ok(None),
        Reached::Silent => Err(silent(&socket.file_stem().unwrap_or(socket.as_os_str()).to_string_lossy())),
    }
}

/// A daemon that is about to stop, and its keeper.
pub struct Leaving {
    pid: u32,
    /// The file with the keeper's name, and its content.
    owner: PathBuf,
    name: Option<Vec<u8>>,
}

impl Leaving {
    pub fn of(greeting: &Greeting, keeper: &Path) -> Leaving {
        let owner = owner_of(keeper);
        Leaving { pid: greeting.pid, name: std::fs::read(&owner).ok(), owner }
    }

    /// Waits a moment until both processes have closed their files: the file system below may be unmounted
    /// next.
    pub fn wait(&self) {
        let serves = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
            // The state follows the command name, which may hold any character.
            stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
        };
        let keeps = || self.name.is_some() && std::fs::read(&self.owner).ok() == self.name;
        let begun = Instant::now();
        while (serves() || keeps()) && begun.elapsed() < EXIT_PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The failure for a daemon that does not answer.
pub fn silent(pool: &str) -> Failure {
    Failure(format!(
        "pool {pool}: expected an answer of its server, found it not answering: it is stopped, or waits for its device; see its log"
    ))
}

impl Daemon {
    /// Asks a question that is answered at once, with a time limit.
    pub fn ask_within(self, question: &impl Serialize, patience: Duration) -> Outcome<Value> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        self.ask(question, &mut |_, _, _| {})
    }

    pub fn ask(
        mut self,
        question: &impl Serialize,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Outcome<Value> {
        let hung_up = || Failure("the daemon ended before it answered; its log may say why".to_owned());
        write_line(self.stream.get_mut(), question).map_err(|_| hung_up())?;
        loop {
            let line = read_line(&mut self.stream).map_err(|error| match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => silent(&self.greeting.pool),
                _ => hung_up(),
            });
            match Reply::deserialize(line?.ok_or_else(hung_up)?) {
                Ok(Reply::Answer { ok }) => return Ok(ok),
                Ok(Reply::Refusal { refused }) => return Err(Failure(refused)),
                Ok(Reply::Progress { progress: what, done, total }) => progress(&what, done, total),
                // Another version may send further messages.
                Err(_) => {}
            }
        }
    }
}

/// `None` at the end of the connection.
fn read_line(stream: &mut impl BufRead) -> std::io::Result<Option<Value>> {
    let mut line = Vec::new();
    match stream.read_until(b'\n', &mut line) {
        Ok(_) if line.ends_with(b"\n") => Ok(Some(serde_json::from_slice(&line)?)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// The daemon's side of one connection.
pub struct Caller {
    stream: UnixStream,
}

impl Caller {
    pub fn new(stream: UnixStream) -> Caller {
        Caller { stream }
    }

    /// Sends the greeting and reads the question; `None` if none arrives that can be parsed.
    pub fn greet(&mut self, greeting: &Greeting) -> Option<Value> {
        write_line(&mut self.stream, greeting).ok()?;
        self.stream.set_read_timeout(Some(QUESTION_PATIENCE)).ok()?;
        let stream = self.stream.try_clone().ok()?;
        read_line(&mut BufReader::new(stream.take(QUESTION_BYTES_MAX))).ok()?
    }

    // A caller that has gone needs no answer; so errors from here on are ignored.

    pub fn progress(&mut self, what: &str, done: u64, total: u64) {
        let _ = write_line(&mut self.stream, &Reply::Progress { progress: what.to_owned(), done, total });
    }

    pub fn answer(&mut self, outcome: Outcome<Value>) {
        let reply = match outcome {
            Ok(ok) => Reply::Answer { ok },
            Err(Failure(refused)) => Reply::Refusal { refused },
        };
        let _ = write_line(&mut self.stream, &reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn greeting() -> Greeting {
        use std::os::unix::ffi::OsStringExt;
        let odd = std::ffi::OsString::from_vec(b"/mnt/\xff\n".to_vec());
        Greeting {
            pool: "tank".into(),
            id: u64::MAX,
            device: "/a b".into(),
            mountpoint: odd.into(),
            pid: 7,
            dev: "0:53".into(),
            since: 9,
            devices: vec![Identity { device: 5, inode: u64::MAX }],
        }
    }

    #[test]
    fn a_question_is_heard_and_answered() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut caller = Caller::new(theirs);
            let question = caller.greet(&greeting()).unwrap();
            caller.progress("blocks", 1, 2);
            caller.answer(Ok(question));
        });
        let mut stream = BufReader::new(ours);
        let heard = Greeting::deserialize(read_line(&mut stream).unwrap().unwrap()).unwrap();
        assert_eq!(heard, greeting());
        let mut seen = Vec::new();
        let answer = Daemon { stream, greeting: heard }
            .ask(&json!({"ask": "x\ny"}), &mut |what, done, total| seen.push((what.to_owned(), done, total)));
        assert_eq!(answer, Ok(json!({"ask": "x\ny"})));
        assert_eq!(seen, [("blocks".to_owned(), 1, 2)]);
        daemon.join().unwrap();
    }

    #[test]
    fn words_of_commands_are_those_of_the_first_version() {
        let stop = |how| Command::Stop { how, seconds: Some(7) };
        for (command, line) in [
            (stop(How::WhenIdle), r#"{"ask":"stop","how":"when idle","seconds":7}"#),
            (stop(How::Lazily), r#"{"ask":"stop","how":"lazily","seconds":7}"#),
            (stop(How::ByForce), r#"{"ask":"stop","how":"by force","seconds":7}"#),
            (Command::Sync, r#"{"ask":"sync"}"#),
            (Command::StepBack { read_only: None }, r#"{"ask":"step_back","read_only":null}"#),
            (Command::Memory { bytes: 1 }, r#"{"ask":"memory","bytes":1}"#),
        ] {
            assert_eq!(serde_json::to_string(&command).unwrap(), line);
            assert_eq!(serde_json::from_str::<Command>(line).unwrap(), command);
        }
        let plain: Command = serde_json::from_str(r#"{"ask":"stop"}"#).unwrap();
        assert_eq!(plain, Command::Stop { how: How::WhenIdle, seconds: None });
    }

    #[test]
    fn a_daemon_that_hangs_up_is_an_error_and_not_a_wait() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let daemon = Daemon { stream: BufReader::new(ours), greeting: greeting() };
        assert!(daemon.ask(&json!({}), &mut |_, _, _| {}).unwrap_err().0.contains("log"));
    }

    #[test]
    fn a_daemon_that_says_nothing_is_silent_and_not_a_wait() {
        let socket = std::env::temp_dir().join(format!("terrane-silent-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let soon = Duration::from_millis(50);
        assert!(matches!(reach(&socket, soon).unwrap(), Reached::Silent));
        assert!(connect_within(&socket, soon).unwrap_err().0.contains("not answering"));
        drop(listener);
        assert!(matches!(reach(&socket, soon).unwrap(), Reached::Nobody));
        std::fs::remove_file(socket).unwrap();
        // Nor does a daemon that greets and then does not answer.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let daemon = Daemon { stream: BufReader::new(ours), greeting: greeting() };
        assert!(daemon.ask_within(&json!({}), soon).unwrap_err().0.contains("pool tank"));
    }

    #[test]
    fn no_socket_is_no_daemon() {
        assert!(connect(Path::new("/nowhere/at/all.sock")).unwrap().is_none());
    }
}
