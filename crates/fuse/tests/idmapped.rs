//! A place whose users are mapped, as containers with users of their own have them. On disk, files keep the
//! users of the file system.
//!
//! Where this is impossible (no `/dev/fuse`, not root, no user namespaces, Linux before 6.12) the test says so
//! and passes.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

mod support;

use rustix::fs::{CWD, XattrFlags, setxattr};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Mounted, as_user, call};
use terrane_fuse::dispatch::SET_WRITE_HINT;

/// User 0 of the file system is this one in the place, and so on for a thousand users.
const FIRST: u32 = 100_000;
const FITRIM: u32 = 0xc018_5879;

/// A process that keeps a user namespace alive.
struct Users(Child);

impl Users {
    fn new() -> Option<Users> {
        let mut command = Command::new("unshare");
        command.args(["--user", "sleep", "60"]).stderr(Stdio::null());
        let mut users = Users(command.spawn().ok()?);
        let own = fs::read_link("/proc/self/ns/user").ok()?;
        let begun = Instant::now();
        while fs::read_link(users.path("ns/user")).ok()? == own {
            // A kernel without user namespaces ends the child at once.
            if users.0.try_wait().unwrap().is_some() || begun.elapsed() > Duration::from_secs(20) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for map in ["uid_map", "gid_map"] {
            fs::write(users.path(map), format!("0 {FIRST} 1000")).unwrap();
        }
        Some(users)
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.0.id().to_string()).join(name)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A second mount point, unmounted when the test ends.
struct Place(PathBuf);

impl Place {
    fn new(mounted: &Mounted, users: &Users) -> io::Result<Place> {
        let users = File::open(users.path("ns/user"))?;
        let tree = open_tree(CWD, &mounted.dir, OpenTreeFlags::OPEN_TREE_CLONE)?;
        let attributes = libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_IDMAP,
            attr_clr: 0,
            propagation: 0,
            userns_fd: users.as_raw_fd() as u64,
        };
        let (flags, place) = (libc::AT_EMPTY_PATH, &raw const attributes);
        #[expect(unsafe_code, reason = "no crate has this call")]
        // SAFETY: the path ends with a zero, and `place` points to as many bytes as the last argument says.
        let done = unsafe {
            let (call, bytes) = (libc::SYS_mount_setattr, size_of::<libc::mount_attr>());
            libc::syscall(call, tree.as_raw_fd(), c"".as_ptr(), flags, place, bytes)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let dir = mounted.dir.with_extension("place");
        fs::create_dir(&dir)?;
        move_mount(&tree, "", CWD, &dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(Place(dir))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Linux maps users of FUSE mounts since 6.12.
fn kernel_maps_users() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|at: char| !at.is_ascii_digit()).map_while(|text| text.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

fn owners(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid())
}

#[test]
fn a_place_maps_users_and_the_file_system_keeps_its_own() {
    let Some(mounted) = Mounted::start("idmapped", &[], "") else { return };
    let Some(users) = Users::new() else {
        return eprintln!("SKIPPED idmapped: no user namespace can be made");
    };
    // Before the place is made: the kernel maps users once it has the answer to its first request.
    let open = mounted.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let place = match Place::new(&mounted, &users) {
        Err(error) if !kernel_maps_users() => {
            return eprintln!(
                "SKIPPED idmapped: before Linux 6.12 no users of FUSE mounts are mapped: {error}"
            );
        }
        outcome => outcome.unwrap(),
    };
    let seen = place.0.join("open");
    assert_eq!(owners(&seen), (FIRST, FIRST), "root of the file system is the first user of the place");

    let dir = seen.join("dir");
    as_user(FIRST + 5, || {
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), "mine").unwrap();
        fs::set_permissions(dir.join("file"), Permissions::from_mode(0o600)).unwrap();
        symlink("file", dir.join("link")).unwrap();
        fs::rename(dir.join("file"), dir.join("moved")).unwrap();
        setxattr(dir.join("moved"), "user.x", b"y", XattrFlags::empty()).unwrap();
        assert_eq!(fs::read(dir.join("moved")).unwrap(), b"mine");
        assert_eq!(owners(&dir.join("moved")), (FIRST + 5, FIRST + 5));
    });
    for name in ["dir", "dir/moved", "dir/link"] {
        assert_eq!(owners(&open.join(name)), (5, 5), "{name} as stored");
        assert_eq!(owners(&seen.join(name)), (FIRST + 5, FIRST + 5), "{name} as seen");
    }
    let other = as_user(FIRST + 6, || fs::read(dir.join("moved")));
    assert_eq!(other.unwrap_err().raw_os_error(), Some(libc::EACCES));
    let stranger = as_user(7, || File::create(seen.join("stranger")));
    assert_eq!(
        stranger.unwrap_err().raw_os_error(),
        Some(libc::EOVERFLOW),
        "the place does not know the user"
    );
    chown(dir.join("moved"), Some(FIRST + 9), Some(FIRST + 9)).unwrap();
    assert_eq!(owners(&open.join("dir/moved")), (9, 9));

    // A call of ours that asks who calls, although no request of such a mount says it.
    let hinted = mounted.file("hinted", 0o644);
    chown(&hinted, Some(12), Some(12)).unwrap();
    let hint = || call(&File::open(&hinted).unwrap(), SET_WRITE_HINT, &mut 2u64);
    assert_eq!((as_user(12, hint), as_user(13, hint)), (Ok(()), Err(libc::EPERM)));

    // Space is given back without a request: there is nothing to trim, and that is no error.
    let mut range = [0, u64::MAX, 0];
    call(&File::open(&mounted.dir).unwrap(), FITRIM, &mut range).unwrap();
    assert_eq!(range[1], 0, "bytes that were trimmed");
    drop(place);

    // Without permissions that the kernel judges there are none to judge by mapped users.
    let mounted = mounted.again("no_default_permissions");
    assert_eq!(owners(&mounted.path("open")), (0, 0));
    let refused = Place::new(&mounted, &users).map(|_| ()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    mounted.end();
}
