//! `terrane fs`: datasets and their properties.

mod clone_file;
mod entry;
mod hint;
mod owners;
mod rewrite;
mod snapshots;
mod tree;

pub use snapshots::SnapshotCommand;

use super::{ask, ask_within, print, rows};
use crate::control::SURVEY_TIMEOUT;
use crate::dataset_name::DatasetName;
use crate::failure::{Failure, Outcome};
use crate::figures::{self, FIGURES};
use crate::query::{self, Query, Selection, Setting, property_help};
use crate::registry::Registry;
use crate::table::{Listing, OutputFormat, text};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, Args, Command, Subcommand};
use serde_json::Value;
use std::ffi::OsStr;
use terrane_dataset::{PROPERTIES, QuotaName};
use terrane_object::OwnerKind;

#[derive(Subcommand)]
pub enum FsCommand {
    /// List data sets and snapshots
    List(tree::List),
    /// Create a data set
    #[command(after_help = property_help())]
    Create(tree::Create),
    /// Destroy a data set with its files, or snapshots, or a bookmark
    Destroy(tree::Destroy),
    /// Rename a data set or a snapshot
    Rename(tree::Rename),
    /// Return a data set to the state of a snapshot; all later changes are lost
    Rollback(snapshots::Rollback),
    /// Create a data set from a snapshot
    Clone(snapshots::CloneCommand),
    /// Make a clone independent: it takes over its origin and all older snapshots
    Promote(snapshots::Promote),
    /// Protect snapshots from being destroyed
    Hold(snapshots::Hold),
    /// Release a hold on snapshots
    Release(snapshots::Hold),
    /// List holds on snapshots
    Holds(snapshots::Holds),
    /// List what changed since a snapshot
    Diff(snapshots::Diff),
    /// Create a bookmark of a snapshot, which stays when the snapshot is destroyed
    Bookmark(snapshots::Bookmark),
    /// Show properties
    #[command(after_help = property_help() + "
" + &figures::help() + "
Sources:
  local         set on the data set
  received      received with the data set
  inherited     set on a data set above
  temporary     an option of the mount
  creation      chosen when the data set was created; it cannot change
  counted       measured as of the last commit; it cannot be set
  default       not set
")]
    Get(Get),
    /// Change properties; data that is already written stays as it is
    #[command(after_help = property_help())]
    Set(Set),
    /// Remove values, so that data sets inherit properties or have the default
    #[command(after_help = property_help())]
    Inherit(Inherit),
    /// Show and set write hints, and rules that give files a hint by their name
    #[command(after_help = hint::HELP)]
    Hint(hint::HintCommand),
    /// Copy a file or directory so that the copy shares its blocks
    #[command(after_help = clone_file::HELP)]
    CloneFile(clone_file::CloneFile),
    /// Rewrite existing files with another compression or record size
    #[command(after_help = rewrite::HELP)]
    Rewrite(rewrite::Rewrite),
    /// Show and change words that programs keep beside names
    #[command(subcommand, after_help = entry::HELP)]
    Entry(entry::EntryCommand),
    /// List users, what they have, and their limits
    #[command(after_help = owners::HELP)]
    Userspace(owners::OwnerList),
    /// List groups, what they have, and their limits
    #[command(after_help = owners::HELP)]
    Groupspace(owners::OwnerList),
    /// List projects, what they have, and their limits
    #[command(after_help = owners::HELP)]
    Projectspace(owners::OwnerList),
}

#[derive(Args)]
pub struct Get {
    /// Names separated by commas, or `all`
    #[arg(required = true, num_args = 1, action = ArgAction::Set, value_delimiter = ',', value_name = "PROPERTY|all",
        value_parser = names_and_all())]
    properties: Vec<String>,
    /// Data sets; a pool, by name or by device, is its root data set (default: those of all known pools)
    #[arg(value_name = "DATASET")]
    names: Vec<String>,
    /// Include all data sets below
    #[arg(short)]
    recursive: bool,
    /// Columns to show, in this order, separated by commas
    #[arg(short = 'o', value_delimiter = ',', value_name = "COLUMNS", value_parser =
        ["name", "property", "value", "source"])]
    columns: Vec<String>,
    /// Only values from these sources, separated by commas
    #[arg(short = 's', value_delimiter = ',', value_name = "SOURCES", value_parser =
        ["local", "received", "inherited", "temporary", "creation", "counted", "default", "none"])]
    sources: Vec<String>,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Args)]
pub struct Set {
    #[arg(required = true, value_parser = query::parse_setting, value_name = "PROPERTY=VALUE")]
    properties: Vec<Setting>,
    /// A data set; a pool, by name or by device, is its root data set
    #[arg(value_name = "DATASET")]
    name: String,
}

#[derive(Args)]
pub struct Inherit {
    /// Include all data sets below
    #[arg(short)]
    recursive: bool,
    /// Remove only the values that were set, so that received values apply again
    #[arg(short = 'S')]
    received: bool,
    /// Names separated by commas
    #[arg(required = true, num_args = 1, action = ArgAction::Set, value_delimiter = ',', value_name = "PROPERTY",
        value_parser = names())]
    properties: Vec<String>,
    /// Data sets; a pool, by name or by device, is its root data set
    #[arg(required = true, value_name = "DATASET")]
    names: Vec<String>,
}

/// Names of properties. User properties and limits have too many names to list.
#[derive(Clone)]
struct PropertyNames(PossibleValuesParser);

impl TypedValueParser for PropertyNames {
    type Value = String;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        match value.to_str().filter(|word| word.contains(':') || QuotaName::split(word).is_some()) {
            Some(word) => Ok(word.to_owned()),
            None => self.0.parse_ref(cmd, arg, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

fn names() -> PropertyNames {
    PropertyNames(PossibleValuesParser::new(PROPERTIES.iter().map(|property| property.name)))
}

fn names_and_all() -> PropertyNames {
    let figures = FIGURES.iter().map(|figure| figure.name);
    let names = PROPERTIES.iter().map(|property| property.name).chain(figures).chain(["all"]);
    PropertyNames(PossibleValuesParser::new(names))
}

fn numbered_setting(Setting { name, value }: &Setting) -> Outcome<Setting> {
    Ok(Setting { name: crate::owners::numbered(name)?, value: value.clone() })
}

fn numbered(names: &[String]) -> Outcome<Vec<String>> {
    names.iter().map(|name| crate::owners::numbered(name)).collect()
}

const VALUES: Listing = Listing {
    command: "fs get",
    key: "properties",
    columns: &[
        text("NAME", "name"),
        text("PROPERTY", "property"),
        text("VALUE", "value"),
        text("SOURCE", "source"),
    ],
};

impl FsCommand {
    pub fn run(&self) -> Outcome {
        match self {
            FsCommand::List(list) => list.run(),
            FsCommand::Get(get) => get.run(),
            FsCommand::Hint(hint) => hint.run(),
            FsCommand::CloneFile(clone) => clone.run(),
            FsCommand::Rewrite(rewrite) => rewrite.run(),
            FsCommand::Entry(entry) => entry.run(),
            FsCommand::Userspace(list) => list.run(OwnerKind::User),
            FsCommand::Groupspace(list) => list.run(OwnerKind::Group),
            FsCommand::Projectspace(list) => list.run(OwnerKind::Project),
            FsCommand::Create(create) => create.run(),
            FsCommand::Destroy(destroy) => destroy.run(),
            FsCommand::Rename(rename) => rename.run(),
            FsCommand::Rollback(rollback) => rollback.run(),
            FsCommand::Clone(clone) => clone.run(),
            FsCommand::Promote(promote) => promote.run(),
            FsCommand::Hold(hold) => hold.run(false),
            FsCommand::Release(hold) => hold.run(true),
            FsCommand::Holds(holds) => holds.run(),
            FsCommand::Diff(diff) => diff.run(),
            FsCommand::Bookmark(bookmark) => bookmark.run(),
            FsCommand::Set(set) => set.run(),
            FsCommand::Inherit(inherit) => inherit.run(),
        }
    }
}

/// Changes properties, and says which of them take effect only at the next mount.
fn change(registry: &Registry, word: &str, pool: &str, query: &Query) -> Outcome {
    let waiting = ask(registry, pool, query)?;
    for name in waiting.as_array().into_iter().flatten().filter_map(Value::as_str) {
        eprintln!("terrane: {name} of {word} stored; it takes effect at the next mount");
    }
    Ok(())
}

// For the root data set alone these commands send the questions of earlier versions, whose servers may still run.

impl Set {
    fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let DatasetName { pool, path } = DatasetName::parse(&registry, &self.name)?;
        let settings = self.properties.iter().map(numbered_setting).collect::<Outcome<_>>()?;
        let query = match path.as_str() {
            "" => Query::Set { settings },
            _ => Query::SetOf { paths: vec![path], settings },
        };
        change(&registry, &self.name, &pool, &query)
    }
}

impl Inherit {
    fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        self.names.iter().try_for_each(|word| {
            let DatasetName { pool, path } = DatasetName::parse(&registry, word)?;
            let names = numbered(&self.properties)?;
            let query = if path.is_empty() && !self.recursive && !self.received {
                Query::Inherit { names }
            } else {
                let of = Selection { paths: vec![path], recursive: self.recursive, kinds: Vec::new() };
                Query::InheritOf { of, names, received: self.received }
            };
            change(&registry, word, &pool, &query)
        })
    }
}

impl Get {
    fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let all = self.properties.iter().any(|name| name == "all");
        let names = if all { Vec::new() } else { numbered(&self.properties)? };
        let words = match self.names.as_slice() {
            [] => registry.pools()?.into_keys().collect(),
            names => names.to_vec(),
        };
        let (mut values, mut failures) = (Vec::new(), Vec::new());
        for word in words {
            let DatasetName { pool, path } = DatasetName::parse(&registry, &word)?;
            let query = if path.is_empty() && !self.recursive {
                Query::Get { names: names.clone() }
            } else {
                let of = Selection { paths: vec![path], recursive: self.recursive, kinds: Vec::new() };
                Query::GetOf { of, names: names.clone() }
            };
            let answer = match self.names.as_slice() {
                [] => ask_within(&registry, &pool, &query, SURVEY_TIMEOUT),
                _ => ask(&registry, &pool, &query),
            };
            match answer {
                Ok(answer) => values.extend(rows(answer)?),
                Err(Failure(reason)) => failures.push(reason),
            }
        }
        let wanted = |row: &Value| {
            let found = row["source"].as_str().unwrap_or_default();
            let found = match found.split_once(" from ") {
                Some((kind, _)) => kind,
                None if found == "-" => "none",
                None => found,
            };
            self.sources.is_empty() || self.sources.iter().any(|source| found == source)
        };
        values.retain(wanted);
        values.iter_mut().for_each(|row| use_exact_value(row, self.output.parsable));
        print(&VALUES.render_chosen(&self.columns, &values, self.output))?;
        if !self.output.json && !self.output.no_header {
            values.iter().filter_map(zstd_levels_line).try_for_each(|line| print(&line))?;
            values.iter().filter_map(recompressed_line).try_for_each(|line| print(&line))?;
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
    }
}

/// The levels that `zstd-auto` chose, as a line below the table.
fn zstd_levels_line(row: &Value) -> Option<String> {
    let levels = row["levels"].as_array()?;
    let number = |level: &Value, key: &str| level[key].as_u64().unwrap_or(0);
    let sum = |key: &str| levels.iter().map(|level| number(level, key)).sum::<u64>().max(1);
    let (logical, stored) = (sum("logical"), sum("stored"));
    let share = |level: &Value| {
        let percent = number(level, "logical") as f64 * 100.0 / logical as f64;
        format!("{} {percent:.0} %", level["name"].as_str().unwrap_or("?"))
    };
    let shares: Vec<String> = levels.iter().map(share).collect();
    Some(format!(
        "zstd-auto of {} chose since the mount, for {}: {}; compressed {:.2}x\n",
        crate::table::printable(row["name"].as_str().unwrap_or("?")),
        crate::size::format(logical),
        shares.join(", "),
        logical as f64 / stored as f64
    ))
}

/// What was recompressed in idle time, as a line below the table.
fn recompressed_line(row: &Value) -> Option<String> {
    let done = row.get("recompressed")?;
    let bytes = |key: &str| crate::size::format(done[key].as_u64().unwrap_or(0));
    Some(format!(
        "recompressed in idle time: {} records of {}, {} became {}\n",
        done["records"],
        crate::table::printable(row["name"].as_str().unwrap_or("?")),
        bytes("before"),
        bytes("after")
    ))
}

/// Replaces `128K` by a number of bytes if the output is for a script.
fn use_exact_value(row: &mut Value, is_parsable: bool) {
    let exact = row.as_object_mut().and_then(|row| row.remove("exact"));
    if !is_parsable {
        return;
    }
    if let Some(exact) = exact {
        row["value"] = exact;
    }
    let property = row["property"].as_str().unwrap_or_default().to_owned();
    let is_space = matches!(property.as_str(), "quota" | "refquota" | "reservation" | "refreservation");
    if is_space && row["value"] == "none" {
        row["value"] = "0".into();
    }
    if (is_space || matches!(property.as_str(), "recordsize" | "zapsize"))
        && let Some(bytes) = row["value"].as_str().and_then(|word| crate::size::parse(word).ok())
    {
        row["value"] = bytes.to_string().into();
    }
}
