//! `zfs` and `zpool`: the command lines of these programs that snapshot scripts use, such as sanoid and zfs-auto-snapshot.
//!
//! If this program is started under one of these names, [`run`] handles the command line. Commands that change something run as
//! commands of `terrane`. Listings have the columns, headers and separators that such scripts parse.

use crate::clock;
use crate::cmd;
use crate::dataset_name::DatasetName;
use crate::failure::{Failure, Outcome};
use crate::query::{Query, Selection};
use crate::registry::Registry;
use crate::size;
use crate::table::printable;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "expected a command that scripts for snapshots use; see `terrane help` for all others";

/// Runs the command if this program was started as `zfs` or `zpool`. `None`: it was started under another name.
pub fn run() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    let called = PathBuf::from(words.next()?);
    let called = called.file_name()?.to_str()?.to_owned();
    if called != "zfs" && called != "zpool" {
        return None;
    }
    let words: Result<Vec<String>, _> = words.map(|word| word.into_string()).collect();
    let outcome = match words {
        Ok(words) if called == "zfs" => zfs(&words),
        Ok(words) => zpool(&words),
        Err(word) => Err(Failure(format!("{} is no valid text", word.display()))),
    };
    Some(match outcome {
        Ok(text) => match cmd::print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(failure) => {
            eprintln!("cannot {called}: {}", printable(&failure.to_string()));
            ExitCode::FAILURE
        }
    })
}

/// Options of a listing, which are the same for both programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    is_scripted: bool,
    is_parsable: bool,
    recursive: bool,
    depth: Option<u32>,
    kinds: Vec<String>,
    columns: Vec<String>,
    sources: Vec<String>,
    /// Columns to sort by, and whether descending.
    sort: Vec<(String, bool)>,
    words: Vec<String>,
}

/// Parses options that may be joined, like `-Hrpt snapshot` or `-d1`.
fn parse(words: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            options.words.push(word.clone());
            continue;
        };
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            rest = rest.get(letter.len_utf8()..).unwrap_or_default();
            match letter {
                'H' => options.is_scripted = true,
                'p' => options.is_parsable = true,
                'r' => options.recursive = true,
                'd' | 't' | 'o' | 's' | 'S' => {
                    let value = match rest {
                        "" => words.next().ok_or_else(|| format!("-{letter} needs a value"))?.clone(),
                        joined => joined.to_owned(),
                    };
                    let list = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
                    match letter {
                        'd' => {
                            let depth =
                                value.parse().map_err(|_| format!("-d needs a number, found {value:?}"))?;
                            (options.depth, options.recursive) = (Some(depth), depth > 0);
                        }
                        't' => options.kinds = list(),
                        'o' => options.columns = list(),
                        's' => {
                            options.sources = list();
                            options.sort.push((value, false));
                        }
                        _ => options.sort.push((value, true)),
                    }
                    rest = "";
                }
                other => return Err(format!("option -{other} is not known; {USAGE}")),
            }
        }
    }
    Ok(options)
}

/// Runs a command of `terrane`.
fn terrane(words: &[&str]) -> Outcome<String> {
    crate::run(words).map(|_| String::new())
}

fn zfs(words: &[String]) -> Outcome<String> {
    let (command, rest) = words.split_first().ok_or_else(|| Failure(USAGE.to_owned()))?;
    let words: Vec<&str> = rest.iter().map(String::as_str).collect();
    let with = |start: &[&str]| terrane(&[start, &words].concat());
    let without = |start: &[&str], option: &str| {
        let words = words.iter().copied().filter(|word| *word != option);
        terrane(&start.iter().copied().chain(words).collect::<Vec<_>>())
    };
    match command.as_str() {
        "list" => list(&parse(rest).map_err(Failure)?),
        "get" => get(&parse(rest).map_err(Failure)?),
        "snapshot" | "snap" => terrane(&[&["snapshot"], &*without_user_properties(&words)?].concat()),
        "set" => with(&["fs", "set"]),
        // A snapshot that is held or cloned is refused: there is no later time at which it would be destroyed by itself.
        "destroy" => without(&["fs", "destroy"], "-d"),
        "create" => with(&["fs", "create"]),
        "rename" => with(&["fs", "rename"]),
        // Mounts go on, so nothing has to be forced.
        "rollback" => without(&["fs", "rollback"], "-f"),
        "clone" => with(&["fs", "clone"]),
        "promote" => with(&["fs", "promote"]),
        "hold" => with(&["fs", "hold"]),
        "release" => with(&["fs", "release"]),
        "bookmark" => with(&["fs", "bookmark"]),
        "inherit" => with(&["fs", "inherit"]),
        "mount" => with(&["mount"]),
        "umount" | "unmount" => with(&["umount"]),
        other => Err(Failure(format!("{other}: {USAGE}"))),
    }
}

fn zpool(words: &[String]) -> Outcome<String> {
    let (command, rest) = words.split_first().ok_or_else(|| Failure(USAGE.to_owned()))?;
    let options = parse(rest).map_err(Failure)?;
    match command.as_str() {
        "list" => pools(&options),
        "status" => status(&options),
        "get" => pool_properties(&options),
        other => Err(Failure(format!("{other}: {USAGE}"))),
    }
}

/// Rows of `fs list` for these words, to the depth of the options.
fn rows(registry: &Registry, options: &Options, names: &[String]) -> Outcome<Vec<Value>> {
    let mut wanted: Vec<(DatasetName, Option<String>)> = Vec::new();
    for word in &options.words {
        let (dataset, snapshot) = match word.split_once('@') {
            Some((dataset, _)) => (dataset, Some(word.clone())),
            None => (word.as_str(), None),
        };
        wanted.push((DatasetName::parse(registry, dataset)?, snapshot));
    }
    let is_all = wanted.is_empty();
    if is_all {
        let root = |pool: String| (DatasetName { pool, path: String::new() }, None);
        wanted = registry.pools()?.into_keys().map(root).collect();
    }
    let mut found = Vec::new();
    for (name, snapshot) in wanted {
        let kinds = match (&snapshot, options.kinds.as_slice()) {
            (Some(_), _) => vec!["snapshot".to_owned()],
            // Terrane has no volumes.
            (None, []) => vec!["filesystem".to_owned()],
            (None, kinds) => {
                kinds.iter().filter(|kind| *kind != "volume").map(|kind| long_kind(kind)).collect()
            }
        };
        // Snapshots count as one level below their data set.
        let recursive = is_all || options.recursive;
        let of = Selection { paths: vec![name.path.clone()], recursive, kinds };
        let answer = cmd::ask(registry, &name.pool, &Query::ListDatasets { of, names: names.to_vec() });
        let mut of_word = match answer.and_then(cmd::rows) {
            // A script that goes over all pools goes on with the others.
            Err(failure) if is_all => {
                eprintln!("pool {}: {}", name.pool, printable(&failure.to_string()));
                continue;
            }
            rows => rows?,
        };
        if let Some(snapshot) = &snapshot {
            of_word.retain(|row| row["name"] == **snapshot);
            if of_word.is_empty() {
                return Err(Failure(format!("open '{snapshot}': dataset does not exist")));
            }
        }
        let levels = |text: &str| text.matches(['/', '@', '#']).count();
        let base = levels(&name.path) + usize::from(!name.path.is_empty());
        if let Some(depth) = options.depth.filter(|_| !is_all) {
            of_word.retain(|row| levels(row["name"].as_str().unwrap_or_default()) <= base + depth as usize);
        }
        found.extend(of_word);
    }
    Ok(found)
}

fn long_kind(kind: &str) -> String {
    match kind {
        "fs" => "filesystem",
        "snap" => "snapshot",
        other => other,
    }
    .to_owned()
}

/// The key of a property in a row of `fs list`.
fn key(property: &str) -> &str {
    match property {
        "avail" => "available",
        "refer" => "referenced",
        other => other,
    }
}

/// Properties that every row of `fs list` has.
const OWN: [&str; 9] =
    ["name", "type", "used", "available", "referenced", "creation", "guid", "origin", "written"];

fn value_of(row: &Value, property: &str, is_parsable: bool) -> String {
    let key = key(property);
    let found = &row[key];
    match key {
        "used" | "available" | "referenced" | "written" => found.as_u64().map_or("-".to_owned(), |bytes| {
            if is_parsable { bytes.to_string() } else { size::format(bytes) }
        }),
        "creation" => found.as_u64().map_or("-".to_owned(), |secs| {
            if is_parsable { secs.to_string() } else { clock::utc(i64::try_from(secs).unwrap_or(i64::MAX)) }
        }),
        "mounted" => if row["mountpoint"].is_null() { "no" } else { "yes" }.to_owned(),
        "mountpoint" => match (found.as_str(), row["type"].as_str()) {
            (Some(dir), _) => dir.to_owned(),
            (None, Some("snapshot")) => "-".to_owned(),
            (None, _) => row["properties"]["mountpoint"].as_str().unwrap_or("none").to_owned(),
        },
        _ => match found {
            Value::Null => row["properties"][key].as_str().unwrap_or("-").to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        },
    }
}

/// Of these columns, the properties that rows have only if they are requested.
fn to_ask<'a>(columns: impl Iterator<Item = &'a String>) -> Vec<String> {
    let unknown = ["mounted", "createtxg", "all", "property", "value", "source"];
    columns.filter(|name| !OWN.contains(&key(name)) && !unknown.contains(&name.as_str())).cloned().collect()
}

/// A table: cells separated by tabs for scripts, else columns below a header.
fn table(header: &[String], rows: &[Vec<String>], is_scripted: bool) -> String {
    let line = |cells: &[String]| format!("{}\n", cells.join("\t"));
    if is_scripted {
        return rows.iter().map(|row| line(row)).collect();
    }
    let titles: Vec<String> = header.iter().map(|title| title.to_uppercase()).collect();
    let all: Vec<&[String]> =
        std::iter::once(titles.as_slice()).chain(rows.iter().map(Vec::as_slice)).collect();
    let width =
        |column: usize| all.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let pad = |row: &&[String]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    all.iter().map(pad).collect()
}

fn list(options: &Options) -> Outcome<String> {
    let columns: Vec<String> = match options.columns.as_slice() {
        [] => ["name", "used", "avail", "refer", "mountpoint"].map(str::to_owned).to_vec(),
        columns => columns.to_vec(),
    };
    let registry = Registry::of_this_user()?;
    let sorted = options.sort.iter().map(|(column, _)| column);
    let mut found = rows(&registry, options, &to_ask(columns.iter().chain(sorted)))?;
    for (column, is_down) in options.sort.iter().rev() {
        let value = |row: &Value| {
            let text = value_of(row, column, true);
            (text.parse::<u64>().ok(), text)
        };
        found.sort_by(|a, b| if *is_down { value(b).cmp(&value(a)) } else { value(a).cmp(&value(b)) });
    }
    let row = |row: &Value| columns.iter().map(|column| value_of(row, column, options.is_parsable)).collect();
    let cells: Vec<Vec<String>> = found.iter().map(row).collect();
    Ok(table(&columns, &cells, options.is_scripted))
}

fn get(options: &Options) -> Outcome<String> {
    let (names, words) = options.words.split_first().ok_or_else(|| Failure(USAGE.to_owned()))?;
    let wanted: Vec<String> = names.split(',').map(str::to_owned).collect();
    let columns: Vec<String> = match options.columns.as_slice() {
        [] => ["name", "property", "value", "source"].map(str::to_owned).to_vec(),
        columns => columns.to_vec(),
    };
    let registry = Registry::of_this_user()?;
    let of_words = Options {
        words: words.to_vec(),
        kinds: options.kinds.clone(),
        recursive: options.recursive,
        depth: options.depth,
        ..Options::default()
    };
    let is_all = wanted.iter().any(|name| name == "all");
    let mut cells = Vec::new();
    for row in rows(&registry, &of_words, &[])? {
        let name = row["name"].as_str().unwrap_or_default().to_owned();
        let is_snapshot = row["type"] == "snapshot";
        let mut found: Vec<(String, String, String)> = Vec::new();
        let own: Vec<&String> =
            wanted.iter().filter(|name| OWN.contains(&key(name)) || *name == "mounted").collect();
        for property in own {
            found.push((property.clone(), value_of(&row, property, options.is_parsable), "-".to_owned()));
        }
        let asked: Vec<String> = if is_all { Vec::new() } else { to_ask(wanted.iter()) };
        if (is_all || !asked.is_empty()) && !is_snapshot {
            let dataset = DatasetName::parse(&registry, &name)?;
            let of = Selection { paths: vec![dataset.path], ..Selection::default() };
            for answer in cmd::rows(cmd::ask(&registry, &dataset.pool, &Query::GetOf { of, names: asked })?)?
            {
                let text = |key: &str| answer[key].as_str().unwrap_or("-").to_owned();
                found.push((text("property"), text("value"), text("source")));
            }
        } else if is_snapshot {
            found.extend(asked.into_iter().map(|property| (property, "-".to_owned(), "-".to_owned())));
        }
        for (property, value, source) in found {
            let is_wanted =
                |wanted: &String| source == *wanted || source.starts_with(&format!("{wanted} from"));
            if !options.sources.is_empty() && !options.sources.iter().any(is_wanted) {
                continue;
            }
            let cell = |column: &String| match column.as_str() {
                "name" => name.clone(),
                "property" => property.clone(),
                "source" => source.clone(),
                _ => value.clone(),
            };
            cells.push(columns.iter().map(cell).collect());
        }
    }
    Ok(table(&columns, &cells, options.is_scripted))
}

/// Leaves out `-o NAME:SPACE=VALUE`: snapshots have no properties of their own. Scripts write such ones, and do not read them.
fn without_user_properties<'a>(words: &[&'a str]) -> Outcome<Vec<&'a str>> {
    let (mut left, mut words) = (Vec::new(), words.iter());
    while let Some(word) = words.next() {
        if *word != "-o" {
            left.push(*word);
            continue;
        }
        let setting = words.next().copied().unwrap_or_default();
        if !setting.split_once('=').is_some_and(|(name, _)| name.contains(':')) {
            let expected = "a user property, like com.example:note=text";
            return Err(Failure::refused("-o", expected, setting, "snapshots have no other properties"));
        }
    }
    Ok(left)
}

/// `zpool status`. Scripts parse its states, and the table of devices.
fn status(options: &Options) -> Outcome<String> {
    let mut text = String::new();
    for row in pool_rows(&options.words)? {
        let name = pool_value(&row, "name", false);
        let health = pool_value(&row, "health", false);
        let lost =
            row["damage"].as_array().map_or(0, Vec::len) + row["lost_files"].as_array().map_or(0, Vec::len);
        let errors = match (health.as_str(), lost) {
            ("ONLINE", 0) => "No known data errors".to_owned(),
            (_, lost) => format!("{lost} data errors, use `terrane pool status -v {name}` for a list"),
        };
        text += &format!("  pool: {name}\n state: {health}\n  scan: none requested\nconfig:\n\n");
        let row_of = |name: &str, state: &str, errors: [u64; 3]| {
            let [read, write, checksum] = errors;
            format!("\t{name:<40} {state:<9} {read:>5} {write:>5} {checksum:>5}\n")
        };
        text += &format!("\t{:<40} {:<9} {:>5} {:>5} {:>5}\n", "NAME", "STATE", "READ", "WRITE", "CKSUM");
        text += &row_of(&name, &health, [0; 3]);
        for device in row["devices"].as_array().into_iter().flatten() {
            let count = |key: &str| device[key].as_u64().unwrap_or(0);
            let state = if device["trouble"].is_null() { "ONLINE" } else { "DEGRADED" };
            let path = format!("  {}", device["device"].as_str().unwrap_or("-"));
            text += &row_of(&path, state, ["read_errors", "write_errors", "checksum_errors"].map(count));
        }
        text += &format!("\nerrors: {errors}\n");
    }
    Ok(text)
}

/// Pools as `terrane pool status` knows them.
fn pool_rows(words: &[String]) -> Outcome<Vec<Value>> {
    let registry = Registry::of_this_user()?;
    let pools: Vec<String> =
        if words.is_empty() { registry.pools()?.into_keys().collect() } else { words.to_vec() };
    let mut found = Vec::new();
    for pool in pools {
        match cmd::ask(&registry, &pool, &Query::Status) {
            Ok(row) => found.push(row),
            Err(failure) if !words.is_empty() => return Err(failure),
            // The others are listed.
            Err(failure) => {
                eprintln!("pool {pool}: {}", printable(&failure.to_string()));
                found.push(json!({"name": pool, "state": "unavailable"}));
            }
        }
    }
    Ok(found)
}

fn pool_value(row: &Value, property: &str, is_parsable: bool) -> String {
    let bytes = |key: &str| {
        row[key]
            .as_u64()
            .map_or("-".to_owned(), |bytes| if is_parsable { bytes.to_string() } else { size::format(bytes) })
    };
    match property {
        "name" => row["name"].as_str().unwrap_or("-").to_owned(),
        "size" => bytes("size"),
        "alloc" | "allocated" => bytes("used"),
        "free" => bytes("available"),
        "cap" | "capacity" => {
            let percent = row["capacity_percent"].as_u64().unwrap_or(0);
            if is_parsable { percent.to_string() } else { format!("{percent}%") }
        }
        "health" => match row["state"].as_str() {
            Some("healthy") => "ONLINE",
            Some("damaged") => "DEGRADED",
            Some("suspended") => "SUSPENDED",
            _ => "UNAVAIL",
        }
        .to_owned(),
        _ => "-".to_owned(),
    }
}

fn pools(options: &Options) -> Outcome<String> {
    let columns: Vec<String> = match options.columns.as_slice() {
        [] => ["name", "size", "alloc", "free", "cap", "health"].map(str::to_owned).to_vec(),
        columns => columns.to_vec(),
    };
    let row =
        |row: &Value| columns.iter().map(|column| pool_value(row, column, options.is_parsable)).collect();
    let cells: Vec<Vec<String>> = pool_rows(&options.words)?.iter().map(row).collect();
    Ok(table(&columns, &cells, options.is_scripted))
}

/// `zpool get`. Scripts ask whether features of the pool are active. `extensible_dataset` and `bookmarks` always are.
fn pool_properties(options: &Options) -> Outcome<String> {
    let (names, words) = options.words.split_first().ok_or_else(|| Failure(USAGE.to_owned()))?;
    let columns: Vec<String> = match options.columns.as_slice() {
        [] => ["name", "property", "value", "source"].map(str::to_owned).to_vec(),
        columns => columns.to_vec(),
    };
    let mut cells = Vec::new();
    for row in pool_rows(words)? {
        for property in names.split(',') {
            let value = match property.strip_prefix("feature@") {
                Some("extensible_dataset" | "bookmarks") => "active".to_owned(),
                Some(_) => "disabled".to_owned(),
                None => pool_value(&row, property, options.is_parsable),
            };
            let cell = |column: &String| match column.as_str() {
                "name" => pool_value(&row, "name", false),
                "property" => property.to_owned(),
                "source" => "-".to_owned(),
                _ => value.clone(),
            };
            cells.push(columns.iter().map(cell).collect());
        }
    }
    Ok(table(&columns, &cells, options.is_scripted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Options {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse(&words).unwrap()
    }

    /// The forms that sanoid and syncoid use.
    #[test]
    fn options_of_scripts_are_understood() {
        let options = parsed("-Hrpt snapshot creation tank/home");
        assert!(options.is_scripted && options.is_parsable && options.recursive);
        assert_eq!(
            (options.kinds, options.words),
            (vec!["snapshot".to_owned()], vec!["creation".to_owned(), "tank/home".to_owned()])
        );
        let options = parsed("-Hpd 1 -t snapshot guid,creation tank");
        assert_eq!((options.depth, options.recursive), (Some(1), true));
        let options = parsed("-d0 -H -oname");
        assert_eq!(
            (options.depth, options.recursive, options.columns),
            (Some(0), false, vec!["name".to_owned()])
        );
        let options = parsed("-o name -t filesystem,volume -Hr tank");
        assert_eq!(options.kinds, ["filesystem", "volume"]);
        let options = parsed("-s local -H all tank");
        assert_eq!(options.sources, ["local"]);
        assert!(parse(&["-x".to_owned()]).is_err() && parse(&["-t".to_owned()]).is_err());
    }

    #[test]
    fn scripts_get_tabs_and_people_columns() {
        let header = ["name", "used"].map(str::to_owned);
        let rows = [["tank", "1K"], ["tank/home", "12K"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&header, &rows, true), "tank\t1K\ntank/home\t12K\n");
        assert_eq!(table(&header, &rows, false), "NAME       USED\ntank       1K\ntank/home  12K\n");
    }
}
