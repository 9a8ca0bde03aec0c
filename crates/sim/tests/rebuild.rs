//! Zone tables that are lost are rebuilt.

use std::sync::Arc;
use terrane_device::{Device, Fault, SimDevice};
use terrane_format::Owner;
use terrane_format::directory::{PART_MAGIC, POOL_SECTION, PartTrailer};
use terrane_format::record::ZoneClass;
use terrane_format::rows::Phase;
use terrane_format::zone_header::{ZONE_MAGIC, ZoneHeader};
use terrane_oracle::Model;
use terrane_pool::ImportOptions;
use terrane_pool::inspect::ZoneView;
use terrane_sim::collect::{FILE_BYTES, pool_after_gc};
use terrane_sim::crash::{continue_workload, recover};
use terrane_sim::machine::Machine;
use terrane_sim::seeds::seeds;
use terrane_sim::workload::{OpMix, Step, Workload};
use terrane_store::env::{Env, SeededEnv};
use terrane_store::explain::EntryState;
use terrane_wire::{Txg, ZoneIdx, ZoneSeq};

/// Both copies of every section rot: only the zones themselves know what lies where.
fn lose_sections(device: &SimDevice, seed: u64) -> u64 {
    let machine = Machine::import(device, seed, true).unwrap();
    let mut lost = 0;
    // An emptied zone may have been reset by the txg that was lost.
    let zones = machine.pool.zones().into_iter();
    for zone in zones.filter(|zone| !matches!(zone.phase, Phase::Emptied(_))) {
        for (entry, standing) in machine.pool.zone_directory(zone.seq).unwrap() {
            if entry.owner == (Owner::Pool { structure: POOL_SECTION }) && standing == EntryState::Live {
                device.rot(zone.home.zone, entry.offset + 9, &[0x40]).unwrap();
                lost += 1;
            }
        }
    }
    lost
}

#[test]
fn an_index_that_is_lost_is_made_again_from_the_zones() {
    let (mut moved, mut rebuilt, mut whole) = (0, 0, 0);
    // Three always run. In the first, a zone continues behind a batch that a crash undid; of the second, no
    // section was written yet. In the last, such a batch lies at the end of a zone, in part.
    for seed in seeds(8).into_iter().chain([810_064_609_498, 823_822_321_674, 461_045_858_539]) {
        let mut workload = pool_after_gc(seed, 60 + seed % 3 * 60).unwrap();
        moved += workload.machine.pool.stats().runs;
        // What a crash leaves behind the end of zones looks like directory parts, and the next workload
        // writes over it.
        for round in 0..2 {
            let device = workload.machine.device.clone();
            device.crash_after(device.ops_done() + 5 + seed % 64 + round);
            while workload.step().unwrap() == Step::Done && workload.sync().unwrap() == Step::Done {}
            if round == 0 {
                workload.machine.pool.abandon();
                let left = workload.machine.device.after_power_loss(seed);
                workload = recover(&workload, &left, seed).unwrap();
                (workload.mix, workload.file_bytes) = (OpMix::Churn, FILE_BYTES);
            }
        }
        workload.machine.pool.abandon();
        let device = workload.machine.device.after_power_loss(seed);
        let txg = Machine::import(&device, seed, true).unwrap().durable_txg().0;
        let lost = lose_sections(&device, seed);
        if lost == 0 {
            whole += 1;
            continue;
        }
        assert!(lost >= 2, "seed {seed}");
        rebuilt += 1;
        let refused = Machine::import(&device, seed, false).err().unwrap();
        assert!(refused.0.contains("--rebuild-index"), "seed {seed}: {refused}");
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
        terrane_check::rebuild_index(&devices, &env, &ImportOptions::default(), &mut |_| {})
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let mut machine = Machine::import(&device, seed + 1, false).unwrap();
        machine.check().unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        machine.mount().unwrap();
        let models: Vec<Model> =
            workload.states(txg).iter().map(|state| state.model.after_remount()).collect();
        let same = models.into_iter().find(|model| model.compare(machine.fs()).is_ok());
        let model = same.unwrap_or_else(|| panic!("seed {seed}: the tree is none that was committed"));
        let mut workload = Workload::new(machine, model, seed);
        (workload.mix, workload.file_bytes) = (OpMix::Churn, FILE_BYTES);
        continue_workload(workload, 60, seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    // Pools that lost no section must be the minority, or lost tables are no longer detected.
    assert!(
        moved > 20 && whole <= rebuilt,
        "{moved} runs were made again, {rebuilt} pools, {whole} were whole"
    );
}

/// Rebuilds the index of a pool that was exported, after `damage` beside the loss of all sections. Whatever
/// is written then, the tree is what it was, with those changes.
fn rebuilt_in_spite_of(seed: u64, damage: impl Fn(&SimDevice, &[ZoneView])) {
    let workload = pool_after_gc(seed, 60).unwrap();
    let model = workload.model.after_remount();
    let device = workload.machine.export().unwrap();
    let machine = Machine::import(&device, seed, true).unwrap();
    let zones = machine.pool.zones();
    drop(machine);
    lose_sections(&device, seed);
    damage(&device, &zones);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
    terrane_check::rebuild_index(&devices, &env, &ImportOptions::default(), &mut |_| {})
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let mut machine = Machine::import(&device, seed + 1, false).unwrap();
    for zone in machine.pool.zones().iter().filter(|zone| zone.phase != Phase::Reclaimed) {
        let capacity = device.report(zone.home.zone).unwrap().capacity;
        assert_eq!(zone.capacity, capacity, "seed {seed}: zone {}", zone.seq);
    }
    machine.mount().unwrap();
    // What was not found is overwritten now.
    let mut workload = Workload::new(machine, model, seed);
    (workload.mix, workload.file_bytes) = (OpMix::Churn, FILE_BYTES);
    for _ in 0..60 {
        assert_eq!(workload.step().unwrap(), Step::Done, "seed {seed}");
    }
    assert_eq!(workload.sync().unwrap(), Step::Done, "seed {seed}");
    let Workload { machine, model, .. } = workload;
    assert_eq!(machine.pool.errors().findings, Vec::<String>::new(), "seed {seed}");
    machine.fs().forget_all();
    machine.pool.abandon();
    drop(machine);
    let mut machine = Machine::import(&device, seed + 2, false).unwrap();
    machine.mount().unwrap();
    model.after_remount().compare(machine.fs()).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

/// The zones with the most live bytes, and the open ones.
fn fullest(zones: &[ZoneView]) -> impl Iterator<Item = &ZoneView> {
    let mut zones: Vec<&ZoneView> = zones.iter().filter(|zone| zone.live > 0).collect();
    zones.sort_by_key(|zone| (zone.phase != Phase::Open, std::cmp::Reverse(zone.live)));
    zones.into_iter().take(4)
}

#[test]
fn blocks_whose_directory_part_is_damaged_stay_where_they_are() {
    let rotten = std::cell::Cell::new(0);
    // In the last, all parts of a zone that was opened just before are damaged.
    for seed in seeds(4).into_iter().chain([928_428_549_048]) {
        rebuilt_in_spite_of(seed, |device, zones| {
            for zone in fullest(zones) {
                // The last parts: nothing after them refers to them. Except those that list moved blocks,
                // which have a second copy.
                let mut unit = [0; 4096];
                let trailers = (4096..=zone.claimed).step_by(4096).filter_map(|end| {
                    device.read(zone.home.zone, end - 4096, &mut unit).unwrap();
                    let trailer = PartTrailer::decode(&unit[4096 - PartTrailer::SIZE..]).unwrap();
                    (trailer.magic == PART_MAGIC && trailer.seq == zone.seq).then_some((end, trailer.moved))
                });
                let trailers: Vec<(u64, u32)> = trailers.collect();
                for (end, _) in trailers.iter().rev().take_while(|(_, moved)| *moved == 0).take(30) {
                    device.rot(zone.home.zone, end - 90, &[0x10]).unwrap();
                    rotten.set(rotten.get() + 1);
                }
            }
        });
    }
    assert!(rotten.get() > 16, "{} parts", rotten.get());
}

#[test]
fn zones_whose_header_is_damaged_are_known_by_their_directory() {
    // The last five have open zones that hold few bytes. They were taken for small zones, and the pool for one that has only such zones.
    for seed in seeds(4).into_iter().chain([12, 148, 156, 268, 38_403_442_636]) {
        rebuilt_in_spite_of(seed, |device, zones| {
            for zone in fullest(zones) {
                device.rot(zone.home.zone, 20, &[0x10]).unwrap();
            }
        });
    }
}

/// A read error says nothing of what a zone holds: file data, which no walk of the trees reads, would be lost
/// for good.
#[test]
fn zones_that_cannot_be_read_are_not_given_up() {
    for seed in seeds(2) {
        rebuilt_in_spite_of(seed, |device, zones| {
            let before = device.dump();
            for zone in fullest(zones) {
                device.inject(Fault::ReadError { zone: Some(zone.home.zone), one_in: 1 });
                let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
                let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
                let refused =
                    terrane_check::rebuild_index(&devices, &env, &ImportOptions::default(), &mut |_| {});
                assert!(refused.is_err(), "seed {seed}: zone {}", zone.seq);
                device.clear_faults();
            }
            assert!(device.dump() == before, "seed {seed}: the device was changed");
        });
    }
}

/// Seals have no key: they may be forged.
#[test]
fn zones_with_impossible_sequence_numbers_count_as_empty() {
    for seed in seeds(2) {
        rebuilt_in_spite_of(seed, |device, zones| {
            let (_, label, _) = terrane_pool::inspect::anchors(device).swap_remove(0);
            let is_used = |zone: &ZoneIdx| zones.iter().any(|used| used.home.zone == *zone);
            let is_empty = |zone: &ZoneIdx| !is_used(zone) && device.report(*zone).unwrap().pointer == 0;
            let unused = (2..device.info().zone_count).map(ZoneIdx).filter(is_empty);
            let numbers = [0, (1 << 36) - 1, 1 << 36, u64::MAX];
            let made = numbers.into_iter().zip(unused).map(|(seq, zone)| {
                let header = ZoneHeader {
                    magic: ZONE_MAGIC,
                    pool: label.pool,
                    seq: ZoneSeq(seq),
                    incarnation: 1,
                    txg: Txg(1),
                    capacity: device.info().zone_size,
                    class: ZoneClass::Data as u8,
                    granule_shift: 4,
                    reserved: [0; 14],
                    seal: [0; 16],
                };
                let mut raw = header.encode_sealed().to_vec();
                raw.resize(device.info().write_unit as usize, 0);
                device.write(zone, 0, &raw).unwrap();
            });
            assert!(made.count() >= 2, "the canary: there are empty zones");
        });
    }
}

#[test]
fn a_tree_that_cannot_be_walked_is_not_given_up() {
    let workload = pool_after_gc(3, 60).unwrap();
    let device = workload.machine.export().unwrap();
    let machine = Machine::import(&device, 3, true).unwrap();
    // Both copies of some directory's, inode's or indirect block.
    let mut victims = Vec::new();
    // An emptied zone may have been reset by the txg that was lost.
    let zones = machine.pool.zones().into_iter();
    for zone in zones.filter(|zone| !matches!(zone.phase, Phase::Emptied(_))) {
        for (entry, standing) in machine.pool.zone_directory(zone.seq).unwrap() {
            if matches!(entry.owner, Owner::Block { level: 1, .. }) && standing == EntryState::Live {
                victims.push((entry.owner, zone.home.zone, entry.offset));
            }
        }
    }
    drop(machine);
    let owner = victims.first().unwrap().0;
    for (_, zone, offset) in victims.iter().filter(|victim| victim.0 == owner) {
        device.rot(*zone, *offset + 3, &[1]).unwrap();
    }
    lose_sections(&device, 3);
    let before = device.dump();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(3));
    let refused = terrane_check::rebuild_index(&devices, &env, &ImportOptions::default(), &mut |_| {});
    assert!(refused.unwrap_err().to_string().contains("nothing was changed"));
    assert!(device.dump() == before, "the device was changed");
}
