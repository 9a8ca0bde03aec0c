//! `terrane pool add` and `remove`: adds devices to a pool and removes them, mounted or not.

use super::super::{ask, print};
use crate::control;
use crate::device_probe::{self, DeviceOptions, DevicePurpose};
use crate::failure::{Failure, Outcome};
use crate::members;
use crate::query::Query;
use crate::registry::Registry;
use crate::table::envelope;
use crate::target;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub const ADD_HELP: &str = "\
The device is emptied and joins at once, also while the pool is mounted; zones of it are written from the next commit on. A cache
holds copies of blocks that were evicted from memory, survives restarts, and may fail or be missing: that costs only speed.
A log device may fail too. After a crash an import needs it, unless there is a second one with the same log.

Kinds:
  data      all blocks
  special   metadata, whose other copy stays on another device; data only when no other device has space
  cache     copies of blocks that were evicted from memory (as L2ARC)
  log       the intent log, which makes fsync fast (as SLOG); two log devices hold the same log

Versions that know one device refuse the pool from then on; those that know no cache do without. Those that know no log device
refuse the pool while one is in use: `terrane pool features --count` ends that after an export.
";

pub const REMOVE_HELP: &str = "\
Live blocks move to the other devices, which must have space for them, also while the pool is mounted; then the device is wiped
and free. A cache is removed at once, a log device after a commit. A removal continues after an interruption, an unmount or a
crash; the same command waits for it again.
";

#[derive(Args)]
pub struct Add {
    /// A pool, by name or by device
    pool: String,
    /// What the device is for
    kind: DevicePurpose,
    /// A block device, or a file, which is created (sparse) if it does not exist
    device: PathBuf,
    #[command(flatten)]
    device_options: DeviceOptions,
    /// JSON
    #[arg(short, long)]
    json: bool,
}

#[derive(Args)]
pub struct Remove {
    /// A pool, by name or by device
    pool: String,
    /// One of its devices: by path, or by its number or id as `pool status --json` shows them
    device: String,
}

impl Remove {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        let target = target::find(&registry, &self.pool)?;
        // As the pool knows it; a word that is not a path is a number or an id.
        let path = Path::new(&self.device);
        // A cache or log device may be gone.
        let absolute = || std::path::absolute(path).ok().filter(|_| self.device.contains('/'));
        let path = path.canonicalize().ok().or_else(absolute);
        let device = path.and_then(|path| path.to_str().map(str::to_owned));
        let device = device.unwrap_or_else(|| self.device.clone());
        let answer = ask(&registry, &self.pool, &Query::Remove { device })?;
        // The device by which the registry knew the pool may be the one that left.
        let rest: Vec<PathBuf> = answer["rest"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(PathBuf::from)
            .collect();
        if registry.pools()?.get(&target.name) == Some(&target.path)
            && !rest.contains(&target.path)
            && let Some(first) = rest.first()
        {
            registry.register(&target.name, first)?;
        }
        Ok(())
    }
}

impl Add {
    pub fn run(&self) -> Outcome {
        let registry = Registry::of_this_user()?;
        // Checked first, so that a name that means no pool creates no file.
        let target = target::find(&registry, &self.pool)?;
        self.device_options.reject_keyword(&self.device)?;
        let path = std::path::absolute(&self.device).map_err(Failure::io("finding", &self.device))?;
        let new_device = self.device_options.open(&path, &|_| Ok(()))?;
        let is_made = new_device.is_created;
        // It is checked and released; the process that has the pool opens it again.
        drop(new_device);
        let query = Query::Add {
            path: path.clone(),
            kind: self.kind,
            zone_size: self.device_options.zone_size,
            force: self.device_options.force || is_made,
        };
        let added = ask(&registry, &self.pool, &query);
        let unanswered = [control::hung_up(), control::not_answering(&target.name)];
        if is_made && added.as_ref().is_err_and(|failure| !unanswered.contains(failure)) {
            device_probe::remove_unused(&path);
        }
        let row = added?;
        members::warn_of_access(&path);
        if self.json {
            print(&format!("{:#}\n", envelope("pool add", json!({"devices": [row]}))))
        } else {
            Ok(())
        }
    }
}
