//! A cold walk over many names: all names are listed, and little of the tree stays in memory.
//!
//! `scripts/bench-walk.sh` measures the same at full size.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use cap::Cap;
use std::alloc::System;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use terrane::{Cred, Dataset, Fs, Ino};
use terrane_device::{Device, FileDevice};
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool};
use terrane_store::env::SystemEnv;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };
const ZONE_BYTES: u64 = 4 << 20;
const DIRS: usize = 100;
const NAMES: usize = 1800;
const CACHE_BYTES: usize = 4 << 20;
/// Beside cached blocks: an inode and an object for each directory, and the working memory of the threads.
/// Their indexes would take 14 KiB each.
const REST_BYTES: usize = 256 << 10;

fn name(number: usize) -> String {
    format!("file{number:05}")
}

fn make(path: &Path) -> (Arc<Pool>, Arc<Dataset>) {
    let _ = std::fs::remove_file(path);
    let device: Arc<dyn Device> = Arc::new(FileDevice::create(path, 512 << 20, ZONE_BYTES).unwrap());
    let create = CreateOptions::named("walk");
    let import = ImportOptions::default();
    let pool = Pool::create(vec![device], &create, Arc::new(SystemEnv::new()), &import).unwrap();
    let objects = ObjectSets::create(Arc::clone(&pool)).unwrap();
    let dataset = Arc::new(Dataset::create_root(&objects, &[("atime", "off")]).unwrap());
    Fs::format(&dataset, &OWNER).unwrap();
    let fs = Fs::open(Arc::clone(&dataset)).unwrap();
    // Links to one file in each directory: only names are walked, and they are made faster than files.
    for dir in 0..DIRS {
        let dir = fs.mkdir(fs.root(), format!("dir{dir}").as_bytes(), 0o755, &OWNER).unwrap().ino;
        let file = fs.create(dir, name(0).as_bytes(), 0o644, &OWNER).unwrap().ino;
        for number in 1..NAMES {
            fs.link(file, dir, name(number).as_bytes()).unwrap();
            fs.forget(file, 1);
        }
        fs.forget(file, 1);
        fs.forget(dir, 1);
    }
    fs.sync().unwrap();
    (pool, dataset)
}

/// Lists in pieces of this many names, as a kernel does. Returns subdirectories.
fn list(fs: &Fs, dir: Ino, piece: usize, names: &mut Vec<String>) -> Vec<Ino> {
    let (mut offset, mut subdirs) = (2, Vec::new());
    loop {
        let mut left = piece;
        fs.readdir(dir, offset, &mut |entry| {
            if left == 0 {
                return false;
            }
            left -= 1;
            offset = entry.next;
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            if entry.kind == 4 {
                subdirs.push(entry.ino);
            }
            true
        })
        .unwrap();
        if left > 0 {
            return subdirs;
        }
    }
}

#[test]
fn a_cold_walk_shows_every_name_and_keeps_no_more_than_its_cache() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("walk-{}.img", std::process::id()));
    let (pool, dataset) = make(&path);
    pool.drop_cache();
    pool.set_cache_bytes(CACHE_BYTES);
    let fs = Fs::open(dataset).unwrap();
    let wanted: BTreeSet<String> = (0..NAMES).map(name).collect();
    let before = MEMORY.allocated();
    let dirs = list(&fs, fs.root(), 1000, &mut Vec::new());
    assert_eq!(dirs.len(), DIRS);
    for dir in dirs {
        // As if a kernel looked it up: its inode stays.
        fs.lookup(dir, b".").unwrap();
        let mut names = Vec::new();
        list(&fs, dir, 800, &mut names);
        assert_eq!(names.len(), NAMES, "each once");
        assert!(names.into_iter().collect::<BTreeSet<_>>() == wanted);
        let kept = MEMORY.allocated().saturating_sub(before);
        assert!(kept <= CACHE_BYTES + REST_BYTES, "{kept} bytes");
    }
    println!("{} bytes stay", MEMORY.allocated().saturating_sub(before));
    std::fs::remove_file(&path).unwrap();
}
