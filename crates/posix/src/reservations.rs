//! Space that `fallocate` reserves for files.
//!
//! Copy-on-write means every write goes to new space, so no fixed place can be reserved, only an amount. A file
//! has the requested ranges, and two byte counts in them. *Holes* are bytes in records that were never written.
//! *Partial* bytes lie in written records, but were not written themselves yet. The pool reserves the worst
//! case of both for the file: incompressible records, and the pointers to them. Other writers find that space
//! taken (see [`Cost::file_reservation`](terrane_txg::cost::Cost::file_reservation)), but a write into the ranges does not.
//!
//! A first write moves the bytes of its records from holes to partial, and subtracts the written bytes from
//! partial. So a range that is written once, in any pieces, ends at zero. Overwrites subtract some bytes too
//! early. Until nothing is left, writes into the ranges may also use part of the GC reserve.
//!
//! Reservations are stored in a ZAP of the data set (`FORMAT.md` section 8.2), at the end of each txg that
//! changed them.
//!
//! Invariants:
//! * The bytes that the pool has reserved are the sum over all files.
//! * A reservation changes in the transaction that changes its file, under the inode's lock. The lock here is
//!   taken after that one. Only locks of a ZAP and of the pool are taken after it.

use crate::attr::Attributes;
use crate::inode::Inode;
use crate::layouts::Layouts;
use crate::master::Master;
use crate::types::{FILE_SIZE_MAX, Ino};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrane_dataset::{Dataset, DatasetError, ObjectZap};
use terrane_object::{Object, ObjectError};
use terrane_pool::{Pool, Tx};
use terrane_wire::ObjectId;
use terrane_zap::{Entry, ValueRef};

pub(crate) const RESERVED: &[u8] = b"RESERVED";
/// Maximum of ranges per file; beyond it the nearest are joined.
const RANGES_MAX: usize = 64;
/// Maximum of reservations that a mount reads.
const FILES_MAX: usize = 1 << 20;
/// Words of an entry before its ranges.
const WORDS_FIRST: usize = 4;
pub(crate) const WORDS_MAX: usize = WORDS_FIRST + 2 * RANGES_MAX;
/// Digits of an inode number in hexadecimal.
pub(crate) const NAME_BYTES_MAX: usize = 16;
const RECORD_BYTES: std::ops::RangeInclusive<u64> = 512..=16 << 20;
/// Bytes per pointer: both copies, with a little for the levels above.
const POINTER_BYTES: u64 = 2 * 130;
/// Bytes per range for indirect blocks that it only partly fills, both copies.
const RANGE_BYTES: u64 = 2 * 4 * (16 << 10);
/// Bytes for the file's last block.
const TAIL_BYTES: u64 = 512;
/// Records that are checked under an inode's lock; the rest counts as holes.
pub(crate) const STEPS_MAX: u32 = 64 << 10;
/// Blocks that the first change in a txg may dirty beside the entry's: above it, and of the ZAP's object.
const ZAP_BLOCKS: u32 = 4;

/// The reservation of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// Generation of the inode. Another one at mount: its number was reused, and the entry is ignored.
    pub generation: u64,
    /// Record size in bytes from which the worst case is computed.
    pub record_bytes: u64,
    /// Reserved bytes in records that were never written.
    pub holes: u64,
    /// Reserved bytes in written records that were not written themselves yet.
    pub partial: u64,
    /// Sorted and disjoint.
    pub ranges: Vec<Range<u64>>,
    /// Bytes that the pool has reserved for it; not stored.
    pub charge: u64,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

impl Reservation {
    /// Bytes that are not written for the first time yet.
    fn unwritten_bytes(&self) -> u64 {
        self.holes.saturating_add(self.partial)
    }

    /// Bytes of all ranges, written or not.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    fn overlap(&self, with: &Range<u64>) -> u64 {
        self.ranges.iter().map(|range| overlap(range, with)).sum()
    }

    /// Bytes that the unwritten bytes take in the worst case.
    pub fn worst_case_bytes(&self) -> u64 {
        let (unwritten, record) = (self.unwritten_bytes(), self.record_bytes.max(1));
        let Some(last) = self.ranges.last().filter(|_| unwritten > 0) else { return 0 };
        if last.end <= record {
            return unwritten.saturating_add(TAIL_BYTES);
        }
        let before_and_behind =
            |range: &Range<u64>| range.start % record + (record - range.end % record) % record;
        let edges: u64 = self.ranges.iter().map(before_and_behind).sum();
        let ranges = self.ranges.len() as u64;
        let pointers = (self.holes / record + 2 * ranges).saturating_mul(POINTER_BYTES);
        unwritten.saturating_add(edges).saturating_add(pointers).saturating_add(ranges * RANGE_BYTES)
    }

    /// The parts of `range` that are not reserved.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for own in self.ranges.iter().filter(|own| overlap(own, &range) > 0) {
            if own.start > at {
                missing.push(at..own.start);
            }
            at = own.end;
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// Adds a range, of which `holes` bytes are new holes.
    pub fn add(&mut self, range: Range<u64>, holes: u64) {
        let mut joined = range;
        self.ranges.retain(|own| {
            let touches = own.start <= joined.end && joined.start <= own.end;
            if touches {
                joined = own.start.min(joined.start)..own.end.max(joined.end);
            }
            !touches
        });
        let at = self.ranges.partition_point(|own| own.start < joined.start);
        self.ranges.insert(at, joined);
        self.join_nearest();
        self.holes = self.holes.saturating_add(holes);
    }

    /// Joins ranges until there are at most `RANGES_MAX`. The gaps between them are not counted.
    fn join_nearest(&mut self) {
        while self.ranges.len() > RANGES_MAX {
            let gap = |pair: &[Range<u64>]| match pair {
                [left, right] => right.start - left.end,
                _ => u64::MAX,
            };
            let nearest = self.ranges.windows(2).enumerate().min_by_key(|(_, pair)| gap(pair));
            let Some((at, _)) = nearest else { return };
            let right = self.ranges.remove(at + 1);
            if let Some(left) = self.ranges.get_mut(at) {
                left.end = right.end;
            }
        }
    }

    /// Removes a range. `holes` of its bytes were holes, and at most `partial` were counted as partial.
    pub fn remove(&mut self, range: &Range<u64>, holes: u64, partial: u64) {
        let mut kept = Vec::with_capacity(self.ranges.len() + 1);
        for own in self.ranges.drain(..) {
            let parts = [own.start..own.end.min(range.start), own.start.max(range.end)..own.end];
            kept.extend(parts.into_iter().filter(|part| part.start < part.end));
        }
        self.ranges = kept;
        self.join_nearest();
        let len = self.len();
        self.holes = self.holes.saturating_sub(holes).min(len);
        self.partial = self.partial.saturating_sub(partial).min(len - self.holes);
    }

    /// Records a write, whose records were holes in the parts `holes`.
    pub fn write(&mut self, written: &Range<u64>, holes: &[Range<u64>]) {
        let new = holes.iter().map(|hole| self.overlap(hole)).fold(0, u64::saturating_add).min(self.holes);
        self.holes -= new;
        self.partial = self.partial.saturating_add(new).saturating_sub(self.overlap(written));
    }

    fn to_words(&self) -> Vec<u64> {
        let ends = self.ranges.iter().flat_map(|range| [range.start, range.end]);
        [self.generation, self.record_bytes, self.holes, self.partial].into_iter().chain(ends).collect()
    }

    fn from_words(words: &[u64]) -> Option<Reservation> {
        let (first, ends) = words.split_at_checked(WORDS_FIRST)?;
        let [generation, record_bytes, holes, partial] = *first else { return None };
        let (pairs, rest) = ends.as_chunks::<2>();
        let ranges: Vec<Range<u64>> = pairs.iter().map(|[start, end]| *start..*end).collect();
        let is_sorted = ranges.is_sorted_by(|left, right| left.end < right.start);
        let is_good = |range: &Range<u64>| range.start < range.end && range.end <= FILE_SIZE_MAX;
        let mut found = Reservation { generation, record_bytes, holes, partial, ranges, charge: 0 };
        let fits = rest.is_empty()
            && (1..=RANGES_MAX).contains(&found.ranges.len())
            && is_sorted
            && found.ranges.iter().all(is_good)
            && RECORD_BYTES.contains(&record_bytes)
            && record_bytes.is_multiple_of(512)
            && holes.checked_add(partial).is_some_and(|unwritten| (1..=found.len()).contains(&unwritten));
        found.charge = if fits { found.worst_case_bytes() } else { 0 };
        fits.then_some(found)
    }
}

/// Decodes an entry of the ZAP.
fn parse_entry(entry: &Entry) -> Option<(Ino, Reservation)> {
    let name = entry.key.name().map(String::from_utf8_lossy).unwrap_or_default();
    // As it is written: a second spelling of a number would be another entry of the same inode.
    let ino = Ino::from_str_radix(&name, 16).ok().filter(|ino| format!("{ino:x}") == name);
    let is_list = entry.value.int_size() == 8 && entry.value.num_ints() <= WORDS_MAX;
    let found = if is_list { Reservation::from_words(&entry.value.ints()) } else { None };
    let parsed = ino.zip(found);
    if parsed.is_none() {
        log::warn!("reservation ignored: entry '{name}' is invalid");
    }
    parsed
}

/// Whether these words are a valid entry of the ZAP of reservations.
pub fn is_reservation(words: &[u64]) -> bool {
    Reservation::from_words(words).is_some()
}

#[derive(Default)]
pub(crate) struct FileReservations {
    pub by_ino: BTreeMap<Ino, Reservation>,
    /// Files whose reservation changed in the open txg.
    pub changed: BTreeSet<Ino>,
    /// Blocks of the ZAP for which the open txg has space.
    pub blocks: u32,
    /// Sum over all files.
    pub partial: u64,
}

impl FileReservations {
    /// Sets a file's reservation, or removes it (`None`), and keeps `partial` correct.
    pub fn put(&mut self, ino: Ino, own: Option<Reservation>) {
        let after = own.as_ref().map_or(0, |own| own.partial);
        let before = match own {
            Some(own) => self.by_ino.insert(ino, own),
            None => self.by_ino.remove(&ino),
        };
        self.partial = self.partial.saturating_add(after).saturating_sub(before.map_or(0, |own| own.partial));
    }
}

pub(crate) struct ReservationsZap {
    pub zap: Mutex<ObjectZap>,
    /// Its object, accessible without the lock.
    pub object: Arc<Object>,
}

impl ReservationsZap {
    pub fn new(zap: ObjectZap) -> ReservationsZap {
        ReservationsZap { object: Arc::clone(zap.object()), zap: Mutex::new(zap) }
    }
}

/// The reservations of all files.
#[derive(Default)]
pub(crate) struct Reservations {
    pub files: Mutex<FileReservations>,
    /// Number of reservations: while it is 0, the lock is never taken.
    pub count: AtomicUsize,
    /// Unset if the data set has no such ZAP yet, or it is unreadable.
    pub stored: OnceLock<ReservationsZap>,
    /// Held while the ZAP is created.
    pub creation_lock: Mutex<()>,
    /// The ZAP is unreadable: this mount makes no reservations.
    pub is_unreadable: bool,
}

impl Reservations {
    /// Loads the stored reservations of existing inodes. Damage never fails the mount.
    pub fn load(dataset: &Dataset, master: &Master, layouts: &Layouts) -> Result<Reservations, DatasetError> {
        let Some(number) = master.lock().lookup_u64(RESERVED)? else { return Ok(Reservations::default()) };
        let mut all = Vec::new();
        let read = dataset.open_zap(ObjectId(number)).and_then(|zap| {
            zap.each(FILES_MAX, &mut |entry| all.extend(parse_entry(entry)))?;
            Ok(zap)
        });
        let zap = match read {
            Ok(zap) => zap,
            Err(error) => {
                log::error!("failed to read file reservations, this mount reserves no space: {error}");
                return Ok(Reservations { is_unreadable: true, ..Reservations::default() });
            }
        };
        let set = dataset.object_set();
        // Twice the size: zones that are unreadable now may be most of the pool.
        let most = set.usage().size_bytes.saturating_mul(2);
        let (mut files, mut sum) = (FileReservations::default(), 0u64);
        // In number order, a block of dnodes is read once for all its inodes.
        all.sort_unstable_by_key(|(ino, _)| *ino);
        for (ino, found) in all {
            let raw = match set.hold(ObjectId(ino)) {
                Ok(object) => object.bonus(),
                // An older version destroys files and leaves their reservations.
                Err(ObjectError::NotFound(_)) => continue,
                Err(error) => {
                    // Damage, or a failed read: the error says which. The next mount tries again.
                    log::warn!("reservation of inode {ino} ignored in this mount: {error}");
                    continue;
                }
            };
            match Attributes::decode(ino, &raw, &layouts.table()) {
                Ok(attributes) if attributes.zpl.generation == found.generation => {}
                // Of an earlier inode with this number.
                Ok(_) => continue,
                Err(damage) => {
                    log::warn!("reservation of inode {ino} ignored in this mount: {damage}");
                    continue;
                }
            }
            // No version reserves more space than exists.
            if sum.saturating_add(found.charge) > most {
                log::warn!(
                    "reservation of inode {ino} ignored: all reservations should be at most {most} bytes, found {sum} and {} more",
                    found.charge
                );
                continue;
            }
            sum += found.charge;
            files.put(ino, Some(found));
        }
        set.pool().reserve_file(sum);
        let (count, files) = (AtomicUsize::new(files.by_ino.len()), Mutex::new(files));
        Ok(Reservations { files, count, stored: ReservationsZap::new(zap).into(), ..Reservations::default() })
    }

    /// As [`Inode::has_reservation`], by number.
    pub fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.files.lock().by_ino.contains_key(&ino)
    }

    /// A copy of the file's reservation.
    pub fn get(&self, ino: Ino) -> Option<Reservation> {
        self.files.lock().by_ino.get(&ino).cloned()
    }

    /// Bytes of the inode that are not written for the first time yet.
    pub fn unwritten_bytes(&self, inode: &Inode) -> u64 {
        if !inode.has_reservation() {
            return 0;
        }
        self.files.lock().by_ino.get(&inode.ino).map_or(0, Reservation::unwritten_bytes)
    }

    /// Bytes that are reserved for a write of this range. `is_plain`: compression is off, so the first bytes of
    /// a record take the space of all. The partial bytes of other files are then not needed and count here.
    pub fn reserved_for(&self, inode: &Inode, range: Range<u64>, is_plain: bool) -> Option<u64> {
        if !inode.has_reservation() {
            return None;
        }
        let files = self.files.lock();
        let own = files.by_ino.get(&inode.ino).filter(|own| own.overlap(&range) > 0);
        own.map(|own| {
            own.charge.saturating_add(if is_plain { files.partial.saturating_sub(own.partial) } else { 0 })
        })
    }

    /// Whether some of its reserved bytes lie in holes.
    pub fn has_holes(&self, inode: &Inode) -> bool {
        inode.has_reservation() && self.files.lock().by_ino.get(&inode.ino).is_some_and(|own| own.holes > 0)
    }

    /// Changes a reservation. The caller holds the inode's lock.
    pub fn change(&self, tx: &Tx, inode: &Inode, change: impl FnOnce(&mut Reservation)) {
        let mut files = self.files.lock();
        let Some(before) = files.by_ino.get(&inode.ino) else { return };
        let (mut own, charged) = (before.clone(), before.charge);
        change(&mut own);
        if own == *before {
            return;
        }
        // The rest never needs more than was reserved, however it is fragmented.
        own.charge = own.worst_case_bytes().min(charged);
        let freed = charged - own.charge;
        let is_left = own.unwritten_bytes() > 0;
        files.put(inode.ino, is_left.then_some(own));
        if !is_left {
            inode.set_has_reservation(false);
            self.count.store(files.by_ino.len(), Ordering::Relaxed);
        }
        self.queue_store(tx, &mut files, inode.ino);
        drop(files);
        tx.pool().end_file_reservation(freed);
    }

    /// Marks a reservation to be stored at the end of the txg, and reserves space for that.
    pub fn queue_store(&self, tx: &Tx, files: &mut FileReservations, ino: Ino) {
        if !files.changed.insert(ino) {
            return;
        }
        let Some(stored) = self.stored.get() else { return };
        let all = u32::try_from(stored.object.block_count()).unwrap_or(u32::MAX).saturating_add(ZAP_BLOCKS);
        if files.blocks < all {
            let more = if files.blocks == 0 { 1 + ZAP_BLOCKS } else { 1 };
            files.blocks = files.blocks.saturating_add(more);
            tx.reserve_more(more);
        }
    }

    /// Stores the changed reservations. `last` is the only transaction left in the txg.
    pub fn store(&self, last: &Tx) {
        let changed: Vec<(Ino, Option<Vec<u64>>)> = {
            let mut files = self.files.lock();
            files.blocks = 0;
            let changed = std::mem::take(&mut files.changed);
            let words = |ino| files.by_ino.get(&ino).map(Reservation::to_words);
            changed.into_iter().map(|ino| (ino, words(ino))).collect()
        };
        let Some(stored) = self.stored.get().filter(|_| !changed.is_empty()) else { return };
        let mut zap = stored.zap.lock();
        for (ino, words) in changed {
            let name = format!("{ino:x}");
            let outcome = match words {
                Some(words) => zap.update(last, name.as_bytes(), ValueRef::U64s(&words)).map(drop),
                None => zap.remove(last, name.as_bytes()).map(drop),
            };
            if let Err(error) = outcome {
                log::error!(
                    "failed to store the reservation of inode {ino}: {error}. Until the next txg, a crash restores the older one"
                );
                self.files.lock().changed.insert(ino);
            }
        }
    }

    /// Bytes that are reserved for all files.
    pub fn sum(&self) -> u64 {
        self.files.lock().by_ino.values().map(|own| own.charge).sum()
    }

    /// Releases all reserved bytes when the file system is closed.
    pub fn release_all(&self, pool: &Pool) {
        let mut files = self.files.lock();
        let sum = files.by_ino.values().map(|own| own.charge).sum();
        // Changes of the open txg are still stored with it.
        files.by_ino.values_mut().for_each(|own| own.charge = 0);
        drop(files);
        pool.end_file_reservation(sum);
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]
mod tests {
    use super::*;
    use crate::reserve::ReservedBytes;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_words_are_refused_or_come_back(
            first in prop::collection::vec(prop_oneof![0..10_000u64, Just(4096), any::<u64>()], 0..5),
            steps in prop::collection::vec(prop_oneof![0..10_000u64, any::<u64>()], 0..140),
        ) {
            let ends = steps.iter().scan(0u64, |at, step| { *at = at.wrapping_add(*step); Some(*at) });
            let words: Vec<u64> = first.iter().copied().chain(ends).collect();
            if let Some(own) = Reservation::from_words(&words) {
                prop_assert_eq!(own.to_words(), words);
                prop_assert!(own.charge >= own.unwritten_bytes() && own.ranges.len() <= RANGES_MAX);
            }
        }
    }

    fn of(ranges: &[Range<u64>], holes: u64, partial: u64) -> Reservation {
        Reservation { generation: 7, record_bytes: 4096, holes, partial, ranges: ranges.to_vec(), charge: 0 }
    }

    #[test]
    fn an_inode_has_one_name_in_the_zap() {
        let own = of(&[0..10_000], 10_000, 0);
        let big_endian: Vec<u8> = own.to_words().iter().flat_map(|word| word.to_be_bytes()).collect();
        let ino_of = |name: &str| {
            let key = terrane_zap::Key::Name(name.into());
            let value = terrane_zap::Value::Ints { int_size: 8, big_endian: big_endian.clone() };
            parse_entry(&Entry { key, value, hash: 0, cd: 0, conflict: false }).map(|(ino, _)| ino)
        };
        assert_eq!(ino_of("a0f"), Some(0xa0f));
        for other in ["+a0f", "0a0f", "A0F", "a0f ", "", "-1"] {
            assert_eq!(ino_of(other), None, "{other:?} would count a second time");
        }
    }

    #[test]
    fn ranges_are_merged_and_split() {
        let mut own = of(&[0..4096, 8192..16_384], 12_288, 0);
        assert_eq!(own.missing(0..20_000), [4096..8192, 16_384..20_000]);
        assert_eq!((own.missing(100..200), own.missing(5000..6000)), (vec![], vec![5000..6000]));
        own.add(4096..8192, 4096);
        assert_eq!(own, of(&[0..16_384], 16_384, 0));
        own.remove(&(4096..8192), 4096, 0);
        assert_eq!(own, of(&[0..4096, 8192..16_384], 12_288, 0));
        own.remove(&(12_288..u64::MAX), u64::MAX, 0);
        assert_eq!(own, of(&[0..4096, 8192..12_288], 0, 0));
        assert_eq!(own.worst_case_bytes(), 0);
    }

    #[test]
    fn writing_every_piece_uses_up_the_reservation() {
        let mut own = of(&[0..10_000], 10_000, 0);
        own.write(&(100..200), &[0..4096]);
        assert_eq!((own.holes, own.partial), (5904, 3996));
        own.write(&(0..100), &[]);
        own.write(&(200..4096), &[]);
        assert_eq!((own.holes, own.partial), (5904, 0));
        own.write(&(4096..12_288), &[4096..12_288]);
        assert_eq!(own.unwritten_bytes(), 0);
    }

    #[test]
    fn beyond_the_limit_the_nearest_ranges_are_merged() {
        let mut own = Reservation { record_bytes: 4096, ..Reservation::default() };
        for at in 0..=RANGES_MAX as u64 {
            own.add(at * 10_000..at * 10_000 + 4096 + at, 4096 + at);
        }
        assert_eq!(own.ranges.len(), RANGES_MAX);
        assert_eq!(own.ranges.last().map(|range| range.start), Some(630_000), "the last two");
        let sum: u64 = (0..=RANGES_MAX as u64).map(|at| 4096 + at).sum();
        assert_eq!(own.unwritten_bytes(), sum, "what lies between them is not reserved");
        own.charge = own.worst_case_bytes();
        assert_eq!(Reservation::from_words(&own.to_words()), Some(own));
    }

    #[test]
    fn a_small_file_reserves_little() {
        assert_eq!(of(&[0..1000], 1000, 0).worst_case_bytes(), 1000 + TAIL_BYTES);
        let large = Reservation { record_bytes: 128 << 10, ..of(&[0..1 << 30], 1 << 30, 0) };
        assert!(large.worst_case_bytes() < (1 << 30) + (4 << 20), "{}", large.worst_case_bytes() - (1 << 30));
        assert!(of(&[0..FILE_SIZE_MAX], FILE_SIZE_MAX, 0).worst_case_bytes() > FILE_SIZE_MAX);
    }

    #[test]
    fn a_reservation_of_an_inode_with_damaged_attributes_is_ignored_with_a_message() {
        use crate::support::{LogLines, Machine, Short};
        let lines = LogLines::start();
        let mut m = Machine::new(1, &[]);
        let fs = m.fs();
        let [kept, bad, removed] = ["kept", "bad", "removed"].map(|name| fs.file(fs.root(), name).ino);
        for ino in [kept, bad, removed] {
            fs.fallocate(ino, 0, 0, 1 << 20).unwrap();
        }
        fs.sync().unwrap();
        let sum = fs.reserved_bytes().by_files;
        {
            let object = fs.set.hold(terrane_wire::ObjectId(bad)).unwrap();
            let tx = fs.begin(terrane_txg::cost::Cost::NOTHING, &[]).unwrap();
            object.set_bonus(&tx, vec![7; 100]).unwrap();
        }
        m.remount_unforgotten();
        let left = m.fs().reserved_bytes();
        assert_eq!((left.by_files, left.by_pool), (sum / 3 * 2, sum / 3 * 2));
        let found =
            lines.that_contain(&format!("reservation of inode {bad} ignored in this mount: object {bad}"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(lines.that_contain(&format!("reservation of inode {kept} ")), Vec::<String>::new());
    }

    #[test]
    fn records_written_while_waiting_are_not_reserved() {
        use crate::support::{Machine, Short};
        let m = Machine::new(1, &[("recordsize", "4K")]);
        let (fs, size) = (m.fs(), 1 << 20);
        let ino = fs.file(fs.root(), "f").ino;
        let put = |from: u64, to: u64| {
            let data = vec![7; (to - from) as usize];
            fs.write(ino, from, &data, crate::types::WriteFlags::default()).unwrap();
        };
        // From here on, its records have their final size.
        put(0, 8192);
        std::thread::scope(|scope| {
            // The thread counts holes before it waits for this lock.
            let making = fs.reservations.creation_lock.lock();
            let asks = scope.spawn(|| fs.fallocate(ino, 0, 0, size));
            std::thread::sleep(std::time::Duration::from_millis(200));
            put(8192, 800_000);
            drop(making);
            asks.join().unwrap().unwrap();
        });
        let ReservedBytes { by_pool: promised, by_files: sum } = fs.reserved_bytes();
        assert!(promised == sum && promised > size - 800_000 && promised < size, "{promised}, {sum}");
        put(800_000, size);
        assert_eq!(fs.reserved_bytes(), ReservedBytes::default(), "all is written");
    }
}
