//! Steps of shrinking directories.

use crate::claims::{FREES, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::Inode;
use crate::jobs::{Job, JobStep, SHRINK_STEP};
use terrane_txg::cost::Cost;

/// Shrinks directories that lost names. Steps may run on their own thread, concurrently with everything else.
#[derive(Clone, Copy)]
pub struct ShrinkDirs<'f> {
    fs: &'f Fs,
}

impl Job for ShrinkDirs<'_> {
    /// Directories that wait, including those that lost names in the open txg.
    type Progress = usize;

    /// Shrinks up to 64 directories that lost names in a txg before the open one.
    fn step(&self, _: u64) -> Result<JobStep, Errno> {
        JobStep::of(Ok(self.fs.shrink_dirs_before(self.fs.set.open_txg().0)))
    }

    fn progress(&self) -> usize {
        self.fs.shrink_queue.count()
    }
}

impl Fs {
    /// The job that shrinks directories.
    pub fn shrink_dirs(&self) -> ShrinkDirs<'_> {
        ShrinkDirs { fs: self }
    }

    /// Shrinks all of them at unmount.
    pub(crate) fn shrink_all_dirs(&self) {
        while self.shrink_dirs_before(u64::MAX) {}
    }

    /// Shrinks directories noted before this txg. True: there may be more.
    fn shrink_dirs_before(&self, txg: u64) -> bool {
        let dirs = self.shrink_queue.queued_before(txg);
        for ino in &dirs {
            let Some(dir) = self.hold_cached(*ino) else { continue };
            if let Err(errno) = self.shrink_dir(&dir) {
                log::debug!("failed to shrink directory {ino}: {errno}");
                let _state = dir.read();
                self.shrink_queue.remove(&dir);
            }
        }
        dirs.len() == SHRINK_STEP
    }

    fn shrink_dir(&self, dir: &Inode) -> Result<(), Errno> {
        let plan = {
            let state = dir.read();
            let plan = state.plan_shrink()?;
            if plan.is_none() {
                self.shrink_queue.remove(dir);
            }
            plan
        };
        let Some(plan) = plan else { return Ok(()) };
        let cost = Cost { meta_bytes: plan.bytes() as u64, ..FREES };
        let tx = self.begin(cost, &[(&dir.claims, Need::attrs())])?;
        let mut state = dir.write();
        // A change in the meantime makes this a no-op; the next removal notes the directory again.
        state.apply_shrink(&tx, plan)?;
        self.note_restored(dir);
        self.shrink_queue.remove(dir);
        Ok(())
    }
}
