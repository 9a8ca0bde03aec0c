//! Anchors: the zones of each device that hold its label and its uberblocks.
//!
//! A commit appends its uberblock to the current anchor of every device. Import takes the newest uberblock over all devices. A device
//! whose anchors cannot be written does not stop the pool: status names it, and its uberblocks are merely old. That is safe because
//! import needs all devices, so one of them has the newest txg. If no anchor takes the uberblock, the txg has failed.
//!
//! Invariant, on each device: one anchor holds a valid label and the newest uberblock that this device took. The other anchor is reset
//! only right before it is written.
//!
//! A label may be damaged later, so each anchor holds it twice. The other anchor cannot take the newest txg before this one is reset,
//! because a drive has finished that other anchor. If both copies are damaged, the uberblocks behind them are judged by the label of
//! the other anchor. Otherwise import would use the uberblocks of that one, which may be many txgs older. Mending such an anchor means
//! resetting it. If the power fails right then, only an older txg is left, unless another device holds a newer one.

use crate::PoolError;
use crate::commit_point::CommitPoint;
use crate::counters::Counters;
use crate::devices::{Devices, takes_writes};
use std::cmp::Reverse;
use std::sync::Arc;
use terrane_device::{Device, DeviceError, DeviceKind, ZoneState};
use terrane_format::label::{
    ANCHOR_BYTES_MAX, ANCHORS, DeviceRow, LABEL_BYTES, Label, WRITE_UNIT_MAX, labels_end, second_label_offset,
};
use terrane_format::uberblock::{UBERBLOCK_COPIES, Uberblock};
use terrane_wire::{DeviceIdx, Txg, ZoneIdx};

/// Uberblocks begin on multiples of this, in bytes.
const UBERBLOCK_SLOT_MIN: usize = 4096;

/// The anchor of one device that is in use, and the offset of its next uberblock.
#[derive(Clone, Debug)]
pub struct Anchor {
    device: DeviceIdx,
    /// 0 or 1.
    zone: u32,
    /// In bytes. At 0 the next uberblock goes to the other anchor.
    offset: u64,
    /// The number of the newest filling of an anchor that was begun (its anchor generation).
    anchor_generation: u64,
    /// Why the last uberblock write failed on this device.
    uberblock_error: Option<String>,
}

impl Anchor {
    /// For a device that has no anchor yet. The first uberblock goes to anchor 0.
    pub fn fresh(device: DeviceIdx) -> Anchor {
        Anchor { device, zone: 1, offset: 0, anchor_generation: 0, uberblock_error: None }
    }

    /// Appends an uberblock to the anchor in use. `None`: the anchor is full.
    fn append(
        &mut self,
        device: &dyn Device,
        (label, row): (&Label, &DeviceRow),
        uber: &Uberblock,
    ) -> Option<Result<usize, DeviceError>> {
        let (_, slot) = uberblock_slot_of(row);
        // If the device cannot report the anchor's capacity, the anchor counts as full.
        let limit =
            device.report(ZoneIdx(self.zone)).map_or(0, |report| report.capacity.min(ANCHOR_BYTES_MAX));
        if self.offset == 0 || self.offset + (UBERBLOCK_COPIES * slot) as u64 > limit {
            return None;
        }
        let uber = Uberblock { anchor_generation: self.anchor_generation, ..*uber };
        let raw = uber.encode(&label.for_device(row, self.anchor_generation), self.zone, self.offset, slot);
        let written = device.write(ZoneIdx(self.zone), self.offset, &raw);
        Some(written.map(|()| {
            self.offset += raw.len() as u64;
            raw.len()
        }))
    }

    /// Appends an uberblock. Switches anchors if this one is full or cannot be written. The uberblock is durable after a flush. Returns
    /// the bytes written.
    fn write(
        &mut self,
        device: &dyn Device,
        (label, row): (&Label, &DeviceRow),
        uber: &Uberblock,
    ) -> Result<usize, DeviceError> {
        let (unit, slot) = uberblock_slot_of(row);
        match self.append(device, (label, row), uber) {
            Some(Ok(bytes)) => return Ok(bytes),
            Some(Err(error)) => {
                let name = &device.info().name;
                log::warn!("{name}: uberblock of txg {} failed, switching anchors: {error}", uber.txg);
            }
            None => {}
        }
        // Finish this anchor before the other one is opened, or a drive would count both as active. It stays readable.
        if device.info().hardware_pointers
            && self.anchor_generation > 0
            && let Err(error) = device.finish(ZoneIdx(self.zone))
        {
            log::warn!("{}: finish of anchor {} failed: {error}", device.info().name, self.zone);
        }
        let other = 1 - self.zone;
        device.reset(ZoneIdx(other))?;
        // This filling ends here, even if the next one fails: import would ignore anything appended to it now.
        self.offset = 0;
        // Count up even if the write fails. Part of it may be on the device, and must not pass for a later filling.
        self.anchor_generation += 1;
        let label = label.for_device(row, self.anchor_generation);
        let uber = Uberblock { anchor_generation: self.anchor_generation, ..*uber };
        let mut raw = label.encode(other);
        raw.resize((LABEL_BYTES as usize).next_multiple_of(unit), 0);
        let at = raw.len() as u64;
        raw.extend_from_slice(&uber.encode(&label, other, at, slot));
        let end = labels_end(row.write_unit);
        let capacity = device.report(ZoneIdx(other)).map_or(0, |report| report.capacity);
        if end <= capacity.min(ANCHOR_BYTES_MAX) {
            raw.extend_from_slice(&label.encode(other));
            raw.resize(usize::try_from(end).expect("an anchor fits memory"), 0);
        }
        device.write(ZoneIdx(other), 0, &raw)?;
        (self.zone, self.offset) = (other, raw.len() as u64);
        Ok(raw.len())
    }
}

/// The anchors of all devices of a pool.
pub struct Anchors {
    devices: Arc<Devices>,
    counters: Arc<Counters>,
    anchors: Vec<Anchor>,
}

impl Anchors {
    /// The devices' anchors, as create or import found them.
    pub fn new(devices: Arc<Devices>, counters: Arc<Counters>, anchors: Vec<Anchor>) -> Anchors {
        Anchors { devices, counters, anchors }
    }
}

impl CommitPoint for Anchors {
    /// A device that fails to take the uberblock is reported in status, and does not stop the others.
    fn append(&mut self, label: &Label, uber: &Uberblock) -> Result<(), PoolError> {
        let mut last_error = None;
        let mut taken = 0;
        for anchor in &mut self.anchors {
            let Some(row) = label.member(anchor.device) else { continue };
            let device = self.devices.get(anchor.device)?;
            match anchor.write(device.as_ref(), (label, row), uber) {
                Ok(bytes) => {
                    taken += 1;
                    self.counters.count_anchor_bytes(bytes);
                    anchor.uberblock_error = None;
                }
                Err(error) => {
                    if anchor.uberblock_error.is_none() {
                        log::error!("{}: uberblock write failed on this device: {error}", device.info().name);
                    }
                    anchor.uberblock_error = Some(error.to_string());
                    last_error = Some(error);
                }
            }
        }
        if taken == 0 {
            let none = PoolError::Failed { reason: "no device has an anchor".into() };
            return Err(last_error.map_or(none, PoolError::from));
        }
        Ok(())
    }

    fn append_older(&mut self, label: &Label, uber: &Uberblock) {
        for anchor in &mut self.anchors {
            let (Some(row), Ok(device)) = (label.member(anchor.device), self.devices.get(anchor.device))
            else {
                continue;
            };
            match anchor.append(device.as_ref(), (label, row), uber) {
                Some(Ok(bytes)) => self.counters.count_anchor_bytes(bytes),
                Some(Err(error)) => {
                    let name = &device.info().name;
                    log::warn!("{name}: uberblock of rollback txg {} failed: {error}", uber.txg);
                }
                None => {}
            }
        }
    }

    /// Writes to both anchors of every device. The anchors in use hold the old label, so this switches anchors twice.
    fn relabel(
        &mut self,
        label: &Label,
        uber: &Uberblock,
        flush: &mut dyn FnMut() -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        for _ in 0..ANCHORS {
            self.anchors.iter_mut().for_each(|anchor| anchor.offset = 0);
            self.append(label, uber)?;
            flush()?;
        }
        Ok(())
    }

    fn add_device(
        &mut self,
        index: DeviceIdx,
        device: &dyn Device,
        label: &Label,
        uber: &Uberblock,
    ) -> Result<(), PoolError> {
        let mut anchor = Anchor::fresh(index);
        let row = label.member(index).expect("it was just put there");
        anchor.write(device, (label, row), uber)?;
        device.flush()?;
        self.anchors.push(anchor);
        Ok(())
    }

    fn remove_device(&mut self, index: DeviceIdx) {
        self.anchors.retain(|anchor| anchor.device != index);
    }

    fn erase_labels(&self, device: &dyn Device) -> Result<(), PoolError> {
        for anchor in (0..ANCHORS).map(ZoneIdx) {
            device.reset(anchor)?;
        }
        if !device.info().hardware_pointers {
            overwrite_labels(device)?;
        }
        Ok(device.flush()?)
    }

    fn devices(&self) -> Vec<(DeviceIdx, Option<String>)> {
        self.anchors.iter().map(|anchor| (anchor.device, anchor.uberblock_error.clone())).collect()
    }
}

/// The write unit, and the size of an uberblock's slot, both in bytes. The label's unit counts: on a device with a smaller unit the
/// layout stays that of the first device.
fn uberblock_slot_of(row: &DeviceRow) -> (usize, usize) {
    let unit = row.write_unit as usize;
    (unit, unit.max(UBERBLOCK_SLOT_MIN))
}

/// An anchor as import reads it.
pub struct AnchorRead {
    /// Index into the devices that were given.
    pub given: usize,
    /// Number of the anchor on its device: 0 or 1.
    pub anchor: u32,
    /// The label by which the uberblocks were checked.
    pub label: Label,
    /// False if the label is the other anchor's, by which these uberblocks were checked.
    pub has_label: bool,
    /// Valid uberblocks with their offsets, in bytes.
    pub ubers: Vec<(u64, Uberblock)>,
}

/// An uberblock that can be imported.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    /// The anchor that holds the uberblock.
    pub read: &'a AnchorRead,
    /// The uberblock.
    pub uber: Uberblock,
}

/// The valid uberblocks of an anchor, with their label. Sets `gap` if the device did not return the whole anchor.
pub fn read_anchor(
    device: &dyn Device,
    anchor: u32,
    gap: &mut bool,
) -> Option<(Label, Vec<(u64, Uberblock)>)> {
    let raw = read_raw(device, anchor, gap)?;
    let label = label_of(device, anchor, &raw)?;
    let slots = uberblock_slots(&raw);
    let ubers =
        slots.filter_map(|(at, raw)| Some((at, Uberblock::parse(raw, &label, anchor, at)?))).collect();
    Some((label, ubers))
}

/// The label of an anchor, from either copy. If the copies differ, the one with the later anchor generation counts.
fn label_of(device: &dyn Device, anchor: u32, raw: &[u8]) -> Option<Label> {
    let at = format!("{} anchor {anchor}", device.info().name);
    let copy = |from: u64| Label::parse(raw.get(usize::try_from(from).ok()?..)?, anchor, &at).ok();
    // The offset of the second copy depends on the write unit of the device on which the pool was created.
    let units =
        (0..).map(|shift| device.info().write_unit << shift).take_while(|unit| *unit <= WRITE_UNIT_MAX);
    let first = copy(0);
    let second =
        units.filter_map(|unit| copy(second_label_offset(unit))).max_by_key(|label| label.anchor_generation);
    if first.is_none() && second.is_some() {
        log::warn!("{at}: primary label damaged, using copy");
    }
    let anchor_generation = first.as_ref().map(|first| first.anchor_generation);
    second
        .filter(|second| {
            anchor_generation.is_none_or(|anchor_generation| anchor_generation < second.anchor_generation)
        })
        .or(first)
}

/// All offsets at which an uberblock may lie, whatever write unit it was written with.
fn uberblock_slots(raw: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let behind = raw.get(LABEL_BYTES as usize..).unwrap_or(&[]);
    (LABEL_BYTES..).step_by(UBERBLOCK_SLOT_MIN).zip(behind.chunks_exact(UBERBLOCK_SLOT_MIN))
}

/// The uberblocks of an anchor whose label is lost, checked by the label of the device's other anchor. Uberblocks of a later anchor
/// generation are newer than those of the other anchor. Each uberblock stores its own, and its seal is valid for that one only. Sets
/// `gap` if an uberblock holds a newer txg under another label, because the content of that label is unknown.
fn read_orphans(device: &dyn Device, anchor: u32, other: &AnchorRead, gap: &mut bool) -> Option<AnchorRead> {
    let raw = read_raw(device, anchor, gap)?;
    let mut label = other.label.clone();
    let mut found: Vec<(u64, Uberblock)> = Vec::new();
    for (at, raw) in uberblock_slots(&raw) {
        let Some(anchor_generation) = Uberblock::anchor_generation_of(raw)
            .filter(|anchor_generation| *anchor_generation > other.label.anchor_generation)
        else {
            continue;
        };
        label.anchor_generation = anchor_generation;
        found.extend(Uberblock::parse(raw, &label, anchor, at).map(|uber| (at, uber)));
    }
    label.anchor_generation = found.iter().map(|(_, uber)| uber.anchor_generation).max()?;
    found.retain(|(_, uber)| uber.anchor_generation == label.anchor_generation);
    let newest = other.ubers.iter().map(|(_, uber)| (uber.incarnation, uber.txg)).max();
    let is_ours = |uber: &Uberblock| uber.generation == label.generation;
    *gap |= found.iter().any(|(_, uber)| !is_ours(uber) && Some((uber.incarnation, uber.txg)) > newest);
    found.retain(|(_, uber)| is_ours(uber));
    log::warn!(
        "{}: label of anchor {anchor} damaged, using the other anchor's label for {} uberblocks",
        device.info().name,
        found.len()
    );
    Some(AnchorRead { anchor, label, has_label: false, ubers: found, ..*other })
}

/// The bytes of an anchor that are written and may be used. Sets `gap` if the device did not return all of them.
fn read_raw(device: &dyn Device, anchor: u32, gap: &mut bool) -> Option<Vec<u8>> {
    let info = device.info();
    let report = device.report(ZoneIdx(anchor)).ok().filter(|report| report.state != ZoneState::Offline);
    *gap |= report.is_none();
    let report = report?;
    let mut limit = report.capacity.min(ANCHOR_BYTES_MAX);
    // The pointer of a read-only zone means nothing, and a conventional zone of a drive has none.
    if info.hardware_pointers && !matches!(report.state, ZoneState::ReadOnly | ZoneState::Unknown) {
        limit = limit.min(report.pointer);
    }
    let unit = u64::from(info.write_unit);
    let first = LABEL_BYTES.next_multiple_of(unit);
    if limit < first {
        return None;
    }
    let mut raw = vec![0; usize::try_from(limit).ok()?];
    let slot = unit.max(UBERBLOCK_SLOT_MIN as u64);
    // One unreadable slot must not hide the uberblocks around it. So read in pieces, and a piece that fails slot by slot.
    let mut at = 0;
    for piece in raw.chunks_mut(1 << 20) {
        if device.read(ZoneIdx(anchor), at, piece).is_err() {
            for (from, few) in (at..).step_by(slot as usize).zip(piece.chunks_mut(slot as usize)) {
                if device.read(ZoneIdx(anchor), from, few).is_err() {
                    few.fill(0);
                    *gap = true;
                }
            }
        }
        at += piece.len() as u64;
    }
    Some(raw)
}

/// Overwrites the labels of a conventional device, whose resets need not change a byte. Afterwards the device does not look like part
/// of a pool. The anchors must be empty. Durable after a flush.
pub fn overwrite_labels(device: &dyn Device) -> Result<(), DeviceError> {
    for anchor in (0..ANCHORS).map(ZoneIdx) {
        // Covers every offset that the second copy may have.
        let bytes = labels_end(WRITE_UNIT_MAX).min(device.report(anchor)?.capacity);
        device.write(anchor, 0, &vec![0; usize::try_from(bytes).expect("a write fits memory")])?;
    }
    Ok(())
}

/// The order of uberblocks by age. A txg appears under two labels if the label changed, and twice if older txgs were given up.
fn age_key(uber: &Uberblock) -> (u64, Txg, bool, u64, Txg) {
    (uber.incarnation, uber.txg, uber.clean, uber.generation, uber.oldest)
}

/// All labels and uberblocks that the anchors of the given devices hold.
pub struct Roots {
    anchors: Vec<AnchorRead>,
    /// Device (index into those given) and anchor that could not be read in full.
    gaps: Vec<(usize, u32)>,
    /// Devices of which both anchors were read in full and still take writes.
    sound: Vec<usize>,
}

impl Roots {
    /// Reads both anchors of every device. An anchor that cannot be read is no error here: see [`Roots::hiding_anchor`].
    pub fn read(devices: &[Arc<dyn Device>]) -> Roots {
        let mut roots = Roots { anchors: Vec::new(), gaps: Vec::new(), sound: Vec::new() };
        for (given, device) in devices.iter().enumerate() {
            let mut gaps = [false; ANCHORS as usize];
            let mut own = Vec::new();
            for (anchor, gap) in (0..ANCHORS).zip(&mut gaps) {
                if let Some((label, ubers)) = read_anchor(device.as_ref(), anchor, gap) {
                    own.push(AnchorRead { given, anchor, label, has_label: true, ubers });
                }
            }
            if let [one] = &own[..]
                && let Some(gap) = gaps.get_mut(1 - one.anchor as usize)
            {
                let orphans = read_orphans(device.as_ref(), 1 - one.anchor, one, gap);
                own.extend(orphans);
            }
            roots.anchors.append(&mut own);
            let gaps = (0..ANCHORS).zip(gaps).filter(|(_, gap)| *gap);
            roots.gaps.extend(gaps.map(|(anchor, _)| (given, anchor)));
            let takes_more = (0..ANCHORS).all(|anchor| takes_writes(device.as_ref(), ZoneIdx(anchor)));
            if takes_more && roots.gaps.iter().all(|(other, _)| *other != given) {
                roots.sound.push(given);
            }
        }
        roots
    }

    /// Incarnation and txg of the newest uberblock on the selected devices.
    pub fn newest_of(&self, which: impl Fn(usize) -> bool) -> Option<(u64, Txg)> {
        let reads = self.anchors.iter().filter(|read| which(read.given));
        reads.flat_map(|read| &read.ubers).map(|(_, uber)| (uber.incarnation, uber.txg)).max()
    }

    /// An anchor of a pool member that may hide newer uberblocks than any seen: it cannot be read, and no sound member has the newest
    /// txg. A member whose anchors take no more writes proves nothing: it may have been left behind. A sound member without the newest
    /// visible txg has missed writes itself.
    pub fn hiding_anchor(&self, is_member: impl Fn(usize) -> bool) -> Option<(usize, u32)> {
        let newest = self.newest_of(&is_member);
        let is_newest = |given: usize| self.newest_of(|other| other == given) == newest;
        let knows = self.sound.iter().any(|given| is_member(*given) && is_newest(*given));
        self.gaps.iter().copied().find(|(given, _)| is_member(*given) && !knows)
    }

    /// Every label that was read, with the index of its device. A device appears once for each readable anchor.
    pub fn labels(&self) -> impl Iterator<Item = (usize, &Label)> {
        self.anchors.iter().map(|read| (read.given, &read.label))
    }

    /// The uberblocks that can be imported, newest first.
    pub fn candidates(&self) -> Vec<Candidate<'_>> {
        let all = self
            .anchors
            .iter()
            .flat_map(|read| read.ubers.iter().map(move |(_, uber)| Candidate { read, uber: *uber }));
        let mut candidates: Vec<Candidate<'_>> = all.collect();
        // The youngest incarnation first. It begins with the txg that it imported. Later txgs of older incarnations are a branch that
        // was given up.
        candidates.sort_by_key(|candidate| Reverse(age_key(&candidate.uber)));
        let (mut incarnation, mut first, mut cap) = (u64::MAX, Txg(u64::MAX), Txg(u64::MAX));
        candidates.retain(|Candidate { uber, .. }| {
            if uber.incarnation != incarnation {
                (incarnation, cap) = (uber.incarnation, cap.min(first));
            }
            first = first.min(uber.txg);
            uber.txg <= cap
        });
        candidates
    }

    /// The device id in the newest label of a given device.
    pub fn id_of(&self, given: usize) -> Option<u64> {
        let own = self.anchors.iter().filter(|read| read.given == given);
        own.max_by_key(|read| read.label.anchor_generation).map(|read| read.label.device)
    }

    /// Where a device's next uberblock goes after an import of `chosen`, and the generation of the label in the anchor that is kept. An
    /// anchor with a damaged label is overwritten, because the other's label is needed to read anything. Otherwise the kept anchor is
    /// the one with this device's newest uberblock that is not newer than `chosen`.
    pub fn anchor_of(&self, given: usize, device: DeviceIdx, chosen: &Uberblock) -> (Anchor, u64) {
        let own = || self.anchors.iter().filter(|read| read.given == given);
        let newest = |read: &&AnchorRead| {
            let ages = read.ubers.iter().map(|(_, uber)| age_key(uber)).filter(|at| *at <= age_key(chosen));
            (read.has_label, ages.max(), read.label.anchor_generation)
        };
        let keep = own().max_by_key(newest);
        let anchor_generation = own().map(|read| read.label.anchor_generation).max().unwrap_or(0);
        let zone = keep.map_or(1, |read| read.anchor);
        let anchor = Anchor { device, zone, offset: 0, anchor_generation, uberblock_error: None };
        (anchor, keep.map_or(0, |read| read.label.generation))
    }
}

/// Matches the given devices to the pool's device indexes.
///
/// # Errors
/// `Refused` names a device that is missing, given twice, or of another pool.
pub fn match_devices(
    given: &[Arc<dyn Device>],
    roots: &Roots,
    label: &Label,
) -> Result<Vec<Option<usize>>, PoolError> {
    let pool = format!("pool {}", label.name);
    let mut slots = vec![None; label.devices.len()];
    let mut used = vec![false; given.len()];
    let mut missing = Vec::new();
    for (device, row) in label.members() {
        let mut found = (0..given.len()).filter(|at| roots.id_of(*at) == Some(row.device));
        match (found.next(), found.next()) {
            (Some(at), None) => {
                slots[usize::from(device.0)] = Some(at);
                used[at] = true;
                check_geometry(&pool, row, given[at].info())?;
            }
            (Some(at), Some(twin)) => {
                let (one, other) = (&given[at].info().name, &given[twin].info().name);
                let found = format!("{one} and {other}");
                let expected = format!("one device with the id {:016x}", row.device);
                return Err(PoolError::refused(pool, expected, found, "leave out the copy"));
            }
            (None, _) => {
                let name =
                    if row.name.is_empty() { String::new() } else { format!(", last known as {}", row.name) };
                missing.push(format!("device {device} (id {:016x}{name})", row.device));
            }
        }
    }
    if !missing.is_empty() {
        let names: Vec<&str> = given.iter().map(|device| device.info().name.as_str()).collect();
        let expected = format!("{} devices", label.members().count());
        let found = format!("only {}; missing: {}", names.join(", "), missing.join(", "));
        return Err(PoolError::refused(
            pool,
            expected,
            found,
            "attach the missing devices, or say where to look for them",
        ));
    }
    for (at, device) in given.iter().enumerate().filter(|(at, _)| !used[*at]) {
        let what = match roots.id_of(at) {
            Some(_) => "not a device of this pool, or not any more",
            None => "no readable label",
        };
        log::warn!("{pool}: {} ignored: {what}", device.info().name);
    }
    Ok(slots)
}

fn check_geometry(pool: &str, row: &DeviceRow, info: &terrane_device::DeviceInfo) -> Result<(), PoolError> {
    if row.zone_size == info.zone_size
        && row.zone_count <= info.zone_count
        && row.write_unit >= info.write_unit
    {
        return Ok(());
    }
    let is_short_file = info.kind == DeviceKind::File && row.zone_size == info.zone_size;
    let remedy = match row.zone_size.checked_mul(row.zone_count.into()) {
        // The label does not say where zones in use lie. They need not lie at the end.
        Some(bytes) if is_short_file && row.zone_count > info.zone_count => format!(
            "the image was cut short: restore it whole; or restore its size (truncate -s {bytes} {}), and run \
             `terrane check` to find losses in the part that was cut off",
            info.name
        ),
        _ => "the image was cut short, or copied to another kind of device; restore it whole".to_owned(),
    };
    Err(PoolError::refused(
        pool,
        format_args!("{} zones of {} bytes", row.zone_count, row.zone_size),
        format_args!("{} zones of {} bytes on {}", info.zone_count, info.zone_size, info.name),
        remedy,
    ))
}
