//! Pools of several devices: all devices in any order make the pool, and a missing one is named.

use crate::support;
use std::collections::BTreeMap;
use std::sync::Arc;
use support::joint::Joint;
use support::{create_on, import_from, options, verify, work};
use terrane_device::sim::Survival;
use terrane_device::{Device, DeviceError, DeviceInfo, Fault, SimConfig, SimDevice, ZoneReport, ZoneState};
use terrane_format::label::Role;
use terrane_format::{Feature, Owner};
use terrane_pool::{CreateOptions, Pool};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};
use terrane_wire::{Txg, ZoneIdx};

fn named(roles: &[Role]) -> CreateOptions {
    CreateOptions { roles: roles.to_vec(), ..CreateOptions::named("toy") }
}

fn refusal(outcome: Result<impl Sized, PoolError>) -> String {
    match outcome {
        Err(refused @ PoolError::Refused { .. }) => refused.to_string(),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// Number of zones in use on each device, by class.
fn spread(pool: &Pool) -> BTreeMap<(u16, &'static str), usize> {
    let mut spread = BTreeMap::new();
    for zone in pool.zones().iter().filter(|zone| zone.phase != terrane_format::rows::Phase::Reclaimed) {
        *spread.entry((zone.home.device.0, zone.class.name())).or_default() += 1;
    }
    spread
}

#[test]
fn devices_of_every_kind_share_the_load_and_come_back_in_any_order() {
    let joint = Joint::of(1, &[40, 48, 64]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), 1);
    assert!(pool.has(Feature::Devices));
    work(&pool, &toy, &SeededEnv::new(1), 40).unwrap();
    verify(&pool, &toy);
    let used: std::collections::BTreeSet<u16> = spread(&pool).keys().map(|(device, _)| *device).collect();
    assert_eq!(used.into_iter().collect::<Vec<_>>(), [0, 1, 2], "{:?}", spread(&pool));
    pool.export().unwrap();
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];
    for (round, order) in (0..).zip(orders) {
        let handles = order.iter().map(|index| joint.handle(*index)).collect();
        let (pool, toy) = import_from(handles, round).unwrap();
        verify(&pool, &toy);
        work(&pool, &toy, &SeededEnv::new(round), 12).unwrap();
        match round {
            // Also after a crash.
            1 => pool.abandon(),
            _ => pool.export().unwrap(),
        }
    }
}

#[test]
fn copies_of_metadata_lie_on_two_devices_and_special_ones_take_it() {
    let joint = Joint::of(2, &[64, 64, 48]);
    let (pool, toy) = create_on(joint.handles(), &named(&[Role::Data, Role::Data, Role::Special]), 2);
    work(&pool, &toy, &SeededEnv::new(2), 30).unwrap();
    verify(&pool, &toy);
    let spread = spread(&pool);
    let of = |device: u16| spread.iter().filter(move |((on, _), _)| *on == device);
    assert!(of(2).all(|((_, class), _)| class.starts_with("metadata")), "{spread:?}");
    assert!(of(2).count() > 0, "{spread:?}");
    for zone in pool.zones() {
        for (entry, state) in pool.zone_directory(zone.seq).unwrap() {
            if state != terrane_store::explain::EntryState::Live || entry.other_copies.is_empty() {
                continue;
            }
            let (_, home, _) = pool.locate(entry.other_copies[0], entry.psize).unwrap();
            assert_ne!(home.device, zone.home.device, "both copies of {entry:?}");
        }
    }
}

#[test]
fn a_special_device_takes_only_metadata_where_zones_are_few() {
    let joint = Joint::of(5, &[64, 40]);
    let (mut pool, mut toy) = create_on(joint.handles(), &named(&[Role::Data, Role::Special]), 5);
    for life in 0..3 {
        work(&pool, &toy, &SeededEnv::new(life), 40).unwrap();
        verify(&pool, &toy);
        let spread = spread(&pool);
        assert!(spread.keys().any(|(on, _)| *on == 1), "{spread:?}");
        for zone in pool.zones().iter().filter(|zone| zone.home.device.0 == 1) {
            for (entry, _) in pool.zone_directory(zone.seq).unwrap() {
                // Data blocks have one copy.
                let is_data =
                    matches!(entry.owner, Owner::Block { object, .. } if object < 400 && object % 3 != 0);
                assert!(!is_data, "life {life}: {entry:?} on the special device");
            }
        }
        pool.export().unwrap();
        (pool, toy) = import_from(joint.handles(), life).unwrap();
    }
}

#[test]
fn a_missing_device_is_named_and_nothing_is_touched() {
    let joint = Joint::of(3, &[40, 40, 40]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), 3);
    work(&pool, &toy, &SeededEnv::new(3), 10).unwrap();
    pool.export().unwrap();
    for gone in 0..3 {
        let rest = (0..3).filter(|index| *index != gone).map(|index| joint.handle(index)).collect();
        let text = refusal(import_from(rest, 3));
        assert!(
            text.contains(&format!("device {gone} (id ")) && text.contains(&format!("sim {gone}")),
            "{text}"
        );
    }
    let twice =
        vec![joint.handle(0), joint.handle(1), joint.handle(2), Arc::new(joint.devices[1].snapshot())];
    let text = refusal(import_from(twice, 3));
    assert!(text.contains("sim 1 and sim 1"), "{text}");
    let other = Joint::of(9, &[40]);
    let (pool, _) = create_on(other.handles(), &named(&[]), 9);
    pool.export().unwrap();
    let text =
        refusal(import_from(vec![joint.handle(0), joint.handle(1), joint.handle(2), other.handle(0)], 3));
    assert!(text.contains("devices of one pool"), "{text}");
    let (pool, toy) = import_from(joint.handles(), 4).unwrap();
    verify(&pool, &toy);
}

#[test]
fn devices_that_cannot_hold_a_pool_are_refused_before_any_is_touched() {
    let joint = Joint::of(4, &[40, 8]);
    let (pool, _) = create_on(vec![joint.handle(0)], &named(&[]), 4);
    pool.export().unwrap();
    let make = |devices: Vec<Arc<dyn Device>>, roles: &[Role]| {
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(4));
        Pool::create(devices, &named(roles), env, &options())
    };
    assert!(refusal(make(joint.handles(), &[])).contains("at least 32 zones"));
    assert!(refusal(make(vec![joint.handle(0)], &[Role::Special])).contains("not all of them special"));
    assert!(refusal(make(Vec::new(), &[])).contains("0 devices"));
    assert!(import_from(vec![joint.handle(0)], 4).is_ok(), "it was touched");
}

/// Makes an anchor unreadable.
fn rot(device: &SimDevice, anchor: u32) {
    let image = vec![0x5a; 32 << 10];
    device.reset(ZoneIdx(anchor)).unwrap();
    device.write(ZoneIdx(anchor), 0, &image).unwrap();
    device.flush().unwrap();
}

#[test]
fn one_good_anchor_on_each_device_is_enough_and_the_newest_of_all_counts() {
    let joint = Joint::of(5, &[40, 40]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), 5);
    work(&pool, &toy, &SeededEnv::new(5), 10).unwrap();
    pool.export().unwrap();
    // An import writes the anchors that the creation did not.
    let (pool, toy) = import_from(joint.handles(), 5).unwrap();
    work(&pool, &toy, &SeededEnv::new(6), 3).unwrap();
    pool.export().unwrap();
    let newest = pool.synced_txg();
    for (one, other) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let left = joint.restarted(|_| Survival::Everything);
        rot(&left.devices[0], one);
        rot(&left.devices[1], other);
        let (pool, toy) = import_from(left.handles(), 5).unwrap();
        // Both newest uberblocks are lost only if both are in the same anchor.
        let found = pool.synced_txg();
        assert!(found == newest || one == other, "anchors {one} and {other}: group {found} of {newest}");
        verify(&pool, &toy);
        work(&pool, &toy, &SeededEnv::new(6), 5).unwrap();
        pool.abandon();
        let (pool, toy) = import_from(left.handles(), 6).unwrap();
        verify(&pool, &toy);
    }
    let left = joint.restarted(|_| Survival::Everything);
    (0..2).for_each(|anchor| rot(&left.devices[1], anchor));
    let text = refusal(import_from(left.handles(), 5));
    assert!(text.contains("missing: device 1"), "{text}");
}

#[test]
fn a_device_whose_anchors_take_nothing_does_not_stop_the_pool() {
    for broken in 0..2 {
        let joint = Joint::of(6, &[40, 40]);
        let (pool, toy) = create_on(joint.handles(), &named(&[]), 6);
        work(&pool, &toy, &SeededEnv::new(6), 4).unwrap();
        for anchor in 0..2 {
            joint.devices[broken].kill_zone(ZoneIdx(anchor), ZoneState::ReadOnly).unwrap();
        }
        work(&pool, &toy, &SeededEnv::new(7), 6).unwrap();
        verify(&pool, &toy);
        let newest = pool.synced_txg();
        pool.abandon();
        let (pool, toy) = import_from(joint.handles(), 7).unwrap();
        assert_eq!(
            pool.synced_txg(),
            newest,
            "device {broken} tells of an older group, the other of this one"
        );
        verify(&pool, &toy);
        work(&pool, &toy, &SeededEnv::new(8), 6).unwrap();
        verify(&pool, &toy);
        pool.export().unwrap();
    }
}

#[test]
fn an_anchor_that_cannot_be_read_hides_no_newer_txg() {
    // Device 1 was left behind when its anchors failed. Then the anchor of device 0 with the newest txg
    // cannot be read.
    let joint = Joint::of(9, &[40, 40]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), 9);
    work(&pool, &toy, &SeededEnv::new(9), 4).unwrap();
    pool.export().unwrap();
    let (pool, toy) = import_from(joint.handles(), 9).unwrap();
    let behind = pool.synced_txg();
    (0..2).for_each(|anchor| joint.devices[1].kill_zone(ZoneIdx(anchor), ZoneState::ReadOnly).unwrap());
    work(&pool, &toy, &SeededEnv::new(10), 6).unwrap();
    let newest = pool.synced_txg();
    pool.abandon();
    let of_newest = |read: &terrane_pool::inspect::Anchor| read.2.iter().any(|(_, uber)| uber.txg == newest);
    let anchors = terrane_pool::inspect::anchors(&joint.devices[0]);
    let zone = ZoneIdx(anchors.iter().find(|read| of_newest(read)).unwrap().0);
    let fault = joint.devices[0].inject(Fault::ReadError { zone: Some(zone), one_in: 1 });
    let text = refusal(import_from(joint.handles(), 10));
    assert!(text.contains("cannot be read") && text.contains(&format!("--rewind={behind}")), "{text}");
    // The error may have been transient.
    joint.devices[0].disarm(fault);
    let (pool, toy) = import_from(joint.handles(), 10).unwrap();
    assert_eq!(pool.synced_txg(), newest);
    verify(&pool, &toy);
    pool.export().unwrap();
    // A device with sound anchors proves that no txg is hidden.
    let joint = Joint::of(11, &[40, 40]);
    create_on(joint.handles(), &named(&[]), 11).0.export().unwrap();
    let (pool, toy) = import_from(joint.handles(), 11).unwrap();
    work(&pool, &toy, &SeededEnv::new(11), 4).unwrap();
    let newest = pool.synced_txg();
    pool.abandon();
    joint.devices[0].kill_zone(ZoneIdx(0), ZoneState::Offline).unwrap();
    let (pool, toy) = import_from(joint.handles(), 11).unwrap();
    assert_eq!(pool.synced_txg(), newest);
    verify(&pool, &toy);
}

#[test]
fn a_place_that_cannot_be_read_hides_only_itself() {
    let device =
        SimDevice::new(SimConfig { zone_count: 40, zone_size: 2 << 20, ..SimConfig::default() }).unwrap();
    let (pool, toy) = create_on(vec![Arc::new(device.clone())], &named(&[]), 12);
    work(&pool, &toy, &SeededEnv::new(12), 5).unwrap();
    let all = terrane_pool::inspect::anchors(&device);
    let (_, _, ubers) = all.first().unwrap();
    let (bad, gone) = ubers[ubers.len() / 2];
    let faulty = BadSpot { device: Arc::new(device.clone()), zone: ZoneIdx(0), at: bad };
    let seen = terrane_pool::inspect::anchors(&faulty);
    let left: Vec<u64> = seen[0].2.iter().map(|(at, _)| *at).collect();
    assert_eq!(left.len(), ubers.len() - 1, "{gone:?}");
    pool.abandon();
    let text = refusal(import_from(vec![Arc::new(faulty)], 12));
    assert!(text.contains("anchor 0 cannot be read"), "{text}");
}

/// A drive that cannot read one place.
struct BadSpot {
    device: Arc<dyn Device>,
    zone: ZoneIdx,
    at: u64,
}

impl Device for BadSpot {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn report(&self, zone: ZoneIdx) -> Result<ZoneReport, DeviceError> {
        self.device.report(zone)
    }

    fn read(&self, zone: ZoneIdx, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if zone == self.zone && (offset..offset + buf.len() as u64).contains(&self.at) {
            let source = std::io::Error::other("a bad spot");
            return Err(DeviceError::Io { zone: Some(zone), offset, op: "read", source });
        }
        self.device.read(zone, offset, buf)
    }

    fn write(&self, zone: ZoneIdx, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.device.write(zone, offset, data)
    }

    fn reset(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.device.reset(zone)
    }

    fn keep_space(&self) {
        self.device.keep_space();
    }

    fn finish(&self, zone: ZoneIdx) -> Result<(), DeviceError> {
        self.device.finish(zone)
    }

    fn resume(&self, zone: ZoneIdx, pointer: u64) -> Result<u64, DeviceError> {
        self.device.resume(zone, pointer)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }
}

#[test]
fn every_crash_of_several_devices_leaves_a_committed_txg() {
    let mut differ = 0;
    for seed in 0..4 {
        let joint = Joint::of(seed, &[34, 36, 34]);
        let (pool, toy) = create_on(joint.handles(), &named(&[Role::Data, Role::Special]), seed);
        work(&pool, &toy, &SeededEnv::new(seed), 8).unwrap();
        pool.export().unwrap();
        for cut in (seed as i64..150).step_by(11) {
            let joint = joint.restarted(|_| Survival::Everything);
            joint.crash_after(cut);
            let committed = match import_from(joint.handles(), seed) {
                Ok((pool, toy)) => {
                    let _ = work(&pool, &toy, &SeededEnv::new(seed ^ 3), 12);
                    joint.cut_power();
                    pool.abandon();
                    let committed = toy.state.lock().committed.clone();
                    Some((pool.synced_txg(), committed))
                }
                Err(_) => None,
            };
            for chance in 0..4 {
                let kept = |index: usize| match chance {
                    0 => Survival::Nothing,
                    1 => Survival::Everything,
                    2 if index == 0 => Survival::Everything,
                    2 => Survival::Nothing,
                    _ => Survival::Seeded(seed * 1000 + cut as u64 * 10 + index as u64),
                };
                let left = joint.restarted(kept);
                let newest: Vec<Option<Txg>> = left.devices.iter().map(newest_of).collect();
                differ += u32::from(newest.iter().any(|other| *other != newest[0]));
                let (pool, toy) = import_from(left.handles(), chance)
                    .unwrap_or_else(|error| panic!("seed {seed}, cut {cut}, outcome {chance}: {error}"));
                if let Some((synced, committed)) = &committed {
                    assert!(pool.synced_txg() >= *synced, "seed {seed}, cut {cut}: a promised group is lost");
                    let now = toy.state.lock().versions.clone();
                    if let Some((_, then)) = committed.iter().find(|(txg, _)| *txg == pool.synced_txg()) {
                        assert!(now == *then, "seed {seed}, cut {cut}, outcome {chance}");
                    }
                }
                verify(&pool, &toy);
                pool.abandon();
            }
        }
    }
    assert!(differ > 10, "devices that tell of different groups were seen {differ} times");
}

fn newest_of(device: &SimDevice) -> Option<Txg> {
    let anchors = terrane_pool::inspect::anchors(device);
    anchors.iter().flat_map(|(_, _, ubers)| ubers).map(|(_, uber)| uber.txg).max()
}

#[test]
fn a_drive_keeps_nothing_open_that_is_not_written() {
    let joint = Joint::of(11, &[40, 40]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), 11);
    work(&pool, &toy, &SeededEnv::new(11), 12).unwrap();
    // A txg that never committed: the zones that it opened are empty by the tables.
    joint.crash_after(9);
    let _ = work(&pool, &toy, &SeededEnv::new(12), 12);
    pool.abandon();
    let left = joint.restarted(|_| Survival::Everything);
    let drive = &left.devices[1];
    let open = |zone: &u32| drive.report(ZoneIdx(*zone)).unwrap().state == ZoneState::Open;
    let stray = ZoneIdx((2..40).find(|zone| drive.report(ZoneIdx(*zone)).unwrap().pointer == 0).unwrap());
    drive.write(stray, 0, &[1; 4096]).unwrap();
    let (pool, toy) = import_from(left.handles(), 11).unwrap();
    let on_drive = |zone: &&terrane_pool::inspect::ZoneView| zone.home.device.0 == 1;
    let zones = pool.zones();
    let written =
        zones.iter().filter(on_drive).filter(|zone| zone.phase == terrane_format::rows::Phase::Open);
    let written: Vec<u32> = written.map(|zone| zone.home.zone.0).collect();
    let stays_open: Vec<u32> = (2..40).filter(open).collect();
    assert!(stays_open.iter().all(|zone| written.contains(zone)), "{stays_open:?} of {written:?}");
    assert_eq!((0..2).filter(open).count(), 1, "one anchor");
    verify(&pool, &toy);
}

/// A pool on device 0 alone, and two devices that could join.
fn one_of_three(seed: u64) -> (Joint, Arc<Pool>, Arc<support::Toy>) {
    let joint = Joint::of(seed, &[36, 40, 34]);
    let (pool, toy) = create_on(vec![joint.handle(0)], &named(&[]), seed);
    work(&pool, &toy, &SeededEnv::new(seed), 6).unwrap();
    (joint, pool, toy)
}

#[test]
fn a_device_that_is_added_is_used_at_once() {
    let (joint, pool, toy) = one_of_three(21);
    let before = pool.space().0;
    assert_eq!(pool.add_device(joint.handle(1), Role::Data).unwrap().0, 1);
    assert_eq!(pool.add_device(joint.handle(2), Role::Special).unwrap().0, 2);
    assert!(pool.space().0 > before, "{} of {before}", pool.space().0);
    assert!(pool.has(Feature::Devices));
    work(&pool, &toy, &SeededEnv::new(22), 40).unwrap();
    verify(&pool, &toy);
    let spread = spread(&pool);
    assert!(spread.keys().any(|(device, _)| *device == 1) && spread.keys().any(|(device, _)| *device == 2));
    pool.export().unwrap();
    let text = refusal(import_from(vec![joint.handle(0), joint.handle(2)], 1));
    assert!(text.contains("device 1") && text.contains("sim 1"), "{text}");
    let (pool, toy) = import_from(joint.handles(), 23).unwrap();
    verify(&pool, &toy);
    work(&pool, &toy, &SeededEnv::new(24), 10).unwrap();
    verify(&pool, &toy);
}

#[test]
fn a_device_that_cannot_join_changes_nothing() {
    let (joint, pool, toy) = one_of_three(31);
    let small = Joint::of(32, &[8]);
    assert!(refusal(pool.add_device(small.handle(0), Role::Data)).contains("at least 32 zones"));
    joint.devices[1].inject(Fault::WriteError { zone: Some(ZoneIdx(0)), one_in: 1, partial: true });
    assert!(pool.add_device(joint.handle(1), Role::Data).is_err());
    assert!(!pool.has(Feature::Devices));
    work(&pool, &toy, &SeededEnv::new(31), 6).unwrap();
    verify(&pool, &toy);
    pool.abandon();
    for handles in [joint.handles(), vec![joint.handle(0)]] {
        let (pool, toy) = import_from(handles, 31).unwrap();
        assert!(!pool.has(Feature::Devices));
        verify(&pool, &toy);
        pool.abandon();
    }
    // Zones of 1 MiB are too small for a pool whose blocks may take a quarter of 2 MiB.
    let joint = Joint::of(33, &[36, 36]);
    let (pool, _toy) = create_on(vec![joint.handle(1)], &named(&[]), 33);
    assert!(refusal(pool.add_device(joint.handle(0), Role::Data)).contains("four times the largest block"));
}

#[test]
fn every_crash_while_a_device_is_added_leaves_a_pool_with_it_or_without() {
    let (mut with, mut without, mut alone) = (0, 0, 0);
    for newcomer in [1, 2] {
        let (joint, pool, toy) = one_of_three(41);
        pool.export().unwrap();
        drop(toy);
        for cut in 0.. {
            let joint = joint.restarted(|_| Survival::Everything);
            let (pool, _toy) = import_from(vec![joint.handle(0)], 41).unwrap();
            // Emptying the new device changes nothing of the pool, so the power fails after that.
            let emptied = if newcomer == 2 { 34 + 3 } else { 0 };
            joint.crash_after(emptied + cut);
            let added = pool.add_device(joint.handle(newcomer), Role::Data);
            joint.cut_power();
            pool.abandon();
            for chance in 0..8 {
                let kept = |index: usize| match chance {
                    0 => Survival::Nothing,
                    1 => Survival::Everything,
                    2 if index == 0 => Survival::Everything,
                    3 if index > 0 => Survival::Everything,
                    2 | 3 => Survival::Nothing,
                    _ => Survival::Seeded(cut as u64 * 100 + chance * 10 + index as u64),
                };
                let at = format!("newcomer {newcomer}, cut {cut}, outcome {chance}");
                let left = joint.restarted(kept);
                if let Ok((pool, toy)) = import_from(vec![left.handle(0)], 1) {
                    assert!(added.is_err(), "{at}: it was added, and is not missed");
                    verify(&pool, &toy);
                    pool.abandon();
                    alone += 1;
                }
                let left = joint.restarted(kept);
                let (pool, toy) =
                    import_from(left.handles(), 2).unwrap_or_else(|error| panic!("{at}: {error}"));
                verify(&pool, &toy);
                assert!(pool.has(Feature::Devices) || added.is_err(), "{at}: it is lost");
                with += u32::from(pool.has(Feature::Devices));
                without += u32::from(!pool.has(Feature::Devices));
                work(&pool, &toy, &SeededEnv::new(42), 8).unwrap();
                verify(&pool, &toy);
                pool.abandon();
            }
            if added.is_ok() {
                assert!(cut >= 12, "three anchors are reset, written and flushed, and more");
                break;
            }
        }
    }
    assert!(with > 0 && without > 0 && alone > 0, "{with} with it, {without} without, {alone} alone");
}

/// A copy is made a pool of its own. Whatever a power loss leaves can be imported from all of its devices,
/// and made a pool of its own then.
#[test]
fn every_crash_while_a_copy_gets_its_own_id_leaves_one_that_can_get_it_again() {
    let (joint, pool, toy) = one_of_three(61);
    pool.add_device(joint.handle(1), Role::Data).unwrap();
    work(&pool, &toy, &SeededEnv::new(62), 10).unwrap();
    let original = pool.label().id();
    pool.export().unwrap();
    let both = |joint: &Joint| vec![joint.handle(0), joint.handle(1)];
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for cut in 0.. {
        let joint = joint.restarted(|_| Survival::Everything);
        let (pool, _toy) = import_from(both(&joint), 61).unwrap();
        joint.crash_after(cut);
        let renamed = pool.rename("copy", true);
        joint.cut_power();
        pool.abandon();
        for chance in 0..5 {
            let kept = |index: usize| match chance {
                0 => Survival::Nothing,
                1 => Survival::Everything,
                2 if index == 0 => Survival::Everything,
                3 if index > 0 => Survival::Everything,
                2 | 3 => Survival::Nothing,
                _ => Survival::Seeded(cut as u64 * 100 + chance * 10 + index as u64),
            };
            let at = format!("cut {cut}, outcome {chance}");
            let left = joint.restarted(kept);
            let ids = |joint: &Joint| -> Vec<u64> {
                let newest = |device: &SimDevice| {
                    let anchors = terrane_pool::inspect::anchors(device);
                    anchors
                        .into_iter()
                        .max_by_key(|(_, label, _)| label.anchor_generation)
                        .map(|(_, label, _)| label.id())
                };
                joint.devices[..2].iter().filter_map(newest).collect()
            };
            torn += u32::from(ids(&left).iter().any(|id| *id != ids(&left)[0]));
            let (pool, toy) = import_from(both(&left), 2).unwrap_or_else(|error| panic!("{at}: {error}"));
            verify(&pool, &toy);
            let label = pool.label();
            assert_eq!(label.id() == original, label.name == "toy", "{at}: both or neither");
            assert!(renamed.is_err() || label.id() != original, "{at}: the id is lost");
            old += u32::from(label.id() == original);
            new += u32::from(label.id() != original);
            pool.rename("copy", true).unwrap();
            let id = pool.label().id();
            assert!(id != original && id != label.id(), "{at}");
            work(&pool, &toy, &SeededEnv::new(63), 4).unwrap();
            pool.export().unwrap();
            let (pool, toy) = import_from(both(&left), 3).unwrap();
            assert_eq!((pool.label().id(), pool.name().as_str()), (id, "copy"), "{at}");
            assert_eq!(ids(&left), [id, id], "{at}");
            verify(&pool, &toy);
            pool.abandon();
        }
        if renamed.is_ok() {
            assert!(cut >= 12, "two anchors of two devices are reset, written and flushed");
            break;
        }
    }
    assert!(old > 0 && new > 0 && torn > 0, "{old} old, {new} new, {torn} torn");
}

#[test]
fn unwritable_zones_are_no_free_space_from_the_start() {
    let joint = Joint::of(21, &[48, 48]);
    for (device, state) in joint.devices.iter().zip([ZoneState::ReadOnly, ZoneState::Offline]) {
        (10..30).for_each(|zone| device.kill_zone(ZoneIdx(zone), state).unwrap());
    }
    let (pool, toy) = create_on(vec![joint.handle(0)], &named(&[]), 21);
    let of_devices = |pool: &Pool| -> Vec<u64> {
        pool.members().iter().map(|member| member.zones_empty + member.zones_used).collect()
    };
    assert_eq!(of_devices(&pool), [26]);
    pool.add_device(joint.handle(1), Role::Data).unwrap();
    assert_eq!(of_devices(&pool), [26, 26]);
    let size = pool.space().0;
    work(&pool, &toy, &SeededEnv::new(21), 20).unwrap();
    verify(&pool, &toy);
    pool.export().unwrap();
    let (pool, toy) = import_from(joint.handles(), 22).unwrap();
    assert_eq!(of_devices(&pool), [26, 26]);
    assert!(pool.space().0.abs_diff(size) < size / 8, "{} bytes were offered, then {}", size, pool.space().0);
    verify(&pool, &toy);
}

#[test]
fn a_failed_anchor_is_not_appended_to_after_the_next_one_began() {
    let joint = Joint::of(31, &[40, 40]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), 31);
    work(&pool, &toy, &SeededEnv::new(31), 3).unwrap();
    for round in 0..4 {
        // The file system below is full for a moment: neither anchor of device 0 takes writes.
        for zone in [0, 1].map(ZoneIdx) {
            joint.devices[0].inject(Fault::WriteError { zone: Some(zone), one_in: 1, partial: false });
        }
        work(&pool, &toy, &SeededEnv::new(32 + round), 1 + round as usize % 2).unwrap();
        joint.devices[0].clear_faults();
        work(&pool, &toy, &SeededEnv::new(42 + round), 1).unwrap();
        assert_eq!(newest_of(&joint.devices[0]), Some(pool.synced_txg()), "what was taken can be read");
    }
    // From now on only device 0 has the newest txg.
    (0..2).for_each(|anchor| joint.devices[1].kill_zone(ZoneIdx(anchor), ZoneState::ReadOnly).unwrap());
    work(&pool, &toy, &SeededEnv::new(51), 2).unwrap();
    let newest = pool.synced_txg();
    pool.abandon();
    let (pool, toy) = import_from(joint.handles(), 31).unwrap();
    assert_eq!(pool.synced_txg(), newest, "a promised group is lost");
    verify(&pool, &toy);
}

/// Simulates anchors in a file: a write that fails now may succeed later, and no report says that it failed.
#[test]
fn a_device_that_was_left_behind_does_not_know_the_newest_txg() {
    let joint = Joint::of(33, &[40, 40, 40]);
    let (pool, toy) = create_on(joint.handles(), &named(&[]), 33);
    work(&pool, &toy, &SeededEnv::new(33), 4).unwrap();
    pool.export().unwrap();
    let (pool, toy) = import_from(joint.handles(), 33).unwrap();
    (0..2).for_each(|anchor| joint.devices[1].kill_zone(ZoneIdx(anchor), ZoneState::ReadOnly).unwrap());
    work(&pool, &toy, &SeededEnv::new(34), 2).unwrap();
    for zone in [0, 1].map(ZoneIdx) {
        joint.devices[2].inject(Fault::WriteError { zone: Some(zone), one_in: 1, partial: false });
    }
    work(&pool, &toy, &SeededEnv::new(35), 4).unwrap();
    let newest = pool.synced_txg();
    pool.abandon();
    joint.devices[2].clear_faults();
    // The newest uberblocks of device 0 cannot be read; older ones can.
    let anchors = terrane_pool::inspect::anchors(&joint.devices[0]);
    let ubers = anchors
        .iter()
        .flat_map(|(anchor, _, ubers)| ubers.iter().map(move |(at, uber)| (*anchor, *at, uber.txg)));
    let bad: Vec<(u32, u64)> =
        ubers.filter(|(_, _, txg)| *txg == newest).map(|(anchor, at, _)| (anchor, at)).collect();
    assert!(!bad.is_empty());
    let mut handles = joint.handles();
    let device = bad.into_iter().fold(joint.handle(0), |below, (anchor, at)| {
        Arc::new(BadSpot { device: below, zone: ZoneIdx(anchor), at }) as Arc<dyn Device>
    });
    handles[0] = device;
    let text = refusal(import_from(handles, 33));
    assert!(text.contains("cannot be read"), "{text}");
    let (pool, toy) = import_from(joint.handles(), 33).unwrap();
    assert_eq!(pool.synced_txg(), newest);
    verify(&pool, &toy);
}

#[test]
fn a_device_of_large_zones_takes_no_space_from_those_of_small_ones() {
    let sized = |zone_count: u32, zone_size: u64| {
        let name = format!("{zone_count} zones");
        let config =
            SimConfig { name, zone_count, zone_size, hardware_pointers: false, ..SimConfig::default() };
        Arc::new(SimDevice::new(config).unwrap()) as Arc<dyn Device>
    };
    let offered = |devices: Vec<Arc<dyn Device>>| create_on(devices, &named(&[]), 3).0.space().0;
    let (small, large) = (offered(vec![sized(1000, 1 << 20)]), offered(vec![sized(34, 32 << 20)]));
    let both = offered(vec![sized(1000, 1 << 20), sized(34, 32 << 20)]);
    assert!(both > (small + large) / 100 * 85, "{both} bytes of {small} and {large}");
    // A device that joins does not reduce the pool's space.
    let (pool, toy) = create_on(vec![sized(200, 1 << 20)], &named(&[]), 4);
    work(&pool, &toy, &SeededEnv::new(4), 4).unwrap();
    let before = pool.space();
    pool.add_device(sized(34, 32 << 20), Role::Data).unwrap();
    let after = pool.space();
    assert!(after.0 > before.0 + (large / 10 * 8) && after.2 > before.2, "{before:?}, then {after:?}");
    work(&pool, &toy, &SeededEnv::new(5), 4).unwrap();
    verify(&pool, &toy);
}

/// The same bytes on a device with another write unit.
fn moved_to(device: &SimDevice, write_unit: u32) -> SimDevice {
    let info = device.info();
    let (zone_count, zone_size) = (info.zone_count, info.zone_size);
    let config =
        SimConfig { zone_count, zone_size, write_unit, hardware_pointers: false, ..SimConfig::default() };
    let other = SimDevice::new(config).unwrap();
    let mut bytes = vec![0; zone_size as usize];
    for zone in (0..zone_count).map(ZoneIdx) {
        device.read(zone, 0, &mut bytes).unwrap();
        other.write(zone, 0, &bytes).unwrap();
    }
    other.flush().unwrap();
    other.restarted(Survival::Everything)
}

#[test]
fn an_image_that_was_on_a_device_of_smaller_units_keeps_its_newest_txg() {
    for txgs in 1..5 {
        let config = SimConfig {
            zone_count: 40,
            write_unit: 16 << 10,
            hardware_pointers: false,
            ..SimConfig::default()
        };
        let device = SimDevice::new(config).unwrap();
        let (pool, toy) = create_on(vec![Arc::new(device.clone())], &named(&[]), 7);
        work(&pool, &toy, &SeededEnv::new(7), 3).unwrap();
        pool.export().unwrap();
        let smaller = moved_to(&device, 4096);
        let (pool, toy) = import_from(vec![Arc::new(smaller.clone())], 8).unwrap();
        work(&pool, &toy, &SeededEnv::new(8), txgs).unwrap();
        let newest = pool.synced_txg();
        pool.abandon();
        let back = moved_to(&smaller, 16 << 10);
        let (pool, toy) = import_from(vec![Arc::new(back)], 9).unwrap();
        assert_eq!(pool.synced_txg(), newest);
        verify(&pool, &toy);
        work(&pool, &toy, &SeededEnv::new(9), 3).unwrap();
        verify(&pool, &toy);
    }
}
