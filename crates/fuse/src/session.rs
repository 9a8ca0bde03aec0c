//! The threads between kernel and file system, and which of them may wait.
//!
//! Each thread reads a request, has it answered, and reads the next. Only as many threads read at a time as there is
//! work for: see `reception`. An `fsync` may wait for the commit of a
//! txg, a write for space in one. If all threads waited, no thread would read requests that a cache could
//! answer at once. So some threads never wait: see `gate`.
//!
//! Invariants:
//! * Every request that wants an answer gets exactly one, also if its handler panics.
//! * While the connection exists at least [`READERS_RESERVED`] threads are free to read requests, unless 64
//!   MiB of parked requests wait.

mod drain;
mod gate;
mod listings;
mod negotiate;
mod reception;
mod syncs;
#[cfg(test)]
mod tests;

pub use drain::Drain;
pub use negotiate::{Negotiated, WantedFeatures};

use crate::forget;
use crate::mount::{Mount, MountOptions, THREADS_DEFAULT, UnmountHandle};
use crate::notify::{self, Notifier};
use crate::proto::{self, Header, ParseError, Request};
use crate::reply;
use crate::reply::Reply;
use crate::transport::ring::{self, Lane};
use crate::transport::{DevFuse, Received, Transport};
use gate::{Admission, Gate};
use listings::Listings;
use memmap2::{Advice, MmapMut};
use reception::{Reception, Urgency};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use syncs::{Syncs, WaitingSync};
use terrane_posix::Errno;

/// Threads that never take a request that may wait.
pub const READERS_RESERVED: usize = 2;
/// Threads that may wait for the kernel to write back ([`Request::waits_for_kernel`]), beside those that may
/// wait for other things. The WRITEs that the kernel then sends must find a thread.
const KERNEL_WAITERS: usize = 1;
/// Threads for each queue of a mount that uses rings, at least.
const LANES_MIN: usize = 4;
/// Parked requests take at most this much memory; beyond it readers wait as well.
const PARKED_BYTES_MAX: usize = 64 << 20;

/// One request, as a handler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Operation, node and caller.
    pub header: &'a Header,
    /// The parsed request.
    pub request: &'a Request<'a>,
    /// What INIT negotiated for this mount.
    pub negotiated: &'a Negotiated,
}

/// The second half of a request, which waits.
pub type PendingAnswer<'h> = Box<dyn FnOnce() -> Result<(), Errno> + Send + 'h>;

/// Answers requests. Many threads call it concurrently.
pub trait Handler: Send + Sync {
    /// Builds the answer's payload in `reply`, which is empty at the start. On an error the payload is
    /// dropped.
    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno>;

    /// For FSYNC and FSYNCDIR: does what does not wait. What is returned is called on another thread, after the same of earlier
    /// requests, and must not wait for later ones. `None`: [`handle`](Self::handle) does all of it.
    fn begin_sync<'h>(&'h self, _call: &Call<'_>) -> Result<Option<PendingAnswer<'h>>, Errno> {
        Ok(None)
    }

    /// Called after each answer with its outcome and latency, for metrics.
    fn on_answered(&self, _call: &Call<'_>, _outcome: Result<(), Errno>, _reply: &Reply, _time: Duration) {}

    /// Called once the kernel has the answer.
    fn on_sent(&self, _call: &Call<'_>) {}

    /// The clock that times calls, in nanoseconds.
    fn monotonic_ns(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A request was parked this long before its call.
    fn on_parked(&self, _time: Duration) {}

    /// Nodes that a predecessor of this process changed and never committed: what the kernel caches of them
    /// is invalid.
    fn lost_nodes(&self) -> Vec<u64> {
        Vec::new()
    }

    /// The mount is gone, and with it everything the kernel cached of it.
    fn on_unmounted(&self) {}
}

/// The settings of a session that are not negotiated with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Threads that read requests; at least [`crate::mount::THREADS_MIN`].
    pub threads: usize,
    /// What INIT asks the kernel for.
    pub wanted_features: WantedFeatures,
}

impl From<&MountOptions> for SessionConfig {
    fn from(options: &MountOptions) -> Self {
        let wanted_features = WantedFeatures {
            stateless_open: options.cache.stateless_open(),
            max_background: options.max_background,
            uring: options.uring,
            follows: options.cache.follows,
            xattrs: options.xattrs,
            acls: options.acls && options.xattrs && options.default_permissions,
            idmaps: options.default_permissions,
        };
        SessionConfig { threads: options.threads.unwrap_or(THREADS_DEFAULT), wanted_features }
    }
}

/// A session with the kernel for one mount.
#[derive(Debug)]
pub struct Session {
    mount: Mount,
    config: SessionConfig,
    drain: Arc<Drain>,
}

impl Session {
    /// A session that has not begun: no request is read yet.
    pub fn new(mount: Mount, config: SessionConfig) -> Session {
        Session { mount, config, drain: Arc::default() }
    }

    /// Mounts, and makes the session for the mount.
    pub fn mount(
        path: &std::path::Path,
        options: &MountOptions,
    ) -> Result<Session, crate::mount::MountError> {
        Ok(Session::new(Mount::new(path, options)?, SessionConfig::from(options)))
    }

    /// The mount without its session, to be handed over.
    pub fn into_mount(self) -> Mount {
        self.mount
    }

    /// The descriptor, for a holder that outlives this process.
    pub fn device(&self) -> io::Result<std::fs::File> {
        self.mount.device()
    }

    /// For notifications to the kernel; usable from other threads, see [`crate::notify`] for which.
    pub fn notifier(&self) -> io::Result<Notifier> {
        Ok(Notifier::new(self.mount.device()?))
    }

    /// Stops the session from another thread, between two requests, so that a successor can continue.
    pub fn drain_handle(&self) -> Arc<Drain> {
        Arc::clone(&self.drain)
    }

    /// Ends [`Session::run`] from another thread.
    pub fn unmount_handle(&self) -> UnmountHandle {
        self.mount.unmount_handle()
    }

    /// Answers until the mount is gone. An error means that the transport failed; the mount is then detached.
    pub fn run(self, handler: &dyn Handler) -> io::Result<()> {
        match self.negotiate() {
            Ok(Some(negotiated)) => self.run_negotiated(&negotiated, handler),
            Ok(None) => self.finish(handler, Ok(())),
            Err(error) => self.finish(handler, Err(error)),
        }
    }

    /// The first half of [`Session::run`], for callers that hand the mount over later and must keep what was
    /// negotiated. `None`: the mount went away before it began.
    pub fn negotiate(&self) -> io::Result<Option<Negotiated>> {
        negotiate::negotiate(&self.transport()?, &self.config.wanted_features)
    }

    /// The second half of [`Session::run`].
    pub fn run_negotiated(self, negotiated: &Negotiated, handler: &dyn Handler) -> io::Result<()> {
        let served = self.transport().and_then(|device| {
            let rings = negotiated.over_rings().then_some(&device);
            serve_with(&device, rings, handler, &self.config, negotiated, &self.drain)
        });
        self.finish(handler, served)
    }

    /// Continues a mount ([`Mount::adopt`]) whose process died or stepped back. Callers notice only a delay.
    ///
    /// The kernel resends requests that the predecessor read and did not answer. They are marked
    /// ([`Header::is_resent`]), and some may have been carried out already; [`crate::Dispatch`] gives them their
    /// original answers.
    ///
    /// Where changes were lost ([`Handler::lost_nodes`]) the kernel drops those nodes from its caches. It also
    /// drops every cached name, because any directory may be among the nodes.
    /// [`terrane_posix::Fs::take_over`] ensures that numbers of lost nodes are not reused. `forgetter` is
    /// started to send those notifications, and must call [`forget::run`].
    pub fn resume(
        self,
        negotiated: &Negotiated,
        handler: &dyn Handler,
        forgetter: Command,
    ) -> io::Result<()> {
        let lost = handler.lost_nodes();
        let prepared = self.notifier().and_then(|notifier| {
            let forgetting =
                if lost.is_empty() { None } else { self.start_forgetter(&notifier, &lost, forgetter)? };
            self.transport()?.send(&reply::notification(proto::notify::RESEND, &[]))?;
            Ok(forgetting)
        });
        match prepared {
            Ok(forgetting) => std::thread::scope(|scope| {
                if let Some(child) = forgetting {
                    let waiting = std::thread::Builder::new().name("fuse-forget".into());
                    if let Err(error) = waiting.spawn_scoped(scope, move || wait_for_forgetter(child)) {
                        log::warn!(
                            "fuse: starting a thread failed, the result of the forget process is not logged: {error}"
                        );
                    }
                }
                self.run_negotiated(negotiated, handler)
            }),
            Err(error) => self.finish(handler, Err(error)),
        }
    }

    fn start_forgetter(
        &self,
        notifier: &Notifier,
        lost: &[u64],
        forgetter: Command,
    ) -> io::Result<Option<Child>> {
        match notifier.invalidate_names() {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => log::warn!(
                "fuse: invalidating cached names not supported by this kernel (needs Linux 6.16). Names created or \
                 removed just before the crash may be wrong until they are used, or until the next mount"
            ),
            outcome => outcome?,
        }
        let program = forgetter.get_program().to_owned();
        let started = forget::start(forgetter, self.device()?, lost);
        Ok(started
            .inspect_err(|error| {
                log::error!("fuse: {STALE_CACHE_TEXT}: starting {}: {error}", program.display())
            })
            .ok())
    }

    fn transport(&self) -> io::Result<DevFuse> {
        Ok(DevFuse::new(self.mount.device()?, self.mount.unmount_handle()))
    }

    fn finish(self, handler: &dyn Handler, served: io::Result<()>) -> io::Result<()> {
        self.mount.note_ended();
        drop(self.mount);
        handler.on_unmounted();
        served
    }
}

const STALE_CACHE_TEXT: &str =
    "invalidating lost files failed, the kernel may show contents that are not stored";

/// Waits until the kernel has dropped its caches. If the server is killed meanwhile, the helper process
/// stays.
fn wait_for_forgetter(forgetting: Child) {
    match forgetting.wait_with_output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            log::error!("fuse: {STALE_CACHE_TEXT}: {}: {}", output.status, said.trim());
        }
        Err(error) => log::error!("fuse: {STALE_CACHE_TEXT}: {error}"),
    }
}

/// Negotiates with the kernel, then answers until the transport ends.
pub fn serve(transport: &dyn Transport, handler: &dyn Handler, config: &SessionConfig) -> io::Result<()> {
    let Some(negotiated) = negotiate::negotiate(transport, &config.wanted_features)? else { return Ok(()) };
    serve_negotiated(transport, handler, config, &negotiated)
}

/// Answers what comes after INIT, also for a connection that was taken over.
pub fn serve_negotiated(
    transport: &dyn Transport,
    handler: &dyn Handler,
    config: &SessionConfig,
    negotiated: &Negotiated,
) -> io::Result<()> {
    serve_with(transport, None, handler, config, negotiated, &Drain::default())
}

fn serve_with(
    transport: &dyn Transport,
    rings: Option<&DevFuse>,
    handler: &dyn Handler,
    config: &SessionConfig,
    negotiated: &Negotiated,
    drain: &Drain,
) -> io::Result<()> {
    let (listings, syncs, ended) = (Listings::default(), Syncs::default(), AtomicBool::new(false));
    // Beside rings, /dev/fuse carries only requests that need no answer.
    let wanted = if rings.is_some() { 0 } else { config.threads };
    let may_wait = wanted.saturating_sub(READERS_RESERVED).max(1);
    let threads = READERS_RESERVED + may_wait + KERNEL_WAITERS;
    let queues = if rings.is_some() { usize::from(ring::queue_count()?) } else { 0 };
    let lanes = queues * (config.threads / queues.max(1)).max(LANES_MIN);
    drain.prepare(threads + lanes);
    let gates = [Gate::new(may_wait, PARKED_BYTES_MAX), Gate::new(KERNEL_WAITERS, PARKED_BYTES_MAX)];
    // Only a transport that can tell whether a request waits.
    let reception = transport.is_pending().map(|_| Reception::new());
    let (listings, syncs, ended, reception) = (&listings, Some(&syncs), &ended, reception.as_ref());
    let work =
        SessionState { transport, handler, negotiated, drain, gates, listings, syncs, ended, reception };
    std::thread::scope(|scope| {
        let mut started = Vec::new();
        for number in 0..threads + lanes {
            let builder = std::thread::Builder::new().name(format!("fuse-{number}"));
            let work = &work;
            let spawned = builder.spawn_scoped(scope, move || {
                terrane_device::set_short_slice();
                match rings {
                    Some(device) if number >= threads => {
                        work.serve_lane(device, number, (number - threads) % queues)
                    }
                    _ => work.read_requests(number),
                }
            });
            match spawned {
                Ok(thread) => started.push(thread),
                Err(error) => {
                    // The scope waits for the threads that did start.
                    work.abort_session();
                    return Err(error);
                }
            }
        }
        // Joins all of them, so that no thread outlives this call; the first error counts.
        let mut outcome = Ok(());
        for thread in started {
            // Panics of handlers are caught; only the loop itself can panic.
            let panicked = |_| Err(io::Error::other("a thread of the session panicked"));
            outcome = outcome.and(thread.join().unwrap_or_else(panicked));
        }
        outcome
    })
}

/// Resident memory for reading requests into. The kernel copies a request in the reader's context. If that
/// needs a page fault while the reader is being killed, the kernel drops the request: the caller gets EIO,
/// and no successor gets the request.
fn request_buffer(bytes: usize) -> io::Result<MmapMut> {
    let mut buf = MmapMut::map_anon(bytes)?;
    // A fork write-protects all memory that the child inherits, until the next page fault. The server forks when it starts a
    // supervisor or a helper.
    buf.advise(Advice::DontFork)?;
    // Writing to a page makes it resident.
    buf.fill(0xff);
    Ok(buf)
}

/// State that all threads of a session share.
struct SessionState<'a, 'h> {
    transport: &'a dyn Transport,
    handler: &'h dyn Handler,
    negotiated: &'a Negotiated,
    drain: &'a Drain,
    /// For requests that may wait, and for those that may wait for the kernel.
    gates: [Gate; 2],
    listings: &'a Listings,
    /// `None`: each answer has to be sent by the thread that received the request.
    syncs: Option<&'a Syncs<'h>>,
    /// DESTROY came, or a thread failed: read no more.
    ended: &'a AtomicBool,
    /// Where threads wait for their turn to receive. `None`: all of them receive.
    reception: Option<&'a Reception>,
}

impl<'h> SessionState<'_, 'h> {
    /// The loop of one thread of one queue. It answers every request itself, also one that may wait: a queue
    /// has several lanes.
    fn serve_lane(&self, device: &DevFuse, thread: usize, queue: usize) -> io::Result<()> {
        let queue = u16::try_from(queue).map_err(io::Error::other)?;
        let payload = self.negotiated.buffer_bytes() - proto::REQUEST_OVERHEAD_BYTES;
        let lane = Lane::new(device, queue, payload).inspect_err(|error| {
            log::error!("fuse: creating a ring failed, the mount ends: {error}");
            self.abort_session();
        })?;
        let gates = [Gate::new(1, PARKED_BYTES_MAX), Gate::new(1, PARKED_BYTES_MAX)];
        SessionState { transport: &lane, gates, syncs: None, reception: None, ..*self }.read_requests(thread)
    }

    fn read_requests(&self, thread: usize) -> io::Result<()> {
        let mut buf = request_buffer(self.negotiated.buffer_bytes()).inspect_err(|error| {
            log::error!("fuse: no memory for requests, the mount ends: {error}");
            self.abort_session();
        })?;
        let mut reply = Reply::new();
        let (mut has_seat, mut outcome) = (false, Ok(()));
        while !self.ended.load(Ordering::Relaxed) {
            let received = match self.reception {
                Some(reception) => {
                    reception.take_seat(has_seat);
                    has_seat = true;
                    reception.receive(&|| self.is_pending(), || self.transport.receive(&mut buf))
                }
                None => self.transport.receive(&mut buf),
            };
            match received {
                Ok(Received::Request { len }) => {
                    self.answer_received(thread, buf.get(..len).unwrap_or(&[]), &mut reply)
                }
                Ok(Received::Ended) => break,
                Err(error) => {
                    log::error!("fuse: reading requests failed, the mount ends: {error}");
                    self.abort_session();
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.reception.into_iter().for_each(Reception::end);
        outcome
    }

    /// Whether a request waits to be received.
    fn is_pending(&self) -> bool {
        self.transport.is_pending() == Some(true)
    }

    /// Answers or refuses a message, and keeps the books of the reception.
    fn answer_received(&self, thread: usize, raw: &[u8], reply: &mut Reply) {
        let parsed = Header::parse(raw).map(|(header, body)| {
            let request = Request::parse_body(header.opcode, body, self.negotiated.dialect);
            (header, request)
        });
        let urgency = match &parsed {
            Ok((_, Ok(request))) if request.is_unawaited() => Urgency::Unawaited,
            Ok((_, Ok(request))) if !request.is_soon_answered() => Urgency::Long,
            _ => Urgency::Soon,
        };
        self.reception.into_iter().for_each(|reception| reception.begin_answer(urgency, self.is_pending()));
        match parsed {
            Ok((header, Ok(request))) => self.answer_or_park(thread, raw, (&header, &request), reply),
            Ok((header, Err(error))) => self.refuse(&header, error, reply),
            Err(error) => log::error!("fuse: {error}"),
        }
        self.reception.into_iter().for_each(|reception| reception.end_answer(urgency));
    }

    fn abort_session(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.transport.abort();
    }

    /// Answers a request now, or parks it for a thread that may wait.
    fn answer_or_park(
        &self,
        thread: usize,
        raw: &[u8],
        (header, request): (&Header, &Request<'_>),
        reply: &mut Reply,
    ) {
        if !request.may_wait() {
            return self.answer(thread, header, request, reply);
        }
        let [waiting, for_kernel] = &self.gates;
        let gate = if request.waits_for_kernel() { for_kernel } else { waiting };
        match gate.admit(raw) {
            Admission::Parked => {}
            Admission::Run => {
                self.answer(thread, header, request, reply);
                while let Some((parked, since)) = gate.next() {
                    self.handler.on_parked(since.elapsed());
                    match Request::parse(&parked, self.negotiated.dialect) {
                        Ok((header, request)) => self.answer(thread, &header, &request, reply),
                        Err(error) => log::error!("fuse: parked request malformed: {error}"),
                    }
                }
            }
        }
    }

    fn refuse(&self, header: &Header, error: ParseError, reply: &mut Reply) {
        let errno = match error {
            ParseError::UnknownOpcode(_) => libc::ENOSYS,
            ParseError::NoHeader { .. } | ParseError::Length { .. } | ParseError::Body { .. } => libc::EINVAL,
        };
        log::warn!("fuse: {error}");
        self.send(header, Err(Errno(errno)), reply);
    }

    /// Answers a request, unless the session is draining: then the kernel resends it to the successor.
    fn answer(&self, thread: usize, header: &Header, request: &Request<'_>, reply: &mut Reply) {
        if self.drain.begin_request(thread) {
            self.answer_now(header, request, reply);
            self.drain.end_request(thread);
        }
    }

    fn answer_now(&self, header: &Header, request: &Request<'_>, reply: &mut Reply) {
        match request {
            Request::Destroy => {
                self.send(header, Ok(()), reply);
                return self.ended.store(true, Ordering::Relaxed);
            }
            // A second INIT can only come from a confused peer; the first one stays in force.
            Request::Init { .. } => return self.send(header, Err(Errno(libc::EIO)), reply),
            // A request that began is finished: it waits for a commit at most. ENOSYS: the kernel sends no
            // more of these.
            Request::Interrupt { .. } => return self.send(header, Err(Errno(libc::ENOSYS)), reply),
            _ => {}
        }
        let call = Call { header, request, negotiated: self.negotiated };
        reply.clear();
        let began_ns = self.handler.monotonic_ns();
        match self.begin_sync(&call, began_ns, reply) {
            Ok(Begun::Leads) => self.lead_syncs(reply),
            Ok(Begun::Waits) => {}
            Ok(Begun::Nothing) => {
                let outcome = self.catch_panic(header, reply, |reply| self.handler.handle(&call, reply));
                self.finish_answer(&call, outcome, began_ns, reply);
            }
            Err(errno) => self.finish_answer(&call, Err(errno), began_ns, reply),
        }
    }

    /// Has a request that would wait for the intent log wait among the others.
    fn begin_sync(&self, call: &Call<'_>, began_ns: u64, reply: &mut Reply) -> Result<Begun, Errno> {
        let (Some(syncs), Some(request)) = (self.syncs, syncs::detached(call.request)) else {
            return Ok(Begun::Nothing);
        };
        let pending = self.catch_panic(call.header, reply, |_| self.handler.begin_sync(call))?;
        Ok(pending.map_or(Begun::Nothing, |pending| {
            let leads = syncs.add(WaitingSync { header: *call.header, request, began_ns, pending });
            if leads { Begun::Leads } else { Begun::Waits }
        }))
    }

    /// Finishes and answers all requests that wait for the log, until another thread leads or none waits.
    fn lead_syncs(&self, reply: &mut Reply) {
        let Some(syncs) = self.syncs else { return };
        loop {
            // The first one writes what all of them have handed over.
            for WaitingSync { header, request, began_ns, pending } in syncs.take() {
                let call = Call { header: &header, request: &request, negotiated: self.negotiated };
                reply.clear();
                let outcome = self.catch_panic(&header, reply, |_| pending());
                // A panic must not keep the answers of the others back.
                let answered =
                    catch_unwind(AssertUnwindSafe(|| self.finish_answer(&call, outcome, began_ns, reply)));
                if answered.is_err() {
                    log::error!("fuse: the answer to {:?} panicked", opcode_of(&header));
                    *reply = Reply::new();
                }
            }
            if !syncs.lead_on() {
                return;
            }
        }
    }

    /// Calls a handler. After a panic the reply is rebuilt from nothing. The handler's own state is behind locks that do
    /// not poison: what it was changing belongs to a transaction that can be dropped at any point.
    fn catch_panic<R>(
        &self,
        header: &Header,
        reply: &mut Reply,
        handler: impl FnOnce(&mut Reply) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        catch_unwind(AssertUnwindSafe(|| handler(reply))).unwrap_or_else(|_| {
            log::error!("fuse: {:?} on node {} panicked; answered EIO", opcode_of(header), header.nodeid);
            *reply = Reply::new();
            // It may have been half done.
            reply.mark_outdated(header.nodeid);
            Err(Errno(libc::EIO))
        })
    }

    /// Sends an answer, and what the kernel must know before it.
    fn finish_answer(&self, call: &Call<'_>, outcome: Result<(), Errno>, began_ns: u64, reply: &mut Reply) {
        let Call { header, request, .. } = *call;
        let took = Duration::from_nanos(self.handler.monotonic_ns().saturating_sub(began_ns));
        self.handler.on_answered(call, outcome, reply, took);
        let outdated = reply.take_outdated();
        if !request.has_no_reply() {
            if let Some(node) = outdated {
                self.notify(header, &notify::attributes_outdated(node));
            }
            if let (Ok(()), Some(first)) =
                (outcome, self.listings.notification_before(header, request, reply))
            {
                self.notify(header, &first);
            }
            self.send(header, outcome, reply);
        }
        self.handler.on_sent(call);
    }

    fn notify(&self, header: &Header, notification: &[u8]) {
        match self.transport.send(notification) {
            // The mount went away during the request, or the kernel is too old for this notification.
            Err(error)
                if !matches!(
                    error.raw_os_error(),
                    Some(libc::ENODEV | libc::ECONNABORTED | libc::EINVAL)
                ) =>
            {
                log::warn!(
                    "fuse: invalidation for {:?} on node {} failed: {error}",
                    opcode_of(header),
                    header.nodeid
                );
            }
            _ => {}
        }
    }

    fn send(&self, header: &Header, outcome: Result<(), Errno>, reply: &mut Reply) {
        if outcome.is_err() {
            reply.clear();
        }
        let Err(error) = self.transport.send(reply.seal(header.unique, outcome)) else { return };
        match error.raw_os_error() {
            // The mount went away during the request.
            Some(libc::ENODEV | libc::ECONNABORTED) => {}
            _ => {
                log::error!("fuse: answer to {:?} refused by the kernel: {error}", opcode_of(header));
                // Without an answer the caller would wait for ever; an error is always well-formed.
                if outcome.is_ok() {
                    let _ = self.transport.send(reply.seal(header.unique, Err(Errno(libc::EIO))));
                }
            }
        }
    }
}

/// Who finishes a request after its first half.
enum Begun {
    /// The caller, and all of it.
    Nothing,
    /// Another thread.
    Waits,
    /// The caller, with all others that wait.
    Leads,
}

fn opcode_of(header: &Header) -> Option<proto::Opcode> {
    proto::Opcode::from_number(header.opcode)
}
