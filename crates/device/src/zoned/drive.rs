//! The kernel interface of a zoned drive: report, reset, finish, and direct reads and writes.
//!
//! It is behind a trait, so that the rules above are tested against a misbehaving drive in memory.

use crate::backing::Backing;
use crate::block::{self, RangeCommand};
use crate::file::write_all_at;
use crate::zone_report::{RawZone, SECTOR, report_zones};
use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

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
    fn zone_command(&self, command: RangeCommand, start: u64, len: u64) -> io::Result<()> {
        block::command(self.backing.file(), command, [start / SECTOR, len / SECTOR])
    }
}

impl Drive for KernelDrive {
    fn report(&self, start: u64, zones: usize) -> io::Result<Vec<RawZone>> {
        report_zones(self.backing.file(), start, zones)
    }

    fn reset(&self, start: u64, len: u64) -> io::Result<()> {
        self.zone_command(RangeCommand::ResetZones, start, len)
    }

    fn finish(&self, start: u64, len: u64) -> io::Result<()> {
        self.zone_command(RangeCommand::FinishZones, start, len)
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
