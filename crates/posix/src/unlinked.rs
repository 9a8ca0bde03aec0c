//! Objects without a name, destroyed: those whose last holder went, and those that a crash left.

use crate::claims::{FREES, Need};
use crate::delete_queue::DRAIN_STEP;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use terrane_object::ObjectError;
use terrane_wire::ObjectId;

impl Fs {
    /// Destroys up to 256 of the objects that a crash left without a name; true: there may be more. Calls may
    /// come from a thread of their own, beside everything else; what is in use is passed over.
    pub fn drain_unlinked(&self) -> Result<bool, Errno> {
        let step = self.unlinked.next_step()?;
        for ino in &step {
            if let Err(errno) = self.destroy(*ino) {
                // The others must not wait for the next mount because of this one.
                log::error!("unlinked object {ino} was not destroyed: {errno}");
            }
        }
        Ok(step.len() == DRAIN_STEP)
    }

    /// Objects that wait for their destruction, those in use included.
    pub fn unlinked_count(&self) -> Result<usize, Errno> {
        self.unlinked.len()
    }

    /// Gives an unlinked object's space back, unless somebody has it.
    pub(crate) fn destroy(&self, ino: Ino) -> Result<(), Errno> {
        if self.rewriting.is_beside(ino) {
            return Ok(());
        }
        let entered = self.enter(ino);
        let mut cost = FREES;
        loop {
            let dnode = (&entered.claims, Need::attrs());
            let tx = self.begin(cost, &[self.unlinked.need_of_one(ino), dnode])?;
            let Some(_unloaded) = entered.lock_unloaded() else { return Ok(()) };
            // Whoever takes it out of the queue destroys it: draining and the last close may both come here, and the
            // number may have been given to a new inode since the caller looked.
            // The object first: one that cannot be read stays in the queue, or nobody would know of it.
            let object = match self.set.hold(ObjectId(ino)) {
                Ok(object) => object,
                Err(ObjectError::NotFound(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if let Some(hidden) = self.hidden_number(&object) {
                if cost.objects == 0 {
                    cost = Fs::hidden_destroy_cost();
                    continue;
                }
                if !self.unlinked.contains(ino)? {
                    return Ok(());
                }
                // Piece by piece, each in a transaction of its own: the queue has the inode until the last.
                match self.destroy_hidden_piece(&tx, ino, hidden) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    // Who cannot read the names does not know the values. The inode's own space can be given back.
                    Err(Errno::EIO) => self.give_up_hidden(&tx, ino, hidden)?,
                    Err(errno) => return Err(errno),
                }
            }
            if !self.unlinked.remove(&tx, ino)? {
                return Ok(());
            }
            // Before its number can have another file.
            self.drop_reservation(&tx, &entered);
            self.set.destroy(&tx, &object)?;
            self.forget_loss(ino);
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::jobs::{Job, RewriteSpec};
    use crate::support::{Machine, Short};
    use crate::types::WriteFlags;
    use std::time::Duration;

    #[test]
    fn a_server_that_dies_while_a_copy_is_destroyed_leaves_it_to_the_job() {
        let mut m = Machine::new(1, &[("recordsize", "4K")]);
        let fs = m.fs();
        let root = fs.file(fs.root(), "file").ino;
        fs.write(root, 0, &[7; 3_000_000], WriteFlags::default()).unwrap();
        fs.sync().unwrap();
        let spec = RewriteSpec { root, recursive: false, compression: None, record_size: Some(16 << 10) };
        fs.rewrite().begin(&spec).unwrap();
        while fs.unlinked_count() == Ok(0) {
            fs.rewrite().step(1).unwrap();
        }
        fs.sync().unwrap();
        let queue = fs.unlinked.queue.lock();
        std::thread::scope(|scope| {
            let cancelling = scope.spawn(|| fs.rewrite().cancel());
            // It wants to take the copy out of the queue, and a group is stored meanwhile, the last one.
            std::thread::sleep(Duration::from_millis(100));
            m.pool().commit().unwrap();
            m.pool().abandon();
            drop(queue);
            let _ = cancelling.join().unwrap();
        });
        m.die(&[]);
        assert_eq!((m.fs().rewrite().cancel(), m.fs().unlinked_count()), (Ok(true), Ok(0)));
    }
}
