//! Counters, pseudorandom numbers, and tables keyed by numbers.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use terrane_wire::meter::{BUCKETS, Counter, Histogram, HistogramSnapshot};
use terrane_wire::{IdHasher, IdMap, IdSet, Prng, mix64, shard, splitmix64};

fn histogram(durations: &[u64]) -> Histogram {
    let histogram = Histogram::default();
    durations.iter().for_each(|ns| histogram.record_ns(*ns));
    histogram
}

/// Durations of all orders of magnitude below the last bucket.
fn duration() -> impl Strategy<Value = u64> {
    (0u64..1 << 34, 0u32..34).prop_map(|(ns, shift)| ns >> shift)
}

proptest! {
    #[test]
    fn a_quantile_is_at_most_twice_the_duration(
        durations in prop::collection::vec(duration(), 1..100),
        share in 0.0..=1.0f64,
    ) {
        let times = histogram(&durations).snapshot();
        let mut sorted = durations.clone();
        sorted.sort_unstable();
        let rank = ((share * sorted.len() as f64).ceil() as usize).max(1);
        let exact = sorted[rank - 1];
        let found = times.quantile_ns(share).expect("none is in the last bucket");
        prop_assert!(found >= exact, "{found} for {exact}");
        prop_assert!(found < exact.max(513) * 2, "{found} for {exact}");
        prop_assert_eq!(times.count(), durations.len() as u64);
        prop_assert_eq!(times.sum_ns, durations.iter().sum::<u64>());
        prop_assert_eq!(Some(&times.longest_ns), sorted.last());
        prop_assert_eq!(times.mean_ns(), times.sum_ns / times.count());
    }

    #[test]
    fn a_difference_has_what_came_between(
        before in prop::collection::vec(duration(), 0..50),
        after in prop::collection::vec(duration(), 0..50),
    ) {
        let histogram = histogram(&before);
        let earlier = histogram.snapshot();
        after.iter().for_each(|ns| histogram.record_ns(*ns));
        let between = histogram.snapshot().since(&earlier);
        let alone = self::histogram(&after).snapshot();
        prop_assert_eq!((between.buckets, between.sum_ns), (alone.buckets, alone.sum_ns));
    }

    #[test]
    fn scattering_keeps_different_numbers_apart(a in any::<u64>(), b in any::<u64>()) {
        prop_assert_eq!(a == b, mix64(a) == mix64(b));
        prop_assert_eq!(splitmix64(a), Prng::new(a).next_u64());
    }

    #[test]
    fn choices_stay_in_their_range(seed in any::<u64>(), end in 1u64.., items in prop::collection::vec(any::<u8>(), 1..9)) {
        let mut dice = Prng::new(seed);
        prop_assert!(dice.below(end) < end);
        prop_assert!((0.0..1.0).contains(&dice.next_f64()));
        prop_assert!(items.contains(dice.one_of(&items)));
        prop_assert!(dice.pick(&items).is_some_and(|item| items.contains(&item)));
        prop_assert!(dice.one_in(1));
    }

    #[test]
    fn a_table_behaves_like_a_sorted_one(
        changes in prop::collection::vec((any::<bool>(), 0u64..40, 0u32..59), 0..200),
    ) {
        let (mut table, mut sorted) = (IdMap::default(), BTreeMap::new());
        let (mut set, mut sorted_set) = (IdSet::default(), BTreeSet::new());
        for (adds, number, shift) in changes {
            let key = number << shift;
            if adds {
                prop_assert_eq!(table.insert(key, shift), sorted.insert(key, shift));
                prop_assert_eq!(set.insert(key), sorted_set.insert(key));
            } else {
                prop_assert_eq!(table.remove(&key), sorted.remove(&key));
                prop_assert_eq!(set.remove(&key), sorted_set.remove(&key));
            }
        }
        prop_assert_eq!(table.into_iter().collect::<BTreeMap<_, _>>(), sorted);
        prop_assert_eq!(set.into_iter().collect::<BTreeSet<_>>(), sorted_set);
    }
}

#[test]
fn bounds_of_buckets_double_from_a_microsecond_to_half_a_minute() {
    assert_eq!(HistogramSnapshot::bound_ns(0), Some(1024));
    for bucket in 1..BUCKETS - 1 {
        assert_eq!(
            HistogramSnapshot::bound_ns(bucket),
            HistogramSnapshot::bound_ns(bucket - 1).map(|bound| bound * 2)
        );
    }
    assert_eq!(HistogramSnapshot::bound_ns(BUCKETS - 2), Some(17_179_869_184));
    assert_eq!(
        (HistogramSnapshot::bound_ns(BUCKETS - 1), HistogramSnapshot::bound_ns(usize::MAX - 1)),
        (None, None)
    );
}

#[test]
fn what_is_longer_than_all_bounds_has_no_quantile() {
    let times = histogram(&[5, u64::MAX, u64::MAX]).snapshot();
    assert_eq!((times.quantile_ns(0.3), times.quantile_ns(0.9)), (Some(1024), None));
    assert_eq!((times.buckets[BUCKETS - 1], times.longest_ns), (2, u64::MAX));
    // The sum wraps.
    assert_eq!(times.sum_ns, 3);
    assert_eq!(
        (HistogramSnapshot::default().quantile_ns(0.5), HistogramSnapshot::default().mean_ns()),
        (None, 0)
    );
}

#[test]
fn a_counter_may_wrap() {
    let counter = Counter::default();
    assert_eq!(counter.get(), 0);
    counter.add(u64::MAX);
    counter.add(8);
    assert_eq!(counter.get(), 7);
}

#[test]
fn seed_zero_gives_the_published_sequence() {
    let mut dice = Prng::new(0);
    let expected: [u64; 5] = [
        0xe220_a839_7b1d_cdaf,
        0x6e78_9e6a_a1b9_65f4,
        0x06c4_5d18_8009_454f,
        0xf88b_b8a8_724c_81ec,
        0x1b39_896a_51a8_749b,
    ];
    assert_eq!(expected.map(|_| dice.next_u64()), expected);
}

#[test]
fn noise_is_the_sequence_in_bytes() {
    let mut words = Prng::new(3);
    let expected: Vec<u8> = (0..3).flat_map(|_| words.next_u64().to_le_bytes()).take(20).collect();
    assert_eq!(Prng::new(3).random_bytes(20), expected);
    assert_eq!(Prng::new(3).random_bytes(0), []);
}

#[test]
fn one_of_four_contents_compresses() {
    let mut dice = Prng::new(1);
    let repeats = (0..1000).filter(|_| {
        let bytes = dice.sample_bytes(112);
        bytes[..56] == bytes[56..]
    });
    assert!((200..300).contains(&repeats.count()));
}

fn hash(number: u64) -> u64 {
    BuildHasherDefault::<IdHasher>::default().hash_one(number)
}

/// Numbers are often multiples of a power of two. Tables take the lowest bits of a hash, and its highest seven.
#[test]
fn multiples_of_a_power_of_two_spread_over_a_table() {
    for shift in 0..=28 {
        let hashes = || (0..4096).map(|number: u64| hash(number << shift));
        let lowest: BTreeSet<u64> = hashes().map(|hash| hash % 4096).collect();
        let highest: BTreeSet<u64> = hashes().map(|hash| hash >> 57).collect();
        assert!(lowest.len() > 1024, "multiples of 2^{shift}: {} of 4096", lowest.len());
        assert!(highest.len() > 32, "multiples of 2^{shift}: {} of 128", highest.len());
        let mut shards = [0; 16];
        hashes().for_each(|hash| shards[shard(hash, 16)] += 1);
        assert!(shards.iter().all(|keys| (128..384).contains(keys)), "multiples of 2^{shift}: {shards:?}");
    }
}

#[test]
fn every_number_counts_in_a_key_of_several() {
    let of = |words: [u64; 2]| {
        let mut hasher = IdHasher::default();
        words.iter().for_each(|word| hasher.write_u64(*word));
        hasher.finish()
    };
    let hashes: BTreeSet<u64> = (0..64).flat_map(|a| (0..64).map(move |b| of([a, b]))).collect();
    assert_eq!(hashes.len(), 64 * 64);
    assert_ne!(of([1, 2]), of([2, 1]));
}

#[test]
fn tables_of_one_history_have_one_order() {
    let table = || (0..1000u64).map(|number| (number * 16, number)).collect::<IdMap<_, _>>();
    assert!(table().into_iter().eq(table()));
}
