//! Which entry a name means, where several names mean the same.
//!
//! Entries of one normalized form have one hash, so all that a name could mean stands side by side in the order of entries, and a
//! short listing finds it in any kind of ZAP. Operations by name ([`Zap::lookup`], [`Zap::add`], [`Zap::remove`]) go by its bytes,
//! in every ZAP: who wants another meaning asks here for the stored name first. So a ZAP may hold names that mean the same; callers
//! that do not want them look before they add.

use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::Entry;
use crate::key::Key;
use crate::norm::{Match, NormFlags};
use crate::store::Store;
use crate::zap::Zap;

/// Entries read at once: more than share a hash, as a rule.
const BATCH: usize = 4;

impl Zap {
    /// How names are normalized.
    pub fn norm<S: Store + ?Sized>(&self, store: &S) -> Result<NormFlags, Error<S::Error>> {
        Ok(self.list_unmarked(store, Cursor::END, 0)?.1)
    }

    /// The entry that a name means, under the name that is stored. Of several it is the first: the one with the lowest
    /// differentiator. [`Error::NameNotUtf8`]: nothing is stored under such a name.
    pub fn find_match<S: Store + ?Sized>(
        &self,
        store: &S,
        name: &[u8],
        how: Match,
    ) -> Result<Option<Entry>, Error<S::Error>> {
        let Some(hash) = self.hash_of(store, name)? else { return Ok(None) };
        let (entries, norm) = self.entries_of(store, hash)?;
        norm.judge(name.into()).map_err(Error::lift)?;
        let is_meant = |entry: &&Entry| entry.key.name().is_some_and(|stored| norm.means(stored, name, how));
        let Some(found) = entries.iter().find(is_meant) else { return Ok(None) };
        let conflict = is_in_conflict(norm, found, &entries);
        Ok(Some(Entry { conflict, ..found.clone() }))
    }

    /// Says of each entry whether another one's name has the same normalized form. The entries are neighbours in a listing.
    pub(crate) fn mark_conflicts<S: Store + ?Sized>(
        &self,
        store: &S,
        norm: NormFlags,
        entries: &mut [Entry],
    ) -> Result<(), Error<S::Error>> {
        let (first, last) = (entries.first().map(|entry| entry.hash), entries.last().map(|entry| entry.hash));
        for same in entries.chunk_by_mut(|a, b| a.hash == b.hash) {
            let Some(hash) = same.first().map(|entry| entry.hash) else { continue };
            // What shares the hash of the first or the last one may not be listed.
            let others = match Some(hash) == first || Some(hash) == last {
                true => self.entries_of(store, hash)?.0,
                false if same.len() == 1 => continue,
                false => same.to_vec(),
            };
            for entry in same {
                entry.conflict = is_in_conflict(norm, entry, &others);
            }
        }
        Ok(())
    }

    /// All entries of this hash, in the order of their differentiators.
    fn entries_of<S: Store + ?Sized>(
        &self,
        store: &S,
        hash: u64,
    ) -> Result<(Vec<Entry>, NormFlags), Error<S::Error>> {
        let mut entries = Vec::new();
        let mut from = Cursor { hash, cd: 0 };
        loop {
            let (batch, norm) = self.list_unmarked(store, from, BATCH)?;
            let after = batch.last().map_or(Cursor::END, Entry::cursor_after);
            let is_full = batch.len() == BATCH;
            entries.extend(batch.into_iter().take_while(|entry| entry.hash == hash));
            // A differentiator as large as can be is followed by itself.
            if !is_full || after.hash != hash || after <= from {
                return Ok((entries, norm));
            }
            from = after;
        }
    }
}

/// Whether an entry's name and that of another one mean the same.
fn is_in_conflict(norm: NormFlags, entry: &Entry, all: &[Entry]) -> bool {
    let means = |a: &Key, b: &Key| match (a.name(), b.name()) {
        (Some(a), Some(b)) => norm.means(a, b, Match::Normalized),
        _ => false,
    };
    all.iter().any(|other| other.cd != entry.cd && means(&other.key, &entry.key))
}
