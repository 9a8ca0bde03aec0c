//! The conversation with the daemon of a mounted pool, over its socket.
//!
//! The daemon speaks first: one line that says which pool it has and where. Then the command asks one question, and the daemon
//! answers with lines of progress and one of result. Each line is one JSON object. A daemon whose mount has
//! ended says nothing until it is gone, so that whoever connects then finds the device free.
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

/// The longest question; answers may be longer.
const QUESTION_BYTES_MAX: u64 = 64 << 10;
/// How long a caller may take to ask after it was greeted. It holds a thread and a descriptor.
const QUESTION_PATIENCE: Duration = Duration::from_secs(60);
/// How long a daemon that was called by its pool's name may take to greet: a successor may just import the pool, and one whose mount is
/// gone has a group to commit.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The same where the daemons of all pools are asked: one that does not answer must not hide the others.
pub const SURVEY_PATIENCE: Duration = Duration::from_secs(4);

/// The longest that each step of a stop may take, but for the wait for users elsewhere.
pub const STOP_STEP: Duration = Duration::from_secs(60);
/// So long at most a caller waits for the answer to a stop: there are two such steps, both commits.
pub const STOP_PATIENCE: Duration = Duration::from_secs(150);
/// How long the processes of a mount may take to end after the server said that it has stopped.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// Beside a keeper's socket: the name of the keeper that listens there. Neither the socket's number nor its times tell: on a file system
/// that is another kernel's (a shared folder of a virtual machine) the next file has the number of the last one, and its times too.
pub fn owner_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".owner");
    path.into()
}

/// What a daemon is told to do; all else is a [`Query`](crate::query::Query) to the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Command {
    /// Ends the mount.
    Stop {
        #[serde(default)]
        how: How,
        /// How long users elsewhere are waited for.
        seconds: Option<u64>,
    },
    /// Commits everything.
    Sync,
    /// Commits everything, and lets a successor go on with the mount.
    StepBack {
        /// How that one opens the pool.
        read_only: Option<bool>,
    },
    /// Other bounds of memory: so many bytes in all, from now on, for successors as well.
    Memory { bytes: u64 },
}

/// In which way a mount ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Only a mount that nobody uses.
    #[default]
    #[serde(rename = "when idle")]
    WhenIdle,
    /// Out of the directory tree at once, and closed when its last user has gone.
    Lazily,
    /// Committed, and then ended under those who use it.
    #[serde(rename = "by force")]
    ByForce,
}

/// What a daemon says between the question and the end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Reply {
    Progress { progress: String, done: u64, total: u64 },
    Answer { ok: Value },
    Refusal { refused: String },
}

/// What a daemon says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub pool: String,
    pub id: u64,
    #[serde(with = "json::path")]
    pub device: PathBuf,
    #[serde(with = "json::path")]
    pub mountpoint: PathBuf,
    pub pid: u32,
    /// The kernel's number of the file system, `major:minor`: what else stands under it is the same mount. Not said by the first
    /// daemons, which a new command may meet after an upgrade.
    #[serde(default)]
    pub dev: String,
    /// Seconds since 1970 when it was mounted; successors of the first server keep it.
    #[serde(default)]
    pub since: u64,
    /// Which files and devices the pool lies on.
    #[serde(default, with = "json::identities")]
    pub devices: Vec<Identity>,
}

impl Greeting {
    /// Whether the pool lies on what is at this path.
    pub fn lies_on(&self, path: &Path) -> bool {
        let Ok(identity) = Identity::of(path) else { return false };
        match self.devices.as_slice() {
            // Not said by daemons of before.
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

/// What is behind a socket.
#[derive(Debug)]
pub enum Reached {
    Daemon(Daemon),
    /// There is no daemon, or not any more.
    Nobody,
    /// A process has the socket and said nothing in time: it is stopped, or waits for its device, or has not begun yet.
    Silent,
}

/// Calls the daemon behind a socket.
pub fn reach(socket: &Path, patience: Duration) -> Outcome<Reached> {
    let (tell, hear) = mpsc::channel();
    let path = socket.to_owned();
    // Connecting waits as well, once enough callers stand in line. A thread that still waits at the end ends with this process.
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
        // It is about to end.
        if begun.elapsed() > patience {
            return Ok(Reached::Silent);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The daemon behind a socket; `None` when there is none, or not any more.
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
    /// Where the keeper says that it listens, and what it said.
    owner: PathBuf,
    name: Option<Vec<u8>>,
}

impl Leaving {
    pub fn of(greeting: &Greeting, keeper: &Path) -> Leaving {
        let owner = owner_of(keeper);
        Leaving { pid: greeting.pid, name: std::fs::read(&owner).ok(), owner }
    }

    /// Waits for a moment until both have let go of their files: what those lie on may be unmounted next.
    pub fn wait(&self) {
        let serves = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
            // The state stands behind the command, which may hold anything.
            stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
        };
        let keeps = || self.name.is_some() && std::fs::read(&self.owner).ok() == self.name;
        let begun = Instant::now();
        while (serves() || keeps()) && begun.elapsed() < EXIT_PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What is said of a daemon that does not answer.
pub fn silent(pool: &str) -> Failure {
    Failure(format!(
        "pool {pool}: expected an answer of its server, found it not answering: it is stopped, or waits for its device; see its log"
    ))
}

impl Daemon {
    /// Has a question answered that is answered at once, if at all.
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
                // Another version may have more to say.
                Err(_) => {}
            }
        }
    }
}

/// `None` at the end of the conversation.
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

/// The daemon's side of one conversation.
pub struct Caller {
    stream: UnixStream,
}

impl Caller {
    pub fn new(stream: UnixStream) -> Caller {
        Caller { stream }
    }

    /// Says who we are, and hears the question; `None` when there is none that can be understood.
    pub fn greet(&mut self, greeting: &Greeting) -> Option<Value> {
        write_line(&mut self.stream, greeting).ok()?;
        self.stream.set_read_timeout(Some(QUESTION_PATIENCE)).ok()?;
        let stream = self.stream.try_clone().ok()?;
        read_line(&mut BufReader::new(stream.take(QUESTION_BYTES_MAX))).ok()?
    }

    // A caller that has gone does not want to know; so nothing of what follows can fail.

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
        // One that greets and then does not answer, neither.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let daemon = Daemon { stream: BufReader::new(ours), greeting: greeting() };
        assert!(daemon.ask_within(&json!({}), soon).unwrap_err().0.contains("pool tank"));
    }

    #[test]
    fn no_socket_is_no_daemon() {
        assert!(connect(Path::new("/nowhere/at/all.sock")).unwrap().is_none());
    }
}
