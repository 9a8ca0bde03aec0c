//! Observed lifetimes of files, by directory and suffix.

use parking_lot::Mutex;
use terrane_space::policy::{Clock, SiblingKey, Siblings};
use terrane_wire::Txg;

/// Memory of the table of siblings, in bytes.
pub const SIBLINGS_BYTES: usize = 1 << 20;
/// Maximum number of deaths that wait for their txg to sync. Further deaths in a txg are dropped, because
/// they would push all other knowledge out of the table.
pub const DEATHS_MAX: usize = 16 << 10;

#[derive(Default)]
pub struct Fates(pub Mutex<Known>);

pub struct Known {
    pub siblings: Siblings,
    pub deaths: Vec<(SiblingKey, Txg)>,
}

impl Default for Known {
    fn default() -> Self {
        Known { siblings: Siblings::new(SIBLINGS_BYTES), deaths: Vec::new() }
    }
}

impl Fates {
    /// The txg is durable, and the clock includes it.
    pub fn settle(&self, txg: Txg, clock: &Clock) {
        let Known { siblings, deaths } = &mut *self.0.lock();
        for (key, born) in deaths.drain(..) {
            // The clock does not cover files born before the import. Very early pools have random numbers as
            // births.
            let life = if born <= txg.next() { clock.age_bytes(born) } else { None };
            if let Some(life_bytes) = life {
                siblings.died(key, life_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn die(fates: &Fates, key: SiblingKey, born: u64) {
        let known = &mut *fates.0.lock();
        known.siblings.born(key);
        known.deaths.push((key, Txg(born)));
    }

    fn expect(fates: &Fates, key: SiblingKey) -> Option<u64> {
        fates.0.lock().siblings.expect(key)
    }

    #[test]
    fn a_life_is_measured_when_its_group_has_synced() {
        let (fates, key, mut clock) = (Fates::default(), SiblingKey::new(7, b"a.tmp"), Clock::default());
        clock.note(Txg(1), 0);
        for group in 2..40u64 {
            // Each file lives for one txg, in which users write one MiB.
            die(&fates, key, group - 1);
            let before = expect(&fates, key);
            assert_eq!(before.is_some(), group > 4, "not before the group has synced");
            clock.note(Txg(group), (group - 1) << 20);
            fates.settle(Txg(group), &clock);
        }
        let life = expect(&fates, key).unwrap();
        assert!((900_000..1_200_000).contains(&life), "{life}");
    }

    #[test]
    fn births_that_cannot_be_measured_teach_nothing() {
        let (fates, key, mut clock) = (Fates::default(), SiblingKey::new(7, b"a.tmp"), Clock::default());
        clock.note(Txg(10), 1 << 30);
        for group in 11..100u64 {
            // One was born before the import. The birth of the other is no txg number.
            die(&fates, key, 3);
            die(&fates, key, 1 << 60);
            clock.note(Txg(group), (group - 9) << 30);
            fates.settle(Txg(group), &clock);
        }
        assert!(fates.0.lock().deaths.is_empty());
        assert_eq!(expect(&fates, key), Some(u64::MAX), "none is known to have died");
    }
}
