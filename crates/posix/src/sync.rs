//! Durability: fsync and sync.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::inode::Inode;
use crate::types::Ino;
use std::sync::atomic::Ordering;
use terrane_dataset::SyncMode;
use terrane_object::ObjectError;

impl Fs {
    /// Makes earlier changes of this inode durable. With them all earlier changes of names and attributes become durable,
    /// of whatever inode. `EIO`: a predecessor
    /// lost changes of it. That repeats until a change was refused too; for a directory it happens once.
    pub fn fsync(&self, ino: Ino, _data_only: bool) -> Result<(), Errno> {
        self.refuse_sync(ino)?;
        self.make_durable(ino)
    }

    /// The same for a caller that only asks about its own recent changes, not about a predecessor's losses.
    pub fn make_durable(&self, ino: Ino) -> Result<(), Errno> {
        self.make_inode_durable(&*self.hold(ino)?)
    }

    /// The same. With `sync=disabled` the next commit makes changes durable, so it only reports that none will follow.
    pub(crate) fn make_inode_durable(&self, inode: &Inode) -> Result<(), Errno> {
        if self.dataset.sync_mode() == SyncMode::Disabled {
            self.set.pool().check_running().map_err(ObjectError::Pool)?;
        } else if !inode.is_durable(inode.changes()) {
            // A change is counted before it is recorded, but under the inode's lock. So what is counted here is in the
            // records that are taken next, and a change that follows is counted as another one.
            let changes = {
                let _state = inode.read();
                inode.changes()
            };
            if !self.may_log() || !self.intents.make_durable(inode.ino) {
                self.set.commit()?;
            }
            inode.note_durable(changes);
        }
        // Lost in this commit or an earlier one: no later commit brings the changes back.
        if inode.object().has_lost_changes() {
            log::error!(
                "fsync of inode {} failed with EIO: damage made a commit drop its changes",
                inode.ino
            );
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Without a commit, the ledger of a server would name this inode among those that lost changes, if the server is killed.
    fn may_log(&self) -> bool {
        self.ledger.get().is_none() || self.intents.keeps_changes()
    }

    /// Makes all earlier changes durable. `EIO`: as in [`report_losses`](Self::report_losses).
    pub fn sync(&self) -> Result<(), Errno> {
        self.set.commit()?;
        self.report_losses()
    }

    /// `EIO`, once: a commit lost changes of some file to damage. `fsync` of that file reports it each time.
    pub fn report_losses(&self) -> Result<(), Errno> {
        let lost = self.set.lost_changes();
        match self.losses_reported.swap(lost, Ordering::AcqRel) == lost {
            true => Ok(()),
            false => Err(Errno::EIO),
        }
    }
}
