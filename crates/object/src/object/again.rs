//! Rewriting a metadata block with the same content: a ZAP block, a spill, an indirect block, or a dnode block.
//!
//! The block is found and read first, so that an unreadable or missing block joins no txg (group). Then it is
//! marked for rewriting, if it is still the block that was found. A dnode block is written whenever one of its
//! objects is, and so are the indirect blocks above it. There, writing any object below it, unchanged, is
//! enough.

use super::Object;
use crate::dirty::{Known, Restored, Spill, TreeBlock};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::tree::{children, lookup};
use std::sync::Arc;
use terrane_format::directory::SPILL;
use terrane_format::{Addr, BlockPtr};
use terrane_pool::Tx;
use terrane_store::pipeline::Made;
use terrane_wire::ObjectId;

/// A block that was found.
#[derive(Debug)]
pub struct Again {
    object: Arc<Object>,
    what: What,
    ptr: BlockPtr,
    /// Upper bound of the bytes that will be written, one copy, except for the dnode's blocks.
    bytes: u64,
}

#[derive(Debug)]
enum What {
    /// A block of the object, and its content.
    Block(u64, Arc<Vec<u8>>),
    Spill(Arc<Vec<u8>>),
    /// An indirect block: its level, and index in it.
    Pointers(u8, u64),
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
    pub(crate) fn find_again(
        self: Arc<Self>,
        level: u8,
        block: u64,
        addr: Addr,
    ) -> Result<Option<Again>, ObjectError> {
        // Only the sync changes a free queue: content read earlier must not come back.
        if self.kind() == ObjectKind::FreeQueue {
            return Ok(None);
        }
        if level > 0 {
            return self.find_pointers(level, block, addr);
        }
        if block == SPILL {
            let ptr = self.dnode().spill;
            let Some(spill) = self.spill()?.filter(|_| is_born_at(&ptr, addr)) else { return Ok(None) };
            let bytes = spill.len() as u64;
            return Ok(Some(Again { object: self, what: What::Spill(spill), ptr, bytes }));
        }
        if !self.kind().is_metadata() {
            return Ok(None);
        }
        let found = self.stored_block(block)?.filter(|(ptr, _)| is_born_at(ptr, addr));
        Ok(found.map(|(ptr, content)| {
            let bytes = content.len() as u64 + self.dnode().pointers_above(0);
            Again { object: self, what: What::Block(block, content), ptr, bytes }
        }))
    }

    fn find_pointers(
        self: Arc<Self>,
        level: u8,
        index: u64,
        addr: Addr,
    ) -> Result<Option<Again>, ObjectError> {
        let dnode = self.living_dnode()?;
        let (table, whose) = (self.table()?, self.whose());
        let ptr = lookup(table.pool(), whose, &dnode, level, index)?;
        if !is_born_at(&ptr, addr) {
            return Ok(None);
        }
        if self.state.read().layers().any(|dirty| dirty.pointers.contains(&TreeBlock { level, index })) {
            return Ok(None);
        }
        children(table.pool(), whose, &ptr, level, index)?;
        let bytes = u64::from(dnode.indirect_bytes) + dnode.pointers_above(level);
        Ok(Some(Again { object: self, what: What::Pointers(level, index), ptr, bytes }))
    }

    /// Stores a block again with this txg, with the content that [`stored_block`](Self::stored_block) returned.
    /// `made`: the form to store it in; `None`: as usual. False: the block is no longer `was`, so the writer
    /// wins. The content does not change, so no lock of a layer above is needed.
    pub(super) fn put_again(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        (was, content): (&BlockPtr, &Arc<Vec<u8>>),
        made: Option<&Made>,
    ) -> Result<bool, ObjectError> {
        loop {
            let root = self.state.read().dnode.root.clone();
            if self.stored_pointer(block)?.as_ref() != Some(was) {
                return Ok(false);
            }
            // If the tree was replaced between lookup and change, look again.
            let outcome = self.change(tx, |state| {
                if state.dnode.root != root {
                    return None;
                }
                let is_same = matches!(state.known(block), Known::Nothing);
                if is_same {
                    let dirty = state.dirty(tx.txg());
                    dirty.blocks.insert(block, content.clone());
                    let restored = Restored { birth: was.logical_birth(), made: made.cloned() };
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

impl Again {
    /// A dnode block, or an indirect block above dnodes, with `object` below. `None`: an unsynced txg writes it
    /// anyway.
    pub(crate) fn of_dnode(object: Arc<Object>, ptr: BlockPtr, bytes: u64) -> Option<Again> {
        let is_written = object.state.read().layers().next().is_some();
        (!is_written).then_some(Again { object, what: What::Dnode, ptr, bytes })
    }

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
        let is_same = match &self.what {
            What::Block(block, content) => object.put_again(tx, *block, (&self.ptr, content), None)?,
            What::Spill(spill) => object.change(tx, |state| {
                let is_same =
                    matches!(state.known_spill(), Spill::Unchanged) && state.dnode.spill == self.ptr;
                if is_same {
                    state.dirty(tx.txg()).spill = Spill::New(spill.clone());
                }
                is_same
            })?,
            // Whether it still exists is checked when the tree is rewritten.
            What::Pointers(level, index) => object.change(tx, |state| {
                state.dirty(tx.txg()).pointers.insert(TreeBlock { level: *level, index: *index })
            })?,
            // Any change writes it.
            What::Dnode => object.change(tx, |_| true)?,
        };
        Ok(if is_same { self.ptr.allocated_bytes() } else { 0 })
    }
}

pub(crate) fn is_born_at(ptr: &BlockPtr, addr: Addr) -> bool {
    matches!(ptr, BlockPtr::Normal(normal) if normal.copies().any(|copy| copy == addr))
}
