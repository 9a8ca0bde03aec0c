//! Transaction groups: open, quiescing, syncing.
//!
//! Every operation joins the open txg by holding a [`Tx`]. To commit, a txg first *quiesces*: no operation
//! may join until all holders have left. That is soon, because holders wait only for device reads. Then the
//! next txg opens, and the quiesced one *syncs* while operations go on. So one txg is open, and at most one
//! is syncing.
//!
//! All waiting happens before joining: for free space, for the sync to catch up with dirty data, for the next
//! txg to open.
//!
//! Invariant: reservations in the open and the syncing txg never exceed what the pool can still take.

use crate::pool::{Pool, Tx};
use std::sync::Arc;
use std::time::Duration;
use terrane_store::PoolError;
use terrane_txg::admission::PoolHooks;
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

impl Pool {
    /// Joins the open txg. It may wait, so call it before taking any lock.
    pub fn begin(self: &Arc<Self>, cost: Cost) -> Result<Tx, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        let above = PoolHooks {
            check_running: &|| self.reports.check_running(),
            commit: &|txg| self.commit_txg(txg),
            wait_for_unread: &|| self.wait_for_unread(),
        };
        let txg = self.admission.begin(&cost, self.env.as_ref(), &above)?;
        Ok(Tx::new(self.clone(), txg, cost.names_bytes))
    }

    /// Reserves bytes for a file without a check for free space, because they were reserved before the pool
    /// was opened. New reservations use [`Cost::file_reservation`].
    pub fn reserve_file(&self, bytes: u64) {
        self.admission.set_file_reserved(|reserved| reserved.saturating_add(bytes));
    }

    /// Ends a file's reservation of bytes, which were written or are no longer wanted.
    pub fn end_file_reservation(&self, bytes: u64) {
        if bytes > 0 {
            self.admission.set_file_reserved(|reserved| reserved.saturating_sub(bytes));
        }
    }

    /// Bytes that are reserved for files.
    pub fn file_reserved_bytes(&self) -> u64 {
        self.admission.file_reserved()
    }

    /// Commits all changes made before the call. They are durable on return.
    pub fn commit(self: &Arc<Self>) -> Result<Txg, PoolError> {
        let target = self.admission.newest_change(self.threaded());
        self.commit_txg(target)?;
        Ok(target)
    }

    /// Begins to commit all changes made before the call. Does not wait.
    pub fn request_commit(&self) {
        self.admission.request_commit();
    }

    /// Waits until `txg` is durable, and starts its commit if necessary.
    pub fn commit_txg(self: &Arc<Self>, txg: Txg) -> Result<(), PoolError> {
        if self.read_only {
            // A read-only pool has no changes to commit.
            return Ok(());
        }
        let alive = || self.reports.check_running();
        self.admission.wait_for_txg(txg, self.threaded(), &alive, &|| self.run_txg())
    }

    /// Waits until no txg syncs. If the caller holds a [`Tx`], the next sync cannot begin. Then only changes
    /// of the open txg are not durable.
    pub fn wait_for_sync(&self) -> Result<(), PoolError> {
        self.admission.wait_for_sync(|| self.reports.check_running())
    }

    /// The newest durable txg. Does not wait.
    pub fn synced_txg(&self) -> Txg {
        self.admission.synced()
    }

    /// The client has more work: another txg should follow, even if no operation changes anything.
    pub fn want_another_txg(&self) {
        self.admission.want_another_txg();
    }

    /// The same, soon: the client has done a bounded part of work that somebody waits for, as for space that is freed. To be called
    /// in a sync.
    pub fn want_txg_soon(&self) {
        self.admission.want_txg_soon();
    }

    /// Whether another txg will follow although no operation changes anything.
    pub fn has_work_left(&self) -> bool {
        self.admission.has_work_left()
    }

    /// The open txg. It may have changed when the caller looks at the number.
    pub fn open_txg(&self) -> Txg {
        self.admission.open()
    }

    /// Quiesces and syncs one txg.
    pub(crate) fn run_txg(self: &Arc<Self>) -> Result<(), PoolError> {
        let mut sync = self.sync.lock();
        let txg = self.admission.quiesce();
        if let Some(client) = self.client() {
            self.admission.join_last();
            let last = Tx::new(self.clone(), txg, Some(0));
            client.quiesced(&last);
        }
        self.membership.uses.fold(txg);
        self.admission.open_next(txg);
        let outcome = self.sync_txg(&mut sync, txg);
        if let Err(error) = &outcome {
            // Before the lock is released: no txg may follow a half-applied one.
            self.fail(error);
        }
        drop(sync);
        let (now_ns, goes_on) = (|| self.env.monotonic_ns(), || self.collection.has_request());
        self.admission.end_sync(txg, outcome.is_ok(), now_ns, goes_on);
        if let (Ok(()), Some(client)) = (&outcome, self.client()) {
            client.synced(txg);
        }
        outcome
    }

    /// The sync thread. A panic in it is a bug, and must not leave threads that wait for a txg asleep.
    pub(crate) fn sync_loop(self: Arc<Self>, period: Duration) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.sync_txgs(period)));
        if outcome.is_err() {
            self.fail(&PoolError::Failed { reason: "the sync of a txg panicked".into() });
        }
        self.admission.wake_all();
    }

    /// Commits on request, when enough is dirty, and on a timer.
    fn sync_txgs(self: &Arc<Self>, period: Duration) {
        // The thread wakes for every block that workers have compressed. If it preempted a writer each time,
        // that writer would lose the processor for milliseconds.
        self.env.never_preempt();
        while self.admission.wait_for_next_txg(period, &|| self.update_idle_window()) {
            if self.run_txg().is_err() {
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
    fn no_operation_waits_after_the_pool_has_stopped() {
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
            // By then the writer waits for the lock. If it comes later, the test proves the same.
            std::thread::sleep(Duration::from_millis(100));
            pool.fail(&PoolError::Failed { reason: "a test says so".into() });
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true), "it waits for ever");
    }
}
