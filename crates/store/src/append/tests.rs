use super::*;
use crate::env::{Env, SeededEnv};
use terrane_device::{Fault, SimConfig, SimDevice, ZoneState};
use terrane_format::record::Run;
use terrane_wire::ZoneIdx;

/// Hands out the zones in order, until none is left.
struct Shelf(Vec<u32>);

impl ZoneSource for Shelf {
    fn empty_zones(&self, _open: &[DeviceIdx]) -> usize {
        self.0.len()
    }

    fn open_zone(
        &mut self,
        class: Class,
        _special: bool,
        _open: &[DeviceIdx],
    ) -> Result<(Opened, Arc<Gather>), PoolError> {
        let zone = self.0.pop().ok_or(PoolError::NoSpace { need: 1, free: 0 })?;
        let home = Home { device: DeviceIdx(0), zone: ZoneIdx(zone) };
        let opened = Opened { seq: ZoneSeq(u64::from(zone)), class, home, capacity: 1 << 20 };
        Ok((opened, Arc::default()))
    }
}

/// The same, with zones of the given capacity.
struct Wide(Shelf, u64);

impl ZoneSource for Wide {
    fn empty_zones(&self, open: &[DeviceIdx]) -> usize {
        self.0.empty_zones(open)
    }

    fn open_zone(
        &mut self,
        class: Class,
        special: bool,
        open: &[DeviceIdx],
    ) -> Result<(Opened, Arc<Gather>), PoolError> {
        let (opened, gather) = self.0.open_zone(class, special, open)?;
        Ok((Opened { capacity: self.1, ..opened }, gather))
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
) -> Result<Spot, PoolError> {
    let bytes = vec![7; kib << 10];
    let (birth, class) = match identity {
        None => (Txg(9), Class::Data),
        Some(_) => (Txg(3), Class::Collection),
    };
    let owner = Owner::Block { objset: 1, object: 1, level: 0, block: 0 };
    let block = Stored {
        bytes: &bytes,
        identity,
        birth,
        owner,
        siblings: Vec::new(),
        near: Vec::new(),
        crc: 0,
        joins: true,
    };
    streams.append(slot, class, Txg(9), block, source)
}

fn fails(device: &SimDevice, zone: u32) {
    device.inject(Fault::WriteError { zone: Some(ZoneIdx(zone)), one_in: 1, partial: false });
}

#[test]
fn a_run_of_rescued_blocks_holds_none_that_went_to_another_slot() {
    let (mut streams, device) = streams();
    let mut source = Shelf(vec![12, 10, 11]);
    fails(&device, 10);
    append(&mut streams, &mut source, 1, 4, None).unwrap();
    // A batch that fails, of small and large blocks.
    let born: Vec<Spot> =
        (0..10).map(|n| append(&mut streams, &mut source, 0, [8, 100][n % 2], None).unwrap()).collect();
    assert!(born.iter().all(|spot| spot.seq == ZoneSeq(10)));
    streams.seal(0, Txg(9)).unwrap();
    streams.wait();
    // The last zone has space for the small blocks only, beside what is kept for metadata.
    while streams.room(0) == 0 || streams.room(0) > 190 << 10 {
        let spot = append(&mut streams, &mut source, 0, 8, None).unwrap();
        assert_eq!(spot.seq, ZoneSeq(12), "what failed takes no more");
    }
    drain(&mut streams, &mut source);
    let runs: Vec<Run> = streams.group.moves.iter().map(|moved| moved.run).collect();
    let homes: std::collections::BTreeSet<ZoneSeq> = runs.iter().map(|run| run.dest).collect();
    assert_eq!(homes.len(), 2, "the canary: they fit no single zone: {runs:?}");
    for spot in born {
        let granule = Addr::new(spot.seq, spot.offset).granule();
        let holding = runs.iter().filter(|run| run.first <= granule && granule <= run.last).count();
        assert_eq!(holding, 1, "granule {granule} in {runs:?}");
    }
}

#[test]
fn blocks_that_should_have_moved_with_a_failed_batch_need_no_room() {
    let (mut streams, device) = streams();
    let mut source = Shelf(vec![10]);
    fails(&device, 10);
    let old: Vec<Addr> = (0..80).map(|n| Addr::new(ZoneSeq(3), (1 + n) << 14)).collect();
    // Until the failure is known. The zone then takes no more, and there is no other.
    let moves = old.iter().map(|addr| append(&mut streams, &mut source, 1, 16, Some(*addr)));
    let moved = moves.take_while(Result::is_ok).count();
    drain(&mut streams, &mut source);
    assert!(streams.group.moves.is_empty() && streams.group.carried.is_empty());
    let stayed: Vec<Addr> = streams.group.stayed.iter().map(|(addr, _)| *addr).collect();
    assert!((10..80).contains(&moved), "the canary: {moved}");
    assert_eq!(stayed, old[..moved]);
    assert_eq!(streams.group.written[&ZoneSeq(10)].claimed, 0);
    // A new block is refused, and nothing changes.
    let refused = append(&mut streams, &mut source, 0, 16, None).unwrap_err();
    assert!(matches!(refused, PoolError::NoSpace { .. }), "{refused}");
}

#[test]
fn one_processor_writes_in_order_whoever_does_it() {
    let (mut streams, device) = streams_on(Layout::of_slots(2, 1).unwrap(), 4096, 1);
    let mut source = Shelf((10..20).collect());
    for round in 0..3 {
        // The pace of a disk: its batches are handed to the writer, until the pace shows a fast device.
        (0..16).for_each(|_| streams.pace.note(1 << 20, 20_000_000));
        for _ in 0..12 {
            append(&mut streams, &mut source, round % 2, 100, None).unwrap();
        }
        drain(&mut streams, &mut source);
    }
    // A batch written out of order is refused, and its blocks move.
    assert!(streams.group.moves.is_empty(), "{:?}", streams.group.moves);
    assert!(streams.group.written.len() > 2, "the canary: {:?}", streams.group.written);
    for (seq, written) in &streams.group.written {
        let report = device.report(ZoneIdx(seq.0 as u32)).unwrap();
        let is_finished = report.state == ZoneState::Full;
        assert!(is_finished || report.pointer == written.claimed, "zone {seq}: {report:?}");
    }
}

#[test]
fn a_zone_is_closed_only_when_another_takes_its_place() {
    let (mut streams, _) = streams();
    let mut source = Shelf(vec![10, 11]);
    append(&mut streams, &mut source, 1, 850, None).unwrap();
    while streams.zone_of(0).is_none() || streams.room(0) > 60 << 10 {
        append(&mut streams, &mut source, 0, 16, None).unwrap();
    }
    let refused = append(&mut streams, &mut source, 0, 100, None).unwrap_err();
    assert!(matches!(refused, PoolError::NoSpace { .. }), "{refused}");
    assert_eq!(streams.zone_of(0), Some(ZoneSeq(10)), "little blocks still find it");
    assert!(append(&mut streams, &mut source, 0, 16, None).is_ok());
}

#[test]
fn a_big_file_leaves_the_scrap_of_a_zone_and_lies_in_the_next_one_whole() {
    let (mut streams, _) = streams();
    let mut source = Shelf(vec![12, 11, 10]);
    let first = append(&mut streams, &mut source, 0, 940, None).unwrap();
    let big = Placement { file: 2, burst_bytes: 900 << 10, ..Placement::default() };
    let slot = streams.place(&big, (Heat::Cold, 4096), Stock::Enough, Txg(9)).unwrap();
    assert_eq!((slot, streams.zone_of(slot)), (first.slot, Some(first.seq)), "zones are not plenty");
    let mut streams_of = |stock| {
        let slot = streams.place(&Placement { file: 3, ..big }, (Heat::Cold, 4096), stock, Txg(9)).unwrap();
        append(&mut streams, &mut source, slot, 60, None).unwrap().seq
    };
    let fresh = streams_of(Stock::Plenty);
    assert_ne!(fresh, first.seq);
    assert_eq!([fresh; 3], [(); 3].map(|()| streams_of(Stock::Plenty)), "and stays there");
    assert_eq!(streams.group.filled, vec![first.seq]);
}

#[test]
fn a_zone_takes_blocks_to_its_end() {
    let (mut streams, _) = streams();
    let mut source = Shelf(vec![12, 11, 10]);
    while append(&mut streams, &mut source, 0, 4, None).unwrap().seq == ZoneSeq(10) {}
    drain(&mut streams, &mut source);
    let claimed = streams.group.written[&ZoneSeq(10)].claimed;
    assert_eq!(claimed, 1 << 20);
    // A single batch: its directory part and the header share a write unit.
    assert_eq!(streams.group.written[&ZoneSeq(10)].born, claimed - 4096);
}

#[test]
fn metadata_that_moves_is_counted_as_metadata() {
    let (mut streams, _) = streams();
    let mut source = Shelf(vec![11, 10]);
    let owner = Owner::Block { objset: 1, object: 1, level: 1, block: 0 };
    for (nth, siblings) in [Vec::new(), vec![Addr::new(ZoneSeq(4), 1 << 14)]].into_iter().enumerate() {
        let identity = Some(Addr::new(ZoneSeq(3), (1 + nth as u64) << 14));
        let block = Stored {
            bytes: &[7; 8192],
            identity,
            birth: Txg(3),
            owner,
            siblings,
            near: Vec::new(),
            crc: 0,
            joins: false,
        };
        streams.append(0, Class::Collection, Txg(9), block, &mut source).unwrap();
    }
    drain(&mut streams, &mut source);
    let blocks = |class: Class| streams.counters.writes(class).blocks.get();
    assert_eq!((blocks(Class::Collection), blocks(Class::MetaA)), (1, 1));
}

#[test]
fn the_parts_of_what_was_written_are_at_hand() {
    let (mut streams, device) = streams();
    let mut source = Shelf(vec![11, 10]);
    fails(&device, 11);
    append(&mut streams, &mut source, 0, 16, None).unwrap();
    append(&mut streams, &mut source, 1, 16, None).unwrap();
    drain(&mut streams, &mut source);
    let end = streams.group.written[&ZoneSeq(10)].claimed;
    let own = streams
        .write_alone(0, Class::MetaA, Txg(9), terrane_format::directory::POOL_RECORD, &[7; 500])
        .unwrap();
    let at_hand = |end: u64| {
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
    at_hand(end);
    at_hand(own.2 + own.3);
    assert!(streams.parts().get(ZoneSeq(11), 24 << 10).is_none(), "what was not written is nowhere");
}

/// Both copies of a metadata block.
fn append_twice(streams: &mut Streams, source: &mut Shelf, kib: usize) -> Result<[Spot; 2], PoolError> {
    let bytes = vec![7; kib << 10];
    let owner = Owner::Block { objset: 1, object: 1, level: 1, block: 0 };
    let [a, b] = streams.layout().meta();
    let mut copy = |slot, class, siblings: Vec<Addr>| {
        let near = siblings.iter().map(|addr| addr.seq()).collect();
        let block = Stored {
            bytes: &bytes,
            identity: None,
            birth: Txg(9),
            owner,
            siblings,
            near,
            crc: 0,
            joins: false,
        };
        streams.append(slot, class, Txg(9), block, source)
    };
    let first = copy(a, Class::MetaA, Vec::new())?;
    let second = copy(b, Class::MetaB, vec![Addr::new(first.seq, first.offset)])?;
    Ok([first, second])
}

/// Bytes that zones are counted on to take.
fn room_for_data(streams: &Streams, source: &Shelf) -> u64 {
    let open: u64 = (0..streams.layout().slots()).map(|slot| streams.room_for_data(slot)).sum();
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
        let mut source = Shelf((10..11 + layout.slots() as u32 + below(3) as u32).collect());
        append_twice(&mut streams, &mut source, 4).unwrap();
        // Users and the collector take what they were promised, in any order, sometimes to the last byte.
        let kept = below(3) * (400 << 10);
        for n in 0u64.. {
            let kib = 1 + below(100);
            if room_for_data(&streams, &source) < kept + ((100 * layout.slots() as u64) << 10) {
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
fn the_second_copy_finds_another_zone_while_there_is_one() {
    let (mut streams, _) = streams_with(Layout::of_slots(5, 2).unwrap());
    let mut source = Shelf(vec![12, 11, 10]);
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
    assert_eq!(streams.group.shared.len(), shared, "those that had to share are told of");
}

#[test]
fn room_that_was_made_for_a_record_takes_it() {
    let [mut apart, mut together, mut alone] = [0; 3];
    for (unit, filled, kib) in
        [4096, 16384].into_iter().flat_map(|unit| (0..18).map(move |n| (unit, 40 * (n % 3), 1 + 2 * n)))
    {
        let (mut streams, _) = streams_on(Layout::of_slots(2, 1).unwrap(), unit, 0);
        let mut source = Shelf(vec![11, 10]);
        // One of two zones is nearly full.
        for (slot, bytes) in [(0, 800 << 10), (1, (800 + filled) << 10)] {
            append(&mut streams, &mut source, slot, bytes >> 10, None).unwrap();
        }
        let record = vec![7; kib << 10];
        loop {
            drain(&mut streams, &mut source);
            let slots = match streams.room_for_record(Txg(9), record.len() as u64, &mut source) {
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
                let written =
                    streams.write_alone(slot, class, Txg(9), terrane_format::directory::POOL_RECORD, &record);
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
        let mut source = Shelf(vec![11, 10]);
        append(&mut streams, &mut source, 0, 4, None).unwrap();
        drain(&mut streams, &mut source);
        let slots = streams.room_for_record(Txg(9), bytes as u64, &mut source).unwrap();
        let starts: Vec<u64> =
            slots.iter().map(|(slot, _)| streams.open[*slot].as_ref().unwrap().start).collect();
        assert!(starts[0] > 0 && starts[1] == 0, "the canary: one zone is new: {starts:?}");
        let padded: Vec<u64> = slots
            .into_iter()
            .map(|(slot, class)| {
                let record = vec![7; bytes];
                let place =
                    streams.write_alone(slot, class, Txg(9), terrane_format::directory::POOL_RECORD, &record);
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
    let mut source = Shelf(vec![10]);
    let first = append(&mut streams, &mut source, 0, 4, None).unwrap();
    assert_eq!(first.offset, size_of::<terrane_format::zone_header::ZoneHeader>() as u64);
}

#[test]
fn metadata_keeps_what_groups_bring_and_no_more_than_an_eighth() {
    let (mut streams, _) = streams();
    assert_eq!(streams.kept_for_metadata(), 128 << 10, "an eighth of a small zone");
    streams.metadata.zone_bytes = 64 << 20;
    assert_eq!(streams.kept_for_metadata(), 1 << 20);
    let mut source = Shelf((10..30).collect());
    let mut group = |streams: &mut Streams, blocks: usize| {
        for _ in 0..blocks {
            append_twice(streams, &mut source, 64).unwrap();
        }
        streams.take_group();
        streams.kept_for_metadata()
    };
    assert_eq!(group(&mut streams, 8), 2 << 20, "four such groups");
    assert_eq!(group(&mut streams, 40), 8 << 20, "an eighth at the most");
    let mut last = 8 << 20;
    for n in 0..100 {
        let kept = group(&mut streams, 1);
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
        let mut source = Wide(Shelf(vec![11, 10]), zone);
        assert_eq!(streams.metadata_needs(0, zone), zone, "it has none");
        append(&mut streams, &mut source, 0, 16, None).unwrap();
        assert_eq!((streams.metadata_needs(0, zone), streams.kept_for_metadata()), (0, kept));
        let (mut last, mut began) = (0, 0);
        while streams.room(0) > kept + ((4 * kib) << 10) as u64 {
            let room = streams.room(0);
            append(&mut streams, &mut source, 0, kib, None).unwrap();
            let needs = streams.metadata_needs(0, zone);
            assert!((last..last + zone / 8).contains(&needs), "step by step: {last}, {needs}");
            if last == 0 {
                began = room - kept;
            }
            last = needs;
        }
        assert!(began.abs_diff(zone / 8) < zone / 64, "it begins at {began} of {zone}");
        assert!(last > zone / 8 * 7, "{last} of {zone}");
    }
}
