//! Finds the pool that a word on the command line means, by registry and labels.

use crate::bucket_note;
use crate::failure::{Failure, Outcome};
use crate::registry::{Registry, is_name};
use crate::suggest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use terrane_bucket::location::is_url;
use terrane_device::{Backing, Identity, OpenMode, PathKind, UnlockedReader};
use terrane_format::label::Label;

/// The pool that a word on the command line means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub name: String,
    /// Absolute, without links.
    pub path: PathBuf,
    /// From the label; `None` if only the registry was read.
    pub id: Option<u64>,
}

/// Finds what `word` means: a pool that was created or mounted here, or the path of a device.
///
/// # Errors
/// If no such pool is known, or the path is not a pool: then the message says what was found there.
pub fn find(registry: &Registry, word: &str) -> Outcome<Target> {
    if is_url(word) {
        return find_at(&bucket_note::note_of(registry, &bucket_note::location(word, &[])?)?);
    }
    let known = registry.pools()?;
    if let Some(path) = known.get(word) {
        return Ok(Target { name: word.to_owned(), path: path.clone(), id: None });
    }
    let path = Path::new(word);
    if !word.contains('/') && path.symlink_metadata().is_err() {
        return Err(unknown_pool(word, &known));
    }
    let path = path.canonicalize().map_err(Failure::io("finding", path))?;
    find_at(&path)
}

/// Finds the pool, and the path of the data set or snapshot in it, that `word` means: `tank/home/ann`, `tank/home@monday`.
/// The name of a pool means its root data set, whose path is `""`.
///
/// # Errors
/// As [`find`]. Does not check whether the data set exists.
pub fn find_mountable(registry: &Registry, word: &str) -> Outcome<(Target, String)> {
    if is_url(word) {
        return Ok((find(registry, word)?, String::new()));
    }
    let known = registry.pools()?;
    let Some((pool, path)) = split_mountable(word).filter(|_| !known.contains_key(word)) else {
        return Ok((find(registry, word)?, String::new()));
    };
    if known.contains_key(pool) {
        return Ok((find(registry, pool)?, path.to_owned()));
    }
    match find(registry, word) {
        // No file has this path, so the word was probably meant as the name of a data set.
        Err(_) if Path::new(word).symlink_metadata().is_err() => Err(unknown_pool(pool, &known)),
        found => Ok((found?, String::new())),
    }
}

/// Splits the name of a data set or snapshot into the pool's name and the path in the pool. `None`: the word has another
/// form.
pub fn split_mountable(word: &str) -> Option<(&str, &str)> {
    let at = word.find(['/', '@'])?;
    let (pool, rest) = word.split_at_checked(at)?;
    let path = rest.strip_prefix('/').unwrap_or(rest);
    (is_name(pool) && !path.is_empty()).then_some((pool, path))
}

/// The pool on the device at this path. Its name need not lead to it for other commands.
pub fn find_at(path: &Path) -> Outcome<Target> {
    let label = read_label(path)?;
    let id = Some(label.id());
    Ok(Target { name: label.name, path: path.to_owned(), id })
}

/// The pool that is known by this name, wherever it is or was.
pub fn find_known(registry: &Registry, name: &str) -> Outcome<Target> {
    let known = registry.pools()?;
    let path = known.get(name).cloned().ok_or_else(|| unknown_pool(name, &known))?;
    Ok(Target { name: name.to_owned(), path, id: None })
}

/// Where the pool of this name is, if it still exists and is not the one at `path`.
pub fn other_pool_named(registry: &Registry, name: &str, path: &Path) -> Outcome<Option<PathBuf>> {
    let Some(known) = registry.pools()?.remove(name) else { return Ok(None) };
    let is_same = match (Identity::of(path), Identity::of(&known)) {
        (Ok(path), Ok(known)) => path == known,
        _ => false,
    };
    let is_there = || read_label(&known).is_ok_and(|label| label.name == name);
    Ok(if !is_same && is_there() { Some(known) } else { None })
}

fn unknown_pool(word: &str, known: &BTreeMap<String, PathBuf>) -> Failure {
    let hint = suggest::hint(word, known.keys().map(String::as_str));
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Failure(format!(
        "unknown pool {word:?}; known pools: {names}; use the path of its device, or see `terrane pool import`{hint}"
    ))
}

/// The label of the pool at `path`, read without a lock: the pool may be in use.
pub fn read_label(path: &Path) -> Outcome<Label> {
    if let Some(location) = bucket_note::read(path) {
        return validate_name(path, bucket_note::label_at(&location)?);
    }
    let probe = terrane_device::probe(path)?;
    let refuse =
        |found: &str| Failure::refused(path.display(), "a Terrane pool", found, "name a pool's device");
    match probe.kind {
        PathKind::Directory => return Err(refuse("a directory")),
        PathKind::Other => return Err(refuse("neither a regular file nor a block device")),
        PathKind::Regular | PathKind::Block if probe.size == 0 => return Err(refuse("an empty file")),
        PathKind::Regular | PathKind::Block => {}
    }
    drop(UnlockedReader::open(path)?);
    match probe_label(path, probe.size) {
        Some(label) => validate_name(path, label),
        None => label_of(&Backing::open(path, OpenMode::ReadOnly)?),
    }
}

/// The label of an open device; else a failure that says what it holds.
pub fn label_of(backing: &Backing) -> Outcome<Label> {
    let mut read = |offset: u64, buf: &mut [u8]| backing.read_at(offset, buf).is_ok();
    if let Some(probe) = terrane_pool::probe(&mut read, backing.size()) {
        return validate_name(Path::new(backing.name()), probe.label);
    }
    let found = terrane_device::identify_foreign(backing);
    let found = found.unwrap_or_else(|| "nothing but zeros".to_owned());
    Err(Failure::refused(backing.name(), "a Terrane pool", found, "name a pool's device"))
}

fn validate_name(path: &Path, label: Label) -> Outcome<Label> {
    if is_name(&label.name) {
        return Ok(label);
    }
    let found = format!("{:?}", label.name);
    Err(Failure::refused(path.display(), "a pool with a valid name", found, "restore its label"))
}

/// The label in a file or device of this size, if there is one and it can be read.
pub fn probe_label(path: &Path, bytes: u64) -> Option<Label> {
    if let Some(location) = bucket_note::read(path) {
        return bucket_note::label_at(&location).ok();
    }
    let peek = UnlockedReader::open(path).ok()?;
    let mut read = |offset: u64, buf: &mut [u8]| peek.read_at(offset, buf).is_ok();
    terrane_pool::probe(&mut read, bytes).map(|probe| probe.label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sets_and_snapshots_are_told_from_paths() {
        assert_eq!(split_mountable("tank/home/ann"), Some(("tank", "home/ann")));
        assert_eq!(split_mountable("tank/home@monday"), Some(("tank", "home@monday")));
        assert_eq!(split_mountable("tank@monday"), Some(("tank", "@monday")));
        for word in ["tank", "tank/", "/dev/sdb", "./tank/home", "../a", "@monday", "a b/c", ""] {
            assert_eq!(split_mountable(word), None, "{word}");
        }
    }
}
