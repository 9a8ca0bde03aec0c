//! Background jobs: what they have to do, how far they are, and what they have done.
//!
//! Each kind is a [`Job`], which does nothing by itself. The caller runs steps, and pauses between them to
//! leave time for requests. No step waits for another job. What a step did is kept, whatever the next one does.
//!
//! | job | one step | progress |
//! |---|---|---|
//! | [`Rewrite`](crate::Rewrite): store files in another form, on request | as much content as the caller says | in the master ZAP |
//! | [`Recompress`](crate::Recompress): compress cold files well | a record | in the master ZAP |
//! | [`RewriteRelocated`](crate::RewriteRelocated): shrink the relocation index | a MiB | none: the pool names the rest again |
//! | [`ShrinkDirs`](crate::ShrinkDirs): shrink directories that lost names | 64 directories | none: unmount shrinks all |
//!
//! Progress in the master ZAP is a [`JobCursor`](crate::master::JobCursor). It is stored at the end of each txg in
//! which the job advanced, so it never claims more than the txg holds.

mod recompress;
mod relocated;
mod rewrite_cursor;
mod second_copy;
mod shrink_queue;
mod walk;

use crate::errno::Errno;
use crate::master::{Master, StoredCursor};
use crate::types::Ino;
use parking_lot::Mutex;
pub use recompress::RecompressStatus;
pub(crate) use recompress::{
    NextAction, RecompressProgress, RecompressState, is_worthwhile, level_for, next_action,
};
pub(crate) use relocated::RelocatedQueue;
pub(crate) use second_copy::{CopyProgress, SecondCopy};
pub(crate) use shrink_queue::{SHRINK_STEP, ShrinkQueue};
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_codec::Compression;
use terrane_dataset::DatasetError;
use terrane_pool::Tx;
pub(crate) use walk::{DirLevel, ReuseCheck, Walk, WalkEntry, WalkFile};

/// Background work in steps, which the caller runs when it has time.
pub trait Job {
    /// Type of the progress report.
    type Progress;

    /// Advances by about `bytes` of content, if the job counts bytes. It always advances a little.
    fn step(&self, bytes: u64) -> Result<JobStep, Errno>;

    /// Returns the current progress report.
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
    NothingToDo,
    /// There may be more.
    Progressed,
    /// The pool is full. The next step tries again.
    NoSpace,
}

impl JobStep {
    /// From the result of a step, which is whether there may be more.
    pub(crate) fn of(outcome: Result<bool, Errno>) -> Result<JobStep, Errno> {
        match outcome {
            Ok(true) => Ok(JobStep::Progressed),
            Ok(false) => Ok(JobStep::NothingToDo),
            Err(Errno::ENOSPC | Errno::EDQUOT) => Ok(JobStep::NoSpace),
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
    /// The algorithm; `None` keeps that of each record.
    pub compression: Option<Compression>,
    /// Record size in bytes, with the limits of the property `recordsize`.
    pub record_size: Option<u32>,
}

/// The pass that a rewrite is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewritePass {
    /// Counts files and their stored size.
    Count,
    /// Changes record sizes. Skipped without [`RewriteSpec::record_size`].
    RecordSizes,
    /// Changes algorithms. Skipped without [`RewriteSpec::compression`].
    Compression,
}

impl RewritePass {
    /// Name for status output.
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
    /// Number of files, when they were counted.
    pub files_total: u64,
    /// Stored size of files, when they were counted.
    pub stored_total: u64,
    /// In this pass: files done.
    pub files: u64,
    /// In this pass: stored size of records that were checked.
    pub stored_bytes: u64,
    /// Logical size of records that were checked or rewritten.
    pub logical_bytes: u64,
    /// Records stored with another algorithm: their stored size before the rewrite.
    pub before_bytes: u64,
    /// Records stored with another algorithm: their stored size after the rewrite.
    pub after_bytes: u64,
    /// Files with a new record size.
    pub reshaped: u64,
    /// Files whose second copy did not fit the pool.
    pub no_room: u64,
    /// Files that changed too fast for a second copy.
    pub busy: u64,
    /// Records and files that could not be read; the log names them.
    pub errors: u64,
}

/// State of a rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteState {
    /// It has work left, and its last step did not find the pool full.
    Running,
    /// The pool is full. The job continues when there is space.
    NoSpace,
    /// All passes are complete, and what they rewrote is durable.
    Done,
    /// Ended by [`Job::cancel`]. Rewritten records are kept.
    Cancelled,
}

impl RewriteState {
    /// Name for status output.
    pub fn name(self) -> &'static str {
        match self {
            RewriteState::Running => "going",
            RewriteState::NoSpace => "waiting for room",
            RewriteState::Done => "done",
            RewriteState::Cancelled => "cancelled",
        }
    }
}

/// A rewrite, its state and its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteStatus {
    /// What was requested.
    pub spec: RewriteSpec,
    /// The current pass, or the one in which the rewrite ended.
    pub pass: RewritePass,
    /// State after the last step.
    pub state: RewriteState,
    /// Progress. `files` and `stored_bytes` begin at 0 in each pass.
    pub figures: RewriteFigures,
}

/// The position of a walk, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkPosition {
    /// The directory, and the offset of its next name; 0 and 0: the start.
    pub dir: Ino,
    pub offset: u64,
    /// The current file and its next record; 0: none.
    pub file: Ino,
    pub record: u64,
    pub copy_progress: CopyProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RewriteJob {
    pub spec: RewriteSpec,
    pub pass: RewritePass,
    /// Records born in this txg or later are left as they are.
    pub since: u64,
    pub position: WalkPosition,
    pub figures: RewriteFigures,
}

impl RewriteJob {
    /// A job at the start of its first pass.
    pub fn new(spec: RewriteSpec) -> RewriteJob {
        RewriteJob {
            spec,
            pass: RewritePass::Count,
            since: 0,
            position: WalkPosition::default(),
            figures: RewriteFigures::default(),
        }
    }

    /// The pass after this one that the job needs; `None`: it is done.
    pub fn next_pass(&self) -> Option<RewritePass> {
        let compression = self.spec.compression.map(|_| RewritePass::Compression);
        match self.pass {
            RewritePass::Count => self.spec.record_size.map(|_| RewritePass::RecordSizes).or(compression),
            RewritePass::RecordSizes => compression,
            RewritePass::Compression => None,
        }
    }
}

/// The visible state of a job. A leaf lock, never held while a transaction begins.
pub(crate) struct RunningRewrite {
    pub job: RewriteJob,
    pub state: RewriteState,
    /// Identifies the job: a late step of a cancelled job must not advance the next one.
    pub job_number: u64,
}

pub(crate) struct Rewriting {
    /// The job as stored.
    pub cursor: StoredCursor<RewriteJob, { rewrite_cursor::WORDS }>,
    pub recompress: RecompressState,
    /// Number of the next job.
    pub next_job_number: AtomicU64,
    /// Held while a rewrite starts: only its holder fills `running`. Taken before transactions begin.
    pub start_lock: Mutex<()>,
    /// `None`: no rewrite is running.
    pub running: Mutex<Option<RunningRewrite>>,
    /// The last rewrite that ended since this data set was opened. Starting one clears it.
    pub last_status: Mutex<Option<RewriteStatus>>,
    /// Used by the thread that runs steps. Taken before transactions begin.
    pub walk: Mutex<Walk>,
    /// Object of the second copy that is being filled; 0: none. It is in the delete queue, but must not be
    /// destroyed.
    pub copy_object: AtomicU64,
}

impl Rewriting {
    /// Loads the job that the master ZAP holds.
    pub fn load(master: &Master) -> Result<Rewriting, DatasetError> {
        let (words, job) = StoredCursor::load(master)?;
        let copy_object = AtomicU64::new(job.map_or(0, |job: RewriteJob| job.position.copy_progress.object));
        let running = job.map(|job| RunningRewrite { job, state: RewriteState::Running, job_number: 1 });
        Ok(Rewriting {
            cursor: words,
            recompress: RecompressState::load(master)?,
            next_job_number: AtomicU64::new(2),
            start_lock: Mutex::default(),
            running: Mutex::new(running),
            last_status: Mutex::default(),
            walk: Mutex::new(Walk::default()),
            copy_object,
        })
    }

    /// Whether this nameless object is a file's second copy that is still being filled.
    pub fn is_second_copy(&self, ino: Ino) -> bool {
        self.copy_object.load(Ordering::Acquire) == ino
    }

    /// The record size that files may get at any moment.
    pub fn record_size(&self) -> Option<u32> {
        self.running.lock().as_ref().and_then(|running| running.job.spec.record_size)
    }

    /// Stores the progress of this txg. `last` is the only transaction left in the txg.
    pub fn store(&self, last: &Tx) {
        let job = self.running.lock().as_ref().map(|running| running.job);
        if let Some(job) = job {
            self.cursor.store(last, &job);
        }
        self.recompress.store(last);
    }

    /// Changes the job, unless another one has replaced it.
    pub fn advance(&self, number: u64, change: impl FnOnce(&mut RewriteJob)) {
        if let Some(running) = self.running.lock().as_mut().filter(|running| running.job_number == number) {
            change(&mut running.job);
        }
    }
}

/// Whether records of this size are valid in a pool with blocks of at most `max_block` bytes.
pub(crate) fn is_record_size(bytes: u32, max_block: u32) -> bool {
    bytes.is_power_of_two() && (512..=max_block.min(16 << 20)).contains(&bytes)
}
