//! Prefetch of directories in tree walks.
//!
//! A caller may list the subdirectories of a directory one by one, in readdir order or in inode order. GNU find
//! sorts many by inode number. Such a caller is taken to walk the tree, and another thread prefetches the next
//! directories. Without prefetch, a walk waits in each directory for two device reads and for decompression.
//! The prefetch also sorts the names, so that a listing finds their order ready.
//!
//! The walk is a guess. It is kept in bounded memory, and a wrong guess costs a few reads.

use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_object::{Object, ObjectKind, ObjectSet};
use terrane_wire::ObjectId;
use terrane_zap::PreparedIndex;

/// Directories prefetched ahead of the listed one.
const PREFETCH_DIRS: usize = 4;
/// Parents whose subdirectories are remembered: one per level of a deep tree.
const PARENTS_MAX: usize = 16;
/// Subdirectories remembered per directory; prefetch stops beyond them.
const CHILDREN_MAX: usize = 16 << 10;

/// A listed directory.
#[derive(Debug)]
struct Parent {
    dir: Ino,
    /// Its subdirectories in walk order, as far as it was listed.
    children: Vec<Ino>,
    /// The offset at which a continued listing adds to `children`.
    next_offset: u64,
    /// The child listed last.
    last_index: Option<usize>,
    /// Children before this index were prefetched or listed.
    prefetched_end: usize,
}

impl Parent {
    /// The index of a child that follows the last one in walk order. Switches to inode order if that fits the
    /// caller.
    fn index_in_walk(&mut self, child: Ino) -> Option<usize> {
        let expected = self.last_index.map_or(0, |last| last + 1);
        if self.children.get(expected) == Some(&child) {
            return Some(expected);
        }
        let before = self.last_index.and_then(|last| self.children.get(last).copied());
        let larger = |known: &Ino| before.is_none_or(|before| *known > before);
        if self.children.iter().copied().filter(larger).min() == Some(child) {
            self.children.sort_unstable();
            self.prefetched_end = 0;
            return self.children.binary_search(&child).ok();
        }
        self.last_index = self.children.iter().position(|known| *known == child);
        None
    }
}

/// Prefetches these directories, and puts their sorted names into `prefetched`.
pub(crate) fn prefetch(set: &ObjectSet, prefetched: &PrefetchedDirs, dirs: Vec<Ino>) {
    for dir in dirs {
        let prefetched = Arc::clone(prefetched);
        set.prefetch(ObjectId(dir), move |object: &Object, block_0| {
            if object.kind() != ObjectKind::Directory {
                return;
            }
            let Some(prepared) = PreparedIndex::of(block_0, object.block_count()) else { return };
            let mut prefetched = prefetched.lock();
            if prefetched.len() > PREFETCH_DIRS {
                prefetched.pop_front();
            }
            prefetched.push_back((dir, prepared));
        });
    }
}

/// Prefetched directories that are not listed yet, oldest first.
pub(crate) type PrefetchedDirs = Arc<Mutex<VecDeque<(Ino, PreparedIndex)>>>;

/// Recently listed directories, newest last.
#[derive(Debug, Default)]
pub(crate) struct DirPrefetch {
    parents: VecDeque<Parent>,
}

impl DirPrefetch {
    /// Records that a listing of `dir` from `offset` returned these subdirectories. It continues at
    /// `next_offset`.
    pub fn note_listing(&mut self, dir: Ino, offset: u64, subdirs: &[Ino], next_offset: u64) {
        let known = self.parents.iter().position(|parent| parent.dir == dir);
        if let Some(known) = known.filter(|_| offset == 0) {
            self.parents.remove(known);
        }
        match known.filter(|_| offset != 0).and_then(|known| self.parents.get_mut(known)) {
            Some(parent) if parent.next_offset == offset => {
                let free_slots = CHILDREN_MAX.saturating_sub(parent.children.len());
                parent.children.extend(subdirs.iter().take(free_slots));
                parent.next_offset = next_offset;
            }
            Some(_) => {}
            None if subdirs.is_empty() => {}
            None => {
                if self.parents.len() >= PARENTS_MAX {
                    self.parents.pop_front();
                }
                let children = subdirs.iter().take(CHILDREN_MAX).copied().collect();
                self.parents.push_back(Parent {
                    dir,
                    children,
                    next_offset,
                    last_index: None,
                    prefetched_end: 0,
                });
            }
        }
    }

    /// Records that a listing of `dir` begins. Returns the directories to prefetch now.
    pub fn note_start(&mut self, dir: Ino, parent: Ino) -> Vec<Ino> {
        let Some(parent) = self.parents.iter_mut().find(|known| known.dir == parent) else {
            return Vec::new();
        };
        let Some(index) = parent.index_in_walk(dir) else { return Vec::new() };
        parent.last_index = Some(index);
        let end = parent.children.len().min(index + 1 + PREFETCH_DIRS);
        let next = parent.children.get(parent.prefetched_end.max(index + 1)..end).unwrap_or(&[]).to_vec();
        parent.prefetched_end = end;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Ino = 1;

    #[test]
    fn a_walk_in_readdir_order_is_prefetched_once() {
        let mut prefetch = DirPrefetch::default();
        prefetch.note_listing(ROOT, 0, &[50, 20, 90], 1000);
        prefetch.note_listing(ROOT, 1000, &[10, 70, 30, 80], 2000);
        assert_eq!(prefetch.note_start(50, ROOT), [20, 90, 10, 70]);
        prefetch.note_listing(50, 0, &[], 0);
        assert_eq!(prefetch.note_start(20, ROOT), [30]);
        assert_eq!(prefetch.note_start(90, ROOT), [80]);
        assert_eq!(prefetch.note_start(10, ROOT), [], "all were read");
        assert_eq!(prefetch.note_start(10, 77), [], "another parent");
    }

    #[test]
    fn a_walk_in_inode_order_is_detected() {
        let mut prefetch = DirPrefetch::default();
        prefetch.note_listing(ROOT, 0, &[50, 20, 90, 10, 70, 30, 80], 0);
        assert_eq!(prefetch.note_start(10, ROOT), [20, 30, 50, 70]);
        assert_eq!(prefetch.note_start(20, ROOT), [80]);

        prefetch.note_listing(ROOT, 0, &[50, 20, 90, 10, 70, 30, 80], 0);
        assert_eq!(prefetch.note_start(30, ROOT), [], "neither order");
        assert_eq!(prefetch.note_start(50, ROOT), [70, 80, 90]);
    }

    #[test]
    fn a_random_order_is_not_prefetched() {
        let mut prefetch = DirPrefetch::default();
        prefetch.note_listing(ROOT, 0, &[50, 20, 90, 10, 70, 30, 80], 0);
        assert_eq!(prefetch.note_start(90, ROOT), []);
        assert_eq!(prefetch.note_start(20, ROOT), []);
        assert_eq!(prefetch.note_start(999, ROOT), [], "not shown at all");
        assert_eq!(prefetch.note_start(70, ROOT), []);
        assert_eq!(prefetch.note_start(30, ROOT), [80]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut prefetch = DirPrefetch::default();
        for dir in 0..1000 {
            let children: Vec<Ino> = (0..2 * CHILDREN_MAX as u64).collect();
            prefetch.note_listing(dir, 0, &children, 5);
            prefetch.note_listing(dir, 5, &children, 9);
        }
        assert_eq!(prefetch.parents.len(), PARENTS_MAX);
        assert!(prefetch.parents.iter().all(|parent| parent.children.len() == CHILDREN_MAX));
    }
}
