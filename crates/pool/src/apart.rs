//! Separates metadata copies that had to share a zone.
//!
//! The two copies of a block lie in different zones, so that the loss of one zone never takes both. But a txg
//! must commit even when no zone is empty and one of the open metadata zones is full. Then both copies go to
//! the other zone.
//!
//! Such blocks are noted, and the second copy moves as soon as there is space. An import forgets the notes.
//! Then GC separates the copies when it empties their zone, because it never puts a copy where its sibling
//! is.

use crate::mover::Mover;
use crate::pool::Group;
use terrane_format::addr::Addr;
use terrane_space::policy::Age;
use terrane_store::append::Shared;
use terrane_store::reader::Heal;
use terrane_txg::admission::room::PARTED_BYTES_MIN;
use terrane_wire::ZoneSeq;

/// Maximum number of noted blocks; GC separates any others.
const NOTED_MAX: usize = 4096;
/// Maximum number of copies that one txg moves. GC rests in a txg that healed or separated blocks.
const PARTED_MAX: usize = 256;

impl Mover<'_, '_> {
    /// Chooses the slot for a block that moves, so that its copies stay in different zones.
    ///
    /// Metadata stays with metadata: indirect blocks and dnodes are rewritten far sooner than most data.
    /// Among survivors of data they would soon be garbage that GC reclaims late.
    pub(crate) fn slot_apart_from(&self, near: &[ZoneSeq], age: Age) -> usize {
        let layout = self.group.st.streams.layout();
        let own = layout.survivors(age);
        if near.is_empty() {
            return own;
        }
        let [a, b] = layout.meta();
        [b, a, own]
            .into_iter()
            .find(|slot| self.group.st.streams.zone_of(*slot).is_none_or(|zone| !near.contains(&zone)))
            .unwrap_or(own)
    }

    /// Zones in which blocks lie, including moves of this txg.
    pub(crate) fn zones_now(&self, addrs: &[Addr]) -> Vec<ZoneSeq> {
        let committed = |addr: &Addr| self.group.pool.store.tables.read().current_zone(*addr);
        addrs
            .iter()
            .filter_map(|addr| self.group.commit.moved_now.get(addr).copied().or_else(|| committed(addr)))
            .collect()
    }

    /// Postpones the move of a copy, because zones are short.
    pub(crate) fn wait_for_zones(&mut self, heal: Heal) {
        if heal.is_damaged {
            self.group.pool.reader.heal_later(heal);
            return;
        }
        // Heals keep the block's bytes in memory, which is only for damaged blocks. A shared copy is read
        // again later.
        let (psize, crc) = (heal.bytes.len() as u32, crc32c::crc32c(&heal.bytes));
        let Heal { addr, siblings, birth, owner, .. } = heal;
        self.group.st.shared.push_back(Shared { addr, siblings, psize, crc, birth, owner });
    }

    /// Moves copies that share a zone, by the same path as heals. If zones are short, it moves only what fits
    /// the open metadata slots.
    pub(crate) fn part_copies(&mut self) {
        let mut left = PARTED_MAX;
        let mut left_bytes =
            match self.group.st.alloc.empty_count() >= self.group.pool.admission.sizes().low_water() {
                true => u64::MAX,
                false => self.group.pool.admission.room_to_part(self.group.st),
            };
        while left > 0
            && left_bytes >= PARTED_BYTES_MIN
            && self.group.pool.admission.may_part(self.group.st)
            && let Some(shared) = self.group.st.shared.pop_front()
        {
            let Some(bytes) = self.group.pool.store.shared_bytes(&shared) else { continue };
            let Shared { addr, siblings, birth, owner, psize, .. } = shared;
            self.group.pool.reader.heal_later(Heal {
                addr,
                bytes,
                birth,
                owner,
                siblings,
                is_damaged: false,
            });
            left -= 1;
            left_bytes = left_bytes.saturating_sub(u64::from(psize));
        }
    }
}

impl Group<'_> {
    /// Notes the copies that this txg's appends had to put into one zone.
    pub(crate) fn note_shared(&mut self, shared: Vec<Shared>) {
        let room = NOTED_MAX.saturating_sub(self.st.shared.len());
        self.st.shared.extend(shared.into_iter().take(room));
    }
}
