//! The uberblocks of a pool: made here, and appended to its [`CommitPoint`](terrane_store::commit_point::CommitPoint).

use crate::pool::{Pool, SyncState};
use terrane_device::Device;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::label::Label;
use terrane_format::uberblock::Uberblock;
use terrane_store::PoolError;
use terrane_wire::Txg;

impl Pool {
    /// Appends the uberblock of a committed group; durable when it returns.
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
        self.flush_devices()?;
        st.oldest = uber.oldest;
        Ok(())
    }

    /// The uberblock of a committed group under a label; its turn is the anchor's.
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
            turn: 0,
            incarnation: st.incarnation,
            txg,
            oldest: self.admission.rollback_to(st, txg),
            time_ns: self.env.wall_ns(),
            lease_seq: st.alloc.lease_seq,
            lease_txg: st.lease_txg,
            record,
            host: self.env.host_id(),
        }
    }

    /// Writes the label anew, as it is in memory: when this returns no import can be led by an older one. Who changed it has raised its
    /// generation. The groups that can be rolled back to are told again behind it: what was told of them is gone.
    pub(crate) fn relabel(&self, st: &mut SyncState) -> Result<(), PoolError> {
        let Some((txg, record)) = st.chain.back().map(|last| (last.txg, last.ptr)) else {
            return Err(PoolError::Failed { reason: "there is no commit record".into() });
        };
        let label = self.label();
        st.alloc.raise_lease();
        let uber = self.uberblock(st, &label, txg, record, false);
        st.commit_point.relabel(&label, &uber, &mut || self.flush_devices())?;
        st.oldest = uber.oldest;
        self.tell_history(st, txg);
        Ok(())
    }

    /// Appends uberblocks of the groups before `newest`. The pool can do without.
    fn tell_history(&self, st: &mut SyncState, newest: Txg) {
        let label = self.label();
        let oldest = st.oldest;
        let history: Vec<(Txg, BootPtr)> =
            st.recent.iter().copied().filter(|(txg, _)| (oldest..newest).contains(txg)).collect();
        for (txg, record) in history {
            let uber = Uberblock { oldest, ..self.uberblock(st, &label, txg, record, false) };
            st.commit_point.append_older(&label, &uber);
        }
        // One that fails is final, as ever.
        if let Err(error) = self.flush_devices() {
            self.fail(&error);
        }
    }

    /// The barrier, on every device. One that fails is final, whatever the others say: nobody knows what of a group it holds.
    pub(crate) fn flush_devices(&self) -> Result<(), PoolError> {
        let devices = self.store.devices.all();
        let flush =
            |device: &dyn Device| self.store.counters.timed(&self.store.counters.flush, || device.flush());
        if devices.len() == 1 || !self.threaded() {
            return devices.iter().try_for_each(|(_, device)| Ok(flush(device.as_ref())?));
        }
        // Side by side: a group waits for the slowest device, not for all of them in turn.
        std::thread::scope(|scope| {
            let flushes: Vec<_> =
                devices.iter().map(|(_, device)| scope.spawn(|| flush(device.as_ref()))).collect();
            let panicked = || PoolError::Failed { reason: "a flush panicked".into() };
            let ends: Vec<_> = flushes.into_iter().map(|flush| flush.join()).collect();
            ends.into_iter().try_for_each(|end| Ok(end.map_err(|_| panicked())??))
        })
    }
}
