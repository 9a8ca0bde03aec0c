//! Mounting and unmounting.
//!
//! A superuser's process calls mount(2). Other users' processes start `fusermount3`, which is set-user-id
//! root. It gets one end of a socket pair, and sends the opened `/dev/fuse` back through it.
//!
//! The file system type is `fuse.terrane`, so that mount(8) finds `mount.fuse.terrane` again for a remount.
//!
//! Invariants:
//! * An [`UnmountHandle`] unmounts once, so a later mount at the same path is not touched.
//! * A handle made [of a row](UnmountHandle::of) of the kernel's table unmounts that mount, or nothing.

mod options;
mod syscalls;
mod table;

pub use options::{Atime, MountOptions, OptionError, THREADS_DEFAULT, THREADS_MAX, THREADS_MIN};
pub use table::{
    MountEntry, OtherNamespace, TableWatch, TopMount, dev_number, list_mounts, other_namespaces, top_mount_at,
};

use crate::process;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount_bind, mount_change, mount_remount,
};
use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use terrane_device::unescape_field;

const SUBTYPE: &str = "terrane";
const DEVICE: &str = "/dev/fuse";
/// How far the kernel prefetches for a sequential reader, in bytes. Its default is 128 KiB, in requests of
/// half of that: then two threads decompress the same record, and none the next. With this value READs are 1
/// MiB long, and several are in flight.
pub(crate) const READ_AHEAD_BYTES: u32 = 4 << 20;
const FUSERMOUNT: &str = "fusermount3";
/// Tells fusermount3 on which descriptor to send `/dev/fuse`.
const FUSERMOUNT_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Why mounting or unmounting failed.
#[derive(Debug)]
pub enum MountError {
    /// A system call failed.
    System {
        /// What was tried, as it follows "failed to".
        what: &'static str,
        /// The path it was tried on.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Another file system is mounted over the path, or over a directory above it.
    Covered {
        /// Our mount point.
        path: PathBuf,
        /// What is at that path instead, for people.
        found: String,
    },
    /// The path no longer leads to the mount: the mount was moved, or a directory above it is covered or renamed.
    Unreachable {
        /// Our mount point.
        path: PathBuf,
        /// What is at that path instead, for people.
        found: String,
    },
    /// fusermount3 refused.
    Fusermount {
        /// The mount point.
        path: PathBuf,
        /// Its standard error, or its exit status if that is empty.
        message: String,
    },
    /// Not possible on this machine, or not with these options.
    Refused {
        /// What is not as it should be.
        what: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::System { what, path, source } => {
                write!(f, "failed to {what} {}: {source}", path.display())
            }
            MountError::Covered { path, found } => {
                write!(f, "{}: expected the mount of the pool, found {found} mounted over it", path.display())
            }
            MountError::Unreachable { path, found } => {
                write!(
                    f,
                    "{}: expected a path that leads to the mount of the pool, found {found}",
                    path.display()
                )
            }
            MountError::Fusermount { path, message } => {
                write!(f, "{FUSERMOUNT} failed for {}: {message}", path.display())
            }
            MountError::Refused { what, expected, found } => {
                write!(f, "{what} should be {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for MountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MountError::System { source, .. } => Some(source),
            MountError::Covered { .. }
            | MountError::Unreachable { .. }
            | MountError::Fusermount { .. }
            | MountError::Refused { .. } => None,
        }
    }
}

/// How this process mounts and unmounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountMethod {
    /// mount(2) and umount2(2): needs CAP_SYS_ADMIN.
    Kernel,
    /// fusermount3, which is set-user-id root.
    Fusermount,
}

impl MountMethod {
    /// The method that this process may use.
    pub fn for_this_process() -> MountMethod {
        if rustix::process::geteuid().is_root() { MountMethod::Kernel } else { MountMethod::Fusermount }
    }
}

/// A mount that exists, and its descriptor of `/dev/fuse`. Dropping it unmounts, lazily if the mount is busy.
#[derive(Debug)]
pub struct Mount {
    device: File,
    handle: UnmountHandle,
}

impl Mount {
    /// Mounts at `path`. No access below it returns until a session answers.
    pub fn new(path: &Path, options: &MountOptions) -> Result<Mount, MountError> {
        Mount::new_with_method(MountMethod::for_this_process(), path, options)
    }

    /// As [`Mount::new`], by this method.
    pub fn new_with_method(
        method: MountMethod,
        path: &Path,
        options: &MountOptions,
    ) -> Result<Mount, MountError> {
        if cfg!(target_endian = "big") {
            let found = "big-endian".to_owned();
            return Err(MountError::Refused { what: "byte order", expected: "little-endian", found });
        }
        clear_dead_mount(method, path)?;
        let path = path.canonicalize().map_err(system_error("find the mount point", path))?;
        let device = match method {
            MountMethod::Kernel => mount_by_kernel(&path, options)?,
            MountMethod::Fusermount => mount_by_fusermount(&path, options)?,
        };
        Ok(Mount { device, handle: UnmountHandle::new(path, method, None) })
    }

    /// Adopts a mount that another process made and handed over: its descriptor, and its path.
    pub fn adopt(device: File, path: &Path) -> Mount {
        Mount { device, handle: UnmountHandle::at(path) }
    }

    /// Gives up the mount without unmounting it: a successor holds the descriptor as well.
    pub fn hand_over(self) {
        *self.handle.mount_point.mounted.lock() = false;
    }

    /// The mount point, without symbolic links for a mount of [`Mount::new`].
    pub fn path(&self) -> &Path {
        &self.handle.mount_point.path
    }

    /// A duplicate of the descriptor, which shares the connection of this mount.
    pub fn device(&self) -> io::Result<File> {
        self.device.try_clone()
    }

    /// A handle that unmounts this mount from any thread.
    pub fn unmount_handle(&self) -> UnmountHandle {
        self.handle.clone()
    }

    /// The connection has ended. After an unmount nothing is left to do. After an abort a dead mount still
    /// stands at its path, and this removes it.
    pub(crate) fn note_ended(&self) {
        // The table first: access to a path through another mount of this server would keep that mount busy.
        let stands = list_mounts().is_ok_and(|rows| rows.iter().any(|row| row.dir == self.path()));
        *self.handle.mount_point.mounted.lock() = stands && is_dead(self.path());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.handle.detach() {
            log::warn!("{error}; the mount stays, to remove it: umount -l {}", self.path().display());
        }
    }
}

/// Unmounts from any thread, also while the session runs, for example after a signal.
#[derive(Clone, Debug)]
pub struct UnmountHandle {
    mount_point: Arc<MountPoint>,
}

#[derive(Debug)]
struct MountPoint {
    path: PathBuf,
    method: MountMethod,
    /// The kernel's id of the mount; `None`: whichever mount is at the path.
    id: Option<u64>,
    mounted: Mutex<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnmountMode {
    Normal,
    Lazy,
    Force,
}

impl UnmountHandle {
    fn new(path: PathBuf, method: MountMethod, id: Option<u64>) -> UnmountHandle {
        UnmountHandle { mount_point: Arc::new(MountPoint { path, method, id, mounted: Mutex::new(true) }) }
    }

    /// For whichever mount is at `path` now.
    pub fn at(path: &Path) -> UnmountHandle {
        UnmountHandle::new(path.to_owned(), MountMethod::for_this_process(), None)
    }

    /// For this mount alone: refused where another file system is mounted over it.
    pub fn of(row: &MountEntry) -> UnmountHandle {
        UnmountHandle::new(row.dir.clone(), MountMethod::for_this_process(), Some(row.id))
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point.path
    }

    /// Unmounts; refused (EBUSY) while files are open. The kernel first writes back its dirty pages through
    /// the session.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.unmount_with(UnmountMode::Normal)
    }

    /// Detaches the mount from the tree at once; the session ends when its last user has gone.
    pub fn detach(&self) -> Result<(), MountError> {
        self.unmount_with(UnmountMode::Lazy)
    }

    /// Ends the connection at once: requests in flight fail, and dirty pages of the kernel are lost. Without
    /// CAP_SYS_ADMIN the same as [`UnmountHandle::detach`], since fusermount3 cannot do more.
    pub fn abort(&self) -> Result<(), MountError> {
        self.unmount_with(UnmountMode::Force)
    }

    fn unmount_with(&self, mode: UnmountMode) -> Result<(), MountError> {
        let mut mounted_here = self.mount_point.mounted.lock();
        if !*mounted_here {
            return Ok(());
        }
        let path = &self.mount_point.path;
        if let Some(id) = self.mount_point.id {
            // The system call takes a path and acts on whatever it leads to. Between this check and the call
            // another process may mount over it. An open descriptor would close that gap, but keep the mount
            // busy.
            let top = match table::top_mount_at(path) {
                Ok(top) => Some(top),
                Err(error) if is_gone(&error) => None,
                Err(error) => return Err(system_error("inspect", path)(error)),
            };
            if !matches!(&top, Some(TopMount::Ours(row)) if row.id == id) {
                let Some(dir) = table::dir_of(id) else {
                    // Another process has unmounted it first.
                    *mounted_here = false;
                    return Ok(());
                };
                return Err(blocked_error(path.clone(), top, &dir));
            }
        }
        match self.mount_point.method {
            MountMethod::Kernel => {
                // Never follow a symbolic link that was put in the mount's place.
                let flags = match mode {
                    UnmountMode::Normal => UnmountFlags::empty(),
                    UnmountMode::Lazy => UnmountFlags::DETACH,
                    UnmountMode::Force => UnmountFlags::DETACH | UnmountFlags::FORCE,
                };
                let flags = flags | UnmountFlags::NOFOLLOW;
                match rustix::mount::unmount(c_string(path.as_os_str())?, flags) {
                    // Another process has unmounted it first.
                    Err(Errno::INVAL) => {}
                    result => result.map_err(system_error("unmount", path))?,
                }
            }
            MountMethod::Fusermount => {
                let mut command = Command::new(FUSERMOUNT);
                command.arg("-u").arg("-q");
                if mode != UnmountMode::Normal {
                    command.arg("-z");
                }
                run_fusermount(command.arg("--").arg(path), path)?;
            }
        }
        *mounted_here = false;
        Ok(())
    }
}

/// Whether the path leads nowhere.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Why a mount that is at `dir` now cannot be unmounted by its `path`, where `top` is found; `None`: nothing.
fn blocked_error(path: PathBuf, top: Option<TopMount>, dir: &Path) -> MountError {
    let found = match top {
        Some(TopMount::Ours(row)) => format!("the pool of {}", row.source.to_string_lossy()),
        Some(TopMount::Other(what)) => what,
        Some(TopMount::NotAMountPoint) => {
            return MountError::Unreachable { path, found: "a directory that is no mount point".to_owned() };
        }
        None => return MountError::Unreachable { path, found: "nothing".to_owned() },
    };
    if dir == path {
        return MountError::Covered { path, found };
    }
    MountError::Unreachable { path, found: format!("{found}, and the mount at {}", dir.display()) }
}

/// Where the kernel lists FUSE connections, one directory each.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection of the file system `dev` (`major:minor`), wherever it is mounted and whichever
/// programs use it. Requests fail, and dirty pages of the kernel are lost. A connection that has ended already
/// is no error. The caller must know that this number is its mount's.
///
/// # Errors
/// Without the right to do so; or if the kernel's list of connections is not mounted and cannot be.
pub fn abort_connection(dev: &str) -> Result<(), MountError> {
    let number = dev.rsplit(':').next().unwrap_or(dev);
    let path = Path::new(CONNECTIONS).join(number).join("abort");
    let failed = |error: io::Error| system_error("abort the connection through", &path)(error);
    match std::fs::write(&path, "1") {
        // The list is not mounted here, as in most containers: it is mounted detached, at no path.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let list = syscalls::open_connection_list().map_err(failed)?;
            let inside = format!("/proc/self/fd/{}/{number}/abort", list.as_raw_fd());
            match std::fs::write(inside, "1") {
                // No such connection: it ended when its last mount was detached.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result.map_err(failed),
            }
        }
        result => result.map_err(failed),
    }
}

fn system_error<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> MountError {
    move |source| MountError::System { what, path: path.to_owned(), source: source.into() }
}

fn c_string(text: &OsStr) -> Result<CString, MountError> {
    CString::new(text.as_bytes()).map_err(|_| MountError::Refused {
        what: "text for the kernel",
        expected: "free of zero bytes",
        found: format!("{text:?}"),
    })
}

/// Whether `path` is a FUSE mount whose server has gone. Asks for something that no cache answers.
fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Removes a dead mount of ours from the mount point. Otherwise a restart would fail with "Transport endpoint
/// is not connected". Mounts of other file systems are not touched.
fn clear_dead_mount(method: MountMethod, path: &Path) -> Result<(), MountError> {
    if !is_dead(path) {
        return Ok(());
    }
    // The path cannot be resolved through a dead mount, but its parent can.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let path = parent.canonicalize().map_err(system_error("find", parent))?.join(name);
    let mounts =
        std::fs::read("/proc/self/mounts").map_err(system_error("read", Path::new("/proc/self/mounts")))?;
    let kind = format!("fuse.{SUBTYPE}");
    // The last line for a path is the mount on top.
    let top = mounts.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(1);
        (unescape_field(fields.next()?) == path.as_os_str().as_bytes())
            .then(|| fields.next() == Some(kind.as_bytes()))
    });
    if top != Some(true) {
        return Ok(());
    }
    log::warn!("{}: dead mount of an earlier process found, removing it", path.display());
    UnmountHandle::new(path, method, None).detach()
}

/// Shows the file system at `from` at `path` as well (a bind mount), with per-mount flags of its own:
/// read-only, atime, set-id programs and the like. Both are one file system to the kernel. What is mounted
/// later below one of them is not seen in the other.
///
/// From Linux 5.12 on the flags are set before the new mount becomes visible. Before that there is a moment
/// between the two.
pub fn bind_mount(from: &Path, path: &Path, options: &MountOptions) -> Result<(), MountError> {
    clear_dead_mount(MountMethod::Kernel, path)?;
    let path = path.canonicalize().map_err(system_error("find the mount point", path))?;
    let (source, target) = (c_string(from.as_os_str())?, c_string(path.as_os_str())?);
    match syscalls::clone_mount(&source).and_then(|tree| {
        syscalls::set_private_attributes(&tree, options.mount_attributes())?;
        Ok(tree)
    }) {
        Ok(tree) => return syscalls::attach(&tree, &target).map_err(system_error("mount", &path)),
        // An old kernel, or a container whose seccomp rules know only the old calls.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL)) => {}
        Err(error) => return Err(system_error("clone the mount at", from)(error)),
    }
    mount_bind(&source, &target).map_err(system_error("mount", &path))?;
    let private = || mount_change(&target, MountPropagationFlags::PRIVATE);
    let flags = MountFlags::BIND | options.mount_flags();
    mount_remount(&target, flags, c"").and_then(|()| private()).map_err(|error| {
        // The mount must not stay with weaker flags than were asked for.
        let _ = rustix::mount::unmount(&target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        system_error("set the options of", &path)(error)
    })
}

/// Changes the flags of the mount at `path`: of this one mount, or of the file system `everywhere`. The
/// latter writes back first, and is refused while files are open for writing.
pub fn remount(path: &Path, options: &MountOptions, everywhere: bool) -> Result<(), MountError> {
    let target = c_string(path.as_os_str())?;
    let only_here = if everywhere { MountFlags::empty() } else { MountFlags::BIND };
    mount_remount(target, only_here | options.mount_flags(), c"").map_err(system_error("remount", path))
}

fn mount_by_kernel(path: &Path, options: &MountOptions) -> Result<File, MountError> {
    let open = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = open.map_err(system_error("open", Path::new(DEVICE)))?;
    let root_mode = path.metadata().map_err(system_error("stat", path))?.mode() & libc::S_IFMT;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let data = options.kernel_data(device.as_raw_fd(), root_mode, uid, gid);
    let mounted = rustix::mount::mount(
        c_string(OsStr::new(&options.source))?,
        c_string(path.as_os_str())?,
        c_string(OsStr::new(&format!("fuse.{SUBTYPE}")))?,
        options.mount_flags(),
        c_string(OsStr::new(&data))?.as_c_str(),
    );
    mounted.map_err(system_error("mount", path))?;
    if let Err(error) = set_read_ahead(path) {
        log::debug!(
            "{}: setting read_ahead_kb failed, keeping the kernel's default: {error}",
            path.display()
        );
    }
    Ok(device)
}

/// Sets how far the kernel prefetches for the mount at `path`. Only a superuser may set that, and no FUSE
/// request does.
fn set_read_ahead(path: &Path) -> io::Result<()> {
    // The last one is on top.
    let ours = list_mounts()?.into_iter().rfind(|row| row.dir == path).ok_or(io::ErrorKind::NotFound)?;
    let kib = READ_AHEAD_BYTES >> 10;
    std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", ours.dev), kib.to_string())
}

fn mount_by_fusermount(path: &Path, options: &MountOptions) -> Result<File, MountError> {
    let (ours, theirs) =
        std::os::unix::net::UnixStream::pair().map_err(system_error("make a socket pair for", path))?;
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-o").arg(options.fusermount_options(SUBTYPE)).arg("--").arg(path);
    command.env(FUSERMOUNT_SOCKET_VARIABLE, theirs.as_raw_fd().to_string());
    process::pass_down(&mut command, vec![theirs.into()]);
    run_fusermount(&mut command, path)?;
    // The command holds their end. With that open, receiving would block for ever if the descriptor never came.
    drop(command);
    syscalls::receive_descriptor(&ours).map_err(system_error("receive /dev/fuse for", path))
}

fn run_fusermount(command: &mut Command, path: &Path) -> Result<(), MountError> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.map_err(system_error("run fusermount3 (package fuse3) for", path))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message =
        if message.trim().is_empty() { output.status.to_string() } else { message.trim().to_owned() };
    Err(MountError::Fusermount { path: path.to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_its_path_does_not_lead_to_is_not_called_covered() {
        let (path, other) = (Path::new("/mnt/a"), Path::new("/mnt/b"));
        let tmpfs = || Some(TopMount::Other("tmpfs (none)".to_owned()));
        for (top, dir, text) in [
            (tmpfs(), path, "/mnt/a: expected the mount of the pool, found tmpfs (none) mounted over it"),
            (
                tmpfs(),
                other,
                "/mnt/a: expected a path that leads to the mount of the pool, found tmpfs (none), and the mount at /mnt/b",
            ),
            (
                Some(TopMount::NotAMountPoint),
                path,
                "/mnt/a: expected a path that leads to the mount of the pool, found a directory that is no mount point",
            ),
            (None, path, "/mnt/a: expected a path that leads to the mount of the pool, found nothing"),
        ] {
            assert_eq!(blocked_error(path.to_owned(), top, dir).to_string(), text);
        }
        for gone in ["/proc/self/nothing", "/proc/version/below a file"] {
            assert!(is_gone(&table::top_mount_at(Path::new(gone)).unwrap_err()), "{gone}");
        }
    }

    #[test]
    fn a_mount_point_that_is_not_there_is_named() {
        let error = Mount::new(Path::new("/nowhere/at all"), &MountOptions::default()).unwrap_err();
        assert!(error.to_string().starts_with("failed to find the mount point /nowhere/at all: "), "{error}");
    }
}
