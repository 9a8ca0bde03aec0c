use super::*;
use crate::{ObjectSets, ObjectSpec};
use terrane_device::{SimConfig, SimDevice};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;
use terrane_wire::mix64;

/// A file in an object set, with the owner of the set and the open transaction that created it.
fn new_file() -> (Arc<ObjectSets>, Arc<Object>, Tx) {
    new_object(ObjectKind::File)
}

fn new_object(kind: ObjectKind) -> (Arc<ObjectSets>, Arc<Object>, Tx) {
    let device = Arc::new(SimDevice::new(SimConfig::default()).unwrap());
    let (create, import) = (CreateOptions::named("object"), ImportOptions::default());
    let pool = Pool::create(vec![device], &create, Arc::new(SeededEnv::new(1)), &import).unwrap();
    let objects = ObjectSets::create(pool).unwrap();
    let tx = objects.mos().begin(Cost { write_bytes: 2 << 20, meta_blocks: 16, ..Cost::NOTHING }).unwrap();
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

/// A ZAP's object of ten stored blocks, each filled for its number plus one.
fn stored_zap() -> (Arc<ObjectSets>, Arc<Object>) {
    let (objects, object, tx) = new_object(ObjectKind::Zap);
    (0..10).for_each(|block| fill(&object, &tx, block, block as u8 + 1));
    drop(tx);
    objects.mos().pool().commit().unwrap();
    (objects, object)
}

/// The byte, and others that compress to half their size: neither into a pointer nor not at all.
fn content(byte: u8) -> Vec<u8> {
    let nibble = |at: u64| mix64(at << 8 | u64::from(byte)) as u8 & 15;
    [byte].into_iter().chain((1..4096).map(nibble)).collect()
}

fn fill(object: &Arc<Object>, tx: &Tx, block: u64, byte: u8) {
    object.modify_block(tx, block, &mut |data| data.copy_from_slice(&content(byte))).unwrap();
}

fn begin(objects: &ObjectSets) -> Tx {
    objects.mos().begin(Cost { meta_blocks: 16, ..Cost::NOTHING }).unwrap()
}

fn byte_of(object: &Object, block: u64) -> u8 {
    let data = object.read_block(block).unwrap();
    let expected = if data[0] == 0 { vec![0; 4096] } else { content(data[0]) };
    assert!(*data == expected, "block {block}");
    data[0]
}

#[test]
fn recent_blocks_follow_the_tree_through_a_sync() {
    let (objects, object) = stored_zap();
    (0..10).for_each(|block| assert_eq!(byte_of(&object, block), block as u8 + 1));
    let tx = begin(&objects);
    fill(&object, &tx, 3, 33);
    object.free_block(&tx, 5).unwrap();
    fill(&object, &tx, 6, 66);
    object.free_block(&tx, 6).unwrap();
    object.free_block(&tx, 7).unwrap();
    fill(&object, &tx, 7, 77);
    fill(&object, &tx, 40, 44);
    drop(tx);
    objects.mos().pool().commit().unwrap();
    let recent: Vec<u64> = (0..41).filter(|block| object.is_recently_read(*block)).collect();
    assert_eq!(recent, [0, 1, 2, 3, 4, 7, 8, 9, 40], "none is looked up in the tree again");
    let expected = [1, 2, 3, 33, 5, 0, 0, 77, 9, 10];
    let all: Vec<u8> = (0..10).map(|block| byte_of(&object, block)).collect();
    assert_eq!((all, byte_of(&object, 40)), (expected.to_vec(), 44));
    // The same from the tree, and after everything was cut off.
    object.state.write().recent = RecentBlocks::default();
    assert_eq!((byte_of(&object, 3), byte_of(&object, 5), byte_of(&object, 40)), (33, 0, 44));
    let tx = begin(&objects);
    object.truncate(&tx, 2 * 4096).unwrap();
    drop(tx);
    objects.mos().pool().commit().unwrap();
    assert_eq!([0, 1, 2, 3, 40].map(|block| byte_of(&object, block)), [1, 2, 0, 0, 0]);
    assert!(!object.is_recently_read(3) && !object.is_recently_read(40));
}

#[test]
fn a_block_that_only_the_cache_holds_is_changed_in_place() {
    let (objects, object) = stored_zap();
    let place = |block| object.read_block(block).unwrap().as_ptr();
    // The second round finds them by their names as written, the first as read.
    for round in 1..3u8 {
        let (at_1, held) = (place(1), object.read_block(2).unwrap());
        let tx = begin(&objects);
        fill(&object, &tx, 1, 100 + round);
        fill(&object, &tx, 2, 200 + round);
        assert_eq!(place(1), at_1, "round {round}: not copied");
        assert_ne!(place(2), held.as_ptr(), "round {round}: a reader has it");
        assert!(*held == content(held[0]) && held[0] != 200 + round);
        drop(tx);
        objects.mos().pool().commit().unwrap();
        assert_eq!((byte_of(&object, 1), byte_of(&object, 2)), (100 + round, 200 + round));
    }
}
