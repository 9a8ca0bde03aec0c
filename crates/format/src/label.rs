//! Labels: how a pool is found.
//!
//! Nothing is written in place, not even the root. Zones 0 and 1 of each device are its *anchor zones*. The anchor in use begins with
//! the *label*: the identity of the pool, its devices and features. Then one uberblock per committed txg is appended. When an anchor is
//! full, the other one is reset, gets the label, and takes over.
//!
//! Every filling of an anchor has an *anchor generation*, one more than the one before. It is part of every seal, so a slot that
//! survived from an earlier generation never validates. Without a hardware pointer both anchors are read whole, never searched.
//!
//! Invariant: at every moment one anchor holds a valid label and the newest committed uberblock.

use crate::addr::ZONE_BYTES_MAX;
use crate::block_ptr::BLOCK_BYTES_MAX;
use crate::features::{Feature, FeatureState, Features};
use crate::seal::{Seed, seal};
use crate::uberblock::{COUNTER_MAX, UBERBLOCK_COPIES};
use terrane_wire::{Corrupt, DeviceIdx, Reader, Truncated, Writer, layout};

/// `magic` of a [`LabelHead`].
pub const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"TERRLABL");
/// Version of the frame of label and uberblock. Its content is versioned by features.
pub const FORMAT_VERSION: u32 = 1;
/// Anchor zones of each device.
pub const ANCHORS: u32 = 2;
/// Bytes of an anchor that are used at most. Import must read them.
pub const ANCHOR_BYTES_MAX: u64 = 16 << 20;
/// Bytes reserved for the label at the start of an anchor.
pub const LABEL_BYTES: u64 = LABEL_LEN as u64;
const LABEL_LEN: usize = 16 << 10;

/// The largest write unit that a device may have, in bytes.
pub const WRITE_UNIT_MAX: u32 = 1 << 20;

/// Offset of the second copy of the label in an anchor, in bytes. It lies behind the first uberblock, so that a partition table or the
/// like written over the start of the device leaves one copy. An anchor in which it does not fit has one copy.
pub fn second_label_offset(write_unit: u32) -> u64 {
    let unit = u64::from(write_unit);
    LABEL_BYTES.next_multiple_of(unit) + UBERBLOCK_COPIES as u64 * unit.max(4096)
}

/// End of the labels in an anchor, in bytes, including what lies between them.
pub fn labels_end(write_unit: u32) -> u64 {
    second_label_offset(write_unit) + LABEL_BYTES.next_multiple_of(u64::from(write_unit))
}

layout! {
    /// Fixed head of a label. Features, name and device table follow. `FORMAT.md` section "Labels".
    LabelHead, 96 bytes {
        /// [`LABEL_MAGIC`].
        0  magic: u64,
        /// [`FORMAT_VERSION`].
        8  version: u32,
        /// Bytes that follow the head.
        12 body_bytes: u32,
        /// Random id of the pool. A copy of the pool shares it.
        16 pool: u64,
        /// The id of this device in this pool.
        24 device: u64,
        /// Incremented by every change of features or devices. Every uberblock repeats it.
        32 generation: u64,
        /// Number of this filling of an anchor: one more than that of the other anchor.
        40 anchor_generation: u64,
        /// In bytes, at most 4 GiB.
        48 zone_size: u64,
        /// Zones that belong to the pool, anchors included.
        56 zone_count: u32,
        /// In bytes: a power of two, 4 KiB to [`WRITE_UNIT_MAX`].
        60 write_unit: u32,
        /// Stored bytes of the largest block, 256 KiB to 16 MiB.
        64 max_block: u32,
        /// Sections of the zone tables, 1 to 65,536.
        68 sections: u32,
        /// With the feature `org.terrane:identity`: the id that tells the pool from the one it was copied from.
        72 identity: u64,
        /// Over the rest of the head, then the body.
        80 seal: [u8; 16],
    }
}

/// Smallest possible `max_block`, from a zone of the smallest size, in bytes.
const MAX_BLOCK_MIN: u32 = 256 << 10;

/// Most devices that a pool may ever have had, removed ones included.
pub const DEVICES_MAX: usize = 64;
/// Most bytes of a pool's name.
pub const POOL_NAME_BYTES_MAX: usize = 255;
/// Most bytes of a device's name in the label.
pub const DEVICE_NAME_BYTES_MAX: usize = 128;
/// Most cache devices of a pool.
pub const CACHES_MAX: usize = 8;
/// Most log devices of a pool.
pub const LOG_DEVICES_MAX: usize = 4;
/// Most bytes of the feature lists in a label that is read. The features that this version may add take less than 512.
const FEATURE_BYTES_MAX: usize = 3 << 10;
// Rows have 26 bytes, a length and a name, beside the head, the pool's name and its features. So a changed label fits, whatever label
// was read.
const _: () = assert!(
    ((DEVICES_MAX + CACHES_MAX + LOG_DEVICES_MAX) * (28 + DEVICE_NAME_BYTES_MAX)) as u64
        <= LABEL_BYTES * 3 / 4
);
const _: () = assert!((LabelHead::SIZE + 258 + FEATURE_BYTES_MAX + 512) as u64 <= LABEL_BYTES / 4);

/// What a device is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// For all blocks. Metadata prefers special devices.
    #[default]
    Data,
    /// For metadata. Takes data only when no other device has free space.
    Special,
}

/// Whether a device is being removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceState {
    /// It takes new blocks.
    #[default]
    Normal,
    /// It takes nothing new. Its live blocks are moved away, then it is removed.
    Leaving,
}

/// One row of the device table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// Random id of the device.
    pub device: u64,
    /// In bytes.
    pub zone_size: u64,
    /// Anchors included.
    pub zone_count: u32,
    /// In bytes.
    pub write_unit: u32,
    /// What the device is used for.
    pub role: Role,
    /// Whether the device is being removed.
    pub state: DeviceState,
    /// The last known name of the device, to help find it. Empty in a pool that always had one device.
    pub name: String,
}

/// The zone geometry of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// In bytes.
    pub zone_size: u64,
    /// Anchors included.
    pub zone_count: u32,
    /// In bytes.
    pub write_unit: u32,
}

impl DeviceRow {
    /// The row of a device that joins under a new id.
    pub fn of(device: u64, geometry: Geometry, role: Role) -> DeviceRow {
        let Geometry { zone_size, zone_count, write_unit } = geometry;
        DeviceRow {
            device,
            zone_size,
            zone_count,
            write_unit,
            role,
            state: DeviceState::Normal,
            name: String::new(),
        }
    }

    /// Zones for blocks: all but the anchors.
    pub fn block_zones(&self) -> u32 {
        self.zone_count.saturating_sub(ANCHORS)
    }

    /// Records the device's name.
    pub fn set_name(&mut self, name: &str) {
        self.name = truncated_name(name);
    }

    fn has_geometry(&self) -> bool {
        let unit_ok = self.write_unit.is_power_of_two() && (4096..=WRITE_UNIT_MAX).contains(&self.write_unit);
        let size_ok = self.zone_size >= u64::from(self.write_unit) && self.zone_size <= ZONE_BYTES_MAX;
        unit_ok && size_ok && self.zone_count >= ANCHORS
    }
}

/// The end of a name that is too long for the label: the end tells more than the start.
fn truncated_name(name: &str) -> String {
    let from =
        (0..=name.len()).find(|at| name.len() - at <= DEVICE_NAME_BYTES_MAX && name.is_char_boundary(*at));
    from.and_then(|from| name.get(from..)).unwrap_or_default().to_owned()
}

/// A cache device. It holds only copies, so it is not a member of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRow {
    /// Its id.
    pub cache: u64,
    /// In bytes.
    pub zone_size: u64,
    /// The name of the device when it joined, to help find it.
    pub name: String,
}

impl CacheRow {
    /// Records the device's name. Of a long name, only the end is kept.
    pub fn set_name(&mut self, name: &str) {
        self.name = truncated_name(name);
    }
}

/// A log device. It holds only the intent log, so it is not a member of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDeviceRow {
    /// Its id.
    pub device: u64,
    /// In bytes.
    pub zone_size: u64,
    /// The name of the device when it joined, to help find it.
    pub name: String,
}

impl LogDeviceRow {
    /// Records the device's name. Of a long name, only the end is kept.
    pub fn set_name(&mut self, name: &str) {
        self.name = truncated_name(name);
    }
}

/// The identity and configuration of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Part of all seals, so it stays as at the pool's creation. A copy shares it: see [`id`](Label::id).
    pub pool: u64,
    /// Set in a copy that was made a pool of its own.
    pub identity: Option<u64>,
    /// The pool's name: see [`is_pool_name`].
    pub name: String,
    /// Id of the device that carries this label.
    pub device: u64,
    /// Incremented by every change of features or devices.
    pub generation: u64,
    /// Number of this filling of an anchor: one more than that of the other anchor.
    pub anchor_generation: u64,
    /// Zone size of the carrying device, in bytes.
    pub zone_size: u64,
    /// Zones of the carrying device, anchors included.
    pub zone_count: u32,
    /// Write unit of the carrying device, in bytes.
    pub write_unit: u32,
    /// The largest stored block, in bytes.
    pub max_block: u32,
    /// Number of sections of the space tables.
    pub sections: u32,
    /// The features of the pool, known and unknown.
    pub features: Features,
    /// By device index. A removed device leaves a hole, because indexes are never reused.
    pub devices: Vec<Option<DeviceRow>>,
    /// The cache devices, at most [`CACHES_MAX`].
    pub caches: Vec<CacheRow>,
    /// The log devices, at most [`LOG_DEVICES_MAX`].
    pub log_devices: Vec<LogDeviceRow>,
}

/// Whether a name is valid in a path and on a command line.
pub fn is_pool_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let length = 1..=POOL_NAME_BYTES_MAX;
    length.contains(&name.len())
        && name.chars().all(fits)
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn label_seed(pool: u64, device: u64, anchor: u32, anchor_generation: u64) -> Seed {
    Seed { pool, scope: device, offset: u64::from(anchor), incarnation: anchor_generation }
}

impl Label {
    /// The id that tells this pool from all others.
    pub fn id(&self) -> u64 {
        self.identity.unwrap_or(self.pool)
    }

    /// The present devices, with their indexes.
    pub fn members(&self) -> impl Iterator<Item = (DeviceIdx, &DeviceRow)> {
        let rows = (0u16..).zip(&self.devices);
        rows.filter_map(|(index, row)| Some((DeviceIdx(index), row.as_ref()?)))
    }

    /// Whether a device has the role [`Role::Special`].
    pub fn has_special(&self) -> bool {
        self.members().any(|(_, row)| row.role == Role::Special)
    }

    /// Bytes of all zones of all members, and of their anchors alone.
    pub fn device_bytes(&self) -> (u64, u64) {
        let all = |row: &DeviceRow| u64::from(row.zone_count).saturating_mul(row.zone_size);
        let device_bytes = self.members().map(|(_, row)| all(row)).fold(0, u64::saturating_add);
        (device_bytes, device_bytes.saturating_sub(self.block_bytes()))
    }

    /// Bytes of all zones for blocks.
    pub fn block_bytes(&self) -> u64 {
        let bytes = |row: &DeviceRow| u64::from(row.block_zones()).saturating_mul(row.zone_size);
        self.members().map(|(_, row)| bytes(row)).fold(0, u64::saturating_add)
    }

    /// The row of a device. `None`: it was removed, or the table has no such index.
    pub fn member(&self, device: DeviceIdx) -> Option<&DeviceRow> {
        self.devices.get(usize::from(device.0))?.as_ref()
    }

    /// The label as a given device carries it, in an anchor filling of this generation.
    pub fn for_device(&self, row: &DeviceRow, anchor_generation: u64) -> Label {
        Label {
            device: row.device,
            zone_size: row.zone_size,
            zone_count: row.zone_count,
            write_unit: row.write_unit,
            anchor_generation,
            ..self.clone()
        }
    }

    /// The label for the start of anchor number `anchor`, padded to [`LABEL_BYTES`].
    pub fn encode(&self, anchor: u32) -> Vec<u8> {
        let mut body = Writer::new();
        body.blob(self.name.as_bytes());
        for list in
            [&self.features.incompatible, &self.features.read_only_compatible, &self.features.compatible]
        {
            body.varint(list.len() as u64);
            for name in list {
                body.blob(name.as_bytes());
            }
        }
        body.varint(self.devices.len() as u64);
        for row in &self.devices {
            body.u64(row.as_ref().map_or(0, |row| row.device));
            body.u64(row.as_ref().map_or(0, |row| row.zone_size));
            body.u32(row.as_ref().map_or(0, |row| row.zone_count));
            body.u32(row.as_ref().map_or(0, |row| row.write_unit));
        }
        if self.features.is_active(Feature::Devices) {
            for row in &self.devices {
                body.u8(row.as_ref().map_or(0, |row| row.role as u8));
                body.u8(row.as_ref().map_or(0, |row| row.state as u8));
                body.blob(row.as_ref().map_or("", |row| &row.name).as_bytes());
            }
        }
        if self.features.is_active(Feature::Caches) {
            body.varint(self.caches.len() as u64);
            for row in &self.caches {
                body.u64(row.cache);
                body.u64(row.zone_size);
                body.blob(row.name.as_bytes());
            }
        }
        if self.features.state(Feature::LogDevices) != FeatureState::Disabled {
            body.varint(self.log_devices.len() as u64);
            for row in &self.log_devices {
                body.u64(row.device);
                body.u64(row.zone_size);
                body.blob(row.name.as_bytes());
            }
        }
        let mut head = LabelHead {
            magic: LABEL_MAGIC,
            version: FORMAT_VERSION,
            body_bytes: u32::try_from(body.len())
                .expect("names and device table are bounded where they are made"),
            pool: self.pool,
            device: self.device,
            generation: self.generation,
            anchor_generation: self.anchor_generation,
            zone_size: self.zone_size,
            zone_count: self.zone_count,
            write_unit: self.write_unit,
            max_block: self.max_block,
            sections: self.sections,
            identity: self.identity.filter(|_| self.features.is_active(Feature::Identity)).unwrap_or(0),
            seal: [0; 16],
        };
        let seed = label_seed(self.pool, self.device, anchor, self.anchor_generation);
        head.seal = seal(seed, &[&head.encode()[..LabelHead::SIZE - 16], body.as_bytes()]);
        let mut raw = head.encode().to_vec();
        raw.extend_from_slice(body.as_bytes());
        assert!(raw.len() as u64 <= LABEL_BYTES, "names and device table are bounded where they are made");
        raw.resize(LABEL_LEN, 0);
        raw
    }

    /// Validates the first [`LABEL_BYTES`] of an anchor.
    pub fn parse(raw: &[u8], anchor: u32, at: &str) -> Result<Label, Corrupt> {
        let raw = raw.get(..LABEL_LEN).unwrap_or(raw);
        let short = || Corrupt::new(at, "label length", LABEL_BYTES, raw.len());
        let head = LabelHead::decode(raw).ok_or_else(short)?;
        if head.magic != LABEL_MAGIC {
            return Err(Corrupt::new(
                at,
                "label magic",
                format_args!("{LABEL_MAGIC:#x}"),
                format_args!("{:#x}", head.magic),
            ));
        }
        if head.version != FORMAT_VERSION {
            return Err(Corrupt::new(at, "label version", FORMAT_VERSION, head.version));
        }
        let body_bytes = usize::try_from(head.body_bytes).unwrap_or(usize::MAX);
        let end = LabelHead::SIZE.checked_add(body_bytes);
        let body = end.and_then(|end| raw.get(LabelHead::SIZE..end)).ok_or_else(|| {
            let most = raw.len().saturating_sub(LabelHead::SIZE);
            Corrupt::new(at, "bytes of the label's body", format_args!("at most {most}"), body_bytes)
        })?;
        let seed = label_seed(head.pool, head.device, anchor, head.anchor_generation);
        let sealed = raw.get(..LabelHead::SIZE - 16).ok_or_else(short)?;
        if seal(seed, &[sealed, body]) != head.seal {
            return Err(Corrupt::new(at, "label seal", "valid", "a mismatch"));
        }
        let own = DeviceRow {
            device: head.device,
            zone_size: head.zone_size,
            zone_count: head.zone_count,
            write_unit: head.write_unit,
            role: Role::Data,
            state: DeviceState::Normal,
            name: String::new(),
        };
        if !own.has_geometry() || head.sections == 0 || head.sections > 1 << 16 {
            return Err(Corrupt::new(
                at,
                "label geometry",
                "powers of two in range",
                format_args!(
                    "write unit {}, zone size {}, zones {}, sections {}",
                    head.write_unit, head.zone_size, head.zone_count, head.sections
                ),
            ));
        }
        let max_block_ok = (MAX_BLOCK_MIN..=BLOCK_BYTES_MAX).contains(&head.max_block);
        if !max_block_ok || head.anchor_generation >= COUNTER_MAX || head.generation >= COUNTER_MAX {
            return Err(Corrupt::new(
                at,
                "label counters",
                "in range",
                format_args!(
                    "max_block {}, anchor_generation {}, generation {}",
                    head.max_block, head.anchor_generation, head.generation
                ),
            ));
        }
        let Body { name, features, devices, caches, log_devices } = parse_body(body, at)?;
        if !is_pool_name(&name) {
            return Err(Corrupt::new(
                at,
                "pool name",
                "letters, digits and _ - . :",
                format_args!("{name:?}"),
            ));
        }
        validate_devices(&own, &features, &devices, at)?;
        let identity = Some(head.identity).filter(|id| *id != 0 && features.is_active(Feature::Identity));
        Ok(Label {
            pool: head.pool,
            identity,
            name,
            device: head.device,
            generation: head.generation,
            anchor_generation: head.anchor_generation,
            zone_size: head.zone_size,
            zone_count: head.zone_count,
            write_unit: head.write_unit,
            max_block: head.max_block,
            sections: head.sections,
            features,
            devices,
            caches,
            log_devices,
        })
    }
}

/// The device table must be possible, and its row for the carrying device must match the head.
fn validate_devices(
    own: &DeviceRow,
    features: &Features,
    devices: &[Option<DeviceRow>],
    at: &str,
) -> Result<(), Corrupt> {
    let bad = |expected: &str, found: &dyn std::fmt::Display| {
        Err(Corrupt::new(at, "device table of the label", expected, found))
    };
    let max = if features.is_active(Feature::Devices) { DEVICES_MAX } else { 1 };
    if devices.is_empty() || devices.len() > max {
        return bad(&format!("1 to {max} devices"), &devices.len());
    }
    let rows = || devices.iter().flatten();
    if let Some(row) = rows().find(|row| !row.has_geometry()) {
        return bad("zones in range", &format_args!("{row:?}"));
    }
    let is_own = |row: &&DeviceRow| row.device == own.device;
    let same = |row: &DeviceRow| {
        (row.zone_size, row.zone_count, row.write_unit) == (own.zone_size, own.zone_count, own.write_unit)
    };
    if rows().filter(is_own).count() != 1 || !rows().filter(is_own).all(same) {
        return bad("one row for this device, equal to the head", &format_args!("{own:?}"));
    }
    let ids: std::collections::BTreeSet<u64> = rows().map(|row| row.device).collect();
    if ids.len() != rows().count() {
        return bad("devices with different ids", &rows().count());
    }
    Ok(())
}

/// The content behind the head.
struct Body {
    name: String,
    features: Features,
    devices: Vec<Option<DeviceRow>>,
    caches: Vec<CacheRow>,
    log_devices: Vec<LogDeviceRow>,
}

fn parse_body(body: &[u8], at: &str) -> Result<Body, Corrupt> {
    let truncated = |error: Truncated| Corrupt::new(at, "label body", "whole", error);
    let mut raw = Reader::new(body);
    // Strict UTF-8: replacement characters may be longer than the original, and a longer name might not fit a label.
    let text = |raw: &mut Reader<'_>| -> Result<String, Truncated> {
        let bad = Truncated { offset: raw.offset(), needed: 0 };
        String::from_utf8(raw.blob()?.to_vec()).map_err(|_| bad)
    };
    let name = text(&mut raw).map_err(truncated)?;
    let features_start = raw.offset();
    let mut list = || -> Result<Vec<String>, Truncated> {
        let count = raw.count(1)?;
        (0..count).map(|_| text(&mut raw)).collect()
    };
    let mut lists =
        || Ok(Features { incompatible: list()?, read_only_compatible: list()?, compatible: list()? });
    let features = lists().map_err(truncated)?;
    let found = raw.offset() - features_start;
    if found > FEATURE_BYTES_MAX {
        let expected = format_args!("at most {FEATURE_BYTES_MAX}");
        return Err(Corrupt::new(at, "bytes of the label's features", expected, found));
    }
    let count = raw.count(24).map_err(truncated)?;
    let mut row = || -> Result<DeviceRow, Truncated> {
        let (device, zone_size, zone_count, write_unit) = (raw.u64()?, raw.u64()?, raw.u32()?, raw.u32()?);
        let (role, state, name) = (Role::Data, DeviceState::Normal, String::new());
        Ok(DeviceRow { device, zone_size, zone_count, write_unit, role, state, name })
    };
    let mut devices = (0..count).map(|_| row()).collect::<Result<Vec<_>, _>>().map_err(truncated)?;
    if features.is_active(Feature::Devices) {
        for row in &mut devices {
            let (role, state) = (raw.u8().map_err(truncated)?, raw.u8().map_err(truncated)?);
            row.name = text(&mut raw).map_err(truncated)?;
            (row.role, row.state) = match (role, state) {
                (0, 0) => (Role::Data, DeviceState::Normal),
                (0, 1) => (Role::Data, DeviceState::Leaving),
                (1, 0) => (Role::Special, DeviceState::Normal),
                (1, 1) => (Role::Special, DeviceState::Leaving),
                _ => {
                    let found = format_args!("{role} and {state}");
                    return Err(Corrupt::new(at, "role and state of a device", "0 or 1", found));
                }
            };
        }
    }
    let devices: Vec<_> = devices.into_iter().map(|row| (row.device != 0).then_some(row)).collect();
    let mut caches = Vec::new();
    if features.is_active(Feature::Caches) {
        let count = raw.count(17).map_err(truncated)?;
        let mut row = || -> Result<CacheRow, Truncated> {
            Ok(CacheRow { cache: raw.u64()?, zone_size: raw.u64()?, name: text(&mut raw)? })
        };
        caches = (0..count).map(|_| row()).collect::<Result<Vec<_>, _>>().map_err(truncated)?;
        if count > CACHES_MAX {
            let expected = format_args!("at most {CACHES_MAX}");
            return Err(Corrupt::new(at, "cache devices of the label", expected, count));
        }
    }
    let mut log_devices = Vec::new();
    // A version without the feature drops the list when it changes the label. It does that only while the feature is not active.
    if features.state(Feature::LogDevices) != FeatureState::Disabled && !raw.is_empty() {
        let count = raw.count(17).map_err(truncated)?;
        let mut row = || -> Result<LogDeviceRow, Truncated> {
            Ok(LogDeviceRow { device: raw.u64()?, zone_size: raw.u64()?, name: text(&mut raw)? })
        };
        log_devices = (0..count).map(|_| row()).collect::<Result<Vec<_>, _>>().map_err(truncated)?;
        if count > LOG_DEVICES_MAX {
            let expected = format_args!("at most {LOG_DEVICES_MAX}");
            return Err(Corrupt::new(at, "log devices of the label", expected, count));
        }
    }
    let of_members = devices.iter().flatten().map(|row| &row.name);
    let of_others = caches.iter().map(|row| &row.name).chain(log_devices.iter().map(|row| &row.name));
    if let Some(long) = of_members.chain(of_others).find(|name| name.len() > DEVICE_NAME_BYTES_MAX) {
        let expected = format_args!("at most {DEVICE_NAME_BYTES_MAX}");
        return Err(Corrupt::new(at, "bytes of a device's name", expected, long.len()));
    }
    Ok(Body { name, features, devices, caches, log_devices })
}

#[cfg(test)]
mod tests;
