//! One ZAP: its current kind, and all operations on it.

mod swapped;

use crate::check::{self, Report};
use crate::convert;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::leaf::array_chunks;
use crate::fat::{
    self, Entry, Mode, VisitedEntry,
    header::{Geometry, Header},
};
use crate::hash::{Flags, HashBits};
use crate::index::Index;
use crate::key::{KeyRef, LONG_NAME_BYTES_MAX};
use crate::norm::NormFlags;
use crate::options::ZapOptions;
use crate::shrink_trigger::ShrinkTrigger;
use crate::slot_cache::{PutOutcome, SlotCache};
use crate::slots::{self, BlockKind, Shape, Slot, Slots};
use crate::statistics::{self, Statistics};
use crate::store::{FirstBlock, Store, edit};
use crate::value::{VALUE_BYTES_MAX, Value, ValueRef, ValueShape};
use std::fmt;
use swapped::{ByteOrder, delegate_to_copy};
use terrane_wire::Corrupt;

/// The current kind of a ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No block was ever written. The first added name creates the ZAP.
    Nothing,
    /// One block of 64-byte slots, each with one word and a name of at most 49 bytes.
    Micro,
    /// One block of larger slots, or of 64-byte slots with more words.
    Tiny {
        /// Size of each slot in bytes: 64, 128 or 256.
        chunk_bytes: u16,
        /// Words per value: 2 to 7 in 64 bytes, 1 to 15 in 128, 1 to 31 in 256.
        value_ints: u8,
    },
    /// An extendible hash table: a header, a pointer table and leaves.
    Fat,
}

impl Kind {
    fn of(shape: Shape) -> Kind {
        match (u16::try_from(shape.chunk_bytes()), u8::try_from(shape.value_ints())) {
            (Ok(chunk_bytes), Ok(value_ints)) if !shape.is_micro() => Kind::Tiny { chunk_bytes, value_ints },
            _ => Kind::Micro,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Nothing => write!(f, "Nothing"),
            Kind::Micro => write!(f, "Micro"),
            Kind::Tiny { chunk_bytes, value_ints } => {
                write!(f, "Tiny ({chunk_bytes}-byte slots, words: {value_ints})")
            }
            Kind::Fat => write!(f, "Fat"),
        }
    }
}

/// Where an operation finds the entries, by block 0.
enum Layout {
    Unwritten,
    Slots,
    Fat(Header),
}

impl Layout {
    fn of(first: Option<&FirstBlock>) -> Result<Layout, Error<Corrupt>> {
        let Some((block_0, block_count)) = first else { return Ok(Layout::Unwritten) };
        Ok(match slots::block_kind(block_0)? {
            BlockKind::Slots => Layout::Slots,
            BlockKind::Fat => Layout::Fat(Header::parse(block_0, *block_count)?),
        })
    }
}

/// The in-memory state of one ZAP, beside its store.
///
/// Lookups and lists take `&self` and may run concurrently; a change takes `&mut self`, so it runs alone. All changes
/// of an object must go through one `Zap`. After any other change [`drop_state`](Zap::drop_state) must be called.
/// All that is kept here can be dropped at any time, at the cost of building it again.
#[derive(Debug)]
pub struct Zap {
    pub(crate) options: ZapOptions,
    pub(crate) slot_cache: SlotCache,
    pub(crate) shrink_trigger: ShrinkTrigger,
    pub(crate) byte_order: ByteOrder,
}

impl Zap {
    /// Opens a ZAP to be read, or to be changed with the default options. An object without blocks must be opened by
    /// [`open_with`](Zap::open_with) or made by [`create`](Zap::create) before a name can be added.
    pub fn open<S: Store + ?Sized>(store: &S) -> Result<Zap, Error<S::Error>> {
        Self::open_with(store, ZapOptions::new(0))
    }

    /// Validates the header, and names what this version does not read.
    pub fn open_with<S: Store + ?Sized>(store: &S, options: ZapOptions) -> Result<Zap, Error<S::Error>> {
        options.validate().map_err(Error::lift)?;
        let mut zap = Zap {
            options,
            slot_cache: SlotCache::default(),
            shrink_trigger: ShrinkTrigger::default(),
            byte_order: ByteOrder::default(),
        };
        if store.block_count() != 0 {
            zap.byte_order = ByteOrder::of(&store.read(0)?);
            // Validates the header.
            if zap.kind(store)? == Kind::Fat {
                zap.layout(store)?;
            }
        }
        Ok(zap)
    }

    /// Writes an empty ZAP into an object without blocks.
    pub fn create<S: Store + ?Sized>(store: &mut S, options: ZapOptions) -> Result<Zap, Error<S::Error>> {
        if store.block_count() != 0 {
            return Err(Error::Refused { what: "the object already has blocks" });
        }
        let zap = Self::open_with(store, options)?;
        zap.write_empty(store)?;
        Ok(zap)
    }

    fn write_empty<S: Store + ?Sized>(&self, store: &mut S) -> Result<(), Error<S::Error>> {
        let options = self.options;
        if options.salt == 0 {
            return Err(Error::Refused { what: "salt is 0" });
        }
        Flags::parse(options.flags.to_u64()).map_err(Error::lift)?;
        if options.flags.has(Flags::UINT64_KEY) && !options.norm.is_none() {
            return Err(Error::Refused { what: "word keys cannot be normalized" });
        }
        if options.flags != Flags::NONE {
            store.set_block_size(1 << options.fat_block_shift)?;
            return fat::create(store, options.salt, options.flags, options.norm);
        }
        store.set_block_size(slots::GROWTH_BYTES)?;
        edit(store, 0, |raw| {
            slots::init(raw, options.salt, options.norm, Shape::MICRO);
            Ok(())
        })?;
        Ok(())
    }

    /// Changes how far a block of slots may grow, and whether it may be tiny. Existing entries stay as they are.
    pub fn allow_growth(&mut self, options: &ZapOptions) {
        self.options.micro_max_bytes = options.micro_max_bytes;
        self.options.tiny = options.tiny;
    }

    /// The options given at open or creation, with the limits of the last [`allow_growth`](Zap::allow_growth). An
    /// existing ZAP's salt, flags and normalization are those of its header, not these.
    pub fn options(&self) -> &ZapOptions {
        &self.options
    }

    /// The current kind, by block 0.
    pub fn kind<S: Store + ?Sized>(&self, store: &S) -> Result<Kind, Error<S::Error>> {
        delegate_to_copy!(self, store, kind());
        if store.block_count() == 0 {
            return Ok(Kind::Nothing);
        }
        let block_0 = store.read(0)?;
        match slots::block_kind(&block_0).map_err(Error::lift)? {
            BlockKind::Slots => Ok(Kind::of(slots_of(&block_0, store)?.shape)),
            BlockKind::Fat => Ok(Kind::Fat),
        }
    }

    fn layout<S: Store + ?Sized>(&self, store: &S) -> Result<Layout, Error<S::Error>> {
        delegate_to_copy!(self, store, layout());
        Layout::of(store.first_block()?.as_ref()).map_err(Error::lift)
    }

    /// The hash of a name; `None` if the object has no block.
    pub(crate) fn hash_of<S: Store + ?Sized>(
        &self,
        store: &S,
        name: &[u8],
    ) -> Result<Option<u64>, Error<S::Error>> {
        delegate_to_copy!(self, store, hash_of(name));
        if store.block_count() == 0 {
            return Ok(None);
        }
        let block_0 = store.read(0)?;
        match slots::block_kind(&block_0).map_err(Error::lift)? {
            BlockKind::Slots => Ok(Some(slots_of(&block_0, store)?.hash(name))),
            BlockKind::Fat => Ok(Some(fat::header(store)?.hash(KeyRef::Name(name)))),
        }
    }

    /// Which keys the ZAP takes.
    fn flags_of(&self, layout: &Layout) -> Flags {
        match layout {
            Layout::Unwritten => self.options.flags,
            Layout::Slots => Flags::NONE,
            Layout::Fat(header) => header.flags,
        }
    }

    /// Which keys the ZAP takes, and how they are hashed.
    pub fn flags<S: Store + ?Sized>(&self, store: &S) -> Result<Flags, Error<S::Error>> {
        Ok(self.flags_of(&self.layout(store)?))
    }

    /// How many bits of a hash count. A serialised cursor of this ZAP depends on it.
    pub fn hash_bits<S: Store + ?Sized>(&self, store: &S) -> Result<HashBits, Error<S::Error>> {
        Ok(self.flags(store)?.hash_bits())
    }

    /// Drops all state in memory: to free memory, or because the object was changed by other means.
    pub fn drop_state(&mut self) {
        self.slot_cache = SlotCache::default();
        self.shrink_trigger.invalidate_plans();
        self.byte_order.drop_copy();
    }

    /// Drops the index and the copy, which are large and quickly rebuilt: to free memory.
    pub fn drop_index(&mut self) {
        self.slot_cache.drop_index();
        self.byte_order.drop_copy();
    }

    /// Ends a listing: an index that served only listings is dropped.
    pub fn end_listing(&mut self) {
        self.slot_cache.end_listing();
    }

    /// Memory of the index in bytes.
    pub fn index_bytes(&self) -> usize {
        self.slot_cache.index().map_or(0, Index::bytes)
    }

    /// The value of a key; `None` if the key does not exist or could not be stored.
    pub fn lookup<'k, S: Store + ?Sized>(
        &self,
        store: &S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<Option<Value>, Error<S::Error>> {
        let key = key.into();
        delegate_to_copy!(self, store, lookup(key));
        self.find(store, key, |slot| slot.value(), |at| fat::lookup(store, at, key))
    }

    /// The first integer of the value, widened: the object and type of a directory entry. Other integers may follow
    /// it.
    pub fn lookup_u64<'k, S: Store + ?Sized>(
        &self,
        store: &S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<Option<u64>, Error<S::Error>> {
        let key = key.into();
        delegate_to_copy!(self, store, lookup_u64(key));
        self.find(store, key, |slot| slot.first_word(), |at| fat::lookup_u64(store, at, key))
    }

    /// The width and the count of the value's integers.
    pub fn shape<'k, S: Store + ?Sized>(
        &self,
        store: &S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<Option<ValueShape>, Error<S::Error>> {
        let key = key.into();
        delegate_to_copy!(self, store, shape(key));
        let of_slot = |slot: Slot<'_>| ValueShape { int_size: 8, num_ints: slot.value_ints() };
        self.find(store, key, of_slot, |at| fat::shape(store, at, key))
    }

    fn find<S: Store + ?Sized, T>(
        &self,
        store: &S,
        key: KeyRef<'_>,
        take: impl FnOnce(Slot<'_>) -> T,
        fat: impl FnOnce((&Header, &[u8])) -> Result<Option<T>, Error<S::Error>>,
    ) -> Result<Option<T>, Error<S::Error>> {
        let Some((block_0, block_count)) = store.first_block()? else { return Ok(None) };
        match slots::block_kind(&block_0).map_err(Error::lift)? {
            BlockKind::Slots => {
                let parsed = Slots::parse(&block_0, block_count).map_err(Error::lift)?;
                match key {
                    KeyRef::Name(name) if may_contain(key, Flags::NONE)? => {
                        Ok(self.slot_cache.find(&parsed, name).map_err(Error::damage)?.map(take))
                    }
                    _ => Ok(None),
                }
            }
            BlockKind::Fat => {
                let header = Header::parse(&block_0, block_count).map_err(Error::lift)?;
                if may_contain(key, header.flags)? { fat((&header, &block_0)) } else { Ok(None) }
            }
        }
    }

    /// Adds a name with `u64`s; [`Error::Exists`] if the name exists.
    pub fn add<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
        value: &[u64],
    ) -> Result<(), Error<S::Error>> {
        self.add_ints(store, key, ValueRef::U64s(value))
    }

    /// Adds a name with integers of any width; [`Error::Exists`] if the name exists.
    pub fn add_ints<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
        value: ValueRef<'_>,
    ) -> Result<(), Error<S::Error>> {
        self.put(store, key.into(), value, Mode::Add).map(drop)
    }

    /// Adds a name, or replaces its value; returns whether the name is new.
    pub fn update<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
        value: &[u64],
    ) -> Result<bool, Error<S::Error>> {
        self.update_ints(store, key, ValueRef::U64s(value))
    }

    /// [`update`](Zap::update) with integers of any width.
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
        if self.byte_order.is_swapped {
            key.fits(self.flags_of(&self.layout(store)?), self.options.name_bytes_max)
                .map_err(Error::lift)?;
            self.convert_byte_order(store)?;
        }
        let mut first = store.first_block()?;
        let layout = Layout::of(first.as_ref()).map_err(Error::lift)?;
        let flags = self.flags_of(&layout);
        key.fits(flags, self.options.name_bytes_max).map_err(Error::lift)?;
        self.shrink_trigger.invalidate_plans();
        if first.is_none() {
            self.drop_state();
            self.write_empty(store)?;
            first = store.first_block()?;
        }
        let in_slots =
            matches!(layout, Layout::Slots) || matches!(layout, Layout::Unwritten) && flags == Flags::NONE;
        if let KeyRef::Name(name) = key
            && in_slots
            && let Some(first) = first.take()
        {
            return match self.slot_cache.put(store, first, &self.options, (name, value), mode)? {
                PutOutcome::Stored { is_new } => Ok(is_new),
                PutOutcome::Reshaped { is_new, entries } => {
                    self.shrink_trigger.reset(entries as u64);
                    Ok(is_new)
                }
                PutOutcome::NeedsFat => self.convert_to_fat(store, (key, value), mode),
            };
        }
        let stored = match (layout, first) {
            (Layout::Fat(header), Some((block_0, _))) => {
                fat::put_with(store, (header, block_0), (key, value), mode)?
            }
            _ => fat::put(store, key, value, mode)?,
        };
        if stored.is_reshaped {
            // All values may be of one width now.
            self.shrink_trigger.count_removal();
        }
        Ok(stored.is_new)
    }

    /// Converts slots to a fat ZAP to store an entry that slots cannot hold; returns whether its name is new.
    fn convert_to_fat<S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        (key, value): (KeyRef<'_>, ValueRef<'_>),
        mode: Mode,
    ) -> Result<bool, Error<S::Error>> {
        let chunks_max = Geometry { block_shift: self.options.fat_block_shift }.chunks();
        let chunks = 1 + array_chunks(key.stored_len()) + array_chunks(value.stored_len());
        if chunks > chunks_max {
            return Err(Error::EntryTooLarge { chunks, chunks_max });
        }
        let block_0 = store.read(0)?;
        let parsed = slots_of(&block_0, store)?;
        let form = (self.options.fat_block_shift, self.options.padding);
        let (built, is_new) = convert::to_fat(&parsed, form, (key, value), mode).map_err(Error::lift)?;
        self.shrink_trigger.reset(self.slot_cache.len(&parsed) as u64);
        drop(block_0);
        self.drop_state();
        convert::install(store, &built)?;
        Ok(is_new)
    }

    /// Removes a name; returns whether it existed.
    pub fn remove<'k, S: Store + ?Sized>(
        &mut self,
        store: &mut S,
        key: impl Into<KeyRef<'k>>,
    ) -> Result<bool, Error<S::Error>> {
        let key = key.into();
        self.convert_byte_order(store)?;
        let Some(first) = store.first_block()? else { return Ok(false) };
        let layout = Layout::of(Some(&first)).map_err(Error::lift)?;
        if !may_contain(key, self.flags_of(&layout))? {
            return Ok(false);
        }
        self.shrink_trigger.invalidate_plans();
        let removed = match (layout, key) {
            (Layout::Fat(header), _) => fat::remove(store, (header, first.0), key)?,
            (_, KeyRef::Name(name)) => self.slot_cache.remove(store, first, name)?,
            (_, KeyRef::U64s(_)) => false,
        };
        if removed {
            self.shrink_trigger.count_removal();
        }
        Ok(removed)
    }

    /// The number of entries.
    pub fn len<S: Store + ?Sized>(&self, store: &S) -> Result<u64, Error<S::Error>> {
        delegate_to_copy!(self, store, len());
        if let Some(index) = self.slot_cache.index() {
            return Ok(index.len() as u64);
        }
        let Some((block_0, block_count)) = store.first_block()? else { return Ok(0) };
        match slots::block_kind(&block_0).map_err(Error::lift)? {
            BlockKind::Fat => Ok(Header::parse(&block_0, block_count).map_err(Error::lift)?.num_entries),
            BlockKind::Slots => {
                let parsed = Slots::parse(&block_0, block_count).map_err(Error::lift)?;
                Ok(self.slot_cache.len(&parsed) as u64)
            }
        }
    }

    /// Whether there is no entry. A count of 0 is verified by the entries: a caller may destroy an empty directory
    /// with all that is in it.
    pub fn is_empty<S: Store + ?Sized>(&self, store: &S) -> Result<bool, Error<S::Error>> {
        Ok(self.len(store)? == 0 && self.next(store, Cursor::START)?.is_none())
    }

    /// The first entry at or after the cursor, and the cursor after it.
    pub fn next<S: Store + ?Sized>(
        &self,
        store: &S,
        from: Cursor,
    ) -> Result<Option<(Entry, Cursor)>, Error<S::Error>> {
        delegate_to_copy!(self, store, next(from));
        let first = match self.layout(store)? {
            Layout::Fat(Header { norm: NormFlags::NONE, .. }) => fat::next(store, from)?,
            _ => self.list(store, from, 1)?.pop(),
        };
        Ok(first.map(|entry| {
            let after = entry.cursor_after();
            (entry, after)
        }))
    }

    /// Up to `max` entries from the cursor on, in the order of (hash, differentiator). The next list starts at the
    /// last entry's [`cursor_after`](Entry::cursor_after). Fewer than `max` entries mean that no more follow.
    pub fn list<S: Store + ?Sized>(
        &self,
        store: &S,
        from: Cursor,
        max: usize,
    ) -> Result<Vec<Entry>, Error<S::Error>> {
        let (mut entries, norm) = self.list_unmarked(store, from, max)?;
        if !norm.is_none() {
            self.mark_conflicts(store, norm, &mut entries)?;
        }
        Ok(entries)
    }

    /// A listing that does not mark names in conflict, and how names are normalized.
    pub(crate) fn list_unmarked<S: Store + ?Sized>(
        &self,
        store: &S,
        from: Cursor,
        max: usize,
    ) -> Result<(Vec<Entry>, NormFlags), Error<S::Error>> {
        delegate_to_copy!(self, store, list_unmarked(from, max));
        match self.layout(store)? {
            Layout::Unwritten => Ok((Vec::new(), self.options.norm)),
            Layout::Fat(header) => Ok((fat::list(store, from, max)?, header.norm)),
            Layout::Slots => {
                let block_0 = store.read(0)?;
                let slots = slots_of(&block_0, store)?;
                let entries = self.slot_cache.list(&slots, from, max).map_err(Error::damage)?;
                Ok((entries, slots.norm))
            }
        }
    }

    /// Passes entries from the cursor on to `each`, in the order of [`list`](Zap::list), until it returns false.
    /// Nothing is allocated for an entry of a micro or tiny ZAP, and names in conflict are not marked. Returns true
    /// if the last entry was passed.
    pub fn visit<S: Store + ?Sized>(
        &self,
        store: &S,
        from: Cursor,
        each: &mut dyn FnMut(VisitedEntry<'_>) -> bool,
    ) -> Result<bool, Error<S::Error>> {
        delegate_to_copy!(self, store, visit(from, each));
        match self.layout(store)? {
            Layout::Unwritten => Ok(true),
            Layout::Fat(..) => fat::visit(store, from, each),
            Layout::Slots => {
                let block_0 = store.read(0)?;
                self.slot_cache.visit(&slots_of(&block_0, store)?, from, each).map_err(Error::damage)
            }
        }
    }

    /// Reads the whole ZAP and verifies all that must hold of it. Fails only if the store fails.
    pub fn check<S: Store + ?Sized>(&self, store: &S) -> Result<Report, Error<S::Error>> {
        delegate_to_copy!(self, store, check());
        check::check(store, self.slot_cache.index())
    }

    /// Reads the whole ZAP and counts what its blocks hold. Damage outside of block 0 is counted, not returned.
    pub fn statistics<S: Store + ?Sized>(&self, store: &S) -> Result<Statistics, Error<S::Error>> {
        delegate_to_copy!(self, store, statistics());
        statistics::statistics(store)
    }

    /// Whether the blocks are in the byte order of big-endian machines, as OpenZFS writes them there.
    pub fn has_swapped_bytes(&self) -> bool {
        self.byte_order.is_swapped
    }
}

fn slots_of<'a, S: Store + ?Sized>(block_0: &'a [u8], store: &S) -> Result<Slots<'a>, Error<S::Error>> {
    Slots::parse(block_0, store.block_count()).map_err(Error::lift)
}

/// Whether the ZAP could hold the key. A name that cannot be stored does not exist; a key of the wrong kind is an
/// error.
fn may_contain<E: From<Corrupt>>(key: KeyRef<'_>, flags: Flags) -> Result<bool, Error<E>> {
    match key.fits(flags, LONG_NAME_BYTES_MAX) {
        Ok(()) => Ok(true),
        Err(Error::NameInvalid | Error::NameTooLong { .. }) => Ok(false),
        Err(other) => Err(other.lift()),
    }
}
