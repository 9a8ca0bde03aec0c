//! Words in the master ZAP, each under a name of its own: a rewrite's job, and how far others came.
//!
//! `FORMAT.md` section 8.6. Versions that do not know them see names that nothing asks for.

use super::beside::Beside;
use super::{Job, Place, RewriteFigures, RewritePass, RewriteSpec};
use crate::claims::{Claims, Need};
use crate::errno::Errno;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_dataset::{ChangeCost, DatasetError, ObjectZap};
use terrane_object::{Compression, Cost, Tx};
use terrane_zap::ValueRef;

/// Names, in the order of [`to_words`].
pub(super) const NAMES: [&str; 28] = [
    "rewrite.root",
    "rewrite.flags",
    "rewrite.compression",
    "rewrite.recordsize",
    "rewrite.pass",
    "rewrite.since",
    "rewrite.dir",
    "rewrite.offset",
    "rewrite.file",
    "rewrite.record",
    "rewrite.files_total",
    "rewrite.stored_total",
    "rewrite.files",
    "rewrite.stored",
    "rewrite.logical",
    "rewrite.before",
    "rewrite.after",
    "rewrite.reshaped",
    "rewrite.no_room",
    "rewrite.busy",
    "rewrite.errors",
    "rewrite.beside",
    "rewrite.beside_birth",
    "rewrite.beside_since",
    "rewrite.beside_until",
    "rewrite.beside_rounds",
    "rewrite.beside_counted",
    "rewrite.version",
];
const VERSION: u64 = 2;
const RECURSIVE: u64 = 1;

pub(super) fn to_words(job: &Job) -> [u64; NAMES.len()] {
    let Job { spec, pass, since, place, figures } = job;
    [
        spec.root,
        if spec.recursive { RECURSIVE } else { 0 },
        spec.compression.map_or(0, Compression::to_property),
        u64::from(spec.record_size.unwrap_or(0)),
        match pass {
            RewritePass::Count => 0,
            RewritePass::RecordSizes => 1,
            RewritePass::Compression => 2,
        },
        *since,
        place.dir,
        place.offset,
        place.file,
        place.record,
        figures.files_total,
        figures.stored_total,
        figures.files,
        figures.stored_bytes,
        figures.logical_bytes,
        figures.before_bytes,
        figures.after_bytes,
        figures.reshaped,
        figures.no_room,
        figures.busy,
        figures.errors,
        place.beside.object,
        place.beside.birth,
        place.beside.since,
        place.beside.until,
        place.beside.rounds,
        place.beside.counted,
        VERSION,
    ]
}

/// `None`: there is no job, or one that this version cannot do.
pub(super) fn from_words(words: [u64; NAMES.len()]) -> Option<Job> {
    let [root, flags, compression, record_size, pass, since, dir, offset, file, record, rest @ ..] = words;
    let [files_total, stored_total, files, stored_bytes, logical_bytes, before_bytes, after_bytes, rest @ ..] =
        rest;
    let [reshaped, no_room, busy, errors, object, birth, since_beside, until, rounds, counted, version] =
        rest;
    if root == 0 || version != VERSION || flags & !RECURSIVE != 0 {
        return None;
    }
    let compression = match compression {
        0 => None,
        stored => Some(Compression::from_property(stored).ok()?),
    };
    let spec = RewriteSpec {
        root,
        recursive: flags & RECURSIVE != 0,
        compression,
        record_size: Some(u32::try_from(record_size).ok()?).filter(|bytes| *bytes != 0),
    };
    if spec.record_size.is_some_and(|bytes| !super::is_record_size(bytes, u32::MAX)) {
        return None;
    }
    let pass = match pass {
        0 => RewritePass::Count,
        1 => RewritePass::RecordSizes,
        2 => RewritePass::Compression,
        _ => return None,
    };
    let figures = RewriteFigures {
        files_total,
        stored_total,
        files,
        stored_bytes,
        logical_bytes,
        before_bytes,
        after_bytes,
        reshaped,
        no_room,
        busy,
        errors,
    };
    let beside = Beside { object, birth, since: since_beside, until, rounds, counted };
    Some(Job { spec, pass, since, place: Place { dir, offset, file, record, beside }, figures })
}

/// The master ZAP, of which several have words. Its lock is taken last.
pub(crate) type Master = Arc<Mutex<ObjectZap>>;

/// Some words in it, all of which are written at once.
pub(super) struct Words<const N: usize> {
    zap: Master,
    names: [&'static str; N],
    claims: Claims,
    /// The newest group in which there is room for all of them.
    reserved: AtomicU64,
}

impl<const N: usize> Words<N> {
    /// With what they are; 0: not there.
    pub fn load(zap: &Master, names: [&'static str; N]) -> Result<(Words<N>, [u64; N]), DatasetError> {
        let mut words = [0; N];
        let locked = zap.lock();
        for (word, name) in words.iter_mut().zip(names) {
            *word = locked.lookup_u64(name.as_bytes())?.unwrap_or(0);
        }
        let claims = Claims::of(locked.object().id().0);
        drop(locked);
        Ok((Words { zap: Arc::clone(zap), names, claims, reserved: AtomicU64::new(0) }, words))
    }

    fn bytes_of_all(&self) -> u64 {
        let longest = self.names.iter().map(|name| name.len()).max().unwrap_or(0);
        self.zap.lock().put_cost(longest, ValueRef::U64s(&[0])).of_many(N as u64)
    }

    /// Of putting all of them, or of taking them out.
    pub fn cost_of_all(&self) -> Cost {
        Cost { meta_bytes: self.bytes_of_all(), meta_blocks: 4, objects: 1, ..Cost::NOTHING }
    }

    /// What writing all of them needs, once in each group.
    pub fn need(&self) -> (&Claims, Need) {
        let bytes = self.bytes_of_all();
        (&self.claims, Need::names(ChangeCost { bytes, bytes_again: 0, bytes_max: bytes }))
    }

    /// The group of `tx` has room for them.
    pub fn reserved(&self, tx: &Tx) {
        self.reserved.fetch_max(tx.txg().0, Ordering::AcqRel);
    }

    pub fn put(&self, tx: &Tx, words: [u64; N]) -> Result<(), Errno> {
        let mut zap = self.zap.lock();
        for (name, word) in self.names.iter().zip(words) {
            zap.update_u64(tx, name.as_bytes(), word)?;
        }
        Ok(())
    }

    pub fn remove(&self, tx: &Tx) -> Result<(), Errno> {
        let mut zap = self.zap.lock();
        // The last one first: without it the others are no job.
        for name in self.names.iter().rev() {
            zap.remove(tx, name.as_bytes())?;
        }
        Ok(())
    }

    /// At the end of a group in which it went on.
    pub fn store(&self, last: &Tx, words: [u64; N]) {
        if self.reserved.load(Ordering::Acquire) == last.txg().0
            && let Err(errno) = self.put(last, words)
        {
            let first = self.names.first().unwrap_or(&"");
            log::error!("{first}: how far it came is not stored ({errno}); after a crash it does more again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_comes_back_from_its_words() {
        let mut counter = 100;
        let mut next = || {
            counter += 1;
            counter
        };
        let spec = RewriteSpec {
            root: 7,
            recursive: true,
            compression: Some("zstd-19".parse().unwrap()),
            record_size: Some(1 << 20),
        };
        let mut job = Job::new(spec);
        job.pass = RewritePass::RecordSizes;
        job.since = next();
        let beside = Beside {
            object: next(),
            birth: next(),
            since: next(),
            until: next(),
            rounds: next(),
            counted: next(),
        };
        job.place = Place { dir: next(), offset: next(), file: next(), record: next(), beside };
        job.figures = RewriteFigures {
            files_total: next(),
            stored_total: next(),
            files: next(),
            stored_bytes: next(),
            logical_bytes: next(),
            before_bytes: next(),
            after_bytes: next(),
            reshaped: next(),
            no_room: next(),
            busy: next(),
            errors: next(),
        };
        assert_eq!(from_words(to_words(&job)), Some(job));
        let plain = Job::new(RewriteSpec { recursive: false, compression: None, ..spec });
        assert_eq!(from_words(to_words(&plain)), Some(plain));
    }

    #[test]
    fn what_no_version_wrote_is_no_job() {
        let good = to_words(&Job::new(RewriteSpec {
            root: 7,
            recursive: false,
            compression: Some(Compression::Lz4),
            record_size: None,
        }));
        assert!(from_words(good).is_some());
        for (at, lie) in
            [(0, 0), (1, 2), (2, 1 << 40), (2, 4), (3, 3), (3, 1 << 40), (4, 3), (27, 0), (27, 1)]
        {
            let mut words = good;
            words[at] = lie;
            assert_eq!(from_words(words), None, "{} {lie}", NAMES[at]);
        }
    }
}
