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

use crate::master::{JobCursor, Master, StoredCursor};
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
pub(crate) fn level_for(record_bytes: u32) -> Compression {
    let level = if record_bytes > LARGE_BYTES { "zstd-9" } else { "zstd-19" };
    level.parse().expect("a valid zstd level")
}

/// Whether recompression pays: the stored size must shrink by an eighth.
pub(crate) fn is_worthwhile(before_bytes: u64, after_bytes: u64) -> bool {
    after_bytes <= before_bytes - before_bytes / 8
}

/// What recompression has done to this data set since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecompressStatus {
    /// A walk is in progress.
    pub is_running: bool,
    /// Number of rewritten records.
    pub records: u64,
    /// Stored size of rewritten records before, in bytes.
    pub before_bytes: u64,
    /// Stored size of rewritten records after, in bytes.
    pub after_bytes: u64,
}

/// Progress of recompression. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecompressProgress {
    /// Files last changed before this were tried by finished walks.
    pub before: u64,
    /// Cutoff of the current walk; 0: none.
    pub cutoff: u64,
    /// Position of the current walk: object and record.
    pub object: u64,
    /// Number of the next record in that object.
    pub record: u64,
    /// As [`RecompressStatus::records`].
    pub records: u64,
    /// As [`RecompressStatus::before_bytes`].
    pub before_bytes: u64,
    /// As [`RecompressStatus::after_bytes`].
    pub after_bytes: u64,
}

impl JobCursor<WORDS> for RecompressProgress {
    const NAMES: [&'static str; WORDS] = NAMES;

    fn to_words(&self) -> [u64; WORDS] {
        let RecompressProgress { before, cutoff, object, record, records, before_bytes, after_bytes } = *self;
        [before, cutoff, object, record, records, before_bytes, after_bytes]
    }

    fn from_words(words: [u64; WORDS]) -> Option<RecompressProgress> {
        let [before, cutoff, object, record, records, before_bytes, after_bytes] = words;
        Some(RecompressProgress { before, cutoff, object, record, records, before_bytes, after_bytes })
    }
}

/// The next action after the last walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// Not enough time has passed for files to become cold.
    Wait,
    Begin {
        cutoff: u64,
    },
    Continue,
}

pub(crate) fn next_action(progress: &RecompressProgress, now_secs: i64, days: u32) -> NextAction {
    if progress.cutoff != 0 {
        return NextAction::Continue;
    }
    let cutoff = now_secs - i64::from(days) * 86_400;
    let since = i64::try_from(progress.before).unwrap_or(i64::MAX);
    match u64::try_from(cutoff) {
        Ok(cutoff) if cutoff > 0 && now_secs - i64::from(days) * 86_400 - since >= WALK_SECS_MIN => {
            NextAction::Begin { cutoff }
        }
        _ => NextAction::Wait,
    }
}

pub(crate) struct RecompressState {
    /// The progress as stored.
    pub cursor: StoredCursor<RecompressProgress, WORDS>,
    /// The progress in memory, which is ahead of the stored one within a txg.
    pub progress: Mutex<RecompressProgress>,
    /// Used by the thread that runs steps: files of the dnode block that the walk is in.
    pub pending_files: Mutex<VecDeque<Ino>>,
}

impl RecompressState {
    /// Loads the stored progress; none counts as zero.
    pub fn load(master: &Master) -> Result<RecompressState, DatasetError> {
        let (cursor, progress) = StoredCursor::load(master)?;
        Ok(RecompressState {
            cursor,
            progress: Mutex::new(progress.unwrap_or_default()),
            pending_files: Mutex::default(),
        })
    }

    /// Stores the progress. `last` is the only transaction left in the txg.
    pub fn store(&self, last: &Tx) {
        let progress = *self.progress.lock();
        self.cursor.store(last, &progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    #[test]
    fn a_walk_begins_when_something_may_have_become_cold() {
        let now = 20_000 * DAY;
        let new = RecompressProgress::default();
        assert_eq!(next_action(&new, now, 7), NextAction::Begin { cutoff: (now - 7 * DAY) as u64 });
        let done = RecompressProgress { before: (now - 7 * DAY) as u64, ..new };
        assert_eq!(next_action(&done, now, 7), NextAction::Wait);
        assert_eq!(next_action(&done, now + WALK_SECS_MIN - 1, 7), NextAction::Wait);
        assert_eq!(
            next_action(&done, now + WALK_SECS_MIN, 7),
            NextAction::Begin { cutoff: (now - 7 * DAY + WALK_SECS_MIN) as u64 }
        );
        assert_eq!(
            next_action(&done, now, 6),
            NextAction::Begin { cutoff: (now - 6 * DAY) as u64 },
            "more is cold now"
        );
        assert_eq!(next_action(&done, now, 30), NextAction::Wait, "less is");
        assert_eq!(next_action(&RecompressProgress { cutoff: 5, ..done }, now, 30), NextAction::Continue);
        // The clock was set back, or was never right.
        assert_eq!(next_action(&done, now - 100 * DAY, 7), NextAction::Wait);
        assert_eq!(next_action(&new, 3 * DAY, 7), NextAction::Wait);
        assert_eq!(next_action(&RecompressProgress { before: u64::MAX, ..new }, now, 0), NextAction::Wait);
    }

    #[test]
    fn recompression_must_save_an_eighth() {
        assert!(
            is_worthwhile(8000, 7000)
                && !is_worthwhile(8000, 7001)
                && !is_worthwhile(16, 16)
                && is_worthwhile(16, 14)
        );
    }

    #[test]
    fn one_record_never_takes_long() {
        assert_eq!(level_for(128 << 10).to_string(), "zstd-19");
        assert_eq!(level_for(1 << 20).to_string(), "zstd-19");
        assert_eq!(level_for(16 << 20).to_string(), "zstd-9");
    }

    #[test]
    fn progress_comes_back_from_its_words() {
        let progress = RecompressProgress {
            before: 1,
            cutoff: 2,
            object: 3,
            record: 4,
            records: 5,
            before_bytes: 6,
            after_bytes: 7,
        };
        assert_eq!(RecompressProgress::from_words(progress.to_words()), Some(progress));
    }
}
