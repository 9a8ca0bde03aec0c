//! A service manager keeps what a server needs to follow a killed one: the protocol of systemd's descriptor
//! store.

use crate::support::{Running, TestDir, can_mount, is_root, kill};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs::{self, File};
use std::io::{IoSliceMut, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;
use terrane_fuse::UnmountHandle;

/// Plays systemd.
struct Manager<'a> {
    dir: &'a TestDir,
    socket: UnixDatagram,
    store: Vec<(String, OwnedFd)>,
    /// Options of the mount command.
    options: &'static str,
}

impl Manager<'_> {
    fn new(dir: &TestDir) -> Manager<'_> {
        let socket = UnixDatagram::bind(dir.path("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Manager { dir, socket, store: Vec::new(), options: "" }
    }

    /// Does what the next message of the server says. `None`: none comes in time.
    fn hear(&mut self) -> Option<String> {
        let mut words = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut words)];
        let heard = recvmsg(&self.socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        let words = String::from_utf8(words[..heard.bytes].to_vec()).unwrap();
        let name = words.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default();
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(fds) = message else { panic!("no descriptor: {words}") };
            // The newest comes first, and an older one of its name stays.
            fds.for_each(|fd| self.store.insert(0, (name.to_string(), fd)));
        }
        if words.lines().any(|line| line == "FDSTOREREMOVE=1") {
            self.store.retain(|(known, _)| known != name);
        }
        Some(words)
    }

    fn hear_until_ready(&mut self) {
        while !self.hear().expect("the server is not ready").lines().any(|line| line == "READY=1") {}
    }

    /// A server waits while its messages are not read.
    fn hear_while<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        self.socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let outcome = std::thread::scope(|scope| {
            let working = scope.spawn(work);
            while self.hear().is_some() || !working.is_finished() {}
            working.join().unwrap()
        });
        self.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        outcome
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.store.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// A server that is ready.
    fn start(&mut self) -> Running {
        let server = self.spawn();
        self.hear_until_ready();
        server
    }

    /// A server that gets the stored descriptors, from number 3 on.
    fn spawn(&mut self) -> Running {
        let mut names = Vec::new();
        let mut script = String::new();
        // High numbers first, for none of those from 3 on may be overwritten before it is copied.
        let mut copies = Vec::new();
        for (at, (name, fd)) in self.store.iter().enumerate() {
            let copy = fcntl_dupfd_cloexec(fd, 100).unwrap();
            fcntl_setfd(&copy, FdFlags::empty()).unwrap();
            script += &format!("exec {}<&{high} {high}<&-; ", at + 3, high = copy.as_raw_fd());
            names.push(name.as_str());
            copies.push(copy);
        }
        // The process id must be the server's, which only its shell knows before it becomes the server.
        script += &format!("LISTEN_PID=$$ exec \"$0\" mount -f tank mnt {}", self.options);
        let program = self.dir.command("mount -f tank mnt");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).arg(program.get_program()).current_dir(self.dir.path(""));
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("NOTIFY_SOCKET", self.dir.path("notify")).env("FDSTORE", "512");
        let log = File::options().create(true).append(true).open(self.dir.path("state/tank.log"));
        command.stderr(log.unwrap());
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        let server = Running(command.spawn().unwrap());
        drop(copies);
        server
    }
}

#[test]
fn a_server_follows_a_killed_one_by_what_its_manager_keeps() {
    if !can_mount() {
        return;
    }
    let dir = TestDir::new("descriptors");
    dir.run("pool create tank tank.img --size 64M", 0);
    let mut manager = Manager::new(&dir);
    let mut server = manager.start();
    let kinds = ["connection", "control", "device", "facts", "ledger", "tags"];
    assert_eq!(manager.names(), kinds.map(|kind| format!("terrane-{kind}")));

    let path = dir.path("mnt/kept");
    let mut kept = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    kept.write_all(b"kept").unwrap();
    kept.sync_all().unwrap();
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let mut server = manager.start();
    kept.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(std::io::read_to_string(&kept).unwrap(), "kept");
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    dir.run("sync tank", 0);
    drop(kept);
    kill("-TERM", server.0.id());
    assert!(server.0.wait().unwrap().success());
    drop(manager);
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// If it is killed in between, the next one takes what it has committed for commits of the first.
#[test]
fn a_server_stores_all_losses_before_it_opens_a_file_system() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("descriptors-lost");
    dir.run("pool create tank tank.img --size 64M", 0);
    let mut manager = Manager::new(&dir);
    manager.options = "-o crashproof=off";
    let mut server = manager.start();
    fs::create_dir(dir.path("home")).unwrap();
    dir.run("fs create tank/home", 0);
    manager.hear_while(|| dir.run("mount tank/home home", 0));
    let mut file = File::create(dir.path("home/file")).unwrap();
    dir.run("sync tank", 0);
    file.write_all(b"lost").unwrap();
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    // The next server stores a new ledger for the root once its file system is open.
    manager.store.retain(|(name, _)| name != "terrane-ledger");
    let mut server = manager.spawn();
    while !manager.names().contains(&"terrane-ledger") {
        manager.hear().unwrap();
    }
    assert!(manager.names().contains(&"terrane-lost-1"), "{:?}", manager.names());
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let mut server = manager.start();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
    drop(file);
    kill("-TERM", server.0.id());
    assert!(manager.hear_while(|| server.0.wait()).unwrap().success());
    drop(manager);
    assert!(dir.out("check tank").contains("nothing found"));
}

/// Mounts beside the root: their descriptors are more than 64.
const MOUNTS: usize = 16;

#[test]
fn a_manager_keeps_many_mounts_and_nothing_of_one_that_has_ended() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("descriptors-many");
    dir.run("pool create tank tank.img --size 256M", 0);
    let mut manager = Manager::new(&dir);
    let mut server = manager.start();
    for at in 1..=MOUNTS {
        fs::create_dir(dir.path(&at.to_string())).unwrap();
        dir.run(&format!("fs create tank/{at}"), 0);
        manager.hear_while(|| dir.run(&format!("mount tank/{at} {at}"), 0));
        fs::write(dir.path(&format!("{at}/file")), at.to_string()).unwrap();
    }
    dir.run("sync tank", 0);
    assert!(manager.store.len() > 64, "{:?}", manager.names());

    // The last mount ends when no server can say so. The manager sees the end of its connection, and keeps the rest.
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    UnmountHandle::at(&dir.path(&MOUNTS.to_string())).detach().unwrap();
    let last = format!("-{MOUNTS}");
    manager.store.retain(|(name, _)| *name != format!("terrane-connection{last}"));
    assert_eq!(manager.names().iter().filter(|name| name.ends_with(&last)).count(), 3);
    let mut server = manager.start();
    assert_eq!(manager.names().iter().filter(|name| name.ends_with(&last)).count(), 0);
    for at in 1..MOUNTS {
        assert_eq!(fs::read_to_string(dir.path(&format!("{at}/file"))).unwrap(), at.to_string());
    }
    manager.hear_while(|| dir.run(&format!("mount tank/{MOUNTS} {MOUNTS}"), 0));
    let mut names = manager.names();
    let all = names.len();
    names.dedup();
    assert_eq!((all, names.iter().filter(|name| name.ends_with(&last)).count()), (names.len(), 0));
    assert_eq!(fs::read_to_string(dir.path(&format!("{MOUNTS}/file"))).unwrap(), MOUNTS.to_string());

    kill("-TERM", server.0.id());
    assert!(manager.hear_while(|| server.0.wait()).unwrap().success());
    drop(manager);
    assert!(dir.out("check tank").contains("nothing found"));
}
