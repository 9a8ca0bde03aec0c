//! The master ZAP, and words of others in it.

use crate::claims::{Claims, Need};
use crate::errno::Errno;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrane_dataset::{ChangeCost, DatasetError, ObjectZap};
use terrane_pool::{Cost, Tx};
use terrane_zap::ValueRef;

/// The master ZAP, of which several have words. Its lock is taken last.
pub(crate) type Master = Arc<Mutex<ObjectZap>>;

/// Some words in it, all of which are written at once.
pub(crate) struct Words<const N: usize> {
    zap: Master,
    names: [&'static str; N],
    claims: Claims,
    /// The newest group in which there is room for all of them.
    reserved: AtomicU64,
}

impl<const N: usize> Words<N> {
    /// With what they are; 0: not there.
    pub fn load(zap: &Master, names: [&'static str; N]) -> Result<(Words<N>, [u64; N]), DatasetError> {
        let mut words = [0; N];
        let locked = zap.lock();
        for (word, name) in words.iter_mut().zip(names) {
            *word = locked.lookup_u64(name.as_bytes())?.unwrap_or(0);
        }
        let claims = Claims::of(locked.object().id().0);
        drop(locked);
        Ok((Words { zap: Arc::clone(zap), names, claims, reserved: AtomicU64::new(0) }, words))
    }

    fn bytes_of_all(&self) -> u64 {
        let longest = self.names.iter().map(|name| name.len()).max().unwrap_or(0);
        self.zap.lock().put_cost(longest, ValueRef::U64s(&[0])).of_many(N as u64)
    }

    /// Of putting all of them, or of taking them out.
    pub fn cost_of_all(&self) -> Cost {
        Cost { meta_bytes: self.bytes_of_all(), meta_blocks: 4, objects: 1, ..Cost::NOTHING }
    }

    /// What writing all of them needs, once in each group.
    pub fn need(&self) -> (&Claims, Need) {
        let bytes = self.bytes_of_all();
        (&self.claims, Need::names(ChangeCost { bytes, bytes_again: 0, bytes_max: bytes }))
    }

    /// The group of `tx` has room for them.
    pub fn reserved(&self, tx: &Tx) {
        self.reserved.fetch_max(tx.txg().0, Ordering::AcqRel);
    }

    pub fn put(&self, tx: &Tx, words: [u64; N]) -> Result<(), Errno> {
        let mut zap = self.zap.lock();
        for (name, word) in self.names.iter().zip(words) {
            zap.update_u64(tx, name.as_bytes(), word)?;
        }
        Ok(())
    }

    pub fn remove(&self, tx: &Tx) -> Result<(), Errno> {
        let mut zap = self.zap.lock();
        // The last one first: without it the others are no job.
        for name in self.names.iter().rev() {
            zap.remove(tx, name.as_bytes())?;
        }
        Ok(())
    }

    /// At the end of a group in which it went on.
    pub fn store(&self, last: &Tx, words: [u64; N]) {
        if self.reserved.load(Ordering::Acquire) == last.txg().0
            && let Err(errno) = self.put(last, words)
        {
            let first = self.names.first().unwrap_or(&"");
            log::error!("{first}: how far it came is not stored ({errno}); after a crash it does more again");
        }
    }
}
