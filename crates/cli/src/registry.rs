//! Names of pools, and where their devices are.
//!
//! A pool's name stands in its label; to find the label by the name, somebody must remember where it was. That is the state
//! directory: a file `pools` with a line `name=/path` for each pool that was created or mounted here, and, while one is
//! mounted, its daemon's socket `NAME.sock`, its keeper's `NAME.keep` with the keeper's name beside it, and the log `NAME.log`.
//! Nothing in it is needed for the data: every command also takes the device's path.
//!
//! Invariants: `pools` is replaced whole, so that a reader sees all of it, old or new; and no name becomes part of a path
//! before [`is_name`] has seen it, because names come from labels, and labels from anywhere.

use crate::failure::{Failure, Outcome};
use crate::sys;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names the state directory instead of the usual places.
pub const STATE_DIR_VARIABLE: &str = "TERRANE_STATE_DIR";

#[derive(Clone, Debug)]
pub struct Registry {
    dir: PathBuf,
}

/// What a pool may be called: a letter, then letters, digits and `_ - . :`.
pub fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.len() <= 200
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

impl Registry {
    /// That of this user: `$TERRANE_STATE_DIR`, else `/run/terrane` for the superuser, else `$XDG_RUNTIME_DIR/terrane`, else
    /// `~/.local/state/terrane`.
    pub fn of_this_user() -> Outcome<Registry> {
        let set =
            |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(dir) = set(STATE_DIR_VARIABLE) {
            let dir = std::path::absolute(&dir).map_err(Failure::io("finding", &dir))?;
            return Ok(Registry { dir });
        }
        let (uid, _) = sys::who().map_err(Failure::io("asking who runs this:", Path::new("/proc/self")))?;
        let dir = match uid {
            0 => Some(PathBuf::from("/run/terrane")),
            _ => set("XDG_RUNTIME_DIR")
                .map(|dir| dir.join("terrane"))
                .or_else(|| set("HOME").map(|dir| dir.join(".local/state/terrane"))),
        };
        dir.map(|dir| Registry { dir }).ok_or_else(|| {
            Failure(format!("there is no place for names of pools; set {STATE_DIR_VARIABLE} to a directory"))
        })
    }

    /// The socket on which the daemon of a mounted pool answers.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    /// Where a mount's keeper listens to its server.
    pub fn keeper(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.keep"))
    }

    /// What a mount in the background has to say.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// All that is known.
    pub fn pools(&self) -> Outcome<BTreeMap<String, PathBuf>> {
        let path = self.dir.join("pools");
        match std::fs::read(&path) {
            Ok(raw) => Ok(parse(&raw)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(Failure::io("reading", &path)(error)),
        }
    }

    pub fn remember(&self, name: &str, device: &Path) -> Outcome {
        if !is_name(name) || device.as_os_str().as_bytes().contains(&b'\n') {
            return Err(Failure(format!("pool {name:?} at {device:?} cannot be remembered by name")));
        }
        self.change(|pools| pools.insert(name.to_owned(), device.to_owned()) != Some(device.to_owned()))
    }

    pub fn forget(&self, name: &str) -> Outcome {
        self.change(|pools| pools.remove(name).is_some())
    }

    /// Makes the directory, for this user alone.
    pub fn prepare(&self) -> Outcome {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(Failure::io("making the state directory", &self.dir))
    }

    /// Two processes at once must not undo each other's doing here. To the end of what is returned.
    pub fn lock(&self) -> Outcome<File> {
        self.prepare()?;
        let path = self.dir.join("pools.lock");
        let lock = File::create(&path).map_err(Failure::io("opening", &path))?;
        lock.lock().map_err(Failure::io("locking", &path))?;
        Ok(lock)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, PathBuf>) -> bool) -> Outcome {
        let _lock = self.lock()?;
        let mut pools = self.pools()?;
        if !change(&mut pools) {
            return Ok(());
        }
        let (path, next) = (self.dir.join("pools"), self.dir.join("pools.new"));
        let mut file = File::create(&next).map_err(Failure::io("making", &next))?;
        file.write_all(&print(&pools))
            .and_then(|()| file.sync_all())
            .map_err(Failure::io("writing", &next))?;
        std::fs::rename(&next, &path).map_err(Failure::io("replacing", &path))
    }
}

/// A line that is none is left out: somebody edited the file, and the other pools are still there.
fn parse(raw: &[u8]) -> BTreeMap<String, PathBuf> {
    let entry = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        let (name, path) = (line.get(..at)?, line.get(at + 1..)?);
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name))?;
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        path.is_absolute().then(|| (name.to_owned(), path))
    };
    raw.split(|byte| *byte == b'\n').filter_map(entry).collect()
}

fn print(pools: &BTreeMap<String, PathBuf>) -> Vec<u8> {
    let lines = pools.iter().map(|(name, path)| {
        let path: &OsStr = path.as_os_str();
        [name.as_bytes(), b"=", path.as_bytes(), b"\n"].concat()
    });
    lines.collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_remembered_and_forgotten() {
        let dir = std::env::temp_dir().join(format!("terrane-registry-{}", std::process::id()));
        let registry = Registry { dir: dir.join("not/there/yet") };
        assert!(registry.pools().unwrap().is_empty());
        registry.remember("tank", Path::new("/images/tank = 1.img")).unwrap();
        registry.remember("b", Path::new("/dev/sdb")).unwrap();
        registry.remember("b", Path::new("/dev/sdc")).unwrap();
        registry.forget("nobody").unwrap();
        let pools = registry.pools().unwrap();
        let expected = [("b", "/dev/sdc"), ("tank", "/images/tank = 1.img")];
        assert_eq!(pools, expected.map(|(name, path)| (name.to_owned(), PathBuf::from(path))).into());
        registry.forget("b").unwrap();
        assert_eq!(registry.pools().unwrap().len(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn lines_that_are_none_do_no_harm() {
        let pools = parse(b"\n=\nx\nx=relative\n../x=/a\ntank=/a=b\n9=/a\n\xff=/a\nlast=/c");
        assert_eq!(print(&pools), b"last=/c\ntank=/a=b\n");
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        assert!(["tank", "a", "Tank_1-2.3:4"].into_iter().all(is_name));
        assert!(!["", ".", "..", "../x", "a/b", "a b", "a\n", "-a", "1a", "ä"].into_iter().any(is_name));
    }
}
