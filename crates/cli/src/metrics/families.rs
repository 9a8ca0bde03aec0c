//! The metric families: names, help texts and values.

use super::MountSide;
use super::text::{Page, seconds};
use crate::live::Live;
use crate::logger;
use crate::memory;
use terrane_cache::Kind;
use terrane_device::ZoneState;
use terrane_format::Spent;
use terrane_format::record::Class;
use terrane_pool::Stats;
use terrane_posix::{Fs, Job};
use terrane_store::counters::{Io, WaitFor};
use terrane_store::second::SecondStats;
use terrane_txg::by_hand::GcMode;
use terrane_txg::levels::LevelShare;

pub fn space(page: &mut Page, live: &Live, stats: &Stats) {
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

/// Since the pool was created.
pub fn life(page: &mut Page, live: &Live, stats: &Stats) {
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
    // Where nothing was written there is no ratio, and a sample must be a number: so it is left out.
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

pub fn devices(page: &mut Page, stats: &Stats) {
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

pub fn groups(page: &mut Page, stats: &Stats) {
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

pub fn caches(page: &mut Page, stats: &Stats) {
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

/// The cache devices, which hold blocks that were evicted from memory.
pub fn cache_devices(page: &mut Page, live: &Live) {
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

/// The levels that `zstd-auto` chose.
pub fn levels(page: &mut Page, live: &Live) {
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

/// What was rewritten in another form than it was first stored in.
pub fn rewritten(page: &mut Page, fs: &Fs) {
    let status = fs.rewrite().progress();
    let figures = status.map(|status| status.figures).unwrap_or_default();
    page.gauge("rewrite_under_way", "Whether files are being rewritten.", u8::from(fs.rewrite().goes_on()));
    let help = "Bytes that the files of the rewrite take of which this pass has seen, and all.";
    page.each(
        ("rewrite_stored_bytes", "gauge", help),
        "what",
        [("seen", figures.stored_bytes), ("all", figures.stored_total)],
    );
    let idle = fs.recompress().progress();
    page.gauge("recompress_under_way", "Whether idle time is used on files.", u8::from(idle.is_under_way));
    page.counter(
        "recompress_records_total",
        "Records that idle time compressed, since the pool was made.",
        idle.records,
    );
    page.counter("recompress_before_bytes_total", "Bytes these records took before.", idle.before_bytes);
    page.counter("recompress_after_bytes_total", "Bytes they took after it.", idle.after_bytes);
}

pub fn errors(page: &mut Page, stats: &Stats) {
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

pub fn requests(page: &mut Page, mount: &MountSide<'_>) {
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

pub fn process(page: &mut Page, live: &Live) {
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
