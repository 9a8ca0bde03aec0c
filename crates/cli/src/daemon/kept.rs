//! Changes that a server which died had kept for its successor.
//!
//! They are replayed before any mount is taken over, together with the intent log. So programs notice nothing: what was answered is
//! there, and what was not is asked for again by the kernel.
//!
//! A change that has ended two servers in the middle of its replay is left out, and its files count as damaged.

use super::succession;
use crate::failure::Outcome;
use crate::fd_store::Inherited;
use crate::open_pool::OpenPool;
use std::collections::{BTreeMap, BTreeSet};
use terrane_dataset::DatasetError;
use terrane_format::log::OwnedFrame;
use terrane_fuse::handover::{ChangeRing, KeptChanges, Ledger};
use terrane_posix::{Ino, ReplayError, ReplayGuide, inodes_of_record};
use terrane_wire::{ObjsetId, Txg};

/// So many servers may die while they replay one change.
const TRIES_MAX: u64 = 2;

/// What the mounts of a predecessor have kept, by their numbers.
#[derive(Default)]
pub struct KeptByMounts(BTreeMap<u32, (Ledger, KeptChanges)>);

impl KeptByMounts {
    /// After an orderly end there is nothing.
    pub fn read(inherited: &Inherited) -> Outcome<KeptByMounts> {
        let mut kept = KeptByMounts::default();
        if inherited.facts.orderly {
            return Ok(kept);
        }
        for (number, mount) in &inherited.mounts {
            let Some(file) = &mount.ledger else { continue };
            let ledger = Ledger::map(file.try_clone()?)?;
            if let Some(changes) = ledger.ring().and_then(|ring| ring.read()) {
                kept.0.insert(*number, (ledger, changes));
            }
        }
        Ok(kept)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replays the intent log of the pool, and what the mounts have kept. Notes at each mount that it has lost nothing.
    pub fn replay(self, open_pool: OpenPool, inherited: Option<&mut Inherited>) -> Outcome<OpenPool> {
        let mut whole = BTreeSet::new();
        for (number, (ledger, kept)) in &self.0 {
            ledger.ring().into_iter().for_each(ChangeRing::begin_replay);
            let frames = kept.changes.iter().map(|change| OwnedFrame {
                set: ObjsetId(kept.set),
                change: change.change,
                txg: Txg(change.txg),
                body: change.body.clone(),
            });
            if open_pool.pool.add_kept_changes(frames) && kept.is_complete {
                whole.insert(*number);
            }
        }
        // Before the replay commits: then the ledger would say that nothing is lost.
        if let Some(inherited) = inherited.as_ref().filter(|inherited| !inherited.facts.orderly) {
            let not_whole = inherited.mounts.iter().filter(|(number, _)| !whole.contains(number));
            not_whole.into_iter().try_for_each(|(number, mount)| {
                succession::store_losses(*number, mount, &open_pool, false).map(drop)
            })?;
        }
        // Also those of a server before, whose replay was committed in part.
        let mut left_out: BTreeMap<u64, BTreeSet<Ino>> = BTreeMap::new();
        for (_, kept) in self.0.values() {
            let inodes = kept.left_out.iter().flat_map(|change| inodes_of_record(&change.body));
            left_out.entry(kept.set).or_default().extend(inodes);
        }
        let numbers = self.0.values().flat_map(|(_, kept)| &kept.left_out).map(|change| change.change);
        // The log may have them too.
        open_pool.pool.leave_out_changes(&numbers.collect());
        let mut guide = LeavingOut { kept: &self, left_out };
        let open_pool = open_pool.replayed(&mut guide)?;
        let mut left_out = guide.left_out;
        if let Some(inherited) = inherited {
            for (number, mount) in inherited.mounts.iter_mut().filter(|(number, _)| whole.contains(number)) {
                let set = self.0.get(number).map_or(0, |(_, kept)| kept.set);
                mount.left_out = Some(left_out.remove(&set).unwrap_or_default());
            }
        }
        Ok(open_pool)
    }
}

/// Leaves out what cannot be replayed: programs go on, and would lose all other changes too.
struct LeavingOut<'k> {
    kept: &'k KeptByMounts,
    /// Inodes of changes that were left out, by object set.
    left_out: BTreeMap<u64, BTreeSet<Ino>>,
}

impl ReplayGuide for LeavingOut<'_> {
    fn begins(&mut self, record: &OwnedFrame, inodes: &[Ino]) -> bool {
        // In the other rings none is tried now.
        self.ends();
        let Some(ring) = self.ring_of(record) else { return true };
        let tries = ring.note_try(record.change);
        if tries < TRIES_MAX {
            return true;
        }
        let OwnedFrame { set, change, txg, .. } = record;
        log::error!(
            "object set {set}: change {change} of txg {txg} left out, inodes {inodes:?} are damaged: {tries} servers died in its replay"
        );
        self.leave_out(record, inodes);
        false
    }

    fn leaves_out_set(&mut self, set: ObjsetId, error: &DatasetError) -> bool {
        let is_gone = !self.kept.is_empty() && matches!(error, DatasetError::Unknown { .. });
        if is_gone {
            log::error!("changes of object set {set} left out: {error}");
        }
        is_gone
    }

    fn ends(&mut self) {
        self.kept.0.values().filter_map(|(ledger, _)| ledger.ring()).for_each(|ring| _ = ring.note_try(0));
    }

    fn leaves_out(&mut self, record: &OwnedFrame, inodes: &[Ino], error: &ReplayError) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        log::error!("change left out, inodes {inodes:?} are damaged: {error}");
        self.leave_out(record, inodes);
        true
    }
}

impl LeavingOut<'_> {
    fn ring_of(&self, record: &OwnedFrame) -> Option<&ChangeRing> {
        let mut of_set = self.kept.0.values().filter(|(_, kept)| kept.set == record.set.0);
        of_set.next().and_then(|(ledger, _)| ledger.ring())
    }

    fn leave_out(&mut self, record: &OwnedFrame, inodes: &[Ino]) {
        if let Some(ring) = self.ring_of(record) {
            ring.leave_out(record.change);
        }
        self.left_out.entry(record.set.0).or_default().extend(inodes);
    }
}
