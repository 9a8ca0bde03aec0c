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
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use terrane_device::Identity;
use terrane_fuse::handover;

/// The longest question, in bytes; answers may be longer.
const QUESTION_BYTES_MAX: usize = 64 << 10;
/// The key of a question for the path of its data set. A question without this key is about the root.
const DATASET_KEY: &str = "dataset";
/// Time limit between the greeting and the question, since a client holds a thread and a descriptor.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the greeting of a daemon that was called by its pool's name. A successor may still be
/// importing the pool, and one whose mount is gone has a txg to commit.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(60);
/// The same when the daemons of all pools are asked: one that does not answer must not hide the others.
pub const SURVEY_TIMEOUT: Duration = Duration::from_secs(4);

/// Time limit for each step of a stop, except the wait for users in other namespaces.
pub const STOP_STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client waits for the answer to a stop: two such steps, both commits, and some more.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(150);
/// How long the processes of a mount may take to exit after the server said that it has stopped.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The file beside a supervisor's socket with the name of the supervisor that listens there. The socket's inode
/// number and times do not identify it. On a file system of another kernel (a shared folder of a virtual
/// machine) the next file may have the same ones.
pub fn owner_file(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".owner");
    path.into()
}

/// Commands to a daemon; everything else is a [`Query`](crate::query::Query) to the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Command {
    /// Unmounts.
    Stop {
        #[serde(default)]
        how: StopMode,
        /// How long to wait for users in other namespaces.
        seconds: Option<u64>,
        /// The path of the data set whose mount ends; `None`: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dataset: Option<String>,
    },
    /// Whether a data set could be mounted beside the others.
    #[serde(rename = "can mount")]
    CanMount { dataset: String },
    /// Serves a mount that the command has made. The command sends its `/dev/fuse` with the question.
    Mount(MountRequest),
    /// Commits everything.
    Sync,
    /// Commits everything, and has a successor take over the mount.
    StepBack {
        /// How the successor opens the pool.
        read_only: Option<bool>,
    },
    /// Commits everything, and has a successor roll a mounted data set back and take over the mount.
    #[serde(rename = "roll back")]
    RollBack {
        /// The path of the data set.
        path: String,
        /// The name of the snapshot.
        name: String,
        /// Newer snapshots are destroyed.
        newer: bool,
    },
    /// Renames a data set that is mounted, or one above a mounted one. Commits everything, and has a successor take over the mounts
    /// by their new names.
    #[serde(rename = "rename mounted")]
    RenameMounted { path: String, to: String },
    /// How the last rollback of a mounted data set ended.
    #[serde(rename = "rollback outcome")]
    RollbackOutcome { path: String, name: String },
    /// Sets another memory limit, in bytes, for this server and its successors.
    Memory { bytes: u64 },
}

/// A mount that a command has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRequest {
    /// The path of the data set.
    pub dataset: String,
    #[serde(with = "json::path")]
    pub dir: PathBuf,
    /// The kernel's number of the file system.
    pub dev: String,
    /// What `mount` shows as its source.
    pub source: String,
    /// The words after `-o`.
    pub options: Vec<String>,
}

/// How a mount ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopMode {
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
    /// mount. Missing from the first daemons, which a new command may meet after an upgrade. With several
    /// mounts it is the number of the first, like `mountpoint` and `since`.
    #[serde(default)]
    pub dev: String,
    /// When it was mounted, in seconds since 1970; successors of the first server keep it.
    #[serde(default)]
    pub since: u64,
    /// The files and devices of the pool.
    #[serde(default, with = "json::identities")]
    pub devices: Vec<Identity>,
    /// Whether the pool is open read-only.
    #[serde(default)]
    pub read_only: bool,
    /// All mounts. Empty from an older daemon, which has only the root data set mounted.
    #[serde(default)]
    pub mounts: Vec<GreetedMount>,
}

/// A mount in a daemon's greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GreetedMount {
    /// The path of the data set from the root.
    pub dataset: String,
    #[serde(with = "json::path")]
    pub dir: PathBuf,
    pub dev: String,
    pub since: u64,
}

impl Greeting {
    /// All mounts of the daemon.
    pub fn all_mounts(&self) -> Vec<GreetedMount> {
        if !self.mounts.is_empty() {
            return self.mounts.clone();
        }
        let (dir, dev) = (self.mountpoint.clone(), self.dev.clone());
        vec![GreetedMount { dataset: String::new(), dir, dev, since: self.since }]
    }

    /// The mount whose file system has this number.
    pub fn mount_at(&self, dev: &str) -> Option<GreetedMount> {
        self.all_mounts().into_iter().find(|mount| !dev.is_empty() && mount.dev == dev)
    }

    /// The mount of this data set.
    pub fn mount_of(&self, dataset: &str) -> Option<GreetedMount> {
        self.all_mounts().into_iter().find(|mount| mount.dataset == dataset)
    }

    /// Whether the device at this path belongs to the pool.
    pub fn has_device(&self, path: &Path) -> bool {
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
#[expect(clippy::large_enum_variant, reason = "a command has one of them")]
pub enum Contact {
    Daemon(Daemon),
    /// There is no daemon, or no longer.
    NoDaemon,
    /// A process has the socket but did not greet in time. It is stopped, waits for its device, or is still
    /// starting.
    NotAnswering,
}

/// Connects to the daemon behind a socket.
pub fn contact(socket: &Path, timeout: Duration) -> Outcome<Contact> {
    let (sender, receiver) = mpsc::channel();
    let path = socket.to_owned();
    // Connecting blocks as well once the backlog is full. A thread that still blocks at the end exits with
    // this process.
    let call = move || drop(sender.send(connect_and_greet(&path, timeout)));
    std::thread::Builder::new().name("caller".into()).spawn(call)?;
    receiver.recv_timeout(timeout).unwrap_or(Ok(Contact::NotAnswering))
}

fn connect_and_greet(socket: &Path, timeout: Duration) -> Outcome<Contact> {
    let begun = Instant::now();
    loop {
        let stream = match terrane_fuse::socket::connect(socket) {
            Ok(stream) => stream,
            // A daemon that was killed leaves its socket behind.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(Contact::NoDaemon);
            }
            Err(error) => return Err(Failure::io("connecting to", socket)(error)),
        };
        let mut stream = BufReader::new(stream);
        if let Some(line) = read_line(&mut stream).map_err(Failure::io("reading from", socket))? {
            let greeting = Greeting::deserialize(line).map_err(|_| {
                Failure(format!(
                    "{}: unsupported greeting; is the daemon of another version?",
                    socket.display()
                ))
            })?;
            return Ok(Contact::Daemon(Daemon { stream, greeting }));
        }
        // It is about to exit.
        if begun.elapsed() > timeout {
            return Ok(Contact::NotAnswering);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The daemon behind a socket; `None` if there is none, or no longer.
pub fn connect(socket: &Path) -> Outcome<Option<Daemon>> {
    connect_within(socket, GREETING_TIMEOUT)
}

pub fn connect_within(socket: &Path, timeout: Duration) -> Outcome<Option<Daemon>> {
    match contact(socket, timeout)? {
        Contact::Daemon(daemon) => Ok(Some(daemon)),
        Contact::NoDaemon => Ok(None),
        Contact::NotAnswering => {
            Err(not_answering(&socket.file_stem().unwrap_or(socket.as_os_str()).to_string_lossy()))
        }
    }
}

/// A daemon that is about to stop, and its supervisor.
pub struct ExitingDaemon {
    pid: u32,
    /// The file with the supervisor's name, and its content.
    owner: PathBuf,
    content: Option<Vec<u8>>,
}

impl ExitingDaemon {
    pub fn of(greeting: &Greeting, supervisor: &Path) -> ExitingDaemon {
        let owner = owner_file(supervisor);
        ExitingDaemon { pid: greeting.pid, content: std::fs::read(&owner).ok(), owner }
    }

    /// Waits a moment until both processes have closed their files: the file system below may be unmounted
    /// next.
    pub fn wait(&self) {
        let is_serving = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
            // The state follows the command name, which may hold any character.
            stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
        };
        let is_supervised = || self.content.is_some() && std::fs::read(&self.owner).ok() == self.content;
        let begun = Instant::now();
        while (is_serving() || is_supervised()) && begun.elapsed() < EXIT_TIMEOUT {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The failure for a daemon that does not answer.
pub fn not_answering(pool: &str) -> Failure {
    Failure(format!("pool {pool}: server not answering: it is stopped, or waits for its device; see its log"))
}

impl Daemon {
    /// Asks a question that is answered at once, with a time limit.
    pub fn ask_within(self, question: &impl Serialize, timeout: Duration) -> Outcome<Value> {
        self.stream.get_ref().set_read_timeout(Some(timeout))?;
        self.ask(question, &mut |_, _, _| {})
    }

    pub fn ask(self, question: &impl Serialize, progress: &mut dyn FnMut(&str, u64, u64)) -> Outcome<Value> {
        self.ask_about("", question, progress)
    }

    /// Asks about the data set at this path.
    pub fn ask_about(
        mut self,
        dataset: &str,
        question: &impl Serialize,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Outcome<Value> {
        let mut question = serde_json::to_value(question).map_err(std::io::Error::from)?;
        // An older daemon ignores the key, and answers about the root data set.
        if !dataset.is_empty()
            && let Some(keys) = question.as_object_mut()
        {
            keys.insert(DATASET_KEY.to_owned(), dataset.into());
        }
        write_line(self.stream.get_mut(), &question).map_err(|_| hung_up())?;
        self.read_answer(progress)
    }

    /// Asks a question that comes with a descriptor.
    pub fn ask_with(mut self, question: &impl Serialize, file: &File) -> Outcome<Value> {
        let line = encode_line(question).map_err(|_| hung_up())?;
        handover::send_on(self.stream.get_ref(), &line, file).map_err(|_| hung_up())?;
        self.read_answer(&mut |_, _, _| {})
    }

    fn read_answer(&mut self, progress: &mut dyn FnMut(&str, u64, u64)) -> Outcome<Value> {
        loop {
            let line = read_line(&mut self.stream).map_err(|error| match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => not_answering(&self.greeting.pool),
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

/// What it was asked may be done or not.
pub fn hung_up() -> Failure {
    Failure("daemon exited before it answered; see its log".to_owned())
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

fn encode_line(value: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> std::io::Result<()> {
    stream.write_all(&encode_line(value)?)
}

/// A question, with its descriptor and data set.
pub struct Question {
    pub value: Value,
    /// A descriptor that the client sent.
    pub file: Option<File>,
}

impl Question {
    /// The path of the data set that it is about.
    pub fn dataset(&self) -> &str {
        self.value.get(DATASET_KEY).and_then(Value::as_str).unwrap_or_default()
    }
}

/// `None` at the end of the connection, or if the question is too long or malformed.
fn read_question(stream: &UnixStream) -> Option<Question> {
    let (mut line, mut file) = (Vec::new(), None);
    let mut piece = [0; 4096];
    while !line.ends_with(b"\n") {
        let (len, sent) = handover::receive_on(stream, &mut piece).ok()?;
        line.extend_from_slice(piece.get(..len).unwrap_or(&[]));
        file = file.or(sent);
        if len == 0 || line.len() > QUESTION_BYTES_MAX {
            return None;
        }
    }
    Some(Question { value: serde_json::from_slice(&line).ok()?, file })
}

/// The daemon's side of one connection.
pub struct ClientConnection {
    stream: UnixStream,
}

impl ClientConnection {
    pub fn new(stream: UnixStream) -> ClientConnection {
        ClientConnection { stream }
    }

    /// Sends the greeting and reads the question; `None` if none arrives that can be parsed.
    pub fn greet(&mut self, greeting: &Greeting) -> Option<Question> {
        write_line(&mut self.stream, greeting).ok()?;
        self.stream.set_read_timeout(Some(QUESTION_TIMEOUT)).ok()?;
        read_question(&self.stream)
    }

    // A client that has disconnected needs no answer; so errors from here on are ignored.

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
            read_only: true,
            mounts: vec![GreetedMount {
                dataset: "home".into(),
                dir: "/home".into(),
                dev: "0:54".into(),
                since: 10,
            }],
        }
    }

    #[test]
    fn a_question_is_read_and_answered() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut client = ClientConnection::new(theirs);
            let question = client.greet(&greeting()).unwrap();
            assert!(question.file.is_none() && question.dataset() == "home");
            client.progress("blocks", 1, 2);
            client.answer(Ok(question.value));
        });
        let mut stream = BufReader::new(ours);
        let greeted = Greeting::deserialize(read_line(&mut stream).unwrap().unwrap()).unwrap();
        assert_eq!(greeted, greeting());
        let mut seen = Vec::new();
        let answer = Daemon { stream, greeting: greeted }.ask_about(
            "home",
            &json!({"ask": "x\ny"}),
            &mut |what, done, total| seen.push((what.to_owned(), done, total)),
        );
        assert_eq!(answer, Ok(json!({"ask": "x\ny", "dataset": "home"})));
        assert_eq!(seen, [("blocks".to_owned(), 1, 2)]);
        daemon.join().unwrap();
    }

    #[test]
    fn words_of_commands_are_those_of_the_first_version() {
        let stop = |how| Command::Stop { how, seconds: Some(7), dataset: None };
        let of_one = Command::Stop { how: StopMode::WhenIdle, seconds: None, dataset: Some("home".into()) };
        let mount = MountRequest {
            dataset: "home".into(),
            dir: "/h".into(),
            dev: "0:54".into(),
            source: "tank/home".into(),
            options: vec!["ro".into()],
        };
        let mount_line = r#"{"ask":"mount","dataset":"home","dir":[47,104],"dev":"0:54","source":"tank/home","options":["ro"]}"#;
        for (command, line) in [
            (stop(StopMode::WhenIdle), r#"{"ask":"stop","how":"when idle","seconds":7}"#),
            (stop(StopMode::Lazily), r#"{"ask":"stop","how":"lazily","seconds":7}"#),
            (stop(StopMode::ByForce), r#"{"ask":"stop","how":"by force","seconds":7}"#),
            (Command::Sync, r#"{"ask":"sync"}"#),
            (Command::StepBack { read_only: None }, r#"{"ask":"step_back","read_only":null}"#),
            (Command::Memory { bytes: 1 }, r#"{"ask":"memory","bytes":1}"#),
            (of_one, r#"{"ask":"stop","how":"when idle","seconds":null,"dataset":"home"}"#),
            (Command::CanMount { dataset: "home".into() }, r#"{"ask":"can mount","dataset":"home"}"#),
            (Command::Mount(mount), mount_line),
        ] {
            assert_eq!(serde_json::to_string(&command).unwrap(), line);
            assert_eq!(serde_json::from_str::<Command>(line).unwrap(), command);
        }
        let plain: Command = serde_json::from_str(r#"{"ask":"stop"}"#).unwrap();
        assert_eq!(plain, Command::Stop { how: StopMode::WhenIdle, seconds: None, dataset: None });
    }

    #[test]
    fn a_closed_connection_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let daemon = Daemon { stream: BufReader::new(ours), greeting: greeting() };
        assert!(daemon.ask(&json!({}), &mut |_, _, _| {}).unwrap_err().0.contains("log"));
    }

    #[test]
    fn a_daemon_that_does_not_greet_times_out() {
        let socket = std::env::temp_dir().join(format!("terrane-silent-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let soon = Duration::from_millis(50);
        assert!(matches!(contact(&socket, soon).unwrap(), Contact::NotAnswering));
        assert!(connect_within(&socket, soon).unwrap_err().0.contains("not answering"));
        drop(listener);
        assert!(matches!(contact(&socket, soon).unwrap(), Contact::NoDaemon));
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
