//! Stored form of the free queue: detached subtrees that wait to be freed.
//!
//! An entry has the txg that detached the subtree: a snapshot refers to its blocks only if it was
//! created before. It also has the birth below which blocks belong to another tree. A clone shares old blocks
//! with its origin, and only younger ones are freed with it.

use crate::dnode::DNODE_BLOCK_BYTES;
use terrane_format::BlockPtr;
use terrane_wire::{Corrupt, Txg, layout};

layout! {
    /// A subtree in a free queue. `FORMAT.md` section "Free queues".
    QueueEntry, 144 bytes {
        /// Pointer to the subtree.
        0   root: [u8; 128],
        /// Txg that removed it from the live trees. 0: a txg before snapshots existed.
        128 detached: Txg,
        /// Blocks born before this txg also belong to another tree. This version writes 0.
        136 prune_below: Txg,
    }
}

/// A subtree that waits to be freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedSubtree {
    /// Pointer to the subtree.
    pub root: BlockPtr,
    /// Txg that removed it from the live trees; 0: a txg before snapshots existed.
    pub detached: Txg,
    /// Blocks born before this txg also belong to another tree, with everything below them.
    pub prune_below: Txg,
}

impl QueuedSubtree {
    /// The entry for another block of this subtree as root.
    pub(crate) fn with_root(&self, root: BlockPtr) -> QueuedSubtree {
        QueuedSubtree { root, ..*self }
    }

    /// Whether a block of the subtree belongs to it alone.
    pub fn owns(&self, block: &BlockPtr) -> bool {
        !block.is_hole() && block.latest_birth() >= self.prune_below
    }
}

/// Stored forms of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFormat {
    /// Bare pointers, in an object of the set itself.
    Pointers,
    /// Entries, in an object of the MOS.
    Entries,
}

impl QueueFormat {
    /// Encodes a queue as blocks.
    pub fn encode(self, queue: &[QueuedSubtree]) -> Vec<Vec<u8>> {
        let entry_bytes = match self {
            QueueFormat::Pointers => BlockPtr::SIZE,
            QueueFormat::Entries => QueueEntry::SIZE,
        };
        // An entry never crosses the end of a block.
        let blocks = queue.chunks(DNODE_BLOCK_BYTES as usize / entry_bytes);
        let encode = |queued: &QueuedSubtree| match self {
            QueueFormat::Pointers => queued.root.encode().to_vec(),
            QueueFormat::Entries => {
                let QueuedSubtree { root, detached, prune_below } = queued;
                let (detached, prune_below) = (*detached, *prune_below);
                QueueEntry { root: root.encode(), detached, prune_below }.encode().to_vec()
            }
        };
        blocks.map(|block| block.iter().flat_map(encode).collect()).collect()
    }

    /// Parses the entries in a block, and skips holes.
    pub fn parse(self, raw: &[u8], at: &str) -> Result<Vec<QueuedSubtree>, Corrupt> {
        let mut found = Vec::new();
        match self {
            QueueFormat::Pointers => {
                for raw in raw.chunks_exact(BlockPtr::SIZE) {
                    let root = BlockPtr::parse(raw, &at)?;
                    found.push(QueuedSubtree { root, detached: Txg(0), prune_below: Txg(0) });
                }
            }
            QueueFormat::Entries => {
                for entry in raw.chunks_exact(QueueEntry::SIZE).filter_map(QueueEntry::decode) {
                    let QueueEntry { root, detached, prune_below } = entry;
                    let root = BlockPtr::parse(&root, &at)?;
                    found.push(QueuedSubtree { root, detached, prune_below });
                }
            }
        }
        found.retain(|subtree| !subtree.root.is_hole());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::block_ptr::Embedded;

    fn queued(birth: u64) -> QueuedSubtree {
        let root =
            Embedded { kind: 7, level: 0, compression: 2, lsize: 1, birth: Txg(birth), payload: vec![7] };
        QueuedSubtree {
            root: BlockPtr::Embedded(root),
            detached: Txg(birth + 9),
            prune_below: Txg(birth / 2),
        }
    }

    #[test]
    fn queues_of_any_length_come_back_block_by_block() {
        for len in [0u64, 1, 112, 113, 114, 128, 129, 1000] {
            let queue: Vec<QueuedSubtree> = (1..=len).map(queued).collect();
            let blocks = QueueFormat::Entries.encode(&queue);
            assert_eq!(blocks.len() as u64, len.div_ceil(113));
            let read = |raw: &Vec<u8>| QueueFormat::Entries.parse(raw, "here").unwrap();
            assert_eq!(blocks.iter().flat_map(read).collect::<Vec<_>>(), queue);
            // A block is read with zeros to its end.
            let padded = |mut raw: Vec<u8>| {
                raw.resize(DNODE_BLOCK_BYTES as usize, 0);
                raw
            };
            let blocks: Vec<Vec<u8>> = blocks.into_iter().map(padded).collect();
            assert_eq!(blocks.iter().flat_map(read).collect::<Vec<_>>(), queue);
            let plain = QueueFormat::Pointers.encode(&queue);
            let read = |raw: &Vec<u8>| QueueFormat::Pointers.parse(raw, "here").unwrap();
            let roots: Vec<BlockPtr> = plain.iter().flat_map(read).map(|subtree| subtree.root).collect();
            assert_eq!(roots, queue.iter().map(|subtree| subtree.root.clone()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn subtree_owns_blocks_born_since_prune_below() {
        let of = QueuedSubtree { prune_below: Txg(10), ..queued(20) };
        assert!(of.owns(&queued(10).root) && !of.owns(&queued(9).root));
        assert!(!of.owns(&BlockPtr::default()), "a hole is nobody's");
    }
}
