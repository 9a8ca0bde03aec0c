//! `terrane pool features`: which features a pool may use, and which it does.

use super::super::{ask, print};
use crate::failure::Outcome;
use crate::query::Query;
use crate::registry::Registry;
use crate::table::{Listing, OutputFormat, count, envelope, text};
use clap::Args;
use serde_json::json;

pub const HELP: &str = "\
A feature is disabled, enabled or active. An enabled feature may be used, but nothing in the pool uses it: versions of Terrane that do
not know it open the pool. The first use makes it active, and such versions refuse the pool by the feature's name.

Tiny ZAPs are counted. When the last one is gone, the feature becomes enabled at the next export, or after 64 commits. Uses of the
others are only known after a walk over the whole pool (--count), which makes those without a use enabled. Features that are in use
from the moment they are enabled stay active.

An active feature is never disabled. `--rewind` does not reach back beyond a walk that found features without a use.
";

#[derive(Args)]
pub struct Features {
    /// A pool, by name or by device
    pool: String,
    /// Enable a feature; `org.terrane:` may be left out
    #[arg(long, value_name = "FEATURE")]
    enable: Vec<String>,
    /// Disable a feature that is not active
    #[arg(long, value_name = "FEATURE")]
    disable: Vec<String>,
    /// Count the uses of all features, by reading all metadata and verifying all data
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    output: OutputFormat,
}

const ROWS: Listing = Listing {
    command: "pool features",
    key: "features",
    columns: &[
        text("FEATURE", "name"),
        text("STATE", "state"),
        count("USES", "uses"),
        text("MEANING", "meaning"),
    ],
};

impl Features {
    pub fn run(&self) -> Outcome {
        let Features { pool, enable, disable, count, output } = self;
        let query = Query::Features { enable: enable.clone(), disable: disable.clone(), count: *count };
        let answer = ask(&Registry::of_this_user()?, pool, &query)?;
        let rows = answer["features"].as_array().map(Vec::as_slice).unwrap_or_default();
        if output.json {
            let fields = json!({"pool": answer["name"], "features": rows});
            return print(&format!("{:#}\n", envelope(ROWS.command, fields)));
        }
        print(&ROWS.render(rows, *output))
    }
}
