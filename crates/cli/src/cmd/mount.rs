//! `terrane mount`, `umount`, `restart` and `sync`.
//!
//! A mount in the background runs this program three times. The command starts a keeper ([`crate::keeper`])
//! with the same arguments, and the keeper starts the server. The server's first output reaches the command
//! through the standard output that they share. So no process with threads is forked, and an error is printed
//! where the command was typed.

pub mod helper;
mod options;
mod remount;

use super::{
    Kinship, ServedBy, Standing, Survey, daemon_and_places, daemon_of, daemon_that_stays, is_source, kinship,
    print, refuse_copy, served_by,
};
use crate::control::{self, Daemon, How, Leaving, PATIENCE, Reached, STOP_PATIENCE, SURVEY_PATIENCE};
use crate::daemon::{self, Plan};
use crate::failure::{Failure, Outcome};
use crate::help::OPTION_HELP;
use crate::holder::{ADOPT_VARIABLE, Holder, Legacy, ROLE_KEEPER, ROLE_SERVER, ROLE_VARIABLE, this_program};
use crate::keeper::Keeper;
use crate::members;
use crate::memory::Memory;
use crate::registry::Registry;
use crate::sys;
use crate::target::{self, Target};
use crate::{logger, metrics};
use clap::Args;
use options::Words;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use terrane_fuse::mount::{MountedAt, Top, abort_connection, also_at, mounted, number_of, top_at};
use terrane_fuse::{MountOptions, UnmountHandle};

/// Set for the server: arguments as the command resolved them in its own directory.
const DEVICE_VARIABLE: &str = "TERRANE_DEVICE";
const DIR_VARIABLE: &str = "TERRANE_DIR";
/// Set for the server: what `mount` shows as the source, if it is not the pool's name.
const SOURCE_VARIABLE: &str = "TERRANE_SOURCE";
const READY: &str = "ready\n";
/// Set for keeper and server: the file that their standard error is.
const LOG_VARIABLE: &str = "TERRANE_LOG";

/// Mount a pool
///
/// The mount goes on when its server crashes or is upgraded: callers wait until the next one has begun. A pool that is mounted
/// already is shown at one more place.
#[derive(Args)]
#[command(after_help = OPTION_HELP)]
pub struct Mount {
    /// A pool, by name or by device
    pool: String,
    dir: PathBuf,
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground, and log to standard error; the mount ends with this process, unless systemd keeps it
    #[arg(short = 'f', long)]
    foreground: bool,
    /// All memory the daemon may take: cached blocks, dirty data, inodes, requests
    /// [default: an eighth of the machine's, at most half of what its cgroup may have, at most 4G]
    #[arg(long, value_name = "SIZE", value_parser = options::memory_size)]
    memory: Option<u64>,
    /// Write events to this file, one line of key=value pairs each; RUST_LOG chooses which (info), SIGHUP opens the file again
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Answer `GET /metrics` over HTTP there, for Prometheus; nobody is asked who they are
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// As another program's command line had it.
    #[arg(skip)]
    as_helper: Option<AsHelper>,
}

/// What differs if mount(8) started this program.
#[derive(Clone)]
struct AsHelper {
    /// The first field of fstab, which `mount` must show again.
    source: String,
    /// Check only, mount nothing.
    dry_run: bool,
}

/// Unmount a pool, and wait until everything is committed
///
/// A directory is unmounted alone; with its last directory the pool is closed. A pool's name means all of its directories. Where
/// another mount namespace (a container, a service with mounts of its own) still has the mount, the pool stays open: then this fails
/// after --timeout and names who has it.
#[derive(Args)]
pub struct Umount {
    /// Where it is mounted, or a pool by name or by device
    #[arg(value_name = "DIR|POOL")]
    what: String,
    /// Take it out of the directory tree although it is in use; the pool is closed when its last user has gone
    #[arg(short, long, conflicts_with = "force")]
    lazy: bool,
    /// Commit, then end the mount everywhere: who still uses it gets errors, in other mount namespaces too
    #[arg(short, long)]
    force: bool,
    /// How long to wait for users in other mount namespaces
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    timeout: u64,
}

/// Have the server of a mount replaced, by a newer program after an upgrade
///
/// It commits everything and ends, and the program that is installed now goes on. Callers on the mount wait and notice nothing else;
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
    pool: String,
}

/// What the daemon does beside serving files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Beside {
    log: Option<PathBuf>,
    metrics: Option<String>,
}

impl Mount {
    /// Options for the daemon itself, and the remaining ones. A line of fstab has only words.
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
        rest.extend(self.memory.map(|bytes| format!("memory={bytes}")));
        beside.log = self.log.clone().or(beside.log);
        beside.metrics = self.metrics.clone().or(beside.metrics);
        (beside, rest)
    }
}

/// Which of the three processes this is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Started by a user or a script.
    Command,
    Keeper,
    Server,
}

impl Role {
    fn of_this_process() -> Role {
        match std::env::var_os(ROLE_VARIABLE) {
            Some(role) if role == ROLE_KEEPER => Role::Keeper,
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
    if let Some(place) = resolve_parent(dir)
        && mounted().is_ok_and(|rows| rows.iter().any(|row| row.dir == place))
    {
        return Ok(place);
    }
    // If a server is mounted here, this asks it. The path alone comes from the kernel.
    match dir.metadata() {
        Ok(meta) if meta.is_dir() => dir.canonicalize().map_err(finding()),
        Ok(_) => Err(Failure::refused(dir.display(), "a directory", "something else", "name a directory")),
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
        registry.prepare()?;
        // A keeper that replaces another has its server's arguments.
        let adopts = role == Role::Keeper && std::env::var_os(ADOPT_VARIABLE).is_some();
        let given = |variable| std::env::var_os(variable).filter(|_| role == Role::Server || adopts);
        let source = given(SOURCE_VARIABLE).and_then(|source| source.into_string().ok());
        let source = source.or(self.as_helper.as_ref().map(|helper| helper.source.clone()));
        let pool = given(DEVICE_VARIABLE).and_then(|path| path.into_string().ok());
        let legacy = match role {
            Role::Server => Legacy::of_this_process()?,
            Role::Command if self.foreground => Legacy::of_this_process()?,
            _ => None,
        };
        let word = pool.as_ref().unwrap_or(&self.pool);
        let target = match legacy.as_ref().and_then(|legacy| legacy.device.as_ref()) {
            Some(device) => {
                let known = registry.pools()?.remove(word).unwrap_or_else(|| PathBuf::from(word));
                target::find_at(&members::whereabouts(device, &known)?)?
            }
            None => target::find(&registry, word)?,
        };
        let uid = sys::who()?.uid;
        let source = source.unwrap_or_else(|| target.name.clone());
        let defaults = match uid {
            0 => MountOptions::for_root(source),
            _ => MountOptions { source, ..MountOptions::default() },
        };
        let (beside, rest) = self.beside();
        if rest.iter().any(|word| word == "remount") {
            return remount::remount(&registry, &resolve_dir(&self.dir)?, &rest);
        }
        let words = Words::parse(&rest, defaults)?;
        if let Some(legacy) = &legacy
            && words.ends_on_crash
            && !legacy.facts.orderly
        {
            // With the last descriptor the connection ends, and callers get errors; the next start mounts
            // again.
            if let Some(holder) = Holder::of_this_process() {
                holder.let_go()?;
            }
            let (at, expected) = (legacy.facts.dir.display(), "a server that stepped back");
            let found = "one that was killed, and on_crash=end";
            return Err(Failure::refused(at, expected, found, "mount it again"));
        }
        // The mount point of a mount without a server cannot be accessed.
        let dir = match (&legacy, given(DIR_VARIABLE)) {
            (Some(legacy), _) => legacy.facts.dir.clone(),
            (None, Some(dir)) => PathBuf::from(dir),
            (None, None) => resolve_dir(&self.dir)?,
        };
        if target.path.starts_with(&dir) {
            return Err(Failure::refused(
                target.path.display(),
                "a device outside of its own mount",
                format!("one below {}", dir.display()),
                "mount it elsewhere, or move the file",
            ));
        }
        let dry_run = self.as_helper.as_ref().is_some_and(|helper| helper.dry_run);
        let begins = role == Role::Command && legacy.is_none() && !dry_run;
        let beginning = begins.then(|| registry.lock_mount(&target.name)).transpose()?;
        if role == Role::Command
            && legacy.is_none()
            && let Some(Standing { daemon, places }) = daemon_that_stays(&registry, &target)?
        {
            let kinship = kinship(&daemon.greeting, &target);
            if kinship == Kinship::Copy {
                return Err(refuse_copy(&daemon.greeting, &target));
            }
            if kinship == Kinship::Namesake {
                // Commands reach a daemon by the name of its pool.
                let (there, expected) = (&daemon.greeting, "a pool whose name no mounted one has");
                let found = format!("pool {} ({}) mounted already", there.pool, there.device.display());
                return Err(Failure::refused(
                    target.path.display(),
                    expected,
                    found,
                    "unmount that one first",
                ));
            }
            return mount_also(&daemon, &places, &dir, &words, uid, dry_run);
        }
        if dry_run {
            return Ok(());
        }
        if role == Role::Command && legacy.is_none() {
            members::warn_of_access(&target.path);
        }
        match role {
            Role::Command if !self.foreground => {
                let ours = registry.log(&target.name);
                let started = self.start_in_background(beside.log.as_ref().unwrap_or(&ours));
                drop(beginning);
                started
            }
            Role::Keeper => keep(registry, target, dir, &words),
            Role::Command | Role::Server => {
                if role == Role::Server {
                    // The daemon must not keep any directory busy.
                    std::env::set_current_dir("/")?;
                }
                // In the background standard error is the file already.
                let log = beside.log.filter(|_| role == Role::Command);
                let log = log.map(|path| std::path::absolute(&path).map_err(Failure::io("finding", &path)));
                let log = log.transpose()?;
                let file = log
                    .as_ref()
                    .map(|path| logger::open(path).map_err(Failure::io("opening the log", path)))
                    .transpose()?;
                let path = log.or_else(|| given(LOG_VARIABLE).map(PathBuf::from));
                // If the user named the file, rotating it is not our task.
                let rotates = path.as_ref() == Some(&registry.log(&target.name));
                logger::serve(&target.name, file, path);
                logger::watch(rotates)?;
                let metrics = beside.metrics.map(|address| metrics::listen(&address)).transpose();
                let metrics = match metrics {
                    // Not worth ending an existing mount for.
                    Err(failure) if legacy.is_some() => {
                        log::error!("{failure}");
                        None
                    }
                    metrics => metrics?,
                };
                serve(&registry, (target, dir), words, (legacy, beginning), metrics, role)
            }
        }
    }

    /// The command line for the keeper: ours, unless another program's name started us.
    fn command_line(&self) -> Vec<OsString> {
        if self.as_helper.is_none() {
            return std::env::args_os().skip(1).collect();
        }
        let options = self.options.iter().flat_map(|words| ["-o".to_owned(), words.clone()]);
        let words =
            ["mount".to_owned()].into_iter().chain(options).chain(["--".to_owned(), self.pool.clone()]);
        words.map(OsString::from).chain([self.dir.clone().into_os_string()]).collect()
    }

    fn start_in_background(&self, log: &Path) -> Outcome {
        let file = logger::open(log).map_err(Failure::io("opening the log", log))?;
        let mut command = this_program();
        command.env(LOG_VARIABLE, std::path::absolute(log).map_err(Failure::io("finding", log))?);
        command.args(self.command_line()).env(ROLE_VARIABLE, ROLE_KEEPER).env_remove(ADOPT_VARIABLE);
        if let Some(helper) = &self.as_helper {
            command.env(SOURCE_VARIABLE, &helper.source);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn()?;
        let mut said = Vec::new();
        if let Some(pipe) = &mut child.stdout {
            // Reads to the `ready` message or end of file: the child keeps the pipe for as long as it lives.
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
}

/// The main function of the keeper.
fn keep(registry: Registry, target: Target, dir: PathBuf, words: &Words) -> Outcome {
    logger::serve(&target.name, None, std::env::var_os(LOG_VARIABLE).map(PathBuf::from));
    terrane_fuse::process::leave_session()?;
    std::env::set_current_dir("/")?;
    let source = std::env::var_os(SOURCE_VARIABLE).unwrap_or_else(|| words.mount.source.clone().into());
    let environment = vec![
        (ROLE_VARIABLE, ROLE_SERVER.into()),
        (DEVICE_VARIABLE, target.path.clone().into_os_string()),
        (DIR_VARIABLE, dir.clone().into_os_string()),
        (SOURCE_VARIABLE, source),
    ];
    let ends_on_crash = words.ends_on_crash;
    let adopted = std::env::var(ADOPT_VARIABLE).ok().and_then(|pid| pid.parse().ok());
    match (Keeper { registry, pool: target.name, dir, environment, ends_on_crash, adopted }).run()? {
        0 => Ok(()),
        code => std::process::exit(code.into()),
    }
}

/// The main function of a server.
fn serve(
    registry: &Registry,
    (target, dir): (Target, PathBuf),
    words: Words,
    (legacy, beginning): (Option<Legacy>, Option<File>),
    metrics: Option<TcpListener>,
    role: Role,
) -> Outcome {
    let Words { mut mount, mut import, memory, properties, record, .. } = words;
    let facts = legacy.as_ref().map(|legacy| &legacy.facts);
    if let Some(read_only) = facts.and_then(|facts| facts.read_only) {
        (mount.read_only, import.read_only) = (read_only, read_only);
    }
    // The predecessor wrote behind the txg that was rewound to; what it committed is valid.
    if legacy.as_ref().is_some_and(|legacy| legacy.ledger.is_some()) {
        import.rewind = None;
    }
    let memory = facts.and_then(|facts| facts.memory).map(Memory::of).or(memory);
    let memory = memory.unwrap_or_else(Memory::of_this_machine);
    memory.share(&mut import);
    let (name, at) = (target.name.clone(), dir.clone());
    let ready = move || {
        // From here on another mount of that name finds this one.
        drop(beginning);
        if let Some(holder) = Holder::of_this_process()
            && let Err(failure) = holder.ready(&name, &at)
        {
            log::error!("{failure}");
        }
        if role == Role::Server {
            // Fails if the waiting command was interrupted, or does not exist after a restart: the mount
            // stays.
            let _ = print(READY);
        }
    };
    daemon::serve(
        Plan { target, dir, mount, import, memory, properties, record, metrics, legacy },
        registry,
        ready,
    )
}

/// Shows a mounted pool at one more mount point.
fn mount_also(
    daemon: &Daemon,
    places: &[MountedAt],
    dir: &Path,
    words: &Words,
    uid: u32,
    dry_run: bool,
) -> Outcome {
    let there = &daemon.greeting;
    let pool = format!("pool {} ({})", there.pool, there.device.display());
    let mounted = format!("mounted on {} already, by process {}", there.mountpoint.display(), there.pid);
    if uid != 0 || places.iter().any(|row| row.dir == dir) {
        let remedy = if uid != 0 { "; only root can show it at a second place" } else { "" };
        return Err(Failure(format!("{pool} is {mounted}{remedy}")));
    }
    let Some(from) = places.last() else {
        return Err(Failure(format!("{pool} is {mounted}, and cannot be seen from here")));
    };
    if let Some(word) = words.of_pool.first() {
        let expected = "an option of one place (ro, nosuid, noatime and the like)";
        return Err(Failure::refused(
            format_args!("mount option {word:?} for a second place of pool {}", there.pool),
            expected,
            "one of the whole mount",
            format_args!("leave it out: {} was mounted with what holds for all", there.mountpoint.display()),
        ));
    }
    let fixed = from.has("ro");
    if fixed && !words.mount.read_only {
        let remedy = format!("say -o ro, or first: mount -o remount,rw {}", from.dir.display());
        return Err(Failure::refused(pool, "a pool mounted for writing", "one mounted read-only", remedy));
    }
    let wanted = words.mount.clone().of_file_system(from);
    words.judge_identities(&wanted)?;
    if dry_run {
        return Ok(());
    }
    // The root of the pool, not of a file system that was mounted over one of its mount points.
    let Some(root) = places.iter().rev().find_map(|place| place.open_place().ok()) else {
        let (expected, found) = ("a mount that can be reached", "another file system mounted over each");
        return Err(Failure::refused(pool, expected, found, "unmount that first"));
    };
    Ok(also_at(Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())), dir, &wanted)?)
}

impl Umount {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        // A pool of that name has precedence over a directory of that name.
        if let Some(device) = registry.pools()?.get(&self.what) {
            match control::reach(&registry.socket(&self.what), self.patience())? {
                Reached::Daemon(_) => {
                    if let Some(daemon) = daemon_of(&registry, &target::find_known(&registry, &self.what)?)? {
                        return self.stop(&registry, daemon);
                    }
                }
                Reached::Nobody => {}
                Reached::Silent => {
                    let rows = mounted()?;
                    let places: Vec<_> =
                        rows.iter().filter(|row| is_source(row, &self.what, device)).collect();
                    return self.leave_silent(&self.what, &places);
                }
            }
        }
        let dir = resolve_dir(Path::new(&self.what)).ok();
        if let Some(dir) = &dir {
            match top_at(dir).map_err(Failure::io("looking at", dir))? {
                Top::Ours(place) => return self.unmount(&registry, &place),
                Top::Other(found) if mounted()?.iter().any(|row| row.dir == *dir) => {
                    let (at, expected) = (dir.display(), "the mount of a pool on top");
                    let found = format!("{found} mounted over it");
                    return Err(Failure::refused(at, expected, found, "unmount that first"));
                }
                Top::Other(_) | Top::Nothing => {}
            }
            // Not visible here, but it may be ending, or be mounted in another namespace.
            let survey = Survey::of(&registry)?;
            let was_here =
                |found: &Standing| found.daemon.greeting.mountpoint == *dir && found.places.is_empty();
            if let Some(Standing { daemon, .. }) = survey.standing.into_iter().find(was_here) {
                return self.stop(&registry, daemon);
            }
            // A directory must be a mount point; any other path may be a pool that is not mounted.
            return Err(Failure(format!("{}: no terrane pool is mounted there", dir.display())));
        }
        let target = target::find(&registry, &self.what)?;
        match daemon_of(&registry, &target)? {
            Some(daemon) => self.stop(&registry, daemon),
            None => Err(Failure(format!("pool {} is not mounted", target.name))),
        }
    }

    /// How long to wait for a server's greeting; short with `--force` or `--lazy`.
    fn patience(&self) -> Duration {
        if self.force || self.lazy { SURVEY_PATIENCE } else { PATIENCE }
    }

    /// One mount, if it is the topmost one at its path.
    fn unmount(&self, registry: &Registry, place: &MountedAt) -> Outcome {
        match served_by(registry, place, self.patience())? {
            ServedBy::Daemon(Standing { daemon, places }) if places.iter().all(|row| row.id == place.id) => {
                self.stop(registry, daemon)
            }
            ServedBy::Silent(name) => self.leave_silent(&name, &[place]),
            // The other mounts stay; or its server has died, or belongs to another user.
            _ if self.force || self.lazy => Ok(UnmountHandle::of(place).detach()?),
            _ => Ok(UnmountHandle::of(place).unmount()?),
        }
    }

    fn stop(&self, registry: &Registry, daemon: Daemon) -> Outcome {
        let pool = daemon.greeting.pool.clone();
        let how = match (self.lazy, self.force) {
            (true, _) => How::Lazily,
            (_, true) => How::ByForce,
            _ => How::WhenIdle,
        };
        if self.force {
            // Until then only the kernel has what programs stored through mappings.
            write_back_within(&daemon, SURVEY_PATIENCE);
        }
        let question = control::Command::Stop { how, seconds: Some(self.timeout) };
        // The server itself reports if one of its steps takes too long.
        let patience = Duration::from_secs(self.timeout).saturating_add(STOP_PATIENCE);
        let leaving = Leaving::of(&daemon.greeting, &registry.keeper(&pool));
        let answer = daemon.ask_within(&question, patience)?;
        let Some(users) = answer["stays"].as_str() else {
            leaving.wait();
            return Ok(());
        };
        eprintln!(
            "terrane: pool {pool} left the directory tree; it is committed, and stays open for {users}"
        );
        Ok(())
    }

    /// Detaches the mounts of a pool whose server does not answer. If the server resumes, it commits what it
    /// has in memory and finds them gone.
    fn leave_silent(&self, pool: &str, places: &[&MountedAt]) -> Outcome {
        if !(self.force || self.lazy) {
            return Err(control::silent(pool));
        }
        for place in places.iter().rev() {
            UnmountHandle::of(place).detach()?;
        }
        if let Some(place) = places.first()
            && self.force
        {
            abort_connection(&place.dev)?;
        }
        eprintln!("terrane: pool {pool}: its server did not answer, and commits what it has when it goes on");
        Ok(())
    }
}

/// Has the kernel write back its dirty pages, as far as possible within this time.
fn write_back_within(daemon: &Daemon, patience: Duration) {
    let Ok(places) = mounted() else { return };
    let dev = daemon.greeting.dev.clone();
    let places: Vec<MountedAt> = places.into_iter().filter(|row| row.dev == dev).collect();
    let (tell, hear) = std::sync::mpsc::channel();
    let work = move || drop(tell.send(write_back(&dev, &places).map(drop)));
    let begun = std::thread::Builder::new().name("write back".into()).spawn(work);
    match begun.map(|_| hear.recv_timeout(patience)) {
        Ok(Ok(Ok(()))) => {}
        _ => eprintln!("terrane: not everything that the kernel holds could be written back"),
    }
}

impl Restart {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        if self.all {
            // A server that does not answer must not exclude the others from an upgrade.
            let survey = Survey::of(&registry)?;
            let silent = survey.silent.iter().map(|(name, _)| control::silent(name));
            let restarted = survey.standing.into_iter().map(|found| step_back(&registry, found.daemon, None));
            let failures: Vec<String> =
                restarted.filter_map(Outcome::err).chain(silent).map(|Failure(reason)| reason).collect();
            return if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) };
        }
        for word in &self.pools {
            let target = target::find(&registry, word)?;
            let daemon = daemon_of(&registry, &target)?;
            let daemon = daemon.ok_or_else(|| Failure(format!("pool {} is not mounted", target.name)))?;
            step_back(&registry, daemon, None)?;
        }
        Ok(())
    }
}

/// Has the server replaced, and waits for the next one.
fn step_back(registry: &Registry, daemon: Daemon, read_only: Option<bool>) -> Outcome {
    let (pool, pid) = (daemon.greeting.pool.clone(), daemon.greeting.pid);
    daemon.ask(&control::Command::StepBack { read_only }, &mut |_, _, _| {})?;
    // The socket stays the same one: this waits for the next process that answers on it.
    match control::connect(&registry.socket(&pool))? {
        Some(next) if next.greeting.pid != pid => Ok(()),
        _ => Err(Failure(format!("pool {pool}: no server followed; see {}", registry.log(&pool).display()))),
    }
}

impl Sync {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let target = target::find(&registry, &self.pool)?;
        let found = daemon_and_places(&registry, &target.name)?;
        if let Some(Standing { daemon, .. }) = &found
            && kinship(&daemon.greeting, &target) == Kinship::Copy
        {
            return Err(refuse_copy(&daemon.greeting, &target));
        }
        let is_it = |daemon: &Daemon| kinship(&daemon.greeting, &target) == Kinship::Same;
        let Some(Standing { daemon, places }) = found.filter(|found| is_it(&found.daemon)) else {
            // No process has the pool open, so everything is committed.
            return target::read_label(&target.path).map(drop);
        };
        // First what only the kernel holds (pages written through mmap); it does not forward syncfs to a FUSE
        // server.
        let written_back = write_back(&daemon.greeting.dev, &places);
        let pool = daemon.greeting.pool.clone();
        // Also if that failed: the rest is committed.
        daemon.ask(&control::Command::Sync, &mut |_, _, _| {})?;
        if written_back? {
            return Ok(());
        }
        let remedy =
            "programs that wrote through memory must sync it themselves, or run this where it is mounted";
        Err(Failure::refused(
            format_args!("pool {pool}"),
            "a mount that can be seen from here",
            "none: it was committed without what the kernel still holds",
            remedy,
        ))
    }
}

/// Has the kernel write back its dirty pages of the mount. False: no mount of it can be reached from here.
fn write_back(of: &str, places: &[MountedAt]) -> Outcome<bool> {
    for dir in places.iter().rev().map(|place| &place.dir) {
        // One mount may be unreachable or covered by another, and the next one not.
        let root = File::open(dir).and_then(|root| Ok((number_of(root.metadata()?.dev()), root)));
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
