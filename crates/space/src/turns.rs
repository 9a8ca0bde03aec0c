//! Rotation of table sections: which sections of the zone tables a txg rewrites.
//!
//! Sections are rewritten in rotation, enough in each txg to bound what import must replay. Some more are rewritten in a *hurry*, when
//! old records and sections keep a zone from being emptied, or when there are too many records. All are rewritten when a copy was
//! damaged.
//!
//! Invariant: a hurry ends, whether it helped or not. The next hurry because of too many records comes only after as many more were
//! written. A section that is too large to be written keeps its records for ever, and they must not keep the pool busy.

/// Replayable records that trigger a hurry, beyond those that the last hurry left.
const RECORDS_MAX: usize = 256;
/// Most sections that a hurry rewrites in one txg, so that no txg takes long.
pub const SECTIONS_IN_HURRY: u32 = 16;

pub struct Turns {
    sections: u32,
    next: u32,
    /// Sections still to be rewritten in this hurry.
    in_hurry: u32,
    /// Bytes of records and dead log since a section was last written.
    replay_bytes: u64,
    all_wanted: bool,
    /// Records that the last hurry left.
    records_left: usize,
}

impl Turns {
    /// For so many sections. `all_wanted`: one is damaged, so all are rewritten.
    pub fn new(sections: u32, all_wanted: bool) -> Turns {
        Turns { sections, next: 0, in_hurry: 0, replay_bytes: 0, all_wanted, records_left: 0 }
    }

    /// Rewrites all sections in the next txg.
    pub fn want_all(&mut self) {
        self.all_wanted = true;
    }

    /// Notes the bytes of record and dead log that a txg wrote.
    pub fn wrote(&mut self, bytes: u64) {
        self.replay_bytes += bytes;
    }

    /// The sections to rewrite now. `table_bytes`: bytes of all sections. `records`: records that replay would need.
    pub fn due(
        &mut self,
        table_bytes: u64,
        records: usize,
        hurry: bool,
    ) -> impl Iterator<Item = u32> + use<> {
        self.records_left = self.records_left.min(records);
        if hurry || records > self.records_left + RECORDS_MAX {
            self.in_hurry = self.sections;
            self.records_left = records;
        }
        let bound = (table_bytes / 4).max(1 << 20);
        let every = bound / u64::from(self.sections) + 1;
        let regular = (self.replay_bytes / every).min(u64::from(self.sections)) as u32;
        let hurried = self.in_hurry.min(SECTIONS_IN_HURRY);
        let count = if self.all_wanted { self.sections } else { regular.max(hurried) };
        if count > 0 {
            (self.replay_bytes, self.all_wanted) = (0, false);
            self.in_hurry = self.in_hurry.saturating_sub(count);
        }
        let (first, sections) = (self.next, self.sections);
        self.next = (first + count) % sections;
        (0..count).map(move |turn| (first + turn) % sections)
    }

    pub fn is_hurried(&self) -> bool {
        self.in_hurry > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of txgs that follow only because of a hurry, after one with changes, and the records that are left.
    fn alone(turns: &mut Turns, records: &mut usize, rewrites_help: bool) -> u32 {
        let mut groups = 0;
        loop {
            *records += 1;
            let _ = turns.due(0, *records, false);
            if !turns.is_hurried() {
                *records = if rewrites_help { 1 } else { *records };
                return groups;
            }
            groups += 1;
        }
    }

    #[test]
    fn a_hurry_that_does_not_help_ends_and_stays_rare() {
        let mut turns = Turns::new(1024, false);
        let (mut records, mut groups) = (0, 0);
        for _ in 0..10_000 {
            groups += alone(&mut turns, &mut records, false);
        }
        let rounds = (records / RECORDS_MAX) as u32;
        assert!(
            groups <= rounds * 1024 / SECTIONS_IN_HURRY,
            "{groups} groups that nobody wanted, {records} records"
        );
        assert!(groups > 0, "the canary: there was no hurry");
    }

    #[test]
    fn records_are_dropped_before_there_are_many() {
        let mut turns = Turns::new(64, false);
        let (mut records, mut most) = (0, 0);
        for _ in 0..10_000 {
            alone(&mut turns, &mut records, true);
            most = most.max(records);
        }
        assert!(most <= RECORDS_MAX + 8, "{most} records");
    }

    #[test]
    fn each_section_has_its_turn() {
        let mut turns = Turns::new(5, true);
        assert_eq!(turns.due(0, 1, false).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(turns.due(0, 1, false).count(), 0);
        turns.wrote((2 << 20) / 5 + 10);
        assert_eq!(turns.due(0, 1, false).collect::<Vec<_>>(), [0, 1]);
        turns.wrote(1 << 30);
        assert_eq!(turns.due(0, 1, false).collect::<Vec<_>>(), [2, 3, 4, 0, 1]);
        let hurried: Vec<u32> = turns.due(0, 1, true).collect();
        assert_eq!((hurried.len(), turns.is_hurried()), (5, false));
    }
}
