//! A ZAP in an object.
//!
//! `terrane_zap` knows blocks but no transactions; `terrane_object` knows transactions but no names.
//! [`ObjectStore`] connects them, and [`ObjectZap`] keeps an object together with the in-memory state of its
//! ZAP.
//!
//! Invariant: the state of an `ObjectZap` describes the object's blocks, unless a change failed halfway. Then
//! it is dropped, and read again before the next use.

use crate::directory::ENTRY_WORD_COUNT;
use crate::error::ZapError;
use crate::naming::Naming;
use crate::zap_policy::ZapPolicy;
use std::sync::{Arc, OnceLock};
use terrane_object::{Object, ObjectError, ObjectKind, ObjectSet, ObjectSpec};
use terrane_pool::Tx;
use terrane_zap::{
    CountBits, Cursor, Entry, FirstBlock, Flags, KeyRef, Kind, PreparedIndex, ShrinkPlan, Store, Value,
    ValueRef, ValueShape, VisitedEntry, Zap, ZapOptions,
};

/// An object as `terrane_zap` sees it: readable, and writable with a transaction.
pub struct ObjectStore<'a> {
    object: &'a Arc<Object>,
    tx: Option<&'a Tx>,
}

impl<'a> ObjectStore<'a> {
    /// A read-only view.
    pub fn reader(object: &'a Arc<Object>) -> Self {
        ObjectStore { object, tx: None }
    }

    /// A view that changes the object in this transaction.
    pub fn writer(object: &'a Arc<Object>, tx: &'a Tx) -> Self {
        ObjectStore { object, tx: Some(tx) }
    }

    fn tx(&self) -> &'a Tx {
        self.tx.expect("a ZAP is changed only through ObjectStore::writer")
    }
}

impl Store for ObjectStore<'_> {
    type Error = ObjectError;

    fn block_size(&self) -> usize {
        self.object.block_size() as usize
    }

    fn block_count(&self) -> u64 {
        self.object.block_count()
    }

    fn read(&self, block: u64) -> Result<Arc<Vec<u8>>, ObjectError> {
        self.object.read_block(block)
    }

    fn first_block(&self) -> Result<Option<FirstBlock>, ObjectError> {
        self.object.first_block()
    }

    fn modify(&mut self, block: u64, change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), ObjectError> {
        self.object.modify_block(self.tx(), block, change)
    }

    fn set_block_size(&mut self, bytes: usize) -> Result<(), ObjectError> {
        let bytes = u32::try_from(bytes).expect("a ZAP asks for blocks of at most 1 MiB");
        self.object.set_block_size(self.tx(), bytes)
    }

    fn free(&mut self, block: u64) -> Result<(), ObjectError> {
        let size = u64::from(self.object.block_size());
        match block.checked_mul(size) {
            // Freeing the last block shortens the object, so that an empty ZAP can have no block at all.
            Some(offset) if block.checked_add(1) == Some(self.object.block_count()) => {
                self.object.truncate(self.tx(), offset)
            }
            Some(offset) => self.object.zero_range(self.tx(), offset, size),
            None => Ok(()),
        }
    }

    fn truncate(&mut self, blocks: u64) -> Result<(), ObjectError> {
        let bytes = blocks.saturating_mul(u64::from(self.object.block_size()));
        self.object.truncate(self.tx(), bytes)
    }
}

/// An object and the ZAP in it. Callers lock around it: readers share, a writer is exclusive.
pub struct ObjectZap {
    object: Arc<Object>,
    policy: Arc<ZapPolicy>,
    /// Filled by the first use, cleared by a failed change.
    zap: OnceLock<Box<Zap>>,
    /// Used if nothing was written to the object yet.
    salt: u64,
    naming: Naming,
    /// Directories only.
    padding: Option<CountBits>,
}

impl ObjectZap {
    /// Takes an object whose blocks are a ZAP, or which has none yet; reads nothing before the first use.
    pub fn new(policy: &Arc<ZapPolicy>, object: Arc<Object>) -> Self {
        let salt = policy.new_salt();
        let (policy, naming) = (Arc::clone(policy), Naming::BYTES);
        ObjectZap { object, policy, zap: OnceLock::new(), salt, naming, padding: None }
    }

    /// The same for a directory with these naming rules. Its entries may have words beside them.
    pub fn directory(policy: &Arc<ZapPolicy>, object: Arc<Object>, naming: Naming) -> Self {
        ObjectZap { naming, padding: Some(ENTRY_WORD_COUNT), ..ObjectZap::new(policy, object) }
    }

    /// Creates an object that will be a ZAP; it has no block before its first entry.
    pub(crate) fn create(
        set: &ObjectSet,
        policy: &Arc<ZapPolicy>,
        tx: &Tx,
        kind: ObjectKind,
    ) -> Result<ObjectZap, ObjectError> {
        let (block_size, bonus) = (INITIAL_BLOCK_BYTES, Vec::new());
        let spec = ObjectSpec { kind, block_size, dnode_slots: 1, bonus, spill: None };
        Ok(ObjectZap::new(policy, set.create(tx, spec)?))
    }

    /// The object that stores the ZAP.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    pub(crate) fn policy(&self) -> &ZapPolicy {
        &self.policy
    }

    fn zap(&self) -> Result<&Zap, ZapError> {
        if let Some(zap) = self.zap.get() {
            return Ok(zap);
        }
        let (norm, padding) = (self.naming.norm(), self.padding);
        let options = ZapOptions { norm, padding, ..self.policy.options(self.salt) };
        let opened = Zap::open_with(&ObjectStore::reader(&self.object), options)?;
        // Two readers may race here: they opened the same bytes.
        Ok(self.zap.get_or_init(|| Box::new(opened)))
    }

    /// The value of an entry; `None`: there is no such key.
    pub fn lookup<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>, ZapError> {
        self.zap()?.lookup(&ObjectStore::reader(&self.object), key)
    }

    /// The entry's first integer.
    pub fn lookup_u64<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<u64>, ZapError> {
        self.zap()?.lookup_u64(&ObjectStore::reader(&self.object), key)
    }

    /// Size in bytes and number of the value's integers.
    pub fn shape<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<ValueShape>, ZapError> {
        self.zap()?.shape(&ObjectStore::reader(&self.object), key)
    }

    /// Micro, tiny or fat.
    pub fn kind(&self) -> Result<Kind, ZapError> {
        self.zap()?.kind(&ObjectStore::reader(&self.object))
    }

    /// Number of entries.
    pub fn len(&self) -> Result<u64, ZapError> {
        self.zap()?.len(&ObjectStore::reader(&self.object))
    }

    /// The first integer of the entry that matches a name, by the rules of [`directory`](Self::directory).
    /// Methods that do not match compare bytes.
    pub fn match_u64(&self, name: &[u8]) -> Result<Option<u64>, ZapError> {
        if self.naming.is_exact() {
            return self.lookup_u64(name);
        }
        let found = self.find_match(name)?;
        found.map(|entry| entry.value.first_integer().ok_or(ZapError::NoInteger)).transpose()
    }

    /// The value of the entry that matches a name, by the same rules.
    pub fn match_value(&self, name: &[u8]) -> Result<Option<Value>, ZapError> {
        if self.naming.is_exact() {
            return self.lookup(name);
        }
        Ok(self.find_match(name)?.map(|entry| entry.value))
    }

    /// The stored name that matches this one, if its bytes differ.
    pub fn other_spelling(&self, name: &[u8]) -> Result<Option<Vec<u8>>, ZapError> {
        if self.naming.is_exact() {
            return Ok(None);
        }
        let found = self.find_match(name)?;
        Ok(found.and_then(|entry| entry.key.name().filter(|stored| *stored != name).map(<[u8]>::to_vec)))
    }

    fn find_match(&self, name: &[u8]) -> Result<Option<Entry>, ZapError> {
        let store = ObjectStore::reader(&self.object);
        match self.zap()?.find_match(&store, name, self.naming.matching()) {
            // A name that cannot be stored does not exist.
            Err(ZapError::NameNotUtf8) => Ok(None),
            outcome => outcome,
        }
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> Result<bool, ZapError> {
        self.zap()?.is_empty(&ObjectStore::reader(&self.object))
    }

    /// Up to `max` entries from `from` on, in cursor order; fewer only at the end.
    pub fn list(&self, from: Cursor, max: usize) -> Result<Vec<Entry>, ZapError> {
        self.zap()?.list(&ObjectStore::reader(&self.object), from, max)
    }

    /// Calls `each` for entries from `from` on, in cursor order, until it returns false. True: the last entry
    /// was shown.
    pub fn visit(
        &self,
        from: Cursor,
        each: &mut dyn FnMut(VisitedEntry<'_>) -> bool,
    ) -> Result<bool, ZapError> {
        self.zap()?.visit(&ObjectStore::reader(&self.object), from, each)
    }

    /// Takes over what another thread prepared, if it still describes the object.
    pub fn adopt(&self, prepared: PreparedIndex) -> Result<(), ZapError> {
        self.zap()?.adopt(&ObjectStore::reader(&self.object), prepared).map(drop)
    }

    /// A listing has ended: drops what only listings need.
    pub fn end_listing(&mut self) {
        if let Some(zap) = self.zap.get_mut() {
            zap.end_listing();
        }
    }

    /// Calls `each` for up to `max` entries. Values may be as large as a block, so only some are in memory at
    /// once.
    pub fn each(&self, max: usize, each: &mut dyn FnMut(&Entry)) -> Result<(), ZapError> {
        let (mut cursor, mut left) = (Cursor::START, max);
        loop {
            let step = self.list(cursor, left.min(EACH_STEP))?;
            step.iter().for_each(&mut *each);
            left -= step.len().min(left);
            match step.last().map(Entry::cursor_after) {
                // A damaged ZAP whose cursor goes back would never end.
                Some(next) if step.len() == EACH_STEP && left > 0 && next > cursor => cursor = next,
                _ => return Ok(()),
            }
        }
    }

    /// All entries. For small ZAPs that only we fill.
    pub fn entries(&self) -> Result<Vec<Entry>, ZapError> {
        self.list(Cursor::START, usize::MAX)
    }

    /// Writes an empty fat ZAP with these flags into an object without blocks. Without flags the first entry
    /// does that.
    pub fn write_empty(&mut self, tx: &Tx, flags: Flags, fat_block_shift: u32) -> Result<(), ZapError> {
        let options = ZapOptions { flags, fat_block_shift, ..self.policy.options(self.salt) };
        let created = Zap::create(&mut ObjectStore::writer(&self.object, tx), options)?;
        // A new ZAP is never tiny, so no use is to be counted.
        self.zap = OnceLock::from(Box::new(created));
        Ok(())
    }

    /// Adds an entry; refuses an existing key.
    pub fn add<'k>(
        &mut self,
        tx: &Tx,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<(), ZapError> {
        self.change(tx, |zap, store| zap.add_ints(store, key, value))
    }

    /// Adds an entry of one integer; refuses an existing key.
    pub fn add_u64(&mut self, tx: &Tx, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.add(tx, name, ValueRef::U64s(&[value]))
    }

    /// Adds an entry or replaces its value; returns whether the key is new.
    pub fn update<'k>(
        &mut self,
        tx: &Tx,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<bool, ZapError> {
        self.change(tx, |zap, store| zap.update_ints(store, key, value))
    }

    /// Adds a name or replaces its value.
    pub fn update_u64(&mut self, tx: &Tx, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.update(tx, name, ValueRef::U64s(&[value])).map(drop)
    }

    /// Removes an entry. False: there was no such key. A ZAP of names without entries has no block.
    pub fn remove<'k>(&mut self, tx: &Tx, key: impl Into<KeyRef<'k>>) -> Result<bool, ZapError> {
        let removed = self.change(tx, |zap, store| zap.remove(store, key))?;
        // Flags are stored in the blocks only, so a ZAP with flags keeps them. An unreadable ZAP keeps its
        // blocks too, although the key was removed.
        if removed && self.is_empty().unwrap_or(false) && self.has_no_flags().unwrap_or(false) {
            let form = self.policy.form(&self.object);
            self.object.truncate(tx, 0)?;
            self.policy.count_change(tx, form, &self.object);
            self.object.set_block_size(tx, INITIAL_BLOCK_BYTES)?;
            self.zap = OnceLock::new();
        }
        Ok(removed)
    }

    /// Whether [`plan_shrink`](Self::plan_shrink) might find something, after removals.
    pub fn is_shrink_due(&self) -> bool {
        // An unreadable ZAP is not shrunk; the next reader gets the error.
        self.zap.get().is_some_and(|zap| zap.shrink_due(&ObjectStore::reader(&self.object)).unwrap_or(false))
    }

    /// Builds a smaller ZAP of the remaining entries in memory.
    pub fn plan_shrink(&self) -> Result<Option<ShrinkPlan>, ZapError> {
        self.zap()?.plan_shrink(&ObjectStore::reader(&self.object))
    }

    /// Applies a plan, unless the ZAP changed since; returns whether it did. Dirties [`ShrinkPlan::bytes`], and
    /// frees the old blocks.
    pub fn apply_shrink(&mut self, tx: &Tx, plan: ShrinkPlan) -> Result<bool, ZapError> {
        self.change(tx, |zap, store| zap.apply_shrink(store, plan))
    }

    fn has_no_flags(&self) -> Result<bool, ZapError> {
        Ok(self.zap()?.flags(&ObjectStore::reader(&self.object))? == Flags::NONE)
    }

    fn change<T>(
        &mut self,
        tx: &Tx,
        change: impl FnOnce(&mut Zap, &mut ObjectStore<'_>) -> Result<T, ZapError>,
    ) -> Result<T, ZapError> {
        self.zap()?;
        let mut zap = self.zap.take().expect("`zap` has filled it");
        zap.allow_growth(&self.policy.options(self.salt));
        let form = self.policy.form(&self.object);
        let outcome = change(&mut zap, &mut ObjectStore::writer(&self.object, tx));
        self.policy.count_change(tx, form, &self.object);
        if !matches!(outcome, Err(ZapError::Store(_))) {
            self.zap = OnceLock::from(zap);
        }
        outcome
    }

    /// Drops the index of a micro or tiny ZAP to save memory. It is rebuilt on demand.
    pub fn drop_index(&mut self) {
        if let Some(zap) = self.zap.get_mut() {
            zap.drop_index();
        }
    }

    /// Memory in bytes of the index of a micro or tiny ZAP; 0 without one.
    pub fn index_bytes(&self) -> usize {
        self.zap.get().map_or(0, |zap| zap.index_bytes())
    }

    /// Upper bound of what adding or replacing an entry dirties.
    pub fn put_cost(&self, name_bytes: usize, value: ValueRef<'_>) -> ChangeCost {
        let size = self.size();
        if size.blocks > 1 {
            return size.fat_cost();
        }
        let limit = u64::from(self.policy.slots_bytes_max());
        let growth = self.growth(name_bytes, value);
        // Other changes may fill it before this one: a ZAP near the limit counts as if it had reached it.
        let grown = size.block_bytes.saturating_mul(growth).saturating_add(GROWTH_BYTES);
        if growth == 0 || grown.saturating_add(CONCURRENT_GROWTH_BYTES) > limit {
            return size.conversion_cost();
        }
        ChangeCost::once(grown)
    }

    /// Factor by which the block may grow when an entry does not fit its slots; 0: it may become fat.
    fn growth(&self, name_bytes: usize, value: ValueRef<'_>) -> u64 {
        let ValueRef::U64s(ints) = value else { return 0 };
        let kind = self.zap().and_then(|zap| zap.kind(&ObjectStore::reader(&self.object)));
        let (slot, has_ints) = match kind {
            Ok(Kind::Nothing) => (64, ints.len()),
            Ok(Kind::Micro) => (64, 1),
            Ok(Kind::Tiny { chunk_bytes, value_ints }) => (u64::from(chunk_bytes), usize::from(value_ints)),
            // An unreadable ZAP cannot be changed either.
            Ok(Kind::Fat) | Err(_) => return 0,
        };
        if ints.len() == 1 && has_ints == 1 && name_bytes <= MICRO_NAME_BYTES_MAX {
            // It fits any slot of one word.
            return 1;
        }
        let bytes_of = |ints: usize, name_bytes: usize| {
            ints.saturating_mul(8).saturating_add(name_bytes).saturating_add(TINY_OVERHEAD_BYTES) as u64
        };
        let needs = match self.padding {
            // All slots get wider, and the longest name is not known.
            Some(_) if ints.len() > has_ints => {
                let name_bytes_max = slot.saturating_sub(bytes_of(has_ints, 0)) as usize;
                bytes_of(ints.len(), name_bytes.max(name_bytes_max))
            }
            Some(_) => bytes_of(has_ints, name_bytes),
            None if ints.len() == has_ints => bytes_of(has_ints, name_bytes),
            None => return 0,
        };
        match SLOT_BYTES.into_iter().find(|slot| needs <= *slot) {
            Some(slot_needed) if self.policy.may_be_tiny() => slot_needed.max(slot) / slot,
            _ => 0,
        }
    }

    /// Upper bound of what removing an entry dirties.
    pub fn remove_cost(&self) -> ChangeCost {
        let size = self.size();
        match size.blocks {
            0 | 1 => ChangeCost::once(size.block_bytes),
            _ => size.fat_cost(),
        }
    }

    fn size(&self) -> Size {
        Size { block_bytes: u64::from(self.object.block_size()), blocks: self.object.block_count() }
    }
}

/// Size of an object, on which costs depend.
#[derive(Clone, Copy)]
struct Size {
    block_bytes: u64,
    blocks: u64,
}

impl Size {
    /// Conversion to a fat ZAP: half-full leaves, the header, a pointer table, and indirect blocks above them.
    ///
    /// Maliciously chosen names can force almost empty leaves between full ones. Almost empty leaves take some
    /// hundred bytes each, and half-full ones half of what is counted for them. So the sum holds for them too.
    fn conversion_cost(self) -> ChangeCost {
        let slots = self.block_bytes / SLOT_BYTES[0];
        let leaves = 2 * slots.saturating_mul(LEAF_CHUNKS_OF_A_SLOT).div_ceil(LEAF_CHUNKS) + 2;
        ChangeCost::once((leaves + 2 + leaves.div_ceil(POINTERS) + 1) * FAT_BLOCK_BYTES)
    }

    fn fat_cost(self) -> ChangeCost {
        let bytes_usual = self.block_bytes.max(FAT_BLOCK_BYTES);
        let one = FAT_CHANGE_BLOCKS * bytes_usual;
        let pointers = (self.blocks / POINTERS * 2).saturating_mul(FAT_BLOCK_BYTES);
        let all = self.blocks.saturating_mul(self.block_bytes).saturating_add(pointers);
        let next = FAT_NEXT_CHANGE_BLOCKS * bytes_usual;
        ChangeCost { bytes: one, bytes_next: next, bytes_max: all.saturating_add(2 * one), bytes_usual }
    }
}

/// Cost of changing one name, in bytes of metadata blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeCost {
    /// Cost of the first change in a txg.
    pub bytes: u64,
    /// Cost of another change in the same txg, which finds some blocks dirty.
    pub bytes_next: u64,
    /// Upper bound for any number of changes in one txg.
    pub bytes_max: u64,
    /// What most changes dirty at most, also if nothing more has to be reserved. 0: what they reserve.
    pub bytes_usual: u64,
}

impl ChangeCost {
    /// Cost of one more change if the txg has reserved so many bytes already.
    pub fn missing(&self, reserved: u64) -> u64 {
        let next = self.bytes_next.min(self.bytes_max.saturating_sub(reserved));
        next.max(self.bytes.saturating_sub(reserved))
    }

    /// What a change is expected to dirty that reserves so much.
    pub fn expected(&self, reserved: u64) -> u64 {
        if self.bytes_usual > 0 { self.bytes_usual } else { reserved }
    }

    /// Cost of so many changes in one txg.
    pub fn of_many(&self, changes: u64) -> u64 {
        let next = self.bytes_next.saturating_mul(changes.saturating_sub(1));
        self.bytes.saturating_add(next).min(self.bytes_max)
    }

    /// Another change in the same txg dirties the same blocks.
    fn once(bytes: u64) -> Self {
        ChangeCost { bytes, bytes_next: bytes, bytes_max: bytes, bytes_usual: 0 }
    }
}

/// Bytes by which a block of slots grows in one change.
const GROWTH_BYTES: u64 = 512;
/// Bytes by which other changes may grow it between the reservation and the change.
const CONCURRENT_GROWTH_BYTES: u64 = 8 << 10;
/// Bytes of a fat ZAP's block, and of an indirect block.
const FAT_BLOCK_BYTES: u64 = 16 << 10;
/// Pointers in an indirect block.
const POINTERS: u64 = 128;
/// Blocks of one change: a splitting leaf and its new neighbour (or two merging leaves), and the header. Also
/// one block of the pointer table, two of its replacement, and indirect blocks above them.
const FAT_CHANGE_BLOCKS: u64 = 8;
/// Two leaves, and an indirect block above them.
const FAT_NEXT_CHANGE_BLOCKS: u64 = 3;
/// Chunks of a leaf of 16 KiB, and the maximum that an entry takes there per 64 bytes of its slot.
const LEAF_CHUNKS: u64 = 638;
const LEAF_CHUNKS_OF_A_SLOT: u64 = 5;
/// Possible slot sizes in bytes.
const SLOT_BYTES: [u64; 3] = [64, 128, 256];
/// Bytes of a tiny slot beside words and name: differentiator and NUL.
const TINY_OVERHEAD_BYTES: usize = 5;
/// The longest name in bytes in the smallest slot.
const MICRO_NAME_BYTES_MAX: usize = 49;
/// Entries in memory at once during [`ObjectZap::each`].
const EACH_STEP: usize = 64;
/// Block size in bytes of an object that will be a ZAP.
pub const INITIAL_BLOCK_BYTES: u32 = 512;
