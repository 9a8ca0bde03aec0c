//! Makes the uberblocks of a pool, and appends them to its
//! [`CommitPoint`](terrane_store::commit_point::CommitPoint).

use crate::pool::{Pool, SyncState};
use terrane_format::boot_ptr::BootPtr;
use terrane_format::label::Label;
use terrane_format::uberblock::Uberblock;
use terrane_store::PoolError;
use terrane_wire::Txg;

impl Pool {
    /// Appends the uberblock of a committed txg. It is durable on return.
    pub(crate) fn write_uberblock(
        &self,
        st: &mut SyncState,
        txg: Txg,
        record: BootPtr,
        clean: bool,
    ) -> Result<(), PoolError> {
        let label = self.label();
        if clean {
            st.alloc.end_lease();
        } else {
            st.alloc.raise_lease();
        }
        let uber = self.uberblock(st, &label, txg, record, clean);
        st.commit_point.append(&label, &uber)?;
        self.store.flush(self.threaded())?;
        st.history.oldest = uber.oldest;
        Ok(())
    }

    /// Builds the uberblock of a committed txg for a label. The anchor sets `anchor_generation` when it writes.
    pub(crate) fn uberblock(
        &self,
        st: &SyncState,
        label: &Label,
        txg: Txg,
        record: BootPtr,
        clean: bool,
    ) -> Uberblock {
        Uberblock {
            clean,
            generation: label.generation,
            anchor_generation: 0,
            incarnation: st.incarnation,
            txg,
            oldest: self.admission.rollback_to(st, txg),
            time_ns: self.env.wall_ns(),
            lease_seq: st.alloc.lease_seq,
            lease_txg: st.lease_txg,
            record,
            host: self.env.host_id(),
            has_unknown_features: false,
        }
    }

    /// Writes the label from memory to all anchors. On return, no import can be led by an older label. The
    /// caller has raised the label's generation.
    ///
    /// The switch resets the anchors. So the uberblocks of the txgs that can be rolled back to are appended
    /// again behind the label.
    pub(crate) fn relabel(&self, st: &mut SyncState) -> Result<(), PoolError> {
        // Not the last record that a replay needs: if this txg rewrites all sections, there is none.
        let Some((txg, record)) = st.history.newest else {
            return Err(PoolError::Failed { reason: "there is no commit record".into() });
        };
        let label = self.label();
        st.alloc.raise_lease();
        let uber = self.uberblock(st, &label, txg, record, false);
        st.commit_point.relabel(&label, &uber, &mut || self.store.flush(self.threaded()))?;
        st.history.oldest = uber.oldest;
        self.write_rollback_uberblocks(st, txg);
        Ok(())
    }

    /// Appends uberblocks of the txgs before `newest`. The pool works without them.
    fn write_rollback_uberblocks(&self, st: &mut SyncState, newest: Txg) {
        let label = self.label();
        let oldest = st.history.oldest;
        let history = st.history.older_than(newest);
        for (txg, record) in history {
            let uber = Uberblock { oldest, ..self.uberblock(st, &label, txg, record, false) };
            st.commit_point.append_older(&label, &uber);
        }
        // A failed flush is final, here as elsewhere.
        if let Err(error) = self.store.flush(self.threaded()) {
            self.fail(&error);
        }
    }
}
