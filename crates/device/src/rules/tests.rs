use super::*;
use proptest::prelude::*;

const UNIT: u64 = 4096;
const CAPACITY: [u64; 4] = [8 * UNIT, 8 * UNIT, 5 * UNIT, UNIT];

#[derive(Clone, Debug)]
enum Op {
    /// Zone, offset relative to the pointer, length, bytes that the medium takes.
    Write(u32, i64, u64, u64),
    Reset(u32, bool),
    Finish(u32),
    Resume(u32, u64),
    Force(u32, ZoneState),
}

fn ops() -> impl Strategy<Value = Op> {
    let zone = 0u32..5;
    let near = prop_oneof![8 => Just(0i64), 1 => Just(4096), 1 => Just(-4096), 1 => Just(512)];
    let len =
        prop_oneof![6 => (1u64..5).prop_map(|n| n * UNIT), 1 => Just(0), 1 => Just(100), 1 => Just(9 * UNIT)];
    let taken = prop_oneof![4 => Just(u64::MAX), 1 => 0u64..20_000];
    prop_oneof![
        8 => (zone.clone(), near, len, taken).prop_map(|(z, n, l, t)| Op::Write(z, n, l, t)),
        3 => (zone.clone(), any::<bool>()).prop_map(|(z, ok)| Op::Reset(z, ok)),
        1 => zone.clone().prop_map(Op::Finish),
        3 => (zone.clone(), prop_oneof![(0u64..10).prop_map(|n| n * UNIT), Just(7)]).prop_map(|(z, p)| Op::Resume(z, p)),
        1 => (zone, prop_oneof![Just(ZoneState::ReadOnly), Just(ZoneState::Offline), Just(ZoneState::Unknown)])
            .prop_map(|(z, s)| Op::Force(z, s)),
    ]
}

/// The model: a state and a pointer per zone, with everything counted anew.
#[derive(Clone)]
struct ModelRules {
    zones: Vec<(ZoneState, u64)>,
    max_open: usize,
}

impl ModelRules {
    fn another_may_open(&self) -> bool {
        let open = self.zones.iter().filter(|z| z.0 == ZoneState::Open).count();
        self.max_open == 0 || open < self.max_open
    }

    /// Whether the operation is allowed; executes it if so.
    fn apply(&mut self, op: &Op) -> bool {
        use ZoneState::*;
        let zone = match *op {
            Op::Write(z, ..) | Op::Reset(z, _) | Op::Finish(z) | Op::Resume(z, _) | Op::Force(z, _) => {
                z as usize
            }
        };
        let Some(&(state, pointer)) = self.zones.get(zone) else { return false };
        let capacity = CAPACITY[zone];
        let at = |p: u64| {
            if p == 0 {
                Empty
            } else if p == capacity {
                Full
            } else {
                Open
            }
        };
        let dead = matches!(state, ReadOnly | Offline);
        let (allowed, next) = match *op {
            Op::Write(_, near, len, taken) => {
                let aligned = near == 0 && len > 0 && len % UNIT == 0 && pointer + len <= capacity;
                let slot = state == Open || (state == Empty && self.another_may_open());
                let to = pointer + taken.min(len) / UNIT * UNIT;
                (aligned && slot, (at(to), to))
            }
            Op::Reset(_, ok) => (!dead, if ok { (Empty, 0) } else { (state, pointer) }),
            Op::Finish(_) => (!dead, (Full, capacity)),
            Op::Resume(_, p) if state == Unknown => {
                (p <= capacity && p % UNIT == 0 && (at(p) != Open || self.another_may_open()), (at(p), p))
            }
            Op::Resume(..) => (!dead, (state, pointer)),
            Op::Force(_, to) => (true, (to, pointer)),
        };
        if allowed {
            self.zones[zone] = next;
        }
        allowed
    }
}

fn run(rules: &ZoneRules, op: &Op) -> bool {
    match *op {
        Op::Write(zone, near, len, taken) => {
            let at = rules.report(ZoneIdx(zone)).map_or(0, |r| r.pointer);
            let Some(offset) = at.checked_add_signed(near) else { return false };
            rules.begin_write(ZoneIdx(zone), offset, len as usize).map(|t| t.wrote(taken)).is_ok()
        }
        Op::Reset(zone, ok) => {
            rules.begin_reset(ZoneIdx(zone)).map(|t| if ok { t.done() } else { drop(t) }).is_ok()
        }
        Op::Finish(zone) => rules.finish(ZoneIdx(zone)).is_ok(),
        Op::Resume(zone, pointer) => rules.resume(ZoneIdx(zone), pointer).is_ok(),
        Op::Force(zone, state) => match rules.report(ZoneIdx(zone)) {
            Ok(report) => {
                rules.force(ZoneIdx(zone), state, report.pointer);
                true
            }
            Err(_) => false,
        },
    }
}

proptest! {
    #[test]
    fn behaves_like_one_state_and_pointer_for_each_zone(
        ops in prop::collection::vec(ops(), 0..80), max_open in 0u32..4, unknown in any::<bool>(),
    ) {
        let first = if unknown { ZoneState::Unknown } else { ZoneState::Empty };
        let rules = ZoneRules::new(4096, max_open, CAPACITY, first);
        let mut plain = ModelRules { zones: vec![(first, 0); CAPACITY.len()], max_open: max_open as usize };
        for op in &ops {
            let allowed = plain.apply(op);
            prop_assert_eq!(run(&rules, op), allowed, "{:?}", op);
            for (zone, want) in rules.zones().zip(&plain.zones) {
                let report = rules.report(zone).unwrap();
                prop_assert_eq!((report.state, report.pointer), *want, "zone {} after {:?}", zone, op);
            }
            prop_assert_eq!(rules.check(), Ok(()));
        }
    }
}

#[test]
fn two_writes_to_one_zone_do_not_overlap() {
    let rules = ZoneRules::new(4096, 0, CAPACITY, ZoneState::Empty);
    let first = rules.begin_write(ZoneIdx(0), 0, 4096).unwrap();
    assert!(rules.begin_write(ZoneIdx(0), 0, 4096).is_err());
    assert!(rules.begin_reset(ZoneIdx(0)).is_err());
    assert!(rules.finish(ZoneIdx(0)).is_err());
    assert_eq!(rules.check(), Ok(()));
    first.wrote(4096);
    rules.begin_write(ZoneIdx(0), 4096, 4096).unwrap().wrote(4096);
    assert_eq!(rules.report(ZoneIdx(0)).unwrap().pointer, 8192);
}

#[test]
fn a_zone_that_fails_during_a_write_stays_unwritable() {
    let rules = ZoneRules::new(4096, 1, CAPACITY, ZoneState::Empty);
    let ticket = rules.begin_write(ZoneIdx(0), 0, 4096).unwrap();
    rules.force(ZoneIdx(0), ZoneState::ReadOnly, 0);
    ticket.wrote(4096);
    assert_eq!(rules.report(ZoneIdx(0)).unwrap().state, ZoneState::ReadOnly);
    assert_eq!(rules.check(), Ok(()));
    // Its place among the open zones is free again.
    rules.begin_write(ZoneIdx(1), 0, 4096).unwrap().wrote(4096);
}

#[test]
fn reads_end_at_the_capacity_and_ask_no_pointer() {
    let rules = ZoneRules::new(4096, 0, CAPACITY, ZoneState::Unknown);
    assert!(rules.check_read(ZoneIdx(2), 5 * UNIT - 3, 3).is_ok());
    assert!(rules.check_read(ZoneIdx(2), 5 * UNIT - 3, 4).is_err());
    assert!(rules.check_read(ZoneIdx(2), u64::MAX, 4).is_err());
    assert!(rules.check_read(ZoneIdx(4), 0, 1).is_err());
    rules.force(ZoneIdx(2), ZoneState::Offline, 0);
    assert!(rules.check_read(ZoneIdx(2), 0, 1).is_err());
}
