//! Separates metadata copies that had to share a zone.
//!
//! The two copies of a block lie in different zones, so that the loss of one zone never takes both. But a txg
//! must commit even when no zone is empty and one of the open metadata zones is full. Then both copies go to
//! the other zone.
//!
//! Such blocks are noted, and the second copy moves as soon as there is space. An import forgets the notes.
//! Then GC separates the copies when it empties their zone, because it never puts a copy where another one
//! is.

use crate::mover::Mover;
use crate::pool::TxgSync;
use terrane_format::addr::Addr;
use terrane_space::policy::Age;
use terrane_store::append::ColocatedCopy;
use terrane_store::reader::Heal;
use terrane_txg::admission::space::SEPARATED_BYTES_MIN;
use terrane_wire::ZoneSeq;

/// Maximum number of noted blocks; GC separates any others.
const NOTED_MAX: usize = 4096;
/// Maximum number of copies that one txg moves. GC rests in a txg that healed or separated blocks.
const SEPARATED_MAX: usize = 256;

impl Mover<'_, '_> {
    /// Chooses the slot for a block that moves, so that its copies stay in different zones.
    ///
    /// Metadata stays with metadata: indirect blocks and dnodes are rewritten far sooner than most data.
    /// Among survivors of data they would soon be garbage that GC reclaims late.
    pub(crate) fn slot_avoiding(&self, near: &[ZoneSeq], age: Age) -> usize {
        let layout = self.txg_sync.st.streams.layout();
        let own = layout.survivors(age);
        if near.is_empty() {
            return own;
        }
        let [a, b] = layout.meta();
        [b, a, own]
            .into_iter()
            .find(|slot| self.txg_sync.st.streams.zone_of(*slot).is_none_or(|zone| !near.contains(&zone)))
            .unwrap_or(own)
    }

    /// Zones in which blocks lie, including moves of this txg.
    pub(crate) fn current_zones(&self, addrs: &[Addr]) -> Vec<ZoneSeq> {
        let committed = |addr: &Addr| self.txg_sync.pool.store.tables.read().current_zone(*addr);
        addrs
            .iter()
            .filter_map(|addr| self.txg_sync.commit.moved_now.get(addr).copied().or_else(|| committed(addr)))
            .collect()
    }

    /// Postpones the move of a copy, because zones are short.
    pub(crate) fn postpone_move(&mut self, heal: Heal) {
        if heal.is_damaged {
            self.txg_sync.pool.reader.requeue_heal(heal);
            return;
        }
        // Heals keep the block's bytes in memory, which is only for damaged blocks. A shared copy is read
        // again later.
        let (psize, crc) = (heal.bytes.len() as u32, crc32c::crc32c(&heal.bytes));
        let Heal { addr, other_copies, birth, owner, .. } = heal;
        self.txg_sync.st.colocated.push_back(ColocatedCopy { addr, other_copies, psize, crc, birth, owner });
    }

    /// Moves copies that share a zone, by the same path as heals. If zones are short, it moves only what fits
    /// the open metadata slots.
    pub(crate) fn separate_copies(&mut self) {
        let mut left = SEPARATED_MAX;
        let mut left_bytes = match self.txg_sync.st.alloc.empty_count()
            >= self.txg_sync.pool.admission.sizes().min_empty_zones()
        {
            true => u64::MAX,
            false => self.txg_sync.pool.admission.separation_budget(self.txg_sync.st),
        };
        while left > 0
            && left_bytes >= SEPARATED_BYTES_MIN
            && self.txg_sync.pool.admission.may_separate(self.txg_sync.st)
            && let Some(shared) = self.txg_sync.st.colocated.pop_front()
        {
            let Some(bytes) = self.txg_sync.pool.store.colocated_bytes(&shared) else { continue };
            let ColocatedCopy { addr, other_copies, birth, owner, psize, .. } = shared;
            self.txg_sync.pool.reader.requeue_heal(Heal {
                addr,
                bytes,
                birth,
                owner,
                other_copies,
                is_damaged: false,
            });
            left -= 1;
            left_bytes = left_bytes.saturating_sub(u64::from(psize));
        }
    }
}

impl TxgSync<'_> {
    /// Notes the copies that this txg's appends had to put into one zone.
    pub(crate) fn note_colocated(&mut self, shared: Vec<ColocatedCopy>) {
        let space_left = NOTED_MAX.saturating_sub(self.st.colocated.len());
        self.st.colocated.extend(shared.into_iter().take(space_left));
    }
}
