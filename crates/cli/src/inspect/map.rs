//! Every zone of a pool at its position: the data for `terrane zones`.
//!
//! The pool's tables list zones in use; the others are empty, and the first of each device are the anchors.
//! The device knows whether a zone can still be written.

use crate::open_pool::OpenPool;
use serde::Serialize;
use std::collections::BTreeMap;
use terrane_device::ZoneState;
use terrane_format::label::ANCHORS;
use terrane_format::rows::Phase;
use terrane_pool::inspect::ZoneView;
use terrane_wire::ZoneSeq;

#[derive(Serialize)]
pub struct ZoneMap {
    name: String,
    zone_size: u64,
    /// By index.
    devices: Vec<Option<String>>,
    zones: Vec<ZoneRow>,
}

/// A zone at its position; sizes are bytes.
#[derive(Serialize)]
struct ZoneRow {
    device: u16,
    zone: u32,
    state: &'static str,
    /// Of a zone in use.
    class: Option<&'static str>,
    seq: Option<u64>,
    opened: Option<u64>,
    capacity: u64,
    claimed: u64,
    live: u64,
    /// Live bytes that GC moved here. The class of a zone says only what its first block was.
    moved: u64,
    /// Why it can no longer be written.
    condition: Option<&'static str>,
}

pub fn zone_map(open_pool: &OpenPool) -> ZoneMap {
    let label = open_pool.pool.label();
    let all = open_pool.pool.zones();
    let moved = moved_bytes(&all);
    let used: BTreeMap<_, ZoneView> = all
        .into_iter()
        .filter(|zone| zone.phase != Phase::Reclaimed)
        .map(|zone| ((zone.home.device.0, zone.home.zone.0), zone))
        .collect();
    let (mut devices, mut zones) = (Vec::new(), Vec::new());
    for device in open_pool.pool.devices() {
        let index = usize::from(device.index.0);
        devices.resize(devices.len().max(index + 1), None);
        devices[index] = Some(device.name);
        let given_up: BTreeMap<u32, ZoneState> =
            device.unwritable_zones.iter().map(|(zone, state)| (zone.0, *state)).collect();
        for zone in 0..device.zone_count {
            let unused = unused_zone(device.index.0, zone, device.zone_size);
            let row = match used.get(&(device.index.0, zone)) {
                Some(used) => used_zone(used, moved.get(&used.seq).copied().unwrap_or(0), unused),
                None => unused,
            };
            let condition = given_up.get(&zone).map(|state| match state {
                ZoneState::ReadOnly => "read-only",
                _ => "offline",
            });
            zones.push(ZoneRow { condition, ..row });
        }
    }
    ZoneMap { name: label.name, zone_size: label.zone_size, devices, zones }
}

fn unused_zone(device: u16, zone: u32, capacity: u64) -> ZoneRow {
    ZoneRow {
        device,
        zone,
        state: if zone < ANCHORS { "anchor" } else { "empty" },
        class: None,
        seq: None,
        opened: None,
        capacity,
        claimed: 0,
        live: 0,
        moved: 0,
        condition: None,
    }
}

/// Live bytes that GC moved, by the zone in which they are now.
fn moved_bytes(zones: &[ZoneView]) -> BTreeMap<ZoneSeq, u64> {
    let mut moved = BTreeMap::new();
    for run in zones.iter().flat_map(|zone| &zone.runs) {
        *moved.entry(run.dest).or_default() += run.live();
    }
    moved
}

fn used_zone(zone: &ZoneView, moved: u64, unused: ZoneRow) -> ZoneRow {
    let state = match zone.phase {
        Phase::Open => "open",
        Phase::Full => "full",
        Phase::Emptied(_) | Phase::Reclaimed => "waiting",
        Phase::Suspect => "suspect",
    };
    ZoneRow {
        state,
        class: Some(zone.class.name()),
        seq: Some(zone.seq.0),
        opened: Some(zone.opened.0),
        capacity: zone.capacity,
        claimed: zone.claimed,
        live: zone.live,
        moved,
        ..unused
    }
}
