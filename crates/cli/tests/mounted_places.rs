//! What the places of a mount allow, and to which users.

use crate::support::{NOBODY, TestDir, as_user, can_mount, identity, is_root};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

/// A pool, and two directories to mount it at.
fn new_pool(name: &str) -> Option<TestDir> {
    // Only root lets other users in, and has a second place.
    if !can_mount() || !is_root() {
        return None;
    }
    let dir = TestDir::new(name);
    fs::create_dir(dir.path("more")).unwrap();
    dir.run("pool create tank tank.img --size 64M", 0);
    Some(dir)
}

fn flags(place: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let line = lines.find(|line| Path::new(line[1]) == place).unwrap();
    line[3].split(',').map(str::to_string).collect()
}

fn assert_shows(place: &Path, words: &[&str]) {
    let flags = flags(place);
    for word in words {
        assert!(flags.iter().any(|flag| flag == word), "{} is not {word}: {flags:?}", place.display());
    }
}

fn assert_closed(outcome: io::Result<fs::ReadDir>) {
    assert_eq!(outcome.map(|_| ()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

fn system(words: &[&str], at: &Path) {
    let (program, args) = words.split_first().unwrap();
    assert!(Command::new(program).args(args).arg(at).status().unwrap().success(), "{words:?}");
}

/// Where no permissions are checked, other users stay outside, or find a mount that makes no user root: at
/// every place of it.
#[test]
fn no_place_without_permissions_makes_a_user_root() {
    let Some(dir) = new_pool("no-permissions") else { return };
    let (mnt, more) = (dir.path("mnt"), dir.path("more"));
    dir.run("mount tank mnt -o no_default_permissions", 0);
    assert_closed(as_user(NOBODY, || fs::read_dir(&mnt)));
    dir.run("umount mnt", 0);

    dir.run("mount tank mnt -o no_default_permissions,allow_other", 0);
    assert_shows(&mnt, &["nosuid", "nodev"]);
    let program = mnt.join("id");
    as_user(NOBODY, || {
        fs::copy("/usr/bin/id", &program).unwrap();
        chown(&program, Some(0), None).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    });
    assert_eq!(identity(&program), [NOBODY; 2]);
    dir.run("mount tank more", 0);
    assert_shows(&more, &["nosuid", "nodev"]);
    assert_eq!(identity(&more.join("id")), [NOBODY; 2]);
    dir.run("umount more", 0);
    dir.refused("mount tank more -o suid", &["suid"]);
    dir.refused("mount tank mnt -o remount,dev", &["dev"]);
    dir.run("mount tank mnt -o remount,ro", 0);
    assert_shows(&mnt, &["nosuid", "nodev", "ro"]);
    dir.run("umount mnt", 0);
    dir.refused("mount tank mnt -o no_default_permissions,allow_other,suid", &["suid"]);
    assert!(dir.mounts().is_empty());
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn a_second_place_has_its_own_flags_and_none_of_the_mounts_in_the_first() {
    let Some(dir) = new_pool("flags") else { return };
    let (mnt, more) = (dir.path("mnt"), dir.path("more"));
    dir.run("mount tank mnt -o lazytime,iversion,silent", 0);
    fs::create_dir(mnt.join("sub")).unwrap();
    fs::write(mnt.join("file"), "content").unwrap();
    symlink("file", mnt.join("link")).unwrap();
    system(&["mount", "--make-shared"], &mnt);
    dir.run("mount tank more -o nosuid,nodev,noexec,noatime,ro,nosymfollow", 0);
    assert_shows(&more, &["nosuid", "nodev", "noexec", "noatime", "ro", "nosymfollow"]);
    assert_eq!(fs::read(more.join("link")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    assert_eq!(fs::read(mnt.join("link")).unwrap(), b"content");
    assert_eq!(fs::write(more.join("file"), "").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    system(&["mount", "-t", "tmpfs", "none"], &mnt.join("sub"));
    assert_eq!(dir.mounts(), [mnt.clone(), more.clone(), mnt.join("sub")]);
    system(&["umount"], &mnt.join("sub"));
    dir.run("umount more", 0);

    dir.run("mount tank more -o ro", 0);
    dir.run("mount tank more -o remount,strictatime,nodev", 0);
    assert_shows(&more, &["ro", "nodev"]);
    assert!(!flags(&more).iter().any(|flag| flag.contains("atime")), "{:?}", flags(&more));
    assert!(!flags(&mnt).contains(&"ro".to_string()), "{:?}", flags(&mnt));
    dir.run("umount tank", 0);
    assert!(dir.mounts().is_empty());
    assert!(dir.out("check tank").contains("nothing found"));
}
