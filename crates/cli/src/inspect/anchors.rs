//! Labels and uberblocks, as they lie in the anchors.

use crate::clock;
use serde::Serialize;
use std::sync::Arc;
use terrane_device::Device;
use terrane_format::boot_ptr::BootPtr;
use terrane_format::features::Features;
use terrane_format::label::Label;
use terrane_format::uberblock::Uberblock;
use terrane_pool::inspect;

/// Labels of the anchors of all devices, and all valid uberblocks, newest first.
#[derive(Serialize)]
pub struct AnchorContents {
    labels: Vec<LabelRow>,
    uberblocks: Vec<UberblockRow>,
}

#[derive(Serialize)]
struct LabelRow {
    device: String,
    anchor: u32,
    pool: String,
    pool_id: String,
    identity: Option<String>,
    device_id: String,
    generation: u64,
    anchor_generation: u64,
    zone_size: u64,
    zone_count: u32,
    write_unit: u32,
    max_block: u32,
    sections: u32,
    devices: usize,
    incompatible_features: Vec<String>,
    read_only_compatible_features: Vec<String>,
    compatible_features: Vec<String>,
}

impl LabelRow {
    fn of(device: &str, anchor: u32, label: &Label) -> LabelRow {
        let Features { incompatible, read_only_compatible, compatible } = label.features.clone();
        LabelRow {
            device: device.to_owned(),
            anchor,
            pool: label.name.clone(),
            pool_id: format!("{:016x}", label.pool),
            identity: label.identity.map(|id| format!("{id:016x}")),
            device_id: format!("{:016x}", label.device),
            generation: label.generation,
            anchor_generation: label.anchor_generation,
            zone_size: label.zone_size,
            zone_count: label.zone_count,
            write_unit: label.write_unit,
            max_block: label.max_block,
            sections: label.sections,
            devices: label.members().count(),
            incompatible_features: incompatible,
            read_only_compatible_features: read_only_compatible,
            compatible_features: compatible,
        }
    }
}

#[derive(Serialize)]
struct UberblockRow {
    device: String,
    anchor: u32,
    offset: u64,
    txg: u64,
    oldest: u64,
    incarnation: u64,
    anchor_generation: u64,
    clean: bool,
    time: String,
    lease_seq: u64,
    lease_txg: u64,
    host: String,
    record: String,
    record_bytes: u32,
}

impl UberblockRow {
    fn of(device: &str, anchor: u32, offset: u64, uber: &Uberblock) -> UberblockRow {
        UberblockRow {
            device: device.to_owned(),
            anchor,
            offset,
            txg: uber.txg.0,
            oldest: uber.oldest.0,
            incarnation: uber.incarnation,
            anchor_generation: uber.anchor_generation,
            clean: uber.clean,
            time: clock::utc((uber.time_ns / 1_000_000_000) as i64),
            lease_seq: uber.lease_seq,
            lease_txg: uber.lease_txg,
            host: format!("{:016x}", uber.host),
            record: boot_text(&uber.record),
            record_bytes: uber.record.len,
        }
    }
}

pub fn uberblocks(devices: &[Arc<dyn Device>]) -> AnchorContents {
    let of_device = |device: &Arc<dyn Device>| {
        let name = device.info().name.clone();
        inspect::anchors(device.as_ref()).into_iter().map(move |anchor| (name.clone(), anchor))
    };
    let anchors: Vec<_> = devices.iter().flat_map(of_device).collect();
    let labels = anchors.iter().map(|(name, (anchor, label, _))| LabelRow::of(name, *anchor, label));
    let mut rows: Vec<_> = anchors
        .iter()
        .flat_map(|(name, (anchor, _, ubers))| {
            ubers.iter().map(move |(offset, uber)| (name, *anchor, *offset, uber))
        })
        .collect();
    rows.sort_by_key(|(name, anchor, offset, uber)| {
        std::cmp::Reverse((uber.txg, uber.incarnation, uber.clean, *name, *anchor, *offset))
    });
    let ubers =
        rows.into_iter().map(|(name, anchor, offset, uber)| UberblockRow::of(name, anchor, offset, uber));
    AnchorContents { labels: labels.collect(), uberblocks: ubers.collect() }
}

/// The one that an import takes: of the youngest incarnation, because what older ones wrote after it began was given up.
pub fn newest_uberblock(devices: &[Arc<dyn Device>]) -> Option<Uberblock> {
    let anchors = devices.iter().flat_map(|device| inspect::anchors(device.as_ref()));
    let ubers = anchors.flat_map(|(_, _, ubers)| ubers).map(|(_, uber)| uber);
    ubers.max_by_key(|uber| (uber.incarnation, uber.txg, uber.clean))
}

fn boot_text(ptr: &BootPtr) -> String {
    let places: Vec<String> =
        ptr.copies().map(|place| format!("{}:{}:{:#x}", place.device, place.zone, place.offset)).collect();
    places.join(" ")
}
