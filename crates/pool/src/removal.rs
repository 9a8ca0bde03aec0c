//! Removal of a device.
//!
//! First the label says that the device leaves. From then on no zone is opened there, and its open zones are
//! closed. Each txg moves a piece of its live blocks, even if that gives no space.
//!
//! When a commit record says that its last zone was reset, no txg that could be imported needs the device.
//! Then the labels of all other devices drop it, and its own anchors are wiped. Only the label records the
//! removal, so it continues after a crash or an export.
//!
//! The device's index stays unused: rows of reclaimed zones still name it.
//!
//! Invariant: a label without the device is written only if no row of the committed tables lies there.

use crate::pool::TxgSync;
use crate::pool::{Pool, SyncState};
use std::sync::Arc;
use terrane_device::Device;
use terrane_format::label::{DeviceRow, DeviceState, Role};
use terrane_format::rows::Phase;
use terrane_space::zones::Tables;
use terrane_store::PoolError;
use terrane_wire::{DeviceIdx, ZoneSeq};

/// Txgs that move nothing, after which the caller stops waiting for a removal.
const STUCK_TXGS_MAX: u32 = 64;
/// Txgs in which reserved bytes may be written before a device leaves.
const RESERVATION_TXGS: u32 = 8;

impl Pool {
    /// Moves all live blocks of a device to the others and drops it from the pool. `report` gets the bytes that
    /// have left, and a lower bound of the total; other blocks may die there meanwhile. On return the device
    /// belongs to the caller.
    ///
    /// # Errors
    /// `ReadOnly`; `Refused` if there is no such device, none for data would remain, or the others cannot
    /// hold the live bytes. Also `Refused` if nothing moves any more. Then the removal goes on in the
    /// background, and a further call waits for it again.
    pub fn remove_device(
        self: &Arc<Self>,
        device: DeviceIdx,
        report: &mut dyn FnMut(u64, u64),
    ) -> Result<(), PoolError> {
        self.begin_removal(device)?;
        let (mut most, mut idle, mut before) = (0, 0, (u64::MAX, u64::MAX));
        while self.label().member(device).is_some() {
            let left = self.remaining_on(device);
            most = left.1.max(most);
            report(most - left.1, most);
            idle = if left < before { 0 } else { idle + 1 };
            before = left;
            if idle > STUCK_TXGS_MAX {
                let found = format!("{} zones with {} live bytes that do not move", left.0, left.1);
                let remedy = "free space, or see `terrane check`; the removal continues in the background";
                return Err(PoolError::refused(
                    format_args!("device {device}"),
                    "no zones in use",
                    found,
                    remedy,
                ));
            }
            self.commit_txg(self.admission.open())?;
        }
        Ok(())
    }

    /// Whether a device takes no new blocks, because it leaves.
    pub fn is_leaving(&self, device: DeviceIdx) -> bool {
        self.store.devices.is_leaving(device)
    }

    /// Zones that hold something on a device, and their live bytes.
    fn remaining_on(&self, device: DeviceIdx) -> (u64, u64) {
        let tables = self.store.tables.read();
        let on_device = tables.zones.values().filter(|zone| zone.is_on(device));
        on_device.fold((0, 0), |(zones, bytes), zone| (zones + 1, bytes + zone.live))
    }

    /// Marks the device as leaving, once the others have space for its live blocks and for earlier
    /// reservations.
    fn begin_removal(self: &Arc<Self>, device: DeviceIdx) -> Result<(), PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        for _ in 0..RESERVATION_TXGS {
            let mut st = self.sync.lock();
            self.reports.check_running()?;
            if self.is_leaving(device) {
                return Ok(());
            }
            if self.label().member(device).is_none() {
                let (found, pool) = (format!("device {device}"), format!("pool {}", self.name()));
                let remedy = "see `terrane pool status`";
                return Err(PoolError::refused(pool, "one of its devices", found, remedy));
            }
            // Free space is counted without the device, so operations that join from now on count on the
            // others alone.
            self.store.devices.withhold(device);
            self.publish(&st);
            if let Err(error) = self.validate_removal(&st, device) {
                self.store.devices.cancel_removal(device);
                self.publish(&st);
                return Err(error);
            }
            let account = self.admission.account(&st);
            if self.admission.reserved() + account.internal_reserve() <= account.physical_free() {
                return self.mark_leaving(&mut st, device);
            }
            drop(st);
            self.commit_txg(self.admission.open())
                .inspect_err(|_| self.store.devices.cancel_removal(device))?;
        }
        let st = self.sync.lock();
        let account = self.admission.account(&st);
        let (free_bytes, kept) = (account.physical_free(), account.internal_reserve());
        self.store.devices.cancel_removal(device);
        self.publish(&st);
        let remedy = "free space with `terrane pool gc`, or retry when less is written";
        let expected = "space on the other devices for pending writes";
        let found = format!("{free_bytes} bytes, {kept} of them reserved for commits and GC");
        Err(PoolError::refused(format_args!("device {device}"), expected, found, remedy))
    }

    fn mark_leaving(&self, st: &mut SyncState, device: DeviceIdx) -> Result<(), PoolError> {
        self.store.devices.mark_leaving(device);
        {
            let mut label = self.membership.label_mut();
            label.generation += 1;
            if let Some(Some(row)) = label.devices.get_mut(usize::from(device.0)) {
                row.state = DeviceState::Leaving;
            }
        }
        self.relabel(st).inspect_err(|error| self.fail(error))?;
        st.alloc.drop_device(device);
        st.collector.drop_device(&self.store.tables.read(), device);
        self.publish(st);
        log::info!("pool {}: removal of device {device} started", self.name());
        Ok(())
    }

    fn validate_removal(&self, st: &SyncState, device: DeviceIdx) -> Result<(), PoolError> {
        let label = self.label();
        let pool = format!("pool {}", label.name);
        let remains =
            |(index, row): &(DeviceIdx, &DeviceRow)| *index != device && row.state == DeviceState::Normal;
        if !label.members().any(|member| remains(&member) && member.1.role == Role::Data) {
            let remedy = "add a data device first";
            return Err(PoolError::refused(pool, "another data device", "none", remedy));
        }
        let tables = self.store.tables.read();
        let free_bytes = self.admission.account_of(&tables, st).user_capacity();
        if tables.live > free_bytes {
            let expected = format!("{} bytes of space on other devices", tables.live);
            let remedy = "delete something, or add a device first";
            return Err(PoolError::refused(pool, expected, format_args!("{free_bytes} bytes"), remedy));
        }
        Ok(())
    }

    /// Drops leaving devices that are empty. It is called when a txg is durable, before emptied zones are
    /// reset. So earlier resets are in the txg's record.
    pub(crate) fn detach_empty_devices(&self, st: &mut SyncState) -> Result<(), PoolError> {
        let label = self.label();
        for (device, _) in label.members().filter(|(device, _)| self.is_leaving(*device)) {
            if self.remaining_on(device).0 > 0 || st.alloc.has_lent_on(device) {
                continue;
            }
            {
                let mut label = self.membership.label_mut();
                label.generation += 1;
                if let Some(row) = label.devices.get_mut(usize::from(device.0)) {
                    *row = None;
                }
            }
            st.commit_point.remove_device(device);
            // Tables of earlier txgs name the device, so no rollback to them is possible without it.
            if let Some(newest) = st.history.drop_rollback_txgs() {
                log::info!("rollback txgs before {newest} dropped: they need device {device}");
            }
            self.relabel(st)?;
            if let Some(detached) = self.store.devices.detach(device)
                && let Err(error) =
                    st.commit_point.erase_labels(detached.as_ref()).map(|()| detached.unlock())
            {
                log::warn!("{}: wiping the labels failed: {error}", detached.info().name);
            }
            log::info!("pool {}: device {device} removed", label.name);
        }
        Ok(())
    }
}

impl TxgSync<'_> {
    /// Closes open zones on leaving devices, before anything is appended to them.
    pub(crate) fn close_leaving(&mut self) -> Result<(), PoolError> {
        if !self.pool.store.devices.any_leaving() {
            return Ok(());
        }
        for slot in 0..self.st.streams.layout().slots() {
            let pinned = self.st.streams.zone_of(slot).and_then(|seq| self.pool.store.pin(seq));
            if pinned.is_some_and(|pinned| self.pool.store.devices.any_on_leaving(&pinned.replicas)) {
                self.st.streams.close_slot(slot, self.txg)?;
            }
        }
        // One txg follows the other until the devices are gone.
        self.pool.admission.want_another_txg();
        Ok(())
    }
}

/// The full zone with the least live bytes on a leaving device, without those for which `but` is true.
pub(crate) fn leaving_zone(pool: &Pool, tables: &Tables, but: &dyn Fn(ZoneSeq) -> bool) -> Option<ZoneSeq> {
    let leaving = tables.zones.iter().filter(|(seq, zone)| {
        zone.phase == Phase::Full && pool.store.devices.any_on_leaving(&zone.replicas()) && !but(**seq)
    });
    leaving.min_by_key(|(_, zone)| zone.live).map(|(seq, _)| *seq)
}
