//! GC leaves the space that its own txg needs for the commit.

use crate::support::{create, import, sim, verify, work};
use terrane_device::ZoneState;
use terrane_format::rows::Phase;
use terrane_store::env::SeededEnv;
use terrane_wire::ZoneIdx;

/// GC counts on empty zones that turn out to take no writes. It ends its piece before it has used what the commit needs.
#[test]
fn copies_that_find_no_zone_leave_space_for_the_commit() {
    let (mut short, mut moved) = (0, 0);
    for seed in 0..24u64 {
        let device = sim(seed, seed % 2 == 0);
        let (pool, toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        work(&pool, &toy, &env, 25).unwrap();
        // All of them, so that copies have only the rest of the open zones.
        let zones = pool.zones();
        let is_used = |zone: &ZoneIdx| {
            zones.iter().any(|used| used.phase != Phase::Reclaimed && used.home.zone == *zone)
        };
        let open = zones.iter().filter(|zone| zone.phase == Phase::Open);
        if open.map(|zone| zone.capacity - zone.claimed).sum::<u64>() < 300 << 10 {
            // Hardly enough for the commits themselves.
            continue;
        }
        for zone in (2..48).map(ZoneIdx).filter(|zone| !is_used(zone)) {
            device.kill_zone(zone, ZoneState::ReadOnly).unwrap();
        }
        let before = pool.stats().collected_bytes;
        pool.gc_request(0).unwrap();
        pool.commit_txg(pool.open_txg()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        pool.gc_request(100).unwrap();
        short += u32::from(pool.status().zones_empty < 3);
        moved += u32::from(pool.stats().collected_bytes > before);
        pool.drop_cache();
        verify(&pool, &toy);
        pool.export().unwrap();
        let (pool, toy) = import(&device, seed).unwrap();
        verify(&pool, &toy);
    }
    assert!(
        short > 12 && moved > 6,
        "the canary: zones were short {short} times, {moved} times blocks moved"
    );
}
