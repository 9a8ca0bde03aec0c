//! Users other than root: pools and mounts of their own, and what they see of root's.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

#[allow(dead_code, reason = "a program of its own, that does not need all of it")]
mod support;

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use support::{NOBODY, TestDir, as_user, can_mount, is_root, kill};

const DAEMON: u32 = 1;
/// Set in a process whose `/dev/fuse` is for all users.
const PRIVATE: &str = "TERRANE_TEST_PRIVATE";
/// Directory, program, test.
const WITH_FUSE_FOR_ALL: &str = r#"
    mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse &&
    exec "$2" --exact "$3" --nocapture
"#;

/// The home of a user, and a program that every user may run.
struct Home(TestDir);

impl Home {
    fn new(name: &str) -> Home {
        let dir = TestDir::new(name);
        fs::create_dir_all(dir.path("home/mnt")).unwrap();
        for path in ["home", "home/mnt"] {
            chown(dir.path(path), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_terrane"), dir.path("terrane")).unwrap();
        for path in ["", "terrane"] {
            fs::set_permissions(dir.path(path), Permissions::from_mode(0o755)).unwrap();
        }
        Home(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path("home").join(name)
    }

    fn command(&self, user: u32, words: &str) -> Command {
        let mut command = Command::new(self.0.path("terrane"));
        command.args(words.split_whitespace()).current_dir(self.path("")).uid(user).gid(user);
        command.env("TERRANE_STATE_DIR", self.path("state")).env_remove("RUST_LOG");
        command
    }

    fn run(&self, words: &str) -> String {
        said(self.command(NOBODY, words).output().unwrap())
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().mode() & 0o777
    }
}

/// The output of a command that must succeed.
fn said(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether all users can mount. If not, this test is run again where they can, with a `/dev/fuse` of its own.
fn all_can_mount(test: &str) -> bool {
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 == 0o006 {
        return true;
    }
    if std::env::var_os(PRIVATE).is_some() {
        eprintln!("SKIPPED: users other than root cannot open /dev/fuse");
        return false;
    }
    let dir = TestDir::new("private");
    // Slaves: copies of other tests' mounts end with the originals.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-c", WITH_FUSE_FOR_ALL, "-"]);
    command.arg(dir.path("")).arg(std::env::current_exe().unwrap()).arg(test);
    let output = command.env(PRIVATE, "").output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && passed, "{test}: {output:?}");
    false
}

#[test]
fn a_user_mounts_a_pool_that_no_other_user_reaches() {
    let test = "a_user_mounts_a_pool_that_no_other_user_reaches";
    if !can_mount() || !is_root() || !all_can_mount(test) {
        return;
    }
    let home = Home::new("user");
    home.run("pool create own own.img --size 64M");
    home.run("mount own mnt");
    let path = home.path("mnt/file");
    as_user(NOBODY, || {
        let mut file = File::create(&path).unwrap();
        file.write_all(b"mine").unwrap();
        file.sync_all().unwrap();
    });
    // The kernel lets no other user in, root included, unless root allowed it.
    assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!([home.mode("state"), home.mode("state/own.sock")], [0o700, 0o600]);
    assert_eq!(home.mode("state/own.supervisor"), 0o600);
    let other = home.command(DAEMON, "sync own").output().unwrap();
    assert!(!other.status.success(), "{other:?}");

    let mounts: serde_json::Value = serde_json::from_str(&home.run("mounts --json")).unwrap();
    let rows = mounts["mounts"].as_array().unwrap();
    let row = rows.iter().find(|row| row["mountpoint"] == home.path("mnt").to_str().unwrap()).unwrap();
    kill("-KILL", row["pid"].as_u64().unwrap() as u32);
    assert_eq!(as_user(NOBODY, || fs::read(&path)).unwrap(), b"mine");
    home.run("check own");
    home.run("restart own");
    let second = home.command(NOBODY, "mount own .").output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    home.run("umount mnt");
    assert!(home.run("check own").contains("nothing found"));
}

/// The directory for sockets goes with a boot, and names do not.
#[test]
fn names_of_a_users_pools_outlive_a_boot() {
    if !is_root() {
        return;
    }
    let home = Home::new("user-names");
    fs::create_dir(home.path("run")).unwrap();
    chown(home.path("run"), Some(NOBODY), Some(NOBODY)).unwrap();
    let run = |words: &str| {
        let mut command = home.command(NOBODY, words);
        command.env_remove("TERRANE_STATE_DIR").env("HOME", home.path("")).env_remove("XDG_STATE_HOME");
        said(command.env("XDG_RUNTIME_DIR", home.path("run")).output().unwrap())
    };
    run("pool create kept kept.img --size 64M");
    fs::remove_dir_all(home.path("run")).unwrap();
    assert_eq!(run("pool list -H -o name"), "kept\n");
}

#[test]
fn roots_mount_is_for_all_users_as_far_as_modes_allow() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("roots");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let (private, public) = (dir.path("mnt/private"), dir.path("mnt/public"));
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    fs::write(&public, "all").unwrap();
    as_user(NOBODY, || {
        assert_eq!(fs::read(&public).unwrap(), b"all");
        assert_eq!(fs::write(&public, "").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(fs::read_dir(&private).map(|_| ()).unwrap_err().kind(), ErrorKind::PermissionDenied);
    });
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}
