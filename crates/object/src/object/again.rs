//! A block of metadata that is written anew with what it holds: a block of names, a spill, a block of pointers, or of dnodes.
//!
//! It is looked for first, and read: so that what cannot be read, or is not there any more, joins no group. Then its change is made, if it
//! is still what was found. A block of dnodes is written whenever one of its objects is, and so are the blocks of pointers above it: there
//! it is enough to write any object that lies below, unchanged.

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
    /// Of the blocks that will be written, but for the dnode's: at the worst, one copy.
    bytes: u64,
}

#[derive(Debug)]
enum What {
    /// A block of the object, and what it holds.
    Block(u64, Arc<Vec<u8>>),
    Spill(Arc<Vec<u8>>),
    /// Of pointers: its level, and number in it.
    Pointers(u8, u64),
    /// Of dnodes, or of pointers above them: the object lies below.
    Dnode,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {}", self.id())
    }
}

impl Object {
    /// The block of metadata of this object of which one copy was born at `addr`, as of the last sync. `None`: it is none, is not there
    /// any more, or changes in any case.
    pub(crate) fn find_again(
        self: Arc<Self>,
        level: u8,
        block: u64,
        addr: Addr,
    ) -> Result<Option<Again>, ObjectError> {
        // A free queue is the sync's alone: what it held when it was read must not come back.
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

    /// Has a block stored anew with this group, its content being what [`stored_block`](Self::stored_block) said; in the form that `made`
    /// has, or as any other of its kind. False: the block is not `was` any more, and whoever changed it wins. What it holds does not
    /// change, so no lock of a floor above is needed.
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
            // Looked for again where the tree was replaced between the look and this.
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
    /// A block of dnodes, or of pointers above them, of which `object` lies below. `None`: a group that has not synced writes it.
    pub(crate) fn of_dnode(object: Arc<Object>, ptr: BlockPtr, bytes: u64) -> Option<Again> {
        let is_written = object.state.read().layers().next().is_some();
        (!is_written).then_some(Again { object, what: What::Dnode, ptr, bytes })
    }

    pub fn object(&self) -> ObjectId {
        self.object.id()
    }

    /// What writing it takes beside the object's dnode, in bytes of metadata.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Has it written with this group, if it is still what was found. Returns stored bytes, all copies; 0: it is not.
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
            // Whether it is still there is seen when the tree is rewritten.
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
