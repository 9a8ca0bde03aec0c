//! The report of a check, for people and for tests.
//!
//! Each finding has a *kind*, a stable name that tests and scripts compare. Location, expected and found are
//! text.

use std::collections::BTreeMap;
use std::fmt;
use terrane_format::Feature;
use terrane_wire::Corrupt;

/// Findings kept. Further ones are only counted, so that a report stays small whatever a device holds.
pub const FINDINGS_MAX: usize = 1000;

/// One violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that it violates: see [`kind`].
    pub kind: &'static str,
    /// The block, object, entry or zone, in words.
    pub location: String,
    /// What the rule demands, in words.
    pub expected: String,
    /// What was found instead, in words.
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} should be {}, found {}", self.location, self.kind, self.expected, self.found)
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
    /// A block, or a tree's root, is of another level than its place in the tree demands.
    pub const LEVEL: &str = "level";
    /// The fill count of a pointer differs from the blocks or dnodes below it.
    pub const FILL: &str = "fill count";
    /// A pointer names another kind than its object has.
    pub const BLOCK_KIND: &str = "kind of block";
    /// A block is larger than its object allows, or an indirect block is of a wrong size.
    pub const BLOCK_SIZE: &str = "size of block";
    /// An object's block count is below its last block, or above what its size allows.
    pub const BLOCK_COUNT: &str = "block count";
    /// A pointer is younger than its parent, or than the last committed txg.
    pub const BIRTH: &str = "birth group";
    /// The stored bytes of an object's blocks differ from those in its dnode.
    pub const USED: &str = "stored bytes of the object";
    /// A block is reached by two paths, or two blocks share bytes.
    pub const SHARED: &str = "block reached";
    /// An entry of a dead list is missing or should not be there, or a sum is wrong.
    pub const DEAD_LIST: &str = "dead list";
    /// The tree of data sets cannot be read, contradicts itself, or names an object twice.
    pub const DATASETS: &str = "data sets";
    /// Space by the zone tables differs from that of the reachable blocks.
    pub const LIVE: &str = "live bytes of the zone";
    /// The zone tables contradict themselves.
    pub const TABLES: &str = "zone tables";
    /// A suspect zone that the tables do not explain.
    pub const SUSPECT: &str = "zone trusted";
    /// A zone's directory cannot be read, or the tables do not know what became of an entry.
    pub const ZONE_DIRECTORY: &str = "zone directory";
    /// A directory entry is live, but nothing reaches its block.
    pub const LEAKED: &str = "block in the zone directory";
    /// A reachable block has no directory entry.
    pub const UNLISTED: &str = "directory entry of a block";
    /// A directory entry names another owner than the tree that reaches the block.
    pub const OWNER: &str = "owner of a block";
    /// The stored bytes differ from the CRC in the zone's directory.
    pub const CRC: &str = "CRC of a stored block";
    /// Space of the blocks by the header of the object set: all, records before compression, and after.
    pub const ACCOUNT: &str = "bytes by the header of the object set";
    /// What a user, a group or a project has, by the tables in the header of the object set.
    pub const OWNERS: &str = "count of an owner";
    /// The number of objects differs from that in the header of the object set.
    pub const OBJECT_COUNT: &str = "object count";
    /// Slots at or above the header's `high_water` are in use.
    pub const HIGH_WATER: &str = "high water of object numbers";
    /// The kind of an object does not fit the file type in its mode.
    pub const OBJECT_KIND: &str = "kind of object";
    /// The fixed attributes of an inode, or the table of their layouts, are invalid.
    pub const ATTRIBUTES: &str = "attributes";
    /// Attributes in a spill block: they cannot be read, or should be in the bonus.
    pub const SPILL: &str = "spill block";
    /// Extended attributes are invalid, misplaced or stored twice.
    pub const XATTRS: &str = "extended attributes";
    /// The directory that holds an inode's larger extended attributes.
    pub const HIDDEN: &str = "hidden directory";
    /// A ZAP cannot be read, or its structure is invalid.
    pub const ZAP: &str = "ZAP";
    /// A name of an object that does not exist, or has another type.
    pub const ENTRY: &str = "directory entry";
    /// The link count of an inode differs from its names and subdirectories.
    pub const LINKS: &str = "link count";
    /// The size attribute of an inode differs from its content, or is beyond its limit.
    pub const SIZE: &str = "size";
    /// The parent of a directory or of an extended attribute is not what names it.
    pub const PARENT: &str = "parent directory";
    /// An object without a name.
    pub const ORPHAN: &str = "name of the object";
    /// A directory that is above itself.
    pub const LOOP: &str = "way to the root directory";
    /// An entry of the delete queue has a wrong name, or is no inode without links.
    pub const DELETE_QUEUE: &str = "delete queue";
    /// The space that a file has reserved.
    pub const RESERVED: &str = "reservation";
    /// Something uses a feature that is not active, or the stored number of its uses is wrong.
    pub const FEATURE: &str = "feature";
    /// The root data set cannot be opened.
    pub const ROOT_DATASET: &str = "root data set";
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What the check does now.
    pub stage: Stage,
    /// Of `total`: bytes in the stages that read blocks, objects in the last one.
    pub done: u64,
    /// The end of `done` in this stage.
    pub total: u64,
}

/// The stages of a check, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Walks the trees, and verifies every copy of their blocks.
    Blocks,
    /// Reads the zones' directories and compares them with the trees.
    Zones,
    /// Checks names, links and parents.
    Names,
}

/// Sizes of what was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stored copies of blocks that are reachable.
    pub blocks: u64,
    /// The space that they take on devices, in bytes.
    pub bytes: u64,
    /// Objects of all sets.
    pub objects: u64,
    /// Directories, without hidden ones.
    pub directories: u64,
    /// Regular files, without extended attributes in hidden directories.
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
    /// Sizes of what was checked.
    pub counts: Counts,
    /// Uses of each feature. They are all uses only if the report is clean.
    pub uses: BTreeMap<Feature, u64>,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings_count == 0
    }

    /// Whether something of this kind was found.
    pub fn has(&self, kind: &str) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }

    pub(crate) fn add_use(&mut self, feature: Feature) {
        let uses = self.uses.entry(feature).or_default();
        *uses = uses.saturating_add(1);
    }

    pub(crate) fn add(
        &mut self,
        kind: &'static str,
        location: impl fmt::Display,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) {
        self.findings_count = self.findings_count.saturating_add(1);
        if self.findings.len() < FINDINGS_MAX {
            let (location, expected, found) = (location.to_string(), expected.to_string(), found.to_string());
            self.findings.push(Finding { kind, location, expected, found });
        }
    }

    pub(crate) fn expect<T: PartialEq + fmt::Display>(
        &mut self,
        kind: &'static str,
        location: impl fmt::Display,
        expected: T,
        found: T,
    ) {
        if expected != found {
            self.add(kind, location, expected, found);
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
