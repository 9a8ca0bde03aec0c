//! What snapshots cost: taking, holding and destroying them, and finding what changed.
//!
//!     cargo bench -p terrane --bench snapshots -- [--files N] [--snapshots N] [--dir DIR]
//!
//! Each line is a ratio to the same work without snapshots, in the same run. The pool lies in a file under `--dir`.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "support/args.rs"]
mod args;
#[path = "support/pool.rs"]
mod pool;

use clap::Parser;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane::{
    Cred, Device, FileDevice, Fs, ImportOptions, Ino, ObjectSets, OpenMode, Pool, SystemEnv, WriteFlags,
};
use terrane_dataset::Datasets;
use terrane_wire::Prng;

const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };
/// Files of a directory.
const PER_DIR: u64 = 1000;
/// The file that is overwritten, and its records.
const FILE_BYTES: u64 = 256 << 20;
const RECORD: u64 = 16 << 10;
/// Zones of the pool.
const ZONE_BYTES: u64 = 64 << 20;
/// Records that are overwritten between two snapshots.
const BETWEEN: u64 = 16;

/// What snapshots cost
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench snapshots --")]
struct Options {
    /// Files in the data set that is snapshotted
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    files: u64,
    /// Snapshots that are held
    #[arg(long, value_name = "N", default_value_t = 1000)]
    snapshots: u64,
    /// Directory for the pool
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
}

struct World {
    pool: Arc<Pool>,
    datasets: Arc<Datasets>,
    fs: Arc<Fs>,
}

impl World {
    fn import(path: &Path) -> World {
        let device = FileDevice::open(path, OpenMode::ReadWrite, ZONE_BYTES).unwrap();
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
        let import = ImportOptions { cache_bytes: 512 << 20, ..ImportOptions::default() };
        let pool = Pool::import(devices, Arc::new(SystemEnv::new()), &import).unwrap();
        let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
        let datasets = Datasets::open(&objects).unwrap();
        let fs = Fs::open(datasets.open_dataset("").unwrap()).unwrap();
        World { pool, datasets, fs }
    }

    fn close(self) {
        self.fs.forget_all();
        self.pool.export().unwrap();
    }
}

fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = what();
    (result, start.elapsed())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A small change and its commit.
fn touch(world: &World, ino: Ino, count: u64) -> Duration {
    world.fs.write(ino, count % 64 * 4096, &count.to_le_bytes(), WriteFlags::default()).unwrap();
    timed(|| world.pool.commit().unwrap()).1
}

/// Overwrites random records; `each` is called after every [`BETWEEN`] of them.
fn overwrite(world: &World, ino: Ino, records: u64, seed: u64, each: &mut dyn FnMut(u64)) -> Duration {
    let mut random = Prng::new(seed);
    let mut content = random.random_bytes(RECORD as usize);
    timed(|| {
        for record in 0..records {
            random.fill(content.get_mut(..64).unwrap());
            let at = random.below(FILE_BYTES / RECORD) * RECORD;
            world.fs.write(ino, at, &content, WriteFlags::default()).unwrap();
            if record % BETWEEN == BETWEEN - 1 {
                world.pool.commit().unwrap();
                each(record / BETWEEN);
            }
        }
    })
    .1
}

fn main() {
    let options: Options = args::parse();
    let path = pool::image_path(&options.dir);
    let made = pool::create_with(&path, &[("recordsize", "16K")]);
    Fs::format(&made.dataset, &OWNER).unwrap();
    drop(made.dataset);
    made.pool.export().unwrap();
    drop((made.objects, made.pool));

    let world = World::import(&path);
    let fs = &world.fs;
    let mut dir = fs.root();
    let mut first = None;
    for file in 0..options.files {
        if file % PER_DIR == 0 {
            let name = format!("d{}", file / PER_DIR);
            dir = fs.mkdir(fs.root(), name.as_bytes(), 0o755, &OWNER).unwrap().ino;
        }
        let ino = fs.create(dir, format!("file{file}").as_bytes(), 0o644, &OWNER).unwrap().ino;
        first.get_or_insert(ino);
        fs.forget(ino, 1);
    }
    let big = fs.create(fs.root(), b"big", 0o644, &OWNER).unwrap().ino;
    let content = Prng::new(1).random_bytes(1 << 20);
    (0..FILE_BYTES >> 20).for_each(|at| {
        fs.write(big, at << 20, &content, WriteFlags::default()).unwrap();
    });
    world.pool.commit().unwrap();

    let commits: Vec<Duration> = (0..31).map(|count| touch(&world, big, count)).collect();
    let mut takes = Vec::new();
    for count in 0..31 {
        world.fs.write(big, count * 4096, &count.to_le_bytes(), WriteFlags::default()).unwrap();
        takes.push(timed(|| world.datasets.snapshot(&[("", &format!("first{count}"))]).unwrap()).1);
    }
    let (commit, take) = (median(commits), median(takes));
    println!(
        "snapshot of {} files: {:.2} ms, {:.2}x of a commit of {:.2} ms",
        options.files,
        ms(take),
        take.as_secs_f64() / commit.as_secs_f64(),
        ms(commit)
    );
    for count in 0..31 {
        world.datasets.destroy_snapshots("", &[&format!("first{count}")]).unwrap();
    }

    // Changes of a few files, found among many.
    world.datasets.snapshot(&[("", "before")]).unwrap();
    let since = world.datasets.find_snapshot("", "before").unwrap().info.created;
    for count in 0..100u64 {
        let dir = world
            .fs
            .lookup(world.fs.root(), format!("d{}", count * options.files / PER_DIR / 100).as_bytes());
        let name = format!("changed{count}");
        world.fs.create(dir.unwrap().ino, name.as_bytes(), 0o644, &OWNER).unwrap();
    }
    world.pool.commit().unwrap();
    let clone = world.datasets.clone_snapshot("", "before", "before").unwrap();
    let old = Fs::open(clone).unwrap();
    for _ in 0..2 {
        let mut found = 0;
        let ((), time) = timed(|| terrane_posix::diff(&old, &world.fs, since, &mut |_| found += 1).unwrap());
        println!("diff of {} files with 100 new ones: {:.1} ms, {found} changes", options.files, ms(time));
    }
    drop(old);
    world.datasets.destroy("before").unwrap();
    world.datasets.destroy_snapshots("", &["before"]).unwrap();
    world.pool.commit().unwrap();

    // Overwriting while snapshots are taken, and without; twice, in turn.
    let records = options.snapshots * BETWEEN;
    let mut taken = 0;
    for round in 0..2 {
        let without = overwrite(&world, big, records, 1 + round, &mut |_| {});
        let mut taking = Duration::ZERO;
        let with = overwrite(&world, big, records, 100 + round, &mut |_| {
            if taken < options.snapshots {
                taken += 1;
                taking += timed(|| world.datasets.snapshot(&[("", &format!("s{taken}"))]).unwrap()).1;
            }
        });
        println!(
            "overwriting {records} records, {taken} snapshots held: {:.2}x the speed of before (snapshots themselves: {:.2} ms each)",
            without.as_secs_f64() / (with - taking).as_secs_f64(),
            ms(taking) / options.snapshots as f64
        );
    }
    let before = median((0..31).map(|count| touch(&world, big, count)).collect());
    println!(
        "small write and commit with {taken} snapshots: {:.2}x of without",
        before.as_secs_f64() / commit.as_secs_f64()
    );
    let (usage, time) = timed(|| world.datasets.space("").unwrap());
    println!("list of {} snapshots with their space: {:.1} ms", usage.snapshots.len(), ms(time));
    world.close();
    let (world, with) = timed(|| World::import(&path));
    println!("import and open with {taken} snapshots: {:.1} ms", ms(with));
    let list = timed(|| world.datasets.snapshots("").unwrap().len());
    println!("list of {} snapshots after import: {:.1} ms", list.0, ms(list.1));

    // Destroying all, in the background of commits.
    let names: Vec<String> = (1..=taken).map(|count| format!("s{count}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut longest = Duration::ZERO;
    let ((), time) = timed(|| {
        for chunk in names.chunks(100) {
            longest = longest.max(timed(|| world.datasets.destroy_snapshots("", chunk).unwrap()).1);
        }
        while world.pool.has_work_left() {
            longest = longest.max(timed(|| world.pool.commit_txg(world.pool.open_txg()).unwrap()).1);
        }
    });
    println!("destroying {taken} snapshots: {:.0} ms, longest commit {:.1} ms", ms(time), ms(longest));
    world.close();
    let (world, without) = timed(|| World::import(&path));
    println!(
        "import and open without snapshots: {:.1} ms; with them {:.2}x",
        ms(without),
        with.as_secs_f64() / without.as_secs_f64()
    );
    world.close();
    std::fs::remove_file(&path).unwrap();
}
