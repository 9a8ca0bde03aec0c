//! Work that goes on beside requests: what is to be done, how far it came, and what it has done.
//!
//! Each kind is a [`Job`], which does nothing by itself: who has time for it takes steps, and rests in between as long as others shall
//! have. No step waits for another job, and what one did stays done whatever becomes of the next.
//!
//! | job | what a step takes | how far it came |
//! |---|---|---|
//! | [`Rewrite`](crate::Rewrite): somebody wants files stored in another form | as much content as the caller says | in the master ZAP |
//! | [`Recompress`](crate::Recompress): cold files compressed well | a record | in the master ZAP |
//! | [`Rebirth`](crate::Rebirth): blocks written anew for the run index | a MiB | the pool names again what is left |
//! | [`Settle`](crate::Settle): directories that lost names made smaller | 64 directories | gone with the mount, which settles all |
//!
//! What is stored in the master ZAP is a [`Cursor`](crate::master::Cursor), as of the end of each group in which the job went on: it never
//! says more than the group holds.

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

/// Work that goes on beside requests, by steps of whoever has time for it.
pub trait Job {
    /// How far it is.
    type Progress;

    /// Goes on by about so many bytes of content, where it is measured by them, and by a little in any case.
    fn step(&self, bytes: u64) -> Result<JobStep, Errno>;

    fn progress(&self) -> Self::Progress;

    /// Ends what somebody began; what was done stays. False: nobody began it.
    fn cancel(&self) -> Result<bool, Errno> {
        Ok(false)
    }
}

/// What one step of a job came to.
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
    /// Of a step that says whether there may be more.
    pub(crate) fn of(outcome: Result<bool, Errno>) -> Result<JobStep, Errno> {
        match outcome {
            Ok(true) => Ok(JobStep::Went),
            Ok(false) => Ok(JobStep::Idle),
            Err(Errno::ENOSPC) => Ok(JobStep::NoRoom),
            Err(errno) => Err(errno),
        }
    }
}

/// What shall be stored in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteSpec {
    /// A regular file, or a directory.
    pub root: Ino,
    /// Everything below the directory.
    pub recursive: bool,
    pub compression: Option<Compression>,
    /// Bytes of a record: as the property `recordsize` may be.
    pub record_size: Option<u32>,
}

/// What a rewrite is at.
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

/// How far a rewrite is. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteFigures {
    /// Files, and what they took when they were counted.
    pub files_total: u64,
    pub stored_total: u64,
    /// Of this pass: files that are done, and what records took that were looked at.
    pub files: u64,
    pub stored_bytes: u64,
    /// Content of records that were looked at or made anew.
    pub logical_bytes: u64,
    /// Records that were stored by another algorithm: what they took before and after it.
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// Files that got another record size; those for a second copy of which there was no room, and those that were changed too fast.
    pub reshaped: u64,
    pub no_room: u64,
    pub busy: u64,
    /// Records and files that could not be read; the log names them.
    pub errors: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteState {
    Going,
    /// The pool is full; it goes on when there is room.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteStatus {
    pub spec: RewriteSpec,
    pub pass: RewritePass,
    pub state: RewriteState,
    pub figures: RewriteFigures,
}

/// Where a walk is, as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory, and the offset of the next name in it; 0 and 0: at the beginning.
    pub dir: Ino,
    pub offset: u64,
    /// The file that was begun, and its next record; 0: none.
    pub file: Ino,
    pub record: u64,
    pub beside: Beside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RewriteJob {
    pub spec: RewriteSpec,
    pub pass: RewritePass,
    /// Records born in this group or later are left as they are.
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

/// What others see of a job. A leaf lock, never held over a transaction's begin.
pub(crate) struct Shown {
    pub job: RewriteJob,
    pub state: RewriteState,
    /// Which job it is: a step of one that was cancelled must not advance the next.
    pub number: u64,
}

pub(crate) struct Rewriting {
    pub words: Words<RewriteJob, { words::WORDS }>,
    pub idle: Idle,
    /// For the next job.
    pub numbers: AtomicU64,
    pub shown: Mutex<Option<Shown>>,
    pub last: Mutex<Option<RewriteStatus>>,
    /// Of who takes steps. Taken before transactions begin.
    pub walk: Mutex<Walk>,
    /// The object that is filled beside a file; 0: none. It stands in the delete queue, and must not be destroyed.
    pub beside: AtomicU64,
}

impl Rewriting {
    /// With the job that the master ZAP holds.
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

    /// Whether this object, which has no name, is a file's second copy that goes on growing.
    pub fn is_beside(&self, ino: Ino) -> bool {
        self.beside.load(Ordering::Acquire) == ino
    }

    /// The record size that files may get any moment.
    pub fn record_size(&self) -> Option<u32> {
        self.shown.lock().as_ref().and_then(|shown| shown.job.spec.record_size)
    }

    /// Nobody else is in the group any more: how far it came in it.
    pub fn store(&self, last: &Tx) {
        let job = self.shown.lock().as_ref().map(|shown| shown.job);
        if let Some(job) = job {
            self.words.store(last, &job);
        }
        self.idle.store(last);
    }

    /// Changes the job, if it is still this one.
    pub fn advance(&self, number: u64, change: impl FnOnce(&mut RewriteJob)) {
        if let Some(shown) = self.shown.lock().as_mut().filter(|shown| shown.number == number) {
            change(&mut shown.job);
        }
    }
}

/// Whether a pool whose blocks take at most `max_block` bytes may have such records.
pub(crate) fn is_record_size(bytes: u32, max_block: u32) -> bool {
    bytes.is_power_of_two() && (512..=max_block.min(16 << 20)).contains(&bytes)
}
