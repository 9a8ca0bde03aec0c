//! The table of crates in DESIGN.md: which crate may use which.

use crate::{read, root};
use std::collections::{BTreeMap, BTreeSet};

/// Crate -> crates.
pub type Edges = BTreeMap<String, BTreeSet<String>>;

/// A crate that every layer may use.
const EVERYWHERE: &str = "terrane-wire";

/// A row of the table in section 2, as written.
pub struct Row {
    pub name: String,
    /// Whether the crate lies in `benches/`.
    is_bench: bool,
    /// What the crate contains.
    pub purpose: String,
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
            purpose: what.to_string(),
            may_use: may_use.to_string(),
        }
    })
    .collect()
}

/// Crates that others build on: all but benchmarks and those that may use everything.
pub fn libraries() -> BTreeSet<String> {
    let rows = rows().into_iter().filter(|row| row.may_use != "all" && !row.is_bench);
    rows.map(|row| row.name).collect()
}

fn full(short: &str) -> String {
    if short == "terrane" { short.to_string() } else { format!("terrane-{short}") }
}

/// All crates reachable from a crate.
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

/// The edges that the table allows. A cell is `all`, `x and below`, `-`, or a list of names.
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

/// The allowed edges as drawn. A crate that may use everything stands above all libraries, without edges to others of its kind.
pub fn drawn() -> Edges {
    let (mut edges, libraries) = (allowed(), libraries());
    for row in rows().iter().filter(|row| row.may_use == "all") {
        edges.insert(row.name.clone(), libraries.clone());
    }
    edges
}
