//! The block cache: decompressed blocks by birthplace, within a budget of bytes.
//!
//! Addresses never change and never repeat within a birth group, so an entry is never wrong, only unused. Second chance
//! (clock) decides what goes: one pass of a large file does not push out what was asked for twice.
//!
//! Invariant: the bytes held never exceed the budget, except for one block larger than a shard.

use crate::addr::Addr;
use crate::stats::Kind;
use parking_lot::Mutex;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrane_wire::{NumberHasher, NumberMap, Txg};

const SHARDS: usize = 16;
/// What an entry costs beside its bytes.
const ENTRY_BYTES: usize = 96;

/// A block's name for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub addr: Addr,
    pub birth: Txg,
}

struct Slot {
    key: Key,
    block: Arc<Vec<u8>>,
    used: bool,
    kind: Kind,
}

#[derive(Default)]
struct Shard {
    index: NumberMap<Key, usize>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    hand: usize,
    bytes: usize,
    /// By kind. They are counted under the shard's lock, which is held anyway.
    stats: [CacheStats; Kind::ALL.len()],
}

pub struct BlockCache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: AtomicUsize,
}

/// What the cache holds and did, of one kind of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
}

impl std::iter::Sum for CacheStats {
    fn sum<I: Iterator<Item = CacheStats>>(all: I) -> CacheStats {
        all.fold(CacheStats::default(), |sum, one| CacheStats {
            bytes: sum.bytes + one.bytes,
            hits: sum.hits + one.hits,
            misses: sum.misses + one.misses,
            evictions: sum.evictions + one.evictions,
        })
    }
}

impl BlockCache {
    /// A cache of at most `budget` bytes.
    pub fn new(budget: usize) -> BlockCache {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        BlockCache { shards, shard_bytes: AtomicUsize::new(budget / SHARDS) }
    }

    /// The most bytes it holds.
    pub fn budget(&self) -> usize {
        self.shard_bytes.load(Ordering::Relaxed) * SHARDS
    }

    /// From now on at most `budget` bytes; what is too much goes at once.
    pub fn set_budget(&self, budget: usize) {
        self.shard_bytes.store(budget / SHARDS, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock();
            while shard.bytes > budget / SHARDS {
                shard.evict();
            }
        }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        let mut hasher = NumberHasher::default();
        hasher.write_u64(key.addr.raw());
        &self.shards[(hasher.finish() >> 32) as usize % SHARDS]
    }

    pub fn get(&self, key: Key, kind: Kind) -> Option<Arc<Vec<u8>>> {
        let shard = &mut *self.shard(key).lock();
        let found = shard.index.get(&key).copied().and_then(|at| shard.slots[at].as_mut()).map(|slot| {
            slot.used = true;
            slot.block.clone()
        });
        let stats = &mut shard.stats[kind as usize];
        if found.is_some() {
            stats.hits += 1;
        } else {
            stats.misses += 1;
        }
        found
    }

    pub fn insert(&self, key: Key, block: Arc<Vec<u8>>, kind: Kind) {
        let bytes = held_bytes(&block);
        let shard_bytes = self.shard_bytes.load(Ordering::Relaxed);
        let mut shard = self.shard(key).lock();
        if bytes > shard_bytes || shard.index.contains_key(&key) {
            return;
        }
        while shard.bytes + bytes > shard_bytes {
            shard.evict();
        }
        shard.bytes += bytes;
        shard.stats[kind as usize].bytes += bytes as u64;
        let slot = Some(Slot { key, block, used: false, kind });
        let at = match shard.free.pop() {
            Some(at) => {
                shard.slots[at] = slot;
                at
            }
            None => {
                shard.slots.push(slot);
                shard.slots.len() - 1
            }
        };
        shard.index.insert(key, at);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let stats = shard.stats.map(|stats| CacheStats { bytes: 0, ..stats });
            *shard = Shard { stats, ..Shard::default() };
        }
    }

    /// By [`Kind::ALL`].
    pub fn stats(&self) -> [CacheStats; Kind::ALL.len()] {
        let of = |at: usize| self.shards.iter().map(|shard| shard.lock().stats[at]).sum();
        std::array::from_fn(of)
    }
}

/// What a block costs: nothing writes to it while it is here, so this stays the same.
fn held_bytes(block: &Vec<u8>) -> usize {
    block.capacity() + ENTRY_BYTES
}

impl Shard {
    /// Drops one block: the first under the hand that was not asked for since the hand last passed.
    fn evict(&mut self) {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let at = self.hand;
            match &mut self.slots[at] {
                Some(slot) if slot.used => slot.used = false,
                Some(_) => {
                    let slot = self.slots[at].take().expect("matched just above");
                    let bytes = held_bytes(&slot.block);
                    self.bytes -= bytes;
                    let stats = &mut self.stats[slot.kind as usize];
                    stats.bytes -= bytes as u64;
                    stats.evictions += 1;
                    self.index.remove(&slot.key);
                    self.free.push(at);
                    return;
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_wire::ZoneSeq;

    fn key(n: u64) -> Key {
        Key { addr: Addr::new(ZoneSeq(1 + n / 1000), n % 1000 * 16), birth: Txg(1) }
    }

    #[test]
    fn the_budget_holds_and_what_is_used_stays() {
        let cache = BlockCache::new(16 << 20);
        for n in 0..20_000 {
            cache.insert(key(n), Arc::new(vec![n as u8; 4096]), Kind::Data);
            cache.get(key(5), Kind::Data);
            assert!(cache.stats()[0].bytes <= 16 << 20);
        }
        assert_eq!(cache.get(key(5), Kind::Data).unwrap()[0], 5);
        assert!(cache.get(key(7), Kind::Data).is_none(), "one pass does not stay");
        assert_eq!(cache.get(key(19_999), Kind::Data).unwrap()[0], (19_999 % 256) as u8);
        cache.set_budget(1 << 20);
        assert!(cache.stats()[0].bytes <= 1 << 20 && cache.budget() == 1 << 20);
        cache.set_budget(16 << 20);
        cache.insert(key(1), Arc::new(vec![1; 4096]), Kind::Data);
        assert!(cache.get(key(1), Kind::Data).is_some());
        cache.clear();
        assert_eq!(cache.stats()[0].bytes, 0);
    }

    #[test]
    fn each_kind_is_counted_apart() {
        let cache = BlockCache::new(1 << 20);
        cache.insert(key(1), Arc::new(vec![0; 1000]), Kind::Data);
        cache.insert(key(2), Arc::new(vec![0; 3000]), Kind::Metadata);
        cache.get(key(2), Kind::Metadata);
        cache.get(key(3), Kind::Metadata);
        let of = |bytes, hits, misses| CacheStats { bytes, hits, misses, evictions: 0 };
        assert_eq!(cache.stats(), [of(1096, 0, 0), of(3096, 1, 1)]);
        (0..1000).for_each(|n| cache.insert(key(n), Arc::new(vec![0; 4096]), Kind::Data));
        let [data, metadata] = cache.stats();
        assert!(data.evictions > 0 && metadata.evictions == 1, "{data:?} {metadata:?}");
        assert!(metadata.bytes == 0 && data.bytes <= 1 << 20);
        cache.clear();
        assert_eq!((cache.stats()[1].bytes, cache.stats()[1].hits), (0, 1));
    }
}
