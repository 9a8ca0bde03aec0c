//! The clock for lifetimes: bytes that users have written to the pool.
//!
//! Seconds mean little for a pool that is idle at night. How much garbage a zone gathers before it is collected depends on how much is
//! written meanwhile. So every age and lifetime in [`policy`](super) is a number of user bytes, before compression and without copies.
//! Blocks know the txg they were born in; this table maps a txg to a time.
//!
//! The table is bounded. When it is full, every second one of the older points is dropped. So old times are known coarsely and recent
//! ones well, which suffices to compare ages.
//!
//! Invariant ([`Clock::check`]): points ascend strictly by txg and never descend in bytes.

use terrane_wire::Txg;

/// Most points that are kept: 64 KiB.
const POINTS_MAX: usize = 4096;

/// User bytes written by the time a txg was committed.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    points: Vec<(Txg, u64)>,
}

impl Clock {
    /// Notes that txg `txg` was committed when users had written `bytes` in all. Txgs come in order; late ones are ignored.
    pub fn note(&mut self, txg: Txg, bytes: u64) {
        if self.points.last().is_some_and(|&(last, written)| txg <= last || bytes < written) {
            return;
        }
        // While nothing is written, the two ends of the interval suffice.
        if let [.., (_, before), (last, at)] = self.points.as_mut_slice()
            && *before == bytes
            && *at == bytes
        {
            *last = txg;
            return;
        }
        if self.points.len() >= POINTS_MAX {
            self.coarsen();
        }
        self.points.push((txg, bytes));
    }

    fn coarsen(&mut self) {
        let old = self.points.len() / 2;
        let mut at = 0;
        self.points.retain(|_| {
            at += 1;
            // The first point stays: it is the limit of what is known.
            at > old || at % 2 == 1
        });
    }

    /// User bytes up to the last txg noted. 0 before the first.
    pub fn now(&self) -> u64 {
        self.points.last().map_or(0, |&(_, bytes)| bytes)
    }

    /// User bytes when the txg was committed, interpolated between points. `None`: older than the first point, as are txgs before an
    /// import. A txg newer than the last point counts as now.
    pub fn written_at(&self, txg: Txg) -> Option<u64> {
        let after = self.points.partition_point(|&(point, _)| point < txg);
        let Some(&(next, bytes)) = self.points.get(after) else {
            return self.points.last().map(|&(_, bytes)| bytes);
        };
        if next == txg {
            return Some(bytes);
        }
        let &(last, before) = self.points.get(after.checked_sub(1)?)?;
        let (whole, elapsed) = (next.0 - last.0, txg.0 - last.0);
        let share = u128::from(bytes - before) * u128::from(elapsed) / u128::from(whole);
        Some(before + u64::try_from(share).unwrap_or(bytes - before))
    }

    /// User bytes since the txg was committed. `None`: older than the first point.
    pub fn age_bytes(&self, txg: Txg) -> Option<u64> {
        self.written_at(txg).map(|then| self.now() - then)
    }

    /// Checks the invariant above.
    pub fn check(&self) -> Result<(), String> {
        if self.points.len() > POINTS_MAX {
            return Err(format!("{} points, at most {POINTS_MAX} expected", self.points.len()));
        }
        match self.points.windows(2).find(|pair| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1) {
            Some(pair) => Err(format!("points of the clock should ascend, found {pair:?}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_older_than_the_clock_is_unknown_and_what_is_newer_is_now() {
        let mut clock = Clock::default();
        assert_eq!((clock.now(), clock.written_at(Txg(3)), clock.age_bytes(Txg(3))), (0, None, None));
        clock.note(Txg(10), 1000);
        clock.note(Txg(20), 3000);
        assert_eq!(clock.written_at(Txg(9)), None);
        assert_eq!(clock.written_at(Txg(10)), Some(1000));
        assert_eq!(clock.written_at(Txg(15)), Some(2000));
        assert_eq!(clock.age_bytes(Txg(10)), Some(2000));
        assert_eq!(clock.age_bytes(Txg(21)), Some(0));
    }

    #[test]
    fn a_pool_at_rest_takes_no_points() {
        let mut clock = Clock::default();
        for txg in 1..100_000 {
            clock.note(Txg(txg), if txg < 50_000 { 7 } else { 9 });
        }
        assert_eq!(clock.points.len(), 4);
        assert_eq!(clock.written_at(Txg(49_999)), Some(7));
        assert_eq!(clock.written_at(Txg(50_000)), Some(9));
    }

    proptest! {
        #[test]
        fn old_times_are_known_to_an_eighth_of_their_age(
            steps in prop::collection::vec((1u64..4, 0u64..1_000_000), 1..60),
            rounds in 1u64..400,
        ) {
            let mut clock = Clock::default();
            let mut whole = vec![(Txg(0), 0)];
            clock.note(Txg(0), 0);
            let (mut txg, mut bytes) = (0, 0);
            for _ in 0..rounds {
                for (txgs, written) in &steps {
                    (txg, bytes) = (txg + txgs, bytes + written);
                    clock.note(Txg(txg), bytes);
                    whole.push((Txg(txg), bytes));
                }
            }
            prop_assert_eq!(clock.check(), Ok(()));
            prop_assert_eq!(clock.now(), bytes);
            for (txg, then) in whole {
                let known = clock.written_at(txg).expect("nothing here is older than the first point");
                // A dropped point lies between points at most an eighth of its age apart, or one txg apart where txgs are large.
                let apart = known.abs_diff(then);
                prop_assert!(apart <= (bytes - then) / 8 + 8_000_000, "{txg}: {known}, not {then}, of {bytes}");
            }
        }
    }
}
