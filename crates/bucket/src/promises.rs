//! Finds out whether a store keeps its word.
//!
//! Some stores take a condition and ignore it, or judge it after they have written. With such a store two machines
//! could both believe that they have committed, so a pool is not made there. Lists of stores that are able age; a trial
//! does not.

use crate::dir::random;
use crate::store::{Store, StoreError, Version};
use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Clients that race for one name.
const RACERS: usize = 8;
/// Races of each kind.
const ROUNDS: usize = 4;

/// What a store was found to do wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A request failed, so nothing is known.
    Failed(StoreError),
    /// A promise of [`Store`] was broken; the text says which.
    Broken(String),
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Breach::Failed(error) => error.fmt(f),
            Breach::Broken(text) => f.write_str(text),
        }
    }
}

impl From<StoreError> for Breach {
    fn from(error: StoreError) -> Breach {
        Breach::Failed(error)
    }
}

fn expect(holds: bool, text: &str) -> Result<(), Breach> {
    if holds { Ok(()) } else { Err(Breach::Broken(text.to_owned())) }
}

/// Tries each promise below the name `probe/`, where nothing stays.
///
/// # Errors
/// The first promise that is broken, or a request that failed.
pub fn verify(store: &dyn Store) -> Result<(), Breach> {
    let prefix = format!("probe/{:016x}/", random());
    let outcome = verify_below(store, &prefix);
    let left = store.list(&prefix, "")?;
    store.delete(&left.into_iter().map(|found| found.key).collect::<Vec<_>>())?;
    outcome?;
    expect(store.list(&prefix, "")?.is_empty(), "objects are listed after they were deleted")
}

fn verify_below(store: &dyn Store, prefix: &str) -> Result<(), Breach> {
    let key = |name: &str| format!("{prefix}{name}");
    expect(store.get(&key("none"), 16)?.is_none(), "an object that was never made exists")?;
    let is_missing = matches!(store.read(&key("none"), 0, &mut [0; 4]), Err(StoreError::Missing));
    expect(is_missing, "a range of an object that does not exist can be read, or fails in another way")?;

    store.create(&key("one"), &Bytes::from_static(b"first content"))?;
    let again = store.create(&key("one"), &Bytes::from_static(b"other"));
    expect(
        again == Err(StoreError::Exists),
        "an object is made although it exists (If-None-Match is ignored)",
    )?;
    let mut range = [0; 7];
    store.read(&key("one"), 6, &mut range)?;
    expect(&range == b"content", "a range is not what was put")?;
    let listed = store.list(prefix, "")?;
    let is_listed =
        listed.iter().map(|found| (found.key.as_str(), found.len)).eq([(key("one").as_str(), 13)]);
    expect(is_listed, "a list does not show what was put before it")?;
    let parent = prefix.split_inclusive('/').next().unwrap_or(prefix);
    let children = store.list_children(parent)?;
    expect(
        children.iter().any(|child| child == prefix) && store.list_children(prefix)? == [key("one")],
        "a list by levels does not show what was put before it",
    )?;

    let stale = Version("\"00000000000000000000000000000000\"".to_owned());
    let missing = store.swap(&key("root"), b"0", Some(&stale));
    expect(
        missing == Err(StoreError::Changed),
        "an object that does not exist is replaced (If-Match is ignored)",
    )?;
    let first = store.swap(&key("root"), b"1", None)?;
    let twice = store.swap(&key("root"), b"2", None);
    expect(
        twice == Err(StoreError::Changed),
        "an object is made although it exists (If-None-Match is ignored)",
    )?;
    let second = store.swap(&key("root"), b"2", Some(&first))?;
    let late = store.swap(&key("root"), b"3", Some(&first));
    expect(late == Err(StoreError::Changed), "an old version is replaced (If-Match is ignored)")?;
    let found = store.get(&key("root"), 16)?;
    expect(
        found == Some((b"2".to_vec(), second)),
        "an object is not what was put last, or has another version",
    )?;

    for round in 0..ROUNDS {
        let name = key(&format!("made{round}"));
        let winners = race(&|racer| store.create(&name, &racer.to_string().into()))?;
        expect(winners == 1, &format!("{winners} of {RACERS} clients made the same object"))?;
        let (_, version) = store.get(&key("root"), 16)?.ok_or(StoreError::Missing)?;
        let replace = |racer: usize| {
            store.swap(&key("root"), format!("{round} {racer}").as_bytes(), Some(&version)).map(drop)
        };
        let winners = race(&replace)?;
        expect(winners == 1, &format!("{winners} of {RACERS} clients replaced the same version"))?;
    }
    Ok(())
}

/// How many of the clients won.
fn race(once: &(dyn Fn(usize) -> Result<(), StoreError> + Sync)) -> Result<usize, StoreError> {
    let winners = AtomicUsize::new(0);
    let failed = parking_lot::Mutex::new(None);
    std::thread::scope(|scope| {
        for racer in 0..RACERS {
            let (winners, failed) = (&winners, &failed);
            scope.spawn(move || match once(racer) {
                Ok(()) => drop(winners.fetch_add(1, Ordering::Relaxed)),
                Err(StoreError::Exists | StoreError::Changed) => {}
                Err(error) => drop(failed.lock().insert(error)),
            });
        }
    });
    let failed = failed.into_inner();
    failed.map_or_else(|| Ok(winners.into_inner()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::DirStore;
    use crate::memory::{Ignored, MemoryStore};

    #[test]
    fn stores_that_keep_their_word_pass_and_are_left_as_they_were() {
        let memory = MemoryStore::default();
        memory.create("other", &Bytes::from_static(b"x")).unwrap();
        assert_eq!(verify(&memory), Ok(()));
        assert_eq!(memory.list("", "").unwrap().len(), 1);
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path(), true).unwrap();
        assert_eq!(verify(&store), Ok(()));
        assert_eq!(store.list("", "").unwrap(), []);
    }

    #[test]
    fn stores_that_ignore_a_condition_are_named() {
        for (condition, header) in [(Ignored::Absence, "If-None-Match"), (Ignored::Version, "If-Match")] {
            let store = MemoryStore::that_ignores(condition);
            let Err(Breach::Broken(text)) = verify(&store) else { panic!("{condition:?} passed") };
            assert!(text.contains(header), "{text}");
            assert_eq!(store.list("", "").unwrap(), []);
        }
    }
}
