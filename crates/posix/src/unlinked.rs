//! Objects without a name.
//!
//! A file that is unlinked while it is open lives on until it is closed; a crash closes everything. So an
//! object whose last link goes is written into the *delete queue* in the same transaction, and is taken out of
//! it together with its destruction (or when a file that was made without a name gets one). What stands there
//! when a data set is mounted was left by a crash, and is destroyed.
//!
//! Most unlinked files are closed a moment later, and whether one stands in the queue matters only at the end of a group, so what
//! was unlinked in the open group is remembered, and written into the queue when everybody has left the group.
//!
//! Invariant: at the end of every group an inode's link count is 0 if and only if it is in the queue.

use crate::claims::{Claims, FREES, Need, UNLINKED_META_BLOCKS};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use parking_lot::Mutex;
use terrane_dataset::{ChangeCost, ObjectZap};
use terrane_object::{ObjectError, ObjectId, Tx};
use terrane_wire::NumberSet;
use terrane_zap::{Cursor, ValueRef};

/// Objects destroyed by one call of [`Fs::drain_unlinked`], at most.
const DRAIN_STEP: usize = 256;

/// The delete queue. Its locks are taken last: under those of inodes, above none.
pub(crate) struct UnlinkedSet {
    /// Unlinked in the open group.
    fresh: Mutex<NumberSet<Ino>>,
    queue: Mutex<ObjectZap>,
    /// How far draining came; what is in use stays behind it.
    drained: Mutex<Cursor>,
    claims: Claims,
}

impl UnlinkedSet {
    pub fn new(queue: ObjectZap) -> Self {
        let claims = Claims::of(queue.object().id().0);
        UnlinkedSet {
            fresh: Mutex::default(),
            queue: Mutex::new(queue),
            drained: Mutex::new(Cursor::START),
            claims,
        }
    }

    /// Its transaction is under way, and reserved what [`need`](Self::need) says and
    /// [`UNLINKED_META_BLOCKS`] beside that.
    pub fn add(&self, ino: Ino) {
        self.fresh.lock().insert(ino);
    }

    /// False: it was not there.
    pub fn remove(&self, tx: &Tx, ino: Ino) -> Result<bool, Errno> {
        if self.fresh.lock().remove(&ino) {
            // What was unlinked in this group was reserved in this group.
            tx.give_back(UNLINKED_META_BLOCKS);
            return Ok(true);
        }
        Ok(self.queue.lock().remove(tx, name(ino).as_bytes())?)
    }

    /// Nobody else is in the group any more: what it unlinked and nobody has destroyed goes into the queue.
    pub fn store(&self, last: &Tx) {
        let fresh = std::mem::take(&mut *self.fresh.lock());
        if fresh.is_empty() {
            return;
        }
        let mut order: Vec<Ino> = fresh.into_iter().collect();
        order.sort_unstable();
        let mut queue = self.queue.lock();
        for ino in order {
            if let Err(error) = queue.add_u64(last, name(ino).as_bytes(), ino) {
                log::error!(
                    "unlinked object {ino} is not in the delete queue ({error}); a crash now would leave it"
                );
                self.fresh.lock().insert(ino);
            }
        }
    }

    fn contains(&self, ino: Ino) -> Result<bool, Errno> {
        Ok(self.fresh.lock().contains(&ino) || self.queue.lock().lookup_u64(name(ino).as_bytes())?.is_some())
    }

    /// What any number of new entries needs in one group, beside [`UNLINKED_META_BLOCKS`] for each.
    pub fn need(&self) -> (&Claims, Need) {
        let cost = self.queue.lock().put_cost(NAME_BYTES_MAX, ValueRef::U64s(&[0]));
        (&self.claims, Need::names(ChangeCost { bytes_again: 0, bytes_max: cost.bytes, ..cost }))
    }

    /// What taking this entry out needs.
    pub fn need_of_one(&self, ino: Ino) -> (&Claims, Need) {
        if self.fresh.lock().contains(&ino) {
            return (&self.claims, Need::attrs());
        }
        (&self.claims, Need::names(self.queue.lock().remove_cost()))
    }

    pub fn len(&self) -> Result<usize, Errno> {
        Ok(self.queue.lock().entries()?.len() + self.fresh.lock().len())
    }

    /// The first `max` of them.
    pub fn list(&self, max: usize) -> Result<Vec<Ino>, Errno> {
        let entries = self.queue.lock().list(Cursor::START, max)?;
        Ok(entries.iter().filter_map(|entry| entry.value.first()).collect())
    }

    fn next_step(&self) -> Result<Vec<Ino>, Errno> {
        let mut drained = self.drained.lock();
        let entries = self.queue.lock().list(*drained, DRAIN_STEP)?;
        if let Some(last) = entries.last() {
            *drained = last.cursor_after();
        }
        Ok(entries.iter().filter_map(|entry| entry.value.first()).collect())
    }
}

/// An inode's number in hexadecimal.
const NAME_BYTES_MAX: usize = 16;

/// OpenZFS's names for integer keys.
fn name(ino: Ino) -> String {
    format!("{ino:x}")
}

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
    use crate::rewrite::RewriteSpec;
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
        fs.rewrite_begin(&spec).unwrap();
        while fs.unlinked_count() == Ok(0) {
            fs.rewrite_step().unwrap();
        }
        fs.sync().unwrap();
        let queue = fs.unlinked.queue.lock();
        std::thread::scope(|scope| {
            let cancelling = scope.spawn(|| fs.rewrite_cancel());
            // It wants to take the copy out of the queue, and a group is stored meanwhile, the last one.
            std::thread::sleep(Duration::from_millis(100));
            m.pool().commit().unwrap();
            m.pool().abandon();
            drop(queue);
            let _ = cancelling.join().unwrap();
        });
        m.die(&[]);
        assert_eq!((m.fs().rewrite_cancel(), m.fs().unlinked_count()), (Ok(true), Ok(0)));
    }
}
