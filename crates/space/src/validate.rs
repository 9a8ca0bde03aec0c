//! Checks what a commit record would do to the tables, before its uberblock is written.
//!
//! Invariant: a record in which [`Tables::validate_record`] finds nothing is applied without findings, and leaves tables that can be
//! imported.

use crate::zones::{Findings, Tables};
use std::collections::{BTreeMap, BTreeSet};
use terrane_format::addr::granule_bytes;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::record::{Free, Home, Record};
use terrane_wire::{Corrupt, ZoneSeq};

/// A zone's row as the record changes it.
struct ChangedRow {
    claimed: u64,
    live: u64,
    capacity: u64,
}

impl Tables {
    /// What applying a record would find wrong, or make wrong. `frees` are those of the record and of its dead-log blocks, sorted.
    pub fn validate_record(&self, record: &Record, own: &BootPtr, frees: &[Free]) -> Findings {
        let mut findings = Findings::new();
        let at = format!("commit record of txg {}", record.txg);
        let reset: BTreeSet<ZoneSeq> = record.reset.iter().copied().collect();
        let opened: BTreeMap<ZoneSeq, u64> =
            record.opened.iter().map(|opened| (opened.seq, opened.capacity)).collect();
        let row = |seq: ZoneSeq| {
            let resident = self.zones.get(&seq).filter(|_| !reset.contains(&seq));
            let resident = resident.map(|zone| (zone.claimed, zone.live, zone.capacity));
            let (claimed, live, capacity) =
                resident.or_else(|| opened.get(&seq).map(|capacity| (0, 0, *capacity)))?;
            Some(ChangedRow { claimed, live, capacity })
        };
        let unknown = |seq: ZoneSeq| Corrupt::new(&at, "zone", "in the tables", seq);
        let mut rows: BTreeMap<ZoneSeq, Option<ChangedRow>> = BTreeMap::new();
        let bytes = granule_bytes(u64::from(own.len));
        let written = record.written.iter().map(|written| (written.seq, written.claimed, written.born_bytes));
        let own = own.copies().map(|place| (place.seq, place.offset + u64::from(own.padded), bytes));
        for (seq, claimed, born) in written.chain(own) {
            match rows.entry(seq).or_insert_with(|| row(seq)) {
                Some(row) => (row.claimed, row.live) = (claimed, row.live.saturating_add(born)),
                None => findings.push(unknown(seq)),
            }
        }
        for &(seq, delta) in &record.deltas {
            match rows.entry(seq).or_insert_with(|| row(seq)) {
                Some(row) => match row.live.checked_add_signed(delta) {
                    Some(live) => row.live = live,
                    None => {
                        let at = format!("{at}, zone {seq}");
                        let expected = format_args!("at least {}", delta.unsigned_abs());
                        findings.push(Corrupt::new(at, "live bytes", expected, row.live));
                    }
                },
                None => findings.push(unknown(seq)),
            }
        }
        for (seq, row) in rows.iter().filter_map(|(seq, row)| Some((seq, row.as_ref()?))) {
            let most = row.claimed.max(row.live);
            if most > row.capacity {
                let expected = format_args!("at most {}", row.capacity);
                findings.push(Corrupt::new(
                    format!("{at}, zone {seq}"),
                    "claimed and live bytes",
                    expected,
                    most,
                ));
            }
        }
        self.validate_homes(record, &reset, &at, &mut findings);
        for (seq, _) in record.part_copies.iter().filter(|(seq, _)| row(*seq).is_none()) {
            findings.push(unknown(*seq));
        }
        let births: BTreeSet<ZoneSeq> = record.moves.iter().map(|moved| moved.birth).collect();
        let is_known = |seq: ZoneSeq| row(seq).is_some() || self.birthplace(seq).is_some();
        findings.extend(births.into_iter().filter(|seq| !is_known(*seq)).map(unknown));
        let lost = record.moves.iter().filter(|moved| moved.run.live() == 0 || row(moved.run.dest).is_none());
        findings.extend(lost.map(|moved| {
            Corrupt::new(&at, "run", "live, and in a resident zone", format_args!("{:?}", moved.run))
        }));
        self.validate_frees(frees, &opened, &at, &mut findings);
        findings
    }

    /// No physical zone may get a second filling.
    fn validate_homes(&self, record: &Record, reset: &BTreeSet<ZoneSeq>, at: &str, findings: &mut Findings) {
        if record.opened.is_empty() {
            return;
        }
        let mut homes: BTreeMap<Home, ZoneSeq> = BTreeMap::new();
        let mut twice = |home: Home, seq: ZoneSeq, other: ZoneSeq| {
            let found = format_args!("{home}, also used by zone {other}");
            let at = format!("{at}, zone {seq}");
            findings.push(Corrupt::new(at, "physical zone", "used by no other zone", found));
        };
        for opened in &record.opened {
            if let Some(other) = homes.insert(opened.home, opened.seq).filter(|other| *other != opened.seq) {
                twice(opened.home, opened.seq, other);
            }
        }
        for (seq, zone) in self.zones.iter().filter(|(seq, _)| !reset.contains(seq)) {
            for home in zone.replicas().iter() {
                if let Some(other) = homes.get(&home).filter(|other| *other != seq) {
                    twice(home, *other, *seq);
                }
            }
        }
    }

    /// A freed block must be alive, and be freed once.
    fn validate_frees(
        &self,
        frees: &[Free],
        opened: &BTreeMap<ZoneSeq, u64>,
        at: &str,
        findings: &mut Findings,
    ) {
        let mut birthplaces = self.birthplaces();
        let mut end = 0;
        for free in frees {
            let seq = free.addr.seq();
            let is_dead = match birthplaces.of(seq) {
                Some(birth) => birth.born.dead.overlaps(free.addr.granule(), free.granules),
                None if opened.contains_key(&seq) => false,
                None => {
                    findings.push(Corrupt::new(at, "zone of freed blocks", "in the tables", seq));
                    continue;
                }
            };
            if is_dead || free.addr.raw() < end {
                let found = format_args!("block born at {} freed twice", free.addr);
                findings.push(Corrupt::new(at, "freed block", "alive", found));
            }
            end = free.addr.raw() + u64::from(free.granules);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaimed::{BornBlocks, ReclaimedZone};
    use crate::zones::Zone;
    use terrane_format::addr::{Addr, Place};
    use terrane_format::block_ptr::BlockPtr;
    use terrane_format::record::RowForm;
    use terrane_format::record::{Move, OpenedZone, Run, WrittenZone, ZoneClass};
    use terrane_wire::{DeviceIdx, Txg, ZoneIdx};

    const CAPACITY: u64 = 1 << 20;

    fn home(zone: u32) -> Home {
        Home { device: DeviceIdx(0), zone: ZoneIdx(zone) }
    }

    /// Zones 1 and 2 exist, with 64 KiB of live bytes. Zone 3 is reclaimed, and its survivors are in zone 2.
    fn tables() -> Tables {
        let mut tables = Tables::default();
        for seq in [1u32, 2] {
            let mut zone = Zone::new(ZoneClass::Data, home(seq + 1), CAPACITY, Txg(1));
            (zone.claimed, zone.live) = (CAPACITY / 2, 64 << 10);
            assert_eq!(zone.born.dead.add_sorted(&[(400, 100)]), []);
            tables.live += zone.live;
            tables.insert(ZoneSeq(seq.into()), zone);
        }
        let born = BornBlocks { runs: vec![Run::of(0, 400, ZoneSeq(2), 8192)], ..BornBlocks::default() };
        tables.insert_reclaimed([(
            ZoneSeq(3),
            ReclaimedZone { class: ZoneClass::Data, opened: Txg(1), last_write: Txg(1), born },
        )]);
        tables
    }

    fn own() -> BootPtr {
        let place =
            |zone| Place::new(DeviceIdx(0), ZoneIdx(zone), CAPACITY / 2, ZoneSeq(u64::from(zone) - 1));
        BootPtr { places: [place(2), place(3)], len: 900, padded: 4096, ..BootPtr::NONE }
    }

    fn record() -> Record {
        Record {
            txg: Txg(9),
            incarnation: 1,
            time_ns: 0,
            previous: BootPtr::NONE,
            previous_txg: Txg(0),
            replay_after: Txg(0),
            root: BlockPtr::default(),
            opened: vec![OpenedZone {
                seq: ZoneSeq(4),
                class: ZoneClass::Data,
                home: home(9),
                capacity: CAPACITY,
            }],
            form: RowForm::Plain,
            written: vec![WrittenZone { seq: ZoneSeq(4), claimed: 8192, born_bytes: 4096 }],
            filled: Vec::new(),
            reset: Vec::new(),
            suspect: Vec::new(),
            moves: vec![Move { birth: ZoneSeq(1), run: Run::of(8, 16, ZoneSeq(4), 8192) }],
            deltas: vec![(ZoneSeq(1), -320), (ZoneSeq(4), 256)],
            frees: vec![Free { addr: Addr::new(ZoneSeq(1), 16 * 900), granules: 4 }],
            dead_log: Vec::new(),
            sections: Vec::new(),
            part_copies: Vec::new(),
            may_open: Vec::new(),
            totals: Default::default(),
            log: None,
        }
    }

    #[test]
    fn validation_finds_what_applying_would() {
        type Mutation = fn(&mut Record);
        let run = |dest| Move { birth: ZoneSeq(1), run: Run::of(8, 16, dest, 8192) };
        let mutations: [(&str, Mutation); 13] = [
            ("an unknown zone was written", |record| record.written[0].seq = ZoneSeq(7)),
            ("more than fits is claimed", |record| record.written[0].claimed = CAPACITY + 4096),
            ("more than fits lives", |record| record.written[0].born_bytes = CAPACITY),
            ("less than nothing lives", |record| record.deltas[0].1 = -(1 << 20)),
            ("an unknown zone changes", |record| record.deltas[0].0 = ZoneSeq(7)),
            ("an unknown birthplace", |record| record.moves[0].birth = ZoneSeq(7)),
            ("a move to nowhere", |record| record.moves[0].run.dest = ZoneSeq(7)),
            ("freed before", |record| record.frees[0].addr = Addr::new(ZoneSeq(1), 16 * 402)),
            ("freed twice", |record| record.frees.push(Free { granules: 2, ..record.frees[0] })),
            ("freed where nothing is", |record| record.frees[0].addr = Addr::new(ZoneSeq(7), 64)),
            ("two zones in one place", |record| record.opened[0].home = home(2)),
            ("a record in a zone that was reset", |record| record.reset.push(ZoneSeq(1))),
            ("survivors in a zone that was reset", |record| {
                record.reset.push(ZoneSeq(4));
                record.opened.clear();
            }),
        ];
        assert_eq!(run(ZoneSeq(4)), record().moves[0]);
        let both = |record: &Record| {
            let predicted = tables().validate_record(record, &own(), &record.frees);
            let mut tables = tables();
            let mut found = tables.apply(record, &own(), &record.frees, &|_| true);
            found.extend(tables.check());
            let parsed = Record::parse(&record.encode(), "here").err();
            found.extend(parsed);
            (predicted.len(), found.len(), format!("{predicted:?}\n{found:?}"))
        };
        let (predicted, found, all) = both(&record());
        assert_eq!((predicted, found), (0, 0), "{all}");
        for (what, mutate) in mutations {
            let mut record = record();
            mutate(&mut record);
            let (predicted, found, all) = both(&record);
            assert!(predicted > 0 && found > 0, "{what}: {all}");
        }
    }
}
