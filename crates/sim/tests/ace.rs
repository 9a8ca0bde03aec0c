//! Short sequences of calls on a pool with an intent log, and the ten bugs that CrashMonkey found in other file systems.

use terrane_oracle::Failure;
use terrane_sim::logged::ace::{Sequences, Shell};
use terrane_sim::logged::calls::Allocation;
use terrane_sim::seeds::{number, seeds};

/// Runs every `stride`-th sequence, from a first one that the seeds choose, or `TERRANE_ACE_OFFSET`.
fn run_sequences(len: u32, stride: u64) {
    let sequences = Sequences::new(len);
    let seed = seeds(1).first().copied().unwrap_or(0).wrapping_mul(0x9e37_79b9);
    let offset = number("TERRANE_ACE_OFFSET").unwrap_or(seed) % stride;
    let mut shell = Shell::seeded(0).unwrap();
    let (mut count, mut logged, mut replayed) = (0u64, 0, 0);
    for number in (offset..sequences.count()).step_by(stride as usize) {
        let Some(sequence) = sequences.get(number) else { continue };
        // One pool serves many of them, until its log has gone around.
        if count % 50 == 0 {
            (logged, replayed) = (logged + shell.world.seen.logged, replayed + shell.world.seen.replayed);
            shell = Shell::seeded(count / 50).unwrap();
        }
        // A check takes a quarter of the time, so one in three of the longer sequences has it.
        shell.checks =
            len == 1 || ((number ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).is_multiple_of(3);
        for committed in [false, true] {
            shell
                .run(&sequence, committed)
                .unwrap_or_else(|failure| panic!("sequence {number}, {committed}: {sequence:?}: {failure}"));
        }
        count += 1;
    }
    assert!(count > 100 && logged > count / 2 && replayed > count, "{count}, {logged}, {replayed}");
}

#[test]
fn all_sequences_of_one_call_survive() {
    run_sequences(1, 1);
}

#[test]
fn sequences_of_two_calls_survive() {
    run_sequences(2, number("TERRANE_ACE_STRIDE").unwrap_or(1009));
}

#[test]
fn sequences_of_three_calls_survive() {
    run_sequences(3, number("TERRANE_ACE_STRIDE_OF_THREE").unwrap_or(1_500_007));
}

/// Runs a script with nothing committed before it, and with its first lines committed, on several kinds of pools.
fn script(
    before: impl Fn(&mut Shell) -> Result<(), Failure>,
    then: impl Fn(&mut Shell) -> Result<(), Failure>,
) {
    for seed in 0..8 {
        let mut shell = Shell::seeded(seed / 2).unwrap();
        before(&mut shell).unwrap();
        if seed % 2 == 0 {
            shell.sync().unwrap();
        }
        then(&mut shell).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn crashmonkey_1_a_file_that_replaced_another_stays() {
    script(
        |s| {
            s.mkdir("A")?;
            s.creat("A/bar")
        },
        |s| {
            s.fsync("A/bar")?;
            s.mkdir("B")?;
            s.creat("B/bar")?;
            s.rename("B/bar", "A/bar")?;
            s.creat("A/foo")?;
            s.fsync("A/foo")?;
            s.fsync("A")
        },
    );
}

#[test]
fn crashmonkey_2_a_renamed_file_is_in_one_directory() {
    script(
        |s| {
            s.mkdir("A")?;
            s.mkdir("A/C")
        },
        |s| {
            s.rename("A/C", "B")?;
            s.creat("B/bar")?;
            s.fsync("B/bar")?;
            s.rename("B/bar", "A/bar")?;
            s.rename("A", "D")?;
            s.fsync("D/bar")
        },
    );
}

#[test]
fn crashmonkey_3_a_directory_stays_after_a_link_below_it() {
    script(
        |s| {
            s.mkdir("A")?;
            s.mkdir("B")?;
            s.mkdir("A/C")?;
            s.creat("B/foo")
        },
        |s| {
            s.link("B/foo", "A/C/foo")?;
            s.fsync("A")
        },
    );
}

#[test]
fn crashmonkey_4_a_renamed_directory_stays() {
    script(
        |s| s.mkdir("A"),
        |s| {
            s.rename("A", "B")?;
            s.creat("B/foo")?;
            s.fsync("B/foo")?;
            s.fsync("B")
        },
    );
}

#[test]
fn crashmonkey_5_both_links_of_a_synced_file_stay() {
    script(
        |s| {
            s.mkdir("A")?;
            s.mkdir("B")?;
            s.creat("A/foo")
        },
        |s| {
            s.link("A/foo", "B/foo")?;
            s.fsync("A/foo")?;
            s.fsync("B/foo")
        },
    );
}

#[test]
fn crashmonkey_6_a_synced_directory_keeps_its_files() {
    script(
        |s| {
            s.mkdir("test")?;
            s.mkdir("test/A")
        },
        |s| {
            s.creat("test/foo")?;
            s.creat("test/A/foo")?;
            s.fsync("test/A")?;
            s.fsync("test")
        },
    );
}

#[test]
fn crashmonkey_7_a_new_link_in_another_directory_stays() {
    script(
        |s| {
            s.mkdir("A")?;
            s.creat("foo")
        },
        |s| {
            s.link("foo", "A/bar")?;
            s.fsync("foo")
        },
    );
}

#[test]
fn crashmonkey_8_space_behind_the_end_stays() {
    script(
        |s| {
            s.creat("foo")?;
            s.write("foo", 0, 8192)
        },
        |s| {
            s.fsync("foo")?;
            s.fallocate("foo", Allocation::KeepSize, 8192, 8192)?;
            s.fsync("foo")?;
            let left = s.world.machine.device.restarted(terrane_device::Survival::Nothing);
            let (machine, ..) = terrane_sim::logged::world::import(&left, 1)?;
            assert_eq!(
                machine.fs().reserved_bytes().by_files,
                s.world.machine.fs().reserved_bytes().by_files
            );
            assert!(machine.fs().reserved_bytes().by_files > 0);
            Ok(())
        },
    );
}

#[test]
fn crashmonkey_9_zeros_behind_the_end_do_not_change_the_size() {
    script(
        |s| {
            s.creat("foo")?;
            s.write("foo", 0, 16_384)
        },
        |s| {
            s.fsync("foo")?;
            s.fallocate("foo", Allocation::Zero, 16_384, 4096)?;
            s.fsync("foo")
        },
    );
}

#[test]
fn crashmonkey_10_a_moved_file_leaves_its_old_directory() {
    script(
        |s| {
            s.mkdir("A")?;
            s.mkdir("B")?;
            s.creat("A/foo")
        },
        |s| {
            s.rename("A/foo", "B/foo")?;
            s.write("B/foo", 0, 1)?;
            s.fsync("B/foo")
        },
    );
}
