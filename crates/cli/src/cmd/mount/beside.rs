//! A further mount of a pool that has a server.
//!
//! One server has all mounts of a pool. The command makes the mount, in its own mount namespace and with its own
//! rights, and sends the descriptor of `/dev/fuse` to the server. If the data set is already mounted, the command adds a
//! mount point by a bind mount.

use super::super::daemon_of;
use super::remount_text;
use crate::control::{Command, Daemon, GreetedMount, MountRequest};
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::mount_options::ParsedOptions;
use crate::registry::Registry;
use crate::target::Target;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use terrane_fuse::Mount;
use terrane_fuse::mount::{MountEntry, bind_mount, list_mounts};

/// What a command was asked to mount.
pub struct Request {
    /// The path of the data set from the root.
    pub dataset: String,
    pub dir: PathBuf,
    pub options: ParsedOptions,
    /// The words after `-o`.
    pub words: Vec<String>,
    pub source: String,
    /// Check only, mount nothing.
    pub dry_run: bool,
}

impl Request {
    /// Shows a mounted data set at one more mount point.
    pub fn add_place(
        &self,
        daemon: &Daemon,
        mount: &GreetedMount,
        places: &[MountEntry],
        uid: u32,
    ) -> Outcome {
        let there = &daemon.greeting;
        let (dir, options) = (&self.dir, &self.options);
        let name = match self.dataset.as_str() {
            "" => format!("pool {} ({})", there.pool, there.device.display()),
            path => full_name(&there.pool, path),
        };
        let mounted = format!("mounted on {} already, by process {}", mount.dir.display(), there.pid);
        if uid != 0 || places.iter().any(|row| row.dir == *dir) {
            let remedy = if uid != 0 { "; only root can add a mount point" } else { "" };
            return Err(Failure(format!("{name} is {mounted}{remedy}")));
        }
        let Some(from) = places.last() else {
            return Err(Failure(format!("{name} is {mounted}, and not visible in this mount namespace")));
        };
        if let Some(word) = options.of_pool.first() {
            let expected = "an option of one mount point (ro, nosuid, noatime and the like)";
            return Err(Failure::refused(
                format_args!("mount option {word:?} for a second mount point of pool {}", there.pool),
                expected,
                "an option of the whole mount",
                format_args!("omit it: what {} was mounted with holds for all", mount.dir.display()),
            ));
        }
        let fixed = from.has("ro");
        if fixed && !options.mount.read_only {
            let remedy = remount_text(&from.dir);
            return Err(Failure::refused(
                name,
                "a pool mounted for writing",
                "one mounted read-only",
                remedy,
            ));
        }
        let wanted = options.mount.clone().with_file_system_options(from);
        options.check_set_id_options(&wanted)?;
        if self.dry_run {
            return Ok(());
        }
        // Opened as the root of this mount: its path may lead to another mount by now.
        let Some(root) = places.iter().rev().find_map(|entry| entry.open_root().ok()) else {
            let (expected, found) = ("a mount that its path leads to", "none: each is covered or was moved");
            return Err(Failure::refused(name, expected, found, "unmount what covers one of them first"));
        };
        Ok(bind_mount(Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())), dir, &wanted)?)
    }

    /// Mounts another data set of the pool that this daemon serves.
    pub fn mount(mut self, registry: &Registry, target: &Target, daemon: Daemon) -> Outcome {
        let greeting = daemon.greeting.clone();
        let name = full_name(&greeting.pool, &self.dataset);
        if greeting.mounts.is_empty() {
            let (expected, found) = ("a server that has several mounts", "one of an older version");
            return Err(Failure::refused(name, expected, found, "unmount the pool, and mount it again"));
        }
        if let Some(word) = self.options.of_server.first() {
            let first = greeting.mountpoint.display();
            return Err(Failure::refused(
                format_args!("mount option {word:?} for {name}"),
                "an option of one mount",
                "an option of the server of the pool",
                format_args!("omit it: what {first} was mounted with holds for all mounts of the pool"),
            ));
        }
        let state = daemon.ask(&Command::CanMount { dataset: self.dataset.clone() }, &mut |_, _, _| {})?;
        self.options.mount.read_only |= state["snapshot"] == true;
        if state["read_only"] == true && !self.options.mount.read_only {
            let remedy = remount_text(&greeting.mountpoint);
            let (expected, found) = ("a pool open for writing", "one that is open read-only");
            return Err(Failure::refused(name, expected, found, remedy));
        }
        if self.dry_run {
            return Ok(());
        }
        // Dropping it unmounts.
        let mount = Mount::new(&self.dir, &self.options.mount)?;
        let dev = list_mounts()?.into_iter().rfind(|row| row.dir == mount.path()).map(|row| row.dev);
        let dev = dev.ok_or_else(|| {
            Failure(format!("mount failed: {} was unmounted before it was ready", self.dir.display()))
        })?;
        let request = MountRequest {
            dataset: self.dataset,
            dir: mount.path().to_owned(),
            dev: dev.clone(),
            source: self.source,
            options: self.words,
        };
        let Some(daemon) = daemon_of(registry, target)? else {
            let (expected, found) = ("a pool with a server", "one whose server has just ended");
            return Err(Failure::refused(name, expected, found, "mount it again"));
        };
        if let Err(failure) = daemon.ask_with(&Command::Mount(request), &mount.device()?) {
            // If the server was killed, the next one may have inherited the mount.
            let next = daemon_of(registry, target).ok().flatten();
            if next.is_none_or(|next| next.greeting.mount_at(&dev).is_none()) {
                return Err(failure);
            }
        }
        mount.hand_over();
        Ok(())
    }
}
