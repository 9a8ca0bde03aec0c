//! An open and locked file or block device, as a [`FileDevice`](crate::FileDevice) uses it, before zones are known.
//!
//! The label must be read before the zone size is known. And the device must be locked before the label is read, or
//! two hosts could both find it unused. So opening is a step of its own. [`Backing::open`] refuses what cannot be a
//! device and what is in use, and names the holder. [`Backing::read_at`] reads anywhere; then a backend takes over.
//!
//! There are two locks, because each covers what the other misses. An exclusive `flock` (shared for reading) keeps
//! out other processes that open the same file or device node. For block devices, `O_EXCL` also keeps out users in
//! the kernel: mounts, swap, device mapper. Both end with the process, so no stale lock ever needs to be removed.
//!
//! A zoned drive is read only below its write pointers. Above them there may be anything, old labels too.
//!
//! A loop device and the file below it are the same bytes, and the kernel lets both be open for writing. So opening
//! the device locks the file too.
//!
//! Invariant: every `Backing` is locked.

use crate::clock::monotonic_ns;
use crate::identity::{Identity, LOOPS_MAX, PathKind, kind_of, open_for_inspection};
use crate::zone::DeviceError;
use crate::zoned_reader::{ZonedReader, ZonesInUse};
use crate::{block, holders};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The access for which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Other processes may read it at the same time; none may write it.
    ReadOnly,
    /// No other process may open it.
    ReadWrite,
}

/// Facts about a path, found without locking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// In bytes; 0 if it is neither a regular file nor a block device.
    pub size: u64,
    /// Kind of the file or device at the end of symbolic links.
    pub kind: PathKind,
    /// The drive has zones of its own, so it is not for [`FileDevice`](crate::FileDevice).
    pub host_managed: bool,
    /// Zone size in bytes if so, else 0.
    pub zone_size: u64,
}

/// Inspects a path without locking or changing anything.
///
/// # Errors
/// `Io` if the path has no metadata or, for a block device, cannot be opened for its size.
pub fn probe(path: impl AsRef<Path>) -> Result<Probe, DeviceError> {
    let path = path.as_ref();
    let mut meta = fs::metadata(path).map_err(|e| failed("stat", path, e))?;
    let mut size = 0;
    match kind_of(&meta) {
        PathKind::Regular => size = meta.len(),
        PathKind::Block => {
            let file;
            (file, meta) = open_for_inspection(path).map_err(|e| failed("opening", path, e))?;
            if kind_of(&meta) == PathKind::Block {
                size = file_size(&file).map_err(|e| failed("reading the size", path, e))?;
            }
        }
        PathKind::Directory | PathKind::Other => {}
    };
    let kind = kind_of(&meta);
    let host_managed = kind == PathKind::Block && block::is_host_managed(meta.rdev());
    let zone_size = if host_managed { block::zone_bytes(meta.rdev()) } else { 0 };
    Ok(Probe { size, kind, host_managed, zone_size })
}

fn file_size(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// An I/O error without a zone. The variant has no field for the path, so its text names it.
fn failed(op: &'static str, path: &Path, source: io::Error) -> DeviceError {
    let source = io::Error::new(source.kind(), format!("{}: {source}", path.display()));
    DeviceError::Io { zone: None, offset: 0, op, source }
}

fn refused(path: &Path, expected: &str, found: impl Into<String>, remedy: &'static str) -> DeviceError {
    DeviceError::Refused {
        name: path.display().to_string(),
        expected: expected.into(),
        found: found.into(),
        remedy,
    }
}

/// Reads a device without locking it: for labels of devices that may be in use.
#[derive(Debug)]
pub struct UnlockedReader {
    file: File,
    zoned: Option<ZonedReader>,
}

impl UnlockedReader {
    /// Opens the device at `path`, without a lock.
    ///
    /// # Errors
    /// `Io` if it cannot be opened, `Refused` if it is neither a regular file nor a block device.
    pub fn open(path: impl AsRef<Path>) -> Result<UnlockedReader, DeviceError> {
        let path = path.as_ref();
        let failed = |e| failed("opening", path, e);
        let (file, meta) = open_for_inspection(path).map_err(failed)?;
        refuse_kind(path, kind_of(&meta))?;
        let is_zoned = kind_of(&meta) == PathKind::Block && block::is_host_managed(meta.rdev());
        let zoned = is_zoned.then(|| ZonedReader::new(&file)).transpose().map_err(failed)?;
        Ok(UnlockedReader { file, zoned })
    }

    /// Fills `buf` from `offset`, anywhere.
    ///
    /// # Errors
    /// If the medium fails or ends before that.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match &self.zoned {
            Some(zoned) => zoned.read_exact_at(buf, offset),
            None => self.file.read_exact_at(buf, offset),
        }
    }
}

/// An open, locked regular file or block device.
#[derive(Debug)]
pub struct Backing {
    file: File,
    mode: OpenMode,
    kind: PathKind,
    size: u64,
    name: String,
    rdev: u64,
    identity: Identity,
    /// The locked files below, if it is a loop device.
    loop_files: Vec<File>,
    /// Made by [`create`](Backing::create), and never written.
    fresh: bool,
    /// When it was last looked at, by [`monotonic_ns`], and whether the file was allocated in full then.
    allocation: Mutex<Option<(u64, bool)>>,
}

/// A `stat` between a write and its flush costs the flush up to 0.1 ms (Linux 6.13 and later: the next write takes an
/// exact time stamp, and that dirties the inode). So the allocation of a file is looked at this seldom.
const ALLOCATION_NS: u64 = 1_000_000_000;

impl Backing {
    /// Opens and locks the device at `path`.
    ///
    /// # Errors
    /// `Refused` if it is neither a regular file nor a block device, or if it is in use. Users are another process, a
    /// mount, swap, a device built on it, or (for writing) a loop device. `Io` if the kernel fails.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        // Checked before opening: opening a pipe waits for its other end, and some devices act on being opened.
        let before = fs::metadata(path).map_err(|e| failed("stat", path, e))?;
        refuse_kind(path, kind_of(&before))?;
        if kind_of(&before) == PathKind::Block
            && let Some(user) = holders::block_user_text(before.rdev(), path)
        {
            return Err(refused(path, "an unused device", user, "release it first"));
        }
        if kind_of(&before) == PathKind::Block
            && mode == OpenMode::ReadWrite
            && block::is_read_only(before.rdev())
        {
            let (expected, remedy) =
                ("a device that can be written", "open it read-only: mount it with -o ro");
            return Err(refused(path, expected, "a read-only device", remedy));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(mode == OpenMode::ReadWrite);
        let flags = match (kind_of(&before), mode) {
            (PathKind::Block, OpenMode::ReadWrite) => libc::O_EXCL,
            (PathKind::Block, OpenMode::ReadOnly) => 0,
            // No meaning for a file; a pipe that replaced it is refused instead of waited for.
            _ => libc::O_NONBLOCK,
        };
        options.custom_flags(flags | libc::O_NOCTTY);
        let file = open_with_retries(&options, path, before.rdev()).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => {
                let user = holders::block_user_text(before.rdev(), path);
                let user = user.unwrap_or_else(|| holders::lock_holder_text(before.dev(), before.ino()));
                refused(path, "an unused device", user, "release it first")
            }
            _ => failed("opening", path, e),
        })?;
        Self::from_open_file(file, path, mode, false)
    }

    /// Creates a sparse regular file of `size` bytes, durable with its name, and opens it for writing.
    ///
    /// # Errors
    /// `Refused` if the path exists, whatever it is; `Io` if the file cannot be made that large.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        // Users must not read from the image what they may not read from files in the pool.
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = made.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => refused(
                path,
                "a path that does not exist",
                "an existing file or directory",
                "choose another name or remove it",
            ),
            _ => failed("creating", path, e),
        })?;
        let laid_out = file.set_len(size).and_then(|()| file.sync_all()).and_then(|()| {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(dir)?.sync_all()
        });
        if let Err(error) = laid_out {
            // We made it a moment ago; half a device is of no use.
            if let Err(left) = fs::remove_file(path) {
                log::warn!(
                    "{}: creation failed, and removing the unfinished file failed: {left}",
                    path.display()
                );
            }
            return Err(failed("creating", path, error));
        }
        Self::from_open_file(file, path, OpenMode::ReadWrite, true)
    }

    fn from_open_file(file: File, path: &Path, mode: OpenMode, fresh: bool) -> Result<Self, DeviceError> {
        // Checked again for the opened file: the path may have been replaced since.
        let meta = file.metadata().map_err(|e| failed("stat", path, e))?;
        let kind = kind_of(&meta);
        refuse_kind(path, kind)?;
        lock(&file, &meta, path, mode)?;
        if kind == PathKind::Regular
            && mode == OpenMode::ReadWrite
            && let Some(user) = holders::loop_user_text(meta.dev(), meta.ino())
        {
            return Err(refused(
                path,
                "an unused file",
                user,
                "detach it (losetup -d), or use the loop device",
            ));
        }
        let below = lock_loop_files(&meta, path, mode)?;
        let size = file_size(&file).map_err(|e| failed("reading the size", path, e))?;
        let name = path.display().to_string();
        let identity = Identity::of_meta(&meta);
        Ok(Backing {
            file,
            mode,
            kind,
            size,
            name,
            rdev: meta.rdev(),
            identity,
            loop_files: below,
            fresh,
            allocation: Mutex::default(),
        })
    }

    /// The identity of the file or device.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The path that the caller gave.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `Regular` or `Block`.
    pub fn kind(&self) -> PathKind {
        self.kind
    }

    /// The access for which it was opened. The lock is shared for `ReadOnly`, exclusive for `ReadWrite`.
    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    /// Bytes that the host file system of a sparse file still has free. `None` for a block device, or for a file that
    /// was allocated in full within the last second.
    pub(crate) fn host_free_bytes(&self) -> Option<u64> {
        if self.kind != PathKind::Regular || self.is_allocated() {
            return None;
        }
        let below = rustix::fs::fstatvfs(&self.file).ok()?;
        Some(below.f_bavail.saturating_mul(below.f_frsize))
    }

    fn is_allocated(&self) -> bool {
        let now = monotonic_ns();
        let mut allocation = self.allocation.lock().unwrap_or_else(PoisonError::into_inner);
        match *allocation {
            Some((then, is_whole)) if now.saturating_sub(then) < ALLOCATION_NS => is_whole,
            _ => {
                let meta = self.file.metadata();
                let is_whole = meta.is_ok_and(|meta| meta.blocks().saturating_mul(512) >= self.size);
                *allocation = Some((now, is_whole));
                is_whole
            }
        }
    }

    /// The present length of a regular file. Not by `stat`, see [`ALLOCATION_NS`]; nothing uses the file's position.
    pub(crate) fn present_len(&self) -> Option<u64> {
        if self.kind != PathKind::Regular {
            return None;
        }
        (&self.file).seek(SeekFrom::End(0)).ok()
    }

    /// Size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The drive has zones of its own: only the backend for zoned drives can write it.
    pub fn is_host_managed(&self) -> bool {
        self.kind == PathKind::Block && block::is_host_managed(self.rdev)
    }

    /// The open file: for the backend of zoned drives, which adds its own commands. The lock lives as long as this
    /// file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The same device, opened again for direct I/O, past the host's page cache. It is the open file itself, whatever
    /// its path names now.
    pub(crate) fn open_direct(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(self.mode == OpenMode::ReadWrite).custom_flags(libc::O_DIRECT);
        options.open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Its sysfs directory; without meaning for a regular file.
    pub(crate) fn sysfs(&self) -> PathBuf {
        block::sysfs(self.rdev)
    }

    /// Releases the locks, so that other processes may open it. The caller writes no more.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        self.loop_files.iter().try_for_each(File::unlock)?;
        self.file.unlock()
    }

    /// The write unit in bytes: 4096, or the device's sector if that is larger.
    pub fn write_unit(&self) -> Result<u32, DeviceError> {
        // At least 4096 even with sectors of 512: an image must be movable to another device.
        match self.kind {
            PathKind::Block => block::sector_bytes(&self.file)
                .map(|bytes| bytes.max(4096))
                .map_err(|e| failed("reading the sector size", Path::new(&self.name), e)),
            _ => Ok(4096),
        }
    }

    /// Fills `buf` from `offset`, anywhere: for labels, before zones are known.
    ///
    /// # Errors
    /// `Io` if the medium fails or the device ends before `offset + buf.len()`.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.fill(offset, buf).map_err(|source| DeviceError::Io { zone: None, offset, op: "read", source })
    }

    pub(crate) fn fill(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_host_managed() {
            return ZonedReader::new(&self.file)?.read_exact_at(buf, offset);
        }
        self.fill_from(&self.file, offset, buf)
    }

    /// The zones in use of a host-managed drive; `None` for other devices.
    pub(crate) fn zones_in_use(&self) -> io::Result<Option<ZonesInUse>> {
        if !self.is_host_managed() {
            return Ok(None);
        }
        ZonedReader::new(&self.file)?.zones_in_use(self.size).map(Some)
    }

    /// The drive's own zone size in bytes, if it has one.
    pub fn zone_size(&self) -> Option<u64> {
        self.is_host_managed().then(|| block::zone_bytes(self.rdev))
    }

    /// Fills `buf` from another open file of the same device.
    pub(crate) fn fill_from(&self, file: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                // Asked now: the file may have been truncated since it was opened.
                let found = file_size(&self.file).map_or("less".into(), |size| size.to_string());
                let end = offset.saturating_add(buf.len() as u64);
                io::Error::new(
                    e.kind(),
                    format!("{} should have at least {end} bytes, found {found}", self.name),
                )
            }
            _ => e,
        })
    }
}

/// Opens a device that an ending process may still hold: one that released its lock and said so, but has not ended
/// yet.
fn open_with_retries(options: &OpenOptions, path: &Path, rdev: u64) -> io::Result<File> {
    for _ in 0..40 {
        match options.open(path) {
            // Not retried for a lasting user, such as a mount.
            Err(e)
                if e.raw_os_error() == Some(libc::EBUSY)
                    && holders::block_user_text(rdev, path).is_none() =>
            {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
    options.open(path)
}

fn refuse_kind(path: &Path, kind: PathKind) -> Result<(), DeviceError> {
    let found = match kind {
        PathKind::Regular | PathKind::Block => return Ok(()),
        PathKind::Directory => "a directory",
        PathKind::Other => "a character device, pipe or socket",
    };
    Err(refused(path, "a regular file or a block device", found, "name a file or a device"))
}

fn lock(file: &File, meta: &Metadata, path: &Path, mode: OpenMode) -> Result<(), DeviceError> {
    // udev locks a block device for a moment after each writer closed it, to see what is on it.
    let tries = if kind_of(meta) == PathKind::Block { 10 } else { 1 };
    for attempt in 1..=tries {
        let got = match mode {
            OpenMode::ReadOnly => file.try_lock_shared(),
            OpenMode::ReadWrite => file.try_lock(),
        };
        match got {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(failed("locking", path, e)),
            Err(TryLockError::WouldBlock) if attempt < tries => std::thread::sleep(Duration::from_millis(50)),
            Err(TryLockError::WouldBlock) => {}
        }
    }
    let holder = holders::lock_holder_text(meta.dev(), meta.ino());
    Err(refuse_locked(path, holder))
}

/// The refusal of a locked device. If the holder is a Terrane server, the remedy is not to kill it: uncommitted
/// changes would be lost.
fn refuse_locked(path: &Path, found: String) -> DeviceError {
    let remedy = match found.contains("locked by terrane ") {
        true => "unmount the pool, or wait until that command ends",
        false => "end that process, or wait until it ends",
    };
    refused(path, "a device that is not locked", found, remedy)
}

/// Locks the files below a loop device. A device that shows a part of its file shares the file with devices that show
/// other parts, but not with a user of all of it. A file that cannot be opened, or does not support locks, does not
/// block the device.
fn lock_loop_files(meta: &Metadata, path: &Path, mode: OpenMode) -> Result<Vec<File>, DeviceError> {
    let (mut locked, mut meta, mut is_whole) = (Vec::new(), meta.clone(), true);
    while locked.len() < LOOPS_MAX && kind_of(&meta) == PathKind::Block {
        let Some(loop_backing) = holders::loop_backing(meta.rdev()) else { break };
        is_whole &= loop_backing.is_whole;
        // Another file may be at the path by now, so its kind is checked first: opening a pipe waits.
        let known =
            fs::metadata(&loop_backing.path).is_ok_and(|meta| refuse_kind(path, kind_of(&meta)).is_ok());
        let Some(Ok((file, next))) = known.then(|| open_for_inspection(&loop_backing.path)) else { break };
        let got = match mode {
            OpenMode::ReadWrite if is_whole => file.try_lock(),
            _ => file.try_lock_shared(),
        };
        if let Err(TryLockError::WouldBlock) = got {
            let holder = holders::lock_holder_text(next.dev(), next.ino());
            let found = format!("its file {} {holder}", loop_backing.path.display());
            return Err(refuse_locked(path, found));
        }
        locked.push(file);
        meta = next;
    }
    Ok(locked)
}
