//! What makes changes durable.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use std::sync::atomic::Ordering;

impl Fs {
    /// What was done to this inode before is durable when it returns. (So is everything else of its group.) `EIO`: a predecessor died with
    /// changes of it; so until a change was refused as well, and for a directory once.
    pub fn fsync(&self, ino: Ino, _data_only: bool) -> Result<(), Errno> {
        self.refuse_sync(ino)?;
        self.make_durable(ino)
    }

    /// The same for a caller that speaks of what it has just done, and of nothing that a predecessor may have lost.
    pub fn make_durable(&self, ino: Ino) -> Result<(), Errno> {
        let inode = self.hold(ino)?;
        if let Some(group) = inode.changed() {
            self.set.commit()?;
            inode.unchanged_since(group);
        }
        // Of this commit or of an earlier one: no later one brings them back.
        if inode.object().has_lost_changes() {
            log::error!("fsync of inode {ino}: changes were lost to damage; answered EIO");
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Everything that was done before is durable when it returns. `EIO`, once: a commit went without changes of some file, because of
    /// damage; `fsync` of that file says so each time.
    pub fn sync(&self) -> Result<(), Errno> {
        self.set.commit()?;
        let lost = self.set.lost_changes();
        match self.losses_told.swap(lost, Ordering::AcqRel) == lost {
            true => Ok(()),
            false => Err(Errno::EIO),
        }
    }
}
