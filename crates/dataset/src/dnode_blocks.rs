//! Blocks for which the newest txg has reserved space.
//!
//! Neighbouring dnodes share a dnode block, and records of a file share an indirect block. A txg writes such a
//! block once, however much of it changes. So its space is reserved once.

use parking_lot::Mutex;
use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use terrane_object::slot_of;
use terrane_wire::{IdHasher, IdSet, ObjectId, shard};

/// Bytes of a dnode block, and of an indirect block above it.
pub const DNODE_BLOCK_BYTES: u64 = terrane_object::dnode::DNODE_BLOCK_BYTES as u64;
const SHARDS: usize = 16;

/// Blocks by a key. Leaf locks.
#[derive(Debug)]
pub struct ClaimedBlocks<K>([Mutex<(u64, IdSet<K>)>; SHARDS]);

impl<K> Default for ClaimedBlocks<K> {
    fn default() -> Self {
        ClaimedBlocks(Default::default())
    }
}

impl<K: Hash + Eq + Copy> ClaimedBlocks<K> {
    fn shard(&self, block: K) -> &Mutex<(u64, IdSet<K>)> {
        let hash = BuildHasherDefault::<IdHasher>::default().hash_one(block);
        self.0.get(shard(hash, SHARDS)).expect("the remainder is below the number of shards")
    }

    /// Whether a block was claimed in this txg.
    pub fn is_claimed(&self, txg: u64, block: K) -> bool {
        let claimed = self.shard(block).lock();
        claimed.0 == txg && claimed.1.contains(&block)
    }

    /// Claims a block. True: it was not claimed before in this txg.
    pub fn claim(&self, txg: u64, block: K) -> bool {
        let mut claimed = self.shard(block).lock();
        if claimed.0 < txg {
            claimed.0 = txg;
            claimed.1.clear();
        }
        claimed.0 == txg && claimed.1.insert(block)
    }
}

/// Dnode blocks, by the objects in them.
#[derive(Debug, Default)]
pub struct DnodeBlocks(ClaimedBlocks<u64>);

impl DnodeBlocks {
    /// Whether the dnode block of an object was claimed in this txg.
    pub fn is_claimed(&self, txg: u64, id: ObjectId) -> bool {
        self.0.is_claimed(txg, slot_of(id).block)
    }

    /// Claims the dnode block of an object. True: it was not claimed before in this txg.
    pub fn claim(&self, txg: u64, id: ObjectId) -> bool {
        self.0.claim(txg, slot_of(id).block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_dnodes_is_reserved_once_in_a_txg() {
        let blocks = DnodeBlocks::default();
        let id = ObjectId;
        assert!(!blocks.is_claimed(7, id(33)));
        assert!(blocks.claim(7, id(33)));
        assert!(
            blocks.is_claimed(7, id(63)) && !blocks.claim(7, id(63)),
            "its neighbour lies in the same block"
        );
        assert!(blocks.claim(7, id(64)) && !blocks.is_claimed(8, id(64)));
        // A shard forgets an old txg, and does not return to it.
        assert!(blocks.claim(8, id(33)) && !blocks.is_claimed(7, id(33)) && !blocks.claim(7, id(33)));
    }
}
