//! The end of a sync: table sections, frees, the commit record, the flush, the uberblock, and then the tables
//! in memory.

use super::source::Source;
use crate::pool::TxgSync;
use std::sync::atomic::Ordering;
use terrane_codec::{ChecksumKind, compute};
use terrane_format::addr::{Addr, Place};
use terrane_format::block_ptr::{BLOCK_BYTES_MAX, BlockPtr};
use terrane_format::boot_ptr::BootPtr;
use terrane_format::directory::{Owner, POOL_PART_COPY, POOL_RECORD, POOL_SECTION};
use terrane_format::features::Feature;
use terrane_format::record::{Record, SectionPtr, Tally, ZoneClass};
use terrane_format::totals::Totals;
use terrane_store::PoolError;
use terrane_store::append::{AppendLocation, AppendTotals};
use terrane_store::bootstrap::boot_encode;
use terrane_txg::commit::CommitBuilder;
use terrane_wire::{Corrupt, Txg, ZoneSeq};

/// Txg numbers are leased this many at a time.
const LEASE_TXGS: u64 = 4096;
/// Maximum number of rescues in a txg: each time, a zone fails that took the blocks of a failed one.
const RESCUES_MAX: usize = 16;

impl TxgSync<'_> {
    /// Rewrites the sections that are due. Zones with only bootstrap blocks become candidates once all
    /// sections include later changes.
    pub(super) fn write_sections(&mut self) -> Result<(), PoolError> {
        let sections = self.st.sections.len() as u32;
        let table_bytes: u64 = self.st.sections.iter().map(|section| u64::from(section.ptr.len)).sum();
        let stamp = self.st.history.last_txg();
        if stamp == Txg(0) {
            return Ok(());
        }
        let form = self.pool.row_form();
        for section in self.st.section_rotation.take_due(
            table_bytes,
            self.st.history.chain.len(),
            self.commit.hurry_sections,
        ) {
            let raw = self.pool.store.tables.read().encode_section(section, sections, form);
            let stored = self.pool.reader.pipeline.workers().run_inline(|codec| boot_encode(codec, &raw));
            // A section too large for a zone or for import must not replace a readable one. The records still
            // describe its changes.
            let most = (3 * u64::from(self.pool.max_block())).min(u64::from(BLOCK_BYTES_MAX));
            if stored.len() as u64 > most {
                let at = format!("section {section} of the zone tables");
                let expected = format_args!("at most {most}");
                self.pool.reports.note_damage(Corrupt::new(at, "stored bytes", expected, stored.len()));
                continue;
            }
            let ptr = self.write_boot(POOL_SECTION, &stored)?;
            let new = SectionPtr { section, last_txg: stamp, ptr, form };
            let old = std::mem::replace(&mut self.st.sections[section as usize], new);
            self.commit.free_boot(&old.ptr);
            self.commit.new_sections.push(new);
        }
        if self.st.section_rotation.is_hurried() {
            self.pool.admission.want_another_txg();
        }
        let oldest = self.oldest_section();
        self.st.collector.release_awaiting(
            &self.pool.store.tables.read(),
            self.pool.admission.zone_yield(),
            oldest,
        );
        Ok(())
    }

    /// The txg up to which all sections include every change.
    fn oldest_section(&self) -> Txg {
        self.st.sections.iter().map(|section| section.last_txg).min().unwrap_or(Txg(0))
    }

    pub(crate) fn write_boot(&mut self, what: u8, stored: &[u8]) -> Result<BootPtr, PoolError> {
        let crc = crc32c::crc32c(stored);
        let locations = self.append_twice(stored, Owner::Pool { structure: what }, crc)?;
        Ok(BootPtr {
            places: locations.map(|location| self.place_of(location)),
            checksum: compute(ChecksumKind::Blake3, stored),
            len: stored.len() as u32,
            padded: 0,
            reserved: 0,
        })
    }

    fn place_of(&self, location: AppendLocation) -> Place {
        let home = self.pool.store.pin(location.seq).expect("just appended there").replicas.first();
        Place::new(home.device, home.zone, location.offset, location.seq)
    }

    /// Commits: writes the record, makes it the newest by an uberblock, and applies it to the tables.
    pub(super) fn commit(mut self, root: BlockPtr) -> Result<(), PoolError> {
        self.free_replayed_records();
        let left = self.commit.take_resets(&mut self.st.resets_done);
        self.commit.frees.extend(left);
        self.validate_frees();
        self.log_frees()?;
        self.drain()?;
        let mut part_copies = self.copy_moved_parts()?;
        // If a batch failed and space was short, zones were reset meanwhile, and may be open again. This
        // record must list both.
        while !self.st.resets_done.is_empty() {
            self.record_resets()?;
            self.drain()?;
            part_copies.append(&mut self.copy_moved_parts()?);
        }
        let mut appended = self.st.streams.take_txg_totals();
        self.note_colocated(std::mem::take(&mut appended.colocated));
        let log = self.log_for_record();
        let mut record = self.compose(root.clone(), &mut appended, part_copies);
        record.log = log.head.clone();
        let own = self.write_record(&mut record)?;
        self.validate_record(&record, &own)?;
        // The flush of the uberblock makes the txg durable. Until then nothing names what it wrote.
        match self.pool.store.devices.all().len() {
            1 => self.pool.store.order(self.pool.threaded())?,
            // One device may have its uberblock before another one has what it names.
            _ => self.pool.store.flush(self.pool.threaded())?,
        }
        self.raise_lease();
        self.update_features()?;
        self.pool.write_uberblock(self.st, self.txg, own, false)?;
        self.pool.end_log_commit(self.st, self.txg, log);
        self.finish(record, own, root, appended.device_bytes)
    }

    /// Frees old records and their dead-log blocks, once every section includes them.
    fn free_replayed_records(&mut self) {
        let needed_after = self.oldest_section();
        while let Some(old) = self.st.history.pop_replayed(needed_after) {
            self.commit.free_boot(&old.ptr);
            old.dead_log.iter().for_each(|block| self.commit.free_boot(block));
        }
    }

    /// Waits until every append is on the device. Batches that could not be written go to another zone. Lost
    /// bootstrap blocks are rewritten, and their pointers updated.
    fn drain(&mut self) -> Result<(), PoolError> {
        for _ in 0..RESCUES_MAX {
            let failed_bytes = self.st.streams.write_out(self.txg)?;
            if failed_bytes == 0 {
                return Ok(());
            }
            // The failed zone's free space is lost, and perhaps no other zone is empty yet.
            self.pool.drop_rollback_txgs(self.st, failed_bytes)?;
            self.st.streams.rescue(self.txg, &mut source!(self))?;
            for (addr, granules) in std::mem::take(&mut self.st.streams.txg_totals.unmoved) {
                self.abort_move(addr, granules);
            }
            for lost in std::mem::take(&mut self.st.streams.txg_totals.lost_boot) {
                let is_lost = |place: &Place| place.seq.0 != 0 && place.addr() == lost.addr;
                let near =
                    self.commit.boot_ptrs(&mut self.st.sections).filter(|ptr| ptr.places.iter().any(is_lost));
                let near = near.flat_map(|ptr| &ptr.places).filter(|place| !is_lost(place));
                let near: Vec<ZoneSeq> = near.map(|place| place.seq).collect();
                let location = self.append_own((lost.slot, lost.class), &lost.bytes, lost.what, &near)?;
                let place = self.place_of(location);
                let places = self.commit.boot_ptrs(&mut self.st.sections).flat_map(|ptr| &mut ptr.places);
                places.filter(|place| is_lost(place)).for_each(|old| *old = place);
            }
        }
        Err(PoolError::Failed { reason: "no zone takes writes".into() })
    }

    /// Undoes a move whose batch could not be written: the victim is not empty yet.
    fn abort_move(&mut self, addr: Addr, granules: u32) {
        let tables = self.pool.store.tables.read();
        self.commit.abort_move(&tables, addr, granules);
        let Some(victim) = tables.current_zone(addr) else { return };
        self.st.collector.drop_victim(victim);
        self.st.collector.update_zone(&tables, victim, self.pool.admission.zone_yield());
        self.pool.admission.want_another_txg();
    }

    /// Writes second copies of parts that list moved blocks, in another zone. Without those parts the blocks
    /// cannot be found.
    fn copy_moved_parts(&mut self) -> Result<Vec<(ZoneSeq, terrane_format::record::PartCopy)>, PoolError> {
        let mut copies = Vec::new();
        loop {
            let parts = std::mem::take(&mut self.st.streams.txg_totals.moved_parts);
            if parts.is_empty() {
                return Ok(copies);
            }
            for (seq, mut copy, bytes) in parts {
                let [a, b] = self.st.streams.layout().meta();
                let slot = if self.st.streams.zone_of(b) == Some(seq) { a } else { b };
                let location = self.append_own((slot, ZoneClass::MetaB), &bytes, POOL_PART_COPY, &[seq])?;
                copy.addr = Addr::new(location.seq, location.offset);
                copies.push((seq, copy));
            }
            self.drain()?;
        }
    }

    fn compose(
        &mut self,
        root: BlockPtr,
        appended: &mut AppendTotals,
        part_copies: Vec<(ZoneSeq, terrane_format::record::PartCopy)>,
    ) -> Record {
        assert!(self.st.resets_done.is_empty(), "a zone that was reset may be open again in this txg");
        let deltas = self.commit.deltas(&self.pool.store.tables.read(), &appended.carried);
        let mut moves = std::mem::take(&mut self.commit.split_runs);
        moves.append(&mut appended.moves);
        if !self.pool.has(Feature::Tallies) {
            moves.iter_mut().for_each(|moved| moved.run.tally = Tally::UNKNOWN);
        }
        let inline = self.commit.dead_log.is_empty();
        let mut filled = std::mem::take(&mut appended.filled);
        filled.append(&mut self.commit.explained);
        Record {
            txg: self.txg,
            incarnation: self.pool.membership.uses.record_incarnation(),
            time_ns: self.pool.env.wall_ns(),
            previous: self.st.history.last().map_or(BootPtr::NONE, |(_, ptr)| ptr),
            previous_txg: self.st.history.last_txg(),
            replay_after: self.oldest_section(),
            root,
            opened: std::mem::take(&mut appended.opened),
            form: self.pool.row_form(),
            written: appended
                .written
                .values()
                .copied()
                .filter(|written| written.claimed > 0 || written.born_bytes > 0)
                .collect(),
            filled,
            reset: std::mem::take(&mut self.commit.reset),
            suspect: std::mem::take(&mut self.commit.suspect),
            moves,
            deltas,
            frees: if inline { self.commit.frees.clone() } else { Vec::new() },
            dead_log: self.commit.dead_log.clone(),
            sections: std::mem::take(&mut self.commit.new_sections),
            part_copies,
            may_open: self.st.alloc.next_empty_zones(self.st.streams.layout().slots()),
            totals: if self.pool.has(Feature::Totals) { self.pool.totals() } else { Totals::default() },
            log: None,
        }
    }

    /// Writes the record in two zones, each copy in a batch of its own.
    fn write_record(&mut self, record: &mut Record) -> Result<BootPtr, PoolError> {
        let txg = self.txg;
        for _ in 0..8 {
            let size = record.encode().len() as u64 + 512;
            let slots = match self.st.streams.slots_for_record(txg, size, &mut source!(self)) {
                Err(error @ PoolError::NoSpace { .. }) => {
                    self.pool.drop_rollback_txgs(self.st, u64::MAX)?;
                    if self.st.resets_done.is_empty() {
                        return Err(error);
                    }
                    self.add_resets(record);
                    continue;
                }
                slots => slots?,
            };
            let opened = self.st.streams.take_txg_totals();
            record.opened.extend(opened.opened);
            record.filled.extend(opened.filled);
            let stored =
                self.pool.reader.pipeline.workers().run_inline(|codec| boot_encode(codec, &record.encode()));
            let mut own = BootPtr {
                checksum: compute(ChecksumKind::Blake3, &stored),
                len: stored.len() as u32,
                ..BootPtr::NONE
            };
            let mut padded = [0u64; 2];
            let mut written = 0;
            for (index, (slot, class)) in slots.iter().copied().enumerate() {
                match self.st.streams.write_single_batch(slot, class, txg, POOL_RECORD, &stored) {
                    Ok((seq, home, offset, bytes)) => {
                        own.places[index] = Place::new(home.device, home.zone, offset, seq);
                        padded[index] = bytes;
                        written += 1;
                    }
                    Err(error) => {
                        log::warn!("commit record of txg {txg} failed, trying another zone: {error}");
                        break;
                    }
                }
            }
            // One copy is enough if there is no zone for a second one.
            self.pool.drop_unwritable_zones(self.st);
            let is_last = written == 1 && (slots.len() == 1 || self.st.alloc.empty_count() == 0);
            if is_last || written == 2 && padded[0] == padded[1] {
                own.padded = padded[0] as u32;
                // The zone of a failed copy is full; the next record says so.
                let filled = self.st.streams.take_txg_totals().filled;
                self.st.streams.txg_totals.filled = filled;
                return Ok(own);
            }
            // A copy that was written is not claimed, so its zone is closed behind the claimed bytes.
            for (slot, _) in slots.into_iter().take(written) {
                self.st.streams.close_slot(slot, txg)?;
            }
        }
        Err(PoolError::Failed { reason: "no zone took the commit record".into() })
    }

    fn raise_lease(&mut self) {
        if self.txg.0 + LEASE_TXGS / 2 > self.st.lease_txg {
            self.st.lease_txg = self.txg.0 + LEASE_TXGS;
        }
    }

    /// The txg is durable: applies it to the tables and to all state in memory.
    fn finish(
        self,
        record: Record,
        own: BootPtr,
        root: BlockPtr,
        device_bytes: u64,
    ) -> Result<(), PoolError> {
        let TxgSync { pool, st, txg, commit, started_ns, logical_bytes, .. } = self;
        let CommitBuilder { frees, dead_log, .. } = commit;
        let findings = {
            let mut tables = pool.store.tables.write();
            let findings = tables.apply(&record, &own, &frees, &|_| true);
            let touched = record.filled.iter().chain(record.deltas.iter().map(|(seq, _)| seq));
            let zone_yield = pool.admission.zone_yield();
            st.collector.ages.clock.note(txg, pool.store.counters.logical_bytes.get());
            touched.for_each(|seq| st.collector.update_zone(&tables, *seq, zone_yield));
            for seq in &record.filled {
                if let Some(zone) = tables.zones.get_mut(seq) {
                    zone.unwritten = None;
                }
            }
            for seq in st.collector.end_txg(&tables) {
                log::error!(
                    "zone {seq} suspect: it holds live blocks that its directory does not list; see `terrane check`"
                );
                st.suspects.push(seq);
            }
            findings
        };
        for finding in findings {
            pool.reports.note_damage(finding);
        }
        let bytes = u64::from(own.padded) + dead_log.iter().map(|block| u64::from(block.len)).sum::<u64>();
        st.section_rotation.note_written(bytes);
        st.history.add_committed(txg, own, dead_log);
        st.root = root;
        pool.detach_empty_devices(st)?;
        pool.release_holds(st, false);
        // After the last txg before an export no other one would record it. The next import does it.
        if !pool.closes_far.load(Ordering::Relaxed) {
            pool.reset_emptied(st, false)?;
        }
        pool.drop_rollback_txgs(st, 0)?;
        pool.drop_unwritable_zones(st);
        // Damaged copies waited for zones.
        let zones_are_there = st.alloc.empty_count() >= pool.admission.sizes().min_empty_zones();
        if pool.admission.may_separate(st) || zones_are_there && pool.reader.has_heals() {
            pool.admission.want_another_txg();
        }
        pool.publish(st);
        let ns = pool.env.monotonic_ns().saturating_sub(started_ns).max(1);
        pool.store.counters.txg_sync.record_ns(ns);
        pool.store.counters.txg_bytes.add(device_bytes);
        pool.activity.sample();
        pool.lifetimes.end_txg(txg, &st.collector.ages.clock);
        pool.recorder.committed(txg, st.collector.ages.clock.now(), &frees);
        log::debug!(txg = txg.0, ms = ns / 1_000_000, bytes = device_bytes, frees = frees.len(); "committed");
        // Dirty data is counted before compression, so its bound is too. Half a second of it keeps the
        // workers busy over a flush. More would let the data leave the processor caches before it is written.
        let taken = device_bytes.max(logical_bytes);
        if taken > 4 << 20 {
            // A commit to an object store waits for several answers, so it should hold more.
            let span_ns = if pool.is_far() { 3_000_000_000 } else { 500_000_000 };
            let in_span = u128::from(taken) * span_ns / u128::from(ns);
            pool.admission.set_dirty_max(u64::try_from(in_span).unwrap_or(u64::MAX));
        }
        Ok(())
    }
}
