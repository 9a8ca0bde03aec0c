//! Objects without a name.
//!
//! A file that is unlinked while it is open lives on until it is closed; a crash closes everything. So an
//! object whose last link goes is written into the *delete queue* in the same transaction, and is taken out of
//! it together with its destruction (or when a file that was made without a name gets one). What stands there
//! when a data set is mounted was left by a crash, and is destroyed.
//!
//! Invariant: an inode's link count is 0 if and only if it is in the queue.

use crate::claims::{COST_NEW, Claims, Need};
use crate::errno::Errno;
use crate::fs::Fs;
use crate::types::Ino;
use parking_lot::Mutex;
use terrane_dataset::ObjectZap;
use terrane_object::{Cost, ObjectError, ObjectId, Tx};
use terrane_zap::Cursor;

/// Objects destroyed by one call of [`Fs::drain_unlinked`], at most.
const DRAIN_STEP: usize = 256;

/// The delete queue. Its lock is taken last: under those of inodes, above none.
pub(crate) struct UnlinkedSet {
    queue: Mutex<ObjectZap>,
    /// How far draining came; what is in use stays behind it.
    drained: Mutex<Cursor>,
    claims: Claims,
}

impl UnlinkedSet {
    pub fn new(queue: ObjectZap) -> Self {
        UnlinkedSet {
            queue: Mutex::new(queue),
            drained: Mutex::new(Cursor::START),
            claims: Claims::default(),
        }
    }

    pub fn add(&self, tx: &Tx, ino: Ino) -> Result<(), Errno> {
        Ok(self.queue.lock().add_u64(tx, name(ino).as_bytes(), ino)?)
    }

    /// False: it was not there.
    pub fn remove(&self, tx: &Tx, ino: Ino) -> Result<bool, Errno> {
        Ok(self.queue.lock().remove(tx, name(ino).as_bytes())?)
    }

    /// What one more or one fewer entry needs.
    pub fn need(&self) -> (&Claims, Need) {
        (&self.claims, Need::names(self.queue.lock().change_cost()))
    }

    pub fn len(&self) -> Result<usize, Errno> {
        Ok(self.queue.lock().entries()?.len())
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
        let entered = self.enter(ino);
        let tx = self.begin(Cost { frees: true, ..COST_NEW }, &[self.unlinked.need()])?;
        let Some(_unloaded) = entered.lock_unloaded() else { return Ok(()) };
        // Whoever takes it out of the queue destroys it: draining and the last close may both come here, and the
        // number may have been given to a new inode since the caller looked.
        // The object first: one that cannot be read stays in the queue, or nobody would know of it.
        let object = match self.set.hold(ObjectId(ino)) {
            Ok(object) => object,
            Err(ObjectError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !self.unlinked.remove(&tx, ino)? {
            return Ok(());
        }
        Ok(self.set.destroy(&tx, &object)?)
    }
}
