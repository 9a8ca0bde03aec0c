//! Kernel queries and commands for a file or block device.
//!
//! All `unsafe` of the conventional backends is in this module: ioctls, `fallocate` and `posix_fadvise`. The rest
//! goes through `std`.

#![expect(unsafe_code, reason = "ioctl and fallocate have no safe face in std")]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

// From Linux's <linux/fs.h>. The numbers are the same on every architecture Rust's standard library supports for
// Linux, except those (mips, powerpc, sparc) whose ioctl encoding differs.
const BLKDISCARD: libc::c_ulong = 0x1277;
const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKPBSZGET: libc::c_ulong = 0x127b;

/// The larger of a block device's logical and physical sector size, in bytes.
pub(crate) fn sector_bytes(file: &File) -> io::Result<u32> {
    let query = |request: libc::c_ulong| -> io::Result<u32> {
        let mut answer: libc::c_uint = 0;
        // SAFETY: the descriptor is open as long as `file` is borrowed; both requests write one int of 32 bits to the
        // address given, which is that of a live local variable of that size.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), request as _, &raw mut answer) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
    };
    Ok(query(BLKSSZGET)?.max(query(BLKPBSZGET)?))
}

/// Frees a range of a sparse file, or of a block device that can do it cheaply. The range then reads as zeros.
pub(crate) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let too_far = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = libc::off64_t::try_from(offset).map_err(too_far)?;
    let len = libc::off64_t::try_from(len).map_err(too_far)?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    loop {
        // SAFETY: takes a descriptor that is open as long as `file` is borrowed, and three integers; no memory.
        let rc = unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset, len) };
        if rc == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Drops clean cached data of a file or device from the kernel's memory. A failure is harmless.
pub(crate) fn drop_page_cache(file: &File) {
    // SAFETY: takes a descriptor that is open as long as `file` is borrowed, and three integers; no memory.
    let rc = unsafe { libc::posix_fadvise64(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if rc != 0 {
        log::debug!("posix_fadvise failed: {}", io::Error::from_raw_os_error(rc));
    }
}

/// Discards a range of a block device. What it reads as afterwards is undefined.
pub(crate) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range: [u64; 2] = [offset, len];
    // SAFETY: the descriptor is open as long as `file` is borrowed; the request reads two 64-bit integers from the
    // address given, which is that of a live local array of exactly those.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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
