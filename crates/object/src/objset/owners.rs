//! The tables of owners of a set: their sync, and who follows it.
//!
//! Only syncs change the tables, so no operation waits for another because of them. A table that is damaged is
//! begun anew: the objects that it counted are then counted again, when they are next stored or by a walk.

use super::ObjectSet;
use super::sync::{ChangedObject, DnodeBlocks};
use crate::dnode::{
    DNODE_BLOCK_BYTES, Dnode, DnodeHead, DnodeSlot, SLOT_BYTES, SLOTS_PER_BLOCK, dnodes_in, slot_of,
};
use crate::error::ObjectError;
use crate::free_policy::Ledger;
use crate::kind::ObjectKind;
use crate::object::{Object, ObjectTable};
use crate::owner_header::{OwnerEpoch, OwnerHeader, OwnerKind};
use crate::owners::{CountedOwner, OwnerChanges, OwnerPolicy, OwnerTable, Owners, TableChange, Tally};
use crate::tree::{TreeRewrite, metadata_compression, report_permanent_error};
use parking_lot::{Mutex, RwLock};
use std::sync::{Arc, OnceLock};
use terrane_codec::ChecksumKind;
use terrane_format::{BlockPtr, Feature};
use terrane_pool::{Stream, Tx, TxgSync, WriteRequest};
use terrane_wire::{ObjectId, Txg};

/// Blocks by which one change may enlarge a table that has one block, or none.
const GROWTH_BLOCKS: u64 = 4;

/// Called in the sync of each txg, with the new counts. Returns false to be called no more.
type CountedHook = Box<dyn FnMut(Txg, &[CountedOwner]) -> bool + Send>;

/// The tables of a set in memory.
pub(super) struct OwnerTables {
    policy: OnceLock<Arc<dyn OwnerPolicy>>,
    tables: [Arc<Object>; 3],
    /// `None`: the set has no tables.
    epoch: Mutex<Option<OwnerEpoch>>,
    /// Taken by readers of tables, and by the sync that replaces them.
    replacing: RwLock<()>,
    /// New counts of the syncing txg.
    counted: Mutex<Vec<CountedOwner>>,
    hooks: Mutex<Vec<CountedHook>>,
}

impl OwnerTables {
    pub fn new(table: &ObjectTable, header: Option<OwnerHeader>) -> OwnerTables {
        let epoch = header.as_ref().map(|header| header.epoch);
        let dnodes =
            header.map_or_else(|| OwnerKind::ALL.map(|_| OwnerHeader::empty_table()), |header| header.tables);
        let mut dnodes = dnodes.into_iter();
        let tables = OwnerKind::ALL.map(|kind| {
            table.new_unlisted(kind.table_id(), dnodes.next().unwrap_or_else(OwnerHeader::empty_table))
        });
        OwnerTables {
            policy: OnceLock::new(),
            tables,
            epoch: Mutex::new(epoch),
            replacing: RwLock::default(),
            counted: Mutex::default(),
            hooks: Mutex::default(),
        }
    }

    pub fn table(&self, kind: OwnerKind) -> &Arc<Object> {
        let [users, groups, projects] = &self.tables;
        match kind {
            OwnerKind::User => users,
            OwnerKind::Group => groups,
            OwnerKind::Project => projects,
        }
    }

    fn header(&self) -> Option<OwnerHeader> {
        let epoch = (*self.epoch.lock())?;
        Some(OwnerHeader { epoch, tables: OwnerKind::ALL.map(|kind| self.table(kind).dnode()) })
    }
}

/// A dnode as it is stored, as far as it is counted.
struct StoredOwner {
    owners: Owners,
    used: u64,
}

impl StoredOwner {
    /// Reads a slot of a dnode block. `None`: no object is counted there in this epoch.
    fn read(raw: &[u8], epoch: u8, policy: &dyn OwnerPolicy) -> Option<StoredOwner> {
        let head = DnodeHead::decode(raw).filter(|head| head.owner_epoch == epoch)?;
        let kind = ObjectKind::from_id(head.kind)?;
        let bonus = raw.get(DnodeHead::SIZE + BlockPtr::SIZE..)?.get(..usize::from(head.bonus_len))?;
        Some(StoredOwner { owners: policy.owners(kind, bonus)?, used: head.used })
    }
}

/// The tables after a sync: to be stored in the header, and installed when the header is.
pub(super) struct NewTables {
    pub header: Option<OwnerHeader>,
    counted: Vec<CountedOwner>,
}

impl ObjectSet {
    /// Sets the policy by which objects are counted for their owners. The first one stays. To be called before the
    /// set changes.
    pub fn set_owner_policy(&self, policy: Arc<dyn OwnerPolicy>) {
        let _ = self.owners.policy.set(policy);
    }

    /// State of the tables of owners as of the last sync; `None`: there are none.
    pub fn owner_epoch(&self) -> Option<OwnerEpoch> {
        *self.owners.epoch.lock()
    }

    /// The tables' dnodes as of the last sync, for `check`.
    pub fn owner_tables(&self) -> Option<OwnerHeader> {
        self.owners.header()
    }

    /// Reads a table as of the last sync. No sync ends meanwhile, so `read` must not wait for a txg.
    pub fn read_owner_table<R>(&self, kind: OwnerKind, read: impl FnOnce(&Arc<Object>) -> R) -> R {
        let _unchanged = self.owners.replacing.read();
        read(self.owners.table(kind))
    }

    /// The owners of an object whose bonus this is.
    pub fn owners_of(&self, kind: ObjectKind, bonus: &[u8]) -> Option<Owners> {
        self.owners.policy.get()?.owners(kind, bonus)
    }

    /// Calls `hook` in the sync of each txg, with the new counts of owners, until it returns false. The tables do
    /// not change before it returns. It must not wait.
    pub fn on_owners_counted(&self, hook: impl FnMut(Txg, &[CountedOwner]) -> bool + Send + 'static) {
        self.owners.hooks.lock().push(Box::new(hook));
    }

    /// Whether an operation has freed something whose txg is not durable yet, so that a commit may lower counts.
    pub fn has_unsynced_frees(&self) -> bool {
        self.table.is_freeing()
    }

    /// Objects in the first dnode block from `first` on that have owners, but are not counted, as of the last sync.
    /// Also the first number behind that block. `None`: there are no more.
    pub fn uncounted_from(&self, first: ObjectId) -> Result<Option<(Vec<ObjectId>, ObjectId)>, ObjectError> {
        let (Some(policy), Some(epoch)) = (self.owners.policy.get(), self.owner_epoch()) else {
            return Ok(None);
        };
        let Some(offset) = self.dnodes.next_data(first.0.saturating_mul(SLOT_BYTES as u64))? else {
            return Ok(None);
        };
        let block = offset / u64::from(DNODE_BLOCK_BYTES);
        let end = ObjectId((block + 1) * SLOTS_PER_BLOCK);
        let raw = self.dnodes.read_block(block)?;
        let found = dnodes_in(&raw, &format_args!("object set {} dnode block {block}", self.id))?;
        let is_missing = |dnode: &Dnode| {
            dnode.owner_epoch != epoch.epoch && policy.owners(dnode.kind, &dnode.bonus).is_some()
        };
        let missing = found.into_iter().filter(|(_, dnode)| is_missing(dnode));
        let number = |offset: usize| ObjectId(block * SLOTS_PER_BLOCK + (offset / SLOT_BYTES) as u64);
        Ok(Some((missing.map(|(offset, _)| number(offset)).collect(), end)))
    }

    /// A walk has found every object with owners counted in this epoch. Stored with the next change.
    pub fn note_owners_complete(&self, walked: OwnerEpoch) {
        let mut epoch = self.owners.epoch.lock();
        if *epoch == Some(walked) {
            *epoch = Some(OwnerEpoch { is_complete: true, ..walked });
        }
    }

    /// Reserves what the sync of so many changed objects may write to the tables.
    pub(super) fn reserve_owner_tables(&self, last: &Tx, changed: usize) {
        if self.owners.policy.get().is_none() || changed == 0 || !self.pool.has(Feature::Owners) {
            return;
        }
        // Each object may move from one owner to another.
        let entries = 2 * changed as u64;
        let blocks = OwnerKind::ALL.map(|kind| match self.owners.table(kind).block_count() {
            0 | 1 => 1 + entries.div_ceil(64).min(GROWTH_BLOCKS),
            blocks => (2 * entries).min(blocks) + GROWTH_BLOCKS,
        });
        last.reserve_more(u32::try_from(blocks.iter().sum::<u64>()).unwrap_or(u32::MAX));
    }

    /// Counts the changed objects for their owners, and writes the tables. Says in the dnodes that they are counted.
    pub(super) fn sync_owners(
        &self,
        txg_sync: &mut TxgSync<'_>,
        changed: &[ChangedObject],
        dnodes: &mut [Dnode],
        blocks: &DnodeBlocks,
        ledger: &mut Ledger<'_>,
    ) -> Result<NewTables, ObjectError> {
        let unchanged = NewTables { header: self.owners.header(), counted: Vec::new() };
        let Some(policy) = self.owners.policy.get() else { return Ok(unchanged) };
        let stored = *self.owners.epoch.lock();
        if stored.is_none() && !self.pool.has(Feature::Owners) {
            return Ok(unchanged);
        }
        let mut epoch = stored.unwrap_or_else(|| OwnerEpoch::first(self.root.lock().is_hole()));
        let mut is_new = stored.is_none();
        let (changes, counted) = loop {
            let tally = count(policy.as_ref(), epoch.epoch, changed, dnodes, blocks);
            match self.change_tables(policy.as_ref(), &tally, is_new) {
                Ok(found) => break found,
                Err(ObjectError::Pool(error)) if !is_new && !error.is_transient() => {
                    report_permanent_error(&self.pool, error)?;
                    log::error!(
                        "object set {}: tables of owners damaged, begun anew. Objects are counted again by the next mount",
                        self.id
                    );
                    (epoch, is_new) = (epoch.next(), true);
                }
                Err(error) => return Err(error),
            }
        };
        let mut tables = OwnerKind::ALL.map(|kind| self.owners.table(kind).dnode());
        for ((kind, table), change) in OwnerKind::ALL.into_iter().zip(&mut tables).zip(changes) {
            if let Some(change) = change {
                *table = self.write_table(txg_sync, kind, table.clone(), change, ledger)?;
            }
        }
        Ok(NewTables { header: Some(OwnerHeader { epoch, tables }), counted })
    }

    /// Applies the changes to the tables in memory.
    fn change_tables(
        &self,
        policy: &dyn OwnerPolicy,
        tally: &Tally,
        is_new: bool,
    ) -> Result<([Option<TableChange>; 3], Vec<CountedOwner>), ObjectError> {
        let mut changes = [None, None, None];
        let mut counted = Vec::new();
        for ((kind, wanted), change) in OwnerKind::ALL.into_iter().zip(&tally.tables).zip(&mut changes) {
            let wanted: &OwnerChanges = wanted;
            if wanted.is_empty() && !is_new {
                continue;
            }
            let mut table = OwnerTable::new(self.owners.table(kind), is_new);
            let counts = policy.apply(&mut table, wanted)?;
            counted.extend(counts.into_iter().map(|(id, count)| CountedOwner { kind, id, count }));
            *change = table.into_change();
        }
        Ok((changes, counted))
    }

    fn write_table(
        &self,
        txg_sync: &mut TxgSync<'_>,
        kind: OwnerKind,
        stored: Dnode,
        change: TableChange,
        ledger: &mut Ledger<'_>,
    ) -> Result<Dnode, ObjectError> {
        let tree = self.owners.table(kind).tree_id();
        let TableChange { block_bytes, block_count, blocks, freed } = change;
        let (numbers, contents): (Vec<u64>, Vec<_>) = blocks.into_iter().unzip();
        let request = |(block, data): (&u64, _)| WriteRequest {
            data,
            kind: ObjectKind::Zap as u8,
            compression: metadata_compression().into(),
            checksum: ChecksumKind::Blake3,
            owner: tree.owner(0, *block),
            fill: 1,
            content_birth: None,
            stream: Stream::Metadata,
            may_embed: true,
            replaces: None,
        };
        let pointers = txg_sync.write(numbers.iter().zip(contents).map(request).collect())?;
        let new = numbers.into_iter().zip(pointers).collect();
        let rewrite = TreeRewrite::new(txg_sync, tree, stored, ChecksumKind::Blake3, ledger);
        let written = rewrite.apply(&freed, new)?;
        Ok(Dnode { block_bytes, block_count, ..written })
    }

    /// The header is written: the tables take effect.
    pub(super) fn install_owners(&self, new: NewTables) {
        let NewTables { header, counted } = new;
        let Some(OwnerHeader { epoch, tables }) = header else { return };
        let _replacing = self.owners.replacing.write();
        for (kind, dnode) in OwnerKind::ALL.into_iter().zip(&tables) {
            self.owners.table(kind).replace(dnode);
        }
        let mut stored = self.owners.epoch.lock();
        // A walk may have found them complete meanwhile.
        let is_complete =
            epoch.is_complete || stored.is_some_and(|now| now.epoch == epoch.epoch && now.is_complete);
        *stored = Some(OwnerEpoch { is_complete, ..epoch });
        *self.owners.counted.lock() = counted;
    }

    /// Passes on what the sync of this txg has counted. To be called for each txg.
    pub(crate) fn tell_counted(&self, txg: Txg) {
        let counted = std::mem::take(&mut *self.owners.counted.lock());
        self.owners.hooks.lock().retain_mut(|hook| hook(txg, &counted));
    }
}

/// Sums up the differences between the stored dnodes and the new ones. Says in the new ones that they are counted.
fn count(
    policy: &dyn OwnerPolicy,
    epoch: u8,
    changed: &[ChangedObject],
    dnodes: &mut [Dnode],
    blocks: &DnodeBlocks,
) -> Tally {
    let mut tally = Tally::default();
    for (object, dnode) in changed.iter().zip(dnodes) {
        let DnodeSlot { block, offset } = slot_of(object.id);
        let raw = blocks.get(&block).and_then(|block| block.get(offset..)).unwrap_or(&[]);
        let before = StoredOwner::read(raw, epoch, policy).map(|stored| (stored.owners, stored.used));
        let owners = policy.owners(dnode.kind, &dnode.bonus);
        dnode.owner_epoch = if owners.is_some() { epoch } else { 0 };
        let after = owners.filter(|_| !object.is_destroyed).map(|owners| (owners, dnode.used));
        tally.add_difference(before, after);
    }
    tally.simplify();
    tally
}
