//! Changes of the meta object set that follow from the syncs of other sets. The sync itself makes them, without an operation.
//!
//! Invariant: operations never change the same blocks or the same bytes of a bonus. The bytes of a bonus outside of
//! `at..at + bytes.len()` may already differ in the open txg.

use std::collections::BTreeMap;
use terrane_format::BlockPtr;
use terrane_wire::ObjectId;

/// A change of an object of the meta object set.
#[derive(Clone, Debug)]
pub struct MosChange {
    /// The object.
    pub id: ObjectId,
    /// What changes.
    pub update: MosUpdate,
}

/// What changes in an object.
#[derive(Clone, Debug)]
pub enum MosUpdate {
    /// Bytes of the bonus, from this offset on. The bonus grows as necessary.
    Bonus {
        /// Offset of the first byte.
        at: usize,
        /// The new bytes.
        bytes: Vec<u8>,
    },
    /// The whole content is replaced by these blocks.
    Content(Vec<Vec<u8>>),
    /// Each of these blocks is replaced, or freed if its content is `None`.
    Blocks(BTreeMap<u64, Option<Vec<u8>>>),
}

impl MosChange {
    /// A new root of the set for which the object stands.
    pub fn root(id: ObjectId, root: &BlockPtr) -> MosChange {
        MosChange { id, update: MosUpdate::Bonus { at: 0, bytes: root.encode().to_vec() } }
    }
}

/// The bonus with these bytes in place of those at `at`.
pub(crate) fn patched(bonus: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut patched = bonus.to_vec();
    patched.resize(patched.len().max(at.saturating_add(bytes.len())), 0);
    if let Some(place) = patched.get_mut(at..at.saturating_add(bytes.len())) {
        place.copy_from_slice(bytes);
    }
    patched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_keep_what_is_beside_them() {
        assert_eq!(patched(&[1, 2, 3, 4], 1, &[7, 8]), [1, 7, 8, 4]);
        assert_eq!(patched(&[1], 3, &[7]), [1, 0, 0, 7]);
        assert_eq!(patched(&[1, 2], 1, &[]), [1, 2]);
    }
}
