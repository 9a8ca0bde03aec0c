use super::shard::{IDLE_PLAIN_DIVISOR, PLAIN_DIVISOR};
use super::*;
use proptest::prelude::*;
use terrane_format::addr::Addr;
use terrane_wire::{Txg, ZoneSeq};

fn key(n: u64) -> Key {
    Key { addr: Addr::new(ZoneSeq(1 + n / 1000), n % 1000 * 16), birth: Txg(1) }
}

/// Blocks that compress to half of their size.
fn packed(n: u64, len: usize) -> StoredBlock {
    let packed = Packed::Compressed(vec![n as u8; len].into());
    StoredBlock { packed, source: Source::Pool, lsize: 2 * len as u32 }
}

fn bytes(cache: &BlockCache) -> u64 {
    cache.stats().map(|stats| stats.bytes).iter().sum()
}

#[test]
fn the_budget_holds_and_used_blocks_stay() {
    let cache = BlockCache::new(16 << 20);
    for n in 0..20_000 {
        cache.insert(key(n), Kind::Data, packed(n, 4096), None);
        cache.get(key(5), Kind::Data);
        if n % 100 == 0 {
            cache.check().unwrap();
            assert!(bytes(&cache) <= 16 << 20);
        }
    }
    assert!(
        matches!(cache.get(key(5), Kind::Data), Some(CacheHit::Packed(packed)) if packed.bytes()[0] == 5)
    );
    cache.set_budget(1 << 20);
    assert!(bytes(&cache) <= 1 << 20 && cache.budget() == 1 << 20);
    cache.set_budget(16 << 20);
    cache.insert(key(1 << 20), Kind::Data, packed(1, 4096), None);
    assert!(cache.holds(key(1 << 20)));
    cache.forget(key(1 << 20));
    assert!(!cache.holds(key(1 << 20)));
    cache.check().unwrap();
    cache.clear();
    assert_eq!(bytes(&cache), 0);
    cache.check().unwrap();
}

#[test]
fn decompressed_forms_are_dropped_before_blocks() {
    let cache = BlockCache::new(16 << 20);
    let content = |n: u64| Arc::new(vec![n as u8; 16 << 10]);
    for n in 0..400 {
        cache.insert(key(n), Kind::Metadata, packed(n, 4096), Some(content(n)));
    }
    let is_plain = |n| matches!(cache.get(key(n), Kind::Metadata), Some(CacheHit::Plain(_)));
    assert_eq!((0..400).filter(|n| is_plain(*n)).count(), 400, "all of it fits");
    for n in 400..2400 {
        cache.insert(key(n), Kind::Metadata, packed(n, 4096), None);
    }
    cache.check().unwrap();
    assert_eq!((0..2400).filter(|n| cache.holds(key(*n))).count(), 2400, "no block goes before they do");
    let plain = (0..400).filter(|n| is_plain(*n)).count();
    assert!((230..400).contains(&plain), "{plain} decompressed forms should fit a quarter of the budget");
    let packed_now = (0..400).find(|n| !is_plain(*n)).unwrap();
    cache.insert_plain(key(packed_now), &content(packed_now));
    assert!(is_plain(packed_now), "what was used last is not what goes");
}

#[test]
fn released_content_leaves_the_stored_form() {
    let cache = BlockCache::new(16 << 20);
    let content = |n: u64| Arc::new(vec![n as u8; 16 << 10]);
    (0..100).for_each(|n| cache.insert(key(n), Kind::Metadata, packed(n, 4096), Some(content(n))));
    let plain_bytes = |cache: &BlockCache| cache.stats()[Kind::Metadata as usize].plain_bytes;
    let all = plain_bytes(&cache);
    // Each comes back as often as it is released, and the queue does not grow by it.
    for round in 0..200 {
        (0..50).for_each(|n| cache.release_plain(key(n)));
        cache.release_plain(key(7));
        cache.release_plain(key(7_000));
        cache.check().unwrap();
        assert_eq!(plain_bytes(&cache), all / 2, "round {round}");
        assert!(matches!(cache.get(key(7), Kind::Metadata), Some(CacheHit::Packed(_))));
        (0..50).for_each(|n| cache.insert_plain(key(n), &content(n)));
        assert_eq!(plain_bytes(&cache), all);
    }
    assert!(bytes(&cache) < all + 100 * 4200 + (64 << 10), "{} bytes", bytes(&cache));
    // Content that is the stored form stays.
    let block = content(1);
    let stored = StoredBlock { packed: Packed::Content(block.clone()), source: Source::Pool, lsize: 4096 };
    cache.insert(key(900), Kind::Metadata, stored, None);
    cache.release_plain(key(900));
    assert!(matches!(cache.get(key(900), Kind::Metadata), Some(CacheHit::Plain(_))));
}

#[test]
fn uncompressed_blocks_are_not_cached_twice() {
    let cache = BlockCache::new(16 << 20);
    let block = Arc::new(vec![3; 4096]);
    let stored = StoredBlock { packed: Packed::Content(block.clone()), source: Source::Pool, lsize: 4096 };
    cache.insert(key(1), Kind::Metadata, stored, Some(block.clone()));
    assert!(
        matches!(cache.get(key(1), Kind::Metadata), Some(CacheHit::Plain(found)) if Arc::ptr_eq(&found, &block))
    );
    let stats = cache.stats()[1];
    assert_eq!((stats.plain_bytes, stats.logical_bytes), (0, 4096));
    cache.set_plain_only(true);
    cache.insert(key(1), Kind::Data, packed(1, 100), Some(block.clone()));
    assert!(
        matches!(cache.get(key(1), Kind::Data), Some(CacheHit::Plain(found)) if Arc::ptr_eq(&found, &block))
    );
}

#[test]
fn decompressed_data_is_wanted_while_the_budget_lasts() {
    let cache = BlockCache::new(16 << 20);
    assert!(cache.wants_plain(key(1), Kind::Data, 4096));
    (0..20_000).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 4096), None));
    assert!(!cache.wants_plain(key(1), Kind::Data, 4096) && cache.wants_plain(key(1), Kind::Metadata, 4096));
    cache.set_plain_only(true);
    assert!(cache.wants_plain(key(1), Kind::Data, 4096));
}

#[test]
fn idle_decompressed_data_is_dropped_for_blocks() {
    let held = |is_asked: bool| {
        let cache = BlockCache::new(16 << 20);
        let content = |n: u64| Arc::new(vec![n as u8; 16 << 10]);
        (0..200).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 4096), Some(content(n))));
        for n in 200..8000 {
            cache.insert(key(n), Kind::Data, packed(n, 4096), None);
            if is_asked {
                (0..200).for_each(|n| drop(cache.get(key(n), Kind::Data)));
            }
        }
        cache.check().unwrap();
        cache.stats()[Kind::Data as usize].plain_bytes
    };
    let share = (16 << 20) / IDLE_PLAIN_DIVISOR as u64;
    assert_eq!(held(false), 0, "{share} is for those that came a moment ago");
    assert!(held(true) > 5 * share && held(true) <= (16 << 20) / PLAIN_DIVISOR as u64, "{}", held(true));
}

#[test]
fn idle_decompressed_metadata_is_dropped_for_returning_blocks_not_for_scans() {
    let held = |blocks_of_data: u64| {
        let cache = BlockCache::new(16 << 20);
        let content = |n: u64| Arc::new(vec![n as u8; 8 << 10]);
        (0..400).for_each(|n| cache.insert(key(n), Kind::Metadata, packed(n, 2048), Some(content(n))));
        for n in 0..20_000 {
            let data = key(1000 + n * 7919 % blocks_of_data);
            if cache.get(data, Kind::Data).is_none() {
                cache.insert(data, Kind::Data, packed(n, 4096), None);
            }
            // Some are read all the time.
            drop(cache.get(key(n % 20), Kind::Metadata));
        }
        cache.check().unwrap();
        assert!((0..400).all(|n| cache.holds(key(n))), "no block of metadata goes for it");
        let plain_bytes = cache.stats()[Kind::Metadata as usize].plain_bytes;
        let hot = (0..20)
            .filter(|n| matches!(cache.get(key(*n), Kind::Metadata), Some(CacheHit::Plain(_))))
            .count();
        (plain_bytes, hot)
    };
    let (all, share) = (400 * (8 << 10), (16 << 20) / IDLE_PLAIN_DIVISOR as u64);
    let (left, hot) = held(6000);
    assert!((share / 2..=share + (64 << 10)).contains(&left) && hot == 20, "{left} bytes, {hot} of 20");
    let (left, hot) = held(1 << 40);
    assert!(left >= all && hot == 20, "{left} of {all} bytes stay where nothing comes back, {hot} of 20");
}

#[test]
fn the_first_read_of_a_prefetched_block_is_its_first_use() {
    let cache = BlockCache::new(16 << 20);
    (0..100).for_each(|n| cache.insert_prefetched(key(n), Kind::Data, packed(n, 4096)));
    assert!(cache.unread_bytes() >= 100 * 4096);
    assert!(matches!(cache.get(key(1), Kind::Data), Some(CacheHit::Prefetched(_))));
    cache.check().unwrap();
    assert!(matches!(cache.get(key(1), Kind::Data), Some(CacheHit::Packed(_))));
    cache.forget(key(2));
    let stats = cache.stats()[Kind::Data as usize];
    assert_eq!((stats.prefetched, stats.prefetched_hits, cache.wasted_prefetches()), (100, 1, 0));
    cache.keep_evicted(true);
    for n in 200..20_000 {
        cache.insert(key(n), Kind::Data, packed(n, 4096), None);
        cache.get(key(n), Kind::Data);
    }
    assert_eq!((cache.unread_bytes(), cache.wasted_prefetches()), (0, 98));
    let left = cache.take_evicted();
    assert!(!left.is_empty() && left.iter().all(|(left, _)| (2..100).all(|n| *left != key(n))));
    cache.insert_prefetched(key(1), Kind::Data, packed(1, 4096));
    cache.insert_prefetched(key(3), Kind::Data, packed(3, 4096));
    cache.clear();
    assert_eq!(cache.unread_bytes(), 0);
    cache.check().unwrap();
}

#[test]
fn data_cannot_take_the_share_of_metadata() {
    let cache = BlockCache::new(16 << 20);
    (0..900).for_each(|n| cache.insert(key(n), Kind::Metadata, packed(n, 4096), None));
    (1000..50_000).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 4096), None));
    let left = (0..900).filter(|n| cache.holds(key(*n))).count();
    assert!(left > 850, "{left} of 900 blocks, which take less than a quarter");
    // Metadata that keeps returning makes its share larger.
    for round in 0..8 {
        (100_000..102_000).for_each(|n| cache.insert(key(n), Kind::Metadata, packed(n, 4096), None));
        let data = 200_000 + round * 4000;
        (data..data + 4000).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 4096), None));
    }
    cache.check().unwrap();
    let left = (100_000..102_000).filter(|n| cache.holds(key(*n))).count();
    assert!(left > 1500, "{left} of 2000");
}

#[test]
fn a_scan_takes_little_from_what_is_used_of_either_kind() {
    let cache = BlockCache::new(16 << 20);
    let ask = |n: u64, kind: Kind| {
        let is_here = cache.get(key(n), kind).is_some();
        if !is_here {
            cache.insert(key(n), kind, packed(n, 4096), None);
        }
        is_here
    };
    let used = || (0..1000).map(|n| (n, Kind::Data)).chain((1000..1500).map(|n| (n, Kind::Metadata)));
    let hits: usize = (0..4).map(|_| used().filter(|(n, kind)| ask(*n, *kind)).count()).sum();
    assert_eq!(hits, 3 * 1500, "all of it fits");
    // Eight times the budget, read once (LRU would evict everything): data with some indirect blocks.
    let scan = |n: u64| (n, if n.is_multiple_of(64) { Kind::Metadata } else { Kind::Data });
    assert!((10_000..42_000).map(scan).all(|(n, kind)| !ask(n, kind)), "each is asked for once");
    let stays = |kind| used().filter(|(n, of)| *of == kind && cache.holds(key(*n))).count();
    let (data, metadata) = (stays(Kind::Data), stays(Kind::Metadata));
    assert!(data > 880 && metadata > 475, "{data} of 1000 blocks of data, {metadata} of 500 of metadata");
    cache.check().unwrap();
}

#[test]
fn a_large_block_stays_from_one_piece_to_the_next_in_a_full_cache() {
    let cache = BlockCache::new(16 << 20);
    (0..200).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 128 << 10), None));
    (0..200).for_each(|n| drop(cache.get(key(n), Kind::Data)));
    let mut misses = 0;
    for n in 1000..1500 {
        for _ in 0..4 {
            if cache.get(key(n), Kind::Data).is_none() {
                misses += 1;
                cache.insert(key(n), Kind::Data, packed(n, 128 << 10), None);
            }
        }
    }
    assert_eq!(misses, 500, "each is read once");
    cache.check().unwrap();
}

#[test]
fn statistics_are_kept_per_kind() {
    let cache = BlockCache::new(1 << 20);
    cache.insert(key(1), Kind::Data, packed(1, 1000), None);
    cache.insert(key(2), Kind::Metadata, packed(2, 3000), None);
    cache.get(key(2), Kind::Metadata);
    cache.get(key(3), Kind::Metadata);
    let of = |stats: CacheStats, logical_bytes, hits, misses| {
        let CacheStats { bytes, stored_bytes, .. } = stats;
        CacheStats { bytes, stored_bytes, logical_bytes, blocks: 1, hits, misses, ..CacheStats::default() }
    };
    let [data, metadata] = cache.stats();
    assert_eq!((data, metadata), (of(data, 2000, 0, 0), of(metadata, 6000, 1, 1)));
    // The first block of a kind allocates memory for more.
    assert!(
        (1000..4000).contains(&data.bytes) && (3000..6000).contains(&metadata.bytes),
        "{data:?} {metadata:?}"
    );
    (10..1000).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 4096), None));
    let [data, metadata] = cache.stats();
    assert!(data.evictions > 0 && metadata.evictions == 0, "{data:?} {metadata:?}");
    cache.clear();
    assert_eq!((cache.stats()[1].bytes, cache.stats()[1].hits), (0, 1));
}

proptest! {
    #[test]
    fn bytes_match_the_cached_blocks(
        steps in prop::collection::vec((0u64..400, 0usize..20_000, 0u8..8, any::<bool>()), 1..1500),
    ) {
        let cache = BlockCache::new(2 << 20);
        for (n, len, what, is_data) in steps {
            let kind = if is_data { Kind::Data } else { Kind::Metadata };
            match what {
                0 => cache.forget(key(n)),
                1 => cache.set_budget(len * 200 + 1000),
                2 => cache.insert_plain(key(n), &Arc::new(vec![1; 2 * len])),
                3 | 4 => drop(cache.get(key(n), kind)),
                5 => cache.insert(key(n), kind, packed(n, len), Some(Arc::new(vec![1; 3 * len]))),
                _ => cache.insert(key(n), kind, packed(n, len), None),
            }
            cache.check().unwrap();
        }
    }
}

#[test]
fn contents_of_compressed_blocks_are_counted_beside_what_they_take() {
    let cache = BlockCache::new(16 << 20);
    (0..100).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 4096), None));
    cache.insert(key(500), Kind::Metadata, packed(1, 1000), Some(Arc::new(vec![1; 2000])));
    let [data, metadata] = cache.stats();
    assert_eq!((data.logical_bytes, metadata.logical_bytes), (100 * 8192, 2000));
    assert!((100 * 4096..100 * 4200).contains(&data.stored_bytes), "{data:?}");
    assert!(metadata.stored_bytes < 1100 && metadata.plain_bytes > 0, "{metadata:?}");
    cache.forget(key(3));
    assert_eq!(cache.stats()[0].logical_bytes, 99 * 8192);
    (1000..50_000).for_each(|n| cache.insert(key(n), Kind::Data, packed(n, 4096), None));
    let data = cache.stats()[0];
    assert_eq!(data.logical_bytes, data.blocks * 8192);
    cache.check().unwrap();
    cache.clear();
    assert_eq!(cache.stats().map(|stats| stats.logical_bytes + stats.stored_bytes), [0, 0]);
}
