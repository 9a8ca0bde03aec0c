//! `terrane mount`, `umount`, `restart` and `sync`.
//!
//! A mount in the background runs this program three times. The command starts a supervisor ([`crate::supervisor`])
//! with the same arguments, and the supervisor starts the server. The server's first output reaches the command
//! through the standard output that they share. So no process with threads is forked, and an error is printed
//! where the command was typed.

mod beside;
pub mod helper;
mod places;
mod remount;
mod umount;

pub use umount::Umount;

use super::{
    MountedDaemon, PoolMatch, Survey, daemon_of, lasting_daemon, match_pool, mounted_daemon,
    mounted_daemon_as_of_now, print, refuse_copy,
};
use crate::control::{self, Daemon};
use crate::daemon::{self, MountSpec, ServePlan};
use crate::dataset_name::full_name;
use crate::failure::{Failure, Outcome};
use crate::fd_store::{
    ADOPT_VARIABLE, FdStore, Inherited, ROLE_SERVER, ROLE_SUPERVISOR, ROLE_VARIABLE, this_program,
};
use crate::help::OPTION_HELP;
use crate::members;
use crate::memory::MemoryBudget;
use crate::mount_options::{self, ParsedOptions};
use crate::registry::Registry;
use crate::supervisor::Supervisor;
use crate::sys;
use crate::target::{self, Target};
use crate::{logger, metrics};
use clap::Args;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use terrane_fuse::mount::{MountEntry, dev_number, list_mounts};

/// Set for the server: arguments as the command resolved them in its own directory.
const DEVICE_VARIABLE: &str = "TERRANE_DEVICE";
const DATASET_VARIABLE: &str = "TERRANE_DATASET";
const DIR_VARIABLE: &str = "TERRANE_DIR";
/// Set for the server: what `mount` shows as the source, if it is not the pool's name.
const SOURCE_VARIABLE: &str = "TERRANE_SOURCE";
const READY: &str = "ready\n";
/// How long to wait until the server has answered all that the kernel sent.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);
/// Set for supervisor and server: the file that their standard error is.
const LOG_VARIABLE: &str = "TERRANE_LOG";

/// Mount a data set
///
/// If its server crashes or is upgraded, the mount stays: programs wait until the next server has started. One server has all mounts of
/// a pool, each with options of its own. If the data set is already mounted, it gets one more mount point.
#[derive(Args)]
#[command(after_help = OPTION_HELP)]
pub struct Mount {
    /// A data set or snapshot, like `tank/home` or `tank/home@monday`; a pool, by name or by device, is its root data set
    #[arg(value_name = "POOL|DATASET", required_unless_present = "all")]
    pool: Option<String>,
    /// The mount point [default: the property `mountpoint` of the data set]
    #[arg(conflicts_with = "all")]
    dir: Option<PathBuf>,
    /// Mount each data set that has a `mountpoint` and `canmount=on`: below the named one, or in all pools of this user
    #[arg(short, long, conflicts_with_all = ["foreground", "log", "metrics"])]
    all: bool,
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground, and log to standard error; the mount ends with this process, unless systemd stores its descriptors
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Memory limit of the daemon: cached blocks, dirty data, inodes, requests
    /// [default: an eighth of the machine's, at most half of what its cgroup may have, at most 4G]
    #[arg(long, value_name = "SIZE", value_parser = mount_options::memory_size)]
    memory: Option<u64>,
    /// Log file, with lines of key=value pairs; RUST_LOG sets the level (info), SIGHUP reopens the file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Serve `GET /metrics` there, for Prometheus (HTTP, no authentication)
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// As another program's command line had it.
    #[arg(skip)]
    helper_call: Option<HelperCall>,
}

/// What differs if mount(8) started this program.
#[derive(Clone)]
struct HelperCall {
    /// The first field of fstab, which `mount` must show again.
    source: String,
    /// Check only, mount nothing.
    dry_run: bool,
}

/// Replace the server process of a pool, e.g. after an upgrade
///
/// The server commits everything and exits, and a server of the installed program takes over. Programs on the mount wait meanwhile;
/// open files stay open.
#[derive(Args)]
pub struct Restart {
    /// Pools, by name or by device
    #[arg(required_unless_present = "all")]
    pools: Vec<String>,
    /// Every pool of this user that is mounted
    #[arg(long, conflicts_with = "pools")]
    all: bool,
}

/// Commit everything that was written
#[derive(Args)]
pub struct Sync {
    /// A pool, by name or by device
    pub pool: String,
}

/// What the daemon does beside serving files.
#[derive(Debug, Default, PartialEq, Eq)]
struct DaemonOptions {
    log: Option<PathBuf>,
    metrics: Option<String>,
}

impl Mount {
    /// Options for the daemon itself, and the remaining ones. A line of fstab has only words.
    fn daemon_options(&self) -> (DaemonOptions, Vec<String>) {
        let mut options = DaemonOptions::default();
        let mut rest = Vec::new();
        for word in self.options.iter().flat_map(|words| words.split(',')) {
            match word.split_once('=') {
                Some(("log", path)) if !path.is_empty() => options.log = Some(path.into()),
                Some(("metrics", address)) if !address.is_empty() => options.metrics = Some(address.into()),
                _ => rest.push(word.to_owned()),
            }
        }
        rest.extend(self.memory.map(|bytes| format!("memory={bytes}")));
        options.log = self.log.clone().or(options.log);
        options.metrics = self.metrics.clone().or(options.metrics);
        (options, rest)
    }
}

/// Which of the three processes this is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Started by a user or a script.
    Command,
    Supervisor,
    Server,
}

impl Role {
    fn of_this_process() -> Role {
        match std::env::var_os(ROLE_VARIABLE) {
            Some(role) if role == ROLE_SUPERVISOR => Role::Supervisor,
            Some(role) if role == ROLE_SERVER => Role::Server,
            _ => Role::Command,
        }
    }
}

/// Absolute and without symbolic links. The directory itself may carry a dead mount, which cannot be
/// accessed.
fn resolve_dir(dir: &Path) -> Outcome<PathBuf> {
    let finding = || Failure::io("finding the mount point", dir);
    // A mount point of ours is not accessed: its server may not answer.
    if let Some(path) = resolve_parent(dir)
        && list_mounts().is_ok_and(|rows| rows.iter().any(|row| row.dir == path))
    {
        return Ok(path);
    }
    // If a server is mounted here, this asks it. The path alone comes from the kernel.
    match dir.metadata() {
        Ok(meta) if meta.is_dir() => dir.canonicalize().map_err(finding()),
        Ok(_) => {
            Err(Failure::refused(dir.display(), "a directory", "another kind of file", "name a directory"))
        }
        Err(error) => Err(finding()(error)),
    }
}

/// Resolves the links on the path, but not its last component.
fn resolve_parent(dir: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(dir).ok()?;
    let (parent, name) = (absolute.parent()?, absolute.file_name()?);
    Some(parent.canonicalize().ok()?.join(name))
}

impl Mount {
    pub fn run(&self) -> Outcome {
        let role = Role::of_this_process();
        let outcome = self.mount(role);
        if role != Role::Command
            && let Err(failure) = &outcome
        {
            // The process that waits for us prints it. After `ready` none waits, and the log has it.
            print(&failure.0)?;
        }
        outcome
    }

    fn mount(&self, role: Role) -> Outcome {
        let registry = Registry::of_this_user()?;
        registry.make_runtime_dir()?;
        let (Some(word), Some(dir)) = (&self.pool, &self.dir) else {
            return self.run_by_properties(&registry);
        };
        // A supervisor that replaces another has its server's arguments.
        let adopts = role == Role::Supervisor && std::env::var_os(ADOPT_VARIABLE).is_some();
        let given = |variable| std::env::var_os(variable).filter(|_| role == Role::Server || adopts);
        let source = given(SOURCE_VARIABLE).and_then(|source| source.into_string().ok());
        let source = source.or(self.helper_call.as_ref().map(|helper| helper.source.clone()));
        let pool = given(DEVICE_VARIABLE).and_then(|path| path.into_string().ok());
        let inherited = match role {
            Role::Server => Inherited::of_this_process()?,
            Role::Command if self.foreground => Inherited::of_this_process()?,
            _ => None,
        };
        let (target, dataset) = match (&inherited, &pool) {
            (Some(Inherited { device: Some(device), .. }), _) => {
                let word = target::split_mountable(word).map_or(word.as_str(), |(pool, _)| pool);
                let known = match &pool {
                    Some(path) => PathBuf::from(path),
                    None => registry.pools()?.remove(word).unwrap_or_else(|| word.into()),
                };
                (target::find_at(&members::locate_device(device, &known)?)?, String::new())
            }
            (_, Some(device)) => {
                let dataset = given(DATASET_VARIABLE).and_then(|path| path.into_string().ok());
                (target::find(&registry, device)?, dataset.unwrap_or_default())
            }
            (_, None) => target::find_mountable(&registry, word)?,
        };
        let uid = sys::process_user()?.uid;
        let source = source.unwrap_or_else(|| full_name(&target.name, &dataset));
        let defaults = mount_options::defaults(source.clone())?;
        let (daemon_options, rest) = self.daemon_options();
        if rest.iter().any(|word| word == "remount") {
            return remount::remount(&registry, &resolve_dir(dir)?, &rest);
        }
        let options = ParsedOptions::parse(&rest, defaults)?;
        if dataset.contains('@') && options.is_writable {
            return Err(refuse_writable_snapshot(&full_name(&target.name, &dataset)));
        }
        if let Some(inherited) = &inherited
            && options.ends_on_crash
            && !inherited.facts.orderly
        {
            // With the last descriptor the connection ends, and callers get errors; the next start mounts
            // again.
            if let Some(holder) = FdStore::of_this_process() {
                holder.drop_all()?;
            }
            let (at, expected) = (inherited.facts.first.dir.display(), "a server that handed over");
            let found = "a server that was killed, with on_crash=end";
            return Err(Failure::refused(at, expected, found, "mount it again"));
        }
        // The mount point of a mount without a server cannot be accessed.
        let dir = match (&inherited, given(DIR_VARIABLE)) {
            (Some(inherited), _) => inherited.facts.first.dir.clone(),
            (None, Some(dir)) => PathBuf::from(dir),
            (None, None) => resolve_dir(dir)?,
        };
        if target.path.starts_with(&dir) {
            return Err(Failure::refused(
                target.path.display(),
                "a device outside of its own mount",
                format!("one below {}", dir.display()),
                "mount it elsewhere, or move the file",
            ));
        }
        let dry_run = self.helper_call.as_ref().is_some_and(|helper| helper.dry_run);
        let begins = role == Role::Command && inherited.is_none() && !dry_run;
        let mount_lock = begins.then(|| registry.lock_mount(&target.name)).transpose()?;
        if role == Role::Command
            && inherited.is_none()
            && let Some(found) = lasting_daemon(&registry, &target, Some(&dataset))?
        {
            let greeting = &found.daemon.greeting;
            let matched = match_pool(greeting, &target);
            if matched == PoolMatch::Copy {
                return Err(refuse_copy(greeting, &target));
            }
            if matched == PoolMatch::SameName {
                // Commands reach a daemon by the name of its pool.
                let expected = "a name that no mounted pool has";
                let there = format!("pool {} ({}) mounted already", greeting.pool, greeting.device.display());
                return Err(Failure::refused(
                    target.path.display(),
                    expected,
                    there,
                    "unmount that one first",
                ));
            }
            let request = beside::Request { dataset, dir, options, words: rest, source, dry_run };
            if let Some(mount) = greeting.mount_of(&request.dataset) {
                return request.add_place(&found.daemon, &mount, &found.places_of(&mount), uid);
            }
            if daemon_options != DaemonOptions::default() {
                let (at, expected) = ("--log and --metrics", "the first mount of a pool");
                return Err(Failure::refused(at, expected, "a pool that is served already", "omit them"));
            }
            return request.mount(&registry, &target, found.daemon);
        }
        if dry_run {
            return Ok(());
        }
        if role == Role::Command && inherited.is_none() {
            members::warn_of_access(&target.path);
        }
        match role {
            Role::Command if !self.foreground => {
                let ours = registry.log_path(&target.name);
                let started = self.start_in_background(daemon_options.log.as_ref().unwrap_or(&ours));
                drop(mount_lock);
                started
            }
            Role::Supervisor => run_supervisor(registry, target, (dataset, dir), &options),
            Role::Command | Role::Server => {
                if role == Role::Server {
                    // The daemon must not keep any directory busy.
                    std::env::set_current_dir("/")?;
                }
                // In the background standard error is the file already.
                let log = daemon_options.log.filter(|_| role == Role::Command);
                let log = log.map(|path| std::path::absolute(&path).map_err(Failure::io("finding", &path)));
                let log = log.transpose()?;
                let file = log
                    .as_ref()
                    .map(|path| logger::open(path).map_err(Failure::io("opening the log", path)))
                    .transpose()?;
                let path = log.or_else(|| given(LOG_VARIABLE).map(PathBuf::from));
                // If the user named the file, rotating it is not our task.
                let rotates = path.as_ref() == Some(&registry.log_path(&target.name));
                logger::serve(&target.name, file, path);
                logger::start_maintenance(rotates)?;
                let metrics = daemon_options.metrics.map(|address| metrics::listen(&address)).transpose();
                let metrics = match metrics {
                    // Not worth ending an existing mount for.
                    Err(failure) if inherited.is_some() => {
                        log::error!("{failure}");
                        None
                    }
                    metrics => metrics?,
                };
                run_server(&registry, (target, dataset, dir), options, (inherited, mount_lock), metrics, role)
            }
        }
    }

    /// The command line for the supervisor: ours, unless another program's name started us.
    fn command_line(&self) -> Vec<OsString> {
        if self.helper_call.is_none() {
            return std::env::args_os().skip(1).collect();
        }
        let options = self.options.iter().flat_map(|words| ["-o".to_owned(), words.clone()]);
        let words =
            ["mount".to_owned()].into_iter().chain(options).chain(["--".to_owned()]).chain(self.pool.clone());
        words.map(OsString::from).chain(self.dir.clone().map(PathBuf::into_os_string)).collect()
    }

    fn start_in_background(&self, log: &Path) -> Outcome {
        let file = logger::open(log).map_err(Failure::io("opening the log", log))?;
        let mut command = this_program();
        command.env(LOG_VARIABLE, std::path::absolute(log).map_err(Failure::io("finding", log))?);
        command.args(self.command_line()).env(ROLE_VARIABLE, ROLE_SUPERVISOR).env_remove(ADOPT_VARIABLE);
        if let Some(helper) = &self.helper_call {
            command.env(SOURCE_VARIABLE, &helper.source);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn()?;
        let mut reply = Vec::new();
        if let Some(pipe) = &mut child.stdout {
            // Reads to the `ready` message or end of file: the child keeps the pipe for as long as it lives.
            let mut piece = [0; 4096];
            while reply != READY.as_bytes() {
                match pipe.read(&mut piece)? {
                    0 => break,
                    len => reply.extend_from_slice(piece.get(..len).unwrap_or(&[])),
                }
            }
        }
        if reply == READY.as_bytes() {
            return Ok(());
        }
        let status = child.wait()?;
        match String::from_utf8_lossy(&reply).trim() {
            "" => Err(Failure(format!(
                "mount failed: its process ended before it was ready ({status}); see {}",
                log.display()
            ))),
            text => Err(Failure(text.to_owned())),
        }
    }
}

/// The main function of the supervisor.
fn run_supervisor(
    registry: Registry,
    target: Target,
    (dataset, dir): (String, PathBuf),
    options: &ParsedOptions,
) -> Outcome {
    logger::serve(&target.name, None, std::env::var_os(LOG_VARIABLE).map(PathBuf::from));
    terrane_fuse::process::detach_from_terminal()?;
    std::env::set_current_dir("/")?;
    let source = std::env::var_os(SOURCE_VARIABLE).unwrap_or_else(|| options.mount.source.clone().into());
    let environment = vec![
        (ROLE_VARIABLE, ROLE_SERVER.into()),
        (DEVICE_VARIABLE, target.path.clone().into_os_string()),
        (DATASET_VARIABLE, dataset.into()),
        (DIR_VARIABLE, dir.clone().into_os_string()),
        (SOURCE_VARIABLE, source),
    ];
    let ends_on_crash = options.ends_on_crash;
    let adopted = std::env::var(ADOPT_VARIABLE).ok().and_then(|pid| pid.parse().ok());
    match (Supervisor { registry, pool: target.name, dir, environment, ends_on_crash, adopted }).run()? {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}

/// The main function of a server.
fn run_server(
    registry: &Registry,
    (target, dataset, dir): (Target, String, PathBuf),
    mut options: ParsedOptions,
    (inherited, mount_lock): (Option<Inherited>, Option<File>),
    metrics: Option<TcpListener>,
    role: Role,
) -> Outcome {
    let facts = inherited.as_ref().map(|inherited| &inherited.facts);
    if let Some(read_only) = facts.and_then(|facts| facts.read_only) {
        (options.mount.read_only, options.import.read_only) = (read_only, read_only);
    }
    // The predecessor wrote behind the txg that was rewound to; what it committed is valid.
    if inherited.as_ref().is_some_and(Inherited::was_writable) {
        options.import.rewind = None;
    }
    let memory = facts.and_then(|facts| facts.memory).map(MemoryBudget::of).or(options.memory);
    let memory = memory.unwrap_or_else(MemoryBudget::of_this_machine);
    let mut import = options.import.clone();
    memory.apply_to_import(&mut import);
    let (record, follow) = (options.record.take(), options.follow);
    let is_crashproof = options.is_crashproof;
    let first = MountSpec::of_options(dataset, dir.clone(), options, None);
    let (name, at) = (target.name.clone(), dir.clone());
    let ready = move || {
        // From here on another mount of that name finds this one.
        drop(mount_lock);
        if let Some(holder) = FdStore::of_this_process()
            && let Err(failure) = holder.ready(&name, &at)
        {
            log::error!("service manager not notified: {failure}");
        }
        if role == Role::Server {
            // Fails if the waiting command was interrupted, or does not exist after a restart: the mount
            // stays.
            let _ = print(READY);
        }
    };
    daemon::serve(
        ServePlan { target, first, import, memory, is_crashproof, follow, record, metrics, inherited },
        registry,
        ready,
    )
}

/// The remedy if a read-only mount prevents a writable one.
fn remount_text(dir: &Path) -> String {
    format!("use -o ro, or first: mount -o remount,rw {}", dir.display())
}

/// Refuses to mount a snapshot for writing.
fn refuse_writable_snapshot(name: &str) -> Failure {
    let remedy = format!("omit rw, or make a data set of it: terrane fs clone {name} NAME");
    Failure::refused(name, "a data set, to be mounted for writing", "a snapshot, which never changes", remedy)
}

impl Restart {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        if self.all {
            // A server that does not answer must not exclude the others from an upgrade.
            let survey = Survey::of(&registry)?;
            let not_answering = survey.not_answering.iter().map(|(name, _)| control::not_answering(name));
            let restarted =
                survey.daemons.into_iter().map(|found| step_back(&registry, found.daemon, RESTART));
            let failures: Vec<String> = restarted
                .filter_map(Outcome::err)
                .chain(not_answering)
                .map(|Failure(reason)| reason)
                .collect();
            return if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) };
        }
        for word in &self.pools {
            let target = target::find(&registry, word)?;
            let daemon = daemon_of(&registry, &target)?;
            let daemon = daemon.ok_or_else(|| Failure(format!("pool {} is not mounted", target.name)))?;
            step_back(&registry, daemon, RESTART)?;
        }
        Ok(())
    }
}

/// Replaces the server, and changes nothing.
const RESTART: control::Command = control::Command::StepBack { read_only: None };

/// Has the server step back by this command, and waits for the next one.
pub fn step_back(registry: &Registry, daemon: Daemon, command: control::Command) -> Outcome<Daemon> {
    let (pool, pid) = (daemon.greeting.pool.clone(), daemon.greeting.pid);
    daemon.ask(&command, &mut |_, _, _| {})?;
    // The socket stays the same one: this waits for the next process that answers on it.
    match control::connect(&registry.control_socket(&pool))? {
        Some(next) if next.greeting.pid != pid => Ok(next),
        _ => Err(Failure(format!(
            "pool {pool}: restart failed: no new server answers; see {}",
            registry.log_path(&pool).display()
        ))),
    }
}

impl Sync {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let (target, _) = target::find_mountable(&registry, &self.pool)?;
        let Some(found) = write_back_pool(&registry, &target)? else {
            // No process has the pool open, so everything is committed.
            return target::read_label(&target.path).map(drop);
        };
        // Also if that failed: the rest is committed.
        found.daemon.ask(&control::Command::Sync, &mut |_, _, _| {})?;
        found.outcome
    }
}

/// The server of a pool, after the kernel has written back.
pub struct WrittenBack {
    pub daemon: Daemon,
    /// Whether the kernel has written back all dirty pages of the mounts.
    pub outcome: Outcome,
    /// Whether the server has answered all that the kernel sent. Some kernels do not wait for that.
    pub is_answered: bool,
}

/// Has the kernel write back what only it holds: pages written through mmap. It does not forward syncfs to a FUSE server. `None`: no
/// process has the pool open.
pub fn write_back_pool(registry: &Registry, target: &Target) -> Outcome<Option<WrittenBack>> {
    // Connecting twice takes as long as half a commit. If mounts are changing, the sure way follows. But the kernel reports an error of
    // a write-back once, so nothing is written back twice.
    if let Some(found) = mounted_daemon_as_of_now(registry, &target.name)?
        && match_pool(&found.daemon.greeting, target) == PoolMatch::Same
        && found
            .daemon
            .greeting
            .all_mounts()
            .iter()
            .all(|mount| found.mounts.iter().any(|row| row.dev == mount.dev))
    {
        return Ok(Some(write_back_mounts(found)));
    }
    let found = mounted_daemon(registry, &target.name)?;
    if let Some(MountedDaemon { daemon, .. }) = &found
        && match_pool(&daemon.greeting, target) == PoolMatch::Copy
    {
        return Err(refuse_copy(&daemon.greeting, target));
    }
    let is_it = |daemon: &Daemon| match_pool(&daemon.greeting, target) == PoolMatch::Same;
    Ok(found.filter(|found| is_it(&found.daemon)).map(write_back_mounts))
}

fn write_back_mounts(MountedDaemon { daemon, mounts }: MountedDaemon) -> WrittenBack {
    let devs: Vec<String> = daemon.greeting.all_mounts().into_iter().map(|mount| mount.dev).collect();
    let written_back: Outcome<Vec<bool>> = devs.iter().map(|dev| write_back(dev, &mounts)).collect();
    let is_answered = devs.iter().all(|dev| is_answered(dev));
    let outcome = match written_back {
        Ok(reached) if reached.iter().all(|is_reached| *is_reached) => Ok(()),
        Ok(_) => Err(Failure::refused(
            format_args!("pool {}", daemon.greeting.pool),
            "a mount that is visible in this mount namespace",
            "none: dirty pages of the kernel not written back",
            "have programs sync their memory mappings themselves, or run this where it is mounted",
        )),
        Err(failure) => Err(failure),
    };
    WrittenBack { daemon, outcome, is_answered }
}

/// Whether the kernel has no unanswered request for the mount, at once or soon.
fn is_answered(dev: &str) -> bool {
    let connection = dev.rsplit(':').next().unwrap_or_default();
    let waiting = Path::new("/sys/fs/fuse/connections").join(connection).join("waiting");
    let end = Instant::now() + ANSWER_PATIENCE;
    loop {
        match fs::read_to_string(&waiting) {
            Ok(count) if count.trim() == "0" => return true,
            Ok(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            _ => return false,
        }
    }
}

/// Has the kernel write back its dirty pages of the mount. False: no mount of it can be reached from here.
fn write_back(of: &str, mounts: &[MountEntry]) -> Outcome<bool> {
    for dir in mounts.iter().rev().filter(|entry| entry.dev == of).map(|entry| &entry.dir) {
        // One mount may be unreachable or covered by another, and the next one not.
        let root = File::open(dir).and_then(|root| Ok((dev_number(root.metadata()?.dev()), root)));
        if let Ok((dev, root)) = root
            && dev == of
        {
            terrane_fuse::process::sync_fs(&root).map_err(Failure::io("writing back", dir))?;
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_a_directory_that_exists() {
        assert!(resolve_dir(Path::new("/nowhere/at/all")).unwrap_err().0.contains("/nowhere/at/all"));
        assert!(resolve_dir(Path::new("/etc/passwd")).unwrap_err().0.contains("a directory"));
        assert_eq!(resolve_dir(Path::new("/proc/self/../../tmp/.")).unwrap(), Path::new("/tmp"));
    }
}
