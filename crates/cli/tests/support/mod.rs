//! The program itself, run as users run it, in a directory that leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use serde_json::Value;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory, and everything mounted below it: removed when the test ends, also if it fails.
pub struct TestDir {
    dir: PathBuf,
}

impl TestDir {
    pub fn new(name: &str) -> TestDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("terrane-cli-{name}-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("mnt")).unwrap();
        TestDir { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_terrane"));
        command.args(words.split_whitespace()).current_dir(&self.dir);
        command.env("TERRANE_STATE_DIR", self.path("state")).env_remove("RUST_LOG");
        command
    }

    /// Runs a command, and expects this exit code. A mount may be busy at first: children of other tests hold copies of an
    /// open file for a moment.
    pub fn run(&self, words: &str, code: i32) -> Output {
        let (begun, mut output) = (Instant::now(), self.command(words).output().unwrap());
        let is_busy = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("(os error 16)");
        while code == 0 && words.starts_with("umount") && is_busy(&output) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{words}: stays busy");
            std::thread::sleep(Duration::from_millis(20));
            output = self.command(words).output().unwrap();
        }
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(code),
            "terrane {words}: {err}{}{}",
            String::from_utf8_lossy(&output.stdout),
            self.log()
        );
        assert!(code == 0 || !err.is_empty(), "terrane {words} failed in silence");
        assert!(!err.contains("panicked"), "{err}");
        output
    }

    /// Unmounts by another program. As in [`run`](Self::run), the mount may be busy at first.
    pub fn unmount_by(&self, words: &[&str]) {
        let (program, args) = words.split_first().unwrap();
        let begun = Instant::now();
        while !Command::new(program).args(args).arg(self.path("mnt")).status().unwrap().success() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} stays busy", self.path("mnt").display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn out(&self, words: &str) -> String {
        String::from_utf8(self.run(words, 0).stdout).unwrap()
    }

    pub fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.out(words)).unwrap()
    }

    /// Refused with exit code 1 and a message that has these words.
    pub fn refused(&self, words: &str, said: &[&str]) {
        let err = String::from_utf8(self.run(words, 1).stderr).unwrap();
        for word in said {
            assert!(err.contains(word), "terrane {words} should say {word:?}, said: {err}");
        }
    }

    /// A wrong command line: exit code 2 and a message that has these words.
    pub fn misused(&self, words: &str, said: &[&str]) {
        let err = String::from_utf8(self.run(words, 2).stderr).unwrap();
        for word in said {
            assert!(err.contains(word), "terrane {words} should say {word:?}, said: {err}");
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("state/tank.log")).unwrap_or_default()
    }

    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let dirs = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        dirs.filter(|dir| dir.starts_with(&self.dir)).collect()
    }

    pub fn daemon_pid(&self) -> u32 {
        let lock = fs::metadata(self.path("tank.img")).unwrap();
        let inode = format!(":{} ", lock.ino());
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let line = locks.lines().find(|line| line.contains("FLOCK") && line.contains(&inode)).unwrap();
        line.split_whitespace().nth(4).unwrap().parse().unwrap()
    }

    /// Returns when the next server has answered.
    pub fn kill_server(&self) {
        let server = self.daemon_pid();
        kill("-KILL", server);
        fs::metadata(self.path("mnt")).unwrap();
        assert_ne!(self.successor_of(server), server);
    }

    /// The supervisor first, so that no server follows: the mount is dead.
    pub fn kill_all(&self) {
        let server = self.daemon_pid();
        let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let supervisor = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap();
        kill("-KILL", supervisor.parse().unwrap());
        kill("-KILL", server);
        self.wait_until_free();
    }

    /// The server that follows this one.
    pub fn successor_of(&self, pid: u32) -> u32 {
        let begun = Instant::now();
        loop {
            // A mount is not listed for a moment while its server changes.
            let now = self.json_rows("mounts --json").first().and_then(|row| row["pid"].as_u64());
            if let Some(now) = now.filter(|now| *now != u64::from(pid)) {
                return now as u32;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "no server follows: {}", self.log());
        }
    }

    /// The mounts of this test.
    pub fn json_rows(&self, words: &str) -> Vec<Value> {
        let rows = self.json(words)["mounts"].as_array().unwrap().clone();
        let ours = |row: &Value| Path::new(row["mountpoint"].as_str().unwrap()).starts_with(&self.dir);
        rows.into_iter().filter(ours).collect()
    }

    pub fn wait_until_free(&self) {
        let begun = Instant::now();
        while File::open(self.path("tank.img")).unwrap().try_lock_shared().is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the daemon does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        for dir in self.mounts() {
            // Lazily: this runs after a failed test. The daemon then exits by itself.
            let _ = Command::new("umount").arg("-l").arg(&dir).output();
            let _ = Command::new("fusermount3").arg("-uz").arg(&dir).stderr(Stdio::null()).output();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A child process that ends with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A user of no group but its own.
pub const NOBODY: u32 = 65534;

/// Calls this as another user. The kernel keeps the credentials of each thread, so only a thread changes them.
pub fn as_user<T: Send>(id: u32, call: impl FnOnce() -> T + Send) -> T {
    let other = || {
        set_thread_groups(&[]).unwrap();
        set_thread_gid(Gid::from_raw(id)).unwrap();
        set_thread_uid(Uid::from_raw(id)).unwrap();
        call()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(other).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The user and the group as which this copy of `id` runs when nobody starts it.
pub fn identity(program: &Path) -> [u32; 2] {
    ["-u", "-g"].map(|word| {
        let mut command = Command::new(program);
        command.arg(word).uid(NOBODY).gid(NOBODY);
        let begun = Instant::now();
        let output = loop {
            match command.output() {
                // A child of another test holds a copy of the file that wrote the program, until its exec.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
                    std::thread::sleep(Duration::from_millis(5));
                }
                outcome => break outcome.unwrap(),
            }
        };
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    })
}

/// Sends a signal, and waits until a killed process has ended, maybe as a zombie. Before that it seems to listen, and the kernel answers
/// a request with EIO if a server dies while it copies that request.
pub fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
    let begun = Instant::now();
    let has_ended = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
    };
    while signal == "-KILL" && !has_ended() {
        assert!(begun.elapsed() < Duration::from_secs(10), "process {pid} goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that do not compress.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// What only root may do is tested only as root.
pub fn is_root() -> bool {
    let root = fs::metadata("/proc/self").map(|own| own.uid()).unwrap() == 0;
    if !root {
        eprintln!("SKIPPED: not root");
    }
    root
}

/// Whether mounts work here.
pub fn can_mount() -> bool {
    let able = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !able {
        eprintln!("SKIPPED: /dev/fuse cannot be opened, so nothing is mounted and nothing of it tested");
    }
    able
}

/// The library for `terrane run-hinted`, beside the program. It is no dependency of these tests, so it is built
/// now if `cargo test` was asked for this crate alone.
pub fn hints_library() -> PathBuf {
    let home = Path::new(env!("CARGO_BIN_EXE_terrane")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--package", "terrane-preload", "--target-dir"])
        .arg(home.parent().unwrap());
    if home.ends_with("release") {
        build.arg("--release");
    }
    let output = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let library = home.join("libterrane_hints.so");
    assert!(output.status.success() && library.is_file(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// A loop device, detached when the test ends.
pub struct Loop(pub String);

impl Loop {
    pub fn new(image: PathBuf, words: &[&str]) -> Option<Loop> {
        let output = Command::new("losetup").args(words).args(["-f", "--show"]).arg(image).output().ok()?;
        if !output.status.success() {
            eprintln!("SKIPPED: no loop device: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(Loop(String::from_utf8(output.stdout).unwrap().trim().to_string()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}
