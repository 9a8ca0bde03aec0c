//! Anchors: where every device tells which group is the newest.
//!
//! A commit appends its uberblock to the current anchor of every device, so that any of them could tell where the pool begins, and
//! import takes the newest over all. A device whose anchors cannot be written does not stop the pool: what it tells is old, the others
//! know better, and status names it. That is safe because a pool is imported only with all its devices at hand: there is always one
//! that has the newest group. When not one anchor takes an uberblock the group has failed.
//!
//! Invariant, on each device: one anchor holds a valid label and the newest uberblock that this device took. The other is only reset
//! to be written at once.
//!
//! A label may be damaged later. So each anchor holds it twice; the other anchor could not take the newest group before this one is
//! reset: a drive has finished that. If both copies are damaged, the uberblocks behind them are judged by the label in the other anchor,
//! or an import would go on with what that one tells, which may be many groups older. To mend such an anchor is to reset it: if the power
//! goes just then, an older group is all there is, unless another device knows better.

use crate::pool::{Pool, SyncState};
use terrane_device::Device;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::label::{ANCHORS, Label};
use terrane_format::uberblock::Uberblock;
use terrane_store::PoolError;
use terrane_wire::Txg;

impl Pool {
    /// Appends the uberblock of a committed group to the anchors of every device; durable when it returns.
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
        let mut last_error = None;
        let mut taken = 0;
        for anchor in &mut st.anchors {
            let Some(row) = label.member(anchor.device) else { continue };
            let device = self.store.devices.get(anchor.device)?;
            match anchor.write(device.as_ref(), (&label, row), &uber) {
                Ok(bytes) => {
                    taken += 1;
                    self.store.counters.spend_on_anchors(bytes);
                    anchor.trouble = None;
                }
                Err(error) => {
                    if anchor.trouble.is_none() {
                        log::error!("{}: it takes no uberblock: {error}; the others do", device.info().name);
                    }
                    anchor.trouble = Some(error.to_string());
                    last_error = Some(error);
                }
            }
        }
        if taken == 0 {
            let none = PoolError::Failed { reason: "no device has an anchor".into() };
            return Err(last_error.map_or(none, PoolError::from));
        }
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
            oldest: self.rollback_to(st, txg),
            time_ns: self.env.wall_ns(),
            lease_seq: st.alloc.lease_seq,
            lease_txg: st.lease_txg,
            record,
            host: self.env.host_id(),
        }
    }

    /// Writes the label anew, as it is in memory, to both anchors of every device: when this returns no import can be led by an
    /// older one. Who changed it has raised its generation. The groups that can be rolled back to are told again behind it: what the
    /// anchors had of them is gone.
    pub(crate) fn relabel(&self, st: &mut SyncState) -> Result<(), PoolError> {
        let Some(last) = st.chain.back().map(|last| (last.txg, last.ptr)) else {
            return Err(PoolError::Failed { reason: "there is no commit record".into() });
        };
        for _ in 0..ANCHORS {
            // The anchors in use have the old label: on to the others.
            st.anchors.iter_mut().for_each(|anchor| anchor.offset = 0);
            self.write_uberblock(st, last.0, last.1, false)?;
        }
        self.tell_history(st, last.0);
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
            for anchor in &mut st.anchors {
                let (Some(row), Ok(device)) =
                    (label.member(anchor.device), self.store.devices.get(anchor.device))
                else {
                    continue;
                };
                match anchor.append(device.as_ref(), (&label, row), &uber) {
                    Some(Ok(bytes)) => self.store.counters.spend_on_anchors(bytes),
                    Some(Err(error)) => {
                        log::warn!("{}: {error}; group {txg} is not told of", device.info().name)
                    }
                    None => {}
                }
            }
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
