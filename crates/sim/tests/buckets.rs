//! A pool in an object store: cut at every request, and with two machines that fight for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrane_bucket::memory::{Fate, Fates, Ignored, Request};
use terrane_bucket::{BucketDevice, Geometry, MemoryStore, Options};
use terrane_dataset::Dataset;
use terrane_device::{Device, OpenMode, SimConfig, SimDevice};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, EarlierState, ImportOptions, Pool};
use terrane_posix::{Fs, SetAttr, WholeReplay, WriteFlags, replay_pool};
use terrane_sim::machine::ROOT;
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_wire::Prng;

const FILES: u64 = 5;

/// A machine that has the pool open.
struct Machine {
    pool: Arc<Pool>,
    objects: Arc<ObjectSets>,
    fs: Arc<Fs>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.fs.forget_all();
        self.pool.abandon();
    }
}

fn bucket_options() -> Options {
    Options {
        part_bytes: 64 << 10,
        threads: 0,
        parts_max: 4,
        pause: Duration::from_micros(1),
        write_patience: Duration::ZERO,
        read_patience: Duration::ZERO,
        retention: Duration::ZERO,
        request_budget: None,
    }
}

fn options() -> ImportOptions {
    ImportOptions { cache_bytes: 1 << 20, ..ImportOptions::default() }
}

fn new_store() -> MemoryStore {
    pool_in(MemoryStore::default())
}

/// The store, with a pool whose files are empty.
fn pool_in(store: MemoryStore) -> MemoryStore {
    let geometry = Geometry { write_unit: 4096, zone_size: 1 << 20, zone_count: 48 };
    let device = BucketDevice::create(Arc::new(store.client(None)), geometry, &bucket_options()).unwrap();
    let device: Arc<dyn Device> = Arc::new(device);
    let env: Arc<dyn Env> = Arc::new(SeededEnv::new(1));
    let pool = Pool::create(vec![device], &CreateOptions::named("toy"), env, &options()).unwrap();
    let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
    let dataset = Dataset::create_root(&objects, &[("retain", "off")]).unwrap();
    Fs::format(&dataset, &ROOT).unwrap();
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    for file in 0..FILES {
        let ino = fs.create(fs.root(), format!("f{file}").as_bytes(), 0o644, &ROOT).unwrap().ino;
        fs.forget(ino, 1);
    }
    fs.forget_all();
    drop(fs);
    pool.export().unwrap();
    store
}

/// Imports the pool, replays its log, and mounts it.
fn import(store: MemoryStore, seed: u64) -> Result<Machine, String> {
    import_with(store, &bucket_options(), seed)
}

fn import_with(store: MemoryStore, options_of_store: &Options, seed: u64) -> Result<Machine, String> {
    import_in(Arc::new(SeededEnv::new(seed)), store, options_of_store)
}

fn import_in(env: Arc<dyn Env>, store: MemoryStore, options_of_store: &Options) -> Result<Machine, String> {
    let device = BucketDevice::open(Arc::new(store), OpenMode::ReadWrite, options_of_store);
    let device: Arc<dyn Device> = Arc::new(device.map_err(|error| error.to_string())?);
    let pool = Pool::import(vec![device], env, &options()).map_err(|error| error.to_string())?;
    let opened = || -> Result<_, String> {
        let objects = ObjectSets::open(Arc::clone(&pool)).map_err(|error| error.to_string())?;
        let mut open = |_| Dataset::open_root(&objects).map(Arc::new);
        replay_pool(&pool, &mut open, &mut WholeReplay).map_err(|error| error.to_string())?;
        let dataset = Dataset::open_root(&objects).map_err(|error| error.to_string())?;
        let fs = Fs::open(Arc::new(dataset)).map_err(|error| error.to_string())?;
        Ok((objects, fs))
    };
    match opened() {
        Ok((objects, fs)) => Ok(Machine { pool, objects, fs }),
        Err(error) => {
            pool.abandon();
            Err(error)
        }
    }
}

/// All bytes that were written to each file, and how many of them were acknowledged by an `fsync`.
#[derive(Clone, Default)]
struct Ledger {
    written: BTreeMap<u64, Vec<u8>>,
    synced: BTreeMap<u64, usize>,
}

impl Machine {
    /// Appends to a file, and may sync it or commit. An error ends the life of the machine.
    fn step(&self, ledger: &mut Ledger, random: &mut Prng) -> Result<(), String> {
        let file = random.below(FILES);
        let ino =
            self.fs.lookup(self.fs.root(), format!("f{file}").as_bytes()).map_err(|e| format!("{e:?}"))?.ino;
        let all = ledger.written.entry(file).or_default();
        let len = 1 + random.below(20_000) as usize;
        let bytes = random.random_bytes(len);
        let at = all.len() as u64;
        all.extend_from_slice(&bytes);
        let len = all.len();
        let outcome = self.fs.write(ino, at, &bytes, WriteFlags::default()).map(drop);
        let outcome = match random.below(4) {
            0 => outcome,
            1 => outcome.and_then(|()| self.pool.commit().map(drop).map_err(|_| terrane_posix::Errno::EIO)),
            _ => outcome.and_then(|()| self.fs.fsync(ino, false)).map(|()| {
                ledger.synced.insert(file, len);
            }),
        };
        self.fs.forget(ino, 1);
        outcome.map_err(|errno| format!("{errno:?}"))
    }

    /// Each file has what was synced, and nothing that was not written.
    fn holds(&self, ledger: &Ledger) -> Result<(), String> {
        for file in 0..FILES {
            let attr = self
                .fs
                .lookup(self.fs.root(), format!("f{file}").as_bytes())
                .map_err(|e| format!("{e:?}"))?;
            let mut bytes = Vec::new();
            self.fs.read(attr.ino, 0, attr.size as u32, &mut bytes).map_err(|e| format!("{e:?}"))?;
            self.fs.forget(attr.ino, 1);
            let written = ledger.written.get(&file).map_or(&[][..], Vec::as_slice);
            let synced = ledger.synced.get(&file).copied().unwrap_or(0);
            if bytes.len() < synced || !written.starts_with(&bytes) {
                return Err(format!("file {file} has {} bytes, of which {synced} were synced", bytes.len()));
            }
        }
        Ok(())
    }

    /// What is there is taken for written, so that another machine goes on with it.
    fn go_on_from(&self, ledger: &mut Ledger) {
        for (file, written) in &mut ledger.written {
            let attr = self.fs.lookup(self.fs.root(), format!("f{file}").as_bytes()).unwrap();
            self.fs.forget(attr.ino, 1);
            written.truncate(attr.size as usize);
        }
    }

    fn empty(&self, ledger: &mut Ledger) {
        for file in 0..FILES {
            let ino = self.fs.lookup(self.fs.root(), format!("f{file}").as_bytes()).unwrap().ino;
            self.fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }, &ROOT).unwrap();
            self.fs.forget(ino, 1);
        }
        self.pool.commit().unwrap();
        *ledger = Ledger::default();
    }

    fn check(&self) {
        self.pool.commit().unwrap();
        let report = terrane_check::check(&self.objects, &mut |_| {});
        assert!(report.is_clean(), "{report}");
    }
}

fn cut_at(cut: u64, seems: bool) -> Fates {
    Box::new(move |number, _, _| match number.cmp(&cut) {
        std::cmp::Ordering::Less => Fate::Succeeds,
        std::cmp::Ordering::Equal if seems => Fate::SeemsToFail,
        _ => Fate::Fails,
    })
}

/// A life until an error, or of `steps` steps. True: there was none.
fn live(store: MemoryStore, ledger: &mut Ledger, seed: u64, steps: u32) -> bool {
    let Ok(machine) = import(store, seed) else { return false };
    let mut random = Prng::new(seed);
    (0..steps).all(|_| machine.step(ledger, &mut random).is_ok())
}

/// Every how many requests one is cut: `TERRANE_BUCKET_STRIDE`.
fn stride() -> u64 {
    std::env::var("TERRANE_BUCKET_STRIDE").ok().and_then(|word| word.parse().ok()).unwrap_or(7)
}

#[test]
fn no_crash_at_any_request_loses_what_was_synced() {
    let empty = new_store();
    let stride = stride();
    for seed in 0..2 {
        let mut cut = seed % stride;
        loop {
            let store = empty.copy();
            let mut ledger = Ledger::default();
            let seems = (cut / stride).is_multiple_of(2);
            let ended = live(store.client(Some(cut_at(cut, seems))), &mut ledger, seed, 30);
            // The next import is cut as well, and so is the one after it.
            for again in [cut % 23, cut % 41] {
                if let Ok(machine) = import(store.client(Some(cut_at(again, !seems))), seed + 1) {
                    machine
                        .holds(&ledger)
                        .unwrap_or_else(|text| panic!("seed {seed} cut {cut}, {again}: {text}"));
                }
            }
            let machine = import(store.client(None), seed + 2)
                .unwrap_or_else(|text| panic!("seed {seed} cut {cut}: not imported: {text}"));
            machine.holds(&ledger).unwrap_or_else(|text| panic!("seed {seed} cut {cut}: {text}"));
            machine.go_on_from(&mut ledger);
            let mut random = Prng::new(seed + 3);
            (0..3).for_each(|_| machine.step(&mut ledger, &mut random).unwrap());
            machine.holds(&ledger).unwrap();
            machine.check();
            if ended {
                break;
            }
            cut += stride;
        }
        assert!(cut > 100, "lives of few requests show little: {cut}");
    }
}

/// A line on which one request in eight fails: it is lost, or its answer is, or it comes late, perhaps when its machine is gone.
fn bad_line(seed: u64) -> Fates {
    let mut random = Prng::new(seed);
    Box::new(move |_, _, _| match random.below(24) {
        0 => Fate::Fails,
        1 => Fate::SeemsToFail,
        2 => Fate::IsLate(1 + random.below(100)),
        _ => Fate::Succeeds,
    })
}

/// Machines on a bad line take the pool from each other. What one of them sent comes when another one has it. Returns how many steps were
/// taken, and how many machines were stopped.
fn lives_on_a_bad_line(store: &MemoryStore, rounds: u64) -> Result<(u64, u64), String> {
    let minute = Duration::from_secs(60);
    let patient = Options { write_patience: minute, read_patience: minute, ..bucket_options() };
    let mut ledger = Ledger::default();
    let (mut fenced, mut served) = (0, 0);
    for round in 0..rounds {
        // An object of a request that was late may have been put in the way of a seal: then the next one gets it.
        let machine = (0..20).find_map(|again| {
            import_with(store.client(Some(bad_line(round * 100 + again))), &patient, round).ok()
        });
        let machine = machine.ok_or_else(|| format!("round {round}: not imported"))?;
        machine.holds(&ledger).map_err(|text| format!("round {round}: {text}"))?;
        machine.go_on_from(&mut ledger);
        let mut random = Prng::new(round);
        for _ in 0..random.below(30) {
            match machine.step(&mut ledger, &mut random) {
                Ok(()) => served += 1,
                // A request of the machine before has come.
                Err(_) => {
                    fenced += 1;
                    break;
                }
            }
        }
        if ledger.written.values().map(Vec::len).sum::<usize>() > 4 << 20 {
            drop(machine);
            import(store.client(None), round)?.empty(&mut ledger);
        }
    }
    let machine = import(store.client(None), 1)?;
    machine.holds(&ledger)?;
    machine.check();
    Ok((served, fenced))
}

fn rounds() -> u64 {
    std::env::var("TERRANE_BUCKET_ROUNDS").ok().and_then(|word| word.parse().ok()).unwrap_or(40)
}

#[test]
fn a_bad_line_loses_nothing_that_was_synced() {
    let rounds = rounds();
    let (served, fenced) = lives_on_a_bad_line(&new_store(), rounds).unwrap();
    assert!(served > rounds * 8 && fenced < rounds / 4, "{served} steps, {fenced} machines were stopped");
}

/// The test above rests on what stores promise, and finds one that does not keep it.
#[test]
fn a_store_that_breaks_a_promise_is_found_by_lives_on_a_bad_line() {
    for condition in [Ignored::Absence, Ignored::Version] {
        let store = pool_in(MemoryStore::that_ignores(condition));
        let outcome = lives_on_a_bad_line(&store, 200);
        assert!(outcome.is_err(), "{condition:?}: {outcome:?}");
    }
}

/// The newest committed state, read-only, beside the machine that writes. `earlier`: a state whose cache it takes over.
fn follow(store: &MemoryStore, seed: u64, earlier: Option<&Machine>) -> Machine {
    let device =
        BucketDevice::open(Arc::new(store.client(None)), OpenMode::ReadOnly, &bucket_options()).unwrap();
    let follows = earlier.map(|earlier| EarlierState::of(&earlier.pool));
    let options = ImportOptions { read_only: true, discard_log: true, follows, ..options() };
    let pool = Pool::import(vec![Arc::new(device)], Arc::new(SeededEnv::new(seed)), &options).unwrap();
    let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
    let dataset = Arc::new(Dataset::open_root(&objects).unwrap());
    let fs = Fs::follow(dataset, earlier.and_then(|earlier| earlier.fs.shown()).unwrap_or_default()).unwrap();
    Machine { pool, objects, fs }
}

/// Readers of several states, while the writer goes on, collects garbage and deletes. What is retained reads as it was. What is not gives
/// `ESTALE`, and never other bytes.
#[test]
fn followers_read_their_state_or_are_told_that_it_is_gone() {
    let (mut stale, mut whole) = (0, 0);
    for (seed, retain) in (0..8).map(|seed| (seed, if seed % 2 == 0 { "1h" } else { "off" })) {
        let store = new_store();
        let writer = import(store.client(None), seed).unwrap();
        writer.fs.dataset().set("retain", retain).unwrap();
        let (mut ledger, mut random) = (Ledger::default(), Prng::new(seed));
        let mut readers: Vec<(Machine, Ledger)> = Vec::new();
        for round in 0..40 {
            (0..4).for_each(|_| writer.step(&mut ledger, &mut random).unwrap());
            if round % 8 == 7 {
                writer.empty(&mut ledger);
            }
            writer.pool.commit().unwrap();
            let newest = follow(&store, 100 + round, readers.last().map(|(reader, _)| reader));
            // All of what is written is committed.
            let committed = Ledger {
                synced: ledger.written.iter().map(|(file, bytes)| (*file, bytes.len())).collect(),
                written: ledger.written.clone(),
            };
            newest.holds(&committed).unwrap_or_else(|text| panic!("seed {seed} round {round}: {text}"));
            readers.push((newest, committed));
            let at = random.below(readers.len() as u64) as usize;
            let (reader, committed) = &readers[at];
            reader.pool.drop_cache();
            match reader.holds(committed) {
                Ok(()) => whole += 1,
                Err(text) if text == "ESTALE" && retain == "off" => stale += 1,
                Err(text) => panic!("seed {seed}, reader {at} in round {round}, retain {retain}: {text}"),
            }
            if readers.len() > 6 {
                readers.remove(0);
            }
        }
    }
    assert!(stale > 5 && whole > 100, "{stale} stale, {whole} whole");
}

/// Their parts name each other, so a txg would wait for as many answers as there are.
#[test]
fn directories_of_zones_that_are_reset_are_read_beside_the_txgs() {
    let store = new_store();
    let first = import(store.client(None), 1).unwrap();
    let ino = first.fs.lookup(first.fs.root(), b"f0").unwrap().ino;
    for at in 0..32 {
        let bytes = Prng::new(at).random_bytes(128 << 10);
        first.fs.write(ino, at * (128 << 10), &bytes, WriteFlags::default()).unwrap();
        first.pool.commit().unwrap();
    }
    first.fs.forget(ino, 1);
    first.fs.forget_all();
    first.pool.export().unwrap();
    drop(first);
    let reads: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let fates: Fates = Box::new({
        let reads = Arc::clone(&reads);
        move |_, kind, key| {
            if kind == Request::Get && key.starts_with("z/") {
                let name = std::thread::current().name().unwrap_or("").to_owned();
                *reads.lock().unwrap().entry(name).or_default() += 1;
            }
            Fate::Succeeds
        }
    });
    let env = Arc::new(SystemEnv::new());
    let machine = import_in(env, store.client(Some(fates)), &bucket_options()).unwrap();
    let ino = machine.fs.lookup(machine.fs.root(), b"f0").unwrap().ino;
    machine.fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }, &ROOT).unwrap();
    machine.pool.commit().unwrap();
    let before = std::mem::take(&mut *reads.lock().unwrap());
    let mut waiting = 0;
    for round in 0..500 {
        machine.fs.write(ino, 0, &[round as u8; 10], WriteFlags::default()).unwrap();
        machine.pool.commit().unwrap();
        let now = machine.pool.status().zones_waiting;
        waiting = waiting.max(now);
        if round > 10 && now == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    machine.fs.forget(ino, 1);
    assert!(
        waiting > 2 && machine.pool.status().zones_waiting == 0,
        "zones were emptied, and reset: {waiting}"
    );
    let reads = reads.lock().unwrap();
    let of = |name: &str| reads.get(name).copied().unwrap_or(0) + before.get(name).copied().unwrap_or(0);
    let others: u64 = reads.iter().filter(|(name, _)| *name != "directory").map(|(_, count)| count).sum();
    assert!(of("directory") >= 16 && others < 8, "before: {before:?}, then: {reads:?}");
}

/// Zones that wait for their reset at an export are reset by the next machine, and nothing is lost. This passes also if the export
/// itself resets zones after its last txg.
#[test]
fn a_pool_that_is_exported_with_emptied_zones_is_whole() {
    let mut most = 0;
    for seed in 0..8 {
        let store = new_store();
        let first = import(store.client(None), seed).unwrap();
        let (mut ledger, mut random) = (Ledger::default(), Prng::new(seed));
        for _ in 0..150 {
            first.step(&mut ledger, &mut random).unwrap();
        }
        first.empty(&mut ledger);
        // After so many txgs the zones are old enough, or not quite.
        for _ in 0..seed {
            first.step(&mut ledger, &mut random).unwrap();
            first.pool.commit().unwrap();
        }
        first.fs.forget_all();
        first.pool.export().unwrap();
        drop(first);
        let synced = ledger.written.iter().map(|(file, bytes)| (*file, bytes.len())).collect();
        ledger.synced = synced;
        let next = import(store.client(None), seed).unwrap();
        next.holds(&ledger).unwrap();
        let waiting = next.pool.status().zones_waiting;
        most = most.max(waiting);
        for _ in 0..8 {
            next.step(&mut ledger, &mut random).unwrap();
            next.pool.commit().unwrap();
        }
        let status = next.pool.status();
        assert!(
            status.zones_waiting == 0 && status.zones_empty + 8 > status.zones,
            "seed {seed}: {status:?}"
        );
        next.check();
    }
    assert!(most > 2, "zones were left to the import: {most}");
}

/// A cache device has what a machine has read or written of the metadata, also when nothing was evicted, and after an import.
#[test]
fn a_cache_device_keeps_metadata_near() {
    let store = new_store();
    let cache = SimDevice::new(SimConfig { zone_size: 1 << 20, ..SimConfig::default() }).unwrap();
    let first = import(store.client(None), 1).unwrap();
    first.pool.add_cache(Arc::new(cache.clone())).unwrap();
    let root = first.fs.root();
    for dir in 0..40 {
        let dir = first.fs.mkdir(root, format!("d{dir}").as_bytes(), 0o755, &ROOT).unwrap().ino;
        for file in 0..20 {
            let ino = first.fs.create(dir, format!("f{file}").as_bytes(), 0o644, &ROOT).unwrap().ino;
            first.fs.forget(ino, 1);
        }
        first.fs.forget(dir, 1);
        first.pool.commit().unwrap();
        first.pool.feed_caches();
    }
    first.fs.forget_all();
    first.pool.export().unwrap();
    drop(first);
    let walk = |with_cache: bool| {
        let reads = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&reads);
        let fates: Fates = Box::new(move |_, kind, key| {
            *counted.lock().unwrap() += u32::from(kind == Request::Get && key.starts_with("z/"));
            Fate::Succeeds
        });
        let machine = import(store.client(Some(fates)), 2).unwrap();
        if with_cache {
            machine.pool.attach_cache(Arc::new(cache.clone())).unwrap();
        }
        let before = *reads.lock().unwrap();
        for dir in 0..40 {
            let dir = machine.fs.lookup(machine.fs.root(), format!("d{dir}").as_bytes()).unwrap().ino;
            for file in 0..20 {
                let ino = machine.fs.lookup(dir, format!("f{file}").as_bytes()).unwrap().ino;
                machine.fs.forget(ino, 1);
            }
            machine.fs.forget(dir, 1);
        }
        machine.fs.forget_all();
        let walked = *reads.lock().unwrap() - before;
        machine.pool.export().unwrap();
        walked
    };
    let (near, far) = (walk(true), walk(false));
    assert!(near <= 3 && far > 20, "{near} reads with the cache device, {far} without");
}

/// What docs/object-store.md says of requests.
#[test]
fn requests_are_as_few_as_is_said() {
    let store = new_store();
    let client = Arc::new(Mutex::new(0u64));
    let counted = Arc::clone(&client);
    let fates: Fates = Box::new(move |_, _, _| {
        *counted.lock().unwrap() += 1;
        Fate::Succeeds
    });
    let machine = import(store.client(Some(fates)), 1).unwrap();
    let sent = || std::mem::take(&mut *client.lock().unwrap());
    let ino = machine.fs.lookup(machine.fs.root(), b"f0").unwrap().ino;
    let write = |at: u64| {
        machine.fs.write(ino, at, &[1; 5000], WriteFlags::default()).unwrap();
    };
    // The first ones open zones, those of the log too.
    for at in 0..4 {
        write(at * 5000);
        machine.fs.fsync(ino, false).unwrap();
        machine.pool.commit().unwrap();
    }
    sent();
    for at in 4..14 {
        write(at * 5000);
        machine.fs.fsync(ino, false).unwrap();
        assert_eq!(sent(), 1, "an fsync");
    }
    machine.pool.commit().unwrap();
    let commit = sent();
    assert!((3..=8).contains(&commit), "a commit: {commit}");
    machine.pool.commit().unwrap();
    machine.fs.fsync(ino, false).unwrap();
    assert_eq!(sent(), 0, "an idle pool");
    machine.fs.forget(ino, 1);
}

/// One machine imports the pool while another one writes and syncs between its requests. One of them wins, and whatever
/// any of them acknowledged is in the pool.
#[test]
fn machines_that_fight_lose_nothing_that_was_synced() {
    let rounds = rounds();
    let store = new_store();
    let mut ledger = Ledger::default();
    let mut holder = import(store.client(None), 1).unwrap();
    let (mut taken, mut kept) = (0, 0);
    for round in 0..rounds {
        let mut random = Prng::new(round);
        for _ in 0..random.below(4) {
            holder.step(&mut ledger, &mut random).unwrap();
        }
        if ledger.written.values().map(Vec::len).sum::<usize>() > 4 << 20 {
            holder.empty(&mut ledger);
        }
        // From a request on, the holder works between all requests of the other one.
        let begin = random.below(16);
        let end = begin + 1 + random.below(12);
        let shared = Arc::new(Mutex::new((holder, ledger, random)));
        let fates: Fates = Box::new({
            let shared = Arc::downgrade(&shared);
            move |number, _, _| {
                // Only during the import, which may be shorter.
                if (begin..end).contains(&number)
                    && let Some(shared) = shared.upgrade()
                    && let Ok(mut fighting) = shared.try_lock()
                {
                    let (holder, ledger, random) = &mut *fighting;
                    // An error means that it is fenced: nothing was acknowledged.
                    let _ = holder.step(ledger, random);
                }
                Fate::Succeeds
            }
        });
        let other = import(store.client(Some(fates)), 1000 + round);
        let mut guard = shared.lock().unwrap();
        let (old, after, random) = &mut *guard;
        ledger = std::mem::take(after);
        match other {
            Ok(other) => {
                other.holds(&ledger).unwrap_or_else(|text| panic!("round {round}: {text}"));
                // The old one cannot sync any more.
                let mut lost = ledger.clone();
                lost.synced.clear();
                for _ in 0..3 {
                    let _ = old.step(&mut lost, random);
                }
                assert!(lost.synced.is_empty(), "round {round}: a fenced machine acknowledged");
                other.go_on_from(&mut ledger);
                holder = other;
                taken += 1;
            }
            Err(_) => {
                // The old one committed in between, or was disturbed: a third one takes over.
                holder = import(store.client(None), 2000 + round).unwrap();
                holder.holds(&ledger).unwrap_or_else(|text| panic!("round {round}, third: {text}"));
                holder.go_on_from(&mut ledger);
                kept += 1;
            }
        }
    }
    holder.check();
    assert!(taken > 0 && kept > 0, "both happen: {taken} {kept}");
}
