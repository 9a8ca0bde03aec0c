//! `find`: walk a tree by names only, then with a stat of every entry.

use crate::fail::{Result, ensure};
use crate::report::{Report, Row};
use crate::util::{Env, make_dirs, timed};
use clap::Args;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, openat, statat};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

#[derive(Args, Debug)]
pub struct Opts {
    /// Directories
    #[arg(long, default_value_t = 1000)]
    pub dirs: usize,
    /// Files in each
    #[arg(long, default_value_t = 100)]
    pub files: usize,
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("find", &env.root);
    report.param("dirs", o.dirs);
    report.param("files_per_dir", o.files);
    let total = o.dirs * (o.files + 1);

    let (_, secs) = timed(|| {
        for dir in make_dirs(env, "tree", o.dirs)? {
            for f in 0..o.files {
                File::create(dir.join(format!("file{f:05}")))?;
            }
        }
        env.sync()
    })?;
    report.push(Row::new("make tree", total as u64, 0, secs));
    for (phase, stat) in [("find names", false), ("find with stat", true)] {
        let hook = env.run_hook(phase)?;
        let (walk, secs) = timed(|| walk_tree(env, stat))?;
        ensure!(walk.entries == total, "{phase}: {} of {total} entries", walk.entries);
        let types = if walk.unknown > 0 { "; d_type unknown" } else { "" };
        let row = Row::new(phase, total as u64, 0, secs);
        report.push(row.note(format!("hook before: {hook:.2} s{types}")));
    }
    Ok(report)
}

#[derive(Default)]
struct Walk {
    entries: usize,
    unknown: usize,
}

/// Two levels, as this workload made them, so no d_type is needed to descend.
fn walk_tree(env: &Env, stat: bool) -> Result<Walk> {
    let mut walk = Walk::default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(rustix::fs::CWD, env.path("tree"), flags, Mode::empty())?;
    for name in list(&top, stat, &mut walk)? {
        let dir = openat(&top, &*name, flags, Mode::empty())?;
        list(&dir, stat, &mut walk)?;
    }
    Ok(walk)
}

fn list(dir: impl AsFd, stat: bool, walk: &mut Walk) -> Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    let mut buf = [MaybeUninit::<u8>::uninit(); 32 * 1024];
    let mut entries = RawDir::new(dir.as_fd(), &mut buf);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() == FileType::Unknown {
            walk.unknown += 1;
        }
        if stat {
            statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        walk.entries += 1;
        names.push(name.to_owned());
    }
    Ok(names)
}
