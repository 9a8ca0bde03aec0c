//! Modules of a crate import each other in one direction.
//!
//! Cargo refuses cycles of crates, but not of modules. Here the top-level modules of each crate form a graph. A submodule counts as its
//! top-level module, and a name re-exported by the root counts as its module. A cycle of more than two modules is refused. Tests and
//! comments do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use terrane_repo_tests::imports::{self, code, imported};
use terrane_repo_tests::{files, read, root};

/// Two modules may import each other: a type and its builder, a parser and its rows.
const CIRCLE_MAX: usize = 2;

/// Module -> modules that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Names that the root re-exports: name -> module.
fn exported(root: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for export in root.split("use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let Some((module, listed)) = export.split_once("::") else { continue };
        if modules.contains(module) {
            let listed = listed.split(|c: char| !c.is_alphanumeric() && c != '_');
            names.extend(listed.map(|name| (name.to_string(), module.to_string())));
        }
    }
    names
}

fn graph(src: &Path) -> Graph {
    // Top-level module, number of folders below the root, source.
    let mut sources: Vec<(String, usize, String)> = Vec::new();
    let mut roots = String::new();
    for path in files(&src.strip_prefix(root()).unwrap().to_string_lossy(), ".rs") {
        let inner = path.strip_prefix(src).unwrap().with_extension("");
        let mut parts: Vec<&str> = inner.iter().map(|part| part.to_str().unwrap()).collect();
        match parts.as_slice() {
            ["lib" | "main"] => roots += &code(&read(&path)),
            parts if parts.contains(&"tests") => {}
            _ => {
                parts.pop_if(|last| *last == "mod");
                sources.push((parts[0].to_string(), parts.len(), code(&read(&path))));
            }
        }
    }
    let modules: BTreeSet<String> = sources.iter().map(|(module, ..)| module.clone()).collect();
    let exported = exported(&roots, &modules);
    let mut graph: Graph = modules.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
    for (module, depth, text) in &sources {
        let above = "super::".repeat(*depth);
        for name in imported(text, "crate::").chain(imported(text, &above)) {
            let target = modules.get(name).or_else(|| exported.get(name));
            if let Some(target) = target.filter(|target| *target != module) {
                graph.get_mut(module).unwrap().insert(target.clone());
            }
        }
    }
    graph
}

/// All modules reachable from a module.
fn reached<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = graph[from].iter().map(String::as_str).collect();
    while let Some(at) = open.pop() {
        if found.insert(at) {
            open.extend(graph[at].iter().map(String::as_str));
        }
    }
    found
}

/// Strongly connected components of more than one module.
fn circles(graph: &Graph) -> BTreeSet<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (module.as_str(), reached(graph, module))).collect();
    let in_circles = reached.iter().filter(|(module, below)| below.contains(*module));
    in_circles
        .map(|(module, below)| {
            below.iter().copied().filter(|other| reached[other].contains(module)).collect()
        })
        .collect()
}

#[test]
fn modules_of_a_crate_do_not_import_each_other_in_circles() {
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let home = entry.unwrap().path();
        let name = home.file_name().unwrap().to_str().unwrap().to_string();
        let graph = graph(&home.join("src"));
        let circles = circles(&graph);
        let largest = circles.iter().map(BTreeSet::len).max().unwrap_or(0);
        if largest > CIRCLE_MAX {
            wrong.push(format!("{name}: {circles:?}"));
        }
    }
    assert!(wrong.is_empty(), "circles of modules:\n{}", wrong.join("\n"));
}

#[test]
fn imports_are_found_in_every_form() {
    let text = code(
        "use crate::{a::{x, y}, b};\nfn f() { crate::c::g() } // crate::d\npub(in crate::e) struct S;\n\
         #[cfg(test)]\nmod tests { use crate::h; }\n#[cfg(test)]\nuse crate::i;\nuse super::super::k;",
    );
    let names: Vec<&str> = imported(&text, "crate::").collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(imported(&text, "super::super::").collect::<Vec<_>>(), ["k"]);
    assert_eq!(imported(&text, "super::").count(), 1);
    assert_eq!(imports::names("a::{b, c as d, e::{f}}"), ["b", "d", "f"]);
}

#[test]
fn a_circle_is_found_and_a_diamond_is_not_one() {
    let graph = |edges: &[(&str, &[&str])]| -> Graph {
        let row = |to: &[&str]| to.iter().map(|name| name.to_string()).collect();
        edges.iter().map(|(from, to)| (from.to_string(), row(to))).collect()
    };
    let ring = graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"]), ("d", &["a"])]);
    assert_eq!(circles(&ring), BTreeSet::from([BTreeSet::from(["a", "b", "c"])]));
    let diamond = graph(&[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])]);
    assert!(circles(&diamond).is_empty());
}
