//! ZAPs of the meta object set: those of the tree of data sets, and the pool directory.
//!
//! Invariant: after a pool was created, the directory changes only in [`change_directory`]. A ZAP handle does not see the changes of
//! another one, and its writers, like the error log and the tree of data sets, have no other lock in common.

use crate::directory::POOL_DIRECTORY;
use crate::error::DatasetError;
use crate::zap_policy::ZapPolicy;
use crate::zap_store::ObjectZap;
use std::sync::Arc;
use terrane_object::{ObjectKind, ObjectSet};
use terrane_wire::ObjectId;

/// The ZAP in an object of the MOS.
pub(crate) fn zap(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<ObjectZap, DatasetError> {
    let object = mos.hold(id)?;
    if object.kind() != ObjectKind::Zap {
        return Err(DatasetError::Damaged {
            at: "tree of data sets",
            expected: format!("a ZAP in object {id} of the meta object set"),
            found: format!("{:?}", object.kind()),
        });
    }
    Ok(ObjectZap::new(&ZapPolicy::of(mos), object))
}

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
