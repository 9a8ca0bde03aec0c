//! Dead sets: which granules of a birth zone are dead.
//!
//! Frees are appended to a log. Here they are folded, per zone, into sorted intervals of granules. Adjacent intervals are merged, so a
//! zone that dies in write order costs one interval.
//!
//! Small blocks that die in any order leave more intervals than there are runs of survivors. So intervals are packed into chunks of
//! about `CHUNK_INTERVALS`, each behind a head of `HEAD_BYTES`. A chunk holds gaps and lengths as varints, or one bit per unit,
//! whichever is smaller. The unit is the largest power of two that divides all bounds: 256 granules for uncompressed records of 4 KiB.
//! (The smaller of two containers: Chambi, Lemire, Kaser, Godin, "Better bitmap performance with Roaring bitmaps", 2016.)
//!
//! Invariant: intervals are sorted and not empty, and neither overlap nor touch. Freeing a granule twice is refused: a double free must
//! never become a lost zone.

use std::ops::Range;
use terrane_wire::{Reader, Truncated, Writer};

/// Dead granules as `first..end` intervals.
#[derive(Clone, Debug, Default)]
pub struct DeadSet {
    /// Consecutive chunks, each a head and its packed intervals.
    bytes: Box<[u8]>,
    /// In a large set, for each stretch of [`STRETCH_CHUNKS`] chunks: its end in granules, and its start in `bytes`.
    index: Box<[(u32, u32)]>,
}

const CHUNK_INTERVALS: usize = 64;
const HEAD_BYTES: usize = 11;
/// Offset of the length field in the head.
const LEN_AT: usize = 8;
/// Most varint bytes of a chunk that is edited in place. A larger chunk is packed again, as two.
const VARINT_BYTES_MAX: usize = 256;
/// Five varints of five bytes.
const EDIT_BYTES: usize = 25;
/// Chunks with fewer intervals are merged with their neighbours.
const CHUNK_INTERVALS_MIN: usize = CHUNK_INTERVALS / 4;
/// Most heads that a lookup walks.
const STRETCH_CHUNKS: usize = 16;
/// Set: one bit per unit. Clear: varints. The other bits are the shift of the unit.
const FORM_BITS: u8 = 0x80;

/// Up to `CHUNK_INTERVALS` intervals, packed.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    first: u32,
    end: u32,
    form: u8,
    packed: &'a [u8],
    /// The head and the packed bytes.
    whole: &'a [u8],
}

/// A replacement within a chunk's packed bytes, and their new total.
struct Edit {
    old: Range<usize>,
    new: Writer,
    packed_bytes: isize,
    packed_bytes_before: isize,
}

impl<'a> Chunk<'a> {
    /// Splits off the first chunk.
    fn take(bytes: &mut &'a [u8]) -> Option<Chunk<'a>> {
        let mut raw = Reader::new(bytes);
        let (first, end, len, form) = (raw.u32().ok()?, raw.u32().ok()?, raw.u16().ok()?, raw.u8().ok()?);
        let packed = raw.bytes(usize::from(len)).ok()?;
        let (whole, rest) = bytes.split_at_checked(raw.offset())?;
        *bytes = rest;
        Some(Chunk { first, end, form, packed, whole })
    }

    fn shift(&self) -> u32 {
        u32::from(self.form & !FORM_BITS)
    }

    /// The bits from that unit on: at least 57, fewer at the end.
    fn bits_from(&self, unit: u32) -> u64 {
        let bytes = self.packed.get((unit / 8) as usize..).unwrap_or(&[]);
        let word = match bytes.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        word >> (unit % 8)
    }

    fn intervals(self) -> Intervals<'a> {
        Intervals { chunk: self, packed: Reader::new(self.packed), at: self.first, is_dead: true }
    }

    /// Dead units among those that overlap `first..end`, and their number. Outside of the chunk nothing is dead.
    fn dead_units(&self, first: u32, end: u32) -> (u32, u32) {
        let shift = self.shift();
        let (from, to) = (first.max(self.first), end.min(self.end));
        let outside = u32::from(first < self.first || end > self.end);
        if from >= to {
            return (0, 1);
        }
        let (mut unit, to) = ((from - self.first) >> shift, ((to - self.first - 1) >> shift) + 1);
        let (mut dead, units) = (0, to - unit + outside);
        while unit < to {
            let known = (64 - unit % 8).min(to - unit);
            let mask = if known == 64 { u64::MAX } else { (1 << known) - 1 };
            dead += (self.bits_from(unit) & mask).count_ones();
            unit += known;
        }
        (dead, units)
    }

    /// The units of `first..end`, if the chunk is a bitmap, covers the range, and the bounds are whole units.
    fn units_of(&self, first: u32, end: u32) -> Option<Range<u32>> {
        let is_in = self.form & FORM_BITS != 0 && self.first <= first && end <= self.end;
        let (from, to) = is_in.then(|| (first - self.first, end - self.first))?;
        let shift = self.shift();
        ((from | to).trailing_zeros() >= shift).then_some(from >> shift..to >> shift)
    }

    /// The edit that adds an interval between two others of a varint chunk. `None`: the chunk must be packed again.
    fn edit_for(&self, first: u32, end: u32) -> Option<Edit> {
        let is_inside = self.form & FORM_BITS == 0 && self.first < first && end < self.end;
        let (first, end) = is_inside.then(|| (first - self.first, end - self.first))?;
        let shift = self.shift();
        if (first | end).trailing_zeros() < shift {
            return None;
        }
        let (first, end) = (u64::from(first >> shift), u64::from(end >> shift));
        let mut raw = Reader::new(self.packed);
        // The interval before, and the position of its length.
        let (mut at, mut before) = (0, (0, raw.varint().ok()?));
        let (next, behind) = loop {
            let gap = raw.varint().ok()?;
            let next_at = raw.offset();
            let len = raw.varint().ok()?;
            let next = (before.1 + gap, before.1 + gap + len);
            if next.0 >= end {
                break (next, raw.offset());
            }
            (at, before) = (next_at, next);
        };
        if first < before.1 {
            return None;
        }
        let mut new = Writer::with_capacity(EDIT_BYTES);
        let (mut start, mut last) = before;
        for (from, to) in [(first, end), next] {
            if from > last {
                new.varint(last - start);
                new.varint(from - last);
                start = from;
            }
            last = to;
        }
        new.varint(last - start);
        let packed_bytes = self.packed.len() + new.len() - (behind - at);
        let bits_bytes = ((self.end - self.first) >> shift).div_ceil(8) as usize;
        let is_small = packed_bytes <= VARINT_BYTES_MAX.min(bits_bytes);
        is_small.then_some(Edit {
            old: at..behind,
            new,
            packed_bytes: packed_bytes as isize,
            packed_bytes_before: self.packed.len() as isize,
        })
    }

    /// Whether some and whether all of `first..end` is dead. The range must begin before the end of the chunk.
    fn coverage(&self, first: u32, end: u32) -> (bool, bool) {
        if self.form & FORM_BITS != 0 {
            let (dead, units) = self.dead_units(first, end);
            return (dead > 0, dead == units);
        }
        let at_or_behind = self.intervals().find(|interval| interval.1 > first);
        at_or_behind
            .map_or((false, false), |interval| (interval.0 < end, interval.0 <= first && end <= interval.1))
    }
}

/// Iterator over the intervals of one chunk.
struct Intervals<'a> {
    chunk: Chunk<'a>,
    packed: Reader<'a>,
    at: u32,
    /// Whether the range at `at` is dead. True only at the start.
    is_dead: bool,
}

impl Intervals<'_> {
    /// In a bitmap: number of granules from `at` on that are in the same state.
    fn same_state_len(&self, is_dead: bool) -> u32 {
        let shift = self.chunk.shift();
        let (from, to) =
            ((self.at - self.chunk.first) >> shift, (self.chunk.end - self.chunk.first) >> shift);
        let mut units = 0;
        while from + units < to {
            // Up to 57 bits at once. Beyond the last byte nothing is dead.
            let bits = self.chunk.bits_from(from + units);
            let same = if is_dead { bits.trailing_ones() } else { bits.trailing_zeros() };
            let known = 64 - (from + units) % 8;
            units += same.min(known);
            if same < known {
                break;
            }
        }
        units.min(to - from) << shift
    }

    fn next_len(&mut self, is_dead: bool) -> Option<u32> {
        if self.chunk.form & FORM_BITS != 0 {
            return Some(self.same_state_len(is_dead));
        }
        Some((self.packed.varint().ok()? as u32) << self.chunk.shift())
    }
}

impl Iterator for Intervals<'_> {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        if self.at >= self.chunk.end {
            return None;
        }
        if !std::mem::take(&mut self.is_dead) {
            self.at += self.next_len(false)?;
        }
        let first = self.at;
        self.at += self.next_len(true)?;
        Some((first, self.at))
    }
}

/// Appends sorted, separate intervals as one chunk.
fn pack(intervals: &[(u32, u32)], out: &mut Vec<u8>) {
    let (Some(&(first, _)), Some(&(_, end))) = (intervals.first(), intervals.last()) else { return };
    let bounds = intervals.iter().fold(0, |bits, (from, to)| bits | (from - first) | (to - first));
    let shift = bounds.trailing_zeros();
    // Most varints are small. Growing the buffer by doubling took as long as all the rest.
    let mut varints = Writer::with_capacity(intervals.len() * 4);
    let mut last = first;
    for &(from, to) in intervals {
        if from > first {
            varints.varint(u64::from((from - last) >> shift));
        }
        varints.varint(u64::from((to - from) >> shift));
        last = to;
    }
    let bits_bytes = ((end - first) >> shift).div_ceil(8) as usize;
    let (form, packed) = if bits_bytes < varints.len() {
        let mut bits = vec![0u8; bits_bytes];
        for unit in intervals.iter().flat_map(|(from, to)| ((from - first) >> shift)..((to - first) >> shift))
        {
            if let Some(byte) = bits.get_mut((unit / 8) as usize) {
                *byte |= 1 << (unit % 8);
            }
        }
        (FORM_BITS, bits)
    } else {
        (0, varints.into_bytes())
    };
    out.extend(first.to_le_bytes());
    out.extend(end.to_le_bytes());
    // At most 128 varints of five bytes.
    out.extend((packed.len() as u16).to_le_bytes());
    out.push(form | shift as u8);
    out.extend(packed);
}

/// Builds chunks from intervals as they arrive.
#[derive(Default)]
struct Packer {
    pending: Vec<(u32, u32)>,
    bytes: Vec<u8>,
}

impl Packer {
    /// With buffers for about `bytes` bytes.
    fn for_bytes(bytes: usize) -> Packer {
        Packer { pending: Vec::with_capacity(CHUNK_INTERVALS * 3 / 2), bytes: Vec::with_capacity(bytes) }
    }

    /// Adds the next interval. It is merged with the last one if they overlap or touch.
    fn push(&mut self, (first, end): (u32, u32)) {
        match self.pending.last_mut() {
            Some(last) if last.1 >= first => last.1 = last.1.max(end),
            _ => self.pending.push((first, end)),
        }
    }

    /// Called before an existing chunk that begins at `next`. Packs the pending intervals, unless they touch `next` or are too few for
    /// a chunk.
    fn flush_before(&mut self, next: u32) {
        let touches = self.pending.last().is_some_and(|last| last.1 >= next);
        if !touches && self.pending.len() >= CHUNK_INTERVALS_MIN {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let chunks = self.pending.len().div_ceil(CHUNK_INTERVALS).max(1);
        let each = self.pending.len().div_ceil(chunks).max(1);
        self.pending.chunks(each).for_each(|intervals| pack(intervals, &mut self.bytes));
        self.pending.clear();
    }

    fn finish(mut self) -> DeadSet {
        self.flush();
        DeadSet::of(self.bytes.into())
    }
}

impl FromIterator<(u32, u32)> for DeadSet {
    /// From sorted intervals.
    fn from_iter<T: IntoIterator<Item = (u32, u32)>>(intervals: T) -> DeadSet {
        let mut packer = Packer::default();
        intervals.into_iter().for_each(|interval| packer.push(interval));
        packer.finish()
    }
}

impl PartialEq for DeadSet {
    /// Compares the dead granules: chunks may be split differently.
    fn eq(&self, other: &DeadSet) -> bool {
        self.intervals().eq(other.intervals())
    }
}

impl Eq for DeadSet {}

impl DeadSet {
    /// From packed chunks.
    fn of(bytes: Box<[u8]>) -> DeadSet {
        let mut set = DeadSet { bytes, index: Box::default() };
        let (mut index, mut begins, mut at) = (Vec::new(), 0, 0);
        for (nth, chunk) in (1..).zip(set.chunks()) {
            at += chunk.whole.len() as u32;
            if nth % STRETCH_CHUNKS == 0 {
                index.push((chunk.end, begins));
                begins = at;
            }
        }
        // The last stretch ends with the set.
        if !index.is_empty() {
            index.push((u32::MAX, begins));
        }
        set.index = index.into();
        set
    }

    fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        self.chunks_from(0)
    }

    fn chunks_from(&self, at: usize) -> impl Iterator<Item = Chunk<'_>> {
        let mut bytes = self.bytes.get(at..).unwrap_or(&[]);
        std::iter::from_fn(move || Chunk::take(&mut bytes))
    }

    /// The first chunk that ends after `granule`, with its offset. The search starts at `from`, which must be the start of a chunk.
    fn chunk_ending_after(&self, granule: u32, from: usize) -> Option<(usize, Chunk<'_>)> {
        let stretch = self.index.partition_point(|(end, _)| *end <= granule);
        let mut at = self.index.get(stretch).map_or(0, |(_, begins)| *begins as usize).max(from);
        let mut chunks = self.chunks_from(at);
        loop {
            let chunk = chunks.next()?;
            if chunk.end > granule {
                return Some((at, chunk));
            }
            at += chunk.whole.len();
        }
    }

    /// All intervals, in order.
    pub fn intervals(&self) -> impl Iterator<Item = (u32, u32)> {
        self.chunks().flat_map(Chunk::intervals)
    }

    /// Adds sorted, separate ranges `(first, count)`. Returns those that were dead already, in whole or in part. They are not added
    /// twice.
    pub fn add_sorted(&mut self, ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let (mut twice, mut new) = (Vec::new(), Vec::new());
        let mut from = 0;
        for &(first, count) in ranges {
            let end = first.saturating_add(count);
            let Some((at, chunk)) = self.chunk_ending_after(first, from) else {
                new.push((first, end));
                continue;
            };
            from = at;
            if chunk.coverage(first, end).0 {
                twice.push((first, count));
            }
            if let Some(units) = chunk.units_of(first, end) {
                self.set_bits(at + HEAD_BYTES, units);
            } else if let Some(edit) = chunk.edit_for(first, end) {
                self.edit(at, &edit);
            } else {
                new.push((first, end));
            }
        }
        if !new.is_empty() {
            self.merge(&new);
        }
        twice
    }

    /// Merges sorted intervals into the set.
    fn merge(&mut self, new: &[(u32, u32)]) {
        let mut packer = Packer::for_bytes(self.bytes.len() + new.len() * 4 + HEAD_BYTES);
        let mut new = new.iter().copied().peekable();
        for chunk in self.chunks() {
            packer.flush_before(new.peek().map_or(chunk.first, |range| range.0.min(chunk.first)));
            // Untouched chunks are copied, so that a small txg does not pay for all earlier frees.
            if packer.pending.is_empty() && new.peek().is_none_or(|range| range.0 > chunk.end) {
                packer.bytes.extend_from_slice(chunk.whole);
                continue;
            }
            let mut old = chunk.intervals().peekable();
            while let Some(interval) = match (old.peek(), new.peek()) {
                (Some(a), Some(b)) if a <= b => old.next(),
                (Some(_), Some(_)) => new.next(),
                (Some(_), None) => old.next(),
                (None, _) => new.next_if(|range| range.0 <= chunk.end),
            } {
                packer.push(interval);
            }
        }
        new.for_each(|range| packer.push(range));
        *self = packer.finish();
    }

    /// Applies an edit to the chunk at offset `at`.
    fn edit(&mut self, at: usize, edit: &Edit) {
        let mut bytes = std::mem::take(&mut self.bytes).into_vec();
        let from = at + HEAD_BYTES;
        let grown = edit.packed_bytes - edit.packed_bytes_before;
        bytes.reserve_exact(usize::try_from(grown).unwrap_or(0));
        bytes.splice(from + edit.old.start..from + edit.old.end, edit.new.as_bytes().iter().copied());
        if let Some(len) = bytes.get_mut(at + LEN_AT..at + LEN_AT + 2) {
            len.copy_from_slice(&(edit.packed_bytes as u16).to_le_bytes());
        }
        self.bytes = bytes.into();
        let behind = self.index.iter_mut().filter(|(_, begins)| *begins as usize > at);
        behind.for_each(|(_, begins)| *begins = begins.saturating_add_signed(grown as i32));
    }

    /// Sets bits of a bitmap chunk whose bits begin at `at`.
    fn set_bits(&mut self, at: usize, units: Range<u32>) {
        let Some(bits) = self.bytes.get_mut(at..) else { return };
        for unit in units {
            if let Some(byte) = bits.get_mut((unit / 8) as usize) {
                *byte |= 1 << (unit % 8);
            }
        }
    }

    /// Whether some and whether all of `first..end` is dead.
    fn coverage(&self, first: u32, end: u32) -> (bool, bool) {
        // Intervals of two chunks do not touch. So an interval that ends after `first` begins in this chunk, or not before the next.
        let chunk = self.chunk_ending_after(first, 0);
        chunk.map_or((false, false), |(_, chunk)| chunk.coverage(first, end))
    }

    /// Whether all of the `count` granules from `first` on are dead.
    pub fn contains(&self, first: u32, count: u32) -> bool {
        self.coverage(first, first + count).1
    }

    /// Whether any of the `count` granules from `first` on is dead.
    pub fn overlaps(&self, first: u32, count: u32) -> bool {
        self.coverage(first, first + count).0
    }

    /// Drops intervals that touch none of the sorted, separate ranges `first..=last`.
    pub fn keep_within(&mut self, ranges: &[(u32, u32)]) {
        let touches = |interval: &(u32, u32)| {
            let at = ranges.partition_point(|range| range.1 < interval.0);
            ranges.get(at).is_some_and(|range| range.0 < interval.1)
        };
        *self = self.intervals().filter(touches).collect();
    }

    /// Drops intervals that begin in one of the sorted, separate ranges `first..=last`.
    pub fn drop_beginning_in(&mut self, ranges: &[(u32, u32)]) {
        let begins = |interval: &(u32, u32)| {
            let at = ranges.partition_point(|range| range.1 < interval.0);
            ranges.get(at).is_some_and(|range| range.0 <= interval.0)
        };
        *self = self.intervals().filter(|interval| !begins(interval)).collect();
    }

    /// Whether no granule is dead.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Memory of the set, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.index)
    }

    /// Writes the set in its in-memory form.
    pub fn put_packed(&self, out: &mut Writer) {
        out.blob(&self.bytes);
    }

    /// Reads what [`DeadSet::put_packed`] wrote.
    pub fn get_packed(raw: &mut Reader<'_>) -> Result<DeadSet, Truncated> {
        Ok(DeadSet::of(raw.blob()?.into()))
    }

    /// From ascending intervals `first..end`.
    pub fn of_intervals(intervals: impl IntoIterator<Item = (u32, u32)>) -> DeadSet {
        let mut packer = Packer::default();
        intervals.into_iter().for_each(|interval| packer.push(interval));
        packer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A unit near the n-th dead one.
    fn first_of(flags: &[bool], n: usize) -> u32 {
        flags.iter().enumerate().filter(|(_, dead)| **dead).nth(n).map_or(40, |(at, _)| at as u32)
    }

    /// Rounds of random ranges within `units` units.
    fn rounds(units: u32) -> impl Strategy<Value = (u32, Vec<Vec<(u32, u32)>>)> {
        let range = (0..units - 56, prop_oneof![9 => 1u32..4, 1 => 4u32..40]);
        let round = prop::collection::vec(range, 0..(units / 20) as usize);
        (Just(units), prop::collection::vec(round, 0..16))
    }

    proptest! {
        #[test]
        fn behaves_like_one_flag_for_each_unit((units, rounds) in prop_oneof![rounds(256), rounds(4096)], scale in prop_oneof![Just(1u32), Just(3), Just(256)]) {
            let mut set = DeadSet::default();
            let mut flags = vec![false; units as usize];
            let wide = |range: &(u32, u32)| (range.0 * scale, range.1 * scale);
            for round in rounds {
                let mut ranges = round;
                ranges.sort_unstable();
                ranges.dedup_by(|b, a| b.0 < a.0 + a.1);
                let twice: Vec<(u32, u32)> = ranges.iter()
                    .filter(|&&(f, c)| (f..f + c).any(|g| flags[g as usize])).map(wide).collect();
                let found = set.add_sorted(&ranges.iter().map(wide).collect::<Vec<_>>());
                prop_assert_eq!(found, twice);
                for (f, c) in ranges { flags[f as usize..(f + c) as usize].fill(true); }
                let dead = (0..units).filter(|g| flags[*g as usize]);
                let mut at_once = DeadSet::default();
                at_once.add_sorted(&dead.clone().map(|g| wide(&(g, 1))).collect::<Vec<_>>());
                prop_assert_eq!(&set, &at_once, "one by one or together, the intervals are the same");
                prop_assert_eq!(&set, &dead.map(|g| (g * scale, (g + 1) * scale)).collect::<DeadSet>());
                let separate = set.intervals().zip(set.intervals().skip(1)).all(|(a, b)| a.1 < b.0);
                prop_assert!(separate, "intervals that touch are one");
                let fits = |chunk: Chunk<'_>| {
                    chunk.form & FORM_BITS != 0 || chunk.intervals().count() <= CHUNK_INTERVALS || chunk.packed.len() <= VARINT_BYTES_MAX
                };
                prop_assert!(set.chunks().all(|chunk| fits(chunk) && chunk.intervals().next().is_some()));
                for first in (0..units - 16).step_by(1 + units as usize / 300) {
                    for count in 1..4 {
                        let slice = &flags[first as usize..(first + count) as usize];
                        prop_assert_eq!(set.contains(first * scale, count * scale), slice.iter().all(|f| *f));
                        prop_assert_eq!(set.overlaps(first * scale, count * scale), slice.iter().any(|f| *f));
                    }
                }
                let (a, b) = (first_of(&flags, 3), first_of(&flags, 7));
                let ranges = if a < b { vec![(a, a + 1), (b + 2, b + 30)] } else { vec![(a, a + 5)] };
                let mut kept = set.clone();
                kept.keep_within(&ranges.iter().map(|(first, last)| (first * scale, (last + 1) * scale - 1)).collect::<Vec<_>>());
                for (first, last) in ranges {
                    for unit in first..=last.min(units - 1) {
                        prop_assert_eq!(kept.contains(unit * scale, scale), flags[unit as usize]);
                    }
                }
                prop_assert_eq!(DeadSet::of_intervals(set.intervals()), set.clone());
                let mut forgot = set.clone();
                let ranges = [(a * scale, b.min(a + 9) * scale), ((a + 20) * scale, (a + 60) * scale)];
                let ranges = if a < b { &ranges[..] } else { &ranges[1..] };
                forgot.drop_beginning_in(ranges);
                let begins = |interval: &(u32, u32)| ranges.iter().any(|range| (range.0..=range.1).contains(&interval.0));
                prop_assert!(forgot.intervals().eq(set.intervals().filter(|interval| !begins(interval))));
            }
        }
    }

    /// Half of a zone's records die in some order. Returns the number of intervals, and the bytes of memory.
    fn half_dead(sizes: impl Fn(u32) -> u32) -> (usize, usize) {
        let mut ends = vec![0];
        ends.extend((0..16384).scan(0, |end, at| {
            *end += sizes(at);
            Some(*end)
        }));
        let mut set = DeadSet::default();
        for txg in 0..64 {
            let dies = |at: &usize| at * 2_654_435_761 % 128 == txg;
            let dead: Vec<(u32, u32)> =
                (0..16384).filter(dies).map(|at| (ends[at], ends[at + 1] - ends[at])).collect();
            assert_eq!(set.add_sorted(&dead), []);
        }
        (set.intervals().count(), set.memory_bytes())
    }

    #[test]
    fn many_small_blocks_that_die_in_any_order_take_little_memory() {
        let (intervals, bytes) = half_dead(|_| 256);
        assert!(intervals > 3000 && bytes < intervals * 3 / 2, "{intervals} intervals in {bytes} bytes");
        let (intervals, bytes) = half_dead(|at| 60 + at * 7919 % 190);
        assert!(intervals > 3000 && bytes < intervals * 9 / 2, "{intervals} intervals in {bytes} bytes");
    }
}
