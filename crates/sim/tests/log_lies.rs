//! A damaged intent log: what was promised comes back, or the import refuses. Only the last batch of a single copy cannot be told from
//! one that was never whole.

use std::sync::Arc;
use terrane_device::{Device, SimConfig, SimDevice, Survival, ZoneState};
use terrane_format::label::Role;
use terrane_format::log::{Batch, LogHead, LogHome};
use terrane_format::record::Home;
use terrane_oracle::Failure;
use terrane_sim::hostile::{forge_log_head, overwrite};
use terrane_sim::logged::actor::Actor;
use terrane_sim::logged::tree::Tree;
use terrane_sim::logged::world::{World, import};
use terrane_sim::logged::{finish, fresh};
use terrane_sim::machine::{Machine, Plan, log_devices_of, without_log_devices};
use terrane_wire::{DeviceIdx, Txg, ZoneIdx};

/// Batches behind the last commit.
const BATCHES: usize = 5;
const UNIT: u64 = 4096;

/// What a power cut has left of a pool with a log.
struct Log {
    left: SimDevice,
    /// That of the commit, and after each batch.
    trees: Vec<Tree>,
    /// The zone, on each device that has a copy.
    homes: Vec<LogHome>,
    /// The device and the zone of each.
    places: Vec<(SimDevice, ZoneIdx)>,
    /// Offsets and lengths of the batches behind the commit.
    batches: Vec<(u64, u64)>,
    /// Offset and length of an older one.
    older: (u64, u64),
    /// A zone with blocks, and one without.
    block_zone: ZoneIdx,
    empty_zone: ZoneIdx,
    /// The record was changed, so the directory of its zone has another checksum of it.
    is_forged: bool,
}

/// Where the log is.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Like zoned drives, or like files.
    drive: bool,
    two_copies: bool,
    /// On log devices, of which the second is of the other type.
    own: bool,
}

fn lent(drive: bool, two_copies: bool) -> Kind {
    Kind { drive, two_copies, own: false }
}

/// What an import found.
#[derive(Debug, PartialEq)]
enum Found {
    Refused,
    /// This many batches.
    Batches(usize),
}

const ALL: Found = Found::Batches(BATCHES);

fn one_batch(world: &mut World, name: &str) {
    let root = world.tree.model.root;
    let ino = world.create(root, name).unwrap().unwrap();
    world.write(ino, 0, terrane_wire::Prng::new(ino).random_bytes(9000)).unwrap();
    world.fsync(ino).unwrap();
}

impl Log {
    fn new(kind: Kind) -> Log {
        let Kind { drive, two_copies, own } = kind;
        let companions = (two_copies && !own).into();
        let plan = Plan { intent_log: true, drive, companions, log_devices: 2, ..Plan::small(2) };
        let mut world = fresh(&plan).unwrap();
        let mut own_devices = log_devices_of(&world.machine.device);
        if drive {
            own_devices.reverse();
        }
        for device in own_devices.into_iter().take(if own { 1 + usize::from(two_copies) } else { 0 }) {
            world.machine.pool.add_log_device(Arc::new(device)).unwrap();
        }
        one_batch(&mut world, "opens the log");
        one_batch(&mut world, "an older batch");
        one_batch(&mut world, "another one");
        world.sync().unwrap();
        let mut trees = vec![world.tree.after_remount()];
        let base = world.machine.durable_txg();
        for at in 0..BATCHES {
            one_batch(&mut world, &format!("file {at}"));
            trees.push(world.tree.after_remount());
        }
        assert_eq!(world.machine.durable_txg(), base, "the log was enough");
        let left = world.machine.device.restarted(Survival::Everything);
        let homes = world.machine.pool.log_zones()[0].homes.clone();
        assert_eq!(homes.len(), if two_copies { 2 } else { 1 });
        let ids = (world.machine.pool.id(), world.machine.pool.status().incarnation);
        let place = |home: &LogHome| {
            let (device, zone) = world.machine.log_place(home).unwrap();
            let all = std::iter::once(left.clone()).chain(left.companions());
            (all.into_iter().find(|left| left.info().name == device.info().name).unwrap(), zone)
        };
        let places: Vec<_> = homes.iter().map(place).collect();
        let mut raw = vec![0; 512 << 10];
        places[0].0.read(places[0].1, 0, &mut raw).unwrap();
        let (mut batches, mut at) = (Vec::new(), if own { UNIT } else { 0 });
        while let Some(batch) = Batch::parse(&raw[at as usize..], ids, at, UNIT) {
            batches.push((at, batch.stored_bytes, batch.head.newest_txg));
            at += batch.stored_bytes;
        }
        let older = (batches[0].0, batches[0].1);
        let batches = batches.into_iter().filter(|(.., txg)| *txg > base);
        let batches: Vec<(u64, u64)> = batches.map(|(at, len, _)| (at, len)).collect();
        assert_eq!(batches.len(), BATCHES);
        let used: Vec<ZoneIdx> = world.machine.pool.zones().iter().map(|zone| zone.home.zone).collect();
        let log_zones: Vec<ZoneIdx> = homes.iter().filter_map(|home| Some(home.lent()?.zone)).collect();
        let is_empty = |zone: &ZoneIdx| !used.contains(zone) && !log_zones.contains(zone);
        let (block_zone, empty_zone) = (used[0], (2..).map(ZoneIdx).find(is_empty).unwrap());
        Log { left, trees, homes, places, batches, older, block_zone, empty_zone, is_forged: false }
    }

    /// Changes the bytes of a batch in some copies: 0, 1 or both.
    fn rot(&self, nth: usize, copies: std::ops::Range<usize>) {
        let (at, len) = self.batches[nth];
        for (device, zone) in &self.places[copies] {
            device.rot(*zone, at + len / 2, &[4]).unwrap();
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        for (device, zone) in &self.places {
            // A drive takes bytes only at its pointer.
            let end = device.report(*zone).unwrap().pointer;
            let is_appended = device.info().hardware_pointers && at == end;
            match is_appended {
                true => {
                    device.write(*zone, at, bytes).unwrap();
                    device.flush().unwrap();
                }
                false => overwrite(device, *zone, at, bytes).unwrap(),
            }
        }
    }

    fn bytes(&self, (at, len): (u64, u64)) -> Vec<u8> {
        let mut raw = vec![0; len as usize];
        self.places[0].0.read(self.places[0].1, at, &mut raw).unwrap();
        raw
    }

    fn end(&self) -> u64 {
        let (at, len) = self.batches[BATCHES - 1];
        at + len
    }

    fn import(&self) -> Result<Machine, Failure> {
        if !self.is_forged {
            return import(&self.left, 5).map(|(machine, ..)| machine);
        }
        let mut machine = Machine::import_logged(&self.left, 5)?;
        machine.replay()?;
        machine.mount()?;
        Ok(machine)
    }

    /// Imports, and goes on with what is there.
    fn find(&self) -> Found {
        match self.import() {
            Ok(machine) => {
                let same = self.trees.iter().position(|tree| tree.compare(machine.fs()).is_ok());
                let batches = same.expect("the tree after some batch");
                self.go_on(World::new(machine, self.trees[batches].clone()));
                Found::Batches(batches)
            }
            Err(failure) => {
                assert!(failure.0.contains("intent log"), "{failure}");
                self.expect_discarded();
                Found::Refused
            }
        }
    }

    /// Without its log the pool is that of the commit.
    fn expect_discarded(&self) {
        let is_commit = |machine: &mut Machine| {
            machine.mount().unwrap();
            self.trees[0].compare(machine.fs()).unwrap();
        };
        is_commit(&mut Machine::import(&self.left.restarted(Survival::Everything), 6, true).unwrap());
        let mut machine = Machine::import_without_log(&self.left, 7).unwrap();
        assert!(self.is_forged || machine.check() == Ok(()));
        is_commit(&mut machine);
        self.go_on(World::new(machine, self.trees[0].clone()));
    }

    fn go_on(&self, mut world: World) {
        match self.is_forged {
            true => {
                Actor::new(8).run(&mut world, 40).unwrap();
                world.sync().unwrap();
                world.tree.compare(world.machine.fs()).unwrap();
            }
            false => _ = finish(world, Actor::new(8), 8).unwrap(),
        }
    }
}

/// On drives and files, with one copy and with two, lent and on log devices.
fn on_all_kinds(test: impl Fn(Kind)) {
    for at in 0..8 {
        test(Kind { drive: at & 1 > 0, two_copies: at & 2 > 0, own: at & 4 > 0 });
    }
}

#[test]
fn a_whole_log_comes_back() {
    on_all_kinds(|kind| assert_eq!(Log::new(kind).find(), ALL));
}

#[test]
fn rot_in_the_middle_is_refused_unless_another_copy_is_whole() {
    on_all_kinds(|kind| {
        for nth in 0..BATCHES - 1 {
            let log = Log::new(kind);
            log.rot(nth, 0..log.homes.len());
            assert_eq!(log.find(), Found::Refused, "batch {nth}, {kind:?}");
        }
    });
    for (drive, nth, copy) in
        [(false, 0, 0), (false, 2, 1), (true, 2, 0), (true, 3, 1), (false, 4, 0), (true, 4, 1)]
    {
        let log = Log::new(lent(drive, true));
        log.rot(nth, copy..copy + 1);
        assert_eq!(log.find(), ALL, "batch {nth} in copy {copy} of a drive {drive}");
    }
    // Each batch is whole in one of the copies.
    let log = Log::new(lent(false, true));
    (0..BATCHES).for_each(|nth| log.rot(nth, nth % 2..nth % 2 + 1));
    assert_eq!(log.find(), ALL);
}

#[test]
fn rot_of_the_last_batch_looks_as_if_it_had_never_been_whole() {
    on_all_kinds(|kind| {
        let log = Log::new(kind);
        log.rot(BATCHES - 1, 0..log.homes.len());
        assert_eq!(log.find(), Found::Batches(BATCHES - 1), "{kind:?}");
    });
}

#[test]
fn a_torn_batch_is_left_out_as_a_whole() {
    on_all_kinds(|kind| {
        let log = Log::new(kind);
        let (at, len) = log.batches[BATCHES - 1];
        assert!(len > UNIT);
        log.put(at + UNIT, &vec![0; (len - UNIT) as usize]);
        assert_eq!(log.find(), Found::Batches(BATCHES - 1), "the end of the last one, {kind:?}");
        let log = Log::new(kind);
        log.put(at, &vec![0; UNIT as usize]);
        assert_eq!(log.find(), Found::Batches(BATCHES - 1), "the start of the last one, {kind:?}");
    });
}

#[test]
fn batches_of_an_older_filling_are_not_taken_for_new_ones() {
    on_all_kinds(|kind| {
        let log = Log::new(kind);
        log.put(log.end(), &log.bytes(log.older));
        assert_eq!(log.find(), ALL, "{kind:?}");
    });
}

#[test]
fn a_batch_is_valid_only_where_it_was_written() {
    on_all_kinds(|kind| {
        // The last one again behind itself, and one of the middle.
        for nth in [BATCHES - 1, 2] {
            let log = Log::new(kind);
            log.put(log.end(), &log.bytes(log.batches[nth]));
            assert_eq!(log.find(), ALL, "batch {nth} behind the end, {kind:?}");
        }
        // One in the place of another.
        let log = Log::new(kind);
        assert_eq!(log.batches[1].1, log.batches[2].1);
        log.put(log.batches[1].0, &log.bytes(log.batches[2]));
        assert_eq!(log.find(), Found::Refused, "{kind:?}");
    });
}

#[test]
fn a_zone_that_cannot_be_read_is_refused_unless_there_is_another_copy() {
    on_all_kinds(|kind| {
        for (copy, state) in [(0, ZoneState::Offline), (1, ZoneState::Offline), (0, ZoneState::ReadOnly)] {
            let log = Log::new(kind);
            let Some((device, zone)) = log.places.get(copy) else { continue };
            device.kill_zone(*zone, state).unwrap();
            let expected = if kind.two_copies || state == ZoneState::ReadOnly { ALL } else { Found::Refused };
            assert_eq!(log.find(), expected, "{state:?} in copy {copy}, {kind:?}");
        }
    });
}

fn lent_home(head: &mut LogHead) -> &mut Home {
    match &mut head.zones[0].homes[0] {
        LogHome::Lent(home) => home,
        LogHome::Own { .. } => panic!("the log is on a log device"),
    }
}

#[test]
fn a_forged_head_does_no_harm() {
    type Forgery = (&'static str, fn(&Log, &mut LogHead), Found);
    let none = || Found::Batches(0);
    let forgeries: Vec<Forgery> = vec![
        ("nothing", |_, _| (), ALL),
        ("the next number", |_, head| head.number += 1, Found::Refused),
        ("the number before", |_, head| head.number -= 1, Found::Refused),
        ("an offset within the batch", |_, head| head.offset += UNIT, Found::Refused),
        ("no multiple of a unit", |_, head| head.offset += 1, Found::Refused),
        ("an offset behind the zone", |_, head| head.offset = 1 << 30, Found::Refused),
        ("another predecessor", |_, head| head.chain[0] ^= 1, Found::Refused),
        // A commit cannot contain what was logged after it.
        ("later txgs", |_, head| head.after = Txg(head.after.0 + 1), Found::Refused),
        ("earlier txgs", |_, head| head.after = Txg(head.after.0 - 1), ALL),
        ("replayed in part", |_, head| head.replayed = 1 << 40, Found::Refused),
        // The larger unit makes up for the bytes of the zones.
        (
            "no zone",
            |_, head| {
                head.zones.clear();
                head.unit = 1 << 20;
            },
            Found::Refused,
        ),
        // Nothing can show that there was a log.
        ("another incarnation", |_, head| head.incarnation += 1, none()),
        ("an empty zone", |log, head| lent_home(head).zone = log.empty_zone, none()),
        ("a zone with blocks", |log, head| lent_home(head).zone = log.block_zone, Found::Refused),
        ("an anchor", |_, head| lent_home(head).zone = ZoneIdx(0), Found::Refused),
        ("no such zone", |_, head| lent_home(head).zone = ZoneIdx(1 << 20), Found::Refused),
        ("no such device", |_, head| lent_home(head).device = DeviceIdx(7), Found::Refused),
        (
            "one zone twice",
            |_, head| {
                let again = head.zones[0].clone();
                head.zones.push(again);
            },
            ALL,
        ),
        (
            "one copy twice",
            |_, head| {
                let again = head.zones[0].homes[0];
                head.zones[0].homes.push(again);
            },
            ALL,
        ),
    ];
    for drive in [false, true] {
        for (what, forge, expected) in &forgeries {
            let log = Log { is_forged: true, ..Log::new(lent(drive, false)) };
            forge_log_head(&log.left, |head| forge(&log, head)).unwrap();
            assert_eq!(log.find(), *expected, "{what}, drive {drive}");
        }
    }
}

/// Batches are whole units of the largest device, also of one that joined when the log had begun.
#[test]
fn a_device_with_larger_units_joins_and_no_batch_is_lost() {
    let plan = Plan { intent_log: true, drive: false, ..Plan::small(2) };
    let mut world = fresh(&plan).unwrap();
    one_batch(&mut world, "opens the log");
    one_batch(&mut world, "before");
    let joining = SimDevice::new(SimConfig { write_unit: 16 << 10, ..SimConfig::default() }).unwrap();
    let device = world.machine.device.clone();
    device.share_power(vec![joining.clone()]);
    world.machine.pool.add_device(Arc::new(joining), Role::Data).unwrap();
    let check = |world: &mut World, at: u64| {
        let left = device.restarted(Survival::Nothing);
        world.check_cut(&left, at, true).unwrap_or_else(|failure| panic!("after {at}: {failure}"));
    };
    for at in 0..40 {
        one_batch(&mut world, &format!("file {at}"));
        check(&mut world, at);
        if at % 10 == 5 {
            world.sync().unwrap();
            check(&mut world, at);
        }
    }
    assert!(world.seen.logged > 35, "{:?}", world.seen);
}

/// A log device is the same one, at the state that the commit has seen or a later one; else the import refuses.
#[test]
fn a_lost_or_exchanged_log_device_is_refused() {
    for drive in [false, true] {
        let kind = Kind { drive, two_copies: false, own: true };
        let log = Log::new(kind);
        let lost = Log { left: without_log_devices(&log.left, |_| true), ..Log::new(kind) };
        assert_eq!(lost.find(), Found::Refused, "{kind:?}");
        // That of a pool which is made in the same way, but has another id.
        let other =
            Machine::create(&Plan { log_devices: 2, drive, intent_log: true, ..Plan::small(4) }).unwrap();
        let foreign = log_devices_of(&other.device).remove(usize::from(drive));
        other.pool.add_log_device(Arc::new(foreign.clone())).unwrap();
        let exchanged = Log { left: without_log_devices(&log.left, |_| true), ..Log::new(kind) };
        exchanged.left.share_power(vec![foreign]);
        assert_eq!(exchanged.find(), Found::Refused, "{kind:?}");
    }
}

#[test]
fn an_older_copy_of_a_log_device_is_refused() {
    for drive in [false, true] {
        let plan = Plan { log_devices: 2, drive, intent_log: true, ..Plan::small(2) };
        let mut world = fresh(&plan).unwrap();
        let own = log_devices_of(&world.machine.device).remove(usize::from(drive));
        world.machine.pool.add_log_device(Arc::new(own.clone())).unwrap();
        let mut copies = vec![own.snapshot()];
        one_batch(&mut world, "opens the log");
        for name in ["one", "two", "three"] {
            copies.push(own.snapshot());
            one_batch(&mut world, name);
        }
        world.sync().unwrap();
        let left = world.machine.device.restarted(Survival::Everything);
        for (nth, old) in copies.iter().enumerate() {
            let left = without_log_devices(&left, |_| true);
            left.share_power(vec![old.restarted(Survival::Everything)]);
            let refused = import(&left, 5).err().expect("an older copy was taken for the device");
            assert!(refused.0.contains("older copy"), "copy {nth}, drive {drive}: {refused}");
        }
        assert!(import(&left, 5).is_ok());
    }
}
