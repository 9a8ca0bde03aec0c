//! The registry: names of pools, and where their devices are.
//!
//! A pool's name is in its label. To find the label by the name, the registry records where it was. That is a
//! file `pools` with a line `name=/path` for each pool that was created or mounted here; it survives a
//! reboot. While a pool is mounted, the *runtime directory* holds its daemon's socket `NAME.sock`, its
//! supervisor's `NAME.supervisor` with the supervisor's name beside it, and the log `NAME.log`. `NAME.mount`
//! is held while a mount begins. None of them is needed for the data: every command also takes the device's
//! path.
//!
//! The directory of names of the superuser may lie on a file system that is mounted late. So the list of
//! [mounts at boot](crate::boot_mounts) is in `/etc/terrane`.
//!
//! Earlier versions kept the names in the runtime directory too, where a reboot lost them. Names found there
//! are known, and move with the first change.
//!
//! Invariants:
//! * `pools` is replaced as a whole, so a reader sees all of it, old or new.
//! * No name becomes part of a path before [`is_name`] has checked it, because names come from labels, and
//!   labels from anywhere.
//! * No directory is used that another user could write to.

use crate::boot_mounts::{self, PoolMounts};
use crate::failure::{Failure, Outcome};
use crate::sys;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The state directory, instead of the usual places.
pub const STATE_DIR_VARIABLE: &str = "TERRANE_STATE_DIR";

/// How long a mount waits for another one of its name to finish.
const MOUNT_LOCK_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Registry {
    /// The directory of names.
    names: PathBuf,
    /// The directory of sockets and logs.
    dir: PathBuf,
    /// The list of mounts at boot. `None`: the system mounts nothing for this user.
    boot_mounts: Option<PathBuf>,
}

/// Whether this can be a pool's name: a letter, then letters, digits and `_ - . :`.
pub fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.len() <= 200
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

impl Registry {
    /// The registry of this user. `$TERRANE_STATE_DIR` holds all of it. Else names are in `/var/lib/terrane`
    /// and the rest in `/run/terrane` for the superuser; for others in `~/.local/state/terrane` and
    /// `$XDG_RUNTIME_DIR/terrane`.
    ///
    /// # Errors
    /// If there is no such directory, or other users own it or may write to it.
    pub fn of_this_user() -> Outcome<Registry> {
        let set =
            |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let uid =
            sys::process_user().map_err(Failure::io("reading the user of", Path::new("/proc/self")))?.uid;
        let registry = if let Some(dir) = set(STATE_DIR_VARIABLE) {
            let dir = std::path::absolute(&dir).map_err(Failure::io("finding", &dir))?;
            let boot_mounts = boot_mounts_file();
            Registry { names: dir.clone(), dir, boot_mounts: Some(boot_mounts) }
        } else if uid == 0 {
            let boot_mounts = Some(boot_mounts_file());
            Registry { names: "/var/lib/terrane".into(), dir: "/run/terrane".into(), boot_mounts }
        } else {
            // A process that mount(8) starts for a user has neither variable.
            let home = || set("HOME").or_else(|| home_of(&std::fs::read("/etc/passwd").ok()?, uid));
            let state = set("XDG_STATE_HOME").or_else(|| Some(home()?.join(".local/state")));
            let run = PathBuf::from(format!("/run/user/{uid}"));
            let run = set("XDG_RUNTIME_DIR").or_else(|| Some(run).filter(|dir| dir.is_dir()));
            let [names, dir] = [state, run].map(|dir| dir.map(|dir| dir.join("terrane")));
            match (names, dir) {
                (Some(names), Some(dir)) => Registry { names, dir, boot_mounts: None },
                (Some(only), None) | (None, Some(only)) => {
                    Registry { names: only.clone(), dir: only, boot_mounts: None }
                }
                (None, None) => {
                    let text = format!("no directory for names of pools; set {STATE_DIR_VARIABLE} to one");
                    return Err(Failure(text));
                }
            }
        };
        for dir in [&registry.names, &registry.dir] {
            validate_dir(dir, uid)?;
        }
        Ok(registry)
    }

    /// The socket on which the daemon of a mounted pool answers.
    pub fn control_socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    /// The socket on which a mount's supervisor receives messages of its server.
    pub fn supervisor_socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.supervisor"))
    }

    /// Where the note of a pool in an object store is. The directory is made.
    pub fn note_path(&self, name: &str) -> Outcome<PathBuf> {
        make_dir(&self.names)?;
        let dir = self.names.join("buckets");
        make_dir(&dir)?;
        Ok(dir.join(name))
    }

    /// The log of a mount in the background.
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    /// All known pools.
    pub fn pools(&self) -> Outcome<BTreeMap<String, PathBuf>> {
        let mut pools = BTreeMap::new();
        for path in self.legacy_names_file().into_iter().chain([self.names.join("pools")]) {
            match std::fs::read(&path) {
                Ok(raw) => pools.extend(parse(&raw)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::io("reading", &path)(error)),
            }
        }
        Ok(pools)
    }

    /// Where earlier versions kept names.
    fn legacy_names_file(&self) -> Option<PathBuf> {
        (self.names != self.dir).then(|| self.dir.join("pools"))
    }

    /// Records a name. Returns what it meant before.
    pub fn register(&self, name: &str, device: &Path) -> Outcome<Option<PathBuf>> {
        if !is_name(name) || device.as_os_str().as_bytes().contains(&b'\n') {
            return Err(Failure(format!(
                "pool {name:?} at {device:?}: name not registered: invalid name or path"
            )));
        }
        let mut before = None;
        self.change(|pools| {
            before = pools.insert(name.to_owned(), device.to_owned());
            before.as_deref() != Some(device)
        })?;
        Ok(before)
    }

    /// Records where the data sets of a pool are to be mounted at boot. `mounts` is asked under the lock, so that of two changes the
    /// later one is recorded last.
    pub fn record_boot_mounts(&self, pool: &str, mounts: impl FnOnce() -> Outcome<PoolMounts>) -> Outcome {
        let Some(path) = &self.boot_mounts else { return Ok(()) };
        let _lock = self.lock()?;
        boot_mounts::change(path, pool, mounts()?)
    }

    /// Forgets a pool that lies at these paths. If it was named by a path, its name may mean another one.
    pub fn forget_at(&self, name: &str, paths: &[PathBuf]) -> Outcome {
        self.forget_if(name, |known| paths.contains(known))
    }

    pub fn forget(&self, name: &str) -> Outcome {
        self.forget_if(name, |_| true)
    }

    fn forget_if(&self, name: &str, is_meant: impl Fn(&PathBuf) -> bool) -> Outcome {
        let mut is_gone = false;
        self.change(|pools| {
            is_gone = pools.get(name).is_some_and(is_meant) && pools.remove(name).is_some();
            is_gone
        })?;
        if is_gone && let Err(failure) = self.record_boot_mounts(name, || Ok(PoolMounts::default())) {
            log::warn!("pool {name}: mounts at boot not forgotten: {failure}");
        }
        Ok(())
    }

    /// Creates the runtime directory, for this user alone.
    pub fn make_runtime_dir(&self) -> Outcome {
        make_dir(&self.dir)
    }

    /// Serialises changes of names between processes, until the returned file is dropped. No process takes
    /// both this lock and that of sockets: the directories may be one.
    pub fn lock(&self) -> Outcome<File> {
        lock_in(&self.names)
    }

    /// Serialises changes of sockets. A mount needs only this lock: where names cannot be kept a pool is
    /// mounted by its path.
    pub fn lock_sockets(&self) -> Outcome<File> {
        lock_in(&self.dir)
    }

    /// Allows one mount of a pool of this name to begin at a time, until the returned file is dropped:
    /// supervisors and servers find each other by the name.
    pub fn lock_mount(&self, name: &str) -> Outcome<File> {
        self.make_runtime_dir()?;
        // Not `.lock`: a pool may be called `pools`.
        let path = self.dir.join(format!("{name}.mount"));
        let lock = create_private(&path).map_err(Failure::io("opening", &path))?;
        let begun = Instant::now();
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::Error(error) => return Err(Failure::io("locking", &path)(error)),
                // An import can take as long as the device needs.
                TryLockError::WouldBlock if begun.elapsed() > MOUNT_LOCK_TIMEOUT => {
                    let (at, expected) = (format!("pool {name}"), "no other mount of that name in progress");
                    let found = format!("one in progress for more than {} s", MOUNT_LOCK_TIMEOUT.as_secs());
                    return Err(Failure::refused(at, expected, found, "wait for it, or end it"));
                }
                TryLockError::WouldBlock => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Ok(lock)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, PathBuf>) -> bool) -> Outcome {
        let _lock = self.lock()?;
        let mut pools = self.pools()?;
        if !change(&mut pools) {
            return Ok(());
        }
        replace_file(&self.names.join("pools"), &serialize(&pools))?;
        match self.legacy_names_file().map(std::fs::remove_file) {
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::io("removing the old names file in", &self.dir)(error))
            }
            _ => Ok(()),
        }
    }
}

/// The list of mounts at boot, of the superuser or below `$TERRANE_STATE_DIR`.
pub fn boot_mounts_file() -> PathBuf {
    match std::env::var_os(STATE_DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("mounts"),
        None => "/etc/terrane/mounts".into(),
    }
}

/// Replaces a file as a whole. The caller holds a lock.
pub fn replace_file(path: &Path, content: &[u8]) -> Outcome {
    let next = path.with_extension("new");
    let mut file = create_private(&next).map_err(Failure::io("creating", &next))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(Failure::io("writing", &next))?;
    std::fs::rename(&next, path).map_err(Failure::io("replacing", path))
}

fn make_dir(dir: &Path) -> Outcome {
    let uid = sys::process_user()?.uid;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(Failure::io("creating the state directory", dir))?;
    validate_dir(dir, uid)
}

fn lock_in(dir: &Path) -> Outcome<File> {
    make_dir(dir)?;
    let path = dir.join("pools.lock");
    let lock = create_private(&path).map_err(Failure::io("opening", &path))?;
    lock.lock().map_err(Failure::io("locking", &path))?;
    Ok(lock)
}

/// Refuses a directory that other users can write to: they could change where names lead. A missing one is
/// created for its owner alone.
fn validate_dir(dir: &Path, uid: u32) -> Outcome {
    let Ok(link) = dir.symlink_metadata() else { return Ok(()) };
    let meta = dir.metadata().map_err(Failure::io("examining the state directory", dir))?;
    let found = match meta.mode() & 0o777 {
        _ if meta.uid() != uid => format!("owner {}", meta.uid()),
        _ if ![uid, 0].contains(&link.uid()) => format!("a symbolic link of user {}", link.uid()),
        mode if mode & 0o022 != 0 => format!("mode {mode:04o}"),
        _ => return Ok(()),
    };
    let expected = format!("a state directory of user {uid} that no other user may write to");
    let remedy = format!("chmod 700 it, or set {STATE_DIR_VARIABLE} to another");
    Err(Failure::refused(dir.display(), expected, found, remedy))
}

/// Opened empty, and never through a link.
fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

/// The home of a user according to `/etc/passwd`.
fn home_of(passwd: &[u8], uid: u32) -> Option<PathBuf> {
    let uid = uid.to_string();
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let is_own = fields.get(2) == Some(&uid.as_bytes());
        let home = PathBuf::from(OsStr::from_bytes(fields.get(5)?));
        (is_own && home.is_absolute()).then_some(home)
    })
}

/// Malformed lines are skipped: the file may have been edited, and the other pools still exist.
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

fn serialize(pools: &BTreeMap<String, PathBuf>) -> Vec<u8> {
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
        let place = dir.join("not/there/yet");
        let registry = Registry { names: place.clone(), dir: place, boot_mounts: None };
        assert!(registry.pools().unwrap().is_empty());
        registry.register("tank", Path::new("/images/tank = 1.img")).unwrap();
        registry.register("b", Path::new("/dev/sdb")).unwrap();
        registry.register("b", Path::new("/dev/sdc")).unwrap();
        registry.forget("nobody").unwrap();
        let pools = registry.pools().unwrap();
        let expected = [("b", "/dev/sdc"), ("tank", "/images/tank = 1.img")];
        assert_eq!(pools, expected.map(|(name, path)| (name.to_owned(), PathBuf::from(path))).into());
        registry.forget("b").unwrap();
        assert_eq!(registry.pools().unwrap().len(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn names_of_before_are_known_and_move() {
        let dir = std::env::temp_dir().join(format!("terrane-registry-before-{}", std::process::id()));
        let registry = Registry { names: dir.join("lib"), dir: dir.join("run"), boot_mounts: None };
        std::fs::create_dir_all(&registry.dir).unwrap();
        std::fs::write(registry.dir.join("pools"), "a=/old/a\nb=/old/b\n").unwrap();
        assert_eq!(registry.pools().unwrap().len(), 2);
        registry.register("b", Path::new("/new/b")).unwrap();
        assert!(!registry.dir.join("pools").exists());
        let kept = std::fs::read_to_string(registry.names.join("pools")).unwrap();
        assert_eq!(kept, "a=/old/a\nb=/new/b\n");
        registry.forget("a").unwrap();
        assert_eq!(registry.pools().unwrap().len(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_mount_of_any_name_leaves_the_names_to_others() {
        let dir = std::env::temp_dir().join(format!("terrane-registry-any-{}", std::process::id()));
        let registry = Registry { names: dir.clone(), dir: dir.clone(), boot_mounts: None };
        let _mount = registry.lock_mount("pools").unwrap();
        assert!(create_private(&dir.join("pools.lock")).unwrap().try_lock().is_ok());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn no_directory_of_others_is_trusted() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = std::env::temp_dir().join(format!("terrane-registry-trust-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let uid = sys::process_user().unwrap().uid;
        let allow = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
        for (mode, fits) in [(0o700, true), (0o755, true), (0o775, false), (0o702, false)] {
            allow(mode);
            assert_eq!(validate_dir(&dir, uid).is_ok(), fits, "{mode:o}");
        }
        allow(0o700);
        assert!(validate_dir(&dir, uid + 1).unwrap_err().0.contains("of user"));
        validate_dir(&dir.join("not yet"), uid + 1).unwrap();
        // A file behind a link is not ours to overwrite.
        std::fs::write(dir.join("target"), "kept").unwrap();
        symlink(dir.join("target"), dir.join("pools.new")).unwrap();
        let registry = Registry { names: dir.clone(), dir: dir.clone(), boot_mounts: None };
        assert!(registry.register("tank", Path::new("/a")).is_err());
        assert_eq!(std::fs::read(dir.join("target")).unwrap(), b"kept");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_home_is_found_without_the_environment() {
        let passwd = b"root:x:0:0::/root:/bin/sh\nshort:x\nme:x:1000:1000:Me,,,:/srv/me:/bin/sh\n:x:7:7:::\n";
        assert_eq!(home_of(passwd, 1000), Some("/srv/me".into()));
        assert_eq!((home_of(passwd, 7), home_of(passwd, 10)), (None, None));
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let pools = parse(b"\n=\nx\nx=relative\n../x=/a\ntank=/a=b\n9=/a\n\xff=/a\nlast=/c");
        assert_eq!(serialize(&pools), b"last=/c\ntank=/a=b\n");
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        assert!(["tank", "a", "Tank_1-2.3:4"].into_iter().all(is_name));
        assert!(!["", ".", "..", "../x", "a/b", "a b", "a\n", "-a", "1a", "ä"].into_iter().any(is_name));
    }
}
