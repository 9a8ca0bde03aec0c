//! The choice of the backend for an open device: zoned drives, or files and conventional devices.

use crate::backing::Backing;
use crate::file::FileDevice;
use crate::zone::{Device, DeviceError};
use crate::zoned::ZonedDevice;
use std::sync::Arc;

impl Backing {
    /// The backend for this device. `zone_size` in bytes is used if it has no zones of its own.
    ///
    /// # Errors
    /// Those of [`ZonedDevice::new`] and [`FileDevice::new`].
    pub fn into_device(self, zone_size: u64) -> Result<Arc<dyn Device>, DeviceError> {
        if self.is_host_managed() {
            Ok(Arc::new(ZonedDevice::new(self)?))
        } else {
            Ok(Arc::new(FileDevice::new(self, zone_size)?))
        }
    }
}
