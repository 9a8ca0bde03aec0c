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

/// The sections that the next txgs rewrite.
pub struct SectionRotation {
    sections: u32,
    next: u32,
    /// Sections still to be rewritten in this hurry.
    in_hurry: u32,
    /// Bytes of records and dead log since a section was last written.
    replay_bytes: u64,
    rewrite_all: bool,
    /// Records that the last hurry left.
    records_left: usize,
}

impl SectionRotation {
    /// For so many sections. `rewrite_all`: one is damaged, so all are rewritten.
    pub fn new(sections: u32, rewrite_all: bool) -> SectionRotation {
        SectionRotation { sections, next: 0, in_hurry: 0, replay_bytes: 0, rewrite_all, records_left: 0 }
    }

    /// Rewrites all sections in the next txg.
    pub fn request_all(&mut self) {
        self.rewrite_all = true;
    }

    /// Notes the bytes of record and dead log that a txg wrote.
    pub fn note_written(&mut self, bytes: u64) {
        self.replay_bytes += bytes;
    }

    /// The sections to rewrite now. `table_bytes`: bytes of all sections. `records`: records that replay would need.
    pub fn take_due(
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
        let hurried = self.in_hurry.min(SECTIONS_IN_HURRY);
        let count = if self.rewrite_all { self.sections } else { self.regular(table_bytes).max(hurried) };
        if count > 0 {
            (self.replay_bytes, self.rewrite_all) = (0, false);
            self.in_hurry = self.in_hurry.saturating_sub(count);
        }
        let (first, sections) = (self.next, self.sections);
        self.next = (first + count) % sections;
        (0..count).map(move |nth| (first + nth) % sections)
    }

    /// The most sections that [`take_due`](Self::take_due) can return now, for any of its other arguments.
    pub fn most_due(&self, table_bytes: u64) -> u32 {
        let hurried = SECTIONS_IN_HURRY.min(self.sections);
        if self.rewrite_all { self.sections } else { self.regular(table_bytes).max(hurried) }
    }

    /// Number of sections to rewrite for the bytes written since the last rewrite.
    fn regular(&self, table_bytes: u64) -> u32 {
        let bound = (table_bytes / 4).max(1 << 20);
        let every = bound / u64::from(self.sections) + 1;
        (self.replay_bytes / every).min(u64::from(self.sections)) as u32
    }

    /// Whether a hurry goes on.
    pub fn is_hurried(&self) -> bool {
        self.in_hurry > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of txgs that follow only because of a hurry, after one with changes, and the records that are left.
    fn hurried_txgs(rotation: &mut SectionRotation, records: &mut usize, rewrites_help: bool) -> u32 {
        let mut txgs = 0;
        loop {
            *records += 1;
            let _ = rotation.take_due(0, *records, false);
            if !rotation.is_hurried() {
                *records = if rewrites_help { 1 } else { *records };
                return txgs;
            }
            txgs += 1;
        }
    }

    #[test]
    fn a_hurry_that_does_not_help_ends_and_stays_rare() {
        let mut rotation = SectionRotation::new(1024, false);
        let (mut records, mut txgs) = (0, 0);
        for _ in 0..10_000 {
            txgs += hurried_txgs(&mut rotation, &mut records, false);
        }
        let rounds = (records / RECORDS_MAX) as u32;
        assert!(txgs <= rounds * 1024 / SECTIONS_IN_HURRY, "{txgs} txgs only for a hurry, {records} records");
        assert!(txgs > 0, "the canary: there was no hurry");
    }

    #[test]
    fn no_more_sections_are_due_than_announced() {
        for (rewrite_all, bytes) in [(false, 0), (false, 1 << 16), (false, 1 << 19), (true, 0)] {
            for hurry in [false, true] {
                let mut rotation = SectionRotation::new(64, rewrite_all);
                rotation.note_written(bytes);
                let most = rotation.most_due(0);
                assert!(
                    rotation.take_due(0, 1, hurry).count() as u32 <= most,
                    "{rewrite_all} {bytes} {hurry}"
                );
            }
        }
    }

    #[test]
    fn records_are_dropped_before_there_are_many() {
        let mut rotation = SectionRotation::new(64, false);
        let (mut records, mut most) = (0, 0);
        for _ in 0..10_000 {
            hurried_txgs(&mut rotation, &mut records, true);
            most = most.max(records);
        }
        assert!(most <= RECORDS_MAX + 8, "{most} records");
    }

    #[test]
    fn sections_are_rewritten_in_rotation() {
        let mut rotation = SectionRotation::new(5, true);
        assert_eq!(rotation.most_due(0), 5);
        assert_eq!(rotation.take_due(0, 1, false).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(rotation.take_due(0, 1, false).count(), 0);
        rotation.note_written((2 << 20) / 5 + 10);
        assert_eq!(rotation.take_due(0, 1, false).collect::<Vec<_>>(), [0, 1]);
        rotation.note_written(1 << 30);
        assert_eq!(rotation.take_due(0, 1, false).collect::<Vec<_>>(), [2, 3, 4, 0, 1]);
        let hurried: Vec<u32> = rotation.take_due(0, 1, true).collect();
        assert_eq!((hurried.len(), rotation.is_hurried()), (5, false));
    }
}
