//! Kernel queries and commands for a file or block device.
//!
//! The `unsafe` of the backends is here and in `zone_report`: ioctls that rustix does not wrap.

#![expect(unsafe_code, reason = "rustix has no wrapper for these ioctls")]

use rustix::fs::{Advice, FallocateFlags};
use rustix::ioctl::{self, Opcode, Setter, opcode};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

// From Linux's <linux/fs.h> and <linux/blkzoned.h>.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKRESETZONE: Opcode = opcode::write::<[u64; 2]>(0x12, 131);
const BLKFINISHZONE: Opcode = opcode::write::<[u64; 2]>(0x12, 136);

/// The larger of a block device's logical and physical sector size, in bytes.
pub(crate) fn sector_bytes(file: &File) -> io::Result<u32> {
    Ok(rustix::fs::ioctl_blksszget(file)?.max(rustix::fs::ioctl_blkpbszget(file)?))
}

/// Frees a range of a sparse file, or of a block device that can do it cheaply. The range then reads as zeros.
pub(crate) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    // To the kernel these are negative. Its EINVAL would read as "not supported".
    if i64::try_from(offset.max(len)).is_err() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, mode, offset, len))?)
}

/// Drops clean cached data of a file or device from the kernel's memory. A failure is harmless.
pub(crate) fn drop_page_cache(file: &File) {
    if let Err(error) = rustix::fs::fadvise(file, 0, None, Advice::DontNeed) {
        log::debug!("posix_fadvise failed: {error}");
    }
}

/// A command for a range of a block device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RangeCommand {
    /// The range is in bytes.
    Discard,
    /// The range is in sectors of 512 bytes, as for `FinishZones`.
    ResetZones,
    FinishZones,
}

/// Executes a command for the range `[start, length]`.
pub(crate) fn command(file: &File, command: RangeCommand, range: [u64; 2]) -> io::Result<()> {
    // SAFETY: all three requests read two 64-bit integers from the address given, and write no memory.
    let done = unsafe {
        match command {
            RangeCommand::Discard => ioctl::ioctl(file, Setter::<BLKDISCARD, _>::new(range)),
            RangeCommand::ResetZones => ioctl::ioctl(file, Setter::<BLKRESETZONE, _>::new(range)),
            RangeCommand::FinishZones => ioctl::ioctl(file, Setter::<BLKFINISHZONE, _>::new(range)),
        }
    };
    Ok(done?)
}

/// Discards a range of a block device. What it reads as afterwards is undefined.
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    command(file, RangeCommand::Discard, [offset, len])
}

/// Whether the kernel or the device does not support the request at all, so that a retry is useless.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EINVAL | libc::ENODEV)
    )
}

/// The sysfs directory of the block device with this number.
pub(crate) fn sysfs(rdev: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(rdev), libc::minor(rdev)))
}

/// Whether the kernel refuses all writes to the device. Some kernels let it be opened for writing nevertheless.
pub(crate) fn is_read_only(rdev: u64) -> bool {
    fs::read_to_string(sysfs(rdev).join("ro")).is_ok_and(|flag| flag.trim() == "1")
}

/// Whether the device is host-managed: it has zones of its own, and a write elsewhere fails.
pub(crate) fn is_host_managed(rdev: u64) -> bool {
    // A partition has no queue of its own; that of its disk is one level up.
    ["queue/zoned", "../queue/zoned"].iter().any(|tail| {
        fs::read_to_string(sysfs(rdev).join(tail)).is_ok_and(|model| model.trim() == "host-managed")
    })
}

/// Zone size of a zoned drive in bytes; 0 if the kernel does not say.
pub(crate) fn zone_bytes(rdev: u64) -> u64 {
    let text = fs::read_to_string(sysfs(rdev).join("queue/chunk_sectors")).unwrap_or_default();
    text.trim().parse::<u64>().unwrap_or(0).saturating_mul(512)
}
