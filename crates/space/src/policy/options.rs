use crate::policy::VictimPolicy;

/// An administrator's settings for collection and placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionOptions {
    /// How victims are chosen.
    pub victims: VictimPolicy,
    /// When the pool is idle: garbage that could wait is collected then. `None`: not set.
    pub idle: Option<IdleWindow>,
    /// How many zones placement may have open at once, beside the anchors. `None`: as the drives allow. Those for which space is kept
    /// are open in any case.
    pub open_zones_max: Option<u32>,
}

/// A window of every day, in minutes since midnight, each below [`IdleWindow::DAY_MINUTES`]. If `end` is before `first`, it spans
/// midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleWindow {
    first: u16,
    end: u16,
}

impl IdleWindow {
    /// Minutes of a day.
    pub const DAY_MINUTES: u16 = 24 * 60;

    /// `None`: the minutes are out of range, or the window is empty.
    pub fn new(first: u16, end: u16) -> Option<IdleWindow> {
        let is_valid = first < Self::DAY_MINUTES && end < Self::DAY_MINUTES && first != end;
        is_valid.then_some(IdleWindow { first, end })
    }

    /// The first minute of the window.
    pub fn first(self) -> u16 {
        self.first
    }

    /// The first minute after the window.
    pub fn end(self) -> u16 {
        self.end
    }

    /// Whether a minute since midnight is in the window.
    pub fn contains(self, minute: u16) -> bool {
        if self.first < self.end {
            (self.first..self.end).contains(&minute)
        } else {
            minute >= self.first || minute < self.end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_go_over_midnight() {
        let day = IdleWindow::new(60, 120).unwrap();
        let night = IdleWindow::new(1430, 10).unwrap();
        let inside =
            |window: IdleWindow| [0, 9, 10, 59, 60, 119, 120, 1429, 1430, 1439].map(|at| window.contains(at));
        assert_eq!(inside(day), [false, false, false, false, true, true, false, false, false, false]);
        assert_eq!(inside(night), [true, true, false, false, false, false, false, false, true, true]);
        assert_eq!([(5, 5), (1440, 0), (0, 1440)].map(|(first, end)| IdleWindow::new(first, end)), [None; 3]);
    }
}
