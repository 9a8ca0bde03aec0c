//! The conversation with the daemon of a mounted pool, over its socket.
//!
//! The daemon speaks first: one line that says which pool it has and where. Then the command asks one question, and the daemon
//! answers with lines of progress and one of result. Each line is one JSON object. A daemon whose mount has
//! ended says nothing until it is gone, so that whoever connects then finds the device free.
//!
//! Only the pool's owner can connect: the socket has mode 0600, in a directory of mode 0700.

use crate::failure::{Failure, Outcome};
use serde_json::{Value, json};
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

/// Ends the mount; not a question to the pool. `how` says in which way, `seconds` how long users elsewhere are waited for.
pub const STOP: &str = "stop";
/// Only a mount that nobody uses.
pub const WHEN_IDLE: &str = "when idle";
/// Out of the directory tree at once, and closed when its last user has gone.
pub const LAZILY: &str = "lazily";
/// Committed, and then ended under those who use it.
pub const BY_FORCE: &str = "by force";
/// The longest that each step of a stop may take, but for the wait for users elsewhere.
pub const STOP_STEP: Duration = Duration::from_secs(60);
/// So long at most a caller waits for the answer to a stop: there are two such steps, both commits.
pub const STOP_PATIENCE: Duration = Duration::from_secs(150);
/// How long the processes of a mount may take to end after the server said that it has stopped.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// Commits everything.
pub const SYNC: &str = "sync";
/// Commits everything, and lets a successor go on with the mount. `read_only` says how that one opens the pool.
pub const STEP_BACK: &str = "step_back";

/// Other bounds of memory: `bytes` in all, from now on, for successors as well.
pub const MEMORY: &str = "memory";

/// Beside a keeper's socket: the name of the keeper that listens there. Neither the socket's number nor its times tell: on a file system
/// that is another kernel's (a shared folder of a virtual machine) the next file has the number of the last one, and its times too.
pub fn owner_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".owner");
    path.into()
}

/// What a daemon says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub pool: String,
    pub id: u64,
    pub device: PathBuf,
    pub mountpoint: PathBuf,
    pub pid: u32,
    /// The kernel's number of the file system, `major:minor`: what else stands under it is the same mount.
    pub dev: String,
    /// Seconds since 1970 when it was mounted; successors of the first server keep it.
    pub since: u64,
    /// Which files and devices the pool lies on.
    pub devices: Vec<Identity>,
}

impl Greeting {
    pub fn to_json(&self) -> Value {
        json!({
            "pool": self.pool,
            "id": self.id,
            "device": path_json(&self.device),
            "mountpoint": path_json(&self.mountpoint),
            "pid": self.pid,
            "dev": self.dev,
            "since": self.since,
            "devices": identities_json(&self.devices),
        })
    }

    fn from_json(raw: &Value) -> Option<Greeting> {
        Some(Greeting {
            pool: raw.get("pool")?.as_str()?.to_owned(),
            id: raw.get("id")?.as_u64()?,
            device: path_of(raw.get("device")?)?,
            mountpoint: path_of(raw.get("mountpoint")?)?,
            pid: u32::try_from(raw.get("pid")?.as_u64()?).ok()?,
            // Not said by the first daemons, which a new command may meet after an upgrade.
            dev: raw.get("dev").and_then(Value::as_str).unwrap_or_default().to_owned(),
            since: raw.get("since").and_then(Value::as_u64).unwrap_or(0),
            devices: raw.get("devices").and_then(identities).unwrap_or_default(),
        })
    }

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

pub fn identities_json(devices: &[Identity]) -> Value {
    devices.iter().map(|it| [it.device, it.inode]).collect::<Vec<_>>().into()
}

pub fn identities(raw: &Value) -> Option<Vec<Identity>> {
    let pair = |row: &Value| Some(Identity { device: row.get(0)?.as_u64()?, inode: row.get(1)?.as_u64()? });
    raw.as_array()?.iter().map(pair).collect()
}

/// Paths are bytes, and JSON is not.
fn path_json(path: &Path) -> Value {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().into()
}

fn path_of(raw: &Value) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let bytes = raw.as_array()?.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()));
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes.collect::<Option<_>>()?)))
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
            let greeting = Greeting::from_json(&line).ok_or_else(|| {
                Failure(format!("{}: the daemon speaks another language", socket.display()))
            })?;
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
    pub fn ask_within(self, question: &Value, patience: Duration) -> Outcome<Value> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        self.ask(question, &mut |_, _, _| {})
    }

    pub fn ask(mut self, question: &Value, progress: &mut dyn FnMut(&str, u64, u64)) -> Outcome<Value> {
        let hung_up = || Failure("the daemon ended before it answered; its log may say why".to_owned());
        write_line(self.stream.get_mut(), question).map_err(|_| hung_up())?;
        loop {
            let line = read_line(&mut self.stream).map_err(|error| match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => silent(&self.greeting.pool),
                _ => hung_up(),
            });
            let mut line = line?.ok_or_else(hung_up)?;
            if let Some(answer) = line.get_mut("ok") {
                return Ok(answer.take());
            }
            if let Some(refusal) = line.get("refused").and_then(Value::as_str) {
                return Err(Failure(refusal.to_owned()));
            }
            if let Some(what) = line.get("progress").and_then(Value::as_str) {
                let number = |key: &str| line.get(key).and_then(Value::as_u64).unwrap_or(0);
                progress(what, number("done"), number("total"));
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

fn write_line(stream: &mut UnixStream, value: &Value) -> std::io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
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
        write_line(&mut self.stream, &greeting.to_json()).ok()?;
        self.stream.set_read_timeout(Some(QUESTION_PATIENCE)).ok()?;
        let stream = self.stream.try_clone().ok()?;
        read_line(&mut BufReader::new(stream.take(QUESTION_BYTES_MAX))).ok()?
    }

    // A caller that has gone does not want to know; so nothing of what follows can fail.

    pub fn progress(&mut self, what: &str, done: u64, total: u64) {
        let _ = write_line(&mut self.stream, &json!({"progress": what, "done": done, "total": total}));
    }

    pub fn answer(&mut self, outcome: Outcome<Value>) {
        let line = match outcome {
            Ok(value) => json!({"ok": value}),
            Err(Failure(text)) => json!({"refused": text}),
        };
        let _ = write_line(&mut self.stream, &line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let heard = Greeting::from_json(&read_line(&mut stream).unwrap().unwrap()).unwrap();
        assert_eq!(heard, greeting());
        let mut seen = Vec::new();
        let answer = Daemon { stream, greeting: heard }
            .ask(&json!({"ask": "x\ny"}), &mut |what, done, total| seen.push((what.to_owned(), done, total)));
        assert_eq!(answer, Ok(json!({"ask": "x\ny"})));
        assert_eq!(seen, [("blocks".to_owned(), 1, 2)]);
        daemon.join().unwrap();
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
