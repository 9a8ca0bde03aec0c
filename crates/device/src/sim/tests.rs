use super::*;
use crate::file::tests::TempDir;
use crate::{FileDevice, OpenMode};

const UNIT: u64 = 4096;
const ZONE: u64 = 16 * UNIT;

fn config(hardware_pointers: bool) -> SimConfig {
    SimConfig { zone_count: 6, zone_size: ZONE, hardware_pointers, ..SimConfig::default() }
}

fn device(hardware_pointers: bool) -> SimDevice {
    SimDevice::new(config(hardware_pointers)).unwrap()
}

fn z(zone: u32) -> ZoneIdx {
    ZoneIdx(zone)
}

fn bytes(device: &SimDevice, zone: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut buf = vec![0xee; len as usize];
    device.read(z(zone), offset, &mut buf).unwrap();
    buf
}

fn units(byte: u8, count: u64) -> Vec<u8> {
    vec![byte; (count * UNIT) as usize]
}

/// What a client knows of a zone: the bytes written since the last reset, how many of them were flushed, and both as
/// they were before that reset.
#[derive(Clone, Default)]
struct ZoneModel {
    written: Vec<u8>,
    flushed: usize,
    before_reset: Option<(Vec<u8>, usize)>,
}

impl ZoneModel {
    /// Whether a drive may be found with this pointer and content.
    fn allows(written: &[u8], flushed: usize, pointer: usize, image: &[u8]) -> bool {
        (flushed..=written.len()).contains(&pointer) && image[..pointer] == written[..pointer]
    }
}

/// Random commands, with a plain record of what they promise.
struct RandomClient {
    device: SimDevice,
    zones: Vec<ZoneModel>,
    prng: Prng,
}

impl RandomClient {
    fn new(device: SimDevice, seed: u64) -> Self {
        let zones = vec![ZoneModel::default(); device.info().zone_count as usize];
        RandomClient { device, zones, prng: Prng::new(seed) }
    }

    /// One command. An error is returned after the record notes that it may have happened in part.
    fn step(&mut self) -> Result<(), DeviceError> {
        let at = self.prng.below(self.zones.len() as u64) as usize;
        let zone = &mut self.zones[at];
        let capacity = self.device.0.rules.report(z(at as u32)).unwrap().capacity;
        let left = (capacity - zone.written.len() as u64) / UNIT;
        match self.prng.below(10) {
            0 => {
                let written = std::mem::take(&mut zone.written);
                zone.before_reset = Some((written, std::mem::take(&mut zone.flushed)));
                self.device.reset(z(at as u32))
            }
            1 | 2 => {
                self.device.flush()?;
                for zone in &mut self.zones {
                    zone.flushed = zone.written.len();
                    zone.before_reset = None;
                }
                Ok(())
            }
            _ if left > 0 => {
                let mut data = units(0, 1 + self.prng.below(left.min(4)));
                self.prng.fill(&mut data);
                let offset = zone.written.len() as u64;
                zone.written.extend_from_slice(&data);
                self.device.write(z(at as u32), offset, &data)
            }
            _ => Ok(()),
        }
    }

    /// Whether `left` is a device that may be found after a crash.
    fn allows(&self, left: &SimDevice) -> Result<(), String> {
        left.check()?;
        for (at, zone) in self.zones.iter().enumerate() {
            let report = left.report(z(at as u32)).unwrap();
            let image = bytes(left, at as u32, 0, report.capacity);
            if left.info().hardware_pointers {
                let pointer = report.pointer as usize;
                let fits = ZoneModel::allows(&zone.written, zone.flushed, pointer, &image);
                // Only a reset in which the power failed may leave the old content.
                let cut_off = !self.device.is_powered() && zone.written.is_empty();
                let undone = zone.before_reset.as_ref().filter(|_| cut_off);
                let undone =
                    undone.is_some_and(|(w, flushed)| ZoneModel::allows(w, *flushed, pointer, &image));
                if !fits && !undone {
                    return Err(format!("zone {at}: pointer {pointer}, flushed {}", zone.flushed));
                }
            } else {
                if report.state != ZoneState::Unknown {
                    return Err(format!("zone {at}: state {:?}", report.state));
                }
                if image[..zone.flushed] != zone.written[..zone.flushed] {
                    return Err(format!("zone {at}: {} flushed bytes are not all there", zone.flushed));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn no_crash_loses_what_was_flushed() {
    for hardware in [true, false] {
        for seed in 0..60 {
            let mut owner = RandomClient::new(device(hardware), seed);
            for step in 0..60u64 {
                owner.step().unwrap();
                assert_eq!(owner.device.check(), Ok(()));
                let left = owner.device.after_power_loss(seed * 1000 + step);
                assert_eq!(owner.allows(&left), Ok(()), "hardware {hardware} seed {seed} step {step}");
            }
            let clean = owner.device.restarted(Survival::Everything);
            for (at, zone) in owner.zones.iter().enumerate() {
                assert_eq!(bytes(&clean, at as u32, 0, zone.written.len() as u64), zone.written);
            }
        }
    }
}

#[test]
fn no_cut_inside_an_operation_loses_what_was_flushed() {
    for hardware in [true, false] {
        for seed in 0..20 {
            for cut in 0..40 {
                let mut owner = RandomClient::new(device(hardware), seed);
                owner.device.crash_after(cut);
                while owner.step().is_ok() {}
                assert_eq!(owner.device.ops_done(), cut);
                assert!(!owner.device.is_powered());
                assert!(owner.device.read(z(0), 0, &mut [0]).is_err());
                let error = owner.device.flush().unwrap_err().to_string();
                assert!(error.contains("power is off"), "{error}");
                let left = owner.device.after_power_loss(seed ^ cut);
                assert_eq!(owner.allows(&left), Ok(()), "hardware {hardware} seed {seed} cut {cut}");
                assert!(left.is_powered() && left.ops_done() == 0);
            }
        }
    }
}

/// The canary of the two tests above.
#[test]
fn a_lost_flush_is_noticed_by_the_record() {
    for hardware in [true, false] {
        let mut caught = 0;
        for seed in 0..40 {
            let mut owner = RandomClient::new(device(hardware), seed);
            let id = owner.device.inject(Fault::LostFlush { nth: 1 });
            while owner.device.fired(id) == 0 {
                owner.step().unwrap();
            }
            caught += u32::from(owner.allows(&owner.device.after_power_loss(seed)).is_err());
        }
        assert!(caught > 10, "hardware {hardware}: {caught} of 40");
    }
}

#[test]
fn the_same_seed_gives_the_same_device() {
    for hardware in [true, false] {
        let run = || {
            let mut owner = RandomClient::new(device(hardware), 7);
            (0..50).for_each(|_| owner.step().unwrap());
            owner.device
        };
        let (one, two) = (run(), run());
        assert_eq!(one.dump(), two.dump());
        let crashes = |d: &SimDevice| (0..20).map(|seed| d.after_power_loss(seed).dump()).collect::<Vec<_>>();
        assert_eq!(crashes(&one), crashes(&two));
        assert_ne!(crashes(&one)[0], crashes(&one)[1]);
    }
}

#[test]
fn a_drive_keeps_prefixes_and_tears_past_the_pointer() {
    let device = device(true);
    device.write(z(0), 0, &units(1, 2)).unwrap();
    device.flush().unwrap();
    device.write(z(0), 2 * UNIT, &units(2, 5)).unwrap();
    let (mut pointers, mut torn) = (BTreeSet::new(), 0);
    for seed in 0..300 {
        let left = device.after_power_loss(seed);
        let report = left.report(z(0)).unwrap();
        assert_eq!(report.state, ZoneState::Open);
        pointers.insert(report.pointer / UNIT);
        let beyond = bytes(&left, 0, report.pointer, UNIT);
        torn += u32::from(beyond.iter().any(|b| *b != 0) && beyond != units(2, 1));
        assert!(left.write(z(0), report.pointer, &units(3, 1)).is_ok());
    }
    assert_eq!(pointers.into_iter().collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
    assert!(torn > 50, "{torn}");
    assert_eq!(device.restarted(Survival::Nothing).report(z(0)).unwrap().pointer, 2 * UNIT);
}

#[test]
fn a_file_keeps_any_units_tears_some_and_forgets_resets() {
    let device = device(false);
    device.write(z(0), 0, &units(1, 4)).unwrap();
    device.flush().unwrap();
    device.reset(z(0)).unwrap();
    device.write(z(0), 0, &units(2, 4)).unwrap();
    let (mut patterns, mut torn, mut back, mut gone) = (BTreeSet::new(), 0, 0, 0);
    for seed in 0..500 {
        let left = device.after_power_loss(seed);
        assert_eq!(left.report(z(0)).unwrap().state, ZoneState::Unknown);
        assert!(matches!(left.write(z(0), 0, &units(3, 1)), Err(DeviceError::Rule { .. })));
        let all = bytes(&left, 0, 0, 4 * UNIT);
        patterns.insert(all.chunks(UNIT as usize).map(|unit| unit == units(2, 1)).collect::<Vec<_>>());
        torn += u32::from(all.chunks(UNIT as usize).any(|u| u[0] == 2 && u[UNIT as usize - 1] != 2));
        back += u32::from(all.contains(&1));
        gone += u32::from(all.contains(&0));
    }
    assert_eq!(patterns.len(), 16);
    assert!(torn > 20 && back > 50 && gone > 50, "{torn} {back} {gone}");
}

#[test]
fn a_drives_reset_stays_even_when_nothing_else_does() {
    let device = device(true);
    device.write(z(0), 0, &units(1, 4)).unwrap();
    device.flush().unwrap();
    device.reset(z(0)).unwrap();
    device.write(z(0), 0, &units(2, 1)).unwrap();
    assert_eq!(device.restarted(Survival::Nothing).report(z(0)).unwrap().state, ZoneState::Empty);
    // A flush that was cut off may have happened or not.
    let device = self::device(true);
    device.write(z(0), 0, &units(1, 4)).unwrap();
    device.flush().unwrap();
    device.crash_after(2);
    device.reset(z(0)).unwrap_err();
    let pointers: BTreeSet<u64> =
        (0..50).map(|seed| device.after_power_loss(seed).report(z(0)).unwrap().pointer).collect();
    assert_eq!(pointers, BTreeSet::from([0, 4 * UNIT]));
}

#[test]
fn a_snapshot_is_a_device_of_its_own() {
    let device = device(true);
    device.write(z(0), 0, &units(1, 1)).unwrap();
    let copy = device.snapshot();
    let handle = device.clone();
    handle.write(z(0), UNIT, &units(2, 1)).unwrap();
    assert_eq!(device.report(z(0)).unwrap().pointer, 2 * UNIT);
    assert_eq!(copy.report(z(0)).unwrap().pointer, UNIT);
    copy.reset(z(0)).unwrap();
    assert_eq!(bytes(&device, 0, 0, UNIT), units(1, 1));
    // Pending commands are pending in the copy too.
    let copy = device.snapshot();
    assert_eq!(copy.restarted(Survival::Nothing).report(z(0)).unwrap().pointer, 0);
}

#[test]
fn a_crash_leaves_no_more_open_zones_than_the_limit() {
    let limited = || SimDevice::new(SimConfig { max_open: 2, ..config(true) }).unwrap();
    let device = limited();
    for zone in 0..4 {
        device.write(z(zone), 0, &units(1, 4)).unwrap();
        device.finish(z(zone)).unwrap();
    }
    device.write(z(4), 0, &units(1, 1)).unwrap();
    device.write(z(5), 0, &units(1, 1)).unwrap();
    let again = limited();
    again.write(z(0), 0, &units(1, 1)).unwrap();
    again.write(z(1), 0, &units(1, 1)).unwrap();
    assert!(again.write(z(2), 0, &units(1, 1)).is_err());
    for seed in 0..200 {
        let left = device.after_power_loss(seed);
        let open = left.reports().iter().filter(|report| report.state == ZoneState::Open).count();
        assert!(open <= 2, "seed {seed}: {open}");
    }
}

#[test]
fn a_zone_too_many_is_refused_as_a_kernel_does_until_another_is_full_or_empty() {
    for (max_open, max_active, limit, errno) in [
        (2, 0, 2, libc::ETOOMANYREFS),
        (0, 3, 3, libc::EOVERFLOW),
        (2, 3, 2, libc::ETOOMANYREFS),
        (4, 3, 3, libc::EOVERFLOW),
    ] {
        let device = SimDevice::new(SimConfig { max_open, max_active, ..config(true) }).unwrap();
        let fill = |zone| device.write(z(zone), 0, &units(1, 1));
        (0..limit).for_each(|zone| fill(zone).unwrap());
        let ops = device.ops_done();
        for give_way in [0, 1] {
            match fill(5) {
                Err(DeviceError::Io { source, .. }) => assert_eq!(source.raw_os_error(), Some(errno)),
                other => panic!("{other:?}"),
            }
            assert_eq!(device.report(z(5)).unwrap().state, ZoneState::Empty);
            if give_way == 0 {
                device.finish(z(0)).unwrap()
            } else {
                device.reset(z(1)).unwrap()
            }
            fill(5).unwrap();
            device.reset(z(5)).unwrap();
            fill(5 - 1 - give_way).unwrap();
        }
        assert!(device.ops_done() > ops);
        assert_eq!(device.check(), Ok(()));
    }
}

#[test]
fn a_lost_reset_comes_to_light_in_a_crash_with_all_that_was_there() {
    let mut outcomes = [0; 2];
    for seed in 0..40 {
        let device = device(true);
        device.write(z(0), 0, &units(1, 3)).unwrap();
        device.flush().unwrap();
        let lost = device.inject(Fault::LostReset { one_in: 1 });
        device.reset(z(0)).unwrap();
        assert_eq!((device.fired(lost), device.report(z(0)).unwrap().pointer), (1, 0));
        device.write(z(0), 0, &units(2, 5)).unwrap();
        let left = device.after_power_loss(seed);
        let pointer = left.report(z(0)).unwrap().pointer;
        let first = bytes(&left, 0, 0, 3 * UNIT);
        // Writes after the reset are never found above content that it should have removed.
        let is_old = pointer == 3 * UNIT && first == units(1, 3);
        outcomes[usize::from(is_old)] += 1;
        if !is_old {
            assert!(first.iter().take(pointer.min(3 * UNIT) as usize).all(|byte| *byte == 2), "seed {seed}");
        }
        // After a flush, the reset has happened.
        device.flush().unwrap();
        assert_eq!(bytes(&device.restarted(Survival::Nothing), 0, 0, UNIT), units(2, 1));
    }
    assert!(outcomes.iter().all(|count| *count > 5), "{outcomes:?}");
}

#[test]
fn recorded_power_cuts_equal_runs_cut_at_each_operation() {
    for hardware in [true, false] {
        let life = |device: &SimDevice| {
            let mut owner = RandomClient::new(device.clone(), 5);
            (0..60).try_for_each(|_| owner.step())
        };
        let watched = device(hardware);
        watched.record_power_cuts();
        life(&watched).unwrap();
        let cut_copies = watched.take_cut_copies();
        assert_eq!(cut_copies.len() as u64, watched.ops_done());
        assert!(watched.take_cut_copies().is_empty());
        for (cut, cut_copy) in (0u64..).zip(&cut_copies) {
            let lived = device(hardware);
            lived.crash_after(cut);
            life(&lived).unwrap_err();
            for kept in [Survival::Nothing, Survival::Everything, Survival::Seeded(cut)] {
                assert_eq!(
                    cut_copy.restarted(kept).dump(),
                    lived.restarted(kept).dump(),
                    "cut {cut}, {kept:?}"
                );
            }
        }
    }
}

#[test]
fn a_reset_that_fails_changes_nothing() {
    let device = device(true);
    device.write(z(3), 0, &units(7, 2)).unwrap();
    let fault = device.inject(Fault::ResetError { zone: Some(z(3)), one_in: 1 });
    assert!(device.reset(z(3)).is_err());
    assert_eq!((device.report(z(3)).unwrap().pointer, bytes(&device, 3, 0, UNIT)), (2 * UNIT, units(7, 1)));
    device.disarm(fault);
    device.reset(z(3)).unwrap();
    assert_eq!(device.check(), Ok(()));
}

#[test]
fn capacities_may_be_smaller_than_zones() {
    let capacities = (1..=6).map(|n| n * UNIT).collect();
    let device = SimDevice::new(SimConfig { capacities, ..config(true) }).unwrap();
    device.write(z(0), 0, &units(1, 1)).unwrap();
    assert_eq!(device.report(z(0)).unwrap().state, ZoneState::Full);
    assert!(device.write(z(1), 0, &units(1, 3)).is_err());
    assert!(device.read(z(0), UNIT, &mut [0]).is_err());
    for bad in [vec![UNIT; 5], vec![ZONE + UNIT; 6], vec![100; 6], vec![0; 6]] {
        assert!(SimDevice::new(SimConfig { capacities: bad, ..config(true) }).is_err());
    }
    for bad in [
        SimConfig { write_unit: 512, ..config(true) },
        SimConfig { zone_count: 0, ..config(true) },
        SimConfig { zone_size: 5000, ..config(true) },
    ] {
        assert!(matches!(SimDevice::new(bad), Err(DeviceError::Refused { .. })));
    }
}

#[test]
fn what_was_never_written_takes_no_memory() {
    let large = SimConfig { zone_count: 1000, zone_size: 1 << 30, ..SimConfig::default() };
    let device = SimDevice::new(large).unwrap();
    device.write(z(999), 0, &units(1, 1)).unwrap();
    assert!(device.dump().len() < 40_000);
    assert!(device.after_power_loss(1).dump().len() < 40_000);
}

#[test]
fn rot_flips_what_it_is_told_and_survives() {
    for hardware in [true, false] {
        let device = device(hardware);
        device.write(z(1), 0, &units(0xf0, 1)).unwrap();
        device.rot(z(1), 10, &[0xff, 0x01]).unwrap();
        assert_eq!(bytes(&device, 1, 9, 4), [0xf0, 0x0f, 0xf1, 0xf0]);
        assert_eq!(bytes(&device.restarted(Survival::Nothing), 1, 9, 4), [0xf0, 0x0f, 0xf1, 0xf0]);
        assert!(device.rot(z(1), ZONE - 1, &[1, 1]).is_err());
        assert_eq!(device.check(), Ok(()));
    }
}

#[test]
fn reads_and_writes_fail_where_and_as_often_as_told() {
    let device = device(true);
    device.write(z(0), 0, &units(1, 1)).unwrap();
    let reads = device.inject(Fault::ReadError { zone: Some(z(0)), one_in: 1 });
    assert!(matches!(device.read(z(0), 0, &mut [0]), Err(DeviceError::Io { .. })));
    device.read(z(1), 0, &mut [0]).unwrap();
    assert_eq!(device.fired(reads), 1);
    let writes = device.inject(Fault::WriteError { zone: Some(z(1)), one_in: 1, partial: false });
    assert!(matches!(device.write(z(1), 0, &units(1, 1)), Err(DeviceError::Io { .. })));
    assert_eq!(device.report(z(1)).unwrap().state, ZoneState::Empty);
    device.write(z(2), 0, &units(1, 1)).unwrap();
    assert_eq!(device.fired(writes), 1);
    device.disarm(reads);
    device.read(z(0), 0, &mut [0]).unwrap();
    assert!(device.write(z(1), 0, &units(1, 1)).is_err());
    device.clear_faults();
    assert_eq!((device.fired(reads), device.fired(writes)), (1, 2));
    device.write(z(1), 0, &units(1, 1)).unwrap();
    let some = device.inject(Fault::ReadError { zone: None, one_in: 4 });
    let failed = (0..400).filter(|_| device.read(z(0), 0, &mut [0]).is_err()).count();
    assert!((50..150).contains(&failed) && device.fired(some) == failed as u64, "{failed}");
}

#[test]
fn a_failed_write_may_move_the_pointer_part_of_the_way() {
    for hardware in [true, false] {
        let device = device(hardware);
        let id = device.inject(Fault::WriteError { zone: None, one_in: 1, partial: true });
        let mut pointers = BTreeSet::new();
        for _ in 0..100 {
            assert!(matches!(device.write(z(0), 0, &units(5, 4)), Err(DeviceError::Io { .. })));
            let pointer = device.report(z(0)).unwrap().pointer;
            pointers.insert(pointer / UNIT);
            assert_eq!(bytes(&device, 0, 0, pointer), units(5, pointer / UNIT));
            assert_eq!(bytes(&device, 0, pointer, UNIT), units(0, 1));
            device.reset(z(0)).unwrap();
        }
        assert_eq!(pointers, BTreeSet::from([0, 1, 2, 3]));
        assert_eq!(device.fired(id), 100);
    }
}

#[test]
fn a_lost_write_succeeds_and_leaves_nothing() {
    for hardware in [true, false] {
        let device = device(hardware);
        let id = device.inject(Fault::LostWrite { nth: 2 });
        for n in 0..3 {
            device.write(z(0), n * UNIT, &units(7, 1)).unwrap();
        }
        device.flush().unwrap();
        assert_eq!(device.fired(id), 1);
        for device in [device.clone(), device.after_power_loss(1)] {
            assert_eq!(bytes(&device, 0, 0, 3 * UNIT), [units(7, 1), units(0, 1), units(7, 1)].concat());
        }
        assert_eq!(device.report(z(0)).unwrap().pointer, 3 * UNIT);
    }
}

#[test]
fn a_misdirected_write_lands_on_others() {
    for hardware in [true, false] {
        let device = device(hardware);
        device.write(z(3), 0, &units(1, 4)).unwrap();
        let id = device.inject(Fault::MisdirectedWrite { nth: 1, to: z(3), offset: UNIT });
        device.write(z(0), 0, &units(7, 1)).unwrap();
        device.flush().unwrap();
        assert_eq!(device.fired(id), 1);
        for device in [device.clone(), device.after_power_loss(1)] {
            assert_eq!(bytes(&device, 0, 0, UNIT), units(0, 1));
            assert_eq!(bytes(&device, 3, 0, 3 * UNIT), [units(1, 1), units(7, 1), units(1, 1)].concat());
        }
        // Beyond the end of the other zone there is nothing to damage.
        device.inject(Fault::MisdirectedWrite { nth: 1, to: z(3), offset: u64::MAX });
        device.write(z(0), UNIT, &units(7, 1)).unwrap();
        assert_eq!(device.check(), Ok(()));
    }
}

#[test]
fn a_later_flush_repairs_a_lost_one_but_not_a_failed_one() {
    for hardware in [true, false] {
        let kept =
            |device: &SimDevice| bytes(&device.restarted(Survival::Nothing), 0, 0, UNIT) == units(7, 1);
        let fresh = || {
            let device = device(hardware);
            device.write(z(0), 0, &units(7, 1)).unwrap();
            device
        };
        let device = fresh();
        device.flush().unwrap();
        assert!(kept(&device));

        let device = fresh();
        let id = device.inject(Fault::LostFlush { nth: 1 });
        device.flush().unwrap();
        assert!(device.fired(id) == 1 && !kept(&device));
        device.flush().unwrap();
        assert!(kept(&device));

        let device = fresh();
        let id = device.inject(Fault::FailingFlush { nth: 1 });
        assert!(matches!(device.flush(), Err(DeviceError::Io { .. })));
        device.write(z(1), 0, &units(7, 1)).unwrap();
        device.flush().unwrap();
        assert!(device.fired(id) == 1 && !kept(&device));
        assert_eq!(bytes(&device.restarted(Survival::Nothing), 1, 0, UNIT), units(7, 1));
        device.reset(z(0)).unwrap();
        device.write(z(0), 0, &units(7, 1)).unwrap();
        device.flush().unwrap();
        assert!(kept(&device));
    }
}

#[test]
fn a_zone_dies_now_or_later_and_stays_dead() {
    for hardware in [true, false] {
        let device = device(hardware);
        device.write(z(0), 0, &units(7, 1)).unwrap();
        device.write(z(1), 0, &units(7, 1)).unwrap();
        device.kill_zone(z(0), ZoneState::ReadOnly).unwrap();
        assert!(matches!(device.write(z(0), UNIT, &units(7, 1)), Err(DeviceError::Rule { .. })));
        assert!(matches!(device.reset(z(0)), Err(DeviceError::Rule { .. })));
        assert_eq!(bytes(&device, 0, 0, UNIT), units(7, 1));
        assert!(device.kill_zone(z(0), ZoneState::Full).is_err());

        let id = device.inject(Fault::BecomesOffline { zone: z(1), after_ops: 2 });
        // A command that the rules refuse is no operation.
        device.write(z(1), 0, &units(7, 1)).unwrap_err();
        device.write(z(1), UNIT, &units(7, 1)).unwrap();
        device.flush().unwrap();
        assert_eq!((device.fired(id), device.report(z(1)).unwrap().state), (0, ZoneState::Open));
        assert!(matches!(device.write(z(1), 2 * UNIT, &units(7, 1)), Err(DeviceError::Rule { .. })));
        assert_eq!(device.fired(id), 1);
        assert!(device.read(z(1), 0, &mut [0]).is_err());
        let id = device.inject(Fault::BecomesReadOnly { zone: z(2), after_ops: 0 });
        device.finish(z(2)).unwrap_err();
        assert_eq!(device.fired(id), 1);
        let left = device.after_power_loss(3);
        let states = [0, 1, 2].map(|zone| left.report(z(zone)).unwrap().state);
        assert_eq!(states, [ZoneState::ReadOnly, ZoneState::Offline, ZoneState::ReadOnly]);
        assert_eq!((device.check(), left.check()), (Ok(()), Ok(())));
    }
}

#[test]
fn a_pointer_moves_ahead_or_behind_on_a_drive_only() {
    let device = device(true);
    device.write(z(0), 0, &units(7, 4)).unwrap();
    device.flush().unwrap();
    assert_eq!(device.advance_pointer(z(0), UNIT).unwrap(), 5 * UNIT);
    assert_eq!(device.resume(z(0), 4 * UNIT).unwrap(), 5 * UNIT);
    assert_ne!(bytes(&device, 0, 4 * UNIT, UNIT), units(0, 1));
    assert_eq!(device.advance_pointer(z(0), u64::MAX).unwrap(), ZONE);
    assert_eq!(device.report(z(0)).unwrap().state, ZoneState::Full);
    assert_eq!(device.roll_back_pointer(z(0), ZONE - 3 * UNIT).unwrap(), 3 * UNIT);
    let left = device.restarted(Survival::Nothing);
    assert_eq!(left.report(z(0)).unwrap().pointer, 3 * UNIT);
    assert_eq!(bytes(&left, 0, 0, 3 * UNIT), units(7, 3));
    assert_ne!(bytes(&left, 0, 3 * UNIT, UNIT), units(7, 1));
    assert_eq!(device.check(), Ok(()));
    assert!(self::device(false).advance_pointer(z(0), UNIT).is_err());
    assert!(self::device(false).roll_back_pointer(z(0), UNIT).is_err());
}

#[test]
fn a_dump_comes_back_and_damaged_ones_do_not_panic() {
    for hardware in [true, false] {
        let mut owner = RandomClient::new(device(hardware), 3);
        (0..40).for_each(|_| owner.step().unwrap());
        let left = owner.device.after_power_loss(9);
        left.kill_zone(z(2), ZoneState::ReadOnly).unwrap();
        let raw = left.dump();
        let back = SimDevice::load(&raw).unwrap();
        assert_eq!(back.dump(), raw);
        assert_eq!(back.reports(), left.reports());
        assert_eq!(back.info().hardware_pointers, hardware);
        for end in (0..raw.len()).step_by(97).chain(0..100) {
            assert!(SimDevice::load(&raw[..end]).is_err());
        }
        let mut prng = Prng::new(1);
        for _ in 0..3000 {
            let mut bad = raw.clone();
            let at = if prng.one_in(2) { prng.below(64) } else { prng.below(raw.len() as u64) };
            bad[at as usize] ^= 1 << prng.below(8);
            if let Ok(device) = SimDevice::load(&bad) {
                assert_eq!(device.check(), Ok(()));
            }
        }
    }
}

#[test]
fn an_exported_image_opens_as_a_file() {
    let device = device(false);
    device.write(z(0), 0, &units(1, 3)).unwrap();
    device.write(z(5), 0, &units(2, 1)).unwrap();
    let dir = TempDir::new();
    device.export_raw(dir.path("image")).unwrap();
    assert!(device.export_raw(dir.path("image")).is_err());
    let file = FileDevice::open(dir.path("image"), OpenMode::ReadOnly, ZONE).unwrap();
    assert_eq!(file.info().zone_count, 6);
    let mut buf = units(9, 4);
    file.read(z(0), 0, &mut buf).unwrap();
    assert_eq!(buf, [units(1, 3), units(0, 1)].concat());
    file.read(z(5), 0, &mut buf[..4096]).unwrap();
    assert_eq!(buf[..4096], units(2, 1));
}

#[test]
fn a_file_and_both_simulators_take_and_refuse_the_same() {
    let dir = TempDir::new();
    let file = FileDevice::create(dir.path("pool"), 6 * ZONE, ZONE).unwrap();
    let devices: [&dyn Device; 3] = [&file, &device(true), &device(false)];
    let mut prng = Prng::new(11);
    let mut byte = 0u8;
    for _ in 0..2000 {
        let (zone, op) = (z(prng.below(7) as u32), prng.below(20));
        let pointer = file.report(zone).map_or(0, |report| report.pointer);
        let offset = if prng.one_in(8) { prng.below(ZONE) } else { pointer };
        let len = if prng.one_in(8) { prng.below(ZONE * 2) } else { UNIT * (1 + prng.below(3)) };
        byte = byte.wrapping_add(1);
        let results = devices.map(|device| match op {
            0 | 1 => device.reset(zone).is_ok(),
            2 => device.finish(zone).is_ok(),
            3 => device.flush().is_ok(),
            4 => device.resume(zone, offset).is_ok(),
            5 => device.read(zone, offset, &mut vec![0; len as usize]).is_ok(),
            _ => device.write(zone, offset, &vec![byte; len as usize]).is_ok(),
        });
        assert!(results == [true; 3] || results == [false; 3], "{op} {results:?}");
        let reports = devices.map(|device| device.report(zone).ok());
        assert!(reports[0] == reports[1] && reports[1] == reports[2], "{reports:?}");
        if let Some(report) = reports[0].filter(|report| report.state == ZoneState::Open) {
            let contents = devices.map(|device| {
                let mut buf = vec![0; report.pointer as usize];
                device.read(zone, 0, &mut buf).unwrap();
                buf
            });
            assert!(contents[0] == contents[1] && contents[1] == contents[2]);
        }
    }
}

#[test]
fn devices_on_one_power_supply_lose_it_together() {
    let device = |hardware_pointers| {
        SimDevice::new(SimConfig { zone_count: 4, hardware_pointers, ..SimConfig::default() }).unwrap()
    };
    let (first, second) = (device(true), device(false));
    first.share_power(vec![second.clone()]);
    let reads = first.inject(Fault::ReadError { zone: None, one_in: 1 });
    let mut buf = [0; 4096];
    assert!(first.read(z(0), 0, &mut buf).is_err() && second.read(z(0), 0, &mut buf).is_err());
    assert_eq!(first.fired(reads), 2);
    first.disarm(reads);
    first.crash_after(3);
    first.write(z(0), 0, &[1; 4096]).unwrap();
    second.write(z(0), 0, &[2; 4096]).unwrap();
    first.flush().unwrap();
    assert!(second.write(z(1), 0, &[3; 4096]).is_err(), "all operations count");
    assert!(!first.is_powered() && first.read(z(0), 0, &mut buf).is_err());
    // The flush covered only the first device.
    let left = first.restarted(Survival::Nothing);
    let other = left.companions().remove(0);
    left.read(z(0), 0, &mut buf).unwrap();
    assert_eq!(buf, [1; 4096]);
    other.read(z(0), 0, &mut buf).unwrap();
    assert_eq!(buf, [0; 4096]);
    left.cut_power();
    assert!(!other.is_powered());
}
