//! Rebuilds the zone tables and the relocation index from the zones themselves.
//!
//! Sections of the zone tables have two copies. If both are lost, import knows neither the zones in use, nor
//! live blocks, nor where moved blocks are, although every block still exists. But each zone begins with a
//! header, and each batch ends with a directory part. So all zones are read from end to end. Of each block,
//! the newest copy counts whose bytes match its directory.
//!
//! Directories do not tell which blocks are dead. So this is done twice. First every listed block counts as
//! live, which is enough to read the trees ([`IndexSource::Scanned`]). Then exactly the blocks that the trees
//! reach are live ([`IndexSource::Reached`]). The pool that is imported with the second rewrites all sections in
//! its next txg.
//!
//! The newest commit record is needed, because it holds the root; earlier ones are not.
//!
//! If its directory part is damaged, a block may be reached and listed nowhere. It stays where it was born,
//! in a zone that is kept for `check`. A zone whose header is damaged is identified by its parts.
//!
//! Everything that was not found counts as free space. So if a device cannot be read, no tables are made at
//! all.
//!
//! Invariant: no block of a part is taken twice, and no part that begins inside another is accepted. Bytes
//! that a crash left at the end of a zone look like a part, and the next batch overwrites only their
//! beginning. On drives with hardware write pointers they stay whole, and the next batch lies behind them. So
//! a part is dropped if the next one names an earlier predecessor. At the end of a zone there is no next one. Parts there
//! whose predecessor is missing are dropped if the trees reach nothing behind it: a crash undid them.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrane_device::{Device, DeviceError, ZoneState};
use terrane_format::addr::{Addr, GRANULE, granule_bytes, is_valid_seq};
use terrane_format::boot_ptr::BootPtr;
use terrane_format::directory::{Entry, Owner, POOL_PART_COPY, Part, PartTrailer, parse_part, parse_trailer};
use terrane_format::label::Label;
use terrane_format::record::{Home, PartCopy, Run, ZoneClass};
use terrane_format::rows::Phase;
use terrane_format::zone_header::{ZONE_MAGIC, ZoneHeader};
use terrane_space::reclaimed::{BornBlocks, ReclaimedZone};
use terrane_space::zones::{Tables, Zone};
use terrane_store::devices::{Devices, homes};
use terrane_wire::{Corrupt, Txg, ZoneSeq};

/// Source of the zone tables for an import.
#[derive(Clone, Debug, Default)]
pub enum IndexSource {
    /// Stored sections and records.
    #[default]
    Stored,
    /// Directories of zones; every listed block counts as live. For reading only: the pool must never be
    /// written with these.
    Scanned,
    /// Directories of zones, with exactly these blocks live: address and stored bytes, sorted.
    Reached(Arc<Vec<(Addr, u32)>>),
}

/// Bytes of a zone that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// One filling of a zone, as its header and parts describe it.
struct FoundZone {
    home: Home,
    header: ZoneHeader,
    parts: BTreeMap<u64, Part>,
    part_copies: Vec<PartCopy>,
    /// The device takes writes behind the last part.
    takes_writes: bool,
}

/// A copy of a block: the zone that holds it, the end of the part that lists it, and the part's txg.
#[derive(Clone, Copy)]
struct BlockCopy {
    txg: Txg,
    zone: ZoneSeq,
    part_end: u64,
    psize: u32,
}

/// Result of one scan of all zones.
struct Scan<'a> {
    devices: &'a Devices,
    pool: u64,
    up_to: Txg,
    zones: BTreeMap<ZoneSeq, FoundZone>,
    /// The first read that failed.
    unread: OnceCell<Corrupt>,
}

/// Rebuilds the zone tables as of txg `up_to`, whose record is `own`.
///
/// # Errors
/// If a device could not be read: its blocks would count as free space.
pub(crate) fn tables(
    devices: &Devices,
    label: &Label,
    (up_to, own): (Txg, &BootPtr),
    index: &IndexSource,
    log_zones: &BTreeSet<Home>,
) -> Result<Tables, Corrupt> {
    let unread = OnceCell::new();
    let mut scan = Scan { devices, pool: label.pool, up_to, zones: BTreeMap::new(), unread };
    for (device, row) in label.members() {
        // Behind a log there may be directory parts of an older filling.
        for home in homes(device, row.zone_count).filter(|home| !log_zones.contains(home)) {
            scan.scan_zone(home, row.zone_size);
        }
    }
    scan.part_copies();
    if let IndexSource::Reached(reached) = index {
        scan.drop_undone(reached);
    }
    let tables = scan.tables(own, index);
    scan.unread.into_inner().map_or(Ok(tables), Err)
}

impl Scan<'_> {
    fn read(&self, home: Home, offset: u64, len: u64) -> Option<Vec<u8>> {
        let mut raw = vec![0; usize::try_from(len).ok()?];
        let read = self.devices.get(home.device).ok()?.read(home.zone, offset, &mut raw);
        read.inspect_err(|error| self.note_unread(home, error)).ok()?;
        Some(raw)
    }

    /// Records a read error, which says nothing about the content of the zone. The administrator can first
    /// copy a device with bad sectors to a sound one.
    fn note_unread(&self, home: Home, error: &DeviceError) {
        if matches!(error, DeviceError::Io { .. }) {
            let expected = "readable in full; copy a device with bad sectors to a good one first";
            self.unread.get_or_init(|| Corrupt::new(home, "scanned zone", expected, error));
        }
    }

    /// Scans one physical zone.
    fn scan_zone(&mut self, home: Home, zone_size: u64) {
        let Ok(device) = self.devices.get(home.device) else { return };
        let unit = u64::from(device.info().write_unit);
        let report = device.report(home.zone).inspect_err(|error| self.note_unread(home, error));
        let Ok(report) = report else { return };
        let end = match report.state {
            ZoneState::Empty => return,
            ZoneState::Offline => {
                log::error!("{home} offline: blocks without another copy are lost");
                return;
            }
            ZoneState::Open if device.info().hardware_pointers => report.pointer,
            _ => report.capacity,
        };
        let takes_writes = matches!(report.state, ZoneState::Open | ZoneState::Unknown);
        let first = self.read(home, 0, unit).unwrap_or_default();
        let header = ZoneHeader::decode(&first).filter(|header| {
            ZoneHeader::parse(&first, self.pool, header.seq, &home.to_string()).is_ok()
                && header.capacity <= zone_size
                && ZoneClass::from_id(header.class).is_some()
        });
        let scanned = (unit, end);
        let header = header.or_else(|| self.header_of_parts(home, scanned, report.capacity.max(end)));
        let Some(header) = header else { return };
        if header.txg > self.up_to || !is_valid_seq(header.seq) {
            return;
        }
        let mut found =
            FoundZone { home, header, parts: BTreeMap::new(), part_copies: Vec::new(), takes_writes };
        self.parts(&mut found, unit, end.min(header.capacity));
        log::info!("{home} scanned: zone {}, {} directory parts", found.header.seq, found.parts.len());
        self.zones.insert(found.header.seq, found);
    }

    /// Reconstructs a damaged zone header from the directory parts. If parts of several fillings exist, the
    /// newest sequence number wins. `end`: where the scan ends, which in an open zone is before its `capacity`.
    fn header_of_parts(&self, home: Home, (unit, end): (u64, u64), capacity: u64) -> Option<ZoneHeader> {
        let mut newest: Option<(ZoneSeq, Txg, u64)> = None;
        self.each_tail(home, unit, end, &mut |tail, at| {
            let seq = tail.len().checked_sub(PartTrailer::SIZE).and_then(|from| tail.get(from..));
            let Some(seq) = seq.and_then(PartTrailer::decode).map(|trailer| trailer.seq) else { return };
            if newest.is_none_or(|(known, ..)| known < seq)
                && let Some((part, incarnation)) = self.part(home, seq, tail, at)
            {
                newest = Some((seq, part.txg, incarnation));
            }
        });
        let (seq, txg, incarnation) = newest?;
        log::warn!("{home}: zone header damaged, using its directory: zone {seq}");
        Some(ZoneHeader {
            magic: ZONE_MAGIC,
            pool: self.pool,
            seq,
            incarnation,
            txg,
            capacity,
            class: ZoneClass::Data as u8,
            granule_shift: 4,
            reserved: [0; 14],
            seal: [0; 16],
        })
    }

    /// Visits the end of each write unit of a zone.
    fn each_tail(&self, home: Home, unit: u64, end: u64, visit: &mut dyn FnMut(&[u8], u64)) {
        let mut from = 0;
        while from < end {
            let len = PIECE_BYTES.max(unit).min(end - from);
            let piece = self.read(home, from, len).unwrap_or_default();
            for (at, tail) in (from + unit..).step_by(unit as usize).zip(piece.chunks_exact(unit as usize)) {
                visit(tail, at);
            }
            from += len;
        }
    }

    /// Finds the parts of a zone, from its beginning: see the invariant above.
    fn parts(&self, found: &mut FoundZone, unit: u64, zone_end: u64) {
        let (mut last_end, mut incarnation) = (0, 0);
        let (home, seq) = (found.home, found.header.seq);
        self.each_tail(home, unit, zone_end, &mut |tail, end| {
            let Some((part, of)) = self.part(home, seq, tail, end) else { return };
            let follows = part.batch_start >= last_end && of >= incarnation;
            if follows && part.txg <= self.up_to {
                (last_end, incarnation) = (end, of);
                // Parts behind the named predecessor belong to txgs that a crash undid.
                found.parts.split_off(&part.previous.unwrap_or(0).saturating_add(1));
                found.parts.insert(end, part);
            }
        });
    }

    /// The part of a filling whose trailer is at the end of `tail`, with its incarnation.
    fn part(&self, home: Home, seq: ZoneSeq, tail: &[u8], end: u64) -> Option<(Part, u64)> {
        let trailer = parse_trailer(tail, seq, end).ok()?;
        let raw = self.read_any(home, trailer.part_start, end)?;
        let part = parse_part(self.pool, &trailer, &raw, end).ok()?;
        Some((part, trailer.incarnation))
    }

    /// Reads a range that need not begin on a write unit.
    fn read_any(&self, home: Home, from: u64, to: u64) -> Option<Vec<u8>> {
        let unit = u64::from(self.devices.get(home.device).ok()?.info().write_unit);
        let start = from / unit * unit;
        let raw = self.read(home, start, to.next_multiple_of(unit).checked_sub(start)?)?;
        raw.get(usize::try_from(from - start).ok()?..usize::try_from(to - start).ok()?).map(<[u8]>::to_vec)
    }

    /// Finds the second copies of parts that list moved blocks. If such a part is damaged, its copy replaces
    /// it.
    fn part_copies(&mut self) {
        let listed: Vec<(Addr, u32, BlockCopy)> = self
            .copies(|entry| matches!(entry.owner, Owner::Pool { structure: POOL_PART_COPY }))
            .into_iter()
            .filter_map(|(addr, copies)| {
                self.newest_intact(&copies, addr).map(|copy| (addr, copy.psize, copy))
            })
            .collect();
        let parse = |(addr, psize, copy): (Addr, u32, BlockCopy)| {
            let raw = self.bytes_of(&copy, addr)?;
            let tail = raw.len().checked_sub(PartTrailer::SIZE).and_then(|from| raw.get(from..));
            let trailer = tail.and_then(PartTrailer::decode)?;
            let end = trailer.part_start.checked_add(u64::from(psize))?;
            let trailer = parse_trailer(&raw, trailer.seq, end).ok()?;
            let part = parse_part(self.pool, &trailer, &raw, end).ok()?;
            Some((trailer, end, part, addr))
        };
        let mut copies: Vec<_> = listed.into_iter().filter_map(parse).collect();
        copies.sort_by_key(|(trailer, end, ..)| (trailer.seq, *end));
        for (trailer, end, part, addr) in copies {
            let Some(found) = self.zones.get_mut(&trailer.seq).filter(|_| part.txg <= self.up_to) else {
                continue;
            };
            let is_disjoint = |other: &Part| other.end <= part.batch_start || part.end <= other.batch_start;
            if !found.parts.contains_key(&end) {
                let behind = found.parts.range(end..).next();
                let is_passed =
                    behind.is_some_and(|(_, next)| next.previous.is_none_or(|previous| previous < end));
                // A crash undid the txg of a part at the end of a zone that names no part of the zone.
                let follows = part.previous.is_none_or(|previous| found.parts.contains_key(&previous));
                let is_undone = behind.is_none() && !follows;
                if is_passed || is_undone || !found.parts.values().all(is_disjoint) {
                    continue;
                }
                log::warn!("zone {}: directory part ending at byte {end} damaged, using copy", trailer.seq);
                found.parts.insert(end, part);
            }
            found.part_copies.push(PartCopy { part_end: end, part_start: trailer.part_start, addr });
        }
    }

    /// Drops parts at the end of zones that a crash undid. A commit would have stored their predecessors.
    fn drop_undone(&mut self, reached: &[(Addr, u32)]) {
        let is_reached = |entry: &Entry| reached.binary_search(&(entry.identity, entry.psize)).is_ok();
        for (seq, found) in &mut self.zones {
            let mut last = None;
            let links = found.parts.iter().map(|(end, part)| (*end, part.previous, last.replace(*end)));
            let Some((broken, _, whole)) = links.into_iter().find(|(_, named, before)| named != before)
            else {
                continue;
            };
            let whole = whole.unwrap_or(0);
            let birth = |addr: &Addr| (addr.seq(), u64::from(addr.granule()) * GRANULE);
            let behind = reached.partition_point(|(addr, _)| birth(addr) < (*seq, whole));
            let is_born_behind = reached.get(behind).is_some_and(|(addr, _)| addr.seq() == *seq);
            let mut entries = found.parts.range(broken..).flat_map(|(_, part)| &part.entries);
            if !is_born_behind && !entries.any(is_reached) {
                log::warn!("zone {seq}: directory parts behind byte {whole} dropped: a crash undid them");
                found.parts.split_off(&broken);
            }
        }
    }

    /// Every listed copy of every block, newest first.
    fn copies(&self, wanted: impl Fn(&Entry) -> bool) -> BTreeMap<Addr, Vec<BlockCopy>> {
        let mut copies: BTreeMap<Addr, Vec<BlockCopy>> = BTreeMap::new();
        for (seq, found) in &self.zones {
            for part in found.parts.values() {
                for entry in part.entries.iter().filter(|entry| wanted(entry)) {
                    let copy =
                        BlockCopy { txg: part.txg, zone: *seq, part_end: part.end, psize: entry.psize };
                    copies.entry(entry.identity).or_default().push(copy);
                }
            }
        }
        copies.values_mut().for_each(|copies| copies.sort_by_key(|copy| std::cmp::Reverse(copy.txg)));
        copies
    }

    fn entry(&self, copy: &BlockCopy, addr: Addr) -> Option<(&FoundZone, &Entry)> {
        let found = self.zones.get(&copy.zone)?;
        Some((found, found.parts.get(&copy.part_end)?.find(addr)?))
    }

    fn bytes_of(&self, copy: &BlockCopy, addr: Addr) -> Option<Vec<u8>> {
        let (found, entry) = self.entry(copy, addr)?;
        let raw =
            self.read_any(found.home, entry.offset, entry.offset.checked_add(u64::from(entry.psize))?)?;
        (crc32c::crc32c(&raw) == entry.crc).then_some(raw)
    }

    /// The newest whole copy. A single copy is not checked here; its reader will verify it.
    fn newest_intact(&self, copies: &[BlockCopy], addr: Addr) -> Option<BlockCopy> {
        match copies {
            [] => None,
            [one] => Some(*one),
            [newest, ..] => {
                Some(*copies.iter().find(|copy| self.bytes_of(copy, addr).is_some()).unwrap_or(newest))
            }
        }
    }

    /// Reached blocks that no directory lists. Their part is damaged, so they lie where they were born.
    fn unlisted(
        &self,
        all: &BTreeMap<Addr, Vec<BlockCopy>>,
        index: &IndexSource,
    ) -> BTreeMap<Addr, BlockCopy> {
        let IndexSource::Reached(reached) = index else { return BTreeMap::new() };
        let is_listed = |addr: &Addr, psize: u32| {
            all.get(addr).is_some_and(|copies| copies.iter().any(|copy| copy.psize == psize))
        };
        let unlisted = reached.iter().filter(|(addr, psize)| !is_listed(addr, *psize));
        let at_home = unlisted.filter(|(addr, _)| self.zones.contains_key(&addr.seq()));
        let copy = |(addr, psize): &(Addr, u32)| {
            (*addr, BlockCopy { txg: Txg(0), zone: addr.seq(), part_end: 0, psize: *psize })
        };
        at_home.map(copy).collect()
    }

    fn tables(&self, own: &BootPtr, index: &IndexSource) -> Tables {
        // Blocks of the pool itself are live only if they are in `kept`.
        let is_live = |addr: Addr, copy: &BlockCopy| {
            self.entry(copy, addr).is_some_and(|(_, entry)| matches!(entry.owner, Owner::Block { .. }))
                && match index {
                    IndexSource::Reached(reached) => reached.binary_search(&(addr, copy.psize)).is_ok(),
                    _ => true,
                }
        };
        let mut all = self.copies(|_| true);
        let mut kept: BTreeSet<Addr> = own.copies().map(|place| place.addr()).collect();
        let unlisted = self.unlisted(&all, index);
        for (addr, copy) in &unlisted {
            all.insert(*addr, vec![*copy]);
            kept.insert(*addr);
        }
        let newest_of = |addr: Addr, copies: &[BlockCopy], kept: &BTreeSet<Addr>| {
            let is_kept = kept.contains(&addr);
            let alive: Vec<BlockCopy> =
                copies.iter().copied().filter(|copy| is_kept || is_live(addr, copy)).collect();
            self.newest_intact(&alive, addr)
        };
        // If no block in a zone is live, the copies of its parts are dead as well.
        let needed: BTreeSet<ZoneSeq> = all
            .iter()
            .filter_map(|(addr, copies)| newest_of(*addr, copies, &kept))
            .map(|copy| copy.zone)
            .collect();
        let needed_parts = self.zones.iter().filter(|(seq, _)| needed.contains(seq));
        kept.extend(needed_parts.flat_map(|(_, found)| found.part_copies.iter().map(|copy| copy.addr)));
        let mut rows: BTreeMap<ZoneSeq, Zone> = BTreeMap::new();
        for (seq, found) in &self.zones {
            let class = ZoneClass::from_id(found.header.class).unwrap_or(ZoneClass::Data);
            let mut zone = Zone::new(class, found.home, found.header.capacity, found.header.txg);
            zone.phase = if found.takes_writes { Phase::Open } else { Phase::Full };
            if let Some((end, part)) = found.parts.last_key_value() {
                (zone.claimed, zone.last_write) = (*end, part.txg);
            }
            if needed.contains(seq) {
                zone.part_copies.clone_from(&found.part_copies);
            }
            if unlisted.range(Addr::new(*seq, 0)..Addr::new(ZoneSeq(seq.0 + 1), 0)).next().is_some() {
                log::error!("zone {seq} suspect: a damaged directory part leaves blocks unlisted");
                zone.phase = Phase::Suspect;
            }
            rows.insert(*seq, zone);
        }
        let mut births: BTreeMap<ZoneSeq, BornBlocks> = BTreeMap::new();
        let mut live: BTreeMap<ZoneSeq, u64> = BTreeMap::new();
        let mut dead: BTreeMap<ZoneSeq, Vec<(u32, u32)>> = BTreeMap::new();
        let mut alive_at: BTreeMap<Addr, u32> = BTreeMap::new();
        // The last live block, and its copy.
        let mut before: Option<(Addr, BlockCopy)> = None;
        for (addr, copies) in all {
            let granules = |psize: u32| (granule_bytes(u64::from(psize)) / GRANULE) as u32;
            let sizes = copies.iter().map(|copy| granules(copy.psize)).max().unwrap_or(0);
            let Some(copy) = newest_of(addr, &copies, &kept) else {
                dead.entry(addr.seq()).or_default().push((addr.granule(), sizes));
                continue;
            };
            let bytes = granule_bytes(u64::from(copy.psize));
            *live.entry(copy.zone).or_default() += bytes;
            alive_at.insert(addr, granules(copy.psize));
            let birth = births.entry(addr.seq()).or_default();
            // No block between the last live one and this one is live, here or elsewhere.
            let shares_run = before.is_some_and(|(last, of)| {
                last.seq() == addr.seq() && (of.zone, of.part_end) == (copy.zone, copy.part_end)
            });
            let is_moved = copy.zone != addr.seq()
                || self.entry(&copy, addr).is_some_and(|(_, entry)| entry.is_moved(copy.zone));
            if is_moved {
                let (granule, granules) = (addr.granule(), granules(copy.psize));
                match birth.runs.last_mut() {
                    Some(run) if shares_run => run.add_block(granule, granules),
                    _ => birth.runs.push(Run::of(granule, granules, copy.zone, copy.part_end)),
                }
            }
            before = Some((addr, copy));
        }
        for (seq, ranges) in dead {
            // Remains of a crash may overlap blocks that were written later.
            let mut end = 0;
            let separate: Vec<(u32, u32)> = ranges
                .into_iter()
                .filter(|(first, count)| {
                    let first_addr = Addr::new(seq, u64::from(*first) * GRANULE);
                    let last = Addr::from_raw(first_addr.raw() + u64::from(*count) - 1);
                    let before = alive_at.range(..=last).next_back();
                    let is_live = before.is_some_and(|(addr, granules)| {
                        addr.seq() == seq && addr.granule() + granules > *first
                    });
                    let fits = *first >= end && !is_live;
                    end = end.max(first.saturating_add(*count));
                    fits
                })
                .collect();
            births.entry(seq).or_default().dead.add_sorted(&separate);
        }
        let mut tables = Tables::default();
        for (seq, mut zone) in rows {
            zone.live = live.get(&seq).copied().unwrap_or(0);
            zone.born = births.remove(&seq).unwrap_or_default();
            tables.live += zone.live;
            // Zones without live blocks become free space at once: it is needed, and there is no txg to roll
            // back to. But live blocks may be listed in damaged parts alone, so this must wait until the
            // trees were walked.
            let is_free = zone.live == 0 && !matches!(index, IndexSource::Scanned);
            tables.insert(seq, zone);
            if is_free {
                tables.reclaim(seq);
            }
        }
        tables.insert_reclaimed(births.into_iter().map(|(seq, mut born)| {
            born.keep_within_runs();
            (seq, ReclaimedZone { class: ZoneClass::Data, opened: Txg(0), last_write: Txg(0), born })
        }));
        tables
    }
}
