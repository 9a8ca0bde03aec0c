//! Whether the newest group is on the medium, when the life before did not end properly.
//!
//! A flush that fails after the uberblock was appended stops a pool, and every `fsync` that waited for the group has failed. What the next
//! import does with that group is free: it may be there or not. But the host's page cache may hold what the medium never got, uberblock and
//! blocks alike, and drives lie as well. To go on with such a group would be to build on blocks that vanish, while the group before was
//! whole. So what the host caches is dropped before anything is read, and then the blocks of the group are read whose loss would reach
//! beyond its own files: metadata, and what collection moved. If one of them has no good copy import refuses, and names the choice: the
//! group before, or this one all the same.
//!
//! File data that is new in the group is not read: a promise of it was never kept, or its flush succeeded. Nor is anything refused because
//! it cannot be read for the moment.

use crate::zone_store::ZoneStore;
use terrane_format::directory::Entry;
use terrane_format::record::Class;
use terrane_format::rows::Phase;
use terrane_wire::{Corrupt, Txg, ZoneSeq};

impl ZoneStore {
    /// Reads what group `txg` wrote to these zones, as far as it matters to others.
    pub fn verify_newest(&self, txg: Txg, zones: impl IntoIterator<Item = ZoneSeq>) -> Result<(), Corrupt> {
        let mut lost_parts: Vec<Corrupt> = Vec::new();
        for seq in zones {
            let claimed = {
                let tables = self.tables.read();
                let zone = tables.zones.get(&seq).filter(|zone| zone.live > 0);
                zone.filter(|zone| matches!(zone.phase, Phase::Open | Phase::Full)).map(|zone| zone.claimed)
            };
            let (Some(mut end), Some(held)) = (claimed, self.hold(seq)) else { continue };
            while end > 0 {
                let part = match self.part(&held, end) {
                    Ok(part) => part,
                    Err(error) => {
                        log::error!("zone {seq}: {error}");
                        // That of file data is missed when its zone is collected.
                        if !error.may_pass() && held.class != Class::Data {
                            let expected = format_args!("what group {txg} wrote");
                            let at = format_args!("zone {seq}");
                            let lost = Corrupt::new(at, "directory part", expected, error);
                            if held.class == Class::Collection {
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
                    // One that cannot be read may be good.
                    if let Ok(None) = self.entry_bytes(&held, entry) {
                        let at = format!("zone {seq}, block born at {}", entry.identity);
                        return Err(Corrupt::new(
                            at,
                            "bytes",
                            format_args!("what group {txg} wrote"),
                            "others in all copies",
                        ));
                    }
                }
                end = part.previous.filter(|previous| *previous < end).unwrap_or(0);
            }
        }
        // Of metadata one zone has a copy that is in another.
        match lost_parts.len() {
            0 | 1 => Ok(()),
            _ => lost_parts.pop().map_or(Ok(()), Err),
        }
    }

    /// Metadata, or a block that was moved, and that lives.
    fn is_needed(&self, seq: ZoneSeq, entry: &Entry) -> bool {
        if entry.siblings.is_empty() && !entry.is_moved(seq) {
            return false;
        }
        let tables = self.tables.read();
        let birth = tables.birthplace(entry.identity.seq());
        birth.is_some_and(|birth| !birth.born.dead.overlaps(entry.identity.granule(), entry.granules()))
    }
}
