//! One file, and the pool on it, which is closed and opened again so that nothing is cached.

use crate::Options;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use terrane::{Cred, Dataset, Fs};
use terrane_device::{Device, FileDevice, OpenMode};
use terrane_object::ObjectSets;
use terrane_pool::create::zone_size_for;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SystemEnv;

const IMAGE_BYTES: u64 = 8 << 30;

/// The limits of a mount with 3 GiB of memory.
fn import_options() -> ImportOptions {
    ImportOptions {
        cache_bytes: 1536 << 20,
        dirty_bytes: 768 << 20,
        discard: false,
        ..ImportOptions::default()
    }
}
const INODES: usize = 192 << 10;

pub struct Disk {
    image: PathBuf,
    zone_size: u64,
    /// Created here, and removed on drop.
    temporary: bool,
    between: Option<String>,
}

impl Disk {
    pub fn new(options: &Options) -> Disk {
        let temporary = options.image.is_none();
        let named = || options.dir.join(format!("terrane-bench-{}.img", std::process::id()));
        let image = options.image.clone().unwrap_or_else(named);
        if temporary {
            drop(FileDevice::create(&image, IMAGE_BYTES, zone_size_for(IMAGE_BYTES)).unwrap());
        }
        let zone_size = zone_size_for(std::fs::metadata(&image).unwrap().len());
        Disk { image, zone_size, temporary, between: options.between_cmd.clone() }
    }

    fn device(&self) -> Vec<Arc<dyn Device>> {
        vec![Arc::new(FileDevice::open(&self.image, OpenMode::ReadWrite, self.zone_size).unwrap())]
    }

    /// A new pool with a file system of these properties.
    pub fn create(&self, properties: &[(&str, &str)], owner: &Cred, fill: impl FnOnce(&Fs)) {
        let (create, env) = (CreateOptions::named("bench"), Arc::new(SystemEnv::new()));
        let pool = Pool::create(self.device(), &create, env, &import_options()).unwrap();
        let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
        let dataset = Dataset::create_root(&objects, properties).unwrap();
        Fs::format(&dataset, owner).unwrap();
        with(&pool, dataset, fill);
    }

    /// The pool with cold caches.
    pub fn cold<T>(&self, phase: &str, what: impl FnOnce(&Fs) -> T) -> T {
        if let Some(command) = &self.between {
            let done = Command::new("sh").args(["-c", command]).env("FSBENCH_NEXT_PHASE", phase).status();
            assert!(done.unwrap().success(), "{command}");
        }
        let pool = Pool::import(self.device(), Arc::new(SystemEnv::new()), &import_options()).unwrap();
        let objects = ObjectSets::open(Arc::clone(&pool)).unwrap();
        with(&pool, Dataset::open_root(&objects).unwrap(), what)
    }
}

fn with<T>(pool: &Arc<Pool>, dataset: Dataset, what: impl FnOnce(&Fs) -> T) -> T {
    let fs = Fs::open(Arc::new(dataset)).unwrap();
    fs.set_idle_inodes_max(INODES);
    let outcome = what(&fs);
    drop(fs);
    pool.export().unwrap();
    outcome
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_file(&self.image);
        }
    }
}
