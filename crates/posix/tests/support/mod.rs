//! A pool in memory that tests can mount, unmount and crash.
#![allow(dead_code, reason = "unit tests of the library include it too, and neither uses all of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrane_dataset::{Dataset, ObjectZap, POOL_DIRECTORY, ZapPolicy};
use terrane_device::{Device, Fault, SimConfig, SimDevice};
use terrane_format::BlockPtr;
use terrane_object::{FreeDecision, FreePolicy, ObjectSets};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{Attr, Cred, Errno, Fs, Ino, Loss, SetAttr, WholeReplay, WriteFlags, replay_pool};
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_wire::{ObjectId, Txg};

pub const ROOT_CRED: Cred = Cred { uid: 0, gid: 0, umask: 0 };
pub const USER: Cred = Cred { uid: 1000, gid: 100, umask: 0 };

pub struct Machine {
    seed: u64,
    /// Txgs sync in threads of their own, and periodically.
    threads: bool,
    device: SimDevice,
    mounted: Option<Mounted>,
    kept: Option<Arc<KeptTxg>>,
}

/// Keeps all blocks of one snapshot: those born until this txg that left the live set after it. 0: none.
#[derive(Default)]
struct KeptTxg(AtomicU64);

impl FreePolicy for KeptTxg {
    fn decide(&self, block: &BlockPtr, txg: Txg) -> FreeDecision {
        let kept = self.0.load(Ordering::Relaxed);
        if block.latest_birth().0 <= kept && txg.0 > kept { FreeDecision::Keep } else { FreeDecision::Free }
    }
}

struct Mounted {
    pool: Arc<Pool>,
    objects: Arc<ObjectSets>,
    fs: Arc<Fs>,
}

fn options() -> ImportOptions {
    ImportOptions {
        cache_bytes: 16 << 20,
        commit_period: Duration::from_millis(20),
        ..ImportOptions::default()
    }
}

fn env(seed: u64, threads: bool) -> Arc<dyn Env> {
    if threads { Arc::new(SystemEnv::new()) } else { Arc::new(SeededEnv::new(seed)) }
}

impl Machine {
    /// 512 MiB in zones of 8 MiB.
    pub fn new(seed: u64, props: &[(&str, &str)]) -> Machine {
        Machine::make(seed, props, false, 64, 8 << 20)
    }

    /// Txgs sync concurrently with the test, at least every 20 ms.
    pub fn with_threads(seed: u64) -> Machine {
        Machine::make(seed, &[], true, 64, 8 << 20)
    }

    pub fn sized_with_threads(seed: u64, zone_count: u32, zone_size: u64) -> Machine {
        Machine::make(seed, &[], true, zone_count, zone_size)
    }

    pub fn sized(seed: u64, props: &[(&str, &str)], zone_count: u32, zone_size: u64) -> Machine {
        Machine::make(seed, props, false, zone_count, zone_size)
    }

    /// As created by versions without feature flags.
    pub fn without_features(seed: u64) -> Machine {
        let create = CreateOptions { features: Vec::new(), ..CreateOptions::named("test") };
        Machine::make_as(&create, seed, &[], false, 64, 8 << 20)
    }

    fn make(seed: u64, props: &[(&str, &str)], threads: bool, zone_count: u32, zone_size: u64) -> Machine {
        Machine::make_as(&CreateOptions::named("test"), seed, props, threads, zone_count, zone_size)
    }

    fn make_as(
        create: &CreateOptions,
        seed: u64,
        props: &[(&str, &str)],
        threads: bool,
        zone_count: u32,
        zone_size: u64,
    ) -> Machine {
        let config = SimConfig { seed, zone_count, zone_size, ..SimConfig::default() };
        let device = SimDevice::new(config).unwrap();
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let pool = Pool::create(devices, create, env(seed, threads), &options()).unwrap();
        let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
        let dataset = Dataset::create_root(&objects, props).unwrap();
        Fs::format(&dataset, &ROOT_CRED).unwrap();
        let fs = Fs::open(Arc::new(dataset)).unwrap();
        Machine { seed, threads, device, mounted: Some(Mounted { pool, objects, fs }), kept: None }
    }

    fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.mounted().pool
    }

    pub fn fs(&self) -> &Arc<Fs> {
        &self.mounted().fs
    }

    pub fn objects(&self) -> &Arc<ObjectSets> {
        &self.mounted().objects
    }

    /// Commits, and keeps the blocks of that commit from now on, whatever the live set frees. Returns its root.
    /// Mounts again the first time.
    pub fn take_snapshot(&mut self) -> BlockPtr {
        if self.kept.is_none() {
            self.kept = Some(Arc::default());
            self.remount();
        }
        self.fs().sync().unwrap();
        self.kept.as_ref().unwrap().0.store(self.pool().synced_txg().0, Ordering::Relaxed);
        self.fs().dataset().object_set().root()
    }

    /// The file system as of a root of [`take_snapshot`](Self::take_snapshot).
    pub fn open_snapshot(&self, root: &BlockPtr) -> Arc<Fs> {
        let dataset = self.fs().dataset();
        let set = ObjectId(dataset.object_set().id().0);
        Fs::open(Arc::new(dataset.open_at(set, root).unwrap())).unwrap()
    }

    /// Unmounts, exports, imports and mounts again.
    pub fn remount(&mut self) {
        let Mounted { pool, objects, fs } = self.mounted.take().unwrap();
        fs.forget_all();
        drop(fs);
        pool.export().unwrap();
        drop((objects, pool));
        self.mount();
    }

    /// Drops the file system without forgetting lookups, exports, imports and mounts again.
    pub fn remount_unforgotten(&mut self) {
        let Mounted { pool, objects, fs } = self.mounted.take().unwrap();
        drop(fs);
        pool.export().unwrap();
        drop((objects, pool));
        self.mount();
    }

    /// Corrupts a record of a file in all its copies, and drops it from memory.
    pub fn rot(&self, ino: Ino, block: u64) {
        let object = self.fs().dataset().object_set().hold(ObjectId(ino)).unwrap();
        self.rot_block(&object.stored_pointer(block).unwrap().unwrap());
    }

    /// Corrupts a block in all its copies, and drops it from memory.
    pub fn rot_block(&self, ptr: &BlockPtr) {
        let BlockPtr::Normal(normal) = ptr else { panic!("not stored in a block of its own: {ptr:?}") };
        for copy in normal.copies() {
            let (_, home, offset) = self.pool().locate(copy, normal.psize).unwrap();
            self.device.rot(home.zone, offset + 7, &[0xff]).unwrap();
        }
        self.pool().drop_cache();
    }

    /// Every read of the device fails, until this is called with `false`.
    pub fn fail_reads(&self, fails: bool) {
        self.device.clear_faults();
        if fails {
            self.device.inject(Fault::ReadError { zone: None, one_in: 1 });
        }
    }

    /// Cuts the power: every device operation fails from now on.
    pub fn cut_power(&self) {
        self.device.cut_power();
    }

    /// Cuts the power and restores it: uncommitted changes are lost.
    pub fn crash(&mut self) {
        let Mounted { pool, objects, fs } = self.mounted.take().unwrap();
        self.device.cut_power();
        pool.abandon();
        drop((fs, objects, pool));
        self.device = self.device.after_power_loss(self.seed);
        self.mount();
    }

    /// Mounts again in another way: after an export, as [`remount`](Self::remount).
    pub fn remount_as(&mut self, open: impl FnOnce(Arc<Dataset>) -> Arc<Fs>) {
        let Mounted { pool, objects, fs } = self.mounted.take().unwrap();
        fs.forget_all();
        drop(fs);
        pool.export().unwrap();
        drop((objects, pool));
        self.mount_as(open);
    }

    /// A copy of this machine after a power cut, mounted in this way. It commits on request only. This one goes on.
    pub fn after_power_cut(&self, open: impl FnOnce(Arc<Dataset>) -> Arc<Fs>) -> Machine {
        let device = self.device.after_power_loss(self.seed);
        let mut copy =
            Machine { seed: self.seed, threads: false, device, mounted: None, kept: self.kept.clone() };
        copy.mount_as(open);
        copy
    }

    /// The server dies and a successor takes over its mount; the kernel forgets nothing. `lost`: see
    /// [`Fs::take_over`].
    pub fn die(&mut self, lost: &[Ino]) {
        let Mounted { pool, objects, fs } = self.mounted.take().unwrap();
        pool.abandon();
        drop((fs, objects, pool));
        let lost = lost.iter().map(|ino| (*ino, Loss::default())).collect();
        self.mount_as(|dataset| Fs::take_over(dataset, lost).unwrap());
    }

    fn mount(&mut self) {
        self.mount_as(|dataset| Fs::open(dataset).unwrap());
    }

    fn mount_as(&mut self, open: impl FnOnce(Arc<Dataset>) -> Arc<Fs>) {
        self.seed += 1;
        let env = env(self.seed ^ 0x5555, self.threads);
        let pool = Pool::import(vec![Arc::new(self.device.clone())], env, &options()).unwrap();
        let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
        if let Some(kept) = &self.kept {
            let mos = objects.mos();
            let directory = ObjectZap::new(&ZapPolicy::of(mos), mos.hold(POOL_DIRECTORY).unwrap());
            let id = directory.lookup_u64(b"root_dataset").unwrap().unwrap();
            let policy: Arc<KeptTxg> = Arc::clone(kept);
            objects.open_objset(ObjectId(id), policy).unwrap();
        }
        let root = || Arc::new(Dataset::open_root(&objects).unwrap());
        if pool.unreplayed_log().is_some() {
            replay_pool(&pool, &mut |_| Ok(root()), &mut WholeReplay).unwrap();
        }
        let fs = open(root());
        self.mounted = Some(Mounted { pool, objects, fs });
    }
}

impl Drop for Machine {
    /// A running pool and its client refer to each other, so the device would never be dropped.
    fn drop(&mut self) {
        if let Some(mounted) = &self.mounted {
            mounted.pool.abandon();
        }
    }
}

/// The warnings and errors that all tests of this process have logged.
pub struct LogLines;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl LogLines {
    pub fn start() -> LogLines {
        // It fails if another test was first, with the same logger.
        let _ = log::set_logger(&LogLines);
        log::set_max_level(log::LevelFilter::Warn);
        LogLines
    }

    pub fn that_contain(&self, text: &str) -> Vec<String> {
        LINES.lock().unwrap().iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

impl log::Log for LogLines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Short forms for common operations.
pub trait Short {
    fn ino(&self, dir: Ino, name: &str) -> Result<Ino, Errno>;
    fn file(&self, dir: Ino, name: &str) -> Attr;
    fn dir(&self, dir: Ino, name: &str) -> Attr;
    fn put(&self, ino: Ino, offset: u64, data: &[u8]);
    fn bytes(&self, ino: Ino) -> Vec<u8>;
    fn names(&self, dir: Ino) -> Vec<String>;
    fn size(&self, ino: Ino, size: u64) -> Result<Attr, Errno>;
}

impl Short for Fs {
    /// Looks a name up, and leaves no lookup behind.
    fn ino(&self, dir: Ino, name: &str) -> Result<Ino, Errno> {
        let attr = self.lookup(dir, name.as_bytes())?;
        self.forget(attr.ino, 1);
        Ok(attr.ino)
    }

    fn file(&self, dir: Ino, name: &str) -> Attr {
        self.create(dir, name.as_bytes(), 0o644, &USER).unwrap()
    }

    fn dir(&self, dir: Ino, name: &str) -> Attr {
        self.mkdir(dir, name.as_bytes(), 0o755, &USER).unwrap()
    }

    fn put(&self, ino: Ino, offset: u64, data: &[u8]) {
        assert_eq!(self.write(ino, offset, data, WriteFlags::default()).unwrap() as usize, data.len());
    }

    fn bytes(&self, ino: Ino) -> Vec<u8> {
        let mut out = Vec::new();
        self.read(ino, 0, u32::try_from(self.getattr(ino).unwrap().size).unwrap(), &mut out).unwrap();
        out
    }

    /// Sorted, without "." and "..".
    fn names(&self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.readdir(dir, 0, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })
        .unwrap();
        assert_eq!(names[..2], [".", ".."]);
        names.drain(..2);
        names.sort();
        names
    }

    fn size(&self, ino: Ino, size: u64) -> Result<Attr, Errno> {
        self.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }, &USER)
    }
}
