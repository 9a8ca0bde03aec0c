//! I/O counters over all devices.

use crate::live::Live;
use serde::Serialize;
use terrane_format::{Spent, Totals};
use terrane_store::counters::WaitFor;
use terrane_store::second::SecondStats;
use terrane_wire::meter::Times;

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
    times: AllTimes,
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
            data_bytes: totals.spent_on(Spent::Data),
            metadata_bytes: totals.spent_on(Spent::Metadata),
            log_bytes: totals.spent_on(Spent::Log),
            collection_bytes: totals.spent_on(Spent::Collection),
            directory_bytes: totals.spent_on(Spent::Directory),
            padding_bytes: totals.spent_on(Spent::Padding),
            anchor_bytes: totals.spent_on(Spent::Anchor),
        }
    }
}

#[derive(Serialize)]
struct AllTimes {
    read: TimesRow,
    write: TimesRow,
    flush: TimesRow,
    group: TimesRow,
    join: TimesRow,
    space: TimesRow,
}

#[derive(Serialize)]
struct TimesRow {
    counts: Vec<u64>,
    sum_ns: u64,
    longest_ns: u64,
}

impl TimesRow {
    fn of(times: &Times) -> TimesRow {
        TimesRow { counts: times.buckets.to_vec(), sum_ns: times.sum_ns, longest_ns: times.longest_ns }
    }
}

pub(super) fn of(live: &Live) -> Iostat {
    let stats = live.pool.stats();
    let (_, used, available) = stats.space;
    let sum = |counter: fn(&terrane_device::IoCounts) -> u64| -> u64 {
        stats.devices.iter().map(|device| counter(&device.io)).sum()
    };
    let caches: Vec<SecondStats> = live.pool.caches().into_iter().filter_map(|cache| cache.stats).collect();
    let second = |counter: fn(&SecondStats) -> u64| caches.iter().map(counter).sum::<u64>();
    Iostat {
        name: live.pool.name(),
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
        times: AllTimes {
            read: TimesRow::of(&stats.device_read),
            write: TimesRow::of(&stats.device_write),
            flush: TimesRow::of(&stats.flush),
            group: TimesRow::of(&stats.group),
            join: TimesRow::of(&stats.begin),
            space: TimesRow::of(&stats.waits[WaitFor::Space as usize]),
        },
    }
}
