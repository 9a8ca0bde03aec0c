//! Online rewrite: stores files in another form, in place, while they are used.
//!
//! A *rewrite* goes through a file, or through all files below a directory. It stores their records with
//! another algorithm, or with another record size. It advances in steps on the calling thread, so the caller
//! sets the pace. A record is read and compressed outside any txg; the txg only appends it.
//!
//! Programs see only `st_blocks` change, and `st_blksize` with another record size. Content and times do not
//! change, not even the change time: backup programs rely on it, and would copy everything again.
//!
//! Writers win: data written since the rewrite began has the form that the data set's properties demand, and
//! keeps it.
//!
//! One rewrite runs at a time. Its job and progress are stored in the data set's master ZAP at the end of each
//! txg. So it continues after an unmount or a crash ([`JobCursor`]). It first counts the work, then changes record
//! sizes ([`record_size`]), then algorithms ([`record`]). Each pass is a separate walk ([`walk`]).
//!
//! Invariant: stored progress covers a record only if the rewritten record is in the same txg or an earlier
//! one.

mod recompress;
mod record;
mod record_size;
mod relocated;
mod second_copy;
mod shrink_dirs;
mod walk;

pub use recompress::Recompress;
pub use relocated::RewriteRelocated;
pub use shrink_dirs::ShrinkDirs;

use crate::claims::{Claims, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::jobs::{
    Job, JobStep, RewriteFigures, RewriteJob, RewritePass, RewriteSpec, RewriteState, RewriteStatus,
    RunningRewrite, Walk, WalkPosition, is_record_size,
};
use crate::master::{JobCursor, StoredCursor};
use crate::types::mode;
use std::sync::atomic::Ordering;
use terrane_format::Feature;
use terrane_pool::Tx;
use terrane_txg::cost::Cost;

/// Access to the rewrite of this file system.
#[derive(Clone, Copy)]
pub struct Rewrite<'f> {
    fs: &'f Fs,
}

impl Rewrite<'_> {
    /// Starts a rewrite, which [`step`](Job::step) advances; durable with the next commit. If the same one is
    /// running, the call succeeds. `EBUSY`: another one is running. `EISDIR`: a directory without `recursive`.
    /// `EINVAL`: neither file nor directory, no form, or an invalid record size. `EROFS`: a read-only pool or data set.
    pub fn begin(&self, spec: &RewriteSpec) -> Result<(), Errno> {
        {
            let inode = self.fs.hold(spec.root)?;
            match inode.read().attrs.file_type() {
                mode::S_IFREG => {}
                mode::S_IFDIR if spec.recursive => {}
                mode::S_IFDIR => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
        }
        let pool = self.fs.set.pool();
        if spec.record_size.is_some_and(|bytes| !is_record_size(bytes, pool.max_block()))
            || spec.record_size.is_none() && spec.compression.is_none()
        {
            return Err(Errno::EINVAL);
        }
        if pool.is_read_only() || self.fs.dataset.is_read_only() {
            return Err(Errno::EROFS);
        }
        let rewriting = &self.fs.rewriting;
        let _starting = rewriting.start_lock.lock();
        match rewriting.running.lock().as_ref() {
            Some(other) if other.job.spec == *spec => return Ok(()),
            Some(_) => return Err(Errno::EBUSY),
            None => {}
        }
        if spec.compression.is_some_and(|compression| !compression.needs_no_feature())
            && !pool.has(Feature::Codecs)
        {
            // This rewrites the labels, so a rewrite that cannot begin in a full pool must not get here.
            drop(self.fs.begin(rewriting.cursor.total_cost(), &[])?);
            pool.enable(&[Feature::Codecs]).map_err(terrane_object::ObjectError::from)?;
        }
        spec.record_size.into_iter().for_each(|bytes| pool.note_record_size(bytes));
        let tx = self.fs.begin(rewriting.cursor.total_cost(), &[])?;
        let mut running = rewriting.running.lock();
        let job = RewriteJob::new(*spec);
        rewriting.cursor.put(&tx, &job)?;
        let number = rewriting.next_job_number.fetch_add(1, Ordering::Relaxed);
        *running = Some(RunningRewrite { job, state: RewriteState::Running, job_number: number });
        *rewriting.last_status.lock() = None;
        Ok(())
    }

    /// Whether a rewrite is running.
    pub fn is_running(&self) -> bool {
        self.fs.rewriting.running.lock().is_some()
    }
}

impl Job for Rewrite<'_> {
    type Progress = Option<RewriteStatus>;

    /// In the compression pass, rewrites records with `bytes` of content. It uses one thread per processor,
    /// with this thread's priority. In other passes, it handles a small file or a piece of a large one.
    /// `NoSpace`: part may be done.
    fn step(&self, bytes: u64) -> Result<JobStep, Errno> {
        let rewriting = &self.fs.rewriting;
        let mut walk = rewriting.walk.lock();
        let Some((number, job)) =
            rewriting.running.lock().as_ref().map(|running| (running.job_number, running.job))
        else {
            return Ok(JobStep::NothingToDo);
        };
        if !walk.is_for(number, job.pass) {
            *walk = Walk::resume(self.fs, number, &job);
        }
        let mut figures = job.figures;
        let outcome = self.fs.run_step(&job, &mut walk, &mut figures, bytes);
        let state = match outcome {
            Err(Errno::ENOSPC | Errno::EDQUOT) => RewriteState::NoSpace,
            _ => RewriteState::Running,
        };
        if let Some(running) =
            rewriting.running.lock().as_mut().filter(|running| running.job_number == number)
        {
            running.state = state;
            if running.job.pass == job.pass {
                (running.job.position, running.job.figures) = (walk.position(), figures);
            }
        }
        match outcome {
            Ok(false) => self.fs.end_of_pass(number, &job),
            outcome => JobStep::of(outcome),
        }
    }

    /// The running rewrite, or else the last one since this data set was opened.
    fn progress(&self) -> Option<RewriteStatus> {
        let running = self.fs.rewriting.running.lock();
        let current = running.as_ref().map(|RunningRewrite { job, state, .. }| RewriteStatus {
            spec: job.spec,
            pass: job.pass,
            state: *state,
            figures: job.figures,
        });
        current.or(*self.fs.rewriting.last_status.lock())
    }

    /// Cancels the running rewrite; rewritten records are kept. False: none is running.
    fn cancel(&self) -> Result<bool, Errno> {
        // Locked first: a job that starts right after has its own second copy.
        let mut walk = self.fs.rewriting.walk.lock();
        let Some(number) = self.fs.rewriting.running.lock().as_ref().map(|running| running.job_number) else {
            return Ok(false);
        };
        *walk = Walk::default();
        // While the job exists, it identifies the copy that has no owner.
        self.fs.destroy_copy(self.fs.rewriting.copy_object.load(Ordering::Acquire));
        self.fs.end_rewrite(number, RewriteState::Cancelled)
    }
}

impl Fs {
    /// The running rewrite, or one to start.
    pub fn rewrite(&self) -> Rewrite<'_> {
        Rewrite { fs: self }
    }

    fn end_rewrite(&self, number: u64, state: RewriteState) -> Result<bool, Errno> {
        let rewriting = &self.rewriting;
        let tx = self.begin(Cost { frees: true, ..rewriting.cursor.total_cost() }, &[])?;
        let mut running = rewriting.running.lock();
        let Some(ended) = running.take_if(|running| running.job_number == number) else { return Ok(false) };
        if let Err(errno) = rewriting.cursor.remove(&tx) {
            *running = Some(ended);
            return Err(errno);
        }
        let RewriteJob { spec, pass, figures, .. } = ended.job;
        *rewriting.last_status.lock() = Some(RewriteStatus { spec, pass, state, figures });
        Ok(true)
    }

    /// Runs one step. False: this pass is complete.
    fn run_step(
        &self,
        job: &RewriteJob,
        walk: &mut Walk,
        figures: &mut RewriteFigures,
        bytes: u64,
    ) -> Result<bool, Errno> {
        if job.pass == RewritePass::Compression {
            return self.recode_batch(job, walk, figures, bytes);
        }
        let Some(file) = walk.current_file(self) else { return Ok(false) };
        let outcome = match self.hold(file.ino) {
            Err(errno) => Err(errno),
            Ok(inode) if !file.is_same_file(&inode) => Err(Errno::ESTALE),
            Ok(inode) if job.pass == RewritePass::RecordSizes => {
                self.change_record_size(&inode, file, job, figures)
            }
            Ok(inode) => {
                figures.files_total += 1;
                figures.stored_total += inode.object().used_bytes();
                Ok(true)
            }
        };
        self.handle_result(outcome, job, walk, figures)?;
        Ok(true)
    }

    /// Handles the result of a step on the current file; `Ok(true)`: the file is done.
    fn handle_result(
        &self,
        outcome: Result<bool, Errno>,
        job: &RewriteJob,
        walk: &mut Walk,
        figures: &mut RewriteFigures,
    ) -> Result<(), Errno> {
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                figures.files += u64::from(job.pass != RewritePass::Count);
                self.close_file(walk);
            }
            // The pool is full, has stopped, or is closed.
            Err(errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS)) => return Err(errno),
            Err(errno) => {
                // A file removed in the meantime is not an error.
                if errno != Errno::ESTALE {
                    figures.errors += 1;
                    let ino = walk.file.as_ref().map_or(0, |file| file.ino);
                    log::error!("rewrite skipped inode {ino}: {errno}");
                }
                self.close_file(walk);
                if self.set.pool().status().failed.is_some() {
                    return Err(errno);
                }
            }
        }
        Ok(())
    }

    /// Leaves a file that is done, or cannot be continued.
    fn close_file(&self, walk: &mut Walk) {
        if let Some(mut file) = walk.file.take() {
            self.abandon_copy(&mut file);
        }
    }

    fn end_of_pass(&self, number: u64, job: &RewriteJob) -> Result<JobStep, Errno> {
        // A caller that sees "done" must find it done after a crash. Also, records of a pass have no pointers
        // before they are committed, and the next pass would skip them.
        self.set.commit()?;
        let Some(pass) = job.next_pass() else {
            self.end_rewrite(number, RewriteState::Done)?;
            return Ok(JobStep::Progressed);
        };
        let since = self.set.open_txg().0;
        self.rewriting.advance(number, |job| {
            (job.pass, job.since, job.position) = (pass, since, WalkPosition::default());
            (job.figures.files, job.figures.stored_bytes) = (0, 0);
        });
        let _tx = self.begin_with_cursor(&self.rewriting.cursor, &[])?;
        Ok(JobStep::Progressed)
    }

    /// Begins a transaction, at the end of whose txg this cursor is stored.
    fn begin_with_cursor<C: JobCursor<N>, const N: usize>(
        &self,
        cursor: &StoredCursor<C, N>,
        needs: &[(&Claims, Need)],
    ) -> Result<Tx, Errno> {
        let mut all = needs.to_vec();
        all.push(cursor.need());
        let tx = self.begin(Cost::NOTHING, &all)?;
        cursor.note_reserved(&tx);
        Ok(tx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{Machine, Short};
    use crate::types::{Ino, WriteFlags};
    use terrane_codec::Compression;

    #[test]
    fn a_refused_rewrite_enables_no_feature() {
        let m = Machine::new(1, &[]);
        let fs = m.fs();
        let root = fs.file(fs.root(), "file").ino;
        let running = RewriteSpec { root, recursive: false, compression: None, record_size: Some(16 << 10) };
        fs.rewrite().begin(&running).unwrap();
        let other = RewriteSpec { compression: Some(Compression::Zle), ..running };
        assert_eq!(fs.rewrite().begin(&other), Err(Errno::EBUSY));
        assert_eq!(fs.rewrite().begin(&running), Ok(()), "the same one");
        assert!(!m.pool().has(Feature::Codecs));
        fs.rewrite().cancel().unwrap();
        fs.rewrite().begin(&other).unwrap();
        assert!(m.pool().has(Feature::Codecs));
    }

    #[test]
    fn cancel_waits_for_a_running_step() {
        let m = Machine::new(1, &[("recordsize", "4K")]);
        let fs = m.fs();
        let root = fs.file(fs.root(), "file").ino;
        fs.write(root, 0, &[7; 3_000_000], WriteFlags::default()).unwrap();
        fs.sync().unwrap();
        let spec = RewriteSpec { root, recursive: false, compression: None, record_size: Some(16 << 10) };
        fs.rewrite().begin(&spec).unwrap();
        while fs.unlinked_count() == Ok(0) {
            fs.rewrite().step(1).unwrap();
        }
        let walk = fs.rewriting.walk.lock();
        std::thread::scope(|scope| {
            let cancelling = scope.spawn(|| fs.rewrite().cancel());
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert!(fs.rewrite().is_running(), "another one could begin, and its copy would be taken");
            assert_eq!(fs.unlinked_count(), Ok(1));
            drop(walk);
            assert_eq!(cancelling.join().unwrap(), Ok(true));
        });
        assert_eq!((fs.rewrite().is_running(), fs.unlinked_count()), (false, Ok(0)));
    }

    #[test]
    fn an_unstored_batch_is_collected_again() {
        let m = Machine::new(1, &[("recordsize", "4K"), ("compression", "off")]);
        let fs = m.fs();
        let dir = fs.dir(fs.root(), "directory").ino;
        let inos: Vec<Ino> = (0..5).map(|at| fs.file(dir, &format!("file {at}")).ino).collect();
        for ino in &inos {
            fs.write(*ino, 0, &[7; 40_000], WriteFlags::default()).unwrap();
        }
        fs.sync().unwrap();
        let since = fs.set.open_txg().0;
        for (root, expected) in [(dir, 50), (inos[2], 10)] {
            let compression = Some(Compression::Lz4);
            let spec = RewriteSpec { root, recursive: true, compression, record_size: None };
            let mut job = RewriteJob { pass: RewritePass::Compression, since, ..RewriteJob::new(spec) };
            let mut walk = Walk::resume(fs, 1, &job);
            let mut records = 0;
            loop {
                let collect = |walk: &mut Walk| {
                    let mut figures = job.figures;
                    fs.collect(&job, walk, &mut figures, 30_000).unwrap()
                };
                let (first, _) = collect(&mut walk);
                walk.go_back(fs, &job);
                let (again, has_more) = collect(&mut walk);
                assert_eq!(first, again);
                if !has_more {
                    break;
                }
                records += again.len();
                job.position = walk.position();
            }
            assert_eq!(records, expected);
        }
    }
}
