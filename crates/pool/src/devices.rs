//! The devices of a pool, by their index in its label.
//!
//! An index names a device for as long as the pool lives: places, homes and records hold it, so that of a device that was removed is
//! not given to the others. Devices come and go while a pool is mounted, so everybody asks here, each time.

use crate::error::PoolError;
use parking_lot::RwLock;
use std::sync::Arc;
use terrane_device::{Counted, Device};
use terrane_wire::{Corrupt, DeviceIdx};

/// Every device, or the hole that one left.
pub(crate) struct Devices {
    slots: RwLock<Vec<Option<Arc<Counted>>>>,
}

impl Devices {
    pub fn new(devices: Vec<Option<Arc<dyn Device>>>) -> Devices {
        let counted = |device: Arc<dyn Device>| Arc::new(Counted::new(device));
        Devices { slots: RwLock::new(devices.into_iter().map(|device| device.map(counted)).collect()) }
    }

    pub fn get(&self, device: DeviceIdx) -> Result<Arc<Counted>, PoolError> {
        let slots = self.slots.read();
        slots.get(usize::from(device.0)).cloned().flatten().ok_or_else(|| {
            Corrupt::new("zone tables", "device", format_args!("one of {}", slots.len()), device).into()
        })
    }

    /// Those that are there.
    pub fn all(&self) -> Vec<(DeviceIdx, Arc<Counted>)> {
        let slots = self.slots.read();
        let present = (0u16..).zip(slots.iter());
        present.filter_map(|(index, slot)| slot.clone().map(|device| (DeviceIdx(index), device))).collect()
    }

    /// One more, behind all that ever were.
    pub fn push(&self, device: Arc<dyn Device>) {
        self.slots.write().push(Some(Arc::new(Counted::new(device))));
    }

    /// The largest write unit of all: what is written in two copies must be padded alike on every device.
    pub fn write_unit(&self) -> u64 {
        self.all().iter().map(|(_, device)| u64::from(device.info().write_unit)).max().unwrap_or(4096)
    }
}
