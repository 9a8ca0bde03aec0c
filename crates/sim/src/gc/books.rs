//! A pool without data: zones, slots and the real accounting.
//!
//! What a pool keeps in directories and pointers is kept here in lists. Everything else is the pool's own
//! code: records are applied to [`Tables`], so runs and dead sets are the real ones, and every decision is
//! one of [`policy`](terrane_space::policy). A txg runs as in the pool: births, then moves judged by the
//! tables of the txg before, then one record.

use super::Setting;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use terrane_format::block_ptr::Hole;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::record::RowForm;
use terrane_format::record::{Class, Free, Home, Move, Opened, Record, Run, Written};
use terrane_format::rows::Phase;
use terrane_format::{Addr, BlockPtr, GRANULE};
use terrane_space::policy::{Age, Candidates, Choice, Clock, Heat, Layout, Lives, Placement, Placer, Stock};
use terrane_space::zones::{Tables, Zone};
use terrane_wire::Dice;
use terrane_wire::{DeviceIdx, Txg, ZoneIdx, ZoneSeq};

const UNIT: u64 = 4096;
const TRAILER_BYTES: u64 = 96;
/// Approximate bytes of a block's entry in a directory part.
const ENTRY_BYTES: u64 = 12;

/// A block as a directory lists it. There may be a hundred million of them.
#[derive(Clone, Copy)]
#[repr(Rust, packed(4))]
struct Entry {
    identity: Addr,
    granules: u32,
}

/// The content of a physical zone.
#[derive(Default)]
struct Filling {
    entries: Vec<Entry>,
    /// Entries before the end of each part, and where it ends.
    parts: Vec<(u32, u64)>,
    hot: bool,
}

struct OpenZone {
    seq: ZoneSeq,
    offset: u64,
    batch_start: u64,
    /// Entries whose part is not written yet, and whether each continues the run of the one before.
    pending: Vec<(Entry, bool)>,
}

#[derive(Default)]
struct Changes {
    opened: Vec<Opened>,
    written: BTreeMap<ZoneSeq, Written>,
    filled: Vec<ZoneSeq>,
    reset: Vec<ZoneSeq>,
    moves: Vec<Move>,
    deltas: BTreeMap<ZoneSeq, i64>,
    frees: Vec<Free>,
    carried: HashMap<Addr, ZoneSeq>,
}

/// Bytes written, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub user_bytes: u64,
    pub moved_bytes: u64,
    pub directory_bytes: u64,
    pub metadata_bytes: u64,
    pub victims: u64,
    pub groups: u64,
}

/// Tree blocks in two copies; a random one is rewritten next.
struct Metadata {
    blocks: Vec<[Addr; 2]>,
    dice: Dice,
    owed_bytes: f64,
}

/// Size of a block of metadata, and live metadata per byte of users' data that a pool can hold.
const METADATA_BYTES: u64 = 4096;
const METADATA_PART: u64 = 256;

pub struct Books {
    pub setting: Setting,
    pub tables: Tables,
    pub clock: Clock,
    pub lives: Lives,
    pub totals: Totals,
    /// What users had written by now, for the clock: the sum of blocks, or what a recording says.
    pub written_bytes: u64,
    /// How long each choice of a victim took, in wall time.
    pub choices_ns: Vec<u32>,
    candidates: Candidates,
    placer: Placer,
    slots: Vec<Option<OpenZone>>,
    fillings: HashMap<ZoneSeq, Filling>,
    empty: BTreeSet<u32>,
    waiting: Vec<(ZoneSeq, u32)>,
    next_seq: u64,
    txg: Txg,
    group: Changes,
    group_bytes: u64,
    metadata: Metadata,
}

impl Books {
    pub fn new(setting: Setting) -> Option<Books> {
        let layout = Layout::of_slots(setting.slots, setting.ages)?;
        let mut clock = Clock::default();
        clock.note(Txg(0), 0);
        let mut tables = Tables::default();
        tables.replace_gone(tables.gone_in_form(setting.packed));
        Some(Books {
            setting,
            tables,
            clock,
            lives: Lives::new(setting.pool_bytes()),
            totals: Totals::default(),
            written_bytes: 0,
            choices_ns: Vec::new(),
            candidates: Candidates::default(),
            placer: Placer::new(layout, setting.zone_bytes),
            slots: (0..layout.slots()).map(|_| None).collect(),
            fillings: HashMap::new(),
            empty: (0..setting.zones).collect(),
            waiting: Vec::new(),
            next_seq: 1,
            txg: Txg(1),
            group: Changes::default(),
            group_bytes: 0,
            metadata: Metadata { blocks: Vec::new(), dice: Dice::new(0), owed_bytes: 0.0 },
        })
    }

    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Zones reserved for GC: each class of survivors may have to open one, and one victim of a txg may take
    /// a whole one.
    fn kept(&self) -> usize {
        let ages: BTreeSet<usize> = Age::ALL.into_iter().map(|age| self.survivor_slot(age)).collect();
        ages.len() + 1
    }

    fn floor(&self) -> usize {
        let group_zones = self.setting.group_bytes.div_ceil(self.setting.zone_bytes) as usize;
        self.kept() + 2 * group_zones + 2
    }

    fn stock(&self) -> Stock {
        // As in the pool, which offers about nine tenths of its zones.
        let is_loose = self.tables.live < self.setting.pool_bytes() / 5 * 4;
        match self.empty.len() > self.floor() {
            true if is_loose && self.empty.len() > 2 * self.floor() => Stock::Plenty,
            true => Stock::Enough,
            false => Stock::Short,
        }
    }

    fn survivor_slot(&self, age: Age) -> usize {
        if self.setting.mixed {
            self.placer.layout().data().start
        } else {
            self.placer.layout().survivors(age)
        }
    }

    /// A user's block is born. False: there is no space, and GC cannot free any.
    pub fn write(&mut self, bytes: u64, placement: &Placement) -> Option<Addr> {
        if self.group_bytes + bytes > self.setting.group_bytes {
            self.end_group()?;
        }
        let hint = if self.setting.hints { placement.hint } else { Default::default() };
        let placement = Placement { hint, ..*placement };
        let previous = match placement.replaces {
            Txg(0) => None,
            txg => self.clock.age_bytes(txg),
        };
        let heat = match self.setting.infer {
            true => self.lives.heat(previous, hint, placement.expected_life_bytes),
            false => Heat::Cold,
        };
        let stock = self.stock();
        let Choice { slot, is_fresh } = if self.setting.mixed {
            Choice { slot: self.placer.layout().data().start, is_fresh: false }
        } else {
            let room = |slot: usize| self.slots[slot].as_ref().map_or(0, |open| self.room(open));
            let choice = self.placer.choose(&placement, heat, stock, room);
            self.placer.chosen(choice, &placement, heat, bytes);
            choice
        };
        let takes = |books: &Books| books.slots[slot].as_ref().is_some_and(|open| books.room(open) >= bytes);
        if is_fresh || !takes(self) {
            if self.empty.len() <= self.kept() {
                self.wait_for_room()?;
            }
            if is_fresh || !takes(self) {
                self.fill(slot);
                self.open(slot, Class::Data, heat == Heat::Hot);
                self.placer.opened(slot);
            }
        }
        let identity = {
            let open = self.slots[slot].as_ref()?;
            Addr::new(open.seq, open.offset)
        };
        let entry = Entry { identity, granules: u32::try_from(bytes / GRANULE).ok()? };
        self.append(slot, entry, false);
        self.totals.user_bytes += bytes;
        self.written_bytes += bytes;
        self.group_bytes += bytes;
        Some(identity)
    }

    /// What the txg changed in trees.
    fn write_metadata(&mut self) {
        let most = self.setting.pool_bytes() / METADATA_PART / METADATA_BYTES;
        self.metadata.owed_bytes += self.setting.metadata * self.group_bytes as f64;
        while self.metadata.owed_bytes >= METADATA_BYTES as f64 && self.empty.len() > 2 {
            self.metadata.owed_bytes -= METADATA_BYTES as f64;
            // Two of the empty zones are left for them.
            let copies = [0, 1].map(|copy| self.write_copy(copy, METADATA_BYTES).expect("there is room"));
            if (self.metadata.blocks.len() as u64) < most {
                self.metadata.blocks.push(copies);
                continue;
            }
            let at = self.metadata.dice.below(most) as usize;
            for old in std::mem::replace(&mut self.metadata.blocks[at], copies) {
                self.free(old, METADATA_BYTES);
            }
        }
    }

    /// A copy of a block of metadata is born, the first (0) or the second (1). `None`: there is no space, and
    /// GC cannot free any.
    pub fn write_copy(&mut self, copy: usize, bytes: u64) -> Option<Addr> {
        let slot = *self.placer.layout().meta().get(copy)?;
        let at = loop {
            match &self.slots[slot] {
                Some(open) if self.room(open) >= bytes => break Addr::new(open.seq, open.offset),
                Some(_) => self.fill(slot),
                None if self.empty.len() <= 1 => self.wait_for_room()?,
                None => {
                    self.open(slot, Class::MetaA, false);
                    self.placer.opened(slot);
                }
            }
        };
        self.append(slot, Entry { identity: at, granules: u32::try_from(bytes / GRANULE).ok()? }, false);
        self.totals.metadata_bytes += bytes;
        Some(at)
    }

    /// A block is freed in this txg.
    pub fn free(&mut self, addr: Addr, bytes: u64) {
        self.group.frees.push(Free { addr, granules: u32::try_from(bytes / GRANULE).unwrap_or(u32::MAX) });
    }

    /// Bytes of blocks that an open zone can still take.
    fn room(&self, open: &OpenZone) -> u64 {
        let part = (open.pending.len() as u64 + 1) * ENTRY_BYTES + TRAILER_BYTES + UNIT;
        self.setting.zone_bytes.saturating_sub(open.offset + part)
    }

    fn open(&mut self, slot: usize, class: Class, hot: bool) {
        let home = self.empty.pop_first().expect("asked for before");
        let seq = ZoneSeq(self.next_seq);
        self.next_seq += 1;
        let home = Home { device: DeviceIdx(0), zone: ZoneIdx(home) };
        let capacity = self.setting.zone_bytes;
        self.tables.insert(seq, Zone::new(class, home, capacity, self.txg));
        self.group.opened.push(Opened { seq, class, home, capacity });
        self.fillings.insert(seq, Filling { hot, ..Filling::default() });
        self.slots[slot] = Some(OpenZone { seq, offset: UNIT, batch_start: 0, pending: Vec::new() });
    }

    fn append(&mut self, slot: usize, entry: Entry, joins: bool) {
        let open = self.slots[slot].as_mut().expect("opened before");
        let bytes = u64::from(entry.granules) * GRANULE;
        let (seq, moved) = (open.seq, entry.identity.seq() != open.seq);
        open.offset += bytes;
        open.pending.push((entry, joins));
        let sealed = open.offset - open.batch_start >= self.setting.batch_bytes;
        if !moved {
            self.group.written.entry(seq).or_insert(Written { seq, claimed: 0, born: 0 }).born += bytes;
        }
        if sealed {
            self.seal(slot);
        }
    }

    fn seal(&mut self, slot: usize) {
        let Some(open) = self.slots[slot].as_mut().filter(|open| !open.pending.is_empty()) else { return };
        let seq = open.seq;
        let end = open.offset + open.pending.len() as u64 * ENTRY_BYTES + TRAILER_BYTES;
        let end = end.next_multiple_of(UNIT).min(self.setting.zone_bytes);
        self.totals.directory_bytes += end - open.offset;
        let pending = std::mem::take(&mut open.pending);
        (open.offset, open.batch_start) = (end, end);
        self.group.written.entry(seq).or_insert(Written { seq, claimed: 0, born: 0 }).claimed = end;
        let filling = self.fillings.get_mut(&seq).expect("opened before");
        let mut last: Option<Move> = None;
        for (entry, joins) in pending {
            filling.entries.push(entry);
            if entry.identity.seq() == seq {
                continue;
            }
            let granule = entry.identity.granule();
            match &mut last {
                Some(run) if joins && run.birth == entry.identity.seq() && run.run.last < granule => {
                    run.run.take(granule, entry.granules);
                }
                _ => {
                    self.group.moves.extend(last.take());
                    let run = Run::of(granule, entry.granules, seq, end);
                    last = Some(Move { birth: entry.identity.seq(), run });
                }
            }
        }
        self.group.moves.extend(last);
        filling.parts.push((u32::try_from(filling.entries.len()).unwrap_or(u32::MAX), end));
    }

    fn fill(&mut self, slot: usize) {
        self.seal(slot);
        if let Some(open) = self.slots[slot].take() {
            self.placer.closed(slot);
            self.group.filled.push(open.seq);
            if let Some(filling) = self.fillings.get_mut(&open.seq) {
                filling.entries.shrink_to_fit();
                filling.parts.shrink_to_fit();
            }
        }
    }

    /// Users wait: empty txgs follow each other until a zone can be opened.
    fn wait_for_room(&mut self) -> Option<()> {
        for _ in 0..64 {
            self.end_group()?;
            if self.empty.len() > self.kept() {
                return Some(());
            }
        }
        None
    }

    /// Runs the GC that is due, and commits.
    pub fn end_group(&mut self) -> Option<()> {
        self.write_metadata();
        let mut emptied = self.waiting.len();
        while self.empty.len() + emptied < self.floor() {
            let Some(victim) = self.victim() else { break };
            if self.empty.len() <= 1 {
                break;
            }
            self.evacuate(victim);
            emptied += 1;
        }
        self.commit();
        Some(())
    }

    fn victim(&mut self) -> Option<ZoneSeq> {
        let now = self.clock.now();
        self.candidates.look(now);
        let start = std::time::Instant::now();
        let victim = self
            .candidates
            .choose(self.setting.victim, now, false)
            .or_else(|| self.candidates.choose(self.setting.victim, now, true));
        self.choices_ns.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        self.totals.victims += 1;
        victim
    }

    fn evacuate(&mut self, victim: ZoneSeq) {
        self.candidates.remove(victim);
        self.zone_ends(victim);
        let filling = std::mem::take(self.fillings.get_mut(&victim).expect("a full zone has a directory"));
        let mut last: Option<usize> = None;
        let mut class: Option<(ZoneSeq, usize)> = None;
        for (entry, last_write, may_join) in self.survivors(victim, &filling) {
            let birth_zone = entry.identity.seq();
            let slot = match class {
                Some((zone, slot)) if zone == birth_zone => slot,
                _ => self.survivor_slot(self.lives.age(self.clock.age_bytes(last_write))),
            };
            class = Some((birth_zone, slot));
            let joins = may_join && last == Some(slot);
            last = Some(slot);
            let bytes = u64::from(entry.granules) * GRANULE;
            if self.slots[slot].as_ref().is_none_or(|open| self.room(open) < bytes) {
                self.fill(slot);
                self.open(slot, if self.setting.mixed { Class::Data } else { Class::Collection }, false);
                self.placer.opened(slot);
            }
            self.append(slot, entry, joins);
            let dest = self.slots[slot].as_ref().expect("just opened").seq;
            self.group.carried.insert(entry.identity, dest);
            *self.group.deltas.entry(victim).or_default() -= bytes as i64;
            *self.group.deltas.entry(dest).or_default() += bytes as i64;
            self.totals.moved_bytes += bytes;
        }
    }

    /// A zone of hot data ends: its lifetime is learnt.
    fn zone_ends(&mut self, seq: ZoneSeq) {
        let hot = self.fillings.get_mut(&seq).is_some_and(|filling| std::mem::take(&mut filling.hot));
        let opened = self.tables.zones.get(&seq).map(|zone| zone.opened);
        if hot && let Some(life) = opened.and_then(|txg| self.clock.age_bytes(txg)) {
            self.lives.note_hot_zone(life);
        }
    }

    /// The live entries of a zone. For each: when its birth zone was last written, and whether no block that
    /// stays or lives elsewhere was born between it and the entry before.
    fn survivors(&self, victim: ZoneSeq, filling: &Filling) -> Vec<(Entry, Txg, bool)> {
        let mut birthplaces = self.tables.birthplaces();
        let mut last: Option<Addr> = None;
        let mut part = filling.parts.iter().copied();
        let (mut part_entries, mut part_end) = part.next().unwrap_or_default();
        let mut out = Vec::new();
        for (at, entry) in filling.entries.iter().enumerate() {
            while at as u64 >= u64::from(part_entries) {
                (part_entries, part_end) = part.next().expect("entries lie in parts");
            }
            let identity = entry.identity;
            let (seq, granule) = (identity.seq(), identity.granule());
            let Some(birth) = birthplaces.of(seq) else { continue };
            let is_here = birth.run_of(granule).map_or(seq == victim, |run| run.is_in(victim, part_end));
            if birth.born.dead.overlaps(granule, entry.granules) || !is_here {
                continue;
            }
            let is_next = |last: &Addr| last.seq() == seq && *last < identity;
            let may_join =
                last.filter(is_next).is_some_and(|last| birth.may_join(seq, victim, last.granule(), granule));
            last = Some(identity);
            out.push((*entry, birth.last_write, may_join));
        }
        out
    }

    fn commit(&mut self) {
        for slot in 0..self.slots.len() {
            self.seal(slot);
        }
        let mut group = std::mem::take(&mut self.group);
        // The emptying by the txg before is durable, and no rollback goes past it.
        for (seq, home) in std::mem::take(&mut self.waiting) {
            group.reset.push(seq);
            self.empty.insert(home);
            self.fillings.remove(&seq);
        }
        group.frees.sort_unstable();
        for free in &group.frees {
            let from = group.carried.get(&free.addr).copied().or_else(|| self.tables.current_zone(free.addr));
            let from = from.expect("blocks die once");
            *group.deltas.entry(from).or_default() -= (u64::from(free.granules) * GRANULE) as i64;
        }
        group.deltas.retain(|_, bytes| *bytes != 0);
        let record = self.record(&mut group);
        let findings = self.tables.apply(&record, &BootPtr::NONE, &record.frees, &|_| true);
        assert!(findings.is_empty(), "{findings:?}");
        self.clock.note(self.txg, self.written_bytes);
        for seq in &record.filled {
            let Some(zone) = self.tables.zones.get(seq) else { continue };
            self.candidates.insert(*seq, zone.live, zone.capacity, self.clock.now());
        }
        // A zone that is filled may have died before, block by block, while it was open.
        let changed: BTreeSet<ZoneSeq> = group.deltas.keys().copied().chain(record.filled).collect();
        for seq in changed {
            let Some(zone) = self.tables.zones.get(&seq) else { continue };
            self.candidates.set_live(seq, zone.live);
            if matches!(zone.phase, Phase::Emptied(_)) {
                let home = zone.replicas().first().zone.0;
                self.candidates.remove(seq);
                self.waiting.push((seq, home));
                self.zone_ends(seq);
            }
        }
        self.totals.groups += 1;
        self.txg = Txg(self.txg.0 + 1);
        self.group_bytes = 0;
    }

    fn record(&self, group: &mut Changes) -> Record {
        Record {
            txg: self.txg,
            incarnation: 1,
            time_ns: 0,
            previous: BootPtr::NONE,
            previous_txg: Txg(self.txg.0 - 1),
            replay_after: Txg(0),
            root: BlockPtr::Hole(Hole { kind: 0, level: 0, lsize: 0, birth: self.txg }),
            opened: std::mem::take(&mut group.opened),
            form: RowForm::Tailed,
            written: std::mem::take(&mut group.written).into_values().collect(),
            filled: std::mem::take(&mut group.filled),
            reset: std::mem::take(&mut group.reset),
            suspect: Vec::new(),
            moves: std::mem::take(&mut group.moves),
            deltas: group.deltas.iter().map(|(seq, bytes)| (*seq, *bytes)).collect(),
            frees: std::mem::take(&mut group.frees),
            dead_log: Vec::new(),
            sections: Vec::new(),
            part_copies: Vec::new(),
            may_open: Vec::new(),
            totals: Default::default(),
        }
    }

    /// Each zone is empty, open, full, or waits to be reset; none is lost.
    pub fn check(&self) -> Result<(), String> {
        self.candidates.check()?;
        self.clock.check()?;
        let open = self.slots.iter().flatten().count();
        let full = self.tables.zones.values().filter(|zone| zone.phase == Phase::Full).count();
        let found = self.empty.len() + open + full + self.waiting.len();
        if found != self.setting.zones as usize || full != self.candidates.len() {
            return Err(format!(
                "{} zones expected, found {} empty, {open} open, {full} full ({} of them candidates), {} emptied",
                self.setting.zones,
                self.empty.len(),
                self.candidates.len(),
                self.waiting.len()
            ));
        }
        Ok(())
    }

    /// Runs, and the memory in bytes of runs and dead sets.
    pub fn index(&self) -> Index {
        let size = self.tables.index_size();
        Index {
            rows: self.tables.zones.len() as u64 + size.gone,
            runs: size.runs,
            run_bytes: size.run_index_bytes,
            dead_bytes: size.dead_set_bytes,
        }
    }

    /// Live share of the capacity of full zones, called utilisation in theory.
    pub fn utilisation(&self) -> f64 {
        let dirs = self.totals.directory_bytes as f64
            / (self.totals.user_bytes + self.totals.moved_bytes + self.totals.metadata_bytes) as f64;
        let full = self.tables.zones.values().filter(|zone| zone.phase == Phase::Full);
        let (live, room) = full.fold((0, 0), |(live, room), zone| (live + zone.live, room + zone.capacity));
        live as f64 / (room as f64 * (1.0 - dirs))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Index {
    pub rows: u64,
    pub runs: u64,
    pub run_bytes: u64,
    pub dead_bytes: u64,
}
