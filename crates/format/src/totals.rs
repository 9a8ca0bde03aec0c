//! Counters of a pool since its creation, and recent ones.
//!
//! [`Totals`] are carried from commit record to commit record, so that write amplification covers the pool's life and not only one
//! mount. [`RecentTotals`] keeps some of them with times, for statistics of the last minutes.
//!
//! Bytes written to devices are classified by purpose ([`WritePurpose`]), not by their zone, because zones are shared.
//!
//! Invariant: no decision depends on these numbers. A pool behaves the same if all of them are wrong. So sums saturate.

use crate::boot_ptr::BootPtr;
use crate::directory::{Entry, Owner, POOL_PART_COPY};
use std::collections::VecDeque;
use terrane_wire::{Reader, Truncated, Writer, ZoneSeq};

/// What bytes were written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePurpose {
    /// Blocks of files.
    Data = 0,
    /// Blocks with two copies, pool structures included.
    Metadata = 1,
    /// The intent log.
    Log = 2,
    /// Blocks written again: survivors, healed blocks, and blocks of failed zones.
    Collection = 3,
    /// Directory parts.
    Directory = 4,
    /// Padding to granules and write units, and the first unit of a zone with its header.
    Padding = 5,
    /// Labels and uberblocks.
    Anchor = 6,
}

impl WritePurpose {
    /// All purposes, in the order of [`PurposeBytes`].
    pub const ALL: [WritePurpose; 7] = [
        WritePurpose::Data,
        WritePurpose::Metadata,
        WritePurpose::Log,
        WritePurpose::Collection,
        WritePurpose::Directory,
        WritePurpose::Padding,
        WritePurpose::Anchor,
    ];

    /// The name for users.
    pub fn name(self) -> &'static str {
        match self {
            WritePurpose::Data => "data",
            WritePurpose::Metadata => "metadata",
            WritePurpose::Log => "log",
            WritePurpose::Collection => "collection",
            WritePurpose::Directory => "directory",
            WritePurpose::Padding => "padding",
            WritePurpose::Anchor => "anchor",
        }
    }

    /// The purpose of a block that was written to zone `seq`.
    fn of(entry: &Entry, seq: ZoneSeq) -> WritePurpose {
        match entry.owner {
            _ if entry.is_moved(seq) => WritePurpose::Collection,
            Owner::Pool { structure: POOL_PART_COPY } => WritePurpose::Directory,
            Owner::Pool { .. } => WritePurpose::Metadata,
            Owner::Block { .. } if entry.other_copies.is_empty() => WritePurpose::Data,
            Owner::Block { .. } => WritePurpose::Metadata,
        }
    }
}

/// Bytes by [`WritePurpose::ALL`].
pub type PurposeBytes = [u64; WritePurpose::ALL.len()];

fn purpose_mut(by_purpose: &mut PurposeBytes, purpose: WritePurpose) -> &mut u64 {
    let [data, metadata, log, collection, directory, padding, anchor] = by_purpose;
    match purpose {
        WritePurpose::Data => data,
        WritePurpose::Metadata => metadata,
        WritePurpose::Log => log,
        WritePurpose::Collection => collection,
        WritePurpose::Directory => directory,
        WritePurpose::Padding => padding,
        WritePurpose::Anchor => anchor,
    }
}

/// Splits a batch of `batch_bytes` in zone `seq` by purpose. Its directory part has `entries`, and takes `entry_bytes` with the
/// trailer.
pub fn split_batch(seq: ZoneSeq, batch_bytes: u64, entries: &[Entry], entry_bytes: u64) -> PurposeBytes {
    let mut split = PurposeBytes::default();
    for entry in entries {
        *purpose_mut(&mut split, WritePurpose::of(entry, seq)) += u64::from(entry.psize);
    }
    *purpose_mut(&mut split, WritePurpose::Directory) += entry_bytes;
    *purpose_mut(&mut split, WritePurpose::Padding) = batch_bytes - split.iter().sum::<u64>();
    split
}

/// Sums since the pool was created, or since it got the feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that users wrote into files, before compression.
    pub user_bytes: u64,
    /// Bytes of blocks before compression, metadata included.
    pub logical_bytes: u64,
    /// Bytes of blocks after compression, metadata included, one copy each.
    pub stored_bytes: u64,
    /// Zones that were reset.
    pub reset_zones: u64,
    /// Zones that the collector emptied.
    pub collected_zones: u64,
    /// Bytes written to devices.
    pub by_purpose: PurposeBytes,
}

const WORDS: usize = 5 + WritePurpose::ALL.len();
/// Larger numbers are corrupt: no counter gets near.
const WORD_BITS: u32 = 62;

impl Totals {
    /// All bytes written to devices.
    pub fn device_bytes(&self) -> u64 {
        self.by_purpose.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes written to devices for this purpose.
    pub fn written_for(&self, purpose: WritePurpose) -> u64 {
        let mut by_purpose = self.by_purpose;
        *purpose_mut(&mut by_purpose, purpose)
    }

    /// Write amplification: device bytes per user byte. `None`: users wrote nothing.
    pub fn amplification(&self) -> Option<f64> {
        (self.user_bytes > 0).then(|| self.device_bytes() as f64 / self.user_bytes as f64)
    }

    /// The sum of both.
    pub fn plus(&self, more: &Totals) -> Totals {
        self.combined(more, u64::saturating_add)
    }

    /// The difference to `earlier`.
    pub fn since(&self, earlier: &Totals) -> Totals {
        self.combined(earlier, u64::saturating_sub)
    }

    fn combined(&self, other: &Totals, combine: fn(u64, u64) -> u64) -> Totals {
        let mut words = self.words();
        for (word, other) in words.iter_mut().zip(other.words()) {
            *word = combine(*word, other);
        }
        Totals::of_words(words)
    }

    /// What a commit record cannot count: itself, and the uberblocks of `slot` bytes that name it.
    pub fn of_commit(record: &BootPtr, slot: u64, clean: bool) -> Totals {
        let copies = record.copies().count() as u64;
        let mut totals = Totals::default();
        *purpose_mut(&mut totals.by_purpose, WritePurpose::Metadata) = copies * u64::from(record.len);
        *purpose_mut(&mut totals.by_purpose, WritePurpose::Padding) =
            copies * u64::from(record.padded.saturating_sub(record.len));
        *purpose_mut(&mut totals.by_purpose, WritePurpose::Anchor) = 2 * slot * (1 + u64::from(clean));
        totals
    }

    /// In the order of FORMAT.md, section 5.1.
    fn words(&self) -> [u64; WORDS] {
        let Totals { user_bytes, logical_bytes, stored_bytes, reset_zones, collected_zones, by_purpose } =
            *self;
        let [data, metadata, log, collection, directory, padding, anchor] = by_purpose;
        [
            user_bytes,
            logical_bytes,
            stored_bytes,
            reset_zones,
            collected_zones,
            data,
            metadata,
            log,
            collection,
            directory,
            padding,
            anchor,
        ]
    }

    fn of_words(words: [u64; WORDS]) -> Totals {
        let [user_bytes, logical_bytes, stored_bytes, reset_zones, collected_zones, by_purpose @ ..] = words;
        Totals { user_bytes, logical_bytes, stored_bytes, reset_zones, collected_zones, by_purpose }
    }

    /// The values of the record's item. Empty if all are 0.
    pub fn entries(&self) -> Vec<u64> {
        if *self == Totals::default() { Vec::new() } else { self.words().to_vec() }
    }

    /// Writes one of the [`entries`](Totals::entries).
    pub fn put_entry(out: &mut Writer, word: &u64) {
        out.varint(*word);
    }

    /// Reads the values. Additional values of later versions are skipped, and values missing from earlier ones are 0.
    pub fn get(raw: &mut Reader<'_>) -> Result<Totals, Truncated> {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let values = crate::record::get_list(raw, |raw| raw.varint())?;
        if values.iter().any(|word| word >> WORD_BITS != 0) {
            return Err(bad);
        }
        let mut words = [0; WORDS];
        for (word, value) in words.iter_mut().zip(values) {
            *word = value;
        }
        Ok(Totals::of_words(words))
    }
}

/// Least time between samples.
const SAMPLE_NS: u64 = 2_000_000_000;
/// Enough for ten minutes.
const SAMPLES_MAX: usize = 301;

/// Samples of the totals over the last minutes.
#[derive(Debug)]
pub struct RecentTotals {
    samples: VecDeque<(u64, Totals)>,
}

impl RecentTotals {
    /// Starts with these totals at `now_ns`.
    pub fn new(now_ns: u64, totals: Totals) -> RecentTotals {
        RecentTotals { samples: VecDeque::from([(now_ns, totals)]) }
    }

    /// Takes a sample, unless the last one is too recent.
    pub fn note(&mut self, now_ns: u64, totals: impl FnOnce() -> Totals) {
        let last_ns = self.samples.back().map_or(0, |(ns, _)| *ns);
        if now_ns.saturating_sub(last_ns) < SAMPLE_NS {
            return;
        }
        self.samples.push_back((now_ns, totals()));
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// The totals of the last `window_ns`, or since the first sample, and the actual duration. It is a little longer than the window if
    /// no sample lies at its start, and much shorter if no sample is that old.
    pub fn since(&self, window_ns: u64, now_ns: u64, now: &Totals) -> (u64, Totals) {
        let begin = now_ns.saturating_sub(window_ns);
        let older = self.samples.partition_point(|(ns, _)| *ns <= begin);
        let sample = self.samples.get(older.saturating_sub(1)).copied();
        let (from_ns, totals) = sample.unwrap_or((now_ns, *now));
        (now_ns.saturating_sub(from_ns), now.since(&totals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use terrane_wire::Txg;

    fn some() -> Totals {
        Totals::of_words(std::array::from_fn(|at| (at as u64 + 1) << (at * 3)))
    }

    #[test]
    fn totals_of_older_and_newer_versions_are_read() {
        let get = |words: &[u64]| {
            let mut out = Writer::new();
            out.varint(words.len() as u64);
            words.iter().for_each(|word| out.varint(*word));
            Totals::get(&mut Reader::new(out.as_bytes()))
        };
        assert_eq!(get(&some().entries()), Ok(some()));
        let mut later = some().entries();
        later.push(99);
        assert_eq!(get(&later), Ok(some()));
        assert_eq!(get(&[7, 8]), Ok(Totals { user_bytes: 7, logical_bytes: 8, ..Totals::default() }));
        assert!(get(&[1 << 62]).is_err());
        assert!(Totals::default().entries().is_empty());
    }

    #[test]
    fn sums_of_forged_totals_do_not_overflow() {
        let most = Totals::of_words([(1 << 62) - 1; WORDS]);
        assert_eq!(most.device_bytes(), u64::MAX);
        assert_eq!(most.plus(&most).plus(&most).plus(&most).plus(&most).user_bytes, u64::MAX);
        assert_eq!(some().since(&most).device_bytes(), 0);
        assert_eq!(Totals::default().amplification(), None);
    }

    #[test]
    fn every_byte_of_a_batch_has_one_use() {
        let seq = ZoneSeq(5);
        let entry = |zone: u64, owner: Owner, other_copies: usize| Entry {
            offset: 4096,
            identity: Addr::new(ZoneSeq(zone), 4096),
            psize: 1000,
            crc: 0,
            birth: Txg(1),
            owner,
            other_copies: vec![Addr::new(ZoneSeq(6), 16); other_copies],
        };
        let file = Owner::Block { objset: 1, object: 2, level: 0, block: 0 };
        let entries = [
            entry(5, file, 0),
            entry(5, file, 1),
            entry(4, file, 1),
            entry(5, Owner::Pool { structure: POOL_PART_COPY }, 0),
            entry(5, Owner::Pool { structure: crate::directory::POOL_RECORD }, 0),
        ];
        let found = split_batch(seq, 16384, &entries, 300);
        assert_eq!(found, [1000, 2000, 0, 1000, 1300, 16384 - 5300, 0]);
    }

    #[test]
    fn a_window_begins_at_the_last_sample_before_it() {
        let at = |bytes: u64| Totals { user_bytes: bytes, ..Totals::default() };
        let second = 1_000_000_000;
        let mut recent = RecentTotals::new(0, at(0));
        for now in 1..=2000 {
            recent.note(now * second, || at(now * 10));
        }
        assert_eq!(recent.samples.len(), SAMPLES_MAX);
        let window = |seconds: u64| recent.since(seconds * second, 2000 * second, &at(20_000));
        assert_eq!(window(60), (60 * second, at(600)));
        assert_eq!(window(61), (62 * second, at(620)));
        assert_eq!(window(600), (600 * second, at(6000)));
        assert_eq!(window(5000), (600 * second, at(6000)), "older ones are forgotten");
        let young = RecentTotals::new(7 * second, at(3));
        assert_eq!(young.since(60 * second, 9 * second, &at(10)), (2 * second, at(7)));
    }
}
