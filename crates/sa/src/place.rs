//! Which attributes lie in the bonus area, and which in the spill block.
//!
//! As many as fit, from the front: the order of a list is the order of creation, so what every `stat` wants is read
//! with the dnode, and what comes later (extended attributes above all) goes to the spill. A spill block costs the
//! bonus area its last 128 bytes, for the block pointer; that is why an attribute can leave the bonus although it
//! would have fitted without those that follow it.
//!
//! The rule is OpenZFS's, its boundaries included, so that the same attributes give the same bytes:
//! * A value begins on a multiple of 8; the header has 8 bytes and 2 more for each variable attribute from the second
//!   on, and ends on a multiple of 8.
//! * Everything lies in the bonus area when, after each attribute, header and values fit; where that attribute is the
//!   second or a later variable one, one byte must be left over.
//! * Otherwise the first attribute that reaches into the last 128 bytes, and all that follow it, lie in the spill.

use crate::buffer::SA_BYTES_MAX;
use crate::error::SaError;
use crate::layout::header_bytes;
use crate::list::AttrList;
use crate::registry::Registry;

/// Bytes at the end of the bonus area that a spill block's pointer takes.
pub const SPILL_POINTER_BYTES: usize = 128;

/// How many attributes, from the front of `list`, lie in a bonus area of `bonus_max` bytes; the others (see
/// [`AttrList::split_at`]) lie in the spill block. As many as the list has: there is no spill.
///
/// Fails on an attribute that the registry does not have, and with [`SaError::TooLarge`] on a value or a spill that no
/// header can describe.
pub fn place(list: &AttrList, registry: &Registry, bonus_max: usize) -> Result<usize, SaError> {
    let beside_spill = bonus_max.saturating_sub(SPILL_POINTER_BYTES);
    let (mut values, mut vars, mut spills) = (0usize, 0, false);
    let mut first_out = None;
    for (index, (attr, value)) in list.iter().enumerate() {
        let variable = registry.get(attr).ok_or(SaError::Unregistered(attr))?.len.is_none();
        if value.len() > usize::from(u16::MAX) {
            return Err(SaError::TooLarge { bytes: value.len() });
        }
        vars += usize::from(variable);
        values = values.next_multiple_of(8) + value.len();
        let bytes = header_bytes(vars) + values;
        if bytes > beside_spill {
            first_out.get_or_insert(index);
        }
        spills |= bytes > bonus_max || (variable && vars > 1 && bytes == bonus_max);
    }
    let Some(first_out) = first_out.filter(|_| spills) else {
        return Ok(list.len());
    };
    // What is left of the bonus area must hold a header, if only that of no attributes.
    let (_, spilled) = list.split_at(first_out);
    let variable = |attr| registry.get(attr).is_some_and(|info| info.len.is_none());
    let bytes = spilled.stored_bytes(spilled.order().filter(|&attr| variable(attr)).count());
    if bytes > SA_BYTES_MAX || beside_spill < header_bytes(0) {
        return Err(SaError::TooLarge { bytes });
    }
    Ok(first_out)
}

#[cfg(test)]
mod tests;
