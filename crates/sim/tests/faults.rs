//! Reported failures are survived; silent ones are detected.

use terrane_device::ZoneState;
use terrane_oracle::Failure;
use terrane_sim::faults::{
    LostPart, SilentFault, attribute_rot, data_rot, inject_silent_fault, metadata_rot, read_bursts,
    write_errors, zone_failure,
};
use terrane_sim::seeds::seeds;

fn each(count: u64, mut scenario: impl FnMut(u64) -> Result<(), Failure>) {
    for seed in seeds(count) {
        scenario(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn failing_writes_lose_nothing() {
    let mut fired = 0;
    each(10, |seed| write_errors(seed, 20).map(|count| fired += count));
    assert!(fired > 0, "no write failed");
}

#[test]
fn reads_that_fail_while_txgs_sync_lose_nothing() {
    let (mut failed, mut stopped) = (0, 0);
    each(40, |seed| {
        let ended = read_bursts(seed)?;
        (failed, stopped) = (failed + ended.failed_reads, stopped + u32::from(ended.stopped));
        Ok(())
    });
    assert!(failed > 100 && stopped > 0 && stopped < 40, "{failed} reads failed, {stopped} pools stopped");
}

#[test]
fn metadata_heals_from_its_other_copy() {
    each(8, metadata_rot);
}

#[test]
fn rot_in_a_file_is_an_error_to_its_readers_alone() {
    let mut lost = 0;
    each(8, |seed| data_rot(seed).map(|count| lost += count));
    assert!(lost > 0, "no file was hit");
}

#[test]
fn rot_in_an_attribute_is_an_error_to_those_who_ask_for_it() {
    for lost in [LostPart::Spill, LostPart::Names, LostPart::Value] {
        each(2, |seed| attribute_rot(seed, lost).map_err(|failure| failure.within(format!("{lost:?}"))));
    }
}

#[test]
fn a_zone_that_becomes_read_only_loses_nothing() {
    each(10, |seed| zone_failure(seed, ZoneState::ReadOnly));
}

#[test]
fn a_zone_that_goes_offline_takes_only_its_own_data() {
    each(10, |seed| zone_failure(seed, ZoneState::Offline));
}

fn is_caught(fault: SilentFault) {
    let (mut injected, mut noticed) = (0, 0);
    each(24, |seed| {
        if let Some(failure) = inject_silent_fault(seed, fault)? {
            injected += 1;
            noticed += u64::from(!failure.0.is_empty());
        }
        Ok(())
    });
    assert!(injected >= 12, "the device lied only {injected} times");
    assert!(noticed * 10 >= injected * 9, "{noticed} of {injected} lies were noticed");
}

#[test]
fn a_lost_flush_is_caught() {
    is_caught(SilentFault::Flush);
}

#[test]
fn a_lost_write_is_caught() {
    is_caught(SilentFault::Write);
}

#[test]
fn a_misdirected_write_is_caught() {
    is_caught(SilentFault::Misdirected);
}
