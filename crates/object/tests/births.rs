//! The two births of a block: the txg that wrote its content, and the txg that wrote the block.

use crate::support;
use std::sync::Arc;
use support::{COST, World, create, file_of, import, noise, options, sim};
use terrane_codec::Compressor;
use terrane_format::{BlockPtr, Feature};
use terrane_object::{Object, ObjectSets};
use terrane_pool::{CreateOptions, Pool};
use terrane_store::env::{Env, SeededEnv};
use terrane_store::pipeline::PreEncoded;
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

fn pointer(object: &Arc<Object>, block: u64) -> BlockPtr {
    object.stored_pointer(block).unwrap().unwrap()
}

/// Stores a block in another form, in its own txg.
fn recode(pool: &Arc<Pool>, object: &Arc<Object>, block: u64, word: &str) {
    let (ptr, content) = object.stored_block(block).unwrap().unwrap();
    let encoded = PreEncoded::compress(&mut Compressor::new(), &content, word.parse().unwrap());
    let tx = pool.begin(Cost { write_bytes: 1 << 20, ..COST }).unwrap();
    assert!(object.recode_block(&tx, block, (&ptr, content), encoded).unwrap());
    drop(tx);
    pool.commit().unwrap();
}

fn blocks_changed_since(object: &Arc<Object>, since: Txg) -> Vec<u64> {
    let changes = object.changes_since(since, 0, u64::MAX).unwrap();
    changes.written.into_iter().flat_map(|range| range.start / 512..range.end / 512).collect()
}

/// Words, so that another form gives other bytes.
fn text(seed: u64) -> Vec<u8> {
    noise(seed, 512).into_iter().map(|byte| b"abcdefgh"[usize::from(byte % 8)]).collect()
}

fn file_of_text(world: &World, records: u64) -> Arc<Object> {
    let object = file_of(world, records);
    for record in 0..records {
        let tx = world.pool.begin(COST).unwrap();
        object.write(&tx, record * 512, &text(record)).unwrap();
    }
    world.pool.commit().unwrap();
    object
}

#[test]
fn recoded_block_keeps_its_content_birth() {
    let device = sim(41);
    let world = create(&device, 41);
    let object = file_of_text(&world, 9);
    let since = world.pool.status().txg.next();
    let before: Vec<BlockPtr> = (0..9).map(|block| pointer(&object, block)).collect();
    recode(&world.pool, &object, 3, "gzip-9");
    // Back to the first form: the block is new, but the birth of its content is unchanged.
    recode(&world.pool, &object, 3, "zstd-3");
    let after = pointer(&object, 3);
    assert_ne!(after, before[3]);
    assert_eq!(after.logical_birth(), before[3].logical_birth());
    assert!(after.block_birth() > before[3].block_birth());
    assert_eq!(after.latest_birth(), after.block_birth());
    assert_eq!(blocks_changed_since(&object, since), Vec::<u64>::new());
    // A write after the rewrite changes the block's content birth, even in the same txg.
    let (ptr, content) = object.stored_block(5).unwrap().unwrap();
    let encoded = PreEncoded::compress(&mut Compressor::new(), &content, "gzip-9".parse().unwrap());
    let tx = world.pool.begin(COST).unwrap();
    assert!(object.recode_block(&tx, 5, (&ptr, content), encoded).unwrap());
    object.write(&tx, 5 * 512 + 7, b"new").unwrap();
    drop(tx);
    world.pool.commit().unwrap();
    assert_eq!(pointer(&object, 5).logical_birth(), pointer(&object, 5).block_birth());
    assert_eq!(blocks_changed_since(&object, since), vec![5]);
    assert_eq!(world.pool.check_tables(), vec![]);
    // The births are on the device: an import reads the same ones.
    let id = object.id();
    drop(object);
    world.pool.export().unwrap();
    let world = import(&device, 41);
    let object = world.set.hold(id).unwrap();
    assert_eq!(pointer(&object, 3), after);
    assert_eq!(*object.read_block(3).unwrap(), text(3));
    assert_eq!(blocks_changed_since(&object, since), vec![5]);
}

/// A version without the feature takes a pointer that is younger than its content for damage.
#[test]
fn a_pool_that_older_versions_can_read_gets_equal_births() {
    let device = sim(42);
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(42));
    let features = Feature::defaults().into_iter().filter(|feature| *feature != Feature::Births).collect();
    let create = CreateOptions { features, ..CreateOptions::named("old") };
    let pool = Pool::create(vec![Arc::new(device.clone())], &create, env, &options()).unwrap();
    let objects = ObjectSets::create(pool.clone()).unwrap();
    let tx = pool.begin(COST).unwrap();
    let id = objects.create_objset(&tx).unwrap();
    drop(tx);
    let policy = Arc::new(support::KeepOlder::default());
    let set = objects.open_objset(id, policy.clone()).unwrap();
    let world = World { pool: pool.clone(), policy, _objects: objects, set };
    let object = file_of_text(&world, 4);
    recode(&pool, &object, 1, "gzip-9");
    let equal = |ptr: &BlockPtr| ptr.logical_birth() == ptr.block_birth();
    assert!(equal(&pointer(&object, 1)));
    pool.enable(&[Feature::Births]).unwrap();
    recode(&pool, &object, 1, "zstd-3");
    assert!(!equal(&pointer(&object, 1)));
}
