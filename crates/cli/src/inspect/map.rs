//! Every zone of a pool in its place, whatever it holds: what `terrane zones` draws.
//!
//! The pool's tables know zones that are in use; the others are empty, and the first of each device are the anchors. Whether a zone can
//! still be written its device knows.

use crate::live::Live;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use terrane_device::ZoneState;
use terrane_format::label::ANCHORS;
use terrane_format::rows::Phase;
use terrane_pool::inspect::ZoneView;

pub fn zone_map(live: &Live) -> Value {
    let label = live.pool.label();
    let used: BTreeMap<_, ZoneView> = live
        .pool
        .zones()
        .into_iter()
        .filter(|zone| zone.phase != Phase::Gone)
        .map(|zone| ((zone.home.device.0, zone.home.zone.0), zone))
        .collect();
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    for device in live.pool.devices() {
        let index = usize::from(device.index.0);
        names.resize(names.len().max(index + 1), Value::Null);
        names[index] = device.name.into();
        let given_up: BTreeMap<u32, ZoneState> =
            device.given_up.iter().map(|(zone, state)| (zone.0, *state)).collect();
        for zone in 0..device.zone_count {
            let row = match used.get(&(device.index.0, zone)) {
                Some(used) => used_zone(used),
                None => unused_zone(zone, device.zone_size),
            };
            rows.push(row.in_place(device.index.0, zone, given_up.get(&zone).copied()));
        }
    }
    json!({"name": label.name, "zone_size": label.zone_size, "devices": names, "zones": rows})
}

/// A row that does not know its place yet.
struct Row(Value);

impl Row {
    fn in_place(mut self, device: u16, zone: u32, given_up: Option<ZoneState>) -> Value {
        self.0["device"] = device.into();
        self.0["zone"] = zone.into();
        self.0["condition"] = match given_up {
            Some(ZoneState::ReadOnly) => "read-only".into(),
            Some(_) => "offline".into(),
            None => Value::Null,
        };
        self.0
    }
}

fn unused_zone(zone: u32, capacity: u64) -> Row {
    Row(json!({
        "state": if zone < ANCHORS { "anchor" } else { "empty" },
        "class": null,
        "seq": null,
        "capacity": capacity,
        "claimed": 0,
        "live": 0,
        "opened": null,
    }))
}

fn used_zone(zone: &ZoneView) -> Row {
    let state = match zone.phase {
        Phase::Open => "open",
        Phase::Full => "full",
        Phase::Emptied(_) | Phase::Gone => "waiting",
        Phase::Suspect => "suspect",
    };
    Row(json!({
        "state": state,
        "class": zone.class.name(),
        "seq": zone.seq.0,
        "capacity": zone.capacity,
        "claimed": zone.claimed,
        "live": zone.live,
        "opened": zone.opened.0,
    }))
}
