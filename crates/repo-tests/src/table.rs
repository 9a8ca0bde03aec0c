//! The table of crates in DESIGN.md: which crate may use which.

use crate::{read, root};
use std::collections::{BTreeMap, BTreeSet};

/// Crate -> crates.
pub type Edges = BTreeMap<String, BTreeSet<String>>;

/// Every floor may use it.
const EVERYWHERE: &str = "terrane-wire";

/// A row of the table in section 2, as it is written.
pub struct Row {
    pub name: String,
    /// Whether it lies in `benches/`.
    is_bench: bool,
    /// What lives there.
    pub what: String,
    may_use: String,
}

pub fn rows() -> Vec<Row> {
    let page = read(root().join("DESIGN.md"));
    let section = page.split("\n## ").find(|section| section.starts_with("2. ")).expect("section 2");
    let rows = section.lines().filter(|line| line.starts_with("| `terrane"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, what, may_use] = cells[..] else { panic!("a row has three cells: {row}") };
        Row {
            name: name.split('`').nth(1).expect("a name in backticks").to_string(),
            is_bench: name.contains("`benches/`"),
            what: what.to_string(),
            may_use: may_use.to_string(),
        }
    })
    .collect()
}

/// Crates that others build on: not those that may use everything, and no benchmarks.
pub fn libraries() -> BTreeSet<String> {
    let rows = rows().into_iter().filter(|row| row.may_use != "all" && !row.is_bench);
    rows.map(|row| row.name).collect()
}

fn full(short: &str) -> String {
    if short == "terrane" { short.to_string() } else { format!("terrane-{short}") }
}

/// Everything that can be reached from a crate.
pub fn below(edges: &Edges, from: &str) -> BTreeSet<String> {
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
pub fn allowed() -> Edges {
    let rows = rows();
    let all: BTreeSet<String> = rows.iter().map(|row| row.name.clone()).collect();
    let mut edges = Edges::new();
    for Row { name, may_use, .. } in &rows {
        let listed = match may_use.as_str() {
            "all" | "-" => BTreeSet::new(),
            cell => {
                cell.split([',', ' ']).filter(|word| !["", "and", "below"].contains(word)).map(full).collect()
            }
        };
        edges.insert(name.clone(), listed);
    }
    for Row { name, may_use, .. } in &rows {
        let mut may = edges[name].clone();
        if may_use == "all" {
            may = all.clone();
            may.remove(name);
        } else if may_use.ends_with("and below") {
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

/// What the table allows, as it is drawn: what may use everything is above all libraries, and has no edges to its like.
pub fn drawn() -> Edges {
    let (mut edges, libraries) = (allowed(), libraries());
    for row in rows().iter().filter(|row| row.may_use == "all") {
        edges.insert(row.name.clone(), libraries.clone());
    }
    edges
}
