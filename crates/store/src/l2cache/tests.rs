use super::*;
use proptest::prelude::*;
use terrane_device::{SimConfig, SimDevice};
use terrane_format::addr::Addr;
use terrane_format::cache_device::CacheHead;
use terrane_wire::{Txg, ZoneSeq};

fn key(n: u64) -> Key {
    Key { addr: Addr::new(ZoneSeq(1 + n / 1000), n % 1000 * 16), birth: Txg(1 + n % 3) }
}

fn packed(n: u64, len: usize) -> Packed {
    Packed::Compressed(vec![n as u8; len].into())
}

fn device() -> Arc<dyn Device> {
    Arc::new(SimDevice::new(SimConfig { zone_count: 8, zone_size: 1 << 20, ..SimConfig::default() }).unwrap())
}

fn open(device: &Arc<dyn Device>, entries: usize) -> CacheDevice {
    let cache = CacheDevice::new(device.clone(), (7, 9), entries * ENTRY_BYTES);
    cache.load();
    cache
}

fn content(cache: &CacheDevice, key: Key) -> Option<Vec<u8>> {
    let extent = cache.find(key)?;
    let mut raw = vec![0; 1 << 20];
    let unit = u64::from(cache.device.info().write_unit);
    let from = extent.offset / unit * unit;
    let len = (extent.offset + u64::from(extent.psize)).next_multiple_of(unit) - from;
    cache.device.read(extent.zone, from, &mut raw[..len as usize]).unwrap();
    let start = (extent.offset - from) as usize;
    Some(raw[start..start + extent.psize as usize].to_vec())
}

#[test]
fn what_was_fed_is_found_also_after_a_restart() {
    let device = device();
    let cache = open(&device, 100_000);
    for round in 0..40 {
        let blocks = (round * 20..round * 20 + 20).map(|n| (key(n), packed(n, 3000 + n as usize))).collect();
        cache.feed(blocks, round + 1, u64::MAX / 4);
    }
    let whole =
        |cache: &CacheDevice, n: u64| content(cache, key(n)) == Some(vec![n as u8; 3000 + n as usize]);
    assert!((0..800).all(|n| whole(&cache, n)), "{:?}", cache.stats());
    cache.forget(key(5));
    assert_eq!(cache.find(key(5)), None);
    let fed = cache.stats().fed_bytes;
    cache.feed(vec![(key(6), packed(6, 3006))], 50, u64::MAX / 4);
    assert_eq!(cache.stats().fed_bytes, fed, "it is there");
    drop(cache);
    let again = open(&device, 100_000);
    assert!((0..800).all(|n| whole(&again, n)), "the tail included: {:?}", again.stats());
    assert_eq!(open(&device, 100).stats().blocks, 100, "no more than the index takes");
    let other = CacheDevice::new(device.clone(), (8, 9), 1 << 20);
    other.load();
    assert_eq!(other.stats().blocks, 0, "of another pool");
}

#[test]
fn a_full_ring_gives_up_what_was_written_first() {
    let device = device();
    let cache = open(&device, 100_000);
    for round in 0..400 {
        let blocks = (round * 8..round * 8 + 8).map(|n| (key(n), packed(n, 8000))).collect();
        cache.feed(blocks, round + 1, u64::MAX / 4);
        let stats = cache.stats();
        assert!(stats.held_bytes <= 7 << 20 && stats.damaged == 0);
    }
    assert_eq!(cache.find(key(0)), None);
    assert!((2700..3200).all(|n| content(&cache, key(n)) == Some(vec![n as u8; 8000])));
    drop(cache);
    let again = open(&device, 100_000);
    assert!((2700..3200).all(|n| content(&again, key(n)) == Some(vec![n as u8; 8000])));
    // The ring continues where it was, and drops the oldest blocks.
    again.feed((5000..5100).map(|n| (key(n), packed(n, 8000))).collect(), 1, u64::MAX / 4);
    assert!((3000..3200).chain(5000..5100).all(|n| content(&again, key(n)) == Some(vec![n as u8; 8000])));
}

#[test]
fn the_index_is_bounded_and_so_is_the_rate() {
    let cache = open(&device(), 300);
    for round in 0..100 {
        cache.feed(
            (round * 10..round * 10 + 10).map(|n| (key(n), packed(n, 8000))).collect(),
            1 + round,
            u64::MAX / 4,
        );
    }
    // The open zone is kept.
    assert!(cache.stats().blocks <= 300 + 130, "{:?}", cache.stats());
    let held = cache.stats().blocks;
    cache.bound_index(150 * ENTRY_BYTES);
    let blocks = cache.stats().blocks;
    assert!(blocks < held && blocks <= 150 + 130, "a smaller bound holds at once: {blocks} of {held}");
    assert!((1000 - 10..1000).all(|n| cache.find(key(n)).is_some()), "what was written last stays");
    let mut budget = RateBudget::default();
    assert_eq!(budget.refill(5_000, 1000), 1000, "a second's worth to begin with");
    budget.bytes = 0;
    assert_eq!(budget.refill(100_005_000, 1000), 100);
    assert_eq!(budget.refill(u64::MAX, 1000), 1000, "no more is saved up");
    let cache = open(&device(), 300);
    cache.feed((0..100).map(|n| (key(n), packed(n, 1600))).collect(), 1, 16_000);
    assert_eq!(cache.stats().blocks, 10);
}

#[test]
fn forgotten_keys_take_no_memory() {
    let cache = open(&device(), 300);
    for round in 0..1000 {
        let blocks = round * 40..round * 40 + 40;
        cache.feed(blocks.clone().map(|n| (key(n), packed(n, 40))).collect(), round + 1, u64::MAX / 4);
        blocks.skip(1).for_each(|n| cache.forget(key(n)));
        let ring = cache.ring.lock();
        let listed: usize = ring.keys.iter().map(Vec::len).sum();
        assert!(listed == ring.listed && listed <= 1500, "{listed} keys of {}", ring.index.len());
    }
    assert!(cache.stats().blocks > 100, "what was written last stays: {:?}", cache.stats());
}

/// The next owner of the device may be writing to it.
#[test]
fn nothing_is_written_after_detach() {
    let device = device();
    let cache = open(&device, 300);
    cache.feed(vec![(key(1), packed(1, 40))], 1, u64::MAX / 4);
    let writes = || cache.device.counts().writes;
    let before = writes();
    let writing = cache.detached.lock();
    std::thread::scope(|scope| {
        let letting_go = scope.spawn(|| cache.detach());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!letting_go.is_finished(), "a batch is under way");
        drop(writing);
    });
    cache.feed(vec![(key(2), packed(2, 40))], 2, u64::MAX / 4);
    cache.load();
    assert_eq!((writes(), cache.find(key(2))), (before, None));
}

#[test]
fn no_flipped_bit_of_a_head_is_believed() {
    let info = device().info().clone();
    let raw = CacheHead::of(7, 9, &cache_geometry(&info)).encode();
    assert!(CacheHead::parse(&raw).is_some());
    let sizes: Vec<(Key, u32)> = (0..10).map(|n| (key(n), 100 + n as u32)).collect();
    let (head, extents) = encode_head((7, 9, 3), (ZoneIdx(2), 8192), &sizes, (4096, 8192));
    let parse = |raw: &[u8], at| parse_batch(raw, (7, 9), (ZoneIdx(2), at), &cache_geometry(&info));
    let batch = parse(&head, 8192).unwrap();
    assert_eq!((batch.lap, batch.bytes, batch.blocks.len()), (3, 8192, 10));
    assert_eq!(batch.blocks.iter().map(|(_, extent)| *extent).collect::<Vec<_>>(), extents);
    assert!(parse(&head, 4096).is_none(), "of another place");
    for bit in 0..8 * 300 {
        let (mut head, mut raw) = (head.clone(), raw);
        head[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&head, 8192).is_none(), "bit {bit}");
        if bit < 8 * raw.len() {
            raw[bit / 8] ^= 1 << (bit % 8);
            assert!(CacheHead::parse(&raw).is_none(), "bit {bit}");
        }
    }
    assert!(parse(&head[..100], 8192).is_none(), "cut short");
}

/// Compares with bytes of the first version. `TERRANE_BLESS=1` rewrites them.
fn golden(name: &str, raw: &[u8]) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TERRANE_BLESS").is_some() {
        std::fs::write(&path, raw).unwrap();
    }
    std::fs::read(&path).unwrap()
}

#[test]
fn heads_of_devices_and_batches_are_what_they_always_were() {
    let info = device().info().clone();
    let head = CacheHead::of(7, 9, &cache_geometry(&info));
    let raw = golden("cache_head", &head.encode());
    assert_eq!(CacheHead::parse(&raw), Some(head));
    assert_eq!(raw, head.encode());
    let sizes: Vec<(Key, u32)> = (0..10).map(|n| (key(n), 100 + n as u32)).collect();
    let (raw, extents) = encode_head((7, 9, 3), (ZoneIdx(2), 8192), &sizes, (512, 4096));
    let old = golden("cache_batch", &raw);
    assert_eq!(old, raw, "another head would be written");
    let batch = parse_batch(&old, (7, 9), (ZoneIdx(2), 8192), &cache_geometry(&info)).unwrap();
    let blocks: Vec<(Key, CacheExtent)> = sizes.iter().map(|(key, _)| *key).zip(extents).collect();
    assert_eq!((batch.lap, batch.bytes, batch.blocks), (3, 4096, blocks));
}

proptest! {
    #[test]
    fn forged_heads_and_noise_are_refused_without_a_panic(
        raw in prop::collection::vec(any::<u8>(), 64..600),
        count in 0u32..40,
        head_bytes in any::<u32>(),
        bytes in any::<u64>(),
        psize in any::<u32>(),
        at in 0u64..1 << 20,
    ) {
        let info = device().info().clone();
        prop_assert!(parse_batch(&raw, (7, 9), (ZoneIdx(1), at), &cache_geometry(&info)).is_none());
        let sizes: Vec<(Key, u32)> = (0..count).map(|n| (key(n.into()), psize % (32 << 20))).collect();
        let head_bytes = u64::from(head_bytes) % (1 << 14);
        let (raw, _) = encode_head((7, 9, 1), (ZoneIdx(1), at), &sizes, (head_bytes.max(1024), bytes));
        if let Some(batch) = parse_batch(&raw, (7, 9), (ZoneIdx(1), at), &cache_geometry(&info)) {
            prop_assert!(at + batch.bytes <= 1 << 20);
            for (_, extent) in batch.blocks {
                prop_assert!(extent.offset + u64::from(extent.psize) <= at + batch.bytes);
            }
        }
    }
}
