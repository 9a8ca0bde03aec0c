//! The sync of one set: everything that is dirty in a txg (group), from records up to the header.
//!
//! The dnode blocks of dirty objects are read first. If one is damaged, its objects are left out before any of
//! their blocks is written or freed.
//!
//! Invariant: no txg publishes a pointer to a block that it freed.

use super::queue::StoredQueue;
use super::{DataPolicy, HEADER, ObjectSet, Syncing};
use crate::dirty::{Dirty, Frozen, Ranges, Spill};
use crate::dnode::{Dnode, DnodeSlot, ObjsetHeader, dnode_offsets, slot_of};
use crate::entry::with_root;
use crate::error::ObjectError;
use crate::freeing::Ledger;
use crate::kind::ObjectKind;
use crate::numbers::add_slots;
use crate::object::Object;
use crate::outlook::{Replaced, born};
use crate::tree::{Rewrite, damage_only, metadata_compression};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use terrane_codec::{ChecksumKind, CompressionPolicy};
use terrane_format::directory::SPILL;
use terrane_format::{BlockPtr, Owner};
use terrane_pool::{Group, Stream, WriteRequest};
use terrane_space::policy::Placement;
use terrane_store::PoolError;
use terrane_txg::levels::Method;
use terrane_wire::{NumberMap, ObjectId, Txg};

/// Blocks per write call. Not bytes: with a few large blocks, each worker would get one at a time and wait.
const CHUNK_BLOCKS: usize = 512;

/// A dirty object, and the changes that the sync takes from it.
type Changed = (Arc<Object>, Arc<Frozen>);

/// Dnode blocks, by index.
type DnodeBlocks = BTreeMap<u64, Vec<u8>>;

/// A change of a MOS object that follows from the sync of another set.
pub(crate) struct MetaChange {
    pub id: ObjectId,
    pub what: What,
}

pub(crate) enum What {
    /// The set that it stands for has a new root.
    Root(BlockPtr),
    /// Its whole content is replaced by these blocks.
    Content(Vec<Vec<u8>>),
}

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
        group: &mut Group<'_>,
        changes: Vec<MetaChange>,
    ) -> Result<Option<Synced>, ObjectError> {
        let Syncing { objects, numbers } = {
            let mut syncing = self.syncing.lock();
            Syncing { objects: std::mem::take(&mut syncing.objects), numbers: syncing.numbers }
        };
        let mut frozen: Vec<Changed> = Vec::with_capacity(objects.len());
        for object in objects {
            let mut state = object.state.write();
            state.freeze_before(group.txg().next());
            let set_aside = state.syncing.clone();
            drop(state);
            frozen.extend(set_aside.map(|set_aside| (object, set_aside)));
        }
        for MetaChange { id, what } in changes {
            let object = self.hold(id)?;
            frozen.retain(|(other, _)| other.id() != id);
            let mut state = object.state.write();
            let mut aside = state
                .syncing
                .as_deref()
                .cloned()
                .unwrap_or_else(|| Frozen { dirty: Dirty::new(group.txg()), dnode: state.dnode.clone() });
            match what {
                // The bytes behind the root may differ in the open txg already.
                What::Root(root) => {
                    for dnode in [&mut state.dnode, &mut aside.dnode] {
                        dnode.bonus = Arc::new(with_root(&dnode.bonus, &root));
                    }
                }
                What::Content(blocks) => aside.replace_content(blocks),
            }
            let aside = Arc::new(aside);
            state.syncing = Some(aside.clone());
            drop(state);
            frozen.push((object, aside));
        }
        if frozen.is_empty() && self.queue.lock().is_empty() && !self.root.lock().is_hole() {
            return Ok(None);
        }
        let queue = std::mem::take(&mut *self.queue.lock());
        let mut ledger = Ledger::new(self.free_policy.as_deref(), queue);
        let queue_before = ledger.queue.clone();
        // In the order of dnode blocks.
        frozen.sort_unstable_by_key(|(object, _)| object.id());
        let (blocks, left_out) = self.read_dnode_blocks(group.txg(), &mut frozen)?;
        let dnodes = self.sync_objects(group, &frozen, &mut ledger)?;
        self.shrink_queue(group, &mut ledger)?;
        let (meta, free_queue) = (self.dnodes.clone(), self.free_queue.clone());
        let new_meta = self.sync_dnodes(group, &frozen, (&dnodes, blocks), &mut ledger)?;
        let StoredQueue { inside: new_queue, outside: queue } =
            self.sync_queue(group, &queue_before, &mut ledger)?;
        let account = self.account_before().map(|before| ledger.settle(before));
        let header = ObjsetHeader {
            objects: numbers.objects,
            high_water: numbers.high_water,
            account,
            dnodes: new_meta.clone(),
            free_queue: new_queue.clone(),
        };
        let request = WriteRequest {
            data: Arc::new(header.encode()),
            kind: ObjectKind::Objset as u8,
            compression: metadata_compression().into(),
            checksum: ChecksumKind::Blake3,
            owner: Owner::Block { objset: self.id.0, object: HEADER, level: 0, block: 0 },
            fill: numbers.objects.max(1),
            content_birth: None,
            stream: Stream::Metadata,
            may_embed: false,
            replaces: None,
        };
        let root = group.write(vec![request])?.remove(0);
        // Before any thread can see that these slots are free.
        self.numbers.lock().rest(freed_slots(&frozen));
        // Dnodes first: a thread that holds an object from now on reads the new ones.
        for (object, dnode) in [(&meta, &new_meta), (&free_queue, &new_queue)] {
            object.install(dnode);
        }
        for ((object, _), dnode) in frozen.iter().zip(&dnodes) {
            object.install(dnode);
        }
        left_out.iter().for_each(|object| object.forget_changes());
        self.retire(&frozen);
        *self.account.lock() = account;
        let old = std::mem::replace(&mut *self.root.lock(), root.clone());
        ledger.kill_header(group, &old);
        *self.queue.lock() = ledger.queue;
        Ok(Some(Synced { root, queue }))
    }

    /// Reads the dnode blocks of dirty objects, before any tree is rewritten: once old blocks are freed, the
    /// new root must have a place. Objects in a damaged block are removed from `frozen`, and keep their old
    /// trees.
    fn read_dnode_blocks(
        &self,
        txg: Txg,
        frozen: &mut Vec<Changed>,
    ) -> Result<(DnodeBlocks, Vec<Arc<Object>>), ObjectError> {
        let mut blocks: DnodeBlocks = BTreeMap::new();
        let (mut damaged, mut left_out) = (None, Vec::new());
        let mut kept = Vec::with_capacity(frozen.len());
        for (object, aside) in frozen.drain(..) {
            let block = slot_of(object.id()).block;
            if damaged != Some(block)
                && let Entry::Vacant(vacant) = blocks.entry(block)
            {
                match self.dnodes.read_block(block) {
                    Ok(found) => drop(vacant.insert(found.to_vec())),
                    Err(ObjectError::Pool(error)) => {
                        damage_only(&self.pool, error)?;
                        damaged = Some(block);
                    }
                    Err(error) => return Err(error),
                }
            }
            if damaged == Some(block) {
                self.lose_changes(txg, &object, &aside)?;
                left_out.push(object);
            } else {
                kept.push((object, aside));
            }
        }
        *frozen = kept;
        Ok((blocks, left_out))
    }

    /// Handles changes that cannot be stored, as all copies of a block that they belong into are damaged. For a
    /// file, `fsync` reports it from now on. A directory's changes are linked with those of other objects, so
    /// the txg cannot commit without them. It fails, and the state before it stays intact.
    fn lose_changes(&self, txg: Txg, object: &Object, aside: &Frozen) -> Result<(), ObjectError> {
        let (set, id) = (self.id, object.id());
        if aside.dirty.destroyed {
            log::error!("object set {set} object {id}: damaged while it was destroyed; its space is lost");
            return Ok(());
        }
        if object.kind().is_metadata() {
            let reason = format!(
                "object set {set} object {id}: group {txg} changed it, and all copies of its dnode's block or its tree are damaged"
            );
            return Err(PoolError::Failed { reason: reason.into() }.into());
        }
        log::error!(
            "object set {set} object {id}: the changes of group {txg} are lost; its dnode's block or its tree is damaged"
        );
        self.pool.note_lost(object.whose().owner(0, 0), txg);
        self.table.note_lost_changes(id);
        Ok(())
    }

    /// Writes level-0 blocks and spills of all objects in one parallel stream, then each object's tree.
    fn sync_objects(
        &self,
        group: &mut Group<'_>,
        frozen: &[Changed],
        ledger: &mut Ledger<'_>,
    ) -> Result<Vec<Dnode>, ObjectError> {
        let policy = self.policy();
        let mut pointers: Vec<BTreeMap<u64, BlockPtr>> = vec![BTreeMap::new(); frozen.len()];
        let mut requests = Vec::new();
        let mut places = Vec::new();
        for (index, (object, aside)) in frozen.iter().enumerate() {
            let file = object.outlook.placement(object.whose(), aside, policy.write_hint);
            let mut replaced = Replaced::new(&self.pool, object.whose(), &aside.dnode);
            let spill = match &aside.dirty.spill {
                Spill::New(spill) => Some((SPILL, self.spill_request(object, spill.clone()))),
                Spill::Unchanged | Spill::Gone => None,
            };
            let blocks = aside.dirty.blocks.iter().map(|(block, data)| {
                let data = data.clone();
                if aside.dnode.kind.is_metadata() {
                    return (*block, self.request(object, aside, *block, data, Stream::Metadata, &policy));
                }
                if aside.dirty.restored.contains_key(block) {
                    // It did not die, so it says nothing about block lifetimes. The old stored form must not be
                    // kept either.
                    return (*block, self.request(object, aside, *block, data, Stream::Data(file), &policy));
                }
                let old = replaced.pointer(*block);
                let lived = Placement { replaces: old.as_ref().map_or(Txg(0), born), ..file };
                let request = self.request(object, aside, *block, data, Stream::Data(lived), &policy);
                // A block that was freed in this txg leaves the tree, even if it was written again.
                let is_stored = !aside.dirty.is_resized && !aside.dirty.freed.contains(*block);
                let replaces = old.filter(|_| is_stored);
                (*block, WriteRequest { replaces, ..request })
            });
            for (block, request) in blocks.chain(spill) {
                requests.push(request);
                places.push((index, block));
                if requests.len() >= CHUNK_BLOCKS {
                    let written = group.write(std::mem::take(&mut requests))?;
                    place(group.txg(), &mut pointers, &mut places, written);
                }
            }
        }
        let written = group.write(requests)?;
        place(group.txg(), &mut pointers, &mut places, written);
        let mut dnodes = Vec::with_capacity(frozen.len());
        for ((object, aside), mut new) in frozen.iter().zip(pointers) {
            // First, and even if the tree fails: this txg's bonus is in the dnode anyway, and bonus and spill
            // belong together.
            let dnode = with_spill(group, aside, new.remove(&SPILL), ledger);
            let is_freed = !aside.dirty.freed.is_empty() && !dnode.root.is_hole();
            if new.is_empty() && aside.dirty.pointers.is_empty() && !is_freed {
                dnodes.push(dnode);
                continue;
            }
            let checksum =
                if aside.dnode.kind.is_metadata() { ChecksumKind::Blake3 } else { policy.checksum };
            // The starting point is the tree of the last sync, whatever the open txg did since.
            let rewrite = Rewrite::new(group, object.whose(), dnode.clone(), checksum, ledger);
            let rewrite = rewrite.with_pointers(&aside.dirty.pointers);
            let dnode = match rewrite.run(&aside.dirty.freed, new) {
                Ok(rewritten) => rewritten,
                // The tree is damaged, so the changes cannot be merged into it.
                Err(error) => {
                    damage_only(&self.pool, error)?;
                    if object.is_filled_for_another() {
                        // The new birth tells the thread that fills it.
                        Dnode { birth: group.txg(), ..dnode }
                    } else {
                        self.lose_changes(group.txg(), object, aside)?;
                        dnode
                    }
                }
            };
            dnodes.push(dnode);
        }
        Ok(dnodes)
    }

    fn request(
        &self,
        object: &Object,
        aside: &Frozen,
        block: u64,
        data: Arc<Vec<u8>>,
        stream: Stream,
        policy: &DataPolicy,
    ) -> WriteRequest {
        let metadata = aside.dnode.kind.is_metadata();
        let restored = aside.dirty.restored.get(&block);
        WriteRequest {
            data,
            kind: aside.dnode.kind as u8,
            compression: match (restored.and_then(|restored| restored.made.clone()), policy.compression) {
                _ if metadata => metadata_compression().into(),
                (Some(made), _) => Method::Made(made),
                (None, CompressionPolicy::As(compression)) => compression.into(),
                (None, CompressionPolicy::Auto(_)) => Method::Auto(self.policy.levels.clone()),
            },
            checksum: if metadata { ChecksumKind::Blake3 } else { policy.checksum },
            owner: object.whose().owner(0, block),
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
            owner: object.whose().owner(0, SPILL),
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
        group: &mut Group<'_>,
        frozen: &[Changed],
        (dnodes, mut blocks): (&[Dnode], DnodeBlocks),
        ledger: &mut Ledger<'_>,
    ) -> Result<Dnode, ObjectError> {
        for ((object, aside), dnode) in frozen.iter().zip(dnodes) {
            let DnodeSlot { block, offset } = slot_of(object.id());
            let place = offset..offset + dnode.stored_bytes();
            let place = blocks.get_mut(&block).and_then(|block| block.get_mut(place));
            let place = place.expect("its block was read, and a dnode never crosses it");
            if aside.dirty.destroyed {
                place.fill(0);
            } else {
                dnode.encode_into(place);
            }
        }
        let mut meta = self.dnodes.dnode();
        let mut requests = Vec::with_capacity(blocks.len());
        let mut numbers = Vec::with_capacity(blocks.len());
        for (block, data) in blocks {
            let fill = dnode_offsets(&data).count() as u64;
            meta.block_count = meta.block_count.max(block + 1);
            numbers.push(block);
            requests.push(WriteRequest {
                data: Arc::new(data),
                kind: ObjectKind::Dnodes as u8,
                compression: metadata_compression().into(),
                checksum: ChecksumKind::Blake3,
                owner: self.dnodes.whose().owner(0, block),
                fill,
                content_birth: None,
                stream: Stream::Metadata,
                may_embed: false,
                replaces: None,
            });
        }
        let new = numbers.into_iter().zip(group.write(requests)?).collect();
        let rewrite = Rewrite::new(group, self.dnodes.whose(), meta, ChecksumKind::Blake3, ledger);
        Ok(rewrite.run(&Ranges::default(), new)?)
    }

    /// The dnodes are in the tree: drops destroyed objects, and slots in use are visible in the dnode blocks.
    fn retire(&self, frozen: &[Changed]) {
        self.numbers.lock().stored();
        for (object, _) in frozen.iter().filter(|(_, aside)| aside.dirty.destroyed) {
            self.table.retire(object);
        }
    }
}

/// Slots of destroyed objects. They are reused only after this txg has committed, since a crash brings the
/// objects back. A client that was told of a new object with the same number would find the old one.
fn freed_slots(frozen: &[Changed]) -> NumberMap<u64, u32> {
    let mut freed = NumberMap::default();
    for (object, aside) in frozen.iter().filter(|(_, aside)| aside.dirty.destroyed) {
        add_slots(&mut freed, object.id().0, aside.dnode.slots);
    }
    freed
}

/// The dnode that a sync starts from, with its new spill. The old spill leaves the set.
fn with_spill(
    group: &mut Group<'_>,
    aside: &Frozen,
    new: Option<BlockPtr>,
    ledger: &mut Ledger<'_>,
) -> Dnode {
    let mut dnode = aside.dnode.clone();
    if !matches!(aside.dirty.spill, Spill::Unchanged) {
        let new = new.unwrap_or_default();
        ledger.kill_spill(group, &dnode.spill);
        ledger.born.add(&new, false);
        dnode.used =
            dnode.used.saturating_sub(dnode.spill.allocated_bytes()).saturating_add(new.allocated_bytes());
        dnode.spill = new;
    }
    dnode
}

/// Stores new pointers with their objects. A pointer kept by nopwrite is in the tree already.
fn place(
    txg: Txg,
    pointers: &mut [BTreeMap<u64, BlockPtr>],
    places: &mut Vec<(usize, u64)>,
    written: Vec<BlockPtr>,
) {
    for ((index, block), ptr) in places.drain(..).zip(written).filter(|(_, ptr)| ptr.block_birth() == txg) {
        pointers[index].insert(block, ptr);
    }
}
