//! `terrane fs entry`: words beside directory entries.
//!
//! They belong to a name in a directory, so a path is split at its last name, and symbolic links are not
//! followed there.

use super::super::print;
use crate::failure::{Failure, Outcome};
use crate::table::{Listing, OutputFormat, text};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terrane_fuse::entry_words;

pub const HELP: &str = "\
A program can keep one to six 64-bit words beside a name in a directory, such as the identifier by which a metadata server knows the
file. They belong to the name and not to the file: a hard link has its own. They move with the name in a rename, and are removed with
it. Directories whose names all have words stay as compact as others. Programs use the same calls on an open directory: see
`SEMANTICS.md`.
";

const ENTRIES: Listing = Listing {
    command: "fs entry list",
    key: "entries",
    columns: &[text("NAME", "name"), text("WORDS", "words")],
};

#[derive(Subcommand)]
pub enum EntryCommand {
    /// Show the words beside a name
    Get(Name),
    /// Set the words beside a name, whatever was there before
    Set(SetWords),
    /// Remove the words beside a name
    Remove(Name),
    /// List the names of a directory with their words
    List(ListWords),
}

#[derive(Args)]
pub struct Name {
    /// A file, directory or link on a mount
    path: PathBuf,
}

#[derive(Args)]
pub struct SetWords {
    /// A file, directory or link on a mount
    path: PathBuf,
    /// One to six numbers of 64 bits, decimal or hexadecimal (0x1f)
    #[arg(required = true, num_args = 1..=6, value_parser = word)]
    words: Vec<u64>,
}

#[derive(Args)]
pub struct ListWords {
    /// A directory on a mount
    directory: PathBuf,
    #[command(flatten)]
    output: OutputFormat,
}

fn word(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
        Some(_) => return Err("a number of at most 64 bits, like 31 or 0x1f".to_owned()),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number of at most 64 bits, like 31 or 0x1f".to_owned())
}

fn shown(words: &[u64]) -> Vec<String> {
    words.iter().map(|word| format!("{word:#x}")).collect()
}

impl EntryCommand {
    pub fn run(&self) -> Outcome {
        match self {
            EntryCommand::Get(Name { path }) => {
                let (dir, name) = split(path)?;
                let words =
                    entry_words::get(open(dir)?, name.as_bytes()).map_err(|error| reason(path, &error))?;
                print(&format!("{}\n", shown(&words).join(" ")))
            }
            EntryCommand::Set(SetWords { path, words }) => set(path, words),
            EntryCommand::Remove(Name { path }) => set(path, &[]),
            EntryCommand::List(list) => list.run(),
        }
    }
}

fn set(path: &Path, words: &[u64]) -> Outcome {
    let (dir, name) = split(path)?;
    entry_words::set(open(dir)?, name.as_bytes(), words).map_err(|error| reason(path, &error))
}

impl ListWords {
    fn run(&self) -> Outcome {
        let path = &self.directory;
        let listed = entry_words::list(open(path)?).map_err(|error| reason(path, &error))?;
        let row = |entry: &entry_words::Listed| {
            let words = shown(&entry.words);
            let words: Value = match self.output.json {
                true => words.into(),
                false if words.is_empty() => "-".into(),
                false => words.join(" ").into(),
            };
            json!({"name": String::from_utf8_lossy(&entry.name), "words": words})
        };
        let mut rows: Vec<Value> = listed.iter().map(row).collect();
        rows.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        print(&ENTRIES.render(&rows, self.output))
    }
}

/// The directory of a path, and the name in it.
fn split(path: &Path) -> Result<(&Path, &OsStr), Failure> {
    let parent = path.parent().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    parent.zip(path.file_name()).ok_or_else(|| {
        Failure::refused(
            path.display(),
            "a name in a directory",
            "none",
            "add the directory that has the name",
        )
    })
}

fn open(dir: &Path) -> Outcome<File> {
    File::open(dir).map_err(Failure::io("opening", dir))
}

fn reason(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    match error.raw_os_error() {
        Some(libc::ENODATA) => Failure(format!("{path}: no words")),
        Some(libc::ENOTTY) => {
            let remedy = "give a path on a mount of Terrane";
            Failure::refused(path, "a directory of Terrane", "another file or file system", remedy)
        }
        Some(libc::EOPNOTSUPP) => {
            let (expected, remedy) = ("a pool with org.terrane:entry_words", "run `terrane pool upgrade`");
            Failure::refused(path, expected, "an older one", remedy)
        }
        Some(libc::EPERM) => {
            let (expected, remedy) = ("the directory's owner or root", "ask the owner; see also lsattr(1)");
            Failure::refused(path, expected, "another user, or a directory that must not change", remedy)
        }
        _ => Failure(format!("words of {path}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_decimal_or_hexadecimal() {
        for (text, expected) in [("0", 0), ("31", 31), ("0x1f", 31), ("0xffffffffffffffff", u64::MAX)] {
            assert_eq!(word(text), Ok(expected), "{text}");
        }
        for text in ["", "-1", "0x", "0x+1", "1f", "0x10000000000000000", "18446744073709551616"] {
            assert!(word(text).is_err(), "{text}");
        }
        assert_eq!(shown(&[0, 31]), ["0x0", "0x1f"]);
    }

    #[test]
    fn paths_are_split_at_the_last_name() {
        let split = |path| split(Path::new(path)).map(|(dir, name)| (dir.to_owned(), name.to_owned()));
        assert_eq!(split("/mnt/a"), Ok(("/mnt".into(), "a".into())));
        assert_eq!(split("a/"), Ok((".".into(), "a".into())));
        for path in ["/", "..", "a/..", ""] {
            assert!(split(path).is_err(), "{path}");
        }
    }
}
