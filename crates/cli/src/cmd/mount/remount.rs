//! `mount -o remount`: what can change while a pool is mounted.
//!
//! Per-mount flags (`ro`, `nosuid`, `noatime` and the like) belong to the kernel. Whether the pool is open
//! for writing belongs to the server: to change it, one server follows another. The server changes its memory
//! limit in place. All other options of fstab stay as they were at mount time.

use super::super::{ServedBy, Standing, served_by};
use super::options::Words;
use super::step_back;
use crate::control::{self, Command, Daemon, PATIENCE};
use crate::failure::{Failure, Outcome};
use crate::registry::Registry;
use std::fs::File;
use std::path::Path;
use terrane_fuse::MountOptions;
use terrane_fuse::mount::{Atime, MountedAt, mounted, remount as change};

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
fn flags(row: &MountedAt) -> MountOptions {
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

fn daemon_of(registry: &Registry, row: &MountedAt) -> Outcome<Option<Daemon>> {
    let is_there = |place: &MountedAt| (&place.dev, &place.dir) == (&row.dev, &row.dir);
    match served_by(registry, row, PATIENCE)? {
        ServedBy::Daemon(Standing { daemon, places }) if places.iter().any(is_there) => Ok(Some(daemon)),
        ServedBy::Silent(name) => Err(control::silent(&name)),
        ServedBy::Daemon(_) | ServedBy::Stranger => Ok(None),
    }
}

pub fn remount(registry: &Registry, dir: &Path, words: &[String]) -> Outcome {
    let table = mounted()?;
    let row = table.iter().rfind(|row| row.dir == dir);
    let row = row.ok_or_else(|| Failure(format!("{}: no terrane pool is mounted there", dir.display())))?;
    let said = words.iter().flat_map(|words| words.split(','));
    let said: Vec<String> = said
        .filter(|word| !OF_KERNEL.iter().any(|known| word.starts_with(known)))
        .map(str::to_owned)
        .collect();
    let words = Words::parse(&said, flags(row))?;
    let (wanted, memory) = (words.mount.clone().of_file_system(row), words.memory);
    words.judge_identities(&wanted)?;
    let fixed = row.has("ro");
    let alone = table.iter().filter(|place| place.dev == row.dev).count() == 1;
    let daemon = || -> Outcome<Daemon> {
        daemon_of(registry, row)?.ok_or_else(|| {
            let (at, expected) = (dir.display(), "a mount of this user");
            Failure::refused(at, expected, "one whose server does not answer here", "ask who mounted it")
        })
    };
    if let Some(memory) = memory {
        daemon()?.ask(&Command::Memory { bytes: memory.bytes() }, &mut |_, _, _| {})?;
    }
    if memory.is_some() && wanted == flags(row).of_file_system(row) {
        // The rest needs a superuser.
        return Ok(());
    }
    match (wanted.read_only, fixed) {
        (false, true) => {
            step_back(registry, daemon()?, Some(false))?;
            Ok(change(dir, &wanted, true)?)
        }
        (true, false) if alone => {
            // First the kernel's dirty pages, while they may still be written. Then no more come, and the
            // server commits them.
            let root = File::open(dir).map_err(Failure::io("opening", dir))?;
            terrane_fuse::process::sync_fs(&root).map_err(Failure::io("writing back", dir))?;
            drop(root);
            let daemon = daemon()?;
            change(dir, &wanted, true)?;
            if let Err(failure) = step_back(registry, daemon, Some(true)) {
                // A server without a keeper cannot be replaced: it commits, and keeps a writable pool that
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
        let row = |options: &str, super_options: &str| MountedAt {
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
