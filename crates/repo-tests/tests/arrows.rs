//! Arrows between crates go down only, and only where the table in DESIGN.md says so.
//!
//! Cargo refuses circles; this refuses every edge that the table does not list. The table is read from the page itself,
//! so page and workspace cannot drift apart.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use terrane_repo_tests::{read, root};

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Every floor may use it.
const EVERYWHERE: &str = "terrane-wire";

/// The rows of the table in section 2: crate, and the last cell as it is written.
fn rows() -> Vec<(String, String)> {
    let page = read(root().join("DESIGN.md"));
    let section = page.split("\n## ").find(|section| section.starts_with("2. ")).expect("section 2");
    let rows = section.lines().filter(|line| line.starts_with("| `terrane"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].split('`').nth(1).expect("a name in backticks");
        (name.to_string(), cells.last().expect("a last cell").to_string())
    })
    .collect()
}

fn full(short: &str) -> String {
    if short == "terrane" { short.to_string() } else { format!("terrane-{short}") }
}

/// Everything that can be reached from a crate.
fn below(edges: &Edges, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.to_string()];
    while let Some(at) = open.pop() {
        for next in edges.get(&at).into_iter().flatten() {
            if found.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    found
}

/// What the table allows. `all`, `x and below`, `-`, or a list of names.
fn allowed() -> Edges {
    let rows = rows();
    let all: BTreeSet<String> = rows.iter().map(|(name, _)| name.clone()).collect();
    let mut edges = Edges::new();
    for (name, cell) in &rows {
        let listed = match cell.as_str() {
            "all" | "-" => BTreeSet::new(),
            cell => {
                cell.split([',', ' ']).filter(|word| !["", "and", "below"].contains(word)).map(full).collect()
            }
        };
        edges.insert(name.clone(), listed);
    }
    for (name, cell) in &rows {
        let mut may = edges[name].clone();
        if cell == "all" {
            may = all.clone();
            may.remove(name);
        } else if cell.ends_with("and below") {
            may.extend(below(&edges, name));
        }
        may.insert(EVERYWHERE.to_string());
        may.remove(name);
        edges.insert(name.clone(), may);
    }
    for name in edges.values().flatten() {
        assert!(all.contains(name), "DESIGN.md lists an unknown crate {name}");
    }
    edges
}

/// Crates of this workspace in one section of every manifest.
fn manifests(section: &str) -> Edges {
    let mut edges = Edges::new();
    let homes = ["crates", "benches"].map(|home| std::fs::read_dir(root().join(home)).unwrap());
    for entry in homes.into_iter().flatten() {
        let text = read(entry.unwrap().path().join("Cargo.toml"));
        let name = text.lines().find_map(|line| line.strip_prefix("name = ")).expect("a name");
        let mut here = "";
        let mut used = BTreeSet::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                here = line;
            } else if here == section && line.starts_with("terrane") {
                used.insert(line.split(['.', ' ', '=']).next().unwrap_or_default().to_string());
            }
        }
        let name = name.trim_matches('"');
        if name.starts_with("terrane") {
            edges.insert(name.to_string(), used);
        } else {
            // A program that measures any file system.
            assert!(used.is_empty(), "{name} is no crate of ours and uses {used:?}");
        }
    }
    edges
}

#[test]
fn every_edge_is_in_the_table() {
    let allowed = allowed();
    for (name, used) in manifests("[dependencies]") {
        let may = allowed.get(&name).unwrap_or_else(|| panic!("{name} has no row in DESIGN.md"));
        let more: Vec<_> = used.difference(may).collect();
        assert!(more.is_empty(), "{name} may not use {more:?}: the table in DESIGN.md section 2 is the law");
    }
}

#[test]
fn every_row_has_a_crate() {
    let crates = manifests("[dependencies]");
    for (name, _) in rows() {
        assert!(crates.contains_key(&name), "DESIGN.md describes {name}, which is not there");
    }
}

#[test]
fn tests_use_what_is_below_them() {
    let allowed = allowed();
    for (name, used) in manifests("[dev-dependencies]") {
        let may = below(&allowed, &name);
        // The simulator is made for the tests of all.
        let more: Vec<_> =
            used.iter().filter(|used| !may.contains(*used) && *used != "terrane-sim").collect();
        assert!(more.is_empty(), "tests of {name} use {more:?}, which is not below it");
    }
}

#[test]
fn the_table_refuses_what_it_should() {
    let allowed = allowed();
    for (from, to) in [
        ("terrane-zap", "terrane-pool"),
        ("terrane-pool", "terrane-object"),
        ("terrane-fuse", "terrane-pool"),
    ] {
        assert!(!allowed[from].contains(to), "{from} -> {to}");
    }
    assert!(
        allowed["terrane-check"].contains("terrane-device")
            && allowed["terrane-cli"].contains("terrane-fuse")
    );
}
