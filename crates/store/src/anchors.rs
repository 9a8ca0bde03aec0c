//! Anchors: where every device tells which group is the newest.
//!
//! A commit appends its uberblock to the current anchor of every device, so that any of them could tell where the pool begins, and
//! import takes the newest over all. A device whose anchors cannot be written does not stop the pool: what it tells is old, the others
//! know better, and status names it. That is safe because a pool is imported only with all its devices at hand: there is always one
//! that has the newest group. When not one anchor takes an uberblock the group has failed.
//!
//! Invariant, on each device: one anchor holds a valid label and the newest uberblock that this device took. The other is only reset
//! to be written at once.
//!
//! A label may be damaged later. So each anchor holds it twice; the other anchor could not take the newest group before this one is
//! reset: a drive has finished that. If both copies are damaged, the uberblocks behind them are judged by the label in the other anchor,
//! or an import would go on with what that one tells, which may be many groups older. To mend such an anchor is to reset it: if the power
//! goes just then, an older group is all there is, unless another device knows better.

use crate::PoolError;
use crate::commit_point::CommitPoint;
use crate::counters::Counters;
use crate::devices::{Devices, takes_writes};
use std::cmp::Reverse;
use std::sync::Arc;
use terrane_device::{Device, DeviceError, DeviceKind, ZoneState};
use terrane_format::label::{
    ANCHOR_BYTES_MAX, ANCHORS, DeviceRow, LABEL_BYTES, Label, WRITE_UNIT_MAX, labels_end, second_label,
};
use terrane_format::uberblock::{UBERBLOCK_COPIES, Uberblock};
use terrane_wire::{DeviceIdx, Txg, ZoneIdx};

/// An uberblock begins on a multiple of this, in bytes.
const SLOT_BYTES_MIN: usize = 4096;

/// One device's anchor in use, and where its next uberblock goes.
#[derive(Clone, Debug)]
pub struct Anchor {
    device: DeviceIdx,
    /// 0 or 1.
    zone: u32,
    /// In bytes; 0: the next uberblock goes to the other anchor.
    offset: u64,
    /// Of the newest filling that was begun.
    turn: u64,
    /// Why the device did not take the last uberblock.
    trouble: Option<String>,
}

impl Anchor {
    /// Of a device that has none yet: the first uberblock goes to anchor 0.
    pub fn fresh(device: DeviceIdx) -> Anchor {
        Anchor { device, zone: 1, offset: 0, turn: 0, trouble: None }
    }

    /// Appends an uberblock to the anchor in use. `None`: it has no room.
    fn append(
        &mut self,
        device: &dyn Device,
        (label, row): (&Label, &DeviceRow),
        uber: &Uberblock,
    ) -> Option<Result<usize, DeviceError>> {
        let (_, slot) = slots_of(row);
        // An anchor that cannot even be asked takes nothing.
        let limit =
            device.report(ZoneIdx(self.zone)).map_or(0, |report| report.capacity.min(ANCHOR_BYTES_MAX));
        if self.offset == 0 || self.offset + (UBERBLOCK_COPIES * slot) as u64 > limit {
            return None;
        }
        let uber = Uberblock { turn: self.turn, ..*uber };
        let raw = uber.encode(&label.carried_by(row, self.turn), self.zone, self.offset, slot);
        let written = device.write(ZoneIdx(self.zone), self.offset, &raw);
        Some(written.map(|()| {
            self.offset += raw.len() as u64;
            raw.len()
        }))
    }

    /// Appends an uberblock, switching anchors when this one is full or cannot be written. It is durable after a flush.
    /// Returns the bytes that were written.
    fn write(
        &mut self,
        device: &dyn Device,
        (label, row): (&Label, &DeviceRow),
        uber: &Uberblock,
    ) -> Result<usize, DeviceError> {
        let (unit, slot) = slots_of(row);
        match self.append(device, (label, row), uber) {
            Some(Ok(bytes)) => return Ok(bytes),
            Some(Err(error)) => {
                let name = &device.info().name;
                log::warn!("{name}: uberblock of group {}: {error}; switching anchors", uber.txg);
            }
            None => {}
        }
        // Before the other one is opened, or a drive would count both as active. It stays readable.
        if device.info().hardware_pointers
            && self.turn > 0
            && let Err(error) = device.finish(ZoneIdx(self.zone))
        {
            log::warn!("{}: {error}", device.info().name);
        }
        let other = 1 - self.zone;
        device.reset(ZoneIdx(other))?;
        // This turn is over, whatever becomes of the next one: what is appended to it no import would believe.
        self.offset = 0;
        // Whether the write succeeds or not: a part of it may be there, and must not be taken for a later filling.
        self.turn += 1;
        let label = label.carried_by(row, self.turn);
        let uber = Uberblock { turn: self.turn, ..*uber };
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
    pub fn new(devices: Arc<Devices>, counters: Arc<Counters>, anchors: Vec<Anchor>) -> Anchors {
        Anchors { devices, counters, anchors }
    }
}

impl CommitPoint for Anchors {
    /// One that takes none is named by status, and does not stop the others.
    fn append(&mut self, label: &Label, uber: &Uberblock) -> Result<(), PoolError> {
        let mut last_error = None;
        let mut taken = 0;
        for anchor in &mut self.anchors {
            let Some(row) = label.member(anchor.device) else { continue };
            let device = self.devices.get(anchor.device)?;
            match anchor.write(device.as_ref(), (label, row), uber) {
                Ok(bytes) => {
                    taken += 1;
                    self.counters.spend_on_anchors(bytes);
                    anchor.trouble = None;
                }
                Err(error) => {
                    if anchor.trouble.is_none() {
                        log::error!("{}: it takes no uberblock: {error}; the others do", device.info().name);
                    }
                    anchor.trouble = Some(error.to_string());
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
                Some(Ok(bytes)) => self.counters.spend_on_anchors(bytes),
                Some(Err(error)) => {
                    log::warn!("{}: {error}; group {} is not told of", device.info().name, uber.txg);
                }
                None => {}
            }
        }
    }

    /// To both anchors of every device: those in use have the old label, so it goes on to the others, twice.
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

    fn join(
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

    fn leave(&mut self, index: DeviceIdx) {
        self.anchors.retain(|anchor| anchor.device != index);
    }

    fn reset(&self, device: &dyn Device) -> Result<(), PoolError> {
        for anchor in (0..ANCHORS).map(ZoneIdx) {
            device.reset(anchor)?;
        }
        if !device.info().hardware_pointers {
            overwrite_labels(device)?;
        }
        Ok(device.flush()?)
    }

    fn devices(&self) -> Vec<(DeviceIdx, Option<String>)> {
        self.anchors.iter().map(|anchor| (anchor.device, anchor.trouble.clone())).collect()
    }
}

/// The write unit, and the bytes of an uberblock's slot. By the label's unit: on a device with smaller ones everything stands where it
/// would on the first.
fn slots_of(row: &DeviceRow) -> (usize, usize) {
    let unit = row.write_unit as usize;
    (unit, unit.max(SLOT_BYTES_MIN))
}

/// An anchor as an import finds it.
pub struct AnchorRead {
    /// Which of the devices that were given.
    pub given: usize,
    pub anchor: u32,
    pub label: Label,
    /// Whether that stands there; if not it is the other anchor's, by which these uberblocks were judged.
    pub has_label: bool,
    /// Valid uberblocks with their offsets, in bytes.
    pub ubers: Vec<(u64, Uberblock)>,
}

/// An uberblock that could be imported.
#[derive(Clone, Copy)]
pub struct Candidate<'a> {
    pub read: &'a AnchorRead,
    pub uber: Uberblock,
}

/// The uberblocks that are valid in an anchor, with their label. `gap` is set where the device did not give all of it.
pub fn read_anchor(
    device: &dyn Device,
    anchor: u32,
    gap: &mut bool,
) -> Option<(Label, Vec<(u64, Uberblock)>)> {
    let raw = read_raw(device, anchor, gap)?;
    let label = label_of(device, anchor, &raw)?;
    let slots = slots(&raw);
    let ubers =
        slots.filter_map(|(at, raw)| Some((at, Uberblock::parse(raw, &label, anchor, at)?))).collect();
    Some((label, ubers))
}

/// The label of an anchor that was read, from one of its copies; where they differ that of the later turn.
fn label_of(device: &dyn Device, anchor: u32, raw: &[u8]) -> Option<Label> {
    let at = format!("{} anchor {anchor}", device.info().name);
    let copy = |from: u64| Label::parse(raw.get(usize::try_from(from).ok()?..)?, anchor, &at).ok();
    // Where the second one is depends on the unit of the device that the pool was made on.
    let units =
        (0..).map(|shift| device.info().write_unit << shift).take_while(|unit| *unit <= WRITE_UNIT_MAX);
    let first = copy(0);
    let second = units.filter_map(|unit| copy(second_label(unit))).max_by_key(|label| label.turn);
    if first.is_none() && second.is_some() {
        log::warn!("{at}: its label is damaged; the second copy tells what it was");
    }
    let turn = first.as_ref().map(|first| first.turn);
    second.filter(|second| turn.is_none_or(|turn| turn < second.turn)).or(first)
}

/// Where uberblocks may stand in an anchor that was read: whatever the write unit was by which they were written.
fn slots(raw: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let behind = raw.get(LABEL_BYTES as usize..).unwrap_or(&[]);
    (LABEL_BYTES..).step_by(SLOT_BYTES_MIN).zip(behind.chunks_exact(SLOT_BYTES_MIN))
}

/// The uberblocks of an anchor without a label of its own, by that of the device's other anchor: those of a later turn are newer than what
/// that one tells. Each says itself under which turn it was written, and its seal holds for no other. `gap` is set where one tells of a
/// newer group under another label, because nobody knows what that said.
fn read_orphans(device: &dyn Device, anchor: u32, other: &AnchorRead, gap: &mut bool) -> Option<AnchorRead> {
    let raw = read_raw(device, anchor, gap)?;
    let mut label = other.label.clone();
    let mut found: Vec<(u64, Uberblock)> = Vec::new();
    for (at, raw) in slots(&raw) {
        let Some(turn) = Uberblock::turn_of(raw).filter(|turn| *turn > other.label.turn) else { continue };
        label.turn = turn;
        found.extend(Uberblock::parse(raw, &label, anchor, at).map(|uber| (at, uber)));
    }
    label.turn = found.iter().map(|(_, uber)| uber.turn).max()?;
    found.retain(|(_, uber)| uber.turn == label.turn);
    let newest = other.ubers.iter().map(|(_, uber)| (uber.incarnation, uber.txg)).max();
    let is_ours = |uber: &Uberblock| uber.generation == label.generation;
    *gap |= found.iter().any(|(_, uber)| !is_ours(uber) && Some((uber.incarnation, uber.txg)) > newest);
    found.retain(|(_, uber)| is_ours(uber));
    log::warn!(
        "{}: the label of anchor {anchor} is damaged; the other one tells of its {} uberblocks",
        device.info().name,
        found.len()
    );
    Some(AnchorRead { anchor, label, has_label: false, ubers: found, ..*other })
}

/// The bytes of an anchor that may be used and were written. `gap` is set where the device did not give all of them.
fn read_raw(device: &dyn Device, anchor: u32, gap: &mut bool) -> Option<Vec<u8>> {
    let info = device.info();
    let report = device.report(ZoneIdx(anchor)).ok().filter(|report| report.state != ZoneState::Offline);
    *gap |= report.is_none();
    let report = report?;
    let mut limit = report.capacity.min(ANCHOR_BYTES_MAX);
    // That of a zone that can only be read means nothing, and a conventional zone of a drive has none.
    if info.hardware_pointers && !matches!(report.state, ZoneState::ReadOnly | ZoneState::Unknown) {
        limit = limit.min(report.pointer);
    }
    let unit = u64::from(info.write_unit);
    let first = LABEL_BYTES.next_multiple_of(unit);
    if limit < first {
        return None;
    }
    let mut raw = vec![0; usize::try_from(limit).ok()?];
    let slot = unit.max(SLOT_BYTES_MIN as u64);
    // What cannot be read must not hide the uberblocks around it: in pieces, and those that fail slot by slot.
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

/// Overwrites the labels of a device that is not zoned, whose resets need not have changed a byte: nobody takes it for one of a pool any
/// more. Its anchors are empty; durable after a flush.
pub fn overwrite_labels(device: &dyn Device) -> Result<(), DeviceError> {
    for anchor in (0..ANCHORS).map(ZoneIdx) {
        // Wherever the second one is.
        let bytes = labels_end(WRITE_UNIT_MAX).min(device.report(anchor)?.capacity);
        device.write(anchor, 0, &vec![0; usize::try_from(bytes).expect("a write fits memory")])?;
    }
    Ok(())
}

/// Which of two uberblocks is newer. One group stands under two labels when the label changed, and twice when older ones were given up.
fn age(uber: &Uberblock) -> (u64, Txg, bool, u64, Txg) {
    (uber.incarnation, uber.txg, uber.clean, uber.generation, uber.oldest)
}

/// Everything that the anchors of the given devices tell.
pub struct Roots {
    anchors: Vec<AnchorRead>,
    /// Which of the devices that were given did not give all of an anchor, and which.
    gaps: Vec<(usize, u32)>,
    /// Those that gave both whole, and take more.
    sound: Vec<usize>,
}

impl Roots {
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

    /// The newest group that some of the given devices tell of.
    pub fn newest_of(&self, which: impl Fn(usize) -> bool) -> Option<(u64, Txg)> {
        let reads = self.anchors.iter().filter(|read| which(read.given));
        reads.flat_map(|read| &read.ubers).map(|(_, uber)| (uber.incarnation, uber.txg)).max()
    }

    /// An anchor of a member in which newer uberblocks may stand than can be seen: one that cannot be read, where no other member surely
    /// has the newest. One whose anchors take nothing more may have been left behind; one that was is behind what can be seen elsewhere.
    pub fn hidden(&self, is_member: impl Fn(usize) -> bool) -> Option<(usize, u32)> {
        let newest = self.newest_of(&is_member);
        let is_newest = |given: usize| self.newest_of(|other| other == given) == newest;
        let knows = self.sound.iter().any(|given| is_member(*given) && is_newest(*given));
        self.gaps.iter().copied().find(|(given, _)| is_member(*given) && !knows)
    }

    pub fn labels(&self) -> impl Iterator<Item = (usize, &Label)> {
        self.anchors.iter().map(|read| (read.given, &read.label))
    }

    /// What can be imported, newest first.
    pub fn candidates(&self) -> Vec<Candidate<'_>> {
        let all = self
            .anchors
            .iter()
            .flat_map(|read| read.ubers.iter().map(move |(_, uber)| Candidate { read, uber: *uber }));
        let mut candidates: Vec<Candidate<'_>> = all.collect();
        // The youngest incarnation first: it begins with the group that it imported, and what older ones wrote after that group is a
        // branch that was given up.
        candidates.sort_by_key(|candidate| Reverse(age(&candidate.uber)));
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

    /// The id by which a given device is known: that in its newest label.
    pub fn id_of(&self, given: usize) -> Option<u64> {
        let own = self.anchors.iter().filter(|read| read.given == given);
        own.max_by_key(|read| read.label.turn).map(|read| read.label.device)
    }

    /// Where a device's next uberblock goes after an import of `chosen`: to the anchor whose label is damaged, for without the other's
    /// nothing could be read; or to the one that does not hold the newest that is left of what this device knows. And the generation of the
    /// label in the one that does.
    pub fn anchor_of(&self, given: usize, device: DeviceIdx, chosen: &Uberblock) -> (Anchor, u64) {
        let own = || self.anchors.iter().filter(|read| read.given == given);
        let newest = |read: &&AnchorRead| {
            let ages = read.ubers.iter().map(|(_, uber)| age(uber)).filter(|at| *at <= age(chosen));
            (read.has_label, ages.max(), read.label.turn)
        };
        let keep = own().max_by_key(newest);
        let turn = own().map(|read| read.label.turn).max().unwrap_or(0);
        let zone = keep.map_or(1, |read| read.anchor);
        let anchor = Anchor { device, zone, offset: 0, turn, trouble: None };
        (anchor, keep.map_or(0, |read| read.label.generation))
    }
}

/// The devices of a pool among those that were given, by device index.
///
/// # Errors
/// `Refused`, with the name of what is missing, given twice, or of another pool.
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
            "attach what is missing, or say where to look for it",
        ));
    }
    for (at, device) in given.iter().enumerate().filter(|(at, _)| !used[*at]) {
        let what = match roots.id_of(at) {
            Some(_) => "it is no device of this pool any more, or never became one",
            None => "no label can be read on it",
        };
        log::warn!("{pool}: {} is left alone: {what}", device.info().name);
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
        // Where zones in use lie the label does not say, and often it is not at the end.
        Some(bytes) if is_short_file && row.zone_count > info.zone_count => format!(
            "the image was cut short: restore it whole; or give it its size back (truncate -s {bytes} {}), and let \
             `terrane check` tell whether something lay in what was cut off",
            info.name
        ),
        _ => "the image was cut short or lies on another kind of device; restore it whole".to_owned(),
    };
    Err(PoolError::refused(
        pool,
        format_args!("{} zones of {} bytes", row.zone_count, row.zone_size),
        format_args!("{} zones of {} bytes on {}", info.zone_count, info.zone_size, info.name),
        remedy,
    ))
}
