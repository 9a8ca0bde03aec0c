//! Adds devices to a pool in use, and reports them.
//!
//! The label lists the devices of a pool, so each change is one of the label. It becomes durable on every
//! anchor, in an order in which every crash leaves a pool that can be imported. A device that joins gets the
//! new label before any other. Without that label, the others are the old pool; with it, no device is
//! missing.

use crate::create::{random_id, validate_device, wipe};
use crate::pool::{Pool, SyncState};
use std::sync::Arc;
use terrane_device::Device;
use terrane_format::features::Feature;
use terrane_format::label::{DEVICES_MAX, DeviceRow, Label, Role};
use terrane_format::record::Home;
use terrane_store::PoolError;
use terrane_store::devices::{geometry, homes, smallest_capacity, takes_writes};
use terrane_txg::members::{DeviceSummary, Member};
use terrane_wire::DeviceIdx;

impl Pool {
    /// Handles of the devices, for reading.
    pub fn device_handles(&self) -> Vec<Arc<dyn Device>> {
        self.store.devices.all().into_iter().map(|(_, device)| device as Arc<dyn Device>).collect()
    }

    /// Figures of each device. While a txg syncs, they are as of before it.
    pub fn members(&self) -> Vec<Member> {
        let label = self.label();
        if let Some(st) = self.sync.try_lock() {
            self.publish_device_summaries(&st);
        }
        let summaries = self.membership.summaries();
        let tables = self.store.tables.read();
        let member = |(index, row): (DeviceIdx, &DeviceRow)| {
            let resident = || tables.zones.values().filter(move |zone| zone.is_on(index));
            let summary =
                summaries.iter().find(|summary| summary.device == index).cloned().unwrap_or_default();
            let known = self.store.devices.get(index).map(|device| device.info().name.clone());
            Member {
                index,
                id: row.device,
                name: known.unwrap_or_else(|_| row.name.clone()),
                role: row.role,
                state: row.state,
                zone_size: row.zone_size,
                zones: u64::from(row.block_zones()),
                zones_empty: summary.zones_empty,
                zones_used: resident().count() as u64,
                live_bytes: resident().map(|zone| zone.live).sum(),
                uberblock_error: summary
                    .uberblock_error
                    .or_else(|| self.store.devices.get(index).ok()?.problem_text()),
            }
        };
        label.members().map(member).collect()
    }

    /// Publishes figures for status queries, so that these do not wait for the sync lock. A sync may wait for
    /// a device.
    pub(crate) fn publish_device_summaries(&self, st: &SyncState) {
        let summary = |(device, uberblock_error)| DeviceSummary {
            device,
            zones_empty: st.alloc.empty_on(device) as u64,
            uberblock_error,
        };
        self.membership.set_summaries(st.commit_point.devices().into_iter().map(summary).collect());
    }

    /// Adds a device, whose content is lost; returns its index. Its zones can be written on return.
    ///
    /// # Errors
    /// * `ReadOnly`.
    /// * `Refused`, with the device's name, if the device or its zones are too small for the pool. Also if
    ///   the pool has had [`DEVICES_MAX`] devices.
    /// * `Device` if the new device cannot be written: the pool is unchanged.
    /// * `Failed` if the pool's own devices could not be written: it takes no changes until an import, which
    ///   may find the new device or not.
    pub fn add_device(self: &Arc<Self>, device: Arc<dyn Device>, role: Role) -> Result<DeviceIdx, PoolError> {
        if self.read_only {
            return Err(PoolError::ReadOnly);
        }
        self.validate_new_device(device.as_ref())?;
        // Done before the lock is taken: it may take long, and touches nothing of the pool.
        wipe(device.as_ref())?;
        let mut st = self.sync.lock();
        self.reports.check_running()?;
        let label = self.label_with(device.as_ref(), role)?;
        let index = DeviceIdx((label.devices.len() - 1) as u16);
        if let Err(error) = self.write_first_label(&mut st, index, device.as_ref(), &label) {
            // Part of the new label may lie on the device, and look like the newest of the pool. A higher
            // generation on our devices supersedes it.
            self.membership.label_mut().generation = label.generation + 1;
            self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
            return Err(error);
        }
        let zone_count = device.info().zone_count;
        let block_zones = label.member(index).map_or(0, DeviceRow::block_zones);
        *self.membership.label_mut() = label;
        let usable: Vec<Home> =
            homes(index, zone_count).filter(|home| takes_writes(device.as_ref(), home.zone)).collect();
        self.store.devices.push(device);
        self.relabel(&mut st).inspect_err(|error| self.fail(error))?;
        st.alloc.add_device(index, role == Role::Special, block_zones);
        usable.into_iter().for_each(|home| st.alloc.put_unclean(home));
        st.streams.set_unit(self.store.devices.write_unit());
        if role == Role::Special {
            st.streams.separate_metadata();
        }
        self.membership.put_in_force(std::iter::once(Feature::Devices));
        self.publish(&st);
        log::info!(
            "pool {}: device {index} added: {}",
            self.name(),
            self.store.devices.get(index)?.info().name
        );
        Ok(index)
    }

    fn validate_new_device(&self, device: &dyn Device) -> Result<(), PoolError> {
        let info = device.info();
        validate_device(info)?;
        let (needed, capacity) = (4 * u64::from(self.max_block()), smallest_capacity(device));
        if capacity >= needed {
            return Ok(());
        }
        Err(PoolError::refused(
            &info.name,
            format_args!("zones of at least {needed} bytes, four times the largest block of this pool"),
            format_args!("zones of {capacity} bytes"),
            "use another device, or larger zones",
        ))
    }

    /// The label with one more device.
    fn label_with(&self, device: &dyn Device, role: Role) -> Result<Label, PoolError> {
        let mut label = self.label();
        if label.devices.len() >= DEVICES_MAX {
            let found = format!("{} already, removed ones included", label.devices.len());
            let expected = format!("at most {DEVICES_MAX} devices");
            let remedy = "copy the data into a new pool";
            return Err(PoolError::refused(format_args!("pool {}", label.name), expected, found, remedy));
        }
        label.features.enable(Feature::Devices);
        label.generation += 1;
        for (index, member) in self.store.devices.all() {
            if let Some(Some(row)) = label.devices.get_mut(usize::from(index.0)) {
                row.set_name(&member.info().name);
            }
        }
        let mut row = DeviceRow::of(random_id(self.env.as_ref()), geometry(device.info()), role);
        row.set_name(&device.info().name);
        label.devices.push(Some(row));
        Ok(label)
    }

    /// Writes the new label and the newest txg durably to the joining device, before any other device gets
    /// the label.
    fn write_first_label(
        &self,
        st: &mut SyncState,
        index: DeviceIdx,
        device: &dyn Device,
        label: &Label,
    ) -> Result<(), PoolError> {
        let no_record = || PoolError::Failed { reason: "there is no commit record".into() };
        let (txg, record) = st.history.last().ok_or_else(no_record)?;
        let uber = self.uberblock(st, label, txg, record, false);
        st.commit_point.add_device(index, device, label, &uber)
    }
}
