//! Replay of a whole pool: what its intent log has, and what a server that died had kept in memory.
//!
//! Records of all data sets are made again in one order, before anyone mounts. A record that does not fit stops the replay, and the
//! pool stays as it was imported.

use crate::fs::Fs;
use crate::replay::{Parsed, ReplayError};
use crate::types::Ino;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;
use terrane_dataset::{Dataset, DatasetError};
use terrane_format::log::OwnedFrame;
use terrane_pool::Pool;
use terrane_store::PoolError;
use terrane_wire::ObjsetId;

/// Why a pool's changes were not replayed.
#[derive(Debug)]
pub enum ReplayFailure {
    /// A record is damaged or does not fit.
    Record(ReplayError),
    /// A data set that has records cannot be opened.
    Dataset(ObjsetId, DatasetError),
    /// The commit failed.
    Pool(PoolError),
}

impl fmt::Display for ReplayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayFailure::Record(error) => error.fmt(f),
            ReplayFailure::Dataset(set, error) => write!(f, "data set with object set {set}: {error}"),
            ReplayFailure::Pool(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplayFailure {}

impl From<PoolError> for ReplayFailure {
    fn from(error: PoolError) -> Self {
        ReplayFailure::Pool(error)
    }
}

impl From<ReplayError> for ReplayFailure {
    fn from(error: ReplayError) -> Self {
        ReplayFailure::Record(error)
    }
}

/// Decides about single records of a replay.
pub trait ReplayGuide {
    /// A record of these inodes is about to be replayed. False: it is left out.
    fn begins(&mut self, _record: &OwnedFrame, _inodes: &[Ino]) -> bool {
        true
    }

    /// A record of these inodes could not be replayed. True: it is left out, and the replay goes on.
    fn leaves_out(&mut self, _record: &OwnedFrame, _inodes: &[Ino], _error: &ReplayError) -> bool {
        false
    }
}

/// Every record must fit.
pub struct WholeReplay;

impl ReplayGuide for WholeReplay {}

/// Makes again what the pool has not committed, and commits it. Returns the number of records. `open`: the data set with an object
/// set.
///
/// # Errors
/// Nothing more may be committed then: the caller abandons the pool.
pub fn replay_pool(
    pool: &Arc<Pool>,
    open: &mut dyn FnMut(ObjsetId) -> Result<Arc<Dataset>, DatasetError>,
    guide: &mut dyn ReplayGuide,
) -> Result<u64, ReplayFailure> {
    let mut count = 0;
    pool.replay_log(|records| {
        let mut file_systems: BTreeMap<ObjsetId, Arc<Fs>> = BTreeMap::new();
        for record in records {
            if let Entry::Vacant(vacant) = file_systems.entry(record.set) {
                let opened = open(record.set).and_then(Fs::open_to_replay);
                vacant.insert(opened.map_err(|error| ReplayFailure::Dataset(record.set, error))?);
            }
        }
        let fs_of = |set: ObjsetId| file_systems.get(&set).expect("opened above");
        // All are parsed first: a record that makes no sense must not stop the replay half-way.
        let mut parsed = Vec::new();
        for record in records {
            parsed.push((record, fs_of(record.set).parse_record(record.as_frame())?));
        }
        // Operations also create objects that have no record, such as values of extended attributes. Those must not take the
        // number of an inode that is created later.
        for (record, change) in &parsed {
            fs_of(record.set).withhold_slots(change);
        }
        for (record, change) in &parsed {
            let inodes = change.inodes();
            if !guide.begins(record, &inodes) {
                continue;
            }
            match fs_of(record.set).replay_one(change) {
                Ok(()) => count += 1,
                Err(error) if error.is_unfit() && guide.leaves_out(record, &inodes, &error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        parsed.iter().for_each(|(record, change)| fs_of(record.set).release_slots(change));
        Ok::<(), ReplayFailure>(())
    })?;
    Ok(count)
}

impl Fs {
    fn withhold_slots(&self, change: &Parsed<'_>) {
        self.set.withhold_slots(change.slots());
    }

    fn release_slots(&self, change: &Parsed<'_>) {
        self.set.release_slots(change.slots());
    }
}
