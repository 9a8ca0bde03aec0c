//! I/O counters over all devices.

use crate::open_pool::OpenPool;
use serde::Serialize;
use terrane_format::{Totals, WritePurpose};
use terrane_pool::DeviceStats;
use terrane_store::counters::WaitFor;
use terrane_store::l2cache::CacheDeviceStats;
use terrane_wire::meter::HistogramSnapshot;

/// Counters since the import over all devices, and the time since then.
#[derive(Serialize)]
pub(super) struct Iostat {
    name: String,
    used: u64,
    available: u64,
    seconds: f64,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
    flushes: u64,
    resets: u64,
    errors: u64,
    cache_hits: u64,
    cache_misses: u64,
    cache_device_hits: u64,
    cache_device_read_bytes: u64,
    cache_device_written_bytes: u64,
    user_bytes: u64,
    #[serde(flatten)]
    spent: SpentBytes,
    nopwrite_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<Requests>,
    times: Latencies,
}

/// Bytes written, by purpose.
#[derive(Serialize)]
pub(super) struct SpentBytes {
    data_bytes: u64,
    metadata_bytes: u64,
    log_bytes: u64,
    collection_bytes: u64,
    directory_bytes: u64,
    padding_bytes: u64,
    anchor_bytes: u64,
}

impl SpentBytes {
    pub fn of(totals: &Totals) -> SpentBytes {
        SpentBytes {
            data_bytes: totals.written_for(WritePurpose::Data),
            metadata_bytes: totals.written_for(WritePurpose::Metadata),
            log_bytes: totals.written_for(WritePurpose::Log),
            collection_bytes: totals.written_for(WritePurpose::Collection),
            directory_bytes: totals.written_for(WritePurpose::Directory),
            padding_bytes: totals.written_for(WritePurpose::Padding),
            anchor_bytes: totals.written_for(WritePurpose::Anchor),
        }
    }
}

/// What was asked of object stores.
#[derive(Default, Serialize)]
struct Requests {
    put: u64,
    put_bytes: u64,
    get: u64,
    get_bytes: u64,
    list: u64,
    delete: u64,
    failed: u64,
}

impl Requests {
    /// Of all devices that lie in one; `None`: none does.
    fn of(devices: &[DeviceStats]) -> Option<Requests> {
        let counted = devices.iter().filter_map(|device| device.requests);
        counted.fold(None, |sum, counts| {
            let sum = sum.unwrap_or_default();
            Some(Requests {
                put: sum.put + counts.put,
                put_bytes: sum.put_bytes + counts.put_bytes,
                get: sum.get + counts.get,
                get_bytes: sum.get_bytes + counts.get_bytes,
                list: sum.list + counts.list,
                delete: sum.delete + counts.delete,
                failed: sum.failed + counts.failed,
            })
        })
    }
}

#[derive(Serialize)]
struct Latencies {
    read: LatencyRow,
    write: LatencyRow,
    flush: LatencyRow,
    txg: LatencyRow,
    join: LatencyRow,
    space: LatencyRow,
}

#[derive(Serialize)]
struct LatencyRow {
    counts: Vec<u64>,
    sum_ns: u64,
    longest_ns: u64,
}

impl LatencyRow {
    fn of(times: &HistogramSnapshot) -> LatencyRow {
        LatencyRow { counts: times.buckets.to_vec(), sum_ns: times.sum_ns, longest_ns: times.longest_ns }
    }
}

pub(super) fn of(open_pool: &OpenPool) -> Iostat {
    let stats = open_pool.pool.stats();
    let (_, used, available) = stats.space;
    let sum = |counter: fn(&terrane_device::IoCounts) -> u64| -> u64 {
        stats.devices.iter().map(|device| counter(&device.io)).sum()
    };
    let caches: Vec<CacheDeviceStats> =
        open_pool.pool.caches().into_iter().filter_map(|cache| cache.stats).collect();
    let second = |counter: fn(&CacheDeviceStats) -> u64| caches.iter().map(counter).sum::<u64>();
    Iostat {
        name: open_pool.pool.name(),
        used,
        available,
        seconds: stats.uptime_ns as f64 / 1e9,
        reads: sum(|io| io.reads),
        writes: sum(|io| io.writes),
        read_bytes: sum(|io| io.read_bytes),
        written_bytes: sum(|io| io.written_bytes),
        flushes: sum(|io| io.flushes),
        resets: sum(|io| io.resets),
        errors: sum(terrane_device::IoCounts::errors),
        cache_hits: stats.cache.hits,
        cache_misses: stats.cache.misses,
        cache_device_hits: second(|stats| stats.hits),
        cache_device_read_bytes: second(|stats| stats.io.read_bytes),
        cache_device_written_bytes: second(|stats| stats.io.written_bytes),
        user_bytes: stats.totals_now.user_bytes,
        spent: SpentBytes::of(&stats.totals_now),
        nopwrite_bytes: stats.nopwrite_bytes,
        requests: Requests::of(&stats.devices),
        times: Latencies {
            read: LatencyRow::of(&stats.device_read),
            write: LatencyRow::of(&stats.device_write),
            flush: LatencyRow::of(&stats.flush),
            txg: LatencyRow::of(&stats.txg_sync),
            join: LatencyRow::of(&stats.begin),
            space: LatencyRow::of(&stats.waits[WaitFor::Space as usize]),
        },
    }
}
