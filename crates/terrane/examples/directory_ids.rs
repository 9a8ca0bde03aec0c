//! A metadata server's tree: files in directories, each with a file identifier of three 64-bit words beside its
//! name.
//!
//! ```text
//! cargo run --release -p terrane --example directory_ids -- [DIRECTORIES] [NAMES] [FILE]
//! ```
//!
//! Makes a pool in FILE (or in memory), and DIRECTORIES (10,000) directories with NAMES (10) names each: once
//! without identifiers, once with, and once where each identifier is set after its name was made. Prints how
//! fast one thread makes and reads them, and the space of directories and names on the device. The names are
//! links of one file; at the end it makes files of their own. All copies are counted.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use terrane::{
    CreateOptions, Cred, Dataset, Device, FileDevice, Fs, ImportOptions, Ino, ObjectSets, Pool, SimConfig,
    SimDevice, SystemEnv,
};

const ZONE_BYTES: u64 = 16 << 20;
const CRED: Cred = Cred { uid: 0, gid: 0, umask: 0 };

/// How the names of a round get their identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    None,
    AtOnce,
    Later,
}

/// Sequence, number in it, version.
fn file_id(dir: u64, name: u64) -> [u64; 3] {
    [0x2_0000_0400 + dir / 128_000, (dir % 128_000) * 16 + name + 1, 0]
}

fn device(file: Option<PathBuf>, bytes: u64) -> Result<Arc<dyn Device>, Box<dyn Error>> {
    let bytes = bytes.next_multiple_of(ZONE_BYTES).max(64 * ZONE_BYTES);
    Ok(match file {
        Some(path) => Arc::new(FileDevice::create(&path, bytes, ZONE_BYTES)?),
        None => {
            let zone_count = u32::try_from(bytes / ZONE_BYTES)?;
            Arc::new(SimDevice::new(SimConfig { zone_size: ZONE_BYTES, zone_count, ..SimConfig::default() })?)
        }
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().map_or(Ok(default), |word| word.parse());
    let (count, names) = (number(10_000)?, number(10)?);
    run(count, names, args.next().map(PathBuf::from))
}

/// All files of a round have one inode, so that what is added to the pool is names.
fn make(fs: &Fs, root: Ino, file: Ino, count: u64, names: u64, round: Round) -> Result<(), Box<dyn Error>> {
    for number in 0..count {
        let dir = fs.mkdir(root, format!("dir-{number:06}").as_bytes(), 0o755, &CRED)?;
        for name in 0..names {
            let (text, id) = (format!("file-{name:06}"), file_id(number, name));
            match round {
                Round::AtOnce => fs.with_entry_words(&id)?.link(file, dir.ino, text.as_bytes())?,
                _ => fs.link(file, dir.ino, text.as_bytes())?,
            };
            fs.forget(file, 1);
            if round == Round::Later {
                fs.set_entry_words(dir.ino, text.as_bytes(), &id)?;
            }
        }
        fs.forget(dir.ino, 1);
    }
    fs.sync()?;
    Ok(())
}

fn read(fs: &Fs, root: Ino, count: u64, names: u64) -> Result<(), Box<dyn Error>> {
    for number in 0..count {
        let (number, name) = (number.wrapping_mul(7_919) % count, number % names.max(1));
        let dir = fs.lookup(root, format!("dir-{number:06}").as_bytes())?.ino;
        let found = fs.entry_words(dir, format!("file-{name:06}").as_bytes())?;
        if found.as_slice() != file_id(number, name) {
            return Err(format!("name {name} of directory {number} is not what was stored").into());
        }
        fs.forget(dir, 1);
    }
    Ok(())
}

/// Makes and reads all of it; see the top of this file.
pub fn run(count: u64, names: u64, file: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let devices = vec![device(file, count * names * 4096)?];
    let options = CreateOptions::named("metadata");
    let pool = Pool::create(devices, &options, Arc::new(SystemEnv::new()), &ImportOptions::default())?;
    let objects = ObjectSets::create(Arc::clone(&pool))?;
    let dataset = Dataset::create_root(&objects, &[])?;
    Fs::format(&dataset, &CRED)?;
    let fs = Fs::open(Arc::new(dataset))?;
    let per = |bytes: u64, count: u64| bytes as f64 / count.max(1) as f64;
    let rate = |count: u64, since: Instant| count as f64 / since.elapsed().as_secs_f64().max(1e-9);

    println!("{:<10} {:>12} {:>12} {:>16} {:>16}", "ids", "made/s", "read/s", "B a directory", "B a name");
    for round in [Round::None, Round::AtOnce, Round::Later] {
        let root = fs.mkdir(fs.root(), format!("{round:?}").as_bytes(), 0o755, &CRED)?.ino;
        let file = fs.create(root, b"file", 0o644, &CRED)?.ino;
        fs.sync()?;
        let before = pool.space().1;
        let start = Instant::now();
        make(&fs, root, file, count, names, round)?;
        let made = rate(count * names, start);
        let bytes = pool.space().1.saturating_sub(before);
        let start = Instant::now();
        let mut looked_up = "-".to_owned();
        if round != Round::None && names > 0 {
            read(&fs, root, count, names)?;
            looked_up = format!("{:.0}", rate(count, start));
        }
        println!(
            "{:<10} {made:>12.0} {looked_up:>12} {:>16.1} {:>16.1}",
            format!("{round:?}"),
            per(bytes, count),
            per(bytes, count * names)
        );
    }

    // Files of their own: what a create costs with all that belongs to it.
    let root = fs.mkdir(fs.root(), b"files", 0o755, &CRED)?.ino;
    fs.sync()?;
    let (before, start) = (pool.space().1, Instant::now());
    for number in 0..count {
        let with_id = fs.with_entry_words(&file_id(number, 0))?;
        let made = with_id.create(root, format!("file-{number:06}").as_bytes(), 0o644, &CRED)?;
        fs.forget(made.ino, 1);
    }
    fs.sync()?;
    let bytes = pool.space().1.saturating_sub(before);
    println!(
        "files in one directory: {:.0} /s, {:.1} bytes each with dnode",
        rate(count, start),
        per(bytes, count)
    );
    drop(fs);
    pool.export()?;
    Ok(())
}
