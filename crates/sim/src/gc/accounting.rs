//! A pool without data: zones, slots and the real accounting.
//!
//! What a pool keeps in directories and pointers is kept here in lists. Everything else is the pool's own
//! code: records are applied to [`Tables`], so runs and dead sets are the real ones, and every decision is
//! one of [`policy`](terrane_space::policy). A txg runs as in the pool: births, then moves checked against
//! the tables of the txg before, then one record.

use super::Setting;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use terrane_format::block_ptr::Hole;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::record::RowForm;
use terrane_format::record::{Free, Home, Move, OpenedZone, Record, Run, WrittenZone, ZoneClass};
use terrane_format::rows::Phase;
use terrane_format::{Addr, BlockPtr, GRANULE};
use terrane_space::policy::{
    Age, Candidates, Choice, Clock, Heat, HotLifetime, Layout, Placement, Placer, Supply, ZoneSupply,
};
use terrane_space::zones::{Tables, Zone};
use terrane_store::append::COARSE_BATCH_BYTES;
use terrane_wire::Prng;
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
struct ZoneContent {
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
struct TxgChanges {
    opened: Vec<OpenedZone>,
    written: BTreeMap<ZoneSeq, WrittenZone>,
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
    /// Data of users.
    pub user_bytes: u64,
    /// Survivors.
    pub moved_bytes: u64,
    /// Directory parts, with padding.
    pub directory_bytes: u64,
    /// Both copies of metadata.
    pub metadata_bytes: u64,
    /// Relocated blocks that were rewritten to shrink the relocation index.
    pub rewritten_bytes: u64,
    /// Choices of a victim, also those that found none.
    pub victims: u64,
    /// Txgs that were committed.
    pub txgs: u64,
}

/// Tree blocks in two copies; a random one is rewritten next.
struct Metadata {
    blocks: Vec<[Addr; 2]>,
    rng: Prng,
    owed_bytes: f64,
}

/// Size of a block of metadata, and live metadata per byte of users' data that a pool can hold.
const METADATA_BYTES: u64 = 4096;
const METADATA_DIVISOR: u64 = 256;

/// The state of a pool without data.
pub struct Accounting {
    /// The pool's size and policy.
    pub setting: Setting,
    /// The zone tables of the newest committed txg.
    pub tables: Tables,
    /// Bytes that users have written, by txg.
    pub clock: Clock,
    /// Lifetimes of hot data, as learned from zones.
    pub lifetimes: HotLifetime,
    /// Bytes written since the pool was created.
    pub totals: Totals,
    /// What users had written by now, for the clock: the sum of blocks, or what a recording says.
    pub written_bytes: u64,
    /// How long each choice of a victim took, in wall time.
    pub choices_ns: Vec<u32>,
    /// Survivors are written in larger directory parts, because the relocation index is near its bound.
    pub is_coarse: bool,
    candidates: Candidates,
    placer: Placer,
    slots: Vec<Option<OpenZone>>,
    zone_contents: HashMap<ZoneSeq, ZoneContent>,
    empty: BTreeSet<u32>,
    waiting: Vec<(ZoneSeq, u32)>,
    next_seq: u64,
    txg: Txg,
    changes: TxgChanges,
    txg_bytes: u64,
    metadata: Metadata,
}

impl Accounting {
    /// An empty pool. `None`: no layout has so few slots.
    pub fn new(setting: Setting) -> Option<Accounting> {
        let layout = Layout::of_slots(setting.slots, setting.ages)?.with_extra_slots(setting.open_max);
        let mut clock = Clock::default();
        clock.note(Txg(0), 0);
        let mut tables = Tables::default();
        tables.replace_reclaimed(tables.reclaimed_in_form(setting.packed));
        Some(Accounting {
            setting,
            tables,
            clock,
            lifetimes: HotLifetime::new(setting.pool_bytes()),
            totals: Totals::default(),
            written_bytes: 0,
            choices_ns: Vec::new(),
            is_coarse: false,
            candidates: Candidates::default(),
            placer: Placer::new(layout, setting.zone_bytes),
            slots: (0..layout.slots()).map(|_| None).collect(),
            zone_contents: HashMap::new(),
            empty: (0..setting.zones).collect(),
            waiting: Vec::new(),
            next_seq: 1,
            txg: Txg(1),
            changes: TxgChanges::default(),
            txg_bytes: 0,
            metadata: Metadata { blocks: Vec::new(), rng: Prng::new(0), owed_bytes: 0.0 },
        })
    }

    /// The open txg.
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Zones reserved for GC: each class of survivors may have to open one, and one victim of a txg may take
    /// a whole one.
    fn gc_reserve_zones(&self) -> usize {
        let ages: BTreeSet<usize> = Age::ALL.into_iter().map(|age| self.survivor_slot(age)).collect();
        ages.len() + 1
    }

    fn low_watermark(&self) -> usize {
        let txg_zones = self.setting.txg_bytes.div_ceil(self.setting.zone_bytes) as usize;
        self.gc_reserve_zones() + 2 * txg_zones + 2
    }

    fn supply(&self) -> Supply {
        // As in the pool, which offers about nine tenths of its zones.
        let is_loose = self.tables.live < self.setting.pool_bytes() / 5 * 4;
        let zones = match self.empty.len() > self.low_watermark() {
            true if is_loose && self.empty.len() > 2 * self.low_watermark() => ZoneSupply::Plenty,
            true => ZoneSupply::Enough,
            false => ZoneSupply::Short,
        };
        let free = (self.setting.pool_bytes() / 100 * 84).saturating_sub(self.tables.live);
        Supply { zones, extra_slots: (free / self.setting.zone_bytes) as usize }
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
        if self.txg_bytes + bytes > self.setting.txg_bytes {
            self.end_txg()?;
        }
        let hint = if self.setting.hints { placement.hint } else { Default::default() };
        let placement = Placement { hint, ..*placement };
        let previous = match placement.replaced_birth {
            Txg(0) => None,
            txg => self.clock.age_bytes(txg),
        };
        let heat = match self.setting.infer {
            true => self.lifetimes.heat(previous, hint, placement.expected_life_bytes),
            false => Heat::Cold,
        };
        let supply = self.supply();
        let Choice { slot, is_fresh } = if self.setting.mixed {
            Choice { slot: self.placer.layout().data().start, is_fresh: false }
        } else {
            self.placer.begin_txg(self.txg);
            self.close_full_extra(supply, bytes);
            let space_left = |slot: usize| self.space_left_in(slot);
            let choice = self.placer.choose(&placement, (heat, bytes), supply, space_left);
            self.placer.note_placed(choice, &placement, heat, bytes);
            choice
        };
        let chosen = slot;
        let slot = self.slot_with_space(chosen, is_fresh, bytes);
        let is_fresh = is_fresh && slot == chosen;
        let takes = |accounting: &Accounting| {
            accounting.slots[slot].as_ref().is_some_and(|open| accounting.space_left(open) >= bytes)
        };
        if is_fresh || !takes(self) {
            if self.empty.len() <= self.gc_reserve_zones() {
                self.wait_for_space()?;
            }
            if is_fresh || !takes(self) {
                self.finish_zone(slot);
                self.open(slot, ZoneClass::Data, heat == Heat::Hot);
                self.placer.note_opened(slot);
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
        self.txg_bytes += bytes;
        Some(identity)
    }

    fn space_left_in(&self, slot: usize) -> u64 {
        self.slots[slot].as_ref().map_or(0, |open| self.space_left(open))
    }

    /// As in the pool: extra slots that open no zone do not keep one that is full.
    fn close_full_extra(&mut self, supply: Supply, bytes: u64) {
        if !self.placer.extra_may_continue(supply) {
            for slot in self.placer.layout().extra() {
                if self.slots[slot].is_some() && self.space_left_in(slot) < bytes {
                    self.finish_zone(slot);
                }
            }
        }
    }

    /// The slot, or the data slot with the most space if it would need a zone and none is left to data.
    fn slot_with_space(&self, slot: usize, is_fresh: bool, bytes: u64) -> usize {
        if self.empty.len() > self.gc_reserve_zones() || !is_fresh && self.space_left_in(slot) >= bytes {
            return slot;
        }
        let widest = self.placer.layout().data().max_by_key(|slot| self.space_left_in(*slot));
        widest.filter(|widest| self.space_left_in(*widest) >= bytes).unwrap_or(slot)
    }

    /// Zones that are empty, or would be if what is left in those of extra slots were one, without what those slots need.
    fn free_zones(&self) -> usize {
        let extra = self.placer.layout().extra();
        let left: u64 = extra.map(|slot| self.space_left_in(slot)).sum();
        let wanted = self.placer.extra_wanted().min(self.supply().extra_slots).div_ceil(2);
        (self.empty.len() + (left / self.setting.zone_bytes) as usize).saturating_sub(wanted)
    }

    /// What the txg changed in trees.
    fn write_metadata(&mut self) {
        let most = self.setting.pool_bytes() / METADATA_DIVISOR / METADATA_BYTES;
        self.metadata.owed_bytes += self.setting.metadata * self.txg_bytes as f64;
        while self.metadata.owed_bytes >= METADATA_BYTES as f64 && self.empty.len() > 2 {
            self.metadata.owed_bytes -= METADATA_BYTES as f64;
            // Two of the empty zones are left for them.
            let copies = [0, 1]
                .map(|copy| self.write_copy(copy, METADATA_BYTES).expect("metadata has reserved space"));
            if (self.metadata.blocks.len() as u64) < most {
                self.metadata.blocks.push(copies);
                continue;
            }
            let at = self.metadata.rng.below(most) as usize;
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
                Some(open) if self.space_left(open) >= bytes => break Addr::new(open.seq, open.offset),
                Some(_) => self.finish_zone(slot),
                None if self.empty.len() <= 1 => self.wait_for_space()?,
                None => {
                    self.open(slot, ZoneClass::MetaA, false);
                    self.placer.note_opened(slot);
                }
            }
        };
        self.append(slot, Entry { identity: at, granules: u32::try_from(bytes / GRANULE).ok()? }, false);
        self.totals.metadata_bytes += bytes;
        Some(at)
    }

    /// A block is freed in this txg.
    pub fn free(&mut self, addr: Addr, bytes: u64) {
        self.changes.frees.push(Free { addr, granules: u32::try_from(bytes / GRANULE).unwrap_or(u32::MAX) });
    }

    /// Bytes of blocks that an open zone can still take.
    fn space_left(&self, open: &OpenZone) -> u64 {
        let part = (open.pending.len() as u64 + 1) * ENTRY_BYTES + TRAILER_BYTES + UNIT;
        self.setting.zone_bytes.saturating_sub(open.offset + part)
    }

    fn open(&mut self, slot: usize, class: ZoneClass, hot: bool) {
        let home = self.empty.pop_first().expect("the caller has checked for an empty zone");
        let seq = ZoneSeq(self.next_seq);
        self.next_seq += 1;
        let home = Home { device: DeviceIdx(0), zone: ZoneIdx(home) };
        let capacity = self.setting.zone_bytes;
        self.tables.insert(seq, Zone::new(class, home, capacity, self.txg));
        self.changes.opened.push(OpenedZone { seq, class, home, capacity });
        self.zone_contents.insert(seq, ZoneContent { hot, ..ZoneContent::default() });
        self.slots[slot] = Some(OpenZone { seq, offset: UNIT, batch_start: 0, pending: Vec::new() });
    }

    fn append(&mut self, slot: usize, entry: Entry, joins: bool) {
        let open = self.slots[slot].as_mut().expect("opened before");
        let bytes = u64::from(entry.granules) * GRANULE;
        let (seq, moved) = (open.seq, entry.identity.seq() != open.seq);
        open.offset += bytes;
        open.pending.push((entry, joins));
        let batch_bytes = match moved && self.is_coarse {
            true => COARSE_BATCH_BYTES.min(self.setting.zone_bytes),
            false => self.setting.batch_bytes,
        };
        let sealed = open.offset - open.batch_start >= batch_bytes;
        if !moved {
            self.changes
                .written
                .entry(seq)
                .or_insert(WrittenZone { seq, claimed: 0, born_bytes: 0 })
                .born_bytes += bytes;
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
        self.changes.written.entry(seq).or_insert(WrittenZone { seq, claimed: 0, born_bytes: 0 }).claimed =
            end;
        let content = self.zone_contents.get_mut(&seq).expect("opened before");
        let mut last: Option<Move> = None;
        for (entry, joins) in pending {
            content.entries.push(entry);
            if entry.identity.seq() == seq {
                continue;
            }
            let granule = entry.identity.granule();
            match &mut last {
                Some(run) if joins && run.birth == entry.identity.seq() && run.run.last < granule => {
                    run.run.add_block(granule, entry.granules);
                }
                _ => {
                    self.changes.moves.extend(last.take());
                    let run = Run::of(granule, entry.granules, seq, end);
                    last = Some(Move { birth: entry.identity.seq(), run });
                }
            }
        }
        self.changes.moves.extend(last);
        content.parts.push((u32::try_from(content.entries.len()).unwrap_or(u32::MAX), end));
    }

    fn finish_zone(&mut self, slot: usize) {
        self.seal(slot);
        if let Some(open) = self.slots[slot].take() {
            self.placer.note_closed(slot);
            self.changes.filled.push(open.seq);
            if let Some(content) = self.zone_contents.get_mut(&open.seq) {
                content.entries.shrink_to_fit();
                content.parts.shrink_to_fit();
            }
        }
    }

    /// Users wait: empty txgs follow each other until a zone can be opened.
    fn wait_for_space(&mut self) -> Option<()> {
        for _ in 0..64 {
            self.end_txg()?;
            if self.empty.len() > self.gc_reserve_zones() {
                return Some(());
            }
        }
        None
    }

    /// Runs the GC that is due, and commits.
    pub fn end_txg(&mut self) -> Option<()> {
        self.write_metadata();
        let mut emptied = self.waiting.len();
        while self.free_zones() + emptied < self.low_watermark() {
            let Some(victim) = self.choose_victim() else { break };
            if self.empty.len() <= 1 {
                break;
            }
            self.evacuate(victim);
            emptied += 1;
        }
        self.commit();
        Some(())
    }

    fn choose_victim(&mut self) -> Option<ZoneSeq> {
        let now = self.clock.now();
        self.candidates.sample(now);
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
        self.learn_lifetime(victim);
        let content =
            std::mem::take(self.zone_contents.get_mut(&victim).expect("a full zone has a directory"));
        let mut last: Option<usize> = None;
        let mut class: Option<(ZoneSeq, usize)> = None;
        for (entry, last_write, may_join) in self.survivors(victim, &content) {
            let birth_zone = entry.identity.seq();
            let slot = match class {
                Some((zone, slot)) if zone == birth_zone => slot,
                _ => self.survivor_slot(self.lifetimes.age(self.clock.age_bytes(last_write))),
            };
            class = Some((birth_zone, slot));
            let joins = may_join && last == Some(slot);
            last = Some(slot);
            let bytes = u64::from(entry.granules) * GRANULE;
            if self.slots[slot].as_ref().is_none_or(|open| self.space_left(open) < bytes) {
                self.finish_zone(slot);
                self.open(
                    slot,
                    if self.setting.mixed { ZoneClass::Data } else { ZoneClass::Collection },
                    false,
                );
                self.placer.note_opened(slot);
            }
            self.append(slot, entry, joins);
            let dest = self.slots[slot].as_ref().expect("just opened").seq;
            self.changes.carried.insert(entry.identity, dest);
            *self.changes.deltas.entry(victim).or_default() -= bytes as i64;
            *self.changes.deltas.entry(dest).or_default() += bytes as i64;
            self.totals.moved_bytes += bytes;
        }
    }

    /// A zone of hot data ends: its lifetime is learnt.
    fn learn_lifetime(&mut self, seq: ZoneSeq) {
        let hot = self.zone_contents.get_mut(&seq).is_some_and(|content| std::mem::take(&mut content.hot));
        let opened = self.tables.zones.get(&seq).map(|zone| zone.opened);
        if hot && let Some(lifetime) = opened.and_then(|txg| self.clock.age_bytes(txg)) {
            self.lifetimes.note_hot_zone(lifetime);
        }
    }

    /// The live entries of a zone. For each: when its birth zone was last written, and whether no block that
    /// stays or lives elsewhere was born between it and the entry before.
    fn survivors(&self, victim: ZoneSeq, content: &ZoneContent) -> Vec<(Entry, Txg, bool)> {
        let mut birthplaces = self.tables.birthplaces();
        let mut last: Option<Addr> = None;
        let mut part = content.parts.iter().copied();
        let (mut part_entries, mut part_end) = part.next().unwrap_or_default();
        let mut out = Vec::new();
        for (at, entry) in content.entries.iter().enumerate() {
            while at as u64 >= u64::from(part_entries) {
                (part_entries, part_end) = part.next().expect("entries lie in parts");
            }
            let identity = entry.identity;
            let (seq, granule) = (identity.seq(), identity.granule());
            let Some(birth) = birthplaces.of(seq) else { continue };
            let is_here =
                birth.run_of(granule).map_or(seq == victim, |run| run.is_listed_in(victim, part_end));
            if birth.born.dead.overlaps(granule, entry.granules) || !is_here {
                continue;
            }
            let is_next = |last: &Addr| last.seq() == seq && *last < identity;
            let may_join = last
                .filter(is_next)
                .is_some_and(|last| birth.may_share_run(seq, victim, last.granule(), granule));
            last = Some(identity);
            out.push((*entry, birth.last_write, may_join));
        }
        out
    }

    /// Live blocks that were born in a reclaimed zone.
    pub fn relocated_from(&self, seq: ZoneSeq) -> Vec<Addr> {
        let Some(birth) = self.tables.birthplace(seq) else { return Vec::new() };
        let mut out = Vec::new();
        for run in &birth.born.runs {
            let Some(content) = self.zone_contents.get(&run.dest) else { continue };
            let at = content.parts.partition_point(|(_, end)| *end < run.part_end());
            let Some((end, _)) = content.parts.get(at) else { continue };
            let start = at.checked_sub(1).map_or(0, |before| content.parts[before].0);
            let listed = &content.entries[start as usize..*end as usize];
            out.extend(listed.iter().filter_map(|entry| {
                let (identity, granules) = (entry.identity, entry.granules);
                let is_in_run = identity.seq() == seq && (run.first..=run.last).contains(&identity.granule());
                (is_in_run && !birth.born.dead.overlaps(identity.granule(), granules)).then_some(identity)
            }));
        }
        out
    }

    fn commit(&mut self) {
        for slot in 0..self.slots.len() {
            self.seal(slot);
        }
        let mut changes = std::mem::take(&mut self.changes);
        // The emptying by the txg before is durable, and no rollback goes past it.
        for (seq, home) in std::mem::take(&mut self.waiting) {
            changes.reset.push(seq);
            self.empty.insert(home);
            self.zone_contents.remove(&seq);
        }
        changes.frees.sort_unstable();
        for free in &changes.frees {
            let from =
                changes.carried.get(&free.addr).copied().or_else(|| self.tables.current_zone(free.addr));
            let from = from.expect("a block is freed once");
            *changes.deltas.entry(from).or_default() -= (u64::from(free.granules) * GRANULE) as i64;
        }
        changes.deltas.retain(|_, bytes| *bytes != 0);
        let record = self.record(&mut changes);
        let findings = self.tables.apply(&record, &BootPtr::NONE, &record.frees, &|_| true);
        assert!(findings.is_empty(), "{findings:?}");
        self.clock.note(self.txg, self.written_bytes);
        for seq in &record.filled {
            let Some(zone) = self.tables.zones.get(seq) else { continue };
            self.candidates.insert(*seq, zone.live, zone.capacity, self.clock.now());
        }
        // A zone that is filled may have died before, block by block, while it was open.
        let changed: BTreeSet<ZoneSeq> = changes.deltas.keys().copied().chain(record.filled).collect();
        for seq in changed {
            let Some(zone) = self.tables.zones.get(&seq) else { continue };
            self.candidates.set_live(seq, zone.live);
            if matches!(zone.phase, Phase::Emptied(_)) {
                let home = zone.replicas().first().zone.0;
                self.candidates.remove(seq);
                self.waiting.push((seq, home));
                self.learn_lifetime(seq);
            }
        }
        self.totals.txgs += 1;
        self.txg = Txg(self.txg.0 + 1);
        self.txg_bytes = 0;
    }

    fn record(&self, changes: &mut TxgChanges) -> Record {
        Record {
            txg: self.txg,
            incarnation: 1,
            time_ns: 0,
            previous: BootPtr::NONE,
            previous_txg: Txg(self.txg.0 - 1),
            replay_after: Txg(0),
            root: BlockPtr::Hole(Hole { kind: 0, level: 0, lsize: 0, birth: self.txg }),
            opened: std::mem::take(&mut changes.opened),
            form: RowForm::Tailed,
            written: std::mem::take(&mut changes.written).into_values().collect(),
            filled: std::mem::take(&mut changes.filled),
            reset: std::mem::take(&mut changes.reset),
            suspect: Vec::new(),
            moves: std::mem::take(&mut changes.moves),
            deltas: changes.deltas.iter().map(|(seq, bytes)| (*seq, *bytes)).collect(),
            frees: std::mem::take(&mut changes.frees),
            dead_log: Vec::new(),
            sections: Vec::new(),
            part_copies: Vec::new(),
            may_open: Vec::new(),
            totals: Default::default(),
            log: None,
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
    pub fn index(&self) -> IndexSize {
        let size = self.tables.index_size();
        IndexSize {
            rows: self.tables.zones.len() as u64 + size.reclaimed,
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

/// Size of the relocation index and of the dead sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSize {
    /// Rows of zones, resident and reclaimed.
    pub rows: u64,
    /// Runs of moved blocks.
    pub runs: u64,
    /// Memory of runs and reclaimed zones, in bytes.
    pub run_bytes: u64,
    /// Memory of the dead sets of resident zones, in bytes.
    pub dead_bytes: u64,
}

impl IndexSize {
    /// Memory of index and dead sets together.
    pub fn bytes(&self) -> u64 {
        self.run_bytes + self.dead_bytes
    }
}
