//! Keeps the relocation index within its bound as a pool does: reclaimed zones are packed, survivors move in larger parts, and the
//! oldest relocated blocks are rewritten.
//!
//! A snapshot's pointers cannot be rewritten. So only blocks that were born after the newest snapshot are rewritten.

use super::{Block, Simulation};
use terrane_format::{Addr, GRANULE};
use terrane_pool::rewrites_needed;
use terrane_space::zones::over_limit;
use terrane_txg::collector::INDEX_CHECK_BYTES;
use terrane_wire::ZoneSeq;

/// Txgs to wait after a pass through the index that rewrote no block, as in the pool.
const PAUSE_TXGS: u64 = 64;

/// The position of the pass that rewrites the oldest relocated blocks.
#[derive(Default)]
pub struct IndexBound {
    moved_at_check: u64,
    next: ZoneSeq,
    paused_until: u64,
    has_rewritten: bool,
}

impl Simulation {
    /// Keeps the index within the bound of the setting. `None`: the pool is full.
    pub(super) fn keep_index_bound(&mut self) -> Option<()> {
        let most = self.accounting.setting.index_bytes_max;
        if most == 0 {
            return Some(());
        }
        let moved = self.accounting.totals.moved_bytes;
        if moved - self.bound.moved_at_check >= INDEX_CHECK_BYTES.min(self.live_bytes() / 64) {
            self.bound.moved_at_check = moved;
            let tables = &mut self.accounting.tables;
            let size = tables.index_size();
            let packed = size.should_pack(most);
            if packed != size.is_packed {
                tables.replace_reclaimed(tables.reclaimed_in_form(packed));
            }
            let bytes = tables.index_size().bytes();
            self.accounting.is_coarse = over_limit(bytes, most, self.accounting.is_coarse);
        }
        if self.accounting.tables.is_packed() && self.accounting.totals.txgs >= self.bound.paused_until {
            let wanted = rewrites_needed(self.accounting.tables.index_size(), most);
            self.rewrite_oldest(wanted)?;
        }
        Some(())
    }

    /// Rewrites up to this many of the oldest relocated blocks that one pass through the index finds.
    fn rewrite_oldest(&mut self, wanted: u64) -> Option<()> {
        let mut left = wanted;
        while left > 0 {
            let Some((seq, _)) = self.accounting.tables.next_reclaimed(self.bound.next) else {
                if !self.bound.has_rewritten {
                    self.bound.paused_until = self.accounting.totals.txgs + PAUSE_TXGS;
                }
                (self.bound.next, self.bound.has_rewritten) = (ZoneSeq(0), false);
                break;
            };
            self.bound.next = ZoneSeq(seq.0 + 1);
            for addr in self.accounting.relocated_from(seq) {
                if left > 0 && self.rewrite(addr)? {
                    left -= 1;
                    self.bound.has_rewritten = true;
                }
            }
        }
        Some(())
    }

    /// Rewrites a block of the head at a new address. False: a snapshot refers to it, or the head does not.
    fn rewrite(&mut self, addr: Addr) -> Option<bool> {
        let Some((object, block)) = self.owners.get(&addr).copied() else { return Some(false) };
        let newest = self.snapshots.as_ref().map_or(0, |snapshots| snapshots.newest_txg());
        let found = self.objects.get(&object).and_then(|known| known.blocks.get(block as usize));
        let Some(Block { granules, .. }) = found.copied().filter(|found| found.birth > newest) else {
            return Some(false);
        };
        let bytes = u64::from(granules) * GRANULE;
        self.write_block(object, block, bytes)?;
        // It does not count as written by users.
        self.accounting.totals.user_bytes -= bytes;
        self.accounting.written_bytes -= bytes;
        self.accounting.totals.rewritten_bytes += bytes;
        Some(true)
    }
}
