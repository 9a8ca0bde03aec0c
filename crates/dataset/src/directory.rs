//! The pool directory, by which a pool finds its root data set.

use terrane_wire::ObjectId;

/// The pool directory in the meta object set.
pub const POOL_DIRECTORY: ObjectId = ObjectId(1);

pub(crate) const ROOT_DATASET: &[u8] = b"root_dataset";
pub(crate) const ROOT_PROPS: &[u8] = b"root_props";
pub(crate) const ERRORS: &[u8] = b"errors";
pub(crate) const FEATURE_USES: &[u8] = b"feature_uses";
