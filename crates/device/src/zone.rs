//! The trait of all backends, and its terms.
//!
//! A physical zone is *empty*, *open*, *full*, *read-only* or *offline*. Its size is the stride on the device. Its
//! capacity, at most the size, is what can be written. A write may begin only at its *write pointer*, which moves by
//! the bytes written.
//!
//! Two kinds of devices share this trait. Those with *hardware pointers* keep each zone's write pointer themselves,
//! across crashes. The others (files, plain disks, object stores in their way) keep none. After such a device is
//! opened, its zones are in state unknown. The pool knows the pointers from its own tables, and calls
//! [`Device::resume`] or [`Device::reset`].

use crate::identity::Identity;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use terrane_wire::ZoneIdx;

/// What was asked of an object store, repeated attempts included. Stores are paid by the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Objects that were made or replaced.
    pub put: u64,
    /// Their bytes.
    pub put_bytes: u64,
    /// Objects, ranges of objects and lengths of objects that were read.
    pub get: u64,
    /// Their bytes.
    pub get_bytes: u64,
    /// Pages of lists.
    pub list: u64,
    /// Requests that delete, each up to a thousand objects.
    pub delete: u64,
    /// Those among all of these that failed.
    pub failed: u64,
}

impl RequestCounts {
    /// The kinds, by their names in metrics.
    pub fn by_kind(&self) -> [(&'static str, u64); 4] {
        [("put", self.put), ("get", self.get), ("list", self.list), ("delete", self.delete)]
    }
}

/// The kind of a backend, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A regular file, whose zones only [`ZoneRules`](crate::ZoneRules) enforces.
    File,
    /// A conventional block device, whose zones only [`ZoneRules`](crate::ZoneRules) enforces.
    Block,
    /// A host-managed zoned drive, which enforces its zones itself.
    Zoned,
    /// Objects in a bucket of an object store.
    Bucket,
    /// A [`SimDevice`](crate::SimDevice), for tests.
    Simulator,
}

/// Constants of an open device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The path, or another name that an administrator would recognise.
    pub name: String,
    /// The backend that opened the device.
    pub kind: DeviceKind,
    /// Lengths and offsets of writes are multiples of this, in bytes; a power of two, at least 4096.
    pub write_unit: u32,
    /// At least 1. Zones are numbered from 0.
    pub zone_count: u32,
    /// Distance between the starts of two zones, in bytes.
    pub zone_size: u64,
    /// Maximum number of open zones (written and not full); 0 means no limit.
    pub max_open: u32,
    /// Maximum number of zones that are neither empty nor full; 0 means no limit.
    pub max_active: u32,
    /// The device keeps write pointers across a crash. Its conventional zones do not: like all zones of other
    /// devices, they are [`Unknown`](ZoneState::Unknown) at first.
    pub hardware_pointers: bool,
}

/// The state of a zone. Only an empty or open zone can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Nothing was written since the last reset: the pointer is 0.
    Empty,
    /// Written in part: the pointer is below the capacity.
    Open,
    /// Written to its capacity, or finished. Only a reset makes it writable again.
    Full,
    /// Readable, but never written or reset again.
    ReadOnly,
    /// Neither readable nor writable.
    Offline,
    /// The device keeps no pointer for the zone, and [`Device::resume`] has not been called yet.
    Unknown,
}

/// The state of one zone, as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneReport {
    /// The requests that the zone permits, and whether `pointer` has a meaning.
    pub state: ZoneState,
    /// Bytes that can be written to the zone, at most the zone size; a multiple of the write unit.
    pub capacity: u64,
    /// Offset in the zone at which the next write must begin, in bytes; `capacity` if the zone is full. Without
    /// meaning if the state is unknown, read-only or offline.
    pub pointer: u64,
}

/// Why a request to a device failed.
#[derive(Debug)]
pub enum DeviceError {
    /// The medium or the kernel failed. After a failed write, ask for a report: the pointer may have moved.
    Io {
        /// `None` if the request is not for one zone, such as a flush or the opening of the device.
        zone: Option<ZoneIdx>,
        /// Where the request began, in bytes: in the zone, or on the device if `zone` is `None`. 0 if it has no range.
        offset: u64,
        /// The request, for messages: `read`, `write`, `opening`.
        op: &'static str,
        /// The error of the system call. If there was none, its text is the reason.
        source: io::Error,
    },
    /// The host file system that holds the device's file is full. Nothing was done: the same write can be tried
    /// again.
    Full {
        /// The zone of the failed write.
        zone: ZoneIdx,
        /// [`DeviceInfo::name`] of the device.
        name: String,
        /// `ENOSPC` or `EDQUOT`.
        source: io::Error,
    },
    /// The zone's state or pointer does not allow the request. Nothing was done.
    Rule {
        /// The zone of the request; it may be beyond the device's last one.
        zone: ZoneIdx,
        /// The request, for messages: `read`, `write`, `reset`.
        op: &'static str,
        /// The state, pointer or range that the request needs.
        expected: String,
        /// The state, pointer or range of this zone or request.
        found: String,
    },
    /// The device cannot be used at all: wrong kind of file, too small, in use.
    Refused {
        /// Path of the device, or the name of a simulator.
        name: String,
        /// The property that a usable device has.
        expected: String,
        /// The property of this one, or its current user.
        found: String,
        /// An action by which the administrator can make the device usable.
        remedy: &'static str,
    },
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
                "write of zone {zone} failed: the file system that holds {name} is full ({source}); free space there"
            ),
            DeviceError::Rule { zone, op, expected, found } => {
                write!(f, "{op} of zone {zone} refused: expected {expected}, found {found}")
            }
            DeviceError::Refused { name, expected, found, remedy } => {
                write!(f, "{name} refused: expected {expected}, found {found}; {remedy}")
            }
        }
    }
}

impl DeviceError {
    /// The writer of the pool has deleted what a reader needs that is too far behind.
    pub fn is_stale(&self) -> bool {
        matches!(self, DeviceError::Io { source, .. } if source.kind() == io::ErrorKind::StaleNetworkFileHandle)
    }

    /// The device will not be asked again: see [`GivenUp`].
    pub fn is_given_up(&self) -> bool {
        matches!(self, DeviceError::Io { source, .. } if source.get_ref().is_some_and(|inner| inner.is::<GivenUp>()))
    }
}

/// The source of an error of a device that did not answer for as long as [`Device::hurry`] allowed: nothing is read or written any
/// more. Says what the last failure was.
#[derive(Debug)]
pub struct GivenUp(pub String);

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GivenUp {}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DeviceError::Io { source, .. } | DeviceError::Full { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A zoned device. All methods may be called from any thread. The caller orders writes to one zone, and keeps at most
/// one in flight per zone.
///
/// **Crash contract.** A crash may lose all that was written since the last successful [`flush`](Device::flush);
/// flushed data stays. With hardware pointers, each zone then holds a prefix of its unflushed writes. Without them it
/// holds any subset of their write units, one of which may be torn.
pub trait Device: Send + Sync {
    /// Name, geometry and limits, constant while the device is open.
    fn info(&self) -> &DeviceInfo;

    /// The state of one zone.
    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError>;

    /// As [`report`](Device::report), after a query to the medium, whose zones can change by themselves. Drives that
    /// have such a command execute it. No write to the zone may be in flight.
    fn query(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.report(zone)
    }

    /// Reads `buf.len()` bytes at `offset` in the zone. Ranges not written since the last reset hold undefined bytes.
    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data` at the write pointer, which must equal `offset`. Length and offset are multiples of the write
    /// unit, and the end is within the capacity. An empty zone becomes open; a filled one becomes full.
    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Empties the zone: its content is lost and the pointer is 0. A backend on a sparse file also frees the space.
    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError>;

    /// As [`reset`](Device::reset), but may keep the space and the old bytes: a backend that can write a zone anew without
    /// freeing it does that. Blocks that a file system has allocated are written and flushed faster than new ones.
    fn reset_for_reuse(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.reset(zone)
    }

    /// Makes later resets keep their space: for a device whose space was allocated in full. The old content of a
    /// reset zone then stays readable until it is overwritten, as on every device that cannot free space.
    fn keep_space(&self);

    /// Makes the zone full without writing, so it no longer counts as open or active. Finishing a full zone does
    /// nothing.
    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError>;

    /// Sets the write pointer of a zone without a hardware pointer; at the capacity, the zone is full. Returns the
    /// real pointer, which the device may know better.
    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError>;

    /// The write barrier: all that was written before the call survives a crash. A failed flush is final: it is
    /// unknown what reached the medium, so the caller must not continue as if nothing had happened.
    fn flush(&self) -> Result<(), DeviceError>;

    /// A weaker barrier: what was written before the call is durable before what is written after it, but a crash may lose both until
    /// the next [`flush`](Device::flush). Final when it fails, as that is.
    fn order(&self) -> Result<(), DeviceError> {
        self.flush()
    }

    /// Bytes that the host file system can still allocate for a sparse file. `None` if only the zones bound what can
    /// be written.
    fn host_free_bytes(&self) -> Option<u64> {
        None
    }

    /// The file or device of this machine, if the device is one.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// A known problem of the whole device, for messages; `None` if there is none.
    fn problem_text(&self) -> Option<String> {
        None
    }

    /// What was asked of an object store since the device was opened; `None`: the device is none.
    fn requests(&self) -> Option<RequestCounts> {
        None
    }

    /// Content of zones that were reset stays readable for this time to processes that have opened the device read-only, if it
    /// lies in an object store.
    fn set_retention(&self, _time: Duration) {}

    /// Bounds the requests that work in the background may send to an object store, in an hour. 0: they are not bounded.
    fn set_request_budget(&self, _per_hour: u64) {}

    /// Takes so many requests from the budget of work in the background. False: nothing was left, and nothing is taken. More may be
    /// taken than was left.
    fn may_spend(&self, _requests: u64) -> bool {
        true
    }

    /// The pool is being closed. A store that does not answer is waited for no longer than this from now on, and then given up.
    fn hurry(&self, _patience: Duration) {}

    /// Bounds the memory of writes that are under way, in bytes, as far as the device can.
    fn set_write_memory(&self, _bytes: u64) {}

    /// The same device as another process has written it meanwhile, opened read-only. `None`: it is the same, or nobody else can
    /// write it.
    fn newer(&self) -> Result<Option<Arc<dyn Device>>, DeviceError> {
        Ok(None)
    }

    /// Drops clean data of the device from the host's cache, so that later reads come from the medium.
    fn drop_page_cache(&self) {}

    /// Releases the lock, so that other processes may open the device. The caller writes no more and ends soon.
    /// Without a lock, it does nothing.
    fn unlock(&self) {}
}
