//! Space on the device of one of many: empty directories, empty files, small ZAPs of file identifiers,
//! entries of one large ZAP, and extended attributes. The last is the space that an empty file with one
//! attribute of 100 random bytes takes beyond an empty file, with dnodes of several sizes.
//!
//! Everything that a commit leaves is counted, all copies: the difference of the pool's live bytes. Below
//! each row is the use of that space per object, from the zones' own directories. `claimed` is what was
//! written to the device: garbage in zones that were not reset yet, headers, directory parts and padding
//! included.
//!
//!     cargo bench -p terrane --bench space -- [--count N] [--large N] [--commits N] [--dir DIRECTORY] [--rows ROWS]
//!
//! ROWS are some of directories,files,zaps,entries,xattrs. `--commits` splits the creation into that many
//! txgs: 1 is the minimum for any file system, a mount commits every five seconds.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "support/args.rs"]
mod args;
#[path = "support/random.rs"]
mod random;
mod support;

use clap::{Parser, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;
use support::pool::image_path;
use support::{Mounted, OWNER, mount_with};
use terrane::{Ino, SetXattr};
use terrane_check::usage::{Purpose, Usage, usage};
use terrane_object::ObjectKind;
use terrane_txg::cost::Cost;
use terrane_zap::ValueRef;

/// Of the directories and files.
const PER_DIR: usize = 1000;
/// Entries of a small ZAP.
const SMALL: u64 = 10;
/// Of a value.
const XATTR_BYTES: usize = 100;

/// The settings of each row.
struct Bench {
    path: PathBuf,
    commits: usize,
    /// Of the dataset.
    properties: Vec<(&'static str, &'static str)>,
}

fn row(bench: &Bench, what: &str, count: usize, make: impl Fn(&Mounted, usize)) -> f64 {
    row_after(bench, what, count, |_| (), make)
}

/// Runs `make` for every number, with this many commits on the way. Prints and returns the bytes for each of
/// `count`, those of the preparation included.
fn row_after(
    bench: &Bench,
    what: &str,
    count: usize,
    prepare: impl Fn(&Mounted),
    make: impl Fn(&Mounted, usize),
) -> f64 {
    let commits = bench.commits;
    let mounted = mount_with(&bench.path, &bench.properties);
    let before = usage(mounted.objects()).unwrap();
    prepare(&mounted);
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
        each(after.overhead, before.overhead)
    );
    mounted.pool.export().unwrap();
    each(after.live(), before.live())
}

/// As metadata servers store them: sequence, object, version.
fn identifier(number: u64) -> [u64; 3] {
    [0x2_0000_0400 + number / 100_000, number % 100_000, 0]
}

fn directory(mounted: &Mounted, number: usize) {
    let name = format!("o{number:07}");
    let ino = mounted.fs.mkdir(parent(mounted, number), name.as_bytes(), 0o755, &OWNER).unwrap().ino;
    mounted.fs.forget(ino, 1);
}

fn file(mounted: &Mounted, number: usize) {
    file_with(mounted, number, |_| ());
}

fn file_with(mounted: &Mounted, number: usize, more: impl Fn(Ino)) {
    let name = format!("o{number:07}");
    let ino = mounted.fs.create(parent(mounted, number), name.as_bytes(), 0o644, &OWNER).unwrap().ino;
    more(ino);
    mounted.fs.forget(ino, 1);
}

fn parent(mounted: &Mounted, number: usize) -> Ino {
    *mounted.dirs.get(number / PER_DIR % mounted.dirs.len()).unwrap()
}

fn small_zap(mounted: &Mounted, number: usize) {
    let dataset = mounted.fs.dataset();
    let cost = Cost { write_bytes: 64 << 10, meta_blocks: 16, ..Cost::NOTHING };
    let tx = dataset.object_set().begin(cost).unwrap();
    let mut zap = dataset.new_zap(&tx, ObjectKind::Zap).unwrap();
    for entry in 0..SMALL {
        let id = number as u64 * SMALL + entry;
        let name = format!("file-{id:08}");
        zap.add(&tx, name.as_bytes(), ValueRef::U64s(&identifier(id))).unwrap();
    }
}

fn entries(bench: &Bench, count: usize) {
    let one = std::sync::OnceLock::new();
    row(bench, "entry of one ZAP, three integers", count, |mounted, number| {
        let dataset = mounted.fs.dataset();
        let cost = Cost { write_bytes: 64 << 10, meta_blocks: 16, ..Cost::NOTHING };
        let tx = dataset.object_set().begin(cost).unwrap();
        let zap = one.get_or_init(|| std::sync::Mutex::new(dataset.new_zap(&tx, ObjectKind::Zap).unwrap()));
        let id = number as u64;
        zap.lock()
            .unwrap()
            .add(&tx, format!("file-{id:08}").as_bytes(), ValueRef::U64s(&identifier(id)))
            .unwrap();
    });
}

/// A file has its attribute from its birth on, or is committed without it first.
fn xattrs(bench: &mut Bench, count: usize) {
    for dnodesize in ["legacy", "1k", "auto"] {
        bench.properties = vec![("dnodesize", dnodesize)];
        let without = row(bench, &format!("empty file, dnodesize={dnodesize}"), count, file);
        let what = format!("with {XATTR_BYTES} random bytes in an xattr, dnodesize={dnodesize}");
        let with = row(bench, &what, count, |mounted, number| {
            file_with(mounted, number, |ino| set_xattr(mounted, ino, number));
        });
        let what = format!("the xattr set after a commit, dnodesize={dnodesize}");
        let prepare = |mounted: &Mounted| {
            (0..count).for_each(|number| file(mounted, number));
            mounted.fs.sync().unwrap();
        };
        let later = row_after(bench, &what, count, prepare, |mounted, number| {
            let name = format!("o{number:07}");
            let ino = mounted.fs.lookup(parent(mounted, number), name.as_bytes()).unwrap().ino;
            set_xattr(mounted, ino, number);
            mounted.fs.forget(ino, 1);
        });
        println!(
            "beyond the file, dnodesize={dnodesize}: {:.1}, set after a commit {:.1} bytes\n",
            with - without,
            later - without
        );
    }
    bench.properties.clear();
}

fn set_xattr(mounted: &Mounted, ino: Ino, number: usize) {
    let value = random::bytes(number as u64, XATTR_BYTES);
    mounted.fs.setxattr(ino, b"user.bench", &value, SetXattr::default(), &OWNER).unwrap();
}

/// Space on the device of one of many
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench space --")]
struct Options {
    /// Number of each kind
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    count: usize,
    /// Entries of the large ZAP
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    large: usize,
    /// Txgs over which the creation is spread
    #[arg(long, value_name = "N", default_value = "1")]
    commits: NonZeroUsize,
    /// Directory in which the pool's file is made
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Kinds, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "directories,files,zaps,entries,xattrs")]
    rows: Vec<Rows>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Rows {
    Directories,
    Files,
    Zaps,
    Entries,
    Xattrs,
}

fn main() {
    let Options { count, large, commits, dir, rows } = args::parse();
    let mut bench = Bench { path: image_path(&dir), commits: commits.get(), properties: Vec::new() };
    for rows in rows {
        match rows {
            Rows::Directories => drop(row(&bench, "empty directory", count, directory)),
            Rows::Files => drop(row(&bench, "empty file", count, file)),
            Rows::Zaps => drop(row(&bench, "ZAP of ten entries of three integers", count, small_zap)),
            Rows::Entries => entries(&bench, large),
            Rows::Xattrs => xattrs(&mut bench, count),
        }
    }
    let _ = std::fs::remove_file(&bench.path);
}
