//! Observed lifetimes of files, by directory and suffix.

use parking_lot::Mutex;
use terrane_space::policy::{Clock, LifetimePredictor, SimilarityKey};
use terrane_wire::Txg;

/// Memory of the predictor's table, in bytes.
pub const SIBLINGS_BYTES: usize = 1 << 20;
/// Maximum number of deaths that wait for their txg to sync. Further deaths in a txg are dropped, because
/// they would push all other knowledge out of the table.
pub const DEATHS_MAX: usize = 16 << 10;

/// Lifetimes that are known, and deaths that are not yet committed.
#[derive(Default)]
pub struct Lifetimes(pub Mutex<LifetimeState>);

/// The content of [`Lifetimes`].
pub struct LifetimeState {
    /// Lifetimes of committed deaths.
    pub predictor: LifetimePredictor,
    /// Deleted files whose txg is not yet synced, with the txg of their birth: at most [`DEATHS_MAX`].
    pub deaths: Vec<(SimilarityKey, Txg)>,
}

impl Default for LifetimeState {
    fn default() -> Self {
        LifetimeState { predictor: LifetimePredictor::new(SIBLINGS_BYTES), deaths: Vec::new() }
    }
}

impl Lifetimes {
    /// The txg is durable, and the clock includes it.
    pub fn end_txg(&self, txg: Txg, clock: &Clock) {
        let LifetimeState { predictor, deaths } = &mut *self.0.lock();
        for (key, birth) in deaths.drain(..) {
            // The clock does not cover files born before the import. Very early pools have random numbers as
            // births.
            let life = if birth <= txg.next() { clock.age_bytes(birth) } else { None };
            if let Some(life_bytes) = life {
                predictor.note_died(key, life_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn die(lifetimes: &Lifetimes, key: SimilarityKey, birth: u64) {
        let state = &mut *lifetimes.0.lock();
        state.predictor.note_created(key);
        state.deaths.push((key, Txg(birth)));
    }

    fn expect(lifetimes: &Lifetimes, key: SimilarityKey) -> Option<u64> {
        lifetimes.0.lock().predictor.predict(key)
    }

    #[test]
    fn a_lifetime_is_measured_when_its_txg_has_synced() {
        let (lifetimes, key, mut clock) =
            (Lifetimes::default(), SimilarityKey::new(7, b"a.tmp"), Clock::default());
        clock.note(Txg(1), 0);
        for txg in 2..40u64 {
            // Each file lives for one txg, in which users write one MiB.
            die(&lifetimes, key, txg - 1);
            let before = expect(&lifetimes, key);
            assert_eq!(before.is_some(), txg > 4, "not before the group has synced");
            clock.note(Txg(txg), (txg - 1) << 20);
            lifetimes.end_txg(Txg(txg), &clock);
        }
        let life = expect(&lifetimes, key).unwrap();
        assert!((900_000..1_200_000).contains(&life), "{life}");
    }

    #[test]
    fn births_that_cannot_be_measured_teach_nothing() {
        let (lifetimes, key, mut clock) =
            (Lifetimes::default(), SimilarityKey::new(7, b"a.tmp"), Clock::default());
        clock.note(Txg(10), 1 << 30);
        for txg in 11..100u64 {
            // One was born before the import. The birth of the other is no txg number.
            die(&lifetimes, key, 3);
            die(&lifetimes, key, 1 << 60);
            clock.note(Txg(txg), (txg - 9) << 30);
            lifetimes.end_txg(Txg(txg), &clock);
        }
        assert!(lifetimes.0.lock().deaths.is_empty());
        assert_eq!(expect(&lifetimes, key), Some(u64::MAX), "none is known to have died");
    }
}
