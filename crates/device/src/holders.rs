//! The holder of a device, in words.
//!
//! "Busy" is no help. When a lock is refused, the kernel knows the holder and shows it in `/proc` and `/sys`. So the
//! refusal can name the mount point, the command or the loop device. All of that is best effort and only for
//! messages. What keeps two pools apart is the lock and `O_EXCL` in [`backing`](crate::backing).
//!
//! The parsers take the text as an argument, so that they can be tested without such a device.

use crate::block::sysfs;
use crate::mount_table::unescape_field;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A device number as the kernel prints it in `mountinfo`: decimal, with a colon.
fn dev_name(rdev: u64) -> String {
    format!("{}:{}", libc::major(rdev), libc::minor(rdev))
}

/// The mount point of the block device `dev` (as `major:minor`), if `mountinfo` has one.
fn mount_point(mountinfo: &str, dev: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let found = fields.next()?;
        let point = fields.nth(1)?;
        (found == dev).then(|| unescape(point))
    })
}

/// A mount whose source is this path. File systems with device numbers of their own (btrfs) are found only so.
///
/// The source of a FUSE mount is a text chosen by the user who mounted it; it holds no device. A pool mounted by its
/// device shows that device as its source. So a successor server would otherwise find its own mount, and refuse the
/// device. A FUSE server that has the device open holds it by `O_EXCL` or a lock. `fuseblk` is another type: there
/// the kernel holds the device.
fn mount_of_source(mountinfo: &str, source: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next()?;
        if kind == "fuse" || kind.starts_with("fuse.") {
            return None;
        }
        let found = unescape(after.split(' ').nth(1)?);
        (found == source).then(|| before.split(' ').nth(4).map(unescape)).flatten()
    })
}

fn unescape(field: &str) -> String {
    String::from_utf8_lossy(&unescape_field(field.as_bytes())).into_owned()
}

/// The kernel's table. A path in it may be of any bytes.
fn table(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The process that holds a `flock` on the inode, by the text of `/proc/locks`.
fn lock_holder(locks: &str, dev: u64, ino: u64) -> Option<u32> {
    // The file system's device here is not always the one `stat` gives (btrfs), so an equal inode number alone is the
    // second choice.
    let exact = format!("{:02x}:{:02x}:{ino}", libc::major(dev), libc::minor(dev));
    let same_inode = format!(":{ino}");
    let pid_of = |matches: &dyn Fn(&str) -> bool| {
        locks.lines().find_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            // A waiter's line has "->" before its type; it holds nothing.
            if fields.next()? != "FLOCK" {
                return None;
            }
            let pid = fields.nth(2)?.parse::<u32>().ok()?;
            matches(fields.next()?).then_some(pid)
        })
    };
    pid_of(&|inode| inode == exact).or_else(|| pid_of(&|inode| inode.ends_with(&same_inode)))
}

/// A process in words: its command and its number.
fn process_text(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("{} (process {pid})", comm.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

/// The holder of the lock on a file that [`File::try_lock`](std::fs::File::try_lock) refused.
pub(crate) fn lock_holder_text(dev: u64, ino: u64) -> String {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    match lock_holder(&locks, dev, ino) {
        Some(pid) if pid == std::process::id() => format!("locked by this process ({})", process_text(pid)),
        Some(pid) => format!("locked by {}", process_text(pid)),
        None => "locked by a process that is not visible here".into(),
    }
}

/// The user of a block device: a mount, swap, or a device built on it. Its partitions are checked too.
pub(crate) fn block_user_text(rdev: u64, path: &Path) -> Option<String> {
    let mounts = table("/proc/self/mountinfo");
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounted =
        mount_point(&mounts, &dev_name(rdev)).or_else(|| mount_of_source(&mounts, &path.to_string_lossy()));
    if let Some(point) = mounted {
        return Some(format!("mounted on {point}"));
    }
    let swaps = table("/proc/swaps");
    if swaps.lines().skip(1).any(|line| {
        let file = unescape(line.split_whitespace().next().unwrap_or_default());
        fs::metadata(file).is_ok_and(|m| m.rdev() == rdev)
    }) {
        return Some("in use as swap".into());
    }
    let dir = sysfs(rdev);
    if let Some(holder) = names_in(&dir.join("holders")).into_iter().next() {
        return Some(format!("part of {holder}"));
    }
    for name in names_in(&dir) {
        let part = dir.join(&name);
        if part.join("partition").exists() {
            let dev = fs::read_to_string(part.join("dev")).unwrap_or_default();
            if let Some(point) = mount_point(&mounts, dev.trim()) {
                return Some(format!("its partition {name} mounted on {point}"));
            }
            if let Some(holder) = names_in(&part.join("holders")).into_iter().next() {
                return Some(format!("its partition {name} part of {holder}"));
            }
        }
    }
    None
}

/// The file that a loop device shows.
pub(crate) struct LoopBacking {
    /// The file's present path, by the kernel.
    pub path: PathBuf,
    /// The device shows the whole file. A partition or a section does not: other devices may use the rest.
    pub is_whole: bool,
}

/// The file below a loop device, or below a partition of one.
pub(crate) fn loop_backing(rdev: u64) -> Option<LoopBacking> {
    let dir = sysfs(rdev);
    let is_partition = dir.join("partition").exists();
    let dir = if is_partition { dir.join("../loop") } else { dir.join("loop") };
    let name = fs::read(dir.join("backing_file")).ok()?;
    let path = PathBuf::from(OsStr::from_bytes(name.strip_suffix(b"\n").unwrap_or(&name)));
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let (offset, limit) = (number("offset").unwrap_or(0), number("sizelimit").unwrap_or(0));
    Some(LoopBacking { path, is_whole: !is_partition && offset == 0 && limit == 0 })
}

/// The loop device that a regular file backs, if any.
pub(crate) fn loop_user_text(dev: u64, ino: u64) -> Option<String> {
    names_in(Path::new("/sys/block")).into_iter().filter(|name| name.starts_with("loop")).find_map(|name| {
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
        let meta = fs::metadata(backing.trim_end_matches('\n')).ok()?;
        (meta.dev() == dev && meta.ino() == ino).then(|| format!("the backing file of /dev/{name}"))
    })
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
36 22 8:17 /sub /mnt/my\\040disk rw,noatime - xfs /dev/sdb1 rw\n\
40 22 0:45 / /mnt/b rw - btrfs /dev/sdc rw,space_cache=v2\n\
41 22 0:46 / /mnt/t rw - fuse.terrane /dev/sdd rw,user_id=0\n\
42 22 0:47 / /mnt/u rw - fuse /dev/sdd rw,user_id=1000\n\
43 22 8:64 / /mnt/n rw - fuseblk /dev/sde rw,user_id=0\n";

    #[test]
    fn a_mount_point_is_found_by_device_number_or_source() {
        assert_eq!(mount_point(MOUNTS, "8:17").as_deref(), Some("/mnt/my disk"));
        assert_eq!(mount_point(MOUNTS, "8:1"), None);
        assert_eq!(mount_of_source(MOUNTS, "/dev/sdc").as_deref(), Some("/mnt/b"));
        assert_eq!(mount_of_source(MOUNTS, "/dev/sd"), None);
        assert_eq!(mount_of_source(MOUNTS, "/dev/sdd"), None, "the source of a FUSE mount is any word");
        assert_eq!(mount_of_source(MOUNTS, "/dev/sde").as_deref(), Some("/mnt/n"));
        assert_eq!(mount_point("garbage\n\n - -", "8:17"), None);
    }

    #[test]
    fn a_lock_holder_is_found_by_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 77 fe:01:555 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 1234 fe:01:555 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 fe:01:555 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  4321 00:2a:666 0 EOF\n";
        assert_eq!(lock_holder(locks, libc::makedev(0xfe, 1), 555), Some(1234));
        assert_eq!(lock_holder(locks, libc::makedev(8, 1), 666), Some(4321));
        assert_eq!(lock_holder(locks, libc::makedev(0xfe, 1), 55), None);
        assert_eq!(lock_holder("nonsense", 0, 0), None);
    }
}
