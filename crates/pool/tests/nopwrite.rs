//! What a request replaces stays if nothing changed, whoever made it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use parking_lot::Mutex;
use std::sync::Arc;
use support::{options, owner, request, sim};
use terrane_codec::{Compression, Compressor, Outcome, ZstdLevel, max_stored};
use terrane_device::Device;
use terrane_pool::block_ptr::Normal;
use terrane_pool::{
    BlockPtr, Client, Cost, CreateOptions, Group, Placement, Pool, PoolError, SeededEnv, Stream, Tx,
    WriteRequest,
};
use terrane_wire::Txg;

/// Writes what it is given, each request as a block of its own.
#[derive(Default)]
struct Writer {
    requests: Mutex<Vec<WriteRequest>>,
    written: Mutex<Vec<BlockPtr>>,
    root: Mutex<BlockPtr>,
}

impl Client for Writer {
    fn quiesced(&self, _last: &Tx) {}

    fn sync(&self, group: &mut Group<'_>) -> Result<BlockPtr, PoolError> {
        *self.written.lock() = group.write(std::mem::take(&mut self.requests.lock()))?;
        let root = vec![group.txg().0 as u8; 700];
        let new = group.write(vec![request(root, owner(1000), Stream::Metadata)])?.remove(0);
        group.release(&std::mem::replace(&mut *self.root.lock(), new.clone()));
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

/// As another version of the library made it: other bytes, another number in the header.
fn by_another_version(content: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    let outcome = Compressor::new().compress(zstd(7), content, max_stored(content.len()), &mut stored);
    assert_eq!(outcome, Outcome::Compressed);
    // Level 3, version 1.4.5.
    stored[4..8].copy_from_slice(&(3 << 24 | 10_405_u32).to_be_bytes());
    stored
}

#[test]
fn a_block_that_another_version_of_the_compressor_made_stays() {
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
    // Only if it may.
    let forced = WriteRequest { replaces: None, ..anew() };
    let BlockPtr::Normal(new) = writer.write(&pool, vec![forced]).remove(0) else { panic!("stored") };
    assert_ne!(new.psize as usize, raw.len());
    // Only if its content is the same.
    let mut other = content.clone();
    other[5] ^= 1;
    let changed = WriteRequest { data: Arc::new(other), ..anew() };
    assert_ne!(writer.write(&pool, vec![changed]), std::slice::from_ref(&old));
    assert_eq!(pool.stats().nopwrite_blocks, 1);
    assert_eq!(pool.stats().nopwrite_bytes, content.len() as u64);
}

/// What a forged or damaged pointer says must match in everything.
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
