//! What the blocks of an object set take: counted with every group, and stored in the set's header.
//!
//! Every block that a tree gets and every block that leaves one passes here, in the sync that does it; so the sums cost nothing to
//! know, and `check` compares them with what it finds by walking. Subtrees that wait in the free queue count until they are freed.
//! The header's own block is not in it: it holds the sums.
//!
//! *Records* are the blocks of level 0 of files: what users wrote. Only they say how well something was compressed; metadata is
//! compressed too, but nobody knows how large it would have been elsewhere.

use crate::kind::ObjectKind;
use std::ops::AddAssign;
use terrane_format::BlockPtr;
use terrane_wire::Corrupt;

/// Sums over the blocks of a set, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// What all blocks take on devices: records and metadata, all copies, each in whole granules.
    pub used_bytes: u64,
    /// Records before compression. The last of a file is as long as it is stored; holes are none.
    pub logical_bytes: u64,
    /// Records after compression, one copy; those in their pointers too.
    pub physical_bytes: u64,
}

impl Account {
    /// How many times larger records would be without compression; `None`: there are none.
    pub fn ratio(&self) -> Option<f64> {
        (self.physical_bytes > 0).then(|| self.logical_bytes as f64 / self.physical_bytes as f64)
    }

    /// Counts a block. `is_record`: of level 0 of a file, and no spill.
    pub fn add(&mut self, ptr: &BlockPtr, is_record: bool) {
        let stored = match ptr {
            BlockPtr::Hole(_) => return,
            BlockPtr::Embedded(embedded) => embedded.payload.len() as u64,
            BlockPtr::Normal(normal) => u64::from(normal.psize),
        };
        // Pointers may lie about sizes.
        self.used_bytes = self.used_bytes.saturating_add(ptr.allocated_bytes());
        if is_record {
            self.logical_bytes = self.logical_bytes.saturating_add(u64::from(ptr.lsize()));
            self.physical_bytes = self.physical_bytes.saturating_add(stored);
        }
    }

    /// The same of a block in a tree of files' blocks, or in a subtree that was cut off one.
    pub fn add_of_tree(&mut self, ptr: &BlockPtr) {
        let is_file = ObjectKind::from_id(ptr.kind()).is_some_and(|kind| !kind.is_metadata());
        self.add(ptr, is_file && ptr.level() == 0);
    }

    pub(crate) fn minus(&self, other: &Account) -> Account {
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

/// In the flags of a header: the sums are counted. Sets from before have none, and get none.
pub(crate) const COUNTED: u64 = 1;

/// The words of a header; all 0 where nothing is counted.
pub(crate) fn words(account: Option<Account>) -> (u64, [u64; 3]) {
    account.map_or((0, [0; 3]), |all| (COUNTED, [all.used_bytes, all.logical_bytes, all.physical_bytes]))
}

/// The other way.
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
