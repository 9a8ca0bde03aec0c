//! Kinds of objects, as stored in dnodes and block pointers.

/// The purpose of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// The dnodes of an object set; object 0.
    Dnodes = 1,
    /// Subtrees that wait to be freed.
    FreeQueue = 2,
    /// In the meta object set, an object that stands for an object set. As the kind of a pointer, a set's header block.
    Objset = 3,
    /// A ZAP of any other use.
    Zap = 4,
    /// The ZAP through which the objects of a data set are found; object 1.
    Master = 5,
    /// A directory: a ZAP from names to objects.
    Directory = 6,
    /// The bytes of a file.
    File = 7,
    /// A symbolic link. A long target is in block 0.
    Symlink = 8,
    /// Device nodes, fifos and sockets: attributes only.
    Special = 9,
    /// A ZAP of the objects without links.
    DeleteQueue = 10,
    /// In the meta object set, a part of a dead list: blocks that left a data set, and that a snapshot refers to.
    DeadList = 11,
    /// In the meta object set, an object that stands for a snapshot.
    Snapshot = 12,
}

impl ObjectKind {
    /// All kinds, by number.
    pub const ALL: [ObjectKind; 12] = [
        ObjectKind::Dnodes,
        ObjectKind::FreeQueue,
        ObjectKind::Objset,
        ObjectKind::Zap,
        ObjectKind::Master,
        ObjectKind::Directory,
        ObjectKind::File,
        ObjectKind::Symlink,
        ObjectKind::Special,
        ObjectKind::DeleteQueue,
        ObjectKind::DeadList,
        ObjectKind::Snapshot,
    ];

    /// The kind with this stored number. `None`: there is none.
    pub fn from_id(id: u8) -> Option<ObjectKind> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == id)
    }

    /// False for those whose blocks only the sync changes.
    pub(crate) fn is_changed_by_callers(self) -> bool {
        !matches!(self, ObjectKind::Dnodes | ObjectKind::FreeQueue | ObjectKind::DeadList)
    }

    /// True for everything but file contents: two copies, always compressed.
    pub fn is_metadata(self) -> bool {
        self != ObjectKind::File
    }
}
