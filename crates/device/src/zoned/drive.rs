//! The kernel interface of a zoned drive: report, reset, finish, and direct reads and writes.
//!
//! It is behind a trait, so that the rules above are tested against a misbehaving drive in memory. The `unsafe` of
//! zoned drives is here and in `zone_report`: one ioctl each.

#![expect(unsafe_code, reason = "ioctls have no safe face in std")]

use crate::backing::Backing;
use crate::block;
use crate::file::write_all_at;
use crate::zone_report::{RawZone, SECTOR, report_zones};
use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

// From Linux's <linux/blkzoned.h>. The numbers are the same on every architecture Rust's standard library supports
// for Linux, except those (mips, powerpc, sparc) whose ioctl encoding differs.
const BLKRESETZONE: libc::c_ulong = 0x4010_1283;
const BLKFINISHZONE: libc::c_ulong = 0x4010_1288;

/// The commands of a zoned drive. Offsets are in bytes from the start of the drive.
pub(crate) trait Drive: Send + Sync + Debug {
    /// Up to `zones` zones from the one that begins at `start`. There are fewer at the drive's end, or if the drive
    /// chooses so.
    fn report(&self, start: u64, zones: usize) -> io::Result<Vec<RawZone>>;
    fn reset(&self, start: u64, len: u64) -> io::Result<()>;
    fn finish(&self, start: u64, len: u64) -> io::Result<()>;
    /// Memory, offset and length are aligned for direct I/O.
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()>;
    /// As `read`; returns the number of bytes taken, and the error if these are not all.
    fn write(&self, at: u64, data: &[u8]) -> (u64, io::Result<()>);
    /// Discards a range of a conventional zone.
    fn discard(&self, start: u64, len: u64) -> io::Result<()>;
    fn flush(&self) -> io::Result<()>;
    fn unlock(&self) -> io::Result<()>;
}

/// Size, zone size and limits of the whole drive, from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DriveLimits {
    pub size: u64,
    pub zone_size: u64,
    /// Writes begin and end at multiples of this, in bytes.
    pub write_granularity: u64,
    pub max_open: u32,
    pub max_active: u32,
}

impl DriveLimits {
    /// Reads the queue directory in sysfs. A missing file means 0, as on older kernels.
    pub fn from_sysfs(backing: &Backing) -> DriveLimits {
        let number = |name: &str| {
            let text = fs::read_to_string(backing.sysfs().join("queue").join(name)).unwrap_or_default();
            text.trim().parse::<u64>().unwrap_or(0)
        };
        let limit = |name: &str| u32::try_from(number(name)).unwrap_or(u32::MAX);
        DriveLimits {
            size: backing.size(),
            zone_size: number("chunk_sectors").saturating_mul(SECTOR),
            write_granularity: number("zone_write_granularity"),
            max_open: limit("max_open_zones"),
            max_active: limit("max_active_zones"),
        }
    }
}

/// A drive behind the kernel's block layer.
#[derive(Debug)]
pub(crate) struct KernelDrive {
    backing: Backing,
    direct: File,
}

impl KernelDrive {
    pub fn new(backing: Backing) -> io::Result<KernelDrive> {
        let direct = backing.open_direct()?;
        Ok(KernelDrive { backing, direct })
    }

    /// Executes a command for a range of whole zones.
    fn zone_command(&self, request: libc::c_ulong, start: u64, len: u64) -> io::Result<()> {
        let range: [u64; 2] = [start / SECTOR, len / SECTOR];
        // SAFETY: the descriptor is open as long as `self` is borrowed; the requests read two 64-bit integers from
        // the address given, which is that of a live local array of exactly those.
        let rc = unsafe { libc::ioctl(self.backing.file().as_raw_fd(), request as _, range.as_ptr()) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drive for KernelDrive {
    fn report(&self, start: u64, zones: usize) -> io::Result<Vec<RawZone>> {
        report_zones(self.backing.file(), start, zones)
    }

    fn reset(&self, start: u64, len: u64) -> io::Result<()> {
        self.zone_command(BLKRESETZONE, start, len)
    }

    fn finish(&self, start: u64, len: u64) -> io::Result<()> {
        self.zone_command(BLKFINISHZONE, start, len)
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.direct.read_exact_at(buf, at)
    }

    fn write(&self, at: u64, data: &[u8]) -> (u64, io::Result<()>) {
        write_all_at(&self.direct, data, at)
    }

    fn discard(&self, start: u64, len: u64) -> io::Result<()> {
        match block::discard(self.backing.file(), start, len) {
            Err(error) if block::is_unsupported(&error) => Ok(()),
            other => other,
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.backing.file().sync_data()
    }

    fn unlock(&self) -> io::Result<()> {
        self.backing.unlock()
    }
}
