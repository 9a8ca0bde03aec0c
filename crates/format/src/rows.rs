//! Rows of the zone tables, as stored in sections.
//!
//! A row holds everything about one logical zone: the places of its replicas, its claimed end, its live bytes, and the state of the
//! blocks born there. The tables give a row its meaning; this module only encodes it.
//!
//! Rows have two forms. In the tailed form, the list of runs and the row itself end with a *tail* of tagged items, for additions by
//! later versions. This version knows no items, so a tail that is not empty is an unknown feature. Commit records store the form of
//! each section.
//!
//! Invariant: a parsed row keeps its own bounds: `claimed` and `live` do not exceed the capacity, runs are sorted and separate, and
//! dead intervals ascend.

use crate::home::{Home, get_homes, put_homes};
use crate::record::{
    PartCopy, RowForm, Run, ZoneClass, get_list, get_part_copy, get_run, get_seq, get_zone_bytes,
    put_part_copy, put_run,
};
use terrane_wire::{Corrupt, Reader, Truncated, Txg, Writer, ZoneSeq};

/// The state of a logical zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Being written.
    Open,
    /// It takes no more writes.
    Full,
    /// No live block since this txg. The zone may be reset when the txg is older than any that can be rolled back to.
    Emptied(Txg),
    /// Reclaimed: the zone was reset, but survivors elsewhere have this filling as birthplace.
    Reclaimed,
    /// Its directory contradicts the tables, or live blocks are damaged. The zone is kept until that is explained.
    Suspect,
}

impl Phase {
    /// As stored: the phase, and the txg in which the zone was emptied.
    fn code(self) -> (u8, Txg) {
        match self {
            Phase::Open => (0, Txg(0)),
            Phase::Full => (1, Txg(0)),
            Phase::Emptied(txg) => (2, txg),
            Phase::Reclaimed => (3, Txg(0)),
            Phase::Suspect => (4, Txg(0)),
        }
    }

    fn from_code(code: u8, emptied: Txg) -> Option<Phase> {
        match code {
            0 => Some(Phase::Open),
            1 => Some(Phase::Full),
            2 => Some(Phase::Emptied(emptied)),
            3 => Some(Phase::Reclaimed),
            4 => Some(Phase::Suspect),
            _ => None,
        }
    }
}

/// The fixed fields of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowHead {
    /// The zone's filling.
    pub seq: ZoneSeq,
    /// Its main use.
    pub class: ZoneClass,
    /// Its state.
    pub phase: Phase,
    /// Where the filling lies. Ignored for a reclaimed zone.
    pub home: Home,
    /// Writable bytes. Ignored for a reclaimed zone.
    pub capacity: u64,
    /// End of the claimed bytes. Ignored for a reclaimed zone.
    pub claimed: u64,
    /// Live bytes in the zone. Ignored for a reclaimed zone.
    pub live: u64,
    /// The txg that opened the zone.
    pub opened: Txg,
    /// The last txg with births or moves into the zone.
    pub last_write: Txg,
}

/// A parsed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The fixed fields.
    pub head: RowHead,
    /// Sorted and separate.
    pub runs: Vec<Run>,
    /// Ascending intervals `first..end` of dead granules.
    pub dead: Vec<(u32, u32)>,
    /// Second copies of the zone's directory parts.
    pub part_copies: Vec<PartCopy>,
}

/// Encodes a section of the tables, row by row.
pub struct SectionWriter {
    form: RowForm,
    out: Writer,
}

impl SectionWriter {
    /// A section of `rows` rows.
    pub fn new(form: RowForm, rows: usize) -> SectionWriter {
        let mut out = Writer::new();
        out.varint(rows as u64);
        SectionWriter { form, out }
    }

    /// Adds a row. `dead` ascends.
    pub fn add_row<I>(&mut self, head: &RowHead, runs: &[Run], dead: impl Fn() -> I, copies: &[PartCopy])
    where
        I: Iterator<Item = (u32, u32)>,
    {
        let out = &mut self.out;
        let (phase, emptied) = head.phase.code();
        out.varint(head.seq.0);
        out.u8(head.class as u8);
        out.u8(phase);
        out.varint(emptied.0);
        put_homes(out, head.home);
        for number in [head.capacity, head.claimed, head.live, head.opened.0, head.last_write.0] {
            out.varint(number);
        }
        out.varint(runs.len() as u64);
        runs.iter().for_each(|run| put_run(out, run));
        put_tail(out, self.form);
        out.varint(dead().count() as u64);
        let mut last = 0;
        for (first, end) in dead() {
            out.varint(u64::from(first - last));
            out.varint(u64::from(end - first));
            last = end;
        }
        out.varint(copies.len() as u64);
        copies.iter().for_each(|copy| put_part_copy(out, copy));
        put_tail(out, self.form);
    }

    /// The section as stored, before compression.
    pub fn finish(self) -> Vec<u8> {
        self.out.into_bytes()
    }
}

/// Parses a section whose checksum was already verified. Passes each row to `each`, so only one row is in memory unpacked.
///
/// # Errors
/// A row is truncated or breaks its bounds, a feature is unknown, or `each` fails.
pub fn parse_section(
    raw: &[u8],
    form: RowForm,
    at: &str,
    mut each: impl FnMut(Row) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let bad = |error: Truncated| Corrupt::new(at, "rows", "whole, and of known features", error);
    let mut raw = Reader::new(raw);
    for _ in 0..raw.count(1).map_err(bad)? {
        each(get_row(&mut raw, form).map_err(bad)?)?;
    }
    Ok(())
}

fn get_row(raw: &mut Reader<'_>, form: RowForm) -> Result<Row, Truncated> {
    let seq = get_seq(raw)?;
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let class = ZoneClass::from_id(raw.u8()?).ok_or(bad)?;
    let (phase, emptied) = (raw.u8()?, Txg(raw.varint()?));
    let phase = Phase::from_code(phase, emptied).ok_or(bad)?;
    let home = get_homes(raw)?;
    let (capacity, claimed, live) = (get_zone_bytes(raw)?, get_zone_bytes(raw)?, get_zone_bytes(raw)?);
    let (opened, last_write) = (Txg(raw.varint()?), Txg(raw.varint()?));
    if claimed > capacity || live > capacity {
        return Err(bad);
    }
    let runs: Vec<Run> = get_list(raw, get_run)?;
    if runs.windows(2).any(|pair| matches!(pair, [a, b] if a.last >= b.first)) {
        return Err(bad);
    }
    get_tail(raw, form)?;
    let dead = get_dead(raw)?;
    let part_copies = get_list(raw, get_part_copy)?;
    get_tail(raw, form)?;
    let head = RowHead { seq, class, phase, home, capacity, claimed, live, opened, last_write };
    Ok(Row { head, runs, dead, part_copies })
}

fn get_dead(raw: &mut Reader<'_>) -> Result<Vec<(u32, u32)>, Truncated> {
    let mut last = 0u32;
    let mut dead = Vec::new();
    for _ in 0..raw.count(2)? {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let gap = u32::try_from(raw.varint()?).map_err(|_| bad)?;
        let len = u32::try_from(raw.varint()?).map_err(|_| bad)?;
        let first = last.checked_add(gap).ok_or(bad)?;
        last = first.checked_add(len).filter(|_| len > 0).ok_or(bad)?;
        dead.push((first, last));
    }
    Ok(dead)
}

fn put_tail(out: &mut Writer, form: RowForm) {
    match form {
        RowForm::Plain => {}
        RowForm::Tailed => out.blob(&[]),
    }
}

/// This version knows no item of a tail.
fn get_tail(raw: &mut Reader<'_>, form: RowForm) -> Result<(), Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    match form {
        RowForm::Plain => Ok(()),
        RowForm::Tailed if raw.blob()?.is_empty() => Ok(()),
        RowForm::Tailed => Err(bad),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, ZONE_BYTES_MAX};
    use proptest::prelude::*;
    use terrane_wire::{DeviceIdx, ZoneIdx};

    fn parsed(raw: &[u8], form: RowForm, at: &str) -> Result<Vec<Row>, Corrupt> {
        let mut rows = Vec::new();
        parse_section(raw, form, at, |row| {
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    fn encode(form: RowForm, rows: &[Row]) -> Vec<u8> {
        let mut section = SectionWriter::new(form, rows.len());
        for Row { head, runs, dead, part_copies } in rows {
            section.add_row(head, runs, || dead.iter().copied(), part_copies);
        }
        section.finish()
    }

    fn row(seq: u64) -> Row {
        let head = RowHead {
            seq: ZoneSeq(seq),
            class: ZoneClass::Data,
            phase: Phase::Full,
            home: Home { device: DeviceIdx(1), zone: ZoneIdx(7) },
            capacity: 1 << 20,
            claimed: 1 << 19,
            live: 4096,
            opened: Txg(3),
            last_write: Txg(9),
        };
        let copy = PartCopy { part_end: 8192, part_start: 4096, addr: Addr::new(ZoneSeq(6), 16) };
        let runs = vec![Run::of(5, 30, ZoneSeq(8), 8192), Run::of(90, 2, ZoneSeq(8), 8192)];
        Row { head, runs, dead: vec![(0, 3), (9, 10)], part_copies: vec![copy] }
    }

    const FORMS: [RowForm; 2] = [RowForm::Plain, RowForm::Tailed];

    fn phase() -> impl Strategy<Value = Phase> {
        prop_oneof![
            Just(Phase::Open),
            Just(Phase::Full),
            Just(Phase::Reclaimed),
            Just(Phase::Suspect),
            any::<u64>().prop_map(|txg| Phase::Emptied(Txg(txg))),
        ]
    }

    proptest! {
        /// A written section reads back, also at the bounds of every field.
        #[test]
        fn any_section_comes_back(
            rows in prop::collection::vec(
                (1u64..1 << 36, phase(), any::<(u16, u32)>(), 0..=ZONE_BYTES_MAX, any::<(u64, u64)>(), any::<u8>()), 0..20),
            gaps in prop::collection::vec((0u32..1 << 20, 1u32..1 << 20), 0..20),
        ) {
            let mut end = 0;
            let dead: Vec<(u32, u32)> = gaps.into_iter().map(|(gap, len)| {
                let first = end + gap;
                end = first + len;
                (first, end)
            }).collect();
            let rows: Vec<Row> = rows.into_iter().map(|(seq, phase, (device, zone), capacity, (opened, last), keep)| {
                let home = Home { device: DeviceIdx(device), zone: ZoneIdx(zone) };
                let of = row(seq);
                let head = RowHead {
                    phase, home, capacity, claimed: capacity, live: capacity / 2, opened: Txg(opened),
                    last_write: Txg(last), ..of.head
                };
                let runs = of.runs[usize::from(keep % 3)..].to_vec();
                Row { head, runs, dead: dead.clone(), part_copies: of.part_copies }
            }).collect();
            for form in FORMS {
                let back = parsed(&encode(form, &rows), form, "here").map_err(|error| error.to_string());
                prop_assert_eq!(back.as_ref(), Ok(&rows));
            }
        }
    }

    #[test]
    fn no_byte_makes_parsing_panic_and_nothing_cut_off_passes() {
        for form in FORMS {
            let raw = encode(form, &[row(1), row(9)]);
            for at in 0..raw.len() {
                assert!(parsed(&raw[..at], form, "here").is_err(), "{at}");
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bad = raw.clone();
                    bad[at] = byte;
                    let _ = parsed(&bad, form, "here");
                }
            }
        }
    }

    /// Otherwise the additions of a later version would be lost with the next checkpoint.
    #[test]
    fn tails_with_items_and_second_replicas_are_refused() {
        let raw = encode(RowForm::Tailed, &[row(1)]);
        assert_eq!(raw.last(), Some(&0), "the row's tail");
        let with_item = [&raw[..raw.len() - 1], &[2, 200, 0][..]].concat();
        assert!(parsed(&with_item, RowForm::Tailed, "here").is_err());
        // Count, sequence, class, phase, group of emptying; then replicas.
        assert_eq!(raw[5], 1);
        let mut mirrored = raw;
        mirrored[5] = 2;
        assert!(parsed(&mirrored, RowForm::Tailed, "here").is_err());
    }

    #[test]
    fn rows_that_claim_more_than_they_have_are_refused() {
        for (claimed, live) in [((1 << 20) + 16, 0), (0, (1 << 20) + 16)] {
            let of = row(1);
            let head = RowHead { claimed, live, ..of.head };
            assert!(parsed(&encode(RowForm::Plain, &[Row { head, ..of }]), RowForm::Plain, "here").is_err());
        }
    }
}
