//! Write-lifetime hints: when an application or administrator expects data to die.
//!
//! The values are those of Linux's `RWH_WRITE_LIFE_*`. How well a file fits a zone follows the table of XFS for zoned devices. Only
//! short with short and medium with medium are *good*, because those die together. Unhinted data with its like, and long with extreme,
//! are *acceptable*. All else shares a zone only as a last resort.

/// The lifetime hint of a file, directory or data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Hint {
    /// No hint was set.
    #[default]
    NotSet = 0,
    /// The hint says explicitly that the lifetime is unknown.
    None = 1,
    /// The data dies soon.
    Short = 2,
    /// The data lives longer than short-lived data.
    Medium = 3,
    /// The data lives for a long time.
    Long = 4,
    /// The data lives almost for ever.
    Extreme = 5,
}

/// How well data suits a zone. Greater is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// Only as a last resort.
    Any,
    /// Together with data whose lifetime may be similar.
    Acceptable,
    /// Together with data that dies at the same time.
    Good,
}

impl Hint {
    /// All hints, by number.
    pub const ALL: [Hint; 6] =
        [Hint::NotSet, Hint::None, Hint::Short, Hint::Medium, Hint::Long, Hint::Extreme];

    /// The hint with this number. `None`: there is none.
    pub fn from_id(id: u64) -> Option<Hint> {
        Hint::ALL.into_iter().find(|hint| *hint as u64 == id)
    }

    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            Hint::NotSet => "not-set",
            Hint::None => "none",
            Hint::Short => "short",
            Hint::Medium => "medium",
            Hint::Long => "long",
            Hint::Extreme => "extreme",
        }
    }

    /// The hint with this name for users.
    pub fn from_name(name: &str) -> Option<Hint> {
        Hint::ALL.into_iter().find(|hint| hint.name() == name)
    }

    /// Whether the hint states a lifetime.
    pub fn has_lifetime(self) -> bool {
        self >= Hint::Short
    }

    /// How well data with the hint `data` suits a zone whose first hinted data had this hint.
    pub fn suits(self, data: Hint) -> Match {
        use Hint::{Extreme, Long, Medium, NotSet, Short};
        match (self, data) {
            (Short, Short) | (Medium, Medium) => Match::Good,
            (NotSet, NotSet) | (Hint::None, Hint::None) => Match::Acceptable,
            (Long | Extreme, Long | Extreme) => Match::Acceptable,
            _ => Match::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_come_back() {
        for hint in Hint::ALL {
            assert_eq!(Hint::from_id(hint as u64), Some(hint));
            assert_eq!(Hint::from_name(hint.name()), Some(hint));
        }
        assert_eq!((Hint::from_id(6), Hint::from_name("forever")), (None, None));
    }

    #[test]
    fn the_table_is_symmetric_and_only_what_dies_together_is_good() {
        for a in Hint::ALL {
            for b in Hint::ALL {
                assert_eq!(a.suits(b), b.suits(a), "{a:?} {b:?}");
                let good = a == b && matches!(a, Hint::Short | Hint::Medium);
                assert_eq!(a.suits(b) == Match::Good, good, "{a:?} {b:?}");
            }
        }
        assert_eq!(Hint::Long.suits(Hint::Extreme), Match::Acceptable);
        assert_eq!(Hint::NotSet.suits(Hint::None), Match::Any);
    }
}
