//! Create and import.
//!
//! Import finds the newest uberblock in the anchors, walks the chain of records back to the last checkpoint of every table
//! section, loads the sections and applies the records. Its cost follows the checkpoint bound, not the pool. A writable import
//! first appends an uberblock with a new incarnation, in the other anchor, so that nothing of the life before can be
//! mistaken for this one.
//!
//! If the newest group cannot be read, import refuses and says what a rewind would lose; it never falls back by itself.

use crate::addr::Place;
use crate::alloc::Allocator;
use crate::append::Streams;
use crate::block_ptr::{BLOCK_BYTES_MAX, BlockPtr};
use crate::cache::BlockCache;
use crate::devices::Devices;
use crate::env::Env;
use crate::error::PoolError;
use crate::features::{Feature, InForce};
use crate::label::{ANCHOR_BYTES_MAX, ANCHORS, BootPtr, DeviceRow, Features, LABEL_BYTES, Label, Uberblock};
use crate::parts::PartCache;
use crate::pool::{Chained, Pool, SyncState};
use crate::record::{Free, Home, Record, SectionPtr, get_frees};
use crate::stats::Counters;
use crate::totals::{Recent, Totals};
use crate::txg::Groups;
use crate::workers::Workers;
use crate::zones::{Phase, Tables, section_of};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use terrane_codec::{ChecksumKind, Compressor, compute};
use terrane_device::{Device, ZoneState};
use terrane_wire::{Corrupt, DeviceIdx, Reader, Txg, ZoneIdx};

/// The fewest zones a pool can have, anchors included.
pub const ZONES_MIN: u32 = 32;
/// The smallest zone, in bytes.
pub const ZONE_BYTES_MIN: u64 = 1 << 20;
const ZONE_BYTES_DEFAULT: u64 = 64 << 20;
const ZONES_AIM: u64 = 256;
const NAME_BYTES_MAX: usize = 255;

/// The zone size for a device that has none of its own: 64 MiB, smaller on small pools.
pub fn zone_size_for(device_bytes: u64) -> u64 {
    let aim = (device_bytes / ZONES_AIM).max(1);
    let power = 1u64 << (63 - aim.leading_zeros());
    power.clamp(ZONE_BYTES_MIN, ZONE_BYTES_DEFAULT)
}

#[derive(Clone, Debug)]
pub struct CreateOptions {
    pub name: String,
    /// What the pool may hold that older versions cannot read.
    pub features: Vec<Feature>,
}

impl CreateOptions {
    /// A pool of this name with the features that new pools have.
    pub fn named(name: &str) -> Self {
        CreateOptions { name: name.to_owned(), features: Feature::defaults() }
    }
}

#[derive(Clone, Debug)]
pub struct ImportOptions {
    pub read_only: bool,
    /// Import the newest group that can be read, not later than this one, and lose what came after.
    pub rewind: Option<Txg>,
    /// Bytes for cached blocks.
    pub cache_bytes: usize,
    /// Bytes that may be dirty at most.
    pub dirty_bytes: u64,
    /// The longest time a change stays uncommitted.
    pub commit_period: Duration,
    /// Space of emptied zones is given back to the file or device below.
    pub discard: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            read_only: false,
            rewind: None,
            cache_bytes: 256 << 20,
            dirty_bytes: 256 << 20,
            commit_period: Duration::from_secs(5),
            discard: true,
        }
    }
}

/// What a device says it is, before its zones are known.
#[derive(Clone, Debug)]
pub struct Probe {
    pub label: Label,
}

/// Looks for a label. `read` fills a buffer from an absolute offset and says whether it could; `bytes` is the device's size.
pub fn probe(read: &mut dyn FnMut(u64, &mut [u8]) -> bool, bytes: u64) -> Option<Probe> {
    let mut raw = vec![0; LABEL_BYTES as usize];
    let mut found: Option<Label> = None;
    // The second anchor begins where the first zone ends; its size is not known yet if the first is just being rewritten.
    let seconds = (20..=32).map(|shift| 1u64 << shift);
    for offset in
        std::iter::once(0).chain(seconds).filter(|offset| offset.saturating_add(LABEL_BYTES) <= bytes)
    {
        if !read(offset, &mut raw) {
            continue;
        }
        let Ok(label) = Label::parse(&raw, u32::from(offset > 0), "anchor") else { continue };
        let belongs = offset == 0 || label.zone_size == offset;
        if belongs && found.as_ref().is_none_or(|found| found.turn < label.turn) {
            found = Some(label);
        }
    }
    found.map(|label| Probe { label })
}

/// The uberblocks that are valid in an anchor, with their label.
pub(crate) fn read_anchor(device: &dyn Device, anchor: u32) -> Option<(Label, Vec<(u64, Uberblock)>)> {
    let info = device.info();
    let report = device.report(ZoneIdx(anchor)).ok()?;
    let mut limit = report.capacity.min(ANCHOR_BYTES_MAX);
    if info.hardware_pointers {
        limit = limit.min(report.pointer);
    }
    let unit = u64::from(info.write_unit);
    let first = LABEL_BYTES.next_multiple_of(unit);
    if limit < first {
        return None;
    }
    let mut raw = vec![0; usize::try_from(limit).ok()?];
    // A short device must not hide the uberblocks that are there: read in pieces, stop at the first that fails.
    let mut have = 0;
    for piece in raw.chunks_mut(1 << 20) {
        if device.read(ZoneIdx(anchor), have, piece).is_err() {
            break;
        }
        have += piece.len() as u64;
    }
    let label =
        Label::parse(raw.get(..LABEL_BYTES as usize)?, anchor, &format!("{} anchor {anchor}", info.name))
            .ok()?;
    let slot = unit.max(4096);
    let mut found = Vec::new();
    let mut at = first;
    while at + slot <= have {
        let from = usize::try_from(at).ok()?;
        if let Some(uber) = raw.get(from..).and_then(|raw| Uberblock::parse(raw, &label, anchor, at)) {
            found.push((at, uber));
        }
        at += slot;
    }
    Some((label, found))
}

/// Reads a bootstrap block from its first good copy; true: all copies were good.
fn read_boot(devices: &[Arc<dyn Device>], ptr: &BootPtr, what: &str) -> Result<(Vec<u8>, bool), Corrupt> {
    let mut whole = true;
    let mut last = Corrupt::new(what, "place", "at least one", "none");
    for place in ptr.copies() {
        match read_boot_copy(devices, ptr, &place, what) {
            Ok(raw) => return Ok((raw, whole)),
            Err(corrupt) => {
                log::warn!("{corrupt}");
                (whole, last) = (false, corrupt);
            }
        }
    }
    Err(last)
}

fn read_boot_copy(
    devices: &[Arc<dyn Device>],
    ptr: &BootPtr,
    place: &Place,
    what: &str,
) -> Result<Vec<u8>, Corrupt> {
    let at = format!("{what} at {place}");
    let device = devices
        .get(usize::from(place.device.0))
        .ok_or_else(|| Corrupt::new(&at, "device", format_args!("below {}", devices.len()), place.device))?;
    let info = device.info();
    let end = place.offset.checked_add(u64::from(ptr.len));
    let inside = place.zone.0 >= ANCHORS
        && place.zone.0 < info.zone_count
        && end.is_some_and(|end| end <= info.zone_size);
    if !inside || ptr.len < 8 || ptr.len > BLOCK_BYTES_MAX {
        return Err(Corrupt::new(
            &at,
            "place and length",
            "inside a zone",
            format_args!("{} bytes", ptr.len),
        ));
    }
    let unit = u64::from(info.write_unit);
    let from = place.offset / unit * unit;
    let to = (place.offset + u64::from(ptr.len)).next_multiple_of(unit);
    let mut wide = vec![0; (to - from) as usize];
    device
        .read(place.zone, from, &mut wide)
        .map_err(|error| Corrupt::new(&at, "read", "to succeed", error))?;
    let start = (place.offset - from) as usize;
    let stored = wide.get(start..start + ptr.len as usize).unwrap_or(&[]);
    if compute(ChecksumKind::Blake3, stored) != ptr.checksum {
        return Err(Corrupt::new(&at, "checksum", "that of its pointer", "another"));
    }
    boot_decode(stored, &at)
}

fn boot_decode(stored: &[u8], at: &str) -> Result<Vec<u8>, Corrupt> {
    let truncated = |error| Corrupt::new(at, "bootstrap block", "whole", error);
    let mut reader = Reader::new(stored);
    let id = reader.u32().map_err(truncated)?;
    let lsize = reader.u32().map_err(truncated)?;
    let id = u8::try_from(id).map_err(|_| Corrupt::new(at, "compression", "a known one", id))?;
    let mut out = Vec::new();
    Compressor::new()
        .decompress(id, reader.rest(), usize::try_from(lsize).unwrap_or(usize::MAX), &mut out)
        .map_err(|corrupt| corrupt.within(at))?;
    Ok(out)
}

/// What import found on the devices.
struct Found {
    uber: Uberblock,
    anchor: u32,
    record: Record,
    chain: VecDeque<Chained>,
    sections: Vec<SectionPtr>,
    tables: Tables,
    whole: bool,
    /// The anchor it was found in has a label of other features than the one that holds now.
    label_is_old: bool,
}

impl Pool {
    /// Makes a new pool on a device whose content may go, and leaves it open.
    pub fn create(
        devices: Vec<Arc<dyn Device>>,
        create: &CreateOptions,
        env: Arc<dyn Env>,
        options: &ImportOptions,
    ) -> Result<Arc<Pool>, PoolError> {
        let [device] = devices.as_slice() else {
            return Err(PoolError::refused(
                "a pool",
                "one device",
                devices.len(),
                "several devices come in a later version",
            ));
        };
        let (device, info) = (device.clone(), device.info().clone());
        check_name(&create.name)?;
        let mut capacity = info.zone_size;
        if info.zone_count < ZONES_MIN || info.zone_size < ZONE_BYTES_MIN || !info.zone_size.is_power_of_two()
        {
            return Err(PoolError::refused(
                &info.name,
                format_args!("at least {ZONES_MIN} zones of a power of two of at least 1 MiB"),
                format_args!("{} zones of {} bytes", info.zone_count, info.zone_size),
                "give it more space, or a smaller zone size",
            ));
        }
        let streams = 3 + data_streams(info.zone_count) as u32;
        if info.max_open > 0 && info.max_open <= streams {
            return Err(PoolError::refused(
                &info.name,
                format_args!("at least {} zones that may be open at once", streams + 1),
                info.max_open,
                "streams that share a zone come in a later version",
            ));
        }
        keep_space(&devices, options);
        for zone in (0..info.zone_count).map(ZoneIdx) {
            device.reset(zone)?;
            capacity = capacity.min(device.report(zone)?.capacity);
        }
        if capacity < ZONE_BYTES_MIN {
            let found = format!("one that takes {capacity} bytes");
            return Err(PoolError::refused(
                &info.name,
                "zones that take at least 1 MiB",
                found,
                "use another device",
            ));
        }
        if !info.hardware_pointers {
            // A reset need not have changed a byte: the labels of a pool that was here would be found beside our own.
            let zeros = vec![0; (LABEL_BYTES as usize).next_multiple_of(info.write_unit as usize)];
            (0..ANCHORS).try_for_each(|anchor| device.write(ZoneIdx(anchor), 0, &zeros))?;
            device.flush()?;
        }
        let max_block = (capacity / 4).min(u64::from(BLOCK_BYTES_MAX)) as u32;
        let devices = known(devices);
        let (pool, id) = (env.random_u64(), env.random_u64());
        let row = DeviceRow {
            device: id,
            zone_size: info.zone_size,
            zone_count: info.zone_count,
            write_unit: info.write_unit,
        };
        let mut features = Features::default();
        for feature in &create.features {
            features.add(*feature);
        }
        let label = Label {
            pool,
            name: create.name.clone(),
            device: id,
            generation: 1,
            turn: 0,
            zone_size: info.zone_size,
            zone_count: info.zone_count,
            write_unit: info.write_unit,
            max_block,
            sections: (info.zone_count / 16).clamp(1, 1024),
            features,
            devices: vec![row],
        };
        let lease = 4096;
        let mut alloc = Allocator::new(1, lease);
        alloc.add_device(DeviceIdx(0), false, info.zone_count - ANCHORS);
        homes(info.zone_count).for_each(|home| alloc.put(home));
        let sections = (0..label.sections)
            .map(|section| SectionPtr { section, stamp: Txg(0), ptr: BootPtr::NONE })
            .collect();
        let counters = Arc::new(Counters::new(env.clone()));
        let state = SyncState {
            streams: Streams::new(
                pool,
                1,
                devices.clone(),
                capacity,
                data_streams(info.zone_count),
                env.workers() > 0,
                counters.clone(),
            ),
            alloc,
            lease_txg: lease,
            incarnation: 1,
            anchor: 1,
            anchor_offset: 0,
            chain: VecDeque::new(),
            sections,
            next_section: 0,
            replay_bytes: 0,
            checkpoint_wanted: false,
            root: BlockPtr::default(),
            recent: VecDeque::new(),
            imported: Txg(0),
            oldest: Txg(1),
            resets_done: Vec::new(),
            suspects: Vec::new(),
        };
        let groups = Groups::new(Txg(1), Txg(0), options.dirty_bytes);
        let pool = assemble(
            label,
            devices,
            Tables::default(),
            groups,
            state,
            (env, counters, Totals::default()),
            options,
        );
        pool.run_group()?;
        pool.in_force.add(create.features.iter().copied());
        pool.start(options);
        Ok(pool)
    }

    /// Opens the pool that lies on the devices.
    pub fn import(
        devices: Vec<Arc<dyn Device>>,
        env: Arc<dyn Env>,
        options: &ImportOptions,
    ) -> Result<Arc<Pool>, PoolError> {
        let device = devices
            .first()
            .cloned()
            .ok_or_else(|| PoolError::refused("import", "a device", "none", "name one"))?;
        let info = device.info().clone();
        keep_space(&devices, options);
        let anchors: Vec<crate::inspect::Anchor> = (0..ANCHORS)
            .filter_map(|anchor| {
                read_anchor(device.as_ref(), anchor).map(|(label, ubers)| (anchor, label, ubers))
            })
            .collect();
        let mut candidates: Vec<(u32, &Label, Uberblock)> = anchors
            .iter()
            .flat_map(|(anchor, label, ubers)| ubers.iter().map(move |(_, uber)| (*anchor, label, *uber)))
            .collect();
        // The youngest incarnation first: it begins with the group that it imported, and what older ones wrote after that group is a
        // branch that was given up.
        // One group stands under two labels when features came and the power went before both anchors had the new one.
        let age = |uber: &Uberblock| (uber.incarnation, uber.txg, uber.clean, uber.generation);
        candidates.sort_by_key(|(_, _, uber)| std::cmp::Reverse(age(uber)));
        let (mut incarnation, mut first, mut cap) = (u64::MAX, Txg(u64::MAX), Txg(u64::MAX));
        candidates.retain(|(_, _, uber)| {
            if uber.incarnation != incarnation {
                (incarnation, cap) = (uber.incarnation, cap.min(first));
            }
            first = first.min(uber.txg);
            uber.txg <= cap
        });
        let Some((_, label, newest)) = candidates.first().copied() else {
            return Err(PoolError::refused(
                &info.name,
                "a Terrane pool",
                "no valid uberblock",
                "check that this is the right device",
            ));
        };
        let label = label.clone();
        check_label(&label, &info, options)?;
        let limit = options.rewind.unwrap_or(Txg(u64::MAX));
        let oldest = newest.oldest;
        let mut last_error = None;
        let found = candidates
            .iter()
            .filter(|(_, _, uber)| uber.txg <= limit && uber.txg >= oldest)
            .find_map(|(anchor, _, uber)| {
                if last_error.is_some() && options.rewind.is_none() {
                    return None;
                }
                match load(&devices, &label, *anchor, uber) {
                    Ok(found) => Some(found),
                    Err(corrupt) => {
                        log::error!("group {}: {corrupt}", uber.txg);
                        last_error = Some(corrupt);
                        None
                    }
                }
            });
        let Some(found) = found else {
            let older = candidates
                .iter()
                .map(|(_, _, uber)| uber.txg)
                .find(|txg| *txg < newest.txg && *txg >= oldest);
            let remedy = match older {
                Some(txg) => {
                    format!("import with --rewind={txg}; what was written after group {txg} would be lost")
                }
                None => "no older group is whole; restore from a backup".into(),
            };
            let found = last_error.map_or("no group in range".to_string(), |corrupt| corrupt.to_string());
            return Err(PoolError::refused(
                format_args!("pool {}", label.name),
                "a readable newest group",
                found,
                remedy,
            ));
        };
        // Leases are pool-wide facts: even a rewind must not hand out a number twice.
        let lease_seq = candidates.iter().map(|(_, _, uber)| uber.lease_seq).max().unwrap_or(0);
        let lease_txg = candidates.iter().map(|(_, _, uber)| uber.lease_txg).max().unwrap_or(0);
        let incarnation = candidates.iter().map(|(_, _, uber)| uber.incarnation).max().unwrap_or(0) + 1;
        let turn = anchors.iter().map(|(_, label, _)| label.turn).max().unwrap_or(0);
        let label_is_old =
            anchors.iter().any(|(anchor, old, _)| *anchor == found.anchor && old.features != label.features);
        let found = Found { label_is_old, ..found };
        let label = Label { turn, ..label };
        open(devices, label, found, (lease_seq, lease_txg, incarnation), env, options)
    }

    fn start(self: &Arc<Self>, options: &ImportOptions) {
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

fn keep_space(devices: &[Arc<dyn Device>], options: &ImportOptions) {
    devices.iter().filter(|_| !options.discard).for_each(|device| device.keep_space());
}

fn homes(zone_count: u32) -> impl Iterator<Item = Home> {
    (ANCHORS..zone_count).map(|zone| Home { device: DeviceIdx(0), zone: ZoneIdx(zone) })
}

fn data_streams(zone_count: u32) -> usize {
    if zone_count >= 128 { 2 } else { 1 }
}

/// A name that can stand in a path and on a command line.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let length = 1..=NAME_BYTES_MAX;
    length.contains(&name.len())
        && name.chars().all(fits)
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn check_name(name: &str) -> Result<(), PoolError> {
    if is_name(name) {
        return Ok(());
    }
    let expected = "a letter, then letters, digits and _ - . :";
    Err(PoolError::refused("pool name", expected, format_args!("{name:?}"), "choose another"))
}

fn check_label(
    label: &Label,
    info: &terrane_device::DeviceInfo,
    options: &ImportOptions,
) -> Result<(), PoolError> {
    let unknown = |list: &[String]| list.iter().find(|name| Feature::of_name(name).is_none()).cloned();
    let pool = format!("pool {}", label.name);
    if let Some(feature) = unknown(&label.features.incompatible) {
        return Err(PoolError::refused(
            pool,
            "known features",
            feature,
            "use a version of Terrane that knows this feature",
        ));
    }
    if let Some(feature) = unknown(&label.features.read_only_compatible).filter(|_| !options.read_only) {
        let remedy = "import it read-only, or use a version of Terrane that knows this feature";
        return Err(PoolError::refused(pool, "known features", feature, remedy));
    }
    if label.zone_size != info.zone_size
        || label.zone_count > info.zone_count
        || label.write_unit < info.write_unit
    {
        return Err(PoolError::refused(
            pool,
            format_args!("{} zones of {} bytes", label.zone_count, label.zone_size),
            format_args!("{} zones of {} bytes on {}", info.zone_count, info.zone_size, info.name),
            "the image was cut short or lies on another kind of device; restore it whole",
        ));
    }
    if label.devices.len() != 1 {
        return Err(PoolError::refused(
            pool,
            "one device",
            label.devices.len(),
            "use a version of Terrane that knows several",
        ));
    }
    Ok(())
}

/// Loads the tables of one committed group.
fn load(devices: &[Arc<dyn Device>], label: &Label, anchor: u32, uber: &Uberblock) -> Result<Found, Corrupt> {
    uber.record.judge(&format_args!("uberblock of group {}", uber.txg))?;
    let mut whole = true;
    let mut fetch = |ptr: &BootPtr, what: &str| -> Result<Vec<u8>, Corrupt> {
        let (raw, all) = read_boot(devices, ptr, what)?;
        whole &= all;
        Ok(raw)
    };
    let mut records: Vec<(Record, BootPtr)> = Vec::new();
    let mut next = uber.record;
    loop {
        let what = format!(
            "commit record before group {}",
            records.last().map_or(uber.txg.next(), |(record, _)| record.txg)
        );
        let record = Record::parse(&fetch(&next, &what)?, &what)?;
        let expected = records.last().map_or(uber.txg.next(), |(record, _)| record.txg);
        if record.txg >= expected || (records.is_empty() && record.txg != uber.txg) {
            return Err(Corrupt::new(what, "group", format_args!("before {expected}"), record.txg));
        }
        let needed_after = records.first().map_or(record.replay_after, |(newest, _)| newest.replay_after);
        let (previous, previous_txg) = (record.previous, record.previous_txg);
        records.push((record, next));
        // What all sections contain may be gone already: it must not even be looked at.
        if previous.is_none() || previous_txg <= needed_after {
            break;
        }
        next = previous;
    }
    let mut sections: BTreeMap<u32, SectionPtr> = BTreeMap::new();
    for section in records.iter().flat_map(|(record, _)| &record.sections) {
        sections.entry(section.section).or_insert(*section);
    }
    let mut tables = Tables::default();
    let mut table: Vec<SectionPtr> = Vec::new();
    for section in 0..label.sections {
        let ptr = sections.get(&section).copied().unwrap_or(SectionPtr {
            section,
            stamp: Txg(0),
            ptr: BootPtr::NONE,
        });
        if !ptr.ptr.is_none() {
            tables.decode_section(
                &fetch(&ptr.ptr, "section of the zone tables")?,
                section,
                label.sections,
            )?;
        }
        table.push(ptr);
    }
    let mut chain = VecDeque::new();
    for (record, ptr) in records.iter().rev() {
        let mut frees: Vec<Free> = record.frees.clone();
        for block in &record.dead_log {
            let raw = fetch(block, "dead-log block")?;
            let got = get_frees(&mut Reader::new(&raw))
                .map_err(|error| Corrupt::new("dead-log block", "frees", "whole", error))?;
            frees.extend(got);
        }
        let stamp_of =
            |seq| table.get(section_of(seq, label.sections) as usize).map_or(Txg(0), |section| section.stamp);
        let findings = tables.apply(record, ptr, &frees, &|seq| stamp_of(seq) < record.txg);
        if let Some(finding) = findings.into_iter().next() {
            return Err(finding);
        }
        chain.push_back(Chained { txg: record.txg, ptr: *ptr, dead_log: record.dead_log.clone() });
    }
    check_tables(devices, label, &tables)?;
    let (record, _) =
        records.into_iter().next().ok_or_else(|| Corrupt::new("uberblock", "record", "one", "none"))?;
    Ok(Found { uber: *uber, anchor, record, chain, sections: table, tables, whole, label_is_old: false })
}

fn check_tables(devices: &[Arc<dyn Device>], label: &Label, tables: &Tables) -> Result<(), Corrupt> {
    for (seq, zone) in &tables.zones {
        let known = usize::from(zone.home.device.0) < devices.len();
        let inside = zone.home.zone.0 >= ANCHORS && zone.home.zone.0 < label.zone_count;
        if !known || !inside || zone.capacity > label.zone_size {
            return Err(Corrupt::new(
                format_args!("zone {seq}"),
                "home and capacity",
                "on the device",
                zone.home,
            ));
        }
    }
    match tables.check().into_iter().next() {
        Some(finding) => Err(finding),
        None => Ok(()),
    }
}

fn open(
    devices: Vec<Arc<dyn Device>>,
    label: Label,
    found: Found,
    (lease_seq, lease_txg, incarnation): (u64, u64, u64),
    env: Arc<dyn Env>,
    options: &ImportOptions,
) -> Result<Arc<Pool>, PoolError> {
    let Found { uber, anchor, record, chain, sections, mut tables, whole, label_is_old } = found;
    let capacity = tables.zones.values().map(|zone| zone.capacity).min().unwrap_or(label.zone_size);
    let devices = known(devices);
    let counters = Arc::new(Counters::new(env.clone()));
    let mut streams = Streams::new(
        label.pool,
        incarnation,
        devices.clone(),
        capacity,
        data_streams(label.zone_count),
        env.workers() > 0 && !options.read_only,
        counters.clone(),
    );
    let mut used = BTreeSet::new();
    for (seq, zone) in &mut tables.zones {
        if !zone.is_resident() {
            continue;
        }
        used.insert(zone.home);
        if options.read_only {
            continue;
        }
        let device = devices.get(zone.home.device)?;
        let goes_on = if zone.phase == Phase::Open { zone.claimed } else { zone.capacity };
        let at = match device.resume(zone.home.zone, goes_on) {
            Ok(at) => at,
            Err(error) => {
                // A zone that died is no reason to refuse the others: what lies in it is read from its copies, or
                // named when it is asked for.
                log::error!("{}: {error}; nothing more is written there", zone.home);
                zone.capacity
            }
        };
        if at < zone.claimed {
            log::error!(
                "{}: its write pointer is at {at}, but {} bytes were committed",
                zone.home,
                zone.claimed
            );
        }
        if zone.phase == Phase::Open {
            let fits = at >= zone.claimed && at < zone.capacity;
            zone.gather = fits
                .then(|| streams.adopt(zone.class, *seq, zone.home, zone.capacity, at, zone.claimed))
                .flatten();
            if zone.gather.is_none() {
                // Its record comes with the next group.
                streams.group.filled.push(*seq);
            }
        }
    }
    let takes_writes = |home: &Home| {
        let report = devices.get(home.device).ok().and_then(|device| device.report(home.zone).ok());
        report.is_some_and(|report| !matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline))
    };
    let free = homes(label.zone_count).filter(|home| !used.contains(home));
    let mut alloc = Allocator::new(lease_seq, lease_seq + 4096);
    alloc.add_device(DeviceIdx(0), false, label.zone_count - ANCHORS);
    free.filter(takes_writes).for_each(|home| alloc.put_unclean(home));
    let next_txg = first_group((uber.txg, uber.clean), lease_txg, options.rewind.is_some());
    let state = SyncState {
        streams,
        alloc,
        lease_txg: next_txg.0 + 4096,
        incarnation,
        anchor,
        anchor_offset: 0,
        chain,
        sections,
        next_section: 0,
        replay_bytes: 0,
        // A bootstrap block with a damaged copy is healed by writing it anew.
        checkpoint_wanted: !whole,
        root: record.root,
        recent: VecDeque::from([uber.txg]),
        imported: uber.txg,
        oldest: uber.oldest,
        resets_done: Vec::new(),
        suspects: Vec::new(),
    };
    let slot = u64::from(label.write_unit).max(4096);
    let before = record.totals.plus(&Totals::of_commit(&uber.record, slot, uber.clean));
    let features: Vec<Feature> = label.features.known().collect();
    let groups = Groups::new(next_txg, uber.txg, options.dirty_bytes);
    let pool = assemble(label, devices, tables, groups, state, (env, counters, before), options);
    if !options.read_only {
        let mut st = pool.sync.lock();
        pool.write_uberblock(&mut st, uber.txg, uber.record, false)?;
        if label_is_old {
            st.anchor_offset = 0;
            pool.write_uberblock(&mut st, uber.txg, uber.record, false)?;
        }
        pool.publish(&st);
        drop(st);
        pool.in_force.add(features.into_iter());
        pool.start(options);
    } else {
        pool.publish(&pool.sync.lock());
    }
    Ok(pool)
}

fn known(devices: Vec<Arc<dyn Device>>) -> Arc<Devices> {
    Arc::new(Devices::new(devices.into_iter().map(Some).collect()))
}

/// The first group after the one that was imported, given whether that was the last before an export. A group's number never comes twice:
/// after a crash, and where later groups are given up, it goes on above all that were leased.
fn first_group((txg, clean): (Txg, bool), lease: u64, rewinds: bool) -> Txg {
    if clean && !rewinds { txg.next() } else { Txg(lease.max(txg.0 + 1)) }
}

fn assemble(
    label: Label,
    devices: Arc<Devices>,
    tables: Tables,
    groups: Groups,
    state: SyncState,
    (env, counters, before): (Arc<dyn Env>, Arc<Counters>, Totals),
    options: &ImportOptions,
) -> Arc<Pool> {
    let pool = Pool {
        pool_id: label.pool,
        label: Mutex::new(label),
        devices,
        tables: RwLock::new(tables),
        cache: BlockCache::new(options.cache_bytes),
        recent: Mutex::new(Recent::new(counters.now_ns(), before)),
        before,
        counters,
        parts: PartCache::new((options.cache_bytes / 8).max(1 << 20)),
        workers: Workers::new(env.workers()),
        txg: groups,
        sync: Mutex::new(state),
        heals: Mutex::default(),
        read_only: options.read_only,
        in_force: InForce::default(),
        largest_block: AtomicU64::new(128 << 10),
        client: Mutex::default(),
        failed: OnceLock::new(),
        damage: Mutex::default(),
        damaged: Mutex::default(),
        more_work: AtomicBool::new(false),
        sync_thread: Mutex::default(),
        env,
    };
    Arc::new(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_number_never_comes_twice() {
        assert_eq!(first_group((Txg(7), true), 4103, false), Txg(8), "nothing came after an export");
        assert_eq!(first_group((Txg(7), false), 4103, false), Txg(4103), "a crash may have lost some");
        assert_eq!(
            first_group((Txg(7), true), 4103, true),
            Txg(4103),
            "groups after the export are given up"
        );
        assert_eq!(first_group((Txg(7), false), 3, true), Txg(8));
    }
}
