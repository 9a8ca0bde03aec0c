//! Sessions against a kernel that is simulated by two queues.

use super::*;
use crate::metrics::Metrics;
use crate::mount::THREADS_MIN;
use crate::proto::{Dialect, InHeader, Opcode, OutHeader, init};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Hands out prepared requests, keeps the answers.
#[derive(Default)]
struct Queues {
    requests: Mutex<VecDeque<Vec<u8>>>,
    answers: Mutex<Vec<(OutHeader, Vec<u8>)>>,
}

impl Transport for Queues {
    fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        let Some(raw) = self.requests.lock().pop_front() else { return Ok(Received::Ended) };
        buf[..raw.len()].copy_from_slice(&raw);
        Ok(Received::Request { len: raw.len() })
    }

    fn is_pending(&self) -> Option<bool> {
        Some(!self.requests.lock().is_empty())
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        let header = OutHeader::decode(message).unwrap();
        assert_eq!(usize::try_from(header.len).unwrap(), message.len());
        self.answers.lock().push((header, message[OutHeader::SIZE..].to_vec()));
        Ok(())
    }

    fn abort(&self) {
        self.requests.lock().clear();
    }
}

fn message(opcode: Opcode, unique: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(InHeader::SIZE + body.len()).unwrap();
    let opcode = opcode.number();
    let header =
        InHeader { len, opcode, unique, nodeid: 1, uid: 0, gid: 0, pid: 1, extension_units: 0, padding: 0 };
    [&header.encode()[..], body].concat()
}

fn init(major: u32, minor: u32, flags: u64) -> Vec<u8> {
    let words = [major, minor, 131_072, (flags & 0xffff_ffff) as u32, (flags >> 32) as u32];
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).chain([0; 44]).collect();
    message(Opcode::Init, 2, &body)
}

const WANTED: WantedFeatures = WantedFeatures {
    stateless_open: true,
    max_background: 64,
    uring: false,
    follows: false,
    xattrs: true,
    acls: false,
    idmaps: false,
};
const CONFIG: SessionConfig = SessionConfig { threads: THREADS_MIN, wanted_features: WANTED };

fn negotiated() -> Negotiated {
    Negotiated { minor: 45, flags: 0, max_write: 1 << 20, xattrs: true, dialect: Dialect::default() }
}

fn queues(requests: impl IntoIterator<Item = Vec<u8>>) -> Queues {
    Queues { requests: Mutex::new(requests.into_iter().collect()), answers: Mutex::default() }
}

fn errors(queues: &Queues) -> BTreeMap<u64, i32> {
    queues.answers.lock().iter().map(|(header, _)| (header.unique, -header.error.cast_signed())).collect()
}

struct Nothing;

impl Handler for Nothing {
    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        match call.request {
            Request::Lookup { name: b"panic" } => {
                reply.bytes(b"half an answer");
                panic!("as asked");
            }
            Request::Getattr => {
                reply.bytes(b"attr");
                Ok(())
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

#[test]
fn init_takes_what_is_offered_and_wished_for() {
    let offer = init::NO_OPEN_SUPPORT
        | init::ATOMIC_O_TRUNC
        | init::POSIX_LOCKS
        | init::HAS_RESEND
        | init::INIT_EXT
        | init::WRITEBACK_CACHE;
    let queues = queues([init(7, 99, offer)]);
    serve(&queues, &Nothing, &CONFIG).unwrap();
    let answers = queues.answers.lock();
    let out = proto::InitOut::decode(&answers[0].1).unwrap();
    assert_eq!((out.major, out.minor, out.max_write, out.max_pages, out.time_gran), (7, 45, 1 << 20, 256, 1));
    assert_eq!(u64::from(out.flags), init::NO_OPEN_SUPPORT | init::INIT_EXT);
    assert_eq!(u64::from(out.flags2) << 32, init::HAS_RESEND);
    assert_eq!((out.max_background, out.congestion_threshold), (64, 48));
}

#[test]
fn truncating_opens_are_promised_only_where_opens_are_sent() {
    let all = u64::MAX;
    assert_eq!(WANTED.choose(all) & init::ATOMIC_O_TRUNC, 0);
    assert_ne!(WANTED.choose(all & !init::NO_OPEN_SUPPORT) & init::ATOMIC_O_TRUNC, 0);
    let sent = WantedFeatures { stateless_open: false, ..WANTED };
    assert_ne!(sent.choose(all) & init::ATOMIC_O_TRUNC, 0);
    assert_eq!(sent.choose(all) & (init::NO_OPEN_SUPPORT | init::POSIX_LOCKS | init::DONT_MASK), 0);
    assert_eq!(sent.choose(all) & init::WRITEBACK_CACHE, 0);
}

#[test]
fn lists_are_judged_by_the_kernel_where_the_umask_is_left_to_us() {
    let both = init::POSIX_ACL | init::DONT_MASK;
    let with = WantedFeatures { acls: true, ..WANTED };
    assert_eq!(WANTED.choose(u64::MAX) & both, 0);
    assert_eq!(with.choose(u64::MAX) & both, both);
    assert_eq!(with.choose(!init::DONT_MASK) & both, 0);
    assert_eq!(with.choose(!init::POSIX_ACL) & both, 0);
    let wanted = |words: &str, xattrs| {
        let mut options = MountOptions { acls: true, xattrs, ..MountOptions::default() };
        options.apply(words).unwrap();
        SessionConfig::from(&options).wanted_features
    };
    assert!(wanted("", true).acls);
    assert!(wanted("", false).idmaps && !wanted("no_default_permissions", true).idmaps);
    assert_eq!(
        WantedFeatures { idmaps: true, ..WANTED }.choose(u64::MAX) & init::ALLOW_IDMAP,
        init::ALLOW_IDMAP
    );
    assert_eq!(WANTED.choose(u64::MAX) & init::ALLOW_IDMAP, 0, "the kernel would end the session");
    // With ACLs the kernel would check permissions where none shall be checked. ACLs also need extended
    // attributes.
    assert!(!wanted("no_default_permissions", true).acls && !wanted("", false).acls);
}

#[test]
fn what_was_agreed_on_can_be_handed_over() {
    let agreed =
        Negotiated { flags: init::SETXATTR_EXT, dialect: Dialect { setxattr_ext: true }, ..negotiated() };
    assert_eq!(Negotiated::decode(&agreed.encode()), Some(agreed));
    for (at, value) in [(8, 99), (15, 1), (16, 2)] {
        let mut raw = agreed.encode();
        raw[at] = value;
        assert_eq!(Negotiated::decode(&raw), None);
    }
    assert_eq!(Negotiated::decode(&agreed.encode()[1..]), None);
    // A server without extended attributes told the kernel so.
    let old = Negotiated { xattrs: false, ..agreed };
    assert_eq!(Negotiated::decode(&agreed.encode()[..16]), Some(old));
    assert_eq!(Negotiated::decode(&old.encode()), Some(old));
    // Rings died with their process.
    let rings = Negotiated { flags: init::OVER_IO_URING, ..negotiated() };
    assert!(agreed.can_be_taken_over() && !rings.can_be_taken_over());
    assert_eq!(Negotiated::decode(&rings.encode()), None);
}

#[test]
fn a_newer_major_version_is_asked_to_come_down_and_an_older_one_refused() {
    let newer = queues([init(8, 0, 0), init(7, 45, 0)]);
    serve(&newer, &Nothing, &CONFIG).unwrap();
    assert_eq!(newer.answers.lock().len(), 2);
    for old in [init(7, 30, 0), init(6, 99, 0)] {
        let old = queues([old]);
        let error = serve(&old, &Nothing, &CONFIG).unwrap_err().to_string();
        assert!(error.contains("at least 7.31"), "{error}");
        assert_eq!(errors(&old)[&2], libc::EPROTO);
    }
    let stranger = queues([message(Opcode::Statfs, 4, b"")]);
    assert!(serve(&stranger, &Nothing, &CONFIG).is_err());
    assert_eq!(errors(&stranger)[&4], libc::EIO);
}

#[test]
fn a_panic_is_answered_and_the_session_goes_on() {
    let getattr = message(Opcode::Getattr, 12, &[0; 16]);
    let queues =
        queues([message(Opcode::Lookup, 10, b"panic\0"), getattr, message(Opcode::Interrupt, 15, &[0; 8])]);
    serve_negotiated(&queues, &Nothing, &CONFIG, &negotiated()).unwrap();
    // The handler may have changed the node halfway: the kernel is told to drop its attributes before the
    // answer.
    let forget = -proto::notify::INVAL_INODE;
    let expected = BTreeMap::from([(0, forget), (10, libc::EIO), (12, 0), (15, libc::ENOSYS)]);
    assert_eq!(errors(&queues), expected);
    let answers = queues.answers.lock();
    let before = |first, second| {
        let at = |unique| answers.iter().position(|(header, _)| header.unique == unique);
        at(first) < at(second)
    };
    assert!(before(0, 10));
    for (header, payload) in answers.iter().filter(|(header, _)| header.unique != 0) {
        assert_eq!(payload, if header.unique == 12 { &b"attr"[..] } else { b"" });
    }
}

#[test]
fn malformed_and_unknown_requests_are_answered_once() {
    let mut unknown = message(Opcode::Statfs, 20, b"");
    unknown[4] = 200;
    let short = message(Opcode::Setattr, 22, &[0; 10]);
    let forget = message(Opcode::Forget, 24, &[0; 8]);
    let queues = queues([unknown, short, forget, vec![1, 2, 3]]);
    serve_negotiated(&queues, &Nothing, &CONFIG, &negotiated()).unwrap();
    assert_eq!(errors(&queues), BTreeMap::from([(20, libc::ENOSYS), (22, libc::EINVAL)]));
    assert_eq!(queues.answers.lock().len(), 2);
}

/// FSYNC returns only when a GETATTR has been answered.
#[derive(Default)]
struct Slow {
    seen: Mutex<bool>,
    changed: Condvar,
}

impl Handler for Slow {
    fn handle(&self, call: &Call<'_>, _: &mut Reply) -> Result<(), Errno> {
        let mut seen = self.seen.lock();
        if matches!(call.request, Request::Getattr) {
            *seen = true;
            self.changed.notify_all();
            return Ok(());
        }
        let limit = Duration::from_secs(20);
        let late = self.changed.wait_while_for(&mut seen, |seen| !*seen, limit).timed_out();
        if late { Err(Errno(libc::ETIMEDOUT)) } else { Ok(()) }
    }
}

#[test]
fn readers_go_on_while_every_fsync_waits() {
    let fsyncs = (0..50).map(|n| message(Opcode::Fsync, 100 + n, &[0; 16]));
    let queues = queues(fsyncs.chain([message(Opcode::Getattr, 2, &[0; 16])]));
    serve_negotiated(&queues, &Slow::default(), &CONFIG, &negotiated()).unwrap();
    let errors = errors(&queues);
    assert_eq!(errors.len(), 51);
    assert!(errors.values().all(|error| *error == 0), "{errors:?}");
}

/// An FSYNC is finished when the last of 50 has begun, or when the test lets it. The one with the number 107 panics.
#[derive(Default)]
struct Logged {
    begun: Mutex<usize>,
    changed: Condvar,
    let_go: AtomicBool,
}

impl Logged {
    const ALL: usize = 50;

    fn finish(&self) -> Result<(), Errno> {
        let is_early = |begun: &mut usize| *begun < Self::ALL && !self.let_go.load(Ordering::SeqCst);
        let limit = Duration::from_secs(20);
        let late = self.changed.wait_while_for(&mut self.begun.lock(), is_early, limit).timed_out();
        if late { Err(Errno(libc::ETIMEDOUT)) } else { Ok(()) }
    }
}

impl Handler for Logged {
    fn handle(&self, _: &Call<'_>, _: &mut Reply) -> Result<(), Errno> {
        Err(Errno(libc::ENOTSUP))
    }

    fn begin_sync<'h>(&'h self, call: &Call<'_>) -> Result<Option<PendingAnswer<'h>>, Errno> {
        let unique = call.header.unique;
        if unique == 200 {
            return Ok(None);
        }
        *self.begun.lock() += 1;
        self.changed.notify_all();
        Ok(Some(Box::new(move || {
            assert_ne!(unique, 107, "as asked");
            self.finish()
        })))
    }
}

#[test]
fn fsyncs_that_wait_for_the_log_keep_no_thread() {
    let fsyncs = (0..50).map(|n| message(Opcode::Fsync, 100 + n, &[0; 16]));
    let others = [message(Opcode::Fsync, 200, &[0; 16]), message(Opcode::Getattr, 202, &[0; 16])];
    let queues = queues(fsyncs.chain(others));
    let config = SessionConfig { threads: 8, ..CONFIG };
    serve_negotiated(&queues, &Logged::default(), &config, &negotiated()).unwrap();
    let answers = queues.answers.lock();
    let mut answered: Vec<(u64, i32)> =
        answers.iter().map(|(header, _)| (header.unique, -header.error.cast_signed())).collect();
    answered.sort_unstable();
    let error = |unique| match unique {
        107 => libc::EIO,
        200 | 202 => libc::ENOTSUP,
        _ => 0,
    };
    let notified = [(0, -proto::notify::INVAL_INODE)];
    let expected: Vec<_> = (100..150).chain([200, 202]).map(|unique| (unique, error(unique))).collect();
    assert_eq!(answered, [&notified[..], &expected].concat());
}

#[test]
fn a_drain_waits_for_fsyncs_that_wait_for_the_log() {
    let queues = queues((0..9).map(|n| message(Opcode::Fsync, 110 + n, &[0; 16])));
    let (logged, drain) = (Logged::default(), Drain::default());
    let config = SessionConfig { threads: 8, ..CONFIG };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            serve_with(&queues, None, &logged, &config, &negotiated(), &drain)
                .map(|()| drain.drain(Duration::ZERO))
        });
        let began = Instant::now();
        while *logged.begun.lock() < 9 && began.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        // Only the thread that finishes them has a request under way.
        let is_drained = drain.drain(Duration::from_millis(20));
        let before = queues.answers.lock().len();
        {
            let _begun = logged.begun.lock();
            logged.let_go.store(true, Ordering::SeqCst);
            logged.changed.notify_all();
        }
        assert!(drain.drain(Duration::from_secs(20)));
        let after = queues.answers.lock().len();
        assert!(serving.join().unwrap().unwrap());
        assert_eq!((is_drained, before, after), (false, 0, 9));
    });
}

/// A handler whose answers are counted.
#[derive(Default)]
struct Watched<H> {
    inner: H,
    metrics: Metrics,
}

impl<H: Handler> Handler for Watched<H> {
    fn handle(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        self.inner.handle(call, reply)
    }

    fn on_answered(&self, call: &Call<'_>, outcome: Result<(), Errno>, reply: &Reply, time: Duration) {
        self.metrics.record_answer(call, outcome, reply, time.as_nanos() as u64);
    }

    fn on_parked(&self, time: Duration) {
        self.metrics.record_parked(time.as_nanos() as u64);
    }
}

#[test]
fn requests_are_counted_by_kind_with_their_errors_and_waits() {
    let watched = Watched { inner: Nothing, metrics: Metrics::default() };
    let requests = [
        message(Opcode::Lookup, 10, b"panic\0"),
        message(Opcode::Getattr, 12, &[0; 16]),
        message(Opcode::Getattr, 14, &[0; 16]),
        message(Opcode::Statfs, 16, b""),
    ];
    serve_negotiated(&queues(requests), &watched, &CONFIG, &negotiated()).unwrap();
    let stats = watched.metrics.snapshot();
    let seen = stats.operations.iter().map(|of| (of.name.as_str(), of.latency.count(), of.errors));
    // ENOSYS is an answer.
    assert_eq!(seen.collect::<Vec<_>>(), [("lookup", 1, 1), ("getattr", 2, 0), ("statfs", 1, 0)]);
    assert_eq!(stats.parked.count(), 0);

    let watched = Watched::<Slow>::default();
    let fsyncs = (0..50).map(|n| message(Opcode::Fsync, 100 + n, &[0; 16]));
    let requests = fsyncs.chain([message(Opcode::Getattr, 2, &[0; 16])]);
    serve_negotiated(&queues(requests), &watched, &CONFIG, &negotiated()).unwrap();
    let stats = watched.metrics.snapshot();
    let fsync = stats.operations.iter().find(|of| of.name == "fsync").unwrap();
    assert_eq!((fsync.latency.count(), fsync.errors), (50, 0));
    // One thread may wait. So all requests but its first were parked, save those that came just when it had
    // ended.
    assert!((40..=49).contains(&stats.parked.count()), "{}", stats.parked.count());
}

/// Inspects the buffers that it is given, and ends.
#[derive(Default)]
struct Inspector {
    absent_pages: Mutex<Vec<usize>>,
    inherited: Mutex<Vec<bool>>,
}

/// A value of the auxiliary vector that the kernel gave this process.
fn auxiliary(wanted: u64) -> Option<u64> {
    let raw = std::fs::read("/proc/self/auxv").unwrap();
    let words: Vec<u64> = raw.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.as_chunks().0.iter().find(|[key, _]| *key == wanted).map(|[_, value]| *value)
}

/// Pages of the buffer that are not resident.
fn absent_pages(buf: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;
    let page = usize::try_from(auxiliary(6).unwrap()).unwrap();
    let (first, end) = (buf.as_ptr().addr() / page, (buf.as_ptr().addr() + buf.len()).div_ceil(page));
    let mut map = vec![0; 8 * (end - first)];
    std::fs::File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut map, 8 * first as u64).unwrap();
    map.as_chunks().0.iter().filter(|entry| u64::from_ne_bytes(**entry) >> 63 == 0).count()
}

/// Whether a child gets the buffer as well. A fork then write-protects it here, and each page needs a page fault.
fn is_inherited(buf: &[u8]) -> bool {
    let at = buf.as_ptr().addr();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        let address = |hex: &str| usize::from_str_radix(hex, 16).ok();
        if let Some((first, end)) = range.and_then(|(first, end)| Some((address(first)?, address(end)?))) {
            is_here = (first..end).contains(&at);
        }
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
            // Do not copy.
            return !flags.split_whitespace().any(|flag| flag == "dc");
        }
    }
    panic!("no mapping holds the buffer");
}

impl Transport for Inspector {
    fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        self.absent_pages.lock().push(absent_pages(buf));
        self.inherited.lock().push(is_inherited(buf));
        Ok(Received::Ended)
    }

    fn send(&self, _message: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn abort(&self) {}
}

#[test]
fn who_reads_requests_has_all_memory_for_them() {
    // Larger than anything the heap serves from reused memory (glibc maps anew what is larger than 32 MiB).
    let untouched = vec![0u8; 64 << 20];
    assert!(absent_pages(&untouched) > 0, "or this shows nothing");
    assert!(is_inherited(&untouched), "or this shows nothing");
    let inspector = Inspector::default();
    serve_negotiated(&inspector, &Nothing, &CONFIG, &negotiated()).unwrap();
    assert_eq!(*inspector.absent_pages.lock(), vec![0; THREADS_MIN + KERNEL_WAITERS]);
    assert_eq!(*inspector.inherited.lock(), vec![false; THREADS_MIN + KERNEL_WAITERS]);
}
