//! Checks snapshots and dead lists.
//!
//! A block that only snapshots refer to must be on exactly one dead list, and dead lists must hold no other blocks. A snapshot shares all
//! blocks that are not younger than the snapshot before it with that one. So the walk of a snapshot skips such subtrees, and visits no
//! block twice.

use crate::report::kind;
use crate::walk::Walk;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use terrane_dataset::stored::{StoredDataset, each_dead_entry, list_parts};
use terrane_dataset::{DeadEntry, PartInfo};
use terrane_format::{Addr, BlockPtr, GRANULE, Owner, granule_bytes};
use terrane_object::dnode::{Dnode, INDIRECT_BYTES, ObjsetHeader, SLOT_BYTES, SLOTS_PER_BLOCK, dnodes_in};
use terrane_object::objset::HEADER;
use terrane_object::{ObjectKind, ObjectSets, OwnerKind};
use terrane_pool::Pool;
use terrane_wire::{ObjectId, Txg};

/// Most levels of a tree.
const LEVELS_MAX: u8 = 12;

/// Copies of blocks, and how often the walk found each.
type Copies = BTreeMap<DeadEntry, u32>;

/// Checks the snapshots of a data set whose head was just walked. `is_freeing`: its free queue is not empty. Snapshots may still count
/// blocks in it that they do not refer to.
pub(crate) fn check_snapshots(
    objects: &Arc<ObjectSets>,
    dataset: &StoredDataset,
    (head, is_freeing): (&BTreeSet<Addr>, bool),
    walk: &mut Walk<'_>,
) {
    let name = dataset.name();
    let mut listed = Copies::new();
    let mut is_whole = true;
    // Bytes that each snapshot refers to: blocks of the head, and blocks that left it since.
    let mut referenced = vec![0u64; dataset.snapshots.len()];
    for (sum, snapshot) in referenced.iter_mut().zip(&dataset.snapshots) {
        let older = walk.by_birth.range(..=snapshot.info.created).map(|(_, bytes)| *bytes);
        *sum = older.fold(0, u64::saturating_add);
    }
    for (index, list) in dataset.lists().enumerate() {
        let at = format!("{name}, dead list {list}");
        is_whole &= check_list(objects, dataset, (index, list), &at, (&mut listed, &mut referenced), walk);
    }
    let mut before = dataset.origin;
    let mut kept = Copies::new();
    let mut clones = walk.clones.clone();
    let mut seen_indirect = HashSet::new();
    for snapshot in &dataset.snapshots {
        let at = format!("{name}, snapshot {}", snapshot.name);
        let mut of_snapshot = SnapshotWalk {
            pool: objects.pool(),
            set: dataset.set,
            before,
            head,
            clones: &mut clones,
            walk: &mut *walk,
            at: &at,
            kept: &mut kept,
            seen_indirect: &mut seen_indirect,
            is_whole: true,
        };
        of_snapshot.walk_header(&snapshot.info.root);
        is_whole &= of_snapshot.is_whole;
        before = snapshot.info.created;
    }
    if !is_whole {
        return;
    }
    for (snapshot, found) in dataset.snapshots.iter().zip(referenced).filter(|_| !is_freeing) {
        let at = format!("{name}, snapshot {}, bytes referenced", snapshot.name);
        walk.report.expect(kind::DEAD_LIST, at, found, snapshot.info.referenced_bytes());
    }
    for (entry, times) in &kept {
        let found = listed.get(entry).copied().unwrap_or(0);
        if found != *times {
            let at = format!("{name}, copy born at {} in txg {}", entry.addr, entry.birth);
            walk.report.add(kind::DEAD_LIST, at, format_args!("on its dead lists {times} times"), found);
        }
    }
    for (entry, found) in listed.iter().filter(|(entry, _)| !kept.contains_key(entry)) {
        let at = format!("{name}, copy born at {} in txg {}", entry.addr, entry.birth);
        walk.report.add(
            kind::DEAD_LIST,
            at,
            "on no dead list: no snapshot refers to it",
            format_args!("{found} times"),
        );
    }
}

/// Collects the entries of a list. Returns whether all of them could be read.
fn check_list(
    objects: &Arc<ObjectSets>,
    dataset: &StoredDataset,
    (index, list): (usize, ObjectId),
    at: &str,
    (listed, referenced): (&mut Copies, &mut [u64]),
    walk: &mut Walk<'_>,
) -> bool {
    let before = dataset.before(index);
    let unique_after = if index == 0 { Txg(u64::MAX) } else { dataset.before(index - 1) };
    let parts = match list_parts(objects, list) {
        Ok(parts) => parts,
        Err(error) => {
            walk.report.add(kind::UNREADABLE, at, "a dead list", error);
            return false;
        }
    };
    let is_scan_due = parts.first().is_some_and(|(_, info)| info.is_scan_due);
    let mut unique_bytes = 0u64;
    for (part, info) in &parts {
        let mut found = PartInfo::default();
        let mut waiting = Vec::new();
        let outcome = each_dead_entry(objects, *part, &mut |entry| {
            found.entries += 1;
            found.used_bytes = found.used_bytes.saturating_add(entry.bytes());
            if entry.birth > before {
                waiting.push(*entry);
            } else {
                if entry.birth > unique_after {
                    unique_bytes = unique_bytes.saturating_add(entry.bytes());
                }
                let older = dataset.snapshots.iter().zip(&mut *referenced).take(index);
                for (_, sum) in older.filter(|(snapshot, _)| snapshot.info.created >= entry.birth) {
                    *sum = sum.saturating_add(entry.bytes());
                }
                // Older blocks belong to the origin.
                if entry.birth > dataset.origin {
                    *listed.entry(*entry).or_default() += 1;
                }
            }
        });
        if let Err(error) = outcome {
            walk.report.add(kind::UNREADABLE, at, "a dead list", error);
            return false;
        }
        let counts = |info: &PartInfo| format!("{} entries of {} bytes", info.entries, info.used_bytes);
        walk.report.expect(kind::DEAD_LIST, format_args!("{at}, part {part}"), counts(&found), counts(info));
        if let Some(entry) = waiting.first().filter(|_| !is_scan_due) {
            let at = format!("{at}, copy born at {} in txg {}", entry.addr, entry.birth);
            walk.report.add(
                kind::DEAD_LIST,
                at,
                format_args!("born in txg {before} or before"),
                "a list that is not due",
            );
        }
        waiting.iter().for_each(|entry| walk.record_waiting(entry.addr, entry.bytes()));
    }
    // The list of a destroyed data set is not counted again.
    let is_counted = !is_scan_due && dataset.path.is_some();
    if let Some((_, first)) = parts.first().filter(|_| is_counted) {
        walk.report.expect(
            kind::DEAD_LIST,
            format_args!("{at}, unique bytes"),
            unique_bytes,
            first.unique_bytes,
        );
    }
    true
}

/// A walk over the blocks of a snapshot that are younger than the snapshot before it.
struct SnapshotWalk<'w, 'a> {
    pool: &'w Arc<Pool>,
    set: ObjectId,
    before: Txg,
    /// Copies that the head refers to, without clones.
    head: &'w BTreeSet<Addr>,
    /// Clones in the head that the walk has not met yet.
    clones: &'w mut BTreeMap<(Addr, Txg), u32>,
    walk: &'w mut Walk<'a>,
    at: &'w str,
    kept: &'w mut Copies,
    /// Indirect blocks that were walked. If many pointers led to one, the walk would not end.
    seen_indirect: &'w mut HashSet<u64>,
    is_whole: bool,
}

impl SnapshotWalk<'_, '_> {
    fn owner(&self, object: u64, level: u8, block: u64) -> Owner {
        Owner::Block { objset: self.set.0, object, level, block }
    }

    fn unreadable(&mut self, error: &dyn std::fmt::Display) {
        self.is_whole = false;
        self.walk.report.add(kind::UNREADABLE, self.at, "a snapshot", error);
    }

    fn read(&mut self, ptr: &BlockPtr, owner: Owner) -> Option<Vec<u8>> {
        match self.pool.read(ptr, owner) {
            Ok(raw) => Some(raw.to_vec()),
            Err(error) => {
                self.unreadable(&error);
                None
            }
        }
    }

    fn walk_header(&mut self, root: &BlockPtr) {
        if root.is_hole() {
            self.unreadable(&"no root");
            return;
        }
        let raw = self.read(root, self.owner(HEADER, 0, 0));
        let Some(raw) = raw else { return };
        match ObjsetHeader::parse(&raw, self.at) {
            Ok(header) => {
                self.count(root);
                self.walk_object(0, &header.dnodes);
                for (kind, table) in
                    OwnerKind::ALL.into_iter().zip(header.owners.iter().flat_map(|all| &all.tables))
                {
                    self.walk_object(kind.table_id().0, table);
                }
            }
            Err(corrupt) => self.unreadable(&corrupt),
        }
    }

    fn walk_object(&mut self, object: u64, dnode: &Dnode) {
        self.walk_subtree(object, dnode, &dnode.root, 0, LEVELS_MAX);
        self.count(&dnode.spill);
    }

    /// Counts a block if it is younger than the snapshot before, and the head does not refer to it.
    fn count(&mut self, ptr: &BlockPtr) {
        let BlockPtr::Normal(normal) = ptr else { return };
        if ptr.latest_birth() <= self.before {
            return;
        }
        let is_in_head = match normal.is_clone {
            true => self.take_clone(normal.addrs[0], ptr.latest_birth()),
            false => normal.copies().all(|addr| self.head.contains(&addr)),
        };
        if is_in_head {
            return;
        }
        let granules = (granule_bytes(u64::from(normal.psize)) / GRANULE) as u32;
        for addr in normal.copies() {
            *self.kept.entry(DeadEntry { addr, granules, birth: ptr.latest_birth() }).or_default() += 1;
        }
        self.walk.record_of_snapshot(ptr, self.at);
    }

    /// Whether the head has a clone of this block and birth that was not met before. A block may have several of one txg.
    fn take_clone(&mut self, addr: Addr, birth: Txg) -> bool {
        let left = self.clones.get_mut(&(addr, birth)).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    fn walk_subtree(&mut self, object: u64, dnode: &Dnode, ptr: &BlockPtr, block: u64, below: u8) {
        if ptr.is_hole() || ptr.latest_birth() <= self.before {
            return;
        }
        self.count(ptr);
        let level = ptr.level();
        if level == 0 && dnode.kind != ObjectKind::Dnodes {
            return;
        }
        if level >= below {
            self.unreadable(&format_args!("a pointer of level {level} below one of level {below}"));
            return;
        }
        if level > 0
            && let BlockPtr::Normal(normal) = ptr
            && !self.seen_indirect.insert(normal.addrs[0].raw())
        {
            self.unreadable(&format_args!(
                "a second pointer to the indirect block born at {}",
                normal.addrs[0]
            ));
            return;
        }
        let Some(raw) = self.read(ptr, self.owner(object, level, block)) else { return };
        if level == 0 {
            match dnodes_in(&raw, &self.at) {
                Ok(dnodes) => {
                    let first = block.saturating_mul(SLOTS_PER_BLOCK);
                    let slots = dnodes
                        .into_iter()
                        .map(|(offset, dnode)| (first.saturating_add((offset / SLOT_BYTES) as u64), dnode));
                    slots.for_each(|(object, dnode)| self.walk_object(object, &dnode));
                }
                Err(corrupt) => self.unreadable(&corrupt),
            }
            return;
        }
        let pointers = u64::from(dnode.indirect_bytes.min(INDIRECT_BYTES)) / BlockPtr::SIZE as u64;
        for (child, raw) in (0..).zip(raw.chunks_exact(BlockPtr::SIZE)) {
            match BlockPtr::parse(raw, &self.at) {
                Ok(ptr) => {
                    let index = block.saturating_mul(pointers).saturating_add(child);
                    self.walk_subtree(object, dnode, &ptr, index, level);
                }
                Err(corrupt) => self.unreadable(&corrupt),
            }
        }
    }
}
