//! Durability: fsync and sync.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::hold::InodeRef;
use crate::inode::Inode;
use crate::intents::{LogWait, Logged};
use crate::types::Ino;
use std::sync::atomic::Ordering;
use terrane_dataset::SyncMode;
use terrane_object::ObjectError;

/// How often an `fsync` waits for space in the log before it commits.
const FULL_WAITS: usize = 4;

/// An `fsync` whose records were handed to the intent log.
pub struct PendingSync<'f> {
    fs: &'f Fs,
    inode: InodeRef<'f>,
    changes: u64,
    wait: LogWait,
}

impl PendingSync<'_> {
    /// Waits until the records are durable. The first caller writes all records that were handed over until then.
    ///
    /// # Errors
    /// As for [`Fs::fsync`].
    pub fn finish(self) -> Result<(), Errno> {
        self.fs.finish_durable(&self.inode, (self.changes, Logged::Waits(self.wait)))
    }
}

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

    /// The first half of [`Fs::fsync`], which hands records to the intent log. It waits for nothing but locks. `None`:
    /// there is nothing to wait for, or it takes a commit; [`Fs::fsync`] does that.
    pub fn begin_fsync(&self, ino: Ino) -> Result<Option<PendingSync<'_>>, Errno> {
        self.refuse_sync(ino)?;
        let inode = self.hold(ino)?;
        Ok(match self.begin_durable(&inode)? {
            (changes, Logged::Waits(wait)) => Some(PendingSync { fs: self, inode, changes, wait }),
            _ => None,
        })
    }

    /// The same as `make_durable`. With `sync=disabled` the next commit makes changes durable, so it only reports that none will
    /// follow.
    pub(crate) fn make_inode_durable(&self, inode: &Inode) -> Result<(), Errno> {
        let mut begun = self.begin_durable(inode)?;
        for _ in 0..FULL_WAITS {
            let Logged::Full(wait) = begun.1 else { break };
            // If they fail, the next call finds that out.
            self.intents.wait_logged(wait);
            begun = self.begin_durable(inode)?;
        }
        self.finish_durable(inode, begun)
    }

    /// Logs the changes of an inode so far, which are so many.
    fn begin_durable(&self, inode: &Inode) -> Result<(u64, Logged), Errno> {
        if self.dataset.sync_mode() == SyncMode::Disabled {
            self.set.pool().check_running().map_err(ObjectError::Pool)?;
            return Ok((0, Logged::Durable));
        }
        if inode.is_durable(inode.changes()) {
            return Ok((0, Logged::Durable));
        }
        // A change is counted before it is recorded, but under the inode's lock. So what is counted here is in the
        // records that are taken next, and a change that follows is counted as another one.
        let changes = {
            let _state = inode.read();
            inode.changes()
        };
        let logged = if self.may_log() { self.intents.log_changes(inode.ino) } else { Logged::NeedsCommit };
        Ok((changes, logged))
    }

    /// Waits until so many changes of an inode are durable.
    fn finish_durable(&self, inode: &Inode, (changes, logged): (u64, Logged)) -> Result<(), Errno> {
        let is_logged = match logged {
            Logged::Durable => true,
            Logged::Waits(wait) => self.intents.wait_logged(wait),
            Logged::Full(_) | Logged::NeedsCommit => false,
        };
        if !is_logged {
            self.set.commit()?;
        }
        inode.note_durable(changes);
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
