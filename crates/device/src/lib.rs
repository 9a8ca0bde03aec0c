//! Zoned devices: files, block devices, zoned drives, a simulator.
//!
//! All crates above see storage as *zones*: ranges that are written only at their write pointer, in whole write
//! units, and reset only as a whole. A shingled disk works so by nature. For a plain file or disk, [`ZoneRules`]
//! enforces the same rules. So one code path serves all, and a test on a file holds on a drive.
//!
//! Read [`zone`] first (the trait and its terms), then [`rules`] (which command is allowed when), then the backends:
//!
//! * [`backing`], [`mod@file`] and `block`: regular files and conventional block devices. [`foreign`] recognises data
//!   that must not be overwritten; `holders` names the holder of a device, and `mount_table` reads the kernel's tables.
//! * [`zoned`]: host-managed zoned drives; `zoned_reader` reads one that is not open as a device.
//! * [`sim`]: the simulator for tests.
//!
//! [`layered`] puts a layer over any of them, and [`counted`] is one that counts. `local_time` has the time of day,
//! `clock` measures durations, `schedule` sets how the kernel schedules a thread, `machine_id` identifies the machine.
//!
//! Invariant: no backend ever writes below a zone's write pointer except through `reset`.

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod aligned;
mod backend;
pub mod backing;
mod block;
mod clock;
pub mod counted;
pub mod file;
pub mod foreign;
mod holders;
mod identity;
pub mod layered;
mod local_time;
mod machine_id;
mod mount_table;
pub mod rules;
mod schedule;
pub mod sim;
pub mod zone;
mod zone_report;
pub mod zoned;
mod zoned_reader;

pub use aligned::AlignedBuf;
pub use backing::{Backing, OpenMode, Probe, UnlockedReader, probe};
pub use clock::{monotonic_ns, thread_ns, wall_ns};
pub use counted::{Counted, IoCounts};
pub use file::FileDevice;
pub use foreign::identify_foreign;
pub use identity::{Identity, PathKind};
pub use layered::{Layer, Layered};
pub use local_time::minute_of_day;
pub use machine_id::machine_id;
pub use mount_table::unescape_field;
pub use rules::{ChangeTicket, WriteTicket, ZoneRules};
pub use schedule::{lower_priority, set_batch_policy, set_short_slice, sleep_exactly};
pub use sim::{Fault, FaultId, SimConfig, SimDevice, Survival};
pub use zone::{Device, DeviceError, DeviceInfo, DeviceKind, GivenUp, RequestCounts, ZoneReport, ZoneState};
pub use zoned::ZonedDevice;
