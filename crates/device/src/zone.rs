//! The trait every backend implements, and its words.
//!
//! A physical zone is *empty*, *open*, *full*, *read-only* or *offline*. It has a size (the stride on the
//! device) and a capacity (what can be written, at most the size). Its *write pointer* is the only place
//! where a write may begin, and moves by what was written.
//!
//! Two kinds of devices share this trait. Those with a *hardware pointer* remember each zone's write pointer
//! themselves, across crashes. The others (files, plain disks, object stores in their way) remember
//! nothing: after opening such a device its zones are in an unknown state until the pool, which knows from its own
//! tables, calls [`Device::resume`] or [`Device::reset`].

use crate::identity::Identity;
use std::fmt;
use std::io;
use terrane_wire::ZoneIdx;

/// What a backend is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    File,
    Block,
    Zoned,
    Simulator,
}

/// What does not change while a device is open.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The path, or another name a person would recognise.
    pub name: String,
    pub kind: DeviceKind,
    /// Writes are multiples of this many bytes, at offsets that are; a power of two, at least 4096.
    pub write_unit: u32,
    pub zone_count: u32,
    /// Distance between the starts of two zones, in bytes.
    pub zone_size: u64,
    /// The most zones that may be open (written and not full) at once; 0 means no limit.
    pub max_open: u32,
    /// The most zones that may be neither empty nor full at once; 0 means no limit.
    pub max_active: u32,
    /// The device remembers write pointers across a crash. Zones of it that do not (conventional zones of a drive) are in state
    /// [`Unknown`](ZoneState::Unknown) at first, like all zones of other devices.
    pub hardware_pointers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    Empty,
    Open,
    Full,
    /// Can be read, never written or reset again.
    ReadOnly,
    /// Gone.
    Offline,
    /// A zone whose pointer the device does not remember, and has not been told yet: see [`Device::resume`].
    Unknown,
}

/// One zone as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneReport {
    pub state: ZoneState,
    /// Bytes that can be written to the zone, at most the zone size; a multiple of the write unit.
    pub capacity: u64,
    /// Offset in the zone at which the next write must begin, in bytes. Equal to `capacity` when full; without
    /// meaning when the state is unknown, read-only or offline.
    pub pointer: u64,
}

/// Why a device did not do what it was asked.
#[derive(Debug)]
pub enum DeviceError {
    /// The medium or the kernel failed. After a failed write ask for a report: the pointer may have moved.
    Io { zone: Option<ZoneIdx>, offset: u64, op: &'static str, source: io::Error },
    /// The file system that the device's file lies in has no room. Nothing was done: the same write can be tried again.
    Full { zone: ZoneIdx, name: String, source: io::Error },
    /// The zone's state or pointer does not allow the request. Nothing was done.
    Rule { zone: ZoneIdx, op: &'static str, expected: String, found: String },
    /// The device cannot be used at all: wrong kind of file, too small, held by somebody.
    Refused { name: String, expected: String, found: String, remedy: &'static str },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Io { zone: Some(zone), offset, op, source } => {
                write!(f, "{op} of zone {zone} at byte {offset} failed: {source}")
            }
            DeviceError::Io { zone: None, op, source, .. } => write!(f, "{op} failed: {source}"),
            DeviceError::Full { zone, name, source } => write!(
                f,
                "write of zone {zone} failed: the file system that holds {name} is full ({source}); make room there"
            ),
            DeviceError::Rule { zone, op, expected, found } => {
                write!(f, "{op} of zone {zone}: expected {expected}, found {found}")
            }
            DeviceError::Refused { name, expected, found, remedy } => {
                write!(f, "{name}: expected {expected}, found {found}; {remedy}")
            }
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DeviceError::Io { source, .. } | DeviceError::Full { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A zoned device. All methods may be called from any thread; writes to one zone are ordered by the caller,
/// who keeps at most one in flight for each zone.
///
/// What a crash may take: everything written since the last successful [`flush`](Device::flush). With hardware
/// pointers each zone then holds a prefix of what was written to it; without, any subset of its write units,
/// the last one perhaps torn. What was flushed stays.
pub trait Device: Send + Sync {
    fn info(&self) -> &DeviceInfo;

    /// The state of one zone.
    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError>;

    /// The same after asking the medium, which may have changed it by itself: a command of its own where there are commands. Nobody
    /// may write to the zone meanwhile.
    fn ask(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.report(zone)
    }

    /// Fills `buf` from `offset` in the zone. Ranges that were never written since the last reset hold anything.
    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data` at the write pointer, which must be at `offset`; length and offset are multiples of the
    /// write unit, and the end is within the capacity. An empty zone becomes open, a filled one full.
    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Empties the zone: what it held is gone, the pointer is 0, and for backends on sparse files the space is given back.
    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError>;

    /// From now on a reset gives no space back: a device whose space was taken in full beforehand keeps it. What a zone held
    /// then stays readable until it is overwritten, as on every device that cannot give space back.
    fn keep_space(&self);

    /// Makes the zone full without writing: it no longer counts as open or active. Finishing a full zone does nothing.
    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError>;

    /// Tells a device without hardware pointers where a zone's writing goes on: at `pointer`, or nowhere if that is the
    /// capacity. Returns where it really goes on, which a device with hardware pointers knows better.
    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError>;

    /// The barrier: when it returns, everything written before it was called survives a crash. A failed flush is final:
    /// nobody knows what reached the medium, so the caller must not go on as if nothing had happened.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Bytes that can still be written to what was never written or was given back, where that is bounded by something other than the
    /// zones: the file system that holds a sparse file. `None`: nothing else bounds it.
    fn room_below(&self) -> Option<u64> {
        None
    }

    /// Which file or device of this machine it is, where it is one.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// What is wrong with all of it, for people; `None` where nothing is known to be.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// What the host holds of the device in memory, and need not write, is forgotten: what is read next comes from the medium.
    fn forget_cached(&self) {}

    /// Others may open the device from now on: the caller writes no more, and ends soon. Where nothing is held, nothing happens.
    fn unlock(&self) {}
}
