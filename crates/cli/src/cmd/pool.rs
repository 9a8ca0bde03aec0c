//! `terrane pool`: creates, imports, watches and destroys pools.

mod clear;
mod destroy;
mod devices;
mod features;
mod gc;
mod import;
mod iostat;
mod upgrade;

use super::{Survey, ask_within, print};
use crate::boot_mounts::PoolMounts;
use crate::bucket_note;
use crate::control::{self, GREETING_TIMEOUT, SURVEY_TIMEOUT};
use crate::device_probe::DeviceOptions;
use crate::failure::{Failure, Outcome};
use crate::members;
use crate::open_pool::{self, OpenPool};
use crate::query::{self, Query, Setting, property_help};
use crate::registry::{Registry, is_name};
use crate::table::{Listing, OutputFormat, count, envelope, printable, size as size_column, text};
use crate::target;
use crate::{size, sys};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrane_bucket::location::{SETTINGS, is_url};
use terrane_dataset::Dataset;
use terrane_device::{Device, OpenMode};
use terrane_format::label::Role;
use terrane_object::ObjectSets;
use terrane_pool::{CreateOptions, ImportOptions, Pool, check_new_log_devices};
use terrane_posix::{Cred, Fs};
use terrane_store::env::SystemEnv;

#[derive(Subcommand)]
pub enum PoolCommand {
    /// Create a pool
    #[command(after_help = property_help())]
    Create(Create),
    /// Add a device to a pool
    #[command(after_help = devices::ADD_HELP)]
    Add(devices::Add),
    /// Empty a device of a pool, and remove it
    #[command(after_help = devices::REMOVE_HELP)]
    Remove(devices::Remove),
    /// Search devices for pools, and register one by its name
    #[command(after_help = import::HELP)]
    Import(import::Import),
    /// Commit and unmount a pool, and forget its name, so that it can move to another machine
    Export(import::Export),
    /// List pools
    List(List),
    /// Show one pool in detail, or all
    Status(Status),
    /// Show operations and bandwidth of devices, since the import and then for each interval
    #[command(after_help = iostat::HELP)]
    Iostat(iostat::Iostat),
    /// Collect garbage now, instead of when empty zones run short
    #[command(after_help = gc::HELP)]
    Gc(gc::Gc),
    /// Forget the name of a pool, without touching its devices, which may be gone or hold other data
    Forget(import::Forget),
    /// Clear the error log: damage, files that lost changes, device errors
    #[command(after_help = clear::HELP)]
    Clear(clear::Clear),
    /// Destroy a pool: its labels are wiped, and all its data is lost
    Destroy(destroy::Destroy),
    /// Show which features a pool may use and which it does, and enable or disable some
    #[command(after_help = features::HELP)]
    Features(features::Features),
    /// Show version and feature flags of pools, and upgrade them
    #[command(after_help = upgrade::HELP)]
    Upgrade(upgrade::Upgrade),
}

#[derive(Args)]
pub struct Create {
    /// A letter, then letters, digits and _ - . :
    name: String,
    /// A block device, or a file, which is created (sparse) if it does not exist; or s3://BUCKET/PREFIX or file:///DIR
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Devices for metadata, created like the others
    #[arg(long, value_name = "DEVICE", num_args = 1..)]
    special: Vec<PathBuf>,
    /// Devices for the intent log, created like the others
    #[arg(long, value_name = "DEVICE", num_args = 1..)]
    log: Vec<PathBuf>,
    #[command(flatten)]
    device_options: DeviceOptions,
    /// Set a property of the root data set; or `endpoint`, `region` or `payload` of an object store
    #[arg(short = 'o', value_parser = parse_create_setting, value_name = "PROPERTY=VALUE")]
    properties: Vec<Setting>,
    /// Do not discard the devices: a fully allocated file or disk stays so
    #[arg(long)]
    no_discard: bool,
    /// Words that users of zpool type, to be refused with a reason.
    #[arg(short = 'n', hide = true)]
    dry_run: bool,
    #[arg(short = 'm', hide = true)]
    mountpoint: Option<PathBuf>,
    /// Without features of later versions, so that the first version can import it
    #[arg(long)]
    no_features: bool,
}

#[derive(Args)]
pub struct Status {
    /// Pools, by name or by device (default: all known pools)
    pools: Vec<String>,
    /// Name the files whose blocks could not be read, and those that lost changes; more figures of memory and compression
    #[arg(short, long)]
    verbose: bool,
    /// Only pools that are not healthy, or have files that lost changes; the exit code is 1 if there are any
    #[arg(short = 'x', long)]
    unhealthy: bool,
    /// JSON
    #[arg(short, long)]
    json: bool,
    /// Exact numbers instead of rounded ones
    #[arg(short, long)]
    parsable: bool,
}

#[derive(Args)]
pub struct List {
    /// Pools, by name or by device (default: all known pools)
    pools: Vec<String>,
    /// Columns to show, in this order, separated by commas
    #[arg(short = 'o', value_delimiter = ',', value_name = "COLUMNS", value_parser =
        ["name", "size", "used", "avail", "cap", "state", "mountpoint"])]
    columns: Vec<String>,
    #[command(flatten)]
    output: OutputFormat,
}

const POOLS: Listing = Listing {
    command: "pool list",
    key: "pools",
    columns: &[
        text("NAME", "name"),
        size_column("SIZE", "size"),
        size_column("USED", "used"),
        size_column("AVAIL", "available"),
        count("CAP%", "capacity_percent"),
        text("STATE", "state"),
        text("MOUNTPOINT", "mountpoint"),
    ],
};

impl PoolCommand {
    pub fn run(&self) -> Outcome {
        match self {
            PoolCommand::Create(create) => create.run(),
            PoolCommand::Add(add) => add.run(),
            PoolCommand::Remove(remove) => remove.run(),
            PoolCommand::Import(import) => import.run(),
            PoolCommand::Export(export) => export.run(),
            PoolCommand::Forget(forget) => forget.run(),
            PoolCommand::Status(status) => status.run(),
            PoolCommand::Iostat(iostat) => iostat.run(),
            PoolCommand::Gc(gc) => gc.run(),
            PoolCommand::Clear(clear) => clear.run(),
            PoolCommand::Features(features) => features.run(),
            PoolCommand::Upgrade(upgrade) => upgrade.run(),
            PoolCommand::List(list) => {
                let (rows, failed) = statuses(&Registry::of_this_user()?, &list.pools)?;
                print(&POOLS.render_chosen(&list.columns, &rows, list.output))?;
                failed
            }
            PoolCommand::Destroy(destroy) => destroy.run(),
        }
    }
}

/// The status of the named pools, or of all. A known pool that cannot be opened gets a row that says so. If
/// such a pool was asked for by name, the second value is a failure.
pub fn statuses(registry: &Registry, words: &[String]) -> Outcome<(Vec<Value>, Outcome)> {
    let known = registry.pools()?;
    let all: Vec<String> = if words.is_empty() { known.keys().cloned().collect() } else { words.to_vec() };
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    // Called concurrently, so that daemons that do not answer cost one time limit together.
    let not_answering = if words.is_empty() { Survey::of(registry)?.not_answering } else { Vec::new() };
    let timeout = if words.is_empty() { SURVEY_TIMEOUT } else { GREETING_TIMEOUT };
    for word in all {
        let answer = match not_answering.iter().find(|(name, _)| *name == word) {
            Some((name, _)) => Err(control::not_answering(name)),
            None => ask_within(registry, &word, &Query::Status, timeout),
        };
        match answer {
            Ok(status) => rows.push(status),
            Err(failure) => {
                let does_not_answer = failure == control::not_answering(&word);
                let Failure(reason) = failure;
                let device = known.get(&word).map(|path| path.display().to_string());
                let mut row = query::unavailable_row(&word, device, &reason);
                if does_not_answer {
                    row["state"] = "not answering".into();
                }
                rows.push(row);
                if !words.is_empty() {
                    failures.push(reason);
                }
            }
        }
    }
    let failed = if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) };
    Ok((rows, failed))
}

impl Status {
    fn run(&self) -> Outcome {
        let (mut rows, failed) = statuses(&Registry::of_this_user()?, &self.pools)?;
        let known = rows.len();
        if self.unhealthy {
            rows.retain(is_unhealthy);
        }
        let out = match self.json {
            true => format!("{:#}\n", envelope("pool status", json!({"pools": rows}))),
            false if self.unhealthy && rows.is_empty() && known > 0 => "all pools are healthy\n".to_owned(),
            false if rows.is_empty() => {
                "no known pools; `terrane pool import` searches for some\n".to_owned()
            }
            false => rows.iter().map(|row| self.describe(row)).collect::<Vec<_>>().join("\n"),
        };
        print(&out)?;
        match rows.len() {
            count if self.unhealthy && count > 0 && failed.is_ok() => {
                Err(Failure(format!("{count} of {known} pools are not healthy")))
            }
            _ => failed,
        }
    }
}

/// The mounts of a pool, one line each. Lines of data sets below the root begin with the name.
fn mounted_text(row: &Value) -> String {
    let name = row["name"].as_str().unwrap_or("?");
    let place = |mount: &Value| {
        let read_only = if mount["read_only"] == true { ", read-only" } else { "" };
        let dir = printable(mount["mountpoint"].as_str().unwrap_or("?"));
        match mount["dataset"].as_str().filter(|dataset| *dataset != name) {
            Some(dataset) => format!("{} on {dir}{read_only}", printable(dataset)),
            None => format!("on {dir}{read_only}"),
        }
    };
    let mounts: Vec<String> = row["mounts"].as_array().into_iter().flatten().map(place).collect();
    match (mounts.is_empty(), row["mountpoint"].as_str()) {
        (false, _) => mounts.join("\n           "),
        // From an older server.
        (true, Some(_)) => place(row),
        (true, None) => "no".to_owned(),
    }
}

/// Whether the pool needs attention.
fn is_unhealthy(row: &Value) -> bool {
    let has_failed = |device: &Value| {
        ERROR_COUNTS.iter().any(|(key, _)| device[*key].as_u64().is_some_and(|count| count > 0))
    };
    row["state"] != "healthy"
        || row["lost_files"].as_array().is_some_and(|files| !files.is_empty())
        || row["devices"].as_array().is_some_and(|devices| devices.iter().any(has_failed))
        || row["log_devices"]
            .as_array()
            .is_some_and(|devices| devices.iter().any(|row| row["state"] != "normal"))
}

/// Error counters of a device: the keys of its row, and what they count.
const ERROR_COUNTS: [(&str, &str); 3] = [
    ("read_errors", "read errors"),
    ("write_errors", "write errors"),
    ("checksum_errors", "checksum errors"),
];

/// What space is kept for: the keys of `kept`, and words.
const KEPT_PARTS: [(&str, &str); 10] = [
    ("anchors", "for labels and uberblocks"),
    ("unusable", "in zones out of use"),
    ("zone_overhead", "for headers, directories and ends of zones"),
    ("collection", "for collection"),
    ("commits", "for commits"),
    ("metadata", "for metadata"),
    ("open_zones", "in open zones"),
    ("frees", "for frees"),
    ("log", "for the intent log"),
    ("host", "that the host lacks"),
];

/// The errors of a device that has some.
fn device_errors(row: &Value) -> Option<String> {
    let count = |(key, word): &(&str, &str)| {
        row[*key].as_u64().filter(|count| *count > 0).map(|count| format!("{count} {word}"))
    };
    let counts: Vec<String> = ERROR_COUNTS.iter().filter_map(count).collect();
    let device = printable(row["device"].as_str().unwrap_or("?"));
    (!counts.is_empty()).then(|| format!("{device}: {}", counts.join(", ")))
}

impl Status {
    /// Why GC runs, and its progress.
    fn gc_line(&self, row: &Value) -> String {
        let print = |bytes: u64| if self.parsable { bytes.to_string() } else { size::format(bytes) };
        let garbage = print(row["garbage"].as_u64().unwrap_or(0));
        let goal = row["garbage_goal"].as_u64().map(|goal| format!(", down to {}", print(goal)));
        let why = match row["collection"].as_str() {
            Some("background") => "in the background, because space is short",
            Some("urgent") => "urgently, because writers wait",
            Some("by hand") => "because it was asked to",
            Some("window") => "because it is idle time",
            _ => "idle",
        };
        let victim = &row["victim"];
        let zone = victim["seq"].as_u64().map(|seq| {
            format!(
                "; zone {seq} ({}:{}), {} % of it alive, {} % of that moved",
                victim["device"], victim["zone"], victim["live_percent"], victim["moved_percent"]
            )
        });
        let rests = row["collection_rests"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rests: String = rests
            .iter()
            .map(|rest| {
                format!(
                    "; paused on device {}, of which {} zones could not be read, for {} s",
                    rest["device"], rest["unread_zones"], rest["seconds"]
                )
            })
            .collect();
        format!(
            "{why}; {garbage} of garbage in full zones{}{}{rests}",
            goal.unwrap_or_default(),
            zone.unwrap_or_default()
        )
    }

    /// What users wrote, and what was written to devices for it.
    fn written_line(&self, row: &Value) -> String {
        let bytes = |key: &str| {
            let bytes = row["totals"][key].as_u64().unwrap_or(0);
            if self.parsable { bytes.to_string() } else { size::format(bytes) }
        };
        let times = |key: &str| row[key].as_f64().map(|times| format!("{times:.2}"));
        let lately = [("amplification_minute", "minute"), ("amplification_ten_minutes", "ten minutes")]
            .map(|(key, window)| times(key).map(|times| format!(", {times} in the last {window}")));
        let lately: String = lately.into_iter().flatten().collect();
        let amplification = times("amplification").map(|times| format!(" (amplification {times}{lately})"));
        format!(
            "{} by users, {} to devices{}",
            bytes("user_bytes"),
            bytes("device_bytes"),
            amplification.unwrap_or_default()
        )
    }

    /// Memory that the server of a mount uses, and its limit.
    fn memory_line(&self, row: &Map<String, Value>) -> String {
        let bytes = |key: &str| {
            let bytes = row.get(key).and_then(Value::as_u64).unwrap_or(0);
            if self.parsable { bytes.to_string() } else { size::format(bytes) }
        };
        let [resident, limit] = ["resident", "limit"].map(bytes);
        let ([cache, cache_limit], [dirty, dirty_limit]) =
            (["cache", "cache_limit"].map(bytes), ["dirty", "dirty_limit"].map(bytes));
        let held = format!("{} of contents, stored in {}", bytes("cache_logical"), bytes("cache_stored"));
        let indexes = match row.get("directory_indexes").and_then(Value::as_u64) {
            None | Some(0) => String::new(),
            _ if !self.verbose => String::new(),
            Some(count) => format!(", {} for {count} directory indexes", bytes("directory_index_bytes")),
        };
        format!(
            "{resident} of {limit}; {cache} of {cache_limit} for blocks ({held}), {dirty} of {dirty_limit} dirty{indexes}"
        )
    }

    /// Why users are offered less than the devices have.
    fn kept_line(&self, row: &Value) -> String {
        let kept = &row["kept"];
        let number = |key: &str| kept[key].as_u64().unwrap_or(0);
        let print = |bytes: u64| if self.parsable { bytes.to_string() } else { size::format(bytes) };
        let parts: Vec<String> = KEPT_PARTS
            .iter()
            .filter(|(key, _)| *key != "unusable" || number(key) > 0)
            .map(|(key, what)| format!("{} {what}", print(number(key))))
            .collect();
        let all: u64 = KEPT_PARTS.iter().map(|(key, _)| number(key)).sum();
        format!("{} of {}: {}", print(all), print(number("devices")), parts.join(", "))
    }

    /// What GC gave for what it moved. `None`: nothing.
    fn reclaim_line(&self, row: &Value) -> Option<String> {
        let reclaim = row["reclaim"].as_object()?;
        let number = |key: &str| reclaim.get(key).and_then(Value::as_u64).unwrap_or(0);
        let print = |key: &str| match self.parsable {
            true => number(key).to_string(),
            false => size::format(number(key)),
        };
        let ratio = |key: &str| reclaim.get(key).and_then(Value::as_f64).map(|ratio| format!("{ratio:.2}"));
        let lately = [("ratio_minute", "minute"), ("ratio_ten_minutes", "ten minutes")]
            .map(|(key, window)| ratio(key).map(|ratio| format!(", {ratio} in the last {window}")));
        let lately: String = lately.into_iter().flatten().collect();
        let ratio = ratio("ratio").map(|ratio| format!(" (ratio {ratio}{lately})")).unwrap_or_default();
        (number("freed") > 0).then(|| {
            format!("{} freed for {} moved{ratio}: {} won", print("freed"), print("moved"), print("won"))
        })
    }

    /// Blocks that compression gave up. `None`: none.
    fn given_up_line(&self, row: &Value) -> Option<String> {
        let rows = row["given_up"].as_array().filter(|rows| !rows.is_empty())?;
        let step = |row: &Value, blocks: &str, bytes: &str, by: &str| {
            let (blocks, bytes) = (row[blocks].as_u64()?, row[bytes].as_u64()?);
            let bytes = if self.parsable { bytes.to_string() } else { size::format(bytes) };
            (blocks > 0).then(|| format!("{blocks} blocks of {bytes} by {by}"))
        };
        let codec = |row: &Value| {
            let steps = [
                step(row, "probe_blocks", "probe_bytes", "a probe"),
                step(row, "encoder_blocks", "encoder_bytes", "the encoder"),
            ];
            let steps: Vec<String> = steps.into_iter().flatten().collect();
            format!("{} {}", row["name"].as_str().unwrap_or("?"), steps.join(", "))
        };
        Some(rows.iter().map(codec).collect::<Vec<_>>().join("; "))
    }

    /// The zones of each size.
    fn zones_text(&self, row: &Value) -> String {
        let print = |bytes: &Value| {
            let bytes = bytes.as_u64().unwrap_or(0);
            if self.parsable { bytes.to_string() } else { size::format(bytes) }
        };
        let of_size = |row: &Value| format!("{} of {}", row["zones"], print(&row["size"]));
        match row["zone_sizes"].as_array().map(Vec::as_slice) {
            Some(sizes @ [_, _, ..]) => {
                let sizes: Vec<String> = sizes.iter().map(of_size).collect();
                format!("{}: {}", row["zones"], sizes.join(" and "))
            }
            _ => format!("{} of {}", row["zones"], print(&row["zone_size"])),
        }
    }

    /// A cache device, in words.
    fn cache_line(&self, row: &Value) -> String {
        let name = printable(row["device"].as_str().unwrap_or("-"));
        let bytes = |key: &str| {
            let bytes = row[key].as_u64()?;
            Some(if self.parsable { bytes.to_string() } else { size::format(bytes) })
        };
        match (row["state"].as_str(), bytes("held"), bytes("size")) {
            (Some("normal"), Some(held), Some(size)) => format!("{name}, {held} of {size}"),
            (Some(state), _, _) => format!("{name}, {state}"),
            _ => name,
        }
    }

    /// A log device, in words.
    fn log_line(&self, row: &Value) -> String {
        let (name, state) = (printable(row["device"].as_str().unwrap_or("-")), row["state"].as_str());
        match (state, row["size"].as_u64()) {
            (Some("normal"), Some(size)) if self.parsable => format!("{name}, {size}"),
            (Some("normal"), Some(size)) => format!("{name}, {}", size::format(size)),
            (state, _) => format!("{name}, {}", state.unwrap_or("?")),
        }
    }

    fn describe(&self, row: &Value) -> String {
        let word = |key: &str| printable(row[key].as_str().unwrap_or("-"));
        let bytes = |key: &str| {
            let bytes = row[key].as_u64().unwrap_or(0);
            if self.parsable { bytes.to_string() } else { size::format(bytes) }
        };
        let mut out = String::new();
        let mut line = |key: &str, value: String| out.push_str(&format!("{key:>9}: {value}\n"));
        line("pool", word("name"));
        line("state", word("state"));
        let devices = row["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        match devices {
            [] | [_] => line("device", word("device")),
            _ => line(
                "devices",
                devices.iter().map(|row| self.device_line(row)).collect::<Vec<_>>().join("\n           "),
            ),
        }
        if let Some(reason) = row["reason"].as_str() {
            line("reason", printable(reason));
            return out;
        }
        for cache in row["caches"].as_array().into_iter().flatten() {
            line("cache", self.cache_line(cache));
        }
        for device in row["log_devices"].as_array().into_iter().flatten() {
            line("log", self.log_line(device));
        }
        line("mounted", mounted_text(row));
        match row["supervisor"].as_str() {
            Some("gone") => line(
                "supervisor",
                "gone, being replaced: until then the mount ends with its server".to_owned(),
            ),
            Some("none") => line("supervisor", "none: the mount ends with its server".to_owned()),
            _ => {}
        }
        if let Some(memory) = row["memory"].as_object() {
            line("memory", self.memory_line(memory));
        }
        let closed = match (row["supervisor"].is_null(), row["clean"].as_bool()) {
            (true, Some(false)) => ", not closed properly; committed data is intact",
            _ => "",
        };
        line("txg", format!("{}, committed {}{closed}", row["txg"], word("committed")));
        line(
            "space",
            format!(
                "{} of {} used ({} %), {} available, {} objects",
                bytes("used"),
                bytes("size"),
                row["capacity_percent"],
                bytes("available"),
                row["objects"]
            ),
        );
        line("kept", self.kept_line(row));
        // Zones that should not exist in a healthy pool.
        let trouble: Vec<String> =
            [("zones_suspect", "suspect"), ("zones_read_only", "read-only"), ("zones_offline", "offline")]
                .iter()
                .filter(|(key, _)| row[*key].as_u64().is_some_and(|zones| zones > 0))
                .map(|(key, word)| format!(", {} {word}", row[*key]))
                .collect();
        line(
            "zones",
            format!(
                "{}: {} open, {} full, {} empty, {} waiting to be reset{}",
                self.zones_text(row),
                row["zones_open"],
                row["zones_full"],
                row["zones_empty"],
                row["zones_waiting"],
                trouble.concat(),
            ),
        );
        line("moved", {
            let number = |key: &str| row[key].as_u64().unwrap_or(0);
            let takes = number("run_index_bytes") + number("dead_set_bytes");
            let is_short = takes > number("index_bytes_max") / 4 * 3;
            let (dead, most) = (bytes("dead_set_bytes"), bytes("index_bytes_max"));
            let short = format!("; with {dead} of dead sets near the limit of {most}");
            let rewritten = match number("rewritten_bytes") {
                0 => String::new(),
                _ => format!("; {} rewritten to keep it small", bytes("rewritten_bytes")),
            };
            format!(
                "{} runs, {} of index{}{}{rewritten}",
                row["runs"],
                bytes("run_index_bytes"),
                if row["run_index_packed"] == true { ", packed" } else { "" },
                if is_short { &short } else { "" }
            )
        });
        if row["shared_blocks"].as_u64().is_some_and(|blocks| blocks > 0) {
            let (blocks, stored) = (&row["shared_blocks"], bytes("shared_bytes"));
            line("shared", format!("{blocks} blocks of {stored}, which saves {}", bytes("saved_bytes")));
        }
        line("gc", self.gc_line(row));
        if let Some(text) = self.reclaim_line(row) {
            line("reclaim", text);
        }
        line("written", self.written_line(row));
        if let Some(text) = self.given_up_line(row).filter(|_| self.verbose) {
            line("given up", text);
        }
        if let Some(waits) = row["waits"].as_object() {
            let seconds = |key: &str| waits.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            let number = |key: &str| waits.get(key).and_then(Value::as_u64).unwrap_or(0);
            let now = match number("now") {
                0 => String::new(),
                now => format!("; {now} now, for {}", size::format(number("now_bytes"))),
            };
            let text = match number("count") {
                0 => format!("none for space{now}"),
                count => format!(
                    "{count} for space, {:.3} s in total, {:.3} s the longest{now}",
                    seconds("seconds"),
                    seconds("longest_seconds")
                ),
            };
            line("waits", text);
        }
        let features = row["features"].as_array().map(Vec::as_slice).unwrap_or_default();
        let features: Vec<&str> = features.iter().filter_map(Value::as_str).collect();
        line("features", if features.is_empty() { "none".to_owned() } else { features.join(", ") });
        let damage = row["damage"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of_log = row["log_devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let troubles = devices.iter().chain(of_log).map(|row| &row["trouble"]);
        let found = damage
            .iter()
            .chain([&row["failed"], &row["suspended"]["reason"]])
            .chain(troubles)
            .filter_map(Value::as_str)
            .map(printable);
        let mut found: Vec<String> = found.collect();
        let damaged = row["damaged"].as_array().map(Vec::as_slice).unwrap_or_default();
        let name = |block: &Value| {
            let text = |key: &str| block[key].as_str().unwrap_or("?").to_owned();
            match block["path"].as_str() {
                Some(path) => format!("{path}: {}", text("reason")),
                None => format!("{}: {}", text("owner"), text("reason")),
            }
        };
        match (self.verbose, damaged.len()) {
            (_, 0) => {}
            (true, _) => found.extend(damaged.iter().map(|block| printable(&name(block)))),
            (false, 1) => {
                found.push("a block could not be read; `terrane pool status -v` names it".to_owned())
            }
            (false, count) => {
                found.push(format!("{count} blocks could not be read; `terrane pool status -v` names them"))
            }
        }
        found.extend(self.lost_files(row));
        found.extend(devices.iter().filter_map(device_errors));
        line("errors", if found.is_empty() { "none".to_owned() } else { found.join("\n           ") });
        out
    }
}

impl Status {
    /// Files that lost changes: named, or counted.
    fn lost_files(&self, row: &Value) -> Vec<String> {
        let files = row["lost_files"].as_array().map(Vec::as_slice).unwrap_or_default();
        let pool = row["name"].as_str().unwrap_or("POOL");
        let one = |file: &Value| {
            let path = file["path"].as_str().unwrap_or("?").escape_debug().to_string();
            let why = match file["reason"].as_str() {
                Some(query::NOT_WRITTEN_BACK) => "write-back of a memory mapping failed",
                _ => "its server was killed",
            };
            format!("{path}: changes lost: {why}; check the file, then `terrane pool clear {pool}`")
        };
        match (files.len(), self.verbose) {
            (0, _) => Vec::new(),
            (_, true) => files.iter().map(one).collect(),
            (1, false) => {
                vec![format!("a file lost changes; `terrane pool status -v {pool}` names it and says why")]
            }
            (count, false) => vec![format!(
                "{count} files lost changes; `terrane pool status -v {pool}` names them and says why"
            )],
        }
    }

    /// One of several devices.
    fn device_line(&self, row: &Value) -> String {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let bytes = |key: &str| {
            if self.parsable { number(key).to_string() } else { size::format(number(key)) }
        };
        let leaving = if row["state"] == "leaving" { ", leaving" } else { "" };
        format!(
            "{} ({}{leaving}): {} zones of {}, {} empty, {} alive",
            printable(row["device"].as_str().unwrap_or("?")),
            row["role"].as_str().unwrap_or("?"),
            number("zones"),
            bytes("zone_size"),
            number("zones_empty"),
            bytes("live")
        )
    }
}

impl Create {
    fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        if !is_name(&self.name) {
            let expected = "a letter, then letters, digits and _ - . :, at most 200 of them";
            return Err(Failure::refused(
                "pool name",
                expected,
                format!("{:?}", self.name),
                "choose another",
            ));
        }
        if self.dry_run {
            let text = "-n: there is no dry run: all devices are checked before any is written, and data is overwritten \
                        only with --force";
            return Err(Failure(text.to_owned()));
        }
        if let Some(dir) = &self.mountpoint {
            let text = "-m: a pool has no mount point of its own: create it, then `terrane mount";
            return Err(Failure(format!("{text} {} {}`", self.name, dir.display())));
        }
        if self.no_features && !self.log.is_empty() {
            let text = "--log: a pool with --no-features has no intent log: leave one of them out";
            return Err(Failure(text.to_owned()));
        }
        let (first, all) = (&self.devices[0], self.devices.iter().chain(&self.special).chain(&self.log));
        all.clone().try_for_each(|path| self.device_options.reject_keyword(path))?;
        // All checks that are possible before anything is changed. A pool that could not be added to the
        // registry afterwards would be in the way.
        drop(registry.lock()?);
        if let Some(url) = first.to_str().filter(|word| is_url(word)) {
            return self.create_in_bucket(&registry, url);
        }
        refuse_known_name(&registry, &self.name, first, "choose another, or destroy that pool")?;
        let mut made = Vec::new();
        let created = all.map(|path| self.open(path, &mut made)).collect::<Outcome<Vec<_>>>();
        let created = created.and_then(|devices| self.format(devices));
        if created.is_err() {
            // We just created them, and they are no pool.
            made.iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        created?;
        let path = first.canonicalize().map_err(Failure::io("finding", first))?;
        registry.register(&self.name, &path)?;
        self.record_boot_mounts(&registry, &path).unwrap_or_else(|failure| {
            log::warn!("pool {}: mounts at boot not recorded: {failure}", self.name);
        });
        members::warn_of_access(&path);
        Ok(())
    }

    /// Records where its root data set belongs, and that nothing is left of an earlier pool of that name.
    fn record_boot_mounts(&self, registry: &Registry, path: &Path) -> Outcome {
        if !self.properties.iter().any(|setting| setting.name == "mountpoint") {
            return registry.record_boot_mounts(&self.name, || Ok(PoolMounts::default()));
        }
        let open_pool =
            OpenPool::open(&target::find_at(path)?, &open_pool::tool_options(OpenMode::ReadOnly))?;
        let mounts = query::boot_mounts_of(&open_pool);
        open_pool.export()?;
        registry.record_boot_mounts(&self.name, || mounts)
    }

    /// Settings of the root data set, without those of an object store.
    fn properties(&self) -> impl Iterator<Item = &Setting> {
        self.properties.iter().filter(|setting| !SETTINGS.contains(&setting.name.as_str()))
    }

    fn validate(&self, zone_size: u64) -> Outcome {
        let max_block = u32::try_from(zone_size / 4).unwrap_or(u32::MAX);
        query::refuse_limits(&self.properties, "pool")?;
        self.properties().try_for_each(|setting| query::validate_setting(setting, max_block))
    }

    /// The URL is that of the only device, apart from log devices.
    fn create_in_bucket(&self, registry: &Registry, url: &str) -> Outcome {
        if self.devices.len() + self.special.len() > 1 {
            let remedy = "name the URL alone; log and cache devices may be local";
            return Err(Failure::refused(url, "one object store", "other devices beside it", remedy));
        }
        let of_store = self.properties.iter().filter(|setting| SETTINGS.contains(&setting.name.as_str()));
        let settings: Vec<(String, String)> =
            of_store.map(|setting| (setting.name.clone(), setting.value.clone())).collect();
        let location = bucket_note::location(url, &settings)?;
        let path = bucket_note::note_of(registry, &location)?;
        refuse_known_name(registry, &self.name, &path, "choose another, or destroy that pool")?;
        let zone_size = self.device_options.bucket_zone_size(&location.url, &|bytes| self.validate(bytes))?;
        let mut made = Vec::new();
        let log = self.log.iter().map(|path| self.open(path, &mut made)).collect::<Outcome<Vec<_>>>();
        let created = log.and_then(|log| {
            let device = bucket_note::create(&location, zone_size, &self.device_options)?;
            self.format([device].into_iter().chain(log).collect())
        });
        if created.is_err() {
            made.iter().for_each(|path| drop(std::fs::remove_file(path)));
        }
        created?;
        registry.register(&self.name, &path)?;
        self.record_boot_mounts(registry, &path).unwrap_or_else(|failure| {
            log::warn!("pool {}: mounts at boot not recorded: {failure}", self.name);
        });
        Ok(())
    }

    fn open(&self, path: &Path, made: &mut Vec<PathBuf>) -> Outcome<Arc<dyn Device>> {
        let validate = |zone_size: u64| self.validate(zone_size);
        // The label records where each device was.
        let path = std::path::absolute(path).map_err(Failure::io("finding", path))?;
        let new_device = self.device_options.open(&path, &validate)?;
        if new_device.is_created {
            made.push(path);
        }
        new_device.into_device()
    }

    /// The last devices are those of the log.
    fn format(&self, mut devices: Vec<Arc<dyn Device>>) -> Outcome {
        let options =
            ImportOptions { discard: !self.no_discard, ..open_pool::tool_options(OpenMode::ReadWrite) };
        let mut create = CreateOptions::named(&self.name);
        create.roles = self.devices.iter().map(|_| Role::Data).collect();
        create.roles.extend(self.special.iter().map(|_| Role::Special));
        if self.no_features {
            create.features.clear();
        }
        let log_devices = devices.split_off(create.roles.len());
        check_new_log_devices(&devices, &log_devices)?;
        let pool = Pool::create(devices, &create, Arc::new(SystemEnv::new()), &options)?;
        let formatted = self.format_root(&pool).and_then(|()| {
            log_devices.into_iter().try_for_each(|device| Ok(pool.add_log_device(device).map(drop)?))
        });
        if formatted.is_err() {
            pool.abandon();
        }
        formatted?;
        Ok(pool.export()?)
    }

    fn format_root(&self, pool: &Arc<Pool>) -> Outcome {
        let objects = ObjectSets::create(Arc::clone(pool))?;
        let properties: Vec<(&str, &str)> =
            self.properties().map(|set| (set.name.as_str(), set.value.as_str())).collect();
        let dataset = Dataset::create_root(&objects, &properties)?;
        let sys::ProcessUser { uid, gid } = sys::process_user()?;
        Fs::format(&dataset, &Cred { uid, gid, umask: 0 })?;
        // While `objects` lives: a commit asks it for dirty blocks.
        Ok(pool.commit().map(drop)?)
    }
}

/// A property of the root data set, or a setting of an object store.
fn parse_create_setting(word: &str) -> Result<Setting, String> {
    match word.split_once('=') {
        Some((name, value)) if SETTINGS.contains(&name) => {
            Ok(Setting { name: name.to_owned(), value: value.to_owned() })
        }
        _ => query::parse_setting(word),
    }
}

/// Refuses a name that means another pool which still exists.
fn refuse_known_name(registry: &Registry, name: &str, path: &Path, remedy: &str) -> Outcome {
    let Some(known) = target::other_pool_named(registry, name, path)? else { return Ok(()) };
    let found = format!("a pool of that name on {}", known.display());
    Err(Failure::refused(format_args!("pool {name}"), "an unused name", found, remedy))
}
