//! Zones that are gone and still have survivors elsewhere: as many as there are zones in which something was born that lives, in time
//! far more than zones are there. So they are not kept like those: packed, as in a section of the tables on disk, in *intervals* of
//! birth. In memory there is, for each interval, where it begins; who asks for a birthplace looks inside.
//!
//! Changes come in order of birth. So one interval at a time lies open, and is packed when the next one opens.
//!
//! Invariant: an interval holds the zones from its beginning to that of the next; none is empty.

use crate::dead::DeadSet;
use crate::record::{Class, Run, get_run, list, put_run};
use std::collections::BTreeMap;
use terrane_wire::{Reader, Truncated, Txg, Writer, ZoneSeq};

/// What became of the blocks that were born in a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Born {
    /// Where survivors are that moved: sorted and separate.
    pub runs: Vec<Run>,
    pub dead: DeadSet,
}

impl Born {
    /// The run that holds the block born at `granule`, if it moved.
    pub fn run_of(&self, granule: u32) -> Option<&Run> {
        self.runs.get(self.runs_before(granule)).filter(|run| run.first <= granule)
    }

    /// How many runs end before `granule`.
    pub fn runs_before(&self, granule: u32) -> usize {
        self.runs.partition_point(|run| run.last < granule)
    }

    pub(crate) fn insert_run(&mut self, run: Run) {
        let from = self.runs_before(run.first);
        let to = self.runs.partition_point(|old| old.first <= run.last);
        self.runs.splice(from..to.max(from), [run]);
    }

    /// A block of a run died; with its last one the run goes.
    pub(crate) fn drop_block(&mut self, granule: u32, granules: u32) {
        let index = self.runs_before(granule);
        let Some(run) = self.runs.get_mut(index).filter(|run| run.first <= granule) else { return };
        run.drop_block(granule, granules);
        if run.live() == 0 {
            self.runs.remove(index);
        }
    }

    /// The zone is gone: what no run holds is dead by that alone, and needs no intervals.
    pub(crate) fn keep_within_runs(&mut self) {
        let runs: Vec<(u32, u32)> = self.runs.iter().map(|run| (run.first, run.last)).collect();
        self.dead.keep_within(&runs);
    }

    pub(crate) fn put(&self, out: &mut Writer) {
        out.varint(self.runs.len() as u64);
        for run in &self.runs {
            put_run(out, run);
        }
        self.dead.encode(out);
    }

    pub(crate) fn get(raw: &mut Reader<'_>) -> Result<Born, Truncated> {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let runs: Vec<Run> = list(raw, get_run)?;
        if runs.windows(2).any(|pair| matches!(pair, [a, b] if a.last >= b.first)) {
            return Err(bad);
        }
        Ok(Born { runs, dead: DeadSet::decode(raw)? })
    }
}

/// A zone that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneZone {
    pub class: Class,
    pub opened: Txg,
    /// The last group with births or moves into the zone.
    pub last_write: Txg,
    pub born: Born,
}

impl GoneZone {
    fn pack(&self, out: &mut Writer) {
        out.u8(self.class as u8);
        out.varint(self.opened.0);
        out.varint(self.last_write.0);
        self.born.put(out);
    }

    /// What cannot be unpacked must not pass for what is not there: blocks would be lost.
    fn unpack(raw: &[u8]) -> GoneZone {
        GoneZone::get(&mut Reader::new(raw)).expect("what was packed can be unpacked")
    }

    fn get(raw: &mut Reader<'_>) -> Result<GoneZone, Truncated> {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let class = Class::from_id(raw.u8()?).ok_or(bad)?;
        let (opened, last_write) = (Txg(raw.varint()?), Txg(raw.varint()?));
        Ok(GoneZone { class, opened, last_write, born: Born::get(raw)? })
    }

    /// The run of a block, without unpacking more than those before it.
    fn run_of(raw: &[u8], granule: u32) -> Option<Run> {
        let runs = |raw: &mut Reader<'_>| -> Result<Option<Run>, Truncated> {
            raw.u8()?;
            raw.varint()?;
            raw.varint()?;
            for _ in 0..raw.varint()? {
                let run = get_run(raw)?;
                if run.last >= granule {
                    return Ok(Some(run).filter(|run| run.first <= granule));
                }
            }
            Ok(None)
        };
        runs(&mut Reader::new(raw)).expect("what was packed can be unpacked")
    }
}

/// An interval is cut in pieces of so many bytes.
const INTERVAL_BYTES: usize = 4096;
/// Less than so many take up the next interval.
const INTERVAL_BYTES_MIN: usize = INTERVAL_BYTES / 4;
/// What an interval takes beside its bytes: its place in the tree, by two thirds full, and what an allocation costs.
const INTERVAL_FRAME: usize = (size_of::<(ZoneSeq, Vec<u8>)>() * 3).div_ceil(2) + 16;

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Gone {
    /// By where they begin: zones with the distance to the one before, and their length.
    intervals: BTreeMap<ZoneSeq, Vec<u8>>,
    /// The interval that is being changed; not among the others.
    open: Option<Open>,
    zones: u64,
    runs: u64,
}

#[derive(Clone, Debug)]
struct Open {
    /// What belongs to it.
    from: ZoneSeq,
    end: Option<ZoneSeq>,
    zones: BTreeMap<ZoneSeq, GoneZone>,
}

/// The zones of an interval, packed.
fn zones_in(from: ZoneSeq, bytes: &[u8]) -> impl Iterator<Item = (ZoneSeq, &[u8])> {
    let mut raw = Reader::new(bytes);
    let mut seq = from.0;
    std::iter::from_fn(move || {
        if raw.is_empty() {
            return None;
        }
        let mut next = || -> Result<_, Truncated> {
            seq += raw.varint()?;
            Ok((ZoneSeq(seq), raw.blob()?))
        };
        Some(next().expect("what was packed can be unpacked"))
    })
}

impl Gone {
    fn packed(&self, seq: ZoneSeq) -> Option<&[u8]> {
        debug_assert!(self.open.is_none(), "what is asked for may lie open");
        let (from, bytes) = self.intervals.range(..=seq).next_back()?;
        zones_in(*from, bytes)
            .find(|(found, _)| *found >= seq)
            .filter(|(found, _)| *found == seq)
            .map(|(_, raw)| raw)
    }

    pub fn get(&self, seq: ZoneSeq) -> Option<GoneZone> {
        self.packed(seq).map(GoneZone::unpack)
    }

    /// Where the block that was born there is now.
    pub fn run_of(&self, seq: ZoneSeq, granule: u32) -> Option<Run> {
        GoneZone::run_of(self.packed(seq)?, granule)
    }

    /// Those that are asked for, in order.
    pub fn select(&self, which: impl Fn(&ZoneSeq) -> bool) -> impl Iterator<Item = (ZoneSeq, GoneZone)> {
        debug_assert!(self.open.is_none(), "what is asked for may lie open");
        let all = self.intervals.iter().flat_map(|(from, bytes)| zones_in(*from, bytes));
        all.filter(move |(seq, _)| which(seq)).map(|(seq, raw)| (seq, GoneZone::unpack(raw)))
    }

    /// How many there are, and how many runs they have.
    pub fn counts(&self) -> (u64, u64) {
        (self.zones, self.runs)
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        self.intervals.values().map(|bytes| (bytes.capacity() + INTERVAL_FRAME) as u64).sum()
    }

    /// Changes what is known of a zone, after which the changes of a batch end with [`Gone::pack`]. A zone without survivors goes. `None`:
    /// it is not there.
    pub fn change<T>(&mut self, seq: ZoneSeq, change: impl FnOnce(&mut GoneZone) -> T) -> Option<T> {
        self.unpack(seq);
        let zones = &mut self.open.as_mut()?.zones;
        let zone = zones.get_mut(&seq)?;
        let out = change(zone);
        if zone.born.runs.is_empty() {
            zones.remove(&seq);
        }
        Some(out)
    }

    /// A zone goes. Without survivors there is nothing to know of it.
    pub fn insert(&mut self, seq: ZoneSeq, zone: GoneZone) {
        self.unpack(seq);
        if let Some(open) = self.open.as_mut().filter(|_| !zone.born.runs.is_empty()) {
            open.zones.insert(seq, zone);
        }
    }

    /// Opens the interval to which the zone belongs.
    fn unpack(&mut self, seq: ZoneSeq) {
        let is_in = |open: &Open| open.from <= seq && open.end.is_none_or(|end| seq < end);
        if self.open.as_ref().is_some_and(is_in) {
            return;
        }
        self.pack();
        // Who comes before the first belongs to it.
        let before = self.intervals.range(..=seq).next_back().or_else(|| self.intervals.first_key_value());
        let key = before.map_or(seq, |(from, _)| *from);
        let zones = self.take(key);
        let end = self.intervals.range(key..).next().map(|(end, _)| *end);
        let is_first = self.intervals.range(..key).next().is_none();
        self.open = Some(Open { from: if is_first { ZoneSeq(0) } else { key }, end, zones });
    }

    /// Takes an interval out.
    fn take(&mut self, from: ZoneSeq) -> BTreeMap<ZoneSeq, GoneZone> {
        let bytes = self.intervals.remove(&from).unwrap_or_default();
        let zones: BTreeMap<_, _> =
            zones_in(from, &bytes).map(|(seq, raw)| (seq, GoneZone::unpack(raw))).collect();
        self.zones -= zones.len() as u64;
        self.runs -= zones.values().map(|zone| zone.born.runs.len() as u64).sum::<u64>();
        zones
    }

    /// Packs what lies open.
    pub fn pack(&mut self) {
        let Some(Open { mut zones, end, .. }) = self.open.take() else { return };
        let mut pieces = Pieces::new(&zones);
        // Little alone is put together with what follows, or every interval would end as one zone.
        if pieces.bytes < INTERVAL_BYTES_MIN
            && let Some(next) = end
        {
            zones.append(&mut self.take(next));
            pieces = Pieces::new(&zones);
        }
        self.zones += zones.len() as u64;
        self.runs += zones.values().map(|zone| zone.born.runs.len() as u64).sum::<u64>();
        self.intervals.extend(pieces.done);
    }
}

/// Zones, packed into intervals.
struct Pieces {
    done: Vec<(ZoneSeq, Vec<u8>)>,
    bytes: usize,
}

impl Pieces {
    fn new(zones: &BTreeMap<ZoneSeq, GoneZone>) -> Pieces {
        let mut pieces = Pieces { done: Vec::new(), bytes: 0 };
        let mut piece: Option<(ZoneSeq, u64, Writer)> = None;
        for (seq, zone) in zones {
            let mut raw = Writer::new();
            zone.pack(&mut raw);
            if piece.as_ref().is_some_and(|(_, _, out)| out.len() + raw.len() > INTERVAL_BYTES) {
                pieces.end(piece.take());
            }
            let (_, last, out) = piece.get_or_insert_with(|| (*seq, seq.0, Writer::new()));
            out.varint(seq.0 - *last);
            out.blob(raw.as_bytes());
            *last = seq.0;
        }
        pieces.end(piece);
        pieces
    }

    fn end(&mut self, piece: Option<(ZoneSeq, u64, Writer)>) {
        let Some((from, _, out)) = piece else { return };
        let mut bytes = out.into_bytes();
        bytes.shrink_to_fit();
        self.bytes += bytes.len();
        self.done.push((from, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(first: u32, dest: u64) -> Run {
        let mut run = Run::of(first * 8, 4, ZoneSeq(dest), 8192 * (1 + dest % 500));
        run.take(first * 8 + 4, 2);
        run
    }

    /// A zone with so many runs; between them something died.
    fn zone(seq: u64, runs: u32) -> GoneZone {
        let born = Born {
            runs: (0..runs).map(|at| run(at, seq + u64::from(at))).collect(),
            dead: (0..runs / 2).map(|at| (at * 16 + 4, at * 16 + 6)).collect(),
        };
        GoneZone { class: Class::Data, opened: Txg(seq), last_write: Txg(seq + 3), born }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Come(u64, u32),
        /// The run at that place loses its blocks.
        RunEnds(u64, usize),
        /// A piece of it moves once more.
        Moves(u64, u32),
        Pack,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1u64..400, prop_oneof![9 => 0u32..4, 1 => 100u32..300]).prop_map(|(seq, runs)| Op::Come(seq, runs)),
            4 => (1u64..400, 0usize..4).prop_map(|(seq, at)| Op::RunEnds(seq, at)),
            1 => (1u64..400, 0u32..40).prop_map(|(seq, at)| Op::Moves(seq, at)),
            1 => Just(Op::Pack),
        ]
    }

    fn run_ends(zone: &mut GoneZone, at: usize) {
        if at < zone.born.runs.len() {
            zone.born.runs.remove(at);
        }
    }

    proptest! {
        #[test]
        fn they_are_what_a_map_of_them_is(ops in prop::collection::vec(op(), 1..300)) {
            let (mut gone, mut plain) = (Gone::default(), BTreeMap::<ZoneSeq, GoneZone>::new());
            for op in ops {
                match op {
                    Op::Come(seq, runs) => {
                        let seq = ZoneSeq(seq);
                        // A zone goes once.
                        if plain.contains_key(&seq) { continue }
                        gone.insert(seq, zone(seq.0, runs));
                        if runs > 0 { plain.insert(seq, zone(seq.0, runs)); }
                    }
                    Op::RunEnds(seq, at) => {
                        let seq = ZoneSeq(seq);
                        let found = gone.change(seq, |zone| run_ends(zone, at));
                        prop_assert_eq!(found.is_some(), plain.contains_key(&seq));
                        if let Some(zone) = plain.get_mut(&seq) {
                            run_ends(zone, at);
                            if zone.born.runs.is_empty() { plain.remove(&seq); }
                        }
                    }
                    Op::Moves(seq, at) => {
                        let seq = ZoneSeq(seq);
                        gone.change(seq, |zone| zone.born.insert_run(run(at, 1000)));
                        if let Some(zone) = plain.get_mut(&seq) { zone.born.insert_run(run(at, 1000)); }
                    }
                    Op::Pack => {
                        gone.pack();
                        let all: Vec<(ZoneSeq, GoneZone)> = gone.select(|_| true).collect();
                        prop_assert_eq!(&all, &plain.clone().into_iter().collect::<Vec<_>>());
                        let even: Vec<ZoneSeq> = gone.select(|seq| seq.0 % 2 == 0).map(|(seq, _)| seq).collect();
                        prop_assert_eq!(even, plain.keys().copied().filter(|seq| seq.0 % 2 == 0).collect::<Vec<_>>());
                        let runs = plain.values().map(|zone| zone.born.runs.len() as u64).sum::<u64>();
                        prop_assert_eq!(gone.counts(), (plain.len() as u64, runs));
                        for seq in (1..400).step_by(3).map(ZoneSeq) {
                            prop_assert_eq!(gone.get(seq), plain.get(&seq).cloned());
                            for granule in (0..40).step_by(5) {
                                let expected = plain.get(&seq).and_then(|zone| zone.born.run_of(granule)).copied();
                                prop_assert_eq!(gone.run_of(seq, granule), expected);
                            }
                        }
                        let alone = |bytes: &Vec<u8>, from: ZoneSeq| zones_in(from, bytes).count() == 1;
                        for (from, bytes) in &gone.intervals {
                            prop_assert!(!bytes.is_empty());
                            prop_assert!(bytes.len() <= INTERVAL_BYTES + 16 || alone(bytes, *from), "{} bytes", bytes.len());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_survivor_for_each_zone_costs_little_and_less_when_most_have_died() {
        let mut gone = Gone::default();
        // One block of a 64 MiB zone each, moved often.
        let last_one = |seq: u64| GoneZone {
            born: Born { runs: vec![run((seq * 7919 % 500_000) as u32, seq + 20_000)], ..Born::default() },
            ..zone(seq, 0)
        };
        (100_000..200_000).for_each(|seq| gone.insert(ZoneSeq(seq), last_one(seq)));
        gone.pack();
        let each = |gone: &Gone| gone.memory_bytes() as f64 / gone.counts().0 as f64;
        // With a row for each it was 212.
        assert!(gone.counts() == (100_000, 100_000) && each(&gone) < 36.0, "{} bytes", each(&gone));
        for seq in (100_000..200_000).filter(|seq| seq * 7919 % 1000 != 7) {
            gone.change(ZoneSeq(seq), |zone| zone.born.runs.clear()).unwrap();
        }
        gone.pack();
        assert!(gone.counts() == (100, 100) && each(&gone) < 128.0, "{} bytes", each(&gone));
    }
}
