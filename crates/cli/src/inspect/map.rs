//! Every zone of a pool in its place, whatever it holds: what `terrane zones` draws.
//!
//! The pool's tables know zones that are in use; the others are empty, and the first of each device are the anchors.

use crate::live::Live;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use terrane_pool::inspect::ZoneView;
use terrane_pool::label::ANCHORS;
use terrane_pool::zones::Phase;

pub fn zone_map(live: &Live) -> Value {
    let label = live.pool.label();
    let used: BTreeMap<_, ZoneView> = live
        .pool
        .zones()
        .into_iter()
        .filter(|zone| zone.phase != Phase::Gone)
        .map(|zone| ((zone.home.device.0, zone.home.zone.0), zone))
        .collect();
    let row = |index: u32| {
        let state = if index < ANCHORS { "anchor" } else { "empty" };
        match used.get(&(0, index)) {
            Some(zone) => used_zone(zone),
            None => json!({
                "device": 0,
                "zone": index,
                "state": state,
                "class": null,
                "seq": null,
                "capacity": label.zone_size,
                "claimed": 0,
                "live": 0,
                "opened": null,
            }),
        }
    };
    json!({
        "name": label.name,
        "zone_size": label.zone_size,
        "zones": (0..label.zone_count).map(row).collect::<Vec<_>>(),
    })
}

fn used_zone(zone: &ZoneView) -> Value {
    let state = match zone.phase {
        Phase::Open => "open",
        Phase::Full => "full",
        Phase::Emptied(_) | Phase::Gone => "waiting",
        Phase::Suspect => "suspect",
    };
    json!({
        "device": zone.home.device.0,
        "zone": zone.home.zone.0,
        "state": state,
        "class": zone.class.name(),
        "seq": zone.seq.0,
        "capacity": zone.capacity,
        "claimed": zone.claimed,
        "live": zone.live,
        "opened": zone.opened.0,
    })
}
