//! The rate of input: bytes per second, now.
//!
//! A flood must be seen while its first txg fills. A writer that brings some megabytes every second must not look
//! like a flood just after it did. So there are two means, a fast one and a slow one, and the larger counts. A flood
//! is seen at once, and it must be over for a while before it counts as over.

/// Time constants of the two means, in seconds.
const FAST_S: f64 = 0.05;
const SLOW_S: f64 = 1.0;
/// Input within so many nanoseconds is counted together, so adding is cheap.
const COALESCE_NS: u64 = 5_000_000;

/// Input bytes by the time of their arrival. Times are nanoseconds since any fixed moment; an earlier time counts as
/// the one before it.
#[derive(Clone, Debug, Default)]
pub struct Inflow {
    since_ns: u64,
    /// Bytes since `since_ns`.
    bytes: u64,
    /// Means before `since_ns`, in bytes per second.
    fast: f64,
    slow: f64,
}

impl Inflow {
    /// Counts `bytes` that arrive at `now_ns`.
    pub fn add(&mut self, now_ns: u64, bytes: u64) {
        self.fold(now_ns);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The rate of input at `now_ns`: the larger of the two means.
    pub fn bytes_per_s(&mut self, now_ns: u64) -> f64 {
        self.fold(now_ns);
        self.fast.max(self.slow)
    }

    fn fold(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if passed_ns < COALESCE_NS {
            return;
        }
        let seconds = passed_ns as f64 / 1e9;
        let found = self.bytes as f64 / seconds;
        for (rate, over_s) in [(&mut self.fast, FAST_S), (&mut self.slow, SLOW_S)] {
            *rate += (found - *rate) * (1.0 - (-seconds / over_s).exp());
        }
        (self.since_ns, self.bytes) = (now_ns, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Bytes of `each` every `every_ms`, from `from_ms` to `to_ms`.
    fn bring(inflow: &mut Inflow, each: u64, every_ms: u64, (from_ms, to_ms): (u64, u64)) {
        for at in (from_ms..to_ms).step_by(every_ms as usize) {
            inflow.add(at * MS, each);
        }
    }

    #[test]
    fn a_flood_is_seen_at_once_and_gone_after_a_while() {
        let mut inflow = Inflow::default();
        bring(&mut inflow, 600_000, 1, (60_000, 60_065));
        let found = inflow.bytes_per_s(60_065 * MS);
        assert!((400e6..600e6).contains(&found), "{found}");
        let after = [100, 1000, 5000].map(|ms| inflow.bytes_per_s((60_065 + ms) * MS));
        assert!(after[0] < 100e6 && after[1] < 30e6 && after[2] < 1e6, "{after:?}");
    }

    #[test]
    fn a_steady_stream_is_as_large_as_it_is() {
        for (each, every_ms) in [(5_000, 1), (50_000, 10), (1_000_000, 200)] {
            let mut inflow = Inflow::default();
            bring(&mut inflow, each, every_ms, (0, 20_000));
            let found = inflow.bytes_per_s(20_000 * MS);
            assert!((4e6..20e6).contains(&found), "{found} of 5 MB/s in pieces of {each}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_does_no_harm() {
        let mut inflow = Inflow::default();
        inflow.add(100 * MS, 1000);
        inflow.add(50 * MS, 1000);
        let found = inflow.bytes_per_s(200 * MS);
        assert!(found > 0.0 && found.is_finite());
        assert_eq!(inflow.bytes_per_s(0), found);
    }
}
