//! Which sections of the zone tables a group rewrites.
//!
//! They are rewritten in turn: so many in each group that what an import must replay stays bounded; some more in a *hurry*, when old
//! records and sections keep a zone from being emptied, or when there are too many records; all of them when a copy of one was damaged.
//!
//! Invariant: a hurry ends, whether it helped or not, and the next one for want of records to drop comes only when as many more have
//! been written. A section that has grown too large to be written keeps its records for ever: they must not keep the pool busy.

/// Records that replay may need at the most, nearly.
const RECORDS_MAX: usize = 256;
/// Sections that are rewritten in one group when they are wanted soon: no group should take long for it.
pub const SECTIONS_IN_HURRY: u32 = 16;

pub struct Turns {
    sections: u32,
    next: u32,
    /// Still to be rewritten in the hurry.
    in_hurry: u32,
    /// Bytes of records and dead log since a section was last written.
    replay_bytes: u64,
    all_wanted: bool,
    /// Records that the last hurry left.
    records_left: usize,
}

impl Turns {
    /// Among so many sections; if one is damaged all are wanted.
    pub fn new(sections: u32, all_wanted: bool) -> Turns {
        Turns { sections, next: 0, in_hurry: 0, replay_bytes: 0, all_wanted, records_left: 0 }
    }

    /// All of them with the next group.
    pub fn want_all(&mut self) {
        self.all_wanted = true;
    }

    /// A group wrote so many bytes of its record and dead log.
    pub fn wrote(&mut self, bytes: u64) {
        self.replay_bytes += bytes;
    }

    /// Those whose turn it is, given the bytes that all sections take and how many records replay would need.
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

    /// Groups that follow each other only because of a hurry, after one that somebody wanted, and the records that are left.
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
