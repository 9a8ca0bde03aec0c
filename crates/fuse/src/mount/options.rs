//! Mount options.
//!
//! They come from `-o` on a command line or from the fourth field of fstab. An unknown option is refused:
//! silently dropping it would silently break what it promises. Options that mount(8) and systemd keep for
//! themselves are known and ignored.

use super::MountEntry;
use crate::cache_policy::CachePolicy;
use rustix::mount::MountFlags;
use std::fmt;
use std::time::Duration;
use terrane_dataset::{AclType, Dataset, XattrPlacement};
use terrane_posix::AccessTimes;

/// How a dataset is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What `mount` shows as the source. It must equal fstab's first field, or `mount -a` mounts twice.
    pub source: String,
    /// Changes are refused (`ro`).
    pub read_only: bool,
    /// Users other than the one that mounts may access it.
    pub allow_other: bool,
    /// The kernel checks modes and owners. Without this nothing does, so a mount that other users may access
    /// then has neither `dev` nor `suid`.
    pub default_permissions: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-id bits of programs have an effect.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Symbolic links are not followed, Linux 5.10.
    pub nosymfollow: bool,
    /// When reads update access times.
    pub atime: Atime,
    /// Every write is committed before it is answered.
    pub sync: bool,
    /// Changes of directories are committed before they are answered.
    pub dirsync: bool,
    /// Lifetimes in the kernel's caches.
    pub cache: CachePolicy,
    /// Requests come through rings (FUSE over io_uring) where the kernel supports it; such a mount ends with
    /// its server.
    pub uring: bool,
    /// Extended attributes are served.
    pub xattrs: bool,
    /// Access control lists are served, and the kernel checks them; only with `xattrs` and
    /// `default_permissions`.
    pub acls: bool,
    /// Threads that read requests, 3..=64. `None`: [`THREADS_DEFAULT`].
    pub threads: Option<usize>,
    /// Background requests that the kernel may have in flight (prefetch, write-back of mappings), 1..=65535.
    pub max_background: u16,
}

/// When a read updates the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Not at all (`noatime`).
    Never,
    /// Not for directories.
    NoDirectories,
    /// If the access time is older than the modification time, and once a day.
    Relative,
    /// On every read (`strictatime`).
    Always,
}

impl From<Atime> for AccessTimes {
    fn from(atime: Atime) -> AccessTimes {
        match atime {
            Atime::Never => AccessTimes::Never,
            Atime::NoDirectories => AccessTimes::NeverForDirectories,
            // What the kernel shows if no option was given.
            Atime::Relative => AccessTimes::AsProperty,
            Atime::Always => AccessTimes::Always,
        }
    }
}

impl Atime {
    /// What holds for a file system with these mounts. The server does not learn through which mount a read
    /// comes, so it keeps the times that any one of them wants.
    pub fn of_mounts<'a>(mounts: impl IntoIterator<Item = &'a MountEntry>) -> Option<Atime> {
        let wants = |atime: &Atime| match atime {
            Atime::Never => 0,
            Atime::NoDirectories => 1,
            Atime::Relative => 2,
            Atime::Always => 3,
        };
        mounts.into_iter().map(Atime::of_mount).max_by_key(wants)
    }

    /// By the options in the kernel's table.
    fn of_mount(mount: &MountEntry) -> Atime {
        let has = |word: &str| mount.options.split(',').any(|has| has == word);
        match () {
            () if has("noatime") => Atime::Never,
            () if has("nodiratime") => Atime::NoDirectories,
            () if has("relatime") => Atime::Relative,
            () => Atime::Always,
        }
    }
}

/// An unknown option, or one that does not take this value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The option as it was given, with its value.
    pub word: String,
    /// What is accepted instead, as it ends "should be ...".
    pub expected: &'static str,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount option {:?}: should be {}", self.word, self.expected)
    }
}

impl std::error::Error for OptionError {}

/// Threads that read requests, by default.
pub const THREADS_DEFAULT: usize = 16;
/// One that may wait, two that may not.
pub const THREADS_MIN: usize = 3;
/// Largest accepted number of threads that read requests.
pub const THREADS_MAX: usize = 64;

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "terrane".to_owned(),
            read_only: false,
            allow_other: false,
            default_permissions: true,
            dev: false,
            suid: false,
            exec: true,
            nosymfollow: false,
            atime: Atime::Relative,
            sync: false,
            dirsync: false,
            cache: CachePolicy::default(),
            uring: false,
            xattrs: true,
            acls: false,
            threads: None,
            max_background: 64,
        }
    }
}

impl MountOptions {
    /// Defaults for this source, for a superuser's mount: every user may access it, devices and set-id
    /// programs work.
    pub fn for_root(source: impl Into<String>) -> Self {
        MountOptions {
            allow_other: true,
            dev: true,
            suid: true,
            source: source.into(),
            ..MountOptions::default()
        }
    }

    /// The same, with the options that the dataset's properties set.
    pub fn with_dataset_options(self, dataset: &Dataset) -> MountOptions {
        let xattrs = dataset.xattr_placement() != XattrPlacement::Off;
        MountOptions { xattrs, acls: dataset.acl_type() == AclType::Posix, ..self }
    }

    /// The same, with the per-mount options of `other`.
    pub fn with_mount_options(self, other: &MountOptions) -> MountOptions {
        let MountOptions { read_only, dev, suid, exec, nosymfollow, atime, .. } = *other;
        MountOptions { read_only, dev, suid, exec, nosymfollow, atime, source: other.source.clone(), ..self }
    }

    /// Every user may access and change everything, so any user may have made any file. Such a mount must
    /// allow neither set-id programs nor devices.
    pub fn is_open_to_all(&self) -> bool {
        self.allow_other && !self.default_permissions
    }

    /// The result once all options were applied. Where nothing checks permissions, other users get access
    /// only by an explicit option. `allow_other`: whether it was given.
    #[must_use]
    pub fn resolved(self, allow_other: bool) -> MountOptions {
        let options = MountOptions {
            allow_other: self.allow_other && (self.default_permissions || allow_other),
            ..self
        };
        let closed = !options.is_open_to_all();
        MountOptions { suid: options.suid && closed, dev: options.dev && closed, ..options }
    }

    /// The same for another mount of a mounted file system, whose own options hold for all its mounts.
    #[must_use]
    pub fn with_file_system_options(self, row: &MountEntry) -> MountOptions {
        let (allow_other, default_permissions) = (row.has("allow_other"), row.has("default_permissions"));
        MountOptions { allow_other, default_permissions, ..self }
    }

    /// Applies options separated by commas, later ones overriding earlier ones.
    pub fn apply(&mut self, words: &str) -> Result<(), OptionError> {
        words.split(',').filter(|word| !word.is_empty()).try_for_each(|word| self.apply_word(word))
    }

    fn apply_word(&mut self, word: &str) -> Result<(), OptionError> {
        if let Some((key, value)) = word.split_once('=') {
            return self.apply_value(word, key, value);
        }
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.default_permissions = true,
            "no_default_permissions" => self.default_permissions = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "nosymfollow" => self.nosymfollow = true,
            "symfollow" => self.nosymfollow = false,
            "noatime" => self.atime = Atime::Never,
            "nodiratime" => self.atime = Atime::NoDirectories,
            "relatime" | "atime" | "diratime" | "nostrictatime" => self.atime = Atime::Relative,
            "strictatime" => self.atime = Atime::Always,
            "sync" => self.sync = true,
            "async" => (self.sync, self.dirsync) = (false, false),
            "dirsync" => self.dirsync = true,
            "writeback" | "nowriteback" => {
                let expected = "left out: writes always go to the server at once (decision 20)";
                return Err(OptionError { word: word.to_owned(), expected });
            }
            "direct_io" => self.cache.direct_io = true,
            "nodirect_io" => self.cache.direct_io = false,
            "uring" => self.uring = true,
            "nouring" => self.uring = false,
            "birth_times" => self.cache.birth_times = true,
            "nobirth_times" => self.cache.birth_times = false,
            // Meant for mount(8), systemd, or readers of fstab.
            "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group" | "_netdev"
            | "nofail" => {}
            // These hold with and without the option: times wait for the next commit, and every change has a
            // change time of its own.
            "lazytime" | "nolazytime" | "iversion" | "noiversion" | "silent" | "loud" | "nomand" => {}
            _ if word.starts_with("x-") || word.starts_with("X-") => {}
            _ => return Err(OptionError { word: word.to_owned(), expected: "a known option" }),
        }
        Ok(())
    }

    fn apply_value(&mut self, word: &str, key: &str, value: &str) -> Result<(), OptionError> {
        let refuse = |expected| OptionError { word: word.to_owned(), expected };
        let seconds = || {
            let seconds =
                value.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            seconds.ok_or(refuse("a time in seconds"))
        };
        match key {
            "fsname" | "source" => self.source = value.to_owned(),
            "threads" => {
                let threads =
                    value.parse().ok().filter(|threads| (THREADS_MIN..=THREADS_MAX).contains(threads));
                self.threads = Some(threads.ok_or(refuse("a count from 3 to 64"))?);
            }
            "max_background" => {
                let count = value.parse().ok().filter(|count| *count > 0);
                self.max_background = count.ok_or(refuse("a count from 1 to 65535"))?;
            }
            "entry_timeout" => self.cache.entry = seconds()?,
            "negative_timeout" => self.cache.negative = seconds()?,
            "attr_timeout" => self.cache.attr = seconds()?,
            _ if key.starts_with("x-") || key.starts_with("X-") || key == "comment" => {}
            _ => return Err(refuse("a known option")),
        }
        Ok(())
    }

    /// The flags of mount(2).
    pub(super) fn mount_flags(&self) -> MountFlags {
        let atime = match self.atime {
            Atime::Never => MountFlags::NOATIME,
            Atime::NoDirectories => MountFlags::NODIRATIME | MountFlags::RELATIME,
            Atime::Relative => MountFlags::RELATIME,
            Atime::Always => MountFlags::STRICTATIME,
        };
        let given = [
            (self.read_only, MountFlags::RDONLY),
            (!self.dev || self.is_open_to_all(), MountFlags::NODEV),
            (!self.suid || self.is_open_to_all(), MountFlags::NOSUID),
            (!self.exec, MountFlags::NOEXEC),
            (self.nosymfollow, MountFlags::NOSYMFOLLOW),
            (self.sync, MountFlags::SYNCHRONOUS),
            (self.dirsync, MountFlags::DIRSYNC),
        ];
        given.iter().filter(|(on, _)| *on).fold(atime, |flags, (_, bit)| flags | *bit)
    }

    /// The same as per-mount flags, `MOUNT_ATTR_*`.
    pub(super) fn mount_attributes(&self) -> u64 {
        let flags = self.mount_flags();
        let given = [
            (MountFlags::RDONLY, libc::MOUNT_ATTR_RDONLY),
            (MountFlags::NODEV, libc::MOUNT_ATTR_NODEV),
            (MountFlags::NOSUID, libc::MOUNT_ATTR_NOSUID),
            (MountFlags::NOEXEC, libc::MOUNT_ATTR_NOEXEC),
            (MountFlags::NOSYMFOLLOW, libc::MOUNT_ATTR_NOSYMFOLLOW),
            (MountFlags::NODIRATIME, libc::MOUNT_ATTR_NODIRATIME),
            (MountFlags::NOATIME, libc::MOUNT_ATTR_NOATIME),
            (MountFlags::STRICTATIME, libc::MOUNT_ATTR_STRICTATIME),
        ];
        given.iter().filter(|(flag, _)| flags.contains(*flag)).fold(0, |set, (_, attribute)| set | attribute)
    }

    /// Options that only the kernel's FUSE understands.
    fn fuse_options(&self) -> impl Iterator<Item = &'static str> {
        let words = [(self.default_permissions, "default_permissions"), (self.allow_other, "allow_other")];
        words.into_iter().filter_map(|(on, word)| on.then_some(word))
    }

    /// The data argument of mount(2), for this descriptor and mount point.
    pub(super) fn kernel_data(&self, fd: i32, root_mode: u32, uid: u32, gid: u32) -> String {
        let mut data = format!("fd={fd},rootmode={root_mode:o},user_id={uid},group_id={gid}");
        for word in self.fuse_options() {
            data.push(',');
            data.push_str(word);
        }
        data
    }

    /// The `-o` argument of fusermount3, which sets descriptor, root mode and users itself.
    pub(super) fn fusermount_options(&self, subtype: &str) -> String {
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        let mut words = format!("fsname={source},subtype={subtype}");
        let flags = [
            if self.read_only { "ro" } else { "rw" },
            if self.dev && !self.is_open_to_all() { "dev" } else { "nodev" },
            if self.suid && !self.is_open_to_all() { "suid" } else { "nosuid" },
            if self.exec { "exec" } else { "noexec" },
        ];
        // fusermount3 has no option for relatime, which is the kernel's default.
        let times = match self.atime {
            Atime::Never => Some("noatime"),
            Atime::Always => Some("atime"),
            Atime::NoDirectories | Atime::Relative => None,
        };
        let syncs = [(self.sync, "sync"), (self.dirsync, "dirsync")];
        let syncs = syncs.into_iter().chain([(self.nosymfollow, "nosymfollow")]);
        let syncs = syncs.filter_map(|(on, word)| on.then_some(word));
        for word in flags.into_iter().chain(times).chain(syncs).chain(self.fuse_options()) {
            words.push(',');
            words.push_str(word);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::for_root("tank/home");
        options.apply(words).map(|()| options)
    }

    #[test]
    fn words_of_fstab_are_taken_and_strangers_are_refused() {
        let options = parsed(
            "rw,noatime,nofail,_netdev,x-systemd.automount,X-mount.mkdir=0755,threads=4,attr_timeout=1.5,",
        )
        .unwrap();
        assert_eq!((options.atime, options.threads), (Atime::Never, Some(4)));
        assert_eq!(options.cache.attr, Duration::from_millis(1500));
        for word in
            "zfsutil threads=2 threads=many entry_timeout=-1 max_background=0 ro=1 fd=3 writeback".split(' ')
        {
            assert_eq!(parsed(word).unwrap_err().word, word);
        }
    }

    #[test]
    fn the_kernel_gets_flags_and_data() {
        let options = parsed("ro,nodev,noexec,relatime").unwrap();
        let expected = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RELATIME;
        assert_eq!(options.mount_flags(), expected);
        let data = options.kernel_data(7, 0o40755, 0, 0);
        assert_eq!(data, "fd=7,rootmode=40755,user_id=0,group_id=0,default_permissions,allow_other");
    }

    #[test]
    fn mount_attributes_equal_mount_flags() {
        let attributes = |words| parsed(words).unwrap().mount_attributes();
        assert_eq!(attributes(""), 0);
        let all = libc::MOUNT_ATTR_RDONLY
            | libc::MOUNT_ATTR_NODEV
            | libc::MOUNT_ATTR_NOSUID
            | libc::MOUNT_ATTR_NOEXEC
            | libc::MOUNT_ATTR_NOSYMFOLLOW
            | libc::MOUNT_ATTR_NOATIME;
        assert_eq!(attributes("ro,nodev,nosuid,noexec,nosymfollow,noatime"), all);
        assert_eq!(attributes("nodiratime"), libc::MOUNT_ATTR_NODIRATIME);
        assert_eq!(attributes("strictatime"), libc::MOUNT_ATTR_STRICTATIME);
    }

    #[test]
    fn a_file_system_keeps_the_times_that_one_of_its_places_wants() {
        let mount = |options: &str| MountEntry {
            id: 1,
            dev: "0:53".into(),
            dir: "/mnt".into(),
            source: "tank".into(),
            options: options.into(),
            super_options: "rw".into(),
        };
        let of =
            |words: &[&str]| Atime::of_mounts(&words.iter().map(|words| mount(words)).collect::<Vec<_>>());
        assert_eq!(of(&["rw,noatime"]), Some(Atime::Never));
        assert_eq!(of(&["rw,noatime", "rw,nodiratime,relatime"]), Some(Atime::NoDirectories));
        assert_eq!(of(&["rw,relatime", "ro,noatime"]), Some(Atime::Relative));
        assert_eq!(of(&["rw", "ro,noatime"]), Some(Atime::Always));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn words_that_every_file_system_takes_are_taken() {
        let words = "lazytime,nolazytime,iversion,noiversion,silent,loud,nomand,symfollow";
        assert_eq!(parsed(words), parsed(""));
        assert!(parsed("nosymfollow").unwrap().mount_flags().contains(MountFlags::NOSYMFOLLOW));
    }

    #[test]
    fn where_nobody_checks_permissions_nobody_gets_anothers_identity() {
        const BOTH: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
        let flags = |options: &MountOptions| options.mount_flags() & BOTH;
        let open = parsed("no_default_permissions,allow_other,suid,dev").unwrap();
        assert!(open.is_open_to_all());
        assert_eq!(flags(&open), BOTH, "also where nobody has settled it");
        assert!(open.fusermount_options("terrane").contains(",nodev,nosuid,"));
        let resolved = open.resolved(true);
        assert!(resolved.allow_other && !resolved.suid && !resolved.dev);
        // `allow_other` was not given: it was root's default.
        let closed = parsed("no_default_permissions").unwrap().resolved(false);
        assert!(!closed.allow_other && closed.suid && closed.dev);
        assert!(flags(&closed).is_empty());
        let usual = parsed("").unwrap().resolved(false);
        assert!(usual.allow_other && flags(&usual).is_empty());
    }

    #[test]
    fn a_source_cannot_smuggle_options_to_the_helper() {
        let options = MountOptions { source: r"a,suid\b".to_owned(), ..MountOptions::default() };
        let words = options.fusermount_options("terrane");
        assert_eq!(words, r"fsname=a\,suid\\b,subtype=terrane,rw,nodev,nosuid,exec,default_permissions");
    }
}
