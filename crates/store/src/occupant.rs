//! What lies at an address: for people who look at one block.
//!
//! Nothing is verified that is not needed to find it, so that damaged blocks can be looked at.

use crate::PoolError;
use crate::explain::{EntryState, state_of};
use crate::pinned_zone::PinnedZone;
use crate::zone_store::ZoneStore;
use terrane_format::addr::{Addr, granule_bytes};
use terrane_format::directory::{Entry, PartTrailer, parse_trailer};
use terrane_format::record::{Home, ZoneClass};
use terrane_format::zone_header::ZoneHeader;
use terrane_wire::{Corrupt, ZoneSeq};

/// More stored bytes no block has; a directory that lists more lies.
const STORED_BYTES_MAX: u32 = 64 << 20;

/// What a zone holds at an offset.
#[derive(Clone, Debug)]
pub enum Occupant {
    /// The header of the zone.
    Header,
    /// A block that begins there or before, and its state.
    Block(Entry, EntryState),
    /// A directory part: its trailer, and its end in bytes.
    Part(Box<PartTrailer>, u64),
    /// Zeros between blocks, or before a directory part.
    Padding,
    /// No committed txg has written there.
    Unwritten,
}

/// Stored bytes as one replica has them.
#[derive(Clone, Debug)]
pub struct StoredCopy {
    /// The zone that holds them now.
    pub seq: ZoneSeq,
    /// Its class.
    pub class: ZoneClass,
    /// The replica.
    pub home: Home,
    /// Their offset in the zone, in bytes.
    pub offset: u64,
    /// The bytes, unverified.
    pub bytes: Result<Vec<u8>, PoolError>,
}

impl StoredCopy {
    /// CRC-32C of the bytes, which a directory has as well. `None`: they could not be read.
    pub fn crc(&self) -> Option<u32> {
        self.bytes.as_ref().ok().map(|bytes| crc32c::crc32c(bytes))
    }
}

impl ZoneStore {
    /// The zone and the offset of the block born at `addr`, if that is where a block begins. A block that did not move
    /// is expected at its birthplace. `None`: the tables do not have the birth zone any more.
    pub fn position_of(&self, addr: Addr) -> Result<Option<(ZoneSeq, u64)>, PoolError> {
        let at_birth = (addr.seq(), addr.offset());
        let (pinned, part_end, is_resident) = {
            let tables = self.tables.read();
            let Some(run) = tables.locate(addr) else { return Ok(None) };
            let Some(run) = run else { return Ok(Some(at_birth)) };
            let zone = tables.zones.get(&run.dest).map(|zone| PinnedZone::new(run.dest, zone));
            let unknown = || Corrupt::new(addr, "zone of a run", "in the zone tables", "nothing");
            (zone.ok_or_else(unknown)?, run.part_end(), tables.zones.contains_key(&addr.seq()))
        };
        let part = self.part(&pinned, part_end)?;
        Ok(match part.find(addr) {
            Some(entry) => Some((pinned.seq, entry.offset)),
            None => is_resident.then_some(at_birth),
        })
    }

    /// What a zone holds at an offset. `None`: the tables do not have the zone.
    pub fn occupant(&self, seq: ZoneSeq, offset: u64) -> Result<Option<Occupant>, PoolError> {
        let (pinned, claimed) = {
            let tables = self.tables.read();
            let Some(zone) = tables.zones.get(&seq) else { return Ok(None) };
            (PinnedZone::new(seq, zone), zone.claimed)
        };
        if offset < ZoneHeader::SIZE as u64 && claimed > 0 {
            return Ok(Some(Occupant::Header));
        }
        // From the end to the batch that is asked for, so that damaged parts before it do not matter.
        let mut end = Some(claimed).filter(|claimed| offset < *claimed);
        while let Some(at) = end {
            let part = self.part(&pinned, at)?;
            if offset < part.batch_start {
                // Each part lies before the part that names it, so the loop ends.
                end = part.previous.filter(|previous| *previous < at && offset < *previous);
                continue;
            }
            let spans = |entry: &&Entry| {
                let past = entry.offset.saturating_add(granule_bytes(u64::from(entry.psize)));
                (entry.offset..past).contains(&offset)
            };
            if let Some(entry) = part.entries.iter().find(spans) {
                let tables = self.tables.read();
                let state = state_of(&mut tables.birthplaces(), seq, part.end, entry);
                return Ok(Some(Occupant::Block(entry.clone(), state)));
            }
            let trailer_at = part.end.saturating_sub(PartTrailer::SIZE as u64);
            let raw = self.read_stored(&pinned, trailer_at, PartTrailer::SIZE as u32)?;
            let trailer = parse_trailer(&raw, seq, part.end)?;
            return Ok(Some(match offset >= trailer.part_start {
                true => Occupant::Part(Box::new(trailer), part.end),
                false => Occupant::Padding,
            }));
        }
        Ok(Some(if offset < claimed { Occupant::Padding } else { Occupant::Unwritten }))
    }

    /// Bytes of a zone as each replica has them, unverified. Refuses what lies past the zone.
    pub fn stored_copies(&self, seq: ZoneSeq, offset: u64, len: u32) -> Result<Vec<StoredCopy>, PoolError> {
        let at = || format!("zone {seq} byte {offset}");
        let Some(pinned) = self.pin(seq) else {
            return Err(Corrupt::new(at(), "zone", "in the zone tables", "nothing").into());
        };
        let end = offset.saturating_add(u64::from(len));
        if end > pinned.capacity || len > STORED_BYTES_MAX {
            let expected =
                format_args!("at most {STORED_BYTES_MAX} inside of the zone's {}", pinned.capacity);
            return Err(Corrupt::new(at(), "stored bytes", expected, len).into());
        }
        let copy = |home: Home| {
            let bytes = self.read_replica(&pinned, home, offset, len).map(|stored| stored.to_vec());
            StoredCopy { seq, class: pinned.class, home, offset, bytes }
        };
        Ok(pinned.replicas.iter().map(copy).collect())
    }
}
