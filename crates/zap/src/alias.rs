//! Which entry a name means, if several names mean the same.
//!
//! Entries with one normalized form have one hash. So all entries that a name could mean are adjacent in the order of
//! entries, and a short listing finds them in any kind of ZAP. Operations by name ([`Zap::lookup`], [`Zap::add`],
//! [`Zap::remove`]) compare bytes, in every ZAP. A caller that wants another meaning asks here for the stored name
//! first. So a ZAP may hold names that mean the same; a caller that does not want them looks before it adds.

use crate::cursor::Cursor;
use crate::error::Error;
use crate::fat::Entry;
use crate::key::Key;
use crate::norm::{Match, NormFlags};
use crate::store::Store;
use crate::zap::Zap;

/// Entries per listing: usually more than share a hash.
const BATCH: usize = 4;

impl Zap {
    /// How names are normalized.
    pub fn norm<S: Store + ?Sized>(&self, store: &S) -> Result<NormFlags, Error<S::Error>> {
        Ok(self.list_unmarked(store, Cursor::END, 0)?.1)
    }

    /// The entry that a name means, under its stored name. Of several it is the one with the lowest differentiator.
    /// [`Error::NameNotUtf8`] if nothing can be stored under such a name.
    pub fn find_match<S: Store + ?Sized>(
        &self,
        store: &S,
        name: &[u8],
        how: Match,
    ) -> Result<Option<Entry>, Error<S::Error>> {
        let Some(hash) = self.hash_of(store, name)? else { return Ok(None) };
        let (entries, norm) = self.entries_of(store, hash)?;
        norm.validate(name.into()).map_err(Error::lift)?;
        let is_meant =
            |entry: &&Entry| entry.key.name().is_some_and(|stored| norm.matches_name(stored, name, how));
        let Some(found) = entries.iter().find(is_meant) else { return Ok(None) };
        let conflict = is_in_conflict(norm, found, &entries);
        Ok(Some(Entry { conflict, ..found.clone() }))
    }

    /// Marks each entry whose name has the normalized form of another one's. The entries are adjacent in a listing.
    pub(crate) fn mark_conflicts<S: Store + ?Sized>(
        &self,
        store: &S,
        norm: NormFlags,
        entries: &mut [Entry],
    ) -> Result<(), Error<S::Error>> {
        let (first, last) = (entries.first().map(|entry| entry.hash), entries.last().map(|entry| entry.hash));
        for same in entries.chunk_by_mut(|a, b| a.hash == b.hash) {
            let Some(hash) = same.first().map(|entry| entry.hash) else { continue };
            // Entries that share the hash of the first or the last one may lie outside of the list.
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
            // The cursor after the largest differentiator is itself.
            if !is_full || after.hash != hash || after <= from {
                return Ok((entries, norm));
            }
            from = after;
        }
    }
}

/// Whether another entry's name has the same normalized form.
fn is_in_conflict(norm: NormFlags, entry: &Entry, all: &[Entry]) -> bool {
    let means = |a: &Key, b: &Key| match (a.name(), b.name()) {
        (Some(a), Some(b)) => norm.matches_name(a, b, Match::Normalized),
        _ => false,
    };
    all.iter().any(|other| other.cd != entry.cd && means(&other.key, &entry.key))
}
