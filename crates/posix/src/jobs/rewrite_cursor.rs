//! The cursor of a rewrite: its job as words in the master ZAP, each under its own name.
//!
//! Defined by `FORMAT.md` section 8.6. Versions that do not know the names ignore them.

use super::{CopyProgress, RewriteFigures, RewriteJob, RewritePass, RewriteSpec, WalkPosition};
use crate::master::JobCursor;
use terrane_codec::Compression;

/// Names, in the order of the words.
const NAMES: [&str; WORDS] = [
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
pub(crate) const WORDS: usize = 28;
const VERSION: u64 = 2;
const RECURSIVE: u64 = 1;

fn to_words(job: &RewriteJob) -> [u64; WORDS] {
    let RewriteJob { spec, pass, since, position, figures } = job;
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
        position.dir,
        position.offset,
        position.file,
        position.record,
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
        position.copy_progress.object,
        position.copy_progress.birth,
        position.copy_progress.since,
        position.copy_progress.until,
        position.copy_progress.rounds,
        position.copy_progress.counted,
        VERSION,
    ]
}

impl JobCursor<WORDS> for RewriteJob {
    const NAMES: [&'static str; WORDS] = NAMES;

    fn to_words(&self) -> [u64; WORDS] {
        to_words(self)
    }

    fn from_words(words: [u64; WORDS]) -> Option<RewriteJob> {
        from_words(words)
    }
}

/// `None`: there is no job, or this version cannot run it.
fn from_words(words: [u64; WORDS]) -> Option<RewriteJob> {
    let [root, flags, compression, record_size, pass, since, dir, offset, file, record, rest @ ..] = words;
    let [files_total, stored_total, files, stored_bytes, logical_bytes, before_bytes, after_bytes, rest @ ..] =
        rest;
    let [reshaped, no_room, busy, errors, object, birth, copy_since, until, rounds, counted, version] = rest;
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
    let copy_progress = CopyProgress { object, birth, since: copy_since, until, rounds, counted };
    Some(RewriteJob {
        spec,
        pass,
        since,
        position: WalkPosition { dir, offset, file, record, copy_progress },
        figures,
    })
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
        let mut job = RewriteJob::new(spec);
        job.pass = RewritePass::RecordSizes;
        job.since = next();
        let copy_progress = CopyProgress {
            object: next(),
            birth: next(),
            since: next(),
            until: next(),
            rounds: next(),
            counted: next(),
        };
        job.position =
            WalkPosition { dir: next(), offset: next(), file: next(), record: next(), copy_progress };
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
        let plain = RewriteJob::new(RewriteSpec { recursive: false, compression: None, ..spec });
        assert_eq!(from_words(to_words(&plain)), Some(plain));
    }

    #[test]
    fn invalid_words_are_not_a_job() {
        let good = to_words(&RewriteJob::new(RewriteSpec {
            root: 7,
            recursive: false,
            compression: Some(Compression::Lz4),
            record_size: None,
        }));
        assert!(from_words(good).is_some());
        for (at, value) in
            [(0, 0), (1, 2), (2, 1 << 40), (2, 4), (3, 3), (3, 1 << 40), (4, 3), (27, 0), (27, 1)]
        {
            let mut words = good;
            words[at] = value;
            assert_eq!(from_words(words), None, "{} {value}", NAMES[at]);
        }
    }
}
