//! Content of the commit record of a txg: frees, moves, sections, resets.
//!
//! A block is freed once. A second free would be subtracted from blocks that live, and in the end a zone
//! would be reset under them. So an impossible free is left out of the record and reported. At worst the
//! block leaks, and `check` finds it.
//!
//! A resident birth zone knows all its dead blocks. For a reclaimed zone, the dead set holds only blocks
//! freed since its survivors last moved. A second free of any other block is found by the run's [`Tally`]: a
//! run must end with exactly the blocks that lived in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use terrane_format::addr::{Addr, GRANULE, granule_bytes};
use terrane_format::block_ptr::Normal;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::record::{Free, Move, Record, Run, SectionPtr, Tally};
use terrane_space::zones::{Findings, Tables};
use terrane_wire::{Corrupt, ZoneSeq};

/// A zone that was reset, with address and bytes of each copy of its directory parts.
pub type ResetZone = (ZoneSeq, Vec<(Addr, u64)>);

/// Maximum number of frees in the record itself; more of them go to dead-log blocks.
pub const INLINE_FREES_MAX: usize = 1024;

/// The changes of a txg, from which its commit record is made.
#[derive(Default)]
pub struct CommitBuilder {
    /// Freed ranges of granules.
    pub frees: Vec<Free>,
    /// Table sections that this txg wrote.
    pub new_sections: Vec<SectionPtr>,
    /// More sections than usual are written, because a victim holds live bootstrap blocks.
    pub hurry_sections: bool,
    /// Zones that became suspect.
    pub suspect: Vec<ZoneSeq>,
    /// Zones that were suspect and are now explained.
    pub explained: Vec<ZoneSeq>,
    /// Runs of blocks that stay in place while the rest of their run moves.
    pub split_runs: Vec<Move>,
    /// Zones that were reset since the last record.
    pub reset: Vec<ZoneSeq>,
    /// Dead-log blocks with the frees that do not fit the record.
    pub dead_log: Vec<BootPtr>,
    /// Blocks that moved in this txg, with their destinations. A block that could not be read maps to the
    /// zone where it still is.
    pub moved_now: HashMap<Addr, ZoneSeq>,
    /// Directory parts, as (zone, end), whose live blocks have all moved.
    pub moved_parts: BTreeSet<(ZoneSeq, u64)>,
}

impl CommitBuilder {
    /// Frees every copy of a block.
    pub fn free_block(&mut self, normal: &Normal) {
        let granules = (granule_bytes(u64::from(normal.psize)) / GRANULE) as u32;
        self.frees.extend(normal.copies().map(|addr| Free { addr, granules }));
    }

    /// Frees one copy of a block.
    pub fn free_copy(&mut self, addr: Addr, granules: u32) {
        self.frees.push(Free { addr, granules });
    }

    /// Frees every copy of a bootstrap block.
    pub fn free_boot(&mut self, ptr: &BootPtr) {
        let granules = (granule_bytes(u64::from(ptr.len)) / GRANULE) as u32;
        self.frees.extend(ptr.copies().map(|place| Free { addr: place.addr(), granules }));
    }

    /// Runs that the record will hold.
    pub fn runs(&self) -> usize {
        self.moved_now.len() + self.split_runs.len()
    }

    /// Keeps a block where it is. It gets a run of its own, because the rest of its run moves away.
    pub fn keep_in_place(&mut self, tables: &Tables, addr: Addr, granules: u32) {
        let (birth, granule) = (addr.seq(), addr.granule());
        let Some(Some(run)) = tables.locate(addr) else { return };
        let own = Run::of(granule, granules, run.dest, run.part_end());
        self.split_runs.push(Move { birth, run: own });
        self.moved_now.insert(addr, run.dest);
    }

    /// Undoes a move: the batch that held the new copy could not be written.
    pub fn abort_move(&mut self, tables: &Tables, addr: Addr, granules: u32) {
        self.moved_now.remove(&addr);
        self.keep_in_place(tables, addr, granules);
    }

    /// Bootstrap blocks that the txg may have written.
    pub fn boot_ptrs<'s>(
        &'s mut self,
        sections: &'s mut [SectionPtr],
    ) -> impl Iterator<Item = &'s mut BootPtr> {
        let sections = self.new_sections.iter_mut().chain(sections);
        sections.map(|section| &mut section.ptr).chain(&mut self.dead_log)
    }

    /// Changes of live bytes by zone. `carried`: blocks that moved, with destination and bytes.
    pub fn deltas(&self, tables: &Tables, carried: &[(Addr, ZoneSeq, u64)]) -> Vec<(ZoneSeq, i64)> {
        let mut deltas: BTreeMap<ZoneSeq, i64> = BTreeMap::new();
        let mut delta = |seq: ZoneSeq, bytes: i64| *deltas.entry(seq).or_default() += bytes;
        let mut carried_to: HashMap<Addr, ZoneSeq> = HashMap::new();
        for &(identity, dest, len) in carried {
            let from = carried_to.insert(identity, dest).or_else(|| tables.current_zone(identity));
            if let Some(from) = from {
                delta(from, -(len as i64));
                delta(dest, len as i64);
            }
        }
        for free in &self.frees {
            let from = carried_to.get(&free.addr).copied().or_else(|| tables.current_zone(free.addr));
            if let Some(from) = from {
                delta(from, -((u64::from(free.granules) * GRANULE) as i64));
            }
        }
        deltas.retain(|_, bytes| *bytes != 0);
        deltas.into_iter().collect()
    }

    /// Adds to the record the zones that were reset since the last one. Returns the frees of the copies of
    /// their directory parts.
    pub fn take_resets(&mut self, resets_done: &mut Vec<ResetZone>) -> Vec<Free> {
        let resets = std::mem::take(resets_done);
        self.reset.extend(resets.iter().map(|(seq, _)| *seq));
        let copies = resets.into_iter().flat_map(|(_, copies)| copies);
        let free = |(addr, len)| Free { addr, granules: (granule_bytes(len) / GRANULE) as u32 };
        let mut frees: Vec<Free> = copies.map(free).collect();
        frees.sort_unstable();
        frees
    }

    /// Adds zones that were reset after the record was made. Import reads frees in the record in addition to
    /// those in the dead log.
    pub fn add_resets(&mut self, record: &mut Record, left: Vec<Free>, tables: &Tables) {
        record.reset.append(&mut self.reset);
        let mut deltas: BTreeMap<ZoneSeq, i64> = record.deltas.iter().copied().collect();
        for free in &left {
            let moved = self.moved_now.get(&free.addr).copied();
            if let Some(from) = moved.or_else(|| tables.current_zone(free.addr)) {
                *deltas.entry(from).or_default() -= (u64::from(free.granules) * GRANULE) as i64;
            }
        }
        deltas.retain(|_, bytes| *bytes != 0);
        record.deltas = deltas.into_iter().collect();
        record.frees.extend_from_slice(&left);
        record.frees.sort_unstable();
        self.frees.extend(left);
        self.frees.sort_unstable();
    }

    /// Sorts the frees and removes impossible ones: blocks that are unknown or already dead. These are
    /// damage, which must not become a lost zone.
    pub fn validate_frees(&mut self, tables: &Tables) -> Findings {
        self.frees.sort_unstable();
        let mut findings = Findings::new();
        let mut birthplaces = tables.birthplaces();
        let mut end = Addr::NONE.raw();
        let (moved_now, moved_parts) = (&self.moved_now, &self.moved_parts);
        self.frees.retain(|free| {
            let birth = birthplaces.of(free.addr.seq());
            // If all live blocks of a part have moved, a block that was listed there and did not move is
            // dead.
            let has_moved = |run: &Run| {
                !moved_parts.contains(&(run.dest, run.part_end())) || moved_now.contains_key(&free.addr)
            };
            let fine = free.addr.raw() >= end
                && birth.is_some_and(|birth| {
                    let run = birth.run_of(free.addr.granule());
                    !birth.born.dead.overlaps(free.addr.granule(), free.granules)
                        && run.map_or(birth.is_resident, has_moved)
                });
            if fine {
                end = free.addr.raw() + u64::from(free.granules);
            } else {
                findings.push(Corrupt::new(free.addr, "freed block", "alive", "free already"));
            }
            fine
        });
        findings.extend(drop_wrong_frees(tables, &mut self.frees));
        findings
    }
}

/// Removes the frees that would end a run, if they and the earlier frees are not exactly the blocks that
/// lived in it.
fn drop_wrong_frees(tables: &Tables, frees: &mut Vec<Free>) -> Findings {
    let mut birthplaces = tables.birthplaces();
    let mut run_of = |free: &Free| birthplaces.of(free.addr.seq())?.run_of(free.addr.granule()).copied();
    let runs: Vec<Option<Run>> = frees.iter().map(&mut run_of).collect();
    let both: Vec<(Free, Option<Run>)> = frees.iter().copied().zip(runs).collect();
    let mut findings = Findings::new();
    let mut wrong: BTreeSet<Addr> = BTreeSet::new();
    for of_run in both.chunk_by(|(a, of_a), (b, of_b)| a.addr.seq() == b.addr.seq() && of_a == of_b) {
        let Some((free, Some(run))) = of_run.first().copied() else { continue };
        if !run.tally.is_known() {
            continue;
        }
        let of_run = of_run.iter().map(|(free, _)| free);
        let mut left = run;
        of_run.clone().for_each(|free| left.drop_block(free.addr.granule(), free.granules));
        let bytes: u64 = of_run.clone().map(|free| u64::from(free.granules) * GRANULE).sum();
        if bytes > run.live() || left.live() == 0 && left.tally != Tally::EMPTY {
            let at = format_args!("zone {}, granules {} to {}", free.addr.seq(), run.first, run.last);
            let expected = format_args!("live blocks of one run, at most {} bytes", run.live());
            findings.push(Corrupt::new(
                at,
                "freed blocks",
                expected,
                format_args!("{bytes} bytes, or other blocks"),
            ));
            wrong.extend(of_run.map(|free| free.addr));
        }
    }
    if !wrong.is_empty() {
        frees.retain(|free| !wrong.contains(&free.addr));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_format::record::ZoneClass;
    use terrane_space::reclaimed::{BornBlocks, ReclaimedZone};
    use terrane_wire::{Txg, ZoneSeq};

    const BIRTH: ZoneSeq = ZoneSeq(3);

    fn free(granule: u32, granules: u32) -> Free {
        Free { addr: Addr::new(BIRTH, u64::from(granule) * GRANULE), granules }
    }

    /// A reclaimed zone with blocks of four granules at 0, 8, and so on up to 40. The blocks at 8 and 24 died
    /// before they moved.
    fn moved() -> Tables {
        let mut run = Run::of(0, 4, ZoneSeq(9), 8192);
        [16, 32, 40].into_iter().for_each(|granule| run.add_block(granule, 4));
        with(run)
    }

    fn with(run: Run) -> Tables {
        let born = BornBlocks { runs: vec![run], ..BornBlocks::default() };
        let zone = ReclaimedZone { class: ZoneClass::Data, opened: Txg(1), last_write: Txg(1), born };
        let mut tables = Tables::default();
        tables.insert_reclaimed([(BIRTH, zone)]);
        tables
    }

    #[test]
    fn a_run_ends_with_the_blocks_that_lived_in_it_and_with_no_others() {
        let all = vec![free(0, 4), free(16, 4), free(32, 4), free(40, 4)];
        for (frees, fits) in [
            (all.clone(), true),
            (all[..3].to_vec(), true),
            // The bytes add up, but the blocks are wrong.
            (vec![free(0, 4), free(8, 4), free(32, 4), free(40, 4)], false),
            (vec![free(0, 4), free(16, 4), free(24, 4), free(32, 4)], false),
            (vec![free(0, 4), free(8, 4), free(16, 4), free(32, 4), free(40, 4)], false),
            (vec![free(0, 4), free(16, 8), free(40, 4)], false),
        ] {
            let mut checked = frees.clone();
            let findings = drop_wrong_frees(&moved(), &mut checked);
            assert_eq!((findings.is_empty(), checked == frees), (fits, fits), "{frees:?}: {findings:?}");
            assert!(fits || checked.is_empty(), "the run stays whole");
        }
    }

    #[test]
    fn a_second_free_is_found_even_txgs_later() {
        let mut run = moved().birthplace(BIRTH).unwrap().born.runs[0];
        run.drop_block(8, 4);
        run.drop_block(0, 4);
        let mut frees = vec![free(16, 4), free(32, 4)];
        assert_eq!(drop_wrong_frees(&with(run), &mut frees).len(), 1);
        assert_eq!(frees, vec![]);
    }

    #[test]
    fn a_block_moved_and_freed_in_one_txg_counts_at_its_destination() {
        let tables = moved();
        let mut commit = CommitBuilder { frees: vec![free(0, 4)], ..CommitBuilder::default() };
        assert_eq!(commit.deltas(&tables, &[]), [(ZoneSeq(9), -64)]);
        let moves = [(free(0, 4).addr, ZoneSeq(11), 64)];
        assert_eq!(commit.deltas(&tables, &moves), [(ZoneSeq(9), -64)], "in zone 11 it came and went");
        commit.frees.clear();
        assert_eq!(commit.deltas(&tables, &moves), [(ZoneSeq(9), -64), (ZoneSeq(11), 64)]);
    }

    #[test]
    fn a_zone_that_was_reset_is_named_once_and_copies_of_its_parts_are_freed() {
        let mut commit = CommitBuilder::default();
        let mut resets = vec![(ZoneSeq(5), vec![(free(40, 7).addr, 100), (free(8, 1).addr, 16)])];
        assert_eq!(commit.take_resets(&mut resets), [free(8, 1), free(40, 7)]);
        assert_eq!(commit.take_resets(&mut resets), []);
        assert_eq!(commit.reset, [ZoneSeq(5)]);
    }

    #[test]
    fn a_block_that_stays_has_a_run_of_its_own() {
        let (tables, mut commit) = (moved(), CommitBuilder::default());
        let addr = free(16, 4).addr;
        commit.moved_now.insert(addr, ZoneSeq(11));
        commit.abort_move(&tables, addr, 4);
        assert_eq!(commit.split_runs, [Move { birth: BIRTH, run: Run::of(16, 4, ZoneSeq(9), 8192) }]);
        assert_eq!((commit.moved_now.get(&addr), commit.runs()), (Some(&ZoneSeq(9)), 2));
    }

    #[test]
    fn runs_without_a_tally_are_left_to_the_dead_set() {
        let mut run = moved().birthplace(BIRTH).unwrap().born.runs[0];
        run.tally = Tally::UNKNOWN;
        let tables = with(run);
        let mut frees = vec![free(8, 4), free(16, 4), free(24, 4), free(32, 4)];
        assert_eq!(drop_wrong_frees(&tables, &mut frees), vec![]);
        assert_eq!(frees.len(), 4);
    }
}
