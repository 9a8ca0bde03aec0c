//! Zones and devices that GC could not read, and when they are tried again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use terrane_wire::{DeviceIdx, ZoneSeq};

/// Nanoseconds of a second.
pub const SECOND_NS: u64 = 1_000_000_000;
/// Sleep of a zone after its first failure, and the maximum. The sleep doubles with each failure.
pub const PAUSE_NS: u64 = SECOND_NS;
/// The longest sleep of a zone.
pub const PAUSE_NS_MAX: u64 = 3600 * SECOND_NS;
/// If this many zones fail within the window, their device is in trouble.
pub const TROUBLE_ZONES: usize = 3;
/// The window of [`TROUBLE_ZONES`].
pub const TROUBLE_WINDOW_NS: u64 = 60 * SECOND_NS;
/// How long GC rests on such a device at first, and at most.
pub const REST_NS: u64 = 10 * SECOND_NS;
/// The longest rest.
pub const REST_NS_MAX: u64 = 300 * SECOND_NS;
/// A writer that needs space probes such a device at most once in this time.
pub const PROBE_NS: u64 = SECOND_NS;
/// How long a writer waits for unreadable zones after the first failure, and the length of one wait.
pub const WAIT_NS: u64 = 10 * SECOND_NS;
/// The length of one wait.
pub const WAIT_STEP: Duration = Duration::from_millis(250);
/// After this many failures in a row, which take half a minute, a zone is not counted as space.
pub const FAILURES_MAX: u32 = 5;

/// Zones that could not be read, and when they are tried again.
#[derive(Default)]
pub struct UnreadableZones {
    /// The first failure since a zone was last read.
    pub since_ns: Option<u64>,
    /// Zones of which a read failed, or that wait for the rest of their device.
    pub zones: BTreeMap<ZoneSeq, SleepingZone>,
    /// Devices of which a zone could not be read, until one can be read again.
    pub devices: BTreeMap<DeviceIdx, DeviceTrouble>,
}

/// A zone that could not be read, or that was postponed.
pub struct SleepingZone {
    /// The device of the zone.
    pub device: DeviceIdx,
    /// Failures in a row.
    pub failures: u32,
    /// End of the sleep; `None`: the zone may be tried now.
    pub until_ns: Option<u64>,
}

/// Recent failures of a device.
#[derive(Default)]
pub struct DeviceTrouble {
    /// Zones that failed recently, each once, with the time.
    pub failed: VecDeque<(u64, ZoneSeq)>,
    /// The last rest, which may be over. `None`: GC has not rested on the device.
    pub rest: Option<Rest>,
    /// `probe_from_ns`: when a writer may probe the device. `probe_pause_ns`: how long no writer may probe it
    /// after its rest was lifted; it doubles each time.
    pub probe_from_ns: u64,
    /// The last pause between probes. 0: no probe has lifted the rest yet.
    pub probe_pause_ns: u64,
}

/// A time in which GC does not read a device.
#[derive(Clone, Copy)]
pub struct Rest {
    /// Its end, by the monotonic clock.
    pub until_ns: u64,
    /// Its length when it began. The next one is twice as long.
    pub pause_ns: u64,
}

/// A device on which GC rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcRest {
    /// The device.
    pub device: DeviceIdx,
    /// Zones of the device that could not be read.
    pub unread_zones: u64,
    /// Time of the pool's clock at which a zone is tried again.
    pub until_ns: u64,
}

/// `pause_ns`, doubled `times` times, at most `most`.
pub fn doubled(pause_ns: u64, times: u32, most: u64) -> u64 {
    1u64.checked_shl(times).and_then(|factor| pause_ns.checked_mul(factor)).unwrap_or(most).min(most)
}

impl UnreadableZones {
    /// A zone could not be read. Returns how long it sleeps, and how long GC rests on its device if that rest
    /// begins or is prolonged now.
    pub fn note_failure(&mut self, seq: ZoneSeq, device: DeviceIdx, now_ns: u64) -> (u64, Option<u64>) {
        let sleeper = self.zones.entry(seq).or_insert(SleepingZone { device, failures: 0, until_ns: None });
        let pause_ns = doubled(PAUSE_NS, sleeper.failures, PAUSE_NS_MAX);
        sleeper.failures = sleeper.failures.saturating_add(1);
        sleeper.until_ns = Some(now_ns.saturating_add(pause_ns));
        let trouble = self.devices.entry(device).or_default();
        trouble
            .failed
            .retain(|(at, failed)| now_ns.saturating_sub(*at) < TROUBLE_WINDOW_NS && *failed != seq);
        trouble.failed.push_back((now_ns, seq));
        self.since_ns.get_or_insert(now_ns);
        let rest_ns = match trouble.rest {
            Some(rest) if now_ns < rest.until_ns => return (pause_ns, None),
            Some(rest) => doubled(rest.pause_ns, 1, REST_NS_MAX),
            None if trouble.failed.len() < TROUBLE_ZONES => return (pause_ns, None),
            None => REST_NS,
        };
        trouble.rest = Some(Rest { until_ns: now_ns.saturating_add(rest_ns), pause_ns: rest_ns });
        (pause_ns, Some(rest_ns))
    }

    /// Makes a zone sleep as long as GC rests on its device.
    pub fn postpone(&mut self, seq: ZoneSeq, device: DeviceIdx) {
        let rest = self.devices.get(&device).and_then(|trouble| trouble.rest);
        let sleeper = self.zones.entry(seq).or_insert(SleepingZone { device, failures: 0, until_ns: None });
        sleeper.until_ns = sleeper.until_ns.max(rest.map(|rest| rest.until_ns));
    }

    /// A zone was read. If its device was in trouble, that is over. Returns the device's other zones, which
    /// need not sleep any longer.
    pub fn note_success(&mut self, seq: ZoneSeq, device: DeviceIdx) -> Vec<ZoneSeq> {
        self.zones.remove(&seq);
        self.since_ns = None;
        if self.devices.remove(&device).and_then(|trouble| trouble.rest).is_none() {
            return Vec::new();
        }
        let mut awake = Vec::new();
        for (seq, sleeper) in self.zones.iter_mut().filter(|(_, sleeper)| sleeper.device == device) {
            sleeper.failures = 0;
            awake.extend(sleeper.until_ns.take().map(|_| *seq));
        }
        awake
    }

    /// No block of the zone needs to be read any more.
    pub fn remove(&mut self, seq: ZoneSeq) {
        self.zones.remove(&seq);
    }

    /// Zones whose sleep is over. Each is returned once.
    pub fn due(&mut self, now_ns: u64) -> Vec<ZoneSeq> {
        let devices = &self.devices;
        let due = self.zones.iter_mut().filter(|(_, sleeper)| sleeper.is_due(devices, now_ns));
        due.map(|(seq, sleeper)| {
            sleeper.until_ns = None;
            *seq
        })
        .collect()
    }

    /// Whether the next txg has a zone to try.
    pub fn has_due(&self, now_ns: u64) -> bool {
        self.zones.values().any(|sleeper| sleeper.is_due(&self.devices, now_ns))
    }

    /// A zone by which a writer may probe a device on which GC rests.
    pub fn probe(&mut self, now_ns: u64) -> Option<(ZoneSeq, DeviceIdx)> {
        let (device, trouble) = self
            .devices
            .iter_mut()
            .find(|(_, trouble)| trouble.rests(now_ns) && trouble.probe_from_ns <= now_ns)?;
        trouble.probe_from_ns = now_ns.saturating_add(PROBE_NS);
        let seq = self.zones.iter().find(|(_, sleeper)| sleeper.device == *device).map(|(seq, _)| *seq)?;
        Some((seq, *device))
    }

    /// A writer's probe could read the device, so the next txg tries a zone. If that fails again, the next
    /// probe is allowed later.
    pub fn end_rest(&mut self, device: DeviceIdx, now_ns: u64) {
        let Some(trouble) = self.devices.get_mut(&device) else { return };
        trouble.probe_pause_ns = doubled(trouble.probe_pause_ns.max(PROBE_NS), 1, REST_NS_MAX);
        trouble.probe_from_ns = now_ns.saturating_add(trouble.probe_pause_ns);
        if let Some(rest) = &mut trouble.rest {
            rest.until_ns = rest.until_ns.min(now_ns);
        }
        for sleeper in self.zones.values_mut().filter(|sleeper| sleeper.device == device) {
            sleeper.until_ns = sleeper.until_ns.map(|until| until.min(now_ns));
        }
    }

    /// Whether the last read of the zone failed.
    pub fn has_failed(&self, seq: ZoneSeq) -> bool {
        self.zones.get(&seq).is_some_and(|sleeper| sleeper.failures > 0)
    }

    /// Whether the zone is not to be tried now.
    pub fn sleeps(&self, seq: ZoneSeq) -> bool {
        self.zones.get(&seq).is_some_and(|sleeper| sleeper.until_ns.is_some())
    }

    /// Whether GC rests on the device.
    pub fn is_resting(&self, device: DeviceIdx, now_ns: u64) -> bool {
        is_resting(&self.devices, device, now_ns)
    }

    /// The first failure since a zone was last read.
    pub fn since_ns(&self) -> Option<u64> {
        self.since_ns
    }

    /// Zones that failed so often that they are not counted as space for now.
    pub fn given_up(&self) -> impl Iterator<Item = ZoneSeq> {
        self.zones.iter().filter(|(_, sleeper)| sleeper.failures >= FAILURES_MAX).map(|(seq, _)| *seq)
    }

    /// All devices on which GC rests.
    pub fn all_rests(&self) -> Vec<GcRest> {
        let on = |device: DeviceIdx| self.zones.values().filter(|sleeper| sleeper.device == device).count();
        let of = |(device, trouble): (&DeviceIdx, &DeviceTrouble)| {
            let until_ns = trouble.rest?.until_ns;
            Some(GcRest { device: *device, unread_zones: on(*device) as u64, until_ns })
        };
        self.devices.iter().filter_map(of).collect()
    }
}

impl DeviceTrouble {
    /// Whether GC rests on the device now.
    pub fn rests(&self, now_ns: u64) -> bool {
        self.rest.is_some_and(|rest| now_ns < rest.until_ns)
    }
}

impl SleepingZone {
    /// Whether the sleep is over, and GC does not rest on the zone's device.
    pub fn is_due(&self, devices: &BTreeMap<DeviceIdx, DeviceTrouble>, now_ns: u64) -> bool {
        self.until_ns.is_some_and(|until| until <= now_ns) && !is_resting(devices, self.device, now_ns)
    }
}

/// Whether GC rests on the device now. A device without failures never rests.
pub fn is_resting(devices: &BTreeMap<DeviceIdx, DeviceTrouble>, device: DeviceIdx, now_ns: u64) -> bool {
    devices.get(&device).is_some_and(|trouble| trouble.rests(now_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceIdx = DeviceIdx(0);
    const OTHER: DeviceIdx = DeviceIdx(1);

    #[test]
    fn pauses_double_and_end() {
        let (mut unread, mut now, mut pauses) = (UnreadableZones::default(), 0, Vec::new());
        for _ in 0..15 {
            let (pause, rest) = unread.note_failure(ZoneSeq(1), DEVICE, now);
            assert_eq!(rest, None, "one bad zone is no bad device");
            assert_eq!(unread.due(now + pause - 1), []);
            now += pause;
            assert_eq!(unread.due(now), [ZoneSeq(1)]);
            assert!(!unread.sleeps(ZoneSeq(1)));
            pauses.push(pause / SECOND_NS);
        }
        assert_eq!(pauses[..5], [1, 2, 4, 8, 16]);
        assert_eq!(pauses[13..], [3600, 3600]);
        assert_eq!(unread.given_up().collect::<Vec<_>>(), [ZoneSeq(1)]);
        assert_eq!(unread.note_success(ZoneSeq(1), DEVICE), [], "nothing else slept");
        assert_eq!(unread.given_up().count(), 0);
    }

    #[test]
    fn several_unreadable_zones_within_a_minute_rest_their_device() {
        let mut unread = UnreadableZones::default();
        for (at, seq) in [(0, 1), (70, 2), (80, 3), (90, 3), (95, 3)] {
            assert_eq!(unread.note_failure(ZoneSeq(seq), DEVICE, at * SECOND_NS).1, None, "second {at}");
        }
        assert_eq!(unread.note_failure(ZoneSeq(9), OTHER, 99 * SECOND_NS).1, None, "that of another device");
        let now = 100 * SECOND_NS;
        assert_eq!(unread.note_failure(ZoneSeq(4), DEVICE, now).1, Some(10 * SECOND_NS));
        assert!(unread.is_resting(DEVICE, now) && !unread.is_resting(OTHER, now));
        assert_eq!(unread.due(now + 5 * SECOND_NS), [ZoneSeq(9)], "zones sleep while their device rests");
        // One further zone is enough to prolong the rest.
        let now = now + 10 * SECOND_NS;
        assert!(!unread.is_resting(DEVICE, now));
        assert_eq!(unread.note_failure(ZoneSeq(5), DEVICE, now).1, Some(20 * SECOND_NS));
        unread.postpone(ZoneSeq(6), DEVICE);
        assert_eq!(
            unread.all_rests(),
            [GcRest { device: DEVICE, unread_zones: 6, until_ns: now + 20 * SECOND_NS }]
        );
        assert_eq!(unread.since_ns(), Some(0));
        let woken = unread.note_success(ZoneSeq(5), DEVICE);
        assert_eq!(woken, [1, 2, 3, 4, 6].map(ZoneSeq));
        assert_eq!((unread.all_rests(), unread.since_ns()), (vec![], None));
    }

    #[test]
    fn writers_look_once_a_second_and_less_often_where_it_does_not_help() {
        let mut unread = UnreadableZones::default();
        let fail = |unread: &mut UnreadableZones, now| {
            for seq in 1..4 {
                unread.note_failure(ZoneSeq(seq), DEVICE, now * SECOND_NS);
            }
        };
        fail(&mut unread, 0);
        let probes = |unread: &mut UnreadableZones, from: u64, to: u64| {
            (from..to).filter(|now| unread.probe(now * SECOND_NS).is_some()).count()
        };
        assert_eq!(probes(&mut unread, 1, 9), 8);
        assert!(!unread.has_due(8 * SECOND_NS));
        let mut pauses = Vec::new();
        for now in [9, 100, 300] {
            unread.end_rest(DEVICE, now * SECOND_NS);
            assert!(unread.has_due(now * SECOND_NS));
            // The probed block can be read, and a needed block cannot.
            fail(&mut unread, now);
            pauses.push(
                (now..)
                    .find(|later| unread.probe(later * SECOND_NS).is_some())
                    .map_or(0, |later| later - now),
            );
        }
        assert_eq!(pauses, [2, 4, 8]);
    }
}
