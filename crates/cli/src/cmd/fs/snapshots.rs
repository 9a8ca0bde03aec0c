//! Snapshots on the command line: `terrane snapshot`, and the commands of `terrane fs` for them.

use super::super::{ask, daemon_of, print, rows};
use crate::clock;
use crate::cmd::mount::{Sync, WrittenBack, step_back, write_back_pool};
use crate::control::{Command, Daemon};
use crate::dataset_name::DatasetName;
use crate::failure::{Failure, Outcome};
use crate::query::{Query, SnapshotAction};
use crate::registry::Registry;
use crate::table::{Listing, OutputFormat, text};
use crate::target;
use clap::Args;
use serde_json::Value;

/// Take snapshots, all of the same txg
#[derive(Args)]
pub struct SnapshotCommand {
    /// Include all data sets below
    #[arg(short)]
    recursive: bool,
    /// New snapshots, like tank/home@monday, all in one pool
    #[arg(required = true, value_name = "DATASET@NAME")]
    names: Vec<String>,
}

#[derive(Args)]
pub struct Rollback {
    /// Destroy newer snapshots
    #[arg(short = 'r')]
    newer: bool,
    /// The snapshot, like tank/home@monday
    #[arg(value_name = "DATASET@NAME")]
    name: String,
}

#[derive(Args)]
pub struct CloneCommand {
    /// The snapshot, like tank/home@monday
    #[arg(value_name = "DATASET@NAME")]
    name: String,
    /// The new data set, like tank/trial
    #[arg(value_name = "NEW")]
    target: String,
}

#[derive(Args)]
pub struct Promote {
    /// A clone
    #[arg(value_name = "DATASET")]
    name: String,
}

#[derive(Args)]
pub struct Hold {
    /// A name for the hold
    #[arg(value_name = "TAG")]
    tag: String,
    /// Snapshots, like tank/home@monday
    #[arg(required = true, value_name = "DATASET@NAME")]
    names: Vec<String>,
}

#[derive(Args)]
pub struct Holds {
    /// Data sets and snapshots
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Args)]
pub struct Diff {
    /// The older snapshot, like tank/home@monday
    #[arg(value_name = "DATASET@NAME")]
    from: String,
    /// A newer snapshot of the same data set (default: its current state)
    #[arg(value_name = "DATASET@NAME")]
    to: Option<String>,
    #[command(flatten)]
    output: OutputFormat,
}

#[derive(Args)]
pub struct Bookmark {
    /// The snapshot, like tank/home@monday
    #[arg(value_name = "DATASET@NAME")]
    name: String,
    /// The bookmark, like tank/home#monday
    #[arg(value_name = "DATASET#NAME")]
    bookmark: String,
}

const HOLDS: Listing = Listing {
    command: "fs holds",
    key: "holds",
    columns: &[text("NAME", "name"), text("TAG", "tag"), text("TIMESTAMP", "time")],
};

const CHANGES: Listing = Listing {
    command: "fs diff",
    key: "changes",
    columns: &[text("CHANGE", "change"), text("TYPE", "type"), text("PATH", "path"), text("OLD", "old_path")],
};

/// A data set, and the name of a snapshot or bookmark behind `@` or `#`.
pub(super) struct PartName {
    pub dataset: DatasetName,
    pub part: String,
}

impl PartName {
    pub fn parse(registry: &Registry, word: &str, separator: char) -> Outcome<PartName> {
        let Some((dataset, part)) = word.split_once(separator).filter(|(_, part)| !part.is_empty()) else {
            let expected = format!("a data set, '{separator}' and a name, like tank/home{separator}monday");
            return Err(Failure::refused(word, expected, "another form", "see `terrane fs list -t all`"));
        };
        Ok(PartName { dataset: DatasetName::parse(registry, dataset)?, part: part.to_owned() })
    }
}

pub(super) fn act(registry: &Registry, pool: &str, action: SnapshotAction) -> Outcome<Vec<Value>> {
    rows(ask(registry, pool, &Query::Snapshots { action })?)
}

impl SnapshotCommand {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let names = self
            .names
            .iter()
            .map(|word| PartName::parse(&registry, word, '@'))
            .collect::<Outcome<Vec<_>>>()?;
        let Some(pool) = names.first().map(|name| name.dataset.pool.clone()) else { return Ok(()) };
        if let Some(other) = names.iter().find(|name| name.dataset.pool != pool) {
            let found = format_args!("one in pool {}", other.dataset.pool);
            let expected = format_args!("snapshots in pool {pool}");
            return Err(Failure::refused("terrane snapshot", expected, found, "run it once for each pool"));
        }
        let snapshots = names.into_iter().map(|name| (name.dataset.path, name.part)).collect();
        let action = SnapshotAction::Take { snapshots, recursive: self.recursive };
        let (target, _) = target::find_mountable(&registry, &pool)?;
        // The txg that takes the snapshots commits what the kernel writes back. Another commit would double the time.
        let Some(written_back) = write_back_pool(&registry, &target)? else {
            return act(&registry, &pool, action).map(drop);
        };
        written_back.outcome?;
        if !written_back.is_answered {
            // What is under way has the time of a commit to arrive.
            Sync { pool: pool.clone() }.run()?;
            return act(&registry, &pool, action).map(drop);
        }
        rows(written_back.daemon.ask(&Query::Snapshots { action }, &mut |_, _, _| {})?).map(drop)
    }
}

impl Rollback {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let PartName { dataset, part: name } = PartName::parse(&registry, &self.name, '@')?;
        let (path, newer) = (dataset.path, self.newer);
        let (target, _) = target::find_mountable(&registry, &dataset.pool)?;
        let daemon = daemon_of(&registry, &target)?;
        let is_mounted =
            |daemon: &Daemon| daemon.greeting.all_mounts().iter().any(|mount| mount.dataset == path);
        if !daemon.as_ref().is_some_and(is_mounted) {
            let action = SnapshotAction::Rollback { path, name, newer };
            return act(&registry, &dataset.pool, action).map(drop);
        }
        // What the kernel has not written back yet would be written into the data set after the rollback.
        let Some(WrittenBack { daemon, outcome, .. }) = write_back_pool(&registry, &target)? else {
            return Err(Failure(format!("pool {} was just unmounted; try again", target.name)));
        };
        outcome?;
        let wanted = Command::RollBack { path: path.clone(), name: name.clone(), newer };
        let next = step_back(&registry, daemon, wanted)?;
        next.ask(&Command::RollbackOutcome { path, name }, &mut |_, _, _| {}).map(drop)
    }
}

impl CloneCommand {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let PartName { dataset, part: name } = PartName::parse(&registry, &self.name, '@')?;
        let target = DatasetName::parse_below(&registry, &self.target)?;
        if target.pool != dataset.pool {
            let expected = format_args!("a name in pool {}", dataset.pool);
            let found = format_args!("one in pool {}", target.pool);
            return Err(Failure::refused(
                &self.target,
                expected,
                found,
                "a clone lies in the pool of its snapshot",
            ));
        }
        let action = SnapshotAction::Clone { path: dataset.path, name, target: target.path };
        act(&registry, &dataset.pool, action).map(drop)
    }
}

impl Promote {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let name = DatasetName::parse(&registry, &self.name)?;
        act(&registry, &name.pool, SnapshotAction::Promote { path: name.path }).map(drop)
    }
}

impl Hold {
    pub fn run(&self, is_release: bool) -> Outcome {
        let registry = Registry::of_this_user()?;
        for word in &self.names {
            let PartName { dataset, part: name } = PartName::parse(&registry, word, '@')?;
            let (path, tag) = (dataset.path, self.tag.clone());
            let action = match is_release {
                true => SnapshotAction::Release { path, name, tag },
                false => SnapshotAction::Hold { path, name, tag },
            };
            act(&registry, &dataset.pool, action)?;
        }
        Ok(())
    }
}

impl Holds {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let mut found = Vec::new();
        for word in &self.names {
            let (dataset, name) = match word.contains('@') {
                true => {
                    let PartName { dataset, part } = PartName::parse(&registry, word, '@')?;
                    (dataset, Some(part))
                }
                false => (DatasetName::parse(&registry, word)?, None),
            };
            found.extend(act(&registry, &dataset.pool, SnapshotAction::Holds { path: dataset.path, name })?);
        }
        if !self.output.json && !self.output.parsable {
            for row in &mut found {
                let seconds = row["time"].as_u64().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
                row["time"] = clock::utc(seconds).into();
            }
        }
        print(&HOLDS.render(&found, self.output))
    }
}

impl Diff {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let PartName { dataset, part: from } = PartName::parse(&registry, &self.from, '@')?;
        let to = self.to.as_ref().map(|to| PartName::parse(&registry, to, '@')).transpose()?;
        if to.as_ref().is_some_and(|to| to.dataset != dataset) {
            let expected = "a snapshot of the same data set";
            let word = self.to.as_deref().unwrap_or_default();
            return Err(Failure::refused(word, expected, "another data set", "name the same one"));
        }
        let action = SnapshotAction::Diff { path: dataset.path, from, to: to.map(|to| to.part) };
        print(&CHANGES.render(&act(&registry, &dataset.pool, action)?, self.output))
    }
}

impl Bookmark {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let PartName { dataset, part: name } = PartName::parse(&registry, &self.name, '@')?;
        let bookmark = PartName::parse(&registry, &self.bookmark, '#')?;
        if (&bookmark.dataset.pool, &bookmark.dataset.path) != (&dataset.pool, &dataset.path) {
            let expected = "a bookmark of the data set of the snapshot";
            return Err(Failure::refused(&self.bookmark, expected, "another data set", "name the same one"));
        }
        let action = SnapshotAction::Bookmark { path: dataset.path, name, bookmark: bookmark.part };
        act(&registry, &dataset.pool, action).map(drop)
    }
}
