//! Servers that are killed at the worst moment, as separate processes.
//!
//! This program plays every role: [`a_part_in_another_process`] is what the processes that it starts run.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use terrane_fuse::cache_policy::CachePolicy;
use terrane_fuse::mount::MountMethod;
use terrane_fuse::proto::Request;
use terrane_fuse::reply::{Reply, attr};
use terrane_fuse::session::{Call, Handler, Negotiated};
use terrane_fuse::transport::{DevFuse, Received, Transport};
use terrane_fuse::{Mount, MountOptions, Session, SessionConfig, UnmountHandle, forget, handover};
use terrane_posix::{Attr, Errno, Time};

const ROLE: &str = "TERRANE_TEST_PART";
const TIMEOUT: Duration = Duration::from_secs(20);
/// The only file, whatever its name.
const FILE: u64 = 2;

struct OneFile {
    /// A READ is never answered.
    silent: bool,
    lost: Vec<u64>,
}

impl OneFile {
    fn attr(node: u64) -> Attr {
        let (mode, size) = if node == FILE { (0o100_644, 4) } else { (0o40_755, 2) };
        let time = Time { secs: 1_000_000_000, nanos: 0 };
        Attr {
            ino: node,
            generation: 1,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 1,
            blocks_known: true,
            blksize: 131_072,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }
}

impl Handler for OneFile {
    fn lost_nodes(&self) -> Vec<u64> {
        self.lost.clone()
    }

    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let policy = CachePolicy::default();
        match call.request {
            Request::Lookup { .. } => reply.bytes(&attr::entry(&Self::attr(FILE), FILE, &policy).encode()),
            Request::Getattr => attr::put_attr(reply, &Self::attr(call.header.nodeid), &policy),
            Request::Open(_) if !call.negotiated.stateless_open() => {
                attr::put_open(reply, policy.file_flags());
            }
            Request::Read(_) if self.silent => loop {
                std::thread::park();
            },
            Request::Read(_) => reply.bytes(b"read"),
            Request::Release | Request::Forget { .. } => {}
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }
}

/// This program again, in another role.
fn command_in_role(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "a_part_in_another_process"]).env(ROLE, role).stdout(Stdio::null());
    command
}

#[test]
fn a_part_in_another_process() {
    let role = std::env::var(ROLE).unwrap_or_default();
    match role.split_once(':') {
        None if role == "forgetter" => forget::run().unwrap(),
        Some(("silent server", agreed)) => {
            let agreed: Vec<u8> = agreed.split(' ').map(|byte| byte.parse().unwrap()).collect();
            let agreed = Negotiated::decode(&agreed).unwrap();
            let (_, connection) = handover::take_passed().remove(0);
            // Never reached for an unmount.
            let mount = Mount::adopt(connection, Path::new("/nowhere"));
            let session = Session::new(mount, SessionConfig::from(&MountOptions::default()));
            session
                .resume(&agreed, &OneFile { silent: true, lost: vec![FILE] }, command_in_role("forgetter"))
                .unwrap();
        }
        // No role was given: the tests run.
        _ => assert_eq!(role, ""),
    }
}

fn silent_server(connection: File, agreed: &Negotiated) -> Child {
    let agreed: Vec<String> = agreed.encode().iter().map(u8::to_string).collect();
    let mut command = command_in_role(&format!("silent server:{}", agreed.join(" ")));
    let files = [("connection".to_owned(), connection)];
    handover::pass_descriptors(&mut command, &files).unwrap();
    command.spawn().unwrap()
}

/// The fields of `/proc/.../stat` behind the process's name: state, parent, ...
fn stat(dir: &Path) -> Option<Vec<String>> {
    let line = fs::read_to_string(dir.join("stat")).ok()?;
    Some(line.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn entries(dir: &str) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Whether a thread of this process or of a child waits in a way that no signal ends.
fn waits_unkillably(process: u32) -> bool {
    let is_family = |dir: &Path, stat: &[String]| {
        dir.ends_with(process.to_string()) || stat.get(1).is_some_and(|parent| *parent == process.to_string())
    };
    let family =
        entries("/proc").into_iter().filter(|dir| stat(dir).is_some_and(|stat| is_family(dir, &stat)));
    let mut threads = family.flat_map(|dir| entries(dir.join("task").to_str().unwrap()));
    threads.any(|thread| stat(&thread).is_some_and(|stat| stat[0] == "D"))
}

fn in_time(mut done: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    while !done() {
        if since.elapsed() > TIMEOUT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

#[test]
fn a_server_that_is_killed_while_the_kernel_forgets_has_a_successor() {
    let dir = std::env::temp_dir().join(format!("terrane-fuse-killed-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let options = MountOptions::default();
    let config = SessionConfig::from(&options);
    let Ok(mount) = Mount::new_with_method(MountMethod::Kernel, &dir, &options) else {
        eprintln!("SKIPPED killed: this machine cannot mount FUSE");
        return fs::remove_dir(&dir).unwrap();
    };
    let (given, device) = (mount.device().unwrap(), mount.device().unwrap());
    let first = Session::new(mount, config);
    let agreed = first.negotiate().unwrap().unwrap();
    // A separate process: one that starts others while it has a file of this mount open waits for its server.
    let mut caller = Command::new("cat").arg(dir.join("file")).stdout(Stdio::piped()).spawn().unwrap();
    // The first server dies with a READ: the kernel keeps the page locked until it is answered.
    let transport = DevFuse::new(first.device().unwrap(), first.unmount_handle());
    let file = OneFile { silent: false, lost: Vec::new() };
    let (mut buf, mut reply) = (vec![0; agreed.buffer_bytes()], Reply::new());
    loop {
        let Received::Request { len } = transport.receive(&mut buf).unwrap() else { panic!("ended") };
        let (header, request) = Request::parse(&buf[..len], agreed.dialect).unwrap();
        if matches!(request, Request::Read(_)) {
            break;
        }
        reply.clear();
        let call = Call { header: &header, request: &request, negotiated: &agreed };
        let outcome = file.handle(&call, &mut reply);
        transport.send(reply.seal(header.unique, outcome)).unwrap();
    }
    first.into_mount().hand_over();
    // Whatever fails from here on, no process may be left waiting.
    let end = |what: &str| -> ! {
        let _ = UnmountHandle::at(&dir).abort();
        let _ = fs::remove_dir(&dir);
        panic!("{what}");
    };

    // The second server is killed while the kernel waits for that page to drop it.
    let mut second = silent_server(given, &agreed);
    if !in_time(|| waits_unkillably(second.id())) {
        let _ = second.kill();
        end("nobody waits for the page, so this shows nothing");
    }
    second.kill().unwrap();
    if !in_time(|| second.try_wait().unwrap().is_some()) {
        end("the killed server does not end");
    }

    // The third server is asked for the page; its answer ends all other waits.
    let third = Session::new(Mount::adopt(device, &dir), config);
    let ending = third.unmount_handle();
    let session = std::thread::spawn(move || third.resume(&agreed, &file, command_in_role("forgetter")));
    if !in_time(|| caller.try_wait().unwrap().is_some()) {
        end("the READ is not answered");
    }
    assert_eq!(caller.wait_with_output().unwrap().stdout, b"read");
    assert!(in_time(|| ending.unmount().is_ok()));
    session.join().unwrap().unwrap();
    fs::remove_dir(&dir).unwrap();
}
