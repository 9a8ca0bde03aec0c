//! What chattr(1) sets, on a mount: what it forbids is forbidden to root as well, and flags that would not be
//! obeyed are refused.

use crate::support::{NOBODY, TestDir, as_user, can_mount, is_root};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

fn set(path: &Path, flags: IFlags) -> Result<(), Errno> {
    ioctl_setflags(File::open(path).unwrap(), flags)
}

fn assert_shows(path: &Path, flags: IFlags) {
    assert_eq!(ioctl_getflags(File::open(path).unwrap()).unwrap(), flags, "{}", path.display());
}

fn assert_forbidden(what: &str, outcome: io::Result<()>) {
    let error = outcome.expect_err(what);
    assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
}

/// With an open that succeeds: no server is asked whether a file may be opened.
fn overwrite(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path).unwrap().write_all_at(b"0", 0)
}

fn cut(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path).unwrap().set_len(0)
}

#[test]
fn flags_forbid_changes_to_root_as_well() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("flags");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    let (file, sub) = (mnt.join("file"), mnt.join("dir"));
    let (held, new) = (sub.join("x"), sub.join("new"));
    fs::write(&file, "content\n").unwrap();
    fs::create_dir(&sub).unwrap();
    fs::write(&held, "x").unwrap();

    for path in [&file, &sub] {
        set(path, IFlags::IMMUTABLE).unwrap();
        assert_shows(path, IFlags::IMMUTABLE);
    }
    dir.run("umount mnt", 0);
    dir.run("mount tank mnt", 0);
    assert_shows(&file, IFlags::IMMUTABLE);
    assert_shows(&sub, IFlags::IMMUTABLE);
    assert_forbidden("write", overwrite(&file));
    assert_forbidden("truncate", cut(&file));
    assert_forbidden("chmod", fs::set_permissions(&file, Permissions::from_mode(0o600)));
    assert_forbidden("link", fs::hard_link(&file, mnt.join("link")));
    assert_forbidden("rename", fs::rename(&file, mnt.join("moved")));
    assert_forbidden("unlink", fs::remove_file(&file));
    assert_forbidden("unlink below", fs::remove_file(&held));
    assert_forbidden("create below", File::create_new(&new).map(|_| ()));
    assert_eq!(fs::read(&file).unwrap(), b"content\n");

    for path in [&file, &sub] {
        set(path, IFlags::empty()).unwrap();
        set(path, IFlags::APPEND).unwrap();
        assert_shows(path, IFlags::APPEND);
    }
    File::options().append(true).open(&file).unwrap().write_all(b"more\n").unwrap();
    File::create_new(&new).unwrap();
    assert_forbidden("overwrite", overwrite(&file));
    assert_forbidden("truncate", cut(&file));
    assert_forbidden("unlink below", fs::remove_file(&new));
    assert_eq!(fs::read(&file).unwrap(), b"content\nmore\n");

    // Nothing in memory keeps a file from being written that may be written again.
    for path in [&file, &sub] {
        set(path, IFlags::empty()).unwrap();
    }
    overwrite(&file).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"0ontent\nmore\n");
    fs::remove_dir_all(&sub).unwrap();
    fs::remove_file(&file).unwrap();
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}

#[test]
fn flags_are_inherited_or_refused() {
    if !can_mount() || !is_root() {
        return;
    }
    let dir = TestDir::new("inherited-flags");
    dir.run("pool create tank tank.img --size 64M", 0);
    dir.run("mount tank mnt", 0);
    let mnt = dir.path("mnt");
    let (file, sub) = (mnt.join("file"), mnt.join("dir"));
    fs::write(&file, "content").unwrap();
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("older"), "x").unwrap();
    set(&file, IFlags::NODUMP).unwrap();
    set(&sub, IFlags::NODUMP).unwrap();
    assert_shows(&file, IFlags::NODUMP);
    File::create_new(sub.join("new")).unwrap();
    fs::create_dir(sub.join("below")).unwrap();
    assert_shows(&sub.join("new"), IFlags::NODUMP);
    assert_shows(&sub.join("below"), IFlags::NODUMP);
    assert_shows(&sub.join("older"), IFlags::empty());

    assert_eq!(set(&file, IFlags::SYNC | IFlags::NODUMP), Err(Errno::OPNOTSUPP));
    assert_eq!(as_user(NOBODY, || set(&file, IFlags::empty())), Err(Errno::PERM), "not its owner");
    assert_shows(&file, IFlags::NODUMP);

    // The property and its default, relatime, renew the access time of a file that was written since.
    dir.run("fs set atime=on tank", 0);
    let renewed = |path: &Path| {
        let before = fs::metadata(path).unwrap().accessed().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        // Not from the kernel's cache.
        let file = File::open(path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_at(&mut [0; 1], 0).unwrap();
        fs::metadata(path).unwrap().accessed().unwrap() > before
    };
    assert!(renewed(&file));
    set(&file, IFlags::NOATIME).unwrap();
    assert_shows(&file, IFlags::NOATIME);
    assert!(!renewed(&file), "chattr +A");
    set(&file, IFlags::empty()).unwrap();
    assert!(renewed(&file));
    dir.run("umount mnt", 0);
    assert!(dir.out("check tank").contains("nothing found"));
}
