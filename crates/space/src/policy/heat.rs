//! Lifetimes: which data will die soon, and which has proved to live long.
//!
//! Blocks overwritten soon after their write tend to be overwritten soon again (SepBIT, FAST 2022). *l* is the mean life of a zone of
//! such hot data, from its opening until it is collected or its last block dies. A block is hot if its predecessor lived for less than
//! *l*. Blocks with predecessors below 4 and 16 *l* form two more classes. GC survivors are split by age in units of *l*: the older,
//! the longer they will live.
//!
//! The age of a block is that of its birth txg, and a zone's blocks are born in order. So all survivors of a birth range get one class,
//! and a run has one home.

use crate::policy::Hint;

/// Number of zones in the mean.
const MEAN_ZONES: u64 = 16;
/// The initial *l* is this fraction of the pool. So survivors younger than a quarter of the pool are young, and those older than the
/// pool are old.
const INITIAL_DIVISOR: u64 = 16;

/// How soon a survivor may die, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Age {
    /// Under 4 *l*.
    Young,
    /// Under 16 *l*.
    Middle,
    /// All others, also if the age is unknown.
    Old,
}

impl Age {
    /// All ages, youngest first.
    pub const ALL: [Age; 3] = [Age::Young, Age::Middle, Age::Old];

    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            Age::Young => "young",
            Age::Middle => "middle",
            Age::Old => "old",
        }
    }
}

/// How soon a new version of a block may die, by the life of the version it replaces. Ordered by life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Heat {
    /// Under *l*.
    Hot,
    /// Under 4 *l*.
    Warm,
    /// Under 16 *l*.
    Tepid,
    /// All others, also all data with a hint that states a lifetime.
    Cold,
}

/// The mean life of hot data.
#[derive(Clone, Debug, Default)]
pub struct HotLifetime {
    mean_bytes: Option<u64>,
    sum_bytes: u64,
    zones: u64,
}

impl HotLifetime {
    /// For a pool of `pool_bytes` bytes. A fraction of it serves as *l* until zones have been measured.
    pub fn new(pool_bytes: u64) -> HotLifetime {
        HotLifetime { mean_bytes: Some(pool_bytes / INITIAL_DIVISOR), ..HotLifetime::default() }
    }

    /// Notes the end of a zone of hot data: collected, or its last block died. Users wrote `life_bytes` since it was opened.
    pub fn note_hot_zone(&mut self, life_bytes: u64) {
        self.sum_bytes = self.sum_bytes.saturating_add(life_bytes);
        self.zones += 1;
        if self.zones == MEAN_ZONES {
            self.mean_bytes = Some(self.sum_bytes / MEAN_ZONES);
            (self.sum_bytes, self.zones) = (0, 0);
        }
    }

    /// *l*, in user bytes. `None` until enough zones were measured.
    pub fn mean_bytes(&self) -> Option<u64> {
        self.mean_bytes
    }

    /// How soon a new block may die. `previous_age` is the life of the version it replaces; `None`: there is none, or it is unknown.
    /// `expected` is the life of similar files, used only without `previous_age`. Blocks with a hint are cold: they have their own
    /// zones, which would distort *l*.
    pub fn heat(&self, previous_age: Option<u64>, hint: Hint, expected: Option<u64>) -> Heat {
        if hint.has_lifetime() {
            return Heat::Cold;
        }
        match (previous_age, self.mean_bytes) {
            (Some(life), Some(mean)) if life < mean => Heat::Hot,
            (Some(life), Some(mean)) if life / 4 < mean => Heat::Warm,
            (Some(life), Some(mean)) if life / 16 < mean => Heat::Tepid,
            // Until *l* is known, a block that was replaced once counts as hot.
            (Some(_), None) => Heat::Hot,
            // New files with an expected life have lanes of their own. Here it only decides which zones are measured for *l*.
            (None, Some(mean)) if expected.is_some_and(|life| life < mean) => Heat::Hot,
            _ => Heat::Cold,
        }
    }

    /// The class of a survivor that was born `age_bytes` ago. `None`: longer ago than known.
    pub fn age(&self, age_bytes: Option<u64>) -> Age {
        match (age_bytes, self.mean_bytes) {
            (Some(age), Some(mean)) if age / 4 < mean => Age::Young,
            (Some(age), Some(mean)) if age / 16 < mean => Age::Middle,
            (Some(_), None) => Age::Young,
            _ => Age::Old,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mean: u64) -> HotLifetime {
        let mut lifetime = HotLifetime::default();
        (0..MEAN_ZONES).for_each(|_| lifetime.note_hot_zone(mean));
        lifetime
    }

    #[test]
    fn the_mean_is_that_of_the_last_sixteen_zones() {
        let mut lifetime = HotLifetime::default();
        for life in 0..15 {
            lifetime.note_hot_zone(life * 10);
            assert_eq!(lifetime.mean_bytes(), None);
        }
        lifetime.note_hot_zone(150);
        assert_eq!(lifetime.mean_bytes(), Some(75));
        (0..16).for_each(|_| lifetime.note_hot_zone(8));
        assert_eq!(lifetime.mean_bytes(), Some(8));
    }

    #[test]
    fn heat_prefers_the_predecessor_and_hinted_data_is_cold() {
        let lifetime = measured(100);
        let heat = |age, hint, expected| lifetime.heat(age, hint, expected);
        assert_eq!(heat(Some(99), Hint::NotSet, None), Heat::Hot);
        assert_eq!(heat(Some(100), Hint::NotSet, Some(1)), Heat::Warm);
        assert_eq!(heat(Some(400), Hint::NotSet, None), Heat::Tepid);
        assert_eq!(heat(Some(1600), Hint::NotSet, Some(1)), Heat::Cold);
        assert_eq!(heat(None, Hint::NotSet, Some(99)), Heat::Hot);
        for hint in [Hint::Short, Hint::Long] {
            assert_eq!(heat(Some(1), hint, Some(1)), Heat::Cold);
        }
        assert_eq!(heat(None, Hint::None, None), Heat::Cold);
        assert_eq!(HotLifetime::default().heat(Some(1 << 40), Hint::NotSet, None), Heat::Hot);
        assert_eq!(HotLifetime::default().heat(None, Hint::NotSet, Some(1)), Heat::Cold);
    }

    #[test]
    fn a_new_pool_starts_with_a_fraction_of_its_size() {
        let mut lifetime = HotLifetime::new(1 << 30);
        assert_eq!(lifetime.mean_bytes(), Some(1 << 26));
        let heat = |age| lifetime.heat(Some(age), Hint::NotSet, None);
        assert_eq!((heat((1 << 26) - 1), heat(1 << 26)), (Heat::Hot, Heat::Warm));
        assert_eq!((lifetime.age(Some((1 << 28) - 1)), lifetime.age(Some(1 << 30))), (Age::Young, Age::Old));
        (0..MEAN_ZONES).for_each(|_| lifetime.note_hot_zone(7));
        assert_eq!(lifetime.mean_bytes(), Some(7));
    }

    #[test]
    fn age_of_survivors_is_in_units_of_the_mean() {
        let known = measured(100);
        assert_eq!(known.age(Some(399)), Age::Young);
        assert_eq!(known.age(Some(400)), Age::Middle);
        assert_eq!(known.age(Some(1599)), Age::Middle);
        assert_eq!(known.age(Some(1600)), Age::Old);
        assert_eq!(known.age(None), Age::Old);
        assert_eq!(HotLifetime::default().age(Some(u64::MAX)), Age::Young);
        assert_eq!(HotLifetime::default().age(None), Age::Old);
    }
}
