//! A second free of a block, long after its death, loses no live block.

use crate::support::{SLOTS, Toy, create, fill, import, owner, sim, work};
use std::sync::Arc;
use terrane_format::BlockPtr;
use terrane_format::rows::Phase;
use terrane_pool::Pool;
use terrane_store::PoolError;
use terrane_store::env::SeededEnv;

/// Txgs of overwrites; every `gc_every`-th collects all garbage. Returns the replaced pointers.
fn work_on(
    pool: &Arc<Pool>,
    toy: &Toy,
    env: &SeededEnv,
    txgs: usize,
    gc_every: usize,
) -> Result<Vec<BlockPtr>, PoolError> {
    let mut replaced = Vec::new();
    for txg in 0..txgs {
        if txg % gc_every == gc_every - 1 {
            pool.gc_request(0).unwrap();
        }
        let before = toy.state.lock().pointers.clone();
        work(pool, toy, env, 1)?;
        let after = toy.state.lock().pointers.clone();
        replaced.extend(before.into_iter().zip(after).filter(|(a, b)| a != b).map(|(a, _)| a));
    }
    Ok(replaced)
}

#[test]
fn a_second_free_of_a_block_that_died_before_others_moved_loses_none_of_them() {
    let (mut tried, mut found, mut stopped) = (0, 0, 0);
    for seed in 0..6 {
        let device = sim(seed, false);
        let (mut pool, mut toy) = create(&device, seed);
        let env = SeededEnv::new(seed);
        let dead = work_on(&pool, &toy, &env, 90, 4).unwrap();
        // Only a run claims that such a block is live, because its range covers the block.
        let zones = pool.zones();
        let seems_alive = |ptr: &&BlockPtr| {
            let BlockPtr::Normal(normal) = ptr else { return false };
            let gone = zones.iter().filter(|zone| zone.phase == Phase::Reclaimed);
            gone.flat_map(|zone| zone.runs.iter().map(|run| (zone.seq, run))).any(|(seq, run)| {
                normal
                    .copies()
                    .any(|addr| addr.seq() == seq && (run.first..run.last).contains(&addr.granule()))
            })
        };
        let again: Vec<BlockPtr> = dead.iter().filter(seems_alive).take(40).cloned().collect();
        tried += again.len();
        toy.state.lock().wrong_frees = again;
        if let Err(error) = work_on(&pool, &toy, &env, 40, 100) {
            // If live bytes would become negative, the pool stops, and the previous txg is imported.
            assert!(error.to_string().contains("its record contradicts the tables"), "seed {seed}: {error}");
            stopped += 1;
            found += damage(&pool);
            pool.abandon();
            (pool, toy) = import(&device, seed).unwrap();
        }
        let state = toy.state.lock();
        for slot in 0..SLOTS {
            let ptr = &state.pointers[slot];
            let Ok(block) = pool.read(ptr, owner(slot)) else {
                panic!("seed {seed}, slot {slot}: lost; {:?}", pool.errors().findings);
            };
            assert!(ptr.is_hole() || *block == fill(slot, state.versions[slot]), "seed {seed}, slot {slot}");
        }
        found += damage(&pool);
    }
    // Otherwise the dead sets caught all of them, and the test proves nothing.
    assert!(tried > 50 && found > 5, "{tried} tried, {found} found at the end of a run, {stopped} stopped");
}

fn damage(pool: &Pool) -> usize {
    pool.errors().findings.iter().filter(|damage| damage.to_string().contains("freed blocks")).count()
}
