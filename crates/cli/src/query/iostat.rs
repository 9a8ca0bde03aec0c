//! What the devices have done, all together.

use crate::live::Live;
use serde_json::{Value, json};
use terrane_format::Spent;
use terrane_store::counters::WaitFor;
use terrane_store::second::SecondStats;
use terrane_wire::meter::Times;

/// Counters since the import, all devices together, and how long ago that was.
pub(super) fn of(live: &Live) -> Value {
    let stats = live.pool.stats();
    let (_, used, available) = stats.space;
    let sum = |counter: fn(&terrane_device::IoCounts) -> u64| -> u64 {
        stats.devices.iter().map(|device| counter(&device.io)).sum()
    };
    let caches: Vec<SecondStats> = live.pool.caches().into_iter().filter_map(|cache| cache.stats).collect();
    let second = |counter: fn(&SecondStats) -> u64| caches.iter().map(counter).sum::<u64>();
    json!({
        "name": live.pool.name(),
        "used": used,
        "available": available,
        "seconds": stats.uptime_ns as f64 / 1e9,
        "reads": sum(|io| io.reads),
        "writes": sum(|io| io.writes),
        "read_bytes": sum(|io| io.read_bytes),
        "written_bytes": sum(|io| io.written_bytes),
        "flushes": sum(|io| io.flushes),
        "resets": sum(|io| io.resets),
        "errors": sum(terrane_device::IoCounts::errors),
        "cache_hits": stats.cache.hits,
        "cache_misses": stats.cache.misses,
        "cache_device_hits": second(|stats| stats.hits),
        "cache_device_read_bytes": second(|stats| stats.io.read_bytes),
        "cache_device_written_bytes": second(|stats| stats.io.written_bytes),
        "user_bytes": stats.totals_now.user_bytes,
        "data_bytes": stats.totals_now.spent_on(Spent::Data),
        "metadata_bytes": stats.totals_now.spent_on(Spent::Metadata),
        "log_bytes": stats.totals_now.spent_on(Spent::Log),
        "collection_bytes": stats.totals_now.spent_on(Spent::Collection),
        "directory_bytes": stats.totals_now.spent_on(Spent::Directory),
        "padding_bytes": stats.totals_now.spent_on(Spent::Padding),
        "anchor_bytes": stats.totals_now.spent_on(Spent::Anchor),
        "nopwrite_bytes": stats.nopwrite_bytes,
        "times": {
            "read": times(&stats.device_read),
            "write": times(&stats.device_write),
            "flush": times(&stats.flush),
            "group": times(&stats.group),
            "join": times(&stats.begin),
            "space": times(&stats.waits[WaitFor::Space as usize]),
        },
    })
}

fn times(times: &Times) -> Value {
    json!({"counts": times.buckets, "sum_ns": times.sum_ns, "longest_ns": times.longest_ns})
}
