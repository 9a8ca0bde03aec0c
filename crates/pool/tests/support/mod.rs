//! A pool on a simulated device, with a client that keeps a flat list of blocks.

pub mod disk;
pub mod joint;
pub mod logging;

use parking_lot::Mutex;
use std::sync::Arc;
use terrane_codec::{ChecksumKind, Compression};
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_format::{BlockPtr, Owner};
use terrane_pool::{Client, CreateOptions, ImportOptions, Pool, Stream, TxgSync, WriteRequest};
use terrane_space::policy::{CollectionOptions, Placement};
use terrane_store::PoolError;
use terrane_store::env::{Env, SeededEnv};
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

/// A list of blocks; slot n holds the bytes of `fill(n, version)`.
pub struct Toy {
    pub state: Mutex<State>,
}

#[derive(Default, Clone)]
pub struct State {
    pub versions: Vec<u64>,
    pub pointers: Vec<BlockPtr>,
    pub dirty: Vec<usize>,
    pub root: BlockPtr,
    pub committed: Vec<(Txg, Vec<u64>)>,
    /// Freed with the next txg that changes something, whether or not they are live.
    pub wrong_frees: Vec<BlockPtr>,
}

pub fn fill(slot: usize, version: u64) -> Vec<u8> {
    let env = SeededEnv::new(slot as u64 * 7919 + version);
    let len = 200 + (env.random_u64() % 30_000) as usize;
    let mut out = Vec::new();
    while out.len() < len {
        out.extend_from_slice(&env.random_u64().to_le_bytes());
    }
    out
}

pub fn owner(slot: usize) -> Owner {
    Owner::Block { objset: 1, object: slot as u64, level: 0, block: 0 }
}

impl Client for Toy {
    fn quiesced(&self, _last: &terrane_pool::Tx) {}

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        let mut state = self.state.lock();
        let mut dirty = std::mem::take(&mut state.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        if dirty.is_empty() && !state.root.is_hole() {
            let now = (txg_sync.txg(), state.versions.clone());
            state.committed.push(now);
            return Ok(state.root.clone());
        }
        let requests = dirty
            .iter()
            .map(|&slot| {
                request(
                    fill(slot, state.versions[slot]),
                    owner(slot),
                    if slot % 3 == 0 {
                        Stream::Metadata
                    } else {
                        Stream::Data(Placement { file: slot as u64 + 1, ..Placement::default() })
                    },
                )
            })
            .collect();
        std::mem::take(&mut state.wrong_frees).iter().for_each(|ptr| txg_sync.release(ptr));
        let pointers = txg_sync.write(requests)?;
        for (slot, ptr) in dirty.into_iter().zip(pointers) {
            txg_sync.release(&std::mem::replace(&mut state.pointers[slot], ptr));
        }
        let mut raw: Vec<u8> = state.pointers.iter().flat_map(|ptr| ptr.encode()).collect();
        raw.extend(state.versions.iter().flat_map(|version| version.to_le_bytes()));
        let new_root = txg_sync.write(vec![request(raw, owner(1 << 20), Stream::Metadata)])?.remove(0);
        txg_sync.release(&std::mem::replace(&mut state.root, new_root));
        let now = (txg_sync.txg(), state.versions.clone());
        state.committed.push(now);
        Ok(state.root.clone())
    }

    fn synced(&self, _txg: Txg) {}
}

pub fn request(data: Vec<u8>, owner: Owner, stream: Stream) -> WriteRequest {
    WriteRequest {
        data: Arc::new(data),
        kind: 1,
        compression: Compression::Lz4.into(),
        checksum: ChecksumKind::Blake3,
        owner,
        fill: 1,
        content_birth: None,
        stream,
        may_embed: false,
        replaces: None,
    }
}

pub const SLOTS: usize = 400;

pub fn sim(seed: u64, hardware: bool) -> SimDevice {
    SimDevice::new(SimConfig {
        seed,
        zone_count: 48,
        zone_size: 1 << 20,
        hardware_pointers: hardware,
        ..SimConfig::default()
    })
    .unwrap()
}

pub fn create(device: &SimDevice, seed: u64) -> (Arc<Pool>, Arc<Toy>) {
    create_on(vec![Arc::new(device.clone())], &CreateOptions::named("toy"), seed)
}

pub fn create_on(devices: Vec<Arc<dyn Device>>, create: &CreateOptions, seed: u64) -> (Arc<Pool>, Arc<Toy>) {
    create_with(devices, create, &options(), seed)
}

pub fn create_with(
    devices: Vec<Arc<dyn Device>>,
    create: &CreateOptions,
    options: &ImportOptions,
    seed: u64,
) -> (Arc<Pool>, Arc<Toy>) {
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
    let pool = Pool::create(devices, create, env, options).unwrap();
    let toy = empty_toy();
    pool.set_client(toy.clone());
    (pool, toy)
}

/// For a client with further blocks.
pub fn empty_toy() -> Arc<Toy> {
    let toy = Arc::new(Toy { state: Mutex::default() });
    toy.state.lock().versions = vec![0; SLOTS];
    toy.state.lock().pointers = vec![BlockPtr::default(); SLOTS];
    toy
}

pub fn options() -> ImportOptions {
    ImportOptions { cache_bytes: 8 << 20, ..ImportOptions::default() }
}

pub fn import(device: &SimDevice, seed: u64) -> Result<(Arc<Pool>, Arc<Toy>), PoolError> {
    import_from(vec![Arc::new(device.clone())], seed)
}

pub fn import_from(devices: Vec<Arc<dyn Device>>, seed: u64) -> Result<(Arc<Pool>, Arc<Toy>), PoolError> {
    import_with(devices, &options(), seed)
}

pub fn import_with(
    devices: Vec<Arc<dyn Device>>,
    options: &ImportOptions,
    seed: u64,
) -> Result<(Arc<Pool>, Arc<Toy>), PoolError> {
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed ^ 0x5555));
    let pool = Pool::import(devices, env, options)?;
    let toy = Arc::new(Toy { state: Mutex::default() });
    let root = pool.root();
    let mut state = State {
        versions: vec![0; SLOTS],
        pointers: vec![BlockPtr::default(); SLOTS],
        root: root.clone(),
        ..State::default()
    };
    if !root.is_hole() {
        let raw = pool.read(&root, owner(1 << 20))?;
        for slot in 0..SLOTS {
            state.pointers[slot] = BlockPtr::parse(&raw[slot * 128..][..128], &"toy")?;
            state.versions[slot] = u64::from_le_bytes(raw[SLOTS * 128 + slot * 8..][..8].try_into().unwrap());
        }
    }
    *toy.state.lock() = state;
    pool.set_client(toy.clone());
    Ok((pool, toy))
}

/// Checks that every block has the bytes of its version.
pub fn verify_content(pool: &Arc<Pool>, toy: &Toy) {
    let state = toy.state.lock();
    for (slot, ptr) in state.pointers.iter().enumerate().filter(|(_, ptr)| !ptr.is_hole()) {
        let block = pool.read(ptr, owner(slot)).unwrap_or_else(|error| panic!("slot {slot}: {error}"));
        assert!(*block == fill(slot, state.versions[slot]), "slot {slot}");
    }
}

/// From the next txg on, only as many zones are open as space is kept for.
pub fn open_few_zones(pool: &Pool) {
    pool.set_collection(CollectionOptions { open_zones_max: Some(2), ..pool.collection() });
}

/// Checks that every block has the bytes of its version, that every copy is whole, and that the accounting is
/// right.
pub fn verify(pool: &Arc<Pool>, toy: &Toy) {
    verify_with(pool, toy, 0);
}

/// The same, with this many bytes of blocks that the toy does not know.
pub fn verify_with(pool: &Arc<Pool>, toy: &Toy, others: u64) {
    let state = toy.state.lock();
    let mut live: u64 = others + state.root.allocated_bytes();
    for slot in 0..SLOTS {
        let ptr = &state.pointers[slot];
        live += ptr.allocated_bytes();
        if !ptr.is_hole() {
            let block = pool.read(ptr, owner(slot)).unwrap_or_else(|error| panic!("slot {slot}: {error}"));
            assert!(*block == fill(slot, state.versions[slot]), "slot {slot}");
            assert!(pool.verify(ptr).is_empty(), "slot {slot}: {:?}", pool.verify(ptr));
        }
    }
    assert_eq!(pool.check_tables(), vec![]);
    assert_eq!(pool.errors().findings, Vec::<String>::new());
    let boot: u64 =
        pool.bootstrap_blocks().iter().map(|(_, len)| terrane_format::granule_bytes(u64::from(*len))).sum();
    assert_eq!(pool.status().live_bytes, live + boot, "live = reachable + bootstrap {boot}");
}

/// Commits txgs of random overwrites, and notes the versions of each committed txg.
pub fn work(pool: &Arc<Pool>, toy: &Toy, env: &SeededEnv, txgs: usize) -> Result<(), PoolError> {
    for _ in 0..txgs {
        let tx = pool.begin(Cost { write_bytes: 1 << 20, meta_blocks: 4, ..Cost::NOTHING })?;
        let count = 1 + env.random_u64() % 60;
        let mut state = toy.state.lock();
        for _ in 0..count {
            let slot = (env.random_u64() % SLOTS as u64) as usize;
            state.versions[slot] += 1;
            state.dirty.push(slot);
        }
        drop(state);
        drop(tx);
        pool.commit()?;
    }
    Ok(())
}
