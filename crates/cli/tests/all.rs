//! All tests of this crate in one program, which is linked once.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod cli;
mod commands;
mod copies;
mod covered;
mod crashproof;
mod datasets;
mod debug;
mod descriptors;
mod devices;
mod entries;
mod figures;
mod full_host;
mod hints;
mod life;
mod log_devices;
mod loops;
mod lost;
mod metrics;
mod mount_all;
mod mounted_blocks;
mod mounted_changes;
mod mounted_clones;
mod mounted_flags;
mod mounted_names;
mod mounted_places;
mod mounted_quotas;
mod mounted_set_ids;
mod mounted_times;
mod names;
mod pool_mounts;
mod rewrite;
mod servers;
mod snapshots;
mod support;
