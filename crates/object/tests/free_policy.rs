//! Which blocks leave an object set, and what happens to those that a policy keeps.

use crate::support::{COST, World, create, file_of, noise, sim};
use std::collections::BTreeSet;
use terrane_format::{BlockPtr, Owner};
use terrane_object::Object;
use terrane_txg::cost::Cost;
use terrane_wire::ObjectId;

const LARGE: Cost = Cost { write_bytes: 4 << 20, meta_blocks: 64, ..Cost::NOTHING };
/// Two levels of indirect blocks, so that a destroyed file waits in the free queue.
const RECORDS: u64 = 40;

fn commit(world: &World) {
    world.pool.commit_txg(world.pool.open_txg()).unwrap();
}

/// From now on, blocks born before are kept.
fn keep_all(world: &World) {
    commit(world);
    world.policy.decided.lock().unwrap().clear();
    *world.policy.keep_before.lock().unwrap() = world.pool.open_txg();
}

fn take_decided(world: &World) -> Vec<BlockPtr> {
    std::mem::take(&mut *world.policy.decided.lock().unwrap())
}

/// The tree of an object as stored: level, index, pointer.
fn tree_of(world: &World, object: &Object) -> Vec<(u8, u64, BlockPtr)> {
    let dnode = object.dnode();
    let mut found = vec![(dnode.levels - 1, 0, dnode.root.clone())];
    let mut at = 0;
    while let Some((level, index, ptr)) = found.get(at).cloned() {
        at += 1;
        if level == 0 {
            continue;
        }
        let raw = world.pool.read(&ptr, owner(world, object.id(), level, index)).unwrap();
        for (child, raw) in (0..).zip(raw.chunks_exact(BlockPtr::SIZE)) {
            let ptr = BlockPtr::parse(raw, &"a test").unwrap();
            if !ptr.is_hole() {
                found.push((level - 1, index * dnode.pointers_per_block() + child, ptr));
            }
        }
    }
    found
}

fn owner(world: &World, object: ObjectId, level: u8, block: u64) -> Owner {
    Owner::Block { objset: world.set.id().0, object: object.0, level, block }
}

fn used(world: &World) -> u64 {
    world.pool.space().1
}

#[test]
fn a_block_that_a_policy_keeps_stays_allocated_and_readable() {
    let mut accounts = Vec::new();
    let mut left = Vec::new();
    for keeps in [true, false] {
        let world = create(&sim(2), 2);
        let file = file_of(&world, RECORDS);
        let id = file.id();
        let tx = world.pool.begin(COST).unwrap();
        file.set_attributes(&tx, Vec::new(), Some(noise(77, 4096))).unwrap();
        drop(tx);
        if keeps {
            keep_all(&world);
        } else {
            commit(&world);
        }
        let (root, tree, spill) = (world.set.root(), tree_of(&world, &file), file.dnode().spill);
        let header = Owner::Block {
            objset: world.set.id().0,
            object: terrane_object::objset::HEADER,
            level: 0,
            block: 0,
        };
        let stored = world.pool.read(&root, header).unwrap();
        let before = used(&world);
        // Overwritten, truncated, and destroyed.
        let tx = world.pool.begin(LARGE).unwrap();
        file.write(&tx, 3 * 512, &noise(1000, 512)).unwrap();
        file.set_attributes(&tx, Vec::new(), None).unwrap();
        drop(tx);
        commit(&world);
        let tx = world.pool.begin(LARGE).unwrap();
        file.truncate(&tx, 10 * 512).unwrap();
        drop(tx);
        commit(&world);
        let tx = world.pool.begin(LARGE).unwrap();
        world.set.destroy(&tx, &file).unwrap();
        drop((tx, file));
        (0..6).for_each(|_| commit(&world));
        assert!(world.set.inner_trees().2.is_empty());
        accounts.push(world.set.account().unwrap());
        left.push(before.saturating_sub(used(&world)));
        assert_eq!(world.pool.check_tables(), vec![]);
        if !keeps {
            continue;
        }
        world.pool.drop_cache();
        for (level, index, ptr) in tree {
            let content = world.pool.read(&ptr, owner(&world, id, level, index)).unwrap();
            assert!(level > 0 || *content == noise(index, 512), "block {index}");
        }
        let spill = world.pool.read(&spill, owner(&world, id, 0, terrane_format::directory::SPILL)).unwrap();
        assert_eq!(*spill, noise(77, 4096));
        assert_eq!(world.pool.read(&root, header).unwrap(), stored);
    }
    assert_eq!(accounts[0], accounts[1], "what is kept belongs to the set no more");
    assert_eq!(left[0], 0, "nothing was freed");
    assert!(left[1] >= RECORDS * 512, "and all of it without the policy: {left:?}");
}

#[test]
fn free_policy_decides_once_per_block() {
    let world = create(&sim(3), 3);
    let file = file_of(&world, RECORDS);
    let tx = world.pool.begin(COST).unwrap();
    file.set_attributes(&tx, Vec::new(), Some(noise(77, 4096))).unwrap();
    drop(tx);
    commit(&world);
    take_decided(&world);
    let tree = tree_of(&world, &file);
    let (root, spill) = (world.set.root(), file.dnode().spill);
    assert!(file.dnode().levels >= 2, "or it says little");
    let tx = world.pool.begin(LARGE).unwrap();
    world.set.destroy(&tx, &file).unwrap();
    drop(tx);
    (0..4).for_each(|_| commit(&world));
    let left = take_decided(&world);
    let addresses: BTreeSet<String> = left.iter().map(|ptr| format!("{ptr:?}")).collect();
    assert_eq!(addresses.len(), left.len(), "none is judged twice");
    for ptr in tree.iter().map(|(_, _, ptr)| ptr).chain([&root, &spill]) {
        assert!(matches!(ptr, BlockPtr::Normal(_)) && left.contains(ptr), "{ptr:?}");
    }
}
