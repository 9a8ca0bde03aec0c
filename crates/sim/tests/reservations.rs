//! Space that is reserved for data sets is theirs, also when the pool is full.

use std::sync::Arc;
use terrane_dataset::{Dataset, DatasetError, Datasets};
use terrane_posix::{Errno, Fs, WriteFlags};
use terrane_sim::machine::{Machine, Plan, ROOT};
use terrane_wire::Prng;

const MIB: u64 = 1 << 20;
/// Bytes of a file.
const FILE: usize = 128 << 10;

fn format(dataset: &Dataset, tx: &terrane_pool::Tx) -> Result<(), DatasetError> {
    Fs::format_in(dataset, tx, &ROOT)
}

struct World {
    machine: Machine,
    datasets: Arc<Datasets>,
    random: Prng,
}

impl World {
    fn new(seed: u64) -> World {
        let machine = Machine::create(&Plan::small(seed)).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap();
        World { machine, datasets, random: Prng::new(seed) }
    }

    fn create(&self, path: &str, props: &[(&str, &str)]) -> Result<(), DatasetError> {
        let props = [props, &[("recordsize", "16K"), ("compression", "off")]].concat();
        self.datasets.create(path, &props, &mut format).map(drop)
    }

    fn fs(&self, path: &str) -> Arc<Fs> {
        Fs::open(self.datasets.open_dataset(path).unwrap()).unwrap()
    }

    /// Writes files until one is refused, or `most` are written. Returns their number, and the error.
    fn fill(&mut self, path: &str, prefix: &str, most: u64) -> (u64, Option<Errno>) {
        let fs = self.fs(path);
        let mut end = (most, None);
        for number in 0..most {
            let bytes = self.random.random_bytes(FILE);
            let name = format!("{prefix}{number}");
            let found = fs.lookup(fs.root(), name.as_bytes()).map(|attr| attr.ino);
            let ino =
                found.or_else(|_| fs.create(fs.root(), name.as_bytes(), 0o644, &ROOT).map(|attr| attr.ino));
            let written = ino.and_then(|ino| {
                let written = fs.write(ino, 0, &bytes, WriteFlags::default());
                fs.forget(ino, 1);
                written
            });
            match written {
                Ok(len) => assert_eq!(len as usize, FILE),
                Err(errno) => {
                    end = (number, Some(errno));
                    break;
                }
            }
        }
        fs.forget_all();
        self.machine.pool.commit().unwrap();
        end
    }

    fn settle(&self) {
        for _ in 0..300 {
            self.machine.pool.commit_txg(self.machine.pool.open_txg()).unwrap();
            if !self.machine.pool.has_work_left() && !self.datasets.is_freeing() {
                return;
            }
        }
        panic!("the pool never comes to rest");
    }

    fn available(&self, path: &str) -> u64 {
        self.fs(path).statfs().available * 4096
    }
}

/// Removes the files that `fill` wrote, and the one that was refused if it was created.
fn remove(fs: &Arc<Fs>, files: u64) {
    for file in 0..=files {
        let removed = fs.unlink(fs.root(), format!("file{file}").as_bytes());
        assert!(removed.is_ok() || file == files, "{removed:?}");
    }
    fs.forget_all();
}

#[test]
fn a_reservation_holds_when_the_pool_is_full() {
    for seed in 0..4 {
        let mut world = World::new(seed);
        world.create("a", &[("reservation", "12M")]).unwrap();
        world.create("a/below", &[]).unwrap();
        world.create("b", &[]).unwrap();
        world.machine.pool.commit().unwrap();
        let before = (world.available("a"), world.available("b"));
        assert!(before.0 >= before.1 + 11 * MIB, "{before:?}");
        let (files, errno) = world.fill("b", "b", 1000);
        assert_eq!(errno, Some(Errno::ENOSPC), "seed {seed}: {files}");
        world.settle();
        assert_eq!(world.fill("b", "more", 1000).1, Some(Errno::ENOSPC));
        assert!(world.available("b") < MIB && world.available("a") > 10 * MIB);
        // The reservation survives an import.
        let World { machine, datasets, random } = world;
        drop(datasets);
        let device = machine.export().unwrap();
        let machine = Machine::import(&device, seed, false).unwrap();
        let datasets = Datasets::open(&machine.objects).unwrap();
        let mut world = World { machine, datasets, random };
        assert_eq!(world.fill("b", "again", 1000).1, Some(Errno::ENOSPC));
        // The data sets below use it too. Metadata of all data sets takes a part.
        let half = 5 * MIB / FILE as u64;
        assert_eq!(world.fill("a", "a", half), (half, None), "seed {seed}");
        assert_eq!(world.fill("a/below", "a", half), (half, None), "seed {seed}");
        let (more, errno) = world.fill("a", "more", 1000);
        assert!(
            errno == Some(Errno::ENOSPC) && more < 3 * MIB / FILE as u64,
            "seed {seed}: {more} {errno:?}"
        );
        world.settle();
        world.machine.check().unwrap();
        // Given up, it is everyone's.
        for number in 0..20 {
            let fs = world.fs("a");
            fs.unlink(fs.root(), format!("a{number}").as_bytes()).unwrap();
            fs.forget_all();
        }
        world.settle();
        let refused = world.fill("b", "still ", 1000);
        assert!(refused.1 == Some(Errno::ENOSPC) && refused.0 < 4, "{refused:?}");
        world.datasets.open_dataset("a").unwrap().set("reservation", "none").unwrap();
        assert!(world.fill("b", "then ", 1000).0 >= 10);
    }
}

#[test]
fn a_head_with_a_refreservation_can_be_written_again_after_a_snapshot() {
    let mut world = World::new(11);
    world.create("a", &[("refreservation", "9M")]).unwrap();
    world.create("b", &[]).unwrap();
    let files = 7 * MIB / FILE as u64;
    assert_eq!(world.fill("a", "a", files), (files, None));
    let used = || {
        world.machine.pool.commit().unwrap();
        world.datasets.usage("a").unwrap()
    };
    let before = used();
    assert!((MIB..2 * MIB + MIB / 2).contains(&before.ref_reservation), "{before:?}");
    world.datasets.snapshot(&[("a", "s")]).unwrap();
    let after = used();
    assert!(after.ref_reservation > 8 * MIB, "all of the head is shared: {after:?}");
    assert!(after.used > before.used + 6 * MIB, "{before:?} {after:?}");
    assert_eq!(world.fill("b", "b", 1000).1, Some(Errno::ENOSPC));
    // Each block anew, while the snapshot keeps the old ones.
    assert_eq!(world.fill("a", "a", files), (files, None));
    // There is no space to promise that once more.
    let refused = world.datasets.snapshot(&[("a", "t")]).unwrap_err();
    assert!(refused.to_string().contains("no space"), "{refused}");
    world.datasets.snapshot(&[("b", "t")]).unwrap();
    world.settle();
    world.machine.check().unwrap();
}

#[test]
fn what_cannot_be_reserved_is_refused() {
    let mut world = World::new(12);
    for (path, props) in [("a", ("reservation", "1G")), ("a", ("refreservation", "1G"))] {
        let refused = world.create(path, &[props]).unwrap_err();
        assert!(refused.to_string().contains("reservation"), "{refused}");
    }
    world.create("a", &[("quota", "10M"), ("reservation", "8M")]).unwrap();
    let a = world.datasets.open_dataset("a").unwrap();
    a.set("reservation", "11M").unwrap_err();
    a.set("refreservation", "11M").unwrap_err();
    a.set("reservation", "9M").unwrap();
    // Within what is reserved for the data set above, it costs nothing more.
    let free = world.available("");
    world.create("a/x", &[("reservation", "6M")]).unwrap();
    world.create("a/y", &[]).unwrap();
    world.machine.pool.commit().unwrap();
    assert!(world.available("") + MIB / 2 > free, "{} {free}", world.available(""));
    // But it counts for the quota above.
    world.create("a/z", &[("reservation", "5M")]).unwrap_err();
    let (files, errno) = world.fill("a/y", "y", 1000);
    assert!(errno == Some(Errno::EDQUOT) && files * (FILE as u64) < 4 * MIB, "{files} {errno:?}");
    let most = 5 * MIB / FILE as u64;
    assert_eq!(world.fill("a/x", "x", most), (most, None));
    world.datasets.open_dataset("").unwrap().set("reservation", "1G").unwrap_err();
    world.settle();
    world.machine.check().unwrap();
}

/// What was removed makes room at once: nobody has to wait for a commit.
#[test]
fn removed_files_make_room_below_a_quota() {
    let mut world = World::new(13);
    world.create("a", &[("quota", "8M")]).unwrap();
    world.create("b", &[("refquota", "8M")]).unwrap();
    for round in 0..3 {
        for path in ["a", "b"] {
            let (files, errno) = world.fill(path, "file", 1000);
            assert!(errno == Some(Errno::EDQUOT) && files > 40, "round {round}: {files} {errno:?}");
            let fs = world.fs(path);
            remove(&fs, files);
        }
    }
    // A snapshot that is destroyed does so too.
    let (files, _) = world.fill("a", "file", 1000);
    world.datasets.snapshot(&[("a", "s")]).unwrap();
    let fs = world.fs("a");
    remove(&fs, files);
    assert!(world.fill("a", "new", 1000).0 < 4);
    world.datasets.destroy_snapshots("a", &["s"]).unwrap();
    assert!(world.fill("a", "new", 1000).0 > 40);
}

/// What is reserved for a head is not for data sets below, and a move does not promise space twice.
#[test]
fn nothing_is_promised_twice() {
    let mut world = World::new(14);
    let free = world.available("") - 3 * MIB;
    let most = |part: u64| (free / part).to_string();
    world.create("a", &[("refreservation", &most(1))]).unwrap();
    world.create("a/below", &[("reservation", "8M")]).unwrap_err();
    world.datasets.open_dataset("a").unwrap().set("refreservation", "none").unwrap();

    world.datasets.open_dataset("a").unwrap().set("reservation", &most(2)).unwrap();
    world.create("a/x", &[]).unwrap();
    world.create("b", &[]).unwrap();
    let files = free / 3 / FILE as u64;
    assert_eq!(world.fill("a/x", "x", files), (files, None));
    world.create("c", &[("reservation", &most(3))]).unwrap();
    // Without it the data set above would have nothing of what is reserved for it.
    let refused = world.datasets.rename("a/x", "x").unwrap_err();
    assert!(refused.to_string().contains("reserved"), "{refused}");
    world.datasets.rename("a/x", "a/y").unwrap();
    world.datasets.open_dataset("c").unwrap().set("reservation", "none").unwrap();
    world.datasets.rename("a/y", "x").unwrap();

    // Nor does a move exceed a quota.
    world.create("q", &[("quota", "4M")]).unwrap();
    let refused = world.datasets.rename("x", "q/x").unwrap_err();
    assert!(refused.to_string().contains("quota of q"), "{refused}");
    world.datasets.open_dataset("q").unwrap().set("quota", "none").unwrap();
    world.datasets.rename("x", "q/x").unwrap();

    let a = world.datasets.open_dataset("a").unwrap();
    a.set("reservation", "none").unwrap();
    a.set_received("reservation", &most(3)).unwrap();
    a.set("reservation", "none").unwrap();
    assert_eq!(world.fill("b", "b", 1000).1, Some(Errno::ENOSPC));
    a.reset_to_received("reservation").unwrap_err();
    world.settle();
    world.machine.check().unwrap();
}

/// Two threads reserve all that is there: one of them gets it.
#[test]
fn two_cannot_reserve_the_same_space() {
    for seed in 0..4 {
        let world = World::new(20 + seed);
        world.create("a", &[]).unwrap();
        world.create("b", &[]).unwrap();
        let most = (world.available("") - 4 * MIB).to_string();
        let reserve = |path: &str| {
            let (dataset, most) = (world.datasets.open_dataset(path).unwrap(), most.clone());
            std::thread::spawn(move || dataset.set("reservation", &most).is_ok())
        };
        let (a, b) = (reserve("a"), reserve("b"));
        assert!(a.join().unwrap() != b.join().unwrap());
    }
}

/// Space of a file is its own, also where others have reserved what is left.
#[test]
fn files_use_what_they_reserved_beside_a_reservation() {
    let mut world = World::new(15);
    world.create("a", &[("reservation", "10M")]).unwrap();
    world.create("b", &[]).unwrap();
    let fs = world.fs("b");
    let ino = fs.create(fs.root(), b"reserved", 0o644, &ROOT).unwrap().ino;
    fs.fallocate(ino, 0, 0, 5 * MIB).unwrap();
    assert_eq!(world.fill("b", "b", 1000).1, Some(Errno::ENOSPC));
    let content = world.random.random_bytes(FILE);
    for at in 0..5 * MIB / FILE as u64 {
        let written = fs.write(ino, at * FILE as u64, &content, WriteFlags::default());
        assert_eq!(written, Ok(FILE as u32), "at {at}");
    }
    fs.forget(ino, 1);
    fs.sync().unwrap();
    // And the largest file that there is space for can be reserved.
    fs.unlink(fs.root(), b"reserved").unwrap();
    fs.forget_all();
    drop(fs);
    world.settle();
    let fs = world.fs("b");
    let left = fs.statfs().available * 4096;
    let ino = fs.create(fs.root(), b"again", 0o644, &ROOT).unwrap().ino;
    fs.fallocate(ino, 0, 0, left * 3 / 4).unwrap();
    fs.forget(ino, 1);
    fs.forget_all();
    let most = 9 * MIB / FILE as u64;
    assert_eq!(world.fill("a", "a", most), (most, None));
    world.settle();
    world.machine.check().unwrap();
}

/// A clone that is removed gives no space back, and one that is overwritten takes new space. So what is reserved for a
/// data set, or above it, would not be there.
#[test]
fn a_reservation_holds_after_files_were_cloned() {
    let mut world = World::new(2);
    world.create("kept", &[("reservation", "16M")]).unwrap();
    world.create("kept/below", &[]).unwrap();
    world.create("others", &[]).unwrap();
    assert_eq!(world.fill("kept/below", "file", 48), (48, None));
    let fs = world.fs("kept/below");
    let (root, names) = (fs.root(), (0..48).map(|file| (format!("file{file}"), format!("copy{file}"))));
    for (from, to) in names.clone() {
        let from = fs.lookup(root, from.as_bytes()).unwrap().ino;
        let to = fs.create(root, to.as_bytes(), 0o644, &ROOT).unwrap().ino;
        assert_eq!(fs.copy_range(from, 0, to, 0, FILE as u64), Ok(FILE as u64));
    }
    fs.forget_all();
    fs.sync().unwrap();
    // A file elsewhere that shares them would keep what is overwritten here.
    let elsewhere = world.fs("others");
    let from = fs.lookup(root, b"file0").unwrap().ino;
    let to = elsewhere.create(root, b"copy", 0o644, &ROOT).unwrap().ino;
    let copied = elsewhere.clone_range_from(&fs, (from, 0), to, 0, FILE as u64).unwrap();
    assert_eq!((copied.bytes, copied.shared_bytes), (FILE as u64, 0));
    elsewhere.forget_all();
    drop(elsewhere);
    assert_eq!(world.fill("others", "file", 10_000).1, Some(Errno::ENOSPC));
    for (_, copy) in names {
        fs.unlink(root, copy.as_bytes()).unwrap();
    }
    drop(fs);
    world.settle();
    world.fill("others", "more", 10_000);
    assert_eq!(world.fill("kept/below", "new", 72), (72, None), "15 MiB of 16 that are reserved");
    world.machine.check().unwrap();
}

/// A data set with this much in a snapshot and nothing in its head, and a clone of the snapshot.
fn clone_of_files(world: &mut World, source: &str, clone: &str, files: u64) {
    world.create(source, &[]).unwrap();
    assert_eq!(world.fill(source, "file", files), (files, None));
    world.datasets.snapshot(&[(source, "s")]).unwrap();
    world.datasets.clone_snapshot(source, "s", clone).unwrap();
    remove(&world.fs(source), files);
    world.settle();
}

/// Promotes a data set that a limit refuses. Returns the data set of the quota, and what it has and would have.
fn refused_promotion(world: &World, clone: &str) -> (Option<String>, u64, u64) {
    let before: Vec<_> = world.datasets.list().unwrap().into_iter().map(|info| info.path).collect();
    let used = |path: &String| world.datasets.branch(path).unwrap().used_bytes();
    let sums: Vec<u64> = before.iter().map(used).collect();
    let snapshots = world.datasets.snapshots(clone).unwrap();
    match world.datasets.promote(clone).unwrap_err() {
        DatasetError::OverLimit { name, quota_of, limit, used: counted, need } => {
            assert_eq!(name, clone);
            assert!(counted <= limit && counted + need > limit, "{counted} + {need} of {limit}");
            world.machine.pool.commit().unwrap();
            assert_eq!(sums, before.iter().map(used).collect::<Vec<_>>(), "nothing has changed");
            assert_eq!(world.datasets.snapshots(clone).unwrap(), snapshots);
            (quota_of, counted, counted + need)
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_promotion_exceeds_no_quota() {
    let mut world = World::new(21);
    world.create("q", &[("quota", "4M")]).unwrap();
    clone_of_files(&mut world, "a", "q/c", 6 * MIB / FILE as u64);
    let set = |path: &str, value: u64| {
        world.datasets.open_dataset(path).unwrap().set("quota", &value.to_string()).unwrap();
    };
    let (of, used, needed) = refused_promotion(&world, "q/c");
    assert_eq!((of.as_deref(), used), (Some("q"), world.datasets.branch("q").unwrap().used_bytes()));
    set("q", needed - 1);
    assert_eq!(refused_promotion(&world, "q/c").2, needed);
    // The clone's own quota counts too, and is named before those above.
    set("q/c", 2 * MIB);
    assert_eq!(refused_promotion(&world, "q/c").0.as_deref(), Some("q/c"));
    set("q/c", 32 * MIB);
    set("q", needed);
    world.datasets.promote("q/c").unwrap();
    world.settle();
    // The check knows to a byte what is counted afterwards.
    assert_eq!(world.datasets.branch("q").unwrap().used_bytes(), needed);
    assert!(world.datasets.branch("a").unwrap().used_bytes() < MIB);
    // Back again, out of the quota.
    world.datasets.promote("a").unwrap();
    assert!(world.datasets.branch("q").unwrap().used_bytes() < MIB);
    world.settle();
    world.machine.check().unwrap();
}

/// What moves between two data sets below a quota is counted by it once, before and after.
#[test]
fn a_promotion_below_one_quota_is_not_refused() {
    let mut world = World::new(22);
    world.create("p", &[("quota", "8M")]).unwrap();
    clone_of_files(&mut world, "p/a", "p/c", 6 * MIB / FILE as u64);
    let before = world.datasets.branch("p").unwrap().used_bytes();
    assert!(before > 6 * MIB);
    world.datasets.promote("p/c").unwrap();
    assert_eq!(world.datasets.branch("p").unwrap().used_bytes(), before);
    // With older snapshots, and a source that is a clone itself: only what is younger than the origin of the source moves.
    world.datasets.snapshot(&[("p/c", "t")]).unwrap();
    world.datasets.clone_snapshot("p/c", "t", "d").unwrap();
    world.create("q", &[("quota", "1M")]).unwrap();
    world.datasets.rename("d", "q/d").unwrap();
    assert_eq!(world.fill("q/d", "more", 1), (1, None));
    world.datasets.snapshot(&[("q/d", "u")]).unwrap();
    world.datasets.clone_snapshot("q/d", "u", "q/e").unwrap();
    world.datasets.promote("q/e").unwrap();
    let (of, used, needed) = refused_promotion(&world, "q/e");
    assert_eq!(of.as_deref(), Some("q"));
    assert!(used < MIB && needed > 6 * MIB, "{used}, {needed}");
    world.machine.check().unwrap();
}

/// What a data set has reserved and its snapshots used is reserved still when the snapshots are no longer its own.
#[test]
fn a_promotion_takes_nothing_that_is_reserved() {
    let mut world = World::new(23);
    clone_of_files(&mut world, "a", "c", 6 * MIB / FILE as u64);
    world.datasets.open_dataset("a").unwrap().set("reservation", "7M").unwrap();
    world.create("b", &[]).unwrap();
    let rest = world.available("b").saturating_sub(5 * MIB);
    world.datasets.open_dataset("b").unwrap().set("reservation", &rest.to_string()).unwrap();
    assert_eq!(refused_promotion(&world, "c").0, None);
    world.datasets.open_dataset("b").unwrap().set("reservation", "none").unwrap();
    world.datasets.promote("c").unwrap();
    world.settle();
    assert!(world.datasets.branch("a").unwrap().used_bytes() < MIB);
    assert_eq!(world.fill("b", "b", 1000).1, Some(Errno::ENOSPC));
    assert_eq!(world.fill("a", "a", 5 * MIB / FILE as u64).1, None, "its reservation is its own");
    world.machine.check().unwrap();
}

/// A writer that fills the space below a quota and a promotion never get the same space.
#[test]
fn writers_beside_a_promotion_stay_below_the_quota() {
    for seed in 30..36 {
        let mut world = World::new(seed);
        world.create("q", &[("quota", "9M")]).unwrap();
        clone_of_files(&mut world, "a", "q/c", 6 * MIB / FILE as u64);
        let datasets = Arc::clone(&world.datasets);
        let promoted = std::thread::scope(|scope| {
            let promotion = scope.spawn(move || {
                // The writer has begun, or fills the space first.
                while datasets.branch("q").unwrap().used_bytes() < 2 * MIB + (seed - 30) * MIB / 8 {
                    std::thread::yield_now();
                }
                datasets.promote("q/c").map_err(|error| error.to_string())
            });
            assert_eq!(world.fill("q/c", "more", 1000).1, Some(Errno::EDQUOT));
            promotion.join().unwrap()
        });
        world.settle();
        let used = world.datasets.branch("q").unwrap().used_bytes();
        assert!(used <= 9 * MIB, "seed {seed}: {used}, {promoted:?}");
        world.machine.check().unwrap();
    }
}
