//! A pool in a file, empty but for its root dataset.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrane::Dataset;
use terrane_device::{Device, FileDevice};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SystemEnv;

const ZONE_BYTES: u64 = 64 << 20;
const DEVICE_BYTES: u64 = 4 << 30;

pub struct BenchPool {
    pub pool: Arc<Pool>,
    pub objects: Arc<ObjectSets>,
    pub dataset: Dataset,
}

/// Where this process puts its pool.
pub fn image_path(dir: &Path) -> PathBuf {
    dir.join(format!("terrane-bench-{}.img", std::process::id()))
}

#[allow(dead_code, reason = "not every benchmark has data sets like any other")]
pub fn create(path: &Path) -> BenchPool {
    create_with(path, &[])
}

pub fn create_with(path: &Path, properties: &[(&str, &str)]) -> BenchPool {
    let _ = std::fs::remove_file(path);
    let device = FileDevice::create(path, DEVICE_BYTES, ZONE_BYTES).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let import = ImportOptions { cache_bytes: 512 << 20, dirty_bytes: 768 << 20, ..ImportOptions::default() };
    let create = CreateOptions::named("bench");
    let pool = Pool::create(devices, &create, Arc::new(SystemEnv::new()), &import).unwrap();
    let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
    let dataset = Dataset::create_root(&objects, properties).unwrap();
    BenchPool { pool, objects, dataset }
}
