//! The status of a pool, and its error log.

use super::devices::{self, CacheRow, DeviceRow, LogDeviceRow};
use super::iostat::SpentBytes;
use crate::clock;
use crate::dataset_name::full_name;
use crate::failure::Outcome;
use crate::fd_store;
use crate::inspect::{self, DamagedRow};
use crate::memory::MemoryStatus;
use crate::open_pool::{MountedAt, OpenPool};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use terrane_codec::GivenUpCodec;
use terrane_device::{Device, ZoneState};
use terrane_format::Totals;
use terrane_fuse::mount::{MountEntry, list_mounts};
use terrane_pool::{KeptSpace, Stats};
use terrane_posix::Fs;
use terrane_store::counters::WaitFor;
use terrane_store::errors::LossCause;
use terrane_store::read_retry::Suspension;
use terrane_txg::unread::GcRest;

/// The status of a pool.
#[derive(Serialize)]
pub(super) struct Status {
    name: String,
    id: String,
    state: &'static str,
    device: String,
    devices: Vec<DeviceRow>,
    caches: Vec<CacheRow>,
    log_devices: Vec<LogDeviceRow>,
    mountpoint: Option<String>,
    mounts: Vec<MountRow>,
    read_only: bool,
    supervisor: Option<&'static str>,
    memory: Option<MemoryStatus>,
    size: u64,
    used: u64,
    available: u64,
    capacity_percent: Option<u64>,
    objects: u64,
    kept: KeptRow,
    zone_size: u64,
    zone_sizes: Vec<ZoneSizeRow>,
    zones: u64,
    zones_empty: u64,
    zones_waiting: u64,
    zones_open: u64,
    zones_full: u64,
    zones_suspect: u64,
    zones_read_only: usize,
    zones_offline: usize,
    runs: u64,
    run_index_bytes: u64,
    run_index_packed: bool,
    dead_set_bytes: u64,
    index_bytes_max: u64,
    rewritten_bytes: u64,
    shared_blocks: u64,
    shared_bytes: u64,
    saved_bytes: u64,
    txg: u64,
    incarnation: u64,
    clean: Option<bool>,
    committed: Option<String>,
    failed: Option<String>,
    suspended: Option<SuspendedRow>,
    damage: Vec<String>,
    damaged: Vec<DamagedRow>,
    lost_files: Vec<LostFileRow>,
    features: Vec<String>,
    /// Of a pool that cannot be opened.
    reason: Option<String>,
    #[serde(flatten)]
    activity: Activity,
}

/// Zones of one size.
#[derive(Serialize)]
struct ZoneSizeRow {
    size: u64,
    zones: u64,
    empty: u64,
    used: u64,
}

/// Zones by size, largest first.
fn zone_sizes(devices: &[DeviceRow]) -> Vec<ZoneSizeRow> {
    let mut rows: Vec<ZoneSizeRow> = Vec::new();
    for device in devices {
        let (size, zones, empty, used) = device.zones_by_state();
        match rows.iter_mut().find(|row| row.size == size) {
            Some(row) => {
                (row.zones, row.empty, row.used) = (row.zones + zones, row.empty + empty, row.used + used)
            }
            None => rows.push(ZoneSizeRow { size, zones, empty, used }),
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.size));
    rows
}

/// What the bytes of the devices are kept for. All but `devices` add up, with the pool's size, to `devices`.
#[derive(Serialize)]
struct KeptRow {
    devices: u64,
    anchors: u64,
    unusable: u64,
    zone_overhead: u64,
    log: u64,
    host: u64,
    collection: u64,
    commits: u64,
    metadata: u64,
    open_zones: u64,
    frees: u64,
}

impl KeptRow {
    fn of(kept: &KeptSpace) -> KeptRow {
        let KeptSpace { device_bytes, anchor_bytes, unusable_bytes, parts } = *kept;
        KeptRow {
            devices: device_bytes,
            anchors: anchor_bytes,
            unusable: unusable_bytes,
            zone_overhead: parts.zone_overhead,
            log: parts.log,
            host: parts.lacking_on_host,
            collection: parts.collection,
            commits: parts.commits,
            metadata: parts.metadata,
            open_zones: parts.open_zones,
            frees: parts.frees,
        }
    }
}

/// What GC gave since the mount.
#[derive(Serialize)]
struct ReclaimRow {
    freed: u64,
    moved: u64,
    won: u64,
    ratio: Option<f64>,
    ratio_minute: Option<f64>,
    ratio_ten_minutes: Option<f64>,
}

impl ReclaimRow {
    fn of(open_pool: &OpenPool, stats: &Stats) -> ReclaimRow {
        let lately = |seconds: u64| open_pool.pool.recent_reclaim(seconds * 1_000_000_000).ratio();
        ReclaimRow {
            freed: stats.reclaim.freed_bytes,
            moved: stats.reclaim.moved_bytes,
            won: stats.reclaim.won_bytes(),
            ratio: stats.reclaim.ratio(),
            ratio_minute: lately(60),
            ratio_ten_minutes: lately(600),
        }
    }
}

/// Blocks that one algorithm gave up.
#[derive(Serialize)]
struct GivenUpRow {
    name: &'static str,
    probe_blocks: u64,
    probe_bytes: u64,
    encoder_blocks: u64,
    encoder_bytes: u64,
}

impl GivenUpRow {
    fn of(codec: &GivenUpCodec) -> GivenUpRow {
        let [(probe_blocks, probe_bytes), (encoder_blocks, encoder_bytes)] = codec.by_step;
        GivenUpRow { name: codec.codec, probe_blocks, probe_bytes, encoder_blocks, encoder_bytes }
    }

    fn is_empty(&self) -> bool {
        self.probe_blocks + self.encoder_blocks == 0
    }
}

#[derive(Serialize)]
struct SuspendedRow {
    reason: String,
    since: String,
}

/// A data set that is mounted.
#[derive(Serialize)]
struct MountRow {
    dataset: String,
    mountpoint: String,
    read_only: bool,
}

/// The mounts of this process. The kernel's table says whether a mount is read-only, since a remount changes that.
fn mounts(open_pool: &OpenPool) -> Vec<MountRow> {
    let mounted = open_pool.mounts.list();
    let table = if mounted.is_empty() { Vec::new() } else { list_mounts().unwrap_or_default() };
    let (pool, is_read_only) = (open_pool.pool.name(), open_pool.pool.is_read_only());
    let row = |mount: &MountedAt| {
        let mut places = table.iter().filter(|place| place.dev == mount.dev).peekable();
        MountRow {
            dataset: full_name(&pool, &mount.path),
            mountpoint: mount.dir.display().to_string(),
            read_only: is_read_only || places.peek().is_some() && places.all(MountEntry::is_read_only),
        }
    };
    mounted.iter().map(row).collect()
}

#[derive(Serialize)]
struct LostFileRow {
    dataset: String,
    inode: u64,
    path: String,
    reason: &'static str,
}

/// GC and other work on the pool's zones.
#[derive(Serialize)]
struct Activity {
    totals: TotalsRow,
    amplification: Option<f64>,
    amplification_minute: Option<f64>,
    amplification_ten_minutes: Option<f64>,
    waits: Option<Waits>,
    reclaim: Option<ReclaimRow>,
    given_up: Option<Vec<GivenUpRow>>,
    garbage: u64,
    garbage_goal: Option<u64>,
    collection: Option<&'static str>,
    victim: Option<VictimRow>,
    collection_rests: Vec<PausedDeviceRow>,
}

#[derive(Serialize)]
struct TotalsRow {
    user_bytes: u64,
    logical_bytes: u64,
    stored_bytes: u64,
    device_bytes: u64,
    zones_reset: u64,
    zones_collected: u64,
    #[serde(flatten)]
    spent: SpentBytes,
}

/// Changes that waited for space in the pool.
#[derive(Serialize)]
struct Waits {
    count: u64,
    seconds: f64,
    longest_seconds: f64,
    refused: u64,
    now: u64,
    now_bytes: u64,
}

/// A zone that GC is emptying.
#[derive(Serialize)]
struct VictimRow {
    seq: u64,
    device: u16,
    zone: u32,
    live_percent: Option<u64>,
    moved_percent: Option<u64>,
}

/// A device on which GC is paused.
#[derive(Serialize)]
struct PausedDeviceRow {
    device: u16,
    unread_zones: u64,
    seconds: u64,
}

pub(super) fn of(open_pool: &OpenPool) -> Status {
    let status = open_pool.pool.status();
    let usage = open_pool.dataset().object_set().usage();
    let uberblock = inspect::newest_uberblock(&open_pool.pool.device_handles());
    let committed = uberblock.map(|uber| clock::utc((uber.time_ns / 1_000_000_000) as i64));
    let is_sound = |device: &Arc<dyn Device>| device.problem_text().is_none();
    let errors = &status.errors;
    let whole = errors.findings.is_empty()
        && errors.blocks.is_empty()
        && open_pool.pool.device_handles().iter().all(is_sound);
    let state = match (&status.failed, &status.suspended, whole) {
        (Some(_), _, _) => "failed",
        (None, Some(_), _) => "suspended",
        (None, None, false) => "damaged",
        (None, None, true) => "healthy",
    };
    let since = |suspended: &Suspension| clock::utc((suspended.since_ns / 1_000_000_000) as i64);
    let suspended = status.suspended.as_ref();
    let suspended = suspended.map(|it| SuspendedRow { reason: it.reason.clone(), since: since(it) });
    let stats = open_pool.pool.stats();
    let shared = open_pool.dataset().object_set().shared().totals();
    let is_served = open_pool.is_served();
    let members = devices::rows(open_pool);
    let devices = open_pool.pool.devices();
    let given_up = |state: ZoneState| {
        let all = devices.iter().flat_map(|device| &device.unwritable_zones);
        all.filter(|(_, found)| *found == state).count()
    };
    Status {
        name: status.name.clone(),
        id: format!("{:016x}", open_pool.pool.label().id()),
        state,
        device: open_pool.path.display().to_string(),
        zone_sizes: zone_sizes(&members),
        devices: members,
        caches: open_pool.pool.caches().iter().map(CacheRow::of).collect(),
        log_devices: open_pool.pool.log_devices().iter().map(LogDeviceRow::of).collect(),
        mountpoint: open_pool.mountpoint().map(|dir| dir.display().to_string()),
        mounts: mounts(open_pool),
        read_only: is_served && open_pool.pool.is_read_only(),
        supervisor: is_served.then(fd_store::state),
        memory: open_pool
            .memory
            .get()
            .map(|allowance| allowance.status(&open_pool.pool, &open_pool.mounts.file_systems())),
        size: status.size_bytes,
        used: status.live_bytes,
        available: status.available_bytes,
        capacity_percent: percent(status.live_bytes, status.size_bytes),
        objects: usage.objects,
        kept: KeptRow::of(&stats.kept),
        zone_size: status.zone_size,
        zones: status.zones,
        zones_empty: status.zones_empty,
        zones_waiting: status.zones_waiting,
        zones_open: stats.zones.open,
        zones_full: stats.zones.full,
        zones_suspect: stats.zones.suspect,
        zones_read_only: given_up(ZoneState::ReadOnly),
        zones_offline: given_up(ZoneState::Offline),
        runs: status.runs,
        run_index_bytes: stats.run_index_bytes,
        run_index_packed: stats.run_index_packed,
        dead_set_bytes: stats.dead_set_bytes,
        index_bytes_max: stats.index_bytes_max,
        rewritten_bytes: stats.rewritten_bytes,
        shared_blocks: shared.blocks,
        shared_bytes: shared.block_bytes,
        saved_bytes: shared.saved_bytes,
        txg: status.txg.0,
        incarnation: status.incarnation,
        clean: uberblock.map(|uber| uber.clean),
        committed,
        failed: status.failed.clone(),
        suspended,
        damage: errors.findings.clone(),
        damaged: inspect::damaged(open_pool, &errors.blocks),
        lost_files: lost_files(open_pool),
        features: inspect::feature_names(&open_pool.pool.label()),
        reason: None,
        activity: activity(open_pool, &stats),
    }
}

/// `None` if `of` is 0.
fn percent(part: u64, of: u64) -> Option<u64> {
    (u128::from(part) * 100).checked_div(u128::from(of)).map(|part| part as u64)
}

/// Why a file lost changes: the values in `pool status --json`.
const SERVER_KILLED: &str = "server killed";
pub const NOT_WRITTEN_BACK: &str = "not written back";

/// Files that lost changes: because a server of this mount died, or because a write-back of the kernel could
/// not be stored.
fn lost_files(open_pool: &OpenPool) -> Vec<LostFileRow> {
    let mut sets: Vec<(String, Arc<Fs>)> =
        open_pool.mounts.list().into_iter().filter_map(|row| Some((row.path, row.fs.get()?))).collect();
    let is_listed = sets.iter().any(|(path, _)| *path == open_pool.dataset_path);
    // The file system is opened only if the log names a file.
    if !is_listed
        && !open_pool.pool.errors().files.is_empty()
        && let Ok(fs) = open_pool.fs()
    {
        sets.push((open_pool.dataset_path.clone(), fs));
    }
    let pool = open_pool.pool.name();
    let row = |(dataset, fs): &(String, Arc<Fs>), (ino, cause)| {
        let path_and_inode = fs.path_of(ino);
        // The number has a key of its own.
        let path = path_and_inode.rsplit_once(" (inode ").map_or(path_and_inode.as_str(), |(path, _)| path);
        let reason = match cause {
            LossCause::ServerKilled => SERVER_KILLED,
            LossCause::NotWrittenBack => NOT_WRITTEN_BACK,
        };
        LostFileRow { dataset: full_name(&pool, dataset), inode: ino, path: path.to_owned(), reason }
    };
    let all = sets.iter().flat_map(|set| set.1.lost_files().into_iter().map(move |file| row(set, file)));
    all.take(LOST_FILES_MAX).collect()
}

/// Maximum number of files that are named.
const LOST_FILES_MAX: usize = 1000;

/// Entries that were removed from the error log.
#[derive(Serialize)]
pub(super) struct Cleared {
    name: String,
    damage: usize,
    damaged: usize,
    lost_files: usize,
    devices: usize,
    /// Log devices that are tried again.
    log_devices: usize,
}

pub(super) fn clear(open_pool: &OpenPool) -> Outcome<Cleared> {
    let log_devices = open_pool.pool.retry_log_devices() + open_pool.attach_log_devices()?;
    let open = open_pool.file_systems();
    open.iter().for_each(|fs| fs.log_losses());
    let errors = open_pool.pool.clear_errors();
    open.iter().for_each(|fs| fs.mark_losses_read());
    open_pool.root()?.record_errors()?;
    open_pool.pool.commit()?;
    Ok(Cleared {
        name: open_pool.pool.name(),
        damage: errors.findings.len(),
        damaged: errors.blocks.len(),
        lost_files: errors.files.len(),
        devices: errors.devices.len(),
        log_devices,
    })
}

fn activity(open_pool: &OpenPool, stats: &Stats) -> Activity {
    let lately = |seconds: u64| open_pool.pool.recent_totals(seconds * 1_000_000_000).1.amplification();
    let (mode, victim) = open_pool.pool.gc_now();
    let collecting = open_pool.pool.gc_progress();
    let victim = victim.map(|victim| VictimRow {
        seq: victim.seq.0,
        device: victim.home.device.0,
        zone: victim.home.zone.0,
        live_percent: percent(victim.live_bytes, victim.live_bytes + victim.garbage_bytes),
        moved_percent: percent(victim.moved_bytes.min(victim.live_bytes), victim.live_bytes),
    });
    let mounted = open_pool.is_served().then_some(());
    Activity {
        totals: TotalsRow::of(&stats.totals),
        amplification: stats.totals.amplification(),
        amplification_minute: lately(60),
        amplification_ten_minutes: lately(600),
        waits: mounted.map(|_| Waits::of(stats)),
        reclaim: mounted.map(|_| ReclaimRow::of(open_pool, stats)),
        given_up: mounted
            .map(|_| stats.given_up.iter().map(GivenUpRow::of).filter(|row| !row.is_empty()).collect()),
        garbage: collecting.garbage_bytes,
        garbage_goal: (!collecting.done).then_some(collecting.goal_bytes),
        collection: mounted.map(|_| mode.name()),
        victim,
        collection_rests: open_pool
            .pool
            .gc_rests()
            .into_iter()
            .map(|rest| PausedDeviceRow::of(open_pool, rest))
            .collect(),
    }
}

impl PausedDeviceRow {
    fn of(open_pool: &OpenPool, rest: GcRest) -> PausedDeviceRow {
        let left_ns = rest.until_ns.saturating_sub(open_pool.pool.env().monotonic_ns());
        PausedDeviceRow {
            device: rest.device.0,
            unread_zones: rest.unread_zones,
            seconds: left_ns.div_ceil(1_000_000_000),
        }
    }
}

impl TotalsRow {
    fn of(totals: &Totals) -> TotalsRow {
        TotalsRow {
            user_bytes: totals.user_bytes,
            logical_bytes: totals.logical_bytes,
            stored_bytes: totals.stored_bytes,
            device_bytes: totals.device_bytes(),
            zones_reset: totals.reset_zones,
            zones_collected: totals.collected_zones,
            spent: SpentBytes::of(totals),
        }
    }
}

impl Waits {
    fn of(stats: &Stats) -> Waits {
        let times = &stats.waits[WaitFor::Space as usize];
        Waits {
            count: times.count(),
            seconds: times.sum_ns as f64 / 1e9,
            longest_seconds: times.longest_ns as f64 / 1e9,
            refused: stats.no_space,
            now: stats.waiting.0,
            now_bytes: stats.waiting.1,
        }
    }
}

/// The row of a known pool that cannot be opened, with the keys of one that can.
pub fn unavailable_row(name: &str, device: Option<String>, reason: &str) -> Value {
    let mut row: serde_json::Map<String, Value> =
        STATUS_KEYS.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
    row.insert("name".to_owned(), name.into());
    row.insert("device".to_owned(), device.into());
    row.insert("state".to_owned(), "unavailable".into());
    row.insert("reason".to_owned(), reason.into());
    row.into()
}

/// All keys of a status.
pub const STATUS_KEYS: [&str; 60] = [
    "name",
    "id",
    "state",
    "device",
    "devices",
    "caches",
    "log_devices",
    "mountpoint",
    "mounts",
    "read_only",
    "supervisor",
    "memory",
    "size",
    "used",
    "available",
    "capacity_percent",
    "objects",
    "kept",
    "zone_size",
    "zone_sizes",
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
    "rewritten_bytes",
    "shared_blocks",
    "shared_bytes",
    "saved_bytes",
    "totals",
    "amplification",
    "amplification_minute",
    "amplification_ten_minutes",
    "waits",
    "reclaim",
    "given_up",
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
