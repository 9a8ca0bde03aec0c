//! The mounts of this file system type, as the kernel lists them in `/proc/self/mountinfo`.
//!
//! No request goes to any mount: one of them may have no server that could answer.

use super::SUBTYPE;
use crate::process;
use rustix::event::PollFlags;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use terrane_device::unescape_field;

/// One mount that shows a whole file system of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's id of this mount alone.
    pub id: u64,
    /// The kernel's number of the file system, `major:minor`; mounts that share it share one connection.
    pub dev: String,
    /// The mount point.
    pub dir: PathBuf,
    /// The source, as [`MountOptions::source`](super::MountOptions::source) set it.
    pub source: OsString,
    /// The options of this mount (`rw,nosuid,relatime`).
    pub options: String,
    /// The options of the file system (`rw,user_id=0,...`), common to all its mounts.
    pub super_options: String,
}

impl MountEntry {
    /// Whether this mount or its file system refuses changes.
    pub fn is_read_only(&self) -> bool {
        let says = |words: &str| words.split(',').any(|word| word == "ro");
        says(&self.options) || says(&self.super_options)
    }

    /// Whether the file system has this option.
    pub fn has(&self, word: &str) -> bool {
        self.super_options.split(',').any(|has| has == word)
    }

    /// The user that mounted it.
    pub fn user_id(&self) -> Option<u32> {
        self.super_options.split(',').find_map(|word| word.strip_prefix("user_id=")?.parse().ok())
    }

    /// The root of this mount, opened with O_PATH. While it is open the mount cannot be unmounted.
    ///
    /// # Errors
    /// If its path leads elsewhere: another file system is mounted over it or above it, or it was moved.
    pub fn open_root(&self) -> io::Result<File> {
        let root = open_path(&self.dir)?;
        if id_of(&root)? == self.id {
            return Ok(root);
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "the path of the mount leads elsewhere"))
    }
}

/// The topmost mount at a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopMount {
    /// A file system of ours, or a part of one.
    Ours(MountEntry),
    /// Another file system: its type and source.
    Other(String),
    /// The directory is no mount point.
    NotAMountPoint,
}

/// Sends no request to the mount itself: its server may not answer.
pub fn top_mount_at(dir: &Path) -> io::Result<TopMount> {
    let id = id_of(&open_path(dir)?)?;
    let table = std::fs::read("/proc/self/mountinfo")?;
    if let Some((_, row)) = rows(&table).find(|(_, row)| row.id == id && row.dir == dir) {
        return Ok(TopMount::Ours(row));
    }
    Ok(lines(&table)
        .find_map(|line| other_at(line, id, dir))
        .map_or(TopMount::NotAMountPoint, TopMount::Other))
}

/// The directory of this mount of ours; `None`: it is not in the table.
pub(super) fn dir_of(id: u64) -> Option<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    rows(&table).find(|(_, row)| row.id == id).map(|(_, row)| row.dir)
}

/// The type and source of the mount with this id, if it is at `dir`.
fn other_at(line: &[u8], id: u64, dir: &Path) -> Option<String> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text =
        |at: usize| fields.get(at).map(|field| String::from_utf8_lossy(&unescape_field(field)).into_owned());
    let is_it =
        text(0)?.parse() == Ok(id) && Path::new(&OsString::from_vec(unescape_field(fields.get(4)?))) == dir;
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    if is_it { Some(format!("{} ({})", text(dash + 1)?, text(dash + 2)?)) } else { None }
}

/// Opens a path with O_PATH, which sends no request to any file system.
fn open_path(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)
}

/// The kernel's id of the mount that an open file lies on.
fn id_of(file: &File) -> io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "mnt_id missing in fdinfo"))
}

/// A process of another mount namespace in which the file system is visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherNamespace {
    /// A process of the namespace, by its id in our process namespace.
    pub pid: u32,
    /// Name of that process; empty if it has ended.
    pub command: String,
    /// The mount point there.
    pub dir: PathBuf,
}

/// One process of each other mount namespace in which the file system `dev` (`major:minor`) is visible.
/// Without rights over other users' processes some namespaces are missed, or listed more than once.
pub fn other_namespaces(dev: &str) -> io::Result<Vec<OtherNamespace>> {
    let own = std::fs::read_link("/proc/self/ns/mnt")?;
    let mut namespaces = Vec::new();
    let mut found = Vec::new();
    let mut processes: Vec<u32> = std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    processes.sort_unstable();
    for pid in processes {
        let of = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        let namespace = std::fs::read_link(of("ns/mnt")).ok();
        if let Some(namespace) = namespace {
            if namespace == own || namespaces.contains(&namespace) {
                continue;
            }
            namespaces.push(namespace);
        }
        // A process that has ended meanwhile has no table.
        let table = std::fs::read(of("mountinfo")).unwrap_or_default();
        if let Some((_, row)) = rows(&table).find(|(_, row)| row.dev == dev) {
            let command = std::fs::read_to_string(of("comm")).unwrap_or_default();
            found.push(OtherNamespace { pid, command: command.trim_end().to_owned(), dir: row.dir });
        }
    }
    Ok(found)
}

/// All of our mounts, in the order in which they were mounted. Where several are at one path, the last is on
/// top.
pub fn list_mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Watches the table: a mount comes, goes, or gets other flags.
#[derive(Debug)]
pub struct TableWatch {
    table: File,
}

impl TableWatch {
    /// Opens the kernel's table. Changes count from here on.
    pub fn new() -> io::Result<TableWatch> {
        let watch = TableWatch { table: File::open("/proc/self/mountinfo")? };
        Ok(watch)
    }

    /// Whether the table changed since the last call, or since this was made. Does not block.
    pub fn has_changed(&self) -> bool {
        // A file of `/proc` reports a change as urgent data.
        process::pending(&self.table, PollFlags::PRI).intersects(PollFlags::PRI | PollFlags::ERR)
    }
}

/// The number of a file system as the table prints it, from the `st_dev` of `stat`.
pub fn dev_number(dev: u64) -> String {
    format!("{}:{}", libc::major(dev), libc::minor(dev))
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    rows(table).filter(|(is_whole, _)| *is_whole).map(|(_, row)| row).collect()
}

/// Our mounts, each with whether it shows the whole file system.
fn rows(table: &[u8]) -> impl Iterator<Item = (bool, MountEntry)> {
    lines(table).filter_map(row)
}

fn lines(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table.split(|byte| *byte == b'\n')
}

fn row(line: &[u8]) -> Option<(bool, MountEntry)> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text = |at: usize| fields.get(at).map(|field| String::from_utf8_lossy(field).into_owned());
    // Any number of optional fields end with a dash.
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let ours = text(dash + 1)? == format!("fuse.{SUBTYPE}");
    ours.then_some(())?;
    let path = |at: usize| fields.get(at).map(|field| OsString::from_vec(unescape_field(field)));
    let row = MountEntry {
        id: text(0)?.parse().ok()?,
        dev: text(2)?,
        dir: PathBuf::from(path(4)?),
        options: text(5)?,
        source: path(dash + 2)?,
        super_options: text(dash + 3)?,
    };
    Some((text(3)? == "/", row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_stat_are_those_of_the_table() {
        assert_eq!((dev_number(0x35), dev_number(0x801)), ("0:53".to_owned(), "8:1".to_owned()));
        // Any test process can find the file system of `/proc` in its own table.
        let dev = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata("/proc").unwrap());
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let row = table.lines().find(|line| line.contains(" /proc ")).unwrap();
        assert_eq!(row.split(' ').nth(2), Some(dev_number(dev).as_str()));
    }

    #[test]
    fn the_top_mount_is_found_by_mount_id() {
        assert!(
            matches!(top_mount_at(Path::new("/proc")).unwrap(), TopMount::Other(what) if what.starts_with("proc ("))
        );
        assert_eq!(top_mount_at(Path::new("/proc/self/fd")).unwrap(), TopMount::NotAMountPoint);
        assert!(top_mount_at(Path::new("/nowhere/at/all")).is_err());
        let line = br"41 22 0:53 / /mnt/a\040b rw shared:5 - tmpfs none\040x rw";
        assert_eq!(other_at(line, 41, Path::new("/mnt/a b")).as_deref(), Some("tmpfs (none x)"));
        assert_eq!(other_at(line, 42, Path::new("/mnt/a b")), None);
        let mount = MountEntry {
            id: u64::MAX,
            dev: "0:0".into(),
            dir: "/proc".into(),
            source: "x".into(),
            options: String::new(),
            super_options: String::new(),
        };
        assert_eq!(mount.open_root().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn only_whole_file_systems_of_ours_are_listed() {
        let table = br"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:53 / /mnt/a\040b rw,nosuid shared:5 master:1 - fuse.terrane tank\040x rw,user_id=7,group_id=0
41 22 0:53 /sub /mnt/c rw - fuse.terrane tank rw,user_id=7
42 22 0:53 / /mnt/d ro,noatime - fuse.terrane tank rw,user_id=7
43 22 0:54 / /mnt/e rw - fuse.sshfs tank rw
garbage - fuse.terrane
";
        let rows = parse(table);
        let dirs: Vec<&str> = rows.iter().filter_map(|row| row.dir.to_str()).collect();
        assert_eq!(dirs, ["/mnt/a b", "/mnt/d"]);
        let shown = |row: &MountEntry| (row.dev.clone(), row.is_read_only(), row.user_id());
        assert_eq!(
            rows.iter().map(shown).collect::<Vec<_>>(),
            [("0:53".into(), false, Some(7)), ("0:53".into(), true, Some(7))]
        );
        assert_eq!(rows.first().map(|row| row.source.clone()), Some("tank x".into()));
        let all: Vec<PathBuf> = super::rows(table).map(|(_, row)| row.dir).collect();
        assert_eq!(all, ["/mnt/a b", "/mnt/c", "/mnt/d"].map(PathBuf::from));
    }
}
