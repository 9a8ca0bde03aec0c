//! Questions to a pool, and their answers as JSON.
//!
//! The same question goes to a pool that this process opened, or through a socket to the daemon that has it
//! mounted. So the answer is made in one place, from the open pool, and is plain JSON: commands only choose
//! columns. Its keys are the fields of a struct, which `docs/json.md` lists.

mod devices;
mod iostat;
mod properties;
mod question;
mod status;

pub use properties::{judge, property_help, setting};
pub use question::{Query, Setting};
pub use status::{NOT_WRITTEN_BACK, unavailable};

use crate::check;
use crate::collect;
use crate::failure::{Failure, Outcome};
use crate::inspect;
use crate::live::Live;
use crate::metrics;
use crate::newcomer::Terms;
use crate::progress::Progress;
use crate::rewriting;
use serde::Serialize;
use serde_json::Value;
use terrane_codec::Compression;
use terrane_format::Feature;
use terrane_posix::RewriteSpec;

impl Query {
    pub fn answer(&self, live: &Live, progress: Progress<'_>) -> Outcome<Value> {
        match self {
            Query::Status => Ok(value(&status::of(live))),
            Query::Metrics => Ok(metrics::page(live, None).into()),
            Query::Get { names } => Ok(value(&properties::get(live, names)?)),
            Query::Set { settings } => {
                properties::set(live, settings)?;
                Ok(value(&properties::waiting(live, settings.iter().map(|setting| &setting.name))))
            }
            Query::Inherit { names } => {
                properties::inherit(live, names)?;
                Ok(value(&properties::waiting(live, names.iter())))
            }
            Query::Add { path, kind, zone_size, force } => {
                let terms = Terms { size: None, zone_size: *zone_size, force: *force };
                Ok(value(&devices::add(live, path, *kind, &terms)?))
            }
            Query::Remove { device } => Ok(value(&devices::remove(live, device, progress)?)),
            Query::Iostat => Ok(value(&iostat::of(live))),
            Query::Check => Ok(value(&check::beside(live, progress)?)),
            Query::Uberblocks => Ok(value(&inspect::uberblocks(&live.pool.device_handles()))),
            Query::Upgrade => Ok(value(&upgrade(live)?)),
            Query::Collect { target_percent, wait } => {
                Ok(value(&collect::down_to(live, *target_percent, *wait, progress)?))
            }
            Query::Rewrite { object, recursive, compression, record_size } => {
                let compression = compression.as_ref().map(|word| word.parse::<Compression>()).transpose();
                let spec = RewriteSpec {
                    root: *object,
                    recursive: *recursive,
                    compression: compression.map_err(|error| Failure(error.to_string()))?,
                    record_size: *record_size,
                };
                Ok(value(&rewriting::begin(live, &spec)?))
            }
            Query::RewriteStatus => Ok(value(&rewriting::status(live))),
            Query::RewriteCancel => Ok(value(&rewriting::cancel(live)?)),
            Query::Clear => Ok(value(&status::clear(live)?)),
            Query::Zones => Ok(value(&inspect::zones(&live.pool))),
            Query::ZoneMap => Ok(value(&inspect::zone_map(live))),
            Query::Space => Ok(value(&inspect::space(live)?)),
            Query::Stat { object } => Ok(value(&inspect::stat(live, *object, progress)?)),
            Query::StatPath { path } => {
                Ok(value(&inspect::stat(live, inspect::resolve(live, path)?, progress)?))
            }
            Query::Zone { seq } => Ok(value(&inspect::zone(&live.pool, *seq)?)),
            Query::Dnodes { meta } => Ok(value(&inspect::dnodes(live, *meta))),
            Query::Dnode { meta, object } => Ok(value(&inspect::dnode(live, *meta, *object)?)),
            Query::Tree { meta, object } => Ok(value(&inspect::tree(live, *meta, *object)?)),
            Query::Zap { meta, object } => Ok(value(&inspect::zap(live, *meta, *object)?)),
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
fn upgrade(live: &Live) -> Outcome<Upgraded> {
    let new = live.pool.enable(&Feature::defaults())?;
    let added = new.iter().map(|feature| feature.row().name).collect();
    Ok(Upgraded { name: live.pool.name(), features: inspect::feature_names(&live.pool.label()), added })
}
