//! Snapshots inside a mount: the directories below `.terrane/snapshot`.
//!
//! A node id has 48 bits of inode number and a tag of 16 bits. Tag 0 is the live tree. Every other tag stands
//! for a snapshot that was shown in this mount, and is kept for it ([`tags`]). So the nodes of a snapshot are
//! distinct from live ones, and a node has the same number in listings and lookups.
//!
//! Object 0 of a tree is no inode. So node ids with object 0 are free for directories that are no objects:
//! [`CONTROL_NODE`] is `.terrane`, and [`LIST_NODE`] is `.terrane/snapshot`.
//!
//! A snapshot is opened when a request needs it. At most [`OPEN_MAX`] stay open. Others are opened again on demand, since
//! a node id suffices to find snapshot and inode.
//!
//! Invariant: a tag stands for one snapshot as long as the kernel may hold a node with it, also across servers.

mod of_dataset;
pub mod tags;

pub use of_dataset::DatasetSnapshots;

use parking_lot::{Mutex, RwLock};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tags::{Tag, TagFile, TagTable, TaggedSnapshot};
use terrane_posix::{Errno, Fs, Time};
use terrane_wire::ObjectId;

/// Name of the directory in the root of a mount.
pub const CONTROL_NAME: &[u8] = b".terrane";
/// Name of the directory in it that lists snapshots.
pub const LIST_NAME: &[u8] = b"snapshot";
/// Node id of the directory [`CONTROL_NAME`].
pub const CONTROL_NODE: u64 = 1 << ObjectId::BITS;
/// Node id of the directory [`LIST_NAME`].
pub const LIST_NODE: u64 = 2 << ObjectId::BITS;
/// Node id that listings show for a snapshot without a tag, when all tags are assigned.
pub const UNTAGGED_NODE: u64 = 3 << ObjectId::BITS;

/// Most snapshots that stay open.
pub const OPEN_MAX: usize = 32;
/// Limits of memory for each open snapshot: idle inodes of some 1.5 KiB, and bytes of directory indexes.
const IDLE_INODES_MAX: usize = 512;
const INDEX_BYTES_MAX: usize = 512 << 10;

/// A snapshot in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Its name: no `/`, at most 255 bytes.
    pub name: String,
    /// A random number that no other snapshot has. It stays the same when the snapshot is renamed.
    pub guid: u64,
    /// When it was taken.
    pub created: Time,
}

/// How `.terrane` is shown in the root of a mount: the property `snapdir`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// It can be entered, and listings leave it out.
    #[default]
    Hidden,
    /// It is listed like any other directory.
    Visible,
    /// The directory does not exist.
    Disabled,
}

/// A source of the snapshots of a mounted data set. Many threads call it concurrently, and requests wait for the
/// answers.
pub trait Snapshots: Send + Sync {
    /// All snapshots, in any order.
    fn list(&self) -> Result<Vec<SnapshotEntry>, Errno>;

    /// The snapshot with this name. Every lookup of a path calls this, so an implementation should not list all snapshots.
    fn find(&self, name: &[u8]) -> Result<Option<SnapshotEntry>, Errno> {
        Ok(self.list()?.into_iter().find(|entry| entry.name.as_bytes() == name))
    }

    /// The snapshot with this guid.
    fn find_guid(&self, guid: u64) -> Result<Option<SnapshotEntry>, Errno> {
        Ok(self.list()?.into_iter().find(|entry| entry.guid == guid))
    }

    /// Opens a snapshot. `name` is the name that it had when it was found. `ESTALE` or `ENOENT`: no snapshot with this guid
    /// exists any more. It must be closed ([`Fs::close`]) before its blocks are freed.
    fn open(&self, guid: u64, name: Option<&str>) -> Result<Arc<Fs>, Errno>;

    /// How snapshots are shown now.
    fn visibility(&self) -> Visibility {
        Visibility::Hidden
    }
}

/// The snapshots of one mount, and their tags.
pub struct SnapshotDir {
    source: Arc<dyn Snapshots>,
    tags: RwLock<TagTable>,
    /// Tags of snapshots that are open. Taken before `tags`.
    open: Mutex<Vec<Tag>>,
    open_max: usize,
    /// Numbers the uses of snapshots.
    clock: AtomicU64,
}

/// A snapshot that a request is about.
#[derive(Clone)]
pub(crate) struct OpenSnapshot {
    pub tag: Tag,
    pub tagged: Arc<TaggedSnapshot>,
    pub fs: Arc<Fs>,
}

impl SnapshotDir {
    /// Shows the snapshots of `source`. Tags are written to `file`, where a successor of this process finds them. Without a
    /// file, a successor answers `ESTALE` for nodes that this process has shown.
    ///
    /// # Errors
    /// The file is unreadable.
    pub fn new(source: Arc<dyn Snapshots>, file: Option<TagFile>) -> io::Result<Arc<SnapshotDir>> {
        Self::with_open_max(source, file, OPEN_MAX)
    }

    /// The same with another maximum of open snapshots.
    pub fn with_open_max(
        source: Arc<dyn Snapshots>,
        file: Option<TagFile>,
        open_max: usize,
    ) -> io::Result<Arc<SnapshotDir>> {
        Ok(Arc::new(SnapshotDir {
            source,
            tags: RwLock::new(TagTable::load(file)?),
            open: Mutex::default(),
            open_max,
            clock: AtomicU64::new(1),
        }))
    }

    /// Number of snapshots that are open now.
    pub fn open_count(&self) -> usize {
        self.open.lock().len()
    }

    /// Number of snapshots with a tag.
    pub fn tagged_count(&self) -> usize {
        self.tags.read().len()
    }

    /// Closes a snapshot that was destroyed. Returns its nodes that the kernel holds. The caller has the kernel drop its
    /// cached pages of them ([`crate::forget::start`]). Otherwise programs may still read those pages.
    ///
    /// Nodes that only a predecessor of this process has shown are not returned.
    pub fn note_destroyed(&self, guid: u64) -> Vec<u64> {
        let Some((tag, tagged)) = self.tags.read().find(guid) else { return Vec::new() };
        if let Some(fs) = tagged.fs.lock().take()
            && !fs.is_closed()
        {
            fs.close();
        }
        tagged.nodes().into_iter().map(|ino| tag.node(ino)).collect()
    }

    pub(crate) fn visibility(&self) -> Visibility {
        self.source.visibility()
    }

    pub(crate) fn list(&self) -> Result<Vec<SnapshotEntry>, Errno> {
        self.source.list()
    }

    /// The node of a snapshot's root directory, for its entry in a listing.
    pub(crate) fn listed_node(&self, entry: &SnapshotEntry, root: u64) -> u64 {
        let known = self.tags.read().find(entry.guid);
        // A listing takes only an unused tag, and leaves the others to lookups.
        let known = known.or_else(|| self.tags.write().assign_unused(entry).ok().flatten());
        known.map_or(UNTAGGED_NODE, |(tag, _)| tag.node(root))
    }

    /// Opens the snapshot of this name for a lookup. `show` must count a lookup of its root.
    pub(crate) fn enter<T>(
        &self,
        name: &[u8],
        show: impl FnOnce(&OpenSnapshot) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let entry = self.source.find(name)?.ok_or(Errno::ENOENT)?;
        let known = self.tags.read().find_to_use(entry.guid);
        let (tag, tagged) = match known {
            Some(known) => known,
            None => self.tags.write().assign(&entry)?,
        };
        let shown =
            self.open(tag, &tagged).and_then(|fs| show(&OpenSnapshot { tag, tagged: tagged.clone(), fs }));
        tagged.end_use();
        // The snapshot was destroyed after it was found.
        shown.map_err(|errno| if errno == Errno::ESTALE { Errno::ENOENT } else { errno })
    }

    /// The snapshot with this tag. `ESTALE`: no snapshot has the tag, or it was destroyed.
    pub(crate) fn resolve(&self, tag: Tag) -> Result<OpenSnapshot, Errno> {
        let tagged = self.tags.read().get(tag).ok_or(Errno::ESTALE)?;
        let fs = self.open(tag, &tagged)?;
        Ok(OpenSnapshot { tag, tagged, fs })
    }

    /// When the snapshot was taken. After a take-over this looks it up by its guid.
    pub(crate) fn created(&self, tagged: &TaggedSnapshot) -> Option<Time> {
        if let Some(known) = tagged.entry.get() {
            return Some(known.created);
        }
        let entry = self.source.find_guid(tagged.guid).ok().flatten()?;
        Some(tagged.entry.get_or_init(|| entry).created)
    }

    /// The kernel drops lookups of a node.
    pub(crate) fn forget(&self, tag: Tag, ino: u64, count: u64) {
        if let Some(tagged) = self.tags.read().get(tag) {
            tagged.forget(ino, count);
        }
    }

    /// The mount has ended.
    pub(crate) fn forget_all(&self) {
        self.open.lock().clear();
        self.tags.write().clear();
    }

    fn open(&self, tag: Tag, tagged: &TaggedSnapshot) -> Result<Arc<Fs>, Errno> {
        tagged.last_use.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let fs = {
            // Held while it is opened: other requests about the same snapshot need it too.
            let mut slot = tagged.fs.lock();
            if let Some(fs) = slot.as_ref().filter(|fs| !fs.is_closed()) {
                return Ok(Arc::clone(fs));
            }
            *slot = None;
            let name = tagged.entry.get().map(|entry| entry.name.as_str());
            let fs = self.source.open(tagged.guid, name);
            let fs = fs.map_err(|errno| if errno == Errno::ENOENT { Errno::ESTALE } else { errno })?;
            fs.set_idle_inodes_max(IDLE_INODES_MAX);
            fs.set_index_bytes_max(INDEX_BYTES_MAX);
            *slot = Some(Arc::clone(&fs));
            fs
        };
        self.note_open(tag);
        Ok(fs)
    }

    /// A snapshot was opened: closes those that were used least recently.
    fn note_open(&self, tag: Tag) {
        let mut dropped = Vec::new();
        {
            let mut open = self.open.lock();
            if !open.contains(&tag) {
                open.push(tag);
            }
            let tags = self.tags.read();
            let last_use =
                |tag: &Tag| tags.get(*tag).map_or(0, |tagged| tagged.last_use.load(Ordering::Relaxed));
            while open.len() > self.open_max {
                let oldest = open.iter().enumerate().min_by_key(|(_, tag)| last_use(tag)).map(|(at, _)| at);
                let Some(oldest) = oldest.map(|at| open.swap_remove(at)) else { break };
                // One that is being opened is added again by the thread that opens it.
                dropped.extend(tags.get(oldest).and_then(|tagged| tagged.fs.try_lock()?.take()));
            }
        }
        // After the locks were released: dropping the last reference closes a file system.
        drop(dropped);
    }
}

#[cfg(test)]
pub(crate) mod tests;
