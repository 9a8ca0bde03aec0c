//! `smallfiles`: write a tree as untar would, sync, and read it all back cold.

use crate::fail::{Context, Result, ensure};
use crate::report::{Report, Row};
use crate::util::{Env, parallel, timed};
use clap::Args;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[derive(Args, Debug)]
pub struct Opts {
    /// Tree to write
    #[arg(long)]
    pub input_dir: PathBuf,
    /// Threads that read the tree back
    #[arg(long, default_value_t = 1)]
    pub read_threads: usize,
}

enum Body {
    Dir,
    Link(PathBuf),
    File { data: Vec<u8>, crc: u32, mode: u32, mtime: SystemTime },
}

pub fn run(env: &Env, o: &Opts) -> Result<Report> {
    let mut report = Report::new("smallfiles", &env.root);
    let mut tree = Vec::new();
    load(&o.input_dir, Path::new("tree"), &mut tree)
        .with_context(|| format!("load {}", o.input_dir.display()))?;
    let bytes: u64 =
        tree.iter().map(|(_, b)| if let Body::File { data, .. } = b { data.len() as u64 } else { 0 }).sum();
    report.param("objects", tree.len());
    report.param("bytes", bytes);

    let before = env.usage()?.used;
    fs::create_dir_all(env.path("tree"))?;
    let start = std::time::Instant::now();
    let t = parallel(1, &tree, |(path, body)| write_one(&env.path(path), body))?;
    let (_, sync_secs) = timed(|| env.sync())?;
    let secs = start.elapsed().as_secs_f64();
    let hook = env.run_hook("read")?;
    let stored = env.usage()?.used as i64 - before as i64;
    let write = Row::new("untar (no sync)", t.ops, bytes, t.secs).latency(t.lat);
    report.push(write);
    report.push(
        Row::new("untar + syncfs", tree.len() as u64, bytes, secs)
            .note(format!(
                "syncfs {sync_secs:.2} s, hook after: {hook:.2} s, stored {:.1} MB",
                stored as f64 / 1e6
            ))
            .extra("stored", stored)
            .extra("sync_secs", sync_secs),
    );

    let files: Vec<(PathBuf, u32)> = tree
        .iter()
        .filter_map(|(p, b)| if let Body::File { crc, .. } = b { Some((env.path(p), *crc)) } else { None })
        .collect();
    let t = parallel(o.read_threads, &files, |(path, crc)| {
        let data = fs::read(path)?;
        ensure!(crc32c::crc32c(&data) == *crc, "wrong data in {}", path.display());
        Ok(data.len() as u64)
    })?;
    report.push(t.row("read all"));
    Ok(report)
}

fn load(from: &Path, to: &Path, tree: &mut Vec<(PathBuf, Body)>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(|e| e.file_name());
    for entry in entries {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            tree.push((target.clone(), Body::Dir));
            load(&path, &target, tree)?;
        } else if meta.is_symlink() {
            tree.push((target, Body::Link(fs::read_link(&path)?)));
        } else if meta.is_file() {
            let data = fs::read(&path)?;
            let crc = crc32c::crc32c(&data);
            let mode = meta.permissions().mode() & 0o777;
            tree.push((target, Body::File { data, crc, mode, mtime: meta.modified()? }));
        }
    }
    Ok(())
}

fn write_one(path: &Path, body: &Body) -> Result<u64> {
    match body {
        Body::Dir => fs::create_dir(path)?,
        Body::Link(target) => symlink(target, path)?,
        Body::File { data, mode, mtime, .. } => {
            let mut file = File::create_new(path)?;
            file.write_all(data)?;
            file.set_permissions(Permissions::from_mode(*mode))?;
            file.set_modified(*mtime)?;
            return Ok(data.len() as u64);
        }
    }
    Ok(0)
}
