//! Space accounting of an object set: updated by every sync, and stored in the set's header.
//!
//! Each block that enters or leaves a tree passes here, in the sync that does it. So the sums are always known,
//! and `check` compares them with a walk. Subtrees in the free queue count until they are freed. The header's
//! own block is not included, since it holds the sums.
//!
//! *Records* are level-0 blocks of files: what users wrote. The compression ratio is that of records alone.
//! Metadata is compressed too, but its size in other file systems is unknown.

use crate::kind::ObjectKind;
use std::ops::AddAssign;
use terrane_format::BlockPtr;
use terrane_wire::Corrupt;

/// Sums over the blocks of a set, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Device space of all blocks: records and metadata, all copies, each in whole granules.
    pub used_bytes: u64,
    /// Logical size of records. A file's last record counts as stored; holes do not count.
    pub logical_bytes: u64,
    /// Compressed size of records, one copy; embedded ones included.
    pub physical_bytes: u64,
}

impl Account {
    /// Compression ratio of records; `None`: there are none.
    pub fn ratio(&self) -> Option<f64> {
        (self.physical_bytes > 0).then(|| self.logical_bytes as f64 / self.physical_bytes as f64)
    }

    /// Counts a block. `is_record`: it is of level 0 of a file, and not a spill.
    pub fn add(&mut self, ptr: &BlockPtr, is_record: bool) {
        let stored = match ptr {
            BlockPtr::Hole(_) => return,
            BlockPtr::Embedded(embedded) => embedded.payload.len() as u64,
            BlockPtr::Normal(normal) => u64::from(normal.psize),
        };
        // Pointers may contain wrong sizes.
        self.used_bytes = self.used_bytes.saturating_add(ptr.allocated_bytes());
        if is_record {
            self.logical_bytes = self.logical_bytes.saturating_add(u64::from(ptr.lsize()));
            self.physical_bytes = self.physical_bytes.saturating_add(stored);
        }
    }

    /// Counts a block of an object's tree, or of a subtree that was detached.
    pub fn add_of_tree(&mut self, ptr: &BlockPtr) {
        let is_file = ObjectKind::from_id(ptr.kind()).is_some_and(|kind| !kind.is_metadata());
        self.add(ptr, is_file && ptr.level() == 0);
    }

    /// The difference of the sums, at least 0.
    pub fn minus(&self, other: &Account) -> Account {
        Account {
            used_bytes: self.used_bytes.saturating_sub(other.used_bytes),
            logical_bytes: self.logical_bytes.saturating_sub(other.logical_bytes),
            physical_bytes: self.physical_bytes.saturating_sub(other.physical_bytes),
        }
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.used_bytes = self.used_bytes.saturating_add(other.used_bytes);
        self.logical_bytes = self.logical_bytes.saturating_add(other.logical_bytes);
        self.physical_bytes = self.physical_bytes.saturating_add(other.physical_bytes);
    }
}

/// Flag of a header: the sums are valid. Sets of older versions lack it for good.
pub(crate) const COUNTED: u64 = 1;

/// The words of a header; all 0 if nothing is counted.
pub(crate) fn words(account: Option<Account>) -> (u64, [u64; 3]) {
    account.map_or((0, [0; 3]), |all| (COUNTED, [all.used_bytes, all.logical_bytes, all.physical_bytes]))
}

/// Parses the words of a header. Refuses unknown flags.
pub(crate) fn parse(flags: u64, words: [u64; 3], at: &str) -> Result<Option<Account>, Corrupt> {
    let [used_bytes, logical_bytes, physical_bytes] = words;
    match flags {
        0 if words == [0; 3] => Ok(None),
        COUNTED => Ok(Some(Account { used_bytes, logical_bytes, physical_bytes })),
        _ => Err(Corrupt::new(
            at,
            "flags and sums of the object set header",
            "known flags",
            format_args!("{flags:#x} {words:?}"),
        )),
    }
}
