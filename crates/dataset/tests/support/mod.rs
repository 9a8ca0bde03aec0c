//! A pool on a simulated device.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]
#![allow(dead_code, reason = "unit tests of the library include it too, and neither uses all of it")]

use std::sync::Arc;
use terrane_device::{Device, SimConfig, SimDevice};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::{Env, SeededEnv};

pub struct Machine {
    seed: u64,
    pub device: SimDevice,
    pub pool: Arc<Pool>,
    pub objects: Arc<ObjectSets>,
}

impl Machine {
    pub fn new(seed: u64) -> Machine {
        Machine::with_zones_of(seed, 8 << 20)
    }

    pub fn with_zones_of(seed: u64, zone_size: u64) -> Machine {
        Machine::make(seed, zone_size, &CreateOptions::named("test"))
    }

    /// A pool of the first version.
    pub fn without_features(seed: u64) -> Machine {
        let create = CreateOptions { features: Vec::new(), ..CreateOptions::named("test") };
        Machine::make(seed, 8 << 20, &create)
    }

    fn make(seed: u64, zone_size: u64, create: &CreateOptions) -> Machine {
        let config = SimConfig { seed, zone_size, ..SimConfig::default() };
        let device = SimDevice::new(config).unwrap();
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed));
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let pool = Pool::create(devices, create, env, &ImportOptions::default()).unwrap();
        Machine { seed, device, objects: ObjectSets::create(Arc::clone(&pool)).unwrap(), pool }
    }

    /// Cuts the power: uncommitted changes are lost.
    pub fn crash(self) -> Machine {
        let Machine { seed, device, pool, objects } = self;
        pool.abandon();
        device.cut_power();
        drop((objects, pool));
        let device = device.after_power_loss(seed);
        let env: Arc<dyn Env> = Arc::new(SeededEnv::new(seed ^ 0x5555));
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let pool = Pool::import(devices, env, &ImportOptions::default()).unwrap();
        Machine { seed, device, objects: ObjectSets::open(Arc::clone(&pool)).unwrap(), pool }
    }
}
