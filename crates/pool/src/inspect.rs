//! Views of a pool's inner state, for `terrane debug` and `terrane check`.

use crate::pool::Pool;
use std::borrow::Cow;
use std::sync::Arc;
use terrane_codec::ZstdLevel;
use terrane_codec::compress::algorithm::{ID_ZSTD, ZSTD_HEADER_BYTES};
use terrane_device::{Counted, Device, ZoneState};
use terrane_format::addr::Addr;
use terrane_format::block_ptr::Normal;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::directory::{Entry, Owner};
use terrane_format::label::{ANCHORS, Label};
use terrane_format::record::{Home, Run, SectionPtr, ZoneClass};
use terrane_format::rows::Phase;
use terrane_format::uberblock::Uberblock;
use terrane_space::reclaimed::ReclaimedZone;
use terrane_space::zones::Findings;
use terrane_store::PoolError;
use terrane_store::anchors::read_anchor;
use terrane_store::explain::EntryState;
use terrane_store::occupant::{Occupant, StoredCopy};
use terrane_store::pipeline::DecodeContext;
use terrane_wire::{DeviceIdx, Txg, ZoneIdx, ZoneSeq};

/// A zone's row, for display.
#[derive(Clone, Debug)]
pub struct ZoneView {
    /// Its sequence number.
    pub seq: ZoneSeq,
    /// What it holds.
    pub class: ZoneClass,
    /// The place of its first replica; of a reclaimed zone, a default without meaning.
    pub home: Home,
    /// Its state.
    pub phase: Phase,
    /// Writable bytes; 0 for a reclaimed zone.
    pub capacity: u64,
    /// End of what committed txgs wrote, in bytes; 0 for a reclaimed zone.
    pub claimed: u64,
    /// Live bytes in the zone, wherever they were born; 0 for a reclaimed zone.
    pub live: u64,
    /// The txg in which it was opened.
    pub opened: Txg,
    /// Runs of blocks that were born in it and have moved.
    pub runs: Vec<Run>,
}

/// Number of an anchor, its label, and the valid uberblocks behind it with their offsets.
pub type Anchor = (u32, Label, Vec<(u64, Uberblock)>);

/// Labels and uberblocks in the anchors of a device.
pub fn anchors(device: &dyn Device) -> Vec<Anchor> {
    (0..ANCHORS)
        .filter_map(|anchor| {
            read_anchor(device, anchor, &mut false).map(|(label, ubers)| (anchor, label, ubers))
        })
        .collect()
}

/// A device of an open pool.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// Its index in the label.
    pub index: DeviceIdx,
    /// The path, or another name of the device.
    pub name: String,
    /// Bytes of a zone, and the number of the device's zones that the pool uses.
    pub zone_size: u64,
    /// Zones that the pool uses, anchors included.
    pub zone_count: u32,
    /// Zones that the device does not let be written again, with their state: read-only or offline.
    pub unwritable_zones: Vec<(ZoneIdx, ZoneState)>,
}

impl Pool {
    /// The devices, with the zones that are read-only or offline. Requests a report of every zone.
    pub fn devices(&self) -> Vec<DeviceView> {
        let rows = self.label().devices;
        let view = |(index, device): (DeviceIdx, Arc<Counted>)| {
            let info = device.info();
            let zone_count = rows
                .get(usize::from(index.0))
                .and_then(Option::as_ref)
                .map_or(info.zone_count, |row| row.zone_count);
            let state = |zone: ZoneIdx| device.report(zone).map_or(ZoneState::Offline, |report| report.state);
            let given_up = (0..zone_count)
                .map(|zone| (ZoneIdx(zone), state(ZoneIdx(zone))))
                .filter(|(_, state)| matches!(state, ZoneState::ReadOnly | ZoneState::Offline))
                .collect();
            DeviceView {
                index,
                name: info.name.clone(),
                zone_size: info.zone_size,
                zone_count,
                unwritable_zones: given_up,
            }
        };
        self.store.devices.all().into_iter().map(view).collect()
    }

    /// Runs of moved blocks with a fingerprint.
    pub fn tallied_runs(&self) -> u64 {
        self.store.tables.read().tallied_runs()
    }

    /// The resident and the reclaimed zones, by sequence number. Copies them all under the lock of the tables.
    pub fn zones(&self) -> Vec<ZoneView> {
        let tables = self.store.tables.read();
        let resident = |(seq, zone): (&ZoneSeq, &terrane_space::zones::Zone)| ZoneView {
            seq: *seq,
            class: zone.class,
            home: zone.replicas().first(),
            phase: zone.phase,
            capacity: zone.capacity,
            claimed: zone.claimed,
            live: zone.live,
            opened: zone.opened,
            runs: zone.born.runs.clone(),
        };
        let reclaimed = |(seq, zone): (ZoneSeq, Cow<'_, ReclaimedZone>)| ZoneView {
            seq,
            class: zone.class,
            home: Home::default(),
            phase: Phase::Reclaimed,
            capacity: 0,
            claimed: 0,
            live: 0,
            opened: zone.opened,
            runs: zone.born.runs.clone(),
        };
        let mut zones: Vec<ZoneView> =
            tables.zones.iter().map(resident).chain(tables.reclaimed().map(reclaimed)).collect();
        zones.sort_unstable_by_key(|zone| zone.seq);
        zones
    }

    /// The directory of a zone: every entry, and the present state of its block.
    pub fn zone_directory(&self, seq: ZoneSeq) -> Result<Vec<(Entry, EntryState)>, PoolError> {
        self.store.directory(seq)
    }

    /// Reads the directory of a zone into the cache of parts. An error is left to who needs it.
    pub fn read_directory_ahead(&self, seq: ZoneSeq) {
        self.store.warm_parts(seq, &|| true);
    }

    /// Whether the bytes of a directory entry match its CRC.
    pub fn entry_matches_crc(&self, seq: ZoneSeq, entry: &Entry) -> bool {
        self.store.entry_matches_crc(seq, entry)
    }

    /// The first bytes of a stored block, at most `bytes`, unverified: the header of its algorithm.
    pub fn stored_head(&self, normal: &Normal, bytes: usize) -> Result<Vec<u8>, PoolError> {
        self.store.stored_head(normal, bytes)
    }

    /// The oldest txg that is still whole. No rewind goes beyond it.
    pub fn oldest_txg(&self) -> Txg {
        self.sync.lock().history.oldest
    }

    /// The level of a zstd block. `None`: the block is not zstd, or its header has no level.
    pub fn zstd_level(&self, normal: &Normal) -> Result<Option<ZstdLevel>, PoolError> {
        if normal.compression != ID_ZSTD {
            return Ok(None);
        }
        Ok(ZstdLevel::of_stored(&self.stored_head(normal, ZSTD_HEADER_BYTES)?))
    }

    /// Where a block is now: zone, home, offset in bytes.
    pub fn locate(&self, addr: Addr, psize: u32) -> Result<(ZoneSeq, Home, u64), PoolError> {
        self.store.locate(addr, psize).map(|(held, offset)| (held.seq, held.replicas.first(), offset))
    }

    /// Address and length of each copy of every bootstrap block and of every copy of a directory part, by the
    /// pool's own state.
    pub fn bootstrap_blocks(&self) -> Vec<(Addr, u32)> {
        let st = self.sync.lock();
        let records = st
            .history
            .chain
            .iter()
            .flat_map(|chained| std::iter::once(&chained.ptr).chain(&chained.dead_log));
        let sections = st.sections.iter().map(|section| &section.ptr);
        let mut out: Vec<(Addr, u32)> = records
            .chain(sections)
            .flat_map(|ptr| ptr.copies().map(|place| (place.addr(), ptr.len)))
            .collect();
        // Copies of the directory parts of zones that were just reset: the next record frees them.
        out.extend(
            st.resets_done.iter().flat_map(|(_, copies)| copies).map(|(addr, len)| (*addr, *len as u32)),
        );
        drop(st);
        let tables = self.store.tables.read();
        // The part copies of a zone reclaimed since the last record are in the first list, not here.
        let copies = tables.zones.values().flat_map(|zone| &zone.part_copies);
        out.extend(copies.map(|copy| (copy.addr, (copy.part_end - copy.part_start) as u32)));
        out
    }

    /// The zone and the offset of the block born at `addr`. `None`: the tables do not have its birth zone.
    pub fn position_of(&self, addr: Addr) -> Result<Option<(ZoneSeq, u64)>, PoolError> {
        self.store.position_of(addr)
    }

    /// What a zone holds at an offset. `None`: the tables do not have the zone.
    pub fn occupant(&self, seq: ZoneSeq, offset: u64) -> Result<Option<Occupant>, PoolError> {
        self.store.occupant(seq, offset)
    }

    /// Bytes of a zone as each replica has them, unverified.
    pub fn stored_copies(&self, seq: ZoneSeq, offset: u64, len: u32) -> Result<Vec<StoredCopy>, PoolError> {
        self.store.stored_copies(seq, offset, len)
    }

    /// Decompresses the stored bytes of a block, which need not be those that its checksum wants.
    pub fn decode_stored(&self, normal: &Normal, owner: Owner, stored: &[u8]) -> Result<Vec<u8>, PoolError> {
        Ok(self.reader.pipeline.decode(&DecodeContext::stored(owner, normal), stored)?)
    }

    /// The pointer to the bootstrap block with a copy at this place. `None`: the pool needs no such block.
    pub fn bootstrap_pointer(&self, addr: Addr) -> Option<BootPtr> {
        let st = self.sync.lock();
        let history = &st.history;
        let chained = history.chain.iter().flat_map(|one| std::iter::once(&one.ptr).chain(&one.dead_log));
        let recent = history.recent.iter().chain(&history.newest).map(|(_, ptr)| ptr);
        let sections = st.sections.iter().map(|section| &section.ptr);
        let mut all = chained.chain(recent).chain(sections);
        all.find(|ptr| ptr.copies().any(|place| place.addr() == addr)).copied()
    }

    /// The pointer to the section of the zone tables with a copy at this place.
    pub fn section_at(&self, addr: Addr) -> Option<SectionPtr> {
        let st = self.sync.lock();
        st.sections.iter().find(|section| section.ptr.copies().any(|place| place.addr() == addr)).copied()
    }

    /// Checks the invariants of the zone tables.
    pub fn check_tables(&self) -> Findings {
        self.store.tables.read().check()
    }
}
