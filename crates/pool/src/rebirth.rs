//! Blocks that should be born again, so that the run index forgets where they moved.
//!
//! The index tells of each run of survivors, and what nobody changes survives for ever: a few old blocks of every zone that ever was
//! filled are enough to make it as large as one likes. Packing it and moving in larger parts makes it smaller, but bounds nothing. So when
//! all that is not enough, the oldest of those blocks are written anew by whoever owns them, as if they had been overwritten with what they
//! hold. Then they lie where they were born, and there is nothing to tell. It costs what moving them costs, and the pointers above.
//! (Pointers could not be changed where several trees share a block; here one does.)
//!
//! The oldest first: they have shown that they do not go by themselves. Metadata is left alone. It changes with what is beneath, and is a
//! hundredth of what lives.

use crate::addr::Addr;
use crate::block_ptr::Normal;
use crate::directory::Owner;
use crate::error::PoolError;
use crate::pool::Pool;
use crate::prepare::Made;
use crate::record::Run;
use crate::zones::IndexSize;
use std::sync::Arc;
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
    /// The next birthplace.
    from: ZoneSeq,
    /// Blocks that were named since the last group that could write them; with it the index gets smaller, and not before.
    named: u64,
    group: Txg,
    /// Nothing was found since the first birthplace. Where all of them had nothing it is not looked before this group.
    found_none: bool,
    rests_until: Txg,
}

/// As many are looked for at once, more or less, and so many birthplaces are looked at.
const RELICS: usize = 256;
const BIRTHPLACES: usize = 1024;
/// Groups in which it rests when all birthplaces had nothing: where they are metadata's it would read the same parts again and again.
const REST_GROUPS: u64 = 64;
/// The part of the bound that runs may take in any case: where dead sets take all of it no rebirth would help.
const RUNS_PART: u64 = 2;
/// What a block born again gives back at the most, in bytes: a run that held no other.
const RUN_BYTES: u64 = 24;

/// How many blocks must be born again, at least, where all may take so many bytes.
fn needed(size: IndexSize, most: u64) -> u64 {
    let above = size.bytes().saturating_sub(most).min(size.run_index_bytes.saturating_sub(most / RUNS_PART));
    if size.is_packed { above.div_ceil(RUN_BYTES) } else { 0 }
}

impl Pool {
    /// Blocks that should be born again now: those of the next birthplaces, and after the last one of the first. None while the run index
    /// keeps within its bound or what was named is not written yet, nor where nothing but metadata was found. Reads directory parts.
    pub fn relics(&self, cursor: &mut RebirthCursor) -> Vec<Relic> {
        let mut found = Vec::new();
        let synced = self.txg.synced();
        if synced >= cursor.group {
            cursor.named = 0;
        }
        let size = || self.tables.read().index_size();
        if synced < cursor.rests_until || needed(size(), self.index_bytes_max()) <= cursor.named {
            return found;
        }
        if cursor.from == ZoneSeq(0) {
            cursor.found_none = true;
        }
        for _ in 0..BIRTHPLACES {
            if found.len() >= RELICS {
                break;
            }
            let next = self.tables.read().next_gone(cursor.from);
            let Some((seq, runs)) = next else {
                cursor.from = ZoneSeq(0);
                if cursor.found_none && found.is_empty() {
                    cursor.rests_until = Txg(synced.0 + REST_GROUPS);
                }
                break;
            };
            cursor.from = ZoneSeq(seq.0 + 1);
            self.relics_of(seq, &runs, &mut found);
        }
        cursor.found_none &= found.is_empty();
        cursor.named += found.len() as u64;
        cursor.group = self.txg.open();
        found
    }

    /// What lives of the blocks that were born in a zone.
    fn relics_of(&self, seq: ZoneSeq, runs: &[Run], found: &mut Vec<Relic>) {
        for run in runs {
            let Some(held) = self.hold(run.dest) else { continue };
            // What cannot be read stays where it is.
            let Ok(part) = self.part(&held, run.part_end()) else { continue };
            let tables = self.tables.read();
            let Some(birthplace) = tables.birthplace(seq) else { return };
            let granules = run.first..=run.last;
            let born_there = part.entries.iter().filter(|entry| entry.identity.seq() == seq);
            let in_run = born_there.filter(|entry| granules.contains(&entry.identity.granule()));
            let lives = in_run.filter(|entry| {
                let granule = entry.identity.granule();
                let is_here =
                    birthplace.run_of(granule).is_some_and(|now| now.is_in(run.dest, run.part_end()));
                is_here && !birthplace.born.dead.overlaps(granule, entry.granules())
            });
            let data = lives.filter(|entry| {
                entry.siblings.is_empty() && matches!(entry.owner, Owner::Block { level: 0, .. })
            });
            found.extend(data.map(|entry| Relic { owner: entry.owner, addr: entry.identity }));
        }
    }

    /// The content of a block of data, and what it is stored as, for who writes it anew. Past the block cache: nobody asked for it.
    pub fn read_whole(&self, normal: &Normal, owner: Owner) -> Result<(Arc<Vec<u8>>, Made), PoolError> {
        let stored = self.read_verified(normal, owner)?;
        let mut content = Vec::new();
        self.unpack(normal, owner, &stored, &mut content)?;
        let content = Arc::new(content);
        Ok((content, Made::as_it_was(normal.compression, stored.to_vec())))
    }

    /// Blocks of so many stored bytes were written anew.
    pub fn note_reborn(&self, bytes: u64) {
        self.counters.reborn_bytes.add(bytes);
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
        assert_eq!(needed(size(900, 200), 1000), 5);
        assert_eq!(needed(size(900, 100), 1000), 0, "it keeps within its bound");
        assert_eq!(needed(IndexSize { is_packed: false, ..size(900, 200) }, 1000), 0, "it can be packed");
        assert_eq!(needed(size(500, 5000), 1000), 0, "it is not runs that take it");
        assert_eq!(needed(size(524, 5000), 1000), 1, "nor most of it");
        assert_eq!((needed(size(1, 0), 0), needed(size(0, 5000), 0)), (1, 0));
    }
}
