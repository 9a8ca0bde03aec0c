use super::*;

const ZONE: u64 = 64 << 20;

const BLOCK: u64 = 128 << 10;

/// Every open zone has enough free space.
fn place(placer: &mut Placer, placement: &Placement, is_hot: bool, may_open: bool) -> usize {
    let supply = if may_open { ZoneSupply::Plenty } else { ZoneSupply::Short };
    place_by(placer, placement, if is_hot { Heat::Hot } else { Heat::Cold }, supply)
}

fn place_by(placer: &mut Placer, placement: &Placement, heat: Heat, supply: ZoneSupply) -> usize {
    let choice = placer.choose(placement, (heat, BLOCK), kept_only(supply), |_| ZONE);
    assert!(!choice.is_fresh, "nothing is short");
    placer.note_placed(choice, placement, heat, BLOCK);
    choice.slot
}

fn kept_only(zones: ZoneSupply) -> Supply {
    Supply { zones, extra_slots: 0 }
}

fn file(file: u64, hint: Hint, burst_bytes: u64) -> Placement {
    Placement { file, hint, burst_bytes, ..Placement::default() }
}

#[test]
fn copies_of_metadata_never_share_a_slot_and_every_role_has_one() {
    for zones in [30, 62, 127, 128, 254, 256, 1000, 5000, 100_000] {
        for open_max in [0, 2, 3, 4, 5, 6, 7, 13, 127] {
            let layout = Layout::new(zones, open_max).unwrap();
            let [a, b] = layout.meta();
            assert_ne!(a, b, "{zones} zones, {open_max} open");
            assert!(open_max == 0 || layout.slots() <= open_max as usize);
            assert!(!layout.data().is_empty() && layout.data().end <= layout.slots());
            assert!(Age::ALL.iter().all(|age| layout.survivors(*age) < layout.slots()));
            for class in ZoneClass::ALL {
                assert!(!layout.slots_of(class).is_empty());
            }
            let used: std::collections::BTreeSet<usize> =
                layout.data().chain([a, b]).chain(Age::ALL.map(|age| layout.survivors(age))).collect();
            assert_eq!(used.len(), layout.slots(), "no slot without a role: {layout:?}");
        }
    }
    assert_eq!(Layout::new(1000, 1), None);
}

#[test]
fn survivors_share_no_slot_with_data_unless_metadata_takes_two_of_three() {
    for zones in [30, 62, 127, 128, 254, 256, 1000, 5000, 100_000] {
        for open_max in [0, 2, 3, 4, 5, 6, 7, 13, 127] {
            let shares =
                |layout: Layout| Age::ALL.iter().any(|age| layout.data().contains(&layout.survivors(*age)));
            let layout = Layout::new(zones, open_max).unwrap();
            assert!(!shares(layout), "{zones} zones, {open_max} open");
            assert!(!shares(layout.with_extra_slots(16)), "{zones} zones, {open_max} open, with extra slots");
            if open_max != 2 {
                let layout = layout.with_metadata_slots();
                assert_eq!(
                    shares(layout),
                    layout.slots() == 3,
                    "{zones} zones, {open_max} open, a special device"
                );
            }
        }
    }
}

#[test]
fn metadata_can_have_slots_of_its_own() {
    for zones in [30, 127, 128, 1000] {
        for open_max in [0, 3, 4, 5, 13] {
            let layout = Layout::new(zones, open_max).unwrap().with_metadata_slots();
            assert!(open_max == 0 || layout.slots() <= open_max as usize);
            let others: Vec<usize> = layout.data().chain(Age::ALL.map(|age| layout.survivors(age))).collect();
            assert!(layout.meta().iter().all(|slot| !others.contains(slot)), "{layout:?}");
            let classes = layout.meta().map(|slot| layout.metadata_only_class(slot));
            assert_eq!(classes, [Some(ZoneClass::MetaA), Some(ZoneClass::MetaB)], "{layout:?}");
            assert!(others.iter().all(|slot| layout.metadata_only_class(*slot).is_none()), "{layout:?}");
            assert!(others.iter().all(|slot| *slot < layout.slots()) && !layout.data().is_empty());
        }
    }
}

#[test]
fn a_shared_slot_has_no_metadata_only_class() {
    for layout in [Layout::of_slots(2, 1), Layout::of_slots(3, 1)].map(Option::unwrap) {
        assert_eq!(layout.metadata_only_class(layout.meta()[1]), None, "{layout:?}");
    }
}

#[test]
fn each_hint_has_a_slot_of_its_own() {
    let mut placer = Placer::new(Layout::new(500, 0).unwrap(), ZONE);
    let mut slots: [Vec<usize>; 3] = Default::default();
    for round in 0..100u64 {
        for (at, hint) in [Hint::Short, Hint::Medium, Hint::Long].into_iter().enumerate() {
            slots[at].push(place(&mut placer, &file(1 + round * 3 + at as u64, hint, 1 << 20), false, true));
        }
    }
    for slots in &mut slots {
        slots.dedup();
        assert_eq!(slots.len(), 1);
    }
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2]);
}

/// As in the pool: a block does not fit, so the zone is closed, and the next one is opened in its slot.
#[test]
fn slots_keep_their_lanes_when_a_zone_is_full() {
    let mut placer = Placer::new(Layout::new(500, 0).unwrap(), ZONE);
    let next_zone = |placer: &mut Placer, slot| {
        placer.note_closed(slot);
        placer.note_opened(slot);
    };
    let hints = [Hint::Short, Hint::Medium, Hint::Long];
    let first = hints.map(|hint| place(&mut placer, &file(0, hint, 1 << 20), false, true));
    for _ in 0..3 {
        first.iter().for_each(|slot| next_zone(&mut placer, *slot));
        assert_eq!(hints.map(|hint| place(&mut placer, &file(0, hint, 1 << 20), false, true)), first);
    }
    // The same holds for the files of one lane.
    let mut placer = Placer::new(Layout::new(500, 0).unwrap(), ZONE);
    let slots =
        |placer: &mut Placer| [1, 2].map(|id| place(placer, &file(id, Hint::NotSet, 8 << 20), false, true));
    let first = slots(&mut placer);
    assert_ne!(first[0], first[1]);
    for _ in 0..3 {
        for (at, slot) in first.into_iter().enumerate() {
            assert_eq!(slots(&mut placer)[at], slot);
            let _ = place(&mut placer, &file(1 + at as u64, Hint::NotSet, 8 << 20), false, true);
            next_zone(&mut placer, slot);
        }
        assert_eq!(slots(&mut placer), first);
    }
}

#[test]
fn writers_at_the_same_time_get_different_zones_and_keep_them() {
    let mut placer = Placer::new(Layout::new(2000, 0).unwrap(), ZONE);
    let first: Vec<usize> =
        (1..=4).map(|id| place(&mut placer, &file(id, Hint::NotSet, 8 << 20), false, true)).collect();
    let unlike: std::collections::BTreeSet<usize> = first.iter().copied().collect();
    assert_eq!(unlike.len(), 4);
    for _ in 0..10 {
        let again: Vec<usize> =
            (1..=4).map(|id| place(&mut placer, &file(id, Hint::NotSet, 8 << 20), false, true)).collect();
        assert_eq!(again, first);
    }
}

#[test]
fn small_files_follow_each_other() {
    let mut placer = Placer::new(Layout::new(2000, 0).unwrap(), ZONE);
    for id in 1..=3 {
        let _ = place(&mut placer, &file(id, Hint::NotSet, 8 << 20), false, true);
    }
    let slots: std::collections::BTreeSet<usize> = (10..110)
        .map(|id| {
            place(&mut placer, &Placement { is_closed: true, ..file(id, Hint::NotSet, 8 << 10) }, false, true)
        })
        .collect();
    assert_eq!(slots.len(), 1);
}

#[test]
fn hot_data_gets_a_slot_of_its_own() {
    for zones in [200, 500, 2000] {
        let mut placer = Placer::new(Layout::new(zones, 0).unwrap(), ZONE);
        let cold = place(&mut placer, &file(1, Hint::NotSet, 64 << 10), false, true);
        let hot = place(&mut placer, &file(2, Hint::NotSet, 64 << 10), true, true);
        assert_ne!(cold, hot);
        assert_eq!(place(&mut placer, &file(3, Hint::NotSet, 64 << 10), true, true), hot);
        placer.note_closed(hot);
        assert_eq!(place(&mut placer, &file(1, Hint::NotSet, 64 << 10), false, true), cold);
    }
}

#[test]
fn overwrites_are_separated_by_lifetime_as_far_as_slots_suffice() {
    for (zones, classes) in [(200, 2), (500, 3), (2000, 4)] {
        let mut placer = Placer::new(Layout::new(zones, 0).unwrap(), ZONE);
        let mut slots: Vec<usize> = [Heat::Cold, Heat::Hot, Heat::Warm, Heat::Tepid, Heat::Warm, Heat::Hot]
            .map(|heat| place_by(&mut placer, &file(1, Hint::NotSet, 64 << 10), heat, ZoneSupply::Short))
            .into();
        assert_eq!(slots[1], slots[5]);
        assert_eq!(slots[2], slots[4]);
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), classes, "{zones}");
    }
}

#[test]
fn slots_of_expired_lanes_are_given_to_active_lanes() {
    for (hint, is_taken) in [(Hint::NotSet, true), (Hint::Short, false)] {
        let mut placer = Placer::new(Layout::new(2000, 0).unwrap(), ZONE);
        let before: Vec<usize> =
            (1..=3).map(|id| place(&mut placer, &file(id, hint, 8 << 20), false, true)).collect();
        let life = |id| Placement { burst_bytes: 8 << 20, ..expected(id, 1 << 30) };
        for _ in 0..=LANE_EXPIRY_ZONES * ZONE / BLOCK {
            let own = place(&mut placer, &life(10), false, false);
            assert!(!before.contains(&own));
        }
        // No zone may be opened, and another file of this lane has a slot.
        let next = place(&mut placer, &life(11), false, false);
        assert_eq!(before.contains(&next), is_taken, "{hint:?}");
    }
}

fn expected(id: u64, life: u64) -> Placement {
    Placement { expected_life_bytes: Some(life), ..file(id, Hint::NotSet, 64 << 10) }
}

#[test]
fn files_that_live_as_long_share_a_slot_and_others_do_not() {
    let mut placer = Placer::new(Layout::new(300, 0).unwrap(), ZONE);
    let minute = place(&mut placer, &expected(1, 1 << 20), false, true);
    let year = place(&mut placer, &expected(2, 1 << 40), false, true);
    assert_ne!(minute, year);
    assert_eq!(
        place(&mut placer, &expected(3, 3 << 20), true, true),
        minute,
        "a factor of three is no difference"
    );
    assert_eq!(
        place(&mut placer, &expected(4, u64::MAX), false, true),
        place(&mut placer, &expected(5, 1 << 63), false, true)
    );
    // A fourth lane takes the last slot. After that the nearest lane is used.
    let unknown = place(&mut placer, &file(6, Hint::NotSet, 64 << 10), false, false);
    assert_eq!(placer.layout().data().len(), 4);
    assert!(unknown != minute && unknown != year);
    assert_eq!(place(&mut placer, &expected(7, 1 << 24), false, true), minute);
    assert_eq!(place(&mut placer, &expected(8, 1 << 36), false, true), year);
}

#[test]
fn lanes_prefer_stated_lifetimes_then_measured_lives_then_the_predecessor() {
    for life in [None, Some(0), Some(1), Some(1 << 40), Some(u64::MAX)] {
        for heat in [Heat::Hot, Heat::Warm, Heat::Tepid, Heat::Cold] {
            for replaced_birth in [Txg(0), Txg(7)] {
                for hint in Hint::ALL {
                    let placement =
                        Placement { hint, expected_life_bytes: life, replaced_birth, ..Placement::default() };
                    let expected = match (hint, life) {
                        (Hint::Short | Hint::Medium | Hint::Long | Hint::Extreme, _) => Lane::Hint(hint),
                        (_, Some(life)) if replaced_birth == Txg(0) => Lane::Life(life.max(1).ilog2()),
                        _ if heat != Heat::Cold => Lane::Heat(heat),
                        _ => Lane::Hint(hint),
                    };
                    assert_eq!(Lane::of(&placement, heat), expected, "{placement:?} {heat:?}");
                }
            }
        }
    }
}

#[test]
fn a_stated_lifetime_is_obeyed_where_similar_files_died_young() {
    let mut placer = Placer::new(Layout::new(300, 0).unwrap(), ZONE);
    let young = |id, hint| Placement { hint, ..expected(id, 1 << 12) };
    let short = place(&mut placer, &young(1, Hint::Short), false, true);
    let long = place(&mut placer, &young(2, Hint::Long), false, true);
    let inferred = place(&mut placer, &young(3, Hint::NotSet), false, true);
    assert!(short != long && short != inferred && long != inferred, "{short} {long} {inferred}");
    for id in 4..40 {
        assert_eq!(place(&mut placer, &young(id, Hint::Short), id % 2 == 0, true), short);
        assert_eq!(place(&mut placer, &young(id + 100, Hint::Long), id % 2 == 0, true), long);
    }
}

#[test]
fn a_slot_of_an_expired_lane_goes_to_the_next_lane() {
    let mut placer = Placer::new(Layout::new(300, 0).unwrap(), ZONE);
    let lanes = placer.layout().data().len() as u64;
    let slots: Vec<usize> =
        (0..lanes).map(|at| place(&mut placer, &expected(at + 1, 1 << (10 * at)), false, true)).collect();
    let mut unlike = slots.clone();
    unlike.sort_unstable();
    unlike.dedup();
    assert_eq!(unlike.len(), slots.len());
    let stranger = file(100, Hint::Long, 64 << 10);
    for _ in 0..=LANE_EXPIRY_ZONES * ZONE / BLOCK {
        for at in 1..lanes {
            let _ = place(&mut placer, &expected(at + 1, 1 << (10 * at)), false, true);
        }
    }
    assert_eq!(place(&mut placer, &stranger, false, true), slots[0]);
    assert_eq!(place(&mut placer, &stranger, false, true), slots[0]);
    assert_ne!(place(&mut placer, &expected(1, 1), false, true), slots[0], "it has a new lane");
}

#[test]
fn a_big_file_begins_with_a_fresh_zone_where_that_costs_little() {
    let mut placer = Placer::new(Layout::of_slots(4, 1).unwrap(), ZONE);
    let log = place(&mut placer, &file(1, Hint::NotSet, 64 << 10), false, true);
    assert_eq!(placer.layout().data(), log..log + 1);
    let fresh = |placer: &Placer, burst_bytes, supply, free_bytes| {
        placer.choose(&file(2, Hint::NotSet, burst_bytes), (Heat::Cold, BLOCK), kept_only(supply), |_| {
            free_bytes
        })
    };
    let (scrap, big) = (ZONE / SCRAP_DIVISOR - 1, ZONE / BIG_FILE_DIVISOR);
    assert_eq!(fresh(&placer, big, ZoneSupply::Plenty, scrap), Choice { slot: log, is_fresh: true });
    // Not if much is left, for a file that is smaller, or when zones are short.
    for (burst, supply, free_bytes) in [
        (big, ZoneSupply::Plenty, scrap + 1),
        (big - 1, ZoneSupply::Plenty, scrap),
        (big, ZoneSupply::Enough, scrap),
        (big, ZoneSupply::Short, scrap),
    ] {
        let choice = fresh(&placer, burst, supply, free_bytes);
        assert_eq!(
            choice,
            Choice { slot: log, is_fresh: false },
            "{burst} bytes, {supply:?}, {free_bytes} left"
        );
    }
    // The file continues in the zone that it began, without another fresh one.
    placer.note_placed(Choice { slot: log, is_fresh: true }, &file(2, Hint::NotSet, big), Heat::Cold, BLOCK);
    placer.note_closed(log);
    placer.note_opened(log);
    assert!(!fresh(&placer, big, ZoneSupply::Plenty, scrap).is_fresh);
}

/// A drive of 64 zones with 16 open, one of which is the anchor's.
fn with_extra() -> Placer {
    Placer::new(Layout::new(64, 15).unwrap().with_extra_slots(15), ZONE)
}

const AMPLE: Supply = Supply { zones: ZoneSupply::Plenty, extra_slots: 16 };

/// Places a block of a big new file; `free_bytes` is what each zone has left.
fn place_in(placer: &mut Placer, id: u64, supply: Supply, free_bytes: impl Fn(usize) -> u64) -> Choice {
    let placement = file(id, Hint::NotSet, 8 << 20);
    let choice = placer.choose(&placement, (Heat::Cold, BLOCK), supply, free_bytes);
    placer.note_placed(choice, &placement, Heat::Cold, BLOCK);
    choice
}

#[test]
fn extra_slots_are_for_data_up_to_the_limit_of_the_drive() {
    for zones in [30, 127, 200, 500, 5000] {
        for open_max in [0, 2, 3, 4, 6, 13, 15, 127] {
            let kept = Layout::new(zones, open_max).unwrap();
            for layout in [kept, kept.with_metadata_slots()].map(|layout| layout.with_extra_slots(open_max)) {
                assert!(open_max < 3 || layout.slots() <= open_max as usize, "{layout:?}");
                assert!(layout.data().len() <= DATA_SLOTS_MAX.max(kept.data().len()));
                assert_eq!(layout.extra().end, layout.data().end);
                assert!(layout.meta().iter().all(|slot| !layout.extra().contains(slot)), "{layout:?}");
                assert!(Age::ALL.iter().all(|age| !layout.extra().contains(&layout.survivors(*age))));
            }
            assert_eq!(kept.with_extra_slots(open_max).kept_slots(), kept.slots());
        }
    }
    assert_eq!(with_extra().layout().data().len(), 14);
}

#[test]
fn writers_share_no_zone_while_zones_may_be_opened() {
    let mut placer = with_extra();
    let first: Vec<Choice> = (1..=14).map(|id| place_in(&mut placer, id, AMPLE, |_| ZONE)).collect();
    let slots: std::collections::BTreeSet<usize> = first.iter().map(|choice| choice.slot).collect();
    assert_eq!(slots.len(), 14);
    assert_eq!(
        first.last().unwrap().slot,
        placer.layout().data().start,
        "the one shared with metadata is the last"
    );
    for txg in 2..10 {
        placer.begin_txg(Txg(txg));
        let again: Vec<Choice> = (1..=14).map(|id| place_in(&mut placer, id, AMPLE, |_| ZONE)).collect();
        assert_eq!(again, first);
    }
    placer.begin_txg(Txg(20));
    assert!(slots.contains(&place_in(&mut placer, 15, AMPLE, |_| ZONE).slot));
}

#[test]
fn extra_slots_are_given_up_when_zones_become_short() {
    let short = Supply { zones: ZoneSupply::Short, extra_slots: 16 };
    for supply in [short, Supply { zones: ZoneSupply::Enough, extra_slots: 1 }] {
        let mut placer = with_extra();
        let kept = placer.layout().data().start;
        let own = [1, 2, 3].map(|id| place_in(&mut placer, id, AMPLE, |_| ZONE).slot);
        assert!(!own.contains(&kept));
        assert_eq!(place_in(&mut placer, 1, supply, |_| BLOCK).slot, own[0], "what fits goes there");
        let full = |slot: usize| if slot == kept { ZONE } else { BLOCK - 1 };
        assert_eq!(
            place_in(&mut placer, 2, supply, full).slot,
            kept,
            "and then to one for which space is kept"
        );
        assert_eq!(place_in(&mut placer, 9, supply, full).slot, kept);
        assert_eq!(
            place_in(&mut placer, 10, supply, |slot| if slot == own[2] { ZONE } else { BLOCK }).slot,
            own[2]
        );
    }
}

#[test]
fn a_limit_of_open_zones_bounds_the_extra_slots() {
    let mut placer = with_extra();
    placer.set_open_max(Some(5));
    let slots: std::collections::BTreeSet<usize> =
        (1..=14).map(|id| place_in(&mut placer, id, AMPLE, |_| ZONE).slot).collect();
    assert_eq!(slots.len(), 4, "three extra ones, and one of the two for which space is kept");
    assert_eq!(placer.extra_wanted(), 3);
    placer.set_open_max(None);
    assert_eq!(placer.extra_wanted(), 13);
    placer.begin_txg(Txg(2));
    let _ = place_in(&mut placer, 1, AMPLE, |_| ZONE);
    placer.begin_txg(Txg(3));
    let _ = place_in(&mut placer, 2, AMPLE, |_| ZONE);
    assert_eq!(placer.extra_wanted(), 1, "of two writers one has the kept slot");
}

#[test]
fn a_file_goes_on_where_a_finished_one_ended_before_zones_become_short() {
    let enough = Supply { zones: ZoneSupply::Enough, extra_slots: 16 };
    let mut placer = with_extra();
    let done = place_in(&mut placer, 1, AMPLE, |_| ZONE).slot;
    let busy = place_in(&mut placer, 2, AMPLE, |_| ZONE).slot;
    for txg in 2..4 {
        placer.begin_txg(Txg(txg));
        let _ = place_in(&mut placer, 2, AMPLE, |_| ZONE);
    }
    assert!(placer.is_left(done) && !placer.is_left(busy));
    let next = placer.choose(&file(3, Hint::NotSet, 8 << 20), (Heat::Cold, BLOCK), enough, |_| ZONE / 2);
    assert_eq!(next, Choice { slot: done, is_fresh: false });
    let next = placer.choose(&file(3, Hint::NotSet, 8 << 20), (Heat::Cold, BLOCK), AMPLE, |_| ZONE / 2);
    assert!(![done, busy].contains(&next.slot), "while zones are plenty, it gets one of its own");
}

#[test]
fn small_files_do_not_begin_in_the_zone_of_a_big_one_and_leave_when_they_grow() {
    let mut placer = with_extra();
    let big = place_in(&mut placer, 1, AMPLE, |_| ZONE).slot;
    let small = |id| Placement { is_closed: true, ..file(id, Hint::NotSet, 64 << 10) };
    let place_small = |placer: &mut Placer, id| {
        let choice = placer.choose(&small(id), (Heat::Cold, BLOCK), AMPLE, |_| ZONE);
        placer.note_placed(choice, &small(id), Heat::Cold, BLOCK);
        choice.slot
    };
    let slot = place_small(&mut placer, 2);
    assert_ne!(slot, big);
    assert_eq!([3, 4, 5].map(|id| place_small(&mut placer, id)), [slot; 3]);
    assert!(![big, slot].contains(&place_in(&mut placer, 3, AMPLE, |_| ZONE).slot));
    // Blocks that replace others stay in the slots for which space is kept.
    let again = Placement { replaced_birth: Txg(1), ..file(1, Hint::NotSet, 8 << 20) };
    let kept = placer.layout().data().start;
    assert_eq!(placer.choose(&again, (Heat::Cold, BLOCK), AMPLE, |_| ZONE).slot, kept);
}

#[test]
fn a_lane_without_a_slot_gets_one_of_a_lane_with_several() {
    let mut placer = with_extra();
    let slots: Vec<usize> = (1..=14).map(|id| place_in(&mut placer, id, AMPLE, |_| ZONE).slot).collect();
    let free = |slot: usize| if slot == slots[5] { ZONE / 4 } else { ZONE / 2 };
    let choice = placer.choose(&file(20, Hint::Short, 8 << 20), (Heat::Cold, BLOCK), AMPLE, free);
    assert_eq!(choice, Choice { slot: slots[5], is_fresh: true }, "the one with the least space");
}
