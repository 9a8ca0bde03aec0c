//! From changed blocks to a new root.
//!
//! An indirect block has 128 pointers, or 32 above small blocks of files. The input is new level-0 pointers and
//! freed ranges. The tree is rewritten level by level, each level in one parallel write. Each old block is
//! freed when its pointer is replaced. Freed subtrees that are too large to walk at once go to the free queue
//! as a whole.
//!
//! Invariant: every pointer that leaves the tree is freed exactly once, or queued exactly once.

#![expect(
    clippy::indexing_slicing,
    reason = "a level is at most that of the tree, and a slot is below the pointers of a block"
)]

use crate::dirty::{Ranges, TreeBlock};
use crate::dnode::{Dnode, INDIRECT_BYTES, ObjsetHeader, dnodes_in};
use crate::free_policy::Ledger;
use crate::kind::ObjectKind;
use crate::queued_subtree::QueuedSubtree;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_codec::{ChecksumKind, Compression, ZstdLevel};
use terrane_format::block_ptr::{Hole, Normal};
use terrane_format::{BlockPtr, Feature, Owner};
use terrane_pool::{Pool, Stream, TxgSync, WriteRequest};
use terrane_store::PoolError;
use terrane_store::read_retry::ReadRetry;
use terrane_wire::{Corrupt, ObjectId, ObjsetId, Txg};

/// Set and object of a tree, for owners and messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeId {
    pub objset: ObjsetId,
    pub object: ObjectId,
}

impl TreeId {
    pub fn owner(&self, level: u8, block: u64) -> Owner {
        Owner::Block { objset: self.objset.0, object: self.object.0, level, block }
    }
}

/// Compression of metadata. On trees of small files, zstd-1 takes about half the space of lz4. It still writes
/// faster than the device.
pub(crate) fn metadata_compression() -> Compression {
    Compression::Zstd(ZstdLevel::new(1).expect("1 is a valid zstd level"))
}

/// A pointer in an indirect block; beyond the stored bytes, all pointers are holes.
pub(crate) fn pointer_at(
    block: &[u8],
    index: u64,
    at: &dyn std::fmt::Display,
) -> Result<BlockPtr, PoolError> {
    let from = index as usize * BlockPtr::SIZE;
    match block.get(from..from + BlockPtr::SIZE) {
        Some(raw) => Ok(BlockPtr::parse(raw, at)?),
        None => Ok(BlockPtr::default()),
    }
}

/// Reads an indirect block and checks that its children are of the level below.
pub(crate) fn children(
    pool: &Pool,
    tree: TreeId,
    ptr: &BlockPtr,
    level: u8,
    index: u64,
) -> Result<Vec<BlockPtr>, PoolError> {
    let block = pool.read(ptr, tree.owner(level, index))?;
    (0..(block.len() / BlockPtr::SIZE) as u64)
        .map(|child| child_of(&block, tree, level, index, child))
        .collect()
}

/// The block that a new pointer of this txg shares with an older one. `None`: the txg wrote it.
fn shared_by(ptr: &BlockPtr, txg: Txg) -> Option<&Normal> {
    match ptr {
        BlockPtr::Normal(normal) if normal.block_birth < txg => Some(normal),
        _ => None,
    }
}

fn encode_pointers(pointers: &[BlockPtr]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pointers.len() * BlockPtr::SIZE);
    pointers.iter().for_each(|ptr| bytes.extend_from_slice(&ptr.encode()));
    bytes
}

fn child_of(block: &[u8], tree: TreeId, level: u8, index: u64, child: u64) -> Result<BlockPtr, PoolError> {
    let at = std::fmt::from_fn(|f| {
        let TreeId { objset, object } = tree;
        write!(f, "object set {objset} object {object} level {level} block {index} pointer {child}")
    });
    let ptr = pointer_at(block, child, &at)?;
    if !ptr.is_hole() && ptr.level() + 1 != level {
        return Err(Corrupt::new(at, "level of the pointer", level.saturating_sub(1), ptr.level()).into());
    }
    Ok(ptr)
}

/// The pointer of one block, looked up from the root.
pub(crate) fn lookup(
    pool: &Pool,
    tree: TreeId,
    dnode: &Dnode,
    level: u8,
    index: u64,
) -> Result<BlockPtr, PoolError> {
    let mut at_level = dnode.levels - 1;
    if at_level < level || index >= dnode.span(at_level - level) {
        return Ok(BlockPtr::default());
    }
    let mut ptr = dnode.root.clone();
    while at_level > level && !ptr.is_hole() {
        let above = index / dnode.span(at_level - level);
        let block = pool.read(&ptr, tree.owner(at_level, above))?;
        let child = index / dnode.span(at_level - level - 1) % dnode.pointers_per_block();
        ptr = child_of(&block, tree, at_level, above, child)?;
        at_level -= 1;
    }
    Ok(if at_level == level { ptr } else { BlockPtr::default() })
}

/// The first allocated block at or after `from`, below `end`.
pub(crate) fn next_allocated(
    pool: &Pool,
    tree: TreeId,
    dnode: &Dnode,
    from: u64,
    end: u64,
) -> Result<Option<u64>, PoolError> {
    scan(pool, tree, dnode, &dnode.root, TreeBlock { level: dnode.levels - 1, index: 0 }, from, end)
}

fn scan(
    pool: &Pool,
    tree: TreeId,
    dnode: &Dnode,
    ptr: &BlockPtr,
    TreeBlock { level, index }: TreeBlock,
    from: u64,
    end: u64,
) -> Result<Option<u64>, PoolError> {
    let span = dnode.span(level);
    let first = index.saturating_mul(span);
    if ptr.is_hole() || first >= end || first.saturating_add(span) <= from {
        return Ok(None);
    }
    if level == 0 {
        return Ok(Some(index));
    }
    for (child, ptr) in children(pool, tree, ptr, level, index)?.iter().enumerate() {
        let below = index.saturating_mul(dnode.pointers_per_block()).saturating_add(child as u64);
        let below = TreeBlock { level: level - 1, index: below };
        if let Some(found) = scan(pool, tree, dnode, ptr, below, from, end)? {
            return Ok(Some(found));
        }
    }
    if first >= from && first.saturating_add(span) <= end {
        // No writer stores an indirect block without a block below it. If many pointers led to one, the search would not end.
        let TreeId { objset, object } = tree;
        let at = format!("object set {objset} object {object} level {level} block {index}");
        return Err(Corrupt::new(at, "pointers", "one that is no hole", "holes").into());
    }
    Ok(None)
}

/// Neighbouring blocks that were all written, or all freed, since a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangedRun {
    pub first: u64,
    pub end: u64,
    pub is_hole: bool,
}

/// A bounded walk over everything changed since a txg, starting at a block.
///
/// A pointer carries the birth of the newest change below it, so older subtrees are skipped. A hole keeps its
/// birth only until something below it is written: the new indirect block does not know the births of its other
/// holes. So below a young pointer, every hole of unknown birth counts as changed.
pub(crate) struct ChangeWalk<'a> {
    pool: &'a Pool,
    tree: TreeId,
    dnode: &'a Dnode,
    since: Txg,
    from: u64,
    /// Blocks and holes that it may still find.
    remaining: u64,
    pub runs: Vec<ChangedRun>,
    /// Everything before this block was visited.
    pub scanned_to: u64,
}

impl<'a> ChangeWalk<'a> {
    pub fn new(pool: &'a Pool, tree: TreeId, dnode: &'a Dnode, since: Txg, from: u64, limit: u64) -> Self {
        ChangeWalk {
            pool,
            tree,
            dnode,
            since,
            from,
            remaining: limit.max(1),
            runs: Vec::new(),
            scanned_to: u64::MAX,
        }
    }

    /// Walks until everything was visited or the limit is reached.
    pub fn walk(&mut self) -> Result<(), PoolError> {
        let dnode = self.dnode;
        if dnode.root.logical_birth() < self.since || dnode.root.logical_birth() == Txg(0) {
            return Ok(());
        }
        let top = dnode.levels - 1;
        self.visit(&dnode.root, TreeBlock { level: top, index: 0 })?;
        // Blocks beyond the span of the tree were truncated.
        self.add_run(dnode.span(top), u64::MAX, true);
        Ok(())
    }

    fn add_run(&mut self, first: u64, end: u64, is_hole: bool) {
        let first = first.max(self.from);
        if first >= end || self.scanned_to != u64::MAX {
            return;
        }
        match self.runs.last_mut() {
            Some(last) if last.end == first && last.is_hole == is_hole => last.end = end,
            _ if self.remaining == 0 => {
                self.scanned_to = first;
                return;
            }
            _ => self.runs.push(ChangedRun { first, end, is_hole }),
        }
        self.remaining = self.remaining.saturating_sub(1);
    }

    fn visit(&mut self, ptr: &BlockPtr, TreeBlock { level, index }: TreeBlock) -> Result<(), PoolError> {
        let span = self.dnode.span(level);
        let first = index.saturating_mul(span);
        let end = first.saturating_add(span);
        let is_old = ptr.logical_birth() < self.since && ptr.logical_birth() != Txg(0);
        if is_old || end <= self.from || self.scanned_to != u64::MAX {
            return Ok(());
        }
        if ptr.is_hole() || level == 0 {
            if self.remaining == 0 {
                self.scanned_to = first.max(self.from);
            } else {
                self.add_run(first, end, ptr.is_hole());
            }
            return Ok(());
        }
        let below = children(self.pool, self.tree, ptr, level, index)?;
        let pointers = self.dnode.pointers_per_block();
        for (child, ptr) in (0..).zip(&below) {
            let index = index.saturating_mul(pointers).saturating_add(child);
            self.visit(ptr, TreeBlock { level: level - 1, index })?;
        }
        let behind = first.saturating_add((below.len() as u64).saturating_mul(self.dnode.span(level - 1)));
        self.add_run(behind, end, true);
        Ok(())
    }
}

/// A tree being rewritten.
pub(crate) struct TreeRewrite<'a, 'g, 'l> {
    txg_sync: &'a mut TxgSync<'g>,
    tree: TreeId,
    checksum: ChecksumKind,
    ledger: &'a mut Ledger<'l>,
    /// The tree before this sync.
    old: Dnode,
    /// New pointers by level.
    changes: Vec<BTreeMap<u64, BlockPtr>>,
    /// Indirect blocks to rewrite even without changes below.
    forced: BTreeSet<TreeBlock>,
    /// Blocks detached with everything below: their old pointers are freed or queued already.
    detached: Vec<BTreeSet<u64>>,
    /// Pointers that leave the tree, subtrees for the queue, and written blocks. They are passed on only when
    /// the whole tree is done. So an object with an unreadable tree keeps the old one.
    to_free: Vec<BlockPtr>,
    queued: Vec<BlockPtr>,
    written: Vec<BlockPtr>,
    freed_bytes: u64,
    /// Level-0 blocks under queued subtrees, by the stored fills. Their size is known only when they are walked.
    queued_fill: u64,
}

impl<'a, 'g, 'l> TreeRewrite<'a, 'g, 'l> {
    /// Starts a rewrite. Subtrees too large to free at once go to the ledger's queue.
    pub fn new(
        txg_sync: &'a mut TxgSync<'g>,
        tree: TreeId,
        mut old: Dnode,
        checksum: ChecksumKind,
        ledger: &'a mut Ledger<'l>,
    ) -> Self {
        // Without indirect blocks, their size can still change.
        old.indirect_bytes = old.indirect_bytes_of(old.block_bytes, txg_sync.pool().has(Feature::Pointers));
        let levels = usize::from(old.levels);
        let (changes, detached) = (vec![BTreeMap::new(); levels], vec![BTreeSet::new(); levels]);
        TreeRewrite {
            txg_sync,
            tree,
            checksum,
            ledger,
            old,
            changes,
            forced: BTreeSet::new(),
            detached,
            to_free: Vec::new(),
            queued: Vec::new(),
            written: Vec::new(),
            freed_bytes: 0,
            queued_fill: 0,
        }
    }

    /// Also rewrites these indirect blocks, if they are still in the tree.
    pub fn with_forced(mut self, forced: &BTreeSet<TreeBlock>) -> Self {
        self.forced.clone_from(forced);
        self
    }

    /// Detaches the freed ranges, inserts the new level-0 pointers, and returns the dnode with its new root. On
    /// an error nothing has changed: the new blocks are freed, and the old tree stays.
    pub fn apply(mut self, freed: &Ranges, new: BTreeMap<u64, BlockPtr>) -> Result<Dnode, PoolError> {
        self.written.extend(new.values().cloned());
        let rebuilt = self.rebuild(freed, new);
        if rebuilt.is_ok() {
            let txg = self.txg_sync.txg();
            self.queued.drain(..).for_each(|root| self.ledger.detach(txg, root));
            for ptr in &self.written {
                self.ledger.added.add_of_tree(ptr);
                if let Some(shared) = shared_by(ptr, txg) {
                    self.txg_sync.add_reference(shared);
                }
            }
            self.to_free.iter().for_each(|ptr| self.ledger.remove_block(self.txg_sync, ptr));
        } else {
            let txg = self.txg_sync.txg();
            let own = self.written.iter().filter(|ptr| shared_by(ptr, txg).is_none());
            own.for_each(|ptr| self.ledger.discard(self.txg_sync, ptr));
        }
        rebuilt
    }

    fn rebuild(&mut self, freed: &Ranges, new: BTreeMap<u64, BlockPtr>) -> Result<Dnode, PoolError> {
        let mut dnode = self.old.clone();
        let mut new_bytes: u64 = new.values().map(BlockPtr::allocated_bytes).sum();
        for (first, end) in freed.iter() {
            self.detach(&dnode.root, dnode.levels - 1, 0, first, end)?;
        }
        let needed = new.keys().next_back().map_or(1, |last| last + 1);
        while dnode.span(dnode.levels - 1) < needed {
            dnode.levels += 1;
            self.changes.push(BTreeMap::new());
            self.detached.push(BTreeSet::new());
        }
        self.changes[0].extend(new);
        let top = dnode.levels - 1;
        for level in 0..top {
            new_bytes += self.rewrite_level(level)?;
        }
        if let Some(root) = self.changes[usize::from(top)].remove(&0) {
            self.free_old_pointer(top, 0)?;
            dnode.root = root;
        }
        if let BlockPtr::Hole(hole) = &dnode.root {
            dnode.root = BlockPtr::Hole(Hole { level: 0, ..*hole });
            dnode.levels = 1;
        }
        match dnode.levels {
            // Its size says nothing then, and may not be known to an older version.
            1 => dnode.indirect_bytes = INDIRECT_BYTES,
            _ if dnode.indirect_bytes != INDIRECT_BYTES => self.txg_sync.pool().note_use(Feature::Pointers),
            _ => {}
        }
        // Queued subtrees subtract a share by their block count; exact if they were the whole tree.
        let spill_bytes = dnode.spill.allocated_bytes();
        // The stored value may be damaged.
        let old = dnode.used.saturating_sub(self.freed_bytes).saturating_sub(spill_bytes);
        let fill_before = self.old.root.fill().max(1);
        let queued =
            u128::from(old) * u128::from(self.queued_fill.min(fill_before)) / u128::from(fill_before);
        let left = old.saturating_sub(queued as u64);
        let used = if dnode.root.is_hole() { 0 } else { left.saturating_add(new_bytes) };
        dnode.used = spill_bytes.saturating_add(used);
        Ok(dnode)
    }

    fn detach(
        &mut self,
        ptr: &BlockPtr,
        level: u8,
        index: u64,
        first: u64,
        end: u64,
    ) -> Result<(), PoolError> {
        let span = self.old.span(level);
        let from = index.saturating_mul(span);
        let to = from.saturating_add(span);
        if ptr.is_hole() || from >= end || to <= first {
            return Ok(());
        }
        if first > from || to > end {
            let all = children(self.txg_sync.pool(), self.tree, ptr, level, index)?;
            for (child, ptr) in all.iter().enumerate() {
                self.detach(
                    ptr,
                    level - 1,
                    index.saturating_mul(self.old.pointers_per_block()).saturating_add(child as u64),
                    first,
                    end,
                )?;
            }
            return Ok(());
        }
        if level >= 2 {
            self.queued_fill = self.queued_fill.saturating_add(ptr.fill());
            self.queued.push(ptr.clone());
        } else {
            if level == 1 {
                let children = {
                    let _patience = ReadRetry::none();
                    children(self.txg_sync.pool(), self.tree, ptr, level, index)
                };
                match children {
                    Ok(children) => children.iter().for_each(|child| self.mark_freed(child)),
                    // After a transient read error, it is freed later.
                    Err(error) if error.is_transient() => {
                        self.queued_fill = self.queued_fill.saturating_add(ptr.fill());
                        self.queued.push(ptr.clone());
                        self.note_detached(level, index, ptr);
                        return Ok(());
                    }
                    Err(error) => self.report_unreadable(error)?,
                }
            }
            self.mark_freed(ptr);
        }
        self.note_detached(level, index, ptr);
        Ok(())
    }

    /// Puts a hole in place of this pointer.
    fn note_detached(&mut self, level: u8, index: u64, ptr: &BlockPtr) {
        let hole = Hole { kind: self.old.kind as u8, level, lsize: ptr.lsize(), birth: self.txg_sync.txg() };
        self.changes[usize::from(level)].insert(index, BlockPtr::Hole(hole));
        self.detached[usize::from(level)].insert(index);
    }

    fn mark_freed(&mut self, ptr: &BlockPtr) {
        self.freed_bytes = self.freed_bytes.saturating_add(ptr.allocated_bytes());
        self.to_free.push(ptr.clone());
    }

    /// Frees the pointer that a block had before this sync, unless that is done.
    fn free_old_pointer(&mut self, level: u8, index: u64) -> Result<(), PoolError> {
        match self.old_pointer(level, index) {
            Ok(old) => self.mark_freed(&old),
            Err(error) => self.report_unreadable(error)?,
        }
        Ok(())
    }

    /// The pointer that a block had before this sync; a hole if it was detached.
    fn old_pointer(&self, level: u8, index: u64) -> Result<BlockPtr, PoolError> {
        let mut above = index;
        for level in usize::from(level)..self.detached.len() {
            if self.detached[level].contains(&above) {
                return Ok(BlockPtr::default());
            }
            above /= self.old.pointers_per_block();
        }
        lookup(self.txg_sync.pool(), self.tree, &self.old, level, index)
    }

    /// Writes the parents of all changed blocks of a level; returns their stored bytes.
    fn rewrite_level(&mut self, level: u8) -> Result<u64, PoolError> {
        let changed = std::mem::take(&mut self.changes[usize::from(level)]);
        let mut parents: BTreeMap<u64, Vec<(u64, BlockPtr)>> = BTreeMap::new();
        if level + 1 == self.old.levels && !self.old.root.is_hole() && !changed.contains_key(&0) {
            // The tree grows over an unchanged root, which becomes the first child.
            parents.entry(0).or_default().push((0, self.old.root.clone()));
        }
        let is_top = level + 1 >= self.old.levels;
        for (index, ptr) in changed {
            if is_top {
                // No block of the old tree lies above it.
                self.free_old_pointer(level, index)?;
            }
            let pointers = self.old.pointers_per_block();
            parents.entry(index / pointers).or_default().push((index % pointers, ptr));
        }
        let above = level + 1;
        if !is_top {
            let of_level = |index| TreeBlock { level: above, index };
            for TreeBlock { index, .. } in self.forced.range(of_level(0)..=of_level(u64::MAX)) {
                parents.entry(*index).or_default();
            }
        }
        let mut indices = Vec::with_capacity(parents.len());
        let mut requests = Vec::with_capacity(parents.len());
        for (parent, new) in parents {
            let is_unchanged = new.is_empty();
            let patience = is_unchanged.then(ReadRetry::none);
            let patched = self.patched(above, parent, new);
            drop(patience);
            let pointers = match patched {
                // It has no changes, so nothing is lost if it stays.
                Err(error) if is_unchanged => {
                    if !error.is_transient() {
                        self.report_unreadable(error)?;
                    }
                    continue;
                }
                pointers => pointers?,
            };
            if is_unchanged && pointers.is_empty() {
                // It left the tree.
                continue;
            }
            if pointers.iter().all(BlockPtr::is_hole) {
                let hole =
                    Hole { kind: self.old.kind as u8, level: above, lsize: 0, birth: self.txg_sync.txg() };
                self.changes[usize::from(above)].insert(parent, BlockPtr::Hole(hole));
                continue;
            }
            indices.push(parent);
            requests.push(WriteRequest {
                fill: pointers.iter().map(BlockPtr::fill).fold(0, u64::saturating_add),
                data: Arc::new(encode_pointers(&pointers)),
                kind: self.old.kind as u8,
                compression: metadata_compression().into(),
                checksum: self.checksum,
                owner: self.tree.owner(above, parent),
                content_birth: None,
                stream: Stream::Metadata,
                may_embed: false,
                replaces: None,
            });
        }
        let written = self.txg_sync.write(requests)?;
        self.written.extend(written.iter().cloned());
        let bytes = written.iter().map(BlockPtr::allocated_bytes).sum();
        self.changes[usize::from(above)].extend(indices.into_iter().zip(written));
        Ok(bytes)
    }

    /// An indirect block's pointers with the new ones in place. The old ones are freed. Trailing holes that
    /// were never written are omitted.
    fn patched(
        &mut self,
        level: u8,
        index: u64,
        new: Vec<(u64, BlockPtr)>,
    ) -> Result<Vec<BlockPtr>, PoolError> {
        let old = self.old_pointer(level, index)?;
        let mut pointers = if old.is_hole() {
            Vec::new()
        } else {
            children(self.txg_sync.pool(), self.tree, &old, level, index)?
        };
        for (slot, ptr) in new {
            let number = index * self.old.pointers_per_block() + slot;
            let slot = slot as usize;
            if pointers.len() <= slot {
                pointers.resize(slot + 1, BlockPtr::default());
            }
            let old = std::mem::replace(&mut pointers[slot], ptr);
            if !old.is_hole() && !self.detached[usize::from(level) - 1].contains(&number) {
                self.mark_freed(&old);
            }
        }
        Ok(pointers)
    }
}

impl TreeRewrite<'_, '_, '_> {
    /// An unreadable block cannot be freed: its space is reported as lost, and the txg goes on.
    fn report_unreadable(&self, error: PoolError) -> Result<(), PoolError> {
        report_permanent_error(self.txg_sync.pool(), error)
    }
}

/// Reports damage, and device errors that no retry can clear, like a missing zone. Returns all other errors,
/// including read errors.
pub(crate) fn report_permanent_error(pool: &Pool, error: PoolError) -> Result<(), PoolError> {
    match error {
        PoolError::Corrupt(corrupt) => pool.report_damage(corrupt),
        PoolError::Device(gone) if !PoolError::Device(gone.clone()).is_transient() => {
            log::error!("space lost: {gone}")
        }
        other => return Err(other),
    }
    Ok(())
}

/// Frees part of a queued subtree, and returns the rest to the queue. Returns the number of freed blocks. A header block or a block of
/// dnodes stands for all objects in it. It is in a queue only if its set is retired.
pub(crate) fn free_subtree(
    txg_sync: &mut TxgSync<'_>,
    tree: TreeId,
    queued: &QueuedSubtree,
    ledger: &mut Ledger<'_>,
) -> Result<u64, PoolError> {
    let level = queued.root.level();
    let kind = ObjectKind::from_id(queued.root.kind());
    let mut freed = 1;
    if level == 0 && matches!(kind, Some(ObjectKind::Objset | ObjectKind::Dnodes)) {
        let roots = roots_in(txg_sync.pool(), tree, &queued.root)?;
        ledger
            .queue
            .extend(roots.into_iter().filter(|root| queued.owns(root)).map(|root| queued.with_root(root)));
    } else if level > 0 {
        let below = children(txg_sync.pool(), tree, &queued.root, level, 0)?;
        for child in below.into_iter().filter(|child| queued.owns(child)) {
            let child = queued.with_root(child);
            // Many objects may hang below a block of dnodes.
            if level > 2 || kind == Some(ObjectKind::Dnodes) {
                ledger.queue.push(child);
            } else {
                match free_subtree(txg_sync, tree, &child, ledger) {
                    Ok(below) => freed += below,
                    // Its siblings can still be freed now, and it later.
                    Err(error) if error.is_transient() => ledger.queue.push(child),
                    Err(error) => report_permanent_error(txg_sync.pool(), error)?,
                }
            }
        }
    }
    ledger.remove_queued(txg_sync, queued);
    Ok(freed)
}

/// Pointers to everything that a header block, or a block of dnodes, refers to.
fn roots_in(pool: &Pool, tree: TreeId, ptr: &BlockPtr) -> Result<Vec<BlockPtr>, PoolError> {
    let raw = pool.read(ptr, tree.owner(0, 0))?;
    let at = format!("object set {} that is being destroyed", tree.objset);
    if ptr.kind() == ObjectKind::Objset as u8 {
        let header = ObjsetHeader::parse(&raw, &at)?;
        return Ok(header.roots());
    }
    let dnodes = dnodes_in(&raw, &at)?;
    Ok(dnodes.into_iter().flat_map(|(_, dnode)| [dnode.root, dnode.spill]).collect())
}
