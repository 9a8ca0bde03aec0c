//! The object of a ZAP, seen as an array of blocks.
//!
//! The crate knows nothing of pools, caches or transactions: all of that is behind [`Store`]. A store returns whole
//! blocks to readers, and lets a writer change whole blocks in place. A copy-on-write object does that cheaply, and a
//! test in memory does it trivially ([`MemStore`]).

use std::sync::Arc;
use terrane_wire::Corrupt;

/// Block 0, and the number of blocks.
pub type FirstBlock = (Arc<Vec<u8>>, u64);

/// The object of a ZAP.
///
/// Reads may run concurrently; a change needs exclusive access. A block that was never written, was freed, or lies
/// past the end reads as zeros.
pub trait Store {
    /// Errors of the layer below. Damage that this crate finds is converted from [`Corrupt`].
    type Error: From<Corrupt>;

    /// Size of each block in bytes.
    fn block_size(&self) -> usize;

    /// Blocks up to the last one written. 0 if none was ever written, so an empty directory needs no block.
    fn block_count(&self) -> u64;

    /// The block's bytes, always [`block_size`](Store::block_size) of them.
    fn read(&self, block: u64) -> Result<Arc<Vec<u8>>, Self::Error>;

    /// Block 0 and the number of blocks, both of one moment; `None` if there is no block. Every operation begins
    /// here.
    fn first_block(&self) -> Result<Option<FirstBlock>, Self::Error> {
        match self.block_count() {
            0 => Ok(None),
            count => Ok(Some((self.read(0)?, count))),
        }
    }

    /// Calls `change` exactly once on the block's bytes, and keeps the result. `change` must keep the length. Extends
    /// [`block_count`](Store::block_count) if needed.
    fn modify(&mut self, block: u64, change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), Self::Error>;

    /// Changes the block size; allowed only with at most one block. Block 0 is kept, and is truncated or
    /// zero-extended.
    fn set_block_size(&mut self, bytes: usize) -> Result<(), Self::Error>;

    /// Makes the block a hole. `block_count` may stay as it is.
    fn free(&mut self, block: u64) -> Result<(), Self::Error>;

    /// Frees every block from number `blocks` on; `block_count` is then at most `blocks`.
    fn truncate(&mut self, blocks: u64) -> Result<(), Self::Error>;
}

/// Changes a block by a function that may refuse its content. If it refuses, it must have changed nothing.
pub(crate) fn edit<S: Store + ?Sized, T>(
    store: &mut S,
    block: u64,
    mut change: impl FnMut(&mut Vec<u8>) -> Result<T, Corrupt>,
) -> Result<T, S::Error> {
    let mut outcome = None;
    store.modify(block, &mut |raw| outcome = Some(change(raw)))?;
    outcome.expect("Store::modify calls its change exactly once").map_err(S::Error::from)
}

/// A store in memory: for tests, for benchmarks, and for building an image before it is written.
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
    /// An object without blocks, of block size 512.
    pub fn new() -> Self {
        MemStore { block_size: 512, blocks: Vec::new(), hole: Arc::new(vec![0; 512]) }
    }

    /// An object with these bytes; a short last block is zero-extended.
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

    /// All blocks in order, holes as zeros.
    pub fn image(&self) -> Vec<u8> {
        self.blocks.iter().flat_map(|b| b.as_ref().unwrap_or(&self.hole).iter().copied()).collect()
    }

    /// Blocks that are not holes, with their numbers.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        (0..).zip(&self.blocks).filter_map(|(number, block)| Some((number, block.as_ref()?.as_slice())))
    }

    /// The number of blocks that are not holes.
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
