//! Reclaimed zones that still have survivors elsewhere. Over time these far outnumber the zones that exist.
//!
//! While memory suffices, each reclaimed zone has a row. At the bound of the relocation index the rows are packed into *leaves* by
//! birth, as in a section of the tables on disk. Memory then holds only the start of each leaf, and a lookup decodes inside. That
//! takes a fifth of the memory for zones with one live block, and half for zones with dozens of runs. A lookup takes some microseconds
//! more.
//!
//! Invariant: a leaf holds the zones from its start to the start of the next one. None is empty.

use crate::dead::DeadSet;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use terrane_format::record::{Run, ZoneClass, get_run, put_run};
use terrane_wire::{Reader, Truncated, Txg, Writer, ZoneSeq};

/// The state of the blocks that were born in a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BornBlocks {
    /// Where relocated survivors are: sorted and separate.
    pub runs: Vec<Run>,
    /// Dead granules. For a reclaimed zone, only intervals that touch a run are kept.
    pub dead: DeadSet,
}

impl BornBlocks {
    /// The run of the block born at `granule`, if the block moved.
    pub fn run_of(&self, granule: u32) -> Option<&Run> {
        self.runs.get(self.runs_before(granule)).filter(|run| run.first <= granule)
    }

    /// Number of runs that end before `granule`.
    pub fn runs_before(&self, granule: u32) -> usize {
        self.runs.partition_point(|run| run.last < granule)
    }

    /// Adds a run. It replaces the runs that it overlaps.
    pub fn insert_run(&mut self, run: Run) {
        let from = self.runs_before(run.first);
        let to = self.runs.partition_point(|old| old.first <= run.last);
        self.runs.splice(from..to.max(from), [run]);
    }

    /// Notes the death of a block of a run. A run without live blocks is dropped.
    pub fn drop_block(&mut self, granule: u32, granules: u32) {
        let index = self.runs_before(granule);
        let Some(run) = self.runs.get_mut(index).filter(|run| run.first <= granule) else { return };
        run.drop_block(granule, granules);
        if run.live() == 0 {
            self.runs.remove(index);
        }
    }

    /// Called when the zone is reclaimed: a block outside of all runs is dead, and needs no interval.
    pub fn keep_within_runs(&mut self) {
        let runs: Vec<(u32, u32)> = self.runs.iter().map(|run| (run.first, run.last)).collect();
        self.dead.keep_within(&runs);
    }
}

/// A reclaimed zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimedZone {
    /// The main use that the zone had.
    pub class: ZoneClass,
    /// The txg that opened the zone.
    pub opened: Txg,
    /// The last txg with births or moves into the zone.
    pub last_write: Txg,
    /// Runs of the survivors, and dead blocks.
    pub born: BornBlocks,
}

impl ReclaimedZone {
    fn packed(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(self.class as u8);
        out.varint(self.opened.0);
        out.varint(self.last_write.0);
        let runs = &self.born.runs;
        out.varint(runs.chunks(PACKED_RUNS).len() as u64);
        for runs in runs.chunks(PACKED_RUNS) {
            let mut packed = Writer::with_capacity(runs.len() * RUN_BYTES);
            runs.iter().for_each(|run| put_run(&mut packed, run));
            out.varint(runs.last().map_or(0, |run| u64::from(run.last)));
            out.blob(packed.as_bytes());
        }
        self.born.dead.put_packed(&mut out);
        out.into_bytes()
    }

    /// A zone that cannot be unpacked must not count as missing: blocks would be lost.
    fn unpack(raw: &[u8]) -> ReclaimedZone {
        ReclaimedZone::get(&mut Reader::new(raw))
            .expect("reclaimed zone damaged in memory: cannot be unpacked")
    }

    fn get(raw: &mut Reader<'_>) -> Result<ReclaimedZone, Truncated> {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let class = ZoneClass::from_id(raw.u8()?).ok_or(bad)?;
        let (opened, last_write) = (Txg(raw.varint()?), Txg(raw.varint()?));
        let mut runs = Vec::new();
        for _ in 0..raw.varint()? {
            raw.varint()?;
            let mut packed = Reader::new(raw.blob()?);
            while !packed.is_empty() {
                runs.push(get_run(&mut packed)?);
            }
        }
        Ok(ReclaimedZone {
            class,
            opened,
            last_write,
            born: BornBlocks { runs, dead: DeadSet::get_packed(raw)? },
        })
    }

    /// The run of a block. Decodes only its neighbours.
    fn run_of(raw: &[u8], granule: u32) -> Option<Run> {
        let runs = |raw: &mut Reader<'_>| -> Result<Option<Run>, Truncated> {
            raw.u8()?;
            raw.varint()?;
            raw.varint()?;
            for _ in 0..raw.varint()? {
                let (last, packed) = (raw.varint()?, raw.blob()?);
                if last < u64::from(granule) {
                    continue;
                }
                let mut packed = Reader::new(packed);
                while !packed.is_empty() {
                    let run = get_run(&mut packed)?;
                    if run.last >= granule {
                        return Ok(Some(run).filter(|run| run.first <= granule));
                    }
                }
            }
            Ok(None)
        };
        runs(&mut Reader::new(raw)).expect("reclaimed zone damaged in memory: cannot be unpacked")
    }
}

/// A larger leaf is split in two.
const LEAF_BYTES_MAX: usize = 4096;
/// A smaller leaf is merged with the next one.
const LEAF_BYTES_MIN: usize = LEAF_BYTES_MAX / 4;

/// Runs per stretch. Each stretch begins with the end of its last run, so that a lookup skips whole stretches.
const PACKED_RUNS: usize = 32;
/// Upper estimate of the packed bytes of a run.
const RUN_BYTES: usize = 24;

/// Memory of a tree with so many entries, when two thirds full.
fn tree_bytes<T>(entries: usize) -> usize {
    entries * size_of::<(ZoneSeq, T)>() * 3 / 2
}

/// All reclaimed zones with survivors.
#[derive(Clone, Debug, Default)]
pub struct ReclaimedZones {
    form: Form,
    zones: u64,
    runs: u64,
}

#[derive(Clone, Debug)]
enum Form {
    Rows(BTreeMap<ZoneSeq, ReclaimedZone>),
    /// Key: start of the leaf. Value: its zones, each preceded by its distance from the start and its length.
    Packed(BTreeMap<ZoneSeq, Vec<u8>>),
}

impl Default for Form {
    fn default() -> Form {
        Form::Rows(BTreeMap::new())
    }
}

/// A zone in a leaf.
struct PackedZone<'a> {
    seq: ZoneSeq,
    raw: &'a [u8],
    /// Its range in the leaf, prefix included.
    at: Range<usize>,
}

/// The zones of a leaf.
fn packed_in(from: ZoneSeq, bytes: &[u8]) -> impl Iterator<Item = PackedZone<'_>> {
    let mut raw = Reader::new(bytes);
    std::iter::from_fn(move || {
        if raw.is_empty() {
            return None;
        }
        let start = raw.offset();
        let mut next = || -> Result<_, Truncated> { Ok((ZoneSeq(from.0 + raw.varint()?), raw.blob()?)) };
        let (seq, body) = next().expect("reclaimed zone damaged in memory: cannot be unpacked");
        Some(PackedZone { seq, raw: body, at: start..raw.offset() })
    })
}

/// Packs already packed zones into a leaf that begins at `from`.
fn pack_into(from: ZoneSeq, zones: impl Iterator<Item = (ZoneSeq, impl AsRef<[u8]>)>) -> Vec<u8> {
    let mut out = Writer::new();
    for (seq, raw) in zones {
        out.varint(seq.0 - from.0);
        out.blob(raw.as_ref());
    }
    out.into_bytes()
}

impl ReclaimedZones {
    /// A reclaimed zone. It is unpacked if the zones are packed.
    pub fn get(&self, seq: ZoneSeq) -> Option<Cow<'_, ReclaimedZone>> {
        match &self.form {
            Form::Rows(rows) => rows.get(&seq).map(Cow::Borrowed),
            Form::Packed(leaves) => {
                find_packed(leaves, seq).map(|found| Cow::Owned(ReclaimedZone::unpack(found.raw)))
            }
        }
    }

    /// The run that holds the block born there, if it lives.
    pub fn run_of(&self, seq: ZoneSeq, granule: u32) -> Option<Run> {
        match &self.form {
            Form::Rows(rows) => rows.get(&seq)?.born.run_of(granule).copied(),
            Form::Packed(leaves) => ReclaimedZone::run_of(find_packed(leaves, seq)?.raw, granule),
        }
    }

    /// The selected zones, in order.
    pub fn select<'a>(
        &'a self,
        which: impl Fn(ZoneSeq) -> bool + Copy + 'a,
    ) -> Box<dyn Iterator<Item = (ZoneSeq, Cow<'a, ReclaimedZone>)> + 'a> {
        match &self.form {
            Form::Rows(rows) => {
                let asked = rows.iter().filter(move |(seq, _)| which(**seq));
                Box::new(asked.map(|(seq, zone)| (*seq, Cow::Borrowed(zone))))
            }
            Form::Packed(leaves) => {
                let all = leaves.iter().flat_map(|(from, bytes)| packed_in(*from, bytes));
                let asked = all.filter(move |found| which(found.seq));
                Box::new(asked.map(|found| (found.seq, Cow::Owned(ReclaimedZone::unpack(found.raw)))))
            }
        }
    }

    /// The first zone from `from` on.
    pub fn next(&self, from: ZoneSeq) -> Option<(ZoneSeq, Cow<'_, ReclaimedZone>)> {
        match &self.form {
            Form::Rows(rows) => rows.range(from..).next().map(|(seq, zone)| (*seq, Cow::Borrowed(zone))),
            Form::Packed(leaves) => {
                let begins = leaves.range(..=from).next_back().map_or(from, |(begins, _)| *begins);
                let mut all = leaves.range(begins..).flat_map(|(begins, bytes)| packed_in(*begins, bytes));
                let found = all.find(|found| found.seq >= from)?;
                Some((found.seq, Cow::Owned(ReclaimedZone::unpack(found.raw))))
            }
        }
    }

    /// Number of zones, and of their runs.
    pub fn counts(&self) -> (u64, u64) {
        (self.zones, self.runs)
    }

    /// Memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = match &self.form {
            Form::Rows(rows) => {
                let of =
                    |born: &BornBlocks| born.runs.capacity() * size_of::<Run>() + born.dead.memory_bytes();
                tree_bytes::<ReclaimedZone>(rows.len())
                    + rows.values().map(|zone| of(&zone.born)).sum::<usize>()
            }
            Form::Packed(leaves) => {
                tree_bytes::<Vec<u8>>(leaves.len()) + leaves.values().map(Vec::capacity).sum::<usize>()
            }
        };
        bytes as u64
    }

    /// Memory of the rows, in bytes: as it is, or an upper bound while packed, because the dead sets of packed zones are not counted.
    pub fn rows_bytes(&self) -> u64 {
        if !self.is_packed() {
            return self.memory_bytes();
        }
        let rows = tree_bytes::<ReclaimedZone>(self.zones as usize) as u64;
        rows + self.runs * size_of::<Run>() as u64 + self.memory_bytes()
    }

    /// Whether the zones are packed into leaves.
    pub fn is_packed(&self) -> bool {
        matches!(self.form, Form::Packed(_))
    }

    /// A copy of all zones, packed or as rows.
    pub fn in_form(&self, packed: bool) -> ReclaimedZones {
        let mut other = ReclaimedZones {
            form: if packed { Form::Packed(BTreeMap::new()) } else { Form::default() },
            ..ReclaimedZones::default()
        };
        for (seq, zone) in self.select(|_| true) {
            other.insert(seq, zone.into_owned());
        }
        other
    }

    /// Changes a zone. A zone without survivors is dropped. `None`: the zone is not listed.
    pub fn change<T>(&mut self, seq: ZoneSeq, change: impl FnOnce(&mut ReclaimedZone) -> T) -> Option<T> {
        let (out, runs_before, runs) = match &mut self.form {
            Form::Rows(rows) => {
                let zone = rows.get_mut(&seq)?;
                let before = zone.born.runs.len();
                let out = change(zone);
                zone.born.runs.shrink_to_fit();
                let runs = zone.born.runs.len();
                if runs == 0 {
                    rows.remove(&seq);
                }
                (out, before, runs)
            }
            Form::Packed(leaves) => {
                let mut zone = ReclaimedZone::unpack(find_packed(leaves, seq)?.raw);
                let before = zone.born.runs.len();
                let out = change(&mut zone);
                let runs = zone.born.runs.len();
                set_packed(leaves, seq, Some(&zone).filter(|_| runs > 0));
                (out, before, runs)
            }
        };
        self.zones -= u64::from(runs == 0);
        self.runs = self.runs + runs as u64 - runs_before as u64;
        Some(out)
    }

    /// Adds a reclaimed zone. A zone without survivors needs no entry.
    pub fn insert(&mut self, seq: ZoneSeq, mut zone: ReclaimedZone) {
        self.change(seq, |old| old.born.runs.clear());
        if zone.born.runs.is_empty() {
            return;
        }
        self.zones += 1;
        self.runs += zone.born.runs.len() as u64;
        match &mut self.form {
            Form::Rows(rows) => {
                zone.born.runs.shrink_to_fit();
                rows.insert(seq, zone);
            }
            Form::Packed(leaves) => set_packed(leaves, seq, Some(&zone)),
        }
    }
}

fn find_packed(leaves: &BTreeMap<ZoneSeq, Vec<u8>>, seq: ZoneSeq) -> Option<PackedZone<'_>> {
    let (from, bytes) = leaves.range(..=seq).next_back()?;
    packed_in(*from, bytes).find(|found| found.seq >= seq).filter(|found| found.seq == seq)
}

/// Inserts, replaces or removes a zone.
fn set_packed(leaves: &mut BTreeMap<ZoneSeq, Vec<u8>>, seq: ZoneSeq, zone: Option<&ReclaimedZone>) {
    let from = leaves.range(..=seq).next_back().map_or(seq, |(from, _)| *from);
    let bytes = leaves.entry(from).or_default();
    let at = match packed_in(from, bytes).find(|found| found.seq >= seq) {
        Some(found) if found.seq == seq => found.at,
        Some(next) => next.at.start..next.at.start,
        None => bytes.len()..bytes.len(),
    };
    bytes.splice(at, pack_into(from, zone.into_iter().map(|zone| (seq, zone.packed()))));
    let len = bytes.len();
    if len < LEAF_BYTES_MIN {
        return merge_with_next(leaves, from);
    }
    // Split at the first zone of the second half, or at the last zone if that is so large.
    let starts = || packed_in(from, bytes).map(|found| (found.seq, found.at.start));
    let second = starts().find(|(_, at)| *at >= len / 2).or_else(|| starts().last());
    let Some((second, at)) = second.filter(|(_, at)| len > LEAF_BYTES_MAX && *at > 0) else {
        return trim_capacity(bytes);
    };
    let rest = packed_in(from, bytes).filter(|found| found.seq >= second);
    let mut rest = pack_into(second, rest.map(|found| (found.seq, found.raw)));
    bytes.truncate(at);
    trim_capacity(bytes);
    trim_capacity(&mut rest);
    leaves.insert(second, rest);
}

/// Frees unused capacity, except a little for growth.
fn trim_capacity(bytes: &mut Vec<u8>) {
    if bytes.capacity() > bytes.len() + bytes.len() / 8 {
        bytes.shrink_to_fit();
    }
}

/// Handles a leaf that has shrunk: an empty one is dropped, a small one is merged with the next.
fn merge_with_next(leaves: &mut BTreeMap<ZoneSeq, Vec<u8>>, from: ZoneSeq) {
    let Some(mut bytes) = leaves.remove(&from).filter(|bytes| !bytes.is_empty()) else { return };
    let next = leaves.range(from..).next().map(|(next, bytes)| (*next, bytes.len()));
    if let Some((next, _)) = next.filter(|(_, next)| bytes.len() + next <= LEAF_BYTES_MAX / 4 * 3)
        && let Some(more) = leaves.remove(&next)
    {
        bytes.extend(pack_into(from, packed_in(next, &more).map(|found| (found.seq, found.raw))));
    }
    trim_capacity(&mut bytes);
    leaves.insert(from, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(first: u32, dest: u64) -> Run {
        let mut run = Run::of(first * 8, 4, ZoneSeq(dest), 8192 * (1 + dest % 500));
        run.add_block(first * 8 + 4, 2);
        run
    }

    /// A zone with so many runs and some dead blocks between them.
    fn zone(seq: u64, runs: u32) -> ReclaimedZone {
        let born = BornBlocks {
            runs: (0..runs).map(|at| run(at, seq + u64::from(at))).collect(),
            dead: (0..runs / 2).map(|at| (at * 16 + 4, at * 16 + 6)).collect(),
        };
        ReclaimedZone { class: ZoneClass::Data, opened: Txg(seq), last_write: Txg(seq + 3), born }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64, u32),
        /// The run at that index loses its blocks.
        EndRun(u64, usize),
        /// A piece of the zone moves once more.
        MoveRun(u64, u32),
        /// Switches to the other form.
        SwitchForm,
        Compare,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1u64..400, prop_oneof![9 => 0u32..4, 1 => 100u32..300]).prop_map(|(seq, runs)| Op::Insert(seq, runs)),
            4 => (1u64..400, 0usize..4).prop_map(|(seq, at)| Op::EndRun(seq, at)),
            1 => (1u64..400, 0u32..40).prop_map(|(seq, at)| Op::MoveRun(seq, at)),
            1 => prop_oneof![Just(Op::SwitchForm), Just(Op::Compare)],
        ]
    }

    fn run_ends(zone: &mut ReclaimedZone, at: usize) {
        if at < zone.born.runs.len() {
            zone.born.runs.remove(at);
        }
    }

    proptest! {
        #[test]
        fn reclaimed_zones_behave_like_a_map(ops in prop::collection::vec(op(), 1..300)) {
            let (mut reclaimed, mut plain) = (ReclaimedZones::default(), BTreeMap::<ZoneSeq, ReclaimedZone>::new());
            for op in ops {
                match op {
                    Op::Insert(seq, runs) => {
                        let seq = ZoneSeq(seq);
                        // A zone is reclaimed only once.
                        if plain.contains_key(&seq) { continue }
                        reclaimed.insert(seq, zone(seq.0, runs));
                        if runs > 0 { plain.insert(seq, zone(seq.0, runs)); }
                    }
                    Op::EndRun(seq, at) => {
                        let seq = ZoneSeq(seq);
                        let found = reclaimed.change(seq, |zone| run_ends(zone, at));
                        prop_assert_eq!(found.is_some(), plain.contains_key(&seq));
                        if let Some(zone) = plain.get_mut(&seq) {
                            run_ends(zone, at);
                            if zone.born.runs.is_empty() { plain.remove(&seq); }
                        }
                    }
                    Op::MoveRun(seq, at) => {
                        let seq = ZoneSeq(seq);
                        reclaimed.change(seq, |zone| zone.born.insert_run(run(at, 1000)));
                        if let Some(zone) = plain.get_mut(&seq) { zone.born.insert_run(run(at, 1000)); }
                    }
                    Op::SwitchForm => reclaimed = reclaimed.in_form(!reclaimed.is_packed()),
                    Op::Compare => {
                        let all: Vec<(ZoneSeq, ReclaimedZone)> =
                            reclaimed.select(|_| true).map(|(seq, zone)| (seq, zone.into_owned())).collect();
                        prop_assert_eq!(&all, &plain.clone().into_iter().collect::<Vec<_>>());
                        let even: Vec<ZoneSeq> = reclaimed.select(|seq| seq.0 % 2 == 0).map(|(seq, _)| seq).collect();
                        prop_assert_eq!(even, plain.keys().copied().filter(|seq| seq.0 % 2 == 0).collect::<Vec<_>>());
                        for from in (0..410).step_by(7).map(ZoneSeq) {
                            let found = reclaimed.next(from).map(|(seq, zone)| (seq, zone.into_owned()));
                            prop_assert_eq!(found, plain.range(from..).next().map(|(seq, zone)| (*seq, zone.clone())));
                        }
                        let runs = plain.values().map(|zone| zone.born.runs.len() as u64).sum::<u64>();
                        prop_assert_eq!(reclaimed.counts(), (plain.len() as u64, runs));
                        prop_assert!(reclaimed.rows_bytes() >= reclaimed.in_form(false).memory_bytes());
                        for seq in (1..400).step_by(3).map(ZoneSeq) {
                            let found = reclaimed.get(seq);
                            prop_assert_eq!(found.as_deref(), plain.get(&seq));
                            for granule in (0..40).step_by(5) {
                                let expected = plain.get(&seq).and_then(|zone| zone.born.run_of(granule)).copied();
                                prop_assert_eq!(reclaimed.run_of(seq, granule), expected);
                            }
                        }
                        if let Form::Packed(leaves) = &reclaimed.form {
                            for (from, bytes) in leaves {
                                let largest = packed_in(*from, bytes).map(|found| found.at.len()).max();
                                prop_assert!(largest.is_some_and(|largest| bytes.len() - largest <= LEAF_BYTES_MAX));
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn memory_per_reclaimed_zone_is_small_and_shrinks() {
        // One block of a 64 MiB zone each, moved often.
        let last_one = |seq: u64| ReclaimedZone {
            born: BornBlocks {
                runs: vec![run((seq * 7919 % 500_000) as u32, seq + 20_000)],
                ..BornBlocks::default()
            },
            ..zone(seq, 0)
        };
        let mut reclaimed = ReclaimedZones::default().in_form(true);
        (100_000..200_000).for_each(|seq| reclaimed.insert(ZoneSeq(seq), last_one(seq)));
        let each = |reclaimed: &ReclaimedZones| reclaimed.memory_bytes() as f64 / reclaimed.counts().0 as f64;
        assert!(
            reclaimed.counts() == (100_000, 100_000) && each(&reclaimed) < 36.0,
            "{} bytes",
            each(&reclaimed)
        );
        reclaimed = reclaimed.in_form(false);
        assert!(
            reclaimed.memory_bytes() == reclaimed.rows_bytes() && each(&reclaimed) > 150.0,
            "{} bytes",
            each(&reclaimed)
        );
        reclaimed = reclaimed.in_form(true);
        assert!(each(&reclaimed) < 36.0, "{} bytes", each(&reclaimed));
        for seq in (100_000..200_000).filter(|seq| seq * 7919 % 1000 != 7) {
            reclaimed.change(ZoneSeq(seq), |zone| zone.born.runs.clear()).unwrap();
        }
        assert!(reclaimed.counts() == (100, 100) && each(&reclaimed) < 64.0, "{} bytes", each(&reclaimed));
    }

    /// More than fits a leaf.
    #[test]
    fn memory_of_a_large_zone_is_released() {
        let mut reclaimed = ReclaimedZones::default().in_form(true);
        for seq in (10..14).map(ZoneSeq) {
            reclaimed.insert(seq, zone(seq.0, 2000));
        }
        let close = |reclaimed: &ReclaimedZones| {
            let (kept, needed) = (reclaimed.memory_bytes(), reclaimed.in_form(true).memory_bytes());
            assert!(kept <= needed * 9 / 8 + 512, "{kept} bytes where {needed} are enough");
        };
        close(&reclaimed);
        reclaimed.change(ZoneSeq(11), |zone| zone.born.runs.truncate(500)).unwrap();
        close(&reclaimed);
        for more in 0..100 {
            reclaimed.change(ZoneSeq(11), |zone| zone.born.insert_run(run(5000 + more, 1000))).unwrap();
        }
        close(&reclaimed);
        let last = (0..6000).rfind(|granule| reclaimed.run_of(ZoneSeq(11), granule * 8).is_some());
        assert_eq!(last, Some(5099));
    }
}
