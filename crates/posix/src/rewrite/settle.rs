//! Steps of giving back what directories no longer need.

use crate::claims::{FREES, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::Inode;
use crate::jobs::SETTLE_STEP;
use terrane_pool::Cost;

impl Fs {
    /// Gives back what up to 64 directories no longer need that lost names in a group before the open one; true: there may be
    /// more of them. Calls may come from a thread of their own, beside everything else.
    pub fn settle_names(&self) -> bool {
        self.settle_before(self.set.open_txg().0)
    }

    /// All of them: before everything is forgotten.
    pub(crate) fn settle_all(&self) {
        while self.settle_before(u64::MAX) {}
    }

    fn settle_before(&self, group: u64) -> bool {
        let due = self.settling.due_before(group);
        for ino in &due {
            let Some(dir) = self.hold_cached(*ino) else { continue };
            if let Err(errno) = self.settle(&dir) {
                log::debug!("directory {ino} keeps space that it does not need: {errno}");
                let _state = dir.read();
                self.settling.forget(&dir);
            }
        }
        due.len() == SETTLE_STEP
    }

    fn settle(&self, dir: &Inode) -> Result<(), Errno> {
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
        // If it was changed meanwhile nothing happens; the next removal notes it again.
        state.apply_shrink(&tx, plan)?;
        self.settling.forget(dir);
        Ok(())
    }
}
