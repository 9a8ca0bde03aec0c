//! Chains whose snapshots are read after the data set was opened.
//!
//! Ten thousand snapshots take a tenth of a second to read, and an import should not wait for that. So a data set with many opens
//! without them. A thread reads them soon, or an operation does that needs them.
//!
//! While they are unread, the chain keeps each block that a snapshot might refer to. It puts the block on the list of the head, and makes
//! that list due for a scan. When the snapshots are known, the scan frees the blocks that none of them refers to. This needs an empty
//! free queue: blocks in a queue may have left the head before the newest snapshot was taken, and belong on an older list.
//!
//! Invariant: the names, snapshots and lists of a data set do not change while its snapshots are unread, except the list of the head.
//! Operations that change them call [`Chain::read`] first.

use super::{Chain, Link, State, Unread};
use crate::error::DatasetError;
use crate::free_policy::{due_lists, snapshots_in};
use crate::mos_zap::zap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrane_object::ObjectSet;
use terrane_pool::Pool;
use terrane_wire::{ObjectId, Txg};

/// How long after an import the snapshots are read. The first operations should not share a processor with that.
const READ_DELAY: Duration = Duration::from_secs(2);

impl Chain {
    /// The chain of a data set with an empty free queue. `names`: the ZAP of the names of its snapshots.
    pub(crate) fn unread(
        mos: &Arc<ObjectSet>,
        origin: Txg,
        names: ObjectId,
        head_list: ObjectId,
    ) -> Arc<Chain> {
        let unread = Some(Unread { names, until: mos.pool().open_txg() });
        Chain::with(mos, State { origin, unread, head_list, ..State::default() })
    }

    /// Whether there are snapshots that have not been read.
    pub(crate) fn is_unread(&self) -> bool {
        self.state.lock().unread.is_some()
    }

    /// Reads the snapshots, if they are unread.
    ///
    /// # Errors
    /// One of them cannot be read. All stay unread, and the next call tries again.
    pub(crate) fn read(&self) -> Result<(), DatasetError> {
        let Some(mos) = self.mos.upgrade() else { return Ok(()) };
        if !self.is_unread() {
            return Ok(());
        }
        let _reading = self.reading.lock();
        let (names, head_list) = match &*self.state.lock() {
            State { unread: Some(unread), head_list, .. } => (unread.names, *head_list),
            _ => return Ok(()),
        };
        let links: Vec<Link> =
            snapshots_in(&mos, &zap(&mos, names)?)?.iter().map(|(_, info)| Link::of(info)).collect();
        let due = due_lists(&mos, links.iter().map(|link| link.dead_list).chain([head_list]))?;
        let mut state = self.state.lock();
        state.unread = None;
        state.links = links;
        state.due.extend(due);
        self.newest.store(state.newest().0, Ordering::Relaxed);
        if !state.due.is_empty() {
            self.is_busy.store(true, Ordering::Relaxed);
            mos.pool().want_another_txg();
        }
        Ok(())
    }
}

/// Starts a thread that reads the snapshots of these chains soon. If there is none, operations that need them read them. So it is in an
/// environment that has no threads.
pub(crate) fn read_soon(pool: &Pool, chains: &[Arc<Chain>]) {
    if chains.is_empty() || pool.env().workers() == 0 {
        return;
    }
    let env = Arc::clone(pool.env());
    // The pool may be closed before.
    let chains: Vec<Weak<Chain>> = chains.iter().map(Arc::downgrade).collect();
    let read = move || {
        env.sleep(READ_DELAY);
        for chain in chains.iter().filter_map(Weak::upgrade) {
            if let Err(error) = chain.read() {
                log::warn!("snapshots not read, so blocks that files give up stay allocated: {error}");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("terrane-snaps".to_owned()).spawn(read) {
        log::warn!("snapshots are read when they are needed, as no thread started: {error}");
    }
}
