//! A second object that is filled with the same content in blocks of another size, and the exchange of their
//! trees.
//!
//! The caller copies what changed since a txg, and repeats this until little is left. Changes are found
//! by the births of pointers. A change that is undone in its own txg leaves no birth. So only synced content is
//! copied ([`Object::read_synced`]). Finally, while no other thread writes, the rest is copied and the trees
//! are exchanged, in one txg.
//!
//! If the second object's tree is unreadable, a txg's changes to it are lost, as with any object, and are not
//! copied again. So its dnode gets that txg as its birth. The caller and an import recognize the loss by it.

#![expect(clippy::indexing_slicing, reason = "arrays of two")]

use super::{Object, RecentBlocks, State};
use crate::dnode::Dnode;
use crate::error::ObjectError;
use crate::tree::{ChangeWalk, lookup};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrane_pool::Tx;
use terrane_wire::{Corrupt, ObjectId, Txg};

/// Ranges of bytes, in whole blocks, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedRanges {
    /// Written blocks. One that was freed in the same unsynced txg may be in `holes` too.
    pub written: Vec<Range<u64>>,
    /// Holes; may include holes that are older.
    pub holes: Vec<Range<u64>>,
    /// There is no other change before this byte; `u64::MAX`: nor behind it.
    pub scanned_to: u64,
}

impl Object {
    /// Writes its blocks under the number of the object that will get them, until this `Object` is dropped.
    pub fn set_copy_target(&self, other: ObjectId) {
        self.copy_target.store(other.0, Ordering::Relaxed);
    }

    /// Whether [`set_copy_target`](Self::set_copy_target) was called.
    pub(crate) fn is_second_copy(&self) -> bool {
        self.copy_target.load(Ordering::Relaxed) != 0
    }

    /// Changes at or after byte `from` by txg `since` and later ones, as of the last sync. Stops after about
    /// `bytes_max` bytes; each block counts, and each hole counts as one block.
    pub fn changes_since(&self, since: Txg, from: u64, bytes_max: u64) -> Result<ChangedRanges, ObjectError> {
        loop {
            let dnode = self.synced_dnode()?;
            let bytes = u64::from(dnode.block_bytes);
            let table = self.table()?;
            let most = bytes_max / bytes;
            let mut walk = ChangeWalk::new(table.pool(), self.tree_id(), &dnode, since, from / bytes, most);
            match walk.walk() {
                Ok(()) => {}
                Err(error) if self.state.read().dnode.root == dnode.root => return Err(error.into()),
                // The tree was replaced meanwhile, and GC reclaimed its old blocks.
                Err(_) => continue,
            }
            let mut changes = ChangedRanges {
                scanned_to: walk.scanned_to.saturating_mul(bytes),
                ..ChangedRanges::default()
            };
            for run in walk.runs {
                let range = run.first.saturating_mul(bytes)..run.end.saturating_mul(bytes);
                if run.is_hole { changes.holes.push(range) } else { changes.written.push(range) }
            }
            return Ok(changes);
        }
    }

    /// Changes that are not synced yet. A block that was written and freed in the same txg may be in both
    /// lists.
    pub fn unsynced_changes(&self) -> ChangedRanges {
        let state = self.state.read();
        let bytes = u64::from(state.dnode.block_bytes);
        let mut changes = ChangedRanges { scanned_to: u64::MAX, ..ChangedRanges::default() };
        for dirty in state.layers() {
            let range = |first: u64, end: u64| first.saturating_mul(bytes)..end.saturating_mul(bytes);
            changes.written.extend(dirty.blocks.keys().map(|block| range(*block, block + 1)));
            changes.holes.extend(dirty.freed.iter().map(|(first, end)| range(first, end)));
        }
        changes
    }

    /// Fills `buf` from `offset` with the content as of the last sync, without later changes.
    pub fn read_synced(&self, offset: u64, buf: &mut [u8]) -> Result<(), ObjectError> {
        let mut tried = None;
        loop {
            let dnode = self.synced_dnode()?;
            match self.read_tree(&dnode, offset, buf) {
                Ok(()) => return Ok(()),
                // Between lookup and read, the tree may have been replaced, and its old blocks reclaimed.
                Err(_) if tried.as_ref() != Some(&dnode.root) => tried = Some(dnode.root),
                Err(error) => return Err(error),
            }
        }
    }

    /// The dnode with the tree of the last sync.
    pub(crate) fn synced_dnode(&self) -> Result<Dnode, ObjectError> {
        let state = self.state.read();
        if state.destroyed { Err(ObjectError::NotFound(self.id())) } else { Ok(state.dnode.clone()) }
    }

    fn read_tree(&self, dnode: &Dnode, offset: u64, buf: &mut [u8]) -> Result<(), ObjectError> {
        let (table, bytes) = (self.table()?, u64::from(dnode.block_bytes));
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let (block, inside) = (at / bytes, (at % bytes) as usize);
            let (piece, after) = rest.split_at_mut(rest.len().min(bytes as usize - inside));
            at += piece.len() as u64;
            rest = after;
            piece.fill(0);
            let ptr = lookup(table.pool(), self.tree_id(), dnode, 0, block)?;
            if ptr.is_hole() {
                continue;
            }
            let (len, owner) = (ptr.lsize() as usize, self.tree_id().owner(0, block));
            if let Some(content) = piece.get_mut(..len).filter(|_| inside == 0) {
                table.pool().read_into(&ptr, owner, content)?;
                continue;
            }
            let mut content = vec![0; len];
            table.pool().read_into(&ptr, owner, &mut content)?;
            piece.iter_mut().zip(content.iter().skip(inside)).for_each(|(to, from)| *to = *from);
        }
        Ok(())
    }

    /// Frees ranges of blocks, and stores whole blocks, possibly without trailing zeros.
    pub fn put_blocks(
        self: &Arc<Self>,
        tx: &Tx,
        freed: &[Range<u64>],
        blocks: Vec<(u64, Vec<u8>)>,
    ) -> Result<(), ObjectError> {
        let (dnode, table) = (self.state.read().dnode.clone(), self.table()?);
        // The sync needs the path to each block, and to both ends of each freed range. So an unreadable path
        // fails here.
        let ends = freed.iter().flat_map(|range| [range.start, range.end]);
        for block in blocks.iter().map(|(block, _)| *block).chain(ends) {
            lookup(table.pool(), self.tree_id(), &dnode, 0, block)?;
        }
        self.change(tx, |state| {
            for range in freed {
                state.dirty(tx.txg()).free(range.start, range.end);
            }
            for (block, content) in blocks {
                state.put(tx.txg(), block, Arc::new(content));
            }
        })
    }

    /// Takes the content of `other` with its blocks, and leaves `other` empty. The old content is freed with
    /// this txg. No other thread may read or write either object meanwhile. False: a txg that changed one of
    /// them is not synced yet, and nothing happened. Refused if the birth of `other` is not `birth`:
    /// then `other` has lost changes.
    pub fn take_content(
        self: &Arc<Self>,
        tx: &Tx,
        other: &Arc<Self>,
        birth: Txg,
    ) -> Result<bool, ObjectError> {
        // Both belong to this txg from now on.
        self.change(tx, |_| ())?;
        other.change(tx, |_| ())?;
        let (mut ours, mut theirs) = if self.id() < other.id() {
            let ours = self.state.write();
            (ours, other.state.write())
        } else {
            let theirs = other.state.write();
            (self.state.write(), theirs)
        };
        if ours.syncing.is_some() || theirs.syncing.is_some() {
            return Ok(false);
        }
        if theirs.dnode.birth != birth {
            let at = format!("object set {} object {}", other.own_id.objset, other.id());
            return Err(Corrupt::new(at, "birth of the second copy", birth, theirs.dnode.birth).into());
        }
        let (ours, theirs): (&mut State, &mut State) = (&mut ours, &mut theirs);
        let spills = [&ours.dnode, &theirs.dnode].map(|dnode| dnode.spill.allocated_bytes());
        let content = [&ours.dnode, &theirs.dnode].map(|dnode| dnode.used);
        let [our_content, their_content] = std::array::from_fn(|at| content[at].saturating_sub(spills[at]));
        let (our_dnode, their_dnode) = (&mut ours.dnode, &mut theirs.dnode);
        std::mem::swap(&mut our_dnode.root, &mut their_dnode.root);
        std::mem::swap(&mut our_dnode.levels, &mut their_dnode.levels);
        std::mem::swap(&mut our_dnode.indirect_bytes, &mut their_dnode.indirect_bytes);
        std::mem::swap(&mut our_dnode.block_bytes, &mut their_dnode.block_bytes);
        our_dnode.block_count = std::mem::take(&mut their_dnode.block_count);
        our_dnode.used = spills[0].saturating_add(their_content);
        their_dnode.used = spills[1].saturating_add(our_content);
        let [our_dirty, their_dirty] = [&mut *ours, &mut *theirs].map(|state| state.dirty(tx.txg()));
        our_dirty.blocks = std::mem::take(&mut their_dirty.blocks);
        our_dirty.restored = std::mem::take(&mut their_dirty.restored);
        our_dirty.freed = std::mem::take(&mut their_dirty.freed);
        our_dirty.forced_indirect = std::mem::take(&mut their_dirty.forced_indirect);
        their_dirty.free(0, u64::MAX);
        (ours.recent, theirs.recent) = (RecentBlocks::default(), RecentBlocks::default());
        for object in [self, other] {
            *object.read_streams.lock() = None;
        }
        Ok(true)
    }
}
