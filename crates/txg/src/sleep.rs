//! Unreadable zones sleep. They wake when their pause is over, or when their device can be read again.

use crate::admission::Admission;
use crate::collector::Collector;
use crate::unread::SECOND_NS;
use terrane_format::rows::Phase;
use terrane_store::zone_store::ZoneStore;
use terrane_wire::{DeviceIdx, ZoneSeq};

impl Collector {
    /// A zone could not be read. Until it is tried again, no space is expected from its reset.
    pub fn put_to_sleep(&mut self, store: &ZoneStore, seq: ZoneSeq, now_ns: u64) {
        let Some(home) = store.tables.read().zones.get(&seq).map(|zone| zone.replicas().first()) else {
            return;
        };
        let (pause_ns, rest_ns) = self.unread.note_failure(seq, home.device, now_ns);
        store.tables.write().set_unreadable(seq, true);
        log::warn!("zone {seq}, {home} unreadable: retried in {} s", pause_ns / SECOND_NS);
        if let Some(rest_ns) = rest_ns {
            log::error!(
                "device {} degraded: several zones unreadable within a minute, GC rests there for {} s",
                home.device,
                rest_ns / SECOND_NS
            );
        }
    }

    /// A zone was read, so its device is readable.
    pub fn was_read(&mut self, admission: &Admission, seq: ZoneSeq) {
        let Some(home) = admission.store.tables.read().zones.get(&seq).map(|zone| zone.replicas().first())
        else {
            return;
        };
        let awake = self.unread.note_success(seq, home.device);
        if !awake.is_empty() {
            log::info!("device {} recovered: zones can be read again, GC resumes there", home.device);
        }
        self.wake(admission, awake);
    }

    /// Whether GC rests on the zone's device. If so, the zone sleeps as long as the device rests.
    pub fn rests_with(&mut self, store: &ZoneStore, seq: ZoneSeq, device: DeviceIdx, now_ns: u64) -> bool {
        let unread = &mut self.unread;
        let rests = unread.is_resting(device, now_ns);
        if rests {
            unread.postpone(seq, device);
            store.tables.write().set_unreadable(seq, true);
        }
        rests
    }

    /// Makes zones that slept candidates again.
    pub fn wake(&mut self, admission: &Admission, zones: Vec<ZoneSeq>) {
        if zones.is_empty() {
            return;
        }
        let mut tables = admission.store.tables.write();
        for seq in zones {
            tables.set_unreadable(seq, false);
            if tables.zones.get(&seq).is_some_and(|zone| zone.phase == Phase::Suspect) {
                self.to_recheck.insert(seq);
            }
            self.update_zone(&tables, seq, admission.zone_yield());
        }
    }
}
