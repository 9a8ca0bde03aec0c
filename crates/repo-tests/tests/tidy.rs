//! Style rules that a program can check. A rule that is not tested is advice.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use terrane_repo_tests::{files, read, root, short};

const LINE_CHARS_MAX: usize = 140;
const FILE_LINES_MAX: usize = 900;
/// Crates that may use `unsafe`: ioctls, the transport, vector instructions, a function of the C library replaced.
const UNSAFE_CRATES: [&str; 4] = ["device", "fuse", "codec", "preload"];

/// All Rust files.
fn code() -> Vec<PathBuf> {
    ["crates", "benches", "fuzz"].iter().flat_map(|home| files(home, ".rs")).collect()
}

/// All Rust files and their text, except this file, which names what it forbids.
fn sources() -> impl Iterator<Item = (PathBuf, String)> {
    code().into_iter().filter(|path| !path.ends_with("tests/tidy.rs")).map(|path| {
        let text = read(&path);
        (path, text)
    })
}

fn assert_none(found: Vec<String>, rule: &str) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

/// Lines that rustfmt cannot break: tables, long strings, macro patterns and arguments.
fn cannot_be_broken(line: &str) -> bool {
    let line = line.trim_start();
    let table = line.starts_with("//! |") || line.starts_with("/// |");
    let string = line.split('"').any(|piece| piece.chars().count() > 60) && !line.starts_with("//");
    table || string || line.contains("$(") || line.contains(" in prop::")
}

#[test]
fn lines_fit_a_screen() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let long = text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.chars().count() > LINE_CHARS_MAX && !cannot_be_broken(line));
        found.extend(
            long.map(|(at, line)| {
                format!("{}:{}: {} characters", short(&path), at + 1, line.chars().count())
            }),
        );
    }
    assert_none(found, "lines of at most 140 characters");
}

#[test]
fn files_have_one_idea() {
    let long = sources()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > FILE_LINES_MAX);
    assert_none(
        long.map(|(path, lines)| format!("{}: {lines} lines", short(&path))).collect(),
        "files over 900 lines: split them by topic",
    );
}

#[test]
fn nothing_is_left_open_in_the_code() {
    let words = ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!(", "#[ignore"];
    let mut found = Vec::new();
    for (path, text) in sources() {
        for (at, line) in text.lines().enumerate() {
            found.extend(
                words
                    .iter()
                    .filter(|word| line.contains(**word))
                    .map(|word| format!("{}:{}: {word}", short(&path), at + 1)),
            );
        }
    }
    assert_none(found, "open markers in the code: finish the work, or file an issue");
}

#[test]
fn no_path_of_one_machine_is_written_down() {
    let places = ["/work/", "/root/", "/home/", "/farm/"];
    let mut all: Vec<PathBuf> =
        [".rs", ".md", ".toml", ".sh", "Makefile"].iter().flat_map(|ends| files(".", ends)).collect();
    all.retain(|path| !path.ends_with("tests/tidy.rs"));
    all.push(root().join(".ci/run"));
    let mut found = Vec::new();
    for path in all {
        for (at, line) in read(&path).lines().enumerate() {
            // Only at the start of a path: a place inside a path, as in `crates/work/`, is allowed.
            let begins = |place: &&&str| {
                line.match_indices(**place).any(|(from, _)| {
                    line[..from].chars().next_back().is_none_or(|before| " \"'=(`".contains(before))
                })
            };
            found.extend(
                places.iter().filter(begins).map(|place| format!("{}:{}: {place}", short(&path), at + 1)),
            );
        }
    }
    assert_none(found, "paths that exist on one machine only");
}

#[test]
fn unsafe_is_written_where_nothing_else_serves() {
    let allowed =
        |path: &Path| UNSAFE_CRATES.iter().any(|name| path.starts_with(root().join("crates").join(name)));
    let mut found = Vec::new();
    for (path, text) in sources().filter(|(path, _)| !allowed(path)) {
        for (at, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let used = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                .iter()
                .any(|word| code.contains(word));
            let let_in = code.contains("(unsafe_code") && (code.contains("allow") || code.contains("expect"));
            if used || let_in {
                found.push(format!("{}:{}", short(&path), at + 1));
            }
        }
    }
    assert_none(found, "unsafe outside device, fuse, codec and preload");
}

/// Existing files that `mod x;` lines of a file name.
fn modules(path: &Path) -> Vec<PathBuf> {
    let dir = path.parent().expect("a file lies somewhere");
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let is_root = ["lib", "main", "mod"].contains(&stem) || !dir.ends_with("src") && is_program(path);
    let inner = if is_root { dir.to_path_buf() } else { dir.join(stem) };
    let text = read(path);
    let names = text.lines().filter_map(|line| {
        // With any visibility: `pub`, `pub(crate)`, `pub(in some::path)`.
        let (seen_by, name) = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
        (seen_by.is_empty() || seen_by.starts_with("pub")).then_some(name)
    });
    let named = names.flat_map(|name| [inner.join(format!("{name}.rs")), inner.join(name).join("mod.rs")]);
    let elsewhere = text.lines().filter_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    let elsewhere = elsewhere.filter_map(|path| dir.join(path).canonicalize().ok());
    named.filter(|path| path.exists()).chain(elsewhere).collect()
}

/// Tests and benchmarks are programs of their own. One of several files has a folder with a `main.rs`. Without `autotests`, only
/// those tests are programs that the manifest names.
fn is_program(path: &Path) -> bool {
    let path = if path.ends_with("main.rs") { path.parent().unwrap_or(path) } else { path };
    let dir = path.parent().and_then(Path::file_name).unwrap_or_default();
    let manifest = path.ancestors().nth(2).unwrap_or(Path::new("")).join("Cargo.toml");
    if !["tests", "benches", "examples", "fuzz_targets"].iter().any(|name| dir == *name) || !manifest.exists()
    {
        return false;
    }
    let (text, name) = (read(manifest), path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    dir != "tests"
        || !text.contains("autotests = false")
        || text.contains(&format!("path = \"tests/{name}\""))
}

#[test]
fn every_file_is_reached_from_a_root() {
    let all = code();
    let is_root =
        |path: &PathBuf| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || is_program(path);
    let mut open: Vec<PathBuf> = all.iter().filter(|path| is_root(path)).cloned().collect();
    let mut reached: BTreeSet<PathBuf> = open.iter().cloned().collect();
    while let Some(path) = open.pop() {
        open.extend(modules(&path).into_iter().filter(|module| reached.insert(module.clone())));
    }
    let dead = all.iter().filter(|path| !reached.contains(*path)).map(|path| short(path)).collect();
    assert_none(dead, "files that no `mod` names");
}

/// Words after `make ` in the first cells of README's table.
fn targets_of_the_page() -> BTreeSet<String> {
    let page = read(root().join("README.md"));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `make "));
    rows.map(|row| row.split(['`', ' ']).next().unwrap_or_default().to_string()).collect()
}

/// Makefile targets with a `##` description.
fn targets_of_the_makefile() -> BTreeSet<String> {
    let makefile = read(root().join("Makefile"));
    let lines = makefile.lines().filter(|line| line.contains(": ##"));
    lines.filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_string()).collect()
}

#[test]
fn the_page_and_the_makefile_list_the_same_targets() {
    let (page, makefile) = (targets_of_the_page(), targets_of_the_makefile());
    assert!(makefile.len() > 5, "the Makefile's targets have a `##` comment: {makefile:?}");
    assert_eq!(page, makefile);
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    let mut found = Vec::new();
    for path in files(".", ".md") {
        let text = read(&path);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            let local = !file.is_empty() && !link.contains("://");
            if local && !path.parent().unwrap_or(Path::new("")).join(file).exists() {
                found.push(format!("{}: {link}", short(&path)));
            }
        }
    }
    assert_none(found, "links to files that do not exist");
}

/// Every test that SEMANTICS.md names must exist: a line of that page is a promise with a proof.
#[test]
fn tests_that_the_pages_name_are_there() {
    let page = read(root().join("SEMANTICS.md"));
    let all: String = sources().map(|(_, text)| text).collect();
    let named = page.split("test `").skip(1).filter_map(|rest| rest.split('`').next());
    let missing = named.filter(|name| !all.contains(&format!("fn {name}("))).map(str::to_string);
    let suite: String = ["mounted", "life", "kills", "suites", "xattrs"]
        .iter()
        .map(|name| read(root().join(format!("scripts/{name}.sh"))))
        .collect();
    let checks = page.split("`check_").skip(1).filter_map(|rest| rest.split('`').next());
    let absent = checks
        .filter(|name| !suite.contains(&format!("\ncheck_{name}() {{")))
        .map(|name| format!("check_{name}"));
    assert_none(missing.chain(absent).collect(), "tests named by SEMANTICS.md that do not exist");
}
