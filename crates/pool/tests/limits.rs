//! Several drives that allow few open zones.

use crate::support::{create, create_on, import, import_from, open_few_zones, sim, verify, work};
use std::sync::Arc;
use terrane_device::{Device, SimConfig, SimDevice, ZoneState};
use terrane_format::rows::Phase;
use terrane_pool::CreateOptions;
use terrane_store::env::SeededEnv;
use terrane_wire::ZoneIdx;

#[test]
fn the_last_empty_zones_may_lie_where_no_more_may_be_open() {
    for seed in 0..4u64 {
        let drive = |zone_count| {
            SimDevice::new(SimConfig { zone_count, max_open: 4, seed, ..SimConfig::default() }).unwrap()
        };
        let drives = [drive(34), drive(100)];
        let devices = || drives.iter().map(|drive| Arc::new(drive.clone()) as Arc<dyn Device>).collect();
        let (pool, toy) = create_on(devices(), &CreateOptions::named("toy"), seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 3 + 2 * seed as usize).unwrap();
        pool.export().unwrap();
        // The first drive has no empty zone left.
        let homes: Vec<_> = pool.zones().into_iter().map(|zone| zone.home).collect();
        let used = |zone: &u32| homes.iter().any(|home| home.device.0 == 0 && home.zone.0 == *zone);
        for zone in (2..34).filter(|zone| !used(zone)) {
            drives[0].kill_zone(ZoneIdx(zone), ZoneState::ReadOnly).unwrap();
        }
        drop((pool, toy));
        let (pool, toy) = import_from(devices(), seed).unwrap();
        work(&pool, &toy, &env, 80).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        verify(&pool, &toy);
    }
}

#[test]
fn the_limit_of_open_zones_holds_from_the_first_txg_after_an_import() {
    let open_zones = |is_limited: bool| {
        let device = sim(7, true);
        create(&device, 7).0.export().unwrap();
        let (pool, toy) = import(&device, 8).unwrap();
        if is_limited {
            open_few_zones(&pool);
        }
        work(&pool, &toy, &SeededEnv::new(9), 1).unwrap();
        verify(&pool, &toy);
        pool.zones().iter().filter(|zone| zone.phase == Phase::Open).count()
    };
    assert_eq!(open_zones(true), 2);
    assert!(open_zones(false) > 2, "the canary: files get zones of their own");
}
