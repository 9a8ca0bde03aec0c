//! What a group moves: copies that are damaged or lie where another is, and what lives in zones that are to be empty.
//!
//! All of it is appended under the address it was born with, after what objects have written, and is told by the group's own record.
//!
//! Invariant: a group that heals does not collect. Healed blocks have new runs that the tables do not show yet, so nothing may be judged
//! to lie between two survivors.

use crate::pool::Group;
use std::collections::BTreeSet;
use terrane_format::addr::{Addr, GRANULE, granule_bytes};
use terrane_format::record::{Move, Run};
use terrane_space::policy::Age;
use terrane_store::PoolError;
use terrane_store::append::Stored;

/// The part of a group's sync that moves blocks.
pub(crate) struct Mover<'g, 'a> {
    pub group: &'g mut Group<'a>,
    /// Copies that were appended again.
    pub healed: BTreeSet<Addr>,
}

impl<'g, 'a> Mover<'g, 'a> {
    pub fn new(group: &'g mut Group<'a>) -> Self {
        Mover { group, healed: BTreeSet::new() }
    }

    pub fn run(mut self) -> Result<(), PoolError> {
        self.look_at_suspects();
        self.part_copies();
        self.heal()?;
        self.group.pool.admission.publish_in_sync(self.group.st);
        self.collect()?;
        self.evacuate()
    }
}

impl Mover<'_, '_> {
    /// Replaces damaged copies by good ones: the old address, a new place.
    fn heal(&mut self) -> Result<(), PoolError> {
        let heals = self.group.pool.reader.take_heals();
        let mut split_now = BTreeSet::new();
        for heal in heals {
            // Healing reserved nothing: when zones are short it waits for a group that finds more.
            let is_short = self.group.st.alloc.empty_count() < self.group.pool.admission.sizes().low_water();
            if is_short
                && (heal.is_damaged
                    || self.group.pool.admission.room_to_part(self.group.st) < heal.bytes.len() as u64)
            {
                self.wait_for_zones(heal);
                continue;
            }
            let granules = (granule_bytes(heal.bytes.len() as u64) / GRANULE) as u32;
            let split = {
                let tables = self.group.pool.store.tables.read();
                let Some(birth) = tables.birthplace(heal.addr.seq()) else { continue };
                let dead = birth.born.dead.overlaps(heal.addr.granule(), granules)
                    || tables.current_zone(heal.addr).is_none();
                if dead || !self.healed.insert(heal.addr) {
                    continue;
                }
                birth.run_of(heal.addr.granule()).copied()
            };
            if let Some(run) = split {
                // A second split of the same run would be made from the first one's ruins: it waits for the next group.
                if !split_now.insert((heal.addr.seq(), run.first)) {
                    self.healed.remove(&heal.addr);
                    self.group.pool.reader.heal_later(heal);
                    self.group.pool.admission.want_another_group();
                    continue;
                }
                match self.split_run(heal.addr, run) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.healed.remove(&heal.addr);
                        continue;
                    }
                    Err(error) => {
                        log::error!("{}: {error}; it is not healed", heal.addr);
                        continue;
                    }
                }
            }
            let near = self.zones_now(&heal.siblings);
            let slot = self.slot_apart_from(&near, Age::Young);
            let crc = crc32c::crc32c(&heal.bytes);
            let block = Stored {
                bytes: &heal.bytes,
                identity: Some(heal.addr),
                birth: heal.birth,
                owner: heal.owner,
                siblings: heal.siblings.clone(),
                // Who shared a zone and does again is left to collection.
                near: if heal.is_damaged { near } else { Vec::new() },
                crc,
                joins: false,
            };
            self.group.append_moved(slot, block)?;
            if heal.is_damaged {
                self.group.pool.store.counters.healed_blocks.add(1);
                log::info!("{}: healed from another copy", heal.addr);
            }
        }
        Ok(())
    }

    /// Takes one block out of a run: what stays on both sides becomes two runs. `false`: it did not move with the run. A run covers what
    /// was dead between its blocks as well, and of a birth zone that is gone the dead set holds only what was freed since: only the part
    /// that the run lies in says what lived.
    fn split_run(&mut self, out: Addr, run: Run) -> Result<bool, PoolError> {
        let Some(held) = self.group.pool.store.hold(run.dest) else { return Ok(false) };
        let part = self.group.pool.store.part(&held, run.part_end())?;
        if part.find(out).is_none() {
            return Ok(false);
        }
        let tables = self.group.pool.store.tables.read();
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
                Some(side) => side.take(granule, entry.granules()),
                side => *side = Some(Run::of(granule, entry.granules(), run.dest, run.part_end())),
            }
        }
        // An empty side is dropped; the old run goes when the block's own new run is inserted over its place.
        self.group
            .commit
            .split_runs
            .extend(sides.into_iter().flatten().map(|run| Move { birth: out.seq(), run }));
        Ok(true)
    }
}
