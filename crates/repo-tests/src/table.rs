//! The table of crates in DESIGN.md: which crate may use which.

use crate::{read, root};
use std::collections::{BTreeMap, BTreeSet};

/// Crate -> crates.
pub type Edges = BTreeMap<String, BTreeSet<String>>;

/// Every floor may use it.
const EVERYWHERE: &str = "terrane-wire";

/// The rows of the table in section 2: crate, and the last cell as it is written.
pub fn rows() -> Vec<(String, String)> {
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
