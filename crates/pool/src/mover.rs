//! Moves of a txg: copies that are damaged or share a zone, and live blocks of zones that must become empty.
//!
//! All are appended under their old addresses, after the blocks that objects have written. The txg's own
//! record lists them.
//!
//! Invariant: GC does not run in a txg that heals. Healed blocks have new runs that the tables do not include
//! yet. So the check for blocks between two survivors would be wrong.

use crate::pool::TxgSync;
use std::collections::BTreeSet;
use terrane_format::addr::{Addr, GRANULE, granule_bytes};
use terrane_format::record::{Move, Run};
use terrane_space::policy::Age;
use terrane_store::PoolError;
use terrane_store::append::Stored;

/// The part of a sync that moves blocks.
pub(crate) struct Mover<'g, 'a> {
    /// The txg, of which everything else is written.
    pub txg_sync: &'g mut TxgSync<'a>,
    /// Copies that were appended again.
    pub healed: BTreeSet<Addr>,
}

impl<'g, 'a> Mover<'g, 'a> {
    /// Nothing has moved yet.
    pub fn new(txg_sync: &'g mut TxgSync<'a>) -> Self {
        Mover { txg_sync, healed: BTreeSet::new() }
    }

    /// Makes all moves of the txg. An error fails the txg.
    pub fn run(mut self) -> Result<(), PoolError> {
        self.check_suspects();
        self.separate_copies();
        self.heal()?;
        self.txg_sync.pool.admission.publish_in_sync(self.txg_sync.st);
        self.collect()?;
        self.evacuate()
    }
}

impl Mover<'_, '_> {
    /// Replaces damaged copies by good ones, under the old address at a new place.
    fn heal(&mut self) -> Result<(), PoolError> {
        let heals = self.txg_sync.pool.reader.take_heals();
        let mut split_now = BTreeSet::new();
        for heal in heals {
            // Healing has no reservation. If zones are short, it waits for a txg with more.
            let is_short =
                self.txg_sync.st.alloc.empty_count() < self.txg_sync.pool.admission.sizes().min_empty_zones();
            if is_short
                && (heal.is_damaged
                    || self.txg_sync.pool.admission.separation_budget(self.txg_sync.st)
                        < heal.bytes.len() as u64)
            {
                self.postpone_move(heal);
                continue;
            }
            let granules = (granule_bytes(heal.bytes.len() as u64) / GRANULE) as u32;
            let split = {
                let tables = self.txg_sync.pool.store.tables.read();
                let Some(birth) = tables.birthplace(heal.addr.seq()) else { continue };
                let dead = birth.born.dead.overlaps(heal.addr.granule(), granules)
                    || tables.current_zone(heal.addr).is_none();
                if dead || !self.healed.insert(heal.addr) {
                    continue;
                }
                birth.run_of(heal.addr.granule()).copied()
            };
            if let Some(run) = split {
                // Both splits would start from the old run, and their sides would contradict each other. So
                // the second one waits for the next txg.
                if !split_now.insert((heal.addr.seq(), run.first)) {
                    self.healed.remove(&heal.addr);
                    self.txg_sync.pool.reader.requeue_heal(heal);
                    self.txg_sync.pool.admission.want_another_txg();
                    continue;
                }
                match self.split_run(heal.addr, run) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.healed.remove(&heal.addr);
                        continue;
                    }
                    Err(error) => {
                        log::error!("{}: healing failed: {error}", heal.addr);
                        continue;
                    }
                }
            }
            let near = self.current_zones(&heal.other_copies);
            let slot = self.slot_avoiding(&near, Age::Young);
            let crc = crc32c::crc32c(&heal.bytes);
            let block = Stored {
                bytes: &heal.bytes,
                identity: Some(heal.addr),
                birth: heal.birth,
                owner: heal.owner,
                other_copies: &heal.other_copies,
                // A separated copy that shares a zone again is left to GC.
                near: if heal.is_damaged { &near } else { &[] },
                crc,
                shares_run: false,
            };
            self.txg_sync.append_moved(slot, block)?;
            if heal.is_damaged {
                self.txg_sync.pool.store.counters.healed_blocks.add(1);
                log::info!("{}: healed from another copy", heal.addr);
            }
        }
        Ok(())
    }

    /// Takes one block out of a run: the blocks on both sides become two runs. False: the block did not move
    /// with the run.
    ///
    /// A run also covers blocks between its own that were already dead. For a reclaimed birth zone, the dead
    /// set holds only later frees. So only the directory part of the run says which blocks lived.
    fn split_run(&mut self, out: Addr, run: Run) -> Result<bool, PoolError> {
        let Some(pinned) = self.txg_sync.pool.store.pin(run.dest) else { return Ok(false) };
        let part = self.txg_sync.pool.store.part(&pinned, run.part_end())?;
        if part.find(out).is_none() {
            return Ok(false);
        }
        let tables = self.txg_sync.pool.store.tables.read();
        let Some(birth) = tables.birthplace(out.seq()) else { return Ok(false) };
        let mut sides: [Option<Run>; 2] = [None; 2];
        for entry in
            part.entries.iter().filter(|entry| entry.identity.seq() == out.seq() && entry.identity != out)
        {
            let granule = entry.identity.granule();
            if granule < run.first
                || granule > run.last
                || birth.born.dead.overlaps(granule, entry.granules())
            {
                continue;
            }
            match &mut sides[usize::from(granule > out.granule())] {
                Some(side) => side.add_block(granule, entry.granules()),
                side => *side = Some(Run::of(granule, entry.granules(), run.dest, run.part_end())),
            }
        }
        // An empty side is dropped. The old run is replaced when the block's own new run is inserted.
        self.txg_sync
            .commit
            .split_runs
            .extend(sides.into_iter().flatten().map(|run| Move { birth: out.seq(), run }));
        Ok(true)
    }
}
