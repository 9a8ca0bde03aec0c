//! The tables of zones: which fillings there are, what is live in them, and where blocks that moved are now.
//!
//! A *logical zone* is one filling, named for ever by its sequence number. Its row holds where it lies, how far it is claimed,
//! how many bytes in it are live, and, as birthplace, which of its granules are dead ([`DeadSet`]) and which runs
//! of its survivors live elsewhere ([`Run`]). A row outlives its filling for as long as a survivor has it as
//! birthplace. The table of physical zones follows from the rows.
//!
//! Live bytes are counted up from births, never derived from a write pointer: headers, padding, directory parts and abandoned
//! tails are never live.
//!
//! The one way to change a committed table is [`Tables::apply`], at run time as at import, so what is replayed is what ran.
//!
//! Invariant ([`Tables::check`]): runs of a row are sorted and separate, no run is without live bytes, and no physical
//! zone has two fillings.

use crate::addr::{Addr, granule_bytes};
use crate::append::Gather;
use crate::dead::DeadSet;
use crate::label::BootPtr;
use crate::record::{
    Class, Free, Home, Move, PartCopy, Record, Run, get_home, get_part_copy, get_run, get_seq,
    get_zone_bytes, list, put_home, put_part_copy, put_run,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrane_wire::{Corrupt, Reader, Truncated, Txg, Writer, ZoneSeq};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Being written.
    Open,
    Full,
    /// Nothing live since this group; may be reset when that group is older than what can be rolled back to.
    Emptied(Txg),
    /// The filling is no more; survivors elsewhere still have it as birthplace.
    Gone,
    /// Its directory holds what nobody can explain; kept until `check` has looked.
    Suspect,
}

#[derive(Clone, Debug)]
pub struct Zone {
    pub class: Class,
    pub home: Home,
    pub phase: Phase,
    /// Writable bytes.
    pub capacity: u64,
    /// End of what committed groups wrote, in bytes: the newest directory part ends here. 0: nothing.
    pub claimed: u64,
    /// Live bytes lying in the zone, whoever's birthplace it is.
    pub live: u64,
    pub opened: Txg,
    /// The last group with births or moves into the zone.
    pub last_write: Txg,
    pub runs: Vec<Run>,
    pub dead: DeadSet,
    pub part_copies: Vec<PartCopy>,
    /// Readers between look-up and completion; not stored.
    pub pins: Arc<AtomicU32>,
    /// What was appended and is not yet on the device; not stored.
    pub gather: Option<Arc<Gather>>,
}

impl Zone {
    pub fn new(class: Class, home: Home, capacity: u64, opened: Txg) -> Zone {
        Zone {
            class,
            home,
            phase: Phase::Open,
            capacity,
            claimed: 0,
            live: 0,
            opened,
            last_write: opened,
            runs: Vec::new(),
            dead: DeadSet::default(),
            part_copies: Vec::new(),
            pins: Arc::default(),
            gather: None,
        }
    }

    /// The run that holds the block born at `granule`, if it moved.
    pub fn run_of(&self, granule: u32) -> Option<&Run> {
        let at = self.runs.partition_point(|run| run.last < granule);
        self.runs.get(at).filter(|run| run.first <= granule)
    }

    fn insert_run(&mut self, run: Run) {
        let from = self.runs.partition_point(|old| old.last < run.first);
        let to = self.runs.partition_point(|old| old.first <= run.last);
        self.runs.splice(from..to.max(from), [run]);
    }

    /// Bytes of memory that it takes of the run index: its runs, and the row of a zone that is gone but for them. Dead sets are counted
    /// apart.
    pub fn index_bytes(&self) -> usize {
        let row = if self.is_resident() { 0 } else { size_of::<(ZoneSeq, Zone)>() + size_of::<AtomicU32>() };
        row + self.runs.capacity() * size_of::<Run>()
    }

    /// Whether somebody reads it, so that it cannot be reset.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Whether bytes lie in a physical zone.
    pub fn is_resident(&self) -> bool {
        self.phase != Phase::Gone
    }
}

/// All logical zones.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub zones: BTreeMap<ZoneSeq, Zone>,
    /// Live bytes of all zones.
    pub live: u64,
    /// Zones in which bytes lie, and the bytes those can hold.
    resident: u64,
    resident_capacity: u64,
    /// Zones that wait to be reset.
    emptied: BTreeSet<ZoneSeq>,
}

/// What replaying or committing a record found wrong.
pub type Findings = Vec<Corrupt>;

impl Tables {
    /// Adds the row of a zone.
    pub fn insert(&mut self, seq: ZoneSeq, zone: Zone) {
        self.forget(seq);
        self.count(&zone, 1);
        if matches!(zone.phase, Phase::Emptied(_)) {
            self.emptied.insert(seq);
        }
        self.zones.insert(seq, zone);
    }

    fn forget(&mut self, seq: ZoneSeq) {
        if let Some(old) = self.zones.remove(&seq) {
            self.count(&old, 0);
            self.emptied.remove(&seq);
        }
    }

    /// A zone came (`to` is 1) or goes (0).
    fn count(&mut self, zone: &Zone, to: u64) {
        if zone.is_resident() {
            self.resident = self.resident + to - (1 - to);
            self.resident_capacity = self.resident_capacity + to * zone.capacity - (1 - to) * zone.capacity;
        }
    }

    /// The only place where a zone's phase changes, so the counts cannot drift.
    fn enter(&mut self, seq: ZoneSeq, phase: Phase) {
        let Some(mut zone) = self.zones.remove(&seq) else { return };
        self.count(&zone, 0);
        zone.phase = phase;
        self.count(&zone, 1);
        self.zones.insert(seq, zone);
        match phase {
            Phase::Emptied(_) => self.emptied.insert(seq),
            _ => self.emptied.remove(&seq),
        };
    }

    /// How many zones there are in which bytes lie.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Bytes that can be written to those zones.
    pub fn resident_capacity(&self) -> u64 {
        self.resident_capacity
    }

    /// Zones that wait to be reset.
    pub fn emptied(&self) -> impl Iterator<Item = (ZoneSeq, &Zone)> {
        self.emptied.iter().filter_map(|seq| Some((*seq, self.zones.get(seq)?)))
    }

    /// Applies a committed record. `frees` are those of the record and of its dead-log blocks, sorted. `own` names the record
    /// itself. Only rows for which `concerns` says so are touched: the others are newer already.
    pub fn apply(
        &mut self,
        record: &Record,
        own: &BootPtr,
        frees: &[Free],
        concerns: &dyn Fn(ZoneSeq) -> bool,
    ) -> Findings {
        let mut findings = Findings::new();
        let txg = record.txg;
        let unknown = |seq: ZoneSeq| {
            Corrupt::new(format_args!("commit record of group {txg}"), "zone", "in the tables", seq)
        };
        for &seq in record.reset.iter().filter(|seq| concerns(**seq)) {
            self.retire(seq);
        }
        for opened in record.opened.iter().filter(|opened| concerns(opened.seq)) {
            if !self.zones.contains_key(&opened.seq) {
                self.insert(opened.seq, Zone::new(opened.class, opened.home, opened.capacity, txg));
            }
        }
        for written in record.written.iter().filter(|written| concerns(written.seq)) {
            match self.zones.get_mut(&written.seq) {
                Some(zone) => {
                    zone.claimed = written.claimed;
                    zone.last_write = txg;
                    zone.live += written.born;
                    self.live += written.born;
                }
                None => findings.push(unknown(written.seq)),
            }
        }
        for place in own.copies().filter(|place| concerns(place.seq)) {
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
        for seq in record.filled.iter().filter(|seq| concerns(**seq)) {
            if self.zones.get(seq).is_some_and(|zone| zone.phase == Phase::Open) {
                self.enter(*seq, Phase::Full);
            }
        }
        for (seq, copy) in record.part_copies.iter().filter(|(seq, _)| concerns(*seq)) {
            if let Some(zone) = self.zones.get_mut(seq) {
                zone.part_copies.push(*copy);
            }
        }
        self.apply_moves(record, concerns, &mut findings);
        for &(seq, delta) in record.deltas.iter().filter(|(seq, _)| concerns(*seq)) {
            match self.zones.get_mut(&seq) {
                Some(zone) if zone.live.checked_add_signed(delta).is_some() => {
                    zone.live = zone.live.saturating_add_signed(delta);
                    self.live = self.live.saturating_add_signed(delta);
                }
                Some(zone) => findings.push(Corrupt::new(
                    format_args!("commit record of group {txg}, zone {seq}"),
                    "live bytes",
                    format_args!("at least {}", delta.unsigned_abs()),
                    zone.live,
                )),
                None => findings.push(unknown(seq)),
            }
        }
        self.apply_frees(txg, frees, concerns, &mut findings);
        for seq in record.suspect.iter().filter(|seq| concerns(**seq)) {
            self.enter(*seq, Phase::Suspect);
        }
        // Only these can have lost their last live byte.
        let touched = record.filled.iter().chain(record.deltas.iter().map(|(seq, _)| seq));
        for seq in touched.filter(|seq| concerns(**seq)) {
            if self.zones.get(seq).is_some_and(|zone| zone.phase == Phase::Full && zone.live == 0) {
                self.enter(*seq, Phase::Emptied(txg));
            }
        }
        findings
    }

    /// A run that moves takes nothing along that was dead: its new part does not list it, so the dead set need not hold it either. What
    /// guards against a second free of such a block is the run's tally. It is so only where the birth zone is gone: one that is there
    /// lists all its blocks, the dead ones too.
    fn apply_moves(&mut self, record: &Record, concerns: &dyn Fn(ZoneSeq) -> bool, findings: &mut Findings) {
        // Runs that are cut stay in their part, and keep their dead.
        let mut before: BTreeMap<ZoneSeq, Vec<Run>> = BTreeMap::new();
        for Move { birth, run } in record.moves.iter().filter(|moved| concerns(moved.birth)) {
            let Some(zone) = self.zones.get_mut(birth) else {
                let at = format_args!("commit record of group {}", record.txg);
                findings.push(Corrupt::new(at, "zone", "in the tables", birth));
                continue;
            };
            if zone.phase == Phase::Gone {
                let old = before.entry(*birth).or_insert_with(|| zone.runs.clone());
                let at = old.partition_point(|old| old.last < run.first);
                let stays = old
                    .get(at)
                    .is_some_and(|old| old.first <= run.first && old.is_in(run.dest, run.part_end()));
                if run.tally.is_known() && !stays {
                    zone.dead.forget(run.first, run.last);
                }
            }
            zone.insert_run(*run);
        }
        for zone in before.keys() {
            if let Some(zone) = self.zones.get_mut(zone) {
                let runs: Vec<(u32, u32)> = zone.runs.iter().map(|run| (run.first, run.last)).collect();
                zone.dead.keep_within(&runs);
                zone.runs.shrink_to_fit();
            }
        }
    }

    /// Bytes of memory of the run index and of dead sets.
    pub fn memory_bytes(&self) -> u64 {
        let of = |zone: &Zone| (zone.index_bytes() + zone.dead.memory_bytes()) as u64;
        self.zones.values().map(of).sum()
    }

    fn apply_frees(
        &mut self,
        txg: Txg,
        frees: &[Free],
        concerns: &dyn Fn(ZoneSeq) -> bool,
        findings: &mut Findings,
    ) {
        for group in frees.chunk_by(|a, b| a.addr.seq() == b.addr.seq()) {
            let seq = group[0].addr.seq();
            if !concerns(seq) {
                continue;
            }
            let at = format!("commit record of group {txg}, zone {seq}");
            let Some(zone) = self.zones.get_mut(&seq) else {
                findings.push(Corrupt::new(at, "zone of freed blocks", "in the tables", "forgotten"));
                continue;
            };
            let ranges: Vec<(u32, u32)> =
                group.iter().map(|free| (free.addr.granule(), free.granules)).collect();
            for (first, _) in zone.dead.add_sorted(&ranges) {
                findings.push(Corrupt::new(
                    &at,
                    "freed block",
                    "alive",
                    format_args!("granule {first} freed twice"),
                ));
            }
            for &(first, granules) in &ranges {
                let index = zone.runs.partition_point(|run| run.last < first);
                let Some(run) = zone.runs.get_mut(index).filter(|run| run.first <= first) else { continue };
                run.drop_block(first, granules);
                if run.live() == 0 {
                    zone.runs.remove(index);
                }
            }
            self.forget_if_done(seq);
        }
    }

    /// The filling is no more. What no run holds is dead by that alone, and needs no intervals; without survivors the row goes.
    pub(crate) fn retire(&mut self, seq: ZoneSeq) {
        self.enter(seq, Phase::Gone);
        if let Some(zone) = self.zones.get_mut(&seq) {
            zone.gather = None;
            zone.part_copies.clear();
            let runs: Vec<(u32, u32)> = zone.runs.iter().map(|run| (run.first, run.last)).collect();
            zone.dead.keep_within(&runs);
            zone.runs.shrink_to_fit();
        }
        self.forget_if_done(seq);
    }

    /// Drops the row of a zone that is gone and has no survivors.
    fn forget_if_done(&mut self, seq: ZoneSeq) {
        if self.zones.get(&seq).is_some_and(|zone| zone.phase == Phase::Gone && zone.runs.is_empty()) {
            self.forget(seq);
        }
    }

    /// The zone in which the block with this birthplace lies now, for accounting.
    pub fn current_zone(&self, addr: Addr) -> Option<ZoneSeq> {
        let zone = self.zones.get(&addr.seq())?;
        match zone.run_of(addr.granule()) {
            Some(run) => Some(run.dest),
            None => zone.is_resident().then_some(addr.seq()),
        }
    }

    /// The invariants above.
    pub fn check(&self) -> Findings {
        let mut findings = Findings::new();
        let mut homes = BTreeMap::new();
        let mut live = 0;
        for (seq, zone) in &self.zones {
            let at = format!("zone {seq}");
            live += zone.live;
            for pair in zone.runs.windows(2) {
                if pair[0].last >= pair[1].first {
                    findings.push(Corrupt::new(&at, "runs", "sorted and separate", format_args!("{pair:?}")));
                }
            }
            for run in &zone.runs {
                if run.live() == 0 || !self.zones.get(&run.dest).is_some_and(Zone::is_resident) {
                    findings.push(Corrupt::new(
                        &at,
                        "run",
                        "live bytes in a zone that is there",
                        format_args!("{run:?}"),
                    ));
                }
            }
            if zone.live > zone.capacity
                || zone.claimed > zone.capacity
                || (!zone.is_resident() && zone.live > 0)
            {
                findings.push(Corrupt::new(
                    &at,
                    "live bytes",
                    format_args!("at most {}", zone.capacity),
                    zone.live,
                ));
            }
            if zone.is_resident()
                && let Some(other) = homes.insert(zone.home, *seq)
            {
                findings.push(Corrupt::new(
                    &at,
                    "home",
                    "its own",
                    format_args!("{} with zone {other}", zone.home),
                ));
            }
        }
        let emptied = |zone: &Zone| matches!(zone.phase, Phase::Emptied(_));
        let counts = (
            self.zones.values().filter(|zone| zone.is_resident()).count() as u64,
            self.zones.values().filter(|zone| zone.is_resident()).map(|zone| zone.capacity).sum(),
            self.zones.iter().filter(|(_, zone)| emptied(zone)).map(|(seq, _)| *seq).collect(),
        );
        if counts != (self.resident, self.resident_capacity, self.emptied.clone()) {
            let found = format!("{} and {:?}", self.resident, self.emptied);
            findings.push(Corrupt::new("zone tables", "zones by phase", format_args!("{counts:?}"), found));
        }
        if live != self.live {
            findings.push(Corrupt::new("zone tables", "live bytes of all zones", live, self.live));
        }
        findings
    }

    /// The rows of one section, encoded: those whose sequence number modulo `sections` is `section`.
    pub fn encode_section(&self, section: u32, sections: u32) -> Vec<u8> {
        let mut out = Writer::new();
        let rows: Vec<_> =
            self.zones.iter().filter(|(seq, _)| section_of(**seq, sections) == section).collect();
        out.varint(rows.len() as u64);
        for (seq, zone) in rows {
            out.varint(seq.0);
            let (phase, emptied) = match zone.phase {
                Phase::Open => (0, 0),
                Phase::Full => (1, 0),
                Phase::Emptied(txg) => (2, txg.0),
                Phase::Gone => (3, 0),
                Phase::Suspect => (4, 0),
            };
            out.u8(zone.class as u8);
            out.u8(phase);
            out.varint(emptied);
            // One replica today; mirrors have more.
            out.u8(1);
            put_home(&mut out, zone.home);
            for number in [zone.capacity, zone.claimed, zone.live, zone.opened.0, zone.last_write.0] {
                out.varint(number);
            }
            out.varint(zone.runs.len() as u64);
            for run in &zone.runs {
                put_run(&mut out, run);
            }
            zone.dead.encode(&mut out);
            out.varint(zone.part_copies.len() as u64);
            for copy in &zone.part_copies {
                put_part_copy(&mut out, copy);
            }
        }
        out.into_bytes()
    }

    /// Adds the rows of an encoded section.
    pub fn decode_section(&mut self, raw: &[u8], section: u32, sections: u32) -> Result<(), Corrupt> {
        let at = format!("section {section} of the zone tables");
        let truncated = |error: Truncated| Corrupt::new(&at, "rows", "whole", error);
        let mut raw = Reader::new(raw);
        let rows = list(&mut raw, decode_row).map_err(truncated)?;
        for (seq, zone) in rows {
            if section_of(seq, sections) != section {
                return Err(Corrupt::new(&at, "zone", "of this section", seq));
            }
            self.live = self.live.saturating_add(zone.live);
            self.insert(seq, zone);
        }
        Ok(())
    }
}

/// Which section a row belongs to.
pub fn section_of(seq: ZoneSeq, sections: u32) -> u32 {
    (seq.0 % u64::from(sections)) as u32
}

fn decode_row(raw: &mut Reader<'_>) -> Result<(ZoneSeq, Zone), Truncated> {
    let seq = get_seq(raw)?;
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let class = Class::from_id(raw.u8()?).ok_or(bad)?;
    let (phase, emptied) = (raw.u8()?, Txg(raw.varint()?));
    if raw.u8()? != 1 {
        return Err(bad);
    }
    let home = get_home(raw)?;
    let (capacity, claimed, live) = (get_zone_bytes(raw)?, get_zone_bytes(raw)?, get_zone_bytes(raw)?);
    let (opened, last_write) = (Txg(raw.varint()?), Txg(raw.varint()?));
    if claimed > capacity || live > capacity {
        return Err(bad);
    }
    let mut zone = Zone::new(class, home, capacity, opened);
    zone.phase = match phase {
        0 => Phase::Open,
        1 => Phase::Full,
        2 => Phase::Emptied(emptied),
        3 => Phase::Gone,
        4 => Phase::Suspect,
        _ => return Err(bad),
    };
    (zone.claimed, zone.live, zone.last_write) = (claimed, live, last_write);
    zone.runs = list(raw, get_run)?;
    if zone.runs.windows(2).any(|pair| pair[0].last >= pair[1].first) {
        return Err(bad);
    }
    zone.dead = DeadSet::decode(raw)?;
    zone.part_copies = list(raw, get_part_copy)?;
    Ok((seq, zone))
}
