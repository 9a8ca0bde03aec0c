//! Questions to a pool, and their answers as JSON.
//!
//! The same question is asked of a pool that this process opened and, through a socket, of one that a daemon has mounted. So the
//! answer is made in one place, from the open pool, and is plain JSON: commands only choose columns.

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
use serde_json::{Value, json};
use terrane_codec::Compression;
use terrane_format::Feature;
use terrane_posix::RewriteSpec;

impl Query {
    pub fn answer(&self, live: &Live, progress: Progress<'_>) -> Outcome<Value> {
        match self {
            Query::Status => Ok(status::of(live)),
            Query::Metrics => Ok(metrics::page(live, None).into()),
            Query::Get { names } => properties::get(live, names),
            Query::Set { settings } => {
                properties::set(live, settings)?;
                Ok(properties::waiting(live, settings.iter().map(|setting| &setting.name)))
            }
            Query::Inherit { names } => {
                properties::inherit(live, names)?;
                Ok(properties::waiting(live, names.iter()))
            }
            Query::Add { path, kind, zone_size, force } => {
                devices::add(live, path, *kind, &Terms { size: None, zone_size: *zone_size, force: *force })
            }
            Query::Remove { device } => devices::remove(live, device, progress),
            Query::Iostat => Ok(iostat::of(live)),
            Query::Check => check::beside(live, progress),
            Query::Uberblocks => Ok(inspect::uberblocks(&live.pool.device_handles())),
            Query::Upgrade => upgrade(live),
            Query::Collect { target_percent, wait } => {
                collect::down_to(live, *target_percent, *wait, progress)
            }
            Query::Rewrite { object, recursive, compression, record_size } => {
                let compression = compression.as_ref().map(|word| word.parse::<Compression>()).transpose();
                let spec = RewriteSpec {
                    root: *object,
                    recursive: *recursive,
                    compression: compression.map_err(|error| Failure(error.to_string()))?,
                    record_size: *record_size,
                };
                rewriting::begin(live, &spec)
            }
            Query::RewriteStatus => Ok(rewriting::status(live)),
            Query::RewriteCancel => rewriting::cancel(live),
            Query::Clear => status::clear(live),
            Query::Zones => Ok(inspect::zones(&live.pool)),
            Query::ZoneMap => Ok(inspect::zone_map(live)),
            Query::Space => inspect::space(live),
            Query::Stat { object } => inspect::stat(live, *object, progress),
            Query::StatPath { path } => inspect::stat(live, inspect::resolve(live, path)?, progress),
            Query::Zone { seq } => inspect::zone(&live.pool, *seq),
            Query::Dnodes { meta } => Ok(inspect::dnodes(live, *meta)),
            Query::Dnode { meta, object } => inspect::dnode(live, *meta, *object),
            Query::Tree { meta, object } => inspect::tree(live, *meta, *object),
            Query::Zap { meta, object } => inspect::zap(live, *meta, *object),
        }
    }
}

/// Adds the features that the pool lacks; names those that it lacked.
fn upgrade(live: &Live) -> Outcome<Value> {
    let new = live.pool.enable(&Feature::defaults())?;
    let added: Vec<&str> = new.iter().map(|feature| feature.row().name).collect();
    Ok(
        json!({"name": live.pool.name(), "features": inspect::feature_names(&live.pool.label()), "added": added}),
    )
}
