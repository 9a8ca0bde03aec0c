//! Questions to a pool, and their answers as JSON.
//!
//! The same question goes to a pool that this process opened, or through a socket to the daemon that has it
//! mounted. So the answer is made in one place, from the open pool, and is plain JSON: commands only choose
//! columns. Its keys are the fields of a struct, which `docs/json.md` lists.

mod boot;
mod datasets;
mod devices;
mod features;
mod iostat;
mod owners;
mod properties;
mod question;
mod snapshots;
mod status;

pub use boot::{boot_mounts_of, record_boot_mounts};
pub use datasets::named;
pub use owners::word_of;
pub use properties::{parse_setting, property_help, refuse_limits, validate_setting};
pub use question::{Query, Selection, Setting};
pub use snapshots::{SnapshotAction, check_mounted_snapshots_stay};
pub use status::{NOT_WRITTEN_BACK, unavailable_row};

use crate::check;
use crate::collect;
use crate::device_probe::DeviceOptions;
use crate::failure::{Failure, Outcome};
use crate::inspect;
use crate::metrics;
use crate::open_pool::OpenPool;
use crate::progress::Progress;
use crate::rewrite_job;
use serde::Serialize;
use serde_json::Value;
use terrane_codec::Compression;
use terrane_format::Feature;
use terrane_posix::RewriteSpec;

impl Query {
    pub fn answer(&self, open_pool: &OpenPool, progress: Progress<'_>) -> Outcome<Value> {
        let answer = self.answer_now(open_pool, progress);
        // A change that failed may be done in part.
        if self.changes_boot_mounts() {
            record_boot_mounts(open_pool);
        }
        answer
    }

    fn answer_now(&self, open_pool: &OpenPool, progress: Progress<'_>) -> Outcome<Value> {
        let _alone = self.changes_tree().then(|| open_pool.mounts.lock_changes());
        match self {
            Query::Status => Ok(value(&status::of(open_pool))),
            Query::Metrics => Ok(metrics::render(open_pool, None).into()),
            Query::Get { names } => Ok(value(&properties::get(open_pool, names)?)),
            Query::Set { settings } => {
                properties::set(open_pool, settings)?;
                Ok(value(&properties::pending_until_remount(
                    open_pool,
                    settings.iter().map(|setting| &setting.name),
                )))
            }
            Query::Inherit { names } => {
                properties::inherit(open_pool, names)?;
                Ok(value(&properties::pending_until_remount(open_pool, names.iter())))
            }
            Query::GetOf { of, names } => Ok(value(&datasets::get(open_pool, of, names)?)),
            Query::SetOf { paths, settings } => Ok(value(&datasets::set(open_pool, paths, settings)?)),
            Query::InheritOf { of, names, received } => {
                Ok(value(&datasets::inherit(open_pool, of, names, *received)?))
            }
            Query::ListDatasets { of, names } => Ok(value(&datasets::list(open_pool, of, names)?)),
            Query::CreateDataset { path, parents, settings } => {
                Ok(value(&datasets::create(open_pool, path, *parents, settings)?))
            }
            Query::DestroyDataset { path } => Ok(value(&datasets::destroy(open_pool, path, (false, false))?)),
            Query::DestroyTree { path, recursive, dry_run } => {
                Ok(value(&datasets::destroy(open_pool, path, (*recursive, *dry_run))?))
            }
            Query::Snapshots { action } => action.answer(open_pool),
            Query::RenameDataset { path, to } => Ok(value(&datasets::rename(open_pool, path, to)?)),
            Query::Owners { path, of } => Ok(value(&owners::list(open_pool, path, of)?)),
            Query::Add { path, kind, zone_size, force } => {
                let device_options = DeviceOptions { size: None, zone_size: *zone_size, force: *force };
                Ok(value(&devices::add(open_pool, path, *kind, &device_options)?))
            }
            Query::Remove { device } => Ok(value(&devices::remove(open_pool, device, progress)?)),
            Query::Iostat => Ok(value(&iostat::of(open_pool))),
            Query::Check => Ok(value(&check::check_mounted(open_pool, progress)?)),
            Query::Uberblocks => Ok(value(&inspect::uberblocks(&open_pool.pool.device_handles()))),
            Query::Upgrade => Ok(value(&upgrade(open_pool)?)),
            Query::Features { enable, disable, count } => {
                Ok(value(&features::change_and_list(open_pool, (enable, disable), *count, progress)?))
            }
            Query::Collect { target_percent, wait } => {
                Ok(value(&collect::collect_to(open_pool, *target_percent, *wait, progress)?))
            }
            Query::Rewrite { object, recursive, compression, record_size } => {
                let compression = compression.as_ref().map(|word| word.parse::<Compression>()).transpose();
                let spec = RewriteSpec {
                    root: *object,
                    recursive: *recursive,
                    compression: compression.map_err(|error| Failure(error.to_string()))?,
                    record_size: *record_size,
                };
                Ok(value(&rewrite_job::begin(open_pool, &spec)?))
            }
            Query::RewriteStatus => Ok(value(&rewrite_job::status(open_pool))),
            Query::RewriteCancel => Ok(value(&rewrite_job::cancel(open_pool)?)),
            Query::Clear => Ok(value(&status::clear(open_pool)?)),
            Query::Zones => Ok(value(&inspect::zones(&open_pool.pool))),
            Query::ZoneMap => Ok(value(&inspect::zone_map(open_pool))),
            Query::Space => Ok(value(&inspect::space(open_pool)?)),
            Query::Stat { object } => Ok(value(&inspect::stat(open_pool, *object, progress)?)),
            Query::StatPath { path } => {
                Ok(value(&inspect::stat(open_pool, inspect::resolve(open_pool, path)?, progress)?))
            }
            Query::Explain { object, name } => {
                Ok(value(&inspect::explain(open_pool, *object, Some(name), progress)?))
            }
            Query::ExplainPath { path } => {
                let name = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
                Ok(value(&inspect::explain(open_pool, inspect::resolve(open_pool, path)?, name, progress)?))
            }
            Query::Zone { seq } => Ok(value(&inspect::zone(&open_pool.pool, *seq)?)),
            Query::Dnodes { meta } => Ok(value(&inspect::dnodes(open_pool, *meta))),
            Query::Dnode { meta, object } => Ok(value(&inspect::dnode(open_pool, *meta, *object)?)),
            Query::Tree { meta, object } => Ok(value(&inspect::tree(open_pool, *meta, *object)?)),
            Query::Zap { meta, object } => Ok(value(&inspect::zap(open_pool, *meta, *object, true)?)),
            Query::ZapStatistics { meta, object } => {
                Ok(value(&inspect::zap(open_pool, *meta, *object, false)?))
            }
            Query::ZapBlocks { meta, object, first } => {
                Ok(value(&inspect::zap_blocks(open_pool, *meta, *object, *first)?))
            }
            Query::Block { address, stored, content } => {
                let wanted = inspect::Wanted { stored: *stored, content: *content };
                Ok(value(&inspect::block(&open_pool.pool, Ok(&open_pool.objects), address, wanted)?))
            }
        }
    }
}

/// An answer as it is sent and printed.
pub fn value(answer: &impl Serialize) -> Value {
    serde_json::to_value(answer).expect("the keys of an answer are words")
}

#[derive(Serialize)]
struct Upgraded {
    name: String,
    features: Vec<String>,
    /// The features that the pool lacked.
    added: Vec<&'static str>,
}

/// Adds the features that the pool lacks.
fn upgrade(open_pool: &OpenPool) -> Outcome<Upgraded> {
    let new = open_pool.pool.enable(&Feature::defaults())?;
    let added = new.iter().map(|feature| feature.row().name).collect();
    Ok(Upgraded {
        name: open_pool.pool.name(),
        features: inspect::feature_names(&open_pool.pool.label()),
        added,
    })
}
