//! Selects blocks to rewrite at new addresses (*rewrite*), so that the relocation index can drop their
//! entries.
//!
//! The index has an entry for each run of survivors, and unchanged blocks survive forever. A few old blocks
//! of every zone that was ever filled can make it arbitrarily large. Packing it and moving larger parts makes
//! it smaller, but bounds nothing.
//!
//! If that is not enough, the owners rewrite the oldest of these blocks, as if they were overwritten with the
//! same content. Then the blocks lie at their birthplace, and need no index entry. The cost is that of a
//! move, plus the pointers above. (Pointers could not be changed if several trees shared a block; today one
//! tree holds each.)
//!
//! The oldest blocks come first: their age shows that they will not die soon. A metadata block qualifies if
//! one copy has moved, and both are rewritten.

use crate::pool::Pool;
use crate::pool::Tx;
use terrane_format::addr::Addr;
use terrane_format::directory::Owner;
use terrane_format::record::Run;
use terrane_space::zones::IndexSize;
use terrane_wire::{Txg, ZoneSeq};

/// A block that moved, and whose birth zone was reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelocatedBlock {
    /// The owner, which rewrites the block.
    pub owner: Owner,
    /// Birthplace of the copy that moved.
    pub addr: Addr,
}

/// Progress of the thread that rewrites blocks.
#[derive(Debug, Default)]
pub struct RewriteCursor {
    /// The next birth zone, and the granule in it.
    next: (ZoneSeq, u32),
    /// Number of blocks needed, computed after this txg had synced. It does not change before the next sync.
    needed: Option<(Txg, u64)>,
    /// Blocks that were selected since, and the newest txg that writes some of them. When it syncs, the index
    /// shrinks.
    selected: u64,
    newest_txg: Txg,
    /// The newest synced txg when the pass began, and when it came to the end of the last birth zone.
    began: Txg,
    ended: Option<Txg>,
    /// `has_rewritten`: a block was rewritten in this pass. `was_idle`: none was in the pass before. Blocks
    /// that were selected last may be rewritten only in the next pass. After two passes without a rewrite,
    /// the selection pauses until txg `paused_until`.
    has_rewritten: bool,
    was_idle: bool,
    paused_until: Txg,
}

impl RewriteCursor {
    /// All birth zones were visited.
    fn pass_ended(&mut self, synced: Txg) {
        if !self.has_rewritten && self.was_idle {
            self.paused_until = Txg(synced.0 + PAUSE_TXGS);
        }
        self.was_idle = !self.has_rewritten;
        // If the pass began before this txg had synced, the next one may begin at once.
        self.ended = Some(synced).filter(|_| self.began == synced);
        (self.next, self.has_rewritten, self.began) = ((ZoneSeq(0), 0), false, synced);
    }

    /// Records that a selected block is rewritten in this transaction.
    pub fn note_rewrite(&mut self, tx: &Tx) {
        (self.has_rewritten, self.newest_txg) = (true, self.newest_txg.max(tx.txg()));
    }
}

/// Maximum number of blocks selected at once.
const SELECTED_MAX: u64 = 256;
/// Maximum number of directory parts read for one selection.
const PARTS_MAX: usize = 64;
/// Length of the pause, in txgs, after passes in which no selected block was rewritten. Otherwise the same
/// parts would be read again and again.
const PAUSE_TXGS: u64 = 64;
/// Runs may always take 1/`RUNS_DIVISOR` of the bound. If dead sets take all of it, rewriting would not help.
const RUNS_DIVISOR: u64 = 2;
/// Index bytes saved per rewritten block. A run takes some 24, and holds several blocks.
const RUN_BYTES: u64 = 6;

/// Minimum number of blocks to rewrite, so that all tables together take at most `most` bytes.
pub fn needed(size: IndexSize, most: u64) -> u64 {
    let above =
        size.bytes().saturating_sub(most).min(size.run_index_bytes.saturating_sub(most / RUNS_DIVISOR));
    if size.is_packed { above.div_ceil(RUN_BYTES) } else { 0 }
}

impl Pool {
    /// Blocks to rewrite now: those of the next birth zones, and after the last one again from the first.
    ///
    /// Empty while the index keeps within its bound, or while selected blocks are not committed yet. It may
    /// also be empty if the directory parts that one call reads held none.
    pub fn blocks_to_rewrite(&self, cursor: &mut RewriteCursor) -> Vec<RelocatedBlock> {
        let mut found = Vec::new();
        let synced = self.admission.synced();
        // Selected blocks stay in the index until the next txg has synced.
        if synced < cursor.paused_until || cursor.ended == Some(synced) {
            return found;
        }
        let wanted = match cursor.needed {
            Some((txg, wanted)) if txg == synced => wanted,
            _ => self.rewrites_needed(),
        };
        cursor.needed = Some((synced, wanted));
        if synced >= cursor.newest_txg {
            cursor.selected = 0;
        }
        let most = wanted.saturating_sub(cursor.selected).min(SELECTED_MAX) as usize;
        if most == 0 {
            return found;
        }
        let mut parts = PARTS_MAX;
        while parts > 0 && found.len() < most {
            let next = self.store.tables.read().next_reclaimed(cursor.next.0);
            let Some((seq, runs)) = next else {
                cursor.pass_ended(synced);
                break;
            };
            let from = if seq == cursor.next.0 { cursor.next.1 } else { 0 };
            cursor.next = match self.select_in_zone((seq, from), &runs, (&mut parts, most), &mut found) {
                Some(granule) => (seq, granule),
                None => (ZoneSeq(seq.0 + 1), 0),
            };
        }
        cursor.selected += found.len() as u64;
        cursor.newest_txg = cursor.newest_txg.max(self.admission.open());
        found
    }

    fn rewrites_needed(&self) -> u64 {
        let tables = self.store.tables.read();
        // Computing the size visits all rows, and rows that are not packed yet will be.
        if tables.is_packed() { needed(tables.index_size(), self.collection.index_bytes_max()) } else { 0 }
    }

    /// Selects live blocks that were born in a zone, from a granule on. Returns the granule to continue at,
    /// unless all runs were visited.
    fn select_in_zone(
        &self,
        (seq, from): (ZoneSeq, u32),
        runs: &[Run],
        (parts, most): (&mut usize, usize),
        found: &mut Vec<RelocatedBlock>,
    ) -> Option<u32> {
        for run in runs.iter().filter(|run| run.last >= from) {
            if *parts == 0 {
                return Some(run.first);
            }
            *parts -= 1;
            let Some(held) = self.store.pin(run.dest) else { continue };
            // An unreadable block stays where it is.
            let Ok(part) = self.store.part(&held, run.part_end()) else { continue };
            let granules = run.first.max(from)..=run.last;
            let born_there = part.entries.iter().filter(|entry| entry.identity.seq() == seq);
            // A damaged block needs repair, not a move.
            let whole = born_there.filter(|entry| {
                granules.contains(&entry.identity.granule())
                    && matches!(entry.owner, Owner::Block { .. })
                    && !self.reports.log.may_be_damaged(entry.owner)
            });
            let tables = self.store.tables.read();
            // No block born in the zone is live any more.
            let birthplace = tables.birthplace(seq)?;
            for entry in whole {
                let granule = entry.identity.granule();
                if found.len() >= most {
                    return Some(granule);
                }
                let is_here =
                    birthplace.run_of(granule).is_some_and(|now| now.is_listed_in(run.dest, run.part_end()));
                if is_here && !birthplace.born.dead.overlaps(granule, entry.granules()) {
                    found.push(RelocatedBlock { owner: entry.owner, addr: entry.identity });
                }
            }
        }
        None
    }

    /// Counts rewritten blocks by their stored bytes.
    pub fn note_rewritten(&self, bytes: u64) {
        self.store.counters.rewritten_bytes.add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rewritten_only_when_packing_is_not_enough() {
        let size = |run_index_bytes, dead_set_bytes| IndexSize {
            run_index_bytes,
            dead_set_bytes,
            is_packed: true,
            ..IndexSize::default()
        };
        assert_eq!(needed(size(900, 200), 1000), 17);
        assert_eq!(needed(size(900, 100), 1000), 0, "it keeps within its bound");
        assert_eq!(needed(IndexSize { is_packed: false, ..size(900, 200) }, 1000), 0, "it can be packed");
        assert_eq!(needed(size(500, 5000), 1000), 0, "it is not runs that take it");
        assert_eq!(needed(size(506, 5000), 1000), 1, "nor most of it");
        assert_eq!((needed(size(1, 0), 0), needed(size(0, 5000), 0)), (1, 0));
    }
}
