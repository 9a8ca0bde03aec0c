//! The block cache: blocks as they are stored, by birthplace, and those in use decompressed as well, within one budget of bytes.
//!
//! What is compressed on the device is compressed here, so that the same memory holds several times as much; a hit costs a decompression,
//! which is far cheaper than a device. What was written, and what is read again, is kept decompressed beside it while there is room: when
//! that is short decompressed forms go first, until a quarter of the budget is left to those of each kind, and those of data that nobody
//! asks for go on until a 32nd is left to them; so do those of metadata, as blocks come back that had to go. Only then do blocks go, by
//! [`retention`](crate::retention), data and metadata each by one of its own. How much metadata may have follows the ghosts that
//! come back of either, and is at least a quarter.
//!
//! Addresses never change and never repeat within a birth group, so an entry is never wrong, only unused; one that was freed is told so.
//!
//! Invariant ([`BlockCache::check`]): the bytes held, ghosts and tables included, never exceed the budget.

mod held;
mod index;
mod leaving;
mod shard;

use crate::Kind;
use crate::retention;
use held::Held;
pub use held::{Packed, Source};
use leaving::Leaving;
use parking_lot::Mutex;
use shard::Shard;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use terrane_format::block_ptr::Key;
use terrane_wire::NumberHasher;

const SHARDS: usize = 16;
/// Blocks that were read ahead and that nobody asks for keep this part.
const UNREAD_DIVISOR: usize = 8;

fn name(key: Key) -> u64 {
    let mut hasher = NumberHasher::default();
    hasher.write_u64(key.addr.raw());
    hasher.write_u64(key.birth.0);
    hasher.finish()
}

fn tag(key: Key) -> u32 {
    retention::tag(name(key))
}

/// A block that is here.
#[derive(Clone, Debug)]
pub enum Found {
    /// Its content.
    Plain(Arc<Vec<u8>>),
    /// What has to be decompressed.
    Packed(Packed),
    /// The same of a block that was read ahead, when it is asked for the first time.
    Ahead(Packed),
}

pub struct BlockCache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: AtomicUsize,
    plain_only: AtomicBool,
    leaving: Leaving,
}

/// What the cache holds and did, of one kind of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Memory, decompressed forms included.
    pub bytes: u64,
    /// Of that, decompressed forms.
    pub plain_bytes: u64,
    /// Blocks that are here.
    pub blocks: u64,
    pub hits: u64,
    pub misses: u64,
    /// Blocks that came back after they had made room.
    pub ghost_hits: u64,
    /// Blocks that made room.
    pub evictions: u64,
    /// Blocks that were read ahead, and those of them that somebody asked for.
    pub ahead: u64,
    pub ahead_hits: u64,
}

impl std::iter::Sum for CacheStats {
    fn sum<I: Iterator<Item = CacheStats>>(all: I) -> CacheStats {
        all.fold(CacheStats::default(), |sum, one| CacheStats {
            bytes: sum.bytes + one.bytes,
            plain_bytes: sum.plain_bytes + one.plain_bytes,
            blocks: sum.blocks + one.blocks,
            hits: sum.hits + one.hits,
            misses: sum.misses + one.misses,
            ghost_hits: sum.ghost_hits + one.ghost_hits,
            evictions: sum.evictions + one.evictions,
            ahead: sum.ahead + one.ahead,
            ahead_hits: sum.ahead_hits + one.ahead_hits,
        })
    }
}

impl BlockCache {
    /// A cache of at most `budget` bytes.
    pub fn new(budget: usize) -> BlockCache {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let shard_bytes = AtomicUsize::new(budget / SHARDS);
        let cache = BlockCache {
            shards,
            shard_bytes,
            plain_only: AtomicBool::new(false),
            leaving: Leaving::default(),
        };
        cache.leaving.bound(cache.budget());
        cache
    }

    /// The most bytes it holds.
    pub fn budget(&self) -> usize {
        self.shard_bytes.load(Ordering::Relaxed) * SHARDS
    }

    /// From now on at most `budget` bytes; what is too much goes at once.
    pub fn set_budget(&self, budget: usize) {
        self.shard_bytes.store(budget / SHARDS, Ordering::Relaxed);
        self.leaving.bound(self.budget());
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.make_room(budget / SHARDS, &self.leaving);
            shard.compact();
        }
    }

    /// Whether blocks are kept as their content alone, as caches of old did: to compare with.
    pub fn set_plain_only(&self, plain_only: bool) {
        self.plain_only.store(plain_only, Ordering::Relaxed);
        self.clear();
    }

    /// As it was set.
    pub fn is_plain_only(&self) -> bool {
        self.plain_only.load(Ordering::Relaxed)
    }

    /// Whether who has the content of a block at hand, so many bytes, should give it to [`insert`](BlockCache::insert): always that of
    /// metadata, that of data while nothing has to go for it.
    pub fn wants_plain(&self, key: Key, kind: Kind, bytes: usize) -> bool {
        if kind == Kind::Metadata || self.is_plain_only() {
            return true;
        }
        let held = self.shard(key).lock().bytes();
        held + 2 * bytes <= self.shard_bytes.load(Ordering::Relaxed)
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[(name(key) >> 32) as usize % SHARDS]
    }

    pub fn get(&self, key: Key, kind: Kind) -> Option<Found> {
        self.shard(key).lock().get(key, kind, &self.leaving)
    }

    /// Whether the block is here; it is not used by that.
    pub fn holds(&self, key: Key) -> bool {
        self.shard(key).lock().source_of(key).is_some()
    }

    /// Whether the block is here, and came from its own place, where it was whole.
    pub fn holds_own(&self, key: Key) -> bool {
        self.shard(key).lock().source_of(key) == Some(Source::Pool)
    }

    /// Keeps a block, and its content where that is given.
    pub fn insert(
        &self,
        key: Key,
        kind: Kind,
        (packed, source): (Packed, Source),
        plain: Option<Arc<Vec<u8>>>,
    ) {
        let (packed, plain) = match plain {
            Some(block) if self.is_plain_only() => (Packed::Content(block), None),
            plain => (packed, plain),
        };
        self.admit(kind, Held { key, packed, plain: None, is_ahead: false, source }, plain);
    }

    /// Keeps a block that nobody asked for yet: to be asked for is no second use of it.
    pub fn insert_ahead(&self, key: Key, kind: Kind, (packed, source): (Packed, Source)) {
        self.admit(kind, Held { key, packed, plain: None, is_ahead: true, source }, None);
    }

    /// Memory of blocks that were read ahead and not asked for.
    pub fn unread_bytes(&self) -> usize {
        self.leaving.unread_bytes()
    }

    /// How many such blocks had to go.
    pub fn wasted(&self) -> u64 {
        self.leaving.wasted()
    }

    fn admit(&self, kind: Kind, held: Held, plain: Option<Arc<Vec<u8>>>) {
        let (key, bytes) = (held.key, held.bytes());
        let budget = self.shard_bytes.load(Ordering::Relaxed);
        let mut shard = self.shard(key).lock();
        if bytes > budget / 2 || shard.source_of(key).is_some() {
            return;
        }
        if held.is_ahead {
            self.leaving.count_unread(bytes);
        }
        shard.admit(key, kind, held, budget);
        if let Some(block) = plain {
            shard.put_plain(key, block, false);
        }
        shard.make_room(budget, &self.leaving);
    }

    /// The content of a block that was found packed.
    pub fn insert_plain(&self, key: Key, block: &Arc<Vec<u8>>) {
        let mut shard = self.shard(key).lock();
        shard.put_plain(key, block.clone(), true);
        shard.make_room(self.shard_bytes.load(Ordering::Relaxed), &self.leaving);
    }

    /// The block was freed: nobody will ask for it.
    pub fn forget(&self, key: Key) {
        let held = self.shard(key).lock().forget(key);
        if let Some(held) = held.filter(|held| held.is_ahead) {
            self.leaving.count_read(held.bytes());
        }
    }

    /// Whether blocks that go are kept for [`take_leaving`](BlockCache::take_leaving).
    pub fn keep_leaving(&self, is_wanted: bool) {
        self.leaving.keep(is_wanted && !self.is_plain_only());
        if !is_wanted {
            self.take_leaving();
        }
    }

    /// Blocks that went since it was asked last, as far as there was room for them.
    pub fn take_leaving(&self) -> Vec<(Key, Packed)> {
        self.leaving.take()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.leaving.count_read(shard.unread_bytes());
            shard.clear();
        }
    }

    /// By [`Kind::ALL`].
    pub fn stats(&self) -> [CacheStats; Kind::ALL.len()] {
        let of = |kind: Kind| self.shards.iter().map(|shard| shard.lock().stats(kind)).sum();
        Kind::ALL.map(of)
    }

    /// The invariant above.
    pub fn check(&self) -> Result<(), String> {
        self.shards.iter().try_for_each(|shard| shard.lock().check(self.shard_bytes.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests;
