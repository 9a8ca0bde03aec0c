//! The bytes that the block cache counts are those that the allocator counts.

use cap::Cap;
use std::alloc::System;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_cache::blocks::{BlockCache, CacheHit, Packed, Source, StoredBlock};
use terrane_format::Addr;
use terrane_format::block_ptr::Key;
use terrane_wire::{Txg, ZoneSeq};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const BUDGET: usize = 64 << 20;

fn key(n: u64) -> Key {
    Key { addr: Addr::new(ZoneSeq(1 + n / 100_000), n % 100_000 * 16), birth: Txg(1 + n / 1000) }
}

fn packed(len: usize) -> StoredBlock {
    StoredBlock {
        packed: Packed::Compressed(vec![7; len].into()),
        source: Source::Pool,
        lsize: 2 * len as u32,
    }
}

fn charged(cache: &BlockCache) -> (usize, usize) {
    let [data, metadata] = cache.stats();
    ((data.bytes + metadata.bytes) as usize, (data.blocks + metadata.blocks) as usize)
}

/// The bytes that a cache counts, and its number of blocks.
fn compare(what: &str, cache: &BlockCache, before: usize) -> (usize, usize) {
    let allocated = ALLOCATOR.allocated() - before;
    let (charged, blocks) = charged(cache);
    let ratio = charged as f64 / allocated as f64;
    assert!((0.97..1.1).contains(&ratio), "{what}: {charged} bytes are counted, {allocated} are allocated");
    assert!(charged <= cache.budget(), "{what}");
    (charged, blocks)
}

/// A single test, because the allocator counts for all threads.
#[test]
fn bytes_counted_are_bytes_allocated() {
    for len in [512, 4 << 10, 16 << 10, 128 << 10] {
        let before = ALLOCATOR.allocated();
        let cache = BlockCache::new(BUDGET);
        // More blocks than fit, so that there are ghosts. Some come back, some are read again.
        let blocks = (2 * BUDGET / len) as u64;
        for n in 0..blocks {
            let kind = if n % 10 == 0 { Kind::Metadata } else { Kind::Data };
            cache.insert(key(n), kind, packed(len), None);
            if n % 3 == 0 {
                drop(cache.get(key(n / 2), kind));
                cache.insert(key(n / 2), kind, packed(len), None);
            }
        }
        let (charged, cached) = compare(&format!("blocks of {len}, full"), &cache, before);
        assert!(charged > BUDGET / 10 * 9, "{charged} of {BUDGET}");
        let overhead = charged / cached - len;
        assert!(overhead <= 184, "{overhead} bytes for an entry with its ghosts, {len} of its block");

        for n in 0..blocks / 8 {
            if let Some(CacheHit::Packed(_)) = cache.get(key(n), Kind::Data) {
                cache.insert_plain(key(n), &Arc::new(vec![7; 2 * len]));
            }
        }
        compare(&format!("blocks of {len}, some decompressed"), &cache, before);

        cache.set_budget(BUDGET / 8);
        compare(&format!("blocks of {len}, an eighth of the memory"), &cache, before);
        cache.clear();
        compare_empty(len, &cache, before);

        (0..blocks).for_each(|n| cache.insert_prefetched(key(n), Kind::Data, packed(len)));
        compare(&format!("blocks of {len}, read ahead"), &cache, before);
    }
}

fn compare_empty(len: usize, cache: &BlockCache, before: usize) {
    let allocated = ALLOCATOR.allocated() - before;
    assert_eq!(charged(cache), (0, 0));
    assert!(allocated < 16 << 10, "{allocated} bytes are left of blocks of {len}");
}
