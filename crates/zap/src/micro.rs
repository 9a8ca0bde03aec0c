//! Micro ZAPs: one block of 64-byte slots.
//!
//! A slot holds a name of at most 49 bytes and one `u64`. There is no count, no free list and no stored hash: a
//! slot is free when its name is empty, and everything else is found by looking ([`Index`](crate::index::Index)
//! remembers what was found). The block grows by 512 bytes at a time and never shrinks.
//!
//! Invariant: no two slots of a block hold the same name, or the same (hash, differentiator).

use crate::bytes::{get_u32, get_u64, put, put_u64};
use crate::error::Error;
use terrane_wire::{Corrupt, layout};

pub(crate) const BLOCK_TYPE: u64 = 0x8000_0000_0000_0003;
/// Bytes by which the block grows.
pub(crate) const GROWTH_BYTES: usize = 512;
/// No micro ZAP is larger, whatever the options say: an index holds slots in 16 bits.
pub(crate) const BYTES_LIMIT: usize = 1 << 20;
/// Longest name, without its NUL.
pub(crate) const NAME_BYTES_MAX: usize = 49;

const SLOT_BYTES: usize = 64;
const CD_AT: usize = 8;
const NAME_AT: usize = 14;

layout! {
    /// The first 64 bytes of a micro or tiny ZAP.
    MicroHeader, 64 bytes {
        0  block_type: u64,
        8  salt: u64,
        16 normflags: u64,
        24 tiny_flags: u8,
        25 tiny_chunk_shift: u8,
        26 tiny_value_ints: u8,
        27 pad: [u8; 37],
    }
}

/// What block 0 says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Micro,
    Fat,
}

/// Tells micro from fat by the first word of block 0.
pub(crate) fn block_kind(raw: &[u8]) -> Result<BlockKind, Error<Corrupt>> {
    match get_u64(raw, 0) {
        BLOCK_TYPE => Ok(BlockKind::Micro),
        crate::fat::header::BLOCK_TYPE => Ok(BlockKind::Fat),
        swapped
            if swapped.swap_bytes() == BLOCK_TYPE
                || swapped.swap_bytes() == crate::fat::header::BLOCK_TYPE =>
        {
            Err(Error::Unsupported { what: "a big-endian ZAP", found: format!("{swapped:#x}") })
        }
        other => {
            let expected = format_args!("{BLOCK_TYPE:#x} or {:#x}", crate::fat::header::BLOCK_TYPE);
            Err(Corrupt::new("block 0", "block type", expected, format_args!("{other:#x}")).into())
        }
    }
}

/// Refuses normalization by name: hashes of such a ZAP are of names this version cannot compute.
pub(crate) fn refuse_normflags(normflags: u64) -> Result<(), Error<Corrupt>> {
    match normflags {
        0 => Ok(()),
        // Only these bits, and at most one normal form beside upper case, have a meaning.
        known if known & !0x72 == 0 => Err(Error::Unsupported {
            what: "a ZAP with normalized names",
            found: format!("normflags {known:#x}"),
        }),
        unknown => {
            Err(Error::Unsupported { what: "a ZAP with unknown normflags", found: format!("{unknown:#x}") })
        }
    }
}

/// A micro ZAP's block, judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Micro<'a> {
    raw: &'a [u8],
    pub salt: u64,
}

/// A used slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'a> {
    pub value: u64,
    pub cd: u32,
    /// The name and the zeros behind it.
    name_field: &'a [u8],
}

impl<'a> Slot<'a> {
    pub fn is_free(&self) -> bool {
        self.name_field.first() == Some(&0)
    }

    pub fn is_named(&self, name: &[u8]) -> bool {
        self.name_field.strip_prefix(name).and_then(<[u8]>::first) == Some(&0)
    }

    /// The name up to its NUL; all bytes of the field if there is none.
    pub fn name(&self) -> &'a [u8] {
        let len = self.name_field.iter().position(|b| *b == 0).unwrap_or(self.name_field.len());
        self.name_field.get(..len).unwrap_or(self.name_field)
    }

    /// What follows the NUL.
    pub fn name_rest(&self) -> &'a [u8] {
        self.name_field.get(self.name().len()..).unwrap_or(&[])
    }
}

impl<'a> Micro<'a> {
    pub fn parse(raw: &'a [u8], block_count: u64) -> Result<Self, Error<Corrupt>> {
        let damage = |what, expected: &str, found: String| {
            Error::Store(Corrupt::new("block 0", what, expected, found))
        };
        let header = MicroHeader::decode(raw)
            .ok_or_else(|| damage("block size", "at least 512", raw.len().to_string()))?;
        if header.block_type != BLOCK_TYPE {
            return Err(damage("block type", "a micro ZAP's", format!("{:#x}", header.block_type)));
        }
        if header.tiny_flags & 1 != 0 {
            let found =
                format!("chunk shift {}, {} integers", header.tiny_chunk_shift, header.tiny_value_ints);
            return Err(Error::Unsupported { what: "a tiny ZAP", found });
        }
        if header.tiny_flags != 0 || header.tiny_chunk_shift != 0 || header.tiny_value_ints != 0 {
            let found = [header.tiny_flags, header.tiny_chunk_shift, header.tiny_value_ints];
            return Err(Error::Unsupported {
                what: "a micro ZAP with unknown flags",
                found: format!("{found:02x?} at byte 24"),
            });
        }
        refuse_normflags(header.normflags)?;
        if header.salt == 0 {
            return Err(damage("salt", "not 0", "0".into()));
        }
        if !raw.len().is_multiple_of(GROWTH_BYTES) || raw.len() > BYTES_LIMIT {
            return Err(damage("block size", "a multiple of 512 up to 1 MiB", raw.len().to_string()));
        }
        if block_count > 1 {
            return Err(damage("block count of a micro ZAP", "1", block_count.to_string()));
        }
        Ok(Micro { raw, salt: header.salt })
    }

    pub fn slot_count(&self) -> usize {
        slot_count(self.raw.len())
    }

    pub fn slot(&self, slot: usize) -> Option<Slot<'a>> {
        let at = slot_at(slot);
        self.raw.get(at..at.checked_add(SLOT_BYTES)?).map(slot_of)
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot<'a>> + use<'a> {
        self.raw.get(MicroHeader::SIZE..).unwrap_or(&[]).chunks_exact(SLOT_BYTES).map(slot_of)
    }

    /// Used slots with their numbers, each judged: the name ends, and the differentiator fits an index.
    pub fn used_slots(&self) -> impl Iterator<Item = Result<(u16, Slot<'a>), Corrupt>> + use<'a> {
        self.slots().enumerate().filter(|(_, slot)| !slot.is_free()).map(|(number, slot)| {
            let at = || format!("block 0 slot {number}");
            let number =
                u16::try_from(number).map_err(|_| Corrupt::new(at(), "slot", "below 65536", number))?;
            judge_slot(&slot).map_err(|damage| damage.within(at()))?;
            Ok((number, slot))
        })
    }

    /// A used slot an index points at, judged.
    pub fn indexed_slot(&self, slot: u16) -> Result<Slot<'a>, Corrupt> {
        let at = || format!("block 0 slot {slot}");
        let found = self.slot(usize::from(slot)).filter(|s| !s.is_free());
        let found =
            found.ok_or_else(|| Corrupt::new(at(), "slot", "used, as it was when indexed", "free"))?;
        judge_slot(&found).map_err(|damage| damage.within(at()))?;
        Ok(found)
    }

    /// The entry with this name, without an index.
    pub fn scan(&self, name: &[u8]) -> Option<Slot<'a>> {
        let first = name.first()?;
        self.slots().find(|slot| slot.name_field.first() == Some(first) && slot.is_named(name))
    }

    /// The first free slot from `hint` on, or else from the beginning.
    pub fn free_slot(&self, hint: usize) -> Option<usize> {
        let free_from = |first: usize| {
            self.slots().enumerate().skip(first).find(|(_, slot)| slot.is_free()).map(|(number, _)| number)
        };
        free_from(hint).or_else(|| free_from(0))
    }
}

fn slot_of(raw: &[u8]) -> Slot<'_> {
    Slot {
        value: get_u64(raw, 0),
        cd: get_u32(raw, CD_AT),
        name_field: raw.get(NAME_AT..SLOT_BYTES).unwrap_or(&[]),
    }
}

fn judge_slot(slot: &Slot<'_>) -> Result<(), Corrupt> {
    if slot.name_field.last() != Some(&0) {
        return Err(Corrupt::new("", "name", "ended by NUL within 50 bytes", "no NUL"));
    }
    if slot.cd > u32::from(u16::MAX) {
        return Err(Corrupt::new("", "differentiator", "below 65536", slot.cd));
    }
    Ok(())
}

/// Slots of a micro ZAP of so many bytes.
pub(crate) fn slot_count(bytes: usize) -> usize {
    (bytes / SLOT_BYTES).saturating_sub(1)
}

fn slot_at(slot: usize) -> usize {
    slot.saturating_mul(SLOT_BYTES).saturating_add(MicroHeader::SIZE)
}

/// Makes the block an empty micro ZAP.
pub(crate) fn init(raw: &mut [u8], salt: u64) {
    raw.fill(0);
    put_u64(raw, 0, BLOCK_TYPE);
    put_u64(raw, 8, salt);
}

/// Fills a slot. The name must be at most [`NAME_BYTES_MAX`] bytes.
pub(crate) fn put_slot(raw: &mut [u8], slot: usize, name: &[u8], cd: u32, value: u64) {
    let at = slot_at(slot);
    clear_slot(raw, slot);
    put_u64(raw, at, value);
    put(raw, at.saturating_add(CD_AT), &cd.to_le_bytes());
    put(raw, at.saturating_add(NAME_AT), name);
}

pub(crate) fn put_value(raw: &mut [u8], slot: usize, value: u64) {
    put_u64(raw, slot_at(slot), value);
}

pub(crate) fn clear_slot(raw: &mut [u8], slot: usize) {
    put(raw, slot_at(slot), &[0; SLOT_BYTES]);
}
