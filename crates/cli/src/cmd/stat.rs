//! `terrane stat`: how files are stored.
//!
//! A file is named by its path on a mount, or by pool and path (`tank:/dir/file`), mounted or not. On a mount
//! the kernel has resolved the path, so the question carries only the inode number.

use super::{MountedDaemon, ServedBy, ask, daemon_of, print, served_by};
use crate::control::{self, GREETING_TIMEOUT, Greeting};
use crate::failure::{Failure, Outcome};
use crate::query::Query;
use crate::registry::Registry;
use crate::size;
use crate::table::envelope;
use crate::target::Target;
use clap::Args;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use terrane_fuse::mount::dev_number;

pub const HELP: &str = "\
Records, algorithms and zones are those of the last commit; what is not committed yet has no place on the device. `terrane sync` commits.

Fields:
  stored        bytes on the device, after compression, and how many times smaller that is
  records       pieces of the file, each compressed and checksummed for itself
  embedded      records so small that they lie in the pointer to them
  holes         records that were never written, or are all zeros
  levels        levels of zstd, read from the records; of large files some thousand records are sampled
  metadata      blocks of pointers to records, in two copies
  zones         where it lies: sequence number of the zone, its place on the device, blocks, bytes
  attributes    bytes in the dnode (bonus area), in a spill block, and in hidden objects, which `du` does not show
  values        extended attributes: their sizes in bytes, and where they lie
  txgs          the transaction groups that created the file and last changed its records
";

/// Show how files are stored: records, algorithms, ratio, zones
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Stat {
    /// Paths on a mount, or POOL:/PATH, where POOL is a name or a device
    #[arg(required = true, value_name = "PATH|POOL:/PATH")]
    paths: Vec<PathBuf>,
    /// JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
    /// Exact numbers instead of rounded ones
    #[arg(short, long)]
    parsable: bool,
}

impl Stat {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let ask = |path: &Path| {
            ask_about_path(&registry, path, |object| Query::Stat { object }, |path| Query::StatPath { path })
        };
        show_files("stat", &self.paths, self.json, ask, |row| self.describe(row))
    }

    fn describe(&self, row: &Value) -> String {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let bytes = |value: &Value| {
            if self.parsable { number(value).to_string() } else { size::format(number(value)) }
        };
        let list = |key: &str| row[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut out = String::new();
        let mut line = |key: &str, value: String| out.push_str(&format!("{key:>11}: {value}\n"));
        let lines = |items: Vec<String>| {
            if items.is_empty() { "none".to_owned() } else { items.join("\n             ") }
        };
        line("path", crate::table::printable(row["path"].as_str().unwrap_or("?")));
        let links = match number(&row["links"]) {
            1 => String::new(),
            links => format!(", {links} links"),
        };
        let kind = row["type"].as_str().unwrap_or("?");
        line("object", format!("{} ({kind}{links})", row["object"]));
        line("size", bytes(&row["size"]));
        line(
            "stored",
            format!(
                "{}{}",
                bytes(&row["stored"]),
                ratio_text(number(&row["logical"]), number(&row["stored"]))
            ),
        );
        if number(&row["uncommitted"]) > 0 {
            line("uncommitted", format!("{} not on the device yet", bytes(&row["uncommitted"])));
        }
        line(
            "records",
            format!(
                "{} of {}, {} of them embedded, and {} holes",
                row["records"],
                bytes(&row["record_size"]),
                row["embedded"],
                row["holes"]
            ),
        );
        let algorithm = |item: &Value| {
            let (logical, stored) = (number(&item["logical"]), number(&item["stored"]));
            let name = item["name"].as_str().unwrap_or("?");
            let (from, to) = (bytes(&item["logical"]), bytes(&item["stored"]));
            format!("{name} {} records, {from} in {to}{}", item["records"], ratio_text(logical, stored))
        };
        line("compression", lines(list("compression").iter().map(algorithm).collect()));
        let level = |item: &Value| format!("{} {}", item["name"].as_str().unwrap_or("?"), item["records"]);
        let levels: Vec<String> = list("zstd_levels").iter().map(level).collect();
        if !levels.is_empty() {
            line("levels", levels.join(", "));
        }
        let checksum =
            |item: &Value| format!("{} {} records", item["name"].as_str().unwrap_or("?"), item["records"]);
        line("checksums", lines(list("checksums").iter().map(checksum).collect()));
        line(
            "metadata",
            format!(
                "{} blocks in {}, {} levels",
                row["metadata_blocks"],
                bytes(&row["metadata_stored"]),
                row["levels"]
            ),
        );
        let zone = |item: &Value| {
            format!(
                "{} (at {}:{}) {} blocks, {}",
                item["seq"],
                item["device"],
                item["zone"],
                item["blocks"],
                bytes(&item["bytes"])
            )
        };
        line("zones", lines(list("zones").iter().map(zone).collect()));
        for (key, text) in attribute_lines(&row["attributes"], &bytes) {
            line(key, text);
        }
        line("txgs", format!("created in {}, newest record in {}", row["first_txg"], row["last_txg"]));
        if number(&row["errors_count"]) > 0 {
            let shown = list("errors").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            line("errors", format!("{}: {}", row["errors_count"], lines(shown)));
        }
        out
    }
}

/// Values of extended attributes that are shown; `--json` has all of them.
const VALUES_SHOWN: usize = 20;

/// Where a file's attributes lie.
fn attribute_lines(row: &Value, bytes: &dyn Fn(&Value) -> String) -> Vec<(&'static str, String)> {
    let number = |key: &str| row[key].as_u64().unwrap_or(0);
    let mut homes = vec![format!("{} in the dnode", bytes(&row["bonus"]))];
    if number("spill") > 0 {
        homes.push(format!(
            "{} in a spill block ({} stored)",
            bytes(&row["spill"]),
            bytes(&row["spill_stored"])
        ));
    }
    if number("objects") > 0 {
        homes.push(format!("{} hidden objects ({} stored)", row["objects"], bytes(&row["objects_stored"])));
    }
    let values = row["values"].as_array().map(Vec::as_slice).unwrap_or_default();
    let value = |item: &Value| {
        let text = |key: &str| crate::table::printable(item[key].as_str().unwrap_or("?"));
        format!("{} {} in {}", text("name"), bytes(&item["bytes"]), text("home"))
    };
    let mut shown: Vec<String> = values.iter().take(VALUES_SHOWN).map(value).collect();
    if values.len() > VALUES_SHOWN {
        shown.push(format!("and {} more", values.len() - VALUES_SHOWN));
    }
    let mut lines = vec![("attributes", homes.join(", "))];
    if !shown.is_empty() {
        lines.push(("values", shown.join("\n             ")));
    }
    lines
}

fn ratio_text(logical: u64, stored: u64) -> String {
    if stored == 0 { String::new() } else { format!(" ({:.2}x)", logical as f64 / stored as f64) }
}

/// Asks about each file, and shows the answers. If a question fails, the other files are shown nevertheless.
pub(super) fn show_files(
    command: &str,
    paths: &[PathBuf],
    is_json: bool,
    ask: impl Fn(&Path) -> Outcome<Value>,
    describe: impl Fn(&Value) -> String,
) -> Outcome {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for path in paths {
        match ask(path) {
            Ok(mut row) => {
                row["path"] = path.display().to_string().into();
                rows.push(row);
            }
            Err(Failure(text)) => failures.push(text),
        }
    }
    if is_json {
        print(&format!("{:#}\n", envelope(command, json!({"files": rows}))))?;
    } else {
        print(&rows.iter().map(describe).collect::<Vec<_>>().join("\n"))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
}

/// Asks about the file at a path on a mount by its inode, or at `POOL:/PATH` by its path in the pool.
pub(super) fn ask_about_path(
    registry: &Registry,
    path: &Path,
    by_inode: impl Fn(u64) -> Query,
    by_path: impl Fn(Vec<u8>) -> Query,
) -> Outcome<Value> {
    if path.symlink_metadata().is_err()
        && let Some((pool, inside)) = split_pool_path(path)
    {
        let pool = pool.to_str().ok_or_else(|| Failure(format!("{}: invalid pool name", pool.display())))?;
        return ask(registry, pool, &by_path(inside.to_vec()));
    }
    let meta = path.symlink_metadata().map_err(Failure::io("examining", path))?;
    let (target, dataset) = pool_of_mount(registry, path, meta.dev())?;
    match daemon_of(registry, &target)? {
        Some(daemon) => {
            let bar = super::progress_bar();
            daemon.ask_about(&dataset, &by_inode(meta.ino()), &mut |what, done, total| bar(what, done, total))
        }
        None => Err(Failure(format!("pool {} was unmounted meanwhile", target.name))),
    }
}

/// Splits `POOL:/PATH`. Names of pools hold no slash, so the first `:/` ends one; in a device's path it is
/// the last.
fn split_pool_path(word: &Path) -> Option<(&Path, &[u8])> {
    let raw = word.as_os_str().as_bytes();
    let positions: Vec<usize> =
        raw.windows(2).enumerate().filter(|(_, pair)| pair == b":/").map(|(at, _)| at).collect();
    let at = if raw.contains(&b'/') && raw.iter().position(|byte| *byte == b'/') < positions.first().copied()
    {
        // An existing path tells the device from what is inside of it.
        positions
            .iter()
            .copied()
            .find(|at| Path::new(OsStr::from_bytes(raw.get(..*at).unwrap_or(raw))).exists())?
    } else {
        *positions.first()?
    };
    Some((Path::new(OsStr::from_bytes(raw.get(..at)?)), raw.get(at + 1..)?))
}

/// The pool and the path of the data set whose mount is the file system with this number.
pub(super) fn pool_of_mount(registry: &Registry, path: &Path, dev: u64) -> Outcome<(Target, String)> {
    let dev = dev_number(dev);
    if let Some(entry) = terrane_fuse::mount::list_mounts()?.into_iter().find(|row| row.dev == dev) {
        match served_by(registry, &entry, GREETING_TIMEOUT)? {
            ServedBy::Daemon(MountedDaemon { daemon, .. }) => {
                let dataset = daemon.greeting.mount_at(&dev).map(|mount| mount.dataset).unwrap_or_default();
                let Greeting { pool, device, .. } = daemon.greeting;
                return Ok((Target { name: pool, path: device, id: None }, dataset));
            }
            ServedBy::NotAnswering(name) => return Err(control::not_answering(&name)),
            ServedBy::Unknown => {}
        }
    }
    let remedy = "name it as POOL:/PATH if the pool is not mounted";
    Err(Failure::refused(path.display(), "a file on a pool that you mounted", "another file system", remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_and_paths_are_told_apart() {
        let parts = |word: &'static str| {
            split_pool_path(Path::new(word))
                .map(|(pool, path)| (pool.to_str().unwrap(), std::str::from_utf8(path).unwrap()))
        };
        assert_eq!(parts("tank:/a/b"), Some(("tank", "/a/b")));
        assert_eq!(parts("tank:/"), Some(("tank", "/")));
        assert_eq!(parts("t:ank:/a:/b"), Some(("t:ank", "/a:/b")));
        assert_eq!(parts("/etc/passwd:/a:/b"), Some(("/etc/passwd", "/a:/b")));
        assert_eq!(parts("/nowhere.img:/a"), None);
        assert_eq!(parts("tank"), None);
    }
}
