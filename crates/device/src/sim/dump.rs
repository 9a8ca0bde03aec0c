//! A device as bytes, to examine the result of a crash with the ordinary commands.
//!
//! Little-endian: magic; write unit u32; zone count u32; zone size u64; maximum open and active zones u32; hardware
//! pointers u8; name (length, bytes). Then for each zone: capacity u64, pointer u64, state u8, count of chunks, and
//! each chunk as number, length and bytes. Numbers, counts and lengths are varints. It is a tool for tests and not a
//! stable format.

use super::image::{CHUNK_BYTES, Image};
use super::{DurableZone, SimDevice};
use crate::zone::{DeviceInfo, DeviceKind, ZoneState};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use terrane_wire::{Corrupt, Reader, Truncated, Writer, ZoneIdx};

const MAGIC: [u8; 8] = *b"TERRSIM1";
/// Minimum size of a zone in a dump, in bytes.
const ZONE_BYTES_MIN: usize = 8 + 8 + 1 + 1;

const STATES: [ZoneState; 6] = [
    ZoneState::Empty,
    ZoneState::Open,
    ZoneState::Full,
    ZoneState::ReadOnly,
    ZoneState::Offline,
    ZoneState::Unknown,
];

impl SimDevice {
    /// The content that reads see, with states and pointers, as if all of it had been flushed. Faults and the random
    /// state are not in it.
    pub fn dump(&self) -> Vec<u8> {
        let medium = self.medium();
        let info = &self.0.info;
        let mut w = Writer::new();
        w.bytes(&MAGIC);
        w.u32(info.write_unit);
        w.u32(info.zone_count);
        w.u64(info.zone_size);
        w.u32(info.max_open);
        w.u32(info.max_active);
        w.u8(u8::from(info.hardware_pointers));
        w.varint(info.name.len() as u64);
        w.bytes(info.name.as_bytes());
        for (report, image) in self.reports().iter().zip(&medium.current) {
            w.u64(report.capacity);
            w.u64(report.pointer);
            w.u8(STATES.iter().position(|state| *state == report.state).unwrap_or(0) as u8);
            w.varint(image.chunks().len() as u64);
            for (number, bytes) in image.chunks() {
                w.varint(number);
                w.varint(bytes.len() as u64);
                w.bytes(bytes);
            }
        }
        w.into_bytes()
    }

    /// Loads a device from a [`dump`](Self::dump), as if it was just switched on. Without hardware pointers, its
    /// healthy zones are in state unknown.
    ///
    /// # Errors
    /// Bytes that `dump` cannot have written are refused with the first finding.
    pub fn load(raw: &[u8]) -> Result<SimDevice, Corrupt> {
        let mut r = Reader::new(raw);
        let short =
            |t: Truncated| Corrupt::new("simulated device", "length", "enough for what it announces", t);
        let wrong =
            |what, expected: String, found: String| Corrupt::new("simulated device", what, expected, found);
        let magic: [u8; 8] = r.array().map_err(short)?;
        if magic != MAGIC {
            return Err(wrong("magic", format!("{MAGIC:?}"), format!("{magic:?}")));
        }
        let (write_unit, zone_count) = (r.u32().map_err(short)?, r.u32().map_err(short)?);
        let zone_size = r.u64().map_err(short)?;
        let (max_open, max_active) = (r.u32().map_err(short)?, r.u32().map_err(short)?);
        let hardware_pointers = match r.u8().map_err(short)? {
            0 => false,
            1 => true,
            other => return Err(wrong("hardware pointers", "0 or 1".into(), other.to_string())),
        };
        if !write_unit.is_power_of_two() || write_unit < 4096 {
            return Err(wrong(
                "write unit",
                "a power of two of at least 4096".into(),
                write_unit.to_string(),
            ));
        }
        let unit = u64::from(write_unit);
        // A bound on every offset below, so that their sums cannot overflow.
        if zone_size == 0 || !zone_size.is_multiple_of(unit) || zone_size > 1 << 48 {
            return Err(wrong(
                "zone size",
                format!("a multiple of {unit} up to 2^48"),
                zone_size.to_string(),
            ));
        }
        let name = String::from_utf8_lossy(r.blob().map_err(short)?).into_owned();
        let zones_max = r.remaining() / ZONE_BYTES_MIN;
        if zone_count == 0 || zone_count as usize > zones_max {
            return Err(wrong("zone count", format!("1 to {zones_max}"), zone_count.to_string()));
        }
        let mut zones = Vec::with_capacity(zone_count as usize);
        for zone in (0..zone_count).map(ZoneIdx) {
            let read =
                load_zone(&mut r, zone_size, unit).map_err(|e| e.within(format_args!("zone {zone}")))?;
            zones.push(read);
        }
        if !r.is_empty() {
            return Err(wrong("end", "nothing more".into(), format!("{} bytes", r.remaining())));
        }
        if !hardware_pointers {
            for (_, durable_zone) in &mut zones {
                if !matches!(durable_zone.state, ZoneState::ReadOnly | ZoneState::Offline) {
                    durable_zone.state = ZoneState::Unknown;
                    durable_zone.pointer = 0;
                }
            }
        }
        let info = DeviceInfo {
            name,
            kind: DeviceKind::Simulator,
            write_unit,
            zone_count,
            zone_size,
            max_open,
            max_active,
            hardware_pointers,
        };
        let device = Self::assemble(info, false, zones, 0);
        device.check().map_err(|found| wrong("zones", "states that fit their pointers".into(), found))?;
        Ok(device)
    }

    /// Writes the content that reads see to a new sparse file, zone after zone. The file can be opened as a
    /// [`FileDevice`](crate::FileDevice).
    pub fn export_raw(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let medium = self.medium();
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let size =
            self.0.info.zone_size.checked_mul(u64::from(self.0.info.zone_count)).ok_or_else(too_large)?;
        file.set_len(size)?;
        for (zone, image) in medium.current.iter().enumerate() {
            let start = zone as u64 * self.0.info.zone_size;
            for (number, bytes) in image.chunks() {
                file.write_all_at(bytes, start + number * CHUNK_BYTES)?;
            }
        }
        file.sync_all()
    }
}

fn load_zone(r: &mut Reader, zone_size: u64, unit: u64) -> Result<(u64, DurableZone), Corrupt> {
    let short = |t: Truncated| Corrupt::new("", "length", "enough for what it announces", t);
    let (capacity, pointer) = (r.u64().map_err(short)?, r.u64().map_err(short)?);
    if capacity == 0 || capacity > zone_size || !capacity.is_multiple_of(unit) {
        return Err(Corrupt::new(
            "",
            "capacity",
            format_args!("a multiple of {unit} up to {zone_size}"),
            capacity,
        ));
    }
    let state = r.u8().map_err(short)?;
    let Some(&state) = STATES.get(usize::from(state)) else {
        return Err(Corrupt::new("", "state", "0 to 5", state));
    };
    let mut image = Image::default();
    let mut next = 0;
    // A chunk takes at least its number, its length and one byte.
    for _ in 0..r.count(3).map_err(short)? {
        let number = r.varint().map_err(short)?;
        let bytes = r.blob().map_err(short)?;
        let bytes_max = number.checked_mul(CHUNK_BYTES).and_then(|start| zone_size.checked_sub(start));
        let bytes_max = bytes_max.unwrap_or(0).min(CHUNK_BYTES);
        if number < next || bytes.is_empty() || bytes.len() as u64 > bytes_max {
            let expected = format_args!("from {next}, with 1 to {bytes_max} bytes").to_string();
            return Err(Corrupt::new("", "chunk", expected, format_args!("{number} with {}", bytes.len())));
        }
        image.write(number * CHUNK_BYTES, bytes);
        next = number + 1;
    }
    Ok((capacity, DurableZone { image: Arc::new(image), state, pointer }))
}
