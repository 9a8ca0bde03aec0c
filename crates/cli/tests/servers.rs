//! The processes of a mount: its supervisor is killed, its server does not answer.

use crate::support::{Running, TestDir, can_mount, is_root, kill};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

fn new_pool(name: &str) -> Option<TestDir> {
    if !can_mount() {
        return None;
    }
    let dir = TestDir::new(name);
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    Some(dir)
}

fn wait_until(what: &str, seconds: u64, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < Duration::from_secs(seconds), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The server, or the next one if it has just been killed.
fn server(dir: &TestDir) -> u32 {
    let mut pid = None;
    wait_until("no server", 30, || {
        pid = dir.json_rows("mounts --json").first().and_then(|row| row["pid"].as_u64());
        pid.is_some()
    });
    pid.unwrap() as u32
}

fn supervisor(dir: &TestDir) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", server(dir))).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap().parse().unwrap()
}

fn wait_until_supervisor_is(dir: &TestDir, state: &str) {
    wait_until(&format!("no supervisor is {state}"), 10, || {
        dir.json("pool status --json tank")["pools"][0]["supervisor"] == state
    });
}

#[test]
fn a_supervisor_that_is_killed_is_replaced() {
    let Some(dir) = new_pool("supervisor") else { return };
    let path = dir.path("mnt/file");
    fs::write(&path, "before").unwrap();
    let mut file = File::open(&path).unwrap();
    // A killed server loses what is not synced, and the next use of the file says so.
    file.sync_all().unwrap();
    let first = supervisor(&dir);
    kill("-KILL", first);
    dir.run("restart tank", 0);
    let second = supervisor(&dir);
    assert_ne!(first, second);
    wait_until_supervisor_is(&dir, "running");
    // The server replaces it without a command, and then a server that is killed has a successor.
    kill("-KILL", second);
    wait_until_supervisor_is(&dir, "running");
    kill("-KILL", server(&dir));
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "before");
    drop(file);
    kill("-KILL", supervisor(&dir));
    if is_root() {
        dir.run("mount tank mnt -o remount,ro", 0);
        dir.run("mount tank mnt -o remount,rw", 0);
        kill("-KILL", server(&dir));
    }
    fs::write(&path, "after").unwrap();

    // A supervisor that adopted a server ends with the mount as any other.
    let last = supervisor(&dir);
    kill("-KILL", last);
    wait_until_supervisor_is(&dir, "running");
    dir.run("umount tank", 0);
    let socket = dir.path("state/tank.supervisor");
    wait_until("a supervisor stays without a mount", 30, || !socket.exists());
    assert!(dir.out("check tank").contains("nothing found"));
    dir.run("mount tank mnt", 0);
    assert_eq!(fs::read_to_string(&path).unwrap(), "after");
    dir.run("umount tank", 0);
}

/// A process that is stopped, and goes on when the test ends.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        kill("-STOP", pid);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill("-CONT", self.0);
    }
}

/// Runs commands at the same time, each of which must succeed within this time.
fn outputs<const N: usize>(dir: &TestDir, seconds: u64, commands: [&str; N]) -> [Output; N] {
    let begun = Instant::now();
    let running = commands.map(|words| {
        let mut command = dir.command(words);
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    });
    let mut at = 0;
    running.map(|mut one| {
        let words = commands[at];
        at += 1;
        let mut status = None;
        wait_until(&format!("terrane {words} waits for a silent server"), seconds, || {
            assert!(begun.elapsed() < Duration::from_secs(seconds), "terrane {words} came too late");
            status = one.0.try_wait().unwrap();
            status.is_some()
        });
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        one.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        one.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        let output = Output { status: status.unwrap(), stdout, stderr };
        assert!(output.status.success(), "terrane {words}: {output:?}");
        output
    })
}

fn has_line(output: &[u8], begin: &str, word: &str) -> bool {
    String::from_utf8_lossy(output).lines().any(|line| line.starts_with(begin) && line.contains(word))
}

fn is_free(image: &Path) -> bool {
    File::open(image).unwrap().try_lock_shared().is_ok()
}

#[test]
fn a_server_that_does_not_answer_delays_only_commands_about_its_pool() {
    let Some(dir) = new_pool("silent") else { return };
    if !is_root() {
        return;
    }
    fs::create_dir(dir.path("west")).unwrap();
    dir.run("pool create quiet quiet.img --size 64M", 0);
    dir.run("mount quiet west", 0);
    let silent_server = || {
        let rows = dir.json_rows("mounts --json");
        let ours = rows.iter().find(|row| row["mountpoint"] == dir.path("west").to_str().unwrap());
        Stopped::new(ours.unwrap()["pid"].as_u64().unwrap() as u32)
    };
    fs::write(dir.path("west/file"), "kept").unwrap();
    fs::write(dir.path("mnt/file"), "seen").unwrap();
    let silent = silent_server();
    let commands =
        ["pool list -H", "mounts -H", "pool import -d . -H", "stat mnt/file", "umount --force west"];
    let [list, mounts, import, stat, unmount] = outputs(&dir, 20, commands);
    drop(silent);
    assert!(has_line(&list.stdout, "tank", "healthy"), "{list:?}");
    assert!(has_line(&list.stdout, "quiet", "not answering"), "{list:?}");
    assert!(has_line(&mounts.stdout, "tank", "mounted"), "{mounts:?}");
    assert!(has_line(&import.stdout, "quiet", "in use"), "{import:?}");
    assert!(!stat.stdout.is_empty());
    assert!(String::from_utf8_lossy(&unmount.stderr).contains("did not answer"), "{unmount:?}");
    assert_eq!(dir.mounts(), [dir.path("mnt")]);
    // What it had in memory is committed when it continues.
    wait_until("the server does not end", 20, || is_free(&dir.path("quiet.img")));
    dir.run("mount quiet west", 0);
    assert_eq!(fs::read_to_string(dir.path("west/file")).unwrap(), "kept");

    let silent = Stopped::new(server(&dir));
    outputs(&dir, 3, ["umount west"]);
    drop(silent);
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
    assert!(dir.out("check quiet").contains("nothing found"));
}
