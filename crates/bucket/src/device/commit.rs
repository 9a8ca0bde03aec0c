//! Commits: what a root says, and how it is put in place of the one before.

use super::{BucketDevice, CHANGED_MAX, Committed, SWEEP_REQUESTS, SWEEP_SECONDS, seconds};
use crate::filling::FillingId;
use crate::root::{Garbage, ROOT, ROOT_BYTES_MAX, Root, TableId, ZoneEntry, encode_table};
use crate::store::{StoreError, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrane_device::wall_ns;
use terrane_wire::ZoneIdx;

impl BucketDevice {
    /// What may be said of a zone in a root, and whether that is all of it.
    pub(super) fn entry_of(&self, zone: ZoneIdx) -> Option<(ZoneEntry, bool)> {
        let slot = self.filling(zone)?.read();
        slot.as_ref().map(|filling| {
            let entry = ZoneEntry::of(filling, self.geometry.zone_size);
            let is_whole = entry.parts.len() == filling.parts.len();
            (entry, is_whole)
        })
    }

    /// Whether a crash now would lose data that was put.
    pub(super) fn has_unnamed(&self, committed: &Committed) -> bool {
        self.pending.lock().iter().any(|zone| {
            self.entry_of(*zone).is_some_and(|(entry, _)| {
                !entry.parts.is_empty() && committed.named.get(zone).is_none_or(|named| named.id != entry.id)
            })
        })
    }

    /// Replaces the root.
    pub(super) fn commit(&self, committed: &mut Committed) -> Result<(), String> {
        let anchors = {
            let mut anchors = self.anchors.lock();
            anchors.is_changed = false;
            anchors.content.clone()
        };
        let deleted = self.workers.take_deleted();
        committed.garbage.retain(|id, _| !deleted.contains(id));
        let now = seconds();
        // Found before this commit: see `sweep`.
        let remains = std::mem::take(&mut *self.remains.lock());
        if !remains.is_empty() {
            let known = committed.known_ids();
            committed
                .garbage
                .extend(remains.into_iter().filter(|id| !known.contains(id)).map(|id| (id, now)));
        }
        let pending = std::mem::take(&mut *self.pending.lock());
        for zone in pending {
            let entry = self.entry_of(zone);
            let before = match &entry {
                Some((entry, is_whole)) => {
                    if !is_whole {
                        // Another flush puts the rest.
                        self.pending.lock().insert(zone);
                    }
                    committed.named.insert(zone, entry.clone())
                }
                None => committed.named.remove(&zone),
            };
            if entry.is_some() || before.is_some() {
                committed.differs.insert(zone);
            }
            let is_gone = |before: &ZoneEntry| entry.as_ref().is_none_or(|(entry, _)| entry.id != before.id);
            committed.garbage.extend(before.filter(is_gone).map(|before| (before.id, now)));
        }
        // After the zones, so that none is named that is garbage. A zone that is reset at this moment still is named.
        self.dropped.lock().retain(|(zone, id)| {
            let is_named = committed.named.get(zone).is_some_and(|named| named.id == *id);
            if !is_named {
                committed.garbage.entry(*id).or_insert(now);
            }
            is_named
        });
        if committed.differs.len() > CHANGED_MAX.max(committed.named.len() / 4) {
            let table = TableId(self.next_id());
            self.requests
                .put(&table.key(), &encode_table(&committed.named).into())
                .map_err(|error| error.to_string())?;
            committed.garbage.extend(committed.table.replace(table).map(|old| (old.0, now)));
            committed.differs.clear();
        }
        committed.number += 1;
        let changed = committed.differs.iter().map(|zone| (*zone, committed.named.get(zone).cloned()));
        let root = Root {
            geometry: self.geometry,
            holder: self.holder.clone(),
            number: committed.number,
            time_ns: wall_ns(),
            next_number: self.next_number.load(Ordering::Relaxed),
            table: committed.table,
            changed: changed.collect(),
            garbage: committed.garbage.clone(),
            anchors,
        };
        let raw = root.encode();
        committed.version = self.swap_root(&raw, &committed.version)?;
        let is_due = committed.swept.is_none_or(|before| now.saturating_sub(before) >= SWEEP_SECONDS);
        if is_due && self.requests.may_spend(SWEEP_REQUESTS) {
            committed.swept = Some(now);
            self.sweep(committed.known_ids());
        }
        self.delete_garbage(&committed.garbage);
        Ok(())
    }

    /// Has the objects of garbage deleted, when processes that follow the pool have had time to see a later root.
    pub(super) fn delete_garbage(&self, garbage: &Garbage) {
        let (now, retention) = (seconds(), self.retention.load(Ordering::Relaxed));
        if retention == u64::MAX {
            return;
        }
        for (id, since) in garbage {
            let left = since.saturating_add(retention).saturating_sub(now).min(retention);
            self.workers.delete(*id, Duration::from_secs(left));
        }
    }

    /// Looks for objects of other processes that nothing names: what they put without a commit, or what came late. Nothing waits for
    /// it. The next commit makes garbage of them. Until then another process may be about to name them, but after that commit its own
    /// cannot succeed.
    fn sweep(&self, known: BTreeSet<FillingId>) {
        let (requests, remains) = (Arc::clone(&self.requests), Arc::clone(&self.remains));
        let own = self.holder.opener;
        let search = move || {
            let mut ids = Vec::new();
            for top in ["z/", "table/"] {
                for opener in requests.list_children(top)? {
                    if requests.is_closed() {
                        break;
                    }
                    // The first ones were taken before.
                    requests.may_spend(1);
                    let children =
                        if opener.ends_with('/') { requests.list_children(&opener)? } else { Vec::new() };
                    ids.extend(children.iter().filter_map(|name| FillingId::of_child(name)));
                }
            }
            ids.retain(|id| id.opener != own && !known.contains(id));
            Ok::<_, StoreError>(ids)
        };
        let url = self.info.name.clone();
        self.workers.fetch(Box::new(move || match search() {
            Ok(ids) => remains.lock().extend(ids),
            Err(error) => log::warn!("{url}: remains of other processes are not looked for: {error}"),
        }));
    }

    /// Puts a root in place of the one that this process put or found.
    fn swap_root(&self, raw: &[u8], expected: &Version) -> Result<Version, String> {
        let mut winner = None;
        let swapped = self.requests.swap(ROOT, |store| match store.swap(ROOT, raw, Some(expected)) {
            Err(StoreError::Changed) => {
                let Some((found, version)) = store.get(ROOT, ROOT_BYTES_MAX)? else {
                    return Err(StoreError::Missing);
                };
                match Root::parse(&found, store.url()) {
                    // An earlier attempt that seemed to fail.
                    Ok(_) if found == raw => Ok(version),
                    // Another request for the root was under way, and has not replaced it.
                    Ok(_) if version == *expected => {
                        Err(StoreError::Failed("another request is under way".into()))
                    }
                    Ok(root) => {
                        winner = Some(root.holder);
                        Err(StoreError::Changed)
                    }
                    Err(corrupt) => {
                        log::error!("{corrupt}");
                        Err(StoreError::Changed)
                    }
                }
            }
            outcome => outcome,
        });
        swapped.map_err(|error| match (error, winner) {
            (StoreError::Changed, Some(winner)) => format!(
                "fenced: {winner} has taken the pool over; changes after the last commit here are lost; unmount it here"
            ),
            (StoreError::Missing, _) => "the root of the pool was deleted from the store".to_owned(),
            (error, _) => format!("root not replaced: {error}"),
        })
    }
}
