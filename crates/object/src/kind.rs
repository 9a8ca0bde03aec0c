//! Kinds of objects, as stored in dnodes and block pointers.

/// The purpose of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// The dnodes of an object set; object 0.
    Dnodes = 1,
    /// Subtrees that wait to be freed.
    FreeQueue = 2,
    /// An object set's header. It is never a dnode's kind, only that of a pointer.
    Objset = 3,
    Zap = 4,
    Master = 5,
    Directory = 6,
    File = 7,
    Symlink = 8,
    /// Device nodes, fifos and sockets: attributes only.
    Special = 9,
    DeleteQueue = 10,
}

impl ObjectKind {
    pub const ALL: [ObjectKind; 10] = [
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
    ];

    pub fn from_id(id: u8) -> Option<ObjectKind> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == id)
    }

    /// False for dnodes and free queue, which only the sync changes.
    pub(crate) fn is_changed_by_callers(self) -> bool {
        !matches!(self, ObjectKind::Dnodes | ObjectKind::FreeQueue)
    }

    /// True for everything but file contents: two copies, always compressed.
    pub fn is_metadata(self) -> bool {
        self != ObjectKind::File
    }
}
