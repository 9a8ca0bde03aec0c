//! The snapshots of one data set, oldest first, and which blocks they keep.
//!
//! Snapshot `s` refers to a block that was born in txg `b` and left the data set in txg `d` if `b <= s < d`. So the newest snapshot
//! before `d` decides. If it refers to the block, the block goes to the dead list of the next snapshot, or of the head.
//!
//! The snapshot *before* a list is the newest that refers to the blocks on the list. When that snapshot is destroyed, the list takes
//! over the snapshot's own list. Then an entry stays if it was born no later than the snapshot that is now before the list.
//! So destruction needs one rule for each list. A scan applies it in pieces, and begins again after a crash.
//!
//! The snapshots of a chain with many are read some time after it was opened ([`late`]).
//!
//! Invariants:
//! * A chain changes only in the sync of the txg to which the change belongs. Operations only queue changes.
//! * An entry is freed and leaves its list in the same txg.

mod late;
mod parts;

use crate::dead_list::{DeadEntry, LIST_BLOCK_BYTES, PartInfo, encode_block, encode_blocks, parse_block};
use crate::error::DatasetError;
use crate::snapshot_info::{REFERENCED_AT, SnapshotInfo, encode_referenced};
use crate::zap_form;
pub(crate) use late::read_soon;
use parking_lot::Mutex;
pub(crate) use parts::{each_entry, hold_part, kept_bytes, list_parts, new_part, report};
use parts::{load_readable_parts, next_stored_block, read_entries};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrane_format::{BlockPtr, Feature, GRANULE};
use terrane_object::{
    Account, FreeDecision, FreePolicy, MosChange, MosUpdate, ObjectError, ObjectKind, ObjectSet,
};
use terrane_pool::{Tx, TxgSync};
use terrane_store::PoolError;
use terrane_txg::cost::META_BLOCK_BYTES;
use terrane_wire::{ObjectId, Txg};

/// Most blocks of dead lists that a txg scans, for each data set.
const SCAN_BLOCKS: u64 = 64;
/// Copies after which a txg stops freeing entries of dead lists, for each data set. The block that is being scanned is finished.
const SCAN_FREES: u64 = 32 << 10;
/// Most parts that a txg destroys, for each data set. All operations wait meanwhile.
const DESTROYED_PARTS_MAX: u64 = 1024;
const DESTROYED_PARTS_MIN: u64 = 8;
/// Of a small pool, what they reserve takes at most this share.
const POOL_SHARE: u64 = 64;
/// Metadata blocks that become dirty when a part is destroyed.
const DESTROY_BLOCKS: u32 = 6;

/// A snapshot in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The txg that it shows.
    pub created: Txg,
    /// The object of the MOS that stands for it.
    pub snapshot: ObjectId,
    /// First part of its dead list.
    pub dead_list: ObjectId,
    /// Bytes that it refers to, without its header.
    pub referenced_bytes: u64,
}

impl Link {
    /// The link of a stored snapshot.
    pub(crate) fn of(info: &SnapshotInfo) -> Link {
        let (created, snapshot, dead_list) = (info.created, info.id, info.dead_list);
        Link { created, snapshot, dead_list, referenced_bytes: info.referenced.used_bytes }
    }
}

/// A change of a chain. It belongs to the txg of the operation that queues it.
#[derive(Clone, Debug)]
pub(crate) enum ChainChange {
    /// A snapshot is taken. Its list is that of the head, which gets a new one.
    Take { info: SnapshotInfo, new_list: ObjectId },
    /// A snapshot is destroyed.
    Destroy(Txg),
    /// A promotion gives the data set other snapshots and another origin. Its lists are at rest. `recount`: the list whose `unique` sum
    /// has to be counted again.
    Replace { origin: Txg, links: Vec<Link>, recount: ObjectId },
    /// The data set is retired. Its snapshots belong to another set now, and so do blocks that are not younger than `origin`.
    Detach { origin: Txg },
}

/// A part of a dead list.
struct Part {
    id: ObjectId,
    info: PartInfo,
    blocks: u64,
    has_changed: bool,
}

/// A scan of a list.
struct Scan {
    part: usize,
    block: u64,
    /// Number of blocks of the first part when the scan began. Entries behind them are counted when they are added.
    first_part_blocks: u64,
    unique_bytes: u64,
}

/// A dead list in memory.
struct DeadList {
    parts: Vec<Part>,
    scan: Option<Scan>,
    /// Blocks that this txg changes, by part.
    writes: BTreeMap<(ObjectId, u64), Option<Vec<u8>>>,
}

/// The snapshots of a chain that are stored and not read yet.
struct Unread {
    /// The ZAP of their names.
    names: ObjectId,
    /// None of them shows a later txg.
    until: Txg,
}

#[derive(Default)]
struct State {
    /// The txg of the snapshot from which the data set was cloned. Blocks that are not younger belong to that snapshot.
    origin: Txg,
    /// Empty while they are unread.
    links: Vec<Link>,
    unread: Option<Unread>,
    head_list: ObjectId,
    /// Lists that were used since the pool was opened, by their first part.
    lists: BTreeMap<ObjectId, DeadList>,
    /// Of those, lists that may have changed since the last sync.
    touched: BTreeSet<ObjectId>,
    /// Entries that the syncing txg adds, by list.
    added: BTreeMap<ObjectId, Vec<DeadEntry>>,
    /// Some of these entries are on the list of the head because the snapshots are unread.
    is_undecided: bool,
    /// Blocks to subtract from the sums of snapshots, by snapshot. They were in the free queue when the snapshot was taken, and this txg
    /// frees them.
    not_referenced: BTreeMap<ObjectId, Account>,
    /// Lists that are due for a scan.
    due: BTreeSet<ObjectId>,
    /// Empty parts that the next txg destroys: list and part.
    empty: Vec<(ObjectId, ObjectId)>,
    /// Parts that the syncing txg destroys: list and part.
    destroyed: Vec<(ObjectId, ObjectId)>,
}

/// Decides for each block that leaves a data set whether a snapshot keeps it.
pub struct Chain {
    mos: Weak<ObjectSet>,
    /// The newest txg of a snapshot or of the origin. Blocks that were born later are never kept.
    newest: AtomicU64,
    /// Whether the next sync has to work on the lists.
    is_busy: AtomicBool,
    state: Mutex<State>,
    pending: Mutex<Vec<ChainChange>>,
    syncing: Mutex<Vec<ChainChange>>,
    /// Held while unread snapshots are read. Callers may hold the lock of the tree, and a transaction. It is taken before `state`.
    reading: Mutex<()>,
}

/// The space of the blocks on a chain's lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainUsage {
    /// Bytes that only one snapshot refers to, by its txg.
    pub unique: BTreeMap<Txg, u64>,
    /// Bytes of all lists. Destroying all snapshots would free them.
    pub kept_bytes: u64,
    /// Of these, bytes on the list of the head.
    pub head_list_bytes: u64,
    /// Bytes that the newest snapshot refers to. `None`: there is no snapshot.
    pub newest_bytes: Option<u64>,
    /// Some counts are not exact yet, because destroyed snapshots are still being freed.
    pub is_counting: bool,
}

impl Chain {
    /// The chain of a data set that is being opened. `due`: lists with entries to free.
    pub(crate) fn new(
        mos: &Arc<ObjectSet>,
        origin: Txg,
        links: Vec<Link>,
        head_list: ObjectId,
        due: BTreeSet<ObjectId>,
    ) -> Arc<Chain> {
        Chain::with(mos, State { origin, links, head_list, due, ..State::default() })
    }

    fn with(mos: &Arc<ObjectSet>, state: State) -> Arc<Chain> {
        Arc::new(Chain {
            mos: Arc::downgrade(mos),
            newest: AtomicU64::new(state.newest().0),
            is_busy: AtomicBool::new(!state.due.is_empty()),
            state: Mutex::new(state),
            pending: Mutex::default(),
            syncing: Mutex::default(),
            reading: Mutex::default(),
        })
    }

    /// The chain of an open object set.
    pub(crate) fn of(set: &ObjectSet) -> Option<Arc<Chain>> {
        let policy = Arc::clone(set.free_policy()?);
        let policy: Arc<dyn std::any::Any + Send + Sync> = policy;
        policy.downcast().ok()
    }

    /// Queues a change for the txg of the transaction. The snapshots have been [read](Self::read).
    pub(crate) fn change(&self, _tx: &Tx, change: ChainChange) {
        assert!(!self.is_unread(), "a change of snapshots that were not read");
        let mut pending = self.pending.lock();
        if let ChainChange::Take { info, .. } = &change {
            // From now on operations reserve space for the lists.
            self.newest.fetch_max(info.created.0, Ordering::Relaxed);
        }
        pending.push(change);
    }

    /// Whether the open txg takes a snapshot.
    pub(crate) fn is_being_taken(&self) -> bool {
        self.pending.lock().iter().any(|change| matches!(change, ChainChange::Take { .. }))
    }

    /// The txg of the newest snapshot, taken or being taken, or of the origin. No snapshot refers to blocks that were born later.
    pub fn newest(&self) -> Txg {
        Txg(self.newest.load(Ordering::Relaxed))
    }

    /// Whether the lists are at rest: no change is queued, no list is due for a scan, and no part is being destroyed.
    pub fn is_at_rest(&self) -> bool {
        let is_pending = !self.pending.lock().is_empty();
        let state = self.state.lock();
        !is_pending && !state.can_scan() && state.empty.is_empty() && state.destroyed.is_empty()
    }

    /// The space of the blocks on the lists, as of the last sync.
    pub fn usage(&self) -> Result<ChainUsage, DatasetError> {
        self.read()?;
        let mut state = self.state.lock();
        let mut usage = ChainUsage { is_counting: !state.due.is_empty(), ..ChainUsage::default() };
        let Some(mos) = self.mos.upgrade() else { return Ok(usage) };
        for index in 0..=state.links.len() {
            let Some(list) = state.load_list(&mos, index)? else {
                usage.head_list_bytes = 0;
                continue;
            };
            let unique = list.parts.first().map_or(0, |part| part.info.unique_bytes);
            let bytes = sum(list.parts.iter().map(|part| part.info.used_bytes));
            usage.kept_bytes = usage.kept_bytes.saturating_add(bytes);
            usage.head_list_bytes = bytes;
            if let Some(link) = index.checked_sub(1).and_then(|before| state.links.get(before)) {
                usage.unique.insert(link.created, unique);
            }
        }
        usage.newest_bytes = state.links.last().map(|link| link.referenced_bytes);
        Ok(usage)
    }
}

/// The sum of stored numbers, which may be damaged.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

impl State {
    /// The first part of the list of the snapshot with this index, or of the head.
    fn list_id(&self, index: usize) -> ObjectId {
        self.links.get(index).map_or(self.head_list, |link| link.dead_list)
    }

    fn index_of(&self, list: ObjectId) -> Option<usize> {
        // That of the head is looked for most.
        (0..=self.links.len()).rev().find(|index| self.list_id(*index) == list)
    }

    /// The txg of the snapshot before the list with this index. Blocks that were born later are freed.
    fn before(&self, index: usize) -> Txg {
        index
            .checked_sub(1)
            .and_then(|before| self.links.get(before))
            .map_or(self.origin, |link| link.created)
    }

    /// The newest txg of a snapshot or of the origin, or a later one while snapshots are unread.
    fn newest(&self) -> Txg {
        match &self.unread {
            Some(unread) => unread.until,
            None => self.before(self.links.len()),
        }
    }

    /// Whether lists are due for a scan, and the snapshots are known that decide about their entries.
    fn can_scan(&self) -> bool {
        self.unread.is_none() && !self.due.is_empty()
    }

    /// Of the blocks on the list, only the snapshot before the list refers to those that were born after this txg.
    fn unique_after(&self, index: usize) -> Txg {
        match index {
            0 => Txg(u64::MAX),
            index => self.before(index - 1),
        }
    }

    /// The list with this index. `None`: the data set has none yet.
    fn load_list(
        &mut self,
        mos: &Arc<ObjectSet>,
        index: usize,
    ) -> Result<Option<&mut DeadList>, ObjectError> {
        let id = self.list_id(index);
        if id == ObjectId(0) {
            return Ok(None);
        }
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.lists.entry(id) {
            let parts = load_readable_parts(mos, id)?;
            vacant.insert(DeadList { parts, scan: None, writes: BTreeMap::new() });
        }
        self.touched.insert(id);
        Ok(self.lists.get_mut(&id))
    }

    fn keep(&mut self, block: &BlockPtr, left: Txg) -> FreeDecision {
        let index = self.links.partition_point(|link| link.created < left);
        for link in self.links.get(index..).unwrap_or(&[]) {
            self.not_referenced.entry(link.snapshot).or_default().add_of_tree(block);
        }
        let birth = block.latest_birth();
        if birth > self.before(index) && self.unread.is_none() {
            return FreeDecision::Free;
        }
        let BlockPtr::Normal(normal) = block else { return FreeDecision::Free };
        self.is_undecided |= self.unread.is_some();
        let granules = (terrane_format::granule_bytes(u64::from(normal.psize)) / GRANULE) as u32;
        let added = self.added.entry(self.list_id(index)).or_default();
        added.extend(normal.copies().map(|addr| DeadEntry { addr, granules, birth }));
        FreeDecision::Keep
    }

    fn take(&mut self, info: &SnapshotInfo, new_list: ObjectId) {
        self.links.push(Link::of(info));
        self.head_list = new_list;
    }

    /// Links the lists of destroyed snapshots behind the next list that stays.
    fn destroy(&mut self, mos: &Arc<ObjectSet>, gone: &BTreeSet<Txg>) -> Result<(), ObjectError> {
        for index in 0..self.links.len() {
            if self.links.get(index).is_some_and(|link| gone.contains(&link.created)) {
                self.load_list(mos, index)?;
                self.load_list(mos, index + 1)?;
            }
        }
        let mut heirs: BTreeMap<ObjectId, ObjectId> = BTreeMap::new();
        // Lists of destroyed snapshots since the last one that stays, and which lists have grown, by their place among those that stay.
        let (mut lists, mut grown, mut stay) = (Vec::new(), Vec::new(), Vec::new());
        let links = std::mem::take(&mut self.links);
        let ends = links.iter().map(|link| (link.dead_list, gone.contains(&link.created)));
        for (id, is_gone) in ends.chain([(self.head_list, false)]) {
            if is_gone {
                lists.push(id);
                continue;
            }
            stay.push(id);
            if lists.is_empty() {
                continue;
            }
            grown.push(stay.len() - 1);
            while let Some(own) = lists.pop() {
                self.due.remove(&own);
                heirs.insert(own, id);
                let Some(own_list) = self.lists.remove(&own) else { continue };
                let Some(next_list) = self.lists.get_mut(&id) else { continue };
                if let (Some(last), Some(first)) = (next_list.parts.last_mut(), own_list.parts.first()) {
                    last.info.next = Some(first.id);
                    last.has_changed = true;
                }
                next_list.parts.extend(own_list.parts);
                next_list.writes.extend(own_list.writes);
            }
        }
        self.links = links.into_iter().filter(|link| !gone.contains(&link.created)).collect();
        for (of_list, _) in self.empty.iter_mut().chain(&mut self.destroyed) {
            *of_list = heirs.get(of_list).copied().unwrap_or(*of_list);
        }
        // The list behind one that has grown counts the blocks that only the next snapshot refers to. There are more of them now.
        for index in grown {
            self.recount(mos, index)?;
            self.recount(mos, index + 1)?;
        }
        Ok(())
    }

    /// Makes a list due for a scan from its beginning.
    fn recount(&mut self, mos: &Arc<ObjectSet>, index: usize) -> Result<(), ObjectError> {
        if index > self.links.len() {
            return Ok(());
        }
        let id = self.list_id(index);
        if let Some(list) = self.load_list(mos, index)? {
            list.scan = None;
            if let Some(first) = list.parts.first_mut() {
                first.info.is_scan_due = true;
                first.has_changed = true;
            }
            self.due.insert(id);
        }
        Ok(())
    }

    /// Gives up the snapshots and their lists, and keeps the list of the head.
    fn detach(&mut self, origin: Txg) {
        for link in std::mem::take(&mut self.links) {
            self.lists.remove(&link.dead_list);
            self.due.remove(&link.dead_list);
        }
        let head = self.head_list;
        self.empty.retain(|(list, _)| *list == head);
        self.origin = origin;
    }

    /// Unlinks the parts that this txg destroys.
    fn unlink_destroyed(&mut self) {
        let mut gone: BTreeMap<ObjectId, BTreeSet<ObjectId>> = BTreeMap::new();
        for (list, part) in std::mem::take(&mut self.destroyed) {
            gone.entry(list).or_default().insert(part);
        }
        for (id, gone) in gone {
            let Some(list) = self.lists.get_mut(&id) else { continue };
            self.touched.insert(id);
            let mut stay: Vec<Part> = Vec::with_capacity(list.parts.len());
            for part in std::mem::take(&mut list.parts) {
                if !gone.contains(&part.id) {
                    stay.push(part);
                } else if let Some(before) = stay.last_mut() {
                    before.info.next = part.info.next;
                    before.has_changed = true;
                }
            }
            list.parts = stay;
            list.scan = None;
            if !self.due.contains(&id) {
                list.end_scan();
            }
        }
    }

    /// Puts the entries that this txg added into their lists.
    fn store_added(&mut self, mos: &Arc<ObjectSet>) -> Result<(), ObjectError> {
        for (id, entries) in std::mem::take(&mut self.added) {
            let Some(index) = self.index_of(id).filter(|_| !entries.is_empty()) else { continue };
            let unique_after = self.unique_after(index);
            let unique = sum(entries.iter().filter(|entry| entry.birth > unique_after).map(DeadEntry::bytes));
            if let Some(list) = self.load_list(mos, index)? {
                list.append(mos, entries)?;
                list.add_unique(unique);
            }
        }
        if std::mem::take(&mut self.is_undecided) {
            let index = self.links.len();
            self.recount(mos, index)?;
        }
        Ok(())
    }

    /// Scans a bounded number of blocks of the lists that are due: frees entries that no snapshot refers to, and counts the others.
    fn scan(&mut self, mos: &Arc<ObjectSet>, txg_sync: &mut TxgSync<'_>) -> Result<(), ObjectError> {
        // No operation has reserved space for these blocks, so small pools scan fewer of them.
        let blocks_max = u64::from(mos.pool().max_block()) / u64::from(LIST_BLOCK_BYTES) / 4;
        let (mut blocks, mut freed) = (blocks_max.clamp(1, SCAN_BLOCKS), 0);
        while blocks > 0
            && freed < SCAN_FREES
            && self.can_scan()
            && mos.shared().takes_more_frees(txg_sync)
            && let Some(id) = self.due.first().copied()
        {
            let Some(index) = self.index_of(id) else {
                self.due.remove(&id);
                continue;
            };
            let (before, unique_after) = (self.before(index), self.unique_after(index));
            let Some(list) = self.load_list(mos, index)? else { continue };
            match list.scan_block(mos, txg_sync, before, unique_after)? {
                Some(count) => (blocks, freed) = (blocks - 1, freed + count),
                None => {
                    let empty: Vec<_> = list
                        .parts
                        .iter()
                        .skip(1)
                        .filter(|part| part.info.entries == 0)
                        .map(|part| (id, part.id))
                        .collect();
                    // An earlier scan may have found some of them.
                    self.empty.retain(|(list, _)| *list != id);
                    self.empty.extend(empty);
                    self.due.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// The changes of the MOS that store the lists as they are now.
    fn take_changes(&mut self, changes: &mut Vec<MosChange>) {
        for id in std::mem::take(&mut self.touched) {
            let Some(list) = self.lists.get_mut(&id) else { continue };
            let mut by_part: BTreeMap<ObjectId, BTreeMap<u64, Option<Vec<u8>>>> = BTreeMap::new();
            for ((part, block), content) in std::mem::take(&mut list.writes) {
                by_part.entry(part).or_default().insert(block, content);
            }
            changes.extend(
                by_part.into_iter().map(|(id, blocks)| MosChange { id, update: MosUpdate::Blocks(blocks) }),
            );
            for part in list.parts.iter_mut().filter(|part| part.has_changed) {
                part.has_changed = false;
                changes.push(MosChange {
                    id: part.id,
                    update: MosUpdate::Bonus { at: 0, bytes: part.info.encode() },
                });
            }
        }
    }
}

impl DeadList {
    /// The scan is over. It stays due on the device until its empty parts are destroyed: after a crash only another scan finds them.
    fn end_scan(&mut self) {
        let has_empty = self.parts.iter().skip(1).any(|part| part.info.entries == 0);
        if let Some(first) = self.parts.first_mut().filter(|first| first.info.is_scan_due != has_empty) {
            first.info.is_scan_due = has_empty;
            first.has_changed = true;
        }
    }

    fn add_unique(&mut self, bytes: u64) {
        match (&mut self.scan, self.parts.first_mut()) {
            (Some(scan), _) => scan.unique_bytes = scan.unique_bytes.saturating_add(bytes),
            (None, Some(first)) => {
                first.info.unique_bytes = first.info.unique_bytes.saturating_add(bytes);
                first.has_changed = true;
            }
            (None, None) => {}
        }
    }

    /// Entries of a block, with what this txg has changed.
    fn entries(
        &self,
        mos: &Arc<ObjectSet>,
        part: ObjectId,
        block: u64,
    ) -> Result<Vec<DeadEntry>, ObjectError> {
        match self.writes.get(&(part, block)) {
            Some(Some(raw)) => Ok(parse_block(raw, &"a dead list in memory").map_err(PoolError::from)?),
            Some(None) => Ok(Vec::new()),
            None => read_entries(&*mos.hold(part)?, block),
        }
    }

    /// The first block of a part at or after `from` that has entries, with what this txg has changed.
    fn next_block(
        &self,
        mos: &Arc<ObjectSet>,
        part: ObjectId,
        from: u64,
    ) -> Result<Option<u64>, ObjectError> {
        let written = self.writes.range((part, from)..=(part, u64::MAX));
        let written = written.filter(|(_, content)| content.is_some()).map(|((_, block), _)| *block).next();
        let stored = next_stored_block(&*mos.hold(part)?, from)?;
        Ok(stored.into_iter().chain(written).min())
    }

    /// Adds entries to the first part.
    fn append(&mut self, mos: &Arc<ObjectSet>, mut entries: Vec<DeadEntry>) -> Result<(), ObjectError> {
        let first_free = self.scan.as_ref().map_or(0, |scan| scan.first_part_blocks);
        let Some((id, blocks)) = self.parts.first().map(|part| (part.id, part.blocks)) else { return Ok(()) };
        let (count, bytes) = (entries.len() as u64, sum(entries.iter().map(DeadEntry::bytes)));
        let mut at = blocks;
        // Fills the last block, unless the running scan counts that block.
        if let Some(last) = blocks.checked_sub(1).filter(|last| *last >= first_free) {
            match self.entries(mos, id, last) {
                Ok(mut others) => {
                    entries.append(&mut others);
                    at = last;
                }
                Err(error) => report(mos, error)?,
            }
        }
        entries.sort_unstable();
        for content in encode_blocks(&entries) {
            self.writes.insert((id, at), Some(content));
            at += 1;
        }
        if let Some(part) = self.parts.first_mut() {
            part.blocks = part.blocks.max(at);
            part.info.entries = part.info.entries.saturating_add(count);
            part.info.used_bytes = part.info.used_bytes.saturating_add(bytes);
            part.has_changed = true;
        }
        Ok(())
    }

    /// Scans the next block. Returns the number of freed copies; `None`: the scan has ended.
    fn scan_block(
        &mut self,
        mos: &Arc<ObjectSet>,
        txg_sync: &mut TxgSync<'_>,
        before: Txg,
        unique_after: Txg,
    ) -> Result<Option<u64>, ObjectError> {
        let first_part_blocks = self.parts.first().map_or(0, |part| part.blocks);
        let (part, block, first_part_blocks) = {
            let scan =
                self.scan.get_or_insert(Scan { part: 0, block: 0, first_part_blocks, unique_bytes: 0 });
            (scan.part, scan.block, scan.first_part_blocks)
        };
        let first_entries = self.parts.first().map_or(0, |part| part.info.entries);
        let Some(found) = self.parts.get(part) else {
            let unique_bytes = self.scan.take().map_or(0, |scan| scan.unique_bytes);
            if let Some(first) = self.parts.first_mut() {
                first.info.unique_bytes = unique_bytes;
                first.has_changed = true;
            }
            self.end_scan();
            return Ok(None);
        };
        let (id, blocks) = (found.id, if part == 0 { first_part_blocks } else { found.blocks });
        // Entries of a small part move into the first part. An entry moves few times, because the first part is at least as large then.
        let is_poured = part > 0 && found.info.entries <= first_entries.max(4096);
        let next = match self.next_block(mos, id, block) {
            Ok(next) => next,
            Err(error) => {
                report(mos, error)?;
                None
            }
        };
        let Some(block) = next.filter(|block| *block < blocks) else {
            if let Some(scan) = &mut self.scan {
                (scan.part, scan.block) = (part + 1, 0);
            }
            return Ok(Some(0));
        };
        let entries = match self.entries(mos, id, block) {
            Ok(entries) => entries,
            Err(error) => {
                report(mos, error)?;
                Vec::new()
            }
        };
        let (freed, mut kept): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.birth > before);
        freed.iter().for_each(|entry| txg_sync.release_copy(entry.addr, entry.granules));
        let unique = sum(kept.iter().filter(|entry| entry.birth > unique_after).map(DeadEntry::bytes));
        let (content, stays) = if is_poured { (Vec::new(), 0) } else { encode_block(&kept) };
        let moved = kept.split_off(stays);
        let (leaving, bytes) = freed
            .iter()
            .chain(&moved)
            .fold((0u64, 0u64), |(count, bytes), entry| (count + 1, bytes.saturating_add(entry.bytes())));
        if leaving > 0 {
            self.writes.insert((id, block), Some(content).filter(|_| stays > 0));
            if let Some(found) = self.parts.get_mut(part) {
                found.info.entries = found.info.entries.saturating_sub(leaving);
                found.info.used_bytes = found.info.used_bytes.saturating_sub(bytes);
                found.has_changed = true;
            }
        }
        if let Some(scan) = &mut self.scan {
            scan.block = block + 1;
            scan.unique_bytes = scan.unique_bytes.saturating_add(unique);
        }
        if !moved.is_empty() {
            self.append(mos, moved)?;
        }
        Ok(Some(freed.len() as u64))
    }
}

impl FreePolicy for Chain {
    fn decide(&self, block: &BlockPtr, txg: Txg) -> FreeDecision {
        if block.latest_birth() > self.newest() {
            return FreeDecision::Free;
        }
        self.state.lock().keep(block, txg)
    }

    fn is_held(&self, block: &BlockPtr) -> bool {
        block.latest_birth() <= self.newest()
    }

    fn may_keep(&self) -> bool {
        self.newest() > Txg(0)
    }

    fn counted_feature(&self, kind: ObjectKind) -> Option<Feature> {
        zap_form::of_kind(kind)
    }

    fn is_use(&self, block: &[u8]) -> Option<bool> {
        terrane_zap::is_tiny(block).ok()
    }

    fn quiesced(&self, last_tx: &Tx) {
        *self.syncing.lock() = std::mem::take(&mut *self.pending.lock());
        let mut state = self.state.lock();
        let Some(mos) = self.mos.upgrade().filter(|_| !state.empty.is_empty()) else { return };
        let share =
            mos.pool().label().device_bytes().0 / POOL_SHARE / (u64::from(DESTROY_BLOCKS) * META_BLOCK_BYTES);
        let count = state.empty.len().min(share.clamp(DESTROYED_PARTS_MIN, DESTROYED_PARTS_MAX) as usize);
        let empty: Vec<_> = state.empty.drain(..count).collect();
        for (list, part) in empty {
            last_tx.reserve_more(DESTROY_BLOCKS);
            let found = mos.hold(part).and_then(|object| match object.kind() {
                ObjectKind::DeadList => Ok(object),
                _ => Err(ObjectError::NotFound(part)),
            });
            match found.and_then(|object| mos.destroy(last_tx, &object)) {
                Ok(()) => state.destroyed.push((list, part)),
                // It stays, though it is empty.
                Err(error) => {
                    if let Err(error) = report(&mos, error) {
                        log::warn!("part {part} of dead list {list} not destroyed: {error}")
                    }
                }
            }
        }
        self.is_busy.store(true, Ordering::Relaxed);
    }

    fn after_sync(
        &self,
        txg_sync: &mut TxgSync<'_>,
        root: &BlockPtr,
        account: Option<Account>,
    ) -> Result<Vec<MosChange>, ObjectError> {
        let syncing = std::mem::take(&mut *self.syncing.lock());
        let mut changes = Vec::new();
        let mut state = self.state.lock();
        if syncing.is_empty()
            && state.added.is_empty()
            && state.not_referenced.is_empty()
            && !self.is_busy.load(Ordering::Relaxed)
        {
            return Ok(changes);
        }
        let Some(mos) = self.mos.upgrade() else { return Ok(changes) };
        state.unlink_destroyed();
        state.store_added(&mos)?;
        let destroyed: BTreeSet<Txg> = syncing
            .iter()
            .filter_map(
                |change| if let ChainChange::Destroy(created) = change { Some(*created) } else { None },
            )
            .collect();
        for change in &syncing {
            let ChainChange::Take { info, new_list } = change else { continue };
            let referenced = account.unwrap_or_default();
            let info = SnapshotInfo { root: root.clone(), referenced, ..info.clone() };
            state.take(&info, *new_list);
            if !destroyed.contains(&info.created) {
                let update = MosUpdate::Bonus { at: 0, bytes: info.encode() };
                changes.push(MosChange { id: info.id, update });
            }
        }
        // All at once: one after the other would take time in proportion to the square of their number.
        if !destroyed.is_empty() {
            state.destroy(&mos, &destroyed)?;
        }
        for change in &syncing {
            match change {
                ChainChange::Take { .. } | ChainChange::Destroy(_) => {}
                ChainChange::Replace { origin, links, recount } => {
                    state.take_changes(&mut changes);
                    state.origin = *origin;
                    state.links.clone_from(links);
                    // Lists that stay may have changed in this txg. Lists that come from another data set are at rest.
                    let kept: BTreeSet<ObjectId> =
                        (0..=state.links.len()).map(|index| state.list_id(index)).collect();
                    state.lists.retain(|list, _| kept.contains(list));
                    state.due.retain(|list| kept.contains(list));
                    state.empty.retain(|(list, _)| kept.contains(list));
                    if let Some(index) = state.index_of(*recount) {
                        state.recount(&mos, index)?;
                    }
                }
                ChainChange::Detach { origin } => {
                    state.take_changes(&mut changes);
                    state.detach(*origin);
                }
            }
        }
        // Blocks in `changes` can be read from the next txg on.
        if changes.iter().all(|change| !matches!(change.update, MosUpdate::Blocks(_))) {
            state.scan(&mos, txg_sync)?;
        }
        state.take_changes(&mut changes);
        for (id, account) in std::mem::take(&mut state.not_referenced) {
            // The snapshot may have been destroyed meanwhile.
            if let Some(link) = state.links.iter_mut().find(|link| link.snapshot == id) {
                let object = match mos.hold(id) {
                    Err(ObjectError::NotFound(_)) => continue,
                    object => object?,
                };
                let before = SnapshotInfo::parse(&object.bonus(), id, mos.pool().open_txg())
                    .map_err(PoolError::from)?
                    .referenced;
                let referenced = before.minus(&account);
                link.referenced_bytes = referenced.used_bytes;
                let bytes = encode_referenced(&referenced);
                changes.push(MosChange { id, update: MosUpdate::Bonus { at: REFERENCED_AT, bytes } });
            }
        }
        let has_more = state.can_scan() || !state.empty.is_empty();
        self.is_busy.store(has_more, Ordering::Relaxed);
        if has_more {
            // Their space is free only then. An `fsync` does not commit, so nothing else would bring the next txg before the timer does.
            mos.pool().want_txg_soon();
        }
        let newest = state.newest();
        let pending = self.pending.lock();
        let taken = pending.iter().filter_map(|change| {
            if let ChainChange::Take { info, .. } = change { Some(info.created) } else { None }
        });
        self.newest.store(taken.max().unwrap_or(newest).max(newest).0, Ordering::Relaxed);
        Ok(changes)
    }
}
