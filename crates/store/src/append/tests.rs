use super::*;
use crate::env::{Env, SeededEnv};
use terrane_device::{Fault, SimConfig, SimDevice, ZoneState};
use terrane_format::record::Run;
use terrane_space::policy::ZoneSupply;
use terrane_wire::ZoneIdx;

/// Hands out the zones in order, until none is left.
struct ZoneList(Vec<u32>);

impl ZoneSource for ZoneList {
    fn empty_zones(&self, _open: &[DeviceIdx]) -> usize {
        self.0.len()
    }

    fn open_zone(
        &mut self,
        class: ZoneClass,
        _special: bool,
        _open: &[DeviceIdx],
    ) -> Result<(OpenedZone, Arc<WriteBuffer>), PoolError> {
        let zone = self.0.pop().ok_or(PoolError::NoSpace { need: 1, free: 0 })?;
        let home = Home { device: DeviceIdx(0), zone: ZoneIdx(zone) };
        let opened = OpenedZone { seq: ZoneSeq(u64::from(zone)), class, home, capacity: 1 << 20 };
        Ok((opened, Arc::default()))
    }
}

/// The same, with zones of the given capacity.
struct SizedZones(ZoneList, u64);

impl ZoneSource for SizedZones {
    fn empty_zones(&self, open: &[DeviceIdx]) -> usize {
        self.0.empty_zones(open)
    }

    fn open_zone(
        &mut self,
        class: ZoneClass,
        special: bool,
        open: &[DeviceIdx],
    ) -> Result<(OpenedZone, Arc<WriteBuffer>), PoolError> {
        let (opened, write_buffer) = self.0.open_zone(class, special, open)?;
        Ok((OpenedZone { capacity: self.1, ..opened }, write_buffer))
    }
}

/// What a txg does at its end.
fn drain(streams: &mut Streams, source: &mut dyn ZoneSource) {
    while streams.write_out(Txg(9)).unwrap() > 0 {
        streams.rescue(Txg(9), source).unwrap();
    }
}

/// Two slots on a drive with zones of 1 MiB.
fn streams() -> (Streams, SimDevice) {
    streams_with(Layout::of_slots(2, 1).unwrap())
}

fn streams_with(layout: Layout) -> (Streams, SimDevice) {
    streams_on(layout, 4096, 0)
}

fn streams_on(layout: Layout, write_unit: u32, workers: usize) -> (Streams, SimDevice) {
    streams_in(layout, SimConfig { zone_count: 32, write_unit, ..SimConfig::default() }, workers)
}

fn streams_in(layout: Layout, config: SimConfig, workers: usize) -> (Streams, SimDevice) {
    let zone_bytes = config.zone_size;
    let device = SimDevice::new(config).unwrap();
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(1));
    let devices = Arc::new(Devices::new(vec![Some(Arc::new(device.clone()))], env.clone()));
    (
        Streams::new(
            (1, 1),
            devices,
            zone_bytes,
            layout,
            workers,
            Arc::new(Counters::new(env)),
            Arc::new(PartCache::new(1 << 20)),
        ),
        device,
    )
}

/// Appends a data block of `kib` KiB, born in this txg or elsewhere.
fn append(
    streams: &mut Streams,
    source: &mut dyn ZoneSource,
    slot: usize,
    kib: usize,
    identity: Option<Addr>,
) -> Result<AppendLocation, PoolError> {
    let bytes = vec![7; kib << 10];
    let (birth, class) = match identity {
        None => (Txg(9), ZoneClass::Data),
        Some(_) => (Txg(3), ZoneClass::Collection),
    };
    let owner = Owner::Block { objset: 1, object: 1, level: 0, block: 0 };
    let block = Stored {
        bytes: &bytes,
        identity,
        birth,
        owner,
        other_copies: &[],
        near: &[],
        crc: 0,
        shares_run: true,
    };
    streams.append(slot, class, Txg(9), block, source)
}

fn fails(device: &SimDevice, zone: u32) {
    device.inject(Fault::WriteError { zone: Some(ZoneIdx(zone)), one_in: 1, partial: false });
}

fn supply_of(zones: ZoneSupply) -> Supply {
    Supply { zones, extra_slots: 0 }
}

#[test]
fn a_run_of_rescued_blocks_holds_none_that_went_to_another_slot() {
    let (mut streams, device) = streams();
    let mut source = ZoneList(vec![12, 10, 11]);
    fails(&device, 10);
    append(&mut streams, &mut source, 1, 4, None).unwrap();
    // A batch that fails, of small and large blocks.
    let born: Vec<AppendLocation> =
        (0..10).map(|n| append(&mut streams, &mut source, 0, [8, 100][n % 2], None).unwrap()).collect();
    assert!(born.iter().all(|location| location.seq == ZoneSeq(10)));
    streams.seal(0, Txg(9)).unwrap();
    streams.wait_idle();
    // The last zone has space for the small blocks only, beside what is kept for metadata.
    while streams.free_bytes(0) == 0 || streams.free_bytes(0) > 190 << 10 {
        let location = append(&mut streams, &mut source, 0, 8, None).unwrap();
        assert_eq!(location.seq, ZoneSeq(12), "what failed takes no more");
    }
    drain(&mut streams, &mut source);
    let runs: Vec<Run> = streams.txg_totals.moves.iter().map(|moved| moved.run).collect();
    let homes: std::collections::BTreeSet<ZoneSeq> = runs.iter().map(|run| run.dest).collect();
    assert_eq!(homes.len(), 2, "the canary: they fit no single zone: {runs:?}");
    for location in born {
        let granule = Addr::new(location.seq, location.offset).granule();
        let holding = runs.iter().filter(|run| run.first <= granule && granule <= run.last).count();
        assert_eq!(holding, 1, "granule {granule} in {runs:?}");
    }
}

#[test]
fn blocks_that_should_have_moved_with_a_failed_batch_need_no_space() {
    let (mut streams, device) = streams();
    let mut source = ZoneList(vec![10]);
    fails(&device, 10);
    let old: Vec<Addr> = (0..80).map(|n| Addr::new(ZoneSeq(3), (1 + n) << 14)).collect();
    // Until the failure is known. The zone then takes no more, and there is no other.
    let moves = old.iter().map(|addr| append(&mut streams, &mut source, 1, 16, Some(*addr)));
    let moved = moves.take_while(Result::is_ok).count();
    drain(&mut streams, &mut source);
    assert!(streams.txg_totals.moves.is_empty() && streams.txg_totals.carried.is_empty());
    let unmoved: Vec<Addr> = streams.txg_totals.unmoved.iter().map(|(addr, _)| *addr).collect();
    assert!((10..80).contains(&moved), "the canary: {moved}");
    assert_eq!(unmoved, old[..moved]);
    assert_eq!(streams.txg_totals.written[&ZoneSeq(10)].claimed, 0);
    // A new block is refused, and nothing changes.
    let refused = append(&mut streams, &mut source, 0, 16, None).unwrap_err();
    assert!(matches!(refused, PoolError::NoSpace { .. }), "{refused}");
}

#[test]
fn caller_and_writer_thread_keep_write_order() {
    let (mut streams, device) = streams_on(Layout::of_slots(2, 1).unwrap(), 4096, 1);
    let mut source = ZoneList((10..20).collect());
    for round in 0..3 {
        // The pace of a disk: its batches are handed to the writer, until the pace shows a fast device.
        (0..16).for_each(|_| streams.pace.note(1 << 20, 20_000_000));
        for _ in 0..12 {
            append(&mut streams, &mut source, round % 2, 100, None).unwrap();
        }
        drain(&mut streams, &mut source);
    }
    // A batch written out of order is refused, and its blocks move.
    assert!(streams.txg_totals.moves.is_empty(), "{:?}", streams.txg_totals.moves);
    assert!(streams.txg_totals.written.len() > 2, "the canary: {:?}", streams.txg_totals.written);
    for (seq, written) in &streams.txg_totals.written {
        let report = device.report(ZoneIdx(seq.0 as u32)).unwrap();
        let is_finished = report.state == ZoneState::Full;
        assert!(is_finished || report.pointer == written.claimed, "zone {seq}: {report:?}");
    }
}

#[test]
fn a_zone_is_closed_only_when_another_takes_its_place() {
    let (mut streams, _) = streams();
    let mut source = ZoneList(vec![10, 11]);
    append(&mut streams, &mut source, 1, 850, None).unwrap();
    while streams.zone_of(0).is_none() || streams.free_bytes(0) > 60 << 10 {
        append(&mut streams, &mut source, 0, 16, None).unwrap();
    }
    let refused = append(&mut streams, &mut source, 0, 100, None).unwrap_err();
    assert!(matches!(refused, PoolError::NoSpace { .. }), "{refused}");
    assert_eq!(streams.zone_of(0), Some(ZoneSeq(10)), "little blocks still find it");
    assert!(append(&mut streams, &mut source, 0, 16, None).is_ok());
}

#[test]
fn a_big_file_skips_a_short_zone_tail() {
    let (mut streams, _) = streams();
    let mut source = ZoneList(vec![12, 11, 10]);
    let data = streams.layout().data().start;
    let first = append(&mut streams, &mut source, data, 940, None).unwrap();
    let big = Placement { file: 2, burst_bytes: 900 << 10, ..Placement::default() };
    let slot =
        streams.pick_data_slot(&big, (Heat::Cold, 4096), supply_of(ZoneSupply::Enough), Txg(9)).unwrap();
    assert_eq!((slot, streams.zone_of(slot)), (first.slot, Some(first.seq)), "zones are not plenty");
    let mut streams_of = |supply| {
        let slot = streams
            .pick_data_slot(&Placement { file: 3, ..big }, (Heat::Cold, 4096), supply, Txg(9))
            .unwrap();
        append(&mut streams, &mut source, slot, 60, None).unwrap().seq
    };
    let fresh = streams_of(supply_of(ZoneSupply::Plenty));
    assert_ne!(fresh, first.seq);
    assert_eq!([fresh; 3], [(); 3].map(|()| streams_of(supply_of(ZoneSupply::Plenty))), "and stays there");
    assert_eq!(streams.txg_totals.filled, vec![first.seq]);
}

#[test]
fn an_extra_slot_that_may_open_no_zone_does_not_keep_a_full_one() {
    let (mut streams, _) = streams_with(Layout::of_slots(2, 1).unwrap().with_extra_slots(4));
    let mut source = ZoneList(vec![13, 12, 11, 10]);
    let ample = Supply { zones: ZoneSupply::Plenty, extra_slots: 2 };
    let pick = |streams: &mut Streams, file, supply| {
        let placement = Placement { file, burst_bytes: 600 << 10, ..Placement::default() };
        streams.pick_data_slot(&placement, (Heat::Cold, 64 << 10), supply, Txg(9)).unwrap()
    };
    let a = pick(&mut streams, 1, ample);
    let full = append(&mut streams, &mut source, a, 940, None).unwrap().seq;
    let b = streams.layout().extra().find(|slot| *slot != a).unwrap();
    let half = append(&mut streams, &mut source, b, 400, None).unwrap().seq;
    let none = supply_of(ZoneSupply::Short);
    assert_eq!(pick(&mut streams, 2, none), b, "it has space");
    assert_eq!((streams.zone_of(a), streams.zone_of(b)), (None, Some(half)));
    assert_eq!(streams.txg_totals.filled, vec![full]);
}

#[test]
fn a_zone_takes_blocks_to_its_end() {
    let (mut streams, _) = streams();
    let mut source = ZoneList(vec![12, 11, 10]);
    while append(&mut streams, &mut source, 0, 4, None).unwrap().seq == ZoneSeq(10) {}
    drain(&mut streams, &mut source);
    let claimed = streams.txg_totals.written[&ZoneSeq(10)].claimed;
    assert_eq!(claimed, 1 << 20);
    // A single batch: its directory part and the header share a write unit.
    assert_eq!(streams.txg_totals.written[&ZoneSeq(10)].born_bytes, claimed - 4096);
}

#[test]
fn metadata_that_moves_is_counted_as_metadata() {
    let (mut streams, _) = streams();
    let mut source = ZoneList(vec![11, 10]);
    let owner = Owner::Block { objset: 1, object: 1, level: 1, block: 0 };
    for (nth, other_copies) in [Vec::new(), vec![Addr::new(ZoneSeq(4), 1 << 14)]].into_iter().enumerate() {
        let identity = Some(Addr::new(ZoneSeq(3), (1 + nth as u64) << 14));
        let block = Stored {
            bytes: &[7; 8192],
            identity,
            birth: Txg(3),
            owner,
            other_copies: &other_copies,
            near: &[],
            crc: 0,
            shares_run: false,
        };
        streams.append(0, ZoneClass::Collection, Txg(9), block, &mut source).unwrap();
    }
    drain(&mut streams, &mut source);
    let blocks = |class: ZoneClass| streams.counters.writes(class).blocks.get();
    assert_eq!((blocks(ZoneClass::Collection), blocks(ZoneClass::MetaA)), (1, 1));
}

#[test]
fn written_directory_parts_are_cached() {
    let (mut streams, device) = streams();
    let mut source = ZoneList(vec![11, 10]);
    fails(&device, 11);
    append(&mut streams, &mut source, 0, 16, None).unwrap();
    append(&mut streams, &mut source, 1, 16, None).unwrap();
    drain(&mut streams, &mut source);
    let end = streams.txg_totals.written[&ZoneSeq(10)].claimed;
    let own = streams
        .write_single_batch(0, ZoneClass::MetaA, Txg(9), terrane_format::directory::POOL_RECORD, &[7; 500])
        .unwrap();
    let check_cached = |end: u64| {
        let part = streams.parts().get(ZoneSeq(10), end).unwrap();
        let mut raw = vec![0; 4096];
        device.read(ZoneIdx(10), end - 4096, &mut raw).unwrap();
        let trailer = terrane_format::directory::parse_trailer(&raw, ZoneSeq(10), end).unwrap();
        let from = raw.len() - (end - trailer.part_start) as usize;
        let stored = terrane_format::directory::parse_part(1, &trailer, &raw[from..], end).unwrap();
        assert_eq!(
            (&part.entries, part.batch_start, part.previous, part.txg),
            (&stored.entries, stored.batch_start, stored.previous, stored.txg)
        );
    };
    check_cached(end);
    check_cached(own.2 + own.3);
    assert!(streams.parts().get(ZoneSeq(11), 24 << 10).is_none(), "what was not written is nowhere");
}

/// Both copies of a metadata block.
fn append_twice(
    streams: &mut Streams,
    source: &mut ZoneList,
    kib: usize,
) -> Result<[AppendLocation; 2], PoolError> {
    let bytes = vec![7; kib << 10];
    let owner = Owner::Block { objset: 1, object: 1, level: 1, block: 0 };
    let [a, b] = streams.layout().meta();
    let mut copy = |slot, class, other_copies: Vec<Addr>| {
        let near: Vec<ZoneSeq> = other_copies.iter().map(|addr| addr.seq()).collect();
        let block = Stored {
            bytes: &bytes,
            identity: None,
            birth: Txg(9),
            owner,
            other_copies: &other_copies,
            near: &near,
            crc: 0,
            shares_run: false,
        };
        streams.append(slot, class, Txg(9), block, source)
    };
    let first = copy(a, ZoneClass::MetaA, Vec::new())?;
    let second = copy(b, ZoneClass::MetaB, vec![Addr::new(first.seq, first.offset)])?;
    Ok([first, second])
}

/// Bytes that zones are counted on to take.
fn free_for_data(streams: &Streams, source: &ZoneList) -> u64 {
    let open: u64 = (0..streams.layout().slots()).map(|slot| streams.data_free_bytes(slot)).sum();
    open + source.0.len() as u64 * (700 << 10)
}

#[test]
fn metadata_finds_two_zones_whatever_data_took_before() {
    let mut last_zones = 0;
    for seed in 0..300 {
        let env = SeededEnv::new(seed);
        let below = |n: u64| env.random_u64() % n;
        let layout =
            [Layout::of_slots(2, 1), Layout::of_slots(3, 1), Layout::of_slots(5, 2)][seed as usize % 3];
        let layout = layout.unwrap();
        let (mut streams, _) = streams_with(layout);
        let mut source = ZoneList((10..11 + layout.slots() as u32 + below(3) as u32).collect());
        append_twice(&mut streams, &mut source, 4).unwrap();
        // Users and the collector take what they were promised, in any order, sometimes to the last byte.
        let kept = below(3) * (400 << 10);
        for n in 0u64.. {
            let kib = 1 + below(100);
            if free_for_data(&streams, &source) < kept + ((100 * layout.slots() as u64) << 10) {
                break;
            }
            let moved = (below(2) == 0).then(|| Addr::new(ZoneSeq(3), (1 + n) << 18));
            let slot = if moved.is_some() { layout.survivors(Age::Young) } else { layout.data().start };
            append(&mut streams, &mut source, slot, kib as usize, moved).unwrap();
        }
        last_zones += usize::from(source.0.is_empty());
        for _ in 0..8 {
            let [first, second] = append_twice(&mut streams, &mut source, 8).unwrap();
            assert_ne!(first.seq, second.seq, "seed {seed}, {:?}", source.0);
        }
    }
    assert!(last_zones > 50, "the canary: {last_zones}");
}

#[test]
fn moved_blocks_leave_what_the_commit_needs_even_if_empty_zones_take_no_writes() {
    /// Zones that count as empty, and take no writes.
    struct DeadZones(usize);

    impl ZoneSource for DeadZones {
        fn empty_zones(&self, _open: &[DeviceIdx]) -> usize {
            self.0
        }

        fn open_zone(
            &mut self,
            _class: ZoneClass,
            _special: bool,
            _open: &[DeviceIdx],
        ) -> Result<(OpenedZone, Arc<WriteBuffer>), PoolError> {
            self.0 = 0;
            Err(PoolError::NoSpace { need: 1, free: 0 })
        }
    }
    for (dead, kib, floor) in [(0, 4, 64 << 10), (3, 4, 64 << 10), (3, 50, 300 << 10), (1, 100, 500 << 10)] {
        let (mut streams, _) = streams_with(Layout::of_slots(2, 1).unwrap());
        append_twice(&mut streams, &mut ZoneList(vec![11, 10]), 4).unwrap();
        let mut source = DeadZones(dead);
        streams.set_commit_floor(floor);
        let moved = |n: u64| Some(Addr::new(ZoneSeq(3), n << 18));
        let mut count = 0;
        while append(&mut streams, &mut source, 0, kib, moved(count)).is_ok() {
            count += 1;
        }
        assert!(count > 5, "{dead} {kib} {floor}: {count} moved");
        // The ends of batches, and the second copies of parts.
        let before: u64 = (0..2).map(|slot| streams.free_bytes(slot)).sum();
        assert!(before >= floor, "{dead} {kib} {floor}: {before}");
        drain(&mut streams, &mut source);
        let parts: u64 = streams.txg_totals.moved_parts.iter().map(|(.., part)| part.len() as u64).sum();
        let left: u64 = (0..2).map(|slot| streams.free_bytes(slot)).sum();
        assert!(parts > 0 && left >= floor + parts, "{dead} {kib} {floor}: {left}, and {parts} of parts");
        // Others may use it, and rescued blocks have no choice.
        append(&mut streams, &mut source, 0, kib, None).unwrap();
        streams.set_commit_floor(0);
        append(&mut streams, &mut source, 0, kib, moved(count)).unwrap();
    }
}

#[test]
fn the_second_copy_finds_another_zone_while_there_is_one() {
    let (mut streams, _) = streams_with(Layout::of_slots(5, 2).unwrap());
    let mut source = ZoneList(vec![12, 11, 10]);
    append_twice(&mut streams, &mut source, 4).unwrap();
    append(&mut streams, &mut source, 4, 100, None).unwrap();
    append(&mut streams, &mut source, 1, 300, None).unwrap();
    // No other zone is empty. Second copies fill their own zone, then that of the data.
    let (mut elsewhere, mut shared) = (0, 0);
    while let Ok([first, second]) = append_twice(&mut streams, &mut source, 60) {
        elsewhere += usize::from(second.slot != 1 && first.seq != second.seq);
        shared += usize::from(first.seq == second.seq);
    }
    assert!(elsewhere > 0 && shared > 0, "{elsewhere} {shared}");
    assert_eq!(streams.txg_totals.colocated.len(), shared, "those that had to share are told of");
}

#[test]
fn slots_for_a_record_have_space_for_it() {
    let [mut apart, mut together, mut alone] = [0; 3];
    for (unit, filled, kib) in
        [4096, 16384].into_iter().flat_map(|unit| (0..18).map(move |n| (unit, 40 * (n % 3), 1 + 2 * n)))
    {
        let (mut streams, _) = streams_on(Layout::of_slots(2, 1).unwrap(), unit, 0);
        let mut source = ZoneList(vec![11, 10]);
        // One of two zones is nearly full.
        for (slot, bytes) in [(0, 800 << 10), (1, (800 + filled) << 10)] {
            append(&mut streams, &mut source, slot, bytes >> 10, None).unwrap();
        }
        let record = vec![7; kib << 10];
        loop {
            drain(&mut streams, &mut source);
            let slots = match streams.slots_for_record(Txg(9), record.len() as u64, &mut source) {
                Ok(slots) => slots,
                Err(PoolError::NoSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            };
            match slots[..] {
                [(a, _), (b, _)] if a != b => apart += 1,
                [_, _] => together += 1,
                _ => alone += 1,
            }
            for (slot, class) in slots {
                let written = streams.write_single_batch(
                    slot,
                    class,
                    Txg(9),
                    terrane_format::directory::POOL_RECORD,
                    &record,
                );
                assert!(written.is_ok(), "unit {unit}, {filled}, {kib} KiB: {}", written.unwrap_err());
            }
        }
    }
    assert!(apart > 50 && together > 10 && alone > 5, "the canary: {apart} {together} {alone}");
}

#[test]
fn both_copies_of_a_record_take_as_many_bytes_whatever_their_zones_hold() {
    for (unit, bytes) in
        [4096, 16384].into_iter().flat_map(|unit| (0..40).map(move |n| (unit, 100 + 500 * n)))
    {
        let (mut streams, _) = streams_on(Layout::of_slots(2, 1).unwrap(), unit, 0);
        let mut source = ZoneList(vec![11, 10]);
        let [first, _] = streams.layout().meta();
        append(&mut streams, &mut source, first, 4, None).unwrap();
        drain(&mut streams, &mut source);
        let slots = streams.slots_for_record(Txg(9), bytes as u64, &mut source).unwrap();
        let starts: Vec<u64> =
            slots.iter().map(|(slot, _)| streams.open[*slot].as_ref().unwrap().start).collect();
        assert!(starts[0] > 0 && starts[1] == 0, "the canary: one zone is new: {starts:?}");
        let padded: Vec<u64> = slots
            .into_iter()
            .map(|(slot, class)| {
                let record = vec![7; bytes];
                let place = streams.write_single_batch(
                    slot,
                    class,
                    Txg(9),
                    terrane_format::directory::POOL_RECORD,
                    &record,
                );
                place.unwrap().3
            })
            .collect();
        // If they differed, both copies would be written again, each in a new zone.
        assert_eq!(padded[0], padded[1], "unit {unit}, {bytes} bytes");
    }
}

#[test]
fn blocks_begin_right_behind_the_header() {
    let (mut streams, _) = streams();
    let mut source = ZoneList(vec![10]);
    let first = append(&mut streams, &mut source, 0, 4, None).unwrap();
    assert_eq!(first.offset, size_of::<terrane_format::zone_header::ZoneHeader>() as u64);
}

#[test]
fn metadata_reserve_follows_txgs_up_to_an_eighth() {
    let (mut streams, _) = streams();
    assert_eq!(streams.metadata_reserve(), 128 << 10, "an eighth of a small zone");
    streams.metadata.zone_bytes = 64 << 20;
    assert_eq!(streams.metadata_reserve(), 1 << 20);
    let mut source = ZoneList((10..30).collect());
    let mut write_txg = |streams: &mut Streams, blocks: usize| {
        for _ in 0..blocks {
            append_twice(streams, &mut source, 64).unwrap();
        }
        streams.take_txg_totals();
        streams.metadata_reserve()
    };
    assert_eq!(write_txg(&mut streams, 8), 2 << 20, "four such groups");
    assert_eq!(write_txg(&mut streams, 40), 8 << 20, "an eighth at the most");
    let mut last = 8 << 20;
    for n in 0..100 {
        let kept = write_txg(&mut streams, 1);
        assert!((last - last / 16..=last).contains(&kept), "{n}: step by step, {last}, {kept}");
        last = kept;
    }
    assert_eq!(last, 1 << 20);
}

#[test]
fn metadata_asks_for_the_next_zone_while_it_fills_its_own() {
    for (zone, kib, kept) in [(1 << 20, 4, 128 << 10), (64 << 20, 128, 1 << 20)] {
        let config = SimConfig { zone_count: 32, zone_size: zone, ..SimConfig::default() };
        let (mut streams, _) = streams_in(Layout::of_slots(2, 1).unwrap(), config, 0);
        let mut source = SizedZones(ZoneList(vec![11, 10]), zone);
        assert_eq!(streams.metadata_needs(0, zone), zone, "it has none");
        append(&mut streams, &mut source, 0, 16, None).unwrap();
        assert_eq!((streams.metadata_needs(0, zone), streams.metadata_reserve()), (0, kept));
        let (mut last, mut began) = (0, 0);
        while streams.free_bytes(0) > kept + ((4 * kib) << 10) as u64 {
            let free = streams.free_bytes(0);
            append(&mut streams, &mut source, 0, kib, None).unwrap();
            let needs = streams.metadata_needs(0, zone);
            assert!((last..last + zone / 8).contains(&needs), "step by step: {last}, {needs}");
            if last == 0 {
                began = free - kept;
            }
            last = needs;
        }
        assert!(began.abs_diff(zone / 8) < zone / 64, "it begins at {began} of {zone}");
        assert!(last > zone / 8 * 7, "{last} of {zone}");
    }
}
