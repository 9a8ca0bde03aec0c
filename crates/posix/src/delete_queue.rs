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

use crate::claims::{Claims, Need, UNLINKED_META_BLOCKS};
use crate::errno::Errno;
use crate::types::Ino;
use parking_lot::Mutex;
use terrane_dataset::{ChangeCost, ObjectZap};
use terrane_pool::Tx;
use terrane_wire::NumberSet;
use terrane_zap::{Cursor, ValueRef};

/// Objects destroyed by one call of [`Fs::drain_unlinked`](crate::Fs::drain_unlinked), at most.
pub(crate) const DRAIN_STEP: usize = 256;

/// The delete queue. Its locks are taken last: under those of inodes, above none.
pub(crate) struct UnlinkedSet {
    /// Unlinked in the open group.
    fresh: Mutex<NumberSet<Ino>>,
    pub queue: Mutex<ObjectZap>,
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

    pub fn contains(&self, ino: Ino) -> Result<bool, Errno> {
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

    pub fn next_step(&self) -> Result<Vec<Ino>, Errno> {
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
