//! GC that makes more runs than one commit record has space for.

use crate::support::{options, owner, request};
use parking_lot::Mutex;
use std::sync::Arc;
use terrane_codec::Compression;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_format::BlockPtr;
use terrane_pool::{Client, CreateOptions, Pool, Stream, Tx, TxgSync, WriteRequest};
use terrane_space::policy::Placement;
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

const BLOCKS: usize = 200_000;

/// Small blocks, alternately of metadata and of data, some of which are freed.
#[derive(Default)]
struct Many(Mutex<State>);

#[derive(Default)]
struct State {
    blocks: Vec<BlockPtr>,
    wanted: usize,
    released: Vec<BlockPtr>,
    root: BlockPtr,
}

fn content(block: usize) -> Vec<u8> {
    let env = SeededEnv::new(block as u64);
    (0..14).flat_map(|_| env.random_u64().to_le_bytes()).collect()
}

fn block_request(block: usize) -> WriteRequest {
    let data = Stream::Data(Placement { file: 1, ..Placement::default() });
    let stream = if block.is_multiple_of(2) { Stream::Metadata } else { data };
    WriteRequest { compression: Compression::Off.into(), ..request(content(block), owner(block), stream) }
}

/// Every third pair is freed.
fn is_gone(block: usize) -> bool {
    block / 2 % 3 == 1
}

impl Client for Many {
    fn quiesced(&self, _last: &Tx) {}

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let mut state = self.0.lock();
        let first = state.blocks.len();
        if first == state.wanted && state.released.is_empty() {
            return Ok(state.root.clone());
        }
        // One request at a time, so that blocks of both kinds lie next to each other.
        for block in first..state.wanted {
            let mut written = txg_sync.write(vec![block_request(block)])?;
            state.blocks.append(&mut written);
        }
        std::mem::take(&mut state.released).iter().for_each(|ptr| txg_sync.release(ptr));
        let root = txg_sync.write(vec![request(content(BLOCKS), owner(BLOCKS), Stream::Metadata)])?.remove(0);
        txg_sync.release(&std::mem::replace(&mut state.root, root));
        Ok(state.root.clone())
    }

    fn synced(&self, _txg: Txg) {}
}

#[test]
fn a_txg_moves_no_more_than_fits_its_record() {
    // So few zones may be open that metadata and data share them.
    let config = SimConfig { zone_count: 200, max_active: 4, ..SimConfig::default() };
    let device = SimDevice::new(config).unwrap();
    let devices = || -> Vec<Arc<dyn Device>> { vec![Arc::new(device.clone())] };
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(1));
    let pool = Pool::create(devices(), &CreateOptions::named("many"), env, &options()).unwrap();
    let many = Arc::new(Many::default());
    pool.set_client(many.clone());
    for wanted in (0..BLOCKS).step_by(BLOCKS / 8).skip(1).chain([BLOCKS]) {
        let tx = pool.begin(Cost { write_bytes: 8 << 20, ..Cost::NOTHING }).unwrap();
        many.0.lock().wanted = wanted;
        drop(tx);
        pool.commit().unwrap();
    }
    let verify = || {
        let state = many.0.lock();
        for block in (0..BLOCKS).filter(|block| !is_gone(*block)).step_by(7) {
            let found = pool.read(&state.blocks[block], owner(block)).unwrap();
            assert!(*found == content(block), "block {block}");
        }
    };
    let tx = pool.begin(Cost { write_bytes: 1 << 20, frees: true, ..Cost::NOTHING }).unwrap();
    {
        let state = &mut *many.0.lock();
        let gone = (0..BLOCKS).filter(|block| is_gone(*block));
        state.released = gone.map(|block| state.blocks[block].clone()).collect();
    }
    drop(tx);
    pool.commit().unwrap();
    pool.gc_request(0).unwrap();
    while !pool.gc_progress().done {
        pool.commit_txg(pool.open_txg()).unwrap();
    }
    let runs = pool.stats().runs;
    assert!(runs > 70_000, "{runs} runs");
    verify();
    assert_eq!(pool.check_tables(), vec![]);
    assert_eq!(pool.errors().findings, Vec::<String>::new());
}
