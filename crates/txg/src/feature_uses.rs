//! Uses of features: what is stored in the form of a feature, as far as the pool knows.
//!
//! A feature with any use must be active in the labels. Two kinds of knowledge tell whether it has one:
//! * A *mark* says that the feature was used since the import, or since the mark was taken. A mark is set
//!   before the txg of the use commits, and nothing but a walk over the whole pool can show that all uses are
//!   gone.
//! * A *count* is exact. Each operation adds the uses that it makes and ends to its txg. When the txg
//!   quiesces, they are folded into the count, and the layer above stores the sum with the txg.
//!
//! The stored count may be out of date: a version that does not count may have written the pool since. So it
//! is stored with the incarnation whose commits it belongs to. It is valid if the imported commit record is of
//! the same incarnation. A count that is not valid is unknown, and counts as a use. Commits before the first
//! that stores counts repeat the incarnation of the imported record: for them, that count is still right.
//!
//! Invariant: a known count is the number of uses in the last quiesced txg.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use terrane_format::features::{FEATURES, Feature, UseTracking};
use terrane_wire::Txg;

/// Stored counts at or above this are false: no pool has so many objects.
pub const USES_MAX: u64 = 1 << 48;

/// A count as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCount {
    /// Number of uses.
    pub uses: u64,
    /// The incarnation whose commits it belongs to.
    pub incarnation: u64,
}

/// What was imported.
#[derive(Clone, Copy, Debug)]
pub struct ImportedUses {
    /// The incarnation that wrote the imported commit record.
    pub record_incarnation: u64,
    /// Bits of the features that the imported label has as active.
    pub active: u32,
    /// The imported txg.
    pub txg: Txg,
}

#[derive(Debug, Default)]
struct Count {
    /// As of the last quiesced txg. `None`: unknown.
    uses: Option<u64>,
    /// Whether `load` was called.
    was_asked: bool,
    /// Whether `uses` says all that can be known.
    is_loaded: bool,
    /// Change by quiesced txgs, while that is false.
    folded: i64,
    /// Change by the open txg.
    open: i64,
    /// Number of changes since the import.
    changes: u64,
    /// The first of the latest txgs without a use.
    zero_since: Option<Txg>,
}

/// Uses of all features of a pool.
pub struct FeatureUses {
    imported: ImportedUses,
    incarnation: u64,
    /// Bits of features.
    marks: AtomicU32,
    are_stored: AtomicBool,
    /// Walks that were begun.
    walks: AtomicU64,
    counts: Mutex<BTreeMap<Feature, Count>>,
}

/// What was known when a walk over the pool began.
#[derive(Debug)]
pub struct WalkStart {
    number: u64,
    changes: BTreeMap<Feature, u64>,
}

impl FeatureUses {
    /// Counts begin unknown.
    pub fn new(imported: ImportedUses, incarnation: u64) -> FeatureUses {
        let counted = FEATURES.iter().filter(|row| row.tracking == UseTracking::Counted);
        let counts = Mutex::new(counted.map(|row| (row.feature, Count::default())).collect());
        FeatureUses {
            imported,
            incarnation,
            marks: AtomicU32::new(0),
            are_stored: AtomicBool::new(false),
            walks: AtomicU64::new(0),
            counts,
        }
    }

    /// The incarnation that commit records and stored counts name.
    pub fn record_incarnation(&self) -> u64 {
        let has_changed = || self.counts.lock().values().any(|count| count.changes > 0);
        match self.are_stored.load(Ordering::Acquire) || has_changed() {
            true => self.incarnation,
            false => self.imported.record_incarnation,
        }
    }

    /// The counts as of the last quiesced txg will be stored in it, and in each later one.
    pub fn begin_storing(&self) {
        self.are_stored.store(true, Ordering::Release);
    }

    /// Notes a use before its txg commits. Cheap enough for a call with every block.
    pub fn mark(&self, feature: Feature) {
        if self.marks.load(Ordering::Acquire) & feature.bit() == 0 {
            self.marks.fetch_or(feature.bit(), Ordering::AcqRel);
        }
    }

    /// Adds uses to the open txg, which the caller has joined; or ends some.
    pub fn change(&self, feature: Feature, by: i64) {
        if by > 0 {
            self.mark(feature);
        }
        if let Some(count) = self.counts.lock().get_mut(&feature) {
            count.open = count.open.saturating_add(by);
            count.changes += 1;
        }
    }

    /// Gives a count up: a use could not be read.
    pub fn lose(&self, feature: Feature) {
        self.mark(feature);
        if let Some(count) = self.counts.lock().get_mut(&feature) {
            (count.uses, count.is_loaded) = (None, true);
            count.changes += 1;
        }
    }

    /// Takes the stored count over. False: that was done before.
    pub fn load(&self, feature: Feature, stored: Option<StoredCount>) -> bool {
        let was_active = self.imported.active & feature.bit() != 0;
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(&feature).filter(|count| !count.was_asked) else { return false };
        count.was_asked = true;
        if count.is_loaded {
            return true;
        }
        let is_valid = |stored: &StoredCount| {
            stored.incarnation == self.imported.record_incarnation && stored.uses < USES_MAX
        };
        let before = if was_active { stored.filter(is_valid).map(|stored| stored.uses) } else { Some(0) };
        count.uses = before.and_then(|uses| uses.checked_add_signed(count.folded));
        count.is_loaded = true;
        let was_unused = count.uses == Some(0) && count.changes == 0;
        count.zero_since = was_unused.then_some(self.imported.txg);
        true
    }

    /// The open txg has quiesced: its changes become part of the counts.
    pub fn fold(&self, txg: Txg) {
        for (feature, count) in &mut *self.counts.lock() {
            let by = std::mem::take(&mut count.open);
            if !count.is_loaded {
                count.folded = count.folded.saturating_add(by);
                continue;
            }
            if let Some(uses) = count.uses {
                count.uses = uses.checked_add_signed(by);
                if count.uses.is_none() {
                    log::error!(
                        "feature {} has lost count: {by} uses beside {uses}; see `terrane check`",
                        feature.row().name
                    );
                }
            }
            count.zero_since = match count.uses {
                Some(0) => count.zero_since.or(Some(txg)),
                _ => None,
            };
        }
    }

    /// Uses of a counted feature in the last quiesced txg. `None`: unknown.
    pub fn count(&self, feature: Feature) -> Option<u64> {
        self.counts.lock().get(&feature).and_then(|count| count.uses)
    }

    /// Bits of the features that must be active when the quiesced txg commits.
    pub fn needed(&self) -> u32 {
        let mut bits = self.marks.load(Ordering::Acquire);
        for (feature, count) in &*self.counts.lock() {
            if count.is_loaded {
                bits &= !feature.bit();
                bits |= if count.uses == Some(0) { 0 } else { feature.bit() };
            }
        }
        bits
    }

    /// Counted features without a use in `txg` and all later txgs.
    pub fn unused_since(&self, txg: Txg) -> Vec<Feature> {
        let is_unused = |count: &Count| count.zero_since.is_some_and(|since| since <= txg);
        let counts = self.counts.lock();
        counts.iter().filter(|(_, count)| is_unused(count)).map(|(feature, _)| *feature).collect()
    }

    /// A walk over the pool will begin, with a txg that commits after this call. Takes the marks of these
    /// features, which are active. Marks of others are needed to make them so.
    pub fn begin_walk(&self, active: u32) -> WalkStart {
        let number = self.walks.fetch_add(1, Ordering::AcqRel) + 1;
        self.marks.fetch_and(!active, Ordering::AcqRel);
        let counts = self.counts.lock();
        let changes = counts.iter().map(|(feature, count)| (*feature, count.changes)).collect();
        WalkStart { number, changes }
    }

    /// A walk has found this many uses. False: it proves nothing, since the feature was used meanwhile, or
    /// another walk has taken the marks.
    pub fn end_walk(&self, start: &WalkStart, feature: Feature, found: u64) -> bool {
        if let Some(count) = self.counts.lock().get_mut(&feature) {
            let is_unchanged = start.changes.get(&feature) == Some(&count.changes);
            if is_unchanged {
                (count.uses, count.is_loaded) = (Some(found), true);
            }
            return is_unchanged;
        }
        if found > 0 {
            self.mark(feature);
        }
        let is_newest = self.walks.load(Ordering::Acquire) == start.number;
        found > 0 || is_newest && self.marks.load(Ordering::Acquire) & feature.bit() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Feature = Feature::TinyZap;

    fn imported(is_active: bool) -> FeatureUses {
        let active = if is_active { TINY.bit() } else { 0 };
        FeatureUses::new(ImportedUses { record_incarnation: 7, active, txg: Txg(8) }, 8)
    }

    fn stored(uses: u64, incarnation: u64) -> Option<StoredCount> {
        Some(StoredCount { uses, incarnation })
    }

    #[test]
    fn counts_follow_quiesced_txgs() {
        let uses = imported(true);
        uses.change(TINY, 2);
        uses.fold(Txg(20));
        uses.change(TINY, 1);
        assert!(uses.load(TINY, stored(5, 7)) && !uses.load(TINY, None), "once");
        assert_eq!(uses.count(TINY), Some(7), "the open txg is not part of it");
        uses.fold(Txg(21));
        assert_eq!((uses.count(TINY), uses.needed()), (Some(8), TINY.bit()));
        uses.change(TINY, -8);
        assert_eq!(uses.needed(), TINY.bit());
        uses.fold(Txg(22));
        assert_eq!((uses.count(TINY), uses.needed()), (Some(0), 0));
        uses.fold(Txg(23));
        assert_eq!((uses.unused_since(Txg(21)), uses.unused_since(Txg(22))), (vec![], vec![TINY]));
        uses.change(TINY, 1);
        uses.fold(Txg(24));
        assert_eq!((uses.unused_since(Txg(24)), uses.needed()), (vec![], TINY.bit()));
    }

    #[test]
    fn a_feature_that_was_not_active_had_no_use_whatever_is_stored() {
        let uses = imported(false);
        assert!(uses.load(TINY, stored(5, 7)));
        assert_eq!((uses.count(TINY), uses.needed()), (Some(0), 0));
    }

    #[test]
    fn a_stored_count_that_may_be_false_is_unknown_and_counts_as_a_use() {
        let hostile =
            [None, stored(0, 6), stored(0, 8), stored(0, 0), stored(USES_MAX, 7), stored(u64::MAX, 7)];
        for stored in hostile {
            let uses = imported(true);
            assert!(uses.load(TINY, stored));
            uses.fold(Txg(9));
            assert_eq!((uses.count(TINY), uses.needed()), (None, TINY.bit()), "{stored:?}");
            assert_eq!(uses.unused_since(Txg(u64::MAX)), []);
        }
        for (base, by) in [(0, -1), (1, -2), (3, i64::MIN)] {
            let uses = imported(true);
            uses.load(TINY, stored(base, 7));
            uses.change(TINY, by);
            uses.fold(Txg(9));
            assert_eq!((uses.count(TINY), uses.needed()), (None, TINY.bit()), "{base} and {by}");
        }
    }

    #[test]
    fn records_are_of_an_incarnation_whose_counts_are_right() {
        let uses = imported(true);
        assert_eq!(uses.record_incarnation(), 7, "what is stored is still right");
        uses.change(TINY, 1);
        assert_eq!(uses.record_incarnation(), 8, "it is not stored yet");
        let uses = imported(true);
        uses.begin_storing();
        assert_eq!(uses.record_incarnation(), 8);
    }

    #[test]
    fn before_the_stored_count_is_known_a_use_counts() {
        let uses = imported(false);
        assert_eq!(uses.needed(), 0);
        uses.change(TINY, 1);
        uses.fold(Txg(9));
        assert_eq!(uses.needed(), TINY.bit());
        uses.load(TINY, None);
        assert_eq!(uses.count(TINY), Some(1));
    }

    #[test]
    fn a_walk_proves_only_what_did_not_change_meanwhile() {
        let uses = imported(true);
        uses.load(TINY, None);
        let start = uses.begin_walk(TINY.bit());
        assert!(uses.end_walk(&start, TINY, 3));
        assert_eq!(uses.count(TINY), Some(3));
        uses.change(TINY, 1);
        assert!(!uses.end_walk(&start, TINY, 0));
        assert_eq!(uses.count(TINY), Some(3));
        uses.mark(Feature::Codecs);
        let start = uses.begin_walk(0);
        assert_ne!(uses.needed() & Feature::Codecs.bit(), 0, "it is not active yet");
        assert!(!uses.end_walk(&start, Feature::Codecs, 0));
        let start = uses.begin_walk(Feature::Codecs.bit());
        assert_eq!(uses.needed() & Feature::Codecs.bit(), 0);
        assert!(uses.end_walk(&start, Feature::Codecs, 0));
        uses.mark(Feature::Codecs);
        assert!(!uses.end_walk(&start, Feature::Codecs, 0));
        let older = uses.begin_walk(Feature::Codecs.bit());
        uses.mark(Feature::Codecs);
        let start = uses.begin_walk(Feature::Codecs.bit());
        assert!(!uses.end_walk(&older, Feature::Codecs, 0), "the newer walk took the mark");
        assert!(uses.end_walk(&start, Feature::Codecs, 4));
        assert_ne!(uses.needed() & Feature::Codecs.bit(), 0);
    }
}
