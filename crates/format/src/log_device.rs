//! The layout of a log device: its head, and the heads of its zones. FORMAT.md section 5.5.
//!
//! A log device holds batches of the intent log and nothing else. A zone on it is named by the filling that its head has, so an older copy
//! of the device is not taken for the device itself.

use crate::seal::{SEAL_BYTES, Seed, seal};
use terrane_wire::{ZoneIdx, layout};

/// `magic` of a [`LogDeviceHead`].
pub const LOG_DEVICE_MAGIC: u64 = u64::from_le_bytes(*b"TERRLOGD");
/// `magic` of a [`LogZoneHead`].
pub const LOG_ZONE_MAGIC: u64 = u64::from_le_bytes(*b"TERRLOGZ");
const LOG_DEVICE_VERSION: u32 = 1;

layout! {
    /// Begins zone 0 of a log device.
    LogDeviceHead, 64 bytes {
        /// [`LOG_DEVICE_MAGIC`].
        0  magic: u64,
        /// Of this layout: 1.
        8  version: u32,
        /// In bytes.
        12 write_unit: u32,
        /// Id of the pool whose log the device holds.
        16 pool: u64,
        /// The device's id in the label.
        24 device: u64,
        /// In bytes, at most 4 GiB.
        32 zone_size: u64,
        /// Zone 0 included.
        40 zone_count: u32,
        /// Ignored.
        44 reserved: u32,
        /// Over the rest. Scope: the device's id. Offset and incarnation: 0.
        48 seal: [u8; 16],
    }
}

layout! {
    /// Begins a zone that the log has. Batches follow.
    LogZoneHead, 48 bytes {
        /// [`LOG_ZONE_MAGIC`].
        0  magic: u64,
        /// As in the head of the device.
        8  pool: u64,
        /// As in the head of the device.
        16 device: u64,
        /// A random number, which the commit record names.
        24 filling: u64,
        /// Over the rest. Scope: the device's id. Offset: the zone. Incarnation: the filling.
        32 seal: [u8; 16],
    }
}

impl LogDeviceHead {
    /// The head for a device with id `device`, write units, zones of this size, and so many of them.
    pub fn of(pool: u64, device: u64, (write_unit, zone_size, zone_count): (u32, u64, u32)) -> LogDeviceHead {
        let mut head = LogDeviceHead {
            magic: LOG_DEVICE_MAGIC,
            version: LOG_DEVICE_VERSION,
            write_unit,
            pool,
            device,
            zone_size,
            zone_count,
            reserved: 0,
            seal: [0; 16],
        };
        head.seal = head.seal_of_rest();
        head
    }

    fn seal_of_rest(&self) -> [u8; SEAL_BYTES] {
        let raw = self.encode();
        let sealed = raw.split_last_chunk::<SEAL_BYTES>().map_or(&[][..], |(rest, _)| rest);
        seal(Seed { pool: self.pool, scope: self.device, offset: 0, incarnation: 0 }, &[sealed])
    }

    /// Parses the head at the start of a device. `None`: there is none.
    pub fn parse(raw: &[u8]) -> Option<LogDeviceHead> {
        let head = LogDeviceHead::decode(raw)?;
        let is_one = head.magic == LOG_DEVICE_MAGIC && head.version == LOG_DEVICE_VERSION;
        (is_one && head.seal == head.seal_of_rest()).then_some(head)
    }
}

impl LogZoneHead {
    /// The head of `zone` of a device.
    pub fn of((pool, device): (u64, u64), zone: ZoneIdx, filling: u64) -> LogZoneHead {
        let mut head = LogZoneHead { magic: LOG_ZONE_MAGIC, pool, device, filling, seal: [0; 16] };
        head.seal = head.seal_at(zone);
        head
    }

    fn seal_at(&self, zone: ZoneIdx) -> [u8; SEAL_BYTES] {
        let raw = self.encode();
        let sealed = raw.split_last_chunk::<SEAL_BYTES>().map_or(&[][..], |(rest, _)| rest);
        let (scope, offset, incarnation) = (self.device, zone.0.into(), self.filling);
        seal(Seed { pool: self.pool, scope, offset, incarnation }, &[sealed])
    }

    /// Parses the head at the start of `zone`. `None`: there is none.
    pub fn parse(raw: &[u8], zone: ZoneIdx) -> Option<LogZoneHead> {
        let head = LogZoneHead::decode(raw)?;
        (head.magic == LOG_ZONE_MAGIC && head.seal == head.seal_at(zone)).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_valid_only_whole_and_where_they_were_written() {
        let head = LogDeviceHead::of(7, 9, (4096, 1 << 20, 64));
        let raw = head.encode();
        assert_eq!(LogDeviceHead::parse(&raw), Some(head));
        let zone = LogZoneHead::of((7, 9), ZoneIdx(3), 77);
        let zone_raw = zone.encode();
        assert_eq!(LogZoneHead::parse(&zone_raw, ZoneIdx(3)), Some(zone));
        assert_eq!(LogZoneHead::parse(&zone_raw, ZoneIdx(4)), None);
        // All but the ignored field counts, and that lies under the seal.
        for at in 0..raw.len() {
            let mut rotten = raw;
            rotten[at] ^= 1;
            assert_eq!(LogDeviceHead::parse(&rotten), None, "byte {at}");
            assert_eq!(LogDeviceHead::parse(&raw[..at]), None, "cut at {at}");
        }
        for at in 0..zone_raw.len() {
            let mut rotten = zone_raw;
            rotten[at] ^= 1;
            assert_eq!(LogZoneHead::parse(&rotten, ZoneIdx(3)), None, "byte {at}");
            assert_eq!(LogZoneHead::parse(&zone_raw[..at], ZoneIdx(3)), None, "cut at {at}");
        }
    }
}
