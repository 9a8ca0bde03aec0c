//! Imports a pool from its devices.
//!
//! Import finds the newest uberblock in the anchors of all devices. It walks the chain of commit records back
//! to the last checkpoint of every table section, loads the sections and applies the records. Its cost
//! follows the checkpoint bound, not the size of the pool.
//!
//! A writable import first appends an uberblock with a new incarnation to the other anchor of each device. So
//! nothing that was written before can be mistaken for this incarnation.
//!
//! If the newest txg cannot be read, import refuses and says what a rewind would lose. It never falls back by
//! itself.

use crate::found_log::{FoundLog, LogState, find_log};
use crate::pool::{Pool, SyncState};
use crate::rebuild::{self, IndexSource};
use crate::warming::Warming;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use terrane_cache::blocks::BlockCache;
use terrane_cache::parts::{PART_CACHE_DIVISOR, PartCache};
use terrane_device::{Device, DeviceKind};
use terrane_format::Feature;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::features::FeatureState;
use terrane_format::label::{
    ANCHORS, DeviceRow, DeviceState, LABEL_BYTES, Label, Role, is_pool_name, second_label_offset,
};
use terrane_format::log::LogHome;
use terrane_format::record::{Free, Home, Record, SectionPtr, get_frees};
use terrane_format::rows::Phase;
use terrane_format::totals::Totals;
use terrane_format::uberblock::Uberblock;
use terrane_space::alloc::Allocator;
use terrane_space::policy::NopwriteSampling;
use terrane_space::section_rotation::SectionRotation;
use terrane_space::zones::{Tables, Unwritten, Zone, section_of};
use terrane_store::PoolError;
use terrane_store::anchors::{Anchor, Anchors, Candidate, Roots, match_devices};
use terrane_store::append::Streams;
use terrane_store::bootstrap::read_boot;
use terrane_store::counters::Counters;
use terrane_store::devices::{Devices, homes};
use terrane_store::env::Env;
use terrane_store::log_devices::{LogDevice, head_of, id_in};
use terrane_store::pipeline::Pipeline;
use terrane_store::reader::BlockReader;
use terrane_store::reports::Reports;
use terrane_store::zone_store::ZoneStore;
use terrane_txg::activity::Activity;
use terrane_txg::admission::Admission;
use terrane_txg::collector::Collector;
use terrane_txg::control::CollectionControl;
use terrane_txg::history::ROLLBACK_TXGS;
use terrane_txg::history::{ChainedRecord, History};
use terrane_txg::hold::Holds;
use terrane_txg::lifetimes::Lifetimes;
use terrane_txg::membership::Membership;
use terrane_txg::trace::Recorder;
use terrane_wire::{Corrupt, DeviceIdx, Reader, Txg, ZoneSeq};

/// How a pool is imported.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Nothing is written, not even an uberblock. Changes are refused with `ReadOnly`.
    pub read_only: bool,
    /// Import the newest readable txg up to this one. Later txgs are lost.
    pub rewind: Option<Txg>,
    /// Bytes for cached blocks.
    pub cache_bytes: usize,
    /// Maximum bytes of dirty data.
    pub dirty_bytes: u64,
    /// Memory bound of the zone tables in bytes, with relocation index and dead sets. From three quarters of
    /// it on, they are kept coarser.
    pub index_bytes: u64,
    /// The longest time for which a change stays uncommitted.
    pub commit_period: Duration,
    /// Discard emptied zones, so that the file or device below regains their space.
    pub discard: bool,
    /// Give up the records of the intent log instead of keeping them for the replay.
    pub discard_log: bool,
    /// An `fsync` may use an intent log. False: it commits.
    pub intent_log: bool,
    /// A pool in an object store that another machine has not exported is taken from it. That machine cannot commit any more.
    pub takes_over: bool,
    /// A predecessor's changes will be handed over by [`Pool::add_kept_changes`]. Until the replay has ended, each commit says how far
    /// it is.
    pub expects_changes: bool,
    /// An earlier state of the same pool, open read-only, whose block cache is used on.
    pub follows: Option<EarlierState>,
    /// The devices are a copy that is to get an id of its own. Until then the label says where the original is.
    pub is_copy: bool,
    /// Source of the zone tables.
    pub index: IndexSource,
    /// Names of features that the import takes for unknown, as a version before them does. For tests.
    pub unknown_features: &'static [&'static str],
}

/// An earlier state of a pool that another process writes.
#[derive(Clone)]
pub struct EarlierState {
    cache: Arc<BlockCache>,
}

impl EarlierState {
    /// The state of this pool.
    pub fn of(pool: &Pool) -> EarlierState {
        EarlierState { cache: Arc::clone(&pool.reader.cache) }
    }
}

impl fmt::Debug for EarlierState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EarlierState").finish_non_exhaustive()
    }
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            read_only: false,
            rewind: None,
            cache_bytes: 256 << 20,
            dirty_bytes: 256 << 20,
            index_bytes: 64 << 20,
            commit_period: Duration::from_secs(5),
            discard: true,
            discard_log: false,
            intent_log: true,
            takes_over: false,
            expects_changes: false,
            follows: None,
            is_copy: false,
            index: IndexSource::Stored,
            unknown_features: &[],
        }
    }
}

/// Identity of a device, before its zones are known.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The label of one of its anchors.
    pub label: Label,
}

/// Looks for a label. `read` fills a buffer from an absolute offset and returns whether it could. `bytes` is
/// the device's size.
pub fn probe(read: &mut dyn FnMut(u64, &mut [u8]) -> bool, bytes: u64) -> Option<Probe> {
    let mut raw = vec![0; LABEL_BYTES as usize];
    let mut found: Option<Label> = None;
    // The second anchor begins where the first zone ends. If the first label is just being rewritten, the
    // zone size is unknown, so all are tried.
    let seconds = (20..=32).map(|shift| (1u64 << shift, 1));
    // The write unit, which determines the place of the first anchor's second label, is then unknown as well.
    let copies = (12..=16).map(|shift| (second_label_offset(1 << shift), 0));
    let places = std::iter::once((0, 0)).chain(seconds).chain(copies);
    for (offset, anchor) in places.filter(|(offset, _)| offset.saturating_add(LABEL_BYTES) <= bytes) {
        if !read(offset, &mut raw) {
            continue;
        }
        let Ok(label) = Label::parse(&raw, anchor, "anchor") else { continue };
        let belongs = match anchor {
            0 => offset == 0 || second_label_offset(label.write_unit) == offset,
            _ => label.zone_size == offset,
        };
        if belongs && found.as_ref().is_none_or(|found| found.anchor_generation < label.anchor_generation) {
            found = Some(label);
        }
    }
    found.map(|label| Probe { label })
}

/// What import found on the devices.
struct LoadedPool {
    uber: Uberblock,
    /// `oldest` of the newest txg on the devices. Even if a rewind imports an earlier txg, zones that still
    /// older ones need may have been reset.
    oldest: Txg,
    record: Record,
    chain: VecDeque<ChainedRecord>,
    sections: Vec<SectionPtr>,
    tables: Tables,
    is_whole: bool,
    /// An anchor that stays in use has another label than the current one.
    label_is_old: bool,
    /// Txgs that can be rolled back to, with their records, oldest first. The last is the imported txg.
    recent: VecDeque<(Txg, BootPtr)>,
}

/// Txgs that the pool can be rolled back to after an import of `found`. `all`: all visible uberblocks, newest
/// first.
fn rollback_txgs(all: impl Iterator<Item = Uberblock>, found: &LoadedPool) -> VecDeque<(Txg, BootPtr)> {
    let oldest = found.oldest.max(found.uber.oldest);
    let mut recent = VecDeque::from([(found.uber.txg, found.uber.record)]);
    for uber in all.filter(|uber| uber.txg >= oldest) {
        let is_older = recent.front().is_some_and(|(txg, _)| uber.txg < *txg);
        if is_older && recent.len() <= ROLLBACK_TXGS {
            recent.push_front((uber.txg, uber.record));
        }
    }
    recent
}

impl Pool {
    /// Opens the pool on the devices. Log devices may be among them; those of other pools are left alone.
    pub fn import(
        devices: Vec<Arc<dyn Device>>,
        env: Arc<dyn Env>,
        options: &ImportOptions,
    ) -> Result<Arc<Pool>, PoolError> {
        let first = devices
            .first()
            .cloned()
            .ok_or_else(|| PoolError::refused("import", "a device", "none", "name one"))?;
        keep_space(&devices, options);
        if !options.read_only {
            // The host's page cache may hold bytes that never reached the medium: see
            // `ZoneStore::verify_newest`.
            devices.iter().for_each(|device| device.drop_page_cache());
        }
        let is_for_log = |device: &Arc<dyn Device>| head_of(device.as_ref()).is_ok_and(|head| head.is_some());
        let (log_devices, devices): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_for_log);
        let roots = Roots::read(&devices);
        refuse_mixed_pools(&devices, &roots)?;
        let candidates = roots.candidates();
        let Some(&Candidate { read, uber: newest }) = candidates.first() else {
            return Err(PoolError::refused(
                &first.info().name,
                "a Terrane pool",
                "no valid uberblock",
                "check that this is the right device",
            ));
        };
        let mut label = read.label.clone();
        check_features(&label, options)?;
        let slots = match_devices(&devices, &roots, &label)?;
        let device_of = |given: Option<usize>| devices.get(given?).cloned();
        let members = Devices::new(slots.iter().map(|given| device_of(*given)).collect(), env.clone());
        for device in log_devices {
            match id_in(device.as_ref(), &label) {
                Some(id) => members.log_devices.attach(LogDevice::new(device, (label.pool, id))),
                None => log::warn!("{}: log device of another pool left alone", device.info().name),
            }
        }
        // Uberblocks on a device that is no member any more are ignored.
        let is_member = |candidate: &&Candidate<'_>| slots.contains(&Some(candidate.read.given));
        if !options.read_only {
            refuse_other_host(&devices, (&roots, &newest), &label, env.as_ref(), options)?;
        }
        if options.rewind.is_none() && !options.read_only {
            refuse_hidden(&devices, &roots, &slots, &label, newest.txg)?;
        }
        let limit = options.rewind.unwrap_or(Txg(u64::MAX));
        let oldest = newest.oldest;
        let mut last_error = None;
        let found = candidates
            .iter()
            .filter(is_member)
            .map(|candidate| candidate.uber)
            .filter(|uber| uber.txg <= limit && uber.txg >= oldest)
            .find_map(|uber| {
                if last_error.is_some() && options.rewind.is_none() {
                    return None;
                }
                match load(&members, &label, &uber, &options.index) {
                    Ok(found) => Some(found),
                    Err(error) => {
                        log::error!("txg {} unreadable: {error}", uber.txg);
                        last_error = Some(error);
                        None
                    }
                }
            });
        let Some(found) = found else {
            let older = candidates
                .iter()
                .filter(is_member)
                .map(|candidate| candidate.uber.txg)
                .find(|txg| *txg < newest.txg && *txg >= oldest);
            // A failed read is not damage. If only the tables are lost, every block still exists.
            let remedy = match older {
                _ if last_error.as_ref().is_some_and(PoolError::is_transient) => {
                    "check the device and its connection, then import again: nothing is known to be damaged".into()
                }
                Some(txg) => format!(
                    "try `terrane check --rebuild-index`, which loses nothing if only tables are damaged; or import with \
                     --rewind={txg}, which loses all changes after txg {txg}"
                ),
                None => "try `terrane check --rebuild-index`; no older txg is complete, so if it fails restore from a backup"
                    .into(),
            };
            let found =
                last_error.map_or("no txg in range".to_string(), |error: PoolError| error.to_string());
            return Err(PoolError::refused(
                format_args!("pool {}", label.name),
                "a readable newest txg",
                found,
                remedy,
            ));
        };
        // Leases are for the whole pool: even a rewind must not use a number twice.
        let most = |of: fn(&Uberblock) -> u64| {
            candidates.iter().map(|candidate| of(&candidate.uber)).max().unwrap_or(0)
        };
        // The last incarnation was exported with the uberblock that is imported, and that names the next free
        // number.
        let is_last = (found.uber.incarnation, found.uber.txg, found.uber.clean)
            == (newest.incarnation, newest.txg, true);
        let lease_seq = if is_last { newest.lease_seq } else { most(|uber| uber.lease_seq) };
        let leases = (lease_seq, most(|uber| uber.lease_txg), most(|uber| uber.incarnation) + 1);
        let older = candidates.iter().filter(is_member).map(|candidate| candidate.uber);
        let recent = rollback_txgs(older, &found);
        let (mut anchors, mut label_is_old) = (Vec::new(), false);
        for (device, given) in (0u16..).map(DeviceIdx).zip(&slots) {
            let Some(given) = *given else { continue };
            let (anchor, generation) = roots.anchor_of(given, device, &found.uber);
            label_is_old |= generation != label.generation;
            anchors.push(anchor);
        }
        let has_log_devices = !label.log_devices.is_empty();
        if label.features.is_active(Feature::Devices) {
            for (row, given) in label.devices.iter_mut().zip(&slots) {
                if let (Some(row), Some(device)) = (row, device_of(*given)) {
                    let before = row.name.clone();
                    row.set_name(&device.info().name);
                    // A copy is told by the path on the medium, and must leave the log devices alone.
                    label_is_old |= row.name != before && has_log_devices && !options.is_copy;
                }
            }
        }
        open(
            (Arc::new(members), anchors),
            label,
            LoadedPool { label_is_old, oldest, recent, ..found },
            leases,
            env,
            options,
        )
    }

    /// Refuses an import whose newest txg is not completely on the medium.
    fn refuse_newest(&self, txg: Txg, corrupt: &Corrupt) -> PoolError {
        let older =
            self.sync.lock().history.recent.iter().rev().map(|(older, _)| *older).find(|older| *older < txg);
        let back = older.map(|older| {
            format!("--rewind={older} imports the txg before, which loses all changes after it; ")
        });
        PoolError::refused(
            format_args!("pool {}", self.name()),
            format_args!("all of txg {txg}, the newest, on the medium"),
            corrupt,
            format_args!(
                "{}--rewind={txg} imports it incomplete, and `terrane check` then lists the damage",
                back.unwrap_or_default()
            ),
        )
    }

    pub(crate) fn start(self: &Arc<Self>, options: &ImportOptions) {
        if self.threaded() && !self.read_only {
            let (pool, period) = (self.clone(), options.commit_period);
            let thread = std::thread::Builder::new()
                .name("terrane-sync".into())
                .spawn(move || pool.sync_loop(period))
                .expect("a thread can be started when a pool is opened");
            *self.sync_thread.lock() = Some(thread);
        }
    }
}

/// Refuses devices of several pools, which are a mistake of the caller.
fn refuse_mixed_pools(devices: &[Arc<dyn Device>], roots: &Roots) -> Result<(), PoolError> {
    let mut labels = roots.labels();
    let Some((one, first)) = labels.next() else { return Ok(()) };
    let Some((other, label)) = labels.find(|(_, label)| label.pool != first.pool) else { return Ok(()) };
    let name = |given: usize| devices.get(given).map_or("?", |device| device.info().name.as_str());
    let found = format!("pool {} on {} and pool {} on {}", first.name, name(one), label.name, name(other));
    Err(PoolError::refused("import", "devices of one pool", found, "name the devices of one pool"))
}

/// Refuses an import while an unreadable anchor could hold a newer txg. An administrator must decide whether
/// to go on with an older one.
fn refuse_hidden(
    devices: &[Arc<dyn Device>],
    roots: &Roots,
    slots: &[Option<usize>],
    label: &Label,
    newest: Txg,
) -> Result<(), PoolError> {
    let Some((given, anchor)) = roots.hiding_anchor(|given| slots.contains(&Some(given))) else {
        return Ok(());
    };
    let name = devices.get(given).map_or("?", |device| device.info().name.as_str());
    Err(PoolError::refused(
        format_args!("pool {}", label.name),
        "readable anchors, or a device with both anchors good",
        format_args!("{name}: anchor {anchor} cannot be read, the newest txg seen is {newest}"),
        format_args!(
            "retry, or import read-only to look; --rewind={newest} imports that txg, which loses any newer one"
        ),
    ))
}

/// Minimum time for which an import watches for writes of another machine: two commit periods by default.
const OTHER_HOST_WAIT: Duration = Duration::from_secs(10);

/// Locks exclude only other processes on this machine. A shared disk may be in use on another one. If another
/// machine wrote the newest uberblock and did not export the pool, import watches the disk for a while.
fn refuse_other_host(
    devices: &[Arc<dyn Device>],
    (roots, newest): (&Roots, &Uberblock),
    label: &Label,
    env: &dyn Env,
    options: &ImportOptions,
) -> Result<(), PoolError> {
    let is_disk =
        |device: &Arc<dyn Device>| matches!(device.info().kind, DeviceKind::Block | DeviceKind::Zoned);
    let here = env.host_id();
    let is_ours = here == newest.host || here == 0 || newest.host == 0;
    let is_bucket = |device: &Arc<dyn Device>| device.info().kind == DeviceKind::Bucket;
    if !newest.clean && !is_ours && !options.takes_over && devices.iter().any(is_bucket) {
        // An idle machine writes nothing, so watching would not tell. Taking over is safe, and ends the mount there.
        return Err(PoolError::refused(
            format_args!("pool {}", label.name),
            "a pool that no other machine has open",
            "one that another machine has not exported",
            "unmount it there; if that machine is gone: terrane pool import --take-over URL",
        ));
    }
    if newest.clean || is_ours || !devices.iter().any(is_disk) {
        return Ok(());
    }
    let wait = OTHER_HOST_WAIT.max(2 * options.commit_period);
    log::warn!(
        "pool {} not exported by another machine: watching {} s for its writes",
        label.name,
        wait.as_secs()
    );
    let before = roots.newest_of(|_| true);
    let began_ns = env.monotonic_ns();
    while env.monotonic_ns().saturating_sub(began_ns) < wait.as_nanos() as u64 {
        env.sleep(Duration::from_secs(1));
        devices.iter().for_each(|device| device.drop_page_cache());
        let now = Roots::read(devices).newest_of(|_| true);
        if now != before {
            return Err(PoolError::refused(
                format_args!("pool {}", label.name),
                "a pool that no other machine uses",
                "a new uberblock by another machine",
                "unmount it there; if that machine is off, retry",
            ));
        }
    }
    Ok(())
}

pub(crate) fn keep_space(devices: &[Arc<dyn Device>], options: &ImportOptions) {
    devices.iter().filter(|_| !options.discard).for_each(|device| device.keep_space());
}

pub(crate) fn check_name(name: &str) -> Result<(), PoolError> {
    if is_pool_name(name) {
        return Ok(());
    }
    let expected = "a letter, then letters, digits and _ - . :";
    Err(PoolError::refused("pool name", expected, format_args!("{name:?}"), "choose another"))
}

fn check_features(label: &Label, options: &ImportOptions) -> Result<(), PoolError> {
    let is_known =
        |name: &str| Feature::from_name(name).is_some() && !options.unknown_features.contains(&name);
    let refuse = |feature: &str, remedy: &str| {
        Err(PoolError::refused(format_args!("pool {}", label.name), "known features", feature, remedy))
    };
    if let Some(feature) = label.features.first_unknown(&is_known, false) {
        return refuse(feature, "use a version of Terrane that knows this feature");
    }
    match label.features.first_unknown(&is_known, !options.read_only) {
        Some(feature) => {
            refuse(feature, "import it read-only, or use a version of Terrane that knows this feature")
        }
        None => Ok(()),
    }
}

/// Loads the tables of one committed txg.
///
/// # Errors
/// `Device` if a read failed, `Corrupt` if something is damaged.
fn load(
    devices: &Devices,
    label: &Label,
    uber: &Uberblock,
    index: &IndexSource,
) -> Result<LoadedPool, PoolError> {
    let mut read_error = None;
    let mut fetch = |ptr: &BootPtr, what: &str| {
        read_boot(devices, ptr, what).map_err(|error| match error {
            PoolError::Corrupt(corrupt) => corrupt,
            error => {
                let corrupt = Corrupt::new(what, "read", "to succeed", &error);
                read_error = Some(error);
                corrupt
            }
        })
    };
    load_by(&mut fetch, devices, label, uber, index)
        .map_err(|corrupt| read_error.unwrap_or(PoolError::Corrupt(corrupt)))
}

/// Reads a bootstrap block. The flag is true if all its copies were good.
type Fetch<'f> = &'f mut dyn FnMut(&BootPtr, &str) -> Result<(Vec<u8>, bool), Corrupt>;

fn load_by(
    read: Fetch<'_>,
    devices: &Devices,
    label: &Label,
    uber: &Uberblock,
    index: &IndexSource,
) -> Result<LoadedPool, Corrupt> {
    let at = format!("uberblock of txg {}", uber.txg);
    uber.record.validate(&at)?;
    if uber.has_unknown_features {
        return Err(Corrupt::new(at, "intent log and stale devices", "none", "some, an unknown feature"));
    }
    if !matches!(index, IndexSource::Stored) {
        return load_rebuilt(read, devices, label, uber, index);
    }
    let mut is_whole = true;
    let mut fetch = |ptr: &BootPtr, what: &str| -> Result<Vec<u8>, Corrupt> {
        let (raw, all) = read(ptr, what)?;
        is_whole &= all;
        Ok(raw)
    };
    let mut records: Vec<(Record, BootPtr)> = Vec::new();
    let mut next = uber.record;
    loop {
        let what = format!(
            "commit record before txg {}",
            records.last().map_or(uber.txg.next(), |(record, _)| record.txg)
        );
        let record = Record::parse(&fetch(&next, &what)?, &what)?;
        let expected = records.last().map_or(uber.txg.next(), |(record, _)| record.txg);
        if record.txg >= expected || (records.is_empty() && record.txg != uber.txg) {
            return Err(Corrupt::new(what, "txg", format_args!("before {expected}"), record.txg));
        }
        let needed_after = records.first().map_or(record.replay_after, |(newest, _)| newest.replay_after);
        let (previous, previous_txg) = (record.previous, record.previous_txg);
        records.push((record, next));
        // Records that all sections include may be freed and overwritten, so they are not even read.
        if previous.is_none() || previous_txg <= needed_after {
            break;
        }
        next = previous;
    }
    let mut sections: BTreeMap<u32, SectionPtr> = BTreeMap::new();
    for section in records.iter().flat_map(|(record, _)| &record.sections) {
        sections.entry(section.section).or_insert(*section);
    }
    let table: Vec<SectionPtr> = (0..label.sections)
        .map(|section| sections.get(&section).copied().unwrap_or_else(|| SectionPtr::unwritten(section)))
        .collect();
    let mut tables = Tables::decode(label.sections, |section| match table.get(section as usize) {
        Some(found) if !found.ptr.is_none() => {
            fetch(&found.ptr, "section of the zone tables").map(|raw| Some((raw, found.form)))
        }
        _ => Ok(None),
    })?;
    let mut chain = VecDeque::new();
    for (record, ptr) in records.iter().rev() {
        let mut frees: Vec<Free> = record.frees.clone();
        for block in &record.dead_log {
            let raw = fetch(block, "dead-log block")?;
            let got = get_frees(&mut Reader::new(&raw))
                .map_err(|error| Corrupt::new("dead-log block", "frees", "whole", error))?;
            frees.extend(got);
        }
        frees.sort_unstable();
        let stamp_of = |seq| {
            table.get(section_of(seq, label.sections) as usize).map_or(Txg(0), |section| section.last_txg)
        };
        let findings = tables.apply(record, ptr, &frees, &|seq| stamp_of(seq) < record.txg);
        if let Some(finding) = findings.into_iter().next() {
            return Err(finding);
        }
        chain.push_back(ChainedRecord { txg: record.txg, ptr: *ptr, dead_log: record.dead_log.clone() });
    }
    check_tables(label, &tables)?;
    let (record, _) =
        records.into_iter().next().ok_or_else(|| Corrupt::new("uberblock", "record", "one", "none"))?;
    Ok(LoadedPool {
        uber: *uber,
        record,
        chain,
        sections: table,
        tables,
        is_whole,
        label_is_old: false,
        oldest: Txg(0),
        recent: VecDeque::new(),
    })
}

/// Loads tables that are rebuilt from the zones. Of the stored tables only the newest record is needed.
fn load_rebuilt(
    read: Fetch<'_>,
    devices: &Devices,
    label: &Label,
    uber: &Uberblock,
    index: &IndexSource,
) -> Result<LoadedPool, Corrupt> {
    let what = format!("commit record of txg {}", uber.txg);
    let record = Record::parse(&read(&uber.record, &what)?.0, &what)?;
    let log_zones = record.log.iter().flat_map(|head| head.homes()).filter_map(LogHome::lent).collect();
    let mut tables = rebuild::tables(devices, label, (uber.txg, &uber.record), index, &log_zones)?;
    if !label.features.is_active(Feature::Tallies) {
        // Older versions could not read them.
        tables.clear_tallies();
    }
    check_tables(label, &tables)?;
    let sections = (0..label.sections).map(SectionPtr::unwritten).collect();
    // The next sections that are written include this txg. Until then its record is kept.
    let chain = VecDeque::from([ChainedRecord { txg: uber.txg, ptr: uber.record, dead_log: Vec::new() }]);
    // Blocks that older txgs need may be overwritten from now on.
    let uber = Uberblock { oldest: uber.txg, ..*uber };
    let (oldest, recent) = (Txg(0), VecDeque::new());
    Ok(LoadedPool {
        uber,
        record,
        chain,
        sections,
        tables,
        is_whole: false,
        label_is_old: false,
        oldest,
        recent,
    })
}

fn check_tables(label: &Label, tables: &Tables) -> Result<(), Corrupt> {
    for (seq, zone) in &tables.zones {
        for home in zone.replicas().iter() {
            let inside = |row: &DeviceRow| {
                (ANCHORS..row.zone_count).contains(&home.zone.0) && zone.capacity <= row.zone_size
            };
            if !label.member(home.device).is_some_and(inside) {
                return Err(Corrupt::new(
                    format_args!("zone {seq}"),
                    "home and capacity",
                    "on a device of the pool",
                    home,
                ));
            }
        }
    }
    match tables.check().into_iter().next() {
        Some(finding) => Err(finding),
        None => Ok(()),
    }
}

fn open(
    (devices, anchors): (Arc<Devices>, Vec<Anchor>),
    label: Label,
    found: LoadedPool,
    (lease_seq, lease_txg, incarnation): (u64, u64, u64),
    env: Arc<dyn Env>,
    options: &ImportOptions,
) -> Result<Arc<Pool>, PoolError> {
    let LoadedPool { uber, oldest, record, chain, sections, mut tables, is_whole, label_is_old, recent } =
        found;
    let written = record.written.iter().map(|written| written.seq);
    let written: Vec<ZoneSeq> = written.chain(uber.record.copies().map(|place| place.seq)).collect();
    let moved_to = record.moves.iter().map(|moved| moved.run.dest).collect();
    // A pool that runs GC repacks later; a read-only one does not.
    if tables.index_size().should_pack(options.index_bytes) {
        tables.replace_reclaimed(tables.reclaimed_in_form(true));
    }
    // From the devices and not from the tables: zones of the tables may have a smaller capacity than those that will be opened.
    let capacities = devices.capacities().into_iter().map(|(_, capacity)| capacity);
    let capacity = capacities.filter(|capacity| *capacity > 0).min().unwrap_or(label.zone_size);
    let counters = Arc::new(Counters::new(env.clone()));
    let mut streams = Streams::new(
        (label.pool, incarnation),
        devices.clone(),
        capacity,
        devices.layout(label.has_special())?,
        if options.read_only { 0 } else { env.workers() },
        counters.clone(),
        Arc::new(PartCache::new(options.cache_bytes / PART_CACHE_DIVISOR)),
    );
    // Sequence numbers in the tables are in use, whatever lease the uberblock names.
    let used = tables.zones.last_key_value().map_or(0, |(seq, _)| seq.0 + 1);
    let mut alloc = Allocator::new(lease_seq.max(used));
    let used: BTreeSet<Home> = tables.zones.values().flat_map(|zone| zone.replicas().iter()).collect();
    // Before any zone is resumed, which ends it for another machine that has the pool: a log device may be missing.
    let gives_up = options.rewind.is_some() || options.discard_log;
    let log = find_log((&devices, &label), uber.txg, record.log, &used, (options.read_only, gives_up))?;
    for (seq, zone) in tables.zones.iter_mut().filter(|_| !options.read_only) {
        let at = resume(&devices, zone)?;
        if zone.phase == Phase::Open {
            let home = zone.replicas().first();
            zone.unwritten = at
                .and_then(|at| streams.resume_zone(zone.class, *seq, home, zone.capacity, at, zone.claimed))
                .map(|write_buffer| write_buffer as Arc<dyn Unwritten>);
            if zone.unwritten.is_some() {
                alloc.note_opened(zone.class, home.device);
            } else {
                // The commit record of the next txg tells that the zone is full.
                streams.txg_totals.filled.push(*seq);
            }
        }
    }
    let kept: BTreeSet<Home> = log.iter().flat_map(FoundLog::homes).filter_map(LogHome::lent).collect();
    for home in log.iter().flat_map(FoundLog::homes) {
        if let LogHome::Own { device, zone, .. } = home
            && let Some(device) = devices.log_devices.get(device)
        {
            device.keep(zone);
        }
    }
    for (device, row) in label.members() {
        if row.state == DeviceState::Leaving {
            // The removal of the device continues.
            devices.mark_leaving(device);
            continue;
        }
        alloc.add_device(device, row.role == Role::Special, row.block_zones());
        let is_free = |home: &Home| !used.contains(home) && !kept.contains(home);
        let free = homes(device, row.zone_count).filter(is_free);
        free.filter(|home| devices.zone_takes_writes(*home)).for_each(|home| alloc.put_unclean(home));
    }
    let log = match options.expects_changes && label.features.state(Feature::Log) != FeatureState::Disabled {
        true => Some(FoundLog::expecting(log, (uber.txg, uber.incarnation))),
        false => log,
    };
    for home in &kept {
        alloc.lend(*home, devices.get(home.device)?.report(home.zone)?.capacity);
    }
    let next_txg = first_txg((uber.txg, uber.clean), lease_txg, options.rewind.is_some());
    let state = SyncState {
        streams,
        alloc,
        lease_txg: next_txg.0 + 4096,
        incarnation,
        commit_point: Box::new(Anchors::new(devices.clone(), counters.clone(), anchors)),
        history: History {
            newest: chain.back().map(|last| (last.txg, last.ptr)),
            chain,
            recent,
            imported: uber.txg,
            oldest: uber.oldest.max(oldest),
        },
        sections,
        // If a copy of a bootstrap block is damaged, rewriting the sections heals it.
        section_rotation: SectionRotation::new(label.sections, !is_whole),
        root: record.root,
        resets_done: Vec::new(),
        suspects: Vec::new(),
        colocated: VecDeque::new(),
        collector: Collector::new(label.block_bytes()),
        nopwrite_sampling: NopwriteSampling::default(),
    };
    let slot = label.members().map(|(_, row)| u64::from(row.write_unit).max(4096)).sum();
    let before = record.totals.plus(&Totals::of_commit(&uber.record, slot, uber.clean));
    let is_known = |feature: &Feature| !options.unknown_features.contains(&feature.row().name);
    let features: Vec<Feature> = label.features.known().filter(is_known).collect();
    let pool = assemble(
        (label, Some((uber.txg, record.incarnation))),
        devices,
        (tables, log),
        (next_txg, uber.txg),
        state,
        (env, counters, before),
        options,
    );
    if !options.read_only {
        // A rewind to a named txg is the administrator's decision.
        if !uber.clean && options.rewind.is_none() && matches!(options.index, IndexSource::Stored) {
            pool.store
                .verify_newest(uber.txg, written, &moved_to)
                .map_err(|corrupt| pool.refuse_newest(uber.txg, &corrupt))?;
        }
        let mut st = pool.sync.lock();
        st.collector.add_zones(&pool.store.tables.read(), pool.admission.zone_yield());
        if label_is_old {
            pool.relabel(&mut st)?;
        } else {
            pool.write_uberblock(&mut st, uber.txg, uber.record, false)?;
        }
        pool.store.close_stale_zones(&kept);
        if !options.is_copy {
            pool.store.devices.log_devices.all().iter().for_each(|device| device.reset_left_zones());
        }
        pool.drop_rollback_txgs(&mut st, 0)?;
        pool.publish(&st);
        drop(st);
        if pool.store.devices.any_leaving() {
            pool.admission.want_empty();
        }
        pool.membership.put_in_force(features.into_iter());
        pool.start(options);
    } else {
        pool.publish(&pool.sync.lock());
    }
    Ok(pool)
}

/// Resumes a zone on its devices. Returns the offset of the next write, if all replicas take writes there.
fn resume(devices: &Devices, zone: &Zone) -> Result<Option<u64>, PoolError> {
    let goes_on = if zone.phase == Phase::Open { zone.claimed } else { zone.capacity };
    let mut next = Some(0);
    for home in zone.replicas().iter() {
        let at = match devices.get(home.device)?.resume(home.zone, goes_on) {
            Ok(at) => at,
            Err(error) => {
                // A dead zone is no reason to refuse the others. Its blocks are read from other copies, or
                // reported when they are read.
                log::error!("{home} retired: {error}");
                zone.capacity
            }
        };
        // It was reset before the crash, and the record of the reset was lost. It is reset again.
        let was_reset = at == 0 && matches!(zone.phase, Phase::Emptied(_));
        if at < zone.claimed && !was_reset {
            log::error!("{home} damaged: write pointer at {at}, but {} bytes were committed", zone.claimed);
        }
        let fits = at >= zone.claimed && at < zone.capacity;
        next = next.filter(|_| fits).map(|next: u64| next.max(at));
    }
    Ok(next)
}

/// The first txg after the imported one. `clean`: that was the last before an export. A txg number is never
/// used twice. After a crash or a rewind, numbers continue above all leased ones.
fn first_txg((txg, clean): (Txg, bool), lease: u64, rewinds: bool) -> Txg {
    if clean && !rewinds { txg.next() } else { Txg(lease.max(txg.0 + 1)) }
}

/// `imported`: txg and incarnation of the commit that was imported.
pub(crate) fn assemble(
    (label, imported): (Label, Option<(Txg, u64)>),
    devices: Arc<Devices>,
    (tables, log): (Tables, Option<FoundLog>),
    (open, synced): (Txg, Txg),
    state: SyncState,
    (env, counters, before): (Arc<dyn Env>, Arc<Counters>, Totals),
    options: &ImportOptions,
) -> Arc<Pool> {
    let reports = Arc::new(Reports::new(env.clone()));
    let parts = state.streams.parts().clone();
    let ids = (label.pool, state.incarnation);
    let store = ZoneStore::new(ids, devices, tables, parts, counters.clone(), reports.clone());
    let (store, threads) = (Arc::new(store), env.workers() > 0);
    let cache = match &options.follows {
        Some(earlier) => Arc::clone(&earlier.cache),
        None => Arc::new(BlockCache::new(options.cache_bytes)),
    };
    let reader = BlockReader::new(store.clone(), Pipeline::new(&env), reports.clone(), cache, threads);
    let pool = Pool {
        membership: Membership::new(label, state.incarnation, imported),
        store: store.clone(),
        reader: Arc::new(reader),
        reports,
        admission: Arc::new(Admission::new(open, synced, options.dirty_bytes, store)),
        collection: CollectionControl::new(options.index_bytes),
        activity: Activity::new(counters, before),
        holds: Holds::default(),
        log: LogState::new(log, options.intent_log),
        sync: Mutex::new(state),
        read_only: options.read_only,
        lifetimes: Lifetimes::default(),
        recorder: Recorder::default(),
        client: Mutex::default(),
        sampling_reset_wanted: AtomicBool::new(false),
        closes_far: AtomicBool::new(false),
        warming: Warming::default(),
        sync_thread: Mutex::default(),
        env,
    };
    pool.bound_devices(options.dirty_bytes);
    Arc::new(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_txg_number_is_never_used_twice() {
        assert_eq!(first_txg((Txg(7), true), 4103, false), Txg(8), "nothing came after an export");
        assert_eq!(first_txg((Txg(7), false), 4103, false), Txg(4103), "a crash may have lost some");
        assert_eq!(first_txg((Txg(7), true), 4103, true), Txg(4103), "groups after the export are given up");
        assert_eq!(first_txg((Txg(7), false), 3, true), Txg(8));
    }
}
