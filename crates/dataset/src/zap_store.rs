//! A ZAP in an object.
//!
//! `terrane_zap` knows blocks and no transactions; `terrane_object` knows transactions and no names.
//! [`ObjectStore`] puts one on the other, and [`ObjectZap`] keeps an object together with the state its ZAP has
//! in memory.
//!
//! Invariant: the state of an `ObjectZap` describes the object's blocks, unless a change failed half way; then
//! it is thrown away and read afresh before the next use.

use crate::error::ZapError;
use crate::naming::Naming;
use crate::zap_policy::ZapPolicy;
use std::sync::{Arc, OnceLock};
use terrane_object::{Object, ObjectError, ObjectKind, ObjectSet, ObjectSpec};
use terrane_pool::Tx;
use terrane_zap::{
    Cursor, Entry, First, Flags, KeyRef, Kind, Prepared, Shrink, Store, Value, ValueRef, ValueShape, Visited,
    Zap, ZapOptions,
};

/// An object as `terrane_zap` sees it: readable, and changeable when there is a transaction.
pub struct ObjectStore<'a> {
    object: &'a Arc<Object>,
    tx: Option<&'a Tx>,
}

impl<'a> ObjectStore<'a> {
    pub fn reader(object: &'a Arc<Object>) -> Self {
        ObjectStore { object, tx: None }
    }

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

    fn first(&self) -> Result<Option<First>, ObjectError> {
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
            // The last block goes with the object's length, so that an empty ZAP can have no block at all.
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

/// An object and the ZAP in it. Callers lock around it: readers share, a writer is alone.
pub struct ObjectZap {
    object: Arc<Object>,
    policy: Arc<ZapPolicy>,
    /// Filled by the first use, emptied by a change that failed.
    zap: OnceLock<Box<Zap>>,
    /// For an object to which nothing was written yet.
    salt: u64,
    naming: Naming,
}

impl ObjectZap {
    /// Takes an object whose blocks are a ZAP, or which has none yet; reads nothing before the first use.
    pub fn new(policy: &Arc<ZapPolicy>, object: Arc<Object>) -> Self {
        ObjectZap::with_names(policy, object, Naming::BYTES)
    }

    /// The same for a directory of a data set with such names.
    pub fn with_names(policy: &Arc<ZapPolicy>, object: Arc<Object>, naming: Naming) -> Self {
        let salt = policy.new_salt();
        ObjectZap { object, policy: Arc::clone(policy), zap: OnceLock::new(), salt, naming }
    }

    /// Makes an object that will be a ZAP; it has no block before its first entry.
    pub(crate) fn create(
        set: &ObjectSet,
        policy: &Arc<ZapPolicy>,
        tx: &Tx,
        kind: ObjectKind,
    ) -> Result<ObjectZap, ObjectError> {
        let (block_size, bonus) = (BLOCK_BYTES_FIRST, Vec::new());
        let spec = ObjectSpec { kind, block_size, dnode_slots: 1, bonus, spill: None };
        Ok(ObjectZap::new(policy, set.create(tx, spec)?))
    }

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
        let options = ZapOptions { norm: self.naming.norm(), ..self.policy.options(self.salt) };
        let opened = Zap::open_with(&ObjectStore::reader(&self.object), options)?;
        // Two readers may both come here: they opened the same bytes.
        Ok(self.zap.get_or_init(|| Box::new(opened)))
    }

    pub fn lookup<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>, ZapError> {
        self.zap()?.lookup(&ObjectStore::reader(&self.object), key)
    }

    /// The entry's first integer.
    pub fn lookup_u64<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<u64>, ZapError> {
        self.zap()?.lookup_u64(&ObjectStore::reader(&self.object), key)
    }

    /// Bytes of each integer of the value, and how many there are.
    pub fn shape<'k>(&self, key: impl Into<KeyRef<'k>>) -> Result<Option<ValueShape>, ZapError> {
        self.zap()?.shape(&ObjectStore::reader(&self.object), key)
    }

    pub fn kind(&self) -> Result<Kind, ZapError> {
        self.zap()?.kind(&ObjectStore::reader(&self.object))
    }

    /// Entries.
    pub fn len(&self) -> Result<u64, ZapError> {
        self.zap()?.len(&ObjectStore::reader(&self.object))
    }

    /// The first integer of the entry that a name means, by the rules of [`with_names`](Self::with_names). Everything else here goes
    /// by the bytes of a name.
    pub fn meaning_u64(&self, name: &[u8]) -> Result<Option<u64>, ZapError> {
        if self.naming.is_exact() {
            return self.lookup_u64(name);
        }
        let found = self.meaning(name)?;
        found.map(|entry| entry.value.first().ok_or(ZapError::NoInteger)).transpose()
    }

    /// The stored name that this one means, if there is one and its bytes are others.
    pub fn other_name(&self, name: &[u8]) -> Result<Option<Vec<u8>>, ZapError> {
        if self.naming.is_exact() {
            return Ok(None);
        }
        let found = self.meaning(name)?;
        Ok(found.and_then(|entry| entry.key.name().filter(|stored| *stored != name).map(<[u8]>::to_vec)))
    }

    fn meaning(&self, name: &[u8]) -> Result<Option<Entry>, ZapError> {
        let store = ObjectStore::reader(&self.object);
        match self.zap()?.find_match(&store, name, self.naming.matching()) {
            // What cannot be stored is not there.
            Err(ZapError::NameNotUtf8) => Ok(None),
            outcome => outcome,
        }
    }

    pub fn is_empty(&self) -> Result<bool, ZapError> {
        self.zap()?.is_empty(&ObjectStore::reader(&self.object))
    }

    /// Up to `max` entries from `from` on, in cursor order. Fewer only at the end.
    pub fn list(&self, from: Cursor, max: usize) -> Result<Vec<Entry>, ZapError> {
        self.zap()?.list(&ObjectStore::reader(&self.object), from, max)
    }

    /// Shows entries from `from` on, in cursor order, until `each` says false. True: the last one was shown.
    pub fn visit(&self, from: Cursor, each: &mut dyn FnMut(Visited<'_>) -> bool) -> Result<bool, ZapError> {
        self.zap()?.visit(&ObjectStore::reader(&self.object), from, each)
    }

    /// Remembers what another thread prepared, if it still describes the object.
    pub fn adopt(&self, prepared: Prepared) -> Result<(), ZapError> {
        self.zap()?.adopt(&ObjectStore::reader(&self.object), prepared).map(drop)
    }

    /// Says that a listing has ended: what only listings need is forgotten.
    pub fn listed(&mut self) {
        if let Some(zap) = self.zap.get_mut() {
            zap.listed();
        }
    }

    /// Shows up to `max` entries with their values. A value may be as large as a block, so only some are in memory at once.
    pub fn each(&self, max: usize, each: &mut dyn FnMut(&Entry)) -> Result<(), ZapError> {
        let (mut cursor, mut left) = (Cursor::START, max);
        loop {
            let step = self.list(cursor, left.min(EACH_STEP))?;
            step.iter().for_each(&mut *each);
            left -= step.len().min(left);
            match step.last().map(Entry::cursor_after) {
                // A ZAP that leads back would never end.
                Some(next) if step.len() == EACH_STEP && left > 0 && next > cursor => cursor = next,
                _ => return Ok(()),
            }
        }
    }

    /// All entries. For ZAPs that we fill ourselves with a few of them.
    pub fn entries(&self) -> Result<Vec<Entry>, ZapError> {
        self.list(Cursor::START, usize::MAX)
    }

    /// Writes an empty fat ZAP with these flags into an object without blocks. Without flags the first entry does what is needed.
    pub fn write_empty(&mut self, tx: &Tx, flags: Flags, fat_block_shift: u32) -> Result<(), ZapError> {
        let options = ZapOptions { flags, fat_block_shift, ..self.policy.options(self.salt) };
        let created = Zap::create(&mut ObjectStore::writer(&self.object, tx), options)?;
        self.zap = OnceLock::from(Box::new(created));
        Ok(())
    }

    /// Refuses a key that is there.
    pub fn add<'k>(
        &mut self,
        tx: &Tx,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<(), ZapError> {
        self.change(tx, |zap, store| zap.add_ints(store, key, value))
    }

    pub fn add_u64(&mut self, tx: &Tx, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.add(tx, name, ValueRef::U64s(&[value]))
    }

    /// Replaces the value, or adds the key; says whether it is new.
    pub fn update<'k>(
        &mut self,
        tx: &Tx,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<bool, ZapError> {
        self.change(tx, |zap, store| zap.update_ints(store, key, value))
    }

    /// Replaces the value, or adds the name.
    pub fn update_u64(&mut self, tx: &Tx, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.update(tx, name, ValueRef::U64s(&[value])).map(drop)
    }

    /// False: there was no such key. A ZAP of names that lost its last one has no block any more.
    pub fn remove<'k>(&mut self, tx: &Tx, key: impl Into<KeyRef<'k>>) -> Result<bool, ZapError> {
        let removed = self.change(tx, |zap, store| zap.remove(store, key))?;
        // Flags stand in the blocks only, so with flags they stay.
        // What cannot be read stays; the key is gone all the same.
        if removed && self.is_empty().unwrap_or(false) && self.has_no_flags().unwrap_or(false) {
            self.object.truncate(tx, 0)?;
            self.object.set_block_size(tx, BLOCK_BYTES_FIRST)?;
            self.zap = OnceLock::new();
        }
        Ok(removed)
    }

    /// Whether [`plan_shrink`](Self::plan_shrink) might find something, after removals.
    pub fn is_shrink_due(&self) -> bool {
        // One that cannot be read stays as it is; whoever reads it next is told.
        self.zap.get().is_some_and(|zap| zap.shrink_due(&ObjectStore::reader(&self.object)).unwrap_or(false))
    }

    /// What is left, in less space, built in memory.
    pub fn plan_shrink(&self) -> Result<Option<Shrink>, ZapError> {
        self.zap()?.plan_shrink(&ObjectStore::reader(&self.object))
    }

    /// Puts a plan in place, unless the ZAP was changed since it was made; whether it did. Dirties
    /// [`Shrink::bytes`], and frees what was there.
    pub fn apply_shrink(&mut self, tx: &Tx, plan: Shrink) -> Result<bool, ZapError> {
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
        let mut zap = self.zap.take().expect("it was filled one line above");
        zap.allow_growth(&self.policy.options(self.salt));
        let outcome = change(&mut zap, &mut ObjectStore::writer(&self.object, tx));
        if !matches!(outcome, Err(ZapError::Store(_))) {
            self.zap = OnceLock::from(zap);
        }
        outcome
    }

    /// Forgets the index of a micro or tiny ZAP: memory is wanted. It is built again when it is needed.
    pub fn drop_index(&mut self) {
        if let Some(zap) = self.zap.get_mut() {
            zap.drop_index();
        }
    }

    /// Bytes of memory that the index of a micro or tiny ZAP takes; 0 while it has none.
    pub fn index_bytes(&self) -> usize {
        self.zap.get().map_or(0, |zap| zap.index_bytes())
    }

    /// What adding a name, or giving it another value, dirties at most. Cheap for an entry of one integer whose name is short, which
    /// fits whatever slots there are; else it asks the ZAP which it has.
    pub fn put_cost(&self, name_bytes: usize, value: ValueRef<'_>) -> ChangeCost {
        let has_one_word = matches!(value, ValueRef::U64s([_]));
        let fits_any_slot = has_one_word && name_bytes <= MICRO_NAME_BYTES_MAX;
        let size = self.size();
        if size.blocks > 1 {
            return size.fat_cost();
        }
        let limit = u64::from(self.policy.slots_bytes_max());
        let growth = if fits_any_slot { 1 } else { self.growth(name_bytes, value) };
        // Others may fill it before this change has its turn: what is near the limit counts as if it were there.
        let grown = size.block_bytes.saturating_mul(growth).saturating_add(GROWTH_BYTES);
        if growth == 0 || grown.saturating_add(GROWTH_OF_OTHERS) > limit {
            return size.conversion_cost();
        }
        ChangeCost::once(grown)
    }

    /// By how much the block may grow when an entry is added for which its slots may be too small; 0: it may become fat.
    fn growth(&self, name_bytes: usize, value: ValueRef<'_>) -> u64 {
        let ValueRef::U64s(words) = value else { return 0 };
        let kind = self.zap().and_then(|zap| zap.kind(&ObjectStore::reader(&self.object)));
        let (slot, has_words) = match kind {
            Ok(Kind::Nothing) => (64, words.len()),
            Ok(Kind::Micro) => (64, 1),
            Ok(Kind::Tiny { chunk_bytes, value_ints }) => (u64::from(chunk_bytes), usize::from(value_ints)),
            // What cannot be read cannot be changed either.
            Ok(Kind::Fat) | Err(_) => return 0,
        };
        let needs =
            words.len().saturating_mul(8).saturating_add(name_bytes).saturating_add(TINY_BYTES_BESIDE);
        match SLOT_BYTES.into_iter().find(|slot| needs as u64 <= *slot) {
            Some(slot_needed) if has_words == words.len() && self.policy.may_be_tiny() => {
                slot_needed.max(slot) / slot
            }
            _ => 0,
        }
    }

    /// What removing a name dirties at most.
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

/// An object, as far as costs depend on it.
#[derive(Clone, Copy)]
struct Size {
    block_bytes: u64,
    blocks: u64,
}

impl Size {
    /// A block of slots that becomes fat: leaves that are half full, the header, a table of pointers, and blocks of pointers above them.
    ///
    /// Names that somebody chose can force leaves that are all but empty between full ones. Those are stored in some hundred bytes each,
    /// and half full ones in half of what is counted for them, so the sum holds for them too.
    fn conversion_cost(self) -> ChangeCost {
        let slots = self.block_bytes / SLOT_BYTES[0];
        let leaves = 2 * slots.saturating_mul(LEAF_CHUNKS_OF_A_SLOT).div_ceil(LEAF_CHUNKS) + 2;
        ChangeCost::once((leaves + 2 + leaves.div_ceil(POINTERS) + 1) * FAT_BLOCK_BYTES)
    }

    fn fat_cost(self) -> ChangeCost {
        let one = FAT_CHANGE_BLOCKS * self.block_bytes.max(FAT_BLOCK_BYTES);
        let pointers = (self.blocks / POINTERS * 2).saturating_mul(FAT_BLOCK_BYTES);
        let all = self.blocks.saturating_mul(self.block_bytes).saturating_add(pointers);
        let again = FAT_CHANGE_BLOCKS_AGAIN * self.block_bytes.max(FAT_BLOCK_BYTES);
        ChangeCost { bytes: one, bytes_again: again, bytes_max: all.saturating_add(2 * one) }
    }
}

/// What changing one name costs, in bytes of metadata blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeCost {
    pub bytes: u64,
    /// Of another change in the same transaction group: it finds some of them dirty.
    pub bytes_again: u64,
    /// However many changes there are in one transaction group, they dirty no more.
    pub bytes_max: u64,
}

impl ChangeCost {
    /// What one more change needs when the group has reserved so much already.
    pub fn missing(&self, reserved: u64) -> u64 {
        let again = self.bytes_again.min(self.bytes_max.saturating_sub(reserved));
        again.max(self.bytes.saturating_sub(reserved))
    }

    /// Of so many changes.
    pub fn of_many(&self, changes: u64) -> u64 {
        let again = self.bytes_again.saturating_mul(changes.saturating_sub(1));
        self.bytes.saturating_add(again).min(self.bytes_max)
    }

    /// Another change in the same transaction group dirties the same blocks.
    fn once(bytes: u64) -> Self {
        ChangeCost { bytes, bytes_again: bytes, bytes_max: bytes }
    }
}

/// A block of slots grows by so much in one change.
const GROWTH_BYTES: u64 = 512;
/// By which others may grow it between the reservation and the change.
const GROWTH_OF_OTHERS: u64 = 8 << 10;
/// Of a fat ZAP, and of a block of pointers.
const FAT_BLOCK_BYTES: u64 = 16 << 10;
/// Pointers in a block of them.
const POINTERS: u64 = 128;
/// A leaf that splits and its new neighbour (or its sibling, when they merge), the header, one block of the pointer table and two of the
/// table that will replace it, and blocks of pointers above them.
const FAT_CHANGE_BLOCKS: u64 = 8;
/// Two leaves, and a block of pointers above them.
const FAT_CHANGE_BLOCKS_AGAIN: u64 = 3;
/// Chunks of a leaf of 16 KiB, and how many an entry takes there at most for each 64 bytes of its slot.
const LEAF_CHUNKS: u64 = 638;
const LEAF_CHUNKS_OF_A_SLOT: u64 = 5;
/// Bytes of the slots there are.
const SLOT_BYTES: [u64; 3] = [64, 128, 256];
/// Of a tiny slot, beside words and name: differentiator and NUL.
const TINY_BYTES_BESIDE: usize = 5;
/// The longest name in a slot of the smallest kind.
const MICRO_NAME_BYTES_MAX: usize = 49;
/// Entries that are in memory at once while all are shown.
const EACH_STEP: usize = 64;
/// Block size of an object that will be a ZAP.
pub const BLOCK_BYTES_FIRST: u32 = 512;
