//! Cost of the block cache itself: nanoseconds of processor time, without decompression.
//!
//! * `hit`: a random block that is cached as it is stored.
//! * `miss`: a block that is not cached.
//! * `insert`: a block that evicts another one, including the copy into memory of its own.
//!
//!     cargo bench -p terrane-pool --bench cache -- [--mib N]

use clap::Parser;
use std::sync::Arc;
use terrane_cache::Kind;
use terrane_cache::blocks::{BlockCache, Packed, Source, StoredBlock};
use terrane_device::thread_ns;
use terrane_format::Addr;
use terrane_format::block_ptr::Key;
use terrane_wire::{Txg, ZoneSeq};

fn key(n: u64) -> Key {
    Key { addr: Addr::new(ZoneSeq(1 + n / 100_000), n % 100_000 * 16), birth: Txg(1 + n / 1000) }
}

static SOURCE: [u8; 16 << 10] = [7; 16 << 10];

fn packed(len: usize) -> StoredBlock {
    StoredBlock {
        packed: Packed::Compressed(Arc::from(&SOURCE[..len])),
        source: Source::Pool,
        lsize: 2 * len as u32,
    }
}

/// The fastest of five rounds of `count` calls, in nanoseconds per call.
fn ns_each(count: u64, mut one: impl FnMut(u64)) -> f64 {
    let rounds = (0..5).map(|round| {
        let began = thread_ns();
        (0..count).for_each(|n| one(round * count + n));
        thread_ns() - began
    });
    rounds.min().unwrap_or(0) as f64 / count as f64
}

/// Cost of the block cache itself
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane-pool --bench cache --")]
struct Options {
    /// Memory of the cache
    #[arg(long, value_name = "N", default_value_t = 256)]
    mib: usize,
}

fn main() {
    // `cargo bench` adds the word.
    let options = Options::parse_from(std::env::args_os().filter(|word| word != "--bench"));
    let budget = options.mib << 20;
    println!("{} MiB", budget >> 20);
    println!("{:>8} {:>10} {:>10} {:>8} {:>8} {:>8}", "bytes", "blocks", "beside", "hit", "miss", "insert");
    for len in [512, 4 << 10, 7 << 10, 16 << 10] {
        let cache = BlockCache::new(budget);
        let count = (2 * budget / len) as u64;
        (0..count).for_each(|n| cache.insert(key(n), Kind::Data, packed(len), None));
        let here: Vec<u64> = (0..count).filter(|n| cache.holds(key(*n))).collect();
        let blocks = here.len() as u64;
        let stats = cache.stats()[Kind::Data as usize];
        let mut state = 1u64;
        let hit = ns_each(200_000, |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) % blocks;
            assert!(cache.get(key(here[at as usize]), Kind::Data).is_some());
        });
        let miss = ns_each(200_000, |n| assert!(cache.get(key(10 * count + n), Kind::Data).is_none()));
        let insert = ns_each(100_000, |n| cache.insert(key(20 * count + n), Kind::Data, packed(len), None));
        println!(
            "{len:>8} {blocks:>10} {:>10} {hit:>8.0} {miss:>8.0} {insert:>8.0}",
            (stats.bytes - blocks * len as u64) / blocks
        );
    }
}
