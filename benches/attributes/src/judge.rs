//! Counts assertions, and compares the file system with its known differences.

use crate::cases::Case;
use crate::differences::Difference;
use crate::words::Words;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a case could not continue: an operation that is not under test failed.
pub struct Trouble {
    why: String,
    line: u32,
}

impl From<Errno> for Trouble {
    #[track_caller]
    fn from(errno: Errno) -> Trouble {
        Trouble { why: errno.words(), line: Location::caller().line() }
    }
}

impl From<std::io::Error> for Trouble {
    #[track_caller]
    fn from(error: std::io::Error) -> Trouble {
        Trouble { why: error.to_string(), line: Location::caller().line() }
    }
}

pub type Done = Result<(), Trouble>;

pub struct Judge {
    root: PathBuf,
    known: &'static [Difference],
    remount: Option<String>,
    property: Option<String>,
    verbose: bool,
    case: &'static str,
    asked: BTreeSet<String>,
    passed: u64,
    failed: u64,
    differed: Vec<&'static Difference>,
    /// Reasons, and the cases that were skipped for them.
    skipped: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Judge {
    pub fn new(
        root: PathBuf,
        known: &'static [Difference],
        remount: Option<String>,
        property: Option<String>,
        verbose: bool,
    ) -> Judge {
        Judge {
            root,
            known,
            remount,
            property,
            verbose,
            case: "",
            asked: BTreeSet::new(),
            passed: 0,
            failed: 0,
            differed: Vec::new(),
            skipped: BTreeMap::new(),
        }
    }

    /// In a directory of its own, with the usual umask.
    pub fn run(&mut self, case: &Case) {
        self.case = case.name;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let dir = self.root.join(case.name);
        let made = std::fs::create_dir(&dir).map_err(Trouble::from);
        if let Err(trouble) = made.and_then(|()| (case.run)(self, &dir)) {
            self.failed += 1;
            println!("{}: could not go on: {} (line {})", case.name, trouble.why, trouble.line);
        }
    }

    /// One assertion. Its name says what was tested.
    pub fn is(&mut self, asked: impl AsRef<str>, found: impl Words, expected: impl Words) {
        let name = format!("{}/{}", self.case, asked.as_ref());
        assert!(self.asked.insert(name.clone()), "two assertions are called {name}");
        let (found, expected) = (found.words(), expected.words());
        let known = self.known.iter().find(|known| known.asked == name);
        match known {
            None if found == expected => self.passed += 1,
            None => self.fail(&name, &format!("expected {expected}, found {found}")),
            Some(known) if found == known.found => self.differed.push(known),
            Some(_) if found == expected => {
                self.fail(&name, "is as expected, but listed as a difference: take it off the list");
            }
            Some(known) => {
                self.fail(
                    &name,
                    &format!("expected {expected}, or as listed {}, found {found}", known.found),
                );
            }
        }
        if self.verbose {
            println!("{name}: {found}");
        }
    }

    fn fail(&mut self, name: &str, why: &str) {
        self.failed += 1;
        println!("{name}: {why}");
    }

    /// Records that part of a case cannot run here.
    pub fn skip(&mut self, why: &str) {
        self.skipped.entry(why.to_string()).or_default().insert(self.case);
    }

    fn shell(command: &str, mode: &str, word: &str) -> Done {
        let status = Command::new("sh").args(["-c", command, "sh", word]).env("MODE", mode).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(std::io::Error::other(format!("{command}: {status}")).into())
        }
    }

    /// Remounts the file system, so that only stored content is left. False: it cannot.
    pub fn remount(&mut self, mode: &str) -> Result<bool, Trouble> {
        match &self.remount {
            Some(command) => Self::shell(command, mode, "").map(|()| true),
            None => {
                self.skip("not mounted anew: there is no --remount");
                Ok(false)
            }
        }
    }

    /// Sets a property of the file system, if it has properties.
    pub fn property(&mut self, assignment: &str) -> Result<bool, Trouble> {
        match &self.property {
            Some(command) => Self::shell(command, "rw", assignment).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether all results are as expected; `whole` if every case was run.
    pub fn sum_up(mut self, whole: bool) -> bool {
        if whole {
            for known in self.known.iter().filter(|known| !self.asked.contains(known.asked)) {
                self.failed += 1;
                println!("{}: listed as a difference, but nothing asks for it", known.asked);
            }
        }
        for known in &self.differed {
            println!("    differs: {}: {}: {}", known.asked, known.found, known.why);
        }
        for (why, cases) in &self.skipped {
            let cases: Vec<&str> = cases.iter().copied().collect();
            println!("    skipped: {why}: {}", cases.join(", "));
        }
        println!(
            "attributes: {} passed, {} failed, {} differ as listed, {} skipped",
            self.passed,
            self.failed,
            self.differed.len(),
            self.skipped.len()
        );
        self.failed == 0
    }
}

/// A new, empty file.
pub fn file(dir: &Path, name: &str) -> Result<PathBuf, Trouble> {
    let path = dir.join(name);
    std::fs::File::create_new(&path)?;
    Ok(path)
}

/// A new directory.
pub fn directory(dir: &Path, name: &str) -> Result<PathBuf, Trouble> {
    let path = dir.join(name);
    std::fs::create_dir(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Difference] = &[Difference { asked: "case/listed", found: "EPERM", why: "it is so" }];

    fn judged(asks: impl FnOnce(&mut Judge)) -> (u64, u64, usize, bool) {
        let mut judge = Judge::new(PathBuf::new(), KNOWN, None, None, false);
        judge.case = "case";
        asks(&mut judge);
        let (passed, failed, differed) = (judge.passed, judge.failed, judge.differed.len());
        (passed, failed, differed, judge.sum_up(true))
    }

    #[test]
    fn an_answer_that_is_neither_expected_nor_listed_fails() {
        let asks = |j: &mut Judge| {
            j.is("right", Ok::<(), Errno>(()), ());
            j.is("wrong", Err::<(), Errno>(Errno::IO), ());
            j.is("listed", Err::<(), Errno>(Errno::PERM), ());
        };
        assert_eq!(judged(asks), (1, 1, 1, false));
        assert_eq!(judged(|j| j.is("listed", Errno::IO, ())), (0, 1, 0, false));
    }

    #[test]
    fn a_difference_that_is_no_longer_there_fails() {
        assert_eq!(judged(|j| j.is("listed", (), ())), (0, 1, 0, false));
    }

    #[test]
    fn a_difference_that_nothing_asks_for_fails() {
        assert_eq!(judged(|j| j.is("right", (), ())), (1, 0, 0, false));
    }

    #[test]
    #[should_panic(expected = "two assertions are called case/right")]
    fn no_two_assertions_have_one_name() {
        judged(|j| ["right", "right"].into_iter().for_each(|asked| j.is(asked, (), ())));
    }
}
