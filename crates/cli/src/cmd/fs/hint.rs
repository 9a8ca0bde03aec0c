//! `terrane fs hint`: write hints of files and directories, and rules by name.
//!
//! Hints and rules are extended attributes, so the command needs no right that setfattr(1) does not need, and
//! asks no server.

use super::super::print;
use crate::failure::{Failure, Outcome};
use crate::table::{Listing, OutputFormat, text};
use clap::Args;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use terrane_fuse::mount::dev_number;
use terrane_posix::{HINT_RULES, HINT_RULES_BYTES_MAX, HintRule, HintRules, WRITE_HINT};
use terrane_space::policy::Hint;

pub const HELP: &str = "\
A hint says how long data will live: not-set, none, short, medium, long or extreme. Data with the same hint shares zones, which then die
together. A hint of a file counts for what is written to it from now on. A hint of a directory counts for files created in it later.

A rule gives the files of a directory a hint by their name, when they are created and when they are renamed. In a pattern, * stands for
any characters and ? for one byte; the whole name must match, and the first rule that matches counts. Quote it, or the shell replaces it.
The pattern may not have / \\ [ ] { } or a line break. A directory has at most 32 rules, of 1024 bytes together.

Precedence: the hint of the file itself, a rule of its directory, the hint of its directory, the property write_hint, and then what was
learned from similar files. New directories inherit hint and rules; -r changes existing ones below as well.
";

const HINTS: Listing = Listing {
    command: "fs hint",
    key: "hints",
    columns: &[text("PATH", "path"), text("PATTERN", "pattern"), text("HINT", "hint")],
};

#[derive(Args)]
#[command(allow_missing_positional = true)]
pub struct HintCommand {
    /// A hint, rules, or both; none: show what is set
    #[arg(value_name = "HINT|PATTERN=HINT")]
    words: Vec<OsString>,
    /// A file or directory on a mount
    #[arg(required = true)]
    path: PathBuf,
    /// Remove the rule with this pattern
    #[arg(long, value_name = "PATTERN")]
    remove: Vec<OsString>,
    /// Remove all rules
    #[arg(long, conflicts_with = "remove")]
    clear: bool,
    /// Change all directories below the directory as well
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    output: OutputFormat,
}

/// What is to be changed.
#[derive(Default)]
struct Changes {
    hint: Option<Hint>,
    rules: Vec<HintRule>,
}

fn parse(words: &[OsString]) -> Outcome<Changes> {
    let mut changes = Changes::default();
    for word in words {
        let shown = word.to_string_lossy();
        if word.as_bytes().contains(&b'=') {
            let rule = HintRule::parse(word.as_bytes());
            changes.rules.push(rule.map_err(|error| Failure(format!("rule {shown:?}: {error}")))?);
            continue;
        }
        let hint = word.to_str().and_then(Hint::from_name);
        let names = Hint::ALL.map(Hint::name);
        let hint = hint.ok_or_else(|| {
            let expected = format!("one of {}, or PATTERN=HINT", names.join(", "));
            Failure(format!("hint {shown:?}: expected {expected}{}", crate::suggest::hint(&shown, names)))
        })?;
        if changes.hint.replace(hint).is_some() {
            return Err(Failure(format!("hint {shown:?}: expected one hint, found several")));
        }
    }
    Ok(changes)
}

impl HintCommand {
    pub fn run(&self) -> Outcome {
        let (path, changes) = (self.path.as_path(), parse(&self.words)?);
        let meta = path.metadata().map_err(Failure::io("examining", path))?;
        let dev = dev_number(meta.dev());
        if !terrane_fuse::mount::list_mounts()?.iter().any(|row| row.dev == dev) {
            let (expected, remedy) = ("a file or directory on a mount of Terrane", "mount its pool first");
            return Err(Failure::refused(path.display(), expected, "another file system", remedy));
        }
        let changes_rules = !changes.rules.is_empty() || !self.remove.is_empty() || self.clear;
        if !meta.is_dir() && (changes_rules || self.recursive) {
            let remedy = "rules are set on a directory, for the names in it";
            return Err(Failure::refused(path.display(), "a directory", "another file", remedy));
        }
        if changes.hint.is_none() && !changes_rules {
            return self.show(path, meta.is_dir());
        }
        self.change(path, &changes)?;
        if self.recursive {
            for dir in directories_below(path, meta.dev())? {
                self.change(&dir, &changes)?;
            }
        }
        Ok(())
    }

    fn show(&self, path: &Path, is_dir: bool) -> Outcome {
        let hint = get(path, WRITE_HINT)?;
        let hint =
            hint.map_or(Hint::NotSet.name().to_owned(), |value| String::from_utf8_lossy(&value).into_owned());
        let shown = path.display().to_string();
        let mut rows: Vec<Value> = Vec::new();
        if is_dir {
            for rule in rules_of(path)?.iter() {
                let pattern = String::from_utf8_lossy(rule.pattern());
                rows.push(json!({"path": shown, "pattern": pattern, "hint": rule.hint().name()}));
            }
        }
        // Below the rules: it counts where none of them matches.
        rows.push(json!({"path": shown, "pattern": null, "hint": hint}));
        print(&HINTS.render(&rows, self.output))
    }

    fn change(&self, path: &Path, changes: &Changes) -> Outcome {
        if let Some(hint) = changes.hint {
            set(path, WRITE_HINT, hint.name().as_bytes())?;
        }
        if changes.rules.is_empty() && self.remove.is_empty() && !self.clear {
            return Ok(());
        }
        let mut rules = if self.clear { HintRules::default() } else { rules_of(path)? };
        for pattern in &self.remove {
            if !rules.remove(pattern.as_bytes()) && !self.recursive {
                let expected = format!("a rule for {:?}", pattern.to_string_lossy());
                let remedy = "`terrane fs hint DIR` shows the rules";
                return Err(Failure::refused(path.display(), expected, "none", remedy));
            }
        }
        for rule in &changes.rules {
            rules.set(rule.clone()).map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        }
        match rules.to_value() {
            Some(value) => set(path, HINT_RULES, &value),
            None => remove(path, HINT_RULES),
        }
    }
}

fn rules_of(dir: &Path) -> Outcome<HintRules> {
    let Some(value) = get(dir, HINT_RULES)? else { return Ok(HintRules::default()) };
    HintRules::parse(&value).map_err(|error| {
        let remedy = "--clear removes them";
        Failure::refused(format_args!("hint rules of {}", dir.display()), "rules", error, remedy)
    })
}

/// All directories below, without those of other file systems. Links are not followed.
fn directories_below(top: &Path, dev: u64) -> Outcome<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![top.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).map_err(Failure::io("reading", &dir))? {
            let entry = entry.map_err(Failure::io("reading", &dir))?;
            if !entry.file_type().map_err(Failure::io("reading", &dir))?.is_dir() {
                continue;
            }
            let path = entry.path();
            if path.symlink_metadata().map_err(Failure::io("examining", &path))?.dev() == dev {
                found.push(path.clone());
                open.push(path);
            }
        }
    }
    Ok(found)
}

fn failed(doing: &str, path: &Path, error: Errno) -> Failure {
    let remedy = match error {
        Errno::OPNOTSUPP => ": extended attributes are off; see the property xattr",
        _ => "",
    };
    Failure(format!("{doing} {}: {}{remedy}", path.display(), std::io::Error::from(error)))
}

/// `None`: it has none.
fn get(path: &Path, name: &[u8]) -> Outcome<Option<Vec<u8>>> {
    let mut value = vec![0; HINT_RULES_BYTES_MAX + 1];
    match rustix::fs::getxattr(path, OsStr::from_bytes(name), &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        // Longer than rules can be, which their parser says.
        Err(Errno::RANGE) => Ok(Some(value)),
        Err(error) => Err(failed("reading the hint of", path, error)),
    }
}

fn set(path: &Path, name: &[u8], value: &[u8]) -> Outcome {
    let done = rustix::fs::setxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty());
    done.map_err(|error| failed("changing the hint of", path, error))
}

fn remove(path: &Path, name: &[u8]) -> Outcome {
    match rustix::fs::removexattr(path, OsStr::from_bytes(name)) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(failed("changing the hint of", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<(Option<Hint>, usize), String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        parse(&words).map(|changes| (changes.hint, changes.rules.len())).map_err(|Failure(text)| text)
    }

    #[test]
    fn words_are_a_hint_and_rules() {
        assert_eq!(parsed(&["*.sst=medium", "long", "a=b=short"]), Ok((Some(Hint::Long), 2)));
        assert_eq!(parsed(&["not-set"]), Ok((Some(Hint::NotSet), 0)));
        assert!(parsed(&["mediun"]).unwrap_err().contains("did you mean 'medium'?"));
        assert!(parsed(&["long", "short"]).unwrap_err().contains("several"));
        for word in ["*.sst=ever", "=long", "a/b=long", "x=not-set"] {
            assert!(parsed(&[word]).unwrap_err().starts_with("rule "), "{word}");
        }
    }
}
