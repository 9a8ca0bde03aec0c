//! Micro and tiny ZAPs: one block of slots of equal size.
//!
//! A slot holds value words, a collision differentiator and a name. Micro slots have 64 bytes, with one word and a
//! name of at most 49 bytes. The header of a tiny ZAP gives the size of its slots and the words per value. They
//! differ only in their [`Shape`]. There is no count, no free list and no stored hash. A slot is free if its name is
//! empty, and everything else is found by a scan, whose result [`Index`](crate::index::Index) keeps. The block grows
//! by 512 bytes at a time; its bytes after the last whole slot are unused.
//!
//! Invariant: no two slots of a block hold the same name, or the same (hash, differentiator).

use crate::bytes::{get_u32, get_u64, len_to_nul, put, put_u64};
use crate::error::Error;
use crate::fat::leaf::array_chunks;
use crate::hash::Flags;
use crate::key::KeyRef;
use crate::norm::NormFlags;
use crate::value::{CountBits, Value};
use terrane_wire::{Corrupt, Field, layout};

pub(crate) const BLOCK_TYPE: u64 = 0x8000_0000_0000_0003;
/// Bytes by which the block grows.
pub(crate) const GROWTH_BYTES: usize = 512;
/// Maximum size of a block of slots, whatever the options say: an index has 16 bits for a slot.
pub(crate) const BYTES_LIMIT: usize = 1 << 20;
/// Maximum words of a value in a tiny ZAP.
const VALUE_INTS_MAX: usize = 31;
/// Longest name in a micro ZAP, without its NUL.
const MICRO_NAME_BYTES_MAX: usize = 49;
/// Minimum size of the name field of a tiny slot, NUL included. No shape has less.
const NAME_FIELD_BYTES_MIN: usize = 4;
const CD_BYTES: usize = 4;
/// [`SlotsHeader::flags`]: the next two bytes are the shape of a tiny ZAP.
const FLAG_TINY: u8 = 1;

layout! {
    /// The first 64 bytes of a micro or tiny ZAP.
    SlotsHeader, 64 bytes {
        0  block_type: u64,
        8  salt: u64,
        16 normflags: u64,
        24 flags: u8,
        25 chunk_shift: u8,
        26 value_ints: u8,
        27 pad: [u8; 37],
    }
}

/// The kind of ZAP that block 0 belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Slots,
    Fat,
}

/// Distinguishes slots from fat by the first word of block 0.
pub(crate) fn block_kind(raw: &[u8]) -> Result<BlockKind, Error<Corrupt>> {
    match get_u64(raw, 0) {
        BLOCK_TYPE => Ok(BlockKind::Slots),
        crate::fat::header::BLOCK_TYPE => Ok(BlockKind::Fat),
        other => {
            let expected = format_args!("{BLOCK_TYPE:#x} or {:#x}", crate::fat::header::BLOCK_TYPE);
            Err(Corrupt::new("block 0", "block type", expected, format_args!("{other:#x}")).into())
        }
    }
}

/// Whether block 0 is that of a tiny ZAP, of either byte order. It looks at the header only.
///
/// # Errors
/// The block belongs to no ZAP.
pub fn is_tiny(raw: &[u8]) -> Result<bool, Corrupt> {
    let header = SlotsHeader::decode(raw).ok_or_else(|| {
        Corrupt::new("block 0", "bytes", format_args!("at least {}", SlotsHeader::SIZE), raw.len())
    })?;
    let types = [BLOCK_TYPE, crate::fat::header::BLOCK_TYPE];
    match types.iter().position(|own| [*own, own.swap_bytes()].contains(&header.block_type)) {
        Some(of) => Ok(of == 0 && header.flags & FLAG_TINY != 0),
        None => {
            let found = format_args!("{:#x}", header.block_type);
            Err(Corrupt::new("block 0", "block type", "that of a ZAP", found))
        }
    }
}

/// The layout of the slots of a block.
///
/// Only shapes of the format's table exist. 64 bytes with one word is micro. 64 bytes with 2 to 7 words, 128 with 1
/// to 15 and 256 with 1 to 31 are tiny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    chunk_shift: u8,
    value_ints: u8,
    /// Offset of the name: after the words, the differentiator and, in a micro slot, two bytes of padding.
    name_at: u8,
}

impl Shape {
    pub const MICRO: Shape = Shape { chunk_shift: 6, value_ints: 1, name_at: 14 };

    /// The shape with these numbers, if the table has it. Any numbers are allowed: they are compared before they are
    /// used.
    fn tiny(chunk_shift: u8, value_ints: usize) -> Option<Shape> {
        let words = u8::try_from(value_ints)
            .ok()
            .filter(|ints| (1..=VALUE_INTS_MAX).contains(&usize::from(*ints)))?;
        let name_at = usize::from(words) * 8 + CD_BYTES;
        let fits = (6..=8).contains(&chunk_shift) && name_at + NAME_FIELD_BYTES_MIN <= 1 << chunk_shift;
        // One word in 64 bytes would be a second form of a micro ZAP.
        let is_micro = words == 1 && chunk_shift == 6;
        let name_at = u8::try_from(name_at).ok().filter(|_| fits && !is_micro)?;
        Some(Shape { chunk_shift, value_ints: words, name_at })
    }

    /// The smallest slots for such an entry; `None` if only a fat ZAP takes it. Without `tiny`, only micro slots are
    /// tried.
    pub fn smallest(value_ints: usize, name_bytes: usize, tiny: bool) -> Option<Shape> {
        if value_ints == 1 && name_bytes <= MICRO_NAME_BYTES_MAX {
            return Some(Shape::MICRO);
        }
        let mut shapes = (6..=8).filter(|_| tiny).filter_map(|shift| Shape::tiny(shift, value_ints));
        shapes.find(|shape| name_bytes <= shape.name_bytes_max())
    }

    /// The shape in a header, validated.
    pub fn of(header: &SlotsHeader) -> Result<Shape, Corrupt> {
        let SlotsHeader { flags, chunk_shift, value_ints, .. } = *header;
        let damage = |what, expected: &str, found: String| Corrupt::new("block 0", what, expected, found);
        if flags & !FLAG_TINY != 0 {
            return Err(damage("flags of a block of slots", "0 or 1", format!("{flags:#x}")));
        }
        if flags == 0 && (chunk_shift, value_ints) == (0, 0) {
            return Ok(Shape::MICRO);
        }
        let found = format!("chunk shift {chunk_shift}, {value_ints} integers");
        if flags == 0 {
            return Err(damage("shape of slots without the tiny flag", "chunk shift 0, 0 integers", found));
        }
        Shape::tiny(chunk_shift, usize::from(value_ints)).ok_or_else(|| {
            let table = "one of chunk shift 6 with 2 to 7 integers, 7 with 1 to 15, 8 with 1 to 31";
            damage("shape of tiny slots", table, found)
        })
    }

    pub fn is_micro(self) -> bool {
        self == Shape::MICRO
    }

    /// Size of a slot in bytes.
    pub fn chunk_bytes(self) -> usize {
        1 << self.chunk_shift
    }

    pub fn value_ints(self) -> usize {
        usize::from(self.value_ints)
    }

    /// Longest name, without its NUL.
    pub fn name_bytes_max(self) -> usize {
        self.chunk_bytes().saturating_sub(usize::from(self.name_at) + 1)
    }

    /// Slots in a block of `bytes` bytes.
    pub fn slot_count(self, bytes: usize) -> usize {
        bytes.saturating_sub(SlotsHeader::SIZE) >> self.chunk_shift
    }

    /// Size in bytes of the smallest block with `slots` slots. Any number is allowed: a damaged header may count that
    /// many entries.
    pub fn bytes_for(self, slots: usize) -> usize {
        let bytes = slots.saturating_mul(self.chunk_bytes()).saturating_add(SlotsHeader::SIZE);
        bytes.checked_next_multiple_of(GROWTH_BYTES).unwrap_or(usize::MAX)
    }

    /// Maximum chunks of an entry in a leaf of a fat ZAP.
    pub fn leaf_chunks_max(self) -> usize {
        1 + array_chunks(self.name_bytes_max() + 1) + array_chunks(self.value_ints() * 8)
    }

    fn cd_at(self) -> usize {
        self.value_ints() * 8
    }

    fn slot_at(self, slot: usize) -> usize {
        slot.saturating_mul(self.chunk_bytes()).saturating_add(SlotsHeader::SIZE)
    }
}

/// A micro or tiny ZAP's block, its header validated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots<'a> {
    raw: &'a [u8],
    pub salt: u64,
    pub norm: NormFlags,
    pub shape: Shape,
}

/// What all entries of a block need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widest {
    pub words: usize,
    pub name_bytes: usize,
}

/// A slot, used or free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'a> {
    shape: Shape,
    raw: &'a [u8],
}

impl<'a> Slot<'a> {
    pub fn cd(&self) -> u32 {
        get_u32(self.raw, self.shape.cd_at())
    }

    /// The first word of the value.
    pub fn first_word(&self) -> u64 {
        get_u64(self.raw, 0)
    }

    /// Words per value.
    pub fn value_ints(&self) -> usize {
        self.shape.value_ints()
    }

    pub fn words(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.words_raw().chunks_exact(8).map(|word| get_u64(word, 0))
    }

    /// The words as they are stored.
    pub fn words_raw(&self) -> &'a [u8] {
        self.raw.get(..self.shape.cd_at()).unwrap_or(&[])
    }

    /// The words without padding.
    pub fn unpadded(
        &self,
        padding: Option<CountBits>,
    ) -> Result<impl Iterator<Item = u64> + use<'a>, Corrupt> {
        let (has, counted) = (self.value_ints(), padding.map(|count| count.words(self.first_word())));
        match counted {
            Some(counted) if counted > has => {
                Err(Corrupt::new("", "words of a value", format_args!("at most {has}"), counted))
            }
            _ => Ok(self.words().take(counted.unwrap_or(has))),
        }
    }

    pub fn value(&self) -> Value {
        if self.shape.value_ints == 1 {
            return Value::U64(self.first_word());
        }
        let mut big_endian = Vec::with_capacity(self.shape.cd_at());
        self.words().for_each(|word| big_endian.extend_from_slice(&word.to_be_bytes()));
        Value::Ints { int_size: 8, big_endian }
    }

    /// The name and the zeros after it.
    fn name_field(&self) -> &'a [u8] {
        self.raw.get(usize::from(self.shape.name_at)..).unwrap_or(&[])
    }

    pub fn is_free(&self) -> bool {
        self.name_field().first() == Some(&0)
    }

    pub fn is_named(&self, name: &[u8]) -> bool {
        self.name_field().strip_prefix(name).and_then(<[u8]>::first) == Some(&0)
    }

    /// The name up to its NUL; all bytes of the field if there is none.
    pub fn name(&self) -> &'a [u8] {
        let field = self.name_field();
        field.get(..len_to_nul(field)).unwrap_or(field)
    }

    /// Count of nonzero bytes without a meaning: padding, and the bytes after the name.
    pub fn stray_bytes(&self) -> usize {
        let padding =
            self.raw.get(self.shape.cd_at() + CD_BYTES..usize::from(self.shape.name_at)).unwrap_or(&[]);
        let rest = self.name_field().get(self.name().len()..).unwrap_or(&[]);
        let meaningless = if self.is_free() { [self.raw, &[]] } else { [padding, rest] };
        meaningless.iter().flat_map(|bytes| bytes.iter()).filter(|b| **b != 0).count()
    }

    fn validate(&self) -> Result<(), Corrupt> {
        if self.name_field().last() != Some(&0) {
            let expected = format_args!("terminated by NUL within {} bytes", self.shape.name_bytes_max() + 1);
            return Err(Corrupt::new("", "name", expected, "no NUL"));
        }
        if self.cd() > u32::from(u16::MAX) {
            return Err(Corrupt::new("", "differentiator", "below 65536", self.cd()));
        }
        Ok(())
    }
}

impl<'a> Slots<'a> {
    /// Parses block 0 of an object with `block_count` blocks, and validates its header. Slots are validated when they
    /// are read.
    pub fn parse(raw: &'a [u8], block_count: u64) -> Result<Self, Error<Corrupt>> {
        let damage = |what, expected: &str, found: String| {
            Error::Store(Corrupt::new("block 0", what, expected, found))
        };
        let header = SlotsHeader::decode(raw)
            .ok_or_else(|| damage("block size", "at least 512", raw.len().to_string()))?;
        if header.block_type != BLOCK_TYPE {
            return Err(damage("block type", "a micro ZAP's", format!("{:#x}", header.block_type)));
        }
        let shape = Shape::of(&header)?;
        if header.pad != [0; 37] {
            let stray = header.pad.iter().filter(|b| **b != 0).count();
            return Err(damage("bytes 27 to 63", "0", format!("{stray} nonzero bytes")));
        }
        let norm = NormFlags::parse(header.normflags)?;
        if header.salt == 0 {
            return Err(damage("salt", "not 0", "0".into()));
        }
        if !raw.len().is_multiple_of(GROWTH_BYTES) || raw.len() > BYTES_LIMIT {
            return Err(damage("block size", "a multiple of 512 up to 1 MiB", raw.len().to_string()));
        }
        if block_count > 1 {
            return Err(damage("block count of a micro or tiny ZAP", "1", block_count.to_string()));
        }
        Ok(Slots { raw, salt: header.salt, norm, shape })
    }

    /// The masked hash of a name.
    pub fn hash(&self, name: &[u8]) -> u64 {
        self.norm.hash(Flags::NONE, self.salt, KeyRef::Name(name))
    }

    pub fn bytes(&self) -> usize {
        self.raw.len()
    }

    pub fn slot_count(&self) -> usize {
        self.shape.slot_count(self.raw.len())
    }

    /// The bytes after the last slot.
    pub fn tail(&self) -> &'a [u8] {
        self.raw.get(self.shape.slot_at(self.slot_count())..).unwrap_or(&[])
    }

    pub fn slot(&self, slot: usize) -> Option<Slot<'a>> {
        let at = self.shape.slot_at(slot);
        let raw = self.raw.get(at..at.checked_add(self.shape.chunk_bytes())?)?;
        Some(Slot { shape: self.shape, raw })
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot<'a>> + use<'a> {
        let shape = self.shape;
        let slots = self.raw.get(SlotsHeader::SIZE..).unwrap_or(&[]).chunks_exact(shape.chunk_bytes());
        slots.map(move |raw| Slot { shape, raw })
    }

    /// Used slots with their numbers. Each one is validated: its name ends, and its differentiator fits an index.
    pub fn used_slots(&self) -> impl Iterator<Item = Result<(u16, Slot<'a>), Corrupt>> + use<'a> {
        self.slots().enumerate().filter(|(_, slot)| !slot.is_free()).map(|(number, slot)| {
            let at = || format!("block 0 slot {number}");
            let number =
                u16::try_from(number).map_err(|_| Corrupt::new(at(), "slot", "below 65536", number))?;
            slot.validate().map_err(|damage| damage.within(at()))?;
            Ok((number, slot))
        })
    }

    /// Hash, differentiator and number of each used slot, validated as by [`used_slots`](Self::used_slots). An index
    /// needs nothing else, and every first use of a directory waits for it. So nothing else is passed on here.
    pub fn for_each_hash(&self, mut each: impl FnMut(u64, u16, u16)) -> Result<(), Corrupt> {
        let name_at = usize::from(self.shape.name_at);
        let slots = self.raw.get(SlotsHeader::SIZE..).unwrap_or(&[]).chunks_exact(self.shape.chunk_bytes());
        for (number, raw) in slots.enumerate() {
            let field = raw.get(name_at..).unwrap_or(&[]);
            if field.first() == Some(&0) {
                continue;
            }
            let (cd, slot) = (u16::try_from(get_u32(raw, self.shape.cd_at())), u16::try_from(number));
            let (Ok(cd), Ok(slot), Some(&0)) = (cd, slot, field.last()) else {
                return self.used_slots().find_map(Result::err).map_or(Ok(()), Err);
            };
            let name = field.get(..len_to_nul(field)).unwrap_or(field);
            each(self.hash(name), cd, slot);
        }
        Ok(())
    }

    /// The used slot that an index points at, validated.
    pub fn indexed_slot(&self, slot: u16) -> Result<Slot<'a>, Corrupt> {
        let at = || format!("block 0 slot {slot}");
        let found = self.slot(usize::from(slot)).filter(|s| !s.is_free());
        let found = found.ok_or_else(|| Corrupt::new(at(), "slot", "used (it is indexed)", "free"))?;
        found.validate().map_err(|damage| damage.within(at()))?;
        Ok(found)
    }

    /// Finds a name by a scan of all slots, without an index.
    pub fn scan(&self, name: &[u8]) -> Option<Slot<'a>> {
        let first = name.first()?;
        self.slots().find(|slot| slot.name_field().first() == Some(first) && slot.is_named(name))
    }

    /// The most words of a value, without padding, and the length of the longest name. The value of the slot
    /// `replaced` does not count.
    pub fn widest(&self, padding: Option<CountBits>, replaced: Option<u16>) -> Result<Widest, Corrupt> {
        let mut widest = Widest { words: 1, name_bytes: 0 };
        for used in self.used_slots() {
            let (number, slot) = used?;
            widest.name_bytes = widest.name_bytes.max(slot.name().len());
            if replaced != Some(number) {
                let at = || format!("block 0 slot {number}");
                let words = slot.unpadded(padding).map_err(|damage| damage.within(at()))?.count();
                widest.words = widest.words.max(words);
            }
        }
        Ok(widest)
    }

    /// The first free slot from `hint` on, else from the beginning.
    pub fn free_slot(&self, hint: usize) -> Option<usize> {
        let free_from = |first: usize| {
            let rest = self.raw.get(self.shape.slot_at(first)..).unwrap_or(&[]);
            let mut slots = rest.chunks_exact(self.shape.chunk_bytes()).zip(first..);
            slots.find(|(raw, _)| Slot { shape: self.shape, raw }.is_free()).map(|(_, number)| number)
        };
        free_from(hint).or_else(|| free_from(0))
    }
}

/// Makes the block an empty ZAP with slots of this shape.
pub(crate) fn init(raw: &mut [u8], salt: u64, norm: NormFlags, shape: Shape) {
    raw.fill(0);
    let (flags, chunk_shift, value_ints) = match shape.is_micro() {
        true => (0, 0, 0),
        false => (FLAG_TINY, shape.chunk_shift, shape.value_ints),
    };
    let header = SlotsHeader {
        block_type: BLOCK_TYPE,
        salt,
        normflags: norm.to_u64(),
        flags,
        chunk_shift,
        value_ints,
        pad: [0; 37],
    };
    if let Some(place) = raw.get_mut(..SlotsHeader::SIZE) {
        Field::put(&header, place);
    }
}

/// Fills a slot. Name and words must fit the shape; words that are missing become 0.
pub(crate) fn put_slot(
    raw: &mut [u8],
    shape: Shape,
    slot: usize,
    name: &[u8],
    cd: u32,
    words: impl IntoIterator<Item = u64>,
) {
    clear_slot(raw, shape, slot);
    put_value(raw, shape, slot, words);
    let at = shape.slot_at(slot);
    put(raw, at.saturating_add(shape.cd_at()), &cd.to_le_bytes());
    put(raw, at.saturating_add(usize::from(shape.name_at)), name);
}

pub(crate) fn put_value(raw: &mut [u8], shape: Shape, slot: usize, words: impl IntoIterator<Item = u64>) {
    let at = shape.slot_at(slot);
    let words = words.into_iter().chain(std::iter::repeat(0)).take(shape.value_ints());
    for (k, word) in words.enumerate() {
        put_u64(raw, at.saturating_add(8 * k), word);
    }
}

pub(crate) fn clear_slot(raw: &mut [u8], shape: Shape, slot: usize) {
    let at = shape.slot_at(slot);
    if let Some(chunk) = raw.get_mut(at..).and_then(|rest| rest.get_mut(..shape.chunk_bytes())) {
        chunk.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slots_with_the_flag_are_tiny() {
        let block = |block_type: u64, flags| {
            let mut raw = [0; 64];
            raw[..8].copy_from_slice(&block_type.to_le_bytes());
            raw[24] = flags;
            raw
        };
        let fat = crate::fat::header::BLOCK_TYPE;
        for block_type in [BLOCK_TYPE, BLOCK_TYPE.swap_bytes()] {
            assert_eq!(is_tiny(&block(block_type, FLAG_TINY)).ok(), Some(true));
            assert_eq!(is_tiny(&block(block_type, 0)).ok(), Some(false));
        }
        for block_type in [fat, fat.swap_bytes()] {
            assert_eq!(is_tiny(&block(block_type, FLAG_TINY)).ok(), Some(false), "no flag there");
        }
        assert!(
            is_tiny(&block(7, FLAG_TINY)).is_err() && is_tiny(&[0; 64]).is_err() && is_tiny(&[]).is_err()
        );
    }

    /// FORMAT.md section 8.3: longest names for 64, 128 and 256 bytes; 0 if there is no such shape.
    #[test]
    fn shapes_are_those_of_the_table() {
        for ints in 0..=300usize {
            let row = match ints {
                1 => [0, 115, 243],
                2..=7 => [59 - 8 * ints, 123 - 8 * ints, 251 - 8 * ints],
                8..=15 => [0, 123 - 8 * ints, 251 - 8 * ints],
                16..=31 => [0, 0, 251 - 8 * ints],
                _ => [0, 0, 0],
            };
            for shift in 0..=255u8 {
                let expected = row.get(usize::from(shift).wrapping_sub(6)).copied().unwrap_or(0);
                let shape = Shape::tiny(shift, ints);
                assert_eq!(
                    shape.map_or(0, Shape::name_bytes_max),
                    expected,
                    "shift {shift}, {ints} integers"
                );
                let Ok(stored) = u8::try_from(ints) else { continue };
                let mut raw = [0; 64];
                raw[24..27].copy_from_slice(&[FLAG_TINY, shift, stored]);
                assert_eq!(Shape::of(&SlotsHeader::decode(&raw).unwrap()).ok(), shape);
            }
            for name_bytes in 1..=300 {
                let found = Shape::smallest(ints, name_bytes, true).map(Shape::chunk_bytes);
                let tiny = [64, 128, 256].into_iter().zip(row).find(|(_, longest)| name_bytes <= *longest);
                let expected =
                    if ints == 1 && name_bytes <= 49 { Some(64) } else { tiny.map(|(bytes, _)| bytes) };
                assert_eq!(found, expected, "{ints} integers, {name_bytes} bytes");
            }
        }
        for huge in [8192, 8193, 1 << 32, usize::MAX / 8 + 2, usize::MAX] {
            assert_eq!(Shape::smallest(huge, 1, true), None);
        }
        assert_eq!(Shape::smallest(2, 1, false), None);
        assert_eq!(Shape::MICRO.name_bytes_max(), 49);
    }

    #[test]
    fn blocks_have_room_for_the_slots_they_count() {
        for shift in 6..=8 {
            let shape = Shape::tiny(shift, 5).unwrap();
            for bytes in (512..20_000).step_by(512) {
                let slots = shape.slot_count(bytes);
                assert!(shape.slot_at(slots) <= bytes && shape.slot_at(slots + 1) > bytes);
                assert!(shape.bytes_for(slots) <= bytes && shape.bytes_for(slots + 1) > bytes);
            }
        }
        assert_eq!(Shape::MICRO.slot_count(BYTES_LIMIT), 16_383);
    }
}
