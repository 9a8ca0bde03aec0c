//! The cost of a free in the dead set of its zone, and the memory of dead sets. The records of a zone die in any order, some in each
//! txg.
//!
//!     cargo bench -p terrane-space --bench dead

use std::hint::black_box;
use std::time::Instant;
use terrane_space::dead::DeadSet;

/// Sets used in rotation, so that none stays in the processor's cache.
const SETS: usize = 256;

/// Start and length of records of these sizes, in granules.
fn zone(records: usize, size: impl Fn(usize) -> u32) -> Vec<(u32, u32)> {
    let sizes = (0..records).map(|at| (at, size(at)));
    sizes
        .scan(0, |end, (_, size)| {
            *end += size;
            Some((*end - size, size))
        })
        .collect()
}

/// All records of the zone but a tenth, in an order unrelated to their place.
fn dying(zone: &[(u32, u32)], set: usize) -> Vec<(u32, u32)> {
    let mut order: Vec<(u64, (u32, u32))> = (0u64..)
        .zip(zone)
        .map(|(at, record)| ((at + 1 + set as u64 * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15), *record))
        .collect();
    order.sort_unstable();
    order.truncate(zone.len() / 10 * 9);
    order.into_iter().map(|(_, record)| record).collect()
}

fn main() {
    let uneven = |size: u32| move |at: usize| size / 4 + (at as u32).wrapping_mul(2_654_435_761) % (size / 2);
    let zones = [
        ("2,048 of 4 KiB", zone(2048, |_| 256)),
        ("2,048 of 4 KiB, compressed", zone(2048, uneven(256))),
        ("1,024 of 256 KiB", zone(1024, |_| 16 << 10)),
        ("1,024 of 256 KiB, compressed", zone(1024, uneven(16 << 10))),
        ("16,384 of 16 KiB, compressed", zone(16_384, uneven(1 << 10))),
    ];
    println!(
        "{:<30} {:>12} {:>10} {:>16} {:>16}",
        "records of a zone", "per txg", "ns a free", "most bytes", "look-up, ns"
    );
    for (what, zone) in &zones {
        for frees_per_txg in [1, 16] {
            row(what, zone, frees_per_txg);
        }
    }
}

fn row(what: &str, zone: &[(u32, u32)], frees_per_txg: usize) {
    let mut deaths: Vec<Vec<(u32, u32)>> = (0..SETS).map(|set| dying(zone, set)).collect();
    deaths
        .iter_mut()
        .flat_map(|dying| dying.chunks_mut(frees_per_txg))
        .for_each(|frees| frees.sort_unstable());
    let mut sets = vec![DeadSet::default(); SETS];
    let frees = deaths[0].len();
    let (mut ns, mut most, mut found) = (0, 0, 0);
    for from in (0..frees).step_by(frees_per_txg) {
        let began = Instant::now();
        for (set, dying) in sets.iter_mut().zip(&deaths) {
            let twice = set.add_sorted(&dying[from..(from + frees_per_txg).min(frees)]);
            assert!(twice.is_empty(), "each dies once");
        }
        ns += began.elapsed().as_nanos();
        most = most.max(sets.iter().map(DeadSet::memory_bytes).sum::<usize>() / SETS);
    }
    let began = Instant::now();
    for set in &sets {
        found += zone.iter().filter(|(first, count)| black_box(set).contains(*first, *count)).count();
    }
    assert_eq!(found, frees * SETS);
    println!(
        "{what:<30} {frees_per_txg:>12} {:>10.0} {most:>16} {:>16.0}",
        ns as f64 / (frees * SETS) as f64,
        began.elapsed().as_nanos() as f64 / (zone.len() * SETS) as f64
    );
}
