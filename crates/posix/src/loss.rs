//! Changes that a predecessor server lost, and how programs learn of it.
//!
//! A killed server loses all changes that no commit contains. After a power cut the programs that made them are
//! dead too. Here they live on. A program that keeps writing would leave a file with a missing part, and see no
//! error. So each kind of call fails once. The first change of such a file is refused. `fsync` is refused until
//! a change was refused too. A program that repeats `fsync` has not written its data again, so the repeat must
//! not succeed.
//!
//! A loss no longer matters once the file is truncated to 0 or destroyed. Otherwise it stays in the pool's
//! error log until an administrator clears it ([`Fs::clear_losses`]). The log also lists files whose dirty
//! pages the kernel could not write back. A store into a shared mapping never fails by itself. If the later
//! writeback finds no space, the store is lost. `msync` and `fsync` report that, but `munmap`, `close` and exit
//! do not.
//!
//! A directory that lost changes blocks no caller: a program that uses a lost name gets an error then. Its
//! first `fsync` fails.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::losses::Loss;
use crate::types::{Ino, mode};
use std::sync::atomic::Ordering;
use terrane_dataset::DatasetError;
use terrane_store::errors::{Errors, FILES_MAX, LossCause, LostFile};

impl Fs {
    /// Inodes with lost changes, as passed to [`take_over`](Self::take_over), of which the kernel may have another
    /// state: some kind of call has not reported the loss yet, or the changes were rolled back.
    pub fn lost_inodes(&self) -> Vec<Ino> {
        let unreported =
            |(ino, loss): (&Ino, &Loss)| (!loss.is_reported() || loss.is_rolled_back).then_some(*ino);
        self.losses
            .as_ref()
            .map_or_else(Vec::new, |losses| losses.list.lock().iter().filter_map(unreported).collect())
    }

    /// Files that lost changes in this mount and earlier ones, and why, until an administrator clears them.
    pub fn lost_files(&self) -> Vec<(Ino, LossCause)> {
        self.log_losses();
        let set = self.set.id().0;
        let files = self.set.pool().errors().files;
        let mine = files.into_iter().filter(|((objset, _), _)| *objset == set);
        // The number may belong to another file by now.
        let is_same = |(ino, file): &(Ino, LostFile)| self.generation_of(*ino) == Some(file.generation);
        mine.map(|((_, ino), file)| (ino, file))
            .filter(is_same)
            .map(|(ino, file)| (ino, file.cause))
            .collect()
    }

    /// Clears the error log after an administrator has read it, and returns its content. No call reports
    /// these losses any more. Durable on return.
    ///
    /// # Errors
    /// The log in memory is empty, but its content is still stored. It comes back when the pool is imported
    /// again.
    pub fn clear_losses(&self) -> Result<Errors, DatasetError> {
        self.log_losses();
        let errors = self.set.pool().clear_errors();
        self.mark_losses_read();
        self.record_errors()?;
        self.set.commit()?;
        Ok(errors)
    }

    /// Records that an administrator has seen all losses, so that no call reports them any more.
    pub fn mark_losses_read(&self) {
        let known =
            self.losses.as_ref().map_or_else(Vec::new, |losses| losses.list.lock().keys().copied().collect());
        // The entries stay: the kernel may have an old size of such a file, so the position of appends must
        // still be checked.
        known.into_iter().filter(|ino| self.is_file(*ino)).for_each(|ino| {
            self.record_report(ino, |loss| {
                let read = Loss { change_reported: true, sync_reported: true, is_read: true, ..*loss };
                std::mem::replace(loss, read) != read
            });
        });
    }

    /// Stores new entries of the pool's error log. Called before the pool is exported.
    pub fn record_errors(&self) -> Result<(), DatasetError> {
        self.log_losses();
        self.dataset().record_errors()
    }

    /// The same, to be called every few seconds.
    pub fn record_new_errors(&self) -> Result<(), DatasetError> {
        self.log_losses();
        self.dataset().record_new_errors()
    }

    /// Adds a predecessor's losses to the error log. It reads, so it does not run while the kernel waits for a
    /// successor.
    pub fn log_losses(&self) {
        let Some(losses) =
            self.losses.as_ref().filter(|losses| !losses.is_logged.swap(true, Ordering::AcqRel))
        else {
            return;
        };
        let unread = |(ino, loss): (&Ino, &Loss)| (!loss.is_read).then_some(*ino);
        let unread: Vec<Ino> = losses.list.lock().iter().filter_map(unread).collect();
        // The log takes no more, and the end of a housekeeping step waits for this.
        for ino in unread.into_iter().take(FILES_MAX) {
            match self.hold(ino) {
                Ok(inode) if inode.read().attrs.file_type() == mode::S_IFREG => {
                    self.log_loss(ino, LossCause::ServerKilled);
                }
                // After a read error, it is unknown whether this is a file.
                Err(Errno::EIO) => losses.is_logged.store(false, Ordering::Release),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// False: it is in the log already, or cannot be added.
    fn log_loss(&self, ino: Ino, cause: LossCause) -> bool {
        let Some(generation) = self.generation_of(ino) else { return false };
        self.set.pool().error_log().note_file((self.set.id().0, ino), LostFile { generation, cause })
    }

    /// Records that the kernel could not write back cached changes of this file.
    pub fn note_writeback_failure(&self, ino: Ino, errno: Errno) {
        if self.log_loss(ino, LossCause::NotWrittenBack) {
            log::warn!(
                "writeback failed, data stored through a mapping is lost: {}: {errno}",
                self.path_of(ino)
            );
        }
    }

    fn generation_of(&self, ino: Ino) -> Option<u64> {
        self.hold(ino).ok().map(|inode| inode.read().attrs.zpl.generation)
    }

    /// The predecessor handed over in order, so repeated requests were not carried out.
    pub fn note_clean_handover(&self) {
        if let Some(losses) = &self.losses {
            losses.all_answered.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a predecessor may have carried out a request that is repeated.
    pub fn may_be_carried_out(&self) -> bool {
        self.losses.as_ref().is_some_and(|losses| !losses.all_answered.load(Ordering::Relaxed))
    }

    /// Whether [`refuse_change`](Self::refuse_change) may refuse anything.
    pub fn has_losses(&self) -> bool {
        self.losses.as_ref().is_some_and(|losses| !losses.list.lock().is_empty())
    }

    /// Whether this inode lost changes that still matter.
    pub fn is_lost(&self, ino: Ino) -> bool {
        self.losses.as_ref().is_some_and(|losses| losses.list.lock().contains_key(&ino))
    }

    /// Whether the kernel means another inode by this number: one that a rollback removed, while an older inode got the number
    /// back. Only that one must answer `ESTALE`.
    pub fn is_replaced(&self, ino: Ino) -> bool {
        self.replaced(ino).is_some_and(|loss| !loss.is_named) || self.is_another_than_shown(ino)
    }

    /// Whether the kernel knows an inode of this number by an earlier state, and it is another one by now.
    fn is_another_than_shown(&self, ino: Ino) -> bool {
        let Some(shown) = self.shown.as_ref().filter(|_| ino != self.root) else { return false };
        self.generation_of(ino).is_some_and(|generation| shown.is_another(ino, generation))
    }

    /// Whether the kernel knows, or has known, two inodes by this number. Nothing says which one it forgets.
    pub(crate) fn had_another_inode(&self, ino: Ino) -> bool {
        self.replaced(ino).is_some()
    }

    fn replaced(&self, ino: Ino) -> Option<Loss> {
        let losses = self.losses.as_ref().filter(|losses| losses.has_replaced.load(Ordering::Acquire))?;
        losses.list.lock().get(&ino).copied().filter(|loss| loss.is_replaced)
    }

    /// To be called for each inode that an answer names, with its generation. The kernel finds by the generation that the inode which it
    /// knew is another one, and has each use of that fail.
    pub fn note_named(&self, ino: Ino) {
        if let (Some(shown), Some(generation)) =
            (&self.shown, self.shown.as_ref().and_then(|_| self.generation_of(ino)))
        {
            shown.note(ino, generation);
        } else if self.is_replaced(ino) {
            self.record_report(ino, |loss| !std::mem::replace(&mut loss.is_named, true));
        }
    }

    /// To be called before this inode is changed or gets a new name. `EIO`, once: it is a file that lost
    /// earlier changes, which the caller believes to exist.
    pub fn refuse_change(&self, ino: Ino) -> Result<(), Errno> {
        let Some(losses) = &self.losses else { return Ok(()) };
        let unreported = losses.list.lock().get(&ino).is_some_and(|loss| !loss.change_reported);
        // No lock is held here: this may read the inode.
        if !unreported || !self.is_file(ino) {
            return Ok(());
        }
        let Some(loss) = self.record_report(ino, |loss| !std::mem::replace(&mut loss.change_reported, true))
        else {
            return Ok(());
        };
        let rest = if loss.is_reported() { ". No further call fails for this loss" } else { "" };
        log::error!(
            "change of inode {ino} refused once with EIO: a killed server lost earlier changes{rest}"
        );
        Err(Errno::EIO)
    }

    /// For `fsync`. `EIO`: changes that should become durable are lost.
    pub(crate) fn refuse_sync(&self, ino: Ino) -> Result<(), Errno> {
        let Some(losses) = &self.losses else { return Ok(()) };
        if losses.list.lock().get(&ino).is_none_or(|loss| loss.is_rolled_back && loss.is_reported()) {
            return Ok(());
        }
        let reported = if self.is_file(ino) {
            self.record_report(ino, |loss| {
                let refused = !loss.is_reported();
                loss.sync_reported = true;
                refused
            })
        } else {
            let removed = losses.list.lock().remove(&ino);
            // The number of an inode that does not exist stays lost for the life of the mount.
            if removed.is_some() && self.hold(ino).is_ok() {
                self.update_ledger(ino, None);
            }
            removed
        };
        if reported.is_none() {
            return Ok(());
        }
        log::error!("fsync of inode {ino} failed with EIO: a killed server lost earlier changes");
        Err(Errno::EIO)
    }

    /// Forgets a loss, because the old content was removed or the loss was reported. The number may then get
    /// another inode.
    pub(crate) fn forget_loss(&self, ino: Ino) {
        self.set.pool().error_log().forget_object(self.set.id().0, ino);
        if let Some(losses) = &self.losses
            && losses.list.lock().remove(&ino).is_some()
        {
            self.update_ledger(ino, None);
        }
    }

    /// Applies `mark` to a loss and records it. `None`: there is no loss, or `mark` returned false.
    fn record_report(&self, ino: Ino, mark: impl FnOnce(&mut Loss) -> bool) -> Option<Loss> {
        let mut list = self.losses.as_ref()?.list.lock();
        let loss = list.get_mut(&ino)?;
        let refused = mark(loss);
        let loss = *loss;
        drop(list);
        self.update_ledger(ino, Some(loss));
        refused.then_some(loss)
    }

    fn update_ledger(&self, ino: Ino, loss: Option<Loss>) {
        if let Some(ledger) = self.ledger.get() {
            ledger.note_reported(ino, loss);
        }
    }

    fn is_file(&self, ino: Ino) -> bool {
        self.hold(ino).is_ok_and(|inode| inode.read().attrs.file_type() == mode::S_IFREG)
    }
}
