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
pub use table::{Elsewhere, MountedAt, TableWatch, Top, elsewhere, mounted, number_of, top_at};

use parking_lot::Mutex;
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

const SUBTYPE: &str = "terrane";
const DEVICE: &str = "/dev/fuse";
/// How far the kernel prefetches for a sequential reader, in bytes. Its default is 128 KiB, in requests of
/// half of that: then two threads decompress the same record, and none the next. With this value READs are 1
/// MiB long, and several are in flight.
pub(crate) const READ_AHEAD_BYTES: u32 = 4 << 20;
const HELPER: &str = "fusermount3";
/// Tells fusermount3 on which descriptor to send `/dev/fuse`.
const HELPER_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Why mounting or unmounting failed.
#[derive(Debug)]
pub enum MountError {
    /// A system call failed: what was tried, and on which path.
    System { what: &'static str, path: PathBuf, source: io::Error },
    /// Another file system is mounted over the path, or over a directory above it.
    Covered { path: PathBuf, found: String },
    /// fusermount3 refused; `said` is its message.
    Helper { path: PathBuf, said: String },
    /// Not possible on this machine, or not with these options.
    Refused { what: &'static str, expected: &'static str, found: String },
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::System { what, path, source } => write!(f, "{what} {}: {source}", path.display()),
            MountError::Covered { path, found } => {
                write!(f, "{}: expected the mount of the pool, found {found} mounted over it", path.display())
            }
            MountError::Helper { path, said } => write!(f, "{HELPER} {}: {said}", path.display()),
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
            MountError::Covered { .. } | MountError::Helper { .. } | MountError::Refused { .. } => None,
        }
    }
}

/// How this process mounts and unmounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// mount(2) and umount2(2): needs CAP_SYS_ADMIN.
    Kernel,
    /// fusermount3, which is set-user-id root.
    Helper,
}

impl Via {
    /// The way that this process may use.
    pub fn of_this_process() -> Via {
        if syscalls::effective_uid() == 0 { Via::Kernel } else { Via::Helper }
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
        Mount::new_via(Via::of_this_process(), path, options)
    }

    pub fn new_via(via: Via, path: &Path, options: &MountOptions) -> Result<Mount, MountError> {
        if cfg!(target_endian = "big") {
            let found = "big-endian".to_owned();
            return Err(MountError::Refused { what: "byte order", expected: "little-endian", found });
        }
        clear_dead_mount(via, path)?;
        let path = path.canonicalize().map_err(system("find the mount point", path))?;
        let device = match via {
            Via::Kernel => mount_by_kernel(&path, options)?,
            Via::Helper => mount_by_helper(&path, options)?,
        };
        Ok(Mount { device, handle: UnmountHandle::new(path, via, None) })
    }

    /// Adopts a mount that another process made and handed over: its descriptor, and its path.
    pub fn adopt(device: File, path: &Path) -> Mount {
        Mount { device, handle: UnmountHandle::at(path) }
    }

    /// Gives up the mount without unmounting it: a successor holds the descriptor as well.
    pub fn hand_over(self) {
        *self.handle.place.mounted.lock() = false;
    }

    pub fn path(&self) -> &Path {
        &self.handle.place.path
    }

    /// A duplicate of the descriptor, which shares the connection of this mount.
    pub fn device(&self) -> io::Result<File> {
        self.device.try_clone()
    }

    pub fn unmount_handle(&self) -> UnmountHandle {
        self.handle.clone()
    }

    /// The connection has ended. After an unmount nothing is left to do. After an abort a dead mount still
    /// stands at its path, and this removes it.
    pub(crate) fn ended(&self) {
        *self.handle.place.mounted.lock() = is_dead(self.path());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.handle.detach() {
            log::warn!(
                "{error}; the mount stays until its last user leaves: umount -l {}",
                self.path().display()
            );
        }
    }
}

/// Unmounts from any thread, also while the session runs, for example after a signal.
#[derive(Clone, Debug)]
pub struct UnmountHandle {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    via: Via,
    /// The kernel's id of the mount; `None`: whichever mount is at the path.
    id: Option<u64>,
    mounted: Mutex<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leave {
    WhenIdle,
    Lazily,
    ByForce,
}

impl UnmountHandle {
    fn new(path: PathBuf, via: Via, id: Option<u64>) -> UnmountHandle {
        UnmountHandle { place: Arc::new(Place { path, via, id, mounted: Mutex::new(true) }) }
    }

    /// For whichever mount is at `path` now.
    pub fn at(path: &Path) -> UnmountHandle {
        UnmountHandle::new(path.to_owned(), Via::of_this_process(), None)
    }

    /// For this mount alone: refused where another file system is mounted over it.
    pub fn of(row: &MountedAt) -> UnmountHandle {
        UnmountHandle::new(row.dir.clone(), Via::of_this_process(), Some(row.id))
    }

    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Unmounts; refused (EBUSY) while files are open. The kernel first writes back its dirty pages through
    /// the session.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.leave(Leave::WhenIdle)
    }

    /// Detaches the mount from the tree at once; the session ends when its last user has gone.
    pub fn detach(&self) -> Result<(), MountError> {
        self.leave(Leave::Lazily)
    }

    /// Ends the connection at once: requests in flight fail, and dirty pages of the kernel are lost. Without
    /// CAP_SYS_ADMIN the same as [`UnmountHandle::detach`], since fusermount3 cannot do more.
    pub fn abort(&self) -> Result<(), MountError> {
        self.leave(Leave::ByForce)
    }

    fn leave(&self, how: Leave) -> Result<(), MountError> {
        let mut mounted_here = self.place.mounted.lock();
        if !*mounted_here {
            return Ok(());
        }
        let path = &self.place.path;
        if let Some(id) = self.place.id {
            // The system call takes a path and acts on whatever it leads to. Between this check and the call
            // another process may mount over it. An open descriptor would close that gap, but keep the mount
            // busy.
            let found = match table::top_at(path) {
                Ok(Top::Ours(row)) if row.id == id => None,
                Ok(Top::Ours(row)) => Some(format!("the pool of {}", row.source.to_string_lossy())),
                Ok(Top::Other(what)) => Some(what),
                Ok(Top::Nothing) => Some("another directory".to_owned()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Some("another directory".to_owned()),
                Err(error) => return Err(system("look at", path)(error)),
            };
            match found {
                // Another process has unmounted it first.
                Some(_) if !table::is_listed(id) => {
                    *mounted_here = false;
                    return Ok(());
                }
                Some(found) => return Err(MountError::Covered { path: path.clone(), found }),
                None => {}
            }
        }
        match self.place.via {
            Via::Kernel => {
                // Never follow a symbolic link that was put in the mount's place.
                let flags = match how {
                    Leave::WhenIdle => 0,
                    Leave::Lazily => libc::MNT_DETACH,
                    Leave::ByForce => libc::MNT_DETACH | libc::MNT_FORCE,
                };
                let flags = flags | libc::UMOUNT_NOFOLLOW;
                match syscalls::unmount(&text(path.as_os_str())?, flags) {
                    // Another process has unmounted it first.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                    result => result.map_err(system("unmount", path))?,
                }
            }
            Via::Helper => {
                let mut command = Command::new(HELPER);
                command.arg("-u").arg("-q");
                if how != Leave::WhenIdle {
                    command.arg("-z");
                }
                run_helper(command.arg("--").arg(path), path)?;
            }
        }
        *mounted_here = false;
        Ok(())
    }
}

/// Where the kernel lists FUSE connections, one directory each.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection of the file system `dev` (`major:minor`), wherever it is mounted and whichever
/// programs use it. Requests fail, and dirty pages of the kernel are lost. The caller must know that this
/// number is its mount's.
///
/// # Errors
/// Without the right to do so; or if the kernel's list of connections is not mounted and cannot be.
pub fn abort_connection(dev: &str) -> Result<(), MountError> {
    let number = dev.rsplit(':').next().unwrap_or(dev);
    let path = Path::new(CONNECTIONS).join(number).join("abort");
    let failed = |error| system("abort the connection through", &path)(error);
    match std::fs::write(&path, "1") {
        // The list is not mounted here, as in most containers: it is mounted detached, at no path.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let list = syscalls::connections().map_err(failed)?;
            let inside = format!("/proc/self/fd/{}/{number}/abort", list.as_raw_fd());
            std::fs::write(inside, "1").map_err(failed)
        }
        result => result.map_err(failed),
    }
}

fn system<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> MountError + 'a {
    move |source| MountError::System { what, path: path.to_owned(), source }
}

fn text(text: &OsStr) -> Result<CString, MountError> {
    CString::new(text.as_bytes()).map_err(|_| MountError::Refused {
        what: "text for the kernel",
        expected: "free of zero bytes",
        found: format!("{text:?}"),
    })
}

/// Whether `path` is a FUSE mount whose server has gone. Asks for something that no cache answers.
fn is_dead(path: &Path) -> bool {
    let asked = text(path.as_os_str()).map(|path| syscalls::probe(&path));
    let error = asked.ok().and_then(Result::err).and_then(|error| error.raw_os_error());
    matches!(error, Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Removes a dead mount of ours from the mount point. Otherwise a restart would fail with "Transport endpoint
/// is not connected". Mounts of other file systems are not touched.
fn clear_dead_mount(via: Via, path: &Path) -> Result<(), MountError> {
    if !is_dead(path) {
        return Ok(());
    }
    // The path cannot be resolved through a dead mount, but its parent can.
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let path = parent.canonicalize().map_err(system("find", parent))?.join(name);
    let mounts =
        std::fs::read("/proc/self/mounts").map_err(system("read", Path::new("/proc/self/mounts")))?;
    let kind = format!("fuse.{SUBTYPE}");
    // The last line for a path is the mount on top.
    let top = mounts.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(1);
        (table::unescaped(fields.next()?) == path.as_os_str().as_bytes())
            .then(|| fields.next() == Some(kind.as_bytes()))
    });
    if top != Some(true) {
        return Ok(());
    }
    log::warn!("{}: removing a dead mount that an earlier process left behind", path.display());
    UnmountHandle::new(path, via, None).detach()
}

/// Shows the file system at `from` at `path` as well (a bind mount), with per-mount flags of its own:
/// read-only, atime, set-id programs and the like. Both are one file system to the kernel. What is mounted
/// later below one of them is not seen in the other.
///
/// From Linux 5.12 on the flags are set before the new mount becomes visible. Before that there is a moment
/// between the two.
pub fn also_at(from: &Path, path: &Path, options: &MountOptions) -> Result<(), MountError> {
    clear_dead_mount(Via::Kernel, path)?;
    let path = path.canonicalize().map_err(system("find the mount point", path))?;
    let (source, target) = (text(from.as_os_str())?, text(path.as_os_str())?);
    match syscalls::place_of(&source).and_then(|place| {
        syscalls::set_flags_and_be_private(&place, options.place_attributes())?;
        Ok(place)
    }) {
        Ok(place) => return syscalls::attach(&place, &target).map_err(system("mount", &path)),
        // An old kernel, or a container whose seccomp rules know only the old calls.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL)) => {}
        Err(error) => return Err(system("take a place of", from)(error)),
    }
    syscalls::mount(&source, &target, c"none", libc::MS_BIND, c"").map_err(system("mount", &path))?;
    let flags = libc::MS_BIND | libc::MS_REMOUNT | options.mount_flags();
    let private = || syscalls::mount(c"none", &target, c"none", libc::MS_PRIVATE, c"");
    syscalls::mount(&source, &target, c"none", flags, c"").and_then(|()| private()).map_err(|error| {
        // The mount must not stay with weaker flags than were asked for.
        let _ = syscalls::unmount(&target, libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW);
        system("set the options of", &path)(error)
    })
}

/// Changes the flags of the mount at `path`: of this one mount, or of the file system `everywhere`. The
/// latter writes back first, and is refused while files are open for writing.
pub fn remount(path: &Path, options: &MountOptions, everywhere: bool) -> Result<(), MountError> {
    let target = text(path.as_os_str())?;
    let only_here = if everywhere { 0 } else { libc::MS_BIND };
    let flags = libc::MS_REMOUNT | only_here | options.mount_flags();
    syscalls::mount(c"none", &target, c"none", flags, c"").map_err(system("remount", path))
}

fn mount_by_kernel(path: &Path, options: &MountOptions) -> Result<File, MountError> {
    let open = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = open.map_err(system("open", Path::new(DEVICE)))?;
    let root_mode = path.metadata().map_err(system("stat", path))?.mode() & libc::S_IFMT;
    let (uid, gid) = (syscalls::effective_uid(), syscalls::effective_gid());
    let data = options.kernel_data(device.as_raw_fd(), root_mode, uid, gid);
    let mounted = syscalls::mount(
        &text(OsStr::new(&options.source))?,
        &text(path.as_os_str())?,
        &text(OsStr::new(&format!("fuse.{SUBTYPE}")))?,
        options.mount_flags(),
        &text(OsStr::new(&data))?,
    );
    mounted.map_err(system("mount", path))?;
    if let Err(error) = read_ahead(path) {
        log::debug!("{}: the kernel reads ahead as little as it does by itself: {error}", path.display());
    }
    Ok(device)
}

/// Sets how far the kernel prefetches for the mount at `path`. Only a superuser may set that, and no FUSE
/// request does.
fn read_ahead(path: &Path) -> io::Result<()> {
    // The last one is on top.
    let ours = mounted()?.into_iter().rfind(|row| row.dir == path).ok_or(io::ErrorKind::NotFound)?;
    let kib = READ_AHEAD_BYTES >> 10;
    std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", ours.dev), kib.to_string())
}

fn mount_by_helper(path: &Path, options: &MountOptions) -> Result<File, MountError> {
    let (ours, theirs) =
        std::os::unix::net::UnixStream::pair().map_err(system("make a socket pair for", path))?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options.helper_words(SUBTYPE)).arg("--").arg(path);
    command.env(HELPER_SOCKET_VARIABLE, theirs.as_raw_fd().to_string());
    syscalls::inherit(&mut command, &theirs);
    run_helper(&mut command, path)?;
    // Not before the child was started, which needed it. With our copy open, receiving would block for ever
    // if the descriptor never came.
    drop(theirs);
    syscalls::receive_descriptor(&ours).map_err(system("receive /dev/fuse for", path))
}

fn run_helper(command: &mut Command, path: &Path) -> Result<(), MountError> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.map_err(system("run fusermount3 (package fuse3) for", path))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = if said.trim().is_empty() { output.status.to_string() } else { said.trim().to_owned() };
    Err(MountError::Helper { path: path.to_owned(), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_that_is_not_there_is_named() {
        let error = Mount::new(Path::new("/nowhere/at all"), &MountOptions::default()).unwrap_err();
        assert!(error.to_string().starts_with("find the mount point /nowhere/at all: "), "{error}");
    }
}
