//! `terrane explain`: why the blocks of a file lie where they lie.

use super::stat::{ask_about_path, show_files};
use crate::failure::Outcome;
use crate::query::Query;
use crate::registry::Registry;
use crate::size;
use crate::table::printable;
use clap::Args;
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const HELP: &str = "\
Zones are those of the last commit; `terrane sync` commits. What is known about similar files is kept while the pool is open, so a pool
that is not mounted has none.

Fields:
  hint          the write hint of new blocks, and who stated it: the file, a rule of its directory, the directory, or the property
  life          how many bytes users are expected to write until new blocks die, by files of the same directory and suffix
  placed by     what chooses the zone of a new block: the hint, similar files, or how long the version lived that it replaces
  zones         sequence number of the zone, its place on the device, its class and state; blocks and bytes of this file in it, their
                share of what is live there; how much of the zone is live, and how many other files share it
";

/// Show why files lie where they lie: hint, expected life, zones and who shares them
#[derive(Args)]
#[command(after_help = HELP)]
pub struct Explain {
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

impl Explain {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let ask = |path: &Path| {
            let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
            let by_inode = |object| Query::Explain { object, name: name.clone() };
            ask_about_path(&registry, path, by_inode, |path| Query::ExplainPath { path })
        };
        show_files("explain", &self.paths, self.json, ask, |row| self.describe(row))
    }

    fn bytes(&self, value: &Value) -> String {
        let number = value.as_u64().unwrap_or(0);
        if self.parsable { number.to_string() } else { size::format(number) }
    }

    fn describe(&self, row: &Value) -> String {
        let word = |key: &str| row[key].as_str().unwrap_or("?");
        let mut out = String::new();
        let mut line = |key: &str, value: String| out.push_str(&format!("{key:>9}: {value}\n"));
        line("path", printable(word("path")));
        line("object", format!("{} ({})", row["object"], word("type")));
        let from = match row["hint_from"].as_str() {
            Some("file") => ", stated for it".to_owned(),
            Some("rule") => match row["rule"].as_str() {
                Some(rule) => format!(", by the rule {} of its directory", printable(rule)),
                None => ", by a rule that its directory had".to_owned(),
            },
            Some("directory") => ", inherited from its directory".to_owned(),
            Some("property") => ", by the property write_hint".to_owned(),
            _ => String::new(),
        };
        line("hint", format!("{}{from}", word("hint")));
        line("life", self.life(row));
        line("placed by", word("placed_by").to_owned());
        let zones: Vec<String> =
            row["zones"].as_array().into_iter().flatten().map(|zone| self.zone(zone)).collect();
        line("zones", if zones.is_empty() { "none".to_owned() } else { zones.join("\n           ") });
        for error in row["errors"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            line("error", printable(error));
        }
        out
    }

    fn life(&self, row: &Value) -> String {
        let expected = match row["expected_life"].as_u64() {
            None => "unknown".to_owned(),
            Some(0) => "none: it has no name".to_owned(),
            Some(u64::MAX) => "unlimited: hardly any similar file has died".to_owned(),
            Some(_) => format!("{} of writes", self.bytes(&row["expected_life"])),
        };
        let similar = &row["similar"];
        match similar["births"].as_u64() {
            None | Some(0) => format!("{expected}; no similar files were seen"),
            Some(births) => {
                let place = if similar["of"] == "directory" { "its directory" } else { "all directories" };
                let deaths = &similar["deaths"];
                format!("{expected}; {deaths} of {births} recent similar files of {place} died")
            }
        }
    }

    fn zone(&self, zone: &Value) -> String {
        let word = |key: &str| zone[key].as_str().unwrap_or("?");
        let others = match zone["other_files"].as_u64() {
            None => String::new(),
            Some(0) => ", no other file".to_owned(),
            Some(1) => ", 1 other file".to_owned(),
            Some(others) => format!(", {others} other files"),
        };
        format!(
            "{} (at {}:{}, {}, {}) {} blocks, {}, {} % of what is live; {} % live{others}",
            zone["seq"],
            zone["device"],
            zone["zone"],
            word("class"),
            word("state"),
            zone["blocks"],
            self.bytes(&zone["bytes"]),
            zone["share_percent"],
            zone["live_percent"],
        )
    }
}
