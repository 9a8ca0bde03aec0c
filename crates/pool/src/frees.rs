//! What a group frees, judged before anything is counted by it, and told by its record or by blocks of their own.
//!
//! A block is freed once. A second free would be counted against blocks that live, and in the end a zone would be reset under them: so
//! what cannot be is left out here and reported. It becomes a leak at the worst, which `check` finds.
//!
//! A birth zone that is there knows all its dead. Of one that is gone only those are known that died since their run last moved; a
//! second free of others is told by the run's [`Tally`]: a run ends only with exactly the blocks that lived in it.

use crate::pool::Group;
use std::collections::{BTreeMap, BTreeSet};
use terrane_format::addr::{Addr, GRANULE, granule_bytes};
use terrane_format::directory::POOL_DEAD_LOG;
use terrane_format::record::{Free, Record, Run, Tally, put_frees};
use terrane_space::zones::{Findings, Tables};
use terrane_store::PoolError;
use terrane_store::bootstrap::boot_encode;
use terrane_wire::{Corrupt, Writer, ZoneSeq};

/// Frees that a record holds itself; more go to dead-log blocks.
pub(crate) const INLINE_FREES_MAX: usize = 1024;
/// Frees in one dead-log block.
const DEAD_LOG_FREES: usize = 16 << 10;

impl Group<'_> {
    /// Has the record name the zones that were reset since the last one. What they leave behind is to be freed: the copies of their parts.
    pub(crate) fn take_resets(&mut self) -> Vec<Free> {
        let resets = std::mem::take(&mut self.st.resets_done);
        self.reset.extend(resets.iter().map(|(seq, _)| *seq));
        let copies = resets.into_iter().flat_map(|(_, copies)| copies);
        let free = |(addr, len)| Free { addr, granules: (granule_bytes(len) / GRANULE) as u32 };
        let mut frees: Vec<Free> = copies.map(free).collect();
        frees.sort_unstable();
        frees
    }

    /// Of zones that were reset when the other frees were written already, or will be with the record.
    pub(crate) fn tell_of_resets(&mut self) -> Result<(), PoolError> {
        self.pool.store.counters.late_resets.add(1);
        let left = self.take_resets();
        let is_logged = !self.dead_log.is_empty();
        self.frees.extend_from_slice(&left);
        self.frees.sort_unstable();
        if is_logged { self.write_dead_log(&left) } else { self.log_frees() }
    }

    /// Of zones that were reset when the record was made already: import reads the frees in it beside those in the dead log.
    pub(crate) fn add_resets(&mut self, record: &mut Record) {
        self.pool.store.counters.late_resets.add(1);
        let left = self.take_resets();
        record.reset.append(&mut self.reset);
        let mut deltas: BTreeMap<ZoneSeq, i64> = record.deltas.iter().copied().collect();
        let tables = self.pool.store.tables.read();
        for free in &left {
            let moved = self.moved_now.get(&free.addr).copied();
            if let Some(from) = moved.or_else(|| tables.current_zone(free.addr)) {
                *deltas.entry(from).or_default() -= (u64::from(free.granules) * GRANULE) as i64;
            }
        }
        drop(tables);
        deltas.retain(|_, bytes| *bytes != 0);
        record.deltas = deltas.into_iter().collect();
        record.frees.extend_from_slice(&left);
        record.frees.sort_unstable();
        self.frees.extend(left);
        self.frees.sort_unstable();
    }

    /// Writes them to blocks of their own, if they are too many for the record.
    pub(crate) fn log_frees(&mut self) -> Result<(), PoolError> {
        if self.frees.len() > INLINE_FREES_MAX {
            let frees = std::mem::take(&mut self.frees);
            self.write_dead_log(&frees)?;
            self.frees = frees;
        }
        Ok(())
    }

    /// These are bootstrap blocks, because replay reads them before it knows where anything is.
    fn write_dead_log(&mut self, frees: &[Free]) -> Result<(), PoolError> {
        // An entry takes at most 14 bytes.
        let chunk_max = DEAD_LOG_FREES.min(self.pool.max_block() as usize / 16);
        for chunk in frees.chunks(chunk_max) {
            let mut out = Writer::new();
            put_frees(&mut out, chunk);
            let stored = self.pool.reader.pipeline.workers().here(|codec| boot_encode(codec, out.as_bytes()));
            let ptr = self.write_boot(POOL_DEAD_LOG, &stored)?;
            self.dead_log.push(ptr);
        }
        Ok(())
    }

    /// Sorts the frees and takes out what cannot be: blocks unknown or dead already. That is damage; it must not become a lost zone.
    pub(crate) fn judge_frees(&mut self) {
        self.frees.sort_unstable();
        let tables = self.pool.store.tables.read();
        let mut birthplaces = tables.birthplaces();
        let mut end = Addr::NONE.raw();
        let (pool, moved_now, moved_parts) = (self.pool, &self.moved_now, &self.moved_parts);
        self.frees.retain(|free| {
            let birth = birthplaces.of(free.addr.seq());
            // What was listed in a part that moved, and lives, has moved.
            let has_moved = |run: &Run| {
                !moved_parts.contains(&(run.dest, run.part_end())) || moved_now.contains_key(&free.addr)
            };
            let fine = free.addr.raw() >= end
                && birth.is_some_and(|birth| {
                    let run = birth.run_of(free.addr.granule());
                    !birth.born.dead.overlaps(free.addr.granule(), free.granules)
                        && run.map_or(birth.is_there, has_moved)
                });
            if fine {
                end = free.addr.raw() + u64::from(free.granules);
            } else {
                pool.reports.damage(Corrupt::new(free.addr, "freed block", "alive", "free already"));
            }
            fine
        });
        for finding in refuse_wrong_ends(&tables, &mut self.frees) {
            pool.reports.damage(finding);
        }
    }
}

/// Takes out the frees with which a run would end though they, and those before them, are not of the blocks that lived in it.
fn refuse_wrong_ends(tables: &Tables, frees: &mut Vec<Free>) -> Findings {
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
        if bytes > run.live() || left.live() == 0 && left.tally != Tally::NOTHING {
            let at = format_args!("zone {}, granules {} to {}", free.addr.seq(), run.first, run.last);
            let expected = format_args!("those that live there, {} bytes", run.live());
            findings.push(Corrupt::new(
                at,
                "freed blocks",
                expected,
                format_args!("{bytes} bytes, or others"),
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
    use terrane_format::record::Class;
    use terrane_space::gone::{Born, GoneZone};
    use terrane_wire::{Txg, ZoneSeq};

    const BIRTH: ZoneSeq = ZoneSeq(3);

    fn free(granule: u32, granules: u32) -> Free {
        Free { addr: Addr::new(BIRTH, u64::from(granule) * GRANULE), granules }
    }

    /// A zone that is gone, with blocks of four granules at 0, 8, and so on up to 40, of which those at 8 and 24 died before they moved.
    fn moved() -> Tables {
        let mut run = Run::of(0, 4, ZoneSeq(9), 8192);
        [16, 32, 40].into_iter().for_each(|granule| run.take(granule, 4));
        with(run)
    }

    fn with(run: Run) -> Tables {
        let born = Born { runs: vec![run], ..Born::default() };
        let zone = GoneZone { class: Class::Data, opened: Txg(1), last_write: Txg(1), born };
        let mut tables = Tables::default();
        tables.insert_gone([(BIRTH, zone)]);
        tables
    }

    #[test]
    fn a_run_ends_with_the_blocks_that_lived_in_it_and_with_no_others() {
        let all = vec![free(0, 4), free(16, 4), free(32, 4), free(40, 4)];
        for (frees, fits) in [
            (all.clone(), true),
            (all[..3].to_vec(), true),
            // The bytes are right, the blocks are not.
            (vec![free(0, 4), free(8, 4), free(32, 4), free(40, 4)], false),
            (vec![free(0, 4), free(16, 4), free(24, 4), free(32, 4)], false),
            (vec![free(0, 4), free(8, 4), free(16, 4), free(32, 4), free(40, 4)], false),
            (vec![free(0, 4), free(16, 8), free(40, 4)], false),
        ] {
            let mut judged = frees.clone();
            let findings = refuse_wrong_ends(&moved(), &mut judged);
            assert_eq!((findings.is_empty(), judged == frees), (fits, fits), "{frees:?}: {findings:?}");
            assert!(fits || judged.is_empty(), "the run stays whole");
        }
    }

    #[test]
    fn a_second_free_is_told_at_the_end_even_when_it_came_groups_before() {
        let mut run = moved().birthplace(BIRTH).unwrap().born.runs[0];
        run.drop_block(8, 4);
        run.drop_block(0, 4);
        let mut frees = vec![free(16, 4), free(32, 4)];
        assert_eq!(refuse_wrong_ends(&with(run), &mut frees).len(), 1);
        assert_eq!(frees, vec![]);
    }

    #[test]
    fn runs_without_a_tally_are_left_to_the_dead_set() {
        let mut run = moved().birthplace(BIRTH).unwrap().born.runs[0];
        run.tally = Tally::UNKNOWN;
        let tables = with(run);
        let mut frees = vec![free(8, 4), free(16, 4), free(24, 4), free(32, 4)];
        assert_eq!(refuse_wrong_ends(&tables, &mut frees), vec![]);
        assert_eq!(frees.len(), 4);
    }
}
