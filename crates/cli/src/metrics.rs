//! What a pool has done, as Prometheus reads it.
//!
//! The text exposition format, version 0.0.4: each family once, with its HELP and TYPE, all samples of a family together, names that
//! end in their unit, counters in `_total`. The same text answers `terrane metrics` and, with `--metrics`, `GET /metrics` over
//! HTTP ([`serve`]). A pool that nobody has mounted has no history: it shows its space and its zones.
//!
//! Invariant: scrapers cost at most [`THREADS_MAX`] threads, [`REQUEST_BYTES_MAX`] and [`PATIENCE`] each, whatever they send.

use crate::failure::{Failure, Outcome};
use crate::live::Live;
use crate::logger;
use crate::memory;
use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use terrane_cache::Kind;
use terrane_device::ZoneState;
use terrane_format::Spent;
use terrane_format::record::Class;
use terrane_fuse::MountStats;
use terrane_pool::SecondStats;
use terrane_pool::{GcMode, LevelShare, Stats};
use terrane_pool::{Io, WaitFor};
use terrane_posix::Fs;
use terrane_wire::meter::{BUCKETS, Times};

const REQUEST_BYTES_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
const CALLERS_MAX: usize = 4;
/// With those that lost their place and are on their way out.
const THREADS_MAX: usize = 2 * CALLERS_MAX;
/// How long those may take.
const LEAVING: Duration = Duration::from_millis(500);

/// Names of a pool's metrics begin with this.
const PREFIX: &str = "terrane_";

type Labels<'a> = &'a [(&'a str, &'a str)];

/// The text while it is written.
struct Page {
    pool: String,
    out: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // A `String` takes everything.
        let _ = write!(self.out, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let _ = write!(self.out, "{PREFIX}{name}{{pool=\"{}\"", escaped(&self.pool));
        for (label, text) in labels {
            let _ = write!(self.out, ",{label}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.out, "}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.one(name, "counter", help, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.one(name, "gauge", help, value);
    }

    /// One sample for each of several things of a kind.
    fn each<'a, V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) {
        self.family(name, kind, help);
        for (text, value) in values {
            self.sample(name, &[(label, text)], value);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, times: &Times) {
        self.family(name, "histogram", help);
        self.buckets(name, &[], times);
    }

    fn buckets(&mut self, name: &str, labels: Labels<'_>, times: &Times) {
        let mut sum = 0;
        for (index, count) in times.buckets.iter().enumerate().take(BUCKETS) {
            sum += count;
            let bound = Times::bound_ns(index).map_or("+Inf".to_owned(), |ns| seconds(ns).to_string());
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.sample(&format!("{name}_bucket"), &labels, sum);
        }
        self.sample(&format!("{name}_sum"), labels, seconds(times.sum_ns));
        // Not counted apart: a sample that comes in between would make the two disagree.
        self.sample(&format!("{name}_count"), labels, sum);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// What is known of a mount beside its pool.
pub struct MountSide<'a> {
    pub stats: MountStats,
    pub fs: &'a Fs,
}

/// All of it; without a mount what can be said of a pool that was just opened to look at it.
pub fn page(live: &Live, mount: Option<&MountSide<'_>>) -> String {
    let stats = live.pool.stats();
    let mut page = Page { pool: live.pool.name(), out: String::new() };
    page.family("info", "gauge", "The pool and the program that answers for it; always 1.");
    let id = format!("{:016x}", live.pool.label().id());
    let device = live.path.display().to_string();
    page.sample("info", &[("id", &id), ("device", &device), ("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge(
        "mounted",
        "Whether the pool is mounted by the process that answers.",
        u8::from(mount.is_some()),
    );
    space(&mut page, live, &stats);
    life(&mut page, live, &stats);
    if let Some(mount) = mount {
        page.gauge("failed", "Whether the pool has stopped writing after an error.", u8::from(stats.failed));
        page.gauge(
            "uptime_seconds",
            "Time since the import; all counters began then.",
            seconds(stats.uptime_ns),
        );
        devices(&mut page, &stats);
        groups(&mut page, &stats);
        caches(&mut page, &stats);
        cache_devices(&mut page, live);
        levels(&mut page, live);
        rewritten(&mut page, mount.fs);
        errors(&mut page, &stats);
        requests(&mut page, mount);
        process(&mut page, live);
    }
    page.out
}

fn space(page: &mut Page, live: &Live, stats: &Stats) {
    let devices = live.pool.devices();
    let (size, used, available) = stats.space;
    page.gauge("pool_size_bytes", "Bytes that users can fill.", size);
    page.gauge("pool_used_bytes", "Bytes of live blocks, all copies, after compression.", used);
    page.gauge("pool_available_bytes", "Bytes still available to users, before compression.", available);
    // A set from before they were counted has none.
    if let Some(account) = live.dataset.objects().account() {
        page.gauge(
            "dataset_used_bytes",
            "Bytes of the data set's blocks, all copies, after compression.",
            account.used_bytes,
        );
        page.gauge(
            "dataset_logical_bytes",
            "Bytes of the data set's records before compression.",
            account.logical_bytes,
        );
        page.gauge("dataset_physical_bytes", "The same after compression, one copy.", account.physical_bytes);
    }
    let zones = &stats.zones;
    let states = [
        ("empty", zones.empty),
        ("open", zones.open),
        ("full", zones.full),
        ("emptied", zones.emptied),
        ("suspect", zones.suspect),
    ];
    page.each(("zones", "gauge", "Zones of the device, without its two anchors, by state."), "state", states);
    let given_up = |state: ZoneState| {
        let all = devices.iter().flat_map(|device| &device.given_up);
        all.filter(|(_, found)| *found == state).count()
    };
    page.each(
        ("zones_given_up", "gauge", "Zones that their device will not have written again, by what it says."),
        "state",
        [("read-only", given_up(ZoneState::ReadOnly)), ("offline", given_up(ZoneState::Offline))],
    );
    let (mode, _) = live.pool.gc_now();
    page.each(
        ("collection_mode", "gauge", "Why the newest group emptied zones; 1 for one of them."),
        "mode",
        GcMode::ALL.map(|of| (of.name(), u8::from(of == mode))),
    );
    page.gauge(
        "garbage_bytes",
        "Bytes of full zones that are not alive.",
        live.pool.gc_progress().garbage_bytes,
    );
    page.gauge("waiting", "Changes that wait for room in the pool.", stats.waiting.0);
    page.gauge("waiting_bytes", "Bytes that they want.", stats.waiting.1);
    page.gauge("runs", "Runs of blocks that collection has moved.", stats.runs);
    page.gauge("run_index_bytes", "Memory of the index that says where they are.", stats.run_index_bytes);
    page.gauge(
        "run_index_packed",
        "Whether it is packed, because it was near its bound.",
        u64::from(stats.run_index_packed),
    );
    page.gauge(
        "index_bytes_max",
        "Memory that this and dead sets should take at most.",
        stats.index_bytes_max,
    );
    page.gauge(
        "dead_set_bytes",
        "Memory of the tables that say which blocks are dead.",
        stats.dead_set_bytes,
    );
    page.gauge("committed_group", "Number of the newest durable transaction group.", stats.txg);
}

/// Since the pool was made.
fn life(page: &mut Page, live: &Live, stats: &Stats) {
    let totals = &stats.totals;
    page.counter(
        "life_user_bytes_total",
        "Bytes that users wrote into files since the pool was made.",
        totals.user_bytes,
    );
    page.each(
        (
            "life_device_bytes_total",
            "counter",
            "Bytes that devices were given since the pool was made, by what for.",
        ),
        "use",
        Spent::ALL.into_iter().map(|what| (what.name(), totals.spent_on(what))),
    );
    page.counter(
        "life_reset_zones_total",
        "Zones that were given back since the pool was made.",
        totals.reset_zones,
    );
    page.counter(
        "life_collected_zones_total",
        "Zones that collection emptied since the pool was made.",
        totals.collected_zones,
    );
    // What nobody wrote has no ratio, and a sample must be a number: then there is none.
    let windows = [("minute", 60), ("ten minutes", 600)];
    let recent = windows
        .map(|(window, seconds)| (window, live.pool.lately(seconds * 1_000_000_000).1.amplification()));
    let all = [("life", totals.amplification())].into_iter().chain(recent);
    page.each(
        (
            "write_amplification",
            "gauge",
            "Bytes that devices were given for each byte that users wrote, by window.",
        ),
        "window",
        all.filter_map(|(window, times)| times.map(|times| (window, times))),
    );
}

fn devices(page: &mut Page, stats: &Stats) {
    type ZoneField = fn(&Io) -> u64;
    type Field = fn(&terrane_device::IoCounts) -> u64;
    let fields: [(&str, &str, Field); 7] = [
        ("device_reads_total", "Reads, anchors included.", |io| io.reads),
        ("device_read_bytes_total", "Bytes read, anchors included.", |io| io.read_bytes),
        ("device_writes_total", "Writes, anchors included.", |io| io.writes),
        ("device_written_bytes_total", "Bytes written, anchors included.", |io| io.written_bytes),
        ("device_flushes_total", "Flushes.", |io| io.flushes),
        ("device_resets_total", "Zones and anchors that were reset.", |io| io.resets),
        ("device_errors_total", "Requests that the device failed.", |io| io.errors()),
    ];
    for (name, help, field) in fields {
        let values = stats.devices.iter().map(|device| (&*device.name, field(&device.io)));
        page.each((name, "counter", help), "device", values);
    }
    let sides: [(&str, &str, &[Io; Class::ALL.len()]); 2] =
        [("read", "read", &stats.reads), ("written", "written", &stats.writes)];
    for (word, done, io) in sides {
        let fields: [(&str, ZoneField); 3] =
            [("requests", |io| io.operations), ("blocks", |io| io.blocks), ("bytes", |io| io.bytes)];
        for (what, field) in fields {
            let name = format!("zone_{word}_{what}_total");
            let help = format!("Device {what} {done}, by the class of the zone.");
            let values = Class::ALL.iter().zip(io).map(|(class, io)| (class.name(), field(io)));
            page.each((&name, "counter", &help), "class", values);
        }
    }
    page.histogram("device_read_seconds", "Reads of zones.", &stats.device_read);
    page.histogram("device_write_seconds", "Writes of zones.", &stats.device_write);
    page.histogram("device_flush_seconds", "Flushes.", &stats.flush);
    page.counter(
        "block_logical_bytes_total",
        "Bytes of written blocks before compression.",
        stats.logical_bytes,
    );
    page.counter(
        "block_stored_bytes_total",
        "Bytes of written blocks after it, one copy.",
        stats.stored_bytes,
    );
    page.counter(
        "nopwrite_blocks_total",
        "Records that were overwritten by what they held, so that the old ones stayed.",
        stats.nopwrite_blocks,
    );
    page.counter("nopwrite_bytes_total", "Bytes of these records before compression.", stats.nopwrite_bytes);
    page.counter("collected_zones_total", "Zones that collection has emptied.", stats.collected_zones);
    page.counter("collected_bytes_total", "Bytes that collection has moved.", stats.collected_bytes);
    page.counter("reset_zones_total", "Zones that were given back.", stats.reset_zones);
    page.counter(
        "late_resets_total",
        "Groups that gave zones back half way, because a write had failed and there was no other room.",
        stats.late_resets,
    );
}

fn groups(page: &mut Page, stats: &Stats) {
    page.histogram(
        "group_sync_seconds",
        "Transaction groups: from the end of quiescing until they were durable.",
        &stats.group,
    );
    page.gauge("group_sync_longest_seconds", "The longest of them.", seconds(stats.group.longest_ns));
    page.histogram(
        "group_quiesce_seconds",
        "How long changes were kept out while a group ended.",
        &stats.quiesce,
    );
    page.counter("group_bytes_total", "Bytes that groups sent to the device.", stats.group_bytes);
    page.histogram(
        "group_join_wait_seconds",
        "Changes that could not join a group at once: how long they waited.",
        &stats.begin,
    );
    page.gauge("group_join_wait_longest_seconds", "The longest of them.", seconds(stats.begin.longest_ns));
    let waits = || WaitFor::ALL.iter().zip(&stats.waits);
    page.each(
        ("group_waits_total", "counter", "Waits before joining a group, by what for."),
        "reason",
        waits().map(|(reason, times)| (reason.name(), times.count())),
    );
    page.each(
        ("group_wait_seconds_total", "counter", "Time of these waits."),
        "reason",
        waits().map(|(reason, times)| (reason.name(), seconds(times.sum_ns))),
    );
    page.each(
        ("group_wait_longest_seconds", "gauge", "The longest of these waits."),
        "reason",
        waits().map(|(reason, times)| (reason.name(), seconds(times.longest_ns))),
    );
    page.counter("no_space_total", "Changes that were refused because the pool is full.", stats.no_space);
    page.gauge("dirty_bytes", "Bytes in memory that no group has committed.", stats.dirty_bytes);
    page.gauge("dirty_limit_bytes", "The most they may be; it follows the device.", stats.dirty_bytes_max);
}

fn caches(page: &mut Page, stats: &Stats) {
    type Field = fn(&terrane_cache::blocks::CacheStats) -> u64;
    let fields: [(&str, &str, &str, Field); 9] = [
        ("cache_hits_total", "counter", "Look-ups the block cache answered.", |cache| cache.hits),
        ("cache_misses_total", "counter", "Look-ups it did not answer.", |cache| cache.misses),
        ("cache_evictions_total", "counter", "Blocks that made room.", |cache| cache.evictions),
        ("cache_ghost_hits_total", "counter", "Blocks that came back after they had made room.", |cache| {
            cache.ghost_hits
        }),
        ("cache_ahead_total", "counter", "Blocks that were read before somebody asked.", |cache| cache.ahead),
        ("cache_ahead_hits_total", "counter", "Those of them that somebody asked for.", |cache| {
            cache.ahead_hits
        }),
        ("cache_bytes", "gauge", "Bytes in the block cache.", |cache| cache.bytes),
        ("cache_plain_bytes", "gauge", "Of them, those of decompressed forms.", |cache| cache.plain_bytes),
        ("cache_blocks", "gauge", "Blocks in the block cache.", |cache| cache.blocks),
    ];
    for (name, kind, help, field) in fields {
        let values =
            Kind::ALL.iter().zip(&stats.cache_by_kind).map(|(kind, cache)| (kind.name(), field(cache)));
        page.each((name, kind, help), "kind", values);
    }
    page.gauge("cache_limit_bytes", "The most bytes in the block cache.", stats.cache_bytes_max);
}

/// The second level: devices that hold what left memory.
fn cache_devices(page: &mut Page, live: &Live) {
    type Field = fn(&SecondStats) -> u64;
    let fields: [(&str, &str, &str, Field); 10] = [
        ("cache_device_size_bytes", "gauge", "Bytes that a cache device takes.", |stats| stats.size_bytes),
        ("cache_device_held_bytes", "gauge", "Bytes of blocks that it holds.", |stats| stats.held_bytes),
        ("cache_device_index_bytes", "gauge", "Memory of its index.", |stats| stats.index_bytes),
        ("cache_device_hits_total", "counter", "Reads that it answered.", |stats| stats.hits),
        ("cache_device_hit_bytes_total", "counter", "Bytes of them, as they are stored.", |stats| {
            stats.hit_bytes
        }),
        ("cache_device_fed_bytes_total", "counter", "Bytes of blocks written to it.", |stats| {
            stats.fed_bytes
        }),
        (
            "cache_device_damaged_total",
            "counter",
            "Blocks on it that were not what they should be.",
            |stats| stats.damaged,
        ),
        ("cache_device_errors_total", "counter", "Requests that it failed.", |stats| stats.io.errors()),
        (
            "cache_device_read_bytes_total",
            "counter",
            "Bytes read from it, tables of contents included.",
            |stats| stats.io.read_bytes,
        ),
        (
            "cache_device_written_bytes_total",
            "counter",
            "Bytes written to it, tables of contents included.",
            |stats| stats.io.written_bytes,
        ),
    ];
    let caches = live.pool.caches();
    if caches.is_empty() {
        return;
    }
    for (name, kind, help, field) in fields {
        let there = caches.iter().filter_map(|cache| Some((&*cache.name, field(cache.stats.as_ref()?))));
        page.each((name, kind, help), "device", there);
    }
}

/// What `zstd-auto` chose.
fn levels(page: &mut Page, live: &Live) {
    type Field = fn(&LevelShare) -> u64;
    let fields: [(&str, &str, Field); 3] = [
        ("auto_records_total", "Records that zstd-auto compressed by this level.", |share| share.blocks),
        ("auto_logical_bytes_total", "Bytes of these records before compression.", |share| {
            share.logical_bytes
        }),
        ("auto_stored_bytes_total", "Bytes of these records after it.", |share| share.stored_bytes),
    ];
    let shares = live.dataset.objects().levels().shares();
    if shares.is_empty() {
        return;
    }
    let names: Vec<String> = shares.iter().map(|share| share.compression.to_string()).collect();
    for (name, help, field) in fields {
        let values = names.iter().zip(&shares).map(|(name, share)| (name.as_str(), field(share)));
        page.each((name, "counter", help), "level", values);
    }
}

/// What is stored in another form than it was written in.
fn rewritten(page: &mut Page, fs: &Fs) {
    let status = fs.rewrite_status();
    let figures = status.map(|status| status.figures).unwrap_or_default();
    page.gauge("rewrite_under_way", "Whether files are being rewritten.", u8::from(fs.rewrite_goes_on()));
    let help = "Bytes that the files of the rewrite take of which this pass has seen, and all.";
    page.each(
        ("rewrite_stored_bytes", "gauge", help),
        "what",
        [("seen", figures.stored_bytes), ("all", figures.stored_total)],
    );
    let idle = fs.recompress_status();
    page.gauge("recompress_under_way", "Whether idle time is used on files.", u8::from(idle.is_under_way));
    page.counter(
        "recompress_records_total",
        "Records that idle time compressed, since the pool was made.",
        idle.records,
    );
    page.counter("recompress_before_bytes_total", "Bytes these records took before.", idle.before_bytes);
    page.counter("recompress_after_bytes_total", "Bytes they took after it.", idle.after_bytes);
}

fn errors(page: &mut Page, stats: &Stats) {
    let counters = [
        (
            "checksum_errors_total",
            "Copies of blocks that did not match their checksum.",
            stats.checksum_errors,
        ),
        ("read_errors_total", "Reads of zones that the device failed.", stats.read_errors),
        ("write_errors_total", "Writes of zones that the device failed.", stats.write_errors),
        ("lost_reads_total", "Reads that no copy could serve.", stats.lost_blocks),
        ("healed_blocks_total", "Damaged copies that were replaced.", stats.healed_blocks),
        ("scrubbed_blocks_total", "Blocks of which every copy was read and verified.", stats.scrubbed_blocks),
        (
            "reborn_bytes_total",
            "Bytes written anew so that the run index keeps within its bound.",
            stats.reborn_bytes,
        ),
    ];
    for (name, help, value) in counters {
        page.counter(name, help, value);
    }
    let lines = logger::lines();
    let levels = lines.iter().map(|(level, count)| (&**level, count));
    page.each(("log_lines_total", "counter", "Lines of the log, by level."), "level", levels);
}

fn requests(page: &mut Page, mount: &MountSide<'_>) {
    let stats = &mount.stats;
    let name = "fuse_request_seconds";
    page.family(
        name,
        "histogram",
        "Requests of the kernel, by operation, from being taken up to their answer.",
    );
    for operation in &stats.operations {
        page.buckets(name, &[("operation", &operation.name)], &operation.times);
    }
    let errors = stats.operations.iter().map(|operation| (&*operation.name, operation.errors));
    page.each(("fuse_errors_total", "counter", "Requests answered with an error."), "operation", errors);
    page.histogram("fuse_parked_seconds", "Requests that waited for a thread that may wait.", &stats.parked);
    page.counter("fuse_read_bytes_total", "Bytes of files that the kernel was given.", stats.read_bytes);
    page.counter("fuse_written_bytes_total", "Bytes of files that the kernel gave.", stats.written_bytes);
    page.gauge("inodes_known", "Inodes the kernel knows, or that are in memory.", mount.fs.cached_inodes());
    page.gauge("inodes_live", "Inodes that are in memory whole.", mount.fs.live_inodes());
}

fn process(page: &mut Page, live: &Live) {
    if let Some(allowance) = live.memory.get() {
        page.gauge(
            "memory_limit_bytes",
            "The most memory that this process should take; `remount,memory=` changes it.",
            allowance.now().bytes(),
        );
    }
    if let Some(bytes) = memory::resident() {
        page.gauge("resident_memory_bytes", "Memory of the process that holds the pool.", bytes);
    }
}

/// Opens the door on which a scraper may knock.
pub fn listen(address: &str) -> Outcome<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        Failure(format!("metrics on {address:?}: expected ADDRESS:PORT that is free here, found: {error}"))
    })
}

/// Those who are connected, the longest first.
#[derive(Default)]
struct Callers {
    all: Mutex<Vec<Caller>>,
    /// One has left.
    left: Condvar,
}

struct Caller {
    number: u64,
    stream: TcpStream,
    /// Its request was heard, so it is answered.
    is_heard: bool,
    /// Another has its place, and its thread ends.
    is_cut: bool,
}

impl Callers {
    fn all(&self) -> MutexGuard<'_, Vec<Caller>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one in. Where there is no place the one that has been silent for the longest loses its own: who asks at once is always
    /// heard, however many only connect.
    fn admit(&self, number: u64, stream: &TcpStream) -> std::io::Result<()> {
        let mut all = self.all();
        if all.iter().filter(|caller| !caller.is_cut).count() >= CALLERS_MAX {
            let silent = all.iter_mut().find(|caller| !caller.is_heard && !caller.is_cut);
            let silent = silent.ok_or(ErrorKind::WouldBlock)?;
            silent.is_cut = true;
            // Its thread hears the end.
            let _ = silent.stream.shutdown(Shutdown::Both);
        }
        // Those who were cut are gone in a moment.
        let waited = self.left.wait_timeout_while(all, LEAVING, |all| all.len() >= THREADS_MAX);
        let (mut all, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(ErrorKind::WouldBlock.into());
        }
        all.push(Caller { number, stream: stream.try_clone()?, is_heard: false, is_cut: false });
        Ok(())
    }

    fn heard(&self, number: u64) {
        self.all()
            .iter_mut()
            .filter(|caller| caller.number == number)
            .for_each(|caller| caller.is_heard = true);
    }

    fn leave(&self, number: u64) {
        self.all().retain(|caller| caller.number != number);
        self.left.notify_all();
    }
}

/// Answers scrapers for as long as the process lives.
pub fn serve(listener: TcpListener, page: Arc<dyn Fn() -> String + Send + Sync>) {
    let callers: Arc<Callers> = Arc::default();
    for (number, stream) in (0u64..).zip(listener.incoming()) {
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: it passes.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if callers.admit(number, &stream).is_err() {
            continue;
        }
        let page = Arc::clone(&page);
        let answering = std::thread::Builder::new().name("metrics".into()).spawn({
            let callers = Arc::clone(&callers);
            move || {
                // Who hangs up in the middle wants nothing more.
                let _ = answer(stream, &*page, &|| callers.heard(number));
                callers.leave(number);
            }
        });
        if let Err(error) = answering {
            callers.leave(number);
            log::warn!("metrics: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, page: &dyn Fn() -> String, heard: &dyn Fn()) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let text = "text/plain; charset=utf-8";
    let request = request(&mut stream)?;
    if request.is_some() {
        heard();
    }
    let (status, kind, body) = match request.as_deref().and_then(parse) {
        Some((b"GET", b"/metrics")) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", page()),
        Some((b"GET", _)) => ("404 Not Found", text, "there is only /metrics\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", text, "there is only GET\n".to_owned()),
        None => ("400 Bad Request", text, "that is no request of HTTP\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Everything up to the empty line that ends a request's head; `None`: it did not come, or is too long.
fn request(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let begun = Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let len = match stream.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(piece.get(..len).unwrap_or(&[]));
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n") {
            return Ok(Some(head));
        }
        if head.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
    }
}

/// Method and path of a request, without what stands behind a `?`.
fn parse(head: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let mut words = line.strip_suffix(b"\r").unwrap_or(line).split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let whole = words.next().is_none() && version.starts_with(b"HTTP/") && !method.is_empty();
    whole.then_some((method, target.split(|byte| *byte == b'?').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: std::net::SocketAddr, said: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // It may answer and hang up before it has heard all of it.
        let _ = stream.write_all(said);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        String::from_utf8(heard).unwrap()
    }

    #[test]
    fn scrapers_are_answered_and_garbage_is_refused() {
        let listener = listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listen(&address.to_string()).unwrap_err().0.contains("in use"));
        std::thread::spawn(move || serve(listener, Arc::new(|| "terrane_info 1\n".to_owned())));
        let good = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(good.starts_with("HTTP/1.0 200 OK\r\n") && good.contains("Content-Length: 15\r\n"), "{good}");
        assert!(good.ends_with("\r\n\r\nterrane_info 1\n"), "{good}");
        let long = [b"GET /metrics HTTP/1.0\r\nx: ".to_vec(), vec![b'a'; 100_000]].concat();
        for (said, code) in [
            (&b"GET /metrics?x=1 HTTP/1.0\n\n"[..], "200"),
            (b"GET / HTTP/1.0\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.0\r\n\r\n", "405"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b" / HTTP/1.0\r\n\r\n", "400"),
            (b"\0\xff\xfe\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.0\r\n", "400"),
            (b"", "400"),
            (&long, "400"),
        ] {
            let heard = ask(address, said);
            // What was not read resets the connection, and may take the answer with it.
            let reset = said.len() > REQUEST_BYTES_MAX && heard.is_empty();
            assert!(reset || heard.starts_with(&format!("HTTP/1.0 {code} ")), "{said:?}: {heard}");
        }
        // Those who come and say nothing keep nobody out who speaks.
        let mut silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in 0..70 {
            let begun = Instant::now();
            let heard = ask(address, b"GET /metrics HTTP/1.0\r\n\r\n");
            assert!(heard.starts_with("HTTP/1.0 200") && begun.elapsed() < PATIENCE / 2, "{heard}");
            silent.push(TcpStream::connect(address).unwrap());
        }
    }

    #[test]
    fn names_of_things_cannot_break_out_of_a_label() {
        let mut page = Page { pool: "a\"b".to_owned(), out: String::new() };
        page.gauge("x", "Help.", 1);
        page.each(("y_total", "counter", "Help."), "device", [("back\\slash\nline", 2)]);
        let lines: Vec<&str> = page.out.lines().collect();
        assert_eq!(lines[2], "terrane_x{pool=\"a\\\"b\"} 1");
        assert_eq!(lines[5], "terrane_y_total{pool=\"a\\\"b\",device=\"back\\\\slash\\nline\"} 2");
        assert_eq!(lines.len(), 6);
    }
}
