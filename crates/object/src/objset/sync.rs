//! The sync of one set: everything that is dirty in a txg, from records up to the header.
//!
//! The dnode blocks of dirty objects are read first. If one is damaged, its objects are left out before any of
//! their blocks is written or freed.
//!
//! Invariant: no txg publishes a pointer to a block that it freed.

use super::parts::PartContents;
use super::queue::StoredQueue;
use super::{DataPolicy, HEADER, ObjectSet, Syncing};
use crate::dirty::{Dirty, DirtyBlock, Frozen, Ranges, SpillChange};
use crate::dnode::{Dnode, DnodeSlot, ObjsetHeader, dnode_offsets, slot_of};
use crate::error::ObjectError;
use crate::free_policy::Ledger;
use crate::kind::ObjectKind;
use crate::lifetime_hints::{ReplacedPointers, content_birth};
use crate::mos_change::{MosChange, MosUpdate, patched};
use crate::object::{Object, key_of};
use crate::object_alloc::add_slots;
use crate::part::Part;
use crate::queued_subtree::QueuedSubtree;
use crate::tree::{TreeRewrite, metadata_compression, report_permanent_error};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use terrane_codec::{ChecksumKind, CompressionPolicy};
use terrane_format::block_ptr::{Key, Normal};
use terrane_format::directory::SPILL;
use terrane_format::{BlockPtr, Owner};
use terrane_pool::{Stream, TxgSync, WriteRequest};
use terrane_space::policy::Placement;
use terrane_store::PoolError;
use terrane_txg::levels::Method;
use terrane_wire::{IdMap, ObjectId, Txg};

/// Blocks per write call. Not bytes: with a few large blocks, each worker would get one at a time and wait.
const CHUNK_BLOCKS: usize = 512;
/// Bytes of records in a write call that were not in memory as a whole.
const CHUNK_PART_BYTES: usize = 16 << 20;

/// A dirty object, and the changes that the sync takes from it. Some facts are repeated here: with many objects, each look behind a
/// pointer is a cache miss.
pub(super) struct ChangedObject {
    object: Arc<Object>,
    frozen: Arc<Frozen>,
    pub id: ObjectId,
    pub is_destroyed: bool,
}

impl ChangedObject {
    fn new(object: Arc<Object>, frozen: Arc<Frozen>) -> ChangedObject {
        ChangedObject { id: object.id(), is_destroyed: frozen.dirty.destroyed, object, frozen }
    }
}

/// New pointers of one object. The spill is apart: for an object with nothing else, a map would be its largest
/// allocation.
#[derive(Clone, Default)]
struct Written {
    blocks: BTreeMap<u64, BlockPtr>,
    spill: Option<BlockPtr>,
}

/// Blocks by number, and their names in the cache.
type BlockNames = Vec<(u64, Key)>;

/// Dnode blocks, by index.
pub(super) type DnodeBlocks = BTreeMap<u64, Vec<u8>>;

/// Result of a set's sync.
pub(crate) struct Synced {
    pub root: BlockPtr,
    /// New content of the MOS object with the set's queue; `None`: unchanged.
    pub queue: Option<Vec<Vec<u8>>>,
}

impl ObjectSet {
    /// Writes everything dirty in the txg, and applies `changes` to objects of this set. `None`: nothing
    /// changed.
    pub(crate) fn sync(
        &self,
        txg_sync: &mut TxgSync<'_>,
        changes: Vec<MosChange>,
    ) -> Result<Option<Synced>, ObjectError> {
        let Syncing { objects, counts } = {
            let mut syncing = self.syncing.lock();
            Syncing { objects: std::mem::take(&mut syncing.objects), counts: syncing.counts }
        };
        let mut changed: Vec<ChangedObject> = Vec::with_capacity(objects.len());
        for object in objects {
            let mut state = object.state.write();
            state.freeze_before(txg_sync.txg().next());
            let frozen = state.syncing.clone();
            drop(state);
            changed.extend(frozen.map(|frozen| ChangedObject::new(object, frozen)));
        }
        for MosChange { id, update: what } in changes {
            let object = self.hold(id)?;
            changed.retain(|other| other.id != id);
            let mut state = object.state.write();
            let mut frozen = state
                .syncing
                .as_deref()
                .cloned()
                .unwrap_or_else(|| Frozen { dirty: Dirty::new(txg_sync.txg()), dnode: state.dnode.clone() });
            match what {
                MosUpdate::Bonus { at, bytes } => {
                    for dnode in [&mut state.dnode, &mut frozen.dnode] {
                        dnode.bonus = Arc::new(patched(&dnode.bonus, at, &bytes));
                    }
                }
                MosUpdate::Content(blocks) => frozen.replace_content(blocks),
                MosUpdate::Blocks(blocks) => frozen.replace_blocks(blocks),
            }
            let frozen = Arc::new(frozen);
            state.syncing = Some(frozen.clone());
            drop(state);
            changed.push(ChangedObject::new(object, frozen));
        }
        if self.is_retired() {
            return self.sync_retired(txg_sync, &changed);
        }
        let corrected = self.corrected_account.lock().take();
        if let Some(corrected) = corrected {
            *self.account.lock() = Some(corrected);
        }
        let is_unchanged = changed.is_empty() && corrected.is_none();
        if is_unchanged && self.queue.lock().is_empty() && !self.root.lock().is_hole() {
            return Ok(None);
        }
        let queue = std::mem::take(&mut *self.queue.lock());
        let mut ledger = Ledger::new(self.free_policy.as_deref(), queue);
        let queue_before = ledger.queue.clone();
        // In the order of dnode blocks.
        changed.sort_unstable_by_key(|object| object.id);
        let (blocks, left_out) = self.read_dnode_blocks(txg_sync.txg(), &mut changed)?;
        let (mut dnodes, names) = self.sync_objects(txg_sync, &changed, &mut ledger)?;
        let owners = self.sync_owners(txg_sync, &changed, &mut dnodes, &blocks, &mut ledger)?;
        self.drain_queue(txg_sync, &mut ledger)?;
        let (dnodes_object, free_queue) = (self.dnodes.clone(), self.free_queue.clone());
        let new_dnodes = self.sync_dnodes(txg_sync, &changed, (&dnodes, blocks), &mut ledger)?;
        let StoredQueue { in_header: new_queue, in_mos: queue } =
            self.sync_queue(txg_sync, &queue_before, &mut ledger)?;
        let account = self.account_before().map(|before| ledger.account_after(before));
        let header = ObjsetHeader {
            objects: counts.objects,
            high_water: counts.high_water,
            account,
            shared_table: if self.is_meta() { self.shared.stored_in(txg_sync.txg()) } else { ObjectId(0) },
            dnodes: new_dnodes.clone(),
            free_queue: new_queue.clone(),
            owners: owners.header.clone(),
        };
        let request = WriteRequest {
            data: Arc::new(header.encode()),
            kind: ObjectKind::Objset as u8,
            compression: metadata_compression().into(),
            checksum: ChecksumKind::Blake3,
            owner: Owner::Block { objset: self.id.0, object: HEADER, level: 0, block: 0 },
            fill: counts.objects.max(1),
            content_birth: None,
            stream: Stream::Metadata,
            may_embed: false,
            replaces: None,
        };
        let root = txg_sync.write(vec![request])?.remove(0);
        // Before any thread can see that these slots are free.
        self.allocator.lock().rotate_freed(freed_slots(&changed));
        // Dnodes first: a thread that holds an object from now on reads the new ones.
        for (object, dnode) in [(&dnodes_object, &new_dnodes), (&free_queue, &new_queue)] {
            object.install(dnode, &[]);
        }
        for ((changed, dnode), names) in changed.iter().zip(&dnodes).zip(&names) {
            changed.object.install(dnode, names);
        }
        self.install_owners(owners);
        left_out.iter().for_each(|object| object.forget_changes());
        self.drop_destroyed(&changed);
        *self.account.lock() = account;
        let old = std::mem::replace(&mut *self.root.lock(), root.clone());
        ledger.remove_header(txg_sync, &old);
        *self.queue.lock() = ledger.queue;
        txg_sync.drop_on_worker((changed, dnodes));
        Ok(Some(Synced { root, queue }))
    }

    /// Syncs a retired set. The first such sync moves the whole set to the free queue. Each sync frees a piece of it.
    fn sync_retired(
        &self,
        txg_sync: &mut TxgSync<'_>,
        changed: &[ChangedObject],
    ) -> Result<Option<Synced>, ObjectError> {
        changed.iter().for_each(|changed| changed.object.forget_changes());
        let queue = std::mem::take(&mut *self.queue.lock());
        let before = queue.clone();
        let mut ledger = Ledger::new(self.free_policy.as_deref(), queue);
        let mut root = self.root.lock().clone();
        if let Some(prune_below) = self.retiring.lock().take()
            && !root.is_hole()
        {
            let detached = txg_sync.txg();
            ledger.queue.push(QueuedSubtree { root: std::mem::take(&mut root), detached, prune_below });
        }
        if ledger.queue.is_empty() && before.is_empty() {
            return Ok(None);
        }
        self.drain_queue(txg_sync, &mut ledger)?;
        let StoredQueue { in_mos: queue, .. } = self.sync_queue(txg_sync, &before, &mut ledger)?;
        *self.root.lock() = root.clone();
        *self.account.lock() = self.account().map(|before| ledger.account_after(before));
        *self.queue.lock() = ledger.queue;
        Ok(Some(Synced { root, queue }))
    }

    /// Notes the zones of the blocks that clones of the syncing txg share. Must come before the sync of any set.
    pub(crate) fn note_shared_zones(&self, txg_sync: &mut TxgSync<'_>) {
        for object in &self.syncing.lock().objects {
            let mut state = object.state.write();
            state.freeze_before(txg_sync.txg().next());
            let blocks = state.syncing.iter().flat_map(|frozen| frozen.dirty.blocks.values());
            for ptr in blocks.filter_map(DirtyBlock::given) {
                txg_sync.note_shared_zone(ptr.addrs[0].seq());
            }
        }
    }

    /// Reads the dnode blocks of dirty objects, before any tree is rewritten: once old blocks are freed, the
    /// new root must have a place. Objects in a damaged block are removed from `changed`, and keep their old
    /// trees.
    fn read_dnode_blocks(
        &self,
        txg: Txg,
        changed: &mut Vec<ChangedObject>,
    ) -> Result<(DnodeBlocks, Vec<Arc<Object>>), ObjectError> {
        let mut blocks: DnodeBlocks = BTreeMap::new();
        let (mut damaged, mut left_out) = (None, Vec::new());
        let mut kept = Vec::with_capacity(changed.len());
        for object in changed.drain(..) {
            let block = slot_of(object.id).block;
            if damaged != Some(block)
                && let Entry::Vacant(vacant) = blocks.entry(block)
            {
                match self.dnodes.read_block(block) {
                    Ok(found) => drop(vacant.insert(found.to_vec())),
                    Err(ObjectError::Pool(error)) => {
                        report_permanent_error(&self.pool, error)?;
                        damaged = Some(block);
                    }
                    Err(error) => return Err(error),
                }
            }
            if damaged == Some(block) {
                self.handle_lost_changes(txg, &object.object, &object.frozen)?;
                left_out.push(object.object);
            } else {
                kept.push(object);
            }
        }
        *changed = kept;
        Ok((blocks, left_out))
    }

    /// Handles changes that cannot be stored, as all copies of a block that they belong into are damaged. For a
    /// file, `fsync` reports it from now on. A directory's changes are linked with those of other objects, so
    /// the txg cannot commit without them. It fails, and the state before it stays intact.
    fn handle_lost_changes(&self, txg: Txg, object: &Object, frozen: &Frozen) -> Result<(), ObjectError> {
        let (set, id) = (self.id, object.id());
        if frozen.dirty.destroyed {
            log::error!(
                "object set {set} object {id}: space lost, tree or dnode block damaged while destroying it"
            );
            // It still exists, and what it uses was subtracted.
            let policy = self.free_policy.as_ref();
            if let Some(feature) = policy.and_then(|policy| policy.counted_feature(object.kind())) {
                self.pool.lose_uses(feature, super::UNREADABLE_USE);
            }
            return Ok(());
        }
        if object.kind().is_metadata() {
            let reason = format!(
                "object set {set} object {id}: changes of txg {txg} cannot be stored, all copies of its dnode block or tree are damaged"
            );
            return Err(PoolError::Failed { reason: reason.into() }.into());
        }
        log::error!(
            "object set {set} object {id}: changes of txg {txg} lost, all copies of its dnode block or tree are damaged"
        );
        self.note_lost_changes(txg, object, 0);
        Ok(())
    }

    /// `fsync` of the file reports it from now on, and `status` names a block.
    fn note_lost_changes(&self, txg: Txg, object: &Object, block: u64) {
        self.pool.note_lost_changes(object.tree_id().owner(0, block), txg);
        self.table.note_lost_changes(object.id());
    }

    /// The new content of a record of which there is a part. `None`: its stored form matches its checksum, and cannot be decompressed.
    fn content_of_part<'p>(
        &self,
        txg: Txg,
        (object, block): (&Object, u64),
        parts: &mut PartContents<'p, impl Iterator<Item = &'p Arc<Part>>>,
    ) -> Result<Option<Arc<Vec<u8>>>, PoolError> {
        match parts.take_next() {
            Err(PoolError::Corrupt(corrupt)) => {
                let (set, id) = (self.id, object.id());
                log::error!(
                    "object set {set} object {id} block {block}: changes of txg {txg} lost: {corrupt}"
                );
                self.note_lost_changes(txg, object, block);
                Ok(None)
            }
            content => content.map(Some),
        }
    }

    /// Writes level-0 blocks and spills of all objects in one parallel stream, then each object's tree. Returns
    /// their dnodes, and the names of the blocks.
    fn sync_objects(
        &self,
        txg_sync: &mut TxgSync<'_>,
        changed: &[ChangedObject],
        ledger: &mut Ledger<'_>,
    ) -> Result<(Vec<Dnode>, Vec<BlockNames>), ObjectError> {
        let policy = self.policy();
        let mut written = vec![Written::default(); changed.len()];
        let txg = txg_sync.txg();
        let mut requests = Vec::new();
        let mut positions = Vec::new();
        let parts = changed.iter().flat_map(|changed| changed.frozen.dirty.blocks.values());
        let parts = RefCell::new(PartContents::new(&self.pool, parts.filter_map(DirtyBlock::part)));
        let mut part_bytes = 0;
        // Dnodes of objects whose trees stay. Made as soon as their spills are written, while their memory is in the processor's cache.
        let mut treeless: Vec<Option<Dnode>> = Vec::with_capacity(changed.len());
        for (index, ChangedObject { object, frozen, .. }) in changed.iter().enumerate() {
            let file = object.lifetime_hints.placement(object.tree_id(), frozen, policy.write_hint);
            let mut replaced = ReplacedPointers::new(&self.pool, object.tree_id(), &frozen.dnode);
            let spill = match &frozen.dirty.spill {
                SpillChange::New(spill) => Some((SPILL, self.spill_request(object, spill.clone()))),
                SpillChange::Unchanged | SpillChange::Removed => None,
            };
            let given = frozen.dirty.blocks.iter().filter_map(|(block, new)| Some((*block, new.given()?)));
            for (block, ptr) in given {
                let ptr = cloned_pointer(txg_sync.txg(), ptr);
                ptr.features().for_each(|feature| self.pool.note_use(feature));
                written.get_mut(index).into_iter().for_each(|new| _ = new.blocks.insert(block, ptr.clone()));
            }
            let data = frozen.dirty.blocks.iter().filter_map(|(block, new)| match new {
                DirtyBlock::Data(data) => Some(Ok((*block, data.clone()))),
                DirtyBlock::Given(_) => None,
                DirtyBlock::Part(_) => {
                    let content = self.content_of_part(txg, (object, *block), &mut parts.borrow_mut());
                    content.map(|content| Some((*block, content?))).transpose()
                }
            });
            let mut request_of = |(block, data): (u64, Arc<Vec<u8>>)| {
                if frozen.dnode.kind.is_metadata() {
                    return (block, self.request(object, frozen, block, data, Stream::Metadata, &policy));
                }
                if frozen.dirty.restored.contains_key(&block) {
                    // It did not die, so it says nothing about block lifetimes. The old stored form must not be
                    // kept either.
                    return (block, self.request(object, frozen, block, data, Stream::Data(file), &policy));
                }
                let old = replaced.pointer(block);
                let placement =
                    Placement { replaced_birth: old.as_ref().map_or(Txg(0), content_birth), ..file };
                let request = self.request(object, frozen, block, data, Stream::Data(placement), &policy);
                // A block that was freed in this txg leaves the tree, even if it was written again.
                let is_stored = !frozen.dirty.is_resized && !frozen.dirty.freed.contains(block);
                let replaces = old.filter(|_| is_stored);
                (block, WriteRequest { replaces, ..request })
            };
            let blocks = data.map(|found: Result<_, PoolError>| found.map(&mut request_of));
            for found in blocks.chain(spill.map(Ok)) {
                let (block, request) = found?;
                requests.push(request);
                positions.push((index, block));
                let taken_bytes = parts.borrow().taken_bytes;
                if requests.len() >= CHUNK_BLOCKS || taken_bytes - part_bytes >= CHUNK_PART_BYTES {
                    part_bytes = taken_bytes;
                    let pointers = txg_sync.write(std::mem::take(&mut requests))?;
                    insert_written(txg_sync.txg(), &mut written, &mut positions, pointers);
                    make_treeless(
                        txg_sync,
                        changed.get(..index).unwrap_or_default(),
                        &mut written,
                        &mut treeless,
                        ledger,
                    );
                }
            }
        }
        let pointers = txg_sync.write(requests)?;
        insert_written(txg_sync.txg(), &mut written, &mut positions, pointers);
        make_treeless(txg_sync, changed, &mut written, &mut treeless, ledger);
        let mut dnodes = Vec::with_capacity(changed.len());
        let mut names: Vec<BlockNames> = changed
            .iter()
            .zip(&written)
            .map(|(changed, new)| block_names(changed.object.kind(), &new.blocks))
            .collect();
        let names_of = names.iter_mut();
        for (((changed, treeless), Written { blocks: new, spill }), names) in
            changed.iter().zip(treeless).zip(written).zip(names_of)
        {
            if let Some(dnode) = treeless {
                dnodes.push(dnode);
                continue;
            }
            let ChangedObject { object, frozen, .. } = changed;
            // First, and even if the tree fails: this txg's bonus is in the dnode anyway, and bonus and spill
            // belong together.
            let dnode = with_spill(txg_sync, frozen, spill, ledger);
            if new.is_empty() && !frozen.changes_tree() {
                dnodes.push(dnode);
                continue;
            }
            let checksum =
                if frozen.dnode.kind.is_metadata() { ChecksumKind::Blake3 } else { policy.checksum };
            // The starting point is the tree of the last sync, whatever the open txg did since.
            let rewrite = TreeRewrite::new(txg_sync, object.tree_id(), dnode.clone(), checksum, ledger);
            let rewrite = rewrite.with_forced(&frozen.dirty.forced_indirect);
            let dnode = match rewrite.apply(&frozen.dirty.freed, new) {
                Ok(rewritten) => rewritten,
                // The tree is damaged, so the changes cannot be merged into it.
                Err(error) => {
                    report_permanent_error(&self.pool, error)?;
                    names.clear();
                    if object.is_second_copy() {
                        // The new birth tells the thread that fills it.
                        Dnode { birth: txg_sync.txg(), ..dnode }
                    } else {
                        self.handle_lost_changes(txg_sync.txg(), object, frozen)?;
                        dnode
                    }
                }
            };
            dnodes.push(dnode);
        }
        Ok((dnodes, names))
    }

    fn request(
        &self,
        object: &Object,
        frozen: &Frozen,
        block: u64,
        data: Arc<Vec<u8>>,
        stream: Stream,
        policy: &DataPolicy,
    ) -> WriteRequest {
        let metadata = frozen.dnode.kind.is_metadata();
        let restored = frozen.dirty.restored.get(&block);
        WriteRequest {
            data,
            kind: frozen.dnode.kind as u8,
            compression: match (restored.and_then(|restored| restored.encoded.clone()), policy.compression) {
                _ if metadata => metadata_compression().into(),
                (Some(encoded), _) => Method::PreEncoded(encoded),
                (None, CompressionPolicy::Fixed(compression)) => compression.into(),
                (None, CompressionPolicy::Auto(_)) => Method::Auto(self.policy.zstd_levels.clone()),
            },
            checksum: if metadata { ChecksumKind::Blake3 } else { policy.checksum },
            owner: object.tree_id().owner(0, block),
            fill: 1,
            content_birth: restored.map(|restored| restored.birth),
            stream,
            may_embed: true,
            replaces: None,
        }
    }

    /// Metadata, even for a file.
    fn spill_request(&self, object: &Object, data: Arc<Vec<u8>>) -> WriteRequest {
        WriteRequest {
            data,
            kind: object.kind() as u8,
            compression: metadata_compression().into(),
            checksum: ChecksumKind::Blake3,
            owner: object.tree_id().owner(0, SPILL),
            fill: 1,
            content_birth: None,
            stream: Stream::Metadata,
            may_embed: true,
            replaces: None,
        }
    }

    /// Puts the dnodes of synced objects into their blocks, and rewrites the tree of dnodes.
    fn sync_dnodes(
        &self,
        txg_sync: &mut TxgSync<'_>,
        changed: &[ChangedObject],
        (dnodes, mut blocks): (&[Dnode], DnodeBlocks),
        ledger: &mut Ledger<'_>,
    ) -> Result<Dnode, ObjectError> {
        for (object, dnode) in changed.iter().zip(dnodes) {
            let DnodeSlot { block, offset } = slot_of(object.id);
            let slot = offset..offset + dnode.stored_bytes();
            let slot = blocks.get_mut(&block).and_then(|block| block.get_mut(slot));
            let slot = slot.expect("the dnode block was read, and no dnode crosses a block");
            if object.is_destroyed {
                slot.fill(0);
            } else {
                dnode.encode_into(slot);
            }
        }
        let mut dnodes_dnode = self.dnodes.dnode();
        let mut requests = Vec::with_capacity(blocks.len());
        let mut indices = Vec::with_capacity(blocks.len());
        for (block, data) in blocks {
            let fill = dnode_offsets(&data).count() as u64;
            dnodes_dnode.block_count = dnodes_dnode.block_count.max(block + 1);
            indices.push(block);
            requests.push(WriteRequest {
                data: Arc::new(data),
                kind: ObjectKind::Dnodes as u8,
                compression: metadata_compression().into(),
                checksum: ChecksumKind::Blake3,
                owner: self.dnodes.tree_id().owner(0, block),
                fill,
                content_birth: None,
                stream: Stream::Metadata,
                may_embed: false,
                replaces: None,
            });
        }
        let new = indices.into_iter().zip(txg_sync.write(requests)?).collect();
        let rewrite =
            TreeRewrite::new(txg_sync, self.dnodes.tree_id(), dnodes_dnode, ChecksumKind::Blake3, ledger);
        Ok(rewrite.apply(&Ranges::default(), new)?)
    }

    /// The dnodes are in the tree: drops destroyed objects, and slots in use are visible in the dnode blocks.
    fn drop_destroyed(&self, changed: &[ChangedObject]) {
        self.allocator.lock().clear_stored();
        for changed in changed.iter().filter(|changed| changed.is_destroyed) {
            self.table.remove_destroyed(&changed.object);
        }
    }
}

/// The pointer of a clone that this txg makes.
fn cloned_pointer(txg: Txg, shared: &Normal) -> BlockPtr {
    BlockPtr::Normal(Normal { logical_birth: txg, is_clone: true, ..shared.clone() })
}

/// Slots of destroyed objects. They are reused only after this txg has committed, since a crash brings the
/// objects back. A client that knows a new object with the same number would find the old one.
fn freed_slots(changed: &[ChangedObject]) -> IdMap<u64, u32> {
    let mut freed = IdMap::default();
    for changed in changed.iter().filter(|changed| changed.is_destroyed) {
        add_slots(&mut freed, changed.id.0, changed.frozen.dnode.slots);
    }
    freed
}

/// The dnode that a sync starts from, with its new spill. The old spill leaves the set.
fn with_spill(
    txg_sync: &mut TxgSync<'_>,
    frozen: &Frozen,
    new: Option<BlockPtr>,
    ledger: &mut Ledger<'_>,
) -> Dnode {
    let mut dnode = frozen.dnode.clone();
    if !matches!(frozen.dirty.spill, SpillChange::Unchanged) {
        let new = new.unwrap_or_default();
        ledger.remove_spill(txg_sync, &dnode.spill);
        ledger.added.add(&new, false);
        dnode.used =
            dnode.used.saturating_sub(dnode.spill.allocated_bytes()).saturating_add(new.allocated_bytes());
        dnode.spill = new;
    }
    dnode
}

/// Makes the dnodes of all these objects whose trees stay, beyond those that are made already.
fn make_treeless(
    txg_sync: &mut TxgSync<'_>,
    changed: &[ChangedObject],
    written: &mut [Written],
    treeless: &mut Vec<Option<Dnode>>,
    ledger: &mut Ledger<'_>,
) {
    let done = treeless.len();
    for (changed, written) in changed.iter().zip(written).skip(done) {
        let frozen = &changed.frozen;
        let stays = frozen.dirty.blocks.is_empty() && !frozen.changes_tree();
        treeless.push(stays.then(|| with_spill(txg_sync, frozen, written.spill.take(), ledger)));
    }
}

/// The names of a metadata object's new blocks. Only few blocks of a file are remembered, and not by name.
fn block_names(kind: ObjectKind, new: &BTreeMap<u64, BlockPtr>) -> BlockNames {
    if !kind.is_metadata() {
        return Vec::new();
    }
    new.iter().filter_map(|(block, ptr)| Some((*block, key_of(ptr)?))).collect()
}

/// Stores new pointers with their objects. A pointer kept by nopwrite is in the tree already.
#[expect(clippy::indexing_slicing, reason = "positions were made from these objects")]
fn insert_written(
    txg: Txg,
    written: &mut [Written],
    positions: &mut Vec<(usize, u64)>,
    pointers: Vec<BlockPtr>,
) {
    for ((index, block), ptr) in positions.drain(..).zip(pointers).filter(|(_, ptr)| ptr.block_birth() == txg)
    {
        let object = &mut written[index];
        if block == SPILL {
            object.spill = Some(ptr);
        } else {
            object.blocks.insert(block, ptr);
        }
    }
}
