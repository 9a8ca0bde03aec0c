//! A shard of the cache, with its own lock: its entries, and eviction.
//!
//! Invariant ([`Shard::check`]): the byte counts match the entries, and the index finds exactly the entries, by name.

use super::held::{Held, Packed, Plain, Source};
use super::index::Index;
use super::leaving::Leaving;
use super::{CacheStats, Found, UNREAD_DIVISOR, name, tag};
use crate::Kind;
use crate::retention::{EntryIdx, Retention};
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_format::block_ptr::Key;
use terrane_wire::NumberMap;

/// Decompressed forms of each kind keep at least this fraction of the budget, unless they are idle.
pub(super) const PLAIN_DIVISOR: usize = 4;
/// Idle decompressed forms keep only this fraction, enough to serve a block piece by piece. An idle one of data also goes for each
/// `IDLE_PLAIN_EVICTIONS` evicted blocks.
pub(super) const IDLE_PLAIN_DIVISOR: usize = 32;
const IDLE_PLAIN_EVICTIONS: u64 = 8;
/// Decompressed forms of metadata that are examined per returning block. Up to half of them go if they were idle. Decompression takes 1
/// to 3 us, a device read at least 50. No block of a scan returns, so a scan evicts none of them.
const LOOKS_PER_RETURN: usize = 128;
/// Metadata keeps at least this fraction of the budget, and gets at most `METADATA_PARTS_MAX` of these.
const METADATA_DIVISOR: usize = 4;
const METADATA_PARTS_MAX: usize = 3;
/// A queue this much longer than twice its live entries is purged of stale ones.
const QUEUE_SPARE: usize = 64;

/// The blocks of one kind.
#[derive(Default)]
struct Part {
    policy: Retention,
    held: Vec<Option<Held>>,
    /// Decompressed forms, oldest first. Some entries are stale.
    plain: VecDeque<(u64, EntryIdx)>,
    plain_count: usize,
    plain_bytes: usize,
}

impl Part {
    /// Memory of the tables, used or not, without the blocks.
    fn tables(&self) -> usize {
        self.policy.memory()
            + self.held.capacity() * size_of::<Option<Held>>()
            + self.plain.capacity() * size_of::<(u64, EntryIdx)>()
    }

    fn bytes(&self) -> usize {
        self.policy.bytes() as usize + self.plain_bytes + self.tables()
    }

    fn held(&self, at: EntryIdx) -> Option<&Held> {
        self.held.get(at as usize).and_then(Option::as_ref)
    }

    fn held_mut(&mut self, at: EntryIdx) -> Option<&mut Held> {
        self.held.get_mut(at as usize).and_then(Option::as_mut)
    }

    fn count_plain_out(&mut self, bytes: usize) {
        self.plain_count -= 1;
        self.plain_bytes -= bytes;
    }

    /// Drops stale queue entries, and renumbers the others by `now_at`.
    fn clear_queue(&mut self, now_at: impl Fn(EntryIdx) -> EntryIdx) {
        let held = &self.held;
        self.plain.retain_mut(|(ticket, at)| {
            *at = now_at(*at);
            let held = held.get(*at as usize).and_then(Option::as_ref);
            held.and_then(|held| held.plain.as_ref()).is_some_and(|plain| plain.ticket == *ticket)
        });
        self.plain.shrink_to(self.plain.len() + QUEUE_SPARE);
    }

    /// Frees unused entries. Calls `moved` for each entry that moved.
    fn compact(&mut self, mut moved: impl FnMut(Key, EntryIdx, EntryIdx)) {
        let moves: NumberMap<EntryIdx, EntryIdx> = self.policy.compact().into_iter().collect();
        for (from, to) in &moves {
            self.held.swap(*from as usize, *to as usize);
            if let Some(held) = self.held(*to) {
                moved(held.key, *from, *to);
            }
        }
        self.held.truncate(self.policy.count());
        self.held.shrink_to(self.policy.room());
        self.clear_queue(|at| moves.get(&at).copied().unwrap_or(at));
    }

    fn check(&self) -> Result<(), String> {
        self.policy.check()?;
        let held = || self.held.iter().flatten();
        let bytes: usize = held().map(Held::bytes).sum();
        let plain = (held().filter(|held| held.plain.is_some()).count(), held().map(Held::plain_bytes).sum());
        if (held().count(), bytes as u64) != (self.policy.count(), self.policy.bytes()) {
            return Err(format!("{bytes} bytes are held: found {} by the policy", self.policy.bytes()));
        }
        if plain != (self.plain_count, self.plain_bytes) {
            return Err(format!("{plain:?} decompressed forms and bytes: found {}", self.plain_bytes));
        }
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Shard {
    /// Maps to [`number_of`].
    index: Index,
    parts: [Part; Kind::ALL.len()],
    next_ticket: u64,
    /// Counts drops of idle data (per `IDLE_PLAIN_EVICTIONS` evictions).
    turn: u64,
    /// Decompressed forms of metadata still to be examined.
    looks_due: usize,
    /// Blocks admitted so far.
    admitted: u64,
    /// Prefetched blocks, oldest first, with the value of `admitted` at insertion. Some were read or evicted.
    ahead: VecDeque<(u64, Key)>,
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
        let ahead = self.ahead.capacity() * size_of::<(u64, Key)>();
        self.parts.iter().map(Part::bytes).sum::<usize>() + self.index.memory() + ahead
    }

    /// Tables shared by both kinds count as data.
    pub fn stats(&self, kind: Kind) -> CacheStats {
        let [data, metadata] = [Kind::Data, Kind::Metadata].map(|kind| &self.parts[kind as usize]);
        let (part, bytes) = match kind {
            Kind::Data => (data, self.bytes() - metadata.bytes()),
            Kind::Metadata => (metadata, metadata.bytes()),
        };
        CacheStats {
            bytes: bytes as u64,
            plain_bytes: part.plain_bytes as u64,
            blocks: part.policy.count() as u64,
            ..self.stats[kind as usize]
        }
    }

    fn find(&self, key: Key) -> Option<(Kind, EntryIdx)> {
        let is_it = |number: u32| {
            let (kind, at) = entry_of(number);
            self.parts[kind as usize].held(at).is_some_and(|held| held.key == key)
        };
        self.index.get(tag(key), is_it).map(entry_of)
    }

    /// The source of a cached block.
    pub fn source_of(&self, key: Key) -> Option<Source> {
        let (kind, at) = self.find(key)?;
        self.parts[kind as usize].held(at).map(|held| held.source)
    }

    pub fn get(&mut self, key: Key, kind: Kind, leaving: &Leaving) -> Option<Found> {
        let found = self.find(key);
        let stats = &mut self.stats[kind as usize];
        let Some((kind, at)) = found else {
            stats.misses += 1;
            return None;
        };
        stats.hits += 1;
        let part = &mut self.parts[kind as usize];
        let held = part.held_mut(at)?;
        let is_first = std::mem::take(&mut held.is_ahead);
        let bytes = held.bytes();
        let found = match (&mut held.plain, &held.packed) {
            (Some(plain), _) => {
                plain.used = true;
                Found::Plain(plain.block.clone())
            }
            (None, Packed::Content(content)) => Found::Plain(content.clone()),
            (None, Packed::Compressed(_)) if is_first => Found::Ahead(held.packed.clone()),
            (None, Packed::Compressed(_)) => Found::Packed(held.packed.clone()),
        };
        if is_first {
            self.count_read(bytes);
            leaving.count_read(bytes);
            self.stats[kind as usize].ahead_hits += 1;
        } else {
            part.policy.touch(at);
        }
        Some(found)
    }

    /// Adds a block that is not cached.
    pub fn admit(&mut self, key: Key, kind: Kind, held: Held, budget: usize) {
        let (bytes, is_ahead) = (held.bytes(), held.is_ahead);
        let Ok(entry_bytes) = u32::try_from(bytes) else { return };
        let part = &mut self.parts[kind as usize];
        let capacity = part.policy.bytes().max(budget as u64 / 2);
        let (at, came_back) = part.policy.admit(name(key), entry_bytes, capacity);
        if part.held.len() <= at as usize {
            part.held.reserve_exact(part.policy.room() - part.held.len());
            part.held.resize_with(at as usize + 1, || None);
        }
        part.held[at as usize] = Some(held);
        self.index.insert(tag(key), number_of(kind, at));
        self.admitted += 1;
        if is_ahead {
            self.note_ahead(key, bytes);
            self.stats[kind as usize].ahead += 1;
        }
        if came_back {
            self.stats[kind as usize].ghost_hits += 1;
            self.learn(kind, bytes, budget);
        }
    }

    /// Drops a freed block.
    pub fn forget(&mut self, key: Key) -> Option<Held> {
        let (kind, at) = self.find(key)?;
        let held = self.drop_block(kind, at);
        self.parts[kind as usize].policy.forget(at);
        held
    }

    /// Drops everything but the statistics.
    pub fn clear(&mut self) {
        let stats = self.stats;
        *self = Shard { stats, turn: self.turn, ..Shard::default() };
    }

    pub fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    /// Adjusts the share of metadata: it grows if evicted metadata returns, and shrinks if evicted data does.
    fn learn(&mut self, kind: Kind, bytes: usize, budget: usize) {
        let most = self.parts[Kind::Metadata as usize].plain_count;
        self.looks_due = (self.looks_due + LOOKS_PER_RETURN).min(most);
        self.metadata_bytes = match kind {
            Kind::Metadata => self.metadata_bytes.saturating_add(bytes),
            // Weighted by a quarter: a file's block serves one reader, an indirect block serves all readers of its file.
            Kind::Data => self.metadata_bytes.saturating_sub(bytes / 4),
        };
        self.bound_metadata(budget);
    }

    fn bound_metadata(&mut self, budget: usize) {
        let share = budget / METADATA_DIVISOR;
        self.metadata_bytes = self.metadata_bytes.clamp(share, share * METADATA_PARTS_MAX);
    }

    pub fn put_plain(&mut self, key: Key, block: Arc<Vec<u8>>, was_asked_for: bool) {
        let Some((kind, at)) = self.find(key) else { return };
        let Some(held) = self.parts[kind as usize].held_mut(at) else { return };
        if held.plain.is_some() || matches!(held.packed, Packed::Content(_)) {
            return;
        }
        self.next_ticket += 1;
        // A data block was read by now. Only a further read of a piece of it counts as a use.
        let used = was_asked_for && kind == Kind::Metadata;
        held.plain = Some(Box::new(Plain { block, ticket: self.next_ticket, used }));
        let bytes = held.plain_bytes();
        let part = &mut self.parts[kind as usize];
        part.plain.push_back((self.next_ticket, at));
        part.plain_count += 1;
        part.plain_bytes += bytes;
        // Stale entries are skipped at the front of the queue, but may never get there.
        if part.plain.len() > QUEUE_SPARE + 2 * part.plain_count {
            part.clear_queue(|at| at);
        }
    }

    pub fn make_room(&mut self, budget: usize, leaving: &Leaving) {
        self.bound_metadata(budget);
        let (share, idle_share) = (budget / PLAIN_DIVISOR, budget / IDLE_PLAIN_DIVISOR);
        while self.bytes() > budget {
            let has_gone = self.drop_plain_above(share, Kind::Data)
                || self.drop_plain_above(share, Kind::Metadata)
                || self.drop_idle_data_above(idle_share)
                || self.drop_idle_data_in_turn()
                || self.drop_due_metadata_above(idle_share)
                || self.evict(budget, leaving)
                || self.drop_plain_above(0, Kind::Data)
                || self.drop_plain_above(0, Kind::Metadata);
            if !has_gone {
                // Only ghosts and empty tables are left.
                self.clear();
                return;
            }
            self.compact_where(|count, room| room > 2 * count + QUEUE_SPARE);
        }
    }

    /// Frees unused memory of the tables.
    pub fn compact(&mut self) {
        self.compact_where(|count, room| room > count + count / 4);
    }

    fn compact_where(&mut self, is_waste: impl Fn(usize, usize) -> bool) {
        let mut has_moved = false;
        for kind in Kind::ALL {
            let part = &mut self.parts[kind as usize];
            if is_waste(part.policy.count(), part.policy.room()) {
                part.compact(|key, from, to| {
                    self.index.replace(tag(key), number_of(kind, from), number_of(kind, to));
                });
                has_moved = true;
            }
        }
        if has_moved {
            self.index.compact();
            self.ahead.shrink_to(self.ahead.len() + QUEUE_SPARE);
        }
    }

    /// Drops the least recently used decompressed form if they exceed `share` bytes. False: they do not.
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

    /// Drops the oldest decompressed form of data above `share` bytes, if it was not used since it was last examined.
    fn drop_idle_data_above(&mut self, share: usize) -> bool {
        self.parts[Kind::Data as usize].plain_bytes > share
            && self.look_at_oldest_plain(Kind::Data) == Some(true)
    }

    /// Drops one idle form per `IDLE_PLAIN_EVICTIONS` evictions, so that old ones leave.
    fn drop_idle_data_in_turn(&mut self) -> bool {
        let gone: u64 = self.stats.iter().map(|stats| stats.evictions).sum();
        gone / IDLE_PLAIN_EVICTIONS > self.turn && {
            self.turn = gone / IDLE_PLAIN_EVICTIONS;
            self.drop_idle_data_above(0)
        }
    }

    /// Drops one idle decompressed form of metadata above `share` bytes, as far as examinations are due.
    fn drop_due_metadata_above(&mut self, share: usize) -> bool {
        while self.looks_due > 0 && self.parts[Kind::Metadata as usize].plain_bytes > share {
            self.looks_due -= 1;
            if self.look_at_oldest_plain(Kind::Metadata) == Some(true) {
                return true;
            }
        }
        false
    }

    /// Drops the oldest decompressed form if it was not used since it was last examined; else requeues it. `None`: there is none.
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
            let bytes = plain.memory();
            held.plain = None;
            part.count_plain_out(bytes);
            return Some(true);
        }
    }

    /// Evicts one block. False: there is none.
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
        self.unread_count += 1;
        self.unread_bytes += bytes;
        self.ahead.push_back((self.admitted, key));
        if self.ahead.len() > QUEUE_SPARE + 2 * self.unread_count {
            let mut all = std::mem::take(&mut self.ahead);
            all.retain(|(_, key)| self.unread(*key).is_some());
            self.ahead = all;
        }
    }

    fn count_read(&mut self, bytes: usize) {
        self.unread_count -= 1;
        self.unread_bytes -= bytes;
    }

    /// The entry of a prefetched, unread block.
    fn unread(&self, key: Key) -> Option<(Kind, EntryIdx)> {
        let (kind, at) = self.find(key)?;
        self.parts[kind as usize].held(at)?.is_ahead.then_some((kind, at))
    }

    /// Drops the oldest prefetched, unread block if all such exceed `share` bytes, or if as many blocks were admitted since as are
    /// cached: an active reader would have asked sooner. The policy would keep it, because it admits no block that was used as rarely.
    fn drop_unread(&mut self, share: usize, leaving: &Leaving) -> bool {
        while let Some((since, key)) = self.ahead.front().copied() {
            let Some((kind, at)) = self.unread(key) else {
                self.ahead.pop_front();
                continue;
            };
            if self.unread_bytes <= share && self.admitted - since <= self.index.count() as u64 {
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

    /// Drops the content of an entry.
    fn drop_block(&mut self, kind: Kind, at: EntryIdx) -> Option<Held> {
        let part = &mut self.parts[kind as usize];
        let held = part.held.get_mut(at as usize).and_then(Option::take)?;
        if held.plain.is_some() {
            part.count_plain_out(held.plain_bytes());
        }
        self.index.remove(tag(held.key), number_of(kind, at));
        if held.is_ahead {
            self.count_read(held.bytes());
        }
        Some(held)
    }

    /// Checks the invariants above, and the cache's.
    pub fn check(&self, budget: usize) -> Result<(), String> {
        self.parts.iter().try_for_each(|part| part.check())?;
        self.index.check()?;
        let held = || self.parts.iter().flat_map(|part| &part.held).flatten();
        if held().count() != self.index.count() || !held().all(|held| self.find(held.key).is_some()) {
            return Err(format!("{} blocks by name: found {}", self.index.count(), held().count()));
        }
        let unread = || held().filter(|held| held.is_ahead);
        let bytes: usize = unread().map(Held::bytes).sum();
        if (unread().count(), bytes) != (self.unread_count, self.unread_bytes) {
            return Err(format!("{bytes} bytes nobody asked for: found {}", self.unread_bytes));
        }
        if self.bytes() > budget {
            return Err(format!("at most {budget} bytes: found {}", self.bytes()));
        }
        Ok(())
    }
}
