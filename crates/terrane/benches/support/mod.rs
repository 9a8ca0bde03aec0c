//! A pool in a file with 200 directories, mounted in process.

pub mod pool;

use std::path::Path;
use std::sync::Arc;
use terrane::{Cred, Fs, Ino};
use terrane_object::ObjectSets;
use terrane_pool::Pool;

pub const DIRS: usize = 200;
pub const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };

pub struct Mounted {
    pub pool: Arc<Pool>,
    objects: Arc<ObjectSets>,
    pub fs: Arc<Fs>,
    pub dirs: Vec<Ino>,
}

impl Mounted {
    #[allow(dead_code, reason = "each benchmark is a program of its own")]
    pub fn objects(&self) -> &Arc<ObjectSets> {
        &self.objects
    }
}

#[allow(dead_code, reason = "not every benchmark has data sets like any other")]
pub fn mount(path: &Path) -> Mounted {
    mount_with(path, &[])
}

/// With properties of the dataset.
pub fn mount_with(path: &Path, properties: &[(&str, &str)]) -> Mounted {
    let made = pool::create_with(path, properties);
    Fs::format(&made.dataset, &OWNER).unwrap();
    let fs = Fs::open(Arc::new(made.dataset)).unwrap();
    // The limit in a mount with 3 GiB of memory.
    fs.set_idle_inodes_max(192 << 10);
    let dirs = (0..DIRS)
        .map(|number| fs.mkdir(fs.root(), format!("d{number}").as_bytes(), 0o755, &OWNER).unwrap().ino)
        .collect();
    fs.sync().unwrap();
    Mounted { pool: made.pool, objects: made.objects, fs, dirs }
}
