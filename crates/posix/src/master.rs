//! The master ZAP, and the progress of jobs in it.

use crate::claims::{Claims, Need};
use crate::errno::Errno;
use parking_lot::Mutex;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_dataset::{ChangeCost, DatasetError, ObjectZap};
use terrane_pool::Tx;
use terrane_txg::cost::Cost;
use terrane_zap::ValueRef;

/// The master ZAP, shared by several users. Its lock is taken last.
pub(crate) type Master = Arc<Mutex<ObjectZap>>;

/// The progress of a job as words in the master ZAP, each under its own name.
pub(crate) trait JobCursor<const N: usize>: Sized {
    /// Names, in the order of the words.
    const NAMES: [&'static str; N];

    fn to_words(&self) -> [u64; N];

    /// `None`: there is no progress, or this version cannot continue from it. A missing word is 0.
    fn from_words(words: [u64; N]) -> Option<Self>;
}

/// Stores a cursor in the master ZAP. All its words are written at once.
pub(crate) struct StoredCursor<C, const N: usize> {
    zap: Master,
    claims: Claims,
    /// The newest txg that has space reserved for all words.
    reserved_txg: AtomicU64,
    cursor_type: PhantomData<fn(C)>,
}

impl<C: JobCursor<N>, const N: usize> StoredCursor<C, N> {
    /// Loads the stored cursor.
    pub fn load(zap: &Master) -> Result<(Self, Option<C>), DatasetError> {
        let mut words = [0; N];
        let locked = zap.lock();
        for (word, name) in words.iter_mut().zip(C::NAMES) {
            *word = locked.lookup_u64(name.as_bytes())?.unwrap_or(0);
        }
        let claims = Claims::of(locked.object().id().0);
        drop(locked);
        let stored = StoredCursor {
            zap: Arc::clone(zap),
            claims,
            reserved_txg: AtomicU64::new(0),
            cursor_type: PhantomData,
        };
        Ok((stored, C::from_words(words)))
    }

    fn total_bytes(&self) -> u64 {
        let longest = C::NAMES.iter().map(|name| name.len()).max().unwrap_or(0);
        self.zap.lock().put_cost(longest, ValueRef::U64s(&[0])).of_many(N as u64)
    }

    /// Cost of writing all words, or of removing them.
    pub fn total_cost(&self) -> Cost {
        Cost { meta_bytes: self.total_bytes(), meta_blocks: 4, objects: 1, ..Cost::NOTHING }
    }

    /// What writing all words needs, once per txg.
    pub fn need(&self) -> (&Claims, Need) {
        let bytes = self.total_bytes();
        (&self.claims, Need::names(ChangeCost { bytes, bytes_next: 0, bytes_max: bytes, bytes_usual: 0 }))
    }

    /// Records that the txg of `tx` has space for all words.
    pub fn note_reserved(&self, tx: &Tx) {
        self.reserved_txg.fetch_max(tx.txg().0, Ordering::AcqRel);
    }

    /// Writes all words. The transaction has reserved [`total_cost`](Self::total_cost) or [`need`](Self::need).
    pub fn put(&self, tx: &Tx, cursor: &C) -> Result<(), Errno> {
        let mut zap = self.zap.lock();
        for (name, word) in C::NAMES.iter().zip(cursor.to_words()) {
            zap.update_u64(tx, name.as_bytes(), word)?;
        }
        Ok(())
    }

    /// Removes all words. The transaction has reserved [`total_cost`](Self::total_cost).
    pub fn remove(&self, tx: &Tx) -> Result<(), Errno> {
        let mut zap = self.zap.lock();
        // Remove the last word first: without it the others are not a job.
        for name in C::NAMES.iter().rev() {
            zap.remove(tx, name.as_bytes())?;
        }
        Ok(())
    }

    /// Stores the cursor at the end of a txg in which it advanced.
    pub fn store(&self, last: &Tx, cursor: &C) {
        if self.reserved_txg.load(Ordering::Acquire) == last.txg().0
            && let Err(errno) = self.put(last, cursor)
        {
            let first = C::NAMES.first().unwrap_or(&"");
            log::error!("failed to store progress '{first}': {errno}. A crash makes the job repeat work");
        }
    }
}
