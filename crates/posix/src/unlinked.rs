//! Destroying unlinked objects: those that lost their last reference, and those that a crash left.

use crate::claims::{FREES, Need};
use crate::delete_queue::DRAIN_STEP;
use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use std::sync::Arc;
use std::time::Duration;
use terrane_object::{Object, ObjectError, ObjectKind};
use terrane_pool::Tx;
use terrane_wire::ObjectId;

/// How often, and how long each time, an operation waits for the kernel to forget a file before a quota refuses it.
const FORGET_WAITS: u32 = 5;
const FORGET_PAUSE: Duration = Duration::from_millis(10);

impl Fs {
    /// Destroys up to 256 of the objects that a crash left without a name. True: there may be more. It may run
    /// on its own thread, concurrently with everything else; objects in use are skipped.
    pub fn drain_unlinked(&self) -> Result<bool, Errno> {
        if self.is_read_only() {
            return Ok(false);
        }
        let step = self.unlinked.next_entries()?;
        for ino in &step {
            if let Err(errno) = self.destroy(*ino) {
                // One failure must not delay the others until the next mount.
                log::error!("failed to destroy unlinked object {ino}: {errno}. The next mount retries");
            }
        }
        Ok(step.len() == DRAIN_STEP)
    }

    /// Number of objects that wait for destruction, including those in use.
    pub fn unlinked_count(&self) -> Result<usize, Errno> {
        self.unlinked.len()
    }

    /// Waits a moment if a file was unlinked whose space is not freed yet: the kernel forgets it on another thread, right after it has
    /// answered the program. False: there is none, or the caller has waited [`FORGET_WAITS`] times.
    pub(crate) fn wait_for_unlinked(&self, waits: &mut u32) -> bool {
        if *waits >= FORGET_WAITS || self.unlinked.len().unwrap_or(0) == 0 {
            return false;
        }
        *waits += 1;
        self.set.pool().env().sleep(FORGET_PAUSE);
        true
    }

    /// Destroys an unlinked object and frees its space, unless it is in use.
    pub(crate) fn destroy(&self, ino: Ino) -> Result<(), Errno> {
        if self.rewriting.is_second_copy(ino) {
            return Ok(());
        }
        let entered = self.hold_unloaded(ino);
        let mut cost = FREES;
        loop {
            let dnode = (&entered.claims, Need::attrs());
            let tx = self.begin(cost, &[self.unlinked.need_of_one(ino), dnode])?;
            let Some(_unloaded) = entered.lock_unloaded() else { return Ok(()) };
            // The thread that removes the queue entry destroys the object. Draining and the last close may race
            // here, and the number may have been reused since the caller looked. The object is opened first: an
            // unreadable one stays in the queue, or its space would be forgotten.
            let object = match self.set.hold(ObjectId(ino)) {
                Ok(object) => object,
                Err(ObjectError::NotFound(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let found = match self.xattr_dir_number(&object) {
                Ok(found) => found,
                Err(errno) => return self.keep_in_queue(&tx, &object, errno),
            };
            if let Some(xattr_dir) = found {
                if cost.objects == 0 {
                    cost = Fs::xattr_dir_destroy_cost();
                    continue;
                }
                if !self.unlinked.contains(ino)? {
                    return Ok(());
                }
                // Piece by piece, each in its own transaction. The inode stays in the queue until the last one.
                let destroyed = match self.read_xattr_dir_piece(ino, xattr_dir) {
                    Ok(piece) => self.destroy_xattr_dir_piece(&tx, ino, piece),
                    Err(error) if error.is_transient() => {
                        return self.keep_in_queue(&tx, &object, error.into());
                    }
                    Err(error) => Err(error.into()),
                };
                match destroyed {
                    Ok(true) => {}
                    Ok(false) => continue,
                    // The values cannot be found without the names. The inode's own space can still be freed.
                    Err(Errno::EIO) => self.leak_xattr_dir(&tx, ino, xattr_dir)?,
                    Err(errno) => return Err(errno),
                }
            }
            if !self.unlinked.remove(&tx, ino)? {
                return Ok(());
            }
            // Before its number can be reused.
            self.drop_reservation(&tx, &entered);
            self.set.destroy(&tx, &object)?;
            self.forget_loss(ino);
            return Ok(());
        }
    }

    /// After a failed read of an unlinked object's attributes: the object stays in the queue, because a later read
    /// may find them. Its content is freed now, because no read may ever succeed. Returns the error of the read.
    fn keep_in_queue(&self, tx: &Tx, object: &Arc<Object>, errno: Errno) -> Result<(), Errno> {
        if object.kind() == ObjectKind::File && self.unlinked.contains(object.id().0)? {
            object.truncate(tx, 0)?;
        }
        Err(errno)
    }
}

#[cfg(test)]
mod tests {
    use crate::jobs::{Job, RewriteSpec};
    use crate::support::{Machine, Short, USER};
    use crate::types::{SetXattr, WriteFlags};
    use std::time::Duration;
    use terrane_wire::Prng;

    #[test]
    fn a_failed_read_leaks_no_extended_attributes() {
        let mut m = Machine::new(1, &[("xattr", "dir")]);
        let objects = |m: &Machine| m.fs().dataset().object_set().usage().objects;
        let used = |m: &Machine| m.fs().dataset().object_set().usage().used_bytes;
        let (before, before_used) = (objects(&m), used(&m));
        let ino = m.fs().file(m.fs().root(), "file").ino;
        m.fs().write(ino, 0, &Prng::new(1).random_bytes(3_000_000), WriteFlags::default()).unwrap();
        for at in 0..100 {
            let name = format!("user.{at}");
            m.fs().setxattr(ino, name.as_bytes(), &[1; 600], SetXattr::default(), &USER).unwrap();
        }
        m.fs().unlink(m.fs().root(), b"file").unwrap();
        m.fs().sync().unwrap();
        m.die(&[]);
        let fs = m.fs();
        // The inode and the queue are cached. The names of the attributes are not, nor are most of the values' dnodes.
        assert_eq!(fs.unlinked_count(), Ok(1));
        m.fail_reads(true);
        fs.forget(ino, 1);
        assert_eq!(fs.unlinked_count(), Ok(1), "it stays in the queue");
        m.fail_reads(false);
        fs.sync().unwrap();
        assert!(
            used(&m) < before_used + 1_000_000,
            "its content is freed now: {} bytes",
            used(&m) - before_used
        );
        // The pool is whole with the emptied file in its queue, and a later mount finds all of it.
        m.crash();
        let fs = m.fs();
        fs.drain_unlinked().unwrap();
        assert_eq!((fs.unlinked_count(), objects(&m)), (Ok(0), before));
    }

    #[test]
    fn a_copy_half_destroyed_by_a_killed_server_is_left_to_the_job() {
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
            // The cancel waits to remove the copy from the queue. Meanwhile a txg is stored, the last one.
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
