//! A data set with so many snapshots that an import does not read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrane_dataset::stored::{StoredDataset, list_parts};
use terrane_dataset::{DatasetError, Datasets};
use terrane_device::SimDevice;
use terrane_posix::{Errno, Fs, Ino, SetAttr, WriteFlags};
use terrane_sim::machine::{Machine, Plan, ROOT};
use terrane_sim::seeds::seeds;
use terrane_txg::cost::Cost;
use terrane_wire::{ObjectId, Prng};

const SNAPSHOTS: usize = 300;
const FILES: usize = 8;

/// The content of all files.
type Files = Vec<Vec<u8>>;

struct World {
    machine: Machine,
    datasets: Arc<Datasets>,
    fs: Arc<Fs>,
    random: Prng,
    head: Files,
    /// Of each snapshot, oldest first.
    snapshots: Vec<(String, Files)>,
}

fn content(fs: &Fs) -> Files {
    let read = |name: usize| {
        let attr = fs.lookup(fs.root(), format!("f{name}").as_bytes()).unwrap();
        let mut bytes = Vec::new();
        fs.read(attr.ino, 0, attr.size as u32, &mut bytes).unwrap();
        fs.forget(attr.ino, 1);
        bytes
    };
    (0..FILES).map(read).collect()
}

impl World {
    fn new(seed: u64) -> World {
        // The destruction of 300 snapshots reserves 50 MiB.
        let machine = Machine::create(&Plan { zones: 192, ..Plan::small(seed) }).unwrap();
        let mut world = World::of(machine, seed, vec![Vec::new(); FILES], Vec::new());
        for name in 0..FILES {
            let ino =
                world.fs.create(world.fs.root(), format!("f{name}").as_bytes(), 0o644, &ROOT).unwrap().ino;
            world.fs.forget(ino, 1);
            world.write(name);
        }
        for number in 0..SNAPSHOTS {
            if number % 3 == 0 {
                world.write_any();
            }
            world.take(&format!("s{number}"));
        }
        world
    }

    fn of(machine: Machine, seed: u64, head: Files, snapshots: Vec<(String, Files)>) -> World {
        let datasets = Datasets::open(&machine.objects).unwrap();
        let fs = Fs::open(datasets.open_dataset("").unwrap()).unwrap();
        World { machine, datasets, fs, random: Prng::new(seed), head, snapshots }
    }

    /// Imports the pool again, with or without power cut. What is not committed is lost.
    fn import_again(self, seed: u64, cuts_power: bool) -> World {
        let World { machine, datasets, fs, head, snapshots, .. } = self;
        fs.forget_all();
        drop((fs, datasets));
        let device = if cuts_power { power_cut(machine, seed) } else { machine.export().unwrap() };
        World::of(Machine::import(&device, seed, false).unwrap(), seed, head, snapshots)
    }

    fn write(&mut self, name: usize) {
        let ino = self.fs.lookup(self.fs.root(), format!("f{name}").as_bytes()).unwrap().ino;
        let bytes: Vec<u8> = (0..20_000).map(|_| self.random.next_u64() as u8).collect();
        self.fs.write(ino, 0, &bytes, WriteFlags::default()).unwrap();
        self.fs.forget(ino, 1);
        self.head[name] = bytes;
        self.machine.pool.commit().unwrap();
    }

    fn write_any(&mut self) {
        let [name, source] = [(); 2].map(|()| self.random.below(FILES as u64) as usize);
        if name == source || self.random.one_in(2) { self.write(name) } else { self.copy(source, name) }
    }

    /// Both share the blocks.
    fn copy(&mut self, source: usize, name: usize) {
        let [from, to] = [source, name].map(|name| {
            let ino = self.fs.lookup(self.fs.root(), format!("f{name}").as_bytes()).unwrap().ino;
            self.fs.forget(ino, 1);
            ino
        });
        self.fs.copy_range(from, 0, to, 0, self.head[source].len() as u64).unwrap();
        self.head[name] = self.head[source].clone();
        self.machine.pool.commit().unwrap();
    }

    fn take(&mut self, name: &str) {
        self.datasets.snapshot(&[("", name)]).unwrap();
        self.snapshots.push((name.to_string(), self.head.clone()));
    }

    fn destroy(&mut self, is_chosen: impl Fn(usize) -> bool) {
        let mut at = 0;
        let (gone, stay) = std::mem::take(&mut self.snapshots).into_iter().partition(|_| {
            at += 1;
            is_chosen(at - 1)
        });
        self.snapshots = stay;
        let gone: Vec<(String, Files)> = gone;
        let names: Vec<&str> = gone.iter().map(|(name, _)| name.as_str()).collect();
        self.datasets.destroy_snapshots("", &names).unwrap();
        self.machine.pool.commit().unwrap();
    }

    /// Writes a file until the pool is full. Returns it and its size.
    fn fill(&mut self) -> (Ino, u64) {
        let big = self.fs.create(self.fs.root(), b"big", 0o644, &ROOT).unwrap().ino;
        let (noise, mut written) = (self.random.random_bytes(1 << 20), 0);
        let full = loop {
            match self.fs.write(big, written, &noise, WriteFlags::default()) {
                Ok(bytes) => written += u64::from(bytes),
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno::ENOSPC);
        self.machine.pool.commit().unwrap();
        (big, written)
    }

    fn settle(&self) {
        let pool = &self.machine.pool;
        for _ in 0..2000 {
            pool.commit_txg(pool.open_txg()).unwrap();
            if !pool.has_work_left() {
                return;
            }
        }
        panic!("the pool never comes to rest");
    }

    /// The pool is clean, and head and snapshots are as they should be.
    fn check(&self, when: &str) {
        self.machine.check().unwrap_or_else(|failure| panic!("{when}: {failure:?}"));
        assert_eq!(content(&self.fs), self.head, "{when}");
        for (name, files) in self.snapshots.iter().step_by(7).chain(self.snapshots.last()) {
            let snapshot = Fs::open(self.datasets.open_snapshot("", name).unwrap()).unwrap();
            assert_eq!(content(&snapshot), *files, "{when}, {name}");
            snapshot.forget_all();
        }
    }
}

fn power_cut(machine: Machine, seed: u64) -> SimDevice {
    machine.abandon().after_power_loss(seed)
}

/// Overwrites before the snapshots are read keep what those refer to, and lose no space.
#[test]
fn overwrites_go_on_before_the_snapshots_are_read() {
    for seed in seeds(4) {
        let mut world = World::new(seed);
        world.settle();
        world.check("before");
        assert!(world.machine.objects.shared().totals().references > 10);
        // Blocks that no snapshot refers to, and that are older than the import.
        (0..FILES).for_each(|name| world.write(name));
        let mut world = world.import_again(seed + 1, seed % 2 == 0);
        for _ in 0..12 {
            world.write_any();
        }
        world.check("unread");
        let mut world = world.import_again(seed + 2, seed % 4 < 2);
        world.check("unread, imported again");
        world.write_any();
        // This reads them.
        assert!(world.datasets.space("").unwrap().is_counting);
        world.settle();
        let space = world.datasets.space("").unwrap();
        assert!(!space.is_counting);
        assert_eq!(space.snapshots.len(), SNAPSHOTS);
        world.check("read");
        world.take("last");
        world.write_any();
        world.destroy(|at| at % 5 != 2 && at < SNAPSHOTS);
        world.check("being freed");
        world.settle();
        world.check("freed");
        world.destroy(|_| true);
        world.settle();
        world.check("without snapshots");
        assert_eq!(world.datasets.space("").unwrap().by_snapshots, 0);
    }
}

/// Each operation that needs the snapshots reads them after an import.
#[test]
fn operations_on_snapshots_read_them_first() {
    let mut world = World::new(10);
    let step = |mut world: World, seed: u64, change: &dyn Fn(&mut World)| {
        world.write_any();
        world = world.import_again(seed, false);
        world.write_any();
        change(&mut world);
        world.settle();
        world.check("changed");
        world
    };
    world = step(world, 11, &|world| world.take("new"));
    world = step(world, 12, &|world| world.destroy(|at| at == 17 || at == SNAPSHOTS));
    world = step(world, 13, &|world| {
        world.datasets.rename_snapshot("", "s3", "renamed").unwrap();
        world.snapshots[3].0 = "renamed".to_string();
    });
    world = step(world, 14, &|world| {
        drop(world.datasets.clone_snapshot("", "s40", "clone").unwrap());
        world.datasets.promote("clone").unwrap();
        assert_eq!(world.datasets.snapshots("clone").unwrap().len(), 40);
        world.snapshots.drain(..40);
    });
    world = step(world, 15, &|world| world.destroy(|_| true));
    assert_eq!(world.datasets.snapshots("").unwrap(), []);
}

/// A damaged snapshot does not hinder the files of the data set. What needs the snapshots is refused.
#[test]
fn one_damaged_snapshot_of_many_spares_the_files() {
    let world = World::new(20);
    let id = world.datasets.find_snapshot("", "s100").unwrap().info.id;
    let mos = world.machine.objects.mos();
    let object = mos.hold(id).unwrap();
    let bonus = object.bonus();
    let forge = |world: &World, bonus: Vec<u8>| {
        let mos = world.machine.objects.mos();
        let tx = mos.begin(Cost { meta_blocks: 4, ..Cost::NOTHING }).unwrap();
        mos.hold(id).unwrap().set_bonus(&tx, bonus).unwrap();
        drop(tx);
        world.machine.pool.commit().unwrap();
    };
    forge(&world, vec![0xff; bonus.len()]);
    drop(object);
    let mut world = world.import_again(21, false);
    for _ in 0..8 {
        world.write_any();
    }
    let refused = world.datasets.snapshot(&[("", "new")]).unwrap_err();
    assert!(refused.to_string().contains(&format!("object {id}")), "{refused}");
    assert!(matches!(refused, DatasetError::Object(_)), "{refused:?}");
    world.datasets.destroy_snapshots("", &["s7"]).unwrap_err();
    assert!(world.machine.is_alive());
    assert_eq!(content(&world.fs), world.head);
    // With the snapshot everything comes back.
    forge(&world, bonus.to_vec());
    world.take("new");
    world.settle();
    world.check("repaired");
}

/// What would reserve more than a full pool has is done in parts.
#[test]
fn space_is_known_while_many_are_destroyed() {
    let mut world = World::new(30);
    world.destroy(|number| number < SNAPSHOTS - 20);
    let left: Vec<String> = world.snapshots.iter().map(|(name, _)| name.clone()).collect();
    let left: Vec<&str> = left.iter().map(String::as_str).collect();
    let (pool, ends) = (Arc::clone(&world.machine.pool), AtomicBool::new(false));
    let mut reads = 0;
    std::thread::scope(|scope| {
        let txgs = scope.spawn(|| {
            // One txg follows the other.
            while pool.has_work_left() {
                pool.commit_txg(pool.open_txg()).unwrap();
            }
            ends.store(true, Ordering::Relaxed);
        });
        while !ends.load(Ordering::Relaxed) {
            world.datasets.reclaimable("", &left).unwrap();
            reads += 1;
        }
        txgs.join().unwrap();
    });
    assert!(reads > 1, "{reads}");
    world.settle();
    world.check("destroyed");
}

#[test]
fn all_snapshots_can_be_destroyed_on_a_full_pool() {
    let mut world = World::new(9);
    let (big, written) = world.fill();
    world.destroy(|_| true);
    // A writer waits for what is being freed.
    let more = vec![1; 1 << 20];
    assert_eq!(world.fs.write(big, written, &more, WriteFlags::default()), Ok(more.len() as u32));
    world.settle();
    world.check("full");
}

#[test]
fn a_full_pool_can_be_rolled_back_past_all_snapshots() {
    let mut world = World::new(10);
    world.fill();
    let World { machine, datasets, fs, snapshots, .. } = world;
    fs.forget_all();
    drop(fs);
    let (name, files) = &snapshots[0];
    datasets.rollback("", name, true).unwrap();
    let names: Vec<String> =
        datasets.snapshots("").unwrap().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(names, *std::slice::from_ref(name));
    let fs = Fs::open(datasets.open_dataset("").unwrap()).unwrap();
    assert_eq!(content(&fs), *files);
    for _ in 0..200 {
        machine.pool.commit_txg(machine.pool.open_txg()).unwrap();
    }
    machine.check().unwrap();
}

/// Until the snapshots are read, what is overwritten keeps its space. A writer that finds none has them read.
#[test]
fn a_writer_without_space_has_the_snapshots_read() {
    let mut world = World::new(11);
    let (big, written) = world.fill();
    let (cut, piece) = (8 << 20, 256 << 10);
    let shorter = SetAttr { size: Some(written - cut), ..SetAttr::default() };
    world.fs.setattr(big, &shorter, &ROOT).unwrap();
    world.settle();
    let mut world = world.import_again(12, false);
    let (noise, pieces) = (world.random.random_bytes(piece as usize), (written - cut) / piece);
    assert!(pieces * piece > 2 * cut, "{written} bytes fill the pool");
    for turn in 0..pieces {
        world
            .fs
            .write(big, turn * piece, &noise, WriteFlags::default())
            .unwrap_or_else(|errno| panic!("{errno} after {turn} of {pieces} overwrites"));
        world.machine.pool.commit().unwrap();
    }
    world.settle();
    world.check("overwritten");
}

/// Parts of lists that have become empty go in later txgs. A crash between must not leave them for ever.
#[test]
fn empty_parts_of_lists_go_after_a_crash() {
    let parts = |world: &World| -> usize {
        let all = StoredDataset::all(&world.machine.objects).unwrap();
        let lists: Vec<ObjectId> =
            all.iter().flat_map(|dataset| dataset.lists().collect::<Vec<_>>()).collect();
        lists.iter().map(|list| list_parts(&world.machine.objects, *list).unwrap().len()).sum()
    };
    let mut world = World::new(20);
    world.settle();
    world.destroy(|at| at % 50 > 0);
    // As of each of the last txgs.
    let mut devices = Vec::new();
    while world.machine.pool.has_work_left() {
        world.machine.pool.commit_txg(world.machine.pool.open_txg()).unwrap();
        devices.push(world.machine.device.after_power_loss(1));
    }
    let World { machine, datasets, fs, head, snapshots, .. } = world;
    fs.forget_all();
    drop((fs, datasets, machine));
    for device in devices.iter().rev().take(6) {
        let machine = Machine::import(device, 1, false).unwrap();
        let world = World::of(machine, 1, head.clone(), snapshots.clone());
        world.datasets.drain("").unwrap();
        world.settle();
        world.check("crashed");
        let (found, lists) = (parts(&world), snapshots.len() + 1);
        assert!(found <= 2 * lists, "{found} parts of {lists} lists");
    }
}

/// While empty parts wait for their turn, another scan of their list finds them again. Each is destroyed once: its number
/// may belong to another object by then.
#[test]
fn empty_parts_that_wait_are_destroyed_once() {
    for begin in 66..76 {
        let mut world = World::new(30);
        world.settle();
        // A long list, and a short one whose parts wait behind those of the long one.
        world.destroy(|at| (1..200).contains(&at) || (210..222).contains(&at));
        for txg in 0..begin + 20 {
            let pool = &world.machine.pool;
            pool.commit_txg(pool.open_txg()).unwrap();
            if txg == begin {
                // Before the short list, so that it is scanned again.
                world.destroy(|at| at == 11);
            }
            // Others take freed numbers.
            if txg > begin {
                world.take(&format!("late {txg}"));
            }
        }
        world.settle();
        world.check("at rest");
        assert_eq!(world.machine.pool.errors().findings, Vec::<String>::new());
    }
}
