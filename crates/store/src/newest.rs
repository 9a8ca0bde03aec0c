//! Verifies after an unclean end that the newest txg is on the medium.
//!
//! A flush that fails after the uberblock was appended stops the pool, and every `fsync` that waited for the txg has failed. The next
//! import may keep that txg or not. But the host's page cache may hold an uberblock and blocks that the medium never got, and drives
//! lie as well. A pool that went on from such a txg would build on blocks that vanish, while the txg before it was whole. So import
//! drops the host's cache before it reads anything. Then it reads the blocks whose loss would reach beyond their own files: metadata,
//! and blocks that the collector moved. If such a block has no good copy, import refuses. It offers the txg before, or this one despite
//! the loss.
//!
//! File data that is new in the txg is not read: either its flush succeeded, or no `fsync` returned for it. Import also does not refuse
//! for a read error that may be transient.

use crate::zone_store::ZoneStore;
use std::collections::BTreeSet;
use terrane_format::directory::Entry;
use terrane_format::record::ZoneClass;
use terrane_format::rows::Phase;
use terrane_wire::{Corrupt, Txg, ZoneSeq};

impl ZoneStore {
    /// Reads what txg `txg` wrote to these zones and other data depends on. It moved blocks to the zones `moved_to`.
    pub fn verify_newest(
        &self,
        txg: Txg,
        zones: impl IntoIterator<Item = ZoneSeq>,
        moved_to: &BTreeSet<ZoneSeq>,
    ) -> Result<(), Corrupt> {
        let mut lost_parts: Vec<Corrupt> = Vec::new();
        for seq in zones {
            let claimed = {
                let tables = self.tables.read();
                let zone = tables.zones.get(&seq).filter(|zone| zone.live > 0);
                zone.filter(|zone| matches!(zone.phase, Phase::Open | Phase::Full)).map(|zone| zone.claimed)
            };
            let (Some(mut end), Some(pinned)) = (claimed, self.pin(seq)) else { continue };
            while end > 0 {
                let part = match self.part(&pinned, end) {
                    Ok(part) => part,
                    Err(error) => {
                        log::error!("zone {seq}: directory part failed: {error}");
                        // For file data, a lost directory part is noticed when the zone is collected.
                        let has_moved = pinned.class == ZoneClass::Collection || moved_to.contains(&seq);
                        if !error.is_transient() && (pinned.class != ZoneClass::Data || has_moved) {
                            let expected = format_args!("what txg {txg} wrote");
                            let at = format_args!("zone {seq}");
                            let lost = Corrupt::new(at, "directory part", expected, error);
                            // While zones are short, moved blocks go to zones of any class.
                            if has_moved {
                                return Err(lost);
                            }
                            lost_parts.push(lost);
                        }
                        break;
                    }
                };
                if part.txg != txg {
                    break;
                }
                for entry in part.entries.iter().filter(|entry| self.is_needed(seq, entry)) {
                    // A block that could not be read may be good.
                    if let Ok(None) = self.entry_bytes(&pinned, entry) {
                        let at = format!("zone {seq}, block born at {}", entry.identity);
                        return Err(Corrupt::new(
                            at,
                            "bytes",
                            format_args!("what txg {txg} wrote"),
                            "other bytes in all copies",
                        ));
                    }
                }
                end = part.previous.filter(|previous| *previous < end).unwrap_or(0);
            }
        }
        // Each metadata block has a copy in another zone, so one lost part is not fatal.
        match lost_parts.len() {
            0 | 1 => Ok(()),
            _ => lost_parts.pop().map_or(Ok(()), Err),
        }
    }

    /// Whether the entry is metadata or a moved block, and alive.
    fn is_needed(&self, seq: ZoneSeq, entry: &Entry) -> bool {
        if entry.other_copies.is_empty() && !entry.is_moved(seq) {
            return false;
        }
        let tables = self.tables.read();
        let birth = tables.birthplace(entry.identity.seq());
        birth.is_some_and(|birth| !birth.born.dead.overlaps(entry.identity.granule(), entry.granules()))
    }
}
