//! Layers over a device: requests that a layer does not handle go to the device below.
//!
//! Only this module forwards every method, so no layer can forget one that is added to [`Device`].

use crate::identity::Identity;
use crate::zone::{Device, DeviceError, DeviceInfo, RequestCounts, ZoneReport};
use std::sync::Arc;
use std::time::Duration;
use terrane_wire::ZoneIdx;

/// A layer's handling of requests. The default of each method passes the request to the device below.
pub trait Layer: Send + Sync {
    /// Handles [`Device::read`]: fills `buf` from `offset` in the zone, in bytes.
    fn on_read(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), DeviceError> {
        below.read(zone, offset, buf)
    }

    /// Handles [`Device::write`] of `data` at `offset` in the zone, in bytes. The device below still enforces the
    /// zone rules.
    fn on_write(
        &self,
        below: &dyn Device,
        zone: ZoneIdx,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        below.write(zone, offset, data)
    }

    /// Handles [`Device::reset`], which empties the zone.
    fn on_reset(&self, below: &dyn Device, zone: ZoneIdx) -> Result<(), DeviceError> {
        below.reset(zone)
    }

    /// Handles [`Device::flush`], the write barrier. A layer that returns `Ok` without the flush below breaks the
    /// crash contract.
    fn on_flush(&self, below: &dyn Device) -> Result<(), DeviceError> {
        below.flush()
    }

    /// Handles [`Device::order`].
    fn on_order(&self, below: &dyn Device) -> Result<(), DeviceError> {
        below.order()
    }
}

/// A device with a layer over it.
pub struct Layered<L> {
    below: Arc<dyn Device>,
    layer: L,
}

impl<L: Layer> Layered<L> {
    /// Puts `layer` over `below`. Requests sent to `below` directly bypass the layer.
    pub fn wrap(below: Arc<dyn Device>, layer: L) -> Layered<L> {
        Layered { below, layer }
    }

    /// The layer itself, such as counters to read. It changes only through interior mutability.
    pub fn layer(&self) -> &L {
        &self.layer
    }
}

impl<L: Layer> Device for Layered<L> {
    fn info(&self) -> &DeviceInfo {
        self.below.info()
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.below.report(zone)
    }

    fn query(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.below.query(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.layer.on_read(&*self.below, zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.layer.on_write(&*self.below, zone, offset, data)
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.layer.on_reset(&*self.below, zone)
    }

    fn reset_for_reuse(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.below.reset_for_reuse(zone)
    }

    fn keep_space(&self) {
        self.below.keep_space();
    }

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.below.finish(zone)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.below.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.layer.on_flush(&*self.below)
    }

    fn order(&self) -> Result<(), DeviceError> {
        self.layer.on_order(self.below.as_ref())
    }

    fn host_free_bytes(&self) -> Option<u64> {
        self.below.host_free_bytes()
    }

    fn identity(&self) -> Option<Identity> {
        self.below.identity()
    }

    fn problem_text(&self) -> Option<String> {
        self.below.problem_text()
    }

    fn requests(&self) -> Option<RequestCounts> {
        self.below.requests()
    }

    fn set_retention(&self, time: Duration) {
        self.below.set_retention(time);
    }

    fn set_request_budget(&self, per_hour: u64) {
        self.below.set_request_budget(per_hour);
    }

    fn may_spend(&self, requests: u64) -> bool {
        self.below.may_spend(requests)
    }

    fn hurry(&self, patience: Duration) {
        self.below.hurry(patience);
    }

    fn set_write_memory(&self, bytes: u64) {
        self.below.set_write_memory(bytes);
    }

    fn newer(&self) -> Result<Option<Arc<dyn Device>>, DeviceError> {
        self.below.newer()
    }

    fn drop_page_cache(&self) {
        self.below.drop_page_cache();
    }

    fn unlock(&self) {
        self.below.unlock();
    }
}
