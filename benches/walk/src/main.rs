//! `terrane-walk`: makes a tree of many names in a pool, without a mount, and walks one by names alone.
//!
//! The tree has two levels: directories, each followed by its empty files, as unpacking or copying makes
//! them. So a walk that enters directories finds their dnodes far apart. The null server makes the same one
//! (`terrane-null --tree`).

use clap::{Args, Parser};
use rustix::fs::{FileType, Mode, OFlags, RawDir, openat};
use std::error::Error;
use std::ffi::CString;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrane_dataset::Dataset;
use terrane_device::{Device, FileDevice, OpenMode};
use terrane_object::ObjectSets;
use terrane_pool::create::zone_size_for;
use terrane_pool::{CreateOptions, ImportOptions, Pool, probe};
use terrane_posix::{Cred, Fs, Ino};
use terrane_store::env::SystemEnv;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[derive(Parser)]
enum Command {
    /// A new pool in a file, with the tree in it
    Make(Make),
    /// Lists the tree in a pool, without a mount
    List(List),
    /// Lists a mounted tree, by getdents alone
    Getdents {
        dir: PathBuf,
        /// Bytes of the buffer; 32 KiB is what the C library takes
        #[arg(long, default_value_t = 64 << 10)]
        buffer: usize,
    },
}

#[derive(Args)]
struct Make {
    image: PathBuf,
    /// Bytes of the file, which is sparse
    #[arg(long, default_value_t = 32 << 30)]
    bytes: u64,
    #[arg(long, default_value_t = 10_000)]
    dirs: usize,
    /// Files in each
    #[arg(long, default_value_t = 1800)]
    names: usize,
}

#[derive(Args)]
struct List {
    image: PathBuf,
    /// Bytes of cached blocks
    #[arg(long, default_value_t = 64 << 20)]
    cache: usize,
}

const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };

fn make(options: &Make) -> Outcome {
    let _ = std::fs::remove_file(&options.image);
    let device = FileDevice::create(&options.image, options.bytes, zone_size_for(options.bytes))?;
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let import = ImportOptions { cache_bytes: 256 << 20, ..ImportOptions::default() };
    let create = CreateOptions::named("walk");
    let pool = Pool::create(devices, &create, Arc::new(SystemEnv::new()), &import)?;
    let objects = ObjectSets::create(Arc::clone(&pool))?;
    let dataset = Dataset::create_root(&objects, &[])?;
    Fs::format(&dataset, &OWNER)?;
    let fs = Fs::open(Arc::new(dataset))?;
    let start = Instant::now();
    for dir in 0..options.dirs {
        let made = fs.mkdir(fs.root(), format!("dir{dir:05}").as_bytes(), 0o755, &OWNER)?.ino;
        for name in 0..options.names {
            let file = fs.create(made, format!("file{name:05}").as_bytes(), 0o644, &OWNER)?.ino;
            fs.forget(file, 1);
        }
        fs.forget(made, 1);
    }
    fs.sync()?;
    report("made", options.dirs * (options.names + 1), start.elapsed());
    Ok(pool.export()?)
}

fn list(options: &List) -> Outcome {
    let file = File::open(&options.image)?;
    let mut read = |offset: u64, buf: &mut [u8]| file.read_exact_at(buf, offset).is_ok();
    let found = probe(&mut read, file.metadata()?.len()).ok_or("no pool found")?;
    let device = FileDevice::open(&options.image, OpenMode::ReadOnly, found.label.zone_size)?;
    let import = ImportOptions { read_only: true, cache_bytes: options.cache, ..ImportOptions::default() };
    let pool = Pool::import(vec![Arc::new(device)], Arc::new(SystemEnv::new()), &import)?;
    let objects = ObjectSets::open(Arc::clone(&pool))?;
    let fs = Fs::open(Arc::new(Dataset::open_root(&objects)?))?;
    let start = Instant::now();
    let names = list_below(&fs, fs.root())?;
    report("listed", names, start.elapsed());
    Ok(())
}

/// Counts the names below a directory.
fn list_below(fs: &Fs, dir: Ino) -> Outcome<usize> {
    let (mut names, mut dirs) = (0, Vec::new());
    fs.readdir(dir, 2, &mut |entry| {
        names += 1;
        if FileType::from_raw_mode(u32::from(entry.kind) << 12) == FileType::Directory {
            dirs.push(entry.ino);
        }
        true
    })?;
    dirs.into_iter().try_fold(names, |names, dir| Ok(names + list_below(fs, dir)?))
}

fn getdents(dir: &Path, buffer: usize) -> Outcome {
    let mut buf = vec![MaybeUninit::<u8>::uninit(); buffer];
    let start = Instant::now();
    let names = getdents_below(openat(rustix::fs::CWD, dir, flags(), Mode::empty())?, &mut buf)?;
    report("walked", names, start.elapsed());
    Ok(())
}

fn flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// Counts the names below a directory, whose entries say which are directories.
fn getdents_below(dir: OwnedFd, buf: &mut [MaybeUninit<u8>]) -> Outcome<usize> {
    let (mut names, mut dirs) = (0, Vec::<CString>::new());
    let mut entries = RawDir::new(dir.as_fd(), buf);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        names += 1;
        match entry.file_type() {
            FileType::Directory => dirs.push(name.to_owned()),
            FileType::Unknown => return Err("directory entry without d_type".into()),
            _ => {}
        }
    }
    dirs.into_iter().try_fold(names, |names, name| {
        Ok(names + getdents_below(openat(&dir, name, flags(), Mode::empty())?, buf)?)
    })
}

fn report(done: &str, names: usize, took: Duration) {
    println!("{done} {names} names in {:.3} s", took.as_secs_f64());
}

fn main() -> Outcome {
    match Command::parse() {
        Command::Make(options) => make(&options),
        Command::List(options) => list(&options),
        Command::Getdents { dir, buffer } => getdents(&dir, buffer),
    }
}
