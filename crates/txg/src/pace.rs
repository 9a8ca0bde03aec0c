//! Pacing of small operations where garbage collection provides the free space.

/// Bounds of the measured pace, in picoseconds per reserved byte. If txgs are slower than the maximum,
/// writers wait for space as they would without a pace.
const PACE_MIN_PS: u64 = 100;
const PACE_MAX_PS: u64 = 20_000;
/// Txgs with fewer reserved bytes are not measured: they show how long a commit takes, not how fast space
/// comes.
const PACE_BYTES_MIN: u64 = 512 << 10;
/// Txgs that end at least this far apart are not measured: writers were not limited by space.
const PACE_IDLE_NS: u64 = 250_000_000;

/// A txg of small operations is committed when 1/`TXG_DIVISOR` of the low watermark is reserved, so that one
/// txg takes little of what is left. The least is `TXG_BYTES_MIN`, or half of the watermark if that is
/// smaller. Smaller txgs would rewrite the same metadata again and again.
const TXG_DIVISOR: u64 = 4;
const TXG_BYTES_MIN: u64 = 4 << 20;

/// Maximum delay of one operation.
pub const DELAY_MAX_NS: u64 = 100_000_000;

/// Reserved bytes at which a txg of small operations is committed. `margin`: bytes that GC keeps writable,
/// the low watermark.
pub fn txg_bytes(margin: u64) -> u64 {
    (margin / TXG_DIVISOR).max(TXG_BYTES_MIN.min(margin / 2))
}

/// How fast txgs have provided space lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Picoseconds per reserved byte; 0: unknown.
    ps: u64,
    /// End of the last txg.
    ended_ns: u64,
    /// When the operation that was delayed last may continue.
    pub wake_ns: u64,
}

impl Pace {
    /// A txg ended in which `reserved` bytes were reserved.
    pub fn note(&mut self, now_ns: u64, reserved: u64) {
        let took = now_ns.saturating_sub(std::mem::replace(&mut self.ended_ns, now_ns));
        if took >= PACE_IDLE_NS || reserved < PACE_BYTES_MIN {
            // The measured pace decays. Otherwise writers that are slow because of it would stay slow.
            self.ps -= self.ps / 8;
            return;
        }
        let sample = u128::from(took) * 1000 / u128::from(reserved);
        let sample = u64::try_from(sample).unwrap_or(u64::MAX).clamp(PACE_MIN_PS, PACE_MAX_PS);
        self.ps = if self.ps == 0 { sample } else { self.ps - self.ps / 4 + sample / 4 };
    }

    /// Delay in nanoseconds of an operation that reserves `need` bytes, while `left` of `margin` bytes are
    /// free.
    ///
    /// The delay is `need` x pace x 4 x ((`margin` - `left`) / `margin`)^2, at most [`DELAY_MAX_NS`]. It is
    /// zero if all is free, and the measured pace if half is. With more free space writers are faster than
    /// the pace, else slow txgs would stay slow. Space comes in steps, so writers live on half of it until
    /// the next step.
    pub fn delay_ns(&self, need: u64, left: u64, margin: u64) -> u64 {
        let (missing, margin) = (u128::from(margin.saturating_sub(left)), u128::from(margin.max(1)));
        let ps = u128::from(need) * u128::from(self.ps) * missing * missing / (margin * margin) * 4;
        u64::try_from(ps / 1000).unwrap_or(u64::MAX).min(DELAY_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_txg_begins_well_before_free_space_is_used_up() {
        for margin in [64 << 10, 1 << 20, 7 << 20, 8 << 20, 64 << 20, 1 << 30] {
            let bytes = txg_bytes(margin);
            assert!(bytes <= margin / 2 && bytes >= margin / 4, "of {margin}: {bytes}");
            assert!(bytes >= (4 << 20).min(margin / 2), "of {margin}: {bytes}");
        }
    }

    #[test]
    fn small_operations_are_paced_when_space_is_short() {
        let mut pace = Pace::default();
        assert_eq!(pace.delay_ns(1 << 20, 0, 1 << 20), 0, "nothing is known");
        pace.note(1_000_000_000, 1 << 20);
        assert_eq!(pace.ps, 0, "it was idle before");
        for nth in 1..=20 {
            pace.note(1_000_000_000 + nth * 20_000_000, 2_000_000);
        }
        // 2 MB in 20 ms.
        assert!((9_990..=10_000).contains(&pace.ps), "{}", pace.ps);
        let delay = |left: u64| pace.delay_ns(4_000, left, 1_000_000);
        assert_eq!((delay(1_000_000), delay(2_000_000)), (0, 0), "there is enough");
        assert!((159_000..=160_000).contains(&delay(0)), "{}", delay(0));
        assert!((39_000..=40_000).contains(&delay(500_000)), "the pace of groups: {}", delay(500_000));
        assert!(
            delay(250_000) > 60_000 && delay(600_000) < 30_000,
            "room is kept, and who is slow gets faster"
        );
        let before = pace.ps;
        pace.note(9_000_000_000, 2_000_000);
        assert_eq!(pace.ps, before - before / 8, "nobody was in a hurry");
        for nth in 1..=100 {
            pace.note(9_000_000_000 + nth * 20_000_000, 100_000);
        }
        assert!(
            pace.ps < 10,
            "commits of little say nothing, and what was believed is forgotten: {}",
            pace.ps
        );
        for nth in 1..=100 {
            pace.note(20_000_000_000 + nth * 200_000_000, 600_000);
        }
        assert!(pace.delay_ns(12_000, 0, 1_000_000) <= 960_000, "never so slow that it feeds on itself");
    }
}
