//! The pointer table: it maps the top bits of a hash to a leaf block.
//!
//! It begins in the second half of block 0, moves to a block of its own when that is too small, and then doubles. A
//! doubling is spread over many inserts, one old block each, so no insert pays for all of it. Until it is complete,
//! reads use the old table, and stores go to both.
//!
//! Invariant: during a doubling, pointers 2i and 2i+1 of the next table equal pointer i of this one, for all i in
//! blocks already copied. Pointers stored beyond them are overwritten when their block is copied.

use crate::bytes::{get_u64, put_u64};
use crate::error::Error;
use crate::fat::blocks;
use crate::fat::header::Header;
use crate::store::{Store, edit};
use std::ops::Range;
use terrane_wire::Corrupt;

/// The position of pointer `index`: a block, and a byte offset in it.
fn pointer_offset(header: &Header, table_blk: u64, index: u64) -> (u64, usize) {
    let geometry = header.geometry;
    if table_blk == 0 {
        let byte = usize::try_from(index).unwrap_or(usize::MAX).saturating_mul(8);
        return (0, byte.saturating_add(geometry.block_bytes() / 2));
    }
    let shift = geometry.table_block_shift();
    let in_block = index & ((1 << shift) - 1);
    (table_blk + (index >> shift), usize::try_from(in_block * 8).unwrap_or(usize::MAX))
}

/// The leaf block at `index`, validated to be a possible block of a leaf.
pub(crate) fn pointer<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    index: u64,
) -> Result<u64, Error<S::Error>> {
    let (block, byte) = pointer_offset(header, header.table_blk, index);
    let found = get_u64(&store.read(block)?, byte);
    validate_pointer(header, store.block_count(), index, found).map_err(Error::damage)
}

/// As [`pointer()`], if the caller has block 0 already, which usually holds the table.
pub(crate) fn pointer_with_block_0<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    block_0: &[u8],
    index: u64,
) -> Result<u64, Error<S::Error>> {
    if header.table_blk != 0 {
        return pointer(store, header, index);
    }
    let found = get_u64(block_0, pointer_offset(header, 0, index).1);
    validate_pointer(header, store.block_count(), index, found).map_err(Error::damage)
}

/// Validates a pointer. 0 is damage too: every range of hashes has a leaf.
pub(crate) fn validate_pointer(
    header: &Header,
    block_count: u64,
    index: u64,
    found: u64,
) -> Result<u64, Corrupt> {
    let end = header.freeblk.min(block_count);
    if found == 0 || found >= end {
        let at = format_args!("pointer table entry {index}");
        return Err(Corrupt::new(at, "leaf block", format_args!("1 to {}", end.saturating_sub(1)), found));
    }
    Ok(found)
}

/// The pointers of a leaf with this prefix.
pub(crate) fn range_of(header: &Header, prefix: u64, prefix_len: u32) -> Range<u64> {
    let shift = header.table_shift.saturating_sub(prefix_len);
    let first = prefix.checked_shl(shift).unwrap_or(0);
    first..first.saturating_add(1 << shift)
}

/// Points a range of the table at a leaf, and the same range of the next table.
pub(crate) fn set_range<S: Store + ?Sized>(
    store: &mut S,
    header: &Header,
    range: Range<u64>,
    leaf: u64,
) -> Result<(), Error<S::Error>> {
    fill(store, header, header.table_blk, range.clone(), leaf)?;
    if header.is_growing() {
        fill(store, header, header.table_nextblk, range.start * 2..range.end * 2, leaf)?;
    }
    Ok(())
}

fn fill<S: Store + ?Sized>(
    store: &mut S,
    header: &Header,
    table_blk: u64,
    range: Range<u64>,
    leaf: u64,
) -> Result<(), Error<S::Error>> {
    let mut index = range.start;
    while index < range.end {
        let (block, first_byte) = pointer_offset(header, table_blk, index);
        let room = (header.geometry.block_bytes().saturating_sub(first_byte) / 8).max(1) as u64;
        let count = room.min(range.end - index);
        edit(store, block, |raw| {
            for k in 0..count {
                put_u64(raw, pointer_offset(header, table_blk, index + k).1, leaf);
            }
            Ok(())
        })?;
        index += count;
    }
    Ok(())
}

/// One step towards a table of twice the size; `Full` if hashes have no more bits. Except for the last step of a
/// doubling, it changes `header` only in memory, and the caller stores it. If a read or a write fails, `header` is
/// unchanged. Only the last step can fail later, when it frees the old table.
pub(crate) fn grow_step<S: Store + ?Sized>(
    store: &mut S,
    header: &mut Header,
) -> Result<(), Error<S::Error>> {
    if !header.is_growing() && header.table_shift >= header.hash_bits().table_shift_max() {
        return Err(Error::Full);
    }
    if header.table_blk == 0 {
        return externalize_table(store, header);
    }
    let mut after = *header;
    if !header.is_growing() {
        after.table_nextblk = after.allocate(header.table_numblks * 2).map_err(Error::damage)?;
        after.table_blks_copied = 0;
    }
    let copied = after.table_blks_copied;
    let old = store.read(header.table_blk + copied)?;
    let middle = old.len() / 2;
    for (block, half) in [(0, old.get(..middle)), (1, old.get(middle..))] {
        double_into(store, after.table_nextblk + 2 * copied + block, half.unwrap_or(&[]))?;
    }
    after.table_blks_copied += 1;
    if after.table_blks_copied < after.table_numblks {
        *header = after;
        return Ok(());
    }
    let old_table = header.table_blk..header.table_blk + header.table_numblks;
    after.table_blk = after.table_nextblk;
    after.table_numblks *= 2;
    after.table_shift += 1;
    after.table_nextblk = 0;
    after.table_blks_copied = 0;
    // The stored header does not name the old blocks any more when they become holes.
    edit(store, 0, |raw| {
        after.store(raw);
        Ok(())
    })?;
    *header = after;
    for block in old_table {
        store.free(block)?;
    }
    Ok(())
}

/// Moves the embedded table to a block of its own, each pointer twice. Its bytes in block 0 are ignored from then on.
fn externalize_table<S: Store + ?Sized>(store: &mut S, header: &mut Header) -> Result<(), Error<S::Error>> {
    let block_0 = store.read(0)?;
    let mut after = *header;
    let block = after.allocate(1).map_err(Error::damage)?;
    double_into(store, block, block_0.get(block_0.len() / 2..).unwrap_or(&[]))?;
    after.table_blk = block;
    after.table_numblks = 1;
    after.table_shift += 1;
    *header = after;
    Ok(())
}

/// Fills a block with these pointers, each twice.
fn double_into<S: Store + ?Sized>(store: &mut S, block: u64, half: &[u8]) -> Result<(), Error<S::Error>> {
    Ok(edit(store, block, |raw| {
        for (twice, pointer) in raw.chunks_exact_mut(16).zip(half.chunks_exact(8)) {
            let (first, second) = twice.split_at_mut(8);
            first.copy_from_slice(pointer);
            second.copy_from_slice(pointer);
        }
        Ok(())
    })?)
}

/// Passes all pointers in order, not validated, to `each`. It reads each block of the table once.
pub(crate) fn for_each_pointer<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    mut each: impl FnMut(u64, u64) -> Result<(), Error<S::Error>>,
) -> Result<(), Error<S::Error>> {
    let count = 1u64 << header.table_shift;
    let mut index = 0;
    while index < count {
        let (block, first_byte) = pointer_offset(header, header.table_blk, index);
        let raw = store.read(block)?;
        for pointer in raw.get(first_byte..).unwrap_or(&[]).chunks_exact(8) {
            each(index, get_u64(pointer, 0))?;
            index += 1;
        }
        if first_byte >= raw.len() {
            break;
        }
    }
    Ok(())
}

/// Whether the first and the last pointer of a leaf's range lead to it.
pub(crate) fn owns<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    range: &Range<u64>,
    leaf: u64,
) -> Result<bool, Error<S::Error>> {
    Ok(pointer(store, header, range.start)? == leaf
        && pointer(store, header, range.end.saturating_sub(1))? == leaf)
}

/// Reads every block that [`set_range`] would change, so that no read error can stop it midway.
pub(crate) fn read_range<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    range: &Range<u64>,
) -> Result<(), Error<S::Error>> {
    let read = |table_blk, range: Range<u64>| {
        let (first, last) = (
            pointer_offset(header, table_blk, range.start).0,
            pointer_offset(header, table_blk, range.end - 1).0,
        );
        (first..=last).try_for_each(|block| store.read(block).map(drop))
    };
    read(header.table_blk, range.clone())?;
    if header.is_growing() {
        read(header.table_nextblk, range.start * 2..range.end * 2)?;
    }
    Ok(())
}

/// Moves the table back into block 0 if it fits there with one bit to spare. Frees its blocks and those of a table
/// being filled, and stores the header.
///
/// An external table is never halved. That would rewrite the table in one operation, while a doubling has one
/// operation per block. And it would save only runs of equal pointers, which compress to almost nothing. What counts
/// is that a ZAP that has become small is small.
///
/// Called after each merge, but it reads the table only if the count of leaves is a power of two. So a table that a
/// few long prefixes keep large is not read again and again.
pub(crate) fn embed_table<S: Store + ?Sized>(
    store: &mut S,
    header: &mut Header,
) -> Result<(), Error<S::Error>> {
    let bits = header.geometry.embedded_shift() - 1;
    let fits = header.num_leafs.is_power_of_two() && header.num_leafs <= 1 << bits;
    if header.table_blk == 0 || !fits {
        return Ok(());
    }
    // As for merging: a table that cannot be read stays where it is.
    let Ok(Some(pointers)) = shortened(store, header, bits) else { return Ok(()) };
    let table = header.table_blk..header.table_blk + header.table_numblks;
    let next = if header.is_growing() { 2 * header.table_numblks } else { 0 };
    let next = header.table_nextblk..header.table_nextblk + next;
    (header.table_blk, header.table_numblks, header.table_shift) = (0, 0, bits + 1);
    (header.table_nextblk, header.table_blks_copied) = (0, 0);
    blocks::lower_freeblk(store, header, |block| table.contains(&block) || next.contains(&block));
    edit(store, 0, |raw| {
        header.store(raw);
        for (index, pointer) in (0..).zip(&pointers) {
            for twin in [2 * index, 2 * index + 1] {
                put_u64(raw, pointer_offset(header, 0, twin).1, *pointer);
            }
        }
        Ok(())
    })?;
    table.chain(next).rev().try_for_each(|block| store.free(block))?;
    Ok(())
}

/// The table shortened to 2^`bits` pointers; `None` if a leaf needs more.
fn shortened<S: Store + ?Sized>(
    store: &S,
    header: &Header,
    bits: u32,
) -> Result<Option<Vec<u64>>, Error<S::Error>> {
    let each = 1u64 << (header.table_shift - bits);
    let (mut pointers, mut fits) = (Vec::with_capacity(1 << bits), true);
    for_each_pointer(store, header, |index, leaf| {
        if index % each == 0 {
            pointers.push(leaf);
        }
        fits &= pointers.last() == Some(&leaf);
        Ok(())
    })?;
    Ok(Some(pointers).filter(|pointers| fits && pointers.len() == 1 << bits))
}
