//! Bytes on the device for one of many: empty directories, empty files, small ZAPs of file identifiers, entries of one large ZAP.
//!
//! Everything that a commit leaves is counted, all copies: the measure is what the pool's books call alive, less what they said before.
//! Below each row stands where the bytes went, from the zones' own directories, for each object. `claimed` is what the device was given:
//! dead blocks in zones that were not reset yet, headers, directory parts and padding included.
//!
//!     cargo bench -p terrane --bench space -- [--count N] [--large N] [--commits N] [--dir DIRECTORY]
//!
//! `--commits` cuts the creation into so many groups: 1 is the least that a file system can do, a mount commits every five seconds.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "support/args.rs"]
mod args;
mod support;

use args::Args;
use std::path::Path;
use std::time::Instant;
use support::pool::image_path;
use support::{Mounted, OWNER, mount};
use terrane::check::usage::{Purpose, Usage, usage};
use terrane_object::ObjectKind;
use terrane_pool::Cost;
use terrane_zap::ValueRef;

/// Of the directories and files.
const PER_DIR: usize = 1000;
/// Entries of a small ZAP.
const SMALL: u64 = 10;

/// Runs `make` for every number, with so many commits on the way; prints bytes for each of `count`.
fn row(path: &Path, what: &str, count: usize, commits: usize, make: impl Fn(&Mounted, usize)) {
    let mounted = mount(path);
    let before = usage(mounted.objects()).unwrap();
    let start = Instant::now();
    for number in 0..count {
        make(&mounted, number);
        if (number + 1) % count.div_ceil(commits) == 0 {
            mounted.fs.sync().unwrap();
        }
    }
    mounted.fs.sync().unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let after = usage(mounted.objects()).unwrap();
    let each = |after: u64, before: u64| (after as f64 - before as f64) / count as f64;
    println!("{what:<52}{:>9.1} bytes each   ({count} in {seconds:.1} s)", each(after.live(), before.live()));
    let share = |usage: &Usage, purpose| usage.shares.get(&purpose).copied().unwrap_or_default();
    for purpose in Purpose::ALL {
        let (now, then) = (share(&after, purpose), share(&before, purpose));
        let live = each(now.live, then.live);
        if live.abs() >= 0.05 {
            let copies = now.copies.saturating_sub(then.copies);
            let mean = (now.stored.saturating_sub(then.stored)) as f64 / copies.max(1) as f64;
            println!("  {:<50}{live:>9.1}   {copies:>8} copies of {mean:.0} bytes", purpose.name());
        }
    }
    println!(
        "  {:<50}{:>9.1}   claimed: dead {:.1}, headers, directory parts and padding {:.1}",
        "(the device)",
        each(after.claimed, before.claimed),
        each(after.dead, before.dead),
        each(after.frame, before.frame)
    );
    mounted.pool.export().unwrap();
}

/// As metadata servers store them: sequence, object, version.
fn identifier(number: u64) -> [u64; 3] {
    [0x2_0000_0400 + number / 100_000, number % 100_000, 0]
}

fn main() {
    let args = Args::new();
    let (count, large, commits) = (
        args.number("--count", 100_000),
        args.number("--large", 1_000_000),
        args.number("--commits", 1).max(1),
    );
    let path = image_path(&args.dir());

    let parent =
        |mounted: &Mounted, number: usize| *mounted.dirs.get(number / PER_DIR % mounted.dirs.len()).unwrap();
    row(&path, "empty directory", count, commits, |mounted, number| {
        let name = format!("o{number:07}");
        let ino = mounted.fs.mkdir(parent(mounted, number), name.as_bytes(), 0o755, &OWNER).unwrap().ino;
        mounted.fs.forget(ino, 1);
    });
    row(&path, "empty file", count, commits, |mounted, number| {
        let name = format!("o{number:07}");
        let ino = mounted.fs.create(parent(mounted, number), name.as_bytes(), 0o644, &OWNER).unwrap().ino;
        mounted.fs.forget(ino, 1);
    });
    row(&path, "ZAP of ten entries of three integers", count, commits, |mounted, number| {
        let dataset = mounted.fs.dataset();
        let cost = Cost { write_bytes: 64 << 10, meta_blocks: 16, ..Cost::NOTHING };
        let tx = dataset.objects().begin(cost).unwrap();
        let mut zap = dataset.new_zap(&tx, ObjectKind::Zap).unwrap();
        for entry in 0..SMALL {
            let id = number as u64 * SMALL + entry;
            let name = format!("file-{id:08}");
            zap.add(&tx, name.as_bytes(), ValueRef::U64s(&identifier(id))).unwrap();
        }
    });
    let one = std::sync::OnceLock::new();
    row(&path, "entry of one ZAP, three integers", large, commits, |mounted, number| {
        let dataset = mounted.fs.dataset();
        let cost = Cost { write_bytes: 64 << 10, meta_blocks: 16, ..Cost::NOTHING };
        let tx = dataset.objects().begin(cost).unwrap();
        let zap = one.get_or_init(|| std::sync::Mutex::new(dataset.new_zap(&tx, ObjectKind::Zap).unwrap()));
        let id = number as u64;
        zap.lock()
            .unwrap()
            .add(&tx, format!("file-{id:08}").as_bytes(), ValueRef::U64s(&identifier(id)))
            .unwrap();
    });
    let _ = std::fs::remove_file(&path);
}
