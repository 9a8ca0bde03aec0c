//! How fast small changes may go where collection is what gives room.

/// The pace of groups that room is given by, in picoseconds a byte: what is believed of them, at the least and at the most. Slower ones
/// have writers wait for room, as they would without a pace.
const PACE_MIN_PS: u64 = 100;
const PACE_MAX_PS: u64 = 20_000;
/// Groups in which fewer bytes were reserved tell how long a commit takes, and nothing of room.
const PACE_TELLING_BYTES: u64 = 512 << 10;
/// Groups that end as far apart as this, in nanoseconds, say nothing of the pace: nobody was in a hurry.
const PACE_IDLE_NS: u64 = 250_000_000;

/// Small changes are committed when one part of so many of what is kept ahead is reserved: what groups take at once is then little beside
/// what is left. But not less than so many bytes, if that is no more than half: small groups write the same metadata again and again.
const GROUP_PART: u64 = 4;
const GROUP_BYTES_MIN: u64 = 4 << 20;

/// No change is delayed longer.
pub const DELAY_MAX_NS: u64 = 100_000_000;

/// Bytes reserved with which a group of small changes begins, where so many are kept ahead.
pub fn group_bytes(ahead: u64) -> u64 {
    (ahead / GROUP_PART).max(GROUP_BYTES_MIN.min(ahead / 2))
}

/// How fast groups have given room lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Picoseconds for a byte that was reserved; 0: not known.
    ps: u64,
    /// When the last group ended.
    ended_ns: u64,
    /// When the last change that was delayed may go on.
    pub wake_ns: u64,
}

impl Pace {
    /// A group ended in which so many bytes were reserved.
    pub fn note(&mut self, now_ns: u64, reserved: u64) {
        let took = now_ns.saturating_sub(std::mem::replace(&mut self.ended_ns, now_ns));
        if took >= PACE_IDLE_NS || reserved < PACE_TELLING_BYTES {
            // What was learned before is believed less and less, or who is slow because of it would stay slow.
            self.ps -= self.ps / 8;
            return;
        }
        let sample = u128::from(took) * 1000 / u128::from(reserved);
        let sample = u64::try_from(sample).unwrap_or(u64::MAX).clamp(PACE_MIN_PS, PACE_MAX_PS);
        self.ps = if self.ps == 0 { sample } else { self.ps - self.ps / 4 + sample / 4 };
    }

    /// Nanoseconds for a change that reserves `need` bytes while `left` of the `ahead` bytes of room are left: nothing when all is, the
    /// pace of the groups when half is, and with more left less than that pace, or groups that have become slow would stay so. Room comes
    /// in steps, so half of it is what writers live on until the next one.
    pub fn delay_ns(&self, need: u64, left: u64, ahead: u64) -> u64 {
        let (missing, ahead) = (u128::from(ahead.saturating_sub(left)), u128::from(ahead.max(1)));
        let ps = u128::from(need) * u128::from(self.ps) * missing * missing / (ahead * ahead) * 4;
        u64::try_from(ps / 1000).unwrap_or(u64::MAX).min(DELAY_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_begins_long_before_what_is_ahead_is_gone() {
        for ahead in [64 << 10, 1 << 20, 7 << 20, 8 << 20, 64 << 20, 1 << 30] {
            let group = group_bytes(ahead);
            assert!(group <= ahead / 2 && group >= ahead / 4, "of {ahead}: {group}");
            assert!(group >= (4 << 20).min(ahead / 2), "of {ahead}: {group}");
        }
    }

    #[test]
    fn small_changes_go_at_the_pace_of_groups_when_room_is_short() {
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
