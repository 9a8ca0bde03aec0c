//! Which of the object's blocks are in use.
//!
//! The format has one number for it: `freeblk`, below which every block was handed out at some time. What was given
//! back since is a hole, and is recognised by its bytes: neither a leaf nor a part of a table is all zeros. Holes at
//! the end lower `freeblk`; others are handed out again when there are many. No list of them is kept, so there
//! is none that could be wrong.

use crate::error::Error;
use crate::fat::header::Header;
use crate::store::Store;
use terrane_wire::scattered;

/// Holes that one operation passes over on its way down: `freeblk` may lie as far above the blocks in use as it likes.
const HOLES_PASSED_MAX: u32 = 256;
/// Looks for a hole by one split. Half of the blocks are holes then, so one in 256 splits finds none and takes a
/// block at the end.
const HOLES_SOUGHT: u64 = 8;
/// Holes that are not worth a search.
const HOLES_KEPT: u64 = 16;

/// Takes a block for a leaf: a hole while at least half of the blocks are holes, otherwise the first one never
/// used. So the block numbers of a ZAP that grows and shrinks for ever stay below about twice its largest size. One
/// that only grows never has so many: its holes are its former tables.
pub(crate) fn take_leaf<S: Store + ?Sized>(store: &S, header: &mut Header) -> Result<u64, Error<S::Error>> {
    let next = if header.is_growing() { header.table_numblks.saturating_mul(2) } else { 0 };
    let used = [1, header.num_leafs, header.table_numblks, next].into_iter().fold(0, u64::saturating_add);
    if header.freeblk > used.saturating_mul(2).saturating_add(HOLES_KEPT) {
        for attempt in 0..HOLES_SOUGHT {
            // Any sequence does that differs from one split to the next and depends on nothing but the header.
            let place = scattered(header.freeblk ^ header.num_leafs.rotate_left(32) ^ attempt << 56);
            let block = 1 + place % (header.freeblk - 1);
            if is_hole(store, header, block) {
                return Ok(block);
            }
        }
    }
    header.allocate(1).map_err(Error::damage)
}

/// Lowers `freeblk` past the blocks at the end that are holes, or about to be, however many these are. The header is to be stored before
/// they are given back: the object then ends before them, and a header that speaks of more blocks than there are is damage.
pub(crate) fn lower_freeblk<S: Store + ?Sized>(
    store: &S,
    header: &mut Header,
    is_going: impl Fn(u64) -> bool,
) {
    let next = if header.is_growing() { header.table_numblks.saturating_mul(2) } else { 0 };
    let end = store.block_count().max(header.table_nextblk.saturating_add(next)).max(2);
    header.freeblk = header.freeblk.min(end);
    let mut passed = 0;
    // Block 1 is left: `freeblk` is never below 2.
    while header.freeblk > 2 && passed < HOLES_PASSED_MAX {
        let last = header.freeblk - 1;
        if !is_going(last) {
            if !is_hole(store, header, last) {
                return;
            }
            passed += 1;
        }
        header.freeblk = last;
    }
}

/// Whether a block is in no use. The table being filled counts as used from its beginning: the reference forgets it,
/// hands its blocks to leaves, and loses the table when it is complete.
fn is_hole<S: Store + ?Sized>(store: &S, header: &Header, block: u64) -> bool {
    let table = header.table_blk..header.table_blk.saturating_add(header.table_numblks);
    if table.contains(&block) || header.is_next_table(block) {
        return false;
    }
    // One that cannot be read is not handed out; whoever needs it will say so.
    store.read(block).is_ok_and(|raw| raw.iter().all(|byte| *byte == 0))
}
