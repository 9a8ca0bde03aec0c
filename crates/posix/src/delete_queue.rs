//! The delete queue: objects without a name.
//!
//! A file that is unlinked while open lives until it is closed; a crash closes everything. So losing the last
//! link writes an object into the *delete queue* in the same transaction. Destroying the object, or naming a
//! file that was made without a name, removes the entry. Entries found at mount were left by a crash, and their
//! objects are destroyed.
//!
//! Most unlinked files are closed a moment later, and the queue only matters when a txg ends. So objects
//! unlinked in the open txg are kept in memory. They are written to the queue once all operations have left the
//! txg.
//!
//! Invariant: at the end of every txg, an inode's link count is 0 if and only if it is in the queue.

use crate::claims::{Claims, Need, UNLINKED_META_BLOCKS};
use crate::errno::Errno;
use crate::types::Ino;
use parking_lot::Mutex;
use terrane_dataset::{ChangeCost, ObjectZap};
use terrane_pool::Tx;
use terrane_wire::IdSet;
use terrane_zap::{Cursor, ValueRef};

/// Maximum of objects destroyed by one call of [`Fs::drain_unlinked`](crate::Fs::drain_unlinked).
pub(crate) const DRAIN_STEP: usize = 256;

/// The delete queue. Its locks are leaf locks, taken after those of inodes.
pub(crate) struct UnlinkedSet {
    /// Unlinked in the open txg.
    unstored: Mutex<IdSet<Ino>>,
    /// The stored queue, without `unstored`.
    pub queue: Mutex<ObjectZap>,
    /// Position of draining. Objects in use are skipped and stay behind it.
    drain_cursor: Mutex<Cursor>,
    claims: Claims,
}

impl UnlinkedSet {
    pub fn new(queue: ObjectZap) -> Self {
        let claims = Claims::of(queue.object().id().0);
        UnlinkedSet {
            unstored: Mutex::default(),
            queue: Mutex::new(queue),
            drain_cursor: Mutex::new(Cursor::START),
            claims,
        }
    }

    /// Adds an object. The caller's transaction has reserved [`need`](Self::need) and [`UNLINKED_META_BLOCKS`].
    pub fn add(&self, ino: Ino) {
        self.unstored.lock().insert(ino);
    }

    /// Removes an object. False: it was not in the queue.
    pub fn remove(&self, tx: &Tx, ino: Ino) -> Result<bool, Errno> {
        if self.unstored.lock().remove(&ino) {
            // Unlinked in this txg, so also reserved in it.
            tx.return_reservation(UNLINKED_META_BLOCKS);
            return Ok(true);
        }
        Ok(self.queue.lock().remove(tx, name(ino).as_bytes())?)
    }

    /// Writes objects of this txg that still exist to the queue. `last` is the only transaction left in the
    /// txg.
    pub fn store(&self, last: &Tx) {
        let unstored = std::mem::take(&mut *self.unstored.lock());
        if unstored.is_empty() {
            return;
        }
        let mut order: Vec<Ino> = unstored.into_iter().collect();
        order.sort_unstable();
        let mut queue = self.queue.lock();
        for ino in order {
            if let Err(error) = queue.add_u64(last, name(ino).as_bytes(), ino) {
                log::error!(
                    "failed to add unlinked object {ino} to the delete queue: {error}. Until the next txg, a crash leaks its space"
                );
                self.unstored.lock().insert(ino);
            }
        }
    }

    /// Whether the object waits for its destruction.
    pub fn contains(&self, ino: Ino) -> Result<bool, Errno> {
        Ok(self.unstored.lock().contains(&ino)
            || self.queue.lock().lookup_u64(name(ino).as_bytes())?.is_some())
    }

    /// What any number of new entries in one txg needs, beside [`UNLINKED_META_BLOCKS`] for each.
    pub fn need(&self) -> (&Claims, Need) {
        let cost = self.queue.lock().put_cost(NAME_BYTES_MAX, ValueRef::U64s(&[0]));
        (
            &self.claims,
            Need::names(ChangeCost { bytes_next: 0, bytes_max: cost.bytes, bytes_usual: 0, ..cost }),
        )
    }

    /// What removing this entry needs.
    pub fn need_of_one(&self, ino: Ino) -> (&Claims, Need) {
        if self.unstored.lock().contains(&ino) {
            return (&self.claims, Need::attrs());
        }
        (&self.claims, Need::names(self.queue.lock().remove_cost()))
    }

    /// Number of objects that wait for their destruction.
    pub fn len(&self) -> Result<usize, Errno> {
        Ok(self.queue.lock().entries()?.len() + self.unstored.lock().len())
    }

    /// The first `max` entries.
    pub fn list(&self, max: usize) -> Result<Vec<Ino>, Errno> {
        let entries = self.queue.lock().list(Cursor::START, max)?;
        Ok(entries.iter().filter_map(|entry| entry.value.first_integer()).collect())
    }

    /// The next stored entries to drain, at most [`DRAIN_STEP`].
    pub fn next_entries(&self) -> Result<Vec<Ino>, Errno> {
        let mut drain_cursor = self.drain_cursor.lock();
        let entries = self.queue.lock().list(*drain_cursor, DRAIN_STEP)?;
        if let Some(last) = entries.last() {
            *drain_cursor = last.cursor_after();
        }
        Ok(entries.iter().filter_map(|entry| entry.value.first_integer()).collect())
    }
}

/// Digits of an inode number in hexadecimal.
const NAME_BYTES_MAX: usize = 16;

/// An integer key as OpenZFS names it.
fn name(ino: Ino) -> String {
    format!("{ino:x}")
}
