//! Forged pool structures: changed, sealed again, with every pointer to them.
//!
//! A structure whose size changed is moved to an empty zone: bootstrap blocks are named by place.

use super::{Image, mutate, overwrite};
use crate::machine::Machine;
use terrane_codec::{ChecksumKind, Compression, Compressor, compute};
use terrane_device::{Device, SimDevice};
use terrane_format::Place;
use terrane_format::addr::GRANULE;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::directory::{PartTrailer, parse_trailer};
use terrane_format::label::Label;
use terrane_format::log::LogHead;
use terrane_format::record::Record;
use terrane_format::seal::{Seed, seal};
use terrane_format::uberblock::Uberblock;
use terrane_oracle::{Failure, failed};
use terrane_store::bootstrap::boot_encode;
use terrane_wire::Prng;
use terrane_wire::{DeviceIdx, Txg, ZoneIdx, ZoneSeq};

/// The newest uberblock, and where it is.
struct Newest {
    anchor: u32,
    at: u64,
    label: Label,
    uber: Uberblock,
}

fn newest(device: &SimDevice) -> Result<Newest, Failure> {
    let all = terrane_pool::inspect::anchors(device).into_iter().flat_map(|(anchor, label, ubers)| {
        ubers.into_iter().map(move |(at, uber)| Newest { anchor, at, label: label.clone(), uber })
    });
    // Each is stored twice; the first of a pair is the one to overwrite.
    all.max_by_key(|newest| (newest.uber.txg, newest.uber.clean, std::cmp::Reverse(newest.at)))
        .ok_or(Failure("no uberblock".into()))
}

impl Newest {
    fn write(&self, device: &SimDevice) -> Result<(), Failure> {
        let raw = self.uber.encode(&self.label, self.anchor, self.at, 4096);
        overwrite(device, ZoneIdx(self.anchor), self.at, &raw)
    }
}

/// The bytes of a bootstrap block.
fn read_boot(device: &SimDevice, ptr: &BootPtr) -> Result<Vec<u8>, Failure> {
    let place = ptr.copies().next().ok_or(Failure("no place".into()))?;
    let from = place.offset / 4096 * 4096;
    let to = (place.offset + u64::from(ptr.len)).next_multiple_of(4096);
    let mut raw = vec![0; (to - from) as usize];
    device.read(place.zone, from, &mut raw).map_err(failed("read"))?;
    let start = (place.offset - from) as usize;
    let stored = raw.get(start..start + ptr.len as usize).ok_or(Failure("short block".into()))?;
    let word =
        |at: usize| stored.get(at..at + 4).and_then(|raw| raw.try_into().ok()).map_or(0, u32::from_le_bytes);
    let mut out = Vec::new();
    Compressor::new()
        .decompress(word(0) as u8, stored.get(8..).unwrap_or(&[]), word(4) as usize, &mut out)
        .map_err(failed("decompress"))?;
    Ok(out)
}

/// Writes a bootstrap block to unused space.
fn place_boot(
    device: &SimDevice,
    raw: &[u8],
    zone: ZoneIdx,
    offset: u64,
    lsize: u32,
) -> Result<BootPtr, Failure> {
    let mut stored = u32::from(Compression::Off.id()).to_le_bytes().to_vec();
    stored.extend_from_slice(&lsize.to_le_bytes());
    stored.extend_from_slice(raw);
    overwrite(device, zone, offset, &stored)?;
    // Its sequence number is one that no zone has.
    let place = Place::new(DeviceIdx(0), zone, offset, ZoneSeq((1 << 35) + offset / 4096));
    let mut ptr = BootPtr { len: stored.len() as u32, ..BootPtr::NONE };
    ptr.checksum = compute(ChecksumKind::Blake3, &stored);
    ptr.places[0] = place;
    Ok(ptr)
}

fn number(old: u64, rng: &mut Prng) -> u64 {
    match rng.below(7) {
        0 => 0,
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        3 => 1 << rng.below(62),
        4 => (1 << 62) - 1,
        5 => rng.below(100),
        _ => rng.next_u64() >> 2,
    }
}

fn forge_pointer(ptr: &mut BootPtr, rng: &mut Prng) {
    let which = rng.below(2) as usize;
    let place = &mut ptr.places[which];
    match rng.below(5) {
        0 => ptr.len = number(u64::from(ptr.len), rng) as u32,
        1 => ptr.padded = number(u64::from(ptr.padded), rng) as u32,
        2 => place.offset = number(place.offset, rng),
        3 => place.zone = ZoneIdx(number(u64::from(place.zone.0), rng) as u32),
        _ => place.seq = ZoneSeq(number(place.seq.0, rng)),
    }
}

/// Forges one pool structure.
pub(super) fn forge(image: &Image, rng: &mut Prng) -> Result<Option<(SimDevice, String)>, Failure> {
    let device = image.copy();
    let (what, done) = match rng.below(5) {
        0 => ("uberblock", uberblock(&device, rng)?),
        1 => ("record", record(&device, rng)?),
        2 => ("section", section(&device, rng)?),
        3 => ("directory part", part(&device, rng)?),
        _ => ("label", label(&device, rng)?),
    };
    Ok(done.then(|| (device, what.to_string())))
}

fn uberblock(device: &SimDevice, rng: &mut Prng) -> Result<bool, Failure> {
    let mut newest = newest(device)?;
    let uber = &mut newest.uber;
    match rng.below(8) {
        0 => uber.generation = number(uber.generation, rng),
        1 => uber.incarnation = number(uber.incarnation, rng),
        2 => uber.txg = Txg(number(uber.txg.0, rng)),
        3 => uber.oldest = Txg(number(uber.oldest.0, rng)),
        4 => uber.lease_seq = number(uber.lease_seq, rng),
        5 => uber.lease_txg = number(uber.lease_txg, rng),
        6 => uber.clean = !uber.clean,
        _ => forge_pointer(&mut uber.record, rng),
    }
    newest.write(device)?;
    Ok(true)
}

fn free_zone(device: &SimDevice) -> Result<ZoneIdx, Failure> {
    let machine = Machine::import(&device.snapshot(), 1, true)?;
    let used: Vec<ZoneIdx> = machine.pool.zones().iter().map(|zone| zone.home.zone).collect();
    let zones = (2..device.info().zone_count).rev().map(ZoneIdx);
    zones.into_iter().find(|zone| !used.contains(zone)).ok_or(Failure("no zone is empty".into()))
}

fn record(device: &SimDevice, rng: &mut Prng) -> Result<bool, Failure> {
    let mut newest = newest(device)?;
    let zone = free_zone(device)?;
    let mut raw = read_boot(device, &newest.uber.record)?;
    for _ in 0..=rng.below(2) {
        let all = 0..raw.len();
        mutate(&mut raw, all, rng);
    }
    let lsize = if rng.one_in(10) { number(raw.len() as u64, rng) as u32 } else { raw.len() as u32 };
    newest.uber.record = place_boot(device, &raw, zone, 0, lsize)?;
    newest.write(device)?;
    Ok(true)
}

/// Changes what the newest commit record says of the intent log, in all copies of the record and of its uberblock.
pub(super) fn log_head(device: &SimDevice, change: impl FnOnce(&mut LogHead)) -> Result<(), Failure> {
    let mut newest = newest(device)?;
    let ptr = &mut newest.uber.record;
    let raw = read_boot(device, ptr)?;
    let mut record = Record::parse(&raw, "the record").map_err(failed("record"))?;
    change(record.log.as_mut().ok_or(Failure("there is no log".into()))?);
    // The tables count its granules, so it must have as many as before.
    let (granules, time_ns) = (u64::from(ptr.len).div_ceil(GRANULE), record.time_ns);
    let times = (0..64_u64).flat_map(|n| [time_ns >> n, (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)]);
    let stored = times.map(|time_ns| {
        record.time_ns = time_ns;
        boot_encode(&mut Compressor::new(), &record.encode())
    });
    let fits = |stored: &Vec<u8>| (stored.len() as u64).div_ceil(GRANULE) == granules;
    let stored = stored.into_iter().find(fits).ok_or(Failure("no record has that size".into()))?;
    for place in ptr.copies() {
        overwrite(device, place.zone, place.offset, &stored)?;
    }
    (ptr.len, ptr.checksum) = (stored.len() as u32, compute(ChecksumKind::Blake3, &stored));
    for (anchor, label, ubers) in terrane_pool::inspect::anchors(device) {
        for (at, _) in ubers.into_iter().filter(|(_, uber)| uber.txg == newest.uber.txg) {
            Newest { anchor, at, label: label.clone(), uber: newest.uber }.write(device)?;
        }
    }
    Ok(())
}

fn section(device: &SimDevice, rng: &mut Prng) -> Result<bool, Failure> {
    let mut newest = newest(device)?;
    let zone = free_zone(device)?;
    let raw = read_boot(device, &newest.uber.record)?;
    let mut record = Record::parse(&raw, "the record").map_err(failed("record"))?;
    if record.sections.is_empty() {
        return Ok(false);
    }
    let which = rng.below(record.sections.len() as u64) as usize;
    let Some(section) = record.sections.get_mut(which) else { return Ok(false) };
    if rng.one_in(4) {
        forge_pointer(&mut section.ptr, rng);
    } else {
        let mut raw = read_boot(device, &section.ptr)?;
        let all = 0..raw.len();
        mutate(&mut raw, all, rng);
        section.ptr = place_boot(device, &raw, zone, 512 << 10, raw.len() as u32)?;
    }
    let raw = record.encode();
    newest.uber.record = place_boot(device, &raw, zone, 0, raw.len() as u32)?;
    newest.write(device)?;
    Ok(true)
}

fn part(device: &SimDevice, rng: &mut Prng) -> Result<bool, Failure> {
    let machine = Machine::import(&device.snapshot(), 1, true)?;
    let zones: Vec<_> = machine.pool.zones().into_iter().filter(|zone| zone.claimed > 0).collect();
    let Some(view) = zones.get(rng.below(zones.len() as u64) as usize) else { return Ok(false) };
    let mut raw = vec![0; view.claimed as usize];
    device.read(view.home.zone, 0, &mut raw).map_err(failed("read"))?;
    let trailer = parse_trailer(&raw, view.seq, view.claimed).map_err(failed("trailer"))?;
    let from = trailer.part_start as usize;
    let entries = from..from + trailer.entry_bytes as usize;
    let in_trailer = raw.len() - PartTrailer::SIZE..raw.len() - 16;
    let range = if rng.one_in(3) { in_trailer } else { entries };
    mutate(&mut raw, range, rng);
    let Some(trailer) = PartTrailer::decode(&raw[raw.len() - PartTrailer::SIZE..]) else { return Ok(false) };
    let start = (trailer.part_start as usize).min(raw.len() - PartTrailer::SIZE);
    let seed = Seed {
        pool: machine.pool.id(),
        scope: trailer.seq.0,
        offset: trailer.part_start,
        incarnation: trailer.incarnation,
    };
    let sealed = seal(seed, &[&raw[start..raw.len() - 16]]);
    let end = raw.len();
    raw[end - 16..].copy_from_slice(&sealed);
    overwrite(device, view.home.zone, 0, &raw)?;
    Ok(true)
}

fn label(device: &SimDevice, rng: &mut Prng) -> Result<bool, Failure> {
    let mut newest = newest(device)?;
    let label = &mut newest.label;
    match rng.below(9) {
        0 => label.generation = number(label.generation, rng),
        1 => label.zone_size = number(label.zone_size, rng),
        2 => label.zone_count = number(u64::from(label.zone_count), rng) as u32,
        3 => label.write_unit = number(u64::from(label.write_unit), rng) as u32,
        4 => label.max_block = number(u64::from(label.max_block), rng) as u32,
        5 => label.sections = number(u64::from(label.sections), rng) as u32,
        6 => label.features.incompatible.push("terrane:unheard_of".into()),
        7 => label.devices.clear(),
        _ => label.device = number(label.device, rng),
    }
    let raw = label.encode(newest.anchor);
    overwrite(device, ZoneIdx(newest.anchor), 0, &raw)?;
    // The seal of an uberblock depends on the label.
    newest.write(device)?;
    Ok(true)
}
