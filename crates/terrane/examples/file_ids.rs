//! A metadata server's names: file identifiers of three 64-bit integers, by name, in many small ZAPs.
//!
//! ```text
//! cargo run --release -p terrane --example file_ids -- [ZAPS] [NAMES] [FILE]
//! ```
//!
//! Makes a pool in FILE (or in memory), ZAPS (1,000,000) ZAPs with NAMES (10) entries each, and a ZAP with
//! the object number of each of them. Prints how fast one thread creates, looks up and removes them, all
//! committed. It also prints the space that they take on the device: dnode, blocks, and the entry that leads
//! to each, all copies.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use terrane::{
    BatchPlan, CreateOptions, Dataset, Device, FileDevice, ImportOptions, ObjectId, ObjectSets, Pool,
    SimConfig, SimDevice, SystemEnv, ValueRef, ZapHandle, ZapSpec, Zaps,
};

const ZONE_BYTES: u64 = 64 << 20;
/// ZAPs created or removed in one batch.
const IN_A_BATCH: u64 = 100;

/// Sequence, number in it, version.
fn file_id(zap: u64, name: u64) -> [u64; 3] {
    [0x2_0000_0400 + zap / 128_000, (zap % 128_000) * 16 + name + 1, 0]
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

fn rate(what: &str, count: u64, since: Instant) {
    let seconds = since.elapsed().as_secs_f64().max(1e-9);
    println!("{what:<28} {count:>10} in {seconds:>8.2} s {:>12.0} /s", count as f64 / seconds);
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().map_or(Ok(default), |word| word.parse());
    let (count, names) = (number(1_000_000)?, number(10)?);
    run(count, names, args.next().map(PathBuf::from))
}

pub fn run(count: u64, names: u64, file: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let devices = vec![device(file, count * 4096)?];
    let pool = Pool::create(
        devices,
        &CreateOptions::named("metadata"),
        Arc::new(SystemEnv::new()),
        &ImportOptions::default(),
    )?;
    let objects = ObjectSets::create(Arc::clone(&pool))?;
    let zaps = Zaps::open(&Arc::new(Dataset::create_root(&objects, &[])?))?;

    // The directory of directories. A later program finds it among the roots.
    let directories = {
        let batch = zaps.begin(BatchPlan::new().create(1, 1, 40))?;
        let directories = zaps.create(&batch, ZapSpec::U64_KEYS)?;
        zaps.roots().add(&batch, "directories", ValueRef::U64s(&[directories.id().0]))?;
        directories
    };
    zaps.commit()?;
    let (_, live_before, _) = pool.space();

    let start = Instant::now();
    for first in (0..count).step_by(IN_A_BATCH as usize) {
        let here = IN_A_BATCH.min(count - first);
        let work = BatchPlan::new().create(u32::try_from(here)?, names, 12 + 3 * 8).put(
            &directories,
            here,
            8,
            ValueRef::U64s(&[0]),
        );
        let batch = zaps.begin(work)?;
        for number in first..first + here {
            let zap = zaps.create(&batch, ZapSpec::NAMES)?;
            for name in 0..names {
                zap.add(&batch, &format!("file-{name:06}"), ValueRef::U64s(&file_id(number, name)))?;
            }
            directories.add(&batch, &[number][..], ValueRef::U64s(&[zap.id().0]))?;
        }
    }
    zaps.commit()?;
    rate("made, committed: ZAPs", count, start);
    rate("made, committed: names", count * names, start);
    let (_, live, _) = pool.space();
    let bytes = live.saturating_sub(live_before);
    println!("{:<28} {:>10.1} bytes in total", "each ZAP takes", bytes as f64 / count.max(1) as f64);

    let find = |number: u64| -> Result<ZapHandle, Box<dyn Error>> {
        let id = directories.lookup_u64(&[number][..])?.ok_or("a directory is lost")?;
        Ok(zaps.zap(ObjectId(id))?)
    };
    let start = Instant::now();
    for number in 0..count {
        let (number, name) = (number.wrapping_mul(7_919) % count, number % names.max(1));
        let found = find(number)?.lookup(&format!("file-{name:06}"))?;
        if names > 0 && found.map(|value| value.ints()) != Some(file_id(number, name).to_vec()) {
            return Err(format!("name {name} of directory {number} is not what was stored").into());
        }
    }
    rate("looked up", count, start);

    let start = Instant::now();
    for first in (0..count).step_by(IN_A_BATCH as usize) {
        let end = count.min(first + IN_A_BATCH);
        let mut work = BatchPlan::new().remove(&directories, end - first);
        for _ in first..end {
            work = work.destroy();
        }
        let batch = zaps.begin(work)?;
        for number in first..end {
            zaps.destroy(&batch, &find(number)?)?;
            directories.remove(&batch, &[number][..])?;
        }
    }
    zaps.commit()?;
    rate("removed, committed: ZAPs", count, start);
    pool.export()?;
    Ok(())
}
