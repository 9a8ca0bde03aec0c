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
use terrane_zap::Prepared;

/// Directories prefetched ahead of the listed one.
const AHEAD: usize = 4;
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
    last: Option<usize>,
    /// Children before this index were prefetched or listed.
    done: usize,
}

impl Parent {
    /// The index of a child that follows the last one in walk order. Switches to inode order if that fits the
    /// caller.
    fn place_in_walk(&mut self, child: Ino) -> Option<usize> {
        let expected = self.last.map_or(0, |last| last + 1);
        if self.children.get(expected) == Some(&child) {
            return Some(expected);
        }
        let before = self.last.and_then(|last| self.children.get(last).copied());
        let larger = |known: &Ino| before.is_none_or(|before| *known > before);
        if self.children.iter().copied().filter(larger).min() == Some(child) {
            self.children.sort_unstable();
            self.done = 0;
            return self.children.binary_search(&child).ok();
        }
        self.last = self.children.iter().position(|known| *known == child);
        None
    }
}

/// Prefetches these directories, and puts their sorted names into `ready`.
pub(crate) fn read(set: &ObjectSet, ready: &Ready, dirs: Vec<Ino>) {
    for dir in dirs {
        let ready = Arc::clone(ready);
        set.read_ahead(ObjectId(dir), move |object: &Object, block_0| {
            if object.kind() != ObjectKind::Directory {
                return;
            }
            let Some(prepared) = Prepared::of(block_0, object.block_count()) else { return };
            let mut ready = ready.lock();
            if ready.len() > AHEAD {
                ready.pop_front();
            }
            ready.push_back((dir, prepared));
        });
    }
}

/// Prefetched directories that are not listed yet, oldest first.
pub(crate) type Ready = Arc<Mutex<VecDeque<(Ino, Prepared)>>>;

/// Recently listed directories, newest last.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    parents: VecDeque<Parent>,
}

impl Ahead {
    /// Records that a listing of `dir` from `offset` returned the subdirectories `shown`. It continues at
    /// `next_offset`.
    pub fn listed(&mut self, dir: Ino, offset: u64, shown: &[Ino], next_offset: u64) {
        let known = self.parents.iter().position(|parent| parent.dir == dir);
        if let Some(known) = known.filter(|_| offset == 0) {
            self.parents.remove(known);
        }
        match known.filter(|_| offset != 0).and_then(|known| self.parents.get_mut(known)) {
            Some(parent) if parent.next_offset == offset => {
                let room = CHILDREN_MAX.saturating_sub(parent.children.len());
                parent.children.extend(shown.iter().take(room));
                parent.next_offset = next_offset;
            }
            Some(_) => {}
            None if shown.is_empty() => {}
            None => {
                if self.parents.len() >= PARENTS_MAX {
                    self.parents.pop_front();
                }
                let children = shown.iter().take(CHILDREN_MAX).copied().collect();
                self.parents.push_back(Parent { dir, children, next_offset, last: None, done: 0 });
            }
        }
    }

    /// Records that a listing of `dir` begins. Returns the directories to prefetch now.
    pub fn begins(&mut self, dir: Ino, parent: Ino) -> Vec<Ino> {
        let Some(parent) = self.parents.iter_mut().find(|known| known.dir == parent) else {
            return Vec::new();
        };
        let Some(place) = parent.place_in_walk(dir) else { return Vec::new() };
        parent.last = Some(place);
        let end = parent.children.len().min(place + 1 + AHEAD);
        let next = parent.children.get(parent.done.max(place + 1)..end).unwrap_or(&[]).to_vec();
        parent.done = end;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Ino = 1;

    #[test]
    fn a_walk_in_the_order_of_a_listing_is_read_ahead_once_each() {
        let mut ahead = Ahead::default();
        ahead.listed(ROOT, 0, &[50, 20, 90], 1000);
        ahead.listed(ROOT, 1000, &[10, 70, 30, 80], 2000);
        assert_eq!(ahead.begins(50, ROOT), [20, 90, 10, 70]);
        ahead.listed(50, 0, &[], 0);
        assert_eq!(ahead.begins(20, ROOT), [30]);
        assert_eq!(ahead.begins(90, ROOT), [80]);
        assert_eq!(ahead.begins(10, ROOT), [], "all were read");
        assert_eq!(ahead.begins(10, 77), [], "another parent");
    }

    #[test]
    fn a_walk_by_numbers_is_noticed() {
        let mut ahead = Ahead::default();
        ahead.listed(ROOT, 0, &[50, 20, 90, 10, 70, 30, 80], 0);
        assert_eq!(ahead.begins(10, ROOT), [20, 30, 50, 70]);
        assert_eq!(ahead.begins(20, ROOT), [80]);

        ahead.listed(ROOT, 0, &[50, 20, 90, 10, 70, 30, 80], 0);
        assert_eq!(ahead.begins(30, ROOT), [], "neither order");
        assert_eq!(ahead.begins(50, ROOT), [70, 80, 90]);
    }

    #[test]
    fn who_jumps_is_not_followed() {
        let mut ahead = Ahead::default();
        ahead.listed(ROOT, 0, &[50, 20, 90, 10, 70, 30, 80], 0);
        assert_eq!(ahead.begins(90, ROOT), []);
        assert_eq!(ahead.begins(20, ROOT), []);
        assert_eq!(ahead.begins(999, ROOT), [], "not shown at all");
        assert_eq!(ahead.begins(70, ROOT), []);
        assert_eq!(ahead.begins(30, ROOT), [80]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut ahead = Ahead::default();
        for dir in 0..1000 {
            let children: Vec<Ino> = (0..2 * CHILDREN_MAX as u64).collect();
            ahead.listed(dir, 0, &children, 5);
            ahead.listed(dir, 5, &children, 9);
        }
        assert_eq!(ahead.parents.len(), PARENTS_MAX);
        assert!(ahead.parents.iter().all(|parent| parent.children.len() == CHILDREN_MAX));
    }
}
