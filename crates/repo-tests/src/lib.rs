//! Shared code of the repository tests, such as the paths of its files.
//!
//! These tests check the workspace and no library: which crate may use which, cycles of modules, the tables of FORMAT.md, and style
//! rules that a program can check.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

pub mod diagram;
pub mod imports;
pub mod prose;
pub mod table;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies in crates/repo-tests").to_path_buf()
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below a directory of the repository whose name ends in `ends`, sorted. Builds and demos are skipped.
pub fn files(under: &str, ends: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(under)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let passed_over = ["target", ".git", "demo", "vectors"].contains(&name.as_str());
            if entry.is_dir() && !entry.is_symlink() && !passed_over {
                open.push(entry);
            } else if entry.is_file() && name.ends_with(ends) {
                found.push(entry);
            }
        }
    }
    found.sort();
    found
}

/// A path as shown in messages: relative to the root of the repository.
pub fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
