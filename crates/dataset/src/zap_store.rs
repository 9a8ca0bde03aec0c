//! A ZAP in an object.
//!
//! `terrane_zap` knows blocks and no transactions; `terrane_object` knows transactions and no names.
//! [`ObjectStore`] puts one on the other, and [`ObjectZap`] keeps an object together with the state its ZAP has
//! in memory.
//!
//! Invariant: the state of an `ObjectZap` describes the object's blocks, unless a change failed half way; then
//! it is thrown away and read afresh before the next use.

use std::sync::{Arc, OnceLock};
use terrane_object::{Object, ObjectError, ObjectSet, Tx};
use terrane_zap::{Cursor, Entry, Prepared, Store, Value, ValueRef, Visited, Zap, ZapOptions};

/// What a ZAP in an object can answer.
pub type ZapError = terrane_zap::Error<ObjectError>;

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
    /// Filled by the first use, emptied by a change that failed.
    zap: OnceLock<Zap>,
    /// For an object to which nothing was written yet.
    salt: u64,
}

impl ObjectZap {
    /// Takes an object whose blocks are a ZAP, or which has none yet; reads nothing before the first use.
    pub fn new(set: &ObjectSet, object: Arc<Object>) -> Self {
        // Bit 0 keeps the salt from being 0, which means that there is none.
        ObjectZap { object, zap: OnceLock::new(), salt: set.random_u64() | 1 }
    }

    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    fn zap(&self) -> Result<&Zap, ZapError> {
        if let Some(zap) = self.zap.get() {
            return Ok(zap);
        }
        let opened = Zap::open_with(&ObjectStore::reader(&self.object), ZapOptions::new(self.salt))?;
        // Two readers may both come here: they opened the same bytes.
        Ok(self.zap.get_or_init(|| opened))
    }

    pub fn lookup(&self, name: &[u8]) -> Result<Option<Value>, ZapError> {
        self.zap()?.lookup(&ObjectStore::reader(&self.object), name)
    }

    /// The entry's first integer.
    pub fn lookup_u64(&self, name: &[u8]) -> Result<Option<u64>, ZapError> {
        self.zap()?.lookup_u64(&ObjectStore::reader(&self.object), name)
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

    /// All entries. For ZAPs that we fill ourselves with a few of them.
    pub fn entries(&self) -> Result<Vec<Entry>, ZapError> {
        self.list(Cursor::START, usize::MAX)
    }

    /// Refuses a name that is there.
    pub fn add(&mut self, tx: &Tx, name: &[u8], value: ValueRef<'_>) -> Result<(), ZapError> {
        self.change(tx, |zap, store| zap.add_ints(store, name, value))
    }

    pub fn add_u64(&mut self, tx: &Tx, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.add(tx, name, ValueRef::U64s(&[value]))
    }

    /// Replaces the value, or adds the name.
    pub fn update_u64(&mut self, tx: &Tx, name: &[u8], value: u64) -> Result<(), ZapError> {
        self.change(tx, |zap, store| zap.update(store, name, &[value])).map(drop)
    }

    /// False: there was no such name. A ZAP that lost its last name has no block any more.
    pub fn remove(&mut self, tx: &Tx, name: &[u8]) -> Result<bool, ZapError> {
        let removed = self.change(tx, |zap, store| zap.remove(store, name))?;
        if removed && self.is_empty()? {
            self.object.truncate(tx, 0)?;
            self.object.set_block_size(tx, BLOCK_BYTES_FIRST)?;
            self.zap = OnceLock::new();
        }
        Ok(removed)
    }

    fn change<T>(
        &mut self,
        tx: &Tx,
        change: impl FnOnce(&mut Zap, &mut ObjectStore<'_>) -> Result<T, ZapError>,
    ) -> Result<T, ZapError> {
        self.zap()?;
        let mut zap = self.zap.take().expect("it was filled one line above");
        let outcome = change(&mut zap, &mut ObjectStore::writer(&self.object, tx));
        if !matches!(outcome, Err(ZapError::Store(_))) {
            self.zap = OnceLock::from(zap);
        }
        outcome
    }

    /// Bytes of memory that the index of a micro ZAP takes; 0 while it has none.
    pub fn index_bytes(&self) -> usize {
        self.zap.get().map_or(0, Zap::index_bytes)
    }

    /// Upper bounds of what one added, replaced or removed name dirties.
    pub fn change_cost(&self) -> ChangeCost {
        let block = u64::from(self.object.block_size());
        match self.object.block_count() {
            // Micro, which grows by 512 bytes at a time until it becomes fat, leaf by leaf.
            0 | 1 if block + GROWTH_BYTES <= MICRO_BYTES_MAX => {
                let blocks = (block + GROWTH_BYTES).div_ceil(META_BLOCK_BYTES);
                ChangeCost { meta_blocks: u32::try_from(blocks).unwrap_or(u32::MAX), repeats_are_free: true }
            }
            0 | 1 => ChangeCost { meta_blocks: 24, repeats_are_free: false },
            // A leaf that splits, its neighbour, the header, the pointer table, and two blocks above them.
            _ => ChangeCost { meta_blocks: 6, repeats_are_free: false },
        }
    }
}

/// What changing one name costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeCost {
    /// In units of 16 KiB.
    pub meta_blocks: u32,
    /// Another change in the same transaction group dirties the same blocks.
    pub repeats_are_free: bool,
}

/// A micro ZAP's growth in one change.
const GROWTH_BYTES: u64 = 512;
/// Unit of [`ChangeCost::meta_blocks`].
const META_BLOCK_BYTES: u64 = 16 << 10;
/// Block size of an object that will be a ZAP.
pub const BLOCK_BYTES_FIRST: u32 = 512;
/// A micro ZAP that would outgrow this becomes fat.
const MICRO_BYTES_MAX: u64 = 128 << 10;
