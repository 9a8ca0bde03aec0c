//! Transaction groups: open, quiescing, syncing.
//!
//! Every change joins the open group by holding a [`Tx`]. When a group is to be committed it *quiesces*: nobody may join until
//! all who hold it have left, which is soon, because who has joined waits only for device reads. Then the next group opens
//! and the quiesced one *syncs* while changes go on. So at any time one group is open and at most one is syncing.
//!
//! All waiting happens before joining: for room in the pool, for the sync to catch up with dirty data, for the group change.
//!
//! Invariant: what is reserved in open and syncing group never exceeds what the pool can still take.

use crate::pool::{Pool, Tx};
use std::sync::Arc;
use std::time::Duration;
use terrane_store::PoolError;
use terrane_txg::admission::Above;
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

impl Pool {
    /// Joins the open group. May wait; take it before any lock.
    pub fn begin(self: &Arc<Self>, cost: Cost) -> Result<Tx, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let above = Above {
            alive: &|| self.reports.alive(),
            commit: &|txg| self.commit_txg(txg),
            wait_for_unread: &|| self.wait_for_unread(),
        };
        let txg = self.admission.begin(&cost, self.env.as_ref(), &above)?;
        Ok(Tx { pool: self.clone(), txg })
    }

    /// Keeps so many bytes for somebody, whatever there is: it was promised before the pool was opened. Otherwise [`Cost::promises`] asks
    /// for it.
    pub fn promise(&self, bytes: u64) {
        self.admission.set_promised(|promised| promised.saturating_add(bytes));
    }

    /// What was promised was written, or is not wanted any more.
    pub fn end_promise(&self, bytes: u64) {
        if bytes > 0 {
            self.admission.set_promised(|promised| promised.saturating_sub(bytes));
        }
    }

    /// Bytes that are kept for those to whom they were promised.
    pub fn promised_bytes(&self) -> u64 {
        self.admission.promised()
    }

    /// Commits everything that was done before the call; durable when it returns.
    pub fn commit(self: &Arc<Self>) -> Result<Txg, PoolError> {
        let target = self.admission.newest_change(self.threaded());
        self.commit_txg(target)?;
        Ok(target)
    }

    /// Waits until group `txg` is durable, starting its commit if need be.
    pub fn commit_txg(self: &Arc<Self>, txg: Txg) -> Result<(), PoolError> {
        if self.read_only {
            // Nothing can be waiting to become durable.
            return Ok(());
        }
        let alive = || self.reports.alive();
        self.admission.wait_for_group(txg, self.threaded(), &alive, &|| self.run_group())
    }

    /// Waits until no group syncs. Whoever holds a [`Tx`] keeps the next one from it: then all that is not stored is what the open group
    /// has changed.
    pub fn wait_for_sync(&self) -> Result<(), PoolError> {
        self.admission.wait_for_sync(|| self.reports.alive())
    }

    /// Waits until the group is durable or the pool has failed, without asking for it.
    pub fn synced_txg(&self) -> Txg {
        self.admission.synced()
    }

    /// The client has work left over: another group should follow although nobody changes anything.
    pub fn want_another_group(&self) {
        self.admission.want_another_group();
    }

    /// Whether another group will follow although nobody changes anything.
    pub fn has_work_left(&self) -> bool {
        self.admission.has_work_left()
    }

    pub fn open_txg(&self) -> Txg {
        self.admission.open()
    }

    /// One group through quiescing and syncing.
    pub(crate) fn run_group(self: &Arc<Self>) -> Result<(), PoolError> {
        let mut sync = self.sync.lock();
        let txg = self.admission.quiesce();
        if let Some(client) = self.client() {
            self.admission.join_last();
            let last = Tx { pool: self.clone(), txg };
            client.quiesced(&last);
        }
        self.admission.open_next(txg);
        let outcome = self.sync_group(&mut sync, txg);
        if let Err(error) = &outcome {
            // Before anybody else gets the lock: no group may follow on a half-applied one.
            self.fail(error);
        }
        drop(sync);
        let (now_ns, goes_on) = (|| self.env.monotonic_ns(), || self.collection.collects_by_hand());
        self.admission.end_sync(txg, outcome.is_ok(), now_ns, goes_on);
        if let (Ok(()), Some(client)) = (&outcome, self.client()) {
            client.synced(txg);
        }
        outcome
    }

    /// The sync thread. A panic in it is our own mistake; it must not leave anybody asleep who waits for a group.
    pub(crate) fn sync_loop(self: Arc<Self>, period: Duration) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.sync_groups(period)));
        if outcome.is_err() {
            self.fail(&PoolError::Failed { reason: "a group's sync panicked".into() });
        }
        self.admission.wake_all();
    }

    /// Commits when asked, when enough is dirty, and on a timer.
    fn sync_groups(self: &Arc<Self>, period: Duration) {
        // It wakes for every block that workers have made, and whoever writes meanwhile would lose the processor for milliseconds.
        self.env.never_preempt();
        while self.admission.next_group(period, &|| self.look_at_the_clock()) {
            if self.run_group().is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::CreateOptions;
    use crate::import::ImportOptions;
    use std::sync::{Arc, mpsc};
    use terrane_device::{SimConfig, SimDevice};
    use terrane_store::env::SeededEnv;
    use terrane_txg::cost::Cost;

    #[test]
    fn nobody_begins_to_wait_when_the_pool_has_stopped() {
        let device = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
        let (create, options) = (CreateOptions::named("toy"), ImportOptions::default());
        let pool = Pool::create(vec![device], &create, Arc::new(SeededEnv::new(1)), &options).unwrap();
        let (done, ended) = mpsc::channel();
        let writer = pool.clone();
        pool.admission.behind_another_waiter(|| {
            std::thread::spawn(move || {
                let outcome = writer.begin(Cost { write_bytes: 4096, ..Cost::NOTHING }).map(drop);
                done.send(outcome.is_err())
            });
            // It stands before the lock by then, or comes later, which is as good.
            std::thread::sleep(Duration::from_millis(100));
            pool.fail(&PoolError::Failed { reason: "a test says so".into() });
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true), "it waits for ever");
    }
}
