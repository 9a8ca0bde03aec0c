//! Placement of attributes: in the bonus or in the spill block.
//!
//! As many as fit go into the bonus, from the front. The order of a list is the order of creation. So the attributes
//! that every `stat` needs are read with the dnode, and later ones go to the spill, extended attributes above all. A
//! spill block costs the bonus its last 128 bytes, for the block pointer. So a later attribute can push one out of
//! the bonus that would have fitted alone.
//!
//! The rule is OpenZFS's with its boundary cases, so that the same attributes give the same bytes:
//! * A value begins on a multiple of 8. The header has 8 bytes, and 2 more for each variable attribute from the
//!   second on. It ends on a multiple of 8.
//! * Everything lies in the bonus if, after each attribute, header and values fit. After the second or a later
//!   variable attribute, one byte must be left over.
//! * Otherwise the first attribute that reaches into the last 128 bytes lies in the spill, with all that follow it.

use crate::buffer::SA_BYTES_MAX;
use crate::error::SaError;
use crate::layout::header_bytes;
use crate::list::AttrList;
use crate::registry::Registry;

/// Bytes at the end of the bonus for the pointer to a spill block.
pub const SPILL_POINTER_BYTES: usize = 128;

/// How many attributes, from the front of `list`, lie in a bonus of `bonus_max` bytes. The others lie in the spill
/// block (see [`AttrList::split_at`]). If all fit, there is no spill.
///
/// # Errors
/// [`SaError::Unregistered`], or [`SaError::TooLarge`] for a value or a spill that no header can describe.
pub fn count_in_bonus(list: &AttrList, registry: &Registry, bonus_max: usize) -> Result<usize, SaError> {
    let max_with_spill = bonus_max.saturating_sub(SPILL_POINTER_BYTES);
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
        if bytes > max_with_spill {
            first_out.get_or_insert(index);
        }
        spills |= bytes > bonus_max || (variable && vars > 1 && bytes == bonus_max);
    }
    let Some(first_out) = first_out.filter(|_| spills) else {
        return Ok(list.len());
    };
    // The rest of the bonus must hold a header, if only that of an empty buffer.
    let (_, spilled) = list.split_at(first_out);
    let variable = |attr| registry.get(attr).is_some_and(|info| info.len.is_none());
    let bytes = spilled.stored_bytes(spilled.order().filter(|&attr| variable(attr)).count());
    if bytes > SA_BYTES_MAX || max_with_spill < header_bytes(0) {
        return Err(SaError::TooLarge { bytes });
    }
    Ok(first_out)
}

#[cfg(test)]
mod tests;
