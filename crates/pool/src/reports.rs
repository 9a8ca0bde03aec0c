//! Error reports of the pool, and their restoration after an import.

use crate::pool::Pool;
use std::collections::BTreeMap;
use std::time::Duration;
use terrane_device::Device;
use terrane_format::directory::Owner;
use terrane_store::PoolError;
use terrane_store::errors::{DeviceErrors, ErrorLog, Errors};
use terrane_store::read_retry::{FailMode, Suspension};
use terrane_wire::{Corrupt, DeviceIdx, Txg};

impl Pool {
    /// What was found, until an administrator clears it.
    pub fn error_log(&self) -> &ErrorLog {
        &self.reports.log
    }

    /// Present content of the error log.
    pub fn errors(&self) -> Errors {
        let counted = self.counted_errors();
        self.reports.log.errors(&counted)
    }

    /// Adds the error log that an earlier import stored. Only the first call does so, because several data
    /// sets may be opened on one pool.
    pub fn load_stored_errors(&self, stored: Errors) {
        self.reports.log.load_stored(stored);
    }

    /// Empties the error log and returns its content. Blocks that are still damaged are logged again when
    /// they are read.
    pub fn clear_errors(&self) -> Errors {
        self.reports.log.clear(self.counted_errors())
    }

    /// Error counts of the devices, since the import.
    fn counted_errors(&self) -> BTreeMap<DeviceIdx, DeviceErrors> {
        let of = |device: &terrane_device::Counted| DeviceErrors::of(&device.counts());
        self.store.devices.all().into_iter().map(|(index, device)| (index, of(&device))).collect()
    }

    /// Reports damage that belongs to no single block.
    pub fn report_damage(&self, corrupt: Corrupt) {
        self.reports.note_damage(corrupt);
    }

    /// Logs that changes of a file are lost, because a structure that they belong to is damaged. `status` can
    /// then name the file.
    pub fn note_lost_changes(&self, owner: Owner, txg: Txg) {
        self.reports.log.note_block(owner, format_args!("changes of txg {txg} lost"));
    }

    /// Refuses if the pool takes no more changes, so that no commit will follow.
    pub fn check_running(&self) -> Result<(), PoolError> {
        self.reports.check_running()
    }

    /// Sets how long object stores keep what processes may need that follow the pool. It is not stored.
    pub fn set_retention(&self, time: Duration) {
        for (_, device) in self.store.devices.all() {
            device.set_retention(time);
        }
    }

    /// Bounds the requests that work in the background may send to object stores, in an hour. 0: they are not bounded. It is not stored.
    pub fn set_request_budget(&self, per_hour: u64) {
        for (_, device) in self.store.devices.all() {
            device.set_request_budget(per_hour);
        }
    }

    /// Takes so many requests from that budget: see [`Device::may_spend`](terrane_device::Device::may_spend).
    pub(crate) fn may_spend(&self, requests: u64) -> bool {
        self.store.devices.all().iter().all(|(_, device)| device.may_spend(requests))
    }

    /// Sets what a failing read does, from the next one on. It is not stored.
    pub fn set_fail_mode(&self, mode: FailMode) {
        self.reports.set_fail_mode(mode);
    }

    /// Why a commit waits for a device, if one does.
    pub fn suspension(&self) -> Option<Suspension> {
        self.reports.suspension().or_else(|| self.store.devices.host().suspension())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use terrane_store::errors::{LossCause, LostFile};

    #[test]
    fn what_is_found_while_the_log_is_cleared_is_in_it_before_or_after() {
        use crate::create::CreateOptions;
        use crate::import::ImportOptions;
        use terrane_device::{SimConfig, SimDevice};
        use terrane_store::env::SeededEnv;
        let device = std::sync::Arc::new(SimDevice::new(SimConfig::default()).unwrap());
        let (create, options) = (CreateOptions::named("toy"), ImportOptions::default());
        let env = std::sync::Arc::new(SeededEnv::new(1));
        let pool = Pool::create(vec![device], &create, env, &options).unwrap();
        let is_over = AtomicBool::new(false);
        let (noted, cleared) = std::thread::scope(|scope| {
            let notes = scope.spawn(|| {
                let file = LostFile { generation: 1, cause: LossCause::ServerKilled };
                let noted = (0..300_000).filter(|n| pool.error_log().note_file((2, *n), file)).count();
                is_over.store(true, Ordering::Release);
                noted
            });
            let mut cleared = 0;
            while !is_over.load(Ordering::Acquire) {
                cleared += pool.clear_errors().files.len();
            }
            (notes.join().unwrap(), cleared + pool.clear_errors().files.len())
        });
        assert_eq!(noted, cleared);
        pool.abandon();
    }
}
