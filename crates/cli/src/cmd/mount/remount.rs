//! `mount -o remount`: what can change while a pool is mounted.
//!
//! Per-mount flags (`ro`, `nosuid`, `noatime` and the like) belong to the kernel. Whether the pool is open
//! for writing belongs to the server: to change it, one server follows another. The server changes its memory
//! limit in place. All other options of fstab stay as they were at mount time.

use super::super::{MountedDaemon, ServedBy, served_by};
use super::{refuse_writable_snapshot, step_back};
use crate::control::{self, Command, Daemon, GREETING_TIMEOUT};
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::mount_options::ParsedOptions;
use crate::registry::Registry;
use std::fs::File;
use std::path::Path;
use terrane_fuse::MountOptions;
use terrane_fuse::mount::{Atime, MountEntry, list_mounts, remount as change};

/// Options that the kernel lists for a mount, and mount(8) repeats.
const OF_KERNEL: [&str; 9] = [
    "fd=",
    "rootmode=",
    "user_id=",
    "group_id=",
    "max_read=",
    "blksize=",
    "subtype=",
    "seclabel",
    "context=",
];

/// The current flags of a mount.
fn flags(row: &MountEntry) -> MountOptions {
    let mut options =
        MountOptions { suid: true, dev: true, exec: true, atime: Atime::Always, ..MountOptions::default() };
    for word in row.options.split(',') {
        // The kernel has options that we do not; a remount of ours loses none of them.
        let _ = options.apply(word);
    }
    for word in row.super_options.split(',').filter(|word| matches!(*word, "sync" | "dirsync" | "ro")) {
        let _ = options.apply(word);
    }
    options
}

fn daemon_of(registry: &Registry, row: &MountEntry) -> Outcome<Option<Daemon>> {
    let is_there = |entry: &MountEntry| (&entry.dev, &entry.dir) == (&row.dev, &row.dir);
    match served_by(registry, row, GREETING_TIMEOUT)? {
        ServedBy::Daemon(MountedDaemon { daemon, mounts }) if mounts.iter().any(is_there) => Ok(Some(daemon)),
        ServedBy::NotAnswering(name) => Err(control::not_answering(&name)),
        ServedBy::Daemon(_) | ServedBy::Unknown => Ok(None),
    }
}

pub fn remount(registry: &Registry, dir: &Path, words: &[String]) -> Outcome {
    let table = list_mounts()?;
    let row = table.iter().rfind(|row| row.dir == dir);
    let row = row.ok_or_else(|| Failure(format!("{}: no terrane pool is mounted there", dir.display())))?;
    let given = words.iter().flat_map(|words| words.split(','));
    let ours: Vec<String> = given
        .filter(|word| !OF_KERNEL.iter().any(|known| word.starts_with(known)))
        .map(str::to_owned)
        .collect();
    let options = ParsedOptions::parse(&ours, flags(row))?;
    let (wanted, memory) = (options.mount.clone().with_file_system_options(row), options.memory);
    options.check_set_id_options(&wanted)?;
    let fixed = row.has("ro");
    let is_only_mount = table.iter().filter(|entry| entry.dev == row.dev).count() == 1;
    let daemon = || -> Outcome<Daemon> {
        daemon_of(registry, row)?.ok_or_else(|| {
            let (at, expected) = (dir.display(), "a mount of this user");
            Failure::refused(
                at,
                expected,
                "a mount without a server of this user",
                "remount it as the user who mounted it",
            )
        })
    };
    if let Some(memory) = memory {
        daemon()?.ask(&Command::Memory { bytes: memory.bytes() }, &mut |_, _, _| {})?;
    }
    if memory.is_some() && wanted == flags(row).with_file_system_options(row) {
        // The rest needs a superuser.
        return Ok(());
    }
    match (wanted.read_only, fixed) {
        (false, true) => {
            let daemon = daemon()?;
            let dataset = daemon.greeting.mount_at(&row.dev).map(|mount| mount.dataset).unwrap_or_default();
            if dataset.contains('@') {
                return Err(refuse_writable_snapshot(&full_name(&daemon.greeting.pool, &dataset)));
            }
            // An older server does not report this. It has one mount, which is read-only because its pool is.
            if daemon.greeting.read_only || daemon.greeting.mounts.is_empty() {
                step_back(registry, daemon, Command::StepBack { read_only: Some(false) })?;
            }
            Ok(change(dir, &wanted, true)?)
        }
        (true, false) if is_only_mount => {
            // First the kernel's dirty pages, while they may still be written. Then no more come, and the
            // server commits them.
            let root = File::open(dir).map_err(Failure::io("opening", dir))?;
            terrane_fuse::process::sync_fs(&root).map_err(Failure::io("writing back", dir))?;
            drop(root);
            let daemon = daemon()?;
            change(dir, &wanted, true)?;
            if daemon.greeting.all_mounts().len() > 1 {
                // Other mounts may write to the pool.
                return daemon.ask(&Command::Sync, &mut |_, _, _| {}).map(drop);
            }
            if let Err(failure) = step_back(registry, daemon, Command::StepBack { read_only: Some(true) }) {
                // A server without a supervisor cannot be replaced: it commits, and keeps a writable pool that
                // nothing writes to.
                let daemon = daemon_of(registry, row)?.ok_or(failure)?;
                daemon.ask(&Command::Sync, &mut |_, _, _| {})?;
            }
            Ok(())
        }
        _ => Ok(change(dir, &wanted, false)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remount_keeps_the_flags_that_it_does_not_name() {
        let row = |options: &str, super_options: &str| MountEntry {
            id: 40,
            dev: "0:53".into(),
            dir: "/mnt".into(),
            source: "tank".into(),
            options: options.into(),
            super_options: super_options.into(),
        };
        let options = flags(&row("rw,nosuid,noexec,relatime", "rw,user_id=0,group_id=0,allow_other"));
        assert!(!options.suid && !options.exec && options.dev && !options.read_only);
        assert_eq!(options.atime, Atime::Relative);
        let options = flags(&row("rw", "ro,sync,user_id=0"));
        assert!(options.read_only && options.sync && options.suid);
        assert_eq!(options.atime, Atime::Always);
    }
}
