//! The pool directory, by which a pool finds its root data set; values in directories of files.

use terrane_wire::ObjectId;
use terrane_zap::CountBits;

/// The pool directory in the meta object set.
pub const POOL_DIRECTORY: ObjectId = ObjectId(1);

/// Bits 48 to 50 of a directory entry's first word count the words beside the entry.
pub const ENTRY_WORD_COUNT: CountBits = CountBits { shift: 48, bits: 3 };
/// Most words beside a directory entry.
pub const ENTRY_WORDS_MAX: usize = 6;

pub(crate) const ROOT_DATASET: &[u8] = b"root_dataset";
pub(crate) const ROOT_PROPS: &[u8] = b"root_props";
pub(crate) const ROOT_NODE: &[u8] = b"root_node";
pub(crate) const RETIRED: &[u8] = b"retired";
/// Entries of the pool directory that lead to the tree of data sets.
pub const ENTRIES_OF_TREE: [&[u8]; 4] = [ROOT_DATASET, ROOT_PROPS, ROOT_NODE, RETIRED];
pub(crate) const ERRORS: &[u8] = b"errors";
pub(crate) const FEATURE_USES: &[u8] = b"feature_uses";
