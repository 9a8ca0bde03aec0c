//! `terrane mount`, `umount` and `sync`.
//!
//! A mount in the background is this program once more, in the foreground of nobody: the command starts itself with `-f`, its
//! output pointed at a log and its standard output at us, and waits for the one word that says that the mount stands. So nothing
//! is forked that has threads, and an error is printed where the command was typed.

use super::{daemon_of, print};
use crate::control::{self, STOP, SYNC};
use crate::daemon::{self, Plan};
use crate::failure::{Failure, Outcome};
use crate::live;
use crate::registry::Registry;
use crate::{logger, metrics};
use crate::{size, sys};
use clap::Args;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use terrane_fuse::MountOptions;
use terrane_pool::ImportOptions;
use terrane_wire::Txg;

/// Set in the process that a mount in the background starts.
const BACKGROUND_VARIABLE: &str = "TERRANE_BACKGROUND";
const READY: &str = "ready\n";
/// A log that is longer when a mount begins is begun anew.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// The words after `-o`, for messages and help.
pub const OPTION_HELP: &str = "\
Options after -o, separated by commas:
  ro, rw                  read-only: nothing is written, not even what a crash left to do
  cache=SIZE              memory for cached blocks; as much again may be dirty (256M)
  commit=SECONDS          the longest a change stays uncommitted (5)
  discard, nodiscard      give the space of emptied zones back to the file or disk below (discard)
  rewind=TXG              import an older group, and lose what came after it
  log=FILE                where events are written; see --log
  metrics=ADDRESS:PORT    answer Prometheus; see --metrics
  noatime, nodiratime, relatime, strictatime, nodev, dev, nosuid, suid, noexec, exec
  sync, async, dirsync    commit with every change
  allow_other, default_permissions, no_default_permissions
  writeback, nowriteback  the kernel gathers small writes
  direct_io, nodirect_io  the kernel caches no file contents
  threads=COUNT           threads that read requests, 3 to 64 (8)
  max_background=COUNT    requests under way in the background (64)
  entry_timeout=, attr_timeout=, negative_timeout=SECONDS
  source=NAME             what `mount` shows as the source
  defaults, auto, noauto, user, nouser, users, owner, group, _netdev, nofail, x-*, comment=* (ignored)
";

/// Mount a pool
#[derive(Args)]
#[command(after_help = OPTION_HELP)]
pub struct Mount {
    /// A pool, by name or by device
    pool: String,
    dir: PathBuf,
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground, and log to standard error
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Write events to this file, one line of key=value pairs each; RUST_LOG chooses which (info)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Answer `GET /metrics` over HTTP there, for Prometheus; nobody is asked who they are
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
}

/// Unmount a pool, and wait until everything is committed
#[derive(Args)]
pub struct Umount {
    /// Where it is mounted, or a pool by name or by device
    #[arg(value_name = "DIR|POOL")]
    what: String,
}

/// Commit everything that was written
#[derive(Args)]
pub struct Sync {
    /// A pool, by name or by device
    pool: String,
}

/// What the daemon does beside serving files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Beside {
    log: Option<PathBuf>,
    metrics: Option<String>,
}

impl Mount {
    /// Options that are the daemon's own, and the words that are left. A line of fstab has only words.
    fn beside(&self) -> (Beside, Vec<String>) {
        let mut beside = Beside::default();
        let mut rest = Vec::new();
        for word in self.options.iter().flat_map(|words| words.split(',')) {
            match word.split_once('=') {
                Some(("log", path)) if !path.is_empty() => beside.log = Some(path.into()),
                Some(("metrics", address)) if !address.is_empty() => beside.metrics = Some(address.into()),
                _ => rest.push(word.to_owned()),
            }
        }
        beside.log = self.log.clone().or(beside.log);
        beside.metrics = self.metrics.clone().or(beside.metrics);
        (beside, rest)
    }
}

/// Words after `-o`, sorted by whom they are for.
fn parse_options(words: &[String], mut mount: MountOptions) -> Outcome<(MountOptions, ImportOptions)> {
    let mut import = ImportOptions::default();
    for word in words.iter().flat_map(|words| words.split(',')).filter(|word| !word.is_empty()) {
        let bad =
            |expected: &str| Failure(format!("mount option {word:?}: should be {expected}\n{OPTION_HELP}"));
        match word.split_once('=') {
            Some(("cache", value)) => {
                let bytes = size::parse(value).ok().filter(|bytes| *bytes >= 1 << 20);
                let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
                import.cache_bytes = bytes.ok_or_else(|| bad("a size of at least 1M"))?;
            }
            Some(("commit", value)) => {
                let seconds = value.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
                import.commit_period = Duration::from_secs(seconds.ok_or_else(|| bad("1 to 3600 seconds"))?);
            }
            Some(("rewind", value)) => {
                let txg = value.parse().map_err(|_| bad("the number of a transaction group"))?;
                import.rewind = Some(Txg(txg));
            }
            None if word == "discard" => import.discard = true,
            None if word == "nodiscard" => import.discard = false,
            _ => mount.apply(word).map_err(|error| bad(error.expected))?,
        }
    }
    import.read_only = mount.read_only;
    Ok((mount, import))
}

/// Absolute and without links. What stands on the directory itself may be a dead mount, which cannot be looked into.
fn resolve_dir(dir: &Path) -> Outcome<PathBuf> {
    let finding = || Failure::io("finding the mount point", dir);
    // Asked of the server, where one stands here; the path alone can be had of the kernel.
    match dir.metadata() {
        Ok(meta) if meta.is_dir() => return dir.canonicalize().map_err(finding()),
        Ok(_) => {
            return Err(Failure::refused(dir.display(), "a directory", "something else", "name a directory"));
        }
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)) => {
            return Err(finding()(error));
        }
        Err(_) => {}
    }
    let absolute = std::path::absolute(dir).map_err(Failure::io("finding the mount point", dir))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    Ok(parent.canonicalize().map_err(Failure::io("finding", parent))?.join(name))
}

impl Mount {
    pub fn run(&self) -> Outcome {
        let background = std::env::var_os(BACKGROUND_VARIABLE).is_some();
        let outcome = self.mount(background);
        if background && let Err(failure) = &outcome {
            // Who waits for us prints it; after `ready` nobody waits, and the log has it.
            print(&failure.0)?;
        }
        outcome
    }

    fn mount(&self, background: bool) -> Outcome {
        let registry = Registry::of_this_user()?;
        registry.prepare()?;
        let target = live::find(&registry, &self.pool)?;
        let (uid, _) = sys::who()?;
        let mount = match uid {
            0 => MountOptions::for_root(&target.name),
            _ => MountOptions { source: target.name.clone(), ..MountOptions::default() },
        };
        let (beside, words) = self.beside();
        let (mount, import) = parse_options(&words, mount)?;
        let dir = resolve_dir(&self.dir)?;
        if let Some(daemon) = control::connect(&registry.socket(&target.name))? {
            let there = daemon.greeting;
            return Err(Failure(format!(
                "pool {} ({}) is mounted on {} already, by process {}",
                there.pool,
                there.device.display(),
                there.mountpoint.display(),
                there.pid
            )));
        }
        if target.path.starts_with(&dir) {
            return Err(Failure::refused(
                target.path.display(),
                "a device outside of its own mount",
                format!("one below {}", dir.display()),
                "mount it elsewhere, or move the file",
            ));
        }
        if !self.foreground && !background {
            let ours = registry.log(&target.name);
            // Only ours is begun anew when it is long.
            let long = std::fs::metadata(&ours).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX);
            let begin_anew = beside.log.is_none() && long;
            return start_in_background(beside.log.as_ref().unwrap_or(&ours), begin_anew);
        }
        if background {
            terrane_fuse::process::leave_session()?;
            // No directory stays busy on our behalf.
            std::env::set_current_dir("/")?;
        }
        // In the background standard error is the file already.
        let log = beside.log.filter(|_| !background);
        let log =
            log.map(|path| logger::open(&path).map_err(Failure::io("opening the log", &path))).transpose()?;
        let metrics = beside.metrics.map(|address| metrics::listen(&address)).transpose()?;
        logger::serve(&target.name, log);
        let ready = || {
            if background {
                // Fails when who waited was interrupted: the mount stands all the same.
                let _ = print(READY);
            }
        };
        daemon::serve(Plan { target, dir, mount, import, metrics }, &registry, ready)
    }
}

fn start_in_background(log: &Path, begin_anew: bool) -> Outcome {
    let file = logger::open(log).map_err(Failure::io("opening the log", log))?;
    if begin_anew {
        file.set_len(0).map_err(Failure::io("emptying the log", log))?;
    }
    // By its name, which people see in `ps`; unless the file was replaced since.
    let exe = std::env::current_exe().ok().filter(|path| path.exists());
    let mut child = Command::new(exe.unwrap_or_else(|| PathBuf::from("/proc/self/exe")))
        .args(std::env::args_os().skip(1))
        .env(BACKGROUND_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file)
        .spawn()?;
    let mut said = Vec::new();
    if let Some(pipe) = &mut child.stdout {
        // To the first word or the end: the child keeps the pipe for as long as it lives.
        let mut piece = [0; 4096];
        while said != READY.as_bytes() {
            match pipe.read(&mut piece)? {
                0 => break,
                len => said.extend_from_slice(piece.get(..len).unwrap_or(&[])),
            }
        }
    }
    if said == READY.as_bytes() {
        return Ok(());
    }
    let status = child.wait()?;
    match String::from_utf8_lossy(&said).trim() {
        "" => Err(Failure(format!("the mount ended before it stood ({status}); see {}", log.display()))),
        text => Err(Failure(text.to_owned())),
    }
}

impl Umount {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let dir = resolve_dir(Path::new(&self.what)).ok();
        for name in registry.pools()?.keys() {
            let Some(daemon) = control::connect(&registry.socket(name))? else { continue };
            if *name == self.what || dir.as_ref() == Some(&daemon.greeting.mountpoint) {
                return stop(daemon);
            }
        }
        // A directory is a mount point or nothing; everything else may be a pool that is not mounted.
        if let Some(dir) = dir {
            return unmount_stranger(&dir);
        }
        let target = live::find(&registry, &self.what)?;
        match daemon_of(&registry, &target)? {
            Some(daemon) => stop(daemon),
            None => Err(Failure(format!("pool {} is not mounted", target.name))),
        }
    }
}

fn stop(daemon: control::Daemon) -> Outcome {
    daemon.ask(&json!({"ask": STOP}), &mut |_, _, _| {}).map(drop)
}

/// A mount of ours whose daemon has died, or belongs to another user.
fn unmount_stranger(dir: &Path) -> Outcome {
    let mounts = Path::new("/proc/self/mounts");
    let table = std::fs::read_to_string(mounts).map_err(Failure::io("reading", mounts))?;
    let escaped: String = dir
        .to_string_lossy()
        .chars()
        .map(|c| if " \t\n\\".contains(c) { format!("\\{:03o}", u32::from(c)) } else { c.to_string() })
        .collect();
    let ours = table.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some(&escaped) && fields.next() == Some("fuse.terrane")
    });
    if !ours {
        return Err(Failure(format!("{}: no terrane pool is mounted there", dir.display())));
    }
    let (uid, _) = sys::who()?;
    let mut command = if uid == 0 { Command::new("umount") } else { Command::new("fusermount3") };
    if uid != 0 {
        command.arg("-u");
    }
    let output = command.arg("--").arg(dir).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

impl Sync {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let target = live::find(&registry, &self.pool)?;
        let Some(daemon) = daemon_of(&registry, &target)? else {
            // Nobody has it open, so there is nothing that was not committed.
            return live::read_label(&target.path).map(drop);
        };
        // What the kernel still holds (pages written through mmap) first; it tells a FUSE server nothing of syncfs.
        let dir = daemon.greeting.mountpoint.clone();
        let root = File::open(&dir).map_err(Failure::io("opening", &dir))?;
        terrane_fuse::process::sync_fs(&root).map_err(Failure::io("writing back", &dir))?;
        drop(root);
        daemon.ask(&json!({"ask": SYNC}), &mut |_, _, _| {}).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Outcome<(MountOptions, ImportOptions)> {
        parse_options(&[words.to_owned()], MountOptions::for_root("tank"))
    }

    #[test]
    fn words_go_to_the_pool_and_to_the_mount() {
        let (mount, import) = parse("ro,cache=32M,noatime,commit=7,rewind=12,threads=5,nodiscard").unwrap();
        assert!(!import.discard);
        assert!(mount.read_only && import.read_only);
        assert_eq!((mount.threads, import.cache_bytes), (5, 32 << 20));
        assert_eq!((import.commit_period, import.rewind), (Duration::from_secs(7), Some(Txg(12))));
        let (mount, import) = parse("").unwrap();
        assert!(import.discard && !mount.read_only && !import.read_only && import.rewind.is_none());
    }

    #[test]
    fn words_that_mean_nothing_are_refused_with_those_that_do() {
        for word in
            ["zfsutil", "cache=0", "cache=x", "commit=0", "commit=-1", "commit=1e9", "rewind=", "fd=3"]
        {
            let text = parse(word).unwrap_err().0;
            assert!(text.contains(&format!("{word:?}")) && text.contains("cache=SIZE"), "{text}");
        }
    }

    #[test]
    fn a_mount_point_is_a_directory_that_exists() {
        assert!(resolve_dir(Path::new("/nowhere/at/all")).unwrap_err().0.contains("/nowhere/at/all"));
        assert!(resolve_dir(Path::new("/etc/passwd")).unwrap_err().0.contains("a directory"));
        assert_eq!(resolve_dir(Path::new("/proc/self/../../tmp/.")).unwrap(), Path::new("/tmp"));
    }
}
