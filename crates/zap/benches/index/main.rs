//! Structures for the index of a micro or tiny ZAP, compared.
//!
//! `cargo bench -p terrane-zap --bench index -- [--names N,N,..]`. Elements are those of names from `file-000000` on.
//! `B built` is memory per element after building, with capacity and the allocator's rounding. `B grown` is its
//! maximum during as many random insertions. Times are nanoseconds per operation, the best of many rounds. `build` is
//! in microseconds for all elements, in slot order, with known hashes. `crowd` inserts and removes where all hashes
//! share their first 16 bits, as an attacker could choose; `hash order` then changes to a tree. The choice is
//! `decisions/0017-an-index-in-hash-order.md`.

#[path = "../../src/elements.rs"]
mod elements;
#[path = "../../src/ordered.rs"]
mod ordered;
mod others;

use clap::Parser;
use elements::Elements;
use others::{Hashed, Leaves, SortedArray};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::Instant;

/// What an index needs of its structure.
pub trait Structure: Default {
    const NAME: &'static str;
    fn build(elements: &[u64]) -> Self;
    fn insert(&mut self, element: u64);
    fn remove(&mut self, element: u64);
    /// The first element that is not smaller.
    fn first_from(&self, element: u64) -> Option<u64>;
    /// The sum of all elements, read in order.
    fn sum_in_order(&self) -> u64;
    /// Allocated bytes, with the allocator's rounding.
    fn bytes(&self) -> usize;
}

/// The usual allocators' size for a request: steps of 16, with 8 bytes of overhead.
pub fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
}

impl Structure for Elements {
    const NAME: &'static str = "hash order";

    fn build(elements: &[u64]) -> Self {
        let built = Elements::build(elements);
        assert_eq!((built.len(), built.check()), (elements.len(), Ok(())));
        built
    }

    fn insert(&mut self, element: u64) {
        Elements::insert(self, element);
    }

    fn remove(&mut self, element: u64) {
        assert!(Elements::remove(self, element));
    }

    fn first_from(&self, element: u64) -> Option<u64> {
        self.from(element).next()
    }

    fn sum_in_order(&self) -> u64 {
        self.from(0).fold(0, u64::wrapping_add)
    }

    fn bytes(&self) -> usize {
        allocated(Elements::bytes(self))
    }
}

/// The standard library's tree, whose nodes have 5 to 11 elements. Its memory cannot be measured; these are its nodes
/// when full.
impl Structure for BTreeSet<u64> {
    const NAME: &'static str = "BTreeSet";

    fn build(elements: &[u64]) -> Self {
        elements.iter().copied().collect()
    }

    fn insert(&mut self, element: u64) {
        BTreeSet::insert(self, element);
    }

    fn remove(&mut self, element: u64) {
        assert!(BTreeSet::remove(self, &element));
    }

    fn first_from(&self, element: u64) -> Option<u64> {
        self.range(element..).next().copied()
    }

    fn sum_in_order(&self) -> u64 {
        self.iter().fold(0, |sum, element| sum.wrapping_add(*element))
    }

    fn bytes(&self) -> usize {
        self.len().div_ceil(11) * allocated(11 * 8 + 16)
    }
}

const POLYNOMIAL: u64 = 0xC96C_5795_D787_0F42;

fn crc64(salt: u64, name: &[u8]) -> u64 {
    name.iter().fold(salt, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg()))
    })
}

fn elements(names: usize) -> Vec<u64> {
    let hash = |slot: usize| crc64(0x5eed_1234_abcd_4321, format!("file-{slot:06}").as_bytes());
    (0..names).map(|slot| hash(slot) >> 36 << 36 | slot as u64).collect()
}

/// Every index below `count` once, scattered.
fn scattered(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * 7_919 % count)
}

/// Nanoseconds of the fastest round.
fn best<T>(rounds: usize, mut prepare: impl FnMut() -> T, mut run: impl FnMut(&mut T)) -> f64 {
    let round = |_| {
        let mut state = prepare();
        let start = Instant::now();
        run(&mut state);
        let took = start.elapsed().as_nanos() as f64;
        black_box(&state);
        took
    };
    (0..rounds).map(round).fold(f64::INFINITY, f64::min)
}

fn filled<S: Structure>(elements: &[u64]) -> S {
    let mut filled = S::default();
    scattered(elements.len()).for_each(|at| filled.insert(elements[at]));
    filled
}

fn row<S: Structure>(elements: &[u64]) {
    let count = elements.len();
    let rounds = (2_000_000 / count).clamp(20, 20_000);
    let per = |ns: f64| ns / count as f64;
    let built = S::build(elements);
    // Twice as many are added to find the maximum between two growths.
    let mut grown = built_half::<S>(elements);
    let mut most: f64 = 0.0;
    for (added, at) in scattered(count).filter(|at| at % 2 == 1).enumerate() {
        grown.insert(elements[at]);
        most = most.max(grown.bytes() as f64 / (count.div_ceil(2) + added + 1) as f64);
    }
    let build = best(rounds, || (), |()| drop(black_box(S::build(elements))));
    let lookup = best(
        rounds,
        || (),
        |()| {
            for at in scattered(count) {
                let first = elements[at] >> 32 << 32;
                black_box(built.first_from(black_box(first)));
            }
        },
    );
    let insert = best(rounds, S::default, |s: &mut S| scattered(count).for_each(|at| s.insert(elements[at])));
    let remove =
        best(rounds, || S::build(elements), |s| scattered(count).for_each(|at| s.remove(elements[at])));
    let list = best(
        rounds,
        || (),
        |()| {
            black_box(built.sum_in_order());
        },
    );
    let crowd: Vec<u64> =
        elements.iter().map(|e| 0x7777 << 48 | (e >> 36 & 0xfff) << 36 | e & 0xffff).collect();
    let rounds = rounds.min(50);
    let crowded = best(rounds, S::default, |s: &mut S| scattered(count).for_each(|at| s.insert(crowd[at])));
    let cleared =
        best(rounds, || filled::<S>(&crowd), |s| scattered(count).for_each(|at| s.remove(crowd[at])));
    println!(
        "{:>6} {:<12}{:>8.2}{:>9.2}{:>10.2}{:>9.1}{:>9.1}{:>9.1}{:>9.2}{:>9.0}{:>9.0}",
        count,
        S::NAME,
        built.bytes() as f64 / count as f64,
        most,
        build / 1e3,
        per(lookup),
        per(insert),
        per(remove),
        per(list),
        per(crowded),
        per(cleared),
    );
}

fn built_half<S: Structure>(elements: &[u64]) -> S {
    let half: Vec<u64> = elements.iter().copied().step_by(2).collect();
    S::build(&half)
}

/// Structures for the index of a micro or tiny ZAP, compared
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane-zap --bench index --")]
struct Options {
    /// Names of each row
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "10,100,2000,16000")]
    names: Vec<usize>,
}

fn main() {
    // `cargo bench` adds the word.
    let Options { names } = Options::parse_from(std::env::args_os().filter(|word| word != "--bench"));
    println!(
        "{:>6} {:<12}{:>8}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "names",
        "",
        "B built",
        "B grown",
        "build us",
        "lookup",
        "insert",
        "remove",
        "list",
        "crowd +",
        "crowd -"
    );
    for count in names {
        let elements = elements(count);
        row::<SortedArray>(&elements);
        row::<Leaves>(&elements);
        row::<Hashed>(&elements);
        row::<Elements>(&elements);
        row::<BTreeSet<u64>>(&elements);
    }
}
