//! The smallest collector that makes `ENOSPC` honest.
//!
//! When empty zones fall under the reserve, the zone with the least live bytes is read, what lives in it is verified and appended
//! elsewhere under its old address, and the zone is empty when the group commits. One victim after the other, in the group's
//! own sync; policy, streams by age and background work come later.
//!
//! Order: copy, directory part, flush, commit of the runs, and only groups later the reset. A crash anywhere is harmless.
//!
//! Invariant: nothing is copied that does not match the CRC its directory holds: damage is never laundered.

use crate::addr::{Addr, granule_bytes};
use crate::append::Stored;
use crate::directory::{Entry, Owner, POOL_DEAD_LOG, POOL_RECORD, POOL_SECTION};
use crate::error::PoolError;
use crate::group::Group;
use crate::read::Held;
use crate::zones::Phase;
use terrane_wire::ZoneSeq;

/// Victims of one group at the most.
const VICTIMS_MAX: usize = 8;

impl Group<'_> {
    /// Makes room until enough zones are empty or about to be.
    pub(crate) fn collect(&mut self) -> Result<(), PoolError> {
        // Healed blocks have new runs that the tables do not show yet, so nothing may be judged to lie between two survivors.
        if !self.healed.is_empty() {
            self.pool.want_another_group();
            return Ok(());
        }
        let low_water = self.pool.low_water();
        let mut emptied = self.waiting_zones();
        let mut done: Vec<ZoneSeq> = Vec::new();
        while self.st.alloc.empty_count() + emptied < low_water && done.len() < VICTIMS_MAX {
            let Some((victim, live)) = self.victim(&done) else { break };
            // The copies must fit what is empty now, with a zone to spare for the commit.
            if live > 0 && self.st.alloc.empty_count() < 2 {
                break;
            }
            done.push(victim);
            if self.evacuate(victim)? {
                emptied += 1;
            }
        }
        if done.is_empty() && self.st.alloc.empty_count() + emptied < low_water {
            self.close_wasteful_zones()?;
        }
        Ok(())
    }

    fn waiting_zones(&self) -> usize {
        let tables = self.pool.tables.read();
        tables.zones.values().filter(|zone| matches!(zone.phase, Phase::Emptied(_))).count()
    }

    /// The full zone with the fewest live bytes that is worth it, with those bytes.
    fn victim(&self, done: &[ZoneSeq]) -> Option<(ZoneSeq, u64)> {
        let tables = self.pool.tables.read();
        let born_now = &self.st.streams.group.written;
        let candidates = tables.zones.iter().filter(|(seq, zone)| {
            zone.phase == Phase::Full
                && !done.contains(seq)
                && !born_now.contains_key(*seq)
                && zone.capacity - zone.live >= zone.capacity / 32
        });
        let (seq, zone) = candidates
            .min_by_key(|(_, zone)| u128::from(zone.live) * 1_000_000 / u128::from(zone.capacity.max(1)))?;
        Some((*seq, zone.live))
    }

    /// When only open zones hold garbage, they must be closed to become victims.
    fn close_wasteful_zones(&mut self) -> Result<(), PoolError> {
        for stream in 0..self.st.streams.count() {
            let wasteful = self.st.streams.zone_of(stream).is_some_and(|seq| {
                let tables = self.pool.tables.read();
                tables
                    .zones
                    .get(&seq)
                    .is_some_and(|zone| zone.claimed > zone.capacity / 4 && zone.live < zone.claimed / 2)
            });
            if wasteful {
                self.st.streams.fill(stream, self.txg)?;
            }
        }
        Ok(())
    }

    /// Moves everything that lives in a zone. False: something had to stay.
    fn evacuate(&mut self, victim: ZoneSeq) -> Result<bool, PoolError> {
        let Some(held) = self.pool.hold(victim) else { return Ok(false) };
        let claimed = self.pool.tables.read().zones.get(&victim).map_or(0, |zone| zone.claimed);
        let parts = match self.pool.parts_of(&held, claimed) {
            Ok(parts) => parts,
            Err(error) => {
                log::error!("zone {victim} cannot be collected: {error}");
                self.suspect.push(victim);
                return Ok(false);
            }
        };
        let mut whole = true;
        // The survivor before, if the next one may share its run: nothing that stays here may lie between them, or its death would be
        // counted against the run.
        let mut last: Option<(Addr, usize)> = None;
        for part in &parts {
            for entry in &part.entries {
                if !self.lives_here(victim, part.end, entry) {
                    continue;
                }
                if matches!(entry.owner, Owner::Pool { what: POOL_RECORD | POOL_SECTION | POOL_DEAD_LOG }) {
                    // Named by place, so it cannot move: rewriting the sections frees it.
                    self.force_sections = true;
                    last = None;
                    continue;
                }
                let Some(bytes) = self.good_bytes(&held, entry) else {
                    whole = false;
                    last = None;
                    continue;
                };
                let stream = self.stream_apart_from(&entry.siblings);
                // A survivor between the two that went to another stream would be covered by a run that does not hold it.
                let joins = last
                    .is_some_and(|(last, to)| to == stream && self.may_join(victim, last, entry.identity));
                last = Some((entry.identity, stream));
                let block = Stored {
                    bytes: &bytes,
                    identity: Some(entry.identity),
                    birth: entry.birth,
                    owner: entry.owner,
                    siblings: entry.siblings.clone(),
                    crc: entry.crc,
                    joins,
                };
                self.append_moved(stream, block)?;
                self.pool.counters.collected_bytes.add(u64::from(entry.psize));
            }
        }
        self.pool.counters.collected_zones.add(1);
        log::debug!(txg = self.txg.0, zone = victim.0, home:% = held.home; "collected");
        if !whole {
            self.suspect.push(victim);
        }
        Ok(whole)
    }

    /// Whether the entry's block is alive, by committed groups, and this is where it is.
    fn lives_here(&self, zone: ZoneSeq, part_end: u64, entry: &Entry) -> bool {
        let tables = self.pool.tables.read();
        let Some(birth) = tables.zones.get(&entry.identity.seq()) else { return false };
        let granule = entry.identity.granule();
        if birth.dead.overlaps(granule, entry.granules()) {
            return false;
        }
        !self.moved_now.contains_key(&entry.identity)
            && match birth.run_of(granule) {
                Some(run) => run.dest == zone && run.part_end == part_end,
                None => entry.identity.seq() == zone,
            }
    }

    /// Nothing born between two blocks of one birth zone lives outside the victim.
    fn may_join(&self, victim: ZoneSeq, last: Addr, next: Addr) -> bool {
        if last.seq() != next.seq() || last >= next {
            return false;
        }
        let tables = self.pool.tables.read();
        let Some(birth) = tables.zones.get(&next.seq()) else { return false };
        let index = |granule: u32| birth.runs.partition_point(|run| run.last < granule);
        match (birth.run_of(last.granule()), birth.run_of(next.granule())) {
            // Both born in the victim, and no run lies between them.
            (None, None) => next.seq() == victim && index(last.granule()) == index(next.granule()),
            (Some(a), Some(b)) if a == b => true,
            // In neighbouring runs of a zone that is gone there is nothing else between them.
            (Some(a), Some(b)) => {
                birth.phase == Phase::Gone
                    && a.dest == victim
                    && b.dest == victim
                    && index(next.granule()) == index(last.granule()) + 1
            }
            _ => false,
        }
    }

    /// The block's bytes as its directory's CRC wants them; from another copy if need be.
    fn good_bytes(&self, held: &Held, entry: &Entry) -> Option<Vec<u8>> {
        let mut bytes = vec![0; entry.psize as usize];
        let read = self.pool.read_zone(held, entry.offset, &mut bytes);
        if read.is_ok() && crc32c::crc32c(&bytes) == entry.crc {
            return Some(bytes);
        }
        self.pool.counters.checksum_errors.add(1);
        log::error!("{} granule {}: a block does not match its directory", held.home, entry.offset / 16);
        for sibling in &entry.siblings {
            let Ok((held, offset)) = self.pool.locate(*sibling, entry.psize) else { continue };
            let read = self.pool.read_zone(&held, offset, &mut bytes);
            if read.is_ok() && crc32c::crc32c(&bytes) == entry.crc {
                self.pool.counters.healed_blocks.add(1);
                log::info!("{}: healed from another copy", entry.identity);
                return Some(bytes);
            }
        }
        None
    }
}

/// Bytes of a zone that blocks can be counted on to fill: without header, the tail no block fits, and directory parts.
pub(crate) fn zone_yield(capacity: u64, unit: u64, largest_block: u64) -> u64 {
    capacity.saturating_sub(granule_bytes(largest_block.min(capacity / 4)) + 3 * unit + capacity / 64)
}
