//! The systemd generator: what commands record, the units that it makes of it, and mounts as the units say.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

#[allow(dead_code, reason = "a program of its own, that does not need all of it")]
mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use support::{TestDir, can_mount, is_root};

/// Runs the generator under the name by which systemd starts it. Returns the directory of the units, and the messages.
fn generate(dir: &TestDir, fstab: &str) -> (PathBuf, String) {
    let program = dir.path("terrane-generator");
    if !program.exists() {
        symlink(env!("CARGO_BIN_EXE_terrane"), &program).unwrap();
    }
    let dirs = ["normal", "early", "late"].map(|name| dir.path(name));
    for made in &dirs {
        let _ = fs::remove_dir_all(made);
        fs::create_dir(made).unwrap();
    }
    fs::write(dir.path("fstab"), fstab).unwrap();
    let mut command = Command::new(program);
    command.args(&dirs).env("TERRANE_STATE_DIR", dir.path("state")).env("SYSTEMD_FSTAB", dir.path("fstab"));
    let output = command.env_remove("SYSTEMD_SCOPE").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "a generator must not fail: {said}");
    for unused in ["normal", "early"] {
        assert_eq!(fs::read_dir(dir.path(unused)).unwrap().count(), 0);
    }
    (dir.path("late"), said)
}

/// Where the units mount which data set.
fn mounts(dir: &TestDir, fstab: &str) -> BTreeMap<String, String> {
    let (late, said) = generate(dir, fstab);
    assert_eq!(said, "");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&late).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    {
        let text = fs::read_to_string(&entry).unwrap();
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
        assert_eq!(value("Type="), "terrane");
        let wanted = late.join("local-fs.target.wants").join(entry.file_name().unwrap());
        assert_eq!(wanted.canonicalize().unwrap(), entry.canonicalize().unwrap());
        let base = dir.path("").display().to_string();
        let at = value("Where=");
        found.insert(value("What="), at.strip_prefix(&base).unwrap_or(&at).to_owned());
    }
    found
}

fn of<const N: usize>(mounts: [(&str, &str); N]) -> BTreeMap<String, String> {
    mounts.into_iter().map(|(name, at)| (name.to_owned(), at.to_owned())).collect()
}

/// Every command that changes where data sets belong changes the units.
#[test]
fn units_follow_the_commands() {
    let dir = TestDir::new("generator");
    let at = |name: &str| dir.path(name).display().to_string();
    assert_eq!(mounts(&dir, ""), of([]), "no list yet");
    dir.run("pool create tank tank.img --size 128M", 0);
    dir.run("fs create tank/home", 0);
    assert_eq!(mounts(&dir, ""), of([]));
    dir.run(&format!("fs set mountpoint={} tank", at("srv")), 0);
    assert_eq!(mounts(&dir, ""), of([("tank", "srv"), ("tank/home", "srv/home")]));
    dir.run("fs create -p tank/home/ann/x", 0);
    dir.run("fs set canmount=noauto tank/home/ann", 0);
    dir.run("fs set canmount=off tank", 0);
    assert_eq!(mounts(&dir, ""), of([("tank/home", "srv/home"), ("tank/home/ann/x", "srv/home/ann/x")]));
    dir.run("fs rename tank/home/ann/x tank/x", 0);
    dir.run("fs destroy -n -r tank/home", 0);
    assert_eq!(mounts(&dir, ""), of([("tank/home", "srv/home"), ("tank/x", "srv/x")]));
    dir.run("snapshot tank/x@s", 0);
    dir.run("fs clone tank/x@s tank/y", 0);
    dir.run("fs destroy -r tank/home", 0);
    dir.run("fs inherit canmount tank", 0);
    let all = of([("tank", "srv"), ("tank/x", "srv/x"), ("tank/y", "srv/y")]);
    assert_eq!(mounts(&dir, ""), all);
    // A line of fstab for the same directory wins.
    let line = format!("tank/y {}/ terrane noauto 0 0\n", at("srv/y"));
    assert_eq!(mounts(&dir, &line), of([("tank", "srv"), ("tank/x", "srv/x")]));

    dir.run("pool export tank", 0);
    assert_eq!(mounts(&dir, ""), of([]));
    dir.run("pool import -d . tank --name pond", 0);
    assert_eq!(mounts(&dir, ""), of([("pond", "srv"), ("pond/x", "srv/x"), ("pond/y", "srv/y")]));
    dir.run(&format!("pool create -o mountpoint={} other other.img --size 128M", at("b")), 0);
    assert_eq!(mounts(&dir, "").get("other").map(String::as_str), Some("b"));
    dir.run("pool destroy pond", 0);
    assert_eq!(mounts(&dir, ""), of([("other", "b")]));

    // A boot goes on with a damaged list, and the next change mends it.
    fs::write(dir.path("state/mounts"), "{\"other\": [").unwrap();
    let (late, said) = generate(&dir, "");
    assert!(said.contains("damaged") && fs::read_dir(late).unwrap().count() == 0, "{said}");
    dir.run("fs create other/c", 0);
    assert_eq!(mounts(&dir, ""), of([("other", "b"), ("other/c", "b/c")]));
    // A list that cannot be written fails no command.
    fs::create_dir(dir.path("state/mounts.new")).unwrap();
    dir.run("fs create other/d", 0);
    fs::remove_dir(dir.path("state/mounts.new")).unwrap();
    assert_eq!(mounts(&dir, "").len(), 2);
    if can_mount() {
        dir.run("mount other mnt", 0);
        assert_eq!(mounts(&dir, "").len(), 3, "a mount records what an earlier command could not");
        dir.run("fs destroy other/d", 0);
        assert_eq!(mounts(&dir, "").len(), 2, "a server does it as well");
        dir.run("umount mnt", 0);
    }
}

#[test]
fn systemd_accepts_the_units() {
    let dir = TestDir::new("generator-verify");
    dir.run("pool create tank tank.img --size 128M", 0);
    dir.run("fs set mountpoint=/terrane-test tank", 0);
    for name in ["tank/home", "tank/a-b", "tank/it's"] {
        let _ = dir.command("fs create").arg(name).output().unwrap();
    }
    let (late, _) = generate(&dir, "");
    let units: Vec<PathBuf> = fs::read_dir(late)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    assert!(units.len() >= 3, "{units:?}");
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("terrane"), "{said}");
        }
        Err(error) => eprintln!("SKIPPED: systemd-analyze does not run here: {error}"),
    }
}

/// Has mount(8) find this program as its helper, in private mounts. `$1...`: the words for mount(8).
const MOUNT: &str = "set -e
mkdir -p over && mount -t tmpfs none over && mkdir over/up over/work
mount -t overlay overlay -o lowerdir=/usr/sbin,upperdir=over/up,workdir=over/work /usr/sbin
ln -sfn \"$TERRANE\" /usr/sbin/mount.terrane
test -e /sbin/mount.terrane
[ $# -gt 0 ] || exit 0
while [ $# -gt 0 ]; do mount -t terrane \"$1\" \"$2\"; shift 2; done
echo in tank >tank/file; echo in home >tank/home/file
\"$TERRANE\" mount -a
\"$TERRANE\" mounts --json
\"$TERRANE\" umount -a tank
";

#[test]
fn mount_does_what_the_units_say() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("generator-mounts");
    let script = |words: &[String]| {
        let mut command = Command::new("unshare");
        // What other tests unmount meanwhile goes here too.
        command
            .args(["--mount", "--propagation", "slave", "sh", "-c", MOUNT, "sh"])
            .args(words)
            .current_dir(dir.path("."));
        command.env("TERRANE", env!("CARGO_BIN_EXE_terrane")).env("TERRANE_STATE_DIR", dir.path("state"));
        command.stdin(Stdio::null()).output().unwrap()
    };
    let probe = script(&[]);
    if !probe.status.success() {
        eprintln!("SKIPPED: no private mounts here: {}", String::from_utf8_lossy(&probe.stderr));
        return;
    }
    dir.run("pool create tank tank.img --size 128M", 0);
    // Like the paths that ZFS uses: what is to be mounted has the name of a directory where mount(8) runs.
    dir.run(&format!("fs set mountpoint={} tank", dir.path("tank").display()), 0);
    dir.run("fs create tank/home", 0);
    let units = mounts(&dir, "");
    assert_eq!(units, of([("tank", "tank"), ("tank/home", "tank/home")]));
    let mut words = Vec::new();
    for (what, at) in units {
        words.extend([what, dir.path(&at).display().to_string()]);
    }
    fs::create_dir(dir.path("tank")).unwrap();
    // systemd creates mount points. That of the second one is in the first data set.
    dir.run("mount tank", 0);
    fs::create_dir(dir.path("tank/home")).unwrap();
    dir.run("umount tank", 0);
    dir.wait_until_free();
    let output = script(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Mounts of other tests are listed too, without a server.
    let ours = rows["mounts"].as_array().unwrap().iter().filter(|row| !row["pid"].is_null());
    let sets: Vec<&str> = ours.map(|row| row["dataset"].as_str().unwrap()).collect();
    assert_eq!(sets, ["tank", "tank/home"], "`mount -a` mounts nothing again");
    dir.wait_until_free();
    dir.run("mount tank/home", 0);
    assert_eq!(fs::read_to_string(dir.path("tank/home/file")).unwrap(), "in home\n");
    dir.run("umount tank/home", 0);
}
