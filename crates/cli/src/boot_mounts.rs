//! The list of data sets to mount at boot, which the systemd generator reads.
//!
//! A generator runs before any device is there, so it cannot open a pool. Therefore each command that changes where data sets belong
//! writes the list. Nothing else needs it: without it, `terrane mount -a` mounts the same data sets later.
//!
//! Invariant: the file is replaced as a whole, so the generator sees all of it, old or new.

use crate::failure::{Failure, Outcome};
use crate::registry::replace_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A data set with `canmount=on` and a path in `mountpoint`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootMount {
    /// Name of the data set, with the pool.
    pub name: String,
    pub dir: String,
}

/// What the list has of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolMounts {
    /// Paths of its devices.
    pub devices: Vec<PathBuf>,
    pub mounts: Vec<BootMount>,
}

/// By the name of the pool.
pub type BootMounts = BTreeMap<String, PoolMounts>;

/// Replaces what the list has of a pool. The caller holds the lock of the registry. A damaged list is begun anew.
pub fn change(path: &Path, pool: &str, mounts: PoolMounts) -> Outcome {
    let (mut list, is_damaged) = match read(path) {
        Ok(list) => (list, false),
        Err(failure) => {
            log::warn!("{failure}; begun anew");
            (BootMounts::new(), true)
        }
    };
    let before = list.clone();
    match mounts.mounts.is_empty() {
        true => drop(list.remove(pool)),
        false => drop(list.insert(pool.to_owned(), mounts)),
    }
    if list == before && !is_damaged {
        return Ok(());
    }
    if list.is_empty() {
        return std::fs::remove_file(path).map_err(Failure::io("removing", path));
    }
    let mut text = serde_json::to_vec_pretty(&list)?;
    text.push(b'\n');
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(Failure::io("creating", dir))?;
    }
    replace_file(path, &text)
}

/// Reads a list. There may be none yet.
pub fn read(path: &Path) -> Outcome<BootMounts> {
    match std::fs::read(path) {
        Ok(raw) => serde_json::from_slice(&raw)
            .map_err(|error| Failure(format!("list of mounts {} damaged: {error}", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BootMounts::new()),
        Err(error) => Err(Failure::io("reading", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_changed_by_pool_and_begun_anew_if_it_is_damaged() {
        let dir = std::env::temp_dir().join(format!("terrane-boot-mounts-{}", std::process::id()));
        let path = dir.join("not/there/yet/mounts");
        let of = |name: &str| PoolMounts {
            devices: vec!["/dev/sdb".into()],
            mounts: vec![BootMount { name: name.to_owned(), dir: "/srv".to_owned() }],
        };
        change(&path, "a", PoolMounts::default()).unwrap();
        assert!(!path.exists(), "nothing to record");
        change(&path, "a", of("a")).unwrap();
        change(&path, "b", of("b/c")).unwrap();
        assert_eq!(read(&path).unwrap(), [("a".to_owned(), of("a")), ("b".to_owned(), of("b/c"))].into());
        change(&path, "a", PoolMounts::default()).unwrap();
        assert_eq!(read(&path).unwrap().keys().collect::<Vec<_>>(), ["b"]);
        std::fs::write(&path, "{\"b\": 7").unwrap();
        assert!(read(&path).unwrap_err().0.contains("damaged"));
        change(&path, "c", PoolMounts::default()).unwrap();
        assert!(!path.exists(), "nothing is left to record");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
