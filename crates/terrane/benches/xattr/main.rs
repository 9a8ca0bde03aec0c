//! Extended attributes in process: one on each of many files, set and committed, then read cold; by size, and
//! by home.
//!
//! It corresponds to `fsbench xattr` on a mount: the same number of directories, one thread and the same kind
//! of values, with a lookup of the name before each. So its seconds compare with those of file systems in the
//! kernel. Before the set and before the get the pool is exported and imported, so that no cache holds it.
//! *Warm* runs once more over all files afterwards, without a commit. CPU is in microseconds per file: the
//! caller's own, and the whole process's.
//!
//!     cargo bench -p terrane --bench xattr -- [--files N] [--dirs N] [--bytes 1,32,...] [--xattr sa,dir] [--distinct]
//!         [--seed N] [--image FILE | --dir DIRECTORY] [--between-cmd COMMAND] [--json [--tag KEY=VALUE]...]
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
use std::path::PathBuf;
use std::time::Instant;
use terrane::{Cred, Fs, Ino, SetXattr};
use values::Values;

const OWNER: Cred = Cred { uid: 0, gid: 0, umask: 0 };
const NAME: &[u8] = b"user.fsbench";

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

struct Times {
    set: PhaseTime,
    get: PhaseTime,
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
        let (get, warm_get) = (get(), get());
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
        Times { set, get, warm_get, warm_set, warm_list }
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
    println!(
        " {:>8.2} {:>8.2} {:>8.2}",
        times.warm_set.caller_us, times.warm_get.caller_us, times.warm_list.caller_us
    );
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
    let mut rows = Vec::new();
    if !as_json {
        println!("one extended attribute on each of {} files in {} directories", tree.files, tree.dirs);
        println!(
            "             |     set, cold, and commit  |          get, cold         |   warm, caller us/file"
        );
        println!(
            " bytes where |  seconds   caller  process |  seconds   caller  process |      set      get     list"
        );
    }
    for &bytes in &options.bytes {
        let values = Values::new(options.seed, bytes, options.distinct);
        for home in options.xattr.iter().take(if as_json { 1 } else { usize::MAX }) {
            let times = one_size(&disk, &tree, &values, home);
            if as_json {
                rows.push(json_row("set", bytes, tree.files, times.set));
                rows.push(json_row("get", bytes, tree.files, times.get));
            } else {
                print_row(bytes, home, &times);
            }
        }
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
