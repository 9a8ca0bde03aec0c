//! The options after `-o`, sorted by the component that handles them.

use crate::failure::{Failure, Outcome};
use crate::help::OPTION_HELP;
use crate::memory::{BYTES_MIN, MemoryBudget};
use crate::query::Setting;
use crate::size;
use crate::sys;
use std::path::PathBuf;
use std::time::Duration;
use terrane_dataset::Property;
use terrane_fuse::MountOptions;
use terrane_pool::ImportOptions;
use terrane_wire::Txg;

/// Options of the server of a pool. It has those of its first mount.
const OF_SERVER: [&str; 9] =
    ["memory", "commit", "rewind", "on_crash", "crashproof", "record", "discard", "nodiscard", "follow"];
/// How often a mount with `follow` looks for a newer state.
pub const FOLLOW_PERIOD: Duration = Duration::from_secs(1);

/// The default options of a mount of this user.
pub fn defaults(source: String) -> Outcome<MountOptions> {
    Ok(match sys::process_user()?.uid {
        0 => MountOptions::for_root(source),
        _ => MountOptions { source, ..MountOptions::default() },
    })
}

/// The options as given.
#[derive(Debug)]
pub struct ParsedOptions {
    pub mount: MountOptions,
    pub import: ImportOptions,
    /// If given.
    pub memory: Option<MemoryBudget>,
    /// Properties that hold for the life of the mount.
    pub properties: Vec<Setting>,
    pub remount: bool,
    /// Where births and frees of blocks are recorded.
    pub record: Option<PathBuf>,
    /// Options of a data set, which hold for all its mount points.
    pub of_pool: Vec<String>,
    /// Options of the server of a pool, which hold for all its mounts.
    pub of_server: Vec<String>,
    /// If the server dies, the mount ends.
    pub ends_on_crash: bool,
    /// Changes are kept for a successor until they are durable.
    pub is_crashproof: bool,
    /// How often to look for a newer state, which another machine has written.
    pub follow: Option<Duration>,
    /// `rw` was given.
    pub is_writable: bool,
    /// `suid` or `dev`, if one of them was given.
    identities: Option<&'static str>,
}

impl ParsedOptions {
    pub fn parse(words: &[String], defaults: MountOptions) -> Outcome<ParsedOptions> {
        let mut all = ParsedOptions {
            mount: defaults,
            import: ImportOptions::default(),
            memory: None,
            properties: Vec::new(),
            remount: false,
            record: None,
            of_pool: Vec::new(),
            of_server: Vec::new(),
            ends_on_crash: false,
            is_crashproof: true,
            follow: None,
            is_writable: false,
            identities: None,
        };
        for word in words.iter().flat_map(|words| words.split(',')).filter(|word| !word.is_empty()) {
            all.apply(word)?;
        }
        let given: Vec<&str> = words.iter().flat_map(|words| words.split(',')).collect();
        let last_of = |yes: &str, no: &str| given.iter().rfind(|word| [yes, no].contains(word)) == Some(&yes);
        all.identities = ["suid", "dev"].into_iter().find(|word| last_of(word, &format!("no{word}")));
        all.is_writable = last_of("rw", "ro");
        all.mount = all.mount.resolved(given.contains(&"allow_other"));
        all.check_set_id_options(&all.mount)?;
        if let Some(period) = all.follow {
            all.follow(period)?;
        }
        all.import.read_only = all.mount.read_only;
        Ok(all)
    }

    /// A mount that follows another machine changes nothing, and has no successor: that one would not know which inodes the kernel
    /// knows.
    fn follow(&mut self, period: Duration) -> Outcome {
        if self.is_writable {
            let (expected, found) = ("a read-only mount", "rw");
            return Err(Failure::refused("mount option \"follow\"", expected, found, "omit rw"));
        }
        self.mount.read_only = true;
        self.mount.cache = self.mount.cache.following(period);
        self.ends_on_crash = true;
        // What was synced and not committed is not shown.
        self.import.discard_log = true;
        Ok(())
    }

    /// Refuses `suid` and `dev` on a mount that every user may change.
    pub fn check_set_id_options(&self, mount: &MountOptions) -> Outcome {
        match self.identities.filter(|_| mount.is_open_to_all()) {
            None => Ok(()),
            Some(word) => Err(Failure::refused(
                format_args!("mount option {word:?}"),
                "a mount with permission checks, or without access for other users",
                "no_default_permissions with allow_other",
                format_args!("omit {word}, allow_other or no_default_permissions"),
            )),
        }
    }

    fn apply(&mut self, word: &str) -> Outcome {
        let bad =
            |expected: &str| Failure(format!("mount option {word:?}: should be {expected}\n{OPTION_HELP}"));
        let import = &mut self.import;
        match word.split_once('=') {
            Some(("memory", value)) => {
                self.memory =
                    Some(memory_size(value).map(MemoryBudget::of).map_err(|expected| bad(&expected))?);
            }
            Some(("commit", value)) => {
                let seconds = value.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
                import.commit_period = Duration::from_secs(seconds.ok_or_else(|| bad("1 to 3600 seconds"))?);
            }
            Some(("rewind", value)) => {
                let txg = value.parse().map_err(|_| bad("the number of a transaction group"))?;
                import.rewind = Some(Txg(txg));
            }
            Some(("on_crash", "continue")) => self.ends_on_crash = false,
            Some(("on_crash", "end")) => self.ends_on_crash = true,
            Some(("crashproof", "on")) => self.is_crashproof = true,
            Some(("crashproof", "off")) => self.is_crashproof = false,
            Some(("crashproof", _)) => return Err(bad("crashproof=on or crashproof=off")),
            Some(("on_crash", _)) => return Err(bad("on_crash=continue or on_crash=end")),
            Some(("follow", value)) => {
                let seconds = value.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
                self.follow = Some(Duration::from_secs(seconds.ok_or_else(|| bad("1 to 3600 seconds"))?));
            }
            None if word == "follow" => self.follow = Some(FOLLOW_PERIOD),
            // The server has another working directory than the command.
            Some(("record", value)) => {
                let path = Some(PathBuf::from(value)).filter(|path| path.is_absolute());
                self.record = Some(path.ok_or_else(|| bad("an absolute path"))?);
            }
            Some((name, value)) if Property::find(name).is_ok() => {
                let property = Property::find(name)?;
                property.parse(value).map_err(|_| bad(&property.values_text()))?;
                self.properties.push(Setting { name: name.to_owned(), value: value.to_owned() });
            }
            None if word == "discard" => import.discard = true,
            None if word == "nodiscard" => import.discard = false,
            None if word == "remount" => {
                self.remount = true;
                return Ok(());
            }
            _ => {
                let before = self.mount.clone();
                self.mount.apply(word).map_err(|error| bad(error.expected))?;
                if before.with_mount_options(&self.mount) == self.mount {
                    return Ok(());
                }
            }
        }
        self.of_pool.push(word.to_owned());
        if OF_SERVER.contains(&word.split('=').next().unwrap_or(word)) {
            self.of_server.push(word.to_owned());
        }
        Ok(())
    }
}

/// A memory size that a daemon accepts; else a description of the accepted ones.
pub fn memory_size(word: &str) -> Result<u64, String> {
    let enough = size::parse(word).ok().filter(|bytes| *bytes >= BYTES_MIN);
    enough.ok_or_else(|| format!("a size of at least {}", size::format(BYTES_MIN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Outcome<ParsedOptions> {
        ParsedOptions::parse(&[words.to_owned()], MountOptions::for_root("tank"))
    }

    #[test]
    fn words_go_to_the_pool_and_to_the_mount() {
        let options =
            parse("ro,memory=256M,noatime,commit=7,rewind=12,threads=5,compression=zstd-3,nodiscard")
                .unwrap();
        assert!(
            options.mount.read_only
                && options.import.read_only
                && !options.remount
                && !options.import.discard
        );
        assert_eq!((options.mount.threads, options.memory), (Some(5), Some(MemoryBudget::of(256 << 20))));
        assert_eq!(
            (options.import.commit_period, options.import.rewind),
            (Duration::from_secs(7), Some(Txg(12)))
        );
        assert_eq!(options.properties, [Setting { name: "compression".into(), value: "zstd-3".into() }]);
        assert_eq!(
            options.of_pool,
            ["memory=256M", "commit=7", "rewind=12", "threads=5", "compression=zstd-3", "nodiscard"]
        );
        assert_eq!(options.of_server, ["memory=256M", "commit=7", "rewind=12", "nodiscard"]);
        assert_eq!(parse("record=/a").unwrap().record, Some(PathBuf::from("/a")));
        let options = parse("remount,rw,nodev,nofail,_netdev,x-y=z").unwrap();
        assert!(!options.mount.read_only && !options.import.read_only && options.import.rewind.is_none());
        assert!(options.remount && options.of_pool.is_empty() && options.memory.is_none());
    }

    #[test]
    fn a_follower_is_read_only_and_caches_for_a_moment() {
        let options = parse("follow=7,threads=5").unwrap();
        assert!(options.mount.read_only && options.import.read_only && options.ends_on_crash);
        let cache = options.mount.cache;
        assert_eq!((cache.follows, cache.attr), (true, Duration::from_secs(7)));
        assert_eq!(options.follow, Some(Duration::from_secs(7)));
        assert_eq!(parse("follow").unwrap().follow, Some(FOLLOW_PERIOD));
        assert_eq!(options.of_server, ["follow=7"]);
        for wrong in ["follow,rw", "follow=0", "follow=x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(!parse("ro").unwrap().mount.cache.follows);
    }

    #[test]
    fn a_mount_without_permissions_is_closed_or_gives_nobody_anothers_identity() {
        let mount = parse("no_default_permissions").unwrap().mount;
        assert!(!mount.allow_other && mount.suid);
        let mount = parse("allow_other,no_default_permissions").unwrap().mount;
        assert!(mount.allow_other && !mount.suid && !mount.dev);
        for words in ["no_default_permissions,allow_other,suid", "dev,allow_other,no_default_permissions"] {
            let text = parse(words).unwrap_err().0;
            assert!(text.contains("no_default_permissions with allow_other"), "{text}");
        }
        assert!(parse("suid,nosuid,allow_other,no_default_permissions").is_ok());
        assert!(parse("suid,dev,allow_other").unwrap().mount.suid);
    }

    #[test]
    fn words_that_mean_nothing_are_refused_with_those_that_do() {
        for word in [
            "zfsutil",
            "cache=1G",
            "memory=1M",
            "memory=x",
            "commit=0",
            "commit=-1",
            "commit=1e9",
            "rewind=",
            "fd=3",
            "compression=best",
            "recordsize=3",
            "record=trace",
            "on_crash=stop",
        ] {
            let text = parse(word).unwrap_err().0;
            assert!(text.contains(&format!("{word:?}")) && text.contains("memory=SIZE"), "{text}");
        }
    }
}
