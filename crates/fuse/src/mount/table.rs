//! The mounts of this type that stand, as the kernel lists them in `/proc/self/mountinfo`.
//!
//! Nothing is asked of any mount: one of them may have no server that could answer.

use super::{SUBTYPE, syscalls};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One place where a file system of ours can be seen whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedAt {
    /// The kernel's number of the file system, `major:minor`; mounts that share it share one connection.
    pub dev: String,
    pub dir: PathBuf,
    pub source: OsString,
    /// Those of this mount (`rw,nosuid,relatime`), then those of the file system (`rw,user_id=0,...`).
    pub options: String,
    pub super_options: String,
}

impl MountedAt {
    pub fn is_read_only(&self) -> bool {
        let says = |words: &str| words.split(',').any(|word| word == "ro");
        says(&self.options) || says(&self.super_options)
    }

    /// A word of the file system.
    pub fn has(&self, word: &str) -> bool {
        self.super_options.split(',').any(|has| has == word)
    }

    /// Who mounted it.
    pub fn user_id(&self) -> Option<u32> {
        self.super_options.split(',').find_map(|word| word.strip_prefix("user_id=")?.parse().ok())
    }
}

/// All of them, in the order in which they were mounted. Where several stand at one place, the last is on top.
pub fn mounted() -> io::Result<Vec<MountedAt>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Tells when the table changes: a mount comes, goes, or gets other flags.
#[derive(Debug)]
pub struct TableWatch {
    table: File,
}

impl TableWatch {
    pub fn new() -> io::Result<TableWatch> {
        let watch = TableWatch { table: File::open("/proc/self/mountinfo")? };
        Ok(watch)
    }

    /// Since it was last asked, or made. Waits for nothing.
    pub fn has_changed(&self) -> bool {
        syscalls::is_exceptional(&self.table)
    }
}

/// The number of a file system as the table has it, from that which `stat` tells.
pub fn number_of(dev: u64) -> String {
    format!("{}:{}", libc::major(dev), libc::minor(dev))
}

/// Whether a file system of ours is mounted there, or a part of one.
pub fn is_mount_of_ours(dir: &Path) -> io::Result<bool> {
    Ok(rows(&std::fs::read("/proc/self/mountinfo")?).any(|(_, row)| row.dir == dir))
}

fn parse(table: &[u8]) -> Vec<MountedAt> {
    rows(table).filter(|(is_whole, _)| *is_whole).map(|(_, row)| row).collect()
}

/// Those of ours, and whether they show all of their file system.
fn rows(table: &[u8]) -> impl Iterator<Item = (bool, MountedAt)> {
    table.split(|byte| *byte == b'\n').filter_map(row)
}

fn row(line: &[u8]) -> Option<(bool, MountedAt)> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text = |at: usize| fields.get(at).map(|field| String::from_utf8_lossy(field).into_owned());
    // Any number of optional fields end with a dash.
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let ours = text(dash + 1)? == format!("fuse.{SUBTYPE}");
    ours.then_some(())?;
    let path = |at: usize| fields.get(at).map(|field| OsString::from_vec(unescaped(field)));
    let row = MountedAt {
        dev: text(2)?,
        dir: PathBuf::from(path(4)?),
        options: text(5)?,
        source: path(dash + 2)?,
        super_options: text(dash + 3)?,
    };
    Some((text(3)? == "/", row))
}

/// The kernel writes blanks and backslashes of a path as a backslash and three octal digits.
pub(super) fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = field;
    while let Some((byte, tail)) = rest.split_first() {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *byte == b'\\') {
            Some(decoded) => {
                out.push(decoded);
                rest = tail.get(3..).unwrap_or(&[]);
            }
            None => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_mount_table_are_read_as_they_are() {
        assert_eq!(unescaped(br"/mnt/a\040b\134c"), br"/mnt/a b\c");
        assert_eq!(unescaped(br"/mnt/\04"), br"/mnt/\04");
    }

    #[test]
    fn numbers_of_stat_are_those_of_the_table() {
        assert_eq!((number_of(0x35), number_of(0x801)), ("0:53".to_owned(), "8:1".to_owned()));
        // A program finds the file system that its own root lies on.
        let dev = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata("/proc").unwrap());
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let row = table.lines().find(|line| line.contains(" /proc ")).unwrap();
        assert_eq!(row.split(' ').nth(2), Some(number_of(dev).as_str()));
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
        let shown = |row: &MountedAt| (row.dev.clone(), row.is_read_only(), row.user_id());
        assert_eq!(
            rows.iter().map(shown).collect::<Vec<_>>(),
            [("0:53".into(), false, Some(7)), ("0:53".into(), true, Some(7))]
        );
        assert_eq!(rows.first().map(|row| row.source.clone()), Some("tank x".into()));
        let all: Vec<PathBuf> = super::rows(table).map(|(_, row)| row.dir).collect();
        assert_eq!(all, ["/mnt/a b", "/mnt/c", "/mnt/d"].map(PathBuf::from));
    }
}
