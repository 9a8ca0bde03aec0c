//! Blocks that should be born again, so that the run index forgets where they moved.
//!
//! The index tells of each run of survivors, and what nobody changes survives for ever: a few old blocks of every zone that ever was
//! filled are enough to make it as large as one likes. Packing it and moving in larger parts makes it smaller, but bounds nothing. So when
//! all that is not enough, the oldest of those blocks are written anew by whoever owns them, as if they had been overwritten with what they
//! hold. Then they lie where they were born, and there is nothing to tell. It costs what moving them costs, and the pointers above.
//! (Pointers could not be changed where several trees share a block; here one does.)
//!
//! The oldest first: they have shown that they do not go by themselves. Of metadata it is enough that one copy moved, and both are written.

use crate::pool::Pool;
use crate::pool::Tx;
use terrane_format::addr::Addr;
use terrane_format::directory::Owner;
use terrane_format::record::Run;
use terrane_space::zones::IndexSize;
use terrane_wire::{Txg, ZoneSeq};

/// A block that moved, and whose birthplace is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relic {
    pub owner: Owner,
    pub addr: Addr,
}

/// How far who has blocks born again is.
#[derive(Debug, Default)]
pub struct RebirthCursor {
    /// The next birthplace, and the granule in it.
    next: (ZoneSeq, u32),
    /// How many blocks were needed when this group had been synced: before the next one nothing changes.
    looked: Option<(Txg, u64)>,
    /// Blocks that were named since, and the newest group that writes some of them: with it the index gets smaller.
    named: u64,
    group: Txg,
    /// The group that had been synced when it began with the first birthplace, and when it came to the end of the last one.
    began: Txg,
    ended: Option<Txg>,
    /// Whether some were born since the first birthplace, and none in the pass before: those that were named last may have come in this
    /// one. Where none was in two passes it is not looked again before a group.
    some_born: bool,
    was_barren: bool,
    rests_until: Txg,
}

impl RebirthCursor {
    /// All birthplaces were looked at.
    fn pass_ended(&mut self, synced: Txg) {
        if !self.some_born && self.was_barren {
            self.rests_until = Txg(synced.0 + REST_GROUPS);
        }
        self.was_barren = !self.some_born;
        // A pass that began before this group may begin again with it.
        self.ended = Some(synced).filter(|_| self.began == synced);
        (self.next, self.some_born, self.began) = ((ZoneSeq(0), 0), false, synced);
    }

    /// One that was named is written with this transaction.
    pub fn born(&mut self, tx: &Tx) {
        (self.some_born, self.group) = (true, self.group.max(tx.txg()));
    }
}

/// As many are named at once.
const RELICS: u64 = 256;
/// Directory parts that are read for it.
const PARTS: usize = 64;
/// Groups in which it rests when nothing could be born of all that was named: it would read the same parts again and again.
const REST_GROUPS: u64 = 64;
/// The part of the bound that runs may take in any case: where dead sets take all of it no rebirth would help.
const RUNS_PART: u64 = 2;
/// What a block born again gives back, in bytes: a run takes some 24, and holds several.
const RUN_BYTES: u64 = 6;

/// How many blocks must be born again, at least, where all may take so many bytes.
fn needed(size: IndexSize, most: u64) -> u64 {
    let above = size.bytes().saturating_sub(most).min(size.run_index_bytes.saturating_sub(most / RUNS_PART));
    if size.is_packed { above.div_ceil(RUN_BYTES) } else { 0 }
}

impl Pool {
    /// Blocks that should be born again now: those of the next birthplaces, and after the last one of the first. None while the run index
    /// keeps within its bound or what was named is not written yet, nor where nothing was found in as many directory parts as are read
    /// at once.
    pub fn relics(&self, cursor: &mut RebirthCursor) -> Vec<Relic> {
        let mut found = Vec::new();
        let synced = self.admission.synced();
        // What was named stays until the next group is synced.
        if synced < cursor.rests_until || cursor.ended == Some(synced) {
            return found;
        }
        let wanted = match cursor.looked {
            Some((group, wanted)) if group == synced => wanted,
            _ => self.relics_needed(),
        };
        cursor.looked = Some((synced, wanted));
        if synced >= cursor.group {
            cursor.named = 0;
        }
        let most = wanted.saturating_sub(cursor.named).min(RELICS) as usize;
        if most == 0 {
            return found;
        }
        let mut parts = PARTS;
        while parts > 0 && found.len() < most {
            let next = self.store.tables.read().next_gone(cursor.next.0);
            let Some((seq, runs)) = next else {
                cursor.pass_ended(synced);
                break;
            };
            let from = if seq == cursor.next.0 { cursor.next.1 } else { 0 };
            cursor.next = match self.relics_of((seq, from), &runs, (&mut parts, most), &mut found) {
                Some(granule) => (seq, granule),
                None => (ZoneSeq(seq.0 + 1), 0),
            };
        }
        cursor.named += found.len() as u64;
        cursor.group = cursor.group.max(self.admission.open());
        found
    }

    fn relics_needed(&self) -> u64 {
        let tables = self.store.tables.read();
        // Looking at all rows takes time, and those that can be packed will be.
        if tables.is_packed() { needed(tables.index_size(), self.collection.index_bytes_max()) } else { 0 }
    }

    /// What lives of the blocks that were born in a zone, from a granule on. Where it ended before all runs were looked at.
    fn relics_of(
        &self,
        (seq, from): (ZoneSeq, u32),
        runs: &[Run],
        (parts, most): (&mut usize, usize),
        found: &mut Vec<Relic>,
    ) -> Option<u32> {
        for run in runs.iter().filter(|run| run.last >= from) {
            if *parts == 0 {
                return Some(run.first);
            }
            *parts -= 1;
            let Some(held) = self.store.hold(run.dest) else { continue };
            // What cannot be read stays where it is.
            let Ok(part) = self.store.part(&held, run.part_end()) else { continue };
            let granules = run.first.max(from)..=run.last;
            let born_there = part.entries.iter().filter(|entry| entry.identity.seq() == seq);
            // What is damaged is to be mended, not to be moved.
            let whole = born_there.filter(|entry| {
                granules.contains(&entry.identity.granule())
                    && matches!(entry.owner, Owner::Block { .. })
                    && !self.reports.log.may_be_damaged(entry.owner)
            });
            let tables = self.store.tables.read();
            // Nothing that was born there lives any more.
            let birthplace = tables.birthplace(seq)?;
            for entry in whole {
                let granule = entry.identity.granule();
                if found.len() >= most {
                    return Some(granule);
                }
                let is_here =
                    birthplace.run_of(granule).is_some_and(|now| now.is_in(run.dest, run.part_end()));
                if is_here && !birthplace.born.dead.overlaps(granule, entry.granules()) {
                    found.push(Relic { owner: entry.owner, addr: entry.identity });
                }
            }
        }
        None
    }

    /// Blocks of so many stored bytes were written anew.
    pub fn note_reborn(&self, bytes: u64) {
        self.store.counters.reborn_bytes.add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_born_again_when_nothing_else_helps_and_it_does() {
        let size = |run_index_bytes, dead_set_bytes| IndexSize {
            run_index_bytes,
            dead_set_bytes,
            is_packed: true,
            ..IndexSize::default()
        };
        assert_eq!(needed(size(900, 200), 1000), 17);
        assert_eq!(needed(size(900, 100), 1000), 0, "it keeps within its bound");
        assert_eq!(needed(IndexSize { is_packed: false, ..size(900, 200) }, 1000), 0, "it can be packed");
        assert_eq!(needed(size(500, 5000), 1000), 0, "it is not runs that take it");
        assert_eq!(needed(size(506, 5000), 1000), 1, "nor most of it");
        assert_eq!((needed(size(1, 0), 0), needed(size(0, 5000), 0)), (1, 0));
    }
}
