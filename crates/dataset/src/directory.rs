//! The pool directory, by which a pool finds its root data set; values in directories of files.
//!
//! Invariant: after a pool was created, the directory changes only in [`change_directory`]. A ZAP handle does not see the changes of
//! another one, and its writers, like the error log and the tree of data sets, have no other lock in common.

use crate::error::DatasetError;
use crate::node::zap;
use crate::zap_store::ObjectZap;
use std::sync::Arc;
use terrane_object::ObjectSet;
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
pub(crate) const ERRORS: &[u8] = b"errors";
pub(crate) const FEATURE_USES: &[u8] = b"feature_uses";

/// The object that an entry of the pool directory names. `None`: there is no such entry, or it is 0.
pub(crate) fn find_in_directory(mos: &Arc<ObjectSet>, name: &[u8]) -> Result<Option<ObjectId>, DatasetError> {
    let _lock = mos.exclusive();
    Ok(zap(mos, POOL_DIRECTORY)?.lookup_u64(name)?.filter(|number| *number != 0).map(ObjectId))
}

/// Changes the pool directory. The caller has joined a txg, and `change` joins none.
pub(crate) fn change_directory<T>(
    mos: &Arc<ObjectSet>,
    change: impl FnOnce(&mut ObjectZap) -> Result<T, DatasetError>,
) -> Result<T, DatasetError> {
    let _lock = mos.exclusive();
    change(&mut zap(mos, POOL_DIRECTORY)?)
}
