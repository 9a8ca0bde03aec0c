//! Allocation of the object's blocks.
//!
//! The format has one number for it: every block below `freeblk` was allocated at some time. A freed block is a hole,
//! and is recognised by its bytes: neither a leaf nor a part of a table is all zeros. Holes at the end lower
//! `freeblk`; others are reused when there are many. There is no list of them, so no list can be wrong.

use crate::error::Error;
use crate::fat::header::Header;
use crate::store::Store;
use terrane_wire::mix64;

/// Holes that one operation skips while it lowers `freeblk`, which may lie any distance above the used blocks.
const HOLES_SKIPPED_MAX: u32 = 256;
/// Tries for a hole per split. As half of the blocks are holes then, one in 256 splits finds none and takes a block
/// at the end.
const HOLE_TRIES: u64 = 8;
/// So few holes are not worth a search.
const HOLES_TOLERATED: u64 = 16;

/// Allocates a block for a leaf: a hole while at least half of the blocks are holes, else the first block that was
/// never used. So the block numbers of a ZAP that grows and shrinks for ever stay below about twice its largest size.
/// A ZAP that only grows never has so many holes: they are its former tables.
pub(crate) fn allocate_leaf<S: Store + ?Sized>(
    store: &S,
    header: &mut Header,
) -> Result<u64, Error<S::Error>> {
    let next = if header.is_growing() { header.table_numblks.saturating_mul(2) } else { 0 };
    let used = [1, header.num_leafs, header.table_numblks, next].into_iter().fold(0, u64::saturating_add);
    if header.freeblk > used.saturating_mul(2).saturating_add(HOLES_TOLERATED) {
        for attempt in 0..HOLE_TRIES {
            // Any sequence does that differs between splits and depends only on the header.
            let place = mix64(header.freeblk ^ header.num_leafs.rotate_left(32) ^ attempt << 56);
            let block = 1 + place % (header.freeblk - 1);
            if is_hole(store, header, block) {
                return Ok(block);
            }
        }
    }
    header.allocate(1).map_err(Error::damage)
}

/// Lowers `freeblk` past the blocks at the end that are holes, or for which `will_be_hole` is true, however many. The
/// header must be stored before they are freed. The object then ends before them, and a header that names more blocks
/// than exist is damage.
pub(crate) fn lower_freeblk<S: Store + ?Sized>(
    store: &S,
    header: &mut Header,
    will_be_hole: impl Fn(u64) -> bool,
) {
    let next = if header.is_growing() { header.table_numblks.saturating_mul(2) } else { 0 };
    let end = store.block_count().max(header.table_nextblk.saturating_add(next)).max(2);
    header.freeblk = header.freeblk.min(end);
    let mut skipped = 0;
    // Block 1 is kept: `freeblk` is never below 2.
    while header.freeblk > 2 && skipped < HOLES_SKIPPED_MAX {
        let last = header.freeblk - 1;
        if !will_be_hole(last) {
            if !is_hole(store, header, last) {
                return;
            }
            skipped += 1;
        }
        header.freeblk = last;
    }
}

/// Whether a block is unused. The table being filled counts as used from its beginning. OpenZFS forgets it, gives its
/// blocks to leaves, and loses the table when it is complete.
fn is_hole<S: Store + ?Sized>(store: &S, header: &Header, block: u64) -> bool {
    let table = header.table_blk..header.table_blk.saturating_add(header.table_numblks);
    if table.contains(&block) || header.is_next_table(block) {
        return false;
    }
    // An unreadable block is not reused. The operation that needs it will report the error.
    store.read(block).is_ok_and(|raw| raw.iter().all(|byte| *byte == 0))
}
