//! The block cache: blocks as they are stored, by birthplace, and those in use decompressed as well, within one budget of bytes.
//!
//! What is compressed on the device is compressed here, so that the same memory holds several times as much; a hit costs a
//! decompression, which is far cheaper than a device. What was written, and what is read again, is kept decompressed beside it while there
//! is room: when that is short decompressed forms go first, until a quarter of the budget is left to those of each kind, and those of data
//! that nobody asks for go on until a 32nd is left to them. Only then do blocks go, by [`Retention`], data and metadata each by one of
//! its own. How much metadata may have follows the ghosts that come back of either, and is never less than a quarter.
//!
//! Addresses never change and never repeat within a birth group, so an entry is never wrong, only unused; one that was freed is told so.
//!
//! Invariant ([`BlockCache::check`]): the bytes held, ghosts included, never exceed the budget.

use crate::addr::Addr;
use crate::block_ptr::Normal;
use crate::policy::retention::{EntryIdx, Retention};
use crate::stats::Kind;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use terrane_codec::Compression;
use terrane_wire::{NumberHasher, NumberMap, Txg};

const SHARDS: usize = 16;
/// What a resident block costs beside its bytes, and what the ghost of one costs.
const ENTRY_BYTES: usize = 192;
const GHOST_BYTES: usize = 64;
/// Decompressed forms of either kind keep this part of the budget, however short room is.
const PLAIN_DIVISOR: usize = 4;
/// Those of data that nobody asks for while they are here keep only this one: it holds them from one piece of a block to the next. With so
/// many blocks that go, one of them goes as well.
const IDLE_PLAIN_DIVISOR: usize = 32;
const IDLE_PLAIN_EVICTIONS: u64 = 8;
/// Blocks that were read ahead and that nobody asks for keep this part.
const UNREAD_DIVISOR: usize = 8;
/// Metadata as a whole keeps this part; it may have so many parts at most.
const METADATA_DIVISOR: usize = 4;
const METADATA_PARTS_MAX: usize = 3;

/// A block's name for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub addr: Addr,
    pub birth: Txg,
}

impl Key {
    pub(crate) fn of(ptr: &Normal) -> Key {
        Key { addr: ptr.addrs[0], birth: ptr.block_birth }
    }

    fn name(self) -> u64 {
        let mut hasher = NumberHasher::default();
        hasher.write_u64(self.addr.raw());
        hasher.write_u64(self.birth.0);
        hasher.finish()
    }
}

/// A block as it is stored.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The pointer's compression id.
    pub compression: u8,
    pub bytes: Arc<Vec<u8>>,
}

impl Packed {
    fn is_plain(&self) -> bool {
        self.compression == Compression::Off.id()
    }
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

struct Held {
    key: Key,
    packed: Packed,
    plain: Option<Plain>,
    /// It was read ahead, and nobody has asked for it.
    is_ahead: bool,
}

impl Held {
    fn bytes(&self) -> usize {
        self.packed.bytes.capacity() + ENTRY_BYTES
    }
}

struct Plain {
    block: Arc<Vec<u8>>,
    /// Of its place in the queue: an older one counts no more.
    ticket: u64,
    used: bool,
}

/// Blocks of one kind.
#[derive(Default)]
struct Part {
    policy: Retention,
    held: Vec<Option<Held>>,
    /// Decompressed forms, oldest first, with places of some that went.
    plain: VecDeque<(u64, EntryIdx)>,
    plain_bytes: usize,
}

impl Part {
    fn held_mut(&mut self, at: EntryIdx) -> Option<&mut Held> {
        self.held.get_mut(at as usize).and_then(Option::as_mut)
    }
}

#[derive(Default)]
struct Shard {
    index: NumberMap<Key, (Kind, EntryIdx)>,
    parts: [Part; Kind::ALL.len()],
    next_ticket: u64,
    /// Of dropping what is idle.
    turn: u64,
    /// Blocks that came in.
    admitted: u64,
    /// What was read ahead, oldest first, and when it came in; with some that were asked for, or went.
    ahead: VecDeque<(u64, Key)>,
    unread_bytes: usize,
    /// Bytes that metadata may keep when data wants room.
    metadata_bytes: usize,
    /// By kind. They are counted under the shard's lock, which is held anyway.
    stats: [CacheStats; Kind::ALL.len()],
}

/// Blocks that had to go, for who may want them; what nobody takes in time is dropped.
#[derive(Default)]
struct Leaving {
    /// Of blocks that were read ahead and that nobody has asked for, as long as they are here.
    unread_bytes: AtomicUsize,
    /// Such that went.
    wasted: AtomicU64,
    is_wanted: AtomicBool,
    bytes_max: AtomicUsize,
    /// And their bytes.
    blocks: Mutex<(Vec<(Key, Packed)>, usize)>,
}

/// Memory of blocks on their way out, at most.
const LEAVING_BYTES_MAX: usize = 16 << 20;

impl Leaving {
    fn put(&self, held: Held) {
        if held.is_ahead {
            self.unread_bytes.fetch_sub(held.bytes(), Ordering::Relaxed);
            self.wasted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Held { key, packed, .. } = held;
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let bytes = packed.bytes.len() + ENTRY_BYTES;
        let mut blocks = self.blocks.lock();
        if blocks.1 + bytes <= self.bytes_max.load(Ordering::Relaxed) {
            blocks.1 += bytes;
            blocks.0.push((key, packed));
        }
    }
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
        cache.bound_leaving();
        cache
    }

    /// The most bytes it holds.
    pub fn budget(&self) -> usize {
        self.shard_bytes.load(Ordering::Relaxed) * SHARDS
    }

    /// From now on at most `budget` bytes; what is too much goes at once.
    pub fn set_budget(&self, budget: usize) {
        self.shard_bytes.store(budget / SHARDS, Ordering::Relaxed);
        self.bound_leaving();
        for shard in &self.shards {
            shard.lock().make_room(budget / SHARDS, &self.leaving);
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
        &self.shards[(key.name() >> 32) as usize % SHARDS]
    }

    pub fn get(&self, key: Key, kind: Kind) -> Option<Found> {
        let shard = &mut *self.shard(key).lock();
        let found = shard.index.get(&key).copied();
        let stats = &mut shard.stats[kind as usize];
        let Some((kind, at)) = found else {
            stats.misses += 1;
            return None;
        };
        stats.hits += 1;
        let part = &mut shard.parts[kind as usize];
        let held = part.held_mut(at)?;
        let is_first = std::mem::take(&mut held.is_ahead);
        if is_first {
            shard.unread_bytes -= held.bytes();
            self.leaving.unread_bytes.fetch_sub(held.bytes(), Ordering::Relaxed);
            shard.stats[kind as usize].ahead_hits += 1;
        } else {
            part.policy.touch(at);
        }
        let held = shard.parts[kind as usize].held_mut(at)?;
        Some(match &mut held.plain {
            Some(plain) => {
                plain.used = true;
                Found::Plain(plain.block.clone())
            }
            None if held.packed.is_plain() => Found::Plain(held.packed.bytes.clone()),
            None if is_first => Found::Ahead(held.packed.clone()),
            None => Found::Packed(held.packed.clone()),
        })
    }

    /// Whether the block is here; it is not used by that.
    pub fn holds(&self, key: Key) -> bool {
        self.shard(key).lock().index.contains_key(&key)
    }

    /// Keeps a block, and its content where that is given.
    pub fn insert(&self, key: Key, kind: Kind, packed: Packed, plain: Option<Arc<Vec<u8>>>) {
        match plain {
            Some(block) if self.is_plain_only() => {
                self.admit(
                    key,
                    kind,
                    Packed { compression: Compression::Off.id(), bytes: block },
                    None,
                    false,
                );
            }
            plain => self.admit(key, kind, packed, plain, false),
        }
    }

    /// Keeps a block that nobody asked for yet: to be asked for is no second use of it.
    pub fn insert_ahead(&self, key: Key, kind: Kind, packed: Packed) {
        self.admit(key, kind, packed, None, true);
    }

    /// Memory of blocks that were read ahead and not asked for.
    pub fn unread_bytes(&self) -> usize {
        self.leaving.unread_bytes.load(Ordering::Relaxed)
    }

    /// How many such blocks had to go.
    pub fn wasted(&self) -> u64 {
        self.leaving.wasted.load(Ordering::Relaxed)
    }

    fn admit(&self, key: Key, kind: Kind, packed: Packed, plain: Option<Arc<Vec<u8>>>, is_ahead: bool) {
        let bytes = packed.bytes.capacity() + ENTRY_BYTES;
        let budget = self.shard_bytes.load(Ordering::Relaxed);
        let Ok(entry_bytes) = u32::try_from(bytes) else { return };
        let mut shard = self.shard(key).lock();
        if bytes > budget / 2 || shard.index.contains_key(&key) {
            return;
        }
        let part = &mut shard.parts[kind as usize];
        let capacity = part.policy.bytes().max(budget as u64 / 2);
        let (at, came_back) = part.policy.admit(key.name(), entry_bytes, capacity);
        if part.held.len() <= at as usize {
            part.held.resize_with(at as usize + 1, || None);
        }
        part.held[at as usize] = Some(Held { key, packed, plain: None, is_ahead });
        shard.admitted += 1;
        if is_ahead {
            self.leaving.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
            shard.note_ahead(key, bytes);
            shard.stats[kind as usize].ahead += 1;
        }
        shard.index.insert(key, (kind, at));
        shard.stats[kind as usize].bytes += bytes as u64;
        if came_back {
            shard.stats[kind as usize].ghost_hits += 1;
            shard.learn(kind, bytes, budget);
        }
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
        let shard = &mut *self.shard(key).lock();
        if let Some((kind, at)) = shard.index.get(&key).copied() {
            if let Some(held) = shard.drop_block(kind, at).filter(|held| held.is_ahead) {
                self.leaving.unread_bytes.fetch_sub(held.bytes(), Ordering::Relaxed);
            }
            shard.parts[kind as usize].policy.forget(at);
        }
    }

    /// Whether blocks that go are kept for [`take_leaving`](BlockCache::take_leaving).
    pub fn keep_leaving(&self, is_wanted: bool) {
        self.leaving
            .is_wanted
            .store(is_wanted && !self.plain_only.load(Ordering::Relaxed), Ordering::Relaxed);
        if !is_wanted {
            self.take_leaving();
        }
    }

    /// Blocks that went since it was asked last, as far as there was room for them.
    pub fn take_leaving(&self) -> Vec<(Key, Packed)> {
        std::mem::take(&mut *self.leaving.blocks.lock()).0
    }

    fn bound_leaving(&self) {
        let bytes_max = (self.budget() / 8).min(LEAVING_BYTES_MAX);
        self.leaving.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let stats = shard.stats.map(|stats| CacheStats { bytes: 0, plain_bytes: 0, ..stats });
            let held = shard.parts.iter().flat_map(|part| &part.held).flatten();
            let unread: usize = held.filter(|held| held.is_ahead).map(Held::bytes).sum();
            self.leaving.unread_bytes.fetch_sub(unread, Ordering::Relaxed);
            *shard = Shard { stats, ..Shard::default() };
        }
    }

    /// By [`Kind::ALL`].
    pub fn stats(&self) -> [CacheStats; Kind::ALL.len()] {
        let of = |at: usize| self.shards.iter().map(|shard| shard.lock().stats_of(at)).sum();
        std::array::from_fn(of)
    }

    /// The invariant above.
    pub fn check(&self) -> Result<(), String> {
        self.shards.iter().try_for_each(|shard| shard.lock().check(self.shard_bytes.load(Ordering::Relaxed)))
    }
}

impl Shard {
    /// Memory that is in use.
    fn bytes(&self) -> usize {
        let of = |part: &Part| {
            part.policy.bytes() as usize + part.policy.ghosts() * GHOST_BYTES + part.plain_bytes
        };
        self.parts.iter().map(of).sum()
    }

    fn stats_of(&self, kind: usize) -> CacheStats {
        CacheStats { blocks: self.parts[kind].policy.count() as u64, ..self.stats[kind] }
    }

    /// Metadata that comes back after it went should have stayed, and had less where data does.
    fn learn(&mut self, kind: Kind, bytes: usize, budget: usize) {
        self.metadata_bytes = match kind {
            Kind::Metadata => self.metadata_bytes.saturating_add(bytes),
            // Data is dear to fewer: a file's block serves one reader, a block of pointers all of its file's.
            Kind::Data => self.metadata_bytes.saturating_sub(bytes / 4),
        };
        self.bound_metadata(budget);
    }

    fn bound_metadata(&mut self, budget: usize) {
        let share = budget / METADATA_DIVISOR;
        self.metadata_bytes = self.metadata_bytes.clamp(share, share * METADATA_PARTS_MAX);
    }

    fn put_plain(&mut self, key: Key, block: Arc<Vec<u8>>, was_asked_for: bool) {
        let Some((kind, at)) = self.index.get(&key).copied() else { return };
        let Some(held) = self.parts[kind as usize].held_mut(at) else { return };
        if held.plain.is_some() || held.packed.is_plain() {
            return;
        }
        self.next_ticket += 1;
        let bytes = plain_bytes(&block);
        // Of data the asking is done: only another piece of it would be one more.
        let used = was_asked_for && kind == Kind::Metadata;
        held.plain = Some(Plain { block, ticket: self.next_ticket, used });
        let part = &mut self.parts[kind as usize];
        part.plain.push_back((self.next_ticket, at));
        part.plain_bytes += bytes;
        self.stats[kind as usize].bytes += bytes as u64;
        self.stats[kind as usize].plain_bytes += bytes as u64;
        // Places of blocks that went are skipped when they come to the front, which may be never.
        if part.plain.len() > 64 + 2 * part.policy.count() {
            let held = &part.held;
            let is_there = |ticket: u64, at: EntryIdx| {
                let held = held.get(at as usize).and_then(Option::as_ref);
                held.and_then(|held| held.plain.as_ref()).is_some_and(|plain| plain.ticket == ticket)
            };
            part.plain.retain(|(ticket, at)| is_there(*ticket, *at));
        }
    }

    fn make_room(&mut self, budget: usize, leaving: &Leaving) {
        self.bound_metadata(budget);
        let (share, idle_share) = (budget / PLAIN_DIVISOR, budget / IDLE_PLAIN_DIVISOR);
        while self.bytes() > budget {
            let has_gone = self.drop_plain_above(share, Kind::Data)
                || self.drop_plain_above(share, Kind::Metadata)
                || self.drop_idle_data_above(idle_share)
                || self.drop_idle_data_in_turn()
                || self.evict(budget, leaving)
                || self.drop_plain_above(0, Kind::Data)
                || self.drop_plain_above(0, Kind::Metadata);
            if !has_gone {
                // Nothing but ghosts.
                self.parts = Default::default();
                return;
            }
        }
    }

    /// Of decompressed forms above `share` bytes, drops the one that was not asked for the longest; false: there are no more than that.
    fn drop_plain_above(&mut self, share: usize, kind: Kind) -> bool {
        while self.parts[kind as usize].plain_bytes > share {
            match self.look_at_oldest_plain(kind) {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
        false
    }

    /// The same of data, unless that was asked for since its turn came last.
    fn drop_idle_data_above(&mut self, share: usize) -> bool {
        self.parts[Kind::Data as usize].plain_bytes > share
            && self.look_at_oldest_plain(Kind::Data) == Some(true)
    }

    /// One for some blocks that went, so that those of long ago leave.
    fn drop_idle_data_in_turn(&mut self) -> bool {
        let gone: u64 = self.stats.iter().map(|stats| stats.evictions).sum();
        gone / IDLE_PLAIN_EVICTIONS > self.turn && {
            self.turn = gone / IDLE_PLAIN_EVICTIONS;
            self.drop_idle_data_above(0)
        }
    }

    /// Drops the oldest decompressed form if nobody asked for it, or has it wait for another turn; `None`: there is none.
    fn look_at_oldest_plain(&mut self, kind: Kind) -> Option<bool> {
        let part = &mut self.parts[kind as usize];
        loop {
            let (ticket, at) = part.plain.pop_front()?;
            let Some(held) = part.held_mut(at) else { continue };
            let Some(plain) = held.plain.as_mut().filter(|plain| plain.ticket == ticket) else { continue };
            if plain.used {
                plain.used = false;
                part.plain.push_back((ticket, at));
                return Some(false);
            }
            let bytes = plain_bytes(&plain.block);
            held.plain = None;
            self.count_plain_out(kind, bytes);
            return Some(true);
        }
    }

    fn count_plain_out(&mut self, kind: Kind, bytes: usize) {
        self.parts[kind as usize].plain_bytes -= bytes;
        self.stats[kind as usize].bytes -= bytes as u64;
        self.stats[kind as usize].plain_bytes -= bytes as u64;
    }

    /// Drops one block; false: there is none.
    fn evict(&mut self, budget: usize, leaving: &Leaving) -> bool {
        if self.drop_unread(budget / UNREAD_DIVISOR, leaving) {
            return true;
        }
        let excess = self.bytes().saturating_sub(budget) as u64;
        let of = |kind: Kind| self.parts[kind as usize].policy.bytes();
        let (data, metadata) = (of(Kind::Data), of(Kind::Metadata));
        let kind =
            if data > 0 && metadata <= self.metadata_bytes as u64 { Kind::Data } else { Kind::Metadata };
        let policy = &mut self.parts[kind as usize].policy;
        let Some(at) = policy.evict(policy.bytes().saturating_sub(excess)) else { return false };
        if let Some(held) = self.drop_block(kind, at) {
            leaving.put(held);
        }
        self.stats[kind as usize].evictions += 1;
        true
    }

    fn note_ahead(&mut self, key: Key, bytes: usize) {
        self.unread_bytes += bytes;
        self.ahead.push_back((self.admitted, key));
        if self.ahead.len() > 64 + 2 * self.index.len() {
            let mut all = std::mem::take(&mut self.ahead);
            all.retain(|(_, key)| self.unread(*key).is_some());
            self.ahead = all;
        }
    }

    /// Where a block is that was read ahead and not asked for.
    fn unread(&self, key: Key) -> Option<(Kind, EntryIdx)> {
        let (kind, at) = *self.index.get(&key)?;
        let held = self.parts[kind as usize].held.get(at as usize)?.as_ref()?;
        held.is_ahead.then_some((kind, at))
    }

    /// Drops the oldest block that was read ahead and not asked for, where all such are more than `share` bytes, or as many came in since
    /// as are here: readers that go on ask sooner. The policy would keep it, as it gives no place to blocks that were used as rarely.
    fn drop_unread(&mut self, share: usize, leaving: &Leaving) -> bool {
        while let Some((since, key)) = self.ahead.front().copied() {
            let Some((kind, at)) = self.unread(key) else {
                self.ahead.pop_front();
                continue;
            };
            if self.unread_bytes <= share && self.admitted - since <= self.index.len() as u64 {
                return false;
            }
            self.ahead.pop_front();
            if let Some(held) = self.drop_block(kind, at) {
                leaving.put(held);
            }
            self.parts[kind as usize].policy.forget(at);
            self.stats[kind as usize].evictions += 1;
            return true;
        }
        false
    }

    /// Lets go of what an entry holds.
    fn drop_block(&mut self, kind: Kind, at: EntryIdx) -> Option<Held> {
        let held = self.parts[kind as usize].held.get_mut(at as usize).and_then(Option::take)?;
        self.index.remove(&held.key);
        self.stats[kind as usize].bytes -= held.bytes() as u64;
        if held.is_ahead {
            self.unread_bytes -= held.bytes();
        }
        if let Some(plain) = &held.plain {
            self.count_plain_out(kind, plain_bytes(&plain.block));
        }
        Some(held)
    }

    fn check(&self, budget: usize) -> Result<(), String> {
        self.parts.iter().try_for_each(|part| part.policy.check())?;
        let plain_of = |part: &Part| -> usize {
            let plain = part.held.iter().flatten().filter_map(|held| held.plain.as_ref());
            plain.map(|plain| plain_bytes(&plain.block)).sum()
        };
        let plain: usize = self.parts.iter().map(plain_of).sum();
        let plain_counted: usize = self.parts.iter().map(|part| part.plain_bytes).sum();
        let held = self.parts.iter().flat_map(|part| &part.held).flatten();
        let unread: usize = held.filter(|held| held.is_ahead).map(Held::bytes).sum();
        if unread != self.unread_bytes {
            return Err(format!("{unread} bytes nobody asked for: found {}", self.unread_bytes));
        }
        let counted: u64 = self.stats.iter().map(|stats| stats.bytes).sum();
        let held = self.parts.iter().map(|part| part.policy.bytes()).sum::<u64>() + plain as u64;
        if self.bytes() > budget || plain != plain_counted || counted != held {
            return Err(format!(
                "{} bytes of {budget} expected, {plain} of them plain, {held} held: found {} and {counted}",
                self.bytes(),
                plain_counted
            ));
        }
        Ok(())
    }
}

/// What a decompressed form costs: nothing writes to it while it is here, so this stays the same.
fn plain_bytes(block: &Vec<u8>) -> usize {
    block.capacity() + 64
}

#[cfg(test)]
mod tests;
