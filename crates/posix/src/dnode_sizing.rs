//! Sizes of new dnodes, where the property leaves it to us (`dnodesize=auto`).
//!
//! A dnode keeps its size for life. One slot holds all numbers and 184 bytes beside them. If every new file
//! gets a label, ACLs and some user attributes, they need more, and each access costs a second read. So a new
//! inode gets two slots in two cases: its initial attributes need them, or recent inodes came to need them.
//!
//! Recent means: each inode that outgrows one slot in the txg of its birth or the next pays for a few later
//! ones.

use std::sync::atomic::{AtomicU32, Ordering};
use terrane_dataset::DnodeSize;
use terrane_object::Object;
use terrane_object::dnode::Dnode;
use terrane_pool::Tx;
use terrane_sa::AttrList;

/// Slots of a larger dnode.
const WIDE_SLOTS: u8 = 2;
/// Score that an inode adds if it outgrows one slot. Each new inode subtracts 1.
const OUTGROWN_SCORE: u32 = 4;
/// From this score on, new dnodes are wide.
const WIDE_SCORE: u32 = 16;
const SCORE_MAX: u32 = 64;

#[derive(Debug, Default)]
pub(crate) struct DnodeSizing {
    score: AtomicU32,
}

impl DnodeSizing {
    /// Slots for a new inode with these attributes.
    pub fn slots_for_new(&self, size: DnodeSize, list: &AttrList) -> u8 {
        match size {
            DnodeSize::Slots(slots) => slots,
            DnodeSize::Auto => {
                let score = self.score.load(Ordering::Relaxed);
                if score > 0 {
                    // A race loses a count, which is harmless.
                    self.score.store(score - 1, Ordering::Relaxed);
                }
                let bytes = list.iter().fold(8usize, |end, (_, value)| end.next_multiple_of(8) + value.len());
                if score >= WIDE_SCORE || needs_wide(bytes) { WIDE_SLOTS } else { 1 }
            }
        }
    }

    /// Records that an inode's attributes were stored in `bytes` bytes.
    pub fn note_stored_size(&self, tx: &Tx, object: &Object, bytes: usize) {
        // A birth in the future is damage.
        let is_new = tx.txg().0.saturating_sub(object.birth().0) <= 1;
        if needs_wide(bytes) && is_new {
            let score = self.score.load(Ordering::Relaxed);
            self.score.store((score + OUTGROWN_SCORE).min(SCORE_MAX), Ordering::Relaxed);
        }
    }
}

/// More bytes than one slot holds, but no more than a wide one does. Beyond that, a spill block is needed
/// anyway.
fn needs_wide(bytes: usize) -> bool {
    (Dnode::bonus_max(1) + 1..=Dnode::bonus_max(WIDE_SLOTS)).contains(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_sa::ZplAttrs;

    #[test]
    fn wide_dnodes_are_for_large_attributes_and_after_outgrown_ones() {
        let sizing = DnodeSizing::default();
        let plain = ZplAttrs::default().to_list();
        let with = |bytes: usize| ZplAttrs { dxattr: Some(vec![0; bytes]), ..ZplAttrs::default() }.to_list();
        assert_eq!(sizing.slots_for_new(DnodeSize::Auto, &plain), 1);
        assert_eq!(sizing.slots_for_new(DnodeSize::Auto, &with(184)), 1);
        assert_eq!(sizing.slots_for_new(DnodeSize::Auto, &with(185)), 2);
        assert_eq!(sizing.slots_for_new(DnodeSize::Auto, &with(696)), 2);
        assert_eq!(sizing.slots_for_new(DnodeSize::Auto, &with(697)), 1, "it needs a spill block anyway");
        assert_eq!(sizing.slots_for_new(DnodeSize::Slots(8), &plain), 8);
        sizing.score.store(WIDE_SCORE + 1, Ordering::Relaxed);
        let slots: Vec<u8> = (0..4).map(|_| sizing.slots_for_new(DnodeSize::Auto, &plain)).collect();
        assert_eq!(slots, [2, 2, 1, 1], "it is forgotten");
    }
}
