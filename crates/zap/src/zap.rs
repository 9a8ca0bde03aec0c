//! One ZAP: which kind it is now, and what is remembered about it.

use crate::check::{self, Report};
use crate::convert;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::{self, Entry, Mode, header::Geometry};
use crate::hash::{Flags, HashBits};
use crate::index::{Index, Indexed};
use crate::key::{Key, KeyRef, LONG_NAME_BYTES_MAX, NAME_BYTES_MAX};
use crate::micro::{self, BlockKind, Micro};
use crate::store::{Store, edit};
use crate::value::{VALUE_BYTES_MAX, Value, ValueRef};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrane_wire::Corrupt;

/// How a ZAP is made, and how it may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZapOptions {
    /// Starts every hash; not 0, constant for the ZAP's life. Only used when it is created.
    pub salt: u64,
    /// Bytes beyond which a micro ZAP becomes fat; counts in steps of 512, up to 1 MiB.
    pub micro_max_bytes: usize,
    /// A fat ZAP's blocks have 2 to this power bytes, 9..=20. Only used when it becomes fat.
    pub fat_block_shift: u32,
    /// With any flag the ZAP is fat from the beginning. Only used when it is created.
    pub flags: Flags,
    /// Bytes of a name with its NUL: 256, or up to 1024 in a directory with long names.
    pub name_bytes_max: usize,
}

impl ZapOptions {
    /// The defaults, as OpenZFS has them: micro up to 128 KiB, then fat in blocks of 16 KiB.
    pub fn new(salt: u64) -> Self {
        ZapOptions {
            salt,
            micro_max_bytes: 131_072,
            fat_block_shift: 14,
            flags: Flags::NONE,
            name_bytes_max: NAME_BYTES_MAX,
        }
    }

    fn judge(&self) -> Result<(), Error<Corrupt>> {
        let shifts = fat::header::BLOCK_SHIFT_MIN..=fat::header::BLOCK_SHIFT_MAX;
        if !shifts.contains(&self.fat_block_shift) {
            return Err(Error::Options { what: "fat_block_shift should be 9 to 20" });
        }
        Ok(())
    }
}

/// The kind a ZAP has at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No block was ever written. The first name to be added creates it.
    Nothing,
    Micro,
    Fat,
}

/// What is kept in memory about one ZAP, beside its store.
///
/// Lookups and lists take `&self` and may run at once; changes take `&mut self` and must be the only ones. The
/// same `Zap` must be used for all changes of its object, or [`forget_index`](Zap::forget_index) be called
/// after others: everything that is remembered here can be forgotten at any time, at the cost of building it again.
#[derive(Debug)]
pub struct Zap {
    options: ZapOptions,
    index: OnceLock<Index>,
    /// Slots looked at by lookups that went without an index.
    slots_scanned: AtomicUsize,
    /// Where the search for a free slot begins.
    slot_hint: usize,
}

/// A micro ZAP of so few slots is searched faster than a name is hashed.
const SLOTS_NEVER_INDEXED: usize = 15;
/// To index a slot costs as much as to look at it this many times: lookups build the index when they have cost that.
const SCANS_WORTH_AN_INDEX: usize = 8;
/// Chunks an entry of a micro ZAP takes in a leaf, at most: itself, three for 50 bytes of name, one for a `u64`.
const MICRO_ENTRY_CHUNKS: usize = 5;

impl Zap {
    /// A ZAP to be read, or to be changed by the default options. One that was never created has to be opened by
    /// [`open_with`](Zap::open_with) or made by [`create`](Zap::create) before a name can be added.
    pub fn open<S: Store + ?Sized>(store: &S) -> Result<Zap, Error<S::Error>> {
        Self::open_with(store, ZapOptions::new(0))
    }

    /// Judges the header; refuses by name what this version does not read.
    pub fn open_with<S: Store + ?Sized>(store: &S, options: ZapOptions) -> Result<Zap, Error<S::Error>> {
        options.judge().map_err(Error::lift)?;
        let zap = Zap { options, index: OnceLock::new(), slots_scanned: AtomicUsize::new(0), slot_hint: 0 };
        if zap.kind(store)? != Kind::Nothing {
            let block_0 = store.read(0)?;
            match micro::block_kind(&block_0).map_err(Error::lift)? {
                BlockKind::Micro => drop(Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?),
                BlockKind::Fat => drop(fat::header(store)?),
            }
        }
        Ok(zap)
    }

    /// Writes an empty ZAP into an object without blocks.
    pub fn create<S: Store + ?Sized>(store: &mut S, options: ZapOptions) -> Result<Zap, Error<S::Error>> {
        if store.block_count() != 0 {
            return Err(Error::Options { what: "the object should have no block" });
        }
        let zap = Self::open_with(store, options)?;
        zap.write_empty(store)?;
        Ok(zap)
    }

    fn write_empty<S: Store + ?Sized>(&self, store: &mut S) -> Result<(), Error<S::Error>> {
        let options = self.options;
        if options.salt == 0 {
            return Err(Error::Options { what: "salt should not be 0" });
        }
        Flags::parse(options.flags.to_u64()).map_err(Error::lift)?;
        if options.flags != Flags::NONE {
            store.set_block_size(1 << options.fat_block_shift)?;
            return fat::create(store, options.salt, options.flags);
        }
        store.set_block_size(micro::GROWTH_BYTES)?;
        edit(store, 0, |raw| {
            micro::init(raw, options.salt);
            Ok(())
        })?;
        Ok(())
    }

    pub fn options(&self) -> &ZapOptions {
        &self.options
    }

    pub fn kind<S: Store + ?Sized>(&self, store: &S) -> Result<Kind, Error<S::Error>> {
        if store.block_count() == 0 {
            return Ok(Kind::Nothing);
        }
        match micro::block_kind(&store.read(0)?).map_err(Error::lift)? {
            BlockKind::Micro => Ok(Kind::Micro),
            BlockKind::Fat => Ok(Kind::Fat),
        }
    }

    /// How many bits of a hash count: what a serialised cursor of this ZAP depends on.
    pub fn hash_bits<S: Store + ?Sized>(&self, store: &S) -> Result<HashBits, Error<S::Error>> {
        match self.kind(store)? {
            Kind::Fat => Ok(fat::header(store)?.hash_bits()),
            Kind::Micro => Ok(HashBits::Bits28),
            Kind::Nothing => Ok(self.options.flags.hash_bits()),
        }
    }

    /// Drops what was remembered: because memory is wanted, or because the object changed behind our back.
    pub fn forget_index(&mut self) {
        self.index = OnceLock::new();
        self.slots_scanned = AtomicUsize::new(0);
        self.slot_hint = 0;
    }

    /// Bytes of memory the index takes.
    pub fn index_bytes(&self) -> usize {
        self.index.get().map_or(0, |index| index.len() * 8)
    }

    pub fn lookup<'k, S: Store + ?Sized>(
        &self,
        store: &S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<Option<Value>, Error<S::Error>> {
        let key = key.into();
        self.find(store, key, |value| Ok(Value::U64(value)), |block_0| fat::lookup(store, block_0, key))
    }

    /// The first integer of the value, widened: a directory entry's object and type, whatever follows it.
    pub fn lookup_u64<'k, S: Store + ?Sized>(
        &self,
        store: &S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<Option<u64>, Error<S::Error>> {
        let key = key.into();
        self.find(store, key, Ok, |block_0| fat::lookup_u64(store, block_0, key))
    }

    /// Integer size and number of integers of the value.
    pub fn length<'k, S: Store + ?Sized>(
        &self,
        store: &S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<Option<(u8, usize)>, Error<S::Error>> {
        let key = key.into();
        self.find(store, key, |_| Ok((8, 1)), |block_0| fat::length(store, block_0, key))
    }

    fn find<S: Store + ?Sized, T>(
        &self,
        store: &S,
        key: KeyRef<'_>,
        micro: impl FnOnce(u64) -> Result<T, Error<S::Error>>,
        fat: impl FnOnce(&[u8]) -> Result<Option<T>, Error<S::Error>>,
    ) -> Result<Option<T>, Error<S::Error>> {
        if store.block_count() == 0 {
            return Ok(None);
        }
        let block_0 = store.read(0)?;
        let kind = micro::block_kind(&block_0).map_err(Error::lift)?;
        let flags = match kind {
            BlockKind::Micro => Flags::NONE,
            BlockKind::Fat => {
                fat::header::Header::parse(&block_0, store.block_count()).map_err(Error::lift)?.flags
            }
        };
        match key.fits(flags, LONG_NAME_BYTES_MAX) {
            Ok(()) => {}
            // What cannot be stored is not there.
            Err(Error::NameInvalid | Error::NameTooLong { .. }) => return Ok(None),
            Err(other) => return Err(other.lift()),
        }
        match (kind, key) {
            (BlockKind::Fat, _) => fat(&block_0),
            (BlockKind::Micro, KeyRef::Name(name)) => {
                let parsed = Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?;
                self.find_micro(&parsed, name).map_err(Error::damage)?.map(micro).transpose()
            }
            (BlockKind::Micro, KeyRef::U64s(_)) => Ok(None),
        }
    }

    fn find_micro(&self, micro: &Micro<'_>, name: &[u8]) -> Result<Option<u64>, Corrupt> {
        if name.len() > micro::NAME_BYTES_MAX {
            return Ok(None);
        }
        if self.index.get().is_none() {
            let slots = micro.slot_count();
            let scanned = match slots <= SLOTS_NEVER_INDEXED {
                true => 0,
                false => self.slots_scanned.fetch_add(slots, Ordering::Relaxed),
            };
            if scanned < slots.saturating_mul(SCANS_WORTH_AN_INDEX) {
                return Ok(micro.scan(name).map(|slot| slot.value));
            }
        }
        let index = self.index_of(micro)?;
        Ok(find_indexed(micro, index, name)?.map(|(_, value)| value))
    }

    /// The index, built if it is not there.
    fn index_of(&self, micro: &Micro<'_>) -> Result<&Index, Corrupt> {
        match self.index.get() {
            Some(index) => Ok(index),
            None => {
                let built = Index::build(micro)?;
                Ok(self.index.get_or_init(|| built))
            }
        }
    }

    /// Adds a name with `u64`s; [`Error::Exists`] if it is there.
    pub fn add<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
        value: &[u64],
    ) -> Result<(), Error<S::Error>> {
        self.add_ints(store, key, ValueRef::U64s(value))
    }

    /// Adds a name with integers of any size; [`Error::Exists`] if it is there.
    pub fn add_ints<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<(), Error<S::Error>> {
        self.put(store, key.into(), value, Mode::Add).map(drop)
    }

    /// Adds a name, or gives it another value; says whether the name is new.
    pub fn update<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
        value: &[u64],
    ) -> Result<bool, Error<S::Error>> {
        self.update_ints(store, key, ValueRef::U64s(value))
    }

    /// [`update`](Zap::update) with integers of any size.
    pub fn update_ints<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<bool, Error<S::Error>> {
        self.put(store, key.into(), value, Mode::Update)
    }

    fn put<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: KeyRef<'_>,
        value: ValueRef<'_>,
        mode: Mode,
    ) -> Result<bool, Error<S::Error>> {
        let bytes = value.stored_len();
        if bytes > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLong { bytes, bytes_max: VALUE_BYTES_MAX });
        }
        let kind = self.kind(store)?;
        let flags = match kind {
            Kind::Nothing => self.options.flags,
            Kind::Micro => Flags::NONE,
            Kind::Fat => fat::header(store)?.flags,
        };
        key.fits(flags, self.options.name_bytes_max).map_err(Error::lift)?;
        if kind == Kind::Nothing {
            self.forget_index();
            self.write_empty(store)?;
        }
        match key {
            KeyRef::Name(name) if self.kind(store)? == Kind::Micro => {
                let outcome = self.put_micro(store, name, value, mode);
                if matches!(outcome, Err(Error::Store(_))) {
                    self.forget_index();
                }
                outcome
            }
            _ => fat::put(store, key, value, mode),
        }
    }

    fn put_micro<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        name: &[u8],
        value: ValueRef<'_>,
        mode: Mode,
    ) -> Result<bool, Error<S::Error>> {
        let block_0 = store.read(0)?;
        let parsed = Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?;
        let (bytes, slots) = (block_0.len(), parsed.slot_count());
        let index = self.index_of(&parsed).map_err(Error::damage)?;
        let found = find_indexed(&parsed, index, name).map_err(Error::damage)?.map(|(indexed, _)| indexed);
        // Before anything grows: a name that is refused changes nothing.
        if found.is_some() && mode == Mode::Add {
            return Err(Error::Exists);
        }
        let hash = Flags::NONE.hash(parsed.salt, KeyRef::Name(name));
        let colliders = index.colliders(hash).count();
        let chunks_max = Geometry { block_shift: self.options.fat_block_shift }.chunks();
        let fits = match value.single_u64() {
            // All that collide must fit one leaf if the ZAP becomes fat later. The reference forgets to ask when
            // a name is added by an update.
            Some(value) if name.len() <= micro::NAME_BYTES_MAX => {
                (found.is_some() || (colliders + 1) * MICRO_ENTRY_CHUNKS < chunks_max).then_some(value)
            }
            _ => None,
        };
        // Also when the name is there already and no slot is wanted: so does the reference, and bytes depend on it.
        let is_full = index.len() >= slots;
        let grown = if is_full { bytes + micro::GROWTH_BYTES } else { bytes };
        let Some(value_u64) = fits.filter(|_| grown <= self.micro_max_bytes() || !is_full) else {
            let chunks =
                1 + fat::leaf::array_chunks(name.len() + 1) + fat::leaf::array_chunks(value.stored_len());
            if chunks > chunks_max {
                return Err(Error::EntryTooLarge { chunks, chunks_max });
            }
            drop(block_0);
            convert::micro_to_fat(store, index, self.options.fat_block_shift)?;
            self.forget_index();
            return fat::put(store, KeyRef::Name(name), value, mode);
        };
        let new_slot = match found {
            Some(_) => None,
            None if is_full => Some(slots),
            None => parsed.free_slot(self.slot_hint),
        };
        let cd = index.lowest_cd(hash);
        drop(block_0);
        if is_full {
            store.set_block_size(grown)?;
        }
        let slot = match (found, new_slot) {
            (Some(indexed), _) => {
                let slot = usize::from(indexed.slot);
                edit(store, 0, |raw| {
                    micro::put_value(raw, slot, value_u64);
                    Ok(())
                })?;
                return Ok(false);
            }
            (None, Some(slot)) => slot,
            (None, None) => {
                let damage = Corrupt::new("block 0", "free slots", "some, by the index", "none");
                return Err(Error::damage(damage));
            }
        };
        edit(store, 0, |raw| {
            micro::put_slot(raw, slot, name, cd, value_u64);
            Ok(())
        })?;
        self.slot_hint = if slot + 1 >= micro::slot_count(grown) { 0 } else { slot + 1 };
        if let (Some(index), Ok(cd), Ok(slot)) =
            (self.index.get_mut(), u16::try_from(cd), u16::try_from(slot))
        {
            index.insert(hash, cd, slot);
        }
        Ok(true)
    }

    fn micro_max_bytes(&self) -> usize {
        let max = self.options.micro_max_bytes.min(micro::BYTES_LIMIT);
        max.next_multiple_of(micro::GROWTH_BYTES)
    }

    /// Whether the name was there.
    pub fn remove<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<bool, Error<S::Error>> {
        let key = key.into();
        let flags = match self.kind(store)? {
            Kind::Nothing => return Ok(false),
            Kind::Micro => Flags::NONE,
            Kind::Fat => fat::header(store)?.flags,
        };
        match key.fits(flags, LONG_NAME_BYTES_MAX) {
            Ok(()) => {}
            Err(Error::NameInvalid | Error::NameTooLong { .. }) => return Ok(false),
            Err(other) => return Err(other.lift()),
        }
        match key {
            KeyRef::Name(name) if self.kind(store)? == Kind::Micro => self.remove_micro(store, name),
            _ => fat::remove(store, key),
        }
    }

    fn remove_micro<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        name: &[u8],
    ) -> Result<bool, Error<S::Error>> {
        let block_0 = store.read(0)?;
        let parsed = Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?;
        let index = self.index_of(&parsed).map_err(Error::damage)?;
        let Some((indexed, _)) = find_indexed(&parsed, index, name).map_err(Error::damage)? else {
            return Ok(false);
        };
        drop(block_0);
        edit(store, 0, |raw| {
            micro::clear_slot(raw, usize::from(indexed.slot));
            Ok(())
        })?;
        if let Some(index) = self.index.get_mut() {
            index.remove(indexed);
        }
        Ok(true)
    }

    /// Entries.
    pub fn len<S: Store + ?Sized>(&self, store: &S) -> Result<u64, Error<S::Error>> {
        match self.kind(store)? {
            Kind::Nothing => Ok(0),
            Kind::Fat => Ok(fat::header(store)?.num_entries),
            Kind::Micro => {
                let block_0 = store.read(0)?;
                let parsed = Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?;
                let counted = || parsed.slots().filter(|slot| !slot.is_free()).count();
                Ok(self.index.get().map_or_else(counted, Index::len) as u64)
            }
        }
    }

    pub fn is_empty<S: Store + ?Sized>(&self, store: &S) -> Result<bool, Error<S::Error>> {
        Ok(self.len(store)? == 0)
    }

    /// The first entry at or after the cursor, and the cursor past it.
    pub fn next<S: Store + ?Sized>(
        &self,
        store: &S,
        from: Cursor,
    ) -> Result<Option<(Entry, Cursor)>, Error<S::Error>> {
        let first = match self.kind(store)? {
            Kind::Fat => fat::next(store, from)?,
            _ => self.list(store, from, 1)?.pop(),
        };
        Ok(first.map(|entry| {
            let after = entry.cursor_after();
            (entry, after)
        }))
    }

    /// Up to `max` entries from the cursor on, in the order of (hash, differentiator); go on at the last one's
    /// [`cursor_after`](Entry::cursor_after). Fewer than `max` entries are all there are.
    pub fn list<S: Store + ?Sized>(
        &self,
        store: &S,
        from: Cursor,
        max: usize,
    ) -> Result<Vec<Entry>, Error<S::Error>> {
        match self.kind(store)? {
            Kind::Nothing => Ok(Vec::new()),
            Kind::Fat => fat::list(store, from, max),
            Kind::Micro => {
                let block_0 = store.read(0)?;
                let parsed = Micro::parse(&block_0, store.block_count()).map_err(Error::lift)?;
                let index = self.index_of(&parsed).map_err(Error::damage)?;
                let place = |i: &Indexed| (i.hash, u32::from(i.cd));
                let wanted = index.from(from.hash, 0).skip_while(|i| place(i) < (from.hash, from.cd));
                let wanted = wanted.take(if from.is_end() { 0 } else { max });
                wanted.map(|i| read_indexed(&parsed, i)).collect::<Result<_, _>>().map_err(Error::damage)
            }
        }
    }

    /// Reads the whole ZAP and judges everything that must hold of it. Fails only where the store does.
    pub fn check<S: Store + ?Sized>(&self, store: &S) -> Result<Report, Error<S::Error>> {
        check::check(store, self.index.get())
    }
}

fn find_indexed(micro: &Micro<'_>, index: &Index, name: &[u8]) -> Result<Option<(Indexed, u64)>, Corrupt> {
    let hash = Flags::NONE.hash(micro.salt, KeyRef::Name(name));
    for indexed in index.colliders(hash) {
        let slot = micro.indexed_slot(indexed.slot)?;
        if slot.is_named(name) {
            return Ok(Some((indexed, slot.value)));
        }
    }
    Ok(None)
}

fn read_indexed(micro: &Micro<'_>, indexed: Indexed) -> Result<Entry, Corrupt> {
    let slot = micro.indexed_slot(indexed.slot)?;
    let key = Key::Name(slot.name().to_vec());
    Ok(Entry { key, value: Value::U64(slot.value), hash: indexed.hash, cd: slot.cd })
}
