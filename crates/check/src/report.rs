//! The report of a check, for people and for tests.
//!
//! Each finding has a *kind*, a stable name that tests and scripts compare. Location, expected and found are
//! text.

use std::fmt;
use terrane_wire::Corrupt;

/// Findings kept. Further ones are only counted, so that a report stays small whatever a device holds.
pub const FINDINGS_MAX: usize = 1000;

/// One violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that it violates: see [`kind`].
    pub kind: &'static str,
    pub place: String,
    pub expected: String,
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} should be {}, found {}", self.place, self.kind, self.expected, self.found)
    }
}

/// The names of findings. They do not change from version to version.
pub mod kind {
    /// A block, or a structure in it, that cannot be read or parsed.
    pub const UNREADABLE: &str = "readable";
    /// One copy of a block is damaged.
    pub const COPY: &str = "copy of a block";
    /// Both copies of a metadata block lie in one zone, or there is only one.
    pub const COPIES: &str = "copies of metadata";
    pub const LEVEL: &str = "level";
    pub const FILL: &str = "fill count";
    pub const BLOCK_KIND: &str = "kind of block";
    pub const BLOCK_SIZE: &str = "size of block";
    pub const BLOCK_COUNT: &str = "block count";
    pub const BIRTH: &str = "birth group";
    pub const USED: &str = "stored bytes of the object";
    /// A block is reached by two paths, or two blocks share bytes.
    pub const SHARED: &str = "block reached";
    /// Space by the zone tables differs from that of the reachable blocks.
    pub const LIVE: &str = "live bytes of the zone";
    pub const TABLES: &str = "zone tables";
    pub const SUSPECT: &str = "zone trusted";
    pub const ZONE_DIRECTORY: &str = "zone directory";
    /// A directory entry is live, but nothing reaches its block.
    pub const LEAKED: &str = "block in the zone directory";
    /// A reachable block has no directory entry.
    pub const UNLISTED: &str = "directory entry of a block";
    pub const OWNER: &str = "owner of a block";
    pub const CRC: &str = "CRC of a stored block";
    /// Space of the blocks by the header of the object set: all, records before compression, and after.
    pub const ACCOUNT: &str = "bytes by the header of the object set";
    pub const OBJECT_COUNT: &str = "object count";
    pub const HIGH_WATER: &str = "high water of object numbers";
    pub const OBJECT_KIND: &str = "kind of object";
    pub const ATTRIBUTES: &str = "attributes";
    /// Attributes in a spill block: they cannot be read, or should be in the bonus.
    pub const SPILL: &str = "spill block";
    pub const XATTRS: &str = "extended attributes";
    /// The directory that holds an inode's larger extended attributes.
    pub const HIDDEN: &str = "hidden directory";
    pub const ZAP: &str = "ZAP";
    /// A name of an object that does not exist, or has another type.
    pub const ENTRY: &str = "directory entry";
    pub const LINKS: &str = "link count";
    pub const SIZE: &str = "size";
    pub const PARENT: &str = "parent directory";
    pub const ORPHAN: &str = "name of the object";
    pub const LOOP: &str = "way to the root directory";
    pub const DELETE_QUEUE: &str = "delete queue";
    /// The space that a file has reserved.
    pub const RESERVED: &str = "reservation";
    pub const ROOT_DATASET: &str = "root data set";
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    /// Of `total`: bytes in the phases that read blocks, objects in the last one.
    pub done: u64,
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Blocks,
    Zones,
    Names,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stored copies of blocks that are reachable.
    pub blocks: u64,
    /// The space that they take on devices, in bytes.
    pub bytes: u64,
    pub objects: u64,
    pub directories: u64,
    pub files: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// All of them.
    pub findings_count: u64,
    /// Suspect zones that agree with the tables by now: the pool frees them when it examines them again.
    pub explained_zones: u64,
    pub counts: Counts,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.findings_count == 0
    }

    /// Whether something of this kind was found.
    pub fn has(&self, kind: &str) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }

    pub(crate) fn add(
        &mut self,
        kind: &'static str,
        place: impl fmt::Display,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) {
        self.findings_count = self.findings_count.saturating_add(1);
        if self.findings.len() < FINDINGS_MAX {
            let (place, expected, found) = (place.to_string(), expected.to_string(), found.to_string());
            self.findings.push(Finding { kind, place, expected, found });
        }
    }

    pub(crate) fn expect<T: PartialEq + fmt::Display>(
        &mut self,
        kind: &'static str,
        place: impl fmt::Display,
        expected: T,
        found: T,
    ) {
        if expected != found {
            self.add(kind, place, expected, found);
        }
    }

    pub(crate) fn damage(&mut self, kind: &'static str, corrupt: &Corrupt) {
        self.add(kind, format_args!("{}, {}", corrupt.at, corrupt.what), &corrupt.expected, &corrupt.found);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let more = self.findings_count.saturating_sub(self.findings.len() as u64);
        if more > 0 {
            writeln!(f, "and {more} more")?;
        }
        let Counts { blocks, bytes, objects, directories, files } = self.counts;
        write!(
            f,
            "{} findings; {blocks} blocks of {bytes} bytes, {objects} objects, {directories} directories, {files} files",
            self.findings_count
        )
    }
}
