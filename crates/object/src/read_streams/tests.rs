use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const BLOCK: u64 = 128 << 10;
const BOUNDS: PrefetchBounds =
    PrefetchBounds { block_bytes: BLOCK, block_count: 8192, window_max: 8 << 20, wasted: 0 };

/// Records reads of `len` bytes from each of these offsets. Returns which of them were prefetched, and all
/// prefetched blocks.
fn read_all(
    streams: &mut ReadStreams,
    starts: impl IntoIterator<Item = u64>,
    len: u64,
) -> (Vec<bool>, BTreeSet<u64>) {
    let mut prefetched = BTreeSet::new();
    let mut found = Vec::new();
    for start in starts {
        let read = start..start + len;
        found.push(BOUNDS.blocks(read.clone()).all(|block| prefetched.contains(&block)));
        for blocks in streams.record_read(read, &BOUNDS) {
            for block in blocks {
                assert!(block < BOUNDS.block_count);
                assert!(prefetched.insert(block), "block {block} is asked for twice");
            }
        }
    }
    (found, prefetched)
}

#[test]
fn sequential_reads_are_prefetched_from_the_third_on() {
    for len in [BLOCK, 4 * BLOCK] {
        let (found, prefetched) = read_all(&mut ReadStreams::default(), (0..500).map(|n| n * len), len);
        assert_eq!(found[..2], [false, false]);
        assert!(found[2..].iter().all(|found| *found));
        let end = 500 * len / BLOCK;
        assert!(prefetched.iter().all(|block| *block <= end + BOUNDS.window_max / BLOCK));
    }
}

#[test]
fn reads_smaller_than_a_block_form_a_stream() {
    let (found, _) = read_all(&mut ReadStreams::default(), (0..5000).map(|n| n * 4096), 4096);
    let first = found.iter().position(|found| *found).unwrap();
    assert_eq!((first, found[first..].iter().all(|found| *found)), (32, true));
}

#[test]
fn backward_reads_are_prefetched_down_to_block_0() {
    let (found, prefetched) = read_all(&mut ReadStreams::default(), (0..500).rev().map(|n| n * BLOCK), BLOCK);
    assert!(found[2..].iter().all(|found| *found));
    assert_eq!(prefetched.first(), Some(&0));
}

#[test]
fn strided_reads_prefetch_only_their_own_blocks() {
    for step in [10, 3] {
        let (found, prefetched) =
            read_all(&mut ReadStreams::default(), (0..300).map(|n| n * step * BLOCK), BLOCK);
        assert!(found[4..].iter().all(|found| *found), "from the fifth read on");
        assert!(prefetched.iter().all(|block| block % step == 0));
    }
    let back = (0..300).map(|n| (4000 - n * 10) * BLOCK);
    let (found, prefetched) = read_all(&mut ReadStreams::default(), back, 4096);
    assert!(found[4..].iter().all(|found| *found) && prefetched.iter().all(|block| block % 10 == 0));
}

#[test]
fn several_streams_of_one_file_do_not_disturb_each_other() {
    let mut starts = Vec::new();
    for n in 0..200 {
        starts.extend([n * BLOCK, (2000 + n) * BLOCK, (4000 - n) * BLOCK, (5000 + 7 * n) * BLOCK]);
    }
    let (found, _) = read_all(&mut ReadStreams::default(), starts, BLOCK);
    let late = found[32..].iter().filter(|found| **found).count();
    assert_eq!(late, found.len() - 32);
}

#[test]
fn requests_that_overtake_each_other_are_one_stream() {
    // The kernel sends several at once when it detects a sequential reader.
    let starts = (0..4).chain((4..400).map(|n| n ^ 1)).map(|n| n * BLOCK);
    let mut streams = ReadStreams::default();
    let (found, _) = read_all(&mut streams, starts, BLOCK);
    assert!(found[8..].iter().all(|found| *found));
    assert_eq!(streams.streams.len(), 1, "{streams:?}");
}

#[test]
fn random_reads_are_not_prefetched() {
    let mut state = 7u64;
    let starts = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 8192 * BLOCK
    });
    let mut streams = ReadStreams::default();
    let prefetched: usize =
        starts.take(20_000).map(|start| streams.record_read(start..start + BLOCK, &BOUNDS).len()).sum();
    assert!(prefetched < 400, "{prefetched} of 20,000 reads");
}

#[test]
fn the_window_doubles_to_its_bound_and_halves_when_blocks_went_unread() {
    let mut streams = ReadStreams::default();
    read_all(&mut streams, (0..200).map(|n| n * BLOCK), BLOCK);
    assert_eq!(streams.streams[0].window, BOUNDS.window_max);
    for (n, expected) in [(200, 2), (201, 4), (202, 8)] {
        let bounds = PrefetchBounds { wasted: n - 190, ..BOUNDS };
        streams.record_read(n * BLOCK..(n + 1) * BLOCK, &bounds);
        assert_eq!(streams.streams[0].window, BOUNDS.window_max / expected);
    }
    assert_eq!(
        streams.record_read(BLOCK * 203..BLOCK * 204, &PrefetchBounds { window_max: BLOCK - 1, ..BOUNDS }),
        []
    );
}

#[test]
fn prefetch_stops_at_the_last_block() {
    let bounds = PrefetchBounds { block_count: 10, ..BOUNDS };
    let mut streams = ReadStreams::default();
    let prefetched: Vec<u64> =
        (0..12).flat_map(|n| streams.record_read(n * BLOCK..(n + 1) * BLOCK, &bounds)).flatten().collect();
    assert_eq!(prefetched, (2..10).collect::<Vec<u64>>());
}

proptest! {
    #[test]
    fn any_reads_are_taken(
        reads in prop::collection::vec((any::<u64>(), 0u64..1 << 30, any::<u8>()), 1..300),
        block_bytes in prop::sample::select(vec![512u64, 4096, 128 << 10, 16 << 20]),
        block_count in 0u64..1 << 20,
    ) {
        let mut streams = ReadStreams::default();
        let mut last = 0u64;
        for (start, len, how) in reads {
            let start = match how % 4 {
                0 => start,
                1 => last,
                2 => last.wrapping_add(10 * block_bytes),
                _ => start % (block_bytes * block_count).max(1),
            };
            let read = start..start.saturating_add(len);
            last = read.end;
            let bounds = PrefetchBounds { block_bytes, block_count, window_max: 8 << 20, wasted: u64::from(how) };
            let prefetched = streams.record_read(read, &bounds);
            prop_assert!(prefetched.iter().all(|blocks| blocks.end <= block_count && blocks.start <= blocks.end));
            let bytes: u64 = prefetched.iter().map(|blocks| (blocks.end - blocks.start) * block_bytes).sum();
            prop_assert!(bytes <= bounds.window_max + block_bytes + len.max(block_bytes) * 2, "{bytes}");
            prop_assert!(streams.streams.len() <= STREAMS_MAX && streams.unmatched.len() <= UNMATCHED_MAX);
        }
    }
}
