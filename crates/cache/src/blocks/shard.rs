//! A shard of the cache, with its own lock: its entries, and eviction.
//!
//! Invariant ([`Shard::check`]): the byte counts match the entries, and the index finds exactly the entries, by name.

use super::cached_block::{CachedBlock, Packed, Plain, Source};
use super::evicted::EvictedBlocks;
use super::index::Index;
use super::{CacheHit, CacheStats, UNREAD_DIVISOR, key_hash, tag};
use crate::Kind;
use crate::retention::{EntryIdx, Retention};
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_format::block_ptr::Key;
use terrane_wire::IdMap;

/// Decompressed forms of each kind keep at least this fraction of the budget, unless they are idle.
pub(super) const PLAIN_DIVISOR: usize = 4;
/// Idle decompressed forms keep only this fraction, enough to serve a block piece by piece. An idle one of data also goes for each
/// `IDLE_PLAIN_EVICTIONS` evicted blocks.
pub(super) const IDLE_PLAIN_DIVISOR: usize = 32;
const IDLE_PLAIN_EVICTIONS: u64 = 8;
/// Decompressed forms of metadata that are examined per returning block. Up to half of them go if they were idle. Decompression takes 1
/// to 3 us, a device read at least 50. No block of a scan returns, so a scan evicts none of them.
const EXAMINED_PER_RETURN: usize = 128;
/// Metadata keeps at least this fraction of the budget, and gets at most `METADATA_SHARES_MAX` of these.
const METADATA_DIVISOR: usize = 4;
const METADATA_SHARES_MAX: usize = 3;
/// A queue this much longer than twice its live entries is purged of stale ones.
const QUEUE_SPARE: usize = 64;

/// The blocks of one kind.
#[derive(Default)]
struct KindBlocks {
    policy: Retention,
    blocks: Vec<Option<CachedBlock>>,
    /// Decompressed forms, oldest first. Some entries are stale.
    plain: VecDeque<(u64, EntryIdx)>,
    plain_count: usize,
    plain_bytes: usize,
    /// Bytes of the contents of all blocks.
    logical_bytes: u64,
}

impl KindBlocks {
    /// Memory of the tables, used or not, without the blocks.
    fn tables(&self) -> usize {
        self.policy.memory()
            + self.blocks.capacity() * size_of::<Option<CachedBlock>>()
            + self.plain.capacity() * size_of::<(u64, EntryIdx)>()
    }

    fn bytes(&self) -> usize {
        self.policy.bytes() as usize + self.plain_bytes + self.tables()
    }

    fn block(&self, at: EntryIdx) -> Option<&CachedBlock> {
        self.blocks.get(at as usize).and_then(Option::as_ref)
    }

    fn block_mut(&mut self, at: EntryIdx) -> Option<&mut CachedBlock> {
        self.blocks.get_mut(at as usize).and_then(Option::as_mut)
    }

    fn count_plain_out(&mut self, bytes: usize) {
        self.plain_count -= 1;
        self.plain_bytes -= bytes;
    }

    /// Drops stale queue entries, and renumbers the others by `now_at`.
    fn clear_queue(&mut self, now_at: impl Fn(EntryIdx) -> EntryIdx) {
        let cached = &self.blocks;
        self.plain.retain_mut(|(ticket, at)| {
            *at = now_at(*at);
            let cached = cached.get(*at as usize).and_then(Option::as_ref);
            cached.and_then(|cached| cached.plain.as_ref()).is_some_and(|plain| plain.ticket == *ticket)
        });
        self.plain.shrink_to(self.plain.len() + QUEUE_SPARE);
    }

    /// Frees unused entries. Calls `moved` for each entry that moved.
    fn compact(&mut self, mut moved: impl FnMut(Key, EntryIdx, EntryIdx)) {
        let moves: IdMap<EntryIdx, EntryIdx> = self.policy.compact().into_iter().collect();
        for (from, to) in &moves {
            self.blocks.swap(*from as usize, *to as usize);
            if let Some(cached) = self.block(*to) {
                moved(cached.key, *from, *to);
            }
        }
        self.blocks.truncate(self.policy.count());
        self.blocks.shrink_to(self.policy.slots());
        self.clear_queue(|at| moves.get(&at).copied().unwrap_or(at));
    }

    fn check(&self) -> Result<(), String> {
        self.policy.check()?;
        let cached = || self.blocks.iter().flatten();
        let bytes: usize = cached().map(CachedBlock::bytes).sum();
        let plain = (
            cached().filter(|cached| cached.plain.is_some()).count(),
            cached().map(CachedBlock::plain_bytes).sum(),
        );
        if (cached().count(), bytes as u64) != (self.policy.count(), self.policy.bytes()) {
            return Err(format!("bytes of blocks: expected {bytes}, found {}", self.policy.bytes()));
        }
        let logical: u64 = cached().map(|cached| u64::from(cached.lsize)).sum();
        if logical != self.logical_bytes {
            return Err(format!("bytes of contents: expected {logical}, found {}", self.logical_bytes));
        }
        if plain != (self.plain_count, self.plain_bytes) {
            return Err(format!("decompressed bytes: expected {}, found {}", plain.1, self.plain_bytes));
        }
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Shard {
    /// Maps to [`number_of`].
    index: Index,
    kinds: [KindBlocks; Kind::ALL.len()],
    next_ticket: u64,
    /// Counts drops of idle data (per `IDLE_PLAIN_EVICTIONS` evictions).
    idle_drops: u64,
    /// Decompressed forms of metadata still to be examined.
    examinations_due: usize,
    /// Blocks admitted so far.
    admitted: u64,
    /// Prefetched blocks, oldest first, with the value of `admitted` at insertion. Some were read or evicted.
    prefetched: VecDeque<(u64, Key)>,
    unread_count: usize,
    unread_bytes: usize,
    /// Bytes that metadata keeps when data needs memory.
    metadata_bytes: usize,
    /// By kind. Counted under the shard's lock, which is held anyway.
    stats: [CacheStats; Kind::ALL.len()],
}

/// An entry's number in the index.
fn number_of(kind: Kind, at: EntryIdx) -> u32 {
    at << 1 | kind as u32
}

fn entry_of(number: u32) -> (Kind, EntryIdx) {
    (Kind::ALL[number as usize & 1], number >> 1)
}

impl Shard {
    /// Memory in use.
    pub fn bytes(&self) -> usize {
        let prefetched = self.prefetched.capacity() * size_of::<(u64, Key)>();
        self.kinds.iter().map(KindBlocks::bytes).sum::<usize>() + self.index.memory() + prefetched
    }

    /// Tables shared by both kinds count as data.
    pub fn stats(&self, kind: Kind) -> CacheStats {
        let [data, metadata] = [Kind::Data, Kind::Metadata].map(|kind| &self.kinds[kind as usize]);
        let (kind_blocks, bytes) = match kind {
            Kind::Data => (data, self.bytes() - metadata.bytes()),
            Kind::Metadata => (metadata, metadata.bytes()),
        };
        CacheStats {
            bytes: bytes as u64,
            plain_bytes: kind_blocks.plain_bytes as u64,
            stored_bytes: kind_blocks.policy.bytes(),
            logical_bytes: kind_blocks.logical_bytes,
            blocks: kind_blocks.policy.count() as u64,
            ..self.stats[kind as usize]
        }
    }

    fn find(&self, key: Key) -> Option<(Kind, EntryIdx)> {
        let is_it = |number: u32| {
            let (kind, at) = entry_of(number);
            self.kinds[kind as usize].block(at).is_some_and(|cached| cached.key == key)
        };
        self.index.get(tag(key), is_it).map(entry_of)
    }

    /// The source of a cached block.
    pub fn source_of(&self, key: Key) -> Option<Source> {
        let (kind, at) = self.find(key)?;
        self.kinds[kind as usize].block(at).map(|cached| cached.source)
    }

    pub fn get(&mut self, key: Key, kind: Kind, evicted: &EvictedBlocks) -> Option<CacheHit> {
        let found = self.find(key);
        let stats = &mut self.stats[kind as usize];
        let Some((kind, at)) = found else {
            stats.misses += 1;
            return None;
        };
        stats.hits += 1;
        let kind_blocks = &mut self.kinds[kind as usize];
        let cached = kind_blocks.block_mut(at)?;
        let is_first = std::mem::take(&mut cached.is_prefetched);
        let bytes = cached.bytes();
        let found = match (&mut cached.plain, &cached.packed) {
            (Some(plain), _) => {
                plain.used = true;
                CacheHit::Plain(plain.block.clone())
            }
            (None, Packed::Content(content)) => CacheHit::Plain(content.clone()),
            (None, Packed::Compressed(_)) if is_first => CacheHit::Prefetched(cached.packed.clone()),
            (None, Packed::Compressed(_)) => CacheHit::Packed(cached.packed.clone()),
        };
        if is_first {
            self.count_read(bytes);
            evicted.count_read(bytes);
            self.stats[kind as usize].prefetched_hits += 1;
        } else {
            kind_blocks.policy.touch(at);
        }
        Some(found)
    }

    /// Adds a block that is not cached.
    pub fn admit(&mut self, key: Key, kind: Kind, cached: CachedBlock, budget: usize) {
        let (bytes, is_prefetched) = (cached.bytes(), cached.is_prefetched);
        let Ok(entry_bytes) = u32::try_from(bytes) else { return };
        let kind_blocks = &mut self.kinds[kind as usize];
        let capacity = kind_blocks.policy.bytes().max(budget as u64 / 2);
        let (at, had_ghost) = kind_blocks.policy.admit(key_hash(key), entry_bytes, capacity);
        if kind_blocks.blocks.len() <= at as usize {
            kind_blocks.blocks.reserve_exact(kind_blocks.policy.slots() - kind_blocks.blocks.len());
            kind_blocks.blocks.resize_with(at as usize + 1, || None);
        }
        kind_blocks.logical_bytes += u64::from(cached.lsize);
        kind_blocks.blocks[at as usize] = Some(cached);
        self.index.insert(tag(key), number_of(kind, at));
        self.admitted += 1;
        if is_prefetched {
            self.note_prefetched(key, bytes);
            self.stats[kind as usize].prefetched += 1;
        }
        if had_ghost {
            self.stats[kind as usize].ghost_hits += 1;
            self.adapt_metadata_share(kind, bytes, budget);
        }
    }

    /// Drops a freed block.
    pub fn forget(&mut self, key: Key) -> Option<CachedBlock> {
        let (kind, at) = self.find(key)?;
        let cached = self.drop_block(kind, at);
        self.kinds[kind as usize].policy.forget(at);
        cached
    }

    /// Drops everything but the statistics.
    pub fn clear(&mut self) {
        let stats = self.stats;
        *self = Shard { stats, idle_drops: self.idle_drops, ..Shard::default() };
    }

    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    /// Adjusts the share of metadata: it grows if evicted metadata returns, and shrinks if evicted data does.
    fn adapt_metadata_share(&mut self, kind: Kind, bytes: usize, budget: usize) {
        let most = self.kinds[Kind::Metadata as usize].plain_count;
        self.examinations_due = (self.examinations_due + EXAMINED_PER_RETURN).min(most);
        self.metadata_bytes = match kind {
            Kind::Metadata => self.metadata_bytes.saturating_add(bytes),
            // Weighted by a quarter: a file's block serves one reader, an indirect block serves all readers of its file.
            Kind::Data => self.metadata_bytes.saturating_sub(bytes / 4),
        };
        self.bound_metadata(budget);
    }

    fn bound_metadata(&mut self, budget: usize) {
        let share = budget / METADATA_DIVISOR;
        self.metadata_bytes = self.metadata_bytes.clamp(share, share * METADATA_SHARES_MAX);
    }

    pub fn put_plain(&mut self, key: Key, block: Arc<Vec<u8>>, was_read: bool) {
        let Some((kind, at)) = self.find(key) else { return };
        let Some(cached) = self.kinds[kind as usize].block_mut(at) else { return };
        if cached.plain.is_some() || matches!(cached.packed, Packed::Content(_)) {
            return;
        }
        self.next_ticket += 1;
        // A data block was read by now. Only a further read of a piece of it counts as a use.
        let used = was_read && kind == Kind::Metadata;
        cached.plain = Some(Box::new(Plain { block, ticket: self.next_ticket, used }));
        let bytes = cached.plain_bytes();
        let kind_blocks = &mut self.kinds[kind as usize];
        kind_blocks.plain.push_back((self.next_ticket, at));
        kind_blocks.plain_count += 1;
        kind_blocks.plain_bytes += bytes;
        // Stale entries are skipped at the front of the queue, but may never get there.
        if kind_blocks.plain.len() > QUEUE_SPARE + 2 * kind_blocks.plain_count {
            kind_blocks.clear_queue(|at| at);
        }
    }

    /// Drops the decompressed form of a block. Its entry in the queue is stale from then on.
    pub fn release_plain(&mut self, key: Key) {
        let Some((kind, at)) = self.find(key) else { return };
        let kind_blocks = &mut self.kinds[kind as usize];
        let plain = kind_blocks.block_mut(at).and_then(|cached| cached.plain.take());
        if let Some(plain) = plain {
            kind_blocks.count_plain_out(plain.memory());
        }
    }

    pub fn shrink_to_budget(&mut self, budget: usize, evicted: &EvictedBlocks) {
        self.bound_metadata(budget);
        let (share, idle_share) = (budget / PLAIN_DIVISOR, budget / IDLE_PLAIN_DIVISOR);
        while self.bytes() > budget {
            let has_freed = self.drop_plain_above(share, Kind::Data)
                || self.drop_plain_above(share, Kind::Metadata)
                || self.drop_idle_data_above(idle_share)
                || self.drop_idle_data_after_evictions()
                || self.drop_due_metadata_above(idle_share)
                || self.evict(budget, evicted)
                || self.drop_plain_above(0, Kind::Data)
                || self.drop_plain_above(0, Kind::Metadata);
            if !has_freed {
                // Only ghosts and empty tables are left.
                self.clear();
                return;
            }
            self.compact_where(|count, capacity| capacity > 2 * count + QUEUE_SPARE);
        }
    }

    /// Frees unused memory of the tables.
    pub fn compact(&mut self) {
        self.compact_where(|count, capacity| capacity > count + count / 4);
    }

    fn compact_where(&mut self, is_waste: impl Fn(usize, usize) -> bool) {
        let mut has_moved = false;
        for kind in Kind::ALL {
            let kind_blocks = &mut self.kinds[kind as usize];
            if is_waste(kind_blocks.policy.count(), kind_blocks.policy.slots()) {
                kind_blocks.compact(|key, from, to| {
                    self.index.replace(tag(key), number_of(kind, from), number_of(kind, to));
                });
                has_moved = true;
            }
        }
        if has_moved {
            self.index.compact();
            self.prefetched.shrink_to(self.prefetched.len() + QUEUE_SPARE);
        }
    }

    /// Drops the least recently used decompressed form if they exceed `share` bytes. False: they do not.
    fn drop_plain_above(&mut self, share: usize, kind: Kind) -> bool {
        while self.kinds[kind as usize].plain_bytes > share {
            match self.examine_oldest_plain(kind) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
        false
    }

    /// Drops the oldest decompressed form of data above `share` bytes, if it was not used since it was last examined.
    fn drop_idle_data_above(&mut self, share: usize) -> bool {
        self.kinds[Kind::Data as usize].plain_bytes > share
            && self.examine_oldest_plain(Kind::Data) == Some(true)
    }

    /// Drops one idle form per `IDLE_PLAIN_EVICTIONS` evictions, so that old ones leave.
    fn drop_idle_data_after_evictions(&mut self) -> bool {
        let evictions: u64 = self.stats.iter().map(|stats| stats.evictions).sum();
        evictions / IDLE_PLAIN_EVICTIONS > self.idle_drops && {
            self.idle_drops = evictions / IDLE_PLAIN_EVICTIONS;
            self.drop_idle_data_above(0)
        }
    }

    /// Drops one idle decompressed form of metadata above `share` bytes, as far as examinations are due.
    fn drop_due_metadata_above(&mut self, share: usize) -> bool {
        while self.examinations_due > 0 && self.kinds[Kind::Metadata as usize].plain_bytes > share {
            self.examinations_due -= 1;
            if self.examine_oldest_plain(Kind::Metadata) == Some(true) {
                return true;
            }
        }
        false
    }

    /// Drops the oldest decompressed form if it was not used since it was last examined; else requeues it. `None`: there is none.
    fn examine_oldest_plain(&mut self, kind: Kind) -> Option<bool> {
        let kind_blocks = &mut self.kinds[kind as usize];
        loop {
            let (ticket, at) = kind_blocks.plain.pop_front()?;
            let Some(cached) = kind_blocks.block_mut(at) else { continue };
            let Some(plain) = cached.plain.as_mut().filter(|plain| plain.ticket == ticket) else { continue };
            if plain.used {
                plain.used = false;
                kind_blocks.plain.push_back((ticket, at));
                return Some(false);
            }
            let bytes = plain.memory();
            cached.plain = None;
            kind_blocks.count_plain_out(bytes);
            return Some(true);
        }
    }

    /// Evicts one block. False: there is none.
    fn evict(&mut self, budget: usize, evicted: &EvictedBlocks) -> bool {
        if self.drop_unread(budget / UNREAD_DIVISOR, evicted) {
            return true;
        }
        let excess = self.bytes().saturating_sub(budget) as u64;
        let of = |kind: Kind| self.kinds[kind as usize].policy.bytes();
        let (data, metadata) = (of(Kind::Data), of(Kind::Metadata));
        let kind =
            if data > 0 && metadata <= self.metadata_bytes as u64 { Kind::Data } else { Kind::Metadata };
        let policy = &mut self.kinds[kind as usize].policy;
        let Some(at) = policy.evict(policy.bytes().saturating_sub(excess)) else { return false };
        if let Some(cached) = self.drop_block(kind, at) {
            evicted.add(cached);
        }
        self.stats[kind as usize].evictions += 1;
        true
    }

    fn note_prefetched(&mut self, key: Key, bytes: usize) {
        self.unread_count += 1;
        self.unread_bytes += bytes;
        self.prefetched.push_back((self.admitted, key));
        if self.prefetched.len() > QUEUE_SPARE + 2 * self.unread_count {
            let mut all = std::mem::take(&mut self.prefetched);
            all.retain(|(_, key)| self.unread(*key).is_some());
            self.prefetched = all;
        }
    }

    fn count_read(&mut self, bytes: usize) {
        self.unread_count -= 1;
        self.unread_bytes -= bytes;
    }

    /// The entry of a prefetched, unread block.
    fn unread(&self, key: Key) -> Option<(Kind, EntryIdx)> {
        let (kind, at) = self.find(key)?;
        self.kinds[kind as usize].block(at)?.is_prefetched.then_some((kind, at))
    }

    /// Drops the oldest prefetched, unread block if all such exceed `share` bytes, or if as many blocks were admitted since as are
    /// cached: an active reader would have asked sooner. The policy would keep it, because it admits no block that was used as rarely.
    fn drop_unread(&mut self, share: usize, evicted: &EvictedBlocks) -> bool {
        while let Some((since, key)) = self.prefetched.front().copied() {
            let Some((kind, at)) = self.unread(key) else {
                self.prefetched.pop_front();
                continue;
            };
            if self.unread_bytes <= share && self.admitted - since <= self.index.count() as u64 {
                return false;
            }
            self.prefetched.pop_front();
            if let Some(cached) = self.drop_block(kind, at) {
                evicted.add(cached);
            }
            self.kinds[kind as usize].policy.forget(at);
            self.stats[kind as usize].evictions += 1;
            return true;
        }
        false
    }

    /// Drops the content of an entry.
    fn drop_block(&mut self, kind: Kind, at: EntryIdx) -> Option<CachedBlock> {
        let kind_blocks = &mut self.kinds[kind as usize];
        let cached = kind_blocks.blocks.get_mut(at as usize).and_then(Option::take)?;
        kind_blocks.logical_bytes -= u64::from(cached.lsize);
        if cached.plain.is_some() {
            kind_blocks.count_plain_out(cached.plain_bytes());
        }
        self.index.remove(tag(cached.key), number_of(kind, at));
        if cached.is_prefetched {
            self.count_read(cached.bytes());
        }
        Some(cached)
    }

    /// Checks the invariants above, and the cache's.
    pub fn check(&self, budget: usize) -> Result<(), String> {
        self.kinds.iter().try_for_each(|kind_blocks| kind_blocks.check())?;
        self.index.check()?;
        let cached = || self.kinds.iter().flat_map(|kind_blocks| &kind_blocks.blocks).flatten();
        if cached().count() != self.index.count() || !cached().all(|cached| self.find(cached.key).is_some()) {
            return Err(format!(
                "indexed blocks: expected {}, found {}",
                cached().count(),
                self.index.count()
            ));
        }
        let unread = || cached().filter(|cached| cached.is_prefetched);
        let bytes: usize = unread().map(CachedBlock::bytes).sum();
        if (unread().count(), bytes) != (self.unread_count, self.unread_bytes) {
            return Err(format!("unread prefetched bytes: expected {bytes}, found {}", self.unread_bytes));
        }
        if self.bytes() > budget {
            return Err(format!("cache over budget: at most {budget} bytes, found {}", self.bytes()));
        }
        Ok(())
    }
}
