use crate::policy::Hint;
use terrane_wire::Txg;

/// What is known of the file a block of data belongs to, to place the block near others that will die with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Equal for the blocks of one file, different for different files; 0: nobody knows.
    pub file: u64,
    /// What somebody said.
    pub hint: Hint,
    /// Bytes of the file that are written in this group.
    pub burst_bytes: u64,
    /// Nobody has the file open for writing any more: it packs well with others like it.
    pub closed: bool,
    /// Birth group of the version that this block replaces, which tells how long that one lived. 0: none, or nobody knows.
    pub replaces: Txg,
    /// How long files like it lived, in bytes that users wrote to the pool meanwhile; `None`: nobody knows.
    pub expected_life_bytes: Option<u64>,
}
