//! Names added to, looked up in and removed from ZAPs.

use crate::pool::{self, BenchPool};
use crate::table::Row;
use crate::{Name, PhaseTime, Run, in_threads, scattered};
use std::hint::black_box;
use terrane_dataset::{Dataset, ObjectZap, ZapError};
use terrane_object::{ObjectKind, ObjectSet};
use terrane_pool::Tx;
use terrane_txg::cost::Cost;
use terrane_zap::ValueRef;

const OPS_IN_TX: u32 = 100;
/// Blocks of a tree above the leaves that one batch dirties.
const BLOCKS_ABOVE: u32 = 4;

struct Shape {
    group: &'static str,
    prefix: &'static str,
    digits: usize,
    /// Integers per value.
    ints: usize,
    /// ZAPs, over all threads.
    dirs: usize,
    /// Names in each.
    names: usize,
}

pub fn micro(run: &Run, dirs: usize, names: usize) -> Vec<Row> {
    rows(run, &Shape { group: "micro", prefix: "file-", digits: 6, ints: 1, dirs, names })
}

pub fn tiny(run: &Run, dirs: usize, names: usize) -> Vec<Row> {
    rows(run, &Shape { group: "tiny", prefix: "file-", digits: 6, ints: 3, dirs, names })
}

pub fn fat(run: &Run, names: usize) -> Vec<Row> {
    // Two threads have half of the names each, in a ZAP of their own.
    let (dirs, names) = (run.threads, names / run.threads);
    rows(run, &Shape { group: "fat", prefix: "fid-", digits: 8, ints: 3, dirs, names })
}

/// Runs one batch of changes in a transaction. It reserves for the worst case and returns what it did not
/// dirty, as a caller does that wants large txgs.
pub fn in_tx(
    set: &ObjectSet,
    zap: &mut ObjectZap,
    names: u32,
    dnodes: Dnodes,
    change: impl FnOnce(&mut ObjectZap, &Tx),
) {
    // Any name of the benchmark, with any of its values.
    let cost = zap.put_cost(16, ValueRef::U64s(&[0; 3]));
    let names = u32::try_from(cost.of_many(u64::from(names)).div_ceil(16 << 10)).unwrap();
    let meta_blocks = names + BLOCKS_ABOVE + dnodes.blocks;
    // What the ZAP dirties is counted at the end.
    let names_bytes = Some(u64::from(names + BLOCKS_ABOVE) << 14);
    let tx = set.begin(Cost { meta_blocks, names_bytes, objects: dnodes.objects, ..Cost::NOTHING }).unwrap();
    let before = zap.object().dirty_blocks(&tx);
    change(zap, &tx);
    let dirtied = zap.object().dirty_blocks(&tx).saturating_sub(before);
    tx.return_reservation((names + BLOCKS_ABOVE).saturating_sub(dirtied as u32));
}

/// Objects that a batch creates or destroys, and blocks of dnodes for them that are not reserved yet.
#[derive(Clone, Copy, Default)]
pub struct Dnodes {
    pub objects: u32,
    pub blocks: u32,
}

pub fn new_zap(dataset: &Dataset) -> ObjectZap {
    let tx = dataset.object_set().begin(Cost { meta_blocks: 2, objects: 1, ..Cost::NOTHING }).unwrap();
    dataset.new_zap(&tx, ObjectKind::Zap).unwrap()
}

fn rows(run: &Run, shape: &Shape) -> Vec<Row> {
    let BenchPool { pool, objects: _objects, dataset } = pool::create(&run.path);
    let set = dataset.object_set();
    let per_thread = (shape.dirs / run.threads).max(1);
    let part = |_| (0..per_thread).map(|_| new_zap(&dataset)).collect();
    let mut parts: Vec<Vec<ObjectZap>> = (0..run.threads).map(part).collect();
    set.commit().unwrap();
    let dirs = (per_thread * run.threads) as u64;
    let ops = dirs * shape.names as u64;
    let row = |what, ops, took| Row {
        group: shape.group,
        what,
        threads: run.threads,
        ops,
        took,
        index_bytes: None,
    };
    let mut rows = Vec::new();

    let took = in_threads(&mut parts, |_, zaps| zaps.iter_mut().for_each(|zap| add_all(set, shape, zap)));
    rows.push(Row { index_bytes: index_bytes(&parts, ops), ..row("add", ops, took) });
    set.commit().unwrap();

    // Once to warm the cache, and once to measure.
    let look = |_: usize, zaps: &mut Vec<ObjectZap>| zaps.iter().for_each(|zap| look_up_all(shape, zap));
    in_threads(&mut parts, look);
    rows.push(row("lookup", ops, in_threads(&mut parts, look)));

    if shape.names < 1 << 14 {
        let took = build_indexes(&dataset, shape, &mut parts);
        rows.push(Row { index_bytes: index_bytes(&parts, ops), ..row("index", dirs, took) });
    }

    let took = in_threads(&mut parts, |_, zaps| zaps.iter_mut().for_each(|zap| remove_all(set, shape, zap)));
    rows.push(row("remove", ops, took));
    pool.export().unwrap();
    rows
}

fn add_all(set: &ObjectSet, shape: &Shape, zap: &mut ObjectZap) {
    let mut name = Name::new(shape.prefix, shape.digits);
    for first in (0..shape.names).step_by(OPS_IN_TX as usize) {
        in_tx(set, zap, OPS_IN_TX, Dnodes::default(), |zap, tx| {
            for number in first..(first + OPS_IN_TX as usize).min(shape.names) {
                let value = [number as u64, 1, 0];
                zap.add(tx, name.of(number), ValueRef::U64s(&value[..shape.ints])).unwrap();
            }
        });
    }
}

fn look_up_all(shape: &Shape, zap: &ObjectZap) {
    let mut name = Name::new(shape.prefix, shape.digits);
    for number in scattered(shape.names) {
        let found = zap.lookup(name.of(number)).unwrap().unwrap();
        assert_eq!(found.first_integer(), Some(number as u64));
        black_box(found);
    }
}

fn remove_all(set: &ObjectSet, shape: &Shape, zap: &mut ObjectZap) {
    let mut name = Name::new(shape.prefix, shape.digits);
    let mut numbers = scattered(shape.names).peekable();
    while numbers.peek().is_some() {
        in_tx(set, zap, OPS_IN_TX, Dnodes::default(), |zap, tx| {
            for number in numbers.by_ref().take(OPS_IN_TX as usize) {
                assert!(zap.remove(tx, name.of(number)).unwrap());
            }
        });
    }
}

/// Drops the index of each ZAP, and adds a name that exists: this is refused, but only after the index is
/// built.
fn build_indexes(dataset: &Dataset, shape: &Shape, parts: &mut [Vec<ObjectZap>]) -> PhaseTime {
    for zap in parts.iter_mut().flatten() {
        *zap = dataset.open_zap(zap.object().id()).unwrap();
        black_box(zap.is_empty().unwrap());
    }
    let tx = dataset.object_set().begin(Cost::NOTHING).unwrap();
    in_threads(parts, |_, zaps| {
        let mut name = Name::new(shape.prefix, shape.digits);
        for zap in zaps {
            let refused = zap.add(&tx, name.of(0), ValueRef::U64s(&[0, 0, 0][..shape.ints]));
            assert!(matches!(refused, Err(ZapError::Exists)));
        }
    })
}

fn index_bytes(parts: &[Vec<ObjectZap>], names: u64) -> Option<f64> {
    let bytes: usize = parts.iter().flatten().map(ObjectZap::index_bytes).sum();
    (bytes > 0).then(|| bytes as f64 / names as f64)
}
