//! Hash tables keyed by numbers that Terrane assigns itself.
//!
//! The standard library's hash resists an attacker who chooses keys that collide. Object numbers, addresses and node
//! ids are not chosen by users, and every operation looks into these tables. So one multiplication is enough.

/// A map keyed by numbers that Terrane assigns.
pub use rustc_hash::FxHashMap as IdMap;
/// A set of numbers that Terrane assigns.
pub use rustc_hash::FxHashSet as IdSet;
/// A fast hash for keys that no user can choose. Iteration order is the same in every run. A table uses its lowest bits
/// and its highest seven, so [`shard`] takes others.
pub use rustc_hash::FxHasher as IdHasher;

/// The index of a table, if keys with this hash are spread over `count` tables.
pub fn shard(hash: u64, count: usize) -> usize {
    // Of the best mixed bits, which lie below bit 26, those that only a table of millions of keys uses.
    usize::try_from(hash >> 20 & 0x3f).unwrap_or(0) % count.max(1)
}
