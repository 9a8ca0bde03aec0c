//! Bytes that one metadata operation requests from the allocator, on the caller's side and in the sync
//! together.
//!
//!     cargo bench -p terrane --bench allocations

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

mod support;

use cap::Cap;
use std::alloc::System;
use support::{DIRS, OWNER, mount, pool::image_path};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const FILES: usize = 40_000;

fn main() {
    let path = image_path(&std::env::temp_dir());
    let mounted = mount(&path);
    let (fs, dirs) = (&mounted.fs, &mounted.dirs);
    println!("{FILES} empty files in {DIRS} directories{:>22}", "bytes allocated/op");
    let phase = |what: &str, each: &dyn Fn(usize, &[u8]), commit: bool| {
        let before = ALLOCATOR.total_allocated();
        for number in 0..FILES / DIRS {
            for dir in 0..DIRS {
                each(dir, format!("file-{number}").as_bytes());
            }
        }
        if commit {
            fs.sync().unwrap();
        }
        println!("{what:<40}{:>20}", (ALLOCATOR.total_allocated() - before) / FILES);
    };
    let create = |dir: usize, name: &[u8]| {
        let ino = fs.create(dirs[dir], name, 0o644, &OWNER).unwrap().ino;
        fs.forget(ino, 1);
    };
    let look = |dir: usize, name: &[u8]| {
        let ino = fs.lookup(dirs[dir], name).unwrap().ino;
        fs.getattr(ino).unwrap();
        fs.forget(ino, 1);
    };
    phase("create", &create, true);
    phase("lookup+stat", &look, false);
    phase("remove", &|dir, name| fs.unlink(dirs[dir], name).unwrap(), true);
    mounted.pool.export().unwrap();
    let _ = std::fs::remove_file(&path);
}
