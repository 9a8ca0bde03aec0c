//! nopwrite keeps an unchanged block, whichever compressor made it.

use crate::support::{options, owner, request, sim};
use parking_lot::Mutex;
use std::sync::Arc;
use terrane_codec::{Compression, Compressor, Outcome, ZstdLevel, max_stored};
use terrane_device::Device;
use terrane_format::BlockPtr;
use terrane_format::block_ptr::Normal;
use terrane_pool::{Client, CreateOptions, ImportOptions, Pool, Stream, Tx, TxgSync, WriteRequest};
use terrane_space::policy::Placement;
use terrane_store::PoolError;
use terrane_store::env::SeededEnv;
use terrane_txg::cost::Cost;
use terrane_wire::Txg;

/// Writes the given requests, each as a block of its own.
#[derive(Default)]
struct Writer {
    requests: Mutex<Vec<WriteRequest>>,
    written: Mutex<Vec<BlockPtr>>,
    root: Mutex<BlockPtr>,
}

impl Client for Writer {
    fn quiesced(&self, _last: &Tx) {}

    fn sync(&self, txg_sync: &mut TxgSync<'_>) -> Result<BlockPtr, PoolError> {
        *self.written.lock() = txg_sync.write(std::mem::take(&mut self.requests.lock()))?;
        let root = vec![txg_sync.txg().0 as u8; 700];
        let new = txg_sync.write(vec![request(root, owner(1000), Stream::Metadata)])?.remove(0);
        txg_sync.release(&std::mem::replace(&mut *self.root.lock(), new.clone()));
        Ok(new)
    }

    fn synced(&self, _txg: Txg) {}
}

impl Writer {
    fn write(&self, pool: &Arc<Pool>, requests: Vec<WriteRequest>) -> Vec<BlockPtr> {
        *self.requests.lock() = requests;
        drop(pool.begin(Cost { write_bytes: 1 << 20, meta_blocks: 8, ..Cost::NOTHING }).unwrap());
        pool.commit().unwrap();
        std::mem::take(&mut self.written.lock())
    }
}

fn pool() -> (Arc<Pool>, Arc<Writer>) {
    let create = CreateOptions::named("nopwrite");
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(sim(1, false))];
    let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(1)), &options()).unwrap();
    let writer = Arc::<Writer>::default();
    pool.set_client(writer.clone());
    (pool, writer)
}

fn zstd(level: u8) -> Compression {
    Compression::Zstd(ZstdLevel::new(level).unwrap())
}

fn data(slot: usize, content: &[u8]) -> WriteRequest {
    let stream = Stream::Data(Placement { file: slot as u64 + 1, ..Placement::default() });
    request(content.to_vec(), owner(slot), stream)
}

/// The block as another version of the library made it: other bytes, another version number in the header.
fn by_another_version(content: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    let outcome = Compressor::new().compress(zstd(7), content, max_stored(content.len()), &mut stored);
    assert_eq!(outcome, Outcome::Compressed);
    // Level 3, version 1.4.5.
    stored[4..8].copy_from_slice(&(3 << 24 | 10_405_u32).to_be_bytes());
    stored
}

#[test]
fn blocks_of_another_compressor_version_are_kept() {
    let (pool, writer) = pool();
    let content: Vec<u8> = (0..40_000_u32).flat_map(|n| (n * n % 1013).to_le_bytes()).collect();
    let raw = by_another_version(&content);
    let stored = WriteRequest { compression: Compression::Off.into(), ..data(1, &raw) };
    let BlockPtr::Normal(ptr) = writer.write(&pool, vec![stored]).remove(0) else { panic!("stored") };
    let old = BlockPtr::Normal(Normal {
        compression: zstd(3).id(),
        lsize: content.len() as u32,
        psize: raw.len() as u32,
        ..ptr
    });
    pool.drop_cache();
    assert_eq!(*pool.read(&old, owner(1)).unwrap(), content);
    let anew =
        || WriteRequest { compression: zstd(3).into(), replaces: Some(old.clone()), ..data(1, &content) };
    assert_eq!(writer.write(&pool, vec![anew()]), std::slice::from_ref(&old));
    // Only if the request allows it.
    let forced = WriteRequest { replaces: None, ..anew() };
    let BlockPtr::Normal(new) = writer.write(&pool, vec![forced]).remove(0) else { panic!("stored") };
    assert_ne!(new.psize as usize, raw.len());
    // Only if the content is the same.
    let mut other = content.clone();
    other[5] ^= 1;
    let changed = WriteRequest { data: Arc::new(other), ..anew() };
    assert_ne!(writer.write(&pool, vec![changed]), std::slice::from_ref(&old));
    assert_eq!(pool.stats().nopwrite_blocks, 1);
    assert_eq!(pool.stats().nopwrite_bytes, content.len() as u64);
}

/// A forged or damaged pointer must match in every field.
#[test]
fn pointers_that_differ_in_anything_do_not_stay() {
    let (pool, writer) = pool();
    let content: Vec<u8> = (0..5000_u32).flat_map(|n| (n * n % 1013).to_le_bytes()).collect();
    let BlockPtr::Normal(ptr) = writer.write(&pool, vec![data(1, &content)]).remove(0) else {
        panic!("stored")
    };
    let replaced = |old: &Normal, stream: Stream| {
        let replaces = Some(BlockPtr::Normal(old.clone()));
        let request = WriteRequest { replaces: replaces.clone(), stream, ..data(1, &content) };
        Some(writer.write(&pool, vec![request]).remove(0)) == replaces
    };
    let stream = data(1, &content).stream;
    assert!(replaced(&ptr, stream));
    let changes: [fn(&mut Normal); 7] = [
        |ptr| ptr.checksum[31] ^= 1,
        |ptr| ptr.checksum_kind = terrane_codec::ChecksumKind::Sha256,
        |ptr| ptr.checksum_kind = terrane_codec::ChecksumKind::Fletcher4,
        |ptr| ptr.kind += 1,
        |ptr| ptr.level = 1,
        |ptr| ptr.psize += 1,
        |ptr| ptr.addrs[1] = ptr.addrs[0],
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut old = ptr.clone();
        change(&mut old);
        assert!(!replaced(&old, stream), "change {at}");
    }
    assert!(!replaced(&ptr, Stream::Metadata), "one copy where there should be two");
    let longer = Normal { lsize: ptr.lsize + 1, ..ptr.clone() };
    assert!(!replaced(&longer, stream));
}

/// A user who rewrites a file because it may be damaged wants it on the pool's devices, not on a cache device
/// alone.
#[test]
fn a_block_only_on_a_cache_device_is_rewritten() {
    let (main, fast) = (sim(1, false), sim(2, false));
    let create = CreateOptions::named("nopwrite");
    let small = ImportOptions { cache_bytes: 1 << 20, ..ImportOptions::default() };
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(main.clone())];
    let pool = Pool::create(devices, &create, Arc::new(SeededEnv::new(1)), &small).unwrap();
    let id = pool.add_cache(Arc::new(fast)).unwrap();
    let writer = Arc::<Writer>::default();
    pool.set_client(writer.clone());
    let content: Vec<u8> = (0..2000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let old = writer.write(&pool, vec![data(1, &content)]).remove(0);
    pool.read(&old, owner(1)).unwrap();
    // Other blocks evict it from memory, so it goes to the cache device.
    for other in 2..300 {
        let noise: Vec<u8> =
            (0..2000_u32).flat_map(|n| (n ^ other).wrapping_mul(2_246_822_519).to_le_bytes()).collect();
        let written = writer.write(&pool, vec![data(other as usize, &noise)]).remove(0);
        pool.read(&written, owner(other as usize)).unwrap();
        pool.feed_caches();
    }
    let BlockPtr::Normal(normal) = &old else { panic!("stored") };
    let (_, home, offset) = pool.locate(normal.addrs[0], normal.psize).unwrap();
    main.rot(home.zone, offset + 100, &[1]).unwrap();
    assert_eq!(*pool.read(&old, owner(1)).unwrap(), content, "the cache device has it");
    assert!(pool.caches()[0].stats.as_ref().unwrap().hits > 0 && !pool.verify(&old).is_empty());
    let anew = WriteRequest { replaces: Some(old.clone()), ..data(1, &content) };
    let new = writer.write(&pool, vec![anew]).remove(0);
    assert_ne!(new, old, "its own place holds something else");
    pool.remove_cache(id).unwrap();
    pool.drop_cache();
    assert_eq!(*pool.read(&new, owner(1)).unwrap(), content);
}

/// An uncompressed block may be followed by zeros, and two false pointers may name the same birthplace.
#[test]
fn pointers_that_disagree_about_a_length_are_refused_or_read_right() {
    let (pool, writer) = pool();
    let mut content: Vec<u8> = (0..4096_u32).map(|n| (n * n % 251 + 1) as u8).collect();
    content[4080..].fill(0);
    let stored = WriteRequest { compression: Compression::Off.into(), ..data(1, &content) };
    let BlockPtr::Normal(normal) = writer.write(&pool, vec![stored]).remove(0) else { panic!("stored") };
    let short = BlockPtr::Normal(Normal { lsize: 4080, ..normal.clone() });
    let whole = BlockPtr::Normal(normal);
    pool.drop_cache();
    for _ in 0..3 {
        let mut out = vec![0; 4080];
        pool.read_into(&short, owner(1), &mut out).unwrap();
        assert_eq!(out, content[..4080]);
        assert_eq!(*pool.read(&short, owner(1)).unwrap(), content[..4080]);
    }
    let mut out = vec![0; 4096];
    assert!(pool.read_into(&whole, owner(1), &mut out).is_err() && pool.read(&whole, owner(1)).is_err());
    pool.drop_cache();
    pool.read_into(&whole, owner(1), &mut out).unwrap();
    assert_eq!(out, content);
    assert!(pool.read_into(&short, owner(1), &mut out[..4080]).is_err());
}
