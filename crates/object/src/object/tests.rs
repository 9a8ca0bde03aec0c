use super::*;
use crate::{ObjectSets, ObjectSpec};
use terrane_device::{SimConfig, SimDevice};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;

/// A file in an object set, with the owner of the set and the open transaction that created it.
fn new_file() -> (Arc<ObjectSets>, Arc<Object>, Tx) {
    let device = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
    let (create, import) = (CreateOptions::named("object"), ImportOptions::default());
    let pool = Pool::create(vec![device], &create, Arc::new(SeededEnv::new(1)), &import).unwrap();
    let objects = ObjectSets::create(pool).unwrap();
    let tx = objects.mos().begin(Cost { write_bytes: 2 << 20, meta_blocks: 16, ..Cost::NOTHING }).unwrap();
    let kind = ObjectKind::File;
    let spec = ObjectSpec { kind, block_size: 4096, dnode_slots: 1, bonus: Vec::new(), spill: None };
    let object = objects.mos().create(&tx, spec).unwrap();
    (objects, object, tx)
}

#[test]
fn next_block_finds_writes_behind_unsynced_frees() {
    let (_objects, object, tx) = new_file();
    (0..100).for_each(|block| object.write(&tx, block * 4096, &[7; 4096]).unwrap());
    // The next txg opens before this one has synced. It truncates to ten blocks, then writes one behind a gap.
    let next = tx.txg().next();
    let mut state = object.state.write();
    state.freeze_before(next);
    state.dirty(next).free(10, u64::MAX);
    state.put(next, 20, Arc::new(vec![9; 4096]));
    drop(state);
    assert_eq!(
        [0, 9, 10, 20, 21].map(|from| object.next_block(from).unwrap()),
        [Some(0), Some(9), Some(20), Some(20), None]
    );
    // The txg before truncates everything, and this one punches a hole.
    let mut state = object.state.write();
    state.open = None;
    Arc::make_mut(state.syncing.as_mut().unwrap()).dirty.freed.add(0, u64::MAX);
    state.dirty(next).free(0, 2);
    drop(state);
    assert_eq!(object.next_block(0).unwrap(), Some(2));
}

#[test]
fn hold_rereads_the_dnode_after_the_last_reference_drops() {
    let (objects, object, tx) = new_file();
    let (set, id) = (objects.mos(), object.id());
    drop((object, tx));
    set.pool().commit().unwrap();
    let epoch = set.table.simulate_last_drop(id);
    let _held = set.hold(id).unwrap();
    assert!(set.table.simulate_last_drop(id) > epoch, "what was read before that is not believed");
}
