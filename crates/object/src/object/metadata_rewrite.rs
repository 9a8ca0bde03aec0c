//! Rewriting a metadata block with the same content: a ZAP block, a spill, an indirect block, or a dnode block.
//!
//! The block is found and read first, so that an unreadable or missing block joins no txg. Then it is
//! marked for rewriting, if it is still the block that was found. A dnode block is written whenever one of its
//! objects is, and so are the indirect blocks above it. There, writing any object below it, unchanged, is
//! enough.

use super::Object;
use crate::dirty::{DirtyContent, Restored, SpillChange, TreeBlock};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::tree::{children, lookup};
use std::sync::Arc;
use terrane_format::directory::SPILL;
use terrane_format::{Addr, BlockPtr};
use terrane_pool::Tx;
use terrane_store::pipeline::PreEncoded;
use terrane_wire::ObjectId;

/// A block that was found.
#[derive(Debug)]
pub struct MetadataRewrite {
    object: Arc<Object>,
    target: RewriteTarget,
    ptr: BlockPtr,
    /// Upper bound of the bytes that will be written, one copy, except for the dnode's blocks.
    bytes: u64,
}

#[derive(Debug)]
enum RewriteTarget {
    /// A block of the object, and its content.
    Block(u64, Arc<Vec<u8>>),
    Spill(Arc<Vec<u8>>),
    /// An indirect block: its level, and index in it.
    Indirect(u8, u64),
    /// A dnode block, or an indirect block above dnodes: the object lies below.
    Dnode,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {}", self.id())
    }
}

impl Object {
    /// Finds the metadata block of this object with a copy born at `addr`, as of the last sync. `None`: it is
    /// not metadata, no longer exists, or will be written anyway.
    pub(crate) fn find_for_rewrite(
        self: Arc<Self>,
        level: u8,
        block: u64,
        addr: Addr,
    ) -> Result<Option<MetadataRewrite>, ObjectError> {
        // Only the sync changes these objects. Rewriting content that was read earlier would undo a change of the sync.
        if matches!(self.kind(), ObjectKind::FreeQueue | ObjectKind::DeadList) {
            return Ok(None);
        }
        if level > 0 {
            return self.find_indirect(level, block, addr);
        }
        if block == SPILL {
            let ptr = self.dnode().spill;
            let Some(spill) = self.spill()?.filter(|_| has_copy_born_at(&ptr, addr)) else { return Ok(None) };
            let bytes = spill.len() as u64;
            return Ok(Some(MetadataRewrite {
                object: self,
                target: RewriteTarget::Spill(spill),
                ptr,
                bytes,
            }));
        }
        if !self.kind().is_metadata() {
            return Ok(None);
        }
        let found = self.stored_block(block)?.filter(|(ptr, _)| has_copy_born_at(ptr, addr));
        Ok(found.map(|(ptr, content)| {
            let bytes = content.len() as u64 + self.dnode().indirect_bytes_above(0);
            MetadataRewrite { object: self, target: RewriteTarget::Block(block, content), ptr, bytes }
        }))
    }

    fn find_indirect(
        self: Arc<Self>,
        level: u8,
        index: u64,
        addr: Addr,
    ) -> Result<Option<MetadataRewrite>, ObjectError> {
        let dnode = self.synced_dnode()?;
        let (table, tree) = (self.table()?, self.tree_id());
        let ptr = lookup(table.pool(), tree, &dnode, level, index)?;
        if !has_copy_born_at(&ptr, addr) {
            return Ok(None);
        }
        if self.state.read().layers().any(|dirty| dirty.forced_indirect.contains(&TreeBlock { level, index }))
        {
            return Ok(None);
        }
        children(table.pool(), tree, &ptr, level, index)?;
        let bytes = u64::from(dnode.indirect_bytes) + dnode.indirect_bytes_above(level);
        Ok(Some(MetadataRewrite { object: self, target: RewriteTarget::Indirect(level, index), ptr, bytes }))
    }

    /// Stores a block again with this txg, with the content that [`stored_block`](Self::stored_block) returned.
    /// `encoded`: the form to store it in; `None`: as usual. False: the pointer is not `expected` any more, so
    /// the writer wins. The content does not change, so no lock of a layer above is needed.
    pub(super) fn restore_block(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        (expected, content): (&BlockPtr, &Arc<Vec<u8>>),
        encoded: Option<&PreEncoded>,
    ) -> Result<bool, ObjectError> {
        loop {
            let root = self.state.read().dnode.root.clone();
            if self.stored_pointer(block)?.as_ref() != Some(expected) {
                return Ok(false);
            }
            // If the tree was replaced between lookup and change, look again.
            let outcome = self.change(tx, |state| {
                if state.dnode.root != root {
                    return None;
                }
                let is_same = matches!(state.dirty_content(block), DirtyContent::Unchanged);
                if is_same {
                    let dirty = state.dirty(tx.txg());
                    dirty.blocks.insert(block, content.clone());
                    let restored = Restored { birth: expected.logical_birth(), encoded: encoded.cloned() };
                    dirty.restored.insert(block, restored);
                }
                Some(is_same)
            })?;
            if let Some(done) = outcome {
                return Ok(done);
            }
        }
    }
}

impl MetadataRewrite {
    /// The pointer that led to the block when it was found.
    pub(crate) fn pointer(&self) -> &BlockPtr {
        &self.ptr
    }

    /// A dnode block, or an indirect block above dnodes, with `object` below. `None`: an unsynced txg writes it
    /// anyway.
    pub(crate) fn of_dnode(object: Arc<Object>, ptr: BlockPtr, bytes: u64) -> Option<MetadataRewrite> {
        let is_written = object.state.read().layers().next().is_some();
        (!is_written).then_some(MetadataRewrite { object, target: RewriteTarget::Dnode, ptr, bytes })
    }

    /// The object whose metadata is rewritten.
    pub fn object(&self) -> ObjectId {
        self.object.id()
    }

    /// Bytes of metadata that the rewrite takes beside the object's dnode.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks it to be written with this txg, if it is still the same. Returns its stored bytes, all copies; 0:
    /// it is not.
    pub fn write(&self, tx: &Tx) -> Result<u64, ObjectError> {
        let object = &self.object;
        let is_same = match &self.target {
            RewriteTarget::Block(block, content) => {
                object.restore_block(tx, *block, (&self.ptr, content), None)?
            }
            RewriteTarget::Spill(spill) => object.change(tx, |state| {
                let is_same =
                    matches!(state.dirty_spill(), SpillChange::Unchanged) && state.dnode.spill == self.ptr;
                if is_same {
                    state.dirty(tx.txg()).spill = SpillChange::New(spill.clone());
                }
                is_same
            })?,
            // Whether it still exists is checked when the tree is rewritten.
            RewriteTarget::Indirect(level, index) => object.change(tx, |state| {
                state.dirty(tx.txg()).forced_indirect.insert(TreeBlock { level: *level, index: *index })
            })?,
            // Any change writes it.
            RewriteTarget::Dnode => object.change(tx, |_| true)?,
        };
        Ok(if is_same { self.ptr.allocated_bytes() } else { 0 })
    }
}

pub(crate) fn has_copy_born_at(ptr: &BlockPtr, addr: Addr) -> bool {
    matches!(ptr, BlockPtr::Normal(normal) if normal.copies().any(|copy| copy == addr))
}
