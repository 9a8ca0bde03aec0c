//! A pool in memory: created, mounted, crashed and mounted again.

use std::sync::Arc;
use std::time::Duration;
use terrane_dataset::Dataset;
use terrane_device::{Device, SimConfig, SimDevice, Survival};
use terrane_format::log::LogHome;
use terrane_object::ObjectSets;
use terrane_oracle::{Failure, failed};
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_posix::{Cred, Fs, WholeReplay, replay_pool};
use terrane_store::env::{Env, SeededEnv, SystemEnv};
use terrane_wire::{DeviceIdx, Txg, ZoneIdx};

/// The superuser.
pub const ROOT: Cred = Cred { uid: 0, gid: 0, umask: 0 };
/// A user without privileges.
pub const USER: Cred = Cred { uid: 1000, gid: 100, umask: 0 };

const DNODE_SIZES: [&str; 4] = ["auto", "legacy", "1k", "auto"];

/// How the machine is configured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of the devices and of the pool.
    pub seed: u64,
    /// Zones of the first device.
    pub zones: u32,
    /// Like a zoned drive, or like a file.
    pub drive: bool,
    /// Like a file or disk that keeps old content when zones are reset, and that carried another pool before.
    pub stale: bool,
    /// Writable bytes of a zone; its size is the next power of two.
    pub capacity: u64,
    /// Three of four zones have less capacity, down to an eighth; anchors do not.
    pub uneven: bool,
    /// Maximum number of zones that are neither empty nor full; 0 means no limit.
    pub max_active: u32,
    /// Further devices on the same power supply: with larger zones, of the other type, and the last with a
    /// larger write unit.
    pub companions: u32,
    /// Devices on the same power supply that may become log devices: the first like a file, the second like a drive.
    pub log_devices: u32,
    /// An `fsync` may use an intent log.
    pub intent_log: bool,
    /// Txgs sync in threads of their own and start by themselves: nothing is determined by the seed any more.
    pub threads: bool,
    /// Properties of the file system, with their values.
    pub props: Vec<(&'static str, &'static str)>,
}

impl Plan {
    /// 64 zones of 1 MiB, a small record size, and a device of either type.
    pub fn small(seed: u64) -> Plan {
        Plan {
            seed,
            zones: 64,
            drive: seed.is_multiple_of(2),
            stale: seed % 4 == 1,
            capacity: 1 << 20,
            uneven: false,
            max_active: 0,
            companions: 0,
            log_devices: 0,
            intent_log: false,
            threads: false,
            // One that is widened at the first read, one that never is, and the default.
            props: vec![("recordsize", "4K"), ("dnodesize", DNODE_SIZES[(seed / 3 % 4) as usize])],
        }
    }

    fn capacity_of(&self, zone: u32) -> u64 {
        let less = if self.uneven && zone > 1 { self.capacity / 24 * u64::from(zone % 4) } else { 0 };
        (self.capacity - less).next_multiple_of(4096)
    }
}

/// A pool in memory, and the file system in it once it is mounted.
pub struct Machine {
    /// The first device; it knows its companions.
    pub device: SimDevice,
    /// The pool.
    pub pool: Arc<Pool>,
    /// The object sets in it.
    pub objects: Arc<ObjectSets>,
    fs: Option<Arc<Fs>>,
}

/// In every other workload the relocation index has no memory.
fn options(read_only: bool, seed: u64, intent_log: bool) -> ImportOptions {
    let index_bytes = if seed.is_multiple_of(2) { u64::MAX } else { 0 };
    ImportOptions { cache_bytes: 2 << 20, read_only, index_bytes, intent_log, ..ImportOptions::default() }
}

fn import_env(seed: u64) -> Arc<dyn Env> {
    Arc::new(SeededEnv::new(seed ^ 0x005e_ed0f_1a7e_12e5))
}

/// All devices of one power supply, as a pool takes them.
fn devices(first: &SimDevice) -> Vec<Arc<dyn Device>> {
    let all = std::iter::once(first.clone()).chain(first.companions());
    all.map(|device| Arc::new(device) as Arc<dyn Device>).collect()
}

/// The name of a device that may become a log device.
fn log_device_name(nth: u32) -> String {
    format!("log {nth}")
}

/// The devices on one power supply that may become log devices.
pub fn log_devices_of(first: &SimDevice) -> Vec<SimDevice> {
    let all = first.companions();
    all.into_iter().filter(|device| device.info().name.starts_with("log ")).collect()
}

/// The same devices without some that may be log devices.
pub fn without_log_devices(first: &SimDevice, is_left_out: impl Fn(&str) -> bool) -> SimDevice {
    let first = first.restarted(Survival::Everything);
    let is_member = |device: &SimDevice| !device.info().name.starts_with("log ");
    let rest = first.companions().into_iter();
    first.share_power(rest.filter(|device| is_member(device) || !is_left_out(&device.info().name)).collect());
    first
}

/// The device with this index in the pool, of those on one power supply. `None`: there are fewer.
pub fn device_of(first: &SimDevice, device: DeviceIdx) -> Option<SimDevice> {
    match usize::from(device.0).checked_sub(1) {
        None => Some(first.clone()),
        Some(nth) => first.companions().get(nth).cloned(),
    }
}

impl Machine {
    /// A new pool with an empty file system, committed.
    pub fn create(plan: &Plan) -> Result<Machine, Failure> {
        let config = SimConfig {
            seed: plan.seed,
            zone_count: plan.zones,
            zone_size: plan.capacity.next_power_of_two(),
            capacities: (0..plan.zones).map(|zone| plan.capacity_of(zone)).collect(),
            max_active: plan.max_active,
            hardware_pointers: plan.drive,
            resets_keep_bytes: plan.stale,
            ..SimConfig::default()
        };
        let device = SimDevice::new(config).map_err(failed("device"))?;
        let companion = |nth: u32| {
            SimDevice::new(SimConfig {
                name: format!("sim {nth}"),
                seed: plan.seed + u64::from(nth),
                zone_count: (plan.zones / 2).max(32),
                zone_size: plan.capacity.next_power_of_two() << (nth % 2),
                hardware_pointers: plan.drive != (nth % 2 == 1),
                write_unit: if nth == 2 { 16 << 10 } else { 4096 },
                ..SimConfig::default()
            })
        };
        let for_log = |nth: u32| {
            SimDevice::new(SimConfig {
                name: log_device_name(nth),
                seed: plan.seed + 100 + u64::from(nth),
                zone_count: 8,
                zone_size: 1 << 20,
                hardware_pointers: nth % 2 == 1,
                write_unit: if plan.seed % 7 == 3 { 8192 } else { 4096 },
                ..SimConfig::default()
            })
        };
        let companions = (1..=plan.companions).map(companion).chain((0..plan.log_devices).map(for_log));
        let companions: Result<Vec<SimDevice>, _> = companions.collect();
        device.share_power(companions.map_err(failed("device"))?);
        if plan.stale {
            // Names, txgs and places of the older pool are those of the newer: only the pool's id differs.
            let older = Machine::format(plan, &device, !plan.seed)?;
            older.fs().mkdir(older.fs().root(), b"older", 0o755, &ROOT).map_err(failed("older"))?;
            // Imported once more, it lies in both anchors, and in the second with a higher incarnation than
            // the newer one has.
            Machine::import(&older.export()?, !plan.seed, false)?.export()?;
        }
        Machine::format(plan, &device, plan.seed)
    }

    fn format(plan: &Plan, device: &SimDevice, seed: u64) -> Result<Machine, Failure> {
        let device = device.clone();
        let env: Arc<dyn Env> =
            if plan.threads { Arc::new(SystemEnv::new()) } else { Arc::new(SeededEnv::new(seed)) };
        let mut devices = devices(&device);
        devices.truncate(1 + plan.companions as usize);
        let create = CreateOptions::named("sim");
        let pool = Pool::create(devices, &create, env, &options(false, seed, plan.intent_log))
            .map_err(failed("create"))?;
        let objects = ObjectSets::create(Arc::clone(&pool)).map_err(failed("create objects"))?;
        let dataset = Dataset::create_root(&objects, &plan.props).map_err(failed("create data set"))?;
        Fs::format(&dataset, &ROOT).map_err(failed("format"))?;
        let fs = Fs::open(Arc::new(dataset)).map_err(failed("mount"))?;
        Ok(Machine { device, pool, objects, fs: Some(fs) })
    }

    /// Imports the pool on a device; does not mount it. An `fsync` commits.
    pub fn import(device: &SimDevice, seed: u64, read_only: bool) -> Result<Machine, Failure> {
        Machine::import_as(device, import_env(seed), &options(read_only, seed, false))
    }

    /// The same with an intent log. What that has must be [replayed](Machine::replay) before a mount.
    pub fn import_logged(device: &SimDevice, seed: u64) -> Result<Machine, Failure> {
        let env = import_env(seed);
        // Another time than that of the life before: a replay restores times.
        env.sleep(Duration::from_secs(1 + seed % 100_000));
        Machine::import_as(device, env, &options(false, seed, true))
    }

    /// The same, after its records were given up.
    pub fn import_without_log(device: &SimDevice, seed: u64) -> Result<Machine, Failure> {
        let discard = ImportOptions { discard_log: true, ..options(false, seed, true) };
        Machine::import_as(device, import_env(seed), &discard)
    }

    fn import_as(device: &SimDevice, env: Arc<dyn Env>, options: &ImportOptions) -> Result<Machine, Failure> {
        let pool = Pool::import(devices(device), env, options).map_err(failed("import"))?;
        let objects = ObjectSets::open(Arc::clone(&pool)).map_err(failed("open objects"))?;
        Ok(Machine { device: device.clone(), pool, objects, fs: None })
    }

    /// Makes again what the intent log has, and commits it. Returns the number of records.
    pub fn replay(&self) -> Result<u64, Failure> {
        let mut open = |_| Dataset::open_root(&self.objects).map(Arc::new);
        replay_pool(&self.pool, &mut open, &mut WholeReplay).map_err(failed("replay"))
    }

    /// Mounts the root file system. A mount before it is replaced.
    pub fn mount(&mut self) -> Result<(), Failure> {
        let dataset = Dataset::open_root(&self.objects).map_err(failed("open data set"))?;
        self.fs = Some(Fs::open(Arc::new(dataset)).map_err(failed("mount"))?);
        Ok(())
    }

    /// The device and the zone of a copy of the log.
    pub fn log_place(&self, home: &LogHome) -> Option<(SimDevice, ZoneIdx)> {
        match home {
            LogHome::Lent(home) => Some((device_of(&self.device, home.device)?, home.zone)),
            LogHome::Own { device, zone, .. } => {
                let named = self.pool.log_devices().into_iter().find(|row| row.id == *device)?;
                let mut all = log_devices_of(&self.device).into_iter();
                Some((all.find(|device| device.info().name == named.name)?, *zone))
            }
        }
    }

    /// The mounted file system.
    pub fn fs(&self) -> &Arc<Fs> {
        self.fs.as_ref().expect("a scenario mounts before it uses files")
    }

    /// The newest durable txg.
    pub fn durable_txg(&self) -> Txg {
        self.pool.synced_txg()
    }

    /// Whether operations are expected to work.
    pub fn is_alive(&self) -> bool {
        self.device.is_powered() && self.pool.status().failed.is_none()
    }

    /// Nothing may be dirty.
    pub fn check(&self) -> Result<(), Failure> {
        let report = terrane_check::check(&self.objects, &mut |_| {});
        match report.is_clean() {
            true => Ok(()),
            false => Err(Failure(format!("check: {report}"))),
        }
    }

    /// Unmounts and exports: everything is committed.
    pub fn export(self) -> Result<SimDevice, Failure> {
        if let Some(fs) = &self.fs {
            fs.forget_all();
        }
        self.pool.export().map_err(failed("export"))?;
        Ok(self.device.clone())
    }

    /// Stops as if the machine had lost power; the device stays as it is.
    pub fn abandon(self) -> SimDevice {
        self.device.cut_power();
        self.device.clone()
    }
}

/// A pool that was neither exported nor abandoned would stay in memory, and a run has thousands of them.
impl Drop for Machine {
    fn drop(&mut self) {
        self.pool.abandon();
    }
}
