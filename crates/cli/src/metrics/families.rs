//! The metric families: names, help texts and values.

use super::MountMetrics;
use super::text::{MetricsText, seconds};
use crate::logger;
use crate::memory;
use crate::open_pool::OpenPool;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_codec::GaveUp;
use terrane_device::{RequestCounts, ZoneState};
use terrane_format::WritePurpose;
use terrane_format::record::ZoneClass;
use terrane_pool::{KeptSpace, Stats};
use terrane_posix::{Fs, Job, RewriteFigures};
use terrane_store::counters::{Io, WaitFor};
use terrane_store::l2cache::CacheDeviceStats;
use terrane_store::log_devices::LogDeviceStats;
use terrane_txg::gc_request::GcMode;
use terrane_txg::levels::LevelShare;

pub fn space(text: &mut MetricsText, open_pool: &OpenPool, stats: &Stats) {
    let devices = open_pool.pool.devices();
    let (size, used, available) = stats.space;
    text.gauge("pool_size_bytes", "Bytes that users can fill.", size);
    text.gauge("pool_used_bytes", "Bytes of live blocks, all copies, after compression.", used);
    text.gauge("pool_available_bytes", "Bytes still available to users, before compression.", available);
    kept(text, &stats.kept);
    // A set from before they were counted has none.
    if let Some(account) = open_pool.dataset().object_set().account() {
        text.gauge(
            "dataset_used_bytes",
            "Bytes of the data set's blocks, all copies, after compression.",
            account.used_bytes,
        );
        text.gauge(
            "dataset_logical_bytes",
            "Bytes of the data set's records before compression.",
            account.logical_bytes,
        );
        text.gauge("dataset_physical_bytes", "The same after compression, one copy.", account.physical_bytes);
    }
    let zones = &stats.zones;
    let states = [
        ("empty", zones.empty),
        ("open", zones.open),
        ("full", zones.full),
        ("emptied", zones.emptied),
        ("suspect", zones.suspect),
    ];
    text.labelled(
        ("zones", "gauge", "Zones of the device, without its two anchors, by state."),
        "state",
        states,
    );
    let given_up = |state: ZoneState| {
        let all = devices.iter().flat_map(|device| &device.unwritable_zones);
        all.filter(|(_, found)| *found == state).count()
    };
    text.labelled(
        (
            "zones_given_up",
            "gauge",
            "Zones that the device no longer accepts writes to, by the condition it reports.",
        ),
        "state",
        [("read-only", given_up(ZoneState::ReadOnly)), ("offline", given_up(ZoneState::Offline))],
    );
    let (mode, _) = open_pool.pool.gc_now();
    text.labelled(
        (
            "collection_mode",
            "gauge",
            "Why garbage collection ran in the newest txg; 1 for the active reason.",
        ),
        "mode",
        GcMode::ALL.map(|of| (of.name(), u8::from(of == mode))),
    );
    text.gauge(
        "garbage_bytes",
        "Garbage in full zones, in bytes.",
        open_pool.pool.gc_progress().garbage_bytes,
    );
    text.gauge("waiting", "Changes that wait for space in the pool.", stats.waiting.0);
    text.gauge("waiting_bytes", "Bytes that these changes need.", stats.waiting.1);
    text.gauge("runs", "Runs of blocks that garbage collection has moved.", stats.runs);
    text.gauge("run_index_bytes", "Memory of the relocation index.", stats.run_index_bytes);
    text.gauge(
        "run_index_packed",
        "Whether the relocation index is packed, because it was near its limit.",
        u64::from(stats.run_index_packed),
    );
    let shared = open_pool.dataset().object_set().shared().totals();
    text.gauge("shared_blocks", "Blocks with several references.", shared.blocks);
    text.gauge("shared_bytes", "Space of these blocks, once each.", shared.block_bytes);
    text.gauge("saved_bytes", "Space that their further references save.", shared.saved_bytes);
    text.gauge(
        "index_bytes_max",
        "Memory limit of the relocation index and the dead sets.",
        stats.index_bytes_max,
    );
    text.gauge("dead_set_bytes", "Memory of the dead sets.", stats.dead_set_bytes);
    text.gauge("committed_txg", "Number of the newest durable transaction group.", stats.txg);
}

/// What the bytes of the devices are kept for. With `pool_size_bytes` that adds up to all of them.
fn kept(text: &mut MetricsText, kept: &KeptSpace) {
    let parts = &kept.parts;
    text.gauge("pool_device_bytes", "Bytes of all zones of all devices.", kept.device_bytes);
    text.labelled(
        (
            "pool_kept_bytes",
            "gauge",
            "Bytes that users cannot fill, by what they are kept for. With pool_size_bytes they add up to pool_device_bytes.",
        ),
        "use",
        [
            ("anchors", kept.anchor_bytes),
            ("unusable", kept.unusable_bytes),
            ("zone overhead", parts.zone_overhead),
            ("log", parts.log),
            ("host", parts.lacking_on_host),
            ("collection", parts.collection),
            ("commits", parts.commits),
            ("metadata", parts.metadata),
            ("open zones", parts.open_zones),
            ("frees", parts.frees),
        ],
    );
}

/// What garbage collection gave for what it moved.
pub fn reclaim(text: &mut MetricsText, open_pool: &OpenPool, stats: &Stats) {
    let all = stats.reclaim;
    text.counter(
        "reclaim_freed_bytes_total",
        "Bytes of zones that garbage collection emptied, live blocks included.",
        all.freed_bytes,
    );
    text.counter("reclaim_moved_bytes_total", "Bytes moved out of these zones.", all.moved_bytes);
    text.counter("reclaim_won_bytes_total", "Bytes won for writers: freed but not moved.", all.won_bytes());
    let windows = [("minute", 60), ("ten minutes", 600)];
    let recent = windows
        .map(|(window, seconds)| (window, open_pool.pool.recent_reclaim(seconds * 1_000_000_000).ratio()));
    let ratios = [("import", all.ratio())].into_iter().chain(recent);
    text.labelled(
        ("reclaim_ratio", "gauge", "Bytes freed by garbage collection per byte moved, by window."),
        "window",
        ratios.filter_map(|(window, ratio)| ratio.map(|ratio| (window, ratio))),
    );
}

/// Blocks that compression gave up.
pub fn given_up(text: &mut MetricsText, stats: &Stats) {
    type Field = fn((u64, u64)) -> u64;
    let fields: [(&str, &str, Field); 2] = [
        (
            "compression_given_up_blocks_total",
            "Blocks of 4 KiB or more stored uncompressed, by codec, and by what gave them up: a probe (early abort) or the encoder.",
            |(blocks, _)| blocks,
        ),
        ("compression_given_up_bytes_total", "Bytes of these blocks.", |(_, bytes)| bytes),
    ];
    for (name, help, field) in fields {
        text.family(name, "counter", help);
        for codec in &stats.given_up {
            for (step, counts) in GaveUp::ALL.iter().zip(codec.by_step) {
                text.sample(name, &[("codec", codec.codec), ("step", step.name())], field(counts));
            }
        }
    }
}

/// Since the pool was created.
pub fn lifetime_totals(text: &mut MetricsText, open_pool: &OpenPool, stats: &Stats) {
    let totals = &stats.totals;
    text.counter(
        "life_user_bytes_total",
        "Bytes that users wrote into files since the pool was made.",
        totals.user_bytes,
    );
    text.labelled(
        (
            "life_device_bytes_total",
            "counter",
            "Bytes written to devices since the pool was made, by purpose.",
        ),
        "use",
        WritePurpose::ALL.into_iter().map(|what| (what.name(), totals.written_for(what))),
    );
    text.counter("life_reset_zones_total", "Zones reset since the pool was made.", totals.reset_zones);
    text.counter(
        "life_collected_zones_total",
        "Zones emptied by garbage collection since the pool was made.",
        totals.collected_zones,
    );
    // Where nothing was written there is no ratio, and a sample must be a number: so it is left out.
    let windows = [("minute", 60), ("ten minutes", 600)];
    let recent = windows.map(|(window, seconds)| {
        (window, open_pool.pool.recent_totals(seconds * 1_000_000_000).1.amplification())
    });
    let all = [("life", totals.amplification())].into_iter().chain(recent);
    text.labelled(
        (
            "write_amplification",
            "gauge",
            "Write amplification: bytes written to devices per byte written by users, by window.",
        ),
        "window",
        all.filter_map(|(window, times)| times.map(|times| (window, times))),
    );
}

/// What was asked of object stores.
fn object_requests(text: &mut MetricsText, stats: &Stats) {
    let counted = || stats.devices.iter().filter_map(|device| Some((&*device.name, device.requests?)));
    if counted().next().is_none() {
        return;
    }
    text.family(
        "object_requests_total",
        "counter",
        "Requests to an object store, repeated ones included, by kind.",
    );
    for (device, counts) in counted() {
        for (kind, count) in counts.by_kind() {
            text.sample("object_requests_total", &[("device", device), ("kind", kind)], count);
        }
    }
    type Field = fn(&RequestCounts) -> u64;
    let fields: [(&str, &str, Field); 3] = [
        ("object_put_bytes_total", "Bytes put into an object store.", |counts| counts.put_bytes),
        ("object_get_bytes_total", "Bytes got from an object store.", |counts| counts.get_bytes),
        ("object_requests_failed_total", "Requests to an object store that failed.", |counts| counts.failed),
    ];
    for (name, help, field) in fields {
        text.labelled(
            (name, "counter", help),
            "device",
            counted().map(|(device, counts)| (device, field(&counts))),
        );
    }
}

pub fn devices(text: &mut MetricsText, stats: &Stats) {
    type ZoneField = fn(&Io) -> u64;
    type Field = fn(&terrane_device::IoCounts) -> u64;
    let fields: [(&str, &str, Field); 7] = [
        ("device_reads_total", "Reads, anchors included.", |io| io.reads),
        ("device_read_bytes_total", "Bytes read, anchors included.", |io| io.read_bytes),
        ("device_writes_total", "Writes, anchors included.", |io| io.writes),
        ("device_written_bytes_total", "Bytes written, anchors included.", |io| io.written_bytes),
        ("device_flushes_total", "Flushes.", |io| io.flushes),
        ("device_resets_total", "Zones and anchors that were reset.", |io| io.resets),
        ("device_errors_total", "Requests that failed on the device.", |io| io.errors()),
    ];
    for (name, help, field) in fields {
        let values = stats.devices.iter().map(|device| (&*device.name, field(&device.io)));
        text.labelled((name, "counter", help), "device", values);
    }
    object_requests(text, stats);
    let sides: [(&str, &str, &[Io; ZoneClass::ALL.len()]); 2] =
        [("read", "read", &stats.reads), ("written", "written", &stats.writes)];
    for (word, done, io) in sides {
        let fields: [(&str, ZoneField); 3] =
            [("requests", |io| io.operations), ("blocks", |io| io.blocks), ("bytes", |io| io.bytes)];
        for (what, field) in fields {
            let name = format!("zone_{word}_{what}_total");
            let help = format!("Device {what} {done}, by the class of the zone.");
            let values = ZoneClass::ALL.iter().zip(io).map(|(class, io)| (class.name(), field(io)));
            text.labelled((&name, "counter", &help), "class", values);
        }
    }
    text.histogram("device_read_seconds", "Reads of zones.", &stats.device_read);
    text.histogram("device_write_seconds", "Writes of zones.", &stats.device_write);
    text.histogram("device_flush_seconds", "Flushes.", &stats.flush);
    text.counter(
        "block_logical_bytes_total",
        "Bytes of written blocks before compression.",
        stats.logical_bytes,
    );
    text.counter(
        "block_stored_bytes_total",
        "Bytes of written blocks after it, one copy.",
        stats.stored_bytes,
    );
    text.counter(
        "nopwrite_blocks_total",
        "Records overwritten with unchanged content, and therefore not written (nopwrite).",
        stats.nopwrite_blocks,
    );
    text.counter("nopwrite_bytes_total", "Bytes of these records before compression.", stats.nopwrite_bytes);
    text.counter("collected_zones_total", "Zones emptied by garbage collection.", stats.collected_zones);
    text.counter("collected_bytes_total", "Bytes moved by garbage collection.", stats.collected_bytes);
    text.counter("reset_zones_total", "Zones reset.", stats.reset_zones);
    text.counter(
        "late_resets_total",
        "Txgs that reset zones before their end, because a write had failed and no other space was left.",
        stats.late_resets,
    );
}

pub fn txgs(text: &mut MetricsText, stats: &Stats) {
    text.histogram(
        "txg_sync_seconds",
        "Sync time of transaction groups (txgs): from the end of quiescing until they were durable.",
        &stats.txg_sync,
    );
    text.gauge("txg_sync_longest_seconds", "The longest of them.", seconds(stats.txg_sync.longest_ns));
    text.histogram(
        "txg_quiesce_seconds",
        "How long changes were blocked while a txg quiesced.",
        &stats.quiesce,
    );
    text.counter("txg_bytes_total", "Bytes that txgs wrote to devices.", stats.txg_bytes);
    text.histogram(
        "txg_join_wait_seconds",
        "How long changes waited to join a txg, if they could not join at once.",
        &stats.begin,
    );
    text.gauge("txg_join_wait_longest_seconds", "The longest of them.", seconds(stats.begin.longest_ns));
    let waits = || WaitFor::ALL.iter().zip(&stats.waits);
    text.labelled(
        ("txg_waits_total", "counter", "Waits to join a txg, by reason."),
        "reason",
        waits().map(|(reason, times)| (reason.name(), times.count())),
    );
    text.labelled(
        ("txg_wait_seconds_total", "counter", "Time of waits to join a txg, by reason."),
        "reason",
        waits().map(|(reason, times)| (reason.name(), seconds(times.sum_ns))),
    );
    text.labelled(
        ("txg_wait_longest_seconds", "gauge", "The longest wait to join a txg, by reason."),
        "reason",
        waits().map(|(reason, times)| (reason.name(), seconds(times.longest_ns))),
    );
    text.counter("no_space_total", "Changes that were refused because the pool is full.", stats.no_space);
    text.gauge("dirty_bytes", "Dirty bytes in memory, which no txg has committed.", stats.dirty_bytes);
    text.gauge(
        "dirty_limit_bytes",
        "Limit of dirty bytes; it follows the speed of the device.",
        stats.dirty_bytes_max,
    );
}

pub fn caches(text: &mut MetricsText, stats: &Stats) {
    type Field = fn(&terrane_cache::blocks::CacheStats) -> u64;
    let fields: [(&str, &str, &str, Field); 11] = [
        ("cache_hits_total", "counter", "Hits in the block cache.", |cache| cache.hits),
        ("cache_misses_total", "counter", "Misses in the block cache.", |cache| cache.misses),
        ("cache_evictions_total", "counter", "Blocks evicted from the block cache.", |cache| cache.evictions),
        ("cache_ghost_hits_total", "counter", "Blocks read again after they were evicted.", |cache| {
            cache.ghost_hits
        }),
        ("cache_ahead_total", "counter", "Blocks prefetched.", |cache| cache.prefetched),
        ("cache_ahead_hits_total", "counter", "Prefetched blocks that were used.", |cache| {
            cache.prefetched_hits
        }),
        ("cache_bytes", "gauge", "Bytes in the block cache.", |cache| cache.bytes),
        ("cache_plain_bytes", "gauge", "Bytes of decompressed blocks in the block cache.", |cache| {
            cache.plain_bytes
        }),
        ("cache_stored_bytes", "gauge", "Bytes of blocks in the block cache as stored.", |cache| {
            cache.stored_bytes
        }),
        ("cache_logical_bytes", "gauge", "Bytes of these blocks before compression.", |cache| {
            cache.logical_bytes
        }),
        ("cache_blocks", "gauge", "Blocks in the block cache.", |cache| cache.blocks),
    ];
    for (name, kind, help, field) in fields {
        let values =
            Kind::ALL.iter().zip(&stats.cache_by_kind).map(|(kind, cache)| (kind.name(), field(cache)));
        text.labelled((name, kind, help), "kind", values);
    }
    text.gauge("cache_limit_bytes", "Limit of the block cache, in bytes.", stats.cache_bytes_max);
}

/// The cache devices, which hold blocks that were evicted from memory.
pub fn cache_devices(text: &mut MetricsText, open_pool: &OpenPool) {
    type Field = fn(&CacheDeviceStats) -> u64;
    let fields: [(&str, &str, &str, Field); 10] = [
        ("cache_device_size_bytes", "gauge", "Size of the cache device, in bytes.", |stats| stats.size_bytes),
        ("cache_device_held_bytes", "gauge", "Bytes of blocks on the cache device.", |stats| {
            stats.held_bytes
        }),
        ("cache_device_index_bytes", "gauge", "Memory of the index of the cache device.", |stats| {
            stats.index_bytes
        }),
        ("cache_device_hits_total", "counter", "Reads served by the cache device.", |stats| stats.hits),
        (
            "cache_device_hit_bytes_total",
            "counter",
            "Bytes served by the cache device, as stored.",
            |stats| stats.hit_bytes,
        ),
        (
            "cache_device_fed_bytes_total",
            "counter",
            "Bytes of blocks written to the cache device.",
            |stats| stats.fed_bytes,
        ),
        ("cache_device_damaged_total", "counter", "Damaged blocks found on the cache device.", |stats| {
            stats.damaged
        }),
        ("cache_device_errors_total", "counter", "Requests that failed on the cache device.", |stats| {
            stats.io.errors()
        }),
        (
            "cache_device_read_bytes_total",
            "counter",
            "Bytes read from the cache device, tables of contents included.",
            |stats| stats.io.read_bytes,
        ),
        (
            "cache_device_written_bytes_total",
            "counter",
            "Bytes written to the cache device, tables of contents included.",
            |stats| stats.io.written_bytes,
        ),
    ];
    let caches = open_pool.pool.caches();
    if caches.is_empty() {
        return;
    }
    for (name, kind, help, field) in fields {
        let there = caches.iter().filter_map(|cache| Some((&*cache.name, field(cache.stats.as_ref()?))));
        text.labelled((name, kind, help), "device", there);
    }
}

/// The log devices, which hold the intent log.
pub fn log_devices(text: &mut MetricsText, open_pool: &OpenPool) {
    type Field = fn(&LogDeviceStats) -> u64;
    let fields: [(&str, &str, &str, Field); 5] = [
        ("log_device_size_bytes", "gauge", "Size of the log device, in bytes.", |stats| stats.size_bytes),
        ("log_device_failed", "gauge", "Whether the log device has failed.", |stats| {
            u64::from(stats.failure.is_some())
        }),
        ("log_device_written_bytes_total", "counter", "Bytes written to the log device.", |stats| {
            stats.io.written_bytes
        }),
        ("log_device_flushes_total", "counter", "Flushes of the log device.", |stats| stats.io.flushes),
        ("log_device_errors_total", "counter", "Requests that failed on the log device.", |stats| {
            stats.io.errors()
        }),
    ];
    let devices = open_pool.pool.log_devices();
    if devices.is_empty() {
        return;
    }
    for (name, kind, help, field) in fields {
        let there = devices.iter().filter_map(|one| Some((&*one.name, field(one.stats.as_ref()?))));
        text.labelled((name, kind, help), "device", there);
    }
    let missing = devices.iter().filter(|one| one.stats.is_none()).count();
    text.gauge("log_devices_missing", "Log devices that are missing.", missing);
}

/// The levels that `zstd-auto` chose.
pub fn levels(text: &mut MetricsText, open_pool: &OpenPool) {
    type Field = fn(&LevelShare) -> u64;
    let fields: [(&str, &str, Field); 3] = [
        ("auto_records_total", "Records that zstd-auto compressed, by level.", |share| share.blocks),
        ("auto_logical_bytes_total", "Bytes of these records before compression.", |share| {
            share.logical_bytes
        }),
        ("auto_stored_bytes_total", "Bytes of these records after compression.", |share| share.stored_bytes),
    ];
    let shares = open_pool.dataset().object_set().zstd_levels().shares();
    if shares.is_empty() {
        return;
    }
    let names: Vec<String> = shares.iter().map(|share| share.compression.to_string()).collect();
    for (name, help, field) in fields {
        let values = names.iter().zip(&shares).map(|(name, share)| (name.as_str(), field(share)));
        text.labelled((name, "counter", help), "level", values);
    }
}

/// What was rewritten in another form than it was first stored in.
pub fn rewritten(text: &mut MetricsText, file_systems: &[Arc<Fs>]) {
    let any = |is: fn(&Fs) -> bool| u8::from(file_systems.iter().any(|fs| is(fs)));
    text.gauge(
        "rewrite_under_way",
        "Whether files are being rewritten.",
        any(|fs| fs.rewrite().is_running()),
    );
    let figures = |of: fn(&RewriteFigures) -> u64| -> u64 {
        let all = file_systems.iter().filter_map(|fs| fs.rewrite().progress());
        all.map(|status| of(&status.figures)).sum()
    };
    let help = "Stored bytes of the files of the rewrite: seen in this pass, and in total.";
    text.labelled(
        ("rewrite_stored_bytes", "gauge", help),
        "what",
        [("seen", figures(|figures| figures.stored_bytes)), ("all", figures(|figures| figures.stored_total))],
    );
    text.gauge(
        "recompress_under_way",
        "Whether files are being recompressed in idle time.",
        any(|fs| fs.recompress().progress().is_running),
    );
    let sum = |of: fn(&Fs) -> u64| file_systems.iter().map(|fs| of(fs)).sum::<u64>();
    text.counter(
        "recompress_records_total",
        "Records recompressed in idle time since the pool was made.",
        sum(|fs| fs.recompress().progress().records),
    );
    text.counter(
        "recompress_before_bytes_total",
        "Bytes of these records before.",
        sum(|fs| fs.recompress().progress().before_bytes),
    );
    text.counter(
        "recompress_after_bytes_total",
        "Bytes of these records afterwards.",
        sum(|fs| fs.recompress().progress().after_bytes),
    );
}

pub fn errors(text: &mut MetricsText, stats: &Stats) {
    let counters = [
        (
            "checksum_errors_total",
            "Copies of blocks that did not match their checksum.",
            stats.checksum_errors,
        ),
        ("read_errors_total", "Reads of zones that failed on the device.", stats.read_errors),
        ("write_errors_total", "Writes of zones that failed on the device.", stats.write_errors),
        ("lost_reads_total", "Reads that no copy could serve.", stats.lost_blocks),
        ("healed_blocks_total", "Damaged copies that were replaced.", stats.healed_blocks),
        ("scrubbed_blocks_total", "Blocks of which every copy was read and verified.", stats.scrubbed_blocks),
        (
            "rewritten_bytes_total",
            "Bytes rewritten to keep the relocation index within its limit.",
            stats.rewritten_bytes,
        ),
    ];
    for (name, help, value) in counters {
        text.counter(name, help, value);
    }
    let lines = logger::line_counts();
    let levels = lines.iter().map(|(level, count)| (&**level, count));
    text.labelled(("log_lines_total", "counter", "Lines of the log, by level."), "level", levels);
}

pub fn requests(text: &mut MetricsText, mount: &MountMetrics) {
    let stats = &mount.stats;
    let name = "fuse_request_seconds";
    text.family(name, "histogram", "Requests of the kernel, by operation, from receipt to reply.");
    for operation in &stats.operations {
        text.buckets(name, &[("operation", &operation.name)], &operation.latency);
    }
    let errors = stats.operations.iter().map(|operation| (&*operation.name, operation.errors));
    text.labelled(("fuse_errors_total", "counter", "Requests answered with an error."), "operation", errors);
    text.histogram("fuse_parked_seconds", "Requests that waited for a thread that may block.", &stats.parked);
    text.counter("fuse_read_bytes_total", "File bytes sent to the kernel.", stats.read_bytes);
    text.counter("fuse_written_bytes_total", "File bytes received from the kernel.", stats.written_bytes);
    let sum = |of: fn(&Fs) -> usize| mount.file_systems.iter().map(|fs| of(fs)).sum::<usize>();
    text.gauge("inodes_known", "Inodes known to the kernel or in memory.", sum(Fs::cached_inodes));
    text.gauge("inodes_live", "Inodes completely in memory.", sum(Fs::inodes_in_memory));
    text.gauge("directory_indexes", "Indexes of names of directories in memory.", sum(Fs::index_count));
    text.gauge("directory_index_bytes", "Memory of these indexes.", sum(Fs::index_bytes));
}

pub fn process(text: &mut MetricsText, open_pool: &OpenPool) {
    if let Some(allowance) = open_pool.memory.get() {
        text.gauge(
            "memory_limit_bytes",
            "Memory limit of this process; `remount,memory=` changes it.",
            allowance.current().bytes(),
        );
    }
    if let Some(bytes) = memory::resident() {
        text.gauge("resident_memory_bytes", "Memory of the process that holds the pool.", bytes);
    }
}
