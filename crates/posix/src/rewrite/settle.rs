//! Steps of shrinking directories.

use crate::claims::{FREES, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::Inode;
use crate::jobs::{Job, JobStep, SETTLE_STEP};
use terrane_txg::cost::Cost;

/// Shrinks directories that lost names. Steps may run on their own thread, concurrently with everything else.
#[derive(Clone, Copy)]
pub struct Settle<'f> {
    fs: &'f Fs,
}

impl Job for Settle<'_> {
    /// Directories that wait, including those that lost names in the open txg.
    type Progress = usize;

    /// Shrinks up to 64 directories that lost names in a txg before the open one.
    fn step(&self, _: u64) -> Result<JobStep, Errno> {
        JobStep::of(Ok(self.fs.settle_before(self.fs.set.open_txg().0)))
    }

    fn progress(&self) -> usize {
        self.fs.settling.count()
    }
}

impl Fs {
    /// The job that shrinks directories.
    pub fn settle(&self) -> Settle<'_> {
        Settle { fs: self }
    }

    /// Shrinks all of them at unmount.
    pub(crate) fn settle_all(&self) {
        while self.settle_before(u64::MAX) {}
    }

    /// Shrinks directories noted before this txg. True: there may be more.
    fn settle_before(&self, group: u64) -> bool {
        let due = self.settling.due_before(group);
        for ino in &due {
            let Some(dir) = self.hold_cached(*ino) else { continue };
            if let Err(errno) = self.settle_one(&dir) {
                log::debug!("directory {ino} keeps space that it does not need: {errno}");
                let _state = dir.read();
                self.settling.forget(&dir);
            }
        }
        due.len() == SETTLE_STEP
    }

    fn settle_one(&self, dir: &Inode) -> Result<(), Errno> {
        let plan = {
            let state = dir.read();
            let plan = state.plan_shrink()?;
            if plan.is_none() {
                self.settling.forget(dir);
            }
            plan
        };
        let Some(plan) = plan else { return Ok(()) };
        let cost = Cost { meta_bytes: plan.bytes() as u64, ..FREES };
        let tx = self.begin(cost, &[(&dir.claims, Need::attrs())])?;
        let mut state = dir.write();
        // A change in the meantime makes this a no-op; the next removal notes the directory again.
        state.apply_shrink(&tx, plan)?;
        self.settling.forget(dir);
        Ok(())
    }
}
