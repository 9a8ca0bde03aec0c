//! Tags of snapshots: the high 16 bits of node ids.
//!
//! A snapshot gets a tag when it is looked up or listed, and keeps it. Tags are assigned in rotation. When all are
//! assigned, the tag of a snapshot of which the kernel holds no node is reassigned. So a file handle of an exported
//! mount stays valid for long, though the kernel has forgotten the node.
//!
//! The snapshot of each tag is written to memory that outlives this process, before the kernel learns of the tag. A
//! successor does not know which nodes the kernel holds, so it never reassigns an inherited tag.
//!
//! Invariants:
//! * A tag stands for one snapshot while the kernel holds a node with it.
//! * The file names the snapshot of every tag in the table.

use super::SnapshotEntry;
use crate::handover;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_posix::{Errno, Fs};
use terrane_wire::{IdMap, ObjectId, mix64};

/// Most snapshots that can have a tag at once.
pub const TAGS_MAX: usize = u16::MAX as usize;
const GUID_BYTES: usize = 8;
const FILE_BYTES: usize = GUID_BYTES * (1 + TAGS_MAX);

/// The tag of a snapshot, not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u16);

impl Tag {
    /// The tag and the inode number in a node id. `None`: the node belongs to the live tree.
    pub fn split(node: u64) -> Option<(Tag, u64)> {
        let tag = u16::try_from(node >> ObjectId::BITS).unwrap_or(u16::MAX);
        (tag != 0).then_some((Tag(tag), node & ObjectId::MASK))
    }

    /// The node id of an inode of the snapshot.
    pub fn node(self, ino: u64) -> u64 {
        u64::from(self.0) << ObjectId::BITS | ino & ObjectId::MASK
    }

    fn offset(self) -> u64 {
        u64::from(self.0) * GUID_BYTES as u64
    }
}

/// The snapshots of all tags, in memory that a successor of this process inherits: a guid for each tag, 0 for none.
#[derive(Debug)]
pub struct TagFile(File);

impl TagFile {
    /// A file without tags.
    pub fn new() -> io::Result<TagFile> {
        let file = handover::memory_file("terrane-tags")?;
        // Sparse: pages are allocated as they are written.
        file.set_len(FILE_BYTES as u64)?;
        Ok(TagFile(file))
    }

    /// The file of a predecessor.
    ///
    /// # Errors
    /// It has another size.
    pub fn inherit(file: File) -> io::Result<TagFile> {
        if file.metadata()?.len() != FILE_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "tags of snapshots refused: wrong size"));
        }
        Ok(TagFile(file))
    }

    /// To pass to another process.
    pub fn file(&self) -> &File {
        &self.0
    }

    fn put(&self, tag: Tag, guid: u64) -> io::Result<()> {
        self.0.write_all_at(&guid.to_le_bytes(), tag.offset())
    }

    fn all(&self) -> io::Result<Vec<(Tag, u64)>> {
        let mut raw = vec![0; FILE_BYTES];
        self.0.read_exact_at(&mut raw, 0)?;
        let guids = raw.as_chunks().0.iter().map(|guid| u64::from_le_bytes(*guid));
        Ok((0..=u16::MAX).map(Tag).zip(guids).filter(|(tag, guid)| tag.0 != 0 && *guid != 0).collect())
    }
}

/// A snapshot that has a tag.
pub(crate) struct TaggedSnapshot {
    pub guid: u64,
    /// The snapshot as it was found; its name may have changed since. Empty if a predecessor assigned the tag.
    pub entry: OnceLock<SnapshotEntry>,
    /// `None`: the snapshot is closed. The next request opens it.
    pub fs: Mutex<Option<Arc<Fs>>>,
    pub last_use: AtomicU64,
    /// A predecessor assigned the tag, so it is unknown which nodes the kernel holds.
    is_inherited: bool,
    /// Lookups in progress that have found the snapshot, and have not counted its root yet.
    in_use: AtomicU32,
    /// Lookups of each node that the kernel holds.
    lookups: Mutex<IdMap<u64, u64>>,
}

impl TaggedSnapshot {
    fn new(guid: u64, entry: Option<SnapshotEntry>) -> TaggedSnapshot {
        let is_inherited = entry.is_none();
        TaggedSnapshot {
            guid,
            entry: entry.map_or_else(OnceLock::new, OnceLock::from),
            fs: Mutex::default(),
            last_use: AtomicU64::new(0),
            is_inherited,
            in_use: AtomicU32::new(0),
            lookups: Mutex::default(),
        }
    }

    /// The kernel is about to get the node of this inode.
    pub fn count(&self, ino: u64) {
        *self.lookups.lock().entry(ino).or_default() += 1;
    }

    /// The kernel drops lookups of a node.
    pub fn forget(&self, ino: u64, count: u64) {
        let mut lookups = self.lookups.lock();
        if let Some(left) = lookups.get_mut(&ino) {
            *left = left.saturating_sub(count);
            if *left == 0 {
                lookups.remove(&ino);
            }
        }
    }

    /// Inodes whose nodes the kernel holds. Only those that this process has shown.
    pub fn nodes(&self) -> Vec<u64> {
        self.lookups.lock().keys().copied().collect()
    }

    /// The generation of an inode as shown. It differs from that of the same inode in a snapshot that had the tag before. A
    /// file handle of an exported mount has 32 bits of it.
    pub fn generation(&self, of_inode: u64) -> u64 {
        of_inode.wrapping_add(mix64(self.guid)) & u64::from(u32::MAX)
    }

    pub fn end_use(&self) {
        self.in_use.fetch_sub(1, Ordering::AcqRel);
    }

    fn may_lose_tag(&self) -> bool {
        !self.is_inherited && self.in_use.load(Ordering::Acquire) == 0 && self.lookups.lock().is_empty()
    }
}

/// All assigned tags.
pub(crate) struct TagTable {
    by_tag: IdMap<u16, Arc<TaggedSnapshot>>,
    by_guid: BTreeMap<u64, Tag>,
    /// The tag that was assigned last.
    last: u16,
    file: Option<TagFile>,
}

impl TagTable {
    /// Loads the tags that a predecessor assigned.
    pub fn load(file: Option<TagFile>) -> io::Result<TagTable> {
        let mut table = TagTable { by_tag: IdMap::default(), by_guid: BTreeMap::new(), last: 0, file };
        for (tag, guid) in table.file.as_ref().map(TagFile::all).transpose()?.unwrap_or_default() {
            table.by_tag.insert(tag.0, Arc::new(TaggedSnapshot::new(guid, None)));
            table.by_guid.insert(guid, tag);
            table.last = tag.0;
        }
        Ok(table)
    }

    pub fn len(&self) -> usize {
        self.by_tag.len()
    }

    pub fn get(&self, tag: Tag) -> Option<Arc<TaggedSnapshot>> {
        self.by_tag.get(&tag.0).cloned()
    }

    pub fn find(&self, guid: u64) -> Option<(Tag, Arc<TaggedSnapshot>)> {
        let tag = *self.by_guid.get(&guid)?;
        Some((tag, self.get(tag)?))
    }

    /// The same. The tag is kept until [`TaggedSnapshot::end_use`].
    pub fn find_to_use(&self, guid: u64) -> Option<(Tag, Arc<TaggedSnapshot>)> {
        let found = self.find(guid)?;
        found.1.in_use.fetch_add(1, Ordering::AcqRel);
        Some(found)
    }

    /// Assigns a tag to a snapshot, which keeps it at least until [`TaggedSnapshot::end_use`]. `ENFILE`: all tags are
    /// assigned, and the kernel holds nodes of all those snapshots. `EIO`: the tag cannot be written to the file.
    pub fn assign(&mut self, entry: &SnapshotEntry) -> Result<(Tag, Arc<TaggedSnapshot>), Errno> {
        if let Some(known) = self.find_to_use(entry.guid) {
            return Ok(known);
        }
        let tag = self.unused().or_else(|| self.take_one()).ok_or(Errno(libc::ENFILE))?;
        self.give(tag, entry)?;
        self.find_to_use(entry.guid).ok_or(Errno::EIO)
    }

    /// The same, but only with a tag that no snapshot has. `None`: all tags are assigned.
    pub fn assign_unused(
        &mut self,
        entry: &SnapshotEntry,
    ) -> Result<Option<(Tag, Arc<TaggedSnapshot>)>, Errno> {
        if let Some(tag) = self.unused().filter(|_| !self.by_guid.contains_key(&entry.guid)) {
            self.give(tag, entry)?;
        }
        Ok(self.find(entry.guid))
    }

    pub fn clear(&mut self) {
        self.by_tag.clear();
        self.by_guid.clear();
    }

    fn give(&mut self, tag: Tag, entry: &SnapshotEntry) -> Result<(), Errno> {
        // The file first: a successor must not take a node for one of the snapshot that had the tag before.
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.put(tag, entry.guid)) {
            log::error!("snapshot {}: tag not stored, so it cannot be shown: {error}", entry.name);
            return Err(Errno::EIO);
        }
        self.by_tag.insert(tag.0, Arc::new(TaggedSnapshot::new(entry.guid, Some(entry.clone()))));
        self.by_guid.insert(entry.guid, tag);
        self.last = tag.0;
        Ok(())
    }

    /// All tags, in the order in which they are assigned next.
    fn circle(&self) -> impl Iterator<Item = Tag> + use<> {
        (self.last..u16::MAX).map(|before| before + 1).chain(1..=self.last).map(Tag)
    }

    fn unused(&self) -> Option<Tag> {
        if self.by_tag.len() >= TAGS_MAX {
            return None;
        }
        self.circle().find(|tag| !self.by_tag.contains_key(&tag.0))
    }

    /// Takes the tag of a snapshot of which the kernel holds no node.
    fn take_one(&mut self) -> Option<Tag> {
        let may_go = |tag: &Tag| self.by_tag.get(&tag.0).is_some_and(|tagged| tagged.may_lose_tag());
        let tag = self.circle().find(may_go)?;
        let old = self.by_tag.remove(&tag.0)?;
        self.by_guid.remove(&old.guid);
        Some(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_posix::Time;

    fn entry(guid: u64) -> SnapshotEntry {
        SnapshotEntry { name: format!("s{guid}"), guid, created: Time { secs: guid as i64, nanos: 0 } }
    }

    #[test]
    fn node_ids_name_tag_and_inode() {
        let mut table = TagTable::load(None).unwrap();
        let (tag, _) = table.assign(&entry(7)).unwrap();
        assert_eq!(Tag::split(tag.node(34)), Some((tag, 34)));
        assert_eq!(Tag::split(ObjectId::MASK), None);
        assert_eq!(Tag::split(u64::MAX), Some((Tag(u16::MAX), ObjectId::MASK)));
    }

    #[test]
    fn tags_are_reused_when_the_kernel_holds_no_node_of_theirs() {
        let mut table = TagTable::load(Some(TagFile::new().unwrap())).unwrap();
        for guid in 1..=TAGS_MAX as u64 {
            let (tag, tagged) = table.assign(&entry(guid)).unwrap();
            assert_eq!(u64::from(tag.0), guid);
            tagged.count(3);
            tagged.count(3);
            tagged.end_use();
        }
        assert_eq!(table.len(), TAGS_MAX);
        let more = entry(1 << 40);
        assert_eq!(table.assign(&more).map(drop), Err(Errno(libc::ENFILE)));
        assert!(table.assign_unused(&more).unwrap().is_none());
        let (tag, tagged) = table.find(500).unwrap();
        tagged.forget(3, 1);
        assert_eq!(table.assign(&more).map(drop), Err(Errno(libc::ENFILE)), "one lookup is left");
        let (_, in_use) = table.find_to_use(600).unwrap();
        in_use.forget(3, 2);
        assert_eq!(
            table.assign(&more).map(drop),
            Err(Errno(libc::ENFILE)),
            "a lookup is about to be answered"
        );
        tagged.forget(3, 1);
        assert!(table.assign_unused(&more).unwrap().is_none(), "a listing takes no tag away");
        let (given, new) = table.assign(&more).unwrap();
        assert_eq!((given, table.find(500).map(drop)), (tag, None));
        assert!(new.generation(9) != tagged.generation(9));
        // A successor knows all of them, and takes none away.
        let file = TagFile::inherit(table.file.as_ref().unwrap().file().try_clone().unwrap()).unwrap();
        let mut after = TagTable::load(Some(file)).unwrap();
        assert_eq!(after.len(), TAGS_MAX);
        assert_eq!(after.find(1 << 40).map(|(tag, _)| tag), Some(tag));
        assert_eq!(after.find(TAGS_MAX as u64).map(|(tag, _)| tag), Some(Tag(u16::MAX)));
        assert_eq!(after.assign(&entry(1 << 41)).map(drop), Err(Errno(libc::ENFILE)));
        assert!(TagFile::inherit(handover::memory_file("short").unwrap()).is_err());
    }
}
