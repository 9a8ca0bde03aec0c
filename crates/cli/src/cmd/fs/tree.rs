//! `terrane fs create`, `destroy`, `rename` and `list`: the tree of data sets.

use super::super::{ask, ask_within, daemon_of, print, rows};
use super::snapshots::{PartName, act};
use crate::clock;
use crate::cmd::mount::step_back;
use crate::control::{Command, SURVEY_TIMEOUT};
use crate::dataset_name::{DatasetName, full_name};
use crate::failure::{Failure, Outcome};
use crate::figures::Figure;
use crate::query::{self, Query, Selection, Setting, SnapshotAction};
use crate::registry::Registry;
use crate::table::{Column, Listing, OutputFormat, count, size, text};
use crate::target;
use clap::Args;
use serde_json::{Value, json};
use terrane_dataset::props::Key;

#[derive(Args)]
pub struct Create {
    /// Also create missing data sets above it; an existing data set is no error
    #[arg(short)]
    parents: bool,
    /// A property of the new data set; may be given several times
    #[arg(short = 'o', value_parser = query::parse_setting, value_name = "PROPERTY=VALUE")]
    properties: Vec<Setting>,
    /// The new data set, like tank/home/ann
    #[arg(value_name = "DATASET")]
    name: String,
}

#[derive(Args)]
pub struct Destroy {
    /// With a data set: also its snapshots and all data sets below. With a snapshot: also those of the same name below
    #[arg(short)]
    recursive: bool,
    /// Destroy nothing
    #[arg(short = 'n')]
    dry_run: bool,
    /// Show what is destroyed, and how much space that frees
    #[arg(short)]
    verbose: bool,
    /// A data set (tank/home), snapshots (tank/home@a,b,first%last), or a bookmark (tank/home#a)
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Args)]
pub struct Rename {
    /// A data set, like tank/home/ann, or a snapshot, like tank/home@monday
    #[arg(value_name = "NAME")]
    name: String,
    /// Its new name, in the same pool; a data set then inherits from the data sets above its new name
    #[arg(value_name = "NEW")]
    to: String,
}

#[derive(Args)]
pub struct List {
    /// Data sets and snapshots (default: all data sets of all known pools)
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Include all data sets below
    #[arg(short)]
    recursive: bool,
    /// What to list, separated by commas
    #[arg(short = 't', value_delimiter = ',', value_name = "TYPES", value_parser = ["filesystem", "snapshot", "bookmark", "all"])]
    kinds: Vec<String>,
    /// Columns to show, in this order, separated by commas: those of the listing, and properties
    #[arg(short = 'o', value_delimiter = ',', value_name = "COLUMNS", value_parser = column_name)]
    columns: Vec<String>,
    /// Sort by a column, ascending; may be given several times
    #[arg(short = 's', value_name = "COLUMN", value_parser = column_name)]
    sort: Vec<String>,
    /// Sort by a column, descending
    #[arg(short = 'S', value_name = "COLUMN", value_parser = column_name)]
    sort_down: Vec<String>,
    #[command(flatten)]
    output: OutputFormat,
}

const DATASETS: Listing = Listing {
    command: "fs list",
    key: "datasets",
    columns: &[
        text("NAME", "name"),
        size("USED", "used"),
        size("AVAIL", "available"),
        count("OBJECTS", "objects"),
        text("MOUNTPOINT", "mountpoint"),
    ],
};
/// Further columns.
const MORE: [Column; 6] = [
    text("TYPE", "type"),
    size("REFER", "referenced"),
    text("CREATION", "creation"),
    text("GUID", "guid"),
    text("ORIGIN", "origin"),
    size("WRITTEN", "written"),
];

/// The column of the listing with this name or key.
fn own_column(word: &str) -> Option<Column> {
    let all = DATASETS.columns.iter().chain(&MORE);
    all.copied().find(|column| column.name() == word || column.key == word)
}

fn column_name(word: &str) -> Result<String, String> {
    let is_property = || Figure::find(word).is_some() || Key::find(word).is_ok();
    if own_column(word).is_some() || is_property() {
        return Ok(word.to_owned());
    }
    let names: Vec<String> = DATASETS.columns.iter().chain(&MORE).map(Column::name).collect();
    Err(format!("expected {}, or a property", names.join(", ")))
}

/// The column of a name. [`fill_properties`] fills columns of properties.
fn column(word: &str) -> Column {
    own_column(word).unwrap_or_else(|| {
        // Leaked: a command has few columns, and ends soon.
        let key: &'static str = word.to_owned().leak();
        text(word.to_ascii_uppercase().leak(), key)
    })
}

fn change(name: &DatasetName, query: &Query) -> Outcome {
    ask(&Registry::of_this_user()?, &name.pool, query).map(drop)
}

impl Create {
    pub fn run(&self) -> Outcome {
        let name = DatasetName::parse_below(&Registry::of_this_user()?, &self.name)?;
        let (path, parents, settings) = (name.path.clone(), self.parents, self.properties.clone());
        change(&name, &Query::CreateDataset { path, parents, settings })
    }
}

impl Destroy {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        if self.name.contains('@') {
            let PartName { dataset, part } = PartName::parse(&registry, &self.name, '@')?;
            let names = part.split(',').map(str::to_owned).collect();
            return self.destroy_snapshots(&registry, dataset, names);
        }
        if self.name.contains('#') {
            let PartName { dataset, part: bookmark } = PartName::parse(&registry, &self.name, '#')?;
            if self.dry_run {
                return check_bookmark(&registry, &dataset, &bookmark);
            }
            let action = SnapshotAction::DestroyBookmark { path: dataset.path, bookmark };
            return act(&registry, &dataset.pool, action).map(drop);
        }
        let DatasetName { pool, path } = DatasetName::parse_below(&registry, &self.name)?;
        let query = match (self.recursive, self.dry_run) {
            // The question of earlier versions, whose servers may still run.
            (false, false) => Query::DestroyDataset { path },
            (recursive, dry_run) => Query::DestroyTree { path, recursive, dry_run },
        };
        self.report(&rows(ask(&registry, &pool, &query)?)?)
    }

    fn destroy_snapshots(&self, registry: &Registry, dataset: DatasetName, names: Vec<String>) -> Outcome {
        let (recursive, dry_run) = (self.recursive, self.dry_run);
        let action = SnapshotAction::Destroy { path: dataset.path, names, recursive, dry_run };
        self.report(&act(registry, &dataset.pool, action)?)
    }

    /// Prints what was destroyed, and how much space that frees, if the user wants to know.
    fn report(&self, found: &[Value]) -> Outcome {
        if !self.verbose {
            return Ok(());
        }
        let word = if self.dry_run { "would destroy" } else { "destroy" };
        for row in found {
            print(&format!("{word} {}\n", row["name"].as_str().unwrap_or_default()))?;
        }
        let freed: Vec<u64> = found.iter().filter_map(|row| row["reclaim"].as_u64()).collect();
        if freed.is_empty() {
            return Ok(());
        }
        let word = if self.dry_run { "would reclaim" } else { "reclaim" };
        print(&format!("{word} {}\n", crate::size::format(freed.iter().sum())))
    }
}

/// Refuses a bookmark that does not exist.
fn check_bookmark(registry: &Registry, dataset: &DatasetName, bookmark: &str) -> Outcome {
    let kinds = vec!["bookmark".to_owned()];
    let of = Selection { paths: vec![dataset.path.clone()], kinds, recursive: false };
    let found = rows(ask(registry, &dataset.pool, &Query::ListDatasets { of, names: Vec::new() })?)?;
    let full = full_name(&dataset.pool, &dataset.path);
    let name = format!("{full}#{bookmark}");
    if found.iter().any(|row| row["name"] == name) {
        return Ok(());
    }
    Err(Failure(format!("unknown bookmark '{name}'; see `terrane fs list -t bookmark {full}`")))
}

impl Rename {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        if self.name.contains('@') {
            let PartName { dataset, part: name } = PartName::parse(&registry, &self.name, '@')?;
            let to = PartName::parse(&registry, &self.to, '@')?;
            if to.dataset != dataset {
                let expected = "a snapshot of the same data set";
                return Err(Failure::refused(&self.to, expected, "another data set", "name the same one"));
            }
            let action = SnapshotAction::Rename { path: dataset.path, name, to: to.part };
            return act(&registry, &dataset.pool, action).map(drop);
        }
        let name = DatasetName::parse_below(&registry, &self.name)?;
        let to = DatasetName::parse_below(&registry, &self.to)?;
        if to.pool != name.pool {
            let expected = format_args!("a name in pool {}", name.pool);
            let found = format_args!("one in pool {}", to.pool);
            return Err(Failure::refused(
                &self.to,
                expected,
                found,
                "copy the data to move it to another pool",
            ));
        }
        let (target, _) = target::find_mountable(&registry, &name.pool)?;
        let is_below = |dataset: &str| {
            dataset
                .strip_prefix(&*name.path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        match daemon_of(&registry, &target)? {
            Some(daemon) if daemon.greeting.all_mounts().iter().any(|mount| is_below(&mount.dataset)) => {
                let command = Command::RenameMounted { path: name.path, to: to.path };
                step_back(&registry, daemon, command).map(drop)
            }
            _ => change(&name, &Query::RenameDataset { path: name.path.clone(), to: to.path }),
        }
    }
}

impl List {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let words: Vec<&String> = self.columns.iter().chain(&self.sort).chain(&self.sort_down).collect();
        let names: Vec<String> =
            words.into_iter().filter(|word| own_column(word).is_none()).cloned().collect();
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        if self.names.is_empty() {
            for pool in registry.pools()?.into_keys() {
                let of = Selection { paths: Vec::new(), recursive: true, kinds: self.kinds.clone() };
                match ask_within(
                    &registry,
                    &pool,
                    &Query::ListDatasets { of, names: names.clone() },
                    SURVEY_TIMEOUT,
                ) {
                    Ok(answer) => found.extend(rows(answer)?),
                    Err(_) => found.push(unavailable(&pool)),
                }
            }
        }
        for word in &self.names {
            match self.ask_for(&registry, word, &names) {
                Ok(rows) => found.extend(rows),
                Err(Failure(reason)) => failures.push(reason),
            }
        }
        self.sort_rows(&mut found);
        let columns: Vec<Column> = match self.columns.as_slice() {
            [] => DATASETS.columns.to_vec(),
            words => words.iter().map(|word| column(word)).collect(),
        };
        if !self.output.json {
            found.iter_mut().for_each(|row| fill_properties(row, self.output.parsable));
        }
        print(&DATASETS.render_columns(&columns, &found, self.output))?;
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
    }

    /// Asks for the rows of one word on the command line: of a data set, or of a snapshot.
    fn ask_for(&self, registry: &Registry, word: &str, names: &[String]) -> Outcome<Vec<Value>> {
        let whole = word.split_once('@').map_or(word, |(whole, _)| whole);
        let name = DatasetName::parse(registry, whole)?;
        let is_snapshot = whole.len() < word.len();
        let kinds = if is_snapshot { vec!["snapshot".to_owned()] } else { self.kinds.clone() };
        let of = Selection { paths: vec![name.path], recursive: self.recursive && !is_snapshot, kinds };
        let query = Query::ListDatasets { of, names: names.to_vec() };
        let mut found = rows(ask(registry, &name.pool, &query)?)?;
        if is_snapshot {
            found.retain(|row| row["name"] == word);
            if found.is_empty() {
                return Err(Failure(format!(
                    "unknown snapshot '{word}'; see `terrane fs list -t snapshot {whole}`"
                )));
            }
        }
        Ok(found)
    }

    fn sort_rows(&self, rows: &mut [Value]) {
        // The least important key first: the sort is stable.
        let keys = self.sort.iter().map(|word| (word, false));
        let keys: Vec<_> = keys.chain(self.sort_down.iter().map(|word| (word, true))).collect();
        for (word, is_down) in keys.into_iter().rev() {
            let key = column(word).key;
            let value = |row: &Value| row.get(key).or_else(|| row["properties"].get(key)).cloned();
            let order = |a: &Value, b: &Value| {
                let (a, b) = (value(a).unwrap_or_default(), value(b).unwrap_or_default());
                match (a.as_u64(), b.as_u64()) {
                    (Some(a), Some(b)) => a.cmp(&b),
                    _ => a.as_str().cmp(&b.as_str()),
                }
            };
            rows.sort_by(|a, b| if is_down { order(b, a) } else { order(a, b) });
        }
    }
}

/// The row of a pool that does not answer; `pool status` says why.
fn unavailable(pool: &str) -> Value {
    json!({
        "name": pool, "type": null, "used": null, "available": null, "referenced": null, "objects": null,
        "mountpoint": null, "creation": null, "guid": null, "origin": null, "written": null, "properties": {},
    })
}

/// Copies properties into the row, and formats times, for the columns of the table.
fn fill_properties(row: &mut Value, is_parsable: bool) {
    if let (Some(seconds), false) = (row["creation"].as_u64(), is_parsable) {
        row["creation"] = clock::utc(i64::try_from(seconds).unwrap_or(i64::MAX)).into();
    }
    let properties = row["properties"].as_object().cloned().unwrap_or_default();
    if let Some(row) = row.as_object_mut() {
        for (key, value) in properties {
            row.entry(key).or_insert(value);
        }
    }
}
