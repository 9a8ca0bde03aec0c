//! What building the index of a ZAP asks of the allocator.

use cap::Cap;
use std::alloc::System;
use terrane_zap::{MemStore, Zap, ZapOptions};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Three arrays of 8 to 9.5 bytes per name. An allocation for each name would add 8 bytes at the least.
const BYTES_PER_NAME: usize = 30;

#[test]
fn no_name_is_allocated_while_an_index_is_built() {
    for tiny in [false, true] {
        let mut store = MemStore::new();
        let mut zap = Zap::open_with(&store, ZapOptions { tiny, ..ZapOptions::new(1) }).unwrap();
        let mut names = 0;
        while names < 2000 {
            zap.add(&mut store, format!("name {names}").as_str(), &[names]).unwrap();
            names += 1;
        }
        zap.drop_index();
        let before = MEMORY.total_allocated();
        // The first lookups scan.
        for _ in 0..100 {
            assert_eq!(zap.lookup_u64(&store, "name 1234").unwrap(), Some(1234));
        }
        let allocated = MEMORY.total_allocated() - before;
        assert!(zap.index_bytes() > 8 * 2000, "it was built");
        assert!(allocated <= BYTES_PER_NAME * 2000, "tiny {tiny}: {allocated} bytes for 2,000 names");
    }
}
