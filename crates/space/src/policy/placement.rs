use crate::policy::Hint;
use terrane_wire::Txg;

/// What is known of a data block's file, to place the block near others that die at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The same number for all blocks of one file, different for other files. 0: unknown.
    pub file: u64,
    /// The lifetime hint.
    pub hint: Hint,
    /// Bytes of the file that are written in this txg.
    pub burst_bytes: u64,
    /// No process has the file open for writing, so it packs well with similar files.
    pub is_closed: bool,
    /// Birth txg of the version that this block replaces, which gives that version's life. 0: none, or unknown.
    pub replaced_birth: Txg,
    /// Mean life of similar files, in user bytes. `None`: unknown.
    pub expected_life_bytes: Option<u64>,
}
