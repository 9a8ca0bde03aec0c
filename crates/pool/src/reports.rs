//! What the pool reports of errors, and what it is given back of them after an import.

use crate::pool::Pool;
use crate::state::errors::{DeviceErrors, ErrorLog, Errors};
use std::collections::BTreeMap;
use terrane_wire::{Corrupt, DeviceIdx};

impl Pool {
    pub fn error_log(&self) -> &ErrorLog {
        &self.error_log
    }

    /// What the error log holds now.
    pub fn errors(&self) -> Errors {
        let counted = self.counted_errors();
        self.error_log.held.lock().errors(&counted)
    }

    /// Adds what an earlier import stored of its error log. Only the first call does: several data sets may be opened on one pool.
    pub fn recall_errors(&self, stored: Errors) {
        if !std::mem::replace(&mut self.error_log.held.lock().is_recalled, true) {
            self.error_log.recall(stored);
        }
    }

    /// Empties the error log; returns what was in it. What is still damaged comes back when somebody reads it.
    pub fn clear_errors(&self) -> Errors {
        let counted = self.counted_errors();
        let mut held = self.error_log.held.lock();
        let errors = held.errors(&counted);
        (held.errors, held.counted) = (Errors::default(), counted);
        errors
    }

    /// By the devices themselves, since the import.
    fn counted_errors(&self) -> BTreeMap<DeviceIdx, DeviceErrors> {
        let of = |device: &terrane_device::Counted| DeviceErrors::of(&device.counts());
        self.devices.all().into_iter().map(|(index, device)| (index, of(&device))).collect()
    }

    pub(crate) fn note_checksum_error(&self, device: DeviceIdx) {
        self.counters.checksum_errors.add(1);
        self.error_log.note_checksum(device);
    }

    /// Damage that was found on the way and belongs to no single block.
    pub fn report_damage(&self, corrupt: Corrupt) {
        log::error!("{corrupt}");
        self.error_log.note_finding(corrupt);
    }
}
