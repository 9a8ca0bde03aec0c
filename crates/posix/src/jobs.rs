//! Background jobs: what they have to do, how far they are, and what they have done.
//!
//! Each kind is a [`Job`], which does nothing by itself. The caller runs steps, and pauses between them to
//! leave time for requests. No step waits for another job. What a step did is kept, whatever the next one does.
//!
//! | job | one step | progress |
//! |---|---|---|
//! | [`Rewrite`](crate::Rewrite): store files in another form, on request | as much content as the caller says | in the master ZAP |
//! | [`Recompress`](crate::Recompress): compress cold files well | a record | in the master ZAP |
//! | [`Rebirth`](crate::Rebirth): rewrite blocks to shrink the relocation index | a MiB | none: the pool names the rest again |
//! | [`Settle`](crate::Settle): shrink directories that lost names | 64 directories | none: unmount shrinks all |
//!
//! Progress in the master ZAP is a [`Cursor`](crate::master::Cursor). It is stored at the end of each txg in
//! which the job advanced, so it never claims more than the txg holds.

mod beside;
mod idle;
mod rebirth;
mod settling;
mod walk;
mod words;

use crate::errno::Errno;
use crate::master::{Master, Words};
use crate::types::Ino;
pub(crate) use beside::{Beside, Side};
pub use idle::RecompressStatus;
pub(crate) use idle::{Ground, Idle, Next, is_worth, level_of, next};
use parking_lot::Mutex;
pub(crate) use rebirth::Named;
pub(crate) use settling::{STEP as SETTLE_STEP, Settling};
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_codec::Compression;
use terrane_dataset::DatasetError;
use terrane_pool::Tx;
pub(crate) use walk::{File, Found, Level, Met, Walk};

/// Background work in steps, which the caller runs when it has time.
pub trait Job {
    /// Type of the progress report.
    type Progress;

    /// Advances by about `bytes` of content, if the job counts bytes. It always advances a little.
    fn step(&self, bytes: u64) -> Result<JobStep, Errno>;

    fn progress(&self) -> Self::Progress;

    /// Cancels a job that was started; what was done is kept. False: none was started.
    fn cancel(&self) -> Result<bool, Errno> {
        Ok(false)
    }
}

/// Result of one step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStep {
    /// Nothing is left to do for now.
    Idle,
    /// There may be more.
    Went,
    /// The pool is full. The next step tries again.
    NoRoom,
}

impl JobStep {
    /// From the result of a step, which is whether there may be more.
    pub(crate) fn of(outcome: Result<bool, Errno>) -> Result<JobStep, Errno> {
        match outcome {
            Ok(true) => Ok(JobStep::Went),
            Ok(false) => Ok(JobStep::Idle),
            Err(Errno::ENOSPC) => Ok(JobStep::NoRoom),
            Err(errno) => Err(errno),
        }
    }
}

/// Which files are to be stored in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteSpec {
    /// A regular file, or a directory.
    pub root: Ino,
    /// Includes everything below the directory.
    pub recursive: bool,
    pub compression: Option<Compression>,
    /// Record size in bytes, with the limits of the property `recordsize`.
    pub record_size: Option<u32>,
}

/// The pass that a rewrite is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewritePass {
    Count,
    RecordSizes,
    Compression,
}

impl RewritePass {
    pub fn name(self) -> &'static str {
        match self {
            RewritePass::Count => "counting",
            RewritePass::RecordSizes => "record sizes",
            RewritePass::Compression => "compression",
        }
    }
}

/// Progress of a rewrite. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteFigures {
    /// Number of files, and their stored size, when they were counted.
    pub files_total: u64,
    pub stored_total: u64,
    /// In this pass: files done, and the stored size of records that were checked.
    pub files: u64,
    pub stored_bytes: u64,
    /// Logical size of records that were checked or rewritten.
    pub logical_bytes: u64,
    /// Records stored with another algorithm: their stored size before and after.
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// Files with a new record size; files whose second copy did not fit the pool; files that changed too fast.
    pub reshaped: u64,
    pub no_room: u64,
    pub busy: u64,
    /// Records and files that could not be read; the log names them.
    pub errors: u64,
}

/// State of a rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteState {
    Going,
    /// The pool is full. The job continues when there is space.
    NoRoom,
    Done,
    Cancelled,
}

impl RewriteState {
    pub fn name(self) -> &'static str {
        match self {
            RewriteState::Going => "going",
            RewriteState::NoRoom => "waiting for room",
            RewriteState::Done => "done",
            RewriteState::Cancelled => "cancelled",
        }
    }
}

/// A rewrite, its state and its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteStatus {
    pub spec: RewriteSpec,
    pub pass: RewritePass,
    pub state: RewriteState,
    pub figures: RewriteFigures,
}

/// The position of a walk, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory, and the offset of its next name; 0 and 0: the start.
    pub dir: Ino,
    pub offset: u64,
    /// The current file and its next record; 0: none.
    pub file: Ino,
    pub record: u64,
    pub beside: Beside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RewriteJob {
    pub spec: RewriteSpec,
    pub pass: RewritePass,
    /// Records born in this txg or later are left as they are.
    pub since: u64,
    pub place: Place,
    pub figures: RewriteFigures,
}

impl RewriteJob {
    pub fn new(spec: RewriteSpec) -> RewriteJob {
        RewriteJob {
            spec,
            pass: RewritePass::Count,
            since: 0,
            place: Place::default(),
            figures: RewriteFigures::default(),
        }
    }

    pub fn next_pass(&self) -> Option<RewritePass> {
        let compresses = self.spec.compression.map(|_| RewritePass::Compression);
        match self.pass {
            RewritePass::Count => self.spec.record_size.map(|_| RewritePass::RecordSizes).or(compresses),
            RewritePass::RecordSizes => compresses,
            RewritePass::Compression => None,
        }
    }
}

/// The visible state of a job. A leaf lock, never held while a transaction begins.
pub(crate) struct Shown {
    pub job: RewriteJob,
    pub state: RewriteState,
    /// Identifies the job: a late step of a cancelled job must not advance the next one.
    pub number: u64,
}

pub(crate) struct Rewriting {
    pub words: Words<RewriteJob, { words::WORDS }>,
    pub idle: Idle,
    /// Number of the next job.
    pub numbers: AtomicU64,
    pub shown: Mutex<Option<Shown>>,
    pub last: Mutex<Option<RewriteStatus>>,
    /// Used by the thread that runs steps. Taken before transactions begin.
    pub walk: Mutex<Walk>,
    /// Object of the second copy that is being filled; 0: none. It is in the delete queue, but must not be
    /// destroyed.
    pub beside: AtomicU64,
}

impl Rewriting {
    /// Loads the job that the master ZAP holds.
    pub fn load(master: &Master) -> Result<Rewriting, DatasetError> {
        let (words, job) = Words::load(master)?;
        let beside = AtomicU64::new(job.map_or(0, |job: RewriteJob| job.place.beside.object));
        let shown = job.map(|job| Shown { job, state: RewriteState::Going, number: 1 });
        Ok(Rewriting {
            words,
            idle: Idle::load(master)?,
            numbers: AtomicU64::new(2),
            shown: Mutex::new(shown),
            last: Mutex::default(),
            walk: Mutex::new(Walk::default()),
            beside,
        })
    }

    /// Whether this nameless object is a file's second copy that is still being filled.
    pub fn is_beside(&self, ino: Ino) -> bool {
        self.beside.load(Ordering::Acquire) == ino
    }

    /// The record size that files may get at any moment.
    pub fn record_size(&self) -> Option<u32> {
        self.shown.lock().as_ref().and_then(|shown| shown.job.spec.record_size)
    }

    /// Stores the progress of this txg. `last` is the only transaction left in the txg.
    pub fn store(&self, last: &Tx) {
        let job = self.shown.lock().as_ref().map(|shown| shown.job);
        if let Some(job) = job {
            self.words.store(last, &job);
        }
        self.idle.store(last);
    }

    /// Changes the job, unless another one has replaced it.
    pub fn advance(&self, number: u64, change: impl FnOnce(&mut RewriteJob)) {
        if let Some(shown) = self.shown.lock().as_mut().filter(|shown| shown.number == number) {
            change(&mut shown.job);
        }
    }
}

/// Whether records of this size are valid in a pool with blocks of at most `max_block` bytes.
pub(crate) fn is_record_size(bytes: u32, max_block: u32) -> bool {
    bytes.is_power_of_two() && (512..=max_block.min(16 << 20)).contains(&bytes)
}
