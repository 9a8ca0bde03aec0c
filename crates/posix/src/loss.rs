//! What a predecessor died with, and who was told.
//!
//! A server that is killed takes the changes with it that no commit has. After a power cut the programs that made them are gone too; here
//! they live on, and one that goes on writing would leave a file whose middle was never stored, with no error anywhere. So programs are
//! told, each kind of call once: the first change of such a file is refused, and so is `fsync`, again and again, until a change was refused
//! as well. A program that tries `fsync` again has written nothing anew, so it must not succeed the second time.
//!
//! What was lost does not matter any more when the file is cut to nothing or goes. Otherwise it stands in the pool's error log until an
//! administrator has read it ([`Fs::clear_losses`]). So do files of which the kernel's cache held changes that could not be stored: a store
//! into a shared mapping fails nowhere when it is made. The kernel writes it back later, and where that finds no room the store is gone:
//! `msync` and `fsync` say so, but `munmap`, `close` and the end of a program do not.
//!
//! A directory that lost changes is in nobody's way: who made a name that is gone is told when it uses the name. Its first `fsync` fails.

use crate::errno::Errno;
use crate::fs::Fs;
use crate::losses::Loss;
use crate::types::{Ino, mode};
use std::sync::atomic::Ordering;
use terrane_dataset::DatasetError;
use terrane_store::errors::{Errors, FILES_MAX, LossCause, LostFile};

impl Fs {
    /// What a predecessor changed and did not commit, as [`take_over`](Self::take_over) was told, as far as not everybody was told of it.
    pub fn lost_inodes(&self) -> Vec<Ino> {
        let untold = |(ino, loss): (&Ino, &Loss)| (!loss.is_told()).then_some(*ino);
        self.losses
            .as_ref()
            .map_or_else(Vec::new, |losses| losses.list.lock().iter().filter_map(untold).collect())
    }

    /// Files that lost changes, of this mount and of earlier ones, until an administrator says that they were read; and why.
    pub fn lost_files(&self) -> Vec<(Ino, LossCause)> {
        self.log_losses();
        let set = self.set.id().0;
        let files = self.set.pool().errors().files;
        let mine = files.into_iter().filter(|((objset, _), _)| *objset == set);
        // The number may have another file by now.
        let is_same = |(ino, file): &(Ino, LostFile)| self.generation_of(*ino) == Some(file.generation);
        mine.map(|((_, ino), file)| (ino, file))
            .filter(is_same)
            .map(|(ino, file)| (ino, file.cause))
            .collect()
    }

    /// Somebody has read the error log, and it is empty now; nobody is told any more. What was in it. Durable when it returns.
    ///
    /// # Errors
    /// The log is empty, but what was in it is still stored: it comes back when the pool is imported again.
    pub fn clear_losses(&self) -> Result<Errors, DatasetError> {
        self.log_losses();
        let errors = self.set.pool().clear_errors();
        let known =
            self.losses.as_ref().map_or_else(Vec::new, |losses| losses.list.lock().keys().copied().collect());
        // Where appends go must still be looked at: the kernel's size of such a file may be old.
        let read = Loss { change_told: true, sync_told: true, is_read: true };
        known.into_iter().filter(|ino| self.is_file(*ino)).for_each(|ino| {
            self.note_told(ino, |loss| std::mem::replace(loss, read) != read);
        });
        self.record_errors()?;
        self.set.commit()?;
        Ok(errors)
    }

    /// Stores what is new in the pool's error log. Before the pool is exported.
    pub fn record_errors(&self) -> Result<(), DatasetError> {
        self.log_losses();
        self.dataset().record_errors()
    }

    /// The same, to be called every few seconds.
    pub fn record_new_errors(&self) -> Result<(), DatasetError> {
        self.log_losses();
        self.dataset().record_new_errors()
    }

    /// What a predecessor lost, in the error log. It takes reads, so it is not done while the kernel waits for a successor.
    fn log_losses(&self) {
        let Some(losses) =
            self.losses.as_ref().filter(|losses| !losses.is_logged.swap(true, Ordering::AcqRel))
        else {
            return;
        };
        let unread = |(ino, loss): (&Ino, &Loss)| (!loss.is_read).then_some(*ino);
        let unread: Vec<Ino> = losses.list.lock().iter().filter_map(unread).collect();
        // The log takes no more, and the end of the housekeeping waits for this.
        for ino in unread.into_iter().take(FILES_MAX) {
            match self.hold(ino) {
                Ok(inode) if inode.read().attrs.file_type() == mode::S_IFREG => {
                    self.log_loss(ino, LossCause::ServerKilled);
                }
                // A read error says nothing of what it is.
                Err(Errno::EIO) => losses.is_logged.store(false, Ordering::Release),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// False: it is in the log already, or cannot be.
    fn log_loss(&self, ino: Ino, cause: LossCause) -> bool {
        let Some(generation) = self.generation_of(ino) else { return false };
        self.set.pool().error_log().note_file((self.set.id().0, ino), LostFile { generation, cause })
    }

    /// What the kernel's cache held of this file was to be written back, and could not be.
    pub fn note_unwritten(&self, ino: Ino, errno: Errno) {
        if self.log_loss(ino, LossCause::NotWrittenBack) {
            log::warn!(
                "{}: what a program stored through a mapping could not be written back and is lost: {errno}",
                self.path_of(ino)
            );
        }
    }

    fn generation_of(&self, ino: Ino) -> Option<u64> {
        self.hold(ino).ok().map(|inode| inode.read().attrs.zpl.generation)
    }

    /// The predecessor stepped back: what is asked again was not carried out.
    pub fn predecessor_stepped_back(&self) {
        if let Some(losses) = &self.losses {
            losses.all_answered.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a predecessor may have carried out what is asked again.
    pub fn may_be_done(&self) -> bool {
        self.losses.as_ref().is_some_and(|losses| !losses.all_answered.load(Ordering::Relaxed))
    }

    /// Whether [`refuse_change`](Self::refuse_change) may refuse anything.
    pub fn has_losses(&self) -> bool {
        self.losses.as_ref().is_some_and(|losses| !losses.list.lock().is_empty())
    }

    /// Whether this inode lost changes and nobody has said since that it does not matter.
    pub fn is_lost(&self, ino: Ino) -> bool {
        self.losses.as_ref().is_some_and(|losses| losses.list.lock().contains_key(&ino))
    }

    /// For whoever is about to change this inode, or to publish it under a name. `EIO`, once: it is a file that lost earlier changes, which
    /// the caller believes to be there.
    pub fn refuse_change(&self, ino: Ino) -> Result<(), Errno> {
        let Some(losses) = &self.losses else { return Ok(()) };
        let untold = losses.list.lock().get(&ino).is_some_and(|loss| !loss.change_told);
        // Looked at with no lock held: it may have to be read.
        if !untold || !self.is_file(ino) {
            return Ok(());
        }
        let Some(loss) = self.note_told(ino, |loss| !std::mem::replace(&mut loss.change_told, true)) else {
            return Ok(());
        };
        let rest = if loss.is_told() { "; nobody else is told" } else { "" };
        log::error!(
            "a change of inode {ino}: earlier ones are lost since the server died; answered EIO, once{rest}"
        );
        Err(Errno::EIO)
    }

    /// For `fsync`. `EIO`: changes are lost that the caller wants to be durable.
    pub(crate) fn refuse_sync(&self, ino: Ino) -> Result<(), Errno> {
        let Some(losses) = &self.losses else { return Ok(()) };
        if !losses.list.lock().contains_key(&ino) {
            return Ok(());
        }
        let told = if self.is_file(ino) {
            self.note_told(ino, |loss| {
                let refused = !loss.is_told();
                loss.sync_told = true;
                refused
            })
        } else {
            let told = losses.list.lock().remove(&ino);
            // The number of one that is not there stays lost, for as long as the mount stands.
            if told.is_some() && self.hold(ino).is_ok() {
                self.write_down(ino, None);
            }
            told
        };
        if told.is_none() {
            return Ok(());
        }
        log::error!("fsync of inode {ino}: its changes before the server died are lost; answered EIO");
        Err(Errno::EIO)
    }

    /// It holds nothing of what it held when changes were lost, it is gone, or somebody knows: nobody is told any more, and its number may
    /// get another one.
    pub(crate) fn forget_loss(&self, ino: Ino) {
        self.set.pool().error_log().forget_object(self.set.id().0, ino);
        if let Some(losses) = &self.losses
            && losses.list.lock().remove(&ino).is_some()
        {
            self.write_down(ino, None);
        }
    }

    /// What `tell` makes of a loss is written down. `None`: there is none, or `tell` says that there was nothing to tell.
    fn note_told(&self, ino: Ino, tell: impl FnOnce(&mut Loss) -> bool) -> Option<Loss> {
        let mut list = self.losses.as_ref()?.list.lock();
        let loss = list.get_mut(&ino)?;
        let refused = tell(loss);
        let loss = *loss;
        drop(list);
        self.write_down(ino, Some(loss));
        refused.then_some(loss)
    }

    fn write_down(&self, ino: Ino, loss: Option<Loss>) {
        if let Some(ledger) = self.ledger.get() {
            ledger.told(ino, loss);
        }
    }

    fn is_file(&self, ino: Ino) -> bool {
        self.hold(ino).is_ok_and(|inode| inode.read().attrs.file_type() == mode::S_IFREG)
    }
}
