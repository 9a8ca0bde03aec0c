//! Blocks of dnodes that the newest group has reserved room for.
//!
//! Neighbours share a block of dnodes, which is written once in a group, however many of them change.

use parking_lot::Mutex;
use terrane_object::{ObjectId, slot_of};
use terrane_wire::NumberSet;

/// Bytes of a block of dnodes, and of a block of pointers above it.
pub const DNODE_BLOCK_BYTES: u64 = 16 << 10;
const SHARDS: usize = 16;

/// Leaf locks.
#[derive(Debug, Default)]
pub struct DnodeBlocks([Mutex<(u64, NumberSet<u64>)>; SHARDS]);

impl DnodeBlocks {
    fn shard(&self, id: ObjectId) -> (&Mutex<(u64, NumberSet<u64>)>, u64) {
        let (block, _) = slot_of(id);
        let shard = usize::try_from(block % SHARDS as u64).unwrap_or(0);
        (self.0.get(shard).expect("the remainder is below the number of shards"), block)
    }

    pub fn is_claimed(&self, group: u64, id: ObjectId) -> bool {
        let (shard, block) = self.shard(id);
        let claimed = shard.lock();
        claimed.0 == group && claimed.1.contains(&block)
    }

    /// True: it was not claimed before in this group.
    pub fn claim(&self, group: u64, id: ObjectId) -> bool {
        let (shard, block) = self.shard(id);
        let mut claimed = shard.lock();
        if claimed.0 < group {
            claimed.0 = group;
            claimed.1.clear();
        }
        claimed.0 == group && claimed.1.insert(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_dnodes_is_claimed_once_in_a_group() {
        let blocks = DnodeBlocks::default();
        let id = ObjectId;
        assert!(!blocks.is_claimed(7, id(33)));
        assert!(blocks.claim(7, id(33)));
        assert!(
            blocks.is_claimed(7, id(63)) && !blocks.claim(7, id(63)),
            "its neighbour lies in the same block"
        );
        assert!(blocks.claim(7, id(64)) && !blocks.is_claimed(8, id(64)));
        // A shard forgets an old group, and is not taken back to it.
        assert!(blocks.claim(8, id(33)) && !blocks.is_claimed(7, id(33)) && !blocks.claim(7, id(33)));
    }
}
