//! A directory as a store: `file:///dir`, for shared file systems and for tests.
//!
//! Each object is a file. A new one is written under a temporary name, synced, and linked: `link` fails if the name
//! exists. Replacing is done under a lock of the directory's lock file, and a version is the hash of the content.

use crate::store::{Listed, Store, StoreError, Version};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Below this name lie files that are being written. No object has it.
const TEMPORARY: &str = ".tmp";
/// How long the lock is waited for, in nanoseconds.
const LOCK_NS: u64 = 30_000_000_000;
/// Files that were being written for longer are left by a process that ended.
const LEFT: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// Locked while an object is replaced.
const LOCK: &str = ".lock";

/// Objects as files below a directory.
#[derive(Debug)]
pub struct DirStore {
    root: PathBuf,
    url: String,
    /// Makes temporary names of this process differ.
    next: AtomicU64,
    /// A sync failed. The kernel says so once; later syncs would seem to succeed.
    is_unsynced: AtomicBool,
    /// Held while directories are made or removed.
    making: Mutex<()>,
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let text = format!("{what} {}", path.display());
    move |error| StoreError::Failed(format!("{text} failed: {error}"))
}

impl DirStore {
    /// Uses the directory at `root`, an absolute path; it is made if `create` is set.
    ///
    /// # Errors
    /// `Failed` if it is no directory, or cannot be made.
    pub fn open(root: &Path, create: bool) -> Result<DirStore, StoreError> {
        if create {
            fs::create_dir_all(root.join(TEMPORARY)).map_err(failed("making", root))?;
        }
        let meta = fs::metadata(root).map_err(failed("opening", root))?;
        if !meta.is_dir() {
            return Err(StoreError::Failed(format!("{} is no directory", root.display())));
        }
        remove_left(&root.join(TEMPORARY));
        Ok(DirStore {
            root: root.to_owned(),
            url: format!("file://{}", root.display()),
            next: AtomicU64::new(0),
            is_unsynced: AtomicBool::new(false),
            making: Mutex::default(),
        })
    }

    /// The path of an object. Names come from this crate alone, but a path must never leave the directory.
    fn path(&self, key: &str) -> Result<PathBuf, StoreError> {
        let is_sound = key.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        if !is_sound {
            return Err(StoreError::Failed(format!("{key:?} is no name of an object")));
        }
        Ok(self.root.join(key))
    }

    /// Writes a file under a temporary name, durably.
    fn write_temporary(&self, body: &[u8]) -> Result<PathBuf, StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}-{:x}", std::process::id(), random());
        let path = self.root.join(TEMPORARY).join(name);
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(body)?;
            file.sync_all()
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&path);
            failed("writing", &path)(error)
        })?;
        Ok(path)
    }

    /// Makes the directories above an object, durably. The caller holds `making`: a directory that is found was synced.
    fn make_parents(&self, path: &Path) -> Result<(), StoreError> {
        let Some(parent) = path.parent().filter(|parent| !parent.is_dir()) else { return Ok(()) };
        self.make_parents(parent)?;
        match fs::create_dir(parent) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed("making", parent)(error))
            }
            _ => self.sync_parent(parent),
        }
    }

    /// Makes the name of a file durable.
    fn sync_parent(&self, path: &Path) -> Result<(), StoreError> {
        let Some(parent) = path.parent() else { return Ok(()) };
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(|error| {
            self.is_unsynced.store(true, Ordering::Relaxed);
            StoreError::Unsynced(format!("sync of {} failed: {error}", parent.display()))
        })
    }

    /// Fails if a sync has failed before.
    fn refuse_unsynced(&self) -> Result<(), StoreError> {
        match self.is_unsynced.load(Ordering::Relaxed) {
            true => Err(StoreError::Unsynced(format!("an earlier sync in {} failed", self.root.display()))),
            false => Ok(()),
        }
    }

    fn read_whole(&self, path: &Path, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("opening", path)(error)),
        };
        let mut body = Vec::new();
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        file.take(limit.saturating_add(1)).read_to_end(&mut body).map_err(failed("reading", path))?;
        if body.len() as u64 > limit {
            return Err(StoreError::Failed(format!("{} has more than {limit} bytes", path.display())));
        }
        Ok(Some(body))
    }

    fn list_below(&self, dir: &Path, prefix: &str, found: &mut Vec<Listed>) -> Result<(), StoreError> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("listing", dir)(error)),
        };
        for entry in entries {
            let path = entry.map_err(failed("listing", dir))?.path();
            let Some(key) = path.strip_prefix(&self.root).ok().and_then(Path::to_str) else { continue };
            if key.starts_with('.') || !(key.starts_with(prefix) || prefix.starts_with(key)) {
                continue;
            }
            let meta = match fs::symlink_metadata(&path) {
                Ok(meta) => meta,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("listing", &path)(error)),
            };
            if meta.is_dir() {
                self.list_below(&path, prefix, found)?;
            } else if key.starts_with(prefix) {
                found.push(Listed { key: key.to_owned(), len: meta.len() });
            }
        }
        Ok(())
    }
}

/// Locks a file, and does not wait for a holder that hangs.
fn lock_soon(file: &File) -> io::Result<()> {
    let begin = terrane_device::monotonic_ns();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if terrane_device::monotonic_ns() - begin < LOCK_NS => {
                let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
                // A signal only makes it look sooner.
                let _ = rustix::thread::nanosleep(&pause);
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Removes what processes that ended were writing. That it cannot is no reason not to go on.
fn remove_left(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > LEFT) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A number that no other process draws.
pub(crate) fn random() -> u64 {
    let mut raw = [0; 8];
    let drawn = rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty());
    if drawn != Ok(raw.len()) {
        // No kernel that runs FUSE fails here. A clock and a process are no worse than nothing.
        return terrane_wire::mix64(
            terrane_device::wall_ns() ^ u64::from(std::process::id()).rotate_left(32),
        );
    }
    u64::from_le_bytes(raw)
}

fn version_of(body: &[u8]) -> Version {
    Version(blake3::hash(body).to_hex().to_string())
}

impl Store for DirStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn create(&self, key: &str, body: &Bytes) -> Result<(), StoreError> {
        let path = self.path(key)?;
        self.refuse_unsynced()?;
        let temporary = self.write_temporary(body)?;
        let link = || {
            let making = self.making.lock();
            self.make_parents(&path)?;
            fs::hard_link(&temporary, &path).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => StoreError::Exists,
                _ => failed("making", &path)(error),
            })?;
            drop(making);
            self.sync_parent(&path)
        };
        let linked = link();
        let _ = fs::remove_file(&temporary);
        linked
    }

    fn swap(&self, key: &str, body: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        let path = self.path(key)?;
        self.refuse_unsynced()?;
        let temporary = self.write_temporary(body)?;
        let replace = || -> Result<(), StoreError> {
            let lock = self.root.join(LOCK);
            let locked = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock);
            let locked = locked.map_err(failed("opening", &lock))?;
            lock_soon(&locked).map_err(failed("locking", &lock))?;
            let present = self.read_whole(&path, usize::MAX)?.map(|body| version_of(&body));
            if present.as_ref() != expected {
                return Err(StoreError::Changed);
            }
            let _making = self.making.lock();
            self.make_parents(&path)?;
            fs::rename(&temporary, &path).map_err(failed("replacing", &path))?;
            self.sync_parent(&path)
        };
        let replaced = replace();
        let _ = fs::remove_file(&temporary);
        replaced.map(|()| version_of(body))
    }

    fn get(&self, key: &str, limit: usize) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        let body = self.read_whole(&self.path(key)?, limit)?;
        Ok(body.map(|body| {
            let version = version_of(&body);
            (body, version)
        }))
    }

    fn find(&self, key: &str) -> Result<Option<Version>, StoreError> {
        Ok(self.get(key, usize::MAX)?.map(|(_, version)| version))
    }

    fn read(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Missing,
            _ => failed("opening", &path)(error),
        })?;
        file.read_exact_at(buf, offset).map_err(failed("reading", &path))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, StoreError> {
        let mut found = Vec::new();
        self.list_below(&self.root, prefix, &mut found)?;
        found.retain(|found| found.key.as_str() > after);
        found.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(found)
    }

    fn list_children(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path(prefix.trim_end_matches('/'))?;
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed("listing", &path))?,
        };
        let child = |entry: io::Result<fs::DirEntry>| -> io::Result<Option<String>> {
            let entry = entry?;
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            Ok(entry.file_name().to_str().map(|name| format!("{prefix}{name}{slash}")))
        };
        let children: io::Result<Vec<_>> = entries.map(child).collect();
        Ok(children.map_err(failed("listing", &path))?.into_iter().flatten().collect())
    }

    fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        for key in keys {
            let path = self.path(key)?;
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("removing", &path)(error));
                }
                _ => {}
            }
            // Directories that have become empty; one that has not refuses.
            let _making = self.making.lock();
            for dir in path.ancestors().skip(1).take_while(|dir| *dir != self.root) {
                if fs::remove_dir(dir).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path(), true).unwrap();
        for key in ["", "/", "../x", "a/../b", "a//b", ".tmp/x", "/etc/passwd"] {
            assert!(
                matches!(store.create(key, &Bytes::from_static(b"x")), Err(StoreError::Failed(_))),
                "{key}"
            );
        }
    }

    #[test]
    fn a_failed_sync_is_final() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path(), true).unwrap();
        store.create("z/a", &Bytes::from_static(b"x")).unwrap();
        let is_final = |outcome: Result<(), StoreError>| matches!(outcome, Err(StoreError::Unsynced(_)));
        assert!(is_final(store.sync_parent(&dir.path().join("gone/x"))));
        assert!(
            is_final(store.create("z/b", &Bytes::from_static(b"x"))),
            "a later sync would seem to succeed"
        );
        assert!(is_final(store.swap("root", b"x", None).map(drop)));
        assert_eq!(store.find("z/a"), Ok(Some(version_of(b"x"))));
    }

    #[test]
    fn an_emptied_directory_can_be_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = DirStore::open(dir.path(), true).unwrap();
        for _ in 0..3 {
            store.create("z/1/2", &Bytes::from_static(b"x")).unwrap();
            store.delete(&["z/1/2".to_owned(), "z/never".to_owned()]).unwrap();
            assert!(!dir.path().join("z").exists());
        }
        assert_eq!(store.list("", "").unwrap(), []);
    }
}
