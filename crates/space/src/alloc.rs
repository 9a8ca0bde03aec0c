//! Allocator: empty physical zones of all devices, and sequence numbers for their next fillings.
//!
//! This module chooses the device on which the next zone is opened, by how full each is. What is written there does not matter. The
//! device with the largest share of empty zones is next. So devices of any size fill up together, and streams that open zones one after
//! the other get different devices.
//!
//! A *special* device is for metadata. For metadata, a zone apart from its other copy comes before a zone on a special device. That a
//! copy survives its device is worth more than speed for both, and reads use the first copy. Data goes to special devices only when no
//! other device has an empty zone. The free space that writers were promised counts all zones, and a pool must not refuse bytes for
//! which it has zones.
//!
//! Invariant: a zone in `unclean` is in `empty` too.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use terrane_format::addr::SEQ_MAX;
use terrane_format::record::{Home, ZoneClass};
use terrane_wire::{DeviceIdx, ZoneIdx};

/// Sequence numbers leased at a time, beside one for each zone that a txg may open.
const LEASE_SEQS: u64 = 4096;
/// Most zones that a txg opens: 64 GiB in the smallest zones. Each import after a crash uses up a lease, even if few of its numbers
/// were used.
const TXG_ZONES_MAX: u64 = 65_536;
/// Zones of an intent log that are remembered.
const WAS_LENT_MAX: usize = 8;

/// Empty physical zones and unused sequence numbers.
#[derive(Default)]
pub struct Allocator {
    devices: Vec<DeviceFreeZones>,
    /// Zones that the intent log has, and their bytes.
    lent: BTreeMap<Home, u64>,
    /// Empty zones that it had, the newest last. Blocks go there last, because the log writes faster where it has written before.
    was_lent: Vec<Home>,
    /// The device of the newest zone of each class, by [`ZoneClass::index`].
    newest: [Option<DeviceIdx>; ZoneClass::ALL.len()],
    /// Sequence number of the next zone to be opened.
    pub next_seq: u64,
    /// End of the leased sequence numbers. The next zone needs a number below it.
    pub lease_seq: u64,
}

/// The empty zones of one device.
#[derive(Default)]
struct DeviceFreeZones {
    is_special: bool,
    /// Zones for blocks. 0: there is no such device.
    zones: u32,
    empty: BTreeSet<ZoneIdx>,
    /// Empty by the tables, but not yet reset in this incarnation.
    unclean: BTreeSet<ZoneIdx>,
}

impl DeviceFreeZones {
    /// Compares the shares of empty zones.
    fn emptier(&self, other: &DeviceFreeZones) -> Ordering {
        let share = |free_zones: &DeviceFreeZones, of: &DeviceFreeZones| {
            free_zones.empty.len() as u64 * u64::from(of.zones)
        };
        share(self, other).cmp(&share(other, self))
    }
}

impl Allocator {
    /// Starts at sequence number `next_seq`, without a lease and without devices.
    pub fn new(next_seq: u64) -> Allocator {
        Allocator { next_seq, lease_seq: next_seq, ..Allocator::default() }
    }

    /// Called before an uberblock: leases numbers for every zone and some more, because one txg may open all empty zones.
    pub fn raise_lease(&mut self) {
        let zones: u64 = self.devices.iter().map(|free_zones| u64::from(free_zones.zones)).sum();
        let zones = zones.min(TXG_ZONES_MAX);
        if self.next_seq + zones + LEASE_SEQS / 2 > self.lease_seq {
            // There are no sequence numbers beyond `SEQ_MAX`: opening a zone there is refused, and import would reject an uberblock
            // with a higher lease.
            self.lease_seq = (self.next_seq + zones + LEASE_SEQS).min(SEQ_MAX);
        }
    }

    /// Called before the uberblock of an export. No zone is opened after it, so the next import continues with the next number.
    pub fn end_lease(&mut self) {
        self.lease_seq = self.next_seq;
    }

    /// Adds a device without empty zones. `zones` of its zones are for blocks.
    pub fn add_device(&mut self, device: DeviceIdx, is_special: bool, zones: u32) {
        let index = usize::from(device.0);
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, DeviceFreeZones::default);
        }
        self.devices[index] = DeviceFreeZones { is_special, zones, ..DeviceFreeZones::default() };
    }

    /// Removes a leaving device: its zones are not opened any more.
    pub fn drop_device(&mut self, device: DeviceIdx) {
        if let Some(free_zones) = self.devices.get_mut(usize::from(device.0)) {
            *free_zones = DeviceFreeZones::default();
        }
        for newest in &mut self.newest {
            *newest = newest.filter(|newest| *newest != device);
        }
    }

    /// Adds a zone that is empty in the tables and on the device.
    pub fn put(&mut self, home: Home) {
        // A device that was removed takes nothing, even if a zone on it becomes empty.
        let free_zones = self.devices.get_mut(usize::from(home.device.0));
        if let Some(free_zones) = free_zones.filter(|free_zones| free_zones.zones > 0) {
            free_zones.empty.insert(home.zone);
        }
    }

    /// Adds a zone that is empty by the tables. It must be reset before it is written.
    pub fn put_unclean(&mut self, home: Home) {
        self.put(home);
        let free_zones = self.devices.get_mut(usize::from(home.device.0));
        if let Some(free_zones) = free_zones.filter(|free_zones| free_zones.zones > 0) {
            free_zones.unclean.insert(home.zone);
        }
    }

    /// Drops a zone that takes no more writes.
    pub fn drop_zone(&mut self, home: Home) {
        if let Some(free_zones) = self.devices.get_mut(usize::from(home.device.0)) {
            free_zones.empty.remove(&home.zone);
            free_zones.unclean.remove(&home.zone);
        }
    }

    /// Takes the first empty zone of a `usable` device. Prefers a device other than `device_to_avoid`, and one that is special as wanted.
    /// For special the first preference counts more, else the second. Then the largest share of empty zones decides.
    pub fn pop(
        &mut self,
        want_special: bool,
        avoid: Option<DeviceIdx>,
        usable: &dyn Fn(DeviceIdx) -> bool,
    ) -> Option<Home> {
        let candidates =
            (0u16..).zip(&self.devices).map(|(index, free_zones)| (DeviceIdx(index), free_zones));
        let (device, _) = candidates
            .filter(|(device, free_zones)| !free_zones.empty.is_empty() && usable(*device))
            .max_by(|(a, of_a), (b, of_b)| {
                let is_apart = |device: &DeviceIdx| avoid != Some(*device);
                let fits = |free_zones: &DeviceFreeZones| free_zones.is_special == want_special;
                let apart = is_apart(a).cmp(&is_apart(b));
                let kind = fits(of_a).cmp(&fits(of_b));
                let by_need = if want_special { apart.then(kind) } else { kind.then(apart) };
                by_need.then(of_a.emptier(of_b)).then(b.cmp(a))
            })?;
        let empty = &mut self.devices[usize::from(device.0)].empty;
        let was_lent = |zone: &&ZoneIdx| self.was_lent.contains(&Home { device, zone: **zone });
        let zone = *empty.iter().find(|zone| !was_lent(zone)).or_else(|| empty.first())?;
        empty.remove(&zone);
        Some(Home { device, zone })
    }

    /// Takes an empty zone of a `usable` device for the intent log: one that it had, else one of a special device.
    pub fn pop_for_log(&mut self, usable: &dyn Fn(DeviceIdx) -> bool) -> Option<Home> {
        let is_empty = |home: &Home| {
            let free_zones = self.devices.get(usize::from(home.device.0));
            free_zones.is_some_and(|free_zones| free_zones.empty.contains(&home.zone))
        };
        let known = self.was_lent.iter().position(|home| usable(home.device) && is_empty(home));
        let Some(known) = known else { return self.pop(true, None, usable) };
        let home = self.was_lent.remove(known);
        self.devices[usize::from(home.device.0)].empty.remove(&home.zone);
        Some(home)
    }

    /// The zone, which is not among the empty ones, belongs to the intent log now.
    pub fn lend(&mut self, home: Home, bytes: u64) {
        self.lent.insert(home, bytes);
    }

    /// A zone that was lent is empty by the tables again. It must be reset before it is written.
    pub fn take_back(&mut self, home: Home) {
        self.lent.remove(&home);
        self.put_unclean(home);
        if self.was_lent.len() >= WAS_LENT_MAX {
            self.was_lent.remove(0);
        }
        self.was_lent.push(home);
    }

    /// Bytes of the zones that the intent log has.
    pub fn lent_bytes(&self) -> u64 {
        self.lent.values().sum()
    }

    /// Whether the intent log has a zone of this device.
    pub fn has_lent_on(&self, device: DeviceIdx) -> bool {
        self.lent.keys().any(|home| home.device == device)
    }

    /// Number of zones that [`Allocator::pop`] chooses from.
    pub fn empty_where(&self, usable: &dyn Fn(DeviceIdx) -> bool) -> usize {
        let usable_devices = (0u16..).zip(&self.devices).filter(|(index, _)| usable(DeviceIdx(*index)));
        usable_devices.map(|(_, free_zones)| free_zones.empty.len()).sum()
    }

    /// Notes that a zone of this class was opened on the device.
    pub fn note_opened(&mut self, class: ZoneClass, device: DeviceIdx) {
        self.newest[class.index()] = Some(device);
    }

    /// The device that a new zone of this class should avoid: the two copies of metadata are separated.
    pub fn device_to_avoid(&self, class: ZoneClass) -> Option<DeviceIdx> {
        match class {
            ZoneClass::MetaA => self.newest[ZoneClass::MetaB.index()],
            ZoneClass::MetaB => self.newest[ZoneClass::MetaA.index()],
            ZoneClass::Log | ZoneClass::Collection | ZoneClass::Data => None,
        }
    }

    /// Whether the zone just taken must be reset first. Clears the mark.
    pub fn take_unclean(&mut self, home: Home) -> bool {
        self.devices
            .get_mut(usize::from(home.device.0))
            .is_some_and(|free_zones| free_zones.unclean.remove(&home.zone))
    }

    /// Number of empty zones on all devices.
    pub fn empty_count(&self) -> usize {
        self.devices.iter().map(|free_zones| free_zones.empty.len()).sum()
    }

    /// Number of empty zones on a device. 0 if there is no such device.
    pub fn empty_on(&self, device: DeviceIdx) -> usize {
        self.devices.get(usize::from(device.0)).map_or(0, |free_zones| free_zones.empty.len())
    }

    /// The first `count` empty zones of each device. The next zones to be taken are among them.
    pub fn next_empty_zones(&self, count: usize) -> Vec<Home> {
        let of_device = |(index, free_zones)| {
            let free_zones: &DeviceFreeZones = free_zones;
            free_zones
                .empty
                .iter()
                .take(count)
                .map(move |zone| Home { device: DeviceIdx(index), zone: *zone })
        };
        (0u16..).zip(&self.devices).flat_map(of_device).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices 0, 1, ... with so many zones, of which so many are empty. The last device is special.
    fn allocator_with(sizes: &[(u32, u32)]) -> Allocator {
        let mut alloc = Allocator::new(1);
        for (index, (zones, empty)) in (0u16..).zip(sizes) {
            let device = DeviceIdx(index);
            alloc.add_device(device, usize::from(index) + 1 == sizes.len(), *zones);
            (2..2 + *empty).for_each(|zone| alloc.put_unclean(Home { device, zone: ZoneIdx(zone) }));
        }
        alloc
    }

    fn pops(alloc: &mut Allocator, special: bool, avoid: Option<u16>, count: usize) -> Vec<u16> {
        let pop = |_| alloc.pop(special, avoid.map(DeviceIdx), &|_| true).map(|home| home.device.0);
        (0..count).filter_map(pop).collect()
    }

    #[test]
    fn load_follows_the_share_of_empty_zones() {
        let mut alloc = allocator_with(&[(10, 10), (20, 20), (0, 0)]);
        let taken = pops(&mut alloc, false, None, 30);
        let of_first = taken[..15].iter().filter(|device| **device == 0).count();
        assert_eq!((taken.len(), of_first), (30, 5), "half of both when half is taken: {taken:?}");
    }

    #[test]
    fn zones_are_taken_in_order_and_unclean_ones_are_reported_once() {
        let mut alloc = allocator_with(&[(3, 3), (0, 0)]);
        assert_eq!(alloc.next_empty_zones(2).len(), 2);
        let home = alloc.pop(false, None, &|_| true).unwrap();
        assert_eq!(home, Home { device: DeviceIdx(0), zone: ZoneIdx(2) });
        assert!(alloc.take_unclean(home));
        assert!(!alloc.take_unclean(home));
        alloc.put(home);
        assert_eq!(alloc.pop(false, None, &|_| true), Some(home));
        assert!(!alloc.take_unclean(home), "it was reset");
        assert_eq!(alloc.empty_count(), 2);
    }

    #[test]
    fn metadata_prefers_special_devices_and_separate_copies() {
        let mut alloc = allocator_with(&[(9, 9), (9, 9), (9, 3)]);
        assert_eq!(pops(&mut alloc, true, None, 1), [2]);
        assert_eq!(pops(&mut alloc, true, Some(2), 1), [0], "apart comes before special");
        assert_eq!(pops(&mut alloc, true, Some(0), 1), [2]);
        assert_eq!(pops(&mut alloc, true, None, 2), [2, 1], "and goes on elsewhere when those are full");
    }

    #[test]
    fn data_takes_special_zones_last() {
        let mut alloc = allocator_with(&[(9, 1), (9, 1), (9, 9)]);
        assert_eq!(pops(&mut alloc, false, Some(0), 3), [1, 0, 2]);
    }

    #[test]
    fn a_txg_that_opens_every_zone_has_numbers_for_them() {
        for zones in [30, 5_000, 1_000_000] {
            let mut alloc = allocator_with(&[(zones, 0), (zones, 0), (0, 0)]);
            for nth in 0..9 {
                alloc.raise_lease();
                let left = alloc.lease_seq - alloc.next_seq;
                let most = (2 * u64::from(zones)).min(TXG_ZONES_MAX);
                assert!(left >= most, "{left} numbers for {zones} zones twice");
                // One txg opens a few, the next one all.
                alloc.next_seq += if nth % 2 == 0 { 3 } else { most };
            }
        }
        let mut alloc = allocator_with(&[(30, 0), (0, 0)]);
        alloc.raise_lease();
        let leased = alloc.lease_seq;
        (0..40).for_each(|_| {
            alloc.next_seq += 30;
            alloc.raise_lease();
        });
        assert_eq!(alloc.lease_seq, leased, "not every txg raises it");
    }

    #[test]
    fn only_usable_devices_are_asked() {
        let mut alloc = allocator_with(&[(9, 9), (9, 9), (0, 0)]);
        assert_eq!(alloc.pop(false, Some(DeviceIdx(0)), &|device| device.0 == 0).unwrap().device.0, 0);
        assert_eq!(alloc.pop(false, None, &|_| false), None);
    }
}
