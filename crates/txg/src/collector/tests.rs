use super::*;
use terrane_format::record::{Home, ZoneClass};
use terrane_space::zones::Zone;
use terrane_wire::ZoneIdx;

const YIELD: u64 = 1 << 20;

/// Zones 1, 2, ... with these phases and live bytes.
fn tables(zones: &[(Phase, u64)]) -> Tables {
    let mut tables = Tables::default();
    for (seq, (phase, live)) in (1..).zip(zones) {
        let home = Home { device: DeviceIdx(0), zone: ZoneIdx(seq + 1) };
        let mut zone = Zone::new(ZoneClass::Data, home, YIELD, Txg(1));
        (zone.phase, zone.live) = (*phase, *live);
        tables.live += live;
        tables.insert(ZoneSeq(u64::from(seq)), zone);
    }
    tables
}

fn full_yield() -> Yield {
    Yield { unit: 4096, largest_block: 128 << 10 }
}

#[test]
fn a_zone_with_unlisted_blocks_counts_as_no_gain() {
    let tables = tables(&[(Phase::Emptied(Txg(9)), 0), (Phase::Full, 4096)]);
    let mut collector = Collector::new(1 << 30);
    collector.finished = vec![(ZoneSeq(1), 500), (ZoneSeq(2), 700)];
    assert_eq!(collector.gains(&tables).pending_bytes(), 1200, "while the group syncs both are believed");
    assert_eq!(collector.end_txg(&tables), [ZoneSeq(2)]);
    assert_eq!(collector.gains(&tables).pending_bytes(), 500);
    assert!(!collector.candidates.contains(ZoneSeq(2)), "it would be chosen again and again");
    assert!(collector.end_txg(&tables).is_empty());
}

#[test]
fn zones_that_hold_bootstrap_blocks_wait_for_all_sections() {
    let tables = tables(&[(Phase::Full, 4096)]);
    let mut collector = Collector::new(1 << 30);
    collector.awaiting_sections.add(ZoneSeq(1), Txg(7));
    // One section could not be rewritten, so the bootstrap blocks that it needs are still live.
    collector.release_awaiting(&tables, full_yield(), Txg(6));
    assert!(!collector.candidates.contains(ZoneSeq(1)));
    collector.release_awaiting(&tables, full_yield(), Txg(7));
    assert!(collector.candidates.contains(ZoneSeq(1)));
}

#[test]
fn a_zone_that_sleeps_is_no_candidate() {
    let tables = tables(&[(Phase::Full, 4096)]);
    let mut collector = Collector::new(1 << 30);
    collector.unread.note_failure(ZoneSeq(1), DeviceIdx(0), 0);
    collector.add_zones(&tables, full_yield());
    assert!(!collector.candidates.contains(ZoneSeq(1)));
    collector.unread.remove(ZoneSeq(1));
    collector.update_zone(&tables, ZoneSeq(1), full_yield());
    assert!(collector.candidates.contains(ZoneSeq(1)));
}

#[test]
fn a_suspect_zone_is_looked_at_after_an_import_and_when_it_is_empty() {
    let mut tables = tables(&[(Phase::Suspect, 4096), (Phase::Suspect, 64)]);
    let mut collector = Collector::new(1 << 30);
    collector.add_zones(&tables, full_yield());
    assert_eq!(std::mem::take(&mut collector.to_recheck), BTreeSet::from([ZoneSeq(1), ZoneSeq(2)]));
    collector.update_zone(&tables, ZoneSeq(2), full_yield());
    assert!(collector.to_recheck.is_empty());
    tables.zones.get_mut(&ZoneSeq(2)).unwrap().live = 0;
    collector.update_zone(&tables, ZoneSeq(2), full_yield());
    assert_eq!(collector.to_recheck, BTreeSet::from([ZoneSeq(2)]));
}

/// The unprocessed parts may hold no live blocks. Then the zone is emptied and reset before GC continues.
#[test]
fn a_victim_that_ends_before_its_last_part_counts_once() {
    let (seq, tables) = (ZoneSeq(1), tables(&[(Phase::Emptied(Txg(9)), 0)]));
    let mut collector = Collector::new(1 << 30);
    let cost = VictimCost { live: 300, garbage: 700, moved: 300 };
    let progress =
        Progress { victim: seq, parts: Vec::new(), next_part: 0, cost, all_moved: true, unread_blocks: 0 };
    collector.victim = VictimState::Paused(progress);
    assert_eq!(
        (collector.gains(&tables).pending_bytes(), collector.gains(&tables).freed_so_far()),
        (700, 700)
    );
    collector.update_zone(&tables, seq, full_yield());
    assert_eq!(
        (collector.gains(&tables).pending_bytes(), collector.gains(&tables).freed_so_far()),
        (1000, 0),
        "its reset gives what was copied, too"
    );
    collector.drop_zone(seq);
    assert_eq!(collector.gains(&tables).pending_bytes(), 0);
}

#[test]
fn a_moving_victim_is_dropped_and_a_paused_one_continues() {
    let cost = VictimCost { live: 300, garbage: 600, moved: 100 };
    let mut collector = Collector::new(1 << 30);
    collector.victim = VictimState::Moving(cost);
    let gains = collector.gains(&Tables::default());
    assert_eq!((gains.victim_freed, gains.victim_to_free, gains.victim_to_copy), (Some(200), 400, 200));
    assert!(collector.victim.take_paused().is_none(), "who moves it has it");
    collector.drop_victim(ZoneSeq(1));
    assert!(matches!(collector.victim, VictimState::Moving(_)));
    collector.victim.stop_moving();
    assert_eq!(collector.gains(&Tables::default()).victim_freed, None);
    let progress = Progress {
        victim: ZoneSeq(1),
        parts: Vec::new(),
        next_part: 0,
        cost,
        all_moved: true,
        unread_blocks: 0,
    };
    collector.victim = VictimState::Paused(progress);
    collector.victim.stop_moving();
    assert_eq!(collector.gains(&Tables::default()).victim_freed, Some(200));
    assert_eq!(collector.victim.take_paused().map(|progress| progress.victim), Some(ZoneSeq(1)));
    assert!(collector.victim.paused().is_none());
}
