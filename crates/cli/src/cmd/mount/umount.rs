//! `terrane umount`: a mount point, a data set, or all mounts of a pool.

use super::super::{MountedDaemon, ServedBy, Survey, daemon_of, is_source, served_by};
use super::{resolve_dir, write_back};
use crate::control::{
    self, Contact, Daemon, ExitingDaemon, GREETING_TIMEOUT, GreetedMount, STOP_TIMEOUT, SURVEY_TIMEOUT,
    StopMode,
};
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::registry::Registry;
use crate::suggest;
use crate::target;
use clap::Args;
use std::path::Path;
use std::time::Duration;
use terrane_fuse::UnmountHandle;
use terrane_fuse::mount::{MountEntry, TopMount, abort_connection, list_mounts, top_mount_at};

/// Unmount a data set, and wait until everything is committed
///
/// A directory means only the mount point there. The name of a data set means all of its mount points, and a pool's name those of its root
/// data set. The pool is closed when its last mount has ended. If another mount namespace (a container, a service with mounts of its own)
/// still has the mount, it stays open. Then this command fails after --timeout and names the processes.
#[derive(Args)]
pub struct Umount {
    /// A mount point, a data set or snapshot (`tank/home`), or a pool by name or by device
    #[arg(value_name = "DIR|DATASET|POOL", required_unless_present = "all")]
    what: Option<String>,
    /// All mounts of the pool; without a pool, of all pools of this user
    #[arg(short, long)]
    all: bool,
    /// Detach the mount although it is in use; the pool is closed when its last user has gone
    #[arg(short, long, conflicts_with = "force")]
    lazy: bool,
    /// Commit, then abort the mount in all mount namespaces: programs that still use it get errors
    #[arg(short, long)]
    force: bool,
    /// How long to wait for users in other mount namespaces
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,
}

/// The mounts of a daemon that are to end.
enum Which {
    All,
    Of(GreetedMount),
}

impl Umount {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        match &self.what {
            None => self.unmount_pools(&registry),
            Some(word) => self.unmount_word(&registry, word),
        }
    }

    /// Unmounts every pool of this user. The pool that was mounted last comes first, because it may lie below another.
    fn unmount_pools(&self, registry: &Registry) -> Outcome {
        let survey = Survey::of(registry)?;
        let mut failures: Vec<String> =
            survey.not_answering.iter().map(|(name, _)| control::not_answering(name).0).collect();
        let mut daemons = survey.daemons;
        daemons.sort_by_key(|found| std::cmp::Reverse(found.mounts.last().map(|row| row.id)));
        for found in daemons {
            if let Err(Failure(reason)) = self.stop(registry, found.daemon, &Which::All) {
                failures.push(reason);
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
    }

    fn unmount_word(&self, registry: &Registry, word: &str) -> Outcome {
        // A pool or data set of that name has precedence over a directory of that name.
        let pools = registry.pools()?;
        let split = target::split_mountable(word).filter(|_| !pools.contains_key(word));
        let (name, path) = split.unwrap_or((word, ""));
        if self.all && !path.is_empty() && pools.contains_key(name) {
            let expected = "a pool, or nothing";
            let remedy = format!("omit -a, or unmount all of the pool: terrane umount -a {name}");
            return Err(Failure::refused("-a", expected, format_args!("data set {word}"), remedy));
        }
        if let Some(device) = pools.get(name) {
            match control::contact(&registry.control_socket(name), self.greeting_timeout())? {
                Contact::Daemon(_) => {
                    if let Some(daemon) = daemon_of(registry, &target::find_known(registry, name)?)? {
                        let which = self.which(&daemon, path)?;
                        return self.stop(registry, daemon, &which);
                    }
                }
                Contact::NoDaemon if !path.is_empty() && resolve_dir(Path::new(word)).is_err() => {
                    return Err(not_mounted(word));
                }
                Contact::NoDaemon => {}
                Contact::NotAnswering => {
                    let rows = list_mounts()?;
                    let is_meant = |row: &&MountEntry| {
                        is_source(row, name, device) && (path.is_empty() || row.source == word)
                    };
                    return self.detach_unresponsive(name, &rows.iter().filter(is_meant).collect::<Vec<_>>());
                }
            }
        }
        let dir = resolve_dir(Path::new(word)).ok();
        if let Some(dir) = dir.as_ref().filter(|_| !self.all) {
            match top_mount_at(dir).map_err(Failure::io("examining", dir))? {
                TopMount::Ours(entry) => return self.unmount(registry, &entry),
                TopMount::Other(found) if list_mounts()?.iter().any(|row| row.dir == *dir) => {
                    let (at, expected) = (dir.display(), "the mount of a pool on top");
                    let found = format!("{found} mounted over it");
                    return Err(Failure::refused(at, expected, found, "unmount that first"));
                }
                TopMount::Other(_) | TopMount::NotAMountPoint => {}
            }
            // No mount is visible here. It may be ending, or be mounted in another namespace.
            for found in Survey::of(registry)?.daemons {
                let was_here = |mount: &GreetedMount| mount.dir == *dir && found.places_of(mount).is_empty();
                let greeted = found.daemon.greeting.all_mounts();
                if let Some(mount) = greeted.into_iter().find(was_here) {
                    return self.stop(registry, found.daemon, &Which::Of(mount));
                }
            }
            // A directory must be a mount point; any other path may be a pool that is not mounted.
            return Err(Failure(format!("{}: no terrane pool is mounted there", dir.display())));
        }
        let target = target::find(registry, word)?;
        match daemon_of(registry, &target)? {
            Some(daemon) => {
                let which = self.which(&daemon, "")?;
                self.stop(registry, daemon, &which)
            }
            None => Err(not_mounted(&target.name)),
        }
    }

    /// The mounts that a name means.
    fn which(&self, daemon: &Daemon, path: &str) -> Outcome<Which> {
        if self.all {
            return Ok(Which::All);
        }
        let greeting = &daemon.greeting;
        greeting.mount_of(path).map(Which::Of).ok_or_else(|| {
            let name = full_name(&greeting.pool, path);
            let mounted: Vec<String> =
                greeting.all_mounts().iter().map(|mount| full_name(&greeting.pool, &mount.dataset)).collect();
            let hint = suggest::hint(&name, mounted.iter().map(String::as_str));
            let found = mounted.join(", ");
            let what = if path.is_empty() { "the root data set of pool" } else { "data set" };
            Failure(format!(
                "{what} {name} is not mounted; mounted of this pool: {found}; -a unmounts them all{hint}"
            ))
        })
    }

    /// How long to wait for a server's greeting; short with `--force` or `--lazy`.
    fn greeting_timeout(&self) -> Duration {
        if self.force || self.lazy { SURVEY_TIMEOUT } else { GREETING_TIMEOUT }
    }

    /// Unmounts one mount, if it is the topmost one at its path.
    fn unmount(&self, registry: &Registry, entry: &MountEntry) -> Outcome {
        match served_by(registry, entry, self.greeting_timeout())? {
            ServedBy::Daemon(MountedDaemon { daemon, mounts })
                if mounts.iter().all(|row| row.dev != entry.dev || row.id == entry.id) =>
            {
                let mount = daemon.greeting.mount_at(&entry.dev);
                self.stop(registry, daemon, &mount.map_or(Which::All, Which::Of))
            }
            ServedBy::NotAnswering(name) => self.detach_unresponsive(&name, &[entry]),
            // The mount has other mount points, which stay; or its server has died, or belongs to another user.
            _ if self.force || self.lazy => Ok(UnmountHandle::of(entry).detach()?),
            _ => Ok(UnmountHandle::of(entry).unmount()?),
        }
    }

    fn stop(&self, registry: &Registry, daemon: Daemon, which: &Which) -> Outcome {
        let pool = daemon.greeting.pool.clone();
        let mode = match (self.lazy, self.force) {
            (true, _) => StopMode::Lazily,
            (_, true) => StopMode::ByForce,
            _ => StopMode::WhenIdle,
        };
        let (mounts, dataset) = match which {
            Which::All => (daemon.greeting.all_mounts(), None),
            Which::Of(mount) => (vec![mount.clone()], Some(mount.dataset.clone())),
        };
        if self.force {
            // Only the kernel has pages that programs changed through mappings.
            write_back_within(mounts, SURVEY_TIMEOUT);
        }
        let name = full_name(&pool, dataset.as_deref().unwrap_or_default());
        let question = control::Command::Stop { how: mode, seconds: Some(self.timeout), dataset };
        // The server itself reports if one of its steps takes too long.
        let timeout = Duration::from_secs(self.timeout).saturating_add(STOP_TIMEOUT);
        let leaving = ExitingDaemon::of(&daemon.greeting, &registry.supervisor_socket(&pool));
        let answer = daemon.ask_within(&question, timeout)?;
        if let Some(users) = answer["stays"].as_str() {
            eprintln!("terrane: pool {name} detached and committed; it stays open for {users}");
        } else if answer["serves"].is_null() {
            leaving.wait();
        }
        Ok(())
    }

    /// Detaches the mounts of a pool whose server does not answer. If the server resumes, it commits what it
    /// has in memory and finds them gone.
    fn detach_unresponsive(&self, pool: &str, mounts: &[&MountEntry]) -> Outcome {
        if !(self.force || self.lazy) {
            return Err(control::not_answering(pool));
        }
        for entry in mounts.iter().rev() {
            UnmountHandle::of(entry).detach()?;
        }
        if self.force {
            mounts.iter().try_for_each(|entry| abort_connection(&entry.dev))?;
        }
        eprintln!(
            "terrane: pool {pool} detached: its server did not answer, and commits its changes if it resumes"
        );
        Ok(())
    }
}

fn not_mounted(name: &str) -> Failure {
    match target::split_mountable(name) {
        Some(_) => Failure(format!("data set {name} is not mounted")),
        None => Failure(format!("pool {name} is not mounted")),
    }
}

/// Has the kernel write back its dirty pages of these mounts, as far as possible within this time.
fn write_back_within(of: Vec<GreetedMount>, timeout: Duration) {
    let Ok(rows) = list_mounts() else { return };
    let (sender, receiver) = std::sync::mpsc::channel();
    let work = move || {
        let written = of.iter().map(|mount| write_back(&mount.dev, &rows).map(drop));
        drop(sender.send(written.fold(Ok(()), Outcome::and)));
    };
    let begun = std::thread::Builder::new().name("write back".into()).spawn(work);
    match begun.map(|_| receiver.recv_timeout(timeout)) {
        Ok(Ok(Ok(()))) => {}
        _ => eprintln!("terrane: write-back failed or timed out: dirty pages of the kernel may be lost"),
    }
}
