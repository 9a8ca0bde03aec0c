//! A metadata server: objects with empty ZAPs, entered in a parent with three integers each; created, looked
//! up and removed in numeric order, as mdtest does.

use crate::pool::{self, BenchPool};
use crate::table::Row;
use crate::zaps::{Dnodes, in_tx, new_zap};
use crate::{Name, PhaseTime, Run, cpu, in_threads};
use std::hint::black_box;
use std::time::Instant;
use terrane_dataset::{INITIAL_BLOCK_BYTES, ObjectZap};
use terrane_object::dnode::SLOTS_PER_BLOCK;
use terrane_object::{ObjectKind, ObjectSet, ObjectSpec};
use terrane_wire::ObjectId;
use terrane_zap::ValueRef;

/// Attributes of a directory, in bytes.
const BONUS_BYTES: usize = 160;

pub fn rows(run: &Run, names: usize) -> Vec<Row> {
    let BenchPool { pool, objects: _objects, dataset } = pool::create(&run.path);
    let set = dataset.object_set();
    let per_thread = names / run.threads;
    let ops = (per_thread * run.threads) as u64;
    let mut parents: Vec<ObjectZap> = (0..run.threads).map(|_| new_zap(&dataset)).collect();
    set.commit().unwrap();
    // Runs it for all numbers, and commits what it changed.
    let phase = |parents: &mut [ObjectZap], each: fn(&ObjectSet, &mut ObjectZap, usize)| {
        let (start, process) = (Instant::now(), cpu::process_cpu_ns());
        let took = in_threads(parents, |_, parent| (0..per_thread).for_each(|n| each(set, parent, n)));
        set.commit().unwrap();
        let process_ns = cpu::process_cpu_ns() - process;
        PhaseTime { wall_ns: start.elapsed().as_nanos() as u64, process_ns, ..took }
    };
    let row = |what, took| Row { group: "server", what, threads: run.threads, ops, took, index_bytes: None };

    let created = row("create", phase(&mut parents, create));
    let stated = row("stat", phase(&mut parents, stat));
    let removed = row("remove", phase(&mut parents, remove));
    pool.export().unwrap();
    vec![created, stated, removed]
}

/// Objects with adjacent numbers lie in the same block of dnodes.
fn dnode(number: usize) -> Dnodes {
    Dnodes { objects: 1, blocks: u32::from((number as u64).is_multiple_of(SLOTS_PER_BLOCK)) }
}

fn name() -> Name {
    Name::new("dir-", 8)
}

fn create(set: &ObjectSet, parent: &mut ObjectZap, number: usize) {
    in_tx(set, parent, 1, dnode(number), |parent, tx| {
        let spec = ObjectSpec {
            kind: ObjectKind::Directory,
            block_size: INITIAL_BLOCK_BYTES,
            dnode_slots: 1,
            bonus: vec![number as u8; BONUS_BYTES],
            spill: None,
        };
        let made = set.create(tx, spec).unwrap();
        let value = [made.id().0, number as u64, 0];
        parent.add(tx, name().of(number), ValueRef::U64s(&value)).unwrap();
    });
}

fn find(parent: &ObjectZap, number: usize) -> ObjectId {
    ObjectId(parent.lookup_u64(name().of(number)).unwrap().unwrap())
}

fn stat(set: &ObjectSet, parent: &mut ObjectZap, number: usize) {
    let object = set.hold(find(parent, number)).unwrap();
    assert_eq!(object.bonus().len(), BONUS_BYTES);
    black_box(object.block_count());
}

fn remove(set: &ObjectSet, parent: &mut ObjectZap, number: usize) {
    let object = set.hold(find(parent, number)).unwrap();
    in_tx(set, parent, 1, dnode(number), |parent, tx| {
        assert!(parent.remove(tx, name().of(number)).unwrap());
        set.destroy(tx, &object).unwrap();
    });
}
