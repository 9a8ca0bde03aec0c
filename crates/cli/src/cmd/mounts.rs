//! `terrane mounts`: what is mounted where, and which process serves it.
//!
//! The kernel's table lists the mounts; the daemons of this user say which are theirs. No request goes to a
//! mount itself: one without a server would not answer.

use super::{Survey, print};
use crate::clock;
use crate::control::Greeting;
use crate::dataset_name::full_name;
use crate::failure::Outcome;
use crate::registry::Registry;
use crate::sys;
use crate::table::{Listing, OutputFormat, text};
use clap::Args;
use serde_json::{Value, json};
use terrane_fuse::mount::{MountEntry, list_mounts};

/// List mounts: those of this user, and for root those of all users
///
/// A mount of another user or state directory, or with a dead daemon, is in state "unknown". A mount whose daemon is stopped or waits
/// for its device is "not answering".
#[derive(Args)]
pub struct Mounts {
    #[command(flatten)]
    output: OutputFormat,
}

const MOUNTS: Listing = Listing {
    command: "mounts",
    key: "mounts",
    columns: &[
        text("DATASET", "dataset"),
        text("MOUNTPOINT", "mountpoint"),
        text("STATE", "state"),
        text("OPTIONS", "options"),
        text("SINCE", "since"),
        text("PID", "pid"),
        text("DEVICE", "device"),
    ],
};

impl Mounts {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let survey = Survey::of(&registry)?;
        let daemons: Vec<Greeting> =
            survey.daemons.iter().map(|found| found.daemon.greeting.clone()).collect();
        let uid = sys::process_user()?.uid;
        let table = list_mounts()?;
        let shown = table.iter().filter(|row| uid == 0 || row.user_id() == Some(uid));
        let shown = shown.map(|entry| {
            let mut row = row(entry, &daemons);
            if row["pid"].is_null()
                && let Some(pool) = survey.not_answering_at(entry)
            {
                (row["pool"], row["state"]) = (pool.into(), "not answering".into());
            }
            row
        });
        let mut rows: Vec<Value> = shown.collect();
        rows.sort_by_key(|row| row["pid"].is_null());
        print(&MOUNTS.render(&rows, self.output))
    }
}

fn row(entry: &MountEntry, daemons: &[Greeting]) -> Value {
    let found = daemons.iter().find_map(|daemon| Some((daemon, daemon.mount_at(&entry.dev)?)));
    let (daemon, mount) = found.unzip();
    // Another user's, or of another state directory; or its daemon is dead.
    let state = if daemon.is_some() { "mounted" } else { "unknown" };
    let since = mount.as_ref().and_then(|mount| i64::try_from(mount.since).ok()).filter(|since| *since > 0);
    let source = || entry.source.to_string_lossy().into_owned();
    let dataset = daemon.zip(mount).map(|(daemon, mount)| full_name(&daemon.pool, &mount.dataset));
    json!({
        "pool": daemon.map_or_else(source, |daemon| daemon.pool.clone()),
        "dataset": dataset.unwrap_or_else(source),
        "mountpoint": entry.dir.display().to_string(),
        "state": state,
        "read_only": entry.is_read_only(),
        "options": options(entry),
        "since": since.map(clock::utc),
        "pid": daemon.map(|daemon| daemon.pid),
        "device": daemon.map(|daemon| daemon.device.display().to_string()),
        "source": entry.source.to_string_lossy(),
        "user_id": entry.user_id(),
    })
}

/// The options of the mount, then those of the file system that matter to users.
fn options(entry: &MountEntry) -> String {
    let mut words: Vec<&str> = entry.options.split(',').collect();
    let more = entry.super_options.split(',');
    words.extend(
        more.filter(|word| matches!(*word, "allow_other" | "default_permissions" | "sync" | "dirsync")),
    );
    if entry.is_read_only() {
        words.iter_mut().filter(|word| **word == "rw").for_each(|word| *word = "ro");
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::GreetedMount;

    #[test]
    fn a_mount_is_shown_with_its_daemon_or_without() {
        let entry = MountEntry {
            id: 40,
            dev: "0:53".into(),
            dir: "/mnt".into(),
            source: "/images/a".into(),
            options: "rw,nosuid".into(),
            super_options: "ro,user_id=5,group_id=0,default_permissions".into(),
        };
        let daemon = Greeting {
            pool: "tank".into(),
            id: 1,
            device: "/images/a".into(),
            mountpoint: "/elsewhere".into(),
            pid: 7,
            dev: "0:53".into(),
            since: 1,
            devices: Vec::new(),
            read_only: false,
            mounts: Vec::new(),
        };
        let shown = row(&entry, std::slice::from_ref(&daemon));
        assert_eq!(
            (&shown["pool"], &shown["pid"], &shown["state"]),
            (&json!("tank"), &json!(7), &json!("mounted"))
        );
        assert_eq!(shown["options"], "ro,nosuid,default_permissions");
        assert_eq!(shown["since"], "1970-01-01T00:00:01Z");
        assert_eq!(row(&entry, &[])["state"], "unknown");
        let home = GreetedMount { dataset: "home".into(), dir: "/home".into(), dev: "0:53".into(), since: 2 };
        let daemon = Greeting { dev: "0:52".into(), mounts: vec![home], ..daemon };
        let shown = row(&entry, &[daemon]);
        assert_eq!((&shown["dataset"], &shown["pool"]), (&json!("tank/home"), &json!("tank")));
        assert_eq!(shown["since"], "1970-01-01T00:00:02Z");
    }
}
