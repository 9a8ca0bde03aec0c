//! A file handle refers to its file as long as the file exists, whatever the kernel remembers. NFS servers rely
//! on that.
//!
//! Where `/dev/fuse` cannot be used, or this is not root, the test says so and passes.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]
#![expect(unsafe_code, reason = "no crate has the calls for handles")]

mod support;

use rustix::fs::{CWD, Dir, FileType, Mode, mknodat};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use support::Mounted;

/// `struct file_handle` with room for the longest one.
#[repr(C)]
struct Handle {
    head: libc::file_handle,
    bytes: [u8; 128],
}

impl Handle {
    fn of(path: &Path) -> Handle {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let head = libc::file_handle { handle_bytes: 128, handle_type: 0, f_handle: [] };
        let mut handle = Handle { head, bytes: [0; 128] };
        let (place, mut mount) = (std::ptr::from_mut(&mut handle).cast(), 0);
        // SAFETY: the path ends with a zero, and as many bytes as `handle_bytes` says follow the head.
        let done =
            unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), place, &raw mut mount, 0) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        handle
    }

    fn open(&mut self, root: &File, flags: i32) -> io::Result<File> {
        let place = std::ptr::from_mut(self).cast();
        // SAFETY: no more bytes follow the head than `handle_bytes` says.
        let opened = unsafe { libc::open_by_handle_at(root.as_raw_fd(), place, flags | libc::O_CLOEXEC) };
        if opened < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call made this descriptor, and nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(opened) }.into())
    }
}

#[test]
fn a_handle_means_its_file_after_a_new_mount_and_no_file_once_that_is_gone() {
    let Some(mounted) = Mounted::start("handles", &[], "") else { return };
    mounted.file("file", 0o644);
    mounted.file("gone", 0o644);
    fs::create_dir_all(mounted.path("dir/sub")).unwrap();
    symlink("file", mounted.path("link")).unwrap();
    mknodat(CWD, mounted.path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let names = ["file", "dir", "dir/sub", "link", "pipe"];
    let mut handles = names.map(|name| Handle::of(&mounted.path(name)));
    let mut gone = Handle::of(&mounted.path("gone"));
    fs::remove_file(mounted.path("gone")).unwrap();

    let mounted = mounted.again("");
    let root = File::open(&mounted.dir).unwrap();
    for (name, handle) in names.iter().zip(&mut handles) {
        let found = handle.open(&root, libc::O_PATH).unwrap().metadata().unwrap();
        assert_eq!(found.ino(), fs::symlink_metadata(mounted.path(name)).unwrap().ino(), "{name}");
    }
    let [file, dir, ..] = &mut handles;
    let mut content = String::new();
    file.open(&root, libc::O_RDONLY).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    let listed = Dir::new(dir.open(&root, libc::O_RDONLY | libc::O_DIRECTORY).unwrap()).unwrap();
    let mut entries: Vec<_> = listed.map(|entry| entry.unwrap().file_name().to_owned()).collect();
    entries.sort_unstable();
    assert_eq!(entries, [c".", c"..", c"sub"].map(ToOwned::to_owned));
    assert_eq!(gone.open(&root, libc::O_RDONLY).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    drop(root);
    mounted.end();
}
