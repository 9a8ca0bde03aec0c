//! Dependencies between crates go down only, and only where the table in DESIGN.md says so.
//!
//! Cargo refuses cycles; this refuses every edge that the table does not list. The table is read from the page itself, so page and
//! workspace cannot drift apart.
//!
//! A crate that re-exports names of another one (`pub use`) makes a way around the table. So each name must be imported from the crate
//! that owns it, except for the crates listed here. An importer of a name has an edge to its owner.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use terrane_repo_tests::imports::{code, imported, names};
use terrane_repo_tests::table::{Edges, allowed, below, rows};
use terrane_repo_tests::{files, read, root, short};

/// Crates that re-export names of others from their root, and why.
const REEXPORTING_CRATES: [(&str, &str); 1] =
    [("terrane", "the face for embedders: one dependency that keeps its promises, whatever moves below")];

/// They stand above most crates, and are made for the tests of all.
const TEST_SUPPORT_CRATES: [&str; 2] = ["terrane-oracle", "terrane-sim"];

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
        assert!(
            more.is_empty(),
            "{name} may not use {more:?}: the table in DESIGN.md section 2 does not allow it"
        );
    }
}

#[test]
fn every_row_has_a_crate() {
    let crates = manifests("[dependencies]");
    for row in rows() {
        assert!(crates.contains_key(&row.name), "DESIGN.md describes {}, which does not exist", row.name);
    }
}

#[test]
fn tests_use_what_is_below_them() {
    let allowed = allowed();
    for (name, used) in manifests("[dev-dependencies]") {
        let may = below(&allowed, &name);
        let is_for_tests = |used: &str| TEST_SUPPORT_CRATES.contains(&used);
        let more: Vec<_> = used.iter().filter(|used| !may.contains(*used) && !is_for_tests(used)).collect();
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

/// The sources that are compiled into a crate, without comments and tests.
fn sources(home: &Path) -> Vec<(String, String)> {
    let src = home.join("src");
    let all = files(&short(&src), ".rs").into_iter();
    let compiled = all.filter(|path| {
        let inner = path.strip_prefix(&src).expect("a file below src").with_extension("");
        !inner.iter().any(|part| part == "tests")
    });
    compiled.map(|path| (short(&path), code(&read(&path)))).collect()
}

/// Crate -> its sources, for everything in `crates/` and `benches/`.
fn workspace() -> BTreeMap<String, Vec<(String, String)>> {
    let homes = ["crates", "benches"].map(|home| std::fs::read_dir(root().join(home)).unwrap());
    let homes = homes.into_iter().flatten().map(|entry| entry.unwrap().path());
    homes
        .map(|home| {
            let manifest = read(home.join("Cargo.toml"));
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).expect("a name");
            (name.trim_matches('"').to_string(), sources(&home))
        })
        .collect()
}

/// The names that a source re-exports from crates of the workspace: owner, name.
fn reexports(text: &str) -> Vec<(String, String)> {
    let exports = text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let of_ours = exports.filter(|export| export.starts_with("terrane"));
    of_ours
        .flat_map(|export| {
            let owner = export.split([':', ' ']).next().unwrap_or_default().replace('_', "-");
            names(export).into_iter().map(move |name| (owner.clone(), name.to_string()))
        })
        .collect()
}

#[test]
fn every_reexport_has_a_listed_reason() {
    for (name, sources) in workspace() {
        let listed = REEXPORTING_CRATES.iter().any(|(from, _)| *from == name);
        let allowed_here = |path: &str| listed && path.ends_with("/src/lib.rs");
        for (path, text) in sources.iter().filter(|(path, _)| !allowed_here(path)) {
            let handed = reexports(text);
            assert!(
                handed.is_empty(),
                "{path} re-exports {handed:?}: import them from the crate that owns them"
            );
        }
    }
}

#[test]
fn a_reexported_name_counts_as_an_edge_to_its_owner() {
    let (allowed, workspace) = (allowed(), workspace());
    for (from, _) in REEXPORTING_CRATES {
        let handed: BTreeMap<String, String> = workspace[from]
            .iter()
            .flat_map(|(_, text)| reexports(text))
            .map(|(owner, name)| (name, owner))
            .collect();
        assert!(!handed.is_empty(), "{from} re-exports nothing: remove it from the list");
        let prefix = format!("{}::", from.replace('-', "_"));
        for (name, sources) in workspace.iter().filter(|(name, _)| name.as_str() != from) {
            for (path, text) in sources {
                for taken in imported(text, &prefix) {
                    let owner = handed.get(taken).map_or(from, String::as_str);
                    let may = allowed.get(name).is_some_and(|may| may.contains(owner)) || owner == name;
                    assert!(may, "{path} takes {taken} of {owner} through {from}");
                }
            }
        }
    }
}

#[test]
fn reexports_are_found() {
    let text = "pub use terrane_a::b::{C, D as E};\npub use crate::f::G;\npub(crate) use terrane_h::I;\n\
                pub use terrane_j as k;";
    let found: Vec<String> =
        reexports(text).into_iter().map(|(owner, name)| format!("{owner} {name}")).collect();
    assert_eq!(found, ["terrane-a C", "terrane-a E", "terrane-j k"]);
}
