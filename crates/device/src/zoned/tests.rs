use super::*;
use crate::zone::ZoneState;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const UNIT: u64 = 4096;
const ZONE: u64 = 16 * UNIT;
/// Capacity of a zone of the drive.
const CAPACITY: u64 = 12 * UNIT;
const ZONES: u64 = 6;
/// Zone 0 is conventional.
const SEQUENTIAL: std::ops::Range<u32> = 1..6;

#[derive(Clone, Debug)]
struct Slot {
    raw: RawZone,
    bytes: Vec<u8>,
}

/// The fault of the next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InjectedFault {
    /// A write takes so many bytes and fails.
    Short(u64),
    /// The zone dies during the command.
    ReadOnly,
    Offline,
    /// The command fails and nothing happens.
    Refused,
    /// It fails, and so does the report after it.
    NoReport,
}

/// A drive in memory that is as strict as the strictest.
#[derive(Debug)]
struct Medium {
    zones: Vec<Slot>,
    max_active: usize,
    fault: Option<InjectedFault>,
    fail_next_report: bool,
    discards: u32,
}

#[derive(Clone, Debug)]
struct FakeDrive(Arc<Mutex<Medium>>);

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Medium {
    fn active(&self) -> usize {
        self.zones.iter().filter(|slot| slot.raw.kind == 2 && matches!(slot.raw.condition, 2..=4)).count()
    }

    /// The fault planned for the zone's next command, which happens now.
    fn take_fault(&mut self, zone: usize) -> Option<InjectedFault> {
        let fault = self.fault.take()?;
        match fault {
            InjectedFault::ReadOnly => self.zones[zone].raw.condition = 0xd,
            InjectedFault::Offline => self.zones[zone].raw.condition = 0xf,
            InjectedFault::NoReport => self.fail_next_report = true,
            InjectedFault::Short(_) | InjectedFault::Refused => {}
        }
        Some(fault)
    }
}

impl FakeDrive {
    fn new(max_active: usize) -> FakeDrive {
        let zone = |index: u64| Slot {
            raw: RawZone {
                start: index * ZONE,
                len: ZONE,
                pointer: index * ZONE,
                capacity: if index == 0 { ZONE } else { CAPACITY },
                kind: if index == 0 { 1 } else { 2 },
                condition: u8::from(index > 0),
            },
            bytes: vec![0xaa; ZONE as usize],
        };
        let zones = (0..ZONES).map(zone).collect();
        FakeDrive(Arc::new(Mutex::new(Medium {
            zones,
            max_active,
            fault: None,
            fail_next_report: false,
            discards: 0,
        })))
    }

    fn medium(&self) -> std::sync::MutexGuard<'_, Medium> {
        self.0.lock().unwrap()
    }

    fn set(&self, zone: u32, condition: u8, pointer: u64) {
        let raw = &mut self.medium().zones[zone as usize].raw;
        (raw.condition, raw.pointer) = (condition, raw.start + pointer);
    }

    fn open(&self, mode: OpenMode) -> ZonedDevice {
        let limits = DriveLimits {
            size: ZONES * ZONE + 3 * UNIT,
            zone_size: ZONE,
            write_granularity: 512,
            max_open: 0,
            max_active: u32::try_from(self.medium().max_active).unwrap(),
        };
        ZonedDevice::from_drive(Box::new(self.clone()), "fake".into(), mode, 4096, limits).unwrap()
    }
}

impl Drive for FakeDrive {
    fn report(&self, start: u64, zones: usize) -> io::Result<Vec<RawZone>> {
        let medium = &mut *self.medium();
        if std::mem::take(&mut medium.fail_next_report) {
            return Err(eio());
        }
        // Two at once, so that the caller's loop is needed.
        let first = (start / ZONE) as usize;
        Ok(medium.zones.iter().skip(first).take(zones.min(2)).map(|slot| slot.raw).collect())
    }

    fn reset(&self, start: u64, len: u64) -> io::Result<()> {
        let (medium, zone) = (&mut *self.medium(), (start / ZONE) as usize);
        assert_eq!(len, ZONE);
        if medium.take_fault(zone).is_some() || matches!(medium.zones[zone].raw.condition, 0xd | 0xf) {
            return Err(eio());
        }
        let raw = &mut medium.zones[zone].raw;
        (raw.condition, raw.pointer) = (1, raw.start);
        Ok(())
    }

    fn finish(&self, start: u64, len: u64) -> io::Result<()> {
        let (medium, zone) = (&mut *self.medium(), (start / ZONE) as usize);
        assert_eq!(len, ZONE);
        if medium.take_fault(zone).is_some() || matches!(medium.zones[zone].raw.condition, 0xd | 0xf) {
            return Err(eio());
        }
        let raw = &mut medium.zones[zone].raw;
        (raw.condition, raw.pointer) = (0xe, u64::MAX / 512 * 512);
        Ok(())
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(at.is_multiple_of(UNIT) && (buf.len() as u64).is_multiple_of(UNIT));
        assert!(buf.as_ptr().addr().is_multiple_of(ALIGN));
        let slot = &self.medium().zones[(at / ZONE) as usize];
        let (from, to) = ((at % ZONE) as usize, (at % ZONE) as usize + buf.len());
        // Above the pointer it replies with an error, as some drives do.
        if to as u64 > slot.raw.readable() {
            return Err(eio());
        }
        buf.copy_from_slice(&slot.bytes[from..to]);
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> (u64, io::Result<()>) {
        assert!(data.as_ptr().addr().is_multiple_of(ALIGN));
        let (medium, zone) = (&mut *self.medium(), (at / ZONE) as usize);
        let from = (at % ZONE) as usize;
        if zone == 0 {
            medium.zones[0].bytes[from..from + data.len()].copy_from_slice(data);
            return (data.len() as u64, Ok(()));
        }
        let raw = medium.zones[zone].raw;
        let wrong = at != raw.pointer
            || !matches!(raw.condition, 1..=4)
            || from as u64 + data.len() as u64 > raw.capacity;
        let fault = medium.take_fault(zone);
        if wrong || fault.is_some_and(|fault| !matches!(fault, InjectedFault::Short(_))) {
            return (0, Err(eio()));
        }
        if raw.condition == 1 && medium.max_active > 0 && medium.active() == medium.max_active {
            return (0, Err(io::Error::from_raw_os_error(libc::EOVERFLOW)));
        }
        let taken = match fault {
            Some(InjectedFault::Short(taken)) => taken.min(data.len() as u64 - 512),
            _ => data.len() as u64,
        };
        let slot = &mut medium.zones[zone];
        slot.bytes[from..from + taken as usize].copy_from_slice(&data[..taken as usize]);
        if taken > 0 {
            (slot.raw.condition, slot.raw.pointer) = (2, at + taken);
        }
        if slot.raw.pointer == slot.raw.start + slot.raw.capacity {
            slot.raw.condition = 0xe;
        }
        // The kernel's result of a write that failed in part: no byte was taken.
        if taken < data.len() as u64 { (0, Err(eio())) } else { (taken, Ok(())) }
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        self.medium().discards += 1;
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        match self.medium().take_fault(1) {
            Some(_) => Err(eio()),
            None => Ok(()),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
}

fn state(device: &ZonedDevice, zone: u32) -> (ZoneState, u64) {
    let report = device.report(ZoneIdx(zone)).unwrap();
    (report.state, report.pointer)
}

#[test]
fn open_adopts_the_zone_states_of_the_drive() {
    let fake = FakeDrive::new(4);
    fake.set(1, 4, 3 * UNIT);
    fake.set(2, 0xe, 0);
    fake.set(3, 0xd, 0);
    fake.set(4, 0xf, 0);
    let device = fake.open(OpenMode::ReadWrite);
    let info = device.info();
    assert_eq!((info.zone_count, info.zone_size, info.write_unit, info.max_active), (6, ZONE, 4096, 4));
    assert!(info.hardware_pointers && info.kind == DeviceKind::Zoned);
    assert_eq!(state(&device, 0).0, ZoneState::Unknown);
    assert_eq!(state(&device, 1), (ZoneState::Open, 3 * UNIT));
    assert_eq!(state(&device, 2), (ZoneState::Full, CAPACITY));
    assert_eq!(state(&device, 3).0, ZoneState::ReadOnly);
    assert_eq!(state(&device, 4).0, ZoneState::Offline);
    assert_eq!(state(&device, 5), (ZoneState::Empty, 0));
    assert_eq!(device.resume(ZoneIdx(1), UNIT).unwrap(), 3 * UNIT, "the drive knows better");
    assert!(device.reset(ZoneIdx(3)).is_err() && device.resume(ZoneIdx(4), 0).is_err());
    assert_eq!(device.rules.check(), Ok(()));
}

#[test]
fn what_is_not_zones_of_one_size_is_refused() {
    let fake = FakeDrive::new(0);
    fake.medium().zones[2].raw.len = ZONE / 2;
    let limits =
        DriveLimits { size: ZONES * ZONE, zone_size: ZONE, write_granularity: 0, max_open: 0, max_active: 0 };
    let over = |limits| {
        let opened =
            ZonedDevice::from_drive(Box::new(fake.clone()), "fake".into(), OpenMode::ReadOnly, 4096, limits);
        opened.unwrap_err().to_string()
    };
    assert!(over(limits).contains("zone 2"), "{}", over(limits));
    fake.medium().zones[2].raw.len = ZONE;
    fake.medium().zones[3].raw.start += 512;
    assert!(over(limits).contains("zone 3"), "{}", over(limits));
    assert!(over(DriveLimits { zone_size: 0, ..limits }).contains("zones of 0"));
    assert!(over(DriveLimits { write_granularity: 5000, ..limits }).contains("5000"));
    fake.medium().zones[3].raw.start -= 512;
    // The drive ends too early.
    assert!(over(DriveLimits { size: 100 * ZONE, ..limits }).contains("ends before zone 6"));
}

#[test]
fn reads_stop_at_the_pointer_and_need_no_alignment() {
    let device = FakeDrive::new(0).open(OpenMode::ReadWrite);
    let data: Vec<u8> = (0..3 * UNIT).map(|at| (at % 251) as u8).collect();
    // Also from unaligned memory.
    let shifted = [&[0], &data[..]].concat();
    device.write(ZoneIdx(1), 0, &shifted[1..]).unwrap();
    let mut buf = vec![9; 5 * UNIT as usize];
    device.read(ZoneIdx(1), 0, &mut buf).unwrap();
    assert_eq!(buf[..data.len()], data[..]);
    assert!(buf[data.len()..].iter().all(|byte| *byte == 0));
    let mut few = [9; 100];
    device.read(ZoneIdx(1), 3 * UNIT - 50, &mut few).unwrap();
    assert_eq!((&few[..50], &few[50..]), (&data[data.len() - 50..], &[0; 50][..]));
    device.read(ZoneIdx(2), 77, &mut few).unwrap();
    assert_eq!(few, [0; 100]);
    assert!(device.read(ZoneIdx(2), CAPACITY - 1, &mut [0; 2]).is_err());
}

#[test]
fn after_a_failed_write_the_drives_pointer_counts() {
    for (fault, want) in [
        (InjectedFault::Short(2 * UNIT), (ZoneState::Open, 3 * UNIT)),
        (InjectedFault::Short(0), (ZoneState::Open, UNIT)),
        // Half a unit: no write of ours can begin there.
        (InjectedFault::Short(512), (ZoneState::Full, CAPACITY)),
        (InjectedFault::Refused, (ZoneState::Open, UNIT)),
        (InjectedFault::ReadOnly, (ZoneState::ReadOnly, 0)),
        (InjectedFault::Offline, (ZoneState::Offline, 0)),
        (InjectedFault::NoReport, (ZoneState::Open, UNIT)),
    ] {
        let fake = FakeDrive::new(1);
        let device = fake.open(OpenMode::ReadWrite);
        device.write(ZoneIdx(1), 0, &[1; UNIT as usize]).unwrap();
        fake.medium().fault = Some(fault);
        let error = device.write(ZoneIdx(1), UNIT, &[2; 4 * UNIT as usize]).unwrap_err();
        assert!(matches!(error, DeviceError::Io { .. }), "{fault:?}: {error}");
        assert_eq!(state(&device, 1), want, "{fault:?}");
        assert_eq!(device.rules.check(), Ok(()));
        if want.0 == ZoneState::Open {
            device.write(ZoneIdx(1), want.1, &[3; UNIT as usize]).unwrap();
        } else {
            // Its place among the active zones is free, for the drive as well.
            device.write(ZoneIdx(2), 0, &[3; UNIT as usize]).unwrap();
        }
    }
}

#[test]
fn a_query_detects_a_zone_that_became_offline() {
    let fake = FakeDrive::new(2);
    let device = fake.open(OpenMode::ReadWrite);
    for zone in 1..4 {
        device.write(ZoneIdx(zone), 0, &[zone as u8; UNIT as usize]).unwrap();
        device.finish(ZoneIdx(zone)).unwrap();
    }
    fake.set(1, 0xd, 0);
    fake.set(2, 0xf, 0);
    assert_eq!([1, 2, 3].map(|zone| state(&device, zone).0), [ZoneState::Full; 3]);
    let asked = [1, 2, 3].map(|zone| device.query(ZoneIdx(zone)).unwrap().state);
    assert_eq!(asked, [ZoneState::ReadOnly, ZoneState::Offline, ZoneState::Full]);
    assert_eq!([1, 2, 3].map(|zone| state(&device, zone).0), asked);
    let mut byte = [0];
    device.read(ZoneIdx(1), UNIT - 1, &mut byte).unwrap();
    assert_eq!(byte, [1], "a read-only zone gives what it holds");
    // Without a reply, the rules keep their state.
    fake.medium().fail_next_report = true;
    assert_eq!(device.query(ZoneIdx(3)).unwrap().state, ZoneState::Full);
    assert_eq!(device.rules.check(), Ok(()));
}

#[test]
fn the_limit_of_active_zones_is_refused_by_name() {
    let fake = FakeDrive::new(2);
    let device = fake.open(OpenMode::ReadWrite);
    device.write(ZoneIdx(1), 0, &[1; UNIT as usize]).unwrap();
    device.write(ZoneIdx(2), 0, &[1; UNIT as usize]).unwrap();
    let refused = device.write(ZoneIdx(3), 0, &[1; UNIT as usize]).unwrap_err();
    assert!(
        matches!(refused, DeviceError::Rule { .. }) && refused.to_string().contains("at most 2"),
        "{refused}"
    );
    // Conventional and finished zones do not count.
    device.reset(ZoneIdx(0)).unwrap();
    device.write(ZoneIdx(0), 0, &[1; UNIT as usize]).unwrap();
    device.finish(ZoneIdx(1)).unwrap();
    assert_eq!(fake.medium().zones[1].raw.condition, 0xe);
    device.write(ZoneIdx(3), 0, &[1; UNIT as usize]).unwrap();
    // Another writer took the places. Then the drive refuses, and the error names the limit too.
    device.finish(ZoneIdx(3)).unwrap();
    fake.set(4, 2, UNIT);
    let refused = device.write(ZoneIdx(5), 0, &[1; UNIT as usize]).unwrap_err().to_string();
    assert!(refused.contains("max_active_zones is 2"), "{refused}");
    assert_eq!(state(&device, 5), (ZoneState::Empty, 0));
}

#[test]
fn active_zones_without_data_are_reset_at_open() {
    let fake = FakeDrive::new(2);
    // Zones that were opened by command and never written, and a half unit of another writer.
    fake.set(1, 3, 0);
    fake.set(2, 4, UNIT + 512);
    drop(fake.open(OpenMode::ReadOnly));
    assert_eq!(fake.medium().active(), 2, "who only reads changes nothing");
    let device = fake.open(OpenMode::ReadWrite);
    assert_eq!(fake.medium().active(), 0);
    assert_eq!((state(&device, 1).0, state(&device, 2).0), (ZoneState::Empty, ZoneState::Full));
}

#[test]
fn a_conventional_zone_takes_a_pointer_and_its_reset_erases_labels() {
    let fake = FakeDrive::new(0);
    let device = fake.open(OpenMode::ReadWrite);
    assert!(device.write(ZoneIdx(0), 0, &[1; UNIT as usize]).is_err(), "nobody told");
    assert_eq!(device.resume(ZoneIdx(0), 2 * UNIT).unwrap(), 2 * UNIT);
    device.write(ZoneIdx(0), 2 * UNIT, &[1; UNIT as usize]).unwrap();
    device.reset(ZoneIdx(0)).unwrap();
    let medium = fake.medium();
    assert_eq!(medium.discards, 1);
    assert!(medium.zones[0].bytes.iter().take(64 << 10).all(|byte| *byte == 0));
    drop(medium);
    assert_eq!(state(&device, 0), (ZoneState::Empty, 0));
    device.keep_space();
    device.reset(ZoneIdx(0)).unwrap();
    assert_eq!(fake.medium().discards, 1, "the space is kept");
}

#[test]
fn a_zone_that_ends_within_a_unit_is_finished_when_ours_are_written() {
    let fake = FakeDrive::new(1);
    fake.medium().zones[1].raw.capacity = CAPACITY - 512;
    let device = fake.open(OpenMode::ReadWrite);
    assert_eq!(device.report(ZoneIdx(1)).unwrap().capacity, CAPACITY - UNIT);
    device.write(ZoneIdx(1), 0, &vec![1; (CAPACITY - UNIT) as usize]).unwrap();
    assert_eq!(fake.medium().zones[1].raw.condition, 0xe);
    device.write(ZoneIdx(2), 0, &[1; UNIT as usize]).unwrap();
}

#[test]
fn a_failed_flush_is_final_and_a_reader_changes_nothing() {
    let fake = FakeDrive::new(0);
    let device = fake.open(OpenMode::ReadWrite);
    device.flush().unwrap();
    fake.medium().fault = Some(InjectedFault::Refused);
    assert!(device.flush().is_err() && device.flush().is_err());
    let reader = fake.open(OpenMode::ReadOnly);
    for refused in [
        reader.write(ZoneIdx(1), 0, &[1; UNIT as usize]),
        reader.reset(ZoneIdx(1)),
        reader.finish(ZoneIdx(1)),
    ] {
        assert!(matches!(refused, Err(DeviceError::Rule { .. })), "{refused:?}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u32, u64),
    Reset(u32),
    Finish(u32),
    /// Another program writes or finishes zones.
    OtherWriter(u32, bool),
}

fn ops() -> impl Strategy<Value = (Op, Option<InjectedFault>)> {
    let zone = || SEQUENTIAL;
    let op = prop_oneof![
        6 => (zone(), 1u64..6).prop_map(|(zone, units)| Op::Write(zone, units)),
        2 => zone().prop_map(Op::Reset),
        1 => zone().prop_map(Op::Finish),
        1 => (zone(), any::<bool>()).prop_map(|(zone, finish)| Op::OtherWriter(zone, finish)),
    ];
    let fault = prop_oneof![
        8 => Just(None),
        1 => (0u64..20).prop_map(|n| Some(InjectedFault::Short(n * 512))),
        1 => Just(Some(InjectedFault::Refused)),
        1 => prop_oneof![Just(InjectedFault::ReadOnly), Just(InjectedFault::Offline)].prop_map(Some),
    ];
    (op, fault)
}

proptest! {
    /// Whatever fails, and whatever another writer does: after a command to a zone, successful or failed, the rules
    /// equal the drive's state.
    #[test]
    fn the_rules_stay_equal_to_the_drive(steps in prop::collection::vec(ops(), 0..60), max_active in 0usize..4) {
        let fake = FakeDrive::new(max_active);
        let device = fake.open(OpenMode::ReadWrite);
        let mut behind = std::collections::BTreeSet::new();
        for (op, fault) in &steps {
            fake.medium().fault = *fault;
            let zone = match *op {
                Op::Write(zone, units) => {
                    let at = state(&device, zone).1;
                    let done = device.write(ZoneIdx(zone), at, &vec![zone as u8; (units * UNIT) as usize]);
                    // A command that the rules refuse never reaches the drive, so its state is not reported.
                    if !matches!(done, Err(DeviceError::Rule { .. })) {
                        behind.remove(&zone);
                    }
                    zone
                }
                Op::Reset(zone) => {
                    let done = device.reset(ZoneIdx(zone));
                    if !matches!(done, Err(DeviceError::Rule { .. })) {
                        behind.remove(&zone);
                    }
                    zone
                }
                Op::Finish(zone) => {
                    let was_full = state(&device, zone).0 == ZoneState::Full;
                    let done = device.finish(ZoneIdx(zone));
                    if !was_full && !matches!(done, Err(DeviceError::Rule { .. })) {
                        behind.remove(&zone);
                    }
                    zone
                }
                Op::OtherWriter(zone, finish) => {
                    let medium = &mut *fake.medium();
                    let raw = &mut medium.zones[zone as usize].raw;
                    if matches!(raw.condition, 2 | 4) {
                        raw.condition = if finish { 0xe } else { 4 };
                        raw.pointer = (raw.pointer + UNIT).min(raw.start + CAPACITY - UNIT);
                        behind.insert(zone);
                    }
                    zone
                }
            };
            fake.medium().fault = None;
            prop_assert_eq!(device.rules.check(), Ok(()));
            if !behind.contains(&zone) {
                let expected = fake.medium().zones[zone as usize].raw.classify(UNIT).report;
                let report = device.report(ZoneIdx(zone)).unwrap();
                prop_assert_eq!(report.state, expected.state, "zone {} after {:?}", zone, op);
                if !matches!(expected.state, ZoneState::ReadOnly | ZoneState::Offline) {
                    prop_assert_eq!(report.pointer, expected.pointer, "zone {} after {:?}", zone, op);
                }
            }
        }
    }
}
