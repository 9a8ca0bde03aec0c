//! The object a ZAP lives in, seen as an array of blocks.
//!
//! The crate knows nothing of pools, caches or transactions: all of that is behind [`Store`]. A store hands out
//! whole blocks to read and lets whole blocks be changed in place, which is what a copy-on-write object tree can
//! do cheaply and what an in-memory test can do trivially ([`MemStore`]).

use std::sync::Arc;
use terrane_wire::Corrupt;

/// Block 0, and how many blocks there are.
pub type First = (Arc<Vec<u8>>, u64);

/// The object a ZAP lives in.
///
/// Reads may run concurrently; changes need the store alone. A block that was never written, was freed, or lies
/// past the end reads as zeros.
pub trait Store {
    /// What can go wrong below; [`Corrupt`] is how this crate reports damage through it.
    type Error: From<Corrupt>;

    /// Bytes of each block.
    fn block_size(&self) -> usize;

    /// Blocks up to the last one written. 0: nothing was ever written, so an empty directory needs no block.
    fn block_count(&self) -> u64;

    /// The block's bytes, always [`block_size`](Store::block_size) of them.
    fn read(&self, block: u64) -> Result<Arc<Vec<u8>>, Self::Error>;

    /// Block 0 and the number of blocks, as they are together; nothing if there is no block. Every operation begins here.
    fn first(&self) -> Result<Option<First>, Self::Error> {
        match self.block_count() {
            0 => Ok(None),
            count => Ok(Some((self.read(0)?, count))),
        }
    }

    /// Calls `change` exactly once on the block's bytes, whose length it leaves alone, and keeps the result.
    /// Extends [`block_count`](Store::block_count) where needed.
    fn modify(&mut self, block: u64, change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), Self::Error>;

    /// Changes the size of blocks; legal only while there is at most one. Block 0 is kept, cut or zero extended.
    fn set_block_size(&mut self, bytes: usize) -> Result<(), Self::Error>;

    /// Makes the block a hole. `block_count` may stay as it is.
    fn free(&mut self, block: u64) -> Result<(), Self::Error>;

    /// Frees every block from this one on; `block_count` is then at most `blocks`.
    fn truncate(&mut self, blocks: u64) -> Result<(), Self::Error>;
}

/// Changes a block by a function that may refuse what it finds there; it must then have changed nothing.
pub(crate) fn edit<S: Store + ?Sized, T>(
    store: &mut S,
    block: u64,
    mut change: impl FnMut(&mut Vec<u8>) -> Result<T, Corrupt>,
) -> Result<T, S::Error> {
    let mut outcome = None;
    store.modify(block, &mut |raw| outcome = Some(change(raw)))?;
    outcome.expect("Store::modify calls its change exactly once").map_err(S::Error::from)
}

/// A store in memory: for tests, for benchmarks, and for building an image before it is sent.
#[derive(Clone, Debug)]
pub struct MemStore {
    block_size: usize,
    blocks: Vec<Option<Arc<Vec<u8>>>>,
    hole: Arc<Vec<u8>>,
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemStore {
    /// An object to which nothing was written yet, with blocks of 512 bytes.
    pub fn new() -> Self {
        MemStore { block_size: 512, blocks: Vec::new(), hole: Arc::new(vec![0; 512]) }
    }

    /// An object with these bytes; a last block that is short is zero extended.
    pub fn from_image(image: &[u8], block_size: usize) -> Self {
        let block_size = block_size.max(1);
        let whole = |piece: &[u8]| {
            let mut block = piece.to_vec();
            block.resize(block_size, 0);
            Some(Arc::new(block))
        };
        MemStore {
            block_size,
            blocks: image.chunks(block_size).map(whole).collect(),
            hole: Arc::new(vec![0; block_size]),
        }
    }

    /// All blocks one after the other, holes as zeros.
    pub fn image(&self) -> Vec<u8> {
        self.blocks.iter().flat_map(|b| b.as_ref().unwrap_or(&self.hole).iter().copied()).collect()
    }

    /// Blocks that are not holes, with their numbers.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (0..).zip(&self.blocks).filter_map(|(number, block)| Some((number, block.as_ref()?.as_slice())))
    }

    /// Blocks that are not holes.
    pub fn blocks_used(&self) -> usize {
        self.blocks.iter().flatten().count()
    }
}

impl Store for MemStore {
    type Error = Corrupt;

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    fn read(&self, block: u64) -> Result<Arc<Vec<u8>>, Corrupt> {
        let held = usize::try_from(block).ok().and_then(|b| self.blocks.get(b)).and_then(Option::as_ref);
        Ok(Arc::clone(held.unwrap_or(&self.hole)))
    }

    fn modify(&mut self, block: u64, change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), Corrupt> {
        let place = usize::try_from(block).expect("a block number that memory can hold");
        if place >= self.blocks.len() {
            self.blocks.resize(place + 1, None);
        }
        if let Some(slot) = self.blocks.get_mut(place) {
            let held = slot.get_or_insert_with(|| Arc::new(vec![0; self.block_size]));
            change(Arc::make_mut(held));
            assert_eq!(held.len(), self.block_size, "a change keeps the length of its block");
        }
        Ok(())
    }

    fn set_block_size(&mut self, bytes: usize) -> Result<(), Corrupt> {
        assert!(self.blocks.len() <= 1, "the block size is fixed once there are two blocks");
        self.block_size = bytes;
        self.hole = Arc::new(vec![0; bytes]);
        for block in self.blocks.iter_mut().flatten() {
            Arc::make_mut(block).resize(bytes, 0);
        }
        Ok(())
    }

    fn free(&mut self, block: u64) -> Result<(), Corrupt> {
        if let Some(slot) = usize::try_from(block).ok().and_then(|b| self.blocks.get_mut(b)) {
            *slot = None;
        }
        Ok(())
    }

    fn truncate(&mut self, blocks: u64) -> Result<(), Corrupt> {
        self.blocks.truncate(usize::try_from(blocks).unwrap_or(usize::MAX));
        Ok(())
    }
}
