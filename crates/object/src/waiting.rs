//! Stored form of the free queue: detached subtrees that wait to be freed.
//!
//! An entry has the txg (group) that detached the subtree: a snapshot refers to its blocks only if it was
//! created before. It also has the birth below which blocks belong to another tree. A clone shares old blocks
//! with its origin, and only younger ones are freed with it.

use crate::dnode::DNODE_BLOCK_BYTES;
use terrane_format::BlockPtr;
use terrane_wire::{Corrupt, Txg, layout};

layout! {
    /// A subtree in a free queue. `FORMAT.md` section "Free queues".
    QueueEntry, 144 bytes {
        0   root: [u8; 128],
        128 detached: Txg,
        136 prune_below: Txg,
    }
}

/// A subtree that waits to be freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub root: BlockPtr,
    /// Txg that removed it from the live trees; 0: a txg before snapshots existed.
    pub detached: Txg,
    /// Blocks born before this txg also belong to another tree, with everything below them.
    pub prune_below: Txg,
}

impl Waiting {
    /// The entry for another block of this subtree as root.
    pub(crate) fn below(&self, root: BlockPtr) -> Waiting {
        Waiting { root, ..*self }
    }

    /// Whether a block of the subtree belongs to it alone.
    pub fn owns(&self, block: &BlockPtr) -> bool {
        !block.is_hole() && block.latest_birth() >= self.prune_below
    }
}

/// Stored forms of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueForm {
    /// Bare pointers, in an object of the set itself.
    Pointers,
    /// Entries, in an object of the MOS.
    Entries,
}

impl QueueForm {
    /// Encodes a queue as blocks.
    pub fn encode(self, queue: &[Waiting]) -> Vec<Vec<u8>> {
        let entry_bytes = match self {
            QueueForm::Pointers => BlockPtr::SIZE,
            QueueForm::Entries => QueueEntry::SIZE,
        };
        // An entry never crosses the end of a block.
        let blocks = queue.chunks(DNODE_BLOCK_BYTES as usize / entry_bytes);
        let encode = |waiting: &Waiting| match self {
            QueueForm::Pointers => waiting.root.encode().to_vec(),
            QueueForm::Entries => {
                let Waiting { root, detached, prune_below } = waiting;
                let (detached, prune_below) = (*detached, *prune_below);
                QueueEntry { root: root.encode(), detached, prune_below }.encode().to_vec()
            }
        };
        blocks.map(|block| block.iter().flat_map(encode).collect()).collect()
    }

    /// Parses the entries in a block, and skips holes.
    pub fn parse(self, raw: &[u8], at: &str) -> Result<Vec<Waiting>, Corrupt> {
        let mut found = Vec::new();
        match self {
            QueueForm::Pointers => {
                for raw in raw.chunks_exact(BlockPtr::SIZE) {
                    let root = BlockPtr::parse(raw, &at)?;
                    found.push(Waiting { root, detached: Txg(0), prune_below: Txg(0) });
                }
            }
            QueueForm::Entries => {
                for entry in raw.chunks_exact(QueueEntry::SIZE).filter_map(QueueEntry::decode) {
                    let QueueEntry { root, detached, prune_below } = entry;
                    let root = BlockPtr::parse(&root, &at)?;
                    found.push(Waiting { root, detached, prune_below });
                }
            }
        }
        found.retain(|waiting| !waiting.root.is_hole());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::block_ptr::Embedded;

    fn waiting(birth: u64) -> Waiting {
        let root =
            Embedded { kind: 7, level: 0, compression: 2, lsize: 1, birth: Txg(birth), payload: vec![7] };
        Waiting { root: BlockPtr::Embedded(root), detached: Txg(birth + 9), prune_below: Txg(birth / 2) }
    }

    #[test]
    fn queues_of_any_length_come_back_block_by_block() {
        for len in [0u64, 1, 112, 113, 114, 128, 129, 1000] {
            let queue: Vec<Waiting> = (1..=len).map(waiting).collect();
            let blocks = QueueForm::Entries.encode(&queue);
            assert_eq!(blocks.len() as u64, len.div_ceil(113));
            let read = |raw: &Vec<u8>| QueueForm::Entries.parse(raw, "here").unwrap();
            assert_eq!(blocks.iter().flat_map(read).collect::<Vec<_>>(), queue);
            // A block is read with zeros to its end.
            let padded = |mut raw: Vec<u8>| {
                raw.resize(DNODE_BLOCK_BYTES as usize, 0);
                raw
            };
            let blocks: Vec<Vec<u8>> = blocks.into_iter().map(padded).collect();
            assert_eq!(blocks.iter().flat_map(read).collect::<Vec<_>>(), queue);
            let plain = QueueForm::Pointers.encode(&queue);
            let read = |raw: &Vec<u8>| QueueForm::Pointers.parse(raw, "here").unwrap();
            let roots: Vec<BlockPtr> = plain.iter().flat_map(read).map(|waiting| waiting.root).collect();
            assert_eq!(roots, queue.iter().map(|waiting| waiting.root.clone()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_subtree_owns_what_was_born_in_it() {
        let of = Waiting { prune_below: Txg(10), ..waiting(20) };
        assert!(of.owns(&waiting(10).root) && !of.owns(&waiting(9).root));
        assert!(!of.owns(&BlockPtr::default()), "a hole is nobody's");
    }
}
