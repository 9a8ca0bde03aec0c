//! Checks whether the directory of a zone agrees with the tables.

use crate::PoolError;
use crate::zone_store::ZoneStore;
use terrane_format::addr::{Addr, granule_bytes};
use terrane_format::block_ptr::Normal;
use terrane_format::directory::Entry;
use terrane_format::rows::Phase;
use terrane_space::zones::Birthplaces;
use terrane_wire::{Txg, ZoneSeq};

/// The state of a directory entry's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// Alive, at this place.
    Live,
    /// Freed, or its birth zone is gone with all its blocks.
    Dead,
    /// Alive, at another place.
    Moved,
    /// None of these: damage.
    Unexplained,
}

/// The state of a block that the directory part of zone `seq` ending at `part_end` lists.
pub(crate) fn state_of(
    birthplaces: &mut Birthplaces<'_>,
    seq: ZoneSeq,
    part_end: u64,
    entry: &Entry,
) -> EntryState {
    let granule = entry.identity.granule();
    match birthplaces.of(entry.identity.seq()) {
        None => EntryState::Dead,
        Some(birth) if birth.born.dead.contains(granule, entry.granules()) => EntryState::Dead,
        Some(birth) if birth.born.dead.overlaps(granule, entry.granules()) => EntryState::Unexplained,
        Some(birth) => match birth.run_of(granule) {
            Some(run) if run.is_listed_in(seq, part_end) => EntryState::Live,
            Some(_) => EntryState::Moved,
            None if !birth.is_resident => EntryState::Dead,
            None if entry.identity.seq() == seq => EntryState::Live,
            None => EntryState::Unexplained,
        },
    }
}

impl ZoneStore {
    /// The directory of a zone: every entry and the state of its block.
    pub fn directory(&self, seq: ZoneSeq) -> Result<Vec<(Entry, EntryState)>, PoolError> {
        let Some(pinned) = self.pin(seq) else { return Ok(Vec::new()) };
        let claimed = self.tables.read().zones.get(&seq).map_or(0, |zone| zone.claimed);
        let parts = self.parts_of(&pinned, claimed)?;
        let tables = self.tables.read();
        let mut birthplaces = tables.birthplaces();
        let mut out = Vec::new();
        for part in &parts {
            for entry in &part.entries {
                let state = state_of(&mut birthplaces, seq, part.end, entry);
                out.push((entry.clone(), state));
            }
        }
        Ok(out)
    }

    /// Whether directory, table row and blocks of a zone agree. An error if they could not be read.
    pub fn is_explained(&self, seq: ZoneSeq) -> Result<bool, PoolError> {
        let Some(pinned) = self.pin(seq) else { return Ok(false) };
        let entries = match self.directory(seq) {
            Ok(entries) => entries,
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => return Ok(false),
        };
        let mut live = 0;
        for (entry, state) in &entries {
            match state {
                EntryState::Dead | EntryState::Moved => {}
                EntryState::Unexplained => return Ok(false),
                EntryState::Live => {
                    live += granule_bytes(u64::from(entry.psize));
                    if self.entry_bytes(&pinned, entry)?.is_none() {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(self.tables.read().zones.get(&seq).is_some_and(|zone| zone.live == live))
    }
    /// Whether every entry of a zone's directory is dead or moved. An error if the directory cannot be read.
    pub fn is_fully_explained(&self, seq: ZoneSeq, imported: Txg) -> Result<bool, PoolError> {
        let Some(pinned) = self.pin(seq) else { return Ok(true) };
        let (claimed, phase) = {
            let tables = self.tables.read();
            tables.zones.get(&seq).map_or((0, Phase::Reclaimed), |zone| (zone.claimed, zone.phase))
        };
        let parts = match self.parts_of(&pinned, claimed) {
            Ok(parts) => parts,
            // The zone was reset before the crash, and the record of the reset was lost. Nothing lives in it, so it is reset again.
            Err(_) if matches!(phase, Phase::Emptied(txg) if txg <= imported) => return Ok(true),
            Err(error) => return Err(error),
        };
        let tables = self.tables.read();
        let mut birthplaces = tables.birthplaces();
        Ok(parts.iter().flat_map(|part| &part.entries).all(|entry| {
            // A birth zone that the tables have dropped has no survivors.
            let Some(birth) = birthplaces.of(entry.identity.seq()) else { return true };
            let granule = entry.identity.granule();
            match birth.run_of(granule) {
                _ if birth.born.dead.contains(granule, entry.granules()) => true,
                Some(run) => run.dest != seq,
                None => !birth.is_resident,
            }
        }))
    }
    /// Whether the directory entry's bytes match its CRC.
    pub fn entry_matches_crc(&self, seq: ZoneSeq, entry: &Entry) -> bool {
        let Some(pinned) = self.pin(seq) else { return false };
        let mut bytes = vec![0; entry.psize as usize];
        self.read_zone(&pinned, entry.offset, &mut bytes).is_ok() && crc32c::crc32c(&bytes) == entry.crc
    }

    /// The first bytes of a stored block, at most `bytes`, unverified. They hold the header of its compression algorithm.
    pub fn stored_head(&self, normal: &Normal, bytes: usize) -> Result<Vec<u8>, PoolError> {
        let addr = normal.copies().next().unwrap_or(Addr::NONE);
        let (pinned, offset) = self.locate(addr, normal.psize)?;
        let mut head = vec![0; bytes.min(normal.psize as usize)];
        self.read_zone(&pinned, offset, &mut head)?;
        Ok(head)
    }
}
