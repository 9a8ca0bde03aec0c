//! Counters of a pool since its creation, and recent ones.
//!
//! [`Totals`] are carried from commit record to commit record, so that write amplification covers the pool's life and not only one
//! mount. [`Recent`] keeps some of them with times, for statistics of the last minutes.
//!
//! Bytes written to devices are classified by purpose ([`Spent`]), not by their zone, because zones are shared.
//!
//! Invariant: no decision depends on these numbers. A pool behaves the same if all of them are wrong. So sums saturate.

use crate::boot_ptr::BootPtr;
use crate::directory::{Entry, Owner, POOL_PART_COPY};
use std::collections::VecDeque;
use terrane_wire::{Reader, Truncated, Writer, ZoneSeq};

/// What bytes were written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
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

impl Spent {
    pub const ALL: [Spent; 7] = [
        Spent::Data,
        Spent::Metadata,
        Spent::Log,
        Spent::Collection,
        Spent::Directory,
        Spent::Padding,
        Spent::Anchor,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Spent::Data => "data",
            Spent::Metadata => "metadata",
            Spent::Log => "log",
            Spent::Collection => "collection",
            Spent::Directory => "directory",
            Spent::Padding => "padding",
            Spent::Anchor => "anchor",
        }
    }

    /// The purpose of a block that was written to zone `seq`.
    fn of(entry: &Entry, seq: ZoneSeq) -> Spent {
        match entry.owner {
            _ if entry.is_moved(seq) => Spent::Collection,
            Owner::Pool { what: POOL_PART_COPY } => Spent::Directory,
            Owner::Pool { .. } => Spent::Metadata,
            Owner::Block { .. } if entry.siblings.is_empty() => Spent::Data,
            Owner::Block { .. } => Spent::Metadata,
        }
    }
}

/// Bytes by [`Spent::ALL`].
pub type SpentBytes = [u64; Spent::ALL.len()];

fn sum_of(spent: &mut SpentBytes, what: Spent) -> &mut u64 {
    let [data, metadata, log, collection, directory, padding, anchor] = spent;
    match what {
        Spent::Data => data,
        Spent::Metadata => metadata,
        Spent::Log => log,
        Spent::Collection => collection,
        Spent::Directory => directory,
        Spent::Padding => padding,
        Spent::Anchor => anchor,
    }
}

/// Splits a batch of `batch_bytes` in zone `seq` by purpose. Its directory part has `entries`, and takes `entry_bytes` with the
/// trailer.
pub fn split(seq: ZoneSeq, batch_bytes: u64, entries: &[Entry], entry_bytes: u64) -> SpentBytes {
    let mut split = SpentBytes::default();
    for entry in entries {
        *sum_of(&mut split, Spent::of(entry, seq)) += u64::from(entry.psize);
    }
    *sum_of(&mut split, Spent::Directory) += entry_bytes;
    *sum_of(&mut split, Spent::Padding) = batch_bytes - split.iter().sum::<u64>();
    split
}

/// Sums since the pool was created, or since it got the feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that users wrote into files, before compression.
    pub user_bytes: u64,
    /// Bytes of blocks, metadata included, before compression and after it, one copy each.
    pub logical_bytes: u64,
    pub stored_bytes: u64,
    /// Zones that were reset, and zones that the collector emptied.
    pub reset_zones: u64,
    pub collected_zones: u64,
    /// Bytes written to devices.
    pub spent: SpentBytes,
}

const WORDS: usize = 5 + Spent::ALL.len();
/// Larger numbers are corrupt: no counter gets near.
const WORD_BITS: u32 = 62;

impl Totals {
    /// All bytes written to devices.
    pub fn device_bytes(&self) -> u64 {
        self.spent.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub fn spent_on(&self, what: Spent) -> u64 {
        let mut spent = self.spent;
        *sum_of(&mut spent, what)
    }

    /// Write amplification: device bytes per user byte. `None`: users wrote nothing.
    pub fn amplification(&self) -> Option<f64> {
        (self.user_bytes > 0).then(|| self.device_bytes() as f64 / self.user_bytes as f64)
    }

    /// The sum of both.
    pub fn plus(&self, more: &Totals) -> Totals {
        self.each(more, u64::saturating_add)
    }

    /// The difference to `earlier`.
    pub fn since(&self, earlier: &Totals) -> Totals {
        self.each(earlier, u64::saturating_sub)
    }

    fn each(&self, other: &Totals, combine: fn(u64, u64) -> u64) -> Totals {
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
        *sum_of(&mut totals.spent, Spent::Metadata) = copies * u64::from(record.len);
        *sum_of(&mut totals.spent, Spent::Padding) =
            copies * u64::from(record.padded.saturating_sub(record.len));
        *sum_of(&mut totals.spent, Spent::Anchor) = 2 * slot * (1 + u64::from(clean));
        totals
    }

    /// In the order of FORMAT.md, section 5.1.
    fn words(&self) -> [u64; WORDS] {
        let Totals { user_bytes, logical_bytes, stored_bytes, reset_zones, collected_zones, spent } = *self;
        let [data, metadata, log, collection, directory, padding, anchor] = spent;
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
        let [user_bytes, logical_bytes, stored_bytes, reset_zones, collected_zones, spent @ ..] = words;
        Totals { user_bytes, logical_bytes, stored_bytes, reset_zones, collected_zones, spent }
    }

    /// The values of the record's item. Empty if all are 0.
    pub fn entries(&self) -> Vec<u64> {
        if *self == Totals::default() { Vec::new() } else { self.words().to_vec() }
    }

    pub fn put_entry(out: &mut Writer, word: &u64) {
        out.varint(*word);
    }

    /// Reads the values. Additional values of later versions are skipped, and values missing from earlier ones are 0.
    pub fn get(raw: &mut Reader<'_>) -> Result<Totals, Truncated> {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        let told = crate::record::list(raw, |raw| raw.varint())?;
        if told.iter().any(|word| word >> WORD_BITS != 0) {
            return Err(bad);
        }
        let mut words = [0; WORDS];
        for (word, told) in words.iter_mut().zip(told) {
            *word = told;
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
pub struct Recent {
    samples: VecDeque<(u64, Totals)>,
}

impl Recent {
    /// Starts with these totals at `now_ns`.
    pub fn new(now_ns: u64, totals: Totals) -> Recent {
        Recent { samples: VecDeque::from([(now_ns, totals)]) }
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
    fn totals_come_back_whoever_wrote_them() {
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
    fn sums_of_lies_do_not_overflow() {
        let most = Totals::of_words([(1 << 62) - 1; WORDS]);
        assert_eq!(most.device_bytes(), u64::MAX);
        assert_eq!(most.plus(&most).plus(&most).plus(&most).plus(&most).user_bytes, u64::MAX);
        assert_eq!(some().since(&most).device_bytes(), 0);
        assert_eq!(Totals::default().amplification(), None);
    }

    #[test]
    fn every_byte_of_a_batch_has_one_use() {
        let seq = ZoneSeq(5);
        let entry = |zone: u64, owner: Owner, siblings: usize| Entry {
            offset: 4096,
            identity: Addr::new(ZoneSeq(zone), 4096),
            psize: 1000,
            crc: 0,
            birth: Txg(1),
            owner,
            siblings: vec![Addr::new(ZoneSeq(6), 16); siblings],
        };
        let file = Owner::Block { objset: 1, object: 2, level: 0, block: 0 };
        let entries = [
            entry(5, file, 0),
            entry(5, file, 1),
            entry(4, file, 1),
            entry(5, Owner::Pool { what: POOL_PART_COPY }, 0),
            entry(5, Owner::Pool { what: crate::directory::POOL_RECORD }, 0),
        ];
        let found = split(seq, 16384, &entries, 300);
        assert_eq!(found, [1000, 2000, 0, 1000, 1300, 16384 - 5300, 0]);
    }

    #[test]
    fn a_window_begins_at_the_last_sample_before_it() {
        let at = |bytes: u64| Totals { user_bytes: bytes, ..Totals::default() };
        let second = 1_000_000_000;
        let mut recent = Recent::new(0, at(0));
        for now in 1..=2000 {
            recent.note(now * second, || at(now * 10));
        }
        assert_eq!(recent.samples.len(), SAMPLES_MAX);
        let window = |seconds: u64| recent.since(seconds * second, 2000 * second, &at(20_000));
        assert_eq!(window(60), (60 * second, at(600)));
        assert_eq!(window(61), (62 * second, at(620)));
        assert_eq!(window(600), (600 * second, at(6000)));
        assert_eq!(window(5000), (600 * second, at(6000)), "older ones are forgotten");
        let young = Recent::new(7 * second, at(3));
        assert_eq!(young.since(60 * second, 9 * second, &at(10)), (2 * second, at(7)));
    }
}
