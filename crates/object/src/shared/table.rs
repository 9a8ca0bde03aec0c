//! The table of shared blocks: references beyond the first, by the address of the first copy.
//!
//! The address of a block never changes, so neither GC nor a repair touches the table. A block without an entry
//! has one reference. Memory holds only what each leaf spans. Leaves are read through the cache.
//!
//! Only a sync changes references. It settles them when all trees are rewritten: new references and frees of a
//! block together, so that their order in the txg does not matter. The table is an object of the meta object
//! set, which is stored last. So trees and table are those of the same txg, whenever a crash comes.
//!
//! Invariant: after each sync, an entry's references plus one is the number of pointers to the block.

use super::edit::{LeafEdit, Leaves, TableBlocks, load_leaves, read_leaf};
use super::stored::{Entry, GROUP_LEAVES, SharedHead, TABLE_BLOCK_BYTES, find_in_leaf, split};
use crate::error::ObjectError;
use crate::kind::ObjectKind;
use crate::object::Object;
use crate::objset::{ObjectSet, ObjectSpec};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use terrane_format::{Addr, BlockPtr, Feature};
use terrane_pool::references::{Reference, SharedRanges};
use terrane_pool::{Pool, Tx, TxgSync};
use terrane_store::PoolError;
use terrane_txg::cost::{Cost, META_BLOCK_BYTES};
use terrane_wire::{Corrupt, ObjectId, Txg};

/// Leaves that frees from free queues and dead lists change in one sync, roughly. Each free may change another one.
const FREED_LEAVES_MAX: u64 = 8 << 10;
/// Leaves that the space kept for every commit covers.
const COMMIT_LEAVES: u64 = 4;
/// Leaves for which space is kept at most.
const SYNC_LEAVES_MAX: u64 = 2 * FREED_LEAVES_MAX;

/// Metadata that a replaced table takes beside its leaves: head, index blocks, indirect blocks, and two dnodes.
const REPLACE_BLOCKS: u32 = 64;

/// Sums over all shared blocks, as of the last sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTotals {
    /// Blocks with more than one reference.
    pub blocks: u64,
    /// Their references beyond the first.
    pub references: u64,
    /// Space that they take, once each.
    pub block_bytes: u64,
    /// Space that their further references would take without sharing.
    pub saved_bytes: u64,
}

impl SharedTotals {
    /// A block of `bytes` bytes has `new` references beyond the first, instead of `old`. Stored sums may be damaged.
    fn change(&mut self, bytes: u64, old: u64, new: u64) {
        let adjust = |sum: &mut u64, old: u64, new: u64| *sum = sum.saturating_add(new).saturating_sub(old);
        let (was, is) = (u64::from(old > 0), u64::from(new > 0));
        adjust(&mut self.blocks, was, is);
        adjust(&mut self.references, old, new);
        adjust(&mut self.block_bytes, was * bytes, is * bytes);
        adjust(&mut self.saved_bytes, bytes.saturating_mul(old), bytes.saturating_mul(new));
    }
}

/// A block with more than one reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBlock {
    /// Address of its first copy.
    pub addr: Addr,
    /// References beyond the first, at least 1.
    pub extra: u64,
    /// Space of the block.
    pub bytes: u64,
}

#[derive(Default)]
struct State {
    /// The table's object, and the txg that made it. `None`: nothing was ever shared.
    object: Option<(Arc<Object>, Txg)>,
    /// The object that the header names in txgs before that one. 0: none.
    replaced: ObjectId,
    /// Content of a table that replaces another, in ascending order. The sync of the txg that made the object takes it.
    replacement: Vec<SharedBlock>,
    leaves: Arc<Leaves>,
    totals: SharedTotals,
}

/// The table of a pool.
#[derive(Default)]
pub struct SharedTable {
    mos: OnceLock<Weak<ObjectSet>>,
    state: Mutex<State>,
    /// Leaf blocks that were read or written since the pool was opened, and not found damaged since.
    verified: Mutex<BTreeSet<u64>>,
    /// The newest txg with clones.
    clones_in: AtomicU64,
    /// Why the stored table cannot be used. The pool is read-only then.
    unusable: OnceLock<(ObjectId, String)>,
    /// The stored table is not loaded, because it is to be replaced.
    is_ignored: bool,
}

/// What a sync adds to and frees of one block.
struct Change<'a> {
    addr: u64,
    added: u64,
    freed: &'a [Reference],
    /// Space of the block.
    bytes: u64,
}

/// The changes of one leaf.
struct Settled {
    entries: Vec<Entry>,
    has_changed: bool,
    totals: SharedTotals,
    dead: Vec<Reference>,
}

impl SharedTable {
    /// A table of which nothing is loaded, for [`replace`](Self::replace).
    pub(crate) fn ignored() -> SharedTable {
        SharedTable { is_ignored: true, ..SharedTable::default() }
    }

    /// Loads the table of an opened pool. A table that cannot be read is refused, because nothing could be
    /// freed; if the pool is read-only, it is logged.
    pub(crate) fn attach(&self, mos: &Arc<ObjectSet>, id: ObjectId) -> Result<(), ObjectError> {
        // Set once, when the pool is opened.
        let _ = self.mos.set(Arc::downgrade(mos));
        if id == ObjectId(0) {
            return Ok(());
        }
        if self.is_ignored {
            self.state.lock().replaced = id;
            return Ok(());
        }
        match Self::load(mos, id) {
            Ok(state) => {
                mos.pool().set_unreserved_bytes(sync_bytes(state.leaves.count()));
                *self.state.lock() = state;
            }
            Err(error) if mos.pool().is_read_only() => {
                log::error!("table of shared blocks unreadable: {error}");
                let _ = self.unusable.set((id, error.to_string()));
            }
            Err(ObjectError::Pool(PoolError::Corrupt(corrupt))) => {
                return Err(PoolError::refused(
                    "table of shared blocks",
                    "readable",
                    corrupt,
                    "`terrane check --rebuild-index` counts the references anew; a read-only import shows all files",
                )
                .into());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn load(mos: &ObjectSet, id: ObjectId) -> Result<State, ObjectError> {
        let object = mos.hold(id)?;
        let found = (object.kind(), object.block_size());
        if found != (ObjectKind::SharedTable, TABLE_BLOCK_BYTES) {
            let expected = format_args!("SharedTable and {TABLE_BLOCK_BYTES}");
            let found = format_args!("{:?} and {}", found.0, found.1);
            let at = format!("object {id} of the meta object set");
            return Err(PoolError::from(Corrupt::new(at, "kind and block size", expected, found)).into());
        }
        let created = object.birth();
        // Made by a txg without a sync of references: that of its head.
        if object.block_count() == 0 {
            return Ok(State { object: Some((object, created)), ..State::default() });
        }
        let head =
            SharedHead::parse(&object.read_block(0)?, "table of shared blocks").map_err(PoolError::from)?;
        let leaves = load_leaves(&object)?;
        let entries: u64 = leaves.iter().map(|(_, leaf)| u64::from(leaf.entries)).sum();
        if entries != head.blocks {
            let at = "table of shared blocks";
            return Err(PoolError::from(Corrupt::new(at, "shared blocks", entries, head.blocks)).into());
        }
        let SharedHead { blocks, references, block_bytes, saved_bytes, .. } = head;
        let totals = SharedTotals { blocks, references, block_bytes, saved_bytes };
        let object = Some((object, created));
        Ok(State { object, leaves: Arc::new(leaves), totals, ..State::default() })
    }

    /// Sums as of the last sync.
    pub fn totals(&self) -> SharedTotals {
        self.state.lock().totals
    }

    /// The table's object in the meta object set. `None`: there is no table.
    pub fn object(&self) -> Option<ObjectId> {
        let unusable = self.unusable.get().map(|(id, _)| *id);
        unusable.or_else(|| self.state.lock().object.as_ref().map(|(object, _)| object.id()))
    }

    /// Why the stored table cannot be used. `None`: it can, or there is none.
    pub fn unusable(&self) -> Option<&str> {
        self.unusable.get().map(|(_, error)| error.as_str())
    }

    /// The object to store in the header of the meta object set in this txg; 0: none.
    pub(crate) fn stored_in(&self, txg: Txg) -> ObjectId {
        let state = self.state.lock();
        let object = state.object.as_ref().filter(|(_, created)| *created <= txg);
        object.map_or(state.replaced, |(object, _)| object.id())
    }

    /// Leaves that a change of many entries may rewrite, at most.
    pub fn leaf_count(&self) -> u64 {
        self.state.lock().leaves.count()
    }

    /// Whether blocks of this pool may be shared.
    pub fn is_in_force(pool: &Pool) -> bool {
        pool.has(Feature::Shared) && pool.has(Feature::Births)
    }

    /// Announces clones in the txg of `tx`, which has reserved metadata for a new table.
    pub(crate) fn begin_clone(&self, tx: &Tx) -> Result<(), ObjectError> {
        let mos = self.mos()?;
        self.clones_in.fetch_max(tx.txg().0, Ordering::AcqRel);
        let mut state = self.state.lock();
        if state.object.is_none() {
            state.object = Some(create_object(&mos, tx)?);
        }
        Ok(())
    }

    fn mos(&self) -> Result<Arc<ObjectSet>, ObjectError> {
        let mos = self.mos.get().and_then(Weak::upgrade);
        Ok(mos.ok_or_else(|| PoolError::Failed { reason: "the object sets were closed".into() })?)
    }

    /// Durably replaces the stored table, of which nothing was loaded. `blocks` ascend by address.
    ///
    /// The old table's readable blocks are freed, and those that only unreadable ones lead to are lost, unless the pool takes
    /// them for free already.
    pub(crate) fn replace(&self, blocks: Vec<SharedBlock>) -> Result<(), ObjectError> {
        let mos = self.mos()?;
        if !Self::is_in_force(mos.pool()) {
            let (found, remedy) =
                ("pointers of clones", "a pool without the feature has none; copy the files away");
            return Err(PoolError::refused("table of shared blocks", "feature shared", found, remedy).into());
        }
        let entries: Vec<Entry> = blocks.iter().map(|block| (block.addr.raw(), block.extra)).collect();
        let leaves = u32::try_from(split(&entries).len()).unwrap_or(u32::MAX);
        let meta_blocks = leaves.saturating_add(leaves / GROUP_LEAVES as u32).saturating_add(REPLACE_BLOCKS);
        // A damaged header may name another object, or none.
        let mut old = Vec::new();
        let unreadable = mos.for_each_dnode(&mut |id, dnode| {
            if dnode.kind == ObjectKind::SharedTable {
                old.push(id);
            }
        });
        unreadable.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))?;
        let old: Vec<Arc<Object>> = old.into_iter().map(|id| mos.hold(id)).collect::<Result<_, _>>()?;
        // A full pool can free nothing without a table.
        let tx = mos.begin(Cost { meta_blocks, frees: true, ..Cost::NOTHING })?;
        {
            let mut state = self.state.lock();
            state.object = Some(create_object(&mos, &tx)?);
            state.replacement = blocks;
        }
        old.iter().try_for_each(|old| mos.destroy(&tx, old))?;
        drop(tx);
        mos.commit()
    }

    /// Whether the txg may have clones.
    pub(crate) fn has_clones(&self, txg: Txg) -> bool {
        self.clones_in.load(Ordering::Acquire) >= txg.0
    }

    /// Whether a sync may free more of what waits in free queues and on dead lists. Few leaves are no reason to stop,
    /// however many frees change them.
    pub fn takes_more_frees(&self, txg_sync: &TxgSync<'_>) -> bool {
        txg_sync.deferred_frees() < FREED_LEAVES_MAX || self.leaf_count() <= FREED_LEAVES_MAX
    }

    /// What the leaves span.
    pub(crate) fn ranges(&self) -> Arc<SharedRanges> {
        self.state.lock().leaves.ranges().clone()
    }

    /// Whether the block has other references, as of the last sync. A table that cannot be read says yes. For jobs
    /// that would end the sharing.
    pub fn is_shared(&self, ptr: &BlockPtr) -> bool {
        let BlockPtr::Normal(normal) = ptr else { return false };
        self.extra_references(normal.addrs[0]) > 0
    }

    /// References beyond the first, as of the last sync; 1 if the table cannot be read.
    fn extra_references(&self, addr: Addr) -> u64 {
        if self.unusable().is_some() {
            return 1;
        }
        let found = {
            let state = self.state.lock();
            let leaf = state.leaves.spanning(addr.raw());
            leaf.and_then(|leaf| Some((state.object.as_ref()?.0.clone(), leaf.block)))
        };
        let Some((object, block)) = found else { return 0 };
        // A sync may change the leaf meanwhile. So it is not compared with what its index says.
        let raw = object.read_block(block).ok();
        raw.and_then(|raw| find_in_leaf(&raw, addr.raw())).unwrap_or(1)
    }

    /// Where references can be counted, as of now.
    pub(crate) fn countable(&self) -> CountableRanges<'_> {
        let state = self.state.lock();
        let object = state.object.as_ref().map(|(object, _)| object.clone());
        let table = object.map(|object| (object, state.leaves.clone()));
        CountableRanges { table, verified: &self.verified, last: None }
    }

    /// Calls `each` with all entries, in ascending order: address of the first copy, and references beyond the
    /// first. For `check`. Returns what could not be read.
    pub fn for_each(&self, each: &mut dyn FnMut(Addr, u64)) -> Vec<ObjectError> {
        let (object, leaves) = {
            let state = self.state.lock();
            (state.object.as_ref().map(|(object, _)| object.clone()), state.leaves.clone())
        };
        let Some(object) = object else { return Vec::new() };
        let mut failed = Vec::new();
        for (first, leaf) in leaves.iter() {
            match read_leaf(&object, first, leaf) {
                Ok(entries) => {
                    entries.into_iter().for_each(|(addr, extra)| each(Addr::from_raw(addr), extra))
                }
                Err(error) => failed.push(error),
            }
        }
        failed
    }

    /// What a table that replaces another holds, in the txg that replaces it. Nothing else changes references then.
    fn take_replacement(&self, txg: Txg) -> Vec<SharedBlock> {
        let mut state = self.state.lock();
        let is_due = state.object.as_ref().is_some_and(|(_, created)| *created <= txg);
        if is_due { std::mem::take(&mut state.replacement) } else { Vec::new() }
    }

    /// Decides about all deferred frees of a sync. Blocks without a reference are freed. Returns the table's
    /// object and its new blocks. `None`: the table stays.
    ///
    /// # Errors
    /// A part of the table is damaged to which the txg adds references: the txg cannot be stored. If it only
    /// frees there, the space is lost instead, and the damage reported.
    pub(crate) fn settle(
        &self,
        txg_sync: &mut TxgSync<'_>,
    ) -> Result<Option<(ObjectId, TableBlocks)>, ObjectError> {
        let (mut added, mut freed) = txg_sync.take_references();
        let replacement = self.take_replacement(txg_sync.txg());
        if added.is_empty() && freed.is_empty() && replacement.is_empty() {
            return Ok(None);
        }
        added.sort_unstable_by_key(addr_of);
        freed.sort_unstable_by_key(addr_of);
        let mut changes = changes_of(&added, &freed);
        changes.extend(replacement.iter().map(|block| Change {
            addr: block.addr.raw(),
            added: block.extra,
            freed: &[],
            bytes: block.bytes,
        }));
        // Only syncs change leaves and totals. The lock is not held while leaves are read: clones need it.
        let (object, leaves, mut totals) = {
            let state = self.state.lock();
            (state.object.clone(), state.leaves.clone(), state.totals)
        };
        let Some((object, _)) = object else {
            // A clone makes the table. So these pointers only say that they are clones.
            assert!(added.is_empty(), "a clone makes the table before its txg syncs");
            freed.iter().for_each(|reference| txg_sync.free_last_reference(reference));
            return Ok(None);
        };
        let mut edit = LeafEdit::new(&object, Arc::unwrap_or_clone(leaves));
        let mut rest = changes.as_slice();
        while let Some(change) = rest.first() {
            let end = edit.home_end(change.addr);
            let (of_leaf, after) = rest.split_at(rest.partition_point(|change| change.addr < end).max(1));
            rest = after;
            let opened = match edit.open(change.addr) {
                Ok(opened) => opened,
                Err(error) => {
                    // Others may be damaged as well.
                    self.verified.lock().clear();
                    handle_unreadable(txg_sync.pool(), error, of_leaf)?;
                    continue;
                }
            };
            let settled = settle_leaf(&opened.entries, of_leaf, totals);
            settled.dead.iter().for_each(|dead| txg_sync.free_last_reference(dead));
            totals = settled.totals;
            if settled.has_changed {
                edit.store(opened, settled.entries);
            }
        }
        let (leaves, mut blocks) = edit.finish();
        if blocks.is_empty() {
            return Ok(None);
        }
        let SharedTotals { blocks: count, references, block_bytes, saved_bytes } = totals;
        let head = SharedHead::new(count, references, block_bytes, saved_bytes);
        blocks.insert(0, Some(head.encode().to_vec()));
        txg_sync.pool().set_unreserved_bytes(sync_bytes(leaves.count()));
        let written = blocks.iter().filter(|(_, content)| content.is_some());
        self.verified.lock().extend(written.map(|(block, _)| *block));
        let mut state = self.state.lock();
        (state.leaves, state.totals) = (Arc::new(leaves), totals);
        Ok(Some((object.id(), blocks)))
    }
}

/// Makes an empty table, and the txg that has it.
fn create_object(mos: &ObjectSet, tx: &Tx) -> Result<(Arc<Object>, Txg), ObjectError> {
    let (kind, block_size, bonus) = (ObjectKind::SharedTable, TABLE_BLOCK_BYTES, Vec::new());
    let object = mos.create(tx, ObjectSpec { kind, block_size, dnode_slots: 1, bonus, spill: None })?;
    // The header names the table also if all clones of the txg are overwritten before it syncs.
    mos.pool().note_use(Feature::Shared);
    Ok((object, tx.txg()))
}

/// Where references can be counted. A block is shared only if the leaf that counts it is readable: else the txg could
/// not be stored.
pub(crate) struct CountableRanges<'a> {
    /// The table's object and its leaves. `None`: there is no table yet.
    table: Option<(Arc<Object>, Arc<Leaves>)>,
    verified: &'a Mutex<BTreeSet<u64>>,
    /// The addresses that belong to the last leaf, and whether it is readable.
    last: Option<(Range<u64>, bool)>,
}

impl CountableRanges<'_> {
    /// Whether references to the block with this address can be counted.
    pub fn contains(&mut self, addr: Addr) -> bool {
        let Some((object, leaves)) = &self.table else { return true };
        let addr = addr.raw();
        if let Some((_, is_readable)) = self.last.as_ref().filter(|(range, _)| range.contains(&addr)) {
            return *is_readable;
        }
        let (Some((first, leaf)), end) = leaves.home_of(addr) else { return true };
        let mut is_readable = self.verified.lock().contains(&leaf.block);
        if !is_readable {
            // As a sync may change the leaf meanwhile, it is not compared with what its index says.
            let raw = object.read_block(leaf.block);
            is_readable = raw.is_ok_and(|raw| find_in_leaf(&raw, addr).is_some());
            if is_readable {
                self.verified.lock().insert(leaf.block);
            }
        }
        self.last = Some((first.min(addr)..end, is_readable));
        is_readable
    }
}

/// Bytes that frees may write to a table of so many leaves in one sync. A free reserves nothing, and each may change
/// another leaf. Few leaves need nothing: the space that is kept for every commit covers them.
fn sync_bytes(leaves: u64) -> u64 {
    leaves.saturating_sub(COMMIT_LEAVES).min(SYNC_LEAVES_MAX) * META_BLOCK_BYTES
}

fn addr_of(reference: &Reference) -> u64 {
    reference.addrs[0].raw()
}

/// The changes by block, from references sorted by address.
fn changes_of<'a>(added: &[Reference], freed: &'a [Reference]) -> Vec<Change<'a>> {
    let (mut added, mut freed) = (added, freed);
    let mut changes = Vec::new();
    loop {
        let next = added.first().into_iter().chain(freed.first()).min_by_key(|reference| addr_of(reference));
        let Some(next) = next else { return changes };
        let (addr, bytes) = (addr_of(next), next.bytes());
        let (of_added, rest_added) =
            added.split_at(added.partition_point(|reference| addr_of(reference) <= addr));
        let (of_freed, rest_freed) =
            freed.split_at(freed.partition_point(|reference| addr_of(reference) <= addr));
        changes.push(Change { addr, added: of_added.len() as u64, freed: of_freed, bytes });
        (added, freed) = (rest_added, rest_freed);
    }
}

/// Applies changes to the entries of a leaf.
fn settle_leaf(entries: &[Entry], changes: &[Change<'_>], totals: SharedTotals) -> Settled {
    let mut settled =
        Settled { entries: Vec::with_capacity(entries.len()), has_changed: false, totals, dead: Vec::new() };
    let mut rest = entries;
    for change in changes {
        let (before, from) = rest.split_at(rest.partition_point(|(addr, _)| *addr < change.addr));
        settled.entries.extend_from_slice(before);
        let (old, after) = match from.split_first() {
            Some(((addr, extra), after)) if *addr == change.addr => (*extra, after),
            _ => (0, from),
        };
        rest = after;
        let references = old.saturating_add(1).saturating_add(change.added);
        let freed = change.freed.len() as u64;
        let new = references.saturating_sub(freed).saturating_sub(1);
        // More frees than references are freed twice: the commit finds and reports them.
        let dead = freed.saturating_sub(references - 1) as usize;
        settled.dead.extend(change.freed.iter().take(dead));
        if new > 0 {
            settled.entries.push((change.addr, new));
        }
        settled.has_changed |= new != old;
        settled.totals.change(change.bytes, old, new);
    }
    settled.entries.extend_from_slice(rest);
    settled
}

/// Handles a part of the table that cannot be read, where these changes belong.
fn handle_unreadable(pool: &Pool, error: ObjectError, changes: &[Change<'_>]) -> Result<(), ObjectError> {
    let added: u64 = changes.iter().map(|change| change.added).sum();
    match error {
        ObjectError::Pool(PoolError::Corrupt(corrupt)) if added == 0 => {
            let freed: usize = changes.iter().map(|change| change.freed.len()).sum();
            log::error!(
                "space lost: {freed} blocks freed that may be shared, table of shared blocks damaged"
            );
            pool.report_damage(corrupt);
            Ok(())
        }
        ObjectError::Pool(PoolError::Corrupt(corrupt)) => {
            let reason = format!("references to shared blocks cannot be stored: {corrupt}");
            Err(PoolError::Failed { reason: reason.into() }.into())
        }
        other => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use terrane_codec::ChecksumKind;
    use terrane_format::block_ptr::Normal;
    use terrane_wire::{Prng, ZoneSeq};

    fn block(number: u64) -> Reference {
        let normal = Normal {
            addrs: [Addr::new(ZoneSeq(5), number * 64), Addr::NONE, Addr::NONE],
            checksum: [0; 32],
            checksum_kind: ChecksumKind::Blake3,
            compression: 2,
            kind: ObjectKind::File as u8,
            level: 0,
            lsize: 64,
            psize: 64,
            logical_birth: Txg(3),
            block_birth: Txg(3),
            fill: 1,
            is_clone: false,
        };
        Reference::of(&normal)
    }

    /// Random references and frees, beside one counter for each block.
    #[test]
    fn references_behave_like_counters() {
        let mut rng = Prng::new(1);
        let mut entries: Vec<Entry> = Vec::new();
        let mut totals = SharedTotals::default();
        let mut counters: BTreeMap<u64, u64> = (1..40).map(|number| (number, 1)).collect();
        for _ in 0..2000 {
            let (mut added, mut freed, mut dead) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rng.below(12) {
                let number = 1 + rng.below(39);
                let count = counters.get_mut(&number).unwrap();
                if *count > 0 && rng.below(2) == 0 {
                    *count += 1;
                    added.push(block(number));
                } else if *count > 0 {
                    *count -= 1;
                    freed.push(block(number));
                    if *count == 0 {
                        dead.push(number * 64);
                    }
                }
            }
            dead.sort_unstable();
            added.sort_unstable_by_key(addr_of);
            freed.sort_unstable_by_key(addr_of);
            let settled = settle_leaf(&entries, &changes_of(&added, &freed), totals);
            assert_eq!(settled.has_changed, settled.entries != entries);
            let found: Vec<u64> = settled.dead.iter().map(|dead| dead.addrs[0].offset()).collect();
            assert_eq!(found, dead);
            (entries, totals) = (settled.entries, settled.totals);
            let shared: Vec<Entry> = counters
                .iter()
                .filter(|(_, count)| **count > 1)
                .map(|(number, count)| (addr_of(&block(*number)), count - 1))
                .collect();
            assert_eq!(entries, shared);
            let references = shared.iter().map(|(_, extra)| extra).sum();
            let blocks = shared.len() as u64;
            let expected =
                SharedTotals { blocks, references, block_bytes: blocks * 64, saved_bytes: references * 64 };
            assert_eq!(totals, expected);
            // Those that died are written anew.
            counters.values_mut().filter(|count| **count == 0).for_each(|count| *count = 1);
        }
    }

    #[test]
    fn a_block_freed_too_often_is_freed_twice_for_the_commit_to_find() {
        let freed = [block(7), block(7), block(7)];
        let settled =
            settle_leaf(&[(addr_of(&block(7)), 1)], &changes_of(&[], &freed), SharedTotals::default());
        assert_eq!((settled.entries.len(), settled.dead.len()), (0, 2));
        let settled = settle_leaf(&[], &changes_of(&[], &freed[..1]), SharedTotals::default());
        assert_eq!((settled.has_changed, settled.dead.len()), (false, 1));
    }
}
