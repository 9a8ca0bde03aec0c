//! Counts assertions, and compares the file system with its known differences.

use crate::cases::Case;
use crate::describe::Describe;
use crate::differences::Difference;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a case could not continue: an operation that is not under test failed.
pub struct CaseError {
    why: String,
    line: u32,
}

impl From<Errno> for CaseError {
    #[track_caller]
    fn from(errno: Errno) -> CaseError {
        CaseError { why: errno.describe(), line: Location::caller().line() }
    }
}

impl From<std::io::Error> for CaseError {
    #[track_caller]
    fn from(error: std::io::Error) -> CaseError {
        CaseError { why: error.to_string(), line: Location::caller().line() }
    }
}

pub type Done = Result<(), CaseError>;

pub struct Checker {
    root: PathBuf,
    known: &'static [Difference],
    remount: Option<String>,
    property: Option<String>,
    verbose: bool,
    case: &'static str,
    seen: BTreeSet<String>,
    passed: u64,
    failed: u64,
    differed: Vec<&'static Difference>,
    /// Reasons, and the cases that were skipped for them.
    skipped: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Checker {
    pub fn new(
        root: PathBuf,
        known: &'static [Difference],
        remount: Option<String>,
        property: Option<String>,
        verbose: bool,
    ) -> Checker {
        Checker {
            root,
            known,
            remount,
            property,
            verbose,
            case: "",
            seen: BTreeSet::new(),
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
        let made = std::fs::create_dir(&dir).map_err(CaseError::from);
        if let Err(error) = made.and_then(|()| (case.run)(self, &dir)) {
            self.failed += 1;
            println!("{}: aborted: {} (line {})", case.name, error.why, error.line);
        }
    }

    /// One assertion. Its name says what was tested.
    pub fn check(&mut self, assertion: impl AsRef<str>, found: impl Describe, expected: impl Describe) {
        let name = format!("{}/{}", self.case, assertion.as_ref());
        assert!(self.seen.insert(name.clone()), "two assertions are called {name}");
        let (found, expected) = (found.describe(), expected.describe());
        let known = self.known.iter().find(|known| known.assertion == name);
        match known {
            None if found == expected => self.passed += 1,
            None => self.fail(&name, &format!("expected {expected}, found {found}")),
            Some(known) if found == known.found => self.differed.push(known),
            Some(_) if found == expected => {
                self.fail(&name, "passed, but is listed as a difference; remove it from the list");
            }
            Some(known) => {
                self.fail(
                    &name,
                    &format!("expected {expected}, or {} as listed, found {found}", known.found),
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
    pub fn remount(&mut self, mode: &str) -> Result<bool, CaseError> {
        match &self.remount {
            Some(command) => Self::shell(command, mode, "").map(|()| true),
            None => {
                self.skip("not remounted: no --remount given");
                Ok(false)
            }
        }
    }

    /// Sets a property of the file system, if it has properties.
    pub fn property(&mut self, assignment: &str) -> Result<bool, CaseError> {
        match &self.property {
            Some(command) => Self::shell(command, "rw", assignment).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether all results are as expected; `whole` if every case was run.
    pub fn summarize(mut self, whole: bool) -> bool {
        if whole {
            for known in self.known.iter().filter(|known| !self.seen.contains(known.assertion)) {
                self.failed += 1;
                println!("{}: listed as a difference, but no case asserts it", known.assertion);
            }
        }
        for known in &self.differed {
            println!("    differs: {}: {}: {}", known.assertion, known.found, known.why);
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
pub fn file(dir: &Path, name: &str) -> Result<PathBuf, CaseError> {
    let path = dir.join(name);
    std::fs::File::create_new(&path)?;
    Ok(path)
}

/// A new directory.
pub fn directory(dir: &Path, name: &str) -> Result<PathBuf, CaseError> {
    let path = dir.join(name);
    std::fs::create_dir(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Difference] = &[Difference { assertion: "case/listed", found: "EPERM", why: "it is so" }];

    fn run_case(asserts: impl FnOnce(&mut Checker)) -> (u64, u64, usize, bool) {
        let mut checker = Checker::new(PathBuf::new(), KNOWN, None, None, false);
        checker.case = "case";
        asserts(&mut checker);
        let (passed, failed, differed) = (checker.passed, checker.failed, checker.differed.len());
        (passed, failed, differed, checker.summarize(true))
    }

    #[test]
    fn an_answer_that_is_neither_expected_nor_listed_fails() {
        let asserts = |j: &mut Checker| {
            j.check("right", Ok::<(), Errno>(()), ());
            j.check("wrong", Err::<(), Errno>(Errno::IO), ());
            j.check("listed", Err::<(), Errno>(Errno::PERM), ());
        };
        assert_eq!(run_case(asserts), (1, 1, 1, false));
        assert_eq!(run_case(|j| j.check("listed", Errno::IO, ())), (0, 1, 0, false));
    }

    #[test]
    fn a_difference_that_is_no_longer_there_fails() {
        assert_eq!(run_case(|j| j.check("listed", (), ())), (0, 1, 0, false));
    }

    #[test]
    fn a_difference_that_nothing_asks_for_fails() {
        assert_eq!(run_case(|j| j.check("right", (), ())), (1, 0, 0, false));
    }

    #[test]
    #[should_panic(expected = "two assertions are called case/right")]
    fn no_two_assertions_have_one_name() {
        run_case(|j| ["right", "right"].into_iter().for_each(|name| j.check(name, (), ())));
    }
}
