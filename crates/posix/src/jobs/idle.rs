//! Recompression of cold files while the mount is idle: the property `recompress`.
//!
//! A walk goes through all objects of the data set in number order. A file that was not changed for some days
//! has its records tried at a high level, one by one. A record that shrinks by an eighth is stored that way.
//! The caller decides when there is time, and one step is one record.
//!
//! No record is tried twice. A rewritten one carries its level, and the others were tried by an earlier walk.
//! Each walk only checks files last changed before its *cutoff*, and skips those that the previous walk
//! covered. Position and cutoffs are stored in the master ZAP, in each txg in which the walk advanced.
//!
//! Invariant: a cutoff never decreases, unless the clock did.

use crate::master::{Cursor, Master, Words};
use crate::types::Ino;
use parking_lot::Mutex;
use std::collections::VecDeque;
use terrane_codec::Compression;
use terrane_dataset::DatasetError;
use terrane_pool::Tx;

const WORDS: usize = 7;
const NAMES: [&str; WORDS] = [
    "recompress.before",
    "recompress.cutoff",
    "recompress.object",
    "recompress.record",
    "recompress.records",
    "recompress.from",
    "recompress.to",
];
/// Minimum time between the cutoffs of two walks, in seconds. More frequent walks would read all dnodes for few
/// files.
const WALK_SECS_MIN: i64 = 3600;
/// Larger records get zstd-9. So no record takes more than a few tenths of a second, and requests wait no
/// longer.
const LARGE_BYTES: u32 = 1 << 20;

/// The compression of a cold record of this size.
pub(crate) fn level_of(record_bytes: u32) -> Compression {
    let word = if record_bytes > LARGE_BYTES { "zstd-9" } else { "zstd-19" };
    word.parse().expect("both are levels")
}

/// Whether recompression pays: the stored size must shrink by an eighth.
pub(crate) fn is_worth(before_bytes: u64, after_bytes: u64) -> bool {
    after_bytes <= before_bytes - before_bytes / 8
}

/// What recompression has done to this data set since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecompressStatus {
    /// A walk is in progress.
    pub is_under_way: bool,
    /// Number of rewritten records, and their stored size before and after.
    pub records: u64,
    pub before_bytes: u64,
    pub after_bytes: u64,
}

/// Progress of recompression. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ground {
    /// Files last changed before this were tried by finished walks.
    pub before: u64,
    /// Cutoff of the current walk; 0: none.
    pub cutoff: u64,
    /// Position of the current walk: object and record.
    pub object: u64,
    pub record: u64,
    pub records: u64,
    pub before_bytes: u64,
    pub after_bytes: u64,
}

impl Cursor<WORDS> for Ground {
    const NAMES: [&'static str; WORDS] = NAMES;

    fn to_words(&self) -> [u64; WORDS] {
        let Ground { before, cutoff, object, record, records, before_bytes, after_bytes } = *self;
        [before, cutoff, object, record, records, before_bytes, after_bytes]
    }

    fn from_words(words: [u64; WORDS]) -> Option<Ground> {
        let [before, cutoff, object, record, records, before_bytes, after_bytes] = words;
        Some(Ground { before, cutoff, object, record, records, before_bytes, after_bytes })
    }
}

/// The next action after the last walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Not enough time has passed for files to become cold.
    Nothing,
    Begin {
        cutoff: u64,
    },
    GoOn,
}

pub(crate) fn next(ground: &Ground, now_secs: i64, days: u32) -> Next {
    if ground.cutoff != 0 {
        return Next::GoOn;
    }
    let cutoff = now_secs - i64::from(days) * 86_400;
    let since = i64::try_from(ground.before).unwrap_or(i64::MAX);
    match u64::try_from(cutoff) {
        Ok(cutoff) if cutoff > 0 && now_secs - i64::from(days) * 86_400 - since >= WALK_SECS_MIN => {
            Next::Begin { cutoff }
        }
        _ => Next::Nothing,
    }
}

pub(crate) struct Idle {
    pub words: Words<Ground, WORDS>,
    pub ground: Mutex<Ground>,
    /// Used by the thread that runs steps: files of the dnode block that the walk is in.
    pub ahead: Mutex<VecDeque<Ino>>,
}

impl Idle {
    pub fn load(master: &Master) -> Result<Idle, DatasetError> {
        let (words, ground) = Words::load(master)?;
        Ok(Idle { words, ground: Mutex::new(ground.unwrap_or_default()), ahead: Mutex::default() })
    }

    /// Stores the progress. `last` is the only transaction left in the txg.
    pub fn store(&self, last: &Tx) {
        let ground = *self.ground.lock();
        self.words.store(last, &ground);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    #[test]
    fn a_walk_begins_when_something_may_have_become_cold() {
        let now = 20_000 * DAY;
        let new = Ground::default();
        assert_eq!(next(&new, now, 7), Next::Begin { cutoff: (now - 7 * DAY) as u64 });
        let done = Ground { before: (now - 7 * DAY) as u64, ..new };
        assert_eq!(next(&done, now, 7), Next::Nothing);
        assert_eq!(next(&done, now + WALK_SECS_MIN - 1, 7), Next::Nothing);
        assert_eq!(
            next(&done, now + WALK_SECS_MIN, 7),
            Next::Begin { cutoff: (now - 7 * DAY + WALK_SECS_MIN) as u64 }
        );
        assert_eq!(next(&done, now, 6), Next::Begin { cutoff: (now - 6 * DAY) as u64 }, "more is cold now");
        assert_eq!(next(&done, now, 30), Next::Nothing, "less is");
        assert_eq!(next(&Ground { cutoff: 5, ..done }, now, 30), Next::GoOn);
        // The clock was set back, or was never right.
        assert_eq!(next(&done, now - 100 * DAY, 7), Next::Nothing);
        assert_eq!(next(&new, 3 * DAY, 7), Next::Nothing);
        assert_eq!(next(&Ground { before: u64::MAX, ..new }, now, 0), Next::Nothing);
    }

    #[test]
    fn an_eighth_is_worth_it() {
        assert!(is_worth(8000, 7000) && !is_worth(8000, 7001) && !is_worth(16, 16) && is_worth(16, 14));
    }

    #[test]
    fn one_record_never_takes_long() {
        assert_eq!(level_of(128 << 10).to_string(), "zstd-19");
        assert_eq!(level_of(1 << 20).to_string(), "zstd-19");
        assert_eq!(level_of(16 << 20).to_string(), "zstd-9");
    }

    #[test]
    fn ground_comes_back_from_its_words() {
        let ground = Ground {
            before: 1,
            cutoff: 2,
            object: 3,
            record: 4,
            records: 5,
            before_bytes: 6,
            after_bytes: 7,
        };
        assert_eq!(Ground::from_words(ground.to_words()), Some(ground));
    }
}
