//! Garbage collection: moves the live blocks out of a zone, so that the zone can be reset.
//!
//! The directory of a victim lists what was written to it. Blocks that are live by the committed tables are
//! read and verified against the directory's CRC. They are appended elsewhere under their old addresses. Txgs
//! later, when no rollback could need the zone, it is reset.
//!
//! GC runs inside the sync, so no change can race with it: frees of a txg are applied after its moves. It
//! runs *in pieces*, so it delays no txg for long. The runs of a piece commit with its txg, and the next
//! piece continues behind them. A piece consists of whole directory parts, because a run lies in one part and
//! moves whole. The size of a piece follows what users wrote in the txg.
//!
//! Order: copy, directory part, flush, commit of the runs, and txgs later the reset. A crash between any two
//! steps is harmless.
//!
//! Invariant: a block is copied only if it matches the CRC in its directory, so GC never gives damaged bytes
//! a valid checksum.

use crate::mover::Mover;
use std::collections::VecDeque;
use std::sync::Arc;
use terrane_device::AlignedBuf;
use terrane_format::addr::{Addr, granule_bytes};
use terrane_format::directory::{Entry, Owner, POOL_DEAD_LOG, POOL_RECORD, POOL_SECTION};
use terrane_format::rows::Phase;
use terrane_space::account::Yield;
use terrane_space::policy::{VictimPolicy, ZoneSupply};
use terrane_space::zones::{Birthplaces, Zone};
use terrane_store::PoolError;
use terrane_store::append::Stored;
use terrane_store::pinned_zone::PinnedZone;
use terrane_store::workers::Pending;
use terrane_txg::admission::space::LAST_COMMIT_BYTES;
use terrane_txg::collector::{Progress, VICTIMS_MAX, VictimCost, VictimState};
use terrane_wire::{Txg, ZoneSeq};

mod evacuate;
mod far;
mod index_memory;
mod nearly_empty;
mod request;
mod suspects;
mod unread;
/// Maximum bytes of one read of a victim, and the maximum gap between survivors that share it. No drive seeks
/// faster than it reads such a gap.
const EXTENT_BYTES: u64 = 2 << 20;
const EXTENT_GAP: u64 = 128 << 10;
/// Bytes that a txg gains before it looks again, when it goes on because operations wait for space.
const STEP_BYTES: u64 = 256 << 10;
/// Reads of a victim that are in flight while earlier ones are appended.
const EXTENTS_IN_FLIGHT: usize = 3;
/// Unreadable blocks of a victim in one txg before the victim is postponed. A device may take half a minute
/// for each.
const UNREAD_BLOCKS_MAX: u32 = 8;

/// Survivors that are read at once.
struct Extent {
    from: u64,
    to: u64,
    entries: Vec<Survivor>,
}

/// A directory entry of a victim whose block is live.
struct Survivor {
    part: usize,
    /// Its index in the part.
    index: usize,
    /// No block that stays here, or lives elsewhere, was born between the previous survivor and this one. So
    /// both may share a run.
    may_share_run: bool,
    /// Last write of the birth zone. All blocks that were born in one zone have one age, so that a run stays
    /// together.
    last_write: Txg,
}

/// Bytes of an extent, and the offset at which they begin, if the device could read them.
type ReadBack = (AlignedBuf, Option<u64>);

/// Reads of a victim that are in flight. They hold the device, so they end before this does.
#[derive(Default)]
struct Reads(VecDeque<(Extent, Pending<ReadBack>)>);

impl Drop for Reads {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(_, read)| drop(read.wait()));
    }
}

impl Mover<'_, '_> {
    /// Reclaims as much space as users took, if free space is short, and nothing if there is enough.
    pub(crate) fn collect(&mut self) -> Result<(), PoolError> {
        self.wake_zones();
        self.close_left_zones()?;
        // Healed blocks have new runs that the tables do not include yet. So the check for blocks between two
        // survivors would be wrong.
        if !self.healed.is_empty() {
            self.txg_sync.pool.admission.want_another_txg();
            return Ok(());
        }
        self.apply_memory_limit();
        let needed = self.wanted_gain();
        let wanted = self.requested_gain(needed);
        if wanted == 0 {
            self.txg_sync.st.collector.is_stuck = false;
            self.note_collection(0, 0, 0);
            self.read_ahead_of_need();
            return self.collect_nearly_empty();
        }
        self.check_index_memory();
        let mut goal = wanted;
        self.txg_sync.st.collector.policy = self.txg_sync.pool.collection().victims;
        let mut piece = self.txg_sync.st.collector.copying.piece_bytes();
        let mut victims = 0;
        let began_ns = self.txg_sync.pool.env.monotonic_ns();
        let (mut moved_bytes, mut is_held_back) = (0, false);
        while piece > 0 {
            if goal == 0 {
                // Operations that joined with the gained space may wait again. Txgs that end too soon rewrite
                // the same metadata again and again.
                let (waiting, bytes) = self.txg_sync.pool.admission.space_waiters();
                if waiting == 0 || !self.txg_sync.pool.threaded() {
                    break;
                }
                goal = bytes.max(STEP_BYTES);
            }
            if self.must_reset_first() || self.is_record_full() {
                is_held_back = true;
                self.txg_sync.pool.admission.want_another_txg();
                break;
            }
            let Some(mut progress) = self.take_progress(false)? else { break };
            let VictimCost { live, garbage, .. } = progress.cost;
            let mut budget = (u128::from(goal) * u128::from(live) / u128::from(garbage.max(1)) + 1)
                .min(u128::from(piece)) as u64;
            // From now on an operation may join only if its reservation fits beside the rest of this victim.
            // Earlier reservations are subtracted from `free_bytes`.
            self.txg_sync.st.collector.victim = VictimState::Moving(progress.cost);
            let account = self.txg_sync.pool.admission.publish_in_sync(self.txg_sync.st);
            let free_bytes =
                account.physical_free().saturating_sub(self.txg_sync.pool.admission.reserved_open());
            // The copies must fit, and the commit after them. A piece ends with the part in which its budget
            // is used up.
            let piece_max = budget.saturating_add(progress.part_bytes_max());
            let needs = piece_max.min(progress.cost.remaining()) + account.sizes.commit_bytes();
            if free_bytes < needs && needs <= account.physical_free() {
                // The next txg turns reservations into written bytes, and emptied zones into free space.
                self.txg_sync.st.collector.victim = VictimState::Paused(progress);
                is_held_back = true;
                self.txg_sync.pool.admission.want_another_txg();
                break;
            }
            if free_bytes < needs {
                // With little free space, only a victim that can be emptied at once helps, and the cheapest
                // is best.
                progress = match self.choose_fitting_victim(progress, free_bytes)? {
                    Some(progress) => progress,
                    None => break,
                };
                self.txg_sync.st.collector.victim = VictimState::Moving(progress.cost);
                budget = u64::MAX;
            }
            let before = progress.cost.gain();
            let (moved, fits) = self.move_piece(&mut progress, budget)?;
            victims += usize::from(fits || moved > 0);
            moved_bytes += moved;
            piece = piece.saturating_sub(moved.max(1));
            let is_finished = progress.next_part >= progress.parts.len();
            let gain = if is_finished { progress.cost.garbage } else { progress.cost.gain() };
            goal = goal.saturating_sub(gain.saturating_sub(before).max(1));
            if is_finished {
                self.end_victim(&progress);
            } else {
                self.txg_sync.st.collector.victim = VictimState::Paused(progress);
            }
            self.txg_sync.st.collector.victim.stop_moving();
            if !fits || victims == VICTIMS_MAX {
                break;
            }
        }
        self.txg_sync.st.collector.victim.stop_moving();
        let ns = self.txg_sync.pool.env.monotonic_ns().saturating_sub(began_ns).max(1);
        self.txg_sync.st.collector.copying.note(moved_bytes, ns);
        let zones_may_come =
            self.txg_sync.pool.admission.waiting_zones() > 0 || self.txg_sync.pool.warming.is_reading();
        let moves_on = victims > 0 || is_held_back || zones_may_come;
        self.txg_sync.st.collector.is_stuck = !moves_on && needed > 0 && !self.txg_sync.released;
        if !moves_on {
            self.close_wasteful_zones()?;
        }
        self.note_collection(needed, wanted, moved_bytes);
        Ok(())
    }

    /// Bytes that this txg should gain.
    fn wanted_gain(&self) -> u64 {
        self.gain_wanted_for(0)
    }

    /// Bytes that this txg should gain if writers wanted `more` bytes beside what they take.
    fn gain_wanted_for(&self, more: u64) -> u64 {
        let (pool, st) = (self.txg_sync.pool, &*self.txg_sync.st);
        let demand = pool.admission.space_waiters().1 + st.collector.evacuation.needs + more;
        pool.admission.account(st).collection_goal(
            pool.admission.space_snapshot().limits.zones,
            demand,
            st.streams.taken_bytes(),
        )
    }

    /// Whether emptied zones must be reset before another victim is begun.
    fn must_reset_first(&self) -> bool {
        let (pool, waited) = (self.txg_sync.pool, self.txg_sync.pool.admission.space_waiters().1);
        pool.admission
            .account(self.txg_sync.st)
            .reset_comes_first(pool.admission.space_snapshot().limits.zones, waited)
    }

    /// Chooses a victim when free space is almost gone: the current one if the rest of it fits, else the one
    /// with the least live bytes.
    fn choose_fitting_victim(
        &mut self,
        progress: Progress,
        free_bytes: u64,
    ) -> Result<Option<Progress>, PoolError> {
        let (pool, frees) = (self.txg_sync.pool, self.txg_sync.commit.frees.len());
        let fits = |progress: &Progress| {
            progress.cost.remaining() + pool.admission.last_commit_bytes(progress, frees) <= free_bytes
        };
        if fits(&progress) {
            return Ok(Some(progress));
        }
        let collector = &mut self.txg_sync.st.collector;
        collector.update_zone(
            &self.txg_sync.pool.store.tables.read(),
            progress.victim,
            self.txg_sync.pool.admission.zone_yield(),
        );
        let policy = std::mem::replace(&mut collector.policy, VictimPolicy::Greedy);
        let least = self.take_progress(true);
        self.txg_sync.st.collector.policy = policy;
        let Some(least) = least? else { return Ok(None) };
        if !fits(&least) {
            self.txg_sync.st.collector.update_zone(
                &self.txg_sync.pool.store.tables.read(),
                least.victim,
                self.txg_sync.pool.admission.zone_yield(),
            );
            return Ok(None);
        }
        Ok(Some(least))
    }

    /// The current victim, or a new one, with `by_score` the best one.
    fn take_progress(&mut self, by_score: bool) -> Result<Option<Progress>, PoolError> {
        if let Some(progress) = self.txg_sync.st.collector.victim.take_paused() {
            // All its blocks may have died meanwhile.
            if self
                .txg_sync
                .pool
                .store
                .tables
                .read()
                .zones
                .get(&progress.victim)
                .is_some_and(|zone| zone.phase == Phase::Full)
            {
                return Ok(Some(progress));
            }
        }
        let zone_yield = self.txg_sync.pool.admission.zone_yield();
        loop {
            let collector = &mut self.txg_sync.st.collector;
            let now = collector.ages.clock.now();
            collector.candidates.sample(now);
            let Some(victim) = self.choose_victim(now, by_score) else { return Ok(None) };
            let collector = &mut self.txg_sync.st.collector;
            collector.candidates.remove(victim);
            collector.ages.end_zone(victim);
            let begun = self.begin_victim(victim, Some(zone_yield))?;
            self.txg_sync.pool.warming.forget(victim);
            if let Some(progress) = begun {
                return Ok(Some(progress));
            }
        }
    }

    /// Begins a victim. With `zone_yield` `None` it is an evacuation, for unwritable zones and leaving devices,
    /// from which no space is expected. Returns `None` if the zone is unfit for that purpose.
    fn begin_victim(
        &mut self,
        victim: ZoneSeq,
        zone_yield: Option<Yield>,
    ) -> Result<Option<Progress>, PoolError> {
        let Some(pinned) = self.txg_sync.pool.store.pin(victim) else { return Ok(None) };
        let for_space = zone_yield.is_some();
        if self.rests_with(victim, pinned.replicas.first().device) {
            return Ok(None);
        }
        let leaves = self.txg_sync.pool.store.devices.any_on_leaving(&pinned.replicas);
        if for_space
            && !leaves
            && let Some(home) = self.txg_sync.pool.store.devices.unwritable_of(&pinned.replicas)
        {
            self.note_unwritable(victim, home);
        }
        let gives_none = leaves || self.txg_sync.st.collector.unwritable.contains(&victim);
        if gives_none == for_space {
            return Ok(None);
        }
        let (claimed, live) = {
            let tables = self.txg_sync.pool.store.tables.read();
            tables.zones.get(&victim).map_or((0, 0), |zone| (zone.claimed, zone.live))
        };
        let garbage = zone_yield.map_or(0, |of_zone| of_zone.of(pinned.capacity).saturating_sub(live));
        match self.txg_sync.pool.store.parts_of(&pinned, claimed) {
            Ok(parts) => {
                let cost = VictimCost { live, garbage, moved: 0 };
                Ok(Some(Progress { victim, parts, next_part: 0, cost, all_moved: true, unread_blocks: 0 }))
            }
            Err(error) => {
                log::error!("GC of zone {victim} failed: {error}");
                self.mark_unmovable(victim, error.is_transient());
                Ok(None)
            }
        }
    }

    /// Closes open zones that hold most of the garbage, so that they can become victims.
    fn close_wasteful_zones(&mut self) -> Result<(), PoolError> {
        for slot in 0..self.txg_sync.st.streams.layout().slots() {
            if self.is_wasteful(slot) {
                self.txg_sync.st.streams.close_slot(slot, self.txg_sync.txg)?;
            }
        }
        Ok(())
    }

    fn is_wasteful(&self, slot: usize) -> bool {
        self.txg_sync.st.streams.zone_of(slot).is_some_and(|seq| {
            let tables = self.txg_sync.pool.store.tables.read();
            tables
                .zones
                .get(&seq)
                .is_some_and(|zone| zone.claimed > zone.capacity / 4 && zone.live < zone.claimed / 2)
        })
    }

    /// Closes the zones of extra slots whose files are probably whole, if most in them has died, or if they are nearly full and others
    /// may be opened. If the file system below lacks space, their unwritten ends take none.
    fn close_left_zones(&mut self) -> Result<(), PoolError> {
        let left = self.txg_sync.st.streams.left_slots();
        if left.is_empty() {
            return Ok(());
        }
        let supply = self.txg_sync.pool.admission.zone_supply(self.txg_sync.st);
        // The space left in such zones may be promised to operations.
        if supply.zones < ZoneSupply::Ample {
            return Ok(());
        }
        let lacks_host_space = self.txg_sync.pool.admission.account(self.txg_sync.st).lacks_host_space();
        for slot in left {
            if lacks_host_space
                || self.is_wasteful(slot)
                || self.txg_sync.st.streams.is_end_spared(slot, supply)
            {
                self.txg_sync.st.streams.close_slot(slot, self.txg_sync.txg)?;
            }
        }
        Ok(())
    }

    /// All parts of a victim were processed.
    fn end_victim(&mut self, progress: &Progress) {
        if progress.all_moved && progress.cost.moved > 0 {
            self.txg_sync.st.collector.was_read(&self.txg_sync.pool.admission, progress.victim);
        }
        let replicas = self.txg_sync.pool.store.tables.read().zones.get(&progress.victim).map(Zone::replicas);
        let died = replicas
            .is_some_and(|replicas| self.txg_sync.pool.store.devices.unwritable_of(&replicas).is_some());
        if progress.all_moved
            && !died
            && !self.txg_sync.st.collector.awaiting_sections.contains(progress.victim)
        {
            self.txg_sync.st.collector.finished.push((progress.victim, progress.cost.reset_bytes()));
            let counters = &self.txg_sync.pool.store.counters;
            counters.reclaimed_bytes.add(progress.cost.reset_bytes());
            counters.reclaim_moved_bytes.add(progress.cost.moved);
        }
        self.txg_sync.pool.store.counters.collected_zones.add(1);
        log::debug!(txg = self.txg_sync.txg.0, zone = progress.victim.0, bytes = progress.cost.moved; "collected");
        if !progress.all_moved {
            self.mark_unmovable(progress.victim, progress.unread_blocks > 0);
        }
    }

    /// Some live blocks of a zone cannot be moved. If a block could not be read, the zone is tried again
    /// later; otherwise it becomes suspect.
    fn mark_unmovable(&mut self, victim: ZoneSeq, unread: bool) {
        if unread {
            self.put_to_sleep(victim);
        } else {
            self.txg_sync.commit.suspect.push(victim);
        }
    }

    /// Moves live blocks of a victim, from the end of the last piece to the end of the part in which `budget`
    /// bytes have moved.
    ///
    /// Returns the bytes that moved, and whether all blocks found space. Fewer zones may take writes than
    /// were counted on. The space that the commit needs is left.
    fn move_piece(&mut self, progress: &mut Progress, budget: u64) -> Result<(u64, bool), PoolError> {
        let Some(pinned) = self.txg_sync.pool.store.pin(progress.victim) else {
            progress.next_part = progress.parts.len();
            return Ok((0, true));
        };
        let todo = self.extents(progress, budget);
        self.keep_commit_space(&todo, budget == u64::MAX);
        let outcome = self.move_extents(progress, &Arc::new(pinned), todo);
        self.txg_sync.st.streams.set_commit_floor(0);
        outcome
    }

    /// Makes copies leave the space that the commit needs. They also leave space for further commits, in case the piece ends early and
    /// frees nothing. Unless `are_last`, that space suffices for users to delete files.
    fn keep_commit_space(&mut self, todo: &VecDeque<Extent>, are_last: bool) {
        let (admission, commit) = (&self.txg_sync.pool.admission, &self.txg_sync.commit);
        // A block that stays for lack of space takes a run as well.
        let moved: usize = todo.iter().map(|extent| extent.entries.len()).sum();
        let runs = (commit.runs() + moved) as u64;
        let for_commit = admission.rest_of_commit_bytes(self.txg_sync.st, runs, commit.frees.len());
        let for_more = if are_last { LAST_COMMIT_BYTES } else { admission.sizes().commit_bytes() } / 2;
        self.txg_sync.st.streams.set_commit_floor(for_commit + for_more);
    }

    fn move_extents(
        &mut self,
        progress: &mut Progress,
        pinned: &Arc<PinnedZone>,
        mut todo: VecDeque<Extent>,
    ) -> Result<(u64, bool), PoolError> {
        let mut reading = Reads::default();
        let mut moved = 0;
        // Slot of the previous survivor, if the next one may share its run. No block that stays may lie
        // between them: its death would be counted against the run.
        let mut last: Option<usize> = None;
        let mut rest: Vec<(usize, usize)> = Vec::new();
        let in_flight = if self.reads_far() { far::EXTENTS_IN_FLIGHT } else { EXTENTS_IN_FLIGHT };
        'extents: loop {
            while reading.0.len() < in_flight
                && let Some(extent) = todo.pop_front()
            {
                let buf = self.txg_sync.st.collector.copying.spare.pop();
                let buf = buf.unwrap_or_else(|| AlignedBuf::with_capacity(EXTENT_BYTES as usize * 3 / 2));
                reading.0.push_back(self.start_read(pinned, extent, buf));
            }
            let Some((extent, read)) = reading.0.pop_front() else { break };
            let (buf, from) = read.wait()?;
            for (nth, survivor) in extent.entries.iter().enumerate() {
                let part = progress.parts[survivor.part].clone();
                let entry = &part.entries[survivor.index];
                let inside = from.and_then(|from| usize::try_from(entry.offset.checked_sub(from)?).ok());
                let bytes = inside.and_then(|at| buf.get(at..at.checked_add(entry.psize as usize)?));
                let good = bytes.filter(|bytes| crc32c::crc32c(bytes) == entry.crc);
                let other;
                let bytes = match good {
                    Some(bytes) => bytes,
                    None => match self.verified_bytes(pinned, entry) {
                        Ok(Some(bytes)) => {
                            other = bytes;
                            &other[..]
                        }
                        outcome => {
                            progress.all_moved = false;
                            progress.unread_blocks += u32::from(outcome.is_err());
                            if progress.unread_blocks > UNREAD_BLOCKS_MAX {
                                rest.extend(unmoved(nth, &extent, &reading.0, &todo));
                                break 'extents;
                            }
                            self.keep_in_place(entry.identity, entry.granules());
                            last = None;
                            continue;
                        }
                    },
                };
                let collector = &self.txg_sync.st.collector;
                let age = collector.ages.age(survivor.last_write);
                let near = self.current_zones(&entry.other_copies);
                let slot = self.slot_avoiding(&near, age);
                // If a survivor between the two went to another slot, the run would cover a block that it
                // does not hold.
                let shares_run = survivor.may_share_run && last == Some(slot);
                let block = Stored {
                    bytes,
                    identity: Some(entry.identity),
                    birth: entry.birth,
                    owner: entry.owner,
                    other_copies: &entry.other_copies,
                    near: &near,
                    crc: entry.crc,
                    shares_run,
                };
                last = match self.txg_sync.append_moved(slot, block) {
                    Ok(to) => Some(to),
                    Err(PoolError::NoSpace { .. }) => {
                        rest.extend(unmoved(nth, &extent, &reading.0, &todo));
                        break 'extents;
                    }
                    Err(error) => return Err(error),
                };
                let len = granule_bytes(u64::from(entry.psize));
                moved += len;
                progress.cost.moved += len;
                self.txg_sync.pool.store.counters.collected_bytes.add(u64::from(entry.psize));
            }
            self.txg_sync.st.collector.copying.spare.push(buf);
            if let VictimState::Moving(cost) = &mut self.txg_sync.st.collector.victim {
                *cost = progress.cost;
                self.txg_sync.pool.admission.publish_in_sync(self.txg_sync.st);
            }
        }
        self.txg_sync.st.collector.index.moved_bytes += moved;
        for (part, at) in &rest {
            let entry = &progress.parts[*part].entries[*at];
            self.keep_in_place(entry.identity, entry.granules());
        }
        if progress.unread_blocks > UNREAD_BLOCKS_MAX {
            progress.next_part = progress.parts.len();
            return Ok((moved, true));
        }
        // The next piece begins with that part. Earlier blocks of the part have moved.
        progress.next_part = rest.first().map_or(progress.next_part, |(part, _)| *part);
        Ok((moved, rest.is_empty()))
    }

    /// Keeps a block where it is.
    fn keep_in_place(&mut self, addr: Addr, granules: u32) {
        self.txg_sync.commit.keep_in_place(&self.txg_sync.pool.store.tables.read(), addr, granules);
    }

    /// Live blocks of the victim behind the last piece, up to `budget` bytes, as extents to be read.
    fn extents(&mut self, progress: &mut Progress, budget: u64) -> VecDeque<Extent> {
        let mut extents: VecDeque<Extent> = VecDeque::new();
        let mut bytes = 0;
        let mut last: Option<Addr> = None;
        let gap = if self.reads_far() { far::EXTENT_GAP } else { EXTENT_GAP };
        let pool = self.txg_sync.pool;
        // With little free space, all runs of one victim are recorded at once, else nothing would be won.
        let is_first = budget == u64::MAX && self.txg_sync.commit.moved_now.is_empty();
        let mut runs_left = if is_first { usize::MAX } else { self.runs_left() };
        let tables = pool.store.tables.read();
        while bytes < budget
            && runs_left > 0
            && let Some(part) = progress.parts.get(progress.next_part)
        {
            let number = progress.next_part;
            progress.next_part += 1;
            self.txg_sync.commit.moved_parts.insert((progress.victim, part.end));
            let mut birthplaces = tables.birthplaces();
            for (at, entry) in part.entries.iter().enumerate() {
                if !self.is_live_here(&mut birthplaces, progress.victim, part.end, entry) {
                    continue;
                }
                if matches!(
                    entry.owner,
                    Owner::Pool { structure: POOL_RECORD | POOL_SECTION | POOL_DEAD_LOG }
                ) {
                    // Bootstrap blocks are named by place, so they cannot move. Rewriting the sections frees
                    // them.
                    self.txg_sync.commit.hurry_sections = true;
                    let since = self.txg_sync.st.history.last_txg();
                    self.txg_sync.st.collector.awaiting_sections.add(progress.victim, since);
                    pool.admission.want_another_txg();
                    last = None;
                    continue;
                }
                let Some(birth) = birthplaces.of(entry.identity.seq()) else { continue };
                let is_next = |last: Addr| last.seq() == entry.identity.seq() && last < entry.identity;
                let may_share_run = last.filter(|last| is_next(*last)).is_some_and(|last| {
                    let (last, next) = (last.granule(), entry.identity.granule());
                    birth.may_share_run(entry.identity.seq(), progress.victim, last, next)
                });
                last = Some(entry.identity);
                let survivor =
                    Survivor { part: number, index: at, may_share_run, last_write: birth.last_write };
                let (from, to) = (entry.offset, entry.offset + u64::from(entry.psize));
                bytes += granule_bytes(u64::from(entry.psize));
                runs_left = runs_left.saturating_sub(1);
                match extents.back_mut() {
                    Some(last) if from - last.to <= gap && to - last.from <= EXTENT_BYTES => {
                        last.to = to;
                        last.entries.push(survivor);
                    }
                    _ => extents.push_back(Extent { from, to, entries: vec![survivor] }),
                }
            }
        }
        extents
    }

    fn start_read(
        &self,
        pinned: &Arc<PinnedZone>,
        extent: Extent,
        mut buf: AlignedBuf,
    ) -> (Extent, Pending<ReadBack>) {
        let (store, pinned, from, to) =
            (self.txg_sync.pool.store.clone(), pinned.clone(), extent.from, extent.to);
        let read = move || {
            let start = store.read_units(&pinned, from, to, &mut buf);
            (buf, start.ok())
        };
        let workers = self.txg_sync.pool.reader.pipeline.workers();
        let read = if self.reads_far() { workers.submit_waiting(read) } else { workers.submit(|_| read()) };
        (extent, read)
    }

    /// Whether the block of the entry is live by committed txgs, and lies at this place.
    fn is_live_here(
        &self,
        birthplaces: &mut Birthplaces<'_>,
        zone: ZoneSeq,
        part_end: u64,
        entry: &Entry,
    ) -> bool {
        let Some(birth) = birthplaces.of(entry.identity.seq()) else { return false };
        let granule = entry.identity.granule();
        if birth.born.dead.overlaps(granule, entry.granules()) {
            return false;
        }
        !self.txg_sync.commit.moved_now.contains_key(&entry.identity)
            && match birth.run_of(granule) {
                Some(run) => run.is_listed_in(zone, part_end),
                None => entry.identity.seq() == zone,
            }
    }

    /// The block's bytes if they match the directory's CRC, if necessary from another copy. `None`: it is
    /// damaged. An error: it could not be read.
    fn verified_bytes(&self, pinned: &PinnedZone, entry: &Entry) -> Result<Option<Vec<u8>>, PoolError> {
        let found = self
            .txg_sync
            .pool
            .store
            .entry_bytes(pinned, entry)
            .inspect_err(|error| log::warn!("read failed: {error}"))?;
        match &found {
            Some((_, true)) => {
                self.txg_sync.pool.store.counters.healed_blocks.add(1);
                log::info!("{}: healed from another copy", entry.identity);
            }
            Some(_) => {}
            None => {
                let reason = "it does not match the checksum in its zone's directory";
                self.txg_sync.pool.reports.log.note_block(entry.owner, reason);
            }
        }
        Ok(found.map(|(bytes, _)| bytes))
    }
}

/// Survivors that were not moved, from the `nth` one of an extent on, as (part, index in the part).
fn unmoved(
    nth: usize,
    extent: &Extent,
    reading: &VecDeque<(Extent, Pending<ReadBack>)>,
    todo: &VecDeque<Extent>,
) -> Vec<(usize, usize)> {
    let behind = reading.iter().map(|(extent, _)| extent).chain(todo);
    let behind = behind.flat_map(|extent| &extent.entries);
    let all = extent.entries.iter().skip(nth).chain(behind);
    all.map(|survivor| (survivor.part, survivor.index)).collect()
}
