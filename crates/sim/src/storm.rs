//! Many threads in one real directory: of Terrane's mount, or of any other file system.
//!
//! The rules of POSIX for listings are checked while names come and go. A name that exists from before a
//! listing begins until after it has ended is shown once. And a tree that only one thread fills can be
//! removed by that thread, whichever other threads list it. "Directory not empty" would mean that a listing
//! left a name out.
//!
//! Not reproducible by seed: the threads interleave freely.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrane_oracle::{Failure, ensure};
use terrane_wire::Prng;

/// Names that always exist: more than one getdents(2) returns, or listings could not be interrupted.
const PERMANENT_NAMES: u64 = 2000;
/// Maximum number of names that one thread keeps, as it creates and removes them.
const OWN_NAMES_MAX: u64 = 600;
const TREE_DEPTH_MAX: u64 = 3;

/// Counts of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormStats {
    /// Listings that came to their end.
    pub listings: u64,
    /// Steps of the threads that create, rename and remove names.
    pub changes: u64,
    /// Trees that were made and removed.
    pub trees: u64,
}

struct Storm {
    names: PathBuf,
    trees: PathBuf,
    /// Names that exist: added after they were created, removed before they are unlinked.
    existing: Mutex<BTreeSet<String>>,
    ended: AtomicBool,
    listings: AtomicU64,
    changes: AtomicU64,
    removed: AtomicU64,
}

type Role = fn(&Storm, u64, Prng) -> Result<(), Failure>;

/// Two threads of each kind, for this time, in a directory made for it.
pub fn storm(dir: &Path, seed: u64, time: Duration) -> Result<StormStats, Failure> {
    let (names, trees) = (dir.join("names"), dir.join("trees"));
    fs::create_dir(dir).map_err(at(dir))?;
    fs::create_dir(&names).map_err(at(&names))?;
    fs::create_dir(&trees).map_err(at(&trees))?;
    let there: BTreeSet<String> = (0..PERMANENT_NAMES).map(|n| format!("always {n}")).collect();
    for name in &there {
        make(&names.join(name))?;
    }
    let storm = Storm {
        names,
        trees,
        existing: Mutex::new(there),
        ended: AtomicBool::new(false),
        listings: AtomicU64::new(0),
        changes: AtomicU64::new(0),
        removed: AtomicU64::new(0),
    };
    let roles: [Role; 4] = [Storm::list, Storm::change, Storm::change_trees, Storm::walk_path];
    let outcome = std::thread::scope(|scope| {
        let storm = &storm;
        let thread = |number: u64| {
            let role = roles[usize::try_from(number % 4).unwrap_or(0)];
            scope.spawn(move || {
                let outcome = role(storm, number, Prng::new(seed.wrapping_mul(1000).wrapping_add(number)));
                // One failure stops all threads.
                storm.ended.fetch_or(outcome.is_err(), Ordering::Relaxed);
                outcome
            })
        };
        let threads: Vec<_> = (0..8).map(thread).collect();
        let steps = time.as_millis() / 50;
        (0..steps)
            .take_while(|_| !storm.is_over())
            .for_each(|_| std::thread::sleep(Duration::from_millis(50)));
        storm.ended.store(true, Ordering::Relaxed);
        let panicked = |_| Err(Failure("a thread of the storm panicked".into()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).fold(Ok(()), Result::and)
    });
    outcome?;
    fs::remove_dir_all(dir).map_err(at(dir))?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(StormStats {
        listings: count(&storm.listings),
        changes: count(&storm.changes),
        trees: count(&storm.removed),
    })
}

impl Storm {
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn existing_names(&self) -> BTreeSet<String> {
        self.existing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add_existing(&self, name: &str) {
        self.existing.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    fn remove_existing(&self, name: &str) {
        self.existing.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Lists the names, completely or sometimes not to the end, and compares.
    fn list(&self, _: u64, mut rng: Prng) -> Result<(), Failure> {
        while !self.is_over() {
            let before = self.existing_names();
            let limit = if rng.one_in(3) { rng.below(PERMANENT_NAMES) } else { u64::MAX };
            let mut shown: BTreeMap<String, u64> = BTreeMap::new();
            let mut count = 0;
            for entry in fs::read_dir(&self.names).map_err(at(&self.names))? {
                let name = entry.map_err(at(&self.names))?.file_name();
                *shown.entry(name.to_string_lossy().into_owned()).or_default() += 1;
                count += 1;
                if count >= limit {
                    break;
                }
                if rng.one_in(200) {
                    std::thread::sleep(Duration::from_micros(rng.below(500)));
                }
            }
            if count >= limit {
                continue;
            }
            self.listings.fetch_add(1, Ordering::Relaxed);
            let after = self.existing_names();
            for name in before.intersection(&after) {
                let times = shown.get(name).copied().unwrap_or(0);
                ensure(times == 1, || {
                    format!("{}: {name:?} should be listed once, found {times} times", self.names.display())
                })?;
            }
        }
        Ok(())
    }

    /// Creates, renames and removes names of its own among the others.
    fn change(&self, number: u64, mut rng: Prng) -> Result<(), Failure> {
        let mut own: Vec<String> = Vec::new();
        for step in 0.. {
            if self.is_over() {
                break;
            }
            self.changes.fetch_add(1, Ordering::Relaxed);
            let new = format!("new {number} {step}");
            let at_most = usize::try_from(rng.below(OWN_NAMES_MAX)).unwrap_or(0);
            let picked = usize::try_from(rng.below(own.len() as u64)).unwrap_or(0);
            if own.is_empty() || rng.below(5) < 2 {
                make(&self.names.join(&new))?;
                self.add_existing(&new);
                own.push(new);
            } else if rng.below(3) < 2 && own.len() > at_most {
                let old = own.swap_remove(picked);
                self.remove_existing(&old);
                fs::remove_file(self.names.join(&old)).map_err(at(&self.names.join(&old)))?;
            } else {
                let old = std::mem::replace(&mut own[picked], new.clone());
                self.remove_existing(&old);
                fs::rename(self.names.join(&old), self.names.join(&new))
                    .map_err(at(&self.names.join(&old)))?;
                self.add_existing(&new);
            }
        }
        Ok(())
    }

    /// Fills trees and removes them, by rm(1) or itself, under their name or another.
    fn change_trees(&self, number: u64, mut rng: Prng) -> Result<(), Failure> {
        for step in 0.. {
            if self.is_over() {
                break;
            }
            let mut tree = self.trees.join(format!("tree {number} {step}"));
            self.make_tree(&tree, &mut rng, 0)?;
            if rng.one_in(2) {
                let moved = self.trees.join(format!("moved {number} {step}"));
                fs::rename(&tree, &moved).map_err(at(&tree))?;
                tree = moved;
            }
            if rng.one_in(2) {
                fs::remove_dir_all(&tree).map_err(at(&tree))?;
            } else {
                let rm = Command::new("rm").arg("-r").arg(&tree).output().map_err(at(&tree))?;
                ensure(rm.status.success(), || String::from_utf8_lossy(&rm.stderr).into_owned())?;
            }
            self.removed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn make_tree(&self, dir: &Path, rng: &mut Prng, depth: u64) -> Result<(), Failure> {
        fs::create_dir(dir).map_err(at(dir))?;
        for n in 0..rng.below(if depth == 0 { 1500 } else { 400 }) {
            make(&dir.join(format!("file {n}")))?;
        }
        if depth < TREE_DEPTH_MAX && !self.is_over() {
            for n in 0..rng.below(4) {
                self.make_tree(&dir.join(format!("dir {n}")), rng, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Lists directories along a random path, and ignores names that vanish meanwhile.
    fn walk_path(&self, _: u64, mut rng: Prng) -> Result<(), Failure> {
        while !self.is_over() {
            let mut next = Some(self.trees.clone());
            while let Some(entries) = next.take().and_then(|dir| fs::read_dir(dir).ok()) {
                let limit = usize::try_from(rng.below(800)).unwrap_or(0);
                let dirs = entries
                    .take(limit)
                    .flatten()
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
                let dirs: Vec<PathBuf> = dirs.map(|entry| entry.path()).collect();
                let picked = usize::try_from(rng.below(dirs.len() as u64)).unwrap_or(0);
                next = dirs.into_iter().nth(picked);
            }
        }
        Ok(())
    }
}

fn make(path: &Path) -> Result<(), Failure> {
    fs::File::create_new(path).map(drop).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the file system of temporary files: the storm itself must be right before it tests others.
    #[test]
    fn a_storm_finds_nothing_where_files_are_local() {
        let dir = std::env::temp_dir().join(format!("terrane-storm-{}", std::process::id()));
        let done = storm(&dir, 1, Duration::from_millis(300)).unwrap();
        assert!(done.changes > 0, "{done:?}");
        assert!(!dir.exists());
    }
}
