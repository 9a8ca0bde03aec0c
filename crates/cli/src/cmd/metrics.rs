//! `terrane metrics`.

use super::{ask, print};
use crate::failure::{Failure, Outcome};
use crate::query::Query;
use crate::registry::Registry;
use clap::Args;
use serde_json::Value;

/// Show the metrics of a pool, in the text format of Prometheus
///
/// Of a mounted pool: requests of the kernel and how long they took, caches, transaction groups, devices, zones, space, errors,
/// memory; all counted since it was mounted. Of one that is not mounted: its space and its zones.
#[derive(Args)]
pub struct Metrics {
    /// A pool, by name or by device
    pool: String,
}

impl Metrics {
    pub fn run(&self) -> Outcome {
        match ask(&Registry::of_this_user()?, &self.pool, &Query::Metrics)? {
            Value::String(text) => print(&text),
            other => {
                Err(Failure(format!("expected a text, found {other}; is the daemon of another version?")))
            }
        }
    }
}
