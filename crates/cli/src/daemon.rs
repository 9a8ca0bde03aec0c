//! The process behind a mount.
//!
//! It opens the pool, mounts it, answers the kernel until the mount is gone, and commits what is left. How the mount goes does not
//! matter: `umount`, `fusermount3 -u`, `terrane umount` and signals all only unmount, and the end of the session is the one
//! place from which everything else follows. Meanwhile it answers questions on a socket ([`crate::control`]).
//!
//! Invariant: a socket that greets belongs to a pool that is mounted; between the end of the mount and the end of the process it
//! is silent.

use crate::control::{Caller, Greeting, STOP, SYNC};
use crate::failure::{Failure, Outcome};
use crate::live::{Live, Target};
use crate::metrics::{self, MountSide};
use crate::query::Query;
use crate::registry::Registry;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use terrane_fuse::{Dispatch, Metrics, MountOptions, Session, UnmountHandle};
use terrane_pool::ImportOptions;
use terrane_posix::Fs;

/// After a signal: how long users have to leave before the mount is taken out of the tree under them.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How long those who asked for the end may take to hear that it came.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(2);

/// What is to be mounted, where and how.
pub struct Plan {
    pub target: Target,
    pub dir: PathBuf,
    pub mount: MountOptions,
    pub import: ImportOptions,
    /// Where scrapers may ask.
    pub metrics: Option<TcpListener>,
}

struct Shared {
    live: Live,
    fs: Arc<Fs>,
    metrics: Arc<Metrics>,
    greeting: Greeting,
    unmount: UnmountHandle,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Default)]
struct Stage {
    ending: bool,
    ended: Option<Result<(), String>>,
    /// Conversations that wait for the end, to report it.
    waiting: usize,
}

impl Shared {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        // A thread that panicked with it left three plain fields, each of which is valid alone.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn metrics_page(&self) -> String {
        metrics::page(&self.live, Some(&MountSide { stats: self.metrics.snapshot(), fs: &self.fs }))
    }

    fn is_ending(&self) -> bool {
        self.stage().ending
    }

    fn wait_for_end(&self) -> Result<(), String> {
        let mut stage = self.stage();
        loop {
            match &stage.ended {
                Some(outcome) => return outcome.clone(),
                None => stage = self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Mounts, says so through `ready`, and returns when the mount has gone and the pool is closed.
pub fn serve(mut plan: Plan, registry: &Registry, ready: impl FnOnce()) -> Outcome {
    // Before the mount, so that no signal finds a mount and no handler.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let mut live = Live::open(&plan.target, &plan.import)?;
    let pool = Arc::clone(&live.pool);
    live.mountpoint = Some(plan.dir.clone());
    let begun = begin(live, &plan, registry);
    let (shared, session) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            pool.export()?;
            return Err(failure);
        }
    };
    let unmount = shared.unmount.clone();
    std::thread::spawn(move || leave_on_signals(signals, &unmount));
    if let Some(listener) = plan.metrics.take() {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || metrics::serve(listener, Arc::new(move || shared.metrics_page())));
    }
    let draining = Arc::clone(&shared);
    let drain = std::thread::spawn(move || drain_unlinked(&draining));

    let served = answer_kernel(&plan, &shared, session, ready);
    shared.stage().ending = true;
    log::info!("pool {}: the mount on {} is gone", plan.target.name, plan.dir.display());
    // It sees `ending` after one step.
    let _ = drain.join();
    let exported = shared.live.pool.export().map_err(|error| error.to_string());
    match &exported {
        Ok(()) => log::info!("pool {}: everything is committed", plan.target.name),
        Err(error) => log::error!("pool {}: {error}", plan.target.name),
    }
    // Whoever hears of the end may open the device at once, while this process is still on its way out.
    if let Err(error) = shared.live.device.backing().file().unlock() {
        log::warn!("the device stays locked until this process has ended: {error}");
    }
    farewell(&shared, exported.clone());
    let socket = registry.socket(&plan.target.name);
    if let Err(error) = std::fs::remove_file(&socket) {
        log::warn!("{}: {error}", socket.display());
    }
    exported.map_err(Failure)?;
    served
}

fn begin(live: Live, plan: &Plan, registry: &Registry) -> Outcome<(Arc<Shared>, Session)> {
    let fs = Arc::clone(live.fs()?);
    // The socket first: it can be refused, and a mount should not come and go for that.
    let listener = listen(&registry.socket(&plan.target.name))?;
    registry.remember(&plan.target.name, &plan.target.path)?;
    let session = Session::mount(&plan.dir, &plan.mount)?;
    let greeting = Greeting {
        pool: plan.target.name.clone(),
        id: live.pool.id(),
        device: plan.target.path.clone(),
        mountpoint: plan.dir.clone(),
        pid: std::process::id(),
    };
    let unmount = session.unmount_handle();
    let (stage, changed) = (Mutex::default(), Condvar::new());
    let shared = Arc::new(Shared { live, fs, metrics: Arc::default(), greeting, unmount, stage, changed });
    let serving = Arc::clone(&shared);
    std::thread::spawn(move || answer_callers(&serving, &listener));
    Ok((shared, session))
}

fn listen(socket: &Path) -> Outcome<UnixListener> {
    // We hold the device's lock, so whoever left it here is dead.
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::io("removing the old socket", socket)(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(Failure::io("listening on", socket))?;
    std::fs::set_permissions(socket, Permissions::from_mode(0o600))
        .map_err(Failure::io("closing to others", socket))?;
    Ok(listener)
}

fn answer_kernel(plan: &Plan, shared: &Shared, session: Session, ready: impl FnOnce()) -> Outcome {
    let negotiated = session.negotiate().map_err(Failure::io("agreeing with the kernel on", &plan.dir))?;
    let Some(negotiated) = negotiated else {
        return Err(Failure(format!("{}: unmounted before it was ready", plan.dir.display())));
    };
    let device = plan.target.path.display();
    log::info!(device:%, read_only = plan.mount.read_only; "mounted on {}", plan.dir.display());
    ready();
    let dispatch = Dispatch::new(Arc::clone(&shared.fs), &plan.mount, Arc::clone(&shared.metrics));
    let served = session.run_negotiated(&negotiated, &dispatch);
    served.map_err(Failure::io("answering the kernel on", &plan.dir))
}

/// First gently, then out of the tree; who sends a signal again does not want to wait.
fn leave_on_signals(mut signals: Signals, unmount: &UnmountHandle) {
    let mut count = 0;
    while signals.wait().next().is_some() {
        count += 1;
        let outcome = match count {
            1 => leave(&mut signals, unmount),
            _ => unmount.abort(),
        };
        if let Err(error) = outcome {
            log::error!("{error}; another signal ends the mount by force");
        }
    }
}

fn leave(signals: &mut Signals, unmount: &UnmountHandle) -> Result<(), terrane_fuse::mount::MountError> {
    log::info!("a signal: unmounting {}", unmount.path().display());
    let begun = Instant::now();
    while let Err(error) = unmount.unmount() {
        if begun.elapsed() > LEAVE_PATIENCE || signals.pending().next().is_some() {
            log::warn!("{error}; it leaves the tree now and ends with its last user");
            return unmount.detach();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// What a crash left without a name; opening the file system only made a beginning.
fn drain_unlinked(shared: &Shared) {
    while !shared.is_ending() {
        match shared.fs.drain_unlinked() {
            Ok(true) => {}
            Ok(false) => return,
            Err(errno) => return log::warn!("unlinked objects were not all destroyed: {errno}"),
        }
    }
}

fn answer_callers(shared: &Arc<Shared>, listener: &UnixListener) {
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                let shared = Arc::clone(shared);
                std::thread::spawn(move || answer_caller(&shared, stream));
            }
            Err(error) => {
                log::error!("the control socket failed: {error}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

fn answer_caller(shared: &Shared, stream: UnixStream) {
    if shared.is_ending() {
        let _ = shared.wait_for_end();
        return;
    }
    let mut caller = Caller::new(stream);
    let Some(question) = caller.greet(&shared.greeting) else { return };
    match question.get("ask").and_then(Value::as_str) {
        Some(STOP) => stop(shared, &mut caller),
        Some(SYNC) => {
            let synced =
                shared.fs.sync().map_err(|errno| Failure(format!("not everything is committed: {errno}")));
            caller.answer(synced.map(|()| Value::Null));
        }
        _ => match Query::from_json(&question) {
            // The one question that is not of the pool alone.
            Some(Query::Metrics) => caller.answer(Ok(shared.metrics_page().into())),
            Some(query) => {
                // Progress comes from many threads, and lines must not mix.
                let line = Mutex::new(&mut caller);
                let outcome = query.answer(&shared.live, &|what, done, total| {
                    line.lock().unwrap_or_else(PoisonError::into_inner).progress(what, done, total);
                });
                caller.answer(outcome);
            }
            None => caller.answer(Err(Failure(format!("the daemon does not understand {question}")))),
        },
    }
}

fn stop(shared: &Shared, caller: &mut Caller) {
    shared.stage().waiting += 1;
    let outcome = match shared.unmount.unmount() {
        Ok(()) => shared.wait_for_end().map_err(Failure),
        Err(error) => Err(Failure(format!("{error}; end what uses it (see `fuser -vm`) and try again"))),
    };
    caller.answer(outcome.map(|()| Value::Null));
    shared.stage().waiting -= 1;
    shared.changed.notify_all();
}

fn farewell(shared: &Shared, outcome: Result<(), String>) {
    let mut stage = shared.stage();
    stage.ended = Some(outcome);
    shared.changed.notify_all();
    let heard = shared.changed.wait_timeout_while(stage, FAREWELL_PATIENCE, |stage| stage.waiting > 0);
    drop(heard);
}
