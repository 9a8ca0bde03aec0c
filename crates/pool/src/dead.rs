//! Which granules of a birth zone are dead.
//!
//! Frees are only ever appended to a log; here they are folded, zone by zone, into sorted intervals of granules.
//! Neighbours melt together, so a zone that dies as it was written costs one interval.
//!
//! Invariant: intervals are sorted, not empty, and neither overlap nor touch. Freeing a granule twice is refused: a
//! double free must never become a lost zone.

use terrane_wire::{Reader, Truncated, Writer};

/// Dead granules as `first..end` intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSet {
    intervals: Vec<(u32, u32)>,
}

/// Fewer new ranges than this part of the old ones are put in one by one.
const MERGE_PART: usize = 8;

impl DeadSet {
    /// Adds sorted, separate ranges `(first, count)`. Returns those that were dead already, in whole or in part; they are not
    /// added twice.
    pub fn add_sorted(&mut self, ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let twice = ranges.iter().copied().filter(|(first, count)| self.overlaps(*first, *count)).collect();
        if ranges.len() < self.intervals.len() / MERGE_PART {
            // A small group must not pay for all that died before.
            for (first, count) in ranges {
                self.insert(*first, first.saturating_add(*count));
            }
            return twice;
        }
        let old = std::mem::take(&mut self.intervals);
        let mut old = old.into_iter().peekable();
        let mut new = ranges.iter().map(|(first, count)| (*first, first.saturating_add(*count))).peekable();
        while let Some((first, end)) = match (old.peek(), new.peek()) {
            (Some(a), Some(b)) if a <= b => old.next(),
            (_, Some(_)) => new.next(),
            (_, None) => old.next(),
        } {
            match self.intervals.last_mut() {
                Some(last) if last.1 >= first => last.1 = last.1.max(end),
                _ => self.intervals.push((first, end)),
            }
        }
        twice
    }

    fn insert(&mut self, first: u32, end: u32) {
        // Those it touches become one with it.
        let from = self.intervals.partition_point(|interval| interval.1 < first);
        let touched = self.intervals.iter().skip(from).take_while(|interval| interval.0 <= end);
        let joined =
            touched.fold((first, end), |all, interval| (all.0.min(interval.0), all.1.max(interval.1)));
        let to = self.intervals.partition_point(|interval| interval.0 <= end).max(from);
        self.intervals.splice(from..to, [joined]);
    }

    pub fn contains(&self, first: u32, count: u32) -> bool {
        let at = self.intervals.partition_point(|interval| interval.1 <= first);
        self.intervals.get(at).is_some_and(|interval| interval.0 <= first && first + count <= interval.1)
    }

    pub fn overlaps(&self, first: u32, count: u32) -> bool {
        let at = self.intervals.partition_point(|interval| interval.1 <= first);
        self.intervals.get(at).is_some_and(|interval| interval.0 < first + count)
    }

    /// Forgets intervals that touch none of the ranges `first..=last`, sorted and separate.
    pub fn keep_within(&mut self, ranges: &[(u32, u32)]) {
        self.intervals.retain(|interval| {
            let at = ranges.partition_point(|range| range.1 < interval.0);
            ranges.get(at).is_some_and(|range| range.0 < interval.1)
        });
        self.intervals.shrink_to_fit();
    }

    /// Forgets what begins in `first..=last`.
    pub fn forget(&mut self, first: u32, last: u32) {
        let from = self.intervals.partition_point(|interval| interval.0 < first);
        let to = self.intervals.partition_point(|interval| interval.0 <= last);
        self.intervals.drain(from..to.max(from));
    }

    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// Bytes of memory the set takes.
    pub fn memory_bytes(&self) -> usize {
        self.intervals.capacity() * size_of::<(u32, u32)>()
    }

    pub fn encode(&self, out: &mut Writer) {
        out.varint(self.intervals.len() as u64);
        let mut last = 0;
        for &(first, end) in &self.intervals {
            out.varint(u64::from(first - last));
            out.varint(u64::from(end - first));
            last = end;
        }
    }

    pub fn decode(raw: &mut Reader<'_>) -> Result<DeadSet, Truncated> {
        let count = raw.count(2)?;
        let mut intervals = Vec::with_capacity(count);
        let mut last = 0u32;
        for _ in 0..count {
            let bad = Truncated { offset: raw.offset(), needed: 0 };
            let gap = u32::try_from(raw.varint()?).map_err(|_| bad)?;
            let len = u32::try_from(raw.varint()?).map_err(|_| bad)?;
            let first = last.checked_add(gap).ok_or(bad)?;
            last = first.checked_add(len).filter(|_| len > 0).ok_or(bad)?;
            intervals.push((first, last));
        }
        Ok(DeadSet { intervals })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A granule somewhere near the n-th dead one.
    fn first_of(flags: &[bool], n: usize) -> u32 {
        flags.iter().enumerate().filter(|(_, dead)| **dead).nth(n).map_or(40, |(at, _)| at as u32)
    }

    proptest! {
        #[test]
        fn behaves_like_one_flag_for_each_granule(rounds in prop::collection::vec(prop::collection::vec((0u32..200, 1u32..4), 0..12), 0..16)) {
            let mut set = DeadSet::default();
            let mut flags = vec![false; 256];
            for round in rounds {
                let mut ranges = round;
                ranges.sort_unstable();
                ranges.dedup_by(|b, a| b.0 < a.0 + a.1);
                let twice: Vec<(u32, u32)> = ranges.iter().copied()
                    .filter(|&(f, c)| (f..f + c).any(|g| flags[g as usize])).collect();
                let found = set.add_sorted(&ranges);
                prop_assert_eq!(found, twice);
                for (f, c) in ranges { flags[f as usize..(f + c) as usize].fill(true); }
                let mut at_once = DeadSet::default();
                at_once.add_sorted(&(0..256u32).filter(|g| flags[*g as usize]).map(|g| (g, 1)).collect::<Vec<_>>());
                prop_assert_eq!(&set, &at_once, "one by one or together, the intervals are the same");
                for first in 0..240u32 {
                    for count in 1..4 {
                        let slice = &flags[first as usize..(first + count) as usize];
                        prop_assert_eq!(set.contains(first, count), slice.iter().all(|f| *f));
                        prop_assert_eq!(set.overlaps(first, count), slice.iter().any(|f| *f));
                    }
                }
                let (a, b) = (first_of(&flags, 3), first_of(&flags, 7));
                let ranges = if a < b { vec![(a, a + 1), (b + 2, b + 30)] } else { vec![(a, a + 5)] };
                let mut kept = set.clone();
                kept.keep_within(&ranges);
                for (first, last) in ranges {
                    for granule in first..=last {
                        prop_assert_eq!(kept.contains(granule, 1), set.contains(granule, 1));
                    }
                }
                let mut w = Writer::new();
                set.encode(&mut w);
                prop_assert_eq!(DeadSet::decode(&mut Reader::new(w.as_bytes())).unwrap(), set.clone());
            }
        }
    }
}
