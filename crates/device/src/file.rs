//! Zones on a regular file or a conventional block device.
//!
//! Zone `n` begins at byte `n x zone_size`. The layers below do not enforce zones, so [`ZoneRules`] does. They keep
//! no write pointers either, so after opening every zone is in state unknown until the pool sets its pointer. Only a
//! file that was just created is known to be empty.
//!
//! A reset frees the space, so a sparse file shrinks again. That is not guaranteed: if a file system or device cannot
//! do it, the zone still counts as empty, and old bytes stay until they are overwritten.
//!
//! Block devices, and files that are allocated in full and keep their space, use *direct* I/O, past the host's page
//! cache. So a write costs no copy, a flush has nothing left to write back, and the mount's page cache is not
//! duplicated. Sequential reads go through the page cache nevertheless, for its prefetch. A sparse file always uses
//! the page cache: the host allocates better if it can allocate late.
//!
//! Invariant: writes go only to the write pointer, and after a failed flush no flush ever succeeds.

use crate::aligned::{ALIGN, AlignedBuf};
use crate::backing::{Backing, OpenMode};
use crate::block;
use crate::identity::{Identity, PathKind};
use crate::rules::ZoneRules;
use crate::zone::{Device, DeviceError, DeviceInfo, DeviceKind, ZoneReport, ZoneState};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use terrane_wire::ZoneIdx;

/// A regular file or conventional block device, used as zones.
#[derive(Debug)]
pub struct FileDevice {
    backing: Backing,
    info: DeviceInfo,
    rules: ZoneRules,
    /// Resets keep the space: by request, or because the host cannot free it.
    keeps_space: AtomicBool,
    /// The kernel reports a failed write-back only once. Later flushes would seem to succeed.
    flush_failed: AtomicBool,
    flushing: Mutex<()>,
    /// The smallest size that the file had while it was in use, in bytes. Writes extend it again, but the data beyond
    /// that size is lost.
    smallest_size: AtomicU64,
    /// The same device, opened for direct I/O; empty if that is not used.
    direct: OnceLock<File>,
    recent: RecentReads,
}

/// The ends of the last reads, to recognise sequential ones.
#[derive(Debug, Default)]
struct RecentReads {
    ends: [AtomicU64; 8],
    next: AtomicUsize,
}

/// Reads of one sequential stream may overtake each other, or skip cached bytes, by so many bytes.
const STREAM_SLACK: u64 = 512 << 10;

impl RecentReads {
    /// Records a read; returns whether it continues an earlier one.
    fn note_read(&self, offset: u64, len: u64) -> bool {
        let near = |end: &&AtomicU64| {
            let end = end.load(Ordering::Relaxed);
            end > 0 && end.abs_diff(offset) <= STREAM_SLACK
        };
        let known = self.ends.iter().find(near);
        // A race makes only the guess worse.
        let slot =
            known.or_else(|| self.ends.get(self.next.fetch_add(1, Ordering::Relaxed) % self.ends.len()));
        if let Some(slot) = slot {
            slot.store(offset.saturating_add(len), Ordering::Relaxed);
        }
        known.is_some()
    }
}

impl FileDevice {
    /// Creates a sparse regular file of `size_bytes` and opens it; all zones are empty.
    ///
    /// # Errors
    /// `Refused` if the path exists or the sizes make no zones, `Io` if the file cannot be made.
    pub fn create(path: impl AsRef<Path>, size_bytes: u64, zone_size: u64) -> Result<Self, DeviceError> {
        // Checked before the file is made, so that a wrong number leaves no file behind.
        zone_count(&path.as_ref().display().to_string(), size_bytes, zone_size, 4096)?;
        Self::new(Backing::create(path, size_bytes)?, zone_size)
    }

    /// Opens an existing device of known zone size. [`Backing::open`] lists what is refused.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode, zone_size: u64) -> Result<Self, DeviceError> {
        Self::new(Backing::open(path, mode)?, zone_size)
    }

    /// Divides an open backing into zones of `zone_size` bytes (a multiple of the write unit). Bytes after the last
    /// whole zone are not used.
    ///
    /// # Errors
    /// `Refused` if no zone fits, if there would be more than 2^32 - 1, or if the device has zones of its own.
    pub fn new(backing: Backing, zone_size: u64) -> Result<Self, DeviceError> {
        if backing.is_host_managed() {
            return Err(DeviceError::Refused {
                name: backing.name().into(),
                expected: "a conventional device".into(),
                found: "a host-managed zoned drive".into(),
                remedy: "open it as a zoned drive",
            });
        }
        let write_unit = backing.write_unit()?;
        let zone_count = zone_count(backing.name(), backing.size(), zone_size, write_unit)?;
        let state = if backing.is_fresh() { ZoneState::Empty } else { ZoneState::Unknown };
        let capacities = (0..zone_count).map(|_| zone_size);
        let info = DeviceInfo {
            name: backing.name().into(),
            kind: if backing.kind() == PathKind::Block { DeviceKind::Block } else { DeviceKind::File },
            write_unit,
            zone_count,
            zone_size,
            max_open: 0,
            max_active: 0,
            hardware_pointers: false,
        };
        let device = FileDevice {
            backing,
            info,
            rules: ZoneRules::new(write_unit, 0, capacities, state),
            keeps_space: AtomicBool::new(false),
            flush_failed: AtomicBool::new(false),
            flushing: Mutex::new(()),
            smallest_size: AtomicU64::new(u64::MAX),
            direct: OnceLock::new(),
            recent: RecentReads::default(),
        };
        if device.backing.kind() == PathKind::Block {
            device.enable_direct_io();
        }
        Ok(device)
    }

    /// Opens the device again for direct I/O. If that fails, it stays with the page cache.
    fn enable_direct_io(&self) {
        // A read is tried, because some devices open but then require more alignment than we know.
        let opened = self
            .backing
            .open_direct()
            .and_then(|file| file.read_at(&mut AlignedBuf::from(&[0; ALIGN][..]), 0).map(|_| file));
        match opened {
            Ok(file) => drop(self.direct.set(file)),
            Err(error) => log::info!("{}: direct I/O refused, using the page cache: {error}", self.info.name),
        }
    }

    /// The file for direct I/O, if offset, length and memory of this request are aligned for it.
    fn direct_for(&self, offset: u64, buf: &[u8]) -> Option<&File> {
        let align = ALIGN as u64;
        let fits = offset.is_multiple_of(align)
            && buf.len().is_multiple_of(ALIGN)
            && buf.as_ptr().addr().is_multiple_of(ALIGN);
        self.direct.get().filter(|_| fits)
    }

    /// The locked file or block device below, with its path, size and open mode.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    fn start(&self, zone: ZoneIdx) -> u64 {
        // Cannot overflow for a zone that exists: the whole device has at most 2^64 - 1 bytes.
        u64::from(zone.0).saturating_mul(self.info.zone_size)
    }

    fn check_writable(&self, zone: ZoneIdx, op: &'static str) -> Result<(), DeviceError> {
        match self.backing.mode() {
            OpenMode::ReadWrite => Ok(()),
            OpenMode::ReadOnly => Err(DeviceError::Rule {
                zone,
                op,
                expected: "a device opened for writing".into(),
                found: "a device opened read-only".into(),
            }),
        }
    }

    /// Detects a file that is truncated while it is in use. Nothing else does: a write beyond the end extends the
    /// file again, with a hole where data was.
    fn detect_truncation(&self) {
        let size = self.backing.size();
        let Some(len) = self.backing.present_len().filter(|len| *len < size) else { return };
        if self.smallest_size.fetch_min(len, Ordering::Relaxed) >= size {
            log::error!("{}: damaged: truncated to {len} of {size} bytes while in use", self.info.name);
        }
    }

    fn free_range(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.keeps_space.load(Ordering::Relaxed) {
            return Ok(());
        }
        let file = self.backing.file();
        let mut freed = match self.backing.kind() {
            PathKind::Block => block::discard(file, offset, len),
            _ => block::punch_hole(file, offset, len),
        };
        if self.backing.kind() == PathKind::Block && freed.as_ref().is_err_and(block::is_unsupported) {
            // Zeroes the range if the device has a command for that. BLKZEROOUT would write real zeros otherwise:
            // every zone would be written twice, and no space freed.
            freed = block::punch_hole(file, offset, len);
        }
        match freed {
            Err(e) if block::is_unsupported(&e) => {
                log::warn!("{}: discard not supported, reset zones keep their space: {e}", self.info.name);
                self.keeps_space.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => other,
        }
    }
}

fn zone_count(name: &str, size: u64, zone_size: u64, write_unit: u32) -> Result<u32, DeviceError> {
    let refused = |expected: String, found: String, remedy| {
        Err(DeviceError::Refused { name: name.into(), expected, found, remedy })
    };
    if zone_size == 0 || !zone_size.is_multiple_of(u64::from(write_unit)) {
        let expected = format!("a zone size that is a multiple of {write_unit} bytes");
        return refused(expected, zone_size.to_string(), "choose another zone size");
    }
    match u32::try_from(size / zone_size) {
        Ok(0) => {
            let expected = format!("at least one zone of {zone_size} bytes");
            refused(expected, format!("{size} bytes"), "use a larger device or smaller zones")
        }
        Ok(count) => Ok(count),
        Err(_) => {
            let expected = format!("at most {} zones", u32::MAX);
            refused(expected, format!("{}", size / zone_size), "use larger zones")
        }
    }
}

/// Writes all of `data`, in as many system calls as needed. Returns the number of bytes taken, and the error if these
/// are not all.
pub(crate) fn write_all_at(file: &impl FileExt, mut data: &[u8], mut offset: u64) -> (u64, io::Result<()>) {
    let first = offset;
    while !data.is_empty() {
        match file.write_at(data, offset) {
            Ok(0) => return (offset - first, Err(io::ErrorKind::WriteZero.into())),
            Ok(taken) => {
                data = data.get(taken..).unwrap_or(&[]);
                offset += taken as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (offset - first, Err(e)),
        }
    }
    (offset - first, Ok(()))
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.rules.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.rules.check_read(zone, offset, buf.len())?;
        let from = self.start(zone).saturating_add(offset);
        let direct = self.direct_for(from, buf);
        let filled = match direct.filter(|_| !self.recent.note_read(from, buf.len() as u64)) {
            Some(direct) => self.backing.fill_from(direct, from, buf),
            None => self.backing.fill(from, buf),
        };
        filled.map_err(|source| DeviceError::Io { zone: Some(zone), offset, op: "read", source })
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check_writable(zone, "write")?;
        let ticket = self.rules.begin_write(zone, offset, data.len())?;
        let from = self.start(zone).saturating_add(offset);
        let (taken, result) = match (self.direct.get(), self.direct_for(from, data)) {
            (None, _) => write_all_at(self.backing.file(), data, from),
            (_, Some(direct)) => write_all_at(direct, data, from),
            // Small writes, such as uberblocks: a page left in the page cache would have to be written back by the
            // flush.
            (Some(direct), None) => write_all_at(direct, &AlignedBuf::from(data), from),
        };
        // A block device with this error (a loop device over a full file system) has been seen to lose data that it
        // had taken before.
        let is_full = |source: &io::Error| {
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
                && self.backing.file().metadata().is_ok_and(|meta| meta.is_file())
        };
        match result {
            // The next try overwrites the bytes that were taken.
            Err(source) if is_full(&source) => {
                ticket.wrote(0);
                Err(DeviceError::Full { zone, name: self.info.name.clone(), source })
            }
            result => {
                ticket.wrote(taken);
                result.map_err(|source| DeviceError::Io { zone: Some(zone), offset, op: "write", source })
            }
        }
    }

    fn host_free_bytes(&self) -> Option<u64> {
        self.backing.host_free_bytes()
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.check_writable(zone, "reset")?;
        let ticket = self.rules.begin_reset(zone)?;
        self.free_range(self.start(zone), self.info.zone_size).map_err(|source| DeviceError::Io {
            zone: Some(zone),
            offset: 0,
            op: "reset",
            source,
        })?;
        ticket.done();
        Ok(())
    }

    fn reset_for_reuse(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.check_writable(zone, "reset")?;
        self.rules.begin_reset(zone)?.done();
        Ok(())
    }

    fn keep_space(&self) {
        self.keeps_space.store(true, Ordering::Relaxed);
        let meta = self.backing.file().metadata();
        let is_full = meta.is_ok_and(|meta| meta.blocks().saturating_mul(512) >= self.backing.size());
        if is_full && self.direct.get().is_none() {
            self.enable_direct_io();
        }
    }

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.check_writable(zone, "finish")?;
        self.rules.finish(zone).map(drop)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.rules.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let failed = |source| DeviceError::Io { zone: None, offset: 0, op: "flush", source };
        // Of two flushes at a time only one would be told of a failure.
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.flush_failed.load(Ordering::Acquire) {
            return Err(failed(io::Error::other(format!("{}: an earlier flush failed", self.info.name))));
        }
        self.detect_truncation();
        self.backing.file().sync_data().map_err(|e| {
            self.flush_failed.store(true, Ordering::Release);
            failed(e)
        })
    }

    fn identity(&self) -> Option<Identity> {
        Some(self.backing.identity())
    }

    fn problem_text(&self) -> Option<String> {
        self.detect_truncation();
        let (smallest_size, size) = (self.smallest_size.load(Ordering::Relaxed), self.backing.size());
        let text = format!(
            "truncated to {smallest_size} of {size} bytes while in use; `terrane check` lists what is lost"
        );
        (smallest_size < size).then_some(text)
    }

    fn drop_page_cache(&self) {
        block::drop_page_cache(self.backing.file());
    }

    fn unlock(&self) {
        if let Err(error) = self.backing.unlock() {
            log::warn!("{}: unlock failed, locked until this process ends: {error}", self.info.name);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
