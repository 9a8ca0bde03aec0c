//! Reading and writing blocks.
//!
//! Writes change whole blocks in memory, or keep [parts](crate::part) of large ones. A block that the syncing txg also holds is copied
//! first.

#![expect(clippy::indexing_slicing, reason = "pieces were cut to the length of the block")]

use super::{FirstBlock, Object};
use crate::dirty::{DirtyBlock, DirtyContent};
use crate::dnode::{Dnode, OBJECT_BYTES_MAX, check_block_bytes};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::part::Part;
use crate::tree::lookup;
use std::sync::Arc;
use terrane_format::BlockPtr;
use terrane_format::block_ptr::Key;
use terrane_pool::Tx;
use terrane_store::reader::StoredForm;
use terrane_wire::Corrupt;

/// The name in the cache of the block behind a pointer.
pub(crate) fn key_of(ptr: &BlockPtr) -> Option<Key> {
    match ptr {
        BlockPtr::Normal(normal) => Some(Key::of(normal)),
        BlockPtr::Hole(_) | BlockPtr::Embedded(_) => None,
    }
}

impl Object {
    /// Changes the block size while there is at most one block. Its content is kept, cut or extended with
    /// zeros.
    pub fn set_block_size(self: &Arc<Self>, tx: &Tx, bytes: u32) -> Result<(), ObjectError> {
        check_block_bytes(bytes, self.table()?.pool().max_block())?;
        let (count, old) = {
            let state = self.state.read();
            (state.dnode.block_count, state.dnode.block_bytes)
        };
        if count > 1 {
            return Err(ObjectError::TooBig {
                what: "blocks of an object whose block size changes",
                limit: 1,
                requested: count,
            });
        }
        if old == bytes {
            return Ok(());
        }
        let base = if count == 1 && !self.is_dirty(tx, 0) { self.raw_block(0)? } else { None };
        self.change(tx, |state| {
            state.dnode.block_bytes = bytes;
            // A directory grows by small steps: in place, after the first one in a txg.
            state.dirty(tx.txg()).restored.remove(&0);
            state.dirty(tx.txg()).is_resized = true;
            // A hole as well: its size changes, and a search for changes by birth must see that.
            let hole = (count == 1).then(Arc::default);
            // A cloned block, or a part of one, was read as `base`: a block of another size has other bytes.
            let dirty = match state.dirty(tx.txg()).blocks.remove(0) {
                Some(DirtyBlock::Data(content)) => Some(content),
                Some(DirtyBlock::Given(_) | DirtyBlock::Part(_)) | None => None,
            };
            if let Some(mut content) = dirty.or(base).or(hole) {
                Arc::make_mut(&mut content).resize(bytes as usize, 0);
                state.dirty(tx.txg()).blocks.insert(0, DirtyBlock::Data(content));
            }
        })
    }

    /// A block's bytes, possibly without trailing zeros; `None`: all zeros.
    pub(crate) fn raw_block(&self, block: u64) -> Result<Option<Arc<Vec<u8>>>, ObjectError> {
        let (mut tried, mut tried_given) = (None, None);
        loop {
            let (dnode, given) = {
                let state = self.state.read();
                let given = match state.dirty_content(block) {
                    DirtyContent::Data(data) => return Ok(Some(data)),
                    DirtyContent::Part(part) => {
                        drop(state);
                        let mut content = Vec::clone(&*self.table()?.pool().unpack(&part.base)?);
                        part.pieces.apply(&mut content);
                        return Ok(Some(Arc::new(content)));
                    }
                    DirtyContent::Zeros => return Ok(None),
                    DirtyContent::Given(ptr) => Some(ptr),
                    DirtyContent::Unchanged => None,
                };
                if given.is_none()
                    && let Some(data) = state.recent.get(block)
                {
                    return Ok(Some(data));
                }
                (state.dnode.clone(), given)
            };
            let table = self.table()?;
            let pool = table.pool();
            if let Some(ptr) = given {
                match pool.read(&BlockPtr::Normal((*ptr).clone()), self.tree_id().owner(0, block)) {
                    Ok(data) => return Ok(Some(data)),
                    // Meanwhile the clone may have been overwritten, and the block reclaimed.
                    Err(_) if tried_given.as_ref() != Some(&ptr) => tried_given = Some(ptr),
                    Err(error) => return Err(error.into()),
                }
                continue;
            }
            let read = lookup(pool, self.tree_id(), &dnode, 0, block).and_then(|ptr| match ptr.is_hole() {
                true => Ok(None),
                false if ptr.lsize() > dnode.block_bytes => {
                    let at = format!(
                        "object set {} object {} block {block}",
                        self.own_id.objset, self.own_id.object
                    );
                    Err(Corrupt::new(
                        at,
                        "logical size",
                        format_args!("at most {}", dnode.block_bytes),
                        ptr.lsize(),
                    )
                    .into())
                }
                false => {
                    pool.read(&ptr, self.tree_id().owner(0, block)).map(|data| Some((data, key_of(&ptr))))
                }
            });
            match read {
                Ok(Some((data, key))) => {
                    let mut state = self.state.write();
                    if state.dnode.root == dnode.root {
                        state.recent.put(self.kind, (block, key), dnode.block_count, &data);
                    }
                    return Ok(Some(data));
                }
                Ok(None) => return Ok(None),
                // Between lookup and read, the tree may have been replaced, and its old blocks reclaimed.
                Err(_) if tried.as_ref() != Some(&dnode.root) => tried = Some(dnode.root),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads a whole block that is not in memory straight into `out`; the cache keeps its stored form. False:
    /// it is in memory, or must be looked up again.
    fn read_whole(&self, block: u64, out: &mut [u8]) -> Result<bool, ObjectError> {
        let dnode = {
            let state = self.state.read();
            if !matches!(state.dirty_content(block), DirtyContent::Unchanged)
                || state.recent.get(block).is_some()
            {
                return Ok(false);
            }
            state.dnode.clone()
        };
        let table = self.table()?;
        let pool = table.pool();
        let Ok(ptr) = lookup(pool, self.tree_id(), &dnode, 0, block) else { return Ok(false) };
        if ptr.is_hole() {
            out.fill(0);
            return Ok(true);
        }
        let Some((content, rest)) = out.split_at_mut_checked(ptr.lsize() as usize) else { return Ok(false) };
        match pool.read_into(&ptr, self.tree_id().owner(0, block), content) {
            Ok(()) => rest.fill(0),
            Err(error) if self.state.read().dnode.root == dnode.root => return Err(error.into()),
            // The tree was replaced meanwhile, and GC reclaimed its old blocks.
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// One block, always of the block size.
    pub fn read_block(&self, block: u64) -> Result<Arc<Vec<u8>>, ObjectError> {
        let cached = self.state.read().block_in_memory(block);
        cached.map_or_else(|| self.find_block(block), Ok)
    }

    /// Block 0 and the number of blocks, at one moment; `None`: there is no block.
    pub fn first_block(&self) -> Result<Option<FirstBlock>, ObjectError> {
        let (cached, count) = {
            let state = self.state.read();
            (state.block_in_memory(0), state.dnode.block_count)
        };
        match cached {
            _ if count == 0 => Ok(None),
            Some(cached) => Ok(Some((cached, count))),
            None => Ok(Some((self.find_block(0)?, count))),
        }
    }

    fn find_block(&self, block: u64) -> Result<Arc<Vec<u8>>, ObjectError> {
        let bytes = self.block_size() as usize;
        Ok(match self.raw_block(block)? {
            Some(data) if data.len() == bytes => data,
            Some(data) => {
                let mut whole = data.to_vec();
                whole.resize(bytes, 0);
                Arc::new(whole)
            }
            None => Arc::new(vec![0; bytes]),
        })
    }

    /// Fills `buf` from `offset`. Holes and bytes beyond the last block are zeros.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), ObjectError> {
        let bytes = u64::from(self.block_size());
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let (block, inside) = (at / bytes, (at % bytes) as usize);
            let len = rest.len().min(bytes as usize - inside);
            let (piece, after) = rest.split_at_mut(len);
            if len as u64 == bytes && self.read_whole(block, piece)? {
                (rest, at) = (after, at + len as u64);
                continue;
            }
            let part = match self.state.read().dirty_content(block) {
                DirtyContent::Part(part) => Some(part),
                _ => None,
            };
            if let Some(part) = part {
                match part.pieces.get(inside..inside + len) {
                    Some(new) => piece.copy_from_slice(new),
                    None => part.read(&self.table()?.pool().unpack(&part.base)?, inside, piece),
                }
                (rest, at) = (after, at + len as u64);
                continue;
            }
            let data = self.raw_block(block)?;
            let have = data.as_ref().and_then(|data| data.get(inside..)).unwrap_or(&[]);
            let have = have.get(..len).unwrap_or(have);
            piece[..have.len()].copy_from_slice(have);
            piece[have.len()..].fill(0);
            (rest, at) = (after, at + len as u64);
        }
        Ok(())
    }

    /// Reads a block, changes it, and keeps it dirty. No other thread may write the block meanwhile.
    pub fn modify_block(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<(), ObjectError> {
        let bytes = self.block_size() as usize;
        self.with_block(tx, block, bytes, |data| change(data))
    }

    /// Writes `data` at `offset`. `TooBig`: the end exceeds [`OBJECT_BYTES_MAX`].
    pub fn write(self: &Arc<Self>, tx: &Tx, offset: u64, data: &[u8]) -> Result<(), ObjectError> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= OBJECT_BYTES_MAX);
        if end.is_none() {
            return Err(ObjectError::TooBig {
                what: "end of a write",
                limit: OBJECT_BYTES_MAX,
                requested: offset.saturating_add(data.len() as u64),
            });
        }
        if self.kind() == ObjectKind::File {
            tx.pool().note_user_bytes(data.len() as u64);
        }
        let bytes = u64::from(self.block_size());
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (block, inside) = (at / bytes, (at % bytes) as usize);
            let len = rest.len().min(bytes as usize - inside);
            let (piece, after) = rest.split_at(len);
            if len as u64 == bytes {
                // The old content is not needed, but the path to it is: without it the sync could not store the
                // new block.
                let (dnode, table) = (self.state.read().dnode.clone(), self.table()?);
                lookup(table.pool(), self.tree_id(), &dnode, 0, block)?;
                let whole = Arc::new(piece.to_vec());
                self.change(tx, |state| state.put(tx.txg(), block, whole))?;
            } else {
                self.with_block(tx, block, inside + len, |data| {
                    data[inside..inside + len].copy_from_slice(piece)
                })?;
            }
            (rest, at) = (after, at + len as u64);
        }
        Ok(())
    }

    /// Writes a part of one large compressed record, which is decompressed only when it is stored. False: nothing was done, so
    /// [`write`](Object::write) must do it.
    pub fn write_part(self: &Arc<Self>, tx: &Tx, offset: u64, data: &[u8]) -> Result<bool, ObjectError> {
        let record_bytes = self.block_size() as usize;
        let (block, inside) = (offset / record_bytes as u64, (offset % record_bytes as u64) as usize);
        let is_small = (1..=Part::new_bytes_max(record_bytes)).contains(&data.len());
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= OBJECT_BYTES_MAX);
        if self.kind() != ObjectKind::File || !is_small || inside + data.len() > record_bytes || end.is_none()
        {
            return Ok(false);
        }
        let dnode = {
            let state = self.state.read();
            let open = state.open.as_ref().filter(|open| open.txg == tx.txg());
            match open.and_then(|open| open.blocks.get(&block)) {
                Some(DirtyBlock::Part(part)) if part.has_place(record_bytes, data.len()) => None,
                Some(_) => return Ok(false),
                None => match state.dirty_content(block) {
                    DirtyContent::Unchanged if state.recent.get(block).is_none() => Some(state.dnode.clone()),
                    _ => return Ok(false),
                },
            }
        };
        let base = match dnode {
            Some(dnode) => match self.base_of_part(&dnode, block) {
                Ok(Some(base)) => Some(base),
                Ok(None) => return Ok(false),
                Err(error) if self.state.read().dnode.root == dnode.root => return Err(error),
                // Between lookup and read, the tree may have been replaced, and its old blocks reclaimed.
                Err(_) => return Ok(false),
            },
            None => None,
        };
        let is_done = self.change(tx, |state| {
            let blocks = &mut state.dirty(tx.txg()).blocks;
            let mut part = match (blocks.remove(block), base) {
                (Some(DirtyBlock::Part(part)), _) => part,
                (None, Some(base)) => Arc::new(Part::new(base)),
                (found, _) => {
                    found.into_iter().for_each(|found| blocks.insert(block, found));
                    return false;
                }
            };
            Arc::make_mut(&mut part).pieces.put(inside, data);
            state.put_block(tx.txg(), block, DirtyBlock::Part(part));
            true
        })?;
        if is_done {
            tx.pool().note_user_bytes(data.len() as u64);
        }
        Ok(is_done)
    }

    /// The stored form of a record, if it may be kept in parts, and is not in memory.
    fn base_of_part(&self, dnode: &Dnode, block: u64) -> Result<Option<Arc<StoredForm>>, ObjectError> {
        let (table, record_bytes) = (self.table()?, dnode.block_bytes);
        let ptr = lookup(table.pool(), self.tree_id(), dnode, 0, block)?;
        let BlockPtr::Normal(normal) = ptr else { return Ok(None) };
        if normal.lsize > record_bytes || !Part::may_have(record_bytes as usize, normal.psize as usize) {
            return Ok(None);
        }
        Ok(table.pool().read_stored_form(&normal, self.tree_id().owner(0, block))?.map(Arc::new))
    }

    /// Whether the txg of `tx` has all bytes of the block already.
    fn is_dirty(&self, tx: &Tx, block: u64) -> bool {
        let state = self.state.read();
        let open = state.open.as_ref().filter(|open| open.txg == tx.txg());
        open.and_then(|open| open.blocks.get(&block)).is_some_and(|block| block.data().is_some())
    }

    /// Changes a dirty block in place; a clean one is read first. It is extended with zeros to at least `len`
    /// bytes.
    fn with_block(
        self: &Arc<Self>,
        tx: &Tx,
        block: u64,
        len: usize,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), ObjectError> {
        let change = |data: &mut Arc<Vec<u8>>| {
            // Copies only if a reader, the cache or the syncing txg also holds it.
            let bytes = Arc::make_mut(data);
            if bytes.len() < len {
                bytes.resize(len, 0);
            }
            change(bytes);
        };
        let (change, clean) = {
            let mut state = self.state.write();
            let before = state.open_bytes();
            let Err(change) = state.change_dirty_block(tx, block, change) else {
                self.note_dirtied(tx, before, &state);
                return Ok(());
            };
            (change, if self.kind.is_metadata() { state.take_clean(block) } else { None })
        };
        let mut data = match clean {
            Some((data, key)) => {
                // The cache would keep the old content until the sync, and the change would have to copy it.
                key.into_iter().for_each(|key| tx.pool().release_content(key));
                data
            }
            None => self.raw_block(block)?.unwrap_or_default(),
        };
        self.change(tx, |state| {
            change(&mut data);
            state.put(tx.txg(), block, data);
        })
    }

    /// Zeros a range: whole blocks become holes, edges are overwritten. The cost does not depend on the length.
    pub fn zero_range(self: &Arc<Self>, tx: &Tx, offset: u64, len: u64) -> Result<(), ObjectError> {
        let bytes = u64::from(self.block_size());
        let written = self.block_count().saturating_mul(bytes);
        let end = offset.saturating_add(len).min(written);
        if offset >= end {
            return Ok(());
        }
        let (first, last) = (offset.div_ceil(bytes), end / bytes);
        if first > last {
            return self.zero_inside(tx, offset / bytes, (offset % bytes) as usize, (end % bytes) as usize);
        }
        if !offset.is_multiple_of(bytes) {
            self.zero_inside(tx, offset / bytes, (offset % bytes) as usize, bytes as usize)?;
        }
        if !end.is_multiple_of(bytes) {
            self.zero_inside(tx, last, 0, (end % bytes) as usize)?;
        }
        // A range to the end of the object is extended without limit, so that whole subtrees can be detached.
        let last = if end == written { u64::MAX } else { last };
        if first < last {
            let freeing = self.change(tx, |state| {
                state.dirty(tx.txg()).free(first, last);
                state.note_freeing(tx, first..last)
            })?;
            self.table()?.note_freeing(tx.txg(), freeing);
        }
        Ok(())
    }

    fn zero_inside(self: &Arc<Self>, tx: &Tx, block: u64, from: usize, to: usize) -> Result<(), ObjectError> {
        let Some(data) = self.raw_block(block)? else { return Ok(()) };
        if data.len() <= from {
            return Ok(());
        }
        self.with_block(tx, block, 0, |data| {
            if to >= data.len() {
                data.truncate(from);
            } else if let Some(range) = data.get_mut(from..to) {
                range.fill(0);
            }
        })
    }

    /// Removes all content from `size` on.
    pub fn truncate(self: &Arc<Self>, tx: &Tx, size: u64) -> Result<(), ObjectError> {
        self.zero_range(tx, size, u64::MAX)?;
        self.change(tx, |state| {
            let count = size.div_ceil(u64::from(state.dnode.block_bytes));
            state.dnode.block_count = state.dnode.block_count.min(count);
        })
    }

    /// Replaces blocks from `first` on; `None`: by holes.
    pub(crate) fn put_clones(
        self: &Arc<Self>,
        tx: &Tx,
        first: u64,
        new: Vec<Option<DirtyBlock>>,
    ) -> Result<(), ObjectError> {
        self.change(tx, |state| {
            for (block, new) in (first..).zip(new) {
                match new {
                    Some(new) => state.put_block(tx.txg(), block, new),
                    None => state.dirty(tx.txg()).free(block, block + 1),
                }
            }
        })
    }

    /// Frees one block.
    pub fn free_block(self: &Arc<Self>, tx: &Tx, block: u64) -> Result<(), ObjectError> {
        self.change(tx, |state| state.dirty(tx.txg()).free(block, block + 1))
    }
}
