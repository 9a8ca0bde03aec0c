//! A pool in a file with 200 directories, mounted in process.

use std::path::Path;
use std::sync::Arc;
use terrane::{Cred, Dataset, Fs, Ino};
use terrane_device::{Device, FileDevice};
use terrane_object::{Objects, Pool};
use terrane_pool::{CreateOptions, ImportOptions, SystemEnv};

pub const DIRS: usize = 200;
const ZONE_BYTES: u64 = 64 << 20;
const DEVICE_BYTES: u64 = 4 << 30;
pub const OWNER: Cred = Cred { uid: 0, gid: 0 };

pub struct Mounted {
    pub pool: Arc<Pool>,
    _objects: Arc<Objects>,
    pub fs: Arc<Fs>,
    pub dirs: Vec<Ino>,
}

pub fn mount(path: &Path) -> Mounted {
    let _ = std::fs::remove_file(path);
    let device = FileDevice::create(path, DEVICE_BYTES, ZONE_BYTES).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let import = ImportOptions { cache_bytes: 512 << 20, ..ImportOptions::default() };
    let create = CreateOptions { name: "bench".into() };
    let pool = Pool::create(devices, &create, Arc::new(SystemEnv::new()), &import).unwrap();
    let objects = Objects::create(Arc::clone(&pool)).unwrap();
    let dataset = Dataset::create_root(&objects, &[]).unwrap();
    Fs::format(&dataset, &OWNER).unwrap();
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    // What a mount with 3 GiB of memory keeps.
    fs.keep_inodes(192 << 10);
    let dirs = (0..DIRS)
        .map(|number| fs.mkdir(fs.root(), format!("d{number}").as_bytes(), 0o755, &OWNER).unwrap().ino)
        .collect();
    fs.sync().unwrap();
    Mounted { pool, _objects: objects, fs, dirs }
}
