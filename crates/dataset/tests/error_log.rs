//! The error log across the life of a pool.

use crate::support::Machine;
use std::sync::Arc;
use terrane_dataset::{Dataset, POOL_DIRECTORY};
use terrane_device::{Device, SimDevice};
use terrane_format::Owner;
use terrane_format::rows::Phase;
use terrane_object::ObjectSets;
use terrane_pool::{ImportOptions, Pool};
use terrane_store::env::SeededEnv;
use terrane_store::errors::{BLOCKS_MAX, DamagedBlock, DeviceErrors, Errors, LossCause, LostFile};
use terrane_store::explain::EntryState;
use terrane_txg::cost::Cost;
use terrane_wire::DeviceIdx;

fn block(object: u64, block: u64) -> Owner {
    Owner::Block { objset: 2, object, level: 0, block }
}

fn fill(pool: &Pool) {
    let log = pool.error_log();
    log.note_finding("zone 7 should be whole, found half");
    log.note_finding("another");
    log.note_block(block(7, 3), "checksum");
    log.note_block(Owner::Pool { structure: 2 }, "too long: ".repeat(100));
    log.note_file((2, 9), LostFile { generation: 4, cause: LossCause::NotWrittenBack });
}

/// Imports the committed state again.
fn reimport(device: &SimDevice, read_only: bool) -> (Arc<Pool>, Dataset) {
    let (pool, dataset, _) = reimport_with_objects(device, read_only);
    (pool, dataset)
}

fn reimport_with_objects(device: &SimDevice, read_only: bool) -> (Arc<Pool>, Dataset, Arc<ObjectSets>) {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let options = ImportOptions { read_only, ..ImportOptions::default() };
    let pool = Pool::import(devices, Arc::new(SeededEnv::new(7)), &options).unwrap();
    let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
    let dataset = Dataset::open_root(&objects).unwrap();
    (pool, dataset, objects)
}

#[test]
fn errors_persist_until_cleared() {
    let m = Machine::new(1);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    dataset.record_errors().unwrap();
    let master = m.objects.mos().usage().objects;
    fill(&m.pool);
    let found = m.pool.errors();
    assert_eq!((found.findings.len(), found.blocks.len(), found.files.len()), (2, 2, 1));
    dataset.record_errors().unwrap();
    assert_eq!(m.objects.mos().usage().objects, master + 1, "the log is made when there is something to say");
    m.pool.commit().unwrap();
    drop(dataset);
    let m = m.crash();
    // Before the data set is opened, one known and one new error occur.
    m.pool.error_log().note_block(block(7, 3), "again");
    m.pool.error_log().note_block(block(7, 4), "new");
    let dataset = Dataset::open_root(&m.objects).unwrap();
    let recalled = m.pool.errors();
    assert_eq!((&recalled.findings, &recalled.files), (&found.findings, &found.files));
    let reason = |errors: &Errors, owner| {
        errors.blocks.iter().find(|block| block.owner == owner).map(|block| block.reason.clone())
    };
    assert_eq!(reason(&recalled, block(7, 3)).unwrap(), "checksum");
    assert_eq!(reason(&recalled, block(7, 4)).unwrap(), "new");
    assert_eq!(recalled.blocks.len(), 3);
    dataset.record_errors().unwrap();

    // Export right after the import.
    m.pool.export().unwrap();
    let device = m.device.clone();
    drop((m, dataset));
    let (pool, dataset) = reimport(&device, true);
    assert_eq!(pool.errors().blocks.len(), 3, "who only reads sees it as well");
    assert_eq!(pool.clear_errors().blocks.len(), 3);
    dataset.record_errors().unwrap();
    pool.abandon();
    drop(dataset);
    let (pool, dataset) = reimport(&device, false);
    assert_eq!(pool.clear_errors().blocks.len(), 3);
    assert_eq!(pool.errors(), Errors::default());
    dataset.record_errors().unwrap();
    pool.export().unwrap();
    drop(dataset);
    let (pool, _) = reimport(&device, false);
    assert_eq!(pool.errors(), Errors::default());
    pool.abandon();
}

#[test]
fn errors_of_devices_are_added_up() {
    let m = Machine::new(2);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    m.pool.commit().unwrap();
    let fail = |pool: &Pool| {
        let before = pool.errors().devices.get(&DeviceIdx(0)).copied().unwrap_or_default();
        let zone = pool.device_handles()[0].clone();
        // No device has this zone.
        assert!(zone.read(terrane_wire::ZoneIdx(u32::MAX), 0, &mut [0; 512]).is_err());
        let after = pool.errors().devices[&DeviceIdx(0)];
        assert_eq!(after, DeviceErrors { read: before.read + 1, ..before });
        after
    };
    let first = fail(&m.pool);
    dataset.record_errors().unwrap();
    m.pool.export().unwrap();
    let device = m.device.clone();
    drop((m, dataset));
    let (pool, dataset, objects) = reimport_with_objects(&device, false);
    assert_eq!(pool.errors().devices[&DeviceIdx(0)], first);
    let second = fail(&pool);
    assert_eq!(second.read, first.read + 1);
    // As a check of a mounted pool does.
    let other = Dataset::open_root(&objects).unwrap();
    assert_eq!(pool.errors().devices[&DeviceIdx(0)], second, "they are not counted twice");
    drop((other, objects));
    pool.clear_errors();
    assert_eq!(pool.errors(), Errors::default());
    assert_eq!(fail(&pool), DeviceErrors { read: 1, ..DeviceErrors::default() });
    dataset.record_errors().unwrap();
    pool.export().unwrap();
    drop(dataset);
    let (pool, _) = reimport(&device, true);
    assert_eq!(pool.errors().devices[&DeviceIdx(0)], DeviceErrors { read: 1, ..DeviceErrors::default() });
    pool.abandon();
}

#[test]
fn repeated_device_errors_do_not_cause_commits() {
    let m = Machine::new(6);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    m.pool.commit().unwrap();
    let mut txgs = 0;
    for _ in 0..300 {
        let zone = m.pool.device_handles()[0].clone();
        assert!(zone.read(terrane_wire::ZoneIdx(u32::MAX), 0, &mut [0; 512]).is_err());
        dataset.record_new_errors().unwrap();
        let before = m.pool.synced_txg();
        m.pool.commit().unwrap();
        txgs += usize::from(m.pool.synced_txg() != before);
    }
    assert!((2..12).contains(&txgs), "{txgs} groups");
    m.pool.error_log().note_finding("something new");
    dataset.record_new_errors().unwrap();
    m.pool.commit().unwrap();
    let found = m.pool.errors();
    assert_eq!(found.devices[&DeviceIdx(0)].read, 300);
    drop(dataset);
    let m = m.crash();
    let _dataset = Dataset::open_root(&m.objects).unwrap();
    assert_eq!(m.pool.errors(), found, "what is new takes the counts with it");
}

/// Damages every copy of an object's blocks.
fn rot(pool: &Pool, device: &SimDevice, (set, number): (u64, u64)) -> usize {
    let mut count = 0;
    for zone in pool.zones().into_iter().filter(|zone| zone.phase != Phase::Reclaimed) {
        for (entry, standing) in pool.zone_directory(zone.seq).unwrap() {
            let is_wanted = matches!(entry.owner, Owner::Block { objset, object, .. } if (objset, object) == (set, number));
            if standing == EntryState::Live && is_wanted {
                device.rot(zone.home.zone, entry.offset, &vec![0x55; entry.psize as usize]).unwrap();
                count += 1;
            }
        }
    }
    pool.drop_cache();
    count
}

#[test]
fn damaged_error_log_is_replaced() {
    let m = Machine::new(3);
    let dataset = Dataset::create_root(&m.objects, &[]).unwrap();
    (0..BLOCKS_MAX as u64).for_each(|n| m.pool.error_log().note_block(block(n, n), format!("reason {n}")));
    dataset.record_errors().unwrap();
    m.pool.commit().unwrap();
    let directory = terrane_dataset::ObjectZap::new(
        &terrane_dataset::ZapPolicy::of(m.objects.mos()),
        m.objects.mos().hold(POOL_DIRECTORY).unwrap(),
    );
    let number = |directory: &terrane_dataset::ObjectZap| directory.lookup_u64(b"errors").unwrap().unwrap();
    let log = number(&directory);
    assert!(rot(&m.pool, &m.device, (m.objects.mos().id().0, log)) > 2);
    m.pool.export().unwrap();
    let device = m.device.clone();
    drop((directory, dataset, m));
    // The pool opens in spite of it.
    let (pool, dataset) = reimport(&device, false);
    let errors = pool.errors();
    assert!(errors.blocks.iter().all(|block| block.reason.contains("checksum")), "{errors:?}");
    fill(&pool);
    dataset.record_errors().unwrap();
    let found = pool.errors();
    assert!(found.blocks.len() > errors.blocks.len());
    pool.export().unwrap();
    drop(dataset);
    let (pool, _dataset) = reimport(&device, true);
    let mut errors = pool.errors();
    let by_owner = |block: &DamagedBlock| format!("{:?}", block.owner);
    let mut found = found;
    [&mut errors, &mut found].into_iter().for_each(|errors| errors.blocks.sort_by_key(by_owner));
    assert_eq!(errors, found);
    pool.abandon();
}

#[test]
fn full_pool_stores_its_error_log() {
    let m = Machine::with_zones_of(4, 1 << 20);
    let dataset = Dataset::create_root(&m.objects, &[("compression", "off")]).unwrap();
    let set = dataset.object_set();
    let spec = terrane_object::ObjectSpec {
        kind: terrane_object::ObjectKind::File,
        block_size: 1 << 17,
        dnode_slots: 1,
        bonus: Vec::new(),
        spill: None,
    };
    let object = {
        let tx =
            set.begin(Cost { write_bytes: 1 << 17, meta_blocks: 16, objects: 1, ..Cost::NOTHING }).unwrap();
        set.create(&tx, spec).unwrap()
    };
    let mut offset = 0;
    let refused = loop {
        let cost = Cost { write_bytes: 1 << 17, meta_blocks: 16, objects: 1, ..Cost::NOTHING };
        match set.begin(cost) {
            Ok(tx) => object.write(&tx, offset, &vec![offset as u8 | 1; 1 << 17]).unwrap(),
            Err(error) => break error,
        }
        offset += 1 << 17;
    };
    assert!(refused.to_string().contains("room") || refused.to_string().contains("space"), "{refused}");
    fill(&m.pool);
    dataset.record_errors().unwrap();
    m.pool.commit().unwrap();
    let found = m.pool.errors();
    drop((object, dataset));
    let m = m.crash();
    let _dataset = Dataset::open_root(&m.objects).unwrap();
    assert_eq!(m.pool.errors(), found);
}
