//! What a rollback of a mounted data set does to inodes that the kernel knows.
//!
//! The kernel knows an inode by its number. A number is used again after its inode was destroyed, so after a rollback it may belong
//! to another inode than the one that a program has open. Inodes are the same if their generations are.

use crate::attr::{Attributes, FLAG_XATTR};
use crate::layouts::Layouts;
use crate::mount::layouts_of;
use crate::types::Ino;
use terrane_dataset::{Dataset, DatasetError};
use terrane_object::{ObjectError, ObjectKind, ObjectSet};
use terrane_wire::ObjectId;

/// What a rollback does to the inode of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// Another one gets the number.
    Replaced,
    /// There is none before the rollback.
    Absent,
    /// It is changed or removed.
    Changed,
}

/// What a rollback of `head` to `snapshot` does to the inodes of these objects, which differ. A damaged inode counts as another one.
pub fn find_undone(
    head: &Dataset,
    snapshot: &Dataset,
    ids: &[ObjectId],
) -> Result<Vec<(Ino, Undone)>, DatasetError> {
    // The head has all layouts of the snapshot.
    let layouts = layouts_of(head)?;
    let state = |id: ObjectId| {
        let [before, after] = [head, snapshot].map(|side| generation(side.object_set(), id, &layouts));
        match (before, after) {
            (Inode::Absent, _) => Undone::Absent,
            (_, Inode::Absent) => Undone::Changed,
            (Inode::Known(before), Inode::Known(after)) if before == after => Undone::Changed,
            (_, _) => Undone::Replaced,
        }
    };
    Ok(ids.iter().map(|id| (id.0, state(*id))).collect())
}

/// An inode that the kernel may know, and its generation.
enum Inode {
    Absent,
    Known(u64),
    Damaged,
}

fn generation(set: &ObjectSet, id: ObjectId, layouts: &Layouts) -> Inode {
    let object = match set.hold(id) {
        Ok(object) => object,
        Err(ObjectError::NotFound(_)) => return Inode::Absent,
        Err(_) => return Inode::Damaged,
    };
    match object.kind() {
        ObjectKind::File | ObjectKind::Directory | ObjectKind::Symlink | ObjectKind::Special => {}
        _ => return Inode::Absent,
    }
    match Attributes::decode(id.0, &object.bonus(), &layouts.table()) {
        Ok(attrs) if attrs.zpl.flags & FLAG_XATTR != 0 => Inode::Absent,
        Ok(attrs) => Inode::Known(attrs.zpl.generation),
        Err(_) => Inode::Damaged,
    }
}
