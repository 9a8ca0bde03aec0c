//! Places of zones on devices.

use terrane_wire::{DeviceIdx, Reader, Truncated, Writer, ZoneIdx};

/// The physical zone that holds a logical one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Home {
    /// Index in the label's device table.
    pub device: DeviceIdx,
    /// The physical zone on the device.
    pub zone: ZoneIdx,
}

impl std::fmt::Display for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {} zone {}", self.device, self.zone)
    }
}

/// Writes a physical zone.
pub fn put_home(out: &mut Writer, home: Home) {
    out.u16(home.device.0);
    out.varint(u64::from(home.zone.0));
}

/// Reads a physical zone. Whether it exists is not checked.
pub fn get_home(raw: &mut Reader<'_>) -> Result<Home, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    let device = DeviceIdx(raw.u16()?);
    Ok(Home { device, zone: ZoneIdx(u32::try_from(raw.varint()?).map_err(|_| bad)?) })
}

/// A list of replicas. Mirrors will have more than one.
pub(crate) fn put_homes(out: &mut Writer, home: Home) {
    out.u8(1);
    put_home(out, home);
}

/// More than one replica is an unknown feature.
pub(crate) fn get_homes(raw: &mut Reader<'_>) -> Result<Home, Truncated> {
    let bad = Truncated { offset: raw.offset(), needed: 0 };
    if raw.u8()? != 1 {
        return Err(bad);
    }
    get_home(raw)
}
