//! SA buffers: a header, then values.
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `0x2F505A` |
//! | 4 | 2 | layout number in bits 0-9, header size / 8 in bits 10-15 |
//! | 6 | 2 x max(1, n) | lengths of the n attributes of variable length, in order; then zeros to a multiple of 8 |
//!
//! Values follow in the layout's order, each on a multiple of 8. Bytes between them and after the last are ignored by
//! readers and written as zeros. A layout without variable attributes ignores the first length.

use crate::attr::Attr;
use crate::error::SaError;
use crate::layout::{LAYOUT_MAX, Layout, LayoutTable, Slot};
use crate::list::{AttrList, AttrSlice};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use terrane_wire::{Corrupt, Field, Reader, Truncated};

/// The first four bytes of every buffer.
pub const MAGIC: u32 = 0x002f_505a;
const LENGTHS_OFFSET: usize = 6;
/// No bonus (16192) and no spill block (131072) is larger.
pub const SA_BYTES_MAX: usize = 128 << 10;
/// Spare capacity of a list decoded for a change: enough for usual changes.
const CHANGES_BYTES: usize = 512;

/// A decoded buffer, borrowed. Decoding checks only the header and the total length; values are located when they are
/// asked for.
#[derive(Clone, Copy, Debug)]
pub struct Attrs<'a> {
    layout: &'a Arc<Layout>,
    raw: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Decodes the used part of a bonus or a spill block. It may be longer than its attributes.
    pub fn decode(raw: &'a [u8], table: &'a LayoutTable) -> Result<Self, Corrupt> {
        let attrs = Attrs { layout: decode_header(raw, table)?, raw };
        // Checked once, so that no lookup can fail. The last attribute ends last, so the others need no check.
        if let Some(last) = attrs.layout.slots().last() {
            attrs.value(last).ok_or_else(|| damaged("length", "enough for the attributes", raw.len()))?;
        } else if raw.len() < attrs.layout.header_bytes() {
            return Err(damaged("length", attrs.layout.header_bytes(), raw.len()));
        }
        Ok(attrs)
    }

    /// The layout that the header names, from the table of the dataset.
    pub fn layout(&self) -> &'a Arc<Layout> {
        self.layout
    }

    /// A value's bytes; `None` if the layout lacks the attribute.
    pub fn get(&self, attr: Attr) -> Option<&'a [u8]> {
        self.value(self.layout.slot(attr)?)
    }

    /// A value of one 64-bit number.
    pub fn u64(&self, attr: Attr) -> Option<u64> {
        u64::get(self.get(attr)?)
    }

    /// A value of two 64-bit numbers, such as a time: seconds, nanoseconds.
    pub fn pair(&self, attr: Attr) -> Option<[u64; 2]> {
        <[u64; 2]>::get(self.get(attr)?)
    }

    /// All attributes, in stored order.
    pub fn iter(&self) -> impl Iterator<Item = (Attr, &'a [u8])> {
        let attrs = *self;
        attrs.layout.slots().iter().filter_map(move |slot| Some((slot.attr, attrs.value(slot)?)))
    }

    /// Bytes from the magic to the end of the last value.
    pub fn used_bytes(&self) -> usize {
        let end = self.layout.slots().last().and_then(|last| self.span(last)).map(|span| span.end);
        end.unwrap_or(self.layout.header_bytes())
    }

    fn value(&self, slot: &Slot) -> Option<&'a [u8]> {
        self.raw.get(self.span(slot)?)
    }

    /// The byte range of a slot's value.
    fn span(&self, slot: &Slot) -> Option<Range<usize>> {
        // At most 249 lengths of 16 bits: no overflow.
        let mut start = self.layout.header_bytes() + slot.fixed_before;
        for index in 0..slot.vars_before {
            start += self.var_len(index)?.next_multiple_of(8);
        }
        let len = match slot.len {
            Some(len) => usize::from(len),
            None => self.var_len(slot.vars_before)?,
        };
        Some(start..start.checked_add(len)?)
    }

    fn var_len(&self, index: usize) -> Option<usize> {
        let raw = self.raw.get(LENGTHS_OFFSET + 2 * index..)?.first_chunk::<2>()?;
        Some(usize::from(u16::from_le_bytes(*raw)))
    }
}

fn damaged(what: &'static str, expected: impl fmt::Display, found: impl fmt::Display) -> Corrupt {
    Corrupt::new("SA buffer", what, expected, found)
}

/// Validates the header, up to where the values begin.
fn decode_header<'t>(raw: &[u8], table: &'t LayoutTable) -> Result<&'t Arc<Layout>, Corrupt> {
    let short = |t: Truncated| {
        damaged("length", format_args!("at least {}", t.offset.saturating_add(t.needed)), raw.len())
    };
    if raw.len() > SA_BYTES_MAX {
        return Err(damaged("length", format_args!("at most {SA_BYTES_MAX}"), raw.len()));
    }
    let mut reader = Reader::new(raw);
    let magic = reader.u32().map_err(short)?;
    if magic == MAGIC.swap_bytes() {
        return Err(damaged("byte order", "little-endian", "big-endian"));
    }
    if magic != MAGIC {
        return Err(damaged("magic", format_args!("{MAGIC:#x}"), format_args!("{magic:#x}")));
    }
    let info = reader.u16().map_err(short)?;
    let number = info & LAYOUT_MAX;
    let layout = table.get(number).ok_or_else(|| damaged("layout", "one of this dataset", number))?;
    let header_bytes = usize::from(info >> 10) * 8;
    if header_bytes != layout.header_bytes() {
        return Err(damaged("header size", layout.header_bytes(), header_bytes));
    }
    Ok(layout)
}

impl AttrList {
    /// The attributes of a stored buffer, including those whose meaning is unknown.
    pub fn from_attrs(attrs: &Attrs<'_>) -> Self {
        let mut list = AttrList::with_capacity(attrs.used_bytes() + CHANGES_BYTES);
        list.extend(attrs);
        list
    }

    /// The attributes of a stored bonus and then those of its spill block. An attribute in both is refused.
    pub fn from_bonus_and_spill(bonus: &Attrs<'_>, spill: &Attrs<'_>) -> Result<Self, Corrupt> {
        if let Some(attr) = spill.layout().order().find(|&attr| bonus.layout().slot(attr).is_some()) {
            return Err(Corrupt::new("SA spill", "attributes", "none that is in the bonus", attr));
        }
        let bytes = bonus.used_bytes() + spill.used_bytes();
        let mut list = AttrList::with_capacity(bytes + CHANGES_BYTES);
        list.extend(bonus);
        list.extend(spill);
        Ok(list)
    }

    fn extend(&mut self, attrs: &Attrs<'_>) {
        for (attr, value) in attrs.iter() {
            self.push(attr, value);
        }
    }
}

/// A buffer that can be changed in place, as long as no length changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaBuffer {
    layout: Arc<Layout>,
    raw: Vec<u8>,
}

impl SaBuffer {
    /// Takes over stored bytes, including those after the last value.
    pub fn decode(raw: Vec<u8>, table: &LayoutTable) -> Result<Self, Corrupt> {
        let layout = Arc::clone(Attrs::decode(&raw, table)?.layout());
        Ok(SaBuffer { layout, raw })
    }

    /// Encodes a list or one part of it. Its order must be the layout's (see [`LayoutTable::find`] and
    /// [`LayoutTable::add`]).
    pub fn encode<'a>(layout: &Arc<Layout>, list: impl Into<AttrSlice<'a>>) -> Result<Self, SaError> {
        let list = list.into();
        let number = layout.number();
        if !layout.order().eq(list.order()) {
            return Err(SaError::LayoutMismatch { layout: number });
        }
        let units = u16::try_from(layout.header_bytes() / 8).map_err(|_| SaError::TooManyAttributes)?;
        // All zeros first: bytes between values are never written.
        let mut raw = vec![0; list.stored_bytes(layout.var_count())];
        let put = |raw: &mut [u8], at: usize, bytes: &[u8]| {
            if let Some(target) = raw.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len())) {
                target.copy_from_slice(bytes);
            }
            at + bytes.len()
        };
        put(&mut raw, 0, &MAGIC.to_le_bytes());
        put(&mut raw, 4, &(units << 10 | number).to_le_bytes());
        let (mut length_at, mut value_at) = (LENGTHS_OFFSET, layout.header_bytes());
        for (slot, (attr, value)) in layout.slots().iter().zip(list.iter()) {
            let len = u16::try_from(value.len()).map_err(|_| SaError::TooLarge { bytes: value.len() })?;
            match slot.len {
                Some(fixed) if fixed != len => return Err(SaError::Length { attr, len: value.len() }),
                Some(_) => {}
                None => length_at = put(&mut raw, length_at, &len.to_le_bytes()),
            }
            value_at = put(&mut raw, value_at.next_multiple_of(8), value);
        }
        Ok(SaBuffer { layout: Arc::clone(layout), raw })
    }

    /// The buffer's values for lookups. The header is not checked again.
    pub fn attrs(&self) -> Attrs<'_> {
        Attrs { layout: &self.layout, raw: &self.raw }
    }

    /// The order and offsets of the values. Changes in place never replace it.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Overwrites a value of one number. Returns `false`, and changes nothing, if the layout lacks the attribute.
    /// Then the caller must encode a new buffer from an [`AttrList`].
    #[must_use]
    pub fn set_u64(&mut self, attr: Attr, value: u64) -> bool {
        self.set_bytes(attr, &value.to_le_bytes())
    }

    /// Overwrites a value of two numbers; see [`set_u64`](Self::set_u64).
    #[must_use]
    pub fn set_pair(&mut self, attr: Attr, [first, second]: [u64; 2]) -> bool {
        let mut value = [0; 16];
        [first, second].put(&mut value);
        self.set_bytes(attr, &value)
    }

    /// Overwrites a value by one of the same length; see [`set_u64`](Self::set_u64).
    #[must_use]
    pub fn set_bytes(&mut self, attr: Attr, value: &[u8]) -> bool {
        let attrs = self.attrs();
        let Some(span) = attrs.layout.slot(attr).and_then(|slot| attrs.span(slot)) else {
            return false;
        };
        match self.raw.get_mut(span) {
            Some(place) if place.len() == value.len() => {
                place.copy_from_slice(value);
                true
            }
            _ => false,
        }
    }

    /// The stored form: header, values, and any bytes after the last value.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw
    }

    /// The stored form as [`as_bytes`](Self::as_bytes) shows it, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.raw
    }
}

#[cfg(test)]
mod tests;
