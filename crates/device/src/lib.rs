//! Zones, whatever is below.
//!
//! Everything above this crate sees storage as *zones*: ranges that are written only at their write pointer, in
//! whole write units, and emptied only as a whole. A shingled disk works like that by nature, a plain file or
//! disk because [`ZoneRules`] makes it misbehave exactly like one. So one code path serves them all, and what
//! is tested on a file holds on a drive.
//!
//! Read [`zone`] first (the trait and its words), then [`rules`] (what is allowed when), then the backends:
//! [`backing`], [`mod@file`] and `block` for regular files and conventional block devices (with [`foreign`], which
//! recognises what must not be overwritten, and `holders`, which names who is in the way), [`zoned`] for drives whose zones
//! are their own, [`sim`] for tests;
//! [`layered`] puts something over any of them, and [`counted`] counts so. `local` knows the time of day, `clock` how long something
//! took, `schedule` which thread goes first.
//!
//! Invariant: no backend ever writes below a zone's write pointer except through `reset`.

pub mod aligned;
mod backend;
pub mod backing;
mod block;
mod clock;
pub mod counted;
pub mod file;
pub mod foreign;
mod holders;
mod host;
mod identity;
pub mod layered;
mod local;
mod peek;
pub mod rules;
mod schedule;
pub mod sim;
pub mod zone;
mod zone_report;
pub mod zoned;

pub use aligned::AlignedBuf;
pub use backing::{Backing, OpenMode, Peek, Probe, probe};
pub use clock::{monotonic_ns, thread_ns, wall_ns};
pub use counted::{Counted, IoCounts};
pub use file::FileDevice;
pub use foreign::identify_foreign;
pub use host::host_text;
pub use identity::{Identity, PathKind};
pub use layered::{Layer, Layered};
pub use local::minute_of_day;
pub use rules::{ChangeTicket, WriteTicket, ZoneRules};
pub use schedule::{answer_quickly, be_nice, never_preempt, sleep_exactly};
pub use sim::{Fault, FaultId, Kept, SimConfig, SimDevice};
pub use zone::{Device, DeviceError, DeviceInfo, DeviceKind, ZoneReport, ZoneState};
pub use zoned::ZonedDevice;
