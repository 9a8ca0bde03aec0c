//! Extended attributes in process: one on each of many files, set and committed, then read cold; by size, and
//! by home.
//!
//! It corresponds to `fsbench xattr` on a mount: the same number of directories, one thread and the same kind
//! of values, with a lookup of the name before each. So its seconds compare with those of file systems in the
//! kernel. Before the set and before the get the pool is exported and imported, so that no cache holds it.
//! *Warm* runs once more over all files afterwards, without a commit. CPU is in microseconds per file: the
//! caller's own, and the whole process's.
//!
//! *Reads* are the device's read requests per get.
//!
//!     cargo bench -p terrane --bench xattr -- [--files N] [--dirs N] [--bytes 1,32,...] [--xattr sa,dir] [--reps N]
//!         [--distinct] [--seed N] [--image FILE | --dir DIRECTORY] [--between-cmd COMMAND] [--json [--tag KEY=VALUE]...]
//!
//! With both homes, each repetition measures them in turn. A last table shows how many times faster `sa` is in the cold get.
//! It compares the best of all repetitions, as other programs on the machine only make them worse. The goal is 3 up to 4 KiB.
//! The caller's time says more than seconds on a busy machine: prefetch then waits for a processor.
//!
//! `--image` is an existing file, whose content is overwritten; otherwise a sparse one is made in DIRECTORY.
//! `--between-cmd` drops the kernel's caches, for example. `--json` prints one object as fsbench does, the
//! first of `--xattr` alone.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on should say where")]

#[path = "../support/args.rs"]
mod args;
#[path = "../support/cpu.rs"]
mod cpu;
mod disk;
#[path = "../support/random.rs"]
mod random;
mod values;

use clap::Parser;
use cpu::{own_cpu_ns, process_cpu_ns};
use disk::Disk;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use terrane::{Cred, Fs, Ino, SetXattr};
use values::Values;

const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };
const NAME: &[u8] = b"user.fsbench";
/// How many times faster than `xattr=dir` a cold get should be, for values of at most so many bytes.
const GAIN: f64 = 3.0;
const GAIN_BYTES_MAX: usize = 4096;

struct Tree {
    files: usize,
    dirs: usize,
}

impl Tree {
    fn make(&self, fs: &Fs) {
        for dir in 0..self.dirs {
            let made = fs.mkdir(fs.root(), dir_name(dir).as_bytes(), 0o755, &OWNER).unwrap().ino;
            for file in self.files_of(dir) {
                let ino = fs.create(made, file_name(file).as_bytes(), 0o644, &OWNER).unwrap().ino;
                fs.forget(ino, 1);
            }
            fs.forget(made, 1);
        }
        fs.sync().unwrap();
    }

    fn files_of(&self, dir: usize) -> std::ops::Range<usize> {
        let each = self.files.div_ceil(self.dirs);
        (dir * each).min(self.files)..((dir + 1) * each).min(self.files)
    }

    /// Looks up every file by its name.
    fn each(&self, fs: &Fs, mut what: impl FnMut(Ino, usize)) {
        for dir in 0..self.dirs {
            let found = fs.lookup(fs.root(), dir_name(dir).as_bytes()).unwrap().ino;
            for file in self.files_of(dir) {
                let ino = fs.lookup(found, file_name(file).as_bytes()).unwrap().ino;
                what(ino, file);
                fs.forget(ino, 1);
            }
            fs.forget(found, 1);
        }
    }
}

fn dir_name(dir: usize) -> String {
    format!("d{dir:05}")
}

fn file_name(file: usize) -> String {
    format!("f{file:07}")
}

#[derive(Clone, Copy, Default)]
struct PhaseTime {
    secs: f64,
    caller_us: f64,
    process_us: f64,
}

fn timed(files: usize, what: impl FnOnce()) -> PhaseTime {
    let (caller, process, start) = (own_cpu_ns(), process_cpu_ns(), Instant::now());
    what();
    let secs = start.elapsed().as_secs_f64();
    let each_us = |ns: u64| ns as f64 / 1e3 / files as f64;
    PhaseTime {
        secs,
        caller_us: each_us(own_cpu_ns() - caller),
        process_us: each_us(process_cpu_ns() - process),
    }
}

impl PhaseTime {
    /// The best of each.
    fn min(self, other: PhaseTime) -> PhaseTime {
        PhaseTime {
            secs: self.secs.min(other.secs),
            caller_us: self.caller_us.min(other.caller_us),
            process_us: self.process_us.min(other.process_us),
        }
    }
}

/// The times that `xattr=sa` should take a third of, in the order of the table.
fn ratios(sa: PhaseTime, dir: PhaseTime) -> [f64; 3] {
    [dir.secs / sa.secs, dir.caller_us / sa.caller_us, dir.process_us / sa.process_us]
}

#[derive(Clone, Copy)]
struct Times {
    set: PhaseTime,
    get: PhaseTime,
    /// Read requests to the device per cold get.
    get_reads: f64,
    warm_get: PhaseTime,
    warm_set: PhaseTime,
    warm_list: PhaseTime,
}

fn one_size(disk: &Disk, tree: &Tree, values: &Values, home: &str) -> Times {
    disk.create(&[("xattr", home)], &OWNER, |fs| tree.make(fs));
    let put = |fs: &Fs, ino: Ino, value: &[u8]| {
        fs.setxattr(ino, NAME, value, SetXattr::default(), &OWNER).unwrap();
    };
    let set = disk.cold("setxattr", |fs| {
        timed(tree.files, || {
            tree.each(fs, |ino, file| put(fs, ino, values.of(file)));
            fs.sync().unwrap();
        })
    });
    disk.cold("getxattr", |fs| {
        let mut got = Vec::new();
        let mut get = || {
            timed(tree.files, || {
                tree.each(fs, |ino, file| {
                    got.clear();
                    fs.getxattr(ino, NAME, &mut got).unwrap();
                    assert!(got == values.of(file), "file {file} has another value");
                });
            })
        };
        let requests = || -> u64 {
            let stats = fs.dataset().object_set().pool().stats();
            stats.reads.iter().map(|io| io.operations).sum()
        };
        let before = requests();
        let cold_get = get();
        let get_reads = (requests() - before) as f64 / tree.files as f64;
        let warm_get = get();
        let mut names = Vec::new();
        let warm_list = timed(tree.files, || {
            tree.each(fs, |ino, _| {
                names.clear();
                fs.listxattr(ino, &|| true, &mut names).unwrap();
                assert_eq!(names.split_last(), Some((&0, NAME)));
            });
        });
        // Each file gets the value of the next one.
        let warm_set = timed(tree.files, || tree.each(fs, |ino, file| put(fs, ino, values.of(file + 1))));
        Times { set, get: cold_get, get_reads, warm_get, warm_set, warm_list }
    })
}

fn json_row(phase: &str, bytes: usize, files: usize, took: PhaseTime) -> Value {
    json!({
        "phase": format!("{phase} {bytes}"),
        "ops": files,
        "secs": took.secs,
        "ops_per_s": files as f64 / took.secs,
        "bytes": files * bytes,
        "mb_per_s": (files * bytes) as f64 / 1e6 / took.secs,
        "note": "",
        "extra": { "caller_us": took.caller_us, "process_us": took.process_us },
    })
}

fn print_row(bytes: usize, home: &str, times: &Times) {
    print!("{bytes:>6} {home:<4} |");
    for took in [times.set, times.get] {
        print!(" {:>8.3} {:>8.2} {:>8.2} |", took.secs, took.caller_us, took.process_us);
    }
    let warm = [times.warm_set, times.warm_get, times.warm_list].map(|took| took.caller_us);
    println!(" {:>6.3} | {:>8.2} {:>8.2} {:>8.2}", times.get_reads, warm[0], warm[1], warm[2]);
}

/// Extended attributes in process, one on each of many files
#[derive(Parser)]
#[command(bin_name = "cargo bench -p terrane --bench xattr --")]
pub struct Options {
    /// Files in all directories together
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    files: usize,
    /// Directories
    #[arg(long, value_name = "N", default_value_t = 100)]
    dirs: usize,
    /// Sizes of a value
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,32,256,1024,4096,16384,65536")]
    bytes: Vec<usize>,
    /// Values of the property `xattr`
    #[arg(long, value_delimiter = ',', value_parser = ["sa", "dir"], default_value = "sa,dir")]
    xattr: Vec<String>,
    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 1)]
    reps: usize,
    /// Each file has a value of its own
    #[arg(long)]
    distinct: bool,
    /// Seed of the values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Existing file or device for the pool; its content is overwritten
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    image: Option<PathBuf>,
    /// Directory in which a sparse file for the pool is made
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Shell command before each phase, which may drop the kernel's caches
    #[arg(long, value_name = "COMMAND")]
    between_cmd: Option<String>,
    /// One object as fsbench prints it, of the first value of `xattr` alone
    #[arg(long)]
    json: bool,
    /// Member of that object; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = tag)]
    tag: Vec<(String, String)>,
    /// Name of the workload in command lines of fsbench
    #[arg(value_parser = ["xattr"], hide = true)]
    _workload: Option<String>,
}

fn tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn main() {
    let options: Options = args::parse();
    let tree = Tree { files: options.files, dirs: options.dirs };
    let disk = Disk::new(&options);
    let as_json = options.json;
    let (mut rows, mut gains) = (Vec::new(), Vec::new());
    if !as_json {
        println!("one extended attribute on each of {} files in {} directories", tree.files, tree.dirs);
        println!(
            "             |     set, cold, and commit  |          get, cold         |        |   warm, caller us/file"
        );
        println!(
            " bytes where |  seconds   caller  process |  seconds   caller  process |  reads |      set      get     list"
        );
    }
    for &bytes in &options.bytes {
        let values = Values::new(options.seed, bytes, options.distinct);
        let mut best = BTreeMap::<&str, PhaseTime>::new();
        let homes = options.xattr.iter().take(if as_json { 1 } else { usize::MAX });
        for home in std::iter::repeat_n(homes, options.reps.max(1)).flatten() {
            let times = one_size(&disk, &tree, &values, home);
            if as_json {
                rows.push(json_row("set", bytes, tree.files, times.set));
                rows.push(json_row("get", bytes, tree.files, times.get));
            } else {
                print_row(bytes, home, &times);
            }
            best.entry(home).and_modify(|best| *best = best.min(times.get)).or_insert(times.get);
        }
        if let (Some(sa), Some(dir)) = (best.get("sa"), best.get("dir")) {
            gains.push((bytes, ratios(*sa, *dir)));
        }
    }
    if !as_json && !gains.is_empty() {
        println!("cold get, `sa` over `dir`, best of {}", options.reps.max(1));
        println!(" bytes |  seconds   caller  process | goal {GAIN} by seconds, by caller");
    }
    for (bytes, [secs, caller, process]) in gains.iter().filter(|_| !as_json) {
        let [by_secs, by_caller] = [secs, caller].map(|gain| match *gain >= GAIN {
            _ if *bytes > GAIN_BYTES_MAX => "-",
            true => "yes",
            false => "no",
        });
        println!("{bytes:>6} | {secs:>7.2}x {caller:>7.2}x {process:>7.2}x | {by_secs}, {by_caller}");
    }
    if as_json {
        let params = json!({ "files": tree.files, "threads": 1, "distinct": options.distinct });
        let mut report = json!({ "workload": "xattr", "params": params, "rows": rows });
        for (key, value) in options.tag {
            report[key] = value.into();
        }
        println!("{report}");
    }
}
