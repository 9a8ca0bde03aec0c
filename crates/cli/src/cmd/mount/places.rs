//! Mounts without a directory: data sets go where their properties `mountpoint` and `canmount` say.

use super::super::{ask, rows};
use super::Mount;
use crate::failure::{Failure, Outcome};
use crate::fd_store::this_program;
use crate::query::{Query, Selection};
use crate::registry::Registry;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether a data set is mounted by its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CanMount {
    Always,
    /// Only if it is named.
    ByName,
    Never,
}

/// A data set, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    name: String,
    /// `None`: its property is `none` or `legacy`.
    dir: Option<PathBuf>,
    can_mount: CanMount,
    /// A directory where it is mounted.
    mounted: Option<PathBuf>,
}

impl Place {
    fn of_row(row: &Value) -> Option<Place> {
        let property = |name: &str| row["properties"][name].as_str();
        let dir = property("mountpoint")?;
        Some(Place {
            name: row["name"].as_str()?.to_owned(),
            dir: dir.starts_with('/').then(|| dir.into()),
            can_mount: match property("canmount")? {
                "off" => CanMount::Never,
                "noauto" => CanMount::ByName,
                _ => CanMount::Always,
            },
            mounted: row["mountpoint"].as_str().map(PathBuf::from),
        })
    }

    /// The directory for `mount -a`, if the data set is still to be mounted there.
    fn of_all(&self) -> Option<&Path> {
        let dir = self.dir.as_deref().filter(|_| self.can_mount == CanMount::Always);
        dir.filter(|_| self.mounted.is_none())
    }

    /// The directory for the data set by its name.
    fn of_name(&self) -> Outcome<&Path> {
        let name = &self.name;
        if let Some(dir) = &self.mounted {
            let found = format!("mounted at {}", dir.display());
            return Err(Failure::refused(
                name,
                "a data set that is not mounted",
                found,
                "name another directory",
            ));
        }
        let remedy = format!("name a directory, or use `terrane fs set mountpoint=/DIR {name}`");
        let Some(dir) = self.dir.as_deref() else {
            return Err(Failure::refused(name, "a path in its property mountpoint", "none", remedy));
        };
        if self.can_mount == CanMount::Never {
            return Err(Failure::refused(
                name,
                "canmount=on or canmount=noauto",
                "canmount=off",
                "name a directory",
            ));
        }
        Ok(dir)
    }
}

impl Mount {
    /// Mounts a data set at its `mountpoint`, or with `--all` each one that has one: in a pool, or below a data set, or in all pools.
    pub(super) fn run_by_properties(&self, registry: &Registry) -> Outcome {
        match &self.pool {
            Some(name) if !self.all => {
                let places = find(registry, name, false)?;
                let place = places.first().ok_or_else(|| Failure(format!("data set '{name}' not found")))?;
                // This process becomes the one that mounts, as a service manager may watch it.
                let error = self.command(&place.name, place.of_name()?)?.exec();
                Err(Failure(format!("{name} not mounted: {error}")))
            }
            Some(name) => self.mount_all(find(registry, name, true)?, Vec::new()),
            None => {
                let (mut places, mut failures) = (Vec::new(), Vec::new());
                for pool in registry.pools()?.keys() {
                    match find(registry, pool, true) {
                        Ok(found) => places.extend(found),
                        Err(Failure(reason)) => failures.push(reason),
                    }
                }
                self.mount_all(places, failures)
            }
        }
    }

    fn mount_all(&self, places: Vec<Place>, mut failures: Vec<String>) -> Outcome {
        let mut wanted: Vec<(&Path, &str)> =
            places.iter().filter_map(|place| Some((place.of_all()?, place.name.as_str()))).collect();
        // A directory comes before those in it.
        wanted.sort();
        for (dir, name) in wanted {
            if let Err(Failure(reason)) = self.mount_at(name, dir) {
                failures.push(reason);
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\nterrane: "))) }
    }

    /// The command that mounts a data set. Its directory is created. A supervisor has the command line of the first mount, so the
    /// directory has to be there.
    fn command(&self, name: &str, dir: &Path) -> Outcome<Command> {
        std::fs::create_dir_all(dir).map_err(Failure::io("creating the mount point", dir))?;
        let mut command = this_program();
        command.arg("mount");
        for words in &self.options {
            command.args(["-o", words]);
        }
        let mut option = |name: &str, value: Option<&OsStr>| {
            if let Some(value) = value {
                command.arg(name).arg(value);
            }
        };
        option("--memory", self.memory.map(|bytes| bytes.to_string()).as_deref().map(OsStr::new));
        option("--log", self.log.as_deref().map(Path::as_os_str));
        option("--metrics", self.metrics.as_deref().map(OsStr::new));
        command.args(self.foreground.then_some("--foreground"));
        command.arg("--").arg(name).arg(dir);
        Ok(command)
    }

    fn mount_at(&self, name: &str, dir: &Path) -> Outcome {
        let mut command = self.command(name, dir)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let ended = command.spawn()?.wait_with_output()?;
        if ended.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&ended.stderr);
        let reason = reason.trim().trim_start_matches("terrane: ");
        Err(Failure(format!("{name} not mounted at {}: {reason}", dir.display())))
    }
}

/// The data set of this name, or with `below` all data sets there and below.
fn find(registry: &Registry, name: &str, below: bool) -> Outcome<Vec<Place>> {
    let (target, path) = crate::target::find_mountable(registry, name)?;
    if path.contains('@') {
        return Err(Failure::refused(name, "a data set", "a snapshot", "name a directory"));
    }
    let of = Selection { paths: vec![path], recursive: below, kinds: Vec::new() };
    let names = ["mountpoint", "canmount"].map(str::to_owned).to_vec();
    let word = target.path.display().to_string();
    Ok(rows(ask(registry, &word, &Query::ListDatasets { of, names })?)?
        .iter()
        .filter_map(Place::of_row)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn place(mountpoint: &str, canmount: &str, mounted: Option<&str>) -> Place {
        let properties = json!({ "mountpoint": mountpoint, "canmount": canmount });
        Place::of_row(&json!({ "name": "tank/a", "mountpoint": mounted, "properties": properties })).unwrap()
    }

    #[test]
    fn properties_decide_where_a_data_set_is_mounted() {
        let at = Some(Path::new("/srv/a"));
        assert_eq!(place("/srv/a", "on", None).of_all(), at);
        assert_eq!(place("/srv/a", "noauto", None).of_all(), None);
        assert_eq!(place("/srv/a", "noauto", None).of_name().ok(), at);
        assert_eq!(place("/srv/a", "off", None).of_all(), None);
        assert!(place("/srv/a", "off", None).of_name().is_err());
        for word in ["none", "legacy"] {
            assert_eq!(place(word, "on", None).of_all(), None);
            assert!(place(word, "on", None).of_name().is_err());
        }
        assert_eq!(place("/srv/a", "on", Some("/elsewhere")).of_all(), None);
        assert!(place("/srv/a", "on", Some("/srv/a")).of_name().is_err());
    }
}
