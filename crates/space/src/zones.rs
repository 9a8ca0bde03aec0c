//! The zone tables: fillings, their live bytes, and where moved blocks are now.
//!
//! A *logical zone* is one filling, named for ever by its sequence number. Its row holds its place, its claimed end and its live bytes.
//! As birthplace, it holds which of its granules are dead ([`DeadSet`]) and which runs of its survivors live elsewhere ([`Run`]). The
//! state of blocks born there outlives the filling, for as long as one of them lives ([`ReclaimedZones`]). The table of physical zones
//! is derived from the rows.
//!
//! Live bytes are counted up from births, never derived from a write pointer: headers, padding, directory parts and abandoned tails are
//! never live.
//!
//! Only [`Tables::apply`] changes a committed table, at run time as at import. So replay does what ran.
//!
//! Invariant ([`Tables::check`]): runs of a zone are sorted and separate, no run is without live bytes, no physical zone has two
//! fillings, and no zone is both resident and reclaimed.

use crate::dead::DeadSet;
use crate::reclaimed::{BornBlocks, ReclaimedZone, ReclaimedZones};
use crate::replicas::Replicas;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_format::addr::{Addr, granule_bytes};
use terrane_format::boot_ptr::BootPtr;
use terrane_format::record::{Free, Home, Move, PartCopy, Record, RowForm, Run, Tally, ZoneClass};
use terrane_format::rows::{Phase, Row, RowHead, SectionWriter, parse_section};
use terrane_wire::{Corrupt, DeviceIdx, Txg, ZoneSeq};

/// Bytes that were appended to a zone and are not on its device yet.
pub trait Unwritten: std::fmt::Debug + Send + Sync {
    /// Copies the range if it is still in memory. False: the device has it.
    fn read(&self, offset: u64, buf: &mut [u8]) -> bool;
    /// Whether the device has everything before `end`.
    fn has_written(&self, end: u64) -> bool;
}

/// A filling that exists on a device.
#[derive(Clone, Debug)]
pub struct Zone {
    /// Its main use.
    pub class: ZoneClass,
    replicas: Replicas,
    /// Its state.
    pub phase: Phase,
    /// Writable bytes.
    pub capacity: u64,
    /// End of what committed txgs wrote, in bytes: the newest directory part ends here. 0: nothing was written.
    pub claimed: u64,
    /// Live bytes in the zone, wherever they were born.
    pub live: u64,
    /// The txg that opened it.
    pub opened: Txg,
    /// The last txg with births or moves into the zone.
    pub last_write: Txg,
    /// The blocks that were born in it, wherever they are now.
    pub born: BornBlocks,
    /// Second copies of its directory parts that list moved blocks.
    pub part_copies: Vec<PartCopy>,
    /// Readers between lookup and completion. Not stored.
    pub pins: Arc<AtomicU32>,
    /// Long readers, which can be asked to release the zone. Not stored.
    pub long_readers: Arc<AtomicU32>,
    /// Bytes that were appended and are not on the device yet. Not stored.
    pub unwritten: Option<Arc<dyn Unwritten>>,
    /// The zone could not be read lately, and is retried later. Not stored.
    pub unreadable: bool,
}

impl Zone {
    /// A zone just opened at `home`, with `capacity` writable bytes.
    pub fn new(class: ZoneClass, home: Home, capacity: u64, opened: Txg) -> Zone {
        Zone {
            class,
            replicas: Replicas::one(home),
            phase: Phase::Open,
            capacity,
            claimed: 0,
            live: 0,
            opened,
            last_write: opened,
            born: BornBlocks::default(),
            part_copies: Vec::new(),
            pins: Arc::default(),
            long_readers: Arc::default(),
            unwritten: None,
            unreadable: false,
        }
    }

    /// Where the zone lies.
    pub fn replicas(&self) -> Replicas {
        self.replicas
    }

    /// Whether a replica lies on the device.
    pub fn is_on(&self, device: DeviceIdx) -> bool {
        self.replicas.on_device(device).is_some()
    }

    /// Whether a reader pins the zone, so that it cannot be reset.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0 || self.has_long_reader()
    }

    /// Whether a long reader holds it.
    pub fn has_long_reader(&self) -> bool {
        self.long_readers.load(Ordering::Acquire) > 0
    }

    /// Whether an emptied zone will be reset once its emptying is old enough.
    pub fn is_resettable(&self) -> bool {
        !self.is_pinned() && !self.unreadable
    }
}

/// A birthplace, resident or reclaimed.
#[derive(Clone, Debug)]
pub struct Birthplace<'a> {
    /// The filling exists: a block without a run that is not dead lies where it was born.
    pub is_resident: bool,
    /// The last txg with births or moves into the zone.
    pub last_write: Txg,
    /// The blocks that were born there.
    pub born: Cow<'a, BornBlocks>,
}

impl Birthplace<'_> {
    /// The run of the block born at `granule`, if the block moved.
    pub fn run_of(&self, granule: u32) -> Option<&Run> {
        self.born.run_of(granule)
    }

    /// Whether two blocks, both now in `dest`, may share one run there: no block lives between them, except in their own runs, which
    /// both lie in
    /// `dest`.
    pub fn may_share_run(&self, seq: ZoneSeq, dest: ZoneSeq, last: u32, next: u32) -> bool {
        let (before_last, before_next) = (self.born.runs_before(last), self.born.runs_before(next));
        match (self.run_of(last), self.run_of(next)) {
            // Both born there, and no run lies between them.
            (None, None) => seq == dest && before_last == before_next,
            (Some(a), Some(b)) if a == b => true,
            // A reclaimed zone has nothing between two neighbouring runs.
            (Some(a), Some(b)) => {
                !self.is_resident && a.dest == dest && b.dest == dest && before_next == before_last + 1
            }
            _ => false,
        }
    }
}

/// Looks up birthplaces of blocks, roughly in birth order. Consecutive lookups of one reclaimed zone unpack it once.
pub struct Birthplaces<'a> {
    tables: &'a Tables,
    last: Option<(ZoneSeq, Option<Birthplace<'a>>)>,
}

impl<'a> Birthplaces<'a> {
    /// The birthplace `seq`. `None`: the tables do not have it.
    pub fn of(&mut self, seq: ZoneSeq) -> Option<&Birthplace<'a>> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != seq) {
            self.last = Some((seq, self.tables.birthplace(seq)));
        }
        self.last.as_ref().and_then(|(_, found)| found.as_ref())
    }
}

/// Memory of the tables beside the rows of resident zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSize {
    /// Runs in all zones.
    pub runs: u64,
    /// Reclaimed zones with survivors.
    pub reclaimed: u64,
    /// Memory of runs and reclaimed zones, in bytes, dead sets included.
    pub run_index_bytes: u64,
    /// Memory of the dead sets of resident zones, in bytes.
    pub dead_set_bytes: u64,
    /// Whether reclaimed zones are packed into leaves.
    pub is_packed: bool,
    /// Memory if nothing were packed, in bytes: as it is, or an upper bound.
    pub rows_bytes: u64,
}

impl IndexSize {
    /// Memory in bytes: runs, reclaimed zones and dead sets.
    pub fn bytes(&self) -> u64 {
        self.run_index_bytes + self.dead_set_bytes
    }

    /// Whether reclaimed zones should be packed, if `most` bytes are allowed.
    pub fn should_pack(&self, most: u64) -> bool {
        over_limit(self.rows_bytes, most, self.is_packed)
    }
}

/// Whether to save memory, given that `most` bytes are allowed. With hysteresis: starts above 3/4, and ends at 1/2.
pub fn over_limit(bytes: u64, most: u64, already: bool) -> bool {
    bytes > if already { most / 2 } else { most / 4 * 3 }
}

/// How much of a device logical zones take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Logical zones on the device.
    pub zones: u64,
    /// Bytes that they can hold.
    pub capacity: u64,
}

/// All logical zones.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Resident zones.
    pub zones: BTreeMap<ZoneSeq, Zone>,
    reclaimed: ReclaimedZones,
    /// Live bytes of all zones.
    pub live: u64,
    /// Bytes that zones can hold.
    capacity: u64,
    /// What lies on each device, by the replica that is read first.
    device_usage: BTreeMap<DeviceIdx, DeviceUsage>,
    /// Zones that wait to be reset, and those that are suspect.
    emptied: BTreeSet<ZoneSeq>,
    suspects: BTreeSet<ZoneSeq>,
}

/// What was found wrong while a record was replayed or committed.
pub type Findings = Vec<Corrupt>;

impl Tables {
    /// Adds the row of a resident zone.
    pub fn insert(&mut self, seq: ZoneSeq, zone: Zone) {
        self.remove(seq);
        self.capacity += zone.capacity;
        let device = self.device_usage.entry(zone.replicas().first().device).or_default();
        (device.zones, device.capacity) = (device.zones + 1, device.capacity + zone.capacity);
        let phase = zone.phase;
        self.zones.insert(seq, zone);
        self.set_phase(seq, phase);
    }

    /// Adds reclaimed zones.
    pub fn insert_reclaimed(&mut self, zones: impl IntoIterator<Item = (ZoneSeq, ReclaimedZone)>) {
        zones.into_iter().for_each(|(seq, zone)| self.reclaimed.insert(seq, zone));
    }

    fn remove(&mut self, seq: ZoneSeq) -> Option<Zone> {
        let zone = self.zones.remove(&seq)?;
        self.capacity -= zone.capacity;
        if let Some(device) = self.device_usage.get_mut(&zone.replicas().first().device) {
            (device.zones, device.capacity) = (device.zones - 1, device.capacity - zone.capacity);
        }
        self.emptied.remove(&seq);
        self.suspects.remove(&seq);
        Some(zone)
    }

    /// The only place where a zone's phase changes, so the counts cannot drift.
    fn set_phase(&mut self, seq: ZoneSeq, phase: Phase) {
        let Some(zone) = self.zones.get_mut(&seq) else { return };
        zone.phase = phase;
        match phase {
            Phase::Emptied(_) => self.emptied.insert(seq),
            _ => self.emptied.remove(&seq),
        };
        match phase {
            Phase::Suspect => self.suspects.insert(seq),
            _ => self.suspects.remove(&seq),
        };
    }

    /// Notes whether a zone could not be read lately.
    pub fn set_unreadable(&mut self, seq: ZoneSeq, unreadable: bool) {
        if let Some(zone) = self.zones.get_mut(&seq) {
            zone.unreadable = unreadable;
        }
    }

    /// Bytes that the zones can hold.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What lies on a device.
    pub fn device_usage(&self, device: DeviceIdx) -> DeviceUsage {
        self.device_usage.get(&device).copied().unwrap_or_default()
    }

    /// What is known of the blocks that were born in a zone.
    pub fn birthplace(&self, seq: ZoneSeq) -> Option<Birthplace<'_>> {
        if let Some(zone) = self.zones.get(&seq) {
            let (last_write, born) = (zone.last_write, Cow::Borrowed(&zone.born));
            return Some(Birthplace { is_resident: true, last_write, born });
        }
        let (last_write, born) = match self.reclaimed.get(seq)? {
            Cow::Borrowed(zone) => (zone.last_write, Cow::Borrowed(&zone.born)),
            Cow::Owned(zone) => (zone.last_write, Cow::Owned(zone.born)),
        };
        Some(Birthplace { is_resident: false, last_write, born })
    }

    /// For lookups of many blocks.
    pub fn birthplaces(&self) -> Birthplaces<'_> {
        Birthplaces { tables: self, last: None }
    }

    /// Reclaimed zones with survivors.
    pub fn reclaimed(&self) -> impl Iterator<Item = (ZoneSeq, Cow<'_, ReclaimedZone>)> {
        self.reclaimed.select(|_| true)
    }

    /// The first reclaimed zone from `from` on that has survivors, and their runs.
    pub fn next_reclaimed(&self, from: ZoneSeq) -> Option<(ZoneSeq, Vec<Run>)> {
        self.reclaimed.next(from).map(|(seq, zone)| (seq, zone.into_owned().born.runs))
    }

    /// Whether reclaimed zones are packed into leaves.
    pub fn is_packed(&self) -> bool {
        self.reclaimed.is_packed()
    }

    /// Memory of the tables beside the rows of resident zones.
    pub fn index_size(&self) -> IndexSize {
        let (reclaimed, runs) = self.reclaimed.counts();
        let mut size = IndexSize {
            runs,
            reclaimed,
            run_index_bytes: self.reclaimed.memory_bytes(),
            ..IndexSize::default()
        };
        for zone in self.zones.values() {
            size.runs += zone.born.runs.len() as u64;
            size.run_index_bytes += (zone.born.runs.capacity() * size_of::<Run>()) as u64;
            size.dead_set_bytes += zone.born.dead.memory_bytes() as u64;
        }
        size.is_packed = self.reclaimed.is_packed();
        size.rows_bytes = size.bytes() - self.reclaimed.memory_bytes() + self.reclaimed.rows_bytes();
        size
    }

    /// A copy of the reclaimed zones, packed or as rows. [`Tables::replace_reclaimed`] installs it if nothing changed meanwhile. With
    /// millions of zones the copy takes a second, for which readers need not wait.
    pub fn reclaimed_in_form(&self, packed: bool) -> ReclaimedZones {
        self.reclaimed.in_form(packed)
    }

    /// Returns the old ones, because dropping them takes time as well.
    pub fn replace_reclaimed(&mut self, reclaimed: ReclaimedZones) -> ReclaimedZones {
        std::mem::replace(&mut self.reclaimed, reclaimed)
    }

    /// Zones that wait to be reset.
    pub fn emptied(&self) -> impl Iterator<Item = (ZoneSeq, &Zone)> {
        self.emptied.iter().filter_map(|seq| Some((*seq, self.zones.get(seq)?)))
    }

    /// Zones that are kept because their directory contradicts the tables.
    pub fn suspects(&self) -> impl Iterator<Item = (ZoneSeq, &Zone)> {
        self.suspects.iter().filter_map(|seq| Some((*seq, self.zones.get(seq)?)))
    }

    /// Applies a committed record. `own` names the record itself. `frees` are those of the record and of its dead-log blocks, sorted.
    /// Only rows for which `applies_to` returns true change: the others are newer already.
    pub fn apply(
        &mut self,
        record: &Record,
        own: &BootPtr,
        frees: &[Free],
        applies_to: &dyn Fn(ZoneSeq) -> bool,
    ) -> Findings {
        let mut findings = Findings::new();
        let txg = record.txg;
        let unknown = |seq: ZoneSeq| {
            Corrupt::new(format_args!("commit record of txg {txg}"), "zone", "in the tables", seq)
        };
        for &seq in record.reset.iter().filter(|seq| applies_to(**seq)) {
            self.reclaim(seq);
        }
        for opened in record.opened.iter().filter(|opened| applies_to(opened.seq)) {
            if !self.zones.contains_key(&opened.seq) {
                self.insert(opened.seq, Zone::new(opened.class, opened.home, opened.capacity, txg));
            }
        }
        for written in record.written.iter().filter(|written| applies_to(written.seq)) {
            match self.zones.get_mut(&written.seq) {
                Some(zone) => {
                    zone.claimed = written.claimed;
                    zone.last_write = txg;
                    zone.live += written.born_bytes;
                    self.live += written.born_bytes;
                }
                None => findings.push(unknown(written.seq)),
            }
        }
        for place in own.copies().filter(|place| applies_to(place.seq)) {
            match self.zones.get_mut(&place.seq) {
                Some(zone) => {
                    let born = granule_bytes(u64::from(own.len));
                    zone.claimed = place.offset + u64::from(own.padded);
                    zone.last_write = txg;
                    zone.live += born;
                    self.live += born;
                }
                None => findings.push(unknown(place.seq)),
            }
        }
        for seq in record.filled.iter().filter(|seq| applies_to(**seq)) {
            // A suspect zone that was explained is full again.
            let becomes_full = |zone: &Zone| matches!(zone.phase, Phase::Open | Phase::Suspect);
            if self.zones.get(seq).is_some_and(becomes_full) {
                self.set_phase(*seq, Phase::Full);
            }
        }
        for (seq, copy) in record.part_copies.iter().filter(|(seq, _)| applies_to(*seq)) {
            if let Some(zone) = self.zones.get_mut(seq) {
                zone.part_copies.push(*copy);
            }
        }
        self.apply_moves(record, applies_to, &mut findings);
        for &(seq, delta) in record.deltas.iter().filter(|(seq, _)| applies_to(*seq)) {
            match self.zones.get_mut(&seq) {
                Some(zone) if zone.live.checked_add_signed(delta).is_some() => {
                    zone.live = zone.live.saturating_add_signed(delta);
                    self.live = self.live.saturating_add_signed(delta);
                }
                Some(zone) => findings.push(Corrupt::new(
                    format_args!("commit record of txg {txg}, zone {seq}"),
                    "live bytes",
                    format_args!("at least {}", delta.unsigned_abs()),
                    zone.live,
                )),
                None => findings.push(unknown(seq)),
            }
        }
        self.apply_frees(txg, frees, applies_to, &mut findings);
        for seq in record.suspect.iter().filter(|seq| applies_to(**seq)) {
            self.set_phase(*seq, Phase::Suspect);
        }
        // Only these can have lost their last live byte.
        let touched = record.filled.iter().chain(record.deltas.iter().map(|(seq, _)| seq));
        for seq in touched.filter(|seq| applies_to(**seq)) {
            if self.zones.get(seq).is_some_and(|zone| zone.phase == Phase::Full && zone.live == 0) {
                self.set_phase(*seq, Phase::Emptied(txg));
            }
        }
        findings
    }

    /// A moved run leaves its dead blocks behind: the new part does not list them, so the dead set drops them too. The run's tally then
    /// guards against a second free. This holds only for reclaimed birth zones. A resident zone lists all its blocks, the dead ones
    /// too.
    fn apply_moves(
        &mut self,
        record: &Record,
        applies_to: &dyn Fn(ZoneSeq) -> bool,
        findings: &mut Findings,
    ) {
        let mut by_birth: BTreeMap<ZoneSeq, Vec<Run>> = BTreeMap::new();
        for Move { birth, run } in record.moves.iter().filter(|moved| applies_to(moved.birth)) {
            by_birth.entry(*birth).or_default().push(*run);
        }
        for (birth, runs) in by_birth {
            if let Some(zone) = self.zones.get_mut(&birth) {
                runs.into_iter().for_each(|run| zone.born.insert_run(run));
            } else if self
                .reclaimed
                .change(birth, |zone| move_reclaimed_runs(&mut zone.born, &runs))
                .is_none()
            {
                let at = format_args!("commit record of txg {}", record.txg);
                findings.push(Corrupt::new(at, "zone", "in the tables", birth));
            }
        }
    }

    /// `frees` are sorted.
    fn apply_frees(
        &mut self,
        txg: Txg,
        frees: &[Free],
        applies_to: &dyn Fn(ZoneSeq) -> bool,
        findings: &mut Findings,
    ) {
        for zone_frees in frees.chunk_by(|a, b| a.addr.seq() == b.addr.seq()) {
            let seq = zone_frees[0].addr.seq();
            if !applies_to(seq) {
                continue;
            }
            let at = format!("commit record of txg {txg}, zone {seq}");
            let ranges: Vec<(u32, u32)> =
                zone_frees.iter().map(|free| (free.addr.granule(), free.granules)).collect();
            // A dead set requires sorted, separate ranges.
            let overlaps = ranges.windows(2).filter(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0);
            let overlaps: Vec<(u32, u32)> = overlaps.map(|pair| pair[1]).collect();
            let twice = match self.zones.get_mut(&seq) {
                Some(zone) => Some(free_blocks(&mut zone.born, &ranges)),
                None => self.reclaimed.change(seq, |zone| free_blocks(&mut zone.born, &ranges)),
            };
            let Some(twice) = twice else {
                findings.push(Corrupt::new(at, "zone of freed blocks", "in the tables", "no row"));
                continue;
            };
            for (first, _) in twice.into_iter().chain(overlaps) {
                findings.push(Corrupt::new(
                    &at,
                    "freed block",
                    "alive",
                    format_args!("granule {first} freed twice"),
                ));
            }
        }
    }

    /// Turns a zone into a reclaimed one. Its entry stays while it has survivors.
    pub fn reclaim(&mut self, seq: ZoneSeq) {
        let Some(Zone { class, opened, last_write, mut born, .. }) = self.remove(seq) else { return };
        born.keep_within_runs();
        self.reclaimed.insert(seq, ReclaimedZone { class, opened, last_write, born });
    }

    /// The zone that now holds the block with this birthplace, for accounting.
    pub fn current_zone(&self, addr: Addr) -> Option<ZoneSeq> {
        self.locate(addr).map(|run| run.map_or(addr.seq(), |run| run.dest))
    }

    /// Where the block with this birthplace lies now, if it lives: in its birth zone (`None`) or in a run.
    pub fn locate(&self, addr: Addr) -> Option<Option<Run>> {
        match self.zones.get(&addr.seq()) {
            Some(zone) => Some(zone.born.run_of(addr.granule()).copied()),
            None => self.reclaimed.run_of(addr.seq(), addr.granule()).map(Some),
        }
    }

    /// Checks the invariants above.
    pub fn check(&self) -> Findings {
        let mut findings = Findings::new();
        let mut homes = BTreeMap::new();
        let mut live = 0;
        for (seq, zone) in &self.zones {
            let at = format!("zone {seq}");
            live += zone.live;
            self.check_runs(&at, &zone.born.runs, &mut findings);
            if zone.live > zone.capacity || zone.claimed > zone.capacity {
                findings.push(Corrupt::new(
                    &at,
                    "live bytes",
                    format_args!("at most {}", zone.capacity),
                    zone.live,
                ));
            }
            for home in zone.replicas.iter() {
                if let Some(other) = homes.insert(home, *seq) {
                    let found = format_args!("{home}, also used by zone {other}");
                    findings.push(Corrupt::new(&at, "physical zone", "used by no other zone", found));
                }
            }
        }
        let (mut reclaimed, mut reclaimed_runs) = (0, 0);
        for (seq, zone) in self.reclaimed() {
            let at = format!("reclaimed zone {seq}");
            (reclaimed, reclaimed_runs) = (reclaimed + 1, reclaimed_runs + zone.born.runs.len() as u64);
            self.check_runs(&at, &zone.born.runs, &mut findings);
            if self.zones.contains_key(&seq) {
                findings.push(Corrupt::new(&at, "resident row", "none", "one"));
            }
        }
        let those = |is: &dyn Fn(&Zone) -> bool| -> BTreeSet<ZoneSeq> {
            self.zones.iter().filter(|(_, zone)| is(zone)).map(|(seq, _)| *seq).collect()
        };
        let mut on_devices: BTreeMap<DeviceIdx, DeviceUsage> = BTreeMap::new();
        for zone in self.zones.values() {
            let device = on_devices.entry(zone.replicas().first().device).or_default();
            (device.zones, device.capacity) = (device.zones + 1, device.capacity + zone.capacity);
        }
        let counts = (
            self.zones.values().map(|zone| zone.capacity).sum(),
            those(&|zone| matches!(zone.phase, Phase::Emptied(_))),
            those(&|zone| zone.phase == Phase::Suspect),
            (reclaimed, reclaimed_runs),
            on_devices,
        );
        let occupied = self.device_usage.iter().filter(|(_, device)| device.zones > 0);
        let kept = (
            self.capacity,
            self.emptied.clone(),
            self.suspects.clone(),
            self.reclaimed.counts(),
            occupied.map(|(device, sum)| (*device, *sum)).collect(),
        );
        if counts != kept {
            let (counts, kept) = (format!("{counts:?}"), format!("{kept:?}"));
            findings.push(Corrupt::new(
                "zone tables",
                "capacity, emptied, suspect and reclaimed zones, and zones per device",
                counts,
                kept,
            ));
        }
        if live != self.live {
            findings.push(Corrupt::new("zone tables", "live bytes of all zones", live, self.live));
        }
        findings
    }

    fn check_runs(&self, at: &str, runs: &[Run], findings: &mut Findings) {
        for pair in runs.windows(2) {
            if pair[0].last >= pair[1].first {
                findings.push(Corrupt::new(at, "runs", "sorted and separate", format_args!("{pair:?}")));
            }
        }
        for run in runs {
            if run.live() == 0 || !self.zones.contains_key(&run.dest) {
                findings.push(Corrupt::new(
                    at,
                    "run",
                    "live, and in a resident zone",
                    format_args!("{run:?}"),
                ));
            }
        }
    }

    /// The encoded rows of one section: those whose sequence number modulo `sections` is `section`.
    pub fn encode_section(&self, section: u32, sections: u32, form: RowForm) -> Vec<u8> {
        let is_in = |seq: ZoneSeq| section_of(seq, sections) == section;
        let resident: Vec<_> = self.zones.iter().filter(|(seq, _)| is_in(**seq)).collect();
        let reclaimed: Vec<_> = self.reclaimed.select(is_in).collect();
        let mut out = SectionWriter::new(form, resident.len() + reclaimed.len());
        for (&seq, zone) in resident {
            let Zone { class, replicas, phase, capacity, claimed, live, opened, last_write, .. } = *zone;
            let home = replicas.first();
            let head = RowHead { seq, class, phase, home, capacity, claimed, live, opened, last_write };
            out.add_row(&head, &zone.born.runs, || zone.born.dead.intervals(), &zone.part_copies);
        }
        for (seq, zone) in reclaimed {
            let ReclaimedZone { class, opened, last_write, born } = &*zone;
            let (class, opened, last_write) = (*class, *opened, *last_write);
            let (phase, home) = (Phase::Reclaimed, Home::default());
            let head =
                RowHead { seq, class, phase, home, capacity: 0, claimed: 0, live: 0, opened, last_write };
            out.add_row(&head, &born.runs, || born.dead.intervals(), &[]);
        }
        out.finish()
    }

    /// Decodes the tables from `sections` sections. `fetch` returns `None` for a section that was never written.
    pub fn decode(
        sections: u32,
        mut fetch: impl FnMut(u32) -> Result<Option<(Vec<u8>, RowForm)>, Corrupt>,
    ) -> Result<Tables, Corrupt> {
        let mut tables = Tables::default();
        for section in 0..sections {
            let Some((raw, form)) = fetch(section)? else { continue };
            let at = format!("section {section} of the zone tables");
            parse_section(&raw, form, &at, |row| {
                let Row { head, runs, dead, part_copies } = row;
                let RowHead { seq, class, phase, home, capacity, claimed, live, opened, last_write } = head;
                if section_of(seq, sections) != section {
                    return Err(Corrupt::new(&at, "zone", "of this section", seq));
                }
                tables.live = tables.live.saturating_add(live);
                let born = BornBlocks { runs, dead: DeadSet::of_intervals(dead) };
                if phase == Phase::Reclaimed {
                    tables.reclaimed.insert(seq, ReclaimedZone { class, opened, last_write, born });
                } else {
                    let zone = Zone::new(class, home, capacity, opened);
                    tables.insert(seq, Zone { phase, claimed, live, last_write, born, part_copies, ..zone });
                }
                Ok(())
            })?;
        }
        Ok(tables)
    }

    /// Runs with a known tally.
    pub fn tallied_runs(&self) -> u64 {
        let of = |born: &BornBlocks| born.runs.iter().filter(|run| run.tally.is_known()).count() as u64;
        let resident: u64 = self.zones.values().map(|zone| of(&zone.born)).sum();
        resident + self.reclaimed().map(|(_, zone)| of(&zone.born)).sum::<u64>()
    }

    /// Sets all tallies to unknown: versions without tallies cannot read them.
    pub fn clear_tallies(&mut self) {
        let forget = |born: &mut BornBlocks| born.runs.iter_mut().for_each(|run| run.tally = Tally::UNKNOWN);
        self.zones.values_mut().for_each(|zone| forget(&mut zone.born));
        let reclaimed: Vec<ZoneSeq> = self.reclaimed().map(|(seq, _)| seq).collect();
        for seq in reclaimed {
            self.reclaimed.change(seq, |zone| forget(&mut zone.born));
        }
    }
}

/// The section that a row belongs to.
pub fn section_of(seq: ZoneSeq, sections: u32) -> u32 {
    (seq.0 % u64::from(sections)) as u32
}

/// A moved run leaves its dead blocks behind. A run that is only split stays in its part and keeps them.
fn move_reclaimed_runs(born: &mut BornBlocks, runs: &[Run]) {
    let stays =
        |run: &Run| born.run_of(run.first).is_some_and(|old| old.is_listed_in(run.dest, run.part_end()));
    let moved = runs.iter().filter(|run| run.tally.is_known() && !stays(run));
    let mut moved: Vec<(u32, u32)> = moved.map(|run| (run.first, run.last)).collect();
    moved.sort_unstable();
    born.dead.drop_beginning_in(&moved);
    runs.iter().for_each(|run| born.insert_run(*run));
    born.keep_within_runs();
}

/// Applies sorted frees of blocks of one birthplace. Returns those that were dead already.
fn free_blocks(born: &mut BornBlocks, ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let twice = born.dead.add_sorted(ranges);
    ranges.iter().for_each(|(first, granules)| born.drop_block(*first, *granules));
    twice
}
