//! A service manager keeps what a server needs to follow a killed one: the protocol of systemd's descriptor
//! store.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs::{self, File};
use std::io::{IoSliceMut, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;
use support::{Running, TestDir, can_mount, kill};

/// Plays systemd.
struct Manager<'a> {
    dir: &'a TestDir,
    socket: UnixDatagram,
    store: Vec<(String, OwnedFd)>,
}

impl Manager<'_> {
    fn new(dir: &TestDir) -> Manager<'_> {
        let socket = UnixDatagram::bind(dir.path("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Manager { dir, socket, store: Vec::new() }
    }

    /// Stores what the server hands over, until it is ready.
    fn hear_until_ready(&mut self) {
        loop {
            let mut words = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut words)];
            let heard = recvmsg(&self.socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
            let words = String::from_utf8(words[..heard.bytes].to_vec()).unwrap();
            for message in control.drain() {
                let RecvAncillaryMessage::ScmRights(fds) = message else { panic!("no descriptor: {words}") };
                let name = words.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap();
                self.store.extend(fds.map(|fd| (name.to_string(), fd)));
            }
            if words.lines().any(|line| line == "READY=1") {
                return;
            }
        }
    }

    /// A server that gets the stored descriptors, from number 3 on.
    fn start(&mut self) -> Running {
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
        script += "LISTEN_PID=$$ exec \"$0\" mount -f tank mnt";
        let program = self.dir.command("mount -f tank mnt");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).arg(program.get_program()).current_dir(self.dir.path(""));
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("NOTIFY_SOCKET", self.dir.path("notify"));
        let log = File::options().create(true).append(true).open(self.dir.path("state/tank.log"));
        command.stderr(log.unwrap());
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        let server = Running(command.spawn().unwrap());
        drop(copies);
        self.hear_until_ready();
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
    let mut names: Vec<_> = manager.store.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let kinds = ["connection", "control", "device", "facts", "ledger", "tags"];
    assert_eq!(names, kinds.map(|kind| format!("terrane-{kind}")));

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
