//! How a pool is, in figures, and its error log.

use super::devices;
use crate::clock;
use crate::failure::Outcome;
use crate::holder;
use crate::inspect;
use crate::live::Live;
use serde_json::{Value, json};
use std::sync::Arc;
use terrane_device::{Device, ZoneState};
use terrane_format::{Spent, Totals};
use terrane_pool::{GcRest, Stats};
use terrane_store::counters::WaitFor;
use terrane_store::errors::LossCause;
use terrane_store::patience::Suspension;

pub(super) fn of(live: &Live) -> Value {
    let status = live.pool.status();
    let usage = live.dataset.objects().usage();
    let uberblock = inspect::newest_uberblock(&live.pool.device_handles());
    let committed = uberblock.map(|uber| clock::utc((uber.time_ns / 1_000_000_000) as i64));
    let is_sound = |device: &Arc<dyn Device>| device.trouble().is_none();
    let errors = &status.errors;
    let whole = errors.findings.is_empty()
        && errors.blocks.is_empty()
        && live.pool.device_handles().iter().all(is_sound);
    let state = match (&status.failed, &status.suspended, whole) {
        (Some(_), _, _) => "failed",
        (None, Some(_), _) => "suspended",
        (None, None, false) => "damaged",
        (None, None, true) => "healthy",
    };
    let since = |suspended: &Suspension| clock::utc((suspended.since_ns / 1_000_000_000) as i64);
    let suspended = status.suspended.as_ref().map(|it| json!({"reason": it.reason, "since": since(it)}));
    let stats = live.pool.stats();
    let devices = live.pool.devices();
    let given_up = |state: ZoneState| {
        let all = devices.iter().flat_map(|device| &device.given_up);
        all.filter(|(_, found)| *found == state).count()
    };
    let mut row = json!({
        "name": status.name,
        "id": format!("{:016x}", live.pool.label().id()),
        "state": state,
        "device": live.path.display().to_string(),
        "devices": devices::rows(live),
        "caches": live.pool.caches().iter().map(devices::cache_row).collect::<Value>(),
        "mountpoint": live.mountpoint.as_ref().map(|dir| dir.display().to_string()),
        "read_only": live.mountpoint.is_some() && live.pool.is_read_only(),
        "keeper": live.mountpoint.as_ref().map(|_| holder::state()),
        "memory": live.memory.get().map(|allowance| allowance.status(&live.pool)),
        "size": status.size_bytes,
        "used": status.live_bytes,
        "available": status.available_bytes,
        "capacity_percent": (status.live_bytes as u128 * 100).checked_div(u128::from(status.size_bytes)).map(|part| part as u64),
        "objects": usage.objects,
        "zone_size": status.zone_size,
        "zones": status.zones,
        "zones_empty": status.zones_empty,
        "zones_waiting": status.zones_waiting,
        "zones_open": stats.zones.open,
        "zones_full": stats.zones.full,
        "zones_suspect": stats.zones.suspect,
        "zones_read_only": given_up(ZoneState::ReadOnly),
        "zones_offline": given_up(ZoneState::Offline),
        "runs": status.runs,
        "run_index_bytes": stats.run_index_bytes,
        "run_index_packed": stats.run_index_packed,
        "dead_set_bytes": stats.dead_set_bytes,
        "index_bytes_max": stats.index_bytes_max,
        "reborn_bytes": stats.reborn_bytes,
        "txg": status.txg.0,
        "incarnation": status.incarnation,
        "clean": uberblock.map(|uber| uber.clean),
        "committed": committed,
        "failed": status.failed,
        "suspended": suspended,
        "damage": errors.findings,
        "damaged": inspect::damaged(live, &errors.blocks),
        "lost_files": lost_files(live),
        "features": inspect::feature_names(&live.pool.label()),
        "reason": null,
    });
    for (key, value) in activity(live, &stats) {
        row[key] = value;
    }
    row
}

/// Why a file lost changes: the words of `pool status --json`.
const SERVER_KILLED: &str = "server killed";
pub const NOT_WRITTEN_BACK: &str = "not written back";

/// Files that lost changes: when a server of this mount died, or because what the kernel wrote back could not be stored.
fn lost_files(live: &Live) -> Value {
    // Looked at by what has it open for a mount, or where there is something to name.
    if live.fs.get().is_none() && live.pool.errors().files.is_empty() {
        return json!([]);
    }
    let Ok(fs) = live.fs() else { return json!([]) };
    let path = |ino: u64| {
        let said = fs.path_of(ino);
        // The number has a key of its own.
        said.rsplit_once(" (inode ").map_or(said.clone(), |(path, _)| path.to_owned())
    };
    let row = |(ino, cause)| {
        let reason = match cause {
            LossCause::ServerKilled => SERVER_KILLED,
            LossCause::NotWrittenBack => NOT_WRITTEN_BACK,
        };
        json!({"inode": ino, "path": path(ino), "reason": reason})
    };
    fs.lost_files().into_iter().take(LOST_FILES_MAX).map(row).collect()
}

/// Of more files only so many are named.
const LOST_FILES_MAX: usize = 1000;

pub(super) fn clear(live: &Live) -> Outcome<Value> {
    let errors = match live.fs.get() {
        Some(fs) => fs.clear_losses()?,
        None => {
            let errors = live.pool.clear_errors();
            live.dataset.record_errors()?;
            errors
        }
    };
    Ok(json!({
        "name": live.pool.name(),
        "damage": errors.findings.len(),
        "damaged": errors.blocks.len(),
        "lost_files": errors.files.len(),
        "devices": errors.devices.len(),
    }))
}

/// What the pool did and does with its zones.
fn activity(live: &Live, stats: &Stats) -> [(&'static str, Value); 10] {
    let lately = |seconds: u64| live.pool.lately(seconds * 1_000_000_000).1.amplification();
    let percent =
        |part: u64, of: u64| (u128::from(part) * 100).checked_div(u128::from(of)).map(|part| part as u64);
    let (mode, victim) = live.pool.gc_now();
    let collecting = live.pool.gc_progress();
    let victim = victim.map(|victim| {
        json!({
            "seq": victim.seq.0,
            "device": victim.home.device.0,
            "zone": victim.home.zone.0,
            "live_percent": percent(victim.live_bytes, victim.live_bytes + victim.garbage_bytes),
            "moved_percent": percent(victim.moved_bytes.min(victim.live_bytes), victim.live_bytes),
        })
    });
    let mounted = live.mountpoint.as_ref();
    [
        ("totals", totals(&stats.totals)),
        ("amplification", stats.totals.amplification().into()),
        ("amplification_minute", lately(60).into()),
        ("amplification_ten_minutes", lately(600).into()),
        ("waits", mounted.map(|_| waits(stats)).into()),
        ("garbage", collecting.garbage_bytes.into()),
        ("garbage_goal", (!collecting.done).then_some(collecting.goal_bytes).into()),
        ("collection", mounted.map(|_| mode.name()).into()),
        ("victim", victim.into()),
        ("collection_rests", live.pool.gc_rests().into_iter().map(|rest| rest_row(live, rest)).collect()),
    ]
}

/// A device on which collection rests.
fn rest_row(live: &Live, rest: GcRest) -> Value {
    let left_ns = rest.until_ns.saturating_sub(live.pool.env().monotonic_ns());
    json!({
        "device": rest.device.0,
        "unread_zones": rest.unread_zones,
        "seconds": left_ns.div_ceil(1_000_000_000),
    })
}

fn totals(totals: &Totals) -> Value {
    let mut said = json!({
        "user_bytes": totals.user_bytes,
        "logical_bytes": totals.logical_bytes,
        "stored_bytes": totals.stored_bytes,
        "device_bytes": totals.device_bytes(),
        "zones_reset": totals.reset_zones,
        "zones_collected": totals.collected_zones,
    });
    for what in Spent::ALL {
        said[format!("{}_bytes", what.name())] = totals.spent_on(what).into();
    }
    said
}

/// Changes that waited for room in the pool.
fn waits(stats: &Stats) -> Value {
    let times = &stats.waits[WaitFor::Space as usize];
    json!({
        "count": times.count(),
        "seconds": times.sum_ns as f64 / 1e9,
        "longest_seconds": times.longest_ns as f64 / 1e9,
        "refused": stats.no_space,
        "now": stats.waiting.0,
        "now_bytes": stats.waiting.1,
    })
}

/// The row of a pool that is known and cannot be opened: the keys of one that can.
pub fn unavailable(name: &str, device: Option<String>, reason: &str) -> Value {
    let mut row: serde_json::Map<String, Value> =
        STATUS_KEYS.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
    row.insert("name".to_owned(), name.into());
    row.insert("device".to_owned(), device.into());
    row.insert("state".to_owned(), "unavailable".into());
    row.insert("reason".to_owned(), reason.into());
    row.into()
}

/// All keys of a status.
pub const STATUS_KEYS: [&str; 51] = [
    "name",
    "id",
    "state",
    "device",
    "devices",
    "caches",
    "mountpoint",
    "read_only",
    "keeper",
    "memory",
    "size",
    "used",
    "available",
    "capacity_percent",
    "objects",
    "zone_size",
    "zones",
    "zones_empty",
    "zones_waiting",
    "zones_open",
    "zones_full",
    "zones_suspect",
    "zones_read_only",
    "zones_offline",
    "runs",
    "run_index_bytes",
    "run_index_packed",
    "dead_set_bytes",
    "index_bytes_max",
    "reborn_bytes",
    "totals",
    "amplification",
    "amplification_minute",
    "amplification_ten_minutes",
    "waits",
    "garbage",
    "garbage_goal",
    "collection",
    "victim",
    "collection_rests",
    "txg",
    "incarnation",
    "clean",
    "committed",
    "failed",
    "suspended",
    "damage",
    "damaged",
    "lost_files",
    "features",
    "reason",
];
