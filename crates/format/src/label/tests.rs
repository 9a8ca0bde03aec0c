//! Labels and uberblocks come back whole, or not at all.

use super::*;
use crate::boot_ptr::BootPtr;
use crate::features::FEATURES;
use crate::seal::{Seed, seal};
use crate::uberblock::{Uberblock, UberblockPhys};
use terrane_wire::Txg;

fn row(device: u64) -> DeviceRow {
    DeviceRow {
        device,
        zone_size: 1 << 20,
        zone_count: 64,
        write_unit: 4096,
        role: Role::Data,
        state: DeviceState::Normal,
        name: String::new(),
    }
}

fn label() -> Label {
    Label {
        pool: 0x1234,
        identity: None,
        name: "tank".into(),
        device: 99,
        generation: 3,
        anchor_generation: 8,
        zone_size: 1 << 20,
        zone_count: 64,
        write_unit: 4096,
        max_block: 256 << 10,
        sections: 4,
        features: Features { incompatible: vec!["org.example:x".into()], ..Features::default() },
        devices: vec![Some(row(99))],
        caches: Vec::new(),
        log_devices: Vec::new(),
    }
}

#[test]
fn a_copy_has_an_id_of_its_own_where_the_label_has_the_feature() {
    let mut label = Label { identity: Some(7), ..label() };
    let parsed = Label::parse(&label.encode(0), 0, "here").unwrap();
    assert_eq!((parsed.identity, parsed.id()), (None, 0x1234));
    label.features.enable(Feature::Identity);
    let parsed = Label::parse(&label.encode(1), 1, "here").unwrap();
    assert_eq!((parsed.identity, parsed.id(), parsed.pool), (Some(7), 7, 0x1234));
    assert_eq!(parsed, label);
}

#[test]
fn cache_devices_are_named_where_the_label_has_the_feature() {
    let row = |cache| CacheRow { cache, zone_size: 1 << 26, name: format!("/dev/fast{cache}") };
    let mut label = Label { caches: vec![row(5), row(6)], ..label() };
    assert_eq!(Label::parse(&label.encode(0), 0, "here").unwrap().caches, []);
    label.features.enable(Feature::Caches);
    assert_eq!(Label::parse(&label.encode(0), 0, "here").unwrap(), label);
    label.caches = (0..=CACHES_MAX as u64).map(row).collect();
    assert!(Label::parse(&label.encode(0), 0, "here").is_err(), "too many");
}

#[test]
fn log_devices_are_named_from_the_moment_when_the_feature_is_enabled() {
    let row = |device| LogDeviceRow { device, zone_size: 1 << 26, name: format!("/dev/fast{device}") };
    let mut label = Label { log_devices: vec![row(5), row(6)], ..label() };
    let read = |label: &Label| Label::parse(&label.encode(0), 0, "here");
    assert_eq!(read(&label).unwrap().log_devices, []);
    for state in [FeatureState::Enabled, FeatureState::Active] {
        label.features.set_state(Feature::LogDevices, state);
        assert_eq!(read(&label).unwrap(), label);
    }
    label.features.enable(Feature::Caches);
    assert_eq!(read(&label).unwrap(), label, "behind the caches");
    label.log_devices = (0..=LOG_DEVICES_MAX as u64).map(row).collect();
    assert!(read(&label).is_err(), "too many");
    label.log_devices = vec![LogDeviceRow { name: "x".repeat(DEVICE_NAME_BYTES_MAX + 1), ..row(5) }];
    assert!(read(&label).is_err(), "too long");
}

#[test]
fn labels_come_back_and_belong_to_one_anchor() {
    let raw = label().encode(1);
    assert_eq!(Label::parse(&raw, 1, "here").unwrap(), label());
    assert!(Label::parse(&raw, 0, "here").is_err());
    assert!(Label::parse(&raw[..50], 1, "here").is_err());
}

/// Compares the bytes of a label, without the zero padding.
fn golden(name: &str, features: Features) {
    let label = Label { features, ..label() };
    let mut raw = label.encode(0);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let mut golden = std::fs::read(&path).unwrap();
    golden.resize(LABEL_BYTES as usize, 0);
    assert_eq!(Label::parse(&golden, 0, name).unwrap(), label);
    assert!(golden == raw, "{name}: another label would be written");
    raw[LabelHead::SIZE] ^= 1;
    assert!(golden != raw);
}

#[test]
fn labels_match_the_golden_files() {
    golden("label_of_the_first_version", Features::default());
    let mut features = Features::default();
    features.set_state(crate::Feature::TinyZap, crate::features::FeatureState::Active);
    golden("label_with_tinyzap", features);
}

/// Three devices: one removed, one special and leaving.
fn several() -> Label {
    let mut features = Features::default();
    features.enable(Feature::Devices);
    let special = DeviceRow {
        zone_size: 4 << 20,
        role: Role::Special,
        state: DeviceState::Leaving,
        name: "/dev/second".into(),
        ..row(7)
    };
    Label { features, devices: vec![Some(row(99)), None, Some(special)], ..label() }
}

#[test]
fn labels_of_several_devices_come_back_from_each_of_them() {
    let label = several();
    for (device, row) in label.members() {
        let carried = label.for_device(row, 5);
        let back = Label::parse(&carried.encode(1), 1, "here").unwrap();
        assert_eq!(back, carried, "{device}");
        assert_eq!((back.anchor_generation, back.zone_size), (5, row.zone_size));
    }
    assert!(label.member(DeviceIdx(1)).is_none() && label.member(DeviceIdx(3)).is_none());
}

#[test]
fn invalid_device_tables_are_refused() {
    type Mutation = (&'static str, fn(&mut Label));
    let mutations: [Mutation; 8] = [
        ("none", |label| label.devices.clear()),
        ("all gone", |label| label.devices = vec![None, None]),
        ("too many", |label| label.devices.resize(DEVICES_MAX + 1, None)),
        ("twice", |label| label.devices.push(label.devices[2].clone())),
        ("not its own", |label| label.device = 98),
        ("of another size", |label| label.zone_count += 1),
        ("no zones", |label| label.devices[2].as_mut().unwrap().zone_size = 0),
        ("several without the feature", |label| label.features = Features::default()),
    ];
    assert!(Label::parse(&several().encode(0), 0, "here").is_ok());
    for (what, mutate) in mutations {
        let mut label = several();
        mutate(&mut label);
        assert!(Label::parse(&label.encode(0), 0, "here").is_err(), "{what}");
    }
}

#[test]
fn the_longest_table_fits_and_names_keep_their_end() {
    let mut label = several();
    label.name = "n".repeat(255);
    label.devices = (0..DEVICES_MAX as u64).map(|id| Some(row(99 + id))).collect();
    let long = format!("/dev/{}end", "\u{e4}".repeat(300));
    label.devices.iter_mut().flatten().for_each(|row| row.set_name(&long));
    let back = Label::parse(&label.encode(0), 0, "here").unwrap();
    assert_eq!(back, label);
    assert!(back.members().all(|(_, row)| row.name.ends_with("end") && row.name.len() > 120));
}

#[test]
fn no_bit_of_a_label_may_flip() {
    let raw = label().encode(0);
    let body = LabelHead::decode(&raw).unwrap().body_bytes as usize + LabelHead::SIZE;
    for bit in 0..body * 8 {
        let mut bad = raw.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Label::parse(&bad, 0, "here").is_err(), "bit {bit}");
    }
}

fn uberblock() -> Uberblock {
    Uberblock {
        clean: true,
        generation: 3,
        anchor_generation: 8,
        incarnation: 2,
        txg: Txg(17),
        oldest: Txg(14),
        time_ns: 1,
        lease_seq: 100,
        lease_txg: 200,
        record: BootPtr::NONE,
        host: 77,
        has_unknown_features: false,
    }
}

#[test]
fn an_uberblock_is_two_slots_of_one_anchor_generation() {
    let label = label();
    let uber = uberblock();
    let raw = uber.encode(&label, 0, 16384, 4096);
    assert_eq!(raw.len(), 8192);
    assert_eq!(Uberblock::parse(&raw, &label, 0, 16384), Some(uber));
    assert_eq!(Uberblock::parse(&raw[4096..], &label, 0, 20480), Some(uber));
    assert_eq!(Uberblock::parse(&raw, &label, 1, 16384), None, "of another anchor");
    let next_filling = Label { anchor_generation: 9, ..label.clone() };
    assert_eq!(Uberblock::parse(&raw, &next_filling, 0, 16384), None, "of an earlier anchor generation");
    for bit in 0..UberblockPhys::SIZE * 8 {
        let mut bad = raw.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Uberblock::parse(&bad, &label, 0, 16384), None, "bit {bit}");
    }
}

/// A later version uses these words for changes outside of the txg's record. A version that does not know them must refuse.
#[test]
fn uberblocks_with_a_log_or_stale_devices_are_marked_unknown() {
    let label = label();
    let uber = uberblock();
    for word in [208, 216] {
        let mut raw = uber.encode(&label, 0, 16384, 4096);
        raw[word] = 1;
        reseal(&mut raw, &label);
        let read = Uberblock::parse(&raw, &label, 0, 16384);
        assert_eq!(read, Some(Uberblock { has_unknown_features: true, ..uber }));
    }
}

/// Makes the seal of the uberblock at 16384 of anchor 0 right again.
fn reseal(raw: &mut [u8], label: &Label) {
    let seed = Seed {
        pool: label.pool,
        scope: label.device << 1,
        offset: 16384,
        incarnation: label.anchor_generation,
    };
    let made = seal(seed, &[&raw[..UberblockPhys::SIZE - 16]]);
    raw[UberblockPhys::SIZE - 16..UberblockPhys::SIZE].copy_from_slice(&made);
}

#[test]
fn sealed_uberblocks_whose_counters_are_out_of_range_are_refused() {
    for (offset, bits) in [(24, 62), (32, 62), (40, 62), (48, 62), (56, 62), (80, 62), (72, 36)] {
        for (value, is_valid) in [((1 << bits) - 1, true), (1 << bits, false), (u64::MAX, false)] {
            let mut label = label();
            if offset == 32 {
                label.anchor_generation = value;
            }
            let mut raw = uberblock().encode(&label, 0, 16384, 4096);
            raw[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
            if offset != 32 {
                raw[32..40].copy_from_slice(&label.anchor_generation.to_le_bytes());
            }
            reseal(&mut raw, &label);
            let parsed = Uberblock::parse(&raw, &label, 0, 16384);
            assert_eq!(parsed.is_some(), is_valid, "offset {offset}, value {value:#x}");
        }
    }
}

/// Whatever the rest of a label holds, changes to it fit.
#[test]
fn labels_in_which_not_everything_would_fit_are_refused() {
    let name = |n: usize| format!("org.example:{n:080}");
    let with = |count: usize| {
        let mut label = several();
        label.features.compatible = (0..count).map(name).collect();
        label
    };
    let read = |label: &Label| Label::parse(&label.encode(0), 0, "here");
    let mut most = with(32);
    assert_eq!(read(&most).unwrap(), most);
    let text = read(&with(36)).unwrap_err().to_string();
    assert!(text.contains("features should be at most 3072"), "{text}");
    // The largest possible content beside them.
    FEATURES.iter().for_each(|row| _ = most.features.set_state(row.feature, FeatureState::Active));
    most.name = "n".repeat(255);
    most.devices = (0..DEVICES_MAX as u64).map(|id| Some(row(99 + id))).collect();
    most.caches = (0..CACHES_MAX as u64)
        .map(|cache| CacheRow { cache: 1 + cache, zone_size: 1 << 26, name: String::new() })
        .collect();
    most.log_devices = (0..LOG_DEVICES_MAX as u64)
        .map(|device| LogDeviceRow { device: 1 + device, zone_size: 1 << 26, name: String::new() })
        .collect();
    let long = "x".repeat(300);
    most.devices.iter_mut().flatten().for_each(|row| row.set_name(&long));
    most.caches.iter_mut().for_each(|row| row.set_name(&long));
    most.log_devices.iter_mut().for_each(|row| row.set_name(&long));
    most.encode(0);
    let known: usize = FEATURES.iter().map(|row| row.name.len() + 2).sum();
    assert!(known <= 512, "{known} bytes of names of features");

    let mut long_name = several();
    long_name.devices[0].as_mut().unwrap().name = "x".repeat(DEVICE_NAME_BYTES_MAX + 1);
    let text = read(&long_name).unwrap_err().to_string();
    assert!(text.contains("name should be at most 128"), "{text}");
}

#[test]
fn a_label_that_says_it_is_longer_than_its_place_is_refused() {
    let of = |body: usize| {
        let mut raw = label().encode(0);
        raw.resize(64 << 10, 0);
        raw[12..16].copy_from_slice(&(body as u32).to_le_bytes());
        let made = seal(label_seed(0x1234, 99, 0, 8), &[&raw[..80], &raw[LabelHead::SIZE..][..body]]);
        raw[80..96].copy_from_slice(&made);
        Label::parse(&raw, 0, "here")
    };
    let most = LABEL_BYTES as usize - LabelHead::SIZE;
    assert_eq!(of(most).unwrap(), label(), "what lies behind the body is ignored");
    let text = of(most + 1).unwrap_err().to_string();
    assert!(text.contains("body should be at most 16288, found 16289"), "{text}");
}
